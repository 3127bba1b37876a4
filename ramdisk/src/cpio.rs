//! The archive format of an initramfs: SVR4 cpio without checksums, "newc"
//! (Documentation/driver-api/early-userspace/buffer-format.rst in the kernel). A header is the magic and
//! thirteen numbers of eight hexadecimal digits, then the name with a NUL, then the data; name and data are
//! each padded to four bytes. The entry `TRAILER!!!` ends an archive; several may follow one another.
use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 6] = b"070701";
const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";
/// The kernel's own limit on a name (PATH_MAX), its NUL included.
const MAX_NAME: u32 = 4096;
/// Archives end on this boundary, so that what follows is aligned whatever it needs.
const BLOCK: u64 = 512;

/// What kind of file an entry is, with the permission bits beside it in [`Entry::mode`].
pub const TYPE_MASK: u32 = 0o170_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const REGULAR: u32 = 0o100_000;
pub const SYMLINK: u32 = 0o120_000;
pub const CHARACTER: u32 = 0o020_000;

/// An entry's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path without a leading `/`.
    pub name: Vec<u8>,
    pub mode: u32,
    /// Major and minor number, of a device file.
    pub device: (u32, u32),
    /// The bytes of its data: a file's content, a symbolic link's target.
    pub size: u32,
}

/// Why an archive cannot be read.
#[derive(Debug)]
pub enum CpioError {
    Io(io::Error),
    /// No header of a newc archive where one must be.
    NotNewc,
    /// The name's length is 0 or above what the kernel takes, or it lacks its NUL.
    Name,
    /// The archive ends before its trailer.
    Truncated,
}

impl fmt::Display for CpioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Io(_) => "reading failed",
            Self::NotNewc => "not a cpio archive of the form newc",
            Self::Name => "a cpio entry with an impossible name",
            Self::Truncated => "a cpio archive that is cut off",
        })
    }
}

impl Error for CpioError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for CpioError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

/// Writes one archive. All that could differ between two machines is fixed: owner 0:0, time 0,
/// device 0:0, inodes counted from 1.
pub struct Writer<W> {
    out: W,
    written: u64,
    inode: u32,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            inode: 0,
        }
    }

    /// Writes an entry and its data. A directory must come before what is in it.
    ///
    /// # Errors
    /// What the writer says, a name longer than the kernel takes, or data of another size than the header's.
    pub fn entry(&mut self, entry: &Entry, data: &mut dyn Read) -> io::Result<()> {
        self.header(entry)?;
        let copied = io::copy(&mut data.take(u64::from(entry.size)), &mut self.out)?;
        // What there is beyond the announced size must not be lost silently.
        if copied != u64::from(entry.size) || data.read(&mut [0])? != 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file changed its size meanwhile",
            ));
        }
        self.written += copied;
        self.pad(4)
    }

    /// Ends the archive and gives the writer back.
    ///
    /// # Errors
    /// What the writer says.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = u32::MAX;
        self.header(&Entry {
            name: TRAILER.to_vec(),
            mode: 0,
            device: (0, 0),
            size: 0,
        })?;
        self.pad(BLOCK)?;
        Ok(self.out)
    }

    fn header(&mut self, entry: &Entry) -> io::Result<()> {
        let length = u32::try_from(entry.name.len() + 1).unwrap_or(u32::MAX);
        if length > MAX_NAME || entry.name.is_empty() || entry.name.contains(&0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a name that the kernel does not take",
            ));
        }
        self.inode = self.inode.wrapping_add(1);
        let links = if entry.mode & TYPE_MASK == DIRECTORY {
            2
        } else {
            1
        };
        let mut header = Vec::with_capacity(HEADER + entry.name.len() + 4);
        header.extend_from_slice(MAGIC);
        for field in [
            self.inode,
            entry.mode,
            0, // uid
            0, // gid
            links,
            0, // mtime
            entry.size,
            0, // the device it lies on
            0,
            entry.device.0,
            entry.device.1,
            length,
            0, // checksum, of another form
        ] {
            header.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        header.extend_from_slice(&entry.name);
        header.push(0);
        self.out.write_all(&header)?;
        self.written += header.len() as u64;
        self.pad(4)
    }

    fn pad(&mut self, to: u64) -> io::Result<()> {
        let missing = self.written.next_multiple_of(to) - self.written;
        self.written += missing;
        io::copy(&mut io::repeat(0).take(missing), &mut self.out).map(drop)
    }
}

/// Reads the headers of one archive, passing over the data. Nothing is held but one name.
pub struct Reader<R> {
    from: R,
    /// What is left of the last entry's data and padding.
    rest: u64,
    /// The bytes of the archive up to here.
    pub position: u64,
}

