//! The performance session: one client, GSS 24 and 26 by block size, one cold block.

use crate::row::{Group, Row, Verdict, example_with, gb};
use strake_plan::evaluate::Evaluation;
use strake_plan::stage::Metric::{self, Read, Write};
use strake_plan::unit::{Capacity, MIB};

/// All rows of this document.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = one_client().rows;
    rows.extend(ior().rows);
    rows.extend(ladder().rows);
    rows
}

fn gss(model: &str, block_mib: f64, clients: u64) -> Evaluation {
    example_with(&format!("gss{model}"), |design| {
        design.tier[0].storage.block_size = Some(Capacity(block_mib * MIB));
        design.clients.as_mut().unwrap().count = clients;
    })
}

fn mb(evaluation: &Evaluation, metric: Metric) -> f64 {
    gb(evaluation, metric) * 1024.0
}

fn one_client() -> Group {
    let mut group = Group::new(
        "One client of a GSS 26",
        "gpfs-performance, Apply these numbers to practice; 8 MiB blocks",
    );
    let evaluation = gss("26", 8.0, 1);
    assert_eq!(evaluation.tiers[0].rate(Write).bottleneck, "client network");
    let gated = "gated by the GEN-2 slot, whose 3,000 MB/s the document gives as rounded";
    let kb = mb(&evaluation, Write) * 1024.0;
    group.row("create 10 GiB", ("3268199.54", "KB/s"), kb, Verdict::Measured(0.90, 1.0, gated));
    let prefetch = "cold: the prefetch depth of one file does not fill the slot";
    group.row(
        "read 10 GiB, cold",
        ("2330376.56", "KB/s"),
        kb,
        Verdict::Measured(1.0, 1.4, prefetch),
    );
    let cold = evaluation.tiers[0].cold_block.as_ref().unwrap().value * 1000.0;
    let disk = "10 ms seek + 1 MiB strip at 20 ms + 8 MiB over the adapter";
    group.row(
        "one cold 8 MiB block, time of the I/O",
        ("33.646", "ms"),
        cold,
        Verdict::Measured(0.90, 1.05, disk),
    );
    let rate = 8.0 * 1024.0 / cold * 1000.0;
    group.row(
        "one cold 8 MiB block",
        ("220322.52", "KB/s"),
        rate,
        Verdict::Measured(0.95, 1.2, disk),
    );
    let iops = "KB are 1,024 bytes: 3,268,199.54 KB/s / 8 MiB";
    group.agrees(
        format!("operations per second of the create ({iops})"),
        ("398.95", "1/s"),
        3268199.54 / 8192.0,
    );
    group
}

fn ior() -> Group {
    let mut group = Group::new(
        "GSS 24 and GSS 26, 15 clients",
        "gpfs-performance, IOR by block size; disk counts are not in the documents",
    );
    let shape =
        "strip rate of the disks at block / 8, from their sequential and random 2 MiB rates";
    let full = "16 MiB: the disks could do more; the servers' own limit is not in the documents";
    for (model, write, read) in [
        ("26", ["3957.30", "11302.19", "14970.40"], ["6987.58", "13915.36", "15193.71"]),
        ("24", ["3023.23", "7799.26", "11148.37"], ["4987.02", "9515.66", "13875.70"]),
    ] {
        for (index, block) in [1.0, 4.0, 16.0].into_iter().enumerate() {
            let evaluation = gss(model, block, 15);
            let (reason, band) = if index == 2 { (full, (1.0, 1.5)) } else { (shape, (0.7, 1.15)) };
            for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
                let verdict = Verdict::Measured(band.0, band.1, reason);
                let figure = format!("GSS {model}, {block} MiB blocks: {name}");
                group.row(figure, (printed[index], "MB/s"), mb(&evaluation, metric), verdict);
            }
        }
    }
    let ratio = mb(&gss("24", 4.0, 15), Write) / mb(&gss("26", 4.0, 15), Write);
    let disks = "four enclosures against six; 7,799 / 11,302 measured";
    group.row(
        "GSS 24 : GSS 26, write, 4 MiB",
        ("0.69", ""),
        ratio,
        Verdict::Measured(0.95, 1.0, disks),
    );
    group
}

fn ladder() -> Group {
    let mut group =
        Group::new("Numbers to know", "gpfs-performance, latency, bandwidth and IOPS tables");
    let library = strake_plan::library::Library::built_in();
    for (name, printed) in [
        ("l1-cache", "1"),
        ("l2-cache", "5"),
        ("mutex", "100"),
        ("memory", "100"),
        ("send-2k-verbs", "10,000"),
        ("send-2k-1gbps", "60,000"),
        ("read-1m-memory", "250,000"),
        ("read-1m-network", "5,000,000"),
        ("disk-seek", "10,000,000"),
        ("read-1m-disk", "20,000,000"),
        ("packet-around-the-world", "150,000,000"),
    ] {
        group.agrees(name, (printed, "ns"), library.latencies[name].value.value);
    }
    let disk = &library.disks["nl-sas-2tb"];
    group.agrees("NL-SAS sequential", ("100", "MB/s"), disk.stream_read.value.0 / MIB);
    group.agrees(
        "NL-SAS random 2 MB",
        ("75", "MB/s"),
        disk.random_2m.as_ref().unwrap().value.0 / MIB,
    );
    group.agrees("NL-SAS 4k random", ("100", "IOP/s"), disk.iops_read.value);
    group.agrees(
        "10k SAS 4k random",
        ("200", "IOP/s"),
        library.disks["sas-10k-300gb"].iops_read.value,
    );
    let ssd = &library.disks["ssd-200gb"];
    group.agrees("SSD sequential read", ("300", "MB/s"), ssd.stream_read.value.0 / MIB);
    group.agrees("SSD sequential write", ("200", "MB/s"), ssd.stream_write.value.0 / MIB);
    group.agrees("SSD 4k random reads", ("20,000", "IOP/s"), ssd.iops_read.value);
    group.agrees("SSD 4k random writes", ("4,000", "IOP/s"), ssd.iops_write.value);
    for (name, printed) in [("gbe", "100"), ("tbe", "1000"), ("ib-qdr", "4000"), ("ib-fdr", "5600")]
    {
        let rate = library.adapters[name].port_rate.value.0 / MIB;
        group.agrees(format!("{name}, one port"), (printed, "MB/s"), rate);
    }
    for (name, printed) in [("ib-fdr-gen2", "3000"), ("ib-fdr", "6000")] {
        let rate = library.adapters[name].slot_rate.as_ref().unwrap().value.0 / MIB;
        group.agrees(format!("slot of {name}"), (printed, "MB/s"), rate);
    }
    group
}
