//! ESS 3000 with SAS compute nodes: the table per node and per core, and what the design allows.

use crate::row::{Group, Row, Verdict, example_with, gb};
use strake_plan::stage::Metric::{Read, Write};

/// All rows of this document.
pub(crate) fn rows() -> Vec<Row> {
    let mut group = Group::new(
        "ESS 3000, four nodes of 48 cores",
        "sas-ess3000, Table 1 and Table 2; GB x 1024 / cores",
    );
    for (nodes, write, read, write_band, read_band) in
        [(1, "11.4", "9.3", (1.0, 1.05), (1.0, 1.3)), (4, "30.4", "36.9", (1.0, 1.1), (1.0, 1.2))]
    {
        let evaluation = example_with("ess3000", |design| {
            design.clients.as_mut().unwrap().count = nodes;
        });
        let gate = if nodes == 1 { "client network" } else { "controllers" };
        assert_eq!(evaluation.tiers[0].rate(Write).bottleneck, gate);
        let reason = if nodes == 1 {
            "one 100 GbE port gates one node"
        } else {
            "the appliance's specified ceiling"
        };
        for (name, metric, printed, band) in
            [("write", Write, write, write_band), ("read", Read, read, read_band)]
        {
            let verdict = Verdict::Measured(band.0, band.1, reason);
            group.row(
                format!("{nodes} node(s): {name}"),
                (printed, "GB/s"),
                gb(&evaluation, metric),
                verdict,
            );
        }
    }
    let four = example_with("ess3000", |_| {});
    for (index, name, printed) in [(0, "write", "163"), (1, "read", "196")] {
        let core = four.tiers[0].per_core[index].value / strake_plan::unit::MIB;
        group.row(
            format!("4 nodes: {name} per core, what the design allows"),
            (printed, "MB/s"),
            core,
            Verdict::Measured(1.0, 1.2, "the specified ceiling over 192 cores"),
        );
    }
    let per_core = |gb: f64, cores: f64| gb * 1024.0 / cores;
    group.agrees("4 nodes: write per node", ("7.6", "GB/s"), 30.4 / 4.0);
    group.row(
        "4 nodes: read per node",
        ("9.23", "GB/s"),
        36.9 / 4.0,
        Verdict::Marked("36.9 / 4 = 9.225, rounded half up; binary floating point lies just below"),
    );
    group.row(
        "1 node: write per core",
        ("244", "MB/s"),
        per_core(11.4, 48.0),
        Verdict::Marked(
            "11.4 GB/s is itself rounded; the script's own result is 244.81 MB/s per core",
        ),
    );
    group.agrees("1 node: read per core", ("198.4", "MB/s"), per_core(9.3, 48.0));
    group.row(
        "4 nodes: write per core",
        ("163", "MB/s"),
        per_core(30.4, 192.0),
        Verdict::Marked("30.4 x 1024 / 192 = 162.1; one node's script prints 162.63"),
    );
    group.row(
        "4 nodes: read per core",
        ("196", "MB/s"),
        per_core(36.9, 192.0),
        Verdict::Marked("36.9 x 1024 / 192 = 196.8, printed cut off"),
    );
    group.row(
        "cores that 125 MB/s per core allows (4 nodes have 192)",
        ("192", ""),
        30.4 * 1024.0 / 125.0,
        Verdict::Measured(1.0, 1.4, "the measured write rate feeds more cores than the nodes have"),
    );
    group.rows
}
