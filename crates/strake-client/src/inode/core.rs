//! An inode in use, with its current attributes. The metadata may know an older state of them.
//!
//! `core` is held only for moments, and never across I/O or while another lock is taken, but for
//! leaves such as the queue of changes that are told later.

use crate::inode::known::KnownNames;
use crate::memory::file::FileState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::sync::{Mutex, WatchedMutex, WatchedRwLock};
use strake_proto::acl::Acl;
use strake_proto::meta::{AttrChange, ENTRY_SIZE_SHOWN, Inode};
use strake_proto::{Attr, Error, FileType, Generation, Ino, Result, Timestamp};

/// The error of a failed write-behind. `fsync` and `close` report it, once for each handle that was
/// open.
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorLatch {
    count: u64,
    last: Option<Error>,
}

impl ErrorLatch {
    /// Latches an error.
    pub(crate) fn set(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
    }

    /// The count of errors up to now: a handle opened now reports only later ones.
    pub(crate) fn seen(&self) -> u64 {
        self.count
    }

    /// The last error if there was one since `seen`, which is brought up to date.
    pub(crate) fn report(&self, seen: &mut u64) -> Result<()> {
        if *seen == self.count {
            return Ok(());
        }
        *seen = self.count;
        self.last.clone().map_or(Ok(()), Err)
    }
}

/// The changing part of an inode.
pub(crate) struct Core {
    attr: Attr,
    /// Whether `attr` and the other attributes are known. They are as the metadata has them; our
    /// own changes are kept beside them.
    loaded: bool,
    /// Whether what decides about access is known: all of `attr` but times, links and sizes, and
    /// whether there are ACLs. A change of names in a directory leaves it as it is.
    access_known: bool,
    /// Names in this directory, as far as they are known under its token.
    pub(crate) names: KnownNames,
    /// Raised by every change at the metadata. An answer to an earlier query is stale then.
    epoch: u64,
    pub(crate) parent: Ino,
    pub(crate) has_acl: bool,
    pub(crate) has_xattrs: bool,
    /// The extended attributes were looked up since they last changed, and none is a capability.
    pub(crate) no_capability: bool,
    /// Of a directory: it is known to have no default ACL, for as long as
    /// [`Core::acl_epoch`] stays.
    pub(crate) no_default_acl: bool,
    acl_epoch: u64,
    /// The access ACL, if it was fetched.
    pub(crate) acl: Option<Arc<Acl>>,
    /// Whether the inode is known to have a name. Beside others it keeps that as long as the token
    /// is held, but for removals of this client.
    named: bool,
    /// Removals of a name of it that are under way.
    leaving: u32,
    /// The inode has no name any more. `attr` stays as it was last known.
    pub(crate) removed: bool,
    /// The metadata keeps the inode without a name until it is reaped.
    pub(crate) orphan: bool,
    /// Changes that the metadata was not told of yet.
    pub(crate) size_changed: bool,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
    pub(crate) atime: Option<Timestamp>,
    /// Owners, permissions and times that were set, and that the metadata was not told of yet. See
    /// [`Core::keep`].
    untold: Option<Box<AttrChange>>,
    /// Stable bytes on disks, gained since the last `Update`. The metadata is not told of bytes
    /// that are only accepted: a crash may lose them, and the metadata would count bytes that are
    /// nowhere.
    pub(crate) allocated_delta: i64,
    /// Bytes on disks gained by blocks that are accepted and not yet stable.
    pub(crate) unstable_gain: i64,
    /// Bytes of dirty blocks that were never stored.
    pub(crate) fresh: u64,
    /// Raised by every change. Equal to `told` when the metadata knows all changes.
    pub(crate) changes: u64,
    pub(crate) told: u64,
    /// The size that a running sync may tell the metadata. Truncations lower it.
    pub(crate) size_target: Option<u64>,
    pub(crate) latch: ErrorLatch,
    pub(crate) file: Option<Arc<FileState>>,
    /// Since when something waits to be synced.
    pub(crate) dirty_since: Option<Duration>,
}

/// A change of names in a directory, under way.
#[derive(Clone, Copy)]
pub(crate) struct NameChange {
    epoch: u64,
    was_loaded: bool,
}

/// A change of names that was made at `time`.
#[derive(Clone, Copy)]
pub(crate) struct NameMade {
    pub(crate) time: Timestamp,
    /// By how many names the directory has grown.
    pub(crate) entries: i64,
    /// By how many of those that lead to directories.
    pub(crate) directories: i32,
}

strake_env::lock_names! {
    /// See [`InodeState::lifetime`].
    pub(crate) Lifetime = "opening or removal of the same file";
    /// See [`InodeState::names`].
    pub(crate) Names = "names in the same directory";
    /// Held across NSD and metadata I/O of the file's sync.
    pub(crate) Syncing = "sync of the same file";
    /// See [`InodeState::telling`].
    pub(crate) Telling = "attributes of the same file";
}

