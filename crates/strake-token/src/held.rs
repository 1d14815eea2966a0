//! What a client holds, or wants, of one file.

use crate::ranges::{BlockRange, Ranges};
use crate::rule::{Rule, obeys};
use serde::{Deserialize, Serialize};
use strake_proto::Ino;

/// How a token lets its holder use what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Read, and cache what was read. Any number of clients may hold it at once.
    Shared,
    /// Change, and cache changes. No other client holds anything of it.
    Exclusive,
}

impl Mode {
    /// Both, the weaker first.
    pub const ALL: [Mode; 2] = [Mode::Shared, Mode::Exclusive];

    /// Whether a client that holds `self` may do what `other` allows.
    pub fn includes(self, other: Mode) -> bool {
        self >= other
    }

    /// Whether one client may hold `self` while another holds `other`.
    pub fn agrees(self, other: Mode) -> bool {
        self == Mode::Shared && other == Mode::Shared
    }
}

/// What a client holds of one file.
///
/// `inode` covers attributes, extended attributes and layout; for a directory also its entries.
/// `ranges` cover data, and are only held together with `inode`. `open` says that the file is in
/// use; it agrees with everything and is never revoked.
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
        want.inode.is_none_or(|mode| self.inode >= Some(mode))
            && (self.open || !want.open)
            && want.range.is_none_or(|range| self.ranges.covers(range.required, range.mode))
    }

    /// Whether two clients could not hold these at once.
    pub fn conflicts_with(&self, other: &Held) -> bool {
        let inodes = self.inode.zip(other.inode);
        inodes.is_some_and(|(one, two)| !one.agrees(two))
            || self.ranges.conflicts_with(&other.ranges)
    }

    /// Whether all of it is held in `other` as well.
    pub fn is_within(&self, other: &Held) -> bool {
        self.inode <= other.inode
            && (other.open || !self.open)
            && self.ranges.is_within(&other.ranges)
    }

    /// What is left of it under a limit.
    #[must_use]
    pub fn limited(&self, limit: &Limit) -> Held {
        let mut held = self.clone();
        held.inode = held.inode.min(limit.inode);
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
    /// desired contains what is required.
    pub fn is_valid(&self) -> bool {
        let something = self.inode.is_some() || self.open;
        let range = self.range.is_none_or(|range| {
            self.inode.is_some()
                && range.required.from < range.required.to
                && range.desired.contains(range.required)
        });
        something && range
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
        Mode::Shared => Some(Mode::Shared),
        Mode::Exclusive => None,
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
        self.inode = self.inode.min(other.inode);
        for range in other.ranges {
            if !self.ranges.contains(&range) {
                self.ranges.push(range);
            }
        }
    }
}
