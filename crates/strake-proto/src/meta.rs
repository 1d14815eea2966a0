//! Messages between a client and the metadata leader.
//!
//! A change is an *entry* of the log: deterministic, numbered for each client, and applied once. A
//! question is a *query* and is not logged. Names and values are bytes, because Linux promises no
//! encoding.
//!
//! `▶` names the reply to a message. The error kinds after it are those that a caller must expect.

mod port;

pub use port::{MetaPort, apply_in_order};

use crate::attr::{Attr, FileType, Timestamp};
use crate::error::Result;
use crate::ids::{
    ClientId, ClusterId, Generation, GrantNumber, Ino, NsdId, ObjectId, Term, Version,
};
use crate::layout::{Code, NsdState, ObjectLayout, PoolMap};
use crate::nsd::ScrubPart;
use crate::units::BlockIndex;
use serde::{Deserialize, Serialize};

/// The place of a directory's entry. Places are stored, ascend, stay below 2⁶³, and are never
/// reused in the directory. 1 and 2 are `.` and `..`, and entries start at 3. A listing goes on
/// *after* a cookie.
pub type Cookie = u64;

/// The extended attribute with a program's capabilities: what it may do beyond the rights of the
/// user who runs it (capabilities(7)).
pub const CAPABILITY_NAME: &[u8] = b"security.capability";

/// The place of a regular file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileData {
    /// There are none. The file is all zeros up to its size.
    Empty,
    /// They are in the inode, at most `INLINE_BYTES_MAX`. Zeros follow up to the size.
    Inline(#[serde(with = "crate::byte_string")] Vec<u8>),
    /// They are in strips of these objects. Today there is one.
    Objects(Vec<ObjectLayout>),
}

/// An inode as a client needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The attributes that `stat` shows.
    pub attr: Attr,
    /// The place of a regular file's bytes. `Empty` for all other types.
    pub data: FileData,
    /// A directory's parent; the root is its own. 0 for all other types.
    pub parent: Ino,
    /// True if it has a POSIX access ACL. Then mode bits alone do not decide who has access.
    pub has_acl: bool,
    /// True if it has any extended attribute besides ACLs, such as `security.capability`.
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
    /// The inode, if the query asked for it. It says that data is inline, without the bytes.
    pub inode: Option<Inode>,
}

/// A question. It changes nothing.
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
        /// The inode.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Entries`].
    ReadDir {
        /// The directory.
        dir: Ino,
        /// Only entries after this; 0 for all.
        after: Cookie,
        /// At most this many (the leader's limit: 4,096).
        limit: u32,
        /// True if the reply is to have the inodes, too.
        with_inodes: bool,
    },
    /// ▶ [`MetaReply::Bytes`]: a symbolic link's target.
    ReadLink {
        /// The inode.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Bytes`]; `NoAttribute`. POSIX ACLs are `system.posix_acl_access` and
    /// `system.posix_acl_default` in Linux's xattr form.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
    },
    /// ▶ [`MetaReply::Names`].
    ListXattr {
        /// The inode.
        ino: Ino,
    },
    /// ▶ [`MetaReply::Counts`].
    Counts,
    /// ▶ [`MetaReply::PendingRanges`]: range deletions not yet applied by every NSD.
    PendingRanges {
        /// Only those with ids above this.
        after: u64,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Hardened`]: hardened units in order of file and unit, from a given one on.
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
        /// Only those with numbers above this.
        after: Ino,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Inodes`]: all inodes in order, for check and recovery.
    ScanInodes {
        /// Only those with numbers above this.
        after: Ino,
        /// At most this many.
        limit: u32,
    },
    /// ▶ [`MetaReply::Done`] if the object is reserved for a file that does not name it yet, else
    /// `NotFound`.
    IsReserved {
        /// The object.
        object: ObjectId,
    },
    /// ▶ [`MetaReply::Configuration`].
    Configuration,
    /// ▶ [`MetaReply::Checked`]: walks all records and verifies reference counts.
    Check,
    /// ▶ [`MetaReply::CopyScrubbed`]: verifies a part of a copy of the metadata (log, pages), past
    /// all caches, and mends damage. The answers to other questions stay the same. In a cluster
    /// there is none: each copy is scrubbed with its NSD ([`crate::nsd::NsdRequest::Scrub`]).
    ScrubCopy {
        /// The copy on this NSD, or the next one above.
        nsd: NsdId,
        /// The part: 0 for the first, then as the reply says.
        part: u64,
    },
    /// ▶ [`MetaReply::Checked`]: like `Check`, and can be ended early. Fails then
    /// ([`crate::ErrorKind::Interrupted`]).
    CheckAs {
        /// Any number that no other check has.
        number: u64,
    },
    /// ▶ [`MetaReply::Done`]: ends the `CheckAs` of this number soon, if there is one.
    EndCheck {
        /// Its number.
        number: u64,
    },
    /// Like `Lookup`. If the name is absent ▶ [`MetaReply::Following`] instead of `NotFound`.
    LookupOrNext {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// At most this many of the names that follow (the leader's limit: 4,096).
        limit: u32,
    },
}

