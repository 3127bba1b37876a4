//! The commands that decide something: tests, the environment block, searches, and entries of the Boot Loader
//! Specification.
use std::rc::Rc;

use super::super::{Error, Place, bls, exists, names, text};
use super::syntax::parse;
use super::{Does, Grub, Item, device};

/// GRUB's own size of an environment block, and more.
const ENVIRONMENT: usize = 64 * 1024;

impl Grub<'_> {
    /// `[ … ]`.
    pub(super) fn test(&mut self, words: &[&str]) -> Result<bool, Error> {
        // `or` binds less than `and`.
        for (word, either) in [("-o", true), ("-a", false)] {
            if let Some(at) = words.iter().skip(1).position(|one| *one == word) {
                let (before, after) = words.split_at_checked(at + 1).unwrap_or((words, &[]));
                let after = after.get(1..).unwrap_or_default();
                let first = self.deeper(|grub| grub.test(before))?;
                return match first == either {
                    true => Ok(either),
                    false => self.deeper(|grub| grub.test(after)),
                };
            }
        }
        let number = |text: &str| text.parse::<i64>().unwrap_or(0);
        Ok(match words {
            [] => false,
            ["!", rest @ ..] => !self.deeper(|grub| grub.test(rest))?,
            [one] => !one.is_empty(),
            ["-n", text] => !text.is_empty(),
            ["-z", text] => text.is_empty(),
            ["-e" | "-f" | "-s", path] => match self.place(path) {
                Some(at) => exists(self.files, &at)?,
                None => false,
            },
            ["-d", path] => match self.place(path) {
                Some(at) => !names(self.files, &at)?.is_empty(),
                None => false,
            },
            [a, "=" | "==", b] => a == b,
            [a, "!=", b] => a != b,
            [a, "-eq", b] => number(a) == number(b),
            [a, "-ne", b] => number(a) != number(b),
            [a, "-lt", b] => number(a) < number(b),
            [a, "-le", b] => number(a) <= number(b),
            [a, "-gt", b] => number(a) > number(b),
            [a, "-ge", b] => number(a) >= number(b),
            _ => return Err(self.refused(&["a test of ", &words.join(" ")].concat())),
        })
    }

    pub(super) fn load_env(&mut self, arguments: &[String]) -> Result<bool, Error> {
        let mut path = [self.value("prefix"), "/grubenv"].concat();
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            if matches!(word.as_str(), "-f" | "--file") {
                path = rest.next().cloned().unwrap_or_default();
            }
        }
        let Some(at) = self.place(&path) else {
            return Ok(false);
        };
        if !exists(self.files, &at)? {
            return Ok(false);
        }
        let block = text(self.files, &at, ENVIRONMENT)?;
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = line.split_once('=') {
                // A backslash stands before what would end the value.
                let value = value.trim_end_matches('#').replace("\\\\", "\\");
                self.set(name, value)?;
            }
        }
        Ok(true)
    }

    pub(super) fn search(&mut self, name: &str, arguments: &[String]) -> Result<bool, Error> {
        let (mut by, mut into, mut plain) = (
            name.split_once('.').map_or("", |(_, by)| by),
            "",
            Vec::new(),
        );
        let is_short = !by.is_empty();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(word) = rest.next() {
            match word {
                "--fs-uuid" | "-u" => by = "fs_uuid",
                "--label" | "-l" | "--fs-label" => by = "fs_label",
                "--file" | "-f" => by = "file",
                "--set" | "-s" => into = "root",
                "--hint" | "-h" => {
                    rest.next();
                }
                option if option.starts_with('-') => {
                    into = option.strip_prefix("--set=").unwrap_or(into);
                }
                word => plain.push(word),
            }
        }
        let mut plain = plain.into_iter();
        let wanted = plain.next().unwrap_or_default();
        if is_short {
            into = plain.next().unwrap_or("root");
        }
        let into = into.to_owned();
        let mut found = None;
        for volume in self.volumes {
            let is_it = match by {
                "fs_uuid" => volume.uuid.eq_ignore_ascii_case(wanted),
                "fs_label" => volume.label == wanted,
                _ => exists(self.files, &Place::new(volume.partition, wanted))?,
            };
            if is_it && !wanted.is_empty() {
                found = Some(volume.partition);
                break;
            }
        }
        match found {
            Some(partition) if !into.is_empty() => {
                self.set(&into, device(partition))?;
                Ok(true)
            }
            found => Ok(found.is_some()),
        }
    }

    /// Entries of the Boot Loader Specification become entries of the menu.
    pub(super) fn blscfg(&mut self) -> Result<bool, Error> {
        let own = self.value("blsdir").to_owned();
        for path in [own.as_str(), "/loader/entries", "/boot/loader/entries"] {
            let Some(at) = self.place(path).filter(|_| !path.is_empty()) else {
                continue;
            };
            let mut entries = bls::entries(&at, self.files)?;
            if entries.is_empty() {
                continue;
            }
            entries.sort_by(|a, b| bls::compare(&b.id, &a.id));
            self.menu.extend(entries.into_iter().map(|fields| Item {
                title: fields.title.clone(),
                id: fields.id.clone(),
                does: Does::Bls(Rc::new(fields)),
            }));
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn start_bls(&mut self, fields: &bls::Fields) -> Result<(), Error> {
        // Options and initrds may hold variables: "$kernelopts", "$tuned_initrd".
        let script = [
            "linux ",
            &fields.linux,
            " ",
            &fields.options,
            "\ninitrd ",
            &fields.initrds.join(" "),
        ]
        .concat();
        let (linux, initrd) = script.split_once('\n').unwrap_or((&script, ""));
        for (line, needed) in [(linux, true), (initrd, !fields.initrds.is_empty())] {
            if needed {
                let commands = parse(line).map_err(|(_, why)| self.refused(why))?;
                self.all(&commands)?;
            }
        }
        Ok(())
    }
}
