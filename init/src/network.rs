//! `init network`: brings the machine's NICs up, finds an address for the right one, and keeps it. Says "up" on
//! standard output when there is one; everything for people goes to standard error.
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use bcd::config::cmdline::CommandLine;
use bcd::sys::clock::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::Clock;
use crate::dhcp::{Action, Client, Lease, MAX_MESSAGE};
use crate::dhcpv6::{Information, leads_on};
use crate::edge::{Advertised, IPV4, Links, RawSocket, lease_socket};
use crate::facts::replace;
use crate::information::Informed;
use crate::ipv6;
use crate::neighbours::Neighbours;
use crate::netlink::{self, Request};
use crate::nics::{Nic, Situation, shown};
use crate::options::Options;
use crate::{edge, facts, packet, say};

/// How often /sys is looked at while there is no address: at first, when drivers are being loaded, and later.
const FIRST_SCAN: Duration = Duration::from_millis(50);
const SCAN: Duration = Duration::from_millis(200);
/// How long it is at first.
const FIRST: Duration = Duration::from_secs(10);
/// The same once there is an IPv6 address, as DHCP may answer yet.
const SLOW_SCAN: Duration = Duration::from_secs(5);
/// Name servers that routers name and that are kept, and those that are written down; a resolver looks at three.
const SERVERS: usize = 3;
/// Domains that are searched; a resolver looks at six.
const DOMAINS: usize = 6;
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
    /// The link with an address that does not end (`ip=`): nothing is searched for.
    fixed: Option<u32>,
    /// What routers advertise; `None` where the kernel does not say.
    advertised: Option<Advertised>,
    /// The NIC with an address beyond the link that a router gave, and PID 1 knows.
    routed: Option<Nic>,
    /// Links whose router has hosts ask DHCPv6; and the one that is asked on.
    ask_dhcpv6: Vec<u32>,
    informed: Option<Informed>,
    clock: Clock,
    neighbours: Neighbours,
    /// From the lease, or fixed: device, MAC and address, as lines; the search domain, name and time servers.
    own: String,
    domain: Option<String>,
    servers: Vec<Ipv4Addr>,
    times: Vec<Ipv4Addr>,
    /// From routers.
    servers_ipv6: Vec<Ipv6Addr>,
    /// By DHCPv6.
    information: Information,
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
    // A kernel without a generator in hardware gathers randomness while somebody waits for it, a second long: better now,
    // while drivers load and servers answer, than when bcd makes its key.
    let gather = std::thread::Builder::new().stack_size(32 * 1024);
    let _ = gather.spawn(bcd::sys::random::bytes::<1>);
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
        fixed: None,
        advertised,
        routed: None,
        ask_dhcpv6: Vec::new(),
        informed: None,
        clock: Clock::default(),
        neighbours: Neighbours::default(),
        own: String::new(),
        domain: None,
        servers: Vec::new(),
        times: Vec::new(),
        servers_ipv6: Vec::new(),
        information: Information::default(),
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
        if self.held.is_none() && self.fixed.is_none() {
            self.search(now);
            wake = Some(match self.routed {
                Some(_) => SLOW_SCAN,
                None if now.saturating_sub(self.started) < FIRST => FIRST_SCAN,
                None => SCAN,
            });
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
        self.ask_for_the_rest(now);
        self.clock.due(now);
        let due = self
            .asking
            .iter()
            .map(|one| one.client.next())
            .chain(self.held.as_ref().map(|held| held.client.next()))
            .chain(self.informed.as_ref().map(Informed::next))
            .chain(self.clock.next())
            .chain(self.neighbours.next())
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
                self.neighbours.listen(nic, now);
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
                self.fixed = Some(upper.index);
                return up();
            }
            self.ask_on(nic, upper, now);
        }
        let mut usable = nics
            .iter()
            .filter(|nic| nic.carrier && situation.may_use(nic));
        if self.routed.is_none()
            && let Some((nic, address, prefix)) = usable.find_map(|nic| self.by_router(nic))
        {
            say(&format!(
                "{} has the address {address}/{prefix} from a router",
                nic.name
            ));
            if self.own.is_empty() {
                self.own = own(&nic, address.into(), prefix);
                self.write_down();
            }
            self.routed = Some(nic);
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
    fn by_router(&self, nic: &Nic) -> Option<(Nic, Ipv6Addr, u8)> {
        let upper = match self.options.vlan {
            Some(id) => Nic::read(&vlan_name(nic, id))?,
            None => nic.clone(),
        };
        let table = fs::read_to_string("/proc/net/if_inet6").ok()?;
        let (address, prefix) = ipv6::address(&table, &upper.name)?;
        Some((upper, address, prefix))
    }

    /// Begins to ask DHCPv6 where a router says so, on the link that has the network; then asks when it is time.
    fn ask_for_the_rest(&mut self, now: Duration) {
        let held = self.held.as_ref().map(|held| &held.nic);
        let mut candidates = held.into_iter().chain(&self.routed);
        if self.informed.is_none()
            && let Some(nic) = candidates.find(|nic| self.ask_dhcpv6.contains(&nic.index))
        {
            match Informed::start(nic, now) {
                Ok(informed) => self.informed = Some(informed),
                Err(error) => {
                    say(&format!("cannot ask DHCPv6 on {}: {error}", nic.name));
                    self.ask_dhcpv6.clear();
                }
            }
        }
        if let Some(informed) = &mut self.informed {
            informed.due(now);
        }
    }

    fn ask_on(&mut self, nic: &Nic, upper: Nic, now: Duration) {
        match RawSocket::open(upper.index, IPV4) {
            Ok(raw) => {
                say(&format!(
                    "asking for an address on {} ({})",
                    upper.name,
                    shown(upper.mac)
                ));
                self.asking.push(Asking {
                    lower: nic.index,
                    since: now,
                    client: Client::new(
                        upper.mac,
                        u32::from_ne_bytes(edge::number(upper.mac)),
                        now,
                    ),
                    raw,
                    nic: upper,
                });
            }
            Err(error) => say(&format!("cannot listen on {}: {error}", upper.name)),
        }
    }

    /// Says every ten seconds what is being waited for.
    fn tell(&mut self, nics: &[Nic], now: Duration) {
        if now.saturating_sub(self.told) < TELL || self.held.is_some() || self.routed.is_some() {
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
        self.times.clone_from(&lease.ntp);
        self.own = own(nic, lease.address.into(), lease.prefix);
        let times = lease.ntp.iter().copied().map(IpAddr::from);
        self.clock.offer(times, monotonic());
        self.write_down();
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

    /// Writes down what is known of servers: for resolvers, and for people.
    fn write_down(&self) {
        let mut search: Vec<&str> = Vec::new();
        for domain in self.domain.iter().chain(&self.information.search) {
            if !search.contains(&domain.as_str()) && search.len() < DOMAINS {
                search.push(domain);
            }
        }
        let lease = self.servers.iter().copied().map(IpAddr::from);
        let routers = self.servers_ipv6.iter().chain(&self.information.dns);
        let mut servers: Vec<IpAddr> = Vec::new();
        for server in lease.chain(routers.copied().map(IpAddr::from)) {
            if !servers.contains(&server) && servers.len() < SERVERS {
                servers.push(server);
            }
        }
        let times = self.times.iter().copied().map(IpAddr::from);
        let times = times.chain(self.information.ntp.iter().copied().map(IpAddr::from));
        let list = |all: Vec<IpAddr>| {
            let all: Vec<String> = all.iter().map(IpAddr::to_string).collect();
            all.join(" ")
        };
        let mut resolv = String::new();
        if !search.is_empty() {
            let _ = writeln!(resolv, "search {}", search.join(" "));
        }
        for server in &servers {
            let _ = writeln!(resolv, "nameserver {server}");
        }
        let own = &self.own;
        let (dns, ntp) = (list(servers), list(times.collect()));
        facts::write("network", &format!("{own}dns={dns}\nntp={ntp}\n"));
        if let Err(error) = replace(Path::new("/etc/resolv.conf"), &resolv) {
            say(&format!("cannot write /etc/resolv.conf: {error}"));
        }
    }

    /// Takes what routers say of name servers and of DHCPv6.
    fn take_advertised(&mut self) {
        let before = self.servers_ipv6.clone();
        let Some(advertised) = &self.advertised else {
            return;
        };
        let mut buffer = [0; 16 * 1024];
        let mut gone = Vec::new();
        while let Some(message) = advertised.next(&mut buffer) {
            gone.append(&mut netlink::gone(message));
            self.ask_dhcpv6.extend(ipv6::sends_to_dhcpv6(message));
            for (server, lifetime) in ipv6::name_servers(message).unwrap_or_default() {
                self.servers_ipv6.retain(|known| *known != server);
                if lifetime > 0 && leads_on(server) && self.servers_ipv6.len() < SERVERS {
                    self.servers_ipv6.push(server);
                }
            }
        }
        // A link counts once, and only those of this machine send here.
        self.ask_dhcpv6.sort_unstable();
        self.ask_dhcpv6.dedup();
        if self.servers_ipv6 != before {
            self.write_down();
        }
        for index in gone {
            self.forget(index);
        }
    }

    /// A link is no more. The kernel has taken its addresses and routes with it.
    fn forget(&mut self, index: u32) {
        self.raised.retain(|known| *known != index);
        self.ask_dhcpv6.retain(|known| *known != index);
        self.asking
            .retain(|one| one.lower != index && one.nic.index != index);
        self.informed.take_if(|informed| informed.link() == index);
        let is_it = |nic: Option<&Nic>| nic.is_some_and(|nic| nic.index == index);
        let held = is_it(self.held.as_ref().map(|held| &held.nic));
        let routed = is_it(self.routed.as_ref());
        if held {
            self.held = None;
        }
        if routed {
            self.routed = None;
        }
        let fixed = self.fixed.take_if(|fixed| *fixed == index).is_some();
        if held || routed || fixed {
            self.started = monotonic();
            say(
                "the NIC that had the network is gone: another one is looked for, or its return waited for",
            );
        }
    }

    /// Takes what DHCPv6 servers say.
    fn take_information(&mut self, now: Duration) {
        let found = self.informed.as_mut().and_then(|one| one.take(now));
        if let Some(found) = found
            && found != self.information
        {
            let servers = found.ntp.iter().copied().map(IpAddr::from);
            self.clock.offer(servers, now);
            self.information = found;
            self.write_down();
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
                .chain(self.informed.as_ref().map(Informed::fd))
                .chain(self.clock.fd())
                .chain(self.neighbours.fds())
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let _ = poll(&mut fds, timeout.as_ref());
        }
        self.take_advertised();
        let now = monotonic();
        self.take_information(now);
        self.clock.take(now);
        self.neighbours.take(now);
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

/// What /run/init/network says of the NIC itself.
fn own(nic: &Nic, address: IpAddr, prefix: u8) -> String {
    let (name, mac) = (&nic.name, shown(nic.mac));
    format!("device={name}\nmac={mac}\naddress={address}/{prefix}\n")
}

/// What a VLAN on top of the NIC is called.
fn vlan_name(nic: &Nic, id: u16) -> String {
    let name: String = nic.name.chars().take(10).collect();
    format!("{name}.{id}")
}

/// The sockets for asking for more time, opened when they are first needed.
fn sockets(held: &mut Held) -> Option<&(RawSocket, UdpSocket)> {
    if held.sockets.is_none() {
        let raw = RawSocket::open(held.nic.index, IPV4);
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
