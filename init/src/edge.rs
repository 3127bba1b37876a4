//! Where init touches the kernel in ways the standard library has none for: raw and netlink sockets, the
//! signal that a child ended, a terminal for a shell. All of this crate's `unsafe` is here.
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    sendto, socket_with,
};

use crate::netlink::{self, Request};

/// A descriptor that turns readable when a child has ended. SIGCHLD is blocked in this thread and in what
/// it starts; [`unblocked`] undoes that for a program.
///
/// # Errors
/// Too many open files.
pub fn children() -> io::Result<OwnedFd> {
    let mut signals = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set before it is used; a null old set is allowed; -1 asks for a new
    // descriptor, which is checked and then owned here alone.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        match libc::signalfd(-1, signals.as_ptr(), flags) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Lets the program run with every signal unblocked, and, for a shell, as the leader of a session with its
/// standard input as the terminal.
pub fn unblocked(command: &mut Command, with_terminal: bool) -> &mut Command {
    let prepare = move || {
        bcd::sys::signal::unblock_all();
        if with_terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are made: sigprocmask, setsid, ioctl.
    unsafe { command.pre_exec(prepare) }
}

/// A link-layer address: on a link, IPv4, for everybody.
struct OnLink {
    index: u32,
}

// SAFETY: the pointer handed on is to a whole, initialised sockaddr_ll that lives until `f` returns, with its length.
unsafe impl SocketAddrArg for OnLink {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_IP as u16).to_be(),
            sll_ifindex: i32::try_from(self.index).unwrap_or(0),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        };
        f(
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as SocketAddrLen,
        )
    }
}

/// A socket that hears and sends IPv4 packets on one link before it has an address.
pub struct RawSocket {
    fd: OwnedFd,
    index: u32,
}

impl RawSocket {
    /// # Errors
    /// The kernel has no packet sockets, or the link is gone.
    pub fn open(index: u32) -> io::Result<Self> {
        let protocol = u32::from((libc::ETH_P_IP as u16).to_be());
        let fd = socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            std::num::NonZeroU32::new(protocol).map(Protocol::from_raw),
        )?;
        bind(&fd, &OnLink { index })?;
        Ok(Self { fd, index })
    }

    /// Sends `packet` to everybody on the link.
    ///
    /// # Errors
    /// What sendto(2) says.
    pub fn broadcast(&self, packet: &[u8]) -> io::Result<()> {
        let to = OnLink { index: self.index };
        sendto(&self.fd, packet, SendFlags::empty(), &to)?;
        Ok(())
    }

    /// The next packet, or `None` when there is none now.
    ///
    /// # Errors
    /// What recv(2) says; ENETDOWN while the link is down.
    pub fn next<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
            Ok((length, _)) => Ok(buffer.get(..length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Configures the network; every request waits for the kernel's answer.
pub struct Links(OwnedFd);

impl Links {
    /// # Errors
    /// Too many open files.
    pub fn open() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(fd))
    }

    /// Does what `request` asks.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn ask(&self, request: &Request) -> io::Result<()> {
        send(&self.0, request.bytes(), SendFlags::empty())?;
        let mut answer = [0; 4096];
        loop {
            let (length, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
            match netlink::outcome(answer.get(..length).unwrap_or_default()) {
                Some(0) => return Ok(()),
                Some(code) => return Err(io::Error::from_raw_os_error(code)),
                None => {}
            }
        }
    }
}

/// The kernel's announcements of what routers advertise (rtnetlink, RTNLGRP_ND_USEROPT).
pub struct Advertised(OwnedFd);

impl Advertised {
    /// # Errors
    /// The kernel has no IPv6, or too many files are open.
    pub fn open() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // The group's number is 20; the address has a bit for each.
        bind(&fd, &SocketAddrNetlink::new(0, 1 << 19))?;
        Ok(Self(fd))
    }

    /// The next announcement, or `None` when there is none now.
    pub fn next<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let (length, _) = recv(&self.0, &mut *buffer, RecvFlags::empty()).ok()?;
        buffer.get(..length)
    }
}

impl AsFd for Advertised {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel's announcements of devices (netlink, kobject_uevent).
pub struct Uevents(OwnedFd);

impl Uevents {
    /// # Errors
    /// Too many open files, or no right to listen.
    pub fn open() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            std::num::NonZeroU32::new(libc::NETLINK_KOBJECT_UEVENT as u32).map(Protocol::from_raw),
        )?;
        // Group 1 is the kernel's own.
        bind(&fd, &SocketAddrNetlink::new(0, 1))?;
        // A burst of devices must not be lost while a module is being loaded.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&fd, 1 << 20);
        Ok(Self(fd))
    }

    /// Waits for the next announcement: texts of the form KEY=VALUE, NUL between them.
    ///
    /// # Errors
    /// What recv(2) says; ENOBUFS when announcements were lost.
    pub fn next<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let (length, _) = recv(&self.0, &mut *buffer, RecvFlags::empty())?;
        Ok(buffer.get(..length).unwrap_or_default())
    }
}

/// The UDP socket of a lease's holder, for talking to its server alone.
pub fn lease_socket(address: Ipv4Addr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind((address, 68))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
