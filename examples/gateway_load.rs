//! Load for a gateway: what `benches/joins_vs_crypto.py` measures and what tests/gateway needs.
//!
//! ```text
//! gateway_load crypto SECONDS THREADS        one join's cryptography by the libraries alone, again and again;
//!                                            prints {"joins":…,"seconds":…,"cpu_us":…,"parts_us":{…}}
//! gateway_load join HOST:PORT JWK THREADS AT_ONCE    joins with the tokens on standard input, one a line,
//!                                            each over a connection of its own, and waits for a line more than
//!                                            they are: an empty one ends them and starts the joins; prints
//!                                            {"joins":…,"failed":…,"seconds":…,"cpu_us":…}
//! gateway_load hold HOST:PORT JWK            joins with the tokens on standard input, opens a session with
//!                                            each identity, sends an event in it, waits until that is
//!                                            acknowledged; prints {"sessions":…} and holds them until killed
//! ```
//! Keys, requests and sealed tokens are made before anything is measured, and what the gateway says is
//! not verified: what is left of a client is one key agreement. Every join comes from another address
//! below 127.0.0.0/8, since a gateway bounds what one address may ask.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::io::BufRead;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bcd::attest::join::{Asked, Proof, request};
use bcd::crypto::jwk::PublicKey;
use bcd::crypto::key::NodeKey;
use bcd::crypto::provider::provider;
use bcd::crypto::{csr, hpke};
use bcd::proto::{
    Event, EventBody, Facts, GatewayFrameKind, Hello, JoinRequest, JoinResponse,
    JoinResponseOutcome, JoinResult, NodeFrame, NodeFrameKind, Role, SectionStatus, join_service,
    session_service,
};
use bcd::rt;
use bcd::wire::grpc::client::{Client, Endpoint};
use better_compute::joinservice::Recipient;
use proto_gen::codec::Message;
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::rand::SystemRandom;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use rustix::time::{ClockId, clock_gettime};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

type Failure = Box<dyn Error + Send + Sync>;

const CALL: Duration = Duration::from_secs(60);
const INFO: &[u8] = b"better-compute join v1";

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["crypto", seconds, threads] => {
            crypto(Duration::from_secs(seconds.parse()?), threads.parse()?)
        }
        ["join", gateway, jwk, threads, at_once] => {
            let at_once: usize = at_once.parse()?;
            join(gateway.parse()?, jwk, threads.parse()?, at_once)
        }
        ["hold", gateway, jwk] => hold(gateway.parse()?, jwk),
        _ => Err("see the head of examples/gateway_load.rs".into()),
    }
}

/// Processor time of this thread, or of the process, in microseconds.
fn cpu_us(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000
}

/// What the control plane's side of a join cannot do without.
struct Crypto {
    signing: NodeKey,
    csr: Vec<u8>,
    recipient: Recipient,
    sealed: hpke::Sealed,
    peer: Vec<u8>,
    random: SystemRandom,
}

impl Crypto {
    fn new() -> Result<Self, Failure> {
        let random = SystemRandom::new();
        let key = NodeKey::generate().map_err(|error| error.to_string())?;
        let public = PublicKey::from_point(*key.point());
        let other = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(|_| "no random")?;
        let peer = other.compute_public_key().map_err(|_| "no key")?;
        Ok(Self {
            csr: csr::build(&key)?,
            sealed: hpke::seal(&public, INFO, b"", &[7; 80])?,
            recipient: Recipient::new(&key).ok_or("no recipient")?,
            signing: key,
            peer: peer.as_ref().to_vec(),
            random,
        })
    }

