//! Stable stripes of a file that wait for the metadata. See also `flush/settling.rs`.
//!
//! A stripe is settled when the metadata that names its bytes is durable. A sync takes the
//! unsettled stripes of a file, makes the metadata durable, and hands the stripes to the rounds.
//! Until then their blocks count as unsettled here, also while the sync has the stripes. A stripe
//! that overwrites such a block meanwhile must not be settled before its predecessor.

use std::collections::BTreeMap;
use strake_proto::BlockIndex;
use strake_proto::nsd::SettledStripe;

/// The unsettled stripes of a file.
#[derive(Default)]
pub(crate) struct Unsettled {
    stripes: Vec<SettledStripe>,
    /// How many stripes of each block wait here or with a sync.
    blocks: BTreeMap<BlockIndex, u32>,
}

impl Unsettled {
    /// Adds a stripe that has become stable.
    pub(crate) fn push(&mut self, stripe: SettledStripe) {
        *self.blocks.entry(stripe.block).or_default() += 1;
        self.stripes.push(stripe);
    }

    /// Whether no stripe waits for a sync.
    pub(crate) fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// Whether a stripe of the block waits here or with a sync.
    pub(crate) fn has(&self, block: BlockIndex) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Forgets all stripes, because the file is gone.
    pub(crate) fn clear(&mut self) {
        *self = Unsettled::default();
    }

    /// Takes the stripes that wait here. Their blocks still count as unsettled.
    pub(crate) fn take(&mut self) -> Vec<SettledStripe> {
        std::mem::take(&mut self.stripes)
    }

    /// Takes back stripes that were not settled.
    pub(crate) fn put_back(&mut self, mut stripes: Vec<SettledStripe>) {
        self.stripes.append(&mut stripes);
    }

    /// Notes that a stripe which was taken is settled.
    pub(crate) fn remove(&mut self, stripe: &SettledStripe) {
        // If the file was discarded meanwhile, the block is not counted any more.
        if let Some(count) = self.blocks.get_mut(&stripe.block) {
            *count -= 1;
            if *count == 0 {
                self.blocks.remove(&stripe.block);
            }
        }
    }
}
