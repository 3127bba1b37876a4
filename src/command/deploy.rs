//! `deploy.image`: an image is written to a disk, on a one-time order; a signed receipt says what came of it.
//!
//! The disk is found and held before the order is claimed, so that an order for the wrong disk is not spent. From the
//! claim on there is a receipt, whatever happens: a disk that hangs is left behind with the thread that waits for it.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::kinds::{UNSUPPORTED, decode, explained};
use super::machine::{Failure, Outcome};
use super::ordered;
use super::work::{Context, UNKNOWN};
use crate::attest::ids::is_ulid_of;
use crate::crypto::digest::{hex, sha256};
use crate::crypto::envelope::Purpose;
use crate::deploy::files::Wanted;
use crate::deploy::gpt::{Guid, Table};
use crate::deploy::ids::{self, Name};
use crate::deploy::image::{self, Expected, Image, Written};
use crate::deploy::{disk, volumes};
use crate::facts::tree::Tree;
use crate::proto::{
    BootEntry, DeployImageParams, DeployImageResult, DeployOutcome, DeployReceipt,
    DeployedPartition, Disk, DiskTarget, Message,
};
use crate::sys::block::{Block, CALL};
use crate::sys::log::{self, Level, Value};
use crate::sys::patience::Patience;
use crate::sys::{process, random};
use crate::wire::url::Url;

mod os;

/// The OS's files and the firmware's entry: some programs, each of which has minutes of its own.
const OS_FILES: Duration = Duration::from_secs(1800);

/// An image to be deployed.
#[derive(Clone, Debug, PartialEq)]
pub struct Deploy {
    order_id: String,
    target: DiskTarget,
    url: Url,
    packed: Expected,
    unpacked: Expected,
    read_back: bool,
    grow: bool,
    new_guids: bool,
    files: Wanted,
}

impl Deploy {
    /// # Errors
    /// What is wrong with the params.
    pub fn read(params: &[u8]) -> Result<Self, String> {
        let params: DeployImageParams = decode(params)?;
        if !is_ulid_of("ord", &params.order_id) {
            return Err("order_id is ord_ and a lower-case ULID".to_owned());
        }
        let target = params.disk.unwrap_or_default();
        disk::check(&target)?;
        let url = Url::parse(&params.url).map_err(|error| error.to_string())?;
        let digest = |name: &str, bytes: &[u8]| match bytes.len() {
            0 => Ok(None),
            _ => <[u8; 32]>::try_from(bytes)
                .map(Some)
                .map_err(|_| [name, " is the 32 bytes of a SHA-256"].concat()),
        };
        let packed = Expected {
            sha256: digest("sha256", &params.sha256)?,
            size: Some(params.size_bytes).filter(|size| *size > 0),
        };
        if !url.https && packed.sha256.is_none() {
            return Err("the url is not https://, so sha256 must be given".to_owned());
        }
        Ok(Self {
            order_id: params.order_id,
            target,
            url,
            packed,
            unpacked: Expected {
                sha256: digest("unpacked_sha256", &params.unpacked_sha256)?,
                size: Some(params.unpacked_size_bytes).filter(|size| *size > 0),
            },
            read_back: !params.skip_read_back,
            grow: params.grow_last_partition,
            new_guids: params.new_guids,
            files: Wanted::read(params.files.unwrap_or_default())?,
        })
    }

