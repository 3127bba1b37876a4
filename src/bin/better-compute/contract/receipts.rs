//! Receipts as operators read and keep them.

use bcd::crypto::base64;
use bcd::crypto::digest::hex;
use bcd::crypto::envelope::{self, Purpose};
use bcd::deploy::wipe;
use bcd::proto::{
    BootEntry, DeployOutcome, DeployReceipt, Message, ReceiptHead, SampleContent, SignedReceipt,
    WipeOutcome, WipeReceipt, WipedDisk,
};

use super::word;
use crate::json::{Json, Object};

/// Bytes of a receipt's file, and how deep it is.
pub const FILE_MAX: usize = 3 << 19;
const DEPTH_MAX: usize = 8;

/// A receipt as it is kept in a file.
pub fn receipt_file(receipt: &SignedReceipt) -> Json {
    let envelope = receipt.envelope.clone().unwrap_or_default();
    let text = envelope::to_json(&envelope);
    let chain = receipt.certificate_chain.iter();
    let chain: Vec<Json> = chain.map(|der| base64::encode(der).into()).collect();
    Object::new()
        .with(
            "receipt",
            Json::parse(text.as_bytes(), text.len(), DEPTH_MAX).unwrap_or(Json::Null),
        )
        .with("certificateChain", chain)
        .into()
}

/// Reads what [`receipt_file`] wrote; members not known are read over. Nothing is verified.
///
/// # Errors
/// What is wrong, in words.
pub fn read_receipt_file(bytes: &[u8]) -> Result<SignedReceipt, String> {
    let file = Json::parse(bytes, FILE_MAX, DEPTH_MAX).map_err(|error| error.to_string())?;
    let envelope = file.get("receipt").map(Json::to_string).unwrap_or_default();
    let envelope = envelope::from_json(envelope.as_bytes())
        .map_err(|_| "its receipt is no signed envelope".to_owned())?;
    let chain = file.get("certificateChain").map(Json::items);
    let certificate_chain = chain
        .unwrap_or_default()
        .iter()
        .map(|der| base64::decode(der.as_text()?).ok())
        .collect::<Option<_>>()
        .ok_or("its certificateChain is not base64")?;
    Ok(SignedReceipt {
        envelope: Some(envelope),
        certificate_chain,
    })
}

/// What a receipt is of: `wipe`, `deploy`; empty: not known.
pub fn receipt_kind(receipt: &SignedReceipt) -> &'static str {
    let payload_type = receipt
        .envelope
        .as_ref()
        .map(|envelope| envelope.payload_type.as_str());
    match payload_type {
        Some(known) if known == envelope::payload_type(Purpose::WipeReceipt) => "wipe",
        Some(known) if known == envelope::payload_type(Purpose::DeployReceipt) => "deploy",
        _ => "",
    }
}

/// What a receipt says, verified or not.
pub fn show_receipt(receipt: &SignedReceipt) -> Json {
    let payload = receipt.envelope.as_ref().map(|envelope| &envelope.payload);
    let payload = payload.map(Vec::as_slice).unwrap_or_default();
    let shown = match receipt_kind(receipt) {
        "wipe" => WipeReceipt::decode(payload).ok().map(show_wipe),
        "deploy" => DeployReceipt::decode(payload).ok().map(show_deploy),
        _ => None,
    };
    shown.unwrap_or_else(|| super::kinds::raw(payload))
}

/// In a few words how it went, and whether all of it did.
pub fn receipt_outcome(receipt: &SignedReceipt) -> (String, bool) {
    let payload = receipt.envelope.as_ref().map(|envelope| &envelope.payload);
    let payload = payload.map(Vec::as_slice).unwrap_or_default();
    match receipt_kind(receipt) {
        "wipe" => match WipeReceipt::decode(payload) {
            Ok(receipt) => {
                let count = |outcome| {
                    let disks = receipt.disks.iter();
                    disks.filter(|disk| disk.outcome == outcome).count()
                };
                let wiped = count(WipeOutcome::WIPED);
                let mut said = format!("{wiped} wiped");
                for (n, word) in [
                    (count(WipeOutcome::FAILED), "failed"),
                    (count(WipeOutcome::REFUSED), "refused"),
                ] {
                    if n > 0 {
                        said.push_str(&format!(", {n} {word}"));
                    }
                }
                (said, wiped > 0 && wiped == receipt.disks.len())
            }
            Err(_) => ("unreadable".to_owned(), false),
        },
        "deploy" => match DeployReceipt::decode(payload) {
            Ok(receipt) if receipt.outcome == DeployOutcome::DEPLOYED => {
                let how = match receipt.read_back {
                    true => "deployed, and read back",
                    false => "deployed, not read back",
                };
                (how.to_owned(), true)
            }
            Ok(receipt) => (format!("failed: {}", receipt.reason), false),
            Err(_) => ("unreadable".to_owned(), false),
        },
        _ => ("unknown to this version".to_owned(), false),
    }
}

