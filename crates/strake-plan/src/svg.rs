//! The drawings of the report as inline SVG: chain of stages, rate and capacity bars, racks.
//!
//! Text only, no scripts and no fonts of its own; colours come from the classes that the page's
//! style sheet defines (`gate` marks what limits).

use crate::design::{System, Tier};
use crate::elevation::{Part, RackView};
use crate::evaluate::{TIE, TierEvaluation};
use crate::library::Parity;
use crate::stage::Metric;
use strake_report::Drawing;

/// One bar of a chart.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: String,
    /// Length, against the longest bar that is drawn whole.
    pub(crate) size: f64,
    pub(crate) gates: bool,
}

/// Horizontal bars. A bar longer than four times the shortest is cut, and says so.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    const LABEL: f64 = 170.0;
    const ROOM: f64 = 520.0;
    let least = bars.iter().map(|bar| bar.size).fold(f64::INFINITY, f64::min);
    let largest = bars.iter().map(|bar| bar.size).fold(0.0, f64::max);
    let full = largest.min(least * 4.0).max(f64::MIN_POSITIVE);
    let mut drawing = Drawing::new(960.0, 26.0 * bars.len() as f64 + 30.0);
    drawing.text(0.0, 16.0, "head", title);
    for (index, bar) in bars.iter().enumerate() {
        let y = 28.0 + 26.0 * index as f64;
        let width = ROOM * (bar.size / full).min(1.0);
        let class = if bar.gates { "bar gate" } else { "bar" };
        drawing.text(LABEL - 8.0, y + 14.0, "label end", &bar.label);
        drawing.rect(
            [LABEL, y, width.max(1.0), 18.0],
            class,
            &format!("{}: {}", bar.label, bar.value),
        );
        let cut = if bar.size > full { " (bar cut)" } else { "" };
        let gates = if bar.gates { " ◀ gates" } else { "" };
        let text = format!("{}{cut}{gates}", bar.value);
        drawing.text(
            LABEL + width + 8.0,
            y + 14.0,
            if bar.gates { "label gatetext" } else { "label" },
            &text,
        );
    }
    drawing.finish(title)
}

/// The chain from clients to disks with what each part carries.
pub(crate) fn chain(system: &System, tier: &Tier, evaluation: &TierEvaluation) -> String {
    let boxes = parts(system, tier, evaluation);
    let (width, gap) = (152.0, 20.0);
    let total = boxes.len() as f64 * (width + gap) - gap + 4.0;
    let mut drawing = Drawing::new(total.max(300.0), 150.0);
    for (index, part) in boxes.iter().enumerate() {
        let x = 2.0 + index as f64 * (width + gap);
        if index > 0 {
            drawing.line([x - gap, 60.0, x, 60.0], "link");
        }
        let class = if part.gates.is_empty() { "box" } else { "box gate" };
        drawing.rect([x, 10.0, width, 100.0], class, &part.name);
        drawing.text(x + 8.0, 30.0, "head", &part.name);
        for (line, text) in part.lines.iter().enumerate() {
            drawing.text(x + 8.0, 50.0 + 17.0 * line as f64, "small", text);
        }
        if !part.gates.is_empty() {
            let gates = format!("▲ gates {}", part.gates.join(", "));
            drawing.text(x, 130.0, "small gatetext", &gates);
        }
    }
    drawing.finish("chain of stages from clients to disks")
}

struct ChainPart {
    name: String,
    lines: Vec<String>,
    gates: Vec<&'static str>,
}

