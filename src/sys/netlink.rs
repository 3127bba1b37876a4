//! Netlink: the kernel's tables of network links and addresses (rtnetlink(7)), and word of changes
//! that costs nothing until somebody asks.
//!
//! [`messages`] and [`attributes`] take bytes apart and never panic; [`dump`] asks the kernel for a
//! whole table; [`Watch`] is told of changes and keeps them in the kernel until [`Watch::news`] looks:
//! nothing ever waits on it, so a change wakes nobody.
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv,
    send, socket_with,
};

/// Of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Message types below this one are netlink's own.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// The flags of an attribute's type (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Dumps, and the type of the messages they are made of.
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_GETADDR: u16 = 22;

/// The generic family that lists all others.
pub const GENL_ID_CTRL: u16 = 16;

/// NETLINK_ROUTE is protocol 0, which rustix writes so.
const ROUTE: Option<Protocol> = None;
/// The kernel fills at most 32 KiB at a time, and less for a small reader.
const BUFFER: usize = 16 * 1024;
/// A single message longer than this is none of ours.
const BUFFER_MAX: usize = 1 << 20;
/// Bytes of one dump.
const DUMP_MAX: usize = 64 << 20;
/// How long the kernel may take for one part of a dump.
const PATIENCE: Duration = Duration::from_secs(5);
/// Dumps that a change of the table cut across, before the last one is taken as it is.
const TRIES: u32 = 4;

/// One netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// One attribute: its type without flags, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub value: &'a [u8],
}

/// What [`dump`] hands over.
#[derive(Debug)]
pub enum Step<'a> {
    /// Forget what was handed over: the dump begins (again).
    Start,
    /// One entry of the table.
    Entry(Message<'a>),
}

/// Why a table could not be read.
#[derive(Debug)]
pub enum NetlinkError {
    /// A system call failed.
    Os(&'static str, Errno),
    /// The kernel refused the request.
    Refused(Errno),
    /// The kernel's answer is none.
    Malformed,
    /// The table is larger than anybody's.
    TooLarge,
}

/// The messages in what one receive gave. A malformed one is the last.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = Result<Message<'_>, NetlinkError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = message(&mut rest).ok_or(NetlinkError::Malformed);
        if message.is_err() {
            rest = &[];
        }
        Some(message)
    })
}

fn message<'a>(rest: &mut &'a [u8]) -> Option<Message<'a>> {
    let bytes: &'a [u8] = rest;
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let payload = bytes.get(HEADER..length)?;
    let message = Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        payload,
    };
    // The last one needs no padding.
    *rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(message)
}

/// The attributes in a payload, up to the first malformed one.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let attribute = Attribute {
            kind: u16_at(rest, 2)? & NLA_TYPE_MASK,
            value: rest.get(4..length)?,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// The number in native byte order at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// As [`u32_at`].
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