/// The size that `stat` shows for a directory, for each of its entries.
pub const ENTRY_SIZE_SHOWN: u64 = 32;

/// Changes of attributes. `None` leaves an attribute as it is.
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
    /// New change time. `None` means the entry's time. It does not count if the change is `quiet`.
    pub ctime: Option<Timestamp>,
    /// Leave `ctime` alone, because relatime alone moves `atime`.
    pub quiet: bool,
    /// Clear setuid, clear setgid if the group may execute, and remove `security.capability`. A
    /// write or chown by an unprivileged caller asks for this.
    pub kill_privileges: bool,
}

/// An inode that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// Its type.
    pub file_type: FileType,
    /// Wanted permission bits, before the umask.
    pub permissions: u32,
    /// The caller's umask. It is not applied if the parent has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group. If the parent is setgid, the parent's group is taken instead, and a directory
    /// inherits the bit.
    pub gid: u32,
    /// The device number of a device file.
    pub rdev: u32,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// The target is replaced.
    Replace,
    /// `RENAME_NOREPLACE`: the rename fails with `Exists`.
    NoReplace,
    /// `RENAME_EXCHANGE`: source and target change places.
    Exchange,
}

/// How `setxattr` treats an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// The value is set whether there is one or not.
    Set,
    /// `XATTR_CREATE`: the call fails with `Exists` if there is a value.
    Create,
    /// `XATTR_REPLACE`: the call fails with `NoAttribute` if there is no value.
    Replace,
}

