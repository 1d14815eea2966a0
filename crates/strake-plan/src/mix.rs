//! What a mix of operations gets from a design: rate, time of one, and what gates.
//!
//! Every stage serves reads and writes at rates of its own for the size and pattern of the mix.
//! A stage that does R reads or W writes a second does 1 / (r / R + (1 − r) / W) of a mix with a
//! share r of reads. The smallest of these is the most that the design carries. With Q operations
//! on their way and a time T of one that meets no other, the rate is at most Q / T as well, and
//! the time of one at that rate is Q / rate. These are the asymptotic bounds of a closed network
//! of queues: real systems stay below them, most of all where both meet.

use crate::design::{Holds, MixChoice, Pattern, System, Tier};
use crate::error::PlanError;
use crate::evaluate::lan_of;
use crate::figure::Figure;
use crate::library::{FileSystem, Parity};
use crate::loss::server_domain;
use crate::operation::latency;
use crate::stage::{Lost, Metric, adapter, block_stages, client_stages, disk_stream};
use crate::unit::{KIB, Unit};
use serde::Serialize;

/// The size that rates of small operations are given for.
const SMALL: f64 = 4.0 * KIB;

/// One mix on its tier.
#[derive(Clone, Debug, Serialize)]
pub struct MixEvaluation {
    pub name: String,
    pub tier: String,
    /// Operations a second that the design carries.
    pub most: Figure,
    /// Operations a second with so many on their way, and bytes a second.
    pub rate: f64,
    pub bytes: f64,
    /// Seconds of one while nothing else waits, and at that rate.
    pub alone: f64,
    pub time: f64,
    /// What gates.
    pub gate: String,
    /// What is left after losses: their names and operations a second.
    pub degraded: Vec<(String, f64)>,
    /// Whether the rate that was wanted is reached; none if nothing was wanted.
    pub enough: Option<bool>,
}

/// Evaluates all mixes of a design.
pub fn mixes(system: &System) -> Vec<MixEvaluation> {
    system.mixes.iter().map(|(mix, tier)| evaluate_mix(system, mix, &system.tiers[*tier])).collect()
}

/// The tier that a mix names, or the first that holds data.
pub(crate) fn tier_of(mix: &MixChoice, tiers: &[Tier]) -> Result<usize, PlanError> {
    let wrong = |why: String| PlanError::Usage(format!("mix '{}': {why}", mix.name));
    if !(0.0..=1.0).contains(&mix.reads) || !(0.0..=1.0).contains(&mix.names) {
        return Err(wrong("reads and names are shares, 0 to 1".into()));
    }
    if !(1.0..=1e12).contains(&mix.size.0) || !(1..=100_000_000).contains(&mix.queue_depth) {
        return Err(wrong("size and queue_depth must be above 0".into()));
    }
    if mix.wanted.is_some_and(|wanted| !(wanted > 0.0 && wanted.is_finite())) {
        return Err(wrong("wanted must be above 0".into()));
    }
    let found = match &mix.tier {
        Some(name) => tiers.iter().position(|tier| tier.name == *name),
        None => tiers.iter().position(|tier| tier.holds != Holds::Metadata),
    };
    found.ok_or_else(|| wrong("no tier of that name; give it as tier = \"…\"".into()))
}

fn evaluate_mix(system: &System, mix: &MixChoice, tier: &Tier) -> MixEvaluation {
    let most = most(system, mix, tier, Lost::default());
    let alone = alone(system, mix, tier);
    let depth = mix.queue_depth as f64;
    let waiting = depth / alone;
    let rate = most.value.min(waiting);
    let gate = match most.gate() {
        _ if waiting < most.value => "waiting for answers".to_string(),
        Some(gate) => gate.name.clone(),
        None => String::new(),
    };
    let rebuild = Lost { disks: 1.0, busy: tier.storage.rebuild_share, ..Lost::default() };
    let server = Lost { servers: 1.0, ..Lost::default() };
    let mut degraded = Vec::new();
    for loss in &crate::loss::losses(system, tier) {
        let lost = match loss.lost.as_str() {
            _ if loss.offline > 0.0 => continue,
            "one disk, while it is rebuilt" => rebuild,
            "one server" => server,
            _ => continue,
        };
        let left = self::most(system, mix, tier, lost).value.min(waiting);
        degraded.push((loss.lost.clone(), left));
    }
    MixEvaluation {
        name: mix.name.clone(),
        tier: tier.name.clone(),
        rate,
        bytes: rate * mix.size.0,
        alone,
        time: depth / rate,
        gate,
        degraded,
        enough: mix.wanted.map(|wanted| rate >= wanted),
        most,
    }
}

/// The most that the stages carry.
fn most(system: &System, mix: &MixChoice, tier: &Tier, lost: Lost) -> Figure {
    let (reads, writes) =
        (stages(system, mix, tier, false, lost), stages(system, mix, tier, true, lost));
    let unit = Unit::OperationsPerSecond;
    let mut names: Vec<&String> = reads.iter().map(|(name, _)| name).collect();
    names.extend(
        writes.iter().map(|(name, _)| name).filter(|name| !reads.iter().any(|(n, _)| n == *name)),
    );
    let of = |all: &[(String, f64)], name: &str| {
        all.iter().find(|(stage, _)| stage == name).map_or(f64::INFINITY, |(_, rate)| *rate)
    };
    let share = 1.0 - mix.names;
    let mut limits = Vec::new();
    for name in names {
        let (read, write) = (of(&reads, name), of(&writes, name));
        let cost = share * (mix.reads / read + (1.0 - mix.reads) / write);
        if cost > 0.0 {
            let rule = "1 / (reads / rate of reads + writes / rate of writes)";
            limits.push(Figure::formula(name.clone(), unit, 1.0 / cost, rule, Vec::new()));
        }
    }
    limits.extend(names_stage(tier.filesystem, mix));
    if limits.is_empty() {
        limits.push(Figure::design("nothing asked for", unit, f64::MAX));
    }
    Figure::minimum(format!("most of {}", mix.name), unit, limits)
}

