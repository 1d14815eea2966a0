//! Several mounts of one file system: what one has done, every other sees.
//!
//! Files are compared with vectors and names with a map. A test holds a file's vector while an
//! operation runs, so that the expected outcome is exact; operations on other files run at the same
//! time on the other mounts. So tokens are asked for, revoked and given up all the time.

use crate::StrakeVfs;
use crate::differential_test::{fill, length, place};
use crate::flush::sync::sync_all;
use crate::inode::core::Syncing;
use crate::testing::{CREW, Crew, FILES_KEPT, Leader, Rig, assert_whole, send_block};
use crate::tokens::Tokens;
use crate::vfs::{FallocateMode, Handle, OpenFlags, SetAttr, SetTime, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_env::thread;
use strake_env::watched::LockName;
use strake_proto::meta::RenameMode;
use strake_proto::{Caller, ClientId, ErrorKind, Ino, SlotIndex, Timestamp};
use strake_testing::memory_nsd::Faults;
use strake_token::port::ToClient;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
pub(crate) const MOUNTS: usize = 3;
const WRITERS: u32 = 4;
pub(crate) const SIZE_MAX: usize = 5 * (256 << 10) + 1000;

/// Mounts of one file system, and the authority between them.
pub(crate) struct World {
    pub(crate) rig: Rig,
    pub(crate) leader: Arc<Leader>,
    pub(crate) mounts: Vec<Arc<StrakeVfs>>,
    pub(crate) tokens: Vec<Arc<Tokens>>,
}

/// The client of a mount.
pub(crate) fn client(at: usize) -> ClientId {
    ClientId(10 + at as u64)
}

impl World {
    pub(crate) fn new(code: &str, nsds: u16) -> World {
        let rig = Rig::new(code, nsds);
        let leader = Leader::new(rig.tokens(&[]));
        let (mounts, tokens) = (0..MOUNTS).map(|at| rig.start_beside(&leader, client(at))).unzip();
        World { rig, leader, mounts, tokens }
    }

    /// Like [`World::new`], with a manager.
    pub(crate) fn with_crew(code: &str, nsds: u16) -> (World, Crew) {
        World::with_crew_on(Rig::new(code, nsds))
    }

    /// Like [`World::with_crew`], on NSDs that are there already.
    pub(crate) fn with_crew_on(rig: Rig) -> (World, Crew) {
        let leader = Leader::new(rig.tokens(&[CREW]));
        let crew = rig.start_crew(&leader);
        let (mounts, tokens) = (0..MOUNTS).map(|at| rig.start_beside(&leader, client(at))).unzip();
        (World { rig, leader, mounts, tokens }, crew)
    }

    /// How many inodes there are, those included that mounts have yet to tell of.
    pub(crate) fn inodes(&self) -> u64 {
        let told = |mount: &Arc<StrakeVfs>| mount.array().meta.counts().expect("answers").inodes;
        let counts: Vec<u64> = self.mounts.iter().map(told).collect();
        counts[MOUNTS - 1]
    }

    /// Waits until there are so many inodes.
    pub(crate) fn await_inodes(&self, count: u64, why: &str) {
        for _ in 0..10_000 {
            if self.inodes() == count {
                return;
            }
            self.rig.clock.sleep(Duration::from_millis(1));
        }
        assert_eq!(self.inodes(), count, "{why}");
    }

    /// The leader dies, and the next one knows only who has joined.
    pub(crate) fn change_leader(&self) {
        self.change_leader_for(&[0, 1, 2]);
    }

    /// Like [`World::change_leader`], where only some of the mounts turn to the new leader.
    pub(crate) fn change_leader_for(&self, those: &[usize]) {
        let clients: Vec<ClientId> = (0..MOUNTS).map(client).collect();
        let old = self.leader.service();
        let next = self.rig.tokens(&clients);
        self.leader.change(Arc::clone(&next));
        old.stop();
        those.iter().for_each(|at| self.turn_to_leader(*at));
    }

    /// A mount turns to the leader.
    pub(crate) fn turn_to_leader(&self, at: usize) {
        let tokens = Arc::clone(&self.tokens[at]) as Arc<dyn ToClient>;
        self.leader.service().came_back(client(at), tokens);
    }

    /// All mounts end in order; a lone mount then finds what they left.
    pub(crate) fn end(self) -> Rig {
        for (at, mount) in self.mounts.iter().enumerate() {
            mount.shutdown().expect("ends");
            self.leader.service().gone(client(at));
        }
        self.leader.service().stop();
        self.rig
    }
}

/// A file, a handle of it on each mount, and what it should be.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) ino: Ino,
    pub(crate) handles: Vec<Handle>,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    pub(crate) fn new(world: &World, name: String) -> File {
        let first = &world.mounts[0];
        let (entry, opened) =
            first.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true).expect("created");
        let mut handles = vec![opened.handle];
        for mount in &world.mounts[1..] {
            let found = mount.lookup(ROOT, Ino::ROOT, name.as_bytes()).expect("seen at once");
            assert_eq!(found.attr.ino, entry.attr.ino);
            handles.push(mount.open(ROOT, entry.attr.ino, RW).expect("opened").handle);
        }
        File { name, ino: entry.attr.ino, handles, bytes: Vec::new() }
    }

    pub(crate) fn step(&mut self, mounts: &[Arc<StrakeVfs>], rng: &mut Rng) {
        let at = rng.index(mounts.len());
        let vfs = &*mounts[at];
        match rng.below(16) {
            0..=4 => self.write(vfs, at, rng),
            5..=9 => self.read(vfs, at, rng),
            10 => self.append(vfs, rng),
            11 => self.truncate(vfs, at, rng),
            12 => self.punch(vfs, at, rng),
            13 => vfs.fsync(self.handles[at]).expect("synced"),
            14 => {
                vfs.release(self.handles[at]);
                self.handles[at] = vfs.open(ROOT, self.ino, RW).expect("opened").handle;
            }
            _ => {
                vfs.sync().expect("synced");
            }
        }
        let other = &mounts[rng.index(mounts.len())];
        let attr = other.getattr(self.ino).expect("attributes");
        assert_eq!(attr.size, self.bytes.len() as u64, "{}: size elsewhere", self.name);
    }

    fn write(&mut self, vfs: &StrakeVfs, at: usize, rng: &mut Rng) {
        let offset = place(rng, SIZE_MAX);
        let length = length(rng).min(SIZE_MAX - offset);
        let salt = rng.next_u64() as u8;
        let data: Vec<u8> = (0..length).map(|at| (at / 7) as u8 ^ salt).collect();
        let count = vfs.write(self.handles[at], offset as u64, &data).expect("there is room");
        assert_eq!(count, length);
        fill(&mut self.bytes, offset, offset + length, |at| data[at - offset]);
    }

    fn append(&mut self, vfs: &StrakeVfs, rng: &mut Rng) {
        let length = length(rng).min(SIZE_MAX - self.bytes.len());
        let data = vec![rng.next_u64() as u8; length];
        let flags = OpenFlags { append: true, ..RW };
        let handle = vfs.open(ROOT, self.ino, flags).expect("opened").handle;
        assert_eq!(vfs.write(handle, 0, &data).expect("there is room"), length);
        self.bytes.extend_from_slice(&data);
        vfs.release(handle);
    }

    fn read(&mut self, vfs: &StrakeVfs, at: usize, rng: &mut Rng) {
        let offset = place(rng, SIZE_MAX);
        let mut out = vec![0xee; length(rng)];
        let count = vfs.read(self.handles[at], offset as u64, &mut out).expect("readable");
        let expected = self.bytes.get(offset..).unwrap_or(&[]);
        let expected = &expected[..expected.len().min(out.len())];
        let differs = (0..count.min(expected.len())).find(|&at| out[at] != expected[at]);
        assert!(
            count == expected.len() && differs.is_none(),
            "{} on mount {at} at {offset}: {count} of {} bytes, the first wrong one is {differs:?}",
            self.name,
            expected.len()
        );
    }

    fn truncate(&mut self, vfs: &StrakeVfs, at: usize, rng: &mut Rng) {
        let size = if rng.one_in(4) { 0 } else { place(rng, SIZE_MAX) };
        let handle = rng.one_in(2).then_some(self.handles[at]);
        let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        vfs.setattr(ROOT, self.ino, handle, &change).expect("cut");
        self.bytes.resize(size, 0);
    }

    fn punch(&mut self, vfs: &StrakeVfs, at: usize, rng: &mut Rng) {
        let start = place(rng, SIZE_MAX);
        let end = (start + length(rng)).min(SIZE_MAX).max(start + 1);
        let range = start as u64..end as u64;
        vfs.fallocate(self.handles[at], range, FallocateMode::PunchHole).expect("punched");
        let size = self.bytes.len();
        if start < size {
            fill(&mut self.bytes, start, end.min(size), |_| 0);
        }
    }
}

