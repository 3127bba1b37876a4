//! The fleet's keys, in one bundle file: a public half anybody may read, a private half sealed under a
//! passphrase or a key file. docs/pki.md describes the format.
//!
//! Promises: no bundle is overwritten but by the next step of its rotation; the public half is bound to the sealed one, so that a
//! changed pin or certificate is noticed when the bundle is opened; private keys leave this module only
//! as the [`Private`] half and are wiped from memory after use. Release keys live apart, elsewhere.

// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

mod issue;
mod rotation;
mod seal;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use bcd::crypto::pin::Pin;
use bcd::crypto::{base64, digest, json, pem};
use bcd::sys::fs::{self, Dir};
use nanoserde::{DeJson, SerJson};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use zeroize::{Zeroize, Zeroizing};

pub use self::issue::{IssueError, NodeIssuer, ServingIssuer, ServingLeaf};
pub use self::rotation::{Kind, Phase, RotateError, Rotation, Step};
pub use self::seal::{Lock, SealError, Sealed};

const FORMAT: &str = "better-compute-pki";
/// Of a bundle that was never rotated, and of one that was.
const FORMAT_VERSIONS: [u32; 2] = [1, 2];
const BUNDLE_MAX: usize = 256 * 1024;
/// CAs live ten years.
const CA_SECONDS: i64 = 10 * 365 * 86_400;

/// What a bundle says to everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    pub trust_domain: String,
    pub created_at_ms: i64,
    /// Grows with every change of the bundle; `TrustBundle.version`.
    pub trust_version: u64,
    /// X.509 DER.
    pub serving_ca: Vec<u8>,
    /// X.509 DER.
    pub node_ca: Vec<u8>,
    /// SubjectPublicKeyInfo, DER.
    pub join_signing_key: Vec<u8>,
    /// SubjectPublicKeyInfo, DER.
    pub join_encryption_key: Vec<u8>,
    /// X.509 DER, when the fleet signs commands.
    pub command_root: Option<Vec<u8>>,
    /// Those under way, at most one of a kind.
    pub rotations: Vec<Rotation>,
    /// Pins of keys that were rotated away, oldest first.
    pub retired_pins: Vec<String>,
}

/// The three pins a machine is installed with.
pub struct Pins {
    pub serving_ca: Pin,
    pub join_signing: Pin,
    pub join_encryption: Pin,
}

/// The private keys, PKCS#8 in DER.
pub struct Private {
    pub serving_ca: Zeroizing<Vec<u8>>,
    pub node_ca: Zeroizing<Vec<u8>>,
    pub join_signing: Zeroizing<Vec<u8>>,
    pub join_encryption: Zeroizing<Vec<u8>>,
    /// Signs commands; nothing here does yet.
    #[allow(dead_code)]
    pub command_root: Option<Zeroizing<Vec<u8>>>,
    /// Of the keys beside those in use, while they are rotated.
    pub others: Vec<(Kind, Zeroizing<Vec<u8>>)>,
}

/// A bundle as its file holds it.
pub struct Bundle {
    pub public: Public,
    sealed: Sealed,
}

/// Why a bundle cannot be made, read or opened.
#[derive(Debug)]
pub enum PkiError {
    /// `FILE_EXISTS`: a bundle is never overwritten.
    Exists(PathBuf),
    File(fs::Error),
    /// The file is no bundle this version reads.
    Malformed(PathBuf, String),
    Seal(SealError),
    /// A trust domain is lower-case letters, digits, `.`, `-` and `_`.
    TrustDomain,
    Issue(IssueError),
}

impl fmt::Display for PkiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(path) => write!(
                f,
                "FILE_EXISTS: {} is there and is never overwritten: choose another --out, or move it away",
                path.display()
            ),
            Self::File(_) => write!(f, "cannot use the PKI bundle"),
            Self::Malformed(path, why) => {
                write!(f, "{} is no PKI bundle: {why}", path.display())
            }
            Self::Seal(_) => write!(f, "cannot open the PKI bundle"),
            Self::TrustDomain => write!(
                f,
                "a trust domain is 1 to 255 lower-case letters, digits, '.', '-' and '_'"
            ),
            Self::Issue(_) => write!(f, "cannot make the PKI"),
        }
    }
}

