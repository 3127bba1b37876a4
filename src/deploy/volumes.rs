//! The file systems on a disk that is held, read and written without being mounted.
//!
//! ext2, ext3 and ext4 go through debugfs, and FAT, which is only read, through mtools: programs of the ramdisk, each
//! run alone, for a limited time, and never by a shell. They are pointed at a place on the whole disk: a partition's own
//! node may not be there yet, and has a page cache of its own.
//!
//! What it promises:
//! - A name that these programs could take for anything else is neither asked for nor listed: names in an image are
//!   foreign bytes.
//! - Nothing is written to a file system that has errors, or a journal to be replayed.
//! - What a program says it did is not believed: [`Volume::holds`] looks.
use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use super::ids;
use crate::sys::fs::{Dir, Error as FsError, Kind};
use crate::sys::process::{self, Run, RunError};
use crate::sys::stop::Stop;

/// For one program, one time.
const WITHIN: Duration = Duration::from_secs(300);
/// ASCII for mtools, by the one of its names that glibc knows without files beside it, as in a ramdisk.
const CODE_PAGE: [(&str, &str); 1] = [("DEFAULT_CODEPAGE", "367")];
/// Bytes of a path, of a symbolic link, and of what `stat` and `ls` print.
const PATH: usize = 1024;
const LINK: usize = 4096;
const STAT: usize = 64 * 1024;
const LISTING: usize = 1024 * 1024;
/// How many symbolic links are followed, one by one.
const LINKS: usize = 8;
/// What debugfs says of a name that is not there, whatever is missing on the way.
const MISSING: [&str; 2] = ["File not found by ext2_lookup", "is not a directory"];

/// ext's superblock (Documentation/filesystems/ext4/super.rst).
const SUPERBLOCK: u64 = 1024;
/// Bits of its state and of the features that must be known.
const STATE: usize = 0x3a;
const CLEAN: u8 = 1;
const ERRORS: u8 = 2;
const NEEDED: usize = 0x60;
const RECOVER: u8 = 4;

/// A file system on a disk.
pub struct Volume {
    /// `/dev/...`, of the whole disk.
    node: String,
    start: u64,
    kind: &'static str,
    stop: Stop,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub kind: Kind,
    /// Without the kind.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Where a symbolic link leads.
    link: Option<String>,
}

