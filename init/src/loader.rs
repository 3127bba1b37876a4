//! Loads modules: for the hardware that is there when the machine starts, for what appears later, and for
//! what the kernel asks for by name (as /sbin/modprobe).
//!
//! A module's file is handed to the kernel as it is. One that is still compressed works where the kernel unpacks
//! by itself (CONFIG_MODULE_DECOMPRESS, from 5.17 on, zstd from 6.2 on); our images hold them unpacked.
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::edge::Uevents;
use crate::modules::{
    Aliases, Dependencies, MAX_BYTES, ModulesError, SoftDependencies, canonical, name_of,
};
use crate::say;

/// MODULE_INIT_COMPRESSED_FILE of linux/module.h.
const COMPRESSED: i32 = 4;
/// Where the kernel shows a driver that looked for a BMC.
const BMC_DRIVERS: [&str; 3] = [
    "/sys/module/ipmi_si",
    "/sys/module/ipmi_ssif",
    "/sys/module/ipmi_powernv",
];
/// Damaged lines of one of depmod's files that are passed over.
const MAX_DAMAGED: u32 = 16;
/// How deep wishes of wishes are followed.
const MAX_DEPTH: u8 = 8;

/// The modules of the running kernel.
pub struct Loader {
    directory: PathBuf,
    dependencies: Dependencies,
    aliases: Aliases,
    soft: SoftDependencies,
    tried: BTreeSet<String>,
}

impl Loader {
    /// # Errors
    /// The image has no modules for this kernel, or depmod's files are damaged: one sentence.
    pub fn open() -> Result<Self, String> {
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy();
        let directory = PathBuf::from(format!("/lib/modules/{release}"));
        let read = |name: &str| -> Result<Vec<u8>, String> {
            let path = directory.join(name);
            let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
            let size = fs::metadata(&path).map_err(failed)?.len();
            if size > MAX_BYTES as u64 {
                return Err(format!("{} is larger than any kernel's", path.display()));
            }
            fs::read(&path).map_err(failed)
        };
        let dependencies = read("modules.dep").map_err(|error| {
            format!("this image has no modules for the kernel {release}, so hardware may stay unseen: {error}")
        })?;
        Ok(Self {
            dependencies: whole_lines(dependencies, Dependencies::parse)?,
            aliases: whole_lines(read("modules.alias")?, Aliases::parse)?,
            soft: whole_lines(
                read("modules.softdep").unwrap_or_default(),
                SoftDependencies::parse,
            )?,
            directory,
            tried: BTreeSet::new(),
        })
    }

    /// Loads what the devices that are there ask for, until no device appears any more. Says how many.
    pub fn coldplug(&mut self) -> usize {
        let mut seen = BTreeSet::new();
        let before = self.tried.len();
        // A controller's driver brings its devices, and those their own drivers: buses are not deeper than this.
        for _ in 0..8 {
            let new: Vec<String> = modaliases()
                .into_iter()
                .filter(|alias| seen.insert(alias.clone()))
                .collect();
            if new.is_empty() {
                break;
            }
            for alias in new {
                self.matching(&alias);
            }
        }
        self.tried.len() - before
    }

    /// Loads what a device's modalias asks for.
    pub fn matching(&mut self, alias: &str) -> bool {
        let names: Vec<String> = self.aliases.matching(alias).map(str::to_owned).collect();
        let mut any = false;
        for name in names {
            any |= self.load(&name, 0);
        }
        any
    }

    /// Loads a module by its name, or by what the kernel calls it.
    pub fn named(&mut self, name: &str) -> bool {
        match self.dependencies.path(name) {
            Some(_) => self.load(name, 0),
            None => self.matching(name),
        }
    }

    fn load(&mut self, name: &str, depth: u8) -> bool {
        let name = canonical(name);
        if depth > MAX_DEPTH || self.dependencies.path(&name).is_none() {
            return false;
        }
        if !self.tried.insert(name.clone()) {
            return true;
        }
        let wishes = |soft: &SoftDependencies, before| -> Vec<String> {
            soft.wishes(&name, before).map(str::to_owned).collect()
        };
        for wish in wishes(&self.soft, true) {
            self.load(&wish, depth + 1);
        }
        let order: Vec<String> = match self.dependencies.order(&name) {
            Ok(order) => order.into_iter().map(str::to_owned).collect(),
            Err(error) => {
                say(&error.to_string());
                return false;
            }
        };
        for path in order {
            let part = name_of(&path);
            if part != name && !self.tried.insert(part) {
                continue;
            }
            if let Err(error) = self.insert(&path) {
                say(&format!("the module {path} does not load: {error}"));
                return false;
            }
        }
        for wish in wishes(&self.soft, false) {
            self.load(&wish, depth + 1);
        }
        true
    }

