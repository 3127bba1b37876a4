//! The control plane in one process: gateway, JoinService and API over one state directory.
//!
//! The seams are those of separate processes: the gateway has a relay and the sessions' records, the
//! JoinService its keys and its own database connection on its own thread, the API the records. This
//! module alone sees them all, and only to put them together.
//!
//! Promises: one process a directory; everything acknowledged is durable, so `kill -9` at any moment
//! loses none of it; SIGTERM and SIGINT ask the sessions to move and end cleanly; a panic on any thread
//! ends the process, since half of a control plane that looks alive is worse than none.

mod address;
mod files;
mod rotation;
mod serving;

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcd::rt::{self, Signal, TcpListener};
use bcd::sys::fs::{self, Dir};
use bcd::sys::log::{self, Level, Value};

use rustix::process::{Resource, Rlimit};

pub use self::address::Listen;
pub use self::files::{BUNDLE, DEV_FILE, DevFile, SITE_KEY};
use self::rotation::Rotating;
use self::serving::{Listener, Serving};
use crate::api::downloads::{self, Downloads};
use crate::api::websocket::Bridge;
use crate::api::{Api, wellknown};
use crate::gateway::{Gateway, Settings};
use crate::joinservice::{JoinService, Keys, Policy, Refusal, threads};
use crate::pki::PkiError;
use crate::registry::{self, Records, Registry, RegistryError, now_ms};
use crate::store::{Store, StoreError};

/// The records.
const STATE: &str = "state.db";

/// Nodes that were heard of within a day may come back as it starts.
const EXPECTED_FOR_MS: i64 = 86_400_000;

/// Bytes of its pages.
const PAGE: u64 = 4096;

/// What `better-compute dev` is asked for.
#[derive(Clone)]
pub struct Options {
    pub dir: PathBuf,
    pub gateway: Listen,
    pub http: Listen,
    pub downloads: Option<downloads::Settings>,
    /// Starts with a slash and ends without one, or is empty.
    pub base_path: String,
    /// The site of the node configuration that is written.
    pub site: String,
    pub trust_domain: String,
    pub heartbeat: Duration,
    pub policy: Policy,
    /// The gateway's loops, a thread each.
    pub loops: usize,
    /// How long the gateway's and the API's certificates are valid.
    pub serving_lifetime: Duration,
}

/// Why the control plane does not start.
#[derive(Debug)]
pub enum DevError {
    /// Another process has the directory.
    Locked(PathBuf),
    File(fs::Error),
    Pki(PkiError),
    Store(PathBuf, StoreError),
    Registry(RegistryError),
    JoinService(Refusal),
    /// What could not be listened on or started.
    Io(String, std::io::Error),
    Tls(Box<dyn Error>),
    Unusable(&'static str),
    /// Others may do to this path what its owner alone may.
    Exposed {
        path: PathBuf,
        mode: u32,
        what: &'static str,
    },
}

impl fmt::Display for DevError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(dir) => write!(
                f,
                "another better-compute dev runs in {}: stop it (its nodes have 5 s to leave), or choose another --dir",
                dir.display()
            ),
            Self::File(_) => write!(f, "cannot use the directory"),
            Self::Pki(_) => write!(f, "cannot use the PKI"),
            Self::Store(path, _) => write!(f, "cannot use {}", path.display()),
            Self::Registry(_) => write!(f, "cannot use the records"),
            Self::JoinService(_) => write!(f, "cannot start the JoinService"),
            Self::Io(what, _) => write!(f, "cannot {what}"),
            Self::Tls(_) => write!(f, "cannot issue the serving certificate"),
            Self::Unusable(what) => f.write_str(what),
            Self::Exposed { path, mode, what } => write!(
                f,
                "{} has mode {mode:04o}: others may {what}",
                path.display()
            ),
        }
    }
}

impl Error for DevError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            Self::Pki(error) => Some(error),
            Self::Store(_, error) => Some(error),
            Self::Registry(error) => Some(error),
            Self::JoinService(error) => Some(error),
            Self::Io(_, error) => Some(error),
            Self::Tls(error) => Some(&**error),
            Self::Locked(_) | Self::Unusable(_) | Self::Exposed { .. } => None,
        }
    }
}

