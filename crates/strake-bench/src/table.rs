//! Plain tables for terminals: right-aligned cells under right-aligned heads.

use std::fmt::Write;

/// A table that grows row by row.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that hold words and are aligned to the left.
    left: Vec<usize>,
}

impl Table {
    /// A table with these heads; `left` lists the columns of words.
    pub fn new(heads: &[&str], left: &[usize]) -> Table {
        Table { rows: vec![heads.iter().map(ToString::to_string).collect()], left: left.to_vec() }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, each line ended, without blanks at the ends of lines.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let gap = if column == 0 { "" } else { "  " };
                let written = if self.left.contains(&column) {
                    write!(line, "{gap}{cell:<width$}")
                } else {
                    write!(line, "{gap}{cell:>width$}")
                };
                written.expect("invariant: writing to a string does not fail");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A figure with as many decimals as it deserves: three significant digits at least.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "-".into()
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 || magnitude == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// Bytes per second as MiB/s with two decimals, the form of the p690/x335 tables.
pub fn mib(bytes_per_second: f64) -> String {
    format!("{:.2}", bytes_per_second / (1024.0 * 1024.0))
}

/// Microseconds in the unit that reads best.
pub fn micros(us: f64) -> String {
    if us >= 1e6 {
        format!("{} s", figure(us / 1e6))
    } else if us >= 1e3 {
        format!("{} ms", figure(us / 1e3))
    } else {
        format!("{} µs", figure(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "MiB/s"], &[0]);
        table.row(vec!["a".into(), "1.00".into()]);
        table.row(vec!["long name".into(), "10.00".into()]);
        table.row(vec!["no figure".into()]);
        let lines = "name       MiB/s\na           1.00\nlong name  10.00\nno figure\n";
        assert_eq!(table.render(), lines);
    }

    #[test]
    fn figures_keep_three_digits() {
        let shown = [12_345.6, 99.94, 1.234, 0.0, 0.0123].map(figure);
        assert_eq!(shown, ["12346", "99.9", "1.23", "0.00", "0.012"]);
        assert_eq!(figure(f64::NAN), "-");
        assert_eq!(micros(1_234_000.0), "1.23 s");
        assert_eq!(micros(12_340.0), "12.3 ms");
        assert_eq!(micros(7.0), "7.00 µs");
    }
}
