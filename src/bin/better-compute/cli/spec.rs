//! `better-compute spec`: what a node is to be, and what it says of it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, one_line, print};
use bcd::crypto::base64;
use bcd::sys::fs::{self, Dir};

use super::ago::ago;
use super::client::{self, Client, DIR, JSON};
use super::table;
use crate::json::{Json, Object};
use crate::registry::now_ms;

const FILE_MAX: usize = 48 * 1024;
const DEPTH_MAX: usize = 8;

pub(super) const COMMAND: Command = Command::group(
    "spec",
    "show and change what nodes are to be",
    &[
        Command::new(
            "get",
            "show a node's spec, and what the node says of each section",
            &[DIR, JSON],
            get,
        )
        .positionals(&["NODE"]),
        Command::new(
            "set",
            "put sections into a node's spec, or take them out; the others stay",
            &[
                Flag::values("section", "NAME=FILE", "Put the section NAME, in JSON, from FILE"),
                Flag::values(
                    "raw",
                    "NAME=FILE",
                    "Put a section this program does not know: FILE holds its message, encoded, in base64",
                ),
                Flag::values("remove", "NAME", "Take the section NAME out"),
                DIR,
                JSON,
            ],
            set,
        )
        .details(
            "Sections and their members:\n  \
             log     level: debug, info, warn or error\n  \
             daemon  version, url, sha256, signature\n\
             FILE may be - for standard input.",
        )
        .positionals(&["NODE"]),
    ],
);

fn get(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    let spec = Client::new(args)?.json("GET", &format!("nodes/{id}/spec"), None)?;
    show(args, &spec)
}

fn set(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "node", "node")?;
    let mut sections: Vec<Json> = Vec::new();
    for given in args.values("section") {
        let (name, text) = section(given, "--section")?;
        let value = Json::parse(&text, FILE_MAX, DEPTH_MAX).map_err(|error| {
            Failure::refused(format!("the file of section {name} is not JSON: {error}"))
        })?;
        sections.push(Object::new().with("name", name).with("value", value).into());
    }
    for given in args.values("raw") {
        let (name, text) = section(given, "--raw")?;
        let text = String::from_utf8_lossy(text.trim_ascii()).into_owned();
        if base64::decode(&text).is_err() {
            return Err(Failure::refused(format!(
                "the file of section {name} is not base64"
            )));
        }
        sections.push(
            Object::new()
                .with("name", name)
                .with("bodyBase64", text)
                .into(),
        );
    }
    for name in args.values("remove") {
        sections.push(Object::new().with("name", name).with("remove", true).into());
    }
    if sections.is_empty() {
        return Err(Failure::refused(
            "nothing to change: give --section, --raw or --remove",
        ));
    }
    let body = Json::from(Object::new().with("sections", sections)).to_string();
    let spec = Client::new(args)?.json("POST", &format!("nodes/{id}/spec"), Some(&body))?;
    show(args, &spec)
}

/// The name and the file's text of `NAME=FILE`.
fn section(given: &str, flag: &str) -> Result<(String, Vec<u8>), Failure> {
    let (name, path) = given
        .split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        .ok_or_else(|| Failure::refused(format!("{flag} is NAME=FILE")))?;
    let text = match path {
        "-" => {
            let input = std::io::stdin().as_fd().try_clone_to_owned();
            let input = input.map_err(Failure::failed)?;
            fs::read_bounded(input.into(), Path::new("standard input"), FILE_MAX)
        }
        path => {
            let shown = Path::new(path);
            let parent = match shown.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let name = shown.file_name().unwrap_or_default().to_string_lossy();
            Dir::open(parent)
                .and_then(|dir| dir.open_beneath(&name))
                .and_then(|file| fs::read_bounded(file, shown, FILE_MAX))
        }
    };
    Ok((name.to_owned(), text.map_err(Failure::refused)?))
}

fn show(args: &Args, spec: &Json) -> Result<ExitCode, Failure> {
    if args.has("json") {
        print(&format!("{spec}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let sections = spec.get("sections").map(Json::items).unwrap_or_default();
    let generation = spec.number("generation").unwrap_or(0);
    if generation == 0 {
        print("this node has no spec\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = now_ms();
    let rows: Vec<Vec<String>> = sections
        .iter()
        .map(|section| {
            let why = [section.text("reason"), section.text("message")];
            vec![
                section.text("name").to_owned(),
                section.text("state").to_owned(),
                ago(section.number("reportedAtMs"), now),
                why.join(" ").trim().to_owned(),
                short(section.get("value").unwrap_or(&Json::Null)),
            ]
        })
        .collect();
    let mut out = format!("generation {generation}\n");
    out.push_str(&table::render(
        &["SECTION", "STATE", "REPORTED", "WHY", "VALUE"],
        &rows,
    ));
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn short(value: &Json) -> String {
    let text = one_line(&value.to_string());
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