/// A change. `open` says that the inode is open at the client. If such an inode loses its last
/// name, it becomes an orphan until [`MetaOp::Reap`]. Other inodes are removed at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaOp {
    /// Makes an inode with a name ▶ `Inode`.
    Create {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// The new inode.
        new: NewInode,
    },
    /// Makes an inode without a name (O_TMPFILE), an orphan of this client ▶ `Inode`.
    CreateOrphan {
        /// The directory whose setgid bit and default ACL count.
        parent: Ino,
        /// The new inode.
        new: NewInode,
    },
    /// Gives an inode one more name ▶ `Inode`. An orphan may get a first one.
    Link {
        /// The inode.
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
        /// True if the inode is open at the client.
        open: bool,
    },
    /// Removes an empty directory ▶ `Removed`.
    Rmdir {
        /// The directory that holds it.
        parent: Ino,
        /// Its name.
        name: Vec<u8>,
        /// True if the directory is open at the client.
        open: bool,
    },
    /// Renames ▶ `Removed`, with the inode that was replaced, if any.
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
        /// True if the replaced inode is open at the client.
        open: bool,
    },
    /// Changes attributes ▶ `Inode`.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// The change.
        change: AttrChange,
    },
    /// Reserves a new object for a file ▶ `Object`. A later `Update` links it. Otherwise it is
    /// deleted when the client's life ends.
    NewObject {
        /// The file.
        ino: Ino,
    },
    /// Tells the metadata the client's view of a file's contents ▶ `Inode`. The data below `size`
    /// is stable already. An object that `data` no longer names is queued for deletion.
    Update {
        /// The inode.
        ino: Ino,
        /// New size.
        size: u64,
        /// New place of the bytes; `None` leaves it as it is.
        data: Option<FileData>,
        /// Change of bytes held on disks.
        allocated_delta: i64,
        /// New times; `ctime` is never moved back.
        mtime: Option<Timestamp>,
        /// See `mtime`.
        ctime: Option<Timestamp>,
    },
    /// Cuts or extends a file to `size`, and queues the blocks from `from_block` on for deletion
    /// at `version` ▶ `Inode`. With size 0 the object is dropped.
    Truncate {
        /// The inode.
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
        /// The inode.
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
        /// The inode.
        ino: Ino,
        /// New size, not below the present one.
        size: u64,
        /// Change of bytes held on disks.
        allocated_delta: i64,
        /// New times; `ctime` is never moved back.
        mtime: Option<Timestamp>,
        /// See `mtime`.
        ctime: Option<Timestamp>,
        /// The units, ascending, at most `limits::HARDENED_UNITS_MAX`. A unit that is kept already
        /// is replaced.
        units: Vec<HardenedUnit>,
    },
    /// Forgets all hardened units of a file, because their bytes are in stable strips now
    /// ▶ `Inode`.
    Folded {
        /// The inode.
        ino: Ino,
    },
    /// Notes that these NSDs applied a pending range deletion ▶ `Done`. When no NSD is left, the
    /// deletion is forgotten.
    RangeApplied {
        /// Its id.
        id: u64,
        /// The NSDs that applied it.
        nsds: Vec<NsdId>,
    },
    /// Sets an extended attribute ▶ `Done`.
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
        /// The value.
        #[serde(with = "crate::byte_string")]
        value: Vec<u8>,
        /// How an existing value is treated.
        mode: XattrMode,
        /// Clear setgid, because a caller outside the file's group sets an access ACL.
        clear_setgid: bool,
    },
    /// Removes an extended attribute ▶ `Done`; `NoAttribute`.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Full name with its prefix.
        name: Vec<u8>,
    },
    /// Removes an orphan that nobody has open any more ▶ `Done`.
    Reap {
        /// The inode.
        ino: Ino,
    },
    /// Begins a client's life with a fresh grant ▶ `Session`. The orphans of the life before are
    /// reaped, and its unlinked objects are queued for deletion.
    Join,
    /// Changes an NSD's state in the pool map ▶ `Configuration`. If other NSDs than before take new
    /// data then, and they are enough for the code, a new layout of them is made.
    SetNsdState {
        /// The NSD.
        nsd: NsdId,
        /// Its new state.
        state: NsdState,
    },
    /// Sets a configuration value ▶ `Configuration`.
    SetConfig {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// Makes the file system ▶ `Configuration`. This is the first entry of every log.
    Format(Box<Configuration>),
    /// Gives the slot of one NSD to another, which takes over its pending range deletions
    /// ▶ `Configuration`. If that has happened before, nothing changes.
    ReplaceNsd {
        /// The NSD that holds the slot.
        old: NsdId,
        /// The NSD that gets the slot. It holds no other.
        new: NsdId,
        /// The slot's state from then on.
        state: NsdState,
    },
    /// Moves the copy of the metadata that this NSD holds to another NSD, because this one is being
    /// emptied ▶ `Done`. The move is done on return. It changes no record.
    MoveMetadataCopy {
        /// The NSD.
        nsd: NsdId,
    },
    /// Deletes an NSD that is being emptied ▶ `Configuration`. From now on its strips have other
    /// places, and pending range deletions do not wait for it. If that has happened before, nothing
    /// changes.
    DeleteNsd {
        /// The NSD.
        nsd: NsdId,
    },
    /// Queues blocks that a crash left behind for deletion: those from `from` on, which no size of
    /// the file ever covered ▶ `Inode`. No user made this change, so the times stay.
    DeleteBeyond {
        /// The inode.
        ino: Ino,
        /// First block.
        from: BlockIndex,
        /// The tombstones' version.
        version: Version,
    },
    /// Reserves grant numbers for a leader's tokens ▶ `Session` with the first of them. They are
    /// above all that were given before, and are never given again.
    ReserveGrants {
        /// How many.
        count: u64,
    },
    /// Ends a client's life, whose number no other life will have ▶ `Done`. What it had reserved is
    /// queued for deletion. Its orphans stay, because other clients may have them open.
    Leave,
    /// Forgets some hardened units of a file, because their bytes or newer ones are in stable
    /// strips now ▶ `Inode`. Units that are not kept are passed over.
    FoldedUnits {
        /// The inode.
        ino: Ino,
        /// The units, ascending, at most `limits::FOLDED_UNITS_MAX`.
        units: Vec<u64>,
    },
    /// Gives an empty NSD a new slot ▶ `Configuration`, with a new layout if the NSDs are enough
    /// for the code. The NSD is up: nothing was ever placed on it. If it has a slot already,
    /// nothing changes.
    AddNsd {
        /// The NSD.
        nsd: NsdId,
        /// Its failure group.
        failure_group: u32,
    },
    /// Gives a file the bytes of another one, which is empty then, and queues the object that it
    /// had for deletion ▶ `Inode`. Size and times stay: the bytes are the same, at another place.
    /// `Busy` if one of them has hardened units; `Stale` if the file has its bytes elsewhere.
    MoveData {
        /// The file.
        ino: Ino,
        /// The object that it has.
        object: ObjectId,
        /// The other file.
        from: Ino,
    },
    /// Takes inode numbers out of those that are kept for the client ▶ `Inos`. They are given to
    /// nobody else, and never again. [`MetaOp::CreateAs`] makes inodes with them.
    ReserveInodes {
        /// How many: 1 to [`crate::limits::INODES_RESERVED_MAX`].
        count: u32,
    },
    /// Makes an inode with a name and with a number that was reserved before ▶ `Inode`. It inherits
    /// nothing from the directory: the client has seen to that ([`NewInode::resolved`]), and has
    /// told a program of the inode already. If the name leads to that number already, nothing
    /// changes.
    CreateAs {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// The inode.
        new: NewInode,
        /// Its number.
        ino: Ino,
    },
    /// Removes the name of an inode, like [`MetaOp::Unlink`] ▶ `Removed`; `Removed(None)` if the
    /// name is absent or leads to another inode, which changes nothing. The client has told a
    /// program of the removal already.
    Remove {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
        /// The inode, which is no directory.
        ino: Ino,
        /// True if the inode is open at a client.
        open: bool,
    },
    /// Takes object numbers out of those that are kept for the client ▶ `Objects`. They are given
    /// to nobody else, and never again. [`MetaOp::NewObjectAs`] makes objects with them.
    ReserveObjects {
        /// How many: 1 to [`crate::limits::OBJECTS_RESERVED_MAX`].
        count: u32,
    },
    /// Reserves an object, like [`MetaOp::NewObject`], whose number was reserved before ▶ `Object`.
    /// The client has taken bytes for it already. If the file has the object already, nothing
    /// changes.
    NewObjectAs {
        /// The file.
        ino: Ino,
        /// The object. Its layout is one that the pool map has.
        layout: ObjectLayout,
    },
}

