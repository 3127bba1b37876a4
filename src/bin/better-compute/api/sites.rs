//! The keys of sites: registered, listed, revoked.

use bcd::crypto::pin::Pin;
use bcd::crypto::spki::PublicKey;
use bcd::crypto::{base64, digest, json};
use bcd::wire::http1::server::Answer;
use nanoserde::{DeJson, SerJson};

use super::views::{AddSiteKey, SiteKeyView, SiteKeys};
use super::{Api, BODY_MAX, Refused, answer};
use crate::ids;
use crate::registry::now_ms;
use crate::store::{NewSiteKey, SiteKey};

/// Bytes of what operators call a key.
const NAME_MAX: usize = 128;

impl Api {
    pub(super) async fn list_site_keys(&self) -> Result<Answer, Refused> {
        let keys = self
            .registry
            .with(|records| records.store.site_keys())
            .await?;
        let keys = keys.iter().map(SiteKeyView::new).collect();
        Ok(answer(200, SiteKeys { keys }.serialize_json()))
    }

    /// Registers a key. The same one again changes nothing; for another site, or once revoked, it is
    /// refused.
    pub(super) async fn add_site_key(&self, body: &[u8]) -> Result<Answer, Refused> {
        let asked = json::check(body, BODY_MAX, 4)
            .ok()
            .and_then(|text| AddSiteKey::deserialize_json(text).ok())
            .ok_or_else(|| {
                Refused::invalid(
                    "the body is not the JSON of a site key: it needs site and publicKey",
                )
            })?;
        if !ids::is_chosen(&asked.site) {
            return Err(Refused::invalid(
                "site is letters, digits, '.', '_' and '-', at most 128, and starts with a letter or digit",
            ));
        }
        let name = asked.name.unwrap_or_default();
        if name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(Refused::invalid("name is at most 128 bytes on one line"));
        }
        let spki = base64::decode(&asked.public_key)
            .ok()
            .filter(|spki| matches!(PublicKey::parse(spki), Ok(PublicKey::P256(_))))
            .ok_or_else(|| {
                Refused::invalid("publicKey is the base64 of a P-256 SubjectPublicKeyInfo")
            })?;
        let (site, now) = (asked.site.clone(), now_ms());
        let key = self
            .registry
            .with(move |records| {
                records.store.add_site_key(&NewSiteKey {
                    spki_sha256: digest::sha256(&spki),
                    spki: &spki,
                    site: &site,
                    name: &name,
                    added_at_ms: now,
                })
            })
            .await?;
        if key.site != asked.site {
            return Err(Refused::invalid(format!(
                "this key is registered for site {} already: a site agent has a key of its own",
                key.site
            )));
        }
        if key.revoked_at_ms.is_some() {
            return Err(Refused::invalid(
                "this key is revoked, and stays so: make a new one",
            ));
        }
        Ok(answer(201, SiteKeyView::new(&key).serialize_json()))
    }

    /// Revokes the key whose SHA-256 is `id`, in hex.
    pub(super) async fn revoke_site_key(&self, id: &str) -> Result<Answer, Refused> {
        let missing = || Refused::not_found("there is no such site key");
        let wanted = bcd::config::values::hex_digest(id).ok_or_else(missing)?;
        let now = now_ms();
        let key: Option<SiteKey> = self
            .registry
            .with(move |records| {
                records.store.revoke_site_key(&wanted, now)?;
                records.store.site_key(&wanted)
            })
            .await?;
        let key = key.ok_or_else(missing)?;
        Ok(answer(200, SiteKeyView::new(&key).serialize_json()))
    }
}

impl SiteKeyView {
    fn new(key: &SiteKey) -> Self {
        Self {
            pin: Pin(key.spki_sha256).to_string(),
            site: key.site.clone(),
            name: key.name.clone(),
            added_at_ms: key.added_at_ms,
            revoked_at_ms: key.revoked_at_ms,
        }
    }
}
