//! Putting things right: after a crash, and when an NSD returns.
//!
//! **At start**, before anything is served:
//! 1. Range deletions that the metadata has are applied.
//! 2. Every stripe that was never settled is looked at: its versions are made equal
//!    ([`strake_array::stripe_io`]), and its file's allocated bytes are counted anew. Beyond the
//!    end of its file it was never told to the metadata: deleted.
//!
//! **When an NSD returns** that missed writes: it is written to from now on, everything is synced,
//! and then the blocks in its table of missed writes (`nsds/missed.rs`) are compared, or every
//! object where that is incomplete: what the NSD lacks is rebuilt from the others and copied with
//! the version it has there (put-if-newer, so a concurrent writer wins); what only it has is
//! deleted.
//!
//! **Deleting waits for writers.** A writer sends the strips of a block one beside the other. The
//! NSD may have accepted its strip when it is listed, and its partners not yet theirs when they
//! are. So a strip that the listings show on this NSD alone is looked for again under the block's
//! lock, and deleted only if the partners lack the block then ([`drop_surplus`]).

use crate::check::{nobodys, objects_on};
use crate::commit::sync_all;
use crate::file::Content;
use crate::file_io::Of;
use crate::shared::Shared;
use crate::write_behind::{load, on_disk};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use strake_array::meta_link::wrong_reply;
use strake_array::nsds::{Place, RecoveryEnd, Table};
use strake_array::reaper;
use strake_proto::layout::NsdAvailability;
use strake_proto::meta::{FileData, Inode, MetaOp, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdRequest, SettledStripe};
use strake_proto::{
    BlockIndex, Error, ErrorKind, Ino, ObjectId, ObjectLayout, Result, SlotIndex, Version,
};

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Stripes looked at.
    pub stripes: u64,
    /// Of these, written anew or copied.
    pub rewritten: u64,
    /// Of these, deleted.
    pub deleted: u64,
    /// Of these, not to be had: too many NSDs are away.
    pub failed: u64,
    /// Bytes of files that were stable and are gone.
    pub lost: u64,
    /// Whether everything was compared, because it was not known what a returning NSD had missed.
    pub full: bool,
}

/// Calls `visit` with every inode that has objects.
pub(crate) fn scan_objects(
    shared: &Shared,
    visit: &mut dyn FnMut(&Inode, &ObjectLayout) -> Result<()>,
) -> Result<()> {
    let mut after = Ino(0);
    loop {
        let query = MetaQuery::ScanInodes { after, limit: 1024 };
        let MetaReply::Inodes(page) = shared.array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last() else { return Ok(()) };
        after = last.attr.ino;
        for inode in &page {
            if let FileData::Objects(layouts) = &inode.data {
                for layout in layouts {
                    visit(inode, layout)?;
                }
            }
        }
    }
}

/// Recovery at start; see the file's head.
pub(crate) fn at_start(shared: &Shared) -> Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    let restarts = shared.array.io.nsds().restarts();
    reaper::apply_pending(&shared.array)?;
    let mut unsettled: HashMap<ObjectId, BTreeSet<BlockIndex>> = HashMap::new();
    for (object, block) in shared.array.io.unsettled()? {
        unsettled.entry(object).or_default().insert(block);
    }
    if unsettled.is_empty() {
        return Ok(report);
    }
    let mut concerned: Vec<(Inode, ObjectLayout, BTreeSet<BlockIndex>)> = Vec::new();
    scan_objects(shared, &mut |inode, layout| {
        if let Some(blocks) = unsettled.remove(&layout.object) {
            concerned.push((inode.clone(), *layout, blocks));
        }
        Ok(())
    })?;
    let mut settled = Vec::new();
    for (inode, layout, blocks) in &concerned {
        report.stripes += blocks.len() as u64;
        for &block in blocks.range(..end_of(inode, layout)) {
            match shared.array.io.recover(layout, block, Version::NONE) {
                Ok(Some(found)) => {
                    report.rewritten += u64::from(found.rewritten);
                    let (fs, object) = (shared.array.io.nsds().fs(), layout.object);
                    settled.push(SettledStripe { fs, object, block, version: found.version });
                }
                Ok(None) => report.deleted += 1,
                // It stays unsettled, and is looked at again when more NSDs are there.
                Err(error) if error.kind() == ErrorKind::Io => report.failed += 1,
                Err(error) => return Err(error),
            }
        }
    }
    // What was written anew is stable before it is counted. Else the power could go again, and the
    // count be all that is left of a stripe that nobody was ever told of.
    shared.array.rounds.run(true)?;
    if shared.array.io.nsds().restarts() != restarts {
        let detail = "a disk was started anew meanwhile: start again";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    }
    for (inode, layout, blocks) in &concerned {
        let end = end_of(inode, layout);
        // Both are durable before anything is settled or deleted: as long as one of its stripes is
        // neither, the file is counted anew by the next start.
        report.lost += recount(shared, inode, layout, end)?;
        let beyond = blocks.range(end..).count();
        if beyond > 0 {
            report.deleted += beyond as u64;
            delete_beyond(shared, inode, end)?;
        }
    }
    shared.array.meta.sync()?;
    reaper::apply_pending(&shared.array)?;
    shared.array.rounds.run(true)?;
    shared.array.rounds.settle(&mut settled);
    shared.array.rounds.run(true)?;
    Ok(report)
}

