//! The cross-check of metadata and strips: it compares the metadata of files with the strips that
//! the NSDs list. It reads only, and the file system stays in use.
//!
//! The check verifies three things.
//!
//! * For every block of every file: enough strips of one version are there; no strip is missing,
//!   old, in the wrong place or of the wrong shape; no strip lies beyond the end of the file unless
//!   its deletion is pending.
//! * For every file: its blocks add up to the bytes that it has allocated. A block of which nothing
//!   is left shows nowhere else.
//! * For every object on an NSD: it belongs to a file, or is reserved for one, or its deletion is
//!   pending.
//!
//! **In use.** The first look takes no locks. A file that looks wrong may only be changing, so it
//! is looked at again while no other thread reads, writes or cuts it. Then the NSDs hold exactly
//! what was sent, and the sums include what the metadata is yet to be told. Only what is wrong in
//! the second look is a fault. An object that no file has is looked for again in every place that
//! it may have come from or gone to.
//!
//! NSDs that cannot be read are left out. Where only they could tell, the check makes a note.

mod paths;

use crate::context::Repair;
use crate::objects::{object_from, objects_on, unowned};
use crate::scan::scan_objects;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use strake_array::floors::FloorsOf;
use strake_array::reaper;
use strake_array::stripe_io::on_disk;
use strake_proto::meta::MetaQuery;
use strake_proto::nsd::StripEntry;
use strake_proto::{
    BlockIndex, ErrorKind, Geometry, Ino, ObjectId, ObjectLayout, Result, SlotIndex, StripIndex,
    Version,
};
use strake_stripe::StripeCode;

/// The most faults reported.
const FAULTS_MAX: usize = 1000;
/// The most faults reported of one file.
const FAULTS_PER_FILE_MAX: usize = 20;
/// So many blocks are looked at together, so that a large file needs bounded memory.
const WINDOW_BLOCKS: u64 = 2048;
/// The most ranges of missing blocks named for one file.
const HOLES_NAMED_MAX: usize = 8;

/// What a cross-check looked at and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StripCheck {
    /// Files with blocks of their own.
    pub files: u64,
    /// Their blocks.
    pub blocks: u64,
    /// The strips of these.
    pub strips: u64,
    /// Bytes that files have allocated, without parity.
    pub allocated: u64,
    /// Objects that NSDs hold strips of.
    pub objects: u64,
    /// Files looked at a second time, because they were changing or are at fault.
    pub again: u64,
    /// One sentence for each fault; at most 1,000.
    pub faults: Vec<String>,
    /// One sentence for each thing that could not be looked at.
    pub notes: Vec<String>,
    /// The check was ended early, so it has not looked at everything.
    pub is_partial: bool,
}

/// What one look at a file's object found.
#[derive(Default)]
struct Look {
    blocks: u64,
    strips: u64,
    held: u64,
    faults: Vec<String>,
    /// Blocks that cannot be judged until NSDs return.
    unknown: u64,
    /// The first few ranges of blocks of which nothing is stored.
    holes: Vec<(u64, u64)>,
    /// Holes below this block are known.
    seen_to: u64,
}

/// A file as it should be.
#[derive(Clone, Copy)]
struct Expected {
    size: u64,
    allocated: i64,
}

/// Is called at short intervals with the number of files looked at so far. Its error ends the
/// check.
pub(crate) type Watch<'a> = &'a dyn Fn(u64) -> Result<()>;

/// Checks; see the file's head. If `watch` fails with `Interrupted`, what was found until then is
/// the result.
pub(crate) fn check(repair: &Repair, watch: Watch<'_>) -> Result<StripCheck> {
    let mut report = StripCheck::default();
    match look_at_all(repair, watch, &mut report) {
        Err(error) if error.kind() == ErrorKind::Interrupted => report.is_partial = true,
        looked => looked?,
    }
    Ok(report)
}

fn look_at_all(repair: &Repair, watch: Watch<'_>, report: &mut StripCheck) -> Result<()> {
    watch(0)?;
    if let Err(error) = repair.exclusion.flush_all() {
        report.notes.push(format!("not everything could be made durable: {error}"));
    }
    reaper::apply_pending(&repair.array)?;
    let nsds = repair.array.io.nsds();
    for slot in nsds.slots().filter(|slot| !nsds.availability(*slot).readable()) {
        report.notes.push(format!("NSD {} cannot be read and was left out", nsds.nsd(slot)));
    }
    let mut known: HashSet<ObjectId> = HashSet::new();
    let mut suspects: Vec<(Ino, ObjectLayout)> = Vec::new();
    scan_objects(&repair.array, &mut |inode, layout| {
        known.insert(layout.object);
        let watch = || watch(known.len() as u64);
        let (size, allocated) = (inode.attr.size, inode.attr.allocated as i64);
        let look = look(repair, layout, Expected { size, allocated }, &watch)?;
        if look.faults.is_empty() {
            report.take(&look);
        } else {
            suspects.push((inode.attr.ino, *layout));
        }
        Ok(())
    })?;
    let mut at_fault: BTreeMap<Ino, Vec<String>> = BTreeMap::new();
    let watch = || watch(known.len() as u64);
    for (ino, layout) in suspects {
        report.again += 1;
        let Some(look) = look_again(repair, ino, &layout, &watch)? else { continue };
        report.take(&look);
        if !look.faults.is_empty() {
            at_fault.entry(ino).or_default().extend(look.faults);
        }
    }
    let paths = paths::of(&repair.array, at_fault.keys().copied().collect())?;
    for (ino, faults) in at_fault {
        let path = paths.get(&ino).map(|path| format!(" ({path})")).unwrap_or_default();
        faults.iter().for_each(|text| report.fault(format!("inode {ino}{path}: {text}")));
    }
    check_objects(repair, &known, report, &watch)
}

