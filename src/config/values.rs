//! The kinds of values that `config.toml` writes as strings: lists, networks, addresses, names, digests.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::wire::url::is_host;

/// A network in CIDR form, its host bits zero whatever the file had there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WHAT: &str = "is not a network such as 10.20.0.0/16 or fd00:20::/48";
        let (address, prefix) = text.split_once('/').ok_or(WHAT)?;
        let prefix = decimal(prefix).ok_or(WHAT)?;
        let address = match address.parse().map_err(|_| WHAT)? {
            IpAddr::V4(v4) if prefix <= 32 => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) if prefix <= 128 => {
                if v6.to_ipv4_mapped().is_some() {
                    return Err("is an IPv4 network in IPv6 form; write it as IPv4");
                }
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
            _ => return Err(WHAT),
        };
        Ok(Self {
            address,
            prefix: u8::try_from(prefix).map_err(|_| WHAT)?,
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Where a server listens: `10.20.0.2:8080`, `[::1]:8080`, or `:8080` for every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// `None` for every address.
    pub address: Option<IpAddr>,
    pub port: u16,
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WHAT: &str = "is not an address and port such as 10.20.0.2:8080, [::1]:8080 or :8080";
        let (address, port) = text.rsplit_once(':').ok_or(WHAT)?;
        let port = decimal(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|&port| port != 0)
            .ok_or(WHAT)?;
        let address = match address.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            _ if address.is_empty() => None,
            Some(inner) => Some(IpAddr::V6(
                inner.and_then(|inner| inner.parse().ok()).ok_or(WHAT)?,
            )),
            None => Some(IpAddr::V4(address.parse().map_err(|_| WHAT)?)),
        };
        Ok(Self { address, port })
    }
}

/// A Kubernetes cluster this machine may be joined to: `https://host[:port]#sha256:<64 hex digits>`, the
/// digest being kubeadm's over the SubjectPublicKeyInfo of the cluster's CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The API server's URL, without the digest.
    pub url: String,
    pub ca_sha256: [u8; 32],
}

/// A decimal number without sign, blanks or a leading zero.
pub fn decimal(text: &str) -> Option<u32> {
    let plain = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// A SHA-256 digest as 64 lower-case hex digits.
pub fn hex_digest(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 {
        return None;
    }
    let mut digest = [0_u8; 32];
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = (nibble(*high)? << 4) | nibble(*low)?;
    }
    Some(digest)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Whether the kernel would take `name` for a network interface and nothing else: 1 to 15 letters,
/// digits, `.`, `_` and `-`.
pub fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name != "."
        && name != ".."
}

/// Whether `name` can name a plugin's binary: letters, digits, `.`, `_` and `-`, not starting with a
/// dot or a dash, at most 128.
pub fn is_plugin_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !name.starts_with(['.', '-'])
}

/// Whether `name` can name an account: no blanks, `:`, `/` or control characters, at most 32 bytes.
pub fn is_account_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b":/,".contains(&b))
        && !name.starts_with('-')
}

/// Whether `name` can be the name in a certificate: an IP address, or a DNS name without a dot at its end.
pub fn is_server_name(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok() || (is_host(name) && !name.ends_with('.'))
}

/// The path without `.`, `..` and doubled slashes, by its letters alone: no symlink is looked at.
pub fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// Whether `inner` is `outer` or lies below it, both cleaned first.
pub fn is_inside(inner: &Path, outer: &Path) -> bool {
    cleaned(inner).starts_with(cleaned(outer))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_with_their_host_bits_cleared() {
        for (text, want) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("10.0.0.1/32", "10.0.0.1/32"),
            ("fd00:1::5/16", "fd00::/16"),
            ("::/0", "::/0"),
            ("::1/128", "::1/128"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), want);
        }
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "a/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn listen_addresses_are_literal() {
        let listen = |text: &str| text.parse::<Listen>();
        assert_eq!(
            listen(":69"),
            Ok(Listen {
                address: None,
                port: 69
            })
        );
        assert_eq!(
            listen("[::1]:80").unwrap().address,
            Some("::1".parse().unwrap())
        );
        assert_eq!(listen("169.254.169.254:80").unwrap().port, 80);
        for text in [
            "",
            "80",
            "host:80",
            "::1:80",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "10.0.0.1:",
            "[10.0.0.1]:80",
            "[::1:80",
            ":-1",
        ] {
            assert!(listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn digests_are_64_lower_case_hex_digits() {
        assert_eq!(hex_digest(&"0f".repeat(32)), Some([15; 32]));
        for text in [
            &"0F".repeat(32),
            &"0f".repeat(31),
            &"0g".repeat(32),
            &"é".repeat(32),
        ] {
            assert_eq!(hex_digest(text), None, "{text}");
        }
    }

    #[test]
    fn names_are_what_the_kernel_and_dns_take() {
        for name in ["br0", "br-priv", "a", "abcdefghijklmno", "v.1_2"] {
            assert!(is_interface_name(name), "{name}");
        }
        for name in [
            "",
            "abcdefghijklmnop",
            "a b",
            "a/b",
            ".",
            "..",
            "é",
            "br0:1",
        ] {
            assert!(!is_interface_name(name), "{name}");
        }
        for name in ["gw.example.com", "10.0.0.1", "::1", "localhost", "a_b.c"] {
            assert!(is_server_name(name), "{name}");
        }
        for name in [
            "",
            "a..b",
            ".a",
            "a.",
            "a b",
            "-a",
            "10.0.0.256",
            "10.1",
            "[::1]",
            "gw.example.com:443",
            "é",
        ] {
            assert!(!is_server_name(name), "{name}");
        }
        assert!(
            is_account_name("bcd")
                && !is_account_name("")
                && !is_account_name("a:b")
                && !is_account_name("a b")
        );
        assert!(
            is_plugin_name("kata")
                && is_plugin_name("bcx-ipmi")
                && !is_plugin_name("../x")
                && is_plugin_name(&"p".repeat(128))
                && !is_plugin_name(&"p".repeat(129))
                && !is_plugin_name(".pins")
        );
    }

    #[test]
    fn paths_are_compared_cleaned() {
        let inside = |a: &str, b: &str| is_inside(Path::new(a), Path::new(b));
        assert!(inside("/var/lib/bcd/bin", "/var/lib/bcd"));
        assert!(inside("/var/lib/bcd", "/var//lib/./bcd/"));
        assert!(inside("/usr/../var/lib/bcd/x", "/var/lib/bcd"));
        assert!(!inside("/var/lib/bcd2", "/var/lib/bcd"));
        assert!(!inside("/var/lib/bcd/../x", "/var/lib/bcd"));
        assert!(inside("/../../a", "/a"));
    }
}
