//! Files that are no good journals, disks that are full or failing, and numbers that count.
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::io::Errno;

use super::format::{Content, Encoder, HEADER, NAME, RECORDS, SECOND_HEADER};
use super::tests::{event, put};
use super::writer::{Tuning, Writer};
use super::*;
use crate::proto::{Event, EventBody, Message};
use crate::rt;
use crate::sys::fs::tape::{self, Step};
use crate::sys::fs::{Dir, replay, tests};
use crate::sys::log::tests::QUIET;

const NODE: &str = "node_a";
const LIMITS: Limits = Limits {
    max_bytes: 64 << 20,
    max_events: 10_000,
};
/// A short file.
const SMALL: Tuning = Tuning {
    max_bytes: 1 << 20,
    max_events: 1000,
    reserve: 256,
    step: 0,
    floor: 1 << 20,
};

fn open(dir: &Dir) -> (Writer, Recovered) {
    opened(|| Writer::open_tuned(dir, NODE, SMALL)).unwrap()
}

/// Tries until the file is free: where another test forked meanwhile, its child has the lock for a moment.
fn opened<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    QUIET.set(true);
    loop {
        match open() {
            Err(OpenError::Busy(_)) => std::thread::yield_now(),
            opened => break opened,
        }
    }
}

fn room() -> Dir {
    Dir::open(&replay::room("hostile")).unwrap()
}

/// Keys with values, and bodies of events that are not the journal's own.
#[derive(Debug, PartialEq, Eq)]
struct Found(Vec<(String, Vec<u8>)>, Vec<Vec<u8>>);

fn content(writer: &mut Writer, recovered: &Recovered) -> Found {
    let keys = recovered
        .entries
        .iter()
        .map(|entry| (entry.key.clone(), entry.value.clone()))
        .collect();
    let bodies = writer
        .read(0, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|stored| stored.body)
        .filter(|body| body.starts_with(b"event"))
        .collect();
    Found(keys, bodies)
}

/// A journal with every kind of record, as bytes, and its content after each commit.
fn sample() -> (Vec<u8>, Vec<Found>) {
    let dir = room();
    let (mut writer, recovered) = open(&dir);
    let mut contents = vec![content(&mut writer, &recovered)];
    drop(writer);
    for round in 0..6 {
        let (mut writer, _) = open(&dir);
        let mut commit = vec![
            event(Class::Result, &format!("event {round}")),
            put(&format!("key {round}"), &"value".repeat(round)),
        ];
        if round == 3 {
            commit.push(event(Class::Telemetry, "event more"));
            commit.push(Entry::Delete {
                kind: Kind::Command,
                key: "key 1".to_owned(),
            });
        }
        writer.append(&[commit]).remove(0).unwrap();
        drop(writer);
        let (mut writer, recovered) = open(&dir);
        contents.push(content(&mut writer, &recovered));
    }
    (std::fs::read(dir.join(NAME)).unwrap(), contents)
}

/// The bytes that mean something, and some of the space between.
fn positions(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let (second, records) = (SECOND_HEADER as usize, RECORDS as usize);
    (0..bytes.len()).filter(move |at| {
        (0..HEADER).contains(at)
            || (second..second + HEADER).contains(at)
            || (records..used + 64).contains(at)
            || at % 251 == 0
    })
}