/// A unit (4 KiB) of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardenedUnit {
    /// Its number: the offset in the file divided by 4,096.
    pub unit: u64,
    /// Its bytes. They are fewer than 4,096 only at the end of the file.
    #[serde(with = "crate::byte_string")]
    pub bytes: Vec<u8>,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaEntry {
    /// The client that makes the change.
    pub client: ClientId,
    /// In a [`CountedEntry`] the client's count of its changes, from 1. 0 = not counted.
    pub sequence: u64,
    /// The time by the client's clock. All times that the change sets are this one.
    pub time: Timestamp,
    /// The change itself.
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

/// The answer to a counted change. It stays the same if the change is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedAnswer {
    /// The change's place in the order in which all changes were applied. A client that sends
    /// changes again after a crash sends them in this order.
    pub position: u64,
    /// The reply, or the reason why the change was refused. A refused change changed nothing.
    pub outcome: Result<MetaReply>,
}

/// An incompat flag. The pool map has deleted slots, so some stripes do not lie where their layout
/// says.
pub const DELETED_NSDS: u64 = 1;

/// The file system's own description. It is in the metadata, and equal on all nodes.
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
    /// Features that every program must understand, as bits ([`DELETED_NSDS`]).
    pub incompat_flags: u64,
    /// Features that older programs may ignore, as bits; 0 today.
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
    /// The NSDs that have yet to apply it.
    pub waiting: Vec<NsdId>,
    /// True if the whole object is gone. Its tombstones may be forgotten once all NSDs have applied
    /// the deletion.
    pub object_gone: bool,
}

/// Sums over all metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Bytes of data held on disks, parity not counted, inline data not counted.
    pub allocated: u64,
    /// The most bytes of pages that one copy of the metadata takes now.
    pub metadata_bytes: u64,
    /// How many bytes a copy may still grow. It may grow more while data has plenty of space.
    pub metadata_free: u64,
}

/// The findings of a check of the metadata.
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
    /// The inode that lost a name.
    Removed(Option<Removed>),
    /// Directory entries.
    Entries {
        /// In cookie order.
        entries: Vec<DirEntry>,
        /// True if these were the last.
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
    // Replies are stored in answer records. So new ones go at the end, after those that disks have.
    /// The findings of a scrub and the NSD of the copy. `None` if there is no further copy.
    CopyScrubbed(Option<(NsdId, ScrubPart)>),
    /// To a mount that makes a file beside others: the inode, and its token. It is never stored.
    Made {
        /// The inode.
        inode: Box<Inode>,
        /// The term of the leader.
        term: Term,
        /// The number of the grant. The mount holds the file exclusively, and open.
        grant: GrantNumber,
    },
    /// A name is absent, and these are the next ones in the directory. It is never stored.
    Following {
        /// In the order of their bytes, with the inodes that they lead to.
        names: Vec<(Vec<u8>, Ino)>,
        /// True if these were the last.
        end: bool,
    },
    /// To a mount that reserves inode numbers beside others: the numbers with their tokens. It is
    /// never stored.
    Reserved {
        /// The numbers.
        inodes: Vec<Ino>,
        /// Grants for the first of them. The mount holds these files exclusively, and open.
        grants: Vec<GrantNumber>,
        /// The term of the leader.
        term: Term,
    },
    /// Object numbers.
    Objects(Vec<ObjectId>),
}

/// An inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its number.
    pub ino: Ino,
    /// Distinguishes the lives of the number.
    pub generation: Generation,
    /// Its type.
    pub file_type: FileType,
    /// The links that are left. With 0 the inode is an orphan if it was open, else it is gone.
    pub links: u32,
}
