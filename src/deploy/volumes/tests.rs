#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::sys::fs::tests::scratch;

/// Where the file system stands on the disks of these tests.
const START: u64 = 3 << 20;

/// A disk in a file, its file system of 24 MiB made by `program`.
struct Image {
    dir: PathBuf,
    node: PathBuf,
    stop: Stop,
}

impl Image {
    fn new(name: &str, files: impl FnOnce(&Path)) -> Self {
        let dir = scratch(name);
        let from = dir.join("from");
        std::fs::create_dir(&from).unwrap();
        files(&from);
        let node = dir.join("disk");
        File::create(&node).unwrap().set_len(32 << 20).unwrap();
        let place = format!("offset={START}");
        run(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-t",
                "ext4",
                "-E",
                &place,
                "-d",
                &text(&from),
                &text(&node),
                "24M",
            ],
        );
        let stop = Stop::new().unwrap();
        Self { dir, node, stop }
    }

    fn volume(&self) -> Volume {
        Volume::open(&self.node, START, &self.stop).unwrap()
    }

    fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    /// e2fsck finds nothing to mend.
    fn is_sound(&self) {
        run(
            "e2fsck",
            &["-fn", &format!("{}?offset={START}", text(&self.node))],
        );
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(process::find(program).unwrap())
        .args(arguments)
        .output()
        .unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
}

fn root_only(bytes: &[u8]) -> New<'_> {
    New {
        bytes,
        mode: 0o600,
        uid: 0,
        gid: 0,
    }
}

#[test]
fn what_is_written_is_there_with_its_mode_and_the_file_system_is_sound() {
    let image = Image::new("volume-write", |from| {
        std::fs::create_dir_all(from.join("usr/lib")).unwrap();
        std::fs::create_dir_all(from.join("real/var")).unwrap();
        std::os::unix::fs::symlink("real/var", from.join("var")).unwrap();
    });
    let volume = image.volume();
    volume.is_writable().unwrap();
    let long = vec![b'x'; 3_000_000];
    let owned = New {
        bytes: b"",
        mode: 0o640,
        uid: 70_000,
        gid: 8,
    };
    for (directory, name, file) in [
        ("/etc/bcd", "config.toml", root_only(b"secret\n")),
        ("/etc/bcd", "a name of words", root_only(&long)),
        ("/var/lib/cloud", "empty", owned),
    ] {
        let path = [&volume.make_directory(directory, 0o700).unwrap(), "/", name].concat();
        for _ in 0..2 {
            volume.write(&path, &file, &image.scratch()).unwrap();
            volume.holds(&path, &file).unwrap();
        }
        let other = New {
            bytes: file.bytes,
            mode: 0o644,
            uid: file.uid,
            gid: file.gid,
        };
        assert!(matches!(
            volume.holds(&path, &other),
            Err(Error::Differs(_))
        ));
    }
    let made = volume.stat("/etc/bcd").unwrap().unwrap();
    assert_eq!(
        (made.kind, made.mode, made.uid),
        (Kind::Directory, 0o700, 0)
    );
    assert_eq!(volume.stat("/etc").unwrap().unwrap().mode, 0o755);
    let real = volume.stat("/real/var/lib/cloud/empty").unwrap().unwrap();
    assert_eq!((real.mode, real.uid, real.gid), (0o640, 70_000, 8));
    assert!(std::fs::read_dir(image.scratch()).unwrap().next().is_none());
    image.is_sound();
}

