//! p690 and x335 on DS4500: the shape of the measurements follows from the chain of minima.
//!
//! One client is gated by its Gigabit Ethernet, many by the EtherChannel of the p690, few DS4500
//! by their controllers; on the p690 itself the rate is linear in controllers.

use crate::row::{Group, Row, Verdict, example_with, gb};
use strake_plan::evaluate::Evaluation;
use strake_plan::library::WriteCache;
use strake_plan::stage::Metric::{self, Read, Write};

/// All rows of this document.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = direct().rows;
    rows.extend(clients().rows);
    rows.extend(mixed().rows);
    rows.extend(strided().rows);
    rows.extend(configuration().rows);
    rows
}

/// `controllers` DS4500 behind the p690; `clients` x335, or none: jobs on the p690 itself.
fn system(controllers: u64, clients: u64, cache: WriteCache) -> Evaluation {
    example_with("p690-x335", |design| {
        let tier = &mut design.tier[0];
        tier.storage.per_block = controllers;
        tier.storage.write_cache = Some(cache);
        match clients {
            0 => {
                design.clients = None;
                tier.servers.as_mut().unwrap().lan = None;
            }
            count => design.clients.as_mut().unwrap().count = count,
        }
    })
}

fn mb(evaluation: &Evaluation, metric: Metric) -> f64 {
    gb(evaluation, metric) * 1024.0
}

/// Write and read of jobs on the p690 with 1, 2, 4, 8 and 16 tasks.
type Tasks = [(&'static str, &'static str); 5];

fn direct() -> Group {
    let mut group = Group::new(
        "p690, jobs on the server itself",
        "p690-x335, tests 1, 6, 11 and 16, natural aggregate",
    );
    let linear = "linear in controllers from one task of test 1";
    let alone = "one task does not keep several DS4500 busy; the planner knows no tasks";
    let busy = "eight and more tasks disturb one another's order; the planner knows no tasks";
    let tests: [(&str, u64, WriteCache, Tasks); 4] = [
        (
            "test 1, 1 DS4500",
            1,
            WriteCache::Off,
            [
                ("325.05", "388.97"),
                ("336.30", "397.73"),
                ("330.86", "402.15"),
                ("328.93", "417.80"),
                ("328.04", "392.83"),
            ],
        ),
        (
            "test 6, 2 DS4500",
            2,
            WriteCache::Off,
            [
                ("640.10", "765.28"),
                ("641.07", "760.75"),
                ("631.84", "739.31"),
                ("649.14", "724.88"),
                ("646.97", "721.26"),
            ],
        ),
        (
            "test 11, 2 DS4500, write caching on",
            2,
            WriteCache::Unmirrored,
            [
                ("768.21", "620.57"),
                ("774.97", "771.37"),
                ("767.94", "735.78"),
                ("776.23", "720.27"),
                ("721.80", "724.33"),
            ],
        ),
        (
            "test 16, 4 DS4500",
            4,
            WriteCache::Off,
            [
                ("1233.84", "1259.48"),
                ("1205.22", "1507.61"),
                ("1220.48", "1541.19"),
                ("1230.79", "1435.37"),
                ("1261.76", "1388.82"),
            ],
        ),
    ];
    for (test, controllers, cache, tasks) in tests {
        let evaluation = system(controllers, 0, cache);
        for metric in [Write, Read] {
            assert_eq!(evaluation.tiers[0].rate(metric).bottleneck, "controllers", "{test}");
        }
        for (count, (write, read)) in [1, 2, 4, 8, 16].into_iter().zip(tasks) {
            for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
                let figure = format!("{test}, {count} tasks: {name}");
                let rate = mb(&evaluation, metric);
                let input = count == 1
                    && (controllers == 1 || (metric == Write && cache == WriteCache::Unmirrored));
                if input {
                    let held = "the library's ceiling of the controllers";
                    group.row(figure, (printed, "MB/s"), f64::NAN, Verdict::Input(held));
                    continue;
                }
                let reason = match (count, metric, controllers) {
                    (1, Read, 4) | (1, Read, 2) => alone,
                    (8 | 16, Read, 4) => busy,
                    _ => linear,
                };
                group.row(figure, (printed, "MB/s"), rate, Verdict::Measured(reason));
            }
        }
    }
    let conservative = "the report's conservative sizing rule; test 1 measured 325";
    group.row(
        "sizing rule per DS4500",
        ("300", "MB/s"),
        mb(&system(1, 0, WriteCache::Off), Write),
        Verdict::Marked(conservative),
    );
    group
}

