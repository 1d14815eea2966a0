//! The rules that the model takes away, one at a time.

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// R1: when a stripe is settled, the mask leaves out a position that was not stable, because
    /// its NSD had accepted the version.
    TrustsTheAccepted,
    /// R2: a returned NSD is listed before every server has raised its floor.
    ListsBelowTheFloor,
    /// R2: servers do not check the floor when they publish a change.
    TestsNoFloor,
    /// R4: the manager resolves a block that a living client holds.
    ResolvesWhatIsHeld,
    /// R6: the leader draws a grant's number while another still holds the token.
    DrawsEarly,
    /// R6: a client always writes with the first number it was given, as if it had one grant in its
    /// life.
    OneGrantPerLife,
    /// R7: the token is given back while a write is accepted but not stable.
    HandsOverTheAccepted,
    /// R7: a new holder does not tell the NSDs that the version it found is stable.
    NamesNothingStable,
    /// R8: strips that only a returned NSD has are deleted without the block's token.
    DeletesWithoutTheToken,
    /// R9: a dead client's token is free before every server has fenced the client.
    FreesBeforeTheFence,
    /// R9: servers do not check the fence when they publish a change.
    TestsNoFence,
    /// An NSD with too many versions drops the oldest one instead of the one before the current.
    DropsTheOldest,
    /// An NSD with too many versions drops the current one instead of the one before it.
    DropsTheCurrent,
}

impl Bug {
    /// The rules whose absence the test must find.
    pub const ALL: [Bug; 13] = [
        Bug::TrustsTheAccepted,
        Bug::ListsBelowTheFloor,
        Bug::TestsNoFloor,
        Bug::ResolvesWhatIsHeld,
        Bug::DrawsEarly,
        Bug::OneGrantPerLife,
        Bug::HandsOverTheAccepted,
        Bug::NamesNothingStable,
        Bug::DeletesWithoutTheToken,
        Bug::FreesBeforeTheFence,
        Bug::TestsNoFence,
        Bug::DropsTheOldest,
        Bug::DropsTheCurrent,
    ];
}
