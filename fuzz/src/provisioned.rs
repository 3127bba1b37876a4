//! The key that a deploy leaves for an OS: what is read is written the same, and proves a request.
use bcd::attest::provisioned::Provisioned;

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 16,
};

pub fn run(data: &[u8]) {
    let Ok(left) = Provisioned::parse(data) else {
        return;
    };
    let text = left.to_text();
    let again = Provisioned::parse(text.as_bytes()).expect("its own text");
    assert_eq!(again.key_sha256(), left.key_sha256());
    assert_eq!(*again.to_text(), *text);
}
