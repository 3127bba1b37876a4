//! Reading X.509 certificates (RFC 5280), as far as identities and error messages need: whose
//! key, by whom, from when to when, under which names. Reading proves nothing; a chain is
//! verified by [`gateway_verifier`](super::gateway_verifier), rustls, or [`Certificate::is_issued_by`].
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::csr::ECDSA_SHA256;
use super::der::{self, Error, Reader};
use super::digest;
use super::pin::Pin;
use super::spki::PublicKey;

mod time;

/// The longest certificate read.
pub const MAX_LENGTH: usize = 16 << 10;
/// The most names read of one certificate.
const MAX_NAMES: usize = 100;

/// What a certificate says. Slices are DER, borrowed from it.
#[derive(Clone)]
pub struct Certificate<'a> {
    /// The whole certificate.
    pub der: &'a [u8],
    /// The serial number's bytes, big-endian, as encoded.
    pub serial: &'a [u8],
    /// The issuer's Name, whole.
    pub issuer: &'a [u8],
    /// The subject's Name, whole.
    pub subject: &'a [u8],
    /// Valid from this second on, Unix time.
    pub not_before: i64,
    /// Valid up to and including this second, Unix time.
    pub not_after: i64,
    /// The SubjectPublicKeyInfo, whole.
    pub spki: &'a [u8],
    /// basicConstraints say that it is a CA.
    pub is_ca: bool,
    /// The URI names of subjectAltName.
    pub uri_names: Vec<&'a str>,
    /// The DNS names of subjectAltName.
    pub dns_names: Vec<&'a str>,
    /// The addresses of subjectAltName.
    pub addresses: Vec<IpAddr>,
    tbs: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Reads one DER certificate, version 3, at most 16 KiB.
    ///
    /// # Errors
    /// It is longer, or not such a certificate.
    pub fn parse(der: &'a [u8]) -> Result<Self, Error> {
        if der.len() > MAX_LENGTH {
            return Err(Error::Length);
        }
        Reader::whole(der, |reader| {
            let mut outer = reader.enter(der::SEQUENCE)?;
            let mut tbs_only = outer.clone();
            let tbs = tbs_only.element(der::SEQUENCE)?.raw;
            let mut fields = outer.enter(der::SEQUENCE)?;
            let algorithm = outer.element(der::SEQUENCE)?.raw;
            let signature = outer.bit_string()?;
            outer.finish()?;
            let mut certificate = Self::fields(der, &mut fields)?;
            fields.finish()?;
            // RFC 5280, 4.1.1.2: the signed and the unsigned statement must agree.
            if certificate.algorithm != algorithm {
                return Err(Error::Value);
            }
            certificate.tbs = tbs;
            certificate.signature = signature;
            Ok(certificate)
        })
    }

    /// The pin of the certified key.
    pub fn pin(&self) -> Pin {
        Pin::of_spki(self.spki)
    }

    /// Whether `issuer` issued this: the names fit, `issuer` is a CA, and its P-256 key signed.
    /// Validity is the caller's to judge.
    pub fn is_issued_by(&self, issuer: &Certificate<'_>) -> bool {
        self.issuer == issuer.subject
            && issuer.is_ca
            && self.algorithm == ECDSA_SHA256
            && PublicKey::parse(issuer.spki)
                .is_ok_and(|key| key.verify(self.tbs, self.signature).is_ok())
    }

    /// Whether `unix_seconds` lies within the validity.
    pub fn is_valid_at(&self, unix_seconds: i64) -> bool {
        (self.not_before..=self.not_after).contains(&unix_seconds)
    }

    /// The serial number in hexadecimal.
    pub fn serial_hex(&self) -> String {
        digest::hex(self.serial)
    }

    /// The subject for people: its common name, else its organization, else its names.
    pub fn subject_text(&self) -> String {
        name_text(self.subject).unwrap_or_else(|| {
            let names = self.names_text();
            if names.is_empty() {
                "without a name".to_owned()
            } else {
                names
            }
        })
    }

    /// The issuer for people: its common name, else its organization.
    pub fn issuer_text(&self) -> String {
        name_text(self.issuer).unwrap_or_else(|| "without a name".to_owned())
    }

    /// All names of subjectAltName for people, at most ten, comma-separated.
    pub fn names_text(&self) -> String {
        let addresses = self.addresses.iter().map(IpAddr::to_string);
        let texts = self
            .dns_names
            .iter()
            .chain(&self.uri_names)
            .map(|name| shown(name));
        let all: Vec<String> = texts.chain(addresses).take(10).collect();
        all.join(", ")
    }

    fn fields(der: &'a [u8], fields: &mut Reader<'a>) -> Result<Self, Error> {
        // [0] version, which must be v3.
        let mut version = fields.enter(der::constructed(0))?;
        if version.integer()? != [2] {
            return Err(Error::Value);
        }
        version.finish()?;
        let serial = fields.integer()?;
        let algorithm = fields.element(der::SEQUENCE)?.raw;
        let issuer = fields.element(der::SEQUENCE)?.raw;
        let mut validity = fields.enter(der::SEQUENCE)?;
        let not_before = time::read(&mut validity)?;
        let not_after = time::read(&mut validity)?;
        validity.finish()?;
        let subject = fields.element(der::SEQUENCE)?.raw;
        let spki = fields.element(der::SEQUENCE)?.raw;
        // issuerUniqueID and subjectUniqueID: deprecated, read over.
        fields.optional(der::primitive(1))?;
        fields.optional(der::primitive(2))?;
        let mut certificate = Self {
            der,
            serial,
            issuer,
            subject,
            not_before,
            not_after,
            spki,
            is_ca: false,
            uri_names: Vec::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            tbs: &[],
            algorithm,
            signature: &[],
        };
        if fields.peek() == Some(der::constructed(3)) {
            let mut wrapper = fields.enter(der::constructed(3))?;
            let mut extensions = wrapper.enter(der::SEQUENCE)?;
            wrapper.finish()?;
            let mut seen: Vec<&[u8]> = Vec::new();
            while !extensions.is_empty() {
                let mut extension = extensions.enter(der::SEQUENCE)?;
                let id = extension.content(der::OID)?;
                if extension.peek() == Some(der::BOOLEAN) {
                    extension.boolean()?;
                }
                let value = extension.content(der::OCTET_STRING)?;
                extension.finish()?;
                // RFC 5280, 4.2: not more than one of a kind.
                if seen.contains(&id) || seen.len() == MAX_NAMES {
                    return Err(Error::Value);
                }
                seen.push(id);
                match id {
                    [0x55, 0x1d, 0x13] => certificate.is_ca = basic_constraints(value)?,
                    [0x55, 0x1d, 0x11] => certificate.alternative_names(value)?,
                    _ => {}
                }
            }
        }
        Ok(certificate)
    }

    fn alternative_names(&mut self, value: &'a [u8]) -> Result<(), Error> {
        const DNS: u8 = der::primitive(2);
        const URI: u8 = der::primitive(6);
        const ADDRESS: u8 = der::primitive(7);
        let mut names = Reader::whole(value, |reader| reader.enter(der::SEQUENCE))?;
        let mut count = 0;
        while !names.is_empty() {
            let name = names.any()?;
            count += 1;
            if count > MAX_NAMES {
                return Err(Error::Length);
            }
            match name.tag {
                DNS => self.dns_names.push(ascii(name.content)?),
                URI => self.uri_names.push(ascii(name.content)?),
                ADDRESS => self.addresses.push(address(name.content)?),
                _ => {}
            }
        }
        Ok(())
    }
}

