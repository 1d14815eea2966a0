//! Evaluation of a design: capacity, rates, what gates them, what is left after a loss.
//!
//! Pure: a function of the resolved design. A file system stripes over all its arrays, so the
//! blocks of a tier add up; a loss in one block is given with two bounds: what is left if the
//! other blocks go on at their own pace, and what is left if every stripe waits for the slowest
//! block.

use crate::design::{Holds, System, Tier};
use crate::figure::Figure;
use crate::inventory::{Inventory, inventory};
use crate::library::{Adapter, Parity, Sourced};
use crate::loss::{LossEvaluation, losses};
use crate::mix::{MixEvaluation, mixes};
use crate::operation::latency;
use crate::rebuild::{rebuild_disk, rebuild_unit};
use crate::reliability::{Reliability, reliability};
use crate::rule::{Warning, warnings};
use crate::stage::{Lost, Metric, adapter, block_stages, client_stages, local_iops};
use crate::unit::{MIB, Unit};
use serde::Serialize;

/// Everything `plan evaluate` says.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// The design's title.
    pub title: String,
    pub tiers: Vec<TierEvaluation>,
    /// Sums over the tiers.
    pub raw: Figure,
    pub usable: Figure,
    /// What the file system takes of `usable` for metadata.
    pub metadata: Figure,
    pub inventory: Inventory,
    /// The design's mixes of operations.
    pub mixes: Vec<MixEvaluation>,
    pub warnings: Vec<Warning>,
}

/// One tier.
#[derive(Clone, Debug, Serialize)]
pub struct TierEvaluation {
    pub name: String,
    /// Blocks of this tier.
    pub blocks: u64,
    pub raw: Figure,
    pub usable: Figure,
    /// Usable capacity of one array (LUN); none where redundancy is declustered.
    pub lun: Option<Figure>,
    pub rates: Vec<RateEvaluation>,
    /// Upper bounds with good locality, write then read, where a document prints them.
    pub local_iops: Vec<Figure>,
    /// Streaming write and read per processor core of the clients, if the design has clients.
    pub per_core: Vec<Figure>,
    pub losses: Vec<LossEvaluation>,
    /// Time until what one full disk held is redundant again.
    pub rebuild: Figure,
    /// The same for a server or an enclosure that takes its disks along, where others are left.
    pub rebuild_unit: Option<Figure>,
    /// Time to read one block that no cache holds.
    pub cold_block: Option<Figure>,
    /// Time of one 4 KiB read and write when nothing else waits.
    pub latency: Vec<Figure>,
    /// How likely data is lost or offline; none where the library knows no rates of failure.
    pub reliability: Option<Reliability>,
}

/// One rate of a tier and its balance.
#[derive(Clone, Debug, Serialize)]
pub struct RateEvaluation {
    pub metric: Metric,
    pub total: Figure,
    /// The stage that gates.
    pub bottleneck: String,
    /// Every stage and how many times the bottleneck it carries.
    pub balance: Vec<StageBalance>,
}

/// How much a stage is oversized.
#[derive(Clone, Debug, Serialize)]
pub struct StageBalance {
    pub stage: String,
    /// What this stage carries in the whole tier.
    pub capacity: f64,
    /// `capacity` / the rate of the tier; 1 gates.
    pub times: f64,
}

/// A stage this close to the narrowest gates together with it.
pub(crate) const TIE: f64 = 1.0 + 1e-9;

impl RateEvaluation {
    /// Every stage that gates, in words.
    pub fn gates(&self) -> String {
        let gates = self.balance.iter().filter(|stage| stage.times <= TIE);
        gates.map(|stage| stage.stage.as_str()).collect::<Vec<_>>().join(" and ")
    }

    /// The stages that carry more than is asked of them, and how much, in words.
    pub fn oversized(&self) -> String {
        let over = self.balance.iter().filter(|stage| stage.times > TIE);
        let over = over.map(|stage| format!("{} x{:.2}", stage.stage, stage.times));
        over.collect::<Vec<_>>().join(", ")
    }
}

impl Evaluation {
    /// Every figure's derivation holds.
    pub fn check(&self) {
        for tier in &self.tiers {
            tier.figures().into_iter().for_each(Figure::check);
            for loss in &tier.losses {
                loss.at_least.iter().chain(&loss.at_most).for_each(Figure::check);
            }
        }
        [&self.raw, &self.usable, &self.metadata].into_iter().for_each(Figure::check);
        self.inventory.figures().into_iter().for_each(Figure::check);
        self.mixes.iter().for_each(|mix| mix.most.check());
    }

    /// Whether a tier does not keep what its code promises.
    pub fn broken(&self) -> bool {
        self.warnings.iter().any(|warning| warning.broken)
    }

    /// A rate summed over the tiers; tiers are separate pools used side by side.
    pub fn rate(&self, metric: Metric) -> f64 {
        self.tiers.iter().map(|tier| tier.rate(metric).total.value).sum()
    }
}

impl TierEvaluation {
    /// One of the four rates.
    pub fn rate(&self, metric: Metric) -> &RateEvaluation {
        let found = self.rates.iter().find(|rate| rate.metric == metric);
        found.expect("invariant: a tier has all four rates")
    }

