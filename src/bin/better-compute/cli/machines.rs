//! `better-compute machines`: what joined by discovery, and what it takes to boot one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bcd::attest::bootstrap::{self, Given};
use bcd::attest::join_token::{self, JoinToken};
use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, chain, complain, facts_text, one_line, print};
use bcd::config::cmdline::CommandLine;
use bcd::config::mac::Mac;
use bcd::config::{gateway_url_of, values};
use bcd::crypto::base64;
use bcd::deploy::files::USER_DATA;
use bcd::facts::view::{FactsView, size};
use bcd::proto::DiscoveryAssertion;
use bcd::wire::url::Url;
use nanoserde::SerJson;

use super::ago::{ago, parse_span};
use super::client::{self, Client, DIR, JSON, Problem};
use super::{boot, commands, files, sites, table};
use crate::api::views::{CreateToken, CreatedToken, MachineView, Machines};
use crate::bootparams::{BootParameters, LINE_MAX, NAMES};
use crate::dev::SITE_KEY;
use crate::ids;
use crate::joinservice::discovery;
use crate::json::{Json, Object};
use crate::registry::now_ms;

pub(super) const COMMAND: Command = Command::group(
    "machines",
    "list, show, wipe, deploy and boot machines, and make boot parameters for one",
    &[
        Command::new("list", "list machines that joined by discovery", &[DIR, JSON], list),
        Command::new(
            "show",
            "show a machine: its last boot, and what it is made of",
            &[DIR, JSON],
            show,
        )
        .positionals(&["MAC"]),
        Command::new(
            "deploy",
            "write an image to a disk of a machine that is in its ramdisk, once",
            &[
                Flag::value("disk", "NAME", "The disk, by the name that lasts (machines show)"),
                Flag::value(
                    "image",
                    "URL",
                    "Where the image is: https://, or http:// with --sha256",
                ),
                Flag::value("sha256", "HEX", "The image's SHA-256, as it is downloaded"),
                Flag::value("size", "BYTES", "Its size, as it is downloaded"),
                Flag::value("unpacked-sha256", "HEX", "The SHA-256 of the disk that it holds"),
                Flag::value("unpacked-size", "BYTES", "The size of the disk that it holds"),
                Flag::switch("grow", "Have the last partition of a GPT go on to the disk's end"),
                Flag::switch(
                    "new-guids",
                    "Give the disk and the partitions of a GPT GUIDs of their own",
                ),
                Flag::switch("no-read-back", "Do not read back what was written"),
                Flag::switch(
                    "join",
                    "Let the OS join: with bcd's config.toml, and a key for bcd join --attestor provisioned",
                ),
                Flag::value("pool", "POOL", "With --join: the pool it joins (default: the ramdisk's)"),
                Flag::value(
                    "join-token-file",
                    "FILE",
                    "Give the OS the join token in this file, as /etc/bcd/join-token",
                ),
                Flag::value("user-data", "FILE", "Give the OS this user data for cloud-init (12 KiB)"),
                Flag::value("hostname", "NAME", "Give the OS this name, by cloud-init"),
                Flag::value(
                    "deadline",
                    "SPAN",
                    "When it must have started, 1s to 1d from now (default 10m)",
                ),
                Flag::switch("yes", "Do it; without, only say what would be written over"),
                Flag::switch("wait", "Wait until it is over; exit 1 unless it is deployed"),
                DIR,
                JSON,
            ],
            deploy,
        )
        .details(
            "Makes a one-time order: whatever fails or is played back, no image is written twice on it. An image is a whole\n\
             disk, raw, qcow2 (as qemu-img convert writes it), or either packed by gzip, xz (level 8 at most) or zstd\n\
             (level 20 at most). The machine's image cache is asked first for what has a --sha256. The disk boots nothing\n\
             until all of it was written, has the digests given, and was read back. An identifier that another\n\
             disk of the machine has too is refused. Files for the OS need a root of ext4, which is found by its\n\
             partition's type or its os-release; each is root's alone (0600). A signed receipt says how it went:\n\
             better-compute receipts.",
        )
        .positionals(&["MAC"]),
        Command::new(
            "wipe",
            "wipe disks of a machine that is in its ramdisk, once",
            &[
                Flag::values("disk", "NAME", "A disk, by the name that lasts (machines show)"),
                Flag::switch("all", "All fixed disks: not what is removable or behind USB"),
                Flag::values(
                    "method",
                    "METHOD",
                    "Only by this method, such as overwrite (default: the best that holds)",
                ),
                Flag::value(
                    "deadline",
                    "SPAN",
                    "When it must have started, 1s to 1d from now (default 10m)",
                ),
                Flag::switch("yes", "Do it; without, only say what would be wiped"),
                Flag::switch("wait", "Wait until it is over; exit 1 unless every disk is wiped"),
                DIR,
                JSON,
            ],
            wipe,
        )
        .details(
            "Makes a one-time order: whatever fails or is played back, no disk is wiped twice on it. Each disk is\n\
             held against the serial number and size that the machine told of last. What is mounted or held by\n\
             something on the machine is refused. A signed receipt says how it went: better-compute receipts.\n\
             Methods: nvme-sanitize-crypto, nvme-sanitize-block, nvme-format-crypto, nvme-format-erase,\n\
             nvme-sanitize-overwrite, ata-sanitize-crypto, ata-sanitize-block, ata-security-erase-enhanced,\n\
             ata-security-erase, scsi-sanitize-crypto, scsi-sanitize-block, secure-discard, discard, overwrite.",
        )
        .positionals(&["MAC"]),
        boot::COMMAND,
        Command::new(
            "boot-params",
            "print the kernel command line that lets a machine's ramdisk join, once",
            &[
                Flag::value("mac", "MAC", "The NIC the machine boots from"),
                Flag::value("pool", "POOL", "The pool it joins (default discovered)"),
                Flag::value(
                    "ttl",
                    "SPAN",
                    "How long its token is good for, 1s to 30d (default 1h)",
                ),
                Flag::value(
                    "site-key",
                    "FILE",
                    "The site's private key (default: site.key of a better-compute dev)",
                ),
                Flag::value("gateway", "URL", "The gateway as the machine reaches it"),
                Flag::value(
                    "server-name",
                    "NAME",
                    "The name the gateway's certificate carries, when it is not the URL's host",
                ),
                Flag::value("cache", "URL", "The site's image cache"),
                Flag::value("append", "TEXT", "The site's own parameters, put behind"),
                DIR,
            ],
            boot_params,
        )
        .details(
            "Stands in for a site agent: makes a token for this MAC, and signs with the site's key that the machine\n\
             boots now. The line is good for one boot, within 15 minutes. It holds a secret, the token.",
        ),
    ],
);

