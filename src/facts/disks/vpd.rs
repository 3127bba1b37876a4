//! Vital product data of SCSI disks (SPC-4, 7.8), as sysfs shows the pages: serial number (80h),
//! identifiers (83h), and the ATA disk behind a translation (89h).
use super::super::tree::clean;

/// Bytes before a page's content: two of kind, two of length.
const HEAD: usize = 4;
/// Where an ATA information page holds the answer to IDENTIFY DEVICE.
const IDENTIFY: usize = 60;

/// What a device identification page says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identifier {
    /// "0x5000c500a1b2c3d4"; empty when it has none.
    pub wwn: String,
    /// As scsi_id(8) writes it, its kind first: "35000c500a1b2c3d4", "0QEMU_QEMU_HARDDISK_1".
    pub name: String,
}

/// What an ATA disk says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ata {
    pub model: String,
    pub serial: String,
    pub firmware: String,
}

fn content(page: &[u8], code: u8) -> Option<&[u8]> {
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let content = page.get(HEAD..)?;
    (*page.get(1)? == code).then(|| content.get(..length).unwrap_or(content))
}

/// The unit's serial number, from page 80h.
pub fn serial(page: &[u8]) -> String {
    content(page, 0x80).map(clean).unwrap_or_default()
}

/// The best identifier of page 83h: a world wide name, an EUI-64, else a text.
pub fn identifier(page: &[u8], vendor: &str, product: &str) -> Identifier {
    let mut best: Option<(u8, Identifier)> = None;
    let mut rest = content(page, 0x83).unwrap_or_default();
    while let Some((found, after)) = designator(rest, vendor, product) {
        rest = after;
        if let Some((rank, identifier)) = found
            && best.as_ref().is_none_or(|(known, _)| rank < *known)
        {
            best = Some((rank, identifier));
        }
    }
    best.map(|(_, identifier)| identifier).unwrap_or_default()
}

