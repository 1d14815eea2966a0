//! Small synchronous writes that are folded while others are made, and power cuts in between.

use super::{KEPT_UNITS_MAX, fold_some, forget, is_sent, kept};
use crate::memory::file::SizeLock;
use crate::settings::Patches;
use crate::testing::{BLOCK_SIZE, Mounted, Rig, send_block};
use crate::vfs::vfs_test::{create, lookup, open, read, write};
use crate::vfs::{FallocateMode, Handle, SetAttr, Vfs};
use std::collections::BTreeSet;
use std::time::Duration;
use strake_env::Rng;
use strake_env::rng::test_seeds;
use strake_env::watched::LockName;
use strake_proto::limits::HARDENED_UNITS_MAX;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{ByteCount, Caller, Ino};

pub(crate) const UNIT: usize = 4096;
pub(crate) const BLOCK_UNITS: usize = BLOCK_SIZE as usize / UNIT;

pub(crate) fn quiet_rig(code: &str) -> Rig {
    let mut rig = Rig::new(code, 6);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(256);
    rig
}

/// The units of a file: what an `fsync` has promised of each, and every value since then.
pub(crate) struct File {
    units: Vec<BTreeSet<u8>>,
    pub(crate) now: Vec<u8>,
}

impl File {
    pub(crate) fn new(units: usize) -> File {
        File { units: vec![[1].into(); units], now: vec![1; units] }
    }

    pub(crate) fn put(&mut self, unit: usize, value: u8) {
        self.units[unit].insert(value);
        self.now[unit] = value;
    }

    pub(crate) fn synced(&mut self) {
        self.units = self.now.iter().map(|value| [*value].into()).collect();
    }

    pub(crate) fn check(&self, vfs: &Mounted, context: &str) {
        let bytes = read(vfs, open(vfs, "f").1, 0, self.now.len() * UNIT + 1);
        assert_eq!(bytes.len(), self.now.len() * UNIT, "{context}");
        for (unit, bytes) in bytes.chunks(UNIT).enumerate() {
            let (value, known) = (bytes[0], &self.units[unit]);
            assert!(bytes.iter().all(|byte| *byte == value), "{context}: unit {unit} is mixed");
            assert!(known.contains(&value), "{context}: unit {unit} has {value}, not {known:?}");
        }
    }
}

/// A file whose units are all 1, and stable.
pub(crate) fn begin(rig: &Rig, blocks: usize) -> (Mounted, Ino, Handle) {
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &vec![1; blocks * BLOCK_UNITS * UNIT]);
    vfs.sync().expect("synced");
    let ino = lookup(&vfs, "f").attr.ino;
    (vfs, ino, handle)
}

/// The units that the metadata keeps.
fn kept_units(rig: &Rig) -> usize {
    let (mut count, mut next) = (0, (Ino(0), 0));
    loop {
        let query = MetaQuery::Hardened { ino: next.0, unit: next.1, limit: 256 };
        let Ok(MetaReply::Hardened(page)) = rig.meta.query(&query) else { panic!("no page") };
        let Some((ino, last)) = page.last() else { return count };
        next = (*ino, last.unit + 1);
        count += page.len();
    }
}

/// Far more is hardened than may be kept.
#[test]
fn folding_goes_on_while_programs_sync() {
    const BLOCKS: usize = 60;
    let rig = quiet_rig("4+2p");
    let (vfs, _, handle) = begin(&rig, BLOCKS);
    let (mut file, mut rng) = (File::new(BLOCKS * BLOCK_UNITS), Rng::new(7));
    let (mut most, mut written) = (0, 0);
    while written < 4 * KEPT_UNITS_MAX {
        let value = rng.next_u64() as u8 | 1;
        for _ in 0..32 {
            let unit = rng.index(file.now.len());
            write(&vfs, handle, (unit * UNIT) as u64, &[value; UNIT]);
            file.put(unit, value);
            written += 1;
        }
        vfs.fsync(handle).expect("synced");
        file.synced();
        most = most.max(kept(&vfs.mount));
    }
    let counts = vfs.array().io.send_counts();
    println!("{counts:?}, at most {most} units kept");
    assert!(counts.patches > 0 && most < KEPT_UNITS_MAX + HARDENED_UNITS_MAX, "{counts:?}");
    rig.freeze();
    drop(vfs);
    rig.crash();
    let left = kept_units(&rig);
    assert!(left < KEPT_UNITS_MAX + HARDENED_UNITS_MAX, "{left}");
    let vfs = rig.start(0);
    file.check(&vfs, "after the power cut");
    vfs.shutdown().expect("ended");
    assert_eq!((rig.unsettled(), kept_units(&rig)), (0, 0));
}