/// See the file's head.
pub(crate) struct InodeState {
    pub(crate) ino: Ino,
    /// Held shared while the inode is opened or gets a name, and exclusively while a name of it is
    /// removed or it is reaped. It is held across one metadata call, so an inode that is being
    /// opened is never removed as unused.
    pub(crate) lifetime: WatchedRwLock<Lifetime>,
    /// Of a directory: held exclusively while a name in it is removed or replaced, from the look at
    /// what the name leads to until the metadata has answered, and shared while one is made.
    pub(crate) names: WatchedRwLock<Names>,
    /// One sync of this inode at a time. The contents are taken out under it when a token is given
    /// up. A sync in the background holds no token: without this lock it would tell the metadata
    /// the size of contents that this client has no more.
    pub(crate) syncing: WatchedMutex<Syncing>,
    /// Held while the metadata is told attributes that were kept. A second thread would tell the
    /// same, perhaps when they have been set anew, here or by another client.
    pub(crate) telling: WatchedMutex<Telling>,
    pub(crate) core: Mutex<Core>,
}

/// A name of an inode is being removed, until this is dropped.
pub(crate) struct Leaving<'a>(&'a InodeState);

impl Leaving<'_> {
    pub(crate) fn begin(inode: &InodeState) -> Leaving<'_> {
        let mut core = inode.core.lock();
        core.named = false;
        core.leaving += 1;
        Leaving(inode)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.core.lock().leaving -= 1;
    }
}

impl InodeState {
    /// Whether the metadata or the disks lack a change that a program has made. An access time that
    /// a read has moved is none.
    pub(crate) fn lacks_more_than_reads(&self) -> bool {
        let core = self.core.lock();
        let times = core.mtime.is_some() || core.ctime.is_some() || core.size_changed;
        let bytes = core.file.as_ref().is_some_and(|file| {
            file.has_dirty_blocks() || file.unstable.load(Ordering::Acquire) > 0
        });
        times || bytes || core.keeps_attributes()
    }

    /// The state of an inode of which nothing is known yet.
    pub(crate) fn new(ino: Ino) -> InodeState {
        let attr = Attr {
            ino,
            generation: Generation(0),
            file_type: FileType::Regular,
            permissions: 0,
            links: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
        };
        let core = Core {
            attr,
            loaded: false,
            access_known: false,
            names: KnownNames::default(),
            epoch: 0,
            parent: Ino(0),
            has_acl: false,
            has_xattrs: false,
            no_capability: false,
            no_default_acl: false,
            acl_epoch: 0,
            acl: None,
            named: false,
            leaving: 0,
            removed: false,
            orphan: false,
            size_changed: false,
            mtime: None,
            ctime: None,
            atime: None,
            untold: None,
            allocated_delta: 0,
            unstable_gain: 0,
            fresh: 0,
            changes: 0,
            told: 0,
            size_target: None,
            latch: ErrorLatch::default(),
            file: None,
            dirty_since: None,
        };
        let (lifetime, names) = (WatchedRwLock::default(), WatchedRwLock::default());
        let (syncing, telling) = (WatchedMutex::default(), WatchedMutex::default());
        InodeState { ino, lifetime, names, syncing, telling, core: Mutex::new(core) }
    }

    /// Whether the state can be dropped and made anew without a loss: the metadata has all of it,
    /// and no contents are in memory.
    pub(crate) fn is_forgettable(&mut self) -> bool {
        let core = self.core.get_mut();
        let empty = |file: &Arc<FileState>| Arc::strong_count(file) == 1 && !file.has_blocks();
        !core.removed
            && !core.is_dirty()
            && core.dirty_since.is_none()
            && core.file.as_ref().is_none_or(empty)
    }
}

impl Core {
    /// The epoch to remember before asking the metadata; see [`Core::absorb`].
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Raised whenever the ACLs may have changed.
    pub(crate) fn acl_epoch(&self) -> u64 {
        self.acl_epoch
    }

    /// Whether the attributes are known.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Whether the type, owners, permissions and ACLs are known. All else may be out of date.
    pub(crate) fn is_access_known(&self) -> bool {
        self.loaded || self.access_known
    }

    /// Takes in the answer to a query made at `epoch`, unless something changed since.
    pub(crate) fn absorb(&mut self, inode: &Inode, epoch: u64) {
        if self.epoch == epoch && (!self.removed || self.orphan) {
            self.attr = inode.attr;
            self.parent = inode.parent;
            self.has_acl = inode.has_acl;
            self.has_xattrs = inode.has_xattrs;
            if !inode.has_acl {
                self.acl = None;
            }
            self.named = inode.attr.links > 0;
            if inode.attr.links == 0 {
                // Another client has removed the last name, and someone has it open.
                self.removed = true;
                self.orphan = true;
            }
            self.loaded = true;
            self.access_known = true;
        }
    }

