//! gRPC over HTTP/2, the client's side: whatever a server says, a call ends with an answer or an
//! error that is one line.
use std::time::Duration;

use bcd::proto::{JoinRequest, NodeFrame, join_service, session_service};
use bcd::rt;
use bcd::wire::grpc::client::{Client, Endpoint, Waits};

pub const HEAP: super::Heap = super::Heap {
    base: 2 << 20,
    per_byte: 512,
};

pub fn run(data: &[u8]) {
    rt::block_on(async {
        let (_theirs, ours) = super::peer_that_said(data);
        let wait = Duration::from_secs(2);
        let endpoint = Endpoint {
            waits: Waits {
                connect: wait,
                tls: wait,
                settings: wait,
            },
            ..Endpoint::new("gw.example", 443)
        };
        let called = async {
            let client = Client::over(ours, &endpoint).await?;
            let request = JoinRequest::default();
            let joined = client.unary(&join_service::JOIN, &request, wait).await;
            let (mut frames, mut answers) =
                client.stream(&session_service::SESSION, Some(wait)).await?;
            frames.send(&NodeFrame::default()).await?;
            while answers.next().await?.is_some() {}
            joined.map(drop)
        };
        let ended = rt::timeout(Duration::from_secs(10), called).await;
        if let Err(error) = ended.expect("the call outlived its connection") {
            let said = error.to_string();
            assert!(!said.chars().any(char::is_control), "{said:?}");
        }
    });
}