/// The first block beyond a file.
fn end_of(inode: &Inode, layout: &ObjectLayout) -> BlockIndex {
    BlockIndex(inode.attr.size.div_ceil(u64::from(layout.block_size)))
}

fn delete_beyond(shared: &Shared, inode: &Inode, from: BlockIndex) -> Result<()> {
    let version = shared.array.io.versions().next();
    shared.array.meta.apply(MetaOp::DeleteBeyond { ino: inode.attr.ino, from, version }).map(|_| ())
}

/// Bytes that the blocks of a range take on disks.
fn held_bytes(
    shared: &Shared,
    layout: &ObjectLayout,
    range: (BlockIndex, BlockIndex),
) -> Result<u64> {
    let blocks = shared.array.io.blocks(layout, range, &|_| Version::NONE)?;
    Ok(blocks.values().map(|(_, length)| u64::from(on_disk(*length))).sum())
}

/// Counts a file's bytes on disks below the block `end` anew; returns how many are lost.
///
/// The metadata is told of bytes only when they are stable, so after a crash there may be more than
/// it knows, never less. Less means that data was lost that was safe before: then its count stays
/// as it is, and `fs check` names the file until it is written anew or deleted.
fn recount(shared: &Shared, inode: &Inode, layout: &ObjectLayout, end: BlockIndex) -> Result<u64> {
    let held = held_bytes(shared, layout, (BlockIndex(0), end))?;
    // What lies beyond may be among what the metadata counts.
    let beyond = held_bytes(shared, layout, (end, BlockIndex::END))?;
    let lost = inode.attr.allocated.saturating_sub(held + beyond);
    if lost > 0 {
        eprintln!(
            "recovery: inode {}: {lost} bytes that were stable are gone; `strake fs check` names \
             its blocks",
            inode.attr.ino
        );
        return Ok(lost);
    }
    let delta = held as i64 - inode.attr.allocated as i64;
    if delta != 0 {
        let (ino, size) = (inode.attr.ino, inode.attr.size);
        shared.array.meta.apply(MetaOp::Update {
            ino,
            size,
            data: None,
            allocated_delta: delta,
            mtime: None,
            ctime: None,
        })?;
    }
    Ok(0)
}

