use super::*;
use crate::crypto::key::NodeKey;
use crate::crypto::key::tests::OPENSSL_KEY;
use crate::crypto::pem;

// Made by OpenSSL 3: `req -x509` of a P-256 CA, and `x509 -req` of a leaf for the key of
// `key::tests` with every kind of name.
const CA: &str = include_str!("../testdata/openssl-ca.pem");
const LEAF: &str = include_str!("../testdata/openssl-leaf.pem");
const CA_PIN: &str = "sha256//py1b+aC4js63pkTITvll/J0cTZ14H09GqJ1oOlvdCs=";

fn der(text: &str) -> Vec<u8> {
    pem::decode(text, pem::CERTIFICATE).unwrap().to_vec()
}

#[test]
fn a_leaf_says_what_openssl_says_it_says() {
    let der = der(LEAF);
    let leaf = Certificate::parse(&der).unwrap();
    assert_eq!(
        leaf.spki,
        NodeKey::from_pem(OPENSSL_KEY).unwrap().spki_der()
    );
    assert_eq!(
        (leaf.not_before, leaf.not_after),
        (1_795_973_937, 4_387_973_937)
    );
    assert_eq!(leaf.uri_names, ["spiffe://better-compute/node/node_01"]);
    assert_eq!(leaf.dns_names, ["gw.example.com", "*.example.com"]);
    let addresses: [IpAddr; 2] = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    assert_eq!(leaf.addresses, addresses);
    assert!(!leaf.is_ca);
    assert_eq!(leaf.serial_hex(), "00f00d");
    assert_eq!(leaf.subject_text(), "x");
    assert_eq!(leaf.issuer_text(), "Example serving CA");
    assert!(leaf.is_valid_at(leaf.not_before) && leaf.is_valid_at(leaf.not_after));
    assert!(!leaf.is_valid_at(leaf.not_before - 1) && !leaf.is_valid_at(leaf.not_after + 1));
    assert_eq!(
        leaf.names_text(),
        "gw.example.com, *.example.com, spiffe://better-compute/node/node_01, 192.0.2.7, 2001:db8::7"
    );
}

#[test]
fn a_ca_is_one_and_issued_what_it_signed() {
    let (ca, leaf) = (der(CA), der(LEAF));
    let (ca, leaf) = (
        Certificate::parse(&ca).unwrap(),
        Certificate::parse(&leaf).unwrap(),
    );
    assert!(ca.is_ca);
    assert_eq!(ca.pin().to_string(), CA_PIN);
    assert!(leaf.is_issued_by(&ca) && ca.is_issued_by(&ca));
    assert!(!leaf.is_issued_by(&leaf) && !ca.is_issued_by(&leaf));
}

#[test]
fn a_certificate_with_any_signed_bit_flipped_was_not_issued() {
    let (ca, leaf) = (der(CA), der(LEAF));
    let ca = Certificate::parse(&ca).unwrap();
    for at in 0..leaf.len() {
        for bit in 0..8 {
            let mut flipped = leaf.clone();
            flipped[at] ^= 1 << bit;
            if let Ok(read) = Certificate::parse(&flipped) {
                assert!(!read.is_issued_by(&ca), "byte {at} bit {bit}");
                let _ = (read.subject_text(), read.names_text(), read.issuer_text());
            }
        }
    }
}

#[test]
fn a_certificate_cut_off_anywhere_is_refused() {
    for whole in [der(CA), der(LEAF)] {
        for length in 0..whole.len() {
            assert!(Certificate::parse(&whole[..length]).is_err(), "{length}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Certificate::parse(&longer).err(), Some(Error::Trailing));
    }
    assert_eq!(
        Certificate::parse(&vec![0x30; MAX_LENGTH + 1]).err(),
        Some(Error::Length)
    );
}

#[test]
fn names_from_outside_are_shown_tame() {
    assert_eq!(shown("a\x1b[31m\nb"), "a?[31m?b");
    assert_eq!(shown(&"x".repeat(1000)).len(), 64);
}

#[test]
fn two_extensions_of_a_kind_are_refused() {
    let whole = der(LEAF);
    // subjectKeyIdentifier renamed to authorityKeyIdentifier, which is there already.
    let at = whole
        .windows(3)
        .position(|id| id == [0x55, 0x1d, 0x0e])
        .unwrap();
    let mut doubled = whole.clone();
    doubled[at + 2] = 0x23;
    assert_eq!(Certificate::parse(&doubled).err(), Some(Error::Value));
}

#[cfg(feature = "control-plane")]
#[test]
fn certificates_of_another_maker_are_read() {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["gw".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Only an organization");
    params.distinguished_name.remove(DnType::CommonName);
    params
        .subject_alt_names
        .push(SanType::URI("spiffe://td/node/x".try_into().unwrap()));
    params.not_after = rcgen::date_time_ymd(2300, 1, 1);
    let made = params.self_signed(&key).unwrap();
    let read = Certificate::parse(made.der()).unwrap();
    assert!(read.is_ca && read.is_issued_by(&read));
    assert_eq!(read.subject_text(), "Only an organization");
    assert_eq!(read.uri_names, ["spiffe://td/node/x"]);
    assert_eq!(read.not_after, 10_413_792_000);
    use rcgen::PublicKeyData;
    assert_eq!(read.spki, key.subject_public_key_info());
}
