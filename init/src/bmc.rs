//! Where the machine's BMC is reached, as the BMC itself tells the kernel (IPMI 2.0, 23.2: Get LAN Configuration
//! Parameters). The requests and what is read from the answers; the ioctls are in [`crate::edge`].
//!
//! A BMC is a computer of its own, often an old and a busy one: every answer is bounded, and one that does not come
//! ends the asking, until it is asked again from the start a few times.
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use crate::dhcpv6::leads_on;
use crate::edge::Ipmi;
use crate::nics::shown;
use crate::{facts, say};

/// The device of the first BMC; there is hardly a second.
const DEVICE: &str = "/dev/ipmi0";
/// How long the device may take to appear once its driver is there, in half seconds.
const APPEAR: u32 = 120;
/// The waits after an asking that failed, in seconds. A BMC that got its power with the machine starts for minutes.
const AGAIN: [u64; 6] = [5, 15, 30, 60, 120, 0];

const TRANSPORT: u8 = 0x0c;
const GET_LAN: u8 = 0x02;
/// Channels that may be networks.
const CHANNELS: std::ops::RangeInclusive<u8> = 1..=11;
const ADDRESS: u8 = 3;
const MAC: u8 = 5;
const STATIC_IPV6: u8 = 56;
const DYNAMIC_IPV6: u8 = 59;

/// Busy, and no answer in time: worth a second try.
const PASSING: [u8; 2] = [0xc0, 0xc3];

/// A BMC on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lan {
    pub address: IpAddr,
    pub mac: Option<[u8; 6]>,
}

/// Sends a request (network function, command, data) and gives the answer, or `None` when there is none.
pub type Exchange<'a> = dyn FnMut(u8, u8, &[u8]) -> Option<Vec<u8>> + 'a;

/// Asks every channel in turn for its address; the first that has one is it.
pub fn ask(exchange: &mut Exchange<'_>) -> Option<Lan> {
    for channel in CHANNELS {
        // An answer: how it went, the parameter's revision, and its data.
        let mut parameter = |number: u8| -> Option<Option<Vec<u8>>> {
            for _ in 0..2 {
                let answer = exchange(TRANSPORT, GET_LAN, &[channel, number, 0, 0])?;
                match answer.split_first() {
                    Some((0, [_, data @ ..])) => return Some(Some(data.to_vec())),
                    Some((code, _)) if PASSING.contains(code) => {}
                    _ => break,
                }
            }
            Some(None)
        };
        // Whoever knows not even this parameter is no network.
        let Some(four) = parameter(ADDRESS)? else {
            continue;
        };
        let mut address = ipv4(&four).map(IpAddr::V4);
        for number in [STATIC_IPV6, DYNAMIC_IPV6] {
            if address.is_none() {
                address = parameter(number)?
                    .and_then(|data| ipv6(&data))
                    .map(IpAddr::V6);
            }
        }
        if let Some(address) = address {
            let mac = parameter(MAC).flatten();
            let mac = mac.and_then(|data| data.first_chunk().copied());
            return Some(Lan { address, mac });
        }
    }
    None
}

fn ipv4(data: &[u8]) -> Option<Ipv4Addr> {
    let address = Ipv4Addr::from(*data.first_chunk::<4>()?);
    // All of 0.0.0.0/8 is "this network" (RFC 1122, 3.2.1.3).
    let leads_on = !(address.octets().first() == Some(&0)
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast());
    leads_on.then_some(address)
}

/// Which of the set, source or enabled, sixteen bytes, prefix, and 0 for one that is in use.
fn ipv6(data: &[u8]) -> Option<Ipv6Addr> {
    let sixteen: [u8; 16] = data.get(2..18)?.try_into().ok()?;
    let address = Ipv6Addr::from(sixteen);
    (data.get(19) == Some(&0) && leads_on(address)).then_some(address)
}