impl<R: Read> Reader<R> {
    pub fn new(from: R) -> Self {
        Self {
            from,
            rest: 0,
            position: 0,
        }
    }

    /// The next entry, or `None` at the trailer; [`position`](Self::position) is then where it ends.
    ///
    /// # Errors
    /// The archive is cut off, or is none.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, CpioError> {
        let passed = io::copy(&mut (&mut self.from).take(self.rest), &mut io::sink())?;
        if passed != self.rest {
            return Err(CpioError::Truncated);
        }
        self.position += self.rest;
        self.rest = 0;
        let mut header = [0; HEADER];
        self.read(&mut header)?;
        let (magic, fields) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(CpioError::NotNewc);
        }
        let mut numbers = [0_u32; 13];
        for (number, digits) in numbers.iter_mut().zip(fields.chunks(8)) {
            *number = hexadecimal(digits).ok_or(CpioError::NotNewc)?;
        }
        let [_, mode, _, _, _, _, size, _, _, major, minor, length, _] = numbers;
        if !(2..=MAX_NAME).contains(&length) {
            return Err(CpioError::Name);
        }
        let mut name = vec![0; length as usize];
        self.read(&mut name)?;
        if name.pop() != Some(0) || name.contains(&0) {
            return Err(CpioError::Name);
        }
        let padding = self.position.next_multiple_of(4) - self.position;
        self.rest = padding + u64::from(size).next_multiple_of(4);
        if name == TRAILER {
            return Ok(None);
        }
        Ok(Some(Entry {
            name,
            mode,
            device: (major, minor),
            size,
        }))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), CpioError> {
        self.from.read_exact(into)?;
        self.position += into.len() as u64;
        Ok(())
    }
}

/// Eight hexadecimal digits; the kernel takes both cases.
fn hexadecimal(digits: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok()?;
    // from_str_radix would take a sign.
    let plain = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: usize) -> Entry {
        Entry {
            name: name.into(),
            mode: REGULAR | 0o644,
            device: (0, 0),
            size: u32::try_from(size).unwrap(),
        }
    }

    fn archive() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        let directory = Entry {
            name: b"etc".to_vec(),
            mode: DIRECTORY | 0o755,
            device: (0, 0),
            size: 0,
        };
        writer.entry(&directory, &mut io::empty()).unwrap();
        writer.entry(&file("etc/a", 5), &mut &b"hello"[..]).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn an_archive_reads_back_and_ends_on_a_block() {
        let bytes = archive();
        assert_eq!(bytes.len() % 512, 0);
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(reader.next_entry().unwrap().unwrap().name, b"etc");
        assert_eq!(reader.next_entry().unwrap().unwrap(), file("etc/a", 5));
        assert_eq!(reader.next_entry().unwrap(), None);
    }

    #[test]
    fn the_header_is_the_format_to_the_letter() {
        let bytes = archive();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with(
            "07070100000001000041ed00000000000000000000000200000000000000000000000000000000000000000000000000000004\
             00000000etc\0"
        ));
    }

    #[test]
    fn every_cut_of_an_archive_is_an_error_and_no_panic() {
        let bytes = archive();
        let whole = {
            let mut reader = Reader::new(&bytes[..]);
            while reader.next_entry().unwrap().is_some() {}
            usize::try_from(reader.position).unwrap()
        };
        for length in 0..whole {
            let mut reader = Reader::new(&bytes[..length]);
            let error = loop {
                match reader.next_entry() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{length} bytes were taken for a whole archive"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, CpioError::Truncated), "{length}: {error}");
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let good = archive();
        for (at, bytes) in [
            (0, &b"070702"[..]),
            (6, b"+0000001"),
            (94, b"00000000"),
            (94, b"ffffffff"),
        ] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(Reader::new(&bad[..]).next_entry().is_err(), "{at}");
        }
        // A size of 4 GiB ends at the end of the archive, having held nothing.
        let mut bad = good;
        bad[54..62].copy_from_slice(b"ffffffff");
        let mut reader = Reader::new(&bad[..]);
        assert!(reader.next_entry().unwrap().is_some());
        assert!(matches!(reader.next_entry(), Err(CpioError::Truncated)));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_an_error() {
        for data in [&b"hell"[..], b"hello!"] {
            let mut writer = Writer::new(Vec::new());
            assert!(writer.entry(&file("a", 5), &mut &data[..]).is_err());
        }
        let mut writer = Writer::new(Vec::new());
        assert!(writer.entry(&file("", 0), &mut io::empty()).is_err());
        assert!(
            writer
                .entry(&file(&"x".repeat(4096), 0), &mut io::empty())
                .is_err()
        );
    }
}
