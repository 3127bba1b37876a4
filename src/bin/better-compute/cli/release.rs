//! `better-compute release`: the keys that sign releases, and what they sign (docs/releases.md).

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};
use bcd::crypto::digest::{self, Sha256};
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::key::NodeKey;
use bcd::crypto::pin::Pin;
use bcd::sys::fs::{Dir, Kind};
use bcd::sys::utc;
use bcd::update::manifest::{self, MANIFEST_MAX, Manifest, THRESHOLD_MAX};
use nanoserde::SerJson;

use super::files;
use super::table;
use crate::install::values::{self, Invalid};
use crate::registry::now_ms;

const DAY_MS: u64 = 86_400_000;
const MANIFEST: Flag = Flag::value("manifest", "PATH", "The manifest");

pub(super) const COMMAND: Command = Command::group(
    "release",
    "sign releases of bcd, and check what is signed",
    &[
        Command::new(
            "keygen",
            "make a release key: a private key file, and its pin on standard output",
            &[],
            keygen,
        )
        .positionals(&["FILE"])
        .details(
            "FILE is PKCS#8 in PEM (P-256), mode 0600, and never overwritten. Release keys live apart from the\n\
             fleet's bundle: whoever has them decides what every machine runs. The pin goes to\n\
             better-compute daemon install-script --release-pins, and to [update] release_pins.",
        ),
        Command::new(
            "sign",
            "sign the files of a directory as a release, or sign a manifest once more with another key",
            &[
                Flag::value("key", "FILE", "The release key"),
                Flag::value("bcd-version", "VERSION", "The release's version"),
                Flag::value("sequence", "N", "Its number: above that of every release before it"),
                Flag::value("expires-days", "N", "How long it may be installed (default 365)"),
                Flag::value("out", "PATH", "The manifest to write; never overwritten"),
                Flag::value("add-to", "PATH", "Instead of all but --key: the manifest to sign once more"),
            ],
            sign,
        )
        .positionals(&["[DIR]"])
        .details(
            "All regular files in DIR are listed, with size and SHA-256. A manifest may carry the signatures of\n\
             several keys, so that no one person releases: [update] release_threshold.",
        ),
        Command::new(
            "verify",
            "check a manifest's signatures, and the files of a directory against it",
            &[
                MANIFEST,
                Flag::value("release-pins", "PINS", "Pins of the release keys, comma-separated"),
                Flag::value("release-threshold", "N", "How many of them must have signed (default 1)"),
                Flag::switch("json", "Print JSON"),
            ],
            verify,
        )
        .positionals(&["[DIR]"]),
    ],
);

fn keygen(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(args.positional(0));
    let key = NodeKey::generate().map_err(Failure::failed)?;
    files::write_new(path, key.to_pem().as_bytes(), 0o600)?;
    print(&format!("{}\n", key.pin()))?;
    Ok(ExitCode::SUCCESS)
}

fn needed<'a>(args: &'a Args, flag: &str) -> Result<&'a str, Failure> {
    args.value(flag)
        .ok_or_else(|| Failure::refused(format!("--{flag} is missing")))
}

fn key(args: &Args) -> Result<NodeKey, Failure> {
    files::read_key(
        Path::new(needed(args, "key")?),
        "better-compute release keygen",
    )
}

