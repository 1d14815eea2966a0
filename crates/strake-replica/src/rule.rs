//! The rules of consensus, by name. In the product all are obeyed, and asking costs nothing. A
//! test of this crate takes one away, to see that the simulation finds that.

/// A rule, named where it is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// What a message promises is durable before the message is sent.
    DurableBeforePromised,
    /// The term and the vote are in the same record as the entries of a step.
    VotesAreWritten,
    /// A replica that starts asks the others, and votes for nobody who has less (R26).
    StartersAsk,
    /// What an earlier life of a replica said does not count any more.
    EarlierLivesAreVoid,
    /// A leader counts copies of entries of its own term only.
    OwnTermCommits,
    /// A candidate must have as much as the voter.
    LongerLogsWin,
    /// A membership that is being changed needs both majorities.
    BothMajoritiesDecide,
    /// A read asks a majority whether this is still the leader.
    ReadsAskAMajority,
    /// Whoever has heard a leader lately, or has just started and may have, votes for nobody: the
    /// leader may hold its lease.
    VotersWait,
    /// A lease counts from when the leader asked, not from when it was answered.
    LeasesCountFromAsking,
    /// A group of one tells others no more than what is durable (R27).
    OthersLearnTheDurable,
    /// A leader whose journal stands still steps down.
    StalledLeadersStepDown,
    /// A step of the journal begins with a sync of all before.
    SyncsReachTheDisk,
    /// A machine that keeps its own state gets entries only when the own journal has them too.
    KeepersGetTheDurable,
    /// A replica takes no more entries while its log is as long as it may be.
    FullLogsTakeNoMore,
    /// A replica whose machine lacks its state takes no entries, but asks for a copy.
    LackersTakeNoEntries,
    /// A leader whose machine lacks its state steps down when a majority has its log.
    LackersStepDown,
    /// A copy is whole only where it has all that its receiver knows to be committed.
    CopiesReachTheCommitted,
    /// A part of a copy that another copy has followed is not taken.
    OldCopiesAreVoid,
    /// The word of an earlier life in the same process counts only if the journal has it.
    WordsAreCompared,
}

/// Whether a rule is obeyed: always, in the product.
#[cfg(not(test))]
pub(crate) const fn obeys(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(crate) use mutated::{obeys, without};

#[cfg(test)]
mod mutated {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn obeys(rule: Rule) -> bool {
        BROKEN.get() != Some(rule)
    }

    /// Runs `test` on this thread without a rule.
    pub(crate) fn without<T>(rule: Rule, test: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                BROKEN.set(None);
            }
        }
        let _restore = Restore;
        BROKEN.set(Some(rule));
        test()
    }
}
