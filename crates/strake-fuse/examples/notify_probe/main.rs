//! What the kernel does when it is told to let go of names, attributes and pages: `notify_probe
//! PROBE MOUNT [--rings]` mounts a file system in memory that changes underneath (see `world`),
//! and looks at it as programs do. Exit code 0 if the new state is seen once an invalidation was
//! confirmed (and the old one before, or the probe would show nothing), else 1 with a sentence.
//!
//! Lines that begin with `fact:` say what this kernel does where no promise depends on it;
//! docs/decisions/0025-a-way-back-to-the-adapter.md has them for one kernel.
#![allow(unsafe_code)]

mod busy;
#[path = "../shared/mapping.rs"]
mod mapping;
mod probes;
#[macro_use]
#[path = "../shared/unneeded.rs"]
mod unneeded;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use strake_client::Vfs;
use strake_client::invalidate::{Dropping, Outdated};
use strake_env::RealClock;
use strake_fuse::{FuseMount, KernelOptions, MountOptions, StayAwake};
use strake_observe::Observe;
use world::World;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Serving threads. Requests that are held up take some of them.
const THREADS: usize = 8;
/// What is confirmed is confirmed within this, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(20);
/// What is held up is believed to be held up after this.
const HELD_UP: Duration = Duration::from_millis(300);
/// A probe that is not done by then hangs: its mount is aborted, so that it can be killed.
const PROBE_LIMIT: Duration = Duration::from_secs(100);

/// A mounted world.
struct Probe {
    world: Arc<World>,
    observe: Arc<Observe>,
    mount: FuseMount,
    path: PathBuf,
}

impl Probe {
    fn mount(path: &Path, io_uring: bool) -> strake_proto::Result<Probe> {
        let world = World::new();
        let observe = Observe::new(RealClock::shared(), 16);
        let options = MountOptions {
            name: "notify-probe".to_owned(),
            path: path.to_owned(),
            threads: THREADS,
            io_uring,
            stay_awake: StayAwake::Off,
            kernel: KernelOptions::default(),
        };
        let vfs = Arc::clone(&world) as Arc<dyn Vfs>;
        let mount = FuseMount::mount(vfs, Arc::clone(&observe), &options)?;
        Ok(Probe { world, observe, mount, path: path.to_owned() })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Orders an invalidation.
    fn order(&self, what: Outdated) -> strake_proto::Result<Dropping> {
        self.world.adapter().invalidate(what)
    }

    /// Waits until the kernel confirms.
    fn confirm(&self, dropping: &Dropping) -> strake_proto::Result<()> {
        dropping.wait(&self.observe.waiters, LIMIT).map(drop)
    }

    fn invalidate(&self, what: Outdated) -> strake_proto::Result<()> {
        self.confirm(&self.order(what)?)
    }

    /// Whether the kernel does not confirm for a while.
    fn is_held_up(&self, dropping: &Dropping) -> bool {
        let outcome = dropping.wait(&self.observe.waiters, HELD_UP);
        outcome.is_err_and(|error| error.kind() == strake_proto::ErrorKind::TimedOut)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Err(error) = self.mount.unmount(true) {
            eprintln!("notify_probe: {}: {error}", self.path.display());
        }
        self.mount.wait();
    }
}

/// Aborts the connection of a mount whose probe hangs: threads in the kernel then return.
fn watch(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(device) = std::fs::metadata(path).map(|root| root.dev()) else { return };
    std::thread::spawn(move || {
        strake_env::Clock::sleep(&RealClock, PROBE_LIMIT);
        eprintln!("notify_probe: it hangs; its connection is aborted");
        let minor = rustix::fs::minor(device);
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        std::process::exit(1);
    });
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, path, io_uring) = match words[..] {
        [name, path] => (name, Path::new(path), false),
        [name, path, "--rings"] => (name, Path::new(path), true),
        _ => {
            eprintln!("notify_probe PROBE MOUNT [--rings], with PROBE one of:");
            probes::ALL.iter().for_each(|(name, _)| eprintln!("  {name}"));
            return ExitCode::from(2);
        }
    };
    let Some((_, run)) = probes::ALL.iter().find(|(known, _)| *known == name) else {
        eprintln!("notify_probe: there is no probe {name}");
        return ExitCode::from(2);
    };
    let outcome = Probe::mount(path, io_uring).map_err(Into::into).and_then(|probe| {
        watch(path);
        run(&probe)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("notify_probe {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
