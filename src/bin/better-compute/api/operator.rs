//! The operator's half of the API, under `{basePath}/v1`: its routes, tokens and nodes. Site keys, machines, commands,
//! specs and events have files of their own.

use bcd::config::mac::Mac;
use bcd::crypto::json;
use bcd::proto::Role;
use bcd::wire::http1::server::{Answer, Request};
use nanoserde::{DeJson, SerJson};

use super::query::Query;
use super::views::{
    BootedView, CreateToken, CreatedToken, CreatedTokens, NodeView, Nodes, TOKENS_MAX, TokenView,
    Tokens,
};
use super::{Api, BODY_MAX, Refused, answer};
use crate::contract;
use crate::ids;
use crate::joinservice::{role_name, role_named, token};
use crate::json::{Json, Object};
use crate::registry::{Records, RegistryError, now_ms};
use crate::store::{NewToken, StoreError};

const TTL_DEFAULT_SECONDS: i64 = 3600;
const TTL_MAX_SECONDS: i64 = 30 * 86_400;
/// How many attempts one token is shown with.
const ATTEMPTS_SHOWN: u32 = 100;
const NO_TOKEN: &str = "there is no such token";
const NO_NODE: &str = "there is no such node";

impl From<RegistryError> for Refused {
    fn from(error: RegistryError) -> Self {
        Self(503, "UNAVAILABLE", bcd::cli::chain(&error))
    }
}

impl Api {
    /// Answers an authenticated request; `path` is what follows `{basePath}/v1/`.
    pub(super) async fn operate(&self, request: &Request, path: &str) -> Result<Answer, Refused> {
        let mut parts = path.split('/');
        let route = (parts.next(), parts.next(), parts.next(), parts.next());
        match (request.method.as_str(), route) {
            ("GET" | "HEAD", (Some("tokens"), None, ..)) => self.list_tokens().await,
            ("POST", (Some("tokens"), None, ..)) => self.create_token(&request.body).await,
            ("GET" | "HEAD", (Some("tokens"), Some(id), None, _)) => self.show_token(id).await,
            ("POST", (Some("tokens"), Some(id), Some("revoke"), None)) => {
                let now = now_ms();
                self.change(id, NO_TOKEN, move |records, id| {
                    records.store.revoke_token(id, now)
                })
                .await?;
                self.show_token(id).await
            }
            ("GET" | "HEAD", (Some("site-keys"), None, ..)) => self.list_site_keys().await,
            ("POST", (Some("site-keys"), None, ..)) => self.add_site_key(&request.body).await,
            ("POST", (Some("site-keys"), Some(id), Some("revoke"), None)) => {
                self.revoke_site_key(id).await
            }
            ("GET" | "HEAD", (Some("machines"), None, ..)) => self.list_machines().await,
            ("GET" | "HEAD", (Some("machines"), Some(mac), None, _)) => {
                self.show_machine(mac).await
            }
            ("POST", (Some("machines"), Some(mac), Some("deploy"), None)) => {
                self.deploy_machine(mac, &request.body).await
            }
            ("POST", (Some("machines"), Some(mac), Some("wipe"), None)) => {
                self.wipe_machine(mac, &request.body).await
            }
            ("POST", (Some("machines"), Some(mac), Some("boot"), None)) => {
                self.boot_machine(mac, &request.body).await
            }
            ("GET" | "HEAD", (Some("receipts"), None, ..)) => {
                self.list_receipts(&request.query).await
            }
            ("GET" | "HEAD", (Some("receipts"), Some(order), None, _)) => {
                self.show_receipt(order).await
            }
            ("GET" | "HEAD", (Some("pki"), Some("rotations"), None, _)) => {
                self.list_rotations().await
            }
            ("POST", (Some("pki"), Some("rotations"), Some(key), None)) => {
                self.rotate(key, &request.body).await
            }
            ("GET" | "HEAD", (Some("nodes"), None, ..)) => self.list_nodes(&request.query).await,
            ("GET" | "HEAD", (Some("nodes"), Some(id), None, _)) => self.show_node(id).await,
            ("POST", (Some("nodes"), Some(id), Some(what @ ("cordon" | "uncordon")), None)) => {
                let cordoned = what == "cordon";
                self.change(id, NO_NODE, move |records, id| {
                    records.store.set_cordoned(id, cordoned)
                })
                .await?;
                self.gateway.news.ring();
                self.show_node(id).await
            }
            ("DELETE", (Some("nodes"), Some(id), None, _)) => {
                let now = now_ms();
                self.change(id, NO_NODE, move |records, id| {
                    records.store.delete_node(id, now)
                })
                .await?;
                self.gateway.node_deleted(id);
                self.gateway.news.ring();
                Ok(answer(200, "{}".to_owned()))
            }
            ("GET" | "HEAD", (Some("nodes"), Some(id), Some("facts"), None)) => {
                self.show_facts(id).await
            }
            ("GET" | "HEAD", (Some("nodes"), Some(id), Some("spec"), None)) => {
                self.show_spec(id).await
            }
            ("POST", (Some("nodes"), Some(id), Some("spec"), None)) => {
                self.change_spec(id, &request.body).await
            }
            ("POST", (Some("nodes"), Some(id), Some("commands"), None)) => {
                self.make_command(id, &request.body).await
            }
            ("GET" | "HEAD", (Some("commands"), None, ..)) => {
                self.list_commands(&request.query).await
            }
            ("GET" | "HEAD", (Some("commands"), Some(id), None, _)) => {
                self.show_command(id, &request.query).await
            }
            ("POST", (Some("commands"), Some(id), Some("cancel"), None)) => {
                self.cancel_command(id).await
            }
            ("GET" | "HEAD", (Some("commands"), Some(id), Some("output"), None)) => {
                self.show_output(id, &request.query).await
            }
            ("GET" | "HEAD", (Some("events"), None, ..)) => self.list_events(&request.query).await,
            (_, (Some("events") | Some("commands"), None, ..)) => Err(Refused::method("GET")),
            (_, (Some("commands"), Some(_), None, _)) => Err(Refused::method("GET")),
            (_, (Some("machines"), Some(_), Some("deploy" | "wipe" | "boot"), None)) => {
                Err(Refused::method("POST"))
            }
            (_, (Some("receipts"), None, ..)) | (_, (Some("receipts"), Some(_), None, _)) => {
                Err(Refused::method("GET"))
            }
            (_, (Some("nodes"), Some(_), Some("spec"), None)) => {
                Err(Refused::method("GET or POST"))
            }
            (_, (Some("nodes"), Some(_), Some("commands"), None)) => Err(Refused::method("POST")),
            (_, (Some("tokens") | Some("site-keys"), None, ..)) => {
                Err(Refused::method("GET or POST"))
            }
            (_, (Some("site-keys"), Some(_), Some("revoke"), None)) => Err(Refused::method("POST")),
            (_, (Some("machines"), None, ..)) | (_, (Some("machines"), Some(_), None, _)) => {
                Err(Refused::method("GET"))
            }
            (_, (Some("tokens"), Some(_), Some("revoke"), None)) => Err(Refused::method("POST")),
            (_, (Some("nodes"), None, ..)) => Err(Refused::method("GET")),
            (_, (Some("nodes"), Some(_), None, _)) => Err(Refused::method("GET or DELETE")),
            _ => Err(Refused::not_found("there is nothing at this path")),
        }
    }

