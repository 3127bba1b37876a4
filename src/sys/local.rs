//! Unix sockets by path: closed to others before anybody can reach them, and put in place at once.
//!
//! The kernel's address holds 108 bytes. A longer path is reached through its directory's
//! descriptor in `/proc/self/fd`, so that only the last component is bound.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::fs::Dir;

/// The most bytes of a path that an address holds.
const DIRECT: usize = 107;

/// Clients that wait to be taken.
const BACKLOG: i32 = 8;

/// As many where a whole group may come: whoever floods shall leave room for another.
const GROUP_BACKLOG: i32 = 64;

/// A socket file, removed when it is dropped, unless another has taken its place.
pub struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Listens at `path`, mode 0600; its directory is made, 0700, when missing. A socket that a dead
/// process left there is replaced.
///
/// # Errors
/// AddrInUse when somebody answers there, AlreadyExists when something else than a socket is there,
/// else the kernel's word.
pub fn listen(path: &Path) -> io::Result<(UnixListener, Place)> {
    if let Some(parent) = path.parent() {
        Dir::create(parent, 0o700).map_err(io::Error::other)?;
    }
    is_free(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match std::fs::symlink_metadata(&new) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(&new)?,
        _ => {}
    }
    put(path, &new, 0o600, None, BACKLOG)
}

/// As [`listen`], for root to serve the group `gid`: mode 0660, of root and that group. Its directory has to be
/// there; the socket is made in one below it that nobody else can enter, and moved into place when it is whole.
///
/// # Errors
/// As [`listen`]'s.
pub fn listen_for(gid: u32, path: &Path) -> io::Result<(UnixListener, Place)> {
    const NAME: &str = ".new";
    let Some(parent) = path.parent() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    is_free(path)?;
    let private = parent.join(NAME);
    // What a killed helper left. Neither follows a symlink, and of what is not ours to remove nothing goes.
    let _ = std::fs::remove_file(private.join("socket"));
    let _ = std::fs::remove_dir(&private);
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let placed = put(
        path,
        &private.join("socket"),
        0o660,
        Some(gid),
        GROUP_BACKLOG,
    );
    let _ = std::fs::remove_dir(&private);
    placed
}

/// Whether nothing is at `path`, or the socket of a dead process.
fn is_free(path: &Path) -> io::Result<()> {
    let said = |kind, text| Err(io::Error::new(kind, text));
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => said(
            io::ErrorKind::AlreadyExists,
            "something else than a socket is there: move it away",
        ),
        Ok(_) => match connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            _ => said(io::ErrorKind::AddrInUse, "another process answers there"),
        },
        Err(_) => Ok(()),
    }
}

/// Makes a listening socket at `new` and moves it to `path`.
fn put(
    path: &Path,
    new: &Path,
    mode: u32,
    gid: Option<u32>,
    backlog: i32,
) -> io::Result<(UnixListener, Place)> {
    let socket = socket()?;
    at(new, |address| rustix::net::bind(&socket, address))?;
    // Nobody reaches it before it listens: no moment has a wider mode.
    let placed = std::fs::set_permissions(new, PermissionsExt::from_mode(mode))
        .and_then(|()| match gid {
            Some(gid) => std::os::unix::fs::lchown(new, None, Some(gid)),
            None => Ok(()),
        })
        .and_then(|()| Ok(rustix::net::listen(&socket, backlog)?))
        .and_then(|()| std::fs::symlink_metadata(new))
        .and_then(|there| std::fs::rename(new, path).map(|()| there));
    match placed {
        Ok(there) => {
            let place = Place {
                path: path.to_owned(),
                device: there.dev(),
                inode: there.ino(),
            };
            Ok((UnixListener::from(socket), place))
        }
        Err(error) => {
            let _ = std::fs::remove_file(new);
            Err(error)
        }
    }
}

/// Connects to the socket at `path`, without waiting.
///
/// # Errors
/// WouldBlock when nobody takes the connections that wait there; else the kernel's word.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = socket()?;
    at(path, |address| rustix::net::connect(&socket, address))?;
    Ok(UnixStream::from(socket))
}

/// Non-blocking.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// Does something with the address of `path`.
fn at(path: &Path, work: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    if path.as_os_str().len() <= DIRECT {
        return Ok(work(&SocketAddrUnix::new(path)?)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, parent, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name);
    Ok(work(&SocketAddrUnix::new(short)?)?)
}

impl Drop for Place {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|there| there.dev() == self.device && there.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::tests::scratch;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path)
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    }

    #[test]
    fn a_socket_is_private_also_at_the_end_of_a_path_longer_than_an_address() {
        let root = scratch("local");
        let long = root.join("d".repeat(100)).join("e".repeat(100));
        for dir in [root.join("run"), long] {
            let path = dir.join("bcd.sock");
            let (listener, place) = listen(&path).unwrap();
            assert_eq!((mode(&path), mode(&dir)), (0o600, 0o700));
            let _client = connect(&path).unwrap();
            listener.set_nonblocking(false).unwrap();
            listener.accept().unwrap();
            drop(place);
            assert!(!path.exists() && !dir.join("bcd.sock.new").exists());
        }
    }

    #[test]
    fn a_dead_process_socket_is_replaced_a_living_one_and_other_files_are_not() {
        let path = scratch("local-taken").join("bcd.sock");
        let (listener, place) = listen(&path).unwrap();
        let taken = listen(&path).err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        // As after a kill: the file is there, and nobody listens.
        let refused = connect(&path).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let (listener, _second) = listen(&path).unwrap();
        // The first place is not its own any more.
        drop(place);
        assert!(path.exists());
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        let other = listen(&path).err().unwrap();
        assert_eq!(other.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_group_socket_is_made_out_of_sight_also_where_a_killed_process_left_one() {
        let dir = scratch("local-group");
        let path = dir.join("helper.sock");
        std::fs::create_dir(dir.join(".new")).unwrap();
        std::fs::write(dir.join(".new/socket"), "").unwrap();
        let gid = rustix::process::getegid().as_raw();
        let (listener, place) = listen_for(gid, &path).unwrap();
        assert_eq!(mode(&path), 0o660);
        assert!(!dir.join(".new").exists());
        let second = listen_for(gid, &path).err().unwrap();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop((listener, place));
        assert!(!path.exists());
    }

    #[test]
    fn a_listener_that_takes_nobody_makes_nobody_wait() {
        let path = scratch("local-full").join("bcd.sock");
        let (_listener, _place) = listen(&path).unwrap();
        let mut clients = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(client) => clients.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(clients.len() <= BACKLOG as usize + 1);
    }
}
