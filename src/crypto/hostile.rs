//! Every reader of this module against damaged input: none may panic, whatever comes.
// nanoserde's derive writes a match where clippy wants a question mark.
#![allow(clippy::question_mark)]

use super::certificate::Certificate;
use super::key::NodeKey;
use super::{base64, csr, der, envelope, json, jwk, pem, pin, spki};

/// Numbers that are the same in every run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// Some bytes flipped, cut, doubled or replaced.
fn damage(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, numbers.below(256) as u8),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 if !bytes.is_empty() => {
                let to = at + numbers.below(bytes.len() - at);
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
            4 if !bytes.is_empty() => {
                bytes[at] = [0, 0x7f, 0x80, 0xff, b'"', b'{'][numbers.below(6)]
            }
            _ if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
            _ => {}
        }
    }
    bytes
}

fn read_by_all(bytes: &[u8]) {
    let _ = Certificate::parse(bytes).map(|read| {
        (
            read.subject_text(),
            read.issuer_text(),
            read.names_text(),
            read.is_issued_by(&read),
        )
    });
    let _ = csr::verify(bytes);
    let _ = spki::PublicKey::parse(bytes);
    let _ = NodeKey::from_pkcs8_der(bytes);
    let _ = jwk::PublicKey::parse(bytes);
    let _ = envelope::from_json(bytes).map(|read| envelope::to_json(&read));
    let _ = json::check(bytes, 1 << 16, 16);
    let mut reader = der::Reader::new(bytes);
    while reader.any().is_ok() {}
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (
            base64::decode(text),
            base64::decode_url(text),
            pin::Pin::parse(text),
        );
        let _ = pem::decode_all(text, pem::CERTIFICATE);
        let _ = NodeKey::from_pem(text);
    }
}

#[test]
fn no_reader_panics_on_damaged_input() {
    let key = NodeKey::from_pem(super::key::tests::OPENSSL_KEY).unwrap();
    let certificate = include_str!("testdata/openssl-leaf.pem");
    let signed = envelope::sign(vec![1, 2, 3], envelope::Purpose::NodeSpec, &key).unwrap();
    let seeds = [
        pem::decode(certificate, pem::CERTIFICATE).unwrap().to_vec(),
        certificate.as_bytes().to_vec(),
        csr::build(&key).unwrap(),
        key.spki_der(),
        key.pkcs8_der().to_vec(),
        key.to_pem().as_bytes().to_vec(),
        key.pin().to_string().into_bytes(),
        jwk::PublicKey::from_point(*key.point())
            .to_json()
            .into_bytes(),
        envelope::to_json(&signed).into_bytes(),
        br#"{"a":[1,-2.5e3,true,null,"\u00e9\ud83d\ude00"],"b":{"c":{}}}"#.to_vec(),
    ];
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for seed in &seeds {
        for _ in 0..1500 {
            read_by_all(&damage(seed, &mut numbers));
        }
    }
}

/// What passes both readers means the same to both.
#[cfg(feature = "control-plane")]
#[test]
fn damaged_certificates_mean_the_same_to_another_reader() {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let text = include_str!("testdata/openssl-leaf.pem");
    let seed = pem::decode(text, pem::CERTIFICATE).unwrap();
    let mut numbers = Numbers(7);
    let mut compared = 0;
    for _ in 0..20_000 {
        let bytes = damage(&seed, &mut numbers);
        let (Ok(ours), Ok((rest, theirs))) = (
            Certificate::parse(&bytes),
            X509Certificate::from_der(&bytes),
        ) else {
            continue;
        };
        compared += 1;
        assert!(rest.is_empty());
        // It stops at a damaged part of these; here each is all of its bytes.
        assert!(ours.spki.starts_with(theirs.public_key().raw));
        assert!(ours.subject.starts_with(theirs.subject().as_raw()));
        assert!(ours.issuer.starts_with(theirs.issuer().as_raw()));
        assert_eq!(ours.serial, theirs.raw_serial());
        assert_eq!(ours.not_before, theirs.validity().not_before.timestamp());
        assert_eq!(ours.not_after, theirs.validity().not_after.timestamp());
        assert_eq!(ours.is_ca, theirs.is_ca());
        if let Ok(Some(names)) = theirs.subject_alternative_name() {
            let names = &names.value.general_names;
            let uris = names.iter().filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            });
            assert!(ours.uri_names.iter().copied().eq(uris));
        }
    }
    assert!(compared > 1000, "{compared}");
}

/// JSON that passes the check never stops the reader behind it.
#[test]
fn json_that_passes_the_check_is_read_without_a_panic() {
    use nanoserde::DeJson;

    #[derive(DeJson)]
    #[allow(dead_code)]
    struct Sink {
        a: Option<String>,
    }

    let alphabet = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"a\"",
        "\"b\"",
        "\"\\u0000\"",
        "1",
        "-2e5",
        "1E+9",
        "true",
        "null",
        " ",
        "//",
        "/*",
        "*/",
        "\\",
        "\"",
        "x",
        "18446744073709551616",
        "\u{e9}",
    ];
    let mut numbers = Numbers(11);
    let mut passed = 0;
    for _ in 0..50_000 {
        let count = numbers.below(12);
        let text: String = (0..count)
            .map(|_| alphabet[numbers.below(alphabet.len())])
            .collect();
        // Half of them in an object, where more of them pass.
        let text = if numbers.below(2) == 0 {
            text
        } else {
            format!("{{\"a\":\"\",\"z\":{text}}}")
        };
        if let Ok(text) = json::check(text.as_bytes(), 1 << 12, 8) {
            passed += 1;
            let _ = Sink::deserialize_json(text).map(|sink| sink.a);
        }
    }
    assert!(passed > 1000, "{passed}");
}
