//! The changes, one file for each. This file holds the parts that several of them share: directory
//! entries, the end of an inode, and the queue of deletions.
//!
//! Some checks need the caller's identity: permission, ownership, sticky directories. The client
//! makes these checks, because it knows who the caller is. The state machine decides what must be
//! atomic with the change: whether a name exists, whether a directory is empty, whether one
//! directory is inside another.

pub(crate) mod configure;
pub(crate) mod create;
pub(crate) mod go_on;
pub(crate) mod harden;
pub(crate) mod link;
pub(crate) mod numbers;
pub(crate) mod rename;
pub(crate) mod session;
pub(crate) mod set_attr;
pub(crate) mod truncate;
pub(crate) mod unlink;
pub(crate) mod update;
pub(crate) mod window;
pub(crate) mod xattr;

use crate::keys;
use crate::records::{DentryRecord, InodeRecord, OrphanRecord, Place, PlaceRecord};
use crate::transaction::Transaction;
use strake_proto::layout::PoolMap;
use strake_proto::meta::{MetaReply, PendingRange, Removed};
use strake_proto::{
    BlockIndex, Error, ErrorKind, FileType, Generation, GrantNumber, Ino, NsdId, ObjectLayout,
    Result, SlotIndex, Version,
};

/// The first cookie of a real entry. `.` and `..` have cookies 1 and 2.
pub(crate) const FIRST_COOKIE: u64 = 3;

/// A version above every version that is ever written. A deletion with it removes all strips of an
/// object, whichever client wrote them.
const VERSION_OF_THE_END: Version = Version { grant: GrantNumber(u64::MAX), counter: u64::MAX };

/// The inode that a name leads to, without the name's place.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) ino: Ino,
    pub(crate) generation: Generation,
    pub(crate) file_type: FileType,
}

impl From<DentryRecord> for Target {
    fn from(dentry: DentryRecord) -> Target {
        Target { ino: dentry.ino, generation: dentry.generation, file_type: dentry.file_type }
    }
}

