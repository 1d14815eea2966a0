//! Power cuts under random operations. Promised: what was synced is there; what was written since
//! may be there, byte by byte; no file shows a byte that nobody wrote to it, or a size it never
//! had. A write that makes a file longer gives it the end of each of its blocks as a size.

use crate::differential_test::{fill, length, place};
use crate::settings::Patches;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig, assert_whole, send_block};
use crate::vfs::{FallocateMode, Handle, OpenFlags, SetAttr, Vfs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{ByteCount, Caller, ErrorKind, Ino};

const ROOT: &Caller = &Caller::ROOT;
const SIZE_MAX: usize = 4 * BLOCK_SIZE as usize;
const RW: OpenFlags = OpenFlags::READ_WRITE;

/// A file and all contents it had since it was last synced, that one included.
struct History {
    name: String,
    handle: Option<Handle>,
    ino: Ino,
    synced: bool,
    states: Vec<Vec<u8>>,
}

impl History {
    fn latest(&self) -> &Vec<u8> {
        self.states.last().expect("at least the first")
    }

    /// Notes what the file will be if the next operation succeeds; it may fail half-way.
    fn will_be(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.latest().clone();
        change(&mut next);
        self.states.push(next);
    }

    /// Checks what a crash left of it.
    fn check(&self, found: Option<Vec<u8>>, context: &str) {
        let Some(found) = found else {
            assert!(!self.synced, "{context}: {} was synced and is gone", self.name);
            return;
        };
        let sizes: Vec<usize> = self.states.iter().map(Vec::len).collect();
        assert!(
            sizes.contains(&found.len()),
            "{context}: {} is {} of {sizes:?}",
            self.name,
            found.len()
        );
        for (at, byte) in found.iter().enumerate() {
            let known = self.states.iter().any(|state| state.get(at) == Some(byte));
            assert!(known, "{context}: {} has {byte} at {at} ({})", self.name, found.len());
        }
    }
}

struct Run {
    rig: Rig,
    rng: Rng,
    files: Vec<History>,
}

impl Run {
    fn open(&mut self, vfs: &Mounted, at: usize) -> strake_proto::Result<Handle> {
        let file = &mut self.files[at];
        if let Some(handle) = file.handle {
            return Ok(handle);
        }
        let name = file.name.as_bytes();
        let made = vfs.create(ROOT, Ino::ROOT, name, 0o644, RW, false)?;
        file.handle = Some(made.1.handle);
        file.ino = made.0.attr.ino;
        Ok(made.1.handle)
    }

    /// One operation. Fails only once the power is going.
    fn step(&mut self, vfs: &Mounted) -> strake_proto::Result<()> {
        let at = self.rng.index(self.files.len());
        let handle = self.open(vfs, at)?;
        let rng = &mut self.rng;
        let offset = place(rng, SIZE_MAX);
        let length = length(rng).min(SIZE_MAX - offset).max(1);
        let salt = rng.next_u64() as u8 | 1;
        let file = &mut self.files[at];
        match rng.below(10) {
            0..=4 => {
                // It grows the file block by block, and a sync may come in between.
                let block = BLOCK_SIZE as usize;
                let ends =
                    (offset / block + 1..(offset + length).div_ceil(block)).map(|it| it * block);
                for end in ends.chain([offset + length]) {
                    file.will_be(|bytes| fill(bytes, offset, end, |at| at as u8 ^ salt));
                }
                let data: Vec<u8> = (offset..offset + length).map(|at| at as u8 ^ salt).collect();
                vfs.write(handle, offset as u64, &data)?;
            }
            5 => {
                let size = if rng.one_in(3) { 0 } else { offset };
                file.will_be(|bytes| bytes.resize(size, 0));
                let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                vfs.setattr(ROOT, file.ino, Some(handle), &change)?;
            }
            6 => {
                file.will_be(|bytes| {
                    let end = (offset + length).min(bytes.len());
                    bytes[offset.min(end)..end].fill(0);
                });
                let range = offset as u64..(offset + length) as u64;
                vfs.fallocate(handle, range, FallocateMode::PunchHole)?;
            }
            7 | 8 => {
                vfs.fsync(handle)?;
                let last = file.latest().clone();
                file.states = vec![last];
                file.synced = true;
            }
            _ => {
                vfs.sync()?;
                for file in &mut self.files {
                    let last = file.latest().clone();
                    file.states = vec![last];
                    file.synced |= file.handle.is_some();
                }
            }
        }
        Ok(())
    }

    /// Works for a while, then the power goes. What was on its way may have got further than
    /// anybody was told.
    fn life(&mut self, away: u32) {
        let vfs = self.rig.start(away);
        let steps = 5 + self.rng.index(40);
        // Syncs that nobody was told of, at any moment, as the tender makes them.
        let stop = AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) && vfs.sync().is_ok() {
                    strake_env::thread::yield_now();
                }
            });
            self.work(&vfs, steps);
            stop.store(true, Ordering::Release);
        });
        drop(vfs);
        self.rig.power_cut(&mut self.rng);
        self.files.iter_mut().for_each(|file| file.handle = None);
    }

    /// Operations, until the power goes.
    fn work(&mut self, vfs: &Mounted, steps: usize) {
        for step in 0..steps {
            if step + 1 == steps && self.rng.one_in(2) {
                self.rig.freeze();
            }
            if let Err(error) = self.step(vfs) {
                assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Unreachable), "{error}");
                break;
            }
        }
        self.rig.freeze();
    }

    fn check(&mut self, away: u32, context: &str) {
        let vfs = self.rig.start(away);
        for file in &mut self.files {
            let found = read_all(&vfs, &file.name);
            if away == 0 && found.is_some() {
                let entry = vfs.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("there");
                assert_whole(&vfs, entry.attr.ino, context);
            }
            file.check(found.clone(), context);
            // What is there now stays there: it was read after a restart.
            file.synced = found.is_some();
            file.states = vec![found.unwrap_or_default()];
        }
        drop(vfs);
        self.rig.freeze();
        self.rig.power_cut(&mut self.rng);
    }
}

