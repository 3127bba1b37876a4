//! `diag.memory`: patterns written to a part of the machine's free memory and read back, and what the machine
//! itself has counted: errors its memory controllers corrected or could not (EDAC), and memory the kernel
//! has taken out of use.
//!
//! A part: memory that is in use is not tested, and of what is free at most half, so that nothing else
//! runs short. The child that does it locks its pages piece by piece, and gives up before memory is short.
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use super::{Finding, Report, hex, shown};
use crate::command::kinds::{decode, explained};
use crate::command::machine::Failure;
use crate::command::work::Context;
use crate::command::worker::{self, Parent};
use crate::facts::tree::Tree;
use crate::proto::{DiagMemoryParams, DiagVerdict};
use crate::sys::memory::{Region, physical};
use crate::sys::process::RunError;

use self::edac::{controllers, counted, kernel};
use self::patterns::{Met, PATTERNS, check, fill};

mod edac;
mod patterns;

/// docs/protocol.md 6.
const DEFAULT_BYTES: u64 = 1 << 30;
const DEFAULT_SECONDS: u32 = 60;
const MAX_SECONDS: u32 = 3600;
const MAX_PASSES: u32 = 1000;
/// The least that is worth a test.
const LEAST: u64 = 1 << 20;
/// What stays free, whatever is asked for.
const KEPT: u64 = 64 << 20;
/// Beyond the test's own time: for pages to be given and given back.
const SLACK: Duration = Duration::from_secs(30);

/// Words between two looks at the clock: 1 MiB.
const STEP: usize = (1 << 20) / 8;
/// Bad words that are described.
const DESCRIBED: usize = 8;

/// A test with its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    bytes: u64,
    seconds: u32,
    passes: u32,
}

impl Test {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DiagMemoryParams = decode(params)?;
        let within = |name: &str, value: u32, default: u32, max: u32| match value {
            0 => Ok(default),
            value if value <= max => Ok(value),
            value => Err([
                name,
                " is ",
                &shown(value.into()),
                ", more than ",
                &shown(max.into()),
            ]
            .concat()),
        };
        Ok(Self {
            bytes: match params.max_bytes {
                0 => DEFAULT_BYTES,
                bytes => bytes,
            },
            seconds: within("seconds", params.seconds, DEFAULT_SECONDS, MAX_SECONDS)?,
            passes: within("passes", params.passes, 1, MAX_PASSES)?,
        })
    }

    /// # Errors
    /// The command is to stop, or what was found cannot be told.
    pub fn run(self, context: &mut Context, report: &mut Report<'_>) -> Result<(), Failure> {
        let tree = Tree::new("/".as_ref());
        let before = controllers(&tree);
        report.add(self.test(&tree, context)?)?;
        for finding in counted(&before, controllers(&tree)) {
            report.add(finding)?;
        }
        report.add(kernel(&tree))
    }

    fn test(self, tree: &Tree, context: &mut Context) -> Result<Finding, Failure> {
        let mut finding = Finding::new("test");
        let free = free(tree);
        let bytes = share(self.bytes, free);
        finding.number("free_bytes", free);
        finding.number("bytes", bytes);
        if bytes < LEAST {
            let free = shown(free >> 20);
            let parts = ["only ", &free, " MiB are free: too little to test"];
            finding.say(DiagVerdict::UNKNOWN, &parts);
            return Ok(finding);
        }
        let (bytes, seconds) = (shown(bytes), shown(self.seconds.into()));
        let arguments = ["memory", &bytes, &seconds, &shown(self.passes.into())];
        let within = Duration::from_secs(self.seconds.into()) + SLACK;
        match worker::run(
            &arguments,
            within,
            &context.stop,
            &mut context.progress.taker(),
        ) {
            Ok(done) => {
                for found in done.findings {
                    finding.0.verdict = found.verdict;
                    finding.0.problems.extend(found.problems);
                    finding.0.readings.extend(found.readings);
                }
                match done.status.signal() {
                    // The kernel took a page away from the test.
                    Some(libc::SIGBUS) => finding.say(
                        DiagVerdict::FAIL,
                        &["the processor met an error it could not correct in the tested memory"],
                    ),
                    Some(libc::SIGKILL) => finding.say(
                        DiagVerdict::UNKNOWN,
                        &["the kernel ended the test, since memory became short"],
                    ),
                    _ if done.status.success() => {}
                    _ => finding.say(
                        DiagVerdict::UNKNOWN,
                        &["the test did not come to its end: ", &done.complaint],
                    ),
                }
            }
            Err(RunError::Stopped) => return Err(Failure::new("Cancelled", "stopped")),
            Err(error) => {
                let error = explained("", &error).message;
                finding.say(
                    DiagVerdict::UNKNOWN,
                    &["the test did not come to its end: ", &error],
                );
            }
        }
        Ok(finding)
    }
}

