//! Processors: the model from `/proc/cpuinfo`, the counts from sysfs.
//!
//! Counting takes no table: a thread is a core's if it is the first of its siblings, and a socket's
//! if it is the first in its package. Only processors that are online count.
use super::tree::{Tree, clean};
use super::{Area, Problems};
use crate::proto::Cpu;

/// The first processor's part of `/proc/cpuinfo` ends before this many bytes.
const CPUINFO: usize = 8 * 1024;
/// No kernel has more processors (NR_CPUS of x86 and arm64).
const PROCESSORS: u32 = 8192;
/// A list of processors, `0-63,128-191`.
const LIST: usize = 4096;

/// What `/proc/cpuinfo` says of the first processor.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    pub model: String,
    /// The processor's own word that it is a virtual one (x86 only).
    pub hypervisor: bool,
}

/// Reads `/proc/cpuinfo`, or its beginning.
pub fn cpuinfo(bytes: &[u8]) -> CpuInfo {
    let mut info = CpuInfo::default();
    let (mut implementer, mut part) = (None, None);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (key, value) = line.split_at(at);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        match key.trim_ascii() {
            b"model name" if info.model.is_empty() => info.model = clean(value),
            b"flags" => {
                info.hypervisor |= value
                    .split(u8::is_ascii_whitespace)
                    .any(|flag| flag == b"hypervisor");
            }
            b"CPU implementer" if implementer.is_none() => implementer = hexadecimal(value),
            b"CPU part" if part.is_none() => part = hexadecimal(value),
            _ => {}
        }
    }
    if let (true, Some(implementer), Some(part)) = (info.model.is_empty(), implementer, part) {
        info.model = match arm(implementer, part) {
            Some(name) => name.to_owned(),
            None => format!("ARM implementer {implementer:#04x} part {part:#05x}"),
        };
    }
    info
}

fn hexadecimal(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text).ok()?.strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok()
}

/// The server processors of arm64, which have no name of their own there (MIDR_EL1, as util-linux
/// and the kernel's `asm/cputype.h` name them).
fn arm(implementer: u32, part: u32) -> Option<&'static str> {
    Some(match (implementer, part) {
        (0x41, 0xd03) => "Cortex-A53",
        (0x41, 0xd07) => "Cortex-A57",
        (0x41, 0xd08) => "Cortex-A72",
        (0x41, 0xd0b) => "Cortex-A76",
        (0x41, 0xd0c) => "Neoverse-N1",
        (0x41, 0xd40) => "Neoverse-V1",
        (0x41, 0xd49) => "Neoverse-N2",
        (0x41, 0xd4f) => "Neoverse-V2",
        (0x41, 0xd84) => "Neoverse-V3",
        (0x41, 0xd8e) => "Neoverse-N3",
        (0x43, 0x0a1) => "ThunderX-88XX",
        (0x43, 0x0af) => "ThunderX2-99xx",
        (0x46, 0x001) => "A64FX",
        (0x48, 0xd01) => "TaiShan-v110",
        (0x4e, 0x004) => "Carmel",
        (0x51, 0xc00) => "Falkor",
        (0xc0, 0xac3) => "Ampere-1",
        (0xc0, 0xac4) => "Ampere-1a",
        _ => return None,
    })
}

/// How many processors a list such as `0-3,8` names; nonsense names none.
pub fn count(list: &str) -> u32 {
    ranges(list)
        .map(|(first, last)| last - first + 1)
        .fold(0, u32::saturating_add)
}

fn ranges(list: &str) -> impl Iterator<Item = (u32, u32)> {
    list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < PROCESSORS).then_some((first, last))
    })
}

/// Also says whether the processor calls itself virtual.
pub(super) fn read(tree: &Tree, problems: &mut Problems) -> (Cpu, bool) {
    let info = match tree.bytes("proc/cpuinfo", CPUINFO) {
        Ok(bytes) => cpuinfo(&bytes),
        Err(error) => {
            problems.unread(Area::Cpu, "/proc/cpuinfo", &error);
            CpuInfo::default()
        }
    };
    let mut cpu = Cpu {
        model: info.model,
        ..Cpu::default()
    };
    match tree.bytes("sys/devices/system/cpu/online", LIST) {
        Ok(online) => {
            for (first, last) in ranges(&String::from_utf8_lossy(&online)) {
                for id in first..=last {
                    cpu.threads += 1;
                    cpu.cores += u32::from(leads(tree, id, "thread_siblings_list"));
                    cpu.sockets += u32::from(leads(tree, id, "core_siblings_list"));
                }
            }
        }
        Err(error) => problems.unread(Area::Cpu, "/sys/devices/system/cpu/online", &error),
    }
    (cpu, info.hypervisor)
}

