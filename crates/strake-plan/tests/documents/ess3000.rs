//! ESS 3000 with SAS compute nodes: the table per node and per core, and what the design allows.

use crate::row::{Group, Row, Verdict, example_with, gb};
use strake_plan::stage::Metric::{Read, Write};

/// All rows of this document.
pub(crate) fn rows() -> Vec<Row> {
    let mut group = Group::new(
        "ESS 3000, four nodes of 48 cores",
        "sas-ess3000, Table 1 and Table 2; GB x 1024 / cores",
    );
    for (nodes, write, read) in [(1, "11.4", "9.3"), (4, "30.4", "36.9")] {
        let evaluation = example_with("ess3000", |design| {
            design.clients.as_mut().unwrap().count = nodes;
        });
        let gate = if nodes == 1 { "client network" } else { "controllers" };
        assert_eq!(evaluation.tiers[0].rate(Write).bottleneck, gate);
        for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
            let reason = match (nodes, metric) {
                (1, Read) => {
                    "one 100 GbE port gates one node; the planner has one rate of a port for both \
                     directions, and the document does not say what makes reads slower"
                }
                (1, _) => "one 100 GbE port gates one node",
                _ => "the appliance's specified ceiling",
            };
            let verdict = Verdict::Measured(reason);
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
            Verdict::Measured("the specified ceiling over 192 cores"),
        );
    }
    let own = "the document's own arithmetic on the rates above";
    for (figure, printed, unit) in [
        ("4 nodes: write per node", "7.6", "GB/s"),
        ("4 nodes: read per node", "9.23", "GB/s"),
        ("1 node: write per core", "244", "MB/s"),
        ("1 node: read per core", "198.4", "MB/s"),
        ("least rate that a core needs", "100 to 125", "MB/s"),
    ] {
        group.not_modelled(figure, (printed, unit), own);
    }
    let held = "the library's ceiling of the appliance";
    let ceiling = |metric| {
        let balance = &four.tiers[0].rate(metric).balance;
        let stage = balance.iter().find(|stage| stage.stage == "controllers").unwrap();
        stage.capacity / strake_plan::unit::GIB
    };
    group.input("specified sequential write", ("32", "GB/s"), ceiling(Write), held);
    group.input("specified sequential read", ("42", "GB/s"), ceiling(Read), held);
    group.rows
}
