//! A copy of a store to another node, made while changes go on.
//!
//! Each part has first the records that were changed since the part before, as they are now, and
//! then the next records in the order of their keys. So the receiver has everything when the last
//! key was copied and no changed record is left over. Puts and deletes are absolute: a record that
//! comes twice does no harm.
//!
//! A part is the version 1 and then a list of keys with their values in the encoding of postcard.
//! A key without a value is removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use strake_proto::{Error, ErrorKind, Result};
use strake_store::{Batch, KvRead};

const VERSION: u8 = 1;
/// A copy with more changed records that wait is given up, and begins anew later.
const CHANGED_MAX: usize = 1 << 20;
/// Beyond every key.
const KEYS_END: &[u8] = &[0xff];

/// A copy under way; see the module.
#[derive(Default)]
pub(super) struct OutgoingCopy {
    /// The next key to copy. `None` when all were.
    from: Option<Vec<u8>>,
    changed: BTreeSet<Vec<u8>>,
}

/// A record that was changed: its key, and its value unless it is gone.
type Record = (Vec<u8>, Option<Vec<u8>>);

impl OutgoingCopy {
    pub(super) fn new() -> OutgoingCopy {
        OutgoingCopy { from: Some(Vec::new()), changed: BTreeSet::new() }
    }

    /// Notes what was changed in the store. False if too much waits.
    pub(super) fn note(&mut self, changes: &Batch) -> bool {
        self.changed.extend(changes.iter().map(|(key, _)| key.to_vec()));
        self.changed.len() <= CHANGED_MAX
    }

    /// The next part, of about `bytes_max` bytes, and whether the copy is whole with it.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn part(&mut self, kv: &dyn KvRead, bytes_max: usize) -> Result<(Vec<u8>, bool)> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(key) = self.changed.pop_first()
        {
            let value = kv.get(&key)?.map(|value| value.to_vec());
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            records.push((key, value));
        }
        if bytes < bytes_max
            && let Some(from) = self.from.take()
        {
            let mut next = None;
            kv.scan(&from, KEYS_END, &mut |key, value| {
                if bytes >= bytes_max {
                    next = Some(key.to_vec());
                    return false;
                }
                bytes += key.len() + value.len();
                records.push((key.to_vec(), Some(value.to_vec())));
                true
            })?;
            self.from = next;
        }
        let part = postcard::to_extend(&records, vec![VERSION])
            .map_err(|error| Error::new(ErrorKind::Internal, format!("a copy: {error}")))?;
        Ok((part, self.from.is_none() && self.changed.is_empty()))
    }
}

/// The changes that a part brings.
///
/// # Errors
/// `Corrupt`.
pub(super) fn read_part(part: &[u8]) -> Result<Batch> {
    let corrupt = || Error::new(ErrorKind::Corrupt, "not a part of a copy of metadata");
    let Some((&VERSION, rest)) = part.split_first() else { return Err(corrupt()) };
    let (records, []) =
        postcard::take_from_bytes::<Vec<(&[u8], Option<&[u8]>)>>(rest).map_err(|_| corrupt())?
    else {
        return Err(corrupt());
    };
    let mut batch = Batch::new();
    for (key, value) in records {
        match value {
            Some(value) => batch.put(key, Arc::<[u8]>::from(value)),
            None => batch.delete(key),
        }
    }
    Ok(batch)
}

#[cfg(test)]
#[path = "copy_test.rs"]
mod copy_test;
