//! The suites on real mounts: `cargo run -p xtask -- suites [--only NAME]... [--quick]`.
//!
//! Each suite makes its own file systems in a directory under `/var/tmp`, which is never backed by
//! memory, because the daemon's disks must behave like disks. A suite uses the `strake` binary as a
//! user would, and ends with `strake fs check`. Every check is counted. The last line of a suite is
//! its tally `NAME: N passed, N failed`, which `runner` adds up. The output of everything that ran
//! is kept under `target/suites/logs/SUITE`.
//!
//! However the runner ends, nothing stays behind: see `janitor`.

mod chaos;
mod checks;
mod cluster_copies;
mod cluster_disks;
mod cluster_first;
mod cluster_full;
mod cluster_mounts;
mod cluster_one_copy;
mod cluster_recover;
mod cluster_upgrade;
mod coherence;
mod command;
mod crashes;
mod deep;
mod degraded;
mod diag;
mod differential;
mod directory;
mod documents;
mod faults;
mod fio;
mod first_cluster;
mod fsx;
mod full;
pub(crate) mod held;
mod hosts;
mod install;
pub(crate) mod janitor;
mod lab;
mod lifecycle;
mod manifest;
mod metrics;
mod mm;
mod mount;
mod mounted;
mod notify;
pub(crate) mod pages;
mod pjdfstest;
mod postgres;
mod processes;
mod programs;
mod reference;
mod restart_server;
mod rings;
mod session;
mod shared_disks;
mod slow;
mod slow_nodes;
mod upgrade;
mod usage;
mod user;
pub(crate) mod writer;

use checks::Checks;
use session::Session;
use std::process::ExitCode;

/// The result of a suite. `Err` means that it cannot go on; the text counts as one more failed
/// check.
type Outcome = Result<(), String>;

/// One suite.
struct Suite {
    name: &'static str,
    about: &'static str,
    run: fn(&Session, &mut Checks) -> Outcome,
}

