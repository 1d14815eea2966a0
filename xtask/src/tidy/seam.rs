//! The rule of the seam: crates of the product take threads, locks, channels and sockets from
//! `strake-env`, so that a simulation can schedule all of them (docs/decisions/0024).
//!
//! The rule also holds for the inline tests of a product crate, because a simulation runs those
//! first. It does not hold for files beside the product (`tests/`, `examples/`, `xtask`).

use super::Faults;
use super::repository::{File, Repository};

/// Each forbidden path, with its replacement.
const FORBIDDEN: &[(&str, &str)] = &[
    ("std::thread", "strake_env::thread (sleeps: strake_env::Clock)"),
    ("parking_lot", "strake_env::sync"),
    ("std::sync::mpsc", "strake_env::channel"),
    ("std::sync::Mutex", "strake_env::sync::Mutex"),
    ("std::sync::RwLock", "strake_env::sync::RwLock"),
    ("std::sync::Condvar", "strake_env::sync::Condvar"),
    ("std::sync::Barrier", "strake_env::sync::Condvar"),
    ("std::net", "strake_env::net"),
    ("std::os::unix::net", "strake_env::net"),
];

/// The seam itself.
const SEAM: &[&str] = &[
    "crates/strake-env/src/channel.rs",
    "crates/strake-env/src/clock.rs",
    "crates/strake-env/src/lock_waits",
    "crates/strake-env/src/net.rs",
    "crates/strake-env/src/simulation",
    "crates/strake-env/src/sync.rs",
    "crates/strake-env/src/thread.rs",
];

/// The crate that need not obey. The benchmark measures the real machine. A simulated thread, clock
/// or socket in it would measure nothing.
const FREE: &[&str] = &["crates/strake-bench/"];

/// The one crate that is built with the scheduler.
const SIMULATED: &str = "crates/strake-sim/";

pub(super) fn faults(repository: &Repository) -> Faults {
    let manifests = repository.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let sources = repository.rust().flat_map(|(file, _)| seam_faults(file));
    sources.chain(manifests.flat_map(feature_faults)).collect()
}

/// The places where a manifest would bring the scheduler into the product.
fn feature_faults(file: &File) -> Faults {
    let File { path, text, .. } = file;
    let mut faults = Faults::new();
    for (index, line) in text.lines().enumerate() {
        let asks = line.contains("strake-env") && line.contains("simulation");
        let takes = line.starts_with("strake-sim") && path != "Cargo.toml";
        if (asks || takes) && !path.starts_with(SIMULATED) {
            faults.push(format!(
                "{path}:{}: the scheduler for tests is for strake-sim alone: locks of the product \
                 are the plain ones",
                index + 1
            ));
        }
    }
    faults
}

/// The places where a file bypasses the seam.
fn seam_faults(file: &File) -> Faults {
    let File { path, text, .. } = file;
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    if !is_product || SEAM.iter().chain(FREE).any(|free| path.starts_with(free)) {
        return Faults::new();
    }
    let mut faults = Faults::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        for (word, replacement) in FORBIDDEN {
            if names(code, word) {
                faults.push(format!(
                    "{path}:{}: `{word}` goes around the simulation: use {replacement}",
                    index + 1
                ));
            }
        }
    }
    faults
}

/// True if a line names this path, including in the form `use std::sync::{…, Mutex}`. Paths of
/// other crates that only end in the same way (`rustix::thread`) do not count.
fn names(code: &str, path: &str) -> bool {
    let (module, item) = path.rsplit_once("::").unwrap_or(("", path));
    let is_whole = |line: &str, word: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let joins = |c: char| c.is_alphanumeric() || c == '_';
            !before.is_some_and(|c| joins(c) || c == ':') && !after.is_some_and(joins)
        })
    };
    let grouped = format!("{module}::{{");
    is_whole(code, path)
        || !module.is_empty()
            && code.split_once(&grouped).is_some_and(|(_, items)| is_whole(items, item))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Faults {
        faults(&Repository::of(&[(path, text)]))
    }

    fn count(line: &str) -> usize {
        found("crates/strake-nsd/src/a.rs", &format!("//! A.\n{line}\n")).len()
    }

    #[test]
    fn a_thread_around_the_seam_is_found_with_its_replacement() {
        let text = "//! A.\nfn f() {\n    std::thread::spawn(work);\n}\n";
        let found = found("crates/strake-nsd/src/a.rs", text);
        let [fault] = &found[..] else { panic!("one fault: {found:?}") };
        assert!(fault.starts_with("crates/strake-nsd/src/a.rs:3: `std::thread`"), "{fault}");
        assert!(fault.ends_with("use strake_env::thread (sleeps: strake_env::Clock)"), "{fault}");
    }

    #[test]
    fn each_spelling_is_found() {
        for line in [
            "use std::thread;",
            "use std::thread::{self, JoinHandle};",
            "let b = std::thread::Builder::new();",
            "use parking_lot::Mutex;",
            "a: parking_lot::MutexGuard<'a, ()>,",
            "use std::sync::mpsc;",
            "use std::sync::{Arc, Weak, mpsc};",
            "use std::sync::{Arc, Mutex};",
            "static A: std::sync::Mutex<u8> = todo();",
            "use std::net::TcpStream;",
            "let s = std::os::unix::net::UnixStream::connect(path);",
            "use std::{io, thread};",
        ] {
            assert_eq!(count(line), 1, "{line}");
        }
    }

    #[test]
    fn the_scheduler_stays_out_of_the_product() {
        let feature = "strake-env = { workspace = true, features = [\"simulation\"] }\n";
        assert_eq!(found("crates/strake-sim/Cargo.toml", feature), Faults::new());
        assert_eq!(found("crates/strake/Cargo.toml", feature).len(), 1);
        assert_eq!(found("crates/strake/Cargo.toml", "strake-sim.workspace = true\n").len(), 1);
        assert_eq!(found("crates/strake/Cargo.toml", "strake-env.workspace = true\n").len(), 0);
    }

    #[test]
    fn what_is_no_thread_lock_or_socket_is_spared() {
        for line in [
            "use strake_env::thread;",
            "use strake_env::sync::{Condvar, Mutex};",
            "rustix::thread::sched_setaffinity(None, &set);",
            "use std::sync::{Arc, OnceLock, Weak};",
            "use std::sync::atomic::AtomicU64;",
            "// as std::thread::spawn does",
        ] {
            assert_eq!(count(line), 0, "{line}");
        }
        let text = "//! A.\nuse std::thread;\n";
        for path in
            ["crates/strake-env/src/thread.rs", "crates/strake/tests/a.rs", "xtask/src/a.rs"]
        {
            assert_eq!(found(path, text), Faults::new());
        }
    }
}
