//! A client and a server of examples/proto/probe.proto, and a client of etcd, for tests/grpc/:
//! what they print is one JSON object a line.
//!
//! ```text
//! grpc_probe serve [CHAIN.pem KEY.pem]           prints {"port":N}, serves until killed
//! grpc_probe call HOST PORT CA|- COMMAND ARG…    echo BYTES | refuse CODE MESSAGE | hang MS |
//!                                                talk COUNT BYTES | talk-end | missing | cancel
//! grpc_probe etcd HOST PORT COMMAND ARG…         put KEY VALUE | range KEY | watch KEY
//! ```
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::rt;
use bcd::wire::grpc::client::{CallError, Client, Endpoint};
use bcd::wire::grpc::server::{Limits, Peer, Router, serve};
use bcd::wire::grpc::{Code, Status};
use proto_gen::codec::Method;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

mod proto {
    #![allow(dead_code)]
    include!(concat!(env!("OUT_DIR"), "/examples.rs"));
}
use proto::{Blob, RefuseRequest};

type Failure = Box<dyn Error>;

const WAIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    rt::block_on(async {
        match arguments.as_slice() {
            ["serve"] => server(None).await,
            ["serve", chain, key] => server(Some((chain, key))).await,
            ["call", host, port, ca, command @ ..] => {
                let client = connect(host, port, ca).await;
                let outcome = match client {
                    Ok(client) => call(&client, command).await?,
                    Err(error) => Err(error),
                };
                print_outcome(outcome);
                Ok(())
            }
            ["etcd", host, port, command @ ..] => {
                let outcome = match connect(host, port, "-").await {
                    Ok(client) => etcd(&client, command).await?,
                    Err(error) => Err(error),
                };
                print_outcome(outcome);
                Ok(())
            }
            _ => Err("see the head of examples/grpc_probe.rs".into()),
        }
    })
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn print_outcome(outcome: Result<String, CallError>) {
    match outcome {
        Ok(result) => println!("{{\"ok\":{}}}", quoted(&result)),
        Err(error) => {
            let message = error.status().map_or(String::new(), |s| s.message.clone());
            let mut chain = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                chain.push_str(&format!(": {error}"));
                source = error.source();
            }
            println!(
                "{{\"code\":{},\"message\":{},\"phase\":{},\"error\":{}}}",
                quoted(error.code().name()),
                quoted(&message),
                quoted(&error.phase.to_string()),
                quoted(&chain),
            );
        }
    }
}

async fn connect(host: &str, port: &str, ca: &str) -> Result<Client, CallError> {
    let mut endpoint = Endpoint::new(host, port.parse().expect("a port"));
    if ca != "-" {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_file_iter(ca).expect("a CA file") {
            roots.add(root.expect("a certificate")).expect("a CA");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(host.to_owned()).expect("a name");
        endpoint.tls = Some((Arc::new(config), name));
    }
    Client::connect(&endpoint).await
}

async fn call(client: &Client, command: &[&str]) -> Result<Result<String, CallError>, Failure> {
    use proto::probe::{ECHO, HANG, REFUSE, TALK};
    const MISSING: Method<Blob, Blob> = Method::unary("/probe.Probe/Missing");
    Ok(match command {
        ["echo", bytes] => {
            let blob = Blob {
                data: pattern(bytes.parse()?),
            };
            let answer = client.unary(&ECHO, &blob, WAIT).await;
            answer.map(|answer| format!("{}", answer == blob))
        }
        ["refuse", code, message] => {
            let request = RefuseRequest {
                code: code.parse()?,
                message: (*message).to_owned(),
            };
            client
                .unary(&REFUSE, &request, WAIT)
                .await
                .map(|_| String::new())
        }
        ["hang", ms] => {
            let wait = Duration::from_millis(ms.parse()?);
            client
                .unary(&HANG, &Blob::default(), wait)
                .await
                .map(|_| String::new())
        }
        ["missing"] => client
            .unary(&MISSING, &Blob::default(), WAIT)
            .await
            .map(|_| String::new()),
        ["cancel"] => {
            let blob = Blob {
                data: b"x".to_vec(),
            };
            let outcome = async {
                let (mut sender, mut receiver) = client.stream(&TALK, None).await?;
                sender.send(&blob).await?;
                receiver.next().await?;
                Ok(String::new())
            };
            let outcome = outcome.await;
            // The halves are gone: the loop sends the reset.
            rt::sleep(Duration::from_millis(300)).await;
            outcome
        }
        ["talk", count, bytes] => talk(client, count.parse()?, bytes.parse()?).await,
        ["talk-end"] => {
            async {
                let (mut sender, mut receiver) = client.stream(&TALK, None).await?;
                sender
                    .send(&Blob {
                        data: b"end".to_vec(),
                    })
                    .await?;
                receiver
                    .next()
                    .await
                    .map(|answer| format!("{}", answer.is_some()))
            }
            .await
        }
        _ => return Err("no such command".into()),
    })
}

/// All requests are sent before the first answer is read, from a task of their own.
async fn talk(client: &Client, count: usize, bytes: usize) -> Result<String, CallError> {
    let (mut sender, mut receiver) = client.stream(&proto::probe::TALK, Some(WAIT * 3)).await?;
    let writer = rt::spawn(async move {
        for n in 0..count {
            sender
                .send(&Blob {
                    data: pattern(bytes + n),
                })
                .await?;
        }
        sender.close();
        Ok::<(), CallError>(())
    });
    let mut right = 0;
    while let Some(mut answer) = receiver.next().await? {
        answer.data.reverse();
        right += usize::from(answer.data == pattern(bytes + right));
    }
    if let Some(written) = writer.await {
        written?;
    }
    Ok(right.to_string())
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8).collect()
}

