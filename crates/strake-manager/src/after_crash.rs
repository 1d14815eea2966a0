//! Repair after a crash, before anything is served:
//!
//! 1. Range deletions that the metadata has recorded are applied.
//! 2. Every stripe that was never settled is looked at. Its versions are made equal
//!    ([`strake_array::stripe_io`]), and its file's allocated bytes are counted anew. A stripe
//!    beyond the end of its file is deleted, because the metadata was never told of it.
//!
//! **On full disks.** A stripe whose versions are unequal is written anew as a whole, also if a
//! patch of one unit made them unequal. The old versions are freed once the new one is settled. So
//! if the disks have no room for all of these stripes at once, they are settled some at a time.

use crate::report::RecoveryReport;
use crate::scan::scan_objects;
use std::collections::{BTreeSet, HashMap};
use strake_array::meta_link::wrong_reply;
use strake_array::stripe_io::{Found, on_disk};
use strake_array::{Array, reaper};
use strake_proto::meta::{FileData, Inode, MetaOp, MetaQuery, MetaReply};
use strake_proto::nsd::SettledStripe;
use strake_proto::{
    BlockIndex, Error, ErrorKind, Ino, ObjectId, ObjectLayout, Result, SlotIndex, Version,
};
use tracing::{error, warn};

/// So often a recovery begins if NSDs are started anew meanwhile.
const ATTEMPTS: u32 = 5;

/// Repairs; see the file's head.
///
/// # Errors
/// The metadata's; `Io` if too many NSDs are away to recover.
pub fn recover(array: &Array) -> Result<RecoveryReport> {
    recover_files(array, &|_| true)
}

/// Like [`recover`], for the files for which `of` says true. From the moment when it says so, no
/// client changes them. Until then a living client may. So nothing counts that was read of a file
/// before.
///
/// An NSD that was started anew is noticed at the next call of it, which is often one of these. It
/// may have lost what was found there before. Then all is done again, by what is there now.
///
/// # Errors
/// As [`recover`]. `Unreachable` if NSDs are started anew all the time.
pub fn recover_files(array: &Array, of: &dyn Fn(Ino) -> bool) -> Result<RecoveryReport> {
    let nsds = array.io.nsds();
    // A stripe whose writer died may be whole without its heir.
    nsds.heirs_may_lack();
    let mut attempts = 0;
    let recovered = loop {
        attempts += 1;
        let restarts = nsds.restarts();
        match make_equal(array, of) {
            Err(error)
                if error.kind() == ErrorKind::Unreachable
                    && nsds.restarts() != restarts
                    && attempts < ATTEMPTS =>
            {
                warn!(target: "recovery", "the recovery begins again: {error}");
            }
            recovered => break recovered,
        }
    };
    nsds.heirs_may_lack();
    recovered
}

fn make_equal(array: &Array, of: &dyn Fn(Ino) -> bool) -> Result<RecoveryReport> {
    let restarts = array.io.nsds().restarts();
    reaper::apply_pending(array)?;
    let mut unsettled: HashMap<ObjectId, BTreeSet<BlockIndex>> = HashMap::new();
    for (object, block) in array.io.unsettled()? {
        unsettled.entry(object).or_default().insert(block);
    }
    if unsettled.is_empty() {
        return Ok(RecoveryReport::default());
    }
    let mut files = Vec::new();
    scan_objects(array, &mut |inode, layout| {
        if let Some(blocks) = unsettled.remove(&layout.object)
            && of(inode.attr.ino)
            && let Some(inode) = now(array, inode.attr.ino, layout)?
        {
            files.push(File { inode, layout: *layout, blocks, has_lost: false });
        }
        Ok(())
    })?;
    let report = RecoveryReport::default();
    let repair = Repair { array, restarts, files, settled: Vec::new(), fit: None, report };
    repair.run()
}

