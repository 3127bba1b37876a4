//! What the machine itself has counted: errors that its memory controllers corrected or could not (EDAC), and
//! memory the kernel has taken out of use.
use super::super::{Finding, shown};
use super::kilobytes;
use crate::facts::tree::Tree;
use crate::proto::DiagVerdict;

/// A memory controller and its modules; more of them are left out.
const CONTROLLERS: usize = 64;
const MODULES: usize = 256;

/// A memory controller or module, and its errors since the machine started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) name: String,
    pub(super) label: String,
    pub(super) corrected: u64,
    pub(super) uncorrected: u64,
}

/// All of them, in /sys/devices/system/edac (Documentation/admin-guide/RAS).
pub(super) fn controllers(tree: &Tree) -> Vec<Counts> {
    const ROOT: &str = "sys/devices/system/edac/mc";
    let names = |path: &str, prefixes: &[&str], max: usize| {
        let mut names = tree.names(path, 4096).unwrap_or_default();
        names.retain(|name| {
            let number = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        names.truncate(max);
        names
    };
    let mut all = Vec::new();
    for controller in names(ROOT, &["mc"], CONTROLLERS) {
        let base = [ROOT, "/", &controller].concat();
        let count = |path: &str| tree.number(path).unwrap_or(0);
        all.push(Counts {
            label: tree.text(&[&base, "/mc_name"].concat()),
            corrected: count(&[&base, "/ce_count"].concat()),
            uncorrected: count(&[&base, "/ue_count"].concat()),
            name: controller.clone(),
        });
        for module in names(&base, &["dimm", "rank"], MODULES) {
            let base = [&base, "/", &module].concat();
            all.push(Counts {
                label: tree.text(&[&base, "/dimm_label"].concat()),
                corrected: count(&[&base, "/dimm_ce_count"].concat()),
                uncorrected: count(&[&base, "/dimm_ue_count"].concat()),
                name: [&controller, "/", &module].concat(),
            });
        }
    }
    all
}

/// Findings of controllers, all, and of modules, those with errors: there are hundreds of them.
pub(super) fn counted(before: &[Counts], now: Vec<Counts>) -> Vec<Finding> {
    let is_told =
        |counts: &Counts| !counts.name.contains('/') || counts.corrected + counts.uncorrected > 0;
    let told = now.into_iter().filter(is_told);
    told.map(|counts| {
        let mut finding = Finding::new(&counts.name);
        finding.asked();
        finding.text("label", &counts.label);
        finding.number("corrected_errors", counts.corrected);
        finding.number("uncorrected_errors", counts.uncorrected);
        let earlier = before.iter().find(|earlier| earlier.name == counts.name);
        let grown = |now: u64, of: fn(&Counts) -> u64| now.saturating_sub(earlier.map_or(0, of));
        for (verdict, count, grown, what) in [
            (
                DiagVerdict::FAIL,
                counts.uncorrected,
                grown(counts.uncorrected, |counts| counts.uncorrected),
                " errors could not be corrected",
            ),
            (
                DiagVerdict::WARN,
                counts.corrected,
                grown(counts.corrected, |counts| counts.corrected),
                " errors were corrected",
            ),
        ] {
            if count > 0 {
                let (count, grown) = (shown(count), shown(grown));
                let parts = [
                    &count,
                    what,
                    " since the machine started, ",
                    &grown,
                    " during the test",
                ];
                finding.say(verdict, &parts);
            }
        }
        finding
    })
    .collect()
}

/// What the kernel has taken out of use.
pub(super) fn kernel(tree: &Tree) -> Finding {
    let mut finding = Finding::new("kernel");
    let meminfo = tree.bytes("proc/meminfo", 8192).unwrap_or_default();
    // A kernel without memory-failure handling has no such line.
    if let Some(bytes) = kilobytes(&meminfo, "HardwareCorrupted:") {
        finding.asked();
        finding.number("hardware_corrupted_bytes", bytes);
        if bytes > 0 {
            let kib = shown(bytes >> 10);
            let parts = [
                "the kernel has taken ",
                &kib,
                " KiB out of use since the machine started",
            ];
            finding.say(DiagVerdict::FAIL, &parts);
        }
    }
    if !tree.exists("sys/devices/system/edac/mc/mc0") {
        finding.text("edac", "no memory controller is watched");
        if finding.0.verdict == DiagVerdict::UNSPECIFIED {
            let parts = ["neither the kernel nor EDAC counts this machine's memory errors"];
            finding.say(DiagVerdict::UNKNOWN, &parts);
        }
    }
    finding
}
