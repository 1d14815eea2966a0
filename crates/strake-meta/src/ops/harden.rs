//! Harden, Folded and FoldedUnits: small synchronous writes. The log and the store keep them as
//! units of 4 KiB until the bytes are in stable strips.
//!
//! A file's client writes its dirty blocks behind as always. When they are stable, it sends
//! `Folded`, or names some units with `FoldedUnits`. After a crash the client writes the units
//! kept here into the file again, before anything is served. So every change that removes bytes of
//! a file (a cut, a punched hole, another object) must remove the kept units in the same entry.

use super::require_regular;
use crate::keys::{self, Table};
use crate::ops::set_attr::check_time;
use crate::records::Place;
use crate::transaction::Transaction;
use strake_proto::limits::{FILE_BYTES_MAX, FOLDED_UNITS_MAX, HARDENED_UNITS_MAX, UNIT_BYTES};
use strake_proto::meta::{HardenedUnit, MetaReply};
use strake_proto::{BlockIndex, Error, ErrorKind, Ino, Result, Timestamp};

const UNIT: u64 = UNIT_BYTES as u64;

/// The fields of a Harden.
pub(crate) struct NewHardened<'a> {
    pub(crate) size: u64,
    pub(crate) allocated_delta: i64,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
    pub(crate) units: &'a [HardenedUnit],
}

pub(crate) fn harden(
    txn: &mut Transaction<'_>,
    ino: Ino,
    new: &NewHardened<'_>,
) -> Result<MetaReply> {
    if new.size > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooBig.into());
    }
    for time in [new.mtime, new.ctime].into_iter().flatten() {
        check_time(time)?;
    }
    let record = txn.inode(ino)?;
    require_regular(record)?;
    if !matches!(record.place, Place::Objects(_)) || new.size < record.size {
        return Err(invalid("only a file with an object is hardened, and never cut by it"));
    }
    check_units(new.units, new.size)?;
    let mut added = 0;
    for unit in new.units {
        let key = keys::hardened(ino, unit.unit);
        added += u32::from(txn.get_raw(&key)?.is_none());
        txn.put_raw(key, unit.bytes.clone());
    }
    let record = txn.inode_mut(ino)?;
    record.hardened = record.hardened.saturating_add(added);
    record.size = new.size;
    record.mtime = new.mtime.unwrap_or(record.mtime);
    record.ctime = new.ctime.unwrap_or(record.ctime).max(record.ctime);
    txn.add_allocated(ino, new.allocated_delta)?;
    txn.reply_inode(ino)
}

fn check_units(units: &[HardenedUnit], size: u64) -> Result<()> {
    let ascending = units.windows(2).all(|pair| pair[0].unit < pair[1].unit);
    let fit = units.iter().all(|unit| {
        let length = unit.bytes.len() as u64;
        let end = unit.unit.checked_mul(UNIT).and_then(|start| start.checked_add(length));
        (1..=UNIT).contains(&length) && end.is_some_and(|end| end <= size)
    });
    if ascending && fit && units.len() <= HARDENED_UNITS_MAX {
        return Ok(());
    }
    Err(invalid("hardened units are out of order, out of the file or too many"))
}

pub(crate) fn folded(txn: &mut Transaction<'_>, ino: Ino) -> Result<MetaReply> {
    require_regular(txn.inode(ino)?)?;
    txn.drop_hardened(ino)?;
    txn.reply_inode(ino)
}

pub(crate) fn folded_units(
    txn: &mut Transaction<'_>,
    ino: Ino,
    units: &[u64],
) -> Result<MetaReply> {
    require_regular(txn.inode(ino)?)?;
    if units.len() > FOLDED_UNITS_MAX || !units.is_sorted_by(|one, next| one < next) {
        return Err(invalid("folded units are out of order or too many"));
    }
    let mut gone = 0;
    for unit in units {
        let key = keys::hardened(ino, *unit);
        if txn.get_raw(&key)?.is_some() {
            txn.remove(key);
            gone += 1;
        }
    }
    if gone > 0 {
        let record = txn.inode_mut(ino)?;
        record.hardened = record.hardened.saturating_sub(gone);
    }
    txn.reply_inode(ino)
}

impl Transaction<'_> {
    /// Forgets all hardened units of a file.
    pub(crate) fn drop_hardened(&mut self, ino: Ino) -> Result<()> {
        if self.inode(ino)?.hardened > 0 {
            self.forget_hardened(ino)?;
            self.inode_mut(ino)?.hardened = 0;
        }
        Ok(())
    }

    /// Removes a file's hardened units. The caller adjusts the count.
    pub(crate) fn forget_hardened(&mut self, ino: Ino) -> Result<()> {
        for (key, _) in self.collect(&keys::under(Table::Hardened, ino.0))? {
            self.remove(key);
        }
        Ok(())
    }

    /// Cuts hardened units at the size that the file is about to get.
    pub(crate) fn cut_hardened(&mut self, ino: Ino, size: u64) -> Result<()> {
        let record = self.inode(ino)?;
        if record.hardened == 0 || size >= record.size {
            return Ok(());
        }
        self.remove_hardened(ino, size.div_ceil(UNIT), u64::MAX)?;
        let last = keys::hardened(ino, size / UNIT);
        let within = (size % UNIT) as usize;
        if let Some(bytes) = self.get_raw(&last)?
            && bytes.len() > within
            && within > 0
        {
            self.put_raw(last, bytes[..within].to_vec());
        }
        Ok(())
    }

    /// Forgets the hardened units in blocks that become a hole.
    pub(crate) fn punch_hardened(
        &mut self,
        ino: Ino,
        from: BlockIndex,
        to: BlockIndex,
    ) -> Result<()> {
        let record = self.inode(ino)?;
        let Place::Objects(objects) = &record.place else { return Ok(()) };
        let Some(layout) = objects.first().filter(|_| record.hardened > 0) else { return Ok(()) };
        let units = u64::from(layout.block_size) / UNIT;
        self.remove_hardened(ino, from.0.saturating_mul(units), to.0.saturating_mul(units))
    }

    fn remove_hardened(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let found = self.collect(&keys::hardened_range(ino, from, to.max(from)))?;
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        for (key, _) in found {
            self.remove(key);
        }
        let record = self.inode_mut(ino)?;
        record.hardened = record.hardened.saturating_sub(count);
        Ok(())
    }
}

fn invalid(detail: &str) -> Error {
    Error::new(ErrorKind::Invalid, detail)
}
