//! What other tools measured: the outputs of fio (JSON), IOR and mdtest (text).
//!
//! Each file becomes rows in one form. A row that nothing of the planner stands for is kept as
//! well, with the reason, so that a user sees what was not used. Pure: text in, rows out. The
//! tool is known by the text itself, not by the file's name.

use crate::error::PlanError;
use crate::unit::{KIB, MIB, parse_capacity};
use serde::Serialize;
use serde_json::Value;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Did {
    /// Sequential transfers; `value` is bytes per second.
    Write,
    Read,
    /// Random transfers; `value` is operations per second.
    RandomWrite,
    RandomRead,
    /// Files made; `value` is operations per second.
    Create,
    /// Other operations on names.
    Names,
}

/// One figure of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As the tool calls it.
    pub name: String,
    pub did: Did,
    pub value: f64,
    /// Clients that took part, and tasks on each.
    pub hosts: u64,
    pub tasks: u64,
    /// Bytes per transfer; 0 for names.
    pub record: f64,
    /// Seconds of one, where the tool says it.
    pub latency: Option<f64>,
    /// Operations on their way at a time, where the tool says it.
    pub depth: Option<u64>,
}

/// A figure that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    pub name: String,
    pub why: String,
}

impl Unused {
    pub(crate) fn new(name: impl Into<String>, why: impl Into<String>) -> Unused {
        Unused { name: name.into(), why: why.into() }
    }
}

/// The rows of an output, and what was not used.
pub type Rows = (Vec<Row>, Vec<Unused>);

/// The rows of an output; none if it is of none of the tools.
pub fn read(file: &str, text: &str) -> Option<Result<Rows, PlanError>> {
    let begin = text.trim_start();
    if begin.starts_with('{') && text.contains("\"fio version\"") {
        return Some(fio(file, begin));
    }
    // fio prints warnings before its JSON.
    if let Some(at) = text.find("{\n").filter(|_| text.contains("\"fio version\"")) {
        return Some(fio(file, &text[at..]));
    }
    if text.contains("mdtest") && text.contains("SUMMARY") {
        return Some(Ok(mdtest(text)));
    }
    if text.contains("IOR") && text.contains("Max ") {
        return Some(Ok(ior(text)));
    }
    None
}

fn fio(file: &str, text: &str) -> Result<Rows, PlanError> {
    let report: Value = serde_json::from_str(text).map_err(|e| PlanError::schema(file, &e))?;
    let (mut rows, mut unused): (Vec<Row>, Vec<Unused>) = (Vec::new(), Vec::new());
    for job in report["jobs"].as_array().into_iter().flatten() {
        let name = job["jobname"].as_str().unwrap_or("job").to_string();
        let option = |key: &str| {
            let of = |place: &Value| place[key].as_str().map(str::to_string);
            of(&job["job options"]).or_else(|| of(&report["global options"]))
        };
        let pattern = option("rw").or_else(|| option("readwrite")).unwrap_or("read".into());
        let record = size(&option("bs").unwrap_or("4k".into()));
        let number = |key: &str| option(key).and_then(|text| text.parse().ok()).unwrap_or(1_u64);
        let (jobs, depth) = (number("numjobs"), number("iodepth"));
        let (did, side) = match pattern.as_str() {
            "write" => (Did::Write, "write"),
            "read" => (Did::Read, "read"),
            "randwrite" => (Did::RandomWrite, "write"),
            "randread" => (Did::RandomRead, "read"),
            other => {
                let why = format!("rw={other} mixes reads and writes");
                unused.push(Unused::new(format!("fio {name}"), why));
                continue;
            }
        };
        let figures = &job[side];
        let random = matches!(did, Did::RandomRead | Did::RandomWrite);
        let value = figures[if random { "iops" } else { "bw_bytes" }].as_f64();
        let label = format!("fio {name}: {pattern} {}", crate::unit::Unit::Bytes.show(record));
        let Some(value) = value.filter(|value| *value > 0.0 && value.is_finite()) else {
            unused.push(Unused::new(label, "it moved nothing"));
            continue;
        };
        let latency = figures["clat_ns"]["mean"].as_f64().map(|nanoseconds| nanoseconds / 1e9);
        // Without group_reporting each process is a row of its own.
        match rows.iter_mut().find(|row| row.name == label && row.did == did) {
            Some(row) => row.value += value,
            None => rows.push(Row {
                name: label,
                did,
                value,
                hosts: 1,
                tasks: jobs,
                record,
                latency,
                depth: Some(jobs.saturating_mul(depth)),
            }),
        }
    }
    Ok((rows, unused))
}