/// Operations on names go to the one node that leads the metadata.
fn names_stage(fs: &FileSystem, mix: &MixChoice) -> Option<Figure> {
    let rate = fs.names.as_ref().filter(|_| mix.names > 0.0)?;
    let unit = Unit::OperationsPerSecond;
    let one = Figure::constant("operations on names", unit, rate.value, &rate.source);
    let share = Figure::design("share of operations on names", Unit::Ratio, mix.names);
    let value = rate.value / mix.names;
    Some(Figure::formula("metadata", unit, value, "rate / share", vec![one, share]))
}

/// Operations a second of each stage of the whole tier.
fn stages(
    system: &System,
    mix: &MixChoice,
    tier: &Tier,
    writes: bool,
    lost: Lost,
) -> Vec<(String, f64)> {
    let size = mix.size.0;
    let (small, stream) = match writes {
        true => (Metric::IopsWrite, Metric::Write),
        false => (Metric::IopsRead, Metric::Read),
    };
    // Where stripes lie over all servers, a lost one takes its share along. Else a loss concerns
    // one block, and every stripe waits for the slowest.
    let (lost, left) = match server_domain(tier) {
        Some(domain) if lost.servers > 0.0 => {
            (Lost::default(), 1.0 - lost.servers / domain.count as f64)
        }
        _ => (lost, 1.0),
    };
    let of = |metric| {
        let blocks = tier.blocks as f64 * left;
        let all = block_stages(tier, metric, lost).into_iter();
        let mut all: Vec<(String, f64)> =
            all.map(|stage| (stage.name, stage.value * blocks)).collect();
        if let Some(clients) = &system.clients {
            let stages = client_stages(clients, tier, metric).into_iter();
            all.extend(stages.map(|stage| (stage.name, stage.value)));
        }
        all
    };
    let streams = of(stream);
    if mix.pattern == Pattern::Sequential {
        return streams.into_iter().map(|(name, bytes)| (name, bytes / size)).collect();
    }
    let by_bytes = |name: &str| {
        streams
            .iter()
            .find(|(stage, _)| stage == name)
            .map_or(f64::INFINITY, |(_, bytes)| bytes / size)
    };
    let scaled = |(name, rate): (String, f64)| {
        let rate = match name.as_str() {
            "disks" => rate * slower(tier, writes, size),
            "controllers" => rate.min(by_bytes(&name)),
            "client processors" => 1.0 / (1.0 / rate + 1.0 / by_bytes(&name)),
            "server processors" | "server software path" | "client software path" => rate,
            // Links, buses and networks count bytes.
            _ => rate * SMALL / size.max(SMALL),
        };
        (name, rate)
    };
    // How deep clients wait is the mix's own.
    of(small).into_iter().filter(|(name, _)| name != "clients' waiting").map(scaled).collect()
}

/// How much of the rate at 4 KiB the disks keep at another size: larger pieces take longer, and
/// pieces of several strips take several operations, but no more than whole stripes do.
fn slower(tier: &Tier, writes: bool, size: f64) -> f64 {
    let storage = &tier.storage;
    let disk = storage.disk;
    let (iops, stream) = match writes {
        true => (disk.iops_write.value, disk.stream_write.value.0),
        false => (disk.iops_read.value, disk.stream_read.value.0),
    };
    let pieces = (size / storage.segment).ceil().max(1.0);
    let piece = (size / pieces).max(SMALL);
    let time = if disk.rotates() {
        1.0 / iops + (piece - SMALL) / stream
    } else {
        (1.0 / iops).max(piece / stream)
    };
    let small = 1.0 / iops / (time * pieces);
    if !writes || size < storage.block_size {
        return small;
    }
    // Whole blocks need no reading before writing.
    let code = storage.code;
    let blocks = size / storage.block_size;
    let strip = storage.segment / disk_stream(storage, true).value;
    let whole = code.width() as f64 * strip * blocks;
    let single = code.small_write_operations() as f64 / iops;
    small.max(single / whole)
}

/// Time of one operation that meets no other.
fn alone(system: &System, mix: &MixChoice, tier: &Tier) -> f64 {
    let lan = lan_of(system, tier);
    let model = match (&system.clients, &tier.servers) {
        (Some(clients), _) => Some(clients.model),
        (None, Some(servers)) => Some(servers.model),
        (None, None) => None,
    };
    let more = (mix.size.0 - SMALL).max(0.0);
    let disk = tier.storage.disk;
    let of = |writes: bool| {
        let stream = if writes { disk.stream_write.value.0 } else { disk.stream_read.value.0 };
        // Pieces of a block move side by side.
        let wire = match (lan, model) {
            (Some(lan), Some(model)) => more / adapter(model, lan).value,
            _ => 0.0,
        };
        let expansion = match (writes, tier.storage.parity) {
            (true, Parity::Client) => {
                tier.storage.code.width() as f64 / tier.storage.code.data as f64
            }
            _ => 1.0,
        };
        latency(tier, lan, writes).value
            + more.min(tier.storage.segment) / stream
            + wire * expansion
    };
    mix.reads * of(false) + (1.0 - mix.reads) * of(true)
}
