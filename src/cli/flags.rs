//! The command line, from one table a subcommand: what is parsed, what `--help` prints and what
//! completions or man pages can be made from are the same [`Command`] values.
//!
//! Promises: an argument's *value* is never echoed, since somebody will paste a join token in the
//! wrong place; a flag given twice, unknown, or without its value is refused, as is every argument the
//! table does not ask for.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::cli::Failure;
use crate::config::spelling::nearest;

/// One flag: `--name VALUE`, `--name=VALUE`, or a switch.
pub struct Flag {
    /// Without the dashes.
    pub name: &'static str,
    /// What the value is called in `--help`; `None` makes the flag a switch.
    pub value: Option<&'static str>,
    /// Whether it may be given more than once.
    pub repeats: bool,
    pub help: &'static str,
}

impl Flag {
    /// A flag that takes a value, `metavar` being its name in `--help` (`PATH`, `URL` …).
    pub const fn value(name: &'static str, metavar: &'static str, help: &'static str) -> Self {
        Self {
            name,
            value: Some(metavar),
            repeats: false,
            help,
        }
    }

    /// A flag that takes a value and may be given more than once; see [`Args::values`].
    pub const fn values(name: &'static str, metavar: &'static str, help: &'static str) -> Self {
        Self {
            repeats: true,
            ..Self::value(name, metavar, help)
        }
    }

    /// A flag that is there or not.
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            value: None,
            repeats: false,
            help,
        }
    }
}

/// What a command does.
pub enum Action {
    /// Runs with its parsed flags.
    Run(fn(&Args) -> Result<ExitCode, Failure>),
    /// Has subcommands only.
    Group(&'static [Command]),
}

/// One command or group of commands.
pub struct Command {
    pub name: &'static str,
    /// One line for the list of commands.
    pub about: &'static str,
    /// Further paragraphs for the command's own `--help`; may be empty.
    pub details: &'static str,
    /// The positional arguments by the name `--help` gives them; those in brackets, the last ones, may be
    /// left out.
    pub positionals: &'static [&'static str],
    /// A second line printed when an argument is refused that the table does not ask for; may be empty.
    pub stray: &'static str,
    pub flags: &'static [Flag],
    pub action: Action,
}

impl Command {
    /// A command without positional arguments.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        flags: &'static [Flag],
        run: fn(&Args) -> Result<ExitCode, Failure>,
    ) -> Self {
        Self {
            name,
            about,
            details: "",
            positionals: &[],
            stray: "",
            flags,
            action: Action::Run(run),
        }
    }

    /// A group of subcommands.
    pub const fn group(name: &'static str, about: &'static str, commands: &'static [Self]) -> Self {
        Self {
            name,
            about,
            details: "",
            positionals: &[],
            stray: "",
            flags: &[],
            action: Action::Group(commands),
        }
    }

    /// Sets the paragraphs of the command's own `--help`.
    pub const fn details(mut self, details: &'static str) -> Self {
        self.details = details;
        self
    }

    /// Sets the positional arguments; `"[NAME]"` may be left out.
    pub const fn positionals(mut self, names: &'static [&'static str]) -> Self {
        self.positionals = names;
        self
    }

    /// Sets the second line of the refusal of a stray argument.
    pub const fn stray(mut self, hint: &'static str) -> Self {
        self.stray = hint;
        self
    }

    /// The text of `--help`; `path` is the command with its parents, as in "bcd config check".
    pub fn help(&self, path: &str) -> String {
        let mut text = format!("{path}: {}\n\nUsage: {path}", self.about);
        if let Action::Group(_) = self.action {
            text.push_str(" COMMAND");
        }
        if !self.flags.is_empty() {
            text.push_str(" [flags]");
        }
        for name in self.positionals {
            text.push(' ');
            text.push_str(name);
        }
        text.push('\n');
        if !self.details.is_empty() {
            text.push('\n');
            text.push_str(self.details);
            text.push('\n');
        }
        if let Action::Group(commands) = self.action {
            text.push_str("\nCommands:\n");
            let width = commands
                .iter()
                .map(|command| command.name.len())
                .max()
                .unwrap_or(0);
            for command in commands {
                let _ = writeln!(text, "  {:width$}  {}", command.name, command.about);
            }
            let _ = writeln!(text, "\n{path} COMMAND --help says more about one.");
        }
        if !self.flags.is_empty() {
            text.push_str("\nFlags:\n");
            let left: Vec<String> = self.flags.iter().map(flag_usage).collect();
            let width = left.iter().map(String::len).max().unwrap_or(0);
            for (usage, flag) in left.iter().zip(self.flags) {
                let mut lines = flag.help.lines();
                let _ = writeln!(text, "  {usage:width$}  {}", lines.next().unwrap_or(""));
                for line in lines {
                    let _ = writeln!(text, "  {:width$}  {line}", "");
                }
            }
        }
        text
    }
}

