use ring::signature::{Ed25519KeyPair, KeyPair};

use super::*;

const PURPOSES: [Purpose; 11] = [
    Purpose::JoinResponse,
    Purpose::TrustBundle,
    Purpose::NodeSpec,
    Purpose::DiscoveryAssertion,
    Purpose::ReleaseManifest,
    Purpose::Order,
    Purpose::ProvisionedProof,
    Purpose::ServerTime,
    Purpose::Renewal,
    Purpose::WipeReceipt,
    Purpose::DeployReceipt,
];

fn signed(key: &NodeKey) -> Envelope {
    sign(b"payload".to_vec(), Purpose::JoinResponse, key).unwrap()
}

#[test]
fn the_encoding_is_dsses() {
    // The example of DSSE's protocol.md.
    assert_eq!(
        pae("http://example.com/HelloWorld", b"hello world"),
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    );
    assert_eq!(pae("", b""), b"DSSEv1 0  0 ");
}

#[test]
fn a_signed_payload_verifies_by_key_and_by_pin() {
    let key = NodeKey::generate().unwrap();
    let envelope = signed(&key);
    let purpose = Purpose::JoinResponse;
    assert_eq!(
        verify(&envelope, purpose, &[key.spki_der()]).unwrap(),
        b"payload"
    );
    assert_eq!(
        verify_pinned(&envelope, purpose, &[key.pin()]).unwrap(),
        b"payload"
    );
    let other = NodeKey::generate().unwrap();
    let rotation = [other.pin(), key.pin()];
    assert_eq!(
        verify_pinned(&envelope, purpose, &rotation).unwrap(),
        b"payload"
    );
}

#[test]
fn a_purpose_never_verifies_as_another() {
    let key = NodeKey::generate().unwrap();
    for signed_for in PURPOSES {
        let envelope = sign(b"x".to_vec(), signed_for, &key).unwrap();
        for asked in PURPOSES {
            let verified = verify(&envelope, asked, &[key.spki_der()]);
            assert_eq!(verified.is_ok(), asked == signed_for);
            if asked != signed_for {
                // Nor when somebody relabels it.
                let payload_type = payload_type(asked).to_owned();
                let relabelled = Envelope {
                    payload_type,
                    ..envelope.clone()
                };
                let verified = verify(&relabelled, asked, &[key.spki_der()]);
                assert_eq!(verified, Err(Error::BadSignature(key.pin())));
            }
        }
    }
}

#[test]
fn another_key_is_refused_whatever_it_says_of_itself() {
    let (trusted, other) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
    let purpose = Purpose::JoinResponse;
    let mut envelope = signed(&other);
    let error = verify_pinned(&envelope, purpose, &[trusted.pin()]).unwrap_err();
    let text = format!(
        "the envelope is signed by {}, not by the trusted {}",
        other.pin(),
        trusted.pin()
    );
    assert_eq!(error.to_string(), text);
    assert_eq!(
        verify(&envelope, purpose, &[trusted.spki_der()]),
        Err(error)
    );
    // A stolen name, and no name at all.
    for keyid in [trusted.pin().to_string(), String::new()] {
        envelope.signatures[0].keyid = keyid;
        let verified = verify(&envelope, purpose, &[trusted.spki_der()]);
        assert_eq!(verified, Err(Error::BadSignature(trusted.pin())));
        assert!(verify_pinned(&envelope, purpose, &[trusted.pin()]).is_err());
    }
    // The trusted key carried beside another's signature.
    envelope.signatures[0].public_key = trusted.spki_der();
    let verified = verify_pinned(&envelope, purpose, &[trusted.pin()]);
    assert_eq!(verified, Err(Error::BadSignature(trusted.pin())));
}

#[test]
fn one_good_signature_among_unknown_ones_is_enough() {
    let (trusted, other) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
    let mut envelope = signed(&other);
    envelope.signatures.extend(signed(&trusted).signatures);
    verify(&envelope, Purpose::JoinResponse, &[trusted.spki_der()]).unwrap();
    verify_pinned(&envelope, Purpose::JoinResponse, &[trusted.pin()]).unwrap();
}

