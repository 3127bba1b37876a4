//! `diag.disks`: the health of each disk, as the disk itself tells it.
//!
//! NVMe and SCSI disks are asked for their logs, ATA disks for SMART; a disk that has no such thing is told
//! as that. Each is asked by a child of its own, with a time of its own.
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Finding, Report, ata, nvme, scsi};
use crate::command::kinds::decode;
use crate::command::machine::Failure;
use crate::command::work::Context;
use crate::command::worker::{self, Parent};
use crate::facts::disks;
use crate::facts::tree::Tree;
use crate::proto::{DiagDisksParams, DiagVerdict, Disk};
use crate::sys::passthrough::{Admin, Answer, Data, Device};
use crate::sys::process::RunError;

/// How long a disk may take for all that it is asked.
const DISK: Duration = Duration::from_secs(30);
/// For one SCSI command; then the kernel aborts it, and resets what does not let go. A disk that is in use must
/// not be reset for being slow: disks that sleep take up to ten seconds.
const SCSI: Duration = Duration::from_secs(20);
/// For one NVMe command the kernel's own time, a minute: past it, it resets the controller.
const NVME: Duration = Duration::ZERO;
/// What is kept of the kind's time to tell what was found.
const RESERVE: Duration = Duration::from_secs(40);
/// The longest name of a disk.
const NAME: usize = 256;

/// Which disks are to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disks {
    /// By either of its names; empty: all.
    only: String,
}

/// How a disk is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nvme,
    Ata,
    Scsi,
    /// Not at all; why.
    None(&'static str),
}

impl Disks {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DiagDisksParams = decode(params)?;
        match params.disk.len() {
            0..=NAME => Ok(Self { only: params.disk }),
            _ => Err("disk is longer than 256 bytes".to_owned()),
        }
    }

    /// # Errors
    /// There is no such disk, or what was found cannot be told.
    pub fn run(&self, context: &mut Context, report: &mut Report<'_>) -> Result<(), Failure> {
        let end = Instant::now() + context.limit.saturating_sub(RESERVE);
        let tree = Tree::new("/".as_ref());
        let mut disks = disks::list(&tree);
        if !self.only.is_empty() {
            disks.retain(|disk| disk.stable_name == self.only || disk.kernel_name == self.only);
            if disks.is_empty() {
                return Err(Failure::new("NotFound", "this machine has no such disk"));
            }
        }
        let all = disks.len();
        for (n, disk) in disks.iter().enumerate() {
            let percent = u32::try_from(n * 100 / all.max(1)).unwrap_or(0);
            context
                .progress
                .say(percent, || ["asking ", &disk.kernel_name].concat());
            let vendor = tree.text(&["sys/block/", &disk.kernel_name, "/device/vendor"].concat());
            let way = match Instant::now() < end {
                true => Way::of(disk, &vendor),
                false => Way::None("not asked: other disks took all the time there was"),
            };
            report.add(ask(disk, way, context)?)?;
        }
        Ok(())
    }
}

impl Way {
    fn of(disk: &Disk, vendor: &str) -> Self {
        match disk.transport.as_str() {
            transport if transport.starts_with("nvme") => Self::Nvme,
            "usb" => Self::None("disks behind USB are not asked: many bridges hang when they are"),
            "sata" => Self::Ata,
            "sas" | "fc" | "iscsi" | "scsi" if vendor == "ATA" => Self::Ata,
            "sas" | "fc" | "iscsi" | "scsi" => Self::Scsi,
            "virtio" => Self::None("a virtio disk has no health log: ask on its host"),
            "xen" => Self::None("a Xen disk has no health log: ask on its host"),
            _ => Self::None("this bcd knows no health log of such a disk"),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::Ata => "ata",
            Self::Scsi => "scsi",
            Self::None(_) => "",
        }
    }
}

