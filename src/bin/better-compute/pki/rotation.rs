//! Rotating a key of the bundle: a new one beside the old, use of the new one, the end of the old.
//!
//! | step | what changes |
//! | --- | --- |
//! | begin | a new key or CA is made; trust bundles carry it beside the old one, which stays in use |
//! | switch | the new one is in use; the old one is still trusted, and still vouches for the new |
//! | finish | the old one is dropped, and its pin is retired for good |
//!
//! Between switch and finish a node that was away the whole time still comes back: a new serving CA is
//! shown with a certificate of its key by the old CA, what the JoinService signs is signed with both
//! keys, node certificates of both CAs open sessions, and tokens sealed to either key open. One
//! rotation of a kind at a time; each step writes the whole bundle anew.

use std::error::Error;
use std::fmt;

use bcd::crypto::pin::Pin;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use zeroize::Zeroizing;

use super::{Bundle, CA_SECONDS, IssueError, Lock, PkiError, Private, Public, issue};

/// Retired pins that are kept, the newest: as many as a node takes.
const RETIRED_MAX: usize = 64;

/// What can be rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ServingCa,
    NodeCa,
    JoinSigning,
    JoinEncryption,
}

/// A step of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Begin,
    Switch,
    Finish,
}

/// How far a rotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The new key is trusted beside the one in use.
    Begun,
    /// The new key is in use, and the old one is trusted beside it.
    Switched,
}

/// A rotation under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    pub kind: Kind,
    pub phase: Phase,
    /// Unix time, milliseconds.
    pub begun_at_ms: i64,
    /// The version of the trust bundle that first had the new key.
    pub since_version: u64,
    /// The key that is not in use, the new one before the switch and the old one after it: a
    /// certificate (a CA) or SubjectPublicKeyInfo, DER.
    pub other: Vec<u8>,
    /// Of a serving CA: the new CA's key, certified by the old CA, DER.
    pub cross: Option<Vec<u8>>,
}

/// Why a step is not done. The bundle is as it was.
#[derive(Debug)]
pub enum RotateError {
    /// A rotation of this kind is under way already.
    UnderWay(Kind, Phase),
    /// There is none under way.
    NotBegun(Kind),
    /// The new key is not in use yet.
    NotSwitched(Kind),
    Pki(PkiError),
}

impl Kind {
    pub const ALL: [Self; 4] = [
        Self::ServingCa,
        Self::NodeCa,
        Self::JoinSigning,
        Self::JoinEncryption,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::ServingCa => "serving-ca",
            Self::NodeCa => "node-ca",
            Self::JoinSigning => "join-signing",
            Self::JoinEncryption => "join-encryption",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Switch => "switch",
            Self::Finish => "finish",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Begin, Self::Switch, Self::Finish]
            .into_iter()
            .find(|step| step.name() == name)
    }
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Switched => "switched",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Begun, Self::Switched]
            .into_iter()
            .find(|phase| phase.name() == name)
    }
}

impl Public {
    /// The rotation of this kind that is under way.
    pub fn rotation(&self, kind: Kind) -> Option<&Rotation> {
        self.rotations.iter().find(|found| found.kind == kind)
    }

    /// Whether `step` is the next one of the rotation of `kind`.
    ///
    /// # Errors
    /// Which one it is instead.
    pub fn may(&self, kind: Kind, step: Step) -> Result<(), RotateError> {
        match (self.rotation(kind).map(|rotation| rotation.phase), step) {
            (None, Step::Begin)
            | (Some(Phase::Begun), Step::Switch)
            | (Some(Phase::Switched), Step::Finish) => Ok(()),
            (None, _) => Err(RotateError::NotBegun(kind)),
            (Some(phase), Step::Begin | Step::Switch) => Err(RotateError::UnderWay(kind, phase)),
            (Some(Phase::Begun), Step::Finish) => Err(RotateError::NotSwitched(kind)),
        }
    }

    /// The key of this kind that is in use: a certificate or SubjectPublicKeyInfo, DER.
    fn in_use(&mut self, kind: Kind) -> &mut Vec<u8> {
        match kind {
            Kind::ServingCa => &mut self.serving_ca,
            Kind::NodeCa => &mut self.node_ca,
            Kind::JoinSigning => &mut self.join_signing_key,
            Kind::JoinEncryption => &mut self.join_encryption_key,
        }
    }

