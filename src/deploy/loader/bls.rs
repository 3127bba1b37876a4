//! Entries of the Boot Loader Specification, type 1 (`loader/entries/*.conf`): systemd-boot's, and those that GRUB's
//! `blscfg` takes for its menu.
use std::cmp::Ordering;

use super::{CONFIG, ENTRIES, ENTRY, Entry, Error, Files, Place, Volume, exists, names, text};

/// What an entry's file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The file's name, without `.conf` and the counters of boot attempts.
    pub id: String,
    pub title: String,
    pub linux: String,
    pub initrds: Vec<String>,
    pub options: String,
    sort_key: String,
    machine_id: String,
    version: String,
    /// It starts a program for EFI, which is no kernel that can be loaded here.
    is_efi: bool,
    /// Its attempts are used up.
    is_bad: bool,
}

/// All entries of a directory.
pub fn entries(directory: &Place, files: &mut dyn Files) -> Result<Vec<Fields>, Error> {
    let mut entries = Vec::new();
    let mut all = names(files, directory)?;
    all.sort_unstable();
    for name in all.iter().filter(|name| name.ends_with(".conf")) {
        if entries.len() >= ENTRIES {
            let what = "it has more than 256 entries".to_owned();
            return Err(Error::NotUnderstood(directory.clone(), what));
        }
        let path = [&directory.path, "/", name].concat();
        let at = Place::new(directory.partition, &path);
        entries.push(read(name, &text(files, &at, ENTRY)?));
    }
    Ok(entries)
}

fn read(name: &str, text: &str) -> Fields {
    let stem = name.strip_suffix(".conf").unwrap_or(name);
    // "NAME+LEFT-DONE": attempts left and done.
    let (id, left) = match stem.rsplit_once('+') {
        Some((id, counters)) if is_counters(counters) => (id, counters.split('-').next()),
        _ => (stem, None),
    };
    let mut fields = Fields {
        id: id.to_owned(),
        is_bad: left == Some("0"),
        ..Fields::default()
    };
    for line in text.lines().map(str::trim) {
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        let into = match key {
            "title" => &mut fields.title,
            "linux" => &mut fields.linux,
            "sort-key" => &mut fields.sort_key,
            "machine-id" => &mut fields.machine_id,
            "version" => &mut fields.version,
            "initrd" => {
                fields
                    .initrds
                    .extend(value.split_whitespace().map(str::to_owned));
                continue;
            }
            "options" => {
                if !fields.options.is_empty() {
                    fields.options.push(' ');
                }
                fields.options.push_str(value);
                continue;
            }
            "efi" | "uki" | "uki-url" => {
                fields.is_efi = true;
                continue;
            }
            _ => continue,
        };
        value.clone_into(into);
    }
    fields
}

fn is_counters(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// The entry that systemd-boot starts, on the partition `installed` if that is known; `None`: there are no entries.
pub fn systemd_boot(
    volumes: &[Volume],
    installed: Option<u32>,
    files: &mut dyn Files,
) -> Result<Option<Entry>, Error> {
    // Entries may be on the ESP, and on the extended boot partition beside it.
    let (mut all, mut config) = (Vec::new(), None);
    for volume in volumes {
        let at = Place::new(volume.partition, "/loader/entries");
        let found = entries(&at, files)?;
        all.extend(found.into_iter().map(|fields| (volume.partition, fields)));
        let at = Place::new(volume.partition, "/loader/loader.conf");
        if installed.is_none_or(|installed| installed == volume.partition)
            && config.is_none()
            && exists(files, &at)?
        {
            config = Some(at);
        }
        // They come among the others in systemd-boot's order, and hold kernels that are not taken out here.
        let unified = names(files, &Place::new(volume.partition, "/EFI/Linux"))?;
        if let Some(name) = unified
            .iter()
            .find(|name| name.to_ascii_lowercase().ends_with(".efi"))
        {
            let path = ["/EFI/Linux/", name].concat();
            let what = "a unified kernel image, which only its own loader starts".to_owned();
            return Err(Error::NotUnderstood(
                Place::new(volume.partition, &path),
                what,
            ));
        }
    }
    let wanted = match &config {
        None => String::new(),
        Some(at) => {
            let config = text(files, at, CONFIG)?;
            let default = config.lines().find_map(|line| {
                let (key, value) = line.trim().split_once(char::is_whitespace)?;
                (key == "default").then_some(value)
            });
            default.unwrap_or_default().trim().to_owned()
        }
    };
    all.sort_by(|(_, a), (_, b)| order(a, b));
    let chosen = all
        .iter()
        .find(|(_, fields)| !wanted.is_empty() && named(&wanted, &fields.id))
        .or(all.first());
    let Some((partition, fields)) = chosen else {
        return Ok(None);
    };
    let at = Place::new(
        *partition,
        &["/loader/entries/", &fields.id, ".conf"].concat(),
    );
    if fields.is_efi {
        let what = "it starts a program for EFI".to_owned();
        return Err(Error::NotUnderstood(at, what));
    }
    let place = |path: &String| Place::new(*partition, path);
    let entry = Entry {
        loader: "systemd-boot",
        title: fields.title.clone(),
        kernel: match fields.linux.is_empty() {
            true => Place::default(),
            false => place(&fields.linux),
        },
        initrds: fields.initrds.iter().map(place).collect(),
        command_line: fields.options.clone(),
    };
    entry.checked(&at).map(Some)
}

/// systemd-boot's order, the first is started.
fn order(a: &Fields, b: &Fields) -> Ordering {
    let keyed = |fields: &Fields| fields.sort_key.is_empty();
    let by_key = || match a.sort_key.is_empty() || b.sort_key.is_empty() {
        true => Ordering::Equal,
        false => (&a.sort_key, &a.machine_id)
            .cmp(&(&b.sort_key, &b.machine_id))
            .then_with(|| compare(&b.version, &a.version)),
    };
    (a.is_bad, keyed(a))
        .cmp(&(b.is_bad, keyed(b)))
        .then_with(by_key)
        .then_with(|| compare(&b.id, &a.id))
}

/// Whether an entry is meant by loader.conf: its name, or a pattern of `*` and `?`.
fn named(pattern: &str, id: &str) -> bool {
    let pattern = pattern.strip_suffix(".conf").unwrap_or(pattern);
    let (pattern, id): (Vec<char>, Vec<char>) = (pattern.chars().collect(), id.chars().collect());
    let (mut p, mut i, mut star) = (0, 0, None);
    while i < id.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, i));
                p += 1;
            }
            Some(&c) if c == '?' || Some(&c) == id.get(i) => {
                p += 1;
                i += 1;
            }
            // The last `*` takes one more.
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, i) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

