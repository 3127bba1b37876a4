//! The routes of one-time orders and of receipts.
//!
//! What an order is for is taken from what the machine said of itself: each disk goes into it with its serial number,
//! WWN and size, so that another one in its place is not taken for it.

use bcd::config::mac::Mac;
use bcd::crypto::digest::sha256;
use bcd::deploy::{disk, wipe};
use bcd::proto::{Disk, DiskTarget, DisksWipeParams, Facts, Message, Order, WipeMethod};
use bcd::wire::http1::server::Answer;

use super::query::Query;
use super::{Api, BODY_MAX, Refused, answer};
use crate::contract;
use crate::ids;
use crate::json::{Json, Object};
use crate::registry::now_ms;
use crate::store::{Added, NewCommand, Node, Receipt, ReceiptsAsked, State};

const DEPTH_MAX: usize = 4;
/// An order that lies about is a danger: it is claimed soon, or not at all. A node takes none that lasts longer than
/// the longest of these.
const DEADLINE_DEFAULT_S: i64 = 600;
const DEADLINE_MAX_S: i64 = 86_400;
/// Disks of an order.
const DISKS_MAX: usize = 64;
/// What a node takes of a command.
const PARAMS_MAX: usize = 16 * 1024;
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: i64 = 1_000;

/// A machine that takes orders now: its node, and what that last said it is made of.
pub(super) struct Ready {
    pub mac: Mac,
    pub node: Node,
    pub facts: Facts,
}

impl Api {
    /// `POST machines/{mac}/wipe`.
    pub(super) async fn wipe_machine(&self, mac: &str, body: &[u8]) -> Result<Answer, Refused> {
        let asked = Json::parse(body, BODY_MAX, DEPTH_MAX)
            .map_err(|_| Refused::invalid("the body is not the JSON of an order"))?;
        known(&asked, &["disks", "all", "methods"])?;
        let ready = self.ready(mac, "disks.wipe").await?;
        let disks = targets(&ready.facts, &asked).map_err(Refused::invalid)?;
        let methods = methods(&asked).map_err(Refused::invalid)?;
        self.order(&ready, "disks.wipe", &asked, |order_id| {
            let params = DisksWipeParams {
                order_id,
                disks: disks.clone(),
                methods: methods.clone(),
                all: asked.flag("all"),
            };
            params.encode_to_vec()
        })
        .await
    }

    /// The machine with this MAC, if its ramdisk is connected and runs commands of `kind`.
    pub(super) async fn ready(&self, mac: &str, kind: &str) -> Result<Ready, Refused> {
        let missing = || {
            Refused::not_found("no machine with this MAC has joined: better-compute machines list")
        };
        let mac = Mac::parse(mac).ok_or_else(missing)?;
        let found = self
            .registry
            .with(move |records| {
                let machine = records.store.machines(Some(mac))?.into_iter().next();
                let Some(machine) = machine else {
                    return Ok(None);
                };
                let node = records.node(&machine.node_id)?;
                let facts = records.store.facts(&machine.node_id)?;
                Ok(node.map(|node| (node, facts)))
            })
            .await?;
        let (node, facts) = found.ok_or_else(missing)?;
        let capability = ["command.", kind].concat();
        let not_now = |why: &str| Refused(409, "NOT_NOW", why.to_owned());
        if node.state != State::Connected || !node.capabilities.contains(&capability) {
            return Err(not_now(
                "this machine is not connected as a ramdisk that does this: boot it into its ramdisk first",
            ));
        }
        let facts = facts
            .and_then(|(body, _)| Facts::decode(&body).ok())
            .ok_or_else(|| {
                not_now("this machine has not said yet what it is made of: try again")
            })?;
        Ok(Ready { mac, node, facts })
    }

