//! Whether the gateway proves itself: which certificate was presented, and which pin was expected.
use std::rc::Rc;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::{Seen, Verdict, WAIT, chain, wait};
use crate::attest::gateway::{self, Gateway};
use crate::config::Config;
use crate::crypto::gateway_verifier::Failure;
use crate::crypto::pin::Pin;
use crate::identity::store::{State, Store};
use crate::identity::trust::{Configured, Trust};
use crate::rt::TcpStream;
use crate::sys::clock;
use crate::wire::grpc::client::{Client, Endpoint, Waits};

pub(super) fn run(seen: &mut Seen<'_>) -> Verdict {
    let Ok(config) = seen.config else {
        return Verdict::no_config();
    };
    if !config.gateway_url.https && seen.through.is_empty() {
        return Verdict::warn(
            "none: gateway_url is http://",
            "use https:// outside of tests",
        );
    }
    let place = match seen.reached {
        Some(address) => format!("at {address}"),
        None if seen.through.is_empty() => {
            return Verdict::unseen("the gateway is not reached", "see the check gateway");
        }
        None => format!("behind {}", seen.through),
    };
    let (pins, endpoint) = match endpoint(config, seen.signed_ms) {
        Ok(made) => made,
        Err(why) => return Verdict::fail(why, "see the checks config and identity"),
    };
    let tried = wait(async {
        let connected = match seen.reached {
            Some(address) => Client::over(TcpStream::connect(address).await?, &endpoint).await,
            None => Client::connect(&endpoint).await,
        };
        let client = match connected {
            Ok(client) => client,
            Err(error) => return Ok(Err(error)),
        };
        Ok::<_, std::io::Error>(Ok(client.probe(WAIT).await))
    });
    match tried {
        Err(verdict) => verdict,
        Ok(Err(error)) => Verdict::fail(chain(&error), "see the check gateway"),
        Ok(Ok(Ok(Err(error)))) => Verdict::fail(
            format!(
                "{} {place} proved itself, and then did not answer: {}",
                config.gateway_name(),
                chain(&error)
            ),
            error.cause.remedy().unwrap_or(
                "it may not accept this node's certificate: see the checks identity and daemon, and the gateway's log",
            ),
        ),
        Ok(Ok(Ok(Ok(date)))) => {
            seen.gateway_s = date;
            let pins: Vec<String> = pins.iter().map(Pin::to_string).collect();
            Verdict::ok(format!(
                "{} {place} proved itself by a CA with the pin {}",
                config.gateway_name(),
                pins.join(" or ")
            ))
        }
        Ok(Ok(Err(error))) => match Failure::find(&error) {
            Some(failure) => Verdict::fail(chain(failure), remedy(failure, config)),
            None => Verdict::fail(
                chain(&error),
                error.cause.remedy().unwrap_or(
                    "see that gateway_url names the gateway, and that nothing between ends TLS; a path that \
                     swallows large packets looks so too: see the check mtu",
                ),
            ),
        },
    }
}

fn remedy(failure: &Failure, config: &Config) -> String {
    match failure {
        Failure::NotPinned { .. } => format!(
            "compare with better-compute pki pins; if the CA was replaced, correct {}; if a proxy ends TLS \
             between, it needs [websocket]",
            config.whereabouts("", "serving_ca_spki_pin")
        ),
        Failure::WrongName { .. } => format!(
            "correct gateway_url, or set gateway_server_name ({})",
            config.path.display()
        ),
        Failure::Expired { .. } => {
            "renew the gateway's certificate, or set this host's clock if it is wrong".to_owned()
        }
        _ => "look at the certificates that the gateway is configured with".to_owned(),
    }
}

/// Whom this node trusts, and how it calls: with its certificate where it can read it.
fn endpoint(config: &Config, signed_ms: u64) -> Result<(Vec<Pin>, Endpoint), String> {
    let gateway = Gateway::of(config).map_err(|error| chain(&error))?;
    let (pins, tls) = client(config, signed_ms)?;
    let endpoint = Endpoint {
        waits: Waits {
            connect: WAIT,
            tls: WAIT,
            settings: WAIT,
        },
        tried: Rc::default(),
        ..gateway.endpoint(&tls)
    };
    Ok((pins, endpoint))
}

/// The pins that a gateway's CA may have, and TLS that holds it to them.
pub(super) fn client(
    config: &Config,
    signed_ms: u64,
) -> Result<(Vec<Pin>, Arc<ClientConfig>), String> {
    let configured = Configured {
        serving_ca: config.serving_ca_spki_pin,
        join_signing: config.join_signing_key_pin,
    };
    let looked = Store::open(&config.data_dir).and_then(|store| store.look());
    let (trust, own) = match looked {
        Ok(State::Joined(joined)) => {
            let (trust, _) = joined.identity.trust(configured);
            let chain = joined.identity.certificate_chain.iter();
            let chain = chain.map(|der| CertificateDer::from(der.clone()));
            (trust, Some((chain.collect(), joined.key.to_rustls())))
        }
        _ => (Trust::of(configured), None),
    };
    let pins = trust.serving_pins();
    let trusted = move || clock::trusted_ms(signed_ms);
    let tls = gateway::tls(pins.clone(), trusted, own).map_err(|error| chain(&error))?;
    Ok((pins, tls))
}
