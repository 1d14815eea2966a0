//! A full file system with several mounts: no byte is accepted twice for the same space, what is
//! there can be written anew by each mount, and space that one mount does not need others get.

use crate::StrakeVfs;
use crate::testing::{BLOCK_SIZE, Leader, Rig};
use crate::tokens::Tokens;
use crate::vfs::{Handle, OpenFlags, Vfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::{Clock, RealClock, thread};
use strake_proto::nsd::NsdRequest;
use strake_proto::{Caller, ClientId, ErrorKind, Ino};
use strake_testing::memory_nsd::{Moment, Watch};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const BLOCK: usize = BLOCK_SIZE as usize;
const MOUNTS: usize = 3;
const NSDS: u16 = 6;
const CODES: [&str; 3] = ["1", "2x", "4+2p"];
/// Of each NSD.
const CAPACITY: u64 = 16 << 20;
/// Bytes that a test writes at a time.
const WRITE: usize = 100_000;

struct World {
    rig: Rig,
    leader: Arc<Leader>,
    mounts: Vec<Arc<StrakeVfs>>,
    _tokens: Vec<Arc<Tokens>>,
    rng: Rng,
}

fn client(at: usize) -> ClientId {
    ClientId(10 + at as u64)
}

/// The file of one mount, and what it holds.
struct Part {
    name: String,
    ino: Ino,
    handle: Handle,
    held: Vec<u8>,
    rng: Rng,
}

impl World {
    fn new(code: &str, seed: u64) -> World {
        eprintln!("seed {seed}, code {code}");
        let rig = Rig::new(code, NSDS);
        rig.nsds.iter().for_each(|nsd| nsd.set_capacity(CAPACITY));
        let leader = Leader::new(rig.tokens(&[]));
        let (mounts, tokens) = (0..MOUNTS).map(|at| rig.start_beside(&leader, client(at))).unzip();
        World { rig, leader, mounts, _tokens: tokens, rng: Rng::new(seed) }
    }

    fn part(&mut self, at: usize) -> Part {
        let name = format!("part-{at}");
        let made = self.mounts[at].create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true);
        let (entry, opened) = made.expect("created");
        let (ino, handle, rng) = (entry.attr.ino, opened.handle, Rng::new(self.rng.next_u64()));
        Part { name, ino, handle, held: Vec::new(), rng }
    }

    /// Each mount works on its own file at the same time.
    fn together(&self, parts: &mut [Part], work: impl Fn(&StrakeVfs, &mut Part) + Sync) {
        thread::scope(|scope| {
            for (mount, part) in self.mounts.iter().zip(parts) {
                let work = &work;
                scope.spawn(move || work(mount, part));
            }
        });
    }

    /// Every file is as it was acknowledged, on a mount that did not write it.
    fn verify(&self, parts: &[Part]) {
        for (at, part) in parts.iter().enumerate() {
            let other = &self.mounts[(at + 1) % MOUNTS];
            let handle = other.open(ROOT, part.ino, RW).expect("opened").handle;
            let mut out = vec![0; part.held.len() + 1];
            let count = other.read(handle, 0, &mut out).expect("readable");
            assert!(out[..count] == part.held, "{} elsewhere", part.name);
            other.release(handle);
        }
    }

    /// Waits until all that is dirty was written and all that is not needed was given back.
    fn rest(&self) {
        self.mounts.iter().for_each(|mount| {
            mount.sync().expect("durable");
            mount.tend();
            mount.tend();
        });
    }

    fn stored(&self) -> u64 {
        let (total, free) = self
            .rig
            .nsds
            .iter()
            .fold((0, 0), |(total, free), nsd| (total + CAPACITY, free + nsd.free()));
        total - free
    }

    fn end(self) {
        for (at, mount) in self.mounts.iter().enumerate() {
            mount.shutdown().expect("ends");
            self.leader.service().gone(client(at));
            assert!(self.rig.nsds.iter().all(|nsd| nsd.granted(client(at)) == 0), "given back");
        }
        self.leader.service().stop();
    }
}

impl Part {
    /// Adds bytes to the end. False if there is no space.
    fn append(&mut self, vfs: &StrakeVfs) -> bool {
        let mut bytes = vec![0; 1 + self.rng.index(WRITE)];
        self.rng.fill(&mut bytes);
        match vfs.write(self.handle, self.held.len() as u64, &bytes) {
            Ok(count) => {
                self.held.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                false
            }
        }
    }

