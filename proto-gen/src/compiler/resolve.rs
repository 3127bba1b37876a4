//! Gives every type name its meaning, by protobuf's scoping, and every type its Rust name; checks
//! what spans declarations: names used twice, types not imported, messages that contain themselves.
use std::collections::{BTreeMap, BTreeSet};

use super::Error;
use super::names::{camel, constant, field_name, module_name, value_names};
use super::schema::{Enum, File, Kind, Label, Message, Name};

pub(super) fn resolve(files: &mut [File]) -> Result<(), Error> {
    let mut names = Names::default();
    for file in files.iter_mut() {
        names.declare_file(file)?;
    }
    let imports: BTreeMap<String, Vec<(String, bool)>> = files
        .iter()
        .map(|file| {
            let imports = file.imports.iter();
            let imports = imports.map(|import| (import.path.clone(), import.public));
            (file.name.clone(), imports.collect())
        })
        .collect();
    for file in files.iter_mut() {
        let scope = Scope {
            names: &names,
            file: file.name.clone(),
            visible: visible(&file.name, &imports),
        };
        let package = file.package.clone();
        for message in &mut file.messages {
            scope.message(message)?;
        }
        for service in &mut file.services {
            for method in &mut service.methods {
                for kind in [&mut method.request, &mut method.response] {
                    scope.kind(kind, &package, method.name.line)?;
                    if let Kind::Enum(_) = kind {
                        let problem = format!("method \"{}\" takes messages", method.name.text);
                        return Err(scope.error(method.name.line, problem));
                    }
                }
            }
        }
    }
    box_cycles(files);
    Ok(())
}

/// A file's own name, what it imports, and what those import publicly.
fn visible(file: &str, imports: &BTreeMap<String, Vec<(String, bool)>>) -> BTreeSet<String> {
    let mut seen = BTreeSet::from([file.to_owned()]);
    let mut open: Vec<&str> = Vec::new();
    for (path, _) in imports.get(file).into_iter().flatten() {
        seen.insert(path.clone());
        open.push(path);
    }
    while let Some(next) = open.pop() {
        for (path, public) in imports.get(next).into_iter().flatten() {
            if *public && seen.insert(path.clone()) {
                open.push(path);
            }
        }
    }
    seen
}

struct Declared {
    file: String,
    line: u32,
    /// `None` for what is no type: a package, a field, a value, a method.
    kind: Option<Kind>,
    package: bool,
}

#[derive(Default)]
struct Names {
    /// By full protobuf name, without a leading dot.
    declared: BTreeMap<String, Declared>,
    /// All Rust items, to the protobuf name and place they come from.
    rust: BTreeMap<String, String>,
}

impl Names {
    fn declare(
        &mut self,
        file: &str,
        full: String,
        line: u32,
        kind: Option<Kind>,
    ) -> Result<(), Error> {
        if let Some(other) = self.declared.get(&full) {
            return Err(Error {
                file: file.to_owned(),
                line,
                problem: format!(
                    "\"{full}\" is declared twice, also at {}:{}",
                    other.file, other.line
                ),
            });
        }
        let declared = Declared {
            file: file.to_owned(),
            line,
            kind,
            package: false,
        };
        self.declared.insert(full, declared);
        Ok(())
    }

    /// The output is one flat module, so two packages may not share a Rust name.
    fn declare_rust(&mut self, file: &str, rust: &str, full: &str, line: u32) -> Result<(), Error> {
        let fail = |problem| {
            Err(Error {
                file: file.to_owned(),
                line,
                problem,
            })
        };
        // The names that generated code says without a path.
        if matches!(rust, "Self" | "Some" | "None" | "Ok" | "Err") {
            return fail(format!("\"{full}\" cannot be called {rust} in Rust"));
        }
        match self.rust.insert(rust.to_owned(), full.to_owned()) {
            None => Ok(()),
            Some(other) => fail(format!(
                "\"{full}\" and \"{other}\" are both {rust} in Rust"
            )),
        }
    }

