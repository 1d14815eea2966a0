//! Walks all metadata and reports every contradiction. It changes nothing.
//!
//! The check verifies that:
//! - every record decodes and sits under its own key;
//! - each name by name has its twin by place, and the other way round;
//! - each name's cookie is below the directory's next cookie;
//! - each name leads to an inode of the name's generation and type;
//! - each directory counts its entries correctly;
//! - a file's link count is the number of its names, and a directory's link count follows from the
//!   number of its subdirectories;
//! - each directory has one name and a way to the root;
//! - orphans have no names, and inodes without names are orphans;
//! - hardened units and attributes agree with the inode's flags and sums;
//! - each object belongs to one file, either linked or reserved;
//! - numbers lie below the next free number;
//! - the sums are right.
//!
//! Memory is bounded. The check counts names and objects for one window of numbers at a time. Each
//! window takes one pass over all records. The way of each directory to the root is walked up to
//! the first directory whose way is known, so all ways together take each step twice.

mod ways;

use crate::keys::{self, KeyRange, Table};
use crate::ops::FIRST_COOKIE;
use crate::query;
use crate::records::{
    Counters, DentryRecord, InodeRecord, OrphanRecord, Place, PlaceRecord, ReservedRecord, decode,
};
use std::collections::{BTreeSet, HashMap};
use strake_proto::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{MetaCheckReply, PendingRange};
use strake_proto::{FileType, Ino, ObjectId, Result};
use strake_store::KvRead;
use ways::{Way, Ways};

const FAULTS_MAX: usize = 1000;
/// One pass counts names and objects for this many numbers. The counts take some 100 MiB.
const WINDOW: u64 = 1 << 20;
/// The check reads this many records at once.
const BATCH: usize = 512;

/// Checks everything.
///
/// # Errors
/// The store's own errors. Faults of the records are in the reply.
pub fn check(kv: &dyn KvRead) -> Result<MetaCheckReply> {
    let counters = query::counters(kv)?;
    query::configuration(kv)?;
    let (ways, windows) = (Ways::default(), BTreeSet::new());
    let mut check = Check { kv, counters, ways, windows, reply: MetaCheckReply::default() };
    check.inodes()?;
    check.names_by_name()?;
    check.names_by_place()?;
    check.other_tables()?;
    for window in std::mem::take(&mut check.windows) {
        let from = window * WINDOW;
        check.window(from, from.saturating_add(WINDOW))?;
    }
    Ok(check.reply)
}

struct Check<'a> {
    kv: &'a dyn KvRead,
    counters: Counters,
    ways: Ways,
    /// Those of the windows in which a number is used. A log that went on without a majority leaves
    /// a wide gap (`ops/go_on.rs`), which must cost nothing.
    windows: BTreeSet<u64>,
    reply: MetaCheckReply,
}

/// Names that lead to an inode.
#[derive(Default)]
struct Names {
    count: u32,
    /// The number of these that are names of subdirectories inside the inode (for directories).
    subdirectories: u32,
}