    /// All figures, in the order in which they are explained.
    pub fn figures(&self) -> Vec<&Figure> {
        let mut all = vec![&self.raw, &self.usable];
        all.extend(&self.lun);
        all.extend(self.rates.iter().map(|rate| &rate.total));
        all.extend(&self.local_iops);
        all.extend(&self.per_core);
        all.push(&self.rebuild);
        all.extend(&self.rebuild_unit);
        all.extend(&self.cold_block);
        all.extend(&self.latency);
        all.extend(self.reliability.iter().flat_map(Reliability::figures));
        all
    }
}

/// Evaluates a design.
pub fn evaluate(system: &System) -> Evaluation {
    let tiers: Vec<TierEvaluation> =
        system.tiers.iter().map(|tier| evaluate_tier(system, tier)).collect();
    let sum = |name: &str, unit, pick: fn(&TierEvaluation) -> &Figure| {
        let parts =
            tiers.iter().map(|tier| Figure { name: tier.name.clone(), ..pick(tier).clone() });
        Figure::sum(name, unit, parts.collect())
    };
    let raw = sum("raw capacity", Unit::RawBytes, |tier| &tier.raw);
    // Tiers of metadata alone hold no files.
    let of_data = |tier: &&TierEvaluation| {
        system.tiers.iter().any(|t| t.name == tier.name && t.holds != Holds::Metadata)
    };
    let part = |tier: &TierEvaluation| Figure { name: tier.name.clone(), ..tier.usable.clone() };
    let parts = tiers.iter().filter(of_data).map(part).collect();
    let usable = Figure::sum("usable capacity", Unit::Bytes, parts);
    let share = &system.filesystem.metadata_share;
    let metadata = Figure::product(
        "metadata",
        Unit::Bytes,
        vec![
            usable.clone(),
            Figure::constant("metadata share", Unit::Ratio, share.value, &share.source),
        ],
    );
    Evaluation {
        title: system.title.clone(),
        inventory: inventory(system),
        mixes: mixes(system),
        warnings: warnings(system),
        tiers,
        raw,
        usable,
        metadata,
    }
}

/// Evaluates one tier of a system.
pub fn evaluate_tier(system: &System, tier: &Tier) -> TierEvaluation {
    let blocks = Figure::design("blocks", Unit::Count, tier.blocks as f64);
    let per_tier = |figure: Figure| {
        Figure::product(figure.name.clone(), figure.unit, vec![blocks.clone(), figure])
    };
    let rebuild = rebuild_disk(system, tier);
    let rebuild_unit = rebuild_unit(system, tier);
    TierEvaluation {
        reliability: reliability(tier, &rebuild, rebuild_unit.as_ref()),
        name: tier.name.clone(),
        blocks: tier.blocks,
        raw: raw(tier, &blocks),
        usable: usable(tier, &blocks),
        lun: lun(tier),
        rates: Metric::ALL.into_iter().map(|metric| rate(system, tier, metric)).collect(),
        local_iops: [true, false]
            .into_iter()
            .filter_map(|writes| local_iops(&tier.storage, writes))
            .map(per_tier)
            .collect(),
        per_core: per_core(system, tier),
        losses: losses(system, tier),
        rebuild,
        rebuild_unit,
        cold_block: cold_block(system, tier),
        latency: [false, true]
            .into_iter()
            .map(|writes| latency(tier, lan_of(system, tier), writes))
            .collect(),
    }
}

/// The network that a small operation crosses.
pub(crate) fn lan_of<'a>(system: &System<'a>, tier: &Tier<'a>) -> Option<&'a Adapter> {
    let clients = system.clients.as_ref().and_then(|clients| clients.lan);
    clients.or_else(|| tier.servers.as_ref().and_then(|servers| servers.lan))
}

/// Raw and usable bytes of one block.
pub fn capacity_of_block(tier: &Tier) -> (f64, f64) {
    let one = Figure::design("blocks", Unit::Count, 1.0);
    (raw(tier, &one).value, usable(tier, &one).value)
}

pub(crate) fn disk_capacity(tier: &Tier, unit: Unit) -> Figure {
    let capacity = &tier.storage.disk.capacity;
    Figure::constant("one disk", unit, capacity.value.0, &capacity.source)
}

fn raw(tier: &Tier, blocks: &Figure) -> Figure {
    let storage = &tier.storage;
    let disks = storage.disks_per_enclosure() * storage.per_block;
    Figure::product(
        "raw capacity",
        Unit::RawBytes,
        vec![
            blocks.clone(),
            Figure::design("disks per block", Unit::Count, disks as f64),
            disk_capacity(tier, Unit::RawBytes),
        ],
    )
}

fn lun(tier: &Tier) -> Option<Figure> {
    let storage = &tier.storage;
    if storage.parity != Parity::Controller {
        return None;
    }
    let data = storage.code.data as f64;
    let data = Figure::constant("data disks of an array", Unit::Count, data, &storage.code.source);
    Some(Figure::product(
        "usable capacity of one array (LUN)",
        Unit::Bytes,
        vec![data, disk_capacity(tier, Unit::Bytes)],
    ))
}

