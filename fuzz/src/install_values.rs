//! What may stand in an install script: whatever is taken ends no quote of the shell or of TOML, and begins no line.
use better_compute::install::values;

pub const HEAP: super::Heap = super::Heap {
    base: 16 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        if let Err(error) = values::certificates("proxy-ca", data) {
            super::one_line(&error);
        }
        return;
    };
    let taken = [
        values::id("id", text),
        values::plugins("plugins", text),
        values::bridges("bridges", text),
        values::version("version", text),
        values::url("url", "https", text),
        values::path("path", text),
        values::host("host", text),
        values::digest("digest", text),
        values::networks("networks", text),
        values::number("number", text, 1, 100).map(|number| number.to_string()),
        values::pins("pins", text).map(|pins| {
            let pins: Vec<String> = pins.iter().map(ToString::to_string).collect();
            pins.join(" ")
        }),
    ];
    for taken in taken {
        match taken {
            Ok(value) => assert!(
                !value.contains(['\'', '"', '\\', '$', '`', '#', ';', '&', '|', '<', '>'])
                    && !value.chars().any(char::is_control),
                "{value:?}"
            ),
            Err(error) => super::one_line(&error),
        }
    }
    if let Ok(binaries) = values::binaries("binaries", text) {
        assert!(binaries.iter().flatten().all(|digest| digest.len() == 64));
    }
    match values::certificates("proxy-ca", data) {
        Ok(pem) => {
            assert!(pem.len() <= values::PROXY_CA_MAX);
            assert!(!pem.contains(['\'', '"', '\\', '$', '`']), "{pem}");
        }
        Err(error) => super::one_line(&error),
    }
}