/// Counts a writer as ended, also after a panic.
struct Ended<'a>(&'a AtomicU32);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn steps() -> u64 {
    std::env::var("STRAKE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("STRAKE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("STRAKE_SEED={seed}");
    seed
}

/// The work that goes on beside the steps.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// The leader changes so many times.
    Leaders(u32),
    /// Every mount syncs all that is dirty, again and again, as its tender does.
    Syncs,
}

fn contents_agree(code: &str, nsds: u16, seed: u64, beside: Beside) {
    let world = World::new(code, nsds);
    let left = AtomicU32::new(WRITERS);
    let files: Vec<Mutex<File>> =
        (0..4).map(|at| Mutex::new(File::new(&world, format!("f{at}")))).collect();
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let (files, world, left) = (&files, &world, &left);
            scope.spawn(move || {
                let _ended = Ended(left);
                let mut rng = Rng::new(seed * 100 + u64::from(number));
                for _ in 0..steps() {
                    let file = &files[rng.index(files.len())];
                    file.lock().step(&world.mounts, &mut rng);
                }
            });
        }
        match beside {
            Beside::Nothing => {}
            Beside::Leaders(count) => {
                for _ in 0..count {
                    world.rig.clock.sleep(Duration::from_millis(50));
                    world.change_leader();
                }
            }
            Beside::Syncs => {
                for mount in &world.mounts {
                    let left = &left;
                    scope.spawn(move || {
                        while left.load(Ordering::Acquire) > 0 {
                            sync_all(&mount.mount).expect("synced");
                        }
                    });
                }
            }
        }
    });
    let rig = world.end();
    let alone = rig.start(0);
    for file in files {
        let file = file.into_inner();
        let handle = alone.open(ROOT, file.ino, RW).expect("opened").handle;
        let mut out = vec![0; file.bytes.len() + 1];
        let count = alone.read(handle, 0, &mut out).expect("readable");
        assert!(out[..count] == file.bytes, "{} after all mounts have ended", file.name);
        assert_whole(&alone.vfs, file.ino, &file.name);
        alone.release(handle);
    }
    alone.shutdown().expect("ends");
}

