//! From `.proto` text to Rust text: [`lexer`] makes tokens, [`parser`] a [`schema`], [`resolve`]
//! gives every type name its meaning and checks what spans files, [`emit`] writes Rust.
mod emit;
mod emit_service;
mod lexer;
mod names;
mod parser;
mod resolve;
mod schema;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use schema::File;

/// What is wrong with a schema, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file, as it was named or imported.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// One sentence.
    pub problem: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

impl std::error::Error for Error {}

/// What came out of a compilation.
#[derive(Clone, Debug)]
pub struct Output {
    /// Rust source for all files together, in one flat module.
    pub rust: String,
    /// The full protobuf name and the Rust name of every message.
    pub messages: Vec<(String, String)>,
    /// Every file read, imports too: what a build script watches.
    pub inputs: Vec<PathBuf>,
}

/// Compiles `files` and all they import; each is a path below one of `roots`, tried in order.
pub fn compile(roots: &[&Path], files: &[&str]) -> Result<Output, Error> {
    let mut inputs = Vec::new();
    let mut output = compile_with(files, &mut |name| {
        for root in roots {
            let path = root.join(name);
            match std::fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => {
                    inputs.push(path);
                    return result;
                }
            }
        }
        Err(io::ErrorKind::NotFound.into())
    })?;
    output.inputs = inputs;
    Ok(output)
}

/// As [`compile`], of files that `read` gives the text of; [`Output::inputs`] stays empty.
pub fn compile_with(
    files: &[&str],
    read: &mut dyn FnMut(&str) -> io::Result<String>,
) -> Result<Output, Error> {
    let mut loaded: Vec<File> = Vec::new();
    for name in files {
        load(name, None, &mut loaded, &mut Vec::new(), read)?;
    }
    resolve::resolve(&mut loaded)?;
    let mut messages = Vec::new();
    resolve::for_each_message(&mut loaded, &mut |message| {
        messages.push((message.full_name.clone(), message.rust_name.clone()));
    });
    Ok(Output {
        rust: emit::emit(&loaded),
        messages,
        inputs: Vec::new(),
    })
}

/// Loads a file and, before it, everything it imports.
fn load(
    name: &str,
    importer: Option<(&str, u32)>,
    loaded: &mut Vec<File>,
    open: &mut Vec<String>,
    read: &mut dyn FnMut(&str) -> io::Result<String>,
) -> Result<(), Error> {
    if loaded.iter().any(|file| file.name == name) {
        return Ok(());
    }
    let (blamed, line) = importer.unwrap_or((name, 1));
    let fail = |problem: String| Error {
        file: blamed.to_owned(),
        line,
        problem,
    };
    if open.iter().any(|file| file == name) {
        return Err(fail(format!("\"{name}\" imports itself, directly or not")));
    }
    // Names are resolved against roots and compared as text: one spelling a file, none outside.
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) || name.contains(['\\', '\0']) {
        return Err(fail(format!("\"{name}\" is not a plain relative path")));
    }
    let text = read(name).map_err(|error| fail(format!("cannot read \"{name}\": {error}")))?;
    let file = parser::parse(name, &text)?;
    open.push(name.to_owned());
    for import in &file.imports {
        load(&import.path, Some((name, import.line)), loaded, open, read)?;
    }
    open.pop();
    loaded.push(file);
    Ok(())
}
