//! Orders on their way from the session to its duties: one at a time, a few waiting.
use std::rc::Rc;

use super::duties::{Duties, Terms};
use super::spec;
use crate::attest::member::Member;
use crate::proto::{
    Command, Envelope, NodeFrame, NodeFrameKind, OrderAnswer, OutputRequest, TrustBundleTaken,
};
use crate::rt::channel::{Receiver, Sender};
use crate::sys::log::{self, Level, Value};

/// What a gateway's frame asks for.
pub(super) enum Order {
    Command(Command, Terms),
    Cancel(String),
    Spec(Envelope, Terms),
    Output(OutputRequest),
    TrustBundle(Envelope),
    Answered(OrderAnswer),
}

/// Hands orders on until there will be no more.
pub(super) async fn work<D: Duties>(
    member: Member,
    duties: Rc<D>,
    frames: Sender<NodeFrame>,
    mut orders: Receiver<Order>,
) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Command(command, terms) => duties.command(command, terms).await,
            Order::Cancel(id) => duties.cancel(id).await,
            Order::Spec(envelope, terms) => {
                let held = duties.about().spec_generation;
                match spec::verify(envelope, &member.signers(), member.node_id(), held) {
                    Ok(signed) if terms.upgrade_required => {
                        let generation = Value::Number(signed.spec.generation);
                        log::event(
                            Level::Warn,
                            "spec.not_applied",
                            &[
                                ("generation", generation),
                                ("why", Value::Text("this bcd must be upgraded first")),
                            ],
                        );
                    }
                    Ok(signed) => duties.spec(signed).await,
                    Err(error) => log::event(
                        Level::Warn,
                        "spec.dropped",
                        &[("error", Value::Chain(&error))],
                    ),
                }
            }
            Order::Output(request) => duties.output(request).await,
            Order::Answered(answer) => duties.order_answered(answer).await,
            Order::TrustBundle(bundle) => {
                if let Some(version) = member.take_bundle(&bundle).await {
                    let taken = TrustBundleTaken { version };
                    let kind = Some(NodeFrameKind::TrustBundleTaken(taken));
                    let _ = frames.send(NodeFrame { kind }).await;
                }
            }
        }
    }
}