#[test]
fn links_are_followed_and_loops_are_not() {
    let image = Image::new("volume-links", |from| {
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, from.join(at)).unwrap();
        std::fs::create_dir_all(from.join("usr/lib")).unwrap();
        std::fs::create_dir_all(from.join("etc")).unwrap();
        std::fs::write(from.join("usr/lib/os-release"), "ID=debian\n").unwrap();
        link("../usr/lib/os-release", "etc/os-release");
        link("usr/lib", "lib");
        link(&["/", &"./".repeat(50), "lib/os-release"].concat(), "slow");
        link("loop", "loop");
        link("gone", "dangling");
        link("x\"\nrm /slow", "evil");
    });
    let volume = image.volume();
    for path in ["/etc/os-release", "/lib/os-release", "/slow"] {
        let read = volume.read(path, 100).unwrap();
        assert_eq!(read.as_deref(), Some(&b"ID=debian\n"[..]), "{path}");
    }
    for path in [
        "/dangling",
        "/nothing",
        "/nothing/here",
        "/usr/lib/os-release/x",
    ] {
        assert!(volume.read(path, 100).unwrap().is_none(), "{path}");
    }
    assert!(matches!(
        volume.read("/loop", 100),
        Err(Error::NotA(..) | Error::Refused(_))
    ));
    assert!(matches!(volume.read("/evil", 100), Err(Error::Name(_))));
    assert!(matches!(
        volume.read("/etc", 100),
        Err(Error::NotA("file", _))
    ));
    assert!(matches!(volume.read("/slow", 9), Err(Error::TooLong(_))));
    assert!(matches!(
        volume.list("/slow"),
        Err(Error::NotA("directory", _))
    ));
    let mut streamed = 0;
    let mut count = |some: &[u8]| {
        streamed += some.len();
        Ok(())
    };
    assert_eq!(volume.stream("/slow", 10, &mut count).unwrap(), Some(10));
    assert_eq!(streamed, 10);
    let mut names = volume.list("/").unwrap().unwrap();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<_> = names
        .iter()
        .map(|(name, kind)| (name.as_str(), *kind))
        .collect();
    assert_eq!(names[0], ("dangling", Kind::Symlink));
    assert!(names.contains(&("usr", Kind::Directory)));
    assert_eq!(volume.list("/nothing").unwrap(), None);
}

#[test]
fn names_that_could_be_taken_for_something_else_are_neither_asked_for_nor_listed() {
    let image = Image::new("volume-names", |from| {
        for name in [
            "good name",
            "two\nlines",
            "a\"quote",
            "back\\slash",
            "9\n",
            "-x",
            "<2>",
        ] {
            std::fs::write(from.join(name), name).unwrap();
        }
    });
    let volume = image.volume();
    let mut names: Vec<_> = volume
        .list("/")
        .unwrap()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    names.sort();
    assert_eq!(names, ["-x", "<2>", "good name", "lost+found"]);
    for name in ["-x", "<2>", "good name"] {
        let read = volume.read(&["/", name].concat(), 100).unwrap();
        assert_eq!(read.as_deref(), Some(name.as_bytes()));
    }
    for path in [
        "",
        "etc",
        "<2>",
        "-R",
        "/two\nlines",
        "/a\"quote",
        "/back\\slash",
        "/\u{7f}",
    ] {
        assert!(
            matches!(volume.read(path, 9), Err(Error::Name(_))),
            "{path:?}"
        );
        assert!(matches!(
            volume.write(path, &root_only(b""), &image.scratch()),
            Err(Error::Name(_))
        ));
    }
    assert!(matches!(
        volume.read(&["/", &"x".repeat(PATH)].concat(), 9),
        Err(Error::Name(_))
    ));
}

#[test]
fn a_directory_or_a_link_is_no_place_for_a_file() {
    let image = Image::new("volume-places", |from| {
        std::fs::create_dir(from.join("directory")).unwrap();
        std::fs::write(from.join("file"), "").unwrap();
        std::os::unix::fs::symlink("/file", from.join("link")).unwrap();
    });
    let volume = image.volume();
    for path in ["/directory", "/link"] {
        let refused = volume.write(path, &root_only(b"x"), &image.scratch());
        assert!(matches!(refused, Err(Error::NotA("file", _))));
    }
    assert!(matches!(
        volume.make_directory("/file/x", 0o700),
        Err(Error::NotA("directory", _))
    ));
    let refused = volume.write("/nothing/x", &root_only(b"x"), &image.scratch());
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    // No room: what debugfs wrote of it is not taken for all of it.
    let long = vec![1; 30 << 20];
    let refused = volume.write("/long", &root_only(&long), &image.scratch());
    assert!(refused.is_err() || volume.holds("/long", &root_only(&long)).is_err());
}

