//! `better-compute sites`: the keys with which site agents vouch for the machines they boot.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};
use bcd::crypto::key::NodeKey;
use bcd::crypto::pin::Pin;
use bcd::crypto::{base64, digest, pem};
use nanoserde::SerJson;

use super::ago::ago;
use super::client::{self, Client, DIR, JSON};
use super::files;
use super::table;
use crate::api::views::{AddSiteKey, SiteKeyView, SiteKeys};
use crate::registry::now_ms;

pub(super) const COMMAND: Command = Command::group(
    "sites",
    "register and revoke the keys of site agents",
    &[
        Command::new(
            "new-key",
            "make a site agent's key: a private key file, and its public half on standard output",
            &[],
            new_key,
        )
        .positionals(&["FILE"])
        .details(
            "FILE is PKCS#8 in PEM, mode 0600, and never overwritten. It belongs on the site agent's machine alone;\n\
             what is printed goes to better-compute sites add-key.",
        ),
        Command::new(
            "add-key",
            "register a site's public key (PEM)",
            &[
                Flag::value("name", "TEXT", "What to call it in lists"),
                DIR,
                JSON,
            ],
            add_key,
        )
        .positionals(&["SITE", "FILE"]),
        Command::new("list-keys", "list the keys of all sites", &[DIR, JSON], list_keys),
        Command::new(
            "revoke-key",
            "revoke a site's key, for good: what it signed lets no machine join any more",
            &[DIR, JSON],
            revoke_key,
        )
        .positionals(&["PIN"]),
    ],
);

fn new_key(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(args.positional(0));
    let key = NodeKey::generate().map_err(Failure::failed)?;
    files::write_new(path, key.to_pem().as_bytes(), 0o600)?;
    eprintln!("pin {}", key.pin());
    print(&pem::encode("PUBLIC KEY", &key.spki_der()))?;
    Ok(ExitCode::SUCCESS)
}

fn add_key(args: &Args) -> Result<ExitCode, Failure> {
    let path = Path::new(args.positional(1));
    let text = files::read(path, files::KEY_MAX)?;
    let spki = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| pem::decode(text, "PUBLIC KEY").ok())
        .ok_or_else(|| {
            Failure::refused(format!(
                "{} holds no public key in PEM: it begins with -----BEGIN PUBLIC KEY-----",
                path.display()
            ))
        })?;
    let asked = AddSiteKey {
        site: args.positional(0).to_owned(),
        name: args.value("name").map(str::to_owned),
        public_key: base64::encode(&spki),
    };
    let text = Client::new(args)?.call("POST", "site-keys", Some(&asked.serialize_json()))?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let key: SiteKeyView = client::parse(&text)?;
    print(&format!("site {} may sign with {}\n", key.site, key.pin))?;
    Ok(ExitCode::SUCCESS)
}

/// The keys of all sites.
///
/// # Errors
/// The control plane does not say.
pub(super) fn keys(client: &Client) -> Result<Vec<SiteKeyView>, Failure> {
    let text = client.call("GET", "site-keys", None)?;
    Ok(client::parse::<SiteKeys>(&text)?.keys)
}

fn list_keys(args: &Args) -> Result<ExitCode, Failure> {
    let client = Client::new(args)?;
    if args.has("json") {
        print(&format!("{}\n", client.call("GET", "site-keys", None)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = now_ms();
    let rows: Vec<Vec<String>> = keys(&client)?
        .into_iter()
        .map(|key| {
            let state = match key.revoked_at_ms {
                None => "in use".to_owned(),
                at => format!("revoked {}", ago(at, now)),
            };
            let added = ago(Some(key.added_at_ms), now);
            vec![key.site, key.pin, state, added, key.name]
        })
        .collect();
    print(&table::render(
        &["SITE", "PIN", "STATE", "ADDED", "NAME"],
        &rows,
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn revoke_key(args: &Args) -> Result<ExitCode, Failure> {
    let pin = Pin::parse(args.positional(0)).map_err(|error| {
        Failure::refused(format!(
            "this is no pin ({error}): better-compute sites list-keys shows them"
        ))
    })?;
    let path = format!("site-keys/{}/revoke", digest::hex(&pin.0));
    let text = Client::new(args)?.call("POST", &path, None)?;
    match args.has("json") {
        true => print(&format!("{text}\n"))?,
        false => print(&format!("revoked {pin}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
