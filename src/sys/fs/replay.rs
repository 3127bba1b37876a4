//! Every state that a crash can leave a directory in, from a recording of what was done to it
//! ([`tape`](super::tape)).
//!
//! The disk's rules, no kinder than any real one's: what was flushed is there. Of what was not,
//! any write may be there, be missing (zeros, where the file is longer by then), be there up to any
//! byte, or lack any sector, also when later ones are there; lengths and reserved blocks may
//! come without the bytes; new names, renames and removals may be missing, from any of them on, or any one of
//! them. Flushing a file does not flush its name. After a failed flush what it was to flush may or may not be
//! there for good, whatever later flushes say.
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::Dir;
use super::tape::Op;

/// The smallest piece a disk writes whole.
const SECTOR: usize = 512;
/// Writes up to this long are torn at every byte, longer ones at every sector and some bytes.
const EVERY_BYTE: usize = 1500;

/// The files of a directory.
type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
    AtLeast(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end && !bytes.is_empty() {
                    content.resize(end, 0);
                }
                if !bytes.is_empty() {
                    content[*offset..end].copy_from_slice(bytes);
                }
            }
            Change::Length(length) => content.resize(*length, 0),
            Change::AtLeast(length) => content.resize(content.len().max(*length), 0),
        }
    }

    /// What may be there of it instead of all or nothing.
    fn pieces(&self) -> Vec<Vec<Change>> {
        let Change::Write { offset, bytes } = self else {
            return Vec::new();
        };
        let length = bytes.len();
        let part = |from: usize, to: usize| Change::Write {
            offset: offset + from,
            bytes: bytes[from..to].to_vec(),
        };
        let size = Change::AtLeast(offset + length);
        // The length without the bytes.
        let mut pieces = vec![vec![size.clone()]];
        let sectors: Vec<usize> = (1..length)
            .filter(|at| (offset + at).is_multiple_of(SECTOR))
            .collect();
        for cut in 1..length {
            let near = sectors.iter().any(|sector| sector.abs_diff(cut) <= 1);
            if length <= EVERY_BYTE || near || cut % 97 == 0 {
                pieces.push(vec![part(0, cut)]);
                if near || cut % 16 == 0 {
                    pieces.push(vec![part(0, cut), size.clone()]);
                }
            }
        }
        let bounds: Vec<usize> = [0].into_iter().chain(sectors).chain([length]).collect();
        if bounds.len() > 2 {
            for sector in bounds.windows(2) {
                let (from, to) = (sector[0], sector[1]);
                pieces.push(vec![part(0, from), part(to, length), size.clone()]);
                pieces.push(vec![part(from, to), size.clone()]);
                pieces.push(vec![part(from, to)]);
            }
        }
        pieces
    }
}

