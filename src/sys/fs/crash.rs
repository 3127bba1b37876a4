//! [`Dir::write_atomic`] killed before each of its system calls, by a tracer: the shipped code
//! has no hook for it.
use std::mem::{MaybeUninit, size_of};

use super::tests::scratch;
use super::*;

const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new and longer";

/// What a child did until it was killed or done.
struct Trace {
    /// The numbers of the system calls it made.
    calls: Vec<i64>,
    killed: bool,
}

/// Runs `work` in a child of this process, killed when it enters its `kill_at`-th call, from 1.
fn traced(kill_at: usize, work: impl Fn() -> bool) -> Trace {
    // SAFETY: the child is this one thread; it makes no call that another thread's lock could
    // hold up (glibc's allocator is made fit for use after a fork), and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: plain calls on this process itself.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            let done = work();
            libc::_exit(i32::from(!done));
        }
    }
    wait(child);
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    // SAFETY: `child` is a stopped tracee of this thread.
    let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options) };
    assert_eq!(set, 0, "tracing is not permitted here");
    let mut calls = Vec::new();
    loop {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0) };
        let status = wait(child);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return Trace {
                calls,
                killed: false,
            };
        }
        assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP | 0x80);
        let Some(call) = entered(child) else {
            continue;
        };
        if calls.len() + 1 == kill_at {
            // SAFETY: a child of this process, not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            wait(child);
            return Trace {
                calls,
                killed: true,
            };
        }
        calls.push(call);
    }
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    status
}

/// The number of the call that a stopped child is about to make; `None` when it comes from one.
fn entered(child: libc::pid_t) -> Option<i64> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: `info` has room for `size` bytes, and all-zero is a valid value of it.
    let info = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            child,
            size,
            info.as_mut_ptr(),
        );
        info.assume_init()
    };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: the kernel filled `entry`, as it says that this is one.
    let number = unsafe { info.u.entry.nr };
    i64::try_from(number).ok()
}

#[test]
fn a_kill_before_any_step_leaves_the_old_file_or_the_new_one_whole() {
    let dir = Dir::open(&scratch("crash")).unwrap();
    let mut kill_at = 1;
    loop {
        dir.write_atomic("file", OLD, 0o600).unwrap();
        let trace = traced(kill_at, || dir.write_atomic("file", NEW, 0o600).is_ok());
        let renamed = trace.calls.iter().any(|call| is_rename(*call));
        let expected = if renamed { NEW } else { OLD };
        assert_eq!(
            dir.read("file", 100).unwrap(),
            expected,
            "killed before call {kill_at}"
        );
        if !trace.killed {
            assert!(kill_at > 5, "the tracer saw too few calls");
            return;
        }
        kill_at += 1;
    }
}

#[test]
fn the_bytes_are_flushed_before_the_rename_and_the_names_after() {
    let dir = Dir::open(&scratch("order")).unwrap();
    let trace = traced(usize::MAX, || dir.write_atomic("file", NEW, 0o600).is_ok());
    let steps: Vec<&str> = trace
        .calls
        .iter()
        .filter_map(|call| match *call {
            libc::SYS_fchmod => Some("mode"),
            libc::SYS_write => Some("write"),
            libc::SYS_fsync => Some("flush"),
            call if is_rename(call) => Some("rename"),
            _ => None,
        })
        .collect();
    assert_eq!(steps, ["mode", "write", "flush", "rename", "flush"]);
}

fn is_rename(call: i64) -> bool {
    matches!(call, libc::SYS_renameat | libc::SYS_renameat2)
}
