//! The suite's report as Markdown, and the summary that is printed. Pure.

use std::fmt::Write;

use super::score::Score;
use super::stages::{Results, Stage};
use crate::figures::{figure, micros};
use crate::md::listing;
use crate::report::Report;
use crate::size::ByteSize;
use crate::statistics::summarize;
use strake_report::Table;

/// What all forms of the report are drawn from.
pub struct Document<'a> {
    /// Head and figures.
    pub report: &'a Report,
    /// What was measured.
    pub results: &'a Results,
    /// The number.
    pub score: &'a Score,
}

impl Document<'_> {
    /// Name and value of everything about host and target.
    pub fn facts(&self) -> Vec<(String, String)> {
        let mut facts = Vec::new();
        let mut add = |name: &str, value: String| facts.push((name.to_string(), value));
        for host in &self.report.hosts {
            add("host", host.host.clone());
            add("kernel", host.kernel.clone());
            let cores =
                format!("{} ({} cores, {} threads)", host.processor, host.cores, host.threads);
            add("processor", cores);
            add("memory", gib(host.memory_bytes));
        }
        if let Some(target) = &self.report.target {
            add("file system", format!("{} from {}", target.kind, target.source));
            add("mounted on", format!("{} ({})", target.mount_point, target.options));
            add("size", gib(target.total_bytes));
            add("free", gib(target.free_bytes));
        }
        let plan = &self.results.plan;
        add("tasks", plan.tasks.to_string());
        add("date", date(self.report.unix_seconds));
        add("duration", format!("{:.0} s", self.results.seconds));
        facts
    }

    /// The score in words.
    pub fn score_line(&self) -> String {
        let mean = |samples: &[f64]| figure(summarize(samples).mean);
        if self.score.samples.is_empty() {
            return "no score: a stage is missing".into();
        }
        format!(
            "{} ({} GiB/s, {} thousand operations per second)",
            mean(&self.score.samples),
            mean(&self.score.bandwidth),
            mean(&self.score.rate)
        )
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Seconds since 1970 as a date and time in UTC (the civil calendar from days, by era of 400
/// years beginning in March).
pub fn date(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// The cells of a stage: name, what it does, unit, mean, least, greatest, spread.
pub fn stage_cells(stage: &Stage) -> [String; 7] {
    let summary = summarize(&stage.samples);
    let spread = crate::metric::ratio(summary.max - summary.min, summary.mean);
    [
        stage.name.clone(),
        stage.title.clone(),
        stage.unit.clone(),
        figure(summary.mean),
        figure(summary.min),
        figure(summary.max),
        format!("{:.0}%", spread * 100.0),
    ]
}

/// The latency cells of a stage, if it has any: name and percentiles.
pub fn latency_cells(stage: &Stage) -> Option<[String; 6]> {
    let latency = stage.latency.as_ref()?;
    Some([
        stage.name.clone(),
        micros(latency.p50_us),
        micros(latency.p95_us),
        micros(latency.p99_us),
        micros(latency.p999_us),
        micros(latency.max_us),
    ])
}

/// What is printed at the end.
pub fn summary(document: &Document<'_>) -> String {
    let mut table = Table::new(&["stage", "mean", "least", "greatest", "unit"], &[0, 4]);
    for stage in &document.results.stages {
        let [name, _, unit, mean, least, greatest, _] = stage_cells(stage);
        table.row(vec![name, mean, least, greatest, unit]);
    }
    let mut text = table.render();
    text.push('\n');
    text.push_str(&listing::layout(&document.results.listings));
    for note in &document.results.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&format!("score: {}\n", document.score_line()));
    text
}

fn table(text: &mut String, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let cell = |cell: &str| cell.replace('|', "\\|");
    text.push_str(&format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len())));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|one| cell(one)).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text.push('\n');
}

