//! GRUB: its script is run, as far as that decides what the default entry is and does.
//!
//! What draws, plays and waits does nothing here. What would decide by something that is not known here (a loop, a
//! program's answer put into a variable) is refused, and so is an entry that starts anything but a Linux kernel.
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{CONFIG, Entry, Error, Files, Place, Volume, bls, exists, text};
use syntax::{Command, Piece, Word, parse};

mod commands;
mod syntax;

/// Where it may be, the likeliest first. The last ones are stubs that lead to another.
pub const CONFIGS: [&str; 9] = [
    "/boot/grub/grub.cfg",
    "/grub/grub.cfg",
    "/boot/grub2/grub.cfg",
    "/grub2/grub.cfg",
    "/EFI/redhat/grub.cfg",
    "/EFI/rocky/grub.cfg",
    "/EFI/almalinux/grub.cfg",
    "/EFI/centos/grub.cfg",
    "/EFI/fedora/grub.cfg",
];
/// Commands that are run at most, and how deep calls and files may lead.
const STEPS: u32 = 20_000;
const DEPTH: u32 = 16;
/// Of all variables together, and of one command, in bytes.
const TEXT: usize = 256 * 1024;

pub fn default_entry(
    config: Place,
    volumes: &[Volume],
    is_uefi: bool,
    files: &mut dyn Files,
) -> Result<Entry, Error> {
    let mut grub = Grub {
        volumes,
        files,
        variables: BTreeMap::new(),
        functions: BTreeMap::new(),
        menu: Vec::new(),
        steps: 0,
        depth: 0,
        held: 0,
        boots: false,
        entry: Entry {
            loader: "grub",
            ..Entry::default()
        },
        config,
    };
    for (name, value) in [
        ("feature_menuentry_id", "y"),
        ("feature_platform_search_hint", "y"),
        ("feature_timeout_style", "y"),
        ("feature_default_font_path", "y"),
        ("feature_all_video_module", "y"),
        ("feature_200_final", "y"),
        ("feature_ntldr", "y"),
        ("grub_platform", if is_uefi { "efi" } else { "pc" }),
        ("grub_cpu", if is_uefi { "x86_64" } else { "i386" }),
    ] {
        grub.set(name, value.to_owned())?;
    }
    let config = grub.config.clone();
    let directory = config.path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let root = device(config.partition);
    grub.set("prefix", ["(", &root, ")", directory].concat())?;
    grub.set("root", root)?;
    grub.file(config)?;
    grub.choose()?;
    let config = grub.config;
    grub.entry.checked(&config)
}

/// What a menu has.
struct Item {
    title: String,
    id: String,
    does: Does,
}

#[derive(Clone)]
enum Does {
    Entry(Rc<[Command]>),
    Submenu(Rc<[Command]>),
    Bls(Rc<bls::Fields>),
}

struct Grub<'a> {
    volumes: &'a [Volume],
    files: &'a mut dyn Files,
    variables: BTreeMap<String, String>,
    functions: BTreeMap<String, Rc<[Command]>>,
    menu: Vec<Item>,
    steps: u32,
    depth: u32,
    /// Bytes of all variables.
    held: usize,
    /// `boot` was said: nothing comes after it.
    boots: bool,
    entry: Entry,
    /// The file that is run.
    config: Place,
}

/// How a list of commands ended.
enum Flow {
    On(bool),
    Return(bool),
}

