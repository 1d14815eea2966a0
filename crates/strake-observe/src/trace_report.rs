//! The report of a trace: a table with a row for each kind of operation, and tables that split
//! these rows by file, by NSD and by process.
//!
//! The last two columns say what the average hides. *Half* of a row's total time went into
//! operations that took at least `ms`, and these are `pc` percent of all its operations. If `pc` is
//! small, a few slow operations make up the time.

use crate::trace::{Event, Labels, TraceStatus};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use strake_proto::NsdId;

/// What splits the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TraceBy {
    /// Nothing: a row for each kind of operation.
    Operation,
    /// The file or directory that the request names.
    File,
    /// The NSD.
    Nsd,
    /// The process that made the request.
    Process,
}

impl TraceBy {
    /// All of them, in the order in which reports have them.
    pub const ALL: [TraceBy; 4] =
        [TraceBy::Operation, TraceBy::File, TraceBy::Nsd, TraceBy::Process];

    fn title(self) -> &'static str {
        match self {
            TraceBy::Operation => "By operation",
            TraceBy::File => "By file",
            TraceBy::Nsd => "By NSD",
            TraceBy::Process => "By process",
        }
    }
}

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceQuestion {
    /// The tables.
    pub by: Vec<TraceBy>,
    /// Each table has at most so many rows, those with the most time.
    pub rows: usize,
    /// Only requests of this process.
    pub process: Option<u32>,
    /// Only requests that name this file.
    pub inode: Option<u64>,
    /// Only what concerns this NSD.
    pub nsd: Option<NsdId>,
}

