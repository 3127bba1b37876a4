//! What may stand in an install script. Each value passes a narrow pattern before it is written, so nothing
//! that a caller gives can end a quote of the shell or of TOML.

use std::error::Error;
use std::fmt;

use bcd::config::values::{Cidr, hex_digest, is_interface_name, is_plugin_name, is_server_name};
use bcd::crypto::certificate::Certificate;
use bcd::crypto::pem;
use bcd::crypto::pin::Pin;
use bcd::update::manifest::is_version;

/// The most bytes of a proxy's CA file: with the rest the script stays below 24 KiB.
pub const PROXY_CA_MAX: usize = 4 * 1024;
/// The most pins or digests in one list.
const LIST_MAX: usize = 16;

/// A flag's value that is refused: `INVALID_INPUT`.
#[derive(Debug)]
pub struct Invalid {
    flag: &'static str,
    what: String,
}

impl Invalid {
    pub fn new(flag: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { flag, what }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "INVALID_INPUT: --{} {}", self.flag, self.what)
    }
}

impl Error for Invalid {}

/// A value as it was given, once it matches.
fn matching(
    flag: &'static str,
    value: &str,
    matches: bool,
    what: &'static str,
) -> Result<String, Invalid> {
    match matches {
        true => Ok(value.to_owned()),
        false => Err(Invalid::new(flag, what)),
    }
}

/// The entries of a list without blanks around them; none is an error, and so are more than 16.
pub fn list<'a>(flag: &'static str, value: &'a str) -> Result<Vec<&'a str>, Invalid> {
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    if entries.len() > LIST_MAX {
        return Err(Invalid::new(
            flag,
            format!("has more than {LIST_MAX} entries"),
        ));
    }
    match entries.iter().any(|entry| entry.is_empty()) {
        true => Err(Invalid::new(flag, "has an empty entry")),
        false => Ok(entries),
    }
}

/// A pool's or a site's id.
pub fn id(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let matches = (1..=128).contains(&value.len())
        && value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    matching(
        flag,
        value,
        matches,
        "is not an id: letters, digits, ., _ and -, the first a letter or digit, at most 128",
    )
}

/// Names of plugins, as bcd takes them.
pub fn plugins(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let names = list(flag, value)?;
    for name in &names {
        if !is_plugin_name(name) || id(flag, name).is_err() {
            return Err(Invalid::new(
                flag,
                "is not a list of plugin names: letters, digits, ., _ and -, the first a letter or digit, at most 128",
            ));
        }
    }
    Ok(names.join(","))
}

/// The plugins that a release of bcd ships.
const RELEASED_PLUGINS: [&str; 1] = ["bcx-ipmi"];

/// Names of plugins that a release ships, each once.
pub fn released_plugins(flag: &'static str, value: &str) -> Result<Vec<&'static str>, Invalid> {
    let mut names = Vec::new();
    for given in list(flag, value)? {
        match RELEASED_PLUGINS.into_iter().find(|name| *name == given) {
            Some(name) if names.contains(&name) => {
                return Err(Invalid::new(flag, format!("names {name} twice")));
            }
            Some(name) => names.push(name),
            None => {
                let what = "names a plugin that no release ships: bcx-ipmi is the only one";
                return Err(Invalid::new(flag, what));
            }
        }
    }
    Ok(names)
}

/// Interface names, of bridges.
pub fn bridges(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let names = list(flag, value)?;
    let all = names.iter().all(|name| is_interface_name(name));
    matching(
        flag,
        &names.join(","),
        all,
        "is not a list of interface names: 1 to 15 of letters, digits, ., _ and -",
    )
}

/// A semantic version; a leading `v` is dropped.
pub fn version(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let version = value.strip_prefix('v').unwrap_or(value);
    matching(
        flag,
        version,
        is_version(version),
        "is not a semantic version such as 0.1.0 or v0.2.0-rc.1",
    )
}

/// A URL of `scheme`, without slashes at its end.
pub fn url(flag: &'static str, scheme: &'static str, value: &str) -> Result<String, Invalid> {
    let rest = value.strip_prefix(scheme).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    if rest.len() > 512 || !plain(rest) || !is_server_name(host) {
        return Err(Invalid::new(
            flag,
            format!("is not a {scheme}... URL of letters, digits and . - _ ~ / only"),
        ));
    }
    Ok(value.trim_end_matches('/').to_owned())
}

/// The gateway's URL, as bcd takes it: without a path, which gRPC has no use for.
pub fn gateway_url(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let url = url(flag, "https://", value)?;
    match url.matches('/').count() {
        2 => Ok(url),
        _ => Err(Invalid::new(flag, "has a path, and a gateway has none")),
    }
}

/// The path below which the API is served.
pub fn path(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let matches = value.starts_with('/')
        && value.len() <= 256
        && plain(value)
        && !value.contains("//")
        && !value.split('/').any(|part| part == "." || part == "..");
    matching(
        flag,
        value.trim_end_matches('/'),
        matches,
        "is not a path such as /api/compute, of letters, digits and . - _ ~ / only",
    )
}

fn plain(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b".-_~/".contains(&b))
}