impl Error for PkiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            Self::Seal(error) => Some(error),
            Self::Issue(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SealError> for PkiError {
    fn from(error: SealError) -> Self {
        Self::Seal(error)
    }
}

impl From<IssueError> for PkiError {
    fn from(error: IssueError) -> Self {
        Self::Issue(error)
    }
}

#[derive(DeJson, SerJson)]
struct File {
    format: String,
    version: u32,
    public: PublicFile,
    sealed: Sealed,
}

#[derive(DeJson, SerJson)]
struct PublicFile {
    #[nserde(rename = "trustDomain")]
    trust_domain: String,
    #[nserde(rename = "createdAtMs")]
    created_at_ms: i64,
    #[nserde(rename = "trustVersion")]
    trust_version: u64,
    #[nserde(rename = "servingCa")]
    serving_ca: String,
    #[nserde(rename = "nodeCa")]
    node_ca: String,
    #[nserde(rename = "joinSigningKey")]
    join_signing_key: String,
    #[nserde(rename = "joinEncryptionKey")]
    join_encryption_key: String,
    #[nserde(rename = "commandRoot")]
    command_root: Option<String>,
    rotations: Option<Vec<RotationFile>>,
    #[nserde(rename = "retiredPins")]
    retired_pins: Option<Vec<String>>,
}

#[derive(DeJson, SerJson)]
struct RotationFile {
    key: String,
    phase: String,
    #[nserde(rename = "begunAtMs")]
    begun_at_ms: i64,
    #[nserde(rename = "sinceVersion")]
    since_version: u64,
    other: String,
    cross: Option<String>,
}

/// Base64 of PKCS#8; wiped when dropped.
#[derive(DeJson, SerJson)]
struct PrivateFile {
    #[nserde(rename = "servingCa")]
    serving_ca: String,
    #[nserde(rename = "nodeCa")]
    node_ca: String,
    #[nserde(rename = "joinSigning")]
    join_signing: String,
    #[nserde(rename = "joinEncryption")]
    join_encryption: String,
    #[nserde(rename = "commandRoot")]
    command_root: Option<String>,
    others: Option<Vec<OtherFile>>,
}

#[derive(DeJson, SerJson)]
struct OtherFile {
    kind: String,
    key: String,
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        self.serving_ca.zeroize();
        self.node_ca.zeroize();
        self.join_signing.zeroize();
        self.join_encryption.zeroize();
        self.command_root.zeroize();
        for other in self.others.iter_mut().flatten() {
            other.key.zeroize();
        }
    }
}

