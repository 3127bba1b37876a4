//! The firmware's list of what it boots (UEFI 2.10, 3.1 and 10.3), through efivarfs: an entry of ours for the loader on
//! a disk, first in its order.
//!
//! An entry of ours is known by its label, so that a machine has one, however often it was deployed. Whatever else is
//! in the list stays.
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::gpt::Partition;
use crate::sys;

/// What firmware shows for it.
pub const LABEL: &str = "better-compute";
/// The variables of an x86 or arm64 machine that was booted by UEFI.
pub const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// The vendor of `Boot####` and `BootOrder`, as efivarfs names it.
const GLOBAL: &str = "-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Kept without power, and there for the firmware and for us.
const ATTRIBUTES: [u8; 4] = [7, 0, 0, 0];
const ACTIVE: u32 = 1;
/// Bytes of a variable, and entries looked at.
const VARIABLE: usize = 64 * 1024;
const ENTRIES: usize = 1024;

/// The loader that is in every architecture's fallback place.
pub const FALLBACK: &str = match cfg!(target_arch = "aarch64") {
    true => "BOOTAA64.EFI",
    false => "BOOTX64.EFI",
};
/// Loaders of distributions, the ones to start first.
pub const LOADERS: [&str; 3] = match cfg!(target_arch = "aarch64") {
    true => ["shimaa64.efi", "grubaa64.efi", "systemd-bootaa64.efi"],
    false => ["shimx64.efi", "grubx64.efi", "systemd-bootx64.efi"],
};

/// What is to be changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The entry that is written.
    pub number: u16,
    /// Those of ours that go.
    pub remove: Vec<u16>,
    pub order: Vec<u16>,
}

/// What went wrong, and with which variable.
#[derive(Debug)]
pub struct Error {
    what: &'static str,
    name: String,
    error: io::Error,
}

/// `EFI_LOAD_OPTION` for `loader` (`\EFI\...`) on the partition of a GPT, on a disk with such sectors.
pub fn option(label: &str, partition: &Partition, sector: u32, loader: &str) -> Vec<u8> {
    let wide = |text: &str| {
        let units = text.encode_utf16().chain([0]);
        units.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
    };
    let sector = u64::from(sector.max(1));
    // Media, hard drive: of 42 bytes, with a GPT and by the partition's GUID.
    let mut path = vec![4, 1, 42, 0];
    path.extend(partition.number.to_le_bytes());
    path.extend((partition.start / sector).to_le_bytes());
    path.extend((partition.length / sector).to_le_bytes());
    path.extend(partition.guid.0);
    path.extend([2, 2]);
    // Media, file path; and the end.
    let file = wide(loader);
    path.extend([4, 4]);
    path.extend((file.len() as u16 + 4).to_le_bytes());
    path.extend(file);
    path.extend([0x7f, 0xff, 4, 0]);
    let mut option = ACTIVE.to_le_bytes().to_vec();
    option.extend((path.len() as u16).to_le_bytes());
    option.extend(wide(label));
    option.extend(path);
    option
}

/// The label of a load option; `None`: it is none.
pub fn label(option: &[u8]) -> Option<String> {
    let text = option.get(6..)?.as_chunks::<2>().0.iter();
    let units: Vec<u16> = text
        .map(|unit| u16::from_le_bytes(*unit))
        .take_while(|unit| *unit != 0)
        .collect();
    let end = 6 + 2 * units.len() + 2;
    (option.len() >= end).then(|| String::from_utf16_lossy(&units))
}

/// The numbers in `BootOrder`.
pub fn order(bytes: &[u8]) -> Vec<u16> {
    let numbers = bytes.as_chunks::<2>().0.iter().take(ENTRIES);
    numbers.map(|number| u16::from_le_bytes(*number)).collect()
}

