//! Secrets that arrive in the environment: taken out of it, so that no child inherits them and
//! `/proc/PID/environ` shows them no longer.
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;

use zeroize::Zeroize;

/// The value of the variable `name`, wiped from the environment; `None` when it is not set.
///
/// Call it before any thread is started.
pub fn take_secret(name: &str) -> Option<OsString> {
    let variable = CString::new(name).ok()?;
    let value = std::env::var_os(name)?;
    // SAFETY: no other thread runs yet, so nobody reads or changes the environment meanwhile. The
    // pointer is into the value's own NUL-terminated bytes, which are writable: the process's stack
    // or memory that setenv(3) allocated.
    unsafe {
        let bytes = libc::getenv(variable.as_ptr());
        if !bytes.is_null() {
            let length = libc::strlen(bytes);
            std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length).zeroize();
        }
        std::env::remove_var(name);
    }
    Some(value)
}

/// As bytes that the caller can wipe.
pub fn into_bytes(value: OsString) -> Vec<u8> {
    value.into_vec()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The environment belongs to a process of its own: this test starts itself again.
    #[test]
    fn a_taken_secret_is_gone_from_the_environment_and_from_proc() {
        const NAME: &str = "BCD_TEST_SECRET";
        if std::env::var_os(NAME).is_some() {
            let value = take_secret(NAME).unwrap();
            assert_eq!(into_bytes(value), b"hush-hush");
            assert!(std::env::var_os(NAME).is_none());
            let environ = std::fs::read("/proc/self/environ").unwrap();
            assert!(!environ.windows(9).any(|window| window == b"hush-hush"));
            return;
        }
        assert!(take_secret("BCD_TEST_NO_SUCH").is_none());
        let test =
            "sys::environment::tests::a_taken_secret_is_gone_from_the_environment_and_from_proc";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--test-threads=1"])
            .env(NAME, "hush-hush")
            .output()
            .unwrap();
        assert!(
            status.status.success(),
            "{}",
            String::from_utf8_lossy(&status.stdout)
        );
        assert!(String::from_utf8_lossy(&status.stdout).contains("1 passed"));
    }
}