#[derive(Clone, Debug)]
enum Naming {
    Set(String, u64),
    Rename(String, String),
    Link(String, String),
    Remove(String),
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Naming::Set(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Naming::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Naming::Link(from, to) => {
                if let Some(inode) = names.get(from).copied() {
                    names.insert(to.clone(), inode);
                }
            }
            Naming::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

#[derive(Clone, Default)]
struct OnDisk {
    content: Vec<u8>,
    /// Not flushed yet.
    pending: Vec<Change>,
    /// Of a failed flush: may be there or not, for ever.
    doubtful: Vec<Change>,
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<u64, OnDisk>,
    names: BTreeMap<String, u64>,
    pending: Vec<Naming>,
}

impl Disk {
    fn step(&mut self, op: &Op) {
        let at = |number: u64| usize::try_from(number).unwrap();
        let mut change = |inode: u64, change: Change| {
            self.files.entry(inode).or_default().pending.push(change);
        };
        match op {
            Op::Create { name, inode } => {
                // A new file, which may have a removed one's number.
                self.files.insert(*inode, OnDisk::default());
                self.pending.push(Naming::Set(name.clone(), *inode));
            }
            Op::Write {
                inode,
                offset,
                bytes,
            } => change(
                *inode,
                Change::Write {
                    offset: at(*offset),
                    bytes: bytes.clone(),
                },
            ),
            Op::Allocate { inode, length } => change(*inode, Change::AtLeast(at(*length))),
            Op::SetLength { inode, length } => change(*inode, Change::Length(at(*length))),
            Op::Sync { inode } => {
                let file = self.files.entry(*inode).or_default();
                for change in std::mem::take(&mut file.pending) {
                    change.apply(&mut file.content);
                }
            }
            Op::SyncFailed { inode } => {
                let file = self.files.entry(*inode).or_default();
                let pending = std::mem::take(&mut file.pending);
                file.doubtful.extend(pending);
            }
            Op::Rename { from, to } => self.pending.push(Naming::Rename(from.clone(), to.clone())),
            Op::Link { from, to } => self.pending.push(Naming::Link(from.clone(), to.clone())),
            Op::Remove { name } => self.pending.push(Naming::Remove(name.clone())),
            Op::SyncDir => {
                for naming in std::mem::take(&mut self.pending) {
                    naming.apply(&mut self.names);
                }
            }
            Op::Promise(_) => {}
        }
    }

    /// Calls `see` with each state that a crash now can leave.
    fn states(&self, see: &mut dyn FnMut(Files)) {
        for names in self.namings() {
            let files: Vec<u64> = names.values().copied().collect();
            let loose: Vec<u64> = files
                .iter()
                .copied()
                .filter(|inode| {
                    let file = &self.files[inode];
                    !file.pending.is_empty() || !file.doubtful.is_empty()
                })
                .collect();
            let build = |chosen: &dyn Fn(u64) -> Vec<u8>| -> Files {
                names
                    .iter()
                    .map(|(name, inode)| (name.clone(), chosen(*inode)))
                    .collect()
            };
            for all in [true, false] {
                let rest = |inode: u64| {
                    let file = &self.files[&inode];
                    let mut content = file.content.clone();
                    if all {
                        file.apply_all(&mut content);
                    }
                    content
                };
                see(build(&rest));
                for one in &loose {
                    // A file that is called NAME.new alone is read by nobody: a part of its states does.
                    let read = names
                        .iter()
                        .any(|(name, inode)| inode == one && !name.ends_with(".new"));
                    self.files[one].variants(read, &mut |content| {
                        see(build(&|inode| {
                            if inode == *one {
                                content.clone()
                            } else {
                                rest(inode)
                            }
                        }));
                    });
                }
            }
        }
    }

    fn namings(&self) -> Vec<BTreeMap<String, u64>> {
        let mut all = Vec::new();
        let mut add = |chosen: &mut dyn Iterator<Item = &Naming>| {
            let mut names = self.names.clone();
            chosen.for_each(|naming| naming.apply(&mut names));
            if !all.contains(&names) {
                all.push(names);
            }
        };
        for count in 0..=self.pending.len() {
            add(&mut self.pending.iter().take(count));
        }
        for missing in 0..self.pending.len() {
            let (before, after) = self.pending.split_at(missing);
            add(&mut before.iter().chain(&after[1..]));
        }
        all
    }
}

impl OnDisk {
    fn apply_all(&self, content: &mut Vec<u8>) {
        self.doubtful
            .iter()
            .chain(&self.pending)
            .for_each(|change| change.apply(content));
    }

    fn variants(&self, every: bool, see: &mut dyn FnMut(Vec<u8>)) {
        let changes: Vec<&Change> = self.doubtful.iter().chain(&self.pending).collect();
        let count = changes.len();
        // Which of them are there: any of a few; of many, the first, all but one, or one alone.
        let mut choices: Vec<Vec<bool>> = Vec::new();
        if count <= 4 {
            for bits in 0..1_usize << count {
                choices.push((0..count).map(|bit| bits >> bit & 1 == 1).collect());
            }
        } else {
            for at in 0..=count {
                choices.push((0..count).map(|bit| bit < at).collect());
                choices.push((0..count).map(|bit| bit != at).collect());
                choices.push((0..count).map(|bit| bit == at).collect());
            }
        }
        for choice in &choices {
            let mut content = self.content.clone();
            for (change, there) in changes.iter().zip(choice) {
                if *there {
                    change.apply(&mut content);
                }
            }
            see(content);
        }
        // One of them there in part, the others before and after it there or missing.
        for (at, change) in changes.iter().enumerate() {
            let step = if every { 1 } else { 37 };
            for piece in change.pieces().into_iter().step_by(step) {
                for (before, after) in [(true, false), (true, true), (false, true)] {
                    if count == 1 && !before {
                        continue;
                    }
                    let mut content = self.content.clone();
                    for (index, other) in changes.iter().enumerate() {
                        let there = index < at && before || index > at && after;
                        if index == at {
                            piece.iter().for_each(|part| part.apply(&mut content));
                        } else if there {
                            other.apply(&mut content);
                        }
                    }
                    see(content);
                    if at + 1 == count && after {
                        break;
                    }
                }
            }
        }
    }
}

/// A directory as a crash left it, and what had been promised by then.
pub(crate) struct Crash<'a> {
    pub dir: &'a Path,
    /// The last promise made before.
    pub promised: usize,
    /// The next one, whose making was under way; none after the last.
    pub next: usize,
}

/// What [`replay`] tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    pub points: usize,
    pub states: usize,
}

/// The files of a directory now: what a recording that begins now begins with.
pub(crate) fn snapshot(dir: &Dir) -> BTreeMap<String, (u64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let content = std::fs::read(entry.path()).unwrap();
            (name, (entry.metadata().unwrap().ino(), content))
        })
        .collect()
}

