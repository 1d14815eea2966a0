//! Predicted beside measured: what `strake bench … --json` found against a design.
//!
//! A bench report has `metrics`, a list of named figures with their samples. A name carries what
//! was done: `io <operation> <pattern> <record> <hosts>x<tasks>`, or `net <test>
//! <clients>-<servers>`, which is held against the network stages alone; others are passed over.
//! Pure: text in, comparisons out.

use crate::design::System;
use crate::error::PlanError;
use crate::evaluate::{TierEvaluation, evaluate_tier};
use crate::figure::Figure;
use crate::library::{Adapter, Server};
use crate::outputs::{self, Did, Unused};
use crate::stage::{Metric, adapter};
use crate::unit::{KIB, Unit, parse_capacity};
use serde::{Deserialize, Serialize};

/// One measured figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// The bench's name of it.
    pub name: String,
    pub metric: Metric,
    /// Median of the samples, in bytes or operations per second.
    pub value: f64,
    /// Clients that took part.
    pub hosts: u64,
    /// Servers that took part in a test of the network alone.
    pub network_servers: Option<u64>,
    pub tasks_per_host: u64,
    /// Bytes per transfer.
    pub record: f64,
    /// Share of the clients' processors in use, where the report has it.
    pub processors_busy: Option<f64>,
}

/// One measurement beside its prediction.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub measurement: Measurement,
    /// What the design allows so many clients.
    pub predicted: Figure,
    /// Measured / predicted.
    pub ratio: f64,
    /// What gates by the prediction.
    pub bottleneck: String,
    /// The likely cause of the gap, and what to look at.
    pub cause: String,
}

#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    kind: String,
    metrics: Vec<ReportMetric>,
    #[serde(default)]
    detail: serde_json::Value,
}

#[derive(Deserialize)]
struct ReportMetric {
    name: String,
    unit: String,
    samples: Vec<f64>,
}

/// Most hosts of a report that are believed.
const CROWD_MAX: u64 = 1_000_000;

/// Reads a report of `strake bench`, or the output of fio, IOR or mdtest; `file` is only for
/// messages. Rows without a prediction come back by name.
pub fn read_any(file: &str, text: &str) -> Result<(Vec<Measurement>, Vec<Unused>), PlanError> {
    let Some(rows) = outputs::read(file, text) else { return read_report(file, text) };
    let (rows, mut unused) = rows?;
    let mut measurements = Vec::new();
    for row in rows {
        let small = row.record == 4.0 * KIB;
        let metric = match row.did {
            Did::Write => Some(Metric::Write),
            Did::Read => Some(Metric::Read),
            Did::RandomWrite if small => Some(Metric::IopsWrite),
            Did::RandomRead if small => Some(Metric::IopsRead),
            _ => None,
        };
        match metric {
            Some(metric) => measurements.push(Measurement {
                name: row.name,
                metric,
                value: row.value,
                hosts: row.hosts,
                network_servers: None,
                // A queue keeps as much on its way as so many tasks.
                tasks_per_host: row.depth.unwrap_or(row.tasks),
                record: row.record,
                processors_busy: None,
            }),
            None => unused.push(Unused::new(row.name, NO_PREDICTION)),
        }
    }
    Ok((plausible(measurements), unused))
}

/// Why a row is not compared.
const NO_PREDICTION: &str = "no prediction: streams, random transfers of 4 KiB and tests of the \
                             network have one";

/// Reads a bench report; `file` is only for messages.
pub fn read_bench(file: &str, text: &str) -> Result<Vec<Measurement>, PlanError> {
    read_report(file, text).map(|(measurements, _)| measurements)
}

fn read_report(file: &str, text: &str) -> Result<(Vec<Measurement>, Vec<Unused>), PlanError> {
    let report: Report = serde_json::from_str(text).map_err(|error| {
        let said = format!(
            "neither a report of `strake bench --json` nor an output of fio (JSON), IOR or mdtest: \
             {error}"
        );
        PlanError::schema(file, &said)
    })?;
    let (mut measurements, mut unused) = (Vec::new(), Vec::new());
    for metric in &report.metrics {
        match measurement(metric, &report.detail) {
            Some(measured) => measurements.push(measured),
            None => unused.push(Unused::new(&metric.name, NO_PREDICTION)),
        }
    }
    let measurements = plausible(measurements);
    if measurements.is_empty() {
        return Err(PlanError::Usage(format!(
            "{file} (kind '{}') holds no streaming or 4 KiB random figure; measure with \
             `strake bench io DIR --json`, for example --record 4M, or --pattern rand --record 4K",
            report.kind
        )));
    }
    Ok((measurements, unused))
}

