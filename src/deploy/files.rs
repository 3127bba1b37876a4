//! The files that the OS on an image is given: how it reaches its control plane, what lets it join, and cloud-init's
//! user data.
//!
//! They go into the root file system, which is found by its partition's type (the Discoverable Partitions
//! Specification) or, where none has it, by its `os-release`. Nothing of a secret is in any message or receipt.
use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

use zeroize::Zeroizing;

use super::gpt::{self, Guid, Partition, Table};
use super::image::HEAD;
use super::volumes::{self, New, Volume};
use crate::attest::join_token::JoinToken;
use crate::attest::provisioned::{self, Provisioned};
use crate::proto::OsFiles;
use crate::sys::stop::Stop;

/// All of an order has 16 KiB.
pub const USER_DATA: usize = 12 * 1024;
const HOSTNAME: usize = 253;

const BCD: &str = "/etc/bcd";
const NOCLOUD: &str = "/var/lib/cloud/seed/nocloud";
const DIRECTORY_MODE: u32 = 0o700;
pub const MODE: u32 = 0o600;

/// What no root is in.
const OTHERS: [(Guid, &str); 9] = [
    (gpt::ESP, "an EFI system partition"),
    (
        Guid::written(0x2168_6148_6449_6e6f_744e_6565_6445_4649),
        "a BIOS boot partition",
    ),
    (
        Guid::written(0xbc13_c2ff_59e6_4262_a352_b275_fd6f_7172),
        "a boot loader's partition",
    ),
    (
        Guid::written(0x0657_fd6d_a4ab_43c4_84e5_0933_c84b_4f4f),
        "swap",
    ),
    (
        Guid::written(0x933a_c7e1_2eb4_4f13_b844_0e14_e2ae_f915),
        "for homes",
    ),
    (
        Guid::written(0xe6d6_d379_f507_44c2_a23c_238f_2a3d_f928),
        "LVM",
    ),
    (
        Guid::written(0xca7d_7ccb_63ed_4c53_861c_1742_5360_59cc),
        "LUKS",
    ),
    (
        Guid::written(0xa19d_880f_05fc_4d3b_a006_743f_0f84_911e),
        "RAID",
    ),
    (
        Guid::written(0xe3c9_e316_0b5c_4db8_817d_f92d_f002_15ae),
        "reserved",
    ),
];

/// Bytes that are in no message.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// What is to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    join: bool,
    join_token: Option<Secret>,
    user_data: Option<Secret>,
    hostname: String,
}

/// What this machine's boot parameters say of its site, and an OS on it needs as well.
#[derive(Debug)]
pub struct Site {
    /// `config.toml` and `join-encryption.jwk`.
    pub config: String,
    pub jwk: String,
}

/// A file for the OS.
pub struct OsFile {
    pub directory: &'static str,
    pub name: &'static str,
    pub bytes: Zeroizing<Vec<u8>>,
    pub secret: bool,
}

#[derive(Debug)]
pub enum Error {
    /// There is no root to write to: why not.
    NoRoot(String),
    /// It was not written.
    Volume(volumes::Error),
}

impl Wanted {
    /// # Errors
    /// What is wrong with them.
    pub fn read(files: OsFiles) -> Result<Self, String> {
        let secret = |bytes: Vec<u8>| (!bytes.is_empty()).then(|| Secret(Zeroizing::new(bytes)));
        if files.user_data.len() > USER_DATA {
            return Err(format!("user_data is longer than {USER_DATA} bytes"));
        }
        if !files.join_token.is_empty() && JoinToken::parse(&files.join_token).is_err() {
            return Err("join_token is no join token".to_owned());
        }
        let label = |label: &str| {
            let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-')
        };
        let named = files.hostname.len() <= HOSTNAME && files.hostname.split('.').all(label);
        if !files.hostname.is_empty() && !named {
            return Err("hostname is no DNS name".to_owned());
        }
        if !files.pool.is_empty() && !files.join {
            return Err("pool is of no use without join".to_owned());
        }
        Ok(Self {
            join: files.join,
            join_token: secret(files.join_token.into_bytes()),
            user_data: secret(files.user_data),
            hostname: files.hostname,
        })
    }

