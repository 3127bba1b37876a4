//! The frozen samples of tests/journal: journals of each format version, made once. A bcd that cannot
//! read them any more has broken every node's journal.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::format::{Content, NAME, Record};
use super::scan::{self, Headers, Tail, Window};
use super::tests::{event, put};
use super::writer::{Tuning, Writer};
use super::*;
use crate::crypto::digest::hex;
use crate::proto::{Event, EventBody, Message};
use crate::sys::fs::{DataFile, Dir, replay};
use crate::sys::log::tests::QUIET;

const NODE: &str = "node_01k5zq6w8e3x9m2n7p4r0t1v5y";

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal")
}

/// Every record of a file, a line each, and what came after the last.
fn dump(file: &DataFile) -> String {
    let Headers::Whole(header) = scan::headers(file).unwrap() else {
        panic!("its headers are not whole");
    };
    let mut text = format!(
        "journal {} of {} made {} salt {:08x} whole to {}\n",
        hex(&header.journal_id),
        header.node_id,
        header.created_ms,
        header.salt,
        header.whole_to
    );
    let end = scan::scan(&mut Window::new(file), &header, &mut |commit| {
        for record in commit {
            line(&mut text, file, header.salt, record);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(end.tail, Tail::Clean);
    let _ = writeln!(text, "{} end", end.offset);
    text
}

fn line(text: &mut String, file: &DataFile, salt: u32, record: &Record) {
    let payload = scan::payload(file, salt, record.offset, record.length)
        .unwrap()
        .unwrap();
    let ends = match (record.first, record.last) {
        (true, true) => "whole",
        (true, false) => "first",
        (false, true) => "last",
        (false, false) => "middle",
    };
    let content = match &record.content {
        Content::Event(class) => {
            let (time_ms, body) = scan::event(payload).unwrap();
            format!("Event({class:?}) at {time_ms} body {}", hex(&body))
        }
        Content::Put(kind, key) => {
            format!(
                "Put({kind:?}, {key:?}) value {}",
                hex(&payload[key.len()..])
            )
        }
        other => format!("{other:?}"),
    };
    let _ = writeln!(
        text,
        "{} {ends} durable to {} sequence {}: {content}",
        record.offset, record.durable_to, record.sequence
    );
}

#[test]
fn the_sample_of_format_1_is_read_to_the_last_byte() {
    QUIET.set(true);
    let dir = Dir::open(&samples()).unwrap();
    let expected = std::fs::read_to_string(samples().join("format-1.txt")).unwrap();
    assert_eq!(dump(&dir.view_data("format-1.db").unwrap()), expected);
    // And goes on as a journal.
    let room = Dir::open(&replay::room("sample")).unwrap();
    std::fs::copy(samples().join("format-1.db"), room.join(NAME)).unwrap();
    let limits = Limits {
        max_bytes: 64 << 20,
        max_events: 10_000,
    };
    let (mut writer, recovered) = Writer::open(&room, NODE, limits).unwrap();
    assert_eq!((recovered.damage, recovered.tail_cut), (None, 0));
    assert_eq!((recovered.position, recovered.acked), (23, 2));
    let keys: Vec<String> = recovered
        .entries
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    assert_eq!(keys, ["cmd_2", "spec", "boot"]);
    let stored = writer.read(0, usize::MAX).unwrap();
    let gap = Event::decode(&stored[0].body).unwrap().body;
    let Some(EventBody::EventsDropped(gap)) = gap else {
        panic!("{gap:?}");
    };
    assert_eq!((gap.first, gap.last), (3, 9));
    let commit = vec![event(Class::Status, "later")];
    assert_eq!(writer.append(&[commit]).remove(0).unwrap().last, 24);
}

/// Makes the sample; run once for a format, by hand, with BCD_SAMPLE naming the folder.
#[test]
#[ignore = "makes what must never change"]
fn make_sample() {
    QUIET.set(true);
    let dir = Dir::open(Path::new(&std::env::var_os("BCD_SAMPLE").unwrap())).unwrap();
    let small = Tuning {
        max_bytes: 1 << 20,
        max_events: 16,
        reserve: 256,
        step: 0,
        floor: 1 << 20,
    };
    let (mut writer, _) = Writer::open_tuned(&dir, NODE, small).unwrap();
    let mut commit = |entries: Vec<Entry>| writer.append(&[entries]).remove(0).unwrap();
    commit(vec![put("cmd_1", "running"), event(Class::Result, "one")]);
    commit(vec![
        put("cmd_1", "done"),
        event(Class::Result, "two"),
        put("cmd_2", ""),
    ]);
    let other = |kind, key: &str, value: &[u8]| Entry::Put {
        kind,
        key: key.to_owned(),
        value: value.to_vec(),
    };
    commit(vec![other(Kind::Spec, "spec", &[0; 100])]);
    commit(vec![other(Kind::Mark, "boot", b"\x01\xff")]);
    writer.ack(2);
    let mut commit = |entries: Vec<Entry>| writer.append(&[entries]).remove(0).unwrap();
    commit(vec![Entry::Delete {
        kind: Kind::Command,
        key: "cmd_1".to_owned(),
    }]);
    for number in 3..=20 {
        let class = if number < 9 {
            Class::Telemetry
        } else {
            Class::Status
        };
        commit(vec![event(class, &format!("event {number}"))]);
    }
    commit(vec![
        event(Class::Status, ""),
        event(Class::Result, "22"),
        event(Class::Result, "23"),
    ]);
    drop(writer);
    std::fs::rename(dir.join(NAME), dir.join("format-1.db")).unwrap();
    let text = dump(&dir.view_data("format-1.db").unwrap());
    std::fs::write(dir.join("format-1.txt"), text).unwrap();
}
