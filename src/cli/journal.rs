//! `bcd journal show` and `verify`: what the journal holds and whether it is whole, also while `bcd
//! node` writes to it. Nothing is changed.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::flags::{Args, Command, Flag};
use super::{CONFIG_FLAG, Failure, load_config, one_line, print};
use crate::crypto::digest::hex;
use crate::crypto::json::quote;
use crate::journal::{self, Class, Kind, Readable, Unacknowledged, View};
use crate::proto::{Event, EventBody, Message};
use crate::sys::fs::{Dir, Error};
use crate::sys::utc::Utc;

const FLAGS: &[Flag] = &[
    CONFIG_FLAG,
    Flag::value(
        "file",
        "PATH",
        "This file instead of journal.db in the configuration's data_dir",
    ),
    Flag::switch("json", "Print JSON instead of text"),
];

pub(super) const COMMAND: Command = Command::group(
    "journal",
    "look at what bcd node keeps in its journal",
    &[
        Command::new(
            "show",
            "list the keys and the events that are not acknowledged yet",
            FLAGS,
            show,
        )
        .details(
            "Reads the journal without changing it, also while bcd node runs. Keys are shown without\n\
             their values. --json prints one JSON object a line: the journal, then each key, then\n\
             each event.",
        ),
        Command::new(
            "verify",
            "check every record",
            FLAGS,
            verify,
        )
        .details(
            "Exits 0 when the journal is whole. Bytes of a write that did not end (a crash) or has not\n\
             ended yet (bcd node is writing) are no damage. Exits 1 when it is damaged: bcd node sets such\n\
             a file aside when it starts, and carries over what can be read.",
        ),
    ],
);

/// Text is printed in pieces of about this size.
const PIECE: usize = 16 << 10;

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let (path, seen) = look(args)?;
    let json = args.has("json");
    let seen = match seen {
        View::Readable(seen) => seen,
        other => return verdict(&path, &other, json),
    };
    let mut text = summary(&path, &seen, json);
    for key in seen.keys() {
        if json {
            let (kind, name) = (kind(key.kind), quote(key.key));
            let _ = writeln!(
                text,
                "{{\"type\":\"key\",\"kind\":\"{kind}\",\"key\":{name},\"bytes\":{}}}",
                key.bytes
            );
        } else {
            let (kind, name) = (kind(key.kind), one_line(key.key));
            let _ = writeln!(text, "key    {kind:9} {name}  {} bytes", key.bytes);
        }
        flush(&mut text)?;
    }
    for event in seen.events() {
        line(&mut text, &event, json);
        flush(&mut text)?;
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &Args) -> Result<ExitCode, Failure> {
    let (path, seen) = look(args)?;
    verdict(&path, &seen, args.has("json"))
}

fn look(args: &Args) -> Result<(PathBuf, View), Failure> {
    let path = match args.value("file") {
        Some(path) => PathBuf::from(path),
        None => load_config(args)?.data_dir.join(journal::NAME),
    };
    let failed = |error: &Error| {
        if error.is_missing() {
            return Failure::failed(format!("there is no journal at {}", path.display()))
                .hint("bcd node makes it when it first runs; --file names another one");
        }
        let remedy = error.remedy().unwrap_or("");
        Failure::failed(super::chain(error)).hint(remedy)
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(Failure::refused("--file names no file"));
    };
    let dir = Dir::open(parent).map_err(|error| failed(&error))?;
    let seen = journal::view(&dir, name).map_err(|error| failed(&error))?;
    Ok((path, seen))
}

/// Says whether the journal is whole, by the exit code too.
fn verdict(path: &Path, seen: &View, json: bool) -> Result<ExitCode, Failure> {
    let shown = path.display();
    let why = match seen {
        View::Readable(seen) => {
            print(&summary(path, seen, json))?;
            return Ok(ExitCode::from(u8::from(seen.damage.is_some())));
        }
        View::Newer(version) => format!(
            "it is of format version {version}, which this bcd does not know: use the bcd that wrote it"
        ),
        View::Unreadable { why, file_bytes } => {
            format!("{why} ({file_bytes} bytes); bcd node will set it aside and begin a new one")
        }
    };
    if json {
        let (path, why) = (quote(&path.to_string_lossy()), quote(&why));
        print(&format!(
            "{{\"type\":\"journal\",\"path\":{path},\"ok\":false,\"damage\":{why}}}\n"
        ))?;
        return Err(Failure::silent(1));
    }
    Err(Failure::failed(format!("{shown}: {why}")))
}

