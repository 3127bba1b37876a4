//! Rotating the fleet's keys while everything runs.
//!
//! A step is written to `pki.json` first; then the JoinService, the listeners, the files of this host and
//! the well-known document follow, and the sessions get the new trust bundle. What a kill cuts off, the
//! next start does: everything follows from the file. One step at a time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::rt;
use bcd::sys::fs::Dir;
use bcd::sys::log::{self, Level, Value};

use super::serving::Serving;
use super::{Options, files};
use crate::api::rotations::{NotRotated, Rotations};
use crate::api::wellknown;
use crate::gateway::Gateway;
use crate::joinservice::Keys;
use crate::joinservice::threads::LocalRelay;
use crate::pki::{Bundle, Kind, Lock, Phase, PkiError, Private, Public, RotateError, Step};
use crate::registry::{Answer, Registry, now_ms};
use crate::store::{Behind, Laggards};

/// Everything that a step concerns.
pub(super) struct Rotating {
    pub dir: Dir,
    pub options: Options,
    pub gateway_url: String,
    pub server_url: String,
    pub public: RefCell<Public>,
    pub relay: LocalRelay,
    pub registry: Registry,
    pub gateway: Arc<Gateway>,
    pub servings: [Rc<Serving>; 2],
    pub document: Rc<RefCell<String>>,
    pub busy: Cell<bool>,
}

impl Rotating {
    /// The nodes that a finish would leave behind.
    async fn behind(&self, kind: Kind) -> Result<Laggards, NotRotated> {
        let question = {
            let public = self.public.borrow();
            let Some(rotation) = public.rotation(kind) else {
                return Ok(Laggards::default());
            };
            match kind {
                Kind::ServingCa | Kind::JoinSigning => Behind::Trust(rotation.since_version),
                Kind::NodeCa if rotation.phase == Phase::Switched => {
                    Behind::Issuer(public.node_ca_pin().0)
                }
                // Nothing was asked of a node yet.
                Kind::NodeCa => return Ok(Laggards::default()),
                // A node that has joined has no use for it.
                Kind::JoinEncryption => return Ok(Laggards::default()),
            }
        };
        let found = self
            .registry
            .with(move |records| records.store.behind(question));
        found.await.map_err(NotRotated::Registry)
    }

    async fn step(
        &self,
        kind: Kind,
        step: Step,
        force: bool,
        within: Duration,
    ) -> Result<(), NotRotated> {
        self.public
            .borrow()
            .may(kind, step)
            .map_err(NotRotated::Step)?;
        let behind = match step {
            Step::Finish => self.behind(kind).await?,
            _ => Laggards::default(),
        };
        if behind.count > 0 && !force {
            return Err(NotRotated::Behind(kind, behind));
        }
        let path = self.dir.join("pki.json");
        let key = self.dir.join("pki.key");
        let rotated = rt::blocking("pki", move || {
            let lock = Lock::from_key_file(&key).map_err(PkiError::from)?;
            let (bundle, private) = Bundle::read(&path)?.rotated(&lock, kind, step, now_ms())?;
            bundle.replace(&path)?;
            Ok::<_, RotateError>((bundle.public, private))
        });
        let (public, private) = rotated
            .await
            .map_err(|error| NotRotated::Followed(error.to_string()))?
            .map_err(NotRotated::Step)?;
        log::event(
            Level::Info,
            "pki.rotated",
            &[
                ("key", Value::Text(kind.name())),
                ("step", Value::Text(step.name())),
                ("trust_version", Value::Number(public.trust_version)),
                ("forced_past", Value::Number(behind.count)),
            ],
        );
        let followed = self.follow(&public, &private).await;
        *self.public.borrow_mut() = public;
        self.gateway.trust_changed();
        if (kind, step) == (Kind::NodeCa, Step::Switch) {
            self.gateway.renew_within(within);
        }
        followed.map_err(NotRotated::Followed)
    }

    /// Puts the bundle that was written in use.
    async fn follow(&self, public: &Public, private: &Private) -> Result<(), String> {
        let chain = |error: &dyn std::error::Error| bcd::cli::chain(error);
        let keys = Keys::new(public, private, now_ms()).map_err(|error| chain(&error))?;
        self.relay
            .use_keys(keys)
            .await
            .map_err(|status| status.to_string())?;
        for serving in &self.servings {
            serving
                .replace(public, private)
                .map_err(|error| chain(&error))?;
        }
        *self.document.borrow_mut() = wellknown::document(public, &self.gateway_url, None)
            .ok_or("the PKI's encryption key is not P-256")?;
        files::write(
            &self.dir,
            public,
            &self.options,
            &self.gateway_url,
            &self.server_url,
        )
        .map_err(|error| chain(&error))?;
        Ok(())
    }
}

impl Rotations for Rotating {
    fn public(&self) -> Public {
        self.public.borrow().clone()
    }

    fn behind(self: Rc<Self>) -> Answer<Result<BTreeMap<&'static str, Laggards>, NotRotated>> {
        Box::pin(async move {
            let mut found = BTreeMap::new();
            for kind in Kind::ALL {
                found.insert(kind.name(), Self::behind(&self, kind).await?);
            }
            Ok(found)
        })
    }

    fn rotate(
        self: Rc<Self>,
        kind: Kind,
        step: Step,
        force: bool,
        within: Duration,
    ) -> Answer<Result<(), NotRotated>> {
        Box::pin(async move {
            if self.busy.replace(true) {
                return Err(NotRotated::Busy);
            }
            let done = self.step(kind, step, force, within).await;
            self.busy.set(false);
            done
        })
    }
}