    fn declare_file(&mut self, file: &mut File) -> Result<(), Error> {
        let mut package = String::new();
        for part in file.package.split('.').filter(|part| !part.is_empty()) {
            package = join(&package, part);
            if self
                .declared
                .get(&package)
                .is_some_and(|other| other.package)
            {
                continue;
            }
            self.declare(&file.name, package.clone(), 1, None)?;
            if let Some(declared) = self.declared.get_mut(&package) {
                declared.package = true;
            }
        }
        for message in &mut file.messages {
            self.declare_message(&file.name, message, &package, "")?;
        }
        for enumeration in &mut file.enums {
            self.declare_enum(&file.name, enumeration, &package, "")?;
        }
        for service in &mut file.services {
            service.full_name = join(&package, &service.name.text);
            let (full, line) = (service.full_name.clone(), service.name.line);
            self.declare(&file.name, full.clone(), line, None)?;
            self.declare_rust(&file.name, &module_name(&service.name.text), &full, line)?;
            let mut constants = BTreeSet::new();
            for method in &service.methods {
                let line = method.name.line;
                self.declare(&file.name, join(&full, &method.name.text), line, None)?;
                if !constants.insert(constant(&method.name.text)) {
                    return Err(same_rust(&file.name, &method.name));
                }
            }
        }
        Ok(())
    }

    fn declare_message(
        &mut self,
        file: &str,
        message: &mut Message,
        scope: &str,
        outer: &str,
    ) -> Result<(), Error> {
        let line = message.name.line;
        let full = join(scope, &message.name.text);
        let rust = format!("{outer}{}", camel(&message.name.text));
        self.declare(file, full.clone(), line, Some(Kind::Message(rust.clone())))?;
        self.declare_rust(file, &rust, &full, line)?;
        let mut members = BTreeSet::new();
        for field in &message.fields {
            let name = &field.name;
            self.declare(file, join(&full, &name.text), name.line, None)?;
            let member = match field.label {
                Label::Oneof(index) => format!("{index}::{}", camel(&name.text)),
                _ => field_name(&name.text),
            };
            if !members.insert(member) {
                return Err(same_rust(file, name));
            }
        }
        for oneof in &message.oneofs {
            let oneof_full = join(&full, &oneof.text);
            self.declare(file, oneof_full.clone(), oneof.line, None)?;
            let oneof_rust = format!("{rust}{}", camel(&oneof.text));
            self.declare_rust(file, &oneof_rust, &oneof_full, oneof.line)?;
            if !members.insert(field_name(&oneof.text)) {
                return Err(same_rust(file, oneof));
            }
        }
        for inner in &mut message.messages {
            self.declare_message(file, inner, &full, &rust)?;
        }
        for inner in &mut message.enums {
            self.declare_enum(file, inner, &full, &rust)?;
        }
        message.full_name = full;
        message.rust_name = rust;
        Ok(())
    }

    fn declare_enum(
        &mut self,
        file: &str,
        enumeration: &mut Enum,
        scope: &str,
        outer: &str,
    ) -> Result<(), Error> {
        let line = enumeration.name.line;
        let full = join(scope, &enumeration.name.text);
        let rust = format!("{outer}{}", camel(&enumeration.name.text));
        self.declare(file, full.clone(), line, Some(Kind::Enum(rust.clone())))?;
        self.declare_rust(file, &rust, &full, line)?;
        for (value, _) in &enumeration.values {
            // As in C++, a value is its enum's sibling, not its child.
            self.declare(file, join(scope, &value.text), value.line, None)?;
        }
        let mut constants = BTreeSet::new();
        for ((value, _), constant) in enumeration.values.iter().zip(value_names(enumeration)) {
            if !constants.insert(constant) {
                return Err(same_rust(file, value));
            }
        }
        enumeration.rust_name = rust;
        Ok(())
    }
}

