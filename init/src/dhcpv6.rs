//! Stateless DHCPv6 (RFC 8415, 18.2.6): what a router's advertisements leave unsaid, name servers, the search
//! list and time servers. Without a socket and without a clock, as [`crate::dhcp`]: [`Client`] is told what
//! arrived and what time it is. Addresses come from routers alone; none is asked for here.
//!
//! An answer counts only with our transaction id and our identifier, its options are read within its bounds,
//! and an address that leads nowhere is passed over.
use std::net::Ipv6Addr;
use std::time::Duration;

/// The largest answer that is taken.
pub const MAX_MESSAGE: usize = 2048;
/// The most servers of a kind, and the most domains, taken from an answer.
const MAX_LIST: usize = 6;
/// First wait for an answer (INF_TIMEOUT), doubled each time up to the last (INF_MAX_RT).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(3600);
/// How long an answer is good for when it does not say (IRT_DEFAULT), and at least (IRT_MINIMUM).
const REFRESH: Duration = Duration::from_secs(86_400);
const SOONEST: Duration = Duration::from_secs(600);

const INFORMATION_REQUEST: u8 = 11;
const REPLY: u8 = 7;
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const OPTION_REQUEST: u16 = 6;
const ELAPSED: u16 = 8;
const STATUS: u16 = 13;
const NAME_SERVERS: u16 = 23;
const DOMAINS: u16 = 24;
const SNTP_SERVERS: u16 = 31;
const REFRESH_TIME: u16 = 32;
const NTP_SERVER: u16 = 56;
/// An address within [`NTP_SERVER`] (RFC 5908).
const NTP_ADDRESS: u16 = 1;

/// What a server told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Information {
    pub dns: Vec<Ipv6Addr>,
    pub ntp: Vec<Ipv6Addr>,
    pub search: Vec<String>,
}

/// One NIC's client.
#[derive(Debug, Clone)]
pub struct Client {
    mac: [u8; 6],
    transaction: [u8; 3],
    /// When the present question was first asked.
    started: Option<Duration>,
    wait: Duration,
    next: Duration,
}

impl Client {
    /// A client that asks within a second of `now`, so that a hall of machines does not ask at once.
    pub fn new(mac: [u8; 6], random: [u8; 4], now: Duration) -> Self {
        let [a, b, c, d] = random;
        Self {
            mac,
            transaction: [a, b, c],
            started: None,
            wait: FIRST_WAIT,
            next: now + Duration::from_millis(u64::from(d) * 1000 / 256),
        }
    }

    /// When [`due`](Self::due) wants to be called.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// The time has come: the question to send to all servers on the link.
    pub fn due(&mut self, now: Duration) -> Option<Vec<u8>> {
        if now < self.next {
            return None;
        }
        let started = *self.started.get_or_insert(now);
        self.next = now + self.wait;
        self.wait = (self.wait * 2).min(LAST_WAIT);
        Some(self.message(now.saturating_sub(started)))
    }

    /// A message from a server arrived. `None` when it answers nothing that was asked.
    pub fn arrived(&mut self, now: Duration, message: &[u8]) -> Option<Information> {
        self.started?;
        let options = message
            .strip_prefix(&[REPLY])?
            .strip_prefix(&self.transaction)?;
        if message.len() > MAX_MESSAGE {
            return None;
        }
        let mut found = Information::default();
        let (mut ours, mut server, mut refresh) = (false, false, REFRESH);
        for (code, value) in Options(options) {
            match code {
                CLIENT_ID => ours = value == self.identifier(),
                SERVER_ID => server = !value.is_empty(),
                // A server that has nothing for us.
                STATUS if value.get(..2) != Some(&[0, 0]) => return None,
                NAME_SERVERS => addresses(value, &mut found.dns),
                SNTP_SERVERS => addresses(value, &mut found.ntp),
                NTP_SERVER => {
                    let own = Options(value).filter(|(code, _)| *code == NTP_ADDRESS);
                    own.for_each(|(_, address)| addresses(address, &mut found.ntp));
                }
                DOMAINS => found.search.extend(domains(value)),
                REFRESH_TIME => {
                    let seconds: [u8; 4] = value.try_into().ok()?;
                    refresh = Duration::from_secs(u32::from_be_bytes(seconds).into()).max(SOONEST);
                }
                _ => {}
            }
        }
        if !ours || !server {
            return None;
        }
        found.search.truncate(MAX_LIST);
        // The next question is another one.
        let [a, b, c] = self.transaction;
        let number = u32::from_be_bytes([0, a, b, c]).wrapping_mul(1_664_525);
        let [_, a, b, c] = number.wrapping_add(1_013_904_223).to_be_bytes();
        self.transaction = [a, b, c];
        self.started = None;
        self.wait = FIRST_WAIT;
        self.next = now + refresh;
        Some(found)
    }

