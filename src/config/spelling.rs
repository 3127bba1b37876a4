//! "Did you mean …?" for a mistyped key, flag or subcommand: the closest known name, and none when
//! nothing is close.

/// The candidate that differs from `typed` by at most two single-letter changes (one for names of
/// three letters or fewer), or `None`. Only short ASCII names are compared, so that the work is bounded.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > 64 || !typed.is_ascii() {
        return None;
    }
    let allowed = if typed.len() <= 3 { 1 } else { 2 };
    candidates
        .into_iter()
        .map(|name| (distance(typed.as_bytes(), name.as_bytes()), name))
        .filter(|(away, _)| *away <= allowed)
        .min_by_key(|(away, _)| *away)
        .map(|(_, name)| name)
}

/// Levenshtein's distance, one row at a time.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            let here = (diagonal + usize::from(x != y))
                .min(above + 1)
                .min(left + 1);
            *cell = here;
            diagonal = above;
            left = here;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn the_distance_counts_single_letter_changes() {
        for (a, b, want) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("site", "sites", 1),
            ("data_dri", "data_dir", 2),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), want, "{a} {b}");
        }
    }

    #[test]
    fn a_typo_finds_its_name_and_nonsense_finds_none() {
        let names = ["gateway_url", "site", "data_dir"];
        assert_eq!(nearest("gatway_url", names), Some("gateway_url"));
        assert_eq!(nearest("data_dri", names), Some("data_dir"));
        assert_eq!(nearest("sit", names), Some("site"));
        assert_eq!(nearest("bcjt_jt_01", names), None);
        assert_eq!(nearest(&"x".repeat(1000), names), None);
    }
}
