//! `better-compute tokens`: make, list and revoke join tokens.

use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print, sim};
use nanoserde::SerJson;

use super::ago::{ago, parse_span, span};
use super::client::{self, Client, DIR, JSON};
use super::table;
use crate::api::views::{CreateToken, CreatedToken, CreatedTokens, TOKENS_MAX, TokenView, Tokens};
use crate::registry::now_ms;

/// As many as bcd sim takes.
const COUNT_MAX: usize = 65_536;

pub(super) const COMMAND: Command = Command::group(
    "tokens",
    "make, list and revoke join tokens",
    &[
        Command::new(
            "create",
            "make a single-use join token and print it, once",
            &[
                Flag::value("pool", "POOL", "The pool the node joins"),
                Flag::value("site", "SITE", "The site it joins at"),
                Flag::value("role", "ROLE", "node, site or ramdisk (default node)"),
                Flag::value(
                    "mac",
                    "MAC",
                    "For the attestor discovery: the machine with this NIC, as a ramdisk",
                ),
                Flag::value(
                    "ttl",
                    "SPAN",
                    "How long it is good for, 1s to 30d (default 1h)",
                ),
                Flag::switch(
                    "allow-reclaim",
                    "Let a machine that joins again take its earlier node's id",
                ),
                Flag::value(
                    "count",
                    "N",
                    "Make so many alike, one a line, 1 to 65536 (default 1): for bcd sim",
                ),
                DIR,
                JSON,
            ],
            create,
        ),
        Command::new("list", "list tokens", &[DIR, JSON], list),
        Command::new(
            "show",
            "show a token and the joins tried with it",
            &[DIR, JSON],
            show,
        )
        .positionals(&["ID"]),
        Command::new("revoke", "revoke a token", &[DIR, JSON], revoke).positionals(&["ID"]),
    ],
);

fn create(args: &Args) -> Result<ExitCode, Failure> {
    let needed = |flag: &str| {
        args.value(flag)
            .map(str::to_owned)
            .ok_or_else(|| Failure::refused(format!("a token needs --{flag}")))
    };
    let ttl = match args.value("ttl") {
        None => None,
        Some(text) => Some(parse_span(text).ok_or_else(|| {
            Failure::refused("--ttl is a number and one of s, m, h, d, such as 90m")
        })?),
    };
    let count = sim::number(args, "count", COUNT_MAX)?;
    let mut asked = CreateToken {
        pool: needed("pool")?,
        site: needed("site")?,
        role: args.value("role").map(str::to_owned),
        ttl_seconds: ttl.map(|ms| ms / 1000),
        allow_reclaim: Some(args.has("allow-reclaim")),
        mac: args.value("mac").map(str::to_owned),
        count: None,
    };
    if let Some(count) = count {
        return create_many(args, &mut asked, count);
    }
    let text = Client::new(args)?.call("POST", "tokens", Some(&asked.serialize_json()))?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let created: CreatedToken = client::parse(&text)?;
    // The token alone on standard output, so that it can be piped; what is for people beside it.
    eprintln!(
        "token {} joins one {} to pool {} at site {} within {}; it is shown this once:",
        created.id,
        created.role,
        created.pool,
        created.site,
        span(created.expires_at_ms.saturating_sub(now_ms() - 500))
    );
    print(&format!("{}\n", created.token))?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens by the thousand: each answer is printed as it comes.
fn create_many(args: &Args, asked: &mut CreateToken, count: usize) -> Result<ExitCode, Failure> {
    let client = Client::new(args)?;
    let mut left = u32::try_from(count).unwrap_or(TOKENS_MAX);
    while left > 0 {
        let now = left.min(TOKENS_MAX);
        asked.count = Some(now);
        let text = client.call("POST", "tokens", Some(&asked.serialize_json()))?;
        left -= now;
        if args.has("json") {
            print(&format!("{text}\n"))?;
            continue;
        }
        let created: CreatedTokens = client::parse(&text)?;
        let mut lines = String::new();
        for one in created.tokens {
            lines.push_str(&one.token);
            lines.push('\n');
        }
        print(&lines)?;
    }
    if !args.has("json") {
        eprintln!(
            "{count} tokens for pool {} at site {}, shown this once: each joins one machine",
            asked.pool, asked.site
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let text = Client::new(args)?.call("GET", "tokens", None)?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let tokens: Tokens = client::parse(&text)?;
    let now = now_ms();
    let rows: Vec<_> = tokens
        .tokens
        .into_iter()
        .map(|token| row(token, now))
        .collect();
    print(&table::render(
        &[
            "TOKEN", "STATE", "ROLE", "POOL", "SITE", "EXPIRES", "NODE", "REFUSED",
        ],
        &rows,
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn row(token: TokenView, now: i64) -> Vec<String> {
    let expires = match token.expires_at_ms > now {
        true => format!("in {}", span(token.expires_at_ms.saturating_sub(now))),
        false => ago(Some(token.expires_at_ms), now),
    };
    vec![
        token.id,
        token.state,
        token.role,
        token.pool,
        token.site,
        expires,
        token.node_id.unwrap_or_default(),
        token.refusals.to_string(),
    ]
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "jt", "token")?;
    let text = Client::new(args)?.call("GET", &format!("tokens/{id}"), None)?;
    print_token(args, &text)
}

fn revoke(args: &Args) -> Result<ExitCode, Failure> {
    let id = client::id(args, "jt", "token")?;
    let text = Client::new(args)?.call("POST", &format!("tokens/{id}/revoke"), None)?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
    } else {
        print(&format!("revoked {id}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_token(args: &Args, text: &str) -> Result<ExitCode, Failure> {
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut token: TokenView = client::parse(text)?;
    let now = now_ms();
    let attempts = token.attempts.take().unwrap_or_default();
    let reclaim = if token.allow_reclaim { "yes" } else { "no" };
    let mac = token.mac.take();
    let mut out = table::render(
        &[
            "TOKEN", "STATE", "ROLE", "POOL", "SITE", "EXPIRES", "NODE", "REFUSED",
        ],
        &[row(token, now)],
    );
    out.push_str(&format!("allow-reclaim: {reclaim}\n"));
    if let Some(mac) = mac {
        out.push_str(&format!("discovery of: {mac}\n"));
    }
    if !attempts.is_empty() {
        let rows: Vec<Vec<String>> = attempts
            .into_iter()
            .map(|attempt| {
                vec![
                    ago(Some(attempt.at_ms), now),
                    attempt.outcome,
                    attempt.hostname,
                    attempt.address,
                    attempt.key_sha256.chars().take(16).collect(),
                    attempt.reason,
                ]
            })
            .collect();
        out.push('\n');
        out.push_str(&table::render(
            &["WHEN", "OUTCOME", "HOSTNAME", "ADDRESS", "KEY", "REASON"],
            &rows,
        ));
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}
