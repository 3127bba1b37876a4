//! What stands between this host and the gateway: a proxy, a WebSocket, or both.
//!
//! Where one does, the checks of names, addresses and packets have nothing to look at, and the check
//! `tls` goes the whole way.
use super::{Seen, Verdict};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    if let Err((name, error)) = seen.environment {
        return Verdict::fail(
            format!("{name} names no proxy: {error}"),
            "write it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, or unset it",
        );
    }
    let websocket = config.websocket.as_ref().map(|websocket| &websocket.url);
    let proxy = websocket.unwrap_or(&config.gateway_url).proxy();
    if let Some(url) = websocket {
        seen.through = format!("the WebSocket at {url}");
    }
    if let Some(proxy) = proxy {
        if !seen.through.is_empty() {
            seen.through.push_str(" behind ");
        }
        seen.through.push_str("the proxy ");
        seen.through.push_str(&proxy.name());
    }
    Verdict::ok(match seen.through.is_empty() {
        // bcd node may run with another.
        true => "none, going by this environment".to_owned(),
        false => seen.through.clone(),
    })
}
