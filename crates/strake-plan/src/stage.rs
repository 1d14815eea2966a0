//! The chain of stages that a byte passes in one building block, and what each can carry.
//!
//! From the platter outwards: disks, controllers, storage links, server bus, server path,
//! network, clients. The rate of a block is the smallest of them. Pure: a function of the
//! resolved design and of what is lost.

use crate::design::{Clients, Servers, Storage, Tier};
use crate::figure::Figure;
use crate::library::{Adapter, Parity, Server, Sourced, WriteCache};
use crate::operation::{client_processors, server_processors, waiting};
use crate::unit::{KIB, MIB, Rate, Unit};
use serde::Serialize;

/// The four rates of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Streaming write, bytes per second.
    Write,
    /// Streaming read, bytes per second.
    Read,
    /// Random 4 KiB writes per second.
    IopsWrite,
    /// Random 4 KiB reads per second.
    IopsRead,
}

impl Metric {
    /// All four, in the order of every table.
    pub const ALL: [Metric; 4] = [Metric::Write, Metric::Read, Metric::IopsWrite, Metric::IopsRead];

    /// The name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Metric::Write => "streaming write",
            Metric::Read => "streaming read",
            Metric::IopsWrite => "IOPS write",
            Metric::IopsRead => "IOPS read",
        }
    }

    /// What it counts.
    pub fn unit(self) -> Unit {
        match self {
            Metric::Write | Metric::Read => Unit::BytesPerSecond,
            Metric::IopsWrite | Metric::IopsRead => Unit::OperationsPerSecond,
        }
    }

    fn writes(self) -> bool {
        matches!(self, Metric::Write | Metric::IopsWrite)
    }

    fn streams(self) -> bool {
        matches!(self, Metric::Write | Metric::Read)
    }
}

/// What of one block is gone or busy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    pub disks: f64,
    /// Enclosures' worth of ports and controllers: a half is one of two RAID controllers.
    pub enclosures: f64,
    pub servers: f64,
    /// Share of the disks' time that a rebuild takes.
    pub busy: f64,
}

/// The size of a small transfer.
const TRANSFER_BYTES: f64 = 4.0 * KIB;

/// What each stage of one block of `tier` carries. Never empty: disks always gate.
pub fn block_stages(tier: &Tier, metric: Metric, lost: Lost) -> Vec<Figure> {
    let storage = &tier.storage;
    let mut stages = vec![disks(storage, metric, lost)];
    stages.extend(controllers(storage, metric, lost));
    if let Some(servers) = &tier.servers {
        let count = servers.per_block as f64 - lost.servers;
        stages.extend(links(storage, servers, metric, count, lost));
        stages.extend(bus(storage, servers, metric, count));
        stages.extend(path("server software path", servers.model, metric, count));
        let lan = servers.lan.map(|lan| (lan, servers.lan_per_server));
        stages.extend(receive(servers, metric, count));
        stages.extend(
            lan.map(|lan| network("server network", storage, metric, (servers.model, count), lan)),
        );
        stages.extend(server_processors(tier, metric, count));
        if servers.lan.is_none() {
            // The servers themselves are the clients.
            stages.extend(client_processors(tier, metric, servers.model, count));
        }
    }
    replicated(tier, metric, stages)
}

/// Each copy that the file system keeps passes every stage of a write.
fn replicated(tier: &Tier, metric: Metric, stages: Vec<Figure>) -> Vec<Figure> {
    if tier.replicas == 1 || !metric.writes() {
        return stages;
    }
    let copies = tier.replicas as f64;
    let of = |stage: Figure| {
        let (name, value) = (stage.name.clone(), stage.value / copies);
        let copies = count("copies that the file system keeps", copies);
        Figure::formula(name, stage.unit, value, "rate / copies", vec![stage, copies])
    };
    stages.into_iter().map(of).collect()
}

/// What all clients together carry.
pub fn client_stages(clients: &Clients, tier: &Tier, metric: Metric) -> Vec<Figure> {
    let (count, storage) = (clients.count as f64, &tier.storage);
    let mut stages = Vec::new();
    stages.extend(path("client software path", clients.model, metric, count));
    let lan = clients.lan.map(|lan| (lan, clients.lan_per_client));
    let nodes = (clients.model, count);
    stages.extend(lan.map(|lan| network("client network", storage, metric, nodes, lan)));
    stages.extend(client_processors(tier, metric, clients.model, count));
    stages.extend(waiting(clients, tier, metric));
    replicated(tier, metric, stages)
}

