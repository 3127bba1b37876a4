//! Disks asked in their own words: NVMe admin commands and SCSI commands, handed through by the kernel
//! (linux/nvme_ioctl.h, scsi/sg.h). What is opened here by its path is only asked; who writes claims the disk
//! first (`sys::block`).
//!
//! Each has a time-out, after which the kernel aborts it. A disk that is dead can still hold its caller
//! in the kernel's error handling for minutes: callers that must not hang ask from a process that may.
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

pub mod sense;

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xc048_4e41;
/// `_IO('N', 0x40)`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;
const SG_IO: libc::c_ulong = 0x2285;
const SG_DXFER_NONE: i32 = -1;
const SG_DXFER_TO_DEV: i32 = -2;
const SG_DXFER_FROM_DEV: i32 = -3;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// `struct sg_io_hdr`.
#[repr(C)]
struct SgHeader {
    interface_id: i32,
    dxfer_direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut c_void,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    usr_ptr: *mut c_void,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
}

/// A disk that can be asked.
pub struct Device(File);

/// An NVMe admin command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    pub opcode: u8,
    pub nsid: u32,
    pub cdw10: u32,
    pub cdw11: u32,
}

/// What goes with a SCSI command.
#[derive(Debug)]
pub enum Data<'a> {
    None,
    In(&'a mut [u8]),
    Out(&'a [u8]),
}

/// What a disk answered to a SCSI command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// SAM's status: 0 is GOOD, 2 CHECK CONDITION.
    pub status: u8,
    /// The host adapter's: 0 is fine, 3 a time-out.
    pub host_status: u16,
    /// What the disk says of its status, as long as it is.
    pub sense: Vec<u8>,
    /// Bytes of data that came.
    pub length: usize,
}

impl Device {
    /// Opens a disk's device file, whether there is a medium in it or not.
    ///
    /// # Errors
    /// It is missing, or may not be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        Ok(Self(file))
    }

    /// The disk behind a descriptor.
    pub(super) fn of(file: File) -> Self {
        Self(file)
    }

    /// The number of an NVMe disk's namespace.
    ///
    /// # Errors
    /// It is no NVMe disk.
    pub fn nvme_namespace(&self) -> io::Result<u32> {
        // SAFETY: it takes no argument and touches no memory of ours.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), NVME_IOCTL_ID as _, 0) };
        u32::try_from(id).map_err(|_| io::Error::last_os_error())
    }

    /// Gives an NVMe admin command that reads to `data`; gives its status field without the phase tag,
    /// 0 for success.
    ///
    /// # Errors
    /// It could not be given: no rights (CAP_SYS_ADMIN), no NVMe device, no answer in time.
    pub fn nvme_admin(&self, admin: Admin, data: &mut [u8], within: Duration) -> io::Result<u16> {
        let mut command = NvmeCommand {
            opcode: admin.opcode,
            nsid: admin.nsid,
            cdw10: admin.cdw10,
            cdw11: admin.cdw11,
            addr: data.as_mut_ptr().expose_provenance() as u64,
            data_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            timeout_ms: milliseconds(within),
            ..NvmeCommand::default()
        };
        // SAFETY: the structure is the kernel's, ours for the call; the kernel writes at most data_len bytes
        // to addr, which are those of `data`, borrowed for the call.
        let done = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                NVME_IOCTL_ADMIN_CMD as _,
                &raw mut command,
            )
        };
        match u16::try_from(done) {
            Ok(status) => Ok(status),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Gives a SCSI command, and the data that go with it.
    ///
    /// # Errors
    /// It could not be given: no rights (CAP_SYS_RAWIO), no SCSI device.
    pub fn scsi(&self, cdb: &[u8], data: Data<'_>, within: Duration) -> io::Result<Answer> {
        let mut sense = [0_u8; 64];
        let (direction, pointer, length) = match data {
            Data::None => (SG_DXFER_NONE, std::ptr::null_mut(), 0),
            Data::In(bytes) => (SG_DXFER_FROM_DEV, bytes.as_mut_ptr(), bytes.len()),
            Data::Out(bytes) => (SG_DXFER_TO_DEV, bytes.as_ptr().cast_mut(), bytes.len()),
        };
        let mut header = SgHeader {
            interface_id: i32::from(b'S'),
            dxfer_direction: direction,
            cmd_len: u8::try_from(cdb.len()).unwrap_or(0),
            mx_sb_len: 64,
            iovec_count: 0,
            dxfer_len: u32::try_from(length).unwrap_or(u32::MAX),
            dxferp: pointer.cast(),
            cmdp: cdb.as_ptr(),
            sbp: sense.as_mut_ptr(),
            timeout: milliseconds(within),
            flags: 0,
            pack_id: 0,
            usr_ptr: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            msg_status: 0,
            sb_len_wr: 0,
            host_status: 0,
            driver_status: 0,
            resid: 0,
            duration: 0,
            info: 0,
        };
        // SAFETY: the structure is the kernel's, ours for the call, and so are the three buffers that it
        // points to, each of the length it gives; of the command, and of data to the disk, the kernel only reads.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), SG_IO as _, &raw mut header) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let left = usize::try_from(header.resid).unwrap_or(0);
        let sense = sense.get(..usize::from(header.sb_len_wr));
        Ok(Answer {
            status: header.status,
            host_status: header.host_status,
            sense: sense.unwrap_or_default().to_vec(),
            length: length.saturating_sub(left),
        })
    }
}

fn milliseconds(within: Duration) -> u32 {
    u32::try_from(within.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_the_kernels() {
        assert_eq!(size_of::<NvmeCommand>(), 72);
        assert_eq!(std::mem::offset_of!(NvmeCommand, timeout_ms), 64);
        assert_eq!(size_of::<SgHeader>(), 88);
        assert_eq!(std::mem::offset_of!(SgHeader, timeout), 40);
        assert_eq!(std::mem::offset_of!(SgHeader, resid), 72);
    }

    #[test]
    fn what_is_no_disk_says_so() {
        let within = Duration::from_secs(1);
        assert!(Device::open(Path::new("/dev/no-such-disk")).is_err());
        let null = Device::open(Path::new("/dev/null")).unwrap();
        let admin = Admin {
            opcode: 2,
            nsid: u32::MAX,
            ..Admin::default()
        };
        assert!(null.nvme_admin(admin, &mut [0; 8], within).is_err());
        assert!(null.nvme_namespace().is_err());
        assert!(null.scsi(&[0; 6], Data::None, within).is_err());
    }
}
