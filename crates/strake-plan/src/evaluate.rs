//! Evaluation of a design: capacity, rates, what gates them, what is left after a loss.
//!
//! Pure: a function of the resolved design. A file system stripes over all its arrays, so the
//! blocks of a tier add up; a loss in one block is given with two bounds: what is left if the
//! other blocks go on at their own pace, and what is left if every stripe waits for the slowest
//! block.

use crate::design::{System, Tier};
use crate::figure::Figure;
use crate::inventory::{Inventory, inventory};
use crate::library::{Parity, Sourced};
use crate::rule::{Warning, warnings};
use crate::stage::{Lost, Metric, adapter, block_stages, client_stages, disk_stream, local_iops};
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
    pub rebuild: Figure,
    /// Time to read one block that no cache holds.
    pub cold_block: Option<Figure>,
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

/// What is left when something is lost.
#[derive(Clone, Debug, Serialize)]
pub struct LossEvaluation {
    /// What is lost.
    pub lost: String,
    /// What becomes of the data.
    pub data: String,
    /// Rates when the other blocks keep their pace, in the order of `Metric::ALL`.
    pub at_most: Vec<Figure>,
    /// Rates when every stripe waits for the slowest block.
    pub at_least: Vec<Figure>,
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
        all.extend(&self.cold_block);
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
    let usable = sum("usable capacity", Unit::Bytes, |tier| &tier.usable);
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
    TierEvaluation {
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
        rebuild: rebuild(tier),
        cold_block: cold_block(system, tier),
    }
}

/// Raw and usable bytes of one block.
pub fn capacity_of_block(tier: &Tier) -> (f64, f64) {
    let one = Figure::design("blocks", Unit::Count, 1.0);
    (raw(tier, &one).value, usable(tier, &one).value)
}