#[test]
fn none_and_too_many_signatures_are_refused() {
    let key = NodeKey::generate().unwrap();
    let mut envelope = signed(&key);
    let one = envelope.signatures.remove(0);
    let verified = verify(&envelope, Purpose::JoinResponse, &[key.spki_der()]);
    assert_eq!(verified, Err(Error::Unsigned));
    envelope.signatures = vec![one; 17];
    let verified = verify(&envelope, Purpose::JoinResponse, &[key.spki_der()]);
    assert_eq!(verified, Err(Error::TooMany(17)));
    let no_keys: [&[u8]; 0] = [];
    assert!(matches!(
        verify(&signed(&key), Purpose::JoinResponse, &no_keys),
        Err(Error::Untrusted { .. })
    ));
}

#[test]
fn every_flipped_bit_of_payload_and_signature_is_noticed() {
    let key = NodeKey::generate().unwrap();
    let envelope = signed(&key);
    let pins = [key.pin()];
    for at in 0..envelope.payload.len() {
        let mut changed = envelope.clone();
        changed.payload[at] ^= 1;
        assert!(verify_pinned(&changed, Purpose::JoinResponse, &pins).is_err());
    }
    for at in 0..envelope.signatures[0].sig.len() {
        let mut changed = envelope.clone();
        changed.signatures[0].sig[at] ^= 1;
        assert!(verify_pinned(&changed, Purpose::JoinResponse, &pins).is_err());
        changed.signatures[0].sig.truncate(at);
        assert!(verify_pinned(&changed, Purpose::JoinResponse, &pins).is_err());
    }
}

#[test]
fn ed25519_signs_releases_and_nothing_else() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public = pair.public_key().as_ref().try_into().unwrap();
    let public_key = PublicKey::Ed25519(public).to_der();
    for purpose in PURPOSES {
        let payload_type = payload_type(purpose).to_owned();
        let sig = pair.sign(&pae(&payload_type, b"x")).as_ref().to_vec();
        let signature = Signature {
            sig,
            keyid: String::new(),
            public_key: public_key.clone(),
        };
        let envelope = Envelope {
            payload: b"x".to_vec(),
            payload_type,
            signatures: vec![signature],
        };
        let verified = verify_pinned(&envelope, purpose, &[Pin::of_spki(&public_key)]);
        assert_eq!(verified.is_ok(), purpose == Purpose::ReleaseManifest);
    }
}

#[test]
fn an_envelope_reads_back_from_json() {
    let key = NodeKey::generate().unwrap();
    let mut envelope = signed(&key);
    envelope.signatures.push(Signature {
        sig: vec![1, 2],
        ..Default::default()
    });
    envelope.payload_type = "a \"quoted\"\ntype".to_owned();
    let text = to_json(&envelope);
    assert_eq!(from_json(text.as_bytes()).unwrap(), envelope);
    assert!(!text.contains('\n'));
    let more = text.replacen('{', "{\"newer\":[{\"x\":null}],", 1);
    assert_eq!(from_json(more.as_bytes()).unwrap(), envelope);
}

#[test]
fn json_that_is_no_envelope_is_refused() {
    let good = r#"{"payload":"eA==","payloadType":"t","signatures":[{"sig":"eA==","keyid":"k"}]}"#;
    from_json(good.as_bytes()).unwrap();
    for (from, to) in [
        ("\"payload\"", "\"pay\""),
        ("\"payloadType\"", "\"payloadtype\""),
        ("\"sig\"", "\"signature\""),
        ("\"t\"", "1"),
        ("[{", "{"),
    ] {
        assert!(
            from_json(good.replacen(from, to, 1).as_bytes()).is_err(),
            "{from}"
        );
    }
    let bad = good.replacen("eA==", "eA=", 1);
    assert!(matches!(
        from_json(bad.as_bytes()),
        Err(JsonError::Base64("payload", _))
    ));
    for length in 0..good.len() {
        assert!(matches!(
            from_json(&good.as_bytes()[..length]),
            Err(JsonError::Json(_))
        ));
    }
}
