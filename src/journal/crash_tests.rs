//! The journal in every state that a crash can leave it in: what was promised is there, nothing is
//! there by half or invented, no command runs twice, and it opens and goes on.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::io::Errno;

use super::format::{NAME, RECORDS};
use super::scan::{self, Window};
use super::tests::{event, put};
use super::writer::{Tuning, Writer};
use super::*;
use crate::proto::{Event, EventBody, Message};
use crate::sys::fs::replay::{self, Tried};
use crate::sys::fs::tape::{self, Step};
use crate::sys::fs::{Dir, tests::scratch};
use crate::sys::log::tests::QUIET;

const NODE: &str = "node_a";

/// Small, so that a scenario reaches every cap and its file is quickly made.
const SMALL: Tuning = Tuning {
    max_bytes: 6000,
    max_events: 16,
    reserve: 512,
    step: 256,
    floor: 256,
};

/// What holds once a promise is made.
#[derive(Clone, Debug, Default)]
struct Held {
    journal_id: [u8; 16],
    position: u64,
    keys: BTreeMap<(Kind, String), Vec<u8>>,
    /// Commands that have begun to run.
    ran: BTreeSet<String>,
    /// Acknowledged, as far as the journal was told.
    acked: u64,
}

/// A journal under way, and all that was ever put into it.
struct Scene {
    dir: Dir,
    writer: Writer,
    held: Vec<Held>,
    /// What may be there after promise so-and-so besides: a commit that failed with the disk.
    doubtful: Vec<(usize, Held)>,
    /// Every event by journal and sequence.
    history: BTreeMap<([u8; 16], u64), (Class, Vec<u8>)>,
}

fn open(dir: &Dir) -> (Writer, Recovered) {
    loop {
        match Writer::open_tuned(dir, NODE, SMALL) {
            Ok(opened) => break opened,
            // Another test forked meanwhile, and its child has not let go of the lock yet.
            Err(OpenError::Busy(_)) => std::thread::yield_now(),
            Err(error) => panic!("it does not open: {error}"),
        }
    }
}

impl Scene {
    fn new(name: &str) -> Self {
        QUIET.set(true);
        let dir = Dir::open(&scratch(name)).unwrap();
        Self::at(dir)
    }

    fn at(dir: Dir) -> Self {
        let (writer, recovered) = open(&dir);
        let held = Held {
            journal_id: recovered.journal_id,
            position: recovered.position,
            acked: recovered.acked,
            keys: keys(recovered.entries),
            ..Held::default()
        };
        let mut scene = Self {
            dir,
            writer,
            held: vec![held],
            doubtful: Vec::new(),
            history: BTreeMap::new(),
        };
        scene.learn();
        scene
    }

    fn last(&self) -> &Held {
        self.held.last().unwrap()
    }

    /// Commits in one group; each is promised only once all of it is written.
    fn commit(&mut self, commits: Vec<Vec<Entry>>) -> Vec<Result<Committed, JournalError>> {
        let outcome = self.writer.append(&commits);
        for (commit, outcome) in commits.iter().zip(&outcome) {
            let mut held = self.last().clone();
            let committed = match outcome {
                Ok(committed) => committed,
                Err(JournalError::Disk(error)) if !error.is_full() => {
                    for entry in commit {
                        match entry {
                            Entry::Event { .. } => held.position += 1,
                            Entry::Put { kind, key, value } => {
                                held.keys.insert((*kind, key.clone()), value.clone());
                            }
                            Entry::Delete { kind, key } => {
                                held.keys.remove(&(*kind, key.clone()));
                            }
                        }
                    }
                    self.doubtful.push((self.held.len() - 1, held));
                    continue;
                }
                Err(_) => continue,
            };
            let events = commit
                .iter()
                .filter(|entry| matches!(entry, Entry::Event { .. }))
                .count() as u64;
            let mut sequence = committed.last - events;
            held.journal_id = self.writer.status().journal_id;
            held.position = committed.last;
            for entry in commit {
                match entry {
                    Entry::Event { class, body } => {
                        sequence += 1;
                        let key = (held.journal_id, sequence);
                        self.history.insert(key, (*class, body.clone()));
                    }
                    Entry::Put { kind, key, value } => {
                        held.keys.insert((*kind, key.clone()), value.clone());
                    }
                    Entry::Delete { kind, key } => {
                        held.keys.remove(&(*kind, key.clone()));
                    }
                }
            }
            self.held.push(held);
        }
        self.learn();
        tape::promise(self.held.len() - 1);
        outcome
    }

