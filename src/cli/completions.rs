//! `bcd completions SHELL`: what a shell needs to complete commands and flags, from the same tables as
//! `--help`. Each script asks nobody at run time: all words are in it.
use std::process::ExitCode;

use super::flags::{Action, Args, Command, Flag};
use super::{Failure, print};

/// The command's name: its argument completes too.
const NAME: &str = "completions";

/// The command, for a program whose `run` calls [`run`] with its own table.
pub const fn command(run: fn(&Args) -> Result<ExitCode, Failure>) -> Command {
    Command::new(
        NAME,
        "print what a shell needs to complete commands and flags",
        &[],
        run,
    )
    .positionals(&["SHELL"])
    .details(
        "SHELL is bash, zsh or fish. For every new shell of all users, with PROGRAM for bcd or better-compute:\n\
         \x20 PROGRAM completions bash > /usr/share/bash-completion/completions/PROGRAM\n\
         \x20 PROGRAM completions zsh > /usr/local/share/zsh/site-functions/_PROGRAM\n\
         \x20 PROGRAM completions fish > /usr/share/fish/vendor_completions.d/PROGRAM.fish",
    )
}

/// Prints the script for the shell that `args` names, for the program of `root`.
///
/// # Errors
/// No such shell is known, or standard output takes nothing.
pub fn run(root: &'static Command, args: &Args) -> Result<ExitCode, Failure> {
    let text = match args.positional(0) {
        "bash" => bash(root),
        "zsh" => zsh(root),
        "fish" => fish(root),
        _ => return Err(Failure::refused("SHELL is one of bash, zsh and fish")),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Calls `each` for every command below `root`, the groups too, with its path ("bcd config check").
fn walk(root: &'static Command, path: &str, each: &mut dyn FnMut(&str, &'static Command)) {
    each(path, root);
    if let Action::Group(commands) = root.action {
        for command in commands {
            walk(command, &[path, " ", command.name].concat(), each);
        }
    }
}

fn children(command: &Command) -> &'static [Command] {
    match command.action {
        Action::Group(commands) => commands,
        Action::Run(_) => &[],
    }
}

/// Whether a value is the path of a file or a directory.
fn is_path(flag: &Flag) -> bool {
    matches!(flag.value, Some("PATH" | "FILE" | "DIR"))
}

/// A name that a shell's function may have.
fn function(root: &Command) -> String {
    ["_", &root.name.replace('-', "_")].concat()
}

fn push(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
}

/// `text` between single quotes, for any shell that knows them.
fn quoted(text: &str) -> String {
    ["'", &text.replace('\'', "'\\''").replace('\n', " "), "'"].concat()
}

/// For each command: its words. The path is what was typed so far without flags and their values.
fn bash(root: &'static Command) -> String {
    let (name, function) = (root.name, function(root));
    let mut out = String::new();
    push(
        &mut out,
        &[
            "# ",
            name,
            " completion for bash\n",
            &function,
            "() {\n",
            "  local word previous='' path=",
            name,
            " words='' values='' files='' i\n",
            "  COMPREPLY=()\n",
            "  for ((i = 1; i <= COMP_CWORD; i++)); do\n",
            "    words='' values='' files=''\n",
            "    case $path in\n",
        ],
    );
    walk(root, name, &mut |path, command| {
        let (mut words, mut values, mut files) = (String::new(), String::new(), String::new());
        for child in children(command) {
            push(&mut words, &[child.name, " "]);
        }
        for flag in command.flags {
            push(&mut words, &["--", flag.name, " "]);
            if is_path(flag) {
                push(&mut files, &[" --", flag.name, " "]);
            } else if flag.value.is_some() {
                push(&mut values, &[" --", flag.name, " "]);
            }
        }
        if command.name == NAME {
            words.push_str("bash zsh fish ");
        }
        push(
            &mut out,
            &[
                "    ",
                &quoted(path),
                ") words='",
                &words,
                "--help' values='",
                &values,
                "' files='",
                &files,
                "' ;;\n",
            ],
        );
    });
    push(
        &mut out,
        &[
            "    esac\n",
            "    word=${COMP_WORDS[i]}\n",
            "    ((i == COMP_CWORD)) && break\n",
            "    if [[ $word != -* && $values$files != *\" $previous \"* && \" $words \" == *\" $word \"* ]]; then\n",
            "      path+=\" $word\"\n",
            "    fi\n",
            "    previous=$word\n",
            "  done\n",
            // bash takes the = of --flag=value for a word of its own.
            "  if [[ $word == '=' ]]; then word=''; elif [[ $previous == '=' ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi\n",
            "  if [[ -n $previous && $files == *\" $previous \"* ]]; then\n",
            "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n",
            "    compopt -o filenames 2> /dev/null\n",
            "  elif [[ -z $previous || $values != *\" $previous \"* ]]; then\n",
            "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n",
            "  fi\n",
            "}\n",
            "complete -F ",
            &function,
            " ",
            name,
            "\n",
        ],
    );
    out
}

