//! Listens for the switches that the NICs are plugged into, for a while after each came up: they say who they are every
//! half a minute. Nothing is ever sent.
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use crate::edge::RawSocket;
use crate::facts;
use crate::lldp::{self, Neighbour};
use crate::nics::Nic;

/// A link may need a minute, and a switch half of one more.
const PATIENCE: Duration = Duration::from_secs(100);
/// Frames that are read of one NIC at a time.
const FRAMES: u32 = 16;
/// NICs that are listened on at once.
const MAX_NICS: usize = 32;

struct Listening {
    name: String,
    socket: RawSocket,
    until: Duration,
}

/// What is listened on, and what was heard.
#[derive(Default)]
pub struct Neighbours {
    listening: Vec<Listening>,
    heard: Vec<(String, Neighbour)>,
}

impl Neighbours {
    /// Begins on a NIC. That one cannot be listened on is no reason to stop anything.
    pub fn listen(&mut self, nic: &Nic, now: Duration) {
        if self.listening.len() < MAX_NICS
            && let Ok(socket) = RawSocket::open(nic.index, lldp::PROTOCOL)
            && socket.join(lldp::GROUP).is_ok()
        {
            self.listening.push(Listening {
                name: nic.name.clone(),
                socket,
                until: now + PATIENCE,
            });
        }
    }

    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listening.iter().map(|one| one.socket.as_fd())
    }

    /// When [`take`](Self::take) has something to end.
    pub fn next(&self) -> Option<Duration> {
        self.listening.iter().map(|one| one.until).min()
    }

    /// Takes what was heard, and ends what had its time.
    pub fn take(&mut self, now: Duration) {
        let mut news: Vec<(String, Neighbour)> = Vec::new();
        let mut buffer = [0; 2048];
        self.listening.retain(|one| {
            // Whoever floods the link holds up nothing else.
            for _ in 0..FRAMES {
                let Ok(Some(frame)) = one.socket.next(&mut buffer) else {
                    break;
                };
                if let Some(found) = lldp::neighbour(frame) {
                    news.push((one.name.clone(), found));
                    return false;
                }
            }
            now < one.until
        });
        if !news.is_empty() {
            // A card that went and came back has its name again.
            self.heard
                .retain(|(known, _)| !news.iter().any(|(name, _)| name == known));
            self.heard.append(&mut news);
            self.heard.sort_by(|a, b| a.0.cmp(&b.0));
            let lines = self.heard.iter().map(|(name, found)| {
                let Neighbour {
                    system,
                    port,
                    chassis,
                } = found;
                format!("{name}\t{system}\t{port}\t{chassis}\n")
            });
            facts::write(facts::NEIGHBOURS, &lines.collect::<String>());
        }
    }
}