fn summary(path: &Path, seen: &Readable, json: bool) -> String {
    let id = hex(&seen.journal_id());
    let created = Utc::from_ms(seen.created_ms());
    let numbers = [
        ("position", seen.position()),
        ("acknowledged", seen.acked()),
        ("unacknowledged", seen.unacknowledged() as u64),
        ("keys", seen.key_count() as u64),
        ("records", seen.records),
        ("file_bytes", seen.file_bytes),
        ("used_bytes", seen.used_bytes),
        ("live_bytes", seen.live_bytes()),
        ("torn_bytes", seen.torn_bytes),
    ];
    let mut text = String::new();
    if json {
        let _ = write!(
            text,
            "{{\"type\":\"journal\",\"path\":{},\"ok\":{},\"node_id\":{},\"journal_id\":\"{id}\",\"created\":\"{created}\"",
            quote(&path.to_string_lossy()),
            seen.damage.is_none(),
            quote(seen.node_id()),
        );
        for (name, number) in numbers {
            let _ = write!(text, ",\"{name}\":{number}");
        }
        text.push_str(",\"damage\":");
        match &seen.damage {
            None => text.push_str("null}\n"),
            Some(found) => {
                let _ = writeln!(
                    text,
                    "{},\"records_readable\":{},\"bytes_lost\":{}}}",
                    quote(&found.what),
                    found.records_readable,
                    found.bytes_lost
                );
            }
        }
        return text;
    }
    let node = one_line(seen.node_id());
    let _ = writeln!(text, "{}", path.display());
    let _ = writeln!(text, "node           {node}");
    let _ = writeln!(text, "journal        {id}, begun {created}");
    for (name, number) in numbers {
        let _ = writeln!(text, "{name:14} {number}");
    }
    match &seen.damage {
        None => text.push_str("whole          yes\n"),
        Some(found) => {
            let _ = writeln!(
                text,
                "whole          no: {}; {} records can be read, {} bytes cannot",
                found.what, found.records_readable, found.bytes_lost
            );
        }
    }
    text
}

fn line(text: &mut String, event: &Unacknowledged, json: bool) {
    let stored = &event.stored;
    let time = Utc::from_ms(stored.time_ms);
    let class = match event.class {
        Some(Class::Result) => "result",
        Some(Class::Status) => "status",
        Some(Class::Telemetry) => "telemetry",
        None => "dropped",
    };
    let (what, subject) = about(&stored.body);
    let bytes = stored.body.len();
    let sequence = stored.sequence;
    let _ = if json {
        writeln!(
            text,
            "{{\"type\":\"event\",\"sequence\":{sequence},\"time\":\"{time}\",\"class\":\"{class}\",\"body\":\"{what}\",\"subject\":{},\"bytes\":{bytes}}}",
            quote(&subject)
        )
    } else {
        let subject = one_line(&subject);
        writeln!(
            text,
            "event  {sequence:<9} {time} {class:9} {what} {subject}  {bytes} bytes"
        )
    };
}

/// What an event is, and of what.
fn about(body: &[u8]) -> (&'static str, String) {
    match Event::decode(body).map(|event| event.body) {
        Ok(Some(EventBody::SectionStatus(status))) => ("section_status", status.section),
        Ok(Some(EventBody::CommandUpdate(update))) => ("command_update", update.id),
        Ok(Some(EventBody::Facts(_))) => ("facts", String::new()),
        Ok(Some(EventBody::EventsDropped(gap))) => (
            "events_dropped",
            format!("{} of {} to {}", gap.count, gap.first, gap.last),
        ),
        Ok(Some(EventBody::JournalDamaged(told))) => ("journal_damaged", told.kept_as),
        Ok(Some(EventBody::StorageFault(fault))) => ("storage_fault", fault.reason),
        Ok(Some(EventBody::IdentityRenewed(_))) => ("identity_renewed", String::new()),
        Ok(Some(EventBody::DiagReport(report))) => ("diag_report", report.command_id),
        _ => ("unknown", String::new()),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Command => "command",
        Kind::Spec => "spec",
        Kind::Mark => "mark",
    }
}

fn flush(text: &mut String) -> Result<(), Failure> {
    if text.len() >= PIECE {
        print(text)?;
        text.clear();
    }
    Ok(())
}
