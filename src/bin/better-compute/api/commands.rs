//! The routes of commands and of what they put out.

use bcd::crypto::base64;
use bcd::wire::http1::server::Answer;

use super::query::Query;
use super::{Api, BODY_MAX, Refused, answer};
use crate::contract;
use crate::ids;
use crate::json::{Json, Object};
use crate::registry::{Progress, now_ms};
use crate::store::{
    Added, Cancelled, Command, CommandsAsked, DIAG_REPORT, EventsAsked, NewCommand, OPEN_MAX,
};

const DEADLINE_DEFAULT_S: i64 = 3_600;
/// A node remembers a command's id until its deadline: the contract's bound.
const DEADLINE_MAX_S: i64 = 30 * 86_400;
const KIND_MAX: usize = 64;
/// Bytes of a command's encoded parameters.
const PARAMS_MAX: usize = 48 * 1024;
const DEPTH_MAX: usize = 8;
/// Kinds that tell what they find by events, and how many of them are looked through.
const DIAGNOSES: &str = "diag.";
const REPORTS_MAX: u32 = 200;
const NO_COMMAND: &str = "there is no such command";

impl Api {
    /// `POST nodes/{id}/commands`.
    pub(super) async fn make_command(&self, node_id: &str, body: &[u8]) -> Result<Answer, Refused> {
        let now = now_ms();
        let asked = Json::parse(body, BODY_MAX, DEPTH_MAX)
            .map_err(|_| Refused::invalid("the body is not the JSON of a command"))?;
        let new = new_command(node_id, &asked, now).map_err(Refused::invalid)?;
        let id = new.id.clone();
        let added = self
            .registry
            .with(move |records| records.store.together(|store| store.add_command(&new)))
            .await?;
        let status = self.added(node_id, added)?;
        let (command, progress) = self.command(&id).await?;
        Ok(answer(
            status,
            view(&command, progress.as_ref(), now).to_string(),
        ))
    }

    /// The status of an answer to a command that was to be made; its session is told to look.
    pub(super) fn added(&self, node_id: &str, added: Added) -> Result<u16, Refused> {
        let status = match added {
            Added::Made => 201,
            Added::Again => 200,
            Added::OtherHasId => {
                return Err(Refused(
                    409,
                    "ALREADY_EXISTS",
                    "another command has this id".to_owned(),
                ));
            }
            Added::NoNode => return Err(Refused::not_found("there is no such node")),
            Added::TooMany => {
                return Err(Refused(
                    429,
                    "RESOURCE_EXHAUSTED",
                    format!(
                        "{OPEN_MAX} commands of this node are not over yet: wait, or cancel some"
                    ),
                ));
            }
        };
        self.gateway.look(node_id);
        Ok(status)
    }

    /// A command as it is shown.
    pub(super) async fn shown_command(&self, id: &str) -> Result<Json, Refused> {
        let (command, progress) = self.command(id).await?;
        Ok(view(&command, progress.as_ref(), now_ms()))
    }

    async fn command(&self, id: &str) -> Result<(Command, Option<Progress>), Refused> {
        let wanted = id.to_owned();
        let found = self
            .registry
            .with(move |records| {
                let progress = records.progress(&wanted).cloned();
                Ok(records
                    .store
                    .command(&wanted)?
                    .map(|known| (known, progress)))
            })
            .await?;
        found.ok_or_else(|| Refused::not_found(NO_COMMAND))
    }