/// A file to be written.
pub struct New<'a> {
    pub bytes: &'a [u8],
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug)]
pub enum Error {
    /// The disk cannot be read.
    Disk(io::Error),
    /// This machine does not have the program.
    NoProgram(&'static str),
    Run(RunError),
    /// The program did not do it, and said this.
    Refused(String),
    /// What is asked is not done for a file system of this kind.
    Kind(&'static str),
    /// No program is given this path.
    Name(String),
    /// It is there, and not what was asked for.
    NotA(&'static str, String),
    TooLong(String),
    /// It is not to be written to.
    Unclean(&'static str),
    /// It does not hold what was written to it.
    Differs(String),
    Scratch(FsError),
    Kept(io::Error),
}

impl Volume {
    /// The file system that begins at the byte `start` of the disk `node`.
    ///
    /// # Errors
    /// The disk cannot be read there.
    pub fn open(node: &Path, start: u64, stop: &Stop) -> Result<Self, Error> {
        let head = read_at(node, start, ids::LOOK)?;
        Ok(Self {
            node: node.display().to_string(),
            start,
            kind: ids::in_head(&head).map_or("unknown", |(kind, _)| kind),
            stop: stop.clone(),
        })
    }

    /// "ext", "FAT", or what is only known by its name: "XFS", "btrfs", "LVM", "LUKS", "unknown" ...
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The file at `path`, symbolic links followed, of at most `max` bytes; `None`: there is none.
    ///
    /// # Errors
    /// It is no file, is longer, or cannot be read.
    pub fn read(&self, path: &str, max: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = Vec::new();
        let there = self.stream(path, max as u64, &mut |some| {
            bytes.extend_from_slice(some);
            Ok(())
        })?;
        Ok(there.map(|_| bytes))
    }

    /// The names in the directory at `path`, symbolic links followed; `None`: there is none. Names that no program is
    /// given are left out.
    ///
    /// # Errors
    /// It is no directory, or cannot be read.
    pub fn list(&self, path: &str) -> Result<Option<Vec<(String, Kind)>>, Error> {
        if self.kind == "FAT" {
            return Ok(self.fat_names(path)?.map(|listing| in_fat(&listing, path)));
        }
        let Some((path, stat)) = self.resolve(path)? else {
            return Ok(None);
        };
        if stat.kind != Kind::Directory {
            return Err(Error::NotA("directory", path));
        }
        let listing = self.ask("ls -p", &path, LISTING)?;
        Ok(listing.map(|listing| in_ext(&listing)))
    }

    /// What is at `path` itself, on ext.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn stat(&self, path: &str) -> Result<Option<Stat>, Error> {
        let Some(said) = self.ask("stat", path, STAT)? else {
            return Ok(None);
        };
        let mut stat =
            parse_stat(&said).ok_or_else(|| Error::Refused("stat said nothing".to_owned()))?;
        if stat.kind == Kind::Symlink && stat.link.is_none() {
            let link = self.ask("cat", path, LINK)?.unwrap_or_default();
            stat.link = Some(String::from_utf8_lossy(&link).into_owned());
        }
        Ok(Some(stat))
    }

    /// Where `path` leads when every symbolic link at its end is followed, and what is there, on ext.
    ///
    /// # Errors
    /// It cannot be told, or there is no end to the links.
    pub fn resolve(&self, path: &str) -> Result<Option<(String, Stat)>, Error> {
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            let Some(stat) = self.stat(&path)? else {
                return Ok(None);
            };
            let Some(link) = &stat.link else {
                return Ok(Some((path, stat)));
            };
            // Links in its middle, and `..`, are debugfs's to follow.
            path = match (link.starts_with('/'), path.rsplit_once('/')) {
                (false, Some((parent, _))) => [parent, "/", link].concat(),
                _ => link.clone(),
            };
        }
        Err(Error::NotA("file or directory, but a loop of links", path))
    }

    /// Whether the file system can be written to.
    ///
    /// # Errors
    /// It is no ext, has errors, or was not unmounted. debugfs replays no journal at a place within a disk, and e2fsck wants
    /// the disk for itself.
    pub fn is_writable(&self) -> Result<(), Error> {
        if self.kind != "ext" {
            return Err(Error::Kind(self.kind));
        }
        let head = read_at(Path::new(&self.node), self.start + SUPERBLOCK, 1024)?;
        let bits = |at: usize, mask: u8| head.get(at).is_some_and(|byte| byte & mask != 0);
        match (
            bits(STATE, ERRORS),
            bits(NEEDED, RECOVER),
            bits(STATE, CLEAN),
        ) {
            (true, _, _) => Err(Error::Unclean("it is marked as having errors")),
            (_, true, _) => Err(Error::Unclean("its journal is to be replayed")),
            (_, _, false) => Err(Error::Unclean("it was not unmounted")),
            _ => Ok(()),
        }
    }

    /// Makes the directory at `path` with `mode`, and those above it with 0755, if they are not there; gives where it is
    /// when links on the way were followed.
    ///
    /// # Errors
    /// Something else is there, or it cannot be made.
    pub fn make_directory(&self, path: &str, mode: u32) -> Result<String, Error> {
        let mut at = String::new();
        let mut names = path.split('/').skip(1).peekable();
        while let Some(name) = names.next() {
            at.push('/');
            at.push_str(name);
            match self.resolve(&at)? {
                Some((real, stat)) if stat.kind == Kind::Directory => at = real,
                Some((real, _)) => return Err(Error::NotA("directory", real)),
                None => {
                    let mode = if names.peek().is_none() { mode } else { 0o755 };
                    let made = ["mkdir ", &quoted(&at)?].concat();
                    self.change(&made)?;
                    let mode = format!(
                        "set_inode_field {} mode 0{:o}",
                        quoted(&at)?,
                        0o40_000 | mode
                    );
                    self.change(&mode)?;
                }
            }
        }
        Ok(at)
    }

    /// Writes `file` at `path`, in a directory that is there; a file that is there is replaced. What it holds is in
    /// a file below `scratch` meanwhile, which is made if it is not there.
    ///
    /// # Errors
    /// Something else is there, or the file is not.
    pub fn write(&self, path: &str, file: &New<'_>, scratch: &Path) -> Result<(), Error> {
        let there = match self.stat(path)? {
            Some(stat) if stat.kind != Kind::Regular => {
                return Err(Error::NotA("file", path.to_owned()));
            }
            there => there.is_some(),
        };
        let (parent, name) = path.rsplit_once('/').unwrap_or_default();
        let name = quoted_part(name)?;
        let mut requests = format!(
            "cd {}\n",
            quoted(if parent.is_empty() { "/" } else { parent })?
        );
        if there {
            requests.push_str(&format!("rm {name}\n"));
        }
        let dir = Dir::create(scratch, 0o700).map_err(Error::Scratch)?;
        requests.push_str(&format!(
            "write {} {name}\n",
            quoted(&dir.join("file").display().to_string())?
        ));
        for (field, value) in [
            ("mode", 0o100_000 | file.mode),
            ("uid", file.uid),
            ("gid", file.gid),
        ] {
            requests.push_str(&format!("set_inode_field {name} {field} 0{value:o}\n"));
        }
        let kept = dir
            .replace("file", file.bytes, 0o600)
            .and_then(|()| dir.replace("requests", requests.as_bytes(), 0o600));
        let path = dir.join("requests").display().to_string();
        let done = kept
            .map_err(Error::Scratch)
            .and_then(|()| self.debugfs(&["-w", "-f", &path], &mut |_| Ok(())));
        let gone = ["file", "requests"].map(|name| dir.remove(name));
        done?;
        gone.into_iter()
            .collect::<Result<(), _>>()
            .map_err(Error::Scratch)
    }

    /// Whether `path` is `file`, as a fresh look has it. Flush the disk before.
    ///
    /// # Errors
    /// It is not.
    pub fn holds(&self, path: &str, file: &New<'_>) -> Result<(), Error> {
        let stat = self
            .stat(path)?
            .ok_or_else(|| Error::Differs(path.to_owned()))?;
        let as_asked = (stat.kind, stat.mode, stat.uid, stat.gid)
            == (Kind::Regular, file.mode, file.uid, file.gid);
        match as_asked && self.read(path, file.bytes.len())?.as_deref() == Some(file.bytes) {
            true => Ok(()),
            false => Err(Error::Differs(path.to_owned())),
        }
    }

    /// Gives the bytes of the file at `path` to `sink`, piece by piece; gives its length, or `None`: there is none.
    ///
    /// # Errors
    /// As [`read`](Self::read), and what `sink` says.
    pub fn stream(
        &self,
        path: &str,
        max: u64,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<u64>, Error> {
        let mut taken = 0_u64;
        let mut counted = |some: &[u8]| {
            taken += some.len() as u64;
            match taken > max {
                true => Err(io::ErrorKind::FileTooLarge.into()),
                false => sink(some),
            }
        };
        let long = |error| match error {
            Error::Run(RunError::Output(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
                Error::TooLong(path.to_owned())
            }
            Error::Run(RunError::Output(error)) => Error::Kept(error),
            other => other,
        };
        if self.kind == "FAT" {
            let Some(listing) = self.fat_names(path)? else {
                return Ok(None);
            };
            // Of a file, its own name: of a directory, mtype would print what is in it.
            let own = String::from_utf8_lossy(&listing);
            if !own.trim_end().eq_ignore_ascii_case(&["::", path].concat()) {
                return Err(Error::NotA("file", path.to_owned()));
            }
            self.mtools("mtype", path, &mut counted).map_err(long)?;
            return Ok(Some(taken));
        }
        let Some((real, stat)) = self.resolve(path)? else {
            return Ok(None);
        };
        if stat.kind != Kind::Regular {
            return Err(Error::NotA("file", real));
        }
        if stat.size > max {
            return Err(Error::TooLong(real));
        }
        let request = ["cat ", &quoted(&real)?].concat();
        self.debugfs(&["-R", &request], &mut counted)
            .map_err(long)?;
        match taken == stat.size {
            true => Ok(Some(taken)),
            false => Err(Error::Differs(real)),
        }
    }

    /// What debugfs prints of `path`; `None`: it is not there.
    fn ask(&self, what: &str, path: &str, max: usize) -> Result<Option<Vec<u8>>, Error> {
        let request = [what, " ", &quoted(path)?].concat();
        let mut said = Vec::new();
        let asked = self.debugfs(&["-R", &request], &mut bounded(&mut said, max));
        match asked {
            Err(Error::Refused(said)) if MISSING.iter().any(|text| said.contains(text)) => Ok(None),
            asked => asked.map(|()| Some(said)),
        }
    }

    fn change(&self, request: &str) -> Result<(), Error> {
        self.debugfs(&["-w", "-R", request], &mut |_| Ok(()))
    }

    /// Runs debugfs. It ends well whatever became of a request, and complains of what went wrong: a word beyond
    /// its own name and version is a failure.
    fn debugfs(
        &self,
        arguments: &[&str],
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        if self.kind != "ext" {
            return Err(Error::Kind(self.kind));
        }
        let device = format!("{}?offset={}", self.node, self.start);
        let arguments = [arguments, &[device.as_str()]].concat();
        let (ended_well, complaint) = self.run("debugfs", &arguments, output)?;
        let said = complaint
            .strip_prefix("debugfs ")
            .and_then(|rest| rest.split_once(')'))
            .map_or(complaint.as_str(), |(_, said)| said.trim());
        match ended_well && said.is_empty() {
            true => Ok(()),
            false => Err(Error::Refused(said.to_owned())),
        }
    }

    /// What `mdir -b` prints of `path`; `None`: it is not there.
    fn fat_names(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut listing = Vec::new();
        let done = self.mtools("mdir", path, &mut bounded(&mut listing, LISTING));
        match done {
            Err(Error::Refused(said)) if said.ends_with("not found") => Ok(None),
            done => done.map(|()| Some(listing)),
        }
    }

    fn mtools(
        &self,
        program: &'static str,
        path: &str,
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        quoted(path)?;
        // What mtools takes for patterns, drives and separators.
        if path.contains(['*', '?', '[', ']', ':', '\'']) {
            return Err(Error::Name(path.to_owned()));
        }
        let device = format!("{}@@{}", self.node, self.start);
        let path = ["::", path].concat();
        let arguments: &[&str] = match program {
            "mdir" => &["-b", "-i", &device, &path],
            _ => &["-i", &device, &path],
        };
        match self.run(program, arguments, output)? {
            (true, _) => Ok(()),
            (false, said) => Err(Error::Refused(said)),
        }
    }

    fn run(
        &self,
        program: &'static str,
        arguments: &[&str],
        output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(bool, String), Error> {
        let found = process::find(program).ok_or(Error::NoProgram(program))?;
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let run = Run {
            program: &found,
            arguments: &arguments,
            within: WITHIN,
            stop: &self.stop,
        };
        let ended = run.run_with(&CODE_PAGE, output).map_err(Error::Run)?;
        Ok((ended.status.success(), ended.complaint))
    }
}

fn read_at(node: &Path, from: u64, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length];
    let file = File::open(node).map_err(Error::Disk)?;
    let read = file.read_at(&mut bytes, from).map_err(Error::Disk)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn bounded(to: &mut Vec<u8>, max: usize) -> impl FnMut(&[u8]) -> io::Result<()> {
    move |some| {
        to.extend_from_slice(some);
        match to.len() > max {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        }
    }
}

/// `path` as one word of debugfs's language: absolute, so that it is neither `<an inode's number>` nor an option.
fn quoted(path: &str) -> Result<String, Error> {
    match path.starts_with('/') && path.len() <= PATH {
        true => quoted_part(path),
        false => Err(Error::Name(path.to_owned())),
    }
}

fn quoted_part(text: &str) -> Result<String, Error> {
    match text.is_empty() || text.contains(['"', '\\']) || text.contains(char::is_control) {
        true => Err(Error::Name(text.to_owned())),
        false => Ok(["\"", text, "\""].concat()),
    }
}

/// `stat`'s first lines.
pub fn parse_stat(said: &[u8]) -> Option<Stat> {
    let said = String::from_utf8_lossy(said);
    let after = |name: &str| {
        let (_, rest) = said.split_once(name)?;
        rest.split_whitespace().next()
    };
    let kind = match after("Type:")? {
        "regular" => Kind::Regular,
        "directory" => Kind::Directory,
        "symlink" => Kind::Symlink,
        _ => Kind::Other,
    };
    let number = |name| after(name)?.parse().ok();
    let link = said
        .split_once("Fast link dest: \"")
        .and_then(|(_, rest)| rest.rsplit_once('"'));
    Some(Stat {
        kind,
        mode: u32::from_str_radix(after("Mode:")?, 8).ok()?,
        uid: number("User:")?,
        gid: number("Group:")?,
        size: after("Size:")?.parse().ok()?,
        link: link
            .filter(|_| kind == Kind::Symlink)
            .map(|(link, _)| link.to_owned()),
    })
}

/// `ls -p`: `/INODE/MODE/UID/GID/NAME/SIZE/` a line. A name has no slash, so none can make up such a line.
pub fn in_ext(listing: &[u8]) -> Vec<(String, Kind)> {
    let entry = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let fields: Vec<&str> = line.split('/').collect();
        let ["", inode, mode, _, _, name, _, ""] = fields.as_slice() else {
            return None;
        };
        let kind = match u32::from_str_radix(mode, 8).ok()? >> 12 {
            0o10 => Kind::Regular,
            0o4 => Kind::Directory,
            0o12 => Kind::Symlink,
            _ => Kind::Other,
        };
        let good = *inode != "0" && !matches!(*name, "." | "..") && quoted_part(name).is_ok();
        good.then(|| ((*name).to_owned(), kind))
    };
    listing
        .split(|byte| *byte == b'\n')
        .filter_map(entry)
        .collect()
}

/// `mdir -b`: `::/PATH/NAME` a line, and a slash behind directories.
pub fn in_fat(listing: &[u8], path: &str) -> Vec<(String, Kind)> {
    let above = ["::", path.trim_end_matches('/'), "/"].concat();
    let entry = |line: &[u8]| {
        let name = std::str::from_utf8(line).ok()?.strip_prefix(&above)?;
        let (name, kind) = match name.strip_suffix('/') {
            Some(name) => (name, Kind::Directory),
            None => (name, Kind::Regular),
        };
        let good = !name.contains('/') && quoted_part(name).is_ok();
        good.then(|| (name.to_owned(), kind))
    };
    listing
        .split(|byte| *byte == b'\n')
        .filter_map(entry)
        .collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(_) => f.write_str("the disk cannot be read"),
            Self::NoProgram(name) => write!(
                f,
                "this ramdisk has no {name}: boot one that was made with it (TOOLS of tools/ramdisk.sh)"
            ),
            Self::Run(_) => f.write_str("the file system's program was not run to its end"),
            Self::Refused(said) => write!(f, "the file system's program says: {said}"),
            Self::Kind(kind) => write!(f, "the file system is {kind}, and only ext4 is written to"),
            Self::Name(name) => write!(f, "{name:?} is a name that is not asked for"),
            Self::NotA(what, path) => write!(f, "{path} is no {what}"),
            Self::TooLong(path) => write!(f, "{path} is longer than it may be"),
            Self::Unclean(why) => write!(
                f,
                "the file system is not to be written to: {why}; have e2fsck mend it in the image"
            ),
            Self::Differs(path) => write!(f, "{path} is not what was written there"),
            Self::Scratch(_) => f.write_str("no place for a file on its way"),
            Self::Kept(_) => f.write_str("a file cannot be kept"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Disk(error) | Self::Kept(error) => Some(error),
            Self::Run(error) => Some(error),
            Self::Scratch(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
