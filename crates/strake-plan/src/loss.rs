//! What a loss takes: strips of each stripe, data, rates.
//!
//! Whether data survives follows from one number: the strips of a stripe that lie on the thing
//! that is lost, at most. A stripe is spread as evenly as it can be, so that number is the width of
//! the code divided by the things that a stripe can use, rounded up. A code that tolerates P
//! losses of strips survives ⌊P / that number⌋ losses of such things. Where a loss takes data
//! offline no rate is given: files stripe over everything, so hardly any file is whole.

use crate::design::{FailureGroup, System, Tier};
use crate::evaluate::usable;
use crate::figure::Figure;
use crate::inventory::rack_runs;
use crate::library::{Parity, Sourced};
use crate::rebuild::disks_in_scope;
use crate::stage::{Lost, Metric, block_stages, client_stages};
use crate::unit::Unit;
use serde::Serialize;
use std::cmp::Ordering;

/// What is left when something is lost.
#[derive(Clone, Debug, Serialize)]
pub struct LossEvaluation {
    /// What is lost.
    pub lost: String,
    /// What becomes of the data.
    pub data: String,
    /// Usable bytes that cannot be read until the thing is back; 0 if none.
    pub offline: f64,
    /// Rates when the other blocks keep their pace, in the order of `Metric::ALL`; none if data
    /// is offline.
    pub at_most: Vec<Figure>,
    /// Rates when every stripe waits for the slowest block.
    pub at_least: Vec<Figure>,
}

/// A kind of thing that fails as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// What it is called.
    pub name: &'static str,
    /// How many of them one stripe may use.
    pub count: u64,
    /// Strips of one stripe on one of them, at most.
    pub strips: u64,
    /// How many may be lost at the same time.
    pub survives: u64,
}

impl Domain {
    fn new(tier: &Tier, name: &'static str, count: u64) -> Domain {
        let code = tier.storage.code;
        let strips = code.width().div_ceil(count.max(1));
        Domain { name, count, strips, survives: code.tolerates() / strips }
    }

    /// "1 server holds" or "3 servers hold".
    pub fn hold(&self) -> String {
        let (count, name) = (self.count, self.name);
        if count == 1 { format!("1 {name} holds") } else { format!("{count} {name}s hold") }
    }

    /// The sentence about the data.
    fn says(&self, code: &str) -> String {
        let Domain { name, strips, survives, .. } = *self;
        match survives {
            0 => format!(
                "offline: {} up to {strips} strips of each stripe, more than {code} can lose",
                self.hold()
            ),
            1 => {
                format!("all there; no further {name} may go ({strips} of a stripe's strips each)")
            }
            2 => format!("all there; one more {name} may go"),
            _ => format!("all there; {} more {name}s may go", survives - 1),
        }
    }
}

/// The disks among which a stripe is spread.
pub fn disk_domain(tier: &Tier) -> Domain {
    Domain::new(tier, "disk", disks_in_scope(tier))
}

/// The servers among which a stripe is spread, where the disks are inside them.
pub fn server_domain(tier: &Tier) -> Option<Domain> {
    let servers = tier.servers.as_ref()?;
    let inside = tier.storage.parity == Parity::Client && tier.storage.enclosure.inside_server();
    inside.then(|| Domain::new(tier, "server", tier.blocks * servers.per_block))
}

/// The enclosures among which a stripe is spread. None behind RAID controllers, whose arrays stay
/// in one, and where the enclosures are the servers' own bays.
pub fn enclosure_domain(tier: &Tier) -> Option<Domain> {
    let storage = &tier.storage;
    let in_block = storage.per_block * storage.enclosure.housings();
    let count = match storage.parity {
        Parity::Controller => return None,
        Parity::Server => in_block,
        Parity::Client if server_domain(tier).is_some() => return None,
        Parity::Client => in_block * tier.blocks,
    };
    Some(Domain::new(tier, "enclosure", count))
}

/// What takes several disks along when it is lost: a server with its bays, or an enclosure. With
/// the rate at which that happens to one of them.
pub fn unit_domain<'a>(tier: &Tier<'a>) -> Option<(Domain, Option<&'a Sourced<f64>>)> {
    if let Some(domain) = server_domain(tier) {
        let model = tier.servers.as_ref().map(|servers| servers.model);
        return Some((domain, model.and_then(|model| model.destroyed.as_ref())));
    }
    Some((enclosure_domain(tier)?, tier.storage.enclosure.destroyed.as_ref()))
}