fn disk_capacity(tier: &Tier, unit: Unit) -> Figure {
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

fn usable(tier: &Tier, blocks: &Figure) -> Figure {
    let storage = &tier.storage;
    if let Some(lun) = lun(tier) {
        let arrays = (storage.arrays_per_enclosure() * storage.per_block) as f64;
        let arrays = Figure::design("arrays per block", Unit::Count, arrays);
        return Figure::product("usable capacity", Unit::Bytes, vec![blocks.clone(), arrays, lun]);
    }
    let code = storage.code;
    let share = code.data as f64 / code.width() as f64;
    let disks = storage.disks_per_enclosure() * storage.per_block - storage.spares;
    Figure::product(
        "usable capacity",
        Unit::Bytes,
        vec![
            blocks.clone(),
            Figure::design("disks per block less spare space", Unit::Count, disks as f64),
            disk_capacity(tier, Unit::Bytes),
            Figure::constant("data share of the code", Unit::Ratio, share, &code.source),
        ],
    )
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
        .map_or_else(Vec::new, |clients| client_stages(clients, &tier.storage, metric));
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

fn losses(system: &System, tier: &Tier) -> Vec<LossEvaluation> {
    let storage = &tier.storage;
    let code = storage.code;
    let left = code.tolerates().saturating_sub(1);
    let mut all = Vec::new();
    let disk = Lost { disks: 1.0, ..Lost::default() };
    let on_one = match storage.parity {
        Parity::Controller => 1,
        _ => code.width().div_ceil((storage.disks_in_use() * tier.blocks).max(1)),
    };
    let after = match code.tolerates() {
        tolerates if on_one > tolerates.max(1) => {
            format!("lost with the disk: {on_one} strips of each stripe lie on it")
        }
        0 => "lost with the disk: this code has no redundancy".to_string(),
        1 => "all there; no further one of the same array or stripe may go".to_string(),
        _ => format!("all there; {left} more of the same array or stripe may go"),
    };
    all.push(loss(system, tier, "one disk", after, disk));
    if storage.enclosure.controllers.value >= 2 && storage.ceiling.is_some() {
        let half = 1.0 / storage.enclosure.controllers.value as f64;
        let lost = Lost { enclosures: half, ..Lost::default() };
        let after = "all there; the other controller takes its arrays over".to_string();
        all.push(loss(system, tier, "one RAID controller", after, lost));
    }
    if let Some(servers) = &tier.servers {
        let lost = Lost { servers: 1.0, ..Lost::default() };
        let after = after_server(tier, servers.per_block);
        all.push(loss(system, tier, "one server", after, lost));
    }
    if storage.parity != Parity::Client {
        let lost = Lost { enclosures: 1.0, ..Lost::default() };
        let offline = storage.disks_per_enclosure() as f64
            * storage.disk.capacity.value.0
            * storage.code.data as f64
            / storage.code.width() as f64;
        let after = format!("{} offline until it is back", Unit::Bytes.show(offline));
        all.push(loss(system, tier, "one enclosure with its trays", after, lost));
    }
    all
}

fn after_server(tier: &Tier, per_block: u64) -> String {
    let code = tier.storage.code;
    match tier.storage.parity {
        Parity::Client => {
            let servers = tier.blocks * per_block;
            let strips = code.width().div_ceil(servers);
            if strips <= code.tolerates() {
                format!("all there; {strips} strip(s) of each stripe lie on one server")
            } else {
                format!(
                    "offline: {servers} servers hold {strips} strips of each stripe, {} tolerates {}",
                    code.name,
                    code.tolerates()
                )
            }
        }
        _ if per_block > 1 => "all there; the block's other servers take over".into(),
        _ => "the block's data is offline: no second server is cabled to it".into(),
    }
}

fn loss(system: &System, tier: &Tier, what: &str, data: String, lost: Lost) -> LossEvaluation {
    let (at_least, at_most) =
        Metric::ALL.into_iter().map(|metric| bounds(system, tier, metric, lost)).unzip();
    LossEvaluation { lost: what.into(), data, at_most, at_least }
}

/// What is left of a rate: at least, at most.
fn bounds(system: &System, tier: &Tier, metric: Metric, lost: Lost) -> (Figure, Figure) {
    let unit = metric.unit();
    let block = |name, lost| Figure::minimum(name, unit, block_stages(tier, metric, lost));
    let count = |name: &str, value| Figure::design(name, Unit::Count, value);
    let whole = block("a whole block", Lost::default());
    let broken = block("the block with the loss", lost);
    let blocks = tier.blocks as f64;
    // With redundancy over the servers a lost server takes its disks along and no stripe waits
    // for it; otherwise the block's share of every stripe is at stake.
    let spread = tier.storage.parity == Parity::Client && lost.servers > 0.0;
    let (least, most) = match &tier.servers {
        Some(servers) if spread => {
            let all = blocks * servers.per_block as f64;
            let left = Figure::product(
                metric.label(),
                unit,
                vec![
                    count("blocks less the server's share", blocks * (1.0 - lost.servers / all)),
                    whole,
                ],
            );
            (left.clone(), left)
        }
        _ => {
            let others = Figure::product(
                "the other blocks",
                unit,
                vec![count("other blocks", blocks - 1.0), whole],
            );
            let most = Figure::sum(metric.label(), unit, vec![others, broken.clone()]);
            let all = vec![count("blocks at the pace of the slowest", blocks), broken];
            (Figure::product(metric.label(), unit, all), most)
        }
    };
    let clients = system
        .clients
        .as_ref()
        .map_or_else(Vec::new, |clients| client_stages(clients, &tier.storage, metric));
    let limit = |left: Figure| {
        let mut limits = vec![left];
        limits.extend(clients.iter().cloned());
        Figure::minimum(metric.label(), unit, limits)
    };
    (limit(least), limit(most))
}

fn rebuild(tier: &Tier) -> Figure {
    let storage = &tier.storage;
    let share = storage.rebuild_share;
    let capacity = disk_capacity(tier, Unit::RawBytes);
    let share_figure = Figure::design("share of disk time for the rebuild", Unit::Ratio, share);
    let name = "rebuild of one full disk";
    if storage.parity == Parity::Controller {
        let stream = disk_stream(storage, true);
        return Figure::formula(
            name,
            Unit::Seconds,
            capacity.value / (stream.value * share),
            "capacity / (rate of the one replacement disk * share)",
            vec![capacity, stream, share_figure],
        );
    }
    // Declustered: N strips are read for each written, and all surviving disks take part.
    let reads = if storage.code.mirrored { 1 } else { storage.code.data };
    let disks = (storage.disks_in_use() * tier.blocks).saturating_sub(1).max(1) as f64;
    let stream = disk_stream(storage, true);
    Figure::formula(
        name,
        Unit::Seconds,
        capacity.value * (reads + 1) as f64 / (disks * stream.value * share),
        format!("capacity * ({reads} read + 1 written) / (other disks * rate * share)"),
        vec![capacity, Figure::design("other disks", Unit::Count, disks), stream, share_figure],
    )
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
    let lan = system.clients.as_ref().and_then(|c| c.lan).or(tier.servers.as_ref()?.lan);
    if let Some(lan) = lan {
        let lan = adapter(lan);
        value += storage.block_size / lan.value;
        inputs.push(Figure::design("block", Unit::Bytes, storage.block_size));
        inputs.push(lan);
    }
    let rule = "seek + strip at the disk's first-block rate + block over one adapter";
    Some(Figure::formula("one cold block", Unit::Seconds, value, rule, inputs))
}
