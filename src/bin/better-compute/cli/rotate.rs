//! `better-compute pki rotate`: a new key in the place of an old one, step by step.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};
use nanoserde::SerJson;

use super::ago::{ago, parse_span};
use super::client::{self, Client, DIR, JSON};
use super::table;
use crate::api::views::{RotateBody, RotationView, RotationsView};
use crate::pki::{Bundle, Kind, Lock, PkiError, RotateError, Step};
use crate::registry::now_ms;

pub(super) const COMMAND: Command = Command::new(
    "rotate",
    "replace a key: serving-ca, node-ca, join-signing or join-encryption",
    &[
        Flag::switch(
            "begin",
            "Make the new key; nodes learn it beside the old one",
        ),
        Flag::switch("switch", "Use the new key; the old one is still trusted"),
        Flag::switch(
            "finish",
            "Drop the old key for good, once every node has followed",
        ),
        Flag::switch("force", "Finish although nodes would be left behind"),
        Flag::value(
            "within",
            "SPAN",
            "With node-ca --switch: over how long nodes renew (default 1h)",
        ),
        DIR,
        JSON,
        Flag::value(
            "pki",
            "PATH",
            "Instead of a running control plane: this bundle file, while nothing runs on it",
        ),
        Flag::value("passphrase-file", "PATH", "What opens the bundle of --pki"),
        Flag::value("key-file", "PATH", "What opens the bundle of --pki"),
    ],
    rotate,
)
.positionals(&["KEY"])
.details(
    "KEY is serving-ca, node-ca, join-signing or join-encryption. The steps are --begin, --switch and\n\
     --finish, in this order, and none is taken back. Without one it shows how far the rotation is and\n\
     which nodes have not followed. Nodes stay connected through all steps, and until --finish a node that\n\
     was away the whole time comes back by itself. After it, such a node needs the new pins in its\n\
     config.toml (serving-ca, join-signing), or renews its certificate by itself (node-ca). What was not\n\
     used yet of installs and images needs the new pins after each but node-ca.",
);

fn rotate(args: &Args) -> Result<ExitCode, Failure> {
    let kind = Kind::parse(args.positional(0)).ok_or_else(|| {
        Failure::refused("KEY is serving-ca, node-ca, join-signing or join-encryption")
    })?;
    let steps = [Step::Begin, Step::Switch, Step::Finish];
    let given: Vec<Step> = steps
        .into_iter()
        .filter(|step| args.has(step.name()))
        .collect();
    let step = match given.as_slice() {
        [] => None,
        [step] => Some(*step),
        _ => {
            return Err(Failure::refused(
                "give one of --begin, --switch and --finish",
            ));
        }
    };
    if args.has("force") && step != Some(Step::Finish) {
        return Err(Failure::refused("--force goes with --finish"));
    }
    let within = args.value("within").map(|text| {
        parse_span(text)
            .ok_or_else(|| Failure::refused("--within is a number and one of s, m, h, d"))
    });
    let within = within.transpose()?;
    if within.is_some() && (kind, step) != (Kind::NodeCa, Some(Step::Switch)) {
        return Err(Failure::refused("--within goes with node-ca --switch"));
    }
    match args.value("pki") {
        Some(path) => in_file(args, Path::new(path), kind, step),
        None => running(args, kind, step, within),
    }
}

fn running(
    args: &Args,
    kind: Kind,
    step: Option<Step>,
    within: Option<i64>,
) -> Result<ExitCode, Failure> {
    let client = Client::new(args)?;
    let text = match step {
        None => client.call("GET", "pki/rotations", None)?,
        Some(step) => {
            let body = RotateBody {
                step: step.name().to_owned(),
                force: Some(args.has("force")),
                within_seconds: within.map(|ms| ms / 1000),
            };
            let path = format!("pki/rotations/{}", kind.name());
            client.call("POST", &path, Some(&body.serialize_json()))?
        }
    };
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let view: RotationsView = client::parse(&text)?;
    let rotation = view
        .rotations
        .iter()
        .find(|rotation| rotation.key == kind.name())
        .ok_or_else(|| Failure::failed("the control plane knows no such key"))?;
    print(&said(rotation, view.trust_version))?;
    Ok(ExitCode::SUCCESS)
}

fn said(rotation: &RotationView, trust_version: u64) -> String {
    let now = now_ms();
    let mut text = format!(
        "{}: {}, trust version {trust_version}\nin use:  {}\n",
        rotation.key,
        match &rotation.phase {
            Some(phase) => format!("{phase}, begun {}", ago(rotation.begun_at_ms, now)),
            None => "no rotation under way".to_owned(),
        },
        rotation.pin
    );
    if let (Some(other), Some(phase)) = (&rotation.other_pin, &rotation.phase) {
        let which = match phase.as_str() {
            "begun" => "new",
            _ => "old",
        };
        text.push_str(&format!("{which}:     {other}\n"));
        text.push_str(match (phase.as_str(), rotation.key.as_str()) {
            ("begun", _) => "next:    --switch\n",
            (_, "join-encryption") => {
                "next:    --finish, once no machine is to join with the old pin any more\n"
            }
            _ => "next:    --finish, once no node is left behind\n",
        });
    }
    if rotation.behind > 0 {
        text.push_str(&format!(
            "\n{} node(s) have not followed:\n",
            rotation.behind
        ));
        let rows: Vec<Vec<String>> = rotation
            .behind_nodes
            .iter()
            .map(|node| {
                let seen = ago(node.last_seen_ms, now);
                vec![
                    node.id.clone(),
                    node.hostname.clone(),
                    node.state.clone(),
                    seen,
                ]
            })
            .collect();
        text.push_str(&table::render(
            &["NODE", "HOSTNAME", "STATE", "LAST SEEN"],
            &rows,
        ));
    }
    text
}

fn in_file(args: &Args, path: &Path, kind: Kind, step: Option<Step>) -> Result<ExitCode, Failure> {
    let Some(step) = step else {
        return Err(Failure::refused(
            "with --pki give a step; better-compute pki show prints how far the rotations are",
        ));
    };
    if step == Step::Finish && !args.has("force") {
        return Err(Failure::refused(
            "a bundle file does not say which nodes have followed: give --force too, when all have",
        ));
    }
    let lock = match (args.value("passphrase-file"), args.value("key-file")) {
        (Some(file), None) => Lock::from_passphrase_file(Path::new(file)),
        (None, Some(file)) => Lock::from_key_file(Path::new(file)),
        _ => {
            return Err(Failure::refused(
                "give one of --passphrase-file and --key-file to open the bundle",
            ));
        }
    }
    .map_err(Failure::refused)?;
    let rotated = Bundle::read(path)
        .map_err(RotateError::from)
        .and_then(|bundle| bundle.rotated(&lock, kind, step, now_ms()));
    let (bundle, _) = rotated.map_err(|error| match error {
        RotateError::Pki(PkiError::Issue(_) | PkiError::File(_)) => Failure::failed(error),
        error => Failure::refused(error),
    })?;
    bundle.replace(path).map_err(Failure::failed)?;
    print(&format!(
        "{} {}: wrote {}, trust version {}\n",
        kind.name(),
        step.name(),
        path.display(),
        bundle.public.trust_version
    ))?;
    Ok(ExitCode::SUCCESS)
}