/// Has a child ask a disk.
///
/// # Errors
/// The command is to stop.
fn ask(disk: &Disk, way: Way, context: &mut Context) -> Result<Finding, Failure> {
    let mut finding = match (disk.stable_name.as_str(), way) {
        ("", _) => Finding::new(&disk.kernel_name),
        (name, _) => Finding::new(name),
    };
    finding.text("kernel_name", &disk.kernel_name);
    finding.text("model", &disk.model);
    finding.text("serial", &disk.serial);
    finding.text("firmware", &disk.firmware);
    finding.text("transport", &disk.transport);
    finding.number("size_bytes", disk.size_bytes);
    if let Way::None(why) = way {
        finding.say(DiagVerdict::UNKNOWN, &[why]);
        return Ok(finding);
    }
    let arguments = ["disk", way.word(), &disk.kernel_name];
    match worker::run(
        &arguments,
        DISK,
        &context.stop,
        &mut context.progress.taker(),
    ) {
        Ok(done) => {
            let failed = !done.status.success();
            for found in done.findings {
                finding.0.verdict = found.verdict;
                finding.0.problems.extend(found.problems);
                for reading in found.readings {
                    finding.read(&reading.name, reading.number, reading.text);
                }
            }
            if failed || finding.0.verdict == DiagVerdict::UNSPECIFIED {
                let parts = ["it could not be asked: ", &done.complaint];
                finding.say(DiagVerdict::UNKNOWN, &parts);
            }
        }
        Err(RunError::TimedOut { .. }) => {
            let seconds = super::shown(DISK.as_secs());
            finding.say(
                DiagVerdict::FAIL,
                &["it did not answer for ", &seconds, " s"],
            );
        }
        Err(error @ RunError::Stopped) => {
            return Err(Failure::new("Cancelled", error.to_string()));
        }
        Err(error) => {
            let error = crate::command::kinds::explained("", &error).message;
            finding.say(DiagVerdict::UNKNOWN, &["it could not be asked: ", &error]);
        }
    }
    Ok(finding)
}

/// In the child: asks the disk `name`, and tells the parent.
///
/// # Errors
/// The parent is gone, or the name is none.
pub fn serve<W: io::Write>(way: &str, name: &str, parent: &mut Parent<W>) -> io::Result<()> {
    // The kernel writes a slash of a device's name as an exclamation mark.
    let name = name.replace('!', "/");
    if name.is_empty() || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut finding = Finding::new(&name);
    let asked = Device::open(&Path::new("/dev").join(&name)).and_then(|device| match way {
        "nvme" => ask_nvme(&device, &mut finding),
        "ata" => ask_ata(&device, &mut finding),
        "scsi" => ask_scsi(&device, &mut finding),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    });
    if let Err(error) = asked {
        let verdict = match error.kind() {
            io::ErrorKind::TimedOut => DiagVerdict::FAIL,
            _ => DiagVerdict::UNKNOWN,
        };
        finding.say(verdict, &["/dev/", &name, ": ", &reason(&error)]);
    }
    parent.finding(&finding)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "it may not be asked: that needs root, with CAP_SYS_ADMIN and CAP_SYS_RAWIO".to_owned()
        }
        io::ErrorKind::NotFound => "it is not there: is /dev this service's own?".to_owned(),
        io::ErrorKind::TimedOut => "it did not answer".to_owned(),
        _ => error.to_string(),
    }
}

/// Admin commands, and what Get Log Page is asked for.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const CONTROLLER: u32 = 1;
const ALL_NAMESPACES: u32 = u32::MAX;