/// A file as the metadata knows it by now. `None` if its bytes are elsewhere.
///
/// The scan may have read the inode before a living client told what it had, and gave the file up.
/// Only then is the file among those to be put right. By the size of before, that client's blocks
/// would lie beyond the end (rule R5 of the cluster).
fn now(array: &Array, ino: Ino, layout: &ObjectLayout) -> Result<Option<Inode>> {
    let inode = match array.meta.query(&MetaQuery::GetInode { ino }) {
        Ok(MetaReply::Inode(inode)) => *inode,
        Ok(_) => return Err(wrong_reply()),
        Err(error) if error.kind() == ErrorKind::Stale => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_there = matches!(&inode.data, FileData::Objects(all) if all.contains(layout));
    Ok(is_there.then_some(inode))
}

/// A file with stripes that were never settled.
struct File {
    inode: Inode,
    layout: ObjectLayout,
    /// The stripes.
    blocks: BTreeSet<BlockIndex>,
    /// Whether bytes that were stable are gone. The count of the file's bytes stays as it is then.
    has_lost: bool,
}

/// The repair of some files.
struct Repair<'a> {
    array: &'a Array,
    /// `NsdSet::restarts` at the beginning.
    restarts: u64,
    files: Vec<File>,
    /// The stripes that are equal now and are not settled yet.
    settled: Vec<(ObjectLayout, SettledStripe)>,
    /// How many stripes can be written anew, as far as is known.
    fit: Option<u64>,
    report: RecoveryReport,
}

