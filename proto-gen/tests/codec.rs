//! The codec's limits and proto3's rules for merging, on a message written by hand; agreement with
//! other implementations is tests/wire's business.
use proto_gen::codec::{self, Decoder, Fault, Fields, Limits, Message, Value, Wire};

/// What the compiler would make of `message Tree { uint32 number = 1; repeated Tree trees = 2;
/// string text = 3; repeated uint64 numbers = 4; optional Tree only = 5; }`.
#[derive(Clone, PartialEq, Debug, Default)]
struct Tree {
    number: u32,
    trees: Vec<Tree>,
    text: String,
    numbers: Vec<u64>,
    only: Option<Box<Tree>>,
}

impl Message for Tree {
    const NAME: &'static str = "test.Tree";
}

impl Fields for Tree {
    fn encode_fields(&self, out: &mut Vec<u8>) {
        codec::put_nonzero(out, 1, Wire::Varint, u64::from(self.number));
        for tree in &self.trees {
            codec::put_message(out, 2, tree);
        }
        codec::put_nonempty(out, 3, self.text.as_bytes());
        if let Some(tree) = &self.only {
            codec::put_message(out, 5, &**tree);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        value: Value<'_>,
        decoder: &mut Decoder,
    ) -> Result<(), Fault> {
        match number {
            1 => self.number = value.number(Wire::Varint).unwrap_or_default() as u32,
            2 => {
                if let Some(bytes) = value.delimited() {
                    decoder.charge(size_of::<Tree>())?;
                    let mut tree = Tree::default();
                    decoder.message(&mut tree, bytes)?;
                    self.trees.push(tree);
                }
            }
            3 => {
                if let Some(text) = decoder.string(value)? {
                    self.text = text;
                }
            }
            4 => {
                let numbers = &mut self.numbers;
                decoder.numbers(value, Wire::Varint, 8, &mut |bits| numbers.push(bits))?;
            }
            5 => {
                if let Some(bytes) = value.delimited() {
                    decoder.message(&mut **self.only.get_or_insert_default(), bytes)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn fault(bytes: &[u8], limits: Limits) -> Option<Fault> {
    Tree::decode_within(bytes, limits)
        .err()
        .map(|error| error.fault)
}

fn nested(depth: usize) -> Vec<u8> {
    let mut tree = Tree::default();
    for _ in 0..depth {
        tree = Tree {
            trees: vec![tree],
            ..Tree::default()
        };
    }
    tree.encode_to_vec()
}

#[test]
fn nesting_is_bounded() {
    let limits = Limits::default();
    assert_eq!(fault(&nested(32), limits), None);
    assert_eq!(fault(&nested(33), limits), Some(Fault::TooDeep));
    // Depth is counted along a branch, not in all.
    let wide = Tree {
        trees: vec![Tree::decode(&nested(31)).unwrap(); 40],
        ..Tree::default()
    };
    assert_eq!(Tree::decode(&wide.encode_to_vec()), Ok(wide));
    // Groups count too, although they are skipped.
    let groups = |depth: usize| [vec![0x3b; depth], vec![0x3c; depth]].concat();
    assert_eq!(fault(&groups(32), limits), None);
    assert_eq!(fault(&groups(33), limits), Some(Fault::TooDeep));
    assert_eq!(fault(&vec![0x3b; 1 << 20], limits), Some(Fault::TooDeep));
}

#[test]
fn size_is_bounded() {
    let text = Tree {
        text: "x".repeat(1 << 20),
        ..Tree::default()
    };
    let bytes = text.encode_to_vec();
    assert_eq!(fault(&bytes, Limits::default()), Some(Fault::TooLong));
    assert_eq!(fault(&bytes, Limits::of_size(bytes.len())), None);
    let error = Tree::decode(&bytes).unwrap_err().to_string();
    assert_eq!(error, "cannot decode test.Tree: it is longer than allowed");
}

#[test]
fn a_short_message_cannot_take_much_memory() {
    // Two bytes an element, a hundred and more of memory.
    let trees = [0x12, 0].repeat(1 << 19);
    assert_eq!(fault(&trees, Limits::default()), Some(Fault::TooMuchMemory));
    // Eight-fold growth is what a packed list may do, and as much passes.
    let mut numbers = vec![0x22];
    codec::put_varint(&mut numbers, (1 << 20) - 8);
    numbers.extend(vec![1; (1 << 20) - 8]);
    assert_eq!(fault(&numbers, Limits::default()), None);
}

#[test]
fn the_last_value_wins_and_messages_merge() {
    let first = Tree {
        number: 1,
        text: "first".to_owned(),
        only: Some(Box::new(Tree {
            number: 7,
            ..Tree::default()
        })),
        ..Tree::default()
    };
    let second = Tree {
        number: 2,
        only: Some(Box::new(Tree {
            text: "second".to_owned(),
            ..Tree::default()
        })),
        ..Tree::default()
    };
    let joined = [first.encode_to_vec(), second.encode_to_vec()].concat();
    let merged = Tree::decode(&joined).unwrap();
    assert_eq!((merged.number, merged.text.as_str()), (2, "first"));
    let only = merged.only.unwrap();
    assert_eq!((only.number, only.text.as_str()), (7, "second"));
}

#[test]
fn unknown_fields_are_skipped_and_their_form_is_checked() {
    let known = [0x08, 0x05];
    for unknown in [
        &[0x78, 0x01][..],
        &[0x79, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x7a, 2, 0xff, 0xff],
        &[0x7d, 1, 2, 3, 4],
        // A group with a group in it, and fields.
        &[0x7b, 0x08, 0x01, 0x0b, 0x0c, 0x12, 1, 0, 0x7c],
        // Known fields in another wire type.
        &[0x1d, 1, 2, 3, 4],
        &[0x10, 1],
    ] {
        let bytes = [unknown, &known].concat();
        assert_eq!(Tree::decode(&bytes).map(|tree| tree.number), Ok(5));
        for cut in 1..unknown.len() {
            assert!(
                Tree::decode(&unknown[..cut]).is_err(),
                "{:?}",
                &unknown[..cut]
            );
        }
    }
    for (bytes, expected) in [
        (&[0x7b][..], Fault::Truncated),
        (&[0x7c], Fault::Group),
        (&[0x7b, 0x74], Fault::Group),
        (&[0x7e, 0], Fault::WireType),
        (&[0x7f, 0], Fault::WireType),
        (&[0x00, 0], Fault::FieldNumber),
        (&[0x1a, 1, 0xff], Fault::Utf8),
        (&[0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f], Fault::Varint),
        (&[0x1a, 0xff, 0xff, 0xff, 0xff, 0x07], Fault::Truncated),
        (
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ],
            Fault::Varint,
        ),
        (&[0x22, 2, 0x80, 0x80], Fault::Truncated),
    ] {
        assert_eq!(fault(bytes, Limits::default()), Some(expected), "{bytes:?}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    // xorshift: the same bytes in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut taken = 0;
    for _ in 0..200_000 {
        let mut bytes = [0; 24];
        for chunk in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        // Often a field that exists.
        bytes[0] = [0x08, 0x12, 0x1a, 0x22, 0x2a, 0x7b, 0x7d, bytes[0]][(state & 7) as usize];
        let length = (state >> 8) as usize % 25;
        taken += u32::from(Tree::decode(&bytes[..length]).is_ok());
    }
    assert!(taken > 1000, "{taken}");
}

#[test]
fn zigzag_keeps_every_sign() {
    for value in [0, 1, -1, 63, -64, i32::MAX, i32::MIN] {
        assert_eq!(codec::unzigzag32(codec::zigzag32(value)), value);
        let wide = i64::from(value) << 31;
        assert_eq!(codec::unzigzag64(codec::zigzag64(wide)), wide);
    }
    assert_eq!(codec::zigzag32(-1), 1);
    assert_eq!(codec::zigzag64(i64::MIN), u64::MAX);
}
