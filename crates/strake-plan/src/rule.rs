//! The documents' rules of construction, as warnings about a design.
//!
//! A warning never changes a figure. Each says what is wrong, what to do, and which document has
//! the rule. A warning that is `broken` says that the design does not keep what its code promises;
//! commands that judge a design then end with exit code 1.

use crate::design::{Holds, System, Tier, Workload};
use crate::evaluate::usable;
use crate::figure::Figure;
use crate::inventory::{block_units, storage_ports};
use crate::library::{AdapterKind, Parity, WriteCache};
use crate::loss::{disk_domain, enclosure_domain, server_domain};
use crate::stage::{Lost, Metric, block_stages};
use crate::unit::Unit;
use serde::Serialize;

/// Something to reconsider.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Warning {
    /// Stable name of the rule.
    pub rule: String,
    pub tier: String,
    /// What is wrong and what to do.
    pub text: String,
    /// Where the rule comes from.
    pub source: String,
    /// A promise is broken: an error, not advice.
    pub broken: bool,
}

/// All warnings about a system.
pub fn warnings(system: &System) -> Vec<Warning> {
    let mut all = Vec::new();
    for tier in &system.tiers {
        let mut warn = |rule: &str, text: String, source: &str| {
            all.push(Warning {
                rule: rule.into(),
                tier: tier.name.clone(),
                text,
                source: source.into(),
                broken: rule == PROMISE_BROKEN,
            });
        };
        trays(tier, &mut warn);
        disks(tier, &mut warn);
        segment(tier, &mut warn);
        cabling(system, tier, &mut warn);
        servers(tier, &mut warn);
        slots(tier, &mut warn);
        own_codes(tier, &mut warn);
        promise(tier, &mut warn);
    }
    all.extend(metadata(system));
    all
}

/// Separate metadata disks must hold what the file system keeps about the others' files.
fn metadata(system: &System) -> Option<Warning> {
    let blocks = |tier: &Tier| Figure::design("blocks", Unit::Count, tier.blocks as f64);
    let of = |holds: Holds| {
        let tiers = system.tiers.iter().filter(move |tier| tier.holds == holds);
        tiers.map(|tier| usable(tier, &blocks(tier)).value).sum::<f64>()
    };
    let alone = system.tiers.iter().find(|tier| tier.holds != Holds::Both)?;
    let needed = system.filesystem.metadata_share.value * of(Holds::Data);
    let room = of(Holds::Metadata);
    (room < needed).then(|| Warning {
        rule: "metadata-disks-too-small".into(),
        tier: alone.name.clone(),
        text: format!(
            "files of {} need about {} for metadata, and the tiers that hold metadata alone have {}",
            Unit::Bytes.show(of(Holds::Data)),
            Unit::Bytes.show(needed),
            Unit::Bytes.show(room)
        ),
        source: system.filesystem.metadata_share.source.clone(),
        broken: false,
    })
}

/// The rule whose breach is an error.
const PROMISE_BROKEN: &str = "promise-broken";

type Warn<'a> = dyn FnMut(&str, String, &str) + 'a;

fn trays(tier: &Tier, warn: &mut Warn) {
    let storage = &tier.storage;
    let filled: Vec<u64> = match storage.enclosure.bays.value {
        0 => storage.disks_per_tray.iter().skip(1).copied().collect(),
        _ => storage.disks_per_tray.clone(),
    };
    if filled.windows(2).any(|pair| pair[0] != pair[1]) {
        warn(
            "uneven-trays",
            format!("trays hold {filled:?} disks; put the same number in each"),
            "dcs3700: Disks, Expansion Trays and Drive Channels",
        );
    }
    if storage.trays == 0 || storage.enclosure.bays.value == 0 {
        return;
    }
    // The same disks behind one controller pair each, against trays behind one pair.
    let stream = |metric| {
        let stages = block_stages(tier, metric, Lost::default());
        let controllers = stages.iter().find(|stage| stage.name == "controllers");
        controllers.map_or(0.0, |stage| stage.value)
    };
    let rows = &storage.enclosure.stream;
    let mode = storage.ceiling.map(|row| row.write_cache);
    let Some(alone) = rows
        .iter()
        .filter(|r| Some(r.write_cache) == mode && r.disks_min <= storage.enclosure.bays.value)
        .max_by_key(|r| r.disks_min)
    else {
        return;
    };
    let pairs = (storage.per_block * (1 + storage.trays)) as f64;
    let show = |value| Unit::BytesPerSecond.show(value);
    warn(
        "tray-instead-of-controller",
        format!(
            "trays add capacity, hardly rate: the controllers of a block carry {} write and {} \
             read; {pairs} enclosures without trays would carry {} and {}",
            show(stream(Metric::Write)),
            show(stream(Metric::Read)),
            show(alone.write.value.0 * pairs),
            show(alone.read.value.0 * pairs),
        ),
        "dcs3700: Capacity vs. Performance",
    );
}

