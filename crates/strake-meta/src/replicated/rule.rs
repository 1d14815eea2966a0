//! The rules of replicated metadata, by name. In the product all are obeyed, and asking costs
//! nothing. With the feature `mutations` a test takes one away, to see that its simulation finds
//! that.

/// A rule, named where it is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A question is answered only if the leader's lease still holds afterwards.
    LeasesGuardAnswers,
    /// A sync waits until the last change is committed.
    SyncsWaitForCommits,
    /// Whoever was told of a leader in one term is not served in another.
    PortsEndWithTheirTerm,
    /// A copy brings what was changed since it began.
    CopiesBringChanges,
    /// A copy that broke off is known as such after a crash.
    BrokenCopiesAreMarked,
    /// A client is told no number before it is certain that the number is the client's.
    NumbersAreDurableFirst,
}

/// Which rules are obeyed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// All but this one.
    #[cfg(feature = "mutations")]
    pub without: Option<Rule>,
}

impl Rules {
    #[cfg(feature = "mutations")]
    pub(super) fn obeys(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "mutations"))]
    pub(super) const fn obeys(self, _: Rule) -> bool {
        true
    }
}
