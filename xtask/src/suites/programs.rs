//! Programs in daily use, run on the mount. What they leave there must equal what they leave
//! elsewhere.

use super::checks::Checks;
use super::manifest;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::path::Path;
use std::process::Command;

const SECONDS_MAX: u64 = 240;
/// How much of /usr/share is copied.
const SHARE_BYTES_MAX: u64 = 80 << 20;
const SHARE_FILES_MAX: u64 = 4000;

type Case = fn(&Session, &Mounted<'_>) -> Result<(), String>;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "4+2p", &Shape::of("4+2p", 6))?;
    let cases: [(&str, Case); 5] = [
        ("rsync of /usr/share to the mount and back", rsync),
        ("tar of a tree, unpacked and compared", tar),
        ("git clone of this project, fsck, nothing changed", git_clone),
        ("cargo build of two crates in the clone", cargo_build),
        ("sqlite3 in WAL mode, two writers", sqlite),
    ];
    for (name, case) in cases {
        checks.record(name, case(session, &mounted));
    }
    mounted.finish(checks);
    Ok(())
}

/// Fails unless the program wrote nothing.
fn silent(mounted: &Mounted<'_>, name: &str, command: &mut Command) -> Result<(), String> {
    let ended = mounted.program(name, SECONDS_MAX, command)?;
    if ended.output().trim().is_empty() { Ok(()) } else { Err(ended.complaint("differences")) }
}

fn rsync(_: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let there = mounted.mount.join("share");
    let back = mounted.beside("share-back")?;
    let parts = manifest::bounded_part(Path::new("/usr/share"), SHARE_BYTES_MAX, SHARE_FILES_MAX);
    let copy = |name: &str, from: &[std::path::PathBuf], to: &Path| {
        let mut rsync = mounted.outside("rsync");
        mounted.program(name, SECONDS_MAX, rsync.arg("-aHAX").args(from).arg(to)).map(drop)
    };
    copy("rsync there", &parts, &there)?;
    let compare = |name: &str, from: &[std::path::PathBuf], to: &Path| {
        let mut rsync = mounted.outside("rsync");
        silent(mounted, name, rsync.arg("-anciHAX").args(from).arg(to))
    };
    compare("rsync compares there", &parts, &there)?;
    copy("rsync back", &[there.join("")], &back)?;
    compare("rsync compares back", &parts, &back)?;
    let mut diff = mounted.outside("diff");
    silent(mounted, "diff", diff.args(["-r", "--no-dereference"]).arg(&there).arg(&back))
}

fn tar(_: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let (archive, unpacked) = (mounted.mount.join("share.tar"), mounted.mount.join("unpacked"));
    let source = mounted.mount.join("share");
    std::fs::create_dir_all(&unpacked).map_err(|error| error.to_string())?;
    let tar = |name: &str, words: &str, directory: &Path| {
        let mut tar = mounted.outside("tar");
        tar.args(words.split(' ')).arg(&archive).arg("-C").arg(directory).arg(".");
        mounted.program(name, SECONDS_MAX, &mut tar).map(drop)
    };
    tar("tar create", "--acls --xattrs -cf", &source)?;
    tar("tar extract", "--acls --xattrs --same-owner -xpf", &unpacked)?;
    tar("tar compare", "--compare -f", &unpacked)?;
    let mut diff = mounted.outside("diff");
    silent(mounted, "tar diff", diff.args(["-r", "--no-dereference"]).arg(&source).arg(&unpacked))?;
    std::fs::remove_dir_all(&unpacked).map_err(|error| format!("remove the tree: {error}"))
}

/// A git that trusts repositories of other owners, because a checkout often belongs to somebody
/// else.
fn git(mounted: &Mounted<'_>) -> Command {
    let mut git = mounted.outside("git");
    git.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory");
    git.env("GIT_CONFIG_VALUE_0", "*");
    git
}

fn git_clone(session: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let clone = mounted.mount.join("clone");
    let source = format!("file://{}", session.repository.display());
    let mut command = git(mounted);
    mounted.program(
        "git clone",
        SECONDS_MAX,
        command.args(["clone", "-q", &source]).arg(&clone),
    )?;
    let inside = |name: &str, directory: &Path, words: &str| {
        let mut command = git(mounted);
        command.arg("-C").arg(directory).args(words.split(' '));
        mounted.program(name, SECONDS_MAX, &mut command)
    };
    inside("git fsck", &clone, "fsck --full --strict --no-progress")?;
    let status = inside("git status", &clone, "status --porcelain --untracked-files=all")?;
    if !status.output().is_empty() {
        return Err(status.complaint("the clone differs from its commit"));
    }
    let here = inside("git head here", &session.repository, "rev-parse HEAD")?.output();
    let there = inside("git head there", &clone, "rev-parse HEAD")?.output();
    if here == there { Ok(()) } else { Err(format!("HEAD is {there}, not {here}")) }
}

fn cargo_build(_: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let clone = mounted.mount.join("clone");
    let mut cargo = mounted.outside("cargo");
    cargo.current_dir(&clone).env("CARGO_TARGET_DIR", clone.join("target"));
    cargo.args(["build", "--offline", "--locked", "-p", "strake-proto", "-p", "xtask"]);
    mounted.program("cargo build", SECONDS_MAX, &mut cargo)?;
    // The program was linked on the mount. It must also run from the mount.
    let mut built = mounted.outside(clone.join("target/debug/xtask"));
    let help = mounted.program("built program", SECONDS_MAX, built.arg("help"))?;
    if help.output().contains("xtask COMMAND") {
        Ok(())
    } else {
        Err(help.complaint("the built program says something else"))
    }
}

fn sqlite(_: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let database = mounted.mount.join("data.sqlite");
    let sqlite = |name: &str, script: &str| {
        let mut command = mounted.outside("sqlite3");
        command.arg("-bail").arg(&database).arg(format!("PRAGMA busy_timeout=60000; {script}"));
        let ended = mounted.program(name, SECONDS_MAX, &mut command)?;
        Ok::<String, String>(ended.output())
    };
    let made = sqlite(
        "sqlite3 create",
        "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=50;
         CREATE TABLE row(writer INTEGER, number INTEGER, body BLOB, UNIQUE(writer, number));",
    )?;
    if !made.lines().any(|line| line == "wal") {
        return Err(format!("the journal mode is not WAL: {made}"));
    }
    // Each of two processes makes forty transactions of fifty rows, both at the same time.
    let script = |writer: u32| {
        let insert = |batch: u32| {
            format!(
                "BEGIN IMMEDIATE; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
                 WHERE i < 50) INSERT INTO row SELECT {writer}, {batch} * 100 + i, \
                 randomblob(900) FROM n; COMMIT;"
            )
        };
        (0..40).map(insert).collect::<String>()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| sqlite("sqlite3 writer 2", &script(2)));
        let own = sqlite("sqlite3 writer 1", &script(1));
        let other = other.join().unwrap_or_else(|_| Err("the second writer panicked".to_owned()));
        own.and(other)
    })?;
    let query = "PRAGMA integrity_check; SELECT count(*), sum(length(body)) FROM row;";
    let found = sqlite("sqlite3 check", query)?;
    let wanted = "ok\n4000|3600000";
    if found.contains(wanted) { Ok(()) } else { Err(format!("{found} instead of {wanted}")) }
}
