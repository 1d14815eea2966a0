//! Designs side by side, and designs with single fields changed (`--set`).
//!
//! A change is made on the parsed TOML before it becomes a design, so that every field can be
//! named, and a misspelt one meets the same error as in a file.

use crate::design::{Design, System};
use crate::error::PlanError;
use crate::evaluate::{Evaluation, evaluate};
use crate::figure::Figure;
use crate::inventory::step_price;
use crate::stage::Metric;
use crate::unit::{Unit, trimmed};
use std::path::Path;
use toml::{Table, Value};

/// Reads a design file and applies `PATH=VALUE` changes to it.
pub fn read_with(path: &Path, changes: &[String]) -> Result<Design, PlanError> {
    if changes.is_empty() {
        return Design::read(path);
    }
    let text = std::fs::read_to_string(path).map_err(|error| PlanError::read(path, error))?;
    parse_with(&path.display().to_string(), &text, changes)
}

/// The same for a text; `file` is only for messages.
pub fn parse_with(file: &str, text: &str, changes: &[String]) -> Result<Design, PlanError> {
    let schema = |error: toml::de::Error| PlanError::schema(file, &error);
    let mut table: Table = toml::from_str(text).map_err(schema)?;
    for change in changes {
        set(&mut table, change)?;
    }
    let changed = format!("{file} with --set");
    Table::try_into(table).map_err(|error: toml::de::Error| PlanError::schema(&changed, &error))
}

fn set(table: &mut Table, change: &str) -> Result<(), PlanError> {
    let wrong = |why: &str| {
        PlanError::Usage(format!(
            "--set {change}: {why}; write for example --set tier.data.blocks=12 or --set \
             clients.count=4"
        ))
    };
    let (path, value) = change.split_once('=').ok_or_else(|| wrong("no ="))?;
    // A value that is no TOML is text without its quotes.
    let parsed = toml::from_str::<Table>(&format!("value = {value}"));
    let parsed = parsed.ok().and_then(|mut table| table.remove("value"));
    let value = parsed.unwrap_or_else(|| Value::String(value.to_string()));
    let mut words: Vec<&str> = path.split('.').collect();
    let last = words.pop().filter(|word| !word.is_empty()).ok_or_else(|| wrong("no field"))?;
    let mut at = table;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let next = at.entry(word).or_insert_with(|| Value::Table(Table::new()));
        at = match next {
            Value::Table(table) => table,
            Value::Array(items) => {
                let name = words.next().ok_or_else(|| wrong("no name behind a list"))?;
                let named = |item: &Value| item.get("name")?.as_str().map(str::to_string);
                let names: Vec<String> = items.iter().filter_map(named).collect();
                let of_name = |item: &Value| named(item).as_deref() == Some(name);
                let index = items.iter().position(of_name).or_else(|| name.parse().ok());
                let item = index.and_then(|index: usize| items.get_mut(index));
                let known = || format!("no entry '{name}'; there are {}", names.join(", "));
                let item = item.ok_or_else(|| wrong(&known()))?;
                item.as_table_mut().ok_or_else(|| wrong("no table"))?
            }
            _ => return Err(wrong("a value has no fields")),
        };
    }
    at.insert(last.to_string(), value);
    Ok(())
}

/// One line of the comparison.
struct Line {
    name: String,
    unit: Unit,
    values: Vec<Option<f64>>,
}

/// Designs side by side, with the change against the first.
pub fn side_by_side(systems: &[System]) -> String {
    let evaluations: Vec<Evaluation> = systems.iter().map(evaluate).collect();
    let mut out = String::new();
    for (index, evaluation) in evaluations.iter().enumerate() {
        out.push_str(&format!("{}  {}\n", letter(index), evaluation.title));
    }
    out.push('\n');
    let header: Vec<String> = (0..systems.len()).map(letter).collect();
    out.push_str(&row("", &header));
    for line in lines(systems, &evaluations) {
        let first = line.values[0];
        let cells: Vec<String> = line
            .values
            .iter()
            .enumerate()
            .map(|(index, value)| cell(line.unit, *value, if index == 0 { None } else { first }))
            .collect();
        out.push_str(&row(&line.name, &cells));
    }
    out.push('\n');
    for (index, evaluation) in evaluations.iter().enumerate() {
        for tier in &evaluation.tiers {
            let gates = tier.rates.iter().map(|rate| rate.gates()).collect::<Vec<_>>().join("; ");
            out.push_str(&format!("{} {} gated by: {gates}\n", letter(index), tier.name));
        }
        for warning in &evaluation.warnings {
            let kind = if warning.broken { "error" } else { "warning" };
            out.push_str(&format!("{} {kind} {}: {}\n", letter(index), warning.rule, warning.tier));
        }
    }
    out
}

