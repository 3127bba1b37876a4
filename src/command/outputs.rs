//! What commands put out and the control plane fetches later: one file a command in `outputs/` of the
//! data directory, written beside its name and renamed once it is whole and on the disk.
//!
//! An output lives until the control plane says that it has all of it, or until its command is forgotten.
//! All of them together have a bound; past it a command fails instead of filling the disk. Only
//! files with a command's name are ever touched.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::id::Id;
use super::kinds::explained;
use super::machine::Failure;
use crate::crypto::digest::Sha256;
use crate::proto::OutputChunk;
use crate::sys::fs::{DataFile, Dir, Error, entries};

/// Of all outputs together.
const ALL: u64 = 64 * 1024 * 1024;
/// Of an `OutputChunk`'s data.
pub const CHUNK: usize = 64 * 1024;
/// How much of a cut first line is looked for its end.
const LINE: usize = CHUNK;

const DIRECTORY: &str = "outputs";
/// Of a file that is being written.
const UNFINISHED: [&str; 2] = [".part", ".new"];

/// The directory. It is made with the first output.
pub struct Outputs {
    path: PathBuf,
    /// What those that are being written may come to.
    begun: Arc<AtomicU64>,
}

/// An output that is whole, and on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub size: u64,
    pub sha256: [u8; 32],
    /// What came first was left out.
    pub cut: bool,
}

/// An output that is being written: of all that is pushed, the last `max` bytes. They go round in a
/// file of that size, so that nothing large is ever in memory.
pub struct Spool {
    dir: Dir,
    id: Id,
    file: DataFile,
    max: u64,
    pushed: u64,
    _share: Share,
}

/// Bytes that an output may come to, kept free for it until it is whole or given up.
struct Share(Arc<AtomicU64>, u64);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Outputs {
    pub fn of(data_dir: &Path) -> Self {
        Self {
            path: data_dir.join(DIRECTORY),
            begun: Arc::default(),
        }
    }

    /// Begins the output of `id`, at most `max` bytes long.
    ///
    /// # Errors
    /// The outputs already there leave no room for it, or the disk does not take it.
    pub fn begin(&self, id: Id, max: u64) -> Result<Spool, Failure> {
        let max = max.max(1);
        let dir = Dir::create(&self.path, 0o700).map_err(|error| failure(&error))?;
        let begun = self.begun.fetch_add(max, Ordering::Relaxed);
        let share = Share(self.begun.clone(), max);
        let used = self.sizes().sum::<u64>().saturating_add(begun);
        if used.saturating_add(max) > ALL {
            return Err(Failure::new(
                "OutputsFull",
                format!(
                    "{used} bytes of earlier outputs wait in {} to be fetched; {max} more would pass {ALL}",
                    self.path.display()
                ),
            ));
        }
        let name = format!("{id}{}", UNFINISHED[0]);
        let file = dir
            .create_data(&name, 0o600)
            .map_err(|error| failure(&error))?;
        Ok(Spool {
            dir,
            id,
            file,
            max,
            pushed: 0,
            _share: share,
        })
    }

    /// The piece from `offset` on, at most `max` bytes; `None` when there is no such output.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn chunk(&self, id: Id, offset: u64, max: usize) -> Result<Option<OutputChunk>, Error> {
        let name = id.to_string();
        let file = match Dir::open(&self.path).and_then(|dir| dir.view_data(&name)) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        let mut data = vec![0; max.min(CHUNK)];
        let length = file.read_at(&mut data, offset)?;
        data.truncate(length);
        Ok(Some(OutputChunk {
            command_id: name,
            offset,
            data,
            size: file.length()?,
            gone: false,
        }))
    }

    /// Deletes the output of `id`, if there is one.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove(&self, id: Id) -> Result<(), Error> {
        match Dir::open(&self.path) {
            Err(error) if error.is_missing() => Ok(()),
            dir => dir?.remove(&id.to_string()),
        }
    }

    /// Deletes what a crash left half-written, and outputs of commands that `keep` does not want.
    pub fn tidy(&self, keep: impl Fn(Id) -> bool) {
        let Ok(dir) = Dir::open(&self.path) else {
            return;
        };
        let Ok(entries) = entries(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let half = UNFINISHED.iter().find_map(|end| name.strip_suffix(end));
            let stale = match half {
                Some(name) => Id::parse(name).is_some(),
                None => Id::parse(name).is_some_and(|id| !keep(id)),
            };
            if stale {
                // Best effort: it is tried again at the next start.
                let _ = dir.remove(name);
            }
        }
    }

    fn sizes(&self) -> impl Iterator<Item = u64> {
        let entries = entries(&self.path).into_iter().flatten();
        let unfinished = |entry: &std::fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            UNFINISHED.iter().any(|end| name.ends_with(end))
        };
        // The unfinished have their share.
        let whole = entries.flatten().filter(move |entry| !unfinished(entry));
        whole.filter_map(|entry| Some(entry.metadata().ok()?.len()))
    }
}

