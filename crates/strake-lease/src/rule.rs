//! The rules of leases and reservations, by name. In the product all are obeyed, and asking costs
//! nothing. With the feature `mutations` a test takes one away, to see that its model finds that.

/// A rule, named where it is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A client counts its lease from the moment when it sent the renewal.
    ClientsCountFromSending,
    /// The leader waits for the margin before it declares a client dead.
    ClientsHaveAMargin,
    /// The leader waits for the margin before a server's lease counts as over.
    ServersHaveAMargin,
    /// A client is dead only when every server has answered its fence, or has no lease.
    FencesAreAnswered,
    /// A lease that was sent counts, whether it was answered or not.
    SentLeasesCount,
    /// A new leader counts every server's lease as given at its start.
    NewLeadersWaitForOldLeases,
    /// A new leader counts every client's lease as renewed at its start.
    NewLeadersRenewClients,
    /// A server whose lease was over gets a list with its next lease.
    LapsedServersGetAList,
    /// The answer to a list that was sent before the lease was over does not count.
    LateAnswersAreVoid,
    /// A fence has a higher number than every list and addition with that client.
    FencesAreNumbered,
    /// A client that is being fenced is on no list.
    ListsLeaveOutTheDead,
    /// A client uses NSDs only when each of them has it on its list.
    JoinsAreAnswered,
    /// A server of an NSD that finds a mark with a higher number ends.
    LaterServersWin,
    /// A new server of an NSD waits for longer than a permit of those before it can last.
    PatienceIsLongerThanPermits,
    /// A permit counts from the beginning of the round that brought it.
    PermitsCountFromTheBeginning,
    /// A mark that cannot be read may be a later server's.
    UnreadableMarksCount,
    /// A mark of an earlier process may land over that of the present one.
    EarlierMarksMayLand,
    /// Patience counts from a mark that none of an earlier process can replace.
    PatienceCountsFromALastingMark,
    /// I/O of an earlier process may be under way when the present one has none.
    EarlierIoMayBeUnderWay,
}

impl Rule {
    /// All rules of leases.
    pub const ALL: [Rule; 12] = [
        Rule::ClientsCountFromSending,
        Rule::ClientsHaveAMargin,
        Rule::ServersHaveAMargin,
        Rule::FencesAreAnswered,
        Rule::SentLeasesCount,
        Rule::NewLeadersWaitForOldLeases,
        Rule::NewLeadersRenewClients,
        Rule::LapsedServersGetAList,
        Rule::LateAnswersAreVoid,
        Rule::FencesAreNumbered,
        Rule::ListsLeaveOutTheDead,
        Rule::JoinsAreAnswered,
    ];
    /// Those of reservations.
    pub const OF_RESERVATIONS: [Rule; 7] = [
        Rule::LaterServersWin,
        Rule::PatienceIsLongerThanPermits,
        Rule::PermitsCountFromTheBeginning,
        Rule::UnreadableMarksCount,
        Rule::EarlierMarksMayLand,
        Rule::PatienceCountsFromALastingMark,
        Rule::EarlierIoMayBeUnderWay,
    ];
}

/// Whether a rule is obeyed: always, in the product.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn obeys(_: Rule) -> bool {
    true
}

#[cfg(feature = "mutations")]
pub use mutated::{obeys, without};

#[cfg(feature = "mutations")]
mod mutated {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Whether a rule is obeyed on this thread at present.
    pub fn obeys(rule: Rule) -> bool {
        BROKEN.get() != Some(rule)
    }

    /// Runs `test` on this thread without a rule.
    pub fn without<T>(rule: Rule, test: impl FnOnce() -> T) -> T {
        BROKEN.set(Some(rule));
        let outcome = test();
        BROKEN.set(None);
        outcome
    }
}
