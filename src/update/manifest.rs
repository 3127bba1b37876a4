//! The release manifest: which files a release has, signed by the release keys. docs/releases.md has the
//! format.
//!
//! Promises: nothing of a manifest is parsed before enough of the pinned keys have signed it; what is
//! parsed is bounded, and every name in it is the name of one file of one flat directory.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use std::fmt;

use nanoserde::{DeJson, SerJson};

use crate::config::values::hex_digest;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::json;
use crate::crypto::pin::Pin;

/// The longest manifest read, its envelope included: bytes.
pub const MANIFEST_MAX: usize = 256 * 1024;
/// The most files a release lists.
pub const FILES_MAX: usize = 256;
/// The most keys that may have to sign.
pub const THRESHOLD_MAX: usize = 16;
const NAME_MAX: usize = 200;
const VERSION_MAX: usize = 64;

/// What a release consists of.
#[derive(Clone, Debug, PartialEq, Eq, DeJson, SerJson)]
pub struct Manifest {
    /// `bcd`: the product that is released; what ships with it is among its files.
    pub product: String,
    /// A semantic version, without a leading `v`.
    pub version: String,
    /// Grows with every release: a machine takes none below the one it has.
    pub sequence: u64,
    /// Milliseconds since 1970, UTC.
    #[nserde(rename = "issuedAtMs")]
    pub issued_at_ms: u64,
    /// From then on nothing new is installed by it.
    #[nserde(rename = "expiresAtMs")]
    pub expires_at_ms: u64,
    pub files: Vec<File>,
}

/// One file of a release.
#[derive(Clone, Debug, PartialEq, Eq, DeJson, SerJson)]
pub struct File {
    /// Letters, digits, `.`, `_`, `-` and `+`; its place is a flat directory.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// 64 lower-case hex digits.
    pub sha256: String,
}

/// Why a manifest is not taken.
#[derive(Debug)]
pub enum Error {
    /// Not an envelope.
    Envelope(envelope::JsonError),
    /// Not signed as it has to be.
    Signature(envelope::Error),
    /// Signed, and not a manifest: this is wrong with it.
    Malformed(String),
    /// It was good until then: milliseconds since 1970.
    Expired(u64),
}

impl Manifest {
    /// Reads a manifest that at least `threshold` of `pins` have signed.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn verify(text: &[u8], pins: &[Pin], threshold: usize, now_ms: u64) -> Result<Self, Error> {
        let envelope = envelope::from_json(text).map_err(Error::Envelope)?;
        let payload =
            envelope::verify_threshold(&envelope, Purpose::ReleaseManifest, pins, threshold)
                .map_err(Error::Signature)?;
        let manifest = Self::parse(payload).map_err(Error::Malformed)?;
        match manifest.expires_at_ms > now_ms {
            true => Ok(manifest),
            false => Err(Error::Expired(manifest.expires_at_ms)),
        }
    }

    /// Reads the payload of a manifest.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(payload: &[u8]) -> Result<Self, String> {
        let text = json::check(payload, MANIFEST_MAX, 4).map_err(|error| error.to_string())?;
        let manifest = Self::deserialize_json(text).map_err(|_| {
            "it lacks members of a manifest, or has them of another kind".to_owned()
        })?;
        manifest.check()?;
        Ok(manifest)
    }

    /// What every manifest holds to; the message says what does not.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if !is_product(&self.product) {
            return Err("its product is not a name".to_owned());
        }
        if !is_version(&self.version) {
            return Err("its version is not a semantic version".to_owned());
        }
        if self.expires_at_ms <= self.issued_at_ms {
            return Err("it expires before it is issued".to_owned());
        }
        if self.files.is_empty() || self.files.len() > FILES_MAX {
            return Err(format!(
                "it lists {} files, not 1 to {FILES_MAX}",
                self.files.len()
            ));
        }
        for (at, file) in self.files.iter().enumerate() {
            let named = file.name.get(..NAME_MAX).unwrap_or(&file.name);
            if !is_file_name(&file.name) {
                return Err(format!("its file {} has a name that is none", at + 1));
            }
            if hex_digest(&file.sha256).is_none() {
                return Err(format!(
                    "the digest of {named} is not 64 lower-case hex digits"
                ));
            }
            if self
                .files
                .iter()
                .take(at)
                .any(|other| other.name == file.name)
            {
                return Err(format!("it lists {named} twice"));
            }
        }
        Ok(())
    }

    /// The product's bare binary for linux on `arch`, `amd64` or `arm64`.
    pub fn binary(&self, arch: &str) -> Option<&File> {
        let name = format!("{}_{}_linux_{arch}", self.product, self.version);
        self.file(&name)
    }

    /// The archive of a plugin that ships with the release.
    pub fn plugin(&self, plugin: &str, arch: &str) -> Option<&File> {
        let name = format!("{plugin}_{}_linux_{arch}.tar.gz", self.version);
        self.file(&name)
    }

    fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

fn is_product(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Whether `name` is that of a released file.
pub fn is_file_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
}