async fn etcd(client: &Client, command: &[&str]) -> Result<Result<String, CallError>, Failure> {
    use proto::kv::{PUT, RANGE};
    Ok(match command {
        ["put", key, value] => {
            let request = proto::PutRequest {
                key: key.as_bytes().to_vec(),
                value: value.as_bytes().to_vec(),
                ..Default::default()
            };
            let answer = client.unary(&PUT, &request, WAIT).await;
            answer.map(|answer| format!("{}", answer.header.unwrap_or_default().revision > 0))
        }
        ["range", key] => {
            let request = proto::RangeRequest {
                key: key.as_bytes().to_vec(),
                ..Default::default()
            };
            client
                .unary(&RANGE, &request, WAIT)
                .await
                .map(|answer| values(&answer.kvs))
        }
        ["watch", key] => watch(client, key.as_bytes()).await,
        _ => return Err("no such command".into()),
    })
}

fn values(kvs: &[proto::KeyValue]) -> String {
    let values: Vec<_> = kvs
        .iter()
        .map(|kv| String::from_utf8_lossy(&kv.value))
        .collect();
    values.join(",")
}

/// Opens a watch, puts twice on the same connection, and gives what the watch saw.
async fn watch(client: &Client, key: &[u8]) -> Result<String, CallError> {
    let (mut sender, mut receiver) = client.stream(&proto::watch::WATCH, None).await?;
    let create = proto::WatchCreateRequest {
        key: key.to_vec(),
        ..Default::default()
    };
    let create = proto::WatchRequestRequestUnion::CreateRequest(create);
    sender
        .send(&proto::WatchRequest {
            request_union: Some(create),
        })
        .await?;
    let created = receiver.next().await?.is_some_and(|answer| answer.created);
    for value in ["one", "two"] {
        let value = value.as_bytes().to_vec();
        let put = proto::PutRequest {
            key: key.to_vec(),
            value,
            ..Default::default()
        };
        client.unary(&proto::kv::PUT, &put, WAIT).await?;
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let Some(answer) = receiver.next().await? else {
            break;
        };
        seen.extend(answer.events.into_iter().filter_map(|event| event.kv));
    }
    Ok(format!("{created} {}", values(&seen)))
}

async fn server(tls: Option<(&str, &str)>) -> Result<(), Failure> {
    let tls = match tls {
        None => None,
        Some((chain, key)) => {
            let chain = CertificateDer::pem_file_iter(chain)?.collect::<Result<Vec<_>, _>>()?;
            let key = PrivateKeyDer::from_pem_file(key)?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_no_client_auth()
                .with_single_cert(chain, key)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Some(Arc::new(config))
        }
    };
    let listener = rt::TcpListener::bind("127.0.0.1:0".parse()?)?;
    println!("{{\"port\":{}}}", listener.local_addr()?.port());
    let router = Rc::new(router());
    loop {
        let (stream, address) = listener.accept().await?;
        let (router, tls) = (router.clone(), tls.clone());
        rt::spawn(async move {
            let peer = Peer {
                address: Some(address),
                certificates: Vec::new(),
            };
            let end = match tls {
                None => serve(stream, peer, router, Limits::default()).await,
                Some(tls) => match rt::tls::server(stream, tls, WAIT).await {
                    Ok(stream) => serve(stream, peer, router, Limits::default()).await,
                    Err(error) => {
                        println!("{{\"tls\":{}}}", quoted(&error.to_string()));
                        return;
                    }
                },
            };
            let end = end
                .err()
                .map_or(String::new(), |error| format!("{error:?}"));
            println!("{{\"closed\":{}}}", quoted(&end));
        });
    }
}

/// Says when a call's handler is dropped before its end.
struct Cancelled;

impl Drop for Cancelled {
    fn drop(&mut self) {
        println!("{{\"cancelled\":true}}");
    }
}

fn router() -> Router {
    use proto::probe::{ECHO, HANG, REFUSE, TALK};
    let mut router = Router::new();
    router.unary(&ECHO, |_, blob: Blob| async { Ok(blob) });
    router.unary(&REFUSE, |_, request: RefuseRequest| async move {
        Err(Status::new(
            Code::from_number(request.code as usize),
            request.message,
        ))
    });
    router.unary(&HANG, |_, _: Blob| {
        let cancelled = Cancelled;
        async move {
            let _cancelled = cancelled;
            std::future::pending().await
        }
    });
    router.bidi(&TALK, |_, mut receiver, mut sender| async move {
        while let Some(Blob { mut data }) = receiver.next().await? {
            if data == b"end" {
                return Err(Status::new(Code::Aborted, "as asked"));
            }
            data.reverse();
            sender.send(&Blob { data }).await?;
        }
        Ok(())
    });
    router
}
