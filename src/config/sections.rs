//! The sections of the configuration, in the order of docs/config.md's table: what each holds, its
//! defaults and its rules.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::reader::{Reader, quoted};
use super::values::{self, Cidr, Cluster, Listen};
use crate::crypto::pin::Pin;
use crate::sys::log::Level;
use crate::wire::url::Url;

/// Whether `http://` gateways are allowed, which only a fakehw build takes.
pub(super) fn read_insecure(r: &mut Reader) -> bool {
    let insecure = r.boolean("", "dev_insecure_h2c", false);
    if insecure && !cfg!(feature = "fakehw") {
        r.problem(
            "",
            "dev_insecure_h2c",
            "is for fakehw builds only; this build does not start with it",
        );
        return false;
    }
    insecure
}

/// The most bytes of a unix socket's path: the kernel's field has 108, and a NUL ends it.
const MAX_SOCKET_PATH: usize = 107;

/// The most bytes of the status socket's own name: what comes before it may be as long as any path.
pub(super) const MAX_SOCKET_NAME: usize = 80;

/// The status socket's path. It is bound through its directory: the kernel's bound is for its name.
pub(super) fn checked_status_socket(path: PathBuf) -> Result<PathBuf, String> {
    match path.file_name() {
        None => Err("names no file".to_owned()),
        Some(name) if name.len() > MAX_SOCKET_NAME => Err(format!(
            "ends in a name longer than {MAX_SOCKET_NAME} bytes, which the kernel binds no socket to"
        )),
        Some(_) => Ok(path),
    }
}

/// A unix socket's path, which the kernel bounds.
pub(super) fn checked_socket(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(format!(
            "is longer than the {MAX_SOCKET_PATH} bytes a unix socket's path may have"
        ));
    }
    Ok(path)
}

/// `[journal]`
#[derive(Clone, Debug)]
pub struct Journal {
    pub max_bytes: u64,
    pub max_events: u64,
}

impl Journal {
    pub(super) fn read(r: &mut Reader) -> Self {
        // The caps may be lowered, never raised.
        Self {
            max_bytes: r.integer("journal", "max_bytes", 67_108_864, 1, 67_108_864),
            max_events: r.integer("journal", "max_events", 10_000, 1, 10_000),
        }
    }
}

/// `[log]`
#[derive(Clone, Debug)]
pub struct Log {
    pub level: Level,
    pub json: bool,
}

impl Log {
    pub(super) fn read(r: &mut Reader) -> Self {
        let level = match r.string("log", "level", Some("info")).as_deref() {
            Some("debug") => Level::Debug,
            Some("info") | None => Level::Info,
            Some("warn") => Level::Warn,
            Some("error") => Level::Error,
            Some(_) => {
                r.problem("log", "level", "must be debug, info, warn or error");
                Level::Info
            }
        };
        Self {
            level,
            json: r.boolean("log", "json", true),
        }
    }
}

/// `[metrics]`
#[derive(Clone, Debug)]
pub struct Metrics {
    /// For node_exporter's textfile collector, which reads names that end in `.prom`.
    pub textfile: Option<PathBuf>,
}

impl Metrics {
    pub(super) fn read(r: &mut Reader) -> Self {
        let textfile = r.path("metrics", "textfile", None);
        let textfile = textfile.and_then(|path| {
            let named = path.extension().is_some_and(|end| end == "prom");
            let checked = named
                .then_some(path)
                .ok_or_else(|| "must end in .prom, or node_exporter passes it over".to_owned());
            r.check("metrics", "textfile", checked)
        });
        Self { textfile }
    }
}

/// `[helper]`, with its socket set.
#[derive(Clone, Debug)]
pub struct Helper {
    pub socket: PathBuf,
    /// The unprivileged account `bcd node` runs as.
    pub user: String,
    /// The bridges an instance's NIC may join.
    pub instance_bridges: Vec<String>,
}

impl Helper {
    pub(super) fn read(r: &mut Reader) -> Option<Self> {
        const NEEDS: &str =
            "needs an absolute path and helper.user, the unprivileged account bcd node runs as";
        let socket = r.string("helper", "socket", None);
        let user = r.filled("helper", "user");
        if let Some(user) = &user {
            if user == "root" {
                r.problem(
                    "helper",
                    "user",
                    "is root; name the unprivileged account bcd node runs as",
                );
            } else if !values::is_account_name(user) {
                r.problem("helper", "user", "is not an account's name");
            }
        }
        let instance_bridges = r.list("helper", "instance_bridges", None, |entry| {
            if values::is_interface_name(entry) {
                Ok(entry.to_owned())
            } else {
                Err(format!("{} is not an interface name", quoted(entry)))
            }
        });
        let socket = socket?;
        if !socket.starts_with('/') || user.is_none() {
            r.problem("helper", "socket", NEEDS);
            return None;
        }
        let socket = r.check("helper", "socket", checked_socket(PathBuf::from(socket)))?;
        Some(Self {
            socket,
            user: user?,
            instance_bridges,
        })
    }
}

