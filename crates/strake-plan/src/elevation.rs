//! Where the parts of a design stand in its racks, unit by unit.
//!
//! Blocks fill a rack from the bottom, enclosures below their servers, as the heaviest parts
//! belong there. Pure; agrees with the number of racks that `inventory` counts.

use crate::design::{System, Tier};
use crate::inventory::block_units;
use serde::Serialize;

/// What stands in a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    Enclosure,
    Tray,
    Server,
    Switch,
}

/// One part at its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    pub part: Part,
    pub label: String,
    /// Lowest unit, from 1 at the bottom.
    pub unit: u64,
    pub units: u64,
}

/// One rack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RackView {
    pub title: String,
    pub units: u64,
    pub places: Vec<Place>,
}

impl RackView {
    fn used(&self) -> u64 {
        self.places.iter().map(|place| place.units).sum()
    }

    fn add(&mut self, part: Part, label: &str, units: u64, count: u64) {
        for _ in 0..if units == 0 { 0 } else { count } {
            let unit = self.used() + 1;
            self.places.push(Place { part, label: label.into(), unit, units });
        }
    }
}

/// Every rack of the system, at most `most` of them. A block higher than a rack is drawn cut
/// into parts, as it would have to be built.
pub fn elevation(system: &System, most: usize) -> Vec<RackView> {
    let units = system.rack.units.value;
    let room = units.saturating_sub(system.reserve_units).max(1);
    let mut racks = Vec::new();
    for tier in &system.tiers {
        let (storage, servers) = block_units(tier);
        let height = if system.servers_apart { storage } else { storage + servers };
        let per_rack = room.checked_div(height).unwrap_or(tier.blocks).max(1);
        let new = |title: String| RackView { title, units, places: Vec::new() };
        let mut block = 0;
        while block < tier.blocks && racks.len() < most {
            let last = (block + per_rack).min(tier.blocks);
            let first = block + 1;
            let which = match last - block {
                1 => format!("block {first}"),
                _ => format!("blocks {first} to {last}"),
            };
            let mut rack = new(format!("{}: {which}", tier.name));
            for _ in (block..last).filter(|_| height > 0) {
                add_storage(&mut rack, tier);
                if !system.servers_apart {
                    add_servers(&mut rack, tier);
                }
            }
            block = last;
            cut(rack, room, &mut racks);
        }
        if system.servers_apart {
            let mut rack = new(format!("{}: servers", tier.name));
            // Beyond what is drawn nothing needs a place.
            let drawn = most as u64 * room / servers.max(1) + 1;
            (0..tier.blocks.min(drawn)).for_each(|_| add_servers(&mut rack, tier));
            cut(rack, room, &mut racks);
        }
    }
    racks.truncate(most);
    racks
}

fn add_storage(rack: &mut RackView, tier: &Tier) {
    let storage = &tier.storage;
    for _ in 0..storage.per_block {
        let enclosure = storage.enclosure;
        rack.add(Part::Enclosure, &enclosure.name, enclosure.rack_units.value, 1);
        if let Some(tray) = storage.tray {
            rack.add(Part::Tray, &tray.name, tray.rack_units.value, storage.trays);
        }
    }
}

fn add_servers(rack: &mut RackView, tier: &Tier) {
    let Some(servers) = &tier.servers else { return };
    if let Some(switch) = servers.switch {
        let count = servers.switches_per_block;
        rack.add(Part::Switch, &switch.name, switch.rack_units.value, count);
    }
    let model = servers.model;
    rack.add(Part::Server, &model.name, model.rack_units.value, servers.per_block);
}

/// Moves what does not fit into further racks.
fn cut(rack: RackView, room: u64, racks: &mut Vec<RackView>) {
    let mut current = RackView { places: Vec::new(), ..rack.clone() };
    for place in rack.places {
        if current.used() + place.units > room && !current.places.is_empty() {
            let next = RackView { places: Vec::new(), ..current.clone() };
            racks.push(std::mem::replace(&mut current, next));
        }
        current.add(place.part, &place.label, place.units, 1);
    }
    if !current.places.is_empty() {
        racks.push(current);
    }
}