struct Run {
    rig: Rig,
    rng: Rng,
    file: File,
    /// How often an `fsync` was answered by an entry of the metadata alone.
    hardened: u64,
}

impl Run {
    fn step(&mut self, vfs: &Mounted, (ino, handle): (Ino, Handle)) {
        let (rng, file) = (&mut self.rng, &mut self.file);
        let unit = rng.index(file.now.len());
        let block = (unit / BLOCK_UNITS) as u64;
        match rng.below(24) {
            // Few units, so that they meet again in every state.
            0..=8 => {
                let unit = unit / BLOCK_UNITS * BLOCK_UNITS + unit % 5;
                let value = rng.next_u64() as u8 | 1;
                write(vfs, handle, (unit * UNIT) as u64, &[value; UNIT]);
                file.put(unit, value);
            }
            9 => {
                let count = (1 + rng.index(40)).min(file.now.len() - unit);
                let value = rng.next_u64() as u8 | 1;
                write(vfs, handle, (unit * UNIT) as u64, &vec![value; count * UNIT]);
                (unit..unit + count).for_each(|unit| file.put(unit, value));
            }
            10..=13 => {
                let before = vfs.array().io.send_counts();
                vfs.fsync(handle).expect("synced");
                file.synced();
                self.hardened += u64::from(vfs.array().io.send_counts() == before);
            }
            14..=16 => send_block(vfs, ino, block),
            17 | 18 => drop(vfs.mount.array.rounds.run(false)),
            19 | 20 => drop(fold_some(&vfs.mount, 1 + rng.index(4))),
            21 if rng.one_in(3) => {
                let nsd = rng.index(self.rig.nsds.len());
                self.rig.nsds[nsd].crash();
            }
            22 if rng.one_in(4) => {
                let at = block * u64::from(BLOCK_SIZE);
                let range = at..at + u64::from(BLOCK_SIZE);
                vfs.fallocate(handle, range, FallocateMode::PunchHole).expect("punched");
                let first = unit / BLOCK_UNITS * BLOCK_UNITS;
                (first..first + BLOCK_UNITS).for_each(|unit| file.put(unit, 0));
            }
            23 if rng.one_in(6) => {
                // Cut and extended at once: zeros from there on.
                let size = |size: usize| SetAttr { size: Some(size as u64), ..SetAttr::default() };
                let cut = unit.max(1);
                for units in [cut, file.now.len()] {
                    vfs.setattr(&Caller::ROOT, ino, Some(handle), &size(units * UNIT))
                        .expect("set");
                }
                vfs.fsync(handle).expect("synced");
                (cut..file.now.len()).for_each(|unit| file.put(unit, 0));
                file.synced();
            }
            _ => {}
        }
    }

    fn life(&mut self, beside: bool) {
        let vfs = self.rig.start(0);
        let (entry, handle) = (lookup(&vfs, "f"), open(&vfs, "f").1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            if beside {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Acquire) {
                        fold_some(&vfs.mount, 3);
                        strake_env::thread::yield_now();
                    }
                });
            }
            for _ in 0..20 + self.rng.index(120) {
                self.step(&vfs, (entry.attr.ino, handle));
            }
            stop.store(true, std::sync::atomic::Ordering::Release);
        });
        self.rig.freeze();
        drop(vfs);
        self.rig.power_cut(&mut self.rng);
    }
}

/// Every state of a hardened unit meets everything else, with power cuts.
#[test]
fn what_was_synced_survives_power_cuts_while_it_is_folded() {
    let mut hardened = 0;
    for seed in test_seeds(1, 24) {
        for code in ["1", "2x", "4+2p"] {
            let mut rig = quiet_rig(code);
            rig.settings.patches = [Patches::Auto, Patches::Always][seed as usize % 2];
            let (vfs, ..) = begin(&rig, 5);
            vfs.shutdown().expect("ended");
            drop(vfs);
            let file = File::new(5 * BLOCK_UNITS);
            let mut run = Run { rig, rng: Rng::new(seed), file, hardened: 0 };
            for life in 0..4 {
                run.life(seed % 4 < 2);
                let context = format!("seed {seed}, code {code}, life {life}");
                let vfs = run.rig.start(0);
                run.file.check(&vfs, &context);
                // What is there now stays there: it was read after a restart.
                let bytes = read(&vfs, open(&vfs, "f").1, 0, run.file.now.len() * UNIT);
                run.file.now = bytes.chunks(UNIT).map(|unit| unit[0]).collect();
                run.file.synced();
                assert_eq!(kept_units(&run.rig), 0, "{context}: all is folded at a start");
                run.rig.freeze();
                drop(vfs);
                run.rig.power_cut(&mut run.rng);
            }
            hardened += run.hardened;
        }
    }
    println!("{hardened} times hardened");
    assert!(hardened > 1000, "{hardened} times hardened");
}