/// `[update]`
#[derive(Clone, Debug)]
pub struct Update {
    /// The release keys; none refuses every self-update.
    pub release_pins: Vec<Pin>,
    /// How many distinct pinned keys must have signed a release.
    pub release_threshold: u64,
    /// No release with a lower sequence is taken; 0 is unknown.
    pub release_sequence: u64,
    /// The path `bcd.service` starts.
    pub entrypoint: PathBuf,
    /// The directory of the binary slots.
    pub slots_dir: PathBuf,
    /// Whether the file names `slots_dir`: the update's records then lie beside the slots.
    pub slots_dir_is_set: bool,
}

impl Update {
    /// The two paths may not be the unprivileged node's own under `[helper]`: root runs what lies there.
    pub(super) fn read(r: &mut Reader, data_dir: Option<&Path>, helper: bool) -> Option<Self> {
        let release_pins = r.list("update", "release_pins", None, |entry| {
            Pin::parse(entry).map_err(|error| format!("{} is not a pin: {error}", quoted(entry)))
        });
        let mut distinct: Vec<String> = release_pins.iter().map(ToString::to_string).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let release_threshold = r.integer("update", "release_threshold", 1, 1, 100);
        if !distinct.is_empty() && release_threshold > distinct.len() as u64 {
            r.problem(
                "update",
                "release_threshold",
                "is more than there are distinct release_pins",
            );
        }
        let release_sequence = r.integer("update", "release_sequence", 0, 0, i64::MAX as u64);
        let entrypoint = r.path("update", "entrypoint", Some("/usr/local/bin/bcd"));
        // The default hangs on other keys, so it is filled in below.
        let slots_dir_is_set = r.path("update", "slots_dir", None);
        let set = r.is_set("update", "slots_dir");
        let data_dir = data_dir?;
        let slots_dir = match slots_dir_is_set {
            Some(path) => path,
            None if set => return None,
            None if helper => PathBuf::from("/usr/local/lib/bcd"),
            None => data_dir.join("bin"),
        };
        r.set_default("update", "slots_dir", slots_dir.to_str().map(str::to_owned));
        let entrypoint = entrypoint?;
        if helper {
            if values::is_inside(&entrypoint, data_dir) {
                r.problem(
                    "update",
                    "entrypoint",
                    ": under bcd helper, update.entrypoint may not be inside data_dir",
                );
            }
            if values::is_inside(&slots_dir, data_dir) {
                r.problem(
                    "update",
                    "slots_dir",
                    ": under bcd helper, update.slots_dir may not be inside data_dir",
                );
            } else if values::is_inside(data_dir, &slots_dir) {
                r.problem(
                    "update",
                    "slots_dir",
                    ": under bcd helper, update.slots_dir may not contain data_dir",
                );
            }
        }
        Some(Self {
            release_pins,
            release_threshold,
            release_sequence,
            entrypoint,
            slots_dir,
            slots_dir_is_set: set,
        })
    }
}

/// `[site]`: what a site agent keeps to itself.
#[derive(Clone, Debug)]
pub struct Site {
    /// The BMCs' networks, which `site.httpProxy` never reaches into.
    pub bmc_networks: Vec<Cidr>,
}

impl Site {
    pub(super) fn read(r: &mut Reader) -> Self {
        let bmc_networks = r.list("site", "bmc_networks", None, |entry| {
            entry
                .parse::<Cidr>()
                .map_err(|what| format!("{} {what}", quoted(entry)))
        });
        Self { bmc_networks }
    }
}

/// `[websocket]`, with its url set.
#[derive(Clone, Debug)]
pub struct WebSocket {
    /// Its scheme is that of the request that opens it: https for `wss://`.
    pub url: Url,
    /// A TLS-inspecting proxy's CA, trusted for the TLS connection only.
    pub proxy_ca_file: Option<PathBuf>,
    /// The gateway's public host, which the node's proof names.
    pub audience: String,
}

