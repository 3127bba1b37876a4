#![allow(clippy::unwrap_used, clippy::panic)]
use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

const IMAGE: &[u8] = b"01234567";
const QUICK: Pace = Pace {
    retry: Backoff::new(Duration::from_millis(5), Duration::from_millis(20)),
    progress_in: Duration::from_secs(2),
};

/// What a pinned download from `sources` comes to.
fn downloaded(sources: &[Url]) -> Result<Downloaded, Error> {
    let stops = [Stop::new().unwrap(), Stop::new().unwrap()];
    let (pieces, _taken) = rt::channel(8);
    let (gauge, used) = (Gauge::default(), rt::channel(1).1);
    let download = Download {
        sources,
        expected: Expected {
            sha256: Some(digest::sha256(IMAGE)),
            size: None,
        },
        stops: stops.each_ref(),
        gauge: &gauge,
        pieces,
        pace: QUICK,
    };
    download.run(used)
}

/// What one comes to whose sources, so many, answer so, one after the other; `PORT` is theirs.
fn answered(answers: &[&str], sources: usize) -> Result<Downloaded, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let sources: Vec<Url> = (0..sources)
        .map(|n| Url::parse(&format!("http://127.0.0.1:{port}/dir/{n}?secret")).unwrap())
        .collect();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| downloaded(&sources));
        for answer in answers {
            listener.set_nonblocking(true).unwrap();
            let mut peer = loop {
                match listener.accept() {
                    Ok((peer, _)) => break peer,
                    // It has all it wants.
                    Err(_) if client.is_finished() => return client.join().unwrap(),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            peer.set_nonblocking(false).unwrap();
            let _ = peer.read(&mut [0; 4096]);
            peer.write_all(answer.replace("PORT", &port.to_string()).as_bytes())
                .unwrap();
        }
        client.join().unwrap()
    })
}

const BROKEN: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n";
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n01234567";

#[test]
fn a_source_that_has_less_than_came_before_has_another_file() {
    for less in [
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n012",
        "HTTP/1.1 416 No\r\nContent-Range: bytes */3\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 206 OK\r\nContent-Range: bytes 4-4/*\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n4",
    ] {
        // Only the last source is asked more than once.
        let again = [BROKEN, less, less, less, less, less, less];
        let error = answered(&again, 2).unwrap_err();
        let packed = less.contains("gzip");
        match error {
            Error::Changed(..) => assert!(!packed),
            Error::Encoding(_) => assert!(packed),
            error => panic!("{error:?}"),
        }
    }
}

#[test]
fn a_word_of_packing_counts_when_the_bytes_are_others() {
    for coding in ["x-gzip", "", "identity"] {
        let whole = WHOLE.replace(
            "\r\n\r\n",
            &format!("\r\nContent-Encoding: {coding}\r\n\r\n"),
        );
        assert!(answered(&[&whole], 1).is_ok(), "{coding}");
        let other = whole.replace("01234567", "76543210");
        let packed = matches!(answered(&[&other], 1), Err(Error::Encoding(_)));
        assert_eq!(packed, coding == "x-gzip");
    }
}

#[test]
fn a_cache_that_drips_is_left_for_the_source_and_a_source_alone_is_not() {
    for alone in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // So slow that it takes four times what a cache may.
        std::thread::spawn(move || {
            let mut whole = None;
            for peer in listener.incoming() {
                let mut peer = peer.unwrap();
                let _ = peer.read(&mut [0; 4096]);
                if whole.replace(()).is_some() {
                    let _ = peer.write_all(WHOLE.as_bytes());
                    continue;
                }
                let _ = peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
                for byte in IMAGE {
                    std::thread::sleep(QUICK.progress_in * 6 / 10);
                    if peer.write_all(&[*byte]).is_err() {
                        break;
                    }
                }
            }
        });
        let sources: Vec<Url> = (0..if alone { 1 } else { 2 })
            .map(|n| Url::parse(&format!("http://127.0.0.1:{port}/{n}")).unwrap())
            .collect();
        let done = downloaded(&sources).unwrap();
        assert_eq!((done.packed.size, done.resumed), (8, u32::from(!alone)));
        assert!(done.from.ends_with(if alone { "/0" } else { "/1" }));
    }
}

#[test]
fn a_source_binds_no_other_by_what_it_claims() {
    for claim in [
        "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n012",
        "HTTP/1.1 206 OK\r\nContent-Range: bytes 0-1/3\r\nContent-Length: 2\r\n\r\n01",
    ] {
        let done = answered(&[claim, WHOLE], 2).unwrap();
        assert_eq!(done.packed.size, 8, "{claim}");
        assert!(done.from.ends_with("/dir/1"), "{}", done.from);
    }
}

#[test]
fn what_is_all_there_is_not_asked_for_again_and_parts_are_put_together() {
    let unended = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n01234567\r\n";
    let done = answered(&[unended, "HTTP/1.1 500 No\r\n\r\n"], 2).unwrap();
    assert!(done.resumed == 0 && done.from.ends_with("/dir/0"));
    let part = "HTTP/1.1 206 OK\r\nContent-Range: bytes 4-5/8\r\nContent-Length: 2\r\n\r\n45";
    let rest = "HTTP/1.1 206 OK\r\nContent-Range: bytes 6-7/8\r\nContent-Length: 2\r\n\r\n67";
    let busy = "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    let done = answered(&[BROKEN, part, busy, rest], 1).unwrap();
    assert_eq!((done.packed.size, done.resumed), (8, 2));
}

#[test]
fn a_server_leads_on_by_any_reference_but_to_nowhere() {
    for to in [
        "/dir/2",
        "x/../2",
        "./2#part",
        "?2",
        "//127.0.0.1:PORT/2",
        "http://127.0.0.1:PORT/dir/2?token#part",
    ] {
        let leads = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n\r\n");
        // The one more is for the place it leads to.
        let done = answered(&[&leads, WHOLE], 1).unwrap();
        assert!(!done.from.contains(['?', '#']), "{}", done.from);
    }
    for to in [
        "",
        "ftp://u:secret@x/y",
        "https:secret@x",
        "/ ;secret=1",
        "ftp://x/y",
        "/a b",
        "/\u{e4}",
        "http://",
    ] {
        let leads = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n\r\n");
        let error = answered(&[&leads], 1).unwrap_err();
        assert!(matches!(error, Error::Location(..)), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_range_is_what_the_server_says_or_nothing() {
    for (text, range) in [
        ("bytes 5-9/10", Some((5, Some(10)))),
        ("Bytes 5-9/10", Some((5, Some(10)))),
        ("bytes 0-0/*", Some((0, None))),
        ("bytes 5-9/9", None),
        ("bytes 9-5/10", None),
        ("bytes */10", None),
        ("bytes -5-9/10", None),
        ("bytes 5-/10", None),
        ("items 5-9/10", None),
        ("bytes 99999999999999999999-9/10", None),
    ] {
        assert_eq!(content_range(text), range, "{text}");
    }
}
