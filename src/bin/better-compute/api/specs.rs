//! The routes of a node's spec. A change is signed by the JoinService before it is kept: neither the API
//! nor the gateway has the key.

use bcd::crypto::base64;
use bcd::proto::{Message, NodeSpec, SpecSection};
use bcd::wire::http1::server::Answer;

use super::{Api, BODY_MAX, Refused, answer};
use crate::contract;
use crate::json::{Json, Object};
use crate::registry::now_ms;
use crate::store::{NAME_MAX, SECTIONS_MAX, SPEC_BYTES_MAX, Section, Spec};

const DEPTH_MAX: usize = 8;
/// How often a change is made again on top of one that came first.
const TRIES: usize = 5;

/// A section to be put (`Some`) or taken out.
type Change = (String, Option<Vec<u8>>);

impl Api {
    /// `GET nodes/{id}/spec`.
    pub(super) async fn show_spec(&self, node_id: &str) -> Result<Answer, Refused> {
        let spec = self.spec(node_id).await?;
        Ok(answer(200, view(node_id, spec.as_ref()).to_string()))
    }

    /// The spec of a node that exists.
    async fn spec(&self, node_id: &str) -> Result<Option<Spec>, Refused> {
        let wanted = node_id.to_owned();
        self.registry
            .with(move |records| {
                let node = records.node(&wanted)?;
                Ok(match node {
                    Some(_) => Some(records.store.spec(&wanted)?),
                    None => None,
                })
            })
            .await?
            .ok_or_else(|| Refused::not_found("there is no such node"))
    }

    /// `POST nodes/{id}/spec`: puts and takes out sections; the others stay.
    pub(super) async fn change_spec(&self, node_id: &str, body: &[u8]) -> Result<Answer, Refused> {
        let asked = Json::parse(body, BODY_MAX, DEPTH_MAX)
            .map_err(|_| Refused::invalid("the body is not the JSON of a change of a spec"))?;
        let changes = changes(&asked).map_err(Refused::invalid)?;
        for _ in 0..TRIES {
            let before = self.spec(node_id).await?;
            let Some(mut spec) = changed(before.as_ref(), &changes).map_err(Refused::invalid)?
            else {
                return Ok(answer(200, view(node_id, before.as_ref()).to_string()));
            };
            let payload = NodeSpec {
                node_id: node_id.to_owned(),
                generation: spec.generation,
                sections: spec
                    .sections
                    .iter()
                    .map(|section| SpecSection {
                        name: section.name.clone(),
                        body: section.body.clone(),
                    })
                    .collect(),
            };
            let signed = self.signer.sign_spec(payload.encode_to_vec()).await;
            let signed = signed.ok_or_else(|| {
                Refused(
                    503,
                    "UNAVAILABLE",
                    "the JoinService did not sign the spec: try again".to_owned(),
                )
            })?;
            spec.envelope = signed.encode_to_vec();
            spec.changed_ms = now_ms();
            let (node, generation) = (node_id.to_owned(), before.map_or(0, |spec| spec.generation));
            let (kept, spec) = self
                .registry
                .with(move |records| {
                    let kept = records
                        .store
                        .together(|store| store.set_spec(&node, generation, &spec))?;
                    Ok((kept, spec))
                })
                .await?;
            if kept {
                self.gateway.look(node_id);
                return Ok(answer(200, view(node_id, Some(&spec)).to_string()));
            }
        }
        Err(Refused(
            409,
            "ABORTED",
            "others change this spec at the same time: try again".to_owned(),
        ))
    }
}

/// The changes that a body asks for.
fn changes(asked: &Json) -> Result<Vec<Change>, String> {
    let form = "the body is {\"sections\": [{\"name\": …, and one of \"value\": {…}, \"bodyBase64\": …, \"remove\": true}]}";
    let Some(Json::List(items)) = asked.get("sections") else {
        return Err(form.to_owned());
    };
    let mut changes: Vec<Change> = Vec::new();
    for item in items {
        let name = item.text("name");
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
            return Err(format!(
                "a section's name is letters, digits, '.', '-' and '_', 1 to {NAME_MAX} of them"
            ));
        }
        if changes.iter().any(|(known, _)| known == name) {
            return Err(format!("section {name} is there twice"));
        }
        let body = match (
            item.get("value"),
            item.get("bodyBase64"),
            item.get("remove"),
        ) {
            (Some(value), None, None) => Some(contract::encode_section(name, value)?),
            (None, Some(encoded), None) => Some(
                encoded
                    .as_text()
                    .and_then(|text| base64::decode(text).ok())
                    .ok_or_else(|| format!("bodyBase64 of section {name} is not base64"))?,
            ),
            (None, None, Some(Json::Bool(true))) => None,
            _ => return Err(form.to_owned()),
        };
        changes.push((name.to_owned(), body));
    }
    match changes.is_empty() {
        true => Err(form.to_owned()),
        false => Ok(changes),
    }
}

