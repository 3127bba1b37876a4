//! Sets the clock once a boot, by the first time server that answers: those that the network names (DHCP, DHCPv6, `ip=`).
//!
//! Their word is not proven, so it decides little: certificates are judged by better evidence, a time before this program
//! was built is not believed, and a clock that is right to a second is left alone. It is for logs, and for clocks that
//! stand so far ahead that every certificate seems to have expired.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use bcd::sys::clock::{build_time_ms, wall_ms};
use bcd::sys::random;
use bcd::sys::utc::Utc;

use crate::{say, sntp};

const PORT: u16 = 123;
/// Servers that are asked, in turn.
const SERVERS: usize = 4;
/// Questions in all, and the wait behind the first, doubled each time.
const TRIES: u32 = 6;
const WAIT: Duration = Duration::from_secs(1);
/// What a clock may be wrong by.
const TOLERANCE: Duration = Duration::from_secs(1);

struct Question {
    socket: UdpSocket,
    server: IpAddr,
    cookie: [u8; 8],
    sent: Duration,
}

/// What is asked of whom.
#[derive(Default)]
pub struct Clock {
    servers: Vec<IpAddr>,
    tries: u32,
    next: Option<Duration>,
    question: Option<Question>,
    done: bool,
}

impl Clock {
    /// Names of servers that the network gave. The first of them starts the asking.
    pub fn offer(&mut self, servers: impl Iterator<Item = IpAddr>, now: Duration) {
        for server in servers {
            if self.servers.len() < SERVERS && !self.servers.contains(&server) {
                self.servers.push(server);
            }
        }
        if !self.done && self.next.is_none() && !self.servers.is_empty() {
            self.next = Some(now);
        }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.question
            .as_ref()
            .map(|question| question.socket.as_fd())
    }

    /// When [`due`](Self::due) wants to be called.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Asks the next server if it is time.
    pub fn due(&mut self, now: Duration) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        if self.tries == TRIES {
            say("no time server that the network names answered: the clock stays as it is");
            return self.end();
        }
        let index = self.tries as usize % self.servers.len().max(1);
        if let Some(server) = self.servers.get(index) {
            self.question = ask(*server, now).ok();
        }
        self.next = Some(now + WAIT * (1 << self.tries));
        self.tries += 1;
    }

    /// Takes the answer, if it is there.
    pub fn take(&mut self, now: Duration) {
        let Some(question) = &self.question else {
            return;
        };
        let mut buffer = [0; 512];
        while let Ok(length) = question.socket.recv(&mut buffer) {
            let message = buffer.get(..length).unwrap_or_default();
            let floor = build_time_ms() / 1000;
            if let Some(sent) = sntp::answered(message, question.cookie, floor) {
                // What it says was so half the way back.
                set(
                    sent + now.saturating_sub(question.sent) / 2,
                    question.server,
                );
                return self.end();
            }
        }
    }

    fn end(&mut self) {
        self.done = true;
        self.next = None;
        self.question = None;
    }
}

fn ask(server: IpAddr, now: Duration) -> std::io::Result<Question> {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect((server, PORT))?;
    let cookie = random::bytes()?;
    socket.send(&sntp::request(cookie))?;
    Ok(Question {
        socket,
        server,
        cookie,
        sent: now,
    })
}

/// Sets the clock to `right`, unless it stands there.
fn set(right: Duration, server: IpAddr) {
    let (stood, right_ms) = (wall_ms(), u64::try_from(right.as_millis()).unwrap_or(0));
    if u128::from(stood.abs_diff(right_ms)) <= TOLERANCE.as_millis() {
        return;
    }
    let time = rustix::time::Timespec {
        tv_sec: i64::try_from(right.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: right.subsec_nanos().into(),
    };
    let (stood, right) = (Utc::from_ms(stood), Utc::from_ms(right_ms));
    match rustix::time::clock_settime(rustix::time::ClockId::Realtime, time) {
        Ok(()) => say(&format!(
            "the clock stood at {stood}; the time server {server} says {right}, and it is set to that"
        )),
        Err(error) => {
            let error = std::io::Error::from(error);
            say(&format!(
                "the clock stands at {stood}, where the time server {server} says {right}, and cannot be set: {error}"
            ));
        }
    }
}