fn sign(args: &Args) -> Result<ExitCode, Failure> {
    let key = key(args)?;
    if let Some(path) = args.value("add-to") {
        return sign_again(Path::new(path), &key);
    }
    let out = Path::new(needed(args, "out")?);
    let version = needed(args, "bcd-version")?;
    let version = values::version("bcd-version", version).map_err(Failure::refused)?;
    let sequence = values::number("sequence", needed(args, "sequence")?, 1, i64::MAX as u64);
    let days = args.value("expires-days").unwrap_or("365");
    let days = values::number("expires-days", days, 1, 3650).map_err(Failure::refused)?;
    let Some(dir) = Some(args.positional(0)).filter(|dir| !dir.is_empty()) else {
        return Err(Failure::refused(
            "name the directory of the release's files",
        ));
    };
    let issued_at_ms = u64::try_from(now_ms()).unwrap_or(0);
    let manifest = Manifest {
        product: "bcd".to_owned(),
        version,
        sequence: sequence.map_err(Failure::refused)?,
        issued_at_ms,
        expires_at_ms: issued_at_ms + days * DAY_MS,
        files: listed(Path::new(dir))?,
    };
    manifest.check().map_err(Failure::refused)?;
    if manifest.binary("amd64").is_none() && manifest.binary("arm64").is_none() {
        return Err(Failure::refused(format!(
            "RELEASE_INCOMPLETE: {dir} has no bcd_{}_linux_amd64 and no bcd_{}_linux_arm64",
            manifest.version, manifest.version
        )));
    }
    let payload = manifest.serialize_json().into_bytes();
    let envelope =
        envelope::sign(payload, Purpose::ReleaseManifest, &key).map_err(Failure::failed)?;
    let text = format!("{}\n", envelope::to_json(&envelope));
    files::write_new(out, text.as_bytes(), 0o644)?;
    print(&format!(
        "{} lists {} files of bcd {}, signed by {}\n",
        out.display(),
        manifest.files.len(),
        manifest.version,
        key.pin()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// One more signature on a manifest, whatever signed it before.
fn sign_again(path: &Path, key: &NodeKey) -> Result<ExitCode, Failure> {
    let mut envelope =
        envelope::from_json(&files::read(path, MANIFEST_MAX)?).map_err(Failure::refused)?;
    if envelope.payload_type != envelope::payload_type(Purpose::ReleaseManifest) {
        return Err(Failure::refused(format!(
            "{} is no release manifest",
            path.display()
        )));
    }
    // What is signed is known to be whole.
    Manifest::parse(&envelope.payload)
        .map_err(|what| Failure::refused(format!("{}: {what}", path.display())))?;
    let keyid = key.pin().to_string();
    envelope.signatures.retain(|other| other.keyid != keyid);
    let again = envelope::sign(envelope.payload.clone(), Purpose::ReleaseManifest, key);
    envelope
        .signatures
        .extend(again.map_err(Failure::failed)?.signatures);
    let text = format!("{}\n", envelope::to_json(&envelope));
    let (dir, name) = files::beside(path)?;
    dir.write_atomic(&name, text.as_bytes(), 0o644)
        .map_err(Failure::failed)?;
    print(&format!(
        "{} has {} signatures\n",
        path.display(),
        envelope.signatures.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The regular files of a directory, by name.
fn listed(path: &Path) -> Result<Vec<manifest::File>, Failure> {
    let dir = Dir::open(path).map_err(Failure::refused)?;
    let entries = std::fs::read_dir(path)
        .map_err(|error| Failure::refused(format!("cannot list {}: {error}", path.display())))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Failure::failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || dir.kind(&name).map_err(Failure::failed)? != Some(Kind::Regular)
        {
            continue;
        }
        let (size, sha256) = measured(&dir, &name)?;
        files.push(manifest::File { name, size, sha256 });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// A file's size and SHA-256.
fn measured(dir: &Dir, name: &str) -> Result<(u64, String), Failure> {
    let mut file: File = dir.open_beneath(name).map_err(Failure::failed)?;
    let mut digest = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = file.read(&mut buffer).map_err(|error| {
            Failure::failed(format!("cannot read {}: {error}", dir.join(name).display()))
        })?;
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            return Ok((size, digest::hex(&digest.finish())));
        };
        digest.update(read);
        size += count as u64;
    }
}

/// The release keys that flags name, each once, and how many of them have to sign.
///
/// # Errors
/// One of the two is malformed, or more have to sign than there are.
pub(super) fn keys(pins: &str, threshold: Option<&str>) -> Result<(Vec<Pin>, usize), Invalid> {
    let mut distinct = Vec::new();
    for pin in values::pins("release-pins", pins)? {
        if !distinct.contains(&pin) {
            distinct.push(pin);
        }
    }
    let threshold = match threshold {
        None => 1,
        Some(text) => values::number("release-threshold", text, 1, THRESHOLD_MAX as u64)?,
    };
    match usize::try_from(threshold) {
        Ok(threshold) if threshold <= distinct.len() => Ok((distinct, threshold)),
        _ => Err(Invalid::new(
            "release-threshold",
            "is more than there are different --release-pins",
        )),
    }
}

/// A manifest that enough of `pins` have signed and that has not expired.
pub(super) fn verified(path: &Path, pins: &[Pin], threshold: usize) -> Result<Manifest, Failure> {
    let text = files::read(path, MANIFEST_MAX)?;
    let now = u64::try_from(now_ms()).unwrap_or(0);
    Manifest::verify(&text, pins, threshold, now).map_err(Failure::refused)
}

fn verify(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(needed(args, "manifest")?);
    let pins = needed(args, "release-pins")?;
    let (pins, threshold) =
        keys(pins, args.value("release-threshold")).map_err(Failure::refused)?;
    let manifest = verified(path, &pins, threshold)?;
    if let Some(dir) = Some(args.positional(0)).filter(|dir| !dir.is_empty()) {
        let dir = Dir::open(Path::new(dir)).map_err(Failure::refused)?;
        for file in &manifest.files {
            let there = measured(&dir, &file.name)?;
            if there != (file.size, file.sha256.clone()) {
                return Err(Failure::failed(format!(
                    "RELEASE_MISMATCH: {} has {} bytes and the SHA-256 {}, not {} and {}",
                    dir.join(&file.name).display(),
                    there.0,
                    there.1,
                    file.size,
                    file.sha256
                )));
            }
        }
    }
    if args.has("json") {
        print(&format!("{}\n", manifest.serialize_json()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "bcd {}, sequence {}, until {}\n",
        manifest.version,
        manifest.sequence,
        utc::Utc::from_ms(manifest.expires_at_ms)
    );
    let rows: Vec<Vec<String>> = manifest
        .files
        .into_iter()
        .map(|file| vec![file.name, file.size.to_string(), file.sha256])
        .collect();
    text.push_str(&table::render(&["file", "bytes", "sha256"], &rows));
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
