//! Missing NSDs. As many as the code allows are away at a start; everything can still be read and
//! written. They come back and catch up, and then others are away. One of these is deleted under
//! load, and after that one more can be away.

use super::checks::Checks;
use super::faults;
use super::manifest;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The code and its NSDs, the NSDs that are missing first, and the NSDs that are missing once the
/// first are back.
const CASES: &[(Shape, &[u16], &[u16])] = &[
    (Shape::of("2x", 4), &[1], &[3]),
    (Shape::of("4+2p", 6), &[2, 5], &[1, 6]),
    (Shape::of("8+2p", 10), &[1, 10], &[4, 7]),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    for (shape, first, second) in CASES {
        let mounted = Mounted::create(session, checks, shape.code, shape)?;
        let outcome = one(&mounted, checks, shape.code, first, second);
        if let Err(reason) = outcome {
            checks.record(&format!("{}: goes on", shape.code), Err(reason));
        }
        mounted.finish(checks);
    }
    Ok(())
}

fn one(
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    code: &str,
    first: &[u16],
    second: &[u16],
) -> Result<(), String> {
    fill(&mounted.mount.join("whole"), 1)?;
    let whole = manifest::of(&mounted.mount)?;
    move_away(mounted, first)?;
    let seen = manifest::of(&mounted.mount);
    let outcome = seen.and_then(|seen| manifest::compare(&whole, &seen));
    checks.record(&format!("{code}: all is read without NSDs {first:?}"), outcome);
    fill(&mounted.mount.join("degraded"), 2)?;
    overwrite(&mounted.mount.join("whole"))?;
    let written = manifest::of(&mounted.mount)?;
    mounted.down()?;
    first.iter().try_for_each(|&nsd| mounted.return_nsd(nsd))?;
    mounted.up()?;
    let outcome = manifest::of(&mounted.mount).and_then(|seen| manifest::compare(&written, &seen));
    checks.record(&format!("{code}: all is read when they are back"), outcome);
    checks.record(&format!("{code}: they catch up"), caught_up(mounted));
    checks.record(&format!("{code}: clean when they are back"), mounted.check());
    checks.record(&format!("{code}: a scrub mends superblock and log"), scrub_own(mounted, 2));
    move_away(mounted, second)?;
    let outcome = manifest::of(&mounted.mount).and_then(|seen| manifest::compare(&written, &seen));
    checks.record(&format!("{code}: then all is read without NSDs {second:?}"), outcome);
    if code == "2x" {
        return delete(mounted, checks, second[0], first[0]);
    }
    mounted.down()?;
    second.iter().try_for_each(|&nsd| mounted.return_nsd(nsd))?;
    mounted.up().map(drop)
}

/// Deletes a lost disk while files are written. Its strips get other places, so another disk can be
/// lost after that.
fn delete(mounted: &Mounted<'_>, checks: &mut Checks, gone: u16, next: u16) -> Result<(), String> {
    let disk = format!("nsd{gone} ");
    let stop = AtomicBool::new(false);
    let deleted = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            for round in 3.. {
                fill(&mounted.mount.join(format!("round-{round}")), round)?;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok::<(), String>(())
        });
        let outcome = mounted.say(&format!("disk delete nsd{gone}")).and_then(|_| {
            faults::wait_until(mounted, "disk list", |text| {
                text.lines().all(|line| !line.starts_with(&disk))
            })
        });
        stop.store(true, Ordering::Relaxed);
        let loaded = load.join().map_err(|_| "the load panicked".to_owned())?;
        outcome.and(loaded)
    });
    checks.record("a lost disk is deleted under load", deleted);
    checks.record("clean when it is deleted", mounted.check());
    checks.record("a disk is added, and new files are there, too", add(mounted));
    checks.record("the other files are moved there and are the same", rebalance(mounted));
    checks.record("clean when they are moved", mounted.check());
    let whole = manifest::of(&mounted.mount)?;
    mounted.down()?;
    // The daemon has removed the deleted disk from its list, so nothing misses it.
    mounted.remove_nsd(next)?;
    mounted.up()?;
    let outcome = manifest::of(&mounted.mount).and_then(|seen| manifest::compare(&whole, &seen));
    checks.record(&format!("all is read without NSD {next} as well"), outcome);
    mounted.down()?;
    mounted.return_nsd(next)?;
    mounted.up().map(drop)?;
    checks.record("the others catch up", caught_up(mounted));
    checks.record("they are up", mounted.disks_are_up());
    checks.record("clean at the end", mounted.check());
    Ok(())
}