impl Bundle {
    /// Makes all keys and certificates new and seals the private half. Nothing is written.
    ///
    /// # Errors
    /// [`PkiError::TrustDomain`] for a name that fits no SPIFFE id.
    pub fn generate(
        trust_domain: &str,
        command_signing: bool,
        lock: &Lock,
        now_ms: i64,
    ) -> Result<Self, PkiError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-_".contains(&b);
        if trust_domain.is_empty() || trust_domain.len() > 255 || !trust_domain.bytes().all(plain) {
            return Err(PkiError::TrustDomain);
        }
        let key = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::from);
        let ca = |name: &str, key: &KeyPair, paths| {
            let name = format!("{trust_domain} {name}");
            issue::self_signed_ca(&name, key, paths, now_ms, CA_SECONDS)
        };
        let (serving, node, signing, encryption) = (key()?, key()?, key()?, key()?);
        let command = command_signing.then(key).transpose()?;
        let public = Public {
            trust_domain: trust_domain.to_owned(),
            created_at_ms: now_ms,
            trust_version: 1,
            serving_ca: ca("serving CA", &serving, 1)?,
            node_ca: ca("node identity CA", &node, 0)?,
            join_signing_key: signing.subject_public_key_info(),
            join_encryption_key: encryption.subject_public_key_info(),
            command_root: command
                .as_ref()
                .map(|key| ca("command signing root", key, 0))
                .transpose()?,
            rotations: Vec::new(),
            retired_pins: Vec::new(),
        };
        let pkcs8 = |key: &KeyPair| Zeroizing::new(key.serialize_der());
        let private = Private {
            serving_ca: pkcs8(&serving),
            node_ca: pkcs8(&node),
            join_signing: pkcs8(&signing),
            join_encryption: pkcs8(&encryption),
            command_root: command.as_ref().map(pkcs8),
            others: Vec::new(),
        };
        let sealed = private.seal(&public, lock);
        Ok(Self { public, sealed })
    }

    /// Puts the bundle in the place of the one at `path`, whole or not at all.
    ///
    /// # Errors
    /// What the disk says; then the former stands.
    pub fn replace(&self, path: &Path) -> Result<(), PkiError> {
        let (dir, name) = split(path).map_err(PkiError::File)?;
        dir.write_atomic(&name, self.to_json().as_bytes(), 0o600)
            .map_err(PkiError::File)
    }

    /// Writes the bundle to a path where nothing is, with mode 0600.
    ///
    /// # Errors
    /// [`PkiError::Exists`], or what the disk says; then nothing was left at `path`.
    pub fn write_new(&self, path: &Path) -> Result<(), PkiError> {
        let (dir, name) = split(path).map_err(PkiError::File)?;
        if dir.exists(&name).map_err(PkiError::File)? {
            return Err(PkiError::Exists(path.to_owned()));
        }
        let staged = format!("{name}.init");
        dir.write_atomic(&staged, self.to_json().as_bytes(), 0o600)
            .map_err(PkiError::File)?;
        dir.rename_new(&staged, &name).map_err(|error| {
            let _ = dir.remove(&staged);
            if error.is_there() {
                PkiError::Exists(path.to_owned())
            } else {
                PkiError::File(error)
            }
        })
    }

    /// Reads a bundle; no secret is needed for its public half.
    ///
    /// # Errors
    /// The file cannot be read or is no bundle of this version.
    pub fn read(path: &Path) -> Result<Self, PkiError> {
        let (dir, name) = split(path).map_err(PkiError::File)?;
        let bytes = dir.read(&name, BUNDLE_MAX).map_err(PkiError::File)?;
        Self::parse(&bytes).map_err(|why| PkiError::Malformed(path.to_owned(), why))
    }

    /// A bundle from its file's bytes.
    ///
    /// # Errors
    /// What keeps them from being a bundle of this version, in words.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = json::check(bytes, BUNDLE_MAX, 8).map_err(|error| error.to_string())?;
        let file = File::deserialize_json(text).map_err(|error| error.to_string())?;
        if file.format != FORMAT {
            return Err(format!("its format is not {FORMAT}"));
        }
        if !FORMAT_VERSIONS.contains(&file.version) {
            return Err(format!(
                "its version is {}, this better-compute reads {FORMAT_VERSIONS:?}",
                file.version
            ));
        }
        let der = |text: &str, label| pem::decode(text, label).map(|der| der.to_vec());
        let cert = |text: &str| der(text, "CERTIFICATE").map_err(|error| error.to_string());
        let key = |text: &str| der(text, "PUBLIC KEY").map_err(|error| error.to_string());
        let from = file.public;
        let rotations = from.rotations.unwrap_or_default();
        let rotations = rotations.into_iter().map(|rotation| {
            let kind = Kind::parse(&rotation.key).ok_or("a rotation is of a key not known")?;
            Ok::<_, String>(Rotation {
                kind,
                phase: Phase::parse(&rotation.phase).ok_or("a rotation's phase is not known")?,
                begun_at_ms: rotation.begun_at_ms,
                since_version: rotation.since_version,
                other: match kind {
                    Kind::ServingCa | Kind::NodeCa => cert(&rotation.other)?,
                    Kind::JoinSigning | Kind::JoinEncryption => key(&rotation.other)?,
                },
                cross: rotation.cross.as_deref().map(cert).transpose()?,
            })
        });
        let rotations = rotations.collect::<Result<Vec<_>, _>>()?;
        let public = Public {
            rotations,
            retired_pins: from.retired_pins.unwrap_or_default(),
            serving_ca: cert(&from.serving_ca)?,
            node_ca: cert(&from.node_ca)?,
            join_signing_key: key(&from.join_signing_key)?,
            join_encryption_key: key(&from.join_encryption_key)?,
            command_root: from.command_root.as_deref().map(cert).transpose()?,
            trust_domain: from.trust_domain,
            created_at_ms: from.created_at_ms,
            trust_version: from.trust_version,
        };
        // Pins are taken from these without opening the bundle: they must at least be what they say.
        let cas = public
            .rotations
            .iter()
            .filter(|rotation| matches!(rotation.kind, Kind::ServingCa | Kind::NodeCa));
        for ca in [&public.serving_ca, &public.node_ca]
            .into_iter()
            .chain(&public.command_root)
            .chain(cas.map(|rotation| &rotation.other))
        {
            issue::spki_of(ca).ok_or("a certificate does not parse")?;
        }
        Ok(Self {
            public,
            sealed: file.sealed,
        })
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let cert = |der: &Vec<u8>| pem::encode("CERTIFICATE", der).to_string();
        let key = |der: &Vec<u8>| pem::encode("PUBLIC KEY", der).to_string();
        let public = &self.public;
        File {
            format: FORMAT.to_owned(),
            version: match public.was_rotated() {
                false => FORMAT_VERSIONS[0],
                true => FORMAT_VERSIONS[1],
            },
            public: PublicFile {
                trust_domain: public.trust_domain.clone(),
                created_at_ms: public.created_at_ms,
                trust_version: public.trust_version,
                serving_ca: cert(&public.serving_ca),
                node_ca: cert(&public.node_ca),
                join_signing_key: key(&public.join_signing_key),
                join_encryption_key: key(&public.join_encryption_key),
                command_root: public.command_root.as_ref().map(cert),
                rotations: (!public.rotations.is_empty()).then(|| {
                    let rotations = public.rotations.iter().map(|rotation| RotationFile {
                        key: rotation.kind.name().to_owned(),
                        phase: rotation.phase.name().to_owned(),
                        begun_at_ms: rotation.begun_at_ms,
                        since_version: rotation.since_version,
                        other: match rotation.kind {
                            Kind::ServingCa | Kind::NodeCa => cert(&rotation.other),
                            Kind::JoinSigning | Kind::JoinEncryption => key(&rotation.other),
                        },
                        cross: rotation.cross.as_ref().map(cert),
                    });
                    rotations.collect()
                }),
                retired_pins: (!public.retired_pins.is_empty())
                    .then(|| public.retired_pins.clone()),
            },
            sealed: self.sealed.clone(),
        }
        .serialize_json()
    }

    /// Opens the private half.
    ///
    /// # Errors
    /// See [`SealError`].
    pub fn open(&self, lock: &Lock) -> Result<Private, SealError> {
        Private::parse(&lock.open(&self.sealed, &self.public.bound())?)
    }

    /// How the private half is sealed: `argon2id` or `key-file`.
    pub fn sealed_with(&self) -> &str {
        self.sealed.kdf()
    }
}

