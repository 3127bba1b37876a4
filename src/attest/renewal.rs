//! A new certificate before the old one ends, and after it (docs/protocol.md 5.5).
//!
//! The next key is on the disk before it is asked for; the request is signed with the present one, on
//! a connection of its own without a client certificate; the answer passes every check of a join's. Then
//! the identity is stored, the key promoted, and the session moves. A lost reply, a crash or a full
//! disk cost a try; the session goes on meanwhile. `plan` says when.
//!
//! It never gives up. A node whose certificate has ended asks at once and then every few minutes: where
//! the control plane's policy allows it, the node comes back with nobody at its console; where not,
//! the log says so each time, and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use self::plan::{Trouble, Validity};
use super::join::{Expected, Refused, judge, may_pass, role_named};
use super::member::{self, Ask, KeepError, Member};
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::gateway_verifier::Failure;
use crate::crypto::{csr, key};
use crate::identity::store::StoreError;
use crate::proto::{
    IdentityRenewed, JoinResponseOutcome, Message, RenewRequest, Renewal, join_service,
};
use crate::rt::backoff::share;
use crate::rt::{self, BlockingError, Either};
use crate::sys::log::{self, Level, Value};
use crate::sys::utc::Utc;
use crate::sys::{clock, random};
use crate::wire::grpc::Code;
use crate::wire::grpc::client::{CallError, Cause, Client};

mod plan;

/// One whole call.
const CALL: Duration = Duration::from_secs(30);

/// Between two tries that a gateway which does not take the certificate brings about.
const PAUSE: Duration = Duration::from_secs(300);

/// Between two tries that the control plane asks for, and up to as much more: whatever a gateway says, and
/// however often.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// Renewals that the control plane asks for are spread over this at most.
const SPREAD: Duration = Duration::from_secs(7 * 86_400);

/// Why there is no new certificate yet.
#[derive(Debug)]
enum Error {
    Thread(BlockingError),
    Store(StoreError),
    Key(key::Error),
    Tls(rustls::Error),
    Call(CallError),
    /// Not decided yet; asked again after this.
    Deferred(Duration),
    Answer(Refused),
    Keep(KeepError),
}

/// Renews for as long as the daemon runs. `renewed` is told of each one, once it is stored and in use.
pub async fn run<F: Future>(member: Member, mut renewed: impl FnMut(IdentityRenewed) -> F) {
    let mut jitter = draw();
    let mut failures = 0_u32;
    let mut refused = false;
    let mut at = Instant::now() + validity(&member).wait(member.now_ms(), jitter);
    let mut tried: Option<Instant> = None;
    // Whether the next waking is a try whatever the certificate's age.
    let mut wanted = false;
    loop {
        match rt::select(rt::sleep_until(at), member.asked()).await {
            Either::Right(Ask::Time) if failures == 0 && !wanted => {
                at = Instant::now() + validity(&member).wait(member.now_ms(), jitter);
                continue;
            }
            Either::Right(Ask::Time) => continue,
            Either::Right(Ask::Within(span)) => {
                let soon = Instant::now() + share(span.min(SPREAD), draw());
                let least = tried.map(|last| last + ASKED_AGAIN + share(ASKED_AGAIN, draw()));
                at = at.min(least.map_or(soon, |least| soon.max(least)));
                wanted = true;
                continue;
            }
            // Each try of the session tells so: one that was tried a moment ago is not tried at once.
            Either::Right(Ask::NotAccepted) => match tried {
                _ if failures > 0 => continue,
                Some(last) if last.elapsed() < PAUSE => {
                    at = at.min(last + PAUSE + share(PAUSE, draw()));
                    wanted = true;
                    continue;
                }
                _ => {}
            },
            Either::Left(()) => {
                let wait = validity(&member).wait(member.now_ms(), jitter);
                if failures == 0 && !wanted && !wait.is_zero() {
                    at = Instant::now() + wait;
                    continue;
                }
            }
        }
        tried = Some(Instant::now());
        match attempt(&member, refused).await {
            Ok(event) => {
                member.not_renewed(None);
                say_renewed(&member, &event);
                renewed(event).await;
                (failures, refused, wanted) = (0, false, false);
                jitter = draw();
                at = Instant::now() + validity(&member).wait(member.now_ms(), jitter);
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                let trouble = error.trouble();
                refused = trouble == Trouble::Refused;
                let wait = match error {
                    Error::Deferred(wait) => wait,
                    _ => validity(&member).again(trouble, failures, member.now_ms(), draw()),
                };
                say_failed(&member, &error, wait);
                at = Instant::now() + wait;
            }
        }
    }
}

