//! The data directory of a file system on this machine, and the node's configuration in it.
//!
//! ```text
//! DIR/strake.toml    NodeConfig: which disks, which settings
//! DIR/nsdI/          directory NSDs, each with its container file
//! DIR/strake.log     the daemons' log
//! DIR/admin.sock     where the running daemon answers commands (mode 0600)
//! DIR/daemon.lock    locked while a daemon runs
//! DIR/disks.lock     locked while a process has the NSDs open
//! DIR/staging/       where a mount begins whose place an automounter keeps
//! DIR/witness        the newest metadata generation, confirmed beside the NSDs
//! DIR/secret         the cluster's credentials, mode 0600
//! DIR/run/           sockets between the daemons (`rpc = socket`)
//! ```

use crate::settings::Settings;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_env::Clock;
use strake_proto::{ClusterId, Error, ErrorKind, NsdId, Result};

/// The name of a directory NSD's container file.
pub(crate) const CONTAINER_FILE: &str = "container";

/// How long a server process whose daemon died may take to close the NSDs.
const DISKS_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a command may hold the daemon's lock while it looks whether a daemon runs.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
const LOCK_WAIT_STEP: Duration = Duration::from_millis(20);

/// One NSD and the place where this node finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NsdConfig {
    /// Its id in the cluster.
    pub(crate) id: u32,
    /// Its name in listings.
    pub(crate) name: String,
    /// A directory (relative to the data directory, or absolute) or a block device.
    pub(crate) path: PathBuf,
    /// NSDs of one group fail together.
    pub(crate) failure_group: u32,
    /// How this node shares it with other nodes, if they reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<SharedConfig>,
}

/// How a node that serves an NSD shares it with the other nodes that reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedConfig {
    /// The number under which this node serves it.
    pub(crate) number: u64,
    /// This node's place among the servers.
    pub(crate) place: usize,
    /// The names of all servers.
    pub(crate) servers: Vec<String>,
}

/// The configuration that this node needs before it can read any metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeConfig {
    /// The version of the form of `strake.toml`, which is 1.
    pub(crate) version: u32,
    /// The file system's name.
    pub(crate) name: String,
    /// The cluster's identity, in hexadecimal.
    pub(crate) cluster: String,
    /// Redundancy code of new files. If the metadata differs, the metadata counts.
    pub(crate) code: String,
    /// Block size in bytes. If the metadata differs, the metadata counts.
    pub(crate) block_size: u32,
    /// The last mount point.
    pub(crate) mount: PathBuf,
    /// The directory of the node that this belongs to, if the file system is a cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<PathBuf>,
    /// The disks, in slot order.
    pub(crate) nsd: Vec<NsdConfig>,
    /// The node's settings that differ from their defaults.
    #[serde(default)]
    pub(crate) settings: Settings,
}

impl NodeConfig {
    /// The cluster's identity.
    ///
    /// # Errors
    /// `Corrupt` if the text in the file is no identity.
    pub(crate) fn cluster_id(&self) -> Result<ClusterId> {
        let bad = || Error::new(ErrorKind::Corrupt, "strake.toml: `cluster` is not 32 hex digits");
        if self.cluster.len() != 32 || !self.cluster.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0u8; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&self.cluster[2 * index..2 * index + 2], 16)
                .map_err(|_| bad())?;
        }
        Ok(ClusterId(bytes))
    }

    /// The name of the file by which commands find this file system. Several mounts of a cluster
    /// may be on one machine.
    pub(crate) fn registry_key(&self, dir: &DataDir) -> String {
        if self.node.is_none() {
            return self.cluster.clone();
        }
        let path = crc32c::crc32c(dir.root().as_os_str().as_encoded_bytes());
        format!("{}-{}-{path:08x}", self.cluster, self.name)
    }

    /// The name of an NSD for listings.
    pub(crate) fn nsd_name(&self, nsd: NsdId) -> String {
        let found = self.nsd.iter().find(|config| config.id == nsd.0);
        found.map_or_else(|| format!("nsd{nsd}"), |config| config.name.clone())
    }
}

