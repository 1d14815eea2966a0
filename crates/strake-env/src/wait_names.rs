//! The seam between waits and whoever shows them: a crate that waits names its waits here, without
//! knowing the registry that `strake diag waiters` reads.

/// Where waits are named; `strake-observe`'s registry is one.
pub trait WaitNames: Send + Sync {
    /// This thread begins to wait; the number names the wait until it ends.
    fn begin_wait(&self, reason: &'static str, detail: &str) -> usize;
    /// That wait ended.
    fn end_wait(&self, wait: usize);
}

/// Names nothing, for tests.
impl WaitNames for () {
    fn begin_wait(&self, _reason: &'static str, _detail: &str) -> usize {
        0
    }
    fn end_wait(&self, _wait: usize) {}
}
