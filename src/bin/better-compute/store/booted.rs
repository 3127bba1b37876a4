//! Whether a machine's installed system started from what was deployed to it: the disk that it says its root is on, held
//! against the machine's last deploy receipt.
//!
//! Which receipt is meant follows from the NICs' addresses, as the machine tells them, and not when its UUID is another.
//! That grants nothing: it is a word of warning, or of peace, for people.

use bcd::config::mac::Mac;
use bcd::proto::{
    BootedFrom, DeployOutcome, DeployReceipt, Disk, Event, EventBody, Facts, Message, RootPart,
    SignedReceipt,
};
use rusqlite::{OptionalExtension, Row, params};

use super::{Store, StoreError};

/// The kind of the record that says it.
pub const BOOTED_FROM: &str = "booted_from";
/// Cards that are asked for.
const CARDS: usize = 64;

/// What a machine's system started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booted {
    pub node_id: String,
    pub mac: Mac,
    /// Of the deploy that it is held against.
    pub order_id: String,
    /// A word for programs: see [`compare`].
    pub verdict: String,
    pub message: String,
    pub at_ms: i64,
}

const COLUMNS: &str = "node_id, mac, order_id, verdict, message, at_ms";

fn booted(row: &Row<'_>) -> rusqlite::Result<Booted> {
    Ok(Booted {
        node_id: row.get(0)?,
        mac: Mac(row.get(1)?),
        order_id: row.get(2)?,
        verdict: row.get(3)?,
        message: row.get(4)?,
        at_ms: row.get(5)?,
    })
}

impl Store {
    /// Holds what an installed system says of its root against the last deploy, and writes down what came of it;
    /// with an event, when that is news. Inside a transaction.
    pub fn note_booted(
        &self,
        node_id: &str,
        facts: &Facts,
        now_ms: i64,
    ) -> Result<Option<Booted>, StoreError> {
        let Some((mac, receipt)) = self.last_deploy(facts)? else {
            return Ok(None);
        };
        let (verdict, message) = compare(facts, &receipt);
        let now = Booted {
            node_id: node_id.to_owned(),
            mac,
            order_id: receipt.head.unwrap_or_default().order_id,
            verdict: verdict.to_owned(),
            message,
            at_ms: now_ms,
        };
        let before = self.booted_node(node_id)?;
        let says = |one: &Booted| [&one.order_id, &one.verdict, &one.message].map(String::clone);
        if before.is_some_and(|before| says(&before) == says(&now)) {
            return Ok(None);
        }
        self.connection
            .prepare_cached(&format!(
                "INSERT OR REPLACE INTO booted ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
            ))?
            .execute(params![
                node_id,
                mac.0,
                now.order_id,
                now.verdict,
                now.message,
                now_ms
            ])?;
        let told = BootedFrom {
            order_id: now.order_id.clone(),
            verdict: now.verdict.clone(),
            message: now.message.clone(),
        };
        self.add_own_event(node_id, BOOTED_FROM, EventBody::BootedFrom(told), now_ms)?;
        Ok(Some(now))
    }

    /// The receipt of the last deploy to the machine that says this of itself.
    fn last_deploy(&self, facts: &Facts) -> Result<Option<(Mac, DeployReceipt)>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT r.number, r.body FROM orders o JOIN receipts r ON r.order_id = o.id \
             WHERE o.mac = ?1 AND o.kind = 'deploy.image' ORDER BY r.number DESC LIMIT 1",
        )?;
        let cards = facts
            .interfaces
            .iter()
            .filter(|card| card.kind == "physical");
        let macs = cards
            .filter_map(|card| Mac::parse(&card.permanent_mac).or_else(|| Mac::parse(&card.mac)));
        let own = facts.firmware.clone().unwrap_or_default().system_uuid;
        let mut last: Option<(i64, Mac, DeployReceipt)> = None;
        for mac in macs.take(CARDS) {
            let found: Option<(i64, Vec<u8>)> = statement
                .query_row([mac.0], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((number, body)) = found else {
                continue;
            };
            let receipt = SignedReceipt::decode(&body).unwrap_or_default();
            let payload = receipt.envelope.unwrap_or_default().payload;
            let receipt = DeployReceipt::decode(&payload).unwrap_or_default();
            let uuid = receipt.head.clone().unwrap_or_default().system_uuid;
            let is_other = !own.is_empty() && !uuid.is_empty() && !own.eq_ignore_ascii_case(&uuid);
            if !is_other && last.as_ref().is_none_or(|(before, ..)| *before < number) {
                last = Some((number, mac, receipt));
            }
        }
        Ok(last.map(|(_, mac, receipt)| (mac, receipt)))
    }

    /// What is known of a node's start.
    pub fn booted_node(&self, node_id: &str) -> Result<Option<Booted>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM booted WHERE node_id = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([node_id], booted).optional()?)
    }

    /// The last start of this machine's installed system.
    pub fn booted_machine(&self, mac: Mac) -> Result<Option<Booted>, StoreError> {
        let sql =
            format!("SELECT {COLUMNS} FROM booted WHERE mac = ?1 ORDER BY at_ms DESC LIMIT 1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_row([mac.0], booted).optional()?)
    }

    /// A record that the control plane itself makes, among a node's events.
    fn add_own_event(
        &self,
        node_id: &str,
        kind: &str,
        body: EventBody,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let body = Event {
            time_ms: now_ms,
            body: Some(body),
            ..Event::default()
        };
        self.connection
            .prepare_cached(
                "INSERT INTO events (journal, sequence, node_id, time_ms, received_ms, kind, body) \
                 VALUES (0, (SELECT coalesce(max(sequence), 0) + 1 FROM events WHERE journal = 0), \
                     ?1, ?2, ?2, ?3, ?4)",
            )?
            .execute(params![node_id, now_ms, kind, body.encode_to_vec()])?;
        Ok(())
    }
}