    /// Whether the OS is to join by itself.
    pub fn joins(&self) -> bool {
        self.join
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The files, for what `order_id` installs; `left` is what it joins with.
    pub fn files(&self, order_id: &str, site: Option<(&Site, &Provisioned)>) -> Vec<OsFile> {
        let mut files = Vec::new();
        let mut file = |directory, name, bytes: &[u8], secret| {
            files.push(OsFile {
                directory,
                name,
                bytes: Zeroizing::new(bytes.to_vec()),
                secret,
            });
        };
        if let Some((site, left)) = site.filter(|_| self.join) {
            file(BCD, "config.toml", site.config.as_bytes(), false);
            file(BCD, "join-encryption.jwk", site.jwk.as_bytes(), false);
            file(BCD, provisioned::FILE, left.to_text().as_bytes(), true);
        }
        if let Some(token) = &self.join_token {
            file(BCD, "join-token", &token.0, true);
        }
        if self.user_data.is_some() || !self.hostname.is_empty() {
            let mut meta = ["instance-id: ", order_id, "\n"].concat();
            if !self.hostname.is_empty() {
                meta.push_str(&["local-hostname: ", &self.hostname, "\n"].concat());
            }
            file(NOCLOUD, "meta-data", meta.as_bytes(), false);
            match &self.user_data {
                Some(data) => file(NOCLOUD, "user-data", &data.0, true),
                // Without the file there is no such data source.
                None => file(NOCLOUD, "user-data", b"#cloud-config\n", false),
            }
        }
        files
    }
}

impl OsFile {
    pub fn path(&self) -> String {
        [self.directory, "/", self.name].concat()
    }

    fn content(&self) -> New<'_> {
        New {
            bytes: &self.bytes,
            mode: MODE,
            uid: 0,
            gid: 0,
        }
    }
}

/// The partitions of `table` that the root may be in; and whether it is in one of them for sure.
///
/// # Errors
/// There is none.
pub fn candidates(table: &Table) -> Result<(Vec<Partition>, bool), Error> {
    let mut roots = Vec::new();
    let mut others = Vec::new();
    let mut why = Vec::new();
    for partition in table.partitions() {
        let kind = partition.kind;
        let other = OTHERS.iter().find(|(guid, _)| *guid == kind);
        match other {
            Some((_, name)) => why.push(format!("{} is {name}", partition.number)),
            // What is there is written last, in one piece.
            None if partition.start < HEAD as u64 => {
                why.push(format!("{} begins in the first MiB", partition.number));
            }
            None if kind == gpt::ROOT => roots.push(partition),
            None => others.push(partition),
        }
    }
    match (roots.is_empty(), others.is_empty()) {
        (false, _) => Ok((roots, true)),
        (true, false) => Ok((others, false)),
        (true, true) => Err(no_root(&why)),
    }
}

/// The root among `candidates` on the disk `node`; `sure`: one of these is it by its type.
///
/// # Errors
/// There is none that can be written to, or more than one.
pub fn root(
    node: &Path,
    (candidates, sure): &(Vec<Partition>, bool),
    stop: &Stop,
) -> Result<(u32, Volume), Error> {
    let mut found: Option<(u32, Volume)> = None;
    let mut why = Vec::new();
    for partition in candidates {
        let number = partition.number;
        let volume = Volume::open(node, partition.start, stop).map_err(Error::Volume)?;
        if volume.kind() != "ext" {
            why.push(format!("{number} is {}", volume.kind()));
            continue;
        }
        let alone = *sure && candidates.len() == 1;
        if !(alone || has_release(&volume)?) {
            why.push(format!("{number} has no os-release"));
            continue;
        }
        if let Some((first, _)) = &found {
            return Err(Error::NoRoot(format!(
                "partitions {first} and {number} look like one each: give the one that is the type of a root"
            )));
        }
        found = Some((number, volume));
    }
    found.ok_or_else(|| no_root(&why))
}

/// Writes `files` to `volume`; what it tells is `written`, in their order.
///
/// # Errors
/// One was not written.
pub fn write(volume: &Volume, files: &[OsFile], scratch: &Path) -> Result<Vec<String>, Error> {
    volume.is_writable().map_err(Error::Volume)?;
    let mut paths = Vec::new();
    for file in files {
        let written = volume
            .make_directory(file.directory, DIRECTORY_MODE)
            .and_then(|directory| {
                let path = [&directory, "/", file.name].concat();
                volume.write(&path, &file.content(), scratch)?;
                Ok(path)
            });
        paths.push(written.map_err(Error::Volume)?);
    }
    Ok(paths)
}

/// Whether `files` are at `paths`, once the disk was flushed.
///
/// # Errors
/// One is not.
pub fn holds(volume: &Volume, files: &[OsFile], paths: &[String]) -> Result<(), Error> {
    let mut all = files.iter().zip(paths);
    all.try_for_each(|(file, path)| volume.holds(path, &file.content()))
        .map_err(Error::Volume)
}

