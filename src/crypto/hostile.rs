//! Every reader of this module against damaged input: none may panic, whatever comes.
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