/// How an entry with [`LABEL`] gets to be the only one, and the first: `entries` are those that are there, with their labels.
pub fn plan(entries: &[(u16, String)], order: &[u16]) -> Option<Plan> {
    let mut ours = entries
        .iter()
        .filter(|(_, label)| label == LABEL)
        .map(|(number, _)| *number);
    let free =
        || (0..=ENTRIES as u16).find(|number| entries.iter().all(|(other, _)| other != number));
    let number = match ours.next() {
        Some(number) => number,
        None => free()?,
    };
    let remove: Vec<u16> = ours.filter(|other| *other != number).collect();
    let others = order.iter().copied();
    let others = others.filter(|other| *other != number && !remove.contains(other));
    let order = [number].into_iter().chain(others).collect();
    Some(Plan {
        number,
        remove,
        order,
    })
}

/// Makes `option` the first entry of the variables in `directory`, and reads it and the order back.
///
/// # Errors
/// The firmware does not take it, or does not have it then.
pub fn install(directory: &Path, option: &[u8]) -> Result<Plan, Error> {
    let mut entries = Vec::new();
    let listed = sys::fs::entries(directory).map_err(|error| failed("list", "variables", error))?;
    for name in listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let number = name
            .strip_prefix("Boot")
            .and_then(|rest| rest.strip_suffix(GLOBAL))
            .filter(|digits| digits.len() == 4)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok());
        if let Some(number) = number.filter(|_| entries.len() < ENTRIES) {
            // One that cannot be read is another's.
            let known = read(directory, &name).unwrap_or_default();
            entries.push((
                number,
                label(&known.unwrap_or_default()).unwrap_or_default(),
            ));
        }
    }
    entries.sort_unstable();
    let order_name = ["BootOrder", GLOBAL].concat();
    let before = read(directory, &order_name)?.unwrap_or_default();
    let plan = plan(&entries, &order(&before)).ok_or_else(|| {
        failed(
            "add to",
            "BootOrder",
            io::Error::from(io::ErrorKind::StorageFull),
        )
    })?;
    let name = entry(plan.number);
    write(directory, &name, option)?;
    let bytes: Vec<u8> = plan.order.iter().flat_map(|n| n.to_le_bytes()).collect();
    write(directory, &order_name, &bytes)?;
    for number in &plan.remove {
        remove(directory, &entry(*number))?;
    }
    for (name, bytes) in [(&name, option), (&order_name, &bytes)] {
        if read(directory, name)?.as_deref() != Some(bytes) {
            let kept = io::Error::other("the firmware did not keep what was written");
            return Err(failed("read back", name, kept));
        }
    }
    Ok(plan)
}

fn entry(number: u16) -> String {
    format!("Boot{number:04X}{GLOBAL}")
}

fn failed(what: &'static str, name: &str, error: io::Error) -> Error {
    Error {
        what,
        name: name.trim_end_matches(GLOBAL).to_owned(),
        error,
    }
}

fn read(directory: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(directory.join(name))
        .and_then(|file| file.take(VARIABLE as u64).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Some(bytes.split_off(bytes.len().min(ATTRIBUTES.len())))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", name, error)),
    }
}

/// Variables that are there already are not touched when they hold `value`: flash wears out.
fn write(directory: &Path, name: &str, value: &[u8]) -> Result<(), Error> {
    if read(directory, name)?.as_deref() == Some(value) {
        return Ok(());
    }
    let path = directory.join(name);
    let done = changeable(&path).and_then(|()| {
        let open = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        // One write is one variable.
        open?.write_all(&[&ATTRIBUTES[..], value].concat())
    });
    done.map_err(|error| failed("write", name, error))
}

fn remove(directory: &Path, name: &str) -> Result<(), Error> {
    let path: PathBuf = directory.join(name);
    let done = changeable(&path).and_then(|()| fs::remove_file(&path));
    done.map_err(|error| failed("remove", name, error))
}

