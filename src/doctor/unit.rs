//! What systemd thinks of bcd.service.
use std::path::Path;
use std::time::Duration;

use super::{Seen, Verdict, chain};
use crate::sys::process::{self, Run};
use crate::sys::stop::Stop;

/// What systemctl(1) may print and take.
const LONGEST: usize = 16 << 10;
const WITHIN: Duration = Duration::from_secs(5);

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    // sd_booted(3).
    if !Path::new("/run/systemd/system").is_dir() {
        return Verdict::ok("systemd does not run here: what starts bcd node is not seen");
    }
    let Some(program) = process::find("systemctl") else {
        return Verdict::unseen("there is no systemctl", "");
    };
    let Ok(stop) = Stop::new() else {
        return Verdict::unseen("too many open files", "raise the limit (ulimit -n)");
    };
    let arguments = [
        "show",
        "--property=LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result,NeedDaemonReload",
        "bcd.service",
    ]
    .map(str::to_owned);
    let mut text = Vec::new();
    let ran = Run {
        program: &program,
        arguments: &arguments,
        within: WITHIN,
        stop: &stop,
    }
    .run(&mut |bytes| {
        let room = LONGEST.saturating_sub(text.len());
        text.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        Ok(())
    });
    match ran {
        Ok(ended) if ended.status.success() => judge(&String::from_utf8_lossy(&text), seen.joined),
        Ok(ended) => Verdict::unseen(&ended.complaint, "look at systemctl status bcd.service"),
        Err(error) => Verdict::unseen(&chain(&error), "look at systemctl status bcd.service"),
    }
}

/// Judges what `systemctl show` printed.
pub(super) fn judge(text: &str, joined: bool) -> Verdict {
    let property = |name: &str| {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value.trim())
            .next()
            .unwrap_or_default()
    };
    const LOG: &str = "journalctl -u bcd.service -n 50 says why";
    let (active, sub) = (property("ActiveState"), property("SubState"));
    let restarts: u64 = property("NRestarts").parse().unwrap_or(0);
    let enabled = property("UnitFileState");
    let evidence = format!("bcd.service is {active} ({sub}), {enabled}, {restarts} restarts");
    match (property("LoadState"), active) {
        ("not-found", _) => Verdict::warn(
            "systemd knows no bcd.service",
            "install the unit, if bcd node shall start with this machine",
        ),
        ("masked", _) => Verdict::fail(
            "bcd.service is masked: nothing can start it",
            "run systemctl unmask bcd.service, then systemctl enable --now bcd.service",
        ),
        ("loaded", "failed") => Verdict::fail(
            format!("{evidence}: {}", property("Result")),
            format!("{LOG}; then systemctl restart bcd.service"),
        ),
        ("loaded", "active") if property("NeedDaemonReload") == "yes" => Verdict::warn(
            evidence + ": its unit was changed since systemd read it",
            "run systemctl daemon-reload, then systemctl restart bcd.service",
        ),
        ("loaded", "active") if sub == "running" && enabled.starts_with("enabled") => {
            Verdict::ok(evidence)
        }
        ("loaded", "active") if sub == "running" => Verdict::warn(
            evidence + ": it will not start with this machine",
            "run systemctl enable bcd.service",
        ),
        ("loaded", "activating") => Verdict::fail(evidence + ": it does not stay up", LOG),
        ("loaded", "inactive") if !joined => Verdict::ok(evidence),
        ("loaded", _) => Verdict::fail(evidence, "run systemctl enable --now bcd.service"),
        (load, _) => Verdict::fail(
            format!("systemd cannot use bcd.service: {load}"),
            "run systemd-analyze verify bcd.service",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn each_state_of_the_unit_is_judged() {
        let text = |load: &str, active: &str, sub: &str, file: &str| {
            format!(
                "NRestarts=3\nResult=exit-code\nLoadState={load}\nActiveState={active}\nSubState={sub}\nUnitFileState={file}\n"
            )
        };
        for (load, active, sub, file, joined, level) in [
            ("loaded", "active", "running", "enabled", true, Level::Ok),
            (
                "loaded",
                "active",
                "running",
                "enabled-runtime",
                true,
                Level::Ok,
            ),
            ("loaded", "active", "running", "disabled", true, Level::Warn),
            ("loaded", "inactive", "dead", "disabled", true, Level::Fail),
            ("loaded", "inactive", "dead", "disabled", false, Level::Ok),
            ("loaded", "failed", "failed", "enabled", true, Level::Fail),
            (
                "loaded",
                "activating",
                "auto-restart",
                "enabled",
                true,
                Level::Fail,
            ),
            ("not-found", "inactive", "dead", "", true, Level::Warn),
            ("masked", "inactive", "dead", "masked", true, Level::Fail),
            ("bad-setting", "inactive", "dead", "", true, Level::Fail),
        ] {
            let verdict = judge(&text(load, active, sub, file), joined);
            assert_eq!(verdict.level, level, "{load} {active} {verdict:?}");
        }
        assert_eq!(judge("", true).level, Level::Fail);
    }
}
