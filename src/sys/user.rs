//! Accounts: who this process is, and what a name in `/etc/passwd` means.
//! A static binary has no NSS: accounts from LDAP and the like are not seen, and a name that
//! `/etc/passwd` does not hold is an error, never a guess.
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// An account's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// Why an account could not be looked up.
#[derive(Debug)]
pub enum LookupError {
    /// `/etc/passwd` could not be read.
    Read(PathBuf, io::Error),
    /// No line of `/etc/passwd` has this name.
    Unknown(String),
    /// The line of this name has a number that is none.
    Malformed(String),
}

/// The effective user id of this process.
pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The numbers of the account called `name`, from `/etc/passwd`.
///
/// # Errors
/// See [`LookupError`].
pub fn lookup(name: &str) -> Result<Account, LookupError> {
    lookup_in(Path::new("/etc/passwd"), name)
}

/// The number of the group called `name`, from `/etc/group`; `None` where there is none.
pub fn group(name: &str) -> Option<u32> {
    let text = std::fs::read("/etc/group").ok()?;
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let named = fields.next() == Some(name.as_bytes());
        fields.nth(1).filter(|_| named).and_then(number)
    })
}

/// As [`lookup`], in another file of passwd(5)'s form.
///
/// # Errors
/// See [`LookupError`].
pub fn lookup_in(passwd: &Path, name: &str) -> Result<Account, LookupError> {
    let text =
        std::fs::read(passwd).map_err(|error| LookupError::Read(passwd.to_owned(), error))?;
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        if name.is_empty() || fields.next() != Some(name.as_bytes()) {
            continue;
        }
        let mut numbers = fields.skip(1).map(number);
        return match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(uid), Some(gid)) => Ok(Account { uid, gid }),
            _ => Err(LookupError::Malformed(name.to_owned())),
        };
    }
    Err(LookupError::Unknown(name.to_owned()))
}

/// A decimal id; the all-ones id means "no change" to chown(2) and is refused.
fn number(field: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(field).ok()?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != u32::MAX)
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, _) => write!(f, "cannot read {}", path.display()),
            Self::Unknown(name) => write!(f, "/etc/passwd has no user {name:?}"),
            Self::Malformed(name) => write!(f, "/etc/passwd: the line of {name:?} is malformed"),
        }
    }
}

impl std::error::Error for LookupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(_, error) => Some(error),
            Self::Unknown(_) | Self::Malformed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwd(text: &str, name: &str) -> Result<Account, LookupError> {
        let dir = crate::sys::fs::tests::scratch("passwd");
        let path = dir.join("passwd");
        std::fs::write(&path, text).unwrap();
        lookup_in(&path, name)
    }

    #[test]
    fn a_name_gives_its_own_numbers_only() {
        let text = "root:x:0:0:root:/root:/bin/sh\nbcd2:x:7:8::/:\nbcd:x:990:991::/:/bin/false\n";
        let account = Account { uid: 990, gid: 991 };
        assert_eq!(passwd(text, "bcd").unwrap(), account);
        assert_eq!(lookup("root").unwrap(), Account { uid: 0, gid: 0 });
    }

    #[test]
    fn groups_have_numbers_too() {
        assert_eq!(group("root"), Some(0));
        assert_eq!(group("no-such-group"), None);
    }

    #[test]
    fn an_unknown_or_empty_name_is_refused() {
        assert!(matches!(
            passwd("bcd:x:1:1::/:\n", "bc"),
            Err(LookupError::Unknown(_))
        ));
        assert!(matches!(
            passwd(":x:1:1::/:\n", ""),
            Err(LookupError::Unknown(_))
        ));
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        for line in [
            "bcd",
            "bcd:x",
            "bcd:x::1",
            "bcd:x:+1:1",
            "bcd:x:1:4294967295",
            "bcd:x:1:",
        ] {
            let found = passwd(line, "bcd");
            assert!(matches!(found, Err(LookupError::Malformed(_))), "{line}");
        }
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = lookup_in(Path::new("/nonexistent/passwd"), "bcd").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nonexistent/passwd");
    }
}
