//! Where init touches the kernel in ways the standard library has none for: raw and netlink sockets, the
//! signal that a child ended, a terminal for a shell, the BMC. All of this crate's `unsafe` is here.
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bcd::sys::clock::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    sendto, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::ipv6;
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

/// Four bytes to tell transactions apart by, without waiting for the kernel's generator. Where they are not random yet,
/// two machines still differ by their addresses.
pub fn number(mac: [u8; 6]) -> [u8; 4] {
    let mut number = [0; 4];
    let _ = getrandom(&mut number, GetRandomFlags::INSECURE);
    let [.., a, b, c, d] = mac;
    for (byte, own) in number.iter_mut().zip([a, b, c, d]) {
        *byte ^= own;
    }
    number
}

/// A link-layer address: on a link, of a protocol, for everybody.
struct OnLink {
    index: u32,
    protocol: u16,
}

// SAFETY: the pointer handed on is to a whole, initialised sockaddr_ll that lives until `f` returns, with its length.
unsafe impl SocketAddrArg for OnLink {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: self.protocol.to_be(),
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

/// The EtherType of IPv4.
pub const IPV4: u16 = libc::ETH_P_IP as u16;

/// A socket that hears and sends packets of one protocol on one link, which needs no address for it.
pub struct RawSocket {
    fd: OwnedFd,
    link: OnLink,
}

impl RawSocket {
    /// # Errors
    /// The kernel has no packet sockets, or the link is gone.
    pub fn open(index: u32, protocol: u16) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            std::num::NonZeroU32::new(protocol.to_be().into()).map(Protocol::from_raw),
        )?;
        let link = OnLink { index, protocol };
        bind(&fd, &link)?;
        Ok(Self { fd, link })
    }

    /// Hears what is sent to the link-layer address `group` too.
    ///
    /// # Errors
    /// The NIC cannot be told.
    pub fn join(&self, group: [u8; 6]) -> io::Result<()> {
        let [a, b, c, d, e, f] = group;
        let membership = libc::packet_mreq {
            mr_ifindex: i32::try_from(self.link.index).unwrap_or(0),
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: [a, b, c, d, e, f, 0, 0],
        };
        // SAFETY: the descriptor is open, and the pointer is to a whole packet_mreq, with its length, that outlives the
        // call.
        let done = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const membership).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends `packet` to everybody on the link.
    ///
    /// # Errors
    /// What sendto(2) says.
    pub fn broadcast(&self, packet: &[u8]) -> io::Result<()> {
        sendto(&self.fd, packet, SendFlags::empty(), &self.link)?;
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

/// The kernel's announcements of what routers advertise, and of links that come and go (rtnetlink, RTNLGRP_ND_USEROPT,
/// RTNLGRP_IPV6_IFINFO and RTNLGRP_LINK).
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
        // The groups' numbers are 20, 12 and 1; the address has a bit for each.
        bind(&fd, &SocketAddrNetlink::new(0, 1 << 19 | 1 << 11 | 1))?;
        // What was advertised before comes as an answer, among the announcements.
        send(&fd, &ipv6::flags_request(), SendFlags::empty())?;
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
pub fn lease_socket(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 68))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The UDP socket of a DHCPv6 client.
pub fn information_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 546))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The machine's BMC, by way of the kernel (linux/ipmi.h).
pub struct Ipmi(File);

/// ipmi_system_interface_addr: the BMC itself (type 12, channel 15).
#[repr(C)]
struct IpmiAddress {
    kind: i32,
    channel: i16,
    lun: u8,
}

/// ipmi_msg.
#[repr(C)]
struct IpmiMessage {
    function: u8,
    command: u8,
    length: u16,
    data: *mut u8,
}

/// ipmi_req.
#[repr(C)]
struct IpmiRequest {
    address: *const IpmiAddress,
    address_length: u32,
    id: libc::c_long,
    message: IpmiMessage,
}

/// ipmi_recv.
#[repr(C)]
struct IpmiAnswer {
    kind: i32,
    address: *mut u8,
    address_length: u32,
    id: libc::c_long,
    message: IpmiMessage,
}

impl Ipmi {
    /// How long one answer may take, whatever else comes meanwhile.
    const PATIENCE: Duration = Duration::from_secs(6);

    /// # Errors
    /// There is no such device, or it does not open.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(path).map(Self)
    }

    /// Sends one request and waits for its answer: the completion code, then the data.
    ///
    /// # Errors
    /// The driver refuses it, or the BMC does not answer in time.
    pub fn exchange(&self, function: u8, command: u8, data: &[u8]) -> io::Result<Vec<u8>> {
        // IPMICTL_SEND_COMMAND and IPMICTL_RECEIVE_MSG_TRUNC, whose numbers hold the structures' sizes.
        const SEND: u32 = 0x8000_690d | (size_of::<IpmiRequest>() as u32) << 16;
        const RECEIVE: u32 = 0xc000_690b | (size_of::<IpmiAnswer>() as u32) << 16;
        const RESPONSE: i32 = 1;
        let address = IpmiAddress {
            kind: 0x0c,
            channel: 0x0f,
            lun: 0,
        };
        let mut data = data.to_vec();
        let request = IpmiRequest {
            address: &raw const address,
            address_length: size_of::<IpmiAddress>() as u32,
            id: 1,
            message: IpmiMessage {
                function,
                command,
                length: u16::try_from(data.len()).unwrap_or(0),
                data: data.as_mut_ptr(),
            },
        };
        // SAFETY: the descriptor is open; the request and what it points to (address, data) live until the call is over,
        // and the driver copies them.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw const request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let end = monotonic() + Self::PATIENCE;
        loop {
            let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
            let left = end.saturating_sub(monotonic());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
                tv_nsec: left.subsec_nanos().into(),
            };
            if poll(&mut ready, Some(&left))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let (mut from, mut buffer) = ([0; 64], [0; 256]);
            let mut answer = IpmiAnswer {
                kind: 0,
                address: from.as_mut_ptr(),
                address_length: from.len() as u32,
                id: 0,
                message: IpmiMessage {
                    function: 0,
                    command: 0,
                    length: buffer.len() as u16,
                    data: buffer.as_mut_ptr(),
                },
            };
            // SAFETY: the descriptor is open; the driver writes into the answer and into the two buffers, no more than
            // the lengths given, and all three live until the call is over.
            let done = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, &raw mut answer) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
            // Events of the BMC's own come the same way.
            let ours = answer.kind == RESPONSE && answer.message.command == command;
            if let Some(answer) = buffer.get(..answer.message.length.into())
                && ours
            {
                return Ok(answer.to_vec());
            }
        }
    }
}
