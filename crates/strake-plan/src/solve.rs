//! From requirements to designs: a search over the library.
//!
//! Every combination that the library's hints allow (enclosure, trays, disk, code, server,
//! adapters, enclosures and servers per block) is evaluated as one building block; the number of
//! blocks follows from the requirement that asks for most of them. Pure and exhaustive: the
//! space is some thousand blocks. Answers are designs that `evaluate` confirms.

use crate::design::{
    Design, Holds, RackChoice, ServerChoice, StorageChoice, System, TierChoice, Workload,
};
use crate::error::PlanError;
use crate::evaluate::{Evaluation, evaluate};
use crate::library::{Adapter, AdapterKind, Disk, Enclosure, Library, Parity};
use crate::rule::warnings;
use crate::stage::{Lost, Metric, block_stages};
use crate::unit::{TERA, TIB, Unit, trimmed};
use serde::Serialize;
use std::collections::BTreeSet;

/// What to keep small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The sum of the library's prices.
    Cost,
    /// Racks, then rack units.
    Racks,
    /// Servers, then racks.
    Servers,
}

/// What is asked for. Absent requirements are not looked at.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Bytes.
    pub usable: Option<f64>,
    /// Bytes of raw capacity.
    pub raw: Option<f64>,
    /// Bytes per second.
    pub write: Option<f64>,
    pub read: Option<f64>,
    /// 4 KiB operations per second.
    pub iops_write: Option<f64>,
    pub iops_read: Option<f64>,
    /// Network adapter of the servers, by its name or the end of it (`qdr`).
    pub network: Option<String>,
    /// Disks by name or class; all when empty.
    pub disks: Vec<String>,
    /// Enclosures by name; all when empty.
    pub enclosures: Vec<String>,
    pub racks_max: Option<u64>,
    /// Rack of the library.
    pub rack: Option<String>,
}

/// One design that satisfies everything.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub design: Design,
    /// `balanced`, or which part carries more than the others can use.
    pub kind: String,
    /// Why so many blocks, and what gates.
    pub why: Vec<String>,
    pub evaluation: Evaluation,
}

/// A requirement and what one block gives of it.
struct Demand {
    name: &'static str,
    unit: Unit,
    wanted: f64,
    per_block: f64,
}