impl From<fs::Error> for DevError {
    fn from(error: fs::Error) -> Self {
        Self::File(error)
    }
}

/// What a control plane runs for, instead of until a signal: it stops when this ends. It has the signals.
pub type Meanwhile = Box<dyn FnOnce(DevFile, Registry) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Runs the control plane until a signal ends it, or `meanwhile` does. `ready` is called with what it
/// listens on.
///
/// # Errors
/// See [`DevError`]; then nothing listens.
pub fn run(
    options: &Options,
    ready: impl FnOnce(&DevFile),
    meanwhile: Option<Meanwhile>,
) -> Result<(), DevError> {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    // A socket a node: the soft limit of most hosts, 1024 files, is kept for programs that use select(2).
    let files = rustix::process::getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        ..files
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, all) {
        let error = std::io::Error::from(error);
        log::event(Level::Warn, "dev.files", &[("error", Value::Chain(&error))]);
    }
    rt::block_on(serve(options, ready, meanwhile))
}

async fn serve(
    options: &Options,
    ready: impl FnOnce(&DevFile),
    meanwhile: Option<Meanwhile>,
) -> Result<(), DevError> {
    let termination =
        rt::termination().map_err(|error| DevError::Io("watch for signals".to_owned(), error))?;
    let dir = Dir::create(&options.dir, 0o700)?;
    let _lock = dir.lock().map_err(|error| match error.is_locked() {
        true => DevError::Locked(options.dir.clone()),
        false => DevError::File(error),
    })?;
    let downloads = options
        .downloads
        .as_ref()
        .map(Downloads::open)
        .transpose()?;
    not_lost(&dir)?;
    not_exposed(&dir)?;
    let (public, private) = files::open_pki(&dir, &options.trust_domain)?;
    let admin = files::admin_token(&dir)?;
    let path = dir.join(STATE);
    let store = || Store::open(&path).map_err(|error| DevError::Store(path.clone(), error));
    let keys = Keys::new(&public, &private, now_ms()).map_err(DevError::JoinService)?;
    files::register_site_key(&dir, &store()?, &options.site)?;
    let service = JoinService::new(keys, options.policy, store()?);
    let relay = threads::start(service, options.loops)
        .map_err(|error| DevError::Io("start the JoinService's threads".to_owned(), error))?;
    let registry = registry::start(store()?).map_err(DevError::Registry)?;

    let gateway_listener = listen(&options.gateway, "gateway")?;
    let api_listener = listen(&options.http, "http")?;
    let gateway_address = gateway_listener
        .local_addr()
        .map_err(|error| DevError::Io("find out the address".to_owned(), error))?;
    let gateway_url = options.gateway.url(port(&gateway_listener)?);
    let server_url = options.http.url(port(&api_listener)?);

    let serving = |listener, names| {
        let lifetime = options.serving_lifetime;
        Serving::new(listener, &public, &private, names, lifetime)
    };
    let gateway_serving = serving(Listener::Gateway, options.gateway.names())?;
    let api_serving = serving(Listener::Api, options.http.names())?;
    drop(private);
    let settings = Settings {
        trust_domain: public.trust_domain.clone(),
        heartbeat: options.heartbeat,
        expected: registry
            .with(|records| records.store.nodes_since(now_ms() - EXPECTED_FOR_MS))
            .await
            .map_err(DevError::Registry)?,
    };
    let signer = Rc::new(relay.clone());
    let gateway = Gateway::new(
        settings,
        Arc::new(registry.clone()),
        Arc::new(relay.clone()),
    );
    let document = wellknown::document(&public, &gateway_url, None)
        .ok_or(DevError::Unusable("the PKI's encryption key is not P-256"))?;
    let document = Rc::new(RefCell::new(document));
    let written = files::write(&dir, &public, options, &gateway_url, &server_url)?;
    let (gateway_tls, api_tls) = (gateway_serving.config(), api_serving.config());
    let api = Rc::new(Api {
        base_path: options.base_path.clone(),
        document: document.clone(),
        downloads,
        admin,
        registry: registry.clone(),
        gateway: gateway.clone(),
        signer,
        waiting: Cell::new(0),
        bridge: Rc::new(Bridge::new(gateway_address)),
        rotations: Rc::new(Rotating {
            dir,
            options: options.clone(),
            gateway_url,
            server_url,
            public: RefCell::new(public),
            relay,
            registry: registry.clone(),
            gateway: gateway.clone(),
            servings: [gateway_serving.clone(), api_serving.clone()],
            document,
            busy: Cell::new(false),
        }),
    });
    rt::spawn(gateway_serving.keep_fresh());
    rt::spawn(api_serving.keep_fresh());
    let work = meanwhile.map(|work| work(written.clone(), registry.clone()));
    let stopping = async {
        if let Some(work) = work {
            // Whoever has the signals must have all of them.
            drop(termination);
            return work.await;
        }
        let signal = match termination.await {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "SIGINT",
        };
        log::event(
            Level::Info,
            "dev.stopping",
            &[("signal", Value::Text(signal))],
        );
    };
    let serving = gateway
        .serve(gateway_listener, &gateway_tls, options.loops, stopping)
        .map_err(|error| DevError::Io("start the gateway's loops".to_owned(), error))?;
    let api = rt::spawn(api.serve(api_listener, api_tls));
    ready(&written);
    serving.await;
    api.cancel();
    registry
        .with(Records::finish)
        .await
        .map_err(DevError::Registry)
}