/// The small sourced constants all become figures the same way.
pub fn rate(name: &str, sourced: &Sourced<Rate>) -> Figure {
    Figure::constant(name, Unit::BytesPerSecond, sourced.value.0, &sourced.source)
}

fn number(name: &str, unit: Unit, sourced: &Sourced<f64>) -> Figure {
    Figure::constant(name, unit, sourced.value, &sourced.source)
}

fn count(name: &str, value: f64) -> Figure {
    Figure::design(name, Unit::Count, value)
}

/// Rate of one disk when it moves strips of the given size at random places.
///
/// A disk with heads positions before each strip. Solid state does not, but it completes only so
/// many operations a second, however small they are. A disk with heads has that limit as well
/// where nobody sorts what waits for it.
pub fn disk_stream(storage: &Storage, writes: bool) -> Figure {
    let disk = storage.disk;
    let (stream, iops) = match writes {
        true => (&disk.stream_write, &disk.iops_write),
        false => (&disk.stream_read, &disk.iops_read),
    };
    let stream = rate("one disk, sequential", stream);
    let iops = number("one disk, random 4 KiB", Unit::OperationsPerSecond, iops);
    let unit = Unit::BytesPerSecond;
    let mut strip = Figure::design("strip (block / data disks)", Unit::Bytes, storage.segment);
    if let Some(request) = storage.read_request.filter(|_| !writes) {
        let name = "largest request of the file system's read-ahead";
        let request = Figure::constant(name, Unit::Bytes, request.value.0, &request.source);
        strip = Figure::minimum("request to one disk", Unit::Bytes, vec![strip, request]);
    }
    let size = strip.value;
    let slowest = if writes { waits_for_slowest(storage) } else { None };
    let wait = slowest.as_ref().map_or(0.0, |wait| wait.value);
    let moved = |positioning: f64| size / (positioning + wait + size / stream.value);
    let operations = Figure::formula(
        "one disk, as many strips as operations",
        unit,
        iops.value * size,
        "IOPS * strip",
        vec![iops.clone(), strip.clone()],
    );
    if let Some(random) = &disk.random_2m {
        let two_mib = 2.0 * MIB;
        let positioning = two_mib / random.value.0 - two_mib / disk.stream_read.value.0;
        let rule = "strip / (positioning + wait + strip / sequential), positioning = 2M / random rate - 2M / sequential";
        let random = rate("one disk, random 2 MiB", random);
        let mut inputs = vec![strip, stream.clone(), random];
        inputs.extend(slowest);
        let moved =
            Figure::formula("one disk, strip by strip", unit, moved(positioning), rule, inputs);
        return match in_order(storage, writes) {
            true => Figure::minimum("one disk, strip by strip", unit, vec![moved, operations]),
            false => moved,
        };
    }
    if disk.rotating {
        let positioning = (1.0 / iops.value - TRANSFER_BYTES / stream.value).max(0.0);
        let rule = "strip / (positioning + wait + strip / sequential), positioning = 1 / IOPS - 4K / sequential";
        let mut inputs = vec![strip, stream.clone(), iops];
        inputs.extend(slowest);
        return Figure::formula("one disk, strip by strip", unit, moved(positioning), rule, inputs);
    }
    Figure::minimum("one disk, strip by strip", unit, vec![stream, operations])
}

/// Whether a disk gets its strips in the order in which they were asked for. A RAID controller
/// without a write cache hands them on as they come. What its cache has gathered, and what waits
/// in the queues of servers that reach the disks themselves, is sorted.
fn in_order(storage: &Storage, writes: bool) -> bool {
    storage.parity == Parity::Controller && !(writes && gathers_writes(storage))
}

fn gathers_writes(storage: &Storage) -> bool {
    storage.ceiling.is_none_or(|row| row.write_cache != WriteCache::Off)
}

