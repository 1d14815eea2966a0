//! Messages between a client and the metadata leader.
//!
//! Changes are *entries* of the log: deterministic, numbered per client, applied once. Questions
//! (*queries*) are not logged. Names and values are bytes: Linux promises no encoding.

use crate::attr::{Attr, FileType, Timestamp};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ClientId, ClusterId, Generation, GrantNumber, Ino, NsdId, ObjectId, Version};
use crate::layout::{Code, NsdState, ObjectLayout, PoolMap};
use crate::nsd::ScrubPart;
use crate::units::BlockIndex;
use serde::{Deserialize, Serialize};

/// A directory entry's place in its directory: stored, ascending, below 2⁶³, never reused within
/// the directory. 1 and 2 are `.` and `..`; entries start at 3. Listing goes on *after* a cookie.
pub type Cookie = u64;

/// The extended attribute that tells what a program may do more than who runs it, capabilities(7).
pub const CAPABILITY_NAME: &[u8] = b"security.capability";

/// Where a regular file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileData {
    /// Nowhere: all zeros up to the size.
    Empty,
    /// In the inode; at most `INLINE_BYTES_MAX`; zeros follow up to the size.
    Inline(#[serde(with = "crate::byte_string")] Vec<u8>),
    /// In strips of these objects. One today.
    Objects(Vec<ObjectLayout>),
}

/// An inode as a client needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// What `stat` tells.
    pub attr: Attr,
    /// A regular file's bytes; `Empty` for all else.
    pub data: FileData,
    /// A directory's parent; itself for the root; 0 for all else.
    pub parent: Ino,
    /// Whether it has a POSIX access ACL (a check by mode bits alone will not do).
    pub has_acl: bool,
    /// Whether it has any extended attribute besides ACLs (`security.capability` among them).
    pub has_xattrs: bool,
}

/// One entry of a directory listing. `.` and `..` are not among them: adapters add them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its place.
    pub cookie: Cookie,
    /// Its name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// The inode's type.
    pub file_type: FileType,
    /// The inode, where the query asked for it; of inline data it says only that they are inline.
    pub inode: Option<Inode>,
}