/// The head that all receipts have.
pub fn show_head(head: ReceiptHead) -> Object {
    Object::new()
        .with("order", head.order_id)
        .with("command", head.command_id)
        .with("node", head.node_id)
        .with("boot", head.boot_id)
        .with_text("systemSerial", &head.system_serial)
        .with_text("systemUuid", &head.system_uuid)
        .with("daemonVersion", head.daemon_version)
        .with("startedAtMs", head.started_ms)
        .with("finishedAtMs", head.finished_ms)
}

fn show_wipe(receipt: WipeReceipt) -> Json {
    let disks: Vec<Json> = receipt.disks.into_iter().map(show_disk).collect();
    show_head(receipt.head.unwrap_or_default())
        .with("disks", disks)
        .into()
}

fn show_deploy(receipt: DeployReceipt) -> Json {
    let target = receipt.target.unwrap_or_default();
    let found = receipt.disk.unwrap_or_default();
    let partitions: Vec<Json> = receipt
        .partitions
        .into_iter()
        .map(|partition| {
            Object::new()
                .with("number", partition.number)
                .with("startBytes", partition.start_bytes)
                .with("lengthBytes", partition.length_bytes)
                .with_text("typeGuid", &partition.type_guid)
                .with_text("guid", &partition.guid)
                .into()
        })
        .collect();
    let files: Vec<Json> = receipt
        .files
        .into_iter()
        .map(|file| {
            Object::new()
                .with("path", file.path)
                .with("mode", format!("{:04o}", file.mode))
                .with("sizeBytes", file.size_bytes)
                .with_text("sha256", &hex(&file.sha256))
                .into()
        })
        .collect();
    let formats: Vec<Json> = receipt.formats.into_iter().map(Json::from).collect();
    let some = |number: u64| (number != 0).then_some(number);
    let at = |ms: i64| (ms != 0).then_some(ms);
    show_head(receipt.head.unwrap_or_default())
        .with("disk", target.stable_name)
        .with(
            "outcome",
            word(receipt.outcome.name(), "DEPLOY_OUTCOME_", receipt.outcome.0),
        )
        .with_text("reason", &receipt.reason)
        .with_text("message", &receipt.message)
        .with_text("kernelName", &found.kernel_name)
        .with_text("model", &found.model)
        .with_text("serial", &target.serial)
        .with_text("wwn", &target.wwn)
        .with("diskBytes", target.size_bytes)
        .with("url", receipt.url)
        .with_text("from", &receipt.from)
        .with("resumed", receipt.resumed)
        .with("formats", formats)
        .with_text("sha256", &hex(&receipt.sha256))
        .with_some("sizeBytes", some(receipt.size_bytes))
        .with_text("unpackedSha256", &hex(&receipt.unpacked_sha256))
        .with_some("unpackedSizeBytes", some(receipt.unpacked_size_bytes))
        .with("zeroedBytes", receipt.zeroed_bytes)
        .with("readBack", receipt.read_back)
        .with_some("writtenAtMs", at(receipt.written_ms))
        .with_some("readBackAtMs", at(receipt.read_back_ms))
        .with_text("table", &receipt.table)
        .with("partitions", partitions)
        .with_some("grownPartition", some(receipt.grown_partition.into()))
        .with_some("grownBytes", some(receipt.grown_bytes))
        .with("newGuids", receipt.new_guids)
        .with_some("rootPartition", some(receipt.root_partition.into()))
        .with("files", files)
        .with_text("joinKeySha256", &hex(&receipt.join_key_sha256))
        .with_some("bootEntry", receipt.boot_entry.map(show_boot_entry))
        .into()
}

fn show_boot_entry(entry: BootEntry) -> Json {
    if !entry.reason.is_empty() {
        return Object::new()
            .with("reason", entry.reason)
            .with("message", entry.message)
            .into();
    }
    let name = |number: u32| Json::from(format!("Boot{number:04X}"));
    let names = |numbers: Vec<u32>| numbers.into_iter().map(name).collect::<Vec<Json>>();
    Object::new()
        .with("entry", name(entry.number))
        .with("label", entry.label)
        .with("loader", entry.loader)
        .with("partitionGuid", entry.partition_guid)
        .with("removed", names(entry.removed))
        .with("bootOrder", names(entry.boot_order))
        .into()
}

