//! qcow2, read as a stream: QEMU's disk image format, versions 2 and 3 (docs/interop/qcow2.rst of QEMU).
//!
//! The format is made for random access, and a download has none. But `qemu-img convert`, which is how images are
//! published, writes in order: each table before the clusters it maps, and clusters in the order of the disk they make.
//! Such an image, compressed or not, is read in one pass, in memory of a few clusters. One that has lived as a
//! machine's disk is not in order: it is refused, with the remedy.
//!
//! Refused as well: a backing file, a data file beside it, encryption, extended L2 entries.
use std::io::{self, Read};

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::packed::{Output, bad, cut};

/// Bytes of the longest L1 table that is read: enough for 64 TiB in clusters of 64 KiB.
const L1: usize = 1024 * 1024;
/// The longest header, without its extensions.
const HEADER: usize = 112;
const SECTOR: u64 = 512;
/// Where a table or a cluster is, in an entry.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

const CUT: &str = "qcow2: the file ends in the middle";
const ORDER: &str = "qcow2: its clusters are not in order, as those of a disk that was in use: write it anew with qemu-img convert -O qcow2, \
                     without -W";

pub struct Qcow2 {
    input: Output,
    /// How far the file was read, and its last bytes.
    at: u64,
    tail: Vec<u8>,
    /// The disk's size, and how far it was made.
    size: u64,
    made: u64,
    cluster_bits: u32,
    is_zstd: bool,
    l1: Vec<u64>,
    /// The table of which part of the disk.
    l2: Vec<u64>,
    l2_of: Option<u64>,
    /// A cluster that was made, and how much of it is given.
    cluster: Vec<u8>,
    given: usize,
    /// Zeros to be given.
    zeros: u64,
    packed: Vec<u8>,
    inflate: Box<DecompressorOxide>,
    zstd: Option<DCtx<'static>>,
}

