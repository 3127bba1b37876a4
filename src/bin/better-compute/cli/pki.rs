//! `better-compute pki`: make and look at the bundle of the fleet's keys.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, chain, print};
use bcd::crypto::certificate::Certificate;
use bcd::crypto::digest;
use nanoserde::SerJson;

use super::ago;
use crate::dev;
use crate::pki::{Bundle, Kind, Lock, Phase, PkiError, Public};
use crate::registry::now_ms;

const DEFAULT_BUNDLE: &str = "better-compute-pki.json";
const JSON: Flag = Flag::switch("json", "Print JSON");
pub(super) const PKI: Flag = Flag::value(
    "pki",
    "PATH",
    "The bundle to read (default better-compute-pki.json)",
);
pub(super) const DIR: Flag = Flag::value(
    "dir",
    "DIR",
    "Instead: the bundle of the better-compute dev with this state directory; else\n\
     BETTER_COMPUTE_DIR, where --pki is not given",
);

pub(super) const COMMAND: Command = Command::group(
    "pki",
    "make, look at and rotate the fleet's keys",
    &[
        Command::new(
            "init",
            "make a new bundle of CAs and keys",
            &[
                Flag::value(
                    "out",
                    "PATH",
                    "Where to write it (default better-compute-pki.json); never overwritten",
                ),
                Flag::value(
                    "passphrase-file",
                    "PATH",
                    "Seal the private half under the passphrase in this file (mode 0600)",
                ),
                Flag::value(
                    "key-file",
                    "PATH",
                    "Seal it under the 32 random bytes of this file (mode 0600),\nwhich is made when missing",
                ),
                Flag::value(
                    "trust-domain",
                    "NAME",
                    "The trust domain of the fleet's SPIFFE ids (default better-compute)",
                ),
                Flag::switch("command-signing", "Make a command-signing root too"),
            ],
            init,
        ),
        Command::new(
            "show",
            "show the public half: names, validity, pins, rotations",
            &[PKI, DIR, JSON],
            show,
        ),
        Command::new(
            "pins",
            "print the three pins a machine is installed with",
            &[PKI, DIR, JSON],
            pins,
        )
        .details("Without --json the lines are those of config.toml."),
        super::rotate::COMMAND,
        Command::new(
            "trust-version",
            "print approverSetSha256 and commandRootSha256, what there is of them, as JSON",
            &[PKI, DIR],
            trust_version,
        ),
    ],
);

impl From<PkiError> for Refused {
    fn from(error: PkiError) -> Self {
        // What is wrong lies in the input in all cases but a failing disk.
        match error {
            PkiError::File(ref file) if file.is_missing() => Self(Failure::failed(format!(
                "{}; make one with better-compute pki init, or name it with --pki or --dir",
                chain(&error)
            ))),
            PkiError::File(_) | PkiError::Issue(_) => Self(Failure::failed(error)),
            error => Self(Failure::refused(error)),
        }
    }
}

struct Refused(Failure);

