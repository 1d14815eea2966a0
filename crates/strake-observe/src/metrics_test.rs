//! The table, the text and the document agree, and so do the dashboard and the alert rules of
//! `examples/monitoring`.

use super::*;
use crate::disk_times::DiskWork;
use crate::health::{Component, NSD_SLOW};
use crate::recent::Window;
use crate::slow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_proto::Timestamp;

fn scene() -> Scene {
    let mut sums = DiskSums::default();
    for micros in [50, 700, 700, 30_000] {
        sums.count(Duration::from_micros(micros), 4096);
    }
    let nsd =
        NsdSample { name: "nsd1".to_owned(), is_up: true, space: (1000, 400), strips: (2, 1) };
    let wait = |seconds| WaiterSnapshot {
        thread: "fuse-1".to_owned(),
        reason: "NSD commit".to_owned(),
        detail: String::new(),
        since: Timestamp::default(),
        waited: Duration::from_secs(seconds),
        ..WaiterSnapshot::default()
    };
    let mut slow =
        slow::explain(Duration::ZERO, &Window::default(), &slow::Facts::default(), &|_| None);
    slow.findings.push(crate::Finding {
        id: "slow-disk".to_owned(),
        title: String::new(),
        nanos: 1,
        percent: 87,
        evidence: Vec::new(),
        advice: Vec::new(),
        who: None,
    });
    Scene {
        fs: "a \"strange\" \\ name".to_owned(),
        version: "1.2.3".to_owned(),
        operations: vec![OperationSums {
            name: "fuse_read",
            count: 3,
            failures: 1,
            bytes: 300,
            nanos: 1_500_000_000,
        }],
        disks: vec![(NsdId(1), DiskWork::Write, sums)],
        nsds: BTreeMap::from([(NsdId(1), nsd)]),
        pool: PoolSample { budget: 100, used: 50, dirty: 20 },
        resident: 12_345,
        processor_nanos: 2_000_000_000,
        waiters: vec![wait(3), wait(5)],
        health: Health::of(vec![Component::with("nsd1", &NSD_SLOW, "slow")]),
        slow,
    }
}

/// The name of a sample without what a histogram adds.
fn family(name: &str) -> &str {
    let histogram = METRICS.iter().find(|it| {
        let rest = name.strip_prefix(it.name);
        it.kind == MetricKind::Histogram
            && rest.is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest))
    });
    histogram.map_or(name, |it| it.name)
}

#[test]
fn every_metric_is_written_once_with_its_help_type_and_labels() {
    let text = render(&scene());
    let mut begun = Vec::new();
    let mut sampled = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            let metric = METRICS.iter().find(|it| it.name == name).expect("it is in the table");
            assert_eq!(help, metric.help);
            begun.push(metric);
            continue;
        }
        let metric = *begun.last().expect("a metric has begun");
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest, format!("{} {}", metric.name, metric.kind.word()));
            continue;
        }
        let (name, rest) = line.split_once('{').expect("labels");
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        assert_eq!(family(name), metric.name, "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(labels.starts_with(r#"fs="a \"strange\" \\ name""#), "{line}");
        assert!(metric.labels.iter().all(|it| labels.contains(&format!(",{it}=\""))), "{line}");
        sampled.insert(metric.name);
    }
    assert_eq!(
        begun.iter().map(|it| it.name).collect::<Vec<_>>(),
        METRICS.iter().map(|it| it.name).collect::<Vec<_>>()
    );
    assert_eq!(sampled.len(), METRICS.len(), "each has a sample in this scene");
}