fn disks(tier: &Tier, warn: &mut Warn) {
    let storage = &tier.storage;
    let class = storage.disk.class.as_str();
    if tier.workload == Workload::Iops && class.starts_with("nl-sas") {
        warn(
            "nl-sas-for-iops",
            "near-line disks seek slowly; take 15,000 rpm disks or solid state for small random \
             transfers, near-line for a second tier"
                .into(),
            "dcs3700: Streaming vs. IOP Performance",
        );
    }
    if class.starts_with("nl-sas") && storage.code.tolerates() < 2 {
        warn(
            "one-parity-on-nl-sas",
            format!(
                "{} survives one loss and near-line disks rebuild slowly; take two parity strips",
                storage.code.name
            ),
            "dcs3700: Optimal RAID 6 layout, best practices",
        );
    }
    let in_arrays = storage.arrays_per_enclosure() * storage.code.width();
    if storage.parity == Parity::Controller && in_arrays < storage.disks_per_enclosure() {
        warn(
            "disks-in-no-array",
            format!(
                "{} of {} disks per enclosure fit in no {} array; they can only be hot spares",
                storage.disks_per_enclosure() - in_arrays,
                storage.disks_per_enclosure(),
                storage.code.name
            ),
            "arithmetic: disks modulo the width of an array",
        );
    }
    let cached = storage.ceiling.is_some_and(|row| row.write_cache == WriteCache::Unmirrored);
    if cached && storage.enclosure.controllers.value > 1 {
        warn(
            "unmirrored-write-cache",
            "an unmirrored write cache dies with its controller and may take the file system \
             along; mirror it or switch it off"
                .into(),
            "dcs3700: Phase 1 cache settings, note 1; p690-x335: Disk and file system configuration",
        );
    }
}

fn segment(tier: &Tier, warn: &mut Warn) {
    let storage = &tier.storage;
    // blocksize = Q * N * segment with whole Q, or a write of one block reads before it writes.
    let quotient = storage.block_size / (storage.code.data as f64 * storage.segment);
    if quotient < 1.0 || quotient.fract() != 0.0 {
        warn(
            "segment",
            format!(
                "block {} is no whole multiple of {} data disks x segment {}: every block write \
                 also reads; set the segment to {}",
                Unit::Bytes.show(storage.block_size),
                storage.code.data,
                Unit::Bytes.show(storage.segment),
                Unit::Bytes.show(storage.block_size / storage.code.data as f64),
            ),
            "p690-x335: Appendix A; dcs3700: Phase 1 tuning parameters, item 4",
        );
    } else if quotient > 1.0 && storage.parity == Parity::Controller {
        warn(
            "segment",
            format!(
                "block {} = {quotient} x {} x segment {}: whole stripes, but the segment that \
                 makes it one is {}",
                Unit::Bytes.show(storage.block_size),
                storage.code.data,
                Unit::Bytes.show(storage.segment),
                Unit::Bytes.show(storage.block_size / storage.code.data as f64),
            ),
            "dcs3700: Phase 1 tuning parameters, item 4",
        );
    }
}

fn cabling(system: &System, tier: &Tier, warn: &mut Warn) {
    let (available, needed) = storage_ports(tier);
    let switched = tier.servers.as_ref().is_some_and(|servers| servers.switch.is_some());
    if available > 0 && available < needed && !switched {
        warn(
            "storage-ports",
            format!(
                "a block has {available} storage ports on its servers for {needed} on its \
                 enclosures; add adapters, take servers with more slots, or a SAS switch"
            ),
            "dcs3700: Solution #2d; Component availability 2b",
        );
    }
    let cabled = tier.storage.enclosure.host_ports.value > 0 && tier.servers.is_some();
    if cabled && system.servers_apart {
        warn(
            "long-sas-cables",
            "servers in another rack need SAS cables of 6 m, which are not standard (3 m is); \
             keep a block in one rack or take Fibre Channel"
                .into(),
            "dcs3700: Solution #2c.2, caution",
        );
    }
    let (storage, servers) = block_units(tier);
    let block = if system.servers_apart { storage } else { storage + servers };
    let room = system.rack.units.value.saturating_sub(system.reserve_units);
    if block > room {
        warn(
            "block-higher-than-rack",
            format!("a block of {block}U does not fit the {room}U of {}", system.rack.name),
            "dcs3700: Solution #1a.1, SAS cable lengths",
        );
    }
    if system.rack.units.value > 42 {
        warn(
            "rack-loaded-on-site",
            format!("{} cannot be shipped loaded; it is filled on site", system.rack.name),
            "dcs3700: Component availability 1b",
        );
    }
}

