//! The rules that the model of one writer takes away, one at a time.

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// When a version is overwritten, the NSD drops it although a commit has begun to cover it.
    DropsWhatACommitCovers,
    /// The NSD keeps no previous version at all.
    KeepsNoPrevious,
    /// A stripe is settled once N strips are stable, instead of all.
    SettlesEarly,
    /// Recovery looks at the current versions only.
    IgnoresKeptVersions,
    /// Recovery takes the newest version to be whole without counting its strips.
    BelievesTheNewest,
    /// Recovery rolls back with more NSDs away than the code tolerates.
    RollsBackBlindly,
    /// Recovery serves what it found without writing it anew.
    WritesNoOutcome,
    /// A write that left an NSD out is acknowledged before the metadata has noted that NSD.
    DoesNotNote,
    /// An NSD that was away is read as soon as it is back.
    BelievesTheReturned,
    /// A new life of the client reuses the version numbers of the last.
    ReusesVersions,
    /// A write is acknowledged when it is only accepted.
    AcknowledgesTheAccepted,
    /// An heir takes its place before it has everything. In a recovery it then votes that what it
    /// lacks does not exist.
    HeirsVoteEarly,
    /// An heir does not get the writes that are made while it gets its copy.
    HeirsGetNoWrites,
    /// An heir takes its place although it missed a write.
    IgnoresWhatHeirsMiss,
    /// An heir takes its place before what it accepted is durable.
    HeirsNeedNotBeStable,
    /// An heir takes its place although it was started anew since it got its copy.
    TrustsHeirsThatRestarted,
    /// After a crash, a deletion believes that everything copied before the crash is still copied.
    TrustsCopiesAfterACrash,
    /// P1: an NSD accepts a patch whatever its newest version is.
    AcceptsPatchesOfAnyBase,
    /// P1: the client acknowledges a patch although an NSD did not have its base.
    IgnoresNotBase,
    /// P1: patches pass over any NSD that lacks the base, as if it were being brought up to date.
    PassesOverAnyRefusal,
    /// P1: after `NotBase` the whole strip is sent under the version of the patch.
    SendsTheRestUnderTheSameVersion,
    /// P2: the base is accepted everywhere, but not known to be stable.
    PatchesTheUnstable,
    /// P2: the base lies below a deletion that not all NSDs have applied.
    PatchesBeneathAFloor,
    /// P3: a unit that was hardened no longer counts as changed.
    HardeningClearsChanged,
    /// P3: a unit that the NSDs lost does not count as changed again.
    ForgetsWhatWasLost,
    /// P4: parity is computed with the page pool's bytes of the other units.
    ReadsOldBytesFromThePool,
    /// P4: parity is computed with old units of any version that an NSD has.
    ReadsOldBytesOfAnyVersion,
    /// P7: the units that a patch shares with its base are freed with the base.
    DropsTheBase,
    /// P7: where base and patch are joined, the units of the base win.
    BaseWinsTheJoin,
    /// P8: an outcome is sent as an empty patch of whatever an NSD holds.
    PatchesTheOutcome,
    /// P9: a patch is settled as soon as it is stable, although its base is not settled.
    SettlesPatchesAtOnce,
    /// P10: a stripe is patched while an heir is to get it.
    PatchesPastHeirs,
    /// P12: a unit is hardened although another kept unit has been sent since.
    HardensBesideWhatWasSent,
    /// P12: an `fsync` takes for safe what was sent and is not stable.
    HardensNothingOnItsWay,
    /// P12: what was hardened is forgotten when it was sent, before it is stable.
    FoldsWhatIsOnItsWay,
    /// P12: everything kept is forgotten at once, even what was hardened after the block was sent.
    FoldsEverything,
}

/// In which kind of scope a bug shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Whole blocks are written.
    Writing,
    /// An NSD is deleted.
    Deleting,
    /// Parts of blocks are written, and sent as patches.
    Patching,
    /// Like `Patching`, with a page pool.
    Pooling,
    /// Like `Pooling`, with small synchronous writes.
    Hardening,
    /// Like `Patching`, with deletions of the block's range.
    Punching,
    /// Like `Patching`, with a block that the metadata does not know yet.
    Naming,
    /// Like `Patching`, while an NSD is deleted.
    PatchingHeirs,
}

impl Bug {
    /// All bugs, and where each shows.
    pub const ALL: [(Bug, Shows); 36] = [
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
        (Bug::PassesOverAnyRefusal, Shows::Patching),
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
        (Bug::HardensNothingOnItsWay, Shows::Hardening),
        (Bug::FoldsWhatIsOnItsWay, Shows::Hardening),
        (Bug::FoldsEverything, Shows::Hardening),
    ];
}
