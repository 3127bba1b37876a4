//! `init network`: brings the machine's NICs up, finds an address for the right one, and keeps it. Says "up" on
//! standard output when there is one; everything for people goes to standard error.
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use bcd::config::cmdline::CommandLine;
use bcd::sys::clock::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dhcp::{Action, Client, Lease, MAX_MESSAGE};
use crate::edge::{Advertised, Links, RawSocket, lease_socket};
use crate::ipv6;
use crate::netlink::Request;
use crate::nics::{Nic, Situation, shown};
use crate::options::Options;
use crate::{packet, say};

/// How often /sys is looked at while there is no address.
const SCAN: Duration = Duration::from_millis(200);
/// The same once there is an IPv6 address, as DHCP may answer yet.
const SLOW_SCAN: Duration = Duration::from_secs(5);
/// Name servers by IPv6 that are kept; a resolver looks at three.
const SERVERS: usize = 3;
/// How often a person is told what is being waited for.
const TELL: Duration = Duration::from_secs(10);

/// One NIC that asks for an address.
struct Asking {
    nic: Nic,
    /// The hardware below a VLAN; otherwise the NIC's own.
    lower: u32,
    since: Duration,
    client: Client,
    raw: RawSocket,
}

/// The NIC that has its address.
struct Held {
    nic: Nic,
    client: Client,
    lease: Lease,
    /// Open only while more time is being asked for, so that no other traffic wakes anybody.
    sockets: Option<(RawSocket, UdpSocket)>,
}

struct Network {
    options: Options,
    links: Links,
    started: Duration,
    told: Duration,
    raised: Vec<u32>,
    asking: Vec<Asking>,
    held: Option<Held>,
    /// What routers advertise; `None` where the kernel does not say.
    advertised: Option<Advertised>,
    /// A router gave an address beyond the link, and PID 1 knows.
    has_ipv6: bool,
    /// From the lease: the search domain and name servers.
    domain: Option<String>,
    servers: Vec<Ipv4Addr>,
    /// From routers.
    servers_ipv6: Vec<Ipv6Addr>,
}

/// Runs until the machine ends.
///
/// # Errors
/// Nothing can be configured at all: one sentence.
pub fn run() -> Result<(), String> {
    let line = fs::read("/proc/cmdline").unwrap_or_default();
    let options = Options::new(&CommandLine::parse(&line));
    let links = Links::open().map_err(|error| format!("cannot configure the network: {error}"))?;
    if let Err(error) = links.ask(&Request::up(1)) {
        say(&format!("cannot bring the loopback device up: {error}"));
    }
    if options.no_network {
        say("ip=off: no network is configured");
        up();
        loop {
            std::thread::park();
        }
    }
    // Before any link is up, so that no advertisement is missed.
    let advertised = Advertised::open().ok();
    let now = monotonic();
    let mut network = Network {
        options,
        links,
        started: now,
        told: now,
        raised: Vec::new(),
        asking: Vec::new(),
        held: None,
        advertised,
        has_ipv6: false,
        domain: None,
        servers: Vec::new(),
        servers_ipv6: Vec::new(),
    };
    loop {
        network.step();
    }
}

/// Tells PID 1 that there is a network.
fn up() {
    let mut out = io::stdout();
    let _ = out.write_all(b"up\n").and_then(|()| out.flush());
}

impl Network {
    /// Does what is due, then waits for an answer or the next time.
    fn step(&mut self) {
        let now = monotonic();
        let mut wake = None;
        if self.held.is_none() {
            self.search(now);
            wake = Some(if self.has_ipv6 { SLOW_SCAN } else { SCAN });
        }
        for index in (0..self.asking.len()).rev() {
            let action = self
                .asking
                .get_mut(index)
                .and_then(|one| one.client.due(now));
            self.act_asking(index, action);
        }
        if let Some(action) = self.held.as_mut().and_then(|held| held.client.due(now)) {
            self.act_held(action);
        }
        let due = self
            .asking
            .iter()
            .map(|one| one.client.next())
            .chain(self.held.as_ref().map(|held| held.client.next()))
            .min();
        let until_due = due.map(|due| due.saturating_sub(monotonic()));
        self.wait([wake, until_due].into_iter().flatten().min());
    }

