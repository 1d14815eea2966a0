//! The data's part in giving tokens up: see [`GiveUp`].

use std::ops::Range;
use strake_proto::{GrantNumber, Ino, NsdId};
use strake_token::Mode;
use strake_token::held::Limit;

/// The work before tokens are given up. Implemented by the owner of the data.
pub(crate) trait GiveUp: Send + Sync {
    /// Notes that this client was given a grant. Called before its tokens are used.
    fn granted(&self, number: GrantNumber);

    /// Makes durable what was changed under the tokens of a file. Called again if the adapter read
    /// or wrote the file meanwhile. False if that is not possible now: the file is not given up
    /// then, and this is called again later.
    fn save(&self, ino: Ino, given: &Given) -> bool;

    /// Makes durable what was changed under the tokens of several files. False if something of them
    /// is not: each is to be saved by itself then.
    fn save_all(&self, files: &[Ino]) -> bool;

    /// Has the adapter's caches drop something of a file, but for pages of `spared` bytes. They may
    /// wait for reads and writes.
    fn drop_from_caches(&self, ino: Ino, drops: Drops, spared: &[Range<u64>]);

    /// Drops from memory what is given up. Nobody uses that, and nothing of it is dirty. Called
    /// once after the last flush.
    fn forget(&self, ino: Ino, given: &Given);

    /// Whether a program found the file just now, and may open it next.
    fn is_just_found(&self, ino: Ino) -> bool;

    /// Whether the file, which was just flushed, is one that clients may write beside each other.
    fn may_be_written_beside(&self, ino: Ino) -> bool;

    /// Uses these NSDs no more: they miss writes of other clients from now on. Waits for nothing.
    fn leave(&self, nsds: &[NsdId]);

    /// How often this client was told to leave an NSD.
    fn leaves(&self) -> u64;

    /// This client was declared dead. Drops all that is in memory, dirty or not, and has the
    /// adapter's caches drop these files. No operation is under way.
    fn bury(&self, files: &[Ino]);

    /// Writes to this NSD again, does not read it, and makes durable all that was written before.
    /// False if that is not possible now, or if this client has left an NSD since it had done so
    /// `leaves` times.
    fn write_again(&self, nsd: NsdId, leaves: u64) -> bool;

    /// Has strips where the pool map says that they belong now, and makes durable all that was
    /// written before. False if that is not possible now.
    fn follow_places(&self) -> bool;
}

/// The part of a file that the adapter's caches drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drops {
    /// They have nothing of it, or may keep all.
    Nothing,
    /// Attributes. This waits for no page.
    Attributes,
    /// Pages and attributes.
    All,
}

/// The part of a file that is given up.
#[derive(Debug)]
pub(crate) struct Given {
    /// The mode in which the inode was held.
    pub(crate) from: Option<Mode>,
    /// The most that is kept.
    pub(crate) limit: Limit,
}

impl Given {
    /// Whether this client writes beside others, before and after: only blocks are given up.
    pub(crate) fn is_blocks(&self) -> bool {
        self.was_beside() && self.limit.inode == Some(Mode::Writing)
    }

    /// Whether this client wrote beside others. Then the adapter's caches have nothing of the file.
    pub(crate) fn was_beside(&self) -> bool {
        self.from == Some(Mode::Writing)
    }

    /// Whether this client had the file to itself, and is to write it beside others from now on.
    pub(crate) fn begins_beside(&self) -> bool {
        self.from == Some(Mode::Exclusive) && self.limit.inode == Some(Mode::Writing)
    }

    /// The part that caches have to drop. `is_written` says whether a handle of this client
    /// may write the
    /// file: then they have pages of it only under its exclusive token.
    pub(crate) fn drops(&self, is_written: bool) -> Drops {
        let keeps_pages = self.keeps_sight() && !is_written;
        match self.from {
            None | Some(Mode::Writing) => Drops::Nothing,
            Some(Mode::Exclusive) if keeps_pages => Drops::Nothing,
            Some(Mode::Shared) if is_written => Drops::Attributes,
            Some(Mode::Exclusive | Mode::Shared) => Drops::All,
        }
    }

    /// Whether nothing but OPEN is kept.
    pub(crate) fn is_all(&self) -> bool {
        self.limit.inode.is_none()
    }

    /// Whether the file may still be looked at.
    pub(crate) fn keeps_sight(&self) -> bool {
        !self.was_beside() && self.limit.inode == Some(Mode::Shared)
    }
}
