//! The deterministic state machine. It takes an entry and a store, and returns a reply and changes.
//!
//! Equal stores and equal entries give equal replies and equal bytes. The result depends on no
//! clock, on no chance and on no order of a hash table. An error changes nothing. A counted entry
//! is applied once, and gets the same answer each time it arrives (`ops/window.rs`).

use crate::keys;
use crate::ops::harden::NewHardened;
use crate::ops::rename::{Name, Nesting};
use crate::ops::truncate::{Hole, NewSize};
use crate::ops::update::NewContent;
use crate::ops::window::Admission;
use crate::ops::xattr::NewXattr;
use crate::ops::{
    configure, create, go_on, harden, link, numbers, rename, session, set_attr, truncate, unlink,
    update, window, xattr,
};
use crate::records::SessionRecord;
use crate::transaction::Transaction;
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaEntry, MetaOp, MetaReply};
use strake_proto::{ClientId, Error, ErrorKind, NsdId, Result, Timestamp};
use strake_store::{Batch, KvRead};

/// Applies an entry that is not counted.
///
/// # Errors
/// As [`MetaOp`] says for each operation. An error changes nothing.
pub fn apply(kv: &dyn KvRead, entry: &MetaEntry) -> Result<(MetaReply, Batch)> {
    apply_knowing(kv, entry, &[])
}

/// As [`apply`], with answers that were found before.
///
/// # Errors
/// The same.
pub(crate) fn apply_knowing(
    kv: &dyn KvRead,
    entry: &MetaEntry,
    known: &[(Nesting, bool)],
) -> Result<(MetaReply, Batch)> {
    if entry.sequence != 0 {
        return Err(Error::new(ErrorKind::Invalid, "a counted change without its life"));
    }
    let mut txn = Transaction::new(kv, entry.client, entry.time);
    txn.known = known;
    let reply = decide(&mut txn, entry)?;
    if matches!(entry.op, MetaOp::Join) {
        txn.put_raw(keys::session(entry.client), SessionRecord::default().encode());
    }
    Ok((reply, txn.finish()))
}

/// Applies a counted entry, unless it was applied before (see `ops/window.rs`). If the entry is
/// new, `position` is its place among all entries. If the returned batch is empty, the entry was
/// answered before.
///
/// # Errors
/// As [`strake_proto::meta::MetaPort::apply_counted`] says, and the store's own. After an error
/// nothing is changed and no answer is kept.
pub fn apply_counted(
    kv: &dyn KvRead,
    counted: &CountedEntry,
    position: u64,
) -> Result<(CountedAnswer, Batch)> {
    apply_counted_knowing(kv, counted, position, &[])
}

/// As [`apply_counted`], with answers that were found before.
///
/// # Errors
/// The same.
pub(crate) fn apply_counted_knowing(
    kv: &dyn KvRead,
    counted: &CountedEntry,
    position: u64,
    known: &[(Nesting, bool)],
) -> Result<(CountedAnswer, Batch)> {
    apply_numbered(kv, counted, position, true, known)
}

/// As [`apply_counted`], for an entry that stands in a log since the time when the numbers of all
/// clients came from the same counters.
///
/// # Errors
/// The same.
pub(crate) fn apply_counted_before(
    kv: &dyn KvRead,
    counted: &CountedEntry,
    position: u64,
) -> Result<(CountedAnswer, Batch)> {
    apply_numbered(kv, counted, position, false, &[])
}

fn apply_numbered(
    kv: &dyn KvRead,
    counted: &CountedEntry,
    position: u64,
    has_own_numbers: bool,
    known: &[(Nesting, bool)],
) -> Result<(CountedAnswer, Batch)> {
    let entry = &counted.entry;
    let begin = || Transaction::new(kv, entry.client, entry.time);
    let mut txn = begin();
    txn.known = known;
    let mut session = match window::admit(&txn, counted)? {
        Admission::New(session) => session,
        Admission::Again(answer) => return Ok((answer, Batch::new())),
    };
    txn.numbers = has_own_numbers.then_some((session.numbers, position));
    let outcome = decide(&mut txn, entry);
    if let Some((numbers, _)) = txn.numbers.filter(|_| outcome.is_ok()) {
        session.numbers = numbers;
    }
    if let Err(error) = &outcome {
        // A life that could not be opened keeps no answers.
        if !window::is_refusal(error) || matches!(entry.op, MetaOp::Join) {
            return Err(error.clone());
        }
        txn = begin();
    }
    let outcome = window::remember(&mut txn, session, counted, position, outcome);
    Ok((CountedAnswer { position, outcome }, txn.finish()))
}