/// Every loss that is looked at.
pub(crate) fn losses(system: &System, tier: &Tier) -> Vec<LossEvaluation> {
    let storage = &tier.storage;
    let mut all = Vec::new();
    let disk = disk_domain(tier);
    let lost = Lost { disks: 1.0, ..Lost::default() };
    let offline = if disk.survives == 0 { block_usable(tier, 1) } else { 0.0 };
    all.push(loss(system, tier, "one disk", disk.says(&storage.code.name), offline, lost));
    if disk.survives > 0 {
        let lost = Lost { disks: 1.0, busy: storage.rebuild_share, ..Lost::default() };
        let data = "all there; the rebuild takes its share of the disks".to_string();
        all.push(loss(system, tier, "one disk, while it is rebuilt", data, 0.0, lost));
    }
    let controllers = storage.enclosure.controllers.value;
    if storage.parity == Parity::Controller && controllers >= 2 && storage.ceiling.is_some() {
        let lost = Lost { enclosures: 1.0 / controllers as f64, ..Lost::default() };
        let data = "all there; the other controller takes its arrays over".to_string();
        all.push(loss(system, tier, "one RAID controller", data, 0.0, lost));
    }
    all.extend(server_loss(system, tier));
    all.extend(enclosure_loss(system, tier));
    all.extend(place_losses(system, tier));
    all
}

/// Racks and sites: how many there are, and the most blocks of the tier that one holds.
fn places(system: &System, tier: &Tier) -> Vec<(&'static str, FailureGroup, u64, u64)> {
    let index = system.tiers.iter().position(|other| std::ptr::eq(other, tier));
    let index = index.or_else(|| system.tiers.iter().position(|other| other.name == tier.name));
    let (runs, _) = rack_runs(system);
    let mut racks = 0;
    let mut fullest = 0;
    for run in &runs {
        let of_tier = run.blocks.iter().find(|(tier, _)| Some(*tier) == index);
        let Some((_, blocks)) = of_tier else { continue };
        racks += run.racks;
        fullest = fullest.max((*blocks).max(1));
    }
    let sites = system.sites;
    let mut all = Vec::new();
    if racks > 0 {
        // Sites have racks of their own.
        let (racks, fullest) = (racks.max(sites), fullest.min(tier.blocks.div_ceil(sites)));
        all.push(("rack", FailureGroup::Rack, racks, fullest));
    }
    if sites > 1 {
        all.push(("site", FailureGroup::Site, sites, tier.blocks.div_ceil(sites)));
    }
    all
}

/// Loss of all that stands in one place.
fn place_losses(system: &System, tier: &Tier) -> Vec<LossEvaluation> {
    let (storage, code) = (&tier.storage, tier.storage.code);
    let of_place = |(name, group, count, blocks): (&'static str, FailureGroup, u64, u64)| {
        let survives = match storage.parity {
            Parity::Client => {
                // Where strips are kept apart by this place, it holds as few as possible; else as
                // many as its servers do, but no more than its site.
                let servers = tier.servers.as_ref().map_or(1, |servers| servers.per_block);
                let apart = |units: u64| code.width().div_ceil(units.max(1));
                let unaware = apart(tier.blocks * servers) * servers * blocks;
                let strips = match tier.failure_group.cmp(&group) {
                    Ordering::Equal => apart(count),
                    Ordering::Greater => unaware.min(apart(system.sites)),
                    Ordering::Less => unaware,
                };
                strips.min(code.width()) <= code.tolerates()
            }
            _ => tier.replicas > 1 && tier.failure_group >= group && count > 1,
        };
        let what = format!("one {name}");
        if !survives || blocks >= tier.blocks {
            let offline = match storage.parity {
                Parity::Client => block_usable(tier, 1),
                _ => block_usable(tier, 1) * blocks as f64,
            };
            let data = format!(
                "{} offline: {blocks} of {} blocks stand in it",
                Unit::Bytes.show(offline),
                tier.blocks
            );
            return loss(system, tier, &what, data, offline, Lost::default());
        }
        let data = format!("all there; strips or copies are kept apart by {name}s");
        let rates = |metric| without_blocks(system, tier, metric, blocks);
        let left: Vec<Figure> = Metric::ALL.into_iter().map(rates).collect();
        LossEvaluation { lost: what, data, offline: 0.0, at_most: left.clone(), at_least: left }
    };
    places(system, tier).into_iter().map(of_place).collect()
}

/// A rate without so many whole blocks.
fn without_blocks(system: &System, tier: &Tier, metric: Metric, blocks: u64) -> Figure {
    let unit = metric.unit();
    let block = Figure::minimum("a block", unit, block_stages(tier, metric, Lost::default()));
    let left = tier.blocks.saturating_sub(blocks) as f64;
    let left = Figure::design("blocks left", Unit::Count, left);
    let mut limits = vec![Figure::product("the blocks left", unit, vec![left, block])];
    let clients = system.clients.as_ref();
    limits.extend(clients.map_or_else(Vec::new, |clients| client_stages(clients, tier, metric)));
    Figure::minimum(metric.label(), unit, limits)
}