#[test]
fn a_bit_flipped_anywhere_is_harmless_or_found_and_nothing_else_is_lost() {
    let (bytes, contents) = sample();
    let whole = contents.last().unwrap();
    let dir = room();
    let (mut found, mut harmless) = (0, 0);
    for at in positions(&bytes) {
        for name in std::fs::read_dir(dir.path()).unwrap() {
            std::fs::remove_file(name.unwrap().path()).unwrap();
        }
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(dir.join(NAME), &flipped).unwrap();
        let (mut writer, recovered) = open(&dir);
        let now = content(&mut writer, &recovered);
        match &recovered.damage {
            Some(damage) => {
                found += 1;
                assert_eq!(
                    std::fs::read(dir.join(&damage.kept_as)).unwrap(),
                    flipped,
                    "byte {at}"
                );
                // One commit at most went with its bit; a header costs nothing.
                let lost = whole.1.len() - now.1.len();
                assert!(lost <= 2, "byte {at}: {now:?}");
                assert!(at >= RECORDS as usize || lost == 0, "byte {at}: {now:?}");
                assert!(now.1.iter().all(|body| whole.1.contains(body)));
            }
            None if recovered.tail_cut > 0 => {
                found += 1;
                assert!(contents.contains(&now), "byte {at}: {now:?}");
            }
            None => {
                harmless += 1;
                assert_eq!(&now, whole, "byte {at}");
                let space = at >= HEADER && at < SECOND_HEADER as usize
                    || at >= SECOND_HEADER as usize + HEADER && at < RECORDS as usize;
                assert!(space, "byte {at} is not checked");
            }
        }
    }
    println!("{found} flips found, {harmless} harmless");
    assert!(found > 900 && harmless > 10);
}

#[test]
fn a_file_cut_anywhere_opens_with_whole_commits() {
    let (bytes, contents) = sample();
    let dir = room();
    for length in positions(&bytes) {
        for name in std::fs::read_dir(dir.path()).unwrap() {
            std::fs::remove_file(name.unwrap().path()).unwrap();
        }
        std::fs::write(dir.join(NAME), &bytes[..length]).unwrap();
        let (mut writer, recovered) = open(&dir);
        let now = content(&mut writer, &recovered);
        assert!(contents.contains(&now), "cut at {length}: {now:?}");
        let headed = length >= SECOND_HEADER as usize + HEADER;
        assert!(headed || recovered.damage.is_some(), "cut at {length}");
    }
}

#[test]
fn a_last_record_that_lost_bytes_of_its_ending_is_not_taken() {
    let (bytes, contents) = sample();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let zeros = bytes[..last].iter().rev().take_while(|byte| **byte == 0);
    let zeros = zeros.count();
    assert!(zeros > 0, "the sample's last record ends in zeros");
    for lost in 1..=zeros {
        let dir = room();
        let mut short = bytes[..last - lost].to_vec();
        short.push(bytes[last]);
        std::fs::write(dir.join(NAME), &short).unwrap();
        let (mut writer, recovered) = open(&dir);
        let now = content(&mut writer, &recovered);
        assert!(contents[..contents.len() - 1].contains(&now), "{now:?}");
        assert!(recovered.tail_cut > 0 || recovered.damage.is_some());
    }
}

#[test]
fn what_is_no_journal_at_all_is_set_aside_and_said() {
    for (bytes, what) in [
        (Vec::new(), "it is empty"),
        (vec![0; 100_000], "it holds nothing but zeros"),
        (
            b"SQLite format 3\0".repeat(1000),
            "it is no journal, or both its headers are damaged",
        ),
    ] {
        let dir = room();
        std::fs::write(dir.join(NAME), &bytes).unwrap();
        let (mut writer, recovered) = open(&dir);
        let damage = recovered.damage.unwrap();
        assert_eq!(damage.what, what);
        assert_eq!(damage.bytes_lost, bytes.len() as u64);
        assert!(damage.kept_as.starts_with("journal.db.corrupt-20"));
        assert_eq!(std::fs::read(dir.join(&damage.kept_as)).unwrap(), bytes);
        let told = Event::decode(&writer.read(0, 1).unwrap()[0].body).unwrap();
        let Some(EventBody::JournalDamaged(told)) = told.body else {
            panic!("{told:?}");
        };
        assert_eq!(
            (told.kept_as, told.damage),
            (damage.kept_as, what.to_owned())
        );
        drop(writer);
        assert_eq!(open(&dir).1.damage, None, "once");
    }
}

