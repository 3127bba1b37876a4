//! `better-compute nodes`: list, show, watch, cordon, uncordon and delete nodes.

use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, facts_text, one_line, print};
use bcd::facts::view::FactsView;

use super::ago::{ago, span};
use super::client::{self, Client, DIR, JSON};
use super::{table, watch};
use crate::api::views::{NodeView, Nodes};
use crate::json::Json;
use crate::registry::now_ms;

pub(super) const COMMAND: Command = Command::group(
    "nodes",
    "list, show, cordon and delete nodes",
    &[
        Command::new("list", "list nodes", &[DIR, JSON], list),
        Command::new("show", "show one node", &[DIR, JSON], show).positionals(&["ID"]),
        Command::new(
            "facts",
            "show what a node's machine is made of, as it last said",
            &[DIR, JSON],
            facts,
        )
        .positionals(&["ID"]),
        Command::new(
            "watch",
            "list nodes, and each change as it happens",
            &[
                DIR,
                Flag::switch("json", "Print one JSON object a line: each node, then each change"),
            ],
            watch::nodes,
        )
        .details(
            "On a terminal the list is drawn anew with every change; elsewhere each change is a line.\n\
             It goes on through restarts of the control plane, until it is ended.",
        ),
        Command::new("cordon", "keep new work off a node", &[DIR, JSON], cordon)
            .positionals(&["ID"]),
        Command::new(
            "uncordon",
            "let a node take work again",
            &[DIR, JSON],
            uncordon,
        )
        .positionals(&["ID"]),
        Command::new(
            "delete",
            "delete a node: its certificate opens no session any more",
            &[Flag::switch("yes", "Really delete it"), DIR, JSON],
            delete,
        )
        .positionals(&["ID"]),
    ],
);

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let text = Client::new(args)?.call("GET", "nodes", None)?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let nodes: Nodes = client::parse(&text)?;
    print(&render(nodes.nodes.iter(), now_ms()))?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes as a table.
pub(super) fn render<'a>(nodes: impl Iterator<Item = &'a NodeView>, now: i64) -> String {
    let rows: Vec<_> = nodes.map(|node| row(node, now)).collect();
    let heads = [
        "NODE",
        "STATE",
        "ROLE",
        "POOL",
        "SITE",
        "VERSION",
        "ADDRESS",
        "LAST SEEN",
    ];
    table::render(&heads, &rows)
}

fn row(node: &NodeView, now: i64) -> Vec<String> {
    vec![
        node.id.clone(),
        state(node),
        node.role.clone(),
        node.pool.clone(),
        node.site.clone(),
        node.version.clone(),
        node.address.clone(),
        ago(node.last_seen_ms, now),
    ]
}

pub(super) fn state(node: &NodeView) -> String {
    match node.cordoned {
        true => format!("{},cordoned", node.state),
        false => node.state.clone(),
    }
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    let text = Client::new(args)?.call("GET", &format!("nodes/{id}"), None)?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let node: NodeView = client::parse(&text)?;
    let now = now_ms();
    let mut lines = vec![
        ("node", node.id.clone()),
        ("state", state(&node)),
        ("role", node.role),
        ("pool", node.pool),
        ("site", node.site),
        ("version", node.version),
        ("address", node.address),
        ("last seen", ago(node.last_seen_ms, now)),
        ("hostname", node.hostname),
        ("joined", ago(Some(node.joined_at_ms), now)),
        (
            "certificate",
            match node.certificate_until_ms > now {
                true => format!(
                    "valid for {}",
                    span(node.certificate_until_ms.saturating_sub(now))
                ),
                false => format!("expired {}", ago(Some(node.certificate_until_ms), now)),
            },
        ),
    ];
    if let Some(details) = node.details {
        let claims = details.claims;
        lines.extend([
            ("key sha256", details.key_sha256),
            ("token", details.token_id),
            ("session", details.session_id),
            ("boot", details.boot_id),
            ("capabilities", details.capabilities.join(" ")),
            ("vendor", claims.system_vendor),
            ("product", claims.system_product),
            ("serial", claims.system_serial),
            ("uuid", claims.system_uuid),
            ("macs", claims.macs.join(" ")),
            ("architecture", claims.architecture),
            ("kernel", claims.kernel),
            ("cpus", claims.cpus.to_string()),
            ("memory", format!("{} MiB", claims.memory_bytes >> 20)),
            ("tpm", if claims.has_tpm { "yes" } else { "no" }.to_owned()),
        ]);
        for duplicate in details.duplicates {
            lines.push((
                "duplicate",
                format!(
                    "{} {} is claimed by {} too",
                    duplicate.kind, duplicate.value, duplicate.other_node
                ),
            ));
        }
    }
    let mut out = String::new();
    for (name, value) in lines {
        if !value.is_empty() {
            out.push_str(&format!("{:14}{}\n", format!("{name}:"), one_line(&value)));
        }
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn facts(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    let answer = Client::new(args)?.json("GET", &format!("nodes/{id}/facts"), None)?;
    if args.has("json") {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let facts = answer.get("facts").map(Json::to_string);
    let facts: FactsView = client::parse(&facts.unwrap_or_default())?;
    let said = ago(answer.number("receivedMs"), now_ms());
    print(&format!("{:14}{said}\n{}", "said:", facts_text(&facts)))?;
    Ok(ExitCode::SUCCESS)
}

fn cordon(args: &Args) -> Result<ExitCode, Failure> {
    change(args, "cordon", "cordoned")
}

fn uncordon(args: &Args) -> Result<ExitCode, Failure> {
    change(args, "uncordon", "uncordoned")
}

fn change(args: &Args, what: &str, done: &str) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    let text = Client::new(args)?.call("POST", &format!("nodes/{id}/{what}"), None)?;
    match args.has("json") {
        true => print(&format!("{text}\n"))?,
        false => print(&format!("{done} {id}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn delete(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    if !args.has("yes") {
        return Err(Failure::refused(format!(
            "deleting {id} ends its session and makes its certificate useless: say --yes"
        )));
    }
    let text = Client::new(args)?.call("DELETE", &format!("nodes/{id}"), None)?;
    match args.has("json") {
        true => print(&format!("{text}\n"))?,
        false => print(&format!("deleted {id}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