fn has_release(volume: &Volume) -> Result<bool, Error> {
    for path in ["/etc/os-release", "/usr/lib/os-release"] {
        if volume.stat(path).map_err(Error::Volume)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn no_root(why: &[String]) -> Error {
    Error::NoRoot(match why {
        [] => "the image has no partitions".to_owned(),
        why => format!("of its partitions, {}", why.join(", ")),
    })
}

impl Error {
    /// For programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoRoot(_) => "RootUnsupported",
            Self::Volume(_) => "FilesNotWritten",
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoot(why) => write!(
                f,
                "the image has no root that files are written to ({why}): take one with an ext4 root, or deploy it without files"
            ),
            Self::Volume(_) => f.write_str("the OS's files were not written"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::NoRoot(_) => None,
            Self::Volume(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::crypto::key::NodeKey;

    const TOKEN: &str =
        "bcjt_jt_01kb7w3x9qn5v8m2r6t4y0sdfh.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn wanted() -> OsFiles {
        OsFiles {
            join: true,
            join_token: TOKEN.to_owned(),
            user_data: b"#cloud-config\npassword: hunter2\n".to_vec(),
            hostname: "gpu-7.example".to_owned(),
            pool: String::new(),
        }
    }

    #[test]
    fn what_is_asked_for_becomes_files_and_their_secrets_no_text() {
        let site = Site {
            config: "site = \"x\"\n".to_owned(),
            jwk: "{}\n".to_owned(),
        };
        let wanted = Wanted::read(wanted()).unwrap();
        let left = Provisioned::new("ord_1", NodeKey::generate().unwrap());
        let files = wanted.files("ord_1", Some((&site, &left)));
        let shown: Vec<_> = files
            .iter()
            .map(|file| (file.path(), file.secret))
            .collect();
        let nocloud = |name: &str| [NOCLOUD, "/", name].concat();
        assert_eq!(
            shown,
            [
                ("/etc/bcd/config.toml".to_owned(), false),
                ("/etc/bcd/join-encryption.jwk".to_owned(), false),
                ("/etc/bcd/provisioned.key".to_owned(), true),
                ("/etc/bcd/join-token".to_owned(), true),
                (nocloud("meta-data"), false),
                (nocloud("user-data"), true),
            ]
        );
        assert_eq!(
            *files[4].bytes,
            *b"instance-id: ord_1\nlocal-hostname: gpu-7.example\n"
        );
        let debug = format!("{wanted:?}");
        assert!(
            !debug.contains("hunter2") && !debug.contains("bcjt"),
            "{debug}"
        );
        assert!(Wanted::read(OsFiles::default()).unwrap().is_empty());
        // A name alone makes a data source too.
        let named = OsFiles {
            hostname: "a".to_owned(),
            ..OsFiles::default()
        };
        let files = Wanted::read(named).unwrap().files("ord_1", None);
        assert_eq!((files.len(), files[1].secret), (2, false));
    }

    #[test]
    fn files_past_their_bounds_are_refused_and_not_repeated() {
        let refused = |change: &dyn Fn(&mut OsFiles)| {
            let mut files = wanted();
            change(&mut files);
            Wanted::read(files).unwrap_err()
        };
        assert!(refused(&|f| f.user_data = vec![b'x'; USER_DATA + 1]).contains("user_data"));
        let cut = refused(&|f| f.join_token.truncate(60));
        assert!(cut.contains("join_token") && !cut.contains("bcjt"), "{cut}");
        for name in [
            "-a",
            "a..b",
            "a b",
            "a\nb",
            "a.",
            &"a".repeat(64),
            &"a.".repeat(130),
        ] {
            assert!(refused(&|f| f.hostname = name.to_owned()).contains("hostname"));
        }
    }

    #[test]
    fn the_root_is_a_partition_of_its_type_or_of_none_that_is_another_s() {
        let partition = |number: u32, kind: Guid, start: u64| Partition {
            number,
            start: start << 20,
            length: 1 << 20,
            kind,
            guid: Guid::default(),
        };
        let linux = Guid::written(0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4);
        let root = gpt::ROOT;
        let of = |partitions: &[Partition]| candidates(&Table::Mbr(partitions.to_vec()));
        let numbers = |found: (Vec<Partition>, bool)| {
            (
                found.0.iter().map(|p| p.number).collect::<Vec<_>>(),
                found.1,
            )
        };
        let esp = partition(1, OTHERS[0].0, 1);
        let found = of(&[esp, partition(2, linux, 2), partition(3, root, 3)]).unwrap();
        assert_eq!(numbers(found), (vec![3], true));
        let found = of(&[esp, partition(2, linux, 2), partition(3, linux, 3)]).unwrap();
        assert_eq!(numbers(found), (vec![2, 3], false));
        for (partitions, says) in [
            (vec![esp, partition(2, OTHERS[5].0, 2)], "2 is LVM"),
            (vec![partition(1, root, 0)], "first MiB"),
            (vec![], "no partitions"),
        ] {
            let error = of(&partitions).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.word(), "RootUnsupported");
        }
    }
}
