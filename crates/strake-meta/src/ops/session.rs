//! Join, Leave, ReserveGrants, Reap, RangeApplied: beginnings and ends that no application sees.

use crate::keys::{self, Table};
use crate::ops::window;
use crate::records::{CONFIGURATION, OrphanRecord, ReservedRecord, decode};
use crate::transaction::{Transaction, unformatted};
use strake_proto::meta::{MetaReply, PendingRange};
use strake_proto::{ClientId, Error, ErrorKind, GrantNumber, Ino, NsdId, ObjectId, Result};

/// Begins a client's life and ends the life before it. Two lives never get the same grant. An
/// unused grant costs nothing.
pub(crate) fn join(txn: &mut Transaction<'_>) -> Result<MetaReply> {
    for (key, value) in txn.collect(&keys::whole(Table::Orphan))? {
        let orphan: OrphanRecord = decode(&value)?;
        if orphan.client == txn.client {
            let ino = Ino(number(&key)?);
            txn.remove(key);
            txn.delete_inode(ino)?;
        }
    }
    leave(txn)?;
    reserve_grants(txn, 1)
}

/// Ends a client's life. Its orphans stay.
pub(crate) fn leave(txn: &mut Transaction<'_>) -> Result<MetaReply> {
    require_format(txn)?;
    window::close_lives(txn)?;
    let client = txn.client;
    give_up_reserved(txn, &|of| of == client)?;
    Ok(MetaReply::Done)
}

/// Queues the objects for deletion that these clients have reserved.
pub(crate) fn give_up_reserved(
    txn: &mut Transaction<'_>,
    is_meant: &dyn Fn(ClientId) -> bool,
) -> Result<()> {
    for (key, value) in txn.collect(&keys::whole(Table::Reserved))? {
        let reserved: ReservedRecord = decode(&value)?;
        // Objects reserved for an orphan are removed with it.
        let object = ObjectId(number(&key)?);
        if is_meant(reserved.client) && txn.reserved(object)?.is_some() {
            txn.inode_mut(reserved.ino)?.reserved.retain(|other| *other != object);
            txn.remove(key);
            txn.queue_object(reserved.layout)?;
        }
    }
    Ok(())
}

/// Most operations that change something notice an unformatted store by themselves.
fn require_format(txn: &Transaction<'_>) -> Result<()> {
    let is_formatted = txn.get_raw(&keys::global(CONFIGURATION))?.is_some();
    if is_formatted { Ok(()) } else { Err(unformatted()) }
}

/// Gives away `count` grant numbers and returns the first.
pub(crate) fn reserve_grants(txn: &mut Transaction<'_>, count: u64) -> Result<MetaReply> {
    require_format(txn)?;
    let counters = txn.counters()?;
    let grant = GrantNumber(counters.next_grant);
    counters.next_grant = counters.next_grant.checked_add(count).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{count} grants are more than there are"))
    })?;
    Ok(MetaReply::Session { grant })
}

pub(crate) fn reap(txn: &mut Transaction<'_>, ino: Ino) -> Result<MetaReply> {
    if txn.inode(ino)?.links > 0 {
        return Err(Error::new(ErrorKind::Busy, format!("inode {ino} has a name")));
    }
    txn.remove(keys::orphan(ino));
    txn.delete_inode(ino)?;
    Ok(MetaReply::Done)
}

/// Notes that NSDs have applied a range. Applying it twice is harmless: a range that is already
/// forgotten is done.
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
