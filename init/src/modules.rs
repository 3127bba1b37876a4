//! What `depmod` knows of a kernel's modules: which file a name stands for, what must be loaded before it,
//! and which hardware asks for it. Reads the text forms (modules.dep, modules.alias, modules.softdep); the
//! `.bin` forms beside them say the same.
//!
//! The files are taken as foreign: sizes are bounded, a dependency that goes in a circle or names a
//! module that is not there ends a walk with an error, and matching an alias takes no stack.
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;

/// The largest file of depmod's that is read; a distribution's largest is about 2 MiB.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The most modules one kernel may have.
const MAX_MODULES: usize = 65_536;
/// The most dependencies of one module; the deepest stacks in use have about 40.
const MAX_DEPENDENCIES: usize = 512;
/// The longest alias or name that is looked at.
const MAX_NAME: usize = 1024;

/// Why a list of modules is not usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModulesError {
    /// The text is larger than [`MAX_BYTES`], or has too many entries.
    TooLarge(&'static str),
    /// A line does not have the form of its file.
    Line {
        file: &'static str,
        line: usize,
        why: &'static str,
    },
    /// A name that stands for no module of this kernel.
    Unknown(String),
    /// modules.dep says that `module` needs `needs`, and has no line for it.
    Missing { module: String, needs: String },
}

impl fmt::Display for ModulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(file) => write!(f, "{file} is larger than any kernel's"),
            Self::Line { file, line, why } => write!(f, "{file}, line {line}: {why}"),
            Self::Unknown(name) => write!(f, "this kernel has no module {name}"),
            Self::Missing { module, needs } => write!(
                f,
                "modules.dep has no line for {needs}, which {module} needs: run depmod again"
            ),
        }
    }
}

impl Error for ModulesError {}

/// modules.dep: each module's file and what it needs.
#[derive(Debug, Default, Clone)]
pub struct Dependencies {
    /// Path below lib/modules/VERSION, and the indices of what it needs, in the file's order.
    modules: Vec<(String, Vec<String>)>,
    names: BTreeMap<String, usize>,
}

impl Dependencies {
    /// Reads modules.dep: `path: path path ...` a line, paths below lib/modules/VERSION.
    ///
    /// # Errors
    /// Too large, or a line without a colon, with an absolute or climbing path, or with too many of them.
    pub fn parse(text: &[u8]) -> Result<Self, ModulesError> {
        const FILE: &str = "modules.dep";
        let mut found = Self::default();
        for (number, line) in lines(FILE, text)? {
            let wrong = |why| ModulesError::Line {
                file: FILE,
                line: number,
                why,
            };
            let (path, needs) = line.split_once(':').ok_or(wrong("no colon in it"))?;
            let needs: Vec<String> = needs
                .split_ascii_whitespace()
                .take(MAX_DEPENDENCIES + 1)
                .map(str::to_owned)
                .collect();
            if needs.len() > MAX_DEPENDENCIES {
                return Err(wrong("more than 512 dependencies"));
            }
            if !std::iter::once(path)
                .chain(needs.iter().map(String::as_str))
                .all(is_below)
            {
                return Err(wrong("not a path below lib/modules"));
            }
            if found.modules.len() == MAX_MODULES {
                return Err(ModulesError::TooLarge(FILE));
            }
            found.names.insert(name_of(path), found.modules.len());
            found.modules.push((path.to_owned(), needs));
        }
        Ok(found)
    }

    /// The path of the module `name`, in which `-` and `_` are the same.
    pub fn path(&self, name: &str) -> Option<&str> {
        self.entry(name).map(|(path, _)| path.as_str())
    }