impl StripCheck {
    fn take(&mut self, look: &Look) {
        self.files += 1;
        self.blocks += look.blocks;
        self.strips += look.strips;
        self.allocated += look.held;
        if look.unknown > 0 {
            let text = format!("{} blocks cannot be read until NSDs return", look.unknown);
            self.notes.push(text);
        }
    }

    fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(text);
        }
    }
}

/// The second look at a file, while no other thread works on it. `None` if the file is gone or has
/// its bytes elsewhere by now.
fn look_again(
    repair: &Repair,
    ino: Ino,
    layout: &ObjectLayout,
    watch: &dyn Fn() -> Result<()>,
) -> Result<Option<Look>> {
    let mut found = None;
    repair.exclusion.with_file(ino, layout, &mut |file| {
        let told = match repair.array.meta.query_inode(&MetaQuery::GetInode { ino }) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
            told => told?,
        };
        let allocated = told.attr.allocated as i64 + file.untold;
        let expected = Expected { size: file.size, allocated };
        let nsds = repair.array.io.nsds();
        let deleted = nsds.deleted_count();
        let first = look(repair, layout, expected, watch)?;
        // If an NSD was deleted meanwhile, strips have other places now.
        let moved = nsds.deleted_count() != deleted;
        found = Some(if moved { look(repair, layout, expected, watch)? } else { first });
        Ok(())
    })?;
    Ok(found)
}

fn look(
    repair: &Repair,
    layout: &ObjectLayout,
    expected: Expected,
    watch: &dyn Fn() -> Result<()>,
) -> Result<Look> {
    let nsds = repair.array.io.nsds();
    // Both are taken before anything is listed. So strips that a deletion takes away meanwhile are
    // below its floor, and an NSD that returns meanwhile is not asked.
    let floors = repair.array.floors.floors_of(layout.object);
    let readable = nsds.slots().filter(|slot| nsds.availability(*slot).readable()).collect();
    let mut at = At { repair, layout, floors, readable, expected };
    let mut found = Look::default();
    let mut from = BlockIndex(0);
    loop {
        watch()?;
        let to = BlockIndex(from.0.saturating_add(WINDOW_BLOCKS));
        let mut blocks: BTreeMap<BlockIndex, Vec<(SlotIndex, StripEntry)>> = BTreeMap::new();
        for slot in at.readable.clone() {
            repair.array.io.list_if_there(slot, layout, (from, to), 4096, &mut |entry| {
                blocks.entry(entry.key.block).or_default().push((slot, entry.clone()));
                true
            })?;
            if !nsds.availability(slot).readable() {
                at.readable.remove(&slot);
            }
        }
        for (block, entries) in &blocks {
            at.look_at_block(*block, entries, &mut found)?;
        }
        // Ranges without blocks are skipped, because files may be extremely sparse.
        let floor = |block| at.floors.at(block);
        match repair.array.io.first_block(layout, (to, BlockIndex::END), &floor)? {
            Some(next) => from = next,
            None => break,
        }
    }
    found.see_hole(expected.size.div_ceil(u64::from(layout.block_size)));
    let held = found.held as i64;
    if held < expected.allocated {
        let text = format!(
            "{} bytes are allocated and its blocks hold {held}: data is gone, of {}",
            expected.allocated,
            found.holes_text()
        );
        found.faults.push(text);
    } else if held > expected.allocated {
        let text = format!("its blocks hold {held} bytes and {} are allocated", expected.allocated);
        found.faults.push(text);
    }
    Ok(found)
}

