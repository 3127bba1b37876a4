//! Unix sockets by path: made 0600 before anybody can reach them, and put in place at once.
//!
//! The kernel's address holds 108 bytes. A longer path is reached through its directory's
//! descriptor in `/proc/self/fd`, so that only the last component is bound.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::fs::Dir;

/// The most bytes of a path that an address holds.
const DIRECT: usize = 107;

/// Clients that wait to be taken.
const BACKLOG: i32 = 8;

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
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something else than a socket is there: move it away",
            ));
        }
        Ok(_) => match connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process answers there",
                ));
            }
        },
        Err(_) => {}
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match std::fs::symlink_metadata(&new) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(&new)?,
        _ => {}
    }
    let socket = socket()?;
    at(&new, |address| rustix::net::bind(&socket, address))?;
    // Nobody reaches it before it listens: no moment has a wider mode.
    let placed = std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600))
        .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?))
        .and_then(|()| std::fs::symlink_metadata(&new))
        .and_then(|there| std::fs::rename(&new, path).map(|()| there));
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
            let _ = std::fs::remove_file(&new);
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
