//! Whether the gateway's name has addresses, of both families.
use std::net::SocketAddr;
use std::path::Path;

use super::{Seen, Verdict, WAIT, chain, wait};
use crate::rt;
use crate::sys::fs;

/// What is read of resolv.conf(5).
const LONGEST: usize = 16 << 10;

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    if !seen.through.is_empty() {
        return Verdict::ok(format!("not needed: {} looks names up", seen.through));
    }
    let (host, port) = (config.gateway_url.host.as_str(), config.gateway_url.port);
    if rt::literal_address(host).is_some() {
        if let Ok(Ok(addresses)) = wait(rt::resolve(host, port, WAIT)) {
            seen.addresses = addresses;
        }
        return Verdict::ok(format!("not needed: {host} is an address"));
    }
    match wait(rt::resolve(host, port, WAIT)) {
        Err(verdict) => verdict,
        Ok(Ok(addresses)) => {
            let evidence = format!("{host} is {}", by_family(&addresses));
            seen.addresses = addresses;
            Verdict::ok(evidence)
        }
        Ok(Err(error)) => {
            let servers = fs::read_foreign(Path::new("/etc/resolv.conf"), LONGEST).map_or_else(
                |error| chain(&error),
                |bytes| nameservers(&String::from_utf8_lossy(&bytes)),
            );
            Verdict::fail(
                format!("{}; {servers}", chain(&error)),
                "check the name in gateway_url and the name servers in /etc/resolv.conf, or put the name into /etc/hosts",
            )
        }
    }
}

fn by_family(addresses: &[SocketAddr]) -> String {
    let of = |v4: bool| {
        let texts: Vec<String> = addresses
            .iter()
            .filter(|address| address.is_ipv4() == v4)
            .map(|address| address.ip().to_string())
            .collect();
        if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join(" ")
        }
    };
    format!("IPv4 {}, IPv6 {}", of(true), of(false))
}

/// Those that a resolver asks: the first three.
pub(super) fn nameservers(text: &str) -> String {
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .map(str::trim)
        .take(3)
        .collect();
    if servers.is_empty() {
        "/etc/resolv.conf names no server".to_owned()
    } else {
        format!("asked was {}", servers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_name_servers_are_told() {
        let parse = |text: &str| text.parse().unwrap();
        let both = [
            parse("[2001:db8::1]:443"),
            parse("192.0.2.1:443"),
            parse("192.0.2.2:443"),
        ];
        assert_eq!(
            by_family(&both),
            "IPv4 192.0.2.1 192.0.2.2, IPv6 2001:db8::1"
        );
        assert_eq!(by_family(&both[..1]), "IPv4 none, IPv6 2001:db8::1");
        let conf =
            "# x\nsearch a b\nnameserver 10.0.0.1\n nameserver\t::1\nnameserver 3\nnameserver 4\n";
        assert_eq!(nameservers(conf), "asked was 10.0.0.1, ::1, 3");
        assert_eq!(
            nameservers("options ndots:1\n"),
            "/etc/resolv.conf names no server"
        );
    }
}