#[test]
fn a_newer_version_is_refused_and_left_alone() {
    let (mut bytes, _) = sample();
    for offset in [0, SECOND_HEADER as usize] {
        bytes[offset + 8] = 2;
        let crc = super::crc32c::Crc32c::new().then(&bytes[offset..offset + 12]);
        bytes[offset + 12..offset + 16].copy_from_slice(&crc.value().to_le_bytes());
    }
    let dir = room();
    std::fs::write(dir.join(NAME), &bytes).unwrap();
    let error = Writer::open_tuned(&dir, NODE, SMALL).err().unwrap();
    let path = dir.join(NAME);
    assert_eq!(
        error.to_string(),
        format!(
            "{} is of format version 2, and this bcd knows 1",
            path.display()
        )
    );
    assert!(error.remedy().is_some());
    assert_eq!(std::fs::read(path).unwrap(), bytes);
}

#[test]
fn what_is_no_regular_file_is_refused_and_left_alone() {
    let dir = room();
    let path = dir.join(NAME);
    let refused = |words: &str| {
        let error = Writer::open_tuned(&dir, NODE, SMALL).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot open {}: it is {words}, not a regular file",
                path.display()
            )
        );
        assert_eq!(error.remedy(), Some("move it away"));
    };
    symlink("/etc/passwd", &path).unwrap();
    refused("a symlink");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("a directory");
    std::fs::remove_dir(&path).unwrap();
    tests::make_fifo(&path);
    refused("a device, pipe or socket");
}

#[test]
fn a_mode_too_wide_is_corrected() {
    let dir = room();
    drop(open(&dir));
    let path = dir.join(NAME);
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    for wide in [0o644, 0o666, 0o640] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(wide)).unwrap();
        drop(open(&dir));
        assert_eq!(mode(), 0o600);
    }
}

#[test]
fn a_journal_of_another_account_is_refused_and_roots_use_of_it_leaves_it_that_accounts() {
    use std::os::unix::fs::{MetadataExt, chown};
    let dir = room();
    drop(open(&dir));
    let path = dir.join(NAME);
    if chown(&path, Some(1234), Some(1234)).is_err() {
        println!("not tried: this is not root");
        return;
    }
    let (mut writer, _) = open(&dir);
    writer.rebase().unwrap();
    drop(writer);
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 1234);
    let wide =
        |path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    wide(path.clone(), 0o666);
    wide(dir.path().to_owned(), 0o777);
    assert!(tests::become_user(65_534));
    let error = opened(|| Writer::open_tuned(&dir, NODE, SMALL));
    assert!(tests::become_user(0));
    let error = error.err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "{} belongs to user 1234, and bcd runs as user 65534",
            path.display()
        )
    );
    assert_eq!(
        error.remedy(),
        Some("give it to the account that runs bcd node")
    );
}

#[test]
fn a_second_daemon_is_refused_also_after_a_compaction() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    let busy = || {
        let error = Writer::open_tuned(&dir, NODE, SMALL).err().unwrap();
        assert!(matches!(error, OpenError::Busy(_)), "{error}");
    };
    busy();
    writer.rebase().unwrap();
    busy();
}