    /// `GET commands/{id}`: with `wait`, once it has changed from `seen`, or is over.
    pub(super) async fn show_command(&self, id: &str, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["wait", "seen"])?;
        let seen = query.text("seen");
        let shown = self
            .read_until(query.wait()?, || async move {
                let now = now_ms();
                let (command, progress) = self.command(id).await?;
                let mut shown = view(&command, progress.as_ref(), now);
                if command.is_over(now)
                    && let Some(findings) = self.findings(&command).await?
                    && let Json::Object(members) = &mut shown
                {
                    members.push(("findings".to_owned(), findings.into()));
                }
                let news =
                    command.is_over(now) || seen.is_some_and(|seen| shown.text("seen") != seen);
                Ok((shown, news))
            })
            .await?;
        Ok(answer(200, shown.to_string()))
    }

    /// What a diagnosis told, in its order; `None` for another kind of command.
    async fn findings(&self, command: &Command) -> Result<Option<Vec<Json>>, Refused> {
        if !command.kind.starts_with(DIAGNOSES) {
            return Ok(None);
        }
        let asked = EventsAsked {
            node_id: Some(command.node_id.clone()),
            kind: Some(DIAG_REPORT.to_owned()),
            since_ms: Some(command.created_ms),
            after: Some(0),
            limit: REPORTS_MAX,
        };
        let id = command.id.clone();
        let findings = self
            .registry
            .with(move |records| {
                let mut findings = Vec::new();
                for event in records.store.events(&asked)? {
                    let report = contract::event_body(&event.body, |_| None);
                    if report.text("command_id") == id {
                        let told = report.get("findings").map(Json::items);
                        findings.extend_from_slice(told.unwrap_or_default());
                    }
                }
                Ok(findings)
            })
            .await?;
        Ok(Some(findings))
    }

    /// `GET commands`: the newest first.
    pub(super) async fn list_commands(&self, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["node", "state", "before", "limit"])?;
        let asked = CommandsAsked {
            node_id: query.text("node").map(str::to_owned),
            state: query.text("state").map(str::to_owned),
            before: query.number("before", i64::MAX)?,
            limit: query.limit()?,
        };
        let now = now_ms();
        let limit = asked.limit as usize;
        let commands = self
            .registry
            .with(move |records| {
                let commands = records.store.commands(&asked, now)?;
                Ok(commands
                    .into_iter()
                    .map(|command| {
                        let progress = records.progress(&command.id).cloned();
                        (command, progress)
                    })
                    .collect::<Vec<_>>())
            })
            .await?;
        let next = match commands.len() == limit {
            true => commands.last().map(|(command, _)| command.number),
            false => None,
        };
        let list: Vec<Json> = commands
            .iter()
            .map(|(command, progress)| view(command, progress.as_ref(), now))
            .collect();
        let view = Object::new()
            .with("commands", list)
            .with_some("nextBefore", next);
        Ok(answer(200, Json::from(view).to_string()))
    }

    /// `POST commands/{id}/cancel`.
    pub(super) async fn cancel_command(&self, id: &str) -> Result<Answer, Refused> {
        let now = now_ms();
        let wanted = id.to_owned();
        let cancelled = self
            .registry
            .with(move |records| {
                records
                    .store
                    .together(|store| store.cancel_command(&wanted, now))
            })
            .await?;
        match cancelled {
            Cancelled::NoCommand => return Err(Refused::not_found(NO_COMMAND)),
            Cancelled::Over => {
                return Err(Refused(
                    409,
                    "FAILED_PRECONDITION",
                    "the command is over: there is nothing to cancel".to_owned(),
                ));
            }
            Cancelled::Asked | Cancelled::Ended => {}
        }
        let (command, progress) = self.command(id).await?;
        self.gateway.look(&command.node_id);
        Ok(answer(
            200,
            view(&command, progress.as_ref(), now).to_string(),
        ))
    }

    /// `GET commands/{id}/output`: the stored piece at `offset`, from there on.
    pub(super) async fn show_output(&self, id: &str, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["offset"])?;
        let offset = query
            .number("offset", i64::MAX)?
            .unwrap_or(0)
            .unsigned_abs();
        let (command, _) = self.command(id).await?;
        if command.output_size.is_none() {
            return Err(Refused::not_found("this command has no output"));
        }
        let number = command.number;
        let piece = self
            .registry
            .with(move |records| records.store.output(number, offset))
            .await?;
        Ok(Answer::new(200, "application/octet-stream", piece).with("Cache-Control", "no-store"))
    }
}

/// The command that a body asks for.
fn new_command(node_id: &str, asked: &Json, now: i64) -> Result<NewCommand, String> {
    let Json::Object(members) = asked else {
        return Err("the body is not the JSON of a command".to_owned());
    };
    let known = ["id", "kind", "params", "paramsBase64", "deadlineSeconds"];
    if let Some((name, _)) = members
        .iter()
        .find(|(name, _)| !known.contains(&name.as_str()))
    {
        return Err(format!(
            "a command has no {}: there are {}",
            bcd::crypto::json::quote(name),
            known.join(", ")
        ));
    }
    let kind = asked.text("kind");
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if kind.is_empty() || kind.len() > KIND_MAX || !kind.bytes().all(plain) {
        return Err(format!(
            "kind is letters, digits, '.', '-' and '_', 1 to {KIND_MAX} of them, such as node.reboot"
        ));
    }
    let params = match (asked.get("params"), asked.get("paramsBase64")) {
        (Some(_), Some(_)) => {
            return Err("params and paramsBase64 say the same: give one".to_owned());
        }
        (None, Some(encoded)) => encoded
            .as_text()
            .and_then(|text| base64::decode(text).ok())
            .ok_or("paramsBase64 is not base64")?,
        (params, None) => contract::encode_params(kind, params.unwrap_or(&Json::Null), now)?,
    };
    if params.len() > PARAMS_MAX {
        return Err(format!("the parameters are over {PARAMS_MAX} bytes"));
    }
    let seconds = match asked.get("deadlineSeconds") {
        None => DEADLINE_DEFAULT_S,
        Some(seconds) => seconds
            .as_i64()
            .filter(|seconds| (1..=DEADLINE_MAX_S).contains(seconds))
            .ok_or("the deadline is from 1s to 30d ahead")?,
    };
    let id = match asked.get("id") {
        None => ids::new("cmd", now),
        Some(id) => id
            .as_text()
            .filter(|id| ids::is_ulid_of("cmd", id))
            .ok_or("id is cmd_ and a lower-case ULID")?
            .to_owned(),
    };
    Ok(NewCommand {
        id,
        node_id: node_id.to_owned(),
        kind: kind.to_owned(),
        params,
        deadline_ms: now + seconds * 1_000,
        created_ms: now,
    })
}