fn read_all(vfs: &Mounted, name: &str) -> Option<Vec<u8>> {
    let entry = vfs.lookup(ROOT, Ino::ROOT, name.as_bytes()).ok()?;
    let handle = vfs.open(ROOT, entry.attr.ino, RW).expect("opened").handle;
    let mut out = vec![0; entry.attr.size as usize];
    assert_eq!(vfs.read(handle, 0, &mut out).expect("readable"), out.len());
    vfs.release(handle);
    Some(out)
}

fn run(seed: u64, code: &str, away: u32) {
    let mut rig = Rig::new(code, 10);
    rig.settings.patches = [Patches::Auto, Patches::Always][seed as usize % 2];
    let file = |at: usize| History {
        name: format!("f{at}"),
        handle: None,
        ino: Ino(0),
        synced: false,
        states: vec![Vec::new()],
    };
    let files = (0..3).map(file).collect();
    let mut run = Run { rig, rng: Rng::new(seed), files };
    for life in 0..4 {
        run.life(0);
        let context = format!("seed {seed} code {code} life {life}");
        run.check(away, &context);
        run.check(0, &format!("{context} again"));
    }
    println!("{:?}: {} strips patched", run.rig.settings.patches, run.rig.patches());
}

#[test]
fn what_was_synced_survives_power_cuts() {
    for seed in strake_env::rng::test_seeds(0, 12) {
        for code in ["1", "2x", "4+2p", "8+2p"] {
            println!("seed {seed} code {code}");
            run(seed, code, 0);
        }
    }
}

#[test]
fn what_was_synced_survives_power_cuts_and_then_lost_nsds() {
    for seed in strake_env::rng::test_seeds(100, 15) {
        for (code, away) in [("2x", 0b1), ("4+2p", 0b11), ("8+2p", 0b10_0001)] {
            println!("seed {seed} code {code}");
            run(seed, code, away);
        }
    }
}

