//! The API's JSON: what it takes and what it answers. Times are Unix time in milliseconds.

// What nanoserde derives is written so.
#![allow(clippy::question_mark)]

use bcd::facts::view::FactsView;
use bcd::proto::{Facts, HardwareClaims};
use nanoserde::{DeJson, SerJson};
use proto_gen::codec::Message;

use crate::joinservice::role_name;
use crate::store::{Attempt, Booted, Duplicate, Node, Token};

#[derive(DeJson, SerJson)]
pub struct CreateToken {
    pub pool: String,
    pub site: String,
    /// `node`, `site` or `ramdisk`; `node` when absent.
    pub role: Option<String>,
    /// One hour when absent.
    #[nserde(rename = "ttlSeconds")]
    pub ttl_seconds: Option<i64>,
    #[nserde(rename = "allowReclaim")]
    pub allow_reclaim: Option<bool>,
    /// For the attestor discovery: the machine it is for, which joins as `ramdisk`.
    pub mac: Option<String>,
    /// So many alike; the answer is then [`CreatedTokens`].
    pub count: Option<u32>,
}

/// Tokens that are made at once: one transaction, and an answer of some hundred KiB.
pub const TOKENS_MAX: u32 = 1000;

/// The answer to the creation of several.
#[derive(DeJson, SerJson)]
pub struct CreatedTokens {
    pub tokens: Vec<CreatedToken>,
}

/// The answer to a creation: the only time the token is shown.
#[derive(DeJson, SerJson)]
pub struct CreatedToken {
    pub id: String,
    pub token: String,
    pub role: String,
    pub pool: String,
    pub site: String,
    #[nserde(rename = "allowReclaim")]
    pub allow_reclaim: bool,
    #[nserde(rename = "expiresAtMs")]
    pub expires_at_ms: i64,
    pub mac: Option<String>,
}

/// A site's key to be registered.
#[derive(DeJson, SerJson)]
pub struct AddSiteKey {
    pub site: String,
    /// What operators call it.
    pub name: Option<String>,
    /// SubjectPublicKeyInfo, DER in base64.
    #[nserde(rename = "publicKey")]
    pub public_key: String,
}

#[derive(DeJson, SerJson)]
pub struct SiteKeys {
    pub keys: Vec<SiteKeyView>,
}

#[derive(DeJson, SerJson)]
pub struct SiteKeyView {
    pub pin: String,
    pub site: String,
    pub name: String,
    #[nserde(rename = "addedAtMs")]
    pub added_at_ms: i64,
    #[nserde(rename = "revokedAtMs")]
    pub revoked_at_ms: Option<i64>,
}

#[derive(DeJson, SerJson)]
pub struct Machines {
    pub machines: Vec<MachineView>,
}

/// A machine in a list: its last boot's node, and of its hardware what fits.
#[derive(Default, DeJson, SerJson)]
pub struct MachineView {
    /// Its token was for this one.
    pub mac: String,
    /// How often it joined.
    pub boots: i64,
    pub node: NodeView,
    pub product: String,
    pub serial: String,
    /// `uefi` or `bios`; empty until the first facts come, as what follows is 0.
    #[nserde(rename = "bootMode")]
    pub boot_mode: String,
    pub cpus: u32,
    #[nserde(rename = "memoryBytes")]
    pub memory_bytes: u64,
    pub disks: usize,
    #[nserde(rename = "diskBytes")]
    pub disk_bytes: u64,
    pub gpus: usize,
}

/// A step of a rotation.
#[derive(DeJson, SerJson)]
pub struct RotateBody {
    /// `begin`, `switch` or `finish`.
    pub step: String,
    /// Also when nodes would be left behind.
    pub force: Option<bool>,
    /// Over how long renewals are spread; one hour when absent.
    #[nserde(rename = "withinSeconds")]
    pub within_seconds: Option<i64>,
}

#[derive(DeJson, SerJson)]
pub struct RotationsView {
    #[nserde(rename = "trustVersion")]
    pub trust_version: u64,
    pub rotations: Vec<RotationView>,
    #[nserde(rename = "retiredPins")]
    pub retired_pins: Vec<String>,
}

#[derive(DeJson, SerJson)]
pub struct RotationView {
    /// `serving-ca`, `node-ca`, `join-signing` or `join-encryption`.
    pub key: String,
    /// `begun` or `switched`; absent when no rotation is under way.
    pub phase: Option<String>,
    #[nserde(rename = "begunAtMs")]
    pub begun_at_ms: Option<i64>,
    /// The version of the trust bundle that first had the new key.
    #[nserde(rename = "sinceVersion")]
    pub since_version: Option<u64>,
    /// Of the key in use.
    pub pin: String,
    /// Of the key beside it.
    #[nserde(rename = "otherPin")]
    pub other_pin: Option<String>,
    /// How many nodes a finish would leave behind, and the first thousand of them.
    pub behind: u64,
    #[nserde(rename = "behindNodes")]
    pub behind_nodes: Vec<LaggardView>,
}

