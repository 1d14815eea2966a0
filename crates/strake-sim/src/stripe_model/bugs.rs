//! The rules that the model of one writer takes away, one at a time.

/// A rule that is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The NSD drops a version that a commit has begun to cover when it is overwritten.
    DropsWhatACommitCovers,
    /// The NSD keeps no previous version at all.
    KeepsNoPrevious,
    /// A stripe is settled once N strips are stable, not all.
    SettlesEarly,
    /// Recovery looks at the current versions only.
    IgnoresKeptVersions,
    /// Recovery takes the newest version for whole without counting its strips.
    BelievesTheNewest,
    /// Recovery rolls back with more NSDs away than the code tolerates.
    RollsBackBlindly,
    /// Recovery serves what it found without writing it anew.
    WritesNoOutcome,
    /// A write that left an NSD out is acknowledged before anybody is told of that.
    DoesNotNote,
    /// An NSD that was away is read as soon as it is back.
    BelievesTheReturned,
    /// A new life of the client counts its versions from the same number.
    ReusesVersions,
    /// A write is acknowledged when it is accepted.
    AcknowledgesTheAccepted,
    /// An heir takes its place before it has everything: what it lacks, it votes absent.
    HeirsVoteEarly,
    /// An heir does not get what is written while it gets its copy.
    HeirsGetNoWrites,
    /// An heir takes its place although it missed a write.
    IgnoresWhatHeirsMiss,
    /// An heir takes its place before what it accepted is durable.
    HeirsNeedNotBeStable,
    /// An heir takes its place although it was started anew since it got its copy.
    TrustsHeirsThatRestarted,
    /// A deletion that a crash interrupted takes for copied what was copied before.
    TrustsCopiesAfterACrash,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 17] = [
        Bug::DropsWhatACommitCovers,
        Bug::KeepsNoPrevious,
        Bug::SettlesEarly,
        Bug::IgnoresKeptVersions,
        Bug::BelievesTheNewest,
        Bug::RollsBackBlindly,
        Bug::WritesNoOutcome,
        Bug::DoesNotNote,
        Bug::BelievesTheReturned,
        Bug::ReusesVersions,
        Bug::AcknowledgesTheAccepted,
        Bug::HeirsVoteEarly,
        Bug::HeirsGetNoWrites,
        Bug::IgnoresWhatHeirsMiss,
        Bug::HeirsNeedNotBeStable,
        Bug::TrustsHeirsThatRestarted,
        Bug::TrustsCopiesAfterACrash,
    ];
}