impl Spool {
    /// Adds `bytes`; what is older than the last `max` of all is overwritten.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let length = bytes.len() as u64;
        let skip = length.saturating_sub(self.max);
        let mut at = self.pushed.saturating_add(skip) % self.max;
        let mut rest = bytes
            .get(usize::try_from(skip).unwrap_or(0)..)
            .unwrap_or_default();
        while !rest.is_empty() {
            let room = usize::try_from(self.max - at).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.file
                .write_at(now, at)
                .map_err(|error| failure(&error))?;
            rest = later;
            at = 0;
        }
        self.pushed = self.pushed.saturating_add(length);
        Ok(())
    }

    /// How much was pushed so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Puts it in order, on the disk and under its name. A text that lost its beginning begins with a
    /// whole line; `cut` says that it had lost it before it was pushed.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn finish(self, cut: bool) -> Result<Stored, Failure> {
        let stored = self.finish_file(cut);
        if stored.is_err() {
            self.drop_files();
        }
        stored.map_err(|error| failure(&error))
    }

    /// Deletes what was written.
    pub fn abandon(self) {
        self.drop_files();
    }

    fn finish_file(&self, cut: bool) -> Result<Stored, Error> {
        let id = self.id.to_string();
        let [part, new] = UNFINISHED.map(|end| format!("{id}{end}"));
        let wrapped = self.pushed > self.max;
        let (size, start) = if wrapped {
            (self.max, self.pushed % self.max)
        } else {
            (self.pushed, 0)
        };
        let cut = cut || wrapped;
        let skip = if cut { self.cut_line(size, start)? } else { 0 };
        let whole = skip == 0 && start == 0;
        let copy = if whole {
            None
        } else {
            Some(self.dir.create_data(&new, 0o600)?)
        };
        let mut digest = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let mut done = skip;
        while done < size {
            let length = self.read_round(&mut chunk, size, start, done)?;
            let piece = chunk.get(..length).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            digest.update(piece);
            if let Some(copy) = &copy {
                copy.write_at(piece, done - skip)?;
            }
            done += length as u64;
        }
        if let Some(copy) = &copy {
            copy.sync()?;
            self.dir.rename(&new, &id)?;
            self.dir.remove(&part)?;
        } else {
            self.file.sync()?;
            self.dir.rename(&part, &id)?;
        }
        Ok(Stored {
            size: done - skip,
            sha256: digest.finish(),
            cut,
        })
    }

    /// Reads from the `done`-th of the `size` bytes that begin at `start` and go round.
    fn read_round(
        &self,
        chunk: &mut [u8],
        size: u64,
        start: u64,
        done: u64,
    ) -> Result<usize, Error> {
        let at = (start + done) % size.max(1);
        let run = (size - done).min(size - at);
        let length = usize::try_from(run).unwrap_or(usize::MAX).min(chunk.len());
        let chunk = chunk.get_mut(..length).unwrap_or_default();
        self.file.read_at(chunk, at)
    }

    /// How long the rest of the first line is, if its end is near.
    fn cut_line(&self, size: u64, start: u64) -> Result<u64, Error> {
        let mut chunk = vec![0; LINE];
        let length = self.read_round(&mut chunk, size, start, 0)?;
        let piece = chunk.get(..length).unwrap_or_default();
        let end = piece.iter().position(|byte| *byte == b'\n');
        Ok(end.map_or(0, |end| end as u64 + 1))
    }

    fn drop_files(&self) {
        for end in UNFINISHED {
            // Best effort: what is left goes at the next start.
            let _ = self.dir.remove(&format!("{}{end}", self.id));
        }
    }
}

