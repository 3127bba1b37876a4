//! Vital product data of SCSI disks: texts come out clean and bounded, and a name that lasts is fit to
//! be a file's.
use bcd::facts::disks::{names, vpd};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let serial = vpd::serial(data);
    let found = vpd::identifier(data, "VENDOR", "PRODUCT");
    let ata = vpd::ata(data).unwrap_or_default();
    for text in [
        &serial,
        &found.wwn,
        &found.name,
        &ata.model,
        &ata.serial,
        &ata.firmware,
    ] {
        assert!(text.len() <= 256 * 2 + 32, "{}", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
        let name = names::whole(text);
        assert!(!name.contains(['/', ' ', '\0']), "{name}");
        assert!(name.len() <= text.len());
        assert_eq!(names::whole(&name), name, "a name stays as it is");
    }
    assert!(found.wwn.is_empty() || found.name == found.wwn.replacen("0x", "3", 1));
}
