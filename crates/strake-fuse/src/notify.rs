//! Tells the kernel to drop names, attributes and pages from its caches.
//!
//! A notification is a message that is written to `/dev/fuse`, also if requests come through rings.
//! The write returns when the kernel has dropped what the message names. Until then the kernel may
//! wait for requests in flight. Notifications are sorted into three lanes by what they wait for:
//!
//! | lane | the kernel drops | the kernel may wait for |
//! |---|---|---|
//! | `at_once` | all names (by a new epoch); attributes | nothing |
//! | `names` | a name; a removed name | requests with the directory locked: create, lookup, … |
//! | `pages` | pages of a range | reads of these pages; their write-back, if they are dirty |
//!
//! Each lane has threads of its own. No thread that serves requests writes a notification for which
//! the kernel may wait, and no lock is held across the write. A lane starts a further thread when
//! an order finds all its threads held up. Beyond the lane's limits, orders are refused (see
//! [`strake_env::workers`]).
//!
//! The kernel answers with an errno. ENOENT means that nothing of the kind was cached. After ENODEV
//! or ENOTCONN the mount is gone, and with it all caches that programs could look into. EINVAL and
//! ENOSYS mean that the kernel is too old; the log says so once.

use crate::abi::{
    DeleteOut, InvalEntryOut, InvalInodeOut, NOTIFY_DELETE, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE, OutHeader,
};
use crate::pages::UnderWay;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use strake_client::invalidate::{Dropped, Dropping, Found, Invalidate, Outdated};
use strake_env::workers::{Refused, WorkerLimits, Workers};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, Ino, Result};
use tracing::{debug, warn};

/// How long a write waits for the kernel to drop pages. The kernel may write pages back first, and
/// then another serving thread copies them into memory.
const DROP_WAIT_MAX: Duration = Duration::from_secs(10);

/// The limits of lane `at_once`. Its notifications take no time, so one thread is enough.
const AT_ONCE: WorkerLimits = WorkerLimits { threads_max: 1, waiting_max: 4096 };
/// The limits of lane `names`. If requests hold up notifications in this many directories,
/// notifications about further directories wait.
const NAMES: WorkerLimits = WorkerLimits { threads_max: 16, waiting_max: 4096 };
/// The limits of lane `pages`. If reads hold up notifications about this many files, notifications
/// about further files wait. The queue has room for far more direct writes than there are requests
/// under way.
const PAGES: WorkerLimits = WorkerLimits { threads_max: 16, waiting_max: 4096 };

/// Writes one notification and returns when the kernel is done with it.
type Tell = Box<dyn Fn(&[u8]) -> std::result::Result<(), Errno> + Send + Sync>;

/// Whether something is mounted below the mount.
type IsCovered = Box<dyn Fn() -> bool + Send + Sync>;

struct Kernel {
    tell: Tell,
    is_covered: IsCovered,
    /// True if something was mounted below when that was last looked at.
    was_covered: AtomicBool,
    /// True once the log has said that the kernel is too old.
    said_too_old: AtomicBool,
}

struct Order {
    dropped: Dropped,
    /// The direct write that has caused the order. It stays under way until the pages are dropped.
    write: Option<UnderWay>,
}

/// Takes orders and tells the kernel; see the head of this file.
pub(crate) struct Notifier {
    at_once: Workers<Order>,
    names: Workers<Order>,
    pages: Workers<Order>,
    kernel: Arc<Kernel>,
    has_epochs: bool,
    /// The serving threads that wait until pages are dropped, and how many may wait at a time.
    waiting: AtomicUsize,
    waiting_max: usize,
    observe: Arc<Observe>,
}

impl Notifier {
    /// A notifier that writes with `tell`. There are `serving` threads that serve requests, and all
    /// but one of them may wait until pages are dropped. `has_epochs` says that the kernel knows
    /// [`NOTIFY_INC_EPOCH`]. `is_covered` says whether something is mounted below: the kernel
    /// would detach that when it drops all names, so the order is refused.
    pub(crate) fn new(
        tell: Tell,
        is_covered: IsCovered,
        has_epochs: bool,
        serving: usize,
        observe: Arc<Observe>,
    ) -> Notifier {
        let kernel = Arc::new(Kernel {
            tell,
            is_covered,
            was_covered: AtomicBool::new(false),
            said_too_old: AtomicBool::new(false),
        });
        let lane = |name: &str, limits| {
            let kernel = Arc::clone(&kernel);
            Workers::new(name, limits, move |order: Order| {
                let Order { dropped, write } = order;
                let result = kernel.drop_cached(dropped.what());
                // The write is answered once that is told. Then programs store to new pages, which
                // must not be left out of what is written back.
                drop(write);
                dropped.tell(result);
            })
        };
        Notifier {
            at_once: lane("fuse-attrs", AT_ONCE),
            names: lane("fuse-names", NAMES),
            pages: lane("fuse-pages", PAGES),
            kernel,
            has_epochs,
            waiting: AtomicUsize::new(0),
            waiting_max: serving.saturating_sub(1),
            observe,
        }
    }

