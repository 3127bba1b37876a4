//! `{basePath}/v1/pki/rotations`: how far each key's rotation is and which nodes have not followed, and
//! its next step.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bcd::crypto::json;
use bcd::wire::http1::server::Answer as HttpAnswer;
use nanoserde::{DeJson, SerJson};

use super::views::{LaggardView, RotateBody, RotationView, RotationsView};
use super::{Api, BODY_MAX, Refused, answer};
use crate::pki::{Kind, Public, RotateError, Step};
use crate::registry::{Answer, RegistryError};
use crate::store::Laggards;

/// Over how long renewals are spread unless the operator says otherwise.
const WITHIN_DEFAULT_SECONDS: i64 = 3600;
const WITHIN_MAX_SECONDS: i64 = 7 * 86_400;
/// How many nodes an error names.
const NAMED: usize = 10;

/// What can rotate keys, and knows who has followed.
pub trait Rotations {
    fn public(&self) -> Public;
    /// By kind: the nodes that a finish would leave behind.
    fn behind(self: Rc<Self>) -> Answer<Result<BTreeMap<&'static str, Laggards>, NotRotated>>;
    /// Does a step. `force`: also when nodes would be left behind. Renewals are spread over `within`.
    fn rotate(
        self: Rc<Self>,
        kind: Kind,
        step: Step,
        force: bool,
        within: Duration,
    ) -> Answer<Result<(), NotRotated>>;
}

/// Why a step is not done.
#[derive(Debug)]
pub enum NotRotated {
    /// Another step is being done.
    Busy,
    Step(RotateError),
    /// Nodes would be left behind.
    Behind(Kind, Laggards),
    Registry(RegistryError),
    /// The step is in the bundle file, and not everything follows it yet.
    Followed(String),
}

impl fmt::Display for NotRotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another step is being done: try again"),
            Self::Step(error) => error.fmt(f),
            Self::Behind(kind, behind) => {
                let what = match kind {
                    Kind::NodeCa => "has no certificate of the new CA yet",
                    _ => "has not taken the trust bundle with the new key yet",
                };
                let named = behind.nodes.iter().take(NAMED).map(|node| node.id.as_str());
                let mut named = named.collect::<Vec<_>>().join(", ");
                if behind.count > NAMED as u64 {
                    named.push_str(", …");
                }
                write!(
                    f,
                    "{} node(s) would be left behind, since each {what}: {named}; wait for them, delete those that are gone, or finish with --force",
                    behind.count
                )
            }
            Self::Registry(error) => error.fmt(f),
            Self::Followed(why) => write!(
                f,
                "the step is written, but not everything follows it: {why}; restart the control plane"
            ),
        }
    }
}

impl Error for NotRotated {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Step(error) => error.source(),
            Self::Registry(error) => error.source(),
            _ => None,
        }
    }
}

impl From<NotRotated> for Refused {
    fn from(error: NotRotated) -> Self {
        let text = bcd::cli::chain(&error);
        match error {
            NotRotated::Busy | NotRotated::Registry(_) => Self(503, "UNAVAILABLE", text),
            NotRotated::Step(RotateError::Pki(_)) | NotRotated::Followed(_) => {
                Self(500, "INTERNAL", text)
            }
            NotRotated::Step(_) => Self(409, "CONFLICT", text),
            NotRotated::Behind(..) => Self(409, "NODES_BEHIND", text),
        }
    }
}

impl Api {
    /// All rotations.
    pub(super) async fn list_rotations(&self) -> Result<HttpAnswer, Refused> {
        let mut behind = self.rotations.clone().behind().await?;
        let public = self.rotations.public();
        let views = Kind::ALL.into_iter().map(|kind| {
            let rotation = public.rotation(kind);
            let both = public.both(kind);
            let behind = behind.remove(kind.name()).unwrap_or_default();
            RotationView {
                key: kind.name().to_owned(),
                phase: rotation.map(|rotation| rotation.phase.name().to_owned()),
                begun_at_ms: rotation.map(|rotation| rotation.begun_at_ms),
                since_version: rotation.map(|rotation| rotation.since_version),
                pin: both
                    .first()
                    .map(|key| kind.pin(key).to_string())
                    .unwrap_or_default(),
                other_pin: both.get(1).map(|key| kind.pin(key).to_string()),
                behind: behind.count,
                behind_nodes: behind
                    .nodes
                    .into_iter()
                    .map(|node| LaggardView {
                        id: node.id,
                        hostname: node.hostname,
                        state: node.state,
                        last_seen_ms: node.last_seen_ms,
                    })
                    .collect(),
            }
        });
        let view = RotationsView {
            trust_version: public.trust_version,
            rotations: views.collect(),
            retired_pins: public.retired_pins.clone(),
        };
        Ok(answer(200, view.serialize_json()))
    }

    /// Does the step that the body names, and answers all rotations.
    pub(super) async fn rotate(&self, key: &str, body: &[u8]) -> Result<HttpAnswer, Refused> {
        let kind = Kind::parse(key).ok_or_else(|| {
            Refused::not_found("the keys are serving-ca, node-ca, join-signing and join-encryption")
        })?;
        let asked = json::check(body, BODY_MAX, 4)
            .ok()
            .and_then(|text| RotateBody::deserialize_json(text).ok())
            .ok_or_else(|| Refused::invalid("the body is not the JSON of a step"))?;
        let step = Step::parse(&asked.step)
            .ok_or_else(|| Refused::invalid("step is one of begin, switch and finish"))?;
        let within = asked.within_seconds.unwrap_or(WITHIN_DEFAULT_SECONDS);
        if !(0..=WITHIN_MAX_SECONDS).contains(&within) {
            return Err(Refused::invalid("within is from 0s to 7d"));
        }
        let within = Duration::from_secs(within.unsigned_abs());
        let force = asked.force.unwrap_or(false);
        self.rotations
            .clone()
            .rotate(kind, step, force, within)
            .await?;
        self.list_rotations().await
    }
}
