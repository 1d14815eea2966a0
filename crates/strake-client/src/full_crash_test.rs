//! Small synchronous writes on full disks, one of which is away now and then. What an `fsync` has
//! promised is there after kills and power cuts.

use crate::flush::folding::fold_some;
use crate::flush::folding::folding_test::{BLOCK_UNITS, File, UNIT, begin, quiet_rig};
use crate::settings::Patches;
use crate::testing::{BLOCK_SIZE, Mounted, Rig, send_block};
use crate::vfs::Vfs;
use crate::vfs::vfs_test::{create, lookup, open, read, write};
use std::time::Duration;
use strake_env::rng::test_seeds;
use strake_env::{RealClock, Rng};
use strake_proto::ErrorKind;
use strake_proto::layout::NsdAvailability;

/// A wait that lasts longer is a fault.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Fills what is left of the disks.
fn fill_up(vfs: &Mounted) {
    let (_, handle) = create(vfs, "rest");
    let mut at = 0;
    for piece in [BLOCK_SIZE as usize, UNIT] {
        let refused = loop {
            match vfs.write(handle, at, &vec![7; piece]) {
                Ok(count) => at += count as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    }
    vfs.fsync(handle).expect("synced");
    vfs.release(handle);
}

/// Waits until no NSD misses anything.
fn catch_up(vfs: &Mounted) {
    let is_up = |view: &strake_array::NsdView| view.state.availability == NsdAvailability::Up;
    let clock = RealClock::shared();
    let start = clock.monotonic();
    while !vfs.array().nsds().iter().all(is_up) {
        assert!(clock.monotonic() - start < WAIT_MAX, "still {:?}", vfs.array().nsds());
        vfs.tend();
    }
}

/// The file on its disks.
struct Run {
    rig: Rig,
    rng: Rng,
    file: File,
}

impl Run {
    /// Works on full disks, one of which may be catching up, until the process is killed or the
    /// power goes.
    fn full_life(&mut self) {
        let vfs = self.rig.start(0);
        let (entry, handle) = (lookup(&vfs, "f"), open(&vfs, "f").1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Acquire) {
                    vfs.tend();
                    fold_some(&vfs.mount, 3);
                    strake_env::thread::yield_now();
                }
            });
            for _ in 0..40 + self.rng.index(200) {
                let (rng, file) = (&mut self.rng, &mut self.file);
                let unit = rng.index(file.now.len());
                match rng.below(8) {
                    0..=3 => {
                        let value = rng.next_u64() as u8 | 1;
                        write(&vfs, handle, (unit * UNIT) as u64, &[value; UNIT]);
                        file.put(unit, value);
                    }
                    4 | 5 => {
                        vfs.fsync(handle).expect("synced");
                        file.synced();
                    }
                    6 => send_block(&vfs, entry.attr.ino, (unit / BLOCK_UNITS) as u64),
                    _ => drop(vfs.mount.array.rounds.run(false)),
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Release);
        });
        catch_up(&vfs);
        self.rig.freeze();
        drop(vfs);
        if self.rng.one_in(2) {
            self.rig.power_cut(&mut self.rng);
            return;
        }
        self.rig.meta.crash(1 << 20);
        for nsd in &self.rig.nsds {
            nsd.keep_all();
            nsd.crash();
        }
    }
}

#[test]
fn what_was_synced_survives_on_full_disks() {
    for seed in test_seeds(1, 8) {
        let mut rig = quiet_rig("4+2p");
        rig.settings.sync_interval = Duration::from_millis(4);
        rig.settings.patches = [Patches::Auto, Patches::Always][seed as usize % 2];
        rig.nsds.iter().for_each(|nsd| nsd.set_capacity(12 << 20));
        let (vfs, ..) = begin(&rig, 3);
        fill_up(&vfs);
        vfs.shutdown().expect("ended");
        drop(vfs);
        let file = File::new(3 * BLOCK_UNITS);
        let mut run = Run { rig, rng: Rng::new(seed), file };
        for life in 0..6 {
            run.full_life();
            let away = if run.rng.one_in(2) { 1 << run.rng.index(6) } else { 0 };
            let context = format!("seed {seed}, life {life}, away {away:b}");
            let vfs = run.rig.start(away);
            run.file.check(&vfs, &context);
            let bytes = read(&vfs, open(&vfs, "f").1, 0, run.file.now.len() * UNIT);
            run.file.now = bytes.chunks(UNIT).map(|unit| unit[0]).collect();
            run.file.synced();
            run.rig.freeze();
            drop(vfs);
            run.rig.crash();
        }
    }
}