/// Asks this machine's BMC, if its driver found one, and writes down what it says. For a thread of its own: it waits.
pub fn report() {
    for _ in 0..APPEAR {
        if Path::new(DEVICE).exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let found = patiently(&mut address, &mut |wait, error| {
        say(&format!(
            "the BMC does not say its address: {DEVICE}: {error}"
        ));
        std::thread::sleep(Duration::from_secs(wait));
    });
    if let Some(Lan { address, mac }) = found {
        let mac = mac.map(shown).unwrap_or_default();
        facts::write(facts::BMC, &format!("{address}\t{mac}\n"));
    }
}

/// What `asked` finds, asked again after each failure, once `waits` has waited so many seconds. `None`: the BMC is on no
/// network, there is a driver and no BMC, or it never said.
fn patiently(
    asked: &mut dyn FnMut() -> io::Result<Option<Lan>>,
    waits: &mut dyn FnMut(u64, io::Error),
) -> Option<Lan> {
    for wait in AGAIN {
        match asked() {
            Ok(found) => return found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => waits(wait, error),
        }
    }
    None
}

fn address() -> io::Result<Option<Lan>> {
    // Opened anew each time: an answer that comes too late goes with the descriptor it was for.
    let ipmi = Ipmi::open(Path::new(DEVICE))?;
    let mut failed = Ok(None);
    let mut exchange = |function, command, data: &[u8]| {
        let answer = ipmi.exchange(function, command, data);
        answer.map_err(|error| failed = Err(error)).ok()
    };
    ask(&mut exchange).map_or(failed, |lan| Ok(Some(lan)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a BMC with these parameters says; it knows channels 1 and 8.
    fn asked(parameters: &[(u8, u8, &[u8])], busy: u32) -> (Option<Lan>, u32) {
        let (mut count, mut left) = (0, busy);
        let mut exchange = |function: u8, command: u8, data: &[u8]| {
            assert_eq!((function, command, data.len()), (TRANSPORT, GET_LAN, 4));
            count += 1;
            if left > 0 {
                left -= 1;
                return Some(vec![0xc0]);
            }
            let known = parameters
                .iter()
                .find(|(channel, number, _)| (*channel, *number) == (data[0], data[1]));
            Some(known.map_or(vec![0xcc], |(_, _, value)| [&[0, 0x11], *value].concat()))
        };
        (ask(&mut exchange), count)
    }

    #[test]
    fn a_bmc_that_is_not_ready_is_asked_again_for_minutes_and_no_bmc_once() {
        let asked = |ready_after: usize, error: io::ErrorKind| {
            let (mut asked, mut waited) = (0, Vec::new());
            let lan = Lan {
                address: IpAddr::V4(Ipv4Addr::new(10, 9, 8, 7)),
                mac: None,
            };
            let mut ask = || {
                asked += 1;
                match asked > ready_after {
                    true => Ok(Some(lan.clone())),
                    false => Err(error.into()),
                }
            };
            let found = patiently(&mut ask, &mut |wait, _| waited.push(wait));
            (found.is_some(), waited)
        };
        assert_eq!(asked(0, io::ErrorKind::TimedOut), (true, vec![]));
        assert_eq!(asked(3, io::ErrorKind::TimedOut), (true, vec![5, 15, 30]));
        let (found, waited) = asked(99, io::ErrorKind::TimedOut);
        assert!(!found && waited.iter().sum::<u64>() > 180, "{waited:?}");
        assert_eq!(asked(99, io::ErrorKind::NotFound), (false, vec![]));
        let mut none = || Ok(None);
        assert_eq!(
            patiently(&mut none, &mut |_, _| panic!("it answered")),
            None
        );
    }

    const HERE: &[u8] = &[10, 9, 8, 7];
    const OWN: &[u8] = &[2, 0, 0, 0, 0, 7];

    #[test]
    fn the_first_channel_with_an_address_is_it() {
        let expected = Lan {
            address: "10.9.8.7".parse().unwrap(),
            mac: Some([2, 0, 0, 0, 0, 7]),
        };
        let parameters = [(1, ADDRESS, HERE), (1, MAC, OWN)];
        assert_eq!(asked(&parameters, 0).0, Some(expected.clone()));
        assert_eq!(asked(&parameters, 1).0, Some(expected.clone()), "busy once");
        // The first is not in use, and a shared one is.
        let parameters = [(1, ADDRESS, &[0; 4][..]), (8, ADDRESS, HERE), (8, MAC, OWN)];
        assert_eq!(asked(&parameters, 0).0, Some(expected));
        let parameters = [(1, ADDRESS, HERE)];
        assert_eq!(asked(&parameters, 0).0.unwrap().mac, None);
        for none in [[0, 128, 254, 128], [127, 0, 0, 1], [224, 0, 0, 9], [255; 4]] {
            assert_eq!(asked(&[(1, ADDRESS, &none[..])], 0).0, None, "{none:?}");
        }
    }

    #[test]
    fn an_ipv6_address_counts_where_there_is_no_other_and_it_is_in_use() {
        let there = [
            &[0, 0x80][..],
            &"2001:db8::9".parse::<Ipv6Addr>().unwrap().octets(),
            &[64, 0],
        ]
        .concat();
        let none: &[u8] = &[0; 4];
        let parameters = [(1, ADDRESS, none), (1, DYNAMIC_IPV6, &there[..])];
        assert_eq!(
            asked(&parameters, 0).0.unwrap().address.to_string(),
            "2001:db8::9"
        );
        let mut pending = there.clone();
        pending[19] = 3;
        let parameters = [(1, ADDRESS, none), (1, STATIC_IPV6, &pending[..])];
        assert_eq!(asked(&parameters, 0).0, None);
    }

    #[test]
    fn one_that_knows_nothing_or_is_always_busy_or_falls_silent_is_left_alone() {
        assert_eq!(asked(&[], 0), (None, 11));
        assert_eq!(asked(&[], u32::MAX), (None, 22));
        let mut count = 0;
        assert_eq!(
            ask(&mut |_, _, _| {
                count += 1;
                None
            }),
            None
        );
        assert_eq!(count, 1);
        for odd in [&[][..], &[0], &[0, 1], &[0, 1, 10, 9]] {
            assert_eq!(ask(&mut |_, _, _| Some(odd.to_vec())), None);
        }
    }
}