    /// # Errors
    /// The disk is not to be written, the order is not this command's, or the image is not on the disk.
    pub fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        if !self.files.is_empty() && process::find("debugfs").is_none() {
            let missing = volumes::Error::NoProgram("debugfs");
            return Err(explained(UNSUPPORTED, &missing));
        }
        let patience = Patience::default();
        let (its, target) = (patience.clone(), self.target.clone());
        let held = ordered::apart(context, &patience, move |_| ordered::hold(&its, &target));
        let (found, block) = held??;
        let _writing = ordered::claim(context, &self.order_id)?;
        let started_ms = context.trusted_ms();
        // Of a deploy that is left behind no more is known than this.
        let (mut receipt, mut told) = (self.receipt(&found), self.receipt(&found));
        let order_id = self.order_id.clone();
        let its = patience.clone();
        let done = ordered::apart(context, &patience, move |context| {
            let done = self.deploy(context, &its, &block, &mut told);
            (done, told, block)
        });
        let failure = match done {
            Ok((done, told, block)) => {
                receipt = told;
                let (table, failure) = match done {
                    Ok(table) => (Some(table), None),
                    Err(image::Error::Stopped) if context.stop.is_said() => {
                        let failure = Failure::new("Cancelled", "stopped; the disk boots nothing");
                        (None, Some(failure))
                    }
                    Err(error) => (None, Some(explained(error.word(), &error))),
                };
                receipt.boot_entry = let_go(context, &patience, block, &found, table);
                failure
            }
            Err(left_behind) => Some(left_behind),
        };
        receipt.outcome = match &failure {
            None => DeployOutcome::DEPLOYED,
            Some(failure) => {
                receipt.reason = failure.reason.to_owned();
                receipt.message.clone_from(&failure.message);
                DeployOutcome::FAILED
            }
        };
        receipt.head = Some(ordered::head(context, &order_id, started_ms));
        let mut result = DeployImageResult {
            order_id,
            receipt_sha256: Vec::new(),
            unpacked_sha256: receipt.unpacked_sha256.clone(),
            unpacked_size_bytes: receipt.unpacked_size_bytes,
        };
        let sha256 = ordered::tell(context, Purpose::DeployReceipt, receipt.encode_to_vec())?;
        result.receipt_sha256 = sha256.to_vec();
        match failure {
            None => Ok(Outcome::Succeeded(result.encode_to_vec())),
            Some(failure) => Err(failure),
        }
    }

    /// The beginning of a receipt.
    fn receipt(&self, disk: &Disk) -> DeployReceipt {
        DeployReceipt {
            target: Some(self.target.clone()),
            disk: Some(disk.clone()),
            url: self.url.to_string(),
            ..DeployReceipt::default()
        }
    }

    /// Where the image may come from: the site's cache has what is pinned.
    fn sources(&self, cache: Option<&Url>) -> Vec<Url> {
        let cached = cache.zip(self.packed.sha256).map(|(cache, sha256)| {
            let path = [cache.path.trim_end_matches('/'), "/", &hex(&sha256)].concat();
            cache.with_path(&path)
        });
        cached.into_iter().chain([self.url.clone()]).collect()
    }

    /// Fits the image's partition table to the disk.
    fn table(
        &self,
        written: &mut Written,
        disk: &Block,
        receipt: &mut DeployReceipt,
    ) -> Result<(), image::Error> {
        let table = written.table(disk)?;
        receipt.table = table.name().to_owned();
        if let Table::Gpt(mut gpt) = table {
            if self.new_guids {
                let seed: [u8; 32] = random::bytes()
                    .map_err(|error| image::Error::Resources(io::Error::other(error)))?;
                let mut count = 0_u16;
                gpt.renew(&mut || {
                    count = count.wrapping_add(1);
                    let digest = sha256(&[&seed[..], &count.to_le_bytes()].concat());
                    Guid::random(digest.first_chunk().copied().unwrap_or_default())
                });
                receipt.new_guids = true;
            }
            if let Some((partition, bytes)) = written.fit(disk, gpt, self.grow)? {
                (receipt.grown_partition, receipt.grown_bytes) = (partition, bytes);
            }
        }
        let guid = |guid: Guid| match guid == Guid::default() {
            true => String::new(),
            false => guid.to_string(),
        };
        let partitions = written.table(disk)?.partitions().into_iter();
        receipt.partitions = partitions
            .map(|partition| DeployedPartition {
                number: partition.number,
                start_bytes: partition.start,
                length_bytes: partition.length,
                type_guid: guid(partition.kind),
                guid: guid(partition.guid),
            })
            .collect();
        Ok(())
    }

    fn deploy(
        &self,
        context: &mut Context,
        patience: &Patience,
        disk: &Block,
        receipt: &mut DeployReceipt,
    ) -> Result<Table, image::Error> {
        let image = Image {
            sources: self.sources(context.image_cache.as_ref()),
            packed: self.packed,
            unpacked: self.unpacked,
            with_root: !self.files.is_empty(),
        };
        let stop = context.stop.clone();
        let progress = &mut context.progress;
        let mut written = image::write(&image, disk, &stop, &mut |at| {
            let (downloaded, total) = at.downloaded;
            // What follows, the reading back, is as much again.
            let percent = total.map_or(UNKNOWN, |total| share(downloaded, total) / 2);
            progress.say(percent, || {
                let [downloaded, written] = [downloaded, at.written].map(mebibytes);
                [&downloaded, " downloaded, ", &written, " written"].concat()
            });
        })?;
        note(receipt, &written);
        receipt.written_ms = context.trusted_ms();
        if self.read_back {
            let size = written.unpacked.size;
            let progress = &mut context.progress;
            written.read_back(disk, &stop, &mut |at| {
                progress.say(50 + share(at, size) / 2, || {
                    [&mebibytes(at), " read back"].concat()
                });
            })?;
            receipt.read_back = true;
            receipt.read_back_ms = context.trusted_ms();
        }
        self.table(&mut written, disk, receipt)?;
        alone(patience, &written.names(disk), receipt.disk.as_ref())?;
        if !self.files.is_empty() {
            let table = written.table(disk)?;
            let given = patience.during(OS_FILES, || {
                Ok(self.give_files(context, &table, disk, receipt))
            });
            given
                .map_err(|error| image::Error::Disk("write the OS's files to", 0, error))?
                .map_err(image::Error::Files)?;
        }
        let table = written.table(disk)?;
        let last = " (in the last step: it may boot the image)";
        patience.asks(&[&self.target.stable_name, last].concat());
        written.commit(disk)?;
        patience.asks(&self.target.stable_name);
        Ok(table)
    }
}