impl Qcow2 {
    /// Reads the header and the first table.
    ///
    /// # Errors
    /// It is none that is read here.
    pub fn open(input: Output) -> io::Result<Self> {
        let mut qcow2 = Self {
            input,
            at: 0,
            tail: Vec::new(),
            size: 0,
            made: 0,
            cluster_bits: 0,
            is_zstd: false,
            l1: Vec::new(),
            l2: Vec::new(),
            l2_of: None,
            cluster: Vec::new(),
            given: 0,
            zeros: 0,
            packed: Vec::new(),
            inflate: Box::default(),
            zstd: None,
        };
        let mut header = vec![0; HEADER];
        qcow2.exact(&mut header)?;
        let u32_at = |at: usize| {
            let bytes = header.get(at..at + 4).unwrap_or_default();
            bytes.try_into().map_or(0, u32::from_be_bytes)
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        let (version, cluster_bits) = (u32_at(4), u32_at(20));
        let features = match version {
            2 => 0,
            3 => u64_at(72),
            _ => return Err(bad("qcow2: it is of a version besides 2 and 3")),
        };
        if u64_at(8) != 0 {
            return Err(bad("qcow2: it stands on another image (a backing file)"));
        }
        if u32_at(32) != 0 {
            return Err(bad("qcow2: it is encrypted"));
        }
        if features & 2 != 0 {
            return Err(bad("qcow2: it is marked as corrupt"));
        }
        if features & 4 != 0 {
            return Err(bad("qcow2: its data are in another file"));
        }
        // Bit 0: the reference counts are stale, which reading does not need. Bit 3: the kind of compression.
        if features & !9 != 0 {
            return Err(bad(
                "qcow2: it uses features that are not known here (extended L2 entries?)",
            ));
        }
        if !(9..=21).contains(&cluster_bits) {
            return Err(bad("qcow2: its clusters have an impossible size"));
        }
        qcow2.is_zstd = match header.get(104) {
            Some(kind) if features & 8 != 0 => match kind {
                0 => false,
                1 => true,
                _ => return Err(bad("qcow2: its clusters are compressed in an unknown way")),
            },
            _ => false,
        };
        (qcow2.size, qcow2.cluster_bits) = (u64_at(24), cluster_bits);
        // An L2 table fills a cluster with entries of 8 bytes.
        let span = 1_u64 << (2 * cluster_bits - 3);
        let needed = qcow2.size.div_ceil(span);
        let length = usize::try_from(needed)
            .ok()
            .filter(|entries| *entries <= L1 / 8)
            .ok_or_else(|| bad("qcow2: its disk is too large for its clusters"))?;
        if u64::from(u32_at(36)) < needed {
            return Err(bad("qcow2: its first table is shorter than its disk"));
        }
        qcow2.seek(u64_at(40))?;
        qcow2.l1 = qcow2.table(length)?;
        Ok(qcow2)
    }

    /// The size of the disk it makes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.input
            .read_exact(into)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => cut(CUT),
                _ => error,
            })?;
        self.at += into.len() as u64;
        Ok(())
    }

    /// Goes on to `to`.
    fn seek(&mut self, to: u64) -> io::Result<()> {
        let skip = to.checked_sub(self.at).ok_or_else(|| bad(ORDER))?;
        self.tail.clear();
        match io::copy(&mut self.input.by_ref().take(skip), &mut io::sink())? == skip {
            true => self.at = to,
            false => return Err(cut(CUT)),
        }
        Ok(())
    }

    fn table(&mut self, entries: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; entries * 8];
        self.exact(&mut bytes)?;
        let (entries, _) = bytes.as_chunks::<8>();
        Ok(entries
            .iter()
            .map(|entry| u64::from_be_bytes(*entry))
            .collect())
    }

    /// Makes the next part of the disk: a cluster, or zeros.
    fn next(&mut self) -> io::Result<()> {
        let bits = self.cluster_bits;
        let l2_bits = bits - 3;
        let number = self.made >> bits;
        let index = number >> l2_bits;
        let place = usize::try_from(index)
            .ok()
            .and_then(|index| self.l1.get(index));
        let table = place.copied().unwrap_or_default() & OFFSET;
        let left = self.size - self.made;
        if table == 0 {
            let end = (index + 1) << (bits + l2_bits);
            self.zeros = left.min(end - self.made);
            return Ok(());
        }
        if self.l2_of != Some(index) {
            self.seek(table)?;
            self.l2 = self.table(1 << l2_bits)?;
            self.l2_of = Some(index);
        }
        let within = usize::try_from(number & ((1 << l2_bits) - 1)).unwrap_or(usize::MAX);
        let entry = self.l2.get(within).copied().unwrap_or_default();
        let length = 1_usize << bits;
        if entry >> 62 & 1 == 1 {
            self.compressed(entry, length)?;
        } else if entry & 1 == 1 || entry & OFFSET == 0 {
            // Marked as zeros, or never written.
            self.zeros = left.min(length as u64);
            return Ok(());
        } else {
            self.seek(entry & OFFSET)?;
            let mut cluster = std::mem::take(&mut self.cluster);
            cluster.resize(length, 0);
            // A file need not hold the end of its last cluster that the disk does not have.
            let needed = usize::try_from(left).unwrap_or(length).min(length);
            self.exact(cluster.get_mut(..needed).unwrap_or_default())?;
            self.cluster = cluster;
        }
        self.cluster
            .truncate(usize::try_from(left).unwrap_or(length));
        self.given = 0;
        Ok(())
    }

    /// Unpacks a compressed cluster. They lie side by side, at any byte; their length is told in sectors, so that each
    /// reaches into the next one.
    fn compressed(&mut self, entry: u64, length: usize) -> io::Result<()> {
        let bits = 62 - (self.cluster_bits - 8);
        let from = entry & ((1 << bits) - 1);
        let sectors = (entry >> bits) & ((1 << (self.cluster_bits - 8)) - 1);
        let end = (from / SECTOR + 1 + sectors) * SECTOR;
        let behind = from.checked_sub(self.at.saturating_sub(self.tail.len() as u64));
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        match behind.and_then(|behind| self.tail.get(usize::try_from(behind).ok()?..)) {
            Some(known) => packed.extend_from_slice(known),
            None => self.seek(from)?,
        }
        // The last one's sectors may lie beyond the file's end.
        let missing = end.saturating_sub(self.at);
        let read = self.input.by_ref().take(missing).read_to_end(&mut packed)?;
        self.at += read as u64;
        self.cluster.clear();
        self.cluster.resize(length, 0);
        let whole = match self.is_zstd {
            false => {
                self.inflate.init();
                let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
                let (status, _, made) =
                    decompress(&mut self.inflate, &packed, &mut self.cluster, 0, flags);
                status == TINFLStatus::Done && made == length
            }
            true => self.unpack_zstd(&packed)? == length,
        };
        if !whole {
            return Err(bad("qcow2: a compressed cluster is damaged"));
        }
        let tail = packed.len().saturating_sub(SECTOR as usize);
        self.tail.clear();
        self.tail
            .extend_from_slice(packed.get(tail..).unwrap_or_default());
        self.packed = packed;
        Ok(())
    }

    fn unpack_zstd(&mut self, packed: &[u8]) -> io::Result<usize> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => {
                let mut zstd = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
                // No cluster is larger, so no window need be.
                let window = zstd.set_parameter(DParameter::WindowLogMax(21));
                window.map_err(|_| io::ErrorKind::OutOfMemory)?;
                none.insert(zstd)
            }
        };
        // After an error nothing more is read, and after a cluster the frame is over.
        let mut packed = InBuffer::around(packed);
        let mut out = OutBuffer::around(&mut self.cluster[..]);
        loop {
            let before = (packed.pos(), out.pos());
            let left = zstd.decompress_stream(&mut out, &mut packed);
            let left = left.map_err(|_| bad("qcow2: a compressed cluster is damaged"))?;
            if left == 0 || before == (packed.pos(), out.pos()) {
                return Ok(out.pos());
            }
        }
    }
}

impl Read for Qcow2 {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if self.zeros > 0 {
                let count = usize::try_from(self.zeros)
                    .unwrap_or(into.len())
                    .min(into.len());
                into.get_mut(..count).unwrap_or_default().fill(0);
                self.zeros -= count as u64;
                self.made += count as u64;
                return Ok(count);
            }
            let mut rest = self.cluster.get(self.given..).unwrap_or_default();
            if !rest.is_empty() {
                let read = rest.read(into)?;
                self.given += read;
                self.made += read as u64;
                return Ok(read);
            }
            if self.made >= self.size {
                // What is left (tables of reference counts) belongs to the file and not to the disk.
                io::copy(&mut self.input, &mut io::sink())?;
                return Ok(0);
            }
            self.next()?;
        }
    }
}
