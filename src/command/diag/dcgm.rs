//! `diag.dcgm`: NVIDIA's own diagnosis of its GPUs, `dcgmi diag`, where it is installed.
//!
//! Its JSON has changed from version to version: tests stand in categories, or alone; results name GPUs in one
//! text or an entity each; warnings are texts or objects; lines of complaints stand before it, and
//! nulls between. Whatever has `results` is taken for a test.
use std::str::Chars;
use std::time::Duration;

use nanoserde::{DeJson, DeJsonErr, DeJsonState, DeJsonTok};

use super::{Finding, Report, shown};
use crate::command::kinds::{UNSUPPORTED, decode, explained};
use crate::command::machine::Failure;
use crate::command::work::{Context, UNKNOWN};
use crate::crypto::json;
use crate::proto::{DiagDcgmParams, DiagVerdict};
use crate::sys::process::{Run, RunError, find};

const PROGRAM: &str = "dcgmi";
/// How long each level may take. Level 4 is stated as one to two hours.
const LEVELS: [Duration; 4] = [
    Duration::from_secs(10 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(90 * 60),
    Duration::from_secs(170 * 60),
];
/// Of what it prints.
const OUTPUT: usize = 1024 * 1024;
const DEPTH: usize = 32;
/// Tests told of.
const TESTS: usize = 512;

/// Whether this machine has it.
pub fn is_there() -> bool {
    find(PROGRAM).is_some()
}

/// A run of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcgm {
    level: u32,
}

impl Dcgm {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DiagDcgmParams = decode(params)?;
        match params.level {
            0 => Ok(Self { level: 1 }),
            level @ 1..=4 => Ok(Self { level }),
            level => Err(["level is ", &shown(level.into()), ", not one of 1 .. 4"].concat()),
        }
    }

    /// # Errors
    /// It is not there, or comes to no result; the command is to stop, or what was found cannot be told.
    pub fn run(self, context: &mut Context, report: &mut Report<'_>) -> Result<(), Failure> {
        let program = find(PROGRAM).ok_or_else(|| {
            let message = "diag.dcgm needs dcgmi, which this machine does not have: install DCGM";
            Failure::new(UNSUPPORTED, message)
        })?;
        let level = self.level.to_string();
        let arguments = ["diag", "-r", &level, "-j"].map(str::to_owned);
        let within = usize::try_from(self.level)
            .ok()
            .and_then(|level| LEVELS.get(level - 1));
        let run = Run {
            program: &program,
            arguments: &arguments,
            within: within.copied().unwrap_or_default(),
            stop: &context.stop,
        };
        let mut output = Vec::new();
        let progress = &mut context.progress;
        progress.say(UNKNOWN, || ["dcgmi diag -r ", &level].concat());
        let ended = run.run(&mut |bytes| {
            if output.len() + bytes.len() > OUTPUT {
                return Err(std::io::Error::other("it is longer than 1 MiB"));
            }
            output.extend_from_slice(bytes);
            Ok(())
        });
        let ended = ended.map_err(|error| match error {
            RunError::TimedOut { .. } => explained("TimedOut", &error),
            _ => explained("DiagFailed", &error),
        })?;
        let findings = findings(&output);
        // It ends with a failure also when a test does: what it printed decides.
        if findings.is_empty() {
            let status = ended.status.to_string();
            let printed = String::from_utf8_lossy(&output);
            let printed = printed
                .lines()
                .rfind(|line| !line.trim().is_empty())
                .unwrap_or_default();
            let said = match ended.complaint.as_str() {
                "" => printed.chars().take(256).collect(),
                complaint => complaint.to_owned(),
            };
            let message = ["dcgmi gave no results: ", &status, ": ", &said].concat();
            return Err(Failure::new("DiagFailed", message));
        }
        for finding in findings {
            report.add(finding)?;
        }
        Ok(())
    }
}

/// JSON, as far as it matters here.
#[derive(Debug, PartialEq)]
enum Value {
    Object(Vec<(String, Value)>),
    Array(Vec<Value>),
    Text(String),
    Number(u64),
    Other,
}