/// Brings an NSD that missed writes up to date; `None` if it was not one, or was lost again.
pub(crate) fn recover_nsd(shared: &Shared, slot: SlotIndex) -> Result<Option<RecoveryReport>> {
    let nsds = shared.array.io.nsds();
    if !nsds.begin_recovery(slot) {
        return Ok(None);
    }
    let mut report = RecoveryReport::default();
    let done = loop {
        // What it misses from now on is in the next one.
        let table = nsds.missed().take(slot);
        let result = catch_up(shared, slot, &table, &mut report);
        nsds.show_progress(slot, None);
        let end = result.and_then(|()| nsds.end_recovery(slot));
        if !matches!(end, Ok(RecoveryEnd::Up | RecoveryEnd::More)) {
            nsds.missed().give_back(slot, table);
        }
        if end != Ok(RecoveryEnd::More) {
            break end;
        }
    };
    match done {
        Ok(RecoveryEnd::Up) => {
            eprintln!(
                "disks: NSD {} is up to date: {} stripes compared{}, {} copied, {} deleted",
                nsds.nsd(slot),
                report.stripes,
                if report.full { "" } else { " that it had missed" },
                report.rewritten,
                report.deleted
            );
            Ok(Some(report))
        }
        Ok(RecoveryEnd::More | RecoveryEnd::Lost) => {
            nsds.fail(slot);
            Ok(None)
        }
        Err(error) => {
            // A listing that met a damaged page would meet it each time.
            if error.kind() == ErrorKind::Corrupt && nsds.is_noted(slot) {
                crate::scrub::salvage(shared, slot);
            }
            nsds.fail(slot);
            Err(error)
        }
    }
}

/// Compares what a returning NSD may lack, and makes what it got stable.
fn catch_up(
    shared: &Shared,
    slot: SlotIndex,
    table: &Table,
    report: &mut RecoveryReport,
) -> Result<()> {
    let nsds = shared.array.io.nsds();
    let restarts = nsds.restarts();
    // What was pending goes first: less to compare, and nothing deleted is copied.
    reaper::apply_pending(&shared.array)?;
    let mut go_on = |bytes| {
        if !shared.replacer.pace.moved(bytes, &*shared.array.clock) {
            return Err(Error::new(ErrorKind::Unreachable, "goes on at the next start"));
        }
        if nsds.availability(slot) != NsdAvailability::Recovering {
            return Err(Error::new(ErrorKind::Unreachable, "it was lost again"));
        }
        Ok(())
    };
    // What it is to take over from an NSD that is being deleted is in no table.
    if table.is_complete() && nsds.rehoming().is_none() {
        compare_missed(shared, slot, table, report, &mut go_on)?;
    } else {
        report.full = true;
        reaper::apply_again(&shared.array, nsds.nsd(slot))?;
        compare_files(shared, (slot, Place::Holder), report, &mut go_on)?;
        delete_nobodys(shared, slot, report)?;
    }
    shared.array.rounds.run(true)?;
    // What it had only accepted, copies and deletions, may be gone.
    if nsds.restarts() != restarts {
        let detail = "a disk was started anew meanwhile: it is compared again";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    }
    if report.failed > 0 {
        let detail = format!("{} stripes cannot be rebuilt yet", report.failed);
        return Err(Error::new(ErrorKind::Io, detail));
    }
    Ok(())
}

/// Compares the blocks of a table.
fn compare_missed(
    shared: &Shared,
    slot: SlotIndex,
    table: &Table,
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    // As in `compare_files`.
    sync_all(shared)?;
    if table.is_clean() {
        return Ok(());
    }
    let (nsds, block_size) = (shared.array.io.nsds(), u64::from(shared.array.block_size));
    let total = table.blocks() * block_size;
    let mut done = 0;
    nsds.show_progress(slot, Some((0, total)));
    scan_objects(shared, &mut |inode, layout| {
        let Some(blocks) = table.blocks_of(layout.object) else { return Ok(()) };
        for run in runs(blocks) {
            let target = (slot, Place::Holder);
            compare(shared, target, inode.attr.ino, layout, run, report, go_on)?;
            go_on(0)?;
        }
        done += blocks.len() as u64 * block_size;
        nsds.show_progress(slot, Some((done.min(total), total)));
        Ok(())
    })
}

/// Ranges that cover the blocks. Blocks near each other are listed at once.
fn runs(blocks: &BTreeSet<BlockIndex>) -> Vec<(BlockIndex, BlockIndex)> {
    const NEAR: u64 = 64;
    let mut runs: Vec<(BlockIndex, BlockIndex)> = Vec::new();
    for block in blocks {
        let end = BlockIndex(block.0 + 1);
        match runs.last_mut() {
            Some(run) if block.0 - run.1.0 < NEAR => run.1 = end,
            _ => runs.push((*block, end)),
        }
    }
    runs
}

