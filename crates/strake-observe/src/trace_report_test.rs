//! Tests the sums of reports, against a slow and obvious model, and the layout, against the rows of
//! a known report.

use super::*;
use crate::trace::ThreadLabel;
use std::collections::BTreeMap;
use strake_env::cause::Cause;
use strake_proto::Timestamp;

const MS: u64 = 1_000_000;

fn status(elapsed_ms: u64, overwritten: u64) -> TraceStatus {
    TraceStatus {
        on: false,
        since: Timestamp { seconds: 0, nanos: 0 },
        elapsed_ns: elapsed_ms * MS,
        capacity: 1024,
        kept: 5,
        overwritten,
    }
}

fn event(operation: &'static str, start_ms: u64, took_ms: u64, cause: (u32, u64)) -> Event {
    Event {
        operation,
        start_ns: start_ms * MS,
        took_ns: took_ms * MS,
        bytes: 100,
        cause: Cause { request: 1, process: cause.0, inode: cause.1 },
        thread: ThreadLabel::new(1, "fuse-0"),
        nsd: operation.starts_with("disk").then_some(NsdId(2)),
        failed: took_ms == 7,
    }
}

fn some() -> Vec<(u64, Event)> {
    let events = [
        event("fuse_write", 0, 1, (10, 5)),
        event("fuse_write", 2, 2, (10, 6)),
        event("disk write data", 4, 3, (10, 5)),
        event("disk write data", 8, 5, (0, 0)),
        event("fuse_read", 10, 7, (11, 5)),
    ];
    (0..).zip(events).collect()
}

fn labels() -> Labels {
    Labels {
        processes: BTreeMap::from([(10, "dd".to_owned())]),
        files: BTreeMap::from([(5, "/five".to_owned())]),
        nsds: BTreeMap::from([(NsdId(2), "nsd2".to_owned())]),
    }
}

fn all() -> TraceQuestion {
    let by = TraceBy::ALL.to_vec();
    TraceQuestion { by, rows: 20, process: None, inode: None, nsd: None }
}

fn seen(table: &TraceTable) -> Vec<(&str, &str, u64, u64)> {
    let row = |row: &'_ TraceRow| (row.count, row.total_ns / MS);
    table.rows.iter().map(|it| (&*it.operation, &*it.of, row(it).0, row(it).1)).collect()
}

#[test]
fn each_table_splits_the_operations_by_what_it_names() {
    let report = report(status(100, 0), &some(), &labels(), &all());
    let tables: Vec<_> = report.tables.iter().map(seen).collect();
    assert_eq!(
        tables[0],
        [("disk write data", "", 2, 8), ("fuse_read", "", 1, 7), ("fuse_write", "", 2, 3)]
    );
    assert_eq!(
        tables[1],
        [
            ("fuse_read", "/five", 1, 7),
            ("disk write data", "/five", 1, 3),
            ("fuse_write", "inode 6", 1, 2),
            ("fuse_write", "/five", 1, 1)
        ]
    );
    assert_eq!(tables[2], [("disk write data", "nsd2", 2, 8)]);
    assert_eq!(
        tables[3],
        [
            ("fuse_read", "process 11", 1, 7),
            ("disk write data", "dd 10", 1, 3),
            ("fuse_write", "dd 10", 2, 3)
        ]
    );
    let read = &report.tables[0].rows[1];
    assert_eq!((read.failures, read.bytes, read.per_second), (1, 100, 10.0));
}

#[test]
fn a_question_about_a_process_a_file_or_an_nsd_leaves_out_the_rest() {
    let of = |question: TraceQuestion| {
        let report = report(status(100, 0), &some(), &labels(), &question);
        report.tables[0].rows.iter().map(|row| row.count).sum::<u64>()
    };
    assert_eq!(of(TraceQuestion { process: Some(10), ..all() }), 3);
    assert_eq!(of(TraceQuestion { inode: Some(5), ..all() }), 3);
    assert_eq!(of(TraceQuestion { process: Some(10), inode: Some(5), ..all() }), 2);
    assert_eq!(of(TraceQuestion { nsd: Some(NsdId(2)), ..all() }), 2);
    assert_eq!(of(TraceQuestion { nsd: Some(NsdId(1)), ..all() }), 0);
    let question = TraceQuestion { rows: 1, ..all() };
    let report = report(status(100, 0), &some(), &labels(), &question);
    assert_eq!((report.tables[0].rows.len(), report.tables[0].left_out), (1, 2));
}

#[test]
fn a_report_covers_the_time_of_which_it_has_all_events() {
    let question = TraceQuestion { rows: 9, ..all() };
    let of = |overwritten| report(status(100, overwritten), &some(), &labels(), &question);
    assert_eq!(of(0).covered_ns, 100 * MS);
    assert_eq!(of(1).covered_ns, 99 * MS, "the first event that is left ends after 1 ms");
}

