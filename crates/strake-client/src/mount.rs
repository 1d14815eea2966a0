//! What all parts of the client share.

use crate::inode::budget::NameBudget;
use crate::inode::core::{Core, InodeState};
use crate::inode::fetched::Fetched;
use crate::inode::kept_open::KeptOpen;
use crate::inode::listed::Neighbours;
use crate::inode::open_table::{OpenTable, Pinned};
use crate::inode::queue::Queue;
use crate::inode::reserved::Reserved;
use crate::inode::shown::ShownNames;
use crate::inode::turns::Turns;
use crate::inode::untold::Untold;
use crate::invalidate::Invalidate;
use crate::losses::Losses;
use crate::memory::file::{Content, FileState};
use crate::memory::page_pool::PagePool;
use crate::mode::{AccessTimes, ModeCell};
use crate::settings::Settings;
use crate::timings::SendTimings;
use crate::tokens::{Access, Tokens, Use, beside, exclusive, want};
use crate::vfs::OpenFlags;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_array::{Array, reaper, stripe_io};
use strake_env::FanOut;
use strake_env::sync::{Mutex, WatchedWriteGuard};
use strake_proto::limits::FILE_BYTES_MAX;
use strake_proto::meta::{AttrChange, FileData, Inode, MetaOp, MetaQuery, PendingRange};
use strake_proto::{
    Attr, BlockIndex, Error, ErrorKind, GrantNumber, Ino, ObjectId, Result, Timestamp,
};
use strake_token::held::Want;
use strake_token::{BlockRange, Mode};

/// The name of the wait for disks that are away.
pub(crate) const DISKS_NEEDED: &str = "disks that a file needs";
/// A file that cannot be made durable is tried again after that long.
pub(crate) const SAVE_PAUSE: Duration = Duration::from_millis(50);

/// So many accepted bytes make a round due, if the page pool is large enough. Without the round a
/// stream needs fresh memory, which costs more than the round.
const DUE_BYTES: usize = 64 << 20;

/// See the file's head.
pub(crate) struct Mount {
    pub(crate) array: Arc<Array>,
    pub(crate) page_pool: Arc<PagePool>,
    pub(crate) table: Arc<OpenTable>,
    pub(crate) write_behind: Queue,
    pub(crate) prefetch: Queue,
    /// The thread that folds small synchronous writes.
    pub(crate) folding: Turns,
    pub(crate) neighbours: Neighbours,
    pub(crate) fetched: Fetched,
    pub(crate) kept_open: KeptOpen,
    /// How many names are known.
    pub(crate) names: Arc<NameBudget>,
    /// The directories of which the adapter's caches may keep names. A leaf.
    pub(crate) shown: Mutex<ShownNames>,
    pub(crate) untold: Untold,
    /// Numbers for inodes that are made here.
    pub(crate) reserved: Reserved<Ino>,
    pub(crate) reserved_objects: Reserved<ObjectId>,
    pub(crate) flush_fan: FanOut,
    pub(crate) settings: Settings,
    /// How it is mounted.
    pub(crate) mode: ModeCell,
    pub(crate) timings: SendTimings,
    /// What this client may use. `None` for a lone mount, which may use everything.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// What has caches above this mount, once it serves.
    pub(crate) adapter: OnceLock<Arc<dyn Invalidate>>,
    /// Inodes with something to sync. Its lock is a leaf under `InodeState::core`.
    pub(crate) dirty: Mutex<HashMap<Ino, Pinned>>,
    /// Inodes whose dirty blocks are still to be queued when clean pages are short, those that have
    /// been dirty longest first: see `flush/writers.rs`. A leaf.
    pub(crate) pressed: Mutex<VecDeque<Ino>>,
    pub(crate) losses: Losses,
    /// The files that others want and that cannot be made durable, because disks are away. A leaf.
    pub(crate) stuck: Mutex<BTreeSet<Ino>>,
}

/// The metadata is told of so many inodes with one message.
pub(crate) const TOLD_TOGETHER: usize = 32;

