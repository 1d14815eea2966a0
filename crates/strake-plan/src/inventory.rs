//! What a design is made of: disks, arrays, servers, ports and cables, rack units, racks, price.
//!
//! A building block stays in one rack, because its SAS cables are short. Tiers share racks.
//! Servers that stand apart fill racks of their own.

use crate::design::{System, Tier};
use crate::figure::Figure;
use crate::library::Sourced;
use crate::rack::{Run, pack};
use crate::unit::Unit;
use serde::Serialize;
use std::collections::BTreeSet;

/// Counts over all tiers.
#[derive(Clone, Debug, Serialize)]
pub struct Inventory {
    pub disks: Figure,
    /// Disks that fit in no whole array.
    pub disks_unused: Figure,
    pub arrays: Figure,
    pub enclosures: Figure,
    pub trays: Figure,
    pub servers: Figure,
    /// Network adapters' ports on the servers.
    pub lan_ports: Figure,
    /// Storage ports on servers (and what a switch adds), against those on enclosures.
    pub storage_ports_available: Figure,
    pub storage_ports_needed: Figure,
    pub cables: Figure,
    pub rack_units: Figure,
    /// Blocks that fit in one rack, tier by tier.
    pub blocks_per_rack: Vec<u64>,
    pub racks: Figure,
    /// Sum of the library's prices; absent as soon as one part has none.
    pub price: Option<Figure>,
    /// What one more block of each tier costs, where that is known.
    pub steps: Vec<(String, f64)>,
    /// Parts without a price, when at least one part has one.
    pub unpriced: Vec<String>,
    pub room: Room,
}

/// What the room must give and bear. Parts of which the library says nothing are not in it.
#[derive(Clone, Debug, Serialize)]
pub struct Room {
    pub power: Option<Figure>,
    pub heat: Option<Figure>,
    pub weight: Option<Figure>,
    /// Parts whose power, and whose weight, is unknown.
    pub without_power: Vec<String>,
    pub without_weight: Vec<String>,
}

impl Inventory {
    /// All figures.
    pub fn figures(&self) -> Vec<&Figure> {
        let mut all = vec![
            &self.disks,
            &self.disks_unused,
            &self.arrays,
            &self.enclosures,
            &self.trays,
            &self.servers,
            &self.lan_ports,
            &self.storage_ports_available,
            &self.storage_ports_needed,
            &self.cables,
            &self.rack_units,
            &self.racks,
        ];
        all.extend(&self.price);
        all.extend(&self.room.power);
        all.extend(&self.room.heat);
        all.extend(&self.room.weight);
        all
    }
}

/// Storage ports of one block: on the servers, and on the enclosures.
pub fn storage_ports(tier: &Tier) -> (u64, u64) {
    let needed = tier.storage.per_block * tier.storage.enclosure.host_ports.value;
    let available = tier.servers.as_ref().map_or(0, |servers| {
        let ports = servers.hba.map_or(0, |hba| hba.ports.value);
        servers.per_block * servers.hba_per_server * ports
    });
    (available, needed)
}

/// Enclosures of one block that stand in a rack. Bays and RAID adapters inside a server are part of
/// the server, and some models consist of several enclosures.
fn physical_enclosures(tier: &Tier) -> u64 {
    let enclosure = tier.storage.enclosure;
    match enclosure.inside_server() {
        true => 0,
        false => tier.storage.per_block * enclosure.housings(),
    }
}

/// Height of one block: its storage and its servers (with SAS switches).
pub fn block_units(tier: &Tier) -> (u64, u64) {
    let storage = &tier.storage;
    let tray = storage.tray.map_or(0, |tray| tray.rack_units.value * storage.trays);
    let enclosures = storage.per_block * (storage.enclosure.rack_units.value + tray);
    let servers = tier.servers.as_ref().map_or(0, |servers| {
        let switch = servers.switch.map_or(0, |s| s.rack_units.value * servers.switches_per_block);
        servers.per_block * servers.model.rack_units.value + switch
    });
    (enclosures, servers)
}

