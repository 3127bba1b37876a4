//! The route of deploys: an order for an image onto one disk of a machine.

use bcd::crypto::base64;
use bcd::deploy::files::Wanted;
use bcd::proto::{DeployImageParams, Facts, Message, OsFiles};
use bcd::wire::http1::server::Answer;
use bcd::wire::url::Url;

use super::orders::{disk_named, known, target};
use super::{Api, BODY_MAX, Refused};
use crate::ids;
use crate::json::Json;

const DEPTH_MAX: usize = 4;

impl Api {
    /// `POST machines/{mac}/deploy`.
    pub(super) async fn deploy_machine(&self, mac: &str, body: &[u8]) -> Result<Answer, Refused> {
        let asked = Json::parse(body, BODY_MAX, DEPTH_MAX)
            .map_err(|_| Refused::invalid("the body is not the JSON of an order"))?;
        known(
            &asked,
            &[
                "disk",
                "image",
                "sha256",
                "sizeBytes",
                "unpackedSha256",
                "unpackedSizeBytes",
                "skipReadBack",
                "growLastPartition",
                "newGuids",
                "files",
            ],
        )?;
        let ready = self.ready(mac, "deploy.image").await?;
        let params = params(&ready.facts, &asked).map_err(Refused::invalid)?;
        self.order(&ready, "deploy.image", &asked, |order_id| {
            let params = DeployImageParams {
                order_id,
                ..params.clone()
            };
            params.encode_to_vec()
        })
        .await
    }
}

fn params(facts: &Facts, asked: &Json) -> Result<DeployImageParams, String> {
    let disk = disk_named(facts, asked.text("disk"))?;
    let url = Url::parse(asked.text("image")).map_err(|error| format!("the image: {error}"))?;
    let sha256 = digest(asked, "sha256")?;
    if !url.https && sha256.is_empty() {
        return Err("the image is not at an https:// URL: give its SHA-256".to_owned());
    }
    let unpacked_size_bytes = size(asked, "unpackedSizeBytes")?;
    if unpacked_size_bytes > disk.size_bytes {
        return Err(format!(
            "the image has {unpacked_size_bytes} bytes, and the disk {}: choose a larger disk",
            disk.size_bytes
        ));
    }
    Ok(DeployImageParams {
        disk: Some(target(disk)),
        url: url.to_string(),
        sha256,
        size_bytes: size(asked, "sizeBytes")?,
        unpacked_sha256: digest(asked, "unpackedSha256")?,
        unpacked_size_bytes,
        skip_read_back: asked.flag("skipReadBack"),
        grow_last_partition: asked.flag("growLastPartition"),
        new_guids: asked.flag("newGuids"),
        files: asked.get("files").map(files).transpose()?,
        ..DeployImageParams::default()
    })
}

/// The files for the OS.
fn files(asked: &Json) -> Result<OsFiles, String> {
    let names = ["join", "pool", "joinToken", "userDataBase64", "hostname"];
    match asked {
        Json::Object(members)
            if members
                .iter()
                .all(|(name, _)| names.contains(&name.as_str())) => {}
        _ => return Err(format!("files is an object of {}", names.join(", "))),
    }
    let files = OsFiles {
        join: asked.flag("join"),
        join_token: asked.text("joinToken").to_owned(),
        user_data: base64::decode(asked.text("userDataBase64"))
            .map_err(|_| "userDataBase64 is not base64".to_owned())?,
        hostname: asked.text("hostname").to_owned(),
        pool: asked.text("pool").to_owned(),
    };
    if !files.pool.is_empty() && !ids::is_chosen(&files.pool) {
        return Err("pool is no name of a pool".to_owned());
    }
    // As the node will.
    Wanted::read(files.clone()).map(|_| files)
}

fn size(asked: &Json, name: &str) -> Result<u64, String> {
    match asked.get(name) {
        None => Ok(0),
        Some(size) => size
            .as_i64()
            .and_then(|size| u64::try_from(size).ok())
            .filter(|size| *size > 0)
            .ok_or_else(|| format!("{name} is a number of bytes")),
    }
}

/// The bytes of a SHA-256; none when it is not given.
fn digest(asked: &Json, name: &str) -> Result<Vec<u8>, String> {
    let Some(given) = asked.get(name) else {
        return Ok(Vec::new());
    };
    let text = given.as_text().unwrap_or_default();
    let wrong = || format!("{name} is 64 hexadecimal digits");
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    (0..32)
        .map(|n| u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok())
        .collect::<Option<_>>()
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use bcd::proto::Disk;

    use super::*;

    #[test]
    fn an_order_for_an_image_is_clear_or_none() {
        let facts = Facts {
            disks: vec![Disk {
                stable_name: "wwn-a".to_owned(),
                serial: "A".to_owned(),
                size_bytes: 1 << 30,
                ..Disk::default()
            }],
            ..Facts::default()
        };
        let asked = |more: &str| {
            let body = format!(r#"{{"disk":"wwn-a","image":"http://h/x.zst"{more}}}"#);
            params(&facts, &Json::parse(body.as_bytes(), 10_000, 4).unwrap())
        };
        let sha256 = format!(r#","sha256":"{}""#, "aB".repeat(32));
        let taken = asked(&sha256).unwrap();
        assert_eq!((taken.sha256.len(), taken.sha256[31]), (32, 0xab));
        assert_eq!(taken.disk.unwrap().serial, "A");
        let with =
            format!(r#"{sha256},"files":{{"join":true,"userDataBase64":"aGk=","hostname":"n"}}"#);
        let files = asked(&with).unwrap().files.unwrap();
        assert_eq!((files.join, files.user_data), (true, b"hi".to_vec()));
        for (more, says) in [
            (String::new(), "give its SHA-256"),
            (r#","sha256":"ab""#.to_owned(), "64 hexadecimal digits"),
            (r#","sha256":7"#.to_owned(), "64 hexadecimal digits"),
            (format!(r#"{sha256},"sizeBytes":0"#), "number of bytes"),
            (
                format!(r#"{sha256},"unpackedSizeBytes":1073741825"#),
                "larger disk",
            ),
            (format!(r#"{sha256},"files":[]"#), "files is an object"),
            (
                format!(r#"{sha256},"files":{{"x":1}}"#),
                "files is an object",
            ),
            (
                format!(r#"{sha256},"files":{{"userDataBase64":"?"}}"#),
                "base64",
            ),
            (
                format!(r#"{sha256},"files":{{"joinToken":"bcjt_"}}"#),
                "no join token",
            ),
            (
                format!(r#"{sha256},"files":{{"hostname":"a b"}}"#),
                "DNS name",
            ),
        ] {
            let refused = asked(&more).unwrap_err();
            assert!(refused.contains(says), "{more}: {refused}");
        }
    }
}
