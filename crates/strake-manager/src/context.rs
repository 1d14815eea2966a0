//! What all parts of the manager share.

use crate::job::Job;
use crate::pace::Pace;
use crate::tokens::TokenService;
use std::sync::Arc;
use strake_array::{Array, Exclusion};
use strake_proto::{BlockIndex, Ino, ObjectLayout, Result};

/// See the file's head.
pub(crate) struct Repair {
    pub(crate) array: Arc<Array>,
    /// The client, which may have dirty data.
    pub(crate) exclusion: Arc<dyn Exclusion>,
    /// The clients, if there are many. `exclusion` is one of them then.
    pub(crate) clients: Option<Arc<TokenService>>,
    /// The pace of every rebuild.
    pub(crate) pace: Pace,
    /// The one replacement or deletion there can be at a time.
    pub(crate) job: Job,
}

impl Repair {
    /// Like [`Exclusion::with_block`], and returns the result of `work`; `None` if `work` was not
    /// run.
    pub(crate) fn exclusively<T>(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        block: BlockIndex,
        work: &mut dyn FnMut(bool) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut done = None;
        self.exclusion.with_block(ino, layout, block, &mut |is_stable| {
            done = Some(work(is_stable)?);
            Ok(())
        })?;
        Ok(done)
    }
}