    async fn create_token(&self, body: &[u8]) -> Result<Answer, Refused> {
        let asked = json::check(body, BODY_MAX, 4)
            .ok()
            .and_then(|text| CreateToken::deserialize_json(text).ok())
            .ok_or_else(|| {
                Refused::invalid("the body is not the JSON of a token: it needs pool and site")
            })?;
        let rule =
            "is letters, digits, '.', '_' and '-', at most 128, and starts with a letter or digit";
        if !ids::is_chosen(&asked.pool) {
            return Err(Refused::invalid(format!("pool {rule}")));
        }
        if !ids::is_chosen(&asked.site) {
            return Err(Refused::invalid(format!("site {rule}")));
        }
        let mac = match &asked.mac {
            None => None,
            Some(text) => Some(Mac::parse(text).ok_or_else(|| {
                Refused::invalid(
                    "mac is the address of one network card, such as 52:54:00:12:34:56",
                )
            })?),
        };
        let default = if mac.is_some() { "ramdisk" } else { "node" };
        let role = role_named(asked.role.as_deref().unwrap_or(default))
            .ok_or_else(|| Refused::invalid("role is one of node, site and ramdisk"))?;
        if mac.is_some() && role != Role::RAMDISK.0 {
            return Err(Refused::invalid(
                "a token with a mac is for discovery, whose role is ramdisk",
            ));
        }
        let allow_reclaim = asked.allow_reclaim.unwrap_or(false);
        if mac.is_some() && allow_reclaim {
            return Err(Refused::invalid(
                "a token with a mac has no allowReclaim: each boot of a ramdisk is a new node",
            ));
        }
        let ttl = asked.ttl_seconds.unwrap_or(TTL_DEFAULT_SECONDS);
        if !(1..=TTL_MAX_SECONDS).contains(&ttl) {
            return Err(Refused::invalid("ttl is from 1s to 30d"));
        }
        let count = asked.count.unwrap_or(1);
        if !(1..=TOKENS_MAX).contains(&count) || (mac.is_some() && count > 1) {
            return Err(Refused::invalid(format!(
                "count is from 1 to {TOKENS_MAX}, and 1 for a token with a mac"
            )));
        }
        let now = now_ms();
        let expires_at_ms = now + ttl * 1000;
        let minted: Vec<_> = (0..count).map(|_| token::mint(now)).collect();
        let created = minted.iter().map(|minted| CreatedToken {
            id: minted.id.clone(),
            token: minted.token.to_string(),
            role: role_name(role).unwrap_or("unknown").to_owned(),
            pool: asked.pool.clone(),
            site: asked.site.clone(),
            allow_reclaim,
            expires_at_ms,
            mac: mac.map(|mac| mac.to_string()),
        });
        let created: Vec<_> = created.collect();
        let (pool, site) = (asked.pool, asked.site);
        self.registry
            .with(move |records| {
                records.store.together(|store| {
                    minted.iter().try_for_each(|minted| {
                        store.add_token(&NewToken {
                            id: &minted.id,
                            digest: minted.digest,
                            role,
                            pool: &pool,
                            site: &site,
                            mac,
                            allow_reclaim,
                            created_at_ms: now,
                            expires_at_ms,
                        })
                    })
                })
            })
            .await?;
        let text = match (asked.count, created.first()) {
            (None, Some(token)) => token.serialize_json(),
            _ => CreatedTokens { tokens: created }.serialize_json(),
        };
        Ok(answer(201, text))
    }

