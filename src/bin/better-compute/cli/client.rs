//! The operator commands' way to a running control plane's API.
//!
//! Which one: `--dir DIR` (the state directory of a `better-compute dev`), else `BETTER_COMPUTE_DIR`, else
//! `BETTER_COMPUTE_URL` (the API's URL with its base path) with `BETTER_COMPUTE_TOKEN_FILE` and
//! `BETTER_COMPUTE_CA_FILE`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bcd::attest::bootstrap;
use bcd::cli::flags::{Args, Flag};
use bcd::cli::{Failure, complain};
use bcd::crypto::{json, pem};
use bcd::rt;
use bcd::sys::fs::{self, Dir};
use bcd::wire::http1::client::{self, Request, Waits};
use bcd::wire::url::Url;
use nanoserde::DeJson;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use zeroize::Zeroizing;

use crate::api::views::ErrorView;
use crate::dev::{DEV_FILE, DevFile};
use crate::json::Json;

const FILE_MAX: usize = 64 * 1024;
/// A list of a hundred thousand nodes fits.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

pub const DIR: Flag = Flag::value(
    "dir",
    "DIR",
    "The state directory of a running better-compute dev;\n\
     else BETTER_COMPUTE_DIR, or BETTER_COMPUTE_URL with BETTER_COMPUTE_TOKEN_FILE\n\
     and BETTER_COMPUTE_CA_FILE",
);
pub const JSON: Flag = Flag::switch("json", "Print the API's JSON");

/// An API that can be asked.
pub struct Client {
    url: Url,
    token: Zeroizing<String>,
    tls: Arc<ClientConfig>,
    /// Where the URL is from, for errors.
    named_by: String,
}

