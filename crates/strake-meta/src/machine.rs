//! The deterministic state machine: entry and store in, reply and changes out.
//!
//! Equal stores and equal entries give equal replies and equal bytes: no clock, no chance, no
//! order of a hash table. An error changes nothing. A client's last counted request is answered
//! again from its record, so that a retry is applied once.

use crate::keys;
use crate::ops::harden::NewHardened;
use crate::ops::rename::Name;
use crate::ops::truncate::{Hole, NewSize};
use crate::ops::update::NewContent;
use crate::ops::xattr::NewXattr;
use crate::ops::{
    configure, create, harden, link, rename, session, set_attr, truncate, unlink, update, xattr,
};
use crate::records::{CONFIGURATION, SessionRecord};
use crate::transaction::{Transaction, unformatted};
use strake_proto::meta::{MetaEntry, MetaOp, MetaReply};
use strake_proto::{Error, ErrorKind, Result};
use strake_store::{Batch, KvRead};

/// Applies an entry.
///
/// # Errors
/// As [`MetaOp`] says for each; nothing is changed then.
pub fn apply(kv: &dyn KvRead, entry: &MetaEntry) -> Result<(MetaReply, Batch)> {
    set_attr::check_time(entry.time)?;
    let mut txn = Transaction::new(kv, entry.client, entry.time);
    // Every other operation meets the lack of a format by itself, if it changes anything.
    if matches!(entry.op, MetaOp::Join) && txn.get_raw(&keys::global(CONFIGURATION))?.is_none() {
        return Err(unformatted());
    }
    if matches!(entry.op, MetaOp::Join) {
        let reply = session::join(&mut txn)?;
        session::begin_count(&mut txn, entry.sequence);
        return Ok((reply, txn.finish()));
    }
    if entry.sequence == 0 {
        let reply = dispatch(&mut txn, &entry.op)?;
        return Ok((reply, txn.finish()));
    }
    let key = keys::session(entry.client);
    if let Some(last) = txn.get::<SessionRecord>(&key)? {
        if last.sequence == entry.sequence {
            return Ok((last.reply, Batch::new()));
        }
        if last.sequence > entry.sequence {
            let detail = format!(
                "request {} of client {} comes after its request {}",
                entry.sequence, entry.client, last.sequence
            );
            return Err(Error::new(ErrorKind::Stale, detail));
        }
    }
    let reply = dispatch(&mut txn, &entry.op)?;
    let record = SessionRecord { sequence: entry.sequence, reply };
    txn.put(key, &record);
    Ok((record.reply, txn.finish()))
}

fn dispatch(txn: &mut Transaction<'_>, op: &MetaOp) -> Result<MetaReply> {
    match op {
        MetaOp::Create { parent, name, new } => create::create(txn, *parent, name, new),
        MetaOp::CreateOrphan { parent, new } => create::create_orphan(txn, *parent, new),
        MetaOp::Link { ino, parent, name } => link::link(txn, *ino, *parent, name),
        MetaOp::Unlink { parent, name, open } => unlink::unlink(txn, *parent, name, *open),
        MetaOp::Rmdir { parent, name, open } => unlink::rmdir(txn, *parent, name, *open),
        MetaOp::Rename { parent, name, new_parent, new_name, mode, open } => {
            let source = Name { parent: *parent, name };
            let target = Name { parent: *new_parent, name: new_name };
            rename::rename(txn, source, target, *mode, *open)
        }
        MetaOp::SetAttr { ino, change } => set_attr::set_attr(txn, *ino, change),
        MetaOp::NewObject { ino } => update::new_object(txn, *ino),
        MetaOp::Update { ino, size, data, allocated_delta, mtime, ctime } => {
            let new = NewContent {
                size: *size,
                data: data.as_ref(),
                allocated_delta: *allocated_delta,
                mtime: *mtime,
                ctime: *ctime,
            };
            update::update(txn, *ino, &new)
        }
        MetaOp::Harden { ino, size, allocated_delta, mtime, ctime, units } => {
            let new = NewHardened {
                size: *size,
                allocated_delta: *allocated_delta,
                mtime: *mtime,
                ctime: *ctime,
                units,
            };
            harden::harden(txn, *ino, &new)
        }
        MetaOp::Folded { ino } => harden::folded(txn, *ino),
        MetaOp::Truncate { ino, size, from_block, version, allocated_delta } => {
            let new = NewSize {
                size: *size,
                from_block: *from_block,
                version: *version,
                allocated_delta: *allocated_delta,
            };
            truncate::truncate(txn, *ino, &new)
        }
        MetaOp::DeleteBlocks { ino, from, to, version, allocated_delta } => {
            let hole =
                Hole { from: *from, to: *to, version: *version, allocated_delta: *allocated_delta };
            truncate::delete_blocks(txn, *ino, &hole)
        }
        MetaOp::DeleteBeyond { ino, from, version } => {
            truncate::delete_beyond(txn, *ino, *from, *version)
        }
        MetaOp::RangeApplied { id, nsds } => session::range_applied(txn, *id, nsds),
        MetaOp::SetXattr { ino, name, value, mode, clear_setgid } => {
            let new = NewXattr { name, value, mode: *mode, clear_setgid: *clear_setgid };
            xattr::set(txn, *ino, &new)
        }
        MetaOp::RemoveXattr { ino, name } => xattr::remove(txn, *ino, name),
        MetaOp::Reap { ino } => session::reap(txn, *ino),
        MetaOp::Join => session::join(txn),
        MetaOp::SetNsdState { nsd, state } => configure::set_nsd_state(txn, *nsd, *state),
        MetaOp::SetConfig { name, value } => configure::set_config(txn, name, value),
        MetaOp::ReplaceNsd { old, new, state } => configure::replace_nsd(txn, *old, *new, *state),
        // The copies are not the state machine's; the store moves them (store/members.rs).
        MetaOp::VacateNsd { .. } => Ok(MetaReply::Done),
        MetaOp::DeleteNsd { nsd } => configure::delete_nsd(txn, *nsd),
        MetaOp::Format(configuration) => configure::format(txn, configuration),
    }
}
