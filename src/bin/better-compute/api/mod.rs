//! The control plane's HTTP API: the well-known document and the downloads for machines; tokens, site keys,
//! machines, nodes, commands, specs and events for operators.
//!
//! Promises: everything but the document and the downloads needs the admin token, which is compared in
//! constant time; what an answer acknowledges is durable; every error is JSON with a code and one line.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod boots;
mod commands;
mod deploys;
pub mod downloads;
mod events;
mod machines;
mod operator;
mod orders;
pub mod query;
pub mod rotations;
mod sites;
mod specs;
pub mod views;
pub mod websocket;
pub mod wellknown;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::crypto::digest;
use bcd::rt::{self, TcpListener};
use bcd::sys::log::{self, Level, Value};
use bcd::wire;
use bcd::wire::http1::server::{Answer, Limits, Request, serve};
use nanoserde::SerJson;

use self::downloads::Downloads;
use self::rotations::Rotations;
use self::views::{ErrorBody, ErrorView};
use crate::gateway::Gateway;
use crate::gateway::handshakes::Handshakes;
use crate::gateway::tls::TlsConfig;
use crate::joinservice::threads::Signer;
use crate::registry::Registry;

/// Where nodes open a WebSocket to the gateway, with the base path before it or without.
const SESSION: &str = "/v1/session";
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections at once, and those from one address: a client that leaves them idle shuts out itself.
const CONNECTIONS_MAX: (usize, usize) = (512, 256);
const BODY_MAX: usize = 64 * 1024;

/// What the API serves.
pub struct Api {
    /// `/api/compute`: starts with a slash, ends without one, or empty.
    pub base_path: String,
    /// The well-known document.
    pub document: Rc<RefCell<String>>,
    pub downloads: Option<Downloads>,
    /// SHA-256 of the admin token.
    pub admin: [u8; 32],
    pub registry: Registry,
    pub gateway: Arc<Gateway>,
    pub signer: Rc<dyn Signer>,
    /// Requests that wait for news.
    pub waiting: Cell<usize>,
    pub rotations: Rc<dyn Rotations>,
    /// Nodes that reach the gateway through a WebSocket.
    pub bridge: Rc<websocket::Bridge>,
}

/// A request that is not answered with what it asks for.
pub struct Refused(u16, &'static str, String);

impl Refused {
    fn not_found(what: &str) -> Self {
        Self(404, "NOT_FOUND", what.to_owned())
    }

    fn invalid(why: impl Into<String>) -> Self {
        Self(400, "INVALID_INPUT", why.into())
    }

    fn method(allowed: &str) -> Self {
        Self(405, "METHOD_NOT_ALLOWED", format!("use {allowed}"))
    }

    fn answer(self) -> Answer {
        let view = ErrorView {
            error: ErrorBody {
                code: self.1.to_owned(),
                message: self.2,
            },
        };
        let refused = answer(self.0, view.serialize_json());
        match self.0 {
            401 => refused.with("WWW-Authenticate", "Bearer"),
            _ => refused,
        }
    }
}

fn answer(status: u16, body: String) -> Answer {
    Answer::new(status, "application/json", body).with("Cache-Control", "no-store")
}

impl Api {
    /// Serves connections until dropped.
    pub async fn serve(self: Rc<Self>, listener: TcpListener, tls: TlsConfig) {
        let connections = Handshakes::bounded(CONNECTIONS_MAX.0, CONNECTIONS_MAX.1);
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    log::event(
                        Level::Error,
                        "api.accept",
                        &[("error", Value::Chain(&error))],
                    );
                    rt::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let Some(place) = connections.begin(address.ip()) else {
                continue;
            };
            let api = self.clone();
            let config = tls.current();
            rt::spawn(async move {
                let mut upgraded = None;
                if let Ok(stream) = rt::tls::server(stream, config, HANDSHAKE).await {
                    let limits = Limits {
                        body: BODY_MAX,
                        ..Limits::default()
                    };
                    let handler = |request| api.answer(request);
                    // A connection that breaks is its client's business.
                    let served = serve(stream, Some(address), limits, handler).await;
                    upgraded = served.ok().flatten();
                }
                drop(place);
                if let Some((stream, ahead)) = upgraded {
                    let bridge = api.bridge.clone();
                    drop(api);
                    bridge.pass(stream, ahead, address).await;
                }
            });
        }
    }

    /// Answers one request.
    pub async fn answer(&self, request: Request) -> Answer {
        let answer = self.route(&request).await.unwrap_or_else(Refused::answer);
        log::event(
            Level::Debug,
            "api.request",
            &[
                ("method", Value::Text(&request.method)),
                ("path", Value::Text(&request.path)),
                ("status", Value::Number(answer.status.into())),
            ],
        );
        answer
    }

    async fn route(&self, request: &Request) -> Result<Answer, Refused> {
        let nothing = || Refused::not_found("there is nothing at this path");
        let reads = matches!(request.method.as_str(), "GET" | "HEAD");
        if request.path == "/.well-known/better-compute" {
            return match reads {
                true => Ok(answer(200, self.document.borrow().clone())),
                false => Err(Refused::method("GET")),
            };
        }
        let path = request.path.strip_prefix(self.base_path.as_str());
        if request.path == SESSION || path == Some(SESSION) {
            return match self.bridge.has_room() {
                true => Ok(wire::websocket::answer(request)),
                false => Err(Refused(
                    503,
                    "UNAVAILABLE",
                    "too many nodes are connected through WebSockets".to_owned(),
                )),
            };
        }
        let path = path.ok_or_else(nothing)?;
        if let Some(rest) = path.strip_prefix("/downloads/") {
            let downloads = self.downloads.as_ref().ok_or_else(nothing)?;
            return match reads {
                true => downloads.answer(rest, request).await,
                false => Err(Refused::method("GET")),
            };
        }
        let path = path.strip_prefix("/v1/").ok_or_else(nothing)?;
        self.authenticate(request)?;
        self.operate(request, path).await
    }

    fn authenticate(&self, request: &Request) -> Result<(), Refused> {
        let token = request
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        match token {
            Some(token) if digest::equal(&digest::sha256(token.as_bytes()), &self.admin) => Ok(()),
            Some(_) => Err(Refused(
                401,
                "UNAUTHENTICATED",
                "the admin token is not this control plane's".to_owned(),
            )),
            None => Err(Refused(
                401,
                "UNAUTHENTICATED",
                "send the admin token: Authorization: Bearer …".to_owned(),
            )),
        }
    }
}