/// Deletes what no file has. A deletion waits for an NSD that is away; but an older copy of an NSD
/// brings back what was deleted from it long ago, and nobody waits to tell it.
pub(crate) fn delete_nobodys(
    shared: &Shared,
    slot: SlotIndex,
    report: &mut RecoveryReport,
) -> Result<()> {
    let mut objects: BTreeSet<ObjectId> = objects_on(shared, slot)?.into_iter().collect();
    scan_objects(shared, &mut |_, layout| {
        objects.remove(&layout.object);
        Ok(())
    })?;
    let (nsds, fs) = (shared.array.io.nsds(), shared.array.io.nsds().fs());
    for object in nobodys(shared, objects)? {
        let (from, to) = (BlockIndex(0), BlockIndex::END);
        let version = shared.array.io.versions().next();
        let delete = NsdRequest::DeleteRange { fs, object, from, to, version };
        nsds.call(slot, &delete, &[], &mut [])?;
        // Nobody writes to an object that is gone, so its tombstone guards nothing.
        let forget = NsdRequest::ForgetTombstones { fs, object, version };
        nsds.call(slot, &forget, &[], &mut [])?;
        report.deleted += 1;
    }
    Ok(())
}

/// Compares every object; calls `go_on` with the bytes copied, after each stripe.
pub(crate) fn compare_files(
    shared: &Shared,
    target: (SlotIndex, Place),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let nsds = shared.array.io.nsds();
    // Objects that are only reserved are unknown to the metadata's scan; after this they are known.
    sync_all(shared)?;
    let total = allocated(shared)?;
    let mut done = 0;
    nsds.show_progress(target.0, Some((0, total)));
    scan_objects(shared, &mut |inode, layout| {
        let all = (BlockIndex(0), BlockIndex::END);
        compare(shared, target, inode.attr.ino, layout, all, report, go_on)?;
        go_on(0)?;
        done += inode.attr.allocated;
        nsds.show_progress(target.0, Some((done.min(total), total)));
        Ok(())
    })
}

/// Bytes that all files have on disks, parity not counted.
pub(crate) fn allocated(shared: &Shared) -> Result<u64> {
    match shared.array.meta.query(&MetaQuery::Counts)? {
        MetaReply::Counts(counts) => Ok(counts.allocated),
        _ => Err(wrong_reply()),
    }
}

/// Runs `work` while nobody else writes this block or moves the file's bytes; `None` if the file
/// is gone or has its bytes elsewhere by now. `work` is told whether what the NSDs have of the
/// block is stable: nothing of it is on its way, nor was lost there.
pub(crate) fn exclusively<T>(
    shared: &Shared,
    ino: Ino,
    layout: &ObjectLayout,
    block: BlockIndex,
    work: &mut dyn FnMut(bool) -> Result<T>,
) -> Result<Option<T>> {
    let inode = shared.table.pin(ino);
    let file = match shared.file(&inode) {
        Err(error) if error.kind() == ErrorKind::Stale => return Ok(None),
        file => file?,
    };
    let result = loop {
        let content = file.content.read();
        if !matches!(&*content, Content::Object(now) if now.object == layout.object) {
            break Ok(None);
        }
        let held = file.block(layout, block.0);
        let mut data = held.data.write();
        if data.detached {
            continue;
        }
        let is_stable = !data.dirty && held.pinned.load(Ordering::Acquire) == 0;
        let result = work(is_stable).map(Some);
        if data.buffer.is_none() && !data.dirty && held.pinned.load(Ordering::Acquire) == 0 {
            // It was made for its lock only.
            data.detached = true;
            file.forget_block(block.0);
        }
        break result;
    };
    drop(file);
    shared.drop_idle_file(&inode);
    result
}

