//! `better-compute daemon`: bcd on its machines.

use std::path::Path;
use std::process::ExitCode;

use bcd::cli::flags::{Args, Command, Flag};
use bcd::cli::{Failure, print};
use bcd::update::manifest::{File, Manifest};

use super::files;
use super::pki;
use super::release;
use crate::install::values::{self, Invalid, PROXY_CA_MAX};
use crate::install::{self, Options, Release, ReleasedPlugin, WebSocket};
use crate::pki::Public;

pub(super) const COMMAND: Command = Command::group(
    "daemon",
    "put bcd on machines",
    &[Command::new(
        "install-script",
        "print the script that installs bcd on a server, or upgrades it",
        &[
            Flag::value("pool", "ID", "The pool the node joins; named in the script's header"),
            Flag::value("site", "ID", "The pool's site"),
            Flag::value("gateway-url", "URL", "The gateway bcd dials, https://... (BETTER_COMPUTE_GATEWAY_URL)"),
            Flag::value("base-url", "URL", "The control plane that serves the downloads (BETTER_COMPUTE_BASE_URL)"),
            Flag::value("base-path", "PATH", "The API's base path (default /api/compute)"),
            Flag::value("bcd-version", "VERSION", "The release to install (BETTER_COMPUTE_BCD_VERSION)"),
            Flag::value("sha256", "ARCH=HEX,...", "SHA-256 of each architecture's bare binary, amd64 and arm64"),
            Flag::value("release-manifest", "PATH", "Instead: a signed release manifest, whose digests are pinned"),
            Flag::value("release-pins", "PINS", "Pins of the release keys, comma-separated (BCD_RELEASE_PINS);\nalso written as [update] release_pins"),
            Flag::value("release-threshold", "N", "How many release keys must have signed, 1 to 16 (default 1)"),
            Flag::value("release-sequence", "N", "The node's release floor: it installs none below; needs --release-pins"),
            Flag::value("websocket-url", "URL", "wss://.../v1/session, where proxies break mTLS: the [websocket] section"),
            Flag::value("websocket-audience", "HOST", "The gateway's public host; needs --websocket-url"),
            Flag::value("proxy-ca-file", "PATH", "The inspecting proxy's CA, PEM certificates and nothing else;\nneeds --websocket-url"),
            Flag::value("bmc-networks", "CIDRS", "A site agent's BMC networks, comma-separated"),
            Flag::switch("plugins", "Prepare the node for bcx plugins: [plugins] and the systemd drop-in"),
            Flag::value("privileged-plugins", "NAMES", "Plugins that run as root without the filter; implies --plugins"),
            Flag::value("install-plugins", "NAMES", "Plugins to install from the release, such as bcx-ipmi; implies --plugins,\nneeds --release-manifest"),
            Flag::switch("unprivileged", "Run bcd node as the account bcd, beside bcd helper: [helper], units and\naccount; not with plugins"),
            Flag::value("instance-bridges", "BRIDGES", "The bridges an instance's NIC may join, comma-separated; needs --unprivileged"),
            Flag::value("attestor", "tpm", "Join with the host's TPM instead of a token"),
            Flag::value("approver-set-sha256", "HEX", "The only approver set the node takes first"),
            Flag::value("command-root-sha256", "HEX,...", "Digests of the command-signing roots (default the bundle's)"),
            pki::PKI,
            pki::DIR,
            Flag::value("out", "PATH", "Write a new file, mode 0755, instead of printing; never overwritten"),
        ],
        install_script,
    )
    .details(
        "Give exactly one of --sha256 and --release-manifest. The script holds no secret: the join token travels\n\
         apart. It is POSIX sh for a Linux host with systemd; docs/operations.md says what it does.",
    )],
);

fn install_script(args: &Args) -> Result<ExitCode, Failure> {
    let public = pki::read(args)?.public;
    let options = options(args, &public).map_err(|refused| match refused {
        Refused::Input(error) => Failure::refused(error),
        Refused::Release(failure) => failure,
    })?;
    let script = install::script(&options, &public).map_err(Failure::refused)?;
    match args.value("out") {
        None => print(&script)?,
        Some(path) => files::write_new(Path::new(path), script.as_bytes(), 0o755)?,
    }
    Ok(ExitCode::SUCCESS)
}

