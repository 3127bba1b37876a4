//! `better-compute commands`: run, list, show and cancel commands on nodes.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, complain, one_line, print, print_bytes};
use bcd::sys::fs::Dir;

use super::ago::{ago, parse_span, span};
use super::client::{self, Client, DIR, JSON, Patient, Problem};
use super::table;
use crate::ids;
use crate::json::{Json, Object};
use crate::registry::now_ms;

const WAIT_S: u32 = 25;
/// How long past a command's deadline its node is waited for.
const LAST_WAIT_MS: i64 = 60_000;
const PARAMS_MAX: usize = 48 * 1024;
const DEPTH_MAX: usize = 8;
const LIMIT_MAX: u32 = 1_000;
/// Of a finding, in a table.
const READINGS: usize = 10;

pub(super) const COMMAND: Command = Command::group(
    "commands",
    "run commands on nodes, and see what became of them",
    &[
        Command::new(
            "run",
            "have a node do something, once",
            &[
                Flag::values("param", "NAME=VALUE", "A parameter of the kind"),
                Flag::value("params-json", "JSON", "All parameters, as a JSON object"),
                Flag::value(
                    "params-base64",
                    "BASE64",
                    "The encoded parameters, of a kind this program does not know",
                ),
                Flag::value(
                    "deadline",
                    "SPAN",
                    "When it must have started, 1s to 30d from now (default 1h)",
                ),
                Flag::switch("wait", "Wait until it is over; exit 1 unless it succeeded"),
                DIR,
                JSON,
            ],
            run,
        )
        .details(
            "Kinds and their parameters:\n  \
             node.reboot   delay_s (0 to 600), reason\n  \
             logs.collect  path (a file beneath /var/log), or unit, since and until (spans before now,\n                \
             such as 1h, or since_ms, until_ms), boot (0, -1 ...), kernel; and max_bytes\n  \
             node.facts    none\n  \
             diag.memory   max_bytes (of memory to test, 1 GiB unless given), seconds (60), passes (1)\n  \
             diag.disks    disk (one alone)\n  \
             diag.network  interface (one alone), seconds (to watch, 3)\n  \
             diag.dcgm     level (1 to 4)\n\
             The command is stored before this returns. It runs at most once; a node that is away gets\n\
             it when it comes back, if that is before the deadline.",
        )
        .positionals(&["NODE", "KIND"]),
        Command::new(
            "list",
            "list commands, the newest first",
            &[
                Flag::value("node", "NODE", "Only those of this node"),
                Flag::value(
                    "state",
                    "STATE",
                    "Only those that are queued, sent, pending, running, succeeded, failed\nor unsupported",
                ),
                Flag::value("limit", "N", "At most so many, 1 to 1000 (default 100)"),
                Flag::value("before", "N", "Go on behind a list, with its nextBefore"),
                DIR,
                JSON,
            ],
            list,
        ),
        Command::new(
            "show",
            "show a command, and keep what it put out",
            &[
                Flag::value("output", "FILE", "Write what it put out to FILE (- for standard output)"),
                DIR,
                JSON,
            ],
            show,
        )
        .positionals(&["ID"]),
        Command::new(
            "cancel",
            "ask for a command to be ended",
            &[DIR, JSON],
            cancel,
        )
        .positionals(&["ID"]),
    ],
);