fn flag_usage(flag: &Flag) -> String {
    match flag.value {
        Some(metavar) => format!("--{} {metavar}", flag.name),
        None => format!("--{}", flag.name),
    }
}

/// A command's parsed flags and arguments.
pub struct Args {
    /// The command with its parents, as in "bcd config check".
    pub path: String,
    given: Vec<(&'static str, String)>,
    positionals: Vec<String>,
    known: &'static [Flag],
}

impl Args {
    /// The value of `--name`, if it was given.
    pub fn value(&self, name: &str) -> Option<&str> {
        debug_assert!(
            self.known
                .iter()
                .any(|flag| flag.name == name && flag.value.is_some()),
            "--{name} is in no table"
        );
        self.given
            .iter()
            .find(|(given, _)| *given == name)
            .map(|(_, value)| value.as_str())
    }

    /// All values of `--name`, in the order they were given.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.given
            .iter()
            .filter(move |(given, _)| *given == name)
            .map(|(_, value)| value.as_str())
    }

    /// The value of `--name` as a path, or `default`.
    pub fn path_or<'a>(&'a self, name: &str, default: &'a str) -> &'a Path {
        Path::new(self.value(name).unwrap_or(default))
    }

    /// Whether the switch `--name` was given.
    pub fn has(&self, name: &str) -> bool {
        debug_assert!(
            self.known
                .iter()
                .any(|flag| flag.name == name && flag.value.is_none()),
            "--{name} is in no table"
        );
        self.given.iter().any(|(given, _)| *given == name)
    }

    /// The positional argument number `index`; empty when it may be left out and was.
    pub fn positional(&self, index: usize) -> &str {
        self.positionals.get(index).map_or("", String::as_str)
    }
}

/// What the arguments ask for.
pub enum Parsed {
    /// Run this command with these arguments.
    Run(fn(&Args) -> Result<ExitCode, Failure>, Args),
    /// Print this text to standard output.
    Help(String),
}

/// A refused command line: the command it happened in, and why.
#[derive(Debug)]
pub struct Refusal {
    /// "bcd join", the prefix of the error.
    pub path: String,
    pub why: UsageError,
    /// A second line, or empty.
    pub hint: String,
}

/// Why a command line was refused. Never holds the value of an argument.
#[derive(Debug, PartialEq, Eq)]
pub enum UsageError {
    NoCommand,
    UnknownCommand,
    UnknownFlag(Option<String>),
    Repeated(&'static str),
    NeedsValue(&'static str, &'static str),
    TakesNoValue(&'static str),
    NotUtf8,
    NoPositionals,
    Positionals { expected: &'static [&'static str] },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(f, "needs a command"),
            Self::UnknownCommand => write!(f, "no such command"),
            Self::UnknownFlag(Some(name)) => write!(f, "unknown flag --{name}"),
            Self::UnknownFlag(None) => write!(f, "unknown flag"),
            Self::Repeated(name) => write!(f, "--{name} is given twice"),
            Self::NeedsValue(name, metavar) => {
                write!(f, "--{name} needs a value: --{name} {metavar}")
            }
            Self::TakesNoValue(name) => write!(f, "--{name} takes no value"),
            Self::NotUtf8 => write!(f, "an argument is not UTF-8"),
            Self::NoPositionals => write!(f, "takes no positional arguments"),
            Self::Positionals { expected } => {
                write!(f, "takes exactly these arguments: {}", expected.join(" "))
            }
        }
    }
}

impl Error for UsageError {}

