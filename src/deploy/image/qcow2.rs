//! qcow2, read as a stream: QEMU's disk image format, versions 2 and 3 (docs/interop/qcow2.rst of QEMU).
//!
//! The format is made for random access, and a download has none. But `qemu-img convert`, which is how images are
//! published, writes in order: each table before the clusters it maps, and clusters in the order of the disk they make.
//! But for one thing: what is left of the cluster of the file that compressed data end in is filled by the next compressed
//! data, also when a table or an uncompressed cluster was put behind it meanwhile. So that rest is kept. Such an image,
//! compressed or not, is read in one pass, in memory of a few clusters. One that has lived as a machine's disk is not in
//! order: it is refused, with the remedy.
//!
//! Refused as well: a backing file, a data file beside it, encryption, extended L2 entries.
use std::io::{self, Read};

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::packed::{Output, bad, cut};

/// Bytes of the longest L1 table that is read: enough for 64 TiB in clusters of 64 KiB.
const L1: usize = 1024 * 1024;
/// The longest header, without its extensions.
const HEADER: usize = 112;
const SECTOR: u64 = 512;
/// Where a table or a cluster is, in an entry.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

const CUT: &str = "qcow2: the file ends in the middle";
const ORDER: &str = "qcow2: its clusters are not in order, as those of a disk that was in use, resized or preallocated: write it anew with \
                     qemu-img convert -O qcow2, without -W and -o preallocation";

pub struct Qcow2 {
    input: Output,
    /// How far the file was read.
    at: u64,
    /// What lies in front of `kept_to` and may be asked for again: the last sector of compressed data, and the rest of the
    /// cluster they ended in.
    kept: Vec<u8>,
    kept_to: u64,
    /// The disk's size, and how far it was made.
    size: u64,
    made: u64,
    cluster_bits: u32,
    is_zstd: bool,
    /// Tables, as they are in the file.
    l1: Vec<u8>,
    /// Of which part of the disk.
    l2: Vec<u8>,
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
            kept: Vec::new(),
            kept_to: 0,
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
        qcow2.l1.resize(length * 8, 0);
        let mut l1 = std::mem::take(&mut qcow2.l1);
        qcow2.exact(&mut l1)?;
        qcow2.l1 = l1;
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
        let mut skip = to.checked_sub(self.at).ok_or_else(|| bad(ORDER))?;
        let in_cluster = self.at & ((1 << self.cluster_bits) - 1);
        if self.kept_to == self.at && in_cluster != 0 {
            let rest = skip.min((1 << self.cluster_bits) - in_cluster);
            self.kept
                .reserve_exact(usize::try_from(rest).unwrap_or_default());
            let read = self.input.by_ref().take(rest).read_to_end(&mut self.kept)? as u64;
            self.at += read;
            self.kept_to = self.at;
            skip -= read;
        }
        match io::copy(&mut self.input.by_ref().take(skip), &mut io::sink())? == skip {
            true => self.at = to,
            false => return Err(cut(CUT)),
        }
        Ok(())
    }

    /// Makes the next part of the disk: a cluster, or zeros.
    fn next(&mut self) -> io::Result<()> {
        let bits = self.cluster_bits;
        let l2_bits = bits - 3;
        let number = self.made >> bits;
        let index = number >> l2_bits;
        let table = entry(&self.l1, index) & OFFSET;
        let left = self.size - self.made;
        if table == 0 {
            let end = (index + 1) << (bits + l2_bits);
            self.zeros = left.min(end - self.made);
            return Ok(());
        }
        if self.l2_of != Some(index) {
            self.seek(table)?;
            let mut l2 = std::mem::take(&mut self.l2);
            l2.resize(1 << bits, 0);
            self.exact(&mut l2)?;
            (self.l2, self.l2_of) = (l2, Some(index));
        }
        let entry = entry(&self.l2, number & ((1 << l2_bits) - 1));
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
        // What cannot be made smaller is not compressed.
        if end - from > length as u64 + SECTOR {
            return Err(bad(
                "qcow2: a compressed cluster is longer than one that is not",
            ));
        }
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        let begin = self.kept_to - self.kept.len() as u64;
        let known = from.checked_sub(begin).and_then(|skip| {
            let kept = self.kept.get(usize::try_from(skip).ok()?..)?;
            let wanted = usize::try_from(end - from).ok()?;
            Some(kept.get(..wanted).unwrap_or(kept))
        });
        packed.extend_from_slice(known.unwrap_or_default());
        let mut to = from + packed.len() as u64;
        if to < end {
            // Behind what is kept, or behind all of it.
            if to != self.at {
                self.seek(from)?;
                packed.clear();
            }
            // The last one's sectors may lie beyond the file's end.
            let missing = end - self.at;
            packed.reserve_exact(usize::try_from(missing).unwrap_or_default());
            self.at += self.input.by_ref().take(missing).read_to_end(&mut packed)? as u64;
            to = self.at;
        }
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
        let last = packed.len().saturating_sub(SECTOR as usize);
        // What is known up to there, or farther, stays.
        if to == self.at {
            self.kept.clear();
            self.kept
                .extend_from_slice(packed.get(last..).unwrap_or_default());
            self.kept_to = to;
        }
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
        // Each cluster is a frame.
        zstd.reset(ResetDirective::SessionOnly)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut packed = InBuffer::around(packed);
        let mut out = OutBuffer::around(&mut self.cluster[..]);
        loop {
            let before = (packed.pos(), out.pos());
            let left = zstd.decompress_stream(&mut out, &mut packed);
            let left = left.map_err(|_| bad("qcow2: a compressed cluster is damaged"))?;
            if left == 0 {
                return Ok(out.pos());
            }
            if before == (packed.pos(), out.pos()) {
                return Err(bad("qcow2: a compressed cluster is damaged"));
            }
        }
    }
}

/// The entry of that number; 0 behind the table's end.
fn entry(table: &[u8], number: u64) -> u64 {
    let (entries, _) = table.as_chunks::<8>();
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    entries
        .get(number)
        .map_or(0, |entry| u64::from_be_bytes(*entry))
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