fn failure(error: &Error) -> Failure {
    let reason = if error.is_full() {
        "DiskFull"
    } else {
        "StorageFault"
    };
    explained(reason, error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::crypto::digest::sha256;
    use crate::sys::fs::tests::scratch;

    fn id(n: u8) -> Id {
        Id::parse(&format!("cmd_{n:026}")).unwrap()
    }

    fn fetched(outputs: &Outputs, id: Id, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let chunk = outputs.chunk(id, all.len() as u64, step).unwrap().unwrap();
            assert_eq!(chunk.command_id, id.to_string());
            all.extend(&chunk.data);
            if all.len() as u64 == chunk.size {
                return all;
            }
            assert!(!chunk.data.is_empty());
        }
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path.join(DIRECTORY)).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn of_all_that_is_pushed_the_newest_whole_lines_are_kept() {
        let path = scratch("outputs");
        let outputs = Outputs::of(&path);
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        for (n, max) in [(1, 1), (2, 7), (3, 100), (4, 8889), (5, 8890), (6, 20_000)] {
            for step in [1, 13, 64, 9000] {
                let mut spool = outputs.begin(id(n), max).unwrap();
                for piece in text.as_bytes().chunks(step) {
                    spool.push(piece).unwrap();
                }
                let stored = spool.finish(false).unwrap();
                let kept = fetched(&outputs, id(n), 1000);
                assert_eq!(stored.size, kept.len() as u64);
                assert_eq!(stored.sha256, sha256(&kept));
                assert!(text.as_bytes().ends_with(&kept), "{max} by {step}");
                assert_eq!(stored.cut, text.len() as u64 > max, "{max}");
                if stored.cut && max >= 100 {
                    assert!(kept.starts_with(b"line "));
                    assert!(kept.len() as u64 + 10 > max);
                }
                outputs.remove(id(n)).unwrap();
                assert!(names(&path).is_empty());
            }
        }
    }

    #[test]
    fn text_without_lines_is_kept_as_it_is_and_nothing_is_an_output_too() {
        let path = scratch("outputs-flat");
        let outputs = Outputs::of(&path);
        let mut spool = outputs.begin(id(1), 10).unwrap();
        spool.push(b"0123456789abcde").unwrap();
        spool.finish(false).unwrap();
        assert_eq!(fetched(&outputs, id(1), 3), b"56789abcde");
        let empty = outputs.begin(id(2), 10).unwrap().finish(false).unwrap();
        assert_eq!((empty.size, empty.sha256), (0, sha256(b"")));
        assert_eq!(fetched(&outputs, id(2), 3), b"");
        assert!(outputs.chunk(id(3), 0, 10).unwrap().is_none());
    }

    #[test]
    fn all_outputs_together_have_a_bound() {
        let path = scratch("outputs-bound");
        let outputs = Outputs::of(&path);
        let mut spool = outputs.begin(id(1), 16).unwrap();
        spool.push(b"x").unwrap();
        spool.finish(false).unwrap();
        let failure = outputs.begin(id(2), ALL).err().unwrap();
        assert_eq!(failure.reason, "OutputsFull");
        outputs.begin(id(2), ALL - 1).unwrap().abandon();
        assert_eq!(names(&path), [id(1).to_string()]);
        // Those that are being written count with all that they may come to.
        let first = outputs.begin(id(2), ALL / 2).unwrap();
        let failure = outputs.begin(id(3), ALL / 2).err().unwrap();
        assert_eq!(failure.reason, "OutputsFull");
        first.abandon();
        outputs.begin(id(3), ALL / 2).unwrap().abandon();
    }

    #[test]
    fn tidying_takes_what_is_half_written_or_unwanted_and_nothing_else() {
        let path = scratch("outputs-tidy");
        let outputs = Outputs::of(&path);
        outputs.tidy(|_| false);
        for n in [1, 2] {
            outputs.begin(id(n), 10).unwrap().finish(false).unwrap();
        }
        let spool = outputs.begin(id(3), 10).unwrap();
        std::fs::write(path.join("outputs/README"), "mine").unwrap();
        std::fs::write(path.join("outputs/notes.part"), "mine").unwrap();
        outputs.tidy(|kept| kept == id(1));
        let left = [
            "README".to_owned(),
            id(1).to_string(),
            "notes.part".to_owned(),
        ];
        assert_eq!(names(&path), left);
        drop(spool);
    }
}
