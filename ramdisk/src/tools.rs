//! Outside programs for the image, each with the loader and the shared libraries it names, and those
//! that they name in turn. What a program opens by name while it runs (plug-ins, databases) is not seen here.
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use crate::elf::{self, ElfError};
use crate::problem::Problem;
use crate::sysroot::Sysroot;
use crate::tree::{self, Node, Tree};

/// Where a program named without a `/` is looked for.
const PROGRAMS: [&str; 6] = [
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
];
/// The largest program or library.
const MAX_PROGRAM: usize = 256 * 1024 * 1024;
/// The most files one set of programs may need.
const MAX_FILES: usize = 4096;

/// Puts `programs` (names, or absolute paths) and all they need from `sysroot` into the image, each at the
/// place it has there.
///
/// # Errors
/// A program or a library is not there or not readable, or is for another machine than the others.
pub fn add(tree: &mut Tree, sysroot: &Sysroot, programs: &[&str]) -> Result<(), Problem> {
    let mut todo = VecDeque::new();
    for name in programs {
        let path = program(sysroot, name)?;
        todo.push_back((path, name.to_string()));
    }
    let mut seen = BTreeMap::new();
    let mut machine = None;
    while let Some((path, wanted_by)) = todo.pop_front() {
        if seen.contains_key(&path) {
            continue;
        }
        if seen.len() == MAX_FILES {
            return Err(Problem::new("the tools need more than 4096 files"));
        }
        let Some(real) = sysroot.resolve(&path)? else {
            return Err(Problem::new(format!(
                "{wanted_by} needs {}, which is not there",
                path.display()
            )));
        };
        let content = tree::read(&real, MAX_PROGRAM)?;
        seen.insert(path.clone(), ());
        let shown = path
            .to_str()
            .ok_or_else(|| Problem::new(format!("{} has no name in UTF-8", path.display())))?;
        tree.put(shown, Node::File(real.clone(), 0o755))?;
        let linkage = match elf::linkage(&content) {
            Ok(linkage) => linkage,
            Err(ElfError::NotElf) => {
                if let Some(shell) = interpreter(&content) {
                    todo.push_back((PathBuf::from(shell), shown.to_owned()));
                    continue;
                }
                return Err(Problem::with("use", &real, ElfError::NotElf));
            }
            Err(error) => return Err(Problem::with("use", &real, error)),
        };
        let expected = *machine.get_or_insert(linkage.machine);
        if linkage.machine != expected {
            return Err(Problem::new(format!(
                "{} is for another machine (ELF number {}) than the first tool ({expected})",
                real.display(),
                linkage.machine
            )));
        }
        if let Some(loader) = &linkage.interpreter {
            todo.push_back((PathBuf::from(loader), shown.to_owned()));
        }
        for name in &linkage.needed {
            let library = library(sysroot, name, &path, &linkage.search, expected)?;
            todo.push_back((library, shown.to_owned()));
        }
    }
    Ok(())
}

/// The absolute path of a program.
fn program(sysroot: &Sysroot, name: &str) -> Result<PathBuf, Problem> {
    if name.starts_with('/') {
        return Ok(PathBuf::from(name));
    }
    for directory in PROGRAMS {
        let path = Path::new(directory).join(name);
        if sysroot.resolve(&path)?.is_some() {
            return Ok(path);
        }
    }
    Err(Problem::new(format!(
        "there is no program {name} in {}: install its package, or give its path",
        PROGRAMS.join(", ")
    )))
}

/// The place of a library: where the file that names it says, then where the loader looks anyway.
fn library(
    sysroot: &Sysroot,
    name: &str,
    by: &Path,
    search: &[String],
    machine: u16,
) -> Result<PathBuf, Problem> {
    if name.starts_with('/') {
        return Ok(PathBuf::from(name));
    }
    let triplet = match machine {
        183 => "aarch64-linux-gnu",
        _ => "x86_64-linux-gnu",
    };
    let origin = by.parent().unwrap_or(Path::new("/"));
    let own = search.iter().map(|directory| {
        let origin = origin.to_string_lossy();
        directory
            .replace("${ORIGIN}", &origin)
            .replace("$ORIGIN", &origin)
    });
    let usual = [
        format!("/lib/{triplet}"),
        format!("/usr/lib/{triplet}"),
        "/lib64".to_owned(),
        "/usr/lib64".to_owned(),
        "/lib".to_owned(),
        "/usr/lib".to_owned(),
    ];
    let mut tried = Vec::new();
    for directory in own.chain(usual) {
        let path = plain(&Path::new(&directory).join(name));
        if sysroot.resolve(&path)?.is_some() {
            return Ok(path);
        }
        tried.push(directory);
    }
    Err(Problem::new(format!(
        "{} needs {name}, which is not in {}",
        by.display(),
        tried.join(", ")
    )))
}

/// The path without `.` and `..`, which the image does not take.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => plain.push(name),
            std::path::Component::ParentDir => {
                plain.pop();
            }
            _ => {}
        }
    }
    plain
}

/// The program a script names on its first line.
fn interpreter(content: &[u8]) -> Option<&str> {
    let line = content.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let name = std::str::from_utf8(line.get(..line.len().min(256))?).ok()?;
    let name = name.split_ascii_whitespace().next()?;
    name.starts_with('/').then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_loader_and_its_libraries() {
        let mut tree = Tree::new();
        add(&mut tree, &Sysroot::new("/"), &["/bin/sh"]).unwrap();
        assert!(tree.holds("/bin/sh"));
        let libc = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
            .iter()
            .any(|triplet| tree.holds(&format!("/lib/{triplet}/libc.so.6")));
        assert!(libc);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = add(&mut Tree::new(), &Sysroot::new("/"), &["no-such-tool"]).unwrap_err();
        assert!(
            error.to_string().contains("no program no-such-tool"),
            "{error}"
        );
    }

    #[test]
    fn a_script_brings_its_interpreter() {
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some("/bin/sh"));
        assert_eq!(
            interpreter(b"#! /usr/bin/python3\n"),
            Some("/usr/bin/python3")
        );
        assert_eq!(interpreter(b"#!sh\n"), None);
        assert_eq!(interpreter(b""), None);
    }
}