    /// DUID-LL of Ethernet.
    fn identifier(&self) -> [u8; 10] {
        let [a, b, c, d, e, f] = self.mac;
        [0, 3, 0, 1, a, b, c, d, e, f]
    }

    fn message(&self, elapsed: Duration) -> Vec<u8> {
        let mut message = vec![INFORMATION_REQUEST];
        message.extend_from_slice(&self.transaction);
        let elapsed = u16::try_from(elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        let asked = [
            NAME_SERVERS,
            DOMAINS,
            SNTP_SERVERS,
            REFRESH_TIME,
            NTP_SERVER,
        ];
        let asked: Vec<u8> = asked.iter().flat_map(|code| code.to_be_bytes()).collect();
        let options: [(u16, &[u8]); 3] = [
            (CLIENT_ID, &self.identifier()),
            (ELAPSED, &elapsed.to_be_bytes()),
            (OPTION_REQUEST, &asked),
        ];
        for (code, value) in options {
            message.extend_from_slice(&code.to_be_bytes());
            let length = u16::try_from(value.len()).unwrap_or(0);
            message.extend_from_slice(&length.to_be_bytes());
            message.extend_from_slice(value);
        }
        message
    }
}

/// Options one after another: code, length, value. One that is cut off ends them.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_at_checked(4)?;
        let [a, b, c, d] = head.try_into().ok()?;
        let (value, rest) = rest.split_at_checked(u16::from_be_bytes([c, d]).into())?;
        self.0 = rest;
        Some((u16::from_be_bytes([a, b]), value))
    }
}

/// Adds those that lead somewhere from here.
fn addresses(value: &[u8], to: &mut Vec<Ipv6Addr>) {
    for sixteen in value.chunks_exact(16) {
        let Ok(octets) = <[u8; 16]>::try_from(sixteen) else {
            return;
        };
        let address = Ipv6Addr::from(octets);
        if to.len() < MAX_LIST && leads_on(address) && !to.contains(&address) {
            to.push(address);
        }
    }
}

/// Whether a server can be reached at the address from any program here: link-local ones would need the link's name.
pub fn leads_on(address: Ipv6Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_unicast_link_local())
}