/// A question; changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaQuery {
    /// ▶ [`MetaReply::Inode`]; `NotFound`, `NotDirectory`, `NameTooLong`. `.` and `..` work.
    Lookup {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// ▶ [`MetaReply::Inode`]; `Stale` if it is gone.
    GetInode {
        /// Which.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Entries`].
    ReadDir {
        /// Which directory.
        dir: Ino,
        /// Entries after this; 0 for the first.
        after: Cookie,
        /// At most this many (the leader's limit: 4,096).
        limit: u32,
        /// Whether inodes are wanted, too.
        with_inodes: bool,
    },
    /// ▶ [`MetaReply::Bytes`]: a symbolic link's target.
    ReadLink {
        /// Which.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Bytes`]; `NoAttribute`. POSIX ACLs are `system.posix_acl_access` and
    /// `system.posix_acl_default` in Linux's xattr form.
    GetXattr {
        /// Which.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
    },
    /// ▶ [`MetaReply::Names`].
    ListXattr {
        /// Which.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Counts`].
    Counts,
    /// ▶ [`MetaReply::PendingRanges`]: range deletions not yet applied by every NSD.
    PendingRanges {
        /// With ids above this.
        after: u64,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Hardened`]: units in order of file and place, from this one on.
    Hardened {
        /// The first file.
        ino: Ino,
        /// The first unit in it.
        unit: u64,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Inos`]: inodes without a name.
    Orphans {
        /// Above this.
        after: Ino,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Inodes`]: every inode in order, for check and recovery.
    ScanInodes {
        /// Above this.
        after: Ino,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Done`] if the object is reserved for a file that does not name it yet;
    /// `NotFound`.
    IsReserved {
        /// Which.
        object: ObjectId,
    },
    /// ▶ [`MetaReply::Configuration`].
    Configuration,
    /// ▶ [`MetaReply::Checked`]: walks all records and verifies reference counts.
    Check,
    /// ▶ [`MetaReply::CopyScrubbed`]: verifies a part of a copy of the metadata (log, pages), past
    /// all caches, and mends what is damaged. Nothing that other questions see changes.
    ScrubCopy {
        /// The copy on this NSD, or the next one above.
        nsd: NsdId,
        /// Which part; 0 for the first, then as the reply says.
        part: u64,
    },
}

/// Changes of attributes; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttrChange {
    /// New permission bits (`& 0o7777`). An access ACL's mask and entries follow.
    pub permissions: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New change time; `None` = the entry's time if anything else changes but `atime` alone as
    /// relatime moves it (`quiet`).
    pub ctime: Option<Timestamp>,
    /// Leave `ctime` alone: a relatime update.
    pub quiet: bool,
    /// Clear setuid, and setgid where group execution is set: a write or chown by an
    /// unprivileged caller. Also removes `security.capability`.
    pub kill_privileges: bool,
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// Its type.
    pub file_type: FileType,
    /// Wanted permission bits, before the umask.
    pub permissions: u32,
    /// The caller's umask; not applied where the parent has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the parent is setgid (then the parent's; directories inherit the bit).
    pub gid: u32,
    /// For device files.
    pub rdev: u32,
    /// For symbolic links: the target.
    pub target: Vec<u8>,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// `RENAME_NOREPLACE`: `Exists`.
    NoReplace,
    /// `RENAME_EXCHANGE`: the two change places.
    Exchange,
}

/// How `setxattr` treats an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Either way.
    Set,
    /// `XATTR_CREATE`: `Exists`.
    Create,
    /// `XATTR_REPLACE`: `NoAttribute`.
    Replace,
}

/// A change. `open` names inodes that lose their last name but are open at the client: they
/// become orphans and are reaped by [`MetaOp::Reap`]; others are removed at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaOp {
    /// Makes an inode with a name ▶ `Inode`.
    Create {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// What.
        new: NewInode,
    },
    /// Makes an inode without a name (O_TMPFILE), an orphan of this client ▶ `Inode`.
    CreateOrphan {
        /// The directory whose setgid bit and default ACL count.
        parent: Ino,
        /// What.
        new: NewInode,
    },
    /// Gives an inode one more name ▶ `Inode`. An orphan may get a first one.
    Link {
        /// Which.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// Removes a name of anything but a directory ▶ `Removed`.
    Unlink {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// Whether the inode is open at the client.
        open: bool,
    },
    /// Removes an empty directory ▶ `Removed`.
    Rmdir {
        /// The directory that holds it.
        parent: Ino,
        /// Its name.
        name: Vec<u8>,
        /// Whether it is open at the client.
        open: bool,
    },
    /// Renames ▶ `Removed` (what was replaced, if anything).
    Rename {
        /// Source directory.
        parent: Ino,
        /// Source name.
        name: Vec<u8>,
        /// Target directory.
        new_parent: Ino,
        /// Target name.
        new_name: Vec<u8>,
        /// How an existing target is treated.
        mode: RenameMode,
        /// Whether the replaced inode is open at the client.
        open: bool,
    },
    /// Changes attributes ▶ `Inode`.
    SetAttr {
        /// Which.
        ino: Ino,
        /// What.
        change: AttrChange,
    },
    /// Reserves a new object for a file; linked by a later `Update`, else deleted at the
    /// client's end ▶ `Object`.
    NewObject {
        /// For which file.
        ino: Ino,
    },
    /// Commits what the client holds of a file's contents ▶ `Inode`. The data below `size` is
    /// stable already. An object that `data` no longer names is queued for deletion.
    Update {
        /// Which.
        ino: Ino,
        /// New size.
        size: u64,
        /// New place of the bytes; `None` leaves it.
        data: Option<FileData>,
        /// Change of bytes held on disks.
        allocated_delta: i64,
        /// New times; `ctime` is never moved back.
        mtime: Option<Timestamp>,
        /// See `mtime`.
        ctime: Option<Timestamp>,
    },
    /// Cuts or extends a file to `size`, and queues the blocks from `from_block` on for deletion
    /// at `version` ▶ `Inode`. To 0: the object is dropped.
    Truncate {
        /// Which.
        ino: Ino,
        /// New size.
        size: u64,
        /// First block wholly beyond the new size; `None` if none was ever written.
        from_block: Option<BlockIndex>,
        /// The tombstones' version.
        version: Version,
        /// Change of bytes held on disks.
        allocated_delta: i64,
    },
    /// Queues blocks `from..to` of a file's object for deletion ▶ `Inode`.
    DeleteBlocks {
        /// Which.
        ino: Ino,
        /// First block.
        from: BlockIndex,
        /// One past the last.
        to: BlockIndex,
        /// The tombstones' version.
        version: Version,
        /// Change of bytes held on disks.
        allocated_delta: i64,
    },
    /// Hardens a small write of a file that has an object: keeps the bytes here until they are in
    /// stable strips ([`MetaOp::Folded`]) ▶ `Inode`. All data below `size` is then stable, here or
    /// in strips. Cutting the file and punching holes cut what is kept.
    Harden {
        /// Which.
        ino: Ino,
        /// New size, not below the present one.
        size: u64,
        /// Change of bytes held on disks.
        allocated_delta: i64,
        /// New times; `ctime` is never moved back.
        mtime: Option<Timestamp>,
        /// See `mtime`.
        ctime: Option<Timestamp>,
        /// The units, ascending; at most `limits::HARDENED_UNITS_MAX`. One that is kept already
        /// is replaced.
        units: Vec<HardenedUnit>,
    },
    /// All that was hardened of a file is in stable strips, and is forgotten here ▶ `Inode`.
    Folded {
        /// Which.
        ino: Ino,
    },
    /// Notes that these NSDs applied a pending range deletion; when none is left it is forgotten
    /// ▶ `Done`.
    RangeApplied {
        /// Its id.
        id: u64,
        /// Who applied it.
        nsds: Vec<NsdId>,
    },
    /// ▶ `Done`.
    SetXattr {
        /// Which.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
        /// The value.
        #[serde(with = "crate::byte_string")]
        value: Vec<u8>,
        /// How an existing value is treated.
        mode: XattrMode,
        /// For an access ACL set by a caller outside the file's group: clear setgid.
        clear_setgid: bool,
    },
    /// ▶ `Done`; `NoAttribute`.
    RemoveXattr {
        /// Which.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
    },
    /// Removes an orphan that nobody has open any more ▶ `Done`.
    Reap {
        /// Which.
        ino: Ino,
    },
    /// Begins a client's life: a fresh grant; its predecessor's orphans are reaped and its unlinked
    /// objects queued for deletion ▶ `Session`.
    Join,
    /// Changes an NSD's state in the pool map ▶ `Configuration`. Where the status changes which
    /// NSDs take new data, a new layout of those that do is made, if they suffice for the code.
    SetNsdState {
        /// Which.
        nsd: NsdId,
        /// To what.
        state: NsdState,
    },
    /// Sets a configuration value ▶ `Configuration`.
    SetConfig {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// Makes the file system: the first entry of every log ▶ `Configuration`.
    Format(Box<Configuration>),
    /// Gives the slot of one NSD to another, which takes over its pending range deletions
    /// ▶ `Configuration`. Done already is done.
    ReplaceNsd {
        /// Who holds the slot.
        old: NsdId,
        /// Who will; it holds no other slot.
        new: NsdId,
        /// The slot's state from then on.
        state: NsdState,
    },
    /// Asks whoever keeps copies of the metadata on this NSD, which is being emptied, to keep them
    /// elsewhere; has happened on return ▶ `Done`. Changes no record.
    MoveMetadataCopy {
        /// Which.
        nsd: NsdId,
    },
    /// Deletes an NSD that is being emptied: its strips have other places from now on
    /// ▶ `Configuration`. Pending range deletions do not wait for it any more. Done already is
    /// done.
    DeleteNsd {
        /// Which.
        nsd: NsdId,
    },
    /// Queues the blocks from `from` on, which no size of the file ever covered, for deletion:
    /// what a crash left behind. No change that a user made: times stay ▶ `Inode`.
    DeleteBeyond {
        /// Which.
        ino: Ino,
        /// First block.
        from: BlockIndex,
        /// The tombstones' version.
        version: Version,
    },
}

/// A unit (4 KiB) of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardenedUnit {
    /// Its number: the offset in the file divided by 4,096.
    pub unit: u64,
    /// Its bytes; fewer than 4,096 only up to the end of the file.
    #[serde(with = "crate::byte_string")]
    pub bytes: Vec<u8>,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaEntry {
    /// Who asks.
    pub client: ClientId,
    /// The asker's count, from 1, in a [`CountedEntry`]. 0 = not counted.
    pub sequence: u64,
    /// When, by the asker's clock; all times that the change sets.
    pub time: Timestamp,
    /// What.
    pub op: MetaOp,
}

/// A change that is counted, so that it can be sent again until its answer has come, and again
/// after a crash that forgot it, and is applied once.
///
/// The state machine keeps the answers of a client's changes from `oldest` on. A change that it
/// has applied before gets the same answer again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedEntry {
    /// The client's life: a number drawn anew for each session, never 0. The client's `Join` opens
    /// a life and closes the one before. Changes of a closed life are refused.
    pub life: u64,
    /// The lowest sequence of which the client lacks the answer. The client promises never to ask
    /// for the answer of a lower one.
    pub oldest: u64,
    /// The change. Its sequence is at least `oldest`, and less than
    /// [`crate::limits::WINDOW_CHANGES`] above it.
    pub entry: MetaEntry,
}

/// What a counted change came to. It is the same however often the change is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedAnswer {
    /// The change's place in the order in which all changes were applied. A client that sends
    /// changes again after a crash sends them in this order.
    pub position: u64,
    /// The reply, or why the change was refused; then it changed nothing.
    pub outcome: Result<MetaReply>,
}

