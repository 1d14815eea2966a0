//! The rules that the model takes away, one at a time.

/// A rule that is not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// R2: a returned NSD is listed before every server has raised its floor.
    ListsBelowTheFloor,
    /// R2: servers do not test the floor where a change is published.
    TestsNoFloor,
    /// R4: the manager resolves a block that a living client holds.
    ResolvesWhatIsHeld,
    /// R6: the leader draws a grant's number while another still holds the token.
    DrawsEarly,
    /// R6: a client writes with the first number it was given, as one grant per life does.
    OneGrantPerLife,
    /// R7: the token is given back while a write is accepted and not stable.
    HandsOverTheAccepted,
    /// R7: a new holder does not say that what it found is stable.
    NamesNothingStable,
    /// R8: what only a returned NSD has is deleted without the block's token.
    DeletesWithoutTheToken,
    /// R9: a dead client's token is free before every server has fenced the client.
    FreesBeforeTheFence,
    /// R9: servers do not test the fence where a change is published.
    TestsNoFence,
    /// Not a rule of the design for many mounts, but the one of `strake-nsd`: with too many
    /// versions the NSD compares grants to tell which is needed least.
    ComparesGrants,
}

impl Bug {
    /// All rules whose absence must be found.
    pub const ALL: [Bug; 10] = [
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
    ];
}