/// A host, as a certificate names it.
pub fn host(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let matches = value.len() <= 253 && is_server_name(value) && !value.contains('%');
    matching(flag, value, matches, "is not a DNS name or an address")
}

/// Pins, at most 16.
pub fn pins(flag: &'static str, value: &str) -> Result<Vec<Pin>, Invalid> {
    list(flag, value)?
        .into_iter()
        .map(|pin| {
            Pin::parse(pin).map_err(|error| {
                Invalid::new(flag, format!("is not a list of sha256/... pins: {error}"))
            })
        })
        .collect()
}

/// One SHA-256 digest.
pub fn digest(flag: &'static str, value: &str) -> Result<String, Invalid> {
    matching(
        flag,
        value,
        hex_digest(value).is_some(),
        "is not a digest of 64 lower-case hex digits",
    )
}

/// The binaries' digests, `amd64=HEX,arm64=HEX`: for each architecture at most one, and one at least.
pub fn binaries(flag: &'static str, value: &str) -> Result<[Option<String>; 2], Invalid> {
    let mut found = [None, None];
    for entry in list(flag, value)? {
        let (arch, hex) = entry.split_once('=').unwrap_or_default();
        let place = match arch {
            "amd64" => &mut found[0],
            "arm64" => &mut found[1],
            _ => return Err(Invalid::new(flag, "is not amd64=HEX, arm64=HEX or both")),
        };
        if place.replace(digest(flag, hex)?).is_some() {
            return Err(Invalid::new(flag, format!("names {arch} twice")));
        }
    }
    Ok(found)
}

/// Networks in CIDR form, with their host bits cleared.
pub fn networks(flag: &'static str, value: &str) -> Result<String, Invalid> {
    let networks = list(flag, value)?.into_iter().map(|network| {
        let network: Result<Cidr, _> = network.parse();
        network
            .map(|network| network.to_string())
            .map_err(|what| Invalid::new(flag, what))
    });
    Ok(networks.collect::<Result<Vec<_>, _>>()?.join(","))
}

/// A number from `least` to `most`.
pub fn number(flag: &'static str, value: &str, least: u64, most: u64) -> Result<u64, Invalid> {
    value
        .parse()
        .ok()
        .filter(|number| {
            // No sign, no zeros in front: as it is given is how it is written.
            (least..=most).contains(number) && number.to_string() == value
        })
        .ok_or_else(|| Invalid::new(flag, format!("is not a number from {least} to {most}")))
}

