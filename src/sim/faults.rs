//! What goes wrong in a simulation, by name. Pure.
use std::fmt;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All connections are reset at the same moment, every so often.
    Storms,
    /// A node's connection is cut, on average every so often; each fourth time without a word to the
    /// gateway.
    Cuts,
    /// A node's process is killed and started again on what its journal holds, on average every so often.
    Crashes,
    /// So many nodes take what their gateway sends at 5 KiB a second.
    SlowReaders,
    /// Each node's clock is off by up to this much, either way.
    ClockSkew,
    /// So many joins get their answer thrown away, and are made again with the same request.
    LostJoins,
    /// After so many events nothing the gateway says arrives any more, until the connection is cut: what it
    /// acknowledged meanwhile is lost.
    LostAcks,
}

#[derive(Clone, Copy)]
enum Unit {
    Span,
    Percent,
}

/// Names, what a value means, and what it is when none is given: milliseconds or percent.
const TABLE: [(&str, Fault, Unit, u64); 7] = [
    ("storms", Fault::Storms, Unit::Span, 60_000),
    ("cuts", Fault::Cuts, Unit::Span, 60_000),
    ("crashes", Fault::Crashes, Unit::Span, 120_000),
    ("slow-readers", Fault::SlowReaders, Unit::Percent, 10),
    ("clock-skew", Fault::ClockSkew, Unit::Span, 86_400_000),
    ("lost-joins", Fault::LostJoins, Unit::Percent, 25),
    ("lost-acks", Fault::LostAcks, Unit::Percent, 2),
];

/// The longest span: ten years.
const LONGEST_MS: u64 = 3653 * 86_400_000;

/// Which faults there are. Without any, a fleet that is well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults([u64; TABLE.len()]);

/// Why a text names no faults.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Unknown,
    Twice(&'static str),
    NotASpan(&'static str),
    NotAPercentage(&'static str),
}

impl Faults {
    /// Reads `name[=value],…`, or `all`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let mut faults = Self::default();
        if text == "all" {
            for ((.., default), place) in TABLE.iter().zip(&mut faults.0) {
                *place = *default;
            }
            return Ok(faults);
        }
        for word in text.split(',') {
            let (wanted, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let mut rows = TABLE.iter().zip(&mut faults.0);
            let row = rows.find(|((name, ..), _)| *name == wanted);
            let Some(((name, _, unit, default), place)) = row else {
                return Err(Refused::Unknown);
            };
            if *place != 0 {
                return Err(Refused::Twice(name));
            }
            *place = match (value, unit) {
                (None, _) => *default,
                (Some(value), Unit::Span) => match span(value) {
                    Some(span) if !span.is_zero() => {
                        u64::try_from(span.as_millis()).unwrap_or(LONGEST_MS)
                    }
                    _ => return Err(Refused::NotASpan(name)),
                },
                (Some(value), Unit::Percent) => match value.parse() {
                    Ok(percent @ 1..=100) => percent,
                    _ => return Err(Refused::NotAPercentage(name)),
                },
            };
        }
        Ok(faults)
    }

    fn value(&self, fault: Fault) -> u64 {
        let mut rows = TABLE.iter().zip(&self.0);
        let row = rows.find(|((_, known, ..), _)| *known == fault);
        row.map_or(0, |(_, value)| *value)
    }

    /// The span of a fault that has one, unless it is left out.
    pub fn span(&self, fault: Fault) -> Option<Duration> {
        let ms = self.value(fault);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Whether a fault that meets a share of all meets the one that draws this number.
    pub fn meets(&self, fault: Fault, draw: u64) -> bool {
        draw % 100 < self.value(fault)
    }
}

/// A number and one of `ms`, `s`, `m`, `h`, `d`.
pub fn span(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    let number: u64 = digits.parse().ok()?;
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = number.checked_mul(unit).filter(|ms| *ms <= LONGEST_MS)?;
    Some(Duration::from_millis(ms))
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("the faults are all, or some of ")?;
                for (number, (name, ..)) in TABLE.iter().enumerate() {
                    f.write_str(if number == 0 { "" } else { ", " })?;
                    f.write_str(name)?;
                }
                Ok(())
            }
            Self::Twice(name) => write!(f, "{name} is given twice"),
            Self::NotASpan(name) => write!(f, "{name} is how often or how much, such as 30s or 2h"),
            Self::NotAPercentage(name) => write!(f, "{name} is a percentage from 1 to 100"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn faults_are_named_with_or_without_a_value() {
        let faults = Faults::parse("storms,cuts=1500ms,slow-readers=100").unwrap();
        assert_eq!(faults.span(Fault::Storms), Some(Duration::from_secs(60)));
        assert_eq!(faults.span(Fault::Cuts), Some(Duration::from_millis(1500)));
        assert_eq!(faults.span(Fault::Crashes), None);
        assert!(faults.meets(Fault::SlowReaders, 99));
        assert!(!faults.meets(Fault::LostAcks, 0));
        let all = Faults::parse("all").unwrap();
        assert!(TABLE.iter().all(|(_, fault, ..)| all.value(*fault) > 0));
        assert!(all.meets(Fault::LostAcks, 101) && !all.meets(Fault::LostAcks, 102));
    }

    #[test]
    fn what_names_no_faults_is_refused_with_what_would() {
        for (text, refused) in [
            ("", Refused::Unknown),
            ("storm", Refused::Unknown),
            ("all,cuts", Refused::Unknown),
            ("cuts,cuts=1s", Refused::Twice("cuts")),
            ("cuts=", Refused::NotASpan("cuts")),
            ("cuts=0s", Refused::NotASpan("cuts")),
            ("cuts=10", Refused::NotASpan("cuts")),
            ("cuts=99999d", Refused::NotASpan("cuts")),
            ("lost-acks=0", Refused::NotAPercentage("lost-acks")),
            ("lost-acks=101", Refused::NotAPercentage("lost-acks")),
            ("lost-acks=1s", Refused::NotAPercentage("lost-acks")),
        ] {
            assert_eq!(Faults::parse(text), Err(refused), "{text}");
        }
        assert!(
            Refused::Unknown
                .to_string()
                .ends_with("lost-joins, lost-acks")
        );
    }

    #[test]
    fn a_span_has_a_unit_and_an_end() {
        for (text, ms) in [
            ("250ms", 250),
            ("3s", 3000),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(span(text), Some(Duration::from_millis(ms)));
        }
        for text in [
            "",
            "s",
            "1",
            "-1s",
            "1 s",
            "18446744073709551615d",
            "1s2",
            "é",
        ] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