/// By their numbers and words, as versions are compared; `~` is before everything.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    let cut = |text: &str, is: fn(char) -> bool| text.find(|c: char| !is(c)).unwrap_or(text.len());
    loop {
        let strip = |text: &str| {
            let from = cut(text, |c| !c.is_ascii_alphanumeric() && c != '~');
            text.get(from..).unwrap_or_default().to_owned()
        };
        let (left, right) = (strip(a), strip(b));
        match (left.starts_with('~'), right.starts_with('~')) {
            (true, true) => {
                a = a
                    .get(a.find('~').map_or(0, |at| at + 1)..)
                    .unwrap_or_default();
                b = b
                    .get(b.find('~').map_or(0, |at| at + 1)..)
                    .unwrap_or_default();
                continue;
            }
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => {}
        }
        a = a.get(a.len() - left.len()..).unwrap_or_default();
        b = b.get(b.len() - right.len()..).unwrap_or_default();
        if a.is_empty() || b.is_empty() {
            return a.len().cmp(&b.len());
        }
        let is: fn(char) -> bool = match a.starts_with(|c: char| c.is_ascii_digit()) {
            true => |c| c.is_ascii_digit(),
            false => |c| c.is_ascii_alphabetic(),
        };
        let ((one, a_rest), (other, b_rest)) = (
            a.split_at_checked(cut(a, is)).unwrap_or((a, "")),
            b.split_at_checked(cut(b, is)).unwrap_or((b, "")),
        );
        // A number is newer than a word.
        if other.is_empty() {
            return match a.starts_with(|c: char| c.is_ascii_digit()) {
                true => Ordering::Greater,
                false => Ordering::Less,
            };
        }
        let plain = |text: &str| text.trim_start_matches('0').len();
        let order = match one.starts_with(|c: char| c.is_ascii_digit()) {
            true => plain(one).cmp(&plain(other)).then_with(|| {
                one.trim_start_matches('0')
                    .cmp(other.trim_start_matches('0'))
            }),
            false => one.cmp(other),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (a_rest, b_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        use Ordering::{Equal, Greater, Less};
        for (a, b, order) in [
            ("5.14.0-9", "5.14.0-10", Less),
            ("6.1.0-28-amd64", "6.1.0-28-amd64", Equal),
            ("5.14.0-503.el9", "0-rescue", Greater),
            ("6.10~rc1", "6.10", Less),
            ("6.10", "6.9", Greater),
            ("1.a", "1.1", Less),
            ("a", "", Greater),
            ("007", "7", Equal),
        ] {
            assert_eq!(compare(a, b), order, "{a} {b}");
            assert_eq!(compare(b, a), order.reverse(), "{b} {a}");
        }
    }

    #[test]
    fn patterns_mean_what_loader_conf_means() {
        for (pattern, id, is) in [
            ("debian-*", "debian-6.1", true),
            ("debian-*.conf", "debian-6.1", true),
            ("*", "", true),
            ("a?c*e", "abcde", true),
            ("a?c*e", "abcd", false),
            ("arch", "archer", false),
        ] {
            assert_eq!(named(pattern, id), is, "{pattern} {id}");
        }
    }
}
