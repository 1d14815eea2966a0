//! The NFS appliance: capacities agree in powers of ten; its rates are measurements.

use crate::row::{Group, Row, Verdict, example, example_with, gb, raw};
use strake_plan::stage::Metric::{Read, Write};

/// All rows of this document.
pub(crate) fn rows() -> Vec<Row> {
    let mut group = Group::new(
        "NSS small, medium, large",
        "dell-nss, Table 1; NSS Configurations; Figures 8 to 11",
    );
    for (name, raw_tb, usable_tb, disks, enclosures) in [
        ("small", "24", "20", "12", "1"),
        ("medium", "48", "40", "24", "2"),
        ("large", "96", "80", "48", "4"),
    ] {
        let evaluation = example(&format!("nss-{name}"));
        group.agrees(format!("{name}: raw"), (raw_tb, "TB"), raw(&evaluation));
        let usable = evaluation.usable.value / 1e12;
        group.agrees(format!("{name}: usable, powers of ten"), (usable_tb, "TB"), usable);
        group.agrees(format!("{name}: disks"), (disks, ""), evaluation.inventory.disks.value);
        let trays = evaluation.inventory.trays.value;
        group.agrees(format!("{name}: MD1200 enclosures"), (enclosures, ""), trays);
    }
    rates(&mut group);
    group.rows
}

fn rates(group: &mut Group) {
    let cache = "24 GB of the server gather writes and flush them as large sequential ones, which \
                 position less often than once a strip; the model has no such cache";
    let line = "one port of 10 Gbit/s gates";
    let seeks = "concurrent NFS writes make the disks seek-bound, says the page: they position more \
                 often than once a strip; the planner knows no number of streams";
    let readahead =
        "NFS reads ahead little: a request of 256 KiB to one disk, at most 100 of them a second";
    let chained = "as above; the second enclosure hangs behind the first on one RAID controller, and the \
                   planner adds their disks up";
    let mb = |name: &str, lan: &str, metric| {
        let lan = lan.to_string();
        let evaluation = example_with(&format!("nss-{name}"), |design| {
            design.tier[0].servers.as_mut().unwrap().lan = Some(lan);
        });
        gb(&evaluation, metric) * 1024.0
    };
    for (figure, printed, computed, reason) in [
        ("small: write over 10GbE", "550", mb("small", "10gbe-nfs", Write), cache),
        ("large: write over 10GbE (1.2 GB/s)", "1200", mb("large", "10gbe-nfs", Write), line),
        ("large: write over IPoIB (1.45 GB/s)", "1450", mb("large", "ipoib-qdr", Write), seeks),
        ("small: read over 10GbE", "270", mb("small", "10gbe-nfs", Read), readahead),
        ("medium: read over 10GbE", "500", mb("medium", "10gbe-nfs", Read), chained),
    ] {
        let verdict = Verdict::Measured(reason);
        group.row(figure, (printed, "MB/s"), computed, verdict);
    }
    let claimed =
        "as above; a round claim, the introduction prints 1480 MB/s and Figure 8 about 1.45 GB/s";
    let large = mb("large", "ipoib-qdr", Write) / 1024.0;
    group.row("large: write, as claimed", ("1.4", "GB/s"), large, Verdict::Measured(claimed));
    let medium = mb("medium", "10gbe-nfs", Read) / mb("small", "10gbe-nfs", Read);
    let doubled = "twice the disks, twice the rate: 500 / 270 measured";
    group.row("medium : small, read", ("1.85", ""), medium, Verdict::Measured(doubled));
    let charts = "the document prints charts without numbers";
    group.not_modelled("random IOPS, Figures 12 and 13", ("", ""), charts);
    group.not_modelled("mdtest: create, stat, remove, Figures 14 to 16", ("", ""), charts);
    let spread = "a range of rates over all configurations, not of one";
    group.not_modelled("throughput, Summary", ("400 MB/s to 1.4 GB/s", ""), spread);
}
