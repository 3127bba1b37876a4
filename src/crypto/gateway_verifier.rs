//! Judging a gateway's certificate by a pin. The presented chain must hold a CA certificate whose
//! key has a pinned hash; that CA alone is the trust anchor, the leaf must chain to it and carry
//! the gateway's name. Public roots play no part.
//!
//! Validity is judged at trusted time, which the caller gives. It is a lower bound of the true
//! time (a clock without battery starts decades back), so a certificate of the pinned CA that
//! begins later than trusted time moves the time of judgement forward to its beginning, and
//! never back: what the CA signed to begin then proves that it has begun. Nothing else is relaxed.
//!
//! Why a chain was refused is kept: by [`PinnedCa::failure`], and in the error of the handshake,
//! where [`Failure::find`] finds it.
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::certificate::Certificate;
use super::pin::Pin;
use super::provider::SIGNATURES;
use crate::sys::utc::Utc;

/// The longest chain looked at.
const MAX_CHAIN: usize = 8;

/// Verifies a gateway's chain against pins, for rustls.
pub struct PinnedCa {
    pins: Vec<Pin>,
    trusted_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    failure: Mutex<Option<Failure>>,
}

/// Why a gateway's chain was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No CA in the chain has a pinned key.
    NotPinned {
        expected: Vec<Pin>,
        presented: Vec<Presented>,
    },
    /// The leaf does not chain to the pinned CA that was presented.
    NotIssued {
        leaf: Box<Presented>,
        ca: Box<Presented>,
        reason: String,
    },
    /// The leaf is for other names.
    WrongName { expected: String, names: String },
    /// A certificate of the chain ended before the time of judgement. Unix seconds.
    Expired {
        subject: String,
        not_after: i64,
        judged_at: i64,
    },
    /// A certificate of the chain, counted from 1, cannot be read.
    Malformed { position: usize },
    /// More certificates than are looked at.
    TooMany { count: usize },
}

/// A certificate that was presented, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    pub subject: String,
    pub pin: Pin,
    pub is_ca: bool,
}

impl PinnedCa {
    /// A verifier for CAs with one of `pins` (several during a rotation). `trusted_ms` is asked
    /// at each handshake for the trusted time, Unix time in milliseconds.
    pub fn new(pins: Vec<Pin>, trusted_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            pins,
            trusted_ms: Box::new(trusted_ms),
            failure: Mutex::new(None),
        }
    }

    /// Why the last handshake's chain was refused, once; `None` when it was accepted or none
    /// came so far.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Judges a chain, the leaf first.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn judge(
        &self,
        leaf_der: &CertificateDer<'_>,
        rest_der: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> Result<(), Failure> {
        let count = rest_der.len() + 1;
        if count > MAX_CHAIN {
            return Err(Failure::TooMany { count });
        }
        let leaf = read(leaf_der, 1)?;
        let rest = rest_der
            .iter()
            .zip(2..)
            .map(|(der, position)| read(der, position));
        let rest = rest.collect::<Result<Vec<_>, _>>()?;
        let pinned = |certificate: &Certificate<'_>| {
            certificate.is_ca && self.pins.iter().any(|pin| pin.matches(certificate.spki))
        };
        let (anchors, ca) = anchors(rest_der, &rest, pinned)?;
        let Some(ca) = ca else {
            let presented = std::iter::once(&leaf)
                .chain(&rest)
                .map(Presented::of)
                .collect();
            return Err(Failure::NotPinned {
                expected: self.pins.clone(),
                presented,
            });
        };

        let others = || std::iter::once(&leaf).chain(rest.iter().filter(|other| !pinned(other)));
        let trusted = i64::try_from((self.trusted_ms)() / 1000).unwrap_or(i64::MAX);
        let judged_at = others()
            .map(|other| other.not_before)
            .fold(trusted, i64::max);
        let time = Duration::from_secs(u64::try_from(judged_at).unwrap_or(0));
        let not_issued = |reason: webpki::Error| Failure::NotIssued {
            leaf: Box::new(Presented::of(&leaf)),
            ca: Box::new(Presented::of(ca)),
            reason: in_words(reason),
        };
        let entity = EndEntityCert::try_from(leaf_der).map_err(not_issued)?;
        let verified = entity.verify_for_usage(
            SIGNATURES.all,
            &anchors,
            rest_der,
            UnixTime::since_unix_epoch(time),
            KeyUsage::server_auth(),
            None,
            None,
        );
        match verified {
            Ok(_) => {}
            Err(webpki::Error::CertExpired { .. }) => {
                let expired = others()
                    .find(|other| other.not_after < judged_at)
                    .unwrap_or(&leaf);
                return Err(Failure::Expired {
                    subject: expired.subject_text(),
                    not_after: expired.not_after,
                    judged_at,
                });
            }
            Err(reason) => return Err(not_issued(reason)),
        }
        entity
            .verify_is_valid_for_subject_name(name)
            .map_err(|_| Failure::WrongName {
                expected: name.to_str().into_owned(),
                names: leaf.names_text(),
            })
    }
}