/// Searches the library; the best `count` answers, each of another construction.
pub fn solve(
    library: &Library,
    wanted: &Wanted,
    objective: Objective,
    count: usize,
) -> Result<Vec<Answer>, PlanError> {
    wanted.check()?;
    let mut found: Vec<(Vec<u64>, Design)> = Vec::new();
    let mut unranked = None;
    for tier in blocks(library, wanted)? {
        let mut design = wanted.design(tier);
        let Ok(system) = design.resolve(library) else {
            // The hints combine more than fits; what does not resolve cannot be built.
            continue;
        };
        let Some(blocks) = blocks_needed(&system, wanted) else { continue };
        design.tier[0].blocks = blocks;
        let system = design.resolve(library)?;
        if warnings(&system).iter().any(|warning| warning.broken) {
            continue;
        }
        match rank(&system, objective) {
            Ok((key, racks)) if wanted.racks_max.is_none_or(|most| racks <= most) => {
                found.push((key, design));
            }
            Ok(_) => {}
            // Where some parts have prices, designs of others cannot be ranked by cost.
            Err(error) => unranked = Some(error),
        }
    }
    if let (true, Some(error)) = (found.is_empty(), unranked) {
        return Err(error);
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let mut answers = Vec::new();
    let mut seen = BTreeSet::new();
    for (_, design) in found {
        // The best of each enclosure and kind of disk, with trays and without: variants of one
        // construction would crowd out what the buyer wants to compare.
        let storage = &design.tier[0].storage;
        let class = library.disks[&storage.disk].class.clone();
        if seen.insert((storage.enclosure.clone(), class, storage.trays > 0)) {
            answers.push(answer(library, wanted, design)?);
        }
        if answers.len() == count {
            break;
        }
    }
    if answers.is_empty() {
        return Err(PlanError::Measure(
            "no combination of the library satisfies this; lower a requirement, allow more racks, \
             or choose another --network"
                .into(),
        ));
    }
    Ok(answers)
}

impl Wanted {
    fn check(&self) -> Result<(), PlanError> {
        let wishes =
            [self.usable, self.raw, self.write, self.read, self.iops_write, self.iops_read];
        if wishes.iter().all(Option::is_none) {
            return Err(PlanError::Usage(
                "say what the system must do: at least one of --usable, --raw, --write, --read, \
                 --iops-write, --iops-read"
                    .into(),
            ));
        }
        if wishes.iter().flatten().any(|wish| *wish <= 0.0 || !wish.is_finite()) {
            return Err(PlanError::Usage("requirements must be above 0".into()));
        }
        Ok(())
    }

    fn workload(&self) -> Workload {
        let streams = self.write.is_some() || self.read.is_some();
        if (self.iops_write.is_some() || self.iops_read.is_some()) && !streams {
            Workload::Iops
        } else {
            Workload::Streaming
        }
    }

    fn design(&self, tier: TierChoice) -> Design {
        let model = self.rack.clone().unwrap_or_else(|| RackChoice::default().model);
        Design {
            title: String::new(),
            notes: None,
            filesystem: None,
            rack: RackChoice { model, ..RackChoice::default() },
            clients: None,
            tier: vec![tier],
            mix: Vec::new(),
        }
    }

    fn demands(&self, system: &System) -> Vec<Demand> {
        let tier = &system.tiers[0];
        let of_block = |metric| {
            let stages = block_stages(tier, metric, Lost::default());
            stages.iter().map(|stage| stage.value).fold(f64::INFINITY, f64::min)
        };
        let one = crate::evaluate::capacity_of_block(tier);
        let rows: [(&'static str, Unit, Option<f64>, f64); 6] = [
            ("usable capacity", Unit::Bytes, self.usable, one.1),
            ("raw capacity", Unit::RawBytes, self.raw, one.0),
            (Metric::Write.label(), Unit::BytesPerSecond, self.write, of_block(Metric::Write)),
            (Metric::Read.label(), Unit::BytesPerSecond, self.read, of_block(Metric::Read)),
            (
                Metric::IopsWrite.label(),
                Unit::OperationsPerSecond,
                self.iops_write,
                of_block(Metric::IopsWrite),
            ),
            (
                Metric::IopsRead.label(),
                Unit::OperationsPerSecond,
                self.iops_read,
                of_block(Metric::IopsRead),
            ),
        ];
        let demand = |(name, unit, wanted, per_block): (_, _, Option<f64>, _)| {
            wanted.map(|wanted| Demand { name, unit, wanted, per_block })
        };
        rows.into_iter().filter_map(demand).collect()
    }
}

/// Blocks that satisfy every requirement, and hold a stripe on enough servers.
fn blocks_needed(system: &System, wanted: &Wanted) -> Option<u64> {
    let mut blocks = 1;
    for demand in wanted.demands(system) {
        // A whole number of blocks must survive the rounding of the division.
        let needed = (demand.wanted / demand.per_block * (1.0 - 1e-12)).ceil();
        if !needed.is_finite() || needed > 100_000.0 {
            return None;
        }
        blocks = blocks.max(needed as u64);
    }
    let tier = &system.tiers[0];
    if tier.storage.parity == Parity::Client {
        let code = tier.storage.code;
        if code.tolerates() == 0 {
            return None;
        }
        let servers = tier.servers.as_ref().map_or(1, |servers| servers.per_block);
        blocks = blocks.max(code.width().div_ceil(code.tolerates()).div_ceil(servers));
    }
    Some(blocks)
}

/// The order of answers, and the racks.
fn rank(system: &System, objective: Objective) -> Result<(Vec<u64>, u64), PlanError> {
    let inventory = crate::inventory::inventory(system);
    let whole = |figure: &crate::figure::Figure| figure.value as u64;
    let racks = whole(&inventory.racks);
    let space = [racks, whole(&inventory.rack_units)];
    let servers = whole(&inventory.servers);
    let disks = whole(&inventory.disks);
    let key = match objective {
        Objective::Racks => vec![space[0], space[1], servers, disks],
        Objective::Servers => vec![servers, space[0], space[1], disks],
        Objective::Cost => {
            let price = inventory.price.ok_or_else(|| {
                let missing = inventory.unpriced.join(", ");
                PlanError::Usage(format!(
                    "--objective cost needs prices; add price = {{ value = …, source = … }} to the \
                     library entries{} (see --library)",
                    if missing.is_empty() { String::new() } else { format!(" {missing}") }
                ))
            })?;
            vec![price.value as u64, space[0], space[1], servers]
        }
    };
    Ok((key, racks))
}

/// All blocks that the library's hints allow.
fn blocks(library: &Library, wanted: &Wanted) -> Result<Vec<TierChoice>, PlanError> {
    for name in &wanted.enclosures {
        Library::find(&library.enclosures, "enclosure", name)?;
    }
    let networks = networks(library, wanted)?;
    let mut all = Vec::new();
    for enclosure in library.enclosures.values() {
        if !wanted.enclosures.is_empty() && !wanted.enclosures.contains(&enclosure.name) {
            continue;
        }
        for storage in storages(library, wanted, enclosure)? {
            for servers in fronts(library, enclosure, storage.per_block, &networks) {
                all.push(TierChoice {
                    name: "data".into(),
                    blocks: 1,
                    workload: wanted.workload(),
                    holds: Holds::Both,
                    replicas: 1,
                    failure_group: None,
                    storage: storage.clone(),
                    servers: Some(servers),
                });
            }
        }
    }
    Ok(all)
}

fn networks<'a>(library: &'a Library, wanted: &Wanted) -> Result<Vec<&'a Adapter>, PlanError> {
    let lan = library.adapters.values().filter(|adapter| adapter.kind == AdapterKind::Lan);
    let Some(name) = &wanted.network else {
        return Ok(lan.filter(|adapter| adapter.for_servers).collect());
    };
    let all: Vec<&Adapter> = lan.collect();
    if let Some(exact) = all.iter().find(|adapter| adapter.name == *name) {
        return Ok(vec![exact]);
    }
    let tail = format!("-{name}");
    let close: Vec<&Adapter> = all
        .iter()
        .filter(|adapter| adapter.for_servers && adapter.name.ends_with(&tail))
        .copied()
        .collect();
    if close.is_empty() {
        let known = all.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(PlanError::Unknown { kind: "network adapter", name: name.clone(), known });
    }
    Ok(close)
}

