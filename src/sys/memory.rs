//! Memory of its own pages: to be tested, locked so that it stays where it is, and for disks, which take bytes
//! from whole pages alone. And the pages of the program itself.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

/// Of the smallest page of all kernels we know.
const PAGE: usize = 4096;
/// A line of the processor's caches; smaller ones are flushed twice.
const LINE: usize = 64;

/// Memory of its own mapping, given back when it is dropped.
pub struct Region {
    at: *mut u64,
    words: usize,
}

impl Region {
    /// Maps `bytes`, rounded down to whole pages. The kernel gives the pages when they are touched or
    /// [locked](Self::lock).
    ///
    /// # Errors
    /// There is no room, or less than a page was asked for.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes - bytes % PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing of ours is there.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Self {
            at: at.cast(),
            words: bytes / 8,
        })
    }

    /// Locks a range of it, in words, into memory.
    ///
    /// # Errors
    /// The process may not lock so much (RLIMIT_MEMLOCK), or there is no more memory.
    pub fn lock(&mut self, from: usize, words: usize) -> io::Result<()> {
        let range = self.words_mut().get_mut(from..).unwrap_or_default();
        let length = words.min(range.len()) * 8;
        // SAFETY: the range is within our own mapping, and locking changes none of its bytes.
        unsafe { mlock(range.as_mut_ptr().cast(), length) }?;
        Ok(())
    }

    /// Its words. Fresh pages are zero.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is ours alone, of this length, readable, writable and aligned to pages; what
        // is there is always a valid u64. The borrow of self keeps it mapped and unshared.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.words) }
    }
}

impl Region {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is ours, of this length and readable; the borrow of self keeps it mapped, and
        // nobody writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.words * 8) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `words_mut`; every byte is a valid u8.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.words * 8) }
    }
}

// SAFETY: the mapping belongs to this value alone, and any thread may read, write and unmap it.
unsafe impl Send for Region {}
// SAFETY: through a shared borrow it can only be read.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: no borrow of the mapping outlives self, and nobody unmaps it twice.
        let _ = unsafe { munmap(self.at.cast(), self.words * 8) };
    }
}

/// Has what was written to `words` reach the memory itself, so that the next read comes from there and not
/// from the processor's caches; and keeps the compiler from knowing what is in them.
pub fn flush(words: &mut [u64]) {
    for line in words.chunks(LINE / 8) {
        flush_line(line.as_ptr());
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    std::hint::black_box(words);
}

#[cfg(target_arch = "x86_64")]
fn flush_line(at: *const u64) {
    // SAFETY: every x86-64 processor has CLFLUSH; the address is one of a borrowed word.
    unsafe { std::arch::x86_64::_mm_clflush(at.cast()) };
}

#[cfg(target_arch = "aarch64")]
fn flush_line(at: *const u64) {
    // SAFETY: Linux lets programs clean and invalidate by address (SCTLR_EL1.UCI); the address is one of a
    // borrowed word, and what is in it stays the same.
    unsafe { std::arch::asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags)) };
}

/// Elsewhere the region has to be larger than the caches.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn flush_line(_at: *const u64) {}

/// Where in the machine's memory the page of an address is; `None` where the kernel does not say (it tells
/// CAP_SYS_ADMIN alone).
pub fn physical(address: usize) -> Option<u64> {
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    let address = u64::try_from(address).ok()?;
    let map = File::open("/proc/self/pagemap").ok()?;
    let mut entry = [0; 8];
    map.read_exact_at(&mut entry, (address / page).checked_mul(8)?)
        .ok()?;
    frame(u64::from_ne_bytes(entry))
        .and_then(|frame| frame.checked_mul(page)?.checked_add(address % page))
}

/// Has the kernel take the program's own pages out of this process's memory, those that are as the file has them:
/// code, constants. What is used again comes back from the page cache by itself. After a phase that ran much code
/// for the last time.
pub fn give_back_program() {
    // SAFETY: the function is called with what dl_iterate_phdr(3) promises, and takes no data.
    unsafe { libc::dl_iterate_phdr(Some(give_back), std::ptr::null_mut()) };
}

/// Of the first object alone: the program.
unsafe extern "C" fn give_back(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the object is valid for this call, and so are its headers, as many as it says.
    let (base, headers) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object.dlpi_addr, headers)
    };
    let page = rustix::param::page_size() as u64;
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let from = base.wrapping_add(header.p_vaddr);
        let start = from - from % page;
        let length = (from.wrapping_add(header.p_filesz) - start).next_multiple_of(page);
        // SAFETY: the range is a segment of the program that nobody may write, so every page in it is as the file has
        // it, and the next access reads just that again.
        let _ = unsafe { madvise(start as *mut _, length as usize, Advice::LinuxDontNeed) };
    }
    1
}

/// The number of the page frame in an entry of /proc/PID/pagemap, of a page that is present.
fn frame(entry: u64) -> Option<u64> {
    let number = entry & ((1 << 55) - 1);
    (entry >> 63 == 1 && number != 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_given_back_runs_on_and_is_smaller() {
        // Pages of files that are in this process's memory, in KiB.
        let mapped = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("RssFile:"));
            line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
        };
        let before = mapped();
        give_back_program();
        let after = mapped();
        assert!(after < before, "{before} KiB before, {after} KiB after");
        assert_eq!(frame(1 << 63 | 5), Some(5));
    }

    #[test]
    fn memory_holds_what_is_written_to_it_and_is_zero_before() {
        let mut region = Region::new(3 * PAGE + 5).unwrap();
        let words = region.words_mut();
        assert_eq!(words.len(), 3 * PAGE / 8);
        assert!(words.iter().all(|word| *word == 0));
        for (n, word) in words.iter_mut().enumerate() {
            *word = n as u64;
        }
        flush(words);
        assert!(words.iter().enumerate().all(|(n, word)| *word == n as u64));
        // A page is within everybody's limit; a range beyond the end locks nothing.
        region.lock(0, PAGE / 8).unwrap();
        region.lock(3 * PAGE / 8, 100).unwrap();
        assert!(Region::new(PAGE - 1).is_err());
    }

    #[test]
    fn a_place_in_memory_is_told_of_present_pages_alone() {
        assert_eq!(frame(1 << 63 | 0x1234), Some(0x1234));
        assert_eq!(frame(0x1234), None, "swapped out");
        assert_eq!(frame(1 << 63), None, "not told to us");
        assert_eq!(frame(u64::MAX), Some((1 << 55) - 1));
    }
}