/// The pinned CAs of a chain, as anchors, and the first of them.
fn anchors<'a, 'b>(
    ders: &'a [CertificateDer<'_>],
    certificates: &'b [Certificate<'a>],
    pinned: impl Fn(&Certificate<'_>) -> bool,
) -> Result<(Vec<TrustAnchor<'a>>, Option<&'b Certificate<'a>>), Failure> {
    let mut anchors = Vec::new();
    let mut first = None;
    for ((der, certificate), position) in ders.iter().zip(certificates).zip(2..) {
        if pinned(certificate) {
            let anchor = anchor_from_trusted_cert(der);
            anchors.push(anchor.map_err(|_| Failure::Malformed { position })?);
            first = first.or(Some(certificate));
        }
    }
    Ok((anchors, first))
}

fn read<'a>(der: &'a CertificateDer<'_>, position: usize) -> Result<Certificate<'a>, Failure> {
    Certificate::parse(der).map_err(|_| Failure::Malformed { position })
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        // The host's clock, which is part of trusted time.
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let judged = self.judge(end_entity, intermediates, server_name);
        let failure = judged.err();
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure.clone();
        match failure {
            None => Ok(ServerCertVerified::assertion()),
            Some(failure) => Err(rustls::Error::InvalidCertificate(CertificateError::Other(
                OtherError(Arc::new(failure)),
            ))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &SIGNATURES)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}

/// Why a chain does not hold, for a person; webpki has its names for the rest.
fn in_words(reason: webpki::Error) -> String {
    match reason {
        webpki::Error::UnknownIssuer => "another CA issued it".to_owned(),
        webpki::Error::InvalidSignatureForPublicKey => {
            "the signature on it is not the CA's".to_owned()
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            "it is not made for servers (no serverAuth among its extended key usages)".to_owned()
        }
        other => format!("{other:?}"),
    }
}

impl Failure {
    /// The failure within the error of a handshake, however often it was wrapped.
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            next = if let Some(io) = error.downcast_ref::<io::Error>() {
                // Its source() skips the error it wraps.
                io.get_ref().map(|inner| inner as &(dyn StdError + 'static))
            } else if let Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) =
                error.downcast_ref()
            {
                Some(&*other.0)
            } else {
                error.source()
            };
        }
        None
    }
}

impl Presented {
    fn of(certificate: &Certificate<'_>) -> Self {
        Self {
            subject: certificate.subject_text(),
            pin: certificate.pin(),
            is_ca: certificate.is_ca,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPinned {
                expected,
                presented,
            } => {
                f.write_str("the gateway's certificate chain holds no CA with the pin ")?;
                list(f, expected, " or ")?;
                f.write_str("; it holds ")?;
                list(f, presented, ", ")?;
                if presented.iter().any(|one| one.is_ca) {
                    Ok(())
                } else {
                    f.write_str("; a gateway must send its serving CA in the chain")
                }
            }
            Self::NotIssued { leaf, ca, reason } => write!(
                f,
                "the gateway's certificate {leaf} does not chain to the pinned {ca}: {reason}"
            ),
            Self::WrongName { expected, names } if names.is_empty() => {
                write!(
                    f,
                    "the gateway's certificate is for no name, not for {expected}"
                )
            }
            Self::WrongName { expected, names } => {
                write!(
                    f,
                    "the gateway's certificate is for {names}, not for {expected}"
                )
            }
            Self::Expired {
                subject,
                not_after,
                judged_at,
            } => write!(
                f,
                "the gateway's certificate \"{subject}\" expired at {}, and it is {} (trusted time)",
                Utc::from_seconds(*not_after),
                Utc::from_seconds(*judged_at)
            ),
            Self::Malformed { position } => {
                write!(
                    f,
                    "certificate {position} of the gateway's chain is malformed"
                )
            }
            Self::TooMany { count } => write!(
                f,
                "the gateway's chain holds {count} certificates, more than {MAX_CHAIN}"
            ),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display], between: &str) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(between)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

impl StdError for Failure {}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_ca { "CA " } else { "" };
        write!(f, "{kind}\"{}\" ({})", self.subject, self.pin)
    }
}

impl fmt::Debug for PinnedCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedCa").field(&self.pins).finish()
    }
}

#[cfg(all(test, feature = "control-plane"))]
mod tests;
