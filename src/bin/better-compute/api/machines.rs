//! Machines: what joined by discovery, with what it is made of.

use bcd::config::mac::Mac;
use bcd::proto::{Facts, HardwareClaims};
use bcd::wire::http1::server::Answer;
use nanoserde::SerJson;
use proto_gen::codec::Message;

use super::views::{BootedView, MachineView, Machines, NodeView};
use super::{Api, Refused, answer};
use crate::contract;
use crate::json::{Json, Object};
use crate::registry::Records;
use crate::store::{Machine, Node, StoreError};

/// A machine, its node, and what that last said it is made of.
type Found = (Machine, Node, Option<(Vec<u8>, i64)>);

impl Api {
    pub(super) async fn list_machines(&self) -> Result<Answer, Refused> {
        let found = self.registry.with(|records| find(records, None)).await?;
        let machines = found.iter().map(view).collect();
        Ok(answer(200, Machines { machines }.serialize_json()))
    }

    pub(super) async fn show_machine(&self, mac: &str) -> Result<Answer, Refused> {
        let missing = || {
            Refused::not_found("no machine with this MAC has joined: better-compute machines list")
        };
        let mac = Mac::parse(mac).ok_or_else(missing)?;
        let found = self
            .registry
            .with(move |records| {
                Ok((
                    find(records, Some(mac))?,
                    records.store.booted_machine(mac)?,
                ))
            })
            .await?;
        let (found, booted) = found;
        let booted = booted.map(|booted| {
            let booted = BootedView::from(booted).serialize_json();
            Json::parse(booted.as_bytes(), booted.len(), 4).unwrap_or(Json::Null)
        });
        let found = found.first().ok_or_else(missing)?;
        let (machine, node, facts) = found;
        let node = NodeView::with_details(node, Vec::new(), None).serialize_json();
        let node = Json::parse(node.as_bytes(), node.len(), 8).unwrap_or(Json::Null);
        let shown = Object::new()
            .with("mac", machine.mac.to_string())
            .with("boots", machine.boots)
            .with("node", node)
            .with_some("booted", booted)
            .with_some(
                "factsReceivedMs",
                facts.as_ref().map(|(_, received_ms)| *received_ms),
            )
            .with_some(
                "facts",
                facts.as_ref().map(|(body, _)| contract::show_facts(body)),
            );
        Ok(answer(200, Json::from(shown).to_string()))
    }
}

fn find(records: &Records, mac: Option<Mac>) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::new();
    for machine in records.store.machines(mac)? {
        if let Some(node) = records.node(&machine.node_id)? {
            let facts = records.store.facts(&machine.node_id)?;
            found.push((machine, node, facts));
        }
    }
    Ok(found)
}

/// What fits in a list. Until the first facts come, the claims of the join say what they can.
fn view((machine, node, facts): &Found) -> MachineView {
    let facts = facts.as_ref();
    let facts = facts.and_then(|(body, _)| Facts::decode(body).ok());
    let mut view = MachineView {
        mac: machine.mac.to_string(),
        boots: machine.boots,
        node: NodeView::new(node),
        ..MachineView::default()
    };
    let Some(facts) = facts else {
        let claims = HardwareClaims::decode(&node.claims).unwrap_or_default();
        view.product = claims.system_product;
        view.serial = claims.system_serial;
        view.cpus = claims.cpus;
        view.memory_bytes = claims.memory_bytes;
        return view;
    };
    let firmware = facts.firmware.unwrap_or_default();
    view.product = firmware.system_product;
    view.serial = firmware.system_serial;
    view.boot_mode = firmware.boot_mode;
    view.cpus = facts.cpu.map_or(0, |cpu| cpu.threads);
    view.memory_bytes = facts.memory_bytes;
    let fixed = facts.disks.iter().filter(|disk| !disk.removable);
    view.disks = fixed.clone().count();
    view.disk_bytes = fixed.fold(0, |sum, disk| sum.saturating_add(disk.size_bytes));
    view.gpus = facts.gpus.len();
    view
}