/// Adds a disk. New files have strips on it.
fn add(mounted: &Mounted<'_>) -> Result<(), String> {
    let said = mounted.say(&format!("disk add {}", mounted.beside("added-disk")?.display()))?;
    let disk = said.split(' ').next().unwrap_or_default().to_owned();
    let row = |text: &str| {
        let row = text.lines().find(|line| line.starts_with(&format!("{disk} ")));
        row.map(str::to_owned).ok_or_else(|| format!("no {disk} in:\n{text}"))
    };
    let listed = row(&mounted.say("disk list")?)?;
    if !listed.contains("ready   up") {
        return Err(listed);
    }
    let free = || mounted.say("fs df").and_then(|text| row(&text));
    let before = free()?;
    fill(&mounted.mount.join("after-adding"), 9)?;
    mounted.say("fs sync")?;
    match free()? {
        after if after == before => Err(format!("nothing is placed on it: {after}")),
        _ => Ok(()),
    }
}

/// Moves the files of before to the disk that was added, while files are read and written.
fn rebalance(mounted: &Mounted<'_>) -> Result<(), String> {
    let moved = mounted.mount.join("whole");
    let before = manifest::of(&moved)?;
    mounted.say("fs rebalance start")?;
    fill(&mounted.mount.join("while-moving"), 10)?;
    let ended = |text: &str| text.contains("complete") && !text.contains("left:");
    faults::wait_until(mounted, "fs rebalance status", ended)?;
    manifest::compare(&before, &manifest::of(&moved)?)
}

fn move_away(mounted: &Mounted<'_>, nsds: &[u16]) -> Result<(), String> {
    mounted.down()?;
    nsds.iter().try_for_each(|&nsd| mounted.remove_nsd(nsd))?;
    mounted.up().map(drop)
}

/// Waits until no disk is listed as recovering or unrecovered.
fn caught_up(mounted: &Mounted<'_>) -> Result<(), String> {
    let end = crate::runner::now() + std::time::Duration::from_secs(60);
    loop {
        let mut list = mounted.command("disk list");
        let listed = mounted.program("strake disk list", 30, &mut list)?;
        let waiting = listed.output().lines().any(|line| line.contains("recover"));
        if !waiting {
            return Ok(());
        }
        if crate::runner::now() >= end {
            return Err(listed.complaint("NSDs still recover after 60 s"));
        }
        super::command::pause(std::time::Duration::from_millis(100));
    }
}

/// Damages the superblock and the index log of an NSD in use, then checks that a scrub finds and
/// mends both.
fn scrub_own(mounted: &Mounted<'_>, nsd: u16) -> Result<(), String> {
    damage(&mounted.container(nsd))?;
    mounted.say("fs scrub start")?;
    wait_for_scrub(2, || mounted.say("fs scrub status"))
}

/// Damages the superblock and the index log of an NSD.
pub(super) fn damage(container: &Path) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    let open = std::fs::OpenOptions::new().write(true).open(container);
    let damaged = open.and_then(|file| {
        file.write_all_at(&[0x5a; 64], 100)?;
        file.write_all_at(&[0x5a; 256 << 10], 1 << 20)?;
        file.sync_all()
    });
    damaged.map_err(|error| format!("{}: {error}", container.display()))
}

/// Waits until a scrub is complete and has mended all damaged pages, at least `pages_min`. The log
/// counts only if there is something in it.
pub(super) fn wait_for_scrub(
    pages_min: u64,
    status: impl Fn() -> Result<String, String>,
) -> Result<(), String> {
    let end = crate::runner::now() + std::time::Duration::from_secs(120);
    loop {
        let status = status()?;
        if !status.contains("running") {
            let is_mended = (pages_min..=3)
                .any(|pages| status.contains(&format!(" {pages} pages damaged, {pages} mended")));
            return if is_mended && status.contains("complete") { Ok(()) } else { Err(status) };
        }
        if crate::runner::now() >= end {
            return Err(format!("it does not end: {status}"));
        }
        super::command::pause(std::time::Duration::from_millis(100));
    }
}

/// Makes files from empty to several blocks long. Their contents depend on `salt`.
fn fill(directory: &Path, salt: u64) -> Result<(), String> {
    std::fs::create_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let sizes = [0, 1, 100, 4096, 5000, 70_000, 1 << 20, (1 << 20) + 1, 3_333_333, 9 << 20];
    for (index, size) in sizes.iter().enumerate() {
        let path = directory.join(format!("file-{index}"));
        let bytes = super::writer::contents(salt * 100 + index as u64, *size);
        std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Changes a few bytes in the middle of every large file.
fn overwrite(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    for index in 5..10 {
        let path = directory.join(format!("file-{index}"));
        let open = std::fs::OpenOptions::new().write(true).open(&path);
        open.and_then(|file| file.write_all_at(b"changed while disks are gone", 33_333))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