impl Client {
    /// The control plane that the flags or the environment name.
    ///
    /// # Errors
    /// Refused when nothing names one, or what names it cannot be read.
    pub fn new(args: &Args) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let dir = args.value("dir").map(str::to_owned);
        if let Some(dir) = dir.or_else(|| variable("BETTER_COMPUTE_DIR")) {
            return Self::from_dir(Path::new(&dir));
        }
        let names = [
            "BETTER_COMPUTE_URL",
            "BETTER_COMPUTE_TOKEN_FILE",
            "BETTER_COMPUTE_CA_FILE",
        ];
        match names.map(variable) {
            [Some(url), Some(token), Some(ca)] => {
                Self::from_parts(&url, &token, &ca, names[0].to_owned())
            }
            [Some(_), ..] => Err(Failure::refused(
                "BETTER_COMPUTE_URL needs BETTER_COMPUTE_TOKEN_FILE and BETTER_COMPUTE_CA_FILE beside it",
            )),
            _ => Err(Failure::refused("no control plane is named").hint(
                "give --dir DIR, or set BETTER_COMPUTE_DIR, or BETTER_COMPUTE_URL with BETTER_COMPUTE_TOKEN_FILE and BETTER_COMPUTE_CA_FILE",
            )),
        }
    }

    fn from_dir(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(DEV_FILE);
        let text = Dir::open(dir)
            .and_then(|dir| dir.read(DEV_FILE, FILE_MAX))
            .map_err(|error| {
                Failure::refused(error).hint(format!(
                    "start a control plane there: better-compute dev --dir {}",
                    dir.display()
                ))
            })?;
        let file = json::check(&text, FILE_MAX, 4)
            .ok()
            .and_then(|text| DevFile::deserialize_json(text).ok())
            .ok_or_else(|| {
                Failure::refused(format!(
                    "{} is not as better-compute dev writes it",
                    path.display()
                ))
            })?;
        Self::from_parts(
            &file.api_url,
            &file.admin_token_file,
            &file.ca_file,
            path.display().to_string(),
        )
    }

    fn from_parts(url: &str, token: &str, ca: &str, named_by: String) -> Result<Self, Failure> {
        let url = Url::parse(url).map_err(|error| {
            Failure::refused(format!("the URL in {named_by} is wrong: {error}"))
        })?;
        if !url.https {
            return Err(Failure::refused(format!(
                "the URL in {named_by} is not https://"
            )));
        }
        let bytes = Zeroizing::new(read(token)?);
        let fit =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let token = std::str::from_utf8(&bytes)
            .ok()
            .map(str::trim)
            .filter(fit)
            .ok_or_else(|| {
                Failure::refused(format!(
                    "{token} holds no admin token: copy it from the control plane's directory again"
                ))
            })?;
        let ca_text = read(ca)?;
        let mut roots = RootCertStore::empty();
        let certificates = std::str::from_utf8(&ca_text)
            .ok()
            .and_then(|text| pem::decode_all(text, "CERTIFICATE").ok())
            .unwrap_or_default();
        for certificate in certificates {
            roots
                .add(CertificateDer::from(certificate))
                .map_err(|error| {
                    Failure::refused(format!("{ca} holds a bad certificate: {error}"))
                })?;
        }
        if roots.is_empty() {
            return Err(Failure::refused(format!(
                "{ca} holds no certificate in PEM"
            )));
        }
        let provider = rustls::crypto::ring::default_provider();
        let tls = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            url,
            token: Zeroizing::new(token.to_owned()),
            tls: Arc::new(tls),
            named_by,
        })
    }

    /// Asks for `path` (below `v1/`) and gives the answer's JSON text.
    ///
    /// # Errors
    /// Exit code 1 for no answer or the control plane's own trouble, 2 for a request it refuses.
    pub fn call(&self, method: &str, path: &str, body: Option<&str>) -> Result<String, Failure> {
        self.text(method, path, body).map_err(Problem::into_failure)
    }

    /// As [`Client::call`]; the error says whether asking again may help.
    pub fn text(&self, method: &str, path: &str, body: Option<&str>) -> Result<String, Problem> {
        let bytes = rt::block_on(self.ask(method, path, body))?;
        let text = json::check(&bytes, ANSWER_MAX, 16).map_err(|error| {
            Problem::Other(Failure::failed(format!(
                "the control plane's answer is not JSON: {error}"
            )))
        })?;
        Ok(text.to_owned())
    }

    /// As [`Client::text`], read.
    pub fn json(&self, method: &str, path: &str, body: Option<&str>) -> Result<Json, Problem> {
        let text = self.text(method, path, body)?;
        Json::parse(text.as_bytes(), ANSWER_MAX, 16).map_err(|error| {
            Problem::Other(Failure::failed(format!(
                "the control plane's answer cannot be read: {error}"
            )))
        })
    }

    /// Asks for bytes.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Problem> {
        rt::block_on(self.ask("GET", path, None))
    }

    /// The well-known document.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn document(&self) -> Result<Vec<u8>, Failure> {
        let url = self.url.with_path(bootstrap::PATH);
        rt::block_on(self.ask_for("GET", &url, None)).map_err(Problem::into_failure)
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Result<Vec<u8>, Problem> {
        let base = self.url.path.trim_end_matches('/');
        let url = self.url.with_path(&format!("{base}/v1/{path}"));
        self.ask_for(method, &url, body).await
    }

    async fn ask_for(
        &self,
        method: &str,
        url: &Url,
        body: Option<&str>,
    ) -> Result<Vec<u8>, Problem> {
        let name = ServerName::try_from(url.host.clone()).map_err(|_| {
            let message = format!("the host in {} is no name", self.named_by);
            Problem::Other(Failure::refused(message))
        })?;
        let authorization = Zeroizing::new(format!("Bearer {}", *self.token));
        let unreachable = |error| {
            let lost = Unreachable(self.url.authority(), self.named_by.clone(), error);
            Problem::NoAnswer(Failure::failed(lost).hint("is better-compute dev running?"))
        };
        let mut answer = client::send(&Request {
            method,
            url,
            headers: &[
                ("Authorization", &authorization),
                ("Content-Type", "application/json"),
            ],
            body: body.map(str::as_bytes),
            tls: Some((self.tls.clone(), name)),
            // An answer may wait half a minute for news.
            waits: Waits {
                answer: Duration::from_secs(60),
                ..Waits::default()
            },
        })
        .await
        .map_err(unreachable)?;
        let bytes = answer.body.collect(ANSWER_MAX).await.map_err(unreachable)?;
        let status = answer.status;
        if (200..=299).contains(&status) {
            return Ok(bytes);
        }
        let view = json::check(&bytes, ANSWER_MAX, 16)
            .ok()
            .and_then(|text| ErrorView::deserialize_json(text).ok());
        let message = match view {
            Some(view) => format!("{}: {}", view.error.code, view.error.message),
            None => format!("the control plane answered with HTTP status {status}"),
        };
        Err(match status {
            400 => Problem::Other(Failure::refused(message)),
            503 => Problem::NoAnswer(Failure::failed(message)),
            _ => Problem::Other(Failure::failed(message)),
        })
    }
}

