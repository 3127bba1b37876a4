//! Command kinds: what their parameters are, and how their results read.

use bcd::crypto::{base64, digest};
use bcd::proto::{
    BootMode, DaemonSection, DeployImageParams, DeployImageResult, DiagDcgmParams, DiagDisksParams,
    DiagMemoryParams, DiagNetworkParams, DiagResult, DisksWipeParams, DisksWipeResult, Facts,
    FileSource, JournalctlSource, LogsCollectParams, LogsCollectParamsSource, LogsCollectResult,
    MachineBootParams, MachineBootResult, Message, OsFiles, RebootParams, RebootResult,
};

use super::diag;
use super::facts;
use super::given::Given;
use super::sections;
use crate::json::{Json, Object};

const DELAY_MAX_S: i64 = 600;
const LOGS_MAX_BYTES: i64 = 16 * 1024 * 1024;
const TEXT_MAX: usize = 256;
const PATH_MAX: usize = 1024;
const INTERFACE_MAX: usize = 64;

/// The kinds this program knows the parameters of.
const KNOWN: &[&str] = &[
    "node.reboot",
    "logs.collect",
    "node.facts",
    "daemon.upgrade",
    "diag.memory",
    "diag.disks",
    "diag.network",
    "diag.dcgm",
];

/// The encoded parameters of a command.
///
/// # Errors
/// What is wrong with them, in words.
pub fn encode_params(kind: &str, params: &Json, now_ms: i64) -> Result<Vec<u8>, String> {
    let mut given = Given::new(format!("the parameters of {kind}"), params)?;
    match kind {
        "node.reboot" => {
            let delay = given.number("delay_s", 0, DELAY_MAX_S)?.unwrap_or(0);
            let params = RebootParams {
                delay_s: u32::try_from(delay).unwrap_or(0),
                reason: given.text("reason", TEXT_MAX)?,
            };
            given.finish(&["delay_s", "reason"])?;
            Ok(params.encode_to_vec())
        }
        "logs.collect" => logs_collect(given, now_ms),
        "node.facts" => {
            given.finish(&[])?;
            Ok(Vec::new())
        }
        "daemon.upgrade" => Ok(sections::daemon(given)?.encode_to_vec()),
        "diag.memory" => {
            let bytes = given.number("max_bytes", 1, i64::MAX)?;
            let params = DiagMemoryParams {
                max_bytes: bytes.unwrap_or(0).unsigned_abs(),
                seconds: small(&mut given, "seconds", 3_600)?,
                passes: small(&mut given, "passes", 1_000)?,
            };
            given.finish(&["max_bytes", "seconds", "passes"])?;
            Ok(params.encode_to_vec())
        }
        "diag.disks" => {
            let params = DiagDisksParams {
                disk: given.text("disk", TEXT_MAX)?,
            };
            given.finish(&["disk"])?;
            Ok(params.encode_to_vec())
        }
        "diag.network" => {
            let params = DiagNetworkParams {
                interface: given.text("interface", INTERFACE_MAX)?,
                seconds: small(&mut given, "seconds", 60)?,
            };
            given.finish(&["interface", "seconds"])?;
            Ok(params.encode_to_vec())
        }
        "diag.dcgm" => {
            let params = DiagDcgmParams {
                level: small(&mut given, "level", 4)?,
            };
            given.finish(&["level"])?;
            Ok(params.encode_to_vec())
        }
        "deploy.image" => Err(
            "an image is deployed on a one-time order: better-compute machines deploy makes one"
                .to_owned(),
        ),
        "machine.boot" => Err(
            "a machine is handed over on a one-time order: better-compute machines boot makes one"
                .to_owned(),
        ),
        "disks.wipe" => Err(
            "disks are wiped on a one-time order: better-compute machines wipe makes one"
                .to_owned(),
        ),
        _ => Err(format!(
            "the parameters of {} are not known here, only those of {}: give them encoded, in base64, as paramsBase64",
            bcd::crypto::json::quote(kind),
            KNOWN.join(", ")
        )),
    }
}

/// A number from 1 on; 0, the node's default, when it is not given.
fn small(given: &mut Given, name: &str, max: i64) -> Result<u32, String> {
    let number = given.number(name, 1, max)?.unwrap_or(0);
    Ok(u32::try_from(number).unwrap_or(0))
}

