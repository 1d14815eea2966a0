//! Disks fail in a running file system while a reader and a writer work: bits are flipped, and
//! containers are removed, cut short, put back, or replaced by an old copy of themselves. More
//! disks are taken away than the code allows. What was written is verified throughout. In the end a
//! scrub has mended everything and `fs check` finds nothing.

use super::checks::Checks;
use super::command::pause;
use super::hosts;
use super::mounted::{Mounted, Shape};
use super::reference::Xfs;
use super::session::Session;
use super::writer::contents;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long it may take until a disk's failure is noticed, or until a disk is brought up to date.
pub(super) const WAIT_SECONDS_MAX: u64 = 60;
/// How long the load goes on in each state.
const LOAD_TIME: Duration = Duration::from_millis(1500);
/// How long the writer pauses after each file.
const WRITER_PAUSE: Duration = Duration::from_millis(20);
/// The sizes of the files that exist from the beginning.
const SIZES: [usize; 8] = [100, 4096, 70_000, 300_000, 1 << 20, (1 << 20) + 1, 3_333_333, 9 << 20];
/// Where strips begin in a container of 2 GiB, and how many bytes from there bits may be flipped
/// in.
const DATA_OFFSET: u64 = 65 << 20;
const DATA_BYTES: u64 = 48 << 20;
/// One in this many pages that are not empty gets a bit flipped.
const FLIP_EVERY: u64 = 41;

pub(crate) fn direct(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let hanging = Shape { io_limit: Some(hosts::IO_LIMIT), ..Shape::of("4+2p", 6) };
    let mut shapes = vec![("4+2p", hanging)];
    if !session.quick {
        shapes.push(("2x", Shape::of("2x", 4)));
        shapes.push(("8+2p", Shape::of("8+2p", 11)));
    }
    run(session, checks, &shapes)
}

pub(crate) fn socket(session: &Session, checks: &mut Checks) -> Result<(), String> {
    run(session, checks, &[("socket", Shape { socket: true, ..Shape::of("4+2p", 6) })])
}

fn run(
    session: &Session,
    checks: &mut Checks,
    shapes: &[(&'static str, Shape)],
) -> Result<(), String> {
    for (name, shape) in shapes {
        // The host is mounted before the file system that will use it, so it is unmounted after
        // that is down.
        let host = Xfs::mount(session, checks, &format!("host-{name}"), hosts::HOST_BYTES)?;
        let mounted = Mounted::create(session, checks, name, shape)?;
        if let Err(reason) = one(&mounted, checks, name, (shape, &host)) {
            checks.record(&format!("{name}: goes on"), Err(reason));
        }
        mounted.finish(checks);
    }
    Ok(())
}

fn one(
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    name: &str,
    (shape, host): (&Shape, &Xfs<'_>),
) -> Result<(), String> {
    let base = mounted.mount.join("base");
    std::fs::create_dir(&base).map_err(|error| error.to_string())?;
    for (index, size) in SIZES.iter().enumerate() {
        let bytes = contents(index as u64, *size);
        std::fs::write(base.join(index.to_string()), bytes).map_err(|error| error.to_string())?;
    }
    mounted.say("fs sync")?;
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let loaded = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(&base, &stop));
        let writer = scope.spawn(|| write_until(&mounted.mount.join("new"), &stop, &count));
        let outcome = faults(mounted, checks, name, (shape, host), &count);
        stop.store(true, Ordering::Relaxed);
        let load = reader.join().map_err(|_| "the reader panicked".to_owned());
        let written = writer.join().map_err(|_| "the writer panicked".to_owned());
        checks.record(&format!("{name}: every read was right"), load.and_then(|read| read));
        let written = written.and_then(|written| written);
        let count = written.clone();
        checks.record(&format!("{name}: every write was made durable"), written.map(drop));
        outcome.and(count)
    })?;
    let all = |mounted: &Mounted<'_>| verify(&mounted.mount, loaded);
    checks.record(&format!("{name}: everything is there"), all(mounted));
    checks.record(&format!("{name}: clean after the scrub"), mounted.check());
    checks.record(&format!("{name}: an old copy is recognised"), old_copy(mounted, shape, loaded));
    checks.record(&format!("{name}: too many are gone"), too_many(mounted, shape, loaded));
    checks.record(
        &format!("{name}: a damaged disk is filled anew"),
        in_place(mounted, shape, loaded),
    );
    checks.record(&format!("{name}: clean with it"), mounted.check());
    Ok(())
}