/// Why a request got no answer that can be used.
pub enum Problem {
    /// Nobody answered, or the control plane cannot just now: the same request may succeed later.
    NoAnswer(Failure),
    /// Asking again would bring the same.
    Other(Failure),
}

impl Problem {
    pub fn into_failure(self) -> Failure {
        match self {
            Self::NoAnswer(failure) | Self::Other(failure) => failure,
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        problem.into_failure()
    }
}

/// Asks a control plane again and again, through its restarts.
pub struct Patient<'a> {
    args: &'a Args,
    client: Client,
    lost: bool,
}

impl<'a> Patient<'a> {
    /// # Errors
    /// Nothing names a control plane.
    pub fn new(args: &'a Args) -> Result<Self, Failure> {
        Ok(Self {
            args,
            client: Client::new(args)?,
            lost: false,
        })
    }

    /// The answer; while there is none, says so once and tries again every second. Only the first request
    /// fails when nobody answers: then a person has named the wrong place.
    ///
    /// # Errors
    /// What asking again would not help.
    pub fn get(&mut self, path: &str, first: bool) -> Result<Json, Failure> {
        loop {
            match self.client.json("GET", path, None) {
                Ok(answer) => {
                    if std::mem::take(&mut self.lost) {
                        complain(&self.args.path, "the control plane answers again");
                    }
                    return Ok(answer);
                }
                Err(Problem::NoAnswer(_)) if !first => {
                    if !std::mem::replace(&mut self.lost, true) {
                        complain(
                            &self.args.path,
                            "the control plane does not answer: trying again every second",
                        );
                    }
                    std::thread::sleep(Duration::from_secs(1));
                    // It may have come back elsewhere.
                    if let Ok(client) = Client::new(self.args) {
                        self.client = client;
                    }
                }
                Err(problem) => return Err(problem.into_failure()),
            }
        }
    }
}

/// The control plane gave no answer.
#[derive(Debug)]
struct Unreachable(String, String, client::HttpError);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "no answer from the control plane at {} (named by {})",
            self.0, self.1
        )
    }
}

impl std::error::Error for Unreachable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.2)
    }
}

fn read(path: &str) -> Result<Vec<u8>, Failure> {
    let shown = Path::new(path);
    let parent = match shown.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = shown.file_name().unwrap_or_default().to_string_lossy();
    Dir::open(parent)
        .and_then(|dir| dir.open_beneath(&name))
        .and_then(|file| fs::read_bounded(file, shown, FILE_MAX))
        .map_err(Failure::refused)
}

/// Reads an answer that the same version of the API wrote.
///
/// # Errors
/// It is not of this form.
pub fn parse<T: DeJson>(text: &str) -> Result<T, Failure> {
    T::deserialize_json(text).map_err(|error| {
        Failure::failed(format!(
            "the control plane's answer cannot be read: {error}"
        ))
    })
}

/// An id as it may stand in the API's paths.
///
/// # Errors
/// Refused when it is no such id; the argument itself is not shown, since it may be a token.
pub fn id(args: &Args, prefix: &str, what: &str) -> Result<String, Failure> {
    checked_id(args.positional(0), prefix, what)
}

/// As [`id`], for an id from elsewhere.
///
/// # Errors
/// As [`id`].
pub fn checked_id(id: &str, prefix: &str, what: &str) -> Result<String, Failure> {
    match crate::ids::is_ulid_of(prefix, id) {
        true => Ok(id.to_owned()),
        false => Err(Failure::refused(format!(
            "this is no {what} id: it is {prefix}_ and 26 characters, as better-compute {what}s list shows it"
        ))),
    }
}
