//! A DHCP client's messages and decisions (RFC 2131, 2132, 3396, 3442), without a socket and without a clock:
//! [`Client`] is told what arrived and what time it is, and says what to send and when to be called again.
//!
//! What a server sends is foreign: options are read within the packet's bounds, an answer counts only
//! with our transaction id and our hardware address, and an address that cannot be one is passed over.
use std::net::Ipv4Addr;
use std::time::Duration;

/// The largest message taken; ours announces as much (option 57).
pub const MAX_MESSAGE: usize = 1472;
const MIN_MESSAGE: usize = 300;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The most routes, servers and name servers taken from a lease.
const MAX_LIST: usize = 16;
/// First wait for an answer, doubled each time up to the last.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(16);
/// How often a REQUEST is repeated before everything starts anew.
const REQUESTS: u32 = 4;
/// The shortest lease that is taken at its word; shorter ones would only make traffic.
const SHORTEST: Duration = Duration::from_secs(60);
/// The soonest that a server may have a lease renewed: one that says "at once" each time would be asked without end.
const SOONEST: Duration = Duration::from_secs(30);
/// Questions after which a server that offered and then granted nothing is taken at its offer again.
const CHANCES: u32 = 3;

/// What a server granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// Destination, its prefix's length, and the router, 0.0.0.0 for one on the link.
    pub routes: Vec<(Ipv4Addr, u8, Ipv4Addr)>,
    pub dns: Vec<Ipv4Addr>,
    pub ntp: Vec<Ipv4Addr>,
    pub domain: Option<String>,
    pub mtu: Option<u16>,
    pub server: Ipv4Addr,
    /// From the grant on: when to ask for more time, when to ask anybody, when it ends.
    pub renew: Duration,
    pub rebind: Duration,
    pub end: Duration,
}

/// What there is to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this to everybody on the link, from 0.0.0.0 or the lease's address.
    Broadcast(Vec<u8>),
    /// Send this to the lease's server, from the lease's address.
    Unicast(Ipv4Addr, Vec<u8>),
    /// A lease is granted, or granted again.
    Bound(Lease),
    /// The lease is over: forget the address.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Selecting,
    Requesting {
        server: Ipv4Addr,
        address: Ipv4Addr,
    },
    Bound {
        lease: Lease,
        since: Duration,
    },
    /// Past the renewal time; past the rebinding time once `anybody`.
    Renewing {
        lease: Lease,
        since: Duration,
        anybody: bool,
    },
}

/// One NIC's client.
#[derive(Debug, Clone)]
pub struct Client {
    mac: [u8; 6],
    state: State,
    transaction: u32,
    started: Duration,
    tries: u32,
    next: Duration,
    /// Offered last, and granted nothing: another server comes first.
    avoided: Option<Ipv4Addr>,
}

impl Client {
    /// A client that begins at `now`. `random` makes its transaction ids hard to guess.
    pub fn new(mac: [u8; 6], random: u32, now: Duration) -> Self {
        Self {
            mac,
            state: State::Selecting,
            transaction: random,
            started: now,
            tries: 0,
            next: now,
            avoided: None,
        }
    }

    /// When [`due`](Self::due) wants to be called.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Whether a lease is held.
    pub fn is_bound(&self) -> bool {
        matches!(self.state, State::Bound { .. } | State::Renewing { .. })
    }

