//! A full file system: `write` returns ENOSPC, what was accepted is kept, deleting works, and after
//! that there is room again. The same is tested when the NSDs are not full, but the host's file
//! system under their sparse containers is. Disks are then full, not failed.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::reference;
use super::session::Session;
use super::writer::contents;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const ENOSPC: i32 = 28;
pub(crate) const FILE_BYTES: usize = 4 << 20;
/// Far more files than fit.
pub(crate) const FILES_MAX: u64 = 400;
const SMALL_FILES_MAX: u64 = 200_000;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let small = Shape { block_size: "256K", nsd_size: "64M", ..Shape::of("4+2p", 6) };
    let mounted = Mounted::create(session, checks, "full", &small)?;
    fill_and_empty(checks, "full", &mounted, &["write"])?;
    write_anew_while_full(checks, &mounted);
    drop(mounted);
    let mounted = Mounted::create(session, checks, "small files", &small)?;
    fill_with_small_files(checks, &mounted);
    drop(mounted);
    let host = reference::Xfs::mount(session, checks, "host", 700 << 20)?;
    let shape = Shape { block_size: "256K", nsd_size: "1G", ..Shape::of("2x", 4) };
    let mounted = Mounted::create_in(session, checks, "host full", &shape, &host.mount)?;
    // Strake cannot promise the host's space. It may run out after a write was accepted.
    fill_and_empty(checks, "host full", &mounted, &["write", "fsync"])
}

fn fill_and_empty(
    checks: &mut Checks,
    name: &str,
    mounted: &Mounted<'_>,
    calls: &[&str],
) -> Result<(), String> {
    let mount = mounted.mount.clone();
    let (whole, refusal) = fill(&mount);
    let outcome = match refusal {
        Some((call, ENOSPC)) if calls.contains(&call) => Ok(()),
        other => Err(format!("after {whole} files: {other:?}")),
    };
    checks.record(&format!("{name}: {} says ENOSPC", calls.join(" or ")), outcome);
    checks.hold(&format!("{name}: it held something"), whole >= 4, || format!("{whole} files"));
    let states = mounted.disks_are_up();
    checks.record(&format!("{name}: all disks are still up"), states);
    let outcome = (0..whole).try_for_each(|number| verify(&mount, number));
    checks.record(&format!("{name}: what was synced is there"), outcome);
    // Removes only half of the files. The others must outlive the shortage.
    let removed = (0..whole).filter(|number| number % 2 == 0);
    let outcome = removed.clone().try_for_each(|number| {
        std::fs::remove_file(mount.join(number.to_string()))
            .map_err(|error| format!("file {number}: {error}"))
    });
    checks.record(&format!("{name}: deleting works while it is full"), outcome);
    checks.record(&format!("{name}: strake fs sync"), mounted.sync());
    let outcome = (0..whole / 4).try_for_each(|number| {
        write_whole(&mount, 1000 + number).map_err(|(what, errno)| {
            format!("file {number} of {}: {what}: errno {errno}", whole / 4)
        })
    });
    checks.record(&format!("{name}: there is room again"), outcome);
    checks.record(&format!("{name}: strake fs check is clean"), mounted.check());
    mounted.down()?;
    mounted.up()?;
    let kept = (0..whole).filter(|number| number % 2 == 1).chain(1000..1000 + whole / 4);
    let outcome = kept.clone().try_for_each(|number| verify(&mount, number));
    checks.record(&format!("{name}: after down and up all is there"), outcome);
    // Frees much at once. The host has not been told of that when the next writes come.
    let emptied = kept.clone().try_for_each(|number| {
        std::fs::remove_file(mount.join(number.to_string()))
            .map_err(|error| format!("file {number}: {error}"))
    });
    let again = emptied.and_then(|()| {
        (0..whole * 3 / 4).try_for_each(|number| {
            write_whole(&mount, number)
                .map_err(|(what, errno)| format!("file {number}: {what}: errno {errno}"))?;
            verify(&mount, number)
        })
    });
    checks.record(&format!("{name}: what was freed can be used at once"), again);
    checks.record(&format!("{name}: and is clean"), mounted.check());
    checks.record(&format!("{name}: strake down"), mounted.down());
    Ok(())
}

/// However full the file system is, existing data can be overwritten: whole files in place, and
/// parts of them as a database does.
fn write_anew_while_full(checks: &mut Checks, mounted: &Mounted<'_>) {
    let outcome = mounted.up().and_then(|_| {
        let mount = &mounted.mount;
        let (whole, refusal) = fill(mount);
        match refusal {
            Some(("write", ENOSPC)) => {}
            other => return Err(format!("after {whole} files: {other:?}")),
        }
        // Uses up the rest of the space too.
        let mut rest = std::fs::File::create(mount.join("rest")).map_err(|e| e.to_string())?;
        while rest.write_all(&[1; 4096]).is_ok() {}
        drop(rest);
        for number in 0..whole {
            let told = |what, errno| format!("file {number} of {whole}: {what}: errno {errno}");
            write_in_place(mount, number, 1 << 20, 2000 + number)
                .map_err(|(what, errno)| told(what, errno))?;
            write_in_place(mount, number, 4096, number)
                .map_err(|(what, errno)| told(what, errno))?;
        }
        (0..whole).try_for_each(|number| verify(mount, number))?;
        // Space kept for metadata must not become space for data.
        let before = room(mount)?;
        mounted.down()?;
        mounted.up()?;
        let after = room(mount)?;
        if after.0 > before.0 || after.1 < before.1 / 2 {
            return Err(format!("(bytes, inodes) of room: {before:?} and {after:?}"));
        }
        (0..whole).try_for_each(|number| verify(mount, number))?;
        mounted.check()?;
        mounted.down()
    });
    checks.record("full: what is there can be written anew", outcome);
}

