//! How many joins and renewals one address may ask for: a bucket of tokens each, refilled steadily.
//!
//! A stranger's request costs the JoinService a decryption and a look into its records. The burst is
//! there for a hall of machines that boots at once behind one address; what is refused names the wait,
//! and a node tries again by itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bcd::wire::grpc::{Code, Status};

use super::handshakes::network;

/// Requests at once, after a while without any.
const BURST: u32 = 500;
/// Requests a second after that.
const PER_SECOND: u32 = 20;
/// Addresses remembered at once; others share one bucket then.
const ADDRESSES_MAX: usize = 10_000;

/// The buckets, of all loops together.
#[derive(Default)]
pub struct Rate(Mutex<BTreeMap<Option<IpAddr>, Bucket>>);

struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * f64::from(PER_SECOND)).min(f64::from(BURST));
        self.at = now;
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens >= f64::from(BURST)
    }
}

impl Rate {
    /// Lets a request from `address` through.
    ///
    /// # Errors
    /// How long to wait.
    pub fn admit(&self, address: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = address.map(network);
        if !buckets.contains_key(&key) && buckets.len() >= ADDRESSES_MAX {
            buckets.retain(|_, bucket| !bucket.is_full(now));
            if buckets.len() >= ADDRESSES_MAX {
                key = None;
            }
        }
        let bucket = buckets.entry(key).or_insert(Bucket {
            tokens: f64::from(BURST),
            at: now,
        });
        bucket.refill(now);
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - bucket.tokens) / f64::from(PER_SECOND);
        Err(Duration::from_secs_f64(missing))
    }
}

/// What a caller is told who comes too often.
pub fn refusal(wait: Duration) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "too many joins and renewals from this address: try again in {} s",
            wait.as_secs() + 1
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    #[test]
    fn a_hall_of_machines_boots_at_once_and_a_flood_is_slowed() {
        let rate = Rate::default();
        let start = Instant::now();
        let nat = address("192.0.2.1");
        for _ in 0..BURST {
            assert!(rate.admit(nat, start).is_ok());
        }
        let wait = rate.admit(nat, start).unwrap_err();
        assert!(wait <= Duration::from_secs_f64(1.0 / f64::from(PER_SECOND)));
        assert!(refusal(wait).message.contains("try again in 1 s"));
        assert!(
            rate.admit(address("192.0.2.2"), start).is_ok(),
            "others are not touched"
        );
        let later = start + Duration::from_secs(10);
        let admitted = (0..BURST)
            .filter(|_| rate.admit(nat, later).is_ok())
            .count();
        assert_eq!(admitted, 10 * PER_SECOND as usize);
        let much_later = later + Duration::from_secs(3600);
        let admitted = (0..2 * BURST)
            .filter(|_| rate.admit(nat, much_later).is_ok())
            .count();
        assert_eq!(
            admitted, BURST as usize,
            "no more than the burst is saved up"
        );
    }

    #[test]
    fn an_ipv6_caller_has_one_bucket_for_its_network() {
        let rate = Rate::default();
        let now = Instant::now();
        for host in 0..BURST {
            let one = address(&format!("2001:db8::{host:x}"));
            assert!(rate.admit(one, now).is_ok());
        }
        assert!(rate.admit(address("2001:db8::ffff"), now).is_err());
        assert!(rate.admit(address("2001:db8:0:1::1"), now).is_ok());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_who_has_been_quiet() {
        let rate = Rate::default();
        let now = Instant::now();
        let nth = |n: usize| Some(IpAddr::V4(u32::try_from(n).unwrap().into()));
        for n in 0..ADDRESSES_MAX + 100 {
            let _ = rate.admit(nth(n), now);
        }
        assert!(rate.0.lock().unwrap().len() <= ADDRESSES_MAX + 1);
        let later = now + Duration::from_secs(1);
        assert!(rate.admit(nth(ADDRESSES_MAX + 200), later).is_ok());
        assert!(rate.0.lock().unwrap().len() < 10);
    }
}