    /// How often the present question was asked.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The time has come: what to do.
    pub fn due(&mut self, now: Duration) -> Option<Action> {
        if now < self.next {
            return None;
        }
        match self.state.clone() {
            State::Selecting => {
                let message = self.message(now, 1, &[]);
                self.wait(now);
                Some(Action::Broadcast(message))
            }
            State::Requesting { server, address } => {
                if self.tries >= REQUESTS {
                    self.avoided = Some(server);
                    self.restart(now);
                    return self.due(now);
                }
                let message =
                    self.message(now, 3, &[(50, &address.octets()), (54, &server.octets())]);
                self.wait(now);
                Some(Action::Broadcast(message))
            }
            State::Bound { lease, since } => {
                self.begin(now);
                self.state = State::Renewing {
                    lease,
                    since,
                    anybody: false,
                };
                self.due(now)
            }
            State::Renewing { lease, since, .. } => {
                if now >= since + lease.end {
                    self.restart(now);
                    return Some(Action::Lost);
                }
                let anybody = now >= since + lease.rebind;
                let mut message = self.message(now, 3, &[]);
                if let Some(field) = message.get_mut(12..16) {
                    field.copy_from_slice(&lease.address.octets());
                }
                // Half of what is left until the next stage, at least a minute (RFC 2131, 4.4.5).
                let stage = since + if anybody { lease.end } else { lease.rebind };
                let half = stage.saturating_sub(now) / 2;
                self.next = (now + half.max(SHORTEST)).min(stage.max(now + FIRST_WAIT));
                self.tries = self.tries.saturating_add(1);
                let server = lease.server;
                self.state = State::Renewing {
                    lease,
                    since,
                    anybody,
                };
                Some(match anybody {
                    true => Action::Broadcast(message),
                    false => Action::Unicast(server, message),
                })
            }
        }
    }

    /// A message from port 67 arrived. `None` when it changes nothing.
    pub fn arrived(&mut self, now: Duration, message: &[u8]) -> Option<Action> {
        let answer = Answer::parse(message)?;
        if answer.transaction != self.transaction || answer.mac != self.mac {
            return None;
        }
        match (&self.state, answer.kind) {
            (State::Selecting, 2) => {
                let lease = answer.lease()?;
                if self.avoided == Some(lease.server) && self.tries < CHANCES {
                    return None;
                }
                self.begin_same(now);
                self.state = State::Requesting {
                    server: lease.server,
                    address: lease.address,
                };
                self.due(now)
            }
            (State::Requesting { server, address }, 5) => {
                let lease = answer.lease()?;
                if lease.server != *server || lease.address != *address {
                    return None;
                }
                Some(self.bound(now, lease))
            }
            (State::Renewing { lease: held, .. }, 5) => {
                let lease = answer.lease()?;
                let same = lease.address == held.address;
                same.then(|| self.bound(now, lease))
            }
            (State::Requesting { server, .. }, 6) if answer.server == Some(*server) => {
                self.avoided = Some(*server);
                self.restart(now);
                // A server that refuses what it just offered must not make us loop.
                self.next = now + FIRST_WAIT;
                None
            }
            // Until anybody is asked, a refusal is its own server's alone.
            (State::Renewing { lease, anybody, .. }, 6)
                if *anybody || answer.server == Some(lease.server) =>
            {
                self.restart(now);
                Some(Action::Lost)
            }
            _ => None,
        }
    }

    fn bound(&mut self, now: Duration, lease: Lease) -> Action {
        self.tries = 0;
        self.avoided = None;
        self.next = now + lease.renew;
        self.state = State::Bound {
            lease: lease.clone(),
            since: now,
        };
        Action::Bound(lease)
    }

    fn restart(&mut self, now: Duration) {
        self.state = State::Selecting;
        self.begin(now);
    }

    fn begin(&mut self, now: Duration) {
        // Ids need to differ, not to be unguessable beyond the first: Knuth's generator.
        self.transaction = self
            .transaction
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.started = now;
        self.begin_same(now);
    }

    fn begin_same(&mut self, now: Duration) {
        self.tries = 0;
        self.next = now;
    }

    fn wait(&mut self, now: Duration) {
        let wait = FIRST_WAIT
            .saturating_mul(1 << self.tries.min(4))
            .min(LAST_WAIT);
        self.tries = self.tries.saturating_add(1);
        self.next = now + wait;
    }

