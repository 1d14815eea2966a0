//! What an NSD accepts, keeps and frees. Pure: decisions over records, no disk, lock or journal.
//!
//! **Which versions are kept.** A crash may leave any NSD of a stripe at any version it accepted,
//! so the last version that was stable everywhere must stay readable until a newer one is. The NSD
//! learns that late, by *settling*. A newly written version therefore stands in front of the ones
//! held, and of those:
//!
//! 1. when a version is settled, all older ones go;
//! 2. with each version the writer says which one it knows to be stable everywhere, and all older
//!    ones go. So an NSD does not have to choose among versions of lives long ago, which it kept
//!    while it was away;
//! 3. a current version that no commit has begun to cover goes at once when it is overwritten:
//!    nobody was, or will be, told that it is stable here, so it was never acknowledged;
//! 4. every other one stays, up to `VERSIONS_MAX`. Then one goes that is unlikely to be the last
//!    acknowledged one ([`least_needed`]).
//!
//! **Patches.** A patch stands directly in front of its base and says how it differs. When the base
//! goes, the two are joined: the patch takes over what the base has. Where both have a displaced
//! unit, that of the patch stays. So no unit of the disk is named twice, and freeing is a
//! difference of lists. A patch is refused unless the newest version held is exactly its base
//! ([`judge_patch`]).
//!
//! **What is refused:** versions not above the current one, and not above the *floor*: the higher
//! of a tombstone that covers the block and a promise for the key.
//!
//! **Tombstones** of an object are kept as a step function block ▶ highest version: pieces that
//! never overlap. That forgets nothing: what a set of tombstones refuses is what its maximum does,
//! and forgetting all up to a version leaves exactly the pieces above it.

use crate::extent::Extent;
use crate::record::{
    DISPLACED_MAX, Displaced, StripRecord, StripVersion, Tombstone, VERSIONS_MAX, overlay,
};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, Version};
use strake_store::Lsn;

/// The fate of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteVerdict {
    /// Refused: the write is not above this version, which is held or refused.
    Stale(Version),
    /// Done already: it is a copy of a version that is held.
    Present,
    /// Refused: what is held is not what the patch changes, or is full of patches.
    NotBase,
    /// Accepted: the version goes in front of those held.
    Accepted,
}

/// Judges a write of `version`; `copy` as in the request.
pub fn judge_write(
    held: Option<&StripRecord>,
    floor: Version,
    version: Version,
    copy: bool,
) -> WriteVerdict {
    let newest = held.map_or(Version::NONE, |record| record.current().version());
    if copy && held.is_some_and(|record| record.version(Some(version)).is_some()) {
        return WriteVerdict::Present;
    }
    let highest = newest.max(floor);
    if version <= highest { WriteVerdict::Stale(highest) } else { WriteVerdict::Accepted }
}

/// Judges a patch of `base` that changes `units`, ascending. `committing` is the last journal entry
/// that a commit has begun to cover.
pub fn judge_patch(
    held: Option<&StripRecord>,
    floor: Version,
    committing: Lsn,
    (header, base, units): (&StripHeader, Version, &[u32]),
) -> WriteVerdict {
    let Some(record) = held else { return WriteVerdict::NotBase };
    if record.version(Some(header.version)).is_some() {
        return WriteVerdict::Present;
    }
    let newest = record.current();
    // A base that no commit covers cannot be what the sender calls stable.
    let is_base =
        newest.version() == base && base > floor && may_be_acknowledged(newest, committing);
    let strip_units = newest.strip_bytes / UNIT_BYTES as u32;
    let fits = newest.header.block_bytes == header.block_bytes
        && units.last().is_none_or(|last| *last < strip_units)
        && record.displaced_units() + units.len() <= DISPLACED_MAX;
    match is_base && fits {
        false => WriteVerdict::NotBase,
        true if header.version <= base => WriteVerdict::Stale(base),
        true => WriteVerdict::Accepted,
    }
}

/// Whether somebody may have been told that a current version is stable here.
fn may_be_acknowledged(current: &StripVersion, committing: Lsn) -> bool {
    current.settled || current.accepted <= committing
}

/// Puts an accepted version in front of what is held; returns what is held from now on and the
/// units that are not needed any more. `committing` is the last journal entry that a commit has
/// begun to cover at the moment at which the new version gets its own; `stable` as in the request.
pub fn put_in_front(
    newest: StripVersion,
    held: Option<StripRecord>,
    committing: Lsn,
    stable: Version,
) -> (StripRecord, Vec<Extent>) {
    let mut versions = held.map(|record| record.versions).unwrap_or_default();
    let mut freed = Vec::new();
    versions.insert(0, newest);
    if versions.iter().any(|one| one.version() == stable) {
        let kept = versions.iter().filter(|one| one.version() >= stable).count();
        shorten(&mut versions, kept, &mut freed);
    }
    if versions.get(1).is_some_and(|current| !may_be_acknowledged(current, committing)) {
        take_out(&mut versions, 1, &mut freed);
    }
    if versions.len() > VERSIONS_MAX {
        let at = 1 + least_needed(&versions[1..]);
        take_out(&mut versions, at, &mut freed);
    }
    (StripRecord { versions }, freed)
}

/// Takes out the oldest versions until `kept` are left.
fn shorten(versions: &mut Vec<StripVersion>, kept: usize, freed: &mut Vec<Extent>) {
    while versions.len() > kept {
        take_out(versions, versions.len() - 1, freed);
    }
}