#[test]
fn samples_have_the_values_of_the_scene() {
    let text = render(&scene()).replace(r#"fs="a \"strange\" \\ name","#, "");
    for line in [
        r#"strake_operations_total{operation="fuse_read"} 3"#,
        r#"strake_operation_seconds_total{operation="fuse_read"} 1.5"#,
        r#"strake_disk_bytes_total{nsd="nsd1",work="write"} 16384"#,
        r#"strake_disk_seconds_bucket{nsd="nsd1",work="write",le="0.0001"} 1"#,
        r#"strake_disk_seconds_bucket{nsd="nsd1",work="write",le="0.001"} 3"#,
        r#"strake_disk_seconds_bucket{nsd="nsd1",work="write",le="+Inf"} 4"#,
        r#"strake_disk_seconds_sum{nsd="nsd1",work="write"} 0.03145"#,
        r#"strake_disk_seconds_count{nsd="nsd1",work="write"} 4"#,
        r#"strake_health{component="nsd1",event="nsd_slow"} 1"#,
        r#"strake_nsd_free_bytes{nsd="nsd1"} 400"#,
        r#"strake_slow_ratio{cause="slow-disk"} 0.87"#,
        r#"strake_waits{reason="NSD commit"} 2"#,
        r#"strake_wait_seconds_max{reason="NSD commit"} 5"#,
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\nis not in\n{text}");
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_document_lists_every_metric() {
    assert!(
        METRICS.is_sorted_by(|a, b| a.name.replace("_total", "") < b.name.replace("_total", ""))
    );
    let mut text = String::from(
        "# Metrics\n\nThe setting `metrics` makes the daemon answer Prometheus, and `strake diag \
         metrics` prints the same text\n([how](operating.md)). Every sample has the label `fs`, \
         the file system's name. Metrics name no files and no users.\n\nThis list is made from the \
         program's own table; write it anew with\n`STRAKE_REGENERATE=1 cargo test -p \
         strake-observe metrics`.\n\n| metric | type | labels | |\n|---|---|---|---|\n",
    );
    for Metric { name, kind, labels, help } in METRICS {
        let labels: Vec<String> = labels.iter().map(|it| format!("`{it}`")).collect();
        writeln!(text, "| `{name}` | {} | {} | {help} |", kind.word(), labels.join(", "))
            .expect("a string takes all");
    }
    let path = repository().join("docs/METRICS.md");
    if std::env::var_os("STRAKE_REGENERATE").is_some() {
        std::fs::write(&path, &text).expect("it can be written");
    }
    let stored = std::fs::read_to_string(path).expect("docs/METRICS.md");
    assert!(stored == text, "docs/METRICS.md is stale: see its head");
}

/// The metrics of ours that an expression names.
fn named(expression: &str) -> Vec<&str> {
    let words = expression.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
    words.filter(|word| word.starts_with("strake_")).collect()
}

fn check(place: &str, expression: &str) {
    let named = named(expression);
    assert!(!named.is_empty(), "{place}: {expression}");
    for name in named {
        let is_known = METRICS.iter().any(|it| it.name == family(name));
        assert!(is_known, "{place}: there is no metric {name}");
    }
    let pairs = [('(', ')'), ('{', '}'), ('[', ']')];
    for (open, close) in pairs {
        let count = |of: char| expression.chars().filter(|it| *it == of).count();
        assert_eq!(count(open), count(close), "{place}: {expression}");
    }
}

/// The values of a key, wherever it is in a JSON value.
fn values<'a>(value: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => values(field, key, found),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|it| values(it, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let text = std::fs::read_to_string(repository().join("examples/monitoring/dashboard.json"));
    let dashboard: serde_json::Value =
        serde_json::from_str(&text.expect("a dashboard")).expect("it is JSON");
    let mut expressions = Vec::new();
    values(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() >= 10, "{expressions:?}");
    expressions.iter().for_each(|it| check("dashboard.json", it));
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["type"].is_string()));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}

#[test]
fn the_alert_rules_name_metrics_and_events_that_exist() {
    let text = std::fs::read_to_string(repository().join("examples/monitoring/alerts.yml"));
    let text = text.expect("alert rules");
    let field = |name: &str| -> Vec<&str> {
        let key = format!("{name}: ");
        text.lines()
            .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(&*key))
            .collect()
    };
    let (alerts, expressions) = (field("alert"), field("expr"));
    assert!(alerts.len() >= 8 && alerts.len() == expressions.len(), "{alerts:?}");
    assert_eq!(field("severity").len(), alerts.len());
    assert_eq!(field("summary").len(), alerts.len());
    expressions.iter().for_each(|it| check("alerts.yml", it));
    let events = text.split("event=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let events: Vec<&str> = events.collect();
    assert!(!events.is_empty());
    for event in events {
        let is_known = crate::health::EVENTS.iter().any(|it| it.id == event);
        assert!(is_known, "there is no event {event}");
    }
}
