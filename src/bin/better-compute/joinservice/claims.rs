//! What a machine claims of its hardware: bounded, and the parts that could tell two machines apart
//! picked out. None of it is proof, and none of it is an identity: serials and UUIDs repeat between
//! boards, and placeholders are everywhere.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

use bcd::facts::firmware::telling;
use bcd::proto::HardwareClaims;

const TEXT_MAX: usize = 256;
const MACS_MAX: usize = 64;

/// Names the first claim over its limit.
pub fn over_limit(claims: &HardwareClaims) -> Option<&'static str> {
    let texts = [
        (&claims.hostname, "hostname"),
        (&claims.machine_id, "machine_id"),
        (&claims.system_vendor, "system_vendor"),
        (&claims.system_product, "system_product"),
        (&claims.system_serial, "system_serial"),
        (&claims.system_uuid, "system_uuid"),
        (&claims.architecture, "architecture"),
        (&claims.kernel, "kernel"),
        (&claims.boot_mac, "boot_mac"),
    ];
    if let Some((_, name)) = texts.iter().find(|(text, _)| text.len() > TEXT_MAX) {
        return Some(name);
    }
    let too_many = claims.macs.len() > MACS_MAX;
    let too_long = claims.macs.iter().any(|mac| mac.len() > TEXT_MAX);
    (too_many || too_long).then_some("macs")
}

/// Every MAC that the machine says is its own, that of the NIC it booted from first.
pub fn own_macs(claims: &HardwareClaims) -> Vec<String> {
    std::iter::once(&claims.boot_mac)
        .chain(&claims.macs)
        .filter(|mac| !mac.is_empty())
        .cloned()
        .collect()
}

/// The claims worth comparing between nodes, `serial`, `uuid` and `mac`, without placeholders and
/// locally administered addresses.
pub struct Hardware {
    pub serial: Option<String>,
    pub uuid: Option<String>,
    pub macs: Vec<String>,
}

impl Hardware {
    pub fn of(claims: &HardwareClaims) -> Self {
        let mut macs: Vec<String> = claims
            .macs
            .iter()
            .filter_map(|mac| universal(mac))
            .collect();
        macs.sort();
        macs.dedup();
        Self {
            serial: telling(&claims.system_serial).map(str::to_owned),
            uuid: telling(&claims.system_uuid).map(str::to_lowercase),
            macs,
        }
    }

    /// As rows of kind and value.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let serial = self.serial.iter().map(|value| ("serial", value.clone()));
        let uuid = self.uuid.iter().map(|value| ("uuid", value.clone()));
        let macs = self.macs.iter().map(|value| ("mac", value.clone()));
        serial.chain(uuid).chain(macs).collect()
    }
}

/// The address in lower case, unless it is locally administered, a group's, or malformed.
fn universal(mac: &str) -> Option<String> {
    let lower = mac.to_lowercase();
    let mut octets = 0;
    for (index, octet) in lower.split(':').enumerate() {
        let value = (octet.len() == 2)
            .then(|| u8::from_str_radix(octet, 16).ok())
            .flatten()?;
        if index == 0 && value & 0b11 != 0 {
            return None;
        }
        octets += 1;
    }
    (octets == 6 && lower != "00:00:00:00:00:00").then_some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(serial: &str, uuid: &str, macs: &[&str]) -> HardwareClaims {
        HardwareClaims {
            system_serial: serial.to_owned(),
            system_uuid: uuid.to_owned(),
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
            ..HardwareClaims::default()
        }
    }

    #[test]
    fn placeholders_and_local_addresses_tell_nothing() {
        for text in [
            "",
            " ",
            "Default string",
            "To Be Filled By O.E.M.",
            "00000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "03000200-0400-0500-0006-000700080009",
            "........",
        ] {
            let hardware = Hardware::of(&claims(text, text, &[]));
            assert!(hardware.rows().is_empty(), "{text:?}");
        }
        for mac in [
            "00:00:00:00:00:00",
            "02:42:ac:11:00:02",
            "01:00:5e:00:00:01",
            "3c:ec:ef:00:00",
            "3c:ec:ef:00:00:01:02",
            "3c-ec-ef-00-00-01",
            "zz:ec:ef:00:00:01",
            "",
        ] {
            assert!(
                Hardware::of(&claims("", "", &[mac])).macs.is_empty(),
                "{mac}"
            );
        }
    }

    #[test]
    fn what_tells_is_kept_in_one_spelling() {
        let hardware = Hardware::of(&claims(
            " S123 ",
            "4C4C4544-0042",
            &["3C:EC:EF:00:00:01", "3c:ec:ef:00:00:01"],
        ));
        assert_eq!(
            hardware.rows(),
            [
                ("serial", "S123".to_owned()),
                ("uuid", "4c4c4544-0042".to_owned()),
                ("mac", "3c:ec:ef:00:00:01".to_owned())
            ]
        );
    }

    #[test]
    fn claims_have_limits() {
        let fits = claims(&"s".repeat(256), "", &["m"; 64]);
        assert_eq!(over_limit(&fits), None);
        assert_eq!(
            over_limit(&claims(&"s".repeat(257), "", &[])),
            Some("system_serial")
        );
        assert_eq!(over_limit(&claims("", "", &["m"; 65])), Some("macs"));
        assert_eq!(
            over_limit(&claims("", "", &[&"m".repeat(257)])),
            Some("macs")
        );
    }
}
