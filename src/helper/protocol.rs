//! What is said on the helper's socket: three lines of JSON a connection.
//!
//! The helper greets, with a number that is used once. The client asks, with that number. The helper answers; or it
//! answers instead of the greeting, when it refuses the client. A request has one form, the one
//! [`Request::line`] writes: a member that is not known could be one that limits what is asked for, so it
//! is refused and not passed over.
// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use nanoserde::DeJson;

use crate::crypto::json::{self, Writer};
use crate::sys::log;

/// Of this protocol. A request of another version is refused.
pub const VERSION: i64 = 1;

/// The reason of a refusal that passes by itself.
pub const BUSY: &str = "Busy";

/// The longest line, with its end.
pub const LINE: usize = 4 * 1024;

/// The longest message of a refusal, in bytes: if each were a quote, it would still fit its line.
const MESSAGE: usize = 1900;

/// The longest name of what something is done for.
const NAME: usize = 64;

/// Hexadecimal digits of a greeting's number.
const NONCE: usize = 32;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Restart the machine.
    Reboot,
    /// Have the SSH server read its configuration again, once that was checked.
    SshdReload,
}

impl Operation {
    const ALL: [Self; 2] = [Self::Reboot, Self::SshdReload];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::SshdReload => "sshd.reload",
        }
    }
}

/// The helper's first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Of its bcd.
    pub version: String,
    pub pid: i64,
    pub nonce: String,
}

/// The client's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    /// What it is done for, such as a command's id: for the helper's log.
    pub whom: String,
}

/// The helper's last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// A word for programs and a sentence for people.
    Refused {
        reason: String,
        message: String,
    },
}

#[derive(DeJson, Default)]
#[nserde(default)]
struct Said {
    protocol: i64,
    version: String,
    pid: i64,
    nonce: String,
    operation: String,
    #[nserde(rename = "for")]
    whom: String,
    done: Option<bool>,
    reason: String,
    message: String,
}

/// A line of JSON, bounded.
fn said(line: &[u8]) -> Option<Said> {
    let text = json::check(line, LINE, 4).ok()?;
    Said::deserialize_json(text).ok()
}

impl Greeting {
    pub fn line(&self) -> String {
        let mut json = Writer::default();
        json.begin("");
        json.number("protocol", VERSION);
        json.text("version", &self.version);
        json.number("pid", self.pid);
        json.text("nonce", &self.nonce);
        json.end();
        json.finish() + "\n"
    }
}

impl Request {
    pub fn line(&self, nonce: &str) -> String {
        let mut json = Writer::default();
        json.begin("");
        json.number("protocol", VERSION);
        json.text("nonce", nonce);
        json.text("operation", self.operation.name());
        json.text("for", &self.whom);
        json.end();
        json.finish() + "\n"
    }

    /// Reads a request, without its line's end, that answers the greeting with `nonce`.
    ///
    /// # Errors
    /// A refusal.
    pub fn read(line: &[u8], nonce: &str) -> Result<Self, Answer> {
        let form = || Answer::refused("BadRequest", "that is no request in the form of protocol 1");
        let said = said(line).ok_or_else(form)?;
        if said.protocol != VERSION {
            return Err(Answer::refused(
                "ProtocolUnsupported",
                "this helper speaks protocol 1: restart bcd-helper.service and bcd.service, so that both are of one bcd",
            ));
        }
        if said.nonce != nonce {
            return Err(Answer::refused(
                "BadRequest",
                "that answers another greeting",
            ));
        }
        let known = Operation::ALL.into_iter();
        let operation = known.clone().find(|one| one.name() == said.operation);
        let Some(operation) = operation else {
            return Err(Answer::refused(
                "OperationUnsupported",
                "this helper knows no such operation: restart bcd-helper.service, when bcd was upgraded",
            ));
        };
        let named = said.whom.bytes();
        let named = named
            .clone()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if said.whom.len() > NAME || !named {
            return Err(form());
        }
        let request = Self {
            operation,
            whom: said.whom,
        };
        // Nothing but what was understood.
        match request.line(nonce).trim_end().as_bytes() == line {
            true => Ok(request),
            false => Err(form()),
        }
    }
}

impl Answer {
    /// `message` may quote what a program said, whatever that is: it is told on one line, and its beginning alone if it
    /// is long.
    pub fn refused(reason: &str, message: &str) -> Self {
        Self::Refused {
            reason: reason.to_owned(),
            message: log::cut(&log::one_line(message), MESSAGE).to_owned(),
        }
    }

