//! Join, Reap, RangeApplied: the beginnings and ends that no application sees.

use crate::keys::{self, Table};
use crate::records::{OrphanRecord, ReservedRecord, SessionRecord, decode};
use crate::transaction::Transaction;
use strake_proto::meta::{MetaReply, PendingRange};
use strake_proto::{Error, ErrorKind, GrantNumber, Ino, NsdId, ObjectId, Result};

/// Begins a client's life and ends its predecessor's. Never answered from the record of the last
/// request: two lives must not get one grant, while a grant too many costs nothing.
pub(crate) fn join(txn: &mut Transaction<'_>) -> Result<MetaReply> {
    for (key, value) in txn.collect(&keys::whole(Table::Orphan))? {
        let orphan: OrphanRecord = decode(&value)?;
        if orphan.client == txn.client {
            let ino = Ino(number(&key)?);
            txn.remove(key);
            txn.delete_inode(ino)?;
        }
    }
    for (key, value) in txn.collect(&keys::whole(Table::Reserved))? {
        let reserved: ReservedRecord = decode(&value)?;
        // Those of orphans went with them above.
        let object = ObjectId(number(&key)?);
        if reserved.client == txn.client && txn.reserved(object)?.is_some() {
            txn.inode_mut(reserved.ino)?.reserved.retain(|other| *other != object);
            txn.remove(key);
            txn.queue_object(reserved.layout)?;
        }
    }
    let counters = txn.counters()?;
    let grant = GrantNumber(counters.next_grant);
    counters.next_grant += 1;
    Ok(MetaReply::Session { grant })
}

/// Starts the count of a client's requests at its Join's.
pub(crate) fn begin_count(txn: &mut Transaction<'_>, sequence: u64) {
    let record = SessionRecord { sequence, reply: MetaReply::Done };
    let key = keys::session(txn.client);
    txn.put(key, &record);
}

pub(crate) fn reap(txn: &mut Transaction<'_>, ino: Ino) -> Result<MetaReply> {
    if txn.inode(ino)?.links > 0 {
        return Err(Error::new(ErrorKind::Busy, format!("inode {ino} has a name")));
    }
    txn.remove(keys::orphan(ino));
    txn.delete_inode(ino)?;
    Ok(MetaReply::Done)
}

/// Applied twice is applied once: a range that is forgotten already is done.
pub(crate) fn range_applied(
    txn: &mut Transaction<'_>,
    id: u64,
    nsds: &[NsdId],
) -> Result<MetaReply> {
    let key = keys::pending(id);
    if let Some(mut range) = txn.get::<PendingRange>(&key)? {
        range.waiting.retain(|nsd| !nsds.contains(nsd));
        if range.waiting.is_empty() {
            txn.remove(key);
        } else {
            txn.put(key, &range);
        }
    }
    Ok(MetaReply::Done)
}

fn number(key: &[u8]) -> Result<u64> {
    keys::number_of(key)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a metadata key is malformed"))
}
