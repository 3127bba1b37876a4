//! gRPC over HTTP/2, the server's side, from the client's first byte on: any bytes end in an answer or
//! an error, never in a wait or a panic.
use std::rc::Rc;
use std::time::Duration;

use bcd::proto::{JoinResponse, join_service, session_service};
use bcd::rt;
use bcd::wire::grpc::server::{Limits, Peer, Router, serve};

pub const HEAP: super::Heap = super::Heap {
    base: 2 << 20,
    per_byte: 512,
};

pub fn run(data: &[u8]) {
    rt::block_on(async {
        let (_theirs, ours) = super::peer_that_said(data);
        let mut router = Router::new();
        router.unary(&join_service::JOIN, |_, _| async {
            Ok(JoinResponse::default())
        });
        router.bidi(
            &session_service::SESSION,
            |_, mut requests, mut answers| async move {
                while let Some(frame) = requests.next().await? {
                    drop(frame);
                    answers.send(&Default::default()).await?;
                }
                Ok(())
            },
        );
        let served = serve(ours, peer(), Rc::new(router), limits());
        let ended = rt::timeout(Duration::from_secs(5), served).await;
        assert!(ended.is_ok(), "the connection outlived its client");
    });
}

fn peer() -> Peer {
    Peer {
        address: None,
        certificates: Vec::new(),
    }
}

fn limits() -> Limits {
    let short = Duration::from_millis(500);
    Limits {
        preface: short,
        request: short,
        call: short,
        idle: short,
        drain: short,
        ..Limits::default()
    }
}
