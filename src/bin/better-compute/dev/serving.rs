//! A listener's certificate: issued at start, renewed long before it ends and when its CA is rotated, put
//! in place without a restart.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::rt;
use bcd::sys::clock;
use bcd::sys::log::{self, Level, Value};
use bcd::sys::utc::Utc;
use rustls::ServerConfig;

use super::DevError;
use crate::gateway::tls::{self, TlsConfig};
use crate::pki::{Kind, Private, Public, ServingIssuer, ServingLeaf};
use crate::registry::now_ms;

const RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Who asks for the certificate.
#[derive(Clone, Copy)]
pub enum Listener {
    Gateway,
    Api,
}

/// A serving certificate and the means to renew it.
pub struct Serving {
    listener: Listener,
    names: Vec<String>,
    lifetime: Duration,
    means: RefCell<Means>,
    config: TlsConfig,
}

/// What changes when a CA is rotated.
struct Means {
    issuer: ServingIssuer,
    chain: Vec<Vec<u8>>,
    node_cas: Vec<Vec<u8>>,
}

impl Serving {
    pub fn new(
        listener: Listener,
        public: &Public,
        private: &Private,
        names: Vec<String>,
        lifetime: Duration,
    ) -> Result<Rc<Self>, DevError> {
        let means = Means::new(public, private)?;
        let first = means.issue(listener, &names, lifetime)?;
        Ok(Rc::new(Self {
            listener,
            names,
            lifetime,
            means: RefCell::new(means),
            config: TlsConfig::new(first),
        }))
    }

    /// What a listener reads for each connection.
    pub fn config(&self) -> TlsConfig {
        self.config.clone()
    }

    /// Issues under other CAs from now on.
    ///
    /// # Errors
    /// They do not fit; then all is as it was.
    pub fn replace(&self, public: &Public, private: &Private) -> Result<(), DevError> {
        let means = Means::new(public, private)?;
        let config = means.issue(self.listener, &self.names, self.lifetime)?;
        *self.means.borrow_mut() = means;
        self.config.replace(config);
        Ok(())
    }

    /// Renews for ever, at a third of the certificate's life.
    pub async fn keep_fresh(self: Rc<Self>) {
        let mut wait = self.lifetime / 3;
        loop {
            rt::sleep(wait).await;
            let issued = {
                let means = self.means.borrow();
                means.issue(self.listener, &self.names, self.lifetime)
            };
            wait = match issued {
                Ok(config) => {
                    self.config.replace(config);
                    let lifetime = u64::try_from(self.lifetime.as_millis()).unwrap_or(u64::MAX);
                    let until = Utc::from_ms(clock::wall_ms().saturating_add(lifetime));
                    let fields = [("until", Value::Shown(&until))];
                    log::event(Level::Info, "serving.renewed", &fields);
                    self.lifetime / 3
                }
                Err(error) => {
                    let fields = [("error", Value::Chain(&error))];
                    log::event(Level::Error, "serving.renewal", &fields);
                    RETRY_AFTER.min(self.lifetime / 3)
                }
            };
        }
    }
}

impl Means {
    fn new(public: &Public, private: &Private) -> Result<Self, DevError> {
        let issuer = ServingIssuer::new(&public.serving_ca, &private.serving_ca)
            .map_err(|error| DevError::Tls(error.into()))?;
        Ok(Self {
            issuer,
            chain: public.serving_chain(),
            node_cas: public.both(Kind::NodeCa),
        })
    }

    fn issue(
        &self,
        listener: Listener,
        names: &[String],
        lifetime: Duration,
    ) -> Result<Arc<ServerConfig>, DevError> {
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let leaf: ServingLeaf = self
            .issuer
            .leaf(names, now_ms(), seconds)
            .map_err(|error| DevError::Tls(error.into()))?;
        let config = match listener {
            Listener::Gateway => tls::gateway(&leaf, &self.chain, &self.node_cas),
            Listener::Api => tls::api(&leaf, &self.chain),
        };
        config.map_err(|error| DevError::Tls(error.into()))
    }
}