/// Incompat flag: the pool map has deleted slots, so stripes lie elsewhere than their layout says.
pub const DELETED_NSDS: u64 = 1;

/// The file system's own description; in the metadata, equal on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file system's name.
    pub name: String,
    /// The code of new files.
    pub code: Code,
    /// Bytes of a block of new files.
    pub block_size: u32,
    /// The disks.
    pub pool: PoolMap,
    /// When it was made.
    pub created: Timestamp,
    /// Settings by name, sorted.
    pub settings: Vec<(String, String)>,
    /// What readers and writers must understand, as bits ([`DELETED_NSDS`]).
    pub incompat_flags: u64,
    /// What older versions may ignore, as bits; 0 today.
    pub compat_flags: u64,
}

/// A range deletion that some NSDs have yet to apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRange {
    /// Its id, ascending.
    pub id: u64,
    /// The object and its layout.
    pub layout: ObjectLayout,
    /// First block.
    pub from: BlockIndex,
    /// One past the last; [`BlockIndex::END`] for all.
    pub to: BlockIndex,
    /// The tombstones' version.
    pub version: Version,
    /// Who has yet to apply it.
    pub waiting: Vec<NsdId>,
    /// Whether the whole object is gone (tombstones may be forgotten once all have applied).
    pub object_gone: bool,
}