impl DeJson for Value {
    fn de_json(state: &mut DeJsonState, input: &mut Chars<'_>) -> Result<Self, DeJsonErr> {
        Ok(match state.tok {
            DeJsonTok::CurlyOpen => {
                state.next_tok(input)?;
                let mut members = Vec::new();
                while state.tok != DeJsonTok::CurlyClose {
                    let name = String::de_json(state, input)?;
                    state.colon(input)?;
                    members.push((name, Self::de_json(state, input)?));
                    state.eat_comma_curly(input)?;
                }
                state.next_tok(input)?;
                Self::Object(members)
            }
            DeJsonTok::BlockOpen => {
                state.next_tok(input)?;
                let mut items = Vec::new();
                while state.tok != DeJsonTok::BlockClose {
                    items.push(Self::de_json(state, input)?);
                    state.eat_comma_block(input)?;
                }
                state.next_tok(input)?;
                Self::Array(items)
            }
            DeJsonTok::Str => Self::Text(String::de_json(state, input)?),
            DeJsonTok::U64(number) => {
                state.next_tok(input)?;
                Self::Number(number)
            }
            _ => {
                state.next_tok(input)?;
                Self::Other
            }
        })
    }
}

impl Value {
    fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members
                .iter()
                .find_map(|(known, value)| (known == name).then_some(value)),
            _ => None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.member(name)? {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn items(&self, name: &str) -> &[Self] {
        match self.member(name) {
            Some(Self::Array(items)) => items,
            _ => &[],
        }
    }
}

/// A finding for each test in what dcgmi printed; none when there is none in it.
pub fn findings(output: &[u8]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let begin = output.iter().position(|byte| *byte == b'{');
    let end = output.iter().rposition(|byte| *byte == b'}');
    if let (Some(begin), Some(end)) = (begin, end)
        && let Some(output) = output.get(begin..=end)
        && let Ok(text) = json::check(output, OUTPUT, DEPTH)
        && let Ok(value) = Value::deserialize_json(text)
    {
        tests(&value, "", &mut findings);
    }
    findings
}

/// The tests in `value` and below it.
fn tests(value: &Value, category: &str, to: &mut Vec<Finding>) {
    match value {
        _ if to.len() == TESTS => {}
        Value::Array(items) => {
            for item in items {
                tests(item, category, to);
            }
        }
        Value::Object(_) if !value.items("results").is_empty() => {
            to.push(test(value, category));
        }
        Value::Object(members) => {
            let category = value.text("category").unwrap_or(category);
            for (_, member) in members {
                tests(member, category, to);
            }
        }
        _ => {}
    }
}

fn test(test: &Value, category: &str) -> Finding {
    let name = test.text("name").unwrap_or("unnamed");
    let mut finding = match category {
        "" => Finding::new(name),
        category => Finding::new(&[category, "/", name].concat()),
    };
    for result in test
        .items("results")
        .iter()
        .chain(test.member("test_summary"))
    {
        let whose = whose(result);
        let status = result.text("status").unwrap_or_default();
        let verdict = match status.to_ascii_lowercase().as_str() {
            "pass" => DiagVerdict::OK,
            "warn" | "warning" => DiagVerdict::WARN,
            "fail" => DiagVerdict::FAIL,
            // Skip, Not Run: nobody knows.
            _ => DiagVerdict::UNKNOWN,
        };
        finding.raise(verdict);
        let reading = match whose.as_str() {
            "" => "status",
            whose => whose,
        };
        finding.text(reading, status);
        if verdict == DiagVerdict::OK {
            continue;
        }
        let mut said = false;
        for warning in result.items("warnings").iter().chain(result.items("info")) {
            let text = match warning {
                Value::Text(text) => text,
                warning => warning.text("warning").unwrap_or_default(),
            };
            if !text.is_empty() {
                // Line breaks in it say nothing.
                let text = text.replace(['\n', '\r'], " ");
                finding.say(
                    verdict,
                    &[&whose, if whose.is_empty() { "" } else { ": " }, &text],
                );
                said = true;
            }
        }
        // A summary repeats its results.
        if !said
            && (verdict == DiagVerdict::WARN || verdict == DiagVerdict::FAIL)
            && !whose.is_empty()
        {
            finding.say(verdict, &[&whose, ": ", status]);
        }
    }
    finding
}

/// "GPU 3", or "GPU 0,1,2" of old versions; empty for the whole machine.
fn whose(result: &Value) -> String {
    let id = |name: &str| match result.member(name) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Number(number)) => shown(*number),
        _ => String::new(),
    };
    match (id("gpu_ids"), id("entity_id")) {
        (gpus, _) if !gpus.is_empty() => ["GPU ", &gpus].concat(),
        (_, entity) if !entity.is_empty() => {
            [result.text("entity_group").unwrap_or("GPU"), " ", &entity].concat()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::proto::Message;

    /// As DCGM 3 prints it: one text for all GPUs, warnings as texts, nulls, a complaint first.
    const THREE: &str = r#"WARNING: THIS SHOULD NOT HAPPEN
{"DCGM GPU Diagnostic": {"test_categories": [
  {"category": "Deployment", "tests": [
    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}, null,
    {"name": "Persistence Mode", "results": [{"gpu_ids": "0,1", "status": "WARN",
      "warnings": ["Persistence mode for GPU 0 is disabled.\nEnable it."]}]}]},
  {"category": "Hardware", "tests": [
    {"name": "GPU Memory", "results": [
      {"gpu_ids": "0", "info": ["GPU 0 Allocated 84 %"], "status": "Pass"},
      {"gpu_ids": "1", "status": "Fail"}]}]}],
  "version": "3.1.7"}}
"#;

    /// As DCGM 4 prints it: entities, warnings as objects, a summary.
    const FOUR: &str = r#"{"DCGM Diagnostic": {"test_categories": [
  {"category": "Deployment", "tests": [{"name": "software",
    "results": [
      {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"},
      {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 1, "status": "Fail", "warnings": [
        {"error_category": 8, "error_id": 29, "error_severity": 5, "warning": "Persistence mode is off."}]}],
    "test_summary": {"status": "Fail"}}]},
  {"category": "Integration", "tests": [{"name": "pcie",
    "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Skip"}], "test_summary": {"status": "Skip"}}]}]},
 "entity_groups": [{"entities": [{"device_id": "2330", "entity_id": 0, "serial_num": "165"}], "entity_group": "GPU"}],
 "metadata": {"DCGM Version": "4.2.3", "Driver Version Detected": "570.86"}}"#;

    fn told(output: &str) -> Vec<(String, DiagVerdict, Vec<String>)> {
        let findings = findings(output.as_bytes()).into_iter();
        findings
            .map(|f| (f.0.subject, f.0.verdict, f.0.problems))
            .collect()
    }

    #[test]
    fn each_test_is_a_finding_in_every_versions_form() {
        let said = |text: &str| vec![text.to_owned()];
        assert_eq!(
            told(THREE),
            [
                ("Deployment/Denylist".to_owned(), DiagVerdict::OK, vec![]),
                (
                    "Deployment/Persistence Mode".to_owned(),
                    DiagVerdict::WARN,
                    said("GPU 0,1: Persistence mode for GPU 0 is disabled. Enable it.")
                ),
                (
                    "Hardware/GPU Memory".to_owned(),
                    DiagVerdict::FAIL,
                    said("GPU 1: Fail")
                ),
            ]
        );
        assert_eq!(
            told(FOUR),
            [
                (
                    "Deployment/software".to_owned(),
                    DiagVerdict::FAIL,
                    said("GPU 1: Persistence mode is off.")
                ),
                ("Integration/pcie".to_owned(), DiagVerdict::UNKNOWN, vec![]),
            ]
        );
        let alone = r#"{"tests":[{"results":[{"status":"Pass"}],"name":"memory"}]}"#;
        assert_eq!(
            told(alone),
            [("memory".to_owned(), DiagVerdict::OK, vec![])]
        );
        let four = findings(FOUR.as_bytes());
        let readings: Vec<_> = four[0]
            .0
            .readings
            .iter()
            .map(|r| (&*r.name, &*r.text))
            .collect();
        assert_eq!(
            readings,
            [("GPU 0", "Pass"), ("GPU 1", "Fail"), ("status", "Fail")]
        );
    }

    #[test]
    fn what_has_no_results_has_no_findings() {
        let deep = "[".repeat(100);
        for output in [
            "",
            "Error: unable to connect to host engine",
            "{}",
            "}{",
            "{",
            r#"{"results":[]}"#,
            r#"{"tests":[null,1,"x",{"name":"a"}]}"#,
            r#"{"a":tru}"#,
            &deep,
        ] {
            assert!(told(output).is_empty(), "{output}");
        }
    }

    #[test]
    fn levels_are_those_that_dcgm_has() {
        let read = |level| Dcgm::read(&DiagDcgmParams { level }.encode_to_vec());
        assert_eq!(read(0).unwrap().level, 1);
        assert_eq!(read(4).unwrap().level, 4);
        assert_eq!(read(5).unwrap_err(), "level is 5, not one of 1 .. 4");
    }
}