/// Without a write cache a stripe is written when the slowest of its disks has turned to its place:
/// n turns that begin anywhere end after n / (n + 1) of a turn, where one ends after a half.
fn waits_for_slowest(storage: &Storage) -> Option<Figure> {
    let rpm = storage.disk.rpm.as_ref().filter(|_| !gathers_writes(storage))?;
    let width = storage.code.width() as f64;
    let value = 60.0 / rpm.value * (width / (width + 1.0) - 0.5);
    let rule = "a turn * (n / (n + 1) - 1/2): the slowest of the n disks of an array";
    let rpm = Figure::constant("turns a minute", Unit::Count, rpm.value, &rpm.source);
    let inputs = vec![rpm, count("disks of an array", width)];
    Some(Figure::formula("wait for the slowest disk", Unit::Seconds, value, rule, inputs))
}

fn disks(storage: &Storage, metric: Metric, lost: Lost) -> Figure {
    let left = (storage.disks_in_use() as f64 - lost.disks).max(0.0);
    let mut disks = count("disks", left);
    if lost.busy > 0.0 {
        let rule = "disks * (1 - share of their time that the rebuild takes)";
        let share = Figure::design("share for the rebuild", Unit::Ratio, lost.busy);
        let left = left * (1.0 - lost.busy);
        disks = Figure::formula("disks", Unit::Count, left, rule, vec![disks, share]);
    }
    if let Some(figure) = profile(storage, metric, &disks) {
        return figure;
    }
    let code = storage.code;
    let unit = metric.unit();
    match metric {
        Metric::Write => {
            let share = code.data as f64 / code.width() as f64;
            let share =
                Figure::constant("data share of the code", Unit::Ratio, share, &code.source);
            Figure::product("disks", unit, vec![disks, share, disk_stream(storage, true)])
        }
        Metric::Read => Figure::product("disks", unit, vec![disks, disk_stream(storage, false)]),
        Metric::IopsWrite => {
            let operations = code.small_write_operations() as f64;
            let share = Figure::formula(
                "small writes per disk operation",
                Unit::Ratio,
                1.0 / operations,
                format!("1 / {operations} disk operations behind a small write with {}", code.name),
                Vec::new(),
            );
            let one = number("one disk, random 4 KiB writes", unit, &storage.disk.iops_write);
            Figure::product("disks", unit, vec![disks, one, share])
        }
        Metric::IopsRead => {
            let one = number("one disk, random 4 KiB reads", unit, &storage.disk.iops_read);
            let mut inputs = vec![disks, one];
            inputs.extend(degraded_reads(storage, lost));
            Figure::product("disks", unit, inputs)
        }
    }
}

/// A small read of a lost strip reads the data strips' number of others instead.
fn degraded_reads(storage: &Storage, lost: Lost) -> Option<Figure> {
    let code = storage.code;
    if lost.disks == 0.0 || code.mirrored {
        return None;
    }
    let share = (lost.disks / storage.disks_in_use() as f64).min(1.0);
    let data = code.data as f64;
    Some(Figure::formula(
        "reads per disk operation",
        Unit::Ratio,
        1.0 / (1.0 - share + share * data),
        "1 / (share of strips there + share lost * data strips)",
        vec![
            Figure::design("share of strips lost", Unit::Ratio, share),
            count("data strips", data),
        ],
    ))
}

/// The figure a document prints for such disks in this enclosure.
fn profile(storage: &Storage, metric: Metric, disks: &Figure) -> Option<Figure> {
    let profile = storage.profile()?;
    let name = format!("printed for {} disks", profile.per_disks);
    let printed = match metric {
        Metric::Write => rate(&name, profile.stream_write.as_ref()?),
        Metric::Read => rate(&name, profile.stream_read.as_ref()?),
        Metric::IopsWrite => number(&name, metric.unit(), profile.iops_write.as_ref()?),
        Metric::IopsRead => number(&name, metric.unit(), profile.iops_read.as_ref()?),
    };
    Some(per_disks(metric.unit(), disks, profile.per_disks, printed))
}

/// IOPS with good locality, where a document prints them; per block.
pub fn local_iops(storage: &Storage, writes: bool) -> Option<Figure> {
    let profile = storage.profile()?;
    let sourced = if writes { &profile.iops_write_local } else { &profile.iops_read_local };
    let name = format!("printed for {} disks, good locality", profile.per_disks);
    let printed = number(&name, Unit::OperationsPerSecond, sourced.as_ref()?);
    let disks = count("disks", storage.disks_in_use() as f64);
    Some(per_disks(Unit::OperationsPerSecond, &disks, profile.per_disks, printed))
}

