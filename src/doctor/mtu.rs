//! Whether packets of full size pass, both ways, and if not, which size does.
//!
//! A path whose MTU is smaller than this machine's, and that says so to nobody, stalls exactly when
//! somebody has much to say. So a TLS handshake is begun with a hello longer than a packet; how long the
//! answer is depends on the gateway's certificates, so the way back is tested no further than that. If it stalls, the same is tried with TCP segments (both ways) of ever
//! smaller packets, all at once.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::{Seen, Verdict, wait};
use crate::rt::tls::{self, TlsError};
use crate::rt::{self, TcpStream};

/// For each handshake.
const WAIT: Duration = Duration::from_secs(3);

/// Sizes of packets that are tried: the usual ones of tunnels, and the least of IPv6 and of IPv4.
const LADDER: [u32; 8] = [8900, 1480, 1450, 1420, 1400, 1280, 1000, 576];

/// A hello is not made longer: some TLS stacks take no more.
const LONGEST_HELLO: usize = 9500;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    if !seen.through.is_empty() {
        return Verdict::ok(format!("not checked: packets end at {}", seen.through));
    }
    let Some(address) = seen.reached else {
        return Verdict::unseen("the gateway is not reached", "see the check gateway");
    };
    if !config.gateway_url.https {
        return Verdict::unseen("there is no TLS", "");
    }
    let name = ServerName::try_from(config.gateway_name().to_owned());
    let (Ok((_, tls)), Ok(name)) = (super::tls::client(config, seen.signed_ms), name) else {
        return Verdict::unseen("there is no TLS", "see the check tls");
    };
    match wait(climb(address, &tls, &name)) {
        Ok(verdict) => verdict,
        Err(verdict) => verdict,
    }
}

async fn climb(
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    name: &ServerName<'static>,
) -> Verdict {
    let (full, passes) = match handshake(address, None, tls.clone(), name.clone()).await {
        Ok(tried) => tried,
        Err(error) => return Verdict::unseen(&super::chain(&error), "see the check gateway"),
    };
    if passes {
        return Verdict::ok(match full {
            Some(mtu) => format!("packets of {mtu} bytes pass to {address}, and its answer came"),
            None => format!("full packets pass to {address}, and its answer came"),
        });
    }
    let full = full.unwrap_or(1500);
    let rungs: Vec<_> = LADDER
        .into_iter()
        .filter(|size| *size < full)
        .map(|size| {
            (
                size,
                rt::spawn(handshake(address, Some(size), tls.clone(), name.clone())),
            )
        })
        .collect();
    let mut passing = None;
    for (size, rung) in rungs {
        if let Some(Ok((_, true))) = rung.await {
            passing = passing.max(Some(size));
        }
    }
    judge(address, full, passing)
}

fn judge(address: SocketAddr, full: u32, passing: Option<u32>) -> Verdict {
    match passing {
        Some(size) => Verdict::fail(
            format!(
                "packets of {full} bytes to {address} or back are lost without a word; {size} bytes pass"
            ),
            format!(
                "let ICMP \"fragmentation needed\" and \"packet too big\" through on the way, or set the \
                 interface's MTU to {size} (ip link set DEV mtu {size})"
            ),
        ),
        None => Verdict::warn(
            format!("a TLS handshake with {address} ends at no size of packets"),
            "it is not the MTU: see the check tls, and the gateway's load and log",
        ),
    }
}

/// The path's MTU as the kernel knows it, and whether a handshake with packets of at most `size`
/// bytes came to any end.
async fn handshake(
    address: SocketAddr,
    size: Option<u32>,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> std::io::Result<(Option<u32>, bool)> {
    let headers = if address.is_ipv4() { 40 } else { 60 };
    let segment = size.map(|size| size.saturating_sub(headers));
    let connecting = TcpStream::connect_segments(address, segment);
    let stream = rt::timeout(WAIT, connecting)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let mtu = stream.path_mtu();
    let length = usize::try_from(mtu.unwrap_or(1500)).unwrap_or(LONGEST_HELLO);
    let mut tls = Arc::unwrap_or_clone(tls);
    pad(&mut tls, length.saturating_add(200).min(LONGEST_HELLO));
    let ended = tls::client(stream, Arc::new(tls), name, WAIT).await;
    // Whatever the answer is, it came.
    Ok((mtu, !matches!(ended, Err(TlsError::TimedOut { .. }))))
}

/// Makes the hello at least so long, by names of protocols that nobody speaks.
fn pad(tls: &mut ClientConfig, length: usize) {
    let one = b"bcd-doctor-packet-size".repeat(9);
    for _ in 0..length / one.len() + 1 {
        tls.alpn_protocols.push(one.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_largest_size_that_passes_is_named() {
        let address = SocketAddr::from(([192, 0, 2, 1], 443));
        let verdict = judge(address, 1500, Some(1280));
        assert_eq!(verdict.level, Level::Fail);
        assert!(verdict.evidence.contains("1280 bytes pass"));
        assert!(verdict.remedy.contains("mtu 1280"));
        assert_eq!(judge(address, 1500, None).level, Level::Warn);
    }
}
