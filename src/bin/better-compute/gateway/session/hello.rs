//! How a session begins: who opens it by the certificate, and `Hello`, which must say the same.

use std::time::Duration;

use bcd::crypto::certificate::Certificate;
use bcd::crypto::digest;
use bcd::proto::{Hello, NodeFrameKind};
use bcd::rt;
use bcd::wire::grpc::server::Receiver;
use bcd::wire::grpc::{Code, Status};
use rustls::pki_types::CertificateDer;

use super::frame::Frame;
use crate::ids;
use crate::joinservice::role_named;

/// The protocol versions this gateway speaks.
const VERSIONS: &[u32] = &[1];
const HELLO_WAIT: Duration = Duration::from_secs(10);
const TEXT_MAX: usize = 256;
const CAPABILITIES_MAX: usize = 256;
const VERSIONS_MAX: usize = 64;
const JOURNAL_ID_BYTES: usize = 16;

/// Who a certificate says its holder is.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    pub node_id: String,
    /// SHA-256 of the certificate's SubjectPublicKeyInfo.
    pub spki_sha256: [u8; 32],
    /// When the certificate ends, Unix time in seconds.
    pub not_after: i64,
}

/// Who the client certificate names. The handshake has checked that it chains to the node CA.
pub fn identify(
    certificates: &[CertificateDer<'static>],
    trust_domain: &str,
) -> Result<Identity, Status> {
    let unauthenticated = |message: &str| Status::new(Code::Unauthenticated, message);
    let leaf = certificates
        .first()
        .ok_or_else(|| unauthenticated("a session needs the node's client certificate"))?;
    let leaf = Certificate::parse(leaf)
        .map_err(|_| unauthenticated("the client certificate cannot be read"))?;
    let node_id = match leaf.uri_names.as_slice() {
        [uri] => node_of(uri, trust_domain),
        _ => None,
    };
    let node_id = node_id.ok_or_else(|| {
        unauthenticated("the client certificate carries no SPIFFE id of this fleet")
    })?;
    Ok(Identity {
        node_id: node_id.to_owned(),
        spki_sha256: digest::sha256(leaf.spki),
        not_after: leaf.not_after,
    })
}

/// The node id in `spiffe://<trust domain>/<role>/<node id>`.
fn node_of<'a>(uri: &'a str, trust_domain: &str) -> Option<&'a str> {
    let path = uri
        .strip_prefix("spiffe://")?
        .strip_prefix(trust_domain)?
        .strip_prefix('/')?;
    let (role, node_id) = path.split_once('/')?;
    (role_named(role).is_some() && ids::is_ulid_of("node", node_id)).then_some(node_id)
}

/// The first frame, which must be `Hello`.
pub async fn hello(frames: &mut Receiver<Frame>) -> Result<Hello, Status> {
    let frame = rt::timeout(HELLO_WAIT, frames.next())
        .await
        .map_err(|_| Status::new(Code::DeadlineExceeded, "no Hello came for 10 s"))??;
    match frame.and_then(|frame| frame.known.kind) {
        Some(NodeFrameKind::Hello(hello)) => Ok(hello),
        _ => Err(Status::new(
            Code::InvalidArgument,
            "the first frame must be Hello",
        )),
    }
}

pub fn check(hello: &Hello, identity: &Identity) -> Result<(), Status> {
    let invalid = |message: &str| Err(Status::new(Code::InvalidArgument, message));
    if hello.node_id != identity.node_id {
        return Err(Status::new(
            Code::PermissionDenied,
            "Hello names another node than the client certificate",
        ));
    }
    let long = |text: &String| text.len() > TEXT_MAX;
    if long(&hello.boot_id) || long(&hello.daemon_version) {
        return invalid("a text in Hello is over 256 bytes");
    }
    if hello.capabilities.len() > CAPABILITIES_MAX
        || hello
            .capabilities
            .iter()
            .any(|name| long(name) || name.chars().any(char::is_control))
    {
        return invalid("Hello.capabilities is over its limit of 256 names of 256 bytes");
    }
    if hello.protocol_versions.len() > VERSIONS_MAX {
        return invalid("Hello.protocol_versions has more than 64 entries");
    }
    if !matches!(hello.journal_id.len(), 0 | JOURNAL_ID_BYTES) {
        return invalid("Hello.journal_id is neither 16 bytes nor absent");
    }
    Ok(())
}

/// The highest version both speak.
pub fn choose(spoken: &[u32]) -> Option<u32> {
    VERSIONS
        .iter()
        .copied()
        .filter(|version| spoken.contains(version))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "node_01hf7yat000000000000000000";

    #[test]
    fn only_this_fleets_spiffe_ids_name_a_node() {
        let id = |uri: &str| node_of(uri, "example.org").map(str::to_owned);
        for role in ["node", "site", "ramdisk"] {
            let uri = format!("spiffe://example.org/{role}/{NODE}");
            assert_eq!(id(&uri).as_deref(), Some(NODE));
        }
        for bad in [
            format!("spiffe://example.orgx/node/{NODE}"),
            format!("spiffe://other/node/{NODE}"),
            format!("spiffe://example.org/admin/{NODE}"),
            format!("spiffe://example.org/node/{NODE}/x"),
            format!("https://example.org/node/{NODE}"),
            "spiffe://example.org/node/".to_owned(),
            "spiffe://example.org/node/node_1".to_owned(),
        ] {
            assert_eq!(id(&bad), None, "{bad}");
        }
        let status = identify(&[], "example.org").unwrap_err();
        assert_eq!(status.code, Code::Unauthenticated);
    }

    #[test]
    fn the_highest_common_version_is_spoken_or_an_upgrade_required() {
        assert_eq!(choose(&[1]), Some(1));
        assert_eq!(choose(&[0, 1, 2, 9]), Some(1));
        assert_eq!(choose(&[2, 3]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn hello_must_match_the_certificate_and_keep_its_limits() {
        let identity = Identity {
            node_id: NODE.to_owned(),
            spki_sha256: [0; 32],
            not_after: 0,
        };
        let good = Hello {
            node_id: NODE.to_owned(),
            capabilities: vec!["a.b".to_owned()],
            ..Hello::default()
        };
        assert!(check(&good, &identity).is_ok());
        let code = |change: &dyn Fn(&mut Hello)| {
            let mut hello = good.clone();
            change(&mut hello);
            check(&hello, &identity).unwrap_err().code
        };
        assert_eq!(code(&|h| h.node_id.clear()), Code::PermissionDenied);
        assert_eq!(
            code(&|h| h.boot_id = "x".repeat(257)),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.daemon_version = "x".repeat(257)),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.capabilities = vec![String::new(); 257]),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.capabilities = vec!["a\nb".to_owned()]),
            Code::InvalidArgument
        );
        assert_eq!(
            code(&|h| h.protocol_versions = vec![1; 65]),
            Code::InvalidArgument
        );
        for wrong in [1, 15, 17] {
            assert_eq!(
                code(&|h| h.journal_id = vec![1; wrong]),
                Code::InvalidArgument
            );
        }
    }
}
