//! The file systems that everything else expects. Each is tried; what fails is said and passed over, except that
//! without /proc there is no command line, so that comes first.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

const NO_EXEC: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Mounts them all; the answer says what did not work.
pub fn all() -> Vec<String> {
    let mut complaints = Vec::new();
    let mut make = |kind: &str, at: &str, flags: MountFlags, data: &str| {
        let _ = fs::create_dir_all(at);
        let data = std::ffi::CString::new(data).ok();
        match mount(kind, at, kind, flags, data.as_deref()) {
            // Already there: a kernel that mounts devtmpfs itself.
            Ok(()) | Err(rustix::io::Errno::BUSY) => {}
            Err(error) => {
                let error = std::io::Error::from(error);
                complaints.push(format!("cannot mount {kind} at {at}: {error}"));
            }
        }
    };
    make("proc", "/proc", NO_EXEC, "");
    make("sysfs", "/sys", NO_EXEC, "");
    make("devtmpfs", "/dev", MountFlags::NOSUID, "mode=0755");
    make(
        "devpts",
        "/dev/pts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "mode=0620,gid=5,ptmxmode=0666",
    );
    make(
        "tmpfs",
        "/run",
        MountFlags::NOSUID | MountFlags::NODEV,
        "mode=0755",
    );
    make(
        "tmpfs",
        "/tmp",
        MountFlags::NOSUID | MountFlags::NODEV,
        "mode=1777",
    );
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let _ = symlink(target, Path::new("/dev").join(name));
    }
    complaints
}

/// The firmware's variables, on a machine that booted by UEFI. The kernel may need a module for it, so this is for
/// when modules can be loaded.
pub fn firmware() -> Option<String> {
    let at = "/sys/firmware/efi/efivars";
    if !Path::new(at).exists() {
        return None;
    }
    match mount("efivarfs", at, "efivarfs", NO_EXEC, None) {
        Ok(()) | Err(rustix::io::Errno::BUSY) => None,
        Err(error) => {
            let error = std::io::Error::from(error);
            Some(format!("cannot mount efivarfs at {at}: {error}"))
        }
    }
}