impl Private {
    /// From what was sealed.
    ///
    /// # Errors
    /// [`SealError::Malformed`].
    pub fn parse(plaintext: &[u8]) -> Result<Self, SealError> {
        let malformed = || SealError::Malformed("the private half");
        let text = json::check(plaintext, BUNDLE_MAX, 8).map_err(|_| malformed())?;
        let file = PrivateFile::deserialize_json(text).map_err(|_| malformed())?;
        let key = |text: &str| {
            base64::decode(text)
                .map(Zeroizing::new)
                .map_err(|_| SealError::Malformed("a private key"))
        };
        Ok(Self {
            serving_ca: key(&file.serving_ca)?,
            node_ca: key(&file.node_ca)?,
            join_signing: key(&file.join_signing)?,
            join_encryption: key(&file.join_encryption)?,
            command_root: file.command_root.as_deref().map(key).transpose()?,
            others: file
                .others
                .iter()
                .flatten()
                .map(|other| {
                    let kind = Kind::parse(&other.kind);
                    let kind = kind.ok_or(SealError::Malformed("a private key's kind"))?;
                    Ok((kind, key(&other.key)?))
                })
                .collect::<Result<_, SealError>>()?,
        })
    }

    /// Sealed, and bound to the public half.
    fn seal(&self, public: &Public, lock: &Lock) -> Sealed {
        let b64 = |key: &Zeroizing<Vec<u8>>| base64::encode(key);
        let others = self.others.iter().map(|(kind, key)| OtherFile {
            kind: kind.name().to_owned(),
            key: b64(key),
        });
        let file = PrivateFile {
            serving_ca: b64(&self.serving_ca),
            node_ca: b64(&self.node_ca),
            join_signing: b64(&self.join_signing),
            join_encryption: b64(&self.join_encryption),
            command_root: self.command_root.as_ref().map(b64),
            others: (!self.others.is_empty()).then(|| others.collect()),
        };
        let plaintext = Zeroizing::new(file.serialize_json());
        lock.seal(plaintext.as_bytes(), &public.bound())
    }
}

