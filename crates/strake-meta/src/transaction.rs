//! One entry's reads and changes: typed records over a store. Later reads of the entry see its own
//! earlier changes. Nothing reaches the store before the whole entry has succeeded.
//!
//! Inodes are kept decoded, so an operation that touches a directory three times encodes it once.
//! Ranges are scanned in the store only, because no operation scans records that it has changed
//! itself.

use crate::keys::{self, KeyRange};
use crate::ops::rename::Nesting;
use crate::query;
use crate::records::{
    CONFIGURATION, COUNTERS, Counters, DentryRecord, InodeRecord, Numbers, OrphanRecord,
    ReservedRecord, decode, encode,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use strake_proto::meta::Configuration;
use strake_proto::{ClientId, Error, ErrorKind, Ino, ObjectId, Result, Timestamp};
use strake_store::{Batch, KvRead};

/// One entry's transaction; see the module.
pub(crate) struct Transaction<'a> {
    kv: &'a dyn KvRead,
    /// The client that sent the entry.
    pub(crate) client: ClientId,
    /// The time that the entry sets wherever it sets one.
    pub(crate) time: Timestamp,
    /// The numbers that are kept for the client, and the entry's position. `None` if all numbers
    /// come from the counters.
    pub(crate) numbers: Option<(Numbers, u64)>,
    /// Answers that were found before the entry's turn came, and still hold.
    pub(crate) known: &'a [(Nesting, bool)],
    changes: BTreeMap<Vec<u8>, Option<Arc<[u8]>>>,
    inodes: Vec<LoadedInode>,
    counters: Option<Counters>,
}

struct LoadedInode {
    ino: Ino,
    /// `None`: removed by this entry.
    record: Option<InodeRecord>,
    changed: bool,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(kv: &'a dyn KvRead, client: ClientId, time: Timestamp) -> Transaction<'a> {
        Transaction {
            kv,
            client,
            time,
            numbers: None,
            known: &[],
            changes: BTreeMap::new(),
            inodes: Vec::with_capacity(4),
            counters: None,
        }
    }

    /// The entry's changes.
    pub(crate) fn finish(mut self) -> Batch {
        for inode in self.inodes.iter().filter(|inode| inode.changed) {
            let value = inode.record.as_ref().map(|record| record.encode().into());
            self.changes.insert(keys::inode(inode.ino), value);
        }
        if let Some(counters) = self.counters {
            self.changes.insert(keys::global(COUNTERS), Some(encode(&counters).into()));
        }
        let mut batch = Batch::new();
        for (key, value) in self.changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch
    }

    pub(crate) fn get_raw(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.kv.get(key),
        }
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>> {
        self.get_raw(key)?.map(|bytes| decode(&bytes)).transpose()
    }

    pub(crate) fn put_raw(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value.into()));
    }

    pub(crate) fn put<T: Serialize>(&mut self, key: Vec<u8>, record: &T) {
        self.put_raw(key, encode(record));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// The keys and values of a range of the store, without the entry's own changes.
    pub(crate) fn collect(&self, range: &KeyRange) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        self.kv.scan(&range.from, &range.to, &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            true
        })?;
        Ok(found)
    }

    /// The directory above one. It is not kept, so a walk to the root costs no more at each step.
    pub(crate) fn parent(&self, ino: Ino) -> Result<Ino> {
        match self.inodes.iter().find(|inode| inode.ino == ino) {
            Some(loaded) => {
                let record = loaded.record.as_ref().ok_or_else(|| gone(ino))?;
                Ok(record.parent)
            }
            None => query::inode(self.kv, ino).map(|record| record.parent),
        }
    }

    /// How many inodes are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.inodes.len()
    }

    fn load(&mut self, ino: Ino) -> Result<usize> {
        if let Some(index) = self.inodes.iter().position(|inode| inode.ino == ino) {
            return Ok(index);
        }
        let stored = self.kv.get(&keys::inode(ino))?;
        let record = stored.map(|bytes| InodeRecord::decode(&bytes)).transpose()?;
        self.inodes.push(LoadedInode { ino, record, changed: false });
        Ok(self.inodes.len() - 1)
    }

    /// An inode; `Stale` if there is none.
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<&InodeRecord> {
        let index = self.load(ino)?;
        self.inodes[index].record.as_ref().ok_or_else(|| gone(ino))
    }

    /// An inode that will be changed; `Stale` if there is none.
    pub(crate) fn inode_mut(&mut self, ino: Ino) -> Result<&mut InodeRecord> {
        let index = self.load(ino)?;
        let inode = &mut self.inodes[index];
        inode.changed = true;
        inode.record.as_mut().ok_or_else(|| gone(ino))
    }

    /// Adds a new inode.
    pub(crate) fn insert_inode(&mut self, ino: Ino, record: InodeRecord) {
        assert!(self.inodes.iter().all(|inode| inode.ino != ino), "inode numbers are not reused");
        self.inodes.push(LoadedInode { ino, record: Some(record), changed: true });
    }

    /// Whether there is an inode of that number.
    pub(crate) fn has_inode(&self, ino: Ino) -> Result<bool> {
        Ok(self.get_raw(&keys::inode(ino))?.is_some())
    }

    /// Takes an inode out of its table.
    pub(crate) fn remove_inode(&mut self, ino: Ino) -> Result<InodeRecord> {
        let index = self.load(ino)?;
        let inode = &mut self.inodes[index];
        inode.changed = true;
        inode.record.take().ok_or_else(|| gone(ino))
    }

    /// A directory that still has its name. `Stale` if it does not exist, `NotDirectory` if it is
    /// none, `NotFound` if it was removed while open.
    pub(crate) fn live_directory(&mut self, ino: Ino) -> Result<&mut InodeRecord> {
        let record = self.inode(ino)?;
        if !record.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        if record.links == 0 {
            return Err(Error::new(ErrorKind::NotFound, format!("directory {ino} was removed")));
        }
        self.inode_mut(ino)
    }

    pub(crate) fn dentry(&self, directory: Ino, name: &[u8]) -> Result<Option<DentryRecord>> {
        self.get(&keys::dentry(directory, name))
    }

    pub(crate) fn orphan(&self, ino: Ino) -> Result<Option<OrphanRecord>> {
        self.get(&keys::orphan(ino))
    }

    pub(crate) fn reserved(&self, object: ObjectId) -> Result<Option<ReservedRecord>> {
        self.get(&keys::reserved(object))
    }

    /// The counters, for changing.
    pub(crate) fn counters(&mut self) -> Result<&mut Counters> {
        if self.counters.is_none() {
            self.counters = self.get(&keys::global(COUNTERS))?;
        }
        self.counters.as_mut().ok_or_else(unformatted)
    }

    pub(crate) fn set_counters(&mut self, counters: Counters) {
        self.counters = Some(counters);
    }

    pub(crate) fn configuration(&self) -> Result<Configuration> {
        self.get(&keys::global(CONFIGURATION))?.ok_or_else(unformatted)
    }
}

pub(crate) fn gone(ino: Ino) -> Error {
    Error::new(ErrorKind::Stale, format!("inode {ino} is gone"))
}

pub(crate) fn unformatted() -> Error {
    Error::new(ErrorKind::Invalid, "the metadata is not formatted")
}