    pub fn line(&self) -> String {
        let mut json = Writer::default();
        json.begin("");
        json.flag("done", *self == Self::Done);
        if let Self::Refused { reason, message } = self {
            json.text("reason", reason);
            json.text("message", message);
        }
        json.end();
        json.finish() + "\n"
    }
}

/// What a helper's line is, for a client; `None`: nothing a helper says.
pub fn heard(line: &[u8]) -> Option<Result<Greeting, Answer>> {
    let said = said(line)?;
    match said.done {
        Some(true) => Some(Err(Answer::Done)),
        Some(false) => Some(Err(Answer::Refused {
            reason: said.reason,
            message: said.message,
        })),
        // A later one greets in the same words, and refuses what it does not speak any more.
        None if said.protocol >= VERSION && said.nonce.len() == NONCE => Some(Ok(Greeting {
            version: said.version,
            pid: said.pid,
            nonce: said.nonce,
        })),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "0123456789abcdef0123456789abcdef";

    fn reason(line: &str) -> String {
        match Request::read(line.as_bytes(), OURS) {
            Ok(request) => panic!("{request:?}"),
            Err(Answer::Refused { reason, message }) => {
                assert!(!message.is_empty());
                reason
            }
            Err(Answer::Done) => panic!("{line} is done"),
        }
    }

    #[test]
    fn each_line_reads_as_it_was_written() {
        for operation in Operation::ALL {
            for whom in ["", "cmd_01JDXYZ", &"a".repeat(NAME)] {
                let whom = whom.to_owned();
                let request = Request { operation, whom };
                let line = request.line(OURS);
                assert!(line.len() < LINE);
                assert_eq!(Request::read(line.trim_end().as_bytes(), OURS), Ok(request));
            }
        }
        let greeting = Greeting {
            version: "0.1.0".to_owned(),
            pid: 17,
            nonce: OURS.to_owned(),
        };
        assert_eq!(heard(greeting.line().as_bytes()), Some(Ok(greeting)));
        for answer in [Answer::Done, Answer::refused("Busy", "a \"word\"\n")] {
            assert_eq!(heard(answer.line().as_bytes()), Some(Err(answer)));
        }
    }

    #[test]
    fn a_refusal_fits_its_line_whatever_a_program_said() {
        for c in [
            '"', '\\', '\n', '\u{1}', '\u{7f}', '\u{feff}', 'ä', '\u{fffd}',
        ] {
            let said = c.to_string().repeat(LINE);
            let answer = Answer::refused("OperationUnsupported", &said);
            assert!(answer.line().len() < LINE, "{c:?}");
            assert_eq!(heard(answer.line().as_bytes()), Some(Err(answer)));
        }
    }

    #[test]
    fn a_request_has_one_form_and_whatever_else_is_said_is_refused() {
        let whole = Request {
            operation: Operation::Reboot,
            whom: "cmd_1".to_owned(),
        }
        .line(OURS);
        let whole = whole.trim_end();
        assert_eq!(reason(&whole.replace(OURS, "00")), "BadRequest");
        assert_eq!(reason(&whole.replace(":1,", ":2,")), "ProtocolUnsupported");
        assert_eq!(
            reason(&whole.replace("reboot", "format")),
            "OperationUnsupported"
        );
        for bad in [
            String::new(),
            "reboot".to_owned(),
            whole.replace("cmd_1", "cmd 1"),
            whole.replace("cmd_1", "../1"),
            whole.replace("cmd_1", &"a".repeat(NAME + 1)),
            whole.replace('}', ",\"dry_run\":true}"),
            whole.replace('}', ",\"operation\":\"reboot\"}"),
            whole.replace(":1,", ":1, "),
            whole.replace("reboot", "re\\u0062oot"),
            format!(" {whole}"),
            format!("{whole}{}", " ".repeat(LINE)),
        ] {
            assert_eq!(reason(&bad), "BadRequest", "{bad}");
        }
        assert!(Request::read(&whole.as_bytes()[1..], OURS).is_err());
        assert!(Request::read(b"\xff\x00", OURS).is_err());
    }

    #[test]
    fn what_is_no_helpers_line_is_nothing() {
        for line in [
            "",
            "{}",
            "HTTP/1.1 200 OK",
            "{\"protocol\":1,\"nonce\":\"1\"}",
            "[]",
        ] {
            assert_eq!(heard(line.as_bytes()), None, "{line}");
        }
    }
}