/// Makes each state that a crash after any step of `ops` can leave, in a directory of `room`, and calls
/// `check` there.
pub(crate) fn replay(
    before: &BTreeMap<String, (u64, Vec<u8>)>,
    ops: &[Op],
    room: &Path,
    check: &mut dyn FnMut(&Crash<'_>),
) -> Tried {
    let mut disk = Disk::default();
    for (name, (inode, content)) in before {
        disk.names.insert(name.clone(), *inode);
        disk.files.entry(*inode).or_default().content = content.clone();
    }
    let dir = room.join("crash");
    std::fs::create_dir_all(&dir).unwrap();
    let mut tried = Tried::default();
    let mut seen = HashSet::new();
    let mut promised = 0;
    for step in 0..=ops.len() {
        if let Some(op) = step.checked_sub(1).map(|last| &ops[last]) {
            disk.step(op);
            if let Op::Promise(number) = op {
                promised = *number;
            }
        }
        let next = ops[step..].iter().find_map(|op| match op {
            Op::Promise(number) => Some(*number),
            _ => None,
        });
        tried.points += 1;
        disk.states(&mut |files| {
            if seen.insert(fingerprint(&files, promised)) {
                tried.states += 1;
                make(&dir, &files);
                check(&Crash {
                    dir: &dir,
                    promised,
                    next: next.unwrap_or(promised),
                });
            }
        });
    }
    tried
}

/// By a digest that is fast in a build for tests too.
fn fingerprint(files: &Files, promised: usize) -> Vec<u8> {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    digest.update(&promised.to_le_bytes());
    for (name, content) in files {
        digest.update(name.as_bytes());
        digest.update(&content.len().to_le_bytes());
        digest.update(content);
    }
    digest.finish().as_ref().to_vec()
}

fn make(dir: &Path, files: &Files) {
    for entry in std::fs::read_dir(dir).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for (name, content) in files {
        std::fs::write(dir.join(name), content).unwrap();
    }
}

/// A place in memory for the many small files, where the system has one.
pub(crate) fn room(name: &str) -> PathBuf {
    let nonce = u64::from_le_bytes(crate::sys::random::bytes().unwrap());
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        let path = shared.join(format!("bcd-{name}-{nonce:016x}"));
        if std::fs::create_dir(&path).is_ok() {
            super::tests::remove_later(&path);
            return path;
        }
    }
    super::tests::scratch(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::{tape, tests::scratch};

    fn states_of(work: impl FnOnce(&Dir)) -> HashSet<Files> {
        let dir = Dir::open(&scratch("replay")).unwrap();
        dir.write_atomic("file", b"old", 0o600).unwrap();
        let before = snapshot(&dir);
        tape::start();
        work(&dir);
        let ops = tape::stop();
        let mut all = HashSet::new();
        replay(&before, &ops, &room("replay"), &mut |crash| {
            let files = snapshot(&Dir::open(crash.dir).unwrap());
            all.insert(
                files
                    .into_iter()
                    .map(|(name, (_, content))| (name, content))
                    .collect(),
            );
        });
        all
    }

    #[test]
    fn a_file_written_whole_is_old_or_new_in_every_state() {
        let states = states_of(|dir| dir.write_atomic("file", b"new bytes", 0o600).unwrap());
        let of_file: HashSet<&[u8]> = states.iter().map(|files| &files["file"][..]).collect();
        assert_eq!(of_file, HashSet::from([&b"old"[..], b"new bytes"]));
        // And the file beside it was seen missing, empty, zero, and whole.
        let beside: HashSet<Option<&[u8]>> = states
            .iter()
            .map(|files| files.get("file.new").map(Vec::as_slice))
            .collect();
        for wanted in [None, Some(&b""[..]), Some(b"new bytes"), Some(&[0; 9])] {
            assert!(beside.contains(&wanted), "{wanted:?}");
        }
    }

    /// The layer finds what it is there for: a rename whose bytes were not flushed.
    #[test]
    fn a_careless_write_is_caught() {
        let states = states_of(|dir| {
            let file = dir.create_data("file.new", 0o600).unwrap();
            file.write_at(b"new bytes", 0).unwrap();
            dir.rename("file.new", "file").unwrap();
        });
        assert!(states.iter().any(|files| files["file"] == b""));
        assert!(states.iter().any(|files| files["file"] == b"new"));
    }

    #[test]
    fn sectors_go_missing_and_come_in_any_order() {
        let states = states_of(|dir| {
            let file = dir.create_data("file", 0o600).unwrap();
            dir.sync().unwrap();
            file.write_at(&[1; 600], 300).unwrap();
        });
        let has = |wanted: Vec<u8>| {
            states
                .iter()
                .any(|files| files.get("file") == Some(&wanted))
        };
        let mut late = vec![0; 900];
        late[512..].fill(1);
        assert!(has(late), "the later sector without the earlier");
        let mut early = vec![0; 900];
        early[300..512].fill(1);
        assert!(has(early), "the earlier without the later, and the length");
        assert!(has(vec![0; 900]) && has(Vec::new()));
    }
}
