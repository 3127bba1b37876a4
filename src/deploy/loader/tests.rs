#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
use std::collections::BTreeMap;

use super::*;

const DEBIAN: &str = include_str!("testdata/debian.cfg");
const UBUNTU: &str = include_str!("testdata/ubuntu.cfg");
const RHEL: &str = include_str!("testdata/rhel.cfg");
const ENVIRONMENT: &str = include_str!("testdata/grubenv");
const EXTLINUX: &str = include_str!("testdata/extlinux.conf");
const UUID: &str = "4f6c2f0b-92b7-4d0c-a2d7-7f0e3c9c2d11";

/// Files by partition and path, as a disk has them.
#[derive(Default)]
pub struct Held(pub BTreeMap<(u32, String), Vec<u8>>);

impl Held {
    fn with(mut self, partition: u32, path: &str, text: &str) -> Self {
        self.0.insert((partition, path.to_owned()), text.into());
        self
    }
}

impl Files for Held {
    fn exists(&mut self, at: &Place) -> Result<bool, String> {
        Ok(self.0.contains_key(&(at.partition, at.path.clone())))
    }

    fn read(&mut self, at: &Place, max: usize) -> Result<Vec<u8>, String> {
        let found = self.0.get(&(at.partition, at.path.clone()));
        let bytes = found.ok_or("no such file")?;
        match bytes.len() <= max {
            true => Ok(bytes.clone()),
            false => Err("it is too large".to_owned()),
        }
    }

    fn names(&mut self, at: &Place) -> Result<Vec<String>, String> {
        let beneath = [&at.path, "/"].concat();
        let of = self
            .0
            .keys()
            .filter(|(partition, _)| *partition == at.partition);
        let paths = of.filter_map(|(_, path)| path.strip_prefix(&beneath));
        Ok(paths
            .map(|path| path.split('/').next().unwrap_or(path).to_owned())
            .collect())
    }
}

fn volume(partition: u32, uuid: &str) -> Volume {
    Volume {
        partition,
        uuid: uuid.to_owned(),
        partuuid: format!("part-{partition}"),
        ..Volume::default()
    }
}

fn esp(partition: u32) -> Volume {
    Volume {
        is_esp: true,
        ..volume(partition, "AB12-CD34")
    }
}

fn place(partition: u32, path: &str) -> Place {
    Place {
        partition,
        path: path.to_owned(),
    }
}

/// The default entry of a script on the only volume.
fn grub(script: &str) -> Result<Entry, Error> {
    let mut files = Held::default().with(1, "/boot/grub/grub.cfg", script);
    default_entry(&[volume(1, UUID)], false, &mut files)
}

#[test]
fn debians_grub_starts_its_first_entry() {
    let mut files = Held::default().with(1, "/boot/grub/grub.cfg", DEBIAN).with(
        15,
        "/EFI/debian/grub.cfg",
        "never read",
    );
    for is_uefi in [false, true] {
        let entry = default_entry(&[volume(1, UUID), esp(15)], is_uefi, &mut files);
        let wanted = Entry {
            loader: "grub",
            title: "Debian GNU/Linux".to_owned(),
            kernel: place(1, "/boot/vmlinuz-6.1.0-28-cloud-amd64"),
            initrds: vec![place(1, "/boot/initrd.img-6.1.0-28-cloud-amd64")],
            command_line: format!(
                "root=UUID={UUID} ro console=tty0 console=ttyS0,115200 earlyprintk=ttyS0,115200 consoleblank=0"
            ),
        };
        assert_eq!(entry, Ok(wanted));
    }
}

#[test]
fn what_grub_was_told_to_start_next_or_always_is_started() {
    let next = |entry: &str| {
        let environment = format!("# GRUB Environment Block\nnext_entry={entry}\n####");
        let mut files = Held::default().with(1, "/boot/grub/grub.cfg", DEBIAN).with(
            1,
            "/boot/grub/grubenv",
            &environment,
        );
        default_entry(&[volume(1, UUID)], false, &mut files)
            .unwrap()
            .title
    };
    let older = "Debian GNU/Linux, with Linux 6.1.0-27-cloud-amd64";
    let newer = "Debian GNU/Linux, with Linux 6.1.0-28-cloud-amd64";
    assert_eq!(next("1>1"), older);
    let named = format!("gnulinux-advanced-{UUID}>gnulinux-6.1.0-27-cloud-amd64-advanced-{UUID}");
    assert_eq!(next(&named), older);
    assert_eq!(
        next(&format!("Advanced options for Debian GNU/Linux>{older}")),
        older
    );
    // A menu without a choice in it starts its first, and so does one that has no such entry.
    assert_eq!(next("1"), newer);
    assert_eq!(next("7"), "Debian GNU/Linux");
    assert_eq!(next("no such"), "Debian GNU/Linux");
}

