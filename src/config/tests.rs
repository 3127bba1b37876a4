#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use super::*;
use crate::sys::log::Level;

const PIN: &str = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

/// The required keys, on lines 1 to 5.
fn base() -> String {
    format!(
        "gateway_url = \"https://gw.eu.example.com\"\nsite = \"fsn1\"\nserving_ca_spki_pin = \"{PIN}\"\n\
         join_signing_key_pin = \"{PIN}\"\njoin_encryption_key_pin = \"{PIN}\"\n"
    )
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text.as_bytes(), Path::new("/etc/bcd/config.toml"))
}

/// The configuration of the required keys and `more`.
fn with(more: &str) -> Config {
    parse(&format!("{}{more}", base())).unwrap_or_else(|error| panic!("{more}: {error}"))
}

/// The problems of the required keys and `more`, whose first line is line 6.
fn problems(more: &str) -> Vec<String> {
    match parse(&format!("{}{more}", base())) {
        Ok(_) => panic!("accepted {more}"),
        Err(error) => error.problems().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn the_reference_example_has_every_default() {
    let config = with("");
    assert_eq!(config.gateway_url.origin(), "https://gw.eu.example.com");
    assert_eq!(config.gateway_name(), "gw.eu.example.com");
    assert_eq!(config.data_dir, Path::new("/var/lib/bcd"));
    assert_eq!(config.socket_path, Path::new("/run/bcd/bcd.sock"));
    assert_eq!(config.journal.max_bytes, 67_108_864);
    assert_eq!(config.journal.max_events, 10_000);
    assert_eq!((config.log.level, config.log.json), (Level::Info, true));
    assert!(!config.dev_insecure_h2c && config.approver_set_sha256.is_none());
    assert!(config.command_root_sha256.is_empty());
    assert!(config.update.release_pins.is_empty());
    assert_eq!(
        (
            config.update.release_threshold,
            config.update.release_sequence
        ),
        (1, 0)
    );
    assert_eq!(config.update.entrypoint, Path::new("/usr/local/bin/bcd"));
    assert_eq!(config.update.slots_dir, Path::new("/var/lib/bcd/bin"));
    assert!(!config.update.slots_dir_is_set);
    assert!(config.helper.is_none() && config.websocket.is_none() && config.boot.is_none());
    assert!(config.plugins.is_none() && config.imds.listen.is_none());
    assert!(config.site_agent.bmc_networks.is_empty());
    assert_eq!(config.instances.balloon_floor_percent, 50);
    assert!(config.host.units);
    assert!(config.kubernetes.allowed_clusters.is_empty());
    assert_eq!(config.kubernetes.gpu_api, GpuApi::DevicePlugin);
    assert_eq!(
        config.join_encryption_jwk(),
        Path::new("/etc/bcd/join-encryption.jwk")
    );
    assert_eq!(
        config.whereabouts("", "site"),
        "site in /etc/bcd/config.toml, line 2"
    );
    assert_eq!(
        config.whereabouts("log", "level"),
        "log.level in /etc/bcd/config.toml"
    );
}

#[test]
fn every_key_of_the_table_is_read() {
    let digest = "0f".repeat(32);
    let config = with(&format!(
        r#"
data_dir = "/srv/bcd"
socket_path = "/srv/bcd.sock"
gateway_server_name = "gw.internal"
approver_set_sha256 = "{digest}"
command_root_sha256 = "{digest}, {digest}"
[journal]
max_bytes = 1_000_000
max_events = 10
[log]
level = "debug"
json = false
[metrics]
textfile = "/run/node-exporter/bcd.prom"
[update]
release_pins = "{PIN}"
release_threshold = 1
release_sequence = 7
entrypoint = "/opt/bcd"
slots_dir = "/opt/slots"
[helper]
socket = "/run/bcd-helper/helper.sock"
user = "bcd"
instance_bridges = "br0, br-priv"
[site]
bmc_networks = "10.20.0.0/16,fd00::/8"
[websocket]
url = "wss://gw.example.com/v1/session"
proxy_ca_file = "/etc/bcd/websocket-proxy-ca.pem"
[instances]
balloon_floor_percent = 10
[imds]
listen = "169.254.169.254:80"
[host]
units = false
[kubernetes]
allowed_clusters = "https://k8s.example.com:6443#sha256:{digest}"
gpu_api = "dra"
[boot]
listen = "0.0.0.0:8080"
url = "http://10.20.0.2:8080"
kernel = "http://10.20.0.2:8080/ramdisk/vmlinuz"
initrd = "http://10.20.0.2:8080/ramdisk/initrd"
cmdline = "console=ttyS0,115200"
server_ip = "10.20.0.2"
proxy_dhcp = true
tftp = ":69"
tftp_root = "/srv/bcd/ipxe"
cache_max_bytes = 1
[plugins]
dir = "/usr/local/lib/bcd/plugins"
user = "plug"
privileged = "kata"
sandbox = false
cgroup = "/sys/fs/cgroup/system.slice/bcd.service/plugins"
memory_max = 1
pids_max = 2
"#
    ));
    assert_eq!(config.gateway_name(), "gw.internal");
    assert_eq!(config.approver_set_sha256, Some([15; 32]));
    assert_eq!(config.command_root_sha256.len(), 2);
    assert_eq!(config.log.level, Level::Debug);
    assert_eq!(config.update.slots_dir, Path::new("/opt/slots"));
    assert_eq!(config.helper.unwrap().instance_bridges, ["br0", "br-priv"]);
    assert_eq!(config.site_agent.bmc_networks.len(), 2);
    assert_eq!(config.websocket.unwrap().audience, "gw.internal");
    assert_eq!(config.imds.listen.unwrap().port, 80);
    assert_eq!(
        config.kubernetes.allowed_clusters[0].url,
        "https://k8s.example.com:6443"
    );
    let boot = config.boot.unwrap();
    assert_eq!(boot.tftp.unwrap().port, 69);
    assert!(boot.proxy_dhcp);
    let plugins = config.plugins.unwrap();
    assert_eq!(
        (plugins.memory_max, plugins.pids_max, plugins.sandbox),
        (1, 2, false)
    );
    assert!(config.settings.iter().all(|setting| setting.line.is_some()
        || matches!(
            (setting.section, setting.key),
            ("", "dev_insecure_h2c" | "newer_keys") | ("websocket", "audience")
        )));
}

#[test]
fn every_missing_required_key_is_named_at_once() {
    let error = parse("").unwrap_err();
    let missing: Vec<&str> = error
        .problems()
        .iter()
        .map(|problem| problem.key.as_str())
        .collect();
    assert_eq!(
        missing,
        [
            "gateway_url",
            "site",
            "serving_ca_spki_pin",
            "join_signing_key_pin",
            "join_encryption_key_pin"
        ]
    );
    assert!(error.to_string().starts_with("the configuration /etc/bcd/config.toml is refused: gateway_url is missing; site is missing;"));
}

#[test]
fn each_rule_of_the_table_is_kept_with_line_and_key() {
    let digest = "0f".repeat(32);
    let many = vec![digest.as_str(); 17].join(",");
    let cases: Vec<(String, &str)> = vec![
        ("data_dir = \"var\"".into(), "line 6: data_dir must be an absolute path"),
        ("data_dir = \"/a\\u0000b\"".into(), "line 6: data_dir holds a NUL byte"),
        (format!("socket_path = \"/{}\"", "a".repeat(107)), "line 6: socket_path ends in a name longer than 80 bytes"),
        ("gateway_server_name = \"\"".into(), "line 6: gateway_server_name is empty"),
        ("gateway_server_name = \"a b\"".into(), "line 6: gateway_server_name is not a DNS name"),
        ("approver_set_sha256 = \"AA\"".into(), "line 6: approver_set_sha256 must be 64 lower-case hex digits"),
        ("command_root_sha256 = \"xy\"".into(), "line 6: command_root_sha256: \"xy\" is not 64"),
        (format!("command_root_sha256 = \"{digest},,\""), "line 6: command_root_sha256 has an empty entry"),
        (format!("command_root_sha256 = \"{many}\""), "line 6: command_root_sha256 lists more than 16"),
        ("[journal]\nmax_bytes = 67108865".into(), "line 7: journal.max_bytes must be at most 67108864"),
        ("[journal]\nmax_bytes = 0".into(), "line 7: journal.max_bytes must be at least 1"),
        ("[journal]\nmax_events = 10001".into(), "line 7: journal.max_events must be at most 10000"),
        ("[journal]\nmax_events = \"1\"".into(), "line 7: journal.max_events must be an integer, not a string"),
        ("[log]\nlevel = \"trace\"".into(), "line 7: log.level must be debug, info, warn or error"),
        ("[log]\njson = 1".into(), "line 7: log.json must be a boolean, not an integer"),
        ("[update]\nrelease_pins = \"sha1/x\"".into(), "line 7: update.release_pins: \"sha1/x\" is not a pin"),
        (format!("[update]\nrelease_pins = \"{PIN},{PIN}\"\nrelease_threshold = 2"), "line 8: update.release_threshold is more than"),
        ("[update]\nrelease_threshold = 0".into(), "line 7: update.release_threshold must be at least 1"),
        ("[update]\nrelease_sequence = -1".into(), "line 7: update.release_sequence must not be negative"),
        ("[update]\nslots_dir = \"x\"".into(), "line 7: update.slots_dir must be an absolute path"),
        ("[helper]\nsocket = \"x\"\nuser = \"bcd\"".into(), "line 7: helper.socket needs an absolute path and helper.user, the unprivileged account bcd node runs as"),
        ("[helper]\nsocket = \"/x\"".into(), "line 7: helper.socket needs an absolute path and helper.user, the unprivileged account bcd node runs as"),
        ("[helper]\nuser = \"root\"".into(), "line 7: helper.user is root"),
        ("[helper]\nuser = \"a b\"".into(), "line 7: helper.user is not an account's name"),
        ("[helper]\ninstance_bridges = \"br0,br 1\"".into(), "line 7: helper.instance_bridges: \"br 1\" is not an interface name"),
        ("[helper]\nsocket = \"/x\"\nuser = \"bcd\"\n[update]\nentrypoint = \"/var/lib/bcd/../bcd/x\"".into(), "line 10: update.entrypoint: under bcd helper, update.entrypoint may not be inside data_dir"),
        ("[helper]\nsocket = \"/x\"\nuser = \"bcd\"\n[update]\nslots_dir = \"/var/lib/bcd/bin\"".into(), "line 10: update.slots_dir: under bcd helper, update.slots_dir may not be inside data_dir"),
        ("[helper]\nsocket = \"/x\"\nuser = \"bcd\"\n[update]\nslots_dir = \"/var//lib/\"".into(), "line 10: update.slots_dir: under bcd helper, update.slots_dir may not contain data_dir"),
        ("data_dir = \"/usr/local/lib\"\n[helper]\nsocket = \"/x\"\nuser = \"bcd\"".into(), "update.slots_dir: under bcd helper"),
        ("[site]\nbmc_networks = \"10.0.0.0/33\"".into(), "line 7: site.bmc_networks: \"10.0.0.0/33\" is not a network"),
        ("[websocket]\nurl = \"ws://gw\"".into(), "line 7: websocket.url must be a wss:// URL"),
        ("[websocket]\nurl = \"wss://u:p@gw\"".into(), "line 7: websocket.url: the URL holds a user name or password"),
        ("[websocket]\naudience = \"gw\"".into(), "line 7: websocket.audience is set without websocket.url"),
        ("[websocket]\nurl = \"wss://gw\"\nproxy_ca_file = \"ca.pem\"".into(), "line 8: websocket.proxy_ca_file must be an absolute path"),
        ("[instances]\nballoon_floor_percent = 9".into(), "line 7: instances.balloon_floor_percent must be at least 10"),
        ("[instances]\nballoon_floor_percent = 101".into(), "line 7: instances.balloon_floor_percent must be at most 100"),
        ("[imds]\nlisten = \"localhost:80\"".into(), "line 7: imds.listen is not an address and port"),
        ("[host]\nunits = \"no\"".into(), "line 7: host.units must be a boolean, not a string"),
        ("[kubernetes]\nallowed_clusters = \"http://a#sha256:00\"".into(), "line 7: kubernetes.allowed_clusters: \"http://a#sha256:00\" is not of the form"),
        ("[kubernetes]\ngpu_api = \"both\"".into(), "line 7: kubernetes.gpu_api must be device-plugin or dra"),
        ("[boot]\nproxy_dhcp = true".into(), "line 7: boot.proxy_dhcp needs boot.server_ip and boot.url"),
        ("[boot]\ntftp = \":69\"\ntftp_root = \"/a\"\nurl = \"http://a\"".into(), "line 7: boot.tftp needs boot.server_ip and boot.url"),
        ("[boot]\nserver_ip = \"fd00::1\"".into(), "line 7: boot.server_ip is not an IPv4 address"),
        ("[boot]\ncmdline = \"a\\nb\"".into(), "line 7: boot.cmdline must be one line"),
        ("[boot]\ncache_max_bytes = -1".into(), "line 7: boot.cache_max_bytes must not be negative"),
        ("[plugins]\ndir = \"x\"".into(), "line 7: plugins.dir must be an absolute path"),
        ("[plugins]\nuser = \"root\"".into(), "line 7: plugins.user is root"),
        ("[plugins]\nprivileged = \"../x\"".into(), "line 7: plugins.privileged: \"../x\" is not a plugin's name"),
        ("[plugins]\ncgroup = \"/sys/fs/cgroup/../x\"".into(), "line 7: plugins.cgroup must be a path below /sys/fs/cgroup"),
        ("[plugins]\nmemory_max = -1".into(), "line 7: plugins.memory_max must not be negative"),
        ("[plugins]\npids_max = -1".into(), "line 7: plugins.pids_max must not be negative"),
        ("newer_keys = \"*\"".into(), "line 6: newer_keys: \"*\" is not of the form"),
    ];
    for (more, want) in cases {
        let problems = problems(&more);
        assert!(
            problems.iter().any(|problem| problem.starts_with(want)),
            "{more}: {problems:?}"
        );
    }
}

#[test]
fn each_required_key_has_its_rules() {
    let cases = [
        ("gateway_url", "http://gw.example.com"),
        ("gateway_url", "https://user:secret@gw.example.com"),
        ("gateway_url", "https://gw.example.com/path"),
        ("gateway_url", "gw.example.com"),
        ("gateway_url", ""),
        ("site", ""),
        ("site", "fsn 1"),
        ("site", "fsn1\\n"),
        ("site", "\\u2003"),
        (
            "serving_ca_spki_pin",
            "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        ),
        ("join_signing_key_pin", "sha256/AAAA"),
        (
            "join_encryption_key_pin",
            "sha256/47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=",
        ),
    ];
    for (key, value) in cases {
        let text: String = base()
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some((name, _)) if name == key => format!("{key} = \"{value}\"\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let error = parse(&text).unwrap_err();
        let [problem] = error.problems() else {
            panic!("{key} = {value}: {error}")
        };
        assert_eq!(problem.key, key);
        assert!(problem.line.is_some());
        assert!(!error.to_string().contains("secret"));
    }
}

#[test]
fn typos_fail_loudly_and_say_what_was_meant() {
    assert_eq!(
        problems("gatway_url = \"x\""),
        ["line 6: gatway_url is an unknown key; did you mean gateway_url?"]
    );
    assert_eq!(
        problems("level = \"x\""),
        ["line 6: level is an unknown key; it belongs below [log]"]
    );
    assert_eq!(
        problems("[log]\ndata_dir = \"/x\""),
        [
            "line 7: log.data_dir is an unknown key; it belongs at the top of the file, above every [section]"
        ]
    );
    assert_eq!(
        problems("[jornal]\nmax_bytes = 1"),
        ["line 6: [jornal] is an unknown section; did you mean [journal]?"]
    );
    assert_eq!(
        problems("[quantum]\na = 1"),
        ["line 6: [quantum] is an unknown section"]
    );
    assert_eq!(
        problems("quantum = 1"),
        ["line 6: quantum is an unknown key"]
    );
}

#[test]
fn a_newer_file_starts_an_older_binary_when_it_says_so() {
    let config = with(
        "newer_keys = \"flux, journal.zip, quantum.*\"\nflux = 1\n[journal]\nzip = true\n[quantum]\na = \"b\"\n",
    );
    let ignored: Vec<&str> = config
        .newer_keys()
        .iter()
        .map(|key| key.name.as_str())
        .collect();
    assert_eq!(ignored, ["flux", "journal.zip", "quantum.a"]);
    // What it does not list stays an error, as does a known key's rule whatever it lists.
    assert_eq!(
        problems("newer_keys = \"quantum.a\"\n[quantum]\na = 1\nb = 2"),
        ["line 9: quantum.b is an unknown key"]
    );
    assert_eq!(
        problems("newer_keys = \"log.level\"\n[log]\nlevel = \"x\"").len(),
        1
    );
    assert_eq!(
        problems("newer_keys = \"flux\"\nflux = 1.5"),
        ["line 7: flux is a float; write an integer"]
    );
}

#[test]
fn all_problems_are_reported_in_the_order_of_their_lines() {
    let problems = problems("[log]\nlevel = 1\n[journal]\nmax_bytes = 0\nmax_event = 1");
    assert_eq!(problems.len(), 3);
    assert!(problems[0].starts_with("line 7: log.level"));
    assert!(problems[1].starts_with("line 9: journal.max_bytes"));
    assert!(problems[2].starts_with(
        "line 10: journal.max_event is an unknown key; did you mean journal.max_events?"
    ));
}

#[test]
fn a_file_over_64_kib_is_refused_and_one_at_64_kib_is_not() {
    let filler = MAX_BYTES - base().len() - 2;
    assert!(parse(&format!("{}#{}\n", base(), "x".repeat(filler))).is_ok());
    let error = parse(&format!("{}#{}\n", base(), "x".repeat(filler + 1))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration /etc/bcd/config.toml"
    );
    assert_eq!(error.source().unwrap().to_string(), "it is over 64 KiB");
}

#[cfg(not(feature = "fakehw"))]
#[test]
fn the_host_build_never_starts_with_cleartext() {
    assert_eq!(
        problems("dev_insecure_h2c = true"),
        ["line 6: dev_insecure_h2c is for fakehw builds only; this build does not start with it"]
    );
    let text = base().replace("https://", "http://") + "dev_insecure_h2c = true\n";
    assert_eq!(parse(&text).unwrap_err().problems().len(), 2);
    assert!(!with("dev_insecure_h2c = false").dev_insecure_h2c);
}

#[cfg(feature = "fakehw")]
#[test]
fn a_fakehw_build_takes_cleartext_only_when_told() {
    let text = base().replace("https://", "http://");
    assert!(parse(&text).is_err());
    assert!(parse(&(text + "dev_insecure_h2c = true\n[websocket]\nurl = \"ws://gw\"\n")).is_ok());
}

#[test]
fn a_fresh_configuration_reads_back() {
    let pin = Pin::parse(PIN).unwrap();
    let fresh = fresh::FreshConfig {
        written_by: "bcd join\nsite = 1".to_owned(),
        gateway_url: "https://10.0.0.1:8443".to_owned(),
        gateway_server_name: Some("gw.example.com".to_owned()),
        site: "a\"\\#é".to_owned(),
        serving_ca_spki_pin: pin,
        join_signing_key_pin: pin,
        join_encryption_key_pin: pin,
        data_dir: Some("/tmp/a \"b\"".into()),
        socket_path: Some("/tmp/s".into()),
        dev_insecure_h2c: false,
    };
    let config = parse(&fresh.to_toml()).unwrap();
    assert_eq!(config.site, "a\"\\#é");
    assert_eq!(config.data_dir, Path::new("/tmp/a \"b\""));
    assert_eq!(config.gateway_name(), "gw.example.com");
    assert_eq!(fresh::string("\u{0}\u{7f}\n"), "\"\\u0000\\u007F\\n\"");
}

#[test]
fn a_missing_file_a_directory_and_a_fifo_are_refused_without_waiting() {
    let dir = std::env::temp_dir().join(format!("bcd-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    assert!(Config::load(&dir.join("none")).unwrap_err().is_missing());
    assert!(matches!(Config::load(&dir), Err(ConfigError::Read(..))));
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(matches!(
        Config::load(&fifo),
        Err(ConfigError::Read(_, ReadError::NotAFile))
    ));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_file_that_others_may_touch_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("bcd-exposure-{}", std::process::id()));
    std::fs::write(&path, "").unwrap();
    let exposed = |mode: u32, helper: bool| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        exposure(&path, helper).unwrap()
    };
    for (mode, helper) in [
        (0o600, false),
        (0o400, false),
        (0o700, false),
        (0o640, true),
    ] {
        assert_eq!(exposed(mode, helper), None);
    }
    assert!(
        exposed(0o640, false)
            .unwrap()
            .contains("can be read by its group")
    );
    assert!(
        exposed(0o644, true)
            .unwrap()
            .contains("can be read by others; run chmod 0640")
    );
    assert!(
        exposed(0o666, false).unwrap().contains(
            "(mode 0666) can be read and written by its group and others; run chmod 0600"
        )
    );
    assert!(
        exposed(0o602, false)
            .unwrap()
            .contains("can be written by others")
    );
    std::fs::remove_file(&path).unwrap();
}