fn run(args: &Args) -> Result<ExitCode, Failure> {
    let node = client::id(args, "node", "node")?;
    // Chosen here, so that the same request twice is one command.
    let id = ids::new("cmd", now_ms());
    let mut asked = Object::new()
        .with("id", id.as_str())
        .with("kind", args.positional(1));
    let given = [
        args.values("param").next().is_some(),
        args.value("params-json").is_some(),
        args.value("params-base64").is_some(),
    ];
    if given.iter().filter(|given| **given).count() > 1 {
        return Err(Failure::refused(
            "--param, --params-json and --params-base64 exclude each other",
        ));
    }
    if let Some(encoded) = args.value("params-base64") {
        asked = asked.with("paramsBase64", encoded);
    } else {
        asked = asked.with("params", params(args)?);
    }
    if let Some(text) = args.value("deadline") {
        let ms = parse_span(text).ok_or_else(|| {
            Failure::refused("--deadline is a number and one of s, m, h, d, such as 90m")
        })?;
        asked = asked.with("deadlineSeconds", ms / 1_000);
    }
    let body = Json::from(asked).to_string();
    let path = format!("nodes/{node}/commands");
    let client = Client::new(args)?;
    let command = match client.json("POST", &path, Some(&body)) {
        // It may have been taken, and only the answer lost: asking once more makes no second one.
        Err(Problem::NoAnswer(_)) => {
            client.json("POST", &path, Some(&body)).map_err(|problem| {
                problem.into_failure().hint(format!(
                    "if it was taken after all, it is {id}: better-compute commands show {id}"
                ))
            })?
        }
        answered => answered?,
    };
    if !args.has("wait") {
        if args.has("json") {
            print(&format!("{command}\n"))?;
        } else {
            print(&format!("{id}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    wait(args, command)
}

/// The parameters of `--param` or `--params-json`.
fn params(args: &Args) -> Result<Json, Failure> {
    if let Some(text) = args.value("params-json") {
        return Json::parse(text.as_bytes(), PARAMS_MAX, DEPTH_MAX)
            .map_err(|error| Failure::refused(format!("--params-json is not JSON: {error}")));
    }
    let mut members: Vec<(String, Json)> = Vec::new();
    for given in args.values("param") {
        let (name, value) = given
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| Failure::refused("--param is NAME=VALUE"))?;
        if members.iter().any(|(known, _)| known == name) {
            return Err(Failure::refused("a parameter is given twice"));
        }
        members.push((name.to_owned(), value.into()));
    }
    Ok(Json::Object(members))
}

/// Waits until a command is over, telling each change, and shows it.
pub(super) fn wait(args: &Args, mut command: Json) -> Result<ExitCode, Failure> {
    let id = command.text("id").to_owned();
    complain(&args.path, &format!("{id} is stored; waiting for the node"));
    let mut patient = Patient::new(args)?;
    let mut told = String::new();
    loop {
        let now = doing(&command);
        if now != told {
            complain(&args.path, &now);
            told = now;
        }
        if command.flag("over") {
            break;
        }
        let deadline = command.number("deadlineMs").unwrap_or(0);
        if command.text("state") == "sent" && now_ms() > deadline + LAST_WAIT_MS {
            return Err(Failure::failed(format!(
                "the node was sent {id} and has not said what became of it by its deadline"
            ))
            .hint(format!(
                "better-compute commands show {id} shows it when it has"
            )));
        }
        let seen = command.text("seen").to_owned();
        command = patient.get(&format!("commands/{id}?wait={WAIT_S}&seen={seen}"), false)?;
    }
    match args.has("json") {
        true => print(&format!("{command}\n"))?,
        false => print(&text_of(&command))?,
    }
    Ok(match command.text("state") {
        "succeeded" => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    })
}

/// Where a command is, for a person who waits.
fn doing(command: &Json) -> String {
    let mut text = command.text("state").to_owned();
    if let Some(progress) = command.get("progress") {
        if let Some(percent) = progress.number("percent") {
            text.push_str(&format!(" {percent} %"));
        }
        if !progress.text("message").is_empty() {
            text.push_str(&format!(" {}", progress.text("message")));
        }
    }
    text
}

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let mut path = "commands?".to_owned();
    if let Some(node) = args.value("node") {
        let node = client::checked_id(node, "node", "node")?;
        path.push_str(&format!("node={node}&"));
    }
    if let Some(state) = args.value("state") {
        let states = [
            "queued",
            "sent",
            "pending",
            "running",
            "succeeded",
            "failed",
            "unsupported",
        ];
        if !states.contains(&state) {
            return Err(Failure::refused(format!(
                "--state is one of {}",
                states.join(", ")
            )));
        }
        path.push_str(&format!("state={state}&"));
    }
    let number = |name: &str, max: u64| match args.value(name) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(Failure::refused(format!(
                "--{name} is a number from 1 to {max}"
            ))),
        },
    };
    if let Some(limit) = number("limit", LIMIT_MAX.into())? {
        path.push_str(&format!("limit={limit}&"));
    }
    if let Some(before) = number("before", i64::MAX.unsigned_abs())? {
        path.push_str(&format!("before={before}&"));
    }
    let answer = Client::new(args)?.json("GET", path.trim_end_matches(['&', '?']), None)?;
    if args.has("json") {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = now_ms();
    let commands = answer.get("commands").map(Json::items).unwrap_or_default();
    let rows: Vec<Vec<String>> = commands
        .iter()
        .map(|command| {
            let why = [command.text("reason"), command.text("message")];
            let why = why.join(" ");
            vec![
                command.text("id").to_owned(),
                command.text("nodeId").to_owned(),
                command.text("kind").to_owned(),
                doing(command),
                ago(command.number("createdAtMs"), now),
                why.trim().chars().take(60).collect(),
            ]
        })
        .collect();
    print(&table::render(
        &["COMMAND", "NODE", "KIND", "STATE", "MADE", "WHY"],
        &rows,
    ))?;
    if let Some(next) = answer.number("nextBefore") {
        complain(
            &args.path,
            &format!("there are more: go on with --before {next}"),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "cmd", "command")?;
    let client = Client::new(args)?;
    let command = client.json("GET", &format!("commands/{id}"), None)?;
    if let Some(path) = args.value("output") {
        let bytes = output(&client, &id, &command)?;
        if path == "-" {
            print_bytes(&bytes)?;
            return Ok(ExitCode::SUCCESS);
        }
        write(Path::new(path), &bytes)?;
    }
    match args.has("json") {
        true => print(&format!("{command}\n"))?,
        false => print(&text_of(&command))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All that a command put out.
fn output(client: &Client, id: &str, command: &Json) -> Result<Vec<u8>, Failure> {
    let Some(output) = command.get("output") else {
        return Err(match command.flag("over") {
            true => Failure::failed(format!("{id} is over, and put nothing out")),
            false => Failure::failed(format!("{id} has put nothing out yet")).hint(
                "what it puts out comes when it is over: better-compute commands show says so",
            ),
        });
    };
    match output.text("state") {
        "stored" | "released" => {}
        "fetching" => {
            return Err(Failure::failed(format!(
                "{} of {} bytes of the output of {id} are here",
                output.number("received").unwrap_or(0),
                output.number("size").unwrap_or(0)
            ))
            .hint("the rest comes when the node has a session: try again later"));
        }
        "damaged" => {
            return Err(Failure::failed(format!(
                "the output of {id} came, but it was not what the node said it was: it is not kept"
            )));
        }
        _ => {
            return Err(Failure::failed(format!(
                "the output of {id} was gone from the node before it could be fetched"
            )));
        }
    }
    let size = output.number("size").unwrap_or(0);
    let mut bytes = Vec::new();
    while i64::try_from(bytes.len()).unwrap_or(i64::MAX) < size {
        let piece = client.bytes(&format!("commands/{id}/output?offset={}", bytes.len()))?;
        if piece.is_empty() {
            return Err(Failure::failed(format!(
                "the output of {id} ends after {} of {size} bytes",
                bytes.len()
            )));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Writes a file whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| Failure::refused("--output names no file"))?
        .to_string_lossy();
    Dir::open(parent)
        .map_err(Failure::refused)?
        .write_atomic(&name, bytes, 0o600)
        .map_err(Failure::failed)
}

fn cancel(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "cmd", "command")?;
    let command = Client::new(args)?.json("POST", &format!("commands/{id}/cancel"), None)?;
    match args.has("json") {
        true => print(&format!("{command}\n"))?,
        false if command.flag("over") => print(&format!("cancelled {id}: it was not sent yet\n"))?,
        false => print(&format!("asked the node to cancel {id}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Of a log that was collected and has nothing in it.
const NOTHING_LOGGED: &str = "nothing was logged there: see that the unit's name is right (systemctl list-units on the node), \
     and the times and the boot that were asked for";

/// Of a diagnosis that found nothing to look at.
const NOTHING_FOUND: &str = "there is nothing on this machine that it looks at";

/// A command for a person.
fn text_of(command: &Json) -> String {
    let now = now_ms();
    let at = |name: &str| command.number(name).map(|at| ago(Some(at), now));
    let deadline = command
        .number("deadlineMs")
        .map(|deadline| match deadline > now {
            true => format!("in {}", span(deadline.saturating_sub(now))),
            false => ago(Some(deadline), now),
        });
    let shown = |name: &str| {
        let value = command.get(name)?;
        (*value != Json::Object(Vec::new())).then(|| value.to_string())
    };
    let output = command.get("output").map(|output| {
        let how = match output.text("state") {
            "stored" | "released" => ": commands show ID --output FILE",
            _ => "",
        };
        format!(
            "{} of {} bytes, {}{how}",
            output.number("received").unwrap_or(0),
            output.number("size").unwrap_or(0),
            output.text("state")
        )
    });
    let text = |name: &str| Some(command.text(name).to_owned());
    let result = command.get("result");
    let hint = match command.text("kind") {
        "logs.collect" if result.is_some_and(|result| result.number("size") == Some(0)) => {
            Some(NOTHING_LOGGED.to_owned())
        }
        kind if kind.starts_with("diag.")
            && command.text("state") == "succeeded"
            && command
                .get("findings")
                .is_some_and(|all| all.items().is_empty()) =>
        {
            Some(NOTHING_FOUND.to_owned())
        }
        _ => None,
    };
    // Of a diagnosis the findings below say more than its result.
    let diagnosis = command.get("findings").is_some();
    let verdict = result.filter(|_| diagnosis).map(|result| {
        let count = |name: &str| result.number(name).unwrap_or(0);
        format!(
            "{} ({} ok, {} unknown, {} warn, {} fail)",
            result.text("verdict"),
            count("ok"),
            count("unknown"),
            count("warn"),
            count("fail")
        )
    });
    let lines = [
        ("command", text("id")),
        ("node", text("nodeId")),
        ("kind", text("kind")),
        ("parameters", shown("params")),
        ("state", Some(doing(command))),
        ("reason", text("reason")),
        ("message", text("message")),
        ("verdict", verdict),
        ("result", shown("result").filter(|_| !diagnosis)),
        ("output", output),
        ("hint", hint),
        ("made", at("createdAtMs")),
        ("deadline", deadline),
        ("sent", at("sentAtMs")),
        ("over", at("finishedAtMs")),
    ];
    let mut out = String::new();
    for (name, value) in lines {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            out.push_str(&format!("{:14}{}\n", format!("{name}:"), one_line(&value)));
        }
    }
    if let Some(findings) = command.get("findings").map(Json::items)
        && !findings.is_empty()
    {
        out.push('\n');
        out.push_str(&findings_text(findings));
    }
    out
}

/// What a diagnosis found, a line each: what is wrong, or else the first of what was read.
fn findings_text(findings: &[Json]) -> String {
    let rows: Vec<Vec<String>> = findings
        .iter()
        .flat_map(|finding| {
            let readings = match finding.get("readings") {
                Some(Json::Object(readings)) => readings.as_slice(),
                _ => &[],
            };
            let shown = readings.iter().filter(|(name, _)| {
                // What it is, and not how.
                !["model", "serial", "firmware", "size_bytes"].contains(&name.as_str())
            });
            let readings: Vec<String> = shown
                .take(READINGS)
                .map(|(name, value)| match value {
                    Json::Text(text) => format!("{name}={text}"),
                    value => format!("{name}={value}"),
                })
                .collect();
            let problems = finding.get("problems").map(Json::items).unwrap_or_default();
            let mut said: Vec<String> = problems
                .iter()
                .filter_map(|problem| Some(problem.as_text()?.to_owned()))
                .collect();
            said.push(readings.join(" "));
            let row = |n: usize, text: String| match n {
                0 => vec![
                    finding.text("subject").to_owned(),
                    finding.text("verdict").to_owned(),
                    text,
                ],
                // Further lines belong to the one above.
                _ => vec![" ".to_owned(), " ".to_owned(), text],
            };
            said.into_iter()
                .filter(|text| !text.is_empty())
                .enumerate()
                .map(|(n, text)| row(n, text))
                .collect::<Vec<_>>()
        })
        .collect();
    table::render(&["FOUND", "VERDICT", "WHAT"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_nothing_in_it_says_why_that_may_be() {
        let shown = |kind: &str, size: u32| {
            let text = format!(r#"{{"id":"cmd_a","kind":"{kind}","result":{{"size":{size}}}}}"#);
            text_of(&Json::parse(text.as_bytes(), 4096, 8).unwrap())
        };
        assert!(shown("logs.collect", 0).contains("hint:         nothing was logged there"));
        assert!(!shown("logs.collect", 1).contains("hint:"));
        assert!(!shown("node.facts", 0).contains("hint:"));
        let nothing = br#"{"id":"cmd_a","kind":"diag.disks","state":"succeeded","findings":[]}"#;
        let text = text_of(&Json::parse(nothing, 4096, 8).unwrap());
        assert!(
            text.contains("hint:         there is nothing on this machine"),
            "{text}"
        );
    }

    #[test]
    fn a_diagnosis_is_a_table_with_what_is_wrong_first() {
        let command = Json::parse(
            br#"{"id":"cmd_a","kind":"diag.disks","state":"succeeded","over":true,
                 "result":{"verdict":"fail","ok":1,"unknown":0,"warn":0,"fail":1,"reports":1,"problems":["b: dead"]},
                 "findings":[
                   {"subject":"a","verdict":"ok","problems":[],"readings":{"model":"M","temperature_c":31,"self_test":"passed"}},
                   {"subject":"b","verdict":"fail","problems":["it is\u001b[1m dead","7 media errors"],"readings":{"used_percent":3}}]}"#,
            10_000,
            8,
        )
        .unwrap();
        let text = text_of(&command);
        let (head, table) = text.split_once("\n\n").unwrap();
        assert!(head.contains("verdict:      fail (1 ok, 0 unknown, 0 warn, 1 fail)"));
        assert!(!head.contains("result:"));
        assert_eq!(
            table,
            "FOUND  VERDICT  WHAT\n\
             a      ok       temperature_c=31 self_test=passed\n\
             b      fail     it is\\u{1b}[1m dead\n\
             \u{20}               7 media errors\n\
             \u{20}               used_percent=3\n"
        );
    }
}
