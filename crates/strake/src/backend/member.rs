//! The disks that a node of a cluster serves behind its door: those of one file system.
//!
//! The node that leads also has the metadata. It serves the metadata after the NSDs, because a
//! client that can reach the metadata takes an NSD that it cannot reach for one that is gone.

use super::Local;
use super::crew::{Crew, Lead};
use crate::data_dir::{DataDir, NodeConfig};
use crate::disks::{DiskUser, Disks};
use std::fs::File;
use std::sync::Arc;
use strake_env::RealClock;
use strake_net::{Door, Service};
use strake_observe::Observe;
use strake_proto::nsd::NsdPort;
use strake_proto::{FsId, NsdId, Result};
use tracing::error;

/// The disks of one file system on this node.
pub(crate) enum Member {
    /// With the metadata.
    Leader {
        /// What the mounts share.
        crew: Arc<Crew>,
        /// The disks and the metadata.
        local: Local,
    },
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
    /// `fs` behind `door`. `lead` is there if this node leads.
    ///
    /// # Errors
    /// Those of the disks' lock and of the metadata. An NSD that cannot be opened is no error: it
    /// is tried again every second.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        lead: Option<Lead>,
        (fs, door): (FsId, &Arc<Door>),
        observe: &Arc<Observe>,
    ) -> Result<Member> {
        let user = Arc::new(BehindDoor(Arc::clone(door)));
        let serve = |disks: &Disks| {
            for (nsd, port) in disks.ports() {
                user.came(nsd, port);
            }
        };
        let Some(lead) = lead else {
            let lock = dir.lock_disks(&RealClock)?;
            let disks = Disks::open(dir, config, observe)?;
            serve(&disks);
            disks.watch(None, user)?;
            return Ok(Member::Server { disks, _lock: lock });
        };
        let local = Local::open(dir, config, observe)?;
        serve(&local.disks);
        let crew = Arc::new(Crew::start(fs, &local.meta, lead, door, observe)?);
        local.disks.watch(Some(Arc::clone(&local.meta)), user)?;
        Ok(Member::Leader { crew, local })
    }

    /// What the mounts share, if this node leads.
    pub(crate) fn crew(&self) -> Option<&Arc<Crew>> {
        match self {
            Member::Leader { crew, .. } => Some(crew),
            Member::Server { .. } => None,
        }
    }

    /// The NSDs that it has.
    pub(crate) fn nsds(&self) -> Vec<NsdId> {
        self.disks().ports().into_keys().collect()
    }

    /// The metadata's holders, if this node has the metadata.
    pub(crate) fn metadata_holders(&self) -> Option<Vec<NsdId>> {
        match self {
            Member::Leader { local, .. } => Some(local.metadata_holders()),
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
        // The manager ends first, because it uses the NSDs.
        let ended = self.crew().map_or(Ok(()), |crew| crew.finish());
        door.end(Service::TokensOf(fs));
        door.end(Service::MetaOf(fs));
        nsds.iter().for_each(|nsd| door.end(Service::Nsd(*nsd)));
        match self {
            Member::Leader { local, .. } => ended.and(local.finish()),
            Member::Server { disks, _lock } => {
                disks.stop();
                disks.give_back();
                Ok(())
            }
        }
    }

    fn disks(&self) -> &Arc<Disks> {
        match self {
            Member::Leader { local, .. } => &local.disks,
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