    /// The paths of all modules, in the file's order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|(path, _)| path.as_str())
    }

    /// What to load for `name`, in this order, itself last. A circle is cut where it closes: the
    /// kernel then says which symbol it misses.
    ///
    /// # Errors
    /// `name`, or something it needs, is not in the list.
    pub fn order(&self, name: &str) -> Result<Vec<&str>, ModulesError> {
        let (path, _) = self
            .entry(name)
            .ok_or_else(|| ModulesError::Unknown(name.to_owned()))?;
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        // Depth first, without recursion: a module is listed once all it needs is.
        let mut stack = vec![(path.as_str(), false)];
        while let Some((asked, ready)) = stack.pop() {
            if ready {
                order.push(asked);
                continue;
            }
            // A name has one file, the one listed last, by whatever path it is asked for.
            let (path, needs) =
                self.entry(&name_of(asked))
                    .ok_or_else(|| ModulesError::Missing {
                        module: name.to_owned(),
                        needs: asked.to_owned(),
                    })?;
            if !seen.insert(path) {
                continue;
            }
            stack.push((path.as_str(), true));
            // depmod writes what must be loaded first last; what is pushed last is taken first.
            stack.extend(needs.iter().map(|need| (need.as_str(), false)));
        }
        Ok(order)
    }

    /// The lines of the modules that `keep` accepts, in the file's order.
    pub fn filtered(&self, keep: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        for (path, needs) in self.modules.iter().filter(|(path, _)| keep(path)) {
            text.push_str(path);
            text.push(':');
            for need in needs {
                text.push(' ');
                text.push_str(need);
            }
            text.push('\n');
        }
        text
    }

    fn entry(&self, name: &str) -> Option<&(String, Vec<String>)> {
        self.modules.get(*self.names.get(&canonical(name))?)
    }
}

/// modules.alias: which module a piece of hardware, a file system or a protocol asks for.
#[derive(Debug, Default, Clone)]
pub struct Aliases {
    /// Pattern and module, in the file's order.
    aliases: Vec<(String, String)>,
}

impl Aliases {
    /// Reads modules.alias: `alias PATTERN MODULE` a line.
    ///
    /// # Errors
    /// Too large, or a line of another form.
    pub fn parse(text: &[u8]) -> Result<Self, ModulesError> {
        const FILE: &str = "modules.alias";
        let mut aliases = Vec::new();
        for (line, text) in lines(FILE, text)? {
            let mut words = text.split_ascii_whitespace();
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("alias"), Some(pattern), Some(module), None) => {
                    aliases.push((pattern.to_owned(), canonical(module)));
                }
                _ => {
                    return Err(ModulesError::Line {
                        file: FILE,
                        line,
                        why: "not `alias PATTERN MODULE`",
                    });
                }
            }
        }
        Ok(Self { aliases })
    }

    /// The modules whose aliases match what a device, or the kernel, asks for.
    pub fn matching<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = &'a str> {
        self.aliases
            .iter()
            .filter(move |(pattern, _)| matches(pattern, wanted))
            .map(|(_, module)| module.as_str())
    }

    /// The lines of the modules that `keep` accepts, in the file's order.
    pub fn filtered(&self, keep: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        for (pattern, module) in self.aliases.iter().filter(|(_, module)| keep(module)) {
            text.push_str("alias ");
            text.push_str(pattern);
            text.push(' ');
            text.push_str(module);
            text.push('\n');
        }
        text
    }
}

/// modules.softdep: what a module would like to have loaded before or after it.
#[derive(Debug, Default, Clone)]
pub struct SoftDependencies {
    /// The module, whether before it, and what.
    wishes: Vec<(String, bool, String)>,
}

impl SoftDependencies {
    /// Reads modules.softdep: `softdep MODULE [pre: NAME...] [post: NAME...]` a line. Names
    /// before any `pre:` are wished for before, as in lines that forgot it.
    ///
    /// # Errors
    /// Too large, or a line of another form.
    pub fn parse(text: &[u8]) -> Result<Self, ModulesError> {
        const FILE: &str = "modules.softdep";
        let mut wishes = Vec::new();
        for (line, text) in lines(FILE, text)? {
            let mut words = text.split_ascii_whitespace();
            let (Some("softdep"), Some(module)) = (words.next(), words.next()) else {
                return Err(ModulesError::Line {
                    file: FILE,
                    line,
                    why: "not `softdep MODULE ...`",
                });
            };
            let mut before = true;
            for word in words {
                match word {
                    "pre:" => before = true,
                    "post:" => before = false,
                    name => wishes.push((canonical(module), before, canonical(name))),
                }
            }
        }
        Ok(Self { wishes })
    }