    /// Has the kernel drop the pages of a direct write's range, and waits for that. If all other
    /// serving threads wait already, it does not wait, because the kernel may have to write pages
    /// back first.
    ///
    /// # Errors
    /// `Io` if so many orders wait that this one is refused. The bytes are written then, but a page
    /// may show older ones.
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
            // Unreachable: the mount is gone, and its pages with it.
            Err(error) if error.kind() != ErrorKind::Unreachable => {
                Err(Error::new(ErrorKind::Io, error.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Whether the kernel is Linux 6.16 or later.
    pub(crate) fn has_epochs(&self) -> bool {
        self.has_epochs
    }

    /// Looks whether something is mounted below, so that the kernel gets no names that it could
    /// not be told to drop.
    pub(crate) fn look_below(&self) {
        if self.has_epochs {
            self.kernel.look_below();
        }
    }

    /// Tells the kernel that the attributes it has of an inode, or is about to take in from an
    /// earlier answer, are out of date. The calling thread serves the request that has changed
    /// them. So the inode is in use, and the kernel waits for nothing here.
    pub(crate) fn attributes_changed(&self, ino: Ino) {
        if let Err(error) = self.kernel.drop_cached(&Outdated::Attributes(ino)) {
            debug!(target: "fuse", "programs may see old attributes of inode {ino}: {error}");
        }
    }

    fn order(&self, what: Outdated, write: Option<UnderWay>) -> Result<Dropping> {
        let lane = match &what {
            Outdated::AllNames | Outdated::Attributes(_) => &self.at_once,
            Outdated::Name { .. } | Outdated::Gone { .. } => &self.names,
            Outdated::Contents { .. } => &self.pages,
        };
        let (dropping, dropped) = Dropping::begin(what);
        match lane.submit(Order { dropped, write }) {
            Ok(()) => Ok(dropping),
            Err(Refused::Full(order)) => {
                let detail = format!("too much is to be dropped before {}", order.dropped.what());
                Err(Error::new(ErrorKind::Busy, detail))
            }
            Err(Refused::Ended(_)) => Err(gone()),
        }
    }

    /// Ends the lanes, because the mount is gone. Orders that no thread has begun end as
    /// `Unreachable`.
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
        self.has_epochs && !self.kernel.was_covered.load(Ordering::Relaxed)
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "the mount is gone")
}

impl Kernel {
    /// Whether something is mounted below now.
    fn look_below(&self) -> bool {
        let is_covered = (self.is_covered)();
        self.was_covered.store(is_covered, Ordering::Relaxed);
        is_covered
    }

    fn drop_cached(&self, what: &Outdated) -> Result<Found> {
        let Some(message) = message(what) else { return Ok(Found::Nothing) };
        if *what == Outdated::AllNames && self.look_below() {
            let detail = "the kernel would detach what is mounted below";
            return Err(Error::new(ErrorKind::NotSupported, detail));
        }
        match (what, (self.tell)(&message)) {
            (_, Ok(())) => Ok(Found::Something),
            (_, Err(Errno::NOENT)) => Ok(Found::Nothing),
            // The kernel has dropped the name. The directory behind it is a mount point, or has
            // names in use.
            (Outdated::Gone { .. }, Err(Errno::NOTEMPTY | Errno::BUSY)) => Ok(Found::Something),
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

/// The bytes of a notification. `None` if the kernel can have cached nothing of the kind.
fn message(what: &Outdated) -> Option<Vec<u8>> {
    let (code, body) = match what {
        Outdated::AllNames => (NOTIFY_INC_EPOCH, Vec::new()),
        Outdated::Attributes(ino) => {
            let body = InvalInodeOut { ino: ino.0, offset: -1, length: 0 };
            (NOTIFY_INVAL_INODE, body.encode().to_vec())
        }
        Outdated::Contents { ino, range } => {
            // Files end at i64::MAX at the latest. A range beyond that means "to the end", for
            // which the length is 0.
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