fn letter(index: usize) -> String {
    u8::try_from(index)
        .ok()
        .filter(|index| *index < 26)
        .map_or_else(|| format!("#{}", index + 1), |index| char::from(b'A' + index).to_string())
}

fn row(name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>28}")).collect();
    format!("{name:<30}{cells}\n")
}

fn cell(unit: Unit, value: Option<f64>, first: Option<f64>) -> String {
    let Some(value) = value else { return "unknown".into() };
    let shown = unit.show(value);
    match first {
        Some(first) if first != 0.0 && first.is_finite() && value != first => {
            let ratio = value / first;
            format!("{shown} (x{})", trimmed(ratio, if ratio < 10.0 { 2 } else { 0 }))
        }
        _ => shown,
    }
}

type Pick<'a> = &'a dyn Fn(&Evaluation) -> Option<f64>;

fn lines(systems: &[System], evaluations: &[Evaluation]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |name: &str, unit: Unit, pick: Pick| {
        let values: Vec<Option<f64>> = evaluations.iter().map(pick).collect();
        if values.iter().any(Option::is_some) {
            lines.push(Line { name: name.into(), unit, values });
        }
    };
    let some = |figure: &Figure| Some(figure.value);
    let least = |values: Vec<f64>| values.into_iter().reduce(f64::max);
    add("raw capacity", Unit::RawBytes, &|e| some(&e.raw));
    add("usable capacity", Unit::Bytes, &|e| some(&e.usable));
    for metric in Metric::ALL {
        add(metric.label(), metric.unit(), &|e| Some(e.rate(metric)));
    }
    add("one 4 KiB read", Unit::Seconds, &|e| {
        least(e.tiers.iter().filter_map(|tier| Some(tier.latency.first()?.value)).collect())
    });
    add("rebuild of a disk (slowest)", Unit::Seconds, &|e| {
        least(e.tiers.iter().map(|tier| tier.rebuild.value).collect())
    });
    add("data loss in a year (worst)", Unit::Probability, &|e| {
        let of = |tier: &crate::evaluate::TierEvaluation| {
            tier.reliability.as_ref().map(|reliability| reliability.loss_per_year.value)
        };
        least(e.tiers.iter().filter_map(of).collect())
    });
    for name in ["disks", "servers", "racks"] {
        add(name, Unit::Count, &|e| {
            let figure = e.inventory.figures().into_iter().find(|figure| figure.name == name);
            figure.map(|figure| figure.value)
        });
    }
    add("power", Unit::Watts, &|e| e.inventory.room.power.as_ref().and_then(some));
    add("price", Unit::Price, &|e| e.inventory.price.as_ref().and_then(some));
    add("price of a usable TB", Unit::Price, &|e| {
        let price = e.inventory.price.as_ref()?.value;
        Some(price / (e.usable.value / crate::unit::TIB))
    });
    let steps: Vec<Option<f64>> =
        systems.iter().map(|system| step_price(system, &system.tiers[0])).collect();
    if steps.iter().any(Option::is_some) {
        let name = "price of one more block".into();
        lines.push(Line { name, unit: Unit::Price, values: steps });
    }
    let mixes: Vec<&str> = evaluations
        .iter()
        .flat_map(|e| e.mixes.iter().map(|mix| mix.name.as_str()))
        .fold(Vec::new(), |mut names, name| {
            if !names.contains(&name) {
                names.push(name);
            }
            names
        });
    for name in mixes {
        let of = |e: &Evaluation| Some(e.mixes.iter().find(|mix| mix.name == name)?.rate);
        let values = evaluations.iter().map(of).collect();
        let name = format!("mix {name}");
        lines.push(Line { name, unit: Unit::OperationsPerSecond, values });
    }
    lines
}

#[cfg(test)]
#[path = "whatif_test.rs"]
mod whatif_test;
