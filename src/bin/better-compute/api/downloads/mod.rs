//! The public downloads route: `GET {basePath}/downloads/{product}/{version}/{os}-{arch}`.
//!
//! A release's file is looked for in a blob store, a directory tree or a bucket ([`s3`]), then in a flat directory.
//!
//! Promises: the path matches one strict pattern and names one file; nothing else of the disk or the bucket can be
//! reached, no symlink is followed, and everything else is 404. A store that does not answer is 503, so that who
//! downloads tries again. Files are streamed, never held.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod range;
mod s3;

use std::cell::Cell;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bcd::rt;
use bcd::sys::fs::Dir;
use bcd::sys::log::{self, Level, Value};
use bcd::update::manifest::is_version;
use bcd::wire::http1::server::{Answer, Body, Request};
use rusty_s3::Credentials;

pub use self::range::Part;
use self::s3::{Object, S3, S3Error};
use super::Refused;

/// A store that fails is told of once in so long, however many ask.
const QUIET: Duration = Duration::from_secs(60);

/// Where releases lie; at least one of the two.
#[derive(Clone)]
pub struct Settings {
    /// A flat directory.
    dir: Option<PathBuf>,
    /// Keyed `{product}/{version}/{file}`; tried first.
    blob: Option<BlobSettings>,
}

#[derive(Clone)]
enum BlobSettings {
    Tree(PathBuf),
    S3(Arc<S3>),
}

/// The places, opened.
pub struct Downloads {
    dir: Option<Arc<Dir>>,
    blob: Option<Blob>,
    told: Cell<Option<Instant>>,
}

enum Blob {
    Tree(Arc<Dir>),
    S3(Arc<S3>),
}

/// A file that can be served.
struct Found {
    length: u64,
    etag: Option<String>,
    from: From,
}

enum From {
    File(File),
    Object(Object),
}

impl Settings {
    /// `dir` is a directory, `blob` a directory too or the URL of a bucket, `region` the bucket's; `env` has the
    /// variables that S3's own programs know.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, and why.
    pub fn new(
        dir: Option<&str>,
        blob: Option<&str>,
        region: Option<&str>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let invalid = |flag: &str, why: &str| format!("INVALID_CONFIG: --{flag} {why}");
        let url = blob.filter(|blob| blob.contains("://"));
        if dir.is_none() && blob.is_none() {
            return Err(invalid("downloads", "or --downloads-blob has to be given"));
        }
        if region.is_some() && url.is_none() {
            return Err(invalid(
                "downloads-region",
                "needs the URL of a bucket in --downloads-blob",
            ));
        }
        let is_dir = |flag: &str, path: &str| match Path::new(path).is_dir() {
            true => Ok(PathBuf::from(path)),
            false => Err(invalid(flag, &format!("{path} is no directory"))),
        };
        let blob = match (url, blob) {
            (Some(url), _) => {
                let env = |name: &str| env(name).filter(|value| !value.is_empty());
                let credentials = match (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")) {
                    (Some(key), Some(secret)) => Some(match env("AWS_SESSION_TOKEN") {
                        Some(token) => Credentials::new_with_token(key, secret, token),
                        None => Credentials::new(key, secret),
                    }),
                    (None, None) => None,
                    _ => {
                        let why = "needs both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither for a public bucket";
                        return Err(invalid("downloads-blob", why));
                    }
                };
                let region = region.map(str::to_owned);
                let region = region
                    .or_else(|| env("AWS_REGION"))
                    .or_else(|| env("AWS_DEFAULT_REGION"));
                let region = region.unwrap_or_else(|| "us-east-1".to_owned());
                let s3 = S3::new(url, &region, credentials)
                    .map_err(|why| invalid("downloads-blob", &format!("is no bucket: {why}")))?;
                Some(BlobSettings::S3(Arc::new(s3)))
            }
            (None, Some(path)) => Some(BlobSettings::Tree(is_dir("downloads-blob", path)?)),
            (None, None) => None,
        };
        let dir = dir.map(|path| is_dir("downloads", path)).transpose()?;
        Ok(Self { dir, blob })
    }
}

impl Downloads {
    /// # Errors
    /// A directory cannot be opened.
    pub fn open(settings: &Settings) -> Result<Self, bcd::sys::fs::Error> {
        let open = |path: &Path| Dir::open(path).map(Arc::new);
        let blob = match &settings.blob {
            None => None,
            Some(BlobSettings::Tree(path)) => Some(Blob::Tree(open(path)?)),
            Some(BlobSettings::S3(s3)) => Some(Blob::S3(s3.clone())),
        };
        Ok(Self {
            dir: settings.dir.as_deref().map(open).transpose()?,
            blob,
            told: Cell::default(),
        })
    }