fn list(args: &Args) -> Result<ExitCode, Failure> {
    let text = Client::new(args)?.call("GET", "machines", None)?;
    if args.has("json") {
        print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let machines: Machines = client::parse(&text)?;
    let now = now_ms();
    let rows: Vec<_> = machines
        .machines
        .into_iter()
        .map(|machine| row(machine, now))
        .collect();
    let heads = [
        "MAC", "STATE", "SITE", "NODE", "BOOTS", "CPUS", "MEMORY", "DISKS", "GPUS", "PRODUCT",
        "SERIAL", "SEEN",
    ];
    print(&table::render(&heads, &rows))?;
    Ok(ExitCode::SUCCESS)
}

fn row(machine: MachineView, now: i64) -> Vec<String> {
    let node = machine.node;
    vec![
        machine.mac,
        super::nodes::state(&node, now),
        node.site,
        node.id,
        machine.boots.to_string(),
        machine.cpus.to_string(),
        size(machine.memory_bytes),
        match machine.disks {
            0 => "0".to_owned(),
            disks => format!("{disks} ({})", size(machine.disk_bytes)),
        },
        machine.gpus.to_string(),
        machine.product,
        machine.serial,
        ago(node.last_seen_ms, now),
    ]
}

fn mac(text: &str) -> Result<Mac, Failure> {
    Mac::parse(text).ok_or_else(|| {
        Failure::refused("a MAC is the address of one network card, such as 52:54:00:12:34:56")
    })
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let mac = mac(args.positional(0))?;
    let answer = Client::new(args)?.json("GET", &format!("machines/{mac}"), None)?;
    if args.has("json") {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = now_ms();
    let node = answer.get("node").unwrap_or(&Json::Null);
    let mut lines = vec![
        ("machine", mac.to_string()),
        ("boots", answer.number("boots").unwrap_or(0).to_string()),
        ("node", node.text("id").to_owned()),
        ("state", node.text("state").to_owned()),
        ("role", node.text("role").to_owned()),
        ("pool", node.text("pool").to_owned()),
        ("site", node.text("site").to_owned()),
        ("address", node.text("address").to_owned()),
        ("joined", ago(node.number("joinedAtMs"), now)),
        ("last seen", ago(node.number("lastSeenMs"), now)),
    ];
    if let Some(booted) = answer.get("booted") {
        let when = ago(booted.number("atMs"), now);
        let node = booted.text("nodeId");
        lines.push((
            "installed",
            format!("{node}, {when}: {}", booted.text("message")),
        ));
    }
    let facts = answer.get("facts").map(Json::to_string);
    match answer.number("factsReceivedMs") {
        Some(at) => lines.push(("facts", ago(Some(at), now))),
        None => lines.push(("facts", "none yet".to_owned())),
    }
    let mut out = String::new();
    for (name, value) in lines {
        if !value.is_empty() {
            out.push_str(&format!("{:14}{}\n", format!("{name}:"), one_line(&value)));
        }
    }
    if let Some(facts) = facts {
        let facts: FactsView = client::parse(&facts)?;
        out.push_str(&facts_text(&facts));
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn wipe(args: &Args) -> Result<ExitCode, Failure> {
    let mac = mac(args.positional(0))?;
    let disks: Vec<Json> = args.values("disk").map(Json::from).collect();
    let all = args.has("all");
    if disks.is_empty() != all {
        return Err(Failure::refused(
            "name disks with --disk, or give --all: one of the two",
        ));
    }
    let client = Client::new(args)?;
    if !args.has("yes") {
        let machine = client.json("GET", &format!("machines/{mac}"), None)?;
        print(&would_be_wiped(&machine, &disks))?;
        return Err(
            Failure::refused("nothing was ordered").hint("--yes wipes these disks, for good")
        );
    }
    let mut asked = match all {
        true => Object::new().with("all", true),
        false => Object::new().with("disks", disks),
    };
    let methods: Vec<Json> = args.values("method").map(Json::from).collect();
    if !methods.is_empty() {
        asked = asked.with("methods", methods);
    }
    order(args, &client, &format!("machines/{mac}/wipe"), asked)
}

fn deploy(args: &Args) -> Result<ExitCode, Failure> {
    let mac = mac(args.positional(0))?;
    let disk = args.value("disk").ok_or_else(|| {
        Failure::refused(
            "--disk names the disk that is written over: better-compute machines show lists them",
        )
    })?;
    let image = args.value("image").ok_or_else(|| {
        Failure::refused("--image is the URL of the image that is written: give one")
    })?;
    let bytes = |name: &str| match args.value(name) {
        None => Ok(None),
        Some(text) => text
            .parse::<i64>()
            .ok()
            .filter(|bytes| *bytes > 0)
            .map(Some)
            .ok_or_else(|| Failure::refused(format!("--{name} is a number of bytes"))),
    };
    let asked = Object::new()
        .with("disk", disk)
        .with("image", image)
        .with_some("sha256", args.value("sha256"))
        .with_some("sizeBytes", bytes("size")?)
        .with_some("unpackedSha256", args.value("unpacked-sha256"))
        .with_some("unpackedSizeBytes", bytes("unpacked-size")?)
        .with("skipReadBack", args.has("no-read-back"))
        .with("growLastPartition", args.has("grow"))
        .with("newGuids", args.has("new-guids"))
        .with_some("files", os_files(args)?);
    let client = Client::new(args)?;
    if !args.has("yes") {
        let machine = client.json("GET", &format!("machines/{mac}"), None)?;
        print(&would_be_wiped(&machine, &[Json::from(disk)]))?;
        return Err(Failure::refused("nothing was ordered")
            .hint("--yes writes the image over this disk, for good"));
    }
    order(args, &client, &format!("machines/{mac}/deploy"), asked)
}

/// The files that the OS is to be given, if there are some.
fn os_files(args: &Args) -> Result<Option<Json>, Failure> {
    let (mut token, mut user_data) = (None, None);
    if let Some(path) = args.value("join-token-file") {
        let text = files::read(Path::new(path), join_token::MAX_LENGTH)?;
        let parsed = JoinToken::parse(&String::from_utf8_lossy(&text));
        token = Some(parsed.map_err(Failure::refused)?.as_str().to_owned());
    }
    if let Some(path) = args.value("user-data") {
        user_data = Some(base64::encode(&files::read(Path::new(path), USER_DATA)?));
    }
    let hostname = args.value("hostname");
    let join = args.has("join");
    if args.value("pool").is_some() && !join {
        return Err(Failure::refused(
            "--pool goes with --join: give both or neither",
        ));
    }
    if !join && token.is_none() && user_data.is_none() && hostname.is_none() {
        return Ok(None);
    }
    let asked = Object::new()
        .with("join", join)
        .with_some("pool", args.value("pool"))
        .with_some("joinToken", token)
        .with_some("userDataBase64", user_data)
        .with_some("hostname", hostname);
    Ok(Some(asked.into()))
}

/// Makes a one-time order of what is asked, and waits for its end if that is wished.
pub(super) fn order(
    args: &Args,
    client: &Client,
    path: &str,
    asked: Object,
) -> Result<ExitCode, Failure> {
    let now = now_ms();
    // Chosen here, so that the same request twice is one order.
    let (order, command) = (ids::new("ord", now), ids::new("cmd", now));
    let mut asked = asked
        .with("orderId", order.as_str())
        .with("commandId", command.as_str());
    if let Some(text) = args.value("deadline") {
        let ms = parse_span(text).ok_or_else(|| {
            Failure::refused("--deadline is a number and one of s, m, h, d, such as 90m")
        })?;
        asked = asked.with("deadlineSeconds", ms / 1_000);
    }
    let body = Json::from(asked).to_string();
    let answer = match client.json("POST", path, Some(&body)) {
        // It may have been taken, and only the answer lost: asking once more makes no second one.
        Err(Problem::NoAnswer(_)) => client.json("POST", path, Some(&body)).map_err(|problem| {
            problem.into_failure().hint(format!(
                "if it was taken after all, better-compute commands show {command} says so"
            ))
        })?,
        answered => answered?,
    };
    let command = answer.get("command").cloned().unwrap_or(Json::Null);
    complain(&args.path, &format!("the order is {order}"));
    if args.has("wait") {
        return commands::wait(args, command);
    }
    match args.has("json") {
        true => print(&format!("{answer}\n"))?,
        false => print(&format!("{}\n", command.text("id")))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The disks that an order would be for.
fn would_be_wiped(machine: &Json, named: &[Json]) -> String {
    let facts = machine.get("facts").unwrap_or(&Json::Null);
    let disks = facts.get("disks").map(Json::items).unwrap_or_default();
    let meant = |disk: &&Json| match named.is_empty() {
        true => !disk.flag("removable") && disk.text("transport") != "usb",
        false => named
            .iter()
            .any(|name| name.as_text() == Some(disk.text("stable_name"))),
    };
    let rows: Vec<Vec<String>> = disks
        .iter()
        .filter(meant)
        .map(|disk| {
            let bytes = disk.number("size_bytes").unwrap_or(0).unsigned_abs();
            vec![
                disk.text("stable_name").to_owned(),
                disk.text("kernel_name").to_owned(),
                disk.text("model").to_owned(),
                disk.text("serial").to_owned(),
                size(bytes),
            ]
        })
        .collect();
    table::render(&["DISK", "NOW", "MODEL", "SERIAL", "SIZE"], &rows)
}

fn boot_params(args: &Args) -> Result<ExitCode, Failure> {
    let mac = mac(args.value("mac").ok_or_else(|| {
        Failure::refused("--mac names the NIC that the machine boots from: give it one")
    })?)?;
    let ttl_seconds = match args.value("ttl") {
        None => None,
        Some(text) => Some(
            parse_span(text).ok_or_else(|| {
                Failure::refused("--ttl is a number and one of s, m, h, d, such as 90m")
            })? / 1000,
        ),
    };
    let gateway = args.value("gateway").map(gateway).transpose()?;
    let server_name = args.value("server-name");
    if server_name.is_some_and(|name| !values::is_server_name(name)) {
        return Err(Failure::refused(
            "--server-name is a DNS name or an address",
        ));
    }
    let cache = args.value("cache");
    if cache.is_some_and(|url| Url::parse(url).is_err()) {
        return Err(Failure::refused("--cache is an http:// or https:// URL"));
    }
    let own = appended(args.value("append").unwrap_or_default())?;
    let key = files::read_key(&site_key(args)?, "better-compute sites new-key")?;
    let client = Client::new(args)?;
    let pin = key.pin().to_string();
    let registered = sites::keys(&client)?
        .into_iter()
        .find(|known| known.pin == pin && known.revoked_at_ms.is_none())
        .ok_or_else(|| {
            Failure::refused(format!(
                "the site key {pin} is not registered here, or revoked: better-compute sites list-keys"
            ))
        })?;
    let document = client.document()?;
    let settled = bootstrap::settle(&document, &Given::default(), false).map_err(|error| {
        Failure::failed(format!(
            "the control plane's document cannot be used: {}",
            chain(&error)
        ))
    })?;
    let asked = CreateToken {
        count: None,
        pool: args.value("pool").unwrap_or("discovered").to_owned(),
        site: registered.site,
        role: None,
        ttl_seconds,
        allow_reclaim: None,
        mac: Some(mac.to_string()),
    };
    let text = client.call("POST", "tokens", Some(&asked.serialize_json()))?;
    let created: CreatedToken = client::parse(&text)?;
    let assertion = DiscoveryAssertion {
        site: created.site.clone(),
        mac: mac.0.to_vec(),
        token_id: created.id,
        signed_at_ms: now_ms(),
    };
    let assertion = discovery::sign(&assertion, &key).map_err(Failure::failed)?;
    let url = settled.gateway_url.origin();
    let published = settled.gateway_server_name.as_deref();
    let parameters = BootParameters {
        gateway: gateway.as_deref().unwrap_or(&url),
        server_name: server_name.or(published),
        cache,
        site: &created.site,
        pins: [settled.serving_ca, settled.signing, settled.encryption],
        encryption_key: &settled.encryption_key,
        token: &created.token,
        assertion: &assertion,
        mac,
    };
    let mut line = parameters.line();
    if !own.is_empty() {
        line.push(' ');
        line.push_str(own);
    }
    if line.len() > LINE_MAX {
        return Err(Failure::refused(format!(
            "the command line has {} characters, and kernels take {LINE_MAX}: make --append shorter by {}",
            line.len(),
            line.len() - LINE_MAX
        )));
    }
    print(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The site's own parameters, which stand behind.
///
/// # Errors
/// They would break the line, or say twice what it says: the machine would refuse that.
fn appended(own: &str) -> Result<&str, Failure> {
    let refused = |why: &str| Failure::refused(format!("--append {why}"));
    if own.chars().any(char::is_control) {
        return Err(refused(
            "holds the end of a line or another control character",
        ));
    }
    let added = CommandLine::parse(own.as_bytes());
    if added.has_open_quote() {
        return Err(refused("ends inside quotes: close them"));
    }
    match added
        .parameters()
        .iter()
        .find(|one| NAMES.contains(&one.name.as_str()))
    {
        Some(one) => Err(refused(&format!(
            "holds {}, which stands on the line already: leave it out",
            one.name
        ))),
        None => Ok(own.trim()),
    }
}

fn gateway(text: &str) -> Result<String, Failure> {
    let url = gateway_url_of(text, false).map_err(|error| {
        Failure::refused(match error.strip_prefix(": ") {
            Some(problem) => format!("--gateway is no URL: {problem}"),
            None => format!("--gateway {error}"),
        })
    })?;
    Ok(url.origin())
}

/// The site key's file: the named one, else that of the `better-compute dev` that is asked.
fn site_key(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(path) = args.value("site-key") {
        return Ok(PathBuf::from(path));
    }
    let named = args.value("dir").map(str::to_owned);
    named
        .or_else(|| std::env::var("BETTER_COMPUTE_DIR").ok())
        .filter(|dir| !dir.is_empty())
        .map(|dir| PathBuf::from(dir).join(SITE_KEY))
        .ok_or_else(|| Failure::refused("--site-key names the site's private key: give it one"))
}
