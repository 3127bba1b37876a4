//! extlinux and syslinux: labels, of which one is the default.
use super::{CONFIG, Entry, Error, Files, Place, text};

/// Where the configuration may be.
pub const CONFIGS: [&str; 8] = [
    "/boot/extlinux/extlinux.conf",
    "/extlinux/extlinux.conf",
    "/boot/extlinux.conf",
    "/extlinux.conf",
    "/boot/syslinux/syslinux.cfg",
    "/syslinux/syslinux.cfg",
    "/EFI/syslinux/syslinux.cfg",
    "/syslinux.cfg",
];
/// Files that are read, one included by another.
const FILES: usize = 16;
const LABELS: usize = 256;

#[derive(Default)]
struct Label {
    name: String,
    title: String,
    kernel: Option<String>,
    /// A `.c32` program, another boot sector, a disk: no kernel.
    foreign: bool,
    append: Option<String>,
    initrds: Vec<String>,
}

#[derive(Default)]
struct Config {
    default: String,
    append: String,
    labels: Vec<Label>,
    /// Marked by `MENU DEFAULT`.
    marked: Option<usize>,
    files: usize,
}

pub fn default_entry(at: &Place, files: &mut dyn Files) -> Result<Entry, Error> {
    let directory = at.path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let place = |path: &str| match path.starts_with('/') {
        true => Place::new(at.partition, path),
        false => Place::new(at.partition, &[directory, "/", path].concat()),
    };
    let mut config = Config::default();
    let mut waiting = vec![at.clone()];
    while let Some(next) = waiting.pop() {
        config.files += 1;
        if config.files > FILES {
            let what = "it includes more than 16 files".to_owned();
            return Err(Error::NotUnderstood(next, what));
        }
        let text = text(files, &next, CONFIG)?;
        let included = config
            .take(&text)
            .map_err(|what| Error::NotUnderstood(next.clone(), what.to_owned()))?;
        waiting.extend(included.iter().map(|path| place(path)));
    }
    let by_name = || {
        let mut labels = config.labels.iter();
        labels.position(|label| label.name.eq_ignore_ascii_case(&config.default))
    };
    let refused = |what: &str| Error::NotUnderstood(at.clone(), what.to_owned());
    let chosen = config.marked.or_else(by_name).unwrap_or(0);
    let label = config
        .labels
        .get(chosen)
        .ok_or_else(|| refused("it has no labels"))?;
    let Some(kernel) = label.kernel.as_deref().filter(|_| !label.foreign) else {
        return Err(refused(
            &["the label ", &label.name, " starts no Linux kernel"].concat(),
        ));
    };
    let append = label.append.as_ref().unwrap_or(&config.append);
    let (mut initrds, mut words) = (label.initrds.clone(), Vec::new());
    for word in append.split_whitespace() {
        match word.strip_prefix("initrd=") {
            Some(paths) => initrds.extend(paths.split(',').map(str::to_owned)),
            None => words.push(word),
        }
    }
    let entry = Entry {
        loader: "extlinux",
        title: match label.title.is_empty() {
            true => label.name.clone(),
            false => label.title.clone(),
        },
        kernel: place(kernel),
        initrds: initrds.iter().map(|path| place(path)).collect(),
        command_line: words.join(" "),
    };
    entry.checked(at)
}

impl Config {
    /// Takes a file; gives the paths that it includes.
    fn take(&mut self, text: &str) -> Result<Vec<String>, &'static str> {
        let mut included = Vec::new();
        for line in text.lines().map(str::trim) {
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            let key = key.to_ascii_lowercase();
            let number = self.labels.len();
            match (key.as_str(), self.labels.last_mut()) {
                ("default", _) => value.clone_into(&mut self.default),
                ("include", _) => included.push(value.to_owned()),
                ("label", _) if number >= LABELS => return Err("it has more than 256 labels"),
                ("label", _) => self.labels.push(Label {
                    name: value.to_owned(),
                    ..Label::default()
                }),
                ("append", None) => value.clone_into(&mut self.append),
                // "-": none, not even the one for all.
                ("append", Some(label)) => {
                    label.append = Some(
                        value
                            .strip_prefix('-')
                            .filter(|rest| rest.is_empty())
                            .unwrap_or(value)
                            .to_owned(),
                    );
                }
                ("linux", Some(label)) => label.kernel = Some(value.to_owned()),
                ("kernel", Some(label)) => {
                    let programs = [".c32", ".com", ".bss", ".bin", ".bs", ".0", ".cbt", ".img"];
                    label.foreign |= programs.iter().any(|end| value.ends_with(end));
                    label.kernel = Some(value.to_owned());
                }
                ("localboot" | "boot" | "bss" | "pxe" | "com32" | "config", Some(label)) => {
                    label.foreign = true;
                }
                ("initrd", Some(label)) => {
                    label.initrds.extend(value.split(',').map(str::to_owned));
                }
                ("menu", Some(label)) => {
                    let (what, value) =
                        value.split_once(char::is_whitespace).unwrap_or((value, ""));
                    if what.eq_ignore_ascii_case("default") {
                        self.marked = number.checked_sub(1);
                    } else if what.eq_ignore_ascii_case("label") {
                        label.title = value.trim().replace('^', "");
                    } else if what.eq_ignore_ascii_case("include") {
                        included.push(value.trim().to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(included)
    }
}