    /// Takes in an inode that was just made, unless it is known already, or was changed.
    pub(crate) fn begin_as(&mut self, made: &Inode) {
        if !self.loaded && self.epoch == 0 {
            self.absorb(made, 0);
        }
    }

    /// The current attributes of an inode that was just made.
    pub(crate) fn attr_of(&self, made: &Inode) -> Attr {
        if self.loaded { self.attr() } else { self.merge(made.attr) }
    }

    /// Takes in the reply to a change that was asked for at `epoch`. If another change was taken in
    /// meanwhile, it is not known which of the two replies is newer. Both are forgotten then.
    pub(crate) fn absorb_change(&mut self, inode: &Inode, epoch: u64) {
        if self.epoch == epoch {
            self.absorb(inode, epoch);
            // A chmod changes the ACL as well.
            self.acl = None;
            self.epoch += 1;
        } else {
            self.forget();
        }
    }

    /// Notes that the metadata changed, so that the known attributes are stale.
    pub(crate) fn forget(&mut self) {
        self.epoch += 1;
        self.no_capability = false;
        self.no_default_acl = false;
        self.acl_epoch += 1;
        if !self.removed || self.orphan {
            self.loaded = false;
            self.access_known = false;
            self.acl = None;
        }
    }

    /// A change of names in this directory is asked for. If the directory is known, answers to
    /// questions that were asked before count no more, because they may tell the change already.
    pub(crate) fn begin_name_change(&mut self) -> NameChange {
        self.epoch += u64::from(self.loaded);
        NameChange { epoch: self.epoch, was_loaded: self.loaded }
    }

    /// The change was made. If no other one in this directory was under way, the metadata has moved
    /// the times, the size and the links by rules that are known here.
    pub(crate) fn end_name_change(&mut self, change: NameChange, made: NameMade) {
        if !change.was_loaded || !self.loaded || self.epoch != change.epoch {
            return self.names_changed();
        }
        self.epoch += 1;
        let NameMade { time, entries, directories } = made;
        let attr = &mut self.attr;
        (attr.mtime, attr.ctime) = (time, time);
        attr.size = attr.size.saturating_add_signed(entries * ENTRY_SIZE_SHOWN as i64);
        attr.links = attr.links.saturating_add_signed(directories);
    }

    /// Notes that names in this directory changed, and with them its times, links and size.
    pub(crate) fn names_changed(&mut self) {
        self.epoch += 1;
        if !self.removed || self.orphan {
            self.loaded = false;
        }
    }

    /// Whether the inode is known to have a name.
    pub(crate) fn is_named(&self) -> bool {
        self.named && !self.removed
    }

    /// Whether the inode is known to have a name, and none is being removed.
    pub(crate) fn stays(&self) -> bool {
        self.is_named() && self.leaving == 0
    }

    /// Notes that a name was removed, and that others are left.
    pub(crate) fn keeps_name(&mut self) {
        self.forget();
        self.named = true;
    }

    /// Notes that the token is about to be given up: nothing is known any more.
    pub(crate) fn forget_all(&mut self) {
        self.forget();
        self.named = false;
        self.names.forget();
    }

    /// Notes that the last name is gone. The attributes, last known as `last`, stay readable.
    pub(crate) fn set_removed(&mut self, last: Attr, now: Timestamp) {
        if !self.loaded {
            self.attr = last;
        }
        self.keep_last();
        self.attr.links = 0;
        self.attr.ctime = now;
        self.loaded = true;
        self.named = false;
        self.removed = true;
        self.epoch += 1;
    }

    /// Keeps the current attributes, because the contents, which have the size, are about to be
    /// dropped.
    pub(crate) fn keep_last(&mut self) {
        self.attr = Attr { allocated: self.attr.allocated, ..self.attr() };
    }

    /// Changes the attributes of an inode that only this client still knows, because it has no name
    /// and the metadata does not keep it. Returns false for any other inode.
    pub(crate) fn change_removed(&mut self, change: &AttrChange, now: Timestamp) -> bool {
        if !self.removed || self.orphan {
            return false;
        }
        let attr = &mut self.attr;
        if change.kill_privileges && attr.file_type != FileType::Directory {
            let setgid = if attr.permissions & 0o010 != 0 { 0o2000 } else { 0 };
            attr.permissions &= !(0o4000 | setgid);
        }
        attr.permissions = change.permissions.unwrap_or(attr.permissions);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        if !change.quiet {
            attr.ctime = change.ctime.unwrap_or(now);
        }
        true
    }

