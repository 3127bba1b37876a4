//! Events as an operator reads them.

use bcd::crypto::digest;
use bcd::proto::{CommandState, Event, EventBody, Message, SectionState};

use super::diag;
use super::facts;
use super::kinds::{raw, show_result};
use super::word;
use crate::json::{Json, Object};

/// What an encoded event says. `kind_of` gives the kind of a command by its id, for its result.
pub fn event_body(bytes: &[u8], kind_of: impl Fn(&str) -> Option<String>) -> Json {
    let Ok(event) = Event::decode(bytes) else {
        return raw(bytes);
    };
    let Some(body) = event.body else {
        return raw(bytes);
    };
    let shown = match body {
        EventBody::SectionStatus(status) => Object::new()
            .with("generation", status.generation)
            .with("section", status.section)
            .with("state", section_state(status.state))
            .with_text("reason", &status.reason)
            .with_text("message", &status.message),
        EventBody::CommandUpdate(update) => {
            let kind = kind_of(&update.id).unwrap_or_default();
            Object::new()
                .with("id", update.id)
                .with("state", command_state(update.state))
                .with_text("reason", &update.reason)
                .with_text("message", &update.message)
                .with_some("result", show_result(&kind, &update.result))
        }
        EventBody::Facts(facts) => return facts::show(facts),
        EventBody::EventsDropped(dropped) => Object::new()
            .with("first", dropped.first)
            .with("last", dropped.last)
            .with("count", dropped.count),
        EventBody::JournalDamaged(damaged) => Object::new()
            .with("kept_as", damaged.kept_as)
            .with("records_kept", damaged.records_kept)
            .with("bytes_lost", damaged.bytes_lost)
            .with("damage", damaged.damage),
        EventBody::StorageFault(fault) => Object::new()
            .with("reason", fault.reason)
            .with("message", fault.message)
            .with("since_ms", fault.since_ms)
            .with("until_ms", fault.until_ms)
            .with("refused_commands", fault.refused_commands),
        EventBody::IdentityRenewed(renewed) => Object::new()
            .with("not_after_ms", renewed.not_after_ms)
            .with("key_sha256", digest::hex(&renewed.spki_sha256)),
        EventBody::DiagReport(report) => diag::show_report(report),
        EventBody::Receipt(receipt) => Object::new()
            .with("kind", super::receipts::receipt_kind(&receipt))
            .with("outcome", super::receipts::receipt_outcome(&receipt).0),
        EventBody::BootedFrom(booted) => Object::new()
            .with("order", booted.order_id)
            .with("verdict", booted.verdict)
            .with("message", booted.message),
        // A kind that is younger than this page.
        #[allow(unreachable_patterns)]
        _ => return raw(bytes),
    };
    shown.into()
}

/// `pending`, `applied` …; the number of one not known.
fn section_state(state: SectionState) -> String {
    word(state.name(), "SECTION_STATE_", state.0)
}

/// `running`, `succeeded` …; the number of one not known.
fn command_state(state: CommandState) -> String {
    word(state.name(), "COMMAND_STATE_", state.0)
}

#[cfg(test)]
mod tests {
    use bcd::proto::{CommandUpdate, LogsCollectResult, SectionStatus};

    use super::*;

    fn shown(body: Option<EventBody>) -> String {
        let event = Event {
            sequence: 1,
            time_ms: 2,
            body,
        };
        event_body(&event.encode_to_vec(), |id| {
            (id == "cmd_1").then(|| "logs.collect".to_owned())
        })
        .to_string()
    }

    #[test]
    fn an_event_reads_as_what_it_says() {
        let status = SectionStatus {
            generation: 3,
            section: "log".to_owned(),
            state: SectionState::APPLIED,
            ..SectionStatus::default()
        };
        assert_eq!(
            shown(Some(EventBody::SectionStatus(status))),
            r#"{"generation":3,"section":"log","state":"applied"}"#
        );
        let update = |id: &str| CommandUpdate {
            id: id.to_owned(),
            state: CommandState::SUCCEEDED,
            result: LogsCollectResult {
                size: 1,
                ..LogsCollectResult::default()
            }
            .encode_to_vec(),
            ..CommandUpdate::default()
        };
        assert_eq!(
            shown(Some(EventBody::CommandUpdate(update("cmd_1")))),
            r#"{"id":"cmd_1","state":"succeeded","result":{"size":1,"sha256":"","truncated":false}}"#
        );
        assert_eq!(
            shown(Some(EventBody::CommandUpdate(update("cmd_2")))),
            r#"{"id":"cmd_2","state":"succeeded","result":{"base64":"CAE="}}"#
        );
        assert_eq!(shown(None), r#"{"base64":"CAEQAg=="}"#);
        assert_eq!(event_body(&[0xff], |_| None).text("base64"), "/w==");
    }
}
