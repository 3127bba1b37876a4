//! The attestor provisioned: an OS that a deploy installed joins with the key that the ramdisk left on its disk.
//!
//! What the operator ordered, what the ramdisk swore to under its own certificate, and what the OS has all have to be of one
//! deploy: an order that says `join`, its signed receipt of a disk that was deployed, and the key whose digest stands in
//! it. A ramdisk alone can so make no node that nobody ordered, and neither can who only reads the receipt.

use bcd::attest::ids::is_ulid_of;
use bcd::crypto::digest;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::pin::Pin;
use bcd::deploy::receipt;
use bcd::proto::{
    DeployImageParams, DeployOutcome, DeployReceipt, Envelope, ProvisionedProof, ReceiptHead, Role,
};
use proto_gen::codec::Message;

use super::claims::Hardware;
use super::redeem::{Earlier, GRACE_MS, Terms, certify, reissued};
use super::refusal::Refusal;
use super::{Asked, Grant, Keys, Policy, role_name};
use crate::store::{Deployed, Node, Redemption, Store};

/// How long after its receipt came an OS may join for the first time.
pub const FRESH_MS: i64 = 7 * 86_400_000;

/// A proof whose signature holds, and which is for the request it came with.
pub(super) struct Proof {
    pub order_id: String,
    /// SHA-256 of the SubjectPublicKeyInfo.
    key: [u8; 32],
}

/// Reads what came with the request that has `csr_sha256`.
pub(super) fn read(signed: Option<&Envelope>, csr_sha256: &[u8; 32]) -> Result<Proof, Refusal> {
    let malformed = |what: &str| Refusal::Malformed(what.to_owned());
    let signed = signed.ok_or_else(|| malformed("it carries no provisioned_proof"))?;
    let [signature] = signed.signatures.as_slice() else {
        return Err(malformed("provisioned_proof has not exactly one signature"));
    };
    let key = &signature.public_key;
    let payload = envelope::verify(signed, Purpose::ProvisionedProof, &[key])
        .map_err(|_| Refusal::ProofUnsigned)?;
    let proof = ProvisionedProof::decode(payload)
        .map_err(|_| malformed("provisioned_proof cannot be decoded"))?;
    if proof.csr_sha256 != csr_sha256 {
        return Err(Refusal::ProofUnsigned);
    }
    if !is_ulid_of("ord", &proof.order_id) {
        return Err(malformed("provisioned_proof names no order"));
    }
    Ok(Proof {
        order_id: proof.order_id,
        key: digest::sha256(key),
    })
}

/// The deploy that left this key. What a stranger guesses is not recorded.
pub(super) fn deployed(
    store: &Store,
    keys: &Keys,
    proof: &Proof,
) -> Result<(Deployed, ReceiptHead, i64), Refusal> {
    let deployed = store
        .deployed(&proof.order_id)?
        .ok_or(Refusal::UnknownDeploy)?;
    let Some((signed, received_ms)) = &deployed.receipt else {
        return Err(Refusal::Provisioned(
            "the receipt of the deploy that installed this OS never came: join with a token, or deploy again",
        ));
    };
    let cas: Vec<Pin> = keys.trust.node_cas.iter().map(|ca| Pin(*ca)).collect();
    let verified = receipt::verify(signed, &cas, &[]).ok();
    let receipt = verified
        .filter(|verified| {
            verified.purpose == Purpose::DeployReceipt
                && Some(verified.role.as_str()) == role_name(Role::RAMDISK.0)
                && verified.head.node_id == deployed.node_id
                && verified.head.order_id == proof.order_id
        })
        .and_then(|verified| DeployReceipt::decode(&verified.payload).ok())
        .filter(|receipt| receipt.outcome == DeployOutcome::DEPLOYED)
        .filter(|receipt| receipt.join_key_sha256 == proof.key)
        .ok_or(Refusal::UnknownDeploy)?;
    let head = receipt.head.unwrap_or_default();
    let received_ms = *received_ms;
    Ok((deployed, head, received_ms))
}