/// The data directory.
#[derive(Clone, Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// The data directory at `path`, made absolute. It need not exist.
    ///
    /// # Errors
    /// The host's errors, if the current directory is gone.
    pub(crate) fn at(path: &Path) -> Result<DataDir> {
        Ok(DataDir { root: std::path::absolute(path)? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.root.join("strake.toml")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.root.join("strake.log")
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.root.join("admin.sock")
    }

    /// Where a mount is made whose place an automounter keeps, until it is moved there.
    pub(crate) fn staging_path(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(crate) fn secret_path(&self) -> PathBuf {
        self.root.join("secret")
    }

    pub(crate) fn run_path(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The path of an NSD's container: a file in its directory, or the device itself.
    pub(crate) fn container_path(&self, nsd: &NsdConfig) -> PathBuf {
        let path = self.root.join(&nsd.path);
        // If nothing is at the path now, a path below `/dev` was a device and any other path was a
        // directory.
        let is_device = std::fs::metadata(&path).map_or(path.starts_with("/dev"), |found| {
            std::os::unix::fs::FileTypeExt::is_block_device(&found.file_type())
        });
        if is_device { path } else { path.join(CONTAINER_FILE) }
    }

    /// True if a file system was made here.
    pub(crate) fn is_formatted(&self) -> bool {
        self.config_path().exists()
    }

    /// The message for a directory without a file system: what is wrong and what to do.
    pub(crate) fn advice(&self) -> String {
        let root = self.root.display();
        format!(
            "no file system at {root} (no {}): name another directory with --data or STRAKE_DATA, \
             or make one: `strake up --data {root} --mount MNT`",
            self.config_path().display()
        )
    }

    /// Reads the node's configuration.
    ///
    /// # Errors
    /// `NotFound` if there is none; the message says what to do. `Corrupt` if it is damaged.
    pub(crate) fn read_config(&self) -> Result<NodeConfig> {
        let path = self.config_path();
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, self.advice()),
            _ => Error::from(error).context(path.display()),
        })?;
        toml::from_str(&text)
            .map_err(|error| Error::new(ErrorKind::Corrupt, format!("{}: {error}", path.display())))
    }

    /// Writes the node's configuration. After a crash either the old or the new one is there.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn write_config(&self, config: &NodeConfig) -> Result<()> {
        let text = toml::to_string_pretty(config)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.write_durably(&self.config_path(), text.as_bytes(), 0o644)
    }

    /// Replaces a file of the directory. After a crash either the old or the new one is there.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn write_durably(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let new = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(&self.root)?.sync_all()?;
        Ok(())
    }

    /// Takes the lock that a running daemon holds. Returns `None` if another process has it.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn try_lock(&self) -> Result<Option<File>> {
        self.try_lock_file("daemon.lock")
    }

    /// Takes the same lock for a daemon that starts. It waits a moment, because commands take the
    /// lock briefly to see whether a daemon runs.
    ///
    /// # Errors
    /// `Busy` if another daemon has the lock. Otherwise the host's errors.
    pub(crate) fn lock(&self, clock: &dyn Clock) -> Result<File> {
        self.lock_within(clock, "daemon.lock", LOCK_WAIT_MAX)?.ok_or_else(|| {
            let detail = format!("another daemon serves {} already", self.root.display());
            Error::new(ErrorKind::Busy, detail)
        })
    }

    /// Takes the lock that a process holds while it has the NSDs open. It waits, because after a
    /// crash of the daemon its server process ends a moment later.
    ///
    /// # Errors
    /// `Busy` if another process keeps the NSDs open. Otherwise the host's errors.
    pub(crate) fn lock_disks(&self, clock: &dyn Clock) -> Result<File> {
        self.lock_within(clock, "disks.lock", DISKS_WAIT_MAX)?.ok_or_else(|| {
            let seconds = DISKS_WAIT_MAX.as_secs();
            let detail = format!(
                "another strake process still has the NSDs of {} open after {seconds} s: end it",
                self.root.display()
            );
            Error::new(ErrorKind::Busy, detail)
        })
    }

    fn lock_within(&self, clock: &dyn Clock, name: &str, limit: Duration) -> Result<Option<File>> {
        let end = clock.monotonic() + limit;
        loop {
            let lock = self.try_lock_file(name)?;
            if lock.is_some() || clock.monotonic() >= end {
                return Ok(lock);
            }
            clock.sleep(LOCK_WAIT_STEP);
        }
    }

    fn try_lock_file(&self, name: &str) -> Result<Option<File>> {
        let path = self.root.join(name);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::RealClock;
    use strake_env::channel;

    #[test]
    fn the_disks_are_waited_for_until_their_holder_is_gone() {
        let root = std::env::temp_dir().join(format!("strake-disks-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("temporary directory");
        let dir = DataDir::at(&root).expect("absolute");
        let held = dir.lock_disks(&RealClock).expect("nobody has it");
        let (asked_in, asked) = channel::channel();
        let waiter = {
            let dir = dir.clone();
            strake_env::thread::spawn(move || {
                assert!(dir.try_lock_file("disks.lock").expect("readable").is_none());
                asked_in.send(()).expect("the test listens");
                dir.lock_disks(&RealClock).map(drop)
            })
        };
        asked.recv().expect("the waiter runs");
        drop(held);
        waiter.join().expect("no panic").expect("granted after the holder let go");
        std::fs::remove_dir_all(&root).expect("remove");
    }
}