#[derive(DeJson, SerJson)]
pub struct LaggardView {
    pub id: String,
    pub hostname: String,
    pub state: String,
    #[nserde(rename = "lastSeenMs")]
    pub last_seen_ms: Option<i64>,
}

#[derive(DeJson, SerJson)]
pub struct Tokens {
    pub tokens: Vec<TokenView>,
}

#[derive(DeJson, SerJson)]
pub struct TokenView {
    pub id: String,
    /// `unused`, `redeemed`, `expired` or `revoked`.
    pub state: String,
    pub role: String,
    pub pool: String,
    pub site: String,
    /// The machine it is for: the attestor discovery.
    pub mac: Option<String>,
    #[nserde(rename = "allowReclaim")]
    pub allow_reclaim: bool,
    #[nserde(rename = "createdAtMs")]
    pub created_at_ms: i64,
    #[nserde(rename = "expiresAtMs")]
    pub expires_at_ms: i64,
    #[nserde(rename = "revokedAtMs")]
    pub revoked_at_ms: Option<i64>,
    #[nserde(rename = "nodeId")]
    pub node_id: Option<String>,
    /// How often a join with this token was refused.
    pub refusals: i64,
    /// The latest joins with it; only when one token is asked for.
    pub attempts: Option<Vec<AttemptView>>,
}

#[derive(DeJson, SerJson)]
pub struct AttemptView {
    #[nserde(rename = "atMs")]
    pub at_ms: i64,
    /// `issued`, `reissued` or `refused`.
    pub outcome: String,
    pub reason: String,
    #[nserde(rename = "keySha256")]
    pub key_sha256: String,
    #[nserde(rename = "nodeId")]
    pub node_id: Option<String>,
    pub hostname: String,
    pub address: String,
}

#[derive(DeJson, SerJson)]
pub struct Nodes {
    pub nodes: Vec<NodeView>,
    /// What to ask for the nodes that change after these.
    pub next: i64,
    /// Whether these are all nodes, and not the changed ones.
    pub whole: bool,
}

#[derive(Clone, Default, DeJson, SerJson)]
pub struct NodeView {
    pub id: String,
    /// `joining`, `adopting`, `connected` or `disconnected`; `deleted` only in a list of changes.
    pub state: String,
    pub cordoned: bool,
    pub role: String,
    pub pool: String,
    pub site: String,
    pub version: String,
    pub address: String,
    #[nserde(rename = "lastSeenMs")]
    pub last_seen_ms: Option<i64>,
    pub hostname: String,
    #[nserde(rename = "joinedAtMs")]
    pub joined_at_ms: i64,
    #[nserde(rename = "certificateUntilMs")]
    pub certificate_until_ms: i64,
    /// When two machines were last seen to use its identity.
    #[nserde(rename = "identitySharedAtMs")]
    pub identity_shared_at_ms: Option<i64>,
    /// Only when one node is asked for.
    pub details: Option<NodeDetails>,
}

#[derive(Clone, DeJson, SerJson)]
pub struct NodeDetails {
    #[nserde(rename = "tokenId")]
    pub token_id: String,
    #[nserde(rename = "keySha256")]
    pub key_sha256: String,
    /// Of a renewal's key that has opened no session yet, and when its certificate ends.
    #[nserde(rename = "pendingKeySha256")]
    pub pending_key_sha256: Option<String>,
    #[nserde(rename = "pendingUntilMs")]
    pub pending_until_ms: Option<i64>,
    #[nserde(rename = "sessionId")]
    pub session_id: String,
    #[nserde(rename = "bootId")]
    pub boot_id: String,
    pub capabilities: Vec<String>,
    pub claims: ClaimsView,
    /// Hardware that other nodes claim too.
    pub duplicates: Vec<DuplicateView>,
    /// What the machine last said it is made of, and when that came.
    pub facts: Option<FactsView>,
    #[nserde(rename = "factsReceivedMs")]
    pub facts_received_ms: Option<i64>,
    /// What it started from, held against the last deploy to its machine; absent where there was none.
    pub booted: Option<BootedView>,
}

/// What an installed system started from.
#[derive(Clone, DeJson, SerJson)]
pub struct BootedView {
    #[nserde(rename = "nodeId")]
    pub node_id: String,
    pub machine: String,
    #[nserde(rename = "orderId")]
    pub order_id: String,
    pub verdict: String,
    pub message: String,
    #[nserde(rename = "atMs")]
    pub at_ms: i64,
}

impl From<Booted> for BootedView {
    fn from(booted: Booted) -> Self {
        Self {
            node_id: booted.node_id,
            machine: booted.mac.to_string(),
            order_id: booted.order_id,
            verdict: booted.verdict,
            message: booted.message,
            at_ms: booted.at_ms,
        }
    }
}

