//! Opening a journal: whose it is, what a crash left at its end, and what to do with damage.
use super::format::{Header, MAX_NODE_ID, NAME, NEW, Record};
use super::index::Index;
use super::rewrite::{Order, Rewritten, Source, rewrite};
use super::scan::{self, Headers, Salvaged, Tail, Window};
use super::writer::{Counts, Tuning, Writer, body};
use super::{Class, Damage, Keyed, Limits, OpenError, Recovered};
use crate::proto::{EventBody, JournalDamaged};
use crate::sys::fs::{DataFile, Dir, Error};
use crate::sys::log::{Level, Value, event};
use crate::sys::utc::Utc;
use crate::sys::{clock, random, user};

/// What is wrong with a damaged journal, and what of it is still known.
struct Wrong {
    what: String,
    header: Option<Header>,
}

impl Writer {
    /// Opens `journal.db`, or makes it; cuts a torn tail; sets a damaged file aside and carries over
    /// what can be read.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Dir, node_id: &str, limits: Limits) -> Result<(Self, Recovered), OpenError> {
        Self::open_tuned(dir, node_id, Tuning::of(limits))
    }

    pub fn open_tuned(
        dir: &Dir,
        node_id: &str,
        tuning: Tuning,
    ) -> Result<(Self, Recovered), OpenError> {
        if node_id.len() > MAX_NODE_ID {
            return Err(OpenError::NodeId);
        }
        let dir = dir.reopen()?;
        let now_ms = clock::wall_ms();
        let Some(file) = locked(&dir)? else {
            let order = Order {
                journal_id: new_id()?,
                node_id,
                created_ms: now_ms,
                now_ms,
                renumber: true,
                event: None,
            };
            let new = rewrite(&dir, None, &Index::default(), &order, &tuning)?;
            dir.rename_new(NEW, NAME)?;
            return Self::begin(dir, new, tuning, None, 0);
        };
        owned(&file, &dir)?;
        let wrong = match headers(&file) {
            Ok(Headers::Whole(header)) => {
                belongs(&header, node_id)?;
                match read(&file, &header) {
                    Ok((index, end)) => {
                        let cut = match end.tail {
                            Tail::Torn { bytes } => bytes,
                            _ => 0,
                        };
                        if let Tail::Damaged { at, what } = end.tail {
                            Wrong {
                                what: format!("{what}, at byte {at}"),
                                header: Some(header),
                            }
                        } else {
                            return Self::go_on(dir, file, header, index, end.offset, cut, tuning);
                        }
                    }
                    Err(error) => Wrong {
                        what: describe(&error),
                        header: Some(header),
                    },
                }
            }
            Ok(Headers::OneDamaged(header)) => {
                belongs(&header, node_id)?;
                Wrong {
                    what: "one of its two headers is damaged".to_owned(),
                    header: Some(header),
                }
            }
            Ok(Headers::Newer(version)) => {
                let path = dir.join(NAME);
                return Err(OpenError::Newer { path, version });
            }
            Ok(Headers::Damaged) => Wrong {
                what: no_header(&file).to_owned(),
                header: None,
            },
            Err(error) => Wrong {
                what: describe(&error),
                header: None,
            },
        };
        Self::carry_over(dir, &file, node_id, &wrong, tuning, now_ms)
    }

    /// Goes on in a file that is as it should be, but for a tail to be cut.
    fn go_on(
        dir: Dir,
        file: DataFile,
        header: Header,
        index: Index,
        end: u64,
        cut: u64,
        tuning: Tuning,
    ) -> Result<(Self, Recovered), OpenError> {
        if cut > 0 {
            // What was torn must be gone before anything is written in its place: a record of it
            // might else follow a new one by chance.
            file.set_length(end)?;
            file.sync()?;
            // With the tail went the reserve; the next commit says so where it cannot be had again.
            let _ = file.allocate(end, tuning.reserve);
            event(
                Level::Warn,
                "journal.tail_cut",
                &[("bytes", Value::Number(cut))],
            );
        }
        // Best effort: what a crash left of a rewrite is in nobody's way but takes space.
        if dir.exists(NEW).unwrap_or(false) {
            let _ = dir.remove(NEW);
        }
        let allocated = file.length()?.max(end);
        let new = Rewritten {
            file,
            header,
            index,
            end,
            allocated,
            lost: 0,
        };
        Self::begin(dir, new, tuning, None, cut)
    }

    /// Sets the file aside and begins a new journal with what can be read of it.
    fn carry_over(
        dir: Dir,
        file: &DataFile,
        node_id: &str,
        wrong: &Wrong,
        tuning: Tuning,
        now_ms: u64,
    ) -> Result<(Self, Recovered), OpenError> {
        let mut index = Index::default();
        let salvaged = match &wrong.header {
            Some(header) => scan::salvage(file, header.salt, &mut |commit| {
                commit.iter().for_each(|record| index.salvage(record));
            })?,
            None => Salvaged {
                records: 0,
                bytes_lost: file.length()?,
            },
        };
        let kept_as = free_name(&dir, now_ms)?;
        let damage = Damage {
            kept_as,
            records_kept: index.key_count() as u64 + index.events() as u64,
            bytes_lost: salvaged.bytes_lost,
            what: wrong.what.clone(),
        };
        let told = body(EventBody::JournalDamaged(JournalDamaged {
            kept_as: damage.kept_as.clone(),
            records_kept: damage.records_kept,
            bytes_lost: damage.bytes_lost,
            damage: damage.what.clone(),
        }));
        let order = Order {
            journal_id: new_id()?,
            node_id,
            created_ms: now_ms,
            now_ms,
            renumber: true,
            event: Some((Class::Result, told)),
        };
        let source = wrong.header.as_ref().map(|header| Source {
            file,
            salt: header.salt,
        });
        let new = rewrite(&dir, source, &index, &order, &tuning)?;
        // A second name first, then the first name to the new file: at no instant is there none.
        match dir.link_new(NAME, &damage.kept_as) {
            Ok(()) => dir.rename(NEW, NAME)?,
            // A filesystem without hard links.
            Err(_) => {
                dir.rename_new(NAME, &damage.kept_as)?;
                dir.rename_new(NEW, NAME)?;
            }
        }
        let fields = [
            ("damage", Value::Text(&damage.what)),
            ("kept_as", Value::Text(&damage.kept_as)),
            ("records_kept", Value::Number(damage.records_kept)),
            ("bytes_lost", Value::Number(damage.bytes_lost)),
        ];
        event(Level::Error, "journal.damaged", &fields);
        Self::begin(dir, new, tuning, Some(damage), 0)
    }

    fn begin(
        dir: Dir,
        new: Rewritten,
        tuning: Tuning,
        damage: Option<Damage>,
        tail_cut: u64,
    ) -> Result<(Self, Recovered), OpenError> {
        let mut entries = Vec::with_capacity(new.index.key_count());
        for (kind, key, place) in new.index.keys() {
            let salt = new.header.salt;
            let payload = scan::payload(&new.file, salt, place.offset(), place.length)?;
            // It was read a moment ago; a disk that fails just now is found out by the next read.
            let Some(mut value) = payload else {
                continue;
            };
            value.drain(..key.len().min(value.len()));
            entries.push(Keyed {
                kind,
                key: key.to_owned(),
                value,
            });
        }
        let recovered = Recovered {
            journal_id: new.header.journal_id,
            position: new.index.position,
            acked: new.index.acked,
            entries,
            damage,
            tail_cut,
        };
        let writer = Self {
            dir,
            acked_in_file: new.index.acked,
            file: new.file,
            header: new.header,
            index: new.index,
            end: new.end,
            allocated: new.allocated,
            tuning,
            buffer: Vec::new(),
            trouble: None,
            suspect: false,
            rewrite_after: clock::monotonic(),
            untold: None,
            counts: Counts::default(),
        };
        Ok((writer, recovered))
    }
}

