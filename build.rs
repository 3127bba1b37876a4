//! Compiles the wire contract (proto-gen/proto) to Rust, and stamps what `bcd version` says.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const CONTRACT: &str = "proto-gen/proto";
const PACKAGE: &str = "bettercompute/v1";
/// Schemas of the examples that tests talk to; no part of the product.
const EXAMPLES: &str = "examples/proto";

fn main() {
    compile(CONTRACT, PACKAGE, "contract.rs");
    if Path::new(EXAMPLES).exists() {
        compile(EXAMPLES, "", "examples.rs");
    }
    stamp();
}

/// Compiles every schema in a directory of `root` to one file in OUT_DIR.
fn compile(root: &str, directory: &str, output: &str) {
    let path = Path::new(root).join(directory);
    // A new file in it is a change too; cargo looks at the directory's own time.
    println!("cargo::rerun-if-changed={}", path.display());
    let mut files: Vec<String> = match fs::read_dir(&path) {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".proto"))
            .map(|name| match directory {
                "" => name,
                _ => format!("{directory}/{name}"),
            })
            .collect(),
        Err(error) => fail(&format!("cannot read {}: {error}", path.display())),
    };
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    match proto_gen::compile(&[Path::new(root)], &files) {
        Ok(compiled) => {
            for input in compiled.inputs {
                println!("cargo::rerun-if-changed={}", input.display());
            }
            let path = PathBuf::from(variable("OUT_DIR")).join(output);
            if let Err(error) = fs::write(&path, compiled.rust) {
                fail(&format!("cannot write {}: {error}", path.display()));
            }
        }
        Err(error) => fail(&format!("{root}/{error}")),
    }
}

/// Sets BCD_COMMIT, BCD_TARGET and BCD_BUILD_TIME (Unix seconds) for `env!`. A source tree without
/// git says "unknown" and 0 unless the environment knows better, so that a build from a tarball
/// is the same everywhere.
fn stamp() {
    for name in ["BCD_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // HEAD's log grows with every commit, checkout and rebase.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = given("BCD_COMMIT")
        .or_else(|| git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    let time = given("SOURCE_DATE_EPOCH")
        .or_else(|| git(&["log", "-1", "--format=%ct"]))
        .unwrap_or_else(|| "0".to_owned());
    if time.parse::<u64>().is_err() {
        fail(&format!(
            "SOURCE_DATE_EPOCH: {time:?} is not Unix time in seconds"
        ));
    }
    println!("cargo::rustc-env=BCD_COMMIT={commit}");
    println!("cargo::rustc-env=BCD_BUILD_TIME={time}");
    println!("cargo::rustc-env=BCD_TARGET={}", variable("TARGET"));
}

fn given(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// What git prints, if there is a git and this is its tree.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo sets no {name}")))
}

fn fail(problem: &str) -> ! {
    println!("cargo::error={problem}");
    exit(1)
}
