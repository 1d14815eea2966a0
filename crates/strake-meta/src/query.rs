//! The questions: what each one reads, and how much one reply may hold.

use crate::check;
use crate::keys::{self, KeyRange, Table};
use crate::names::check_name;
use crate::records::{
    CONFIGURATION, COUNTERS, Counters, DentryRecord, InodeRecord, PlaceRecord, decode,
};
use crate::transaction::{gone, unformatted};
use strake_proto::acl::{ACCESS_NAME, DEFAULT_NAME};
use strake_proto::meta::{
    Configuration, Cookie, Counts, DirEntry, HardenedUnit, Inode, MetaQuery, MetaReply,
    PendingRange,
};
use strake_proto::{Error, ErrorKind, FileType, Ino, ObjectId, Result};
use strake_store::KvRead;

/// One reply has at most this many items, even if the query's limit is higher.
const ITEMS_MAX: usize = 4096;
/// One reply has about this many bytes at most, so that inline data does not make it longer than a
/// message may be.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// Answers a question. In [`Counts`] the store's own space is shown as 0 used and without bound,
/// because only the store's owner knows it.
///
/// # Errors
/// As [`MetaQuery`] says for each question. `Corrupt` if a record does not decode.
pub fn query(kv: &dyn KvRead, query: &MetaQuery) -> Result<MetaReply> {
    Ok(match query {
        MetaQuery::Lookup { parent, name } => {
            MetaReply::Inode(Box::new(lookup(kv, *parent, name)?))
        }
        MetaQuery::LookupOrNext { parent, name, limit } => {
            lookup_or_next(kv, *parent, name, *limit)?
        }
        MetaQuery::GetInode { ino } => {
            MetaReply::Inode(Box::new(inode(kv, *ino)?.into_inode(*ino)))
        }
        MetaQuery::ReadDir { dir, after, limit, with_inodes } => {
            read_dir(kv, *dir, *after, *limit, *with_inodes)?
        }
        MetaQuery::ReadLink { ino } => read_link(kv, *ino)?,
        MetaQuery::GetXattr { ino, name } => get_xattr(kv, *ino, name)?,
        MetaQuery::ListXattr { ino } => list_xattr(kv, *ino)?,
        MetaQuery::Counts => {
            let counters = counters(kv)?;
            MetaReply::Counts(Counts {
                inodes: counters.inodes,
                allocated: counters.allocated,
                metadata_bytes: 0,
                metadata_free: u64::MAX,
            })
        }
        MetaQuery::PendingRanges { after, limit } => {
            let mut ranges = Vec::new();
            let wanted = keys::above(Table::Pending, *after);
            for_each(kv, &wanted, *limit, &mut |_, value| {
                ranges.push(decode::<PendingRange>(value)?);
                Ok(value.len())
            })?;
            MetaReply::PendingRanges(ranges)
        }
        MetaQuery::Hardened { ino, unit, limit } => {
            let mut units = Vec::new();
            let wanted =
                KeyRange { from: keys::hardened(*ino, *unit), to: keys::whole(Table::Hardened).to };
            for_each(kv, &wanted, *limit, &mut |key, value| {
                let place = keys::unit_of(key).ok_or_else(malformed)?;
                let unit = HardenedUnit { unit: place, bytes: value.to_vec() };
                units.push((Ino(number(key)?), unit));
                Ok(value.len() + size_of::<HardenedUnit>())
            })?;
            MetaReply::Hardened(units)
        }
        MetaQuery::Orphans { after, limit } => orphans(kv, *after, *limit)?,
        MetaQuery::ScanInodes { after, limit } => {
            let mut inodes = Vec::new();
            let wanted = keys::above(Table::Inode, after.0);
            for_each(kv, &wanted, *limit, &mut |key, value| {
                inodes.push(InodeRecord::decode(value)?.into_inode(Ino(number(key)?)));
                Ok(value.len() + size_of::<Inode>())
            })?;
            MetaReply::Inodes(inodes)
        }
        MetaQuery::IsReserved { object } => is_reserved(kv, *object)?,
        MetaQuery::Configuration => MetaReply::Configuration(Box::new(configuration(kv)?)),
        MetaQuery::Check | MetaQuery::CheckAs { .. } => MetaReply::Checked(check::check(kv)?),
        MetaQuery::EndCheck { .. } => MetaReply::Done,
        // A store without copies on disks has nothing to scrub.
        MetaQuery::ScrubCopy { .. } => MetaReply::CopyScrubbed(None),
    })
}

