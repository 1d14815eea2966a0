//! Each kind of damage is found and named; none is found where there is none, also in use and
//! after power cuts.

use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::{FallocateMode, Handle, OpenFlags, SetAttr, Vfs};
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::Rng;
use strake_manager::StripCheck;
use strake_proto::meta::MetaQuery;
use strake_proto::meta::{FileData, Inode, MetaOp};
use strake_proto::nsd::NsdRequest;
use strake_proto::nsd::{NsdContext, NsdPort, StripHeader};
use strake_proto::{BlockIndex, Ino, ObjectId, ObjectLayout, SlotIndex, StripIndex, Version};
use strake_proto::{Caller, ErrorKind, GrantNumber, StripKey};
use strake_stripe::strip_checksums;

const ROOT: &Caller = &Caller::ROOT;
const BLOCK: u64 = BLOCK_SIZE as u64;
const RW: OpenFlags = OpenFlags::READ_WRITE;

struct Bench {
    rig: Rig,
    vfs: Mounted,
}

impl Bench {
    fn new(code: &str) -> Bench {
        let rig = Rig::new(code, 8);
        let vfs = rig.start(0);
        Bench { rig, vfs }
    }

    fn create(&self, name: &str, bytes: usize) -> (Ino, Handle) {
        let (entry, opened) =
            self.vfs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true).expect("created");
        let data = vec![7; bytes];
        assert_eq!(self.vfs.write(opened.handle, 0, &data).expect("written"), bytes);
        self.vfs.sync().expect("all in strips");
        (entry.attr.ino, opened.handle)
    }

    fn layout(&self, ino: Ino) -> ObjectLayout {
        let found: Inode =
            self.vfs.mount.array.meta.query_inode(&MetaQuery::GetInode { ino }).expect("there");
        match found.data {
            FileData::Objects(layouts) => layouts[0],
            other => panic!("{other:?}"),
        }
    }

    /// Where a strip lies.
    fn slot(&self, layout: &ObjectLayout, block: u64, strip: u8) -> usize {
        let slots =
            self.vfs.mount.array.io.nsds().stripe(layout, BlockIndex(block)).expect("placed");
        usize::from(slots[usize::from(strip)].0)
    }

    fn lose(&self, layout: &ObjectLayout, block: u64, strips: std::ops::Range<u8>) {
        for strip in strips {
            let slot = self.slot(layout, block, strip);
            self.rig.nsds[slot].lose(layout.object, BlockIndex(block), strip);
        }
    }

    /// Puts a strip of a block of 64 KiB somewhere.
    fn plant(&self, slot: usize, object: ObjectId, block: u64, strip: u8, version: Version) {
        let (fs, block, strip) = (strake_proto::FsId(1), BlockIndex(block), StripIndex(strip));
        let key = StripKey { fs, object, block, strip };
        let data = vec![1; 64 << 10];
        let header = StripHeader { version, block_bytes: 64 << 10, lacks: 0 };
        let checksums = strip_checksums(&key, version, &data);
        let request =
            NsdRequest::Write { key, header, checksums, copy: false, stable: Version::NONE };
        let nsd = &self.rig.nsds[slot];
        nsd.call(NsdContext::default(), &request, &data, &mut []).expect("planted");
    }

    fn check(&self) -> StripCheck {
        self.vfs.manager.check_strips().expect("checked")
    }

    /// The only fault.
    fn fault(&self) -> String {
        let found = self.check();
        assert_eq!(found.faults.len(), 1, "{:?}", found.faults);
        found.faults[0].clone()
    }
}

fn high(counter: u64) -> Version {
    Version { grant: GrantNumber(1 << 40), counter }
}

#[test]
fn it_says_what_it_looked_at() {
    let bench = Bench::new("4+2p");
    bench.create("a", BLOCK_SIZE as usize);
    bench.create("b", BLOCK_SIZE as usize * 2 + 9000);
    bench.create("small", 100);
    let found = bench.check();
    assert_eq!(found.faults, Vec::<String>::new());
    assert_eq!((found.files, found.blocks, found.objects), (2, 4, 2));
    // Three full blocks of six strips, a short one of three.
    assert_eq!(found.strips, 21);
    assert_eq!(found.allocated, 3 * BLOCK + 12_288);
}

