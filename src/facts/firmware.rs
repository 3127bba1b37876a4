//! Firmware: the SMBIOS texts the kernel shows (`/sys/class/dmi/id`), how the machine was booted and
//! whether Secure Boot was on. Texts that makers leave unfilled are left out.
use std::io::ErrorKind;

use super::tree::Tree;
use super::{Area, Problems};
use crate::proto::Firmware;

const DMI: &str = "sys/class/dmi/id/";
/// The variable of the UEFI specification's global GUID: four bytes of attributes, and one.
const SECURE_BOOT: &str =
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// What board makers leave in SMBIOS fields they do not fill, in lower case.
const PLACEHOLDERS: &[&str] = &[
    "to be filled by o.e.m.",
    "to be filled by o.e.m",
    "default string",
    "not specified",
    "not applicable",
    "not available",
    "not present",
    "system manufacturer",
    "system product name",
    "system serial number",
    "base board serial number",
    "serial number",
    "chassis serial number",
    "none",
    "n/a",
    "na",
    "o.e.m.",
    "oem",
    "unknown",
    "empty",
    "invalid",
    "0123456789",
    "123456789",
    "1234567890",
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

/// The text, unless it is what many machines say alike: empty, one character over and over, or
/// what makers leave unfilled.
pub fn telling(text: &str) -> Option<&str> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let mut digits = lower.bytes().filter(u8::is_ascii_alphanumeric);
    let same = match digits.next() {
        None => true,
        Some(first) => digits.all(|byte| byte == first),
    };
    (!same && !PLACEHOLDERS.contains(&lower.as_str())).then_some(text)
}

/// "enabled" or "disabled", from the bytes of the variable.
pub fn secure_boot(variable: &[u8]) -> &'static str {
    match variable {
        [_, _, _, _, 0] => "disabled",
        [_, _, _, _, 1] => "enabled",
        _ => "unknown",
    }
}

pub(super) fn read(tree: &Tree, problems: &mut Problems) -> Firmware {
    let (boot_mode, secure_boot) = boot(tree);
    let uuid = text(tree, "product_uuid", problems);
    let mut firmware = Firmware {
        vendor: text(tree, "bios_vendor", problems),
        version: text(tree, "bios_version", problems),
        date: text(tree, "bios_date", problems),
        boot_mode: boot_mode.to_owned(),
        secure_boot: secure_boot.to_owned(),
        system_vendor: text(tree, "sys_vendor", problems),
        system_product: text(tree, "product_name", problems),
        system_serial: text(tree, "product_serial", problems),
        system_uuid: uuid.to_ascii_lowercase(),
        board_serial: text(tree, "board_serial", problems),
    };
    // Machines without SMBIOS (most arm64 boards) describe themselves in the device tree.
    let in_tree = |field: &mut String, name: &str| {
        if field.is_empty()
            && let Some(found) = telling(&tree.text(&["proc/device-tree/", name].concat()))
        {
            found.clone_into(field);
        }
    };
    in_tree(&mut firmware.system_product, "model");
    in_tree(&mut firmware.system_serial, "serial-number");
    firmware
}

fn text(tree: &Tree, name: &str, problems: &mut Problems) -> String {
    let path = [DMI, name].concat();
    match tree.bytes(&path, super::tree::TEXT) {
        Ok(bytes) => {
            let text = super::tree::clean(&bytes);
            telling(&text).unwrap_or_default().to_owned()
        }
        Err(error) => {
            // Serial numbers are root's alone.
            if error.kind() != ErrorKind::NotFound {
                problems.unread(Area::Firmware, name, &error);
            }
            String::new()
        }
    }
}

fn boot(tree: &Tree) -> (&'static str, &'static str) {
    if !tree.exists("sys/firmware/efi") {
        // Without UEFI, only a PC has SMBIOS or a BIOS at all, and a BIOS has no Secure Boot.
        return match tree.exists(DMI) || cfg!(target_arch = "x86_64") {
            true => ("bios", "disabled"),
            false => ("", "unknown"),
        };
    }
    match tree.bytes(SECURE_BOOT, 8) {
        Ok(bytes) => ("uefi", secure_boot(&bytes)),
        // efivarfs is not mounted, or the firmware knows no Secure Boot.
        Err(_) => ("uefi", "unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    #[test]
    fn placeholders_tell_nothing() {
        for text in [
            "",
            " ",
            "To Be Filled By O.E.M.",
            "Default string",
            "0",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "...........",
            "System Serial Number",
            "Not Specified ",
            "0123456789",
        ] {
            assert_eq!(telling(text), None, "{text}");
        }
        for text in [
            "J1X4WD3",
            "S403935X2823510",
            "4c4c4544-0031-5810-8034-cac04f574433",
        ] {
            assert_eq!(telling(text), Some(text));
        }
    }

    #[test]
    fn secure_boot_is_one_byte_behind_four() {
        assert_eq!(secure_boot(&[6, 0, 0, 0, 1]), "enabled");
        assert_eq!(secure_boot(&[6, 0, 0, 0, 0]), "disabled");
        for odd in [
            &[][..],
            &[1],
            &[6, 0, 0, 0],
            &[6, 0, 0, 0, 2],
            &[6, 0, 0, 0, 1, 1],
        ] {
            assert_eq!(secure_boot(odd), "unknown");
        }
    }

    #[test]
    fn a_pc_tells_what_its_maker_filled_in() {
        let fixture = Fixture::new(&[
            ("sys/firmware/efi/x", b""),
            (SECURE_BOOT, &[6, 0, 0, 0, 1]),
            (
                "sys/class/dmi/id/bios_vendor",
                b"American Megatrends Inc.\n",
            ),
            ("sys/class/dmi/id/bios_date", b"05/10/2024\n"),
            ("sys/class/dmi/id/sys_vendor", b"Supermicro\n"),
            ("sys/class/dmi/id/product_name", b"AS -8125GS-TNHR\n"),
            ("sys/class/dmi/id/product_serial", b"S403935X2823510\n"),
            (
                "sys/class/dmi/id/product_uuid",
                b"4C4C4544-0031-5810-8034-CAC04F574433\n",
            ),
            ("sys/class/dmi/id/board_serial", b"Default string\n"),
        ]);
        let mut problems = Problems::default();
        let firmware = read(&fixture.tree, &mut problems);
        let expected = Firmware {
            vendor: "American Megatrends Inc.".to_owned(),
            date: "05/10/2024".to_owned(),
            boot_mode: "uefi".to_owned(),
            secure_boot: "enabled".to_owned(),
            system_vendor: "Supermicro".to_owned(),
            system_product: "AS -8125GS-TNHR".to_owned(),
            system_serial: "S403935X2823510".to_owned(),
            system_uuid: "4c4c4544-0031-5810-8034-cac04f574433".to_owned(),
            ..Firmware::default()
        };
        assert_eq!(firmware, expected);
        assert!(problems.lines().is_empty());
    }

    #[test]
    fn a_board_without_smbios_tells_from_its_device_tree() {
        let fixture = Fixture::new(&[
            ("proc/device-tree/model", b"Raspberry Pi 4 Model B\0"),
            ("proc/device-tree/serial-number", b"10000000abcdef01\0"),
        ]);
        let firmware = read(&fixture.tree, &mut Problems::default());
        assert_eq!(firmware.system_product, "Raspberry Pi 4 Model B");
        assert_eq!(firmware.system_serial, "10000000abcdef01");
    }
}
