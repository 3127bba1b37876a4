//! Who is at the other end of a Unix socket, who wrote what is read from it, and which program that
//! process runs.
//!
//! A process number alone says little: its process may have ended and another have it by now, and
//! whoever connected may have handed the socket on. So a process is [held](Process): by the descriptor that the
//! kernel keeps for the peer of a socket (SO_PEERPIDFD, Linux 6.5), else by one opened for the number (5.3), else by
//! the time it started at. And each piece that is read comes with the credentials of the process that wrote it
//! (SO_PASSCRED), which the kernel puts there and nobody without CAP_SYS_ADMIN can choose.
use std::fs::Metadata;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::stop::timespec;

/// A process's numbers, at the moment it connected or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// 0 when it is in another PID namespace.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl From<libc::ucred> for Credentials {
    fn from(from: libc::ucred) -> Self {
        Self {
            pid: from.pid,
            uid: from.uid,
            gid: from.gid,
        }
    }
}

/// Who connected, or at a client's end who listens.
///
/// # Errors
/// It is no Unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    // Not by rustix: its type of a process number has no place for the 0 of another namespace.
    let found: libc::ucred = option(socket, libc::SO_PEERCRED)?;
    Ok(found.into())
}

/// From now on [`receive`] says who wrote. Of what was written before, older kernels say nobody.
///
/// # Errors
/// It is no Unix socket.
pub fn ask_for_writers(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Reads a piece of one writer, and who that is. Descriptors that come along are refused.
///
/// # Errors
/// What recvmsg(2) says; InvalidData for a piece with descriptors.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<Credentials>)> {
    // For one set of credentials and nothing more: no descriptor ever fits in. As u64, for its alignment.
    let mut control = [0_u64; 8];
    let mut piece = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all zeros is a msghdr without name, pieces and control.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: it only computes a length.
    let room = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) };
    message.msg_controllen = room as _;
    // SAFETY: the header points to a buffer and a control space that live past the call, with their true lengths
    // (CMSG_SPACE of 12 bytes is 32, less than the 64 there are).
    let read = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            &raw mut message,
            libc::MSG_CMSG_CLOEXEC,
        )
    };
    let Ok(read) = usize::try_from(read) else {
        return Err(io::Error::last_os_error());
    };
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has filled the control space, and set its length.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or it points to a header within the control space.
    let Some(header) = (unsafe { first.as_ref() }) else {
        return Ok((read, None));
    };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: a header of this type is followed by a ucred, wherever it is aligned to.
    let found: libc::ucred = unsafe {
        libc::CMSG_DATA(first)
            .cast::<libc::ucred>()
            .read_unaligned()
    };
    Ok((read, Some(found.into())))
}

/// A socket's option of plain numbers.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the value, which lives past the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed and perhaps written to; all the types that are asked for are integers.
    Ok(unsafe { value.assume_init() })
}

/// A process that is told from any later one with its number.
pub struct Process {
    pid: i32,
    held: Held,
}

enum Held {
    Descriptor(OwnedFd),
    /// Since when it runs, in the kernel's ticks since the boot.
    Since(u64),
}

