//! Several mounts of one file system, through the kernel: what one mount does, every other sees.
//! `coherence_probe` (an example of `strake-fuse`) mounts a file system in memory three times, with
//! tokens between the mounts, and works on it from all of them.

use super::checks::Checks;
use super::session::Session;
use std::path::Path;

const SECONDS_MAX: u64 = 120;

const PROBES: &[(&str, &str)] = &[
    ("contents", "what one mount writes or cuts, every mount reads, and its size"),
    ("names", "so it is for names that are made, renamed and removed"),
    ("kept-names", "names that the kernel has just seen are those that another mount makes"),
    ("kept-names-above", "the same, and what is mounted below stays"),
    ("attributes", "and for permissions, links and times"),
    ("appends", "appended records of all mounts stay whole"),
    ("exclusive", "of many that make one name, one succeeds"),
    ("one-directory", "all mounts make, rename and remove in one directory"),
    ("mapped", "two mounts store to one page"),
    ("mapped-beside-writes", "one mount stores to pages that another writes"),
    ("removed-while-open", "a removed file stays for those that have it open"),
    ("beside-records", "two mounts interleave records of 47,008 bytes in one file"),
    ("beside-blocks", "and blocks of 1 MiB, while a third one looks at the size"),
    ("beside-halves", "each mount writes its half of a file over and over"),
    ("beside-mapped", "one mount stores to pages of a file of which another writes the rest"),
    ("beside-fio", "fio writes and verifies at offsets of one file on two mounts"),
    ("locks", "fcntl, OFD and flock locks of one mount hold on all, and pass on"),
    ("locks-of-ranges", "parts of a lock are unlocked, and others lock them"),
    ("locks-interrupted", "programs that wait for a lock are interrupted and killed"),
    ("locks-at-close", "close releases what POSIX says, and no more"),
    ("locks-handed-over", "an open file keeps its locks in another process"),
    ("locks-at-death", "the locks of a killed process pass on to another mount"),
    ("locks-in-a-circle", "a circle of waits over three mounts gives EDEADLK"),
    ("locks-of-sqlite", "sqlite3 on all mounts writes one database"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    for (probe, about) in PROBES {
        let dir = session.root.join(session.next_number().to_string());
        let outcome = std::fs::create_dir(&dir)
            .map_err(|error| format!("{}: {error}", dir.display()))
            .and_then(|()| run_one(session, checks, probe, &dir));
        checks.record(about, outcome);
    }
    Ok(())
}

fn run_one(session: &Session, checks: &Checks, probe: &str, dir: &Path) -> Result<(), String> {
    let mut command = session.command(session.probe.with_file_name("coherence_probe"));
    command.arg(probe).arg(dir);
    session.run(checks.suite(), probe, SECONDS_MAX, &mut command).map(drop)
}