/// What a machine that says this of itself started from, after that deploy: `DeployedDisk`, `OtherDisk`,
/// `OtherPartition`, `DeployFailed` or `NoDisk`, and a sentence.
pub fn compare(facts: &Facts, receipt: &DeployReceipt) -> (&'static str, String) {
    let target = receipt.target.clone().unwrap_or_default();
    let deployed = format!(
        "{} (order {})",
        target.stable_name,
        receipt.head.clone().unwrap_or_default().order_id
    );
    let parts = facts
        .root
        .as_ref()
        .map(|root| root.parts.as_slice())
        .unwrap_or_default();
    if parts.is_empty() {
        let message = format!(
            "NOT known to have booted from the deployed disk {deployed}: its root file system is on no disk"
        );
        return ("NoDisk", message);
    }
    let roots: Vec<String> = parts.iter().map(shown).collect();
    let roots = roots.join(", ");
    if receipt.outcome != DeployOutcome::DEPLOYED {
        let message = format!(
            "booted from {roots}, though the last deploy, to {deployed}, failed: {}",
            receipt.reason
        );
        return ("DeployFailed", message);
    }
    let is_it = |part: &RootPart| {
        if part.disk == target.stable_name {
            return true;
        }
        let of = |disk: &&Disk| disk.kernel_name == part.kernel_name;
        facts.disks.iter().find(of).is_some_and(|disk| {
            let same = |a: &str, b: &str| !a.is_empty() && a == b;
            same(&disk.wwn, &target.wwn)
                || (same(&disk.serial, &target.serial) && disk.size_bytes == target.size_bytes)
        })
    };
    if !parts.iter().all(is_it) {
        let message =
            format!("NOT booted from the deployed disk {deployed}: its root is on {roots}");
        return ("OtherDisk", message);
    }
    let is_known = |part: &RootPart| {
        receipt.partitions.iter().any(|known| {
            match known.guid.is_empty() || part.partuuid.is_empty() {
                true => known.number == part.partition,
                false => known.guid.eq_ignore_ascii_case(&part.partuuid),
            }
        })
    };
    match parts
        .iter()
        .all(|part| part.partition == 0 || is_known(part))
    {
        true => (
            "DeployedDisk",
            format!("booted from the deployed disk {deployed}: {roots}"),
        ),
        false => (
            "OtherPartition",
            format!(
                "booted from the deployed disk {deployed}, but NOT from a partition of its image: {roots}"
            ),
        ),
    }
}

fn shown(part: &RootPart) -> String {
    let disk = match part.disk.is_empty() {
        true => &part.kernel_name,
        false => &part.disk,
    };
    match part.partition {
        0 => disk.clone(),
        number => format!("{disk} partition {number}"),
    }
}

#[cfg(test)]
mod tests {
    use bcd::proto::{
        DeployedPartition, DiskTarget, Envelope, Firmware, NetworkInterface, ReceiptHead,
        RootFilesystem,
    };

    use super::super::tests::TempDir;
    use super::super::{EventsAsked, NewCommand};
    use super::*;

    const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

    fn receipt() -> DeployReceipt {
        DeployReceipt {
            head: Some(ReceiptHead {
                order_id: "ord_1".to_owned(),
                system_uuid: "uuid-1".to_owned(),
                ..ReceiptHead::default()
            }),
            target: Some(DiskTarget {
                stable_name: "nvme-a".to_owned(),
                serial: "A1".to_owned(),
                size_bytes: 7,
                ..DiskTarget::default()
            }),
            outcome: DeployOutcome::DEPLOYED,
            partitions: vec![DeployedPartition {
                number: 1,
                guid: "aaaa".to_owned(),
                ..DeployedPartition::default()
            }],
            ..DeployReceipt::default()
        }
    }

    fn facts(disk: &str, partition: u32, partuuid: &str) -> Facts {
        Facts {
            root: Some(RootFilesystem {
                parts: vec![RootPart {
                    disk: disk.to_owned(),
                    kernel_name: "nvme1n1".to_owned(),
                    partition,
                    partuuid: partuuid.to_owned(),
                }],
                ..RootFilesystem::default()
            }),
            interfaces: vec![NetworkInterface {
                kind: "physical".to_owned(),
                mac: MAC.to_string(),
                ..NetworkInterface::default()
            }],
            ..Facts::default()
        }
    }

