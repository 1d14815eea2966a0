//! A full file system: nothing makes it fuller, and what it holds can be written anew.

use crate::flush::folding::folding_test::quiet_rig;
use crate::memory::file::Content;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig, send_block};
use crate::vfs::vfs_test::{create, lookup, open, read};
use crate::vfs::{FallocateMode, Handle, SetAttr, Vfs};
use std::time::Duration;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::{BlockIndex, ByteCount, Caller, ErrorKind, Ino, SlotIndex};

const BLOCK: usize = BLOCK_SIZE as usize;
const CODES: [&str; 3] = ["1", "2x", "4+2p"];
/// Of each NSD.
const CAPACITY: u64 = 12 << 20;
const STEPS: u64 = 400;
const WRITERS: usize = 4;

/// A file system that is full of one file.
struct Full {
    rig: Rig,
    vfs: Mounted,
    rng: Rng,
    handle: Handle,
    /// What the file holds.
    held: Vec<u8>,
}

/// Tests one for each seed and code.
fn for_each_full(seeds: u64, codes: &[&str], test: impl Fn(Full)) {
    for seed in test_seeds(1, seeds) {
        for code in codes {
            eprintln!("seed {seed}, code {code}");
            let (rig, mut rng) = (Rig::new(code, 6), Rng::new(seed));
            rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
            let vfs = rig.start(0);
            let handle = create(&vfs, "f").1;
            let held = fill(&vfs, handle, &mut rng);
            test(Full { rig, vfs, rng, handle, held });
        }
    }
}

/// Writes random bytes to the end of a file until there is no space; returns them.
fn fill(vfs: &Mounted, handle: Handle, rng: &mut Rng) -> Vec<u8> {
    let mut held = Vec::new();
    let mut bytes = vec![0; 100_000];
    loop {
        rng.fill(&mut bytes);
        match vfs.write(handle, held.len() as u64, &bytes) {
            Ok(count) => held.extend_from_slice(&bytes[..count]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return held;
            }
        }
        assert!(held.len() < 6 * CAPACITY as usize, "more than there is");
    }
}

/// One change of what a file holds from `from` on, which must succeed however full it is.
fn change(vfs: &Mounted, handle: Handle, rng: &mut Rng, from: usize, held: &mut [u8]) {
    let is_zeroed = rng.one_in(20);
    // Less than a block is zeroed at once: that makes no room.
    let is_long = rng.one_in(3) && !is_zeroed;
    let length = 1 + rng.index(if is_long { 2 * BLOCK } else { 5000 });
    let start = rng.index(held.len());
    let end = (start + length).min(held.len());
    let bytes = &mut held[start..end];
    let (offset, end) = ((from + start) as u64, (from + end) as u64);
    if is_zeroed {
        bytes.fill(0);
        let mode = FallocateMode::ZeroRange { keep_size: true };
        let zeroed = vfs.fallocate(handle, offset..end, mode);
        return zeroed.unwrap_or_else(|error| panic!("{offset}..{end} zeroed: {error}"));
    }
    rng.fill(bytes);
    let count = vfs.write(handle, offset, bytes);
    let count = count.unwrap_or_else(|error| panic!("{offset}..{end} written: {error}"));
    assert_eq!(count, bytes.len(), "{offset}..{end} written");
}

/// Takes so many bytes from the end of a file.
fn cut(vfs: &Mounted, handle: Handle, held: &mut Vec<u8>, bytes: usize) {
    held.truncate(held.len() - bytes);
    let change = SetAttr { size: Some(held.len() as u64), ..SetAttr::default() };
    let ino = lookup(vfs, "f").attr.ino;
    vfs.setattr(&Caller::ROOT, ino, Some(handle), &change).expect("cut");
}

#[test]
fn what_it_holds_can_be_written_anew_and_nothing_can_be_added() {
    for_each_full(test_scale(), &CODES, |full| {
        let Full { rig, vfs, mut rng, handle, mut held } = full;
        for _ in 0..STEPS {
            change(&vfs, handle, &mut rng, 0, &mut held);
            if rng.one_in(30) {
                vfs.fsync(handle).expect("durable");
            }
        }
        vfs.sync().expect("durable");
        let free = vfs.statfs().expect("told").available;
        assert!(free < 2 * u64::from(BLOCK_SIZE), "as full as before: {free}");
        let (_, other) = create(&vfs, "g");
        let added = vfs.write(other, 0, &held[..2 * BLOCK]).unwrap_or(0);
        assert!(added < 2 * BLOCK, "it was full");
        cut(&vfs, handle, &mut held, 1234);
        vfs.fsync(handle).expect("durable");
        drop(vfs);
        rig.crash();
        let vfs = rig.start(0);
        let handle = open(&vfs, "f").1;
        assert!(read(&vfs, handle, 0, held.len() + 1) == held);
        vfs.shutdown().expect("ended");
    });
}