    fn insert(&self, path: &str) -> io::Result<()> {
        let file = File::open(self.directory.join(path))?;
        let flags = if path.ends_with(".ko") { 0 } else { COMPRESSED };
        match rustix::system::finit_module(&file, c"", flags) {
            // No such device: a driver that looks for its hardware itself and found none.
            Ok(()) | Err(rustix::io::Errno::EXIST | rustix::io::Errno::NODEV) => Ok(()),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) if flags != 0 => {
                Err(io::Error::other(
                    "this kernel cannot unpack it: build the image with modules unpacked",
                ))
            }
            Err(rustix::io::Errno::NOEXEC) => Err(io::Error::other(
                "it is damaged, or of another kernel: build the image anew with this kernel's modules",
            )),
            Err(rustix::io::Errno::KEYREJECTED | rustix::io::Errno::NOKEY) => {
                Err(io::Error::other(
                    "it is not signed by a key that this kernel trusts, or was changed since (Secure Boot asks for that)",
                ))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What depmod wrote. A line that is damaged costs its own module and no other's: the NIC's may be among those.
fn whole_lines<T>(
    mut text: Vec<u8>,
    parse: impl Fn(&[u8]) -> Result<T, ModulesError>,
) -> Result<T, String> {
    let mut first = None;
    for count in 0.. {
        match parse(&text) {
            Err(error @ ModulesError::Line { line, .. }) if count < MAX_DAMAGED => {
                let mut lines = text.split_mut(|byte| *byte == b'\n');
                if let Some(damaged) = lines.nth(line.saturating_sub(1)) {
                    damaged.fill(b'#');
                }
                first.get_or_insert(error);
            }
            Err(error) => return Err(error.to_string()),
            Ok(read) => {
                if let Some(error) = first {
                    say(&format!("{error}; damaged lines left out: {count}"));
                }
                return Ok(read);
            }
        }
    }
    Err("no list".to_owned())
}

/// What every device of every bus asks for.
fn modaliases() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    for bus in entries(PathBuf::from("/sys/bus")) {
        for device in entries(bus.path().join("devices")) {
            if let Ok(alias) = fs::read_to_string(device.path().join("modalias")) {
                let alias = alias.trim_end();
                if !alias.is_empty() {
                    found.insert(alias.to_owned());
                }
            }
        }
    }
    found
}

/// `init modules`: coldplug, then everything that appears, for as long as the machine runs.
pub fn run() -> Result<(), String> {
    // Listening begins first, so that nothing is missed in between.
    let uevents =
        Uevents::open().map_err(|error| format!("cannot hear of new devices: {error}"))?;
    let mut loader = Loader::open()?;
    let loaded = loader.coldplug();
    say(&format!(
        "{loaded} modules loaded for the hardware that is here"
    ));
    if let Some(complaint) = crate::mounts::firmware() {
        say(&complaint);
    }
    // A BMC's driver asks for its hardware, and nothing asks for the device that programs open.
    if BMC_DRIVERS.iter().any(|name| Path::new(name).exists()) && loader.named("ipmi_devintf") {
        let asking = std::thread::Builder::new().stack_size(64 * 1024);
        if let Err(error) = asking.spawn(crate::bmc::report) {
            say(&format!("cannot ask the BMC: {error}"));
        }
    }
    let mut buffer = vec![0; 8192];
    loop {
        match uevents.next(&mut buffer) {
            Ok(event) => {
                let mut parts = event.split(|byte| *byte == 0);
                if let Some(alias) = parts.find_map(|part| part.strip_prefix(b"MODALIAS=")) {
                    loader.matching(&String::from_utf8_lossy(alias));
                }
            }
            // Announcements were lost: look at everything again.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                loader.coldplug();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("cannot hear of new devices: {error}")),
        }
    }
}

/// `/sbin/modprobe`, as the kernel runs it: `modprobe -q -- NAME`.
pub fn modprobe(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let mut loader = Loader::open()?;
    for name in arguments.filter(|argument| !argument.starts_with('-')) {
        if !loader.named(&name) {
            return Err(format!("no module answers to {name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_line_costs_its_own_module_and_no_other() {
        let text = b"kernel/a.ko:\n\xff\xfe\nkernel/b.ko: ../../etc/shadow\nnonsense\nkernel/c.ko: kernel/a.ko\n";
        let read = whole_lines(text.to_vec(), Dependencies::parse).unwrap();
        assert_eq!(
            read.paths().collect::<Vec<_>>(),
            ["kernel/a.ko", "kernel/c.ko"]
        );
        let aliases = b"alias pci:v1* a\nalias\nalias pci:v2* c\n".to_vec();
        let aliases = whole_lines(aliases, Aliases::parse).unwrap();
        assert_eq!(aliases.matching("pci:v2x").collect::<Vec<_>>(), ["c"]);
        // One that is damaged all over is another file.
        assert!(whole_lines(b"x\n".repeat(99), Dependencies::parse).is_err());
    }
}