    /// Answers a request for `rest`, the path after `{basePath}/downloads/` as it was sent.
    pub async fn answer(&self, rest: &str, request: &Request) -> Result<Answer, Refused> {
        let nothing = || Refused::not_found("there is nothing at this path");
        let name = Name::parse(rest).ok_or_else(nothing)?;
        let found = self.find(&name).await?.ok_or_else(nothing)?;
        let length = found.length;
        let (status, first, count) = match Part::of(request, length, found.etag.as_deref()) {
            Part::Whole => (200, 0, length),
            Part::Bytes(first, last) => (206, first, last - first + 1),
            Part::NotModified => (304, 0, 0),
            Part::OutOfRange => {
                let why = format!("the file has {length} bytes");
                let refused = Refused(416, "OUT_OF_RANGE", why).answer();
                return Ok(refused.with("Content-Range", format!("bytes */{length}")));
            }
        };
        let etag = found.etag.clone();
        let body = match (status, request.method.as_str()) {
            (304, _) => Body::Bytes(Vec::new()),
            (_, "HEAD") => Body::Pieces(rt::channel(1).1, length),
            _ => self.body(found, &name, first, count).await?,
        };
        let mut answer = Answer {
            status,
            headers: Vec::new(),
            body,
        }
        .with("Content-Type", "application/octet-stream")
        .with("Cache-Control", "public, max-age=31536000, immutable")
        .with("Accept-Ranges", "bytes");
        if let Some(etag) = etag {
            answer = answer.with("ETag", etag);
        }
        if status == 206 {
            let range = format!("bytes {first}-{}/{length}", first + count - 1);
            answer = answer.with("Content-Range", range);
        }
        Ok(answer)
    }

    async fn find(&self, name: &Name) -> Result<Option<Found>, Refused> {
        let mut failed = None;
        match &self.blob {
            None => {}
            Some(Blob::Tree(tree)) => {
                if let Some(found) = in_directory(tree, name.key()).await {
                    return Ok(Some(found));
                }
            }
            Some(Blob::S3(s3)) => match s3.look_up(&name.key()).await {
                Ok(None) => {}
                Ok(Some(object)) => {
                    return Ok(Some(Found {
                        length: object.length,
                        etag: object.etag.clone(),
                        from: From::Object(object),
                    }));
                }
                Err(error) => failed = Some(error),
            },
        }
        if let Some(dir) = &self.dir
            && let Some(found) = in_directory(dir, name.file.clone()).await
        {
            return Ok(Some(found));
        }
        match failed {
            Some(error) => Err(self.unavailable(&error)),
            None => Ok(None),
        }
    }

    async fn body(
        &self,
        found: Found,
        name: &Name,
        first: u64,
        count: u64,
    ) -> Result<Body, Refused> {
        match (found.from, &self.blob) {
            (From::File(mut file), _) => match file.seek(SeekFrom::Start(first)) {
                Ok(_) => Ok(Body::File(file, count)),
                Err(_) => Err(unavailable()),
            },
            (From::Object(object), Some(Blob::S3(s3))) => {
                let body = s3.read(&name.key(), &object, first, count).await;
                body.map_err(|error| self.unavailable(&error))
            }
            (From::Object(_), _) => Err(unavailable()),
        }
    }

    fn unavailable(&self, error: &S3Error) -> Refused {
        if self.told.get().is_none_or(|told| told.elapsed() >= QUIET) {
            self.told.set(Some(Instant::now()));
            log::event(
                Level::Error,
                "downloads.store",
                &[("error", Value::Chain(error))],
            );
        }
        unavailable()
    }
}

fn unavailable() -> Refused {
    let what =
        "the store of downloads does not give it: try again; the control plane's log says why";
    Refused(503, "UNAVAILABLE", what.to_owned())
}

async fn in_directory(dir: &Arc<Dir>, path: String) -> Option<Found> {
    let dir = dir.clone();
    rt::blocking("download", move || open(&dir, &path))
        .await
        .ok()?
}

/// The regular file at `path` in `dir`, to which no symlink leads; `None` when there is none.
fn open(dir: &Dir, path: &str) -> Option<Found> {
    let file = dir.open_plain(path).ok()?;
    let about = file.metadata().ok()?;
    let etag = format!(
        "\"{:x}-{:x}.{:x}-{:x}\"",
        about.len(),
        about.mtime(),
        about.mtime_nsec(),
        about.ino()
    );
    Some(Found {
        length: about.len(),
        etag: Some(etag),
        from: From::File(file),
    })
}

