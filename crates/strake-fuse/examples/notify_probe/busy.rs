//! Probes with much going on at once, and the ends of mounts meanwhile.

use crate::mapping::Mapping;
use crate::probes::{contents, hold, name};
use crate::world::{HeldBack, ROOT};
use crate::{LIMIT, Outcome, Probe};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_client::invalidate::Outdated;
use strake_env::{Clock, RealClock, Rng};
use strake_fuse::mountinfo;
use strake_proto::{ErrorKind, Ino};

const STORM: Duration = Duration::from_secs(2);
const FILES: usize = 8;
const FILE_BYTES: usize = 40_000;

/// Raises the flag when the storm is over.
fn rage(stop: &AtomicBool, time: Duration) {
    RealClock.sleep(time);
    stop.store(true, Ordering::SeqCst);
}

/// Programs make, read, write, rename, list and remove in one directory, while two threads
/// invalidate what they work with. No program sees anything but its own work.
pub(crate) fn storm(probe: &Probe) -> Outcome {
    let directory = probe.world.make_directory(ROOT, "busy");
    let path = probe.at("busy");
    let stop = AtomicBool::new(false);
    let orders = std::thread::scope(|scope| -> Result<u64, Box<dyn std::error::Error>> {
        let stop = &stop;
        let programs: Vec<_> = (0..4u64)
            .map(|who| {
                let path = &path;
                scope.spawn(move || work(path, who, stop).map_err(|error| error.to_string()))
            })
            .collect();
        let told: Vec<_> = (0..2)
            .map(|seed| scope.spawn(move || invalidate(probe, directory, seed, stop)))
            .collect();
        rage(stop, STORM);
        for program in programs {
            program.join().map_err(|_| "a program panicked")??;
        }
        let mut orders = 0;
        for thread in told {
            orders += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(orders)
    })?;
    println!("fact: {orders} invalidations were confirmed in {STORM:?} beside four programs");
    hold(orders > 100, "there was a storm")?;
    let mut names: Vec<String> = Vec::new();
    probe.invalidate(contents(directory))?;
    for entry in fs::read_dir(&path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    hold(names == probe.world.names(directory), "the listing is what there is")
}

/// One program; each has files of its own.
fn work(path: &Path, who: u64, stop: &AtomicBool) -> Outcome {
    let mut rng = Rng::new(who);
    let mut files: [Option<Vec<u8>>; FILES] = Default::default();
    while !stop.load(Ordering::SeqCst) {
        let which = rng.index(FILES);
        let file = path.join(format!("{who}-{which}"));
        match (&mut files[which], rng.below(6)) {
            (kept @ None, _) => {
                let bytes = vec![rng.below(256) as u8; rng.index(FILE_BYTES)];
                fs::write(&file, &bytes).map_err(|error| format!("create: {error}"))?;
                *kept = Some(bytes);
            }
            (Some(bytes), 0) => {
                let open = OpenOptions::new().read(true).write(true).open(&file)?;
                let (at, byte) = (rng.index(FILE_BYTES), rng.below(256) as u8);
                open.write_all_at(&[byte], at as u64)?;
                bytes.resize(bytes.len().max(at + 1), 0);
                bytes[at] = byte;
            }
            (kept, 1) => {
                fs::remove_file(&file).map_err(|error| format!("remove: {error}"))?;
                *kept = None;
            }
            (_, 2) => {
                let moved = path.join(format!("{who}-moved"));
                fs::rename(&file, &moved).map_err(|error| format!("rename: {error}"))?;
                fs::rename(&moved, &file).map_err(|error| format!("rename back: {error}"))?;
            }
            (_, 3) => drop(fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?),
            (Some(bytes), _) => {
                let read = fs::read(&file).map_err(|error| format!("read: {error}"))?;
                hold(read == *bytes, "a program reads what it wrote")?;
            }
        }
    }
    Ok(())
}

/// Invalidates at random and waits for each; returns how many were confirmed.
fn invalidate(probe: &Probe, directory: Ino, seed: u64, stop: &AtomicBool) -> Result<u64, String> {
    let mut rng = Rng::new(100 + seed);
    let mut confirmed = 0;
    while !stop.load(Ordering::SeqCst) {
        let file = format!("{}-{}", rng.below(4), rng.index(FILES));
        let ino = Ino(2 + rng.below(200));
        let what = match rng.below(6) {
            0 => Outdated::Attributes(directory),
            1 => contents(directory),
            2 => contents(ino),
            3 => Outdated::Attributes(ino),
            4 if probe.world.adapter().can_drop_all_names() => Outdated::AllNames,
            _ => name(directory, &file),
        };
        probe.invalidate(what.clone()).map_err(|error| format!("{what}: {error}"))?;
        confirmed += 1;
    }
    Ok(confirmed)
}

/// A program stores to mapped pages, one after the other and round again, and two threads have the
/// pages dropped meanwhile: no store is lost, and each is seen at once.
pub(crate) fn storm_mapped(probe: &Probe) -> Outcome {
    const PAGES: usize = 16;
    const PAGE: usize = 4096;
    let ino = probe.world.put(ROOT, "file", &[0; PAGES * PAGE]);
    let file = OpenOptions::new().read(true).write(true).open(probe.at("file"))?;
    let map = Mapping::of(&file, PAGES * PAGE)?;
    let stop = AtomicBool::new(false);
    let mut last = [0u8; PAGES];
    let orders = std::thread::scope(|scope| -> Result<u64, Box<dyn std::error::Error>> {
        let stop = &stop;
        let (map, last) = (&map, &mut last);
        let program = scope.spawn(move || {
            let mut round = 0u64;
            while !stop.load(Ordering::SeqCst) {
                let page = round as usize % PAGES;
                let value = (round / PAGES as u64 % 251 + 1) as u8;
                if last[page] != map.load(page * PAGE) {
                    return Err(format!("page {page} lost its store of {}", last[page]));
                }
                map.store(page * PAGE, value);
                last[page] = value;
                round += 1;
            }
            Ok(())
        });
        let told: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || -> Result<u64, String> {
                    let mut confirmed = 0;
                    while !stop.load(Ordering::SeqCst) {
                        probe.invalidate(contents(ino)).map_err(|error| error.to_string())?;
                        confirmed += 1;
                    }
                    Ok(confirmed)
                })
            })
            .collect();
        rage(stop, STORM);
        program.join().map_err(|_| "the program panicked")??;
        let mut orders = 0;
        for thread in told {
            orders += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(orders)
    })?;
    println!("fact: {orders} times all pages were dropped in {STORM:?} beside stores to them");
    map.sync()?;
    let bytes = probe.world.bytes(ino);
    let stored: Vec<u8> = (0..PAGES).map(|page| bytes[page * PAGE]).collect();
    hold(stored == last, "no store is lost")
}