    fn part(&self, part: Part) -> bool {
        match part {
            Part::Sign => self.signing.sign(&[7; 300]).is_ok(),
            Part::Verify => csr::verify(&self.csr).is_ok(),
            Part::Ecdhe => {
                let own = EphemeralPrivateKey::generate(&ECDH_P256, &self.random);
                own.is_ok_and(|own| {
                    let peer = UnparsedPublicKey::new(&ECDH_P256, &self.peer);
                    own.compute_public_key().is_ok() && agree_ephemeral(own, &peer, |_| ()).is_ok()
                })
            }
            Part::Decapsulate => {
                let (enc, text) = (&self.sealed.enc, &self.sealed.ciphertext);
                self.recipient.open(enc, INFO, b"", text).is_ok()
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Sign,
    Verify,
    Ecdhe,
    Decapsulate,
}

/// What a join needs, and how often.
const PARTS: [(&str, Part, u32); 4] = [
    // The handshake's CertificateVerify, the node's leaf, the JoinResponse.
    ("sign", Part::Sign, 3),
    // The request for the certificate is signed by its key.
    ("verify", Part::Verify, 1),
    ("ecdhe", Part::Ecdhe, 1),
    ("decapsulate", Part::Decapsulate, 1),
];

fn crypto(time: Duration, threads: usize) -> Result<(), Failure> {
    let run = || -> Result<(u64, u64), Failure> {
        let crypto = Crypto::new()?;
        let (began, cpu) = (Instant::now(), cpu_us(ClockId::ThreadCPUTime));
        let mut joins = 0;
        while began.elapsed() < time {
            for (name, part, times) in PARTS {
                for _ in 0..times {
                    if !crypto.part(part) {
                        return Err(format!("{name} failed").into());
                    }
                }
            }
            joins += 1;
        }
        Ok((joins, cpu_us(ClockId::ThreadCPUTime) - cpu))
    };
    let began = Instant::now();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let (mut joins, mut cpu) = (0, 0);
    for outcome in outcomes {
        let (its, used) = outcome.map_err(|_| "a thread panicked")??;
        joins += its;
        cpu += used;
    }
    let crypto = Crypto::new()?;
    let mut parts = String::new();
    for (name, part, _) in PARTS {
        let cpu = cpu_us(ClockId::ThreadCPUTime);
        for _ in 0..500 {
            crypto.part(part);
        }
        let each = (cpu_us(ClockId::ThreadCPUTime) - cpu) as f64 / 500.0;
        parts += &format!(
            "{}\"{name}\":{each:.1}",
            if parts.is_empty() { "" } else { "," }
        );
    }
    println!(
        "{{\"joins\":{joins},\"seconds\":{seconds:.3},\"cpu_us\":{:.1},\"parts_us\":{{{parts}}}}}",
        cpu as f64 / joins as f64
    );
    Ok(())
}

/// A machine that is ready to join.
struct Machine {
    number: u32,
    key: NodeKey,
    request: JoinRequest,
}

/// One machine a token on standard input, up to an empty line or the end.
fn machines(jwk: &str) -> Result<Vec<Machine>, Failure> {
    let text = std::fs::read(jwk)?;
    let recipient = PublicKey::parse(&text).map_err(|error| error.to_string())?;
    let mut machines = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let key = NodeKey::generate().map_err(|error| error.to_string())?;
        let asked = Asked {
            role: Role::NODE,
            site: "",
            node_id: "",
            discovery: None,
        };
        let facts = Facts {
            hostname: format!("load-{}", machines.len()),
            ..Facts::default()
        };
        let proof = Proof::Token(line.as_bytes());
        let request = request(&asked, &key, &proof, &recipient, facts)
            .map_err(|_| "the request cannot be made")?;
        machines.push(Machine {
            number: u32::try_from(machines.len())?,
            key,
            request,
        });
    }
    Ok(machines)
}

/// A connection to the gateway from the address of this number.
async fn client(
    gateway: SocketAddr,
    number: u32,
    tls: &Arc<ClientConfig>,
) -> Result<Client, Failure> {
    let name = ServerName::from(gateway.ip());
    let endpoint = Endpoint {
        tls: Some((tls.clone(), name)),
        ..Endpoint::new(gateway.ip().to_string(), gateway.port())
    };
    let own = Ipv4Addr::from_bits((127 << 24 | 1 << 16) + number / 50);
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    rustix::net::bind(&socket, &SocketAddr::from((own, 0)))?;
    rustix::net::connect(&socket, &gateway)?;
    let stream = rt::TcpStream::from_std(TcpStream::from(socket))?;
    Ok(Client::over(stream, &endpoint).await?)
}

async fn join_one(
    gateway: SocketAddr,
    machine: &Machine,
    tls: &Arc<ClientConfig>,
) -> Result<JoinResponse, Failure> {
    let client = client(gateway, machine.number, tls).await?;
    Ok(client
        .unary(&join_service::JOIN, &machine.request, CALL)
        .await?)
}

/// Does `work` with each machine, so many at once, and gives what came of it.
async fn at_once<T: 'static, F: Future<Output = Result<T, Failure>> + 'static>(
    machines: Vec<Machine>,
    count: usize,
    work: impl Fn(Machine) -> F + Clone + 'static,
) -> (Vec<T>, usize) {
    let queue = Rc::new(RefCell::new(VecDeque::from(machines)));
    let (done, failed) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let tasks: Vec<_> = (0..count.max(1))
        .map(|_| {
            let (queue, work) = (queue.clone(), work.clone());
            let (done, failed) = (done.clone(), failed.clone());
            rt::spawn(async move {
                loop {
                    let next = queue.borrow_mut().pop_front();
                    let Some(machine) = next else { return };
                    match work(machine).await {
                        Ok(value) => done.borrow_mut().push(value),
                        Err(error) => {
                            if failed.replace(failed.get() + 1) == 0 {
                                eprintln!("gateway_load: {error}");
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    (done.take(), failed.get())
}

fn join(gateway: SocketAddr, jwk: &str, threads: usize, count: usize) -> Result<(), Failure> {
    let machines = machines(jwk)?;
    let threads = threads.max(1);
    let mut shares: Vec<Vec<Machine>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, machine) in machines.into_iter().enumerate() {
        shares[number % threads].push(machine);
    }
    let (began, cpu) = (Instant::now(), cpu_us(ClockId::ProcessCPUTime));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = shares
            .into_iter()
            .map(|share| {
                scope.spawn(move || {
                    rt::block_on(async move {
                        let tls = blind(None);
                        let work = move |machine: Machine| {
                            let tls = tls.clone();
                            async move { join_one(gateway, &machine, &tls).await }
                        };
                        let (joined, failed) = at_once(share, count / threads, work).await;
                        let signed = |one: &&JoinResponse| {
                            matches!(one.outcome, Some(JoinResponseOutcome::Signed(_)))
                        };
                        (joined.iter().filter(signed).count(), failed)
                    })
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let cpu = cpu_us(ClockId::ProcessCPUTime) - cpu;
    let (mut joins, mut failed) = (0, 0);
    for outcome in outcomes {
        let (its, not) = outcome.map_err(|_| "a thread panicked")?;
        joins += its;
        failed += not;
    }
    println!(
        "{{\"joins\":{joins},\"failed\":{failed},\"seconds\":{seconds:.3},\"cpu_us\":{:.1}}}",
        cpu as f64 / joins.max(1) as f64
    );
    Ok(())
}

fn hold(gateway: SocketAddr, jwk: &str) -> Result<(), Failure> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit {
        current: files.maximum,
        ..files
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all)?;
    let machines = machines(jwk)?;
    rt::block_on(async move {
        let (held, failed) = at_once(machines, 32, move |machine| open(gateway, machine)).await;
        println!("{{\"sessions\":{},\"failed\":{failed}}}", held.len());
        loop {
            rt::sleep(Duration::from_secs(3600)).await;
        }
    })
}

/// What keeps a session open.
type Held = (
    bcd::wire::grpc::client::Sender<NodeFrame>,
    bcd::wire::grpc::client::Receiver<bcd::proto::GatewayFrame>,
);

async fn open(gateway: SocketAddr, machine: Machine) -> Result<Held, Failure> {
    let response = join_one(gateway, &machine, &blind(None)).await?;
    let Some(JoinResponseOutcome::Signed(signed)) = response.outcome else {
        return Err("no certificate".into());
    };
    let result = JoinResult::decode(&signed.payload)?;
    let chain = result.certificate_chain.into_iter();
    let chain = chain.map(CertificateDer::from).collect();
    let tls = blind(Some((chain, &machine.key)));
    let client = client(gateway, machine.number, &tls).await?;
    let (mut sender, mut receiver) = client.stream(&session_service::SESSION, None).await?;
    let hello = Hello {
        node_id: result.node_id,
        boot_id: "load".to_owned(),
        daemon_version: "load".to_owned(),
        protocol_versions: vec![1],
        journal_id: vec![1; 16],
        trust_bundle_version: u64::MAX,
        ..Hello::default()
    };
    let status = SectionStatus {
        section: "log".to_owned(),
        message: "x".repeat(1000),
        ..SectionStatus::default()
    };
    let event = Event {
        sequence: 1,
        body: Some(EventBody::SectionStatus(status)),
        ..Event::default()
    };
    for kind in [NodeFrameKind::Hello(hello), NodeFrameKind::Event(event)] {
        sender.send(&NodeFrame { kind: Some(kind) }).await?;
    }
    loop {
        match receiver.next().await?.and_then(|frame| frame.kind) {
            Some(GatewayFrameKind::Ack(ack)) if ack.position == 1 => {
                return Ok((sender, receiver));
            }
            Some(_) => {}
            None => return Err("the session ended".into()),
        }
    }
}

/// TLS that takes whatever certificate it is shown.
fn blind(identity: Option<(Vec<CertificateDer<'static>>, &NodeKey)>) -> Arc<ClientConfig> {
    // bcd's own, so that the handshake is that of a node.
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3 is there")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Blind));
    let mut config = match identity {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key.to_rustls())
            .expect("the key fits"),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

#[derive(Debug)]
struct Blind;

impl ServerCertVerifier for Blind {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
