//! The traits of generated messages, until proto-gen has them.
use std::fmt::{self, Debug};
use std::marker::PhantomData;
#[derive(Debug)]
pub struct DecodeError;
impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bad")
    }
}
impl std::error::Error for DecodeError {}
pub trait Message: Default + Clone + PartialEq + Debug {
    fn encoded_len(&self) -> usize;
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
    fn encode_to_vec(&self) -> Vec<u8> {
        let mut v = Vec::new();
        self.encode(&mut v);
        v
    }
}
pub struct Method<Q, R> {
    path: &'static str,
    kind: PhantomData<fn(Q) -> R>,
}
impl<Q, R> Method<Q, R> {
    pub const fn unary(path: &'static str) -> Self {
        Method {
            path,
            kind: PhantomData,
        }
    }
    pub const fn bidi(path: &'static str) -> Self {
        Method {
            path,
            kind: PhantomData,
        }
    }
    pub const fn path(&self) -> &'static str {
        self.path
    }
}
