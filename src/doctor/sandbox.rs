//! Whether something that starts `bcd node` keeps it from what it is used for: a directive of the unit or of a
//! drop-in, a container's or a wrapper's doing.
//!
//! The running process is looked at, not the unit's files: its rights (`/proc/<pid>/status`), what is mounted how
//! for it (`mountinfo`) and its network. What a seccomp filter lets through cannot be read; a socket family or
//! a system call that one keeps away is seen where its feature says so.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Seen, Verdict, look_again};
use crate::config::Config;
use crate::sys::user;

/// linux/capability.h
const SYS_BOOT: u32 = 22;
const SYS_RAWIO: u32 = 17;
const SYS_ADMIN: u32 = 21;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const KILL: u32 = 5;

/// `/proc/<pid>/status` and `mountinfo` are longer nowhere.
const LONGEST: usize = 1 << 20;

/// A process, as the kernel shows it. What could not be read is `None`.
#[derive(Default)]
struct Process {
    uid: u32,
    groups: Vec<u32>,
    effective: u64,
    mounts: Option<Vec<Mount>>,
    /// Whether its network and its /dev are the ones that PID 1 has.
    own_network: Option<bool>,
    own_dev: Option<bool>,
}

struct Mount {
    at: PathBuf,
    is_read_only: bool,
    /// Of the file system, not of the mount.
    options: String,
}

/// What the configuration has it do.
struct Uses {
    /// The account under `[helper]`, and the group of the system's journal.
    account: Option<(String, u32)>,
    journal_group: Option<u32>,
    has_plugins: bool,
    /// Directories it writes to, with the key that says so.
    writes: Vec<(PathBuf, &'static str)>,
}

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Some(pid) = seen.pid else {
        return Verdict::ok("bcd node was not seen running: nothing keeps it from anything");
    };
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    match process(pid) {
        Ok(process) => judge(&process, &uses(config)),
        Err(error) => Verdict::unseen(&format!("process {pid}: {error}"), look_again(&error)),
    }
}

fn uses(config: &Config) -> Uses {
    let account = config.helper.as_ref().and_then(|helper| {
        let account = user::lookup(&helper.user).ok()?;
        Some((helper.user.clone(), account.uid))
    });
    let mut writes = vec![(config.data_dir.clone(), "data_dir")];
    let parent = |path: &Path| path.parent().map(Path::to_owned);
    writes.extend(parent(&config.socket_path).map(|dir| (dir, "socket_path")));
    let textfile = config.metrics.textfile.as_deref().and_then(parent);
    writes.extend(textfile.map(|dir| (dir, "metrics.textfile")));
    Uses {
        account,
        journal_group: user::group("systemd-journal"),
        has_plugins: config.plugins.is_some(),
        writes,
    }
}

fn process(pid: u32) -> std::io::Result<Process> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let text = |path: String| std::fs::read_to_string(path);
    let mut process = status(&text(path("status"))?);
    // Only root, and not even the account itself, may look further: bcd keeps its memory private.
    let mounts = |text: &str| {
        let text = text.get(..LONGEST).unwrap_or(text);
        text.lines().filter_map(mount).collect()
    };
    let info = text(path("mountinfo")).ok();
    let inits = text("/proc/1/mountinfo".to_owned()).ok();
    process.mounts = info.as_deref().map(mounts);
    process.own_dev = info.zip(inits).map(|(its, inits)| dev(&its) != dev(&inits));
    let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    process.own_network = network(&pid.to_string())
        .zip(network("1"))
        .map(|(its, inits)| its != inits);
    Ok(process)
}

/// Reads `/proc/<pid>/status`.
fn status(text: &str) -> Process {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.trim()).unwrap_or_default()
    };
    let numbers = |name: &str| field(name).split_ascii_whitespace().map(str::parse::<u32>);
    Process {
        // The effective one.
        uid: numbers("Uid")
            .nth(1)
            .and_then(Result::ok)
            .unwrap_or(u32::MAX),
        groups: numbers("Groups").chain(numbers("Gid")).flatten().collect(),
        effective: u64::from_str_radix(field("CapEff"), 16).unwrap_or(0),
        ..Process::default()
    }
}

/// Reads a line of mountinfo, as proc(5) describes it: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(4);
    let (at, options) = (fields.next()?, fields.next()?);
    let of_file_system = after.split(' ').nth(2).unwrap_or_default();
    let is_ro = |options: &str| options.split(',').any(|one| one == "ro");
    Some(Mount {
        at: PathBuf::from(unescaped(at)),
        is_read_only: is_ro(options) || is_ro(of_file_system),
        options: of_file_system.to_owned(),
    })
}