#[test]
fn what_one_mount_writes_every_mount_reads() {
    let seed = seed();
    contents_agree("1", 1, seed, Beside::Nothing);
    contents_agree("4+1p", 5, seed + 1, Beside::Nothing);
    contents_agree("2x", 3, seed + 2, Beside::Nothing);
}

/// A sync of the background holds no token, so that a file may be given up and come back, changed
/// by others, while it is under way.
#[test]
fn a_sync_of_the_background_tells_nothing_of_a_file_given_up() {
    contents_agree("1", 1, seed(), Beside::Syncs);
}

/// Another mount sets the access time while this one tells the metadata of its own in the
/// background. Whichever comes first, the time that was set is the later one.
#[test]
fn an_access_time_told_in_the_background_does_not_outlive_the_token() {
    let world = World::new("1", 1);
    let file = File::new(&world, "read".to_owned());
    let (reader, setter) = (&world.mounts[0], &world.mounts[1]);
    reader.write(file.handles[0], 0, &[7; 5000]).expect("there is room");
    reader.fsync(file.handles[0]).expect("synced");
    reader.read(file.handles[0], 0, &mut [0; 10]).expect("readable");
    let atime = Timestamp { seconds: 5000, nanos: 0 };
    let change = SetAttr { atime: Some(SetTime::At(atime)), ..SetAttr::default() };
    world.leader.shut_gate();
    thread::scope(|scope| {
        scope.spawn(|| sync_all(&reader.mount).expect("synced"));
        world.leader.await_gate_reached();
        let setting = scope.spawn(|| setter.setattr(ROOT, file.ino, None, &change).expect("set"));
        let waiters = &reader.mount.array.observe.waiters;
        let gives_up = || {
            let waits = waiters.snapshot_with_locks();
            waits.iter().any(|wait| wait.reason == Syncing::NAME)
        };
        // Without the lock of the sync the setter would get its token now.
        while !setting.is_finished() && !gives_up() {
            thread::yield_now();
        }
        world.leader.open_gate();
    });
    for mount in &world.mounts {
        assert_eq!(mount.getattr(file.ino).expect("attributes").atime, atime);
    }
    world.end();
}

#[test]
fn a_change_of_the_leader_is_not_noticed() {
    contents_agree("1", 1, seed(), Beside::Leaders(10));
}

