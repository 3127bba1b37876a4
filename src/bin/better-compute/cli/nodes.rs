//! `better-compute nodes`: list, show, watch, cordon, uncordon and delete nodes.

use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, facts_text, one_line, print};
use bcd::facts::view::{DiskView, FactsView, GpuView, InterfaceView, size};
use bcd::sys::log::cut;

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
        Command::new(
            "cordon",
            "mark a node as not for new work",
            &[DIR, JSON],
            cordon,
        )
        .positionals(&["ID"])
        .details(
            "A mark in lists and in the API, for whoever gives work out. Commands and specs reach the node\n\
             as before.",
        ),
        Command::new(
            "uncordon",
            "take the mark of cordon away",
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
        "HOSTNAME",
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
        node.hostname.clone(),
        state(node, now),
        node.role.clone(),
        node.pool.clone(),
        node.site.clone(),
        node.version.clone(),
        node.address.clone(),
        ago(node.last_seen_ms, now),
    ]
}

/// Bytes of a line of `nodes show`: what a machine says of itself may be as long as it likes.
const LINE: usize = 400;

/// What is told beside the state for a while after two machines used one identity.
const SHARED_FOR_MS: i64 = 600_000;

pub(super) fn state(node: &NodeView, now: i64) -> String {
    let mut text = node.state.clone();
    if node.cordoned {
        text.push_str(",cordoned");
    }
    if node
        .identity_shared_at_ms
        .is_some_and(|at| now - at < SHARED_FOR_MS)
    {
        text.push_str(",shared");
    }
    text
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
        ("state", state(&node, now)),
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
    if let Some(at) = node.identity_shared_at_ms {
        let when = ago(Some(at), now);
        lines.push((
            "shared",
            format!("two machines used this node's identity, last {when}: one must join anew"),
        ));
    }
    if let Some(details) = node.details {
        let claims = details.claims;
        let facts = details.facts.as_ref();
        // What the machine said when it joined counts only until it says more.
        let claimed = |text: String| if facts.is_none() { text } else { String::new() };
        let pending = details.pending_key_sha256.map(|key| {
            let until = details.pending_until_ms.unwrap_or_default();
            format!("{key}, good for {}", span((until - now).max(0)))
        });
        if let Some(booted) = details.booted {
            lines.push(("disk", booted.message));
        }
        lines.extend([
            ("key sha256", details.key_sha256),
            ("pending key", pending.unwrap_or_default()),
            ("token", details.token_id),
            ("session", details.session_id),
            ("boot id", details.boot_id),
            ("capabilities", details.capabilities.join(" ")),
            ("vendor", claims.system_vendor),
            ("product", claims.system_product),
            ("serial", claims.system_serial),
            ("uuid", claims.system_uuid),
            ("macs", claims.macs.join(" ")),
            ("booted from", claims.boot_mac),
            ("architecture", claimed(claims.architecture)),
            ("kernel", claimed(claims.kernel)),
            ("cpus", claimed(claims.cpus.to_string())),
            ("memory", claimed(size(claims.memory_bytes))),
            (
                "tpm",
                claimed(if claims.has_tpm { "yes" } else { "no" }.to_owned()),
            ),
        ]);
        lines.extend(facts.map(summary).unwrap_or_default());
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
            let value = one_line(&value);
            let shown = cut(&value, LINE);
            out.push_str(&format!("{:14}{shown}\n", format!("{name}:")));
        }
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// What a machine is made of, in a few lines: what there is several times, counted.
fn summary(facts: &FactsView) -> Vec<(&'static str, String)> {
    let kept = [
        "firmware", "boot", "virtual", "os", "kernel", "cpu", "memory", "tpm",
    ];
    let lines = facts.lines().into_iter();
    let mut lines: Vec<_> = lines.filter(|(label, _)| kept.contains(label)).collect();
    let disk = |disk: &DiskView| {
        [
            size(disk.size_bytes),
            disk.transport.clone(),
            disk.model.clone(),
        ]
    };
    let nic = |nic: &InterfaceView| {
        let speed = match nic.speed_mbits {
            0 => String::new(),
            speed => format!("{speed} Mbit/s"),
        };
        let state = if nic.carrier { "up" } else { "down" };
        [nic.driver.clone(), speed, state.to_owned()]
    };
    let gpu = |gpu: &GpuView| [gpu.name.clone(), size(gpu.memory_bytes), String::new()];
    let physical = facts.interfaces.iter().filter(|one| one.kind == "physical");
    lines.extend([
        ("disks", counted(facts.disks.iter().map(disk))),
        ("nics", counted(physical.map(nic))),
        ("gpus", counted(facts.gpus.iter().map(gpu))),
    ]);
    lines
}

/// "2 x this, that": each once, in the order they come first.
fn counted(things: impl Iterator<Item = [String; 3]>) -> String {
    let mut counts: Vec<(String, u32)> = Vec::new();
    for words in things {
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let thing = words.join(" ");
        match counts.iter_mut().find(|(known, _)| *known == thing) {
            Some((_, count)) => *count += 1,
            None => counts.push((thing, 1)),
        }
    }
    let shown = counts.into_iter().map(|(thing, count)| match count {
        1 => thing,
        count => format!("{count} x {thing}"),
    });
    shown.collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_what_there_is_several_times() {
        let disk = |size_bytes, model: &str| DiskView {
            size_bytes,
            transport: "nvme".to_owned(),
            model: model.to_owned(),
            ..DiskView::default()
        };
        let nic = |kind: &str, speed_mbits| InterfaceView {
            kind: kind.to_owned(),
            driver: "mlx5_core".to_owned(),
            speed_mbits,
            carrier: speed_mbits > 0,
            ..InterfaceView::default()
        };
        let gpu = GpuView {
            name: "NVIDIA H100".to_owned(),
            memory_bytes: 80 << 30,
            ..GpuView::default()
        };
        let facts = FactsView {
            memory_bytes: 2 << 40,
            disks: vec![disk(1 << 40, "A"), disk(2 << 40, "B"), disk(1 << 40, "A")],
            interfaces: vec![
                nic("loopback", 0),
                nic("physical", 200_000),
                nic("physical", 0),
            ],
            gpus: vec![gpu; 8],
            ..FactsView::default()
        };
        let lines = summary(&facts);
        let line = |label| lines.iter().find(|(known, _)| *known == label).unwrap();
        assert_eq!(
            line("disks").1,
            format!("2 x {} nvme A, {} nvme B", size(1 << 40), size(2 << 40))
        );
        assert_eq!(line("nics").1, "mlx5_core 200000 Mbit/s up, mlx5_core down");
        assert_eq!(
            line("gpus").1,
            format!("8 x NVIDIA H100 {}", size(80 << 30))
        );
        assert_eq!(line("memory").1, size(2 << 40));
    }
}