fn basic_constraints(value: &[u8]) -> Result<bool, Error> {
    let mut fields = Reader::whole(value, |reader| reader.enter(der::SEQUENCE))?;
    let is_ca = fields.peek() == Some(der::BOOLEAN) && fields.boolean()?;
    if !fields.is_empty() {
        fields.integer()?;
    }
    fields.finish()?;
    Ok(is_ca)
}

fn ascii(bytes: &[u8]) -> Result<&str, Error> {
    if bytes.is_ascii() {
        std::str::from_utf8(bytes).map_err(|_| Error::Value)
    } else {
        Err(Error::Value)
    }
}

fn address(bytes: &[u8]) -> Result<IpAddr, Error> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Ok(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(bytes).map_err(|_| Error::Value)?;
    Ok(Ipv6Addr::from(octets).into())
}

/// The common name of a Name, else its organization; `None` when it has neither.
fn name_text(name: &[u8]) -> Option<String> {
    let mut organization = None;
    let mut sets = Reader::new(name).enter(der::SEQUENCE).ok()?;
    while let Ok(mut set) = sets.enter(der::SET) {
        while let Ok(mut attribute) = set.enter(der::SEQUENCE) {
            let id = attribute.content(der::OID).ok()?;
            let text = attribute.any().ok()?.content;
            let text = || shown(&String::from_utf8_lossy(text));
            match id {
                [0x55, 0x04, 0x03] => return Some(text()),
                [0x55, 0x04, 0x0a] => organization = Some(text()),
                _ => {}
            }
        }
    }
    organization
}

/// A name from outside, fit for a terminal and a log: printable, at most 64 characters.
fn shown(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    printable.take(64).collect()
}

impl fmt::Debug for Certificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "certificate {} of {}",
            self.serial_hex(),
            self.subject_text()
        )
    }
}

#[cfg(test)]
mod tests;
