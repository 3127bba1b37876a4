//! How a node reaches its gateway: which address, under which name, and by which pins the
//! certificate is judged. Joining and sessions both dial this way, through a
//! WebSocket where the configuration has one.
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};

use super::roots;
use crate::config::{Config, WebSocket};
use crate::crypto::gateway_verifier::PinnedCa;
use crate::crypto::pin::Pin;
use crate::crypto::provider::provider;
use crate::wire::Line;
use crate::wire::grpc::client::Endpoint;
use crate::wire::url::Url;
use crate::wire::websocket::Way;

/// A gateway's address and name, and the WebSocket it is reached through, if any.
#[derive(Debug, Clone)]
pub struct Gateway {
    url: Url,
    name: ServerName<'static>,
    websocket: Option<Rc<Way>>,
    line: Option<Rc<dyn Line>>,
}

/// Why a gateway cannot be called.
#[derive(Debug)]
pub enum GatewayError {
    /// Its name is neither a DNS name nor an address.
    Name(String, InvalidDnsNameError),
    /// The WebSocket's server cannot be judged.
    Roots(roots::Error),
}

impl Gateway {
    /// The gateway at `url`, whose certificate must carry `server_name`, else the URL's host.
    ///
    /// # Errors
    /// The name is none.
    pub fn new(url: Url, server_name: Option<&str>) -> Result<Self, GatewayError> {
        let name = name(server_name.unwrap_or(&url.host))?;
        Ok(Self {
            url,
            name,
            websocket: None,
            line: None,
        })
    }

    /// The same gateway, reached over `line`.
    pub fn over(self, line: Rc<dyn Line>) -> Self {
        Self {
            line: Some(line),
            ..self
        }
    }

    /// The gateway of a configuration. Through a WebSocket its certificate must carry the audience.
    ///
    /// # Errors
    /// A name is none, or the roots that judge the WebSocket's server cannot be used.
    pub fn of(config: &Config) -> Result<Self, GatewayError> {
        let url = config.gateway_url.clone();
        let Some(websocket) = &config.websocket else {
            return Self::new(url, config.gateway_server_name.as_deref());
        };
        Ok(Self {
            websocket: Some(Rc::new(way(websocket)?)),
            ..Self::new(url, Some(&websocket.audience))?
        })
    }

    /// For messages: the URL as it was given.
    pub fn url(&self) -> &Url {
        match &self.websocket {
            Some(way) => &way.url,
            None => &self.url,
        }
    }

    /// Where and how to call it. An `http://` gateway (development builds) is called without TLS.
    pub fn endpoint(&self, tls: &Arc<ClientConfig>) -> Endpoint {
        let secure = self.url.https || self.websocket.is_some();
        Endpoint {
            tls: secure.then(|| (Arc::clone(tls), self.name.clone())),
            websocket: self.websocket.clone(),
            line: self.line.clone(),
            ..Endpoint::new(self.url.host.clone(), self.url.port)
        }
    }
}

/// TLS to a WebSocket's server proves nothing to us but that a proxy lets us through: the gateway behind
/// it is judged by its pin.
fn way(websocket: &WebSocket) -> Result<Way, GatewayError> {
    let url = websocket.url.clone();
    let tls = match url.https {
        true => {
            let roots = roots::tls(websocket.proxy_ca_file.as_deref());
            let mut config = roots.map_err(GatewayError::Roots)?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            config.resumption = rustls::client::Resumption::disabled();
            Some((Arc::new(config), name(&url.host)?))
        }
        false => None,
    };
    Ok(Way { url, tls })
}

fn name(name: &str) -> Result<ServerName<'static>, GatewayError> {
    ServerName::try_from(name.to_owned())
        .map_err(|error| GatewayError::Name(name.to_owned(), error))
}

/// TLS 1.3 with a gateway whose CA has one of `pins`. `trusted_ms` is asked at each handshake.
/// With `identity`, the node's chain and key, the client shows it.
///
/// # Errors
/// The key does not fit the chain.
pub fn tls(
    pins: Vec<Pin>,
    trusted_ms: impl Fn() -> u64 + Send + Sync + 'static,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedCa::new(pins, trusted_ms)));
    let mut config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // One connection at a time to one gateway: tickets are of no use, and cost memory.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, _) => write!(
                f,
                "the gateway's name {name:?} is neither a DNS name nor an address"
            ),
            Self::Roots(_) => f.write_str("the WebSocket's TLS cannot be set up"),
        }
    }
}

impl std::error::Error for GatewayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(_, error) => Some(error),
            Self::Roots(error) => Some(error),
        }
    }
}