#[test]
fn a_file_removed_while_open_outlives_a_change_of_the_leader() {
    let world = World::new("1", 1);
    let file = File::new(&world, "gone".to_owned());
    world.mounts[0].write(file.handles[0], 0, &[7; 5000]).expect("there is room");
    world.mounts[1].unlink(ROOT, Ino::ROOT, b"gone").expect("removed");
    world.change_leader();
    for at in 0..MOUNTS {
        let mut out = vec![0; 5000];
        assert_eq!(world.mounts[at].read(file.handles[at], 0, &mut out).expect("open"), 5000);
        assert_eq!(out, [7; 5000]);
    }
    assert_eq!(world.inodes(), 2);
    for (mount, handle) in world.mounts.iter().zip(&file.handles) {
        mount.release(*handle);
    }
    assert_eq!(world.inodes(), 1, "the new leader removes it after the last close");
    world.end();
}

/// Names of two directories, and what they lead to.
struct Names {
    dirs: [Ino; 2],
    names: [BTreeMap<Vec<u8>, Ino>; 2],
    links: BTreeMap<Ino, u32>,
}

impl Names {
    fn new(world: &World) -> Names {
        let made = ["d0", "d1"].map(|name| {
            world.mounts[0].mkdir(ROOT, Ino::ROOT, name.as_bytes(), 0o755).expect("made").attr.ino
        });
        Names { dirs: made, names: Default::default(), links: BTreeMap::new() }
    }

    fn step(&mut self, world: &World, rng: &mut Rng) {
        let vfs = &*world.mounts[rng.index(MOUNTS)];
        let (from, to) = (rng.index(2), rng.index(2));
        let name = |rng: &mut Rng| format!("n{}", rng.below(6)).into_bytes();
        let (one, two) = (name(rng), name(rng));
        match rng.below(6) {
            0 | 1 => self.create(vfs, from, &one, rng.one_in(2)),
            2 => self.remove(vfs, from, &one),
            3 => self.rename(vfs, (from, &one), (to, &two)),
            4 => self.link(vfs, (from, &one), (to, &two)),
            _ => self.chmod(vfs, from, &one, 0o600 + rng.below(64) as u32, world),
        }
        self.verify(&world.mounts[rng.index(MOUNTS)], rng);
    }

    fn create(&mut self, vfs: &StrakeVfs, dir: usize, name: &[u8], only_new: bool) {
        let made = vfs.create(ROOT, self.dirs[dir], name, 0o644, RW, only_new);
        match (self.names[dir].get(name), made) {
            (Some(_), Err(error)) => {
                assert!(only_new && error.kind() == ErrorKind::Exists, "{error}");
            }
            (known, Ok((entry, opened))) => {
                assert!(!only_new || known.is_none(), "made a second time");
                assert!(known.is_none_or(|ino| *ino == entry.attr.ino));
                if known.is_none() {
                    self.links.insert(entry.attr.ino, 1);
                }
                self.names[dir].insert(name.to_vec(), entry.attr.ino);
                vfs.release(opened.handle);
            }
            (None, Err(error)) => panic!("not made: {error}"),
        }
    }

    fn lost(&mut self, ino: Ino) {
        let links = self.links.get_mut(&ino).expect("known");
        *links -= 1;
        if *links == 0 {
            self.links.remove(&ino);
        }
    }

    fn remove(&mut self, vfs: &StrakeVfs, dir: usize, name: &[u8]) {
        let removed = vfs.unlink(ROOT, self.dirs[dir], name);
        match self.names[dir].remove(name) {
            Some(ino) => {
                removed.expect("it was there");
                self.lost(ino);
            }
            None => assert_eq!(removed.expect_err("none").kind(), ErrorKind::NotFound),
        }
    }

    fn rename(&mut self, vfs: &StrakeVfs, from: (usize, &[u8]), to: (usize, &[u8])) {
        let places = ((self.dirs[from.0], from.1), (self.dirs[to.0], to.1));
        let renamed = vfs.rename(ROOT, places.0, places.1, RenameMode::Replace);
        let Some(ino) = self.names[from.0].get(from.1).copied() else {
            assert_eq!(renamed.expect_err("none").kind(), ErrorKind::NotFound);
            return;
        };
        renamed.expect("it was there");
        let target = self.names[to.0].get(to.1).copied();
        // Two names of one inode: nothing happens.
        if target != Some(ino) {
            self.names[from.0].remove(from.1);
            self.names[to.0].insert(to.1.to_vec(), ino);
            target.into_iter().for_each(|ino| self.lost(ino));
        }
    }

