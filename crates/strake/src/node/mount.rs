//! A node's mounts: each is a process of its own, with a data directory that has no disks.

use super::messages::LeaderRequest;
use super::server::{Doing, Node, wait_for_lock};
use super::serving::serving_peer;
use crate::cluster::{Cluster, FsRecord};
use crate::commands::down::take_down;
use crate::commands::up::{mount_daemon, prepare_mount_point, start_daemon};
use crate::daemon::start_thread;
use crate::data_dir::{NodeConfig, NsdConfig};
use std::sync::Arc;
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{info, warn};

/// How long a mount's process that is on its way down is waited for.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

impl Node {
    /// Mounts a file system here. Returns a sentence about it.
    pub(super) fn mount(
        &self,
        fs: &FsRecord,
        settings: &[String],
        options: &str,
    ) -> Result<String> {
        let dir = self.dir.mount_dir(&fs.name)?;
        std::fs::create_dir_all(dir.root())?;
        if self.is_mounted(&fs.name)? {
            let place = dir.read_config()?.mount;
            let is_usual =
                self.cluster().fs_named(&fs.name).is_ok_and(|known| known.mount == fs.mount);
            let sentence = format!("{} is mounted at {} already", fs.name, place.display());
            // Another place was asked for.
            if place != fs.mount && !is_usual {
                let (name, node) = (&fs.name, &self.file.node);
                let detail = format!("{sentence}: `strake fs umount {name} -N {node}` first");
                return Err(Error::new(ErrorKind::Busy, detail));
            }
            return Ok(sentence);
        }
        let mut config = mount_config(self, &self.cluster(), fs);
        if dir.is_formatted() {
            config.settings = dir.read_config()?.settings;
        }
        settings.iter().try_for_each(|text| config.settings.set(text))?;
        config.settings.validate()?;
        prepare_mount_point(&fs.mount)?;
        dir.write_config(&config)?;
        let mut daemon = start_daemon(&dir, &mount_daemon(options), &dir.log_path())?;
        let name = fs.name.clone();
        start_thread(&format!("mount {name}"), move || match daemon.wait() {
            Ok(status) if status.success() => {
                info!(target: "node", "the mount of {name} has ended")
            }
            Ok(status) => warn!(target: "node", "the mount of {name} has ended ({status})"),
            Err(error) => warn!(target: "node", "the mount of {name} is not watched: {error}"),
        })?;
        Ok(format!("{} is mounted at {}", fs.name, fs.mount.display()))
    }

    /// Flushes and unmounts a file system here. Returns a sentence about it.
    pub(super) fn unmount(self: &Arc<Node>, fs: &str, force: bool) -> Result<String> {
        let dir = self.dir.mount_dir(fs)?;
        if !dir.is_formatted() {
            return Ok(format!("{fs} is not mounted"));
        }
        let sentence = take_down(&dir, &dir.read_config()?, force)?;
        if !wait_for_lock(&dir, END_WAIT_MAX)? {
            let detail = format!("{fs} is unmounted and flushed, but its process still runs");
            return Err(Error::new(ErrorKind::TimedOut, detail));
        }
        // A process that was killed has told nobody.
        self.look_after_mounts();
        Ok(sentence)
    }

    /// Has the node that leads note which mounts of this node are gone: no process has their lock.
    /// A process that ended in order has told it already.
    pub(super) fn look_after_mounts(self: &Arc<Node>) {
        for fs in self.cluster().file_systems {
            match self.serves(fs.id) {
                true if !fs.mounts.is_empty() => self.work_for_mounts(fs.id),
                true => {}
                // That is for the node that serves now.
                false => self.set_fault((fs.id, Doing::Mounts), None),
            }
            if self.serves(fs.id)
                && let Err(error) = self.tend_disks(fs.id)
            {
                warn!(target: "node", "the disks of {}: {error}", fs.name);
            }
            let Some(mount) = fs.mount_on(self.file.id) else { continue };
            if self.is_mounted(&fs.name).unwrap_or(true) {
                continue;
            }
            let (fs, flushed) = (fs.id, false);
            let told = match self.serves(fs) {
                true => self.close_mount(fs, mount, flushed),
                false => serving_peer(&self.own, &self.search(fs)).and_then(|leader| {
                    leader.ask_leader(&LeaderRequest::CloseMount { fs, mount, flushed })
                }),
            };
            if let Err(error) = told {
                // It is told again.
                warn!(target: "node", "a mount is gone, and what it held is not free yet: {error}");
            }
        }
    }

    /// True if the process of a mount runs here.
    pub(super) fn is_mounted(&self, fs: &str) -> Result<bool> {
        let dir = self.dir.mount_dir(fs)?;
        Ok(dir.root().exists() && dir.try_lock()?.is_none())
    }
}

/// The configuration of a mount: all disks by name, none of them here.
fn mount_config(node: &Node, cluster: &Cluster, fs: &FsRecord) -> NodeConfig {
    NodeConfig { nsd: disks_of_mount(cluster, fs), ..node.config_of(cluster, fs) }
}

/// The disks of a file system, as its mounts name them.
pub(crate) fn disks_of_mount(cluster: &Cluster, fs: &FsRecord) -> Vec<NsdConfig> {
    let of_fs = fs.nsds.iter().filter_map(|nsd| cluster.nsd(*nsd));
    let nsd = of_fs.map(|nsd| NsdConfig {
        id: nsd.id.0,
        name: nsd.name.clone(),
        path: format!("{}:{}", cluster.node_name(nsd.node), nsd.device.display()).into(),
        failure_group: nsd.failure_group,
        shared: None,
    });
    nsd.collect()
}