    /// What `module` wishes for before it (`true`) or after it (`false`).
    pub fn wishes(&self, module: &str, before: bool) -> impl Iterator<Item = &str> {
        let module = canonical(module);
        self.wishes
            .iter()
            .filter(move |(of, when, _)| *of == module && *when == before)
            .map(|(_, _, wished)| wished.as_str())
    }

    /// The lines of the modules that `keep` accepts.
    pub fn filtered(&self, keep: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        for (module, before, wished) in self.wishes.iter().filter(|(module, ..)| keep(module)) {
            let when = if *before { "pre:" } else { "post:" };
            for part in ["softdep ", module, " ", when, " ", wished, "\n"] {
                text.push_str(part);
            }
        }
        text
    }
}

/// The module's name from its file: without directories, without `.ko` and a compression's ending.
pub fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split_once(".ko").map_or(file, |(stem, _)| stem);
    canonical(stem)
}

/// The kernel's own spelling of a module's name: `_` for `-`.
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether `text` matches `pattern`, with `*`, `?` and `[...]` as in fnmatch(3). Work is at most the
/// product of the lengths, both of which are bounded; what is too long matches nothing.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    if pattern.len() > MAX_NAME || text.len() > MAX_NAME {
        return false;
    }
    let (mut p, mut t) = (0, 0);
    // Where to go on when the part after the last `*` did not fit: one character further.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, t));
                continue;
            }
            (Some(b'?'), Some(_)) => Some(1),
            (Some(b'['), Some(c)) => set(pattern.get(p..).unwrap_or_default(), *c),
            (Some(x), Some(c)) if x == c => Some(1),
            _ => None,
        };
        match (step, retry) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((after, from))) if from < text.len() => {
                retry = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// The length of the set `[...]` that `pattern` begins with, if it holds `c`.
fn set(pattern: &[u8], c: u8) -> Option<usize> {
    let end = pattern.iter().skip(2).position(|b| *b == b']')? + 2;
    let mut rest = pattern.get(1..end)?;
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    if negated {
        rest = rest.get(1..)?;
    }
    let mut held = false;
    while let [low, tail @ ..] = rest {
        rest = match tail {
            [b'-', high, tail @ ..] => {
                held |= (*low..=*high).contains(&c);
                tail
            }
            _ => {
                held |= *low == c;
                tail
            }
        };
    }
    (held != negated).then_some(end + 1)
}

/// The lines that say something, with their numbers from 1.
fn lines<'a>(
    file: &'static str,
    text: &'a [u8],
) -> Result<impl Iterator<Item = (usize, &'a str)> + use<'a>, ModulesError> {
    if text.len() > MAX_BYTES {
        return Err(ModulesError::TooLarge(file));
    }
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let before = text.get(..error.valid_up_to()).unwrap_or_default();
            return Err(ModulesError::Line {
                file,
                line: before.iter().filter(|b| **b == b'\n').count() + 1,
                why: "not UTF-8",
            });
        }
    };
    Ok(text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#')))
}

