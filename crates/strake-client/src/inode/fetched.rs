//! Inodes that were fetched before a program looks at them (`ops/ahead.rs`). Their states stay in
//! memory until then, although no operation uses them yet.

use super::open_table::Pinned;
use std::collections::VecDeque;
use strake_env::sync::Mutex;

/// The number of states that stay. The states that were fetched first go first.
const KEPT_MAX: usize = 128;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Fetched(Mutex<VecDeque<Pinned>>);

impl Fetched {
    pub(crate) fn keep(&self, inodes: impl Iterator<Item = Pinned>) {
        let mut kept = self.0.lock();
        kept.extend(inodes);
        let too_many = kept.len().saturating_sub(KEPT_MAX);
        let dropped: Vec<Pinned> = kept.drain(..too_many).collect();
        drop(kept);
        drop(dropped);
    }
}