/// Lets go of the disk `found`. With the `table` of an image that it boots from now on, the firmware is told of it first:
/// what came of that. Whatever it is, the image is on the disk.
fn let_go(
    context: &Context,
    patience: &Patience,
    disk: Block,
    found: &Disk,
    table: Option<Table>,
) -> Option<BootEntry> {
    let (its, node, boots) = (patience.clone(), disk::node(found), table.is_some());
    let done = ordered::apart(context, patience, move |context| {
        let entry = table.and_then(|table| {
            reread(&disk);
            let entry = || Ok(os::boot_entry(&node, &table, disk.sector(), &context.stop));
            its.during(OS_FILES, entry).ok()
        });
        let _ = its.during(CALL, || {
            drop(disk);
            Ok(())
        });
        entry
    });
    done.unwrap_or_else(|Failure { reason, message }| {
        boots.then(|| BootEntry {
            reason: reason.to_owned(),
            message,
            ..BootEntry::default()
        })
    })
}

/// None of `ours` is on a disk besides `target`.
fn alone(patience: &Patience, ours: &[Name], target: Option<&Disk>) -> Result<(), image::Error> {
    let name = |disk: &Disk| match disk.stable_name.is_empty() {
        true => disk.kernel_name.clone(),
        false => disk.stable_name.clone(),
    };
    let is_target = |disk: &Disk| target.is_some_and(|of| of.kernel_name == disk.kernel_name);
    for other in disk::list(&Tree::new("/".as_ref())) {
        if is_target(&other) {
            continue;
        }
        patience.asks(&name(&other));
        // One that cannot be read has nothing to start from.
        let Ok(file) = patience.during(CALL, || File::open(disk::node(&other))) else {
            continue;
        };
        let theirs = ids::of_disk(other.logical_block_bytes, &mut |from, length| {
            let mut bytes = vec![0; length];
            let read = patience.during(CALL, || file.read_at(&mut bytes, from))?;
            bytes.truncate(read);
            Ok(bytes)
        });
        if let Some((our, their)) = ids::shared(ours, &theirs) {
            return Err(image::Error::Shared(format!(
                "the image's {our} is also {their} of the disk {}",
                name(&other)
            )));
        }
    }
    patience.asks(&target.map(name).unwrap_or_default());
    Ok(())
}