fn init(args: &Args) -> Result<ExitCode, Failure> {
    let lock = match (args.value("passphrase-file"), args.value("key-file")) {
        (Some(path), None) => Lock::from_passphrase_file(Path::new(path)),
        (None, Some(path)) => Lock::from_key_file_or_new(Path::new(path)),
        _ => {
            return Err(Failure::refused(
                "give one of --passphrase-file and --key-file: the private keys are never written unsealed",
            ));
        }
    }
    .map_err(Failure::refused)?;
    let out = args.path_or("out", DEFAULT_BUNDLE);
    let trust_domain = args.value("trust-domain").unwrap_or("better-compute");
    // Before the work of deriving a key; `write_new` has the last word.
    if out.exists() {
        return Err(Failure::refused(PkiError::Exists(out.to_owned())));
    }
    let bundle = Bundle::generate(trust_domain, args.has("command-signing"), &lock, now_ms())
        .and_then(|bundle| bundle.write_new(out).map(|()| bundle))
        .map_err(|error| Refused::from(error).0)?;
    print(&format!(
        "wrote {}\n{}",
        out.display(),
        pin_lines(&bundle.public)
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn read(args: &Args) -> Result<Bundle, Failure> {
    let dir = || match args.value("dir") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::var_os("BETTER_COMPUTE_DIR")
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from),
    };
    let path = match (args.value("pki"), args.value("dir")) {
        (Some(_), Some(_)) => return Err(Failure::refused("give one of --pki and --dir")),
        (Some(path), None) => PathBuf::from(path),
        (None, _) => dir().map_or_else(
            || PathBuf::from(DEFAULT_BUNDLE),
            |dir| dir.join(dev::BUNDLE),
        ),
    };
    Bundle::read(&path).map_err(|error| Refused::from(error).0)
}

fn pin_lines(public: &Public) -> String {
    let pins = public.pins();
    format!(
        "serving_ca_spki_pin = \"{}\"\njoin_signing_key_pin = \"{}\"\njoin_encryption_key_pin = \"{}\"\n",
        pins.serving_ca, pins.join_signing, pins.join_encryption
    )
}

#[derive(SerJson)]
struct PinsJson {
    #[nserde(rename = "servingCaPin")]
    serving_ca: String,
    #[nserde(rename = "signingKeyPin")]
    signing_key: String,
    #[nserde(rename = "encryptionKeyPin")]
    encryption_key: String,
}

impl PinsJson {
    fn of(public: &Public) -> Self {
        let pins = public.pins();
        Self {
            serving_ca: pins.serving_ca.to_string(),
            signing_key: pins.join_signing.to_string(),
            encryption_key: pins.join_encryption.to_string(),
        }
    }
}

fn pins(args: &Args) -> Result<ExitCode, Failure> {
    let public = read(args)?.public;
    match args.has("json") {
        true => print(&format!("{}\n", PinsJson::of(&public).serialize_json()))?,
        false => print(&pin_lines(&public))?,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(SerJson)]
struct TrustVersionJson {
    #[nserde(rename = "trustVersion")]
    trust_version: u64,
    /// Absent until approvers are built.
    #[nserde(rename = "approverSetSha256")]
    approver_set_sha256: Option<String>,
    #[nserde(rename = "commandRootSha256")]
    command_root_sha256: Option<String>,
}

fn trust_version(args: &Args) -> Result<ExitCode, Failure> {
    let public = read(args)?.public;
    let json = TrustVersionJson {
        trust_version: public.trust_version,
        approver_set_sha256: None,
        command_root_sha256: public.command_root_sha256(),
    };
    print(&format!("{}\n", json.serialize_json()))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(SerJson)]
struct ShowJson {
    #[nserde(rename = "trustDomain")]
    trust_domain: String,
    #[nserde(rename = "trustVersion")]
    trust_version: u64,
    #[nserde(rename = "createdAtMs")]
    created_at_ms: i64,
    #[nserde(rename = "sealedWith")]
    sealed_with: String,
    pins: PinsJson,
    certificates: Vec<CertificateJson>,
    rotations: Vec<RotationJson>,
    #[nserde(rename = "retiredPins")]
    retired_pins: Vec<String>,
}

#[derive(SerJson)]
struct RotationJson {
    key: String,
    phase: String,
    #[nserde(rename = "begunAtMs")]
    begun_at_ms: i64,
    #[nserde(rename = "sinceVersion")]
    since_version: u64,
    /// Of the key in use.
    pin: String,
    /// Of the key beside it.
    #[nserde(rename = "otherPin")]
    other_pin: String,
}

fn rotations(public: &Public) -> Vec<RotationJson> {
    let rotations = public.rotations.iter();
    let json = rotations.map(|rotation| {
        let in_use = public.both(rotation.kind).remove(0);
        RotationJson {
            key: rotation.kind.name().to_owned(),
            phase: rotation.phase.name().to_owned(),
            begun_at_ms: rotation.begun_at_ms,
            since_version: rotation.since_version,
            pin: rotation.kind.pin(&in_use).to_string(),
            other_pin: rotation.kind.pin(&rotation.other).to_string(),
        }
    });
    json.collect()
}

#[derive(SerJson)]
struct CertificateJson {
    name: String,
    subject: String,
    /// Unix time, seconds.
    #[nserde(rename = "notBefore")]
    not_before: i64,
    #[nserde(rename = "notAfter")]
    not_after: i64,
    sha256: String,
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let bundle = read(args)?;
    let public = &bundle.public;
    let other = |kind, phase| {
        let rotation = public.rotation(kind).filter(|found| found.phase == phase);
        rotation.map(|rotation| &rotation.other)
    };
    let certificates = [
        ("serving CA", Some(&public.serving_ca)),
        ("serving CA, new", other(Kind::ServingCa, Phase::Begun)),
        ("serving CA, old", other(Kind::ServingCa, Phase::Switched)),
        ("node identity CA", Some(&public.node_ca)),
        ("node identity CA, new", other(Kind::NodeCa, Phase::Begun)),
        (
            "node identity CA, old",
            other(Kind::NodeCa, Phase::Switched),
        ),
        ("command-signing root", public.command_root.as_ref()),
    ];
    let mut shown = Vec::new();
    for (name, der) in certificates {
        let Some(der) = der else { continue };
        let certificate = Certificate::parse(der)
            .map_err(|error| Failure::refused(format!("the {name} cannot be read: {error}")))?;
        shown.push(CertificateJson {
            name: name.to_owned(),
            subject: certificate.subject_text(),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
            sha256: digest::hex(&digest::sha256(der)),
        });
    }
    if args.has("json") {
        let json = ShowJson {
            trust_domain: public.trust_domain.clone(),
            trust_version: public.trust_version,
            created_at_ms: public.created_at_ms,
            sealed_with: bundle.sealed_with().to_owned(),
            pins: PinsJson::of(public),
            certificates: shown,
            rotations: rotations(public),
            retired_pins: public.retired_pins.clone(),
        };
        print(&format!("{}\n", json.serialize_json()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "trust domain:   {}\ntrust version:  {}\nsealed with:    {}\n\n",
        public.trust_domain,
        public.trust_version,
        bundle.sealed_with()
    );
    let rows: Vec<Vec<String>> = shown
        .into_iter()
        .map(|row| {
            let until = bcd::sys::utc::Utc::from_ms((row.not_after.max(0).cast_unsigned()) * 1000);
            vec![row.name, row.subject, until.to_string(), row.sha256]
        })
        .collect();
    text.push_str(&super::table::render(
        &["CERTIFICATE", "SUBJECT", "VALID UNTIL", "SHA256"],
        &rows,
    ));
    text.push('\n');
    let rows: Vec<Vec<String>> = rotations(public)
        .into_iter()
        .map(|row| {
            let since = ago::ago(Some(row.begun_at_ms), now_ms());
            vec![row.key, row.phase, since, row.pin, row.other_pin]
        })
        .collect();
    if !rows.is_empty() {
        text.push_str(&super::table::render(
            &["ROTATION", "PHASE", "BEGUN", "IN USE", "BESIDE IT"],
            &rows,
        ));
        text.push('\n');
    }
    text.push_str(&pin_lines(public));
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