#[test]
fn it_ends_early_with_what_it_has_found_and_leaves_files_alone() {
    let bench = Bench::new("4+2p");
    let (ino, _) = bench.create("a", BLOCK_SIZE as usize);
    let layout = bench.layout(ino);
    bench.lose(&layout, 0, 0..1);
    bench.create("b", BLOCK_SIZE as usize);
    bench.create("c", BLOCK_SIZE as usize);
    let whole = bench.check();
    // It is asked again and again whether it is to go on. It ends at each of these moments.
    let asked = std::cell::Cell::new(0);
    let mut last = 0;
    for end in 0.. {
        asked.set(0);
        let watch = |_| {
            asked.set(asked.get() + 1);
            if asked.get() > end { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
        };
        let found = bench.vfs.manager.check_strips_while(&watch).expect("no other error");
        if !found.is_partial {
            assert_eq!(found, whole);
            break;
        }
        assert!(found.files >= last && found.files <= 3, "{found:?}");
        last = found.files;
    }
    assert_eq!(last, 3, "it is asked after the files too");
    assert_eq!(bench.check(), whole);
}

/// A file of exactly one block whose strips are gone reads as zeros: only its sum tells.
#[test]
fn a_file_whose_only_block_is_gone_is_named() {
    for code in ["1", "2x", "4+2p"] {
        let bench = Bench::new(code);
        let dir = bench.vfs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
        let (ino, _) = bench.create("one", BLOCK_SIZE as usize);
        bench.vfs.link(ROOT, ino, dir, b"other").expect("linked");
        bench.vfs.unlink(ROOT, Ino::ROOT, b"one").expect("unlinked");
        let layout = bench.layout(ino);
        bench.lose(&layout, 0, 0..layout.code.width() as u8);
        let fault = bench.fault();
        assert!(fault.contains(&format!("inode {ino} (/dir/other): ")), "{fault}");
        assert!(fault.contains("data is gone, of block 0"), "{fault}");
        assert_eq!(bench.check().again, 1);
    }
}

#[test]
fn blocks_that_are_gone_are_told_from_holes_by_the_sum_and_named_with_them() {
    let bench = Bench::new("4+2p");
    let (ino, handle) = bench.create("f", 4 * BLOCK_SIZE as usize);
    let punched = 2 * BLOCK..3 * BLOCK;
    bench.vfs.fallocate(handle, punched, FallocateMode::PunchHole).expect("punched");
    let grown = SetAttr { size: Some(1 << 50), ..SetAttr::default() };
    bench.vfs.setattr(ROOT, ino, Some(handle), &grown).expect("grown");
    assert_eq!(bench.check().faults, Vec::<String>::new());
    bench.lose(&bench.layout(ino), 0, 0..6);
    let fault = bench.fault();
    let end = (1u64 << 50) / BLOCK - 1;
    assert!(fault.contains(&format!("of block 0, block 2, blocks 4 to {end}")), "{fault}");
}

#[test]
fn missing_strips_are_named_and_a_block_with_too_few_is_lost() {
    let bench = Bench::new("4+2p");
    let (ino, _) = bench.create("f", 2 * BLOCK_SIZE as usize);
    let layout = bench.layout(ino);
    bench.lose(&layout, 1, 3..5);
    let nsd = bench.rig.nsds[bench.slot(&layout, 1, 3)].id();
    let fault = bench.fault();
    assert!(fault.contains(&format!("block 1: strip 3 on NSD {nsd} is missing")), "{fault}");
    bench.lose(&layout, 1, 0..1);
    let fault = bench.fault();
    assert!(fault.contains("block 1 is lost: 3 of 4 strips are there"), "{fault}");
}

#[test]
fn strips_of_other_versions_and_shapes_and_places_are_named() {
    let bench = Bench::new("2x");
    let (ino, _) = bench.create("f", 64 << 10);
    let layout = bench.layout(ino);
    let (own, other) = (bench.slot(&layout, 0, 0), bench.slot(&layout, 0, 1));
    let strange = (0..8).find(|slot| *slot != own && *slot != other).expect("eight NSDs");
    bench.plant(own, layout.object, 0, 0, high(1));
    assert!(bench.fault().contains("is of an old version"));
    bench.plant(other, layout.object, 0, 1, high(1));
    assert_eq!(bench.check().faults, Vec::<String>::new());
    bench.plant(strange, layout.object, 0, 1, high(1));
    assert!(bench.fault().contains("where it does not belong"));
    bench.rig.nsds[strange].lose(layout.object, BlockIndex(0), 1);
    bench.plant(own, layout.object, 0, 5, high(1));
    assert!(bench.fault().contains("where it does not belong"), "a position the code has not");
}

#[test]
fn strips_beyond_the_end_of_a_file_are_named() {
    let bench = Bench::new("2x");
    let (ino, _) = bench.create("f", 64 << 10);
    let layout = bench.layout(ino);
    for strip in 0..2 {
        bench.plant(bench.slot(&layout, 9, strip), layout.object, 9, strip, high(1));
    }
    let faults = bench.check().faults.join("; ");
    assert!(faults.contains("block 9 is stored beyond the end of the file"), "{faults}");
}

#[test]
fn objects_that_no_file_has_are_named() {
    let bench = Bench::new("2x");
    bench.create("f", 64 << 10);
    bench.plant(3, ObjectId(7777), 0, 0, high(1));
    let fault = bench.fault();
    assert!(fault.contains("NSD 4 holds strips of object 7777, which no file has"), "{fault}");
}

#[test]
fn sums_that_do_not_add_up_are_named() {
    let bench = Bench::new("2x");
    let (ino, _) = bench.create("f", 64 << 10);
    for delta in [4096, -8192] {
        let op = MetaOp::Update {
            ino,
            size: 64 << 10,
            data: None,
            allocated_delta: delta,
            mtime: None,
            ctime: None,
        };
        bench.vfs.mount.array.meta.apply(op).expect("told");
        let fault = bench.fault();
        assert!(fault.contains("are allocated"), "{fault}");
    }
}

#[test]
fn an_nsd_that_is_away_is_a_note() {
    let bench = Bench::new("4+2p");
    let (ino, handle) = bench.create("f", 3 * BLOCK_SIZE as usize);
    let layout = bench.layout(ino);
    let away = bench.slot(&layout, 0, 2);
    bench.vfs.array().attach_nsd(SlotIndex(away as u16), None);
    bench.vfs.write(handle, 0, &[1; 5000]).expect("written");
    bench.vfs.fsync(handle).expect("synced");
    let found = bench.check();
    assert_eq!(found.faults, Vec::<String>::new());
    assert!(found.notes.iter().any(|note| note.contains("left out")), "{:?}", found.notes);
    bench.vfs.array().attach_nsd(SlotIndex(away as u16), bench.rig.port(away));
    bench.vfs.manager.recover_nsds();
    let found = bench.check();
    assert_eq!((found.faults, found.notes), (vec![], vec![]));
}

/// One of the many things that applications do.
fn act(vfs: &Mounted, rng: &mut Rng, name: &str) {
    let found = vfs.lookup(ROOT, Ino::ROOT, name.as_bytes());
    let (ino, handle) = match found {
        Ok(entry) => (entry.attr.ino, vfs.open(ROOT, entry.attr.ino, RW).expect("opened").handle),
        Err(_) => {
            let made = vfs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true);
            let (entry, opened) = made.expect("created");
            (entry.attr.ino, opened.handle)
        }
    };
    let offset = rng.below(5 * BLOCK);
    match rng.below(10) {
        0..=4 => {
            let data = vec![rng.next_u64() as u8; 1 + rng.index(2 * BLOCK_SIZE as usize)];
            vfs.write(handle, offset, &data).expect("written");
        }
        5 => {
            let size = if rng.one_in(4) { 0 } else { offset };
            let cut = SetAttr { size: Some(size), ..SetAttr::default() };
            vfs.setattr(ROOT, ino, Some(handle), &cut).expect("cut");
        }
        6 => {
            let hole = offset..offset + rng.below(3 * BLOCK);
            if !hole.is_empty() {
                vfs.fallocate(handle, hole, FallocateMode::PunchHole).expect("punched");
            }
        }
        7 => vfs.fsync(handle).expect("synced"),
        8 => vfs.unlink(ROOT, Ino::ROOT, name.as_bytes()).expect("unlinked"),
        _ => {
            vfs.write(handle, 0, &[1; 100]).expect("written");
        }
    }
    vfs.release(handle);
}