/// A strip that an NSD should have.
pub(crate) struct Strip<'a> {
    pub(crate) ino: Ino,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) block: BlockIndex,
    pub(crate) at: u8,
    /// Version and length that the others have of the block.
    pub(crate) newest: (Version, u32),
    /// Whether the NSD keeps older versions of the strip that it is to forget.
    pub(crate) keeps_older: bool,
}

/// Has an NSD, which holds version `held` of a strip, hold what the others have.
pub(crate) fn bring(
    shared: &Shared,
    strip: &Strip<'_>,
    target: (SlotIndex, Place),
    held: Option<Version>,
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let Strip { ino, layout, block, at, newest: (version, block_bytes), keeps_older } = *strip;
    report.stripes += 1;
    let stored = strake_proto::Geometry::is_stored(layout.code, u64::from(block_bytes), at);
    let outcome = match held {
        Some(held) if held > version => {
            let written = rewrite(shared, ino, layout, block);
            if written.is_ok() && !stored {
                // What is written now has nothing in its place.
                delete_one(shared, target, layout, block, held);
            }
            written.map(|()| 0)
        }
        Some(held) if stored && held == version && !keeps_older => return Ok(()),
        _ if stored => copy(shared, ino, layout, block, at, target),
        Some(_) => {
            delete_one(shared, target, layout, block, version);
            Ok(0)
        }
        None => return Ok(()),
    };
    match outcome {
        Ok(bytes) => {
            report.rewritten += 1;
            go_on(bytes)
        }
        Err(error) if error.kind() == ErrorKind::Stale => Ok(()),
        Err(error) => report.count_failure(shared, target.0, error),
    }
}

impl RecoveryReport {
    /// Counts a block that cannot be had now; the log names the first. Other errors are returned.
    fn count_failure(&mut self, shared: &Shared, slot: SlotIndex, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Io {
            return Err(error);
        }
        if self.failed == 0 {
            eprintln!("disks: NSD {}: recovery: {error}", shared.array.io.nsds().nsd(slot));
        }
        self.failed += 1;
        Ok(())
    }
}

/// Deletes what an NSD has of a block that the listings showed on no other; see the file's head. If
/// the others have the block by now, the NSD gets what it lacks of it. A block whose file is gone
/// or has its bytes elsewhere is left to the deletion of the object, which the metadata keeps
/// pending until every NSD has applied it.
pub(crate) fn drop_surplus(
    shared: &Shared,
    (ino, layout, block): (Ino, &ObjectLayout, BlockIndex),
    target: (SlotIndex, Place),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let range = (block, BlockIndex(block.0 + 1));
    let mut deleted = false;
    let mut look = |_| {
        let mut own: Option<(Version, bool)> = None;
        shared.array.io.list_slot(target, layout.object, range, 16, &mut |entry| {
            own = own.max(Some((entry.header.version, !entry.kept.is_empty())));
            true
        })?;
        let Some((held, keeps_older)) = own else { return Ok(None) };
        if let Some(at) = place_of(shared, layout, block, target.0)? {
            let floor = shared.array.floors.floor(layout.object, block);
            if let Some(newest) = shared.array.io.head(layout, block, floor)? {
                return Ok(Some((Strip { ino, layout, block, at, newest, keeps_older }, held)));
            }
        }
        delete_one(shared, target, layout, block, held);
        deleted = true;
        Ok(None)
    };
    let looked = exclusively(shared, ino, layout, block, &mut look);
    report.deleted += u64::from(deleted);
    match looked {
        Ok(Some(Some((strip, held)))) => bring(shared, &strip, target, Some(held), report, go_on),
        Ok(_) => go_on(0),
        Err(error) => report.count_failure(shared, target.0, error),
    }
}

/// The position at which the NSD of `slot` has, or is to take over, a strip of the block.
fn place_of(
    shared: &Shared,
    layout: &ObjectLayout,
    block: BlockIndex,
    slot: SlotIndex,
) -> Result<Option<u8>> {
    let (slots, heir) = shared.array.io.nsds().stripe_and_heir(layout, block)?;
    let own = slots.iter().position(|other| *other == slot).map(|at| at as u8);
    Ok(own.or(heir.filter(|(_, heir)| *heir == slot).map(|(at, _)| at.0)))
}

