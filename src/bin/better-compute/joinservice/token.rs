//! The join token's own form: `bcjt_jt_<ulid>.<secret>`, the secret being 32 random bytes in unpadded
//! base64url. Kept is only its SHA-256, compared in constant time.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

use bcd::crypto::{base64, digest};
use zeroize::Zeroizing;

use crate::ids;

const PREFIX: &str = "bcjt_";
const SECRET_CHARS: usize = 43;

/// A new token.
pub struct Minted {
    /// `jt_<ulid>`.
    pub id: String,
    /// To be shown once and then forgotten.
    pub token: Zeroizing<String>,
    /// What is kept.
    pub digest: [u8; 32],
}

/// Makes a token.
pub fn mint(now_ms: i64) -> Minted {
    let id = ids::new("jt", now_ms);
    let mut secret = Zeroizing::new([0u8; 32]);
    ids::fill_random(&mut *secret);
    let secret = Zeroizing::new(base64::encode_url(&*secret));
    let token = Zeroizing::new(format!("{PREFIX}{id}.{}", *secret));
    let digest = digest::sha256(token.as_bytes());
    Minted { id, token, digest }
}

/// A well-formed token that a caller presents.
pub struct Presented {
    pub id: String,
    digest: [u8; 32],
}

impl Presented {
    /// Takes a token apart; `None` unless it has the form exactly.
    pub fn parse(token: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(token).ok()?;
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('.')?;
        let formed = ids::is_ulid_of("jt", id)
            && secret.len() == SECRET_CHARS
            && secret
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        formed.then(|| Self {
            id: id.to_owned(),
            digest: digest::sha256(token),
        })
    }

    /// Whether this is the token that `kept` is the digest of; takes the same time either way.
    pub fn is(&self, kept: &[u8; 32]) -> bool {
        digest::equal(&self.digest, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_token_is_known_by_its_digest_alone() {
        let minted = mint(1_700_000_000_000);
        assert_eq!(minted.token.len(), "bcjt_jt_".len() + 26 + 1 + 43);
        let presented = Presented::parse(minted.token.as_bytes()).unwrap();
        assert_eq!(presented.id, minted.id);
        assert!(presented.is(&minted.digest));
        assert!(!presented.is(&mint(0).digest));
    }

    #[test]
    fn only_the_exact_form_is_a_token() {
        let good = mint(1).token.to_string();
        assert!(Presented::parse(good.as_bytes()).is_some());
        for bad in [
            "",
            "bcjt_",
            &good[..good.len() - 1],
            &format!("{good}A"),
            &format!("{good}\n"),
            &format!(" {good}"),
            &good.replace('.', ":"),
            &good.replace("bcjt_", "bcjx_"),
            &good.to_uppercase(),
        ] {
            assert!(Presented::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
        assert!(Presented::parse(b"bcjt_jt_\xff").is_none());
    }
}