/// Makes small files, in the metadata and beside it, until no more can be made. All of them are
/// there, even after a crash, and can be removed.
fn fill_with_small_files(checks: &mut Checks, mounted: &Mounted<'_>) {
    let outcome = fill_small(&mounted.mount, 0).and_then(|made| {
        if made < 1000 {
            return Err(format!("only {made} files"));
        }
        mounted.sync()?;
        mounted.check()?;
        mounted.kill()?;
        mounted.up()?;
        (0..made).try_for_each(|number| verify_small(&mounted.mount, number))?;
        mounted.check()?;
        for number in (0..made).filter(|number| number % 3 > 0) {
            std::fs::remove_file(small_path(&mounted.mount, number))
                .map_err(|error| format!("file {number}: {error}"))?;
        }
        mounted.sync()?;
        let again = fill_small(&mounted.mount, made)?;
        if again < made / 3 {
            return Err(format!("where {made} files were {again} of two thirds fit again"));
        }
        mounted.sync()?;
        mounted.down()?;
        mounted.up()?;
        let mut left = (0..made).filter(|number| number % 3 == 0).chain(made..made + again);
        left.try_for_each(|number| verify_small(&mounted.mount, number))?;
        mounted.check()?;
        mounted.down()
    });
    checks.record("small files: as many as fit, and they can be removed", outcome);
}

/// The bytes that data may take and the inodes that may be made, as `df` prints them.
pub(crate) fn room(mount: &Path) -> Result<(u64, u64), String> {
    let mut df = std::process::Command::new("df");
    let output = df.args(["-B1", "--output=avail,iavail"]).arg(mount).output();
    let output = output.map_err(|error| format!("df: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text.split_whitespace().skip(2).filter_map(|word| word.parse().ok());
    match (figures.next(), figures.next()) {
        (Some(bytes), Some(inodes)) => Ok((bytes, inodes)),
        _ => Err(format!("df says {text}")),
    }
}

fn small_path(mount: &Path, number: u64) -> std::path::PathBuf {
    mount.join(format!("small-{number}"))
}

/// From empty to two units. The inode holds some of them.
fn small_bytes(number: u64) -> Vec<u8> {
    contents(number, [0, 9, 700, 3900, 4000, 6000][(number % 6) as usize])
}

/// Makes small files from `first` on until there is no space. Returns how many.
fn fill_small(mount: &Path, first: u64) -> Result<u64, String> {
    for number in first..first + SMALL_FILES_MAX {
        let path = small_path(mount, number);
        if let Err(error) = std::fs::write(&path, small_bytes(number)) {
            if error.raw_os_error() != Some(ENOSPC) {
                return Err(format!("file {number}: {error}"));
            }
            // The last file may exist and be empty.
            let _ = std::fs::remove_file(path);
            return Ok(number - first);
        }
    }
    Err(format!("more than {SMALL_FILES_MAX} small files fit"))
}

fn verify_small(mount: &Path, number: u64) -> Result<(), String> {
    let found = std::fs::read(small_path(mount, number));
    let found = found.map_err(|error| format!("file {number}: {error}"))?;
    if found == small_bytes(number) {
        return Ok(());
    }
    Err(format!("file {number}: {} bytes, not those that were written", found.len()))
}

/// Overwrites a file with other contents, `piece` by `piece` from its end to its beginning.
pub(crate) fn write_in_place(
    mount: &Path,
    number: u64,
    piece: usize,
    what: u64,
) -> Result<(), Refusal> {
    let code = |what| move |error: std::io::Error| (what, error.raw_os_error().unwrap_or(-1));
    let path = mount.join(number.to_string());
    let file = std::fs::OpenOptions::new().write(true).open(path).map_err(code("open"))?;
    let bytes = contents(what, FILE_BYTES);
    for (at, part) in bytes.chunks(piece).enumerate().rev() {
        file.write_all_at(part, (at * piece) as u64).map_err(code("write"))?;
    }
    file.sync_all().map_err(code("fsync"))
}

/// The call that failed, and its errno.
pub(crate) type Refusal = (&'static str, i32);

/// Writes files until one does not fit. Returns how many fit, and which call failed.
fn fill(mount: &Path) -> (u64, Option<Refusal>) {
    for number in 0..FILES_MAX {
        if let Err(refusal) = write_whole(mount, number) {
            let _ = std::fs::remove_file(mount.join(number.to_string()));
            return (number, Some(refusal));
        }
    }
    (FILES_MAX, None)
}

fn write_whole(mount: &Path, number: u64) -> Result<(), Refusal> {
    let code = |what| move |error: std::io::Error| (what, error.raw_os_error().unwrap_or(-1));
    let mut file = std::fs::File::create(mount.join(number.to_string())).map_err(code("create"))?;
    file.write_all(&contents(number, FILE_BYTES)).map_err(code("write"))?;
    file.sync_all().map_err(code("fsync"))
}

pub(crate) fn verify(mount: &Path, number: u64) -> Result<(), String> {
    let found = std::fs::read(mount.join(number.to_string()))
        .map_err(|error| format!("file {number}: {error}"))?;
    if found == contents(number, FILE_BYTES) {
        return Ok(());
    }
    Err(format!("file {number}: {} bytes, not those that were written", found.len()))
}