    fn fill(&mut self, vfs: &StrakeVfs) {
        while self.append(vfs) {
            assert!(self.held.len() < usize::from(NSDS) * CAPACITY as usize, "more than there is");
            if self.rng.one_in(50) {
                vfs.fsync(self.handle).expect("what was accepted had its room");
            }
        }
    }

    /// Writes some bytes anew, however full it is.
    fn change(&mut self, vfs: &StrakeVfs) {
        let longest = if self.rng.one_in(3) { 2 * BLOCK } else { 5000 };
        let length = 1 + self.rng.index(longest.min(self.held.len()));
        let start = self.rng.index(self.held.len() - length + 1);
        let bytes = &mut self.held[start..start + length];
        self.rng.fill(bytes);
        let count = vfs.write(self.handle, start as u64, bytes);
        let count = count.unwrap_or_else(|error| panic!("{} at {start}: {error}", self.name));
        assert_eq!(count, length);
    }
}

fn for_each_world(codes: &[&str], test: impl Fn(World)) {
    for seed in test_seeds(1, test_scale()) {
        codes.iter().for_each(|code| test(World::new(code, seed)));
    }
}

/// A mount that was idle has nothing but its floor, which patches leave alone. An overwrite claims
/// nothing, so nothing else asks for more.
#[test]
fn a_mount_that_was_idle_patches() {
    for code in CODES {
        let mut world = World::new(code, 1);
        let part = world.part(0);
        let mount = Arc::clone(&world.mounts[0]);
        mount.write(part.handle, 0, &vec![7; 2 * BLOCK]).expect("there is space");
        mount.fsync(part.handle).expect("durable");
        world.rest();
        let counts = || mount.array().io.send_counts();
        let before = counts();
        for at in 0..8u8 {
            mount.write(part.handle, u64::from(at) * 4096, &[at; 4096]).expect("overwritten");
            mount.sync().expect("durable");
        }
        let (whole, patches) = (counts().whole - before.whole, counts().patches - before.patches);
        assert_eq!((whole, patches), (0, 8), "{code}");
        mount.release(part.handle);
        drop(mount);
        world.end();
    }
}

/// All space is others'. Blocks are sent whole, and the NSDs are seldom asked in vain.
#[test]
fn a_mount_without_room_for_patches_asks_seldom() {
    const WRITES: u8 = 40;
    let mut world = World::new("1", 1);
    let part = world.part(0);
    let mount = Arc::clone(&world.mounts[0]);
    mount.write(part.handle, 0, &vec![7; BLOCK]).expect("there is space");
    mount.fsync(part.handle).expect("durable");
    world.rest();
    let mut other = world.part(1);
    other.fill(&world.mounts[1]);
    world.mounts[1].fsync(other.handle).expect("what was accepted had its room");
    let asks = Arc::new(AtomicUsize::new(0));
    for nsd in &world.rig.nsds {
        let asks = Arc::clone(&asks);
        let watch: Watch = Arc::new(move |moment, request| {
            if matches!((moment, request), (Moment::Before, NsdRequest::GrantSpace(_))) {
                asks.fetch_add(1, Ordering::Relaxed);
            }
        });
        nsd.set_watch(Some(watch));
    }
    let before = mount.array().io.send_counts().whole;
    for at in 0..WRITES {
        mount.write(part.handle, u64::from(at) * 4096, &[at; 4096]).expect("overwritten");
        mount.sync().expect("durable");
    }
    let whole = mount.array().io.send_counts().whole - before;
    let asks = asks.load(Ordering::Relaxed) / usize::from(NSDS);
    println!("{whole} whole blocks, {asks} asks of each NSD");
    assert!(whole >= u64::from(WRITES) / 2, "there is room for patches: {whole} whole blocks");
    assert!((1..=10).contains(&asks), "{asks} asks");
    mount.release(part.handle);
    world.mounts[1].release(other.handle);
    drop(mount);
    world.end();
}

