//! Renewals: a new certificate for a node that has one.
//!
//! The request is signed with the node's present key, which proves the node whether its certificate has
//! ended or not; how long after its end one is still renewed is the operator's policy. The new key stands
//! beside the present one until it has shown that the node has it: by opening a session, or by signing
//! the next renewal. So a reply that is lost costs nothing, and no instant has a node without a key.

use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::pin::Pin;
use bcd::crypto::{csr, digest};
use bcd::proto::{RenewRequest, Renewal as Asking};
use proto_gen::codec::Message;

use super::{CSR_MAX, Grant, Keys, Policy, REQUEST_MAX, Refusal, TEXT_MAX, role_name};
use crate::store::{Issued, Renewal, Store, StoreError};

/// A renewal that holds under the key it carries.
pub(super) struct Asked {
    node_id: String,
    /// SHA-256 of the signing key's SubjectPublicKeyInfo.
    signer_sha256: [u8; 32],
    pub(super) csr_sha256: [u8; 32],
    spki: Vec<u8>,
    spki_sha256: [u8; 32],
}

/// Everything that can be said of a request without the database.
pub(super) fn read(bytes: &[u8]) -> Result<Asked, Refusal> {
    let malformed = |what: &str| Refusal::MalformedRenewal(what.to_owned());
    if bytes.len() > REQUEST_MAX {
        return Err(malformed("it is over 64 KiB"));
    }
    let undecodable = |error| Refusal::MalformedRenewal(format!("it cannot be decoded: {error}"));
    let request = RenewRequest::decode(bytes).map_err(undecodable)?;
    let envelope = request.signed.unwrap_or_default();
    // Whose key it must be, the payload says; that it holds under the key it carries comes first.
    let signer = envelope
        .signatures
        .first()
        .map(|signature| Pin::of_spki(&signature.public_key))
        .ok_or(Refusal::Unsigned)?;
    let payload = envelope::verify_pinned(&envelope, Purpose::Renewal, &[signer])
        .map_err(|_| Refusal::Unsigned)?;
    let asking = Asking::decode(payload).map_err(undecodable)?;
    if asking.node_id.len() > TEXT_MAX || asking.daemon_version.len() > TEXT_MAX {
        return Err(malformed("a text is over 256 bytes"));
    }
    if asking.csr.len() > CSR_MAX {
        return Err(malformed("csr is over 4 KiB"));
    }
    let spki = csr::verify(&asking.csr).map_err(|error| Refusal::BadCsr(error.to_string()))?;
    Ok(Asked {
        node_id: asking.node_id,
        signer_sha256: signer.0,
        csr_sha256: digest::sha256(&asking.csr),
        spki_sha256: digest::sha256(&spki),
        spki,
    })
}

/// Decides inside one transaction; a refusal is a decision too, and its record is kept.
pub(super) fn decide(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    address: &str,
    now_ms: i64,
) -> Result<Result<(i32, Grant), Refusal>, StoreError> {
    let decision = match grant(store, keys, policy, asked, now_ms) {
        Err(Refusal::Store(error)) => return Err(error),
        // A stranger's: logged, not kept.
        Err(refusal @ (Refusal::UnknownNode | Refusal::Replaced)) => return Ok(Err(refusal)),
        decision => decision,
    };
    let (outcome, reason) = match &decision {
        Ok((_, grant)) => (grant.outcome, grant.reason.to_owned()),
        Err(refusal) => ("refused", refusal.to_string()),
    };
    store.record_renewal(&Renewal {
        at_ms: now_ms,
        node_id: asked.node_id.clone(),
        spki_sha256: asked.spki_sha256,
        outcome,
        reason,
        address: address.to_owned(),
    })?;
    Ok(decision)
}

fn grant(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    now_ms: i64,
) -> Result<(i32, Grant), Refusal> {
    let (Some(node), Some(mut held)) = (
        store.node(&asked.node_id)?,
        store.node_keys(&asked.node_id)?,
    ) else {
        return Err(Refusal::UnknownNode);
    };
    let by_next = held
        .next
        .as_ref()
        .is_some_and(|next| next.spki_sha256 == asked.signer_sha256);
    if !by_next && held.spki_sha256 != asked.signer_sha256 {
        return Err(match node.deleted {
            true => Refusal::UnknownNode,
            false => Refusal::Replaced,
        });
    }
    if node.deleted {
        return Err(Refusal::Deleted);
    }
    if by_next {
        // The node signs with the renewed key: it has it, and moved on to it.
        store.promote_next(&node.id, &asked.signer_sha256)?;
        held = store.node_keys(&node.id)?.unwrap_or(held);
    }
    if asked.spki_sha256 == held.spki_sha256 {
        return Err(Refusal::SameKey);
    }
    let over_ms = now_ms.saturating_sub(held.until_ms);
    if over_ms >= 0 && over_ms >= policy.renewal_grace_ms {
        return Err(Refusal::RenewedTooLate {
            ago_ms: over_ms,
            grace_ms: policy.renewal_grace_ms,
        });
    }
    let role_name = role_name(node.role).ok_or(Refusal::UnknownRole)?;
    let granted = |chain, outcome, reason| Grant {
        node_id: node.id.clone(),
        pool: node.pool.clone(),
        site: node.site.clone(),
        role_name,
        chain,
        outcome,
        reason,
    };
    // The same key again gets the same certificate, while that is good for something.
    let half_over = policy.certificate_seconds.saturating_mul(500);
    if let Some(next) = &held.next
        && next.spki_sha256 == asked.spki_sha256
        && next.issuer_sha256 == keys.issuer_sha256
        && next.until_ms.saturating_sub(now_ms) > half_over
    {
        let chain = next.chain.clone();
        return Ok((
            node.role,
            granted(chain, "reissued", "the same key asked again"),
        ));
    }
    let is_next = held
        .next
        .as_ref()
        .is_some_and(|next| next.spki_sha256 == asked.spki_sha256);
    // A request of the past, played back, must not take the place of what came after it.
    if !is_next && store.was_renewed_for(&node.id, &asked.spki_sha256)? {
        return Err(Refusal::Superseded);
    }
    let next = keys.issue(
        &asked.spki,
        &keys.spiffe_id(role_name, &node.id),
        policy.certificate_seconds,
        now_ms,
    )?;
    store.set_next(&node.id, &next)?;
    Ok((node.role, granted(next.chain, "issued", "renewed")))
}

impl Keys {
    /// A certificate for `spki` under the node CA in use.
    pub(super) fn issue(
        &self,
        spki: &[u8],
        spiffe_id: &str,
        seconds: i64,
        now_ms: i64,
    ) -> Result<Issued, Refusal> {
        let leaf = self
            .issuer
            .leaf(spki, spiffe_id, now_ms, seconds)
            .map_err(|_| Refusal::Fault("issue a certificate"))?;
        Ok(Issued {
            spki_sha256: digest::sha256(spki),
            chain: vec![leaf],
            until_ms: now_ms.saturating_add(seconds.saturating_mul(1000)),
            issuer_sha256: self.issuer_sha256,
        })
    }
}

#[cfg(test)]
mod tests;
