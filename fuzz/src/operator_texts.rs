//! What operators type and what the commands read back: queries, paths of downloads, addresses, spans,
//! `dev.json`, and answers of the API.
use bcd::crypto::json;
use better_compute::api::{downloads, query::Query};
use better_compute::cli::ago::{ago, parse_span, span};
use better_compute::dev::{DevFile, Listen};
use better_compute::{ids, json::Json};
use nanoserde::DeJson;

pub const HEAP: super::Heap = super::Heap {
    base: 32 << 10,
    per_byte: 256,
};

pub fn run(data: &[u8]) {
    if let Some(eight) = data.first_chunk() {
        let at = i64::from_le_bytes(*eight);
        for text in [span(at), ago(Some(at), 0), ago(Some(0), at)] {
            assert!(text.len() < 32, "{text}");
        }
    }
    let _ = json::check(data, 64 << 10, 16).map(DevFile::deserialize_json);
    if let Ok(value) = Json::parse(data, 64 << 10, 16) {
        for name in ["id", "nodes", "state"] {
            let _ = (value.text(name), value.number(name), value.flag(name));
        }
        let again = Json::parse(value.to_string().as_bytes(), usize::MAX, 16);
        assert_eq!(again, Ok(value));
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(ms) = parse_span(text) {
        assert!((0..=999_999_999 * 86_400_000).contains(&ms));
    }
    if let Some(name) = downloads::Name::parse(text) {
        let file = &name.file;
        assert!(file.starts_with("bcd_") || file.starts_with("bcx-ipmi_"));
        assert!(
            file.len() < 128 && !file.contains(['/', '\\', '\0', '%', ' ']) && !file.contains("..")
        );
        assert_eq!(name.key().split('/').count(), 3);
    }
    let _ = downloads::Part::range(text, data.len() as u64);
    if let Ok(query) = Query::new(text, &["after", "wait", "limit", "node", "state"]) {
        assert!(query.limit().is_err() || (1..=1000).contains(&query.limit().unwrap_or(0)));
        assert!(query.wait().map_or(0, |wait| wait.as_secs()) <= 30);
    }
    if let Ok(listen) = text.parse::<Listen>() {
        assert_eq!(
            listen.to_string().parse::<Listen>().ok(),
            Some(listen.clone())
        );
        assert!(!listen.names().is_empty() && listen.url(1).starts_with("https://"));
    }
    if ids::is_ulid_of("node", text) {
        assert!(text.len() == 31 && ids::is_chosen(text));
    }
}
