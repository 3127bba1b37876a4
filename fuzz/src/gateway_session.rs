//! A session at a whole gateway: whatever frames a node with a good certificate sends, and in whatever
//! order, the session ends when the node does, and gives nothing before `Hello`.
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bcd::proto::{GatewayFrameKind, Hello, Message, NodeFrame, NodeFrameKind, session_service};
use bcd::rt;
use bcd::wire::grpc::client::{Client, Endpoint};
use bcd::wire::grpc::server::{Limits, Peer, Router, serve};
use rustls_pki_types::CertificateDer;

use super::fleet::{self, Fleet};

pub const HEAP: super::Heap = super::Heap {
    base: 4 << 20,
    per_byte: 512,
};

/// Frames that one input sends at most.
const FRAMES: usize = 64;

struct Place {
    fleet: Fleet,
    router: Rc<Router>,
}

thread_local! {
    static PLACE: RefCell<Option<Rc<Place>>> = const { RefCell::new(None) };
}

fn place() -> Place {
    let fleet = Fleet::new();
    let (gateway, ..) = fleet.gateway(|| fleet.store());
    let router = Rc::new(gateway.router());
    Place { fleet, router }
}

/// Frames, each with its length in two bytes before it. A `Hello` that names no node names ours.
fn frames(data: &[u8], node_id: &str) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = data;
    while let [high, low, more @ ..] = rest
        && frames.len() < FRAMES
    {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (frame, after) = more.split_at(length);
        rest = after;
        let named = match NodeFrame::decode(frame).map(|frame| frame.kind) {
            Ok(Some(NodeFrameKind::Hello(hello))) if hello.node_id.is_empty() => {
                let node_id = node_id.to_owned();
                let hello = Hello { node_id, ..hello };
                let kind = Some(NodeFrameKind::Hello(hello));
                NodeFrame { kind }.encode_to_vec()
            }
            _ => frame.to_vec(),
        };
        frames.push(named);
    }
    frames
}

pub fn run(data: &[u8]) {
    let place = fleet::with(&PLACE, |place| &place.fleet, place);
    let frames = frames(data, &place.fleet.node_id);
    let greets = frames.first().is_some_and(|frame| {
        matches!(
            NodeFrame::decode(frame),
            Ok(NodeFrame {
                kind: Some(NodeFrameKind::Hello(_))
            })
        )
    });
    let certificates = place.fleet.node_chain.iter();
    let peer = Peer {
        address: None,
        certificates: certificates.cloned().map(CertificateDer::from).collect(),
    };
    let router = place.router.clone();
    rt::block_on(async {
        let (theirs, ours) = super::connection();
        let served = rt::spawn(serve(theirs, peer, router, Limits::default()));
        let session = async {
            let client = Client::over(ours, &Endpoint::new("gw.example", 443)).await?;
            let called = client.stream(&session_service::SESSION, None).await?;
            let (mut sender, mut answers) = called;
            // The gateway may end the session at any frame.
            for frame in &frames {
                if sender
                    .send_encoded(std::slice::from_ref(frame))
                    .await
                    .is_err()
                {
                    break;
                }
            }
            sender.close();
            let mut first = true;
            while let Some(answer) = answers.next().await? {
                let welcome = matches!(answer.kind, Some(GatewayFrameKind::Welcome(_)));
                assert!(welcome == first && greets, "{answer:?}");
                first = false;
            }
            Ok::<_, bcd::wire::grpc::client::CallError>(())
        };
        let ended = rt::timeout(Duration::from_secs(5), session).await;
        if let Err(error) = ended.expect("the session outlived its node") {
            super::one_line(&error);
        }
        served.cancel();
    });
}
