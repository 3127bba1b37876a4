//! `better-compute receipts`: what was done to machines' disks, under their own signatures.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, one_line, print};
use bcd::config::mac::Mac;
use bcd::crypto::pin::Pin;
use bcd::deploy::receipt;

use super::ago::ago;
use super::client::{self, Client, DIR, JSON};
use super::{files, pki, table};
use crate::contract;
use crate::json::{Json, Object};
use crate::pki::Kind;
use crate::registry::now_ms;

pub(super) const COMMAND: Command = Command::group(
    "receipts",
    "list, show and verify receipts of wipes and deploys",
    &[
        Command::new(
            "list",
            "list receipts, the newest first",
            &[
                Flag::value("machine", "MAC", "Only those of this machine"),
                Flag::value("limit", "N", "At most so many, 1 to 1000 (default 100)"),
                DIR,
                JSON,
            ],
            list,
        ),
        Command::new(
            "show",
            "show the receipt of an order, and keep it",
            &[
                Flag::value(
                    "output",
                    "FILE",
                    "Write the signed receipt to FILE, for better-compute receipts verify; never overwritten",
                ),
                DIR,
                JSON,
            ],
            show,
        )
        .positionals(&["ORDER"]),
        Command::new(
            "verify",
            "verify a receipt's file, without a control plane",
            &[
                Flag::values(
                    "node-ca-pin",
                    "PIN",
                    "A node CA that is trusted (sha256/...), in place of a bundle's",
                ),
                pki::PKI,
                pki::DIR,
                JSON,
            ],
            verify,
        )
        .details(
            "Checks that a node CA of the bundle, or of --node-ca-pin, issued the certificate in the file; that it is\n\
             the node's that the receipt names, and was valid when the receipt was made; and that its key signed.\n\
             What a receipt says is the word of the agent that ran on the machine.\n\
             \n\
             Exit codes: 0 it holds, and says that all was done; 1 it does not hold, or says that something\n\
             was not done; 2 refused (usage, no receipt).",
        )
        .positionals(&["FILE"]),
    ],
);

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let mut path = "receipts?".to_owned();
    if let Some(mac) = args.value("machine") {
        let mac = Mac::parse(mac).ok_or_else(|| {
            Failure::refused("--machine is the MAC of one, such as 52:54:00:12:34:56")
        })?;
        path.push_str(&format!("machine={mac}&"));
    }
    if let Some(text) = args.value("limit") {
        let limit = text
            .parse()
            .ok()
            .filter(|limit: &u32| (1..=1000).contains(limit));
        let limit = limit.ok_or_else(|| Failure::refused("--limit is a number from 1 to 1000"))?;
        path.push_str(&format!("limit={limit}&"));
    }
    let answer = Client::new(args)?.json("GET", path.trim_end_matches(['&', '?']), None)?;
    if args.has("json") {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = now_ms();
    let receipts = answer.get("receipts").map(Json::items).unwrap_or_default();
    let rows: Vec<Vec<String>> = receipts
        .iter()
        .map(|receipt| {
            vec![
                receipt.text("orderId").to_owned(),
                receipt.text("kind").to_owned(),
                receipt.text("machine").to_owned(),
                receipt.text("nodeId").to_owned(),
                ago(receipt.number("receivedAtMs"), now),
                receipt.text("outcome").to_owned(),
            ]
        })
        .collect();
    print(&table::render(
        &["ORDER", "KIND", "MACHINE", "NODE", "CAME", "OUTCOME"],
        &rows,
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "ord", "order")?;
    let answer = Client::new(args)?.json("GET", &format!("receipts/{id}"), None)?;
    if let Some(path) = args.value("output") {
        let file = answer.get("file").unwrap_or(&Json::Null);
        files::write_new(Path::new(path), format!("{file}\n").as_bytes(), 0o644)?;
    }
    if args.has("json") {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let head: Vec<(&str, String)> = [
        ("order", "orderId"),
        ("kind", "kind"),
        ("machine", "machine"),
        ("command", "commandId"),
        ("outcome", "outcome"),
    ]
    .map(|(name, member)| (name, answer.text(member).to_owned()))
    .into();
    let says = answer.get("says").unwrap_or(&Json::Null);
    print(&text_of(head, says))?;
    Ok(ExitCode::SUCCESS)
}

/// A receipt for a person.
fn text_of(mut lines: Vec<(&str, String)>, says: &Json) -> String {
    let now = now_ms();
    lines.push(("node", says.text("node").to_owned()));
    lines.push(("serial", says.text("systemSerial").to_owned()));
    lines.push(("uuid", says.text("systemUuid").to_owned()));
    lines.push(("finished", ago(says.number("finishedAtMs"), now)));
    let mut out = String::new();
    for (name, value) in lines {
        if !value.is_empty() {
            out.push_str(&format!("{:14}{}\n", format!("{name}:"), one_line(&value)));
        }
    }
    let disks = says.get("disks").map(Json::items).unwrap_or_default();
    let mut rows = Vec::new();
    for disk in disks {
        let attempts = disk.get("attempts").map(Json::items).unwrap_or_default();
        let tried: Vec<String> = attempts
            .iter()
            .map(|attempt| match attempt.flag("held") {
                true => attempt.text("method").to_owned(),
                false => format!("{} ({})", attempt.text("method"), attempt.text("reason")),
            })
            .collect();
        let samples = disk
            .get("samples")
            .map_or(0, |samples| samples.items().len());
        rows.push(vec![
            disk.text("disk").to_owned(),
            disk.text("model").to_owned(),
            disk.text("serial").to_owned(),
            disk.text("outcome").to_owned(),
            tried.join(", "),
            samples.to_string(),
            [disk.text("reason"), " ", disk.text("message")]
                .concat()
                .trim()
                .to_owned(),
        ]);
    }
    if !rows.is_empty() {
        let heads = [
            "DISK", "MODEL", "SERIAL", "OUTCOME", "METHODS", "SAMPLES", "WHY",
        ];
        out.push('\n');
        out.push_str(&table::render(&heads, &rows));
    }
    out
}

fn verify(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(args.positional(0));
    let bytes = files::read(path, contract::RECEIPT_MAX)?;
    let receipt = contract::read_receipt_file(&bytes)
        .map_err(|why| Failure::refused(format!("{} is no receipt: {why}", path.display())))?;
    let mut pins = args
        .values("node-ca-pin")
        .map(|text| {
            Pin::parse(text)
                .map_err(|_| Failure::refused("--node-ca-pin is sha256/ and 32 bytes in base64"))
        })
        .collect::<Result<Vec<Pin>, _>>()?;
    let mut cas = Vec::new();
    if pins.is_empty() {
        cas = pki::read(args)?.public.both(Kind::NodeCa);
        let certificates = cas
            .iter()
            .filter_map(|der| bcd::crypto::certificate::Certificate::parse(der).ok());
        pins.extend(certificates.map(|ca| ca.pin()));
    } else if args.value("pki").is_some() || args.value("dir").is_some() {
        return Err(Failure::refused(
            "give --node-ca-pin, or one of --pki and --dir",
        ));
    }
    let verified = receipt::verify(&receipt, &pins, &cas)
        .map_err(|refused| Failure::failed(refused).hint("do not rely on this receipt"))?;
    let (outcome, all) = contract::receipt_outcome(&receipt);
    let says = contract::show_receipt(&receipt);
    if args.has("json") {
        let shown = Object::new()
            .with("verified", true)
            .with("kind", contract::receipt_kind(&receipt))
            .with("role", verified.role)
            .with("nodeKeyPin", verified.key.to_string())
            .with("nodeCaPin", verified.ca.to_string())
            .with("outcome", outcome)
            .with("succeeded", all)
            .with("says", says);
        print(&format!("{}\n", Json::from(shown)))?;
    } else {
        let head = vec![
            ("verified", "the signature holds".to_owned()),
            ("order", verified.head.order_id),
            ("kind", contract::receipt_kind(&receipt).to_owned()),
            ("role", verified.role),
            ("node CA", verified.ca.to_string()),
            ("outcome", outcome),
        ];
        print(&text_of(head, &says))?;
    }
    Ok(match all {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}