/// Figures without a meaning compare with nothing.
fn plausible(measurements: Vec<Measurement>) -> Vec<Measurement> {
    let crowd = 1..=CROWD_MAX;
    measurements
        .into_iter()
        .filter(|m| m.value > 0.0 && m.value.is_finite() && crowd.contains(&m.hosts))
        .filter(|m| m.network_servers.is_none_or(|servers| crowd.contains(&servers)))
        .collect()
}

fn measurement(metric: &ReportMetric, detail: &serde_json::Value) -> Option<Measurement> {
    let words: Vec<&str> = metric.name.split(' ').collect();
    if let ["net", test, crowd] = words[..] {
        return network(metric, test, crowd);
    }
    let ["io", operation, pattern, record, crowd] = words[..] else { return None };
    let writes = match operation {
        "create" | "write" | "rewrite" => true,
        "read" => false,
        _ => return None,
    };
    let record = record.parse().or_else(|_| parse_capacity(record, KIB)).ok()?;
    let (hosts, tasks) = crowd.split_once('x')?;
    let (hosts, tasks_per_host) = (hosts.parse().ok()?, tasks.parse().ok()?);
    let bytes = median(&metric.samples)? * unit(&metric.unit)?;
    let (metric_kind, value) = match (pattern, record) {
        ("seq", _) if writes => (Metric::Write, bytes),
        ("seq", _) => (Metric::Read, bytes),
        ("rand", record) if record == 4.0 * KIB => {
            let kind = if writes { Metric::IopsWrite } else { Metric::IopsRead };
            (kind, bytes / record)
        }
        _ => return None,
    };
    Some(Measurement {
        name: metric.name.clone(),
        metric: metric_kind,
        value,
        hosts,
        network_servers: None,
        tasks_per_host,
        record,
        processors_busy: processors(detail, operation, tasks_per_host),
    })
}

fn network(metric: &ReportMetric, test: &str, crowd: &str) -> Option<Measurement> {
    let kind = match test {
        "write" | "nwrite" | "swrite" => Metric::Write,
        "read" | "sread" => Metric::Read,
        _ => return None,
    };
    let (clients, servers) = crowd.split_once('-')?;
    Some(Measurement {
        name: metric.name.clone(),
        metric: kind,
        value: median(&metric.samples)? * unit(&metric.unit)?,
        hosts: clients.parse().ok()?,
        network_servers: Some(servers.parse().ok()?),
        tasks_per_host: 1,
        record: 0.0,
        processors_busy: None,
    })
}

fn unit(name: &str) -> Option<f64> {
    match name {
        "MiB/s" => Some(KIB * KIB),
        "MB/s" => Some(1e6),
        "B/s" => Some(1.0),
        _ => None,
    }
}

fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// The share of processors in use during an operation, read loosely from the details.
fn processors(detail: &serde_json::Value, operation: &str, tasks: u64) -> Option<f64> {
    let line = detail.as_array()?.iter().find(|line| {
        line["operation"].as_str() == Some(operation)
            && line["tasks_per_host"].as_u64().is_none_or(|count| count == tasks)
    })?;
    let cpu = &line["cpu"];
    Some(cpu["user"].as_f64()? + cpu["system"].as_f64()?)
}

/// Compares the first tier of a system with measurements.
pub fn compare(system: &System, measurements: &[Measurement]) -> Vec<Comparison> {
    measurements.iter().map(|measurement| compare_one(system, measurement)).collect()
}

fn compare_one(system: &System, measurement: &Measurement) -> Comparison {
    // The design may foresee more clients than took part in the measurement.
    let mut measured_system = system.clone();
    if let Some(clients) = &mut measured_system.clients {
        clients.count = measurement.hosts;
    }
    if let Some(servers) = measurement.network_servers {
        return compare_network(&measured_system, measurement, servers);
    }
    let tier = evaluate_tier(&measured_system, &measured_system.tiers[0]);
    let rate = tier.rate(measurement.metric);
    let ratio = measurement.value / rate.total.value;
    let bottleneck = rate.bottleneck.clone();
    let block_size = system.tiers[0].storage.block_size;
    Comparison {
        measurement: measurement.clone(),
        ratio,
        cause: cause(&tier, measurement, ratio, &bottleneck, block_size),
        predicted: rate.total.clone(),
        bottleneck,
    }
}

