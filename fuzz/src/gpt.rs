//! Partition tables: what is taken has partitions that lie apart, and fits a larger disk as the same table.
use bcd::deploy::gpt::{Guid, Table};

pub const HEAP: super::Heap = super::Heap {
    base: 1 << 20,
    per_byte: 64,
};

const SIZE: u64 = 1 << 40;

pub fn run(data: &[u8]) {
    for sector in [512, 4096] {
        hold(data, sector);
        hold(&mended(data, sector as usize), sector);
    }
}

/// The same with checksums that are right, or else no input would get past them.
fn mended(data: &[u8], sector: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    let number = |data: &[u8], at: usize| {
        let bytes = data.get(sector + at..sector + at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let fields = [12, 72, 80, 84].map(|at| number(&data, at));
    let [Some(length), Some(entries), Some(count), Some(size)] = fields else {
        return data;
    };
    let from = entries.saturating_mul(sector);
    let to = from.saturating_add(count.saturating_mul(size));
    for (range, at) in [(from..to, 88), (sector..sector.saturating_add(length), 16)] {
        if at == 16
            && let Some(field) = data.get_mut(sector + 16..sector + 20)
        {
            field.fill(0);
        }
        let crc = data.get(range).map(crc32);
        let field = data.get_mut(sector + at..sector + at + 4);
        if let (Some(crc), Some(field)) = (crc, field) {
            field.copy_from_slice(&crc.to_le_bytes());
        }
    }
    data
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        let crc = crc ^ u32::from(*byte);
        (0..8).fold(crc, |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

fn hold(data: &[u8], sector: u32) {
    {
        let table = match Table::read(data, sector) {
            Ok(table) => table,
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                return;
            }
        };
        let partitions = table.partitions();
        let Table::Gpt(mut gpt) = table else {
            assert!(partitions.len() <= 4);
            return;
        };
        let mut ends: Vec<_> = partitions
            .iter()
            .map(|p| (p.start, p.start + p.length))
            .collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        gpt.renew(&mut || Guid::random([7; 16]));
        for grow in [false, true] {
            let Ok(fitted) = gpt.clone().fit(SIZE, grow) else {
                continue;
            };
            let mut head = data.to_vec();
            for (at, bytes) in &fitted.first {
                let at = *at as usize;
                head.resize(head.len().max(at + bytes.len()), 0);
                head[at..at + bytes.len()].copy_from_slice(bytes);
            }
            let again = Table::read(&head, sector)
                .unwrap_or_else(|error| panic!("what was fitted is damaged: {error}"));
            assert_eq!(again.partitions().len(), partitions.len());
            assert!(
                fitted
                    .last
                    .iter()
                    .all(|(at, bytes)| at + bytes.len() as u64 <= SIZE)
            );
        }
    }
}
