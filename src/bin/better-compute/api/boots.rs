//! The route that has a machine start what was deployed to it, or go off.

use bcd::proto::{BootMode, DeployOutcome, DeployReceipt, DiskTarget, MachineBootParams, Message};
use bcd::wire::http1::server::Answer;

use super::orders::{Ready, disk_named, known, target};
use super::{Api, BODY_MAX, Refused};
use crate::json::Json;
use crate::store::ReceiptsAsked;

const DEPTH_MAX: usize = 4;
/// What a node takes.
const APPEND_MAX: usize = 1024;
/// Receipts of a machine that are looked through.
const RECEIPTS: u32 = 100;

impl Api {
    /// `POST machines/{mac}/boot`.
    pub(super) async fn boot_machine(&self, mac: &str, body: &[u8]) -> Result<Answer, Refused> {
        let asked = Json::parse(body, BODY_MAX, DEPTH_MAX)
            .map_err(|_| Refused::invalid("the body is not the JSON of an order"))?;
        known(&asked, &["mode", "disk", "append", "noFallback"])?;
        let mode = match asked.text("mode") {
            "kexec" => BootMode::KEXEC,
            "reboot" => BootMode::REBOOT,
            "poweroff" => BootMode::POWER_OFF,
            _ => return Err(Refused::invalid("mode is kexec, reboot or poweroff")),
        };
        let append = asked.text("append");
        if append.len() > APPEND_MAX || append.chars().any(char::is_control) {
            return Err(Refused::invalid("append is one line of at most 1024 bytes"));
        }
        if mode != BootMode::KEXEC
            && ["disk", "append"]
                .iter()
                .any(|name| asked.get(name).is_some())
        {
            return Err(Refused::invalid(
                "a disk and append are for kexec alone: the firmware chooses otherwise",
            ));
        }
        let ready = self.ready(mac, "machine.boot").await?;
        let disk = match mode {
            BootMode::KEXEC => Some(self.boot_disk(&ready, &asked).await?),
            _ => None,
        };
        self.order(&ready, "machine.boot", &asked, |order_id| {
            let params = MachineBootParams {
                order_id,
                mode,
                disk: disk.clone(),
                append: append.to_owned(),
                no_fallback: asked.flag("noFallback"),
            };
            params.encode_to_vec()
        })
        .await
    }

    /// The disk that is named, else the one that was deployed to in this boot.
    async fn boot_disk(&self, ready: &Ready, asked: &Json) -> Result<DiskTarget, Refused> {
        if let Some(name) = asked.get("disk") {
            let disk = disk_named(&ready.facts, name.as_text().unwrap_or_default());
            return disk.map(target).map_err(Refused::invalid);
        }
        let of = ReceiptsAsked {
            mac: Some(ready.mac),
            order_id: None,
            limit: RECEIPTS,
        };
        let node_id = ready.node.id.clone();
        let receipts = self
            .registry
            .with(move |records| records.store.receipts(&of))
            .await?;
        // Every boot of the ramdisk is a node of its own.
        let last = receipts
            .into_iter()
            .find(|known| known.node_id == node_id && known.kind == "deploy.image");
        let payload = last.and_then(|known| known.receipt.envelope);
        let receipt = payload.and_then(|envelope| DeployReceipt::decode(&envelope.payload).ok());
        match receipt {
            Some(receipt) if receipt.outcome == DeployOutcome::DEPLOYED => Ok(receipt.target.unwrap_or_default()),
            Some(_) => Err(Refused(
                409,
                "NOT_NOW",
                "the last deploy in this boot failed, and its disk boots nothing: deploy again, or name a disk".to_owned(),
            )),
            None => Err(Refused::invalid(
                "nothing was deployed in this boot: name the disk whose system is to be started",
            )),
        }
    }
}
