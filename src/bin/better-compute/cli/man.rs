//! `better-compute man`: the manual pages of both programs, from the same tables as `--help`. Here, so
//! that they weigh nothing in bcd.
use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Action, Args, Command, Flag};
use bcd::cli::{BCD, Failure, print};
use bcd::sys::clock;
use bcd::sys::fs::Dir;
use bcd::sys::utc::Utc;

pub(super) const COMMAND: Command = Command::new(
    "man",
    "write the manual pages of bcd and better-compute",
    &[Flag::value(
        "dir",
        "DIR",
        "Where to write them; made when missing (default .)",
    )],
    run,
)
.details("One page for each program and each command that runs, in section 1. Prints their names.");

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let dir = Dir::create(args.path_or("dir", "."), 0o755)?;
    for root in [&BCD, &super::BETTER_COMPUTE] {
        write(&dir, root, root, root.name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(
    dir: &Dir,
    root: &'static Command,
    command: &'static Command,
    path: &str,
) -> Result<(), Failure> {
    let name = path.replace(' ', "-") + ".1";
    dir.write_atomic(&name, page(root, command, path).as_bytes(), 0o644)?;
    print(&format!(
        "{}\n",
        dir.path().join(Path::new(&name)).display()
    ))?;
    if let Action::Group(commands) = command.action {
        for below in commands {
            write(dir, root, below, &format!("{path} {}", below.name))?;
        }
    }
    Ok(())
}

/// One page in man(7)'s form.
fn page(root: &Command, command: &Command, path: &str) -> String {
    let title = path.replace(' ', "-");
    let version = env!("CARGO_PKG_VERSION");
    let built = Utc::from_ms(clock::build_time_ms()).to_string();
    let date = built.split('T').next().unwrap_or_default();
    let mut out = format!(
        ".TH \"{}\" 1 \"{date}\" \"{} {version}\" \"\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n",
        text(&title.to_uppercase()),
        text(root.name),
        text(&title),
        text(command.about),
        text(path)
    );
    if let Action::Group(_) = command.action {
        out.push_str(".I COMMAND\n");
    }
    if !command.flags.is_empty() {
        out.push_str("[\\fIflags\\fR]\n");
    }
    for positional in command.positionals {
        out.push_str(&format!(".I {}\n", text(positional)));
    }
    if !command.details.is_empty() {
        // Lines of the table are of a terminal's width: here they are filled anew, save those that
        // are indented.
        out.push_str(".SH DESCRIPTION\n");
        let mut table = false;
        for line in command.details.lines() {
            if std::mem::replace(&mut table, line.starts_with("  ")) != table {
                out.push_str(if table { ".nf\n" } else { ".fi\n" });
            }
            out.push_str(&line_of(if table { line } else { line.trim() }));
        }
        if table {
            out.push_str(".fi\n");
        }
    }
    if let Action::Group(commands) = command.action {
        out.push_str(".SH COMMANDS\n");
        for below in commands {
            out.push_str(&format!(
                ".TP\n.BR {}\\-{} (1)\n",
                text(&title),
                text(below.name)
            ));
            out.push_str(&line_of(below.about));
        }
    }
    if !command.flags.is_empty() {
        out.push_str(".SH OPTIONS\n");
        for flag in command.flags {
            let value = match flag.value {
                Some(value) => format!(" \\fI{}\\fR", text(value)),
                None => String::new(),
            };
            out.push_str(&format!(".TP\n\\fB\\-\\-{}\\fR{value}\n", text(flag.name)));
            for line in flag.help.lines() {
                out.push_str(&line_of(line));
            }
        }
    }
    if let Action::Run(_) = command.action {
        out.push_str(
            ".SH EXIT STATUS\n0: done. 1: tried and failed. 2: refused before anything was tried: usage, \
             configuration or input.\n",
        );
    }
    if path != root.name {
        out.push_str(&format!(".SH SEE ALSO\n.BR {} (1)\n", text(root.name)));
    }
    out
}

/// A line of running text: none may begin as a request.
fn line_of(line: &str) -> String {
    if line.is_empty() {
        return ".PP\n".to_owned();
    }
    let guard = if line.starts_with(['.', '\'']) {
        "\\&"
    } else {
        ""
    };
    format!("{guard}{}\n", text(line))
}

/// `plain` with what roff takes for its own written out.
fn text(plain: &str) -> String {
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '"' => out.push_str("\\(dq"),
            '…' => out.push_str("..."),
            c => out.push(c),
        }
    }
    out
}