    fn message(&self, now: Duration, kind: u8, more: &[(u8, &[u8])]) -> Vec<u8> {
        let mut message = vec![1, 1, 6, 0];
        message.extend_from_slice(&self.transaction.to_be_bytes());
        let seconds = now.saturating_sub(self.started).as_secs();
        message.extend_from_slice(&u16::try_from(seconds).unwrap_or(u16::MAX).to_be_bytes());
        // Servers answer to the hardware address, which a raw socket hears. Where that gets lost,
        // every second question asks for a broadcast.
        let broadcast = self.tries % 2 == 1 && !self.is_bound();
        message.extend_from_slice(if broadcast { &[0x80, 0] } else { &[0, 0] });
        message.resize(28, 0);
        message.extend_from_slice(&self.mac);
        message.resize(236, 0);
        message.extend_from_slice(&COOKIE);
        let [a, b, c, d, e, f] = self.mac;
        let size = u16::try_from(MAX_MESSAGE).unwrap_or(u16::MAX).to_be_bytes();
        let fixed: [(u8, &[u8]); 5] = [
            (53, &[kind]),
            (61, &[1, a, b, c, d, e, f]),
            (57, &size),
            (60, b"bcd"),
            (55, &[1, 3, 6, 15, 26, 42, 51, 54, 58, 59, 121]),
        ];
        for (code, value) in fixed.iter().chain(more) {
            message.push(*code);
            message.push(u8::try_from(value.len()).unwrap_or(0));
            message.extend_from_slice(value);
        }
        message.push(255);
        // Some relays drop what is shorter than a BOOTP message.
        message.resize(message.len().max(MIN_MESSAGE), 0);
        message
    }
}

/// A server's message, read.
struct Answer<'a> {
    transaction: u32,
    mac: [u8; 6],
    kind: u8,
    address: Ipv4Addr,
    server: Option<Ipv4Addr>,
    options: [Option<&'a [u8]>; 3],
}

impl<'a> Answer<'a> {
    fn parse(message: &'a [u8]) -> Option<Self> {
        if message.len() > MAX_MESSAGE || message.first() != Some(&2) {
            return None;
        }
        if message.get(236..240)? != COOKIE {
            return None;
        }
        let options = message.get(240..)?;
        let mut found = Self {
            transaction: u32::from_be_bytes(message.get(4..8)?.try_into().ok()?),
            mac: message.get(28..34)?.try_into().ok()?,
            kind: 0,
            address: address(message.get(16..20)?)?,
            server: None,
            options: [Some(options), None, None],
        };
        // Option 52: the file's and the server's name fields hold options too.
        let [_, file, name] = &mut found.options;
        match option(&[Some(options)], 52).first() {
            Some(1) => *file = message.get(108..236),
            Some(2) => *name = message.get(44..108),
            Some(3) => {
                *file = message.get(108..236);
                *name = message.get(44..108);
            }
            _ => {}
        }
        found.kind = *found.option(53).first()?;
        found.server = address(&found.option(54));
        Some(found)
    }

    fn option(&self, code: u8) -> Vec<u8> {
        option(&self.options, code)
    }

    fn addresses(&self, code: u8) -> Vec<Ipv4Addr> {
        let value = self.option(code);
        let all = value.chunks_exact(4).filter_map(address);
        all.filter(|address| !address.is_unspecified())
            .take(MAX_LIST)
            .collect()
    }

    fn seconds(&self, code: u8) -> Option<Duration> {
        let four: [u8; 4] = self.option(code).get(..4)?.try_into().ok()?;
        Some(Duration::from_secs(u32::from_be_bytes(four).into()))
    }

    fn lease(&self) -> Option<Lease> {
        let server = self.server?;
        // 0.0.0.0/8 is nobody's.
        let usable = !(self.address.octets().starts_with(&[0])
            || self.address.is_broadcast()
            || self.address.is_multicast()
            || self.address.is_loopback());
        let end = self.seconds(51)?;
        if !usable || end.is_zero() {
            return None;
        }
        let end = end.max(SHORTEST);
        // Times in another order than renewal, rebinding, end are none (RFC 2131, 4.4.5).
        let within = |code: u8, last: Duration| {
            self.seconds(code)
                .filter(|time| (SOONEST..=last).contains(time))
        };
        let rebind = within(59, end).unwrap_or(end * 7 / 8);
        let renew = within(58, rebind).unwrap_or((end / 2).min(rebind));
        let mask = address(&self.option(1)).map(u32::from);
        let prefix = match mask {
            // A mask with holes is none, and one of nothing neither.
            Some(mask) if mask != 0 && mask.leading_ones() + mask.trailing_zeros() == 32 => {
                u8::try_from(mask.leading_ones()).ok()?
            }
            Some(_) => return None,
            // By class, as a last resort.
            None => match self.address.octets() {
                [0..=127, ..] => 8,
                [128..=191, ..] => 16,
                _ => 24,
            },
        };
        let mut routes = classless(&self.option(121));
        if routes.is_empty() {
            // RFC 3442: the routers count only without classless routes.
            let router = self.addresses(3).first().copied();
            routes.extend(router.map(|router| (Ipv4Addr::UNSPECIFIED, 0, router)));
        }
        beyond(self.address, prefix, &mut routes);
        let mtu: Option<[u8; 2]> = self.option(26).get(..2).and_then(|two| two.try_into().ok());
        Some(Lease {
            address: self.address,
            prefix,
            routes,
            dns: self.addresses(6),
            ntp: self.addresses(42),
            domain: domain(&self.option(15)),
            // RFC 2132: 68 is the least; below 576 nobody means it.
            mtu: mtu.map(u16::from_be_bytes).filter(|mtu| *mtu >= 576),
            server,
            renew,
            rebind,
            end,
        })
    }
}

