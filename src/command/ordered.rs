//! What commands on one-time orders have in common: who may run them, the claim before the first byte, and the
//! receipt at the end.
use super::kinds::{UNSUPPORTED, explained};
use super::machine::Failure;
use super::work::Context;
use crate::crypto::digest;
use crate::crypto::envelope::Purpose;
use crate::facts::firmware::telling;
use crate::facts::tree::Tree;
use crate::journal::{Class, Entry};
use crate::proto::{Event, EventBody, Message, ReceiptHead, Role};

/// Makes the order this command's own, so that it may write.
///
/// # Errors
/// This is no ramdisk, or the order is not granted. Nothing may be written.
pub fn claim(context: &Context, order_id: &str) -> Result<(), Failure> {
    if context.role != Role::RAMDISK {
        return Err(Failure::new(
            UNSUPPORTED,
            "disks are written to in a ramdisk alone: boot this machine into it",
        ));
    }
    context.orders.claim(order_id, context.id, &context.stop)
}

/// The head of a receipt for work that began at `started_ms` and ends now.
pub fn head(context: &Context, order_id: &str, started_ms: i64) -> ReceiptHead {
    let tree = Tree::new("/".as_ref());
    let dmi = |name: &str| {
        let text = tree.text(&["sys/class/dmi/id/", name].concat());
        telling(&text).unwrap_or_default().to_owned()
    };
    ReceiptHead {
        order_id: order_id.to_owned(),
        command_id: context.id.to_string(),
        node_id: context.node_id.to_string(),
        boot_id: context.boot_id.clone(),
        system_serial: dmi("product_serial"),
        system_uuid: dmi("product_uuid").to_ascii_lowercase(),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms,
        finished_ms: context.trusted_ms(),
    }
}

/// Has a receipt signed, and tells it by an event that is never dropped; gives the SHA-256 of its payload.
///
/// # Errors
/// It cannot be signed, or the journal does not take it.
pub fn tell(context: &Context, purpose: Purpose, payload: Vec<u8>) -> Result<[u8; 32], Failure> {
    let sha256 = digest::sha256(&payload);
    let signed = context
        .signer
        .sign(purpose, payload)
        .map_err(|error| explained("ReceiptNotSigned", &error))?;
    let event = Event {
        body: Some(EventBody::Receipt(signed)),
        ..Event::default()
    };
    let entry = Entry::Event {
        class: Class::Result,
        body: event.encode_to_vec(),
    };
    let told = context.journal.commit_blocking(vec![entry]);
    told.map_err(|error| explained("StorageFault", &error))?;
    Ok(sha256)
}
