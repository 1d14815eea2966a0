//! What a sync has taken of a file to settle it.

use crate::memory::file::FileState;
use std::sync::Arc;
use strake_array::round::Rounds;
use strake_proto::nsd::SettledStripe;

/// What a sync has taken of a file. It goes back to the file unless it is settled.
pub(crate) struct Settling {
    file: Arc<FileState>,
    stripes: Vec<SettledStripe>,
}

impl Settling {
    /// Takes what is unsettled of a file.
    pub(crate) fn take(file: &Arc<FileState>) -> Settling {
        let stripes = file.unsettled.lock().take();
        Settling { file: Arc::clone(file), stripes }
    }

    /// Hands the stripes to the rounds: the metadata that names their bytes is durable.
    pub(crate) fn settle(mut self, rounds: &Rounds) {
        let mut stripes = std::mem::take(&mut self.stripes);
        let mut unsettled = self.file.unsettled.lock();
        stripes.iter().for_each(|stripe| unsettled.remove(stripe));
        // Under the lock: a successor that finds its predecessor settled comes after it.
        rounds.settle(&mut stripes);
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if !self.stripes.is_empty() {
            self.file.unsettled.lock().put_back(std::mem::take(&mut self.stripes));
        }
    }
}
