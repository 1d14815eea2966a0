//! Values of the metadata's tables (keys.rs has their keys).
//!
//! Every value begins with a version byte, which is 1 today. The struct follows in postcard's
//! encoding: fields in order, integers as varints, signed ones zigzag, enums by index, vectors with
//! their length before them. An inode's inline data or symlink target follows as raw bytes, because
//! it is much the largest part and raw bytes are copied faster. An attribute's value and a hardened
//! unit have no version byte: they are the application's bytes. A field must not be added, removed
//! or reordered without a new version byte. The fixtures in records_test.rs check this.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strake_proto::limits::{INLINE_BYTES_MAX, SYMLINK_BYTES_MAX};
use strake_proto::meta::{Cookie, ENTRY_SIZE_SHOWN, FileData, Inode, MetaReply};
use strake_proto::{
    Attr, ClientId, Error, ErrorKind, FileType, Generation, Ino, ObjectId, ObjectLayout, Result,
    Timestamp,
};

const RECORD_VERSION: u8 = 1;

/// The place of an inode's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// Nowhere.
    Empty,
    /// A regular file's bytes, in `tail`.
    Inline,
    /// A regular file's bytes, in strips.
    Objects(Vec<ObjectLayout>),
    /// A symbolic link's target, in `tail`.
    Target,
}

/// An inode (table I).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRecord {
    pub(crate) generation: Generation,
    pub(crate) file_type: FileType,
    pub(crate) permissions: u32,
    /// The number of names. Directories have 2 and one for each subdirectory. Orphans have 0.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Length of a regular file or of a link's target; 0 for all other types.
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    /// A directory's parent. The root is its own parent. 0 for all other types.
    pub(crate) parent: Ino,
    /// The cookie that a directory's next entry gets.
    pub(crate) next_cookie: Cookie,
    /// The number of a directory's entries.
    pub(crate) entries: u64,
    pub(crate) has_acl: bool,
    pub(crate) has_default_acl: bool,
    /// The number of extended attributes that are not ACLs.
    pub(crate) xattr_count: u32,
    /// Bytes that a list of attribute names takes: all names, ACLs included, each with a
    /// terminator.
    pub(crate) xattr_name_bytes: u32,
    /// Bytes of the values of all attributes, ACLs included.
    pub(crate) xattr_value_bytes: u32,
    /// The number of hardened units (table H).
    pub(crate) hardened: u32,
    /// Objects reserved for this file (table N).
    pub(crate) reserved: Vec<ObjectId>,
    pub(crate) place: Place,
    /// Inline data or target; not part of the postcard encoding.
    #[serde(skip)]
    pub(crate) tail: Vec<u8>,
}

impl InodeRecord {
    /// The value to store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = encode(self);
        bytes.extend_from_slice(&self.tail);
        bytes
    }

    /// Reads a stored value.
    pub(crate) fn decode(bytes: &[u8]) -> Result<InodeRecord> {
        let (mut record, tail) = InodeRecord::decode_split(bytes)?;
        record.tail = tail.to_vec();
        Ok(record)
    }

    /// Reads a stored value without the inline data or target, which are most of it.
    pub(crate) fn decode_head(bytes: &[u8]) -> Result<InodeRecord> {
        InodeRecord::decode_split(bytes).map(|(record, _)| record)
    }

    fn decode_split(bytes: &[u8]) -> Result<(InodeRecord, &[u8])> {
        let (record, tail) = decode_prefix::<InodeRecord>(bytes)?;
        let tail_bytes_max = match record.place {
            Place::Inline => INLINE_BYTES_MAX,
            Place::Target => SYMLINK_BYTES_MAX,
            Place::Empty | Place::Objects(_) => 0,
        };
        if tail.len() > tail_bytes_max {
            return Err(corrupt("an inode record has too many bytes"));
        }
        Ok((record, tail))
    }

    /// Reads only the type from a stored value. The type is near the value's beginning.
    pub(crate) fn file_type_of(bytes: &[u8]) -> Result<FileType> {
        let ((_, file_type), _) = decode_prefix::<(Generation, FileType)>(bytes)?;
        Ok(file_type)
    }

    /// The inode as a client sees it.
    pub(crate) fn into_inode(self, ino: Ino) -> Inode {
        let data = match self.place {
            Place::Empty | Place::Target => FileData::Empty,
            Place::Inline => FileData::Inline(self.tail),
            Place::Objects(objects) => FileData::Objects(objects),
        };
        let is_directory = self.file_type == FileType::Directory;
        let size =
            if is_directory { self.entries.saturating_mul(ENTRY_SIZE_SHOWN) } else { self.size };
        Inode {
            attr: Attr {
                ino,
                generation: self.generation,
                file_type: self.file_type,
                permissions: self.permissions,
                links: self.links,
                uid: self.uid,
                gid: self.gid,
                rdev: self.rdev,
                size,
                allocated: self.allocated,
                atime: self.atime,
                mtime: self.mtime,
                ctime: self.ctime,
                btime: self.btime,
            },
            data,
            parent: self.parent,
            has_acl: self.has_acl,
            has_xattrs: self.xattr_count > 0,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

/// A name by itself (table D).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DentryRecord {
    pub(crate) ino: Ino,
    pub(crate) generation: Generation,
    pub(crate) file_type: FileType,
    pub(crate) cookie: Cookie,
}

/// A name by its place (table C).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlaceRecord {
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
    pub(crate) name: Vec<u8>,
}