#[test]
fn several_who_write_it_anew_leave_each_other_room() {
    for_each_full(test_scale(), &CODES, |full| {
        let Full { rig: _rig, vfs, mut rng, handle, mut held } = full;
        let each = held.len().div_ceil(WRITERS);
        strake_env::thread::scope(|scope| {
            for (number, part) in held.chunks_mut(each).enumerate() {
                let (vfs, mut rng) = (&vfs, Rng::new(rng.next_u64()));
                scope.spawn(move || {
                    for _ in 0..STEPS / 4 {
                        change(vfs, handle, &mut rng, number * each, part);
                        if rng.one_in(30) {
                            vfs.fsync(handle).expect("durable");
                        }
                    }
                });
            }
        });
        vfs.fsync(handle).expect("what was accepted had its room");
        assert!(read(&vfs, handle, 0, held.len()) == held);
        vfs.shutdown().expect("ended");
    });
}

#[test]
fn what_a_nearly_full_file_system_accepted_has_room_on_each_disk() {
    for_each_full(4 * test_scale(), &["1", "2x"], |full| {
        let Full { rig: _rig, vfs, mut rng, handle, mut held } = full;
        vfs.fsync(handle).expect("durable");
        let quarter = held.len() / 4;
        cut(&vfs, handle, &mut held, quarter);
        for _ in 0..STEPS {
            let start = rng.index(held.len() - 10);
            rng.fill(&mut held[start..start + 10]);
            let bytes = &held[start..start + 10];
            assert_eq!(vfs.write(handle, start as u64, bytes).expect("room"), 10);
        }
        vfs.fsync(handle).expect("what was accepted has its room");
        assert!(read(&vfs, handle, 0, held.len() + 1) == held);
        vfs.shutdown().expect("ended");
    });
}

/// Each unit is as it was synced last, or newer.
#[test]
fn what_was_synced_while_it_was_full_outlives_a_power_cut() {
    const UNIT: usize = 4096;
    for_each_full(4 * test_scale(), &CODES, |full| {
        let Full { rig, vfs, mut rng, handle, held } = full;
        let units = held.len() / UNIT;
        let numbered = |number: u32| number.to_le_bytes().repeat(UNIT / 4);
        let set = |at: usize, number: u32| {
            let count = vfs.write(handle, (at * UNIT) as u64, &numbered(number));
            assert_eq!(count.expect("room"), UNIT);
        };
        (0..units).for_each(|at| set(at, 0));
        vfs.fsync(handle).expect("durable");
        let (mut newest, steps) = (vec![0; units], 1 + rng.below(STEPS) as u32);
        let mut synced = newest.clone();
        for number in 1..=steps {
            let at = rng.index(units);
            set(at, number);
            newest[at] = number;
            if rng.one_in(8) {
                vfs.fsync(handle).expect("durable");
                synced.clone_from(&newest);
            }
        }
        rig.freeze();
        drop(vfs);
        rig.power_cut(&mut rng);
        let vfs = rig.start(0);
        let bytes = read(&vfs, open(&vfs, "f").1, 0, units * UNIT);
        for (at, unit) in bytes.chunks(UNIT).enumerate() {
            let number = u32::from_le_bytes(unit[..4].try_into().expect("four bytes"));
            assert!(unit == numbered(number), "unit {at} is of one write");
            let allowed = synced[at]..=newest[at];
            assert!(allowed.contains(&number), "unit {at}: {number} of {allowed:?}");
        }
        vfs.shutdown().expect("ended");
    });
}

