//! A table, in columns or in Markdown.

/// How tables are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Columns of equal width.
    Plain,
    /// Markdown.
    Markdown,
}

/// Rows of cells under a head; the first column is text, the others are set to the right.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: Vec<String>) -> Self {
        Self { rows: vec![head] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn write(&self, style: Style) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            match style {
                Style::Plain => {
                    let cells = row
                        .iter()
                        .zip(&widths)
                        .enumerate()
                        .map(|(at, (cell, width))| {
                            if at == 0 {
                                format!("{cell:<width$}")
                            } else {
                                format!("{cell:>width$}")
                            }
                        });
                    text += cells.collect::<Vec<_>>().join("  ").trim_end();
                }
                Style::Markdown => {
                    let cells = row.iter().map(|cell| cell.replace('|', "\\|"));
                    text += &format!("| {} |", cells.collect::<Vec<_>>().join(" | "));
                    if number == 0 {
                        let rest = "|---:".repeat(columns.saturating_sub(1));
                        text += &format!("\n|---{rest}|");
                    }
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_markdown_is_a_table() {
        let cells = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let mut table = Table::new(cells("name", "x"));
        table.row(cells("a", "10.5"));
        assert_eq!(table.write(Style::Plain), "name     x\na     10.5\n");
        table.row(cells("b|c", "1"));
        let expected = "| name | x |\n|---|---:|\n| a | 10.5 |\n| b\\|c | 1 |\n";
        assert_eq!(table.write(Style::Markdown), expected);
    }
}
