use super::*;
use crate::pki::{Bundle, Lock};

fn public() -> Public {
    let temp = crate::store::tests::TempDir::new();
    let lock = Lock::from_key_file_or_new(&temp.0.join("key")).unwrap();
    Bundle::generate("t", true, &lock, 0).unwrap().public
}

fn everything() -> Options {
    let pin = Pin::of_spki(b"a key");
    Options {
        pool: "pool_h100".to_owned(),
        site: "fsn1".to_owned(),
        gateway_url: "https://gw.eu.example.com".to_owned(),
        downloads: "https://compute.example.com/api/compute/downloads".to_owned(),
        version: "0.1.0".to_owned(),
        sha256: [Some("0f".repeat(32)), None],
        release: Some(Release {
            pins: vec![pin; 16],
            threshold: 2,
            sequence: Some(7),
        }),
        websocket: Some(WebSocket {
            url: "wss://gw.eu.example.com/v1/session".to_owned(),
            audience: Some("gw.eu.example.com".to_owned()),
            proxy_ca: Some("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned()),
        }),
        bmc_networks: Some("10.0.0.0/8".to_owned()),
        plugins: Some("kata".to_owned()),
        install_plugins: vec![ReleasedPlugin {
            name: "bcx-ipmi",
            sha256: [Some("3c".repeat(32)), None],
        }],
        unprivileged: false,
        instance_bridges: None,
        tpm: false,
        approver_set_sha256: Some("1e".repeat(32)),
        command_root_sha256: Some(vec!["2d".repeat(32); 16].join(",")),
    }
}

#[test]
fn the_script_with_everything_in_is_below_24_kib() {
    let without_rights = Options {
        plugins: None,
        install_plugins: Vec::new(),
        unprivileged: true,
        instance_bridges: Some("br0,br-priv".to_owned()),
        ..everything()
    };
    for options in [everything(), without_rights] {
        let length = script(&options, &public()).unwrap().len();
        // A proxy's CA comes on top.
        assert!(length < 24 * 1024 - values::PROXY_CA_MAX, "{length}");
    }
}

#[test]
fn nothing_runs_before_the_last_line() {
    let script = script(&everything(), &public()).unwrap();
    assert!(script.ends_with("\n}\n\nmain \"$@\"\n"));
    let mut inside = false;
    let mut here = false;
    for line in script.lines() {
        match line {
            END => here = false,
            _ if here => {}
            _ if line.ends_with("<<'BCD_END'") => here = true,
            "}" => inside = false,
            _ if line.ends_with("() {") => inside = true,
            "" | "set -eu" | "umask 077" | "main \"$@\"" => {}
            _ => assert!(inside || line.starts_with('#'), "{line}"),
        }
    }
    assert!(!inside && !here);
}

#[test]
fn the_configuration_it_writes_is_read_back_as_it_was_told() {
    let public = public();
    let options = everything();
    let script = script(&options, &public).unwrap();
    // The head and the sections of a host without a configuration, as the script puts them together.
    let mut toml = config_head(&options, &public.pins());
    let sections = script.split("config_sections() {\n").nth(1).unwrap();
    for section in sections
        .split("\n}\n")
        .next()
        .unwrap()
        .split("  add_section ")
        .skip(1)
    {
        let name = section.split(' ').next().unwrap();
        let (_, rest) = section.split_once('\n').unwrap();
        let (body, _) = rest.split_once(END).unwrap();
        toml.push_str(&format!("\n[{name}]\n{body}"));
    }
    // The threshold needs as many different pins.
    let toml = toml.replace("release_threshold = 2", "release_threshold = 1");
    let config =
        bcd::config::Config::parse(toml.as_bytes(), std::path::Path::new("config.toml")).unwrap();
    assert_eq!(config.site, "fsn1");
    assert_eq!(config.serving_ca_spki_pin, public.pins().serving_ca);
}
