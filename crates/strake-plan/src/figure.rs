//! A figure is a number that carries how it came about, as data.
//!
//! Nothing in the planner is a bare number: a constant knows its source, a product its factors,
//! a minimum its candidates and which of them gates. `--explain`, the report and the JSON are
//! three renderings of this one tree. Invariant: `check()` recomputes every node from its inputs.

use crate::unit::Unit;
use serde::Serialize;

/// A named quantity and its derivation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is, in words.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// In base units: bytes, bytes per second, seconds.
    pub value: f64,
    /// Where it comes from.
    pub from: Derivation,
}

/// Where a figure comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Derivation {
    /// Written in the component library with its source.
    Constant {
        /// Document and place.
        source: String,
    },
    /// Written in the design.
    Design,
    /// Product of the inputs.
    Product(Vec<Figure>),
    /// Sum of the inputs.
    Sum(Vec<Figure>),
    /// The smallest of the inputs, which is the one that gates.
    Minimum(Vec<Figure>),
    /// A formula in words over the inputs; the only node that `check()` cannot recompute.
    Formula {
        /// The formula as a reader would write it.
        rule: String,
        /// What goes in.
        inputs: Vec<Figure>,
    },
}

impl Figure {
    /// A constant of the library.
    pub fn constant(name: impl Into<String>, unit: Unit, value: f64, source: &str) -> Figure {
        Figure {
            name: name.into(),
            unit,
            value,
            from: Derivation::Constant { source: source.into() },
        }
    }

    /// A number the design states.
    pub fn design(name: impl Into<String>, unit: Unit, value: f64) -> Figure {
        Figure { name: name.into(), unit, value, from: Derivation::Design }
    }

    /// The product of `inputs`.
    pub fn product(name: impl Into<String>, unit: Unit, inputs: Vec<Figure>) -> Figure {
        let value = inputs.iter().map(|input| input.value).product();
        Figure { name: name.into(), unit, value, from: Derivation::Product(inputs) }
    }

    /// The sum of `inputs`.
    pub fn sum(name: impl Into<String>, unit: Unit, inputs: Vec<Figure>) -> Figure {
        let value = inputs.iter().map(|input| input.value).sum();
        Figure { name: name.into(), unit, value, from: Derivation::Sum(inputs) }
    }

    /// The smallest of `inputs`; the earliest of equals gates.
    pub fn minimum(name: impl Into<String>, unit: Unit, inputs: Vec<Figure>) -> Figure {
        let value = inputs.iter().map(|input| input.value).fold(f64::INFINITY, f64::min);
        assert!(value.is_finite(), "invariant: a minimum has at least one finite input");
        Figure { name: name.into(), unit, value, from: Derivation::Minimum(inputs) }
    }

    /// A value computed by `rule` from `inputs`.
    pub fn formula(
        name: impl Into<String>,
        unit: Unit,
        value: f64,
        rule: impl Into<String>,
        inputs: Vec<Figure>,
    ) -> Figure {
        Figure {
            name: name.into(),
            unit,
            value,
            from: Derivation::Formula { rule: rule.into(), inputs },
        }
    }

    /// The figure as text with its unit.
    pub fn show(&self) -> String {
        self.unit.show(self.value)
    }

    /// What this figure was made of.
    pub fn inputs(&self) -> &[Figure] {
        match &self.from {
            Derivation::Constant { .. } | Derivation::Design => &[],
            Derivation::Product(inputs) | Derivation::Sum(inputs) | Derivation::Minimum(inputs) => {
                inputs
            }
            Derivation::Formula { inputs, .. } => inputs,
        }
    }

    /// The input that gates a minimum.
    pub fn gate(&self) -> Option<&Figure> {
        match &self.from {
            Derivation::Minimum(inputs) => inputs.iter().find(|input| input.value == self.value),
            _ => None,
        }
    }

    /// Recomputes the tree; a mismatch or a constant without a source is a bug of the planner.
    pub fn check(&self) {
        let recomputed = match &self.from {
            Derivation::Constant { source } => {
                assert!(!source.is_empty(), "{}: a constant has a source", self.name);
                self.value
            }
            Derivation::Design | Derivation::Formula { .. } => self.value,
            Derivation::Product(inputs) => inputs.iter().map(|input| input.value).product(),
            Derivation::Sum(inputs) => inputs.iter().map(|input| input.value).sum(),
            Derivation::Minimum(inputs) => {
                inputs.iter().map(|input| input.value).fold(f64::INFINITY, f64::min)
            }
        };
        assert!(self.value.is_finite() && self.value >= 0.0, "{} = {}", self.name, self.value);
        assert!(recomputed == self.value, "{}: {} is not {recomputed}", self.name, self.value);
        self.inputs().iter().for_each(Figure::check);
    }

    /// The derivation as an indented tree, one figure a line, the gate of a minimum marked `◀`.
    pub fn explain(&self) -> String {
        let mut out = String::new();
        self.explain_into(&mut out, 0, false);
        out
    }

    fn explain_into(&self, out: &mut String, depth: usize, gates: bool) {
        let how = match &self.from {
            Derivation::Constant { source } => format!("[{source}]"),
            Derivation::Design => "[design]".to_string(),
            Derivation::Product(_) => "= product of".to_string(),
            Derivation::Sum(_) => "= sum of".to_string(),
            Derivation::Minimum(_) => "= smallest of".to_string(),
            Derivation::Formula { rule, .. } => format!("= {rule}"),
        };
        let mark = if gates { " ◀ gates " } else { "" };
        let indent = "  ".repeat(depth);
        out.push_str(&format!("{indent}{}: {} {mark} {how}\n", self.name, self.show()));
        let gate = self.gate().map(|gate| gate as *const Figure);
        for input in self.inputs() {
            input.explain_into(out, depth + 1, gate == Some(input as *const Figure));
        }
    }
}
