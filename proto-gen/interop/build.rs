//! Compiles the contract and the test schema, and lists every message of both.
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::exit;

fn main() {
    let roots = [Path::new("../proto"), Path::new("proto")];
    let mut files = vec!["shapes/shapes.proto".to_owned()];
    let contract = "bettercompute/v1";
    println!("cargo::rerun-if-changed=../proto/{contract}");
    for entry in fs::read_dir(roots[0].join(contract)).into_iter().flatten() {
        let name = entry.map(|entry| entry.file_name());
        if let Ok(name) = name {
            files.push(format!("{contract}/{}", name.display()));
        }
    }
    files.sort();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = match proto_gen::compile(&roots, &files) {
        Ok(output) => output,
        Err(error) => fail(&error.to_string()),
    };
    for input in &output.inputs {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    let mut rust = output.rust;
    rust.push_str("\npub const MESSAGES: &[(&str, crate::RoundTrip)] = &[\n");
    for (full, name) in &output.messages {
        let _ = writeln!(rust, "    (\"{full}\", crate::round_trip::<{name}>),");
    }
    rust.push_str("];\n");
    let path = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("messages.rs");
    if let Err(error) = fs::write(&path, rust) {
        fail(&format!("cannot write {}: {error}", path.display()));
    }
}

fn fail(problem: &str) -> ! {
    println!("cargo::error={problem}");
    exit(1)
}