#[test]
fn ubuntus_boot_partition_and_its_start_without_an_initrd_are_understood() {
    let mut files = Held::default().with(16, "/grub/grub.cfg", UBUNTU).with(
        16,
        "/grub/grubenv",
        "# GRUB Environment Block\n#####",
    );
    let volumes = [
        volume(1, "d2f4f2f6-8a4f-4b8c-8f0c-0e6b4f5c9a10"),
        esp(15),
        volume(16, "7b1e1b8c-2a53-4e55-8d6e-3a9f6b0b7a20"),
    ];
    let entry = default_entry(&volumes, true, &mut files).unwrap();
    assert_eq!(entry.kernel, place(16, "/vmlinuz-6.8.0-49-generic"));
    assert!(entry.initrds.is_empty());
    assert_eq!(
        entry.command_line,
        "root=PARTUUID=1b0c4ec7-5cbb-4b7d-9d3c-0d6f6b9d5c01 ro console=tty1 console=ttyS0 panic=-1"
    );
    // Where that failed once, the initrd is what helps.
    files = files.with(
        16,
        "/grub/grubenv",
        "# GRUB Environment Block\ninitrdfail=1\n#####",
    );
    let entry = default_entry(&volumes, true, &mut files).unwrap();
    assert_eq!(entry.initrds, [place(16, "/initrd.img-6.8.0-49-generic")]);
}

fn rhel() -> Held {
    let id = "4c1b0de1f9b944f1a2c1d1a1c1b1a1f1";
    let mut files = Held::default().with(2, "/grub2/grub.cfg", RHEL).with(
        1,
        "/EFI/redhat/grub.cfg",
        "never read",
    );
    for version in [
        "5.14.0-427.el9.x86_64",
        "5.14.0-1000.el9.x86_64",
        "0-rescue",
    ] {
        let entry = format!(
            "title Red Hat ({version})\nversion {version}\nlinux /vmlinuz-{version}\n\
             initrd /initramfs-{version}.img $tuned_initrd\noptions root=UUID=root-uuid ro $tuned_params\n\
             grub_users $grub_users\ngrub_class rhel\n"
        );
        files = files.with(2, &format!("/loader/entries/{id}-{version}.conf"), &entry);
    }
    files
}

#[test]
fn entries_of_the_boot_loader_specification_are_grubs_menu() {
    let volumes = [
        esp(1),
        volume(2, "9e2c0b44-6c4e-4cf8-9a3f-1fb3f2b7a9c0"),
        volume(3, "root-uuid"),
    ];
    // Nothing chosen: the newest.
    let entry = default_entry(&volumes, true, &mut rhel()).unwrap();
    assert_eq!(entry.title, "Red Hat (5.14.0-1000.el9.x86_64)");
    assert_eq!(entry.command_line, "root=UUID=root-uuid ro");
    // What was chosen last.
    let mut files = rhel().with(2, "/grub2/grubenv", ENVIRONMENT);
    let entry = default_entry(&volumes, true, &mut files).unwrap();
    assert_eq!(entry.kernel, place(2, "/vmlinuz-5.14.0-427.el9.x86_64"));
    assert_eq!(
        entry.initrds,
        [place(2, "/initramfs-5.14.0-427.el9.x86_64.img")]
    );
    assert_eq!(
        entry.command_line,
        "root=UUID=root-uuid ro transparent_hugepages=never"
    );
}

#[test]
fn a_stub_leads_to_the_configuration() {
    let stub = format!(
        "search.fs_uuid {UUID} root hd0,gpt1\nset prefix=($root)'/os/grub'\nconfigfile $prefix/grub.cfg\n"
    );
    let mut files = Held::default().with(2, "/EFI/fedora/grub.cfg", &stub).with(
        1,
        "/os/grub/grub.cfg",
        "menuentry x { linux /k a }",
    );
    let entry = default_entry(&[volume(1, UUID), esp(2)], true, &mut files).unwrap();
    assert_eq!((entry.kernel, entry.title.as_str()), (place(1, "/k"), "x"));
}