/// The network stages alone, for the clients and servers that took part. A test of the network
/// moves no parity, so the adapters' own rates stand.
fn compare_network(system: &System, measurement: &Measurement, servers: u64) -> Comparison {
    let all = |name: &str, nodes: u64, model: &Server, (lan, per_node): (&Adapter, u64)| {
        let count = Figure::design("nodes", Unit::Count, nodes as f64);
        let adapters = Figure::design("adapters per node", Unit::Count, per_node as f64);
        Figure::product(name, Unit::BytesPerSecond, vec![count, adapters, adapter(model, lan)])
    };
    let mut sides = Vec::new();
    if let Some(front) = &system.tiers[0].servers {
        let lan = front.lan.map(|lan| (lan, front.lan_per_server));
        sides.extend(lan.map(|lan| all("server network", servers, front.model, lan)));
    }
    if let Some(clients) = &system.clients {
        let lan = clients.lan.map(|lan| (lan, clients.lan_per_client));
        sides.extend(lan.map(|lan| all("client network", measurement.hosts, clients.model, lan)));
    }
    if sides.is_empty() {
        sides.push(Figure::design(
            "no network in the design",
            Unit::BytesPerSecond,
            measurement.value,
        ));
    }
    let predicted = Figure::minimum("network", Unit::BytesPerSecond, sides);
    let ratio = measurement.value / predicted.value;
    let bottleneck = predicted.gate().map_or(String::new(), |gate| gate.name.clone());
    let cause = if ratio < 1.0 - CLOSE {
        "the network carries less than its adapters: look at flow control (drops and \
         retransmissions), MTU, bonding mode and worker threads of the test"
    } else if ratio > 1.0 + CLOSE {
        "more than the library says of this adapter: calibrate"
    } else {
        "as predicted"
    };
    Comparison {
        measurement: measurement.clone(),
        predicted,
        ratio,
        bottleneck,
        cause: cause.into(),
    }
}

/// A prediction within this share of the measurement needs no explanation.
const CLOSE: f64 = 0.10;

fn cause(
    tier: &TierEvaluation,
    measurement: &Measurement,
    ratio: f64,
    bottleneck: &str,
    block_size: f64,
) -> String {
    if (ratio - 1.0).abs() <= CLOSE {
        return "as predicted".into();
    }
    let streams = matches!(measurement.metric, Metric::Write | Metric::Read);
    let writes = matches!(measurement.metric, Metric::Write | Metric::IopsWrite);
    if ratio > 1.0 {
        let cache = if writes {
            "writes still in memory when the clock stopped (count fsync), or"
        } else {
            "data from a cache (flush it, or read more than the memory holds), or"
        };
        return format!("{cache} the library's figure for the {bottleneck} is too low: calibrate");
    }
    if let Some(busy) = measurement.processors_busy.filter(|busy| *busy > 0.9) {
        return format!(
            "the clients' processors are {:.0} % busy: they gate, not the storage",
            busy * 100.0
        );
    }
    let index = Metric::ALL.iter().position(|metric| *metric == measurement.metric);
    let like = |bound: f64| bound > 0.0 && (measurement.value / bound - 1.0).abs() <= CLOSE;
    let lost = tier.losses.iter().find(|loss| {
        let rate = |rates: &[Figure]| index.and_then(|index| rates.get(index)).map(|r| r.value);
        rate(&loss.at_least).is_some_and(like) || rate(&loss.at_most).is_some_and(like)
    });
    if measurement.hosts == 1 && measurement.tasks_per_host == 1 {
        return "one task waits for each transfer in turn: repeat with more tasks (`strake bench --tasks 8`, fio --iodepth=8)"
            .into();
    }
    if streams && measurement.record < block_size {
        return format!(
            "records of {} are smaller than the block of {}: repeat with whole blocks",
            Unit::Bytes.show(measurement.record),
            Unit::Bytes.show(block_size)
        );
    }
    if let Some(lost) = lost {
        return format!("as much as is left without {}: see whether all are up", lost.lost);
    }
    format!(
        "nothing in the figures says why; measure the {bottleneck} alone with `strake bench disk` or \
         `strake bench net`, and look at `strake diag waiters` during the run"
    )
}

/// Rows that were not used, one a line.
pub fn render_unused(unused: &[Unused]) -> String {
    unused.iter().map(|row| format!("not used: {}: {}\n", row.name, row.why)).collect()
}

/// The comparisons as a table.
pub fn render(title: &str, comparisons: &[Comparison]) -> String {
    let mut out = format!("{title}\n\n");
    for comparison in comparisons {
        let measurement = &comparison.measurement;
        let unit = measurement.metric.unit();
        out.push_str(&format!(
            "{:<16} predicted {:<14} measured {:<14} x{:.2}  ({})\n  gated by {}; {}\n",
            measurement.metric.label(),
            comparison.predicted.show(),
            unit.show(measurement.value),
            comparison.ratio,
            measurement.name,
            comparison.bottleneck,
            comparison.cause,
        ));
    }
    out
}

#[cfg(test)]
#[path = "compare_test.rs"]
mod compare_test;