/// Counts everything.
pub fn inventory(system: &System) -> Inventory {
    let sum = |name: &str, unit, of: &dyn Fn(&Tier) -> u64| {
        let part = |tier: &Tier| {
            let per_block = Figure::design("per block", unit, of(tier) as f64);
            let blocks = Figure::design("blocks", Unit::Count, tier.blocks as f64);
            Figure::product(tier.name.clone(), unit, vec![blocks, per_block])
        };
        Figure::sum(name, unit, system.tiers.iter().map(part).collect())
    };
    let count = |name: &str, of: &dyn Fn(&Tier) -> u64| sum(name, Unit::Count, of);
    let servers = |tier: &Tier| tier.servers.as_ref().map_or(0, |servers| servers.per_block);
    let lan_ports = |tier: &Tier| {
        tier.servers.as_ref().map_or(0, |servers| {
            let ports = servers.lan.map_or(0, |lan| lan.ports.value);
            servers.per_block * servers.lan_per_server * ports
        })
    };
    let cables = |tier: &Tier| {
        let (available, needed) = storage_ports(tier);
        let switched = tier.servers.as_ref().is_some_and(|servers| servers.switch.is_some());
        // Through a switch every port has a cable of its own; else a cable joins two ports.
        let storage = if switched { available + needed } else { available.min(needed) };
        let trays = tier.storage.per_block * tier.storage.trays * 2;
        storage + trays + lan_ports(tier)
    };
    let (price, unpriced) = price(system);
    let (blocks_per_rack, racks) = racks(system);
    let step = |tier: &Tier| Some((tier.name.clone(), step_price(system, tier)?));
    Inventory {
        disks: count("disks", &|t| t.storage.disks_per_enclosure() * t.storage.per_block),
        disks_unused: count("disks in no array", &|t| {
            t.storage.disks_per_enclosure() * t.storage.per_block - t.storage.disks_in_use()
        }),
        arrays: count("arrays (LUNs)", &|t| t.storage.arrays_per_enclosure() * t.storage.per_block),
        enclosures: count("enclosures", &physical_enclosures),
        trays: count("expansion trays", &|t| t.storage.per_block * t.storage.trays),
        servers: count("servers", &servers),
        lan_ports: count("network ports", &lan_ports),
        storage_ports_available: count("storage ports on servers", &|t| storage_ports(t).0),
        storage_ports_needed: count("storage ports on enclosures", &|t| storage_ports(t).1),
        cables: count("cables", &cables),
        rack_units: sum("rack units", Unit::RackUnits, &|t| {
            let (storage, servers) = block_units(t);
            storage + servers
        }),
        blocks_per_rack,
        racks,
        price,
        steps: system.tiers.iter().filter_map(step).collect(),
        unpriced,
        room: room(system),
    }
}

/// Racks of storage (with its servers, unless they stand apart) and of servers apart.
pub(crate) fn rack_runs(system: &System) -> (Vec<Run>, Vec<Run>) {
    let room = system.rack.units.value.saturating_sub(system.reserve_units);
    let heights = |of: fn((u64, u64)) -> u64| -> Vec<(u64, u64)> {
        system.tiers.iter().map(|tier| (of(block_units(tier)), tier.blocks)).collect()
    };
    if system.servers_apart {
        (pack(&heights(|(storage, _)| storage), room), pack(&heights(|(_, servers)| servers), room))
    } else {
        (pack(&heights(|(storage, servers)| storage + servers), room), Vec::new())
    }
}

fn racks(system: &System) -> (Vec<u64>, Figure) {
    let units = &system.rack.units;
    let room = units.value.saturating_sub(system.reserve_units).max(1);
    let mut per_rack = Vec::new();
    let mut inputs = Vec::new();
    for tier in &system.tiers {
        let (storage, servers) = block_units(tier);
        let block = if system.servers_apart { storage } else { storage + servers };
        per_rack.push(room.checked_div(block).unwrap_or(tier.blocks));
        let (name, blocks) = (&tier.name, tier.blocks);
        let name = format!("height of each of {blocks} blocks of {name}");
        inputs.push(Figure::design(name, Unit::RackUnits, block as f64));
    }
    let height = units.value as f64;
    inputs.push(Figure::constant("height of a rack", Unit::RackUnits, height, &units.source));
    inputs.push(Figure::design("kept free", Unit::RackUnits, system.reserve_units as f64));
    let (storage, servers) = rack_runs(system);
    let racks: u64 = storage.iter().chain(&servers).map(|run| run.racks).sum();
    let rule = match system.servers_apart {
        true => "blocks stand whole and tiers share racks; servers in racks of their own",
        false => "blocks stand whole and tiers share racks",
    };
    (per_rack, Figure::formula("racks", Unit::Count, racks as f64, rule, inputs))
}