/// Whether the path stays below the directory it is relative to.
fn is_below(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= MAX_NAME
        && !path.contains('\0')
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &[u8] = b"\
kernel/net/core/failover.ko:
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko
kernel/a.ko: kernel/b.ko
kernel/b.ko: kernel/a.ko
kernel/c.ko: kernel/gone.ko
";

    #[test]
    fn what_is_needed_comes_first() {
        let modules = Dependencies::parse(DEP).unwrap();
        assert_eq!(
            modules.order("virtio-net").unwrap(),
            [
                "kernel/net/core/failover.ko",
                "kernel/drivers/net/net_failover.ko",
                "kernel/drivers/net/virtio_net.ko.xz"
            ]
        );
    }

    #[test]
    fn a_module_is_loaded_once_by_whatever_path_it_is_asked_for() {
        let text = b"kernel/a.ko: kernel/old/b.ko kernel/b.ko\nkernel/b.ko:\n";
        let modules = Dependencies::parse(text).unwrap();
        assert_eq!(modules.order("a").unwrap(), ["kernel/b.ko", "kernel/a.ko"]);
    }

    #[test]
    fn a_circle_ends_and_a_gap_is_named() {
        let modules = Dependencies::parse(DEP).unwrap();
        assert_eq!(modules.order("a").unwrap().len(), 2);
        assert_eq!(
            modules.order("c").unwrap_err(),
            ModulesError::Missing {
                module: "c".into(),
                needs: "kernel/gone.ko".into()
            }
        );
        assert_eq!(
            modules.order("none").unwrap_err(),
            ModulesError::Unknown("none".into())
        );
    }

    #[test]
    fn a_damaged_list_is_refused_with_its_line() {
        for (text, line) in [
            (&b"kernel/a.ko:\nnonsense\n"[..], 2),
            (b"/etc/passwd:\n", 1),
            (b"kernel/a.ko: ../../b.ko\n", 1),
            (b"kernel/a.ko:\n\xff:\n", 2),
        ] {
            match Dependencies::parse(text) {
                Err(ModulesError::Line { line: at, .. }) => assert_eq!(at, line),
                other => panic!("{other:?}"),
            }
        }
        let long = format!("kernel/a.ko:{}\n", " b.ko".repeat(513));
        assert!(Dependencies::parse(long.as_bytes()).is_err());
        assert_eq!(
            Dependencies::parse(&vec![b'\n'; MAX_BYTES + 1]).unwrap_err(),
            ModulesError::TooLarge("modules.dep")
        );
    }

    #[test]
    fn aliases_match_as_fnmatch_does() {
        for (pattern, text, want) in [
            ("virtio:d00000001v*", "virtio:d00000001v00001AF4", true),
            ("virtio:d00000001v*", "virtio:d00000002v00001AF4", false),
            (
                "pci:v00008086d0000100[EF]sv*sd*bc*sc*i*",
                "pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00",
                true,
            ),
            ("a[!b]c", "abc", false),
            ("a[!b]c", "adc", true),
            ("a[0-9]", "a7", true),
            ("a[", "a[", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "axxbxxbyc", true),
            ("fs-vfat", "fs-vfat", true),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
        // A pattern made to be slow: linear in the text for each star, not exponential.
        assert!(!matches(&"*a".repeat(500), &"b".repeat(1000)));
        assert!(!matches(&"*".repeat(2000), "x"));
    }

    #[test]
    fn aliases_and_wishes_can_be_cut_to_what_an_image_holds() {
        let aliases =
            Aliases::parse(b"# made\nalias virtio:d1v* virtio-net\nalias fs-ext3 ext4\n").unwrap();
        assert_eq!(
            aliases.matching("virtio:d1v2").collect::<Vec<_>>(),
            ["virtio_net"]
        );
        assert_eq!(
            aliases.filtered(|module| module == "ext4"),
            "alias fs-ext3 ext4\n"
        );
        assert!(Aliases::parse(b"alias x\n").is_err());
        let soft = SoftDependencies::parse(b"softdep ext4 pre: crc32c post: x\nsoftdep cifs gcm\n")
            .unwrap();
        assert_eq!(soft.wishes("ext4", true).collect::<Vec<_>>(), ["crc32c"]);
        assert_eq!(soft.wishes("cifs", true).collect::<Vec<_>>(), ["gcm"]);
        assert_eq!(
            soft.filtered(|module| module == "ext4"),
            "softdep ext4 pre: crc32c\nsoftdep ext4 post: x\n"
        );
    }
}
