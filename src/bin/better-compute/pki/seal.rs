//! Sealing the private half of a bundle: AES-256-GCM under a key made from a passphrase (argon2id) or
//! held in a key file (32 random bytes).
//!
//! The public half is the associated data, so that a changed public half opens as little as a changed
//! ciphertext or a wrong passphrase: one error for all three, which says what to check.

// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use bcd::sys::fs::{self, Dir};
use nanoserde::{DeJson, SerJson};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use bcd::crypto::base64;

use crate::ids::fill_random;

const KEY_BYTES: usize = 32;
const PASSPHRASE_MAX: usize = 1024;
/// argon2id as RFC 9106 recommends where memory is constrained: 64 MiB, three passes.
const MEMORY_KIB: u32 = if cfg!(test) { 256 } else { 64 * 1024 };
const PASSES: u32 = 3;
/// What a bundle may ask of the machine that opens it.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;
const PASSES_MAX: u32 = 64;

/// The sealed half as it stands in the file.
#[derive(Clone, DeJson, SerJson)]
pub struct Sealed {
    /// `AES-256-GCM`.
    cipher: String,
    /// `argon2id` or `key-file`.
    kdf: String,
    #[nserde(rename = "memoryKiB")]
    memory_kib: Option<u32>,
    passes: Option<u32>,
    salt: Option<String>,
    nonce: String,
    ciphertext: String,
}

/// What a bundle is sealed with.
pub enum Lock {
    Passphrase(Zeroizing<Vec<u8>>),
    Key(Zeroizing<Vec<u8>>),
}

/// Why a bundle does not open, or its passphrase or key cannot be used.
#[derive(Debug)]
pub enum SealError {
    /// The passphrase or key file cannot be read.
    File(fs::Error),
    /// Others may read the file.
    Mode { path: PathBuf, mode: u32 },
    /// A key file is not 32 bytes; a passphrase file is empty.
    BadLength(PathBuf, &'static str),
    /// The bundle is sealed the other way.
    OtherLock { wants: &'static str },
    /// The sealed half is not in the form this version writes.
    Malformed(&'static str),
    /// Wrong passphrase or key, or the file was changed.
    DoesNotOpen,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(_) => write!(f, "cannot use the file that opens the bundle"),
            Self::Mode { path, mode } => write!(
                f,
                "{} has mode {mode:04o}: others may read it; chmod 600 it",
                path.display()
            ),
            Self::BadLength(path, what) => write!(f, "{} {what}", path.display()),
            Self::OtherLock { wants } => {
                write!(f, "the bundle is sealed with a {wants}: give --{wants}")
            }
            Self::Malformed(what) => write!(f, "the bundle's sealed half is malformed: {what}"),
            Self::DoesNotOpen => write!(
                f,
                "the bundle does not open: the passphrase or key is another one, or the file was changed"
            ),
        }
    }
}

impl Error for SealError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            _ => None,
        }
    }
}

impl Sealed {
    /// How it is sealed: `argon2id` or `key-file`.
    pub fn kdf(&self) -> &str {
        &self.kdf
    }
}

impl Lock {
    /// Reads a passphrase: the file's bytes without one line end. The file must be its owner's alone.
    ///
    /// # Errors
    /// The file is missing, readable by others, empty or over 1 KiB.
    pub fn from_passphrase_file(path: &Path) -> Result<Self, SealError> {
        let mut bytes = read_private(path, PASSPHRASE_MAX)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.is_empty() {
            return Err(SealError::BadLength(path.to_owned(), "holds no passphrase"));
        }
        Ok(Self::Passphrase(bytes))
    }

    /// Reads a key file. It must be 32 bytes, and its owner's alone.
    ///
    /// # Errors
    /// The file is missing, readable by others, or not 32 bytes.
    pub fn from_key_file(path: &Path) -> Result<Self, SealError> {
        let bytes = read_private(path, KEY_BYTES + 1)?;
        if bytes.len() != KEY_BYTES {
            return Err(SealError::BadLength(
                path.to_owned(),
                "is no key file: it must hold exactly 32 random bytes",
            ));
        }
        Ok(Self::Key(bytes))
    }

    /// As [`from_key_file`](Self::from_key_file), making the file with 32 random bytes when missing.
    ///
    /// # Errors
    /// As [`from_key_file`](Self::from_key_file), or the file cannot be made.
    pub fn from_key_file_or_new(path: &Path) -> Result<Self, SealError> {
        match Self::from_key_file(path) {
            Err(SealError::File(error)) if error.is_missing() => {
                let mut key = Zeroizing::new([0u8; KEY_BYTES]);
                fill_random(&mut *key);
                let (dir, name) = super::split(path).map_err(SealError::File)?;
                dir.write_atomic(&name, &*key, 0o600)
                    .map_err(SealError::File)?;
                Self::from_key_file(path)
            }
            read => read,
        }
    }

