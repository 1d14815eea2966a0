//! The rules for what an NSD accepts, keeps and frees. They are pure: decisions over records,
//! without disk, lock or journal.
//!
//! **Which versions are kept.** A crash may leave any NSD of a stripe at any version it accepted.
//! So the last version that was stable everywhere must stay readable until a newer one is. The NSD
//! learns this late, by *settling*. A newly written version goes in front of the versions held.
//! These rules say which of those stay:
//!
//! 1. When a version is settled, all older ones go.
//! 2. With each version the writer says which version it knows to be stable everywhere. All older
//!    ones go. So an NSD that was away does not have to choose among versions that it kept from
//!    lives long ago.
//! 3. A current version that no commit has begun to cover goes at once when it is overwritten.
//!    Nobody was or will be told that it is stable here, so it was never acknowledged.
//! 4. Every other version stays, up to `VERSIONS_MAX`. If there are more, the version before the
//!    current one goes ([`least_needed`]).
//!
//! **Patches.** A patch stands directly in front of its base and says how it differs. When the base
//! goes, the two are joined: the patch takes over the base's parts. If both have a displaced unit,
//! that of the patch stays. So no unit of the disk is named twice, and freeing is a difference of
//! lists. A patch is refused unless the newest version held is exactly its base ([`judge_patch`]).
//!
//! **What is refused.** A version is refused if it is not above the current one, or not above the
//! *floor*. The floor is the higher of two versions: that of a tombstone that covers the block, and
//! that of a promise for the key.
//!
//! **Tombstones** of an object are kept as a step function from block to highest version, in pieces
//! that never overlap. This loses nothing: a set of tombstones refuses exactly what its maximum
//! refuses. Forgetting all tombstones up to a version leaves exactly the pieces above it.

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
    /// Refused: the write is not above this version, which is held or refused itself.
    Stale(Version),
    /// Done already: the write is a copy of a version that is held.
    Present,
    /// Refused: the patch does not fit the version held, or the record is full of patches.
    NotBase,
    /// Accepted: the version goes in front of those held.
    Accepted,
}

/// Judges a write of `version`. `copy` is as in the request.
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

/// Judges a patch of `base` that changes `units`, which ascend. `committing` is the last journal
/// entry that a commit has begun to cover.
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

/// True if somebody may have been told that a current version is stable here.
fn may_be_acknowledged(current: &StripVersion, committing: Lsn) -> bool {
    current.settled || current.accepted <= committing
}

/// Puts an accepted version in front of those held. Returns the versions held from now on, and the
/// units that are not needed any more. `committing` is the last journal entry that a commit has
/// begun to cover at the moment when the new version gets its own entry. `stable` is as in the
/// request.
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
        let at = least_needed(&versions);
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

/// Takes out a version. If the version in front of it is a patch of it, the two are joined.
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

/// The place of the version that goes when too many are held, newest first, the new one among them.
///
/// The version before the current one goes: nobody was told of it. The oldest version stays,
/// because it may be the last acknowledged one. Every holder of the block names what it found as
/// stable with its first write, so nothing older than that is held. The current version stays,
/// because it may be the outcome of a recovery that is stable everywhere. The versions between
/// these two are an unfinished write and outcomes of recoveries that died. Grants are not compared,
/// because one life of a client has many (decision 0022).
fn least_needed(versions: &[StripVersion]) -> usize {
    assert!(versions.len() >= 4, "the new, the current, the one before it, and the oldest");
    2
}

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The versions held from now on. `None` if the record is removed.
    pub record: Option<StripRecord>,
    /// Units of the versions that go.
    pub freed: Vec<Extent>,
}

/// Notes that `version` of the stripe is stable on all positions but those that `lacks` names.
/// `None` if this changes nothing.
pub fn settle(held: &StripRecord, version: Version, lacks: u32) -> Option<Change> {
    // A strip whose newest version is older missed that version. Its versions may be all there is.
    if held.current().version() < version {
        return None;
    }
    let mut change = drop_versions(held, |one| one.version() < version);
    let record = change.record.as_mut().expect("invariant: the current version stays");
    for one in record.versions.iter_mut().filter(|one| one.version() == version) {
        one.settled = true;
        one.header.lacks = lacks;
    }
    (record != held).then_some(change)
}

/// Forgets versions older than `stable`, if that one is held. `None` if this changes nothing.
pub fn forget_older(held: &StripRecord, stable: Version) -> Option<Change> {
    held.version(Some(stable))?;
    let change = drop_versions(held, |one| one.version() < stable);
    (change.record.as_ref() != Some(held)).then_some(change)
}

/// Applies a tombstone of `version`. `None` if this changes nothing.
pub fn delete(held: &StripRecord, version: Version) -> Option<Change> {
    let change = drop_versions(held, |one| one.version() <= version);
    (change.record.as_ref() != Some(held)).then_some(change)
}

/// Drops the versions for which `goes` is true. It is true for all versions older than such a one.
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
    // The current version may be deleted later, and with it the reason to refuse. The tombstone
    // that deletes it is above the current version, and refuses instead.
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

/// Lays `new` over `old`, in one pass. `old` holds pieces of the object in order, without overlap,
/// and among them all pieces that overlap or touch `new`. Returns the pieces that replace `old`:
/// each block has the higher version, and neighbours of one version are one piece.
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
    // The new piece is laid up to here.
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
