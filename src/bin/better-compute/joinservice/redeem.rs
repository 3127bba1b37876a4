//! What a join is granted: a token's redemption, once and again for the same key; and the node with its certificate,
//! whatever it was granted for.
use super::{Asked, Attestor, Grant, Keys, Policy, Refusal, discovery, role_name};
use crate::ids;
use crate::store::{Node, Redemption, State, Store, Token};

/// How long past the end of what it was granted for a redemption is answered again.
pub(super) const GRACE_MS: i64 = 3_600_000;

/// What a key is granted for `token`, which it presented.
pub(super) fn grant(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    token: &Token,
    now_ms: i64,
) -> Result<Grant, Refusal> {
    if token.revoked_at_ms.is_some() {
        return Err(Refusal::Revoked);
    }
    let redemption = store.redemption(&token.id)?;
    if redemption
        .as_ref()
        .is_some_and(|redemption| redemption.spki_sha256 != asked.spki_sha256)
    {
        return Err(match token.mac {
            None => Refusal::UsedByOtherKey,
            Some(_) => Refusal::UsedByOtherBoot,
        });
    }
    let attestor = Attestor::of(token);
    if attestor != asked.attestor {
        return Err(Refusal::OtherAttestor {
            token: attestor.name(),
            asked: asked.attestor.name(),
        });
    }
    if token.role != asked.role {
        return Err(Refusal::OtherRole {
            token: role_name(token.role).unwrap_or("unknown"),
            asked: asked.role_name,
        });
    }
    if !asked.site.is_empty() && token.site != asked.site {
        return Err(Refusal::OtherSite {
            token: token.site.clone(),
            asked: asked.site.clone(),
        });
    }
    let assertion = asked.assertion.as_ref();
    let signed_at_ms = match token.mac {
        Some(mac) => Some(discovery::check(store, token, mac, assertion, &asked.macs)?),
        None => None,
    };
    if let Some(redemption) = redemption {
        return again(store, asked, token, redemption, now_ms);
    }
    if now_ms >= token.expires_at_ms {
        return Err(Refusal::Expired {
            ago_ms: now_ms.saturating_sub(token.expires_at_ms),
        });
    }
    if let Some(signed_at_ms) = signed_at_ms {
        discovery::check_age(signed_at_ms, now_ms)?;
    }
    issue(store, keys, policy, asked, token, now_ms)
}

/// The same answer once more, for the same key.
fn again(
    store: &Store,
    asked: &Asked,
    token: &Token,
    redemption: Redemption,
    now_ms: i64,
) -> Result<Grant, Refusal> {
    if now_ms >= redemption.until_ms {
        return Err(Refusal::RetriedTooLate);
    }
    if store
        .node(&redemption.node_id)?
        .is_none_or(|node| node.deleted)
    {
        return Err(Refusal::NodeDeleted);
    }
    Ok(reissued(asked, redemption, &token.pool, &token.site))
}

fn issue(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    token: &Token,
    now_ms: i64,
) -> Result<Grant, Refusal> {
    let earlier = earlier_node(store, asked, token)?;
    let terms = Terms {
        pool: &token.pool,
        site: &token.site,
        credential: &token.id,
        until_ms: token.expires_at_ms.saturating_add(GRACE_MS),
    };
    let (grant, redemption) = certify(store, keys, policy, asked, &terms, earlier, now_ms)?;
    store.add_redemption(&token.id, &redemption, now_ms)?;
    Ok(grant)
}

/// A node that a join continues, and why.
pub(super) type Earlier = Option<(Node, &'static str)>;

/// What a node gets besides its key.
pub(super) struct Terms<'a> {
    pub pool: &'a str,
    pub site: &'a str,
    /// The token's id, or the order's.
    pub credential: &'a str,
    /// Until when the same key is answered again.
    pub until_ms: i64,
}