    /// Seals `plaintext`, binding it to `public`.
    pub fn seal(&self, plaintext: &[u8], public: &[u8]) -> Sealed {
        let mut sealed = Sealed {
            cipher: "AES-256-GCM".to_owned(),
            kdf: "key-file".to_owned(),
            memory_kib: None,
            passes: None,
            salt: None,
            nonce: String::new(),
            ciphertext: String::new(),
        };
        if let Self::Passphrase(_) = self {
            let mut salt = [0u8; 16];
            fill_random(&mut salt);
            sealed.kdf = "argon2id".to_owned();
            sealed.memory_kib = Some(MEMORY_KIB);
            sealed.passes = Some(PASSES);
            sealed.salt = Some(base64::encode(&salt));
        }
        let mut nonce = [0u8; NONCE_LEN];
        fill_random(&mut nonce);
        let mut bytes = plaintext.to_vec();
        #[allow(clippy::expect_used)] // Parameters of our own; AES-GCM takes 64 GiB.
        self.cipher(&sealed)
            .expect("our own parameters")
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(public),
                &mut bytes,
            )
            .expect("a bundle is small");
        sealed.nonce = base64::encode(&nonce);
        sealed.ciphertext = base64::encode(&bytes);
        sealed
    }

    /// Opens what was sealed with the same lock and the same `public`.
    ///
    /// # Errors
    /// See [`SealError`].
    pub fn open(&self, sealed: &Sealed, public: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let nonce = decode(&sealed.nonce, "nonce")?;
        let nonce =
            Nonce::try_assume_unique_for_key(&nonce).map_err(|_| SealError::Malformed("nonce"))?;
        let mut bytes = Zeroizing::new(decode(&sealed.ciphertext, "ciphertext")?);
        let length = self
            .cipher(sealed)?
            .open_in_place(nonce, Aad::from(public), &mut bytes)
            .map_err(|_| SealError::DoesNotOpen)?
            .len();
        bytes.truncate(length);
        Ok(bytes)
    }

    fn cipher(&self, sealed: &Sealed) -> Result<LessSafeKey, SealError> {
        if sealed.cipher != "AES-256-GCM" {
            return Err(SealError::Malformed("unknown cipher"));
        }
        let mut key = Zeroizing::new([0u8; KEY_BYTES]);
        match (self, sealed.kdf.as_str()) {
            (Self::Key(bytes), "key-file") => key.copy_from_slice(bytes),
            (Self::Passphrase(passphrase), "argon2id") => {
                let memory = sealed.memory_kib.filter(|kib| *kib <= MEMORY_KIB_MAX);
                let passes = sealed.passes.filter(|passes| *passes <= PASSES_MAX);
                let (Some(memory), Some(passes), Some(salt)) = (memory, passes, &sealed.salt)
                else {
                    return Err(SealError::Malformed("argon2id parameters"));
                };
                let salt = decode(salt, "salt")?;
                let params = Params::new(memory, passes, 1, Some(KEY_BYTES))
                    .map_err(|_| SealError::Malformed("argon2id parameters"))?;
                Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                    .hash_password_into(passphrase, &salt, &mut *key)
                    .map_err(|_| SealError::Malformed("argon2id parameters"))?;
            }
            (_, "key-file") => return Err(SealError::OtherLock { wants: "key-file" }),
            (_, "argon2id") => {
                return Err(SealError::OtherLock {
                    wants: "passphrase-file",
                });
            }
            _ => return Err(SealError::Malformed("unknown kdf")),
        }
        let key = UnboundKey::new(&AES_256_GCM, &*key).map_err(|_| SealError::Malformed("key"))?;
        Ok(LessSafeKey::new(key))
    }
}

fn decode(text: &str, what: &'static str) -> Result<Vec<u8>, SealError> {
    base64::decode(text).map_err(|_| SealError::Malformed(what))
}

/// Reads a file that must be its owner's alone.
fn read_private(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, SealError> {
    let (dir, name) = super::split(path).map_err(SealError::File)?;
    let file = dir.open_beneath(&name).map_err(SealError::File)?;
    check_mode(&file, path, &dir)?;
    let bytes = fs::read_bounded(file, path, max).map_err(SealError::File)?;
    Ok(Zeroizing::new(bytes))
}

fn check_mode(file: &File, path: &Path, dir: &Dir) -> Result<(), SealError> {
    // A file that cannot be looked at is refused like one that others may read.
    let mode = file.metadata().map_or(0o777, |meta| meta.mode() & 0o777);
    if mode & 0o077 != 0 {
        let path = path
            .file_name()
            .map_or_else(|| path.to_owned(), |name| dir.path().join(name));
        return Err(SealError::Mode { path, mode });
    }
    Ok(())
}