const SUITES: &[Suite] = &[
    Suite { name: "usage", about: "wrong arguments: exit code 2 with advice", run: usage::run },
    Suite {
        name: "documents",
        about: "the examples, and the daemon's threads as listed",
        run: documents::run,
    },
    Suite { name: "pjdfstest", about: "398 POSIX tests", run: pjdfstest::direct },
    Suite {
        name: "pjdfstest-socket",
        about: "the same with servers in processes of their own",
        run: pjdfstest::socket,
    },
    Suite { name: "fsx", about: "random I/O on one file, every code", run: fsx::direct },
    Suite { name: "fsx-socket", about: "one seed per code over sockets", run: fsx::socket },
    Suite { name: "rings", about: "pjdfstest, fsx and kill -9 over io_uring", run: rings::run },
    Suite { name: "fio", about: "data verified by fio's checksums", run: fio::run },
    Suite { name: "programs", about: "tar, git, cargo, sqlite3, rsync", run: programs::run },
    Suite { name: "processes", about: "shared mmap and locks", run: processes::run },
    Suite { name: "notify", about: "what the kernel is told to let go of", run: notify::run },
    Suite {
        name: "coherence",
        about: "what one of several mounts does, every other sees",
        run: coherence::run,
    },
    Suite {
        name: "differential",
        about: "random operations of several processes, compared with XFS",
        run: differential::run,
    },
    Suite { name: "directory", about: "very many names in one place", run: directory::run },
    Suite {
        name: "deep",
        about: "a very deep tree, checked, scrubbed and moved while others work",
        run: deep::run,
    },
    Suite { name: "degraded", about: "missing NSDs, gone and back", run: degraded::run },
    Suite { name: "full", about: "ENOSPC, and room again", run: full::run },
    Suite { name: "user", about: "without root, through fusermount3", run: user::run },
    Suite { name: "faults", about: "disks that fail under load", run: faults::direct },
    Suite { name: "faults-socket", about: "the same over sockets", run: faults::socket },
    Suite {
        name: "crashes",
        about: "kill -9 under fio, sqlite3, git, tar and small writes",
        run: crashes::run,
    },
    Suite {
        name: "restart-server",
        about: "kill -9 of the server process, which no program may notice",
        run: restart_server::run,
    },
    Suite {
        name: "first-cluster",
        about: "docs/operating/first-cluster.md, step by step on six machines",
        run: first_cluster::run,
    },
    Suite {
        name: "cluster-first",
        about: "three nodes from six commands; kill -9 of each node's server",
        run: cluster_first::run,
    },
    Suite {
        name: "lab",
        about: "nodes in network namespaces: killed, paused, cut off; nothing stays",
        run: lab::run,
    },
    Suite {
        name: "cluster-mounts",
        about: "three mounts of one file system; kill -9 of a mount and of each server",
        run: cluster_mounts::run,
    },
    Suite {
        name: "cluster-copies",
        about: "copies of a cluster's metadata go to other disks and nodes",
        run: cluster_copies::run,
    },
    Suite {
        name: "cluster-upgrade",
        about: "nodes get a newer program one after the other under load; the level rises",
        run: cluster_upgrade::run,
    },
    Suite {
        name: "cluster-recover",
        about: "two of three nodes are lost for good, and the file system goes on",
        run: cluster_recover::run,
    },
    Suite {
        name: "cluster-disks",
        about: "disks of a cluster's file system, lost and replaced while three mounts use it",
        run: cluster_disks::run,
    },
    Suite {
        name: "chaos",
        about: "random faults on a lab of five nodes under verified work (soak only)",
        run: chaos::run,
    },
    Suite {
        name: "postgres",
        about: "PostgreSQL under kill -9 of a daemon, and of a cluster's servers (soak only)",
        run: postgres::run,
    },
    Suite { name: "diag", about: "what is recorded of real programs", run: diag::run },
    Suite {
        name: "metrics",
        about: "what Prometheus gets, strake stat and strake top",
        run: metrics::run,
    },
    Suite { name: "slow", about: "problems that are staged, and named", run: slow::run },
    Suite {
        name: "slow-nodes",
        about: "problems between the nodes of a lab that are staged, and named",
        run: slow_nodes::run,
    },
    Suite {
        name: "shared-disks",
        about: "disks that two nodes reach: nodes are killed, paused, cut off and stopped",
        run: shared_disks::run,
    },
    Suite { name: "mount", about: "mount(8), fstab, umount, and their options", run: mount::run },
    Suite {
        name: "upgrade",
        about: "file systems of released versions, opened and changed",
        run: upgrade::run,
    },
    Suite { name: "lifecycle", about: "down and up, kill -9 and up", run: lifecycle::run },
];

/// Runs the suites that `arguments` name, or all of them.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let mut only: Vec<&str> = Vec::new();
    let (mut quick, mut words) = (false, arguments.iter());
    while let Some(word) = words.next() {
        match (word.as_str(), words.as_slice().first()) {
            ("--quick", _) => quick = true,
            ("--only", Some(name)) if SUITES.iter().any(|suite| suite.name == name) => {
                only.push(name);
                words.next();
            }
            _ => return usage_error(word),
        }
    }
    let chosen: Vec<&Suite> =
        SUITES.iter().filter(|suite| only.is_empty() || only.contains(&suite.name)).collect();
    if !std::path::Path::new("/dev/fuse").exists() {
        println!("SKIPPED: no /dev/fuse on this machine, so nothing can be mounted");
        chosen.iter().for_each(|suite| println!("{}: 0 passed, 0 failed, 1 skipped", suite.name));
        return ExitCode::SUCCESS;
    }
    let session = match Session::start(quick) {
        Ok(session) => session,
        Err(error) => {
            println!("suites: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut good = true;
    for suite in chosen {
        println!("---- {}: {}", suite.name, suite.about);
        let mut checks = Checks::new(suite.name);
        let outcome = (suite.run)(&session, &mut checks);
        if outcome.is_err() {
            checks.record("the suite runs to its end", outcome);
        }
        good &= checks.finish();
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage_error(word: &str) -> ExitCode {
    eprintln!("suites: '{word}' is not understood; use [--quick] [--only NAME]... of:");
    SUITES.iter().for_each(|suite| eprintln!("  {:<18} {}", suite.name, suite.about));
    ExitCode::from(2)
}
