//! Operations on names: lookup, create, link, remove, rename.

use crate::inode::core::{Core, InodeState, Leaving, NameChange, NameMade};
use crate::inode::known::is_plain_name;
use crate::inode::open_table::Pinned;
use crate::memory::file::{Content, FileState};
use crate::mount::Mount;
use crate::ops::ahead::look_ahead;
use crate::ops::later::{make_later, remove_later};
use crate::permissions::{EXECUTE, WRITE, check_sticky, no_names};
use crate::tokens::exclusive;
use crate::vfs::{Entry, OpenFlags, Renamed};
use std::sync::Arc;
use strake_array::meta_link::wrong_reply;
use strake_env::sync::WatchedWriteGuard;
use strake_proto::meta::{Inode, MetaOp, MetaQuery, MetaReply, NewInode, Removed, RenameMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, Timestamp};

/// How often an operation begins anew because another client was faster.
const ATTEMPTS: u32 = 100;
/// A question for an absent name asks for so many names that follow it. With ten, a program that
/// counts upwards without leading zeros asks once for ten names, and with a few more for a hundred.
const FOLLOWING: u32 = 16;

impl Mount {
    /// The inode that a name leads to, if others may have tokens of it. It may lead elsewhere as
    /// soon as this returns.
    ///
    /// # Errors
    /// `Io` of the metadata.
    fn child(&self, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if self.tokens.is_none() {
            return Ok(None);
        }
        let dir = self.table.find(parent);
        if let Some(known) = dir.and_then(|dir| dir.core.lock().names.get(name)) {
            return Ok(known);
        }
        // The caller holds no token, so that nothing may be learnt.
        let query = MetaQuery::Lookup { parent, name: name.to_vec() };
        match self.array.meta.query_inode(&query) {
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            found => Ok(found.ok().map(|found| found.attr.ino)),
        }
    }
}

/// The inode that a name leads to.
pub(crate) struct Found {
    pub(crate) ino: Ino,
    /// The inode as the metadata has it, if that was asked, and the count of changes before.
    pub(crate) inode: Option<(Inode, u64)>,
}

impl Found {
    /// An inode that the metadata has just shown, and the count of changes before.
    fn shown(inode: Inode, before: u64) -> Found {
        Found { ino: inode.attr.ino, inode: Some((inode, before)) }
    }

    /// Its attributes, of which sizes and times may be older than this client's own. Beside others
    /// the caller holds its token.
    fn attr(&self, mount: &Mount) -> Result<Attr> {
        match &self.inode {
            Some((inode, _)) => Ok(inode.attr),
            None => mount.attr(&mount.table.pin(self.ino)),
        }
    }
}

/// The inode that `name` in a directory leads to. Beside others the caller holds the
/// directory's token, and
/// what is known under it is asked of nobody.
pub(crate) fn find(mount: &Mount, dir: &InodeState, name: &[u8]) -> Result<Found> {
    let before = mount.array.meta.changes();
    // `..` changes with a rename of the directory, and not under its token.
    if mount.tokens.is_none() || !is_plain_name(name) {
        let query = MetaQuery::Lookup { parent: dir.ino, name: name.to_vec() };
        return Ok(Found::shown(mount.array.meta.query_inode(&query)?, before));
    }
    let changes = {
        let mut core = dir.core.lock();
        match core.names.look(name, &mount.names) {
            Some(Some(ino)) => return Ok(Found { ino, inode: None }),
            Some(None) => return Err(ErrorKind::NotFound.into()),
            None => core.names.changes(),
        }
    };
    let query = MetaQuery::LookupOrNext { parent: dir.ino, name: name.to_vec(), limit: FOLLOWING };
    let answer = match mount.array.meta.query(&query) {
        // The node that serves runs an older program, and tells only where the name leads.
        Err(error) if error.kind() == ErrorKind::NotSupported => {
            let query = MetaQuery::Lookup { parent: dir.ino, name: name.to_vec() };
            mount.array.meta.query(&query)
        }
        answer => answer,
    };
    match answer? {
        MetaReply::Inode(found) => {
            let known = (name, found.attr.ino);
            dir.core.lock().names.learn(changes, known, &mount.names);
            Ok(Found::shown(*found, before))
        }
        MetaReply::Following { names, end } => {
            dir.core.lock().names.learn_gap(changes, name, (&names, end), &mount.names);
            Err(ErrorKind::NotFound.into())
        }
        _ => Err(wrong_reply()),
    }
}