#[test]
fn grubs_language_is_run_as_grub_runs_it() {
    for (script, kernel, line) in [
        ("menuentry a {linux /k\n}", "/k", ""),
        ("linux /k 'a b' c; boot", "/k", "\"a b\" c"),
        (
            "set x='a  b'; menuentry a { linux /k $x \"$x\" ${y} \"\" }",
            "/k",
            "a b \"a  b\" ",
        ),
        (
            "set x=1; if [ $x = 1 -a ! -n \"$y\" ]; then set default=1; fi\nmenuentry a { linux /a }\nmenuentry b { linux /b }",
            "/b",
            "",
        ),
        (
            "if false; then linux /a; elif [ 2 -gt 10 -o -z '' ]; then linux /b; else linux /c; fi; boot",
            "/b",
            "",
        ),
        (
            "function f { if true; then return 1; fi; linux /a; }\nlinux /b; if f; then linux /c; fi; boot",
            "/b",
            "",
        ),
        (
            "menuentry 'a \\' { linux (hd0,gpt1)//boot/./k x=\"\\$y\\a\" \\\n z # no\n }",
            "/boot/k",
            "x=$y\\a z",
        ),
        (
            "default=b; menuentry a --id x { linux /a }; menuentry c --id=b { linux /b }",
            "/b",
            "",
        ),
        (
            "menuentry a { linux /a one; initrd /i /j; linux /b two }",
            "/b",
            "two",
        ),
        (
            "if [ -e /boot/grub/grub.cfg ]; then linux /k; fi; boot",
            "/k",
            "",
        ),
        ("for x in a b; do linux /x; done\nboot", "", "loop"),
        (
            "if true; then for x in a b; do linux /x; done; fi",
            "",
            "loop",
        ),
        (
            "if false; then for x in a b; do linux /x; done; fi; menuentry a { linux /k }",
            "/k",
            "",
        ),
        ("menuentry Windows { chainloader +1 }", "", "chainloader"),
        (
            "menuentry Xen { multiboot2 /xen\n module2 /k }",
            "",
            "multiboot2",
        ),
        ("menuentry a { linux (hd0,gpt7)/k }", "", "on no volume"),
        ("menuentry a { insmod gzio }", "", "no kernel"),
        ("set x=1", "", "no entries"),
        ("menuentry a {", "", "line 1: it ends inside a block"),
        ("\n\necho 'a", "", "line 3: it ends inside quotes"),
        ("fi", "", "where none is"),
        ("source /boot/grub/grub.cfg", "", "too deep"),
        ("function f { f; }\nf", "", "too deep"),
        (
            "submenu a { submenu b { submenu c { linux /x } } }",
            "",
            "no entries",
        ),
    ] {
        match grub(script) {
            Ok(entry) => {
                assert_eq!(entry.kernel.path, kernel, "{script}");
                assert_eq!(entry.command_line.trim(), line.trim(), "{script}");
            }
            Err(error) => {
                assert!(kernel.is_empty(), "{script}: {error}");
                assert!(error.to_string().contains(line), "{script}: {error}");
            }
        }
    }
}

#[test]
fn what_never_ends_is_ended() {
    let calls: String = (1..16)
        .map(|n| format!("function f{n} {{ f{m}; f{m}; f{m}; }}\n", m = n - 1))
        .collect();
    for script in [
        format!("function f0 {{ true; }}\n{calls}f15"),
        format!("set x=0123456789\n{}", "set x=$x$x\n".repeat(40)),
        "if true; then ".repeat(100),
        "menuentry a { ".repeat(100),
        format!("linux /k {}; boot", "x".repeat(5000)),
    ] {
        assert!(grub(&script).is_err());
    }
}

