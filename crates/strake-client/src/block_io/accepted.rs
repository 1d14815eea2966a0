//! A block that was accepted. The next round makes it either stable or dirty again.

use crate::inode::core::InodeState;
use crate::memory::block::Block;
use crate::memory::file::FileState;
use crate::memory::page_pool::Page;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use strake_array::Array;
use strake_array::round::{Accepted, Outcome};
use strake_array::stripe_io::Written;
use strake_proto::nsd::SettledStripe;
use strake_proto::{BlockIndex, Error, ErrorKind, ObjectLayout};

/// See the file's head.
pub(crate) struct AcceptedBlock {
    /// A weak reference: the array keeps accepted blocks until the next round, and must not keep
    /// itself alive through them.
    pub(crate) array: Weak<Array>,
    pub(crate) inode: Arc<InodeState>,
    pub(crate) file: Arc<FileState>,
    pub(crate) block: Arc<Block>,
    /// The dirty bytes that it holds in the pool.
    pub(crate) charge: usize,
    /// The bytes on disks that it claims again if it is lost.
    pub(crate) claimed: usize,
    /// The bytes on disks that become the inode's once it is stable.
    pub(crate) gained: i64,
    /// Whether another block may get its memory: see
    /// [`PagePool::leave_behind`](crate::memory::page_pool::PagePool::leave_behind). That is so for
    /// whole blocks that were not stored before, and for blocks of which only parts were in memory.
    pub(crate) reusable: bool,
    /// Whether only parts of the block were written.
    pub(crate) in_parts: bool,
    /// Whether it replaces a settled version of the same length. The metadata already has all that
    /// it must know of such a block.
    pub(crate) in_place: bool,
    /// See [`FileState::note_sending`].
    pub(crate) is_tracked: bool,
}

impl AcceptedBlock {
    /// Hands a block that was just accepted, and is already pinned, to the next round. `restarts`
    /// is the restart count of the NSDs from before the block was sent.
    pub(crate) fn hand_over(self, layout: &ObjectLayout, written: Written, restarts: u64) {
        self.file.unstable.fetch_add(1, Ordering::AcqRel);
        if self.reusable {
            // Clears the mark of use. The block stays in memory only if it is used from now on.
            self.block.was_used();
        }
        let array = self.array();
        array.rounds.add(Accepted {
            layout: *layout,
            block: BlockIndex(self.block.index),
            written,
            charge: self.charge,
            restarts,
            outcome: Box::new(self),
        });
    }

    fn array(&self) -> Arc<Array> {
        self.array.upgrade().expect("invariant: whoever calls this has the array")
    }

    fn release(&self) {
        self.block.pinned.fetch_sub(1, Ordering::AcqRel);
        self.file.unstable.fetch_sub(1, Ordering::AcqRel);
        self.file.page_pool().remove_dirty(self.charge);
    }
}

impl Outcome for AcceptedBlock {
    fn stable(self: Box<Self>, stripe: SettledStripe) {
        let page_pool = Arc::clone(self.file.page_pool());
        if self.gained != 0 {
            let mut gain = self.block.gain.lock();
            if let Some(sum) = &mut gain.deleted {
                *sum += self.gained;
            } else {
                gain.unstable -= self.gained;
                let mut core = self.inode.core.lock();
                core.unstable_gain -= self.gained;
                core.allocated_delta += self.gained;
                core.changes += 1;
            }
        }
        let version = stripe.version;
        if self.in_place {
            self.array().rounds.settle(&mut vec![stripe]);
        } else {
            self.file.unsettled.lock().push(stripe);
        }
        self.block.became_stable(version);
        self.file.note_sent(&self.block, self.is_tracked, true);
        self.release();
        if self.in_parts && (page_pool.is_behind() || page_pool.is_short_of_parts()) {
            // Other blocks need the memory more.
            if let Some(buffer) = self.block.take_clean() {
                page_pool.release(buffer);
            }
        } else if self.reusable {
            page_pool.leave_behind(self.block);
        }
    }

    /// The NSDs may have lost the block. It is dirty again, unless it was dropped meanwhile.
    fn lost(self: Box<Self>, fault: Option<Error>) {
        // Beside others it is just sent again; see `Mount::may_pass`.
        let passes = |fault: &Error| {
            fault.kind() == ErrorKind::Io && self.array().io.nsds().is_beside_others()
        };
        if let Some(fault) = fault.filter(|fault| !passes(fault)) {
            self.inode.core.lock().latch.set(fault);
        }
        self.block.gain.lock().owed += self.gained;
        {
            let mut data = self.block.data.write();
            if !data.detached && data.buffer.is_some() {
                data.whole = true;
                data.changed.whole = true;
                self.block.set_unsure();
                if !data.dirty {
                    data.dirty = true;
                    data.charge = self.claimed;
                    data.dirtied = self.charge;
                    self.file.page_pool().add_dirty(self.charge);
                    // The block must be sent again, and so needs room again.
                    self.array().room.owe(data.claim());
                    self.file.insert_dirty(self.block.index);
                }
                self.file.insert_unsaved(self.block.index);
            }
        }
        self.file.lost.fetch_add(1, Ordering::AcqRel);
        // After the block is among the unsaved ones.
        self.file.note_sent(&self.block, self.is_tracked, false);
        self.release();
    }
}