fn storages(
    library: &Library,
    wanted: &Wanted,
    enclosure: &Enclosure,
) -> Result<Vec<StorageChoice>, PlanError> {
    for name in &wanted.disks {
        let known = library.disks.values().any(|disk| disk.name == *name || disk.class == *name);
        if !known {
            Library::find(&library.disks, "disk", name)?;
        }
    }
    let fits = |disk: &&Disk| {
        let asked = wanted.disks.is_empty()
            || wanted.disks.iter().any(|name| disk.name == *name || disk.class == *name);
        asked && enclosure.disk_classes.contains(&disk.class)
    };
    let cabled = enclosure.servers_each.is_none();
    let mut all = Vec::new();
    for disk in library.disks.values().filter(fits) {
        for code in &enclosure.codes {
            // One parity strip on near-line disks is what the rules warn about.
            let tolerates = Library::find(&library.codes, "code", code)?.tolerates();
            if disk.class.starts_with("nl-sas") && tolerates < 2 {
                continue;
            }
            for trays in 0..=enclosure.trays_max.as_ref().map_or(0, |most| most.value) {
                for per_block in 1..=if cabled { 4 } else { 1 } {
                    all.push(StorageChoice {
                        enclosure: enclosure.name.clone(),
                        per_block,
                        trays,
                        disk: disk.name.clone(),
                        disks_per_tray: None,
                        code: code.clone(),
                        block_size: None,
                        segment: None,
                        write_cache: None,
                        parity: None,
                        spares: if enclosure.parity == Parity::Server { 2 } else { 0 },
                        rebuild_share: None,
                        strips_share_disks: false,
                    });
                }
            }
        }
    }
    Ok(all)
}

/// Servers with their adapters that can stand before so many enclosures.
fn fronts(
    library: &Library,
    enclosure: &Enclosure,
    per_block: u64,
    networks: &[&Adapter],
) -> Vec<ServerChoice> {
    let counts = match &enclosure.servers_each {
        Some(each) => each.value * per_block..=each.value * per_block,
        None => 2..=4,
    };
    let mut all = Vec::new();
    for name in &enclosure.servers {
        let Some(model) = library.servers.get(name) else { continue };
        let slots = model.adapters_max.as_ref().map_or(u64::MAX, |most| most.value);
        for per_block_servers in counts.clone() {
            for lan in networks {
                for lan_per_server in 1..=slots.min(4) {
                    let ports = enclosure.host_ports.value * per_block;
                    let free = slots - lan_per_server;
                    let Some(hba) = storage_adapters(library, ports, per_block_servers, free)
                    else {
                        continue;
                    };
                    all.push(ServerChoice {
                        model: name.clone(),
                        per_block: per_block_servers,
                        lan: Some(lan.name.clone()),
                        lan_per_server,
                        hba: hba.0,
                        hba_per_server: hba.1,
                        switch: None,
                        switches_per_block: 1,
                    });
                }
            }
        }
    }
    all
}