fn show_disk(wiped: WipedDisk) -> Json {
    let target = wiped.target.unwrap_or_default();
    let found = wiped.disk.unwrap_or_default();
    let attempts: Vec<Json> = wiped
        .attempts
        .into_iter()
        .map(|attempt| {
            let logs = attempt.logs.into_iter();
            let logs = logs.map(|log| (log.name, hex(&log.bytes).into())).collect();
            let some = |bytes: u64| (bytes != 0).then_some(bytes);
            Object::new()
                .with("method", wipe::word(attempt.method))
                .with("held", attempt.reason.is_empty())
                .with_text("reason", &attempt.reason)
                .with_text("message", &attempt.message)
                .with("foundRunning", attempt.found_running)
                .with("startedAtMs", attempt.started_ms)
                .with("finishedAtMs", attempt.finished_ms)
                .with_some("bytesWritten", some(attempt.bytes_written))
                .with_some("bytesVerified", some(attempt.bytes_verified))
                .with("logs", Json::Object(logs))
                .into()
        })
        .collect();
    let samples: Vec<Json> = wiped
        .samples
        .into_iter()
        .map(|sample| {
            Object::new()
                .with("offset", sample.offset)
                .with("length", sample.length)
                .with("place", sample.place)
                .with("content", content(sample.content))
                .with_text("sha256", &hex(&sample.sha256))
                .into()
        })
        .collect();
    Object::new()
        .with("disk", target.stable_name)
        .with("outcome", outcome(wiped.outcome))
        .with_text("reason", &wiped.reason)
        .with_text("message", &wiped.message)
        .with_text("kernelName", &found.kernel_name)
        .with_text("model", &found.model)
        .with_text("serial", &target.serial)
        .with_text("wwn", &target.wwn)
        .with_text("firmware", &found.firmware)
        .with_text("transport", &found.transport)
        .with("sizeBytes", target.size_bytes)
        .with("attempts", attempts)
        .with("seed", hex(&wiped.seed))
        .with("samples", samples)
        .into()
}

fn outcome(outcome: WipeOutcome) -> String {
    word(outcome.name(), "WIPE_OUTCOME_", outcome.0)
}

fn content(content: SampleContent) -> String {
    word(content.name(), "SAMPLE_CONTENT_", content.0)
}

#[cfg(test)]
mod tests {
    use bcd::crypto::key::NodeKey;
    use bcd::proto::{DiskTarget, WipeAttempt, WipeMethod, WipeSample};

    use super::*;

    fn receipt(outcomes: &[WipeOutcome]) -> SignedReceipt {
        let disk = |outcome: &WipeOutcome| WipedDisk {
            target: Some(DiskTarget {
                stable_name: "virtio-a".to_owned(),
                size_bytes: 1 << 20,
                ..DiskTarget::default()
            }),
            outcome: *outcome,
            attempts: vec![WipeAttempt {
                method: WipeMethod::OVERWRITE,
                bytes_written: 1 << 20,
                ..WipeAttempt::default()
            }],
            samples: vec![WipeSample {
                length: 4096,
                place: "front".to_owned(),
                content: SampleContent::ZEROS,
                ..WipeSample::default()
            }],
            seed: vec![1; 8],
            ..WipedDisk::default()
        };
        let receipt = WipeReceipt {
            head: Some(ReceiptHead::default()),
            disks: outcomes.iter().map(disk).collect(),
        };
        let key = NodeKey::generate().unwrap();
        let signed = envelope::sign(receipt.encode_to_vec(), Purpose::WipeReceipt, &key);
        SignedReceipt {
            envelope: Some(signed.unwrap()),
            certificate_chain: vec![vec![1, 2], vec![3]],
        }
    }

    #[test]
    fn a_receipts_file_is_read_as_it_was_written() {
        let receipt = receipt(&[WipeOutcome::WIPED]);
        let file = receipt_file(&receipt).to_string();
        assert_eq!(read_receipt_file(file.as_bytes()), Ok(receipt));
        for wrong in ["", "{}", r#"{"receipt":{}}"#, "[]"] {
            assert!(read_receipt_file(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wipe_reads_as_what_it_says() {
        let shown = show_receipt(&receipt(&[WipeOutcome::WIPED]));
        let disk = &shown.get("disks").unwrap().items()[0];
        assert_eq!(
            (disk.text("disk"), disk.text("outcome")),
            ("virtio-a", "wiped")
        );
        let attempt = &disk.get("attempts").unwrap().items()[0];
        assert_eq!(
            (attempt.text("method"), attempt.flag("held")),
            ("overwrite", true)
        );
        let sample = &disk.get("samples").unwrap().items()[0];
        assert_eq!(sample.text("content"), "zeros");
    }

    #[test]
    fn only_all_disks_wiped_are_a_wipe() {
        let (wiped, failed, refused) = (
            WipeOutcome::WIPED,
            WipeOutcome::FAILED,
            WipeOutcome::REFUSED,
        );
        for (outcomes, said, all) in [
            (&[wiped, wiped][..], "2 wiped", true),
            (&[wiped, failed], "1 wiped, 1 failed", false),
            (&[refused, failed], "0 wiped, 1 failed, 1 refused", false),
            (&[], "0 wiped", false),
        ] {
            assert_eq!(receipt_outcome(&receipt(outcomes)), (said.to_owned(), all));
        }
    }
}
