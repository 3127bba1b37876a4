//! Whether the gateway takes connections, at each of its addresses.
use std::io;
use std::net::SocketAddr;

use super::{Level, Seen, Verdict, WAIT, wait};
use crate::rt::{self, TcpStream};

/// An address, and what came of it; `None`: no answer.
type Tried = (SocketAddr, Option<io::Result<()>>);

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    if seen.config.is_err() {
        return Verdict::no_config();
    }
    if !seen.through.is_empty() {
        return Verdict::ok(format!("it is behind {}: see the check tls", seen.through));
    }
    if seen.addresses.is_empty() {
        return Verdict::fail(
            "not reached: there is no address to connect to",
            "see the check dns",
        );
    }
    match wait(try_all(seen.addresses.clone())) {
        Err(verdict) => verdict,
        Ok(tried) => {
            let answers = |one: &&Tried| matches!(one.1, Some(Ok(())));
            seen.reached = tried.iter().find(answers).map(|one| one.0);
            judge(&tried)
        }
    }
}

/// All of them at once, so that the slowest decides how long it takes.
async fn try_all(addresses: Vec<SocketAddr>) -> Vec<Tried> {
    let tasks: Vec<_> = addresses
        .into_iter()
        .map(|address| {
            let task = rt::spawn(async move {
                let connected = rt::timeout(WAIT, TcpStream::connect(address)).await;
                connected.ok().map(|connected| connected.map(drop))
            });
            (address, task)
        })
        .collect();
    let mut tried = Vec::new();
    for (address, task) in tasks {
        tried.push((address, task.await.flatten()));
    }
    tried
}

fn judge(tried: &[Tried]) -> Verdict {
    let mut evidence = String::new();
    let (mut good, mut remedy) = (0, "");
    for (address, outcome) in tried {
        if !evidence.is_empty() {
            evidence.push_str("; ");
        }
        evidence.push_str(&address.to_string());
        evidence.push_str(": ");
        match outcome {
            Some(Ok(())) => {
                good += 1;
                evidence.push_str("connected");
            }
            Some(Err(error)) => {
                evidence.push_str(&error.to_string());
                remedy = match error.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        "see that the gateway runs and listens there, and that no firewall rejects it"
                    }
                    _ => "check this machine's addresses and routes: ip addr, ip route",
                };
            }
            None => {
                evidence.push_str("no answer");
                remedy =
                    "a firewall drops it, or nothing is there: let this address and port through";
            }
        }
    }
    let level = match good {
        0 => Level::Fail,
        good if good < tried.len() => Level::Warn,
        _ => Level::Ok,
    };
    Verdict {
        level,
        evidence,
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dead_address_of_several_is_a_warning_and_none_alive_a_failure() {
        let address = |n: u8| SocketAddr::from(([192, 0, 2, n], 443));
        let refused = || Some(Err(io::ErrorKind::ConnectionRefused.into()));
        let verdict = judge(&[(address(1), Some(Ok(())))]);
        assert_eq!((verdict.level, verdict.remedy.as_str()), (Level::Ok, ""));
        let verdict = judge(&[(address(1), Some(Ok(()))), (address(2), None)]);
        assert_eq!(verdict.level, Level::Warn);
        assert!(verdict.evidence.contains("192.0.2.2:443: no answer"));
        let verdict = judge(&[(address(1), refused()), (address(2), refused())]);
        assert_eq!(verdict.level, Level::Fail);
        assert!(verdict.remedy.contains("listens"));
    }
}
