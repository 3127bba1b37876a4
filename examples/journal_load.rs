//! Load for the journal: what `benches/journal_vs_sqlite.py` measures and what tests/journal needs.
//!
//! ```text
//! journal_load bcd DIR PRODUCERS COMMITS BYTES      appends; prints {"commits":…,"seconds":…,"syncs":…}
//! journal_load sqlite DIR PRODUCERS COMMITS BYTES   the same through SQLite, WAL, synchronous=FULL
//! journal_load fill DIR                             makes a journal of 64 MiB, all of it needed
//! journal_load write DIR                            commits for ever; prints the position of each
//! journal_load dump DIR                             prints {"position":…,"keys":…} of what is recovered
//! ```
//! A commit is an event and a keyed value of BYTES bytes each, as when a command ends.
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use bcd::journal::{Class, Entry, Journal, Kind, Limits};
use bcd::sys::fs::Dir;

type Failure = Box<dyn Error + Send + Sync>;

const NODE: &str = "node_load";
const LIMITS: Limits = Limits {
    max_bytes: 64 << 20,
    max_events: 10_000,
};

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["bcd", dir, producers, commits, bytes] => {
            let (journal, _) = open(dir)?;
            let done = measure(producers, commits, |producer, number, key| {
                let body = vec![0x5a; bytes.parse().unwrap_or(0)];
                // The gateway keeps up: what is a while back is acknowledged.
                if number % 50 == 49 && producer == 0 {
                    journal.ack(journal.status().position.saturating_sub(100));
                }
                journal.commit_blocking(commit(key, body)).map(drop)?;
                Ok(())
            })?;
            println!("{{{done},\"syncs\":{}}}", journal.status().syncs);
        }
        ["sqlite", dir, producers, commits, bytes] => {
            let path = Path::new(dir).join("events.sqlite");
            sqlite_connection(&path)?.execute_batch(
                "CREATE TABLE event (sequence INTEGER PRIMARY KEY, body BLOB);
                 CREATE TABLE keyed (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;",
            )?;
            let body = vec![0x5a; bytes.parse()?];
            let done = measure(producers, commits, |_, number, key| {
                thread_local! {
                    static CONNECTION: std::cell::RefCell<Option<rusqlite::Connection>> =
                        const { std::cell::RefCell::new(None) };
                }
                CONNECTION.with_borrow_mut(|slot| {
                    if slot.is_none() {
                        *slot = Some(sqlite_connection(&path)?);
                    }
                    let Some(connection) = slot.as_mut() else {
                        return Ok(());
                    };
                    let transaction = connection
                        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                    transaction.execute("INSERT INTO event (body) VALUES (?1)", [&body])?;
                    transaction.execute(
                        "INSERT OR REPLACE INTO keyed VALUES (?1, ?2)",
                        (key, &body),
                    )?;
                    // As the journal's: what is a while back is acknowledged.
                    if number % 50 == 49 {
                        transaction.execute(
                            "DELETE FROM event WHERE sequence <= (SELECT max(sequence) FROM event) - 100",
                            [],
                        )?;
                    }
                    transaction.commit()?;
                    Ok(())
                })
            })?;
            println!("{{{done}}}");
        }
        ["fill", dir] => fill(dir)?,
        ["write", dir] => {
            let (journal, _) = open(dir)?;
            let mut out = std::io::stdout();
            for number in 0_u64.. {
                let body = vec![b'x'; (number % 700) as usize];
                let done =
                    journal.commit_blocking(commit(&format!("cmd_{}", number % 40), body))?;
                writeln!(out, "{}", done.last)?;
                journal.ack(done.last.saturating_sub(200));
            }
        }
        ["dump", dir] => {
            let (_, recovered) = open(dir)?;
            let (position, keys) = (recovered.position, recovered.entries.len());
            let damaged = recovered.damage.is_some();
            println!("{{\"position\":{position},\"keys\":{keys},\"damaged\":{damaged}}}");
        }
        _ => return Err("see the head of examples/journal_load.rs".into()),
    }
    Ok(())
}

fn open(dir: &str) -> Result<(Journal, bcd::journal::Recovered), Failure> {
    Ok(Journal::open(&Dir::open(Path::new(dir))?, NODE, LIMITS)?)
}

fn commit(key: &str, body: Vec<u8>) -> Vec<Entry> {
    vec![
        Entry::Put {
            kind: Kind::Command,
            key: key.to_owned(),
            value: body.clone(),
        },
        Entry::Event {
            class: Class::Result,
            body,
        },
    ]
}

fn sqlite_connection(path: &Path) -> Result<rusqlite::Connection, Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// Runs `work` on so many threads, so often on each.
fn measure(
    producers: &str,
    commits: &str,
    work: impl Fn(u64, u64, &str) -> Result<(), Failure> + Sync,
) -> Result<String, Failure> {
    let (producers, commits): (u64, u64) = (producers.parse()?, commits.parse()?);
    let failed = AtomicU64::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for producer in 0..producers {
            let (work, failed) = (&work, &failed);
            scope.spawn(move || {
                for number in 0..commits {
                    let key = format!("cmd_{producer}_{}", number % 4);
                    if let Err(error) = work(producer, number, &key) {
                        eprintln!("{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
    if failed.load(Ordering::Relaxed) > 0 {
        return Err("a producer failed".into());
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        "\"commits\":{},\"seconds\":{seconds:.6}",
        producers * commits
    ))
}

/// 9,000 events and keys, until the cap of 64 MiB is all but reached.
fn fill(dir: &str) -> Result<(), Failure> {
    let (journal, _) = open(dir)?;
    let mut value = 0_u32;
    // Bytes that are neither zero nor alike.
    let mut bytes = |count: usize| -> Vec<u8> {
        (0..count)
            .map(|_| {
                value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (value >> 24) as u8
            })
            .collect()
    };
    for key in 0..1000 {
        let put = Entry::Put {
            kind: Kind::Command,
            key: format!("cmd_{key:04}"),
            value: bytes(2000),
        };
        journal.commit_blocking(vec![put])?;
    }
    while journal.status().used_bytes < (64 << 20) - (64 << 10) {
        let events = (0..8)
            .map(|_| Entry::Event {
                class: Class::Result,
                body: bytes(7000),
            })
            .collect();
        journal.commit_blocking(events)?;
    }
    Ok(())
}
