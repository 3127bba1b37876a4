//! The kernel command line: what a boot loader passed, split as the kernel splits it
//! (`next_arg` in lib/cmdline.c).
//!
//! White space separates parameters, except between double quotes, which may stand around the value
//! (`k="a b"`) or around the whole (`"k=a b"`). A name matches whole: `bc.site` is not in `xbc.site=`. Nothing
//! here fails: a doubled parameter and a line that was cut off are told apart from one that is wrong,
//! because a boot loader cuts silently and a boot menu doubles easily.
use std::error::Error;
use std::fmt;

/// The most bytes that are looked at; kernels take 4096 at most.
pub const MAX_BYTES: usize = 64 * 1024;
/// The most parameters.
const MAX_PARAMETERS: usize = 4096;
/// Lengths at which loaders and kernels cut, their final NUL included.
const LIMITS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// Parameters whose value is never shown.
const SECRET: [&str; 2] = ["bc.token", "bc.assertion"];
/// What a join token begins with, wherever it stands.
const TOKEN: &str = "bcjt_";
/// How much of a value an error shows.
const SHOWN: usize = 48;

/// One word of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    /// What follows the first `=`, without the quotes around it.
    pub value: Option<String>,
}

/// The line, split.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    parameters: Vec<Parameter>,
    length: usize,
    open_quote: bool,
}

/// A parameter that is there more than once, with different values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubled {
    pub name: String,
    first: String,
    second: String,
}

impl fmt::Display for Doubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            first,
            second,
        } = self;
        write!(
            f,
            "{name} stands twice on the kernel command line, as {first} and as {second}: leave one"
        )
    }
}

impl Error for Doubled {}

impl CommandLine {
    /// Splits `line`, as /proc/cmdline gives it. What is not UTF-8 is replaced; what is beyond
    /// [`MAX_BYTES`] is left out.
    pub fn parse(line: &[u8]) -> Self {
        let line = line.get(..MAX_BYTES).unwrap_or(line);
        let end = line
            .iter()
            .rposition(|byte| !matches!(byte, b'\n' | 0))
            .map_or(0, |last| last + 1);
        let line = line.get(..end).unwrap_or_default();
        let mut parsed = Self {
            length: line.len(),
            ..Self::default()
        };
        let text = String::from_utf8_lossy(line);
        let mut word = String::new();
        let mut quoted = false;
        for c in text.chars() {
            if c == '"' {
                quoted = !quoted;
            }
            if c.is_ascii_whitespace() && !quoted {
                parsed.add(&word);
                word.clear();
            } else {
                word.push(c);
            }
        }
        parsed.add(&word);
        parsed.open_quote = quoted;
        parsed
    }

    fn add(&mut self, word: &str) {
        if word.is_empty() || self.parameters.len() == MAX_PARAMETERS {
            return;
        }
        // Quotes around the whole word, or around the value; those elsewhere belong to it.
        let word = match word.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
            None => word,
        };
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => {
                let value = match value.strip_prefix('"') {
                    Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
                    None => value,
                };
                (name, Some(value.to_owned()))
            }
            None => (word, None),
        };
        self.parameters.push(Parameter {
            name: name.to_owned(),
            value,
        });
    }

    /// All parameters, in their order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Whether the line ends inside quotes.
    pub fn has_open_quote(&self) -> bool {
        self.open_quote
    }

    /// The values of each `name=value`, in their order: for parameters that may stand often, like `console`.
    pub fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.parameters
            .iter()
            .filter(move |parameter| parameter.name == name)
            .filter_map(|parameter| parameter.value.as_deref())
    }

    /// Whether `name` stands there, with or without a value other than 0.
    pub fn has(&self, name: &str) -> bool {
        self.parameters
            .iter()
            .any(|parameter| parameter.name == name && parameter.value.as_deref() != Some("0"))
    }

    /// The value of `name`, which may stand there once; the same value twice is once.
    ///
    /// # Errors
    /// Two different values. The error shows both, and of a secret how long they are.
    pub fn one(&self, name: &str) -> Result<Option<&str>, Doubled> {
        let mut values = self.values(name);
        let Some(first) = values.next() else {
            return Ok(None);
        };
        match values.find(|value| *value != first) {
            None => Ok(Some(first)),
            Some(second) => Err(Doubled {
                name: name.to_owned(),
                first: shown(name, first),
                second: shown(name, second),
            }),
        }
    }

    /// Why the line seems to have been cut off, if it does: it is as long as a loader or kernel takes, or
    /// ends inside quotes.
    pub fn cut(&self) -> Option<Cut> {
        // Of ours the last: what stands behind it may be no name, but the end of a secret that a blank went through.
        let mut backwards = self.parameters.iter().rev();
        let ours = backwards.find(|one| one.name.starts_with("bc."));
        let last = ours
            .or(self.parameters.last())
            .map_or_else(String::new, |parameter| brief(&parameter.name));
        if LIMITS.contains(&(self.length + 1)) || LIMITS.contains(&self.length) {
            Some(Cut {
                length: self.length,
                last,
                open_quote: self.open_quote,
            })
        } else if self.open_quote {
            Some(Cut {
                length: self.length,
                last,
                open_quote: true,
            })
        } else {
            None
        }
    }
}

