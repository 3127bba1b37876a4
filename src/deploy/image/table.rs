//! What makes a disk start: the image's partition table, fitted to its disk, and the first MiB, which are written last.
use super::{Error, HEAD, SECTOR, Written, clear_ends, flush};
use crate::crypto::digest;
use crate::deploy::gpt::{Gpt, Table};
use crate::deploy::ids::{self, Name};
use crate::sys::block::Block;
use crate::sys::memory::Region;

impl Written {
    /// The image's partition table.
    ///
    /// # Errors
    /// None before it is changed: it was read when the image began.
    pub fn table(&self, disk: &Block) -> Result<Table, Error> {
        Table::read(self.head.bytes(), disk.sector()).map_err(Error::Table)
    }

    /// Has `table`, which is the image's, fit the disk: it is written with the first MiB, its copy to the disk's end, and
    /// where the image ended there is none any more. Gives the partition that was grown, if that is wished, and by how many bytes.
    ///
    /// # Errors
    /// The disk is too small, or does not take it.
    pub fn fit(
        &mut self,
        disk: &Block,
        table: Gpt,
        grow: bool,
    ) -> Result<Option<(u32, u64)>, Error> {
        let old = table.copy_at();
        let fitted = table.fit(disk.size(), grow).map_err(Error::Table)?;
        let sector = usize::try_from(disk.sector()).unwrap_or(SECTOR);
        if (HEAD as u64..self.unpacked.size).contains(&old) {
            let mut region = Region::new(SECTOR).map_err(Error::Resources)?;
            let bytes = region.bytes_mut().get_mut(..sector).unwrap_or_default();
            read(disk, bytes, old)?;
            if bytes.starts_with(b"EFI PART") {
                bytes.fill(0);
                write(disk, bytes, old)?;
            }
        }
        self.copy = fitted.last;
        for (at, bytes) in fitted.first {
            let at = usize::try_from(at).unwrap_or(HEAD);
            let place = self.head.bytes_mut().get_mut(at..at + bytes.len());
            place.unwrap_or_default().copy_from_slice(&bytes);
        }
        flush(disk)?;
        Ok(fitted.grown)
    }

    /// Writes the first MiB, and the copy of the table: from here on the disk boots the image. The first sector comes when
    /// all else is there for good, so that whenever the power goes it boots nothing, or the whole.
    ///
    /// # Errors
    /// The disk does not take it, or does not hold it: it boots nothing.
    pub fn commit(self, disk: &Block) -> Result<(), Error> {
        let done = self.written_last(disk);
        if done.is_err() {
            let _ = clear_ends(disk);
        }
        done
    }

    fn written_last(&self, disk: &Block) -> Result<(), Error> {
        let sector = usize::try_from(disk.sector()).unwrap_or(SECTOR);
        let length = usize::try_from(self.unpacked.size).unwrap_or(HEAD);
        let length = length.min(HEAD).next_multiple_of(sector);
        let head = self.head.bytes().get(..length).unwrap_or_default();
        let (first, rest) = head.split_at(sector.min(length));
        let mut region = Region::new(HEAD).map_err(Error::Resources)?;
        if !rest.is_empty() {
            write(disk, rest, sector as u64)?;
        }
        for (at, bytes) in &self.copy {
            let aligned = region.bytes_mut().get_mut(..bytes.len());
            let aligned = aligned.unwrap_or_default();
            aligned.copy_from_slice(bytes);
            write(disk, aligned, *at)?;
        }
        flush(disk)?;
        write(disk, first, 0)?;
        flush(disk)?;
        let whole = (0, head);
        let copy = self.copy.iter().map(|(at, bytes)| (*at, &bytes[..]));
        for (at, bytes) in copy.chain([whole]) {
            let again = region.bytes_mut().get_mut(..bytes.len());
            let again = again.unwrap_or_default();
            read(disk, again, at)?;
            if again != bytes {
                return Err(Error::ReadBack {
                    written: digest::sha256(bytes),
                    read: digest::sha256(again),
                });
            }
        }
        Ok(())
    }

    /// What the disk will be found by.
    pub fn names(&self, disk: &Block) -> Vec<Name> {
        let size = disk.size();
        ids::of_disk(disk.sector(), &mut |from, length| {
            match usize::try_from(from).ok().filter(|from| *from < HEAD) {
                // It is not on the disk yet.
                Some(from) => {
                    let there = usize::try_from(size).unwrap_or(HEAD).min(HEAD);
                    let known = self.head.bytes().get(from..there).unwrap_or_default();
                    Ok(known.get(..length).unwrap_or(known).to_vec())
                }
                None => disk.bytes(from, length),
            }
        })
    }
}

fn read(disk: &Block, bytes: &mut [u8], at: u64) -> Result<(), Error> {
    let done = disk.read(bytes, at);
    done.map_err(|error| Error::Disk("read from", at, error))
}

fn write(disk: &Block, bytes: &[u8], at: u64) -> Result<(), Error> {
    let done = disk.write(bytes, at);
    done.map_err(|error| Error::Disk("write to", at, error))
}
