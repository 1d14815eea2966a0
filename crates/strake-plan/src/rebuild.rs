//! How long a rebuild takes: the smallest of what the disks, the rebuilding nodes, the network and
//! the storage links carry, within the share of their time that a rebuild may have.
//!
//! A RAID controller reads the other disks of one array and writes one replacement. With
//! declustered codes every other disk takes part. Whoever rebuilds reads N strips for each strip
//! that it writes. Where the redundancy is the client's, these strips cross the network.

use crate::design::{Servers, System, Tier};
use crate::evaluate::disk_capacity;
use crate::figure::Figure;
use crate::library::Parity;
use crate::loss::unit_domain;
use crate::stage::{adapter, disk_stream, rate};
use crate::unit::Unit;

/// The time until what one full disk held is redundant again.
pub fn rebuild_disk(system: &System, tier: &Tier) -> Figure {
    let capacity = disk_capacity(tier, Unit::RawBytes);
    let others = disks_in_scope(tier).saturating_sub(1).max(1) as f64;
    time("rebuild of one full disk", capacity, rates(system, tier, others, 0))
}

/// The same for a server or an enclosure that takes its disks along. None where there are no
/// others or too few are left for a stripe.
pub fn rebuild_unit(system: &System, tier: &Tier) -> Option<Figure> {
    let (domain, _) = unit_domain(tier)?;
    if domain.count < 2 || domain.survives == 0 {
        return None;
    }
    let disks = disks_in_scope(tier) as f64;
    let lost = disks / domain.count as f64;
    let name = format!("disks of one {}", domain.name);
    let capacity = Figure::product(
        name.clone(),
        Unit::RawBytes,
        vec![Figure::design(name, Unit::Count, lost), disk_capacity(tier, Unit::RawBytes)],
    );
    let servers_lost = u64::from(domain.name == "server");
    let rates = rates(system, tier, disks - lost, servers_lost);
    Some(time(&format!("rebuild of one full {}", domain.name), capacity, rates))
}

/// Disks over which a stripe may lie.
pub fn disks_in_scope(tier: &Tier) -> u64 {
    let storage = &tier.storage;
    match storage.parity {
        Parity::Controller => storage.code.width(),
        Parity::Server => storage.disks_in_use(),
        Parity::Client => storage.disks_in_use() * tier.blocks,
    }
}

fn time(name: &str, capacity: Figure, rates: Vec<Figure>) -> Figure {
    let rate = Figure::minimum("rebuilt per second", Unit::BytesPerSecond, rates);
    let value = capacity.value / rate.value;
    Figure::formula(name, Unit::Seconds, value, "capacity / rate", vec![capacity, rate])
}

/// What each stage rebuilds in a second.
fn rates(system: &System, tier: &Tier, others: f64, servers_lost: u64) -> Vec<Figure> {
    let storage = &tier.storage;
    let unit = Unit::BytesPerSecond;
    let share = Figure::design("share for the rebuild", Unit::Ratio, storage.rebuild_share);
    let part = |name: &str, whole: Figure, each: f64, rule: &str| {
        let value = whole.value * share.value / each;
        Figure::formula(name, unit, value, rule, vec![whole, share.clone()])
    };
    let (read, write) = (disk_stream(storage, false), disk_stream(storage, true));
    if storage.parity == Parity::Controller {
        return vec![
            part("the replacement disk", write, 1.0, "rate * share"),
            part("each disk that is read", read, 1.0, "rate * share"),
        ];
    }
    let data = if storage.code.mirrored { 1.0 } else { storage.code.data as f64 };
    let each = data / read.value + 1.0 / write.value;
    let mut all = vec![Figure::formula(
        "the other disks",
        unit,
        others * share.value / each,
        format!("disks * share / ({data} reads / read rate + 1 / write rate)"),
        vec![Figure::design("other disks", Unit::Count, others), read, write, share.clone()],
    )];
    let Some(servers) = &tier.servers else { return all };
    let count = match storage.parity {
        Parity::Client => (tier.blocks * servers.per_block).saturating_sub(servers_lost).max(1),
        _ => servers.per_block,
    } as f64;
    let nodes = system.filesystem.rebuild_nodes.as_ref().map_or(count, |n| n.value as f64);
    let nodes = Figure::design("nodes that rebuild", Unit::Count, nodes.clamp(1.0, count));
    let moved = format!("rate * share / ({data} read + 1 written)");
    if let Some(lan) = network(servers)
        && storage.parity == Parity::Client
        && count > 1.0
    {
        let of = |name: &str, of: Figure| Figure::product(name, unit, vec![of, lan.clone()]);
        let into = of("network of the nodes that rebuild", nodes.clone());
        let rule = format!("rate * share / {data} strips that come in for each");
        all.push(part("the nodes that rebuild", into, data, &rule));
        let servers = Figure::design("servers", Unit::Count, count);
        let out = of("network of the servers", servers);
        all.push(part("the servers' network", out, data + 1.0, &moved));
    }
    if let Some(hba) = servers.hba {
        let adapters = count * servers.hba_per_server as f64;
        let adapters = Figure::design("storage adapters", Unit::Count, adapters);
        let links =
            Figure::product("storage links", unit, vec![adapters, adapter(servers.model, hba)]);
        all.push(part("the storage links", links, data + 1.0, &moved));
    }
    if let Some(bus) = &servers.model.bus_rate {
        let mut inputs = vec![nodes, rate("bus in theory", bus)];
        if let Some(of_it) = &servers.model.bus_share {
            let (value, source) = (of_it.value, &of_it.source);
            inputs.push(Figure::constant("share to count on", Unit::Ratio, value, source));
        }
        let bus = Figure::product("bus of the nodes that rebuild", unit, inputs);
        all.push(part("the bus of the nodes that rebuild", bus, data + 1.0, &moved));
    }
    all
}

fn network(servers: &Servers) -> Option<Figure> {
    let lan = servers.lan?;
    let count = Figure::design("adapters per server", Unit::Count, servers.lan_per_server as f64);
    Some(Figure::product(
        "one server",
        Unit::BytesPerSecond,
        vec![count, adapter(servers.model, lan)],
    ))
}
