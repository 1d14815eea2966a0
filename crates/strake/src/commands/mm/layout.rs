//! The layouts: rows with fields between colons, and tables as the commands print them.

use std::fmt::Write as _;

/// Characters that stand for themselves nowhere in a field of `-Y`.
const ENCODED: &str = "!#$&'()*+,/:;=?@[]%\n";

/// A listing with fields between colons: heads first, and then rows of the same sections.
pub(super) struct Colons {
    command: &'static str,
    text: String,
}

impl Colons {
    pub(super) fn new(command: &'static str) -> Colons {
        Colons { command, text: String::new() }
    }

    /// The names of a section's fields, as they are written between colons.
    pub(super) fn head(&mut self, section: &str, names: &str) {
        let command = self.command;
        line(
            &mut self.text,
            format_args!("{command}:{section}:HEADER:version:reserved:reserved:{names}:"),
        );
    }

    /// A row of a section.
    pub(super) fn row(&mut self, section: &str, values: &[String]) {
        let values: Vec<String> = values.iter().map(|value| encoded(value)).collect();
        let (command, values) = (self.command, values.join(":"));
        line(&mut self.text, format_args!("{command}:{section}:0:1:::{values}:"));
    }

    pub(super) fn text(self) -> String {
        self.text
    }
}

/// Adds a line.
pub(super) fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // A string takes any text.
    let _ = text.write_fmt(words);
    text.push('\n');
}

/// A value with special characters as `%XX`.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if ENCODED.contains(character) {
            let _ = write!(text, "%{:02X}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

/// A table below a rule that is as long as the longest line.
pub(super) fn ruled(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = strake_report::Table::new(heads, &(0..heads.len()).collect::<Vec<_>>());
    rows.iter().for_each(|row| table.row(row.clone()));
    let lines: Vec<String> = table.render().lines().map(|line| format!(" {line}")).collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let mut text = String::from("\n");
    for (number, words) in lines.iter().enumerate() {
        line(&mut text, format_args!("{words}"));
        if number == 0 {
            line(&mut text, format_args!("{}", "-".repeat(longest + 1)));
        }
    }
    text
}

/// A heading with a rule of `mark` below it.
pub(super) fn heading(words: &str, mark: &str) -> String {
    format!("\n{words}\n{}\n", mark.repeat(words.chars().count()))
}

/// `Wed Jun  1 13:30:20 2011`, from `2011-06-01 13:30:20 UTC` and the seconds since 1970.
pub(super) fn calendar(utc: &str, seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let day = usize::try_from(seconds.div_euclid(86_400).rem_euclid(7)).unwrap_or(0);
    let part = |from: usize, to: usize| utc.get(from..to).unwrap_or_default();
    let month: usize = part(5, 7).parse().unwrap_or(1);
    let month = MONTHS[(month.max(1) - 1).min(11)];
    let date: u32 = part(8, 10).parse().unwrap_or(0);
    format!("{} {month} {date:>2} {} {}", DAYS[day], part(11, 19), part(0, 4))
}

/// A part of a whole, in percent.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(100)
}