/// A size as these tools write it: `4k`, `1MiB`, `4096`.
fn size(text: &str) -> f64 {
    let text = text.trim().replace("bytes", "B");
    text.parse().or_else(|_| parse_capacity(&text, KIB)).unwrap_or(0.0)
}

/// The value of `key : value` or `key = value`.
fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix(key)?.trim_start();
        Some(rest.strip_prefix([':', '='])?.trim())
    })
}

fn first_number(text: &str) -> Option<f64> {
    let digit = |c: char| c.is_ascii_digit();
    let start = text.find(digit)?;
    let rest = &text[start..];
    let end = rest.find(|c: char| !digit(c) && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn ior(text: &str) -> Rows {
    let count = |key: &str| setting(text, key).and_then(first_number).map(|n| n as u64);
    let clients = count("tasks").or_else(|| count("clients")).unwrap_or(1).max(1);
    let per_node = count("clients per node").or_else(|| {
        let (_, per_node) = setting(text, "clients")?.split_once('(')?;
        first_number(per_node).map(|n| n as u64)
    });
    let hosts = count("nodes").or_else(|| Some(clients / per_node?.max(1))).unwrap_or(1).max(1);
    let record = setting(text, "xfersize").map_or(0.0, size);
    let random =
        setting(text, "ordering in a file").is_some_and(|order| order.starts_with("random"));
    let (mut rows, mut unused) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("Max ") else { continue };
        let Some((operation, figures)) = rest.split_once(':') else { continue };
        let name = format!("IOR max {}", operation.to_lowercase());
        let (Some(rate), true) = (first_number(figures), figures.contains("MiB/sec")) else {
            unused.push(Unused::new(name, "no rate in MiB/sec"));
            continue;
        };
        let bytes = rate * MIB;
        let (did, value) = match (operation, random && record > 0.0) {
            _ if bytes <= 0.0 => {
                unused.push(Unused::new(name, "it moved nothing"));
                continue;
            }
            ("Write", false) => (Did::Write, bytes),
            ("Read", false) => (Did::Read, bytes),
            ("Write", true) => (Did::RandomWrite, bytes / record),
            ("Read", true) => (Did::RandomRead, bytes / record),
            _ => {
                unused.push(Unused::new(name, "an operation that the planner does not know"));
                continue;
            }
        };
        let tasks = (clients / hosts).max(1);
        rows.push(Row { name, did, value, hosts, tasks, record, latency: None, depth: None });
    }
    (rows, unused)
}

fn mdtest(text: &str) -> Rows {
    let launch = text.lines().find(|line| line.contains("task(s) on"));
    let crowd = |word: &str| {
        let (before, _) = launch?.split_once(word)?;
        before.split_whitespace().last()?.parse::<u64>().ok()
    };
    let (tasks, hosts) = (crowd("total task(s)").or_else(|| crowd("task(s)")), crowd("node(s)"));
    let hosts = hosts.unwrap_or(1).max(1);
    let (mut rows, mut unused) = (Vec::new(), Vec::new());
    let summary = text.lines().skip_while(|line| !line.contains("SUMMARY"));
    for line in summary {
        // Columns: max, min, mean, deviation. Newer versions have them per rank and then per
        // iteration.
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Vec<f64> = words.iter().rev().map_while(|word| word.parse().ok()).collect();
        let mean = match numbers.len() {
            4 | 8 => numbers[1],
            _ => continue,
        };
        let named = words.iter().take(words.len() - numbers.len()).filter(|word| **word != ":");
        let operation = named.copied().collect::<Vec<_>>().join(" ");
        let name = format!("mdtest {}", operation.to_lowercase());
        if !(mean > 0.0 && mean.is_finite()) {
            unused.push(Unused::new(name, "it did nothing"));
            continue;
        }
        let did = if operation == "File creation" { Did::Create } else { Did::Names };
        let tasks = tasks.map_or(1, |all| (all / hosts).max(1));
        let (record, latency, depth) = (0.0, None, None);
        rows.push(Row { name, did, value: mean, hosts, tasks, record, latency, depth });
    }
    (rows, unused)
}

#[cfg(test)]
#[path = "outputs_test.rs"]
mod outputs_test;