/// What a path asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    product: &'static str,
    version: String,
    /// The file in a flat directory.
    pub file: String,
}

impl Name {
    /// Of `rest`, the path after `{basePath}/downloads/` as it was sent; `None` for whatever does not match the
    /// pattern.
    pub fn parse(rest: &str) -> Option<Self> {
        let mut parts = rest.split('/');
        let (product, version, platform) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let (product, suffix) = match product {
            "bcd" => ("bcd", ""),
            "bcx-ipmi" => ("bcx-ipmi", ".tar.gz"),
            _ => return None,
        };
        let version = version.strip_prefix('v').unwrap_or(version);
        let arch = platform.strip_prefix("linux-")?;
        if !is_version(version) || !matches!(arch, "amd64" | "arm64") {
            return None;
        }
        Some(Self {
            product,
            version: version.to_owned(),
            file: format!("{product}_{version}_linux_{arch}{suffix}"),
        })
    }

    /// The file in a blob store.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.product, self.version, self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::TempDir;

    #[test]
    fn the_pattern_names_exactly_one_file() {
        for (path, name) in [
            ("bcd/0.1.0/linux-amd64", "bcd_0.1.0_linux_amd64"),
            ("bcd/v1.2.3/linux-arm64", "bcd_1.2.3_linux_arm64"),
            ("bcd/1.2.3-rc.1/linux-amd64", "bcd_1.2.3-rc.1_linux_amd64"),
            ("bcd/1.2.3+b.5/linux-amd64", "bcd_1.2.3+b.5_linux_amd64"),
            (
                "bcx-ipmi/0.1.0/linux-amd64",
                "bcx-ipmi_0.1.0_linux_amd64.tar.gz",
            ),
        ] {
            let found = Name::parse(path).unwrap();
            assert_eq!(found.file, name);
            assert!(found.key().ends_with(&format!("/{name}")));
        }
    }

    #[test]
    fn everything_else_matches_nothing() {
        for path in [
            "",
            "/",
            "bcd",
            "bcd/0.1.0",
            "bcd/0.1.0/",
            "bcd/0.1.0/linux-amd64/",
            "bcd/0.1.0/linux-amd64/x",
            "/bcd/0.1.0/linux-amd64",
            "bcd//linux-amd64",
            "BCD/0.1.0/linux-amd64",
            "better-compute/0.1.0/linux-amd64",
            "bcd/0.1/linux-amd64",
            "bcd/vv0.1.0/linux-amd64",
            "bcd/0.1.0.0/linux-amd64",
            "bcd/00.1.0/linux-amd64",
            "bcd/../linux-amd64",
            "bcd/0.1.0-../linux-amd64",
            "bcd/0.1.0-/linux-amd64",
            "bcd/0.1.0-a_b/linux-amd64",
            "bcd/0.1.0%2f..%2f../linux-amd64",
            "bcd/0.1.0%00/linux-amd64",
            "bcd/0.1.0\0/linux-amd64",
            "bcd/0.1.0\\..\\x/linux-amd64",
            "bcd/0.1.0/linux-amd64%2f..",
            "bcd/0.1.0/linux-x86_64",
            "bcd/0.1.0/windows-amd64",
            "bcd/0.1.0/linux_amd64",
            "bcd/0.1.0/linux-",
            "bcd/0.1.0/linux-amd64?x",
            &format!("bcd/0.1.0-{}/linux-amd64", "a".repeat(64)),
        ] {
            assert_eq!(Name::parse(path), None, "{path:?}");
        }
    }

    #[test]
    fn only_regular_files_of_the_directory_itself_are_opened() {
        let temp = TempDir::new();
        std::fs::create_dir(temp.0.join("d")).unwrap();
        std::fs::write(temp.0.join("secret"), b"secret").unwrap();
        std::fs::write(temp.0.join("d/real"), b"bytes").unwrap();
        std::os::unix::fs::symlink("../secret", temp.0.join("d/out")).unwrap();
        std::os::unix::fs::symlink("real", temp.0.join("d/in")).unwrap();
        std::fs::create_dir(temp.0.join("d/dir")).unwrap();
        let dir = Dir::open(&temp.0.join("d")).unwrap();
        assert_eq!(open(&dir, "real").unwrap().length, 5);
        for name in ["out", "in", "dir", "missing", "../secret", ".", ""] {
            assert!(open(&dir, name).is_none(), "{name}");
        }
    }
}
