//! Where the parts of a design stand in its racks, unit by unit.
//!
//! Blocks fill a rack from the bottom, enclosures below their servers, as the heaviest parts
//! belong there. Pure; agrees with the number of racks that `inventory` counts.

use crate::design::{System, Tier};
use crate::inventory::rack_runs;
use crate::rack::Run;
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
    let (storage, servers) = rack_runs(system);
    let apart = system.servers_apart;
    let mut racks = draw(system, &storage, most, &|rack, tier| {
        add_storage(rack, tier);
        if !apart {
            add_servers(rack, tier);
        }
    });
    let mut of_servers = draw(system, &servers, most, &add_servers);
    for rack in &mut of_servers {
        rack.title = format!("{}, servers", rack.title);
    }
    racks.extend(of_servers);
    racks.truncate(most);
    racks
}

fn draw(
    system: &System,
    runs: &[Run],
    most: usize,
    add: &dyn Fn(&mut RackView, &Tier),
) -> Vec<RackView> {
    let units = system.rack.units.value;
    let room = units.saturating_sub(system.reserve_units).max(1);
    let mut racks = Vec::new();
    for run in runs {
        let title = |blocks: u64, tier: usize| match blocks {
            1 => format!("{}: 1 block", system.tiers[tier].name),
            _ => format!("{}: {blocks} blocks", system.tiers[tier].name),
        };
        if let [(tier, 0)] = run.blocks[..] {
            // Blocks that had to be cut; beyond what is drawn nothing needs a place.
            let tier = &system.tiers[tier];
            let mut all = RackView { title: tier.name.clone(), units, places: Vec::new() };
            for _ in 0..tier.blocks.min(most as u64) {
                add(&mut all, tier);
            }
            cut(all, room, &mut racks);
            continue;
        }
        let titles: Vec<String> = run.blocks.iter().map(|(t, blocks)| title(*blocks, *t)).collect();
        let mut rack = RackView { title: titles.join(", "), units, places: Vec::new() };
        for (tier, blocks) in &run.blocks {
            (0..*blocks).for_each(|_| add(&mut rack, &system.tiers[*tier]));
        }
        for _ in 0..run.racks.min(most as u64) {
            racks.push(rack.clone());
        }
    }
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
