//! An evaluation as text for a terminal.

use crate::evaluate::{Evaluation, TierEvaluation};
use crate::figure::Figure;
use crate::inventory::Inventory;
use crate::loss::LossEvaluation;
use crate::mix::MixEvaluation;
use crate::montecarlo::TierReliability;
use crate::solve::Answer;
use crate::unit::Unit;
use std::collections::BTreeSet;

/// The whole evaluation; with `explain` also the derivation of every figure.
pub fn render(evaluation: &Evaluation, explain: bool) -> String {
    let mut out = format!("{}\n", evaluation.title);
    for tier in &evaluation.tiers {
        render_tier(&mut out, tier);
    }
    render_mixes(&mut out, &evaluation.mixes);
    render_totals(&mut out, evaluation);
    for (title, broken) in [("Errors", true), ("Warnings", false)] {
        let of_kind = evaluation.warnings.iter().filter(|warning| warning.broken == broken);
        for (index, warning) in of_kind.enumerate() {
            if index == 0 {
                out.push_str(&format!("\n{title}\n"));
            }
            let (rule, tier) = (&warning.rule, &warning.tier);
            out.push_str(&format!("  {rule} ({tier}): {} [{}]\n", warning.text, warning.source));
        }
    }
    if explain {
        out.push_str("\nDerivations\n");
        for tier in &evaluation.tiers {
            out.push_str(&format!("\nTier {}\n", tier.name));
            for figure in tier.figures() {
                out.push_str(&figure.explain());
            }
            for loss in &tier.losses {
                // Rates that the loss leaves as they were are explained above.
                let changed = loss.at_least.iter().zip(&tier.rates);
                for (left, _) in changed.filter(|(left, rate)| left.value < rate.total.value) {
                    out.push_str(&format!("after the loss of {}, at least: ", loss.lost));
                    out.push_str(&left.explain());
                }
            }
        }
        out.push_str("\nWhole system\n");
        out.push_str(&evaluation.metadata.explain());
        for figure in evaluation.inventory.figures() {
            out.push_str(&figure.explain());
        }
    } else {
        out.push_str("\nEvery figure's derivation and sources: --explain\n");
    }
    out
}

fn render_mixes(out: &mut String, mixes: &[MixEvaluation]) {
    for mix in mixes {
        let wanted = match mix.enough {
            None => "",
            Some(true) => "; as much as wanted",
            Some(false) => "; LESS than wanted",
        };
        out.push_str(&format!(
            "\nMix {} (tier {})\n  < {}, {}; each takes {}, alone {}; gated by {}{wanted}\n",
            mix.name,
            mix.tier,
            Unit::OperationsPerSecond.show(mix.rate),
            Unit::BytesPerSecond.show(mix.bytes),
            Unit::Seconds.show(mix.time),
            Unit::Seconds.show(mix.alone),
            mix.gate,
        ));
        for (lost, rate) in &mix.degraded {
            let rate = Unit::OperationsPerSecond.show(*rate);
            out.push_str(&format!("  after a loss of {lost}: {rate}\n"));
        }
    }
}

/// Both models of each tier.
pub fn render_reliability(tiers: &[TierReliability]) -> String {
    let mut out = String::new();
    for tier in tiers {
        out.push_str(&format!("Tier {}\n", tier.tier));
        if let Some(markov) = &tier.markov {
            for figure in markov.figures() {
                out.push_str(&format!("{}: {}\n", figure.name, figure.show()));
                for input in figure.inputs() {
                    out.push_str(&format!("  {}: {}\n", input.name, input.show()));
                }
            }
        }
        if let Some(found) = &tier.simulated {
            let years = |time: Option<f64>| {
                time.map_or("longer than the sample shows".into(), |time| Unit::Years.show(time))
            };
            out.push_str(&format!(
                "simulated: data loss in a year {} (95 %: {} to {}), mean time to it {}\n  {} of {} \
                 trials ended in a loss, on {} stripes of Strake's placement{}, seed {}; ended: {}\n",
                Unit::Probability.show(found.loss_per_year),
                Unit::Probability.show(found.interval.0),
                Unit::Probability.show(found.interval.1),
                years(found.mttdl),
                found.losses,
                found.trials,
                found.stripes,
                found.stripes_full.map_or_else(String::new, |full| {
                    let full = crate::unit::thousands(full as f64);
                    format!(" and, by its rule, all {full} of a full file system")
                }),
                found.seed,
                found.ended.says(),
            ));
        }
        if let Some(why) = &tier.without {
            out.push_str(&format!("not simulated: {why}\n"));
        }
    }
    out
}

