//! The disks that a node of a cluster serves behind its door: those of one file system.
//!
//! The node that leads also has the metadata. It serves the metadata after the NSDs, because a
//! client that can reach the metadata takes an NSD that it cannot reach for one that is gone.

use super::Local;
use crate::data_dir::{DataDir, NodeConfig};
use crate::disks::{DiskUser, Disks};
use std::fs::File;
use std::sync::Arc;
use strake_env::RealClock;
use strake_net::{Door, Service};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{FsId, NsdId, Result};
use tracing::error;

/// The disks of one file system on this node.
pub(crate) enum Member {
    /// With the metadata.
    Leader(Local),
    /// Without it.
    Server {
        /// The disks.
        disks: Arc<Disks>,
        /// Declared last, so that it is released after the NSDs are closed.
        _lock: File,
    },
}

impl Member {
    /// Opens the disks that `config` names, and the metadata if this node has it. Serves them as
    /// `fs` behind `door`.
    ///
    /// # Errors
    /// Those of the disks' lock and of the metadata. An NSD that cannot be opened is no error: it
    /// is tried again every second.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        leads: bool,
        (fs, door): (FsId, &Arc<Door>),
        observe: &Arc<Observe>,
    ) -> Result<Member> {
        let member = if leads {
            Member::Leader(Local::open(dir, config, observe)?)
        } else {
            let lock = dir.lock_disks(&RealClock)?;
            Member::Server { disks: Disks::open(dir, config, observe)?, _lock: lock }
        };
        let user = Arc::new(BehindDoor(Arc::clone(door)));
        for (nsd, port) in member.disks().ports() {
            user.came(nsd, port);
        }
        let meta = match &member {
            Member::Leader(local) => Some(Arc::clone(&local.meta)),
            Member::Server { .. } => None,
        };
        if let Some(meta) = &meta {
            door.serve_meta(fs, Arc::clone(meta) as Arc<dyn MetaPort>)?;
        }
        member.disks().watch(meta, user)?;
        Ok(member)
    }

    /// The metadata's holders, if this node has the metadata.
    pub(crate) fn metadata_holders(&self) -> Option<Vec<NsdId>> {
        match self {
            Member::Leader(local) => Some(local.metadata_holders()),
            Member::Server { .. } => None,
        }
    }

    /// Why an NSD is not used, if it has a fault.
    pub(crate) fn fault_of(&self, nsd: NsdId) -> Option<String> {
        self.disks().fault_of(nsd)
    }

    /// Ends the services and closes the disks.
    ///
    /// # Errors
    /// The metadata's, which could not be made durable.
    pub(crate) fn finish(self, fs: FsId, door: &Door, nsds: &[NsdId]) -> Result<()> {
        door.end(Service::MetaOf(fs));
        nsds.iter().for_each(|nsd| door.end(Service::Nsd(*nsd)));
        match self {
            Member::Leader(local) => local.finish(),
            Member::Server { disks, _lock } => {
                disks.stop();
                disks.give_back();
                Ok(())
            }
        }
    }

    fn disks(&self) -> &Arc<Disks> {
        match self {
            Member::Leader(local) => &local.disks,
            Member::Server { disks, .. } => disks,
        }
    }
}

/// Serves disks that come behind a door, and ends the service of those that go.
struct BehindDoor(Arc<Door>);

impl DiskUser for BehindDoor {
    fn came(&self, nsd: NsdId, port: Arc<dyn NsdPort>) {
        if let Err(error) = self.0.serve_nsd(nsd, port) {
            error!(target: "disks", "NSD {nsd} cannot be served: {error}");
        }
    }

    fn went(&self, nsd: NsdId) {
        // This waits for requests under way. They end within the limit for the disk's I/O.
        self.0.end(Service::Nsd(nsd));
    }
}