/// The spec after the changes, unsigned; `None` when they change nothing. Sections keep their place, new
/// ones come last.
fn changed(before: Option<&Spec>, changes: &[Change]) -> Result<Option<Spec>, String> {
    let generation = before.map_or(0, |spec| spec.generation) + 1;
    let mut sections = before.map_or_else(Vec::new, |spec| spec.sections.clone());
    let mut any = false;
    for (name, body) in changes {
        let known = sections.iter().position(|section| section.name == *name);
        match (known, body) {
            (None, None) => return Err(format!("the spec has no section {name} to remove")),
            (Some(index), None) => {
                sections.remove(index);
                any = true;
            }
            (Some(index), Some(body)) => {
                if let Some(section) = sections.get_mut(index)
                    && section.body != *body
                {
                    section.body.clone_from(body);
                    section.changed_generation = generation;
                    any = true;
                }
            }
            (None, Some(body)) => {
                sections.push(Section {
                    name: name.clone(),
                    body: body.clone(),
                    changed_generation: generation,
                    ..Section::default()
                });
                any = true;
            }
        }
    }
    if sections.len() > SECTIONS_MAX {
        return Err(format!("a spec has at most {SECTIONS_MAX} sections"));
    }
    if sections
        .iter()
        .map(|section| section.body.len())
        .sum::<usize>()
        > SPEC_BYTES_MAX
    {
        return Err(format!(
            "the sections are over {SPEC_BYTES_MAX} bytes together"
        ));
    }
    Ok(any.then(|| Spec {
        generation,
        envelope: Vec::new(),
        changed_ms: 0,
        sections,
    }))
}

/// A spec as it is shown; generation 0 when there is none.
fn view(node_id: &str, spec: Option<&Spec>) -> Json {
    let sections: Vec<Json> = spec
        .map(|spec| spec.sections.iter().map(section_view).collect())
        .unwrap_or_default();
    Object::new()
        .with("nodeId", node_id)
        .with("generation", spec.map_or(0, |spec| spec.generation))
        .with_some("changedAtMs", spec.map(|spec| spec.changed_ms))
        .with("sections", sections)
        .into()
}

fn section_view(section: &Section) -> Json {
    // What was reported of an earlier body says nothing of this one.
    let reported = section.reported_generation >= section.changed_generation;
    let state = match (reported, section.state.as_str()) {
        (true, state) if !state.is_empty() => state,
        _ => "unreported",
    };
    let (reason, message) = match reported {
        true => (section.reason.as_str(), section.message.as_str()),
        false => ("", ""),
    };
    Object::new()
        .with("name", section.name.as_str())
        .with(
            "value",
            contract::show_section(&section.name, &section.body),
        )
        .with("state", state)
        .with_text("reason", reason)
        .with_text("message", message)
        .with("changedGeneration", section.changed_generation)
        .with_some("reportedAtMs", section.reported_ms.filter(|_| reported))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Result<Vec<Change>, String> {
        changes(&Json::parse(body.as_bytes(), 10_000, 8).unwrap())
    }

    #[test]
    fn a_change_grows_the_generation_and_leaves_other_sections_alone() {
        let put = |name: &str, body: u8| (name.to_owned(), Some(vec![body]));
        let first = changed(None, &[put("log", 1), put("host", 2)])
            .unwrap()
            .unwrap();
        assert_eq!(first.generation, 1);
        let second = changed(Some(&first), &[put("host", 3), put("site", 4)])
            .unwrap()
            .unwrap();
        let shown: Vec<_> = second
            .sections
            .iter()
            .map(|s| (s.name.as_str(), s.body[0], s.changed_generation))
            .collect();
        assert_eq!(shown, [("log", 1, 1), ("host", 3, 2), ("site", 4, 2)]);
        assert_eq!(
            changed(Some(&second), &[put("log", 1)]).unwrap(),
            None,
            "nothing new"
        );
        let third = changed(Some(&second), &[("host".to_owned(), None)])
            .unwrap()
            .unwrap();
        assert_eq!((third.generation, third.sections.len()), (3, 2));
        assert!(
            changed(Some(&third), &[("host".to_owned(), None)])
                .unwrap_err()
                .contains("host")
        );
        let many: Vec<_> = (0..=SECTIONS_MAX)
            .map(|n| put(&format!("s{n}"), 1))
            .collect();
        assert!(changed(None, &many).is_err());
        let large = ("a".to_owned(), Some(vec![0; SPEC_BYTES_MAX + 1]));
        assert!(changed(None, &[large]).is_err());
    }

    #[test]
    fn a_body_that_asks_for_no_change_is_refused() {
        assert_eq!(
            asked(r#"{"sections":[{"name":"log","value":{"level":"info"}},{"name":"x","bodyBase64":"AQ=="},{"name":"y","remove":true}]}"#)
                .unwrap()
                .len(),
            3
        );
        for bad in [
            "{}",
            r#"{"sections":[]}"#,
            r#"{"sections":[{"name":"log"}]}"#,
            r#"{"sections":[{"name":"log","value":{},"remove":true}]}"#,
            r#"{"sections":[{"name":"log","remove":false}]}"#,
            r#"{"sections":[{"name":"a b","remove":true}]}"#,
            r#"{"sections":[{"name":"a","remove":true},{"name":"a","remove":true}]}"#,
            r#"{"sections":[{"name":"a","bodyBase64":"?"}]}"#,
            r#"{"sections":[{"name":"log","value":{"level":"loud"}}]}"#,
        ] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_report_on_an_earlier_body_is_not_shown_for_this_one() {
        let mut section = Section {
            name: "log".to_owned(),
            changed_generation: 2,
            state: "applied".to_owned(),
            reported_generation: 1,
            reported_ms: Some(5),
            ..Section::default()
        };
        assert_eq!(section_view(&section).text("state"), "unreported");
        section.reported_generation = 2;
        assert_eq!(section_view(&section).text("state"), "applied");
    }
}
