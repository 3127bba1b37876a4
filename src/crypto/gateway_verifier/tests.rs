use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PublicKeyData, SanType,
};
use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::*;

const YEAR_S: i64 = 365 * 86_400;

struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

struct Leaf {
    der: CertificateDer<'static>,
    key: KeyPair,
}

fn date(unix: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(unix).unwrap()
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date(NOW - YEAR_S);
    params.not_after = date(NOW + YEAR_S);
    params
}

/// 2026-01-01.
const NOW: i64 = 1_767_225_600;

impl Ca {
    fn with(params: CertificateParams, key: KeyPair) -> Self {
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    fn new(name: &str) -> Self {
        Self::with(Self::params(name), KeyPair::generate().unwrap())
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::signed_by(Self::params(name), key, &self.issuer).unwrap();
        Self { issuer }
    }

    fn pin(&self) -> Pin {
        Pin::of_spki(&self.issuer.key().subject_public_key_info())
    }

    fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    fn leaf(&self, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = params("gateway");
        params.subject_alt_names = vec![
            SanType::DnsName("gw.example".try_into().unwrap()),
            SanType::IpAddress("192.0.2.1".parse::<IpAddr>().unwrap()),
        ];
        change(&mut params);
        let der = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Leaf { der, key }
    }
}

fn name(text: &str) -> ServerName<'static> {
    ServerName::try_from(text.to_owned()).unwrap()
}

fn at(pin: Pin, unix: i64) -> PinnedCa {
    PinnedCa::new(vec![pin], move || unix as u64 * 1000)
}

fn judge(ca: &Ca, leaf: &Leaf, chain: &[CertificateDer<'_>]) -> Result<(), Failure> {
    at(ca.pin(), NOW).judge(&leaf.der, chain, &name("gw.example"))
}

#[test]
fn a_chain_with_the_pinned_ca_is_accepted_under_each_of_its_names() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|_| {});
    let verifier = at(ca.pin(), NOW);
    for text in ["gw.example", "192.0.2.1", "GW.example"] {
        verifier.judge(&leaf.der, &[ca.der()], &name(text)).unwrap();
    }
}

#[test]
fn any_pin_of_a_rotation_will_do() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let verifier = PinnedCa::new(vec![old.pin(), new.pin()], || NOW as u64 * 1000);
    for ca in [&old, &new] {
        let leaf = ca.leaf(|_| {});
        verifier
            .judge(&leaf.der, &[ca.der()], &name("gw.example"))
            .unwrap();
    }
    let leaf = new.leaf(|_| {});
    verifier
        .judge(&leaf.der, &[old.der(), new.der()], &name("gw.example"))
        .unwrap();
}

#[test]
fn intermediates_below_and_roots_above_the_pinned_ca_are_fine() {
    let root = Ca::new("root");
    let serving = root.intermediate("serving CA");
    let below = serving.intermediate("below");
    let leaf = below.leaf(|_| {});
    judge(&serving, &leaf, &[below.der(), serving.der(), root.der()]).unwrap();
    judge(&serving, &leaf, &[root.der(), serving.der(), below.der()]).unwrap();
    // A pin of an intermediate alone trusts nothing its sisters sign.
    let sister = root.intermediate("sister").leaf(|_| {});
    let failure = judge(&serving, &sister, &[serving.der(), root.der()]).unwrap_err();
    assert!(matches!(failure, Failure::NotIssued { .. }));
}

#[test]
fn a_chain_without_the_pinned_ca_is_refused_and_says_what_it_holds() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|_| {});
    let failure = judge(&ca, &leaf, &[]).unwrap_err();
    let leaf_pin = Pin::of_spki(&leaf.key.subject_public_key_info());
    assert_eq!(
        failure.to_string(),
        format!(
            "the gateway's certificate chain holds no CA with the pin {}; it holds \"gateway\" \
             ({leaf_pin}); a gateway must send its serving CA in the chain",
            ca.pin()
        )
    );
    let other = Ca::new("another CA");
    let leaf = other.leaf(|_| {});
    let text = judge(&ca, &leaf, &[other.der()]).unwrap_err().to_string();
    assert!(
        text.contains(&format!("CA \"another CA\" ({})", other.pin())),
        "{text}"
    );
    assert!(text.contains(&ca.pin().to_string()), "{text}");
}

#[test]
fn presenting_the_pinned_ca_beside_a_leaf_of_another_proves_nothing() {
    let (ca, other) = (Ca::new("serving CA"), Ca::new("another CA"));
    let leaf = other.leaf(|_| {});
    let failure = judge(&ca, &leaf, &[other.der(), ca.der()]).unwrap_err();
    assert!(matches!(failure, Failure::NotIssued { .. }), "{failure}");
    // Nor does a CA of the same name.
    let twin = Ca::new("serving CA");
    let leaf = twin.leaf(|_| {});
    let failure = judge(&ca, &leaf, &[ca.der()]).unwrap_err();
    let Failure::NotIssued { reason, .. } = &failure else {
        panic!("{failure}")
    };
    assert!(reason.contains("signature"), "{failure}");
}

#[test]
fn a_pinned_key_in_a_certificate_that_is_no_ca_is_no_anchor() {
    let key = KeyPair::generate().unwrap();
    let pin = Pin::of_spki(&key.subject_public_key_info());
    let fake = Ca::with(params("no CA"), key);
    let leaf = fake.leaf(|_| {});
    let judged = at(pin, NOW).judge(&leaf.der, &[fake.der()], &name("gw.example"));
    assert!(matches!(judged, Err(Failure::NotPinned { .. })));
    // A self-signed leaf whose own key is pinned neither: the pin is a CA's.
    let judged = at(pin, NOW).judge(&fake.der(), &[], &name("gw.example"));
    assert!(matches!(judged, Err(Failure::NotPinned { .. })));
}