    #[test]
    fn the_root_is_held_against_the_receipt() {
        let mut by_serial = facts("other-name", 1, "aaaa");
        by_serial.disks = vec![Disk {
            kernel_name: "nvme1n1".to_owned(),
            serial: "A1".to_owned(),
            size_bytes: 7,
            ..Disk::default()
        }];
        let mut two = facts("nvme-a", 1, "aaaa");
        let other = facts("nvme-b", 1, "").root.unwrap().parts;
        two.root.as_mut().unwrap().parts.extend(other);
        let failed = DeployReceipt {
            outcome: DeployOutcome::FAILED,
            reason: "DiskFailed".to_owned(),
            ..receipt()
        };
        for (facts, receipt, verdict, says) in [
            (
                facts("nvme-a", 1, "AAAA"),
                receipt(),
                "DeployedDisk",
                "booted from the deployed disk nvme-a",
            ),
            (
                facts("nvme-a", 1, ""),
                receipt(),
                "DeployedDisk",
                "partition 1",
            ),
            (facts("nvme-a", 0, ""), receipt(), "DeployedDisk", "nvme-a"),
            (by_serial, receipt(), "DeployedDisk", "other-name"),
            (
                facts("nvme-b", 1, "aaaa"),
                receipt(),
                "OtherDisk",
                "NOT booted from",
            ),
            (two, receipt(), "OtherDisk", "nvme-b"),
            (
                facts("nvme-a", 1, "bbbb"),
                receipt(),
                "OtherPartition",
                "NOT from a partition",
            ),
            (
                facts("nvme-a", 2, ""),
                receipt(),
                "OtherPartition",
                "partition 2",
            ),
            (Facts::default(), receipt(), "NoDisk", "on no disk"),
            (
                facts("nvme-a", 1, "aaaa"),
                failed,
                "DeployFailed",
                "DiskFailed",
            ),
        ] {
            let (got, message) = compare(&facts, &receipt);
            assert_eq!(got, verdict, "{message}");
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn a_start_is_told_once_and_again_when_it_is_another() {
        let dir = TempDir::new();
        let store = Store::open(&dir.0.join("state.db")).unwrap();
        let deploy = |order: &str, command: &str| {
            let command = NewCommand {
                id: command.to_owned(),
                node_id: "node_ramdisk".to_owned(),
                kind: "deploy.image".to_owned(),
                params: Vec::new(),
                deadline_ms: 1_000,
                created_ms: 10,
            };
            let sql = "INSERT INTO receipts (order_id, received_ms, body) VALUES (?1, 20, ?2)";
            let mut of = receipt();
            of.head.as_mut().unwrap().order_id = order.to_owned();
            let signed = SignedReceipt {
                envelope: Some(Envelope {
                    payload: of.encode_to_vec(),
                    ..Envelope::default()
                }),
                ..SignedReceipt::default()
            };
            let made = "INSERT INTO orders (id, node_id, mac, command_id, kind, made_ms, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5, 1, 2)";
            store
                .connection
                .execute(
                    made,
                    params![order, command.node_id, MAC.0, command.id, command.kind],
                )
                .unwrap();
            store
                .connection
                .execute(sql, params![order, signed.encode_to_vec()])
                .unwrap();
        };
        let good = facts("nvme-a", 1, "aaaa");
        assert_eq!(
            store.note_booted("node_1", &good, 5).unwrap(),
            None,
            "nothing was deployed"
        );
        deploy("ord_1", "cmd_1");
        let told = store.note_booted("node_1", &good, 30).unwrap().unwrap();
        assert_eq!((told.mac, told.order_id.as_str()), (MAC, "ord_1"));
        assert_eq!(store.note_booted("node_1", &good, 40).unwrap(), None);
        assert_eq!(store.booted_node("node_1").unwrap(), Some(told.clone()));
        assert_eq!(store.booted_machine(MAC).unwrap(), Some(told));
        let other = store
            .note_booted("node_1", &facts("nvme-b", 1, ""), 50)
            .unwrap()
            .unwrap();
        assert_eq!(other.verdict, "OtherDisk");
        // The same start, held against another deploy.
        deploy("ord_2", "cmd_2");
        assert!(store.note_booted("node_1", &good, 60).unwrap().is_some());
        // Another machine that has a card of the same address.
        let mut twin = good;
        twin.firmware = Some(Firmware {
            system_uuid: "uuid-2".to_owned(),
            ..Firmware::default()
        });
        assert_eq!(store.note_booted("node_2", &twin, 70).unwrap(), None);
        let asked = EventsAsked {
            kind: Some(BOOTED_FROM.to_owned()),
            after: Some(0),
            limit: 10,
            ..EventsAsked::default()
        };
        let events = store.events(&asked).unwrap();
        assert_eq!(events.len(), 3);
        assert!(events.iter().all(|event| event.node_id == "node_1"));
    }
}
