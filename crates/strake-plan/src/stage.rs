//! The chain of stages that a byte passes in one building block, and what each can carry.
//!
//! From the platter outwards: disks, controllers, storage links, server bus, server path,
//! network, clients. The rate of a block is the smallest of them. Pure: a function of the
//! resolved design and of what is lost.

use crate::design::{Clients, Servers, Storage, Tier};
use crate::figure::Figure;
use crate::library::{Adapter, Parity, Sourced};
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

/// What of one block is gone. Halves of an enclosure are its RAID controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    pub disks: f64,
    pub enclosures: f64,
    pub servers: f64,
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
        stages.extend(bus(servers, metric, count));
        stages.extend(path("server software path", servers.model, metric, count));
        let lan = servers.lan.map(|lan| (lan, servers.lan_per_server));
        stages.extend(lan.map(|lan| network("server network", storage, metric, count, lan)));
    }
    stages
}

/// What all clients together carry.
pub fn client_stages(clients: &Clients, storage: &Storage, metric: Metric) -> Vec<Figure> {
    let count = clients.count as f64;
    let mut stages = Vec::new();
    stages.extend(path("client software path", clients.model, metric, count));
    let lan = clients.lan.map(|lan| (lan, clients.lan_per_client));
    stages.extend(lan.map(|lan| network("client network", storage, metric, count, lan)));
    stages
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

/// Rate of one disk when it moves strips of the given size at random places: the positioning
/// time follows from the rate at random 2 MiB.
pub fn disk_stream(storage: &Storage, writes: bool) -> Figure {
    let disk = storage.disk;
    let sourced = if writes { &disk.stream_write } else { &disk.stream_read };
    let stream = rate("one disk, sequential", sourced);
    let Some(random) = &disk.random_2m else {
        return stream;
    };
    let two_mib = 2.0 * MIB;
    let positioning = two_mib / random.value.0 - two_mib / disk.stream_read.value.0;
    let strip = storage.segment;
    Figure::formula(
        "one disk, strip by strip",
        Unit::BytesPerSecond,
        strip / (positioning + strip / stream.value),
        "strip / (positioning + strip / sequential), positioning = 2M / random rate - 2M / sequential",
        vec![
            Figure::design("strip (block / data disks)", Unit::Bytes, strip),
            stream,
            rate("one disk, random 2 MiB", random),
        ],
    )
}

fn disks(storage: &Storage, metric: Metric, lost: Lost) -> Figure {
    let disks = count(
        "disks",
        (storage.disks_in_use() as f64
            - lost.disks
            - lost.enclosures.floor() * storage.disks_per_enclosure() as f64)
            .max(0.0),
    );
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
            Figure::product("disks", unit, vec![disks, one])
        }
    }
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
    let one = match metric {
        Metric::Write => rate("one enclosure", &storage.ceiling?.write),
        Metric::Read => rate("one enclosure", &storage.ceiling?.read),
        Metric::IopsWrite => number("one enclosure", metric.unit(), enclosure.iops_write.as_ref()?),
        Metric::IopsRead => number("one enclosure", metric.unit(), enclosure.iops_read.as_ref()?),
    };
    let enclosures = count("enclosures", storage.per_block as f64 - lost.enclosures);
    Some(Figure::product("controllers", metric.unit(), vec![enclosures, one]))
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
    if let Some(port) = &enclosure.host_port_rate
        && enclosure.host_ports.value > 0
    {
        let ports = &enclosure.host_ports;
        let inputs = vec![
            count("enclosures", storage.per_block as f64 - lost.enclosures),
            Figure::constant("host ports", Unit::Count, ports.value as f64, &ports.source),
            rate("one port", port),
        ];
        stages.push(Figure::product("enclosure ports", unit, inputs));
    }
    if let Some(hba) = servers.hba {
        let inputs = vec![
            count("servers", server_count),
            count("storage adapters per server", servers.hba_per_server as f64),
            adapter(hba),
        ];
        stages.push(Figure::product("server storage ports", unit, inputs));
    }
    stages.into_iter().map(|stage| in_metric(metric, stage)).collect()
}

fn bus(servers: &Servers, metric: Metric, server_count: f64) -> Option<Figure> {
    let rate_ = rate("bus in theory", servers.model.bus_rate.as_ref()?);
    let mut inputs = vec![count("servers", server_count), rate_];
    if let Some(share) = &servers.model.bus_share {
        inputs.push(number("share to count on", Unit::Ratio, share));
    }
    Some(in_metric(metric, Figure::product("server bus", Unit::BytesPerSecond, inputs)))
}

fn path(name: &str, model: &crate::library::Server, metric: Metric, nodes: f64) -> Option<Figure> {
    // A path is measured with streams only; it says nothing about small transfers.
    let sourced = match metric {
        Metric::Write => model.path_write.as_ref()?,
        Metric::Read => model.path_read.as_ref()?,
        Metric::IopsWrite | Metric::IopsRead => return None,
    };
    let inputs = vec![count("nodes", nodes), rate("one node", sourced)];
    Some(Figure::product(name, Unit::BytesPerSecond, inputs))
}

/// What applications get through one adapter.
pub fn adapter(adapter: &Adapter) -> Figure {
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
    limits.extend(adapter.slot_rate.as_ref().map(|slot| rate("PCI slot", slot)));
    limits.extend(adapter.app_rate.as_ref().map(|app| rate("what applications measure", app)));
    Figure::minimum(format!("one {}", adapter.name), Unit::BytesPerSecond, limits)
}

fn network(
    name: &str,
    storage: &Storage,
    metric: Metric,
    nodes: f64,
    (lan, per_node): (&Adapter, u64),
) -> Figure {
    let mut inputs =
        vec![count("nodes", nodes), count("adapters per node", per_node as f64), adapter(lan)];
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