/// Takes out a version. If the one in front of it is a patch of it, the two are joined.
fn take_out(versions: &mut Vec<StripVersion>, at: usize, freed: &mut Vec<Extent>) {
    let gone = versions.remove(at);
    let newer = at.checked_sub(1).map(|newer| &mut versions[newer]);
    match newer.filter(|newer| newer.is_patch()) {
        None => freed.extend(gone.extents()),
        Some(patch) => {
            let (shown, hidden) = overlay(&patch.displaced, &gone.displaced);
            freed.extend(hidden.iter().map(Displaced::extent));
            patch.displaced = shown;
            patch.whole = gone.whole;
        }
    }
}

/// Names the version that goes when too many are held.
///
/// The oldest stays, because it may be the settled one. The newest two of each writer stay (a grant
/// is one life of one client). A writer sent its last version when the one before was stable
/// everywhere. So the one before may be the last acknowledged, and the last one may have reached
/// few NSDs before the writer died. Versions older than these two are superseded, and the oldest of
/// them goes first. If there are none, each life since has only tried to make the NSDs equal and
/// died over it. What such a life left, older versions hold as well. So the second newest goes.
fn least_needed(versions: &[StripVersion]) -> usize {
    let grant = |at: usize| versions[at].version().grant;
    (2..versions.len() - 1).rev().find(|&at| grant(at) == grant(at - 2)).unwrap_or(1)
}

/// A change of a record; `None` as the record removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The versions held from now on.
    pub record: Option<StripRecord>,
    /// Units of versions that go.
    pub freed: Vec<Extent>,
}

/// Notes that `version` of the stripe is stable everywhere; `None` if that changes nothing.
pub fn settle(held: &StripRecord, version: Version) -> Option<Change> {
    // A strip whose newest version is older missed that version: what it has may be all there is.
    if held.current().version() < version {
        return None;
    }
    let mut change = drop_versions(held, |one| one.version() < version);
    let record = change.record.as_mut().expect("invariant: the current version stays");
    for one in &mut record.versions {
        one.settled |= one.version() == version;
    }
    (record != held).then_some(change)
}

/// Forgets what is older than `stable`, if that is held; `None` if that changes nothing.
pub fn forget_older(held: &StripRecord, stable: Version) -> Option<Change> {
    held.version(Some(stable))?;
    let change = drop_versions(held, |one| one.version() < stable);
    (change.record.as_ref() != Some(held)).then_some(change)
}

/// Applies a tombstone of `version`; `None` if that changes nothing.
pub fn delete(held: &StripRecord, version: Version) -> Option<Change> {
    let change = drop_versions(held, |one| one.version() <= version);
    (change.record.as_ref() != Some(held)).then_some(change)
}

/// Drops the versions for which `goes` holds. It holds for all that are older than one of them.
fn drop_versions(held: &StripRecord, goes: impl Fn(&StripVersion) -> bool) -> Change {
    let mut versions = held.versions.clone();
    let kept = versions.iter().filter(|one| !goes(one)).count();
    let mut freed = Vec::new();
    shorten(&mut versions, kept, &mut freed);
    Change { record: (!versions.is_empty()).then_some(StripRecord { versions }), freed }
}

/// The answer to a request to refuse `version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseVerdict {
    /// The version is held.
    Held,
    /// The version is refused already, for good.
    Refused,
    /// A promise must be made durable first.
    Promise,
}

/// Judges a request never to accept `version`.
pub fn judge_refuse(held: Option<&StripRecord>, floor: Version, version: Version) -> RefuseVerdict {
    if held.is_some_and(|record| record.version(Some(version)).is_some()) {
        return RefuseVerdict::Held;
    }
    let newest = held.map_or(Version::NONE, |record| record.current().version());
    // The current version may be deleted later, and with it the reason to refuse; the tombstone
    // that does it is above the current version and refuses instead.
    if version <= newest.max(floor) { RefuseVerdict::Refused } else { RefuseVerdict::Promise }
}

/// One step of an object's tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First block and version.
    pub tombstone: Tombstone,
    /// One past the last block; `END` also covers the last one.
    pub to: BlockIndex,
}

/// Lays `new` over `old`: pieces of the object in order, without overlap, among them all that
/// overlap or touch `new`. Returns what stands in the place of `old`: at every block the higher
/// version, neighbours of one version as one piece. One pass.
pub fn lay_over(old: &[Piece], new: Piece) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(old.len() + 2);
    let mut push = |from: BlockIndex, to: BlockIndex, version: Version| {
        if from >= to {
            return;
        }
        match pieces.last_mut() {
            Some(last) if last.to == from && last.tombstone.version == version => last.to = to,
            _ => pieces.push(Piece { tombstone: Tombstone { from, version }, to }),
        }
    };
    let (start, end, version) = (new.tombstone.from, new.to, new.tombstone.version);
    // Up to where the new one is laid.
    let mut laid = start;
    for piece in old {
        let (from, to) = (piece.tombstone.from, piece.to);
        push(from, to.min(start), piece.tombstone.version);
        push(laid, from.min(end), version);
        push(from.max(start), to.min(end), piece.tombstone.version.max(version));
        laid = laid.max(to.min(end));
        if from.max(end) < to {
            push(laid, end, version);
            push(from.max(end), to, piece.tombstone.version);
            laid = end;
        }
    }
    push(laid, end, version);
    pieces
}

#[cfg(test)]
#[path = "rules_test.rs"]
mod rules_test;