#[test]
fn what_several_mounts_accept_until_all_is_full_reaches_the_disks() {
    for_each_world(&CODES, |mut world| {
        let mut parts: Vec<Part> = (0..MOUNTS).map(|at| world.part(at)).collect();
        world.together(&mut parts, |vfs, part| {
            part.fill(vfs);
            vfs.fsync(part.handle).expect("what was accepted had its room");
        });
        world.verify(&parts);
        let (stored, all) = (world.stored(), u64::from(NSDS) * CAPACITY);
        assert!(stored > all * 3 / 4, "only {stored} of {all} bytes could be used");
        world.rest();
        let free: Vec<u64> =
            world.mounts.iter().map(|mount| mount.statfs().expect("told").free).collect();
        assert!(free.iter().all(|one| *one == free[0]), "mounts disagree: {free:?}");
        world.end();
    });
}

#[test]
fn each_mount_writes_a_full_file_system_anew() {
    for_each_world(&CODES, |mut world| {
        let mut parts: Vec<Part> = (0..MOUNTS).map(|at| world.part(at)).collect();
        world.together(&mut parts, |vfs, part| part.fill(vfs));
        world.together(&mut parts, |vfs, part| {
            for _ in 0..60 {
                part.change(vfs);
                if part.rng.one_in(20) {
                    vfs.fsync(part.handle).expect("durable");
                }
            }
            vfs.fsync(part.handle).expect("what was accepted had its room");
        });
        world.verify(&parts);
        // What one mount removes, another can use.
        let gone = parts.remove(0);
        world.mounts[1].unlink(ROOT, Ino::ROOT, gone.name.as_bytes()).expect("removed");
        world.mounts[0].release(gone.handle);
        world.mounts.iter().for_each(|mount| mount.tend());
        // The file of the third mount is the second one left.
        let before = parts[1].held.len();
        let end = RealClock.monotonic() + Duration::from_secs(30);
        while parts[1].held.len() < before + gone.held.len() / 2 {
            if !parts[1].append(&world.mounts[2]) {
                // Another thread may be removing it at the moment.
                assert!(RealClock.monotonic() < end, "half of it must fit");
                world.mounts.iter().for_each(|mount| mount.tend());
            }
        }
        world.mounts[2].fsync(parts[1].handle).expect("durable");
        world.end();
    });
}

#[test]
fn an_idle_mount_leaves_the_others_nearly_all_of_the_space() {
    for_each_world(&["1"], |mut world| {
        // All have asked at their start. Only one writes.
        let mut part = world.part(0);
        part.fill(&world.mounts[0]);
        world.mounts[0].fsync(part.handle).expect("what was accepted had its room");
        let (stored, all) = (world.stored(), u64::from(NSDS) * CAPACITY);
        assert!(stored > all * 3 / 4, "only {stored} of {all} bytes could be used");
        world.end();
    });
}

/// What a mount has accepted it can send after each NSD has lost what was not durable. Meanwhile
/// others use what is free.
#[test]
fn grants_outlive_a_restart_of_the_nsds() {
    for_each_world(&["1", "2x"], |mut world| {
        let mut parts: Vec<Part> = (0..MOUNTS).map(|at| world.part(at)).collect();
        world.together(&mut parts, |vfs, part| {
            while part.held.len() < 3 << 20 {
                assert!(part.append(vfs));
            }
        });
        for nsd in &world.rig.nsds {
            nsd.crash();
        }
        world.together(&mut parts, |vfs, part| {
            part.fill(vfs);
            vfs.fsync(part.handle).expect("what was accepted had its room");
        });
        world.verify(&parts);
        world.end();
    });
}

/// An NSD goes away that has granted nothing more than a mount needs. Writes go on without it.
#[test]
fn an_nsd_that_is_away_grants_nothing_and_holds_up_nobody() {
    for_each_world(&["2x", "4+2p"], |mut world| {
        let mut parts: Vec<Part> = (0..MOUNTS).map(|at| world.part(at)).collect();
        world.rest();
        world.rig.nsds[5].set_down(true);
        world.together(&mut parts, |vfs, part| {
            while part.held.len() < 3 << 20 {
                assert!(part.append(vfs), "there is space on the others");
            }
            vfs.fsync(part.handle).expect("what was accepted had its room");
        });
        world.verify(&parts);
        for mount in &world.mounts {
            mount.shutdown().expect("ends");
        }
        world.leader.service().stop();
    });
}