#[test]
fn what_is_damaged_or_was_not_unmounted_is_not_written_to() {
    let image = Image::new("volume-unclean", |_| {});
    let volume = image.volume();
    let superblock = read_at(&image.node, START + SUPERBLOCK, 1024).unwrap();
    let byte = |at: usize, byte: u8| {
        let whole = OpenOptions::new().write(true).open(&image.node).unwrap();
        whole.write_all_at(&superblock, START + SUPERBLOCK).unwrap();
        let place = START + SUPERBLOCK + at as u64;
        whole.write_all_at(&[byte], place).unwrap();
    };
    volume.is_writable().unwrap();
    for (at, to, why) in [
        (STATE, CLEAN | ERRORS, "errors"),
        (STATE, 0, "unmounted"),
        (NEEDED, superblock[NEEDED] | RECOVER, "journal"),
    ] {
        byte(at, to);
        let refused = volume.is_writable().unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    byte(0x38, 0);
    let nothing = image.volume();
    assert_eq!(nothing.kind(), "unknown");
    assert!(matches!(nothing.is_writable(), Err(Error::Kind("unknown"))));
    assert!(matches!(nothing.read("/x", 1), Err(Error::Kind("unknown"))));
}

#[test]
fn fat_is_read_whatever_the_case_of_its_names() {
    let dir = scratch("volume-fat");
    let node = dir.join("disk");
    File::create(&node).unwrap().set_len(16 << 20).unwrap();
    std::fs::write(dir.join("loader"), "loader").unwrap();
    let place = format!("{}@@{START}", text(&node));
    run(
        "mformat",
        &["-i", &place, "-T", "16384", "-h", "16", "-s", "63", "::"],
    );
    run("mmd", &["-i", &place, "::/EFI", "::/EFI/BOOT"]);
    run(
        "mcopy",
        &[
            "-i",
            &place,
            &text(&dir.join("loader")),
            "::/EFI/BOOT/BOOTX64.EFI",
        ],
    );
    let volume = Volume::open(&node, START, &Stop::new().unwrap()).unwrap();
    assert_eq!(volume.kind(), "FAT");
    for path in ["/EFI/BOOT/BOOTX64.EFI", "/efi/boot/bootx64.efi"] {
        assert_eq!(
            volume.read(path, 10).unwrap().as_deref(),
            Some(&b"loader"[..])
        );
    }
    assert_eq!(volume.read("/EFI/none", 10).unwrap(), None);
    assert!(matches!(
        volume.read("/EFI/BOOT", 10),
        Err(Error::NotA("file", _))
    ));
    assert!(matches!(
        volume.read("/EFI/BOOT/BOOTX64.EFI", 5),
        Err(Error::TooLong(_))
    ));
    assert!(matches!(volume.read("/EFI/*", 10), Err(Error::Name(_))));
    assert_eq!(
        volume.list("/").unwrap().unwrap(),
        [("EFI".to_owned(), Kind::Directory)]
    );
    assert_eq!(
        volume.list("/EFI/BOOT").unwrap().unwrap(),
        [("BOOTX64.EFI".to_owned(), Kind::Regular)]
    );
    assert_eq!(volume.list("/nothing").unwrap(), None);
    assert!(matches!(volume.is_writable(), Err(Error::Kind("FAT"))));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_the_programs_print_is_taken_as_foreign() {
    for text in [
        "",
        "Type: regular",
        "Inode: 1 Type: regular Mode: 9 \nUser: 0 Group: 0 Size: 1",
    ] {
        assert_eq!(parse_stat(text.as_bytes()), None);
    }
    for line in [
        "/0/100644/0/0/gone/1/",
        "/1/x/0/0/a/1/",
        "/1/100644/0/0/a/1",
        "/1/100644/0/0/a/b/1/",
    ] {
        assert!(in_ext(line.as_bytes()).is_empty(), "{line}");
    }
    assert!(in_fat(b"::/b/x\n::/a/x/y\n\xff\n", "/a").is_empty());
}