/// A command as it is shown.
fn view(command: &Command, progress: Option<&Progress>, now_ms: i64) -> Json {
    let over = command.is_over(now_ms);
    let progress = progress.filter(|_| !over);
    let seen = format!(
        "{}.{}.{}",
        command.changed_ms,
        progress.map_or(0, |progress| progress.at_ms),
        command.output_received
    );
    let progress = progress.map(|progress| {
        Object::new()
            .with_some("percent", progress.percent)
            .with_text("message", &progress.message)
            .with("atMs", progress.at_ms)
    });
    let output = command.output_size.map(|size| {
        Object::new()
            .with("size", size)
            .with("received", command.output_received)
            .with("state", command.output_state.as_str())
    });
    Object::new()
        .with("id", command.id.as_str())
        .with("nodeId", command.node_id.as_str())
        .with("kind", command.kind.as_str())
        .with("state", command.state(now_ms))
        .with("over", over)
        .with_text("reason", command.reason(now_ms))
        .with_text("message", command.message(now_ms))
        .with("cancelRequested", command.cancelled)
        .with(
            "params",
            contract::show_params(&command.kind, &command.params),
        )
        .with_some(
            "result",
            contract::show_result(&command.kind, &command.result),
        )
        .with_some("progress", progress)
        .with_some("output", output)
        .with("createdAtMs", command.created_ms)
        .with("deadlineMs", command.deadline_ms)
        .with_some("sentAtMs", command.sent_ms)
        .with("changedAtMs", command.changed_ms)
        .with_some("finishedAtMs", command.finished_ms)
        .with("seen", seen)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(body: &str) -> Result<NewCommand, String> {
        let asked = Json::parse(body.as_bytes(), 10_000, 8).unwrap();
        new_command("node_a", &asked, 1_000)
    }

    #[test]
    fn a_command_has_a_kind_parameters_and_a_deadline() {
        let new =
            made(r#"{"kind":"node.reboot","params":{"delay_s":5},"deadlineSeconds":60}"#).unwrap();
        assert_eq!(
            (new.kind.as_str(), new.deadline_ms),
            ("node.reboot", 61_000)
        );
        assert_eq!(new.params, [8, 5]);
        assert!(ids::is_ulid_of("cmd", &new.id));
        let new = made(r#"{"kind":"a.later-one","paramsBase64":"AQI="}"#).unwrap();
        assert_eq!(
            (new.params.as_slice(), new.deadline_ms),
            (&[1u8, 2][..], 3_601_000)
        );
        let id = ids::new("cmd", 5);
        let new = made(&format!(r#"{{"kind":"node.facts","id":"{id}"}}"#)).unwrap();
        assert_eq!(new.id, id);
    }

    #[test]
    fn what_is_no_command_is_refused_in_words() {
        for (body, says) in [
            ("[]", "JSON"),
            ("{}", "kind"),
            (r#"{"kind":"a b"}"#, "kind"),
            (r#"{"kind":"node.facts","deadline":1}"#, r#"no "deadline""#),
            (r#"{"kind":"node.facts","deadlineSeconds":0}"#, "1s to 30d"),
            (
                r#"{"kind":"node.facts","deadlineSeconds":2592001}"#,
                "1s to 30d",
            ),
            (r#"{"kind":"node.facts","id":"cmd_1"}"#, "ULID"),
            (r#"{"kind":"x","params":{},"paramsBase64":""}"#, "give one"),
            (r#"{"kind":"x","paramsBase64":"?"}"#, "base64"),
            (r#"{"kind":"x"}"#, "paramsBase64"),
        ] {
            let refused = made(body).unwrap_err();
            assert!(refused.contains(says), "{body}: {refused}");
        }
    }
}
