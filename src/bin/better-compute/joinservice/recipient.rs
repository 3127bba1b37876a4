//! A key that join tokens are sealed to.
//!
//! The agreement is made by the p256 crate, since ring keeps no agreement key; all else of HPKE is `bcd::crypto::hpke`'s.
use bcd::crypto::hpke::{self, Error};
use bcd::crypto::key::NodeKey;
use bcd::crypto::pin::Pin;
use bcd::crypto::spki::POINT;
use p256::pkcs8::DecodePrivateKey;
use zeroize::Zeroizing;

/// The private half, read once: taking it apart costs as much as opening one token.
pub struct Recipient {
    secret: p256::SecretKey,
    point: [u8; POINT],
    pin: Pin,
}

impl Recipient {
    /// From the private key; `None` when it is none that can be agreed with.
    pub fn new(key: &NodeKey) -> Option<Self> {
        Some(Self {
            secret: p256::SecretKey::from_pkcs8_der(key.pkcs8_der()).ok()?,
            point: *key.point(),
            pin: key.pin(),
        })
    }

    /// The pin of the public half.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// Opens what was sealed to this key with the same `info` and `aad`.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(
        &self,
        enc: &[u8],
        info: &[u8],
        aad: &[u8],
        ciphertext: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        // Uncompressed alone: RFC 9180, 7.1.1.
        let enc: &[u8; POINT] = enc.try_into().map_err(|_| Error::Open)?;
        let sender = p256::PublicKey::from_sec1_bytes(enc).map_err(|_| Error::Open)?;
        let dh = p256::ecdh::diffie_hellman(self.secret.to_nonzero_scalar(), sender.as_affine());
        hpke::open(
            dh.raw_secret_bytes(),
            enc,
            &self.point,
            info,
            aad,
            ciphertext,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bcd::crypto::jwk::PublicKey;

    #[test]
    fn a_seal_whose_point_is_damaged_or_cut_short_does_not_open() {
        let key = NodeKey::generate().unwrap();
        let sealed = hpke::seal(&PublicKey::from_point(*key.point()), b"", b"", b"token").unwrap();
        let recipient = Recipient::new(&key).unwrap();
        let open = |enc: &[u8]| recipient.open(enc, b"", b"", &sealed.ciphertext);
        assert_eq!(*open(&sealed.enc).unwrap(), b"token");
        for at in 0..POINT {
            let mut damaged = sealed.enc;
            damaged[at] ^= 1;
            assert_eq!(open(&damaged), Err(Error::Open));
            assert_eq!(open(&sealed.enc[..at]), Err(Error::Open));
        }
    }
}
