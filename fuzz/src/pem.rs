//! PEM: what is read is written and read back the same.
use bcd::crypto::pem;

pub const HEAP: super::Heap = super::Heap {
    base: 8192,
    per_byte: 64,
};

pub fn run(data: &[u8]) {
    let written = pem::encode(pem::CERTIFICATE, data);
    let read = pem::decode(&written, pem::CERTIFICATE).map(|der| der.to_vec());
    assert!(read.is_ok_and(|der| der == data) || data.is_empty());
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(blocks) = pem::decode_all(text, pem::CERTIFICATE) {
        let again: String = blocks
            .iter()
            .map(|der| pem::encode(pem::CERTIFICATE, der).to_string())
            .collect();
        assert_eq!(pem::decode_all(&again, pem::CERTIFICATE), Ok(blocks));
    }
}