/// The file, for this process alone; `None` when there is none.
fn locked(dir: &Dir) -> Result<Option<DataFile>, OpenError> {
    loop {
        let file = match dir.open_data(NAME) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        file.lock()?;
        // Between the two, another process may have put a rewritten file in its place.
        if dir.is_named(NAME, &file)? {
            return Ok(Some(file));
        }
    }
}

/// The file must be this account's, and nobody else's to read or write.
fn owned(file: &DataFile, dir: &Dir) -> Result<(), OpenError> {
    let ownership = file.ownership()?;
    let euid = user::euid();
    // Root may use the journal of another account; a file written anew is that account's again.
    if ownership.uid != euid && euid != 0 {
        let path = dir.join(NAME);
        let uid = ownership.uid;
        return Err(OpenError::Foreign { path, uid, euid });
    }
    if ownership.mode != 0o600 {
        file.set_mode(0o600)?;
        let mode = format!("{:04o}", ownership.mode);
        event(
            Level::Warn,
            "journal.mode_corrected",
            &[("was", Value::Text(&mode))],
        );
    }
    Ok(())
}

fn belongs(header: &Header, node_id: &str) -> Result<(), OpenError> {
    if header.node_id == node_id {
        Ok(())
    } else {
        Err(OpenError::OtherNode {
            found: header.node_id.clone(),
            expected: node_id.to_owned(),
        })
    }
}

fn headers(file: &DataFile) -> Result<Headers, Error> {
    scan::headers(file)
}

fn read(file: &DataFile, header: &Header) -> Result<(Index, scan::End), Error> {
    let mut index = Index::default();
    let mut window = Window::new(file);
    let end = scan::scan(&mut window, header, &mut |commit: &[Record]| {
        commit.iter().try_for_each(|record| index.apply(record))
    })?;
    Ok((index, end))
}

/// What to call a file whose headers are both unreadable.
pub fn no_header(file: &DataFile) -> &'static str {
    match file.length() {
        Ok(0) => "it is empty",
        Ok(_) => match scan::is_zero(file) {
            Ok(true) => "it holds nothing but zeros",
            _ => "it is no journal, or both its headers are damaged",
        },
        Err(_) => "it cannot be read",
    }
}

fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// A name that is not taken for a damaged journal.
pub fn free_name(dir: &Dir, now_ms: u64) -> Result<String, OpenError> {
    let utc = Utc::from_ms(now_ms).compact();
    for attempt in 1..100 {
        let name = if attempt == 1 {
            format!("{NAME}.corrupt-{utc}")
        } else {
            format!("{NAME}.corrupt-{utc}-{attempt}")
        };
        if !dir.exists(&name)? {
            return Ok(name);
        }
    }
    Err(OpenError::NoName(dir.join(NAME)))
}

fn new_id() -> Result<[u8; 16], OpenError> {
    random::bytes().map_err(|error| OpenError::Kernel("cannot get random bytes", error))
}