fn ask_nvme(device: &Device, finding: &mut Finding) -> io::Result<()> {
    let mut identify = vec![0; nvme::IDENTIFY];
    let admin = Admin {
        opcode: IDENTIFY,
        cdw10: CONTROLLER,
        ..Admin::default()
    };
    let status = device.nvme_admin(admin, &mut identify, NVME)?;
    let controller = match status {
        0 => nvme::identify(&identify),
        _ => nvme::Controller::default(),
    };
    let page = |id: u32, length: usize| {
        let mut page = vec![0; length];
        // The length in words of four bytes, from 0.
        let words = u32::try_from(length / 4).unwrap_or(1) - 1;
        let admin = Admin {
            opcode: GET_LOG_PAGE,
            nsid: ALL_NAMESPACES,
            cdw10: words << 16 | id,
            ..Admin::default()
        };
        let status = device.nvme_admin(admin, &mut page, NVME)?;
        Ok::<_, io::Error>((status, page))
    };
    let (status, health) = page(2, nvme::HEALTH)?;
    match status {
        0 => nvme::health(&health, controller, finding),
        status => {
            let status = super::hex(status.into());
            let parts = ["it gives no health log: status ", &status];
            finding.say(DiagVerdict::UNKNOWN, &parts);
        }
    }
    // What follows is told where it is there.
    if controller.errors > 0
        && let (0, log) = page(1, controller.errors * nvme::ERROR)?
    {
        nvme::errors(&log, finding);
    }
    if controller.self_tests
        && let (0, log) = page(6, nvme::SELF_TESTS)?
    {
        nvme::self_tests(&log, finding);
    }
    Ok(())
}

/// SAM's CHECK CONDITION.
const CHECK_CONDITION: u8 = 2;
/// The host adapter's word for a time-out.
const DID_TIME_OUT: u16 = 3;

/// Gives a SCSI command; an adapter that failed is an error.
fn command(device: &Device, cdb: &[u8], data: &mut [u8]) -> io::Result<Answer> {
    let data = match data {
        [] => Data::None,
        data => Data::In(data),
    };
    let answer = device.scsi(cdb, data, SCSI)?;
    match answer.host_status {
        0 => Ok(answer),
        DID_TIME_OUT => Err(io::ErrorKind::TimedOut.into()),
        status => {
            let status = super::hex(status.into());
            let text = ["its adapter failed with status ", &status].concat();
            Err(io::Error::other(text))
        }
    }
}

fn ask_ata(device: &Device, finding: &mut Finding) -> io::Result<()> {
    let page = |wanted: ata::Command| {
        let mut page = vec![0; ata::PAGE];
        let answer = command(device, &wanted.cdb(), &mut page)?;
        page.truncate(answer.length);
        let good = answer.status == 0 || scsi::sense(&answer.sense).is_some_and(|(key, _)| key < 2);
        Ok::<_, io::Error>(match good {
            true => Ok(page),
            false => Err(scsi::sense_text(&answer.sense)),
        })
    };
    let identify = match page(ata::Command::Identify)? {
        Ok(identify) => identify,
        Err(why) => {
            let parts = ["it takes no ATA commands: ", &why];
            finding.say(DiagVerdict::UNKNOWN, &parts);
            return Ok(());
        }
    };
    match ata::smart(&identify) {
        (true, true) => {}
        (true, false) => {
            finding.say(DiagVerdict::UNKNOWN, &["SMART is switched off on it"]);
            return Ok(());
        }
        (false, _) => {
            finding.say(DiagVerdict::UNKNOWN, &["it has no SMART"]);
            return Ok(());
        }
    }
    let thresholds = page(ata::Command::SmartThresholds)?.unwrap_or_default();
    match page(ata::Command::SmartData)? {
        Ok(data) => ata::data(&data, &thresholds, finding),
        Err(why) => finding.say(DiagVerdict::UNKNOWN, &["it gives no SMART data: ", &why]),
    }
    let status = command(device, &ata::Command::SmartStatus.cdb(), &mut [])?;
    match ata::is_failing(&status.sense) {
        Some(true) => finding.say(
            DiagVerdict::FAIL,
            &["it says that a threshold is passed: it foretells its failure"],
        ),
        Some(false) => finding.text("smart_status", "passed"),
        // Adapters that give no registers back are common; the thresholds say the same.
        None => {}
    }
    Ok(())
}

