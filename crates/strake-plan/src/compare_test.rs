//! Reports of the bench, read loosely and judged.

use super::*;
use crate::design::Design;
use crate::library::Library;

const DESIGN: &str = include_str!("../../../docs/plan/examples/solution-2c1.toml");

/// A report as the bench writes it (format 1), with the figures in MiB/s.
fn report(metrics: &[(&str, f64)], busy: f64) -> String {
    let metrics: Vec<serde_json::Value> = metrics
        .iter()
        .map(|(name, rate)| {
            serde_json::json!({
                "name": name, "unit": "MiB/s", "better": "higher",
                "samples": [rate * 0.9, rate, rate * 1.1]
            })
        })
        .collect();
    serde_json::json!({
        "tool": "strake bench", "format": 1, "kind": "io", "unix_seconds": 0, "hosts": [],
        "target": null, "settings": {}, "metrics": metrics,
        "detail": [{
            "operation": "create", "hosts": 8, "tasks_per_host": 4,
            "cpu": {"user": busy, "system": 0.0, "idle": 1.0 - busy, "wait": 0.0}
        }]
    })
    .to_string()
}

fn compared(metrics: &[(&str, f64)], busy: f64) -> Vec<Comparison> {
    let library = Library::built_in();
    let design = Design::parse("2c.1", DESIGN).unwrap();
    let measurements = read_bench("report.json", &report(metrics, busy)).unwrap();
    compare(&design.resolve(&library).unwrap(), &measurements)
}

#[test]
fn measured_figures_meet_their_predictions() {
    let comparisons = compared(
        &[
            ("io create seq 4M 8x4", 12.5 * 1024.0),
            ("io read seq 4M 8x4", 15.9 * 1024.0),
            ("io read rand 4K 8x4", 16_000.0 * 4.0 / 1024.0),
            ("io create seq 4M 8x4 p99", 3.0),
            ("md create", 3.0),
        ],
        0.1,
    );
    let metrics: Vec<Metric> = comparisons.iter().map(|c| c.measurement.metric).collect();
    assert_eq!(metrics, [Metric::Write, Metric::Read, Metric::IopsRead]);
    for comparison in &comparisons {
        assert!((0.95..1.05).contains(&comparison.ratio), "{comparison:?}");
        assert_eq!(comparison.cause, "as predicted");
    }
}

#[test]
fn gaps_get_their_likely_cause() {
    for (name, rate, busy, says) in [
        ("io read seq 4M 8x4", 40_000.0, 0.1, "cache"),
        ("io create seq 4M 8x4", 40_000.0, 0.1, "fsync"),
        ("io create seq 4M 8x4", 4_000.0, 0.97, "processors are 97 %"),
        ("io create seq 4M 1x1", 4_000.0, 0.1, "more tasks"),
        ("io create seq 64K 8x4", 4_000.0, 0.1, "whole blocks"),
        // Half of one of four blocks' controllers: 12.8 - 0.8 GB/s is within a tenth of whole;
        // every stripe waiting for it leaves 9.6.
        ("io create seq 4M 8x4", 9.6 * 1024.0, 0.1, "without one RAID controller"),
        ("io create seq 4M 8x4", 2_000.0, 0.1, "strake bench"),
    ] {
        let comparisons = compared(&[(name, rate)], busy);
        assert!(comparisons[0].cause.contains(says), "{name} {rate}: {}", comparisons[0].cause);
    }
}

#[test]
fn network_tests_are_held_against_the_network_alone() {
    // Two QDR servers carry 6 GB/s; the design has eight.
    let comparisons = compared(&[("net nwrite 8-2", 6.0 * 1024.0)], 0.0);
    assert!((comparisons[0].ratio - 1.0).abs() < 0.01, "{:?}", comparisons[0]);
    let comparisons = compared(&[("net read 8-2", 2.0 * 1024.0)], 0.0);
    assert_eq!(comparisons[0].bottleneck, "server network");
    assert!(comparisons[0].cause.contains("flow control"));
}

#[test]
fn what_is_no_report_is_refused_with_advice() {
    for text in ["", "{}", "[]", r#"{"metrics": [{"name": "x"}]}"#] {
        assert!(read_bench("x.json", text).is_err(), "{text}");
    }
    let error = read_bench("x.json", &report(&[("md create", 3.0)], 0.0)).unwrap_err();
    assert!(error.to_string().contains("strake bench io"), "{error}");
}

#[test]
fn rows_without_a_prediction_are_named() {
    let text = report(&[("io create seq 4M 8x4", 100.0), ("md create", 3.0)], 0.1);
    let (measurements, unused) = read_any("report.json", &text).unwrap();
    assert_eq!(measurements.len(), 1);
    assert_eq!(unused[0].name, "md create");
    let ior = "IOR-3.4.0\ntasks : 8\nnodes : 8\nxfersize : 4 MiB\nMax Write: 100.0 MiB/sec\n";
    let (measurements, unused) = read_any("ior.txt", ior).unwrap();
    assert_eq!((measurements[0].metric, measurements[0].hosts), (Metric::Write, 8));
    assert!(unused.is_empty());
}
