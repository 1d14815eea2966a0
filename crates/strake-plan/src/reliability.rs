//! How likely data is lost or offline, from rates of failure and times of repair.
//!
//! **The chain.** A redundancy group is a birth–death chain: state i has i disks lost; the next of
//! n − i is lost at rate (n − i)·λ, and one is rebuilt at rate μ. A code that survives p losses
//! loses data on the way from state p to p + 1. With h(i) the mean time from state i to i + 1,
//!
//! ```text
//! h(0) = 1 / λ(0)        h(i) = 1 / λ(i) + μ / λ(i) · h(i − 1)        MTTDL = h(0) + … + h(p)
//! ```
//!
//! In state p an unreadable sector on the disks that are read loses data as well: the rebuild
//! then fails with probability u, so λ(p) grows by u·μ and μ shrinks by as much. For λ ≪ μ and
//! u = 0 this is the published MTTF² / (n (n − 1) MTTR) of RAID 5 and
//! MTTF³ / (n (n − 1)(n − 2) MTTR²) of RAID 6.
//!
//! **What it leaves out.** Repair times are exponential in the chain, and every set of p + 1
//! disks is taken to share a stripe: both make it pessimistic for declustered codes. `montecarlo`
//! has neither fault. Servers or enclosures that are lost with their disks are a chain of their
//! own.

use crate::design::Tier;
use crate::evaluate::disk_capacity;
use crate::figure::Figure;
use crate::library::{Parity, Sourced};
use crate::loss::{disk_domain, server_domain, unit_domain};
use crate::rebuild::disks_in_scope;
use crate::stage::{Lost, Metric, block_stages};
use crate::unit::Unit;
use serde::Serialize;

/// Seconds of a year.
pub const YEAR: f64 = 365.25 * 86_400.0;

/// What is said about one tier.
#[derive(Clone, Debug, Serialize)]
pub struct Reliability {
    /// Mean time to the loss of data, in seconds.
    pub mttdl: Figure,
    /// Probability that any data of the tier is lost within a year.
    pub loss_per_year: Figure,
    /// Hours a year in which data is offline because servers are down, nothing being lost.
    pub offline: Option<Figure>,
    /// Capacity to keep free so that what a lost server (or enclosure) held can be rebuilt on the
    /// others.
    pub keep_free: Option<Figure>,
}

impl Reliability {
    /// All figures.
    pub fn figures(&self) -> Vec<&Figure> {
        let mut all = vec![&self.mttdl, &self.loss_per_year];
        all.extend(&self.offline);
        all.extend(&self.keep_free);
        all
    }
}

/// One redundancy group as a chain. Rates are per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Things that fail.
    pub count: f64,
    /// Losses that are survived.
    pub survives: u64,
    /// Rate of loss of one.
    pub loss_rate: f64,
    /// Rate of repair.
    pub repair_rate: f64,
    /// Probability that a rebuild with no redundancy left meets a sector that cannot be read.
    pub unreadable: f64,
}

impl Chain {
    /// Mean time to the loss of data, in seconds.
    pub fn mttdl(&self) -> f64 {
        let mut total = 0.0;
        let mut before = 0.0;
        for state in 0..=self.survives {
            let last = state == self.survives;
            let unreadable = if last && state > 0 { self.unreadable } else { 0.0 };
            let repair = if state == 0 { 0.0 } else { self.repair_rate };
            let loss = (self.count - state as f64).max(0.0) * self.loss_rate + unreadable * repair;
            if loss <= 0.0 {
                return f64::MAX;
            }
            let step = 1.0 / loss + repair * (1.0 - unreadable) / loss * before;
            total += step;
            before = step;
        }
        total.min(f64::MAX)
    }
}

/// Everything about one tier; none where the library does not say how often its disks fail.
pub fn reliability(
    tier: &Tier,
    rebuild: &Figure,
    rebuild_unit: Option<&Figure>,
) -> Option<Reliability> {
    let disks = disks_mttdl(tier, rebuild)?;
    let mut modes = vec![match tier.replicas {
        1 => disks,
        _ => replicated(tier, disks),
    }];
    modes.extend(units_mttdl(tier, rebuild_unit));
    let rate: f64 = modes.iter().map(|mode| 1.0 / mode.value).sum();
    let rule = "1 / sum of the rates of each way to lose data";
    let value = (1.0 / rate).min(f64::MAX);
    let mttdl = Figure::formula("mean time to data loss", Unit::Years, value, rule, modes);
    let loss_per_year = Figure::formula(
        "probability of data loss in a year",
        Unit::Probability,
        -(-YEAR / mttdl.value).exp_m1(),
        "1 - exp(-1 year / mean time to data loss)",
        vec![mttdl.clone()],
    );
    let keep_free = keep_free(tier);
    Some(Reliability { mttdl, loss_per_year, offline: offline(tier), keep_free })
}

