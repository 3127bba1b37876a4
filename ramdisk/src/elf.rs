//! What a program asks of the machine it runs on: its interpreter and the shared libraries it names.
//! Reads 64-bit little-endian ELF (gabi: "ELF Header", "Program Header", "Dynamic Section"), which both
//! of our architectures use. The file is foreign: every offset is checked, counts are bounded, nothing recurses.
use std::error::Error;
use std::fmt;

/// The most program headers and dynamic entries that are looked at.
const MAX_HEADERS: u16 = 256;
const MAX_ENTRIES: usize = 4096;
/// The most libraries one file may name, and the longest name.
const MAX_NEEDED: usize = 256;
const MAX_NAME: usize = 4096;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

/// What a file names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Linkage {
    /// The machine's number: 62 for x86-64, 183 for arm64.
    pub machine: u16,
    /// The dynamic loader, of a program that is not static.
    pub interpreter: Option<String>,
    /// The libraries, in the file's order.
    pub needed: Vec<String>,
    /// Where to look for them first (DT_RUNPATH, else DT_RPATH), `$ORIGIN` as written.
    pub search: Vec<String>,
}

/// Why a file's linkage cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElfError {
    /// It does not begin with ELF's magic.
    NotElf,
    /// It is for 32-bit or big-endian machines.
    Kind,
    /// An offset or a size points outside the file, or a text lacks its end.
    Truncated,
    /// More headers, entries or libraries than any real file has.
    TooMany,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "not an ELF file",
            Self::Kind => "not for a 64-bit little-endian machine",
            Self::Truncated => "an ELF file that is cut off or damaged",
            Self::TooMany => "an ELF file with more headers than any real one",
        })
    }
}

impl Error for ElfError {}

/// Reads what `file` names.
///
/// # Errors
/// See [`ElfError`].
pub fn linkage(file: &[u8]) -> Result<Linkage, ElfError> {
    if !file.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    // EI_CLASS 2: 64 bits; EI_DATA 1: little-endian.
    if file.get(4..6) != Some(&[2, 1]) {
        return Err(ElfError::Kind);
    }
    let mut found = Linkage {
        machine: u16_at(file, 18)?,
        ..Linkage::default()
    };
    let start = u64_at(file, 32)?;
    let (size, count) = (u16_at(file, 54)?, u16_at(file, 56)?);
    if count > MAX_HEADERS {
        return Err(ElfError::TooMany);
    }
    if count > 0 && size < 56 {
        return Err(ElfError::Truncated);
    }
    let mut segments = Vec::new();
    let mut dynamic = None;
    for index in 0..u64::from(count) {
        let at = start
            .checked_add(index * u64::from(size))
            .ok_or(ElfError::Truncated)?;
        let kind = u32_at(file, at)?;
        let field = |offset| u64_at(file, at.checked_add(offset).ok_or(ElfError::Truncated)?);
        let (offset, address, length) = (field(8)?, field(16)?, field(32)?);
        match kind {
            LOAD => segments.push((address, length, offset)),
            DYNAMIC => dynamic = Some((offset, length)),
            INTERPRETER => found.interpreter = Some(text_at(file, offset)?),
            _ => {}
        }
    }
    if let Some((offset, length)) = dynamic {
        names(file, slice(file, offset, length)?, &segments, &mut found)?;
    }
    Ok(found)
}

/// Reads the dynamic section: pairs of a tag and a value, texts as offsets into a table of their own.
fn names(
    file: &[u8],
    section: &[u8],
    segments: &[(u64, u64, u64)],
    found: &mut Linkage,
) -> Result<(), ElfError> {
    const NEEDED: u64 = 1;
    const STRTAB: u64 = 5;
    const RPATH: u64 = 15;
    const RUNPATH: u64 = 29;
    let (mut table, mut needed, mut rpath, mut runpath) = (None, Vec::new(), None, None);
    for (index, entry) in section.chunks_exact(16).enumerate() {
        if index == MAX_ENTRIES || needed.len() > MAX_NEEDED {
            return Err(ElfError::TooMany);
        }
        let value = u64_at(entry, 8)?;
        match u64_at(entry, 0)? {
            0 => break,
            NEEDED => needed.push(value),
            STRTAB => table = Some(value),
            RPATH => rpath = Some(value),
            RUNPATH => runpath = Some(value),
            _ => {}
        }
    }
    if needed.is_empty() && rpath.is_none() && runpath.is_none() {
        return Ok(());
    }
    // The table is given by its address in memory.
    let address = table.ok_or(ElfError::Truncated)?;
    let base = segments
        .iter()
        .find_map(|(from, length, offset)| {
            let into = address.checked_sub(*from).filter(|into| into < length)?;
            offset.checked_add(into)
        })
        .ok_or(ElfError::Truncated)?;
    let text = |offset: u64| text_at(file, base.checked_add(offset).ok_or(ElfError::Truncated)?);
    for offset in needed {
        found.needed.push(text(offset)?);
    }
    if let Some(offset) = runpath.or(rpath) {
        found.search = text(offset)?
            .split(':')
            .filter(|part| !part.is_empty())
            .take(MAX_NEEDED)
            .map(str::to_owned)
            .collect();
    }
    Ok(())
}