/// Records with good CRCs that say what cannot be.
#[test]
fn records_out_of_sequence_twice_or_of_the_future_are_damage() {
    type Push = fn(&mut Encoder);
    let cases: [(&str, Push); 6] = [
        ("an event out of sequence", |encoder| {
            encoder.push(Content::Event(Class::Result), 9, (true, true), &[&[0; 8]]);
        }),
        ("an event out of sequence", |encoder| {
            encoder.push(Content::Event(Class::Result), 1, (true, true), &[&[0; 8]]);
        }),
        ("a base that is not the first record", |encoder| {
            encoder.push(Content::Base { acked: 0 }, 0, (true, true), &[]);
        }),
        (
            "an acknowledgement of events that were never written",
            |encoder| {
                encoder.push(Content::Ack { acked: 7 }, 2, (true, true), &[]);
            },
        ),
        ("dropped events out of sequence", |encoder| {
            let content = Content::Dropped {
                time_ms: 0,
                first: 8,
                count: 2,
            };
            encoder.push(content, 9, (true, true), &[]);
        }),
        ("a commit without its beginning or end", |encoder| {
            encoder.push(Content::Ack { acked: 1 }, 2, (false, true), &[]);
        }),
    ];
    for (what, push) in cases {
        let dir = room();
        let (mut writer, _) = open(&dir);
        let commit = vec![
            event(Class::Result, "event 1"),
            event(Class::Result, "event 2"),
        ];
        writer.append(&[commit]).remove(0).unwrap();
        let mut encoder =
            Encoder::new(writer.header.salt, writer.end, Some(writer.end), Vec::new());
        push(&mut encoder);
        writer.file.write_at(&encoder.bytes, writer.end).unwrap();
        drop(writer);
        let (mut writer, recovered) = open(&dir);
        let damage = recovered.damage.clone().unwrap();
        assert!(damage.what.starts_with(what), "{}", damage.what);
        // What was acknowledged is not kept, whoever says so.
        let kept = if what.contains("acknowledgement") {
            0
        } else {
            2
        };
        assert_eq!(content(&mut writer, &recovered).1.len(), kept);
    }
}

#[test]
fn entries_beyond_the_bounds_are_refused_and_the_rest_of_the_group_is_not() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    let long = |length: usize| "x".repeat(length);
    let outcome = writer.append(&[
        vec![event(Class::Result, &long(MAX_BODY + 1))],
        vec![put(&long(MAX_KEY + 1), "")],
        vec![put("k", &long(MAX_VALUE + 1))],
        vec![event(Class::Result, ""); 1025],
        vec![event(Class::Result, "event, of bounds")],
        Vec::new(),
    ]);
    let sizes: Vec<bool> = outcome
        .iter()
        .map(|outcome| matches!(outcome, Err(JournalError::TooLarge { .. })))
        .collect();
    assert_eq!(sizes, [true, true, true, true, false, false]);
    assert_eq!(outcome[4].as_ref().unwrap().last, 1);
    // The largest that is allowed.
    let (mut writer, _) = Writer::open(&room(), NODE, LIMITS).unwrap();
    let largest = vec![
        put(&long(MAX_KEY), &long(MAX_VALUE)),
        event(Class::Result, &long(MAX_BODY)),
    ];
    writer.append(&[largest]).remove(0).unwrap();
    assert_eq!(writer.read(0, 1).unwrap()[0].body.len(), MAX_BODY);
}

#[test]
fn one_flush_serves_all_commits_that_wait() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    let commits: Vec<_> = (0..16)
        .map(|number| vec![event(Class::Result, &format!("event {number}"))])
        .collect();
    tape::start();
    let outcome = writer.append(&commits);
    let ops = tape::stop();
    let last: Vec<u64> = outcome.into_iter().map(|one| one.unwrap().last).collect();
    assert_eq!(last, (1..=16).collect::<Vec<_>>());
    let flushes = ops
        .iter()
        .filter(|op| matches!(op, tape::Op::Sync { .. }))
        .count();
    let writes = ops
        .iter()
        .filter(|op| matches!(op, tape::Op::Write { .. }))
        .count();
    assert_eq!((writes, flushes), (1, 1));
    assert_eq!((writer.status().commits, writer.status().syncs), (16, 1));
}

#[test]
fn producers_on_threads_share_flushes_and_each_finds_its_own_on_the_disk() {
    let dir = Dir::open(&tests::scratch("producers")).unwrap();
    let (journal, _) = Journal::open(&dir, NODE, LIMITS).unwrap();
    std::thread::scope(|scope| {
        for producer in 0..16 {
            let journal = journal.clone();
            scope.spawn(move || {
                let mut before = 0;
                for number in 0..20 {
                    let text = format!("event {producer} {number}");
                    let commit = vec![event(Class::Result, &text), put(&text, "x")];
                    let last = journal.commit_blocking(commit).unwrap().last;
                    assert!(last > before);
                    before = last;
                }
            });
        }
    });
    let status = journal.status();
    assert_eq!((status.commits, status.position), (320, 320));
    println!("{} commits, {} flushes", status.commits, status.syncs);
    assert!(status.syncs <= status.commits);
    let stored = rt::block_on(journal.read(0, usize::MAX)).unwrap();
    assert_eq!(stored.len(), 320);
}

