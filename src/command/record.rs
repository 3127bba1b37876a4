//! A command as the journal keeps it, under its id: what is needed to go on after a crash, and no more.
//!
//! ```text
//! version 1 | state | ...
//!             1 PENDING:  the Command, encoded
//!             2 RUNNING:  length (1 byte) and text of the boot id it started in | the Command, encoded
//!             3 DONE:     its deadline, Unix time in milliseconds (8 bytes, little-endian)
//! ```
//!
//! Beside them stands the mark [`WATERMARK`]: 8 bytes, little-endian, a time. Commands with a deadline
//! at or before it may have been forgotten, and are not taken any more.
use crate::proto::{Command, Message};

const VERSION: u8 = 1;
const PENDING: u8 = 1;
const RUNNING: u8 = 2;
const DONE: u8 = 3;

/// The key of the mark.
pub const WATERMARK: &str = "command.watermark";

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Pending(Command),
    Running { boot_id: String, command: Command },
    Done { deadline_ms: u64 },
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Self::Pending(command) => {
                bytes.push(PENDING);
                bytes.extend(command.encode_to_vec());
            }
            Self::Running { boot_id, command } => {
                bytes.push(RUNNING);
                // A boot id has 36 bytes.
                let length = u8::try_from(boot_id.len()).unwrap_or(0);
                bytes.push(length);
                let boot_id = boot_id.as_bytes().get(..usize::from(length));
                bytes.extend(boot_id.unwrap_or_default());
                bytes.extend(command.encode_to_vec());
            }
            Self::Done { deadline_ms } => {
                bytes.push(DONE);
                bytes.extend(deadline_ms.to_le_bytes());
            }
        }
        bytes
    }

    /// `None` when it cannot be read: damaged, or a later version's.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [VERSION, PENDING, command @ ..] => Command::decode(command).ok().map(Self::Pending),
            [VERSION, RUNNING, length, rest @ ..] => {
                let (boot_id, command) = rest.split_at_checked(usize::from(*length))?;
                Some(Self::Running {
                    boot_id: std::str::from_utf8(boot_id).ok()?.to_owned(),
                    command: Command::decode(command).ok()?,
                })
            }
            [VERSION, DONE, deadline @ ..] => Some(Self::Done {
                deadline_ms: u64::from_le_bytes(deadline.try_into().ok()?),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn command() -> Command {
        Command {
            id: "cmd_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
            kind: "node.reboot".to_owned(),
            params: vec![8, 30],
            deadline_ms: 1_790_000_000_000,
            order: None,
        }
    }

    fn records() -> [Record; 4] {
        [
            Record::Pending(command()),
            Record::Running {
                boot_id: "c0ffee00-0000-4000-8000-000000000001".to_owned(),
                command: command(),
            },
            Record::Running {
                boot_id: String::new(),
                command: Command::default(),
            },
            Record::Done {
                deadline_ms: u64::MAX,
            },
        ]
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in records() {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    /// What machines out there have on their disks: it is read for ever.
    #[test]
    fn the_bytes_of_version_1_do_not_change() {
        let hex = |record: &Record| crate::crypto::digest::hex(&record.encode());
        let [pending, running, _, _] = records();
        let command = "0a1e636d645f30316b623777337839716e3576386d32723674347930736466681\
                       20b6e6f64652e7265626f6f741a02081e2080d8c1a28c34";
        assert_eq!(hex(&pending), format!("0101{command}"));
        let boot = crate::crypto::digest::hex(b"c0ffee00-0000-4000-8000-000000000001");
        assert_eq!(hex(&running), format!("010224{boot}{command}"));
        let done = Record::Done {
            deadline_ms: 1_790_000_000_000,
        };
        assert_eq!(hex(&done), "0103006c50c4a0010000");
    }

    #[test]
    fn damaged_records_and_those_of_later_versions_are_told_apart_from_good_ones() {
        let mut later = records()[0].encode();
        later[0] = 2;
        for bytes in [
            &later[..],
            &[],
            &[1],
            &[1, 0],
            &[1, 4, 1, 2],
            &[1, 3, 1, 2, 3],
            &[1, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            &[1, 2],
            &[1, 2, 5, b'a'],
            &[1, 2, 1, 0xff],
            &[1, 1, 0xff],
        ] {
            assert_eq!(Record::decode(bytes), None, "{bytes:?}");
        }
    }
}
