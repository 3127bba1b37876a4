//! Points in time for people, and for names of files: always UTC.
use std::fmt;

/// A point in time, shown as RFC 3339 has it: `2026-09-26T11:42:00.125Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
    ms: Option<i64>,
}

impl Utc {
    /// From Unix time in milliseconds, which are shown.
    pub fn from_ms(ms: u64) -> Self {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        Self {
            ms: Some(ms % 1000),
            ..Self::from_seconds(ms / 1000)
        }
    }

    /// From Unix time in seconds.
    pub fn from_seconds(seconds: i64) -> Self {
        // Howard Hinnant's civil_from_days: eras of 400 years, years counted from March.
        let days = seconds.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let of_era = days.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self {
            year,
            month,
            day,
            second_of_day: seconds.rem_euclid(86_400),
            ms: None,
        }
    }

    /// For a file's name: `20260926T114200Z`.
    pub fn compact(self) -> String {
        let (hour, minute, second) = self.time();
        let Self {
            year, month, day, ..
        } = self;
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }

    fn time(self) -> (i64, i64, i64) {
        let second = self.second_of_day;
        (second / 3600, second / 60 % 60, second % 60)
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = self.time();
        let Self {
            year,
            month,
            day,
            ms,
            ..
        } = self;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match ms {
            Some(ms) => write!(f, ".{ms:03}Z"),
            None => f.write_str("Z"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_before_1970() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_790_422_920, "2026-09-26T11:42:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Utc::from_seconds(seconds).to_string(), text);
        }
        assert_eq!(
            Utc::from_ms(1_790_422_920_125).to_string(),
            "2026-09-26T11:42:00.125Z"
        );
        assert_eq!(
            Utc::from_seconds(1_790_422_920).compact(),
            "20260926T114200Z"
        );
        let _ = Utc::from_ms(u64::MAX).to_string();
    }
}