/// What the machine says of itself; not proof.
#[derive(Clone, DeJson, SerJson)]
pub struct ClaimsView {
    #[nserde(rename = "machineId")]
    pub machine_id: String,
    #[nserde(rename = "systemVendor")]
    pub system_vendor: String,
    #[nserde(rename = "systemProduct")]
    pub system_product: String,
    #[nserde(rename = "systemSerial")]
    pub system_serial: String,
    #[nserde(rename = "systemUuid")]
    pub system_uuid: String,
    pub macs: Vec<String>,
    pub architecture: String,
    pub kernel: String,
    pub cpus: u32,
    #[nserde(rename = "memoryBytes")]
    pub memory_bytes: u64,
    #[nserde(rename = "hasTpm")]
    pub has_tpm: bool,
    /// Of the NIC it booted from.
    #[nserde(rename = "bootMac")]
    pub boot_mac: String,
}

#[derive(Clone, DeJson, SerJson)]
pub struct DuplicateView {
    /// `serial`, `uuid` or `mac`.
    pub kind: String,
    pub value: String,
    #[nserde(rename = "otherNode")]
    pub other_node: String,
}

#[derive(DeJson, SerJson)]
pub struct ErrorView {
    pub error: ErrorBody,
}

#[derive(DeJson, SerJson)]
pub struct ErrorBody {
    /// `INVALID_INPUT`, `NOT_FOUND` and others of that form.
    pub code: String,
    /// One line for a person.
    pub message: String,
}

fn role_text(role: i32) -> String {
    role_name(role).unwrap_or("unknown").to_owned()
}

impl TokenView {
    pub fn new(token: &Token, now_ms: i64) -> Self {
        Self {
            id: token.id.clone(),
            state: token.state(now_ms).name().to_owned(),
            role: role_text(token.role),
            pool: token.pool.clone(),
            site: token.site.clone(),
            mac: token.mac.map(|mac| mac.to_string()),
            allow_reclaim: token.allow_reclaim,
            created_at_ms: token.created_at_ms,
            expires_at_ms: token.expires_at_ms,
            revoked_at_ms: token.revoked_at_ms,
            node_id: token.node_id.clone(),
            refusals: token.refusals,
            attempts: None,
        }
    }
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        Self {
            at_ms: attempt.at_ms,
            outcome: attempt.outcome.to_owned(),
            reason: attempt.reason,
            key_sha256: bcd::crypto::digest::hex(&attempt.spki_sha256),
            node_id: attempt.node_id,
            hostname: attempt.hostname,
            address: attempt.address,
        }
    }
}

impl NodeView {
    pub fn new(node: &Node) -> Self {
        Self {
            id: node.id.clone(),
            state: match node.deleted {
                true => "deleted".to_owned(),
                false => node.state.name().to_owned(),
            },
            cordoned: node.cordoned,
            role: role_text(node.role),
            pool: node.pool.clone(),
            site: node.site.clone(),
            version: node.daemon_version.clone(),
            address: node.address.clone(),
            last_seen_ms: node.last_seen_ms,
            hostname: node.hostname.clone(),
            joined_at_ms: node.joined_at_ms,
            certificate_until_ms: node.certificate_until_ms,
            identity_shared_at_ms: node.shared_ms,
            details: None,
        }
    }

    /// `facts` is encoded, with the time it came.
    pub fn with_details(
        node: &Node,
        duplicates: Vec<Duplicate>,
        facts: Option<(Vec<u8>, i64)>,
    ) -> Self {
        let claims = HardwareClaims::decode(&node.claims).unwrap_or_default();
        let facts = facts.and_then(|(bytes, at_ms)| Some((Facts::decode(&bytes).ok()?, at_ms)));
        let (facts, facts_received_ms) = facts.unzip();
        let (pending_key, pending_until_ms) = node.next.unzip();
        let mut view = Self::new(node);
        view.details = Some(NodeDetails {
            token_id: node.token_id.clone(),
            key_sha256: bcd::crypto::digest::hex(&node.spki_sha256),
            pending_key_sha256: pending_key.map(|key| bcd::crypto::digest::hex(&key)),
            pending_until_ms,
            session_id: node.session_id.clone(),
            boot_id: node.boot_id.clone(),
            capabilities: node.capabilities.clone(),
            claims: ClaimsView {
                machine_id: claims.machine_id,
                system_vendor: claims.system_vendor,
                system_product: claims.system_product,
                system_serial: claims.system_serial,
                system_uuid: claims.system_uuid,
                macs: claims.macs,
                architecture: claims.architecture,
                kernel: claims.kernel,
                cpus: claims.cpus,
                memory_bytes: claims.memory_bytes,
                has_tpm: claims.has_tpm,
                boot_mac: claims.boot_mac,
            },
            duplicates: duplicates
                .into_iter()
                .map(|duplicate| DuplicateView {
                    kind: duplicate.kind,
                    value: duplicate.value,
                    other_node: duplicate.other_node,
                })
                .collect(),
            facts: facts.map(FactsView::from),
            facts_received_ms,
            booted: None,
        });
        view
    }
}