#[test]
fn a_full_disk_refuses_new_work_takes_results_and_is_over_when_there_is_space() {
    let path = tests::scratch("full-disk");
    if !tests::mount_tmpfs(&path, "size=400k") {
        println!("not tried: no mount is permitted here");
        return;
    }
    QUIET.set(true);
    let dir = Dir::open(&path).unwrap();
    let limits = Limits {
        max_bytes: 1 << 20,
        ..LIMITS
    };
    let (mut writer, _) = Writer::open(&dir, NODE, limits).unwrap();
    let mut one = |entry: Entry| writer.append(&[vec![entry]]).remove(0);
    one(put("cmd_1", "running")).unwrap();
    std::fs::write(path.join("filler"), vec![1; 400 << 10]).unwrap_err();
    // What is allocated ahead goes first.
    let mut before = 0;
    let refused = loop {
        match one(event(Class::Status, &"s".repeat(1000))) {
            Ok(_) => before += 1,
            Err(error) => break error,
        }
    };
    assert!(before < 100);
    while one(event(Class::Status, "s")).is_ok() {
        before += 1;
    }
    assert!(before < 10_000);
    let JournalError::Disk(error) = &refused else {
        panic!("{refused}");
    };
    assert!(error.is_full());
    assert_eq!(refused.remedy(), Some("free some space on that filesystem"));
    one(put("cmd_2", "running")).unwrap_err();
    one(put("cmd_3", "running")).unwrap_err();
    one(put("cmd_1", "done")).unwrap();
    let last = one(event(Class::Result, "event result")).unwrap().last;
    // Even the reserve ends; what did not fit can be offered again.
    let mut more = 0;
    while one(event(Class::Result, &"r".repeat(1000))).is_ok() {
        more += 1;
    }
    assert!((10..400).contains(&more), "{more}");
    let fault = writer.status().fault.unwrap();
    assert_eq!((fault.reason, fault.refused_commands), ("DiskFull", 2));
    // All of it is there after a crash on the full disk.
    drop(writer);
    let (mut writer, recovered) = opened(|| Writer::open(&dir, NODE, limits)).unwrap();
    assert_eq!(recovered.position, last + more);
    assert_eq!(recovered.entries[0].value, b"done");
    let mut one = |entry: Entry| writer.append(&[vec![entry]]).remove(0);
    one(put("cmd_4", "running")).unwrap_err();
    std::fs::remove_file(path.join("filler")).unwrap();
    let last = one(put("cmd_4", "running")).unwrap().last;
    assert_eq!(writer.status().fault, None);
    let told = writer.read(last - 1, 1).unwrap().remove(0);
    let Some(EventBody::StorageFault(told)) = Event::decode(&told.body).unwrap().body else {
        panic!("{told:?}");
    };
    assert_eq!((&told.reason[..], told.refused_commands), ("DiskFull", 1));
    assert!(told.since_ms > 0 && told.until_ms >= told.since_ms);
}

#[test]
fn a_read_only_filesystem_is_said_at_open_and_can_still_be_looked_at() {
    let path = tests::scratch("read-only");
    if !tests::mount_tmpfs(&path, "size=4m") {
        println!("not tried: no mount is permitted here");
        return;
    }
    let dir = Dir::open(&path).unwrap();
    let refused = || {
        let error = opened(|| Writer::open_tuned(&dir, NODE, SMALL))
            .err()
            .unwrap();
        let OpenError::File(file) = &error else {
            panic!("{error}");
        };
        assert!(file.is_read_only());
        assert!(error.remedy().unwrap().contains("remount it writable"));
    };
    let (mut writer, _) = open(&dir);
    writer.append(&[vec![put("a", "1")]]).remove(0).unwrap();
    drop(writer);
    tests::remount_read_only(&path);
    refused();
    let View::Readable(seen) = view(&dir, NAME).unwrap() else {
        panic!("not readable");
    };
    assert!(seen.damage.is_none() && seen.key_count() == 1);
}

