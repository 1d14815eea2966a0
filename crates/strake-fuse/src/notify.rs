//! What the kernel is told without having asked: names, attributes and pages that it must not keep.
//!
//! A notification is a message written to `/dev/fuse` (also where requests come through rings). The
//! write returns when the kernel has let go, and until then it may wait for requests in flight:
//!
//! | lane | what it tells | what the kernel waits for meanwhile |
//! |---|---|---|
//! | `at_once` | a new epoch of all names; attributes | nothing |
//! | `names` | names, removed names | requests that hold the directory's lock: create, lookup, … |
//! | `pages` | pages of a range | reads of these pages; their write-back, if they are dirty |
//!
//! So each lane has threads of its own, no thread that serves requests ever tells the kernel
//! anything, and no lock is held across the write. A lane starts a further thread when an order
//! finds all of them held up; beyond its limits orders are refused (see [`strake_env::workers`]).
//!
//! The kernel's answers: ENOENT means that nothing of the kind was cached, which is as good as
//! dropped. After ENODEV or ENOTCONN the mount is gone, and with it all caches that programs could
//! look into. EINVAL and ENOSYS mean that the kernel is too old; the log says so once.

use crate::abi::{
    DeleteOut, InvalEntryOut, InvalInodeOut, NOTIFY_DELETE, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE, OutHeader,
};
use crate::pages::UnderWay;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use strake_client::invalidate::{Dropped, Dropping, Invalidate, Outdated};
use strake_env::workers::{Refused, WorkerLimits, Workers};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, Ino, Result};
use tracing::warn;

/// How long a write waits for the kernel to drop pages: what it has to write back first is copied
/// into memory by another serving thread.
const DROP_WAIT_MAX: Duration = Duration::from_secs(10);

/// What takes no time needs no second thread.
const AT_ONCE: WorkerLimits = WorkerLimits { threads_max: 1, waiting_max: 4096 };
/// Directories in which a request may hold up the names' lane before others wait for them.
const NAMES: WorkerLimits = WorkerLimits { threads_max: 16, waiting_max: 4096 };
/// Files whose reads may hold up the pages' lane before others wait for them. The queue has room
/// for a direct write of each of many more programs than there are requests under way.
const PAGES: WorkerLimits = WorkerLimits { threads_max: 16, waiting_max: 4096 };

/// Writes one notification; returns when the kernel is done with it.
type Tell = Box<dyn Fn(&[u8]) -> std::result::Result<(), Errno> + Send + Sync>;

struct Kernel {
    tell: Tell,
    /// The log has said that the kernel is too old.
    said_too_old: AtomicBool,
}

struct Order {
    dropped: Dropped,
    /// A direct write that is under way until the pages are dropped.
    _write: Option<UnderWay>,
}

/// See the module.
pub(crate) struct Notifier {
    at_once: Workers<Order>,
    names: Workers<Order>,
    pages: Workers<Order>,
    has_epochs: bool,
    /// Serving threads that wait for dropped pages, and how many of them may.
    waiting: AtomicUsize,
    waiting_max: usize,
    observe: Arc<Observe>,
}

impl Notifier {
    /// All but one of `serving` threads may wait for pages to be dropped. `has_epochs`: the kernel
    /// knows [`NOTIFY_INC_EPOCH`].
    pub(crate) fn new(
        tell: Tell,
        has_epochs: bool,
        serving: usize,
        observe: Arc<Observe>,
    ) -> Notifier {
        let kernel = Arc::new(Kernel { tell, said_too_old: AtomicBool::new(false) });
        let lane = |name: &str, limits| {
            let kernel = Arc::clone(&kernel);
            Workers::new(name, limits, move |order: Order| {
                let result = kernel.drop_cached(order.dropped.what());
                order.dropped.tell(result);
            })
        };
        Notifier {
            at_once: lane("fuse-attrs", AT_ONCE),
            names: lane("fuse-names", NAMES),
            pages: lane("fuse-pages", PAGES),
            has_epochs,
            waiting: AtomicUsize::new(0),
            waiting_max: serving.saturating_sub(1),
            observe,
        }
    }

