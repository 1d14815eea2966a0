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
    group.row("create 10 GiB", ("3268199.54", "KB/s"), kb, Verdict::Measured(gated));
    let prefetch = "cold: the prefetch depth of one file does not fill the slot";
    group.row("read 10 GiB, cold", ("2330376.56", "KB/s"), kb, Verdict::Measured(prefetch));
    let cold = evaluation.tiers[0].cold_block.as_ref().unwrap().value * 1000.0;
    let disk = "10 ms seek + 1 MiB strip at 20 ms + 8 MiB over the adapter";
    group.row(
        "one cold 8 MiB block, time of the I/O",
        ("33.646", "ms"),
        cold,
        Verdict::Measured(disk),
    );
    let rate = 8.0 * 1024.0 / cold * 1000.0;
    group.row("one cold 8 MiB block", ("220322.52", "KB/s"), rate, Verdict::Measured(disk));
    let own = "the document's own arithmetic: the rate above / 8 MiB";
    group.not_modelled("operations per second of the create", ("398.95", "1/s"), own);
    group.row(
        "read of 64 MiB that the servers still cache",
        ("3286165.76", "KB/s"),
        kb,
        Verdict::Measured(gated),
    );
    let ramp = "eight blocks are too few to reach a steady prefetch; the planner has no model of its \
                beginning";
    group.not_modelled("read of 64 MiB, cold", ("533933.24", "KB/s"), ramp);
    group
}

fn ior() -> Group {
    let mut group = Group::new(
        "GSS 24 and GSS 26, 15 clients",
        "gpfs-performance, IOR by block size; disk counts are not in the documents",
    );
    let shape =
        "strip rate of the disks at block / 8, from their sequential and random 2 MiB rates";
    let slots = "the slots of three SAS adapters in each server carry what the disks could do more";
    let quick = "strips of 128 KiB took 6 ms each, less than the 7.9 ms of the model: the disks' \
                 queues shorten their ways, which the model has not";
    let full = "16 MiB: the planner lets all six SAS adapters carry alike; 3,470 MB/s for each of four \
                enclosures in both directions, with parity, says that their own cables gate, of \
                which the documents say nothing";
    let gss26 = "16 MiB: the servers' SAS slots gate; writes with their parity fill them, reads stay \
                 below them, and the documents do not say why";
    for (model, write, read) in [
        ("26", ["3957.30", "11302.19", "14970.40"], ["6987.58", "13915.36", "15193.71"]),
        ("24", ["3023.23", "7799.26", "11148.37"], ["4987.02", "9515.66", "13875.70"]),
    ] {
        for (index, block) in [1.0, 4.0, 16.0].into_iter().enumerate() {
            let evaluation = gss(model, block, 15);
            for (name, metric, printed) in [("write", Write, write), ("read", Read, read)] {
                let reason = match (index, model, metric) {
                    (0, _, Read) => quick,
                    (2, "26", Write) => slots,
                    (2, "26", _) => gss26,
                    (2, _, _) => full,
                    _ => shape,
                };
                let verdict = Verdict::Measured(reason);
                let figure = format!("GSS {model}, {block} MiB blocks: {name}");
                group.row(figure, (printed[index], "MB/s"), mb(&evaluation, metric), verdict);
            }
        }
    }
    let ratio = mb(&gss("24", 4.0, 15), Write) / mb(&gss("26", 4.0, 15), Write);
    let disks = "four enclosures against six; 7,799 / 11,302 measured";
    group.row("GSS 24 : GSS 26, write, 4 MiB", ("0.69", ""), ratio, Verdict::Measured(disks));
    group
}

fn ladder() -> Group {
    let mut group =
        Group::new("Numbers to know", "gpfs-performance, latency, bandwidth and IOPS tables");
    let library = strake_plan::library::Library::built_in();
    let held = "a constant of the library";
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
        group.input(name, (printed, "ns"), library.latencies[name].value.value, held);
    }
    let disk = &library.disks["nl-sas-2tb"];
    group.input("NL-SAS sequential", ("100", "MB/s"), disk.stream_read.value.0 / MIB, held);
    group.input(
        "NL-SAS random 2 MB",
        ("75", "MB/s"),
        disk.random_2m.as_ref().unwrap().value.0 / MIB,
        held,
    );
    group.input("NL-SAS 4k random", ("100", "IOP/s"), disk.iops_read.value, held);
    group.input(
        "10k SAS 4k random",
        ("200", "IOP/s"),
        library.disks["sas-10k-300gb"].iops_read.value,
        held,
    );
    let ssd = &library.disks["ssd-200gb"];
    group.input("SSD sequential read", ("300", "MB/s"), ssd.stream_read.value.0 / MIB, held);
    group.input("SSD sequential write", ("200", "MB/s"), ssd.stream_write.value.0 / MIB, held);
    group.input("SSD 4k random reads", ("20,000", "IOP/s"), ssd.iops_read.value, held);
    group.input("SSD 4k random writes", ("4,000", "IOP/s"), ssd.iops_write.value, held);
    for (name, printed) in [("gbe", "100"), ("tbe", "1000"), ("ib-qdr", "4000"), ("ib-fdr", "5600")]
    {
        let rate = library.adapters[name].port_rate.value.0 / MIB;
        group.input(format!("{name}, one port"), (printed, "MB/s"), rate, held);
    }
    for (name, printed) in [("ib-fdr-gen2", "3000"), ("ib-fdr", "6000")] {
        let rate = library.adapters[name].slot_rate.as_ref().unwrap().value.0 / MIB;
        group.input(format!("slot of {name}"), (printed, "MB/s"), rate, held);
    }
    group
}