/// Sums over all metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Bytes of data held on disks, parity not counted, inline data not counted.
    pub allocated: u64,
    /// Bytes of pages that one copy of the metadata takes now at most.
    pub metadata_bytes: u64,
    /// As much may come to that; more where data has plenty of space.
    pub metadata_free: u64,
}

/// What a check of the metadata found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaCheckReply {
    /// Inodes walked.
    pub inodes: u64,
    /// Directory entries walked.
    pub entries: u64,
    /// One sentence for each fault; at most 1,000.
    pub faults: Vec<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// An inode.
    Inode(Box<Inode>),
    /// What lost a name: its number, type and the links it has left.
    Removed(Option<Removed>),
    /// Directory entries.
    Entries {
        /// In cookie order.
        entries: Vec<DirEntry>,
        /// Whether these were the last.
        end: bool,
    },
    /// A target or value.
    Bytes(Vec<u8>),
    /// Attribute names.
    Names(Vec<Vec<u8>>),
    /// Inode numbers.
    Inos(Vec<Ino>),
    /// Inodes.
    Inodes(Vec<Inode>),
    /// A new object.
    Object(ObjectLayout),
    /// A client's new life.
    Session {
        /// Its grant.
        grant: GrantNumber,
    },
    /// Sums.
    Counts(Counts),
    /// Range deletions.
    PendingRanges(Vec<PendingRange>),
    /// Hardened units, each with its file.
    Hardened(Vec<(Ino, HardenedUnit)>),
    /// The file system's description.
    Configuration(Box<Configuration>),
    /// A check's result.
    Checked(MetaCheckReply),
    /// Done.
    Done,
    // Replies are kept in answer records: new ones go here, behind those that disks have.
    /// What a scrub found, and on which NSD; `None` where there is no further copy.
    CopyScrubbed(Option<(NsdId, ScrubPart)>),
}

/// What lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its number.
    pub ino: Ino,
    /// Which life of the number.
    pub generation: Generation,
    /// Its type.
    pub file_type: FileType,
    /// Links left; with 0 it is an orphan if it was open, else gone.
    pub links: u32,
}

/// A way to the metadata: a direct call in one process, or a session on a socket.
pub trait MetaPort: Send + Sync {
    /// Answers a question.
    ///
    /// # Errors
    /// As each question says.
    fn query(&self, query: &MetaQuery) -> Result<MetaReply>;

    /// Applies a change; what is answered is visible at once to every query, and durable after the
    /// next [`MetaPort::sync`].
    ///
    /// # Errors
    /// As POSIX names them for the operation; nothing is changed then.
    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply>;

    /// Applies a counted change once, however often it comes. Sessions send these for their
    /// callers' plain changes, so only what sessions lead to must offer it.
    ///
    /// # Errors
    /// `Fenced` if the client's life was closed; `Stale` for a change below the oldest that the
    /// client needs, which was answered before; `Invalid` for one beyond the window. Any other
    /// error says that the change was refused before it had a position: it has changed nothing, and
    /// will not.
    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        let detail = format!("change {} cannot be counted here", counted.entry.sequence);
        Err(Error::new(ErrorKind::NotSupported, detail))
    }

    /// Makes every change answered before the call durable on all copies.
    ///
    /// # Errors
    /// `Io` when no sufficient set of copies can be written; nothing more is accepted then.
    fn sync(&self) -> Result<()>;
}
