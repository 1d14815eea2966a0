//! One printed figure beside ours, and the judgement on the pair.

use std::path::PathBuf;
use strake_plan::design::Design;
use strake_plan::evaluate::{Evaluation, evaluate};
use strake_plan::library::Library;
use strake_plan::stage::Metric;
use strake_plan::unit::{GIB, TIB};

/// What is claimed about a figure of a document.
pub(crate) enum Verdict {
    /// Computed by the planner, and ours rounds to the printed one.
    Agrees,
    /// Computed; it does not, for this reason.
    Marked(&'static str),
    /// Computed; the printed one is a measurement. One band for all tells close from off; the
    /// sentence says what the model has, and for a row that is off what it lacks.
    Measured(&'static str),
    /// The library or a setting holds this figure, so it agrees with nothing.
    Input(&'static str),
    /// Nothing of the planner stands for this figure.
    NotModelled(&'static str),
}

/// A measurement this close to the model is close.
const CLOSE: f64 = 0.15;

/// One figure.
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) place: &'static str,
    pub(crate) figure: String,
    /// The digits as printed.
    pub(crate) printed: &'static str,
    pub(crate) unit: &'static str,
    /// In `unit`; not a number where nothing was computed.
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

    /// How the planner stands to this row, as the summary counts it.
    pub(crate) fn kind(&self) -> &'static str {
        match self.verdict {
            Verdict::Agrees => "agrees",
            Verdict::Marked(_) => "marked",
            Verdict::Measured(_) if self.off() => "off",
            Verdict::Measured(_) => "close",
            Verdict::Input(_) => "input",
            Verdict::NotModelled(_) => "not modelled",
        }
    }

    fn off(&self) -> bool {
        (self.computed / self.printed_value() - 1.0).abs() > CLOSE
    }

    /// Why the verdict does not hold, if it does not.
    pub(crate) fn fault(&self) -> Option<String> {
        let fault = match self.verdict {
            Verdict::Agrees if !self.rounds_to_printed() => "does not agree",
            Verdict::Marked(_) if self.rounds_to_printed() => "agrees, so the mark is wrong",
            Verdict::Measured(_) if !self.computed.is_finite() => "was not computed",
            Verdict::Input(_) if self.computed.is_finite() && !self.rounds_to_printed() => {
                "is not what the library holds"
            }
            _ => return None,
        };
        let (group, figure, unit) = (self.group, &self.figure, self.unit);
        Some(format!(
            "{group}: {figure}: printed {} {unit}, computed {:.4} {fault}",
            self.printed, self.computed
        ))
    }

    /// The row of the generated table.
    pub(crate) fn line(&self) -> String {
        let (kind, reason) = (
            self.kind(),
            match &self.verdict {
                Verdict::Agrees => "",
                Verdict::Marked(reason)
                | Verdict::Measured(reason)
                | Verdict::Input(reason)
                | Verdict::NotModelled(reason) => reason,
            },
        );
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let counts =
            matches!(self.verdict, Verdict::Agrees | Verdict::Marked(_) | Verdict::Measured(_));
        let (computed, difference) = match counts {
            true => (self.shown(), self.difference()),
            false => (String::new(), String::new()),
        };
        format!(
            "| {} | {} {} | {computed} | {difference} | {kind}{reason} |\n",
            self.figure, self.printed, self.unit,
        )
    }

    fn difference(&self) -> String {
        let printed = self.printed_value();
        let difference = (self.computed / printed - 1.0) * 100.0;
        if self.computed == printed || difference.abs() < 0.05 {
            return "0 %".into();
        }
        format!("{difference:+.1} %")
    }

    fn shown(&self) -> String {
        let decimals = if self.computed >= 1000.0 {
            0
        } else if self.computed >= 100.0 {
            1
        } else {
            2
        };
        strake_plan::unit::thousands(format!("{:.decimals$}", self.computed).parse().unwrap())
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

    /// Adds a figure that the library holds; `computed` reads it back.
    pub(crate) fn input(
        &mut self,
        figure: impl Into<String>,
        printed: (&'static str, &'static str),
        read_back: f64,
        why: &'static str,
    ) {
        self.row(figure, printed, read_back, Verdict::Input(why));
    }

    /// Adds figures that nothing of the planner stands for.
    pub(crate) fn not_modelled(
        &mut self,
        figure: impl Into<String>,
        printed: (&'static str, &'static str),
        why: &'static str,
    ) {
        self.row(figure, printed, f64::NAN, Verdict::NotModelled(why));
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
