//! What every parser of foreign bytes promises, as functions that take any bytes and panic when a
//! promise is broken.
//!
//! One module a target: `run` holds the promises, `HEAP` bounds the memory that an input may cost.
//! libFuzzer drives them without end (`make fuzz`, fuzz_targets/); `cargo test --test fuzz` drives the
//! same functions over seeds/ and over fixed mutations of them, in seconds, with the stable compiler.
//! CONTRIBUTING.md says how to add one.
use std::io::Write;
use std::os::unix::net::UnixStream;

pub mod advertised;
pub mod api;
pub mod base64;
pub mod bmc;
pub mod boot_entries;
pub mod boot_parameters;
pub mod certificate;
pub mod cmdline;
pub mod command;
pub mod config;
pub mod contract;
pub mod cpio;
pub mod csr;
pub mod dhcp;
pub mod dhcpv6;
pub mod diag_disks;
pub mod diag_texts;
pub mod disk_ids;
pub mod dns;
pub mod doctor_texts;
pub mod download;
pub mod elf;
pub mod envelope;
pub mod facts_tree;
pub mod gateway_session;
pub mod gpt;
pub mod grpc_client;
pub mod grpc_frames;
pub mod grpc_server;
pub mod grpc_status;
pub mod helper_request;
pub mod hops;
pub mod http_answer;
pub mod http_request;
pub mod identity;
pub mod ids;
pub mod images;
pub mod inhibitors;
pub mod install_values;
pub mod intake;
pub mod join_answer;
pub mod join_token;
pub mod joinservice;
pub mod journal;
pub mod journal_open;
pub mod json;
pub mod jwk;
pub mod lldp;
pub mod loader;
pub mod machine_texts;
pub mod modules;
pub mod netlink;
pub mod node_session;
pub mod node_spec;
pub mod operator_texts;
pub mod outbox;
pub mod pem;
pub mod pki_bundle;
pub mod private_key;
pub mod proto;
pub mod provisioned;
pub mod proxies;
pub mod release_manifest;
pub mod session_machine;
pub mod signed_order;
pub mod sntp;
pub mod spki;
pub mod status_request;
pub mod store_rows;
pub mod toml;
pub mod trust_bundle;
pub mod url;
pub mod volumes;
pub mod vpd;
pub mod websocket;
pub mod wellknown;
pub mod wipe;

pub mod fleet;
pub mod hostile;
pub mod mutate;
pub mod pieces;

/// Memory an input may cost at once: so much for any, and so many bytes for each of its own.
#[derive(Clone, Copy)]
pub struct Heap {
    pub base: usize,
    pub per_byte: usize,
}

/// A target.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub heap: Heap,
}

/// Hands the names of all targets to a macro.
macro_rules! every_target {
    ($to:ident) => {
        $to! {
            advertised api base64 bmc boot_entries boot_parameters certificate cmdline command config contract cpio csr dhcp
            dhcpv6 diag_disks diag_texts disk_ids dns doctor_texts download elf envelope facts_tree gateway_session gpt
            grpc_client grpc_frames grpc_server grpc_status helper_request hops http_answer http_request identity ids images
            inhibitors install_values intake join_answer join_token joinservice journal journal_open json jwk lldp loader
            machine_texts modules netlink node_session node_spec operator_texts outbox pem pki_bundle private_key proto
            provisioned proxies release_manifest session_machine signed_order sntp spki status_request store_rows toml
            trust_bundle url volumes vpd websocket wellknown wipe
        }
    };
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $name::run,
            heap: $name::HEAP,
        }),*];
    };
}

every_target!(targets);

/// A connection whose peer says `data` and then no more; the peer's end is open until it is dropped. What does
/// not fit into the socket is cut off, like any other connection.
fn peer_that_said(data: &[u8]) -> (UnixStream, bcd::rt::TcpStream) {
    let (mut theirs, ours) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("a socket");
    let _ = theirs.write(data);
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let ours = bcd::rt::TcpStream::from_std(std::os::fd::OwnedFd::from(ours).into());
    (theirs, ours.expect("a socket of the loop"))
}

/// Both ends of a connection.
fn connection() -> (bcd::rt::TcpStream, bcd::rt::TcpStream) {
    let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
    let end = |end| bcd::rt::TcpStream::from_std(std::os::fd::OwnedFd::from(end).into());
    (
        end(theirs).expect("a socket of the loop"),
        end(ours).expect("a socket of the loop"),
    )
}

/// A message for people is one line without control characters.
fn one_line(said: &impl std::fmt::Display) {
    let said = said.to_string();
    assert!(
        !said.is_empty() && !said.chars().any(char::is_control),
        "{said:?}"
    );
}
