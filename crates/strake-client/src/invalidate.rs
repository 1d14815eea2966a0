//! The way back from a [`Vfs`](crate::Vfs) to its adapter. The adapter's caches hold something that
//! another client has changed, or may change from now on. They have to drop it.
//!
//! An adapter hands its [`Invalidate`] to the `Vfs` before it serves the first request
//! ([`Vfs::attach_adapter`](crate::Vfs::attach_adapter)). An order returns at once. A caller that
//! needs to know when the caches have dropped the thing waits for the returned [`Dropping`].
//!
//! Three rules keep a waiting thread from waiting for itself:
//!
//! - **No serving thread waits.** The kernel may have to write pages back first, which takes a
//!   serving thread. [`Dropping::wait`] asserts this.
//! - **A waiting thread holds no lock of the client.** The kernel may first need answers to
//!   requests, and those may need the lock.
//! - **Requests that the kernel sent before are answered, not parked.** The invalidation of a name
//!   waits for requests in flight that hold the directory's lock in the kernel, and that of a page
//!   waits for reads of the page. If those wait for the invalidation, nothing moves.
//!   [`Outdated::AllNames`] waits for nothing, so it is the way out where requests have to be
//!   parked (docs/decisions/0025-a-way-back-to-the-adapter.md).

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_observe::Waiters;
use strake_proto::{Error, ErrorKind, Ino, Result};

/// Something that an adapter's caches must drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outdated {
    /// The knowledge of what a name leads to, or that it leads nowhere. If the name was cached,
    /// this includes the directory's attributes and listing.
    Name {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: Vec<u8>,
    },
    /// A name that was removed elsewhere. Programs that watch the file are told. A directory that
    /// is in use takes no new names from then on.
    Gone {
        /// The directory that held the name.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// The inode that it led to. If the name leads to another one by now, it is left alone.
        child: Ino,
    },
    /// All names, including those that lead nowhere. This waits for no request in flight.
    AllNames,
    /// Attributes and access control lists of an inode.
    Attributes(Ino),
    /// Bytes of a file or the listing of a directory, and the attributes. Changed pages are written
    /// back first.
    Contents {
        /// The file or directory.
        ino: Ino,
        /// The bytes of a file; for a directory, any range that is not empty.
        range: Range<u64>,
    },
}

impl fmt::Display for Outdated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outdated::Name { parent, name } => {
                write!(out, "name {} in inode {parent}", name.escape_ascii())
            }
            Outdated::Gone { parent, name, .. } => {
                write!(out, "removed name {} in inode {parent}", name.escape_ascii())
            }
            Outdated::AllNames => out.write_str("all names"),
            Outdated::Attributes(ino) => write!(out, "attributes of inode {ino}"),
            Outdated::Contents { ino, range } => {
                write!(out, "bytes {}..{} of inode {ino}", range.start, range.end)
            }
        }
    }
}

/// An adapter whose caches can be told what is outdated.
pub trait Invalidate: Send + Sync {
    /// Orders the caches to drop something. Returns at once, whatever the caches are doing.
    ///
    /// # Errors
    /// `Busy` if the limit of waiting orders is reached (for names, one `AllNames` covers them
    /// all); `Unreachable` if the adapter serves no more; `NotSupported` if the adapter cannot do
    /// this.
    fn invalidate(&self, what: Outdated) -> Result<Dropping>;

    /// Whether [`Outdated::AllNames`] is possible now. If it is not, names must not be cached where
    /// an invalidation could have to wait for parked requests.
    fn can_drop_all_names(&self) -> bool;
}

/// Whether the caches knew of the thing that an order names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The caches knew of the thing, and have dropped it.
    Something,
    /// They knew nothing of the kind. An answer that they have not taken in yet may tell them.
    Nothing,
}

struct State {
    what: Outdated,
    result: Mutex<Option<Result<Found>>>,
    changed: Condvar,
}

/// An order under way.
pub struct Dropping {
    state: Arc<State>,
}

/// The adapter's end of a [`Dropping`].
pub struct Dropped {
    state: Arc<State>,
}

strake_env::local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this thread answers an adapter's requests, so that it must not wait for caches.
pub fn this_thread_serves() {
    SERVES.set(true);
}

