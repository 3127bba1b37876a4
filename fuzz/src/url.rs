//! URLs: one that is read, or that a reference leads to, is written so that it reads back the same, and holds nothing that
//! could leave its place in a request.
use bcd::wire::url::{Url, is_host};

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 8,
};

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = is_host(text);
    let base = Url::parse("https://host/a/b?c").expect("a URL");
    for url in [Url::parse(text), base.join(text)].into_iter().flatten() {
        let written = url.to_string();
        assert_eq!(Url::parse(&written).as_ref(), Ok(&url), "{text:?}");
        assert!(url.path.starts_with('/'));
        assert!(written.bytes().all(|b| b.is_ascii_graphic()));
        assert!(!url.authority().contains(['@', '/', '#', '?']));
    }
}
