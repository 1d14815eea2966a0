//! Redundancy codes, the shape of a block, and the pool map. This is plain data. `strake-stripe`
//! has the functions that encode and place.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{LayoutVersion, MapVersion, NsdId, ObjectId, SlotIndex};
use crate::limits::{SHORT_BLOCK_BYTES_MAX, UNIT_BYTES};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A redundancy code: N data strips and P parity strips. The data survives the loss of P strips.
///
/// Copies (`2x`) are the case N = 1: every parity strip equals the data strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Code {
    /// N ≥ 1.
    pub data: u8,
    /// P ≥ 0.
    pub parity: u8,
}

impl Code {
    /// All codes, with their names.
    pub const ALL: [(&'static str, Code); 9] = [
        ("1", Code { data: 1, parity: 0 }),
        ("2x", Code { data: 1, parity: 1 }),
        ("3x", Code { data: 1, parity: 2 }),
        ("4x", Code { data: 1, parity: 3 }),
        ("4+1p", Code { data: 4, parity: 1 }),
        ("4+2p", Code { data: 4, parity: 2 }),
        ("4+3p", Code { data: 4, parity: 3 }),
        ("8+2p", Code { data: 8, parity: 2 }),
        ("8+3p", Code { data: 8, parity: 3 }),
    ];

    /// Strips of a full stripe: N + P, the number of NSDs it needs.
    pub const fn width(self) -> usize {
        self.data as usize + self.parity as usize
    }
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.data, self.parity) {
            (1, 0) => out.write_str("1"),
            (1, copies) => write!(out, "{}x", copies + 1),
            (data, parity) => write!(out, "{data}+{parity}p"),
        }
    }
}

impl std::str::FromStr for Code {
    type Err = Error;
    fn from_str(text: &str) -> Result<Code> {
        let wanted = text.to_ascii_lowercase();
        Code::ALL.iter().find(|(name, _)| *name == wanted).map(|(_, code)| *code).ok_or_else(|| {
            let names: Vec<&str> = Code::ALL.iter().map(|(name, _)| *name).collect();
            Error::new(
                ErrorKind::Invalid,
                format!("'{text}' is not a code: choose one of {}", names.join(", ")),
            )
        })
    }
}

/// How a block of a given length is cut into strips. This depends only on code and length, so a
/// reader that knows a stripe's block length knows its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Data strips: N, or 1 for a short block.
    pub data_strips: u8,
    /// Parity strips: P.
    pub parity_strips: u8,
    /// Bytes of every strip, a multiple of 4 KiB. The last data strip is padded with zeros.
    pub strip_bytes: usize,
}

impl Geometry {
    /// The shape of a block holding `block_bytes` bytes (1 ..= block size).
    ///
    /// Position `i < data_strips` holds bytes `i*strip_bytes ..` of the block. Parity strips stand
    /// at positions `N .. N+P` of the *code*, also for a short block. So a position always means
    /// the same slot. Positions `1..N` of a short block do not exist. A data position that lies
    /// wholly beyond `block_bytes` is a strip of zeros, and is not stored either.
    pub fn of(code: Code, block_bytes: u64) -> Geometry {
        assert!(block_bytes > 0, "an empty block has no strips");
        let short = block_bytes <= SHORT_BLOCK_BYTES_MAX;
        let data_strips = if short { 1 } else { code.data };
        let unit = UNIT_BYTES as u64;
        let strip = block_bytes.div_ceil(u64::from(data_strips)).div_ceil(unit) * unit;
        let strip_bytes = usize::try_from(strip).expect("invariant: a block fits in memory");
        Geometry { data_strips, parity_strips: code.parity, strip_bytes }
    }

    /// True if position `strip` of `code` is stored for a block of `block_bytes`.
    pub fn is_stored(code: Code, block_bytes: u64, strip: u8) -> bool {
        let shape = Geometry::of(code, block_bytes);
        if strip >= code.data {
            return strip < code.data + code.parity;
        }
        u64::from(strip) * (shape.strip_bytes as u64) < block_bytes && strip < shape.data_strips
    }

