//! A kernel's modules for the image: those a list names, with what they need, and depmod's files cut
//! down to them.
//!
//! A list has one wish a line; `#` begins a comment. `name` must be there, as a module or built into the
//! kernel; `?name` is taken if this kernel has it; `?directory/` (below lib/modules/VERSION) is all modules
//! beneath it. `include NAME` takes another of the lists that come with this program.
use std::collections::BTreeSet;
use std::path::Path;

use init::modules::{Aliases, Dependencies, MAX_BYTES, SoftDependencies, canonical, name_of};

use crate::problem::Problem;
use crate::tree::{self, Node, Tree};

/// Enough for virtual machines and the common NICs and disks of servers.
pub const MINIMAL: &str = include_str!("../lists/minimal.txt");
/// Every NIC, disk and bus driver of the kernel.
pub const FULL: &str = include_str!("../lists/full.txt");

/// One wish of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    Needed(String),
    Optional(String),
    Directory(String),
}

/// What was taken of a kernel.
#[derive(Debug, Default)]
pub struct Taken {
    /// The version: the directory's own name.
    pub version: String,
    pub modules: usize,
}

/// Puts the modules that `list` wishes for into the image. `directory` is the kernel's lib/modules/VERSION, with
/// depmod's files in it.
///
/// # Errors
/// depmod's files are missing or damaged, the list has a mistake, or a needed module is not there.
pub fn add(tree: &mut Tree, directory: &Path, list: &str) -> Result<Taken, Problem> {
    let version = directory
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Problem::new(format!("{} names no kernel", directory.display())))?;
    let read = |name: &str| tree::read(&directory.join(name), MAX_BYTES);
    let text = read("modules.dep").map_err(|error| {
        Problem::with(
            "use (run `depmod -b ROOT VERSION`, which makes modules.dep, first) the modules in",
            directory,
            error,
        )
    })?;
    let dependencies =
        Dependencies::parse(&text).map_err(|error| Problem::with("use", directory, error))?;
    let damaged = |error| Problem::with("use", directory, error);
    let aliases = Aliases::parse(&read("modules.alias")?).map_err(damaged)?;
    let soft = match read("modules.softdep") {
        Ok(text) => SoftDependencies::parse(&text).map_err(damaged)?,
        Err(_) => SoftDependencies::default(),
    };
    let builtin = read("modules.builtin").unwrap_or_default();
    let builtin: BTreeSet<String> = String::from_utf8_lossy(&builtin)
        .lines()
        .map(name_of)
        .collect();

    let mut names = BTreeSet::new();
    for wish in parse(list, 0)? {
        match wish {
            Wish::Needed(name) | Wish::Optional(name) if dependencies.path(&name).is_some() => {
                names.insert(canonical(&name));
            }
            Wish::Needed(name) if !builtin.contains(&canonical(&name)) => {
                return Err(Problem::new(format!(
                    "the kernel {version} has no module {name}, neither as a file nor built in"
                )));
            }
            Wish::Needed(_) | Wish::Optional(_) => {}
            Wish::Directory(directory) => names.extend(
                dependencies
                    .paths()
                    .filter(|path| path.starts_with(&directory))
                    .map(name_of),
            ),
        }
    }
    let mut paths = BTreeSet::new();
    let mut todo: Vec<String> = names.iter().cloned().collect();
    while let Some(name) = todo.pop() {
        for path in dependencies.order(&name).map_err(damaged)? {
            if paths.insert(path.to_owned()) {
                let taken = name_of(path);
                let wished = soft.wishes(&taken, true).chain(soft.wishes(&taken, false));
                todo.extend(
                    wished
                        .filter(|wish| dependencies.path(wish).is_some())
                        .map(str::to_owned),
                );
            }
        }
    }
    let names: BTreeSet<String> = paths.iter().map(|path| name_of(path)).collect();
    let base = format!("lib/modules/{version}");
    for path in &paths {
        tree.put(
            &format!("{base}/{}", unpacked(path)),
            Node::Module(directory.join(path)),
        )?;
    }
    let dep: String = dependencies
        .filtered(|path| paths.contains(path))
        .lines()
        .map(|line| unpacked_line(line) + "\n")
        .collect();
    for (name, text) in [
        ("modules.dep", dep),
        (
            "modules.alias",
            aliases.filtered(|module| names.contains(module)),
        ),
        (
            "modules.softdep",
            soft.filtered(|module| names.contains(module)),
        ),
    ] {
        tree.put(
            &format!("{base}/{name}"),
            Node::Text(text.into_bytes(), 0o644),
        )?;
    }
    Ok(Taken {
        version: version.to_owned(),
        modules: paths.len(),
    })
}

/// The name a module has once it is unpacked.
fn unpacked(path: &str) -> &str {
    match path.rfind(".ko") {
        Some(at) => path.get(..at + 3).unwrap_or(path),
        None => path,
    }
}

fn unpacked_line(line: &str) -> String {
    let (path, needs) = line.split_once(':').unwrap_or((line, ""));
    let mut text = format!("{}:", unpacked(path));
    for need in needs.split_ascii_whitespace() {
        text.push(' ');
        text.push_str(unpacked(need));
    }
    text
}

fn parse(list: &str, depth: u8) -> Result<Vec<Wish>, Problem> {
    let mut wishes = Vec::new();
    for (number, line) in (1..).zip(list.lines()) {
        let wrong = |why: &str| Problem::new(format!("line {number} of the module list: {why}"));
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.split_once(' ') {
            _ if line.is_empty() => {}
            Some(("include", name)) if depth < 4 => {
                let included = match name.trim() {
                    "minimal" => MINIMAL,
                    "full" => FULL,
                    _ => return Err(wrong("include takes minimal or full")),
                };
                wishes.extend(parse(included, depth + 1)?);
            }
            Some(_) => return Err(wrong("one name a line")),
            None => wishes.push(match (line.strip_prefix('?'), line.ends_with('/')) {
                (Some(name), true) => Wish::Directory(name.to_owned()),
                (Some(name), false) => Wish::Optional(name.to_owned()),
                (None, true) => return Err(wrong("a directory is `?directory/`")),
                (None, false) => Wish::Needed(line.to_owned()),
            }),
        }
    }
    Ok(wishes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_that_come_with_it_parse() {
        assert!(parse(MINIMAL, 0).unwrap().len() > 20);
        assert!(parse(FULL, 0).unwrap().len() > parse(MINIMAL, 0).unwrap().len());
    }

    #[test]
    fn a_list_says_what_is_wrong_with_it() {
        for (list, want) in [
            ("a b", "line 1"),
            ("a\n\nb/", "line 3"),
            ("include other", "minimal or full"),
        ] {
            let error = parse(list, 0).unwrap_err();
            assert!(error.to_string().contains(want), "{error}");
        }
    }

    #[test]
    fn a_compressed_module_gets_its_plain_name() {
        assert_eq!(unpacked("kernel/a.ko.zst"), "kernel/a.ko");
        assert_eq!(
            unpacked_line("k/a.ko.xz: k/b.ko.xz k/c.ko"),
            "k/a.ko: k/b.ko k/c.ko"
        );
    }
}