fn per_disks(unit: Unit, disks: &Figure, per: u64, printed: Figure) -> Figure {
    let share = Figure::formula(
        format!("disks / {per}"),
        Unit::Ratio,
        disks.value / per as f64,
        format!("disks / {per}"),
        vec![disks.clone()],
    );
    Figure::product("disks", unit, vec![share, printed])
}

fn controllers(storage: &Storage, metric: Metric, lost: Lost) -> Option<Figure> {
    let enclosure = storage.enclosure;
    let unit = metric.unit();
    let iops = match metric {
        Metric::Write | Metric::IopsWrite => &enclosure.iops_write,
        Metric::Read | Metric::IopsRead => &enclosure.iops_read,
    };
    let iops = iops
        .as_ref()
        .map(|iops| number("operations of one enclosure", Unit::OperationsPerSecond, iops));
    let one = match metric {
        Metric::IopsWrite | Metric::IopsRead => iops?,
        Metric::Write | Metric::Read => {
            let row = storage.ceiling?;
            let ceiling = if metric.writes() { &row.write } else { &row.read };
            let mut limits = vec![rate("one enclosure", ceiling)];
            // The controllers handle a block as one operation.
            limits.extend(iops.map(|iops| {
                let block = Figure::design("block", Unit::Bytes, storage.block_size);
                Figure::product("operations of one enclosure", unit, vec![iops, block])
            }));
            Figure::minimum("one enclosure", unit, limits)
        }
    };
    let enclosures = count("enclosures", storage.per_block as f64 - lost.enclosures);
    Some(Figure::product("controllers", unit, vec![enclosures, one]))
}

/// Turns a byte rate into 4 KiB transfers where transfers are asked for.
fn in_metric(metric: Metric, bytes: Figure) -> Figure {
    if metric.streams() {
        return bytes;
    }
    let name = bytes.name.clone();
    let value = bytes.value / TRANSFER_BYTES;
    Figure::formula(name, metric.unit(), value, "byte rate / 4 KiB", vec![bytes])
}

fn links(
    storage: &Storage,
    servers: &Servers,
    metric: Metric,
    server_count: f64,
    lost: Lost,
) -> Vec<Figure> {
    let unit = Unit::BytesPerSecond;
    let mut stages = Vec::new();
    let enclosure = storage.enclosure;
    // RAID controllers compute the redundancy beyond these links; else it crosses them.
    let crossings = match storage.parity {
        Parity::Controller => 1.0,
        Parity::Server | Parity::Client => expansion(storage, metric),
    };
    let data = (crossings != 1.0).then(|| {
        let rule =
            format!("1 / {} bytes to the disks for each", crate::unit::trimmed(crossings, 2));
        Figure::formula("data per byte on the link", Unit::Ratio, 1.0 / crossings, rule, Vec::new())
    });
    if let Some(port) = &enclosure.host_port_rate
        && enclosure.host_ports.value > 0
    {
        let ports = &enclosure.host_ports;
        let mut inputs = vec![
            count("enclosures", storage.per_block as f64 - lost.enclosures),
            Figure::constant("host ports", Unit::Count, ports.value as f64, &ports.source),
            rate("one port", port),
        ];
        inputs.extend(data.clone());
        stages.push(Figure::product("enclosure ports", unit, inputs));
    }
    if let Some(hba) = servers.hba {
        let mut inputs = vec![
            count("servers", server_count),
            count("storage adapters per server", servers.hba_per_server as f64),
            adapter(servers.model, hba),
        ];
        inputs.extend(data);
        stages.push(Figure::product("server storage ports", unit, inputs));
    }
    stages.into_iter().map(|stage| in_metric(metric, stage)).collect()
}

/// Bytes to or from the disks for each byte of user data.
fn expansion(storage: &Storage, metric: Metric) -> f64 {
    let code = storage.code;
    match metric {
        Metric::Write => code.width() as f64 / code.data as f64,
        Metric::IopsWrite => code.small_write_operations() as f64,
        Metric::Read | Metric::IopsRead => 1.0,
    }
}