pub(crate) fn usable(tier: &Tier, blocks: &Figure) -> Figure {
    let storage = &tier.storage;
    let mut inputs = vec![blocks.clone()];
    if let Some(lun) = lun(tier) {
        let arrays = (storage.arrays_per_enclosure() * storage.per_block) as f64;
        inputs.push(Figure::design("arrays per block", Unit::Count, arrays));
        inputs.push(lun);
    } else {
        let code = storage.code;
        let share = code.data as f64 / code.width() as f64;
        let disks = storage.disks_per_enclosure() * storage.per_block - storage.spares;
        inputs.push(Figure::design("disks per block less spare space", Unit::Count, disks as f64));
        inputs.push(disk_capacity(tier, Unit::Bytes));
        inputs.push(Figure::constant("data share of the code", Unit::Ratio, share, &code.source));
    }
    if tier.replicas > 1 {
        let share = 1.0 / tier.replicas as f64;
        inputs.push(Figure::design("1 / copies that the file system keeps", Unit::Ratio, share));
    }
    Figure::product("usable capacity", Unit::Bytes, inputs)
}

fn rate(system: &System, tier: &Tier, metric: Metric) -> RateEvaluation {
    let unit = metric.unit();
    let stages = block_stages(tier, metric, Lost::default());
    let blocks = tier.blocks as f64;
    let mut carried: Vec<(String, f64)> =
        stages.iter().map(|stage| (stage.name.clone(), stage.value * blocks)).collect();
    let block = Figure::minimum("one block", unit, stages);
    let block_count = Figure::design("blocks", Unit::Count, blocks);
    let mut total = Figure::product(metric.label(), unit, vec![block_count, block]);
    let clients = system
        .clients
        .as_ref()
        .map_or_else(Vec::new, |clients| client_stages(clients, tier, metric));
    if !clients.is_empty() {
        carried.extend(clients.iter().map(|stage| (stage.name.clone(), stage.value)));
        let mut limits = vec![Figure { name: "all blocks".into(), ..total }];
        limits.extend(clients);
        total = Figure::minimum(metric.label(), unit, limits);
    }
    let balance: Vec<StageBalance> = carried
        .into_iter()
        .map(|(stage, capacity)| StageBalance { stage, capacity, times: capacity / total.value })
        .collect();
    let gate = balance.iter().min_by(|a, b| a.times.total_cmp(&b.times));
    let bottleneck = gate.expect("invariant: disks always gate").stage.clone();
    RateEvaluation { metric, total, bottleneck, balance }
}

/// What is left for one core of the clients: how analytics workloads state their needs.
fn per_core(system: &System, tier: &Tier) -> Vec<Figure> {
    let Some(clients) = &system.clients else { return Vec::new() };
    let per_client = &clients.model.cores;
    let cores = Figure::product(
        "cores",
        Unit::Count,
        vec![
            Figure::design("clients", Unit::Count, clients.count as f64),
            Figure::constant("cores", Unit::Count, per_client.value as f64, &per_client.source),
        ],
    );
    let of = |metric: Metric| {
        let total = rate(system, tier, metric).total;
        let name = format!("{} per core", metric.label());
        let value = total.value / cores.value;
        Figure::formula(name, metric.unit(), value, "rate / cores", vec![total, cores.clone()])
    };
    vec![of(Metric::Write), of(Metric::Read)]
}

fn cold_block(system: &System, tier: &Tier) -> Option<Figure> {
    let storage = &tier.storage;
    // A disk says it itself, or it positions and the ladder of latencies stands for it.
    let latency = |own: &Option<Sourced<f64>>, name: &str| {
        let constant =
            |value: f64, source: &str| Figure::constant(name, Unit::Seconds, value, source);
        if let Some(own) = own {
            return Some(constant(own.value, &own.source));
        }
        storage.disk.random_2m.as_ref()?;
        let rung = system.library.latencies.get(name)?;
        Some(constant(rung.value.value / 1e9, &rung.value.source))
    };
    let seek = latency(&storage.disk.seek, "disk-seek")?;
    let per_mib = latency(&storage.disk.first_mib, "read-1m-disk")?;
    let strip = Figure::design("strip", Unit::Bytes, storage.segment);
    let mut value = seek.value + per_mib.value * strip.value / MIB;
    let mut inputs = vec![seek, per_mib, strip];
    let of_clients = system.clients.as_ref().and_then(|c| Some((c.model, c.lan?)));
    let of_servers = tier.servers.as_ref().and_then(|s| Some((s.model, s.lan?)));
    if let Some((model, lan)) = of_clients.or(of_servers) {
        let lan = adapter(model, lan);
        value += storage.block_size / lan.value;
        inputs.push(Figure::design("block", Unit::Bytes, storage.block_size));
        inputs.push(lan);
    }
    let rule = "seek + strip at the disk's first-block rate + block over one adapter";
    Some(Figure::formula("one cold block", Unit::Seconds, value, rule, inputs))
}