    /// Makes an order of `kind`, with the command on it; `orderId`, `commandId` and `deadlineSeconds` are those of
    /// `asked`, and `params` are made of the order's id.
    pub(super) async fn order(
        &self,
        ready: &Ready,
        kind: &str,
        asked: &Json,
        params: impl Fn(String) -> Vec<u8>,
    ) -> Result<Answer, Refused> {
        let now = now_ms();
        let id = |name: &str, prefix: &str| match asked.get(name) {
            None => Ok(ids::new(prefix, now)),
            Some(id) => id
                .as_text()
                .filter(|id| ids::is_ulid_of(prefix, id))
                .map(str::to_owned)
                .ok_or_else(|| {
                    Refused::invalid(format!("{name} is {prefix}_ and a lower-case ULID"))
                }),
        };
        let (order_id, command_id) = (id("orderId", "ord")?, id("commandId", "cmd")?);
        let seconds = match asked.get("deadlineSeconds") {
            None => DEADLINE_DEFAULT_S,
            Some(seconds) => seconds
                .as_i64()
                .filter(|seconds| (1..=DEADLINE_MAX_S).contains(seconds))
                .ok_or_else(|| Refused::invalid("the deadline is from 1s to 1d ahead"))?,
        };
        let params = params(order_id.clone());
        if params.len() > PARAMS_MAX {
            return Err(Refused::invalid(
                "the order is over 16 KiB: order fewer disks, or less user data",
            ));
        }
        let command = NewCommand {
            id: command_id.clone(),
            node_id: ready.node.id.clone(),
            kind: kind.to_owned(),
            params,
            deadline_ms: now + seconds * 1_000,
            created_ms: now,
        };
        let order = Order {
            order_id: order_id.clone(),
            command_id: command_id.clone(),
            kind: kind.to_owned(),
            params_sha256: sha256(&command.params).to_vec(),
            node_id: command.node_id.clone(),
            made_ms: now,
            expires_ms: command.deadline_ms,
        };
        let signed = self.signer.sign_order(order.encode_to_vec()).await;
        let signed = signed.ok_or_else(|| {
            let why = "the JoinService did not sign the order: try again";
            Refused(503, "UNAVAILABLE", why.to_owned())
        })?;
        let signed = signed.encode_to_vec();
        let (mac, wanted) = (ready.mac, order_id.clone());
        let added = self
            .registry
            .with(move |records| {
                records
                    .store
                    .together(|store| store.add_order(&wanted, mac, &command, &signed))
            })
            .await?;
        if added == Added::OtherHasId {
            let why = "another order, or another command, has this id";
            return Err(Refused(409, "ALREADY_EXISTS", why.to_owned()));
        }
        let status = self.added(&ready.node.id, added)?;
        let shown = Object::new()
            .with("orderId", order_id)
            .with("command", self.shown_command(&command_id).await?);
        Ok(answer(status, Json::from(shown).to_string()))
    }

    /// `GET receipts`, the newest first.
    pub(super) async fn list_receipts(&self, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["machine", "limit"])?;
        let mac = match query.text("machine") {
            None => None,
            Some(text) => Some(
                Mac::parse(text).ok_or_else(|| Refused::invalid("machine is the MAC of one"))?,
            ),
        };
        let limit = query.number("limit", LIMIT_MAX)?;
        let asked = ReceiptsAsked {
            mac,
            order_id: None,
            limit: limit.map_or(LIMIT_DEFAULT, |limit| {
                u32::try_from(limit).unwrap_or(LIMIT_DEFAULT)
            }),
        };
        let receipts = self
            .registry
            .with(move |records| records.store.receipts(&asked))
            .await?;
        let receipts: Vec<Json> = receipts.iter().map(|known| head(known).into()).collect();
        let shown = Object::new().with("receipts", receipts);
        Ok(answer(200, Json::from(shown).to_string()))
    }

    /// `GET receipts/{order}`.
    pub(super) async fn show_receipt(&self, order_id: &str) -> Result<Answer, Refused> {
        let asked = ReceiptsAsked {
            order_id: Some(order_id.to_owned()),
            limit: 1,
            ..ReceiptsAsked::default()
        };
        let receipts = self
            .registry
            .with(move |records| records.store.receipts(&asked))
            .await?;
        let known = receipts
            .first()
            .ok_or_else(|| Refused::not_found("there is no receipt of this order"))?;
        let shown = head(known)
            .with("says", contract::show_receipt(&known.receipt))
            .with("file", contract::receipt_file(&known.receipt));
        Ok(answer(200, Json::from(shown).to_string()))
    }
}

fn head(known: &Receipt) -> Object {
    let (outcome, all) = contract::receipt_outcome(&known.receipt);
    Object::new()
        .with("orderId", known.order_id.as_str())
        .with("kind", known.kind.as_str())
        .with("nodeId", known.node_id.as_str())
        .with("commandId", known.command_id.as_str())
        .with_some("machine", known.mac.map(|mac| mac.to_string()))
        .with("receivedAtMs", known.received_ms)
        .with("outcome", outcome)
        .with("succeeded", all)
}

/// The body has only these members, and those of every order.
pub(super) fn known(asked: &Json, names: &[&str]) -> Result<(), Refused> {
    let Json::Object(members) = asked else {
        return Err(Refused::invalid("the body is not the JSON of an order"));
    };
    let names = [names, &["orderId", "commandId", "deadlineSeconds"]].concat();
    match members
        .iter()
        .find(|(name, _)| !names.contains(&name.as_str()))
    {
        None => Ok(()),
        Some((name, _)) => Err(Refused::invalid(format!(
            "such an order has no {}: there are {}",
            bcd::crypto::json::quote(name),
            names.join(", ")
        ))),
    }
}

/// A disk as an order means it.
pub(super) fn target(disk: &Disk) -> DiskTarget {
    DiskTarget {
        stable_name: disk.stable_name.clone(),
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size_bytes: disk.size_bytes,
    }
}

/// The disk of this name among those of a machine.
pub(super) fn disk_named<'a>(facts: &'a Facts, name: &str) -> Result<&'a Disk, String> {
    let quoted = bcd::crypto::json::quote(name);
    let mut found = facts
        .disks
        .iter()
        .filter(|disk| disk.stable_name == name && !name.is_empty());
    let disk = found.next().ok_or_else(|| {
        format!("this machine has no disk {quoted}: better-compute machines show lists them by the names that last")
    })?;
    match found.next() {
        None => Ok(disk),
        Some(_) => Err(format!("this machine has two disks of the name {quoted}")),
    }
}

