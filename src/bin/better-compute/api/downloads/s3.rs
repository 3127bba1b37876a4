//! Releases in a bucket of any S3-compatible store. rusty-s3 signs, wire::http1 asks.
//!
//! Promises: nothing of an object is kept beyond the piece that is under way; a part is always of the
//! object whose length was told (`If-Match`); no secret is in an error.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bcd::attest::roots;
use bcd::rt;
use bcd::wire::http1::client::{self, Answer, HttpError, Request, Waits};
use bcd::wire::http1::server::Body;
use bcd::wire::url::Url;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rusty_s3::actions::{GetObject, HeadObject};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

/// How long a signature holds: what the two clocks may differ by.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Pieces of an object that may wait to be sent.
const PIECES: usize = 2;

/// A bucket, or a prefix in one.
pub struct S3 {
    bucket: Bucket,
    prefix: String,
    credentials: Option<Credentials>,
    endpoint: Url,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// What an object is.
pub struct Object {
    pub length: u64,
    pub etag: Option<String>,
}

/// Why the store does not give what it is asked for.
#[derive(Debug)]
pub enum S3Error {
    Http(HttpError),
    /// It answers this, and with it no object.
    Status(u16),
    /// It does not say how long the object is.
    Length,
}

impl S3 {
    /// `https://HOST/BUCKET[/PREFIX]`, or `http://` where the network is trusted: what machines run, they check by
    /// its digest. Without credentials the bucket is read as anybody may.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(url: &str, region: &str, credentials: Option<Credentials>) -> Result<Self, String> {
        let endpoint = Url::parse(url).map_err(|error| error.to_string())?;
        let path = endpoint.path.trim_matches('/');
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        let parts = || path.split('/');
        if path.is_empty()
            || !path.bytes().all(plain)
            || parts().any(|part| matches!(part, "" | "." | ".."))
        {
            return Err("after the host comes the bucket's name, and maybe a prefix, of letters, digits, '.', '_' and '-'".to_owned());
        }
        let (name, prefix) = match path.split_once('/') {
            Some((name, prefix)) => (name, format!("{prefix}/")),
            None => (path, String::new()),
        };
        let base = endpoint.origin();
        let base = base
            .parse()
            .map_err(|_| "its host is none that S3 has".to_owned())?;
        let bucket = Bucket::new(base, UrlStyle::Path, name.to_owned(), region.to_owned())
            .map_err(|error| error.to_string())?;
        let tls = match endpoint.https {
            false => None,
            true => {
                let name = ServerName::try_from(endpoint.host.clone())
                    .map_err(|_| "its host is neither a DNS name nor an address".to_owned())?;
                let tls = roots::tls(None).map_err(|error| error.to_string())?;
                Some((Arc::new(tls), name))
            }
        };
        Ok(Self {
            bucket,
            prefix,
            credentials,
            endpoint,
            tls,
        })
    }

    /// The object `key`, if there is one.
    ///
    /// # Errors
    /// See [`S3Error`].
    pub async fn look_up(&self, key: &str) -> Result<Option<Object>, S3Error> {
        let key = format!("{}{key}", self.prefix);
        let action = HeadObject::new(&self.bucket, self.credentials.as_ref(), &key);
        let answer = self.ask("HEAD", action.sign(SIGNED_FOR), &[]).await?;
        match answer.status {
            200 => {
                let length = answer
                    .header("content-length")
                    .and_then(|it| it.parse().ok());
                let etag = answer.header("etag").filter(|etag| is_strong(etag));
                Ok(Some(Object {
                    length: length.ok_or(S3Error::Length)?,
                    etag: etag.map(str::to_owned),
                }))
            }
            404 => Ok(None),
            status => Err(S3Error::Status(status)),
        }
    }

    /// So many bytes of `object` from `first` on, as a body that is read as it is sent.
    ///
    /// # Errors
    /// See [`S3Error`].
    pub async fn read(
        &self,
        key: &str,
        object: &Object,
        first: u64,
        count: u64,
    ) -> Result<Body, S3Error> {
        let key = format!("{}{key}", self.prefix);
        let action = GetObject::new(&self.bucket, self.credentials.as_ref(), &key);
        let range = format!("bytes={first}-{}", first + count.saturating_sub(1));
        let mut headers = Vec::new();
        let part = count != object.length;
        if part {
            headers.push(("Range", range.as_str()));
        }
        if let Some(etag) = &object.etag {
            headers.push(("If-Match", etag));
        }
        let answer = self.ask("GET", action.sign(SIGNED_FOR), &headers).await?;
        if answer.status != if part { 206 } else { 200 } {
            return Err(S3Error::Status(answer.status));
        }
        if answer.body.length() != Some(count) {
            return Err(S3Error::Length);
        }
        let (sender, receiver) = rt::channel(PIECES);
        let mut body = answer.body;
        rt::spawn(async move {
            loop {
                let piece = match body.next().await {
                    Ok(Some(piece)) => Ok(piece.to_vec()),
                    Ok(None) => break,
                    Err(error) => Err(io::Error::other(error)),
                };
                let broken = piece.is_err();
                // Nobody reads on when the client has gone.
                if sender.send(piece).await.is_err() || broken {
                    break;
                }
            }
        });
        Ok(Body::Pieces(receiver, count))
    }

    async fn ask(
        &self,
        method: &str,
        signed: impl fmt::Display,
        headers: &[(&str, &str)],
    ) -> Result<Answer, S3Error> {
        let signed = signed.to_string();
        let path = signed
            .split_once("://")
            .and_then(|(_, rest)| rest.find('/').and_then(|at| rest.get(at..)));
        let request = Request {
            method,
            // As it was signed: the host is the same, and a session's token makes it longer than other URLs.
            url: &self.endpoint.with_path(path.unwrap_or("/")),
            headers,
            body: None,
            tls: self.tls.clone(),
            waits: Waits::default(),
        };
        client::send(&request).await.map_err(S3Error::Http)
    }
}

fn is_strong(etag: &str) -> bool {
    etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"')
}

impl fmt::Display for S3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(_) => f.write_str("no answer of the store of downloads"),
            Self::Status(403) => f.write_str(
                "the store of downloads answers 403: the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the region or \
                 the clock are wrong, or the object is not there and s3:ListBucket is not granted",
            ),
            Self::Status(status) => write!(f, "the store of downloads answers {status}"),
            Self::Length => f.write_str("the store of downloads does not say how long the object is"),
        }
    }
}

impl std::error::Error for S3Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http(error) => Some(error),
            Self::Status(_) | Self::Length => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_and_a_prefix_follow_the_host() {
        let s3 = S3::new("http://127.0.0.1:9000/releases/gpu/fleet/", "eu", None).unwrap();
        assert_eq!(s3.prefix, "gpu/fleet/");
        assert_eq!(
            s3.bucket
                .object_url("gpu/fleet/bcd/1.2.3+b/x")
                .unwrap()
                .as_str(),
            "http://127.0.0.1:9000/releases/gpu/fleet/bcd/1.2.3%2Bb/x"
        );
        for url in [
            "http://127.0.0.1:9000",
            "http://127.0.0.1:9000/",
            "http://h/a//b",
            "http://h/a/../b",
            "http://h/a?b",
            "http://h/a%2fb",
            "http://u:p@h/a",
            "ftp://h/a",
            "releases",
        ] {
            assert!(S3::new(url, "eu", None).is_err(), "{url}");
        }
    }
}