/// The kernel writes blanks and backslashes as `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let octal = part.get(..3).and_then(|it| u8::from_str_radix(it, 8).ok());
        match octal {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(part.get(3..).unwrap_or_default());
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// The device that is mounted at /dev, last of all.
fn dev(mountinfo: &str) -> Option<&str> {
    let mut fields = mountinfo.lines().map(|line| line.split(' ').skip(2));
    let at_dev = fields.rfind(|fields| fields.clone().nth(2) == Some("/dev"));
    at_dev.and_then(|mut fields| fields.next())
}

/// Reads and judges what the kernel says of a process, for fuzzing.
pub(super) fn read(text: &str) -> Verdict {
    let mut process = status(text);
    process.mounts = Some(text.lines().filter_map(mount).collect());
    process.own_dev = Some(dev(text).is_some());
    let uses = Uses {
        account: None,
        journal_group: None,
        has_plugins: true,
        writes: vec![(PathBuf::from("/var/lib/bcd"), "data_dir")],
    };
    judge(&process, &uses)
}

fn judge(process: &Process, uses: &Uses) -> Verdict {
    let may = |capability: u32| process.effective >> capability & 1 == 1;
    let mut graves = Vec::new();
    let mut faults: Vec<(String, &str)> = Vec::new();
    for (dir, key) in &uses.writes {
        if is_read_only(process, dir) {
            let what = format!("{} ({key}) is read-only for it", dir.display());
            graves.push((what, "give it that path with ReadWritePaths= in a drop-in; ProtectSystem= or ReadOnlyPaths= take it away"));
        }
    }
    if process.own_network == Some(true) {
        faults.push((
            "its network is another than this machine's".to_owned(),
            "take out PrivateNetwork= and NetworkNamespacePath=, unless that is meant",
        ));
    }
    let mounts = process.mounts.as_deref().unwrap_or_default();
    if mounts
        .iter()
        .any(|mount| mount.at == Path::new("/proc") && mount.options.contains("subset=pid"))
    {
        faults.push((
            "it sees no /proc but processes: node.facts lacks processors and memory".to_owned(),
            "take out ProcSubset=",
        ));
    }
    if process.own_dev == Some(true) {
        faults.push((
            "its /dev has no devices: diag.disks and diag.dcgm find none".to_owned(),
            "take out PrivateDevices=",
        ));
    }
    match &uses.account {
        Some((user, uid)) if process.uid != *uid => {
            let what = format!(
                "it runs as user {} and not as {user}, of [helper]",
                process.uid
            );
            graves.push((what, "run the install script again, which writes bcd.service.d/unprivileged.conf, or take out [helper]"));
        }
        Some(_) => {
            if uses
                .journal_group
                .is_some_and(|group| !process.groups.contains(&group))
            {
                let what = "it is not in the group systemd-journal: logs.collect reads no journal"
                    .to_owned();
                faults.push((what, "add SupplementaryGroups=systemd-journal in a drop-in"));
            }
        }
        None => {
            if !may(SYS_BOOT) {
                let what = "it lacks CAP_SYS_BOOT: node.reboot may be refused".to_owned();
                faults.push((what, "add that to CapabilityBoundingSet= in a drop-in"));
            }
            if !may(SYS_ADMIN) || !may(SYS_RAWIO) {
                let what =
                    "it lacks CAP_SYS_ADMIN or CAP_SYS_RAWIO: diag.disks asks no disk".to_owned();
                faults.push((what, "add both to CapabilityBoundingSet= in a drop-in"));
            }
        }
    }
    if uses.has_plugins && !(may(SETUID) && may(SETGID) && may(KILL)) {
        let what =
            "it lacks CAP_SETUID, CAP_SETGID or CAP_KILL: no plugin of [plugins] starts".to_owned();
        graves.push((
            what,
            "run the install script again, which writes bcd.service.d/plugins.conf",
        ));
    }
    if uses.has_plugins && is_read_only(process, Path::new("/sys/fs/cgroup")) {
        let what = "/sys/fs/cgroup is read-only for it: plugins get no cgroup".to_owned();
        graves.push((
            what,
            "set ProtectControlGroups=no, as bcd.service.d/plugins.conf does",
        ));
    }
    let fails = !graves.is_empty();
    graves.append(&mut faults);
    let (mut evidence, mut remedy) = (String::new(), String::new());
    for (what, then) in graves {
        let apart = if evidence.is_empty() { "" } else { "; " };
        evidence.push_str(apart);
        evidence.push_str(&what);
        if !remedy.contains(then) {
            remedy.push_str(apart);
            remedy.push_str(then);
        }
    }
    match (evidence.is_empty(), fails) {
        (true, _) => Verdict::ok(seen_as(process)),
        (false, true) => Verdict::fail(evidence, remedy),
        (false, false) => Verdict::warn(evidence, remedy),
    }
}

/// What is well.
fn seen_as(process: &Process) -> String {
    let mut evidence = format!("bcd node runs as user {}", process.uid);
    let _ = match process.effective {
        0 => write!(
            evidence,
            ", without capabilities: diag.disks cannot ask disks"
        ),
        _ => write!(evidence, ", with the capabilities it needs"),
    };
    if process.mounts.is_none() {
        evidence.push_str("; its mounts are root's to see");
    }
    evidence
}

/// Whether the mount that a path is on is read-only. What is mounted last on a place covers what was there.
fn is_read_only(process: &Process, path: &Path) -> bool {
    let mounts = process.mounts.as_deref().unwrap_or_default();
    let on = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    let last = on.max_by_key(|mount| mount.at.components().count());
    last.is_some_and(|mount| mount.is_read_only)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const ALL: u64 = 1 << SYS_BOOT | 1 << SYS_RAWIO | 1 << SYS_ADMIN;
    const MOUNTS: &str = "1 0 8:1 / / ro,relatime shared:1 - ext4 /dev/sda1 rw\n\
        2 1 8:1 /var/lib/bcd /var/lib/bcd rw - ext4 /dev/sda1 rw\n\
        3 1 0:5 / /dev rw - devtmpfs udev rw\n\
        4 1 0:7 / /proc rw - proc proc rw\n\
        5 1 0:8 / /run rw - tmpfs tmpfs rw,size=1k\n\
        6 1 0:9 / /a\\040b ro - tmpfs tmpfs rw\n";

    fn process(effective: u64) -> Process {
        Process {
            effective,
            mounts: Some(MOUNTS.lines().filter_map(mount).collect()),
            own_dev: Some(false),
            own_network: Some(false),
            ..Process::default()
        }
    }

    fn uses() -> Uses {
        Uses {
            account: None,
            journal_group: Some(101),
            has_plugins: false,
            writes: vec![
                (PathBuf::from("/var/lib/bcd"), "data_dir"),
                (PathBuf::from("/run/bcd"), "socket_path"),
            ],
        }
    }

    fn said(process: &Process, uses: &Uses, level: Level) -> String {
        let verdict = judge(process, uses);
        assert_eq!(verdict.level, level, "{verdict:?}");
        assert_eq!(verdict.remedy.is_empty(), level == Level::Ok);
        verdict.evidence
    }

    #[test]
    fn a_node_with_all_it_needs_is_well() {
        assert!(said(&process(ALL), &uses(), Level::Ok).contains("with the capabilities"));
        let mut helped = uses();
        helped.account = Some(("bcd".to_owned(), 990));
        let mut node = process(0);
        (node.uid, node.groups) = (990, vec![4, 101]);
        assert!(said(&node, &helped, Level::Ok).contains("without capabilities"));
    }

    #[test]
    fn what_a_feature_in_use_lacks_is_said_with_the_feature() {
        let mut use_metrics = uses();
        use_metrics
            .writes
            .push((PathBuf::from("/a b"), "metrics.textfile"));
        assert!(
            said(&process(ALL), &use_metrics, Level::Fail)
                .contains("/a b (metrics.textfile) is read-only")
        );
        let mut plugins = uses();
        plugins.has_plugins = true;
        let evidence = said(&process(ALL), &plugins, Level::Fail);
        assert!(
            evidence.contains("CAP_SETUID") && evidence.contains("/sys/fs/cgroup is read-only")
        );
        assert!(
            said(&process(ALL & !(1 << SYS_BOOT)), &uses(), Level::Warn).contains("node.reboot")
        );
        assert!(
            said(&process(ALL & !(1 << SYS_RAWIO)), &uses(), Level::Warn).contains("diag.disks")
        );
        let mut private = process(ALL);
        (private.own_dev, private.own_network) = (Some(true), Some(true));
        let evidence = said(&private, &uses(), Level::Warn);
        assert!(
            evidence.contains("its /dev has no devices")
                && evidence.contains("its network is another")
        );
        let mut blind = process(ALL);
        let subset =
            mount("4 1 0:7 / /proc rw - proc proc rw,hidepid=invisible,subset=pid").unwrap();
        blind.mounts.as_mut().unwrap().push(subset);
        assert!(said(&blind, &uses(), Level::Warn).contains("node.facts"));
        let mut helped = uses();
        helped.account = Some(("bcd".to_owned(), 990));
        assert!(
            said(&process(ALL), &helped, Level::Fail).contains("runs as user 0 and not as bcd")
        );
        let mut outside = process(0);
        outside.uid = 990;
        assert!(said(&outside, &helped, Level::Warn).contains("systemd-journal"));
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "Name:\tbcd\nUid:\t990\t991\t992\t993\nGid:\t7\t7\t7\t7\nGroups:\t4 101 \nCapEff:\t0000000000600000\n";
        let process = status(text);
        assert_eq!((process.uid, process.effective), (991, 1 << 21 | 1 << 22));
        assert_eq!(process.groups, [4, 101, 7, 7, 7, 7]);
        assert_eq!(dev(MOUNTS), Some("0:5"));
        let covered = [MOUNTS, "9 1 0:77 / /dev rw - tmpfs tmpfs rw\n"].concat();
        assert_eq!(dev(&covered), Some("0:77"));
        assert!(mount("nonsense").is_none() && mount(" - ").is_none());
        assert_eq!(unescaped("a\\040b\\134\\9"), "a b\\\\9");
    }
}