/// The disks that are asked for: by name, or all that are fixed.
fn targets(facts: &Facts, asked: &Json) -> Result<Vec<DiskTarget>, String> {
    let named = asked.get("disks").map(Json::items).unwrap_or_default();
    let all = asked.flag("all");
    let disks: Vec<&Disk> = match (named.is_empty(), all) {
        (false, false) => named
            .iter()
            .map(|name| disk_named(facts, name.as_text().unwrap_or_default()))
            .collect::<Result<_, _>>()?,
        (true, true) => {
            let fixed = facts.disks.iter();
            let fixed: Vec<&Disk> = fixed.filter(|disk| disk::is_fixed(disk)).collect();
            if let Some(nameless) = fixed.iter().find(|disk| disk.stable_name.is_empty()) {
                return Err(format!(
                    "the disk {} has no name that lasts: name the disks to be wiped",
                    nameless.kernel_name
                ));
            }
            fixed
        }
        _ => return Err("an order names its disks, or says all: one of the two".to_owned()),
    };
    if disks.is_empty() || disks.len() > DISKS_MAX {
        return Err(format!(
            "{} disks: an order is for 1 to {DISKS_MAX}",
            disks.len()
        ));
    }
    for (n, disk) in disks.iter().enumerate() {
        if disks
            .iter()
            .take(n)
            .any(|other| other.stable_name == disk.stable_name)
        {
            return Err(format!("the disk {} is named twice", disk.stable_name));
        }
    }
    Ok(disks.into_iter().map(target).collect())
}

fn methods(asked: &Json) -> Result<Vec<WipeMethod>, String> {
    let named = asked.get("methods").map(Json::items).unwrap_or_default();
    let method = |name: &Json| {
        wipe::named(name.as_text().unwrap_or_default()).ok_or_else(|| {
            let all: Vec<&str> = (1..=14).map(|n| wipe::word(WipeMethod(n))).collect();
            format!("a method is one of {}", all.join(", "))
        })
    };
    named.iter().map(method).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let disk = |name: &str, removable| Disk {
            stable_name: name.to_owned(),
            kernel_name: "sdx".to_owned(),
            serial: name.to_ascii_uppercase(),
            size_bytes: 7,
            removable,
            ..Disk::default()
        };
        Facts {
            disks: vec![
                disk("wwn-a", false),
                disk("wwn-b", false),
                disk("usb-c", true),
            ],
            ..Facts::default()
        }
    }

    fn asked(body: &str) -> Json {
        Json::parse(body.as_bytes(), 10_000, 4).unwrap()
    }

    #[test]
    fn an_order_holds_what_the_machine_said_of_its_disks() {
        let by_name = targets(&facts(), &asked(r#"{"disks":["wwn-b"]}"#)).unwrap();
        let wanted = DiskTarget {
            stable_name: "wwn-b".to_owned(),
            serial: "WWN-B".to_owned(),
            wwn: String::new(),
            size_bytes: 7,
        };
        assert_eq!(by_name, [wanted]);
        let all = targets(&facts(), &asked(r#"{"all":true}"#)).unwrap();
        assert_eq!(all.len(), 2, "what is removable is not meant by all");
    }

    #[test]
    fn what_is_not_clear_is_no_order() {
        for (body, says) in [
            ("{}", "one of the two"),
            (r#"{"disks":["wwn-a"],"all":true}"#, "one of the two"),
            (r#"{"disks":["sdx"]}"#, "no disk"),
            (r#"{"disks":[""]}"#, "no disk"),
            (r#"{"disks":[7]}"#, "no disk"),
            (r#"{"disks":["wwn-a","wwn-a"]}"#, "twice"),
        ] {
            let refused = targets(&facts(), &asked(body)).unwrap_err();
            assert!(refused.contains(says), "{body}: {refused}");
        }
        let mut nameless = facts();
        nameless.disks[0].stable_name.clear();
        assert!(targets(&nameless, &asked(r#"{"all":true}"#)).is_err());
        assert!(targets(&Facts::default(), &asked(r#"{"all":true}"#)).is_err());
        assert!(known(&asked(r#"{"disk":"wwn-a"}"#), &["disks"]).is_err());
        assert!(known(&asked(r#"{"disks":[],"orderId":"x"}"#), &["disks"]).is_ok());
    }

    #[test]
    fn methods_have_names() {
        let taken = methods(&asked(r#"{"methods":["overwrite","nvme-format-crypto"]}"#)).unwrap();
        assert_eq!(
            taken,
            [WipeMethod::OVERWRITE, WipeMethod::NVME_FORMAT_CRYPTO]
        );
        let refused = methods(&asked(r#"{"methods":["shred"]}"#)).unwrap_err();
        assert!(
            refused.contains("secure-discard, discard, overwrite"),
            "{refused}"
        );
    }
}
