//! Rules that a run can do without, so that a test sees that it would find their lack.

use strake_env::simulation::is_broken;
use strake_token::rule::{self, Rule};

/// A rule of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Canary {
    /// From a revoke on, new uses take no more than its limit.
    RevokesLimitNewUses,
    /// What a use under way needs is not given back before it ends.
    UsesAreWaitedFor,
    /// A new leader grants nothing before all have reasserted, or are dead.
    AllReassertFirst,
}

impl Canary {
    const ALL: [Canary; 3] =
        [Canary::RevokesLimitNewUses, Canary::UsesAreWaitedFor, Canary::AllReassertFirst];

    /// The name for a simulation without the rule.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Canary::RevokesLimitNewUses => "revokes limit new uses",
            Canary::UsesAreWaitedFor => "uses are waited for",
            Canary::AllReassertFirst => "all reassert first",
        }
    }

    fn rule(self) -> Rule {
        match self {
            Canary::RevokesLimitNewUses => Rule::RevokesLimitNewUses,
            Canary::UsesAreWaitedFor => Rule::UsesAreWaitedFor,
            Canary::AllReassertFirst => Rule::AllReassertFirst,
        }
    }
}

/// Has the rules ask their simulation.
pub(crate) fn prepare() {
    rule::decide(|rule| {
        let mut all = Canary::ALL.into_iter();
        all.find(|it| it.rule() == rule).is_none_or(|it| !is_broken(it.name()))
    });
}