/// Parses `args` (the program's name first) under `root`.
///
/// # Errors
/// A [`Refusal`] for everything the tables do not ask for.
pub fn parse(
    root: &'static Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Parsed, Refusal> {
    let mut command = root;
    let mut path = root.name.to_owned();
    let mut args = args.into_iter().skip(1);
    // Down the groups to the command that runs.
    while let Action::Group(commands) = command.action {
        let word = match args.next() {
            None => {
                let hint = format!("{path} --help lists the commands");
                return Err(Refusal {
                    path,
                    why: UsageError::NoCommand,
                    hint,
                });
            }
            Some(word) => word.into_string().unwrap_or_default(),
        };
        if is_help(&word) || word == "help" {
            // "bcd help config check" and "bcd config --help" are the same request.
            let mut shown = command;
            while let (Action::Group(commands), Some(word)) = (&shown.action, args.next()) {
                let Some(found) = commands.iter().find(|command| word == command.name) else {
                    break;
                };
                shown = found;
                path.push(' ');
                path.push_str(found.name);
            }
            return Ok(Parsed::Help(shown.help(&path)));
        }
        let word = if word == "--version" {
            "version"
        } else {
            word.as_str()
        };
        match commands.iter().find(|command| command.name == word) {
            Some(found) => {
                command = found;
                path.push(' ');
                path.push_str(found.name);
            }
            None => {
                let hint = match nearest(word, commands.iter().map(|command| command.name)) {
                    Some(name) => {
                        format!("did you mean {path} {name}? {path} --help lists the commands")
                    }
                    None => format!("{path} --help lists the commands"),
                };
                return Err(Refusal {
                    path,
                    why: UsageError::UnknownCommand,
                    hint,
                });
            }
        }
    }
    let Action::Run(run) = command.action else {
        return Err(Refusal {
            path,
            why: UsageError::NoCommand,
            hint: String::new(),
        });
    };
    match parse_flags(command, args) {
        Ok(Some((given, positionals))) => Ok(Parsed::Run(
            run,
            Args {
                path,
                given,
                positionals,
                known: command.flags,
            },
        )),
        Ok(None) => Ok(Parsed::Help(command.help(&path))),
        Err(why) => {
            let hint = match &why {
                UsageError::NoPositionals if !command.stray.is_empty() => command.stray.to_owned(),
                UsageError::UnknownFlag(Some(name)) => {
                    match nearest(name, command.flags.iter().map(|flag| flag.name)) {
                        Some(flag) => {
                            format!("did you mean --{flag}? {path} --help lists the flags")
                        }
                        None => format!("{path} --help lists the flags"),
                    }
                }
                _ => format!("{path} --help says how to use it"),
            };
            Err(Refusal { path, why, hint })
        }
    }
}

type Given = (Vec<(&'static str, String)>, Vec<String>);

/// The flags and positionals of one command; `None` when help is asked for.
fn parse_flags(
    command: &'static Command,
    args: impl Iterator<Item = OsString>,
) -> Result<Option<Given>, UsageError> {
    let mut given: Vec<(&'static str, String)> = Vec::new();
    let mut positionals = Vec::new();
    let mut only_positionals = false;
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let arg = arg.into_string().map_err(|_| UsageError::NotUtf8)?;
        if only_positionals || arg == "-" || !arg.starts_with('-') {
            positionals.push(arg);
            continue;
        }
        if arg == "--" {
            only_positionals = true;
            continue;
        }
        if is_help(&arg) {
            return Ok(None);
        }
        let Some(body) = arg.strip_prefix("--") else {
            return Err(UsageError::UnknownFlag(None));
        };
        let (name, inline) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        let flag = command
            .flags
            .iter()
            .find(|flag| flag.name == name)
            .ok_or_else(|| UsageError::UnknownFlag(printable_flag(name)))?;
        if !flag.repeats && given.iter().any(|(earlier, _)| *earlier == flag.name) {
            return Err(UsageError::Repeated(flag.name));
        }
        let value = match (flag.value, inline) {
            (None, None) => String::new(),
            (None, Some(_)) => return Err(UsageError::TakesNoValue(flag.name)),
            (Some(_), Some(value)) => value,
            (Some(metavar), None) => {
                // The next argument, unless it is a flag itself: "--token-file --reset" is a slip.
                let next = args.next_if(|next| !next.as_encoded_bytes().starts_with(b"--"));
                let next = next.ok_or(UsageError::NeedsValue(flag.name, metavar))?;
                next.into_string().map_err(|_| UsageError::NotUtf8)?
            }
        };
        if flag.value.is_some() && value.is_empty() {
            return Err(UsageError::NeedsValue(
                flag.name,
                flag.value.unwrap_or_default(),
            ));
        }
        given.push((flag.name, value));
    }
    let optional = |name: &&&str| name.starts_with('[');
    let most = command.positionals.len();
    let least = most - command.positionals.iter().filter(optional).count();
    if !(least..=most).contains(&positionals.len()) {
        return Err(match command.positionals {
            [] => UsageError::NoPositionals,
            expected => UsageError::Positionals { expected },
        });
    }
    Ok(Some((given, positionals)))
}

fn is_help(word: &str) -> bool {
    word == "--help" || word == "-h"
}

/// The name when it looks like a flag's: short, lower-case letters, digits and dashes. A token pasted
/// behind two dashes does not, and stays unprinted.
fn printable_flag(name: &str) -> Option<String> {
    let plain = name.len() <= 24
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b == b'-' || b.is_ascii_digit());
    (plain && name.starts_with(|c: char| c.is_ascii_lowercase())).then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
