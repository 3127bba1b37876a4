//! GPUs of NVIDIA, as nvidia-smi lists them, held against the cards on the PCI bus.
//!
//! A machine without such a card has no GPUs, and nvidia-smi is not even looked for. A card that
//! nvidia-smi does not list (it fell off the bus, the driver is not loaded) is a problem.
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::tree::{Tree, clean};
use super::{Area, Problems};
use crate::proto::Gpu;
use crate::sys::netlink::is_pci_address;
use crate::sys::process::{self, Run, RunError};
use crate::sys::stop::Stop;

/// A program that hangs, as it does when a driver hangs, is killed after this long.
const PATIENCE: Duration = Duration::from_secs(10);
const OUTPUT: usize = 64 * 1024;
const GPUS: usize = 64;
const PCI_DEVICES: usize = 4096;
/// What is asked for, in the order of [`parse`].
const QUERY: &str =
    "--query-gpu=uuid,name,serial,pci.bus_id,memory.total,driver_version,vbios_version";
/// Where containers and immutable hosts keep it, besides the system's own directories.
const PLACES: [&str; 3] = [
    "usr/bin/nvidia-smi",
    "usr/local/nvidia/bin/nvidia-smi",
    "opt/bin/nvidia-smi",
];

/// What nvidia-smi printed.
#[derive(Debug, Default, PartialEq)]
pub struct Listed {
    pub gpus: Vec<Gpu>,
    /// Lines that are no GPU: it mixes its complaints in.
    pub complaints: Vec<String>,
}

/// Reads `--format=csv,noheader,nounits`.
pub fn parse(output: &[u8]) -> Listed {
    let mut listed = Listed::default();
    for line in output.split(|byte| *byte == b'\n') {
        let text = clean(line);
        if text.is_empty() {
            continue;
        }
        match gpu(&text) {
            Some(gpu) if listed.gpus.len() < GPUS => listed.gpus.push(gpu),
            Some(_) => {}
            None if listed.complaints.len() < 8 => listed.complaints.push(text),
            None => {}
        }
    }
    listed
        .gpus
        .sort_unstable_by(|a, b| (&a.pci_address, &a.uuid).cmp(&(&b.pci_address, &b.uuid)));
    listed
}

fn gpu(line: &str) -> Option<Gpu> {
    let mut fields = line.split(',').map(known);
    let gpu = Gpu {
        uuid: fields.next()?,
        name: fields.next()?,
        serial: fields.next()?,
        pci_address: pci_address(&fields.next()?),
        memory_bytes: fields
            .next()?
            .parse()
            .unwrap_or(0_u64)
            .saturating_mul(1 << 20),
        driver_version: fields.next()?,
        vbios_version: fields.next()?,
    };
    (fields.next().is_none() && gpu.uuid.starts_with("GPU-")).then_some(gpu)
}

/// `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `ERR!` and the like say nothing.
fn known(field: &str) -> String {
    match field.trim() {
        "N/A" | "ERR!" => String::new(),
        field if field.starts_with('[') => String::new(),
        field => field.to_owned(),
    }
}

/// nvidia-smi writes eight digits of domain, the kernel four.
fn pci_address(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let short = lower
        .strip_prefix("0000")
        .filter(|rest| is_pci_address(rest));
    short.unwrap_or(&lower).to_owned()
}

pub(super) fn read(tree: &Tree, problems: &mut Problems) -> Vec<Gpu> {
    let cards = cards(tree);
    if cards == 0 {
        return Vec::new();
    }
    let count = match cards {
        1 => "1 NVIDIA device".to_owned(),
        _ => [&cards.to_string(), " NVIDIA devices"].concat(),
    };
    let Some(program) = find(tree) else {
        problems.say(
            Area::Gpus,
            &[
                &count,
                " on the PCI bus, and no nvidia-smi: install NVIDIA's driver",
            ]
            .concat(),
        );
        return Vec::new();
    };
    let listed = match ask(program) {
        Ok((listed, failure)) => {
            if let Some(failure) = failure {
                problems.say(Area::Gpus, &["nvidia-smi failed: ", &failure].concat());
            }
            listed
        }
        Err(why) => {
            problems.say(Area::Gpus, &why);
            return Vec::new();
        }
    };
    for complaint in &listed.complaints {
        problems.say(Area::Gpus, &["nvidia-smi: ", complaint].concat());
    }
    if listed.gpus.len() < cards {
        let seen = listed.gpus.len().to_string();
        problems.say(
            Area::Gpus,
            &[&count, " on the PCI bus, of which nvidia-smi lists ", &seen].concat(),
        );
    }
    listed.gpus
}