/// Refuses to begin anew in a directory that has served before (`dev.json` is written once the rest is
/// there) and has lost its PKI or its records: a new one would orphan every node without a word.
fn not_lost(dir: &Dir) -> Result<(), DevError> {
    if dir.exists("pki.json")? && !dir.exists("pki.key")? {
        return Err(DevError::Unusable(
            "pki.key is gone, and pki.json does not open without it: put it back",
        ));
    }
    if !dir.exists(DEV_FILE)? {
        return Ok(());
    }
    if !dir.exists("pki.json")? {
        return Err(DevError::Unusable(
            "pki.json is gone, and this directory has served before: put it back, or remove dev.json to begin as \
             another deployment",
        ));
    }
    let length = |name: &str| std::fs::metadata(dir.join(name)).map_or(0, |file| file.len());
    let file = matches!(dir.kind(STATE)?, None | Some(fs::Kind::Regular));
    // Below a page SQLite takes a file for a new one. Until the log is taken in, it alone may hold the records.
    if file && length(STATE) < PAGE && length("state.db-wal") == 0 {
        return Err(DevError::Unusable(
            "state.db is gone or cut off, and this directory has served before: put it back, or remove dev.json to \
             begin without tokens and nodes",
        ));
    }
    Ok(())
}

/// Refuses to go on with files that others can read or change: whoever has the token has the fleet, and so
/// has who can write the records or replace a file.
fn not_exposed(dir: &Dir) -> Result<(), DevError> {
    let checked = |path: PathBuf, forbidden: u32, what| {
        let mode = std::fs::metadata(&path).map_or(0, |file| file.permissions().mode() & 0o777);
        match mode & forbidden {
            0 => Ok(()),
            _ => Err(DevError::Exposed { path, mode, what }),
        }
    };
    checked(
        dir.path().to_owned(),
        0o022,
        "replace what is in it; chmod go-w it",
    )?;
    checked(dir.join("pki.json"), 0o022, "change it; chmod 600 it")?;
    for name in [files::ADMIN_TOKEN, STATE, "state.db-wal"] {
        checked(dir.join(name), 0o077, "read or change it; chmod 600 it")?;
    }
    Ok(())
}

fn listen(on: &Listen, flag: &str) -> Result<TcpListener, DevError> {
    let failed = |error| DevError::Io(format!("listen on {on} (--{flag})"), error);
    TcpListener::bind(on.resolve().map_err(failed)?).map_err(failed)
}

fn port(listener: &TcpListener) -> Result<u16, DevError> {
    listener
        .local_addr()
        .map(|address| address.port())
        .map_err(|error| DevError::Io("find out the port".to_owned(), error))
}