enum Refused {
    Input(Invalid),
    Release(Failure),
}

impl From<Invalid> for Refused {
    fn from(error: Invalid) -> Self {
        Self::Input(error)
    }
}

/// A flag, or else the environment variable that stands for it.
fn given(args: &Args, flag: &str, variable: &str) -> Option<String> {
    args.value(flag).map(str::to_owned).or_else(|| {
        std::env::var(variable)
            .ok()
            .filter(|value| !value.is_empty())
    })
}

fn needed(flag: &'static str, value: Option<String>) -> Result<String, Invalid> {
    value.ok_or_else(|| Invalid::new(flag, "is missing"))
}

/// `flag` is refused without `other`.
fn needs(args: &Args, flag: &'static str, other: &'static str, there: bool) -> Result<(), Invalid> {
    match args.value(flag).is_some() && !there {
        true => Err(Invalid::new(flag, format!("needs --{other}"))),
        false => Ok(()),
    }
}

fn options(args: &Args, public: &Public) -> Result<Options, Refused> {
    let pool = needed("pool", args.value("pool").map(str::to_owned))?;
    let site = needed("site", args.value("site").map(str::to_owned))?;
    let gateway = given(args, "gateway-url", "BETTER_COMPUTE_GATEWAY_URL");
    let base = given(args, "base-url", "BETTER_COMPUTE_BASE_URL");
    let version = given(args, "bcd-version", "BETTER_COMPUTE_BCD_VERSION");
    let version = values::version("bcd-version", &needed("bcd-version", version)?)?;
    let base = values::url("base-url", "https://", &needed("base-url", base)?)?;
    let path = values::path(
        "base-path",
        args.value("base-path").unwrap_or("/api/compute"),
    )?;
    let release = release_of(args)?;
    let wanted = match args.value("install-plugins") {
        Some(names) => values::released_plugins("install-plugins", names)?,
        None => Vec::new(),
    };
    let manifest = args.value("release-manifest");
    needs(
        args,
        "install-plugins",
        "release-manifest",
        manifest.is_some(),
    )?;
    let (sha256, install_plugins) = match (args.value("sha256"), manifest) {
        (Some(digests), None) => (values::binaries("sha256", digests)?, Vec::new()),
        (None, Some(path)) => {
            let manifest = manifest_of(Path::new(path), release.as_ref(), &version)?;
            let plugins = wanted.into_iter();
            let plugins = plugins.map(|name| released_plugin(&manifest, path, name));
            (
                binaries(&manifest, path)?,
                plugins.collect::<Result<_, _>>()?,
            )
        }
        _ => {
            let what = "or --release-manifest has to be given, and not both";
            return Err(Invalid::new("sha256", what).into());
        }
    };
    let command_root_sha256 = match args.value("command-root-sha256") {
        Some(roots) => {
            let roots = values::list("command-root-sha256", roots)?.into_iter();
            let roots = roots.map(|root| values::digest("command-root-sha256", root));
            Some(roots.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        None => public.command_root_sha256(),
    };
    let privileged = args.value("privileged-plugins");
    let privileged = privileged.map(|names| values::plugins("privileged-plugins", names));
    let plugins = match privileged.transpose()? {
        Some(names) => Some(names),
        None => (args.has("plugins") || !install_plugins.is_empty()).then(String::new),
    };
    let unprivileged = args.has("unprivileged");
    if unprivileged && plugins.is_some() {
        let what = "cannot host bcx plugins yet: bcd node would need root to start them";
        return Err(Invalid::new("unprivileged", what).into());
    }
    needs(args, "instance-bridges", "unprivileged", unprivileged)?;
    let instance_bridges = args.value("instance-bridges");
    let instance_bridges = instance_bridges.map(|it| values::bridges("instance-bridges", it));
    let tpm = match args.value("attestor") {
        None => false,
        Some("tpm") => true,
        Some(_) => return Err(Invalid::new("attestor", "takes tpm and nothing else").into()),
    };
    Ok(Options {
        pool: values::id("pool", &pool)?,
        site: values::id("site", &site)?,
        gateway_url: values::gateway_url("gateway-url", &needed("gateway-url", gateway)?)?,
        downloads: format!("{base}{path}/downloads"),
        version,
        sha256,
        release,
        websocket: websocket(args)?,
        bmc_networks: args
            .value("bmc-networks")
            .map(|networks| values::networks("bmc-networks", networks))
            .transpose()?,
        plugins,
        install_plugins,
        unprivileged,
        instance_bridges: instance_bridges.transpose()?,
        tpm,
        approver_set_sha256: args
            .value("approver-set-sha256")
            .map(|digest| values::digest("approver-set-sha256", digest))
            .transpose()?,
        command_root_sha256,
    })
}

fn release_of(args: &Args) -> Result<Option<Release>, Invalid> {
    let pins = given(args, "release-pins", "BCD_RELEASE_PINS");
    needs(args, "release-threshold", "release-pins", pins.is_some())?;
    needs(args, "release-sequence", "release-pins", pins.is_some())?;
    let Some(pins) = pins else {
        return Ok(None);
    };
    let (pins, threshold) = release::keys(&pins, args.value("release-threshold"))?;
    let sequence = args.value("release-sequence");
    let sequence = sequence.map(|it| values::number("release-sequence", it, 0, i64::MAX as u64));
    Ok(Some(Release {
        pins,
        threshold,
        sequence: sequence.transpose()?,
    }))
}

fn websocket(args: &Args) -> Result<Option<WebSocket>, Refused> {
    let url = args.value("websocket-url");
    needs(args, "websocket-audience", "websocket-url", url.is_some())?;
    needs(args, "proxy-ca-file", "websocket-url", url.is_some())?;
    let Some(url) = url else {
        return Ok(None);
    };
    let audience = args.value("websocket-audience");
    let audience = audience.map(|host| values::host("websocket-audience", host));
    let proxy_ca = match args.value("proxy-ca-file") {
        None => None,
        Some(path) => {
            let bytes = files::read(Path::new(path), PROXY_CA_MAX).map_err(Refused::Release)?;
            Some(values::certificates("proxy-ca-file", &bytes)?)
        }
    };
    Ok(Some(WebSocket {
        url: values::url("websocket-url", "wss://", url)?,
        audience: audience.transpose()?,
        proxy_ca,
    }))
}

/// A signed manifest, of `version`.
fn manifest_of(path: &Path, release: Option<&Release>, version: &str) -> Result<Manifest, Refused> {
    let Some(release) = release else {
        return Err(Invalid::new("release-manifest", "needs --release-pins").into());
    };
    let manifest =
        release::verified(path, &release.pins, release.threshold).map_err(Refused::Release)?;
    if manifest.product != "bcd" || manifest.version != version {
        return Err(Refused::Release(Failure::refused(format!(
            "RELEASE_MISMATCH: {} is of {} {}, not of bcd {version}",
            path.display(),
            manifest.product,
            manifest.version
        ))));
    }
    Ok(manifest)
}

/// The digests of a release's binaries.
fn binaries(manifest: &Manifest, path: &str) -> Result<[Option<String>; 2], Refused> {
    let name = format!("bare bcd_{}_linux_{{}}", manifest.version);
    digests(path, &name, |arch| manifest.binary(arch))
}

/// A plugin of a release.
fn released_plugin(
    manifest: &Manifest,
    path: &str,
    name: &'static str,
) -> Result<ReleasedPlugin, Refused> {
    let file = format!("{name}_{}_linux_{{}}.tar.gz", manifest.version);
    let sha256 = digests(path, &file, |arch| manifest.plugin(name, arch))?;
    Ok(ReleasedPlugin { name, sha256 })
}

/// The digests of what there is for amd64 and arm64, one at least; `name` has `{}` for the architecture.
fn digests<'a>(
    path: &str,
    name: &str,
    file: impl Fn(&str) -> Option<&'a File>,
) -> Result<[Option<String>; 2], Refused> {
    let digests = ["amd64", "arm64"].map(|arch| file(arch).map(|it| it.sha256.clone()));
    match digests.iter().any(Option::is_some) {
        true => Ok(digests),
        false => Err(Refused::Release(Failure::refused(format!(
            "RELEASE_INCOMPLETE: {path} lists neither {} nor {}",
            name.replace("{}", "amd64"),
            name.replace("{}", "arm64")
        )))),
    }
}
