//! The route of events.

use bcd::crypto::digest;
use bcd::wire::http1::server::Answer;

use super::query::Query;
use super::{Api, Refused, answer};
use crate::contract;
use crate::json::{Json, Object};
use crate::store::{EVENT_KINDS as KINDS, EventsAsked, StoredEvent};

impl Api {
    /// `GET events`: the newest, or those after a number, in the order they came. With `wait`, once there
    /// is one.
    pub(super) async fn list_events(&self, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["node", "kind", "since", "after", "limit", "wait"])?;
        if query
            .text("kind")
            .is_some_and(|kind| !KINDS.contains(&kind))
        {
            let kinds = KINDS.join(", ");
            return Err(Refused::invalid(format!("kind is one of {kinds}")));
        }
        let asked = EventsAsked {
            node_id: query.text("node").map(str::to_owned),
            kind: query.text("kind").map(str::to_owned),
            since_ms: query.number("since", i64::MAX)?,
            after: query.number("after", i64::MAX)?,
            limit: query.limit()?,
        };
        let asked = &asked;
        let view = self
            .read_until(query.wait()?, || async move {
                let (wanted, full) = (asked.clone(), asked.limit as usize);
                let (shown, next) = self
                    .registry
                    .with(move |records| {
                        let last = records.store.last_event()?;
                        let events = records.store.events(&wanted)?;
                        let mut shown = Vec::with_capacity(events.len());
                        for event in &events {
                            shown.push(view(event, |id| {
                                let known = records.store.command(id).ok().flatten();
                                known.map(|command| command.kind)
                            }));
                        }
                        // Those that do not fit the question are passed by as well.
                        let next = match events.last() {
                            Some(newest) if events.len() == full => newest.number,
                            _ => last,
                        };
                        Ok((shown, next))
                    })
                    .await?;
                let news = !shown.is_empty();
                let view = Object::new().with("events", shown).with("next", next);
                Ok((Json::from(view), news))
            })
            .await?;
        Ok(answer(200, view.to_string()))
    }
}

fn view(event: &StoredEvent, kind_of: impl Fn(&str) -> Option<String>) -> Json {
    Object::new()
        .with("number", event.number)
        .with("nodeId", event.node_id.as_str())
        .with("journalId", digest::hex(&event.journal_id))
        .with("sequence", event.sequence)
        .with("timeMs", event.time_ms)
        .with("receivedMs", event.received_ms)
        .with("kind", event.kind.as_str())
        .with("body", contract::event_body(&event.body, kind_of))
        .into()
}