/// Usable bytes of `parts` equal parts of a block, or of everything where stripes lie over all.
fn block_usable(tier: &Tier, parts: u64) -> f64 {
    let blocks = if tier.storage.parity == Parity::Client { tier.blocks } else { 1 };
    let blocks = Figure::design("blocks", Unit::Count, blocks as f64);
    usable(tier, &blocks).value / parts as f64
}

fn server_loss(system: &System, tier: &Tier) -> Option<LossEvaluation> {
    let servers = tier.servers.as_ref()?;
    let storage = &tier.storage;
    let mut lost = Lost { servers: 1.0, ..Lost::default() };
    let (data, offline) = if let Some(domain) = server_domain(tier) {
        let offline = if domain.survives == 0 { block_usable(tier, 1) } else { 0.0 };
        (domain.says(&storage.code.name), offline)
    } else if storage.enclosure.inside_server() {
        let offline = block_usable(tier, servers.per_block);
        let gone = Unit::Bytes.show(offline);
        (format!("{gone} offline: its disks are inside it, no other server reaches them"), offline)
    } else if servers.per_block > 1 {
        // Controllers inside the servers (canisters) go with them.
        if storage.parity == Parity::Server && storage.ceiling.is_some() {
            lost.enclosures = storage.per_block as f64 / servers.per_block as f64;
        }
        ("all there; the block's other servers take over".to_string(), 0.0)
    } else {
        let offline = block_usable(tier, 1);
        let gone = Unit::Bytes.show(offline);
        (format!("{gone} offline: no second server is cabled to the block"), offline)
    };
    Some(loss(system, tier, "one server", data, offline, lost))
}

fn enclosure_loss(system: &System, tier: &Tier) -> Option<LossEvaluation> {
    let storage = &tier.storage;
    let housings = storage.enclosure.housings();
    let disks = storage.disks_in_use() as f64 / (storage.per_block * housings) as f64;
    let lost = Lost { disks, enclosures: 1.0 / housings as f64, ..Lost::default() };
    if storage.parity == Parity::Controller {
        if storage.enclosure.inside_server() {
            return None;
        }
        let offline = block_usable(tier, storage.per_block);
        let data = format!("{} offline until it is back", Unit::Bytes.show(offline));
        return Some(loss(system, tier, "one enclosure with its trays", data, offline, lost));
    }
    let domain = enclosure_domain(tier)?;
    let offline = if domain.survives == 0 { block_usable(tier, 1) } else { 0.0 };
    let mut data = domain.says(&storage.code.name);
    if offline > 0.0 {
        data = format!("{} {data}", Unit::Bytes.show(offline));
    }
    Some(loss(system, tier, "one enclosure", data, offline, lost))
}

fn loss(
    system: &System,
    tier: &Tier,
    what: &str,
    data: String,
    offline: f64,
    lost: Lost,
) -> LossEvaluation {
    // Copies that the file system keeps lie in other blocks.
    let copied = offline > 0.0
        && tier.replicas > 1
        && tier.storage.parity != Parity::Client
        && offline <= block_usable(tier, 1) * (1.0 + 1e-9)
        && !matches!(what, "one rack" | "one site");
    let (data, offline) = match copied {
        true => ("all there; other blocks hold copies".to_string(), 0.0),
        false => (data, offline),
    };
    let rates = |metric| match copied {
        true => {
            let left = without_blocks(system, tier, metric, 1);
            (left.clone(), left)
        }
        false => bounds(system, tier, metric, lost),
    };
    let (at_least, at_most) = match offline > 0.0 {
        true => (Vec::new(), Vec::new()),
        false => Metric::ALL.into_iter().map(rates).unzip(),
    };
    LossEvaluation { lost: what.into(), data, offline, at_most, at_least }
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
            let least = Figure::product(metric.label(), unit, all);
            // Where stripes lie over all blocks, all of them help to rebuild.
            let everywhere = tier.storage.parity == Parity::Client && lost.busy > 0.0;
            if everywhere { (least.clone(), least) } else { (least, most) }
        }
    };
    let clients = system
        .clients
        .as_ref()
        .map_or_else(Vec::new, |clients| client_stages(clients, tier, metric));
    let limit = |left: Figure| {
        let mut limits = vec![left];
        limits.extend(clients.iter().cloned());
        Figure::minimum(metric.label(), unit, limits)
    };
    (limit(least), limit(most))
}