/// An option's value from all fields that hold options. One that comes in parts is joined (RFC 3396).
fn option(fields: &[Option<&[u8]>], wanted: u8) -> Vec<u8> {
    let mut value = Vec::new();
    for mut rest in fields.iter().copied().flatten() {
        loop {
            match rest {
                [0, tail @ ..] => rest = tail,
                [255, ..] | [] | [_] => break,
                [code, length, tail @ ..] => {
                    let Some((found, after)) = tail.split_at_checked(usize::from(*length)) else {
                        break;
                    };
                    if *code == wanted {
                        value.extend_from_slice(found);
                    }
                    rest = after;
                }
            }
        }
    }
    value
}

/// Puts a route to each router that the lease's own network does not hold: where hosts get a /32, all are such.
fn beyond(own: Ipv4Addr, prefix: u8, routes: &mut Vec<(Ipv4Addr, u8, Ipv4Addr)>) {
    let holds = |network: Ipv4Addr, prefix: u8, address: Ipv4Addr| {
        let differing = u32::from(network) ^ u32::from(address);
        differing.leading_zeros() >= u32::from(prefix)
    };
    let mut found = Vec::new();
    for (_, _, router) in routes.iter() {
        let known = holds(own, prefix, *router)
            || routes.iter().chain(&found).any(|(network, prefix, over)| {
                over.is_unspecified() && holds(*network, *prefix, *router)
            });
        if !router.is_unspecified() && !known {
            found.push((*router, 32, Ipv4Addr::UNSPECIFIED));
        }
    }
    routes.append(&mut found);
}

/// Routes as option 121 packs them: the prefix's length, as many bytes as it needs, the router.
fn classless(mut rest: &[u8]) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    let mut routes = Vec::new();
    while let [prefix @ 0..=32, tail @ ..] = rest {
        let needed = usize::from(prefix.div_ceil(8));
        let Some((significant, tail)) = tail.split_at_checked(needed) else {
            break;
        };
        let Some((router, tail)) = tail.split_at_checked(4) else {
            break;
        };
        let mut octets = [0; 4];
        for (octet, byte) in octets.iter_mut().zip(significant) {
            *octet = *byte;
        }
        // Bits beyond the prefix would make the kernel refuse the route.
        let mask = u32::MAX.checked_shl(32 - u32::from(*prefix)).unwrap_or(0);
        let destination = Ipv4Addr::from(u32::from_be_bytes(octets) & mask);
        if let Some(router) = address(router) {
            routes.push((destination, *prefix, router));
        }
        if routes.len() == MAX_LIST {
            break;
        }
        rest = tail;
    }
    routes
}

/// A domain's name of letters, digits, `-` and `.`: it goes into a file that other programs read.
fn domain(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
    let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    (!text.is_empty() && text.len() <= 253 && text.bytes().all(fine)).then(|| text.to_owned())
}

fn address(four: &[u8]) -> Option<Ipv4Addr> {
    let four: [u8; 4] = four.try_into().ok()?;
    Some(Ipv4Addr::from(four))
}

#[cfg(test)]
mod tests;