/// Issues a certificate for the node `earlier`, or for a new one, and keeps that node.
pub(super) fn certify(
    store: &Store,
    keys: &Keys,
    policy: &Policy,
    asked: &Asked,
    terms: &Terms<'_>,
    earlier: Earlier,
    now_ms: i64,
) -> Result<(Grant, Redemption), Refusal> {
    let (node_id, reason) = match earlier {
        Some((node, reason)) => (node.id, reason),
        None => (ids::new("node", now_ms), "a new node"),
    };
    let spiffe_id = keys.spiffe_id(asked.role_name, &node_id);
    let issued = keys.issue(&asked.spki, &spiffe_id, policy.certificate_seconds, now_ms)?;
    let node = Node {
        id: node_id.clone(),
        role: asked.role,
        pool: terms.pool.to_owned(),
        site: terms.site.to_owned(),
        spki_sha256: asked.spki_sha256,
        token_id: terms.credential.to_owned(),
        joined_at_ms: now_ms,
        certificate_until_ms: issued.until_ms,
        cordoned: false,
        deleted: false,
        claims: asked.claims.clone(),
        hostname: asked.hostname.clone(),
        state: State::Joining,
        session_id: String::new(),
        daemon_version: asked.daemon_version.clone(),
        boot_id: String::new(),
        capabilities: Vec::new(),
        address: String::new(),
        last_seen_ms: None,
        next: None,
        shared_ms: None,
    };
    store.put_node(&node, &asked.hardware.rows())?;
    store.note_issuer(&node_id, &issued.issuer_sha256)?;
    let redemption = Redemption {
        spki_sha256: asked.spki_sha256,
        node_id: node_id.clone(),
        chain: issued.chain.clone(),
        until_ms: terms.until_ms,
    };
    let grant = Grant {
        node_id,
        pool: terms.pool.to_owned(),
        site: terms.site.to_owned(),
        role_name: asked.role_name,
        chain: issued.chain,
        outcome: "issued",
        reason,
    };
    Ok((grant, redemption))
}

/// The grant of a redemption once more.
pub(super) fn reissued(asked: &Asked, redemption: Redemption, pool: &str, site: &str) -> Grant {
    Grant {
        node_id: redemption.node_id,
        pool: pool.to_owned(),
        site: site.to_owned(),
        role_name: asked.role_name,
        chain: redemption.chain,
        outcome: "reissued",
        reason: "the same key asked again",
    }
}

/// The node this join continues, if it continues one.
///
/// The key is proof: a node that joins again with it stays who it is. Without the key, an earlier node
/// is taken over only with a token that allows it: the node the machine names, else the only one that
/// claims the same serial, the same UUID and a common MAC.
fn earlier_node(store: &Store, asked: &Asked, token: &Token) -> Result<Earlier, Refusal> {
    let fits =
        |node: &Node| node.role == token.role && node.pool == token.pool && node.site == token.site;
    let by_key = store
        .nodes_with_key(&asked.spki_sha256)?
        .into_iter()
        .find(|node| fits(node) && (asked.node_id.is_empty() || node.id == asked.node_id));
    if let Some(node) = by_key {
        return Ok(Some((node, "the node of this key joined again")));
    }
    if !asked.node_id.is_empty() {
        if !token.allow_reclaim {
            return Err(Refusal::NotReclaimable(
                "this token joins new nodes only: to take an existing node's id, make one with better-compute tokens create --allow-reclaim",
            ));
        }
        return match store.node(&asked.node_id)? {
            Some(node) if !node.deleted && fits(&node) => Ok(Some((node, "reclaimed by its id"))),
            Some(node) if !node.deleted => Err(Refusal::NotReclaimable(
                "the node named by --node-id has another role, pool or site than the token",
            )),
            _ => Err(Refusal::NotReclaimable(
                "there is no node with the id named by --node-id: see better-compute nodes list",
            )),
        };
    }
    let (Some(serial), Some(uuid), true) = (
        &asked.hardware.serial,
        &asked.hardware.uuid,
        token.allow_reclaim,
    ) else {
        return Ok(None);
    };
    let mut same = store.nodes_with_hardware(serial, uuid, &asked.hardware.macs)?;
    same.retain(fits);
    match (same.pop(), same.is_empty()) {
        (Some(node), true) => Ok(Some((node, "reclaimed by its hardware"))),
        _ => Ok(None),
    }
}