/// Asks the kernel for the table that `request` ([`RTM_GETLINK`] …) with `body` names, and hands its
/// entries to `take`. A dump that a change cut across (NLM_F_DUMP_INTR) or a buffer was too small for
/// is made again, from [`Step::Start`].
///
/// # Errors
/// See [`NetlinkError`]; what was handed over is then incomplete.
pub fn dump(request: u16, body: &[u8], take: &mut dyn FnMut(Step<'_>)) -> Result<(), NetlinkError> {
    dump_of(ROUTE, request, body, take)
}

/// As [`dump`], of the generic family with the number `family`: its `command`, with these attributes.
///
/// # Errors
/// As [`dump`].
pub fn dump_generic(
    family: u16,
    command: u8,
    attributes: &[u8],
    take: &mut dyn FnMut(Step<'_>),
) -> Result<(), NetlinkError> {
    // struct genlmsghdr: the command, the interface's version, nothing.
    let body = [&[command, 1, 0, 0], attributes].concat();
    dump_of(Some(netlink::GENERIC), family, &body, take)
}

fn dump_of(
    protocol: Option<Protocol>,
    request: u16,
    body: &[u8],
    take: &mut dyn FnMut(Step<'_>),
) -> Result<(), NetlinkError> {
    let socket = open(protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))
        .map_err(|errno| NetlinkError::Os("set a netlink time-out", errno))?;
    // From now on the kernel alone can send to this socket.
    connect(&socket, &SocketAddrNetlink::new(0, 0))
        .map_err(|errno| NetlinkError::Os("connect a netlink socket", errno))?;
    let mut buffer = vec![0; BUFFER];
    for sequence in 1.. {
        let asked = encode(request, NLM_F_REQUEST | NLM_F_DUMP, sequence, body);
        send(&socket, &asked, SendFlags::empty())
            .map_err(|errno| NetlinkError::Os("ask for a netlink dump", errno))?;
        take(Step::Start);
        match receive(&socket, &mut buffer, sequence, take)? {
            Ended::Whole => break,
            Ended::Interrupted if sequence >= TRIES => break,
            Ended::Interrupted => {}
            Ended::Cut(length) if length > buffer.len() && length <= BUFFER_MAX => {
                // What is left of this dump carries an old sequence number and is passed over.
                buffer.resize(length, 0);
            }
            Ended::Cut(_) => return Err(NetlinkError::TooLarge),
        }
    }
    Ok(())
}

enum Ended {
    Whole,
    /// The table changed meanwhile.
    Interrupted,
    /// A message of this length did not fit.
    Cut(usize),
}

/// Receives the dump that was asked for with `sequence`, to its end.
fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    sequence: u32,
    take: &mut dyn FnMut(Step<'_>),
) -> Result<Ended, NetlinkError> {
    let mut total = 0_usize;
    let mut interrupted = false;
    loop {
        let (filled, length) = match recv(socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(NetlinkError::Os("read a netlink dump", errno)),
        };
        total = total.saturating_add(length.max(1));
        if total > DUMP_MAX {
            return Err(NetlinkError::TooLarge);
        }
        if length > filled {
            // Its end is still to come: a dump has one after its last part, in a message of its own
            // or behind the last entries. Those may be what was cut, so the dump is given up here.
            return Ok(Ended::Cut(length));
        }
        for message in messages(buffer.get(..filled).unwrap_or_default()) {
            let message = message?;
            if message.sequence != sequence {
                continue;
            }
            interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    // An errno, negative; 0 or nothing: all is well.
                    let code = u32_at(message.payload, 0).unwrap_or(0).cast_signed();
                    if code != 0 {
                        let errno = Errno::from_raw_os_error(code.saturating_neg());
                        return Err(NetlinkError::Refused(errno));
                    }
                    return Ok(match interrupted {
                        true => Ended::Interrupted,
                        false => Ended::Whole,
                    });
                }
                0..16 => {}
                _ => take(Step::Entry(message)),
            }
        }
    }
}

fn encode(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}

fn open(protocol: Option<Protocol>) -> Result<OwnedFd, NetlinkError> {
    socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )
    .map_err(|errno| NetlinkError::Os("open a netlink socket", errno))
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(what, errno) => write!(f, "cannot {what}: {}", io::Error::from(*errno)),
            Self::Refused(errno) => {
                write!(
                    f,
                    "the kernel refused a netlink dump: {}",
                    io::Error::from(*errno)
                )
            }
            Self::Malformed => f.write_str("a netlink message is malformed"),
            Self::TooLarge => f.write_str("a netlink dump is larger than any table"),
        }
    }
}

impl std::error::Error for NetlinkError {}

/// Multicast groups: links, IPv4 and IPv6 addresses.
const ROUTE_GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// What the kernel says of devices; group 2 is udev's.
const DEVICE_GROUPS: u32 = 0x1;
/// Room for a few messages: one is enough to know, and the kernel drops the others.
const ROOM: usize = 4096;
/// Messages looked at in one go.
const LOOK: usize = 64;

/// Is told of changed links, addresses and devices.
#[derive(Debug)]
pub struct Watch {
    routes: Option<OwnedFd>,
    devices: Option<OwnedFd>,
}

/// What changed since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    pub network: bool,
    pub devices: bool,
}

