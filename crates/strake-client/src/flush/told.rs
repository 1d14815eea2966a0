//! What the metadata lacks of a file, and what it has been told.

use crate::inode::core::InodeState;
use crate::memory::file::{Content, FileState};
use std::sync::atomic::Ordering;
use strake_proto::meta::{FileData, HardenedUnit, Inode, MetaOp};
use strake_proto::{ErrorKind, Ino, Result, Timestamp};

/// What the metadata is told of a file, and the state in which it will then know everything.
pub(crate) struct Told {
    size: u64,
    data: Option<FileData>,
    delta: i64,
    mtime: Option<Timestamp>,
    ctime: Option<Timestamp>,
    changes: u64,
    epoch: u64,
}

impl Told {
    /// A `Told` that changes nothing, for a file of which the metadata lacks nothing.
    pub(crate) fn nothing(inode: &InodeState, file: &FileState) -> Told {
        let core = inode.core.lock();
        let size = file.told_size.load(Ordering::Acquire);
        let (changes, epoch) = (core.changes, core.epoch());
        Told { size, data: None, delta: 0, mtime: None, ctime: None, changes, epoch }
    }

    /// The times alone, if the metadata lacks nothing else of a file with an object. The caller
    /// holds the file's `content`.
    pub(crate) fn times(inode: &InodeState, file: &FileState, content: &Content) -> Option<Told> {
        let core = inode.core.lock();
        let size = file.told_size.load(Ordering::Acquire);
        let is_alone = matches!(content, Content::Object(_))
            && !file.content_changed.load(Ordering::Acquire)
            && file.linked.load(Ordering::Acquire)
            && file.size() == size
            && core.allocated_delta == 0;
        let (mtime, ctime) = (core.mtime, core.ctime);
        let is_lacking = mtime.is_some() || ctime.is_some();
        let (changes, epoch) = (core.changes, core.epoch());
        let told = Told { size, data: None, delta: 0, mtime, ctime, changes, epoch };
        (is_alone && is_lacking).then_some(told)
    }

    /// The operation that tells the metadata.
    pub(crate) fn update(&self, ino: Ino) -> MetaOp {
        let (size, data, allocated_delta) = (self.size, self.data.clone(), self.delta);
        MetaOp::Update { ino, size, data, allocated_delta, mtime: self.mtime, ctime: self.ctime }
    }

    /// The operation that names a new place of the bytes of a file that the metadata knows as
    /// empty. `None` if the place is known. The size follows with [`Told::hardening`].
    pub(crate) fn naming(&self, ino: Ino) -> Option<MetaOp> {
        let data = Some(self.data.clone()?);
        Some(MetaOp::Update { ino, size: 0, data, allocated_delta: 0, mtime: None, ctime: None })
    }

    /// The operation that tells the metadata and hardens `units`.
    pub(crate) fn hardening(&self, ino: Ino, units: Vec<HardenedUnit>) -> MetaOp {
        let (size, allocated_delta, mtime, ctime) = (self.size, self.delta, self.mtime, self.ctime);
        MetaOp::Harden { ino, size, allocated_delta, mtime, ctime, units }
    }
}

/// What the metadata lacks of a file. The caller holds the file's `content`.
pub(crate) fn lacking(inode: &InodeState, file: &FileState, content: &Content) -> Option<Told> {
    let mut core = inode.core.lock();
    let size = match content {
        Content::Object(_) => core.size_target.take().unwrap_or(file.size()),
        // Here nothing else must be stable first, and the size and the bytes belong to the same
        // moment.
        _ => file.size(),
    };
    let content_changed = file.content_changed.swap(false, Ordering::AcqRel);
    let lacks = content_changed
        || size != file.told_size.load(Ordering::Acquire)
        || core.mtime.is_some()
        || core.ctime.is_some()
        || core.allocated_delta != 0;
    if !lacks {
        core.told = core.changes.wrapping_sub(u64::from(core.lacks_attributes()));
        return None;
    }
    let data = content_changed.then(|| match content {
        Content::Empty => FileData::Empty,
        Content::Inline(bytes) => FileData::Inline(bytes.clone()),
        Content::Object(layout) => FileData::Objects(vec![*layout]),
    });
    let delta = std::mem::take(&mut core.allocated_delta);
    let (mtime, ctime) = (core.mtime, core.ctime);
    Some(Told { size, data, delta, mtime, ctime, changes: core.changes, epoch: core.epoch() })
}

/// Records what the metadata answered after it was told.
pub(crate) fn took(
    inode: &InodeState,
    file: &FileState,
    content: &Content,
    told: &Told,
    result: Result<Inode>,
) -> Result<()> {
    let mut core = inode.core.lock();
    match result {
        Ok(updated) => {
            file.told_size.store(told.size, Ordering::Release);
            if told.data.is_some() {
                file.release_inline();
            }
            if matches!(content, Content::Object(_)) {
                file.linked.store(true, Ordering::Release);
            }
            core.absorb_change(&updated, told.epoch);
            if core.changes == told.changes {
                core.mtime = None;
                core.ctime = None;
                core.size_changed = file.size() != told.size;
                let left = core.size_changed || core.lacks_attributes();
                core.told = told.changes.wrapping_sub(u64::from(left));
            }
            Ok(())
        }
        // The inode is gone, and so is everything that the metadata lacked of it.
        Err(error) if error.kind() == ErrorKind::Stale => {
            core.told = core.changes;
            Ok(())
        }
        Err(error) => {
            core.allocated_delta += told.delta;
            core.forget();
            file.content_changed.fetch_or(told.data.is_some(), Ordering::AcqRel);
            Err(error)
        }
    }
}
