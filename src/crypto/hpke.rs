//! Sealing to a public key: HPKE (RFC 9180), base mode, single shot, in one suite:
//! DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM. bcd seals; only the control plane opens, and
//! makes the key agreement itself: ring keeps no agreement key.
use std::fmt;

use ring::aead::{AES_256_GCM, Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::hmac;
use ring::rand::SystemRandom;
use zeroize::Zeroizing;

use super::jwk::PublicKey;
use super::spki::POINT;

/// The length of a SHA-256, and so of every secret in the schedule.
const SECRET: usize = 32;
/// RFC 9180, 4.1: "KEM" and the number of DHKEM(P-256, HKDF-SHA256).
const KEM_SUITE: &[u8] = b"KEM\x00\x10";

/// A sealed message.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The encapsulated key: an uncompressed P-256 point.
    pub enc: [u8; POINT],
    /// The message, encrypted, and a 16-byte tag.
    pub ciphertext: Vec<u8>,
}

/// Why sealing or opening failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The system gave no random bytes.
    Random,
    /// The recipient's key is no point on P-256.
    Recipient,
    /// Not sealed to this key with this info and aad, or damaged since; which one, nobody can
    /// tell.
    Open,
}

/// Seals `plaintext` to `recipient`; `info` names the purpose and `aad` what the message belongs
/// to, and opening needs the same two.
///
/// # Errors
/// [`Error::Random`] or [`Error::Recipient`].
pub fn seal(
    recipient: &PublicKey,
    info: &[u8],
    aad: &[u8],
    plaintext: &[u8],
) -> Result<Sealed, Error> {
    let ephemeral = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new())
        .map_err(|_| Error::Random)?;
    let public = ephemeral.compute_public_key().map_err(|_| Error::Random)?;
    let enc: [u8; POINT] = public.as_ref().try_into().map_err(|_| Error::Random)?;
    let peer = UnparsedPublicKey::new(&ECDH_P256, recipient.point());
    let shared = agree_ephemeral(ephemeral, &peer, |dh| {
        shared_secret(dh, &enc, recipient.point())
    })
    .map_err(|_| Error::Recipient)?;
    let schedule = Schedule::new(&SUITE, &shared, info);
    let ciphertext = schedule.seal(aad, plaintext).ok_or(Error::Random)?;
    Ok(Sealed { enc, ciphertext })
}

/// Opens what was sealed to `recipient` with the same `info` and `aad`. `dh` is what its private key
/// and `enc` agree on: the x coordinate of their product, `enc` having been checked to lie on the curve.
///
/// # Errors
/// [`Error::Open`].
pub fn open(
    dh: &[u8],
    enc: &[u8; POINT],
    recipient: &[u8; POINT],
    info: &[u8],
    aad: &[u8],
    ciphertext: &[u8],
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let shared = shared_secret(dh, enc, recipient);
    Schedule::new(&SUITE, &shared, info)
        .open(aad, ciphertext)
        .ok_or(Error::Open)
}

/// An AEAD and its number in the schedule.
struct Suite {
    id: [u8; 2],
    aead: &'static Algorithm,
}

/// AES-256-GCM.
static SUITE: Suite = Suite {
    id: [0, 2],
    aead: &AES_256_GCM,
};

/// What the key schedule gives (RFC 9180, 5.1), for base mode and the first message.
struct Schedule {
    suite: &'static Suite,
    /// Longer than the key when the AEAD takes less.
    key: Zeroizing<[u8; SECRET]>,
    nonce: Zeroizing<[u8; NONCE_LEN]>,
}

impl Schedule {
    fn new(suite: &'static Suite, shared: &[u8; SECRET], info: &[u8]) -> Self {
        // "HPKE", the numbers of the KEM, of HKDF-SHA256 and of the AEAD.
        let id = [b"HPKE\x00\x10\x00\x01".as_slice(), &suite.id].concat();
        let psk_id_hash = labeled_extract(&id, b"", b"psk_id_hash", b"");
        let info_hash = labeled_extract(&id, b"", b"info_hash", info);
        let context = [b"\x00".as_slice(), &*psk_id_hash, &*info_hash].concat();
        let secret = labeled_extract(&id, shared, b"secret", b"");
        let key_length = suite.aead.key_len() as u16;
        Self {
            suite,
            key: labeled_expand(&id, &secret, b"key", &context, key_length),
            nonce: labeled_expand(&id, &secret, b"base_nonce", &context, NONCE_LEN as u16),
        }
    }

    fn seal(&self, aad: &[u8], plaintext: &[u8]) -> Option<Vec<u8>> {
        // Room for the tag from the start, so that growing leaves no plaintext behind.
        let mut text = Vec::with_capacity(plaintext.len() + self.suite.aead.tag_len());
        text.extend_from_slice(plaintext);
        let nonce = Nonce::assume_unique_for_key(*self.nonce);
        self.cipher()?
            .seal_in_place_append_tag(nonce, Aad::from(aad), &mut text)
            .ok()?;
        Some(text)
    }

    fn open(&self, aad: &[u8], ciphertext: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let nonce = Nonce::assume_unique_for_key(*self.nonce);
        let mut text = Zeroizing::new(ciphertext.to_vec());
        let length = self
            .cipher()?
            .open_in_place(nonce, Aad::from(aad), &mut text)
            .ok()?
            .len();
        text.truncate(length);
        Some(text)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        let key = self.key.get(..self.suite.aead.key_len())?;
        UnboundKey::new(self.suite.aead, key)
            .ok()
            .map(LessSafeKey::new)
    }
}

/// ExtractAndExpand of DHKEM (RFC 9180, 4.1).
fn shared_secret(dh: &[u8], enc: &[u8], recipient: &[u8]) -> Zeroizing<[u8; SECRET]> {
    let prk = labeled_extract(KEM_SUITE, b"", b"eae_prk", dh);
    let context = [enc, recipient].concat();
    labeled_expand(KEM_SUITE, &prk, b"shared_secret", &context, SECRET as u16)
}

/// LabeledExtract (RFC 9180, 4): HKDF's is HMAC with the salt as its key (RFC 5869, 2.2).
fn labeled_extract(suite: &[u8], salt: &[u8], label: &[u8], ikm: &[u8]) -> Zeroizing<[u8; SECRET]> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, salt);
    mac(&key, &[b"HPKE-v1", suite, label, ikm])
}

/// LabeledExpand (RFC 9180, 4) of at most one block, the first of HKDF's (RFC 5869, 2.3).
/// `length` goes into the derivation; an `N` above it only leaves room.
fn labeled_expand<const N: usize>(
    suite: &[u8],
    prk: &[u8; SECRET],
    label: &[u8],
    info: &[u8],
    length: u16,
) -> Zeroizing<[u8; N]> {
    const { assert!(N <= SECRET) };
    let key = hmac::Key::new(hmac::HMAC_SHA256, prk);
    let length = length.to_be_bytes();
    mac(&key, &[&length, b"HPKE-v1", suite, label, info, &[1]])
}

fn mac<const N: usize>(key: &hmac::Key, parts: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    let tag = context.sign();
    let mut out = Zeroizing::new([0; N]);
    out.iter_mut()
        .zip(tag.as_ref())
        .for_each(|(to, from)| *to = *from);
    out
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "the system gives no random bytes",
            Self::Recipient => "the key to seal to is no point on P-256",
            Self::Open => "not sealed to this key for this request, or damaged",
        })
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests;
