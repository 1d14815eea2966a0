//! A design's report: one HTML page that needs nothing else, and the same as Markdown.

use crate::design::System;
use crate::elevation::elevation;
use crate::evaluate::{Evaluation, TIE, TierEvaluation};
use crate::figure::{Derivation, Figure};
use crate::mix::MixEvaluation;
use crate::reliability::Reliability;
use crate::stage::Metric;
use crate::svg::{Bar, bars, chain, racks};
use crate::text::spans;
use crate::unit::Unit;
use std::fmt::Write as _;
use strake_report::escape;

/// Racks drawn at most; the rest look the same.
const RACKS_DRAWN: usize = 6;

const STYLE: &str = "
:root { --ink: #1c2430; --soft: #5b6675; --line: #cfd6df; --fill: #e8eef6; --bar: #7fa3cf;
  --gate: #c8402f; --gatefill: #fbe6e2; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff;
  max-width: 1040px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; margin: 0.8rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.number { text-align: right; white-space: nowrap; }
th.number { text-align: right; }
svg { display: block; width: 100%; height: auto; margin: 0.8rem 0; font-family: inherit; }
svg text { fill: var(--ink); font-size: 13px; }
svg .head { font-weight: 600; } svg .small { font-size: 12px; } svg .tiny { font-size: 9px; }
svg .end { text-anchor: end; } svg .link { stroke: var(--soft); stroke-width: 2; }
svg .box, svg .rack { fill: var(--fill); stroke: var(--soft); } svg .rack { fill: #fafbfc; }
svg .bar { fill: var(--bar); } svg .gatetext { fill: var(--gate); font-weight: 600; }
svg .box.gate { fill: var(--gatefill); stroke: var(--gate); stroke-width: 2.5; }
svg .bar.gate { fill: var(--gate); }
svg .part { stroke: #fff; } svg .enclosure { fill: #a9c3e4; } svg .tray { fill: #cddcf0; }
svg .server { fill: #b9dcb4; } svg .switch { fill: #efd9a3; }
.warning { border-left: 4px solid var(--gate); padding: 0.3rem 0.8rem; margin: 0.5rem 0;
  background: var(--gatefill); }
.source { color: var(--soft); font-size: 0.88em; }
details { margin-left: 1.1rem; } summary { cursor: pointer; }
details > div { margin-left: 1.1rem; }
";

/// The page.
pub fn html(system: &System, evaluation: &Evaluation) -> String {
    let mut out = String::new();
    let title = escape(&evaluation.title);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style></head>\n\
         <body>\n<h1>{title}</h1>\n<p class=\"source\">Rates are least upper bounds. Raw capacity \
         counts in powers of ten; TB and GB/s otherwise in powers of two.</p>\n"
    );
    summary(&mut out, evaluation);
    for (tier, design) in evaluation.tiers.iter().zip(&system.tiers) {
        let _ = writeln!(out, "<h2>Tier {}</h2>", escape(&tier.name));
        out.push_str(&chain(system, design, tier));
        rate_bars(&mut out, tier);
        capacity_bars(&mut out, tier, evaluation.metadata.inputs()[1].value);
        losses(&mut out, tier);
    }
    mixes(&mut out, &evaluation.mixes);
    let views = elevation(system, RACKS_DRAWN);
    let drawn = views.len() as f64;
    let _ = write!(out, "<h2>Racks</h2>\n<div>{}</div>\n", racks(&views));
    if evaluation.inventory.racks.value > drawn {
        let more = evaluation.inventory.racks.value - drawn;
        let _ = writeln!(out, "<p>{more} more racks like these.</p>");
    }
    parts(&mut out, evaluation);
    warnings(&mut out, evaluation);
    out.push_str(
        "<h2>Derivations</h2>\n<p>Every figure with what it is made of; constants carry \
                  their source.</p>\n",
    );
    for figure in figures(evaluation) {
        derivation(&mut out, figure, false);
    }
    out.push_str("</body></html>\n");
    out
}

fn figures(evaluation: &Evaluation) -> Vec<&Figure> {
    let mut all: Vec<&Figure> = evaluation.tiers.iter().flat_map(TierEvaluation::figures).collect();
    all.push(&evaluation.metadata);
    all.extend(evaluation.inventory.figures());
    all
}

fn summary(out: &mut String, evaluation: &Evaluation) {
    out.push_str(
        "<h2>Summary</h2>\n<table><tr><th>Tier</th><th>Figure</th>\
                  <th class=\"number\">Value</th><th>Gated by</th></tr>\n",
    );
    for tier in &evaluation.tiers {
        let name = escape(&tier.name);
        let mut row = |what: &str, value: String, gate: &str| {
            let _ = writeln!(
                out,
                "<tr><td>{name}</td><td>{what}</td><td class=\"number\">{value}</td><td>{}</td></tr>",
                escape(gate)
            );
        };
        row("raw capacity", tier.raw.show(), "");
        row("usable capacity", tier.usable.show(), "");
        for rate in &tier.rates {
            row(rate.metric.label(), format!("&lt; {}", rate.total.show()), &rate.gates());
        }
        for core in &tier.per_core {
            row(&core.name, format!("&lt; {}", core.show()), "");
        }
        row("rebuild of a disk", tier.rebuild.show(), "");
        for time in &tier.latency {
            row(&time.name, time.show(), "");
        }
        for figure in tier.reliability.iter().flat_map(Reliability::figures) {
            row(&figure.name, figure.show(), "");
        }
    }
    out.push_str("</table>\n");
}

fn rate_bars(out: &mut String, tier: &TierEvaluation) {
    for rate in &tier.rates {
        let bar = |stage: &crate::evaluate::StageBalance| Bar {
            label: stage.stage.clone(),
            value: format!("{} (x{:.2})", rate.metric.unit().show(stage.capacity), stage.times),
            size: stage.capacity,
            gates: stage.times <= TIE,
        };
        let title = format!("{}: what each stage carries", rate.metric.label());
        out.push_str(&bars(&title, &rate.balance.iter().map(bar).collect::<Vec<_>>()));
    }
}

fn capacity_bars(out: &mut String, tier: &TierEvaluation, metadata_share: f64) {
    let bar = |label: &str, bytes: f64, value: String| Bar {
        label: label.into(),
        value,
        size: bytes,
        gates: false,
    };
    let data = tier.usable.value * (1.0 - metadata_share);
    let all = [
        bar("raw", tier.raw.value, format!("{} (powers of ten)", tier.raw.show())),
        bar("after redundancy", tier.usable.value, tier.usable.show()),
        bar("after metadata", data, Unit::Bytes.show(data)),
    ];
    out.push_str(&bars("capacity", &all));
}

fn losses(out: &mut String, tier: &TierEvaluation) {
    out.push_str("<table><tr><th>After a loss of</th><th>the data is</th>");
    for metric in Metric::ALL {
        let _ = write!(out, "<th class=\"number\">{}</th>", metric.label());
    }
    out.push_str("</tr>\n");
    for loss in &tier.losses {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escape(&loss.lost), escape(&loss.data));
        let rates = spans(loss);
        if rates.is_empty() {
            out.push_str("<td class=\"number\" colspan=\"4\">no rate: data is offline</td>");
        }
        for rate in rates {
            let rate = rate.replace(" … ", " …<br>");
            let _ = write!(out, "<td class=\"number\">{rate}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str(
        "</table>\n<p class=\"source\">Two values: every stripe waits for the slowest \
                  block … the other blocks keep their pace.</p>\n",
    );
}

fn mixes(out: &mut String, mixes: &[MixEvaluation]) {
    if mixes.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Mixes</h2>\n<table><tr><th>Mix</th><th>Tier</th><th class=\"number\">Operations</th>\
         <th class=\"number\">Bytes</th><th class=\"number\">Time of one</th><th>Gated by</th>\
         </tr>\n",
    );
    for mix in mixes {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"number\">&lt; {}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td>{}{}</td></tr>",
            escape(&mix.name),
            escape(&mix.tier),
            Unit::OperationsPerSecond.show(mix.rate),
            Unit::BytesPerSecond.show(mix.bytes),
            Unit::Seconds.show(mix.time),
            escape(&mix.gate),
            if mix.enough == Some(false) { "; less than wanted" } else { "" },
        );
    }
    out.push_str("</table>\n");
}

fn parts(out: &mut String, evaluation: &Evaluation) {
    out.push_str("<h2>Parts</h2>\n<table>\n");
    for figure in evaluation.inventory.figures() {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td></tr>",
            escape(&figure.name),
            figure.show()
        );
    }
    out.push_str("</table>\n");
}

fn warnings(out: &mut String, evaluation: &Evaluation) {
    if evaluation.warnings.is_empty() {
        return;
    }
    out.push_str("<h2>Warnings</h2>\n");
    for warning in &evaluation.warnings {
        let _ = writeln!(
            out,
            "<div class=\"warning\">{}<b>{}</b> (tier {}): {}. \
             <span class=\"source\">{}</span></div>",
            if warning.broken { "ERROR: " } else { "" },
            escape(&warning.rule),
            escape(&warning.tier),
            escape(&warning.text),
            escape(&warning.source)
        );
    }
}

fn derivation(out: &mut String, figure: &Figure, gates: bool) {
    let how = match &figure.from {
        Derivation::Constant { source } => {
            format!("<span class=\"source\">[{}]</span>", escape(source))
        }
        Derivation::Design => "<span class=\"source\">[design]</span>".into(),
        Derivation::Product(_) => "= product of".into(),
        Derivation::Sum(_) => "= sum of".into(),
        Derivation::Minimum(_) => "= smallest of".into(),
        Derivation::Formula { rule, .. } => format!("= {}", escape(rule)),
    };
    let mark = if gates { " <b style=\"color:var(--gate)\">◀ gates</b>" } else { "" };
    let line = format!("{}: <b>{}</b> {how}{mark}", escape(&figure.name), escape(&figure.show()));
    if figure.inputs().is_empty() {
        let _ = writeln!(out, "<div>{line}</div>");
        return;
    }
    let _ = writeln!(out, "<details><summary>{line}</summary>");
    let gate = figure.gate().map(|gate| gate as *const Figure);
    for input in figure.inputs() {
        derivation(out, input, gate == Some(input as *const Figure));
    }
    out.push_str("</details>\n");
}

/// The same report as Markdown, with the derivations as text.
pub fn markdown(evaluation: &Evaluation) -> String {
    let mut out = format!("# {}\n", evaluation.title);
    for tier in &evaluation.tiers {
        let _ = write!(
            out,
            "\n## Tier {}\n\n| figure | value | gated by | oversized |\n|---|---:|---|---|\n\
             | raw capacity | {} | | |\n| usable capacity | {} | | |\n",
            tier.name,
            tier.raw.show(),
            tier.usable.show()
        );
        for rate in &tier.rates {
            let _ = writeln!(
                out,
                "| {} | < {} | {} | {} |",
                rate.metric.label(),
                rate.total.show(),
                rate.gates(),
                rate.oversized()
            );
        }
        let _ = writeln!(out, "| rebuild of a disk | {} | | |", tier.rebuild.show());
        for figure in tier.reliability.iter().flat_map(Reliability::figures) {
            let _ = writeln!(out, "| {} | {} | | |", figure.name, figure.show());
        }
        out.push('\n');
        out.push_str(
            "| after a loss of | the data is | write | read | IOPS write | IOPS read |\n\
                      |---|---|---:|---:|---:|---:|\n",
        );
        for loss in &tier.losses {
            let rates = match spans(loss) {
                rates if rates.is_empty() => "none | none | none | none".into(),
                rates => rates.join(" | "),
            };
            let _ = writeln!(out, "| {} | {} | {rates} |", loss.lost, loss.data);
        }
    }
    markdown_mixes(&mut out, &evaluation.mixes);
    out.push_str("\n## Parts\n\n| part | count |\n|---|---:|\n");
    for figure in evaluation.inventory.figures() {
        let _ = writeln!(out, "| {} | {} |", figure.name, figure.show());
    }
    if !evaluation.warnings.is_empty() {
        out.push_str("\n## Warnings\n\n");
        for warning in &evaluation.warnings {
            let (rule, tier) = (&warning.rule, &warning.tier);
            let _ = writeln!(out, "- **{rule}** ({tier}): {} [{}]", warning.text, warning.source);
        }
    }
    out.push_str("\n## Derivations\n\n```text\n");
    for figure in figures(evaluation) {
        out.push_str(&figure.explain());
    }
    out.push_str("```\n");
    out
}

fn markdown_mixes(out: &mut String, mixes: &[MixEvaluation]) {
    if mixes.is_empty() {
        return;
    }
    out.push_str("\n## Mixes\n\n| mix | tier | operations | bytes | time of one | gated by |\n");
    out.push_str("|---|---|---:|---:|---:|---|\n");
    for mix in mixes {
        let _ = writeln!(
            out,
            "| {} | {} | < {} | {} | {} | {} |",
            mix.name,
            mix.tier,
            Unit::OperationsPerSecond.show(mix.rate),
            Unit::BytesPerSecond.show(mix.bytes),
            Unit::Seconds.show(mix.time),
            mix.gate,
        );
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod report_test;
