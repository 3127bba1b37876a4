//! What this node trusts: the keys of its configuration and those of the signed trust bundle.
//!
//! Bundles come as a chain: each is signed by a JoinService signing key of the one before it, the first
//! by the configured pin; so a restart proves them all from the configured pin alone, also after the keys
//! it names were rotated away. The last one is in force. A version never goes back, and what the bundle
//! in force retires is trusted for nothing any more, whatever the configuration says. Pure.

use std::error::Error;
use std::fmt;

use crate::crypto::certificate::Certificate;
use crate::crypto::envelope::{self, Purpose};
use crate::crypto::pin::Pin;
use crate::proto::{DecodeError, Envelope, Message, TrustBundle};

/// The most bundles in a chain: one for each rotation of the signing key that the configured pin has
/// not followed.
pub const LINKS: usize = 16;
/// Bytes of a bundle.
pub const BUNDLE_BYTES: usize = 24 << 10;
/// Keys of one kind in a bundle.
const KEYS: usize = 16;
/// Retired pins in a bundle.
const RETIRED: usize = 64;

/// The pins of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configured {
    /// `serving_ca_spki_pin`.
    pub serving_ca: Pin,
    /// `join_signing_key_pin`.
    pub join_signing: Pin,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    configured: Configured,
    /// Oldest first; the last is in force.
    chain: Vec<Envelope>,
    /// The payload of the last.
    bundle: TrustBundle,
    retired: Vec<Pin>,
}