/// The rate per second of something that happens so often a year.
pub fn per_second(per_year: f64) -> f64 {
    per_year / YEAR
}

/// Redundancy groups of a tier that fail apart from each other.
pub fn groups(tier: &Tier) -> u64 {
    let storage = &tier.storage;
    match storage.parity {
        Parity::Controller => {
            tier.blocks * storage.per_block * storage.arrays_per_enclosure().max(1)
        }
        Parity::Server => tier.blocks,
        Parity::Client => 1,
    }
}

/// Probability that one of the reads of a rebuild fails: the data strips' number of disks' worth.
fn unreadable(tier: &Tier) -> Option<Figure> {
    let storage = &tier.storage;
    let ure = storage.disk.ure.as_ref()?;
    let capacity = disk_capacity(tier, Unit::RawBytes);
    let reads = if storage.code.mirrored { 1.0 } else { storage.code.data as f64 };
    let disks = disk_domain(tier);
    // With declustered codes only the stripes that have no redundancy left are at stake: of the
    // lost disk's stripes, the share that also lay on the disks lost before it.
    let partners = (storage.code.width() as f64 - 1.0) / (disks.count as f64 - 1.0).max(1.0);
    let critical = match storage.parity {
        Parity::Controller => 1.0,
        _ => partners.min(1.0).powi(disks.survives.saturating_sub(1) as i32),
    };
    let bits = capacity.value * 8.0 * reads * critical;
    let value = -(-bits * ure.value).exp_m1();
    Some(Figure::formula(
        "rebuild meets an unreadable sector",
        Unit::Probability,
        value,
        "1 - exp(-bits read * errors per bit), of stripes with no redundancy left",
        vec![
            capacity,
            Figure::design("disks read", Unit::Count, reads),
            Figure::design("share of stripes with no redundancy left", Unit::Ratio, critical),
            Figure::constant("errors per bit", Unit::Probability, ure.value, &ure.source),
        ],
    ))
}

fn disks_mttdl(tier: &Tier, rebuild: &Figure) -> Option<Figure> {
    let afr = tier.storage.disk.afr.as_ref()?;
    let domain = disk_domain(tier);
    let unreadable = unreadable(tier);
    let chain = Chain {
        count: disks_in_scope(tier) as f64,
        survives: domain.survives,
        loss_rate: per_second(afr.value),
        repair_rate: 1.0 / rebuild.value,
        unreadable: unreadable.as_ref().map_or(0.0, |figure| figure.value),
    };
    let groups = groups(tier) as f64;
    let mut inputs = vec![
        Figure::design("disks of a group", Unit::Count, chain.count),
        Figure::design("losses survived", Unit::Count, chain.survives as f64),
        rate_of("failures of a disk a year", afr),
        rebuild.clone(),
        Figure::design("groups", Unit::Count, groups),
    ];
    inputs.extend(unreadable);
    let value = chain.mttdl() / groups;
    Some(Figure::formula("loss of disks", Unit::Years, value, "Markov chain / groups", inputs))
}

/// Copies in several blocks: data is lost when all blocks that hold them are.
fn replicated(tier: &Tier, blocks: Figure) -> Figure {
    let one = blocks.value * tier.blocks as f64;
    let capacity = crate::evaluate::capacity_of_block(tier).1 * tier.replicas as f64;
    let stages = block_stages(tier, Metric::Write, Lost::default());
    let rate = stages.iter().map(|stage| stage.value).fold(f64::INFINITY, f64::min);
    let time = capacity / (rate * tier.storage.rebuild_share);
    let chain = Chain {
        count: tier.blocks as f64,
        survives: tier.replicas - 1,
        loss_rate: 1.0 / one,
        repair_rate: 1.0 / time,
        unreadable: 0.0,
    };
    let inputs = vec![
        blocks,
        Figure::design("blocks", Unit::Count, chain.count),
        Figure::design("copies", Unit::Count, tier.replicas as f64),
        Figure::design("time to copy a block again", Unit::Seconds, time),
    ];
    let rule = "Markov chain of blocks whose copies are lost";
    Figure::formula("loss of all copies", Unit::Years, chain.mttdl(), rule, inputs)
}