/// Attributes of an inode on their way to the metadata.
struct Kept {
    change: AttrChange,
    /// [`Core::changes`] as of then.
    changes: u64,
    /// The metadata lacks something else of the inode.
    lacks_more: bool,
}

impl Kept {
    /// What is to be told now. `None` if nothing is.
    fn of(core: &Core) -> Option<Kept> {
        let change = core.untold_attributes()?;
        let lacks_more = core.mtime.is_some()
            || core.ctime.is_some()
            || core.size_changed
            || core.allocated_delta != 0;
        Some(Kept { change, changes: core.changes, lacks_more })
    }

    fn op(&self, ino: Ino) -> MetaOp {
        MetaOp::SetAttr { ino, change: self.change.clone() }
    }
}

/// A rename under way.
pub(crate) struct Renaming<'a>(&'a Mount, [Ino; 2]);

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        self.0.shown.lock().renamed(self.1);
    }
}

impl Mount {
    /// Takes the tokens of an operation; see [`Tokens::take`].
    pub(crate) fn take<const N: usize>(&self, wants: [Want; N]) -> Result<Use<'_>> {
        match &self.tokens {
            None => Ok(Use::LONE),
            Some(tokens) => tokens.take(&wants, Access::Other),
        }
    }

    /// Takes the tokens to read bytes of a file.
    pub(crate) fn take_to_read(&self, ino: Ino, access: Access) -> Result<Use<'_>> {
        match &self.tokens {
            None => Ok(Use::LONE),
            Some(tokens) => tokens.take(&[want(ino, tokens.read_mode(ino))], access),
        }
    }

    /// Has `read` read bytes of a file, first as one of several mounts. Beside others only the
    /// holder of a block may write it anew (R12). So if that is necessary, `read` is called once
    /// more, and takes the file exclusively. It is told which.
    pub(crate) fn read_or_mend<T>(
        &self,
        mut read: impl FnMut(stripe_io::Access) -> Result<T>,
    ) -> Result<T> {
        match read(self.access_of_readers()) {
            Err(error) if error.kind() == ErrorKind::Retry && self.tokens.is_some() => {
                read(stripe_io::Access::Exclusive)
            }
            result => result,
        }
    }

    /// Whether readers exclude other mounts: a lone mount has none.
    pub(crate) fn access_of_readers(&self) -> stripe_io::Access {
        match self.tokens {
            None => stripe_io::Access::Exclusive,
            Some(_) => stripe_io::Access::Shared,
        }
    }

    /// Takes the tokens to change bytes of a file wherever they are, or to read bytes and write
    /// blocks anew that need that.
    pub(crate) fn take_to_change(&self, ino: Ino, access: Access) -> Result<Use<'_>> {
        match &self.tokens {
            None => Ok(Use::LONE),
            Some(tokens) => tokens.take(&[exclusive(ino)], access),
        }
    }

    /// Takes the tokens to write so many bytes of a file at an offset.
    pub(crate) fn take_to_write(&self, ino: Ino, offset: u64, count: usize) -> Result<Use<'_>> {
        let Some(tokens) = &self.tokens else { return Ok(Use::LONE) };
        let block_size = u64::from(self.array.block_size);
        // A write that is too far out is refused later.
        let last = offset.saturating_add((count as u64).max(1) - 1).min(FILE_BYTES_MAX);
        let (from, to) = (offset.min(last) / block_size, last / block_size + 1);
        let blocks = BlockRange::new(BlockIndex(from), BlockIndex(to));
        tokens.take(&[beside(ino, blocks)], Access::Write)
    }

    /// Takes the tokens of an operation that opens a file, and counts the handle.
    pub(crate) fn take_open(&self, want: Want, flags: OpenFlags) -> Result<Use<'_>> {
        match &self.tokens {
            None => Ok(Use::LONE),
            Some(tokens) => tokens.take_open(Want { open: true, ..want }, flags.write),
        }
    }

    /// Takes the token to look at an inode: see [`Tokens::to_look`].
    pub(crate) fn take_to_look(&self, ino: Ino) -> Result<Use<'_>> {
        match &self.tokens {
            None => Ok(Use::LONE),
            Some(tokens) => tokens.take(&[tokens.to_look(ino)], Access::Other),
        }
    }

    /// Takes the token to look at an inode that a name led to. A program may open it next.
    pub(crate) fn take_found(&self, ino: Ino) -> Result<Use<'_>> {
        let Some(tokens) = &self.tokens else { return Ok(Use::LONE) };
        let open = tokens.held(ino).is_none();
        tokens.take(&[Want { open, ..tokens.to_look(ino) }], Access::Other)
    }

    /// A handle that [`Mount::take_open`] counted is closed.
    pub(crate) fn close(&self, inode: &InodeState, flags: OpenFlags) {
        if let Some(tokens) = &self.tokens {
            tokens.close(inode.ino, flags.write);
            self.let_go_if_nameless(inode);
        }
    }

    /// If an inode may have no name, the leader hears whether this client has it open. A removal
    /// here notes first that the name is in doubt, and does this last. So one of the two sees the
    /// other: the removal finds no handle, or the last close finds the doubt.
    pub(crate) fn let_go_if_nameless(&self, inode: &InodeState) {
        if let Some(tokens) = &self.tokens
            && !inode.core.lock().is_named()
        {
            tokens.let_go(inode.ino);
        }
    }

    /// Announces an answer that may show a name; see [`ShownNames::begin`]. `None` if the adapter's
    /// caches are to keep no name of the directory now.
    pub(crate) fn show_name(&self, directory: Ino) -> Option<u64> {
        if self.tokens.is_none() || !self.adapter.get()?.can_drop_all_names() {
            return None;
        }
        self.shown.lock().begin(directory, self.array.clock.monotonic())
    }

    /// Notes that a rename between two directories is under way; see [`ShownNames::rename`].
    pub(crate) fn renaming(&self, directories: [Ino; 2]) -> Option<Renaming<'_>> {
        self.tokens.as_ref()?;
        self.shown.lock().rename(directories, self.array.clock.monotonic());
        Some(Renaming(self, directories))
    }

    /// Waits until this mount may use what it holds: see [`Tokens::hold_lease`].
    pub(crate) fn hold_lease(&self) -> Result<()> {
        self.tokens.as_ref().map_or(Ok(()), |tokens| tokens.hold_lease())
    }

    /// Whether this mount may use what it holds now.
    pub(crate) fn has_lease(&self) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.has_lease())
    }

    /// Whether this mount was declared dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens.is_dead())
    }

    /// Whether what could not be written is just tried again. In a cluster, servers are started
    /// anew while mounts live. What is dirty stays so, and nothing is lost. A later `fsync` that
    /// succeeds has written it, so it need not tell of the attempts before.
    pub(crate) fn may_pass(&self, error: &Error) -> bool {
        self.tokens.is_some() && !self.is_dead() && is_absence(error.kind())
    }

    /// Makes a request about a file. In a cluster, if disks are away that were there less than
    /// `standstill_max` ago, it is made again until then: servers are started anew while mounts
    /// live. Disks that are away for longer hold no program up, so an outage costs each program
    /// that wait once, and not at each request.
    ///
    /// The request takes its tokens itself, so that they can be given up in between.
    pub(crate) fn with_disks<T>(&self, ino: Ino, request: impl FnMut() -> Result<T>) -> Result<T> {
        let limit = self.settings.standstill_max;
        self.again_while(
            || format!("inode {ino}"),
            || self.array.io.nsds().went_within(limit),
            request,
        )
    }

    /// Makes a request of a program again as long as it fails for want of disks, and `may_wait`.
    pub(crate) fn again_while<T>(
        &self,
        concerned: impl Fn() -> String,
        may_wait: impl Fn() -> bool,
        mut request: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut wait = None;
        loop {
            match request() {
                Err(error) if self.may_pass(&error) && may_wait() => {
                    let waiters = &self.array.observe.waiters;
                    wait.get_or_insert_with(|| waiters.enter(DISKS_NEEDED, concerned()));
                    self.array.clock.sleep(SAVE_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Whether this mount may change a file now, without asking.
    pub(crate) fn may_change(&self, ino: Ino) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.may_change(ino))
    }

    /// Refuses a change if the file system is mounted read-only.
    pub(crate) fn may_write(&self) -> Result<()> {
        if self.mode.get().read_only { Err(ErrorKind::ReadOnly.into()) } else { Ok(()) }
    }

    /// Whether a read of an inode may move its access time at all.
    fn moves_times(&self, inode: &InodeState, times: AccessTimes) -> bool {
        times != AccessTimes::Never && self.may_write().is_ok() && self.may_change(inode.ino)
    }

    /// Whether a read of an inode would move its access time now.
    pub(crate) fn is_read_noted(&self, inode: &InodeState, times: AccessTimes) -> bool {
        if !self.moves_times(inode, times) {
            return false;
        }
        let now = self.now();
        let core = inode.core.lock();
        core.is_loaded() && times.is_due(&core.attr(), now)
    }

    /// Notes that an inode was read. `times` says when that moves its access time.
    pub(crate) fn note_read(&self, inode: &Arc<InodeState>, times: AccessTimes) {
        if !self.moves_times(inode, times) {
            return;
        }
        let now = self.now();
        let mut core = inode.core.lock();
        if core.is_loaded() && times.is_due(&core.attr(), now) {
            core.atime = Some(now);
            core.changes += 1;
            self.register(inode, &mut core);
        }
    }

    /// The time, for `stat`.
    pub(crate) fn now(&self) -> Timestamp {
        self.array.clock.wall()
    }

    /// The exact attributes of an inode.
    pub(crate) fn attr(&self, inode: &InodeState) -> Result<Attr> {
        self.loaded(inode, Core::attr)
    }

    /// Calls `look` with an inode's `Core`, after loading the attributes if they are not known.
    pub(crate) fn loaded<T>(&self, inode: &InodeState, look: impl FnOnce(&Core) -> T) -> Result<T> {
        loop {
            let epoch = {
                let core = inode.core.lock();
                if core.is_loaded() {
                    return Ok(look(&core));
                }
                core.epoch()
            };
            let found = self.array.meta.query_inode(&MetaQuery::GetInode { ino: inode.ino })?;
            inode.core.lock().absorb(&found, epoch);
        }
    }

    /// Like [`Mount::loaded`], for a `look` that needs nothing but what decides about access.
    pub(crate) fn for_access<T>(&self, inode: &InodeState, look: impl Fn(&Core) -> T) -> Result<T> {
        {
            let core = inode.core.lock();
            if core.is_access_known() {
                return Ok(look(&core));
            }
        }
        self.loaded(inode, look)
    }

    /// Applies a change to the metadata and takes in the changed inode, which is the answer. What
    /// was kept of attributes is told first. Of a regular file the caller holds `meta`.
    pub(crate) fn change(&self, inode: &InodeState, op: MetaOp) -> Result<Attr> {
        if inode.core.lock().keeps_attributes() {
            self.tell_attributes(inode)?;
        }
        self.change_now(inode, op)
    }

    /// Tells the metadata attributes of an inode that were kept, before a change that it decides
    /// on.
    pub(crate) fn tell_kept_of(&self, inode: &InodeState) -> Result<()> {
        let keeps = inode.core.lock().keeps_attributes();
        if keeps { self.tell_attributes_alone(inode) } else { Ok(()) }
    }

    /// Like [`Mount::tell_attributes`], for a caller that holds nothing.
    fn tell_attributes_alone(&self, inode: &InodeState) -> Result<()> {
        let file = inode.core.lock().file.clone();
        let _serial = file.as_ref().map(|file| file.meta.lock());
        self.tell_attributes(inode)
    }

    /// Tells the metadata access times that reads have moved, and attributes that were kept
    /// ([`Core::keep`]). The caller holds [`InodeState::syncing`] or the file's `meta`: if its
    /// contents were told of at the same time, an older time of change could come last.
    pub(crate) fn tell_attributes(&self, inode: &InodeState) -> Result<()> {
        if !inode.core.lock().lacks_attributes() {
            return Ok(());
        }
        let _one_at_a_time = inode.telling.lock();
        // Another thread may have told them meanwhile, and the token may be given up since. Without
        // it nothing may be loaded: this client would not hear when it changes.
        if !inode.core.lock().lacks_attributes() {
            return Ok(());
        }
        // The change time goes on from the one that the metadata has.
        match self.attr(inode) {
            Err(error) if error.kind() != ErrorKind::Stale => return Err(error),
            _ => {}
        }
        let Some(telling) = Kept::of(&inode.core.lock()) else { return Ok(()) };
        match self.change_now(inode, telling.op(inode.ino)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(error) => return Err(error),
        }
        self.took(inode, &mut inode.core.lock(), &telling);
        Ok(())
    }

    /// Tells the metadata all attributes that were kept. Returns the first error.
    pub(crate) fn tell_kept(&self) -> Result<()> {
        let mut inodes = Vec::new();
        for ino in self.untold.all() {
            match self.table.find(ino) {
                Some(inode) => inodes.push(inode),
                None => self.untold.remove(ino),
            }
        }
        let mut first = Ok(());
        for some in inodes.chunks(TOLD_TOGETHER) {
            if some.len() > 1 {
                self.tell_together(some);
            }
            for inode in some {
                first = first.and(self.tell_attributes_alone(inode));
            }
        }
        first
    }

    /// Tells the metadata kept attributes of several inodes, in the order of their numbers, with
    /// one message. What it does not take is still to be told, and so is what belongs to files of
    /// which somebody tells the contents at this moment.
    fn tell_together(&self, inodes: &[Arc<InodeState>]) {
        let files: Vec<_> = inodes.iter().map(|inode| inode.core.lock().file.clone()).collect();
        let free = inodes.iter().zip(&files).filter_map(|(inode, file)| match file {
            Some(file) => Some((inode, Some(file.meta.try_lock()?))),
            None => Some((inode, None)),
        });
        let free: Vec<_> = free.collect();
        // Who holds several of these locks has taken them in this order.
        let locked: Vec<_> = free.iter().map(|(inode, _)| (*inode, inode.telling.lock())).collect();
        let mut kept = Vec::new();
        for (inode, _) in &locked {
            let core = inode.core.lock();
            // The change time goes on from the one that the metadata has.
            let telling = if core.is_loaded() { Kept::of(&core) } else { None };
            kept.extend(telling.map(|telling| (*inode, telling, core.epoch())));
        }
        let ops = kept.iter().map(|(inode, telling, _)| telling.op(inode.ino)).collect();
        let results = self.array.meta.apply_inodes(ops);
        for ((inode, telling, epoch), result) in kept.iter().zip(results) {
            // The caller tries again, and gets an error if there is one.
            let Ok(changed) = result else { continue };
            let mut core = inode.core.lock();
            core.absorb_change(&changed, *epoch);
            self.took(inode, &mut core, telling);
        }
    }

    /// Notes that the metadata has attributes.
    fn took(&self, inode: &InodeState, core: &mut Core, telling: &Kept) {
        core.told_attributes(&telling.change);
        self.note_told(inode, core);
        if !core.lacks_attributes() && core.changes == telling.changes && !telling.lacks_more {
            core.told = telling.changes;
        }
    }

    /// Learns which changes of names the metadata has refused that a program was told of.
    pub(crate) fn learn_refusals(&self) {
        for dir in self.array.meta.take_refused() {
            self.losses.note(dir, Error::new(ErrorKind::Io, "changes of names were refused"));
        }
    }

    fn note_told(&self, inode: &InodeState, core: &Core) {
        if !core.keeps_attributes() {
            self.untold.remove(inode.ino);
        }
    }

    fn change_now(&self, inode: &InodeState, op: MetaOp) -> Result<Attr> {
        let epoch = inode.core.lock().epoch();
        let result = self.array.meta.apply_inode(op);
        let mut core = inode.core.lock();
        match result {
            Ok(changed) => {
                core.absorb_change(&changed, epoch);
                Ok(core.merge(changed.attr))
            }
            Err(error) => {
                core.forget();
                Err(error)
            }
        }
    }

    /// The contents of a regular file, made in memory if they are not there.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for another type of inode; `Stale` for a file that is gone.
    pub(crate) fn file(&self, inode: &InodeState) -> Result<Arc<FileState>> {
        loop {
            let epoch = {
                let core = inode.core.lock();
                if let Some(file) = &core.file {
                    return Ok(Arc::clone(file));
                }
                if core.removed && !core.orphan {
                    return Err(ErrorKind::Stale.into());
                }
                core.epoch()
            };
            let found = self.array.meta.query_inode(&MetaQuery::GetInode { ino: inode.ino })?;
            crate::inode::require_regular(found.attr.file_type)?;
            if self.tokens.is_some() {
                self.learn_floors(&found.data)?;
            }
            let is_beside = self.tokens.as_ref().is_some_and(|tokens| {
                // The caller has a use of the file, so this stays so.
                tokens.held(inode.ino) == Some(Mode::Writing)
            });
            let made = FileState::new(&found, Arc::clone(&self.page_pool), is_beside)?;
            let mut core = inode.core.lock();
            if core.epoch() == epoch && core.file.is_none() {
                core.absorb(&found, epoch);
                core.file = Some(Arc::clone(&made));
                return Ok(made);
            }
        }
    }

    /// Learns what other clients that write a file beside this one have made of its size, unless
    /// that was done since the grant `newest`. Blocks that were just granted may be beyond the size
    /// that this client knows.
    pub(crate) fn learn_size(&self, inode: &InodeState, newest: GrantNumber) -> Result<()> {
        let file = self.file(inode)?;
        if file.learnt.load(Ordering::Acquire) >= newest.0 {
            return Ok(());
        }
        let found = self.array.meta.query_inode(&MetaQuery::GetInode { ino: inode.ino })?;
        file.raise_to(found.attr.size, self.array.block_size);
        file.learnt.fetch_max(newest.0, Ordering::AcqRel);
        Ok(())
    }

    /// Learns the range deletions of a file's object that other clients have made and that not
    /// every NSD has applied. The caller holds a token of the file, so no more are made.
    fn learn_floors(&self, data: &FileData) -> Result<()> {
        let FileData::Objects(objects) = data else { return Ok(()) };
        for range in reaper::pending(&self.array)? {
            if objects.iter().any(|layout| layout.object == range.layout.object) {
                let PendingRange { layout, from, to, version, .. } = range;
                self.array.floors.add(layout.object, from, to, version);
            }
        }
        Ok(())
    }

    /// Drops the contents of a file that is not in use and has no block in memory. A file without
    /// bytes takes little room. Beside others it stays as long as its token is held: to learn of it
    /// again costs a question.
    pub(crate) fn drop_idle_file(&self, inode: &InodeState) {
        let is_held = self.tokens.as_ref().is_some_and(|tokens| tokens.held(inode.ino).is_some());
        let mut core = inode.core.lock();
        if is_held && core.file.as_ref().is_some_and(|file| file.is_empty()) {
            return;
        }
        let idle = !core.is_dirty()
            && core.dirty_since.is_none()
            && core.file.as_ref().is_some_and(|file| {
                // The only owner is `core`, under whose lock others are made.
                Arc::strong_count(file) == 1 && !file.has_blocks()
            });
        let dropped = if idle { core.file.take() } else { None };
        if let Some(file) = &dropped {
            debug_assert!(!file.has_dirty_blocks());
        }
        drop(core);
        drop(dropped);
    }

    /// Puts an inode on the list of those with something to sync.
    pub(crate) fn register(&self, inode: &Arc<InodeState>, core: &mut Core) {
        if core.dirty_since.is_none() {
            core.dirty_since = Some(self.array.clock.monotonic());
            self.dirty.lock().insert(inode.ino, self.table.pin(inode.ino));
        }
    }

    /// Takes an inode off that list if it has nothing left to sync.
    pub(crate) fn unregister_if_clean(&self, inode: &InodeState) {
        let mut core = inode.core.lock();
        let file_clean = core.file.as_ref().is_none_or(|file| {
            !file.has_dirty_blocks()
                && file.unstable.load(Ordering::Acquire) == 0
                && file.unsettled.lock().is_empty()
                && !file.is_hardened()
                && !file.content_changed.load(Ordering::Acquire)
        });
        let gone = if !core.is_dirty() && file_clean && core.dirty_since.is_some() {
            core.dirty_since = None;
            self.dirty.lock().remove(&inode.ino)
        } else {
            None
        };
        drop(core);
        drop(gone);
        self.drop_idle_file(inode);
    }

    /// The inodes with something to sync since before `before`.
    pub(crate) fn dirty_inodes(&self, before: Option<Duration>) -> Vec<Pinned> {
        let all: Vec<Pinned> = self.dirty.lock().values().cloned().collect();
        let mut dated: Vec<(Duration, Pinned)> = all
            .into_iter()
            .filter_map(|inode| {
                let since = inode.core.lock().dirty_since?;
                Some((since, inode))
            })
            .filter(|(since, _)| before.is_none_or(|before| *since <= before))
            .collect();
        dated.sort_by_key(|(since, inode)| (*since, inode.ino));
        dated.into_iter().map(|(_, inode)| inode).collect()
    }

    /// Takes in the inode that answered a lookup by name. `before` is
    /// [`strake_array::meta_link::MetaLink::changes`] from before the lookup. Returns the inode's
    /// attributes.
    pub(crate) fn learn(&self, inode: &InodeState, found: &Inode, before: u64) -> Attr {
        let mut core = inode.core.lock();
        if !core.is_loaded() && self.array.meta.changes() == before {
            let epoch = core.epoch();
            core.absorb(found, epoch);
        }
        if core.is_loaded() { core.attr() } else { core.merge(found.attr) }
    }

    /// Drops all contents of a file in memory, dirty or not. The file has no name and is not open.
    pub(crate) fn discard(&self, inode: &InodeState) {
        self.discard_held(inode, None);
    }

    /// Like [`Mount::discard`], for a caller that holds the file's `content`.
    pub(crate) fn discard_held(
        &self,
        inode: &InodeState,
        held: Option<WatchedWriteGuard<'_, Content>>,
    ) {
        let file = {
            let mut core = inode.core.lock();
            core.told = core.changes;
            core.forget_untold();
            self.note_told(inode, &core);
            core.file.take()
        };
        if let Some(file) = &file {
            let content = held.unwrap_or_else(|| file.content.write());
            file.is_dropped.store(true, Ordering::Release);
            file.drop_blocks(&self.array.room, 0, u64::MAX);
            drop(content);
            file.unsettled.lock().clear();
        }
        let gone = {
            let mut core = inode.core.lock();
            core.dirty_since = None;
            self.dirty.lock().remove(&inode.ino)
        };
        drop(gone);
        drop(file);
    }

    /// Makes room for a buffer: see [`PagePool::admit`].
    pub(crate) fn admit(&self, bytes: usize) {
        let limit = self.settings.standstill_max;
        self.page_pool.admit(bytes, &self.array.observe.waiters, limit, &|| self.kick());
    }

    /// Whether a round would relieve the page pool, and none is under way.
    pub(crate) fn is_round_due(&self) -> bool {
        self.array.rounds.is_due(DUE_BYTES.min(self.page_pool.dirty_max() / 4))
    }

    /// Asks the threads that write behind to make pages clean.
    pub(crate) fn kick(&self) {
        self.write_behind.press();
    }
}

/// Whether an error may come from disks that are away, and end when they are back.
fn is_absence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Retry)
}