#[test]
fn the_file_stays_below_its_cap_while_nobody_acknowledges() {
    QUIET.set(true);
    let limits = Limits {
        max_bytes: 256 << 10,
        max_events: 10_000,
    };
    let dir = room();
    let (mut writer, _) = opened(|| Writer::open(&dir, NODE, limits)).unwrap();
    let text = "x".repeat(1000);
    let mut results = 0;
    for number in 0..3000 {
        let class = match number % 8 {
            0 if number < 800 => Class::Result,
            1 | 2 => Class::Status,
            _ => Class::Telemetry,
        };
        results += usize::from(class == Class::Result);
        writer
            .append(&[vec![event(class, &text)]])
            .remove(0)
            .unwrap();
        writer.tidy();
        let length = std::fs::metadata(dir.join(NAME)).unwrap().len();
        assert!(
            length <= (256 + 8 + 16 + 32) << 10,
            "{length} after {number}"
        );
    }
    let status = writer.status();
    assert!(
        status.dropped > 2000 && status.compactions < 100,
        "{status:?}"
    );
    let stored = writer.read(0, usize::MAX).unwrap();
    let dropped = |stored: &&Stored| stored.body != text.as_bytes();
    let told: u64 = stored
        .iter()
        .filter(dropped)
        .map(|stored| {
            let Ok(Event {
                body: Some(EventBody::EventsDropped(gap)),
                ..
            }) = Event::decode(&stored.body)
            else {
                panic!("{stored:?}");
            };
            gap.count
        })
        .sum();
    assert_eq!(told, status.dropped);
    let kept = stored.len() - stored.iter().filter(dropped).count();
    assert_eq!(kept as u64 + told, 3000);
    assert!(kept >= results);
    // Results alone fill it; then new ones find the stretch beyond the cap, and at last no room.
    let mut more = 0;
    let full = loop {
        match writer
            .append(&[vec![event(Class::Result, &text)]])
            .remove(0)
        {
            Ok(_) => more += 1,
            Err(error) => break error,
        }
        assert!(more < 400);
    };
    assert!(matches!(full, JournalError::Full));
    assert!(more > 100, "{more}");
    let refused = writer.append(&[vec![put("cmd_new", "running")]]).remove(0);
    assert!(matches!(refused, Err(JournalError::Full)));
    // An acknowledgement makes room.
    writer.ack(writer.status().position);
    writer
        .append(&[vec![put("cmd_new", "running")]])
        .remove(0)
        .unwrap();
    writer.tidy();
    assert!(writer.status().live_bytes < 1000);
}

#[test]
fn a_disk_that_turns_read_only_is_reported_and_left_behind() {
    QUIET.set(true);
    let dir = room();
    let (mut writer, _) = open(&dir);
    for step in [Step::Write, Step::Sync] {
        tape::fail(step, Errno::ROFS);
        tape::fail(Step::Create, Errno::ROFS);
        let refused = writer.append(&[vec![put("cmd_1", "running")]]);
        assert!(matches!(&refused[0], Err(JournalError::Disk(error)) if error.is_read_only()));
        // At once, and without trying the disk each time.
        writer
            .append(&[vec![event(Class::Result, "r")]])
            .remove(0)
            .unwrap_err();
        assert_eq!(writer.status().fault.unwrap().reason, "ReadOnly");
        tape::mend();
        writer.rewrite_after = std::time::Duration::ZERO;
        writer
            .append(&[vec![event(Class::Result, "event")]])
            .remove(0)
            .unwrap();
        assert_eq!(writer.status().fault, None);
    }
}