    fn link(&mut self, vfs: &StrakeVfs, from: (usize, &[u8]), to: (usize, &[u8])) {
        let Some(ino) = self.names[from.0].get(from.1).copied() else { return };
        let linked = vfs.link(ROOT, ino, self.dirs[to.0], to.1);
        if self.names[to.0].contains_key(to.1) {
            assert_eq!(linked.expect_err("taken").kind(), ErrorKind::Exists);
            return;
        }
        linked.expect("the name is free");
        self.names[to.0].insert(to.1.to_vec(), ino);
        *self.links.get_mut(&ino).expect("known") += 1;
    }

    fn chmod(&mut self, vfs: &StrakeVfs, dir: usize, name: &[u8], permissions: u32, world: &World) {
        let Some(ino) = self.names[dir].get(name) else { return };
        let change = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
        vfs.setattr(ROOT, *ino, None, &change).expect("changed");
        for mount in &world.mounts {
            assert_eq!(mount.getattr(*ino).expect("there").permissions, permissions);
        }
    }

    fn verify(&self, vfs: &StrakeVfs, rng: &mut Rng) {
        let dir = rng.index(2);
        let mut listed = BTreeMap::new();
        vfs.readdir(self.dirs[dir], 0, rng.one_in(2), &mut |item| {
            if item.cookie > 2 {
                listed.insert(item.name.clone(), item.ino);
            }
            true
        })
        .expect("listed");
        assert_eq!(listed, self.names[dir]);
        let name = format!("n{}", rng.below(6)).into_bytes();
        match (vfs.lookup(ROOT, self.dirs[dir], &name), self.names[dir].get(&name)) {
            (Ok(entry), Some(ino)) => {
                assert_eq!(entry.attr.ino, *ino);
                assert_eq!(entry.attr.links, self.links[ino], "links of {ino}");
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
            (found, known) => panic!("{found:?} instead of {known:?}"),
        }
    }
}

#[test]
fn names_are_the_same_on_every_mount() {
    let seed = seed();
    let world = World::new("1", 1);
    let mut rng = Rng::new(seed);
    let mut names = Names::new(&world);
    for _ in 0..steps() {
        names.step(&world, &mut rng);
    }
    let rig = world.end();
    let alone = rig.start(0);
    names.verify(&alone.vfs, &mut rng);
    alone.shutdown().expect("ends");
}

#[test]
fn of_many_that_make_one_name_one_succeeds() {
    let world = World::new("1", 1);
    for round in 0..30 {
        let name = format!("only-{round}");
        let made: usize = thread::scope(|scope| {
            let racers: Vec<_> = world
                .mounts
                .iter()
                .map(|mount| {
                    let name = name.as_bytes();
                    scope.spawn(move || {
                        match mount.create(ROOT, Ino::ROOT, name, 0o644, RW, true) {
                            Ok((_, opened)) => {
                                mount.release(opened.handle);
                                1
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Exists);
                                0
                            }
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().expect("no panic")).sum()
        });
        assert_eq!(made, 1, "{name}");
    }
    world.end();
}

#[test]
fn appended_records_of_all_mounts_stay_whole() {
    const RECORD: usize = 100;
    const EACH: usize = 60;
    let world = World::new("1", 1);
    let file = File::new(&world, "log".to_owned());
    thread::scope(|scope| {
        for (at, mount) in world.mounts.iter().enumerate() {
            let ino = file.ino;
            scope.spawn(move || {
                let flags = OpenFlags { append: true, ..RW };
                let handle = mount.open(ROOT, ino, flags).expect("opened").handle;
                for _ in 0..EACH {
                    let record = [at as u8 + 1; RECORD];
                    assert_eq!(mount.write(handle, 0, &record).expect("there is room"), RECORD);
                }
                mount.release(handle);
            });
        }
    });
    let mut all = vec![0; MOUNTS * EACH * RECORD + 1];
    let count = world.mounts[0].read(file.handles[0], 0, &mut all).expect("readable");
    assert_eq!(count, MOUNTS * EACH * RECORD);
    let mut counts = [0; MOUNTS + 1];
    for record in all[..count].chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record is torn");
        counts[usize::from(record[0])] += 1;
    }
    assert_eq!(counts[1..], [EACH; MOUNTS]);
    world.end();
}

#[test]
fn a_removed_file_stays_until_the_last_mount_closes_it() {
    let world = World::new("1", 1);
    let mut file = File::new(&world, "gone".to_owned());
    let bytes = vec![7; 300_000];
    world.mounts[0].write(file.handles[0], 0, &bytes).expect("there is room");
    world.mounts[1].unlink(ROOT, Ino::ROOT, b"gone").expect("removed");
    let absent = world.mounts[2].lookup(ROOT, Ino::ROOT, b"gone").expect_err("seen at once");
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    for at in 0..MOUNTS {
        let mount = &world.mounts[at];
        let mut out = vec![0; bytes.len()];
        assert_eq!(mount.read(file.handles[at], 0, &mut out).expect("open"), bytes.len());
        assert!(out == bytes, "mount {at} reads what was written");
        assert_eq!(mount.getattr(file.ino).expect("open").links, 0);
        assert_eq!(world.inodes(), 2, "it is there while one has it open");
        mount.release(file.handles.remove(at));
        file.handles.insert(at, Handle(0));
    }
    assert_eq!(world.inodes(), 1, "the last close removes it");
    world.end();
}

#[test]
fn an_nsd_that_one_mount_leaves_out_is_read_by_no_other() {
    for slot in 0..3 {
        let world = World::new("2x", 3);
        let files: Vec<File> = (0..4).map(|at| File::new(&world, format!("f{at}"))).collect();
        let old = vec![1; 100_000];
        for file in &files {
            world.mounts[0].write(file.handles[0], 0, &old).expect("there is room");
            world.mounts[0].fsync(file.handles[0]).expect("synced");
            let mut out = vec![0; old.len()];
            world.mounts[1].read(file.handles[1], 0, &mut out).expect("readable");
            assert_eq!(out, old);
        }
        // Only this mount has lost its way to the NSD.
        world.mounts[0].array().attach_nsd(SlotIndex(slot), None);
        let new = vec![2; old.len()];
        for file in &files {
            world.mounts[0].write(file.handles[0], 0, &new).expect("there is room");
            world.mounts[0].fsync(file.handles[0]).expect("synced");
            for at in 1..MOUNTS {
                let mut out = vec![0; new.len()];
                world.mounts[at].read(file.handles[at], 0, &mut out).expect("readable");
                assert!(out == new, "mount {at} reads a strip that missed the write");
            }
        }
        // The second NSD is one too many, whoever asks.
        world.rig.nsds[usize::from((slot + 1) % 3)].set_down(true);
        let refused = files.iter().any(|file| {
            world.mounts[1].write(file.handles[1], 0, &old).is_err()
                || world.mounts[1].fsync(file.handles[1]).is_err()
        });
        assert!(refused, "a write must not count with one strip");
    }
}

#[test]
fn tokens_of_many_files_are_given_back_for_room() {
    let world = World::new("1", 1);
    let mount = &world.mounts[0];
    for number in 0..20 * FILES_KEPT {
        let name = format!("many-{number}");
        let made = mount.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true);
        let (entry, opened) = made.expect("created");
        mount.write(opened.handle, 0, name.as_bytes()).expect("there is room");
        mount.release(opened.handle);
        assert_eq!(entry.attr.links, 1);
    }
    // Giving back takes a moment, and each grant makes room for itself only.
    let end = world.rig.clock.monotonic() + Duration::from_secs(20);
    while world.leader.service().files() > FILES_KEPT + 4 {
        assert!(world.rig.clock.monotonic() < end, "tokens are kept for ever");
        world.rig.clock.sleep(Duration::from_millis(5));
    }
    for number in 0..20 * FILES_KEPT {
        let name = format!("many-{number}");
        let found = world.mounts[1].lookup(ROOT, Ino::ROOT, name.as_bytes()).expect("seen");
        assert_eq!(found.attr.size, name.len() as u64);
    }
    world.end();
}

/// A file of a mount that dies, with the bytes that others may find in it then.
struct Left {
    /// The bytes that were synced.
    synced: Vec<u8>,
    /// For each offset, the bytes that were written there later.
    later: BTreeMap<usize, Vec<u8>>,
}

impl Left {
    /// Writes to a file, syncs it, writes more that is sent in part, and leaves it so.
    fn make(vfs: &StrakeVfs, file: &File, rng: &mut Rng) -> Left {
        let mut left = Left { synced: vec![1; 3 * (256 << 10)], later: BTreeMap::new() };
        let handle = file.handles[0];
        vfs.write(handle, 0, &left.synced).expect("there is room");
        vfs.fsync(handle).expect("synced");
        for number in 0..6 {
            // The short ones are hardened.
            let length = if rng.one_in(2) { 1 + rng.index(9000) } else { 200_000 };
            let offset = rng.index(left.synced.len() - length);
            let bytes = vec![10 + number; length];
            vfs.write(handle, offset as u64, &bytes).expect("there is room");
            if rng.one_in(2) {
                vfs.fsync(handle).expect("synced");
                left.synced[offset..offset + length].copy_from_slice(&bytes);
                // A sync covers the earlier writes too.
                for (at, all) in std::mem::take(&mut left.later) {
                    if !(offset..offset + length).contains(&at) {
                        left.synced[at] = *all.last().expect("not empty");
                    }
                }
                continue;
            }
            for at in offset..offset + length {
                left.later.entry(at).or_default().push(bytes[0]);
            }
            if rng.one_in(2) {
                send_block(vfs, file.ino, rng.below(3));
            }
        }
        left
    }

    fn verify(&self, read: &[u8], context: &str) {
        assert_eq!(read.len(), self.synced.len(), "{context}");
        for (at, byte) in read.iter().enumerate() {
            let may_be = self.later.get(&at).is_some_and(|later| later.contains(byte));
            assert!(may_be || *byte == self.synced[at], "{context}: byte {at} is {byte}");
        }
    }
}

#[test]
fn what_a_mount_that_dies_left_is_put_right() {
    for seed in strake_env::rng::test_seeds(0, 12) {
        let (mut world, crew) = World::with_crew("2x", 3);
        let mut rng = Rng::new(seed);
        let files: Vec<File> = (0..3).map(|at| File::new(&world, format!("f{at}"))).collect();
        let left: Vec<Left> =
            files.iter().map(|file| Left::make(&world.mounts[0], file, &mut rng)).collect();
        // It dies without a word: nothing is flushed, nothing given back.
        drop((world.mounts.remove(0), world.tokens.remove(0)));
        if seed % 2 == 1 {
            // So does an NSD, and is there again, which nobody has noticed yet.
            world.rig.nsds[(seed / 2 % 3) as usize].crash();
        }
        crew.bury(client(0));
        for (file, left) in files.iter().zip(&left) {
            let context = format!("seed {seed}: {}", file.name);
            let mut before: Option<Vec<u8>> = None;
            for (at, mount) in world.mounts.iter().enumerate() {
                let mut out = vec![0; left.synced.len() + 1];
                let count = mount.read(file.handles[at + 1], 0, &mut out).expect("readable");
                out.truncate(count);
                left.verify(&out, &context);
                assert!(before.is_none_or(|before| before == out), "{context}: two mounts differ");
                before = Some(out);
            }
            assert_whole(&world.mounts[0], file.ino, &context);
        }
        for (at, mount) in world.mounts.iter().enumerate() {
            mount.shutdown().expect("ends");
            world.leader.service().gone(client(at + 1));
        }
        crew.end();
    }
}

#[test]
fn an_nsd_that_comes_back_gets_what_every_mount_wrote() {
    let seed = seed();
    let (world, crew) = World::with_crew("2x", 3);
    let files: Vec<Mutex<File>> =
        (0..4).map(|at| Mutex::new(File::new(&world, format!("f{at}")))).collect();
    for round in 0..4 {
        let slot = SlotIndex(round % 3);
        let port = world.rig.port(usize::from(slot.0));
        // One mount after the other loses its way to an NSD, while all are at work.
        let one = world.mounts[usize::from(round) % MOUNTS].array();
        one.attach_nsd(slot, None);
        let work = |at: usize, count: usize| {
            let mut rng = Rng::new(seed + 10 * u64::from(round) + at as u64);
            for _ in 0..count {
                files[rng.index(files.len())].lock().step(&world.mounts, &mut rng);
            }
        };
        work(0, 40);
        one.attach_nsd(slot, port);
        let is_up = |nsds: &strake_array::nsds::NsdSet| nsds.availability(slot).readable();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..2).map(|at| scope.spawn(move || work(at, 60))).collect();
            let end = world.rig.clock.monotonic() + Duration::from_secs(60);
            let all = || world.mounts.iter().map(|mount| mount.array()).chain([crew.vfs.array()]);
            while !all().all(|array| is_up(array.io.nsds())) {
                assert!(world.rig.clock.monotonic() < end, "it stays away");
                crew.manager.recover_nsds();
                world.mounts.iter().for_each(|mount| mount.array().io.nsds().look_after());
            }
            workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        });
    }
    crew.end();
    let files: Vec<File> = files.into_iter().map(Mutex::into_inner).collect();
    let rig = world.end();
    let alone = rig.start(0);
    for file in &files {
        let mut out = vec![0; SIZE_MAX];
        let handle = alone.vfs.open(ROOT, file.ino, RW).expect("opened").handle;
        let count = alone.vfs.read(handle, 0, &mut out).expect("readable");
        assert!(out[..count] == file.bytes, "{}", file.name);
        assert_whole(&alone.vfs, file.ino, &file.name);
    }
    alone.shutdown().expect("ends");
}

