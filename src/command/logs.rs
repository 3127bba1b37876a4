//! `logs.collect`: the newest part of the system's journal or of a file beneath /var/log, kept as an
//! output for the control plane to fetch.
//!
//! Nothing of the params reaches a shell or an option: journalctl's arguments are of fixed form, a unit's
//! name stands behind `--unit=`, and only characters that units have are let through. A file is opened
//! beneath its directory, so that no path and no symlink leads out, and only a regular file is read.
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kinds::{decode, explained};
use super::machine::{Failure, Outcome};
use super::outputs::{CHUNK, Spool};
use super::work::{Context, UNKNOWN};
use crate::proto::{
    FileSource, JournalctlSource, LogsCollectParams, LogsCollectParamsSource, LogsCollectResult,
    Message,
};
use crate::sys::fs::{Cause, Dir, Error};
use crate::sys::process::{Run, find};

/// docs/protocol.md 6.
const MAX: u64 = 16 * 1024 * 1024;
const DEFAULT: u64 = 1024 * 1024;
const UNIT: usize = 255;
const PATH: usize = 1024;
const BOOTS: i32 = 1000;

const DIRECTORY: &str = "/var/log";

/// What is to be collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collect {
    source: Source,
    max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// journalctl's arguments.
    Journalctl(Vec<String>),
    /// Relative to [`DIRECTORY`].
    File(String),
}

impl Collect {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: LogsCollectParams = decode(params)?;
        let max = match params.max_bytes {
            0 => DEFAULT,
            max if max <= MAX => max,
            max => return Err(format!("max_bytes is {max}, more than {MAX}")),
        };
        let source = match params.source {
            Some(LogsCollectParamsSource::Journalctl(source)) => {
                Source::Journalctl(arguments(&source)?)
            }
            Some(LogsCollectParamsSource::File(source)) => Source::File(beneath(source)?),
            None => return Err("no source: journalctl or file".to_owned()),
        };
        Ok(Self { source, max })
    }

    /// # Errors
    /// Why there is no output.
    pub fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let mut spool = context.outputs.begin(context.id, self.max)?;
        let cut = match &self.source {
            Source::Journalctl(arguments) => journalctl(arguments, &mut spool, context),
            Source::File(path) => file(&directory(), path, self.max, &mut spool, context),
        };
        let cut = match cut {
            Ok(cut) => cut,
            Err(failure) => {
                spool.abandon();
                return Err(failure);
            }
        };
        let stored = spool.finish(cut)?;
        let result = LogsCollectResult {
            size: stored.size,
            sha256: stored.sha256.to_vec(),
            truncated: stored.cut,
        };
        Ok(Outcome::Succeeded(result.encode_to_vec()))
    }
}

/// journalctl's arguments.
fn arguments(source: &JournalctlSource) -> Result<Vec<String>, String> {
    let mut arguments: Vec<String> = ["--no-pager", "--quiet", "--output=short-iso-precise"]
        .map(str::to_owned)
        .into();
    if !source.unit.is_empty() {
        if !is_unit(&source.unit) {
            return Err(format!("{:?} is no unit's name", source.unit));
        }
        arguments.push(format!("--unit={}", source.unit));
    }
    for (option, at) in [("since", source.since_ms), ("until", source.until_ms)] {
        match u64::try_from(at) {
            Ok(0) => {}
            Ok(at) => arguments.push(format!("--{option}=@{}.{:03}", at / 1000, at % 1000)),
            Err(_) => return Err(format!("{option}_ms is before 1970")),
        }
    }
    if source.until_ms != 0 && source.until_ms < source.since_ms {
        return Err("until_ms is before since_ms".to_owned());
    }
    match source.boot {
        None => {}
        Some(boot) if (-BOOTS..=0).contains(&boot) => arguments.push(format!("--boot={boot}")),
        Some(boot) => return Err(format!("boot is {boot}, not one of -{BOOTS} .. 0")),
    }
    if source.kernel {
        arguments.push("--dmesg".to_owned());
    }
    Ok(arguments)
}

/// systemd.unit(5): letters, digits and `:-_.\@`. Patterns (`*?[]`) are not among them.
fn is_unit(name: &str) -> bool {
    name.len() <= UNIT
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte))
}

fn beneath(source: FileSource) -> Result<String, String> {
    let path = source.path;
    let relative = path
        .strip_prefix(DIRECTORY)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(&path);
    if relative.is_empty() || relative.len() > PATH || relative.contains('\0') {
        return Err(format!("path is empty or longer than {PATH} bytes"));
    }
    if relative.starts_with('/') {
        return Err(format!("path {path:?} is not beneath {DIRECTORY}"));
    }
    Ok(relative.to_owned())
}

fn journalctl(
    arguments: &[String],
    spool: &mut Spool,
    context: &mut Context,
) -> Result<bool, Failure> {
    let program = find("journalctl")
        .ok_or_else(|| Failure::new("NotFound", "this machine has no journalctl"))?;
    let run = Run {
        program: &program,
        arguments,
        // The command's own time ends first.
        within: context.limit + Duration::from_secs(5),
        stop: &context.stop,
    };
    let progress = &mut context.progress;
    let mut failed = None;
    let ended = run.run(&mut |bytes| {
        progress.say(UNKNOWN, || format!("{} bytes read", spool.pushed()));
        spool.push(bytes).map_err(|failure| {
            failed = Some(failure);
            io::Error::other("the output cannot be kept")
        })
    });
    if let Some(failure) = failed {
        return Err(failure);
    }
    let ended = ended.map_err(|error| explained("CollectFailed", &error))?;
    if ended.status.success() {
        Ok(false)
    } else {
        let message = format!("journalctl: {}: {}", ended.status, ended.complaint);
        Err(Failure::new("CollectFailed", message))
    }
}

/// Where files are; a test's machine has its own.
fn directory() -> PathBuf {
    #[cfg(feature = "fakehw")]
    if let Some(directory) = std::env::var_os("BCD_FAKEHW_LOGS") {
        return directory.into();
    }
    DIRECTORY.into()
}

/// The last `max` bytes of the file; whether there were more.
fn file(
    directory: &Path,
    path: &str,
    max: u64,
    spool: &mut Spool,
    context: &mut Context,
) -> Result<bool, Failure> {
    let mut file = Dir::open(directory)
        .and_then(|dir| dir.open_beneath(path))
        .map_err(|error| unreadable(&error))?;
    let failed = |error: io::Error| explained("CollectFailed", &error);
    let size = file.metadata().map_err(failed)?.len();
    let start = size.saturating_sub(max);
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    // What is appended meanwhile is left out: a busy log would be read for ever.
    let mut rest = file.take(size - start);
    let mut chunk = vec![0; CHUNK];
    loop {
        if context.stop.is_said() {
            return Err(Failure::new("Cancelled", "stopped"));
        }
        let length = match rest.read(&mut chunk) {
            Ok(0) => return Ok(start > 0),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        spool.push(chunk.get(..length).unwrap_or_default())?;
        let percent = spool.pushed().saturating_mul(100) / (size - start).max(1);
        context
            .progress
            .say(u32::try_from(percent).unwrap_or(UNKNOWN), String::new);
    }
}

fn unreadable(error: &Error) -> Failure {
    let reason = match error.cause() {
        _ if error.is_missing() => "NotFound",
        Cause::Escapes | Cause::NotRegular(_) | Cause::BadName => "InvalidParams",
        _ => "CollectFailed",
    };
    explained(reason, error)
}

#[cfg(test)]
mod tests;