/// The changes with which a log goes on after the loss of its majority (`ops/go_on.rs`). There are
/// none if the file system is not made yet.
///
/// # Errors
/// `Invalid` if there are no more numbers; the store's.
pub(crate) fn go_on(kv: &dyn KvRead, lost: &[NsdId]) -> Result<Batch> {
    let mut txn = Transaction::new(kv, ClientId::MANAGER, Timestamp::default());
    go_on::go_on(&mut txn, lost)?;
    Ok(txn.finish())
}

/// The position up to which the log must be durable before a counted entry may be answered with
/// `answer`; 0 if that does not matter. See `ops/numbers.rs`.
///
/// # Errors
/// The store's.
pub(crate) fn durable_first(
    kv: &dyn KvRead,
    counted: &CountedEntry,
    answer: &CountedAnswer,
) -> Result<u64> {
    numbers::durable_first(kv, &counted.entry, answer)
}

/// The answer of a counted entry, if the entry was applied before.
///
/// # Errors
/// As [`apply_counted`], for an entry that is not admitted.
pub fn answer_of(kv: &dyn KvRead, counted: &CountedEntry) -> Result<Option<CountedAnswer>> {
    let txn = Transaction::new(kv, counted.entry.client, counted.entry.time);
    match window::admit(&txn, counted)? {
        Admission::New(_) => Ok(None),
        Admission::Again(answer) => Ok(Some(answer)),
    }
}

fn decide(txn: &mut Transaction<'_>, entry: &MetaEntry) -> Result<MetaReply> {
    set_attr::check_time(entry.time)?;
    dispatch(txn, &entry.op)
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
        MetaOp::CreateAs { parent, name, new, ino } => {
            create::create_as(txn, (*parent, name), new, *ino)
        }
        MetaOp::Remove { parent, name, ino, open } => {
            unlink::remove(txn, (*parent, name), *ino, *open)
        }
        _ => dispatch_inode(txn, op),
    }
}

/// The changes that do not concern names.
fn dispatch_inode(txn: &mut Transaction<'_>, op: &MetaOp) -> Result<MetaReply> {
    match op {
        MetaOp::SetAttr { ino, change } => set_attr::set_attr(txn, *ino, change),
        MetaOp::NewObject { ino } => update::new_object(txn, *ino),
        MetaOp::NewObjectAs { ino, layout } => update::new_object_as(txn, *ino, *layout),
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
        MetaOp::FoldedUnits { ino, units } => harden::folded_units(txn, *ino, units),
        &MetaOp::Truncate { ino, size, from_block, version, allocated_delta } => {
            let new = NewSize { size, from_block, version, allocated_delta };
            truncate::truncate(txn, ino, &new)
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
        MetaOp::Leave => session::leave(txn),
        MetaOp::ReserveGrants { count } => session::reserve_grants(txn, *count),
        MetaOp::SetNsdState { nsd, state } => configure::set_nsd_state(txn, *nsd, *state),
        MetaOp::SetConfig { name, value } => configure::set_config(txn, name, value),
        MetaOp::ReplaceNsd { old, new, state } => configure::replace_nsd(txn, *old, *new, *state),
        // The store moves the copies (store/members.rs); the state machine knows nothing of them.
        MetaOp::MoveMetadataCopy { .. } => Ok(MetaReply::Done),
        MetaOp::DeleteNsd { nsd } => configure::delete_nsd(txn, *nsd),
        MetaOp::MoveData { ino, object, from } => update::move_data(txn, *ino, *object, *from),
        MetaOp::AddNsd { nsd, failure_group } => configure::add_nsd(txn, *nsd, *failure_group),
        MetaOp::ReserveInodes { count } => numbers::reserve_inodes(txn, *count),
        MetaOp::ReserveObjects { count } => numbers::reserve_objects(txn, *count),
        MetaOp::Format(configuration) => configure::format(txn, configuration),
        MetaOp::Create { .. }
        | MetaOp::CreateAs { .. }
        | MetaOp::CreateOrphan { .. }
        | MetaOp::Link { .. }
        | MetaOp::Unlink { .. }
        | MetaOp::Remove { .. }
        | MetaOp::Rmdir { .. }
        | MetaOp::Rename { .. } => unreachable!("changes of names are made elsewhere"),
    }
}