/// Test, controllers, cache; clients, write, read.
type Client = (u64, &'static str, &'static str);

fn clients() -> Group {
    let mut group = Group::new(
        "x335 clients over Gigabit Ethernet",
        "p690-x335, tests 2, 7, 12 and 17, natural aggregate",
    );
    let held = "the library's receive path of the p690 is this figure";
    let gates = "gated by the client network, the controllers, or the EtherChannel";
    let receive = "gated by the p690's receive path, as measured once in test 7";
    let pair = "two clients wait behind each other at one receive path: a closed queue of two gives \
                190 MB/s, where the planner takes the smaller of 220 and 282";
    let spread = "with four DS4500 writes stay below what they reach with two over the same receive path; \
                  the report blames the EtherChannel for both and leaves the rest open";
    let tests: [(&str, u64, WriteCache, &[Client]); 4] = [
        (
            "test 2, 1 DS4500",
            1,
            WriteCache::Off,
            &[
                (1, "109.27", "110.89"),
                (2, "180.27", "219.73"),
                (4, "256.28", "388.48"),
                (8, "260.75", "390.53"),
                (16, "266.58", "390.52"),
            ],
        ),
        (
            "test 7, 2 DS4500",
            2,
            WriteCache::Off,
            &[
                (2, "198.92", "218.65"),
                (4, "269.91", "435.37"),
                (8, "282.44", "624.19"),
                (16, "253.23", "595.50"),
                (32, "269.77", "577.53"),
            ],
        ),
        (
            "test 12, 2 DS4500, write caching on",
            2,
            WriteCache::Unmirrored,
            &[
                (1, "110.19", "110.88"),
                (2, "189.97", "219.18"),
                (4, "271.39", "433.87"),
                (8, "270.35", "648.30"),
                (16, "286.21", "645.56"),
                (32, "280.56", "580.72"),
            ],
        ),
        (
            "test 17, 4 DS4500",
            4,
            WriteCache::Off,
            &[
                (2, "177.47", "215.71"),
                (4, "207.42", "427.55"),
                (8, "244.68", "692.17"),
                (16, "249.66", "574.91"),
            ],
        ),
    ];
    for (test, controllers, cache, clients) in tests {
        for (count, write, read) in clients.iter().copied() {
            let evaluation = system(controllers, count, cache);
            for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
                let figure = format!("{test}, {count} x335: {name}");
                if printed == "282.44" {
                    group.row(figure, (printed, "MB/s"), f64::NAN, Verdict::Input(held));
                    continue;
                }
                let reason = match (metric, count, controllers) {
                    (Write, 2, _) => pair,
                    (Write, 4.., 4) => spread,
                    (Write, 4.., _) => receive,
                    _ => gates,
                };
                group.row(
                    figure,
                    (printed, "MB/s"),
                    mb(&evaluation, metric),
                    Verdict::Measured(reason),
                );
            }
        }
    }
    let eight = system(4, 8, WriteCache::Off);
    group.agrees("EtherChannel of 8 ports at 80 MB/s", ("640", "MB/s"), mb(&eight, Read));
    let iperf = "a test of the network alone, without the file system";
    group.not_modelled("iperf, one client", ("115", "MB/s"), iperf);
    group.not_modelled("iperf, eight clients, write", ("900", "MB/s"), iperf);
    group
}