/// Names as DNS packs them, without compression (RFC 8415, section 10); none of them when any is broken.
fn domains(mut value: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    let mut name = String::new();
    while let Some((length, rest)) = value.split_first() {
        let Some((label, rest)) = rest.split_at_checked((*length).into()) else {
            return Vec::new();
        };
        value = rest;
        if label.is_empty() {
            if !name.is_empty() && all.len() < MAX_LIST {
                all.push(std::mem::take(&mut name));
            }
            name.clear();
            continue;
        }
        let fine = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if label.len() > 63 || name.len() + label.len() > 252 || !label.iter().all(fine) {
            return Vec::new();
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|b| char::from(*b)));
    }
    // A name without its end was cut off.
    if name.is_empty() { all } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const T0: Duration = Duration::from_secs(100);
    const ID: &[u8] = &[0, 3, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56];

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap();
        [&code.to_be_bytes(), &length.to_be_bytes(), value].concat()
    }

    fn reply(question: &[u8], options: &[Vec<u8>]) -> Vec<u8> {
        [&[REPLY], &question[1..4], &options.concat()].concat()
    }

    fn asked() -> (Client, Vec<u8>) {
        let mut client = Client::new(MAC, [1, 2, 3, 0], T0);
        let question = client.due(T0).unwrap();
        (client, question)
    }

    fn octets(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    fn whole() -> Vec<Vec<u8>> {
        let time = [
            option(2, &[0; 16]),
            option(NTP_ADDRESS, &octets("2001:db8::123")),
        ];
        vec![
            option(CLIENT_ID, ID),
            option(SERVER_ID, &[0, 3, 0, 1, 2, 2, 2, 2, 2, 2]),
            option(
                NAME_SERVERS,
                &[octets("2001:db8::53"), octets("fe80::1")].concat(),
            ),
            option(DOMAINS, b"\x03lab\x07example\0\x05other\0"),
            option(NTP_SERVER, &time.concat()),
            option(REFRESH_TIME, &3600_u32.to_be_bytes()),
        ]
    }

    #[test]
    fn the_question_is_the_format_to_the_letter() {
        let (_, question) = asked();
        let expected = [
            &[INFORMATION_REQUEST, 1, 2, 3][..],
            &[0, 1, 0, 10],
            ID,
            &[0, 8, 0, 2, 0, 0],
            &[0, 6, 0, 10, 0, 23, 0, 24, 0, 31, 0, 32, 0, 56],
        ];
        assert_eq!(question, expected.concat());
    }

    #[test]
    fn an_answer_gives_servers_and_domains_and_is_asked_for_again_in_its_time() {
        let (mut client, question) = asked();
        let now = T0 + Duration::from_millis(20);
        let found = client.arrived(now, &reply(&question, &whole())).unwrap();
        assert_eq!(found.dns, ["2001:db8::53".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(found.ntp, ["2001:db8::123".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(found.search, ["lab.example", "other"]);
        assert_eq!(client.next(), now + Duration::from_secs(3600));
        // The same answer once more answers nothing, before the next question or after it.
        assert_eq!(client.arrived(now, &reply(&question, &whole())), None);
        let again = client.due(client.next()).unwrap();
        assert_ne!(again[1..4], question[1..4]);
        assert_eq!(
            client.arrived(client.next(), &reply(&question, &whole())),
            None
        );
        assert!(
            client
                .arrived(client.next(), &reply(&again, &whole()))
                .is_some()
        );
    }

    #[test]
    fn without_an_answer_it_asks_more_and_more_seldom() {
        let (mut client, _) = asked();
        let mut waits = Vec::new();
        for _ in 0..14 {
            let before = client.next();
            let elapsed = client.due(before).unwrap()[22..24].to_vec();
            waits.push((client.next() - before).as_secs());
            assert_ne!(elapsed, [0, 0]);
        }
        assert_eq!(waits[..4], [2, 4, 8, 16]);
        assert_eq!(waits[13], 3600);
    }

    #[test]
    fn another_ones_answer_a_refusal_and_a_damaged_one_count_for_nothing() {
        let (client, question) = asked();
        let taken = |message: &[u8]| client.clone().arrived(T0, message);
        let good = reply(&question, &whole());
        assert!(taken(&good).is_some());
        for (at, byte) in [(0, 2), (1, 9), (3, 9), (13, 9)] {
            let mut other = good.clone();
            other[at] = byte;
            assert_eq!(taken(&other), None, "{at}");
        }
        let nothing = [whole(), vec![option(STATUS, &[0, 2])]].concat();
        assert_eq!(taken(&reply(&question, &nothing)), None);
        assert_eq!(taken(&reply(&question, &whole()[1..])), None);
        for length in 0..good.len() {
            // What is cut off is left out; nothing is made up.
            if let Some(found) = taken(&good[..length]) {
                assert!(found.dns.len() <= 1 && found.ntp.len() <= 1 && found.search.len() <= 2);
            }
        }
        let large = [whole(), vec![option(99, &[0; MAX_MESSAGE])]].concat();
        assert_eq!(taken(&reply(&question, &large)), None);
    }

    #[test]
    fn broken_domains_are_none_and_many_are_bounded() {
        for broken in [
            &b"\x03lab"[..],
            b"\x03la",
            b"\xc0\x0c",
            b"\x03a b\0",
            b"\x02\n!\0",
            &[0x3f; 200],
        ] {
            assert!(domains(broken).is_empty(), "{broken:?}");
        }
        assert_eq!(domains(&b"\x01a\0".repeat(99)).len(), MAX_LIST);
        assert!(domains(&[0; 99]).is_empty());
    }
}
