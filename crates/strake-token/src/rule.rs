//! The rules of tokens, by name. In the product all are obeyed, and asking costs nothing. With the
//! feature `mutations` a test takes one away, to see that its model finds that.

/// A rule, named where it is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A grant that a revoke covers, and that arrives after it, is void.
    LateGrantsAreVoid,
    /// From a revoke on, new uses take no more than its limit.
    RevokesLimitNewUses,
    /// What a use under way needs is not given back before it ends.
    UsesAreWaitedFor,
    /// An answer counts only if the client had seen its newest grant.
    AnswersCoverTheNewestGrant,
    /// A new leader grants nothing before all have reasserted, or are dead, but files of which it
    /// knows all that is held.
    AllReassertFirst,
    /// All that is held of a file is known once a client has reasserted it exclusively.
    OnlyExclusiveIsAlone,
    /// A client has reasserted all when the leader has heard as many files as the client counts.
    ReassertionsAreCounted,
    /// A message of another term is void.
    OtherTermsAreVoid,
    /// Ranges go with the inode token.
    RangesNeedTheInode,
    /// A client that writes beside others gives that up before it gets another mode.
    WritersLeaveFirst,
    /// Before a client writes beside others, its uses of the whole file end, and no other begins.
    WritersBeginAnew,
    /// What a writer beside others gives up is flushed if it used it.
    UsedBlocksAreFlushed,
    /// Nobody gets a file that a client wrote beside others that is gone and not put right.
    RepairIsAlone,
    /// A request passes those that wait for its own client to give up another file.
    HoldersPassThoseWhoWait,
    /// A file that a client has open stays open when the client gives the inode token up.
    OpenOutlivesTheInode,
    /// OPEN of a file that a client has open no more goes with the inode token.
    UnusedOpenGoesWithTheInode,
    /// A client that has no inode token says that it has closed a file.
    ClosesAreTold,
    /// A file that was closed while it was reasserted is closed once more.
    ReassertedClosesAreTold,
    /// A grant that says open, of a file that the client has let go meanwhile, is answered.
    StaleOpensAreTold,
    /// The token of a new file is granted only where nobody else holds it or waits for it.
    NewFilesAreFree,
    /// The token of a new file is void if the client has answered a revoke of it before.
    LateTokensOfNewFilesAreVoid,
    /// A request for a lock that its client has heard of is void.
    LockRequestsCountOnce,
    /// A request for a lock that was cancelled before it came is void.
    LockCancelsAreRemembered,
    /// A request waits for a lock behind earlier ones.
    LockersWaitInOrder,
    /// A request that would close a circle of waits is refused.
    LockCirclesAreRefused,
    /// A new leader grants no lock before all have reasserted theirs, or are dead.
    LocksAreReassertedFirst,
    /// A client has reasserted all locks when the leader has heard as many parts as it counts.
    ReassertedLocksAreCounted,
    /// Of two answers about the same bytes, the one that was given later says what holds.
    LaterAnswersWin,
    /// What a request under way may have unlocked is not reasserted.
    UnlockedIsNotReasserted,
}

impl Rule {
    /// All rules of locks. [`Rule::OtherTermsAreVoid`] is one of both.
    pub const OF_LOCKS: [Rule; 9] = [
        Rule::OtherTermsAreVoid,
        Rule::LockRequestsCountOnce,
        Rule::LockCancelsAreRemembered,
        Rule::LockersWaitInOrder,
        Rule::LockCirclesAreRefused,
        Rule::LocksAreReassertedFirst,
        Rule::ReassertedLocksAreCounted,
        Rule::LaterAnswersWin,
        Rule::UnlockedIsNotReasserted,
    ];
    /// All rules of tokens.
    pub const ALL: [Rule; 21] = [
        Rule::LateGrantsAreVoid,
        Rule::RevokesLimitNewUses,
        Rule::UsesAreWaitedFor,
        Rule::AnswersCoverTheNewestGrant,
        Rule::AllReassertFirst,
        Rule::OnlyExclusiveIsAlone,
        Rule::ReassertionsAreCounted,
        Rule::OtherTermsAreVoid,
        Rule::RangesNeedTheInode,
        Rule::WritersLeaveFirst,
        Rule::WritersBeginAnew,
        Rule::UsedBlocksAreFlushed,
        Rule::RepairIsAlone,
        Rule::HoldersPassThoseWhoWait,
        Rule::OpenOutlivesTheInode,
        Rule::UnusedOpenGoesWithTheInode,
        Rule::ClosesAreTold,
        Rule::ReassertedClosesAreTold,
        Rule::StaleOpensAreTold,
        Rule::NewFilesAreFree,
        Rule::LateTokensOfNewFilesAreVoid,
    ];
}

/// Whether a rule is obeyed: always, in the product.
#[cfg(not(any(test, feature = "mutations")))]
pub(crate) const fn obeys(_: Rule) -> bool {
    true
}

#[cfg(any(test, feature = "mutations"))]
pub(crate) use mutated::obeys;
#[cfg(any(test, feature = "mutations"))]
pub use mutated::{decide, without};

#[cfg(any(test, feature = "mutations"))]
mod mutated {
    use super::Rule;
    use std::cell::Cell;
    use std::sync::OnceLock;

    /// Says of every thread whether it obeys a rule.
    static OBEYS: OnceLock<fn(Rule) -> bool> = OnceLock::new();

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn obeys(rule: Rule) -> bool {
        BROKEN.get() != Some(rule) && OBEYS.get().is_none_or(|obeys| obeys(rule))
    }

    /// From now on `obeys` also says whether a rule is obeyed. It is asked on every thread of the
    /// process, for tests of which each has many threads. Only the first call counts.
    pub fn decide(obeys: fn(Rule) -> bool) {
        OBEYS.get_or_init(|| obeys);
    }

    /// Runs `test` on this thread without a rule.
    pub fn without<T>(rule: Rule, test: impl FnOnce() -> T) -> T {
        BROKEN.set(Some(rule));
        let outcome = test();
        BROKEN.set(None);
        outcome
    }
}