/// Two jobs at once, and each of them alone.
fn mixed() -> Group {
    let mut group = Group::new(
        "Jobs on the p690 and on the x335 at once",
        "p690-x335, tests 5, 10 and 20; alone: natural aggregate; together: harmonic aggregate",
    );
    let chain = "the chain of the job alone";
    let spread = "with four DS4500 writes stay below what they reach with two over the same receive path; \
                  the report blames the EtherChannel for both and leaves the rest open";
    let busy = "eight tasks disturb one another's order; the planner knows no tasks";
    let both = "the controllers gate both jobs together";
    let shares = "how two jobs share the controllers is not modelled";
    for (test, controllers, clients, [x335, p690, together], parts) in [
        (
            "test 5, 1 DS4500",
            1,
            4,
            [("253.85", "389.03"), ("313.95", "381.33"), ("369.01", "341.64")],
            "167.23 and 196.76, 267.50 and 199.97",
        ),
        (
            "test 10, 2 DS4500",
            2,
            4,
            [("267.33", "435.72"), ("632.45", "771.00"), ("707.48", "801.66")],
            "233.03 and 470.22, 386.27 and 407.79",
        ),
        (
            "test 20, 4 DS4500",
            4,
            8,
            [("224.45", "625.55"), ("1219.18", "1358.67"), ("1231.4", "1702.2")],
            "223.25 and 1067.09, 590.99 and 991.81",
        ),
    ] {
        let over = system(controllers, clients, WriteCache::Off);
        let local = system(controllers, 0, WriteCache::Off);
        for (what, evaluation, (write, read), reason) in [
            (format!("{clients} x335 alone"), &over, x335, chain),
            ("p690 alone".to_string(), &local, p690, chain),
            ("both together".to_string(), &local, together, both),
        ] {
            for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
                let reason = match (controllers, metric, what.starts_with('p')) {
                    (4, Write, false) if reason == chain => spread,
                    (4, Read, true) => busy,
                    _ => reason,
                };
                let figure = format!("{test}, {what}: {name}");
                group.row(
                    figure,
                    (printed, "MB/s"),
                    mb(evaluation, metric),
                    Verdict::Measured(reason),
                );
            }
        }
        let figure = format!("{test}: share of each job, write, read");
        group.not_modelled(figure, (parts, "MB/s"), shares);
    }
    group
}

/// Records of 16 KB that skip 1.56 MB.
fn strided() -> Group {
    let mut group = Group::new(
        "Strided records of 16 KB",
        "p690-x335, tests 3, 8, 13, 14 and 18, natural aggregate; write, then read",
    );
    let none = "strided records with read-ahead that recognises them are no pattern of the planner";
    for (figure, printed) in [
        (
            "test 3, p690, 1 DS4500, 1 to 8 tasks",
            "15.64, 9.25, 10.12, 10.06; 25.66, 36.92, 13.49, 16.82",
        ),
        (
            "test 8, p690, 2 DS4500, 1 to 16 tasks",
            "25.44, 18.14, 17.34, 18.88, 20.48; 35.79, 54.53, 23.22, 26.80, 34.95",
        ),
        (
            "test 13, p690, 2 DS4500, write caching on, 2 to 8 tasks",
            "11.63, 15.11, 23.32; 49.86, 34.48, 55.96",
        ),
        (
            "test 14, x335, 2 DS4500, write caching on, 1 to 8 nodes",
            "1.77, 5.80, 7.58, 7.67; 62.44, 8.85, 14.87, 79.85",
        ),
        (
            "test 18, p690, 4 DS4500, 1 to 8 tasks",
            "35.90, 30.12, 33.34, 35.19; 48.88, 109.31, 78.74, 61.40",
        ),
    ] {
        group.not_modelled(figure, (printed, "MB/s"), none);
    }
    group
}

fn configuration() -> Group {
    let mut group =
        Group::new("p690 configuration", "p690-x335, Table 1; Results for each test set");
    let one = system(1, 0, WriteCache::Off);
    group.agrees("LUNs per DS4500", ("8", ""), one.inventory.arrays.value);
    group.agrees("disks per DS4500", ("42", ""), one.inventory.disks.value);
    group.row(
        "disks in arrays per DS4500",
        ("42", ""),
        one.inventory.disks.value - one.inventory.disks_unused.value,
        Verdict::Marked("8 arrays of 4+P are 40 disks; two of the 42 are in none"),
    );
    group
}