impl Check<'_> {
    fn fault(&mut self, sentence: String) {
        if self.reply.faults.len() < FAULTS_MAX {
            self.reply.faults.push(sentence);
        }
    }

    /// Notes that a number is used. One far beyond the next free numbers is a fault by itself.
    fn uses(&mut self, number: u64) {
        let window = number / WINDOW;
        if window * WINDOW < self.counters.next_ino.max(self.counters.next_object) {
            self.windows.insert(window);
        }
    }

    /// Visits a table. A record that does not decode is reported as a fault and skipped.
    fn each<T>(
        &mut self,
        table: Table,
        read: impl Fn(&[u8]) -> Result<T>,
        mut visit: impl FnMut(&mut Self, &[u8], T) -> Result<()>,
    ) -> Result<()> {
        let mut range = keys::whole(table);
        loop {
            let batch = self.batch(&range)?;
            let Some((last, _)) = batch.last() else { return Ok(()) };
            range.from.clone_from(last);
            range.from.push(0);
            for (key, value) in &batch {
                let name = table as u8 as char;
                match (keys::number_of(key), read(value)) {
                    (Some(_), Ok(record)) => visit(self, key, record)?,
                    (None, _) => self.fault(format!("table {name}: key {key:?} is malformed")),
                    (_, Err(error)) => self.fault(format!("table {name}: key {key:?}: {error}")),
                }
            }
        }
    }

    /// The next records of a range. The caller visits them after the scan, because a visit reads
    /// other records and a store may hold a lock of its own while it scans.
    fn batch(&self, range: &KeyRange) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut batch = Vec::with_capacity(BATCH);
        self.kv.scan(&range.from, &range.to, &mut |key, value| {
            batch.push((key.to_vec(), value.to_vec()));
            batch.len() < BATCH
        })?;
        Ok(batch)
    }

    /// An inode. `None` if the inode is missing or does not decode (which is reported elsewhere).
    fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        let stored = self.kv.get(&keys::inode(ino))?;
        Ok(stored.and_then(|bytes| InodeRecord::decode(&bytes).ok()))
    }

    fn inodes(&mut self) -> Result<()> {
        let mut allocated = 0u64;
        let mut root_seen = false;
        self.each(Table::Inode, InodeRecord::decode, |check, key, record| {
            let ino = Ino(number(key));
            check.reply.inodes += 1;
            check.uses(ino.0);
            if let Place::Objects(layouts) = &record.place {
                layouts.iter().for_each(|layout| check.uses(layout.object.0));
            }
            record.reserved.iter().for_each(|object| check.uses(object.0));
            allocated = allocated.saturating_add(record.allocated);
            root_seen |= ino == Ino::ROOT;
            if ino.0 == 0 || ino.0 >= check.counters.next_ino {
                check.fault(format!("inode {ino} is not below the next free number"));
            }
            check.one_inode(ino, &record)
        })?;
        if !root_seen {
            self.fault("there is no root directory".to_owned());
        }
        let (inodes, sums) = (self.reply.inodes, self.counters);
        if inodes != sums.inodes {
            self.fault(format!("{inodes} inodes were found, {} are counted", sums.inodes));
        }
        if allocated != sums.allocated {
            self.fault(format!("{allocated} bytes are allocated, {} are counted", sums.allocated));
        }
        Ok(())
    }

    fn one_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let fits = match (record.file_type, &record.place) {
            (FileType::Regular, Place::Empty) => true,
            (FileType::Regular, Place::Inline) => record.tail.len() as u64 <= record.size,
            (FileType::Regular, Place::Objects(objects)) => !objects.is_empty(),
            (FileType::Symlink, Place::Target) => record.tail.len() as u64 == record.size,
            (FileType::Regular | FileType::Symlink, _) => false,
            (_, place) => *place == Place::Empty && record.size == 0,
        };
        if !fits || record.permissions & !0o7777 != 0 {
            self.fault(format!("inode {ino}: type, size and content do not fit together"));
        }
        let orphan = self.kv.get(&keys::orphan(ino))?.is_some();
        if orphan != (record.links == 0) {
            let links = record.links;
            self.fault(format!("inode {ino} has {links} links, but an orphan's record: {orphan}"));
        }
        if record.is_directory() && record.links > 0 {
            self.way_to_root(ino)?;
        }
        self.hardened(ino, record)?;
        self.attributes(ino, record)
    }

    fn hardened(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let (mut count, mut fits) = (0, true);
        let range = keys::under(Table::Hardened, ino.0);
        let unit_bytes = UNIT_BYTES as u64;
        self.kv.scan(&range.from, &range.to, &mut |key, value| {
            let start = keys::unit_of(key).and_then(|unit| unit.checked_mul(unit_bytes));
            let length = value.len() as u64;
            let end = start.and_then(|start| start.checked_add(length));
            fits &= (1..=unit_bytes).contains(&length);
            fits &= end.is_some_and(|end| end <= record.size);
            count += 1;
            true
        })?;
        fits &= count == 0 || matches!(record.place, Place::Objects(_));
        if !fits || count != record.hardened {
            self.fault(format!("inode {ino}: its hardened units do not fit it"));
        }
        Ok(())
    }

    fn attributes(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let (mut count, mut names, mut values) = (0, 0, 0);
        let (mut access, mut default) = (None, None);
        let range = keys::under(Table::Xattr, ino.0);
        self.kv.scan(&range.from, &range.to, &mut |key, value| {
            let name = keys::name_of(key);
            names += name.len() as u32 + 1;
            values += value.len() as u32;
            match name {
                ACCESS_NAME => access = Some(Acl::from_xattr(value)),
                DEFAULT_NAME => default = Some(Acl::from_xattr(value)),
                _ => count += 1,
            }
            true
        })?;
        let sums = (record.xattr_count, record.xattr_name_bytes, record.xattr_value_bytes);
        let flags = (record.has_acl, record.has_default_acl);
        if sums != (count, names, values) || flags != (access.is_some(), default.is_some()) {
            self.fault(format!("inode {ino}: its attributes are not those it counts"));
        }
        let access_fits = match access {
            Some(Ok(Some(acl))) => acl.mode() == record.permissions & 0o777,
            Some(_) => false,
            None => true,
        };
        let default_fits = default.is_none_or(|acl| matches!(acl, Ok(Some(_))));
        if !access_fits || !default_fits {
            self.fault(format!("inode {ino}: an ACL is malformed or unlike the mode"));
        }
        Ok(())
    }

    fn way_to_root(&mut self, ino: Ino) -> Result<()> {
        let kv = self.kv;
        let way = self.ways.of(ino, &mut |at| {
            let stored = kv.get(&keys::inode(at))?;
            let record = stored.and_then(|bytes| InodeRecord::decode(&bytes).ok());
            let live = record.filter(|record| record.is_directory() && record.links > 0);
            Ok(live.map(|record| record.parent))
        })?;
        if way == Way::Lost {
            self.fault(format!("directory {ino} has no way to the root"));
        }
        Ok(())
    }

    fn names_by_name(&mut self) -> Result<()> {
        let mut current: Option<(Ino, u64, u64)> = None;
        self.each(Table::Dentry, decode::<DentryRecord>, |check, key, dentry| {
            let (directory, name) = (Ino(number(key)), keys::name_of(key));
            check.reply.entries += 1;
            match &mut current {
                Some((ino, entries, _)) if *ino == directory => *entries += 1,
                _ => {
                    check.entry_count(current)?;
                    let record = check.inode(directory)?.filter(InodeRecord::is_directory);
                    if record.is_none() {
                        check.fault(format!("names are in {directory}, which is no directory"));
                    }
                    current = Some((directory, 1, record.map_or(0, |record| record.next_cookie)));
                }
            }
            let next_cookie = current.map_or(0, |(_, _, next)| next);
            check.one_name(directory, name, &dentry, next_cookie)
        })?;
        self.entry_count(current)?;
        // The walk above does not meet inodes that have no names inside.
        self.each(Table::Inode, InodeRecord::decode, |check, key, record| {
            let range = keys::under(Table::Dentry, number(key));
            let mut any = false;
            if record.is_directory() != (record.entries > 0) {
                check.kv.scan(&range.from, &range.to, &mut |_, _| {
                    any = true;
                    false
                })?;
            }
            if any {
                let ino = number(key);
                check.fault(format!("inode {ino} has names inside, but counts none"));
            }
            Ok(())
        })
    }

    fn entry_count(&mut self, counted: Option<(Ino, u64, u64)>) -> Result<()> {
        if let Some((directory, entries, _)) = counted
            && let Some(record) = self.inode(directory)?
            && record.entries != entries
        {
            let held = record.entries;
            self.fault(format!("directory {directory} has {entries} entries, counts {held}"));
        }
        Ok(())
    }

    fn one_name(
        &mut self,
        directory: Ino,
        name: &[u8],
        dentry: &DentryRecord,
        next_cookie: u64,
    ) -> Result<()> {
        let shown = String::from_utf8_lossy(name).into_owned();
        if dentry.cookie < FIRST_COOKIE || dentry.cookie >= next_cookie {
            self.fault(format!("name '{shown}' in {directory}: its cookie is out of range"));
        }
        let twin = self.kv.get(&keys::cookie(directory, dentry.cookie))?;
        let twin = twin.and_then(|bytes| decode::<PlaceRecord>(&bytes).ok());
        let paired = twin.is_some_and(|twin| {
            twin.name == name && twin.ino == dentry.ino && twin.file_type == dentry.file_type
        });
        if !paired {
            self.fault(format!("name '{shown}' in {directory}: name and place disagree"));
        }
        match self.inode(dentry.ino)? {
            Some(record)
                if record.file_type == dentry.file_type
                    && record.generation == dentry.generation =>
            {
                if record.is_directory() && record.parent != directory {
                    self.fault(format!("directory '{shown}' in {directory} has another parent"));
                }
            }
            _ => self.fault(format!("name '{shown}' in {directory} leads to no such inode")),
        }
        Ok(())
    }

    fn names_by_place(&mut self) -> Result<()> {
        self.each(Table::Cookie, decode::<PlaceRecord>, |check, key, place| {
            let directory = Ino(number(key));
            let twin = check.kv.get(&keys::dentry(directory, &place.name))?;
            let twin = twin.and_then(|bytes| decode::<DentryRecord>(&bytes).ok());
            if twin.map(|twin| twin.cookie) != keys::cookie_of(key) {
                check.fault(format!("a place in directory {directory} has no name"));
            }
            Ok(())
        })
    }

    fn other_tables(&mut self) -> Result<()> {
        self.each(Table::Orphan, decode::<OrphanRecord>, |check, key, _| {
            let ino = Ino(number(key));
            if check.inode(ino)?.is_none() {
                check.fault(format!("orphan {ino} has no inode"));
            }
            Ok(())
        })?;
        self.each(Table::Reserved, decode::<ReservedRecord>, |check, key, reserved| {
            let object = ObjectId(number(key));
            let owner = check.inode(reserved.ino)?;
            let held = owner.is_some_and(|record| record.reserved.contains(&object));
            if !held || reserved.layout.object != object {
                check.fault(format!("reserved object {object} is not its file's"));
            }
            Ok(())
        })?;
        self.each(Table::Pending, decode::<PendingRange>, |check, key, range| {
            let id = number(key);
            let fits = range.id == id
                && id < check.counters.next_pending
                && range.from < range.to
                && !range.waiting.is_empty()
                && range.layout.object.0 < check.counters.next_object;
            if !fits {
                check.fault(format!("pending range {id} is malformed"));
            }
            Ok(())
        })?;
        self.each(
            Table::Hardened,
            |_| Ok(()),
            |check, key, ()| {
                let ino = Ino(number(key));
                if check.inode(ino)?.is_none_or(|record| record.hardened == 0) {
                    check.fault(format!("a hardened unit belongs to inode {ino}, which has none"));
                }
                Ok(())
            },
        )?;
        self.each(
            Table::Xattr,
            |_| Ok(()),
            |check, key, ()| {
                let ino = Ino(number(key));
                if check.inode(ino)?.is_none_or(|record| record.xattr_name_bytes == 0) {
                    check.fault(format!("an attribute belongs to inode {ino}, which has none"));
                }
                Ok(())
            },
        )
    }

    /// Counts the names of inodes and the users of objects numbered `from..to`.
    fn window(&mut self, from: u64, to: u64) -> Result<()> {
        let window = from..to;
        let mut names: HashMap<u64, Names> = HashMap::new();
        self.each(Table::Dentry, decode::<DentryRecord>, |_, key, dentry| {
            if window.contains(&dentry.ino.0) {
                names.entry(dentry.ino.0).or_default().count += 1;
            }
            if dentry.file_type == FileType::Directory && window.contains(&number(key)) {
                names.entry(number(key)).or_default().subdirectories += 1;
            }
            Ok(())
        })?;
        let mut objects: HashMap<u64, Ino> = HashMap::new();
        self.each(Table::Inode, InodeRecord::decode, |check, key, record| {
            let ino = Ino(number(key));
            if window.contains(&ino.0) {
                check.links(ino, &record, names.get(&ino.0));
            }
            let linked = match &record.place {
                Place::Objects(layouts) => layouts.as_slice(),
                _ => &[],
            };
            let mut linked_ids = linked.iter().map(|layout| layout.object);
            for object in linked_ids.by_ref().filter(|object| window.contains(&object.0)) {
                if check.kv.get(&keys::reserved(object))?.is_some() {
                    check.fault(format!("object {object} is linked and reserved"));
                }
                check.object(&mut objects, object, ino);
            }
            for &object in record.reserved.iter().filter(|object| window.contains(&object.0)) {
                if check.kv.get(&keys::reserved(object))?.is_none() {
                    check.fault(format!("inode {ino}: reserved object {object} has no record"));
                }
                check.object(&mut objects, object, ino);
            }
            Ok(())
        })
    }

    fn object(&mut self, objects: &mut HashMap<u64, Ino>, object: ObjectId, ino: Ino) {
        if object.0 == 0 || object.0 >= self.counters.next_object {
            self.fault(format!("inode {ino}: object {object} is not below the next free number"));
        }
        if let Some(other) = objects.insert(object.0, ino) {
            self.fault(format!("object {object} belongs to inode {ino} and to {other}"));
        }
    }

    fn links(&mut self, ino: Ino, record: &InodeRecord, found: Option<&Names>) {
        let (count, subdirectories) =
            found.map_or((0, 0), |names| (names.count, names.subdirectories));
        let fits = if !record.is_directory() {
            record.links == count && subdirectories == 0
        } else if record.links == 0 {
            count == 0 && record.entries == 0
        } else {
            // Only the root has no name.
            count == u32::from(ino != Ino::ROOT) && record.links == 2 + subdirectories
        };
        if !fits {
            let links = record.links;
            self.fault(format!(
                "inode {ino} has {links} links, {count} names, {subdirectories} subdirectories"
            ));
        }
    }
}

/// The number in a key that [`Check::each`] has looked at.
fn number(key: &[u8]) -> u64 {
    keys::number_of(key).unwrap_or(0)
}

#[cfg(test)]
#[path = "check_test.rs"]
mod check_test;