impl Watch {
    /// Begins to listen; what cannot be listened to never has news.
    pub fn start() -> Self {
        Self {
            routes: listen(ROUTE, ROUTE_GROUPS).ok(),
            devices: listen(Some(netlink::KOBJECT_UEVENT), DEVICE_GROUPS).ok(),
        }
    }

    /// Whether something changed since the last call. Never waits.
    pub fn news(&self) -> News {
        let any = |_: &[u8]| true;
        News {
            network: self.routes.as_ref().is_some_and(|fd| drain(fd, any)),
            devices: self.devices.as_ref().is_some_and(|fd| drain(fd, matters)),
        }
    }
}

fn listen(protocol: Option<Protocol>, groups: u32) -> Result<OwnedFd, NetlinkError> {
    let failed = |errno| NetlinkError::Os("listen to netlink", errno);
    let socket = open(protocol)?;
    set_socket_recv_buffer_size(&socket, ROOM).map_err(failed)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups)).map_err(failed)?;
    Ok(socket)
}

/// Takes all that waits; true when something of it counts, or was lost.
fn drain(socket: &OwnedFd, counts: fn(&[u8]) -> bool) -> bool {
    let mut buffer = [0; 2048];
    let mut news = false;
    for _ in 0..LOOK {
        match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => news |= counts(buffer.get(..length).unwrap_or_default()),
            Err(Errno::INTR) => {}
            // More came than there was room for.
            Err(Errno::NOBUFS) => news = true,
            Err(_) => return news,
        }
    }
    // It comes faster than it is taken.
    true
}

/// Whether a uevent (`add@/devices/…`, then `KEY=value` each) tells of a disk or of a card on the bus:
/// containers come and go with loop devices, device mappings and queues.
fn matters(event: &[u8]) -> bool {
    let mut parts = event.split(|byte| *byte == 0);
    let head = parts.next().unwrap_or_default();
    let Some(at) = head.iter().position(|byte| *byte == b'@') else {
        return false;
    };
    let (action, path) = head.split_at(at);
    matches!(action, b"add" | b"remove" | b"change")
        && !path.starts_with(b"@/devices/virtual/block/")
        && parts.any(|part| matches!(part, b"DEVTYPE=disk" | b"SUBSYSTEM=pci"))
}

