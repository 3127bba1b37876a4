//! `bcd config check`: what is wrong with a configuration, or what it comes to.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::flags::{Args, Command, Flag};
use super::{CONFIG_FLAG, DEFAULT_CONFIG, Failure, complain, print, refused_config, warn};
use crate::config::toml::{Value, qualify};
use crate::config::{self, Config, ConfigError, Problem, fresh};
use crate::crypto::json::quote;

pub(super) const COMMAND: Command = Command::group(
    "config",
    "look at the configuration",
    &[Command::new(
        "check",
        "say what is wrong with the configuration, or what it comes to",
        &[
            CONFIG_FLAG,
            Flag::switch("json", "Print one JSON object instead of text"),
        ],
        check,
    )
    .details(
        "Prints every problem with its line and key, and exits 2; or prints the effective\n\
     configuration, defaults included, and exits 0. Warns when others may read the file.",
    )],
);

fn check(args: &Args) -> Result<ExitCode, Failure> {
    let path = args.path_or("config", DEFAULT_CONFIG);
    match Config::load(path) {
        Ok(config) => accepted(args, &config),
        Err(error) if args.has("json") => {
            print(&refused_json(path, &error))?;
            Err(Failure::silent(2))
        }
        Err(ConfigError::Invalid(_, problems)) => {
            for problem in &problems {
                complain(&args.path, &format!("{}: {problem}", path.display()));
            }
            Err(Failure::silent(2))
        }
        Err(error) => Err(refused_config(error)),
    }
}

fn accepted(args: &Args, config: &Config) -> Result<ExitCode, Failure> {
    let exposure = config::exposure(&config.path, config.helper.is_some()).unwrap_or_default();
    if args.has("json") {
        print(&accepted_json(config, exposure.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(warning) = exposure {
        warn(&args.path, &warning);
    }
    for key in config.newer_keys() {
        warn(
            &args.path,
            &format!(
                "line {}: {} is ignored: newer_keys lists it, and this bcd does not know it",
                key.line, key.name
            ),
        );
    }
    print(&effective(config))?;
    Ok(ExitCode::SUCCESS)
}

/// The effective configuration, itself a configuration.
fn effective(config: &Config) -> String {
    let mut text = format!("# {}, with every default\n", config.path.display());
    let mut section = "";
    for setting in config.settings() {
        let Some(value) = &setting.value else {
            continue;
        };
        if setting.section != section {
            section = setting.section;
            let _ = writeln!(text, "\n[{section}]");
        }
        let value = match value {
            Value::String(value) => fresh::string(value),
            Value::Integer(value) => value.to_string(),
            Value::Boolean(value) => value.to_string(),
        };
        let note = if setting.line.is_none() {
            "  # default"
        } else {
            ""
        };
        let _ = writeln!(text, "{} = {value}{note}", setting.key);
    }
    text
}

fn accepted_json(config: &Config, exposure: Option<&str>) -> String {
    // By qualified name: a section may have the name of a key.
    let keys: Vec<String> = config
        .settings()
        .iter()
        .filter_map(|setting| {
            let name = qualify(setting.section, setting.key);
            setting.value.as_ref().map(|value| member(&name, value))
        })
        .collect();
    let newer: Vec<String> = config
        .newer_keys()
        .iter()
        .map(|key| member(&key.name, &key.value))
        .collect();
    let warnings: Vec<String> = exposure.iter().map(|text| quote(text)).collect();
    format!(
        "{{\"path\":{},\"ok\":true,\"config\":{{{}}},\"newer_keys\":{{{}}},\"warnings\":[{}]}}\n",
        quote(&config.path.to_string_lossy()),
        keys.join(","),
        newer.join(","),
        warnings.join(",")
    )
}

fn member(key: &str, value: &Value) -> String {
    let value = match value {
        Value::String(value) => quote(value),
        Value::Integer(value) => value.to_string(),
        Value::Boolean(value) => value.to_string(),
    };
    format!("{}:{value}", quote(key))
}

fn refused_json(path: &Path, error: &ConfigError) -> String {
    let problem = |problem: &Problem| {
        let line = problem
            .line
            .map_or("null".to_owned(), |line| line.to_string());
        let message = quote(&problem.to_string());
        format!(
            "{{\"line\":{line},\"key\":{},\"message\":{message}}}",
            quote(&problem.key)
        )
    };
    let problems: Vec<String> = match error.problems() {
        [] => vec![format!(
            "{{\"line\":null,\"key\":\"\",\"message\":{}}}",
            quote(&super::chain(error))
        )],
        problems => problems.iter().map(problem).collect(),
    };
    format!(
        "{{\"path\":{},\"ok\":false,\"problems\":[{}]}}\n",
        quote(&path.to_string_lossy()),
        problems.join(",")
    )
}