fn slice(file: &[u8], offset: u64, length: u64) -> Result<&[u8], ElfError> {
    let from = usize::try_from(offset).map_err(|_| ElfError::Truncated)?;
    let length = usize::try_from(length).map_err(|_| ElfError::Truncated)?;
    let to = from.checked_add(length).ok_or(ElfError::Truncated)?;
    file.get(from..to).ok_or(ElfError::Truncated)
}

fn array<const N: usize>(file: &[u8], offset: u64) -> Result<[u8; N], ElfError> {
    slice(file, offset, N as u64)?
        .try_into()
        .map_err(|_| ElfError::Truncated)
}

fn u16_at(file: &[u8], offset: u64) -> Result<u16, ElfError> {
    array(file, offset).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], offset: u64) -> Result<u32, ElfError> {
    array(file, offset).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], offset: u64) -> Result<u64, ElfError> {
    array(file, offset).map(u64::from_le_bytes)
}

/// The text that ends with a NUL.
fn text_at(file: &[u8], offset: u64) -> Result<String, ElfError> {
    let from = usize::try_from(offset).map_err(|_| ElfError::Truncated)?;
    let rest = file.get(from..).ok_or(ElfError::Truncated)?;
    let end = rest
        .iter()
        .take(MAX_NAME)
        .position(|byte| *byte == 0)
        .ok_or(ElfError::Truncated)?;
    let text = rest.get(..end).ok_or(ElfError::Truncated)?;
    String::from_utf8(text.to_vec()).map_err(|_| ElfError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with an interpreter, a load segment that covers it whole, and a dynamic section.
    fn sample() -> Vec<u8> {
        let texts = b"\0libc.so.6\0$ORIGIN/../lib:/opt/lib\0/lib64/ld.so\0";
        let (table, dynamic) = (512_u64, 256_u64);
        let mut file = vec![0; 512];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&62_u16.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&3_u16.to_le_bytes());
        let address = 0x10000_u64;
        let headers = [
            (LOAD, 0, address, 1024),
            (DYNAMIC, dynamic, address + dynamic, 80),
            (INTERPRETER, table + 35, 0, 12),
        ];
        for (index, (kind, offset, address, length)) in headers.into_iter().enumerate() {
            let at = 64 + index * 56;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            file[at + 16..at + 24].copy_from_slice(&address.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&u64::to_le_bytes(length));
        }
        let entries = [(1_u64, 1_u64), (29, 11), (5, address + table), (0, 0)];
        for (index, (tag, value)) in entries.into_iter().enumerate() {
            let at = 256 + index * 16;
            file[at..at + 8].copy_from_slice(&tag.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
        }
        file.extend_from_slice(texts);
        file
    }

    #[test]
    fn the_interpreter_and_the_libraries_are_found() {
        let found = linkage(&sample()).unwrap();
        assert_eq!(found.machine, 62);
        assert_eq!(found.needed, ["libc.so.6"]);
        assert_eq!(found.search, ["$ORIGIN/../lib", "/opt/lib"]);
        assert_eq!(found.interpreter.as_deref(), Some("/lib64/ld.so"));
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_read_without_a_panic() {
        let file = sample();
        for length in 0..file.len() {
            assert!(linkage(&file[..length]).is_err(), "{length}");
        }
        for at in 0..file.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _ = linkage(&damaged);
            }
        }
    }

    #[test]
    fn what_is_no_such_file_is_said_to_be_none() {
        assert_eq!(linkage(b"#!/bin/sh\n"), Err(ElfError::NotElf));
        assert_eq!(linkage(b"\x7fELF\x01\x01"), Err(ElfError::Kind));
        let mut many = sample();
        many[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(linkage(&many), Err(ElfError::TooMany));
    }

    #[test]
    fn this_test_program_names_its_own_libraries() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = linkage(&own).unwrap();
        assert!(found.needed.iter().any(|name| name.starts_with("libc.so")));
        assert!(found.interpreter.is_some());
    }
}