    /// Looks for NICs that may be used now, and starts asking on them.
    fn search(&mut self, now: Duration) {
        let nics = Nic::all();
        for nic in &nics {
            if !self.raised.contains(&nic.index) {
                self.raised.push(nic.index);
                if let Err(error) = self.links.ask(&Request::up(nic.index)) {
                    say(&format!("cannot bring {} up: {error}", nic.name));
                }
            }
        }
        let fixed = self.options.address.clone();
        let named = fixed
            .as_ref()
            .and_then(|fixed| fixed.device.clone())
            .or_else(|| self.options.vlan_device.clone());
        let mut situation = Situation {
            nics: &nics,
            bootif: self.options.bootif,
            device: named.as_deref(),
            elapsed: now.saturating_sub(self.started),
            asking: None,
        };
        situation.asking = nics
            .iter()
            .filter(|nic| situation.is_named(nic))
            .find_map(|nic| self.asking.iter().find(|one| one.lower == nic.index))
            .map(|one| now.saturating_sub(one.since));
        for nic in &nics {
            let known = self.asking.iter().any(|one| one.lower == nic.index);
            if known || !nic.carrier || !situation.may_use(nic) {
                continue;
            }
            let Some(upper) = self.upper(nic) else {
                continue;
            };
            if let Some(fixed) = &fixed {
                let router = fixed.router.into_iter();
                let lease = Lease {
                    address: fixed.address,
                    prefix: fixed.prefix,
                    routes: router
                        .map(|router| (Ipv4Addr::UNSPECIFIED, 0, router))
                        .collect(),
                    dns: fixed.dns.clone(),
                    ntp: fixed.ntp.clone(),
                    domain: None,
                    mtu: None,
                    server: Ipv4Addr::UNSPECIFIED,
                    renew: Duration::MAX,
                    rebind: Duration::MAX,
                    end: Duration::MAX,
                };
                self.configure(&upper, &lease);
                up();
                loop {
                    std::thread::park();
                }
            }
            self.ask_on(nic, upper, now);
        }
        let mut usable = nics
            .iter()
            .filter(|nic| nic.carrier && situation.may_use(nic));
        if !self.has_ipv6
            && let Some((name, address, prefix)) = usable.find_map(|nic| self.by_router(nic))
        {
            self.has_ipv6 = true;
            say(&format!(
                "{name} has the address {address}/{prefix} from a router"
            ));
            up();
        }
        self.tell(&nics, now);
    }

