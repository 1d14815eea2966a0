//! Opens file systems of released versions with the present program. `xtask/fixtures` has them, in
//! a folder for each version, and `scripts/fixture` made them.
//!
//! 1. The program opens each of them. Every disk comes up, also one that missed changes.
//! 2. The tree is what the earlier program left: names, attributes, access lists, contents.
//! 3. `fs check` is clean.
//! 4. Files are changed and made. All of it is there after `down` and `up`, and after a crash.

use super::checks::Checks;
use super::command::pause;
use super::manifest;
use super::mounted::Mounted;
use super::session::Session;
use super::writer::contents;
use crate::runner::now;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECONDS_MAX: u64 = 60;
const LOOK: Duration = Duration::from_millis(100);
/// Where the fixtures are, in the repository.
const FIXTURES: &str = "xtask/fixtures";
/// The script that makes and lists them.
const SCRIPT: &str = "scripts/fixture";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let folders = entries(&session.repository.join(FIXTURES))?;
    let mut count = 0;
    for folder in folders.iter().filter(|entry| entry.is_dir()) {
        let version = folder.file_name().unwrap_or_default().to_string_lossy();
        for archive in entries(folder)? {
            let file = archive.file_name().unwrap_or_default().to_string_lossy();
            let kind =
                file.strip_suffix(".tar.gz").ok_or_else(|| format!("{file} is in the way"))?;
            open(session, checks, &format!("{version} {kind}"), &archive)?;
            count += 1;
        }
    }
    checks.hold("there are file systems of released versions", count > 0, || FIXTURES.to_owned());
    Ok(())
}

/// What is in a folder, in order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(fault)?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn open(session: &Session, checks: &mut Checks, name: &str, archive: &Path) -> Result<(), String> {
    let mounted = Mounted::unpack(session, checks, name, archive)?;
    checks.record(&format!("{name}: up"), mounted.up().map(drop));
    checks.record(&format!("{name}: every disk comes up"), disks_come_up(&mounted));
    let before = std::fs::read_to_string(mounted.mount.with_file_name("list"));
    let before = before.map_err(|error| format!("the listing: {error}"))?;
    let before = sorted(&before);
    let same = |mounted: &Mounted<'_>| {
        list(session, mounted).and_then(|after| manifest::compare(&before, &after))
    };
    checks.record(&format!("{name}: the tree is as it was left"), same(&mounted));
    checks.record(&format!("{name}: strake fs check is clean"), mounted.check());
    mounted.down()?;
    mounted.up()?;
    checks.record(&format!("{name}: it is so after down and up"), same(&mounted));
    change(&mounted)?;
    let changed = list(session, &mounted)?;
    let there = |mounted: &Mounted<'_>| {
        list(session, mounted).and_then(|after| manifest::compare(&changed, &after))
    };
    mounted.sync()?;
    mounted.kill()?;
    mounted.up()?;
    checks.record(&format!("{name}: changes are there after a crash"), there(&mounted));
    mounted.down()?;
    mounted.up()?;
    checks.record(&format!("{name}: and after down and up"), there(&mounted));
    mounted.finish(checks);
    Ok(())
}

/// Waits until every disk has what it missed.
fn disks_come_up(mounted: &Mounted<'_>) -> Result<(), String> {
    let end = now() + Duration::from_secs(SECONDS_MAX);
    loop {
        match mounted.disks_are_up() {
            Err(_) if now() < end => pause(LOOK),
            outcome => return outcome,
        }
    }
}

/// What a user sees of the tree, in lines.
fn list(session: &Session, mounted: &Mounted<'_>) -> Result<Vec<String>, String> {
    let mut script = mounted.outside(session.repository.join(SCRIPT));
    script.arg("list").arg(&mounted.mount);
    Ok(sorted(&mounted.program("list", SECONDS_MAX, &mut script)?.output()))
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Changes a file in its middle, makes a new one and removes names.
fn change(mounted: &Mounted<'_>) -> Result<(), String> {
    let path = |name: &str| mounted.mount.join(name);
    let change = || -> std::io::Result<()> {
        let large = std::fs::OpenOptions::new().write(true).open(path("large"))?;
        large.write_all_at(&contents(1, 5000), 700_001)?;
        std::fs::write(path("new"), contents(2, 3 << 20))?;
        std::fs::rename(path("d/e/renamed"), path("d/moved"))?;
        std::fs::remove_file(path("d/e/f/file-20"))?;
        std::fs::create_dir(path("d/made"))?;
        std::fs::write(path("d/made/inside"), "few bytes")
    };
    change().map_err(|error| format!("a change: {error}"))
}