fn zsh(root: &'static Command) -> String {
    let (name, function) = (root.name, function(root));
    let mut out = String::new();
    push(
        &mut out,
        &[
            "#compdef ",
            name,
            "\n",
            &function,
            "() {\n",
            "  local path=",
            name,
            " word i\n",
            "  local -a commands flags\n",
            "  for ((i = 2; i < CURRENT; i++)); do\n",
            "    word=${words[i]}\n",
            "    case \"$path $word\" in\n",
        ],
    );
    walk(root, name, &mut |path, command| {
        if command.name != root.name {
            push(
                &mut out,
                &["    ", &quoted(path), ") path=", &quoted(path), " ;;\n"],
            );
        }
    });
    push(&mut out, &["    esac\n  done\n  case $path in\n"]);
    walk(root, name, &mut |path, command| {
        push(&mut out, &["  ", &quoted(path), ")\n    commands=("]);
        for child in children(command) {
            let text = [child.name, ":", child.about].concat();
            push(&mut out, &["\n      ", &quoted(&text)]);
        }
        if command.name == NAME {
            out.push_str(" bash zsh fish");
        }
        out.push_str(")\n    flags=('--help[say how it is used]'");
        for flag in command.flags {
            let about = flag.help.replace(['[', ']', ':'], " ");
            let value = match flag.value {
                None => String::new(),
                Some(value) if is_path(flag) => [":", value, ":_files"].concat(),
                Some(value) => [":", value, ": "].concat(),
            };
            let repeats = if flag.repeats { "*" } else { "" };
            let text = [repeats, "--", flag.name, "[", &about, "]", &value].concat();
            push(&mut out, &["\n      ", &quoted(&text)]);
        }
        out.push_str(")\n    ;;\n");
    });
    push(
        &mut out,
        &[
            "  esac\n",
            "  if ((${#commands})) && [[ ${words[CURRENT]} != -* ]]; then\n",
            "    _describe command commands\n",
            "  else\n",
            "    _arguments -s : $flags '*: :'\n",
            "  fi\n",
            "}\n",
            "if [[ ${funcstack[1]} == ",
            &function,
            " ]]; then ",
            &function,
            "; else compdef ",
            &function,
            " ",
            name,
            "; fi\n",
        ],
    );
    out
}

fn fish(root: &'static Command) -> String {
    let name = root.name;
    let mut out = String::new();
    push(
        &mut out,
        &[
            "# ",
            name,
            " completion for fish\ncomplete -c ",
            name,
            " -f\n",
        ],
    );
    walk(root, name, &mut |path, command| {
        // All words of the path were typed, and none of the commands below it.
        let mut when = String::from("true");
        for word in path.split(' ').skip(1) {
            push(&mut when, &["; and __fish_seen_subcommand_from ", word]);
        }
        let below = children(command);
        if !below.is_empty() {
            when.push_str("; and not __fish_seen_subcommand_from");
            for child in below {
                push(&mut when, &[" ", child.name]);
            }
        }
        let start = ["complete -c ", name, " -n ", &quoted(&when)].concat();
        for child in below {
            push(
                &mut out,
                &[
                    &start,
                    " -a ",
                    child.name,
                    " -d ",
                    &quoted(child.about),
                    "\n",
                ],
            );
        }
        if command.name == NAME {
            push(&mut out, &[&start, " -a 'bash zsh fish'\n"]);
        }
        for flag in command.flags {
            let value = match flag.value {
                None => "",
                Some(_) if is_path(flag) => " -r -F",
                Some(_) => " -x",
            };
            push(
                &mut out,
                &[
                    &start,
                    " -l ",
                    flag.name,
                    value,
                    " -d ",
                    &quoted(flag.help),
                    "\n",
                ],
            );
        }
    });
    out
}