/// Makes things go wrong while the load is at work.
fn faults(
    mounted: &Mounted<'_>,
    checks: &mut Checks,
    name: &str,
    (shape, host): (&Shape, &Xfs<'_>),
    count: &AtomicU64,
) -> Result<(), String> {
    // With 2x only one disk at a time may be at fault.
    let is_pair = shape.code == "2x";
    if !is_pair {
        flip_bits(&mounted.container(2))?;
    }
    mounted.remove_nsd(3)?;
    let gone = wait_for(mounted, "nsd3 ", &["down", "unrecovered"]);
    checks.record(&format!("{name}: a removed disk is noticed"), gone);
    pause(LOAD_TIME);
    mounted.return_nsd(3)?;
    let back = wait_for(mounted, "nsd3 ", &[" up "]);
    checks.record(&format!("{name}: it is up to date when it is back"), back);
    let container = std::fs::OpenOptions::new().write(true).open(mounted.container(4));
    container.and_then(|file| file.set_len(100 << 20)).map_err(|error| error.to_string())?;
    let gone = wait_for(mounted, "nsd4 ", &["down", "unrecovered"]);
    checks.record(&format!("{name}: a container that was cut short is noticed"), gone);
    pause(LOAD_TIME);
    let new = format!("nsd{}", shape.nsds + 1);
    mounted.say(&format!("disk replace nsd4 {}", mounted.beside("new-disk")?.display()))?;
    let replaced = wait_for(mounted, &format!("{new} "), &["ready   up"]);
    checks.record(&format!("{name}: it is replaced"), replaced);
    let second = format!("nsd{}", shape.nsds + 2);
    mounted.say(&format!("disk replace nsd1 {}", mounted.beside("newer-disk")?.display()))?;
    let replaced = wait_for(mounted, &format!("{second} "), &["ready   up"]);
    checks.record(&format!("{name}: a good disk is replaced"), replaced);
    let third = format!("nsd{}", shape.nsds + 3);
    let is_hanging = shape.io_limit.is_some();
    hosts::run(mounted, checks, host, (&second, &third), is_hanging, count)?;
    if is_pair {
        flip_bits(&mounted.container(2))?;
    }
    mounted.say("fs scrub start")?;
    let scrubbed = wait_until(mounted, "fs scrub status", |text| text.contains("complete"));
    checks.record(&format!("{name}: a scrub goes through"), scrubbed);
    let mended = mounted.say("fs scrub status")?;
    let found = !mended.contains(" 0 strips bad") && mended.contains(", 0 not");
    let seen = mounted.log().contains("was rebuilt and rewritten");
    checks.hold(&format!("{name}: it mends what was flipped"), found || seen, || mended);
    Ok(())
}

/// Reads the base files over and over. Each must hold what was written.
fn read_until(base: &Path, stop: &AtomicBool) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        for (index, size) in SIZES.iter().enumerate() {
            verify_file(&base.join(index.to_string()), index as u64, *size)?;
        }
    }
    Ok(())
}

/// Writes files and makes them durable. Returns how many.
fn write_until(directory: &Path, stop: &AtomicBool, count: &AtomicU64) -> Result<u64, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", directory.display());
    std::fs::create_dir(directory).map_err(fault)?;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let path = directory.join(number.to_string());
        std::fs::write(&path, contents(number, new_size(number))).map_err(fault)?;
        std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(fault)?;
        number += 1;
        count.store(number, Ordering::SeqCst);
        // Each of these files is verified several times later, so there should not be too many.
        pause(WRITER_PAUSE);
    }
    Ok(number)
}

