//! Numbers of inodes and objects (R20): each client whose changes are counted takes its own from a
//! range that is kept for it.
//!
//! Clients send again what a crash made the metadata forget, each its own changes in their order,
//! and all at the same time. If all took numbers from one counter, a change would get another
//! number than the first time, and its client was told the first one. A client's own changes come
//! in the order that they had, so numbers from a range of its own are the same again.
//!
//! **A range is durable before a number of it is told.** Otherwise a crash could forget who has the
//! range, and give it to another client. So the answer to a change that may tell such a number
//! waits for a sync, once for each range ([`durable_first`]). Grants of versions come from one
//! counter, seldom, and each waits.
//!
//! A number is given once. What a client leaves of its ranges is never used.

use crate::keys;
use crate::records::{Counters, SessionRecord};
use crate::transaction::Transaction;
use strake_proto::limits::{INODES_RESERVED_MAX, OBJECTS_RESERVED_MAX};
use strake_proto::meta::{CountedAnswer, MetaEntry, MetaReply};
use strake_proto::{Error, ErrorKind, Ino, ObjectId, Result};
use strake_store::KvRead;

/// Numbers in a range. One sync for so many new files costs nothing that can be seen.
const RANGE: u64 = 1024;

impl Transaction<'_> {
    /// A new inode's number.
    pub(crate) fn next_ino(&mut self) -> Result<Ino> {
        let own = self.numbers.map(|(numbers, _)| numbers.inodes);
        let (number, own) = self.next_number(own, |counters| &mut counters.next_ino)?;
        if let (Some((numbers, _)), Some(own)) = (&mut self.numbers, own) {
            numbers.inodes = own;
        }
        Ok(Ino(number))
    }

    /// A new object's number.
    pub(crate) fn next_object(&mut self) -> Result<ObjectId> {
        let own = self.numbers.map(|(numbers, _)| numbers.objects);
        let (number, own) = self.next_number(own, |counters| &mut counters.next_object)?;
        if let (Some((numbers, _)), Some(own)) = (&mut self.numbers, own) {
            numbers.objects = own;
        }
        Ok(ObjectId(number))
    }

    /// The next number, and what is left of the client's own range.
    fn next_number(
        &mut self,
        own: Option<(u64, u64)>,
        counter: impl Fn(&mut Counters) -> &mut u64,
    ) -> Result<(u64, Option<(u64, u64)>)> {
        let Some((mut next, mut end)) = own else {
            let counter = counter(self.counters()?);
            *counter += 1;
            return Ok((*counter - 1, None));
        };
        if next == end {
            let counter = counter(self.counters()?);
            next = *counter;
            end = next + RANGE;
            *counter = end;
            if let Some((numbers, position)) = &mut self.numbers {
                numbers.since = *position;
            }
        }
        Ok((next, Some((next + 1, end))))
    }
}

/// Gives away `count` inode numbers, for inodes that the client makes later.
pub(crate) fn reserve_inodes(txn: &mut Transaction<'_>, count: u32) -> Result<MetaReply> {
    check_count(count, INODES_RESERVED_MAX)?;
    (0..count).map(|_| txn.next_ino()).collect::<Result<_>>().map(MetaReply::Inos)
}

/// Gives away `count` object numbers, for objects that the client makes later.
pub(crate) fn reserve_objects(txn: &mut Transaction<'_>, count: u32) -> Result<MetaReply> {
    check_count(count, OBJECTS_RESERVED_MAX)?;
    (0..count).map(|_| txn.next_object()).collect::<Result<_>>().map(MetaReply::Objects)
}

fn check_count(count: u32, most: u32) -> Result<()> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("not 1 to {most} numbers at once: {count}")))
}

/// The position up to which the log must be durable before `entry` may be answered; 0 if its answer
/// tells no new number.
///
/// # Errors
/// The store's.
pub(crate) fn durable_first(
    kv: &dyn KvRead,
    entry: &MetaEntry,
    answer: &CountedAnswer,
) -> Result<u64> {
    match &answer.outcome {
        Ok(MetaReply::Session { .. }) => Ok(answer.position),
        // Other changes are answered with an inode too. Its range is durable then.
        Ok(
            MetaReply::Inode(_) | MetaReply::Object(_) | MetaReply::Inos(_) | MetaReply::Objects(_),
        ) => {
            let session = kv.get(&keys::session(entry.client))?;
            let session = session.map(|bytes| SessionRecord::decode(&bytes)).transpose()?;
            Ok(session.map_or(0, |session| session.numbers.since))
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
#[path = "numbers_test.rs"]
mod numbers_test;