    fn all_ok(&mut self, commits: Vec<Vec<Entry>>) {
        for outcome in self.commit(commits) {
            outcome.unwrap();
        }
    }

    /// Events that the journal made itself.
    fn learn(&mut self) {
        let id = self.writer.status().journal_id;
        for stored in self.writer.read(0, usize::MAX).unwrap() {
            self.history
                .entry((id, stored.sequence))
                .or_insert((Class::Status, stored.body));
        }
    }

    fn ack(&mut self, position: u64) {
        self.writer.ack(position);
        let held = self.held.last_mut().unwrap();
        held.acked = held.acked.max(position);
    }

    fn tidy(&mut self) {
        self.writer.tidy();
    }

    /// A command: taken, begun, done; it has run once it is promised to have begun.
    fn run(&mut self, id: &str) {
        let begun = vec![put(id, "running"), event(Class::Result, id)];
        match self.commit(vec![begun]).remove(0) {
            Ok(_) => {}
            // Refused is refused: it does not run.
            Err(JournalError::Full) => return,
            Err(error) => panic!("{error}"),
        }
        let mut held = self.last().clone();
        held.ran.insert(id.to_owned());
        self.held.push(held);
        tape::promise(self.held.len() - 1);
        let result = format!("result of {id}");
        self.commit(vec![vec![put(id, "done"), event(Class::Result, &result)]]);
    }

    fn rebase(&mut self) {
        self.writer.rebase().unwrap();
        let status = self.writer.status();
        let mut held = self.last().clone();
        held.journal_id = status.journal_id;
        held.position = status.position;
        held.acked = 0;
        self.held.push(held);
        self.learn();
        tape::promise(self.held.len() - 1);
    }

    /// Records `work` and replays every crash in it.
    fn crash(&mut self, what: &str, work: impl FnOnce(&mut Self)) -> Tried {
        let before = replay::snapshot(&self.dir);
        let from = self.held.len() - 1;
        tape::start();
        tape::promise(from);
        work(self);
        let ops = tape::stop();
        let room = replay::room("journal");
        let tried = replay::replay(&before, &ops, &room, &mut |crash| {
            let from = crash.promised.max(from);
            self.check(crash.dir, from, crash.next.max(from));
        });
        println!(
            "{what}: {} steps, {} states, all as promised",
            tried.points, tried.states
        );
        tried
    }

    /// A crash left `dir`: it must hold what was promised up to `promised`, and of what was promised up to
    /// `next` any beginning.
    fn check(&self, dir: &Path, promised: usize, next: usize) {
        let dir = Dir::open(dir).unwrap();
        let (mut writer, recovered) = open(&dir);
        assert_eq!(recovered.damage, None, "a crash is no damage");
        let status = writer.status();
        let found = keys(recovered.entries);
        let stored = writer.read(0, usize::MAX).unwrap();
        let doubtful = self.doubtful.iter().filter(|(at, _)| *at == promised);
        let possible: Vec<&Held> = self.held[promised..=next]
            .iter()
            .chain(doubtful.clone().map(|(_, held)| held))
            .collect();
        let in_doubt = doubtful.count() > 0;
        let as_held = possible.iter().find(|held| {
            held.journal_id == status.journal_id
                && held.keys == found
                // One more: the journal's own word that a fault is over.
                && (held.position..=held.position + 1).contains(&status.position)
        });
        assert!(
            as_held.is_some(),
            "{found:?} at {} is none of {possible:#?}",
            status.position
        );
        let acked = possible.iter().map(|held| held.acked).max().unwrap_or(0);
        assert!(
            status.acked <= acked || status.acked == 0,
            "{} of {acked}",
            status.acked
        );
        self.check_events(&status, &stored, in_doubt);
        // A command that began is known, so that it does not begin again.
        for id in &self.held[promised].ran {
            let known = found.contains_key(&(Kind::Command, id.clone()));
            let past = found.contains_key(&(Kind::Mark, "watermark".to_owned()));
            assert!(known || past, "{id} would run twice");
        }
        // And it goes on from there, unless its caps are reached.
        let later = vec![event(Class::Result, "later"), put("later", "x")];
        let last = match writer.append(&[later]).remove(0) {
            Ok(committed) => committed.last,
            Err(JournalError::Full) => return,
            Err(error) => panic!("it does not go on: {error}"),
        };
        assert_eq!(last, status.position + 1);
        drop(writer);
        let (mut writer, recovered) = open(&dir);
        assert_eq!((recovered.position, recovered.tail_cut), (last, 0));
        assert_eq!(recovered.entries.len(), found.len() + 1);
        let again = writer.read(0, usize::MAX).unwrap();
        assert_eq!(again.last().unwrap().body, b"later");
        self.check_events(&writer.status(), &again, true);
    }

