//! The public downloads route: `GET {basePath}/downloads/{product}/{version}/{os}-{arch}`.
//!
//! Promises: the path matches one strict pattern and names one file of one flat directory; nothing else
//! on the disk can be reached, no symlink is followed, and everything else is 404.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

use std::fs::File;

use bcd::sys::fs::{Dir, Kind};
use bcd::update::manifest::is_version;

/// The name of the file that answers `rest`, the path after `{basePath}/downloads/` as it was sent;
/// `None` for whatever does not match the pattern.
pub fn file_name(rest: &str) -> Option<String> {
    let mut parts = rest.split('/');
    let (product, version, platform) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let suffix = match product {
        "bcd" => "",
        "bcx-ipmi" => ".tar.gz",
        _ => return None,
    };
    let version = version.strip_prefix('v').unwrap_or(version);
    if !is_version(version) {
        return None;
    }
    let arch = platform.strip_prefix("linux-")?;
    matches!(arch, "amd64" | "arm64").then(|| format!("{product}_{version}_linux_{arch}{suffix}"))
}

/// Opens the regular file `name` of `dir`; `None` when there is none.
pub fn open(dir: &Dir, name: &str) -> Option<(File, u64)> {
    if dir.kind(name).ok()? != Some(Kind::Regular) {
        return None;
    }
    let file = dir.open_beneath(name).ok()?;
    let length = file.metadata().ok()?.len();
    Some((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::TempDir;

    #[test]
    fn the_pattern_names_exactly_one_file() {
        for (path, name) in [
            ("bcd/0.1.0/linux-amd64", "bcd_0.1.0_linux_amd64"),
            ("bcd/v1.2.3/linux-arm64", "bcd_1.2.3_linux_arm64"),
            ("bcd/1.2.3-rc.1/linux-amd64", "bcd_1.2.3-rc.1_linux_amd64"),
            ("bcd/1.2.3+b.5/linux-amd64", "bcd_1.2.3+b.5_linux_amd64"),
            (
                "bcx-ipmi/0.1.0/linux-amd64",
                "bcx-ipmi_0.1.0_linux_amd64.tar.gz",
            ),
        ] {
            assert_eq!(file_name(path).as_deref(), Some(name));
        }
    }

    #[test]
    fn everything_else_matches_nothing() {
        for path in [
            "",
            "/",
            "bcd",
            "bcd/0.1.0",
            "bcd/0.1.0/",
            "bcd/0.1.0/linux-amd64/",
            "bcd/0.1.0/linux-amd64/x",
            "/bcd/0.1.0/linux-amd64",
            "bcd//linux-amd64",
            "BCD/0.1.0/linux-amd64",
            "better-compute/0.1.0/linux-amd64",
            "bcd/0.1/linux-amd64",
            "bcd/vv0.1.0/linux-amd64",
            "bcd/0.1.0.0/linux-amd64",
            "bcd/00.1.0/linux-amd64",
            "bcd/../linux-amd64",
            "bcd/0.1.0-../linux-amd64",
            "bcd/0.1.0-/linux-amd64",
            "bcd/0.1.0-a_b/linux-amd64",
            "bcd/0.1.0%2f..%2f../linux-amd64",
            "bcd/0.1.0%00/linux-amd64",
            "bcd/0.1.0\0/linux-amd64",
            "bcd/0.1.0\\..\\x/linux-amd64",
            "bcd/0.1.0/linux-amd64%2f..",
            "bcd/0.1.0/linux-x86_64",
            "bcd/0.1.0/windows-amd64",
            "bcd/0.1.0/linux_amd64",
            "bcd/0.1.0/linux-",
            "bcd/0.1.0/linux-amd64?x",
            &format!("bcd/0.1.0-{}/linux-amd64", "a".repeat(64)),
        ] {
            assert_eq!(file_name(path), None, "{path:?}");
        }
    }

    #[test]
    fn only_regular_files_of_the_directory_itself_are_opened() {
        let temp = TempDir::new();
        std::fs::create_dir(temp.0.join("d")).unwrap();
        std::fs::write(temp.0.join("secret"), b"secret").unwrap();
        std::fs::write(temp.0.join("d/real"), b"bytes").unwrap();
        std::os::unix::fs::symlink("../secret", temp.0.join("d/out")).unwrap();
        std::os::unix::fs::symlink("real", temp.0.join("d/in")).unwrap();
        std::fs::create_dir(temp.0.join("d/dir")).unwrap();
        let dir = Dir::open(&temp.0.join("d")).unwrap();
        assert_eq!(open(&dir, "real").unwrap().1, 5);
        for name in ["out", "in", "dir", "missing", "../secret", ".", ""] {
            assert!(open(&dir, name).is_none(), "{name}");
        }
    }
}