/// What an OS is granted that has the key of this deploy.
pub(super) fn grant(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    proof: &Proof,
    (deployed, head, received_ms): &(Deployed, ReceiptHead, i64),
    now_ms: i64,
) -> Result<Grant, Refusal> {
    let files = DeployImageParams::decode(&deployed.params)
        .ok()
        .and_then(|params| params.files)
        .filter(|files| files.join)
        .ok_or(Refusal::Provisioned(
            "the order that installed this OS did not say that it may join",
        ))?;
    let ramdisk = store
        .node(&deployed.node_id)?
        .filter(|node| !node.deleted)
        .ok_or(Refusal::Provisioned(
            "the node of the ramdisk that installed this OS was deleted: deploy the machine again, or join with a token",
        ))?;
    if asked.role != Role::NODE.0 {
        return Err(Refusal::Provisioned(
            "an OS that was installed joins as a node: leave --role out",
        ));
    }
    if !asked.site.is_empty() && asked.site != ramdisk.site {
        return Err(Refusal::Provisioned(
            "this OS was installed at another site than its config.toml says",
        ));
    }
    if is_elsewhere(head, &asked.hardware) {
        return Err(Refusal::Provisioned(
            "this OS was installed on another machine, by its serial number or UUID: deploy this one, or join with a token",
        ));
    }
    let pool = match files.pool.is_empty() {
        true => &ramdisk.pool,
        false => &files.pool,
    };
    if let Some(joined) = store.provisioned(&proof.order_id)? {
        return again(store, asked, joined, (pool.as_str(), &ramdisk.site), now_ms);
    }
    if now_ms.saturating_sub(*received_ms) > FRESH_MS {
        return Err(Refusal::Provisioned(
            "this OS was installed more than 7 days ago and never joined: join with a token, or deploy again",
        ));
    }
    let earlier = earlier(store, deployed, asked, &ramdisk)?;
    let terms = Terms {
        pool,
        site: &ramdisk.site,
        credential: &proof.order_id,
        until_ms: received_ms.saturating_add(FRESH_MS + GRACE_MS),
    };
    let (grant, redemption) = certify(store, keys, policy, asked, &terms, earlier, now_ms)?;
    store.add_provisioned(&proof.order_id, deployed.mac, &redemption, now_ms)?;
    Ok(grant)
}

/// The same answer once more, for the same key.
fn again(
    store: &Store,
    asked: &Asked,
    joined: Redemption,
    (pool, site): (&str, &str),
    now_ms: i64,
) -> Result<Grant, Refusal> {
    if joined.spki_sha256 != asked.spki_sha256 {
        return Err(Refusal::Provisioned(
            "the OS of this deploy has joined already, with another key: deploy the machine again, or join with a token",
        ));
    }
    if now_ms >= joined.until_ms {
        return Err(Refusal::Provisioned(
            "this OS joined too long ago to be answered again: join with a token",
        ));
    }
    if store.node(&joined.node_id)?.is_none_or(|node| node.deleted) {
        return Err(Refusal::Provisioned(
            "the node that this OS joined as was deleted: join with a new token",
        ));
    }
    Ok(reissued(asked, joined, pool, site))
}

/// The node that the machine's OS was before, if it joined by this attestor too: the machine stays who it is.
fn earlier(
    store: &Store,
    deployed: &Deployed,
    asked: &Asked,
    ramdisk: &Node,
) -> Result<Earlier, Refusal> {
    let bound = match deployed.mac {
        Some(mac) => store.provisioned_node(mac)?,
        None => None,
    };
    let node = match bound {
        Some(id) => store.node(&id)?,
        None => None,
    };
    let node =
        node.filter(|node| !node.deleted && node.role == Role::NODE.0 && node.site == ramdisk.site);
    let named = asked.node_id.as_str();
    if !named.is_empty() && node.as_ref().is_none_or(|node| node.id != named) {
        return Err(Refusal::NotReclaimable(
            "the node named by --node-id is not the one that this machine's OS was: leave --node-id out",
        ));
    }
    Ok(node.map(|node| (node, "reclaimed by its machine, installed anew")))
}

/// Whether the machine says that it is another than the ramdisk's.
fn is_elsewhere(head: &ReceiptHead, claimed: &Hardware) -> bool {
    let differ = |sworn: &str, claimed: &Option<String>| {
        let claimed = claimed.as_deref().unwrap_or_default();
        !sworn.is_empty() && !claimed.is_empty() && !sworn.eq_ignore_ascii_case(claimed)
    };
    differ(&head.system_uuid, &claimed.uuid) || differ(&head.system_serial, &claimed.serial)
}

#[cfg(test)]
mod tests;