    /// Every event is one that was committed; none is missing but what may be dropped and is said to be.
    /// The last may be one that failed, or one that came later.
    fn check_events(&self, status: &Status, stored: &[Stored], but_last: bool) {
        let mut next = status.acked + 1;
        for event in stored {
            let id = status.journal_id;
            if let Ok(Event {
                body: Some(EventBody::EventsDropped(gap)),
                ..
            }) = Event::decode(&event.body)
            {
                assert_eq!((gap.first, gap.last), (next, event.sequence));
                for sequence in gap.first..=gap.last {
                    let class = self.history.get(&(id, sequence)).map(|known| known.0);
                    assert_ne!(class, Some(Class::Result), "{sequence} was dropped");
                }
            } else {
                assert_eq!(event.sequence, next);
                let spared = but_last && event.sequence >= status.position.saturating_sub(1);
                let known = self.history.get(&(id, event.sequence));
                if let Some((_, body)) = known.filter(|_| !spared) {
                    assert_eq!(&event.body, body, "event {}", event.sequence);
                }
            }
            next = event.sequence + 1;
        }
        assert_eq!(next, status.position + 1, "events are missing at the end");
    }
}

fn keys(entries: Vec<Keyed>) -> BTreeMap<(Kind, String), Vec<u8>> {
    entries
        .into_iter()
        .map(|entry| ((entry.kind, entry.key), entry.value))
        .collect()
}

#[test]
fn a_crash_while_the_journal_is_made_leaves_none_or_an_empty_one() {
    QUIET.set(true);
    let dir = Dir::open(&scratch("made")).unwrap();
    let before = replay::snapshot(&dir);
    tape::start();
    drop(open(&dir));
    let ops = tape::stop();
    let tried = replay::replay(&before, &ops, &replay::room("made"), &mut |crash| {
        let dir = Dir::open(crash.dir).unwrap();
        let (_, recovered) = open(&dir);
        assert_eq!(recovered.damage, None);
        assert_eq!((recovered.position, recovered.tail_cut), (0, 0));
    });
    println!("making: {} steps, {} states", tried.points, tried.states);
    assert!(tried.states > 20);
}

#[test]
fn a_crash_while_appending_loses_nothing_that_was_promised() {
    let mut scene = Scene::new("append");
    let tried = scene.crash("append", |scene| {
        scene.all_ok(vec![vec![event(Class::Status, "one")]]);
        scene.run("cmd_1");
        scene.ack(2);
        // Several commits in one group, each of several records over several sectors.
        let large = "x".repeat(700);
        scene.all_ok(vec![
            vec![put("a", "1"), event(Class::Status, &large), put("b", "2")],
            vec![event(Class::Telemetry, "two")],
            vec![
                put("a", &large),
                event(Class::Result, "three"),
                put("c", "3"),
            ],
        ]);
        for round in 2..20 {
            scene.run(&format!("cmd_{round}"));
            scene.ack(scene.last().position - 1);
        }
        scene.all_ok(vec![vec![
            Entry::Delete {
                kind: Kind::Command,
                key: "cmd_1".to_owned(),
            },
            Entry::Put {
                kind: Kind::Mark,
                key: "watermark".to_owned(),
                value: b"9".to_vec(),
            },
        ]]);
    });
    assert!(tried.states > 2000, "{tried:?}");
}

#[test]
fn a_crash_while_compacting_leaves_the_old_file_or_the_new() {
    let mut scene = Scene::new("compact");
    let tried = scene.crash("compaction", |scene| {
        for round in 0..6 {
            let text = format!("{round}").repeat(90);
            scene.all_ok(vec![vec![put("cmd", &text), event(Class::Status, &text)]]);
            scene.ack(scene.last().position);
            scene.tidy();
        }
    });
    assert!(scene.writer.status().compactions > 0);
    assert!(tried.states > 1000, "{tried:?}");
}