#[test]
fn systemd_boot_starts_what_its_order_or_its_configuration_says() {
    let entry = |title: &str, more: &str| {
        format!(
            "title {title}\nlinux /k-{title}\ninitrd /a\ninitrd /b\noptions root=UUID=r\noptions quiet\n{more}"
        )
    };
    let volumes = [esp(1), volume(2, UUID)];
    let base = || {
        Held::default()
            .with(1, "/EFI/systemd/systemd-bootx64.efi", "")
            .with(2, "/boot/grub/grub.cfg", "menuentry never { linux /never }")
            .with(1, "/loader/entries/os-6.9.conf", &entry("old", ""))
            .with(1, "/loader/entries/os-6.10.conf", &entry("new", ""))
            .with(1, "/loader/entries/os-7.0+0-3.conf", &entry("bad", ""))
    };
    let chosen = default_entry(&volumes, true, &mut base()).unwrap();
    assert_eq!(
        (chosen.loader, chosen.title.as_str()),
        ("systemd-boot", "new")
    );
    assert_eq!(
        (chosen.kernel, chosen.initrds.len()),
        (place(1, "/k-new"), 2)
    );
    assert_eq!(chosen.command_line, "root=UUID=r quiet");
    let mut files = base().with(
        1,
        "/loader/loader.conf",
        "timeout 3\ndefault-colour red\ndefault os-6.9*\n",
    );
    assert_eq!(
        default_entry(&volumes, true, &mut files).unwrap().title,
        "old"
    );
    // Sorted by its key it comes before those that have none; the extended boot partition has entries too.
    let mut files = base().with(
        2,
        "/loader/entries/a.conf",
        &entry("keyed", "sort-key z\nversion 1"),
    );
    let chosen = default_entry(&volumes, true, &mut files).unwrap();
    assert_eq!(
        (chosen.title.as_str(), chosen.kernel.partition),
        ("keyed", 2)
    );
    for (path, text, says) in [
        ("/EFI/Linux/os.efi", "MZ", "unified kernel image"),
        (
            "/loader/entries/zz.conf",
            "sort-key a\nefi /shell.efi",
            "program for EFI",
        ),
        (
            "/loader/entries/zz.conf",
            "sort-key a\ntitle x",
            "no kernel",
        ),
    ] {
        let error = default_entry(&volumes, true, &mut base().with(1, path, text)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    // A BIOS does not start it.
    assert_eq!(
        default_entry(&volumes, false, &mut base()).unwrap().loader,
        "grub"
    );
}

#[test]
fn extlinux_starts_its_default_label() {
    let start = |path: &str, text: &str| {
        let mut files =
            Held::default()
                .with(1, path, text)
                .with(1, "/more.cfg", "LABEL m\nLINUX m\n");
        default_entry(&[volume(1, UUID)], false, &mut files)
    };
    let entry = start("/boot/extlinux/extlinux.conf", EXTLINUX).unwrap();
    assert_eq!(entry.title, "Debian GNU/Linux 12 (bookworm) 6.1.0-28-arm64");
    assert_eq!(entry.kernel, place(1, "/boot/vmlinuz-6.1.0-28-arm64"));
    assert_eq!(entry.command_line, format!("root=UUID={UUID} ro quiet"));
    let entry = start(
        "/syslinux/syslinux.cfg",
        "DEFAULT b\nAPPEND all\nLABEL a\nKERNEL a\nLABEL B\nMENU LABEL ^Bee\nKERNEL ../k\nAPPEND initrd=i,/j x=1\n",
    )
    .unwrap();
    assert_eq!(entry.title, "Bee");
    assert_eq!(entry.initrds, [place(1, "/syslinux/i"), place(1, "/j")]);
    assert_eq!(entry.command_line, "x=1");
    for (text, says) in [
        ("include /more.cfg", Ok("/m")),
        (
            "DEFAULT x\nAPPEND all\nLABEL a\nLINUX a\nAPPEND -\nLABEL b\nMENU DEFAULT\nLINUX b",
            Ok("/b"),
        ),
        (
            "LABEL a\nKERNEL vesamenu.c32",
            Err("starts no Linux kernel"),
        ),
        ("LABEL a\nLOCALBOOT 0x80", Err("starts no Linux kernel")),
        ("TIMEOUT 3", Err("no labels")),
        ("INCLUDE /syslinux.cfg", Err("more than 16 files")),
    ] {
        match (start("/syslinux.cfg", text), says) {
            (Ok(entry), Ok(kernel)) => assert_eq!(entry.kernel, place(1, kernel)),
            (Err(error), Err(says)) => assert!(error.to_string().contains(says), "{error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }
}

#[test]
fn a_disk_without_a_loader_says_so() {
    let error = default_entry(&[volume(1, UUID)], true, &mut Held::default()).unwrap_err();
    assert_eq!(error, Error::None);
}