#[test]
fn a_record_that_goes_bad_under_the_daemon_is_dropped_and_said_and_the_file_is_kept() {
    QUIET.set(true);
    let dir = room();
    let (mut writer, _) = open(&dir);
    for number in 1..=3 {
        let commit = vec![event(Class::Result, &format!("event {number}"))];
        writer.append(&[commit]).remove(0).unwrap();
    }
    let at = std::fs::read(dir.join(NAME))
        .unwrap()
        .windows(7)
        .position(|bytes| bytes == b"event 2")
        .unwrap();
    writer.file.write_at(b"E", at as u64).unwrap();
    let stored = writer.read(0, usize::MAX).unwrap();
    assert_eq!(stored.len(), 3);
    assert_eq!(
        (&stored[0].body[..], &stored[2].body[..]),
        (&b"event 1"[..], &b"event 3"[..])
    );
    let Some(EventBody::EventsDropped(gap)) = Event::decode(&stored[1].body).unwrap().body else {
        panic!("{stored:?}");
    };
    assert_eq!((gap.first, gap.last, gap.count), (2, 2, 1));
    let kept = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with("journal.db.corrupt-")
        })
        .count();
    assert_eq!(kept, 1);
    // The next commit takes the word of it along.
    let last = writer
        .append(&[vec![event(Class::Result, "event 5")]])
        .remove(0)
        .unwrap()
        .last;
    assert_eq!(last, 5);
    drop(writer);
    let (mut writer, recovered) = open(&dir);
    assert_eq!((recovered.damage, recovered.position), (None, 5));
    let again = writer.read(0, usize::MAX).unwrap();
    assert_eq!(again[..3], stored);
    let Some(EventBody::JournalDamaged(told)) = Event::decode(&again[3].body).unwrap().body else {
        panic!("{again:?}");
    };
    assert!(dir.exists(&told.kept_as).unwrap());
}

#[test]
fn a_journal_moved_away_from_under_the_daemon_takes_nothing_more() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    writer.append(&[vec![put("a", "1")]]).remove(0).unwrap();
    dir.rename(NAME, "journal.db.reset").unwrap();
    let error = writer.append(&[vec![put("b", "1")]]).remove(0).unwrap_err();
    assert!(matches!(error, JournalError::Moved));
    assert_eq!(error.remedy(), Some("restart bcd node"));
    assert!(matches!(writer.rebase(), Err(JournalError::Moved)));
    assert!(!dir.exists(NAME).unwrap(), "it is not made again");
}

#[test]
fn a_journal_deleted_under_the_daemon_is_written_anew_with_all_it_held() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    let first = vec![put("a", "1"), event(Class::Result, "event 1")];
    writer.append(&[first]).remove(0).unwrap();
    for again in 2..5_u64 {
        dir.remove(NAME).unwrap();
        let last = writer
            .append(&[vec![event(Class::Result, &format!("event {again}"))]])
            .remove(0)
            .unwrap()
            .last;
        assert_eq!(last, again);
    }
    dir.remove(NAME).unwrap();
    writer.rebase().unwrap();
    let stored = writer.read(0, usize::MAX).unwrap();
    let before = writer.status();
    drop(writer);
    let (mut writer, recovered) = open(&dir);
    assert_eq!(recovered.damage, None);
    assert_eq!(recovered.entries.len(), 1);
    assert_eq!(writer.read(0, usize::MAX).unwrap(), stored);
    assert_eq!(
        (stored.len(), writer.status().journal_id),
        (4, before.journal_id)
    );
}

#[test]
fn a_journal_put_in_the_place_of_a_deleted_one_is_left_alone() {
    let dir = room();
    let (mut writer, _) = open(&dir);
    writer.append(&[vec![put("a", "1")]]).remove(0).unwrap();
    dir.remove(NAME).unwrap();
    let (mut other, _) = open(&dir);
    let error = writer.append(&[vec![put("b", "1")]]).remove(0).unwrap_err();
    assert!(matches!(error, JournalError::Moved));
    other.append(&[vec![put("c", "1")]]).remove(0).unwrap();
    assert_eq!(other.status().keys, 1);
}