/// How often a byte of user data crosses the bus of its server.
///
/// It comes from the network and goes to the disks, so both count. Where the server or the client
/// computes the redundancy, parity crosses as well; behind RAID controllers it does not.
pub fn bus_crossings(storage: &Storage, servers: &Servers, metric: Metric) -> f64 {
    let expansion = expansion(storage, metric);
    let (network, disks) = match storage.parity {
        Parity::Controller => (1.0, 1.0),
        Parity::Server => (1.0, expansion),
        Parity::Client => (expansion, expansion),
    };
    if servers.lan.is_some() { network + disks } else { disks }
}

fn bus(storage: &Storage, servers: &Servers, metric: Metric, server_count: f64) -> Option<Figure> {
    let rate_ = rate("bus in theory", servers.model.bus_rate.as_ref()?);
    let mut inputs = vec![count("servers", server_count), rate_];
    if let Some(share) = &servers.model.bus_share {
        inputs.push(number("share to count on", Unit::Ratio, share));
    }
    let crossings = bus_crossings(storage, servers, metric);
    inputs.push(Figure::formula(
        "data per byte on the bus",
        Unit::Ratio,
        1.0 / crossings,
        format!(
            "1 / {} crossings (network and disks, with the redundancy computed this side of them)",
            crate::unit::trimmed(crossings, 2)
        ),
        Vec::new(),
    ));
    Some(in_metric(metric, Figure::product("server bus", Unit::BytesPerSecond, inputs)))
}

fn path(name: &str, model: &Server, metric: Metric, nodes: f64) -> Option<Figure> {
    // A path is measured with streams only; it says nothing about small transfers.
    let sourced = match metric {
        Metric::Write => model.path_write.as_ref()?,
        Metric::Read => model.path_read.as_ref()?,
        Metric::IopsWrite | Metric::IopsRead => return None,
    };
    let inputs = vec![count("nodes", nodes), rate("one node", sourced)];
    Some(Figure::product(name, Unit::BytesPerSecond, inputs))
}

/// What the file system's path from the network takes in on all servers, where it was measured.
fn receive(servers: &Servers, metric: Metric, count_: f64) -> Option<Figure> {
    let sourced = servers.model.receive.as_ref()?;
    if metric != Metric::Write || servers.lan.is_none() {
        return None;
    }
    let inputs = vec![count("servers", count_), rate("one server", sourced)];
    Some(Figure::product("server receive path", Unit::BytesPerSecond, inputs))
}

/// What applications get through one adapter in a slot of `model`.
pub fn adapter(model: &Server, adapter: &Adapter) -> Figure {
    let ports = &adapter.ports;
    let wire = Figure::product(
        "wire",
        Unit::BytesPerSecond,
        vec![
            Figure::constant("ports", Unit::Count, ports.value as f64, &ports.source),
            rate("one port", &adapter.port_rate),
        ],
    );
    let mut limits = vec![wire];
    limits.extend(adapter.slot_rate.as_ref().map(|slot| rate("PCI slot it needs", slot)));
    limits.extend(model.slot_rate.as_ref().map(|slot| rate("PCI slot it sits in", slot)));
    limits.extend(adapter.app_rate.as_ref().map(|app| rate("what applications measure", app)));
    Figure::minimum(format!("one {}", adapter.name), Unit::BytesPerSecond, limits)
}

fn network(
    name: &str,
    storage: &Storage,
    metric: Metric,
    (model, nodes): (&Server, f64),
    (lan, per_node): (&Adapter, u64),
) -> Figure {
    let per_node = count("adapters per node", per_node as f64);
    let mut inputs = vec![count("nodes", nodes), per_node, adapter(model, lan)];
    // A client that computes the redundancy sends it over the same wire.
    if metric.writes() && storage.parity == Parity::Client {
        let code = storage.code;
        let share = if metric.streams() {
            code.data as f64 / code.width() as f64
        } else {
            1.0 / (1 + code.redundant) as f64
        };
        let what = "share of the wire that is data, not parity";
        inputs.push(Figure::constant(what, Unit::Ratio, share, &code.source));
    }
    in_metric(metric, Figure::product(name, Unit::BytesPerSecond, inputs))
}
