use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

/// A fresh empty directory under the system's temporary one, named for its test and removed when
/// its thread, which is its test, ends.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let nonce = u64::from_le_bytes(crate::sys::random::bytes().unwrap());
    let path = std::env::temp_dir().join(format!("bcd-{name}-{nonce:016x}"));
    std::fs::create_dir(&path).unwrap();
    remove_later(&path);
    path
}

/// Has a directory just made removed when this thread ends.
pub(crate) fn remove_later(path: &Path) {
    SCRATCH.with_borrow_mut(|made| made.0.push(path.to_owned()));
}

/// Mounts a tmpfs on `path`, for this thread alone and as long as it lives; `false` where that is not
/// permitted.
pub(crate) fn mount_tmpfs(path: &Path, options: &str) -> bool {
    let text = |text: &[u8]| std::ffi::CString::new(text).unwrap();
    let (none, root, tmpfs) = (text(b"none"), text(b"/"), text(b"tmpfs"));
    let (path, options) = (text(path.as_os_str().as_bytes()), text(options.as_bytes()));
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: valid, terminated strings; the namespace is this thread's own.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                std::ptr::null(),
                private,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                tmpfs.as_ptr(),
                path.as_ptr(),
                tmpfs.as_ptr(),
                0,
                options.as_ptr().cast(),
            ) == 0
    }
}

/// Mounts what [`mount_tmpfs`] mounted read-only.
pub(crate) fn remount_read_only(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    let none: *const libc::c_void = std::ptr::null();
    // SAFETY: a valid, terminated path; the namespace is this thread's own.
    let done = unsafe { libc::mount(none.cast(), path.as_ptr(), none.cast(), flags, none) };
    assert_eq!(done, 0);
}

/// Makes `uid` the effective user of this thread alone; `false` where that is not permitted.
pub(crate) fn become_user(uid: u32) -> bool {
    // SAFETY: the raw call changes the calling thread only, and reads no memory.
    unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) == 0 }
}

pub(crate) fn make_fifo(path: &Path) {
    let fifo = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a valid, terminated path.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
}

struct Scratch(Vec<PathBuf>);

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch(Vec::new())) };
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn dir(name: &str) -> Dir {
    Dir::open(&scratch(name)).unwrap()
}

fn mode(dir: &Dir, name: &str) -> u32 {
    std::fs::metadata(dir.join(name)).unwrap().mode() & 0o7777
}

#[test]
fn a_write_is_read_back_with_its_mode_whatever_the_umask() {
    let dir = dir("mode");
    for wanted in [0o600, 0o644, 0o666, 0o640] {
        dir.write_atomic("file", b"bytes", wanted).unwrap();
        assert_eq!(mode(&dir, "file"), wanted);
        assert_eq!(dir.read("file", 5).unwrap(), b"bytes");
    }
    assert!(!dir.exists("file.new").unwrap());
}

#[test]
fn a_leftover_of_a_crash_is_neither_reused_nor_in_the_way() {
    let dir = dir("leftover");
    std::fs::write(dir.join("key.new"), "half of a much longer old file").unwrap();
    std::fs::set_permissions(dir.join("key.new"), PermissionsExt::from_mode(0o666)).unwrap();
    let old = std::fs::File::open(dir.join("key.new")).unwrap();
    dir.write_atomic("key", b"whole", 0o600).unwrap();
    assert_eq!(dir.read("key", 100).unwrap(), b"whole");
    assert_eq!(mode(&dir, "key"), 0o600);
    assert_ne!(
        old.metadata().unwrap().ino(),
        std::fs::metadata(dir.join("key")).unwrap().ino()
    );
}