/// Display controllers of NVIDIA.
fn cards(tree: &Tree) -> usize {
    const DEVICES: &str = "sys/bus/pci/devices";
    let Ok(names) = tree.names(DEVICES, PCI_DEVICES) else {
        return 0;
    };
    let at = |device: &str, name: &str| tree.text(&[DEVICES, "/", device, "/", name].concat());
    names
        .iter()
        .filter(|device| at(device, "class").starts_with("0x03"))
        .filter(|device| at(device, "vendor") == "0x10de")
        // Virtual functions, and cards that are set aside for guests, are not this host's.
        .filter(|device| !tree.exists(&[DEVICES, "/", device, "/physfn"].concat()))
        .filter(|device| {
            let driver = tree.link_name(&[DEVICES, "/", device, "/driver"].concat());
            !driver.is_some_and(|driver| driver.contains("vfio") || driver == "pci-stub")
        })
        .count()
}

fn find(tree: &Tree) -> Option<PathBuf> {
    let mut places = PLACES.iter().map(|place| tree.path(place));
    places
        .find(|path| path.is_file())
        .or_else(|| process::find("nvidia-smi"))
}

/// What it lists, and why it failed if it did.
fn ask(program: PathBuf) -> Result<(Listed, Option<String>), String> {
    let stop = Stop::new().map_err(|error| error.to_string())?;
    let arguments = [QUERY.to_owned(), "--format=csv,noheader,nounits".to_owned()];
    let mut output = Vec::new();
    let run = Run {
        program: &program,
        arguments: &arguments,
        within: PATIENCE,
        stop: &stop,
    };
    let ended = run.run(&mut |bytes| {
        output.extend_from_slice(bytes);
        match output.len() {
            0..=OUTPUT => Ok(()),
            _ => Err(io::ErrorKind::FileTooLarge.into()),
        }
    });
    match ended {
        Ok(ended) => {
            let listed = parse(&output);
            let failure = (!ended.status.success()).then(|| match ended.status.code() {
                Some(code) if ended.complaint.is_empty() => {
                    ["exit code ", &code.to_string()].concat()
                }
                Some(_) => ended.complaint,
                None => "a signal ended it".to_owned(),
            });
            Ok((listed, failure))
        }
        Err(error @ (RunError::Start { .. } | RunError::TimedOut { .. } | RunError::Stopped)) => {
            Err(error.to_string())
        }
        Err(RunError::Output(_)) => Err("nvidia-smi prints without end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tree::tests::Fixture;
    use super::*;

    #[test]
    fn a_list_of_gpus_is_read() {
        let listed = parse(include_bytes!("testdata/nvidia-smi-h100"));
        assert!(listed.complaints.is_empty());
        assert_eq!(listed.gpus.len(), 8);
        let expected = Gpu {
            uuid: "GPU-0a3c7f0e-5b0b-4a36-9f2d-2d3b1c5e8f10".to_owned(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            serial: "1654922003427".to_owned(),
            pci_address: "0000:19:00.0".to_owned(),
            memory_bytes: 81559 << 20,
            driver_version: "550.90.07".to_owned(),
            vbios_version: "96.00.A5.00.01".to_owned(),
        };
        assert_eq!(listed.gpus[0], expected);
        assert!(listed.gpus.is_sorted_by_key(|gpu| &gpu.pci_address));
    }

    #[test]
    fn what_a_gpu_does_not_say_is_empty_and_complaints_are_kept() {
        let listed = parse(
            b"GPU-1, NVIDIA GeForce RTX 4090, [N/A], 00000000:01:00.0, 24564, 550.90.07, 95.02.3C.40.8C\n\
              Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error\n\
              GPU-2, NVIDIA A100, [Unknown Error], 00010000:81:00.0, [N/A], 550.90.07, ERR!\n\
              GPU-3, too, short\nGPU-4, a, b, c, d, e, f, g\n\xff\xfe\n\n",
        );
        assert_eq!(listed.gpus.len(), 2);
        assert_eq!(listed.gpus[0].serial, "");
        assert_eq!(listed.gpus[0].memory_bytes, 24564 << 20);
        // A domain of more than four digits is left as it is.
        assert_eq!(listed.gpus[1].pci_address, "00010000:81:00.0");
        assert_eq!(
            (
                listed.gpus[1].memory_bytes,
                listed.gpus[1].vbios_version.as_str()
            ),
            (0, "")
        );
        assert_eq!(listed.complaints.len(), 4, "{:?}", listed.complaints);
        assert!(listed.complaints[0].starts_with("Unable to determine"));
    }

    #[test]
    fn an_endless_list_is_bounded() {
        let line = b"GPU-1, x, x, x, 1, x, x\n".repeat(1000);
        assert_eq!(parse(&line).gpus.len(), GPUS);
        assert_eq!(parse(&b"no\n".repeat(1000)).complaints.len(), 8);
    }

    /// A machine with `cards` cards, and a program that does `script` in nvidia-smi's place.
    fn machine(cards: usize, script: &str) -> Fixture {
        let fixture = Fixture::new(&[]);
        let device = |name: &str, class: &[u8], vendor: &[u8]| {
            let at = ["sys/bus/pci/devices/", name].concat();
            fixture.put(&[&at, "/class"].concat(), class);
            fixture.put(&[&at, "/vendor"].concat(), vendor);
        };
        device("0000:00:02.0", b"0x030000\n", b"0x8086\n");
        // The sound part of a card.
        device("0000:19:00.1", b"0x040300\n", b"0x10de\n");
        for card in 0..cards {
            device(&format!("0000:{card:02x}:00.0"), b"0x030200\n", b"0x10de\n");
        }
        if !script.is_empty() {
            fixture.put(
                "usr/bin/nvidia-smi",
                format!("#!/bin/sh\n{script}\n").as_bytes(),
            );
            let path = fixture.tree.path("usr/bin/nvidia-smi");
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        fixture
    }

    const ONE: &str = "echo 'GPU-1, A100, 1, 00000000:19:00.0, 81920, 550.1, 92.0'";

    #[test]
    fn cards_and_program_together_tell_what_is_wrong() {
        for (cards, script, gpus, expected) in [
            (0, "exit 9", 0, &[][..]),
            (1, ONE, 1, &[]),
            (
                1,
                "test \"$2\" = --format=csv,noheader,nounits || exit 3",
                0,
                &["1 NVIDIA device on the PCI bus, of which nvidia-smi lists 0"],
            ),
            (
                2,
                ONE,
                1,
                &["2 NVIDIA devices on the PCI bus, of which nvidia-smi lists 1"],
            ),
            (
                1,
                "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
                0,
                &[
                    "1 NVIDIA device on the PCI bus, of which nvidia-smi lists 0",
                    "nvidia-smi failed: exit code 9",
                    "nvidia-smi: NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.",
                ],
            ),
            (
                1,
                "echo bad >&2; exit 1",
                0,
                &[
                    "1 NVIDIA device on the PCI bus, of which nvidia-smi lists 0",
                    "nvidia-smi failed: bad",
                ],
            ),
            (1, "cat /dev/zero", 0, &["nvidia-smi prints without end"]),
        ] {
            let fixture = machine(cards, script);
            let mut problems = Problems::default();
            let found = read(&fixture.tree, &mut problems);
            assert_eq!(found.len(), gpus, "{script}");
            let expected: Vec<String> = expected
                .iter()
                .map(|line| format!("gpus: {line}"))
                .collect();
            assert_eq!(problems.into_lines(), expected, "{script}");
        }
    }

    #[test]
    fn cards_for_guests_are_not_this_hosts() {
        let fixture = machine(2, "exit 9");
        for (card, driver) in [("00", "vfio-pci"), ("01", "nvgrace_gpu_vfio_pci")] {
            let link = format!("sys/bus/pci/devices/0000:{card}:00.0/driver -> ../{driver}");
            fixture.put(&link, b"");
        }
        let mut problems = Problems::default();
        assert!(read(&fixture.tree, &mut problems).is_empty());
        assert!(problems.lines().is_empty(), "{:?}", problems.lines());
    }

    #[test]
    fn a_card_without_its_program_is_a_problem() {
        if process::find("nvidia-smi").is_none() {
            let mut problems = Problems::default();
            assert!(read(&machine(3, "").tree, &mut problems).is_empty());
            assert!(
                problems.lines()[0].starts_with("gpus: 3 NVIDIA devices on the PCI bus, and no")
            );
        }
    }
}
