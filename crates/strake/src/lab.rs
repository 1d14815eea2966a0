//! A lab: a cluster of several nodes on one machine, for tests and for trying things out.
//!
//! Each node has a directory `DIR/nodeI`, a network namespace of its own, and a mount at
//! `DIR/nodeI/mnt`. The namespaces are joined by virtual cables to one bridge, which is in a
//! namespace of its own, so that nothing of the machine's network is touched. What can happen to a
//! machine can be done to a node: it is killed, paused, cut off, or its network becomes slow.
//!
//! - [`plan`] has the names, addresses and numbers; pure.
//! - [`network`] makes namespaces and cables with iproute2, cuts them, and makes them lossy with
//!   nftables.
//! - [`processes`] finds a node's processes, kills them and freezes them.
//! - [`mod@up`], [`nodes`], [`mod@status`] and [`mod@down`] are the commands.
//!
//! **What counts is what is there.** `DIR/lab.json` has what was wanted, and no process number.
//! Each command looks for processes, mounts, namespaces and cables itself. All of them can be known
//! as the lab's without the file: by the hash of DIR in their names, by the namespace that a
//! process is in, by the paths below DIR. So `down` also works on a lab that is half made or half
//! dead.

mod down;
mod network;
mod nodes;
mod plan;
mod processes;
mod status;
mod tool;
mod up;

pub(crate) use down::down;
pub(crate) use nodes::{Action, act};
pub(crate) use plan::{LabFile, NSD_SIZE_DEFAULT};
pub(crate) use status::{Row, status};
pub(crate) use up::up;

use plan::Names;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// The name of the lab's file system, and of its cluster.
pub(crate) const FS: &str = "lab";
/// A command waits so long for a lock that another one has.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// It looks that often.
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// A lab: where it is, and what was wanted.
pub(crate) struct Lab {
    /// The lab's directory, without symbolic links, as the kernel lists it among mounts.
    root: PathBuf,
    names: Names,
    file: LabFile,
}

impl Lab {
    /// The lab in the directory `dir`.
    ///
    /// # Errors
    /// `Invalid` if there is none; the message says what to do. `Corrupt` if its file is damaged.
    pub(crate) fn open(dir: &Path) -> Result<Lab> {
        let root = real(dir)?;
        let path = root.join(plan::FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let root = root.display();
                let advice = format!("no lab is at {root}: `strake lab up --dir {root}` makes one");
                Error::new(ErrorKind::Invalid, advice)
            }
            _ => Error::from(error).context(path.display()),
        })?;
        let file = LabFile::parse(&text).map_err(|error| error.context(path.display()))?;
        Ok(Lab { names: Names::of(&root), root, file })
    }

    /// The numbers of its nodes.
    fn nodes(&self) -> impl Iterator<Item = u16> + use<> {
        1..=self.file.all_nodes()
    }

    /// The directory of a node.
    fn node_root(&self, node: u16) -> PathBuf {
        self.root.join(Names::node(node))
    }

    /// Where a node mounts the file system.
    fn mount_point(&self, node: u16) -> PathBuf {
        self.node_root(node).join("mnt")
    }

    /// The processes of a node.
    fn processes(&self, node: u16) -> processes::Place {
        processes::Place::of(self.node_root(node), self.names.namespace(node))
    }

    /// Refuses a node that the lab does not have.
    fn check_node(&self, node: u16) -> Result<()> {
        if self.nodes().any(|known| known == node) {
            return Ok(());
        }
        let detail =
            format!("no node {node}: this lab has the nodes 1 to {}", self.file.all_nodes());
        Err(Error::new(ErrorKind::Invalid, detail))
    }
}

/// An absolute path without symbolic links. The directory itself may be missing.
fn real(dir: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(dir)?;
    if let Ok(real) = path.canonicalize() {
        return Ok(real);
    }
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.join(name)),
        _ => Ok(path),
    }
}

/// Refuses users who may not make namespaces and mounts.
fn refuse_without_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let detail = "a lab needs root: it makes network namespaces and mounts";
    Err(Error::new(ErrorKind::NotPermitted, detail))
}

/// Keeps other `strake lab` commands off the directory until the value is dropped. A command that
/// was killed may leave a child that has the lock until it runs its program, so this waits a
/// little.
///
/// # Errors
/// `Busy` if another command works there; the host's.
fn lock(root: &Path) -> Result<File> {
    let directory = File::open(root).map_err(|error| Error::from(error).context(root.display()))?;
    let end = RealClock.monotonic() + LOCK_WAIT_MAX;
    loop {
        match rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if RealClock.monotonic() < end => {
                RealClock.sleep(LOCK_LOOK);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let root = root.display();
                let detail =
                    format!("another `strake lab` command works at {root}: wait for its end");
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
}
