//! The control plane's HTTP API behind its head: any request is answered, with JSON or a file, never with a
//! fault of the server's; what is refused says why in one line.
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bcd::crypto::json;
use bcd::rt;
use bcd::wire::http1::server::{Answer, Body, Request};
use better_compute::api::Api;
use better_compute::json::Json;

use super::fleet::{self, ADMIN, Fleet};

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 20,
    per_byte: 512,
};

/// Longer than a request may take that does not wait for news.
const WAIT: Duration = Duration::from_millis(100);

struct Place {
    fleet: Fleet,
    api: Api,
}

thread_local! {
    static PLACE: RefCell<Option<Rc<Place>>> = const { RefCell::new(None) };
}

fn place() -> Place {
    let fleet = Fleet::new();
    let api = fleet.api(|| fleet.store());
    Place { fleet, api }
}

/// A line with method and target, then the body; `$NODE` and `$TOKEN` stand for ids that are there.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let place = fleet::with(&PLACE, |place| &place.fleet, place);
    let text = text
        .replace("$NODE", &place.fleet.node_id)
        .replace("$TOKEN", &place.fleet.token_id);
    let (line, body) = text.split_once('\n').unwrap_or((&text, ""));
    let Some((method, target)) = line.split_once(' ') else {
        return;
    };
    let waits = target.contains("wait=");
    let Some(answer) = rt::block_on(rt::timeout(
        WAIT,
        place.api.answer(request(method, target, body)),
    ))
    .ok() else {
        assert!(waits, "{line}: no answer");
        return;
    };
    assert_eq!(place.api.waiting.get(), 0, "nobody waits");
    // 503 is what a rotation gets here.
    let known = [200, 201, 400, 404, 405, 409, 429];
    assert!(
        known.contains(&answer.status) || target.contains("/rotations/") && answer.status == 503,
        "{line}: {}",
        answer.status
    );
    is_sound(line, answer);
}

/// A request with the admin token.
pub fn request(method: &str, target: &str, body: &str) -> Request {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: vec![("authorization".to_owned(), format!("Bearer {ADMIN}"))],
        body: body.as_bytes().to_vec(),
        peer: None,
    }
}

/// JSON is JSON, and an error has a code and a line. Gives the error's line.
pub fn is_sound(line: &str, answer: Answer) -> Option<String> {
    let is_json = answer
        .headers
        .iter()
        .any(|(name, value)| name == "Content-Type" && value == "application/json");
    let Body::Bytes(bytes) = answer.body else {
        panic!("there are no files");
    };
    if is_json {
        assert!(json::check(&bytes, usize::MAX, 32).is_ok(), "{line}");
    }
    if answer.status < 400 {
        return None;
    }
    let said = Json::parse(&bytes, usize::MAX, 4).expect("an error is JSON");
    let error = said.get("error").expect("an error");
    assert!(!error.text("code").is_empty());
    super::one_line(&error.text("message"));
    Some(error.text("message").to_owned())
}
