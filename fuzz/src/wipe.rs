//! What is read for a wipe: the words of devices on their erasures, what stands at places of a disk, receipts. Whatever it is,
//! places lie within the disk, and nothing is verified that is not signed.
use bcd::crypto::pin::Pin;
use bcd::deploy::receipt;
use bcd::deploy::wipe::{ata, nvme, places, scsi};
use bcd::proto::{Disk, Message, SignedReceipt};

pub const HEAP: super::Heap = super::Heap {
    base: 256 << 10,
    per_byte: 64,
};

/// The first byte says what it is.
pub fn run(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    match first {
        0 => {
            nvme::status(bytes);
            nvme::abilities(bytes);
            assert_eq!(nvme::format_word(bytes, 2) >> 9 & 7, 2);
            nvme::is_alone(bytes, 1);
        }
        1 => {
            let security = ata::security(bytes);
            assert!(
                security
                    .estimates
                    .iter()
                    .flatten()
                    .all(|seconds| *seconds > 0)
            );
            ata::sanitizes(bytes);
            ata::state(bytes);
        }
        2 => {
            scsi::state(2, bytes);
            scsi::is_supported(bytes);
        }
        3 => {
            places::label(bytes);
        }
        4 => {
            let mut words = bytes.chunks(8).map(|word| {
                let mut eight = [0; 8];
                eight
                    .iter_mut()
                    .zip(word)
                    .for_each(|(to, from)| *to = *from);
                u64::from_le_bytes(eight)
            });
            let mut word = || words.next().unwrap_or(0);
            let disk = Disk {
                size_bytes: word(),
                logical_block_bytes: word() as u32,
                ..Disk::default()
            };
            let seed = word().to_le_bytes();
            let partitions = [(word(), word()), (word(), word())];
            let places = places::all(&disk, &partitions, seed);
            assert!(places.len() < 128);
            for place in places {
                let end = place.offset.checked_add(place.length.into());
                assert!(end.is_some_and(|end| end <= disk.size_bytes));
            }
        }
        _ => {
            if let Ok(receipt) = SignedReceipt::decode(bytes) {
                let pin = Pin::of_spki(b"nobody's");
                assert!(receipt::verify(&receipt, &[pin], &[]).is_err());
            }
        }
    }
}
