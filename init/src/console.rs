//! Every console named on the command line: what init and its children say goes to all of them, since
//! nobody knows which one a person is looking at. One that is stuck holds up none of the others for long.
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long one console may take for one piece of text.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The open consoles.
pub struct Consoles {
    open: Vec<(String, File)>,
}

impl Consoles {
    /// Opens the named ones (below /dev), or /dev/console when none of them opens. One that does not
    /// open is in the second part of the answer.
    pub fn open(names: &[String]) -> (Self, Vec<String>) {
        let mut open = Vec::new();
        let mut complaints = Vec::new();
        for name in names {
            match device(name) {
                Ok(file) => open.push((name.clone(), file)),
                Err(error) => {
                    complaints.push(format!("the console /dev/{name} does not open: {error}"))
                }
            }
        }
        if open.is_empty() {
            open.extend(device("console").map(|file| ("console".to_owned(), file)));
        }
        (Self { open }, complaints)
    }

    /// Their names below /dev.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.open.iter().map(|(name, _)| name.as_str())
    }

    /// Writes `text` to all of them. A serial line needs a carriage return too, which the terminal adds.
    pub fn write(&mut self, text: &[u8]) {
        for (name, console) in &mut self.open {
            let mut rest = text;
            if put(console, &mut rest).is_err()
                && let Ok(again) = device(name)
            {
                // A shell that ends hangs its terminal up, for everybody who had it open.
                *console = again;
                let _ = put(console, &mut rest);
            }
        }
    }
}

/// Writes what it can of `rest`, which is what is left. A console that is stuck is left so.
fn put(console: &mut File, rest: &mut &[u8]) -> std::io::Result<()> {
    while !rest.is_empty() {
        match console.write(rest) {
            Ok(written @ 1..) => *rest = rest.get(written..).unwrap_or_default(),
            Ok(0) => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(console, PollFlags::OUT)];
                if !matches!(poll(&mut ready, Some(&PATIENCE)), Ok(1..)) {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn device(name: &str) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
        .open(Path::new("/dev").join(name))
}
