//! The port of the metadata.

use super::{CountedAnswer, CountedEntry, MetaEntry, MetaQuery, MetaReply};
use crate::error::{Error, ErrorKind, Result};

/// A way to the metadata: a direct call in one process, or a session on a socket.
pub trait MetaPort: Send + Sync {
    /// Answers a question.
    ///
    /// # Errors
    /// [`MetaQuery`] lists them for each question.
    fn query(&self, query: &MetaQuery) -> Result<MetaReply>;

    /// Applies a change. When it is answered, every query sees it. It is durable after the next
    /// [`MetaPort::sync`].
    ///
    /// # Errors
    /// Those that POSIX names for the operation. A change that fails has changed nothing.
    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply>;

    /// Applies a counted change once, even if it comes several times. Sessions turn their callers'
    /// plain changes into counted ones, so only the server end of a session must offer this.
    ///
    /// # Errors
    /// `Fenced` if the client's life was closed. `Stale` for a change below the oldest that the
    /// client needs, which was answered before. `Invalid` for a change beyond the window. Any other
    /// error says that the change was refused before it had a position: it has changed nothing, and
    /// will not.
    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let detail = format!("change {} cannot be counted here", counted.entry.sequence);
        Err(Error::new(ErrorKind::NotSupported, detail))
    }

    /// Applies changes in their order, each as [`MetaPort::apply`] does. Those after one that fails
    /// are mostly not applied, and get `Busy`. Returns one result for each.
    fn apply_all(&self, entries: &[MetaEntry]) -> Vec<Result<MetaReply>> {
        apply_in_order(entries, |entry| self.apply(entry))
    }

    /// The position of the last change. A counted change whose answer has a lower one, or the same,
    /// was made before. `None` if nobody needs to know that here.
    fn position(&self) -> Option<u64> {
        None
    }

    /// Makes every change answered before the call durable on all copies.
    ///
    /// # Errors
    /// `Io` if not enough copies can be written. Nothing more is accepted then.
    fn sync(&self) -> Result<()>;
}

/// Applies changes one after the other, up to the first that fails. Those after it get `Busy`.
pub fn apply_in_order<T>(
    entries: &[T],
    mut apply: impl FnMut(&T) -> Result<MetaReply>,
) -> Vec<Result<MetaReply>> {
    let mut failed = false;
    let apply = |entry| {
        let result = if failed { Err(ErrorKind::Busy.into()) } else { apply(entry) };
        failed |= result.is_err();
        result
    };
    entries.iter().map(apply).collect()
}
