#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::*;
use crate::crypto::digest::sha256;
use crate::sys::fs::tests::scratch;

/// The disk of all images in testdata/.
fn disk_image() -> Vec<u8> {
    let mut image = Vec::new();
    for sector in 0..9 * 2048 + 3_u64 {
        match sector / 2048 {
            2 | 3 | 6 => image.extend([0; 512]),
            _ => {
                image.extend([(sector * 7 % 251) as u8; 500]);
                image.extend(sector.to_le_bytes());
                image.extend(b"bcd\n");
            }
        }
    }
    image[510] = 0x55;
    image[511] = 0xaa;
    image
}

macro_rules! testdata {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("testdata/", $name)).as_slice(),
        )
    };
}

fn unpacked(packed: &[u8]) -> Result<Vec<u8>, String> {
    let packed = Box::new(Cursor::new(packed.to_vec()));
    let shown = |error: Error| match error {
        Error::Unpack(error) => error.to_string(),
        error => error.to_string(),
    };
    let (mut output, _) = super::unpacked(packed, u64::MAX).map_err(shown)?;
    let mut all = Vec::new();
    match output.read_to_end(&mut all) {
        Ok(_) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_kind_of_image_is_the_disk_it_was_made_of() {
    let image = disk_image();
    assert_eq!(unpacked(&image).unwrap(), image);
    for (name, packed) in [
        testdata!("image.gz"),
        testdata!("members.gz"),
        testdata!("image.xz"),
        testdata!("sha256.xz"),
        testdata!("image.zst"),
        testdata!("deflate.qcow2.xz"),
        testdata!("zstd.qcow2.zst"),
        testdata!("plain.qcow2.xz"),
        testdata!("small.qcow2.gz"),
    ] {
        let made = unpacked(packed).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Clusters are whole: what qcow2 holds may be longer by zeros.
        assert!(made.starts_with(&image), "{name}");
        assert!(made.len() - image.len() < 512, "{name}");
        // One behind the other is the format's own way, and one disk behind the other.
        if !name.contains("qcow2") {
            let twice = unpacked(&[packed, packed].concat()).unwrap();
            assert!(twice == [&image[..], &image].concat(), "{name}");
        }
    }
}

/// A disk of 256 KiB of which every eighth cluster cannot be compressed.
fn mixed_image(cluster: usize) -> Vec<u8> {
    let mut image = Vec::new();
    for n in 0..256 * 1024 / cluster {
        match n % 8 {
            3 => {
                let noise = (0..cluster / 32).map(|k| sha256(format!("{n} {k}").as_bytes()));
                image.extend(noise.flatten());
            }
            _ => {
                let line = format!("what the installer wrote, line {n}\n").repeat(200);
                image.extend(&line.as_bytes()[..cluster]);
            }
        }
    }
    image
}

#[test]
fn compressed_data_fill_clusters_that_others_were_put_behind() {
    for ((name, packed), cluster) in [
        (testdata!("mixed-512.qcow2.zst"), 512),
        (testdata!("mixed-4096.qcow2.zst"), 4096),
    ] {
        assert!(unpacked(packed).unwrap() == mixed_image(cluster), "{name}");
    }
}

#[test]
fn a_compressed_cluster_takes_no_more_room_than_one_that_is_not() {
    let (_, packed) = testdata!("mixed-4096.qcow2.zst");
    let mut image = Vec::new();
    let mut whole = zstd::Zstd::new(Box::new(Cursor::new(packed))).unwrap();
    whole.read_to_end(&mut image).unwrap();
    let number = |image: &[u8], at: usize| {
        u64::from_be_bytes(image[at..at + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00
    };
    // The first entry of the first table of clusters: how many sectors are told behind bit 62.
    let l1 = number(&image, 40) as usize;
    let l2 = number(&image, l1) as usize;
    assert!(image[l2] & 0x40 != 0 && unpacked(&image).is_ok());
    image[l2] |= 0x3c;
    let error = unpacked(&image).unwrap_err();
    assert!(error.contains("longer than one that is not"), "{error}");
}

#[test]
fn an_image_that_was_cut_or_changed_anywhere_is_never_taken_for_whole() {
    for (name, packed) in [
        testdata!("image.gz"),
        testdata!("image.xz"),
        testdata!("image.zst"),
        testdata!("plain.qcow2.xz"),
    ] {
        for part in [1, 6, 11, 15] {
            let cut = &packed[..packed.len() * part / 16];
            assert!(unpacked(cut).is_err(), "{name} up to {}", cut.len());
        }
        assert!(unpacked(&packed[..packed.len() - 1]).is_err(), "{name}");
        let more = [packed, b"\x01more"].concat();
        assert!(unpacked(&more).is_err(), "{name} and more");
    }
    for (name, packed) in [testdata!("image.gz"), testdata!("image.xz")] {
        for place in (12..packed.len()).step_by(29_989) {
            let mut changed = packed.to_vec();
            changed[place] ^= 0x40;
            assert!(unpacked(&changed).is_err(), "{name} at {place}");
        }
    }
}

#[test]
fn what_is_refused_is_refused_by_its_reason() {
    for ((name, packed), reason) in [
        (testdata!("large.xz"), "dictionary is larger than 32 MiB"),
        (testdata!("large.zst"), "window is larger than 32 MiB"),
        (testdata!("used.qcow2.zst"), "not in order"),
        (testdata!("backed.qcow2.zst"), "backing file"),
        (
            ("tar", &[&[b'x'; 257][..], b"ustar"].concat()),
            "a tar archive",
        ),
    ] {
        let error = unpacked(packed).unwrap_err();
        assert!(error.contains(reason), "{name}: {error}");
    }
    let (_, packed) = testdata!("image.gz");
    let mut twice = Vec::new();
    // Stored, by hand: gzip in gzip in gzip.
    for _ in 0..2 {
        let body = match twice.is_empty() {
            true => packed[..1000].to_vec(),
            false => twice.clone(),
        };
        let length = (body.len() as u16).to_le_bytes();
        let check = (!(body.len() as u16)).to_le_bytes();
        twice = [
            &b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01"[..],
            &length,
            &check,
            &body,
            &crc::crc32(&body).to_le_bytes(),
            &(body.len() as u32).to_le_bytes(),
        ]
        .concat();
    }
    assert!(unpacked(&twice).unwrap_err().contains("packed once more"));
}

/// How a server of one file behaves.
#[derive(Clone, Copy)]
struct Manners {
    /// Closes after so many bytes, as often.
    cut: Option<(usize, usize)>,
    ranges: bool,
    length: bool,
    status: u16,
}

const POLITE: Manners = Manners {
    cut: None,
    ranges: true,
    length: true,
    status: 200,
};

/// Serves `file` and gives its URL; what was asked for is written down: where each answer began.
fn serve(file: Vec<u8>, manners: Manners) -> (Url, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let written = asked.clone();
    std::thread::spawn(move || {
        let mut cuts = manners.cut.map_or(0, |(_, cuts)| cuts);
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let from = answer(&stream, &file, manners, &mut cuts);
            written.lock().unwrap().push(from);
        }
    });
    let url = Url::parse(&format!("http://127.0.0.1:{port}/image")).unwrap();
    (url, asked)
}

fn answer(mut stream: &TcpStream, file: &[u8], manners: Manners, cuts: &mut usize) -> usize {
    let mut from = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap_or_default();
        if let Some(range) = line.strip_prefix("Range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    if !manners.ranges {
        from = 0;
    }
    let mut head = match (manners.status, from) {
        (200, 0) => "HTTP/1.1 200 OK\r\n".to_owned(),
        (200, from) => format!(
            "HTTP/1.1 206 Partial\r\nContent-Range: bytes {from}-{}/{}\r\n",
            file.len() - 1,
            file.len()
        ),
        (status, _) => format!("HTTP/1.1 {status} No\r\n"),
    };
    if manners.length {
        head += &format!("Content-Length: {}\r\n", file.len() - from);
    }
    let mut body = &file[from..];
    if let Some((after, _)) = manners.cut.filter(|_| *cuts > 0) {
        *cuts -= 1;
        body = &body[..after.min(body.len())];
    }
    let _ = stream.write_all((head + "\r\n").as_bytes());
    let _ = stream.write_all(body);
    from
}

/// A disk of this size whose every byte is the last tenant's.
fn used_disk(size: u64) -> (PathBuf, Block) {
    let path = scratch("image").join("disk");
    let file = File::create(&path).unwrap();
    for at in (0..size).step_by(1 << 20) {
        let length = (size - at).min(1 << 20) as usize;
        file.write_all_at(&vec![0xee; length], at).unwrap();
    }
    let disk = Block::open(&path).unwrap();
    (path, disk)
}

fn pinned(urls: &[&Url], file: &[u8]) -> Image {
    Image {
        sources: urls.iter().map(|url| (*url).clone()).collect(),
        packed: Expected {
            sha256: Some(sha256(file)),
            size: None,
        },
        unpacked: Expected::default(),
        with_root: false,
    }
}

fn written(image: &Image, disk: &Block) -> Result<Written, Error> {
    let stop = Stop::new().unwrap();
    write(image, disk, &stop, &mut |_| {})
}

const SIZE: u64 = 16 << 20;

#[test]
fn the_disk_holds_the_image_and_nothing_else_below_its_end() {
    let image = disk_image();
    let (_, packed) = testdata!("image.zst");
    let (url, _) = serve(packed.to_vec(), POLITE);
    let (path, disk) = used_disk(SIZE);
    let mut pinned = pinned(&[&url], packed);
    pinned.unpacked = Expected {
        sha256: Some(sha256(&image)),
        size: Some(image.len() as u64),
    };
    let done = written(&pinned, &disk).unwrap();
    assert_eq!(done.formats, ["zstd"]);
    assert_eq!((done.unpacked.size, done.resumed), (image.len() as u64, 0));
    assert!(done.zeroed >= 2 << 20);
    let there = std::fs::read(&path).unwrap();
    assert!(
        there[..HEAD].iter().all(|byte| *byte == 0),
        "not bootable yet"
    );
    let stop = Stop::new().unwrap();
    done.read_back(&disk, &stop, &mut |_| {}).unwrap();
    done.commit(&disk).unwrap();
    let there = std::fs::read(&path).unwrap();
    assert!(there.starts_with(&image));
    let last = SIZE as usize - HEAD;
    assert!(
        there[last..].iter().all(|byte| *byte == 0),
        "the end is clear"
    );
    assert!(there[image.len()..last].iter().all(|byte| *byte == 0xee));
}

#[test]
fn a_download_that_breaks_goes_on_where_it_was() {
    let image = disk_image();
    let cut = Some((image.len() * 9 / 10, 1));
    let (url, asked) = serve(image.clone(), Manners { cut, ..POLITE });
    let (_, disk) = used_disk(SIZE);
    let done = written(&pinned(&[&url], &image), &disk).unwrap();
    assert_eq!((done.unpacked.sha256, done.resumed), (sha256(&image), 1));
    assert_eq!(*asked.lock().unwrap(), [0, image.len() * 9 / 10]);
    // From a server without ranges, from the beginning.
    let rude = Manners {
        cut,
        ranges: false,
        ..POLITE
    };
    let (url, asked) = serve(image.clone(), rude);
    let done = written(&pinned(&[&url], &image), &disk).unwrap();
    assert_eq!((done.unpacked.sha256, done.resumed), (sha256(&image), 1));
    assert_eq!(*asked.lock().unwrap(), [0, 0]);
}

#[test]
fn the_cache_is_tried_first_and_the_source_takes_over_in_the_middle() {
    let image = disk_image();
    let missing = Manners {
        status: 404,
        ..POLITE
    };
    let broken = Manners {
        cut: Some((4_000_000, 9)),
        ..POLITE
    };
    let (_, disk) = used_disk(SIZE);
    for (cache, from) in [(missing, 0), (broken, 4_000_000)] {
        let (cache, asked_cache) = serve(image.clone(), cache);
        let (source, asked) = serve(image.clone(), POLITE);
        let done = written(&pinned(&[&cache, &source], &image), &disk).unwrap();
        assert_eq!(
            (done.from, done.unpacked.sha256),
            (source.to_string(), sha256(&image))
        );
        assert_eq!(*asked_cache.lock().unwrap(), [0]);
        assert_eq!(*asked.lock().unwrap(), [from]);
    }
}

#[test]
fn a_cache_that_has_something_else_is_left_out() {
    let image = disk_image();
    let mut changed = image.clone();
    changed[5_000_000] ^= 1;
    let longer = [&image[..], &[7; 9]].concat();
    for (what, has) in [
        ("a wrong byte", changed.as_slice()),
        ("less", &image[..7_000_000]),
        ("more", &longer),
        ("nothing", b""),
        ("a page", b"<html>404"),
        ("a sentence", b"Not found\n"),
        ("a packed one that is cut", &testdata!("image.gz").1[..9000]),
    ] {
        for cut in [None, Some((has.len() / 2, 1))] {
            let (cache, asked_cache) = serve(has.to_vec(), Manners { cut, ..POLITE });
            let (source, _) = serve(image.clone(), POLITE);
            let (path, disk) = used_disk(SIZE);
            let image = pinned(&[&cache, &source], &image);
            let done = written(&image, &disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(done.from, source.to_string());
            assert_eq!(asked_cache.lock().unwrap().len(), 1, "{what}");
            done.commit(&disk).unwrap();
            let there = std::fs::read(&path).unwrap();
            assert!(there.starts_with(&disk_image()), "{what}");
        }
    }
}

#[test]
fn an_image_that_is_too_large_by_its_own_length_costs_the_disk_nothing() {
    let image = disk_image();
    let (url, _) = serve(image.clone(), POLITE);
    let (path, disk) = used_disk(8 << 20);
    let error = written(&pinned(&[&url], &image), &disk).err().unwrap();
    assert_eq!(error.word(), "DiskTooSmall");
    assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 0xee));
}

#[test]
fn what_broke_the_download_is_told_and_not_what_its_beginning_is() {
    let image = disk_image();
    let manners = Manners {
        cut: Some((300, 1)),
        length: false,
        ..POLITE
    };
    let (url, _) = serve(image.clone(), manners);
    let (_, disk) = used_disk(SIZE);
    let error = written(&pinned(&[&url], &image), &disk).err().unwrap();
    assert_eq!(error.word(), "ImageDigest", "{error}");
}

#[test]
fn whatever_is_wrong_with_an_image_the_disk_does_not_boot_it() {
    let image = disk_image();
    let (_, packed) = testdata!("image.gz");
    let server = |file: &[u8], manners| serve(file.to_vec(), manners).0;
    let size = |packed: &[u8], size| Image {
        packed: Expected {
            size: Some(size),
            sha256: Some(sha256(packed)),
        },
        ..pinned(&[&server(packed, POLITE)], packed)
    };
    let unpacked = |expected| Image {
        unpacked: expected,
        with_root: false,
        ..pinned(&[&server(packed, POLITE)], packed)
    };
    let endless = Manners {
        length: false,
        cut: Some((5_000_000, 9)),
        ..POLITE
    };
    let other = Some([7; 32]);
    let mut cases = vec![
        (
            pinned(&[&server(&image, POLITE)], b"other"),
            "ImageDigest",
            SIZE,
        ),
        (size(&image, 1 << 20), "ImageSize", SIZE),
        (size(&image, 10 << 20), "ImageSize", SIZE),
        (
            unpacked(Expected {
                sha256: other,
                size: None,
            }),
            "ImageDigest",
            SIZE,
        ),
        (
            unpacked(Expected {
                sha256: None,
                size: Some(1 << 20),
            }),
            "ImageSize",
            SIZE,
        ),
        (
            unpacked(Expected {
                sha256: None,
                size: Some(20 << 20),
            }),
            "DiskTooSmall",
            SIZE,
        ),
        (
            pinned(&[&server(packed, POLITE)], packed),
            "DiskTooSmall",
            8 << 20,
        ),
        (
            pinned(&[&server(&image, endless)], &image),
            "ImageDigest",
            SIZE,
        ),
        (
            pinned(&[&server(&image[512..], POLITE)], &image[512..]),
            "ImageUnsupported",
            SIZE,
        ),
        (
            pinned(&[&server(b"<html>", POLITE)], b"<html>"),
            "ImageUnsupported",
            SIZE,
        ),
        (
            pinned(&[&server(b"", POLITE)], b""),
            "ImageUnsupported",
            SIZE,
        ),
    ];
    let cut = &packed[..packed.len() - 9];
    cases.push((pinned(&[&server(cut, POLITE)], cut), "ImageDamaged", SIZE));
    let mut unpinned = pinned(&[&server(&image, POLITE)], &image);
    unpinned.packed = Expected::default();
    cases.push((unpinned, "ImageUnpinned", SIZE));
    let gone = Manners {
        status: 404,
        ..POLITE
    };
    cases.push((
        pinned(&[&server(&image, gone)], &image),
        "DownloadFailed",
        SIZE,
    ));
    for (n, (image, word, size)) in cases.into_iter().enumerate() {
        let (path, disk) = used_disk(size);
        let error = written(&image, &disk)
            .err()
            .unwrap_or_else(|| panic!("case {n} was written"));
        assert_eq!(error.word(), word, "case {n}: {error:?}");
        let there = std::fs::read(&path).unwrap();
        let first = there[0];
        // Untouched, or clear; never the image's.
        assert!(first == 0xee || first == 0, "case {n}");
        assert!(there[..HEAD].iter().all(|byte| *byte == first), "case {n}");
    }
}

#[test]
fn a_disk_that_loses_what_was_written_is_found_by_reading_back() {
    let (_, packed) = testdata!("image.xz");
    let (url, _) = serve(packed.to_vec(), POLITE);
    let (path, disk) = used_disk(SIZE);
    let done = written(&pinned(&[&url], packed), &disk).unwrap();
    let stop = Stop::new().unwrap();
    done.read_back(&disk, &stop, &mut |_| {}).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"x", 5 << 20).unwrap();
    file.sync_all().unwrap();
    let error = done.read_back(&disk, &stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.word(), "ReadBackDiffers");
}

#[test]
fn a_word_to_stop_ends_a_download_that_hangs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = Url::parse(&format!("http://127.0.0.1:{port}/image")).unwrap();
    let (_, disk) = used_disk(SIZE);
    let stop = Stop::new().unwrap();
    let soon = stop.clone();
    std::thread::spawn(move || {
        let _held = listener.accept().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        soon.say();
        std::thread::sleep(std::time::Duration::from_secs(20));
    });
    let begun = std::time::Instant::now();
    let image = pinned(&[&url], b"x");
    let done = write(&image, &disk, &stop, &mut |_| {});
    assert!(matches!(done, Err(Error::Stopped)));
    assert!(begun.elapsed() < std::time::Duration::from_secs(10));
}