/// How much is tested where so much is free.
fn share(asked: u64, free: u64) -> u64 {
    let most = (free / 2).min(free.saturating_sub(KEPT));
    let bytes = asked.min(most);
    bytes - bytes % LEAST
}

/// What this process may still take: of the machine's memory, and of what its control groups allow.
fn free(tree: &Tree) -> u64 {
    let meminfo = tree.bytes("proc/meminfo", 8192).unwrap_or_default();
    let machine = kilobytes(&meminfo, "MemAvailable:").unwrap_or(0);
    let groups = tree.bytes("proc/self/cgroup", 8192).unwrap_or_default();
    allowed(tree, &groups).map_or(machine, |allowed| machine.min(allowed))
}

/// A line of /proc/meminfo, in bytes.
pub fn kilobytes(meminfo: &[u8], name: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(meminfo);
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// What the control groups of `groups` (/proc/self/cgroup) leave, the least of them and those above them.
/// `None`: they have no limit.
pub fn allowed(tree: &Tree, groups: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(groups);
    let mut least: Option<u64> = None;
    for line in text.lines().take(64) {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, limit, used) = match kinds {
            "" => ("sys/fs/cgroup", "/memory.max", "/memory.current"),
            _ if kinds.split(',').any(|kind| kind == "memory") => (
                "sys/fs/cgroup/memory",
                "/memory.limit_in_bytes",
                "/memory.usage_in_bytes",
            ),
            _ => continue,
        };
        let mut path = path;
        for _ in 0..64 {
            let at = |file: &str| tree.number(&[root, path.trim_end_matches('/'), file].concat());
            if let (Some(limit), Some(used)) = (at(limit), at(used)) {
                let left = limit.saturating_sub(used);
                least = Some(least.map_or(left, |least| least.min(left)));
            }
            match path.trim_end_matches('/').rfind('/') {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => break,
            }
        }
    }
    least
}