fn new_size(number: u64) -> usize {
    SIZES[number as usize % SIZES.len()] / 3 + 1
}

fn verify_file(path: &Path, salt: u64, size: usize) -> Result<(), String> {
    let found = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if found == contents(salt, size) {
        return Ok(());
    }
    Err(format!("{}: {} bytes that nobody wrote", path.display(), found.len()))
}

fn verify(mount: &Path, written: u64) -> Result<(), String> {
    for (index, size) in SIZES.iter().enumerate() {
        verify_file(&mount.join("base").join(index.to_string()), index as u64, *size)?;
    }
    for number in 0..written {
        verify_file(&mount.join("new").join(number.to_string()), number, new_size(number))?;
    }
    Ok(())
}

/// Puts an old copy in the place of a disk while the file system is down.
fn old_copy(mounted: &Mounted<'_>, shape: &Shape, written: u64) -> Result<(), String> {
    let fault = |error: std::io::Error| error.to_string();
    mounted.down()?;
    let container = mounted.container(2);
    let copy = mounted.beside("old")?.join("container");
    let mut program = mounted.outside("cp");
    program.arg("--sparse=always").arg(&container).arg(&copy);
    mounted.program("cp", WAIT_SECONDS_MAX, &mut program)?;
    mounted.up()?;
    let path = mounted.mount.join("base/6");
    let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(fault)?;
    file.write_all_at(&contents(1000, SIZES[6]), 0).map_err(fault)?;
    file.sync_all().map_err(fault)?;
    drop(file);
    mounted.down()?;
    std::fs::rename(&copy, &container).map_err(fault)?;
    mounted.up()?;
    verify_file(&path, 1000, SIZES[6])?;
    wait_for(mounted, "nsd2 ", &[" up "])?;
    let log = mounted.log();
    if !log.contains("NSD 2 has missed writes") {
        return Err("the log does not say that NSD 2 was distrusted".to_owned());
    }
    // Other disks are gone now, so what this disk holds must be the newest.
    let others: &[u16] = if shape.code == "2x" { &[3] } else { &[3, 5] };
    others.iter().try_for_each(|nsd| mounted.remove_nsd(*nsd))?;
    for nsd in others {
        wait_for(mounted, &format!("nsd{nsd} "), &["down", "unrecovered"])?;
    }
    mounted.say("fs sync")?;
    let read = verify_file(&path, 1000, SIZES[6]);
    others.iter().try_for_each(|nsd| mounted.return_nsd(*nsd))?;
    for nsd in others {
        wait_for(mounted, &format!("nsd{nsd} "), &[" up "])?;
    }
    read?;
    let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(fault)?;
    file.write_all_at(&contents(6, SIZES[6]), 0).map_err(fault)?;
    file.sync_all().map_err(fault)?;
    verify(&mounted.mount, written)
}