impl Grub<'_> {
    fn refused(&self, what: &str) -> Error {
        Error::NotUnderstood(self.config.clone(), what.to_owned())
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Error> {
        self.held += name.len() + value.len();
        if self.held > TEXT {
            return Err(self.refused("it sets too much"));
        }
        self.variables.insert(name.to_owned(), value);
        Ok(())
    }

    fn value(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth >= DEPTH {
            return Err(self.refused("it goes too deep"));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Runs a file.
    fn file(&mut self, at: Place) -> Result<(), Error> {
        let script = text(self.files, &at, CONFIG)?;
        let before = std::mem::replace(&mut self.config, at);
        let commands = parse(&script).map_err(|(line, why)| {
            self.refused(&["line ", &line.to_string(), ": ", why].concat())
        })?;
        self.deeper(|grub| grub.all(&commands))?;
        // What an entry refers to later is in the file that was run last.
        if self.menu.is_empty() {
            self.config = before;
        }
        Ok(())
    }

    /// Starts the entry that would be started.
    fn choose(&mut self) -> Result<(), Error> {
        let mut wanted = self.value("default").to_owned();
        for _ in 0..DEPTH {
            if self.boots {
                return Ok(());
            }
            let (this, rest) = wanted.split_once('>').unwrap_or((&wanted, ""));
            let menu = std::mem::take(&mut self.menu);
            let by_name = || {
                menu.iter()
                    .find(|item| item.id == this || item.title == this)
            };
            let chosen = match this.parse::<usize>() {
                Ok(number) => menu.get(number),
                Err(_) => by_name(),
            };
            // As GRUB does: what is not there is the first.
            let item = chosen
                .or(menu.first())
                .ok_or_else(|| self.refused("it has no entries"))?;
            self.entry.title.clone_from(&item.title);
            self.set("chosen", item.title.clone())?;
            match &item.does {
                Does::Submenu(body) => {
                    let body = body.clone();
                    wanted = rest.to_owned();
                    self.all(&body)?;
                }
                Does::Entry(body) => {
                    let body = body.clone();
                    self.entry.kernel = Place::default();
                    self.all(&body)?;
                    return Ok(());
                }
                Does::Bls(fields) => {
                    let fields = fields.clone();
                    return self.start_bls(&fields);
                }
            }
        }
        Err(self.refused("its menus go too deep"))
    }

    fn all(&mut self, commands: &[Command]) -> Result<Flow, Error> {
        let mut last = true;
        for command in commands {
            match self.one(command)? {
                Flow::On(success) => last = success,
                end => return Ok(end),
            }
            if self.boots {
                return Ok(Flow::Return(true));
            }
        }
        Ok(Flow::On(last))
    }

    fn one(&mut self, command: &Command) -> Result<Flow, Error> {
        self.steps += 1;
        if self.steps > STEPS {
            return Err(self.refused("it does not come to an end"));
        }
        match command {
            Command::Simple(words) => {
                let words = self.expand(words)?;
                let flow = self.simple(&words)?;
                let (Flow::On(success) | Flow::Return(success)) = flow;
                let code = if success { "0" } else { "1" };
                self.variables.insert("?".to_owned(), code.to_owned());
                Ok(flow)
            }
            Command::If {
                branches,
                otherwise,
            } => {
                for (condition, then) in branches {
                    match self.all(condition)? {
                        Flow::On(true) => return self.all(then),
                        Flow::On(false) => {}
                        end => return Ok(end),
                    }
                }
                self.all(otherwise)
            }
            Command::Menu(words, body) => {
                let words = self.expand(words)?;
                self.item(&words, body.clone());
                Ok(Flow::On(true))
            }
            Command::Function(name, body) => {
                self.functions.insert(name.clone(), body.clone());
                Ok(Flow::On(true))
            }
            Command::Loop => Err(self.refused("it has a loop")),
        }
    }

    fn expand(&self, words: &[Word]) -> Result<Vec<String>, Error> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for word in words {
            let mut open = word.quoted.then(String::new);
            for piece in &word.pieces {
                match piece {
                    Piece::Text(text) => open.get_or_insert_default().push_str(text),
                    Piece::Variable { name, quoted: true } => {
                        open.get_or_insert_default().push_str(self.value(name));
                    }
                    Piece::Variable { name, .. } => {
                        let value = self.value(name);
                        if value.starts_with(char::is_whitespace) {
                            all.extend(open.take());
                        }
                        for (number, part) in value.split_whitespace().enumerate() {
                            if number > 0 {
                                all.extend(open.take());
                            }
                            open.get_or_insert_default().push_str(part);
                        }
                    }
                }
                bytes += open.as_ref().map_or(0, String::len);
                if bytes > TEXT {
                    return Err(self.refused("a command is too long"));
                }
            }
            all.extend(open);
        }
        Ok(all)
    }

    fn item(&mut self, words: &[String], body: Rc<[Command]>) {
        let (mut title, mut id) = ("", "");
        let mut rest = words.iter().skip(1);
        while let Some(word) = rest.next() {
            match word.as_str() {
                "--id" => id = rest.next().map_or("", String::as_str),
                "--class" | "--users" | "--hotkey" | "--source" => {
                    rest.next();
                }
                option if option.starts_with("--") => {
                    id = option.strip_prefix("--id=").unwrap_or(id);
                }
                word if title.is_empty() => title = word,
                _ => {}
            }
        }
        let does = match words.first().is_some_and(|word| word == "submenu") {
            true => Does::Submenu(body),
            false => Does::Entry(body),
        };
        self.menu.push(Item {
            title: title.to_owned(),
            id: id.to_owned(),
            does,
        });
    }

    fn simple(&mut self, words: &[String]) -> Result<Flow, Error> {
        let Some((name, arguments)) = words.split_first() else {
            return Ok(Flow::On(true));
        };
        if let Some(body) = self.functions.get(name).cloned() {
            let done = self.deeper(|grub| grub.all(&body))?;
            let (Flow::On(success) | Flow::Return(success)) = done;
            return Ok(Flow::On(success));
        }
        let done = match name.as_str() {
            "set" => match arguments.first().and_then(|word| word.split_once('=')) {
                Some((name, value)) => self.set(name, value.to_owned()).map(|()| true)?,
                None => true,
            },
            "unset" => {
                for name in arguments {
                    self.variables.remove(name);
                }
                true
            }
            "[" | "test" => {
                let arguments = match arguments.split_last() {
                    Some((last, rest)) if last == "]" => rest,
                    _ => arguments,
                };
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                self.test(&arguments)?
            }
            "false" => false,
            "return" => {
                return Ok(Flow::Return(
                    arguments.first().is_none_or(|code| code == "0"),
                ));
            }
            "load_env" => self.load_env(arguments)?,
            "search" | "search.fs_uuid" | "search.fs_label" | "search.file" => {
                self.search(name, arguments)?
            }
            "source" | "." | "configfile" => {
                let Some(at) = arguments.first().and_then(|path| self.place(path)) else {
                    return Err(self.refused("it runs a file that is on no volume"));
                };
                if name == "configfile" {
                    self.menu.clear();
                }
                // `source` of a file that is not there is an error that GRUB goes on after.
                match exists(self.files, &at)? {
                    true => self.file(at).map(|()| true)?,
                    false => false,
                }
            }
            "blscfg" => self.blscfg()?,
            "linux" | "linux16" | "linuxefi" => self.linux(arguments)?,
            "initrd" | "initrd16" | "initrdefi" => {
                for path in arguments.iter().filter(|path| !path.starts_with("--")) {
                    let at = self.place(path);
                    let at = at.ok_or_else(|| self.refused("an initrd that is on no volume"))?;
                    self.entry.initrds.push(at);
                }
                true
            }
            "boot" => {
                self.boots = true;
                true
            }
            // They ask what nobody here can answer, or have what cannot be told here.
            "fwsetup" if !arguments.is_empty() => false,
            "loadfont" | "background_image" | "keystatus" | "sleep" | "cmostest" => false,
            "eval" | "probe" | "regexp" | "smbios" | "read" | "chainloader" | "multiboot"
            | "multiboot2" | "module" | "module2" | "xen_hypervisor" | "xen_kernel"
            | "linuxboot" | "exit" | "halt" | "reboot" | "fwsetup" | "bls_import" => {
                return Err(self.refused(&["it says ", name].concat()));
            }
            assigned => match assigned.split_once('=') {
                Some((name, value)) => self.set(name, value.to_owned()).map(|()| true)?,
                None => true,
            },
        };
        Ok(Flow::On(done))
    }

    fn linux(&mut self, arguments: &[String]) -> Result<bool, Error> {
        let (path, rest) = arguments
            .split_first()
            .ok_or_else(|| self.refused("a linux without a kernel"))?;
        self.entry.kernel = self
            .place(path)
            .ok_or_else(|| self.refused("a kernel that is on no volume"))?;
        self.entry.initrds.clear();
        self.entry.command_line = rest
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(" ");
        Ok(true)
    }

    /// `/path` on `$root`, or `(hd0,gpt2)/path`; `None`: on no volume of this disk.
    fn place(&self, path: &str) -> Option<Place> {
        let (device, path) = match path.strip_prefix('(') {
            Some(rest) => rest.split_once(')')?,
            None => (self.value("root"), path),
        };
        let partition = partition(device)?;
        let known = self.volumes.iter().any(|one| one.partition == partition);
        known.then(|| Place::new(partition, path))
    }
}

/// As GRUB calls a partition of the disk it started from.
fn device(partition: u32) -> String {
    ["hd0,", &partition.to_string()].concat()
}

/// `hd0,gpt2`, `hd0,msdos1`, `hd0,3`: of whichever disk, for there is this one.
fn partition(device: &str) -> Option<u32> {
    let (disk, partition) = device.split_once(',')?;
    disk.strip_prefix("hd")?.parse::<u32>().ok()?;
    partition
        .trim_start_matches(|c: char| c.is_ascii_lowercase())
        .parse()
        .ok()
}

/// A word as it stands on a command line.
fn quoted(word: &str) -> String {
    match word.contains(char::is_whitespace) {
        true => ["\"", word, "\""].concat(),
        false => word.to_owned(),
    }
}
