//! The wire contract's messages, enums and services, as proto-gen makes them of
//! proto-gen/proto; nothing is written by hand here. docs/protocol.md explains them.
#![allow(rustdoc::all)]

pub use proto_gen::codec::{DecodeError, Limits, Message, Method};

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_request_survives_the_wire() {
        let request = JoinRequest {
            attestor: "join-token".to_owned(),
            role: Role::NODE,
            csr: vec![0x30; 300],
            credential: Some(JoinRequestCredential::SealedToken(SealedToken {
                enc: vec![4; 65],
                ..Default::default()
            })),
            claims: Some(HardwareClaims {
                macs: vec!["52:54:00:00:00:01".to_owned(), String::new()],
                ..Default::default()
            }),
            ..Default::default()
        };
        let bytes = request.encode_to_vec();
        assert_eq!(bytes[..12], *b"\x0a\x0ajoin-token");
        assert_eq!(JoinRequest::decode(&bytes), Ok(request));
        assert_eq!(
            join_service::JOIN.path(),
            "/bettercompute.v1.JoinService/Join"
        );
    }
}