impl TraceQuestion {
    /// Whether the question is about this event.
    pub fn concerns(&self, event: &Event) -> bool {
        self.process.is_none_or(|process| event.cause.process == process)
            && self.inode.is_none_or(|inode| event.cause.inode == inode)
            && self.nsd.is_none_or(|nsd| event.nsd == Some(nsd))
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRow {
    /// The kind of operation.
    pub operation: String,
    /// The file, the NSD or the process. Empty in the table by operation.
    pub of: String,
    /// The time of all operations together.
    pub total_ns: u64,
    /// How many there were.
    pub count: u64,
    /// How many of them failed.
    pub failures: u64,
    /// The bytes that they moved.
    pub bytes: u64,
    /// How many there were in a second.
    pub per_second: f64,
    /// The shortest.
    pub min_ns: u64,
    /// The average.
    pub mean_ns: u64,
    /// Nine of ten took at most this long.
    pub p90_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Half of the total time went into operations that took at least this long.
    pub median_ns: u64,
    /// The share of these operations, in percent.
    pub median_percent: f64,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceTable {
    /// What splits its rows.
    pub by: TraceBy,
    /// The rows with the most time, the most first.
    pub rows: Vec<TraceRow>,
    /// How many further rows there are.
    pub left_out: u64,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceReport {
    /// The trace.
    pub status: TraceStatus,
    /// The time that the report covers. It is shorter than the trace if the trace has overwritten
    /// events.
    pub covered_ns: u64,
    /// The tables.
    pub tables: Vec<TraceTable>,
}

/// The durations of one row's operations.
#[derive(Default)]
struct Gathered {
    took_ns: Vec<u64>,
    failures: u64,
    bytes: u64,
}

/// Adds up the events that the question is about.
pub fn report(
    status: TraceStatus,
    events: &[(u64, Event)],
    labels: &Labels,
    question: &TraceQuestion,
) -> TraceReport {
    // If events were overwritten, nothing is known of the time before the oldest one that is left.
    let from = match (status.overwritten, events.first()) {
        (1.., Some((_, oldest))) => oldest.start_ns + oldest.took_ns,
        _ => 0,
    };
    let covered_ns = status.elapsed_ns.saturating_sub(from);
    let tables = question.by.iter().map(|by| table(*by, covered_ns, events, labels, question));
    TraceReport { covered_ns, tables: tables.collect(), status }
}

/// The number by which a table tells events apart. `None` if the event has no row in it.
fn key(by: TraceBy, event: &Event) -> Option<u64> {
    match by {
        TraceBy::Operation => Some(0),
        TraceBy::File => Some(event.cause.inode).filter(|inode| *inode != 0),
        TraceBy::Nsd => event.nsd.map(|nsd| u64::from(nsd.0)),
        TraceBy::Process => Some(u64::from(event.cause.process)).filter(|process| *process != 0),
    }
}

fn label(by: TraceBy, key: u64, labels: &Labels) -> String {
    match by {
        TraceBy::Operation => String::new(),
        TraceBy::File => labels.file(key),
        TraceBy::Nsd => labels.nsd(NsdId(key as u32)),
        TraceBy::Process => labels.process(key as u32),
    }
}

fn table(
    by: TraceBy,
    covered_ns: u64,
    events: &[(u64, Event)],
    labels: &Labels,
    question: &TraceQuestion,
) -> TraceTable {
    let mut gathered: HashMap<(&'static str, u64), Gathered> = HashMap::new();
    for (_, event) in events.iter().filter(|(_, event)| question.concerns(event)) {
        if let Some(key) = key(by, event) {
            let row = gathered.entry((event.operation, key)).or_default();
            row.took_ns.push(event.took_ns);
            row.failures += u64::from(event.failed);
            row.bytes += event.bytes;
        }
    }
    let mut rows: Vec<TraceRow> = gathered
        .into_iter()
        .map(|((operation, key), row)| row.finish(operation, label(by, key, labels), covered_ns))
        .collect();
    rows.sort_by(|a, b| {
        let (a, b) = ((b.total_ns, &a.operation, &a.of), (a.total_ns, &b.operation, &b.of));
        a.cmp(&b)
    });
    let left_out = rows.len().saturating_sub(question.rows) as u64;
    rows.truncate(question.rows);
    TraceTable { by, rows, left_out }
}

impl Gathered {
    fn finish(mut self, operation: &str, of: String, covered_ns: u64) -> TraceRow {
        let took = &mut self.took_ns;
        took.sort_unstable();
        let (count, total) = (took.len(), took.iter().sum::<u64>());
        assert!(count > 0, "a row has an operation");
        let mut passed = 0;
        let slow = took.iter().rev().position(|one| {
            passed += one;
            2 * passed >= total
        });
        let slow = slow.map_or(count, |at| at + 1);
        TraceRow {
            operation: operation.to_owned(),
            of,
            total_ns: total,
            count: count as u64,
            failures: self.failures,
            bytes: self.bytes,
            per_second: count as f64 / (covered_ns.max(1) as f64 / 1e9),
            min_ns: took[0],
            mean_ns: total / count as u64,
            p90_ns: took[(count * 9).div_ceil(10).max(1) - 1],
            max_ns: took[count - 1],
            median_ns: took[count - slow],
            median_percent: slow as f64 / count as f64 * 100.0,
        }
    }
}

/// Prints a report in the layout that users of `trcio` know. Durations are in milliseconds, totals
/// in seconds.
///
/// # Errors
/// Those of `out`.
pub fn print_trace_report(out: &mut dyn fmt::Write, report: &TraceReport) -> fmt::Result {
    let status = &report.status;
    writeln!(
        out,
        "Total elapsedTime: {:.3} sec, {} events, {} earlier ones overwritten{}",
        report.covered_ns as f64 / 1e9,
        status.kept,
        status.overwritten,
        if status.on { ", the trace goes on" } else { "" },
    )?;
    for table in &report.tables {
        writeln!(out, "\n{}", table.by.title())?;
        print_table(out, table)?;
    }
    Ok(())
}

fn print_table(out: &mut dyn fmt::Write, table: &TraceTable) -> fmt::Result {
    if table.rows.is_empty() {
        return writeln!(out, "nothing");
    }
    writeln!(
        out,
        "{:>10} {:>9} {:>9} {:-^39} {:-^15}",
        "Total Time", "", "Ops/", "Time-per-operation (milli-sec)", "Cumul.-Med."
    )?;
    writeln!(
        out,
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}",
        "(seconds)", "Count", "sec", "min", "avg", "90%", "max", "(ms)", "pc"
    )?;
    for row in &table.rows {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let of = if row.of.is_empty() { String::new() } else { format!(" '{}'", row.of) };
        writeln!(
            out,
            "{:>10.3} {:>9} {:>9.1} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>5} {}{of}",
            row.total_ns as f64 / 1e9,
            row.count,
            row.per_second,
            ms(row.min_ns),
            ms(row.mean_ns),
            ms(row.p90_ns),
            ms(row.max_ns),
            ms(row.median_ns),
            percent(row.median_percent),
            row.operation,
        )?;
    }
    if table.left_out > 0 {
        writeln!(out, "and {} rows with less time", table.left_out)?;
    }
    Ok(())
}

/// Two digits of a percentage.
fn percent(percent: f64) -> String {
    if percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

#[cfg(test)]
#[path = "trace_report_test.rs"]
mod trace_report_test;
