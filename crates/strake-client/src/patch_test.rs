//! Blocks that are sent as patches: crashes, hardening, cuts and holes in between, patches that do
//! not fit or are lost, and memory that is short.

use crate::settings::Patches;
use crate::testing::{BLOCK_SIZE, Mounted, Rig, assert_whole, send_block};
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use crate::vfs::{FallocateMode, Handle, SetAttr, Vfs};
use std::time::Duration;
use strake_array::stripe_io::SendCounts;
use strake_env::Rng;
use strake_proto::{BlockIndex, ByteCount, Caller, Ino, ObjectId};

const BLOCK: usize = BLOCK_SIZE as usize;
const UNIT: usize = 4096;
const CODES: [&str; 4] = ["1", "2x", "4+2p", "8+3p"];

/// A file that was there before the mount, and what it should hold.
struct Held {
    rig: Rig,
    vfs: Mounted,
    ino: Ino,
    handle: Handle,
    bytes: Vec<u8>,
}

/// Nothing is sent that no test asks for.
fn quiet_rig(code: &str) -> Rig {
    let mut rig = Rig::new(code, 12);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(64);
    rig.settings.write_cache_threshold = ByteCount(0);
    rig
}

impl Held {
    fn new(rig: Rig, blocks: usize) -> Held {
        let bytes = pattern(blocks * BLOCK, 1);
        let vfs = rig.start(0);
        let (ino, handle) = create(&vfs, "f");
        write(&vfs, handle, 0, &bytes);
        vfs.shutdown().expect("ended");
        drop(vfs);
        let vfs = rig.start(0);
        let handle = open(&vfs, "f").1;
        Held { rig, vfs, ino, handle, bytes }
    }

    fn write(&mut self, at: usize, length: usize, salt: u8) {
        let data = pattern(length, salt);
        write(&self.vfs, self.handle, at as u64, &data);
        if self.bytes.len() < at + length {
            self.bytes.resize(at + length, 0);
        }
        self.bytes[at..at + length].copy_from_slice(&data);
    }

    fn fsync(&self) {
        self.vfs.fsync(self.handle).expect("durable");
    }

    fn round(&self) {
        self.vfs.array().rounds.run(false).expect("a round");
    }

    fn counts(&self) -> SendCounts {
        self.vfs.array().io.send_counts()
    }

    fn check(&self, context: &str) {
        let found = read(&self.vfs, self.handle, 0, self.bytes.len() + 1);
        assert_eq!(found.len(), self.bytes.len(), "{context}");
        let wrong = found.iter().zip(&self.bytes).position(|(one, other)| one != other);
        assert_eq!(wrong, None, "{context}");
    }

    /// The power goes; everything must be there.
    fn crash(self, context: &str) {
        let Held { rig, vfs, ino, bytes, .. } = self;
        rig.freeze();
        drop(vfs);
        rig.crash();
        let vfs = rig.start(0);
        let handle = open(&vfs, "f").1;
        assert_whole(&vfs, ino, context);
        let held = Held { rig, vfs, ino, handle, bytes };
        held.check(context);
        held.vfs.shutdown().expect("ended");
        assert_eq!(held.vfs.view().page_pool.dirty, 0, "{context}");
        assert_eq!(held.vfs.array().room.claimed().bytes, 0, "{context}");
    }
}

#[test]
fn small_writes_to_a_file_that_is_there_are_patches_from_the_first_on() {
    for code in CODES {
        let mut held = Held::new(quiet_rig(code), 3);
        for turn in 0..3 {
            for block in 0..3 {
                held.write(block * BLOCK + 5 * UNIT, UNIT, turn + 2);
                held.write(block * BLOCK + 40 * UNIT + 77, 100, turn + 7);
            }
            held.fsync();
        }
        assert_eq!(held.counts(), SendCounts { whole: 0, patches: 9, not_base: 0 }, "{code}");
        held.check(code);
        held.crash(code);
    }
}