/// More disks are gone than the code allows. A read returns the right bytes or an error, and once
/// the disks are back everything can be read again.
fn too_many(mounted: &Mounted<'_>, shape: &Shape, written: u64) -> Result<(), String> {
    mounted.down()?;
    mounted.up()?;
    let gone: &[u16] = if shape.code == "2x" { &[2, 3] } else { &[2, 3, 5] };
    gone.iter().try_for_each(|nsd| mounted.remove_nsd(*nsd))?;
    for nsd in gone {
        wait_for(mounted, &format!("nsd{nsd} "), &["down", "unrecovered"])?;
    }
    let listed = mounted.say("disk list")?;
    if !listed.contains("3 disks are missing") && !listed.contains("2 disks are missing") {
        return Err(format!("disk list does not say how many are missing: {listed}"));
    }
    let place = mounted.beside("too-late")?;
    if mounted.say(&format!("disk replace nsd2 {}", place.display())).is_ok() {
        return Err("a disk was given up that the others cannot do without".to_owned());
    }
    if std::fs::read_dir(&place).is_ok_and(|mut found| found.next().is_some()) {
        return Err("a new disk was made before it was refused".to_owned());
    }
    let mut errors = 0;
    for (index, size) in SIZES.iter().enumerate() {
        let path = mounted.mount.join("base").join(index.to_string());
        match std::fs::read(&path) {
            Ok(found) if found == contents(index as u64, *size) => {}
            Ok(_) => return Err(format!("{}: wrong bytes", path.display())),
            Err(error) if error.raw_os_error() == Some(5) => errors += 1,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    gone.iter().try_for_each(|nsd| mounted.return_nsd(*nsd))?;
    for nsd in gone {
        wait_for(mounted, &format!("nsd{nsd} "), &[" up "])?;
    }
    if errors == 0 {
        return Err("nothing was lost with more disks gone than the code allows".to_owned());
    }
    verify(&mounted.mount, written)
}

/// A container that cannot be opened any more gets its strips back in the same place.
fn in_place(mounted: &Mounted<'_>, shape: &Shape, written: u64) -> Result<(), String> {
    let refused = mounted.say("disk replace nsd2 --in-place");
    if refused.is_ok() {
        return Err("a disk in use was deleted".to_owned());
    }
    mounted.down()?;
    let container = std::fs::OpenOptions::new().write(true).open(mounted.container(2));
    let damaged = container.and_then(|file| file.write_all_at(&vec![0x5a; 1 << 20], 0));
    damaged.map_err(|error| error.to_string())?;
    mounted.up()?;
    wait_for(mounted, "nsd2 ", &["down", "unrecovered"])?;
    if !shape.socket {
        // The line of the disk says why.
        wait_for(mounted, "nsd2 ", &["no Strake container on this disk"])?;
    }
    mounted.say("disk replace nsd2 --in-place")?;
    wait_for(mounted, &format!("nsd{} ", shape.nsds + 4), &["ready   up"])?;
    verify(&mounted.mount, written)
}

/// Waits until the line of `disk list` that begins with `disk` has one of `words`.
pub(super) fn wait_for(mounted: &Mounted<'_>, disk: &str, words: &[&str]) -> Result<(), String> {
    wait_until(mounted, "disk list", |text| {
        let mut lines = text.lines().filter(|line| line.starts_with(disk));
        lines.any(|line| words.iter().any(|word| line.contains(word)))
    })
}

pub(super) fn wait_until(
    mounted: &Mounted<'_>,
    words: &str,
    is_so: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let end = crate::runner::now() + Duration::from_secs(WAIT_SECONDS_MAX);
    loop {
        let text = mounted.say(words)?;
        if is_so(&text) {
            return Ok(());
        }
        if crate::runner::now() >= end {
            return Err(format!("not so after {WAIT_SECONDS_MAX} s:\n{text}"));
        }
        pause(Duration::from_millis(100));
    }
}

/// Flips a bit in many of the pages that hold strips.
fn flip_bits(container: &PathBuf) -> Result<(), String> {
    let fault = |error: std::io::Error| format!("{}: {error}", container.display());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(container).map_err(fault)?;
    let (mut used, mut page) = (0_u64, vec![0; 4096]);
    for at in (DATA_OFFSET..DATA_OFFSET + DATA_BYTES).step_by(page.len()) {
        file.read_exact_at(&mut page, at).map_err(fault)?;
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        used += 1;
        if used.is_multiple_of(FLIP_EVERY) {
            let within = at + used % 4096;
            file.write_all_at(&[page[(used % 4096) as usize] ^ 4], within).map_err(fault)?;
        }
    }
    file.sync_all().map_err(fault)?;
    if used < FLIP_EVERY { Err("found nothing to flip".to_owned()) } else { Ok(()) }
}
