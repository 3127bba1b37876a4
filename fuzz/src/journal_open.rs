//! A journal that is written to, cut, damaged and opened again, in any order: nothing is read that was not written,
//! what is whole is read as it was, a damaged file is named as one, and each that opens takes more.
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bcd::journal::{Class, Entry, Journal, Kind, Limits, Recovered};
use bcd::proto::Message;
use bcd::rt;
use bcd::sys::fs::Dir;
use bcd::sys::log::{self, Level};

use super::fleet::Scratch;

pub const HEAP: super::Heap = super::Heap {
    base: 2 << 20,
    per_byte: 4096,
};

const STEPS: usize = 24;
const OPENED: usize = 5;
const LIMITS: Limits = Limits {
    max_bytes: 64 << 10,
    max_events: 64,
};

/// What was written, and is not forgotten.
#[derive(Default)]
struct Model {
    /// By sequence, of the journal as it is now.
    events: BTreeMap<u64, Vec<u8>>,
    keys: BTreeMap<String, Vec<u8>>,
    /// All bodies and values ever.
    ever: Vec<Vec<u8>>,
    /// The file is as it was left.
    whole: bool,
}

pub fn run(data: &[u8]) {
    let place = Scratch::new();
    let path = place.join("");
    let file = place.join("journal.db");
    let mut model = Model {
        whole: true,
        ..Model::default()
    };
    let mut rest = data;
    log::set_level(Level::Error);
    rt::block_on(async {
        let Some(mut journal) = open(&path, &mut model).await else {
            panic!("a new journal opens");
        };
        let mut opened = 1;
        for _ in 0..STEPS {
            let [what, a, b, c, more @ ..] = rest else {
                break;
            };
            rest = more;
            match what % 8 {
                0..=2 => commit(&journal, &mut model, *what, [*a, *b, *c]).await,
                3 => {
                    let status = journal.status();
                    // A session acknowledges nothing that was not sent.
                    let position = (status.acked + u64::from(*a)).min(status.position);
                    journal.ack(position);
                    // Its thread has heard of it once it has written.
                    let entries = vec![put("acked", &[*a])];
                    if journal.commit(entries).await.is_ok() {
                        model.keys.insert("acked".to_owned(), vec![*a]);
                        model.ever.push(vec![*a]);
                    }
                    model.events.retain(|sequence, _| *sequence > position);
                }
                4 if journal.rebase().await.is_ok() => {
                    let left = std::mem::take(&mut model.events);
                    model.events = (1..).zip(left.into_values()).collect();
                }
                4 => {}
                _ if opened == OPENED => break,
                what => {
                    drop(journal);
                    spoil(&file, what, [*a, *b, *c], &mut model);
                    opened += 1;
                    journal = match open(&path, &mut model).await {
                        Some(again) => again,
                        None => return,
                    };
                }
            }
        }
        // It still takes what is never dropped, and gives it back.
        let before = journal.status();
        commit(&journal, &mut model, 0, [7, 1, 0]).await;
        let status = journal.status();
        assert_eq!(
            status.position,
            before.position + 1,
            "{before:?} {status:?}"
        );
    });
}

fn put(key: &str, value: &[u8]) -> Entry {
    Entry::Put {
        kind: Kind::Mark,
        key: key.to_owned(),
        value: value.to_vec(),
    }
}

async fn commit(journal: &Journal, model: &mut Model, what: u8, [a, b, c]: [u8; 3]) {
    let bytes = vec![a; usize::from(b) << (c & 3)];
    let class = [Class::Result, Class::Status, Class::Telemetry][usize::from(what % 8)];
    let mut entries = vec![Entry::Event {
        class,
        body: bytes.clone(),
    }];
    let key = format!("key{}", c >> 5);
    match c >> 2 & 3 {
        1 => entries.push(put(&key, &bytes)),
        2 => entries.push(Entry::Delete {
            kind: Kind::Mark,
            key: key.clone(),
        }),
        _ => {}
    }
    model.ever.push(bytes.clone());
    let Ok(done) = journal.commit(entries).await else {
        return;
    };
    match c >> 2 & 3 {
        1 => drop(model.keys.insert(key, bytes.clone())),
        2 => drop(model.keys.remove(&key)),
        _ => {}
    }
    model.events.insert(done.last, bytes);
}