/// `0000:01:00.0`.
pub fn is_pci_address(name: &str) -> bool {
    let shape = b"xxxx:xx:xx.x";
    name.len() == shape.len()
        && name.bytes().zip(shape).all(|(byte, wanted)| match wanted {
            b'x' => byte.is_ascii_hexdigit(),
            _ => byte == *wanted,
        })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As the kernel writes an attribute.
    pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    const LOOPBACK: u32 = 1;

    fn links() -> Vec<(u32, Vec<u8>)> {
        let mut links = Vec::new();
        dump(RTM_GETLINK, &[0; 16], &mut |step| match step {
            Step::Start => links.clear(),
            Step::Entry(message) => {
                assert_eq!(message.kind, RTM_NEWLINK);
                links.push((
                    u32_at(message.payload, 4).unwrap(),
                    message.payload[16..].to_vec(),
                ));
            }
        })
        .unwrap();
        links
    }

    #[test]
    fn the_kernel_lists_the_loopback_link() {
        let links = links();
        let (_, loopback) = links.iter().find(|(index, _)| *index == LOOPBACK).unwrap();
        let name = attributes(loopback).find(|attribute| attribute.kind == 3);
        assert_eq!(name.unwrap().value, b"lo\0");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_asked_for_again_with_room() {
        let socket = open(ROUTE).unwrap();
        let mut buffer = vec![0; 32];
        let asked = encode(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, &[0; 16]);
        send(&socket, &asked, SendFlags::empty()).unwrap();
        let cut = receive(&socket, &mut buffer, 7, &mut |_| panic!("cut")).unwrap();
        assert!(matches!(cut, Ended::Cut(length) if length > 32));
    }

    #[test]
    fn a_refused_dump_says_why() {
        // No such table.
        let refused = dump(98, &[0; 16], &mut |_| {});
        assert!(
            matches!(refused, Err(NetlinkError::Refused(Errno::OPNOTSUPP))),
            "{refused:?}"
        );
    }

    #[test]
    fn hostile_bytes_end_the_walk_and_never_panic() {
        let whole = encode(16, 0, 1, b"abcdef");
        for cut in 0..whole.len() {
            assert!(
                messages(&whole[..cut]).all(|message| message.is_err()),
                "{cut}"
            );
        }
        let mut two = whole.clone();
        two.extend_from_slice(&[0, 0]);
        two.extend_from_slice(&whole);
        assert_eq!(messages(&two).filter(Result::is_ok).count(), 2);
        for length in [0_u32, 1, 15, u32::MAX, u32::MAX - 3] {
            let mut bad = whole.clone();
            bad[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bad).count(), 1);
            assert!(messages(&bad).all(|message| message.is_err()));
        }
        for length in 0..=12_u16 {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&[1, 0, 9, 9, 9, 9]);
            let found = attributes(&bytes).count();
            assert_eq!(found, usize::from((4..=8).contains(&length)), "{length}");
        }
    }

    /// In a network namespace of its own: this test starts itself again in one.
    #[test]
    fn news_are_told_once_and_nobody_waits_for_them() {
        const INSIDE: &str = "BCD_TEST_NAMESPACE";
        if std::env::var_os(INSIDE).is_none() {
            let test = "sys::netlink::tests::news_are_told_once_and_nobody_waits_for_them";
            let done = std::process::Command::new("unshare")
                .args(["--net", "--map-root-user"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", test])
                .env(INSIDE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let ip = |batch: &str| {
            let mut ip = std::process::Command::new("ip")
                .args(["-batch", "-"])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            std::io::Write::write_all(&mut ip.stdin.take().unwrap(), batch.as_bytes()).unwrap();
            assert!(ip.wait().unwrap().success());
        };
        let watch = Watch::start();
        assert!(watch.routes.is_some() && watch.devices.is_some());
        assert!(!watch.news().network, "nothing has changed yet");
        for change in [
            "link set lo up",
            "address add 192.0.2.1/32 dev lo",
            "address add 2001:db8::1/128 dev lo nodad",
            "link set lo mtu 1400",
            "address del 192.0.2.1/32 dev lo",
        ] {
            ip(change);
            // Of an IPv6 address the kernel tells a moment after it is there, of all else at once.
            let looks = if change.contains("2001:") { 1000 } else { 1 };
            let heard = (0..looks).any(|_| {
                let news = watch.news().network;
                if !news {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                news
            });
            assert!(heard, "{change}");
            assert!(!watch.news().network, "{change}, told twice");
        }
        // More than there is room for.
        let many = |what: &str| {
            (0..200).fold(String::new(), |all, i| {
                all + &format!("address {what} 10.0.0.{i}/32 dev lo\n")
            })
        };
        ip(&many("add"));
        assert!(watch.news().network);
        assert!(!watch.news().network);
        ip(&many("del"));
        assert!(watch.news().network);
    }

    #[test]
    fn of_uevents_those_of_disks_and_cards_matter() {
        let disk = "SUBSYSTEM=block\0MAJOR=254\0DEVTYPE=disk";
        for (head, keys, expected) in [
            (
                "add@/devices/pci0000:00/0000:00:02.0/virtio1/block/vdb",
                disk,
                true,
            ),
            (
                "remove@/devices/pci0000:00/0000:01:00.0",
                "SUBSYSTEM=pci",
                true,
            ),
            (
                "change@/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
                disk,
                true,
            ),
            (
                "add@/devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0n1/nvme0n1p1",
                "DEVTYPE=partition",
                false,
            ),
            ("add@/devices/virtual/block/loop0", disk, false),
            (
                "bind@/devices/pci0000:00/0000:01:00.0",
                "SUBSYSTEM=pci",
                false,
            ),
            (
                "add@/devices/virtual/net/veth0/queues/rx-0",
                "SUBSYSTEM=queues",
                false,
            ),
            ("add", disk, false),
            ("", "", false),
        ] {
            let event = format!("{head}\0ACTION=add\0{keys}\0SEQNUM=1\0");
            assert_eq!(matters(event.as_bytes()), expected, "{event}");
        }
    }
}
