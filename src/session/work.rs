//! Orders on their way from the session to its duties: one at a time, a few waiting.
use std::rc::Rc;
use std::time::Duration;

use super::duties::{Duties, Terms};
use super::spec;
use crate::crypto::pin::Pin;
use crate::proto::{Command, Envelope, OutputRequest};
use crate::rt::channel::Receiver;
use crate::sys::log::{self, Level, Value};

/// What a gateway's frame asks for.
pub(super) enum Order {
    Welcomed(Terms),
    Command(Command, Terms),
    Cancel(String),
    Spec(Envelope, Terms),
    Output(OutputRequest),
    TrustBundle(Envelope),
    /// Within so many milliseconds.
    Renew(u32),
}

/// What specs are held against.
pub(super) struct Judge {
    pub(super) node_id: Rc<str>,
    pub(super) signers: Rc<[Pin]>,
}

/// Hands orders on until there will be no more.
pub(super) async fn work<D: Duties>(duties: Rc<D>, judge: Judge, mut orders: Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Welcomed(terms) => duties.welcomed(terms).await,
            Order::Command(command, terms) => duties.command(command, terms).await,
            Order::Cancel(id) => duties.cancel(id).await,
            Order::Spec(envelope, terms) => {
                let held = duties.about().spec_generation;
                match spec::verify(envelope, &judge.signers, &judge.node_id, held) {
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
            Order::TrustBundle(bundle) => duties.trust_bundle(bundle).await,
            Order::Renew(within_ms) => {
                duties
                    .renew(Duration::from_millis(u64::from(within_ms)))
                    .await
            }
        }
    }
}