#[test]
fn a_crash_while_events_are_dropped_drops_no_result() {
    let mut scene = Scene::new("drops");
    let tried = scene.crash("caps and drops", |scene| {
        for round in 0..14 {
            let class = match round % 4 {
                0 => Class::Result,
                1 => Class::Status,
                _ => Class::Telemetry,
            };
            let text = format!("{round:02}").repeat(60);
            scene.all_ok(vec![
                vec![event(class, &text)],
                vec![event(Class::Telemetry, "t")],
            ]);
        }
        scene.tidy();
    });
    let status = scene.writer.status();
    assert!(status.dropped > 0 && status.compactions > 0, "{status:?}");
    assert!(tried.states > 2000, "{tried:?}");
}

#[test]
fn a_crash_while_the_journal_begins_again_leaves_the_old_one_or_the_new() {
    let mut scene = Scene::new("rebase");
    scene.all_ok(vec![vec![event(Class::Status, "one"), put("a", "1")]]);
    scene.all_ok(vec![vec![event(Class::Result, "two"), put("b", "2")]]);
    scene.ack(1);
    scene.crash("rebase", |scene| {
        scene.rebase();
        scene.run("cmd_1");
    });
}

#[test]
fn a_crash_on_a_full_disk_keeps_the_results_in_the_reserve() {
    let mut scene = Scene::new("full");
    let tried = scene.crash("reserve", |scene| {
        scene.run("cmd_0");
        scene.all_ok(vec![vec![put("cmd_1", "running")]]);
        tape::fail(Step::Allocate, Errno::NOSPC);
        // What is allocated ahead is used up first.
        let mut refused = 0;
        for round in 0..12 {
            let text = format!("{round:02}").repeat(150);
            let outcome = scene.commit(vec![
                vec![put(&format!("cmd_new_{round}"), "running")],
                vec![event(Class::Status, &text)],
            ]);
            refused += outcome.iter().filter(|outcome| outcome.is_err()).count();
        }
        assert!(refused > 0);
        assert_eq!(scene.writer.status().fault.unwrap().reason, "DiskFull");
        scene.all_ok(vec![vec![
            put("cmd_1", "done"),
            event(Class::Result, "done"),
        ]]);
        tape::mend();
        scene.all_ok(vec![vec![event(Class::Status, "space again")]]);
        assert_eq!(scene.writer.status().fault, None);
    });
    assert!(tried.states > 1000, "{tried:?}");
}

#[test]
fn a_crash_around_a_failed_flush_loses_nothing_that_was_promised() {
    let mut scene = Scene::new("flush");
    scene.crash("failed flush", |scene| {
        scene.run("cmd_1");
        tape::fail(Step::Sync, Errno::IO);
        let refused = scene.commit(vec![vec![event(Class::Result, "lost?"), put("x", "y")]]);
        assert!(matches!(refused[0], Err(JournalError::Disk(_))));
        tape::mend();
        // The next commit may be tried at once: what failed was no rewrite.
        scene.all_ok(vec![vec![event(Class::Result, "kept"), put("x", "z")]]);
        scene.run("cmd_2");
    });
}