fn orphans(kv: &dyn KvRead, after: Ino, limit: u32) -> Result<MetaReply> {
    let mut inos = Vec::new();
    for_each(kv, &keys::above(Table::Orphan, after.0), limit, &mut |key, _| {
        inos.push(Ino(number(key)?));
        Ok(key.len())
    })?;
    Ok(MetaReply::Inos(inos))
}

fn read_link(kv: &dyn KvRead, ino: Ino) -> Result<MetaReply> {
    let record = inode(kv, ino)?;
    if record.file_type != FileType::Symlink {
        return Err(Error::new(ErrorKind::Invalid, "not a symbolic link"));
    }
    Ok(MetaReply::Bytes(record.tail))
}

pub(crate) fn inode(kv: &dyn KvRead, ino: Ino) -> Result<InodeRecord> {
    let stored = kv.get(&keys::inode(ino))?.ok_or_else(|| gone(ino))?;
    InodeRecord::decode(&stored)
}

pub(crate) fn counters(kv: &dyn KvRead) -> Result<Counters> {
    decode(&kv.get(&keys::global(COUNTERS))?.ok_or_else(unformatted)?)
}

pub(crate) fn configuration(kv: &dyn KvRead) -> Result<Configuration> {
    decode(&kv.get(&keys::global(CONFIGURATION))?.ok_or_else(unformatted)?)
}

fn is_reserved(kv: &dyn KvRead, object: ObjectId) -> Result<MetaReply> {
    kv.get(&keys::reserved(object))?.ok_or(ErrorKind::NotFound)?;
    Ok(MetaReply::Done)
}

pub(crate) fn number(key: &[u8]) -> Result<u64> {
    keys::number_of(key).ok_or_else(malformed)
}

fn malformed() -> Error {
    Error::new(ErrorKind::Corrupt, "a metadata key is malformed")
}

fn directory(kv: &dyn KvRead, ino: Ino) -> Result<InodeRecord> {
    let record = inode(kv, ino)?;
    if record.is_directory() { Ok(record) } else { Err(ErrorKind::NotDirectory.into()) }
}

/// Checks that an inode exists and is a directory.
fn check_directory(kv: &dyn KvRead, ino: Ino) -> Result<()> {
    let stored = kv.get(&keys::inode(ino))?.ok_or_else(|| gone(ino))?;
    match InodeRecord::file_type_of(&stored)? {
        FileType::Directory => Ok(()),
        _ => Err(ErrorKind::NotDirectory.into()),
    }
}

fn lookup(kv: &dyn KvRead, parent: Ino, name: &[u8]) -> Result<Inode> {
    check_name(name)?;
    let ino = match name {
        b"." => return Ok(directory(kv, parent)?.into_inode(parent)),
        b".." => directory(kv, parent)?.parent,
        _ => match kv.get(&keys::dentry(parent, name))? {
            Some(stored) => decode::<DentryRecord>(&stored)?.ino,
            // Only a directory has names. If the name is missing, the directory may be missing too.
            None => {
                check_directory(kv, parent)?;
                return Err(ErrorKind::NotFound.into());
            }
        },
    };
    Ok(inode(kv, ino)?.into_inode(ino))
}

/// The inode that a name leads to, or the names that follow it.
fn lookup_or_next(kv: &dyn KvRead, parent: Ino, name: &[u8], limit: u32) -> Result<MetaReply> {
    match lookup(kv, parent, name) {
        Err(error) if error.kind() == ErrorKind::NotFound => following(kv, parent, name, limit),
        found => Ok(MetaReply::Inode(Box::new(found?))),
    }
}

