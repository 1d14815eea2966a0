//! The inodes with changes that a program was told of and that are not durable yet. If this client
//! is declared dead, they may be lost: the node that leads takes changes alone, and replicates them
//! for the next sync.
//!
//! A change is noted after the metadata has taken it, or after it was taken for later. A sync takes
//! what was noted before it begins, and waits for what was taken for later. So what a sync took is
//! durable when it succeeds, and nothing else is left out.

use std::collections::HashSet;
use strake_env::sync::Mutex;
use strake_proto::Ino;
use strake_proto::meta::MetaOp;

/// No inode, one or two.
type Changed = (Option<Ino>, Option<Ino>);

/// See the file's head.
#[derive(Default)]
pub(super) struct Unsynced(Mutex<HashSet<Ino>>);

impl Unsynced {
    /// Notes what a change has [`changed`].
    pub(super) fn note(&self, (first, second): Changed) {
        if let Some(ino) = first {
            let mut inodes = self.0.lock();
            inodes.insert(ino);
            inodes.extend(second);
        }
    }

    /// A sync begins.
    pub(super) fn take(&self) -> HashSet<Ino> {
        std::mem::take(&mut *self.0.lock())
    }

    /// It has failed.
    pub(super) fn give_back(&self, taken: HashSet<Ino>) {
        self.0.lock().extend(taken);
    }

    pub(super) fn all(&self) -> HashSet<Ino> {
        self.0.lock().clone()
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
        It::NewObject { .. } | It::Folded { .. } | It::FoldedUnits { .. } => (None, None),
        It::DeleteBeyond { .. } | It::RangeApplied { .. } | It::MoveData { .. } => (None, None),
        It::Join | It::Leave | It::ReserveGrants { .. } | It::ReserveInodes { .. } => (None, None),
        It::SetNsdState { .. } | It::SetConfig { .. } | It::Format(_) => (None, None),
        It::ReplaceNsd { .. } | It::MoveMetadataCopy { .. } | It::DeleteNsd { .. } => (None, None),
        It::AddNsd { .. } => (None, None),
    }
}
