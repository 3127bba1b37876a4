//! What a deploy does for the OS on the image: its files, and the firmware's entry for it.
use std::io;
use std::path::Path;

use super::Deploy;
use crate::attest::provisioned::Provisioned;
use crate::command::kinds::explained;
use crate::command::work::{Context, UNKNOWN};
use crate::crypto::digest::sha256;
use crate::crypto::key::NodeKey;
use crate::deploy::efi;
use crate::deploy::files;
use crate::deploy::gpt::{ESP, Table};
use crate::deploy::volumes::{self, Volume};
use crate::proto::{BootEntry, DeployReceipt, WrittenFile};
use crate::sys::block::Block;
use crate::sys::fs::Kind;
use crate::sys::stop::Stop;

/// Where files wait to be written, in memory.
const SCRATCH: &str = "/run/bcd/os-files";

impl Deploy {
    /// Writes the OS's files, while the disk boots nothing yet.
    pub(super) fn give_files(
        &self,
        context: &mut Context,
        table: &Table,
        disk: &Block,
        receipt: &mut DeployReceipt,
    ) -> Result<(), files::Error> {
        let progress = &mut context.progress;
        progress.say(UNKNOWN, || "writing the OS's files".to_owned());
        let broken = |error: io::Error| files::Error::Volume(volumes::Error::Disk(error));
        let node = receipt.disk.as_ref().map(crate::deploy::disk::node);
        let node = node.unwrap_or_default();
        let (partition, root) = files::root(&node, &files::candidates(table)?, &context.stop)?;
        let left = match context.site.as_deref().filter(|_| self.files.joins()) {
            None => None,
            Some(site) => {
                let key = NodeKey::generate().map_err(|error| broken(io::Error::other(error)))?;
                Some((site, Provisioned::new(&self.order_id, key)))
            }
        };
        let site = left.as_ref().map(|(site, left)| (*site, left));
        let files = self.files.files(&self.order_id, site);
        let paths = files::write(&root, &files, SCRATCH.as_ref())?;
        disk.flush().map_err(broken)?;
        files::holds(&root, &files, &paths)?;
        if let Some((_, left)) = left {
            receipt.join_key_sha256 = left.key_sha256().to_vec();
        }
        receipt.root_partition = partition;
        receipt.files = files
            .iter()
            .zip(paths)
            .map(|(file, path)| WrittenFile {
                path,
                mode: files::MODE,
                size_bytes: file.bytes.len() as u64,
                sha256: match file.secret {
                    true => Vec::new(),
                    false => sha256(&file.bytes).to_vec(),
                },
            })
            .collect();
        Ok(())
    }
}

/// Has the firmware start the disk `node` from now on, if the machine booted by UEFI and the disk can; what came of it.
/// The image is on the disk whatever that is.
pub(super) fn boot_entry(node: &Path, table: &Table, sector: u32, stop: &Stop) -> BootEntry {
    let mut entry = BootEntry::default();
    if let Err((reason, message)) = add(&mut entry, node, table, sector, stop) {
        entry.reason = reason.to_owned();
        entry.message = message;
    }
    entry
}

fn add(
    entry: &mut BootEntry,
    node: &Path,
    table: &Table,
    sector: u32,
    stop: &Stop,
) -> Result<(), (&'static str, String)> {
    let variables = Path::new(efi::VARIABLES);
    if !variables.exists() {
        return Err(("NotUefi", "the machine did not boot by UEFI".to_owned()));
    }
    let partitions = table.partitions();
    let esp = partitions.iter().find(|part| part.kind == ESP);
    let esp = esp.ok_or_else(|| {
        let why = "the image has no GPT with an EFI system partition";
        ("NoSystemPartition", why.to_owned())
    })?;
    let unread = |error: volumes::Error| ("NoLoader", explained("", &error).message);
    let volume = Volume::open(node, esp.start, stop).map_err(unread)?;
    let loader = loader(&volume).map_err(unread)?.ok_or_else(|| {
        let why = "there is no loader in the EFI system partition that is known here";
        ("NoLoader", why.to_owned())
    })?;
    let option = efi::option(efi::LABEL, esp, sector, &loader);
    entry.label = efi::LABEL.to_owned();
    entry.loader = loader;
    entry.partition_guid = esp.guid.to_string();
    let plan = efi::install(variables, &option)
        .map_err(|error| ("FirmwareRefused", explained("", &error).message))?;
    entry.number = plan.number.into();
    entry.removed = plan.remove.into_iter().map(u32::from).collect();
    entry.boot_order = plan.order.into_iter().map(u32::from).collect();
    Ok(())
}

/// The loader in the place for all, or a distribution's own.
fn loader(esp: &Volume) -> Result<Option<String>, volumes::Error> {
    let find = |directory: &str, wanted: &str| {
        let names = esp.list(directory)?.unwrap_or_default();
        let mut files = names.into_iter().filter(|(_, kind)| *kind == Kind::Regular);
        let found = files.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        Ok(found.map(|(name, _)| [directory, "/", &name].concat().replace('/', "\\")))
    };
    let fallback = find("/EFI/BOOT", efi::FALLBACK)?;
    if fallback.is_some() {
        return Ok(fallback);
    }
    for (vendor, kind) in esp.list("/EFI")?.unwrap_or_default() {
        if kind == Kind::Directory {
            let directory = ["/EFI/", &vendor].concat();
            for wanted in efi::LOADERS {
                let found = find(&directory, wanted)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
    }
    Ok(None)
}
