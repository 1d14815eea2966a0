//! Turns each request into one call of the [`Vfs`]: unpacks the arguments, makes the call, and
//! packs the answer.

use crate::abi::{self, InHeader, Opcode, fopen, open_flag, setattr_flag};
use crate::late::{Asking, LateAnswers};
use crate::locks;
use crate::notify::Notifier;
use crate::policy::{OpenModes, cache_time};
use crate::reply::{self, Valid};
use crate::session::TRANSFER_BYTES_MAX;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use strake_client::Vfs;
use strake_client::mode::AccessTimes;
use strake_client::vfs::{
    DirItem, Entry, FallocateMode, Handle, LockDone, MakeNode, NameMark, OpenFlags, Opened,
    SeekFor, SetAttr, SetTime,
};
use strake_env::sync::Mutex;
use strake_proto::meta::{RenameMode, XattrMode};
use strake_proto::{Attr, Caller, Error, ErrorKind, FileType, Groups, Ino, Result, Timestamp};

/// The end of every name in a listing is aligned to this many bytes (`fuse_dirent`).
const DIRENT_ALIGNMENT: usize = 8;

/// The answer to a request.
pub(crate) enum Answer {
    /// No reply. FORGET and INTERRUPT have none.
    Silence,
    /// Success without contents.
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// The first bytes of the data buffer.
    Data(usize),
    /// The number of bytes that were written.
    Written(u32),
}

/// Answers requests; see the head of this file.
pub(crate) struct Adapter {
    vfs: Arc<dyn Vfs>,
    modes: OpenModes,
    /// The handles of files that are open the direct way. They are few beside the cached ones.
    direct: Mutex<HashMap<Handle, ()>>,
    notifier: Arc<Notifier>,
    late: LateAnswers,
    /// How long the kernel may cache names, and attributes that come with them.
    valid: Duration,
}

/// The request's body. Its parts are taken from the front.
struct Body<'a> {
    rest: &'a [u8],
}

fn malformed() -> Error {
    Error::new(ErrorKind::Invalid, "the kernel's request is too short")
}

impl<'a> Body<'a> {
    /// Takes the fixed part that `decode` reads.
    fn take<T>(&mut self, size: usize, decode: fn(&[u8]) -> Option<T>) -> Result<T> {
        let value = decode(self.rest).ok_or_else(malformed)?;
        self.rest = &self.rest[size..];
        Ok(value)
    }

    /// Takes a name up to its zero byte.
    fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    /// Takes exactly `length` bytes.
    fn bytes(&mut self, length: u32) -> Result<&'a [u8]> {
        self.rest.get(..length as usize).ok_or_else(malformed)
    }
}

macro_rules! take {
    ($body:ident, $name:ident) => {
        $body.take(abi::$name::SIZE, abi::$name::decode)
    };
}

impl Adapter {
    /// An adapter to `vfs`. `direct_maps` says whether the kernel can map files that are open the
    /// direct way.
    pub(crate) fn new(vfs: Arc<dyn Vfs>, direct_maps: bool, notifier: Arc<Notifier>) -> Adapter {
        let is_shared = vfs.is_shared();
        let (modes, valid) = (OpenModes::new(direct_maps, is_shared), cache_time(is_shared));
        let (direct, late) = (Mutex::default(), LateAnswers::default());
        Adapter { vfs, modes, direct, notifier, late, valid }
    }

    /// How long the kernel may keep the attributes that answer a question about an inode. If they
    /// are given up before the answer is there, the kernel is told so after it has asked, and does
    /// not believe the answer. An inode that it learns of with the answer is no exception: the
    /// thread that gives its attributes up tells the kernel until that knows the inode
    /// (`give_up.rs` of `strake-client`).
    ///
    /// Answers to changes of an inode that the kernel knows are not protected so: it believes them.
    fn valid_of(&self, ino: Ino, asking: Asking) -> Duration {
        self.unless_late(ino, asking, self.vfs.attributes_hold(ino).unwrap_or(self.valid))
    }

