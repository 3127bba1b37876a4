//! The attestor discovery: a machine that boots a ramdisk joins with a token made for its MAC, and with
//! its site agent's signed word that it booted there just now.
//!
//! What each of the two proves is in docs/decisions.md: neither is enough alone. The machine's own word
//! about its MAC proves nothing, and is asked for against mistakes.

use bcd::config::mac::Mac;
use bcd::crypto::envelope::{self, Purpose};
use bcd::crypto::pin::Pin;
use bcd::proto::{DiscoveryAssertion, Envelope};
use proto_gen::codec::Message;

use super::refusal::Refusal;
use crate::store::{SiteKey, Store, Token};

/// How old an assertion may be when its token is redeemed: a slow boot, and a gateway away for minutes.
pub const FRESH_MS: i64 = 15 * 60_000;
/// How far a site agent's clock may be ahead.
const AHEAD_MS: i64 = 5 * 60_000;
/// Signatures that are looked at, as in every envelope.
const SIGNATURES: usize = 16;

/// Checks all of an assertion but its age, and gives the time it was signed.
pub(super) fn check(
    store: &Store,
    token: &Token,
    mac: Mac,
    assertion: Option<&Envelope>,
    claimed: &[String],
) -> Result<i64, Refusal> {
    let signed = assertion.ok_or(Refusal::NoAssertion)?;
    let keys = keys(store, signed)?;
    let assertion = envelope::verify(signed, Purpose::DiscoveryAssertion, &keys.spkis)
        .map_err(|error| Refusal::AssertionUnsigned(error.to_string()))?;
    let assertion = DiscoveryAssertion::decode(assertion)
        .map_err(|error| Refusal::AssertionMalformed(error.to_string()))?;
    for site in [&keys.site, &assertion.site] {
        if *site != token.site {
            return Err(Refusal::AssertionOtherSite {
                token: token.site.clone(),
                assertion: shown(site),
            });
        }
    }
    if assertion.token_id != token.id {
        return Err(Refusal::AssertionOtherToken);
    }
    if Mac::from_bytes(&assertion.mac) != Some(mac) {
        return Err(Refusal::AssertionOtherMac(mac));
    }
    if !claimed.iter().any(|own| Mac::parse(own) == Some(mac)) {
        return Err(Refusal::OtherMachine(mac));
    }
    Ok(assertion.signed_at_ms)
}

/// What a site signed, fit for one line of a message.
fn shown(site: &str) -> String {
    site.chars()
        .take(128)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Checks an assertion's age, when the token is redeemed for the first time: a machine that asks again
/// for the same answer was in time.
pub(super) fn check_age(signed_at_ms: i64, now_ms: i64) -> Result<(), Refusal> {
    let age = now_ms.saturating_sub(signed_at_ms);
    if age > FRESH_MS {
        return Err(Refusal::AssertionStale { age_ms: age });
    }
    if age < -AHEAD_MS {
        return Err(Refusal::AssertionAhead { by_ms: -age });
    }
    Ok(())
}

/// The keys in use among those an envelope's signatures name, and the site they are of.
struct Keys {
    spkis: Vec<Vec<u8>>,
    site: String,
}

fn keys(store: &Store, signed: &Envelope) -> Result<Keys, Refusal> {
    let mut known: Vec<SiteKey> = Vec::new();
    for signature in signed.signatures.iter().take(SIGNATURES) {
        if let Ok(pin) = Pin::parse(&signature.keyid) {
            known.extend(store.site_key(&pin.0)?);
        }
    }
    let first = known.first().ok_or(Refusal::UnknownSiteKey)?;
    let site = first.site.clone();
    let revoked = Refusal::RevokedSiteKey(Pin(first.spki_sha256));
    // One envelope is one site's word.
    known.retain(|key| key.revoked_at_ms.is_none() && key.site == site);
    match known.is_empty() {
        true => Err(revoked),
        false => Ok(Keys {
            spkis: known.into_iter().map(|key| key.spki).collect(),
            site,
        }),
    }
}

/// Signs an assertion, as a site agent does. The key stays out of the envelope: it must be registered
/// anyway, and the kernel command line is short.
///
/// # Errors
/// There are no random bytes to sign with.
pub fn sign(
    assertion: &DiscoveryAssertion,
    key: &bcd::crypto::key::NodeKey,
) -> Result<Envelope, bcd::crypto::key::Error> {
    let mut signed = envelope::sign(assertion.encode_to_vec(), Purpose::DiscoveryAssertion, key)?;
    for signature in &mut signed.signatures {
        signature.public_key = Vec::new();
    }
    Ok(signed)
}

#[cfg(test)]
mod tests;
