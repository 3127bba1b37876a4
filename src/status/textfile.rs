//! Metrics in a file, for node_exporter's textfile collector.
//!
//! Written when something has changed, and at each heartbeat, so that its age tells whether bcd node
//! lives; never by a timer of its own while there is a session. Readers find the old page or the new
//! one, whole. Nothing is flushed to the disk.
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::Source;
use super::metrics::{Dialect, page};
use crate::rt;
use crate::sys::fs::{Dir, Error};
use crate::sys::log::{self, Level, Value};

/// Changes within this time are written together.
const TOGETHER: Duration = Duration::from_secs(1);

/// node_exporter runs as another user.
const MODE: u32 = 0o644;

/// Keeps the file at `path`. Never ends.
pub async fn write(path: PathBuf, source: Rc<Source>) {
    loop {
        let board = &source.board;
        let (rung, beats) = (board.news().count(), board.beats().count());
        let position = source.journal.status().position;
        let text = page(&source.snapshot(), Dialect::Prometheus);
        let to = path.clone();
        let written = rt::blocking("metrics", move || put(&to, &text)).await;
        let failed: Option<Box<dyn std::error::Error>> = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.into()),
            Err(error) => Some(error.into()),
        };
        if let Some(error) = failed {
            let fields = [
                ("path", Value::Shown(&path.display())),
                ("error", Value::Chain(&*error)),
                (
                    "do",
                    Value::Text(
                        "make the directory of [metrics] textfile writable for bcd node \
                         (ReadWritePaths= in its unit), or choose another",
                    ),
                ),
            ];
            log::event(Level::Warn, "metrics.not_written", &fields);
        }
        let changed = rt::select(board.news().since(rung), source.journal.news(position));
        rt::select(changed, board.beats().since(beats)).await;
        rt::sleep(TOGETHER).await;
    }
}

fn put(path: &Path, text: &str) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().and_then(|name| name.to_str());
    Dir::open(parent)?.replace(name.unwrap_or_default(), text.as_bytes(), MODE)
}
