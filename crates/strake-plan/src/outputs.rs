//! What other tools measured: the outputs of fio (JSON), IOR (text or JSON) and mdtest (text).
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
    if begin.starts_with('{') && text.contains("\"Command line\"") && text.contains("\"tests\"") {
        return Some(ior_json(file, begin));
    }
    if text.contains("mdtest") && text.contains("SUMMARY") {
        return Some(Ok(mdtest(text)));
    }
    if text.contains("IOR") && text.contains("Max ") {
        return Some(Ok(ior(text)));
    }
    None
}

/// The first JSON value of a text. Tools print other lines after their report if they are asked to.
fn first_json(file: &str, text: &str) -> Result<Value, PlanError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next().unwrap_or(Ok(Value::Null));
    value.map_err(|e| PlanError::schema(file, &e))
}

fn fio(file: &str, text: &str) -> Result<Rows, PlanError> {
    let report = first_json(file, text)?;
    let (mut rows, mut unused): (Vec<Row>, Vec<Unused>) = (Vec::new(), Vec::new());
    if report["client_stats"].is_array() {
        let why = "several machines in one output; give the output of each machine";
        unused.push(Unused::new("fio client_stats", why));
    }
    for job in report["jobs"].as_array().into_iter().flatten() {
        let name = job["jobname"].as_str().unwrap_or("job").to_string();
        let option = |key: &str| {
            let of = |place: &Value| place[key].as_str().map(str::to_string);
            of(&job["job options"]).or_else(|| of(&report["global options"]))
        };
        let pattern = option("rw").or_else(|| option("readwrite")).unwrap_or("read".into());
        let sizes = ["bs", "blocksize", "bsrange", "bssplit"].map(option);
        let Some(record) = one_size(&sizes) else {
            let why = "its transfers have several sizes";
            unused.push(Unused::new(format!("fio {name}"), why));
            continue;
        };
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

/// The size that `bs`, `blocksize`, `bsrange` and `bssplit` of fio say, if they say one only.
fn one_size(options: &[Option<String>; 4]) -> Option<f64> {
    let [bs, blocksize, bsrange, bssplit] = options;
    if bsrange.is_some() || bssplit.is_some() {
        return None;
    }
    let text = bs.as_ref().or(blocksize.as_ref()).map_or("4k", String::as_str);
    Some(size(text)).filter(|bytes| *bytes > 0.0)
}

fn first_number(text: &str) -> Option<f64> {
    let digit = |c: char| c.is_ascii_digit();
    let start = text.find(digit)?;
    let rest = &text[start..];
    let end = rest.find(|c: char| !digit(c) && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// How one test of IOR was run.
#[derive(Clone, Copy)]
struct IorTest {
    clients: u64,
    hosts: Option<u64>,
    per_host: Option<u64>,
    record: f64,
    random: bool,
}

impl IorTest {
    const NEW: IorTest =
        IorTest { clients: 1, hosts: None, per_host: None, record: 0.0, random: false };

    /// Notes a line of the options.
    fn note(&mut self, key: &str, value: &str) {
        let count = || first_number(value).map(|number| number as u64);
        match key {
            "tasks" => self.clients = count().unwrap_or(1),
            "nodes" => self.hosts = count(),
            "clients per node" => self.per_host = count(),
            // IOR 3.0: `16 (8 per node)`.
            "clients" => {
                self.clients = count().unwrap_or(1);
                let per_host = value.split_once('(').and_then(|(_, rest)| first_number(rest));
                self.per_host = per_host.map(|number| number as u64);
            }
            "xfersize" => self.record = size(value),
            "ordering in a file" => self.random = value.starts_with("random"),
            _ => {}
        }
    }

    fn row(&self, operation: &str, mib: Option<f64>) -> Result<Row, Unused> {
        let name = format!("IOR max {}", operation.to_lowercase());
        let bytes = match mib.map(|rate| rate * MIB) {
            None => return Err(Unused::new(name, "no rate in MiB/sec")),
            Some(bytes) if bytes > 0.0 && bytes.is_finite() => bytes,
            Some(_) => return Err(Unused::new(name, "it moved nothing")),
        };
        let (did, value) = match (operation, self.random && self.record > 0.0) {
            ("Write", false) => (Did::Write, bytes),
            ("Read", false) => (Did::Read, bytes),
            ("Write", true) => (Did::RandomWrite, bytes / self.record),
            ("Read", true) => (Did::RandomRead, bytes / self.record),
            _ => return Err(Unused::new(name, "an operation that the planner does not know")),
        };
        let clients = self.clients.max(1);
        let hosts = self.hosts.or_else(|| Some(clients / self.per_host?.max(1)));
        let hosts = hosts.unwrap_or(1).max(1);
        let (tasks, record) = ((clients / hosts).max(1), self.record);
        Ok(Row { name, did, value, hosts, tasks, record, latency: None, depth: None })
    }
}

/// One output may have several tests, each with its options before its figures.
fn ior(text: &str) -> Rows {
    let (mut rows, mut unused, mut test) = (Vec::new(), Vec::new(), IorTest::NEW);
    for line in text.lines().map(str::trim) {
        if let Some((operation, figures)) =
            line.strip_prefix("Max ").and_then(|rest| rest.split_once(':'))
        {
            let rate = first_number(figures).filter(|_| figures.contains("MiB/sec"));
            match test.row(operation, rate) {
                Ok(row) => rows.push(row),
                Err(why) => unused.push(why),
            }
        } else if line == "Options:" || line == "Summary:" {
            test = IorTest::NEW;
        } else if let Some((key, value)) = line.split_once([':', '=']) {
            test.note(key.trim(), value.trim());
        }
    }
    (rows, unused)
}

/// IOR with `-O summaryFormat=JSON`.
fn ior_json(file: &str, text: &str) -> Result<Rows, PlanError> {
    let report = first_json(file, text)?;
    let (mut rows, mut unused) = (Vec::new(), Vec::new());
    for result in report["tests"].as_array().into_iter().flatten() {
        let mut test = IorTest::NEW;
        for (key, value) in result["Options"].as_object().into_iter().flatten() {
            match value {
                Value::String(text) => test.note(key, text),
                value => test.note(key, &value.to_string()),
            }
        }
        for (operation, key) in [("Write", "writeMiB"), ("Read", "readMiB")] {
            let Some(rate) = result["max"].get(key) else { continue };
            match test.row(operation, rate.as_f64()) {
                Ok(row) => rows.push(row),
                Err(why) => unused.push(why),
            }
        }
    }
    Ok((rows, unused))
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
    // `SUMMARY time` has milliseconds, which say nothing about many at a time.
    if text.contains("SUMMARY time") {
        unused.push(Unused::new("mdtest SUMMARY time", "times; only rates are read"));
    }
    let summary = text.lines().skip_while(|line| !line.starts_with("SUMMARY rate")).skip(1);
    for line in summary.take_while(|line| !line.starts_with("SUMMARY")) {
        // Columns: max, min, mean, deviation. With statistics per rank, three columns are before
        // them.
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Vec<f64> = words.iter().rev().map_while(|word| word.parse().ok()).collect();
        let mean = match numbers.len() {
            4 | 7 => numbers[1],
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
