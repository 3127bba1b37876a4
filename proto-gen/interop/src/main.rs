//! Decodes messages from standard input and encodes them again to standard output, for
//! tests/wire/test_protobuf_interop.py.
//!
//! A request is a message's full name and its bytes, an answer one byte (0: decoded, 1: refused)
//! and the message encoded again, or why it was refused. Names and bytes each have a 32-bit
//! little-endian length before them. `--list` prints every name.
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::ExitCode;

use proto_gen::codec::{DecodeError, Limits, Message};

mod messages {
    #![allow(dead_code)]
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// Decodes and encodes one kind of message.
type RoundTrip = fn(&[u8]) -> Result<Vec<u8>, DecodeError>;

/// As deep and as large as Python's decoder takes them, so that both judge the same bytes.
const LIMITS: Limits = Limits {
    bytes: 1 << 24,
    depth: 100,
    memory: 1 << 30,
};

fn round_trip<M: Message>(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let message = M::decode_within(bytes, LIMITS)?;
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    Ok(encoded)
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("--list") {
        for (name, _) in messages::MESSAGES {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let mut input = BufReader::new(io::stdin().lock());
    let mut output = BufWriter::new(io::stdout().lock());
    while let Some(name) = read(&mut input)? {
        let bytes = read(&mut input)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let found = messages::MESSAGES
            .iter()
            .find(|(known, _)| known.as_bytes() == name);
        let Some((_, round_trip)) = found else {
            let name = String::from_utf8_lossy(&name);
            return Err(io::Error::other(format!("there is no message {name}")));
        };
        let (refused, answer) = match round_trip(&bytes) {
            Ok(encoded) => (0, encoded),
            Err(error) => (1, error.fault.to_string().into_bytes()),
        };
        output.write_all(&[refused])?;
        output.write_all(&(answer.len() as u32).to_le_bytes())?;
        output.write_all(&answer)?;
    }
    output.flush()
}

/// A length and as many bytes; `None` at the end.
fn read(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    input.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
