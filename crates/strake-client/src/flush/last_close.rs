//! The last close of a file that has no name any more removes it.

use crate::flush::sync::sync_inode_whole;
use crate::inode::core::InodeState;
use crate::mount::Mount;
use std::sync::Arc;
use std::time::Duration;
use strake_proto::meta::MetaOp;

/// Closes the files of a [`KeptOpen`](crate::inode::kept_open::KeptOpen) that are due. Returns
/// whether there were any.
pub(crate) fn close_kept(mount: &Mount, now: Duration) -> bool {
    let due = mount.kept_open.take_due(now);
    for inode in &due {
        release_handle(mount, inode);
        mount.drop_idle_file(inode);
    }
    !due.is_empty()
}

/// A handle of an inode is closed.
pub(crate) fn release_handle(mount: &Mount, inode: &Arc<InodeState>) {
    // Pinned, so that the entry stays until the inode is reaped.
    let pinned = mount.table.pin(inode.ino);
    if mount.table.remove_handle(inode.ino) > 0 {
        return;
    }
    let removed = {
        // A removal that has seen this handle ends first, and leaves the file to this close.
        let _no_removal = inode.lifetime.read();
        inode.core.lock().removed
    };
    if removed && mount.tokens.is_some() {
        // Another client may have it open. The one that closes it last has the leader remove it.
        let _ = sync_inode_whole(mount, inode);
    } else if removed {
        reap(mount, &pinned);
    }
}

/// Removes an orphan that is not open any more.
fn reap(mount: &Mount, inode: &Arc<InodeState>) {
    let _last_use = inode.lifetime.write();
    // A path descriptor may still refer to the inode, so the kernel may ask for its attributes
    // again. The last answer is kept.
    let _ = mount.attr(inode);
    let orphan = {
        let mut core = inode.core.lock();
        if !core.removed || mount.table.handles(inode.ino) > 0 {
            return;
        }
        core.keep_last();
        std::mem::take(&mut core.orphan)
    };
    mount.discard(inode);
    if orphan {
        // After a failure the next start reaps it, with all orphans of this client.
        let _ = mount.array.meta.apply(MetaOp::Reap { ino: inode.ino });
    }
}
