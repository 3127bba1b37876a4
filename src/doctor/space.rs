//! Whether the state has room to grow.
use super::{Level, Seen, Verdict};

/// The journal at its cap, and as much again while it is rewritten.
const COMFORT: u64 = 128 << 20;

/// Below this nothing new is taken.
const LEAST: u64 = 4 << 20;

/// Files that a renewal, a rewrite and a few outputs need.
const FILES: u64 = 64;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    // Before the first join its parent tells.
    let there = seen.data_dir.ancestors().find(|path| path.exists());
    let Some(there) = there else {
        return Verdict::unseen("its directory cannot be seen", "run it as root");
    };
    let stat = match rustix::fs::statvfs(there) {
        Ok(stat) => stat,
        Err(error) => {
            let why = format!("{}: {}", there.display(), std::io::Error::from(error));
            return Verdict::unseen(&why, "run it as root");
        }
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    // A filesystem that counts no files says 0 of 0.
    let files = (stat.f_files > 0).then_some(stat.f_favail);
    let level = level(free, files);
    let mut evidence = format!("{} MiB free at {}", free >> 20, there.display());
    if let Some(files) = files.filter(|files| *files < FILES) {
        evidence.push_str(&format!(", and only {files} files more can be made"));
    }
    Verdict {
        level,
        evidence,
        remedy: match level {
            Level::Ok => String::new(),
            _ => format!(
                "free some space there: the journal may need {} MiB",
                COMFORT >> 20
            ),
        },
    }
}

fn level(free: u64, files: Option<u64>) -> Level {
    let few = |least| files.is_some_and(|files| files < least);
    if free < LEAST || few(4) {
        Level::Fail
    } else if free < COMFORT || few(FILES) {
        Level::Warn
    } else {
        Level::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_or_too_few_files_is_noticed() {
        assert_eq!(level(COMFORT, None), Level::Ok);
        assert_eq!(level(COMFORT, Some(FILES)), Level::Ok);
        assert_eq!(level(COMFORT - 1, Some(1000)), Level::Warn);
        assert_eq!(level(COMFORT, Some(FILES - 1)), Level::Warn);
        assert_eq!(level(LEAST - 1, None), Level::Fail);
        assert_eq!(level(COMFORT, Some(0)), Level::Fail);
    }
}