/// The answers of `solve`, best first.
pub fn render_answers(answers: &[Answer]) -> String {
    let mut out = String::new();
    for (index, answer) in answers.iter().enumerate() {
        let evaluation = &answer.evaluation;
        let inventory = &evaluation.inventory;
        let rates: Vec<String> =
            evaluation.tiers[0].rates.iter().map(|rate| rate.total.show()).collect();
        out.push_str(&format!("{}. {}\n", index + 1, answer.design.title));
        out.push_str(&format!(
            "   {}: usable {}, raw {}; write {}, read {}, IOPS {} and {}\n",
            answer.kind,
            evaluation.usable.show(),
            evaluation.raw.show(),
            rates[0],
            rates[1],
            rates[2],
            rates[3],
        ));
        out.push_str(&format!(
            "   {}; {} in {}{}\n",
            parts(inventory),
            inventory.rack_units.show(),
            counted(&inventory.racks, "rack"),
            inventory.price.as_ref().map_or(String::new(), |price| format!(", {}", price.show())),
        ));
        for why in &answer.why {
            out.push_str(&format!("   - {why}\n"));
        }
        for warning in &evaluation.warnings {
            out.push_str(&format!("   ! {}: {}\n", warning.rule, warning.text));
        }
        out.push('\n');
    }
    out.push_str("--out DIR writes these designs as files; evaluate one with --explain.\n");
    out
}

fn render_tier(out: &mut String, tier: &TierEvaluation) {
    let blocks = if tier.blocks == 1 { "block" } else { "blocks" };
    out.push_str(&format!("\nTier {} ({} building {blocks})\n", tier.name, tier.blocks));
    out.push_str(&format!(
        "  capacity         raw {}, usable {} ({} in powers of ten){}\n",
        tier.raw.show(),
        tier.usable.show(),
        Unit::RawBytes.show(tier.usable.value),
        tier.lun.as_ref().map_or(String::new(), |lun| format!(", {} per LUN", lun.show())),
    ));
    for rate in &tier.rates {
        let over = rate.oversized();
        let over = if over.is_empty() { String::new() } else { format!("; oversized: {over}") };
        out.push_str(&format!(
            "  {:<16} < {:<14} gated by {}{over}\n",
            rate.metric.label(),
            rate.total.show(),
            rate.gates(),
        ));
    }
    for core in &tier.per_core {
        out.push_str(&format!("  {:<24} < {}\n", core.name, core.show()));
    }
    for local in &tier.local_iops {
        out.push_str(&format!("  IOPS             < {} ({})\n", local.show(), local.name));
    }
    let unit = tier.rebuild_unit.as_ref().map_or(String::new(), |time| {
        let what = time.name.trim_start_matches("rebuild of one ");
        format!("; of a {what} {}", time.show())
    });
    out.push_str(&format!("  rebuild          {} of a full disk{unit}\n", tier.rebuild.show()));
    if let Some(cold) = &tier.cold_block {
        out.push_str(&format!("  cold block       {}\n", cold.show()));
    }
    let latency: Vec<String> =
        tier.latency.iter().map(|time| format!("{} {}", time.name, time.show())).collect();
    out.push_str(&format!("  latency          {}\n", latency.join(", ")));
    if let Some(reliability) = &tier.reliability {
        out.push_str(&format!(
            "  reliability      data loss in a year {}, mean time to it {}{}\n",
            reliability.loss_per_year.show(),
            reliability.mttdl.show(),
            reliability
                .offline
                .as_ref()
                .map_or(String::new(), |time| format!("; offline {} a year", time.show())),
        ));
        if let Some(free) = &reliability.keep_free {
            out.push_str(&format!(
                "  keep free        {} {}\n",
                free.show(),
                free.name.trim_start_matches("keep free ")
            ));
        }
    }
    out.push_str("  after a loss of\n");
    for loss in &tier.losses {
        out.push_str(&format!("    {}: {}\n", loss.lost, loss.data));
        if let [write, read, iops_write, iops_read] = &spans(loss)[..] {
            out.push_str(&format!(
                "      write {write}, read {read}, IOPS write {iops_write}, read {iops_read}\n"
            ));
        }
    }
}