#[test]
fn a_leftover_symlink_is_not_written_through() {
    let dir = dir("leftover-link");
    std::fs::write(dir.join("victim"), "kept").unwrap();
    symlink("victim", dir.join("key.new")).unwrap();
    dir.write_atomic("key", b"new", 0o600).unwrap();
    assert_eq!(dir.read("victim", 100).unwrap(), b"kept");
    assert_eq!(dir.kind("key").unwrap(), Some(Kind::Regular));
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_replaced() {
    let dir = dir("irregular");
    std::fs::write(dir.join("file"), "x").unwrap();
    symlink("file", dir.join("link")).unwrap();
    std::fs::create_dir(dir.join("folder")).unwrap();
    make_fifo(&dir.join("fifo"));
    for (name, text) in [
        ("link", "it is a symlink, not a regular file"),
        ("folder", "it is a directory, not a regular file"),
        ("fifo", "it is a device, pipe or socket, not a regular file"),
    ] {
        let read = dir.read(name, 10).unwrap_err();
        assert!(matches!(read.cause(), Cause::NotRegular(_)), "{read}");
        let write = dir.write_atomic(name, b"y", 0o600).unwrap_err();
        assert_eq!(
            write.to_string(),
            format!("cannot replace {}: {text}", dir.join(name).display())
        );
    }
    assert_eq!(dir.read("file", 10).unwrap(), b"x");
}

#[test]
fn a_file_longer_than_the_bound_is_refused() {
    let dir = dir("bound");
    dir.write_atomic("file", b"12345", 0o600).unwrap();
    assert_eq!(dir.read("file", 5).unwrap(), b"12345");
    let error = dir.read("file", 4).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { max: 4 }));
    assert!(error.to_string().ends_with("it is longer than 4 bytes"));
    // Files of /proc have no length until they are read.
    let proc = Dir::open(Path::new("/proc/self")).unwrap();
    assert!(proc.read("status", 10).is_err());
    assert!(proc.read("status", 1 << 20).unwrap().starts_with(b"Name:"));
}

#[test]
fn a_name_is_one_component() {
    let dir = dir("names");
    for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "nul\0"] {
        assert!(
            matches!(dir.read(name, 1).unwrap_err().cause(), Cause::BadName),
            "{name:?}"
        );
        let error = dir.write_atomic(name, b"", 0o600).unwrap_err();
        assert!(matches!(error.cause(), Cause::BadName), "{name:?}");
        assert!(dir.remove(name).is_err());
        assert!(dir.rename("a", name).is_err());
    }
}

#[test]
fn a_missing_file_is_told_apart_from_an_unreadable_one() {
    let dir = dir("missing");
    assert!(dir.read("file", 1).unwrap_err().is_missing());
    assert_eq!(dir.read_optional("file", 1).unwrap(), None);
    std::fs::create_dir(dir.join("file")).unwrap();
    assert!(dir.read_optional("file", 1).is_err());
}

#[test]
fn an_error_names_the_operation_the_path_and_keeps_the_reason() {
    let dir = dir("error");
    let error = dir.read("node.key", 1).unwrap_err();
    let path = dir.join("node.key");
    assert_eq!(error.to_string(), format!("cannot open {}", path.display()));
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("No such file"), "{source}");
}

#[test]
fn a_write_that_cannot_begin_leaves_the_old_file() {
    let dir = dir("blocked");
    dir.write_atomic("file", b"old", 0o600).unwrap();
    std::fs::create_dir(dir.join("file.new")).unwrap();
    assert!(dir.write_atomic("file", b"new", 0o600).is_err());
    assert_eq!(dir.read("file", 10).unwrap(), b"old");
    assert!(dir.exists("file.new").unwrap());
}

/// A limit on file sizes fails a write half-way, as a full disk does. The limit is a process's,
/// so the write happens in one of its own.
#[test]
fn a_write_that_fails_half_way_leaves_the_old_file_and_no_leftover() {
    let dir = dir("half-way");
    dir.write_atomic("file", b"old", 0o600).unwrap();
    let status = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sys::fs::tests::write_too_much",
            "--ignored",
            "--nocapture",
        ])
        .env("BCD_TEST_DIR", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(
        status.status.success() && text.contains("1 passed"),
        "{text}"
    );
    assert_eq!(dir.read("file", 10).unwrap(), b"old");
    assert!(!dir.exists("file.new").unwrap());
}

#[test]
#[ignore = "run by the test above, in a process with a limit"]
fn write_too_much() {
    let dir = Dir::open(Path::new(&std::env::var_os("BCD_TEST_DIR").unwrap())).unwrap();
    let error = dir
        .write_atomic("file", &vec![1; 100_000], 0o600)
        .unwrap_err();
    let path = dir.join("file.new");
    assert_eq!(
        error.to_string(),
        format!("cannot write {}", path.display())
    );
}

#[test]
fn what_a_person_can_do_is_said_for_the_ordinary_failures() {
    let error = |errno| Error::os("write", Path::new("/x"), errno);
    assert!(error(Errno::NOSPC).is_full() && error(Errno::DQUOT).is_full());
    assert!(error(Errno::ROFS).is_read_only());
    assert!(
        error(Errno::NOSPC)
            .remedy()
            .unwrap()
            .starts_with("free some space")
    );
    for errno in [
        Errno::ROFS,
        Errno::ACCESS,
        Errno::PERM,
        Errno::IO,
        Errno::WOULDBLOCK,
    ] {
        assert!(error(errno).remedy().is_some());
    }
    assert_eq!(error(Errno::NOENT).remedy(), None);
}