/// One try. After a refusal with another key: the one that was refused may be why.
async fn attempt(member: &Member, another_key: bool) -> Result<IdentityRenewed, Error> {
    let keep = member.kept().clone();
    let present = member.key();
    let pkcs8 = present.to_pem();
    let next = rt::blocking("identity", move || {
        let present = key::NodeKey::from_pem(&pkcs8).map_err(StoreError::Key)?;
        keep.next_key(present, another_key)
    });
    let next = next.await.map_err(Error::Thread)?.map_err(Error::Store)?;

    let identity = member.identity();
    let csr = csr::build(&next).map_err(Error::Key)?;
    let renewal = Renewal {
        node_id: identity.node_id.clone(),
        csr: csr.clone(),
        time_ms: i64::try_from(member.wall_ms()).unwrap_or(i64::MAX),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let signed = envelope::sign(renewal.encode_to_vec(), Purpose::Renewal, &present);
    let request = RenewRequest {
        signed: Some(signed.map_err(Error::Key)?),
    };
    let endpoint = member.endpoint().map_err(Error::Tls)?;
    let client = Client::connect(&endpoint).await.map_err(Error::Call)?;
    let answer = client.unary(&join_service::RENEW, &request, CALL).await;
    let accepted = match answer.map_err(Error::Call)?.outcome {
        Some(JoinResponseOutcome::Signed(envelope)) => {
            let expected = Expected {
                csr: &csr,
                node_key: &next.spki_der(),
                role: role_named(&identity.role),
                site: &identity.site,
                spiffe_id: Some(&identity.spiffe_id),
                trust: &member.trust(),
                build_time_ms: clock::build_time_ms(),
            };
            judge(&envelope, &expected).map_err(Error::Answer)?
        }
        Some(JoinResponseOutcome::Deferral(deferral)) => {
            let wait = Duration::from_millis(u64::from(deferral.retry_after_ms));
            let bounds = (Duration::from_secs(1), Duration::from_secs(300));
            return Err(Error::Deferred(wait.clamp(bounds.0, bounds.1)));
        }
        None => return Err(Error::Answer(Refused::Empty)),
    };
    drop(client);
    let spki_sha256 = next.pin().0.to_vec();
    let not_after = member.renewed(accepted, next).await.map_err(Error::Keep)?;
    Ok(IdentityRenewed {
        not_after_ms: not_after.saturating_mul(1000),
        spki_sha256,
    })
}

fn validity(member: &Member) -> Validity {
    let (from, until) = member.valid_s();
    let milliseconds = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
    Validity {
        from_ms: milliseconds(from),
        until_ms: milliseconds(until),
    }
}

fn draw() -> u64 {
    // Without random bytes all come at the same time, which is better than not at all.
    random::below(u64::MAX).unwrap_or(0)
}

fn say_renewed(member: &Member, event: &IdentityRenewed) {
    let until = Utc::from_seconds(event.not_after_ms / 1000);
    let fields = [
        ("node", Value::Text(member.node_id())),
        ("not_after", Value::Shown(&until)),
    ];
    log::event(Level::Info, "identity.renewed", &fields);
}

fn say_failed(member: &Member, error: &Error, wait: Duration) {
    let until = member.valid_s().1;
    let ended = Utc::from_seconds(until);
    let expired = member.trusted_ms() / 1000 > u64::try_from(until).unwrap_or(0);
    let mut fields = vec![
        ("node", Value::Text(member.node_id())),
        ("not_after", Value::Shown(&ended)),
        ("expired", Value::Flag(expired)),
        ("error", Value::Chain(error)),
        (
            "again_ms",
            Value::Number(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        ),
    ];
    if let Some(remedy) = error.remedy() {
        fields.push(("do", Value::Text(remedy)));
    }
    let level = match expired || error.trouble() == Trouble::Refused {
        true => Level::Error,
        false => Level::Warn,
    };
    log::event(level, "identity.renewal_failed", &fields);
    // To be asked later is an answer, and no trouble.
    if !matches!(error, Error::Deferred(_)) {
        member.not_renewed(Some(member::Trouble {
            problem: log::one_line_chain(error),
            remedy: error
                .remedy()
                .unwrap_or("nothing yet: bcd node tries again by itself"),
        }));
    }
}

impl Error {
    fn trouble(&self) -> Trouble {
        let passing = match self {
            Self::Call(error) => may_pass(error),
            Self::Answer(_) | Self::Tls(_) | Self::Keep(KeepError::NotOurs) => false,
            Self::Thread(_) | Self::Store(_) | Self::Key(_) | Self::Deferred(_) => true,
            Self::Keep(KeepError::Store(_) | KeepError::Thread(_)) => true,
        };
        match passing {
            true => Trouble::Passing,
            false => Trouble::Refused,
        }
    }

    /// What a person can do, when there is something.
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Store(error) | Self::Keep(KeepError::Store(error)) => error.remedy(),
            Self::Answer(_) => Some(
                "report it to whoever runs the control plane; if its keys were rotated, put the pins that \
                 `better-compute pki pins` prints into config.toml and restart bcd node",
            ),
            Self::Call(error) if error.cause.remedy().is_some() => error.cause.remedy(),
            Self::Call(CallError {
                cause: Cause::Status(status),
                ..
            }) => match status.code {
                Code::PermissionDenied | Code::Unauthenticated => {
                    Some("bcd join --reset --yes, then bcd join with a new token")
                }
                Code::Unimplemented => Some("update the control plane: it knows no renewals"),
                _ => None,
            },
            Self::Call(error) if Failure::find(error).is_some() => Some(
                "check gateway_url; if the control plane's keys were rotated, put the pins that \
                 `better-compute pki pins` prints into config.toml and restart bcd node",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Key(_) => f.write_str("cannot make the certificate request"),
            Self::Tls(_) => f.write_str("cannot set up TLS"),
            Self::Call(_) => f.write_str("the certificate was not renewed"),
            Self::Deferred(_) => f.write_str("the control plane has not decided yet"),
            Self::Answer(_) => f.write_str("the answer to the renewal is refused"),
            Self::Keep(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Thread(error) => error.source(),
            Self::Store(error) => error.source(),
            Self::Key(error) => Some(error),
            Self::Tls(error) => Some(error),
            // As in a join: a certificate that does not hold says why itself.
            Self::Call(error) => match Failure::find(error) {
                Some(failure) => Some(failure),
                None => Some(error),
            },
            Self::Deferred(_) => None,
            Self::Answer(refused) => Some(refused),
            Self::Keep(error) => error.source(),
        }
    }
}