/// An inode without a name (table O).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrphanRecord {
    /// The client that has the inode open.
    pub(crate) client: ClientId,
    /// True if the inode never had a name and may get one (O_TMPFILE).
    pub(crate) linkable: bool,
}

/// An object that no file names yet (table N).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReservedRecord {
    pub(crate) client: ClientId,
    pub(crate) ino: Ino,
    pub(crate) layout: ObjectLayout,
}

/// A client's life (table R, without a place).
///
/// Version 0.1 stored every life as version 1, a sequence of 0 and the reply `Done`. A life whose
/// changes are not counted is still stored so. A life whose changes are counted has version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    /// The life's number; 0 if the life's changes are not counted.
    pub(crate) life: u64,
    /// The lowest sequence whose answer the client may lack.
    pub(crate) oldest: u64,
    /// The numbers that its next inodes and objects get.
    pub(crate) numbers: Numbers,
}

/// Numbers that are kept for one client (`ops/numbers.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// The next inode number, and the first one that is not kept for it.
    pub(crate) inodes: (u64, u64),
    /// The same of objects.
    pub(crate) objects: (u64, u64),
    /// The position of the entry that took the newest of these ranges.
    pub(crate) since: u64,
}

/// The version byte of a life whose changes are counted, and for which no numbers are kept.
const COUNTED_LIFE: u8 = 2;
/// The version byte of one for which numbers are kept.
const NUMBERED_LIFE: u8 = 3;
/// The bytes of every life whose changes are not counted.
const UNCOUNTED_LIFE: [u8; 3] = [RECORD_VERSION, 0, 14];

impl SessionRecord {
    /// A life for which no numbers are kept yet.
    pub(crate) fn new(life: u64, oldest: u64) -> SessionRecord {
        SessionRecord { life, oldest, numbers: Numbers::default() }
    }

    /// The value to store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if self.life == 0 {
            return UNCOUNTED_LIFE.to_vec();
        }
        let encoded = if self.numbers == Numbers::default() {
            postcard::to_extend(&(self.life, self.oldest), vec![COUNTED_LIFE])
        } else {
            postcard::to_extend(&(self.life, self.oldest, self.numbers), vec![NUMBERED_LIFE])
        };
        encoded.expect("invariant: records of plain data always encode")
    }

    /// Reads a stored value.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SessionRecord> {
        match bytes.split_first() {
            Some((&COUNTED_LIFE, rest)) => match postcard::take_from_bytes(rest) {
                Ok(((life, oldest), [])) => Ok(SessionRecord::new(life, oldest)),
                _ => Err(corrupt("a client's life does not decode")),
            },
            Some((&NUMBERED_LIFE, rest)) => match postcard::take_from_bytes(rest) {
                Ok(((life, oldest, numbers), [])) => Ok(SessionRecord { life, oldest, numbers }),
                _ => Err(corrupt("a client's life does not decode")),
            },
            // The content does not matter: version 0.1 counted nothing.
            _ => decode::<(u64, MetaReply)>(bytes).map(|_| SessionRecord::default()),
        }
    }
}

/// The answer of a counted change (table R, with a place).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnswerRecord {
    pub(crate) sequence: u64,
    pub(crate) position: u64,
    pub(crate) outcome: Outcome,
}

/// The part of a counted change's outcome that must be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// A reply. Replies to changes are small: the largest is an inode with its inline data.
    Reply(MetaReply),
    /// The reply was the file system's description. It may be long, so it is not kept. A later
    /// request gets the description of that moment, because nothing relies on an older one.
    Configuration,
    /// The change was refused.
    Refused(ErrorKind, String),
}

/// Sums, and the next free numbers (table G, "counters").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) next_ino: u64,
    pub(crate) next_object: u64,
    pub(crate) next_pending: u64,
    pub(crate) next_grant: u64,
    pub(crate) inodes: u64,
    pub(crate) allocated: u64,
}

/// Name of the counters' record.
pub(crate) const COUNTERS: &str = "counters";
/// Name of the configuration's record.
pub(crate) const CONFIGURATION: &str = "configuration";

/// A value: version byte, then postcard.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.push(RECORD_VERSION);
    postcard::to_extend(record, bytes).expect("invariant: records of plain data always encode")
}

/// Reads a value that must end with the record.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let (record, rest) = decode_prefix(bytes)?;
    if rest.is_empty() { Ok(record) } else { Err(corrupt("a record has too many bytes")) }
}

fn decode_prefix<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8])> {
    match bytes.split_first() {
        Some((&RECORD_VERSION, rest)) => postcard::take_from_bytes(rest)
            .map_err(|error| corrupt(&format!("a record does not decode: {error}"))),
        Some((version, _)) => Err(Error::new(
            ErrorKind::Corrupt,
            format!("a record has version {version}: use the newer program that wrote it"),
        )),
        None => Err(corrupt("a record is empty")),
    }
}

fn corrupt(detail: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("metadata: {detail}"))
}

#[cfg(test)]
#[path = "records_test.rs"]
mod records_test;