/// Why a bundle is refused.
#[derive(Debug, PartialEq)]
pub enum TrustError {
    /// No key that is trusted signed it.
    Signature(envelope::Error),
    /// It is signed, but no `TrustBundle`, or over a limit.
    Malformed(DecodeError),
    /// It is signed, but over this limit.
    Limit(&'static str),
    /// A later version is held.
    Older { held: u64, got: u64 },
    /// It would leave no key of this kind to trust.
    Nothing(&'static str),
    /// The chain has no room for it.
    Long,
}

impl Trust {
    /// The configuration alone.
    pub fn of(configured: Configured) -> Self {
        Self {
            configured,
            chain: Vec::new(),
            bundle: TrustBundle::default(),
            retired: Vec::new(),
        }
    }

    /// The chain as it was kept, oldest first, held against the configuration: as much of it as holds,
    /// and why the rest does not.
    pub fn read(configured: Configured, chain: Vec<Envelope>) -> (Self, Option<TrustError>) {
        let mut trust = Self::of(configured);
        // Links before the configured pin's own are of no use, and a configuration that followed a
        // rotation proves none of them.
        let by_configured = |signed: &Envelope| {
            envelope::verify_pinned(signed, Purpose::TrustBundle, &[configured.join_signing])
                .is_ok()
        };
        let start = chain.iter().rposition(by_configured).unwrap_or(0);
        for signed in chain.into_iter().skip(start) {
            let signers = match trust.chain.is_empty() {
                true => vec![configured.join_signing],
                false => keys_of(&trust.bundle),
            };
            match trust.checked(&signed, &signers) {
                Ok(bundle) => trust.put(signed, bundle),
                Err(error) => return (trust, Some(error)),
            }
        }
        (trust, None)
    }

    /// With `signed` in force. `None` when its version is the one held.
    ///
    /// # Errors
    /// See [`TrustError`]; what is held stays in force.
    pub fn take(&self, signed: &Envelope) -> Result<Option<Self>, TrustError> {
        let bundle = match self.checked(signed, &self.signers()) {
            Err(TrustError::Older { held, got }) if held == got => return Ok(None),
            checked => checked?,
        };
        // Only the links that lead to it are kept.
        let mut taken = self.clone();
        let by = |signers: &[Pin]| {
            envelope::verify_pinned(signed, Purpose::TrustBundle, signers).is_ok()
        };
        let needed = match by(&[self.configured.join_signing]) {
            true => 0,
            false => {
                let link = self.chain.iter().position(|link| {
                    TrustBundle::decode(&link.payload).is_ok_and(|bundle| by(&keys_of(&bundle)))
                });
                link.map_or(self.chain.len(), |link| link + 1)
            }
        };
        taken.chain.truncate(needed);
        if taken.chain.len() >= LINKS {
            return Err(TrustError::Long);
        }
        taken.put(signed.clone(), bundle);
        let left = |pins: &[Pin], what| match pins {
            [] => Err(TrustError::Nothing(what)),
            _ => Ok(()),
        };
        left(&taken.serving_pins(), "serving CA")?;
        left(&taken.signers(), "JoinService signing key")?;
        Ok(Some(taken))
    }

    /// The version in force; 0: none.
    pub fn version(&self) -> u64 {
        self.bundle.version
    }

    /// The bundle in force; empty when there is none.
    pub fn bundle(&self) -> &TrustBundle {
        &self.bundle
    }

    /// The bundles, oldest first; the last is in force.
    pub fn chain(&self) -> &[Envelope] {
        &self.chain
    }

    /// Pins of the CAs that a gateway's certificate may come from.
    pub fn serving_pins(&self) -> Vec<Pin> {
        let cas = self.bundle.serving_cas.iter();
        let cas = cas.filter_map(|der| Some(Certificate::parse(der).ok()?.pin()));
        self.standing(std::iter::once(self.configured.serving_ca).chain(cas))
    }

    /// Pins of the keys that sign specs, bundles, answers and the time.
    pub fn signers(&self) -> Vec<Pin> {
        let keys = keys_of(&self.bundle);
        self.standing(std::iter::once(self.configured.join_signing).chain(keys))
    }

    /// The node-identity CAs, DER.
    pub fn node_cas(&self) -> Vec<&[u8]> {
        let standing = |der: &&Vec<u8>| {
            Certificate::parse(der).is_ok_and(|ca| !self.retired.contains(&ca.pin()))
        };
        let cas = self.bundle.node_cas.iter();
        cas.filter(standing).map(Vec::as_slice).collect()
    }

    /// `pins` without those retired and without doubles.
    fn standing(&self, pins: impl Iterator<Item = Pin>) -> Vec<Pin> {
        let mut standing = Vec::new();
        for pin in pins {
            if !self.retired.contains(&pin) && !standing.contains(&pin) {
                standing.push(pin);
            }
        }
        standing
    }

    fn checked(&self, signed: &Envelope, signers: &[Pin]) -> Result<TrustBundle, TrustError> {
        let payload = envelope::verify_pinned(signed, Purpose::TrustBundle, signers)
            .map_err(TrustError::Signature)?;
        if payload.len() > BUNDLE_BYTES {
            return Err(TrustError::Limit("24 KiB"));
        }
        let bundle = TrustBundle::decode(payload).map_err(TrustError::Malformed)?;
        let kinds = [
            &bundle.serving_cas,
            &bundle.node_cas,
            &bundle.join_signing_keys,
            &bundle.join_encryption_keys,
            &bundle.command_roots,
        ];
        if kinds.iter().any(|keys| keys.len() > KEYS) {
            return Err(TrustError::Limit("16 keys of a kind"));
        }
        if bundle.retired_pins.len() > RETIRED {
            return Err(TrustError::Limit("64 retired pins"));
        }
        if !self.chain.is_empty() && bundle.version <= self.bundle.version {
            return Err(TrustError::Older {
                held: self.bundle.version,
                got: bundle.version,
            });
        }
        Ok(bundle)
    }

    fn put(&mut self, signed: Envelope, bundle: TrustBundle) {
        // A pin that does not parse names no key.
        let pins = bundle.retired_pins.iter();
        self.retired = pins.filter_map(|pin| Pin::parse(pin).ok()).collect();
        self.chain.push(signed);
        self.bundle = bundle;
    }
}

fn keys_of(bundle: &TrustBundle) -> Vec<Pin> {
    let keys = bundle.join_signing_keys.iter();
    keys.map(|key| Pin::of_spki(key)).collect()
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signature(_) => {
                f.write_str("the trust bundle is not signed by a key that this node trusts")
            }
            Self::Malformed(_) => f.write_str("the trust bundle cannot be read"),
            Self::Limit(limit) => write!(f, "the trust bundle is over its limit of {limit}"),
            Self::Older { held, got } => write!(
                f,
                "the trust bundle is of version {got}, and version {held} is held"
            ),
            Self::Nothing(what) => write!(f, "the trust bundle leaves no {what} to trust"),
            Self::Long => write!(
                f,
                "the keys were rotated {LINKS} times since join_signing_key_pin was configured"
            ),
        }
    }
}