    /// The device that gets the address: the NIC, or a VLAN on top of it.
    fn upper(&self, nic: &Nic) -> Option<Nic> {
        let Some(id) = self.options.vlan else {
            return Some(nic.clone());
        };
        let name = vlan_name(nic, id);
        match self.links.ask(&Request::vlan(nic.index, id, &name)) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                say(&format!(
                    "cannot make the VLAN {id} on {}: {error}",
                    nic.name
                ));
                None
            }
            _ => {
                let upper = Nic::read(&name)?;
                let _ = self.links.ask(&Request::up(upper.index));
                Some(upper)
            }
        }
    }

    /// The IPv6 address that a router gave the NIC, or the VLAN on top of it.
    fn by_router(&self, nic: &Nic) -> Option<(String, Ipv6Addr, u8)> {
        let name = match self.options.vlan {
            Some(id) => vlan_name(nic, id),
            None => nic.name.clone(),
        };
        let table = fs::read_to_string("/proc/net/if_inet6").ok()?;
        let (address, prefix) = ipv6::address(&table, &name)?;
        Some((name, address, prefix))
    }

    fn ask_on(&mut self, nic: &Nic, upper: Nic, now: Duration) {
        match RawSocket::open(upper.index) {
            Ok(raw) => {
                say(&format!(
                    "asking for an address on {} ({})",
                    upper.name,
                    shown(upper.mac)
                ));
                // Without randomness yet, two machines still differ by their addresses.
                let [.., a, b, c, d] = upper.mac;
                let random = bcd::sys::random::bytes().unwrap_or([a, b, c, d]);
                self.asking.push(Asking {
                    lower: nic.index,
                    since: now,
                    client: Client::new(upper.mac, u32::from_ne_bytes(random), now),
                    raw,
                    nic: upper,
                });
            }
            Err(error) => say(&format!("cannot listen on {}: {error}", upper.name)),
        }
    }

    /// Says every ten seconds what is being waited for.
    fn tell(&mut self, nics: &[Nic], now: Duration) {
        if now.saturating_sub(self.told) < TELL || self.held.is_some() || self.has_ipv6 {
            return;
        }
        self.told = now;
        let mut text = String::from("no network yet:");
        if let Some(mac) = self.options.bootif
            && !nics.iter().any(|nic| nic.mac == mac)
        {
            let _ = write!(text, " BOOTIF names {}, which is not here;", shown(mac));
        }
        if nics.is_empty() {
            text.push_str(" no NIC is seen, its driver may be missing from the image");
        }
        for nic in nics {
            let asking = self.asking.iter().find(|one| one.lower == nic.index);
            let _ = match (nic.carrier, asking) {
                (false, _) => write!(text, " {} has no link;", nic.name),
                (true, Some(one)) => write!(
                    text,
                    " {} asked {} times without an answer;",
                    one.nic.name,
                    one.client.tries()
                ),
                (true, None) => write!(text, " {} waits for the boot NIC;", nic.name),
            };
        }
        say(text.trim_end_matches(';'));
    }

    fn act_asking(&mut self, index: usize, action: Option<Action>) {
        let Some(one) = self.asking.get_mut(index) else {
            return;
        };
        match action {
            Some(Action::Broadcast(message)) => {
                broadcast(&one.raw, Ipv4Addr::UNSPECIFIED, &message)
            }
            Some(Action::Bound(lease)) => {
                let one = self.asking.swap_remove(index);
                // The others have lost, and their sockets would wake us for nothing.
                self.asking.clear();
                self.configure(&one.nic, &lease);
                self.held = Some(Held {
                    nic: one.nic,
                    client: one.client,
                    lease,
                    sockets: None,
                });
                up();
            }
            Some(Action::Unicast(..) | Action::Lost) | None => {}
        }
    }

    fn act_held(&mut self, action: Action) {
        let Some(held) = &mut self.held else {
            return;
        };
        match action {
            Action::Broadcast(message) => {
                let address = held.lease.address;
                if let Some((raw, _)) = sockets(held) {
                    broadcast(raw, address, &message);
                }
            }
            Action::Unicast(server, message) => {
                if let Some((_, socket)) = sockets(held) {
                    let _ = socket.send_to(&message, (server, 67));
                }
            }
            Action::Bound(lease) => {
                held.sockets = None;
                if lease != held.lease {
                    held.lease = lease.clone();
                    let nic = held.nic.clone();
                    self.configure(&nic, &lease);
                }
            }
            Action::Lost => {
                say(&format!(
                    "the address {} on {} was not granted any longer",
                    held.lease.address, held.nic.name
                ));
                let request =
                    Request::forget(held.nic.index, held.lease.address, held.lease.prefix);
                let _ = self.links.ask(&request);
                // Everything begins anew, on every NIC.
                self.held = None;
                self.started = monotonic();
            }
        }
    }

    /// Gives the NIC what the lease says, and writes down what others need to know of it.
    fn configure(&mut self, nic: &Nic, lease: &Lease) {
        let mut failed = Vec::new();
        let mut ask = |what: &str, request: &Request| {
            if let Err(error) = self.links.ask(request) {
                failed.push(format!("{what}: {error}"));
            }
        };
        if let Some(mtu) = lease.mtu {
            ask("its MTU", &Request::mtu(nic.index, mtu));
        }
        ask(
            "the address",
            &Request::address(nic.index, lease.address, lease.prefix),
        );
        // Routes on the link first: others may lead over their routers.
        let (direct, over): (Vec<_>, Vec<_>) = lease
            .routes
            .iter()
            .partition(|(_, _, router)| router.is_unspecified());
        for (destination, prefix, router) in direct.into_iter().chain(over) {
            ask(
                "a route",
                &Request::route(nic.index, destination, prefix, router),
            );
        }
        self.domain.clone_from(&lease.domain);
        self.servers.clone_from(&lease.dns);
        if let Err(error) = self.write_servers() {
            failed.push(format!("/etc/resolv.conf: {error}"));
        }
        let list = |all: &[Ipv4Addr]| {
            all.iter()
                .map(Ipv4Addr::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let facts = format!(
            "device={}\nmac={}\naddress={}/{}\ndns={}\nntp={}\n",
            nic.name,
            shown(nic.mac),
            lease.address,
            lease.prefix,
            list(&lease.dns),
            list(&lease.ntp)
        );
        let _ = fs::create_dir_all("/run/init");
        if let Err(error) = replace("/run/init/network", &facts) {
            failed.push(format!("/run/init/network: {error}"));
        }
        say(&format!(
            "{} has the address {}/{}{}",
            nic.name,
            lease.address,
            lease.prefix,
            match lease.routes.iter().find(|(_, prefix, _)| *prefix == 0) {
                Some((_, _, router)) => format!(", router {router}"),
                None => ", and no router".to_owned(),
            }
        ));
        if !failed.is_empty() {
            say(&format!(
                "of {}'s network did not work: {}",
                nic.name,
                failed.join(", ")
            ));
        }
    }

    /// Writes down which name servers there are.
    fn write_servers(&self) -> io::Result<()> {
        let mut resolv = String::new();
        if let Some(domain) = &self.domain {
            let _ = writeln!(resolv, "search {domain}");
        }
        let all = self.servers.iter().copied().map(IpAddr::from);
        for server in all.chain(self.servers_ipv6.iter().copied().map(IpAddr::from)) {
            let _ = writeln!(resolv, "nameserver {server}");
        }
        replace("/etc/resolv.conf", &resolv)
    }

    /// Takes what routers say of name servers.
    fn take_advertised(&mut self) {
        let before = self.servers_ipv6.clone();
        let Some(advertised) = &self.advertised else {
            return;
        };
        let mut buffer = [0; 2048];
        while let Some(message) = advertised.next(&mut buffer) {
            for (server, lifetime) in ipv6::name_servers(message).unwrap_or_default() {
                // Without the link's name, a link-local address leads nowhere.
                let usable = server
                    .segments()
                    .first()
                    .is_some_and(|first| first & 0xffc0 != 0xfe80);
                self.servers_ipv6.retain(|known| *known != server);
                if lifetime > 0 && usable && self.servers_ipv6.len() < SERVERS {
                    self.servers_ipv6.push(server);
                }
            }
        }
        if self.servers_ipv6 != before
            && let Err(error) = self.write_servers()
        {
            say(&format!("cannot write /etc/resolv.conf: {error}"));
        }
    }

    /// Waits for a packet or until `timeout` is over, and hands packets to their clients.
    fn wait(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        {
            let held = self.held.as_ref().and_then(|held| held.sockets.as_ref());
            let held = held.map(|(raw, socket)| [raw.as_fd(), socket.as_fd()]);
            let mut fds: Vec<PollFd<'_>> = self
                .asking
                .iter()
                .map(|one| one.raw.as_fd())
                .chain(held.into_iter().flatten())
                .chain(self.advertised.as_ref().map(AsFd::as_fd))
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let _ = poll(&mut fds, timeout.as_ref());
        }
        self.take_advertised();
        let now = monotonic();
        let mut buffer = [0; 2048];
        for index in (0..self.asking.len()).rev() {
            while let Some(one) = self.asking.get_mut(index) {
                let Some(message) = heard(&one.raw, &mut buffer) else {
                    break;
                };
                let action = message.and_then(|message| one.client.arrived(now, message));
                self.act_asking(index, action);
            }
        }
        while let Some(held) = &mut self.held {
            let Some((raw, socket)) = &held.sockets else {
                break;
            };
            let action = if let Some(message) = heard(raw, &mut buffer) {
                message.and_then(|message| held.client.arrived(now, message))
            } else if let Ok((length, _)) = socket.recv_from(&mut buffer) {
                let message = buffer.get(..length.min(MAX_MESSAGE)).unwrap_or_default();
                held.client.arrived(now, message)
            } else {
                break;
            };
            if let Some(action) = action {
                self.act_held(action);
            }
        }
    }
}

/// What a VLAN on top of the NIC is called.
fn vlan_name(nic: &Nic, id: u16) -> String {
    let name: String = nic.name.chars().take(10).collect();
    format!("{name}.{id}")
}

/// The sockets for asking for more time, opened when they are first needed.
fn sockets(held: &mut Held) -> Option<&(RawSocket, UdpSocket)> {
    if held.sockets.is_none() {
        let raw = RawSocket::open(held.nic.index);
        let socket = lease_socket(held.lease.address);
        match (raw, socket) {
            (Ok(raw), Ok(socket)) => held.sockets = Some((raw, socket)),
            (Err(error), _) | (_, Err(error)) => {
                say(&format!(
                    "cannot ask for more time on {}: {error}",
                    held.nic.name
                ));
            }
        }
    }
    held.sockets.as_ref()
}

fn broadcast(raw: &RawSocket, from: Ipv4Addr, message: &[u8]) {
    let packet = packet::build((from, 68), (Ipv4Addr::BROADCAST, 67), message);
    // A link that is down right now: the next try comes by itself.
    let _ = raw.broadcast(&packet);
}

/// The next packet on the link: `Some(None)` for one that is no DHCP answer, `None` when there is none now.
fn heard<'a>(raw: &RawSocket, buffer: &'a mut [u8]) -> Option<Option<&'a [u8]>> {
    match raw.next(buffer) {
        Ok(Some(bytes)) => Some(packet::parse(bytes, 68).map(|(_, message)| message)),
        _ => None,
    }
}

/// Writes the file whole: who reads it meanwhile sees the old or the new one.
fn replace(path: &str, content: &str) -> io::Result<()> {
    let new = format!("{path}.new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}