/// The mount is taken away while two threads invalidate: every order ends, and so does the session.
pub(crate) fn unmount_busy(probe: &Probe) -> Outcome {
    for file in ["a", "b", "c"] {
        probe.world.put(ROOT, file, &[1; 4096]);
        fs::read(probe.at(file))?;
    }
    std::thread::scope(|scope| -> Outcome {
        let told: Vec<_> = (0..2)
            .map(|seed| {
                scope.spawn(move || -> Result<u64, String> {
                    let (mut rng, mut confirmed) = (Rng::new(seed), 0);
                    loop {
                        let what = match rng.below(3) {
                            0 => name(ROOT, "a"),
                            1 => contents(Ino(2 + rng.below(8))),
                            _ => Outdated::Attributes(ROOT),
                        };
                        match probe.invalidate(what) {
                            Ok(()) => confirmed += 1,
                            Err(error) if error.kind() == ErrorKind::Unreachable => {
                                return Ok(confirmed);
                            }
                            Err(error) => return Err(error.to_string()),
                        }
                    }
                })
            })
            .collect();
        RealClock.sleep(Duration::from_millis(200));
        probe.mount.unmount(false)?;
        for thread in told {
            let confirmed = thread.join().map_err(|_| "a thread panicked")??;
            hold(confirmed > 0, "some were confirmed before")?;
        }
        probe.mount.wait();
        Ok(())
    })
}

