use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use ring::aead::AES_128_GCM;

use super::*;
use crate::crypto::digest::hex;
use crate::crypto::key::NodeKey;

// RFC 9180, A.3.1: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, base mode.
const SK_R: &str = "f3ce7fdae57e1a310d87f1ebbde6f328be0a99cdbcadf4d6589cf29de4b8ffd2";
const PK_R: &str = "04fe8c19ce0905191ebc298a9245792531f26f0cece2460639e8bc39cb7f706a82\
    6a779b4cf969b8a0e539c7f62fb3d30ad6aa8f80e30f1d128aafd68a2ce72ea0";
const ENC: &str = "04a92719c6195d5085104f469a8b9814d5838ff72b60501e2c4466e5e67b325ac9\
    8536d7b61a1af4b78e5b7f951c0900be863c403ce65c9bfcb9382657222d18c4";
const SHARED: &str = "c0d26aeab536609a572b07695d933b589dcf363ff9d93c93adea537aeabb8cb8";
const INFO: &str = "4f6465206f6e2061204772656369616e2055726e";
const KEY: &str = "868c066ef58aae6dc589b6cfdd18f97e";
const NONCE: &str = "4e0bc5018beba4bf004cca59";
const PT: &str = "4265617574792069732074727574682c20747275746820626561757479";
const CT: &str = "5ad590bb8baa577f8619db35a36311226a896e7342a6d836d8b7bcd2f20b6c7f9076ac232e\
    3ab2523f39513434";

// The suite in use, with the RFC's key pairs, by another implementation: pyhpke 0.6.5 (on
// cryptography 50.0.2), `CipherSuite.new(DHKEM_P256_HKDF_SHA256, HKDF_SHA256, AES256_GCM)`,
// `create_sender_context(pkR, info, eks=derive_key_pair(ikmE)).seal(token, aad)` with
// info "better-compute join v1" and aad SHA-256("a certificate request").
const TOKEN: &[u8] = b"bcjt_jt_01j00000000000000000000000.secret";
const TOKEN_CT: &str = "a81a09932a553777f28bbc205bdf258c8cb16563c8b9ca7a43038ae225b734cf1e242bb6\
    1d2e34678330d7d0a6b1c198e38d9c439fb6c17d1d";
const TOKEN_NONCE: &str = "4bcf7f88a6c9b620e54a7585";

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn agreed(key: &NodeKey, enc: &[u8; POINT]) -> p256::ecdh::SharedSecret {
    let secret = p256::SecretKey::from_pkcs8_der(key.pkcs8_der()).unwrap();
    let sender = p256::PublicKey::from_sec1_bytes(enc).unwrap();
    p256::ecdh::diffie_hellman(secret.to_nonzero_scalar(), sender.as_affine())
}

fn opened(
    key: &NodeKey,
    enc: &[u8; POINT],
    info: &[u8],
    aad: &[u8],
    ciphertext: &[u8],
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let dh = agreed(key, enc);
    open(
        dh.raw_secret_bytes(),
        enc,
        key.point(),
        info,
        aad,
        ciphertext,
    )
}

fn recipient() -> NodeKey {
    let secret = p256::SecretKey::from_slice(&unhex(SK_R)).unwrap();
    NodeKey::from_pkcs8_der(secret.to_pkcs8_der().unwrap().as_bytes()).unwrap()
}

#[test]
fn the_rfcs_base_vector_holds_from_decapsulation_to_ciphertext() {
    static AES_128: Suite = Suite {
        id: [0, 1],
        aead: &AES_128_GCM,
    };
    let recipient = recipient();
    assert_eq!(hex(recipient.point()), PK_R);
    let enc = unhex(ENC).try_into().unwrap();
    let dh = agreed(&recipient, &enc);
    let shared = shared_secret(dh.raw_secret_bytes(), &enc, recipient.point());
    assert_eq!(hex(&*shared), SHARED);
    let schedule = Schedule::new(&AES_128, &shared, &unhex(INFO));
    assert_eq!(hex(&schedule.key[..16]), KEY);
    assert_eq!(hex(&*schedule.nonce), NONCE);
    assert_eq!(hex(&schedule.seal(b"Count-0", &unhex(PT)).unwrap()), CT);
    assert_eq!(hex(&schedule.open(b"Count-0", &unhex(CT)).unwrap()), PT);
}

#[test]
fn the_suite_in_use_agrees_with_another_implementation() {
    let aad = crate::crypto::digest::sha256(b"a certificate request");
    let info = b"better-compute join v1";
    let enc = unhex(ENC).try_into().unwrap();
    let token = opened(&recipient(), &enc, info, &aad, &unhex(TOKEN_CT)).unwrap();
    assert_eq!(*token, TOKEN);
    let schedule = Schedule::new(&SUITE, &unhex(SHARED).try_into().unwrap(), info);
    assert_eq!(hex(&*schedule.nonce), TOKEN_NONCE);
    assert_eq!(hex(&schedule.seal(&aad, TOKEN).unwrap()), TOKEN_CT);
}

#[test]
fn what_is_sealed_opens_for_its_recipient_info_and_aad_alone() {
    let key = NodeKey::generate().unwrap();
    let public = PublicKey::from_point(*key.point());
    for length in [0, 1, 15, 16, 17, 4096] {
        let text = vec![0x42; length];
        let sealed = seal(&public, b"info", b"aad", &text).unwrap();
        assert_eq!(sealed.ciphertext.len(), length + 16);
        let Sealed { enc, ciphertext } = &sealed;
        let open = |key, info: &[u8], aad: &[u8]| opened(key, enc, info, aad, ciphertext);
        assert_eq!(*open(&key, b"info", b"aad").unwrap(), text);
        let other = NodeKey::generate().unwrap();
        assert_eq!(open(&other, b"info", b"aad"), Err(Error::Open));
        assert_eq!(open(&key, b"inf0", b"aad"), Err(Error::Open));
        assert_eq!(open(&key, b"info", b"a4d"), Err(Error::Open));
    }
}

#[test]
fn sealing_the_same_twice_gives_two_different_seals() {
    let key = NodeKey::generate().unwrap();
    let public = PublicKey::from_point(*key.point());
    let first = seal(&public, b"", b"", b"token").unwrap();
    let second = seal(&public, b"", b"", b"token").unwrap();
    assert!(first.enc != second.enc && first.ciphertext != second.ciphertext);
}

#[test]
fn a_seal_damaged_anywhere_does_not_open() {
    let key = NodeKey::generate().unwrap();
    let sealed = seal(&PublicKey::from_point(*key.point()), b"", b"", b"token").unwrap();
    let open = |ciphertext: &[u8]| opened(&key, &sealed.enc, b"", b"", ciphertext);
    for at in 0..sealed.ciphertext.len() {
        let mut damaged = sealed.ciphertext.clone();
        damaged[at] ^= 1;
        assert!(open(&damaged).is_err());
        assert!(open(&sealed.ciphertext[..at]).is_err());
    }
}

#[test]
fn a_recipient_off_the_curve_is_refused() {
    let mut point = *NodeKey::generate().unwrap().point();
    point[40] ^= 1;
    assert!(seal(&PublicKey::from_point(point), b"", b"", b"").err() == Some(Error::Recipient));
    assert!(seal(&PublicKey::from_point([4; POINT]), b"", b"", b"").is_err());
}