impl Repair<'_> {
    /// The stripes that need no room come first. When they are settled, the NSDs free what they
    /// replaced.
    fn run(mut self) -> Result<RecoveryReport> {
        let mut stripes = Vec::new();
        for File { inode, layout, blocks, .. } in &self.files {
            self.report.stripes += blocks.len() as u64;
            stripes.extend(blocks.range(..end_of(inode, layout)).map(|block| (*layout, *block)));
        }
        let mut unequal = Vec::new();
        for (layout, block) in stripes {
            match self.array.io.recover(&layout, block, Version::NONE, false) {
                Err(error) if error.kind() == ErrorKind::Retry => unequal.push((layout, block)),
                result => self.note(&layout, block, result)?,
            }
        }
        for (layout, block) in unequal {
            self.write_anew(&layout, block)?;
        }
        self.settle()?;
        Ok(self.report)
    }

    /// Makes the versions of a stripe equal, which takes room for a new one. If there is too
    /// little, the stripes before are settled first.
    fn write_anew(&mut self, layout: &ObjectLayout, block: BlockIndex) -> Result<()> {
        let recover = |array: &Array| array.io.recover(layout, block, Version::NONE, true);
        let fit = self.fit.unwrap_or_else(|| self.array.room.whole_blocks_free());
        if fit == 0 {
            self.settle()?;
        }
        let mut result = recover(self.array);
        if fit > 0 && matches!(&result, Err(error) if error.kind() == ErrorKind::NoSpace) {
            self.settle()?;
            result = recover(self.array);
        }
        self.fit = (fit > 1).then(|| fit - 1);
        self.note(layout, block, result)
    }

    /// Notes what became of a stripe.
    fn note(
        &mut self,
        layout: &ObjectLayout,
        block: BlockIndex,
        result: Result<Option<Found>>,
    ) -> Result<()> {
        match result {
            Ok(Some(Found { version, rewritten, .. })) => {
                self.report.rewritten += u64::from(rewritten.is_some());
                let (fs, object) = (self.array.io.nsds().fs(), layout.object);
                let stripe = SettledStripe { fs, object, block, version, lacks: 0 };
                self.settled.push((*layout, stripe));
            }
            Ok(None) => self.report.deleted += 1,
            // The stripe stays unsettled. It is looked at again when more NSDs are there.
            Err(error) if error.kind() == ErrorKind::Io => self.report.failed += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Settles the stripes that are equal now. A stripe that is still unequal is counted with the
    /// length of its newest version. It will have at least this length, because those of which
    /// nothing is left were deleted before.
    fn settle(&mut self) -> Result<()> {
        let array = self.array;
        // Stripes written anew are made stable before they are counted. Otherwise a second power
        // cut could leave the count without the stripe.
        array.rounds.run(true)?;
        if array.io.nsds().restarts() != self.restarts {
            let detail = "a disk was started anew meanwhile";
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        for file in &mut self.files {
            // The count and the deletion are durable before any stripe is settled or deleted. Until
            // then the next start finds the stripe unsettled and counts the file anew.
            let end = end_of(&file.inode, &file.layout);
            self.report.lost += file.recount(array, end)?;
            let beyond = file.blocks.split_off(&end).len();
            if beyond > 0 {
                self.report.deleted += beyond as u64;
                delete_beyond(array, &file.inode, end)?;
            }
        }
        array.meta.sync()?;
        reaper::apply_pending(array)?;
        array.rounds.run(true)?;
        array.rounds.settle(&mut with_masks(array, std::mem::take(&mut self.settled))?);
        array.rounds.run(true)
    }
}

/// Names the positions that may lack stripes which are stable on all NSDs that are up now.
fn with_masks(
    array: &Array,
    stripes: Vec<(ObjectLayout, SettledStripe)>,
) -> Result<Vec<SettledStripe>> {
    let nsds = array.io.nsds();
    let is_up = |slot: &SlotIndex| nsds.availability(*slot).readable();
    let away: Vec<SlotIndex> = nsds.slots().filter(|slot| !is_up(slot)).collect();
    let mask = |(layout, stripe): (ObjectLayout, SettledStripe)| {
        let lacks = nsds.positions_on(&layout, stripe.block, &away)?;
        Ok(SettledStripe { lacks, ..stripe })
    };
    stripes.into_iter().map(mask).collect()
}

/// The first block beyond a file.
fn end_of(inode: &Inode, layout: &ObjectLayout) -> BlockIndex {
    BlockIndex(inode.attr.size.div_ceil(u64::from(layout.block_size)))
}

fn delete_beyond(array: &Array, inode: &Inode, from: BlockIndex) -> Result<()> {
    let version = array.io.versions().next();
    array.meta.apply(MetaOp::DeleteBeyond { ino: inode.attr.ino, from, version }).map(|_| ())
}

/// Bytes that the blocks of a range take on disks.
fn held_bytes(
    array: &Array,
    layout: &ObjectLayout,
    range: (BlockIndex, BlockIndex),
) -> Result<u64> {
    let blocks = array.io.blocks(layout, range, &|_| Version::NONE)?;
    Ok(blocks.values().map(|(_, length)| u64::from(on_disk(*length))).sum())
}

impl File {
    /// Counts the file's bytes on disks below the block `end` anew. Returns how many are lost.
    ///
    /// The metadata is told of bytes only when they are stable. So after a crash there may be more
    /// bytes than it knows, and never fewer. If there are fewer, data was lost that had been safe.
    /// The count stays as it is in that case, and `fs check` names the file until it is written
    /// anew or deleted.
    fn recount(&mut self, array: &Array, end: BlockIndex) -> Result<u64> {
        if self.has_lost {
            return Ok(0);
        }
        let attr = &mut self.inode.attr;
        let held = held_bytes(array, &self.layout, (BlockIndex(0), end))?;
        // The metadata's count may include blocks beyond the end.
        let beyond = held_bytes(array, &self.layout, (end, BlockIndex::END))?;
        let lost = attr.allocated.saturating_sub(held + beyond);
        if lost > 0 {
            error!(
                target: "recovery",
                "inode {}: {lost} bytes that were stable are gone; `strake fs check` names \
                 its blocks",
                attr.ino
            );
            self.has_lost = true;
            return Ok(lost);
        }
        let delta = held as i64 - attr.allocated as i64;
        if delta != 0 {
            array.meta.apply(MetaOp::Update {
                ino: attr.ino,
                size: attr.size,
                data: None,
                allocated_delta: delta,
                mtime: None,
                ctime: None,
            })?;
            attr.allocated = held;
        }
        Ok(0)
    }
}