/// A block that goes to the NSDs in parts was sent between two syncs; only what it changed is
/// hardened or forgotten.
#[test]
fn a_file_is_hardened_while_its_blocks_are_sent() {
    for code in ["1", "4+2p"] {
        let rig = quiet_rig(code);
        let (vfs, ino, handle) = begin(&rig, 2);
        let mut file = File::new(2 * BLOCK_UNITS);
        let mut put = |unit: usize, value: u8| {
            write(&vfs, handle, (unit * UNIT) as u64, &[value; UNIT]);
            file.put(unit, value);
        };
        let syncs_without_strips = || {
            let before = vfs.array().io.send_counts();
            vfs.fsync(handle).expect("synced");
            assert_eq!(vfs.array().io.send_counts(), before, "{code}");
            kept_units(&rig)
        };
        put(3, 2);
        assert_eq!(syncs_without_strips(), 1);
        // On its way with what was kept, with something newer of it, and with another unit.
        send_block(&vfs, ino, 0);
        put(BLOCK_UNITS, 3);
        assert_eq!(syncs_without_strips(), 2, "what was sent is what is kept");
        vfs.mount.array.rounds.run(false).expect("stable");
        put(3, 4);
        put(4, 4);
        send_block(&vfs, ino, 0);
        assert_eq!(syncs_without_strips(), 3, "both units are on their way");
        vfs.mount.array.rounds.run(false).expect("stable");
        put(4, 5);
        send_block(&vfs, ino, 0);
        vfs.mount.array.rounds.run(false).expect("stable");
        put(BLOCK_UNITS + 1, 6);
        assert_eq!(syncs_without_strips(), 3, "unit 4 is forgotten, and unit 65 is kept");
        fold_some(&vfs.mount, 64);
        assert_eq!(kept_units(&rig), 0);
        file.synced();
        rig.freeze();
        drop(vfs);
        rig.crash();
        let vfs = rig.start(0);
        file.check(&vfs, code);
        vfs.shutdown().expect("ended");
    }
}

/// An `fsync` has copied what is on its way, and has yet to make its entry. Meanwhile that becomes
/// stable, and is folded.
#[test]
fn what_is_about_to_be_hardened_is_not_forgotten_before() {
    let rig = quiet_rig("1");
    let (vfs, ino, handle) = begin(&rig, 1);
    let mut file = File::new(BLOCK_UNITS);
    let mut put = |value: u8| {
        write(&vfs, handle, 3 * UNIT as u64, &[value; UNIT]);
        file.put(3, value);
        send_block(&vfs, ino, 0);
    };
    let (inode, rounds) = (vfs.mount.table.pin(ino), &vfs.mount.array.rounds);
    let state = vfs.mount.file(&inode).expect("a file");
    put(2);
    strake_env::thread::scope(|scope| {
        let serial = state.meta.lock();
        let syncing = scope.spawn(|| vfs.fsync(handle).expect("synced"));
        let waits = || vfs.mount.array.observe.waiters.snapshot_with_locks();
        while !waits().iter().any(|wait| wait.reason == SizeLock::NAME) {
            assert!(!syncing.is_finished(), "it makes its entry under the lock");
            strake_env::thread::yield_now();
        }
        rounds.run(false).expect("stable");
        let block = state.find_block(0).expect("in memory");
        assert!(!is_sent(&state, &block), "nothing is left to send");
        forget(&vfs.mount, &inode, &state, BLOCK_SIZE, false).expect("forgotten");
        drop(serial);
    });
    put(4);
    rounds.run(false).expect("stable");
    vfs.fsync(handle).expect("synced");
    file.synced();
    drop((inode, state));
    rig.freeze();
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    file.check(&vfs, "after the power cut");
    vfs.shutdown().expect("ended");
}
