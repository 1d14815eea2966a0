//! The inodes with changes that a program was told of and that are not durable yet. If this client
//! is declared dead, they may be lost: the node that leads takes changes alone, and replicates them
//! for the next sync.
//!
//! A change has a number when it is noted. When a sync succeeds, the changes up to the number of
//! its beginning are durable. All are listed until then, also while a sync is under way: the client
//! may be declared dead in the midst of it.

use std::collections::HashMap;
use strake_env::sync::Mutex;
use strake_proto::Ino;
use strake_proto::meta::MetaOp;

/// No inode, one or two.
pub(super) type Changed = (Option<Ino>, Option<Ino>);

/// The number of the newest change of each inode. See the file's head.
#[derive(Default)]
pub(super) struct Unsynced(Mutex<HashMap<Ino, u64>>);

impl Unsynced {
    /// Notes what the change of this number has [`changed`].
    pub(super) fn note(&self, (first, second): Changed, number: u64) {
        if first.is_none() {
            return;
        }
        let mut inodes = self.0.lock();
        for ino in first.into_iter().chain(second) {
            let newest = inodes.entry(ino).or_default();
            *newest = number.max(*newest);
        }
    }

    /// The changes up to this number are durable.
    pub(super) fn forget(&self, upto: u64) {
        self.0.lock().retain(|_, number| *number > upto);
    }

    pub(super) fn all(&self) -> Vec<Ino> {
        self.0.lock().keys().copied().collect()
    }
}

/// The inodes of which a program would miss the change. Access times, and what a program does not
/// see, are none.
pub(super) fn changed(op: &MetaOp) -> Changed {
    use MetaOp as It;
    match op {
        It::Create { parent, .. } | It::CreateAs { parent, .. } | It::Link { parent, .. } => {
            (Some(*parent), None)
        }
        It::Unlink { parent, .. } | It::Remove { parent, .. } | It::Rmdir { parent, .. } => {
            (Some(*parent), None)
        }
        It::Rename { parent, new_parent, .. } => (Some(*parent), Some(*new_parent)),
        It::SetAttr { ino, change } => ((!change.quiet).then_some(*ino), None),
        It::Update { ino, .. } | It::Harden { ino, .. } | It::Truncate { ino, .. } => {
            (Some(*ino), None)
        }
        It::DeleteBlocks { ino, .. } | It::SetXattr { ino, .. } => (Some(*ino), None),
        It::RemoveXattr { ino, .. } => (Some(*ino), None),
        // Without a name it ends with its handles.
        It::CreateOrphan { .. } | It::Reap { .. } => (None, None),
        It::NewObject { .. } | It::NewObjectAs { .. } | It::ReserveObjects { .. } => (None, None),
        It::Folded { .. } | It::FoldedUnits { .. } => (None, None),
        It::DeleteBeyond { .. } | It::RangeApplied { .. } | It::MoveData { .. } => (None, None),
        It::Join | It::Leave | It::ReserveGrants { .. } | It::ReserveInodes { .. } => (None, None),
        It::SetNsdState { .. } | It::SetConfig { .. } | It::Format(_) => (None, None),
        It::ReplaceNsd { .. } | It::MoveMetadataCopy { .. } | It::DeleteNsd { .. } => (None, None),
        It::AddNsd { .. } => (None, None),
    }
}

#[cfg(test)]
#[path = "unsynced_test.rs"]
mod unsynced_test;