/// Regression: with two versions of a block under way, a commit could find the newer on some NSDs,
/// in the place of the older, and the older alone on the others. It called the older stable; after
/// a power cut both were gone, and a file that was fsynced read as zeros.
#[test]
fn a_block_is_sent_again_only_when_its_last_version_is_stable() {
    let rig = Rig::new("4+2p", 8);
    let vfs = rig.start(0);
    let (entry, opened) = vfs.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    for byte in 1..4u8 {
        // Not to its end, so that no writer behind sends it.
        vfs.write(opened.handle, 0, &vec![byte; 200_000]).expect("written");
        send_block(&vfs, entry.attr.ino, 0);
    }
    let strips: usize = rig.nsds.iter().map(|nsd| nsd.strips()).sum();
    assert_eq!(strips, 6, "it was sent");
    let superseded: u64 = rig.nsds.iter().map(|nsd| nsd.superseded()).sum();
    assert_eq!(superseded, 0, "no version was overwritten that a commit might have covered");
}

/// A writer says which version is stable everywhere; what is older need not wait until it is
/// settled, and so never pushes out what a recovery needs.
#[test]
fn what_is_older_than_the_last_stable_version_is_forgotten_with_the_next() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let (entry, opened) = vfs.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    let send = |byte: u8| {
        vfs.write(opened.handle, 0, &vec![byte; 200_000]).expect("written");
        send_block(&vfs, entry.attr.ino, 0);
    };
    for byte in 1..7u8 {
        send(byte);
        // Stable, and not named by the metadata: never settled.
        vfs.mount.array.rounds.run(false).expect("stable");
    }
    let kept: Vec<usize> = rig.nsds.iter().map(|nsd| nsd.kept()).collect();
    assert_eq!(kept, [1; 6], "the last but one was stable when the last was sent");
    send(7);
    let kept: Vec<usize> = rig.nsds.iter().map(|nsd| nsd.kept()).collect();
    assert_eq!(kept, [1; 6]);
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    vfs.shutdown().expect("ended");
    assert_eq!(rig.unsettled(), 0);
}

/// What lies beyond the end of a file is deleted at a start; nobody changed the file.
#[test]
fn a_recovery_leaves_the_times_of_a_file() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let (entry, opened) = vfs.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    vfs.write(opened.handle, 0, &[1; 10_000]).expect("written");
    vfs.fsync(opened.handle).expect("synced");
    let before = vfs.getattr(entry.attr.ino).expect("there");
    vfs.write(opened.handle, u64::from(BLOCK_SIZE), &[2; 10_000]).expect("written");
    send_block(&vfs, entry.attr.ino, 1);
    vfs.mount.array.rounds.run(false).expect("stable");
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    assert_eq!(vfs.recovered.deleted, 1, "the metadata never knew of it");
    let after = vfs.getattr(entry.attr.ino).expect("there");
    assert_eq!((after.size, after.mtime, after.ctime), (10_000, before.mtime, before.ctime));
    vfs.shutdown().expect("ended");
}

