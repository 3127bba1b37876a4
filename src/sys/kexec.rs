//! Starting another kernel from this one: kexec_file_load(2). What is loaded is started by reboot(2), see
//! [`power`](super::power).
//!
//! The files are in memory, in a memfd each: nothing of the disk that they came from is in use.
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// Of linux/kexec.h.
const UNLOAD: libc::c_ulong = 1;
const NO_INITRAMFS: libc::c_ulong = 4;

/// The call's number; libc does not have it for arm64's musl.
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: libc::c_long = 294;
#[cfg(not(target_arch = "aarch64"))]
const KEXEC_FILE_LOAD: libc::c_long = libc::SYS_kexec_file_load;

/// A file in memory that is being filled.
pub struct Filling {
    file: File,
    length: u64,
}

/// A file in memory that nobody writes to any more.
pub struct Filled(File);

impl Filling {
    /// # Errors
    /// No descriptor, or no memory.
    pub fn new(name: &str) -> io::Result<Self> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC)?.into();
        Ok(Self { file, length: 0 })
    }

    /// # Errors
    /// No memory.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// The kernel takes no file that somebody could still write to: this one is opened anew, to be read.
    ///
    /// # Errors
    /// No descriptor, or no /proc.
    pub fn close(self) -> io::Result<Filled> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        File::open(path).map(Filled)
    }
}

/// Loads a kernel, to be started by [`Ending::Kexec`](super::power::Ending).
///
/// # Errors
/// What the kernel says: EPERM where it is locked down, ENOEXEC for what it cannot start, EKEYREJECTED and the like for a
/// signature that does not hold.
pub fn load(kernel: &Filled, initrd: Option<&Filled>, command_line: &str) -> io::Result<()> {
    let command_line = CString::new(command_line)?;
    let flags = match initrd {
        Some(_) => 0,
        None => NO_INITRAMFS,
    };
    let initrd = initrd.map_or(-1, |initrd| initrd.0.as_raw_fd());
    let length = command_line.as_bytes_with_nul().len();
    // SAFETY: both descriptors are open for the call, and the pointer is to that many bytes, which are only read.
    let done = unsafe {
        libc::syscall(
            KEXEC_FILE_LOAD,
            kernel.0.as_raw_fd(),
            initrd,
            length,
            command_line.as_ptr(),
            flags,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forgets what was loaded.
pub fn unload() {
    // SAFETY: with this flag nothing but the flag is looked at.
    unsafe {
        libc::syscall(
            KEXEC_FILE_LOAD,
            -1,
            -1,
            0_usize,
            std::ptr::null::<libc::c_char>(),
            UNLOAD,
        )
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    #[test]
    fn what_was_filled_is_read_back_and_written_no_more() {
        let mut filling = Filling::new("test").unwrap();
        filling.push(b"one ").unwrap();
        filling.push(b"two").unwrap();
        assert_eq!(filling.length(), 7);
        let mut filled = filling.close().unwrap();
        let mut text = String::new();
        filled.0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
        assert!(filled.0.write(b"x").is_err());
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let mut filling = Filling::new("test").unwrap();
        filling.push(b"no kernel").unwrap();
        let filled = filling.close().unwrap();
        assert!(load(&filled, None, "root=/dev/null").is_err());
        assert!(load(&filled, None, "a\0b").is_err());
    }
}