/// The rates that are left; none where data is offline.
pub(crate) fn spans(loss: &LossEvaluation) -> Vec<String> {
    loss.at_least.iter().zip(&loss.at_most).map(|(least, most)| span(least, most)).collect()
}

/// Two bounds, or the one that both are.
fn span(least: &Figure, most: &Figure) -> String {
    let (least, most) = (least.show(), most.show());
    if least == most { least } else { format!("{least} … {most}") }
}

/// "1 rack" or "3 racks".
fn counted(count: &Figure, noun: &str) -> String {
    let plural = if count.value == 1.0 { "" } else { "s" };
    format!("{} {noun}{plural}", count.show())
}

/// The parts of which there are any.
fn parts(inventory: &Inventory) -> String {
    let mut disks = counted(&inventory.disks, "disk");
    if inventory.arrays.value > 0.0 {
        disks.push_str(&format!(" in {}", counted(&inventory.arrays, "array")));
    }
    let others = [
        (&inventory.enclosures, "enclosure"),
        (&inventory.trays, "tray"),
        (&inventory.servers, "server"),
    ];
    let there = others.iter().filter(|(count, _)| count.value > 0.0);
    let others = there.map(|(count, noun)| counted(count, noun));
    [disks].into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

fn ports(inventory: &Inventory) -> String {
    let mut out = format!("{} network", inventory.lan_ports.show());
    let (on_servers, needed) =
        (&inventory.storage_ports_available, &inventory.storage_ports_needed);
    if on_servers.value > 0.0 {
        let storage = on_servers.show();
        out.push_str(&match needed.value > 0.0 {
            true => format!("; {storage} storage on servers for {} on enclosures", needed.show()),
            false => {
                format!("; {storage} storage on servers, whose cables come with the enclosures")
            }
        });
    }
    format!("{out}; {}", counted(&inventory.cables, "cable"))
}

fn render_totals(out: &mut String, evaluation: &Evaluation) {
    let inventory = &evaluation.inventory;
    out.push_str("\nWhole system\n");
    out.push_str(&format!(
        "  capacity         raw {}, usable {}, of which metadata about {} ({})\n",
        evaluation.raw.show(),
        evaluation.usable.show(),
        evaluation.metadata.show(),
        evaluation.metadata.inputs()[1].show(),
    ));
    out.push_str(&format!(
        "  parts            {}\n  ports            {}\n",
        parts(inventory),
        ports(inventory)
    ));
    let fit: Vec<String> = inventory.blocks_per_rack.iter().map(u64::to_string).collect();
    out.push_str(&format!(
        "  racks            {} in {} ({} blocks per rack)\n",
        inventory.rack_units.show(),
        counted(&inventory.racks, "rack"),
        fit.join(" and "),
    ));
    let room = &inventory.room;
    let known = [&room.power, &room.heat, &room.weight].into_iter().flatten();
    let known: Vec<String> =
        known.map(|figure| format!("{} {}", figure.name, figure.show())).collect();
    if !known.is_empty() {
        let without: BTreeSet<&String> =
            room.without_power.iter().chain(&room.without_weight).collect();
        let without: Vec<&str> = without.into_iter().map(String::as_str).collect();
        let rest = match without.is_empty() {
            true => String::new(),
            false => format!("; not counted: {}", without.join(", ")),
        };
        out.push_str(&format!("  room             {}{rest}\n", known.join(", ")));
    }
    if let Some(price) = &inventory.price {
        out.push_str(&format!("  price            {}\n", price.show()));
        for (tier, step) in &inventory.steps {
            let step = Unit::Price.show(*step);
            out.push_str(&format!("  one more block   {step} (tier {tier})\n"));
        }
    } else if !inventory.unpriced.is_empty() {
        let parts = inventory.unpriced.join(", ");
        out.push_str(&format!("  price            unknown: the library has none for {parts}\n"));
    }
}
