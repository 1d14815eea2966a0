//! Files of a lone mount that lose their last name just after another program has looked them up.
//!
//! The kernel looks a name up, and names the inode when it opens it. If the file is removed or
//! replaced in between, a local file system still has it, because the kernel refers to it. So such
//! a file counts as open for a moment. The thread that removes a file has mostly looked it up
//! itself, and that does not count: else each removal would cost two changes of the metadata.
//!
//! Beside other mounts, `tokens/found.rs` keeps files that another mount removes.

use super::open_table::Pinned;
use crate::tokens::FOUND_KEPT;
use std::collections::VecDeque;
use std::time::Duration;
use strake_env::sync::Mutex;

/// No more files are kept. Beyond that, an open by name may find that its file is gone.
const FILES_MAX: usize = 4096;

/// See the file's head. Each file has a handle in the table.
#[derive(Default)]
pub(crate) struct KeptOpen(Mutex<VecDeque<(Duration, Pinned)>>);

impl KeptOpen {
    /// Keeps a file from now on, for which the caller has counted a handle. False if there are too
    /// many.
    pub(crate) fn keep(&self, file: Pinned, now: Duration) -> bool {
        let mut kept = self.0.lock();
        let has_room = kept.len() < FILES_MAX;
        if has_room {
            kept.push_back((now + FOUND_KEPT, file));
        }
        has_room
    }

    /// The files that are kept no longer, and whose handles the caller closes.
    pub(crate) fn take_due(&self, now: Duration) -> Vec<Pinned> {
        let mut kept = self.0.lock();
        let due = kept.iter().take_while(|(until, _)| *until <= now).count();
        kept.drain(..due).map(|(_, file)| file).collect()
    }
}