#[test]
fn another_name_is_refused_and_both_are_named() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|_| {});
    for wrong in ["other.example", "192.0.2.2", "x.gw.example", "example"] {
        let judged = at(ca.pin(), NOW).judge(&leaf.der, &[ca.der()], &name(wrong));
        assert_eq!(
            judged.unwrap_err().to_string(),
            format!("the gateway's certificate is for gw.example, 192.0.2.1, not for {wrong}")
        );
    }
    let nameless = ca.leaf(|params| params.subject_alt_names.clear());
    let failure = judge(&ca, &nameless, &[ca.der()]).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "the gateway's certificate is for no name, not for gw.example"
    );
}

#[test]
fn an_expired_leaf_is_refused_at_trusted_time_whatever_the_hosts_clock() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|params| params.not_after = date(NOW - 1));
    let failure = judge(&ca, &leaf, &[ca.der()]).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "the gateway's certificate \"gateway\" expired at 2025-12-31T23:59:59Z, and it is \
         2026-01-01T00:00:00Z (trusted time)"
    );
    at(ca.pin(), NOW - 1)
        .judge(&leaf.der, &[ca.der()], &name("gw.example"))
        .unwrap();
}

#[test]
fn an_expired_intermediate_is_named() {
    let ca = Ca::new("serving CA");
    let mut params = Ca::params("below");
    params.not_after = date(NOW - 1);
    let key = KeyPair::generate().unwrap();
    let below = Ca {
        issuer: CertifiedIssuer::signed_by(params, key, &ca.issuer).unwrap(),
    };
    let leaf = below.leaf(|_| {});
    let failure = judge(&ca, &leaf, &[below.der(), ca.der()]).unwrap_err();
    assert!(
        matches!(&failure, Failure::Expired { subject, .. } if subject == "below"),
        "{failure}"
    );
}

#[test]
fn a_machine_whose_clock_is_behind_accepts_a_new_certificate_but_none_that_ended() {
    let ca = Ca::new("serving CA");
    let new = ca.leaf(|params| params.not_before = date(NOW + 3600));
    at(ca.pin(), 0)
        .judge(&new.der, &[ca.der()], &name("gw.example"))
        .unwrap();
    // One that a newer certificate in the chain proves to have ended.
    let below = ca.intermediate("below");
    let mut params = Ca::params("later");
    params.not_before = date(NOW + 7200);
    let key = KeyPair::generate().unwrap();
    let later = Ca {
        issuer: CertifiedIssuer::signed_by(params, key, &below.issuer).unwrap(),
    };
    let old = later.leaf(|params| params.not_after = date(NOW));
    let chain = [later.der(), below.der(), ca.der()];
    let judged = at(ca.pin(), 0).judge(&old.der, &chain, &name("gw.example"));
    assert!(matches!(judged, Err(Failure::Expired { .. })));
}

#[test]
fn a_certificate_for_clients_alone_is_refused() {
    let ca = Ca::new("serving CA");
    let leaf =
        ca.leaf(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    let failure = judge(&ca, &leaf, &[ca.der()]).unwrap_err();
    assert!(matches!(failure, Failure::NotIssued { .. }), "{failure}");
}

#[test]
fn chains_too_long_or_damaged_are_refused_and_never_panic() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|_| {});
    let long = vec![ca.der(); 8];
    assert_eq!(judge(&ca, &leaf, &long), Err(Failure::TooMany { count: 9 }));
    let junk = CertificateDer::from(vec![1, 2, 3]);
    assert_eq!(
        judge(&ca, &leaf, &[ca.der(), junk]),
        Err(Failure::Malformed { position: 3 })
    );
    for at_byte in 0..leaf.der.len() {
        let mut flipped = leaf.der.to_vec();
        flipped[at_byte] ^= 4;
        let flipped = Leaf {
            der: flipped.into(),
            key: KeyPair::generate().unwrap(),
        };
        assert!(judge(&ca, &flipped, &[ca.der()]).is_err(), "byte {at_byte}");
    }
    for at_byte in 0..ca.der().len() {
        let mut flipped = ca.der().to_vec();
        flipped[at_byte] ^= 4;
        // Some bits of an anchor do not matter; panicking would.
        let _ = judge(&ca, &leaf, &[flipped.into()]);
    }
}

/// A whole TLS 1.3 handshake, in memory.
fn handshake(
    verifier: &Arc<PinnedCa>,
    leaf: &Leaf,
    chain: Vec<CertificateDer<'static>>,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = &[&rustls::version::TLS13];
    let key = PrivatePkcs8KeyDer::from(leaf.key.serialize_der()).into();
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert([vec![leaf.der.clone()], chain].concat(), key)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    let mut server = ServerConnection::new(Arc::new(server))?;
    let mut client = ClientConnection::new(Arc::new(client), name("gw.example"))?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

#[test]
fn a_handshake_succeeds_with_the_pin_and_tells_why_it_failed_without() {
    let ca = Ca::new("serving CA");
    let leaf = ca.leaf(|_| {});
    let verifier = Arc::new(at(ca.pin(), NOW));
    handshake(&verifier, &leaf, vec![ca.der()]).unwrap();
    assert_eq!(verifier.failure(), None);

    let error = handshake(&verifier, &leaf, vec![]).unwrap_err();
    let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
    let found = Failure::find(&wrapped).unwrap().clone();
    assert!(matches!(found, Failure::NotPinned { .. }));
    assert_eq!(verifier.failure(), Some(found));
    assert_eq!(verifier.failure(), None);
    assert!(Failure::find(&io::Error::other("something else")).is_none());
}