/// Semantic Versioning 2.0: three numbers, then a pre-release, then build metadata; at most 64 bytes.
pub fn is_version(version: &str) -> bool {
    let (rest, build) = match version.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (version, None),
    };
    let (core, pre) = match rest.split_once('-') {
        Some((core, pre)) => (core, Some(pre)),
        None => (rest, None),
    };
    let number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && (part.len() == 1 || !part.starts_with('0'))
    };
    let identifiers = |text: &str| {
        text.split('.').all(|part| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        })
    };
    version.len() <= VERSION_MAX
        && core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(identifiers)
        && build.is_none_or(identifiers)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Envelope(_) => f.write_str("the release manifest cannot be read"),
            Self::Signature(_) => {
                f.write_str("the release manifest is not signed by the pinned release keys")
            }
            Self::Malformed(what) => write!(f, "the release manifest is malformed: {what}"),
            Self::Expired(_) => f.write_str(
                "the release manifest has expired: sign it again with a later end, or take a newer release",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Envelope(error) => Some(error),
            Self::Signature(error) => Some(error),
            Self::Malformed(_) | Self::Expired(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::crypto::key::NodeKey;

    fn manifest() -> Manifest {
        let file = |name: &str| File {
            name: name.to_owned(),
            size: 3,
            sha256: "0f".repeat(32),
        };
        Manifest {
            product: "bcd".to_owned(),
            version: "1.2.3-rc.1".to_owned(),
            sequence: 7,
            issued_at_ms: 1000,
            expires_at_ms: 2000,
            files: vec![
                file("bcd_1.2.3-rc.1_linux_amd64"),
                file("bcd_1.2.3-rc.1_linux_amd64.sbom.json"),
                file("bcx-ipmi_1.2.3-rc.1_linux_arm64.tar.gz"),
            ],
        }
    }

    fn signed(manifest: &Manifest, keys: &[&NodeKey]) -> Vec<u8> {
        let payload = manifest.serialize_json().into_bytes();
        let mut all = envelope::sign(payload.clone(), Purpose::ReleaseManifest, keys[0]).unwrap();
        for key in &keys[1..] {
            let other = envelope::sign(payload.clone(), Purpose::ReleaseManifest, key).unwrap();
            all.signatures.extend(other.signatures);
        }
        envelope::to_json(&all).into_bytes()
    }

    #[test]
    fn a_signed_manifest_reads_back_and_names_its_binaries() {
        let key = NodeKey::generate().unwrap();
        let text = signed(&manifest(), &[&key]);
        let read = Manifest::verify(&text, &[key.pin()], 1, 1500).unwrap();
        assert_eq!(read, manifest());
        assert_eq!(read.binary("amd64"), Some(&read.files[0]));
        assert_eq!(read.binary("arm64"), None);
        assert_eq!(read.plugin("bcx-ipmi", "arm64"), Some(&read.files[2]));
        assert_eq!(read.plugin("bcx-ipmi", "amd64"), None);
    }

    #[test]
    fn as_many_different_keys_have_to_sign_as_the_threshold_says() {
        let keys: Vec<NodeKey> = (0..3).map(|_| NodeKey::generate().unwrap()).collect();
        let pins: Vec<Pin> = keys.iter().map(NodeKey::pin).collect();
        let judge = |signers: &[&NodeKey], pins: &[Pin], threshold| {
            Manifest::verify(&signed(&manifest(), signers), pins, threshold, 1500).is_ok()
        };
        assert!(judge(&[&keys[0], &keys[2]], &pins, 2));
        // One key twice is one key, and so is one pin twice.
        assert!(!judge(&[&keys[0], &keys[0]], &pins, 2));
        assert!(!judge(&[&keys[0]], &[pins[0], pins[0]], 2));
        // A key that is not pinned counts for nothing, and takes nothing away.
        assert!(!judge(&[&keys[0], &keys[1]], &pins[1..], 2));
        assert!(judge(&[&keys[0], &keys[1], &keys[2]], &pins[1..], 2));
        // Zero would be no signature at all.
        assert!(!judge(&[&keys[0]], &pins[1..], 0));
    }

    #[test]
    fn what_was_signed_for_something_else_or_changed_is_refused() {
        let key = NodeKey::generate().unwrap();
        let payload = manifest().serialize_json().into_bytes();
        let other = envelope::sign(payload, Purpose::NodeSpec, &key).unwrap();
        let other = envelope::to_json(&other).into_bytes();
        assert!(matches!(
            Manifest::verify(&other, &[key.pin()], 1, 1500),
            Err(Error::Signature(envelope::Error::Purpose { .. }))
        ));
        let mut changed = envelope::from_json(&signed(&manifest(), &[&key])).unwrap();
        changed.payload[20] ^= 1;
        assert!(matches!(
            Manifest::verify(
                envelope::to_json(&changed).as_bytes(),
                &[key.pin()],
                1,
                1500
            ),
            Err(Error::Signature(envelope::Error::BadSignature(_)))
        ));
        assert!(matches!(
            Manifest::verify(&signed(&manifest(), &[&key]), &[key.pin()], 1, 2000),
            Err(Error::Expired(2000))
        ));
    }

    #[test]
    fn each_mistake_in_a_manifest_is_named() {
        let broken = |change: fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            Manifest::parse(manifest.serialize_json().as_bytes()).unwrap_err()
        };
        for (want, change) in [
            (
                "product",
                (|m| m.product = "BCD".to_owned()) as fn(&mut Manifest),
            ),
            ("version", |m| m.version = "v1.2.3".to_owned()),
            ("expires", |m| m.expires_at_ms = m.issued_at_ms),
            ("lists 0 files", |m| m.files.clear()),
            ("a name that is none", |m| {
                m.files[0].name = "../bcd".to_owned()
            }),
            ("a name that is none", |m| {
                m.files[0].name = ".bcd".to_owned()
            }),
            ("64 lower-case", |m| m.files[1].sha256 = "0F".repeat(32)),
            ("twice", |m| m.files[1] = m.files[0].clone()),
        ] {
            assert!(broken(change).contains(want), "{want}: {}", broken(change));
        }
        for text in ["", "{}", "[]", "{\"product\":\"bcd\"}"] {
            assert!(Manifest::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