impl Public {
    fn was_rotated(&self) -> bool {
        !self.rotations.is_empty() || !self.retired_pins.is_empty()
    }

    /// The three pins.
    pub fn pins(&self) -> Pins {
        // `parse` and `generate` let no other certificate in.
        let serving = issue::spki_of(&self.serving_ca).unwrap_or_default();
        Pins {
            serving_ca: Pin::of_spki(&serving),
            join_signing: Pin::of_spki(&self.join_signing_key),
            join_encryption: Pin::of_spki(&self.join_encryption_key),
        }
    }

    /// The pin of the node-identity CA in use.
    pub fn node_ca_pin(&self) -> Pin {
        Pin::of_spki(&issue::spki_of(&self.node_ca).unwrap_or_default())
    }

    /// SHA-256 of the command-signing root certificate, in lower-case hex.
    pub fn command_root_sha256(&self) -> Option<String> {
        self.command_root
            .as_ref()
            .map(|der| digest::hex(&digest::sha256(der)))
    }

    /// The bytes the sealed half is bound to: each value with its length before it.
    fn bound(&self) -> Vec<u8> {
        let mut bytes = match self.was_rotated() {
            false => b"better-compute pki v1\0".to_vec(),
            true => b"better-compute pki v2\0".to_vec(),
        };
        let mut put = |value: &[u8]| {
            bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(value);
        };
        put(self.trust_domain.as_bytes());
        put(&self.created_at_ms.to_be_bytes());
        put(&self.trust_version.to_be_bytes());
        put(&self.serving_ca);
        put(&self.node_ca);
        put(&self.join_signing_key);
        put(&self.join_encryption_key);
        put(self.command_root.as_deref().unwrap_or_default());
        if self.was_rotated() {
            for rotation in &self.rotations {
                put(rotation.kind.name().as_bytes());
                put(rotation.phase.name().as_bytes());
                put(&rotation.begun_at_ms.to_be_bytes());
                put(&rotation.since_version.to_be_bytes());
                put(&rotation.other);
                put(rotation.cross.as_deref().unwrap_or_default());
            }
            put(&[]);
            for pin in &self.retired_pins {
                put(pin.as_bytes());
            }
        }
        bytes
    }
}

/// The directory a path is in, opened, and the path's last component.
fn split(path: &Path) -> Result<(Dir, String), fs::Error> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok((Dir::open(parent)?, name))
}

#[cfg(test)]
mod tests;