/// A second mount waits for the file, and the first one cannot write what it has of it.
#[test]
fn what_is_lost_because_another_mount_waits_is_told_by_the_file_and_by_a_sync_of_everything() {
    let world = World::new("1", 1);
    let (file, [writer, reader]) =
        (File::new(&world, "f".into()), [0, 1].map(|at| &world.mounts[at]));
    writer.write(file.handles[0], 0, &[1; 5000]).expect("there is room");
    writer.sync().expect("synced");
    writer.write(file.handles[0], 0, &[2; 5000]).expect("there is room");
    let write = Some(ErrorKind::NoSpace);
    world.rig.nsds[0].set_faults(Faults { write, ..Faults::default() });
    let mut out = vec![0; 5000];
    reader.read(file.handles[1], 0, &mut out).expect("it waits for long enough");
    assert!(out == [1; 5000], "what was synced");
    world.rig.nsds[0].set_faults(Faults::default());
    writer.tend();
    assert_eq!(writer.sync().expect_err("something is lost").kind(), ErrorKind::NoSpace);
    writer.sync().expect("that was told");
    assert_eq!(writer.fsync(file.handles[0]).expect_err("it is lost").kind(), ErrorKind::NoSpace);
    writer.fsync(file.handles[0]).expect("that was told");

    // Nobody has the file open when it is lost.
    writer.write(file.handles[0], 0, &[3; 5000]).expect("there is room");
    writer.release(file.handles[0]);
    world.rig.nsds[0].set_faults(Faults { write, ..Faults::default() });
    reader.read(file.handles[1], 0, &mut out).expect("it waits for long enough");
    world.rig.nsds[0].set_faults(Faults::default());
    let anew = writer.open(ROOT, file.ino, OpenFlags::READ_WRITE).expect("opened").handle;
    assert_eq!(writer.fsync(anew).expect_err("it is lost").kind(), ErrorKind::NoSpace);
    writer.fsync(anew).expect("that was told");
    writer.release(anew);
    world.end();
}