#[test]
fn the_columns_agree_with_a_slow_model() {
    for seed in strake_env::rng::test_seeds(1, 300) {
        let mut rng = strake_env::Rng::new(seed);
        let count = 1 + rng.below(40);
        let took: Vec<u64> = (0..count).map(|_| rng.below(1000)).collect();
        let row = Gathered { took_ns: took.clone(), ..Gathered::default() };
        let row = row.finish("x", String::new(), 1_000_000_000);
        let total: u64 = took.iter().sum();
        assert_eq!((row.total_ns, row.count, row.mean_ns), (total, count, total / count));
        assert_eq!(Some(&row.min_ns), took.iter().min());
        assert_eq!(Some(&row.max_ns), took.iter().max());
        // The least duration that nine of ten do not exceed.
        let within = |limit: u64| took.iter().filter(|one| **one <= limit).count() as u64;
        let p90 = took.iter().copied().filter(|limit| within(*limit) * 10 >= count * 9).min();
        assert_eq!(Some(row.p90_ns), p90, "seed {seed}: {took:?}");
        // The greatest duration such that those of at least this length have half of the time.
        let time = |limit: u64| took.iter().filter(|one| **one >= limit).sum::<u64>();
        let half = took.iter().copied().filter(|limit| time(*limit) * 2 >= total).max();
        assert_eq!(Some(row.median_ns), half, "seed {seed}: {took:?}");
        let above = took.iter().filter(|one| **one > row.median_ns).count() as f64;
        let not_below = took.iter().filter(|one| **one >= row.median_ns).count() as f64;
        let slow = row.median_percent / 100.0 * count as f64;
        assert!(slow > above - 0.01 && slow < not_below + 0.01, "seed {seed}: {took:?}: {slow}");
    }
}

/// A row with the numbers of a known report.
#[allow(clippy::too_many_arguments, reason = "the columns")]
fn row(
    operation: &str,
    of: &str,
    total: f64,
    count: u64,
    per_second: f64,
    ms: [f64; 5],
    median_percent: f64,
) -> TraceRow {
    let [min_ns, mean_ns, p90_ns, max_ns, median_ns] = ms.map(|ms| (ms * 1e6).round() as u64);
    TraceRow {
        operation: operation.to_owned(),
        of: of.to_owned(),
        total_ns: (total * 1e9).round() as u64,
        count,
        failures: 0,
        bytes: 0,
        per_second,
        min_ns,
        mean_ns,
        p90_ns,
        max_ns,
        median_ns,
        median_percent,
    }
}

#[test]
fn the_layout_is_the_one_that_users_know() {
    let by_operation = vec![
        row("read", "", 2415.654, 146_023, 10.5, [0.037, 16.543, 23.771, 150.453, 18.346], 36.2),
        row("send", "", 606.029, 33_875, 2.4, [0.011, 17.89, 19.114, 1407.95, 22.622], 4.8),
    ];
    let by_nsd = vec![row(
        "write",
        "nsd4",
        23.358,
        200,
        0.0,
        [59.854, 116.79, 194.596, 227.816, 118.109],
        35.0,
    )];
    let report = TraceReport {
        status: TraceStatus { on: true, kept: 180_098, ..status(0, 12) },
        covered_ns: 13_893_154 * MS,
        tables: vec![
            TraceTable { by: TraceBy::Operation, rows: by_operation, left_out: 7 },
            TraceTable { by: TraceBy::File, rows: Vec::new(), left_out: 0 },
            TraceTable { by: TraceBy::Nsd, rows: by_nsd, left_out: 0 },
        ],
    };
    let mut text = String::new();
    print_trace_report(&mut text, &report).expect("a string takes all");
    let expected = "\
Total elapsedTime: 13893.154 sec, 180098 events, 12 earlier ones overwritten, the trace goes on

By operation
Total Time                Ops/ ----Time-per-operation (milli-sec)----- --Cumul.-Med.--
 (seconds)     Count       sec       min       avg       90%       max      (ms)    pc
  2415.654    146023      10.5     0.037    16.543    23.771   150.453    18.346   36% read
   606.029     33875       2.4     0.011    17.890    19.114  1407.950    22.622  4.8% send
and 7 rows with less time

By file
nothing

By NSD
Total Time                Ops/ ----Time-per-operation (milli-sec)----- --Cumul.-Med.--
 (seconds)     Count       sec       min       avg       90%       max      (ms)    pc
    23.358       200       0.0    59.854   116.790   194.596   227.816   118.109   35% write 'nsd4'
";
    assert_eq!(text, expected);
}

#[test]
fn a_report_goes_through_json() {
    let report = report(status(100, 0), &some(), &labels(), &all());
    let json = serde_json::to_string(&report).expect("it has a form");
    assert_eq!(serde_json::from_str::<TraceReport>(&json).expect("it is one"), report);
    let json = serde_json::to_string(&labels()).expect("it has a form");
    assert_eq!(serde_json::from_str::<Labels>(&json).expect("they are some"), labels());
}