impl Look {
    fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_PER_FILE_MAX {
            self.faults.push(text);
        }
    }

    /// Notes that nothing is stored from the last block seen up to `to`.
    fn see_hole(&mut self, to: u64) {
        if self.seen_to < to && self.holes.len() < HOLES_NAMED_MAX {
            self.holes.push((self.seen_to, to));
        }
    }

    fn holes_text(&self) -> String {
        let name = |(from, to): &(u64, u64)| match to - from {
            1 => format!("block {from}"),
            _ => format!("blocks {from} to {}", to - 1),
        };
        match &self.holes[..] {
            [] => "a block that became shorter".to_owned(),
            holes => holes.iter().map(name).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The file that is looked at, and the circumstances.
struct At<'a> {
    repair: &'a Repair,
    layout: &'a ObjectLayout,
    floors: FloorsOf,
    readable: BTreeSet<SlotIndex>,
    expected: Expected,
}

impl At<'_> {
    fn look_at_block(
        &self,
        block: BlockIndex,
        entries: &[(SlotIndex, StripEntry)],
        found: &mut Look,
    ) -> Result<()> {
        // Strips below the floor have a deletion pending.
        let floor = self.floors.at(block);
        let live: Vec<&(SlotIndex, StripEntry)> = entries
            .iter()
            .filter(|(slot, entry)| entry.header.version >= floor && !self.is_heirs(*slot, entry))
            .collect();
        let Some((_, newest)) = live.iter().max_by_key(|(_, entry)| entry.header.version) else {
            return Ok(());
        };
        let (version, length) = (newest.header.version, newest.header.block_bytes);
        found.see_hole(block.0);
        found.seen_to = block.0 + 1;
        found.blocks += 1;
        found.strips += live.len() as u64;
        found.held += u64::from(on_disk(length));
        if block.0 >= self.expected.size.div_ceil(u64::from(self.layout.block_size)) {
            found.fault(format!("block {block} is stored beyond the end of the file"));
        }
        if length == 0 || length > self.layout.block_size {
            found.fault(format!("block {block} claims a length of {length} bytes"));
            return Ok(());
        }
        self.look_at_strips(block, (version, length), &live, found)
    }

    /// Whether a strip was copied to an heir, so that it does not count before the other NSD is
    /// deleted.
    fn is_heirs(&self, slot: SlotIndex, entry: &StripEntry) -> bool {
        let nsds = self.repair.array.io.nsds();
        nsds.being_emptied().is_some()
            && nsds
                .stripe_and_heir(self.layout, entry.key.block)
                .is_ok_and(|(_, heir)| heir == Some((entry.key.strip, slot)))
    }

    fn look_at_strips(
        &self,
        block: BlockIndex,
        (version, length): (Version, u32),
        live: &[&(SlotIndex, StripEntry)],
        found: &mut Look,
    ) -> Result<()> {
        let nsds = self.repair.array.io.nsds();
        let code = self.layout.code;
        let slots = nsds.stripe(self.layout, block)?;
        let strip_bytes = Geometry::of(code, u64::from(length)).strip_bytes;
        let mut wrong: Vec<String> = Vec::new();
        for (slot, entry) in live {
            let strip = entry.key.strip;
            if slots.get(usize::from(strip.0)) != Some(slot) {
                let nsd = nsds.nsd(*slot);
                wrong.push(format!("strip {strip} lies on NSD {nsd}, where it does not belong"));
            }
        }
        let (mut good, mut away) = (0, 0);
        for (at, slot) in (0u8..).zip(slots.iter()) {
            let stored = Geometry::is_stored(code, u64::from(length), at);
            let is_own = |(place, entry): &&&(SlotIndex, StripEntry)| {
                place == slot && entry.key.strip == StripIndex(at)
            };
            let own = live.iter().find(is_own).map(|(_, entry)| entry);
            let place = format!("strip {at} on NSD {}", nsds.nsd(*slot));
            match own {
                None if !stored => {}
                None if !self.readable.contains(slot) => away += 1,
                None => wrong.push(format!("{place} is missing")),
                Some(_) if !stored => wrong.push(format!("{place} is one too many")),
                Some(own) if own.header.version != version => {
                    wrong.push(format!("{place} is of an old version"));
                }
                Some(own)
                    if own.header.block_bytes != length
                        || own.strip_bytes as usize != strip_bytes =>
                {
                    wrong.push(format!("{place} has the wrong length"));
                }
                Some(_) => good += 1,
            }
        }
        let needed = StripeCode::of_block(code, u64::from(length)).data_strips();
        let wrong = wrong.join(", ");
        if good + away < needed {
            let text = format!("block {block} is lost: {good} of {needed} strips are there");
            found.fault(format!("{text}: {wrong}"));
        } else if !wrong.is_empty() {
            found.fault(format!("block {block}: {wrong}"));
        } else if good < needed {
            found.unknown += 1;
        }
        Ok(())
    }
}

/// Looks for objects on NSDs that belong to no file.
fn check_objects(
    repair: &Repair,
    known: &HashSet<ObjectId>,
    report: &mut StripCheck,
    watch: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let mut all: BTreeSet<ObjectId> = BTreeSet::new();
    let mut strange: BTreeSet<(ObjectId, SlotIndex)> = BTreeSet::new();
    let nsds = repair.array.io.nsds();
    for slot in nsds.slots().filter(|slot| nsds.availability(*slot).readable()) {
        watch()?;
        for object in objects_on(&repair.array, slot)? {
            all.insert(object);
            if !known.contains(&object) {
                strange.insert((object, slot));
            }
        }
    }
    report.objects = all.len() as u64;
    let unowned = unowned(&repair.array, strange.iter().map(|(object, _)| *object).collect())?;
    for (object, slot) in strange.into_iter().filter(|(object, _)| unowned.contains(object)) {
        watch()?;
        if object_from(&repair.array, slot, object)? == Some(object) {
            let nsd = nsds.nsd(slot);
            report.fault(format!("NSD {nsd} holds strips of object {object}, which no file has"));
        }
    }
    Ok(())
}