/// The report.
pub fn render(document: &Document<'_>) -> String {
    let results = document.results;
    let mut text = "# Storage benchmark\n\n".to_string();
    let mut line = |words: String| writeln!(text, "{words}").expect("invariant: strings grow");
    line(format!("**Score {}**\n", document.score_line()));
    line(format!(
        "Made by `strake bench suite{}`. The score is √(geometric mean of four bandwidths ×\n\
         geometric mean of eight metadata rates), in the manner of the IO500 list but with\n\
         short stages on one host: compare it with other runs of this suite only.\n",
        if results.plan.quick { " --quick" } else { "" }
    ));
    let facts = document.facts().into_iter().map(|(name, value)| vec![name, value]);
    table(&mut text, &["", ""], facts);
    text.push_str("## Results\n\n");
    let heads = ["stage", "what", "unit", "mean", "least", "greatest", "spread"];
    table(&mut text, &heads, results.stages.iter().map(|stage| stage_cells(stage).to_vec()));
    text.push_str("## Latency of single operations, last repetition\n\n");
    let heads = ["stage", "p50", "p95", "p99", "p99.9", "max"];
    let rows = results.stages.iter().filter_map(latency_cells);
    table(&mut text, &heads, rows.map(|row| row.to_vec()));
    text.push_str("## Sequential rates by number of tasks, MiB/s\n\n");
    let rows = results
        .scaling
        .iter()
        .map(|point| vec![point.tasks.to_string(), figure(point.write), figure(point.read)]);
    table(&mut text, &["tasks", "write", "read"], rows);
    if !results.listings.is_empty() {
        let size = ByteSize(results.listings[0].file_bytes);
        text.push_str(&format!("## Create, list, remove files of {size}\n\n```\n"));
        text.push_str(&listing::layout(&results.listings));
        text.push_str("```\n\n");
    }
    text.push_str("## Notes\n\n");
    for note in &results.notes {
        text.push_str(&format!("- {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::score::score;
    use super::super::stages::tests::results;
    use super::*;
    use crate::outcome::LatencySummary;

    #[test]
    fn dates_by_hand() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_096_848_000 + 3_661), "2004-10-04 01:01 UTC");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59 UTC");
    }

    #[test]
    fn golden_document() {
        let mut results = results();
        results.set("easy write", vec![1000.0, 1100.0]);
        results.stages[0].latency = Some(LatencySummary {
            mean_us: 1.0,
            deviation_us: 0.0,
            min_us: 1.0,
            p50_us: 900.0,
            p95_us: 1_200.0,
            p99_us: 2_000.0,
            p999_us: 30_000.0,
            max_us: 2_000_000.0,
        });
        let mut report = Report::new("suite", Vec::new(), None);
        report.unix_seconds = 0;
        let score = score(&results);
        let document = Document { report: &report, results: &results, score: &score };
        let wanted = "\
# Storage benchmark

**Score no score: a stage is missing**

Made by `strake bench suite --quick`. The score is √(geometric mean of four bandwidths ×
geometric mean of eight metadata rates), in the manner of the IO500 list but with
short stages on one host: compare it with other runs of this suite only.

|  |  |
|---|---|
| tasks | 2 |
| date | 1970-01-01 00:00 UTC |
| duration | 100 s |

## Results

| stage | what | unit | mean | least | greatest | spread |
|---|---|---|---|---|---|---|
| easy write | what easy write does | MiB/s | 1050 | 1000 | 1100 | 10% |

## Latency of single operations, last repetition

| stage | p50 | p95 | p99 | p99.9 | max |
|---|---|---|---|---|---|
| easy write | 900 µs | 1.20 ms | 2.00 ms | 30.0 ms | 2.00 s |

## Sequential rates by number of tasks, MiB/s

| tasks | write | read |
|---|---|---|
| 1 | 100 | 200 |
| 2 | 150 | 390 |

## Notes

- A note with <angle> & ampersand.
";
        assert_eq!(render(&document), wanted);
        let shown = summary(&document);
        assert!(shown.contains("easy write  1050   1000      1100  MiB/s\n"), "{shown}");
    }
}