/// A change of a name in a directory, noted in what this client knows of it.
struct Changing<'a> {
    dir: &'a InodeState,
    name: &'a [u8],
    change: NameChange,
    outcome: Option<Option<Ino>>,
    made: Option<NameMade>,
}

impl<'a> Changing<'a> {
    /// # Errors
    /// If the metadata cannot be told what it lacks of the directory. A new name inherits some of
    /// that, and moves the directory's times.
    fn begin(mount: &Mount, dir: &'a InodeState, name: &'a [u8]) -> Result<Changing<'a>> {
        mount.tell_kept_of(dir)?;
        if let Some(tokens) = &mount.tokens {
            tokens.changes_names(dir.ino);
        }
        let mut core = dir.core.lock();
        core.names.begin(name);
        let change = core.begin_name_change();
        Ok(Changing { dir, name, change, outcome: None, made: None })
    }

    /// The change was made, and this is what the name leads to. `made` says what that does to the
    /// directory, if nothing else does.
    fn made(mut self, leads_to: Option<Ino>, made: Option<NameMade>) {
        self.outcome = Some(leads_to);
        self.made = made;
    }
}

impl Changing<'_> {
    /// The name leads to an inode that was made with it.
    fn made_inode(self, made: &Inode) {
        let directories = i32::from(made.attr.file_type == FileType::Directory);
        let change = NameMade { time: made.attr.ctime, entries: 1, directories };
        self.made(Some(made.attr.ino), Some(change));
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut core = self.dir.core.lock();
        match self.made {
            Some(made) => core.end_name_change(self.change, made),
            None => core.names_changed(),
        }
        core.names.end(self.name, self.outcome);
    }
}

/// Counts a lookup of an inode that was just found. The caller holds no token.
///
/// # Errors
/// Of the metadata, beside other clients; `Stale` if the inode is gone by now.
pub(crate) fn enter(mount: &Mount, caller: &Caller, found: &Found) -> Result<(Pinned, Entry)> {
    let inode = mount.table.pin(found.ino);
    let attr = match &found.inode {
        Some((found, before)) if mount.tokens.is_none() => {
            mount.table.add_found(inode.ino, caller.pid, mount.array.clock.monotonic());
            mount.learn(&inode, found, *before)
        }
        _ => {
            // Another client may have changes of it that the metadata does not know.
            let _tokens = mount.take_found(inode.ino)?;
            let attr = mount.attr(&inode);
            mount.let_go_if_nameless(&inode);
            let attr = attr?;
            // Under the token: who gives it up sees that the adapter is told of the inode.
            mount.table.add_found(inode.ino, caller.pid, mount.array.clock.monotonic());
            attr
        }
    };
    Ok((inode, Entry { attr }))
}

/// Counts a lookup of an inode that was just made, and takes its tokens, which mostly have come
/// along with the answer. The caller holds those of
/// its directory: so no other client knows of it.
pub(crate) fn enter_new(
    mount: &Mount,
    made: &Inode,
    open: Option<OpenFlags>,
) -> Result<(Pinned, Entry)> {
    let ino = made.attr.ino;
    let _tokens = match open {
        Some(flags) => mount.take_open(exclusive(ino), flags)?,
        None => mount.take([exclusive(ino)])?,
    };
    let inode = mount.table.pin(ino);
    mount.table.add_lookups(ino, 1);
    let attr = inode.core.lock().attr_of(made);
    Ok((inode, Entry { attr }))
}

/// Does `attempt` again while what a name led to is gone before it could be used. Another client
/// has removed it; without others there is one attempt.
pub(crate) fn while_stale<T>(mount: &Mount, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Stale && mount.tokens.is_some() => {}
            result => return result,
        }
    }
    attempt()
}

/// See [`crate::Vfs::lookup`].
pub(crate) fn lookup(mount: &Mount, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
    if name == b"." {
        let before = mount.array.meta.changes();
        let found = mount.array.meta.query_inode(&MetaQuery::GetInode { ino: parent })?;
        return Ok(enter(mount, caller, &Found::shown(found, before))?.1);
    }
    let dir = mount.table.pin(parent);
    while_stale(mount, || {
        // A removal that comes afterwards sees that the file was found.
        let _no_removal = mount.tokens.is_none().then(|| dir.names.read());
        let found = look(mount, caller, parent, name)?;
        if found.inode.is_none() {
            look_ahead(mount, parent, found.ino);
        }
        Ok(enter(mount, caller, &found)?.1)
    })
}