/// Half of the disks have what nobody made durable. So each block that was on its way is written
/// anew by the next start, which finds no more room than the reserve and what others leave.
#[test]
fn a_full_file_system_starts_after_a_power_cut_with_much_on_its_way() {
    const UNIT: usize = 4096;
    for (code, keeps) in [("2x", [0, 2, 4]), ("2x", [1, 2, 5]), ("4+2p", [0, 2, 4])] {
        eprintln!("code {code}, {keeps:?}");
        let rig = quiet_rig(code);
        rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
        let vfs = rig.start(0);
        let (ino, handle) = create(&vfs, "f");
        // Patches have room, and whole blocks have not.
        let (mut held, mut rng) = (Vec::new(), Rng::new(1));
        while vfs.statfs().expect("told").free > 12 * BLOCK as u64 {
            let at = held.len();
            held.resize(at + BLOCK, 0);
            rng.fill(&mut held[at..]);
            assert_eq!(vfs.write(handle, at as u64, &held[at..]).expect("room"), BLOCK);
            vfs.sync().expect("durable");
        }
        let blocks = held.len() / BLOCK;
        for block in 0..blocks {
            let count = vfs.write(handle, (block * BLOCK) as u64, &[7; UNIT]);
            assert_eq!(count.expect("room"), UNIT);
            send_block(&vfs, ino, block as u64);
        }
        rig.freeze();
        drop(vfs);
        keeps.iter().for_each(|at| rig.nsds[*at].keep_all());
        rig.crash();
        let vfs = rig.start(0);
        assert!(vfs.recovered.rewritten > 0, "{:?}", vfs.recovered);
        let bytes = read(&vfs, open(&vfs, "f").1, 0, held.len() + 1);
        assert_eq!(bytes.len(), held.len());
        for (at, (unit, before)) in bytes.chunks(UNIT).zip(held.chunks(UNIT)).enumerate() {
            let is_new = at % (BLOCK / UNIT) == 0 && unit == [7; UNIT];
            assert!(is_new || unit == before, "unit {at}");
        }
        vfs.shutdown().expect("ended");
        assert_eq!(rig.unsettled(), 0);
    }
}

/// Of two blocks that are written anew while a file system is full, one NSD has the new versions,
/// and two others have not. A strip is larger than what data never takes of an NSD.
#[test]
fn what_is_overwritten_leaves_room_for_the_start_after_a_power_cut() {
    const LARGE: usize = 4 << 20;
    let mut rig = Rig::with_block_size("2x", 4, LARGE as u32);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(256);
    // 16 strips, the reserve, the megabyte that data never takes, and a little.
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity((73 << 20) + (256 << 10)));
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let mut blocks = 0;
    while vfs.write(handle, (blocks * LARGE) as u64, &vec![0; LARGE]).is_ok() {
        blocks += 1;
    }
    vfs.sync().expect("durable");
    vfs.tend();
    // Two blocks of the fullest NSD, with another partner each.
    let fullest = (0..4).min_by_key(|at| rig.nsds[*at].free()).expect("some NSD");
    let partner = |block: &usize| partner_of(&vfs, ino, *block, fullest);
    let first = (0..blocks).find(|block| partner(block).is_some()).expect("it has blocks");
    let is_other = |block: &usize| partner(block).is_some_and(|it| Some(it) != partner(&first));
    let both = [first, (0..blocks).find(is_other).expect("with other partners")];
    for block in both {
        let written = vfs.write(handle, (block * LARGE) as u64, &vec![1; LARGE]);
        assert_eq!(written.expect("room"), LARGE);
        send_block(&vfs, ino, block as u64);
    }
    rig.freeze();
    drop(vfs);
    rig.nsds[fullest].keep_all();
    rig.crash();
    let vfs = rig.start(0);
    let handle = open(&vfs, "f").1;
    for block in both {
        let bytes = read(&vfs, handle, (block * LARGE) as u64, LARGE);
        assert!(bytes == vec![bytes[0]; LARGE], "block {block} is of one write");
    }
    vfs.shutdown().expect("ended");
}

