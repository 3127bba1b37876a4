//! What commands on one-time orders have in common: who may run them and on whose word, the claim before the first
//! byte, and the receipt at the end.
use super::kinds::{Kind, UNSUPPORTED, explained};
use super::machine::{Failure, Outcome};
use super::parting::Writing;
use super::signed;
use super::work::Context;
use crate::crypto::digest;
use crate::crypto::envelope::Purpose;
use crate::crypto::pin::Pin;
use crate::deploy::disk;
use crate::facts::firmware::telling;
use crate::facts::tree::Tree;
use crate::journal::{Class, Entry};
use crate::proto::{Command, Disk, DiskTarget, Event, EventBody, Message, ReceiptHead, Role};
use crate::sys::block::{Block, CALL};
use crate::sys::patience::{Lost, Patience};
use crate::sys::stop::Stop;

/// The reason when a disk does not answer, and what a person is told of it.
pub const HANGS: &str = "DiskHangs";
pub const NO_ANSWER: &str = "it does not answer any more: look into the kernel's log, restart the machine, or take the disk out";

/// Whether a command's work may begin here: one of a kind that is done on orders needs a ramdisk, and a signed order for
/// this node, of which this gives the id.
///
/// # Errors
/// What becomes of the command instead.
pub fn permit(
    kind: &Kind,
    command: &Command,
    (role, node_id): (Role, &str),
    signers: &[Pin],
    now_ms: u64,
) -> Result<Option<String>, Outcome> {
    if !kind.ordered {
        return Ok(None);
    }
    if role != Role::RAMDISK {
        return Err(Outcome::Unsupported(Failure::new(
            UNSUPPORTED,
            "this is done in a ramdisk alone: boot this machine into it",
        )));
    }
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let order = signed::verify(command, signers, node_id, now_ms);
    order
        .map(Some)
        .map_err(|refused| Outcome::Failed(refused.failure()))
}

/// The disk that is meant, held: nobody mounts or claims it from here on. There is `patience` for each call to it.
///
/// # Errors
/// It is not there, is another now, or is in use.
pub fn hold(patience: &Patience, target: &DiskTarget) -> Result<(Disk, Block), Failure> {
    patience.asks(&target.stable_name);
    let tree = Tree::new("/".as_ref());
    let held = patience.during(CALL, || {
        let found = disk::find(&tree, &disk::list(&tree), target);
        Ok(found.and_then(|found| disk::hold(&tree, &found).map(|block| (found, block))))
    });
    match held {
        Ok(Ok((found, block))) => Ok((found, block.with(patience))),
        Ok(Err(refusal)) => {
            let name = &target.stable_name;
            let message = [name, ": ", &refusal.to_string()].concat();
            Err(Failure::new(refusal.word(), message))
        }
        Err(error) => Err(explained(HANGS, &error)),
    }
}

/// Does what asks a disk on a thread that is left behind when the disk hangs: `patience` sees what it asks. `work` is given its
/// own way of being stopped.
///
/// # Errors
/// It hangs, or there is no thread.
pub fn apart<T: Send + 'static>(
    context: &Context,
    patience: &Patience,
    work: impl FnOnce(&mut Context) -> T + Send + 'static,
) -> Result<T, Failure> {
    let (mut its, halt) = with_own_stop(context)?;
    let done = patience.run([&context.stop, &halt], move || work(&mut its));
    done.map_err(left_behind)
}

fn with_own_stop(context: &Context) -> Result<(Context, Stop), Failure> {
    let halt = Stop::new().map_err(|error| explained("InternalError", &error))?;
    let mut its = context.clone();
    its.stop = halt.clone();
    Ok((its, halt))
}

fn left_behind(lost: Lost) -> Failure {
    match lost {
        Lost::Hangs(disk) => Failure::new(HANGS, [&disk, ": ", NO_ANSWER].concat()),
        Lost::Thread(error) => explained("InternalError", &error),
    }
}

/// Makes the order this command's own, so that it may write; the machine does not go down before what is given is dropped.
///
/// # Errors
/// It is not the one that was signed, or is not granted. Nothing may be written.
pub fn claim(context: &Context, order_id: &str) -> Result<Writing, Failure> {
    let leaving = || Failure::new("Busy", "the machine is about to go down");
    let writing = context.parting.writing().ok_or_else(leaving)?;
    grant(context, order_id)?;
    Ok(writing)
}

/// As [`claim`], for what writes nothing.
///
/// # Errors
/// As there.
pub fn grant(context: &Context, order_id: &str) -> Result<(), Failure> {
    if context.order.as_deref() != Some(order_id) {
        return Err(Failure::new(
            "OrderMismatch",
            "the params name another order than the one that is signed; nothing was written",
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