#[test]
fn much_that_changed_and_what_makes_a_block_longer_is_sent_whole() {
    let mut held = Held::new(quiet_rig("4+2p"), 1);
    held.write(0, 33 * UNIT, 2);
    held.fsync();
    assert_eq!(held.counts().whole, 1, "more than half");
    held.write(BLOCK, 9 * UNIT, 3);
    held.fsync();
    held.write(BLOCK + 9 * UNIT, 10, 3);
    held.fsync();
    assert_eq!(held.counts(), SendCounts { whole: 3, patches: 0, not_base: 0 });
    held.round();
    held.write(BLOCK + UNIT, 10, 4);
    held.fsync();
    assert_eq!(held.counts().patches, 1);
    held.crash("grown");
}

#[test]
fn a_cut_or_a_hole_between_patches_is_never_patched_over() {
    for code in CODES {
        let mut rng = Rng::new(7);
        for round in 0..12 {
            let context = format!("{code}, round {round}");
            let mut rig = quiet_rig(code);
            rig.settings.patches = [Patches::Auto, Patches::Always][round % 2];
            let mut held = Held::new(rig, 2);
            for step in 0..12 {
                let at = rng.index(held.bytes.len().max(UNIT));
                match rng.below(8) {
                    0..=3 => held.write(at, 1 + rng.index(UNIT), step),
                    4 => {
                        let change = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                        held.vfs.setattr(&Caller::ROOT, held.ino, None, &change).expect("cut");
                        held.bytes.truncate(at);
                    }
                    5 => {
                        let end = (at + 1 + rng.index(20 * UNIT)).min(held.bytes.len());
                        let hole = at as u64..end.max(at + 1) as u64;
                        held.vfs
                            .fallocate(held.handle, hole, FallocateMode::PunchHole)
                            .expect("a hole");
                        held.bytes[at.min(end)..end].fill(0);
                    }
                    6 => send_block(&held.vfs, held.ino, (at / BLOCK) as u64),
                    _ => held.fsync(),
                }
                if rng.one_in(3) {
                    held.round();
                }
            }
            held.check(&context);
            held.fsync();
            held.crash(&context);
        }
    }
}

#[test]
fn a_block_that_is_written_while_a_patch_of_it_is_not_stable_is_patched_again() {
    for code in CODES {
        let mut held = Held::new(quiet_rig(code), 1);
        for turn in 0..4 {
            held.write(usize::from(turn) * UNIT, UNIT, turn + 2);
            send_block(&held.vfs, held.ino, 0);
            held.write((usize::from(turn) + 1) * UNIT, UNIT, turn + 3);
        }
        held.fsync();
        assert_eq!(held.counts().whole, 0, "{code}");
        assert!(held.counts().patches >= 4, "{code}");
        held.crash(code);
    }
}

#[test]
fn units_that_were_hardened_are_patched_later_and_those_patched_are_hardened() {
    for code in CODES {
        for order in 0..3 {
            let context = format!("{code}, order {order}");
            let mut rig = quiet_rig(code);
            rig.settings.write_cache_threshold = ByteCount::kib(64);
            let mut held = Held::new(rig, 1);
            held.write(3 * UNIT, UNIT, 2);
            held.fsync();
            assert_eq!(held.rig.patches(), 0, "{context}: hardened");
            held.write(9 * UNIT, UNIT, 3);
            if order > 0 {
                // The hardened unit differs from what is stored, and goes along.
                held.vfs.sync().expect("durable");
                assert_eq!(held.counts(), SendCounts { whole: 0, patches: 1, not_base: 0 });
            }
            held.fsync();
            if order > 1 {
                held.write(3 * UNIT + 5, 10, 4);
                send_block(&held.vfs, held.ino, 0);
                held.round();
                held.write(4 * UNIT, UNIT, 6);
                held.fsync();
            }
            held.crash(&context);
        }
    }
}