impl Dropping {
    /// A new order, and the adapter's end of it, which reports the outcome.
    pub fn begin(what: Outdated) -> (Dropping, Dropped) {
        let state = State { what, result: Mutex::new(None), changed: Condvar::new() };
        let state = Arc::new(state);
        (Dropping { state: Arc::clone(&state) }, Dropped { state })
    }

    /// Waits for at most `limit` until the caches have dropped the thing. The wait shows among the
    /// waiters.
    ///
    /// # Errors
    /// `TimedOut`, in which case the order goes on; `Unreachable` if the adapter serves no more;
    /// `NotSupported` if its caches do not know such an order.
    ///
    /// # Panics
    /// On a thread that serves requests.
    pub fn wait(&self, waiters: &Waiters, limit: Duration) -> Result<Found> {
        assert!(!SERVES.get(), "a serving thread waits for caches that may wait for it");
        self.wait_while_others_serve(waiters, limit)
    }

    /// Like [`Dropping::wait`], for adapters, which know that another thread serves meanwhile.
    ///
    /// # Errors
    /// Like [`Dropping::wait`].
    pub fn wait_while_others_serve(&self, waiters: &Waiters, limit: Duration) -> Result<Found> {
        let mut result = self.state.result.lock();
        if result.is_none() {
            let _wait = waiters.enter("adapter dropping", self.state.what.to_string());
            self.state.changed.wait_while_for(&mut result, |result| result.is_none(), limit);
        }
        result.clone().unwrap_or_else(|| {
            let limit = limit.as_secs_f64();
            let detail = format!("{} is not dropped after {limit:.1} s", self.state.what);
            Err(Error::new(ErrorKind::TimedOut, detail))
        })
    }
}

impl Dropped {
    /// What is to be dropped.
    pub fn what(&self) -> &Outdated {
        &self.state.what
    }

    /// Reports the outcome.
    pub fn tell(self, result: Result<Found>) {
        *self.state.result.lock() = Some(result);
        self.state.changed.notify_all();
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        // A waiter must not wait for an order that was given up.
        let gone = || Err(Error::new(ErrorKind::Unreachable, "the adapter serves no more"));
        self.state.result.lock().get_or_insert_with(gone);
        self.state.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::RealClock;

    fn waiters() -> Waiters {
        Waiters::new(RealClock::shared())
    }

    #[test]
    fn whoever_waits_learns_how_it_ended() {
        let (dropping, dropped) = Dropping::begin(Outdated::Attributes(Ino(7)));
        assert_eq!(dropped.what(), &Outdated::Attributes(Ino(7)));
        let late = dropping.wait(&waiters(), Duration::ZERO).expect_err("not yet");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert!(late.to_string().contains("attributes of inode 7"), "{late}");
        dropped.tell(Ok(Found::Something));
        for _ in 0..2 {
            dropping.wait(&waiters(), Duration::ZERO).expect("told");
        }
    }

    #[test]
    fn the_wait_has_a_name_and_ends_with_the_adapter() {
        let waiters = waiters();
        let (dropping, dropped) =
            Dropping::begin(Outdated::Name { parent: Ino(1), name: b"a\xff".to_vec() });
        strake_env::thread::scope(|scope| {
            let waiter = scope.spawn(|| dropping.wait(&waiters, Duration::from_secs(60)));
            let named = loop {
                if let Some(wait) = waiters.snapshot().pop() {
                    break wait;
                }
                strake_env::thread::yield_now();
            };
            assert_eq!(named.reason, "adapter dropping");
            assert_eq!(named.detail, "name a\\xff in inode 1");
            drop(dropped);
            let error = waiter.join().expect("no panic").expect_err("given up");
            assert_eq!(error.kind(), ErrorKind::Unreachable);
        });
        assert!(waiters.snapshot().is_empty());
    }

    #[test]
    fn a_serving_thread_may_not_wait() {
        let waited = strake_env::thread::spawn(|| {
            this_thread_serves();
            let (dropping, dropped) = Dropping::begin(Outdated::AllNames);
            dropped.tell(Ok(Found::Something));
            dropping.wait_while_others_serve(&waiters(), Duration::ZERO).expect("told");
            dropping.wait(&waiters(), Duration::ZERO)
        });
        assert!(waited.join().is_err(), "it panics");
    }
}
