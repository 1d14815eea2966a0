//! The stripes that a sync has taken from a file in order to settle them.

use crate::memory::file::FileState;
use std::sync::Arc;
use strake_array::round::Rounds;
use strake_proto::nsd::SettledStripe;

/// Stripes that a sync has taken from a file. They go back to the file unless they are settled.
pub(crate) struct Settling {
    file: Arc<FileState>,
    stripes: Vec<SettledStripe>,
}

impl Settling {
    /// Takes the unsettled stripes of a file.
    pub(crate) fn take(file: &Arc<FileState>) -> Settling {
        let stripes = file.unsettled.lock().take();
        Settling { file: Arc::clone(file), stripes }
    }

    /// Hands the stripes to the rounds. The metadata that names their bytes must be durable.
    pub(crate) fn settle(mut self, rounds: &Rounds) {
        let mut stripes = std::mem::take(&mut self.stripes);
        let mut unsettled = self.file.unsettled.lock();
        stripes.iter().for_each(|stripe| unsettled.remove(stripe));
        // Under the lock, so that a successor that finds its predecessor settled comes after it.
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