/// The fewest SAS adapters per server that reach every port of the enclosures.
fn storage_adapters(
    library: &Library,
    ports: u64,
    servers: u64,
    free: u64,
) -> Option<(Option<String>, u64)> {
    if ports == 0 {
        return Some((None, 1));
    }
    let fits = |adapter: &&Adapter| adapter.kind == AdapterKind::Sas && adapter.for_servers;
    let adapters = library.adapters.values().filter(fits);
    adapters
        .filter_map(|adapter| {
            let count = ports.div_ceil(servers * adapter.ports.value);
            let rate = adapter.port_rate.value.0 as u64;
            (count <= free).then_some((count, adapter.ports.value, rate, adapter.name.clone()))
        })
        .min()
        .map(|(count, _, _, name)| (Some(name), count))
}

fn answer(library: &Library, wanted: &Wanted, mut design: Design) -> Result<Answer, PlanError> {
    let tier = &design.tier[0];
    let trays = match tier.storage.trays {
        0 => String::new(),
        trays => format!(" + {trays} trays"),
    };
    let servers = tier.servers.as_ref().map_or(String::new(), |servers| {
        let lan = servers.lan.as_deref().unwrap_or("no network");
        format!(
            " and {} x {} ({} x {lan})",
            servers.per_block, servers.model, servers.lan_per_server
        )
    });
    design.title = format!(
        "{} {} of {} x {}{trays} with {}, {}{servers}",
        tier.blocks,
        if tier.blocks == 1 { "block" } else { "blocks" },
        tier.storage.per_block,
        tier.storage.enclosure,
        tier.storage.disk,
        tier.storage.code,
    );
    let system = design.resolve(library)?;
    let evaluation = evaluate(&system);
    let mut one = design.clone();
    one.tier[0].blocks = 1;
    let one_block = one.resolve(library)?;
    let why = why(wanted, &one_block, &evaluation);
    Ok(Answer { kind: kind(&evaluation), why, design, evaluation })
}

/// Balance as the documents use the word: no part could carry much more than the others pass on.
fn kind(evaluation: &Evaluation) -> String {
    let read = evaluation.tiers[0].rate(Metric::Read);
    let parts = ["disks", "controllers", "server network"];
    let most = read.balance.iter().filter(|stage| parts.contains(&stage.stage.as_str()));
    match most.max_by(|a, b| a.times.total_cmp(&b.times)) {
        Some(stage) if stage.times <= 1.6 => "balanced".into(),
        Some(stage) if stage.stage == "disks" && read.bottleneck == "controllers" => {
            "capacity-optimised".into()
        }
        Some(stage) => {
            format!("{} oversized x{}", stage.stage, trimmed(stage.times, 1))
        }
        None => "balanced".into(),
    }
}

fn why(wanted: &Wanted, one_block: &System, evaluation: &Evaluation) -> Vec<String> {
    let tier = &evaluation.tiers[0];
    let blocks = tier.blocks as f64;
    let mut lines: Vec<String> = wanted
        .demands(one_block)
        .iter()
        .map(|demand| {
            let given = demand.per_block * blocks;
            format!(
                "{} {} for {} asked ({} blocks' worth)",
                demand.name,
                demand.unit.show(given),
                demand.unit.show(demand.wanted),
                trimmed(demand.wanted / demand.per_block, 2)
            )
        })
        .collect();
    for rate in &tier.rates {
        lines.push(format!("{} is gated by {}", rate.metric.label(), rate.gates()));
    }
    lines
}

/// A capacity in the unit that requirements are written in, for messages.
pub fn requirement(text: &str, raw: bool) -> Result<f64, String> {
    let parsed = crate::unit::parse_capacity(text, if raw { 1000.0 } else { 1024.0 })?;
    let (unit, name) = if raw { (TERA, "TB") } else { (TIB, "TB") };
    if parsed / unit > 1e9 {
        return Err(format!("'{text}' is more than 10^9 {name}"));
    }
    Ok(parsed)
}

#[cfg(test)]
#[path = "solve_test.rs"]
mod solve_test;