/// The kernel keeps variables from being removed by mistake.
fn changeable(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    match ioctl_getflags(&file) {
        Ok(flags) if flags.contains(IFlags::IMMUTABLE) => {
            Ok(ioctl_setflags(&file, flags - IFlags::IMMUTABLE)?)
        }
        // Where there are no such flags there is nothing in the way.
        _ => Ok(()),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.what, self.name)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::deploy::gpt::Guid;
    use crate::sys::fs::tests::scratch;

    fn esp() -> Partition {
        Partition {
            number: 15,
            start: 8 << 20,
            length: 124 << 20,
            kind: Guid::default(),
            guid: Guid([7; 16]),
        }
    }

    #[test]
    fn an_option_is_as_the_firmware_wants_it() {
        let option = option("ab", &esp(), 512, "\\E");
        let mut wanted = vec![1, 0, 0, 0, 42 + 10 + 4, 0, b'a', 0, b'b', 0, 0, 0];
        wanted.extend([4, 1, 42, 0, 15, 0, 0, 0]);
        wanted.extend(16_384_u64.to_le_bytes());
        wanted.extend((124_u64 << 11).to_le_bytes());
        wanted.extend([7; 16]);
        wanted.extend([2, 2, 4, 4, 10, 0, b'\\', 0, b'E', 0, 0, 0, 0x7f, 0xff, 4, 0]);
        assert_eq!(option, wanted);
        assert_eq!(label(&option).as_deref(), Some("ab"));
        for end in 0..12 {
            assert_eq!(label(option.get(..end).unwrap()), None, "{end}");
        }
    }

    #[test]
    fn ours_is_the_only_one_and_the_first_and_the_others_stay() {
        let ours = |number| (number, LABEL.to_owned());
        let theirs = |number| (number, "debian".to_owned());
        for (entries, order, number, remove, after) in [
            (vec![], vec![], 0, vec![], vec![0]),
            (
                vec![theirs(0), theirs(2)],
                vec![2, 0],
                1,
                vec![],
                vec![1, 2, 0],
            ),
            (vec![theirs(0), ours(1)], vec![0, 1], 1, vec![], vec![1, 0]),
            (
                vec![ours(3), theirs(4), ours(9)],
                vec![9, 4, 3, 7],
                3,
                vec![9],
                vec![3, 4, 7],
            ),
        ] {
            let plan = plan(&entries, &order).unwrap();
            assert_eq!(
                (plan.number, plan.remove, plan.order),
                (number, remove, after)
            );
        }
        let full: Vec<_> = (0..=ENTRIES as u16).map(theirs).collect();
        assert_eq!(plan(&full, &[]), None);
    }

    #[test]
    fn what_is_written_is_read_back_and_written_once() {
        let dir = scratch("efi");
        let put = |name: &str, value: &[u8]| {
            let bytes = [&ATTRIBUTES[..], value].concat();
            fs::write(dir.join([name, GLOBAL].concat()), bytes).unwrap();
        };
        let old = option(LABEL, &esp(), 4096, "\\old");
        put("Boot0000", &option("debian", &esp(), 512, "\\debian"));
        put("Boot00FF", &old);
        put("Boot0A00", &old);
        // As long before as after: what is written to a plain file does not shorten it, as it does a variable.
        put("BootOrder", &[0, 0, 0xff, 0]);
        fs::write(dir.join("BootNext-x"), "").unwrap();
        let new = option(LABEL, &esp(), 512, "\\EFI\\BOOT\\BOOTX64.EFI");
        for _ in 0..2 {
            let plan = install(&dir, &new).unwrap();
            assert_eq!((plan.number, plan.order), (0xff, vec![0xff, 0]));
            assert_eq!(read(&dir, &entry(0xff)).unwrap().as_deref(), Some(&new[..]));
            assert_eq!(read(&dir, &entry(0x0a00)).unwrap(), None);
        }
        let error = install(&dir.join("none"), &new).unwrap_err();
        assert_eq!(error.to_string(), "cannot list variables");
        fs::remove_dir_all(dir).unwrap();
    }
}