/// Regression: at a start the metadata was told to forget all that it kept of a file when the first
/// 256 units of it had been written again; the others were gone.
#[test]
fn all_hardened_units_of_a_file_are_written_again_however_many() {
    const UNITS: u64 = 700;
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount(64 << 20);
    let vfs = rig.start(0);
    let mut files = Vec::new();
    for name in [b"f".as_slice(), b"g"] {
        let (entry, opened) = vfs.create(ROOT, Ino::ROOT, name, 0o644, RW, true).expect("created");
        vfs.write(opened.handle, 0, &vec![1; UNITS as usize * 4096]).expect("written");
        vfs.fsync(opened.handle).expect("synced");
        files.push((entry.attr.ino, opened.handle));
    }
    // Not the last of a block, so that no writer behind sends it.
    let is_written = |unit: u64| unit % u64::from(BLOCK_SIZE / 4096) < 60;
    for unit in (0..UNITS).filter(|unit| is_written(*unit)) {
        for (_, handle) in &files {
            vfs.write(*handle, unit * 4096, &[unit as u8; 4096]).expect("written");
            vfs.fsync(*handle).expect("synced");
        }
    }
    drop(vfs);
    rig.crash();
    let (mut kept, mut next) = (0, (Ino(0), 0));
    loop {
        let query = MetaQuery::Hardened { ino: next.0, unit: next.1, limit: 256 };
        let Ok(MetaReply::Hardened(page)) = rig.meta.query(&query) else { panic!("no page") };
        let Some((ino, last)) = page.last() else { break };
        next = (*ino, last.unit + 1);
        kept += page.len();
    }
    let written = (0..UNITS).filter(|unit| is_written(*unit)).count();
    assert_eq!(kept, 2 * written, "all are hardened");
    let vfs = rig.start(0);
    for (ino, _) in files {
        let handle = vfs.open(ROOT, ino, RW).expect("opens").handle;
        let mut bytes = vec![0; UNITS as usize * 4096];
        vfs.read(handle, 0, &mut bytes).expect("read");
        let expected = |unit| if is_written(unit) { unit as u8 } else { 1 };
        let wrong = (0..UNITS).find(|unit| bytes[*unit as usize * 4096] != expected(*unit));
        assert_eq!(wrong, None, "of inode {ino}");
    }
    vfs.shutdown().expect("ended");
}

/// Regression: with eight data strips 163,840 bytes are eight of 20 KiB, and a byte more was seven
/// of 24 KiB: the eighth stayed as it was, and whoever read beyond wrote the block anew each time.
#[test]
fn a_block_that_grows_keeps_all_its_positions() {
    for code in ["8+2p", "8+3p", "4+2p"] {
        let mut rig = Rig::new(code, 11);
        rig.settings.write_cache_threshold = ByteCount(0);
        let vfs = rig.start(0);
        let (entry, opened) = vfs.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
        for end in (8u64..64).map(|unit| unit * 4096 + 1) {
            vfs.write(opened.handle, end - 4096, &[7; 4096]).expect("written");
            vfs.fsync(opened.handle).expect("synced");
            let check = vfs.manager.check_strips().expect("checks");
            assert_eq!(check.faults, Vec::<String>::new(), "{code}: {end} bytes");
        }
        let attr = vfs.getattr(entry.attr.ino).expect("there");
        assert_eq!(attr.size, 63 * 4096 + 1);
        vfs.shutdown().expect("ended");
    }
}

/// A unit that was hardened when it was the last of its file, and ended in its midst.
#[test]
fn a_hardened_unit_is_written_again_as_a_whole() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    let vfs = rig.start(0);
    let (entry, opened) = vfs.create(ROOT, Ino::ROOT, b"f", 0o644, RW, true).expect("created");
    let put = |at: u64, bytes: &[u8]| {
        vfs.write(opened.handle, at, bytes).expect("written");
        vfs.fsync(opened.handle).expect("synced");
    };
    put(0, &[1; 8817]);
    put(8000, &[2; 817]);
    put(20_000, &[3; 100]);
    // Nobody syncs what comes then, but it reaches the disks.
    let newer = vec![9; BLOCK_SIZE as usize];
    vfs.write(opened.handle, 0, &newer).expect("written");
    send_block(&vfs, entry.attr.ino, 0);
    vfs.mount.array.rounds.run(false).expect("stable");
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let opened = vfs.open(ROOT, entry.attr.ino, RW).expect("opens");
    let mut unit = [0; 4096];
    vfs.read(opened.handle, 8192, &mut unit).expect("read");
    let old = [&[2; 625][..], &[0; 4096 - 625]].concat();
    assert!(unit[..] == old, "ends with {:?}", &unit[4090..]);
    vfs.shutdown().expect("ended");
}