/// The mount is taken out of the tree while a page's invalidation waits for a read. The program
/// that reads is served all the same; then all ends.
pub(crate) fn unmount_held(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let ino = world.put(ROOT, "file", &[1; 4096]);
    let file = File::open(probe.at("file"))?;
    world.hold(HeldBack::Read(ino));
    std::thread::scope(|scope| -> Outcome {
        let reads = scope.spawn(move || {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes[0])
        });
        let checked = (|| -> Outcome {
            hold(world.meets(HeldBack::Read(ino), 1, LIMIT), "the read arrives")?;
            let stuck = probe.order(contents(ino))?;
            hold(probe.is_held_up(&stuck), "pages wait for a read of them")?;
            probe.mount.unmount(true)?;
            hold(probe.is_held_up(&stuck), "also when the mount is out of the tree")?;
            world.let_go(HeldBack::Read(ino));
            probe.confirm(&stuck)?;
            Ok(())
        })();
        world.let_go(HeldBack::Read(ino));
        let byte = reads.join().map_err(|_| "the program panicked")??;
        hold(byte == 1, "the program reads its bytes")?;
        checked
    })?;
    // The program has closed its file: that was the last of the mount.
    probe.mount.wait();
    let late = probe.order(Outdated::Attributes(ROOT)).map(drop);
    let is_refused = late.is_err_and(|error| error.kind() == ErrorKind::Unreachable);
    hold(is_refused, "nothing can be ordered afterwards")
}

/// A mount is taken away. Its device number goes to the next mount, which belongs to somebody else
/// and stays when the daemon of the first one ends.
pub(crate) fn number_reused(probe: &Probe) -> Outcome {
    const ROUNDS_MAX: usize = 100;
    let device = |path: &Path| fs::metadata(path).map(|root| root.dev());
    let [first, next] = ["first", "next"].map(|name| probe.path.with_extension(name));
    [&first, &next].into_iter().try_for_each(fs::create_dir)?;
    for _ in 0..ROUNDS_MAX {
        let one = Probe::mount(&first, false)?;
        let number = device(&first)?;
        rustix::mount::unmount(&first, rustix::mount::UnmountFlags::empty())?;
        one.mount.wait();
        let other = Probe::mount(&next, false)?;
        // Another process may have taken the number.
        if device(&next)? == number {
            hold(one.mount.places()?.is_empty(), "a mount that was taken away is nowhere")?;
            one.mount.unmount(true)?;
            hold(device(&next)? == number, "the mount that has its number now stays")?;
            return aborted_leaves_nothing(other, &next);
        }
    }
    Err(format!("no mount got the number of the one before in {ROUNDS_MAX} rounds").into())
}

/// A connection that was aborted leaves its mount behind, and the daemon removes it.
fn aborted_leaves_nothing(probe: Probe, path: &Path) -> Outcome {
    let program = File::open(path)?;
    // The force ends the connection. The mount stays all the same, because a program uses it.
    let refused = rustix::mount::unmount(path, rustix::mount::UnmountFlags::FORCE);
    hold(refused == Err(rustix::io::Errno::BUSY), "a mount that is in use stays")?;
    probe.mount.wait();
    drop(program);
    hold(mountinfo::is_dead(path), "nobody serves the mount")?;
    hold(probe.mount.places()? == [path], "it is still this daemon's")?;
    probe.mount.unmount(true)?;
    hold(fs::metadata(path)?.is_dir(), "the directory is there again")
}
