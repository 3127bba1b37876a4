//! The kernel, its command line without secrets, and the distribution above it.
use super::tree::{Tree, clean};
use super::{Area, Problems};
use crate::proto::Kernel;
use crate::sys::log::is_unseen;

/// The kernels of today take no longer one (COMMAND_LINE_SIZE is 2048 on arm64 and x86).
const COMMAND_LINE: usize = 4096;
const OS_RELEASE: usize = 8 * 1024;

/// Parameters with one of these in their name keep their value to themselves.
const SECRET: [&str; 7] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "assertion",
    "credential",
    "psk",
];

/// The kernel command line with the values of what sounds secret, and the user and password of
/// addresses, replaced by `***`.
pub fn command_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut line = String::with_capacity(text.len());
    for word in words(text.trim()) {
        if !line.is_empty() {
            line.push(' ');
        }
        let bare = word.trim_start_matches('"');
        let (name, value) = bare.split_once('=').unwrap_or((bare, ""));
        if !value.is_empty() && is_secret(name) {
            line.push_str(name);
            line.push_str("=***");
        } else {
            push_without_user(&mut line, &without_inner(word));
        }
    }
    line.retain(|c| !is_unseen(c));
    line
}

/// A word without the secrets that stand in its value: quotes hold other parameters (`init.args="--token=x"`), and some
/// values are parameters themselves (`systemd.setenv=API_KEY=x`).
fn without_inner(word: &str) -> String {
    let mut clean = String::with_capacity(word.len());
    let mut rest = word;
    while let Some((before, value)) = rest.split_once('=') {
        clean.push_str(before);
        clean.push('=');
        let name = before
            .rsplit(|c: char| c.is_whitespace() || "\"',;&?".contains(c))
            .next();
        rest = value;
        if name.is_some_and(is_secret) {
            rest = behind(value);
            if rest.len() < value.len() {
                clean.push_str("***");
            }
        }
    }
    clean.push_str(rest);
    // And a join token without its name.
    while let Some((before, token)) = clean.split_once("bcjt_") {
        clean = [before, "***", behind(token)].concat();
    }
    clean
}

/// What follows a value: from the next blank or quote on.
fn behind(value: &str) -> &str {
    let end = value.find(|c: char| c.is_whitespace() || c == '"');
    value.get(end.unwrap_or(value.len())..).unwrap_or_default()
}

fn is_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    // A keymap is no key.
    lower.ends_with("key") || SECRET.iter().any(|secret| lower.contains(secret))
}

/// Splits at blanks that stand in no quotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    })
    .filter(|word| !word.is_empty())
}

/// `http://user:password@host/` becomes `http://***@host/`.
fn push_without_user(line: &mut String, word: &str) {
    let mut rest = word;
    while let Some((scheme, after)) = rest.split_once("://") {
        line.push_str(scheme);
        line.push_str("://");
        let end = after.find(['/', ' ', '"', ',']).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                line.push_str("***@");
                line.push_str(host);
            }
            None => line.push_str(authority),
        }
        rest = tail;
    }
    line.push_str(rest);
}

/// PRETTY_NAME of os-release(5).
pub fn os_release(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let value = text
        .lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))
        .unwrap_or_default()
        .trim();
    let mut bare = String::with_capacity(value.len());
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let mut chars = value.chars().skip(usize::from(quote.is_some()));
    while let Some(c) = chars.next() {
        match c {
            c if Some(c) == quote => break,
            '\\' if quote != Some('\'') => bare.extend(chars.next()),
            c => bare.push(c),
        }
    }
    clean(bare.as_bytes())
}

pub(super) fn read(tree: &Tree, architecture: String, problems: &mut Problems) -> Kernel {
    let command_line = match tree.bytes("proc/cmdline", COMMAND_LINE) {
        Ok(bytes) => command_line(&bytes),
        Err(error) => {
            problems.unread(Area::Kernel, "/proc/cmdline", &error);
            String::new()
        }
    };
    Kernel {
        release: tree.text("proc/sys/kernel/osrelease"),
        version: tree.text("proc/sys/kernel/version"),
        architecture,
        command_line,
    }
}