/// The first designator with its rank, if it names the unit, and what follows it.
#[allow(clippy::type_complexity)]
fn designator<'a>(
    bytes: &'a [u8],
    vendor: &str,
    product: &str,
) -> Option<(Option<(u8, Identifier)>, &'a [u8])> {
    let length = usize::from(*bytes.get(3)?);
    let value = bytes.get(HEAD..HEAD + length)?;
    let after = bytes.get(HEAD + length..)?;
    let is_binary = bytes.first()? & 0x0f == 1;
    // Of the port or the target, not of the unit.
    let is_unit = bytes.get(1)? & 0x30 == 0;
    let text = || {
        let text = clean(value);
        (!text.is_empty()).then_some(text)
    };
    let found = match (is_unit, bytes.get(1)? & 0x0f) {
        (true, 3) if is_binary && !value.is_empty() => {
            let digits = hex(value);
            // IEEE registered extended, then IEEE registered, then the others.
            let rank = match value.first()? >> 4 {
                6 => 0,
                5 => 1,
                _ => 2,
            };
            Some((
                rank,
                Identifier {
                    wwn: ["0x", &digits].concat(),
                    name: ["3", &digits].concat(),
                },
            ))
        }
        (true, 2) if is_binary && !value.is_empty() => Some((
            3,
            Identifier {
                wwn: String::new(),
                name: ["2", &hex(value)].concat(),
            },
        )),
        (true, 1) => text().map(|text| {
            (
                4,
                Identifier {
                    wwn: String::new(),
                    name: ["1", &text].concat(),
                },
            )
        }),
        (true, 0) => text().map(|text| {
            (
                5,
                Identifier {
                    wwn: String::new(),
                    name: ["0", vendor, " ", product, " ", &text].concat(),
                },
            )
        }),
        _ => None,
    };
    Some((found, after))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// What page 89h says of the ATA disk.
pub fn ata(page: &[u8]) -> Option<Ata> {
    content(page, 0x89)?;
    let identify = page.get(IDENTIFY..)?;
    // Each word holds two characters, the second first (ATA-8, 3.3.10).
    let text = |from: usize, to: usize| {
        let words = identify.get(from..to)?.chunks_exact(2);
        let bytes: Vec<u8> = words.flat_map(|word| word.iter().rev().copied()).collect();
        Some(clean(&bytes))
    };
    Some(Ata {
        serial: text(20, 40)?,
        firmware: text(46, 54)?,
        model: text(54, 94)?,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An ATA information page of such a disk.
    pub fn page_89(model: &str, serial: &str, firmware: &str) -> Vec<u8> {
        let mut page = vec![0; 572];
        page[1] = 0x89;
        page[2..4].copy_from_slice(&568_u16.to_be_bytes());
        let mut put = |at: usize, length: usize, text: &str| {
            let padded = format!("{text:length$}");
            for (index, word) in padded.as_bytes().chunks(2).enumerate() {
                page[IDENTIFY + at + 2 * index] = word[1];
                page[IDENTIFY + at + 2 * index + 1] = word[0];
            }
        };
        put(20, 20, serial);
        put(46, 8, firmware);
        put(54, 40, model);
        page
    }

    fn page_83(designators: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (set, kind, value) in designators {
            content.extend_from_slice(&[*set, *kind, 0, u8::try_from(value.len()).unwrap()]);
            content.extend_from_slice(value);
        }
        let mut page = vec![0, 0x83];
        page.extend_from_slice(&u16::try_from(content.len()).unwrap().to_be_bytes());
        page.extend(content);
        page
    }

    #[test]
    fn an_ata_disk_is_read_behind_its_translation() {
        let page = page_89("WDC WD40EFRX-68N32N0", "WD-WCC7K0AAAAAA", "82.00A82");
        let expected = Ata {
            model: "WDC WD40EFRX-68N32N0".to_owned(),
            serial: "WD-WCC7K0AAAAAA".to_owned(),
            firmware: "82.00A82".to_owned(),
        };
        assert_eq!(ata(&page), Some(expected));
        for end in 0..page.len() {
            ata(&page[..end]);
        }
        assert_eq!(ata(&page[..100]), None);
    }

    #[test]
    fn the_best_identifier_of_the_unit_wins() {
        let naa5: &[u8] = &[0x50, 0, 0xc5, 0, 0xa1, 0xb2, 0xc3, 0xd4];
        let naa6: &[u8] = &[
            0x60, 0, 0xc5, 0, 0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        let names = |designators: &[(u8, u8, &[u8])]| identifier(&page_83(designators), "V", "P");
        let port: (u8, u8, &[u8]) = (1, 0x13, &[0x50, 0, 0, 0, 0, 0, 0, 9]);
        let text: (u8, u8, &[u8]) = (2, 1, b"ATA     disk 7");
        let own: (u8, u8, &[u8]) = (2, 0, b"serial");
        for (designators, wwn, name) in [
            (
                &[port, own, text, (1, 3, naa5)][..],
                "0x5000c500a1b2c3d4",
                "35000c500a1b2c3d4",
            ),
            (
                &[(1, 3, naa5), (1, 3, naa6)],
                "0x6000c500a1b2c3d40000000000000001",
                "36000c500a1b2c3d40000000000000001",
            ),
            (&[own, text], "", "1ATA     disk 7"),
            (&[own, (1, 2, naa5)], "", "25000c500a1b2c3d4"),
            (&[own], "", "0V P serial"),
            (&[port], "", ""),
            (&[(2, 0, b"")], "", ""),
            (&[], "", ""),
        ] {
            let expected = Identifier {
                wwn: wwn.to_owned(),
                name: name.to_owned(),
            };
            assert_eq!(names(designators), expected);
        }
    }

    #[test]
    fn truncated_pages_are_read_as_far_as_they_go() {
        let page = page_83(&[(2, 0, b"serial"), (2, 1, b"text")]);
        for end in 0..page.len() {
            let found = identifier(&page[..end], "V", "P");
            assert!(["", "0V P serial"].contains(&found.name.as_str()));
        }
        assert_eq!(serial(b"\0\x80\0\x04ab"), "ab");
        assert_eq!(serial(b"\0\x80\xff\xff  ab  "), "ab");
        assert_eq!(serial(b"\0\x83\0\x02ab"), "");
        assert_eq!(serial(b"\0\x80"), "");
    }
}