    /// The least length, not below `wanted`, that stores every position which a block of `held`
    /// bytes stores. `held` is not above `wanted`. A longer block usually stores as many positions
    /// or more, but not always: with 8 data strips, 163,840 bytes are eight strips of 20 KiB, and
    /// one more byte makes seven strips of 24 KiB.
    pub fn widened(code: Code, wanted: u64, held: u64) -> u64 {
        assert!(held <= wanted, "{held} bytes are held, {wanted} wanted");
        let last = (0..code.data).rev().find(|at| Geometry::is_stored(code, held, *at));
        let last = last.expect("invariant: position 0 is always stored");
        if Geometry::is_stored(code, wanted, last) {
            return wanted;
        }
        // A block that is longer by so little has strips as long as one of `wanted` bytes. With
        // this length, one byte of it is at the last position.
        u64::from(last) * Geometry::of(code, wanted).strip_bytes as u64 + 1
    }
}

/// Everything that placement needs to know of an object, beside the [`PoolMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectLayout {
    /// The object.
    pub object: ObjectId,
    /// Its redundancy code.
    pub code: Code,
    /// Bytes of a full block.
    pub block_size: u32,
    /// Names the members of the pool over which it is laid out.
    pub layout: LayoutVersion,
    /// The key that encrypts it; 0 = none.
    pub key: u32,
}

/// What an NSD may be used for now: its status and its availability, as `disk list` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NsdState {
    /// What the administrator wants.
    pub status: NsdStatus,
    /// What the NSD can do now.
    pub availability: NsdAvailability,
}

/// What the administrator wants of an NSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NsdStatus {
    /// In use.
    Ready,
    /// Gets no new data.
    Suspended,
    /// Being emptied before it is deleted.
    BeingEmptied,
    /// Being replaced.
    Replacing,
    /// Replaces another disk.
    Replacement,
    /// Gone for good: its strips have other places (see [`PoolMap::deleted`]). The slot is never
    /// used again. Older programs cannot read this variant, and so refuse the file system.
    Deleted {
        /// How many NSDs were deleted before it.
        order: u16,
    },
}

impl NsdStatus {
    /// True if new files are laid out over it.
    pub const fn takes_new_data(self) -> bool {
        matches!(self, NsdStatus::Ready | NsdStatus::Replacing | NsdStatus::Replacement)
    }
}

/// What an NSD can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NsdAvailability {
    /// It is read and written.
    Up,
    /// It is neither read nor written.
    Down,
    /// It is written and not read, because it missed writes and is being brought up to date.
    Recovering,
    /// It is neither read nor written, because it missed writes and recovery has not begun.
    Unrecovered,
}

impl NsdAvailability {
    /// True if its strips may be read.
    pub const fn readable(self) -> bool {
        matches!(self, NsdAvailability::Up)
    }
    /// True if strips are written to it.
    pub const fn writable(self) -> bool {
        matches!(self, NsdAvailability::Up | NsdAvailability::Recovering)
    }
}

/// One place of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The NSD that holds it.
    pub nsd: NsdId,
    /// NSDs of one group fail together.
    pub failure_group: u32,
    /// What the NSD may be used for.
    pub state: NsdState,
}

/// The members of one layout version. Placement spreads strips over exactly these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutMap {
    /// Its number; 1 is the first.
    pub version: LayoutVersion,
    /// Slot and failure group at the time the version was made, in slot order.
    pub members: Vec<(SlotIndex, u32)>,
}

/// The slots of a pool and the layouts made of them. Only the leader changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMap {
    /// Grows with every change.
    pub version: MapVersion,
    /// By [`SlotIndex`].
    pub slots: Vec<Slot>,
    /// By version, ascending; new objects use the last.
    pub layouts: Vec<LayoutMap>,
}