#[test]
fn renaming_moves_and_only_replaces_when_asked_to() {
    let dir = dir("rename");
    dir.write_atomic("a", b"a", 0o600).unwrap();
    dir.write_atomic("b", b"b", 0o600).unwrap();
    let error = dir.rename_new("a", "b").unwrap_err();
    assert!(error.is_there());
    assert_eq!(error.path(), dir.join("b"));
    assert_eq!(dir.read("b", 9).unwrap(), b"b");
    dir.rename_new("a", "c").unwrap();
    dir.rename("c", "b").unwrap();
    assert_eq!(dir.read("b", 9).unwrap(), b"a");
    assert!(dir.rename("gone", "b").unwrap_err().is_missing());
}

#[test]
fn removing_is_idempotent_and_spares_a_links_target() {
    let dir = dir("remove");
    dir.write_atomic("target", b"", 0o600).unwrap();
    symlink("target", dir.join("link")).unwrap();
    dir.remove("link").unwrap();
    dir.remove("link").unwrap();
    assert!(dir.exists("target").unwrap());
}

#[test]
fn directories_are_made_with_their_parents_and_modes() {
    let root = scratch("create");
    let path = root.join("var/lib/bcd");
    let made = Dir::create(&path, 0o700).unwrap();
    assert_eq!(made.path(), path);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(
        std::fs::metadata(root.join("var")).unwrap().mode() & 0o7777,
        0o755
    );
    // One that is there keeps its mode.
    Dir::create(&root.join("var"), 0o700).unwrap();
    assert_eq!(
        std::fs::metadata(root.join("var")).unwrap().mode() & 0o7777,
        0o755
    );
    std::fs::write(root.join("file"), "").unwrap();
    assert!(Dir::create(&root.join("file/x"), 0o700).is_err());
}

#[test]
fn a_directory_is_locked_to_one_until_it_lets_go() {
    let path = scratch("lock");
    let first = Dir::open(&path).unwrap();
    let second = Dir::open(&path).unwrap();
    let lock = first.lock().unwrap();
    assert!(second.lock().err().unwrap().is_locked());
    assert!(first.lock().err().unwrap().is_locked());
    drop(lock);
    second.lock().unwrap();
}

#[test]
fn links_that_stay_beneath_are_followed_and_others_are_refused() {
    let dir = dir("secret-volume");
    std::fs::create_dir(dir.join("..2026")).unwrap();
    std::fs::write(dir.join("..2026/token"), "t").unwrap();
    symlink("..2026", dir.join("..data")).unwrap();
    symlink("..data/token", dir.join("token")).unwrap();
    symlink("/etc/passwd", dir.join("away")).unwrap();
    let file = dir.open_beneath("token").unwrap();
    assert_eq!(read_bounded(file, &dir.join("token"), 10).unwrap(), b"t");
    assert!(matches!(
        dir.open_beneath("away").unwrap_err().cause(),
        Cause::Escapes
    ));
    assert!(matches!(
        dir.open_beneath("../x").unwrap_err().cause(),
        Cause::Escapes
    ));
    assert!(matches!(
        dir.open_beneath("..data").unwrap_err().cause(),
        Cause::NotRegular(_)
    ));
}

#[test]
fn a_name_is_given_away_alone_and_never_what_stands_behind_it() {
    use std::os::unix::fs::MetadataExt;
    if crate::sys::user::euid() != 0 {
        return;
    }
    let path = scratch("give");
    let dir = Dir::open(&path).unwrap();
    let account = Account { uid: 12, gid: 34 };
    let owner = |name: &str| {
        let metadata = std::fs::symlink_metadata(path.join(name)).unwrap();
        (metadata.uid(), metadata.gid())
    };
    for name in ["plain", "target", "secret"] {
        std::fs::write(path.join(name), "").unwrap();
    }
    dir.give("plain", account).unwrap();
    assert_eq!(owner("plain"), (12, 34));

    std::os::unix::fs::symlink("target", path.join("link")).unwrap();
    dir.give("link", account).unwrap();
    assert_eq!(owner("link"), (12, 34));
    assert_eq!(owner("target"), (0, 0));

    std::fs::hard_link(path.join("secret"), path.join("hard")).unwrap();
    let refused = dir.give("hard", account).unwrap_err();
    assert!(matches!(refused.cause(), Cause::Linked), "{refused}");
    assert_eq!(owner("secret"), (0, 0));

    assert!(dir.give("missing", account).unwrap_err().is_missing());
    assert!(dir.give("../secret", account).is_err());
}
