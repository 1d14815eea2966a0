//! How results reach a person or a program: tables with aligned columns, or JSON.

use std::process::ExitCode;
use strake_proto::{Error, ErrorKind, Result};

/// Rows under headings; columns are as wide as their widest cell.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.headings.len(), "a row has a cell for each heading");
        self.rows.push(cells);
    }

    /// The table as text; no blanks at line ends.
    pub(crate) fn text(&self) -> String {
        let mut widths: Vec<usize> = self.headings.iter().map(|name| name.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = String::new();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        let headings: Vec<String> = self.headings.iter().map(|&name| name.to_owned()).collect();
        for row in [&headings, &rule].into_iter().chain(&self.rows) {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

/// Tells the person at the terminal something that is no result.
pub(crate) fn tell(message: &dyn std::fmt::Display) {
    eprintln!("strake: {message}");
}

/// Ends a command: 0; or the message on stderr and 2 for wrong usage, 1 for a failure.
pub(crate) fn finish(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The exit code that an error stands for.
pub(crate) fn exit_code(error: &Error) -> u8 {
    if error.kind() == ErrorKind::Invalid { 2 } else { 1 }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// `Internal` for a value that has no JSON form.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    println!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_blanks_at_line_ends() {
        let mut table = Table::new(&["disk", "status"]);
        table.row(vec!["nsd1".into(), "ready".into()]);
        table.row(vec!["nsd10".into(), "up".into()]);
        assert_eq!(table.text(), "disk   status\n-----  ------\nnsd1   ready\nnsd10  up\n");
    }
}
