//! Mounts that hand blocks over to each other. What a new holder finds is stable, and its first
//! write names it (rule R7 of the cluster; docs/decisions/0022-hand-over-of-a-block.md).
//!
//! The NSDs are watched. A new version of a block may be sent only when every NSD that accepted the
//! version before has committed since, and it must name that version. This holds for whole blocks,
//! which a writer need not read, and for patches.

use crate::StrakeVfs;
use crate::coherence_test::{File, MOUNTS, World, seed};
use crate::testing::{BLOCK_SIZE, send_block};
use crate::vfs::{SetAttr, Vfs};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_proto::nsd::{NsdRequest, RangeChange};
use strake_proto::{BlockIndex, Caller, NsdId, ObjectId, Version};
use strake_testing::memory_nsd::Moment;

const ROOT: &Caller = &Caller::ROOT;
const BLOCK: usize = BLOCK_SIZE as usize;
const BLOCKS: usize = 4;

/// A block as the NSDs have it.
#[derive(Default)]
struct Known {
    newest: Version,
    /// NSDs that accepted it and have not committed since, and whether a commit is under way.
    accepted: BTreeMap<NsdId, bool>,
}

/// The requests that were seen, as far as they matter.
#[derive(Default)]
struct Seen {
    blocks: BTreeMap<(ObjectId, BlockIndex), Known>,
    /// Whole blocks and patches that came after another version.
    whole: u64,
    patches: u64,
    faults: Vec<String>,
}

impl Seen {
    fn note(&mut self, nsd: NsdId, moment: Moment, request: &NsdRequest) {
        match (moment, request) {
            (Moment::Before, NsdRequest::Write { key, header, stable, copy: false, .. }) => {
                let is_later = self.sent((key.object, key.block), header.version, *stable);
                self.whole += u64::from(is_later);
            }
            (Moment::Before, NsdRequest::Patch { key, header, base, .. }) => {
                let is_later = self.sent((key.object, key.block), header.version, *base);
                self.patches += u64::from(is_later);
            }
            (Moment::After, NsdRequest::Write { key, .. } | NsdRequest::Patch { key, .. }) => {
                let known = self.blocks.entry((key.object, key.block)).or_default();
                known.accepted.insert(nsd, false);
            }
            (Moment::Before, NsdRequest::Commit { .. }) => {
                let all = self.blocks.values_mut().filter_map(|it| it.accepted.get_mut(&nsd));
                all.for_each(|under_way| *under_way = true);
            }
            (Moment::After, NsdRequest::Commit { .. }) => {
                let is_done = |of: &NsdId, under_way: &bool| *of == nsd && *under_way;
                let keep = |known: &mut Known| known.accepted.retain(|of, it| !is_done(of, it));
                self.blocks.values_mut().for_each(keep);
            }
            (Moment::After, NsdRequest::DeleteRange { object, from, to, version, .. }) => {
                self.deleted(*object, *from..*to, *version);
            }
            (Moment::After, NsdRequest::ChangeRanges { changes, .. }) => {
                for change in changes {
                    if let RangeChange::Delete { object, from, to, version } = *change {
                        self.deleted(object, from..to, version);
                    }
                }
            }
            _ => {}
        }
    }

    fn deleted(&mut self, object: ObjectId, range: Range<BlockIndex>, version: Version) {
        let is_gone =
            |of, block, newest| of == object && range.contains(&block) && newest <= version;
        self.blocks.retain(|(of, block), it| !is_gone(*of, *block, it.newest));
    }

    /// A strip of a version is on its way. True if it is the first of its version, and a version
    /// was there before.
    fn sent(&mut self, at: (ObjectId, BlockIndex), version: Version, stable: Version) -> bool {
        let known = self.blocks.entry(at).or_default();
        if known.newest == version {
            return false;
        }
        if stable != known.newest {
            let newest = known.newest;
            self.faults.push(format!("{at:?}: {version} names {stable}, and not {newest}"));
        }
        if !known.accepted.is_empty() {
            let nsds: Vec<_> = known.accepted.keys().collect();
            self.faults.push(format!("{at:?}: {version} comes before {nsds:?} have committed"));
        }
        let before = std::mem::replace(&mut known.newest, version);
        known.accepted.clear();
        before != Version::NONE
    }
}

/// Watches all NSDs of a world.
fn watch(world: &World) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    for nsd in &world.rig.nsds {
        let (seen, id) = (Arc::clone(&seen), nsd.id());
        let note = move |moment, request: &NsdRequest| seen.lock().note(id, moment, request);
        nsd.set_watch(Some(Arc::new(note)));
    }
    seen
}

/// A mount overwrites blocks as a whole, overwrites a part, or cuts the file. What is beyond the
/// end is deleted in effect then, although no NSD was told yet.
fn change(vfs: &StrakeVfs, at: usize, file: &mut File, rng: &mut Rng, seen: &Mutex<Seen>) {
    let fill = |rng: &mut Rng, length: usize| -> Vec<u8> {
        (0..length).map(|_| rng.next_u64() as u8).collect()
    };
    let first = rng.index(BLOCKS);
    let (offset, bytes) = match rng.below(8) {
        0..=3 => {
            let count = 1 + rng.index(BLOCKS - first);
            (first * BLOCK, fill(rng, count * BLOCK))
        }
        4..=6 => {
            let (within, length) = (rng.index(BLOCK), 1 + rng.index(20_000));
            (first * BLOCK + within, fill(rng, length))
        }
        _ => {
            let size = first * BLOCK + rng.index(BLOCK);
            let cut = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            vfs.setattr(ROOT, file.ino, Some(file.handles[at]), &cut).expect("cut");
            file.bytes.resize(size, 0);
            let end = BlockIndex(size.div_ceil(BLOCK) as u64);
            seen.lock().blocks.retain(|(_, block), _| *block < end);
            return;
        }
    };
    vfs.write(file.handles[at], offset as u64, &bytes).expect("there is room");
    let end = offset + bytes.len();
    file.bytes.resize(file.bytes.len().max(end), 0);
    file.bytes[offset..end].copy_from_slice(&bytes);
}

#[test]
fn what_a_new_holder_finds_is_stable_and_its_first_write_names_it() {
    for (code, nsds) in [("1", 2), ("2x", 3), ("4+1p", 6)] {
        let seed = seed();
        let mut rng = Rng::new(seed);
        let world = World::new(code, nsds);
        let seen = watch(&world);
        let mut file = File::new(&world, "handed to and fro".to_owned());
        for step in 0..300 {
            let at = rng.index(MOUNTS);
            let vfs = &*world.mounts[at];
            change(vfs, at, &mut file, &mut rng, &seen);
            match rng.below(4) {
                0 => vfs.fsync(file.handles[at]).expect("synced"),
                1 => send_block(vfs, file.ino, rng.below(BLOCKS as u64)),
                _ => {}
            }
            let faults = std::mem::take(&mut seen.lock().faults);
            assert_eq!(faults, [""; 0], "code {code}, seed {seed}, step {step}");
        }
        let reader = rng.index(MOUNTS);
        let mut found = vec![0; file.bytes.len()];
        world.mounts[reader].read(file.handles[reader], 0, &mut found).expect("readable");
        assert!(found == file.bytes, "code {code}, seed {seed}: the contents");
        world.end();
        let Seen { whole, patches, .. } = &*seen.lock();
        assert!(*whole >= 50 && *patches >= 5, "{whole} whole blocks and {patches} patches");
    }
}
