//! Plain tables for terminals. Columns are as wide as their widest cell, with two blanks between
//! them and none at the ends of lines, so that columns can be copied and lines compared.

/// A table that grows row by row.
#[derive(Debug)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns that hold words and are aligned to the left; figures are aligned to the right.
    left: Vec<usize>,
    is_ruled: bool,
}

impl Table {
    /// A table of figures with these heads; `left` lists the columns of words.
    pub fn new(heads: &[&str], left: &[usize]) -> Table {
        let heads = heads.iter().map(ToString::to_string).collect();
        Table { heads, rows: Vec::new(), left: left.to_vec(), is_ruled: false }
    }

    /// A listing: every column holds words, and a rule stands below the heads.
    pub fn listing(heads: &[&str]) -> Table {
        let left: Vec<usize> = (0..heads.len()).collect();
        Table { is_ruled: true, ..Table::new(heads, &left) }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, each line ended.
    pub fn render(&self) -> String {
        let rows = || std::iter::once(&self.heads).chain(&self.rows);
        let columns = rows().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        let mut text = String::new();
        for row in [&self.heads].into_iter().chain(self.is_ruled.then_some(&rule)).chain(&self.rows)
        {
            let cells: Vec<String> = row
                .iter()
                .enumerate()
                .map(|(column, cell)| {
                    let width = widths[column];
                    match self.left.contains(&column) {
                        true => format!("{cell:<width$}"),
                        false => format!("{cell:>width$}"),
                    }
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_line_up_at_the_right_and_words_at_the_left() {
        let mut table = Table::new(&["name", "MiB/s"], &[0]);
        table.row(vec!["a".into(), "1.00".into()]);
        table.row(vec!["long name".into(), "10.00".into()]);
        table.row(vec!["no figure".into()]);
        let lines = "name       MiB/s\na           1.00\nlong name  10.00\nno figure\n";
        assert_eq!(table.render(), lines);
    }

    #[test]
    fn a_listing_has_a_rule_and_no_blanks_at_line_ends() {
        let mut table = Table::listing(&["disk", "status"]);
        table.row(vec!["nsd1".into(), "ready".into()]);
        table.row(vec!["nsd10".into(), "up".into()]);
        assert_eq!(table.render(), "disk   status\n-----  ------\nnsd1   ready\nnsd10  up\n");
    }

    #[test]
    fn letters_are_counted_and_not_bytes() {
        let mut table = Table::new(&["a", "b"], &[0]);
        table.row(vec!["µs".into(), "1".into()]);
        assert_eq!(table.render(), "a   b\nµs  1\n");
    }
}