/// In the child: tests, and tells the parent.
///
/// # Errors
/// The parent is gone, or there is no memory.
pub fn serve<W: io::Write>(arguments: &[&str], parent: &mut Parent<W>) -> io::Result<()> {
    let mut numbers = arguments
        .iter()
        .map(|argument| argument.parse::<u64>().ok());
    let (Some(Some(bytes)), Some(Some(seconds)), Some(Some(passes))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let begun = Instant::now();
    let end = begun + Duration::from_secs(seconds.min(MAX_SECONDS.into()));
    let mut region = Region::new(usize::try_from(bytes).map_err(io::Error::other)?)?;
    let mut finding = Finding::new("test");
    finding.asked();
    let tree = Tree::new("/".as_ref());
    let (length, locked) = take(&mut region, &tree)?;
    finding.number("tested_bytes", length as u64 * 8);
    match locked {
        None => finding.text("locked", "yes"),
        Some(error) => finding.text("locked", &["no: ", &error.to_string()].concat()),
    }
    let words = region.words_mut().get_mut(..length).unwrap_or_default();
    let mut met = Met::default();
    let done = tested(words, passes, end, &mut met, &mut |percent| {
        parent.progress(percent, "testing memory")
    })?;
    finding.number("patterns_done", done);
    finding.number("passes_done", done / PATTERNS.len() as u64);
    finding.number("seconds", begun.elapsed().as_secs());
    finding.number("bad_words", met.bad);
    if done == 0 {
        finding.say(
            DiagVerdict::UNKNOWN,
            &["the time was over before one pattern was read back"],
        );
    }
    if met.bad > 0 {
        finding.text("bad_bits", &hex(met.bits));
        let count = shown(met.bad);
        finding.say(
            DiagVerdict::FAIL,
            &[&count, " words did not hold what was written to them"],
        );
    }
    for bad in met.first {
        let place = usize::try_from(bad.address).ok().and_then(physical);
        let place = match place {
            Some(place) => ["physical ", &hex(place)].concat(),
            None => "physical address not known".to_owned(),
        };
        let address = hex(bad.address);
        let (wrote, read, again) = (hex(bad.wrote), hex(bad.read), hex(bad.again));
        let parts: [&str; 12] = [
            "at ",
            &address,
            " (",
            &place,
            "), ",
            bad.pattern,
            ": wrote ",
            &wrote,
            ", read ",
            &read,
            ", then ",
            &again,
        ];
        finding.say(DiagVerdict::FAIL, &parts);
    }
    parent.finding(&finding)
}

/// Takes the region's pages, piece by piece, while enough stays free: how many words of it are there, and
/// why not all of them are locked.
fn take(region: &mut Region, tree: &Tree) -> io::Result<(usize, Option<io::Error>)> {
    let all = region.words_mut().len();
    let mut taken = 0;
    let mut failed = None;
    while taken < all {
        if free(tree) < KEPT / 2 {
            break;
        }
        // As much as 16 MiB between two looks at what is free.
        let piece = (STEP * 16).min(all - taken);
        if failed.is_none() {
            failed = region.lock(taken, piece).err();
        }
        for word in region
            .words_mut()
            .iter_mut()
            .skip(taken)
            .take(piece)
            .step_by(512)
        {
            *word = 1;
        }
        taken += piece;
    }
    match taken {
        0 => Err(io::ErrorKind::OutOfMemory.into()),
        taken => Ok((taken, failed)),
    }
}

/// Writes and reads back pattern after pattern; how many were read back to the end.
fn tested(
    words: &mut [u64],
    passes: u64,
    end: Instant,
    met: &mut Met,
    progress: &mut dyn FnMut(u32) -> io::Result<()>,
) -> io::Result<u64> {
    let steps = words.len().div_ceil(STEP) as u64 * 2 * PATTERNS.len() as u64 * passes;
    let (mut done, mut step) = (0, 0);
    let mut told = 0;
    for pass in 0..passes {
        for pattern in PATTERNS {
            for reads in [false, true] {
                for (piece, n) in words.chunks_mut(STEP).zip(0_u64..) {
                    if Instant::now() >= end {
                        return Ok(done);
                    }
                    let first = n * STEP as u64;
                    let address = piece.as_ptr().addr() as u64;
                    match reads {
                        false => fill(piece, first, address, pattern, pass),
                        true => check(piece, first, address, pattern, pass, met),
                    }
                    step += 1;
                    let percent = u32::try_from(step * 100 / steps.max(1)).unwrap_or(100);
                    if percent > told {
                        told = percent;
                        progress(percent)?;
                    }
                }
            }
            done += 1;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::facts::tree::tests::Fixture;
    use crate::proto::Message;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn params_have_defaults_and_bounds() {
        let read = |max_bytes, seconds, passes| {
            let params = DiagMemoryParams {
                max_bytes,
                seconds,
                passes,
            };
            Test::read(&params.encode_to_vec())
        };
        let default = Test {
            bytes: GIB,
            seconds: 60,
            passes: 1,
        };
        assert_eq!(read(0, 0, 0), Ok(default));
        assert!(read(u64::MAX, 3600, 1000).is_ok());
        assert_eq!(
            read(0, 3601, 0).unwrap_err(),
            "seconds is 3601, more than 3600"
        );
        assert!(read(0, 0, 1001).is_err());
        assert!(Test::read(&[0xff]).is_err());
    }

    #[test]
    fn a_test_takes_half_of_what_is_free_at_most_and_leaves_some_to_everybody() {
        for (asked, free, tested) in [
            (GIB, 64 * GIB, GIB),
            (u64::MAX, 64 * GIB, 32 * GIB),
            (GIB, GIB, GIB / 2),
            (GIB, 100 * MIB, 36 * MIB),
            (GIB, 64 * MIB, 0),
            (GIB, 0, 0),
            (3 * MIB / 2, GIB, MIB),
        ] {
            assert_eq!(share(asked, free), tested, "{asked} of {free}");
        }
    }

    #[test]
    fn control_groups_leave_the_least_of_all_above() {
        let fixture = Fixture::new(&[
            (
                "sys/fs/cgroup/system.slice/bcd.service/memory.max",
                b"max\n",
            ),
            (
                "sys/fs/cgroup/system.slice/bcd.service/memory.current",
                b"1000\n",
            ),
            ("sys/fs/cgroup/system.slice/memory.max", b"50000\n"),
            ("sys/fs/cgroup/system.slice/memory.current", b"20000\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", b"7000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", b"9000\n"),
        ]);
        let of = |groups: &[u8]| allowed(&fixture.tree, groups);
        assert_eq!(of(b"0::/system.slice/bcd.service\n"), Some(30_000));
        assert_eq!(of(b"9:cpu,memory:/a/b\n0::/\n"), Some(0));
        for none in [
            &b""[..],
            b"0::/\n",
            b"3:cpu:/a\n",
            b"nonsense",
            b"\xff::\xff",
            b"::",
        ] {
            assert_eq!(of(none), None);
        }
        let real = b"MemTotal:  100 kB\nMemAvailable:   51200 kB\nHardwareCorrupted:     0 kB\n";
        assert_eq!(kilobytes(real, "MemAvailable:"), Some(50 * MIB));
        assert_eq!(kilobytes(real, "HardwareCorrupted:"), Some(0));
        assert_eq!(kilobytes(b"MemAvailable: x kB", "MemAvailable:"), None);
    }

    /// A fault of memory: what it makes of the words after each pass of writing.
    fn run(words: &mut [u64], passes: u64, met: &mut Met) -> u64 {
        let end = Instant::now() + Duration::from_secs(60);
        tested(words, passes, end, met, &mut |_| Ok(())).unwrap()
    }

    #[test]
    fn sound_memory_passes_every_pattern() {
        let mut words = vec![0; STEP + 1000];
        let mut met = Met::default();
        assert_eq!(run(&mut words, 2, &mut met), 2 * PATTERNS.len() as u64);
        assert_eq!((met.bad, met.first.len()), (0, 0));
    }

    #[test]
    fn a_bit_that_does_not_hold_is_found_by_each_pattern_with_its_place() {
        for pattern in PATTERNS {
            let mut words = vec![0; 1000];
            fill(&mut words, 500, 0x10_0000, pattern, 3);
            words[700] ^= 1 << 41;
            let mut met = Met::default();
            check(&mut words, 500, 0x10_0000, pattern, 3, &mut met);
            assert_eq!((met.bad, met.bits), (1, 1 << 41), "{}", pattern.0);
            let [bad] = met.first[..] else { unreachable!() };
            assert_eq!(bad.address, 0x10_0000 + 5600);
            assert_eq!((bad.wrote ^ bad.read, bad.again), (1 << 41, bad.read));
        }
    }

    #[test]
    fn lines_that_are_crossed_or_stuck_are_found_by_some_pattern() {
        // An address line that is not connected: two places are one.
        let crossed = |words: &mut [u64]| words.copy_within(0..512, 512);
        let stuck = |words: &mut [u64]| words[77] |= 1 << 5;
        let low = |words: &mut [u64]| words[78] &= !(1 << 60);
        for fault in [&crossed as &dyn Fn(&mut [u64]), &stuck, &low] {
            let mut met = Met::default();
            for pattern in PATTERNS {
                let mut words = vec![0; 1024];
                fill(&mut words, 0, 0x7000, pattern, 0);
                fault(&mut words);
                check(&mut words, 0, 0x7000, pattern, 0, &mut met);
            }
            assert!(met.bad > 0);
        }
    }

    #[test]
    fn of_thousands_of_bad_words_the_first_are_described_and_all_counted() {
        let mut words = vec![0; 5000];
        let mut met = Met::default();
        check(&mut words, 0, 0, PATTERNS[1], 0, &mut met);
        assert_eq!((met.bad, met.first.len()), (5000, DESCRIBED));
    }

    #[test]
    fn a_test_ends_when_its_time_is_over() {
        let mut words = vec![0; STEP * 2];
        let mut met = Met::default();
        let done = tested(&mut words, 1000, Instant::now(), &mut met, &mut |_| Ok(())).unwrap();
        assert_eq!((done, met.bad), (0, 0));
    }

    #[test]
    fn the_child_tests_real_memory_and_says_how_much() {
        let mut bytes = Vec::new();
        let mut parent = Parent::new(&mut bytes);
        serve(&["3145728", "60", "1"], &mut parent).unwrap();
        let mut finding = None;
        let mut progress = 0;
        let mut take = |said| match said {
            worker::Said::Finding(found) => finding = Some(found),
            worker::Said::Progress(said) => progress = said.percent,
            worker::Said::Wiped(_) | worker::Said::Hangs => {}
        };
        worker::Frames::default().push(&bytes, &mut take).unwrap();
        let finding = finding.unwrap();
        assert_eq!((finding.verdict, progress), (DiagVerdict::OK, 100));
        let reading = |name: &str| {
            finding
                .readings
                .iter()
                .find(|one| one.name == name)
                .unwrap()
        };
        assert_eq!(reading("tested_bytes").number, 3 << 20);
        assert_eq!(reading("patterns_done").number, 6);
        assert_eq!(reading("bad_words").number, 0);
        for wrong in [&["1"][..], &["x", "1", "1"], &[]] {
            assert!(serve(wrong, &mut Parent::new(Vec::new())).is_err());
        }
    }

    #[test]
    fn errors_that_were_counted_are_told_with_what_the_test_added() {
        let root = "sys/devices/system/edac/mc";
        let fixture = Fixture::new(&[("proc/meminfo", b"HardwareCorrupted:     8 kB\n")]);
        let put = |path: &str, text: &str| fixture.put(&format!("{root}/{path}"), text.as_bytes());
        for (path, text) in [
            ("mc0/mc_name", "Skylake Socket#0 IMC#0\n"),
            ("mc0/ce_count", "3\n"),
            ("mc0/ue_count", "0\n"),
            ("mc0/dimm0/dimm_label", "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n"),
            ("mc0/dimm0/dimm_ce_count", "3\n"),
            ("mc0/dimm0/dimm_ue_count", "0\n"),
            ("mc0/dimm1/dimm_ce_count", "0\n"),
            ("mc0/power/x", ""),
            ("mc1/ce_count", "0\n"),
        ] {
            put(path, text);
        }
        let before = controllers(&fixture.tree);
        assert_eq!(before.len(), 4);
        put("mc0/ce_count", "5\n");
        put("mc0/dimm0/dimm_ce_count", "5\n");
        put("mc0/dimm0/dimm_ue_count", "1\n");
        let found = counted(&before, controllers(&fixture.tree));
        let told: Vec<_> = found
            .iter()
            .map(|f| (f.0.subject.as_str(), f.0.verdict))
            .collect();
        assert_eq!(
            told,
            [
                ("mc0", DiagVerdict::WARN),
                ("mc0/dimm0", DiagVerdict::FAIL),
                ("mc1", DiagVerdict::OK)
            ]
        );
        let corrected = "5 errors were corrected since the machine started, 2 during the test";
        assert_eq!(found[0].0.problems, [corrected]);
        assert_eq!(found[1].0.problems.len(), 2);
        let taken = kernel(&fixture.tree);
        assert_eq!(taken.0.verdict, DiagVerdict::FAIL);
        assert!(taken.0.problems[0].contains("8 KiB"));
        let blind = kernel(&Fixture::new(&[]).tree);
        assert_eq!(blind.0.verdict, DiagVerdict::UNKNOWN);
    }
}