fn look(mount: &Mount, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Found> {
    let _tokens = mount.take_to_look(parent)?;
    let dir = mount.table.pin(parent);
    let attr = mount.for_access(&dir, Core::attr).map_err(no_names)?;
    if attr.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    mount.check_access(caller, &dir, EXECUTE)?;
    if dir.core.lock().removed {
        return Err(ErrorKind::NotFound.into());
    }
    find(mount, &dir, name)
}

/// Makes an inode with a name. Returns it pinned, with one lookup counted. If it is to be opened,
/// its handle is counted. The caller holds the directory's token exclusively.
pub(crate) fn make(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    new: NewInode,
    open: Option<OpenFlags>,
) -> Result<(Pinned, Entry, Inode)> {
    let dir = mount.table.pin(parent);
    let device = matches!(new.file_type, FileType::CharDevice | FileType::BlockDevice);
    mount.check_directory_change(caller, &dir)?;
    if device && caller.uid != 0 {
        return Err(ErrorKind::NotPermitted.into());
    }
    let names = dir.names.read();
    let changing = Changing::begin(mount, &dir, name)?;
    let (new, made, is_known) = match make_later(mount, &dir, name, &new)? {
        Some((new, made)) => (new, made, true),
        None => {
            let before = mount.array.meta.changes();
            let making = mount.tokens.as_ref().map(|tokens| tokens.make());
            let create = MetaOp::Create { parent, name: name.to_vec(), new };
            let (made, token) = mount.array.meta.apply_new(create)?;
            if let Some((making, token)) = making.zip(token) {
                making.made(made.attr.ino, token);
            }
            let new = mount.table.pin(made.attr.ino);
            // Else another thread may have found the inode already, and changed something.
            let is_alone = mount.array.meta.changes() == before + 1;
            if is_alone && made.attr.file_type == FileType::Directory && mount.tokens.is_some() {
                new.core.lock().names.begin_empty(&mount.names);
            }
            (new, made, is_alone || mount.tokens.is_none())
        }
    };
    if is_known {
        // Before other threads find the name.
        new.core.lock().begin_as(&made);
    }
    changing.made_inode(&made);
    drop(names);
    match enter_new(mount, &made, open) {
        Ok((inode, entry)) => Ok((inode, entry, made)),
        Err(error) => {
            // It was learnt without a token.
            new.core.lock().forget_all();
            Err(error)
        }
    }
}

/// The description of a new inode for the metadata.
pub(crate) fn new_inode(caller: &Caller, file_type: FileType, permissions: u32) -> NewInode {
    NewInode {
        file_type,
        permissions: permissions & 0o7777,
        umask: caller.umask,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        target: Vec::new(),
    }
}

/// See [`crate::Vfs::link`].
pub(crate) fn link(
    mount: &Mount,
    caller: &Caller,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<Entry> {
    let dir = mount.table.pin(parent);
    mount.check_directory_change(caller, &dir)?;
    let inode = mount.table.pin(ino);
    let _names = dir.names.read();
    // Nobody removes another name of it meanwhile, and believes to know how many are left.
    let _no_removal = inode.lifetime.read();
    let epoch = inode.core.lock().epoch();
    let changing = Changing::begin(mount, &dir, name)?;
    let linked = mount.array.meta.apply_inode(MetaOp::Link { ino, parent, name: name.to_vec() })?;
    let change = NameMade { time: linked.attr.ctime, entries: 1, directories: 0 };
    changing.made(Some(ino), Some(change));
    mount.table.add_lookups(ino, 1);
    let mut core = inode.core.lock();
    // If the inode was an orphan, it has a name again.
    core.removed = false;
    core.orphan = false;
    core.absorb_change(&linked, epoch);
    Ok(Entry { attr: core.merge(linked.attr) })
}

/// Removes a name: see [`crate::Vfs::unlink`] and [`crate::Vfs::rmdir`].
pub(crate) fn remove(
    mount: &Mount,
    caller: &Caller,
    parent: Ino,
    name: &[u8],
    directory: bool,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let child = mount.child(parent, name)?;
        let _tokens = match child {
            Some(child) => mount.take([exclusive(parent), exclusive(child)])?,
            None => mount.take([exclusive(parent)])?,
        };
        if remove_child(mount, caller, (parent, name), directory, child)? {
            return Ok(());
        }
    }
    Err(ErrorKind::Retry.into())
}

/// Removes a name. False if it does not lead to `child`, whose token the caller holds, if others
/// may have changed it.
fn remove_child(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    directory: bool,
    child: Option<Ino>,
) -> Result<bool> {
    let dir = mount.table.pin(parent);
    let dir_attr = mount.check_directory_change(caller, &dir)?;
    let _names = dir.names.write();
    if name == b"." || name == b".." {
        // The metadata knows the error for each of them.
        mount.array.meta.apply(removal(parent, name, directory, false))?;
        return Ok(true);
    }
    let found = find(mount, &dir, name)?;
    if mount.tokens.is_some() && child != Some(found.ino) {
        return Ok(false);
    }
    let found_attr = found.attr(mount)?;
    check_sticky(caller, &dir_attr, &found_attr)?;
    let inode = mount.table.pin(found.ino);
    let _last_name = inode.lifetime.write();
    // An open directory can still be listed, as empty, without the metadata.
    let open = !directory && counts_as_open(mount, caller, &inode);
    let changing = Changing::begin(mount, &dir, name)?;
    let _leaving = Leaving::begin(&inode);
    let file = if open { None } else { file_of(&inode) };
    let content = file.as_ref().map(|file| file.content.write());
    let later = if directory || open { None } else { remove_later(mount, &dir, name, &inode)? };
    let (removed, time) = match later {
        Some(done) => done,
        None => {
            let reply = mount.array.meta.apply_timed(removal(parent, name, directory, open));
            match reply.inspect_err(|_| mount.let_go_if_nameless(&inode))? {
                (MetaReply::Removed(Some(removed)), time) => (removed, time),
                _ => return Err(wrong_reply()),
            }
        }
    };
    let directories = -i32::from(directory);
    changing.made(None, Some(NameMade { time, entries: -1, directories }));
    lost_name(mount, &inode, (&found_attr, time), removed, (open, content));
    Ok(true)
}

/// The contents in memory of a file that is about to lose a name, and goes with it. The caller
/// locks them until the file is discarded: the disks may be told of the removal at once, and a
/// strip that came to them afterwards would stay for ever.
fn file_of(inode: &InodeState) -> Option<Arc<FileState>> {
    inode.core.lock().file.clone()
}

fn removal(parent: Ino, name: &[u8], directory: bool, open: bool) -> MetaOp {
    let name = name.to_vec();
    if directory {
        MetaOp::Rmdir { parent, name, open }
    } else {
        MetaOp::Unlink { parent, name, open }
    }
}

/// Notes that an inode lost a name. The caller holds `lifetime` exclusively.
fn lost_name(
    mount: &Mount,
    inode: &InodeState,
    (last, time): (&Attr, Timestamp),
    removed: Removed,
    (open, content): (bool, Option<WatchedWriteGuard<'_, Content>>),
) {
    if removed.links > 0 {
        inode.core.lock().keeps_name();
        return;
    }
    {
        let mut core = inode.core.lock();
        core.set_removed(*last, time);
        core.orphan = open;
    }
    if open {
        mount.let_go_if_nameless(inode);
    } else {
        mount.discard_held(inode, content);
    }
}

/// See [`crate::Vfs::rename`].
pub(crate) fn rename(
    mount: &Mount,
    caller: &Caller,
    (parent, name): (Ino, &[u8]),
    (new_parent, new_name): (Ino, &[u8]),
    mode: RenameMode,
) -> Result<Renamed> {
    for _ in 0..ATTEMPTS {
        let children = [mount.child(parent, name)?, mount.child(new_parent, new_name)?];
        // A file that is not there is held as its directory is.
        let inos = [children[0].unwrap_or(parent), children[1].unwrap_or(new_parent)];
        let [source, target] = inos.map(exclusive);
        let _tokens = mount.take([exclusive(parent), exclusive(new_parent), source, target])?;
        let names = [(parent, name), (new_parent, new_name)];
        if let Some(renamed) = rename_children(mount, caller, names, mode, children)? {
            return Ok(renamed);
        }
    }
    Err(ErrorKind::Retry.into())
}

/// Renames. `None` if the names do not lead to `children`, whose tokens the caller holds, if others
/// may have changed them.
fn rename_children(
    mount: &Mount,
    caller: &Caller,
    [(parent, name), (new_parent, new_name)]: [(Ino, &[u8]); 2],
    mode: RenameMode,
    children: [Option<Ino>; 2],
) -> Result<Option<Renamed>> {
    let dirs = (mount.table.pin(parent), mount.table.pin(new_parent));
    let attr = mount.check_directory_change(caller, &dirs.0)?;
    let new_attr = mount.check_directory_change(caller, &dirs.1)?;
    let _names = lock_names(&dirs.0, &dirs.1);
    let source = find(mount, &dirs.0, name)?;
    let target = match find(mount, &dirs.1, new_name) {
        Ok(target) => Some(target),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let found = [Some(source.ino), target.as_ref().map(|target| target.ino)];
    if mount.tokens.is_some() && found != children {
        return Ok(None);
    }
    let source_attr = source.attr(mount)?;
    check_sticky(caller, &attr, &source_attr)?;
    let moved = mount.table.pin(source.ino);
    check_parent_change(mount, caller, &moved, &source_attr, parent != new_parent)?;
    let target_attr = target.as_ref().map(|target| target.attr(mount)).transpose()?;
    if let Some(target) = target_attr.as_ref().filter(|_| mode != RenameMode::NoReplace) {
        check_sticky(caller, &new_attr, target)?;
        if mode == RenameMode::Exchange {
            let other = mount.table.pin(target.ino);
            check_parent_change(mount, caller, &other, target, parent != new_parent)?;
        }
    }
    let other = target_attr.filter(|target| target.ino != source.ino);
    let victim = other.map(|target| (mount.table.pin(target.ino), target));
    let _last_name = victim.as_ref().map(|(victim, _)| victim.lifetime.write());
    let open = victim.as_ref().is_some_and(|(victim, attr)| {
        attr.file_type != FileType::Directory && counts_as_open(mount, caller, victim)
    });
    let changing =
        [Changing::begin(mount, &dirs.0, name)?, Changing::begin(mount, &dirs.1, new_name)?];
    let _leaving = victim.as_ref().map(|(victim, _)| Leaving::begin(victim));
    let file = victim.as_ref().filter(|_| !open).and_then(|(victim, _)| file_of(victim));
    let content = file.as_ref().map(|file| file.content.write());
    let (name, new_name) = (name.to_vec(), new_name.to_vec());
    let op = MetaOp::Rename { parent, name, new_parent, new_name, mode, open };
    let reply = mount.array.meta.apply_timed(op);
    moved.core.lock().forget();
    let (reply, time) = reply.inspect_err(|_| {
        victim.iter().for_each(|(victim, _)| mount.let_go_if_nameless(victim));
    })?;
    // Two names of one inode stay as they are; nothing is known of them from here on.
    let mut renamed = Renamed::default();
    if target_attr.is_none_or(|target| target.ino != source.ino) {
        let left = target_attr.filter(|_| mode == RenameMode::Exchange).map(|target| target.ino);
        renamed.moved = [Some(source.ino), left];
        let [old, new] = changing;
        old.made(left, None);
        new.made(Some(source.ino), None);
    }
    match (reply, victim.as_ref()) {
        (MetaReply::Removed(Some(removed)), Some((victim, attr))) if removed.ino == victim.ino => {
            lost_name(mount, victim, (attr, time), removed, (open, content));
        }
        (MetaReply::Removed(_), Some((victim, _))) => victim.core.lock().keeps_name(),
        (MetaReply::Removed(_), None) => {}
        _ => return Err(wrong_reply()),
    }
    Ok(Some(renamed))
}

/// Whether a file that is about to lose a name stays for handles: those that are open here, or one
/// for a program that has just looked it up (`inode/kept_open.rs`). The caller holds `lifetime`
/// exclusively. An open directory needs no such thing: it can still be listed, as empty.
fn counts_as_open(mount: &Mount, caller: &Caller, inode: &Pinned) -> bool {
    if mount.table.handles(inode.ino) > 0 {
        return true;
    }
    let now = mount.array.clock.monotonic();
    if mount.tokens.is_some() || !mount.table.is_found_by_others(inode.ino, caller.pid, now) {
        return false;
    }
    mount.table.add_handle(inode.ino);
    let is_kept = mount.kept_open.keep(inode.clone(), now);
    if !is_kept {
        mount.table.remove_handle(inode.ino);
    }
    is_kept
}

/// Locks the names of one or two directories, always in the order of their numbers.
fn lock_names<'a>(
    one: &'a Arc<InodeState>,
    other: &'a Arc<InodeState>,
) -> (WatchedWriteGuard<'a, ()>, Option<WatchedWriteGuard<'a, ()>>) {
    if one.ino == other.ino {
        return (one.names.write(), None);
    }
    let (first, second) = if one.ino < other.ino { (one, other) } else { (other, one) };
    let guard = first.names.write();
    (guard, Some(second.names.write()))
}

/// Checks that the caller may move an inode to another directory. If it is a directory itself, it
/// is written to, because its `..` changes.
fn check_parent_change(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    attr: &Attr,
    moves: bool,
) -> Result<()> {
    if moves && attr.file_type == FileType::Directory {
        mount.check_access(caller, inode, WRITE)?;
    }
    Ok(())
}
