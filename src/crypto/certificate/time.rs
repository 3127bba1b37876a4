//! The times in certificates: UTCTime and GeneralizedTime in the one form RFC 5280 (4.1.2.5)
//! allows, as Unix seconds.
use crate::crypto::der::{self, Error, Reader};

/// Reads a Time as Unix seconds.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<i64, Error> {
    let element = reader.any()?;
    let (year, rest) = match (element.tag, element.content) {
        (der::UTC_TIME, [a, b, rest @ ..]) => {
            let year = two(*a, *b)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        (der::GENERALIZED_TIME, [a, b, c, d, rest @ ..]) => {
            (two(*a, *b)? * 100 + two(*c, *d)?, rest)
        }
        (der::UTC_TIME | der::GENERALIZED_TIME, _) => return Err(Error::Value),
        (found, _) => {
            return Err(Error::Tag {
                expected: der::UTC_TIME,
                found,
            });
        }
    };
    let [m1, m2, d1, d2, h1, h2, min1, min2, s1, s2, b'Z'] = rest else {
        return Err(Error::Value);
    };
    let (month, day) = (two(*m1, *m2)?, two(*d1, *d2)?);
    let (hour, minute, second) = (two(*h1, *h2)?, two(*min1, *min2)?, two(*s1, *s2)?);
    let in_month = 1 <= day && day <= days_in_month(year, month);
    if !in_month || hour > 23 || minute > 59 || second > 59 {
        return Err(Error::Value);
    }
    Ok(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

fn two(tens: u8, ones: u8) -> Result<i64, Error> {
    match (tens, ones) {
        (b'0'..=b'9', b'0'..=b'9') => Ok(i64::from(tens - b'0') * 10 + i64::from(ones - b'0')),
        _ => Err(Error::Value),
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 0,
    }
}

/// Days from 1970-01-01 to a date. A year is counted from March, so that the leap day ends it;
/// 719,468 days lie between 0000-03-01 and 1970-01-01.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::utc::Utc;

    fn parse(tag: u8, text: &str) -> Result<i64, Error> {
        let bytes = der::element(tag, &[text.as_bytes()]);
        read(&mut Reader::new(&bytes))
    }

    #[test]
    fn known_times_are_read_and_shown() {
        for (tag, text, seconds, shown) in [
            (der::UTC_TIME, "700101000000Z", 0, "1970-01-01T00:00:00Z"),
            (
                der::UTC_TIME,
                "491231235959Z",
                2_524_607_999,
                "2049-12-31T23:59:59Z",
            ),
            (
                der::UTC_TIME,
                "500101000000Z",
                -631_152_000,
                "1950-01-01T00:00:00Z",
            ),
            (
                der::UTC_TIME,
                "240229120000Z",
                1_709_208_000,
                "2024-02-29T12:00:00Z",
            ),
            (
                der::GENERALIZED_TIME,
                "20500101000000Z",
                2_524_608_000,
                "2050-01-01T00:00:00Z",
            ),
            (
                der::GENERALIZED_TIME,
                "99991231235959Z",
                253_402_300_799,
                "9999-12-31T23:59:59Z",
            ),
        ] {
            assert_eq!(parse(tag, text), Ok(seconds), "{text}");
            assert_eq!(Utc::from_seconds(seconds).to_string(), shown);
        }
    }

    #[test]
    fn every_day_of_some_centuries_reads_back() {
        let (mut year, mut month, mut day) = (1890, 1, 1);
        for number in days(1890, 1, 1)..days(2210, 1, 1) {
            assert_eq!(days(year, month, day), number);
            let shown = Utc::from_seconds(number * 86_400).to_string();
            assert_eq!(shown, format!("{year:04}-{month:02}-{day:02}T00:00:00Z"));
            day += 1;
            if day > days_in_month(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn other_forms_and_times_that_are_none_are_refused() {
        for text in [
            "",
            "2401010000Z",
            "240101000000",
            "240101000000+0100",
            "241301000000Z",
            "240001000000Z",
            "240230000000Z",
            "230229000000Z",
            "240101240000Z",
            "240101006000Z",
            "240101000060Z",
            "24010100000 Z",
            "20240101000000Z",
        ] {
            assert!(parse(der::UTC_TIME, text).is_err(), "{text}");
        }
        for text in [
            "20240101000000.5Z",
            "2024010100Z",
            "240101000000Z",
            "21000229000000Z",
        ] {
            assert!(parse(der::GENERALIZED_TIME, text).is_err(), "{text}");
        }
        assert!(parse(der::OCTET_STRING, "240101000000Z").is_err());
    }
}