fn parts(system: &System, tier: &Tier, evaluation: &TierEvaluation) -> Vec<ChainPart> {
    let storage = &tier.storage;
    let blocks = tier.blocks;
    let mut parts = Vec::new();
    let mut part = |name: &str, stages: &[&str], what: Vec<String>| {
        let mut lines = what;
        let mut gates = Vec::new();
        for metric in [Metric::Write, Metric::Read] {
            let rate = evaluation.rate(metric);
            let of_part = rate.balance.iter().filter(|s| stages.contains(&s.stage.as_str()));
            let least = of_part.map(|stage| stage.capacity).fold(f64::INFINITY, f64::min);
            if least.is_finite() {
                let short = if metric == Metric::Write { "write" } else { "read" };
                lines.push(format!("{short} {}", metric.unit().show(least)));
            }
            if rate.balance.iter().any(|s| s.times <= TIE && stages.contains(&s.stage.as_str())) {
                gates.push(if metric == Metric::Write { "write" } else { "read" });
            }
        }
        parts.push(ChainPart { name: name.into(), lines, gates });
    };
    if let Some(clients) = &system.clients {
        let what = format!("{} x {}", clients.count, clients.model.name);
        part(
            "Clients",
            &["client network", "client software path", "client processors"],
            vec![what],
        );
    }
    if let Some(servers) = &tier.servers {
        let count = blocks * servers.per_block;
        if let Some(lan) = servers.lan {
            let what = format!("{} x {}", count * servers.lan_per_server, lan.name);
            part("Network", &["server network"], vec![what]);
        }
        let what = format!("{count} x {}", servers.model.name);
        part(
            "Servers",
            &["server bus", "server software path", "server processors", "server receive path"],
            vec![what],
        );
        if let Some(hba) = servers.hba {
            let what = format!("{} x {}", count * servers.hba_per_server, hba.name);
            part("Storage links", &["enclosure ports", "server storage ports"], vec![what]);
        }
    }
    let enclosures = blocks * storage.per_block;
    let mut what = vec![format!("{enclosures} x {}", storage.enclosure.name)];
    if let Some(tray) = storage.tray {
        what.push(format!("{} x {}", enclosures * storage.trays, tray.name));
    }
    let name = match storage.parity {
        Parity::Controller => "Controllers",
        Parity::Server | Parity::Client => "Enclosures",
    };
    part(name, &["controllers"], what);
    let disks = enclosures * storage.disks_per_enclosure();
    part(
        "Disks",
        &["disks"],
        vec![format!("{disks} x {}", storage.disk.name), storage.code.name.clone()],
    );
    parts
}

/// Front views of racks.
pub(crate) fn racks(views: &[RackView]) -> String {
    const UNIT: f64 = 11.0;
    const WIDTH: f64 = 150.0;
    let highest = views.iter().map(|view| view.units).max().unwrap_or(0) as f64;
    let height = highest * UNIT;
    let mut drawing = Drawing::new((WIDTH + 50.0) * views.len() as f64, height + 44.0);
    for (index, view) in views.iter().enumerate() {
        let x = 24.0 + index as f64 * (WIDTH + 50.0);
        let floor = 24.0 + height;
        drawing.text(x, 14.0, "small", &view.title);
        let top = floor - view.units as f64 * UNIT;
        drawing.rect(
            [x, top, WIDTH, view.units as f64 * UNIT],
            "rack",
            &format!("{}U", view.units),
        );
        for unit in (0..view.units).step_by(6) {
            let y = floor - unit as f64 * UNIT - 2.0;
            drawing.text(x - 6.0, y, "tiny end", &(unit + 1).to_string());
        }
        for place in &view.places {
            let bottom = (place.unit - 1) as f64 * UNIT;
            let size = place.units as f64 * UNIT;
            let y = floor - bottom - size;
            let class = match place.part {
                Part::Enclosure => "part enclosure",
                Part::Tray => "part tray",
                Part::Server => "part server",
                Part::Switch => "part switch",
            };
            let title = format!("{} at unit {}", place.label, place.unit);
            drawing.rect([x + 2.0, y + 0.5, WIDTH - 4.0, size - 1.0], class, &title);
            drawing.text(x + 8.0, y + size / 2.0 + 3.5, "tiny", &place.label);
        }
    }
    drawing.finish("rack elevation")
}