    /// As [`Adapter::valid_of`], for the attributes in the answer to a lookup.
    fn valid_with_name(&self, ino: Ino, asking: Asking) -> Duration {
        self.unless_late(ino, asking, self.hold_with_name(ino))
    }

    /// As [`Adapter::valid_of`], for an inode that the request has made.
    fn valid_of_new(&self, attr: &Attr, asking: Asking) -> Duration {
        if attr.file_type == FileType::Directory {
            self.late.made(attr.ino, asking);
        }
        self.hold_with_name(attr.ino)
    }

    /// Kernels before Linux 6.13 may take an inode for new although they forgot it meanwhile, and
    /// with it what they were told. The first that we can tell from these is 6.16.
    fn hold_with_name(&self, ino: Ino) -> Duration {
        let knows_what_it_forgot = self.notifier.has_epochs();
        let hold = if knows_what_it_forgot { self.vfs.attributes_hold(ino) } else { None };
        hold.unwrap_or(self.valid)
    }

    /// `valid`, or no time for attributes that a change may have made old already.
    fn unless_late(&self, ino: Ino, asking: Asking, valid: Duration) -> Duration {
        if valid.is_zero() || self.late.show(ino, asking) { valid } else { Duration::ZERO }
    }

    /// The request has changed an inode, or may have, and the kernel only marks its attributes as
    /// out of date; see `late.rs`.
    fn changed(&self, ino: Ino, asking: Asking) {
        if self.late.changed(ino, asking) {
            self.notifier.attributes_changed(ino);
        }
    }

    /// How long the kernel may keep a name that an operation has answered, which was announced
    /// before by `show_name`.
    fn valid_name(&self, parent: Ino, mark: NameMark) -> Duration {
        self.vfs.name_holds(parent, mark).unwrap_or(self.valid)
    }

