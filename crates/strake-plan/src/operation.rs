//! What a small operation costs: processors at servers and clients, and time from end to end.
//!
//! Rates of small transfers end at three things that bytes do not know: cores that run the code,
//! clients that wait for one answer before they ask again, and disks. The first two are here.

use crate::design::{Clients, Tier};
use crate::figure::Figure;
use crate::library::{Adapter, Fabric, Parity, Server, Sourced, WriteCache};
use crate::stage::Metric;
use crate::unit::{MIB, Unit};

/// From this rate on a network is no longer what the ladder's Gigabit rung describes.
const GIGABIT_MOST: f64 = 500.0 * MIB;

fn seconds(name: &str, sourced: &Sourced<f64>) -> Figure {
    Figure::constant(name, Unit::Seconds, sourced.value, &sourced.source)
}

fn cores(model: &Server, nodes: f64) -> Figure {
    let cores = &model.cores;
    let each = Figure::constant("cores", Unit::Count, cores.value as f64, &cores.source);
    let nodes = Figure::design("nodes", Unit::Count, nodes);
    Figure::product("cores", Unit::Count, vec![nodes, each])
}

/// What the cores of the servers carry; streams cost them little beside their bus.
pub(crate) fn server_processors(tier: &Tier, metric: Metric, servers: f64) -> Option<Figure> {
    let model = tier.servers.as_ref()?.model;
    let each = match metric {
        Metric::IopsRead => 1.0,
        // Where the client computes the redundancy, servers see each strip's operation.
        Metric::IopsWrite if tier.storage.parity == Parity::Client => {
            tier.storage.code.small_write_operations() as f64
        }
        Metric::IopsWrite => 1.0,
        Metric::Write | Metric::Read => return None,
    };
    let cost = seconds("core's time of one operation", tier.filesystem.server_operation.as_ref()?);
    let cores = cores(model, servers);
    let value = cores.value / (cost.value * each);
    let rule = format!("cores / (time * {each} operations at servers)");
    Some(Figure::formula("server processors", metric.unit(), value, rule, vec![cores, cost]))
}

/// What the cores of `nodes` clients carry.
pub(crate) fn client_processors(
    tier: &Tier,
    metric: Metric,
    model: &Server,
    nodes: f64,
) -> Option<Figure> {
    let (fs, code) = (tier.filesystem, tier.storage.code);
    let name = "client processors";
    let cores = cores(model, nodes);
    let cost = match metric {
        Metric::IopsWrite | Metric::IopsRead => &fs.client_operation,
        Metric::Write => &fs.client_mib_write,
        Metric::Read => &fs.client_mib_read,
    };
    let (unit, cost) = (metric.unit(), cost.as_ref()?);
    match metric {
        Metric::IopsWrite | Metric::IopsRead => {
            let cost = seconds("core's time of one operation", cost);
            let value = cores.value / cost.value;
            Some(Figure::formula(name, unit, value, "cores / time", vec![cores, cost]))
        }
        Metric::Write | Metric::Read => {
            let computes = metric == Metric::Write && tier.storage.parity == Parity::Client;
            let strips = if computes { code.width() as f64 / code.data as f64 } else { 1.0 };
            let cost = seconds("core's time of a MiB", cost);
            let value = cores.value * MIB / (cost.value * strips);
            let rule = format!("cores * 1M / (time * {strips} bytes for each of data)");
            Some(Figure::formula(name, unit, value, rule, vec![cores, cost]))
        }
    }
}

/// What clients reach that wait for answers: operations on their way / time of one.
pub(crate) fn waiting(clients: &Clients, tier: &Tier, metric: Metric) -> Option<Figure> {
    let writes = match metric {
        Metric::IopsWrite => true,
        Metric::IopsRead => false,
        Metric::Write | Metric::Read => return None,
    };
    let lan = clients.lan.or_else(|| tier.servers.as_ref().and_then(|servers| servers.lan));
    let time = latency(tier, lan, writes);
    let count = (clients.count * clients.queue_depth) as f64;
    let depth = Figure::design("clients x operations on their way", Unit::Count, count);
    let value = count / time.value;
    let rule = "operations on their way / time of one";
    Some(Figure::formula("clients' waiting", metric.unit(), value, rule, vec![depth, time]))
}

/// Time of one 4 KiB operation when nothing else waits.
pub fn latency(tier: &Tier, lan: Option<&Adapter>, writes: bool) -> Figure {
    let (storage, fs) = (&tier.storage, tier.filesystem);
    let code = storage.code;
    // A write into a parity code reads what it will replace first.
    let reads_first = writes && !code.mirrored && code.redundant > 0;
    let cached = storage.parity == Parity::Controller
        && storage.ceiling.is_some_and(|row| row.write_cache != WriteCache::Off);
    let trips = if reads_first && storage.parity == Parity::Client { 2.0 } else { 1.0 };
    let mut parts = Vec::new();
    parts.extend(fs.client_operation.as_ref().map(|cost| seconds("client", cost)));
    if let Some(lan) = lan {
        let way = Figure::design("ways over the network", Unit::Count, 2.0 * trips);
        let sends = vec![way, one_way(tier, lan)];
        parts.push(Figure::product("network", Unit::Seconds, sends));
    }
    if let Some(cost) = &fs.server_operation {
        let count = Figure::design("operations at a server in turn", Unit::Count, trips);
        let of = vec![count, seconds("one operation", cost)];
        parts.push(Figure::product("server", Unit::Seconds, of));
    }
    if writes && cached {
        parts.extend(rung(tier, "controller-cache"));
    } else {
        if !writes || reads_first {
            parts.push(disk(tier, false));
        }
        if writes {
            parts.push(disk(tier, true));
        }
    }
    let name = if writes { "one 4 KiB write" } else { "one 4 KiB read" };
    Figure::sum(name, Unit::Seconds, parts)
}

fn rung(tier: &Tier, name: &str) -> Option<Figure> {
    let rung = tier.library.latencies.get(name)?;
    Some(Figure::constant(name, Unit::Seconds, rung.value.value / 1e9, &rung.value.source))
}

fn one_way(tier: &Tier, lan: &Adapter) -> Figure {
    if let Some(own) = &lan.latency {
        return seconds("one way", own);
    }
    let name = match lan.fabric {
        Fabric::Infiniband => "send-2k-verbs",
        _ if lan.port_rate.value.0 < GIGABIT_MOST => "send-2k-1gbps",
        _ => "send-2k-tcp",
    };
    rung(tier, name).unwrap_or_else(|| Figure::design("one way", Unit::Seconds, 0.0))
}

fn disk(tier: &Tier, writes: bool) -> Figure {
    let disk = tier.storage.disk;
    let (own, iops, flash) = match writes {
        true => (&disk.latency_write, &disk.iops_write, "flash-write"),
        false => (&disk.latency_read, &disk.iops_read, "flash-read"),
    };
    let name = if writes { "disk, write" } else { "disk, read" };
    if let Some(own) = own {
        return seconds(name, own);
    }
    let alone = |iops: &Sourced<f64>| {
        let rate = Figure::constant("IOPS", Unit::OperationsPerSecond, iops.value, &iops.source);
        Figure::formula(name, Unit::Seconds, 1.0 / iops.value, "1 / IOPS", vec![rate])
    };
    match rung(tier, flash) {
        Some(flash) if !disk.rotates() => Figure { name: name.into(), ..flash },
        _ => alone(iops),
    }
}