fn ask_scsi(device: &Device, finding: &mut Finding) -> io::Result<()> {
    let page = |page: u8| {
        let mut bytes = vec![0; scsi::PAGE];
        let answer = command(device, &scsi::log_sense(page), &mut bytes)?;
        bytes.truncate(answer.length);
        Ok::<_, io::Error>((answer, bytes))
    };
    let mut listed = page(scsi::SUPPORTED)?;
    // What happened meanwhile (a reset, a new medium) is told once, in place of an answer.
    if listed.0.status == CHECK_CONDITION
        && scsi::sense(&listed.0.sense).is_none_or(|(key, _)| key != scsi::ILLEGAL_REQUEST)
    {
        listed = page(scsi::SUPPORTED)?;
    }
    let (answer, list) = listed;
    if answer.status != 0 {
        let why = scsi::sense_text(&answer.sense);
        let parts = ["it gives no log pages: ", &why];
        finding.say(DiagVerdict::UNKNOWN, &parts);
        return Ok(());
    }
    for wanted in scsi::PAGES {
        if scsi::supported(&list).contains(&wanted) {
            let (answer, bytes) = page(wanted)?;
            if answer.status == 0 {
                scsi::log(wanted, &bytes, finding);
            }
        }
    }
    if finding.0.verdict == DiagVerdict::UNSPECIFIED {
        finding.say(
            DiagVerdict::UNKNOWN,
            &["none of its log pages tells of its health"],
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::proto::Message;

    #[test]
    fn each_disk_is_asked_in_its_own_way_and_some_not_at_all() {
        let way = |transport: &str, vendor: &str| {
            let disk = Disk {
                transport: transport.to_owned(),
                ..Disk::default()
            };
            Way::of(&disk, vendor).word()
        };
        for (transport, vendor, word) in [
            ("nvme", "", "nvme"),
            ("nvme-tcp", "", "nvme"),
            ("sata", "ATA", "ata"),
            // Behind a SAS adapter.
            ("sas", "ATA", "ata"),
            ("sas", "SEAGATE", "scsi"),
            ("scsi", "QEMU", "scsi"),
            ("usb", "Kingston", ""),
            ("virtio", "", ""),
            ("mmc", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(way(transport, vendor), word, "{transport} {vendor}");
        }
    }

    #[test]
    fn params_name_one_disk_or_none() {
        let params = |disk: String| DiagDisksParams { disk }.encode_to_vec();
        assert_eq!(Disks::read(&[]).unwrap().only, "");
        assert_eq!(Disks::read(&params("sda".to_owned())).unwrap().only, "sda");
        assert!(Disks::read(&params("x".repeat(257))).is_err());
        assert!(Disks::read(&[0xff]).is_err());
    }

    #[test]
    fn a_child_tells_why_a_disk_could_not_be_asked_and_leaves_dev_alone() {
        let told = |way: &str, name: &str| {
            let mut bytes = Vec::new();
            serve(way, name, &mut Parent::new(&mut bytes)).map(|()| {
                let mut found = None;
                let mut frames = worker::Frames::default();
                let mut take = |said| {
                    if let worker::Said::Finding(finding) = said {
                        found = Some(finding);
                    }
                };
                frames.push(&bytes, &mut take).unwrap();
                found.unwrap()
            })
        };
        for (way, name, why) in [
            (
                "nvme",
                "no-such-disk",
                "/dev/no-such-disk: it is not there: is /dev this service's own?",
            ),
            (
                "nvme",
                "cciss!no-such-disk",
                "/dev/cciss/no-such-disk: it is not there: is /dev this service's own?",
            ),
        ] {
            let finding = told(way, name).unwrap();
            assert_eq!(finding.verdict, DiagVerdict::UNKNOWN);
            assert_eq!(finding.problems, [why]);
        }
        // Something that is no disk: refused by the kernel, whichever way.
        for way in ["nvme", "ata", "scsi"] {
            let finding = told(way, "null").unwrap();
            assert_eq!(
                (finding.verdict, finding.problems.len()),
                (DiagVerdict::UNKNOWN, 1)
            );
        }
        for name in ["", "..", "../etc/passwd", "a/../../b", "/dev/sda"] {
            assert!(told("scsi", name).is_err(), "{name}");
        }
    }
}