impl Transaction<'_> {
    /// The reply that shows an inode as it is now.
    pub(crate) fn reply_inode(&mut self, ino: Ino) -> Result<MetaReply> {
        Ok(MetaReply::Inode(Box::new(self.inode(ino)?.clone().into_inode(ino))))
    }

    /// Adds a name that does not exist yet to a live directory. The name gets the next free place.
    pub(crate) fn add_entry(&mut self, directory: Ino, name: &[u8], target: Target) -> Result<()> {
        let time = self.time;
        let record = self.live_directory(directory)?;
        let cookie = record.next_cookie;
        // Places are never reused and still stay below 2⁶³: a million a second last 292,000 years.
        record.next_cookie += 1;
        record.entries += 1;
        if target.file_type == FileType::Directory {
            record.links += 1;
        }
        record.mtime = time;
        record.ctime = time;
        self.put_entry(directory, name, target, cookie);
        Ok(())
    }

    /// Points an existing name at another inode. The name keeps its place: it existed all the time,
    /// so a listing under way must show it exactly once.
    pub(crate) fn replace_entry(
        &mut self,
        directory: Ino,
        name: &[u8],
        old: &DentryRecord,
        target: Target,
    ) -> Result<()> {
        let time = self.time;
        let record = self.live_directory(directory)?;
        let is_directory = |file_type| u32::from(file_type == FileType::Directory);
        record.links = (record.links + is_directory(target.file_type))
            .checked_sub(is_directory(old.file_type))
            .ok_or_else(|| miscounted(directory))?;
        record.mtime = time;
        record.ctime = time;
        self.put_entry(directory, name, target, old.cookie);
        Ok(())
    }

    /// Renames an entry within one directory. The entry keeps its place. At a new place, a program
    /// that renames what it lists would be shown the entry again, without end.
    pub(crate) fn rename_entry(
        &mut self,
        directory: Ino,
        (old, new): (&[u8], &[u8]),
        moved: &DentryRecord,
    ) -> Result<()> {
        let time = self.time;
        let record = self.live_directory(directory)?;
        record.mtime = time;
        record.ctime = time;
        self.remove(keys::dentry(directory, old));
        self.put_entry(directory, new, Target::from(*moved), moved.cookie);
        Ok(())
    }

    fn put_entry(&mut self, directory: Ino, name: &[u8], target: Target, cookie: u64) {
        let Target { ino, generation, file_type } = target;
        self.put(
            keys::dentry(directory, name),
            &DentryRecord { ino, generation, file_type, cookie },
        );
        let place = PlaceRecord { ino, file_type, name: name.to_vec() };
        self.put(keys::cookie(directory, cookie), &place);
    }

    /// Removes a name from a live directory.
    pub(crate) fn remove_entry(
        &mut self,
        directory: Ino,
        name: &[u8],
        old: &DentryRecord,
    ) -> Result<()> {
        let time = self.time;
        let record = self.live_directory(directory)?;
        record.entries = record.entries.checked_sub(1).ok_or_else(|| miscounted(directory))?;
        if old.file_type == FileType::Directory {
            record.links = record.links.checked_sub(1).ok_or_else(|| miscounted(directory))?;
        }
        record.mtime = time;
        record.ctime = time;
        self.remove(keys::dentry(directory, name));
        self.remove(keys::cookie(directory, old.cookie));
        Ok(())
    }

    /// Takes one name's link from an inode. An inode without links becomes an orphan if `open`;
    /// otherwise it is deleted.
    pub(crate) fn drop_link(&mut self, ino: Ino, open: bool) -> Result<Removed> {
        let time = self.time;
        let record = self.inode_mut(ino)?;
        let links = if record.is_directory() { Some(0) } else { record.links.checked_sub(1) };
        record.links = links.ok_or_else(|| miscounted(ino))?;
        record.ctime = time;
        let removed = Removed {
            ino,
            generation: record.generation,
            file_type: record.file_type,
            links: record.links,
        };
        if removed.links == 0 {
            if open {
                let orphan = OrphanRecord { client: self.client, linkable: false };
                self.put(keys::orphan(ino), &orphan);
            } else {
                self.delete_inode(ino)?;
            }
        }
        Ok(removed)
    }

    /// Removes an inode with its attributes, and queues its objects for deletion.
    pub(crate) fn delete_inode(&mut self, ino: Ino) -> Result<()> {
        let record = self.remove_inode(ino)?;
        if record.xattr_name_bytes > 0 {
            for (key, _) in self.collect(&keys::under(keys::Table::Xattr, ino.0))? {
                self.remove(key);
            }
        }
        if record.hardened > 0 {
            self.forget_hardened(ino)?;
        }
        let allocated = record.allocated;
        let mut objects = self.reserved_layouts(&record)?;
        for object in &record.reserved {
            self.remove(keys::reserved(*object));
        }
        if let Place::Objects(linked) = record.place {
            objects.extend(linked);
        }
        for layout in objects {
            self.queue_object(layout)?;
        }
        let counters = self.counters()?;
        counters.inodes = counters.inodes.checked_sub(1).ok_or_else(|| miscounted(ino))?;
        counters.allocated =
            counters.allocated.checked_sub(allocated).ok_or_else(|| miscounted(ino))?;
        Ok(())
    }

    /// The layouts of the objects reserved for a file.
    pub(crate) fn reserved_layouts(&self, record: &InodeRecord) -> Result<Vec<ObjectLayout>> {
        let mut layouts = Vec::with_capacity(record.reserved.len());
        for object in &record.reserved {
            let reserved = self.reserved(*object)?.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, format!("reserved object {object} has no record"))
            })?;
            layouts.push(reserved.layout);
        }
        Ok(layouts)
    }

    /// Queues a whole object for deletion. The object's id is never used again.
    pub(crate) fn queue_object(&mut self, layout: ObjectLayout) -> Result<()> {
        self.queue_range(layout, BlockIndex(0), BlockIndex::END, VERSION_OF_THE_END, true)
    }

    /// Queues blocks `from..to` of an object for deletion on every NSD that may hold some.
    pub(crate) fn queue_range(
        &mut self,
        layout: ObjectLayout,
        from: BlockIndex,
        to: BlockIndex,
        version: Version,
        object_gone: bool,
    ) -> Result<()> {
        let waiting = layout_nsds(&self.configuration()?.pool, &layout);
        if waiting.is_empty() || from >= to {
            return Ok(());
        }
        let counters = self.counters()?;
        let id = counters.next_pending;
        counters.next_pending += 1;
        let range = PendingRange { id, layout, from, to, version, waiting, object_gone };
        self.put(keys::pending(id), &range);
        Ok(())
    }

    /// Sets an inode's allocated bytes and adjusts the sum over all inodes. A client's deltas may
    /// not add up. They then stop at 0 or at the largest number, so that the change they came with
    /// does not fail.
    pub(crate) fn set_allocated(&mut self, ino: Ino, allocated: u64) -> Result<()> {
        let record = self.inode_mut(ino)?;
        let before = std::mem::replace(&mut record.allocated, allocated);
        let counters = self.counters()?;
        let others = counters.allocated.checked_sub(before).ok_or_else(|| miscounted(ino))?;
        counters.allocated = others.saturating_add(allocated);
        Ok(())
    }

    /// Moves an inode's allocated bytes by `delta`.
    pub(crate) fn add_allocated(&mut self, ino: Ino, delta: i64) -> Result<()> {
        if delta == 0 {
            return Ok(());
        }
        let before = self.inode(ino)?.allocated;
        let room = i64::MAX as u64 - self.counters()?.allocated.min(i64::MAX as u64);
        let after = if delta < 0 {
            before.saturating_sub(delta.unsigned_abs())
        } else {
            before + delta.unsigned_abs().min(room)
        };
        self.set_allocated(ino, after)
    }
}

/// The NSDs in the slots of an object's layout, ascending, without deleted NSDs.
pub(crate) fn layout_nsds(pool: &PoolMap, layout: &ObjectLayout) -> Vec<NsdId> {
    let map = pool.layout(layout.layout);
    let is_member = |slot: SlotIndex| {
        map.is_none_or(|map| map.members.iter().any(|(member, _)| *member == slot))
    };
    let mut nsds: Vec<NsdId> =
        pool.live().filter(|(index, _)| is_member(*index)).map(|(_, slot)| slot.nsd).collect();
    nsds.sort_unstable();
    nsds.dedup();
    nsds
}

/// The error for a count on disk that contradicts another. The store is damaged; the caller is not
/// at fault.
pub(crate) fn miscounted(ino: Ino) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("metadata: a count of inode {ino} is wrong; run a check"),
    )
}

/// Refuses everything but a regular file.
pub(crate) fn require_regular(record: &InodeRecord) -> Result<()> {
    match record.file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(ErrorKind::IsDirectory.into()),
        _ => Err(Error::new(ErrorKind::Invalid, "not a regular file")),
    }
}
