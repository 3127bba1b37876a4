//! Writes an image to a disk as `deploy.image` does, without an order: for benches/image_vs_curl.py, which gives it a loop
//! device. What is on the disk is lost.
//!
//!     image_write URL SHA256 DISK
//!
//! Prints, as JSON, the seconds until all of it was on the disk and what reading it back took.
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use bcd::deploy::image::{self, Expected, Image};
use bcd::sys::block::Block;
use bcd::sys::stop::Stop;
use bcd::wire::url::Url;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, sha256, disk] = arguments.as_slice() else {
        eprintln!("usage: image_write URL SHA256 DISK");
        return ExitCode::from(2);
    };
    match run(url, sha256, disk) {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("image_write: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(url: &str, sha256: &str, disk: &str) -> Result<String, Box<dyn std::error::Error>> {
    let digits = (0..sha256.len()).step_by(2);
    let digest = digits
        .map(|at| u8::from_str_radix(sha256.get(at..at + 2).unwrap_or_default(), 16))
        .collect::<Result<Vec<u8>, _>>()?;
    let image = Image {
        sources: vec![Url::parse(url)?],
        packed: Expected {
            sha256: Some(digest.try_into().map_err(|_| "a SHA-256 has 64 digits")?),
            size: None,
        },
        unpacked: Expected::default(),
        with_root: false,
    };
    let (disk, stop) = (Block::open(Path::new(disk))?, Stop::new()?);
    let begun = Instant::now();
    let written = image::write(&image, &disk, &stop, &mut |_| {})?;
    let write = begun.elapsed();
    let begun = Instant::now();
    written.read_back(&disk, &stop, &mut |_| {})?;
    let read_back = begun.elapsed();
    let size = written.unpacked.size;
    written.commit(&disk)?;
    Ok(format!(
        "{{\"bytes\": {size}, \"write_s\": {:.3}, \"read_back_s\": {:.3}}}",
        write.as_secs_f64(),
        read_back.as_secs_f64()
    ))
}
