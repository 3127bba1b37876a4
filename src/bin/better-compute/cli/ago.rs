//! Spans of time as people say them: `12s`, `5m`, `3h`, `9d`.

/// A span in milliseconds, by its largest unit.
pub fn span(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long before `now_ms` a moment was; `-` when it never was.
pub fn ago(at_ms: Option<i64>, now_ms: i64) -> String {
    match at_ms {
        None => "-".to_owned(),
        Some(at) => match now_ms.saturating_sub(at) {
            ..2000 => "now".to_owned(),
            passed => format!("{} ago", span(passed)),
        },
    }
}

/// Reads a span: a number and one of `s`, `m`, `h`, `d`. Milliseconds.
pub fn parse_span(text: &str) -> Option<i64> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 9 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(unit * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_say_them() {
        for (ms, text) in [
            (-5, "0s"),
            (119_999, "119s"),
            (120_000, "2m"),
            (7_200_000, "2h"),
            (172_800_000, "2d"),
        ] {
            assert_eq!(span(ms), text);
        }
        assert_eq!(ago(None, 5), "-");
        assert_eq!(ago(Some(1000), 2500), "now");
        assert_eq!(ago(Some(1000), 9000), "8s ago");
    }

    #[test]
    fn only_a_number_with_its_unit_is_a_span() {
        assert_eq!(parse_span("90s"), Some(90_000));
        assert_eq!(parse_span("1h"), Some(3_600_000));
        assert_eq!(parse_span("7d"), Some(604_800_000));
        for bad in [
            "",
            "h",
            "1",
            "1.5h",
            "-1h",
            "1w",
            "1 h",
            "9999999999s",
            "1ä",
            "ä",
        ] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
    }
}