fn logs_collect(mut given: Given, now_ms: i64) -> Result<Vec<u8>, String> {
    let max_bytes = given.number("max_bytes", 1, LOGS_MAX_BYTES)?.unwrap_or(0);
    let source = if given.has("path") {
        let path = given.text("path", PATH_MAX)?;
        let beneath = path.strip_prefix("/var/log/").unwrap_or(&path);
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if beneath.starts_with('/') || !beneath.split('/').all(plain) {
            return Err(
                "path of the parameters of logs.collect must be a file beneath /var/log, without . and .."
                    .to_owned(),
            );
        }
        LogsCollectParamsSource::File(FileSource { path })
    } else {
        let (since_ms, until_ms) = (
            given.moment("since", now_ms)?,
            given.moment("until", now_ms)?,
        );
        if until_ms != 0 && until_ms < since_ms {
            return Err("the parameters of logs.collect end before they begin".to_owned());
        }
        let boot = given.number("boot", -1_000, 0)?;
        LogsCollectParamsSource::Journalctl(JournalctlSource {
            unit: given.text("unit", TEXT_MAX)?,
            since_ms,
            until_ms,
            boot: boot.and_then(|boot| i32::try_from(boot).ok()),
            kernel: given.flag("kernel")?,
        })
    };
    given.finish(&[
        "path (a file), or unit",
        "since",
        "until",
        "boot",
        "kernel (the journal)",
        "and max_bytes",
    ])?;
    let params = LogsCollectParams {
        source: Some(source),
        max_bytes: max_bytes.unsigned_abs(),
    };
    Ok(params.encode_to_vec())
}

/// Encoded parameters as an operator reads them.
pub fn show_params(kind: &str, bytes: &[u8]) -> Json {
    let shown: Option<Json> = match kind {
        "node.reboot" => RebootParams::decode(bytes).ok().map(|params| {
            Object::new()
                .with("delay_s", params.delay_s)
                .with_text("reason", &params.reason)
                .into()
        }),
        "logs.collect" => LogsCollectParams::decode(bytes).ok().map(show_logs_params),
        "node.facts" if bytes.is_empty() => Some(Object::new().into()),
        "daemon.upgrade" => DaemonSection::decode(bytes)
            .ok()
            .map(|section| sections::show_daemon(&section)),
        "diag.memory" => DiagMemoryParams::decode(bytes).ok().map(|params| {
            Object::new()
                .with_some("max_bytes", given_number(params.max_bytes))
                .with_some("seconds", given_number(params.seconds.into()))
                .with_some("passes", given_number(params.passes.into()))
                .into()
        }),
        "diag.disks" => DiagDisksParams::decode(bytes)
            .ok()
            .map(|params| Object::new().with_text("disk", &params.disk).into()),
        "diag.network" => DiagNetworkParams::decode(bytes).ok().map(|params| {
            Object::new()
                .with_text("interface", &params.interface)
                .with_some("seconds", given_number(params.seconds.into()))
                .into()
        }),
        "diag.dcgm" => DiagDcgmParams::decode(bytes).ok().map(|params| {
            Object::new()
                .with_some("level", given_number(params.level.into()))
                .into()
        }),
        "disks.wipe" => DisksWipeParams::decode(bytes).ok().map(show_wipe_params),
        "deploy.image" => DeployImageParams::decode(bytes)
            .ok()
            .map(show_deploy_params),
        "machine.boot" => MachineBootParams::decode(bytes).ok().map(|params| {
            let disk = params.disk.map(|disk| disk.stable_name);
            Object::new()
                .with("order", params.order_id)
                .with("mode", boot_mode(params.mode))
                .with_some("disk", disk)
                .with_text("append", &params.append)
                .with_some("no_fallback", params.no_fallback.then_some(true))
                .into()
        }),
        _ => None,
    };
    shown.unwrap_or_else(|| raw(bytes))
}

/// `kexec`, `reboot` or `power_off`.
fn boot_mode(mode: BootMode) -> String {
    super::word(mode.name(), "BOOT_MODE_", mode.0)
}