impl WebSocket {
    pub(super) fn read(r: &mut Reader, insecure: bool, server_name: Option<&str>) -> Option<Self> {
        let url = r.filled("websocket", "url");
        let url = url.and_then(|text| r.check("websocket", "url", websocket_url(&text, insecure)));
        let proxy_ca_file = r.path("websocket", "proxy_ca_file", None);
        let audience = r.filled("websocket", "audience");
        if let Some(audience) = &audience
            && !values::is_server_name(audience)
        {
            r.problem("websocket", "audience", "is not a DNS name or an address");
        }
        let Some(url) = url else {
            for key in ["proxy_ca_file", "audience"] {
                if r.is_set("websocket", key) && !r.is_set("websocket", "url") {
                    r.problem("websocket", key, "is set without websocket.url");
                }
            }
            return None;
        };
        let audience = audience.unwrap_or_else(|| server_name.unwrap_or(&url.host).to_owned());
        r.set_default("websocket", "audience", Some(audience.clone()));
        Some(Self {
            url,
            proxy_ca_file,
            audience,
        })
    }
}

/// A WebSocket's URL as that of the HTTP request which opens it: `wss://` as `https://`.
fn websocket_url(text: &str, insecure: bool) -> Result<Url, String> {
    let (https, rest) = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => ("https", rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") && insecure => ("http", rest),
        _ => return Err("must be a wss:// URL".to_owned()),
    };
    Url::parse(&format!("{https}://{rest}")).map_err(|error| format!(": {error}"))
}

/// `[instances]`
#[derive(Clone, Debug)]
pub struct Instances {
    /// The share of its memory a ballooned guest always keeps.
    pub balloon_floor_percent: u64,
}

impl Instances {
    pub(super) fn read(r: &mut Reader) -> Self {
        Self {
            balloon_floor_percent: r.integer("instances", "balloon_floor_percent", 50, 10, 100),
        }
    }
}

/// `[imds]`
#[derive(Clone, Debug)]
pub struct Imds {
    /// Where the instances' metadata service listens; `None` turns it off.
    pub listen: Option<Listen>,
}

impl Imds {
    pub(super) fn read(r: &mut Reader) -> Self {
        Self {
            listen: read_listen(r, "imds", "listen"),
        }
    }
}

/// `[host]`
#[derive(Clone, Debug)]
pub struct Host {
    /// Whether bcd applies the host units of its spec.
    pub units: bool,
}

impl Host {
    pub(super) fn read(r: &mut Reader) -> Self {
        Self {
            units: r.boolean("host", "units", true),
        }
    }
}

/// How GPUs are offered to the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuApi {
    DevicePlugin,
    Dra,
}

/// `[kubernetes]`
#[derive(Clone, Debug)]
pub struct Kubernetes {
    /// The only clusters this machine may be joined to.
    pub allowed_clusters: Vec<Cluster>,
    pub gpu_api: GpuApi,
}

impl Kubernetes {
    pub(super) fn read(r: &mut Reader) -> Self {
        let allowed_clusters = r.list("kubernetes", "allowed_clusters", None, |entry| {
            cluster(entry).ok_or_else(|| {
                format!(
                    "{} is not of the form https://host[:port]#sha256:<64 lower-case hex digits>",
                    quoted(entry)
                )
            })
        });
        let gpu_api = match r
            .string("kubernetes", "gpu_api", Some("device-plugin"))
            .as_deref()
        {
            Some("dra") => GpuApi::Dra,
            Some("device-plugin") | None => GpuApi::DevicePlugin,
            Some(_) => {
                r.problem("kubernetes", "gpu_api", "must be device-plugin or dra");
                GpuApi::DevicePlugin
            }
        };
        Self {
            allowed_clusters,
            gpu_api,
        }
    }
}

fn cluster(entry: &str) -> Option<Cluster> {
    let (url, digest) = entry.split_once('#')?;
    let url = Url::parse(url)
        .ok()
        .filter(|url| url.https && url.path == "/")?;
    let ca_sha256 = values::hex_digest(digest.strip_prefix("sha256:")?)?;
    Some(Cluster {
        url: url.origin(),
        ca_sha256,
    })
}

/// `[boot]`, with its listen address set: a site agent's boot server.
#[derive(Clone, Debug)]
pub struct Boot {
    pub listen: Listen,
    /// How machines reach the boot server.
    pub url: Option<Url>,
    /// The URLs of the ramdisk's kernel and initramfs.
    pub kernel: Option<Url>,
    pub initrd: Option<Url>,
    /// Appended to every ramdisk's kernel command line.
    pub cmdline: String,
    /// The agent's address on the provisioning network.
    pub server_ip: Option<Ipv4Addr>,
    pub proxy_dhcp: bool,
    pub tftp: Option<Listen>,
    pub tftp_root: Option<PathBuf>,
    /// The image cache's byte budget; 0 is unbounded.
    pub cache_max_bytes: u64,
}

