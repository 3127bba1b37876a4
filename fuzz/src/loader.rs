//! Boot loaders' configurations: an entry within its bounds, or a reason; and a command line that is pinned once.
use std::collections::BTreeMap;

use bcd::deploy::loader::root::pin;
use bcd::deploy::loader::{Files, Place, Volume, default_entry};

pub const HEAP: super::Heap = super::Heap {
    base: 2 << 20,
    per_byte: 2048,
};

/// The same bytes wherever a file is looked for in these places.
struct One<'a>(&'a [(&'static str, &'a [u8])]);

impl One<'_> {
    fn find(&self, at: &Place) -> Option<&[u8]> {
        let files: BTreeMap<_, _> = self.0.iter().copied().collect();
        files.get(at.path.as_str()).copied()
    }
}

impl Files for One<'_> {
    fn exists(&mut self, at: &Place) -> Result<bool, String> {
        Ok(self.find(at).is_some())
    }

    fn read(&mut self, at: &Place, max: usize) -> Result<Vec<u8>, String> {
        let bytes = self.find(at).ok_or("no such file")?;
        assert!(bytes.len() <= max || max >= 64 * 1024);
        Ok(bytes.get(..max).unwrap_or(bytes).to_vec())
    }

    fn names(&mut self, at: &Place) -> Result<Vec<String>, String> {
        let beneath = [&at.path, "/"].concat();
        let paths = self
            .0
            .iter()
            .filter_map(|(path, _)| path.strip_prefix(&beneath));
        Ok(paths.map(str::to_owned).collect())
    }
}

/// The first byte says what the rest is.
pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let volume = |partition, uuid: &str| Volume {
        partition,
        uuid: uuid.to_owned(),
        partuuid: format!("part-{partition}"),
        ..Volume::default()
    };
    let mut volumes = vec![
        volume(1, "4f6c2f0b-92b7-4d0c-a2d7-7f0e3c9c2d11"),
        volume(2, "AB12-CD34"),
    ];
    volumes[1].is_esp = true;
    let blscfg = b"load_env\nset default=$saved_entry\nblscfg";
    let files: &[(&str, &[u8])] = match first % 5 {
        0 => &[("/boot/grub/grub.cfg", bytes)],
        1 => &[
            ("/grub2/grub.cfg", blscfg),
            ("/loader/entries/a-1.conf", bytes),
        ],
        2 => &[
            ("/grub2/grub.cfg", blscfg),
            ("/grub2/grubenv", bytes),
            ("/loader/entries/b.conf", b"linux /k\noptions $kernelopts"),
        ],
        3 => &[
            ("/loader/loader.conf", bytes),
            ("/loader/entries/b.conf", bytes),
            ("/EFI/systemd/x", b""),
        ],
        _ => &[("/extlinux/extlinux.conf", bytes)],
    };
    match default_entry(&volumes, true, &mut One(files)) {
        Ok(entry) => {
            assert!(entry.kernel.path.starts_with('/') && entry.initrds.len() <= 16);
            assert!(entry.command_line.len() <= 4096);
            let pinned = pin(&entry.command_line, &volumes);
            // What is pinned stays so.
            assert_eq!(pin(&pinned.command_line, &volumes), pinned);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
