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
    /// P1: an NSD accepts a patch whatever the newest version is that it holds.
    AcceptsPatchesOfAnyBase,
    /// P1: the client acknowledges a patch although an NSD had not its base.
    IgnoresNotBase,
    /// P1: after `NotBase` the whole strip is sent under the version of the patch.
    SendsTheRestUnderTheSameVersion,
    /// P2: the base is accepted everywhere, and not known to be stable.
    PatchesTheUnstable,
    /// P2: the base lies below a deletion that not all NSDs have applied.
    PatchesBeneathAFloor,
    /// P3: a unit that was hardened does not count as changed any more.
    HardeningClearsChanged,
    /// P3: what the NSDs lost does not count as changed again.
    ForgetsWhatWasLost,
    /// P4: parity is made with what the page pool has of the other units.
    ReadsOldBytesFromThePool,
    /// P4: parity is made with old units of whatever version an NSD has.
    ReadsOldBytesOfAnyVersion,
    /// P7: what a base and its patch have in common is freed with the base.
    DropsTheBase,
    /// P7: where base and patch are joined, the units of the base win.
    BaseWinsTheJoin,
    /// P8: an outcome is an empty patch on whatever an NSD holds.
    PatchesTheOutcome,
    /// P9: a patch is settled once stable, although its base is not settled.
    SettlesPatchesAtOnce,
    /// P10: a stripe is patched while an heir is to get it.
    PatchesPastHeirs,
    /// P12: a unit is hardened although another that is kept was sent since.
    HardensBesideWhatWasSent,
    /// P12: what is kept is forgotten as a whole, also what was hardened since it was sent.
    FoldsEverything,
}

/// Where a bug shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Whole blocks are written.
    Writing,
    /// An NSD is deleted.
    Deleting,
    /// Parts of blocks are written, and sent as patches.
    Patching,
    /// The same, with a page pool.
    Pooling,
    /// The same, with small synchronous writes.
    Hardening,
    /// The same, with deletions of the block's range.
    Punching,
    /// The same, with a block that the metadata does not know yet.
    Naming,
    /// The same, while an NSD is deleted.
    PatchingHeirs,
}

impl Bug {
    /// All of them, and where each shows.
    pub const ALL: [(Bug, Shows); 33] = [
        (Bug::DropsWhatACommitCovers, Shows::Writing),
        (Bug::KeepsNoPrevious, Shows::Writing),
        (Bug::SettlesEarly, Shows::Writing),
        (Bug::IgnoresKeptVersions, Shows::Writing),
        (Bug::BelievesTheNewest, Shows::Writing),
        (Bug::RollsBackBlindly, Shows::Writing),
        (Bug::WritesNoOutcome, Shows::Writing),
        (Bug::DoesNotNote, Shows::Writing),
        (Bug::BelievesTheReturned, Shows::Writing),
        (Bug::ReusesVersions, Shows::Writing),
        (Bug::AcknowledgesTheAccepted, Shows::Writing),
        (Bug::HeirsVoteEarly, Shows::Deleting),
        (Bug::HeirsGetNoWrites, Shows::Deleting),
        (Bug::IgnoresWhatHeirsMiss, Shows::Deleting),
        (Bug::HeirsNeedNotBeStable, Shows::Deleting),
        (Bug::TrustsHeirsThatRestarted, Shows::Deleting),
        (Bug::TrustsCopiesAfterACrash, Shows::Deleting),
        (Bug::AcceptsPatchesOfAnyBase, Shows::Patching),
        (Bug::IgnoresNotBase, Shows::Patching),
        (Bug::SendsTheRestUnderTheSameVersion, Shows::Pooling),
        (Bug::PatchesTheUnstable, Shows::Patching),
        (Bug::PatchesBeneathAFloor, Shows::Punching),
        (Bug::HardeningClearsChanged, Shows::Hardening),
        (Bug::ForgetsWhatWasLost, Shows::Patching),
        (Bug::ReadsOldBytesFromThePool, Shows::Pooling),
        (Bug::ReadsOldBytesOfAnyVersion, Shows::Patching),
        (Bug::DropsTheBase, Shows::Patching),
        (Bug::BaseWinsTheJoin, Shows::Patching),
        (Bug::PatchesTheOutcome, Shows::Patching),
        (Bug::SettlesPatchesAtOnce, Shows::Naming),
        (Bug::PatchesPastHeirs, Shows::PatchingHeirs),
        (Bug::HardensBesideWhatWasSent, Shows::Hardening),
        (Bug::FoldsEverything, Shows::Hardening),
    ];
}
