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

fn direct() -> Group {
    let mut group = Group::new(
        "p690, jobs on the server itself",
        "p690-x335, tests 1, 6, 11 and 16, one task, natural aggregate",
    );
    let linear = "linear in controllers from test 1";
    for (test, controllers, write, read) in [
        ("test 1", 1, "325.05", "388.97"),
        ("test 6", 2, "640.10", "765.28"),
        ("test 16", 4, "1233.84", "1259.48"),
    ] {
        let evaluation = system(controllers, 0, WriteCache::Off);
        for metric in [Write, Read] {
            assert_eq!(evaluation.tiers[0].rate(metric).bottleneck, "controllers", "{test}");
        }
        let (write_rate, read_rate) = (mb(&evaluation, Write), mb(&evaluation, Read));
        if controllers == 1 {
            group.agrees(format!("{test}, 1 DS4500: write"), (write, "MB/s"), write_rate);
            group.agrees(format!("{test}, 1 DS4500: read"), (read, "MB/s"), read_rate);
            continue;
        }
        let verdict = Verdict::Measured(0.95, 1.06, linear);
        group.row(
            format!("{test}, {controllers} DS4500: write"),
            (write, "MB/s"),
            write_rate,
            verdict,
        );
        let (band, reason) = if controllers == 4 {
            (1.25, "one task does not reach the peak of four DS4500; two and four tasks do")
        } else {
            (1.06, linear)
        };
        let verdict = Verdict::Measured(0.95, band, reason);
        group.row(
            format!("{test}, {controllers} DS4500: read"),
            (read, "MB/s"),
            read_rate,
            verdict,
        );
    }
    let four = mb(&system(4, 0, WriteCache::Off), Read);
    group.row(
        "test 16, 4 DS4500: read, four tasks",
        ("1541.19", "MB/s"),
        four,
        Verdict::Measured(0.95, 1.06, linear),
    );
    let cached = mb(&system(2, 0, WriteCache::Unmirrored), Write);
    group.agrees("test 11, 2 DS4500, write caching on: write", ("768.2", "MB/s"), cached);
    let mixed = "two jobs at once; the controllers gate both together";
    group.row(
        "test 20, mixed jobs: write",
        ("1231.4", "MB/s"),
        mb(&system(4, 0, WriteCache::Off), Write),
        Verdict::Measured(0.95, 1.06, mixed),
    );
    group.row(
        "test 20, mixed jobs: read",
        ("1702.2", "MB/s"),
        four,
        Verdict::Measured(0.90, 1.06, mixed),
    );
    let conservative = "the report's conservative sizing rule; test 1 measured 325";
    group.row(
        "sizing rule per DS4500",
        ("300", "MB/s"),
        mb(&system(1, 0, WriteCache::Off), Write),
        Verdict::Marked(conservative),
    );
    group
}

fn clients() -> Group {
    let mut group = Group::new(
        "x335 clients over Gigabit Ethernet",
        "p690-x335, tests 2, 7 and 17, natural aggregate",
    );
    let unexplained = "writes over the EtherChannel stay at 40 % of reads; the report measures 900 MB/s \
                       with iperf over the same ports and leaves the cause open";
    for (test, controllers, clients, write, read, gate) in [
        ("test 2, 1 DS4500", 1, 1, "109.27", "110.89", "client network"),
        ("test 2, 1 DS4500", 1, 2, "180.27", "219.73", "client network"),
        ("test 2, 1 DS4500", 1, 4, "256.28", "388.48", "controllers"),
        ("test 2, 1 DS4500", 1, 8, "260.75", "390.53", "controllers"),
        ("test 7, 2 DS4500", 2, 2, "198.92", "218.65", "client network"),
        ("test 7, 2 DS4500", 2, 4, "269.91", "435.37", "client network"),
        ("test 7, 2 DS4500", 2, 8, "282.44", "624.19", "server network"),
        ("test 17, 4 DS4500", 4, 4, "207.42", "427.55", "client network"),
        ("test 17, 4 DS4500", 4, 8, "244.68", "692.17", "server network"),
        ("test 17, 4 DS4500", 4, 16, "249.66", "574.91", "server network"),
    ] {
        let evaluation = system(controllers, clients, WriteCache::Off);
        assert_eq!(evaluation.tiers[0].rate(Read).bottleneck, gate, "{test}, {clients} clients");
        let reads = format!("gated by the {gate}");
        let reads: &'static str = Box::leak(reads.into_boxed_str());
        let figure = format!("{test}, {clients} x335: read");
        group.row(
            figure,
            (read, "MB/s"),
            mb(&evaluation, Read),
            Verdict::Measured(0.90, 1.12, reads),
        );
        let band = if clients == 1 { (0.95, 1.05) } else { (1.0, 3.1) };
        let verdict =
            Verdict::Measured(band.0, band.1, if clients == 1 { reads } else { unexplained });
        group.row(
            format!("{test}, {clients} x335: write"),
            (write, "MB/s"),
            mb(&evaluation, Write),
            verdict,
        );
    }
    let eight = system(4, 8, WriteCache::Off);
    group.agrees("EtherChannel of 8 ports at 80 MB/s", ("640", "MB/s"), mb(&eight, Read));
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