#[test]
fn a_gpt_fits_the_disk_with_its_copy_at_the_end_and_none_where_the_image_ended() {
    let image = include_bytes!("testdata/gpt.zst");
    let (url, _) = serve(image.to_vec(), POLITE);
    let (path, disk) = used_disk(SIZE);
    let mut done = written(&pinned(&[&url], image), &disk).unwrap();
    let stop = Stop::new().unwrap();
    done.read_back(&disk, &stop, &mut |_| {}).unwrap();
    let Table::Gpt(table) = done.table(&disk).unwrap() else {
        panic!("an MBR");
    };
    assert_eq!(table.copy_at(), (8 << 20) - 512);
    assert_eq!(table.partitions().len(), 2);
    assert_eq!(done.fit(&disk, table, true).unwrap(), Some((2, 8 << 20)));
    let names: Vec<String> = done.names(&disk).iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "GPT d15cd15c-0000-4000-8000-000000000000",
            "partition 11111111-0000-4000-8000-000000000001 (partition 1)",
            "FAT 1234-ABCD (partition 1)",
            "partition 11111111-0000-4000-8000-000000000002 (partition 2)",
            "ext e2e2e2e2-0000-4000-8000-000000000000 (partition 2)",
        ]
    );
    let there = std::fs::read(&path).unwrap();
    let ends = [&there[..HEAD], &there[SIZE as usize - HEAD..]].concat();
    assert!(
        ends.iter().all(|byte| *byte == 0),
        "neither table is there before the end"
    );
    done.commit(&disk).unwrap();
    let there = std::fs::read(&path).unwrap();
    assert!(there[SIZE as usize - 512..].starts_with(b"EFI PART"));
    assert!(
        there[(8 << 20) - 512..8 << 20]
            .iter()
            .all(|byte| *byte == 0)
    );
    let Table::Gpt(again) = Table::read(&there[..HEAD], 512).unwrap() else {
        panic!("an MBR");
    };
    assert_eq!(again.copy_at(), SIZE - 512);
    let last = again.partitions()[1];
    assert_eq!(last.start + last.length, SIZE - (1 << 20));
}
