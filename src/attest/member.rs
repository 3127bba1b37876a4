//! This node as a member of its fleet: who it is, with which key, whom it trusts and what time it is,
//! all of which may change while it runs. Session and renewal share one [`Member`].
//!
//! What changes is on the disk before it is in use. `bcd join --reset` may put another identity there
//! meanwhile: nothing is ever written over that.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::gateway::{self, Gateway};
use super::join::Accepted;
use crate::config::Config;
use crate::crypto::certificate::Certificate;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::key::NodeKey;
use crate::crypto::pin::Pin;
use crate::identity::record::Identity;
use crate::identity::store::{Joined, Store};
use crate::identity::trust::{Configured, Trust, TrustError};
use crate::proto::{Envelope, Message, ServerTime, SignedReceipt, TrustBundle};
use crate::rt;
use crate::sys::clock;
use crate::sys::clock::Wall;
use crate::sys::log::{self, Level, Value};
use crate::sys::utc::Utc;
use crate::wire::grpc::client::Endpoint;

pub use self::keep::{Keep, KeepError};

mod keep;

/// What to do when the trust of this node has fallen behind its fleet's.
const NEW_PINS: &str =
    "put the pins that `better-compute pki pins` prints into config.toml, and restart bcd node";

/// A node that has joined. Clones are the same one.
#[derive(Clone)]
pub struct Member(Rc<Inner>);

struct Inner {
    keep: Arc<dyn Keep>,
    wall: Wall,
    gateway: Gateway,
    node_id: Rc<str>,
    present: RefCell<Present>,
    /// The latest server time, for judging certificates.
    server_time_ms: Arc<AtomicU64>,
    /// The last time that was told by signature in this process: the monotonic clock then, and Unix
    /// time in milliseconds.
    told: Cell<Option<(Duration, u64)>>,
    /// The identity changed since the last dial.
    moved: Bell,
    /// Something is to be told to the renewal.
    asked: Bell,
    ask: Cell<Option<Ask>>,
    /// Why this node takes nothing more from its fleet's keys.
    behind: RefCell<Option<Trouble>>,
    /// Why it has no new certificate, while it wants one.
    not_renewed: RefCell<Option<Trouble>>,
}

/// What is wrong with a node's membership, until it has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub problem: String,
    pub remedy: &'static str,
}

/// What may change.
struct Present {
    identity: Identity,
    key: Rc<NodeKey>,
    trust: Trust,
    /// With this node's certificate.
    tls: Arc<ClientConfig>,
}

/// Why the renewal shall look at its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The time is better known than before.
    Time,
    /// The control plane wants a renewal within this span.
    Within(Duration),
    /// The gateway does not take the certificate.
    NotAccepted,
}

impl Member {
    /// The member of `config` whose identity was loaded from `store`.
    ///
    /// # Errors
    /// The gateway's name is none, or the key does not fit TLS.
    pub fn new(
        config: &Config,
        store: Store,
        joined: Joined,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let configured = Configured {
            serving_ca: config.serving_ca_spki_pin,
            join_signing: config.join_signing_key_pin,
        };
        let gateway = Gateway::of(config)?;
        let member = Self::of(
            gateway,
            configured,
            Arc::new(store),
            joined,
            Wall::default(),
        );
        Ok(member?)
    }

    /// The member with the identity that was loaded from `keep`, by the clock `wall`.
    ///
    /// # Errors
    /// The key does not fit TLS.
    pub fn of(
        gateway: Gateway,
        configured: Configured,
        keep: Arc<dyn Keep>,
        joined: Joined,
        wall: Wall,
    ) -> Result<Self, rustls::Error> {
        let Joined { identity, key } = joined;
        let (trust, error) = identity.trust(configured);
        if let Some(error) = error {
            let fields = [
                ("error", Value::Chain(&*error)),
                ("do", Value::Text(NEW_PINS)),
            ];
            log::event(Level::Warn, "identity.trust_bundle_ignored", &fields);
        }
        let server_time_ms = Arc::new(AtomicU64::new(identity.server_time_ms));
        let tls = tls(&trust, wall, &server_time_ms, Some((&identity, &key)))?;
        Ok(Self(Rc::new(Inner {
            keep,
            wall,
            gateway,
            node_id: identity.node_id.as_str().into(),
            present: RefCell::new(Present {
                identity,
                key: Rc::new(key),
                trust,
                tls,
            }),
            server_time_ms,
            told: Cell::new(None),
            moved: Bell::default(),
            asked: Bell::default(),
            ask: Cell::new(None),
            behind: RefCell::default(),
            not_renewed: RefCell::default(),
        })))
    }