impl Process {
    /// The process that connected.
    ///
    /// # Errors
    /// It has ended, or is of another PID namespace.
    pub fn at(socket: impl AsFd, credentials: Credentials) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = credentials.pid;
        let number = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(gone)?;
        let held = match option::<libc::c_int>(socket, SO_PEERPIDFD) {
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
            Ok(descriptor) => Held::Descriptor(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
            Err(_) => match pidfd_open(number, PidfdFlags::empty()) {
                Ok(descriptor) => Held::Descriptor(descriptor),
                Err(Errno::NOSYS) => Held::Since(start(pid)?),
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Self { pid, held })
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        match &self.held {
            Held::Descriptor(descriptor) => {
                let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
                let now = timespec(std::time::Duration::ZERO);
                matches!(poll(&mut fds, Some(&now)), Ok(0))
            }
            Held::Since(since) => start(self.pid).is_ok_and(|start| start == *since),
        }
    }

    /// The file of the program it runs, whatever became of its name.
    ///
    /// # Errors
    /// It has ended, or may not be looked at.
    pub fn program(&self) -> io::Result<Metadata> {
        let found = std::fs::metadata(self.link())?;
        // Only now is it known that the number was still its own.
        match self.is_alive() {
            true => Ok(found),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// What the program was called when it was started, for people.
    pub fn name(&self) -> PathBuf {
        std::fs::read_link(self.link()).unwrap_or_default()
    }

    fn link(&self) -> PathBuf {
        PathBuf::from(["/proc/", &self.pid.to_string(), "/exe"].concat())
    }
}

/// `SO_PEERPIDFD`, the same on all machines bcd is built for.
const SO_PEERPIDFD: libc::c_int = 77;

/// When a process started: the 22nd field of its stat, of which the second may hold anything in parentheses.
fn start(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(["/proc/", &pid.to_string(), "/stat"].concat())?;
    let ticks = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok());
    ticks.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn own() -> Credentials {
        Credentials {
            pid: i32::try_from(std::process::id()).unwrap(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    #[test]
    fn a_piece_says_who_wrote_it_once_that_is_asked_for() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        assert_eq!(credentials(&ours).unwrap(), own());
        theirs.write_all(b"early").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(receive(&ours, &mut buffer).unwrap(), (5, None));
        ask_for_writers(&ours).unwrap();
        theirs.write_all(b"late").unwrap();
        assert_eq!(receive(&ours, &mut buffer).unwrap(), (4, Some(own())));
        drop(theirs);
        assert_eq!(receive(&ours, &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn what_two_processes_wrote_comes_as_two_pieces() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ask_for_writers(&ours).unwrap();
        (&theirs).write_all(b"mine").unwrap();
        let other = theirs.try_clone().unwrap();
        let child = std::process::Command::new("/bin/echo")
            .arg("theirs")
            .stdout(OwnedFd::from(other))
            .spawn();
        let mut child = child.unwrap();
        assert!(child.wait().unwrap().success());
        let mut buffer = [0; 64];
        assert_eq!(receive(&ours, &mut buffer).unwrap(), (4, Some(own())));
        let (read, writer) = receive(&ours, &mut buffer).unwrap();
        assert_eq!(read, 7);
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(writer.map(|writer| writer.pid), Some(pid));
    }

    #[test]
    fn descriptors_are_refused_and_none_stays() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ask_for_writers(&ours).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [theirs.as_fd()];
        control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&theirs, &[io::IoSlice::new(b"x")], &mut control, flags).unwrap();
        let error = receive(&ours, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        // Nobody else has the other end: it was not taken over with the piece.
        assert_eq!(receive(&ours, &mut [0; 8]).unwrap().0, 0);
    }

    #[test]
    fn a_process_is_held_in_each_way_until_it_ends() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let me = Process::at(&ours, own()).unwrap();
        let own_program = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(me.program().unwrap().ino(), own_program.ino());
        assert!(me.is_alive());

        let mut child = std::process::Command::new("/bin/sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let number = Pid::from_raw(pid).unwrap();
        let ways = [
            Held::Descriptor(pidfd_open(number, PidfdFlags::empty()).unwrap()),
            Held::Since(start(pid).unwrap()),
        ];
        let ways = ways.map(|held| Process { pid, held });
        assert!(ways.iter().all(Process::is_alive));
        // Another start: another process with the same number.
        let other = Held::Since(start(pid).unwrap() + 1);
        assert!(!Process { pid, held: other }.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        for way in &ways {
            assert!(!way.is_alive());
            assert!(way.program().is_err());
        }
    }

    #[test]
    fn one_of_another_namespace_is_not_there() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let unseen = Credentials { pid: 0, ..own() };
        assert!(Process::at(&ours, unseen).is_err());
    }
}