fn following(kv: &dyn KvRead, parent: Ino, name: &[u8], limit: u32) -> Result<MetaReply> {
    let mut names = Vec::new();
    let end = for_each(kv, &keys::names_from(parent, name), limit, &mut |key, value| {
        let next = keys::name_of(key).to_vec();
        let bytes = size_of::<(Vec<u8>, Ino)>() + next.len();
        names.push((next, decode::<DentryRecord>(value)?.ino));
        Ok(bytes)
    })?;
    Ok(MetaReply::Following { names, end })
}

fn read_dir(
    kv: &dyn KvRead,
    dir: Ino,
    after: Cookie,
    limit: u32,
    with_inodes: bool,
) -> Result<MetaReply> {
    check_directory(kv, dir)?;
    let mut entries = Vec::new();
    let end = for_each(kv, &keys::places_after(dir, after), limit, &mut |key, value| {
        let PlaceRecord { ino, file_type, name } = decode(value)?;
        let cookie = keys::cookie_of(key).ok_or_else(malformed)?;
        let bytes = size_of::<DirEntry>() + name.len();
        entries.push(DirEntry { cookie, name, ino, file_type, inode: None });
        Ok(bytes)
    })?;
    if !with_inodes {
        return Ok(MetaReply::Entries { entries, end });
    }
    // The inodes are fetched after the scan, because a store may hold its own lock during one.
    let mut bytes = 0;
    let mut filled = 0;
    while filled < entries.len() && bytes < REPLY_BYTES_MAX {
        let entry = &mut entries[filled];
        let stored = kv.get(&keys::inode(entry.ino))?.ok_or_else(|| {
            let detail = format!("metadata: entry of directory {dir} names no inode; run a check");
            Error::new(ErrorKind::Corrupt, detail)
        })?;
        bytes += size_of::<DirEntry>() + size_of::<Inode>();
        entry.inode = Some(InodeRecord::decode_head(&stored)?.into_inode(entry.ino));
        filled += 1;
    }
    let end = end && filled == entries.len();
    entries.truncate(filled);
    Ok(MetaReply::Entries { entries, end })
}

fn get_xattr(kv: &dyn KvRead, ino: Ino, name: &[u8]) -> Result<MetaReply> {
    crate::ops::xattr::check_name(name)?;
    let record = inode(kv, ino)?;
    let may_exist = match name {
        ACCESS_NAME => record.has_acl,
        DEFAULT_NAME => record.has_default_acl,
        _ => record.xattr_count > 0,
    };
    let value = if may_exist { kv.get(&keys::xattr(ino, name))? } else { None };
    Ok(MetaReply::Bytes(value.ok_or(ErrorKind::NoAttribute)?.to_vec()))
}

fn list_xattr(kv: &dyn KvRead, ino: Ino) -> Result<MetaReply> {
    let record = inode(kv, ino)?;
    let mut names = Vec::new();
    if record.xattr_name_bytes > 0 {
        let range = keys::under(Table::Xattr, ino.0);
        kv.scan(&range.from, &range.to, &mut |key, _| {
            names.push(keys::name_of(key).to_vec());
            true
        })?;
    }
    Ok(MetaReply::Names(names))
}

/// Visits a range until it has visited `limit` items or [`REPLY_BYTES_MAX`] bytes (as `visit`
/// counts them). It visits at least one item, so a listing always makes progress. Returns true if
/// it reached the end of the range.
#[allow(clippy::type_complexity, reason = "one callback, named by its use")]
fn for_each(
    kv: &dyn KvRead,
    range: &KeyRange,
    limit: u32,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> Result<usize>,
) -> Result<bool> {
    let limit = (limit as usize).clamp(1, ITEMS_MAX);
    let (mut items, mut bytes, mut end) = (0, 0, true);
    let mut outcome = Ok(());
    kv.scan(&range.from, &range.to, &mut |key, value| {
        if items >= limit || bytes >= REPLY_BYTES_MAX {
            end = false;
            return false;
        }
        match visit(key, value) {
            Ok(visited) => {
                items += 1;
                bytes += visited;
                true
            }
            Err(error) => {
                outcome = Err(error);
                false
            }
        }
    })?;
    outcome.map(|()| end)
}
