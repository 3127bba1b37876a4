//! Compression by the tools that do it: zstd(1) for the image; zstd(1), xz(1) and gzip(1) for modules that
//! a distribution ships compressed.
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::problem::Problem;
use crate::tree;

/// The largest kernel module, unpacked; the largest in use (amdgpu) has about 30 MiB.
const MAX_MODULE: usize = 256 * 1024 * 1024;

/// A zstd(1) that compresses what is written to it into a file.
pub struct Zstd {
    child: Child,
    input: Option<ChildStdin>,
}

impl Zstd {
    /// Starts it, with `output` as its standard output. The window stays below what the kernel's
    /// unpacker takes (128 MiB) at every level from 1 to 19; one thread, since how work is split shows in
    /// the bytes.
    ///
    /// # Errors
    /// There is no zstd(1).
    pub fn start(level: u8, output: File) -> Result<Self, Problem> {
        let mut child = Command::new("zstd")
            .args(["-q", "-c", "--single-thread", "--no-check"])
            .arg(format!("-{level}"))
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .map_err(|error| missing("zstd", error))?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// zstd(1) failed.
    pub fn finish(mut self) -> Result<(), Problem> {
        self.input = None;
        let status = self
            .child
            .wait()
            .map_err(|error| Problem::with("wait for", Path::new("zstd"), error))?;
        if status.success() {
            Ok(())
        } else {
            Err(Problem::new(format!("zstd failed: {status}")))
        }
    }
}

impl Write for Zstd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.input {
            Some(input) => input.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Starts a zstd(1) that unpacks `input`.
///
/// # Errors
/// There is no zstd(1).
pub fn unzstd(input: File) -> Result<(Child, impl Read), Problem> {
    unpack("zstd", &["-q", "-d", "-c", "--long=27"], input)
}

/// The content of a module's file, unpacked by what its name ends in.
///
/// # Errors
/// It cannot be read, is too large, or does not unpack.
pub fn unpacked_module(path: &Path) -> Result<Vec<u8>, Problem> {
    let (program, arguments): (_, &[&str]) =
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("zst") => ("zstd", &["-q", "-d", "-c"]),
            Some("xz") => ("xz", &["-q", "-d", "-c"]),
            Some("gz") => ("gzip", &["-d", "-c"]),
            _ => return tree::read(path, MAX_MODULE),
        };
    let input = File::open(path).map_err(|error| Problem::with("read", path, error))?;
    let (mut child, output) = unpack(program, arguments, input)?;
    let mut content = Vec::new();
    let read = output.take(MAX_MODULE as u64 + 1).read_to_end(&mut content);
    // Its output is closed by now: a program that had more to say ends.
    let status = child.wait();
    match (read, status) {
        (Ok(_), _) if content.len() > MAX_MODULE => Err(Problem::new(format!(
            "{} unpacks to more than 256 MiB",
            path.display()
        ))),
        (Ok(_), Ok(status)) if status.success() => Ok(content),
        (Ok(_), Ok(status)) => Err(Problem::new(format!(
            "{} does not unpack: {program}: {status}",
            path.display()
        ))),
        (Err(error), _) | (_, Err(error)) => Err(Problem::with("unpack", path, error)),
    }
}

fn unpack(
    program: &str,
    arguments: &[&str],
    input: File,
) -> Result<(Child, impl Read + use<>), Problem> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| missing(program, error))?;
    match child.stdout.take() {
        Some(output) => Ok((child, output)),
        None => Err(Problem::new(format!("{program} has no output"))),
    }
}

fn missing(program: &str, error: io::Error) -> Problem {
    Problem::with(
        "run (install the package of that name)",
        Path::new(program),
        error,
    )
}
