//! One printed figure beside ours, and the judgement on the pair.

use std::path::PathBuf;
use strake_plan::design::Design;
use strake_plan::evaluate::{Evaluation, evaluate};
use strake_plan::library::Library;
use strake_plan::stage::Metric;
use strake_plan::unit::{GIB, TIB};

/// What is claimed about a pair of figures.
pub(crate) enum Verdict {
    /// Ours rounds to the printed one.
    Agrees,
    /// It does not, for this reason.
    Marked(&'static str),
    /// The printed one is a measurement; computed / printed lies in this band.
    Measured(f64, f64, &'static str),
}

/// One figure.
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) place: &'static str,
    pub(crate) figure: String,
    /// The digits as printed.
    pub(crate) printed: &'static str,
    pub(crate) unit: &'static str,
    /// In `unit`.
    pub(crate) computed: f64,
    pub(crate) verdict: Verdict,
}

impl Row {
    fn printed_value(&self) -> f64 {
        self.printed.replace(',', "").parse().unwrap()
    }

    fn rounds_to_printed(&self) -> bool {
        let digits = self.printed.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        format!("{:.digits$}", self.computed) == self.printed.replace(',', "")
    }

    /// Why the verdict does not hold, if it does not.
    pub(crate) fn fault(&self) -> Option<String> {
        let ratio = self.computed / self.printed_value();
        let fault = match self.verdict {
            Verdict::Agrees if !self.rounds_to_printed() => "does not agree",
            Verdict::Marked(_) if self.rounds_to_printed() => "agrees, so the mark is wrong",
            Verdict::Measured(low, high, _) if !(low..=high).contains(&ratio) => "outside its band",
            _ => return None,
        };
        let (group, figure, unit) = (self.group, &self.figure, self.unit);
        Some(format!(
            "{group}: {figure}: printed {} {unit}, computed {:.4} (x{ratio:.3}) {fault}",
            self.printed, self.computed
        ))
    }

    /// The row of the generated table.
    pub(crate) fn line(&self) -> String {
        let verdict = match &self.verdict {
            Verdict::Agrees => "agrees".to_string(),
            Verdict::Marked(reason) => format!("**marked**: {reason}"),
            Verdict::Measured(low, high, reason) => {
                format!("**measured** ({low:.2}–{high:.2}): {reason}")
            }
        };
        let difference = (self.computed / self.printed_value() - 1.0) * 100.0;
        let difference =
            if difference.abs() < 0.05 { "0 %".to_string() } else { format!("{difference:+.1} %") };
        let decimals = if self.computed >= 1000.0 {
            0
        } else if self.computed >= 100.0 {
            1
        } else {
            2
        };
        format!(
            "| {} | {} {} | {} | {difference} | {verdict} |\n",
            self.figure,
            self.printed,
            self.unit,
            strake_plan::unit::thousands(format!("{:.decimals$}", self.computed).parse().unwrap()),
        )
    }
}

/// Collects the rows of one group.
pub(crate) struct Group {
    name: &'static str,
    place: &'static str,
    pub(crate) rows: Vec<Row>,
}

impl Group {
    pub(crate) fn new(name: &'static str, place: &'static str) -> Group {
        Group { name, place, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(
        &mut self,
        figure: impl Into<String>,
        (printed, unit): (&'static str, &'static str),
        computed: f64,
        verdict: Verdict,
    ) {
        self.rows.push(Row {
            group: self.name,
            place: self.place,
            figure: figure.into(),
            printed,
            unit,
            computed,
            verdict,
        });
    }

    /// Adds a row that agrees.
    pub(crate) fn agrees(
        &mut self,
        figure: impl Into<String>,
        printed: (&'static str, &'static str),
        computed: f64,
    ) {
        self.row(figure, printed, computed, Verdict::Agrees);
    }
}

/// An example design by file name.
pub(crate) fn example_design(name: &str) -> Design {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/plan/examples");
    Design::read(&examples.join(format!("{name}.toml"))).unwrap()
}

/// An example, changed by `change` before it is evaluated.
pub(crate) fn example_with(name: &str, change: impl FnOnce(&mut Design)) -> Evaluation {
    let mut design = example_design(name);
    change(&mut design);
    let library = Library::built_in();
    let evaluation = evaluate(&design.resolve(&library).unwrap());
    evaluation.check();
    evaluation
}

/// An example design as it is.
pub(crate) fn example(name: &str) -> Evaluation {
    example_with(name, |_| {})
}

/// The design with a single building block.
pub(crate) fn block(name: &str) -> Evaluation {
    example_with(name, |design| design.tier[0].blocks = 1)
}

/// Streaming rate of the first tier in GB/s (2^30).
pub(crate) fn gb(evaluation: &Evaluation, metric: Metric) -> f64 {
    evaluation.tiers[0].rate(metric).total.value / GIB
}

/// IOPS of the first tier.
pub(crate) fn iops(evaluation: &Evaluation, metric: Metric) -> f64 {
    evaluation.tiers[0].rate(metric).total.value
}

/// Usable capacity of the first tier in TB (2^40).
pub(crate) fn usable(evaluation: &Evaluation) -> f64 {
    evaluation.tiers[0].usable.value / TIB
}

/// Raw capacity of the first tier in TB (10^12).
pub(crate) fn raw(evaluation: &Evaluation) -> f64 {
    evaluation.tiers[0].raw.value / 1e12
}