/// Where a line was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The line's bytes.
    pub length: usize,
    /// The parameter that the cut went through, or came after.
    pub last: String,
    pub open_quote: bool,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.open_quote {
            "it ends inside quotes"
        } else {
            "a loader or kernel cuts there"
        };
        write!(
            f,
            "the kernel command line looks cut off after {} bytes, in or after {} ({why}): \
             make it shorter, bc.* first",
            self.length, self.last
        )
    }
}

/// A value as an error may show it: of a secret how long it is.
pub fn shown(name: &str, value: &str) -> String {
    if SECRET.contains(&name) || value.contains(TOKEN) {
        return format!("{} characters", value.chars().count());
    }
    format!("\"{}\"", brief(value))
}

/// The beginning of a name or value, up to a blank or a token: behind a blank may stand other parameters, secrets among
/// them, where a quote is missing or too many; before a token a blank may be missing.
pub fn brief(text: &str) -> String {
    let word = text.split(|c: char| c.is_whitespace()).next();
    let word = word.and_then(|word| word.split(TOKEN).next());
    let word = word.unwrap_or_default();
    let end = word
        .char_indices()
        .nth(SHOWN)
        .map_or(word.len(), |(at, _)| at);
    let mut brief = word.get(..end).unwrap_or_default().to_owned();
    if brief.len() < text.len() {
        brief.push_str("...");
    }
    brief
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn one(line: &str, name: &str) -> Option<String> {
        CommandLine::parse(line.as_bytes())
            .one(name)
            .unwrap()
            .map(str::to_owned)
    }

    #[test]
    fn values_are_quoted_both_ways() {
        for line in [r#"x k="a b" y"#, r#"x "k=a b" y"#, "x \t\"k=a b\"\n"] {
            assert_eq!(one(line, "k").as_deref(), Some("a b"), "{line}");
        }
        assert_eq!(one("k=a=b", "k").as_deref(), Some("a=b"));
        assert_eq!(one("k=", "k").as_deref(), Some(""));
        assert_eq!(one("k", "k"), None);
        // As the kernel: quotes in the middle group, and stay.
        assert_eq!(one(r#"k=a"b c"d e"#, "k").as_deref(), Some(r#"a"b c"d"#));
    }

    #[test]
    fn a_name_matches_whole() {
        let line = CommandLine::parse(b"xbc.site=no bc.sites=no BC.SITE=no \"a=1 bc.site=no\"");
        assert_eq!(line.one("bc.site"), Ok(None));
        assert!(!line.has("bc.site"));
    }

    #[test]
    fn a_doubled_parameter_names_both_values_but_no_secret() {
        let line =
            CommandLine::parse(b"bc.site=fsn1 quiet bc.site=nbg1 bc.token=abc bc.token=defg");
        let text = line.one("bc.site").unwrap_err().to_string();
        assert!(
            text.contains("\"fsn1\"") && text.contains("\"nbg1\""),
            "{text}"
        );
        let text = line.one("bc.token").unwrap_err().to_string();
        assert!(!text.contains("abc") && !text.contains("defg"), "{text}");
        assert!(
            text.contains("3 characters") && text.contains("4 characters"),
            "{text}"
        );
        assert_eq!(one("a=1 a=1", "a").as_deref(), Some("1"));
        let long = format!("a={} a=b", "ä".repeat(200));
        let text = CommandLine::parse(long.as_bytes())
            .one("a")
            .unwrap_err()
            .to_string();
        assert!(text.len() < 300, "{text}");
    }

    #[test]
    fn a_quote_too_few_or_too_many_shows_no_secret_behind_it() {
        let secret = "bc.token=bcjt_jt_1.hush bc.assertion=hush";
        for line in [
            format!("bc.site=\"fsn1 {secret}\" bc.site=nbg1"),
            format!("bc.site=fsn1 bc.site=\"{secret}"),
            "bc.site=bcjt_jt_1.hush bc.site=fsn1".to_owned(),
        ] {
            let line = CommandLine::parse(line.as_bytes());
            let text = line.one("bc.site").unwrap_err().to_string();
            assert!(!text.contains("hush") && !text.contains("bcjt"), "{text}");
        }
        for line in ["a \"bc.token bcjt_jt_1.hush", "bc.site=\"x bc.token=hush"] {
            let cut = CommandLine::parse(line.as_bytes()).cut().unwrap();
            assert!(!cut.to_string().contains("hush"), "{cut}");
        }
        assert_eq!(brief("one two"), "one...");
        assert_eq!(brief("bc.tokenbcjt_jt_1.hush"), "bc.token...");
        assert_eq!(brief(&"ä".repeat(49)), "ä".repeat(48) + "...");
    }

    #[test]
    fn a_line_that_was_cut_off_says_so() {
        for limit in [256, 2048, 4096] {
            for length in [limit - 1, limit] {
                let mut line = b"console=ttyS0 bc.assertion=".to_vec();
                line.resize(length, b'A');
                let cut = CommandLine::parse(&line).cut().unwrap();
                assert_eq!((cut.length, cut.last.as_str()), (length, "bc.assertion"));
            }
        }
        // A blank went through the token.
        let cut = CommandLine::parse(b"bc.token=bcjt_jt_1.hu shhushhush \"")
            .cut()
            .unwrap();
        assert_eq!(cut.last, "bc.token");
        let cut = CommandLine::parse(b"a=\"b c").cut().unwrap();
        assert!(cut.open_quote && cut.to_string().contains("inside quotes"));
        assert_eq!(CommandLine::parse(b"bc.assertion=AAAA\n").cut(), None);
    }

    #[test]
    fn switches_and_lists_are_read() {
        let line = CommandLine::parse(b"console=tty0 console=ttyS0,115200 bc.debug quiet=0");
        assert_eq!(
            line.values("console").collect::<Vec<_>>(),
            ["tty0", "ttyS0,115200"]
        );
        assert!(line.has("bc.debug"));
        assert!(!line.has("quiet") && !line.has("verbose"));
    }

    #[test]
    fn any_bytes_are_read_within_bounds() {
        let endless = vec![b'a'; MAX_BYTES * 2];
        assert_eq!(CommandLine::parse(&endless).parameters().len(), 1);
        let many = b"a ".repeat(MAX_BYTES);
        assert!(CommandLine::parse(&many).parameters().len() <= MAX_PARAMETERS);
        assert_eq!(
            CommandLine::parse(b"\xff\xfe=\x80 k=v").values("k").count(),
            1
        );
        for line in [&b""[..], b"\0", b"\"", b"=", b"\"\"", b"\"=\" \"", b"\n\n"] {
            let _ = CommandLine::parse(line).cut();
        }
    }
}
