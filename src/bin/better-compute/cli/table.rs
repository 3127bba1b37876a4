//! Tables for people: columns as wide as what they hold, control characters shown as escapes.

use bcd::cli::one_line;

/// Renders rows under their heads; two spaces between columns, none at the end of a line.
pub fn render(heads: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        std::iter::once(heads.iter().map(|&head| head.to_owned()).collect())
            .chain(
                rows.iter()
                    .map(|row| row.iter().map(|cell| cell_text(cell)).collect()),
            )
            .collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row: &Vec<String>| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cell_text(cell: &str) -> String {
    match cell {
        "" => "-".to_owned(),
        cell => one_line(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_drives_the_terminal() {
        let rows = [
            vec!["a".to_owned(), String::new()],
            vec!["long".to_owned(), "x\u{1b}[1m".to_owned()],
        ];
        assert_eq!(
            render(&["ID", "NAME"], &rows),
            "ID    NAME\na     -\nlong  x\\u{1b}[1m\n"
        );
        assert_eq!(render(&["ID"], &[]), "ID\n");
    }
}
