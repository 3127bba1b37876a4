//! `GET /.well-known/better-compute`: where the gateway is and which keys it and the JoinService have.
//! docs/protocol.md, section 8.

use bcd::crypto::jwk;
use nanoserde::SerJson;

use crate::pki::Public;

#[derive(SerJson)]
struct Document {
    version: u32,
    gateway: Gateway,
    join: Join,
}

#[derive(SerJson)]
struct Gateway {
    url: String,
    #[nserde(rename = "serverName")]
    server_name: Option<String>,
    #[nserde(rename = "servingCaPin")]
    serving_ca_pin: String,
}

#[derive(SerJson)]
struct Join {
    #[nserde(rename = "signingKeyPin")]
    signing_key_pin: String,
    #[nserde(rename = "encryptionKeyPin")]
    encryption_key_pin: String,
    #[nserde(rename = "encryptionJwk")]
    encryption_jwk: Jwk,
}

#[derive(nanoserde::DeJson, SerJson)]
struct Jwk {
    kty: String,
    crv: String,
    x: String,
    y: String,
}

/// The document. `server_name` is left out when it is the host of `gateway_url`.
pub fn document(public: &Public, gateway_url: &str, server_name: Option<&str>) -> Option<String> {
    let pins = public.pins();
    let jwk = encryption_jwk(public)?;
    let document = Document {
        version: 1,
        gateway: Gateway {
            url: gateway_url.to_owned(),
            server_name: server_name.map(str::to_owned),
            serving_ca_pin: pins.serving_ca.to_string(),
        },
        join: Join {
            signing_key_pin: pins.join_signing.to_string(),
            encryption_key_pin: pins.join_encryption.to_string(),
            encryption_jwk: nanoserde::DeJson::deserialize_json(&jwk).ok()?,
        },
    };
    Some(document.serialize_json())
}

/// The JoinService encryption key as a JWK, as `join-encryption.jwk` holds it.
pub fn encryption_jwk(public: &Public) -> Option<String> {
    // A P-256 SubjectPublicKeyInfo ends in its uncompressed point.
    let spki = &public.join_encryption_key;
    let point = spki.get(spki.len().checked_sub(65)?..)?.try_into().ok()?;
    Some(jwk::PublicKey::from_point(point).to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Bundle, Lock};

    #[test]
    fn the_document_has_exactly_the_references_fields() {
        let lock = Lock::Key(vec![1; 32].into());
        let public = Bundle::generate("t", false, &lock, 0).unwrap().public;
        let text = document(&public, "https://gw:1", None).unwrap();
        for part in [
            "{\"version\":1,\"gateway\":{\"url\":\"https://gw:1\",\"servingCaPin\":\"sha256/",
            "\"join\":{\"signingKeyPin\":\"sha256/",
            "\"encryptionKeyPin\":\"sha256/",
            "\"encryptionJwk\":{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let named = document(&public, "https://192.0.2.1", Some("gw")).unwrap();
        assert!(named.contains("\"serverName\":\"gw\""), "{named}");
        let jwk = encryption_jwk(&public).unwrap();
        let key = jwk::PublicKey::parse(jwk.as_bytes()).unwrap();
        assert_eq!(key.spki_der(), public.join_encryption_key);
    }
}
