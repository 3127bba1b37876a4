//! Events, stored with what they say of commands, specs and
//! machines; and the share of events each node keeps.

use std::ops::ControlFlow;

use bcd::proto::{Event, EventBody, Facts, Message, Role};
use bcd::sys::log::{self, Level, Value};

use super::Records;
use super::sessions::Batch;
use crate::store::{Node, Store, StoreError};

/// After how many stored events a node's share of them is looked at, and of how many nodes at once.
const PRUNE_EVERY: i64 = 200;
const PRUNE_NODES: usize = 16;
/// How often what is too old is looked for, and how much of it goes at once.
const PRUNE_AGE_EVERY_MS: i64 = 60_000;
const PRUNE_AT_ONCE: u32 = 1_000;

impl Records {
    pub(super) fn count_stored(&mut self, batch: &Batch) {
        let count = i64::try_from(batch.events.len()).unwrap_or(0);
        // A node that was not heard of since the start may be at its share already.
        let stored = self.stored.entry(batch.node_id.clone());
        *stored.or_insert(PRUNE_EVERY) += count;
    }

    /// Keeps each node's events to its share, a little late, and all of them to their age.
    pub(super) fn prune(&mut self, now_ms: i64) {
        let full: Vec<String> = self
            .stored
            .iter()
            .filter(|(_, count)| **count >= PRUNE_EVERY)
            .map(|(node_id, _)| node_id.clone())
            .take(PRUNE_NODES)
            .collect();
        for node_id in full {
            let pruned = self.store.prune_node_events(&node_id).map(|_| ());
            self.complain(pruned);
            self.stored.insert(node_id, 0);
        }
        if now_ms - self.pruned_ms >= PRUNE_AGE_EVERY_MS {
            let over = |command: &str| match self.store.command(command) {
                Ok(command) => command.is_none_or(|command| command.is_over(now_ms)),
                Err(_) => false,
            };
            self.progress.retain(|command, _| !over(command));
            let expired = self
                .store
                .together(|store| store.expire_commands(now_ms, PRUNE_AT_ONCE))
                .map(|_| ());
            self.complain(expired);
            match self.store.prune_old_events(now_ms, PRUNE_AT_ONCE) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => self.pruned_ms = now_ms,
                Err(error) => {
                    self.pruned_ms = now_ms;
                    self.complain(Err(error));
                }
            }
        }
    }
}

/// Stores one session's events, and what they say, inside a transaction.
pub(super) fn add(store: &Store, batch: &Batch, now_ms: i64) -> Result<u64, StoreError> {
    store.add_events(
        &batch.node_id,
        &batch.journal_id,
        &batch.events,
        now_ms,
        |store, event| note(store, &batch.node_id, event, now_ms),
    )
}

/// Takes down what an event says.
fn note(store: &Store, node_id: &str, event: &Event, now_ms: i64) -> Result<(), StoreError> {
    match &event.body {
        Some(EventBody::CommandUpdate(update)) => {
            if !store.note_update(node_id, update, now_ms)? {
                log::event(
                    Level::Warn,
                    "command.unknown",
                    &[
                        ("node", Value::Text(node_id)),
                        ("command", Value::Text(&update.id)),
                    ],
                );
            }
            Ok(())
        }
        Some(EventBody::SectionStatus(status)) => store.note_section(node_id, status, now_ms),
        Some(EventBody::Facts(facts)) => {
            store.note_facts(node_id, &facts.encode_to_vec(), event.time_ms, now_ms)?;
            note_booted(store, node_id, facts, now_ms)
        }
        Some(EventBody::Receipt(receipt)) => {
            if !store.note_receipt(node_id, receipt, now_ms)? {
                log::event(
                    Level::Warn,
                    "receipt.unknown_order",
                    &[("node", Value::Text(node_id))],
                );
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// An installed system's facts say what it started from: that is held against what was deployed.
fn note_booted(store: &Store, node_id: &str, facts: &Facts, now_ms: i64) -> Result<(), StoreError> {
    let is_installed = |node: Node| node.role == Role::NODE.0;
    if !store.node(node_id)?.is_some_and(is_installed) {
        return Ok(());
    }
    if let Some(booted) = store.note_booted(node_id, facts, now_ms)? {
        let level = match booted.verdict == "DeployedDisk" {
            true => Level::Info,
            false => Level::Warn,
        };
        let fields = [
            ("node", Value::Text(node_id)),
            ("machine", Value::Shown(&booted.mac)),
            ("verdict", Value::Text(&booted.verdict)),
            ("message", Value::Text(&booted.message)),
        ];
        log::event(level, "machine.booted", &fields);
    }
    Ok(())
}