/// Disks that many files need are away for longer than writers wait for anything. Other mounts want
/// the files. They stay with their mount, other files change hands meanwhile, and nothing is lost.
#[test]
fn what_cannot_be_written_while_disks_are_away_stays_with_its_mount() {
    // So few that a mount keeps their tokens.
    const STUCK: usize = 4;
    let world = World::new("1", 1);
    let [writer, reader] = [0, 1].map(|at| &world.mounts[at]);
    let files: Vec<File> = (0..STUCK).map(|at| File::new(&world, format!("f{at}"))).collect();
    let free = File::new(&world, "free".into());
    for file in &files {
        writer.write(file.handles[0], 0, &[1; 5000]).expect("there is room");
    }
    writer.sync().expect("synced");
    for file in &files {
        writer.write(file.handles[0], 0, &[2; 5000]).expect("there is room");
    }
    let write = Some(ErrorKind::Unreachable);
    world.rig.nsds[0].set_faults(Faults { write, ..Faults::default() });
    let limit = world.rig.settings.standstill_max;
    thread::scope(|scope| {
        let read = |file: &File| {
            let mut out = vec![0; 5000];
            let count = reader.read(file.handles[1], 0, &mut out).expect("it waits");
            assert!(count == 5000 && out == [2; 5000], "{}: what was written last", file.name);
        };
        let readers: Vec<_> = files.iter().map(|file| scope.spawn(move || read(file))).collect();
        world.rig.clock.sleep(limit + limit / 2);
        let waiting = readers.iter().filter(|reader| !reader.is_finished()).count();
        // In the inode, so no disk is needed.
        let mut out = [0; 4];
        let written = writer.write(free.handles[0], 0, b"free");
        let found = written.and_then(|_| reader.read(free.handles[1], 0, &mut out));
        world.rig.nsds[0].set_faults(Faults::default());
        world.mounts.iter().for_each(|mount| mount.array().io.nsds().look_after());
        assert_eq!((waiting, found, &out), (STUCK, Ok(4), b"free"));
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    });
    writer.sync().expect("nothing is lost");
    world.end();
}