    /// Has the pages of a direct write's range dropped. Waits for that, unless this is the last
    /// serving thread that does not: the kernel may have to write pages back first.
    ///
    /// # Errors
    /// `Io` if the kernel has so many to drop that the order was not taken: what was written is
    /// there, but a page may show older bytes.
    pub(crate) fn drop_pages_after(&self, ino: Ino, write: UnderWay) -> Result<()> {
        let may_wait = self.waiting.fetch_add(1, Ordering::AcqRel) < self.waiting_max;
        let what = Outdated::Contents { ino, range: write.range() };
        let ordered = self.order(what, Some(write));
        if may_wait && let Ok(dropping) = &ordered {
            let outcome = dropping.wait_while_others_serve(&self.observe.waiters, DROP_WAIT_MAX);
            if let Err(error) = outcome
                && error.kind() == ErrorKind::TimedOut
            {
                warn!(target: "fuse", "the kernel lets go of pages late: {error}");
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        match ordered {
            // No mount, no pages.
            Err(error) if error.kind() != ErrorKind::Unreachable => {
                Err(Error::new(ErrorKind::Io, error.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn order(&self, what: Outdated, write: Option<UnderWay>) -> Result<Dropping> {
        let lane = match &what {
            Outdated::AllNames | Outdated::Attributes(_) => &self.at_once,
            Outdated::Name { .. } | Outdated::Gone { .. } => &self.names,
            Outdated::Contents { .. } => &self.pages,
        };
        let (dropping, dropped) = Dropping::begin(what);
        match lane.submit(Order { dropped, _write: write }) {
            Ok(()) => Ok(dropping),
            Err(Refused::Full(order)) => {
                let detail = format!("too much is to be dropped before {}", order.dropped.what());
                Err(Error::new(ErrorKind::Busy, detail))
            }
            Err(Refused::Ended(_)) => Err(gone()),
        }
    }

    /// The mount is gone: orders that nobody began end as `Unreachable`.
    pub(crate) fn end(&self) {
        for lane in [&self.at_once, &self.names, &self.pages] {
            drop(lane.end());
        }
    }

    /// Waits until the last notification has returned, after [`Notifier::end`].
    pub(crate) fn join(&self) {
        for lane in [&self.at_once, &self.names, &self.pages] {
            lane.join();
        }
    }
}

impl Invalidate for Notifier {
    fn invalidate(&self, what: Outdated) -> Result<Dropping> {
        if what == Outdated::AllNames && !self.has_epochs {
            let detail = "this kernel cannot drop all names (Linux 6.16 and later can)";
            return Err(Error::new(ErrorKind::NotSupported, detail));
        }
        self.order(what, None)
    }

    fn can_drop_all_names(&self) -> bool {
        self.has_epochs
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "the mount is gone")
}

impl Kernel {
    fn drop_cached(&self, what: &Outdated) -> Result<()> {
        let Some(message) = message(what) else { return Ok(()) };
        match (what, (self.tell)(&message)) {
            (_, Ok(()) | Err(Errno::NOENT)) => Ok(()),
            // The name is dropped. What it led to is a mount point here, or has names in use.
            (Outdated::Gone { .. }, Err(Errno::NOTEMPTY | Errno::BUSY)) => Ok(()),
            (_, Err(Errno::NODEV | Errno::NOTCONN)) => Err(gone()),
            (_, Err(error @ (Errno::INVAL | Errno::NOSYS))) => {
                if !self.said_too_old.swap(true, Ordering::Relaxed) {
                    warn!(target: "fuse", "this kernel is too old to be told of {what}: {error}");
                }
                let detail = format!("this kernel is too old to be told of {what}");
                Err(Error::new(ErrorKind::NotSupported, detail))
            }
            (_, Err(error)) => {
                let error = Error::from(std::io::Error::from(error));
                let error = error.context(format!("the kernel does not drop {what}"));
                warn!(target: "fuse", "{error}");
                Err(error)
            }
        }
    }
}

/// The notification; `None` if nothing of the kind can be cached.
fn message(what: &Outdated) -> Option<Vec<u8>> {
    let (code, body) = match what {
        Outdated::AllNames => (NOTIFY_INC_EPOCH, Vec::new()),
        Outdated::Attributes(ino) => {
            let body = InvalInodeOut { ino: ino.0, offset: -1, length: 0 };
            (NOTIFY_INVAL_INODE, body.encode().to_vec())
        }
        Outdated::Contents { ino, range } => {
            // Files end before i64::MAX; a range that does not means "to the end", which is 0.
            let offset = i64::try_from(range.start).ok().filter(|_| !range.is_empty())?;
            let length = i64::try_from(range.end).map_or(0, |end| end - offset);
            let body = InvalInodeOut { ino: ino.0, offset, length };
            (NOTIFY_INVAL_INODE, body.encode().to_vec())
        }
        Outdated::Name { parent, name } => {
            let (parent, namelen) = (parent.0, name.len() as u32);
            let body = InvalEntryOut { parent, namelen, flags: 0 }.encode();
            (NOTIFY_INVAL_ENTRY, [&body[..], name, &[0]].concat())
        }
        Outdated::Gone { parent, name, child } => {
            let body = DeleteOut { parent: parent.0, child: child.0, namelen: name.len() as u32 };
            (NOTIFY_DELETE, [&body.encode()[..], name, &[0]].concat())
        }
    };
    let length = (OutHeader::SIZE + body.len()) as u32;
    let header = OutHeader { len: length, error: code, unique: 0 };
    Some([&header.encode()[..], &body].concat())
}

#[cfg(test)]
#[path = "notify_test.rs"]
mod notify_test;