fn note(receipt: &mut DeployReceipt, written: &Written) {
    receipt.from.clone_from(&written.from);
    receipt.resumed = written.resumed;
    receipt.sha256 = written.packed.sha256.to_vec();
    receipt.size_bytes = written.packed.size;
    receipt.unpacked_sha256 = written.unpacked.sha256.to_vec();
    receipt.unpacked_size_bytes = written.unpacked.size;
    receipt.formats = written.formats.iter().map(|f| (*f).to_owned()).collect();
    receipt.zeroed_bytes = written.zeroed;
}

/// Has the kernel see the new partitions.
fn reread(disk: &Block) {
    if let Err(error) = disk::reread(disk) {
        let fields = [("error", Value::Chain(&error))];
        log::event(Level::Debug, "deploy.table_not_read", &fields);
    }
}

/// In percent.
fn share(part: u64, whole: u64) -> u32 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u32::try_from(percent).unwrap_or(100).min(100)
}

fn mebibytes(bytes: u64) -> String {
    [&(bytes >> 20).to_string(), " MiB"].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn params() -> DeployImageParams {
        DeployImageParams {
            order_id: "ord_01kb7w3x9qn5v8m2r6t4y0sdfh".to_owned(),
            disk: Some(DiskTarget {
                stable_name: "virtio-abc".to_owned(),
                size_bytes: 1 << 30,
                ..DiskTarget::default()
            }),
            url: "http://images.example/debian.raw.zst".to_owned(),
            sha256: vec![0xab; 32],
            ..DeployImageParams::default()
        }
    }

    #[test]
    fn params_past_their_bounds_are_refused_in_words() {
        let refused = |change: &dyn Fn(&mut DeployImageParams)| {
            let mut params = params();
            change(&mut params);
            Deploy::read(&params.encode_to_vec()).unwrap_err()
        };
        assert!(Deploy::read(&params().encode_to_vec()).is_ok());
        for (said, error) in [
            (refused(&|p| p.order_id.clear()), "order_id"),
            (refused(&|p| p.disk = None), "stable_name"),
            (refused(&|p| p.url = "ftp://x".to_owned()), "https://"),
            (refused(&|p| p.sha256.clear()), "sha256 must be given"),
            (refused(&|p| p.sha256.truncate(31)), "32 bytes"),
            (refused(&|p| p.unpacked_sha256 = vec![0]), "unpacked_sha256"),
        ] {
            assert!(said.contains(error), "{said}");
        }
    }

    #[test]
    fn the_cache_is_asked_for_what_is_pinned_and_for_nothing_else() {
        let cache = Url::parse("http://10.20.0.2:8080/cache/").unwrap();
        let deploy = Deploy::read(&params().encode_to_vec()).unwrap();
        let sources = deploy.sources(Some(&cache));
        assert_eq!(
            sources.first().unwrap().to_string(),
            ["http://10.20.0.2:8080/cache/", &"ab".repeat(32)].concat()
        );
        assert_eq!(sources.last(), Some(&deploy.url));
        let unpinned = DeployImageParams {
            url: "https://images.example/x".to_owned(),
            sha256: Vec::new(),
            ..params()
        };
        let unpinned = Deploy::read(&unpinned.encode_to_vec()).unwrap();
        assert_eq!(
            unpinned.sources(Some(&cache)),
            std::slice::from_ref(&unpinned.url)
        );
    }
}