    /// The key in use and the one beside it.
    pub fn both(&self, kind: Kind) -> Vec<Vec<u8>> {
        let in_use = match kind {
            Kind::ServingCa => &self.serving_ca,
            Kind::NodeCa => &self.node_ca,
            Kind::JoinSigning => &self.join_signing_key,
            Kind::JoinEncryption => &self.join_encryption_key,
        };
        let other = self.rotation(kind).map(|rotation| &rotation.other);
        std::iter::once(in_use).chain(other).cloned().collect()
    }

    /// What follows a serving leaf in a handshake: the serving CA in use; after a switch the certificate
    /// that the old CA gave it, and the old CA.
    pub fn serving_chain(&self) -> Vec<Vec<u8>> {
        match self.rotation(Kind::ServingCa) {
            Some(Rotation {
                phase: Phase::Switched,
                other,
                cross: Some(cross),
                ..
            }) => vec![cross.clone(), other.clone()],
            _ => vec![self.serving_ca.clone()],
        }
    }
}

impl Kind {
    /// The pin of a key of this kind.
    pub fn pin(self, key: &[u8]) -> Pin {
        match self {
            // Certificates that do not parse are let in nowhere.
            Self::ServingCa | Self::NodeCa => {
                Pin::of_spki(&issue::spki_of(key).unwrap_or_default())
            }
            Self::JoinSigning | Self::JoinEncryption => Pin::of_spki(key),
        }
    }
}

impl Private {
    fn in_use(&mut self, kind: Kind) -> &mut Zeroizing<Vec<u8>> {
        match kind {
            Kind::ServingCa => &mut self.serving_ca,
            Kind::NodeCa => &mut self.node_ca,
            Kind::JoinSigning => &mut self.join_signing,
            Kind::JoinEncryption => &mut self.join_encryption,
        }
    }

    /// The key beside the one in use.
    pub fn other(&self, kind: Kind) -> Option<&Zeroizing<Vec<u8>>> {
        let found = self.others.iter().find(|(of, _)| *of == kind);
        found.map(|(_, key)| key)
    }
}

impl Bundle {
    /// The bundle after `step` of the rotation of `kind`, sealed anew. Nothing is written.
    ///
    /// # Errors
    /// It is not the next step, or the bundle does not open.
    pub fn rotated(
        &self,
        lock: &Lock,
        kind: Kind,
        step: Step,
        now_ms: i64,
    ) -> Result<(Self, Private), RotateError> {
        self.public.may(kind, step)?;
        let mut private = self.open(lock).map_err(PkiError::from)?;
        let mut public = self.public.clone();
        public.trust_version += 1;
        match step {
            Step::Begin => begin(&mut public, &mut private, kind, now_ms)?,
            Step::Switch => {
                let at = private.others.iter().position(|(of, _)| *of == kind);
                let at = at.ok_or(RotateError::NotBegun(kind))?;
                let new = std::mem::take(&mut private.others[at].1);
                private.others[at].1 = std::mem::replace(private.in_use(kind), new);
                let at = public.rotations.iter().position(|found| found.kind == kind);
                let at = at.ok_or(RotateError::NotBegun(kind))?;
                public.rotations[at].phase = Phase::Switched;
                let new = std::mem::take(&mut public.rotations[at].other);
                public.rotations[at].other = std::mem::replace(public.in_use(kind), new);
            }
            Step::Finish => {
                private.others.retain(|(of, _)| *of != kind);
                let rotation = public.rotation(kind).cloned();
                public.rotations.retain(|found| found.kind != kind);
                if let Some(rotation) = rotation {
                    public
                        .retired_pins
                        .push(kind.pin(&rotation.other).to_string());
                }
                let over = public.retired_pins.len().saturating_sub(RETIRED_MAX);
                public.retired_pins.drain(..over);
            }
        }
        let sealed = private.seal(&public, lock);
        Ok((Self { public, sealed }, private))
    }
}

