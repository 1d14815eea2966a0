//! What a client holds, or wants, of one file.

use crate::ranges::{BlockRange, Ranges};
use crate::rule::{Rule, obeys};
use serde::{Deserialize, Serialize};
use strake_proto::Ino;

/// How a token lets its holder use what it covers.
///
/// `Exclusive` includes the two others, and these two exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Read, and cache what was read. Any number of clients may hold it at once.
    Shared,
    /// Change, and cache changes. No other client holds anything of it.
    Exclusive,
    /// Of an inode only: write the blocks that the client holds exclusively, beside others that
    /// write other blocks. Nothing else of the file may be read or changed.
    Writing,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Shared, Mode::Exclusive, Mode::Writing];

    /// Whether a client that holds `self` may do what `other` allows.
    pub fn includes(self, other: Mode) -> bool {
        self == other || self == Mode::Exclusive
    }

    /// Whether one client may hold `self` while another holds `other`.
    pub fn agrees(self, other: Mode) -> bool {
        self == other && self != Mode::Exclusive
    }

    /// The least mode that includes both.
    #[must_use]
    pub fn join(self, other: Mode) -> Mode {
        if self == other { self } else { Mode::Exclusive }
    }

    /// The most that both include. Nothing is both shared and written.
    pub fn meet(self, other: Mode) -> Option<Mode> {
        match (self.includes(other), other.includes(self)) {
            (true, _) => Some(other),
            (false, true) => Some(self),
            (false, false) => None,
        }
    }
}

/// Whether what is held is enough.
fn suffices(held: Option<Mode>, wanted: Option<Mode>) -> bool {
    wanted.is_none_or(|wanted| held.is_some_and(|held| held.includes(wanted)))
}

/// The most that both include; nothing if one of them is nothing.
fn meet(one: Option<Mode>, two: Option<Mode>) -> Option<Mode> {
    one.zip(two).and_then(|(one, two)| one.meet(two))
}

/// What a client holds of one file.
///
/// `inode` covers attributes, extended attributes and layout; for a directory also its entries.
/// `ranges` cover data, and are only held together with `inode`. Whoever holds the inode
/// exclusively has all blocks, whatever `ranges` says. `open` says that the file is in use, or that
/// it may be while the inode is held; it agrees with everything and is never revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The mode of the inode token, if it is held.
    pub inode: Option<Mode>,
    /// Whether the file is in use.
    pub open: bool,
    /// Blocks.
    pub ranges: Ranges,
}

impl Held {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.inode.is_none() && !self.open && self.ranges.is_empty()
    }

    /// Whether that is all that `want` asks for.
    pub fn covers(&self, want: &Want) -> bool {
        suffices(self.inode, want.inode)
            && (self.open || !want.open)
            && want.range.is_none_or(|range| self.covers_blocks(range.required, range.mode))
    }

    fn covers_blocks(&self, range: BlockRange, mode: Mode) -> bool {
        self.inode == Some(Mode::Exclusive) || self.ranges.covers(range, mode)
    }

    /// Whether two clients could not hold these at once.
    pub fn conflicts_with(&self, other: &Held) -> bool {
        let inodes = self.inode.zip(other.inode);
        inodes.is_some_and(|(one, two)| !one.agrees(two))
            || self.ranges.conflicts_with(&other.ranges)
    }

    /// Whether all of it is held in `other` as well.
    pub fn is_within(&self, other: &Held) -> bool {
        suffices(other.inode, self.inode)
            && (other.open || !self.open)
            && self.ranges.iter().all(|(range, mode)| other.covers_blocks(range, mode))
    }

    /// What is left of it under a limit. Of an exclusive inode all blocks are left that the limit
    /// does not name, where others may write beside.
    #[must_use]
    pub fn limited(&self, limit: &Limit) -> Held {
        let mut held = self.clone();
        held.inode = meet(held.inode, limit.inode);
        if self.inode != held.inode && held.inode == Some(Mode::Writing) {
            held.ranges = Ranges::all();
        }
        for (range, most) in &limit.ranges {
            held.ranges.limit(*range, *most);
        }
        if held.inode.is_none() && obeys(Rule::RangesNeedTheInode) {
            held.ranges = Ranges::default();
        }
        held
    }

    /// Whether the ranges have the inode token that they need.
    pub fn is_complete(&self) -> bool {
        self.ranges.is_empty() || self.inode.is_some()
    }

    /// Whether the client writes beside others.
    pub fn is_writing(&self) -> bool {
        self.inode == Some(Mode::Writing)
    }
}

/// Blocks that an operation wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RangeWant {
    /// These it needs.
    pub required: BlockRange,
    /// These it would take, if nobody else wants them.
    pub desired: BlockRange,
    /// How.
    pub mode: Mode,
}

/// What an operation wants of one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Want {
    /// The file.
    pub ino: Ino,
    /// The mode of its inode token; needed by all that want a range.
    pub inode: Option<Mode>,
    /// Whether the file is to be in use.
    pub open: bool,
    /// Blocks.
    pub range: Option<RangeWant>,
}

impl Want {
    /// Whether it makes sense: something is wanted, a range together with the inode, and what is
    /// desired contains what is required. Who writes beside others says which blocks.
    pub fn is_valid(&self) -> bool {
        let something = self.inode.is_some() || self.open;
        let range = self.range.is_none_or(|range| {
            self.inode.is_some()
                && range.mode != Mode::Writing
                && range.required.from < range.required.to
                && range.desired.contains(range.required)
        });
        let writes = self.range.is_some_and(|range| range.mode == Mode::Exclusive);
        something && range && (writes || self.inode != Some(Mode::Writing))
    }

    /// What another client may keep while this is granted.
    pub fn limit(&self) -> Limit {
        let inode = match self.inode {
            None => Some(Mode::Exclusive),
            Some(mode) => beside(mode),
        };
        let ranges = self.range.iter().map(|range| (range.required, beside(range.mode))).collect();
        Limit { inode, ranges }
    }

    /// Whether the two cannot be granted to two clients at once.
    pub fn conflicts_with(&self, other: &Want) -> bool {
        let inodes = self.inode.zip(other.inode);
        let ranges = self.range.zip(other.range);
        self.ino == other.ino
            && (inodes.is_some_and(|(one, two)| !one.agrees(two))
                || ranges.is_some_and(|(one, two)| {
                    one.required.overlaps(two.required) && !one.mode.agrees(two.mode)
                }))
    }
}

/// The most that others may hold beside `mode`.
fn beside(mode: Mode) -> Option<Mode> {
    match mode {
        Mode::Exclusive => None,
        Mode::Shared | Mode::Writing => Some(mode),
    }
}

/// The most that a client may keep of a file. Blocks that are not named are not limited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// Of the inode token.
    pub inode: Option<Mode>,
    /// Of blocks.
    pub ranges: Vec<(BlockRange, Option<Mode>)>,
}

impl Limit {
    /// The limit that has both.
    pub fn and(&mut self, other: Limit) {
        self.inode = meet(self.inode, other.inode);
        for range in other.ranges {
            if !self.ranges.contains(&range) {
                self.ranges.push(range);
            }
        }
    }
}