/// Changes the file as disks and crashes do.
fn spoil(file: &Path, what: u8, [a, b, c]: [u8; 3], model: &mut Model) {
    // Its thread may not have closed it yet.
    let end = Instant::now() + Duration::from_secs(5);
    let mut bytes = std::fs::read(file).expect("a journal");
    let place = usize::from(u16::from_be_bytes([a, b]));
    match what {
        5 => return,
        6 => bytes.truncate(bytes.len().saturating_sub(place)),
        _ => {
            let count = bytes.len();
            if let Some(byte) = bytes.get_mut(place % count.max(1)) {
                *byte ^= c.max(1);
            }
        }
    }
    model.whole = false;
    let dir = Dir::open(file.parent().expect("a directory")).expect("a directory");
    while dir.lock().is_err() && Instant::now() < end {
        std::thread::yield_now();
    }
    std::fs::write(file, &bytes).expect("a journal");
}

/// Opens it, and holds what is found against what was written; `None`: it is refused, and stays as it is.
async fn open(path: &Path, model: &mut Model) -> Option<Journal> {
    let dir = Dir::open(path).expect("a directory");
    let end = Instant::now() + Duration::from_secs(5);
    let (journal, recovered) = loop {
        match Journal::open(&dir, "node_1", LIMITS) {
            Ok(opened) => break opened,
            Err(error) => {
                super::one_line(&error);
                // The one before may not have let go yet.
                if !model.whole || Instant::now() > end {
                    assert!(!model.whole, "{error}");
                    return None;
                }
                rt::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let events = journal.read(0, usize::MAX).await.expect("it reads");
    hold(&recovered, model);
    let told = |body: &Vec<u8>| bcd::proto::Event::decode(body).is_ok_and(|e| e.body.is_some());
    let mut before = recovered.acked;
    for event in &events {
        assert!(event.sequence > before && event.sequence <= recovered.position + 1);
        before = event.sequence;
        // What stands for lost or dropped ones is the journal's own.
        assert!(
            model.ever.contains(&event.body) || told(&event.body),
            "{event:?} was never written"
        );
    }
    if model.whole {
        for (sequence, body) in &model.events {
            let found = events.iter().find(|event| event.sequence == *sequence);
            let Some(found) = found else {
                // Dropped for want of room.
                assert!(journal.status().dropped > 0 || events.iter().any(|e| told(&e.body)));
                continue;
            };
            assert!(found.body == *body || told(&found.body));
        }
    }
    model.events = events
        .into_iter()
        .map(|event| (event.sequence, event.body))
        .collect();
    model.ever.extend(model.events.values().cloned());
    let keys = recovered.entries.into_iter();
    model.keys = keys.map(|entry| (entry.key, entry.value)).collect();
    model.whole = true;
    Some(journal)
}

fn hold(recovered: &Recovered, model: &Model) {
    assert!(recovered.acked <= recovered.position);
    for entry in &recovered.entries {
        assert!(model.ever.contains(&entry.value), "{entry:?}");
    }
    match &recovered.damage {
        Some(damage) => {
            assert!(!model.whole, "{damage:?}");
            assert!(!damage.what.is_empty() && !damage.what.chars().any(char::is_control));
        }
        None if model.whole => {
            assert_eq!(recovered.tail_cut, 0);
            let keys: BTreeMap<_, _> = recovered
                .entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.value.clone()))
                .collect();
            assert_eq!(keys, model.keys);
        }
        None => {}
    }
}
