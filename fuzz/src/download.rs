//! An image server's answers, one after the other: whatever they are, a download ends; what is called whole is what was
//! expected, no more is handed on than was announced, and a reason is one line.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bcd::crypto::digest::sha256;
use bcd::deploy::image::Expected;
use bcd::deploy::image::download::{Download, Gauge, Pace};
use bcd::rt;
use bcd::sys::log::{self, Level};
use bcd::sys::stop::Stop;
use bcd::wire::url::Url;

pub const HEAP: super::Heap = super::Heap {
    base: 1 << 20,
    per_byte: 256,
};

/// Sources, each of which is asked once: only the last one would be asked again, after a while.
const SOURCES: usize = 4;
/// What is on its way when the last answer was given comes within this.
const SOON: Duration = Duration::from_millis(5);
/// What the seeds' servers have.
const IMAGE: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The first byte says what is known beforehand. Then the answers, each with its length in two bytes before it.
pub fn run(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else {
        return;
    };
    let mut answers = Vec::new();
    while let [high, low, more @ ..] = rest
        && answers.len() < SOURCES
    {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (answer, after) = more.split_at(length);
        answers.push(answer);
        rest = after;
    }
    log::set_level(Level::Error);
    let expected = Expected {
        sha256: (first & 1 == 0).then(|| sha256(IMAGE)),
        size: (first & 2 != 0).then_some(IMAGE.len() as u64),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    let sources: Vec<Url> = (0..SOURCES)
        .map(|nth| Url::parse(&format!("http://127.0.0.1:{port}/{nth}")).expect("a URL"))
        .collect();
    let stops = [(); 2].map(|()| Stop::new().expect("a word"));
    let gauge = Gauge::default();
    let (pieces, mut taken) = rt::channel(256);
    let download = Download {
        sources: &sources,
        expected,
        pace: Pace::default(),
        stops: stops.each_ref(),
        gauge: &gauge,
        pieces,
    };
    let outcome = thread::scope(|scope| {
        let client = scope.spawn(|| download.run(rt::channel(1).1));
        serve(&listener, &answers, || client.is_finished());
        let end = Instant::now() + SOON;
        while !client.is_finished() && Instant::now() < end {
            thread::yield_now();
        }
        stops[0].say();
        client.join().expect("no panic")
    });
    let mut got = Vec::new();
    while let Some(piece) = taken.try_recv() {
        got.extend(piece);
    }
    assert!(got.len() as u64 <= gauge.bytes.load(Ordering::Relaxed));
    assert!(expected.size.is_none_or(|size| got.len() as u64 <= size));
    match outcome {
        Ok(done) => {
            assert_eq!(done.packed.size, got.len() as u64);
            assert_eq!(done.packed.sha256, sha256(&got));
            assert!(expected.sha256.is_some() && got == IMAGE);
        }
        Err(error) => {
            super::one_line(&error);
            assert!(!error.word().is_empty());
        }
    }
}

/// Gives each who comes an answer, until there is none left or nobody comes any more.
fn serve(listener: &TcpListener, answers: &[&[u8]], over: impl Fn() -> bool) {
    listener.set_nonblocking(true).expect("a socket");
    let mut answers = answers.iter();
    while !answers.as_slice().is_empty() && !over() {
        match listener.accept() {
            Ok((peer, _)) => answer(peer, answers.next().copied().unwrap_or_default()),
            Err(_) => thread::yield_now(),
        }
    }
}

fn answer(mut peer: TcpStream, bytes: &[u8]) {
    peer.set_nonblocking(false).expect("a socket");
    peer.set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a socket");
    let mut asked = Vec::new();
    let mut piece = [0; 1024];
    while !asked.ends_with(b"\r\n\r\n") {
        match peer.read(&mut piece) {
            Ok(count @ 1..) => asked.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let _ = peer.write_all(bytes);
}