#[test]
fn a_patch_that_does_not_fit_is_followed_by_the_whole_block() {
    for code in ["2x", "4+2p", "8+3p"] {
        let mut held = Held::new(quiet_rig(code), 1);
        // One position lacks the base, and is not read for the patch.
        let lost = held.rig.nsds.iter().filter(|nsd| {
            nsd.lose_strip(ObjectId(1), BlockIndex(0), if code == "2x" { 1 } else { 3 })
        });
        assert_eq!(lost.count(), 1, "{code}");
        held.write(UNIT, UNIT, 5);
        held.fsync();
        assert_eq!(held.counts(), SendCounts { whole: 1, patches: 0, not_base: 1 }, "{code}");
        held.round();
        held.write(UNIT, UNIT, 6);
        held.fsync();
        assert_eq!(held.counts().patches, 1, "{code}");
        held.crash(code);
    }
}

#[test]
fn a_patch_that_an_nsd_may_have_lost_is_sent_again() {
    for code in CODES {
        for victim in 0..12 {
            let mut held = Held::new(quiet_rig(code), 1);
            held.write(UNIT, UNIT, 5);
            send_block(&held.vfs, held.ino, 0);
            held.write(2 * UNIT + 50, 50, 6);
            held.rig.nsds[victim].crash();
            held.fsync();
            held.check(code);
            held.crash(code);
        }
    }
}

/// All servers are restarted after a block was sent and before anybody has committed, and then the
/// block is cut off or punched out. What the block had gained is nobody's: the bytes that the inode
/// has allocated are those that are stored afterwards.
#[test]
fn bytes_that_servers_lost_before_a_cut_do_not_count() {
    let all =
        |code| [(false, false), (false, true), (true, false), (true, true)].map(|it| (code, it));
    for (code, (is_cut, is_grown)) in CODES.into_iter().flat_map(all) {
        let rig = quiet_rig(code);
        let vfs = rig.start(0);
        let (ino, handle) = create(&vfs, "f");
        // The first block stays. The second grows from what is stable, or is new.
        write(&vfs, handle, 0, &pattern(BLOCK, 1));
        if is_grown {
            write(&vfs, handle, BLOCK as u64, &pattern(UNIT, 2));
            vfs.fsync(handle).expect("durable");
        }
        write(&vfs, handle, BLOCK as u64, &pattern(3 * UNIT, 3));
        send_block(&vfs, ino, 1);
        rig.nsds.iter().for_each(|nsd| nsd.crash());
        if is_cut {
            let cut = SetAttr { size: Some(BLOCK as u64), ..SetAttr::default() };
            vfs.setattr(&Caller::ROOT, ino, Some(handle), &cut).expect("cut");
        } else {
            let range = BLOCK as u64..2 * BLOCK as u64;
            vfs.fallocate(handle, range, FallocateMode::PunchHole).expect("punched");
        }
        write(&vfs, handle, BLOCK as u64, &pattern(2 * UNIT, 4));
        vfs.fsync(handle).expect("durable");
        let allocated = vfs.getattr(ino).expect("attributes").allocated;
        let length = if is_cut { 2 * UNIT } else { 3 * UNIT };
        let context = format!("{code}, cut: {is_cut}, grown: {is_grown}");
        assert_eq!(allocated, (BLOCK + length) as u64, "{context}");
        assert_whole(&vfs, ino, code);
    }
}

#[test]
fn blocks_that_were_patched_give_their_memory_to_others() {
    let mut rig = quiet_rig("2x");
    rig.settings.page_pool = ByteCount::mib(4);
    let mut held = Held::new(rig, 100);
    for turn in 0..3u8 {
        for block in 0..100 {
            held.write(block * BLOCK + (block % 64) * UNIT, UNIT, turn + 2);
        }
    }
    let counts = held.counts();
    println!("{counts:?}");
    assert!(counts.patches > 100, "{counts:?}");
    held.vfs.sync().expect("durable");
    held.vfs.mount.page_pool.check();
    let view = held.vfs.view().page_pool;
    assert!(view.dirty == 0 && view.used <= view.budget, "{view:?}");
    held.crash("short of memory");
}