    /// This node's id, which never changes.
    pub fn node_id(&self) -> &Rc<str> {
        &self.0.node_id
    }

    /// Its gateway.
    pub fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    /// The TLS of a session that is opened now, with the certificate there is now. Says in the log when
    /// that has expired.
    pub fn dial(&self) -> Arc<ClientConfig> {
        self.0.moved.silence();
        let until = self.valid_s().1;
        if self.trusted_ms() > milliseconds(until) {
            let fields = [
                ("node", Value::Text(&self.0.node_id)),
                ("not_after", Value::Shown(&Utc::from_seconds(until))),
                (
                    "do",
                    Value::Text(
                        "set this host's clock if it is wrong; bcd node asks for a new certificate by itself, \
                         and identity.renewal_failed says why it gets none",
                    ),
                ),
            ];
            log::event(Level::Error, "identity.expired", &fields);
        }
        self.0.present.borrow().tls.clone()
    }

    /// Waits until the identity has changed since the last [`dial`](Self::dial): a session shall then
    /// be opened anew. One at a time may wait.
    pub fn moved(&self) -> impl Future<Output = ()> + '_ {
        self.0.moved.rung()
    }

    /// The version of the trust bundle in force; 0: none.
    pub fn trust_version(&self) -> u64 {
        self.0.present.borrow().trust.version()
    }

    /// Pins of the keys that may sign specs, bundles and the time.
    pub fn signers(&self) -> Rc<[Pin]> {
        self.0.present.borrow().trust.signers().into()
    }

    /// Signs a receipt with the key there is now, and puts its certificates beside it.
    ///
    /// # Errors
    /// Signing failed for want of random bytes.
    pub fn sign_receipt(
        &self,
        purpose: Purpose,
        payload: Vec<u8>,
    ) -> Result<SignedReceipt, crate::crypto::key::Error> {
        let present = self.0.present.borrow();
        let mut chain = present.identity.certificate_chain.clone();
        let cas = present.trust.node_cas();
        let issued = |ca: &&&[u8]| {
            let leaf = chain.first().and_then(|leaf| Certificate::parse(leaf).ok());
            let ca = Certificate::parse(ca).ok();
            leaf.zip(ca)
                .is_some_and(|(leaf, ca)| leaf.is_issued_by(&ca))
        };
        // A chain need not have come with its CA; a verifier may know that by its pin alone.
        if chain.len() < 2
            && let Some(ca) = cas.iter().find(issued)
        {
            chain.push(ca.to_vec());
        }
        Ok(SignedReceipt {
            envelope: Some(envelope::sign(payload, purpose, &present.key)?),
            certificate_chain: chain,
        })
    }

    /// The time certificates are judged by, Unix time in milliseconds.
    pub fn trusted_ms(&self) -> u64 {
        let told = self.0.server_time_ms.load(Ordering::Relaxed);
        self.0.wall.trusted_ms(told)
    }

    /// This node's clock, right or wrong. Unix time in milliseconds.
    pub fn wall_ms(&self) -> u64 {
        self.0.wall.ms()
    }

    /// The last time that was told by signature, in this process or before; 0: none. Unix time in
    /// milliseconds.
    pub fn signed_ms(&self) -> u64 {
        self.0.server_time_ms.load(Ordering::Relaxed)
    }

    /// The best guess of the true time: what the control plane signed in this process and what has
    /// passed since, else trusted time. Unix time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        match self.0.told.get() {
            Some((then, time_ms)) => {
                let since = clock::monotonic().saturating_sub(then).as_millis();
                time_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
            }
            None => self.trusted_ms(),
        }
    }

    /// By how much the best guess of the true time is ahead of the host's clock, in milliseconds; `None`
    /// when nothing was told by signature in this process.
    pub fn offset_ms(&self) -> Option<i64> {
        self.0.told.get()?;
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        Some(ms(self.now_ms()).saturating_sub(ms(self.wall_ms())))
    }

    /// What is wrong now, for a person. A certificate that is not renewed comes first: it ends.
    pub fn trouble(&self) -> Option<Trouble> {
        let not_renewed = self.0.not_renewed.borrow().clone();
        not_renewed.or_else(|| self.0.behind.borrow().clone())
    }

    /// For the renewal: whether the last try failed, and why.
    pub(super) fn not_renewed(&self, trouble: Option<Trouble>) {
        *self.0.not_renewed.borrow_mut() = trouble;
    }

    /// What the fleet's keys signed is not taken, and why; `None` once it is.
    fn behind(&self, problem: Option<String>) {
        *self.0.behind.borrow_mut() = problem.map(|problem| Trouble {
            problem,
            remedy: NEW_PINS,
        });
    }

    /// From when to when the certificate is valid, Unix time in seconds.
    pub fn valid_s(&self) -> (i64, i64) {
        let present = self.0.present.borrow();
        // An identity is never loaded or stored without a leaf that reads.
        present
            .identity
            .leaf()
            .map_or((0, 0), |leaf| (leaf.not_before, leaf.not_after))
    }

    /// The gateway signed the time. Kept an hour's step at a time; a time that no trusted key signed
    /// counts for nothing.
    pub async fn welcomed(&self, signed_time: Option<&Envelope>) {
        let Some(signed) = signed_time else { return };
        let time = envelope::verify_pinned(signed, Purpose::ServerTime, &self.signers())
            .map_err(|error| error.to_string())
            .and_then(|payload| ServerTime::decode(payload).map_err(|error| error.to_string()));
        match time {
            Ok(time) => {
                self.behind(None);
                self.told_time(u64::try_from(time.time_ms).unwrap_or(0));
            }
            Err(why) => {
                let fields = [("error", Value::Text(&why)), ("do", Value::Text(NEW_PINS))];
                log::event(Level::Warn, "identity.time_not_signed", &fields);
                self.behind(Some(
                    ["the control plane's time is not taken: ", &why].concat(),
                ));
                return;
            }
        }
        let time_ms = self.0.server_time_ms.load(Ordering::Relaxed);
        let kept_ms = self.0.present.borrow().identity.server_time_ms;
        if !Store::is_due(kept_ms, time_ms) {
            return;
        }
        match self
            .change(false, move |identity| identity.server_time_ms = time_ms)
            .await
        {
            Ok(_) => self.0.present.borrow_mut().identity.server_time_ms = time_ms,
            Err(error) => {
                let fields = [("error", Value::Chain(&error))];
                log::event(Level::Warn, "identity.time_not_kept", &fields);
            }
        }
    }

    fn told_time(&self, time_ms: u64) {
        let held_ms = self.0.told.get().map(|_| self.now_ms());
        let now_ms = best_guess(time_ms, self.wall_ms(), held_ms);
        self.0.told.set(Some((clock::monotonic(), now_ms)));
        // Never past the end of our own certificate: a control plane with a mad clock must not be able
        // to make everything look expired for good.
        let time_ms = time_ms.min(milliseconds(self.valid_s().1));
        self.0.server_time_ms.fetch_max(time_ms, Ordering::Relaxed);
        self.tell(Ask::Time);
    }

    /// A trust bundle came. The version that is held afterwards, stored and in use, unless this one does
    /// not hold; then the log says why.
    pub async fn take_bundle(&self, signed: &Envelope) -> Option<u64> {
        let taken = self.0.present.borrow().trust.take(signed);
        let trust = match taken {
            Ok(Some(trust)) => trust,
            Ok(None) => return Some(self.trust_version()),
            Err(error) => {
                let mut fields = vec![("error", Value::Chain(&error))];
                if let TrustError::Signature(_) | TrustError::Long = error {
                    fields.push(("do", Value::Text(NEW_PINS)));
                    self.behind(Some(log::one_line_chain(&error)));
                }
                log::event(Level::Warn, "trust.refused", &fields);
                return None;
            }
        };
        self.behind(None);
        let kept = trust.clone();
        let set = move |identity: &mut Identity| identity.set_trust(&kept);
        if let Err(error) = self.change(false, set).await {
            let fields = [("error", Value::Chain(&error))];
            log::event(Level::Error, "trust.not_stored", &fields);
            return None;
        }
        let version = trust.version();
        let tls = {
            let present = self.0.present.borrow();
            // A renewal may have brought a later one meanwhile.
            if present.trust.version() >= version {
                return Some(present.trust.version());
            }
            let own = (&present.identity, &*present.key);
            tls(&trust, self.0.wall, &self.0.server_time_ms, Some(own))
        };
        let mut present = self.0.present.borrow_mut();
        present.identity.set_trust(&trust);
        present.trust = trust;
        match tls {
            Ok(tls) => present.tls = tls,
            Err(error) => {
                let fields = [("error", Value::Chain(&error))];
                log::event(Level::Error, "trust.tls", &fields);
            }
        }
        let fields = [("version", Value::Number(version))];
        log::event(Level::Info, "trust.taken", &fields);
        Some(version)
    }

    /// The control plane wants a renewal within this span.
    pub fn renew_within(&self, span: Duration) {
        self.tell(Ask::Within(span));
    }

    /// The gateway does not take this node's certificate: a renewal may bring one that it takes.
    pub fn not_accepted(&self) {
        self.tell(Ask::NotAccepted);
    }

    fn tell(&self, ask: Ask) {
        // What asks for more stays.
        match (self.0.ask.get(), ask) {
            (Some(_), Ask::Time) | (Some(Ask::NotAccepted), _) => {}
            _ => self.0.ask.set(Some(ask)),
        }
        self.0.asked.ring();
    }

    /// For the renewal: waits until something was told.
    pub(super) async fn asked(&self) -> Ask {
        loop {
            self.0.asked.rung().await;
            if let Some(ask) = self.0.ask.take() {
                return ask;
            }
        }
    }

    pub(super) fn kept(&self) -> &Arc<dyn Keep> {
        &self.0.keep
    }

    pub(super) fn key(&self) -> Rc<NodeKey> {
        self.0.present.borrow().key.clone()
    }

    pub(super) fn trust(&self) -> Trust {
        self.0.present.borrow().trust.clone()
    }

    /// The identity as it is now.
    pub fn identity(&self) -> Identity {
        self.0.present.borrow().identity.clone()
    }

    /// How to call without a certificate.
    pub(super) fn endpoint(&self) -> Result<Endpoint, rustls::Error> {
        let present = self.0.present.borrow();
        let tls = tls(&present.trust, self.0.wall, &self.0.server_time_ms, None)?;
        Ok(self.0.gateway.endpoint(&tls))
    }

    /// A renewal was answered with `accepted`, for `key`: stored, then in use. When the certificate ends.
    pub(super) async fn renewed(&self, accepted: Accepted, key: NodeKey) -> Result<i64, KeepError> {
        let Accepted {
            result,
            trust,
            time_ms,
        } = accepted;
        let (chain, kept) = (result.certificate_chain, trust.clone());
        let identity = self
            .change(true, move |identity| {
                identity.certificate_chain.clone_from(&chain);
                // What the session took meanwhile stays.
                if kept.version() > version_on_disk(identity) {
                    identity.set_trust(&kept);
                }
                identity.server_time_ms = identity.server_time_ms.max(time_ms);
            })
            .await?;
        let tls = {
            let present = self.0.present.borrow();
            let trust = match present.trust.version() > trust.version() {
                true => &present.trust,
                false => &trust,
            };
            let own = Some((&identity, &key));
            tls(trust, self.0.wall, &self.0.server_time_ms, own)
        };
        let mut present = self.0.present.borrow_mut();
        present.identity = identity;
        present.key = Rc::new(key);
        if trust.version() > present.trust.version() {
            present.trust = trust;
        }
        match tls {
            Ok(tls) => present.tls = tls,
            Err(error) => {
                let fields = [("error", Value::Chain(&error))];
                log::event(Level::Error, "identity.tls", &fields);
            }
        }
        drop(present);
        self.told_time(time_ms);
        self.0.moved.ring();
        Ok(self.valid_s().1)
    }

    /// Changes the identity where it is kept, on a thread of its own.
    async fn change(
        &self,
        renewed: bool,
        mut change: impl FnMut(&mut Identity) + Send + 'static,
    ) -> Result<Identity, KeepError> {
        let keep = self.0.keep.clone();
        let own = self.0.present.borrow().identity.certificate_chain.clone();
        let done = rt::blocking("identity", move || keep.change(&own, renewed, &mut change));
        done.await.map_err(KeepError::Thread)?
    }
}

