//! The commands of bcd: one file a subcommand, each of which parses its flags, calls a module, and
//! prints.
//!
//! Only this layer prints. A command returns its exit code or a [`Failure`]; [`dispatch`] prints a
//! failure once, as "bcd join: what was tried: what went wrong", with the whole chain of causes on one
//! line. Exit codes: 0 done, 1 failed, 2 refused (usage, configuration or input).

pub mod completions;
pub mod flags;

mod config;
mod doctor;
mod facts;
mod helper;
mod join;
mod journal;
mod node;
mod ramdisk;
pub mod sim;
mod status;
mod version;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

pub use self::facts::facts_text;
use self::flags::{Args, Command, Flag, Parsed};
use crate::command::worker;
use crate::config::{Config, ConfigError};
use crate::rt;
use crate::sys::log;
pub use crate::sys::log::{one_line, one_line_chain as chain};
use crate::wire::proxy;

/// Where bcd looks for its configuration unless `--config` says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/bcd/config.toml";

/// `--config PATH`, for every command that reads the configuration; see [`load_config`].
pub const CONFIG_FLAG: Flag = Flag::value(
    "config",
    "PATH",
    "The configuration (default /etc/bcd/config.toml)",
);

/// bcd's commands.
pub static BCD: Command = Command::group(
    "bcd",
    "the node agent of a better-compute fleet",
    &[
        completions::command(complete),
        config::COMMAND,
        doctor::COMMAND,
        facts::COMMAND,
        helper::COMMAND,
        join::COMMAND,
        journal::COMMAND,
        node::COMMAND,
        ramdisk::COMMAND,
        sim::COMMAND,
        status::COMMAND,
        version::COMMAND,
    ],
);

fn complete(args: &Args) -> Result<ExitCode, Failure> {
    completions::run(&BCD, args)
}

/// Runs bcd with the process's arguments, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    let program = args.next();
    if args.peek().is_some_and(|first| first == worker::ARGUMENT) {
        // Our own child: no person ever gives this.
        let rest = args
            .skip(1)
            .filter_map(|argument| argument.into_string().ok());
        return worker::serve(&rest.collect::<Vec<_>>());
    }
    log::add_remedies(&[]);
    dispatch(&BCD, program.into_iter().chain(args))
}

/// Parses `args` under `root`, runs the command and prints what fails.
pub fn dispatch(root: &'static Command, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (path, failure) = match flags::parse(root, args) {
        Ok(Parsed::Help(text)) => match print(&text) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => (root.name.to_owned(), failure),
        },
        Ok(Parsed::Run(run, args)) => match run(&args) {
            Ok(code) => return code,
            Err(failure) => (args.path, failure),
        },
        Err(refusal) => {
            let hint = refusal.hint;
            (refusal.path, Failure::refused(refusal.why).hint(hint))
        }
    };
    failure.report(&path)
}

/// Why a command did not do what it was asked, and the exit code that says so.
///
/// Any error becomes a failure with exit code 1 through `?`.
pub struct Failure {
    code: u8,
    error: Option<Box<dyn Error>>,
    hint: String,
}

impl Failure {
    /// Exit code 1: it was tried and did not work.
    pub fn failed(error: impl Into<Box<dyn Error>>) -> Self {
        Self {
            code: 1,
            error: Some(error.into()),
            hint: String::new(),
        }
    }

    /// Exit code 2: the usage, the configuration or the input is refused; nothing was tried.
    pub fn refused(error: impl Into<Box<dyn Error>>) -> Self {
        Self {
            code: 2,
            error: Some(error.into()),
            hint: String::new(),
        }
    }

    /// An exit code whose reason is already printed.
    pub fn silent(code: u8) -> Self {
        Self {
            code,
            error: None,
            hint: String::new(),
        }
    }

    /// Adds a second line: what to do instead.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Prints the failure to standard error and turns it into the exit code.
    fn report(self, path: &str) -> ExitCode {
        if let Some(error) = &self.error {
            let mut text = format!("{path}: {}\n", chain(&**error));
            if !self.hint.is_empty() {
                text.push_str(&one_line(&self.hint));
                text.push('\n');
            }
            // Nothing is left to say it to when standard error is gone.
            let _ = io::stderr().write_all(text.as_bytes());
        }
        ExitCode::from(self.code)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::failed(error)
    }
}

/// The configuration that `--config` names, or the default one.
///
/// # Errors
/// It cannot be read, or is wrong: exit code 2.
pub fn load_config(args: &Args) -> Result<Config, Failure> {
    Config::load(args.path_or("config", DEFAULT_CONFIG)).map_err(refused_config)
}

/// A configuration that is wrong, or is not there.
fn refused_config(error: ConfigError) -> Failure {
    let is_missing = error.is_missing();
    let failure = Failure::refused(error);
    match is_missing {
        true => failure.hint("install bcd on this machine, or name the file with --config"),
        false => failure,
    }
}

/// Takes the proxy from the environment. Before any thread is started.
///
/// # Errors
/// It names no proxy for us: exit code 2.
pub fn take_proxy() -> Result<(), Failure> {
    proxy::from_environment().map_err(|(name, error)| {
        Failure::refused(format!("{name} names no proxy: {error}"))
            .hint("write it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, or unset it")
    })
}

/// Writes `text` to standard output at once.
///
/// # Errors
/// A reader that went away (`bcd … | head`) ends the command quietly with exit code 1; any other
/// failed write, such as a full disk, is an ordinary failure.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// As [`print`], of what is no text.
///
/// # Errors
/// As [`print`]'s.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(1)),
        Err(error) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Runs `future` on an event loop.
///
/// # Errors
/// The kernel has none to give.
pub fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    rt::try_block_on(future).map_err(|error| {
        Failure::failed(format!(
            "cannot set up the event loop: {error}; raise the limit of open files (ulimit -n) and run it again"
        ))
    })
}

/// Writes one line to standard error: a warning that does not change the exit code.
pub fn warn(path: &str, text: &str) {
    complain(path, &format!("warning: {text}"));
}

/// Writes one line to standard error, for a command that has several things to say before it fails.
pub fn complain(path: &str, text: &str) {
    // Nothing is left to say it to when standard error is gone.
    let _ = io::stderr().write_all(format!("{path}: {}\n", one_line(text)).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as _)
        }
    }

    #[test]
    fn the_whole_chain_is_one_line() {
        let error = Layer(
            "cannot join",
            Some(Box::new(Layer("gateway said\n\u{1b}[31mno", None))),
        );
        assert_eq!(chain(&error), "cannot join: gateway said\\n\\u{1b}[31mno");
    }
}