#[test]
fn a_file_system_in_use_has_no_faults() {
    for seed in strake_env::rng::test_seeds(0, 2) {
        println!("seed {seed}");
        let bench = Bench::new("4+2p");
        let done = AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (vfs, done) = (&bench.vfs, &done);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed.wrapping_mul(10) + thread);
                    while !done.load(Ordering::SeqCst) {
                        let name = format!("f{thread}{}", rng.below(3));
                        act(vfs, &mut rng, &name);
                    }
                });
            }
            let (mut checks, mut blocks) = (0, 0);
            let mut faults = Vec::new();
            while faults.is_empty() && (checks < 100 || blocks < 3000) {
                let found = bench.check();
                faults = found.faults;
                checks += 1;
                blocks += found.blocks;
            }
            done.store(true, Ordering::SeqCst);
            assert_eq!(faults, Vec::<String>::new());
        });
        let found = bench.check();
        assert_eq!((found.faults, found.again), (vec![], 0), "at rest one look is enough");
    }
}

#[test]
fn there_are_no_faults_after_power_cuts() {
    for seed in strake_env::rng::test_seeds(0, 12) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(["2x", "4+2p"][seed as usize % 2]);
        for _ in 0..6 {
            for _ in 0..rng.below(40) {
                let name = format!("f{}", rng.below(3));
                act(&bench.vfs, &mut rng, &name);
                // A disk may make durable what it has at any time.
                let at = rng.index(8);
                if rng.one_in(4) {
                    bench.rig.nsds[at].keep_all();
                }
            }
            bench.rig.freeze();
            drop(bench.vfs);
            bench.rig.power_cut(&mut rng);
            bench.vfs = bench.rig.start(0);
            assert_eq!(bench.vfs.recovered.lost, 0);
            assert_eq!(bench.check().faults, Vec::<String>::new(), "seed {seed}");
        }
    }
}