fn compare(
    shared: &Shared,
    target: (SlotIndex, Place),
    ino: Ino,
    layout: &ObjectLayout,
    range: (BlockIndex, BlockIndex),
    report: &mut RecoveryReport,
    go_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let slot = target.0;
    // The returning NSD first: what is written in between is then among the others'.
    let mut own: BTreeMap<BlockIndex, (Version, bool)> = BTreeMap::new();
    shared.array.io.list_slot(target, layout.object, range, 1024, &mut |entry| {
        // What it keeps of lives before would be in the way of what it has to keep from now on.
        own.insert(entry.key.block, (entry.header.version, !entry.kept.is_empty()));
        true
    })?;
    let floor = |block| shared.array.floors.floor(layout.object, block);
    let others = shared.array.io.blocks(layout, range, &floor)?;
    for (block, (version, block_bytes)) in &others {
        // What it is to take over from an NSD that is being deleted belongs to it as well.
        let Some(at) = place_of(shared, layout, *block, slot)? else { continue };
        let (held, keeps_older) = own.remove(block).unzip();
        let newest = (*version, *block_bytes);
        let keeps_older = keeps_older.unwrap_or(false);
        let strip = Strip { ino, layout, block: *block, at, newest, keeps_older };
        bring(shared, &strip, target, held, report, go_on)?;
    }
    for block in own.into_keys() {
        drop_surplus(shared, (ino, layout, block), target, report, go_on)?;
    }
    Ok(())
}

/// Copies what the NSD of `slot` lacks of a block. Nobody writes the block meanwhile: a version
/// that a writer is just bringing out is not there as a whole, and copying it would take its place.
fn copy(
    shared: &Shared,
    ino: Ino,
    layout: &ObjectLayout,
    block: BlockIndex,
    at: u8,
    target: (SlotIndex, Place),
) -> Result<u64> {
    let mut work = |is_stable: bool| {
        let floor = shared.array.floors.floor(layout.object, block);
        shared.array.io.copy_strip(layout, block, floor, at, target, is_stable)
    };
    match exclusively(shared, ino, layout, block, &mut work) {
        Ok(copied) => Ok(copied.unwrap_or(0)),
        // Versions that do not agree are decided where every writer decides them.
        Err(error) if error.kind() == ErrorKind::Io => {
            rewrite(shared, ino, layout, block).map(|()| 0)
        }
        Err(error) => Err(error),
    }
}

fn delete_one(
    shared: &Shared,
    target: (SlotIndex, Place),
    layout: &ObjectLayout,
    block: BlockIndex,
    version: Version,
) {
    let request = NsdRequest::DeleteRange {
        fs: shared.array.io.nsds().fs(),
        object: layout.object,
        from: block,
        to: BlockIndex(block.0 + 1),
        version,
    };
    // What stays because it failed is found by the next comparison, which it makes necessary.
    if shared.array.io.nsds().call_at(target, &request, &[], &mut []).is_err() {
        shared.array.io.nsds().fail_at(target);
    }
}

/// Writes a block anew at a version above all others, under its lock as any writer does.
pub(crate) fn rewrite(
    shared: &Shared,
    ino: Ino,
    layout: &ObjectLayout,
    block: BlockIndex,
) -> Result<()> {
    let inode = shared.table.pin(ino);
    let file = match shared.file(&inode) {
        Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
        file => file?,
    };
    let of = Of { shared, inode: &inode, file: &file };
    let found = loop {
        let content = file.content.read();
        let is_elsewhere =
            !matches!(&*content, Content::Object(now) if now.object == layout.object);
        if is_elsewhere || file.stored_limit(layout, block.0) == 0 {
            return Ok(());
        }
        let found = file.block(layout, block.0);
        let mut data = found.data.write();
        if data.detached {
            continue;
        }
        let end = data.limit as usize;
        load(shared, &inode, &file, layout, &found, &mut data, 0, end)?;
        let length = data.length;
        of.make_whole_dirty(layout, &found, &mut data, length)?;
        drop(data);
        break found;
    };
    crate::write_behind::flush_block(shared, &inode, &file, &found)
}
