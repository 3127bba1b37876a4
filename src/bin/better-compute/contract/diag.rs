//! What diagnoses found, as an operator reads it.

use bcd::proto::{DiagFinding, DiagReport, DiagResult, DiagVerdict};

use crate::json::{Json, Object};

/// Of a finding: no node tells more.
const READINGS: usize = 128;

/// A diagnosis' result.
pub fn show_result(result: DiagResult) -> Json {
    Object::new()
        .with("verdict", verdict(result.verdict))
        .with("ok", result.ok)
        .with("unknown", result.unknown)
        .with("warn", result.warn)
        .with("fail", result.fail)
        .with("reports", result.reports)
        .with("problems", texts(result.problems))
        .into()
}

/// A part of what a diagnosis found.
pub fn show_report(report: DiagReport) -> Object {
    let findings: Vec<Json> = report.findings.into_iter().map(finding).collect();
    Object::new()
        .with("command_id", report.command_id)
        .with("kind", report.kind)
        .with("part", report.part)
        .with("findings", findings)
}

fn finding(finding: DiagFinding) -> Json {
    let mut readings: Vec<(String, Json)> = Vec::new();
    for reading in finding.readings.into_iter().take(READINGS) {
        // A node names none twice; JSON must not either.
        if !readings.iter().any(|(known, _)| *known == reading.name) {
            let value = match reading.text.is_empty() {
                true => reading.number.into(),
                false => reading.text.into(),
            };
            readings.push((reading.name, value));
        }
    }
    Object::new()
        .with("subject", finding.subject)
        .with("verdict", verdict(finding.verdict))
        .with("problems", texts(finding.problems))
        .with("readings", Json::Object(readings))
        .into()
}

fn texts(texts: Vec<String>) -> Vec<Json> {
    texts.into_iter().map(Json::from).collect()
}

/// `ok`, `unknown`, `warn` or `fail`; the number of one not known.
fn verdict(verdict: DiagVerdict) -> String {
    match verdict
        .name()
        .and_then(|name| name.strip_prefix("DIAG_VERDICT_"))
    {
        Some("UNSPECIFIED") => "unknown".to_owned(),
        Some(name) => name.to_ascii_lowercase(),
        None => verdict.0.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bcd::proto::DiagReading;

    use super::*;

    #[test]
    fn a_finding_reads_as_what_it_says_and_names_nothing_twice() {
        let reading = |name: &str, number, text: &str| DiagReading {
            name: name.to_owned(),
            number,
            text: text.to_owned(),
        };
        let report = DiagReport {
            command_id: "cmd_1".to_owned(),
            kind: "diag.disks".to_owned(),
            part: 1,
            findings: vec![DiagFinding {
                subject: "nvme-a".to_owned(),
                verdict: DiagVerdict::WARN,
                problems: vec!["7 media errors".to_owned()],
                readings: vec![
                    reading("temperature_c", -3, ""),
                    reading("model", 0, "X"),
                    reading("model", 0, "Y"),
                ],
            }],
        };
        let shown = Json::from(show_report(report)).to_string();
        assert_eq!(
            shown,
            r#"{"command_id":"cmd_1","kind":"diag.disks","part":1,"findings":[{"subject":"nvme-a","verdict":"warn","problems":["7 media errors"],"readings":{"temperature_c":-3,"model":"X"}}]}"#
        );
        let result = DiagResult {
            verdict: DiagVerdict(9),
            ok: 2,
            ..DiagResult::default()
        };
        assert_eq!(
            show_result(result).to_string(),
            r#"{"verdict":"9","ok":2,"unknown":0,"warn":0,"fail":0,"reports":0,"problems":[]}"#
        );
    }
}