/// A number of which 0 means that it was not given.
fn given_number(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

fn show_deploy_params(params: DeployImageParams) -> Json {
    let flag = |name: &'static str, set: bool| set.then_some((name, true));
    let flags = [
        flag("skip_read_back", params.skip_read_back),
        flag("grow_last_partition", params.grow_last_partition),
        flag("new_guids", params.new_guids),
    ];
    let shown = Object::new()
        .with("order", params.order_id)
        .with("disk", params.disk.unwrap_or_default().stable_name)
        .with("url", params.url)
        .with_text("sha256", &digest::hex(&params.sha256))
        .with_some("size_bytes", given_number(params.size_bytes))
        .with_text("unpacked_sha256", &digest::hex(&params.unpacked_sha256))
        .with_some(
            "unpacked_size_bytes",
            given_number(params.unpacked_size_bytes),
        )
        .with_some("files", params.files.map(show_files));
    let flags = flags.into_iter().flatten();
    flags
        .fold(shown, |shown, (name, set)| shown.with(name, set))
        .into()
}

/// Without the secrets in them.
fn show_files(files: OsFiles) -> Json {
    let given = |secret: bool| secret.then_some("(a secret)");
    Object::new()
        .with("join", files.join)
        .with_some("join_token", given(!files.join_token.is_empty()))
        .with_some("user_data", given(!files.user_data.is_empty()))
        .with_text("hostname", &files.hostname)
        .with_text("pool", &files.pool)
        .into()
}

fn show_wipe_params(params: DisksWipeParams) -> Json {
    let disks = params.disks.into_iter().map(|disk| disk.stable_name.into());
    let methods = params.methods.into_iter();
    let methods = methods.map(|method| bcd::deploy::wipe::word(method).into());
    Object::new()
        .with("order", params.order_id)
        .with("disks", disks.collect::<Vec<Json>>())
        .with("methods", methods.collect::<Vec<Json>>())
        .into()
}

fn show_logs_params(params: LogsCollectParams) -> Json {
    let shown = match params.source {
        Some(LogsCollectParamsSource::File(file)) => Object::new().with("path", file.path),
        Some(LogsCollectParamsSource::Journalctl(journal)) => {
            let moment = |ms: i64| (ms != 0).then_some(ms);
            Object::new()
                .with_text("unit", &journal.unit)
                .with_some("since_ms", moment(journal.since_ms))
                .with_some("until_ms", moment(journal.until_ms))
                .with_some("boot", journal.boot)
                .with("kernel", journal.kernel)
        }
        None => Object::new(),
    };
    let max_bytes = (params.max_bytes != 0).then_some(params.max_bytes);
    shown.with_some("max_bytes", max_bytes).into()
}

/// A result as an operator reads it; `None` when there is none.
pub fn show_result(kind: &str, bytes: &[u8]) -> Option<Json> {
    if bytes.is_empty() {
        return None;
    }
    let shown: Option<Json> = match kind {
        "node.reboot" => RebootResult::decode(bytes).ok().map(|result| {
            Object::new()
                .with("boot_id_before", result.boot_id_before)
                .with("boot_id_after", result.boot_id_after)
                .into()
        }),
        "logs.collect" => LogsCollectResult::decode(bytes).ok().map(|result| {
            Object::new()
                .with("size", result.size)
                .with("sha256", digest::hex(&result.sha256))
                .with("truncated", result.truncated)
                .into()
        }),
        "node.facts" => Facts::decode(bytes).ok().map(facts::show),
        "deploy.image" => DeployImageResult::decode(bytes).ok().map(|result| {
            Object::new()
                .with("order", result.order_id)
                .with("unpacked_sha256", digest::hex(&result.unpacked_sha256))
                .with("unpacked_size_bytes", result.unpacked_size_bytes)
                .with("receipt_sha256", digest::hex(&result.receipt_sha256))
                .into()
        }),
        "machine.boot" => MachineBootResult::decode(bytes).ok().map(|result| {
            let initrds: Vec<Json> = result.initrds.into_iter().map(Json::from).collect();
            Object::new()
                .with("order", result.order_id)
                .with("mode", boot_mode(result.mode))
                .with_text("fallback", &result.fallback)
                .with_text("loader", &result.loader)
                .with_text("title", &result.title)
                .with_text("kernel", &result.kernel)
                .with_some("initrds", (!initrds.is_empty()).then_some(initrds))
                .with_text("command_line", &result.command_line)
                .with_some("root_partition", given_number(result.root_partition.into()))
                .into()
        }),
        "disks.wipe" => DisksWipeResult::decode(bytes).ok().map(|result| {
            Object::new()
                .with("order", result.order_id)
                .with("wiped", result.wiped)
                .with("failed", result.failed)
                .with("refused", result.refused)
                .with("receipt_sha256", digest::hex(&result.receipt_sha256))
                .into()
        }),
        kind if kind.starts_with("diag.") => DiagResult::decode(bytes).ok().map(diag::show_result),
        _ => None,
    };
    Some(shown.unwrap_or_else(|| raw(bytes)))
}

/// What this program cannot read.
pub fn raw(bytes: &[u8]) -> Json {
    Object::new().with("base64", base64::encode(bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 10_000_000;

    fn encode(kind: &str, params: &str) -> Result<Vec<u8>, String> {
        let params = Json::parse(params.as_bytes(), 10_000, 8).unwrap();
        encode_params(kind, &params, NOW)
    }

    #[test]
    fn parameters_read_back_as_they_were_given() {
        for (kind, given, shown) in [
            ("node.reboot", "{}", r#"{"delay_s":0}"#),
            (
                "node.reboot",
                r#"{"reason":"kernel","delay_s":"30"}"#,
                r#"{"delay_s":30,"reason":"kernel"}"#,
            ),
            ("node.facts", "{}", "{}"),
            ("node.facts", "null", "{}"),
            ("logs.collect", "{}", r#"{"kernel":false}"#),
            (
                "logs.collect",
                r#"{"unit":"ssh.service","boot":-1,"kernel":"true","since_ms":5,"until":"1h","max_bytes":9}"#,
                r#"{"unit":"ssh.service","since_ms":5,"until_ms":6400000,"boot":-1,"kernel":true,"max_bytes":9}"#,
            ),
            (
                "logs.collect",
                r#"{"path":"/var/log/syslog"}"#,
                r#"{"path":"/var/log/syslog"}"#,
            ),
            (
                "logs.collect",
                r#"{"path":"apt/term.log"}"#,
                r#"{"path":"apt/term.log"}"#,
            ),
            ("diag.memory", "{}", "{}"),
            (
                "diag.memory",
                r#"{"passes":2,"max_bytes":"1048576","seconds":9}"#,
                r#"{"max_bytes":1048576,"seconds":9,"passes":2}"#,
            ),
            ("diag.disks", r#"{"disk":"nvme-a"}"#, r#"{"disk":"nvme-a"}"#),
            (
                "diag.network",
                r#"{"seconds":9,"interface":"eth0"}"#,
                r#"{"interface":"eth0","seconds":9}"#,
            ),
            ("diag.dcgm", r#"{"level":"3"}"#, r#"{"level":3}"#),
        ] {
            let encoded = encode(kind, given).unwrap();
            assert_eq!(show_params(kind, &encoded).to_string(), shown, "{given}");
        }
    }

    #[test]
    fn what_a_kind_does_not_take_is_refused_by_name() {
        for (kind, given, says) in [
            ("node.reboot", "[]", "JSON object"),
            (
                "node.reboot",
                r#"{"delay":5}"#,
                r#"have no "delay": there are delay_s, reason"#,
            ),
            ("node.reboot", r#"{"delay_s":601}"#, "from 0 to 600"),
            ("node.reboot", r#"{"delay_s":-1}"#, "delay_s"),
            ("node.reboot", r#"{"delay_s":1.5}"#, "whole number"),
            ("node.reboot", r#"{"reason":"a\nb"}"#, "reason"),
            ("node.facts", r#"{"a":1}"#, "there are none"),
            (
                "logs.collect",
                r#"{"path":"../shadow"}"#,
                "beneath /var/log",
            ),
            (
                "logs.collect",
                r#"{"path":"/etc/shadow"}"#,
                "beneath /var/log",
            ),
            ("logs.collect", r#"{"path":""}"#, "beneath /var/log"),
            (
                "logs.collect",
                r#"{"path":"a","unit":"b"}"#,
                r#"have no "unit""#,
            ),
            (
                "logs.collect",
                r#"{"since":"1h","since_ms":1}"#,
                "say the same",
            ),
            ("logs.collect", r#"{"since":"yesterday"}"#, "span"),
            (
                "logs.collect",
                r#"{"since_ms":9,"until_ms":8}"#,
                "before they begin",
            ),
            ("logs.collect", r#"{"boot":1}"#, "boot"),
            ("logs.collect", r#"{"kernel":1}"#, "true or false"),
            ("logs.collect", r#"{"max_bytes":16777217}"#, "max_bytes"),
            ("disk.polish", "{}", "paramsBase64"),
            ("diag.dcgm", r#"{"level":5}"#, "from 1 to 4"),
            ("diag.memory", r#"{"seconds":3601}"#, "from 1 to 3600"),
            ("diag.memory", r#"{"bytes":1}"#, "there are max_bytes"),
            ("diag.disks", r#"{"disk":1}"#, "disk"),
            ("diag.network", r#"{"seconds":0}"#, "from 1 to 60"),
        ] {
            let refused = encode(kind, given).unwrap_err();
            assert!(refused.contains(says), "{given}: {refused}");
        }
    }

    #[test]
    fn a_result_is_shown_or_given_in_base64() {
        let result = LogsCollectResult {
            size: 3,
            sha256: vec![0xab; 2],
            truncated: true,
        };
        let shown = show_result("logs.collect", &result.encode_to_vec()).unwrap();
        assert_eq!(
            shown.to_string(),
            r#"{"size":3,"sha256":"abab","truncated":true}"#
        );
        assert_eq!(
            show_result("x", &[1]).unwrap().to_string(),
            r#"{"base64":"AQ=="}"#
        );
        assert_eq!(
            show_result("node.reboot", &[0xff]).unwrap().text("base64"),
            "/w=="
        );
        assert_eq!(show_result("node.reboot", &[]), None);
        assert_eq!(show_params("node.facts", &[1]).text("base64"), "AQ==");
    }
}