#[test]
fn a_crash_while_a_damaged_file_is_set_aside_loses_nothing_that_can_be_read() {
    let mut scene = Scene::new("damage");
    for text in ["one", "two", "three"] {
        scene.all_ok(vec![vec![event(Class::Result, text), put(text, text)]]);
    }
    let Scene { dir, writer, .. } = scene;
    let first = first_event(&writer);
    drop(writer);
    // A byte of the first event's body goes bad.
    let mut bytes = std::fs::read(dir.join(NAME)).unwrap();
    bytes[first + 40] ^= 0x10;
    std::fs::write(dir.join(NAME), &bytes).unwrap();
    let before = replay::snapshot(&dir);
    tape::start();
    let (writer, recovered) = open(&dir);
    tape::promise(1);
    drop(writer);
    let ops = tape::stop();
    let damage = recovered.damage.unwrap();
    assert!(dir.exists(&damage.kept_as).unwrap());
    let tried = replay::replay(&before, &ops, &replay::room("damage"), &mut |crash| {
        let dir = Dir::open(crash.dir).unwrap();
        let (mut writer, recovered) = open(&dir);
        let texts: Vec<String> = keys(recovered.entries)
            .into_keys()
            .map(|(_, key)| key)
            .collect();
        assert_eq!(texts, ["three", "two"]);
        let stored = writer.read(0, usize::MAX).unwrap();
        assert_eq!(stored.len(), 3);
        assert_eq!(
            (&stored[0].body[..], &stored[1].body[..]),
            (&b"two"[..], &b"three"[..])
        );
        let told = Event::decode(&stored[2].body).unwrap();
        let Some(EventBody::JournalDamaged(told)) = told.body else {
            panic!("{told:?}");
        };
        // The damaged file is never lost, under whatever name it was kept.
        let kept = std::fs::read(dir.join(&told.kept_as)).unwrap();
        assert_eq!(kept, bytes);
        assert_eq!(told.records_kept, 4);
    });
    println!(
        "quarantine: {} steps, {} states",
        tried.points, tried.states
    );
    assert!(tried.states > 50, "{tried:?}");
}

/// That these tests can fail: a disk that confirms flushes and makes none loses what was promised, and they see it.
#[test]
fn a_disk_that_lies_is_found_out() {
    let found = std::panic::catch_unwind(|| {
        let mut scene = Scene::new("lies");
        scene.crash("a disk that lies", |scene| {
            tape::lie();
            scene.run("cmd_1");
        });
    });
    let words = found.unwrap_err();
    let words = words.downcast_ref::<String>().unwrap();
    assert!(words.contains("is none of"), "{words}");
}

/// What no one thought of: long runs of anything, by a generator with a fixed seed.
#[test]
fn a_crash_in_the_midst_of_anything_loses_nothing_that_was_promised() {
    let mut all = Tried::default();
    for seed in 1..=3_u64 {
        let mut scene = Scene::new("anything");
        let tried = scene.crash(&format!("anything, {seed}"), |scene| anything(scene, seed));
        all.points += tried.points;
        all.states += tried.states;
    }
    println!("anything: {} steps, {} states", all.points, all.states);
    assert!(all.states > 10_000, "{all:?}");
}

fn anything(scene: &mut Scene, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Xorshift: the same run each time.
    let mut below = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    for round in 0..30 {
        match below(12) {
            0 => scene.ack(below(scene.last().position + 1)),
            1 => scene.tidy(),
            2 => scene.run(&format!("cmd_{round}")),
            3 if round % 2 == 0 => scene.rebase(),
            4 => {
                let (step, errno) = match below(3) {
                    0 => (Step::Allocate, Errno::NOSPC),
                    1 => (Step::Sync, Errno::IO),
                    _ => (Step::Rename, Errno::IO),
                };
                tape::fail(step, errno);
                scene.commit(vec![vec![event(Class::Result, "r"), put("k", "v")]]);
                tape::mend();
                // As if a second had gone by.
                scene.writer.rewrite_after = std::time::Duration::ZERO;
            }
            _ => {
                let commits = (0..=below(3))
                    .map(|_| {
                        (0..=below(3))
                            .map(|_| {
                                let text = "abc".repeat(usize::try_from(below(70)).unwrap());
                                match below(5) {
                                    0 => event(Class::Result, &text),
                                    1 => event(Class::Status, &text),
                                    2 => event(Class::Telemetry, &text),
                                    3 => put(&format!("key_{}", below(5)), &text),
                                    _ => Entry::Delete {
                                        kind: Kind::Command,
                                        key: format!("key_{}", below(5)),
                                    },
                                }
                            })
                            .collect()
                    })
                    .collect();
                scene.commit(commits);
            }
        }
    }
}

/// Where the first event's record stands.
fn first_event(writer: &Writer) -> usize {
    let mut at = None;
    let header = &writer.header;
    scan::scan(&mut Window::new(&writer.file), header, &mut |commit| {
        for record in commit {
            if matches!(record.content, super::format::Content::Event(_)) {
                at.get_or_insert(record.offset);
            }
        }
        Ok(())
    })
    .unwrap();
    let at = at.unwrap();
    assert!(at > RECORDS);
    usize::try_from(at).unwrap()
}