/// The other NSD of a block with two copies, if one is on this NSD.
fn partner_of(vfs: &Mounted, ino: Ino, block: usize, nsd: usize) -> Option<SlotIndex> {
    let inode = vfs.mount.table.pin(ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let content = file.content.read();
    let Content::Object(layout) = &*content else { panic!("it has blocks") };
    let stripe = vfs.mount.array.io.nsds().stripe(layout, BlockIndex(block as u64));
    let (own, others): (Vec<SlotIndex>, Vec<SlotIndex>) =
        stripe.expect("placed").iter().partition(|slot| usize::from(slot.0) == nsd);
    own.first().and(others.first().copied())
}

/// Each attempt reserved an object that stayed, until the file had too many of them.
#[test]
fn contents_that_find_no_room_outside_the_inode_stay_in_there_however_often_it_is_tried() {
    let rig = Rig::new("2x", 6);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
    let vfs = rig.start(0);
    let small = create(&vfs, "small").1;
    assert_eq!(vfs.write(small, 0, &[7; 3000]).expect("room"), 3000);
    let mut rng = Rng::new(1);
    let handle = create(&vfs, "f").1;
    let mut held = fill(&vfs, handle, &mut rng);
    while let Ok(count) = vfs.write(handle, held.len() as u64, &[1]) {
        held.extend(std::iter::repeat_n(1, count));
    }
    for _ in 0..50 {
        let refused = vfs.write(small, 3000, &[8; 2000]).expect_err("it is full");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
    }
    assert_eq!(read(&vfs, small, 0, 5000), [7; 3000]);
    let half = held.len() / 2;
    cut(&vfs, handle, &mut held, half);
    assert_eq!(vfs.write(small, 3000, &[8; 2000]).expect("room again"), 2000);
    vfs.sync().expect("durable");
    assert_eq!(read(&vfs, small, 0, 6000)[2999..], [&[7][..], &[8; 2000]].concat());
    vfs.shutdown().expect("ended");
}

#[test]
fn allocated_space_is_there_when_it_is_written_however_full_the_rest_is() {
    for seed in test_seeds(1, 2) {
        for code in CODES {
            eprintln!("seed {seed}, code {code}");
            let (rig, mut rng) = (Rig::new(code, 6), Rng::new(seed));
            rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
            let vfs = rig.start(0);
            let (_, handle) = create(&vfs, "kept");
            let free = vfs.statfs().expect("answers").free;
            let (start, end) = (rng.index(2 * BLOCK) as u64, free / 2 + rng.below(BLOCK as u64));
            // What is there stays as it is.
            vfs.write(handle, start, b"there").expect("written");
            let allocate = FallocateMode::Allocate { keep_size: false };
            vfs.fallocate(handle, 0..end, allocate).expect("there is room");
            assert!(vfs.statfs().expect("answers").free <= free - end + BLOCK as u64, "counted");
            let mut held = vec![0; end as usize];
            held[start as usize..][..5].copy_from_slice(b"there");
            assert!(read(&vfs, handle, 0, end as usize + 1) == held, "zeros around it");
            vfs.fsync(handle).expect("synced");
            fill(&vfs, create(&vfs, "f").1, &mut rng);
            // It outlives a restart, and so it does not depend on what is in memory.
            vfs.shutdown().expect("ended");
            drop(vfs);
            let vfs = rig.start(0);
            fill(&vfs, create(&vfs, "g").1, &mut rng);
            let (_, handle) = open(&vfs, "kept");
            for at in (0..held.len()).step_by(100_000) {
                let bytes = &mut held[at..(at + 100_000).min(end as usize)];
                rng.fill(bytes);
                let written = vfs.write(handle, at as u64, bytes);
                assert_eq!(written.expect("it was promised"), bytes.len());
            }
            vfs.fsync(handle).expect("it was promised");
            rig.crash();
            drop(vfs);
            let vfs = rig.start(0);
            let (_, handle) = open(&vfs, "kept");
            assert!(read(&vfs, handle, 0, end as usize) == held);
            vfs.shutdown().expect("ended");
        }
    }
}

#[test]
fn what_does_not_fit_is_not_allocated() {
    let rig = Rig::new("2x", 3);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let free = vfs.statfs().expect("answers").free;
    let allocate = FallocateMode::Allocate { keep_size: false };
    let refused = vfs.fallocate(handle, 0..2 * free, allocate).expect_err("too much");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(vfs.getattr(ino).expect("attr").size, 0);
    assert_eq!(vfs.statfs().expect("answers").free, free);
    // A file with a hole: the hole alone gets space, and the size stays.
    vfs.write(handle, 3 * BLOCK as u64, b"end").expect("written");
    let allocate = FallocateMode::Allocate { keep_size: true };
    vfs.fallocate(handle, 0..3 * BLOCK as u64 + 3, allocate).expect("there is room");
    let attr = vfs.getattr(ino).expect("attr");
    assert_eq!(attr.size, 3 * BLOCK as u64 + 3);
    assert!(attr.allocated >= 3 * BLOCK as u64, "{}", attr.allocated);
    vfs.shutdown().expect("ended");
}

#[test]
fn space_beyond_the_end_of_a_file_is_refused_where_it_could_not_be_kept() {
    let rig = Rig::new("2x", 3);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    vfs.write(handle, 0, &[7; 1000]).expect("written");
    vfs.fsync(handle).expect("synced");
    for keep_size in
        [FallocateMode::Allocate { keep_size: true }, FallocateMode::ZeroRange { keep_size: true }]
    {
        for range in [1000..1001, 0..BLOCK as u64, BLOCK as u64..2 * BLOCK as u64] {
            let refused = vfs.fallocate(handle, range, keep_size).expect_err("no promise");
            assert_eq!(refused.kind(), ErrorKind::NotSupported);
        }
        assert_eq!(read(&vfs, handle, 0, 1001), [7; 1000], "nothing was done");
        vfs.fallocate(handle, 999..1000, FallocateMode::Allocate { keep_size: true })
            .expect("in it");
    }
    assert_eq!(vfs.getattr(ino).expect("attr").size, 1000);
    vfs.shutdown().expect("ended");
}