/// One kind of part: what it is called, how many there are, and what the library says of one.
struct Part<'a> {
    name: &'a str,
    count: u64,
    price: &'a Option<Sourced<f64>>,
    watts: &'a Option<Sourced<f64>>,
    kilograms: &'a Option<Sourced<f64>>,
}

/// Every part of the system that is bought, by tier. Clients and racks are not.
fn parts<'a>(system: &'a System) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    macro_rules! part {
        ($part:expr, $count:expr) => {{
            let (part, count) = ($part, $count);
            let (name, price) = (part.name.as_str(), &part.price);
            let (watts, kilograms) = (&part.watts, &part.kilograms);
            if count > 0 {
                parts.push(Part { name, count, price, watts, kilograms });
            }
        }};
    }
    for tier in &system.tiers {
        let (storage, blocks) = (&tier.storage, tier.blocks);
        let enclosures = blocks * storage.per_block;
        part!(storage.disk, enclosures * storage.disks_per_enclosure());
        part!(storage.enclosure, enclosures);
        if let Some(tray) = storage.tray {
            part!(tray, enclosures * storage.trays);
        }
        let Some(servers) = &tier.servers else { continue };
        let count = blocks * servers.per_block;
        part!(servers.model, count);
        if let Some(lan) = servers.lan {
            part!(lan, count * servers.lan_per_server);
        }
        if let Some(hba) = servers.hba {
            part!(hba, count * servers.hba_per_server);
        }
        if let Some(switch) = servers.switch {
            part!(switch, blocks * servers.switches_per_block);
        }
    }
    parts
}

/// The sum of one property over all parts that have it, and the names of those that do not.
fn total<'a>(
    parts: &[Part<'a>],
    (name, unit): (&str, Unit),
    of: impl Fn(&Part<'a>) -> &'a Option<Sourced<f64>>,
) -> (Option<Figure>, Vec<String>) {
    let without = parts.iter().filter(|part| of(part).is_none());
    let without: BTreeSet<String> = without.map(|part| part.name.to_string()).collect();
    let with: Vec<Figure> = parts
        .iter()
        .filter_map(|part| {
            let one = of(part).as_ref()?;
            let one = Figure::constant("one", unit, one.value, &one.source);
            let count = Figure::design("count", Unit::Count, part.count as f64);
            Some(Figure::product(part.name, unit, vec![count, one]))
        })
        .collect();
    let sum = (!with.is_empty()).then(|| Figure::sum(name, unit, with));
    (sum, without.into_iter().collect())
}

/// What one more block of a tier costs; none as soon as one of its parts has no price.
pub fn step_price(system: &System, tier: &Tier) -> Option<f64> {
    let mut one = System { tiers: vec![tier.clone()], ..system.clone() };
    one.tiers[0].blocks = 1;
    price(&one).0.map(|price| price.value)
}

/// The price of everything; none as soon as one part has none.
fn price(system: &System) -> (Option<Figure>, Vec<String>) {
    let (sum, unpriced) = total(&parts(system), ("price", Unit::Price), |part| part.price);
    match (sum, unpriced.is_empty()) {
        (None, _) => (None, Vec::new()),
        (sum, true) => (sum, Vec::new()),
        (Some(_), false) => (None, unpriced),
    }
}

/// BTU an hour of a watt.
const BTU_PER_HOUR: f64 = 3.412_141_63;

/// Power, the heat that it becomes, and weight; and the parts that are missing in each.
fn room(system: &System) -> Room {
    let parts = parts(system);
    let (power, without_power) = total(&parts, ("power", Unit::Watts), |part| part.watts);
    let (weight, without_weight) =
        total(&parts, ("weight", Unit::Kilograms), |part| part.kilograms);
    let heat = power.as_ref().map(|power| {
        let rule = "power * 3.412";
        let inputs = vec![power.clone()];
        Figure::formula("heat", Unit::BtuPerHour, power.value * BTU_PER_HOUR, rule, inputs)
    });
    Room { power, heat, weight, without_power, without_weight }
}