    /// Whether other mounts change the file system at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.vfs.is_shared()
    }

    /// Whether reads must come here, because each of them moves the access time.
    fn notes_every_read(&self) -> bool {
        self.vfs.mode().access_times == AccessTimes::Always
    }

    /// Answers one request. Reads put their bytes into `data`.
    pub(crate) fn answer(
        &self,
        header: &InHeader,
        opcode: Opcode,
        body: &[u8],
        data: &mut [u8],
    ) -> Result<Answer> {
        let mut body = Body { rest: body };
        let ino = Ino(header.nodeid);
        let (caller, asking) = (&caller(header), self.late.asking(header.pid));
        match opcode {
            Opcode::Lookup => self.lookup(caller, ino, asking, &mut body),
            Opcode::Forget => {
                self.vfs.forget(ino, take!(body, ForgetIn)?.nlookup);
                Ok(Answer::Silence)
            }
            Opcode::BatchForget => self.batch_forget(&mut body),
            Opcode::Interrupt => self.interrupt(&mut body),
            Opcode::GetLk | Opcode::SetLk if self.is_shared() => self.lock(opcode, ino, &mut body),
            Opcode::GetAttr | Opcode::Statx => {
                let attr = self.vfs.getattr(ino)?;
                let is_statx = opcode == Opcode::Statx;
                let reply = if is_statx { reply::statx_reply } else { reply::attr_reply };
                Ok(Answer::Bytes(reply(&attr, self.valid_of(ino, asking))))
            }
            Opcode::SetAttr => self.setattr(caller, ino, &mut body),
            Opcode::ReadLink => Ok(Answer::Bytes(self.vfs.readlink(ino)?)),
            Opcode::Access => {
                self.vfs.access(caller, ino, take!(body, AccessIn)?.mask)?;
                Ok(Answer::Empty)
            }
            Opcode::Symlink
            | Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Link
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2 => self.change_names(opcode, caller, ino, asking, &mut body),
            Opcode::Open | Opcode::Create | Opcode::TmpFile => {
                self.open(opcode, caller, ino, asking, &mut body)
            }
            Opcode::SetXattr | Opcode::RemoveXattr | Opcode::Fallocate => {
                let outcome = self.change_inode(opcode, caller, ino, &mut body);
                self.changed(ino, asking);
                outcome.map(empty)
            }
            Opcode::GetXattr | Opcode::ListXattr => self.xattr(opcode, caller, ino, &mut body),
            // Cookies hold for ever, so an open directory needs no state here.
            // Where every listing moves the access time, every listing must come here.
            Opcode::OpenDir if self.is_shared() || self.notes_every_read() => Ok(Answer::Bytes(
                abi::OpenOut { fh: 0, open_flags: 0, backing_id: 0 }.encode().to_vec(),
            )),
            // After this answer the kernel opens directories by itself and remembers listings until
            // they change.
            Opcode::OpenDir => Err(ErrorKind::NoSystem.into()),
            Opcode::ReleaseDir => Ok(Answer::Empty),
            Opcode::ReadDir => self.readdir(ino, asking, &mut body, false),
            Opcode::ReadDirPlus => self.readdir(ino, asking, &mut body, true),
            Opcode::StatFs => self.statfs(),
            Opcode::SyncFs => self.vfs.sync().map(|_| Answer::Empty),
            Opcode::Destroy => Ok(Answer::Empty),
            Opcode::Ioctl => Err(ErrorKind::NoIoctl.into()),
            Opcode::Init => Err(Error::new(ErrorKind::Invalid, "a second INIT")),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                self.copy_range(opcode, caller, &mut body)
            }
            _ => self.file(opcode, caller, ino, &mut body, data),
        }
    }

    /// Clears setuid, setgid and capabilities before contents change. The write itself does not do
    /// that, because what is cleared depends on the groups of the caller.
    fn kill_privileges(&self, caller: &Caller, ino: Ino, handle: u64) -> Result<()> {
        let change = SetAttr { kill_privileges: true, ..SetAttr::default() };
        self.vfs.setattr(caller, ino, Some(Handle(handle)), &change).map(drop)
    }

    /// Ends a wait for a lock. All other requests end by themselves.
    fn interrupt(&self, body: &mut Body<'_>) -> Result<Answer> {
        if self.is_shared() {
            self.vfs.cancel_lock(take!(body, InterruptIn)?.unique);
        }
        Ok(Answer::Silence)
    }

    /// Locks, or says who is in the way; does not wait for others.
    fn lock(&self, opcode: Opcode, ino: Ino, body: &mut Body<'_>) -> Result<Answer> {
        let asked = take!(body, LkIn)?;
        let (handle, want) = (Handle(asked.fh), locks::want(ino, &asked)?);
        if opcode == Opcode::SetLk {
            return self.vfs.set_lock(handle, &want).map(empty);
        }
        want.mode.ok_or(ErrorKind::Invalid)?;
        let found = self.vfs.test_lock(handle, &want)?;
        Ok(Answer::Bytes(locks::found(found).to_vec()))
    }

    /// Answers SETLKW: calls `then` once the lock is there, perhaps on another thread. So a request
    /// that waits for other programs holds no serving thread.
    pub(crate) fn lock_later(&self, header: &InHeader, body: &[u8], then: LockDone) {
        let asked = Body { rest: body }.take(abi::LkIn::SIZE, abi::LkIn::decode);
        let wanted = asked
            .and_then(|asked| Ok((Handle(asked.fh), locks::want(Ino(header.nodeid), &asked)?)));
        match wanted {
            // INTERRUPT names the request by this number, which is never used again.
            Ok((handle, want)) => self.vfs.set_lock_later(handle, &want, header.unique, then),
            Err(error) => then(Err(error)),
        }
    }

    fn lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        asking: Asking,
        body: &mut Body<'_>,
    ) -> Result<Answer> {
        let name = body.name()?;
        // The kernel keeps no `.` and `..`, of which the token of a directory says nothing.
        let mark = self.vfs.show_name(parent);
        match self.vfs.lookup(caller, parent, name) {
            Ok(entry) => {
                let attr = self.valid_with_name(entry.attr.ino, asking);
                let valid = Valid { name: self.valid_name(parent, mark), attr };
                Ok(Answer::Bytes(reply::entry_reply(&entry, valid)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let valid = self.valid_name(parent, mark);
                Ok(Answer::Bytes(reply::negative_entry_reply(valid)))
            }
            Err(error) => Err(error),
        }
    }

    fn batch_forget(&self, body: &mut Body<'_>) -> Result<Answer> {
        let count = take!(body, BatchForgetIn)?.count;
        for _ in 0..count {
            let one = take!(body, ForgetOne)?;
            self.vfs.forget(Ino(one.nodeid), one.nlookup);
        }
        Ok(Answer::Silence)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, body: &mut Body<'_>) -> Result<Answer> {
        let asked = take!(body, SetAttrIn)?;
        let has = |flag: u32| asked.valid & flag != 0;
        let time = |set: u32, now: u32, seconds: i64, nanos: u32| {
            has(set).then(|| {
                if has(now) { SetTime::Now } else { SetTime::At(Timestamp { seconds, nanos }) }
            })
        };
        let change = SetAttr {
            permissions: has(setattr_flag::MODE).then_some(asked.mode & 0o7777),
            uid: has(setattr_flag::UID).then_some(asked.uid),
            gid: has(setattr_flag::GID).then_some(asked.gid),
            size: has(setattr_flag::SIZE).then_some(asked.size),
            atime: time(
                setattr_flag::ATIME,
                setattr_flag::ATIME_NOW,
                asked.atime,
                asked.atime_nanos,
            ),
            mtime: time(
                setattr_flag::MTIME,
                setattr_flag::MTIME_NOW,
                asked.mtime,
                asked.mtime_nanos,
            ),
            ctime: has(setattr_flag::CTIME)
                .then_some(Timestamp { seconds: asked.ctime, nanos: asked.ctime_nanos }),
            kill_privileges: has(setattr_flag::KILL_SUIDGID),
        };
        let handle = has(setattr_flag::FH).then_some(Handle(asked.fh));
        let attr = self.vfs.setattr(caller, ino, handle, &change)?;
        Ok(Answer::Bytes(reply::attr_reply(&attr, self.valid)))
    }

    fn change_names(
        &self,
        opcode: Opcode,
        caller: &Caller,
        parent: Ino,
        asking: Asking,
        body: &mut Body<'_>,
    ) -> Result<Answer> {
        if matches!(opcode, Opcode::Rename | Opcode::Rename2) {
            return self.rename(opcode, caller, parent, asking, body);
        }
        if matches!(opcode, Opcode::Unlink | Opcode::Rmdir) {
            let name = body.name()?;
            let outcome = match opcode {
                Opcode::Unlink => self.vfs.unlink(caller, parent, name),
                _ => self.vfs.rmdir(caller, parent, name),
            };
            self.changed(parent, asking);
            return outcome.map(empty);
        }
        let mark = self.vfs.show_name(parent);
        let outcome = self.make(opcode, caller, parent, body);
        self.changed(parent, asking);
        let entry = outcome?;
        let attr = match opcode {
            // The kernel believes these attributes, also if the file is written meanwhile.
            Opcode::Link => Duration::ZERO,
            _ => self.valid_of_new(&entry.attr, asking),
        };
        let valid = Valid { name: self.valid_name(parent, mark), attr };
        Ok(Answer::Bytes(reply::entry_reply(&entry, valid)))
    }

    fn make(
        &self,
        opcode: Opcode,
        caller: &Caller,
        parent: Ino,
        body: &mut Body<'_>,
    ) -> Result<Entry> {
        match opcode {
            Opcode::Symlink => {
                let name = body.name()?;
                self.vfs.symlink(caller, parent, name, body.name()?)
            }
            Opcode::Mknod => {
                let asked = take!(body, MknodIn)?;
                let file_type = FileType::from_mode(asked.mode).ok_or(ErrorKind::Invalid)?;
                let node =
                    MakeNode { file_type, permissions: asked.mode & 0o7777, rdev: asked.rdev };
                let caller = Caller { umask: asked.umask, ..caller.clone() };
                self.vfs.mknod(&caller, parent, body.name()?, node)
            }
            Opcode::Mkdir => {
                let asked = take!(body, MkdirIn)?;
                let caller = Caller { umask: asked.umask, ..caller.clone() };
                self.vfs.mkdir(&caller, parent, body.name()?, asked.mode & 0o7777)
            }
            _ => {
                let asked = take!(body, LinkIn)?;
                self.vfs.link(caller, Ino(asked.oldnodeid), parent, body.name()?)
            }
        }
    }

    fn rename(
        &self,
        opcode: Opcode,
        caller: &Caller,
        parent: Ino,
        asking: Asking,
        body: &mut Body<'_>,
    ) -> Result<Answer> {
        let (new_parent, flags) = match opcode {
            Opcode::Rename => (take!(body, RenameIn)?.newdir, 0),
            _ => {
                let asked = take!(body, Rename2In)?;
                (asked.newdir, asked.flags)
            }
        };
        let mode = match flags {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let (name, new_parent) = (body.name()?, Ino(new_parent));
        let outcome = self.vfs.rename(caller, (parent, name), (new_parent, body.name()?), mode);
        let moved = outcome.as_ref().map_or([None; 2], |renamed| renamed.moved);
        for changed in [Some(parent), Some(new_parent)].into_iter().chain(moved).flatten() {
            self.changed(changed, asking);
        }
        outcome.map(|_| Answer::Empty)
    }

    fn open(
        &self,
        opcode: Opcode,
        caller: &Caller,
        ino: Ino,
        asking: Asking,
        body: &mut Body<'_>,
    ) -> Result<Answer> {
        if opcode == Opcode::Open {
            let asked = take!(body, OpenIn)?;
            let flags = open_flags(asked.flags);
            let opened = self.vfs.open(caller, ino, flags)?;
            let is_empty = || self.vfs.getattr(ino).is_ok_and(|attr| attr.size == 0);
            return Ok(Answer::Bytes(self.opened(ino, flags, opened, is_empty).to_vec()));
        }
        let asked = take!(body, CreateIn)?;
        let flags = open_flags(asked.flags);
        let caller = Caller { umask: asked.umask, ..caller.clone() };
        let permissions = asked.mode & 0o7777;
        let mark = self.vfs.show_name(ino);
        let (entry, opened) = if opcode == Opcode::TmpFile {
            self.vfs.tmpfile(&caller, ino, permissions, flags)?
        } else {
            let exclusive = asked.flags & open_flag::EXCL != 0;
            let name = body.name()?;
            let outcome = self.vfs.create(&caller, ino, name, permissions, flags, exclusive);
            if outcome.as_ref().map_or(true, |(_, opened)| opened.is_new) {
                self.changed(ino, asking);
            }
            outcome?
        };
        let attr = match opened.is_new {
            true => self.valid_of_new(&entry.attr, asking),
            false => self.valid,
        };
        let valid = Valid { name: self.valid_name(ino, mark), attr };
        let mut out = reply::entry_reply(&entry, valid);
        // The kernel does not know the inode before it is answered, and others may wait until it
        // does. So nothing is asked here.
        let is_empty = || entry.attr.size == 0;
        out.extend_from_slice(&self.opened(entry.attr.ino, flags, opened, is_empty));
        Ok(Answer::Bytes(out))
    }

    fn opened(
        &self,
        ino: Ino,
        flags: OpenFlags,
        opened: Opened,
        is_empty: impl FnOnce() -> bool,
    ) -> [u8; abi::OpenOut::SIZE] {
        // close(2) has no error to report. fsync(2) reports them
        // (docs/decisions/0015-short-requests.md). Beside other mounts it releases locks.
        let mut open_flags = if self.is_shared() { 0 } else { fopen::NOFLUSH };
        if self.modes.open(ino, flags, self.notes_every_read(), is_empty) {
            self.direct.lock().insert(opened.handle, ());
            open_flags |= fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        } else {
            self.vfs.pages_are_kept(opened.handle);
            if opened.keep_cache {
                open_flags |= fopen::KEEP_CACHE;
            }
        }
        abi::OpenOut { fh: opened.handle.0, open_flags, backing_id: 0 }.encode()
    }

    fn xattr(
        &self,
        opcode: Opcode,
        caller: &Caller,
        ino: Ino,
        body: &mut Body<'_>,
    ) -> Result<Answer> {
        let (size, value) = match opcode {
            Opcode::GetXattr => {
                let size = take!(body, GetxattrIn)?.size;
                (size, self.vfs.getxattr(caller, ino, body.name()?)?)
            }
            _ => {
                let size = take!(body, GetxattrIn)?.size;
                let mut list = Vec::new();
                for name in self.vfs.listxattr(caller, ino)? {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                (size, list)
            }
        };
        match size as usize {
            0 => {
                let out = abi::GetxattrOut { size: value.len() as u32 };
                Ok(Answer::Bytes(out.encode().to_vec()))
            }
            size if value.len() > size => Err(ErrorKind::Range.into()),
            _ => Ok(Answer::Bytes(value)),
        }
    }

    fn change_inode(
        &self,
        opcode: Opcode,
        caller: &Caller,
        ino: Ino,
        body: &mut Body<'_>,
    ) -> Result<()> {
        match opcode {
            Opcode::Fallocate => self.fallocate(caller, ino, body),
            Opcode::RemoveXattr => self.vfs.removexattr(caller, ino, body.name()?),
            _ => self.setxattr(caller, ino, body),
        }
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, body: &mut Body<'_>) -> Result<()> {
        let asked = take!(body, SetxattrIn)?;
        let name = body.name()?;
        let value = body.bytes(asked.size)?;
        let mode = match asked.flags {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let clear_setgid = asked.setxattr_flags & abi::SETXATTR_KILL_SGID != 0;
        self.vfs.setxattr(caller, ino, name, value, mode, clear_setgid)
    }

    fn readdir(&self, ino: Ino, asking: Asking, body: &mut Body<'_>, plus: bool) -> Result<Answer> {
        let asked = take!(body, ReadIn)?;
        // A request may claim any size. The reply must stay within our limit.
        let room = (asked.size as usize).min(TRANSFER_BYTES_MAX);
        let mut out = Vec::with_capacity(room);
        self.vfs.readdir(ino, asked.offset, plus, &mut |item| {
            let head = if plus { abi::EntryOut::SIZE + abi::AttrOut::SIZE } else { 0 };
            let length = abi::DirentOut::SIZE + item.name.len();
            if out.len() + head + length.next_multiple_of(DIRENT_ALIGNMENT) > room {
                return false;
            }
            if plus {
                // The kernel takes an entry in under the epoch at that time, not that at which it
                // asked. So it would believe a name that was given up in between.
                let counted = counted_attr(item).filter(|_| !self.is_shared());
                let attr = counted
                    .map_or(Duration::ZERO, |attr| self.unless_late(attr.ino, asking, self.valid));
                reply::put_entry(&mut out, counted, Valid { name: self.valid, attr });
                if let Some(attr) = counted {
                    self.vfs.remember(attr.ino);
                }
            }
            put_dirent(&mut out, item);
            true
        })?;
        Ok(Answer::Bytes(out))
    }

    fn statfs(&self) -> Result<Answer> {
        let space = self.vfs.statfs()?;
        // Linux counts `f_blocks` in units of `f_bsize`, and POSIX in units of `f_frsize`. So both
        // are equal here.
        let unit = 4096;
        let out = abi::StatFsOut {
            blocks: space.total / unit,
            bfree: space.free / unit,
            bavail: space.available / unit,
            files: space.inodes_used.saturating_add(space.inodes_free),
            ffree: space.inodes_free,
            bsize: unit as u32,
            namelen: strake_proto::limits::NAME_BYTES_MAX as u32,
            frsize: unit as u32,
        };
        Ok(Answer::Bytes(out.encode().to_vec()))
    }

    fn file(
        &self,
        opcode: Opcode,
        caller: &Caller,
        ino: Ino,
        body: &mut Body<'_>,
        data: &mut [u8],
    ) -> Result<Answer> {
        match opcode {
            Opcode::Read => {
                let asked = take!(body, ReadIn)?;
                let room = data.get_mut(..asked.size as usize).ok_or_else(malformed)?;
                let handle = Handle(asked.fh);
                if asked.read_flags & abi::READ_LOCKOWNER != 0 {
                    return self.vfs.read(handle, asked.offset, room).map(Answer::Data);
                }
                if let Some(pages) = self.modes.pages(ino) {
                    pages.note_filled();
                }
                self.vfs.fill(handle, asked.offset, room).map(Answer::Data)
            }
            Opcode::Write => self.write(caller, ino, body),
            Opcode::Flush if self.is_shared() => {
                let asked = take!(body, FlushIn)?;
                self.vfs.unlock_at_close(Handle(asked.fh), asked.lock_owner).map(empty)
            }
            Opcode::Flush => self.vfs.flush(Handle(take!(body, FlushIn)?.fh)).map(empty),
            Opcode::Fsync => {
                // `fdatasync` (a flag) does the same.
                self.vfs.fsync(Handle(take!(body, FsyncIn)?.fh)).map(empty)
            }
            Opcode::FsyncDir => self.vfs.fsyncdir(ino).map(empty),
            Opcode::Release => {
                let asked = take!(body, ReleaseIn)?;
                let handle = Handle(asked.fh);
                let direct = self.direct.lock().remove(&handle).is_some();
                if !self.modes.close(ino, direct) {
                    return Err(Error::new(ErrorKind::Invalid, "a RELEASE of what is not open"));
                }
                if self.is_shared() {
                    let has_flock = asked.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
                    self.vfs.unlock_at_release(handle, has_flock.then_some(asked.lock_owner));
                }
                self.vfs.release(handle);
                Ok(Answer::Empty)
            }
            Opcode::Lseek => {
                let asked = take!(body, LseekIn)?;
                let what = match asked.whence {
                    3 => SeekFor::Data,
                    4 => SeekFor::Hole,
                    _ => return Err(ErrorKind::Invalid.into()),
                };
                let offset = self.vfs.seek(Handle(asked.fh), asked.offset, what)?;
                Ok(Answer::Bytes(abi::LseekOut { offset }.encode().to_vec()))
            }
            _ => Err(ErrorKind::NoSystem.into()),
        }
    }

    fn write(&self, caller: &Caller, ino: Ino, body: &mut Body<'_>) -> Result<Answer> {
        let asked = take!(body, WriteIn)?;
        let bytes = body.bytes(asked.size)?;
        let (handle, start) = (Handle(asked.fh), asked.offset);
        let range = start..start.checked_add(bytes.len() as u64).ok_or(ErrorKind::FileTooBig)?;
        let has = |flag: u32| asked.write_flags & flag != 0;
        if has(abi::WRITE_CACHE) {
            let put = |part: Range<u64>| {
                let bytes = &bytes[(part.start - start) as usize..(part.end - start) as usize];
                self.vfs.write_mapped(handle, part.start, bytes)
            };
            let written = match self.modes.pages(ino) {
                Some(pages) => pages.write_back(range, put)?,
                None => put(range)?,
            };
            return Ok(Answer::Written(written as u32));
        }
        if has(abi::WRITE_KILL_SUIDGID) {
            self.kill_privileges(caller, ino, asked.fh)?;
        }
        let pages = has(abi::WRITE_LOCKOWNER).then(|| self.modes.pages(ino)).flatten();
        let under_way = pages.map(|pages| pages.begin(range));
        let written = self.vfs.write(handle, start, bytes);
        // Pages are dropped after a failed write, too. Its bytes may be there, although not
        // durable as they should be.
        let dropped = match under_way {
            Some(write) if write.has_pages() => self.notifier.drop_pages_after(ino, write),
            _ => Ok(()),
        };
        let written = written?;
        dropped.map(|()| Answer::Written(written as u32))
    }

    fn fallocate(&self, caller: &Caller, ino: Ino, body: &mut Body<'_>) -> Result<()> {
        // FALLOC_FL_*: KEEP_SIZE 1, PUNCH_HOLE 2, ZERO_RANGE 16. Other flags are not supported.
        let asked = take!(body, FallocateIn)?;
        let mode = match asked.mode {
            0 | 1 => FallocateMode::Allocate { keep_size: asked.mode == 1 },
            3 => FallocateMode::PunchHole,
            0x10 | 0x11 => FallocateMode::ZeroRange { keep_size: asked.mode == 0x11 },
            _ => return Err(ErrorKind::NotSupported.into()),
        };
        let end = asked.offset.checked_add(asked.length).ok_or(ErrorKind::FileTooBig)?;
        // The kernel does not ask us to clear the bits here. The superuser keeps them.
        if caller.uid != 0 {
            self.kill_privileges(caller, ino, asked.fh)?;
        }
        self.vfs.fallocate(Handle(asked.fh), asked.offset..end, mode)
    }

    fn copy_range(&self, opcode: Opcode, caller: &Caller, body: &mut Body<'_>) -> Result<Answer> {
        let asked = take!(body, CopyFileRangeIn)?;
        if asked.flags != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        // The older form's reply has only 32 bits for the number of bytes.
        let most = if opcode == Opcode::CopyFileRange { 1 << 30 } else { u64::MAX };
        if caller.uid != 0 {
            self.kill_privileges(caller, Ino(asked.nodeid_out), asked.fh_out)?;
        }
        let copied = self.vfs.copy_range(
            (Handle(asked.fh_in), asked.off_in),
            (Handle(asked.fh_out), asked.off_out),
            asked.len.min(most),
        )?;
        if opcode == Opcode::CopyFileRange {
            return Ok(Answer::Written(copied as u32));
        }
        let out = abi::CopyFileRangeOut { bytes_copied: copied };
        Ok(Answer::Bytes(out.encode().to_vec()))
    }
}

fn empty((): ()) -> Answer {
    Answer::Empty
}

fn caller(header: &InHeader) -> Caller {
    Caller {
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        umask: 0,
        groups: Groups::OfProcess,
    }
}

fn open_flags(bits: u32) -> OpenFlags {
    let access = bits & open_flag::ACCESS_MODE;
    let has = |flag: u32| bits & flag != 0;
    OpenFlags {
        read: access != open_flag::WRONLY,
        write: access == open_flag::WRONLY || access == open_flag::RDWR,
        append: has(open_flag::APPEND),
        truncate: has(open_flag::TRUNC),
        sync: has(open_flag::DSYNC),
        direct: has(open_flag::DIRECT),
        execute: has(open_flag::EXEC),
        no_atime: has(open_flag::NOATIME),
    }
}

/// The attributes of an entry that the kernel counts as looked up: all but `.` and `..`.
fn counted_attr(item: &DirItem) -> Option<&Attr> {
    let dots = item.name == b"." || item.name == b"..";
    item.attr.as_ref().filter(|_| !dots)
}

fn put_dirent(out: &mut Vec<u8>, item: &DirItem) {
    let head = abi::DirentOut {
        ino: item.ino.0,
        cookie: item.cookie,
        namelen: item.name.len() as u32,
        file_type: item.file_type.mode_bits() >> 12,
    };
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(&item.name);
    out.resize(out.len().next_multiple_of(DIRENT_ALIGNMENT), 0);
}
