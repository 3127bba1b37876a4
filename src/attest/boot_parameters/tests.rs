#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
use super::*;
use crate::crypto::key::NodeKey;

/// A good line, a word each.
fn words() -> Vec<String> {
    let key = NodeKey::generate().unwrap();
    let pin = key.pin();
    let jwk = PublicKey::from_point(*key.point()).to_json();
    let mut assertion = envelope::sign(vec![10, 4], Purpose::DiscoveryAssertion, &key).unwrap();
    assertion.signatures[0].public_key.clear();
    vec![
        "bc.gateway=https://gateway.example.com:8443".to_owned(),
        "bc.server_name=gw.example.com".to_owned(),
        "bc.cache=http://10.20.0.2:8080/cache".to_owned(),
        "bc.site=fsn1".to_owned(),
        format!("bc.pins={pin},{pin},{pin}"),
        format!("bc.jwk={}", base64::encode_url(jwk.as_bytes())),
        format!("bc.token=bcjt_jt_{}.{}", "0".repeat(26), "A".repeat(43)),
        format!(
            "bc.assertion={}",
            base64::encode_url(&assertion.encode_to_vec())
        ),
        "BOOTIF=01-52-54-00-12-34-56".to_owned(),
    ]
}

fn read(words: &[String]) -> Result<BootParameters, String> {
    let line = words.join(" ");
    BootParameters::read(&CommandLine::parse(line.as_bytes()))
        .map_err(|refused| refused.to_string())
}

fn refusal(words: &[String]) -> String {
    read(words).err().unwrap()
}

#[test]
fn a_good_line_is_read_whole_and_makes_a_configuration() {
    let parameters = read(&words()).unwrap();
    assert_eq!(parameters.gateway_url.port, 8443);
    assert_eq!(parameters.boot_nic, Mac::parse("52:54:00:12:34:56"));
    assert_eq!(parameters.cache.as_ref().unwrap().path, "/cache");
    let config = parameters.config(Path::new("/run/bcd")).unwrap();
    assert_eq!(config.site, "fsn1");
    assert_eq!(
        config.gateway_server_name.as_deref(),
        Some("gw.example.com")
    );
    assert_eq!(config.data_dir, Path::new("/run/bcd"));
    assert!(config.log.json);
}

#[test]
fn what_may_be_left_out_may_and_quotes_are_taken_off_both_ways() {
    let mut words = words();
    words.retain(|word| !word.contains("server_name") && !word.contains("cache"));
    words[0] = words[0].replace('=', "=\"") + "\"";
    words[1] = format!("\"{}\"", words[1]);
    words.pop();
    let parameters = read(&words).unwrap();
    assert_eq!(parameters.site, "fsn1");
    assert!(parameters.server_name.is_none() && parameters.boot_nic.is_none());
}

#[test]
fn every_missing_parameter_is_named_at_once() {
    assert_eq!(
        refusal(&["quiet".to_owned(), "bc.site=".to_owned(), "x".to_owned()]),
        "the kernel command line lacks bc.gateway, bc.site, bc.pins, bc.jwk, bc.token, bc.assertion"
    );
    let mut one = words();
    one.remove(6);
    assert_eq!(refusal(&one), "the kernel command line lacks bc.token");
    // A name is a name only whole.
    one.insert(0, "xbc.token=x".to_owned());
    assert_eq!(refusal(&one), "the kernel command line lacks bc.token");
}

#[test]
fn a_doubled_parameter_is_an_error_that_shows_both_values_but_no_secret() {
    let mut doubled = words();
    doubled.push("bc.site=hel1".to_owned());
    let text = refusal(&doubled);
    assert!(text.contains("\"fsn1\" and as \"hel1\""), "{text}");
    assert!(!text.contains("lacks"), "{text}");
    let mut doubled = words();
    doubled.insert(0, "bc.token=bcjt_secret".to_owned());
    let text = refusal(&doubled);
    assert!(text.contains("11 characters"), "{text}");
    assert!(!text.contains("bcjt_"), "{text}");
}

#[test]
fn each_wrong_value_is_named_with_what_it_should_be() {
    for (index, value, part) in [
        (
            0,
            "bc.gateway=https://gw/path",
            "bc.gateway must not have a path",
        ),
        (0, "bc.gateway=nonsense", "bc.gateway: "),
        (1, "bc.server_name=a_b!", "bc.server_name is not a DNS name"),
        (2, "bc.cache=ftp://x", "bc.cache: "),
        (3, "bc.site=\"a b\"", "bc.site must not contain whitespace"),
        (4, "bc.pins=sha256/x", "bc.pins must be three pins"),
        (5, "bc.jwk=e30", "bc.jwk is no P-256 JWK"),
        (6, "bc.token=bcjt_jt_0", "bc.token: it is cut short"),
        (7, "bc.assertion=AAAA", "bc.assertion is no whole assertion"),
    ] {
        let mut words = words();
        words[index] = value.to_owned();
        let text = refusal(&words);
        assert!(text.starts_with(part), "{value}: {text}");
        assert!(
            !text.contains("AAAA") && !text.contains("bcjt_jt_0 "),
            "{text}"
        );
    }
    let mut words = words();
    let other = NodeKey::generate().unwrap().pin();
    let pins = words[4].rsplit_once(',').unwrap().0.to_owned();
    words[4] = format!("{pins},{other}");
    assert_eq!(
        refusal(&words),
        "bc.jwk is not the key that the third pin of bc.pins names"
    );
}

#[test]
fn a_line_that_is_cut_anywhere_is_called_that() {
    let mut words = words();
    words.pop();
    let line = words.join(" ");
    let start = line.find("bc.assertion=").unwrap();
    for end in start..line.len() {
        let cut = CommandLine::parse(&line.as_bytes()[..end]);
        let text = BootParameters::read(&cut).err().unwrap().to_string();
        let last = "the line ends in bc.assertion";
        assert!(
            text.contains("bc.assertion") || end == start,
            "{end}: {text}"
        );
        if end > start + 3 && !text.contains("lacks") {
            assert!(text.contains(last), "{end}: {text}");
        }
    }
    // Where kernels cut, it is said for certain.
    words[2] = format!("bc.cache=http://h/{}", "c".repeat(2047 - line.len() + 150));
    let line = words.join(" ");
    let cut = CommandLine::parse(&line.as_bytes()[..2047]);
    let text = BootParameters::read(&cut).err().unwrap().to_string();
    assert!(
        text.contains("looks cut off after 2047 bytes, in or after bc.assertion"),
        "{text}"
    );
    assert!(!text.contains("signature"), "{text}");
}