fn begin(
    public: &mut Public,
    private: &mut Private,
    kind: Kind,
    now_ms: i64,
) -> Result<(), RotateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|error| PkiError::from(IssueError::from(error)))?;
    let name = |what: &str| format!("{} {what} {}", public.trust_domain, public.trust_version);
    let ca = |name: &str, paths| {
        issue::self_signed_ca(name, &key, paths, now_ms, CA_SECONDS).map_err(PkiError::from)
    };
    let (other, cross) = match kind {
        Kind::ServingCa => {
            let name = name("serving CA");
            let cross = issue::cross_certificate(
                &name,
                &key,
                &public.serving_ca,
                &private.serving_ca,
                now_ms,
            );
            (ca(&name, 1)?, Some(cross.map_err(PkiError::from)?))
        }
        Kind::NodeCa => (ca(&name("node identity CA"), 0)?, None),
        Kind::JoinSigning | Kind::JoinEncryption => (key.subject_public_key_info(), None),
    };
    private
        .others
        .push((kind, Zeroizing::new(key.serialize_der())));
    public.rotations.push(Rotation {
        kind,
        phase: Phase::Begun,
        begun_at_ms: now_ms,
        since_version: public.trust_version,
        other,
        cross,
    });
    Ok(())
}

impl From<PkiError> for RotateError {
    fn from(error: PkiError) -> Self {
        Self::Pki(error)
    }
}

impl fmt::Display for RotateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnderWay(kind, phase) => write!(
                f,
                "the rotation of {} is {}: its next step is --{}",
                kind.name(),
                phase.name(),
                match phase {
                    Phase::Begun => "switch",
                    Phase::Switched => "finish",
                }
            ),
            Self::NotBegun(kind) => write!(
                f,
                "no rotation of {} is under way: begin one with --begin",
                kind.name()
            ),
            Self::NotSwitched(kind) => write!(
                f,
                "the new key of {} is not in use yet: --switch comes before --finish",
                kind.name()
            ),
            Self::Pki(error) => error.fmt(f),
        }
    }
}