fn rate_of(name: &str, sourced: &Sourced<f64>) -> Figure {
    Figure::constant(name, Unit::Ratio, sourced.value, &sourced.source)
}

/// Servers or enclosures that are lost with their disks. Behind RAID controllers an enclosure
/// takes its arrays along, and nothing survives that but copies in other blocks.
fn units_mttdl(tier: &Tier, rebuild: Option<&Figure>) -> Option<Figure> {
    let storage = &tier.storage;
    let (name, count, survives, destroyed, groups) = match unit_domain(tier) {
        Some((domain, destroyed)) => {
            (domain.name, domain.count, domain.survives, destroyed?, groups(tier))
        }
        None => {
            let destroyed = storage.enclosure.destroyed.as_ref()?;
            ("enclosure", 1, 0, destroyed, tier.blocks * storage.per_block)
        }
    };
    if tier.replicas > 1 && survives == 0 {
        return None;
    }
    let chain = Chain {
        count: count as f64,
        survives: rebuild.map_or(0, |_| survives),
        loss_rate: per_second(destroyed.value),
        repair_rate: rebuild.map_or(0.0, |rebuild| 1.0 / rebuild.value),
        unreadable: 0.0,
    };
    let groups = groups as f64;
    let mut inputs = vec![
        Figure::design(format!("{name}s of a group"), Unit::Count, chain.count),
        Figure::design("losses survived", Unit::Count, chain.survives as f64),
        rate_of("of one, destroyed a year", destroyed),
        Figure::design("groups", Unit::Count, groups),
    ];
    inputs.extend(rebuild.cloned());
    let value = chain.mttdl() / groups;
    let rule = "Markov chain / groups";
    Some(Figure::formula(format!("loss of {name}s"), Unit::Years, value, rule, inputs))
}

/// Hours a year in which more servers are down than the data survives.
fn offline(tier: &Tier) -> Option<Figure> {
    let servers = tier.servers.as_ref()?;
    let outages = servers.model.outages.as_ref()?;
    let hours = servers.model.outage_hours.as_ref()?;
    let (count, survives, groups) = match server_domain(tier) {
        Some(domain) => (domain.count, domain.survives, 1),
        None if tier.storage.enclosure.inside_server() => (1, 0, tier.blocks * servers.per_block),
        None => (servers.per_block, servers.per_block - 1, tier.blocks),
    };
    let down = (outages.value * hours.value * 3600.0 / YEAR).min(1.0);
    let value = groups as f64 * more_than(count, survives, down) * YEAR;
    let inputs = vec![
        Figure::design("servers of a group", Unit::Count, count as f64),
        Figure::design("may be down at a time", Unit::Count, survives as f64),
        Figure::design("groups", Unit::Count, groups as f64),
        rate_of("outages of a server a year", outages),
        Figure::constant("time of an outage", Unit::Seconds, hours.value * 3600.0, &hours.source),
    ];
    let rule = "binomial: share of a year in which more are down";
    Some(Figure::formula("data offline a year", Unit::Seconds, value.min(YEAR), rule, inputs))
}

/// Probability that more than `most` of `count` are in a state that each is in with probability
/// `share`, independently.
pub fn more_than(count: u64, most: u64, share: f64) -> f64 {
    if share >= 1.0 {
        return if count > most { 1.0 } else { 0.0 };
    }
    // Each term from the one before it, from the top of the tail down would lose digits: the tail
    // is summed upwards from most + 1.
    let odds = share / (1.0 - share);
    let mut term = (1.0 - share).powf(count as f64);
    let mut tail = 0.0;
    for down in 1..=count {
        term *= (count - down + 1) as f64 / down as f64 * odds;
        if down > most {
            tail += term;
        }
    }
    tail.min(1.0)
}

fn keep_free(tier: &Tier) -> Option<Figure> {
    let (domain, _) = unit_domain(tier).filter(|(domain, _)| domain.count > 1)?;
    let blocks = match tier.storage.parity {
        Parity::Client => tier.blocks,
        _ => 1,
    };
    let blocks = Figure::design("blocks", Unit::Count, blocks as f64);
    let usable = crate::evaluate::usable(tier, &blocks);
    let value = usable.value / domain.count as f64;
    let count = domain.count as f64;
    let units = Figure::design(format!("{}s", domain.name), Unit::Count, count);
    let name = format!("keep free to rebuild a lost {}", domain.name);
    Some(Figure::formula(name, Unit::Bytes, value, "usable / count", vec![usable, units]))
}

#[cfg(test)]
#[path = "reliability_test.rs"]
mod reliability_test;