impl PoolMap {
    /// A pool of NSDs that are all up, each given with its failure group. Each gets a slot, in
    /// their order. There is one layout, of all of them.
    pub fn new(nsds: impl IntoIterator<Item = (NsdId, u32)>) -> PoolMap {
        let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Up };
        let (mut slots, mut members) = (Vec::new(), Vec::new());
        for (index, (nsd, failure_group)) in (0..=u16::MAX).zip(nsds) {
            slots.push(Slot { nsd, failure_group, state });
            members.push((SlotIndex(index), failure_group));
        }
        let layouts = vec![LayoutMap { version: LayoutVersion(1), members }];
        PoolMap { version: MapVersion(1), slots, layouts }
    }

    /// The slots that are deleted, in the order in which they were: every reader of a stripe
    /// applies them in this order, for ever.
    pub fn deleted(&self) -> Vec<SlotIndex> {
        let order = |slot: &Slot| match slot.state.status {
            NsdStatus::Deleted { order } => Some(order),
            _ => None,
        };
        let mut lost: Vec<(u16, SlotIndex)> = self
            .indexed()
            .filter_map(|(index, slot)| order(slot).map(|order| (order, index)))
            .collect();
        lost.sort_unstable();
        lost.into_iter().map(|(_, index)| index).collect()
    }

    /// The slot whose strips are being given other places, before it is deleted.
    pub fn being_emptied(&self) -> Option<SlotIndex> {
        let found = self.indexed().find(|(_, slot)| slot.state.status == NsdStatus::BeingEmptied);
        found.map(|(index, _)| index)
    }

    /// The slots in use: all but the deleted ones.
    pub fn live(&self) -> impl Iterator<Item = (SlotIndex, &Slot)> {
        self.indexed().filter(|(_, slot)| !matches!(slot.state.status, NsdStatus::Deleted { .. }))
    }

    fn indexed(&self) -> impl Iterator<Item = (SlotIndex, &Slot)> {
        (0..=u16::MAX).map(SlotIndex).zip(&self.slots)
    }

    /// The layout with this version.
    pub fn layout(&self, version: LayoutVersion) -> Option<&LayoutMap> {
        self.layouts.iter().find(|layout| layout.version == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_widened_block_stores_every_position_that_it_stored() {
        let code: Code = "8+2p".parse().expect("a code");
        assert_eq!(Geometry::widened(code, 163_841, 163_840), 7 * 24_576 + 1);
        let block = 256 << 10;
        let lengths = || {
            let unit = UNIT_BYTES as u64;
            (0..=block / unit).flat_map(move |at| [at * unit, at * unit + 1])
        };
        let lengths: Vec<u64> = lengths().filter(|bytes| (1..=block).contains(bytes)).collect();
        for (name, code) in Code::ALL {
            let stored = |bytes| -> Vec<u8> {
                let data = 0..code.data;
                data.filter(|at| Geometry::is_stored(code, bytes, *at)).collect()
            };
            for (at, held) in lengths.iter().enumerate() {
                for wanted in &lengths[at..] {
                    let widened = Geometry::widened(code, *wanted, *held);
                    assert!((*wanted..=block).contains(&widened), "{name}: {held}, {wanted}");
                    assert!(
                        stored(widened).len() >= stored(*held).len(),
                        "{name}: {held}, {wanted}"
                    );
                    if widened > *wanted {
                        let less = stored(widened - 1).len();
                        assert!(less < stored(*held).len(), "{name}: {held}, {wanted}: the least");
                    }
                }
            }
        }
    }

    #[test]
    fn codes_read_what_they_print() {
        for (name, code) in Code::ALL {
            assert_eq!(code.to_string(), name);
            assert_eq!(name.parse::<Code>().expect("a code"), code);
        }
        assert!("5+5p".parse::<Code>().expect_err("no such code").to_string().contains("4+2p"));
    }

    #[test]
    fn deleted_slots_are_told_in_the_order_in_which_they_went() {
        let mut pool = PoolMap::new((0..5).map(|at| (NsdId(at + 1), at)));
        assert_eq!((pool.deleted(), pool.being_emptied(), pool.live().count()), (vec![], None, 5));
        pool.slots[3].state.status = NsdStatus::Deleted { order: 0 };
        pool.slots[1].state.status = NsdStatus::Deleted { order: 1 };
        pool.slots[4].state.status = NsdStatus::BeingEmptied;
        assert_eq!(pool.deleted(), [SlotIndex(3), SlotIndex(1)]);
        assert_eq!(pool.being_emptied(), Some(SlotIndex(4)));
        let live: Vec<u16> = pool.live().map(|(index, _)| index.0).collect();
        assert_eq!(live, [0, 2, 4]);
    }

    #[test]
    fn short_blocks_have_one_data_strip_and_full_ones_n() {
        let code = Code { data: 4, parity: 2 };
        let short = Geometry::of(code, 5000);
        assert_eq!((short.data_strips, short.strip_bytes), (1, 8192));
        let full = Geometry::of(code, 4 << 20);
        assert_eq!((full.data_strips, full.strip_bytes), (4, 1 << 20));
        let stored: Vec<u8> = (0..8).filter(|&i| Geometry::is_stored(code, 5000, i)).collect();
        assert_eq!(stored, [0, 4, 5]);
        let stored: Vec<u8> = (0..8).filter(|&i| Geometry::is_stored(code, 131_073, i)).collect();
        assert_eq!(stored, [0, 1, 2, 3, 4, 5]);
    }
}