fn servers(tier: &Tier, warn: &mut Warn) {
    let Some(servers) = &tier.servers else { return };
    let code = tier.storage.code;
    if let Some(domain) = server_domain(tier) {
        if domain.survives == 0 {
            warn(
                "server-loss-not-tolerated",
                format!(
                    "{} up to {} strips of each stripe but {} tolerates {}; take more servers \
                     or a code with more parity",
                    domain.hold(),
                    domain.strips,
                    code.name,
                    code.tolerates()
                ),
                "arithmetic: strips of a stripe per server",
            );
        }
    } else if tier.storage.enclosure.inside_server() && tier.storage.parity != Parity::Client {
        warn(
            "disks-inside-servers",
            "each server's disks hang on an adapter inside it: while a server is down its data is \
             offline; take an enclosure that two servers are cabled to"
                .into(),
            "p690-x335: Disk and file system configuration",
        );
    } else if servers.per_block < 2 {
        warn(
            "one-server",
            "a block with one server has no second path to its disks; take two".into(),
            "p690-x335: Disk and file system configuration",
        );
    }
    if let Some(domain) = enclosure_domain(tier)
        && domain.survives == 0
    {
        warn(
            "enclosure-loss-not-tolerated",
            format!(
                "{} up to {} strips of each stripe but {} tolerates {}",
                domain.hold(),
                domain.strips,
                code.name,
                code.tolerates()
            ),
            "arithmetic: strips of a stripe per enclosure",
        );
    }
}

/// Strake computes the redundancy with codes of its own table.
fn own_codes(tier: &Tier, warn: &mut Warn) {
    let code = &tier.storage.code.name;
    let clients = tier.storage.parity == Parity::Client;
    if !clients || tier.filesystem.name != "strake" {
        return;
    }
    if let Err(error) = code.parse::<strake_proto::Code>() {
        warn(
            "code-not-in-strake",
            format!("Strake cannot do this: {error}"),
            "strake: docs/GLOSSARY.md",
        );
    }
}

/// An adapter that is faster than the slot it sits in.
fn slots(tier: &Tier, warn: &mut Warn) {
    let Some(servers) = &tier.servers else { return };
    let Some(slot) = &servers.model.slot_rate else { return };
    for adapter in [servers.lan, servers.hba].into_iter().flatten() {
        let wire = adapter.ports.value as f64 * adapter.port_rate.value.0;
        let needs = adapter.app_rate.as_ref().map_or(wire, |app| app.value.0.min(wire));
        // SAS host adapters have more ports than any slot carries; one port is what they must.
        let needs =
            if adapter.kind == AdapterKind::Lan { needs } else { adapter.port_rate.value.0 };
        if needs <= slot.value.0 {
            continue;
        }
        warn(
            "adapter-beyond-slot",
            format!(
                "{} could carry {}, but a slot of {} carries {}; take a slower adapter or another \
                 server",
                adapter.name,
                Unit::BytesPerSecond.show(needs),
                servers.model.name,
                Unit::BytesPerSecond.show(slot.value.0)
            ),
            &slot.source,
        );
    }
}

/// A code with P redundant strips is bought to survive P disks; sharing disks breaks that.
fn promise(tier: &Tier, warn: &mut Warn) {
    let (disks, storage) = (disk_domain(tier), &tier.storage);
    let tolerates = storage.code.tolerates();
    if disks.survives >= tolerates {
        return;
    }
    let rule = if storage.strips_share_disks { "strips-share-disks" } else { PROMISE_BROKEN };
    warn(
        rule,
        format!(
            "{} promises to survive {tolerates} lost disks, but {} up to {} strips of each \
             stripe, so it survives {}; take {} disks or a narrower code{}",
            storage.code.name,
            disks.hold(),
            disks.strips,
            disks.survives,
            storage.code.width(),
            if storage.strips_share_disks {
                ""
            } else {
                ", or accept it: strips_share_disks = true"
            },
        ),
        "arithmetic: strips of a stripe per disk",
    );
}

#[cfg(test)]
#[path = "rule_test.rs"]
mod rule_test;
