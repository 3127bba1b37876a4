//! The request that opens a WebSocket, and its answer (RFC 6455 4).
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::{PROTOCOL, WebSocket};
use crate::rt::Stream;
use crate::sys::random;
use crate::wire::base64;
use crate::wire::hop::{self, Hop, HopCause, HopError};
use crate::wire::http1::client::Answer;
use crate::wire::http1::server;
use crate::wire::url::Url;

/// What a key is digested with: it proves nothing but that the answer is a WebSocket's.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer to a key.
fn accept(key: &str) -> String {
    let text = [key, MAGIC].concat();
    base64::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

/// Opens a WebSocket over `stream`, which leads to the server of `url`.
///
/// # Errors
/// Its server opens none within `wait`.
pub async fn open(stream: Stream, url: &Url, wait: Duration) -> Result<Stream, HopError> {
    let failed = |cause| failed(url, cause);
    let key = base64::encode(&random::bytes::<16>().map_err(|error| failed(HopCause::Io(error)))?);
    let mut head = String::with_capacity(512);
    for part in [
        "GET ",
        &url.path,
        " HTTP/1.1\r\nHost: ",
        &url.authority(),
        concat!("\r\nUser-Agent: bcd/", env!("CARGO_PKG_VERSION")),
        "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ",
        &key,
        "\r\nSec-WebSocket-Protocol: ",
        PROTOCOL,
        "\r\n\r\n",
    ] {
        head.push_str(part);
    }
    let answer = hop::ask(stream, head.as_bytes(), wait)
        .await
        .map_err(failed)?;
    judge(&answer, &key).map_err(failed)?;
    let (stream, ahead) = answer.into_parts();
    Ok(Stream::Framed(Box::new(WebSocket::client(stream, ahead))))
}

/// A failure at the WebSocket of `url`.
pub(in crate::wire) fn failed(url: &Url, cause: HopCause) -> HopError {
    let scheme = if url.https { "wss://" } else { "ws://" };
    HopError {
        hop: Hop::WebSocket,
        at: [scheme, &url.authority(), &url.path].concat(),
        to: String::new(),
        cause,
    }
}

fn judge(answer: &Answer<Stream>, key: &str) -> Result<(), HopCause> {
    if answer.status != 101 {
        return Err(HopCause::Status(answer.status));
    }
    let is = |name, word: &str| {
        let value = answer.header(name);
        value.is_some_and(|value| value.eq_ignore_ascii_case(word))
    };
    let what = if !is("upgrade", "websocket") || !answer.header("connection").is_some_and(upgrades)
    {
        "it upgrades to something else"
    } else if answer.header("sec-websocket-accept") != Some(&accept(key)) {
        "it is the answer to another request"
    } else if answer.header("sec-websocket-extensions").is_some() {
        "it chooses an extension that was not offered"
    } else if answer.header("sec-websocket-protocol") != Some(PROTOCOL) {
        "it is no gateway's: it does not choose our subprotocol"
    } else {
        return Ok(());
    };
    Err(HopCause::Malformed(what))
}

fn upgrades(connection: &str) -> bool {
    has(connection, "upgrade")
}

/// Whether `word` is in the list, in any case.
fn has(list: &str, word: &str) -> bool {
    list.split(',')
        .any(|item| item.trim().eq_ignore_ascii_case(word))
}

/// A server's answer to a request that shall open a WebSocket: 101 when it may.
pub fn answer(request: &server::Request) -> server::Answer {
    let header = |name| request.header(name).unwrap_or_default();
    let refusal = |status, why: &str| {
        server::Answer::new(status, "text/plain; charset=utf-8", format!("{why}\n"))
    };
    if request.method != "GET"
        || !has(header("upgrade"), "websocket")
        || !upgrades(header("connection"))
    {
        let why = "nodes open a WebSocket here";
        return refusal(426, why).with("Upgrade", "websocket");
    }
    if header("sec-websocket-version") != "13" {
        let why = "only version 13 is spoken here";
        return refusal(426, why).with("Sec-WebSocket-Version", "13");
    }
    let key = header("sec-websocket-key");
    if !base64::decode(key).is_ok_and(|key| key.len() == 16) {
        return refusal(400, "Sec-WebSocket-Key is not 16 bytes in base64");
    }
    if !has(header("sec-websocket-protocol"), PROTOCOL) {
        return refusal(
            400,
            &["only the subprotocol ", PROTOCOL, " is spoken here"].concat(),
        );
    }
    server::Answer {
        status: 101,
        headers: Vec::new(),
        body: server::Body::Bytes(Vec::new()),
    }
    .with("Upgrade", "websocket")
    .with("Connection", "Upgrade")
    .with("Sec-WebSocket-Accept", accept(key))
    .with("Sec-WebSocket-Protocol", PROTOCOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_own_key_has_the_rfcs_own_answer() {
        assert_eq!(
            accept("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    fn asked(change: impl Fn(&mut Vec<(String, String)>)) -> server::Answer {
        let mut headers: Vec<(String, String)> = [
            ("host", "gw.example"),
            ("upgrade", "WebSocket"),
            ("connection", "keep-alive, Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "other, bettercompute.v1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        change(&mut headers);
        answer(&server::Request {
            method: "GET".to_owned(),
            path: "/v1/session".to_owned(),
            query: String::new(),
            headers,
            body: Vec::new(),
            peer: None,
        })
    }

    #[test]
    fn a_request_is_answered_and_one_that_lacks_something_is_refused() {
        assert_eq!(asked(|_| {}).status, 101);
        for (header, value, status) in [
            ("upgrade", "h2c", 426),
            ("connection", "close", 426),
            ("sec-websocket-version", "8", 426),
            ("sec-websocket-key", "dGhlIHNhbXBsZQ==", 400),
            ("sec-websocket-key", "", 400),
            ("sec-websocket-protocol", "other", 400),
        ] {
            let refused = asked(|headers| {
                for (name, known) in headers.iter_mut().filter(|(name, _)| name == header) {
                    value.clone_into(known);
                    assert_eq!(name, header);
                }
            });
            assert_eq!(refused.status, status, "{header}: {value}");
        }
    }
}