/// Whether processor `id` is the first of those it shares a core or a package with. One that does not
/// say shares with none.
fn leads(tree: &Tree, id: u32, list: &str) -> bool {
    let id = id.to_string();
    let path = ["sys/devices/system/cpu/cpu", &id, "/topology/", list].concat();
    let siblings = tree.text(&path);
    let first = siblings.split(['-', ',']).next().unwrap_or_default();
    first.is_empty() || first == id
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    #[test]
    fn real_machines_say_what_they_are() {
        for (bytes, model, hypervisor) in [
            (
                &include_bytes!("testdata/cpuinfo-epyc-guest")[..],
                "AMD EPYC",
                true,
            ),
            (
                include_bytes!("testdata/cpuinfo-xeon"),
                "Intel(R) Xeon(R) Platinum 8480+",
                false,
            ),
            (
                include_bytes!("testdata/cpuinfo-altra"),
                "Neoverse-N1",
                false,
            ),
            (
                include_bytes!("testdata/cpuinfo-grace"),
                "Neoverse-V2",
                false,
            ),
        ] {
            let expected = CpuInfo {
                model: model.to_owned(),
                hypervisor,
            };
            assert_eq!(cpuinfo(bytes), expected);
        }
    }

    #[test]
    fn an_unknown_arm_is_named_by_its_numbers() {
        let info = cpuinfo(b"CPU implementer\t: 0x41\nCPU part\t: 0xfff\n");
        assert_eq!(info.model, "ARM implementer 0x41 part 0xfff");
    }

    #[test]
    fn nonsense_is_no_processor() {
        for bytes in [
            &b""[..],
            b":",
            b"\n\n\n",
            b"model name\xff: x",
            b"CPU part: 0xzz\nCPU implementer: 41",
            b"flags: hypervisors",
        ] {
            assert_eq!(cpuinfo(bytes), CpuInfo::default());
        }
    }

    #[test]
    fn a_processor_list_is_counted_and_nonsense_counts_nothing() {
        for (list, expected) in [
            ("0", 1),
            ("0-63", 64),
            ("0-1,4-5,7\n", 5),
            ("", 0),
            ("x", 0),
            ("5-1", 0),
            ("0-4294967295", 0),
        ] {
            assert_eq!(count(list), expected, "{list}");
        }
    }

    #[test]
    fn sockets_cores_and_threads_are_counted() {
        // Two sockets of two cores of two threads; one thread is offline.
        let fixture = Fixture::new(&[
            ("proc/cpuinfo", b"model name : Twin\n"),
            ("sys/devices/system/cpu/online", b"0-6\n"),
        ]);
        for id in 0..7 {
            let core = format!("{},{}", id % 4, id % 4 + 4);
            let package = if id % 4 < 2 { "0-1,4-5" } else { "2-3,6" };
            let at = format!("sys/devices/system/cpu/cpu{id}/topology");
            fixture.put(&format!("{at}/thread_siblings_list"), core.as_bytes());
            fixture.put(&format!("{at}/core_siblings_list"), package.as_bytes());
        }
        let mut problems = Problems::default();
        let (cpu, hypervisor) = read(&fixture.tree, &mut problems);
        assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (2, 4, 7));
        assert_eq!(cpu.model, "Twin");
        assert!(!hypervisor && problems.lines().is_empty());
    }

    #[test]
    fn without_proc_and_sys_there_are_problems_and_no_processors() {
        let fixture = Fixture::new(&[]);
        let mut problems = Problems::default();
        assert_eq!(read(&fixture.tree, &mut problems).0, Cpu::default());
        assert_eq!(problems.lines().len(), 2, "{:?}", problems.lines());
    }
}