fn same_rust(file: &str, name: &Name) -> Error {
    Error {
        file: file.to_owned(),
        line: name.line,
        problem: format!(
            "\"{}\" has the same name in Rust as something beside it",
            name.text
        ),
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() {
        name.to_owned()
    } else {
        format!("{scope}.{name}")
    }
}

struct Scope<'a> {
    names: &'a Names,
    file: String,
    visible: BTreeSet<String>,
}

impl Scope<'_> {
    fn error(&self, line: u32, problem: String) -> Error {
        Error {
            file: self.file.clone(),
            line,
            problem,
        }
    }

    fn message(&self, message: &mut Message) -> Result<(), Error> {
        let scope = message.full_name.clone();
        for field in &mut message.fields {
            let line = field.name.line;
            self.kind(&mut field.kind, &scope, line)?;
        }
        for inner in &mut message.messages {
            self.message(inner)?;
        }
        Ok(())
    }

    fn kind(&self, kind: &mut Kind, scope: &str, line: u32) -> Result<(), Error> {
        if let Kind::Named(name) = kind {
            *kind = self.lookup(name, scope, line)?;
        }
        Ok(())
    }

    /// The first part of a name decides the scope, from the innermost outwards; the rest must
    /// then be found there.
    fn lookup(&self, name: &str, scope: &str, line: u32) -> Result<Kind, Error> {
        let mut scope = scope;
        let full = match name.strip_prefix('.') {
            Some(absolute) => absolute.to_owned(),
            None => {
                let first = name.split('.').next().unwrap_or(name);
                let compound = first.len() < name.len();
                loop {
                    let candidate = join(scope, first);
                    match self.names.declared.get(&candidate) {
                        // What is no type cannot hide a type.
                        Some(found) if compound && (found.package || is_message(found)) => break,
                        Some(found) if !compound && found.kind.is_some() => break,
                        _ => {}
                    }
                    if scope.is_empty() {
                        break;
                    }
                    scope = scope.rfind('.').map_or("", |dot| &scope[..dot]);
                }
                join(scope, name)
            }
        };
        match self.names.declared.get(&full) {
            Some(Declared {
                kind: Some(kind),
                file,
                ..
            }) => {
                if self.visible.contains(file) {
                    return Ok(kind.clone());
                }
                Err(self.error(
                    line,
                    format!("\"{name}\" is declared in \"{file}\", which is not imported"),
                ))
            }
            Some(_) => Err(self.error(line, format!("\"{name}\" is not a type"))),
            None => Err(self.error(line, format!("there is no type \"{name}\""))),
        }
    }
}

fn is_message(declared: &Declared) -> bool {
    matches!(declared.kind, Some(Kind::Message(_)))
}

/// Boxes every single message field through which a message contains itself.
fn box_cycles(files: &mut [File]) {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for_each_message(files, &mut |message| {
        let targets = edges.entry(message.rust_name.clone()).or_default();
        for field in &message.fields {
            if let (true, Kind::Message(target)) = (is_inline(field.label), &field.kind) {
                targets.insert(target.clone());
            }
        }
    });
    let reaches = |from: &str, to: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                open.extend(edges.get(next).into_iter().flatten().map(String::as_str));
            }
        }
        false
    };
    for_each_message(files, &mut |message| {
        for field in &mut message.fields {
            if let (true, Kind::Message(target)) = (is_inline(field.label), &field.kind) {
                field.boxed = reaches(target, &message.rust_name);
            }
        }
    });
}

/// Whether a message field lies within its message, not behind a pointer of its own.
fn is_inline(label: Label) -> bool {
    !matches!(label, Label::Repeated | Label::Map(_))
}

/// Visits nested messages too, each after the one it is declared in.
pub(super) fn for_each_message(files: &mut [File], visit: &mut dyn FnMut(&mut Message)) {
    fn walk(messages: &mut [Message], visit: &mut dyn FnMut(&mut Message)) {
        for message in messages {
            visit(message);
            walk(&mut message.messages, visit);
        }
    }
    for file in files {
        walk(&mut file.messages, visit);
    }
}
