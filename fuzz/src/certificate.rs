//! X.509: a certificate that is read can be shown on one line, and none of its parts lies outside it.
use bcd::crypto::certificate::{Certificate, MAX_LENGTH};
use bcd::crypto::der::Reader;

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let mut reader = Reader::new(data);
    let mut seen = 0;
    while let Ok(element) = reader.any() {
        seen += element.raw.len();
        assert!(element.content.len() < element.raw.len());
    }
    assert!(seen <= data.len());
    let Ok(certificate) = Certificate::parse(data) else {
        return;
    };
    assert!(data.len() <= MAX_LENGTH);
    assert_eq!(certificate.der, data, "nothing follows the certificate");
    for part in [
        certificate.serial,
        certificate.issuer,
        certificate.subject,
        certificate.spki,
    ] {
        assert!(!part.is_empty() && part.len() < data.len());
    }
    for text in [
        certificate.subject_text(),
        certificate.issuer_text(),
        certificate.names_text(),
        format!("{certificate:?}"),
    ] {
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.len() < 4096);
    }
    assert_eq!(certificate.serial_hex().len(), certificate.serial.len() * 2);
    let _ = certificate.is_issued_by(&certificate);
    let _ = certificate.pin();
    let between = certificate.not_before / 2 + certificate.not_after / 2;
    let _ = certificate.is_valid_at(between);
}