/// Empty where nobody has named the machine, which the kernel calls "(none)".
pub(super) fn read_hostname(tree: &Tree) -> String {
    let name = tree.text("proc/sys/kernel/hostname");
    match name.as_str() {
        "(none)" => String::new(),
        _ => name,
    }
}

pub(super) fn read_os_release(tree: &Tree) -> String {
    // The first is the administrator's, the second the vendor's; usually one leads to the other.
    let bytes = tree
        .bytes("etc/os-release", OS_RELEASE)
        .or_else(|_| tree.bytes("usr/lib/os-release", OS_RELEASE));
    bytes.map(|bytes| os_release(&bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::Fixture;
    use super::*;

    #[test]
    fn the_command_line_is_told_without_its_secrets() {
        for (given, told) in [
            (
                "BOOT_IMAGE=/vmlinuz root=LABEL=x ro quiet\n",
                "BOOT_IMAGE=/vmlinuz root=LABEL=x ro quiet",
            ),
            (
                "bc.token=bcjt_jt_1.abc bc.site=fsn1",
                "bc.token=*** bc.site=fsn1",
            ),
            ("\"bc.token=bcjt_jt_1.a b\" quiet", "bc.token=*** quiet"),
            (
                "rd.vconsole.keymap=us x.key=abc",
                "rd.vconsole.keymap=us x.key=***",
            ),
            ("bc.assertion=\"a b\" quiet", "bc.assertion=*** quiet"),
            (
                "rd.iscsi.password=x Ipmi.PassWord=y passwd",
                "rd.iscsi.password=*** Ipmi.PassWord=*** passwd",
            ),
            (
                "inst.repo=http://me:pw@host/x,https://a:b@c",
                "inst.repo=http://***@host/x,https://***@c",
            ),
            (
                "bc.gateway=https://gw.example.com",
                "bc.gateway=https://gw.example.com",
            ),
            ("a=\"://x@y z://u@v\"", "a=\"://***@y z://***@v\""),
            (
                "console=\"ttyS0 bc.token=x.y bc.assertion=z\" quiet",
                "console=\"ttyS0 bc.token=*** bc.assertion=***\" quiet",
            ),
            (
                "systemd.setenv=API_KEY=hush systemd.setenv=A=b",
                "systemd.setenv=API_KEY=*** systemd.setenv=A=b",
            ),
            (
                "x=http://h/?user=me&token=hush",
                "x=http://h/?user=me&token=***",
            ),
            ("bcjt_jt_1.x a=bcjt_jt_2.y", "*** a=***"),
            ("a=\"b bc.token=hush", "a=\"b bc.token=***"),
            ("a\u{1b}[31m b", "a[31m b"),
            ("token= \"", "token= \""),
            ("", ""),
        ] {
            assert_eq!(command_line(given.as_bytes()), told, "{given}");
        }
        command_line(b"\xff\"\xfe=\xfd");
    }

    #[test]
    fn a_machine_that_nobody_named_has_no_name() {
        let fixture = Fixture::new(&[("proc/sys/kernel/hostname", b"gpu-7\n")]);
        assert_eq!(read_hostname(&fixture.tree), "gpu-7");
        fixture.put("proc/sys/kernel/hostname", b"(none)\n");
        assert_eq!(read_hostname(&fixture.tree), "");
    }

    #[test]
    fn the_distribution_names_itself() {
        for (text, name) in [
            (
                "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian",
                "Debian GNU/Linux 12 (bookworm)",
            ),
            ("PRETTY_NAME='Rocky \\ 9'", "Rocky \\ 9"),
            ("PRETTY_NAME=\"a \\\"b\\\" \\$c\"", "a \"b\" $c"),
            ("PRETTY_NAME=Alpine", "Alpine"),
            ("PRETTY_NAME=\"open", "open"),
            ("PRETTY_NAME=\\", ""),
            ("PRETTY_NAME=", ""),
            ("", ""),
        ] {
            assert_eq!(os_release(text.as_bytes()), name, "{text}");
        }
    }
}