impl Error for TrustError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Signature(error) => Some(error),
            Self::Malformed(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
    use super::*;
    use crate::crypto::key::NodeKey;
    use crate::identity::record::tests::certificate_of;

    fn key() -> NodeKey {
        NodeKey::generate().unwrap()
    }

    struct Fleet {
        serving: NodeKey,
        signing: Vec<NodeKey>,
    }

    impl Fleet {
        fn new() -> Self {
            Self {
                serving: key(),
                signing: vec![key()],
            }
        }

        fn configured(&self) -> Configured {
            Configured {
                serving_ca: self.serving.pin(),
                join_signing: self.signing[0].pin(),
            }
        }

        /// A bundle with the signing keys `keys`, by their place, signed by those of `by`.
        fn bundle(&self, version: u64, keys: &[usize], by: &[usize], retired: &[Pin]) -> Envelope {
            let keys = keys.iter().map(|key| self.signing[*key].spki_der());
            let bundle = TrustBundle {
                version,
                serving_cas: vec![certificate_of(&self.serving)],
                join_signing_keys: keys.collect(),
                retired_pins: retired.iter().map(Pin::to_string).collect(),
                ..TrustBundle::default()
            };
            signed(bundle, by.iter().map(|key| &self.signing[*key]))
        }
    }

    fn signed<'a>(bundle: TrustBundle, by: impl Iterator<Item = &'a NodeKey>) -> Envelope {
        let sign = |key| envelope::sign(bundle.encode_to_vec(), Purpose::TrustBundle, key).unwrap();
        let mut envelopes: Vec<Envelope> = by.map(sign).collect();
        let mut first = envelopes.remove(0);
        for other in envelopes {
            first.signatures.extend(other.signatures);
        }
        first
    }

    #[test]
    fn a_rotated_signing_key_is_proven_again_from_the_configured_pin() {
        let mut fleet = Fleet::new();
        fleet.signing.extend([key(), key()]);
        let old = fleet.signing[0].pin();
        let mut trust = Trust::of(fleet.configured());
        assert_eq!((trust.version(), trust.signers()), (0, vec![old]));
        type Step<'a> = (u64, &'a [usize], &'a [usize], &'a [Pin], usize);
        let steps: [Step<'_>; 5] = [
            (1, &[0], &[0], &[], 1),
            (2, &[0, 1], &[0], &[], 1),
            // Signed with both: still one link.
            (3, &[0, 1], &[1, 0], &[], 1),
            // The first is gone: the link that introduced the second stays.
            (4, &[1], &[1], &[old], 2),
            (5, &[1, 2], &[1], &[old], 2),
        ];
        for (version, keys, by, retired, links) in steps {
            let bundle = fleet.bundle(version, keys, by, retired);
            trust = trust.take(&bundle).unwrap().unwrap();
            assert_eq!((trust.version(), trust.chain().len()), (version, links));
            let (read, error) = Trust::read(fleet.configured(), trust.chain().to_vec());
            assert_eq!((read, error), (trust.clone(), None), "version {version}");
        }
        assert_eq!(
            trust.signers(),
            [fleet.signing[1].pin(), fleet.signing[2].pin()]
        );
        // A configuration that followed the rotation needs fewer links, and reads the same.
        let followed = Configured {
            join_signing: fleet.signing[1].pin(),
            ..fleet.configured()
        };
        let (read, error) = Trust::read(followed, trust.chain().to_vec());
        assert_eq!((read.version(), read.chain().len(), error), (5, 1, None));
    }

    #[test]
    fn a_version_never_goes_back_and_the_same_is_nothing_new() {
        let fleet = Fleet::new();
        let trust = Trust::of(fleet.configured());
        let trust = trust
            .take(&fleet.bundle(7, &[0], &[0], &[]))
            .unwrap()
            .unwrap();
        assert_eq!(trust.take(&fleet.bundle(7, &[0], &[0], &[])), Ok(None));
        assert_eq!(
            trust.take(&fleet.bundle(6, &[0], &[0], &[])),
            Err(TrustError::Older { held: 7, got: 6 })
        );
        let chain = vec![
            fleet.bundle(7, &[0], &[0], &[]),
            fleet.bundle(6, &[0], &[0], &[]),
        ];
        // Both are the configured key's: the last one counts.
        assert_eq!(Trust::read(fleet.configured(), chain).0.version(), 6);
    }

    #[test]
    fn what_is_retired_is_trusted_for_nothing_whatever_the_configuration_says() {
        let mut fleet = Fleet::new();
        fleet.signing.push(key());
        let (old, new) = (fleet.signing[0].pin(), fleet.signing[1].pin());
        let trust = Trust::of(fleet.configured());
        let trust = trust
            .take(&fleet.bundle(1, &[0, 1], &[0], &[]))
            .unwrap()
            .unwrap();
        let trust = trust
            .take(&fleet.bundle(2, &[1], &[1], &[old]))
            .unwrap()
            .unwrap();
        assert_eq!(trust.signers(), [new]);
        let by_retired = fleet.bundle(3, &[0], &[0], &[]);
        assert!(matches!(
            trust.take(&by_retired),
            Err(TrustError::Signature(_))
        ));
        let serving = fleet.serving.pin();
        assert_eq!(trust.serving_pins(), [serving]);
        let nothing = fleet.bundle(3, &[1], &[1], &[old, serving]);
        assert_eq!(trust.take(&nothing), Err(TrustError::Nothing("serving CA")));
        let nothing = fleet.bundle(3, &[1], &[1], &[old, new]);
        assert_eq!(
            trust.take(&nothing),
            Err(TrustError::Nothing("JoinService signing key"))
        );
    }

    #[test]
    fn a_retired_node_ca_and_a_retired_serving_ca_of_the_bundle_do_not_stand() {
        let fleet = Fleet::new();
        let (old, new) = (key(), key());
        let bundle = TrustBundle {
            version: 1,
            serving_cas: vec![certificate_of(&old), certificate_of(&new)],
            node_cas: vec![certificate_of(&old), certificate_of(&new)],
            join_signing_keys: vec![fleet.signing[0].spki_der()],
            retired_pins: vec![old.pin().to_string(), "nonsense".to_owned()],
            ..TrustBundle::default()
        };
        let bundle = signed(bundle, fleet.signing.iter());
        let trust = Trust::of(fleet.configured())
            .take(&bundle)
            .unwrap()
            .unwrap();
        assert_eq!(trust.serving_pins(), [fleet.serving.pin(), new.pin()]);
        assert_eq!(trust.node_cas(), [certificate_of(&new).as_slice()]);
    }

    #[test]
    fn a_bundle_that_does_not_hold_changes_nothing_and_says_why() {
        let fleet = Fleet::new();
        let stranger = key();
        let trust = Trust::of(fleet.configured());
        let trust = trust
            .take(&fleet.bundle(1, &[0], &[0], &[]))
            .unwrap()
            .unwrap();
        let signing = &fleet.signing[0];
        let other = envelope::sign(vec![], Purpose::NodeSpec, signing).unwrap();
        assert!(matches!(trust.take(&other), Err(TrustError::Signature(_))));
        let unknown = signed(TrustBundle::default(), std::iter::once(&stranger));
        assert!(matches!(
            trust.take(&unknown),
            Err(TrustError::Signature(_))
        ));
        let broken = envelope::sign(vec![0xff], Purpose::TrustBundle, signing).unwrap();
        assert!(matches!(trust.take(&broken), Err(TrustError::Malformed(_))));
        let large = envelope::sign(vec![0; BUNDLE_BYTES + 1], Purpose::TrustBundle, signing);
        assert_eq!(
            trust.take(&large.unwrap()),
            Err(TrustError::Limit("24 KiB"))
        );
        let many = |change: &dyn Fn(&mut TrustBundle)| {
            let mut bundle = TrustBundle {
                version: 9,
                ..TrustBundle::default()
            };
            change(&mut bundle);
            trust
                .take(&signed(bundle, std::iter::once(signing)))
                .unwrap_err()
        };
        assert_eq!(
            many(&|bundle| bundle.node_cas = vec![vec![]; KEYS + 1]),
            TrustError::Limit("16 keys of a kind")
        );
        assert_eq!(
            many(&|bundle| bundle.retired_pins = vec![String::new(); RETIRED + 1]),
            TrustError::Limit("64 retired pins")
        );
    }

    #[test]
    fn a_chain_has_a_bound() {
        let mut fleet = Fleet::new();
        let mut trust = Trust::of(fleet.configured());
        trust = trust
            .take(&fleet.bundle(1, &[0], &[0], &[]))
            .unwrap()
            .unwrap();
        for n in 1..=LINKS {
            fleet.signing.push(key());
            let version = 2 * n as u64;
            let both = fleet.bundle(version, &[n - 1, n], &[n - 1], &[]);
            trust = trust.take(&both).unwrap().unwrap();
            let one = fleet.bundle(version + 1, &[n], &[n], &[]);
            match trust.take(&one) {
                Ok(Some(taken)) => trust = taken,
                Ok(None) => panic!("version {version} is held"),
                Err(error) => {
                    assert_eq!((n, trust.chain().len()), (LINKS, LINKS));
                    assert_eq!(error, TrustError::Long);
                    return;
                }
            }
        }
        panic!("no bound");
    }

    #[test]
    fn a_damaged_link_ends_the_chain_before_it() {
        let mut fleet = Fleet::new();
        fleet.signing.push(key());
        let both = fleet.bundle(1, &[0, 1], &[0], &[]);
        let mut broken = fleet.bundle(2, &[1], &[1], &[]);
        broken.payload[0] ^= 1;
        let (trust, error) = Trust::read(fleet.configured(), vec![both, broken.clone()]);
        assert_eq!(trust.version(), 1);
        assert!(matches!(error, Some(TrustError::Signature(_))));
        let (trust, error) = Trust::read(fleet.configured(), vec![broken]);
        assert_eq!((trust.version(), error.is_some()), (0, true));
        let (trust, error) = Trust::read(fleet.configured(), Vec::new());
        assert_eq!((trust.version(), error), (0, None));
    }
}