    async fn list_tokens(&self) -> Result<Answer, Refused> {
        let tokens = self.registry.with(|records| records.store.tokens()).await?;
        let now = now_ms();
        let tokens = tokens
            .iter()
            .map(|token| TokenView::new(token, now))
            .collect();
        Ok(answer(200, Tokens { tokens }.serialize_json()))
    }

    async fn show_token(&self, id: &str) -> Result<Answer, Refused> {
        let wanted = id.to_owned();
        let found = self
            .registry
            .with(move |records| {
                let attempts = records.store.attempts(&wanted, ATTEMPTS_SHOWN)?;
                Ok(records.store.token(&wanted)?.map(|token| (token, attempts)))
            })
            .await?;
        let (token, attempts) = found.ok_or_else(|| Refused::not_found(NO_TOKEN))?;
        let mut view = TokenView::new(&token, now_ms());
        view.attempts = Some(attempts.into_iter().map(Into::into).collect());
        Ok(answer(200, view.serialize_json()))
    }

    /// All nodes; with `after`, those that changed since, the deleted ones too. With `wait`, once there
    /// is one.
    async fn list_nodes(&self, query: &str) -> Result<Answer, Refused> {
        let query = Query::new(query, &["after", "wait"])?;
        let after = query.number("after", i64::MAX)?;
        let shown = self
            .read_until(query.wait()?, || async move {
                let (nodes, next) = self
                    .registry
                    .with(move |records| {
                        let next = records.store.last_change()?;
                        let nodes = match after {
                            // A list from before the records were restored from a backup.
                            Some(after) if after <= next => records.changed_nodes(after)?,
                            _ => records.nodes()?,
                        };
                        Ok((nodes, next))
                    })
                    .await?;
                let whole = after.is_none_or(|after| after > next);
                let news = whole || !nodes.is_empty();
                let nodes = nodes.iter().map(NodeView::new).collect();
                let shown = Nodes { nodes, next, whole };
                Ok((shown, news))
            })
            .await?;
        Ok(answer(200, shown.serialize_json()))
    }

    async fn show_node(&self, id: &str) -> Result<Answer, Refused> {
        let wanted = id.to_owned();
        let found = self
            .registry
            .with(move |records| {
                let duplicates = records.store.duplicates(&wanted)?;
                let facts = records.store.facts(&wanted)?;
                let node = records.node(&wanted)?;
                let booted = records.store.booted_node(&wanted)?;
                Ok(node.map(|node| {
                    let mut view = NodeView::with_details(&node, duplicates, facts);
                    if let Some(details) = &mut view.details {
                        details.booted = booted.map(BootedView::from);
                    }
                    view
                }))
            })
            .await?;
        let view = found.ok_or_else(|| Refused::not_found(NO_NODE))?;
        Ok(answer(200, view.serialize_json()))
    }

    /// What a machine last said it is made of.
    async fn show_facts(&self, id: &str) -> Result<Answer, Refused> {
        let wanted = id.to_owned();
        let found = self
            .registry
            .with(move |records| {
                let facts = records.store.facts(&wanted)?;
                Ok(records.node(&wanted)?.map(|_| facts))
            })
            .await?;
        let facts = found.ok_or_else(|| Refused::not_found(NO_NODE))?;
        let (facts, received_ms) =
            facts.ok_or_else(|| Refused::not_found("this node has sent no facts yet"))?;
        let view = Object::new()
            .with("nodeId", id)
            .with("receivedMs", received_ms)
            .with("facts", contract::show_facts(&facts));
        Ok(answer(200, Json::from(view).to_string()))
    }

    /// Makes a change to the record `id`; `missing` is what to say when there is none.
    async fn change(
        &self,
        id: &str,
        missing: &'static str,
        change: impl FnOnce(&mut Records, &str) -> Result<bool, StoreError> + Send + 'static,
    ) -> Result<(), Refused> {
        let wanted = id.to_owned();
        let found = self
            .registry
            .with(move |records| change(records, &wanted))
            .await?;
        match found {
            true => Ok(()),
            false => Err(Refused::not_found(missing)),
        }
    }
}