/// A file of PEM certificates and nothing else, written anew from what they hold.
pub fn certificates(flag: &'static str, bytes: &[u8]) -> Result<String, Invalid> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Invalid::new(flag, "names a file that is not text"))?;
    let ders = pem::decode_all(text, pem::CERTIFICATE)
        .map_err(|error| Invalid::new(flag, format!("names a file of something else: {error}")))?;
    let mut again = String::new();
    for der in &ders {
        Certificate::parse(der).map_err(|error| {
            Invalid::new(
                flag,
                format!("names a file with a bad certificate: {error}"),
            )
        })?;
        again.push_str(&pem::encode(pem::CERTIFICATE, der));
    }
    // Between blocks decode_all reads over anything; a private key left there must not travel.
    let mut inside = false;
    let strays = text.lines().map(str::trim).any(|line| {
        let stray = !inside && !line.is_empty() && line != "-----BEGIN CERTIFICATE-----";
        inside = (inside || line.starts_with("-----BEGIN ")) && !line.starts_with("-----END ");
        stray
    });
    match strays {
        false => Ok(again),
        true => Err(Invalid::new(
            flag,
            "names a file that holds something besides PEM certificates",
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_value_that_could_end_a_quote_passes() {
        let hostile = [
            "'", "\"", "`id`", "$(id)", "a'b", "a\"b", "a\nb", "a\\b", "a;b", "a b", "a#b", "a$b",
            "a&b", "é", "a\0b", "", "-a", ".a", "_a", "a\r", "]", "a*",
        ];
        for value in hostile {
            assert!(id("pool", value).is_err(), "{value:?}");
            // Blanks around an entry are taken away.
            assert!(
                value == "a\r" || plugins("plugins", value).is_err(),
                "{value:?}"
            );
            assert!(
                matches!(value, "a\r" | "-a" | ".a" | "_a")
                    || bridges("instance-bridges", value).is_err(),
                "{value:?}"
            );
            assert!(version("bcd-version", value).is_err(), "{value:?}");
            assert!(url("base-url", "https://", value).is_err(), "{value:?}");
            let below = format!("https://a.example/{value}");
            let allowed = value
                .bytes()
                .all(|b| b".-_~/".contains(&b) || b.is_ascii_alphanumeric());
            assert_eq!(
                url("base-url", "https://", &below).is_ok(),
                allowed,
                "{value:?}"
            );
            assert!(digest("sha256", value).is_err(), "{value:?}");
            assert!(pins("release-pins", value).is_err(), "{value:?}");
            assert!(binaries("sha256", value).is_err(), "{value:?}");
            assert!(networks("bmc-networks", value).is_err(), "{value:?}");
            assert!(
                number("release-threshold", value, 1, 16).is_err(),
                "{value:?}"
            );
            if value != "-a" && value != "_a" && value != ".a" {
                assert!(host("websocket-audience", value).is_err(), "{value:?}");
            }
        }
        assert!(id("pool", &"a".repeat(129)).is_err());
    }

    #[test]
    fn values_come_out_as_they_are_written() {
        assert_eq!(version("v", "v0.2.0-rc.1").unwrap(), "0.2.0-rc.1");
        assert_eq!(
            url("u", "https://", "https://gw.eu.example.com//").unwrap(),
            "https://gw.eu.example.com"
        );
        assert_eq!(path("p", "/api/compute/").unwrap(), "/api/compute");
        assert_eq!(path("p", "/").unwrap(), "");
        for text in ["api", "//a", "/a/../b", "/a b", "/a:b"] {
            assert!(path("p", text).is_err(), "{text}");
        }
        for text in [
            "http://a",
            "https://",
            "https:///a",
            "https://a:1",
            "https://u@a",
            "https://a?b",
        ] {
            assert!(url("u", "https://", text).is_err(), "{text}");
        }
        assert_eq!(bridges("b", "br0, br-priv").unwrap(), "br0,br-priv");
        for text in [
            "",
            "br0,,br1",
            "a-name-longer-than-15",
            "..",
            "br/0",
            "br%0",
        ] {
            assert!(bridges("b", text).is_err(), "{text}");
        }
        assert_eq!(
            networks("n", "10.1.2.3/8, fd00:1::5/16").unwrap(),
            "10.0.0.0/8,fd00::/16"
        );
        let hex = "0f".repeat(32);
        let both = binaries("s", &format!("arm64={hex},amd64={hex}")).unwrap();
        assert_eq!(both, [Some(hex.clone()), Some(hex.clone())]);
        for text in [
            format!("amd64={hex},amd64={hex}"),
            format!("riscv64={hex}"),
            format!("amd64={}", hex.to_uppercase()),
            hex,
        ] {
            assert!(binaries("s", &text).is_err(), "{text}");
        }
        assert!(number("n", "16", 1, 16).is_ok());
        for text in ["0", "17", "+1", "01", "1 ", ""] {
            assert!(number("n", text, 1, 16).is_err(), "{text}");
        }
    }
}