impl Boot {
    pub(super) fn read(r: &mut Reader) -> Option<Self> {
        let listen = read_listen(r, "boot", "listen");
        let url = read_http_url(r, "url");
        let kernel = read_http_url(r, "kernel");
        let initrd = read_http_url(r, "initrd");
        let cmdline = r.string("boot", "cmdline", Some("")).unwrap_or_default();
        if cmdline.chars().any(char::is_control) {
            r.problem(
                "boot",
                "cmdline",
                "must be one line without control characters",
            );
        }
        let server_ip = r.filled("boot", "server_ip");
        let server_ip = server_ip.and_then(|text| {
            let address = text
                .parse::<Ipv4Addr>()
                .map_err(|_| "is not an IPv4 address".to_owned());
            r.check("boot", "server_ip", address)
        });
        let proxy_dhcp = r.boolean("boot", "proxy_dhcp", false);
        let tftp = read_listen(r, "boot", "tftp");
        let tftp_root = r.path("boot", "tftp_root", None);
        let cache_max_bytes = r.integer("boot", "cache_max_bytes", 0, 0, i64::MAX as u64);
        for (key, on) in [("proxy_dhcp", proxy_dhcp), ("tftp", tftp.is_some())] {
            if on && !(r.is_set("boot", "server_ip") && r.is_set("boot", "url")) {
                r.problem("boot", key, "needs boot.server_ip and boot.url");
            }
        }
        if tftp.is_some() && !r.is_set("boot", "tftp_root") {
            r.problem(
                "boot",
                "tftp",
                "needs boot.tftp_root, the directory it serves",
            );
        }
        Some(Self {
            listen: listen?,
            url,
            kernel,
            initrd,
            cmdline,
            server_ip,
            proxy_dhcp,
            tftp,
            tftp_root,
            cache_max_bytes,
        })
    }
}

/// A listen address that an empty string turns off.
fn read_listen(r: &mut Reader, section: &'static str, key: &'static str) -> Option<Listen> {
    let text = r.string(section, key, Some(""))?;
    if text.is_empty() {
        return None;
    }
    r.check(section, key, text.parse::<Listen>().map_err(str::to_owned))
}

fn read_http_url(r: &mut Reader, key: &'static str) -> Option<Url> {
    let text = r.filled("boot", key)?;
    let url = Url::parse(&text).map_err(|error| format!(": {error}"));
    r.check("boot", key, url)
}

/// `[plugins]`, with its directory set.
#[derive(Clone, Debug)]
pub struct Plugins {
    pub dir: PathBuf,
    /// Who plugins run as; `None` gives each its own uid.
    pub user: Option<String>,
    /// The plugins that run as root, unfiltered.
    pub privileged: Vec<String>,
    pub sandbox: bool,
    pub cgroup: Option<PathBuf>,
    /// Bytes; 0 is no limit.
    pub memory_max: u64,
    /// 0 is no limit.
    pub pids_max: u64,
}

impl Plugins {
    pub(super) fn read(r: &mut Reader) -> Option<Self> {
        let dir = r
            .string("plugins", "dir", Some(""))
            .filter(|dir| !dir.is_empty());
        if dir.as_deref().is_some_and(|dir| !dir.starts_with('/')) {
            r.problem("plugins", "dir", "must be an absolute path");
        }
        let user = r.filled("plugins", "user");
        match user.as_deref() {
            Some("root") => r.problem(
                "plugins",
                "user",
                "is root; name an unprivileged account, or leave it out",
            ),
            Some(user) if !values::is_account_name(user) => {
                r.problem("plugins", "user", "is not an account's name")
            }
            _ => {}
        }
        let privileged = r.list("plugins", "privileged", None, |entry| {
            if values::is_plugin_name(entry) {
                Ok(entry.to_owned())
            } else {
                Err(format!("{} is not a plugin's name", quoted(entry)))
            }
        });
        let sandbox = r.boolean("plugins", "sandbox", true);
        let cgroup = r.path("plugins", "cgroup", None);
        if let Some(cgroup) = &cgroup {
            let root = Path::new("/sys/fs/cgroup");
            if !values::is_inside(cgroup, root) || values::is_inside(root, cgroup) {
                r.problem("plugins", "cgroup", "must be a path below /sys/fs/cgroup");
            }
        }
        let memory_max = r.integer("plugins", "memory_max", 0, 0, i64::MAX as u64);
        let pids_max = r.integer("plugins", "pids_max", 0, 0, i64::MAX as u64);
        Some(Self {
            dir: PathBuf::from(dir?),
            user,
            privileged,
            sandbox,
            cgroup,
            memory_max,
            pids_max,
        })
    }
}
