//! A listener's certificate: issued at start, renewed long before it ends, put in place without a
//! restart.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::rt;
use bcd::sys::log::{self, Level, Value};
use rustls::ServerConfig;

use super::DevError;
use crate::gateway::{TlsConfig, tls};
use crate::pki::{Private, Public, ServingIssuer, ServingLeaf};
use crate::registry::now_ms;

const VALID_SECONDS: i64 = 30 * 86_400;
const RENEW_EVERY: Duration = Duration::from_secs(10 * 86_400);
const RETRY_AFTER: Duration = Duration::from_secs(3600);

type Configure = Box<dyn Fn(&ServingLeaf) -> Result<Arc<ServerConfig>, tls::TlsConfigError>>;

/// A serving certificate and the means to renew it.
pub struct Serving {
    issuer: ServingIssuer,
    names: Vec<String>,
    configure: Configure,
    config: TlsConfig,
}

impl Serving {
    /// The gateway's.
    pub fn gateway(
        public: &Public,
        private: &Private,
        names: Vec<String>,
    ) -> Result<Self, DevError> {
        let (ca, node_ca) = (public.serving_ca.clone(), public.node_ca.clone());
        let configure = Box::new(move |leaf: &ServingLeaf| tls::gateway(leaf, &ca, &node_ca));
        Self::new(public, private, names, configure)
    }

    /// The API's.
    pub fn api(public: &Public, private: &Private, names: Vec<String>) -> Result<Self, DevError> {
        let ca = public.serving_ca.clone();
        let configure = Box::new(move |leaf: &ServingLeaf| tls::api(leaf, &ca));
        Self::new(public, private, names, configure)
    }

    fn new(
        public: &Public,
        private: &Private,
        names: Vec<String>,
        configure: Configure,
    ) -> Result<Self, DevError> {
        let issuer = ServingIssuer::new(&public.serving_ca, &private.serving_ca)
            .map_err(|error| DevError::Tls(error.into()))?;
        let first = issue(&issuer, &names, &configure)?;
        Ok(Self {
            issuer,
            names,
            configure,
            config: Rc::new(RefCell::new(first)),
        })
    }

    /// What a listener reads for each connection.
    pub fn config(&self) -> TlsConfig {
        self.config.clone()
    }

    /// Renews for ever.
    pub async fn keep_fresh(self) {
        let mut wait = RENEW_EVERY;
        loop {
            rt::sleep(wait).await;
            wait = match issue(&self.issuer, &self.names, &self.configure) {
                Ok(config) => {
                    *self.config.borrow_mut() = config;
                    log::event(Level::Info, "serving.renewed", &[]);
                    RENEW_EVERY
                }
                Err(error) => {
                    log::event(
                        Level::Error,
                        "serving.renewal",
                        &[("error", Value::Chain(&error))],
                    );
                    RETRY_AFTER
                }
            };
        }
    }
}

fn issue(
    issuer: &ServingIssuer,
    names: &[String],
    configure: &Configure,
) -> Result<Arc<ServerConfig>, DevError> {
    let leaf = issuer
        .leaf(names, now_ms(), VALID_SECONDS)
        .map_err(|error| DevError::Tls(error.into()))?;
    configure(&leaf).map_err(|error| DevError::Tls(error.into()))
}
