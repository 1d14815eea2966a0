//! Stable stripes of a file that wait for the metadata, and their way to the rounds.
//!
//! A stripe is settled when the metadata that names its bytes is durable. A commit takes what is
//! unsettled of a file, makes the metadata durable, and hands the stripes to the rounds. Until then
//! their blocks count as unsettled here, also while the commit has them: what overwrites a block in
//! between must not be settled before its predecessor.

use crate::file::FileState;
use std::collections::BTreeMap;
use std::sync::Arc;
use strake_array::round::Rounds;
use strake_proto::BlockIndex;
use strake_proto::nsd::SettledStripe;

/// The unsettled stripes of a file.
#[derive(Default)]
pub(crate) struct Unsettled {
    stripes: Vec<SettledStripe>,
    /// How many stripes of each block wait here or with a commit.
    blocks: BTreeMap<BlockIndex, u32>,
}

impl Unsettled {
    /// Adds a stripe that has become stable.
    pub(crate) fn push(&mut self, stripe: SettledStripe) {
        *self.blocks.entry(stripe.block).or_default() += 1;
        self.stripes.push(stripe);
    }

    /// Whether no stripe waits for a commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// Whether a stripe of the block waits here or with a commit.
    pub(crate) fn has(&self, block: BlockIndex) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Forgets all of them: the file is gone.
    pub(crate) fn clear(&mut self) {
        *self = Unsettled::default();
    }

    fn remove(&mut self, stripe: &SettledStripe) {
        // Gone already where the file was discarded meanwhile.
        if let Some(count) = self.blocks.get_mut(&stripe.block) {
            *count -= 1;
            if *count == 0 {
                self.blocks.remove(&stripe.block);
            }
        }
    }
}

/// What a commit has taken of a file. It goes back to the file unless it is settled.
pub(crate) struct Settling {
    file: Arc<FileState>,
    stripes: Vec<SettledStripe>,
}

impl Settling {
    /// Takes what is unsettled of a file.
    pub(crate) fn take(file: &Arc<FileState>) -> Settling {
        let stripes = std::mem::take(&mut file.unsettled.lock().stripes);
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
            self.file.unsettled.lock().stripes.append(&mut self.stripes);
        }
    }
}
