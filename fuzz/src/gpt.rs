//! Partition tables: what is taken has partitions that lie apart, and fits a larger disk as the same table.
use bcd::deploy::gpt::{Guid, Table};

pub const HEAP: super::Heap = super::Heap {
    base: 1 << 20,
    per_byte: 64,
};

const SIZE: u64 = 1 << 40;

pub fn run(data: &[u8]) {
    for sector in [512, 4096] {
        let table = match Table::read(data, sector) {
            Ok(table) => table,
            Err(error) => {
                assert!(!error.to_string().contains('\n'));
                continue;
            }
        };
        let partitions = table.partitions();
        let Table::Gpt(mut gpt) = table else {
            assert!(partitions.len() <= 4);
            continue;
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