    /// Whether a change of attributes may wait for the next sync, beside other clients and under
    /// the exclusive token. It must not concern ACLs or extended attributes, and must be one that
    /// the metadata will take. Those of a directory are told before its next change of a name.
    pub(crate) fn may_keep(&self, change: &AttrChange) -> bool {
        let times = [change.atime, change.mtime, change.ctime];
        let is_plain = self.loaded && !self.removed && !self.has_acl && !self.has_xattrs;
        is_plain
            && matches!(self.attr.file_type, FileType::Regular | FileType::Directory)
            && !change.quiet
            && !change.kill_privileges
            && times.into_iter().flatten().all(|time| time.nanos < 1_000_000_000)
    }

    /// Keeps a change of attributes, made at `now`, until the metadata is told. Times that it sets
    /// override those of reads and writes before.
    pub(crate) fn keep(&mut self, change: &AttrChange, now: Timestamp) {
        let ctime = self.attr().ctime.max(change.ctime.unwrap_or(now));
        let untold = self.untold.get_or_insert_default();
        untold.permissions = change.permissions.or(untold.permissions);
        untold.uid = change.uid.or(untold.uid);
        untold.gid = change.gid.or(untold.gid);
        untold.ctime = Some(ctime);
        if change.atime.is_some() {
            untold.atime = change.atime;
            self.atime = None;
        }
        if change.mtime.is_some() {
            untold.mtime = change.mtime;
            self.mtime = None;
        }
        self.changes += 1;
    }

    /// Whether it is known to have no default ACL. Only directories may have one.
    pub(crate) fn has_no_default_acl(&self) -> bool {
        self.no_default_acl || (self.loaded && self.attr.file_type != FileType::Directory)
    }

    /// Whether attributes are kept ([`Core::keep`]).
    pub(crate) fn keeps_attributes(&self) -> bool {
        self.untold.is_some()
    }

    /// Whether the metadata lacks attributes that no change of the contents tells it.
    pub(crate) fn lacks_attributes(&self) -> bool {
        self.atime.is_some() || self.untold.is_some()
    }

    /// The change that tells them.
    pub(crate) fn untold_attributes(&self) -> Option<AttrChange> {
        let Some(untold) = &self.untold else {
            let atime = self.atime?;
            return Some(AttrChange { atime: Some(atime), quiet: true, ..AttrChange::default() });
        };
        // Contents that were changed since have moved the change time on, and may be told first.
        let (atime, ctime) = (self.atime.or(untold.atime), Some(self.attr().ctime));
        Some(AttrChange { atime, ctime, ..(**untold).clone() })
    }

    /// The metadata knows of a change that [`Core::untold_attributes`] gave. What came since stays.
    pub(crate) fn told_attributes(&mut self, change: &AttrChange) {
        if self.untold_attributes().as_ref() == Some(change) {
            self.forget_untold();
        }
    }

    /// The metadata is not told any more.
    pub(crate) fn forget_untold(&mut self) {
        self.atime = None;
        self.untold = None;
    }

    /// The current attributes: those of the metadata with our own changes on top.
    pub(crate) fn attr(&self) -> Attr {
        self.merge(self.attr)
    }

    /// Puts our own changes on top of `attr`, which is from the metadata.
    pub(crate) fn merge(&self, mut attr: Attr) -> Attr {
        if let Some(file) = &self.file {
            attr.size = file.size();
        }
        if let Some(untold) = &self.untold {
            attr.permissions = untold.permissions.map_or(attr.permissions, |bits| bits & 0o7777);
            attr.uid = untold.uid.unwrap_or(attr.uid);
            attr.gid = untold.gid.unwrap_or(attr.gid);
            attr.mtime = untold.mtime.unwrap_or(attr.mtime);
            attr.atime = untold.atime.unwrap_or(attr.atime);
            attr.ctime = untold.ctime.map_or(attr.ctime, |ctime| ctime.max(attr.ctime));
        }
        attr.mtime = self.mtime.unwrap_or(attr.mtime);
        attr.ctime = self.ctime.map_or(attr.ctime, |ctime| ctime.max(attr.ctime));
        attr.atime = self.atime.unwrap_or(attr.atime);
        let gained = self.allocated_delta + self.unstable_gain;
        attr.allocated = attr.allocated.saturating_add_signed(gained) + self.fresh;
        attr
    }

    /// Whether the metadata lacks some change.
    pub(crate) fn is_dirty(&self) -> bool {
        self.changes != self.told
    }

    /// Notes a change of the contents at `now`.
    pub(crate) fn note_write(&mut self, now: Timestamp) {
        if let Some(untold) = &mut self.untold {
            untold.mtime = None;
        }
        self.mtime = Some(now);
        self.ctime = Some(now);
        self.changes += 1;
    }
}