impl Error for RotateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Pki(error) => error.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bcd::crypto::certificate::Certificate;
    use bcd::crypto::gateway_verifier::PinnedCa;
    use rustls::pki_types::{CertificateDer, ServerName};

    use super::super::ServingIssuer;
    use super::*;
    use crate::store::tests::TempDir;

    const NOW: i64 = 1_795_000_000_000;

    fn lock() -> Lock {
        Lock::Key(Zeroizing::new(vec![7; 32]))
    }

    fn fresh() -> Bundle {
        Bundle::generate("example.org", true, &lock(), NOW).unwrap()
    }

    /// As a file that was written and read again.
    fn step(bundle: &Bundle, kind: Kind, step: Step) -> Bundle {
        let dir = TempDir::new();
        let path = dir.0.join("pki.json");
        let (next, _) = bundle.rotated(&lock(), kind, step, NOW).unwrap();
        next.write_new(&path).unwrap();
        next.replace(&path).unwrap();
        let read = Bundle::read(&path).unwrap();
        assert_eq!(read.public, next.public);
        read.open(&lock()).unwrap();
        read
    }

    #[test]
    fn each_kind_goes_from_old_over_both_to_new_and_retires_the_old() {
        for kind in Kind::ALL {
            let first = fresh();
            let old = first.public.both(kind).remove(0);
            let begun = step(&first, kind, Step::Begin);
            let both = begun.public.both(kind);
            assert_eq!((both.len(), &both[0]), (2, &old));
            let switched = step(&begun, kind, Step::Switch);
            assert_eq!(switched.public.both(kind), [both[1].clone(), old.clone()]);
            let done = step(&switched, kind, Step::Finish);
            assert_eq!(done.public.both(kind), [both[1].clone()]);
            assert_eq!(done.public.retired_pins, [kind.pin(&old).to_string()]);
            assert_eq!(done.public.trust_version, 4);
            assert!(done.public.rotations.is_empty());
            // The private half followed.
            let mut private = done.open(&lock()).unwrap();
            assert!(private.others.is_empty());
            let key = KeyPair::try_from(private.in_use(kind).as_slice()).unwrap();
            let spki = key.subject_public_key_info();
            assert_eq!(Pin::of_spki(&spki), kind.pin(&both[1]));
            // And again.
            step(&done, kind, Step::Begin);
        }
    }

    #[test]
    fn a_step_out_of_turn_is_refused_and_names_the_next_one() {
        let first = fresh();
        let begun = step(&first, Kind::NodeCa, Step::Begin);
        let switched = step(&begun, Kind::NodeCa, Step::Switch);
        for (bundle, wrong, said) in [
            (&first, Step::Switch, "--begin"),
            (&first, Step::Finish, "--begin"),
            (&begun, Step::Begin, "--switch"),
            (&begun, Step::Finish, "--switch comes before"),
            (&switched, Step::Begin, "--finish"),
            (&switched, Step::Switch, "--finish"),
        ] {
            let refused = bundle.rotated(&lock(), Kind::NodeCa, wrong, NOW);
            let text = refused.err().unwrap().to_string();
            assert!(text.contains(said), "{text}");
            // Another kind is not concerned.
            let other = bundle.rotated(&lock(), Kind::JoinSigning, Step::Begin, NOW);
            assert!(other.is_ok());
        }
        let wrong = Lock::Key(Zeroizing::new(vec![8; 32]));
        let refused = first.rotated(&wrong, Kind::NodeCa, Step::Begin, NOW);
        assert!(matches!(refused.err(), Some(RotateError::Pki(_))));
    }

    #[test]
    fn a_rotation_that_was_tampered_with_does_not_open() {
        let begun = step(&fresh(), Kind::ServingCa, Step::Begin);
        for change in [
            (|public: &mut Public| public.rotations.clear()) as fn(&mut Public),
            |public| public.rotations[0].phase = Phase::Switched,
            |public| public.rotations[0].since_version += 1,
            |public| public.rotations[0].cross = None,
            |public| public.rotations[0].kind = Kind::NodeCa,
            |public| public.retired_pins.push("sha256/x".to_owned()),
        ] {
            let mut public = begun.public.clone();
            change(&mut public);
            let sealed = begun.sealed.clone();
            let tampered = Bundle { public, sealed };
            assert!(tampered.open(&lock()).is_err());
        }
    }

    #[test]
    fn a_switched_gateway_is_taken_by_nodes_with_the_old_pin_the_new_one_and_both() {
        let first = fresh();
        let old_pin = first.public.pins().serving_ca;
        let begun = step(&first, Kind::ServingCa, Step::Begin);
        let switched = step(&begun, Kind::ServingCa, Step::Switch);
        let new_pin = switched.public.pins().serving_ca;
        let private = switched.open(&lock()).unwrap();
        let names = ["gw.example.org".to_owned()];
        let leaf = ServingIssuer::new(&switched.public.serving_ca, &private.serving_ca)
            .and_then(|issuer| issuer.leaf(&names, NOW, 86_400))
            .unwrap();
        let leaf = CertificateDer::from(leaf.certificate);
        let name = ServerName::try_from("gw.example.org").unwrap();
        let judge = |public: &Public, pins: &[Pin]| {
            let chain = public.serving_chain();
            let rest: Vec<_> = chain
                .iter()
                .map(|der| CertificateDer::from(der.as_slice()))
                .collect();
            let now = u64::try_from(NOW).unwrap();
            PinnedCa::new(pins.to_vec(), move || now).judge(&leaf, &rest, &name)
        };
        for pins in [vec![old_pin], vec![new_pin], vec![old_pin, new_pin]] {
            judge(&switched.public, &pins).unwrap();
        }
        // The old CA's word ends with the rotation.
        let done = step(&switched, Kind::ServingCa, Step::Finish);
        judge(&done.public, &[new_pin]).unwrap();
        judge(&done.public, &[old_pin]).unwrap_err();
        let cross = switched.public.serving_chain().remove(0);
        let cross = Certificate::parse(&cross).unwrap();
        let old = Certificate::parse(&first.public.serving_ca).unwrap();
        assert!(cross.is_issued_by(&old) && cross.is_ca);
        assert!(cross.not_after <= old.not_after);
    }

    #[test]
    fn retired_pins_have_a_bound() {
        let mut bundle = fresh();
        bundle.public.retired_pins = (0..RETIRED_MAX).map(|n| format!("sha256/{n}")).collect();
        let private = Private {
            others: Vec::new(),
            ..fresh().open(&lock()).unwrap()
        };
        bundle.sealed = private.seal(&bundle.public, &lock());
        for rotate in [Step::Begin, Step::Switch, Step::Finish] {
            bundle = step(&bundle, Kind::JoinEncryption, rotate);
        }
        assert_eq!(bundle.public.retired_pins.len(), RETIRED_MAX);
        assert_eq!(bundle.public.retired_pins[0], "sha256/1");
    }
}