/// What time it is, by a signed time that has just come: it may have been signed a minute ago, and when
/// the host's clock says no more than that, the host's clock is right. Never earlier than was guessed.
fn best_guess(signed_ms: u64, wall_ms: u64, held_ms: Option<u64>) -> u64 {
    const OLDEST_MS: u64 = 60_000;
    let credible = (signed_ms..=signed_ms.saturating_add(OLDEST_MS)).contains(&wall_ms);
    let now_ms = if credible { wall_ms } else { signed_ms };
    now_ms.max(held_ms.unwrap_or(0))
}

/// The version of the bundle that an identity holds, not verified; 0: none.
fn version_on_disk(identity: &Identity) -> u64 {
    envelope::from_json(identity.trust_bundle.as_bytes())
        .ok()
        .and_then(|envelope| TrustBundle::decode(&envelope.payload).ok())
        .map_or(0, |bundle| bundle.version)
}

fn tls(
    trust: &Trust,
    wall: Wall,
    server_time_ms: &Arc<AtomicU64>,
    own: Option<(&Identity, &NodeKey)>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mark = Arc::clone(server_time_ms);
    let trusted = move || wall.trusted_ms(mark.load(Ordering::Relaxed));
    let own = own.map(|(identity, key)| {
        let chain = identity.certificate_chain.iter();
        let chain = chain.map(|der| CertificateDer::from(der.clone()));
        (chain.collect(), key.to_rustls())
    });
    gateway::tls(trust.serving_pins(), trusted, own)
}

fn milliseconds(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

/// Wakes one waiter; rung before anybody waits, it is heard by the next.
#[derive(Default)]
struct Bell {
    rung: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Bell {
    fn ring(&self) {
        self.rung.set(true);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    fn silence(&self) {
        self.rung.set(false);
    }

    fn rung(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            self.waiter.set(Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::best_guess;

    #[test]
    fn a_signed_time_of_a_minute_ago_does_not_set_the_clock_back() {
        let signed = 1_795_000_000_000;
        for (wall, held, now) in [
            // A right clock; one that is a minute ahead, or a day; one that stands in the past.
            (signed + 5_000, None, signed + 5_000),
            (signed + 60_000, None, signed + 60_000),
            (signed + 60_001, None, signed),
            (signed + 86_400_000, None, signed),
            (0, None, signed),
            // What was known before is later.
            (0, Some(signed + 20_000), signed + 20_000),
            (signed + 5_000, Some(signed + 20_000), signed + 20_000),
            (signed + 30_000, Some(signed + 20_000), signed + 30_000),
            (0, Some(signed - 20_000), signed),
        ] {
            assert_eq!(best_guess(signed, wall, held), now, "{wall} {held:?}");
        }
    }
}
