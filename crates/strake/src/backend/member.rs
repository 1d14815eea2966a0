//! The disks that a node of a cluster serves behind its door: those of one file system, and this
//! node's part of the metadata, if it has one.

use crate::data_dir::{DataDir, NodeConfig};
use crate::disks::{DiskUser, Disks};
use std::fs::File;
use std::sync::Arc;
use strake_crew::metadata::{ContainerOf, LogId};
use strake_crew::{Crew, Metadata, MetadataParts};
use strake_env::RealClock;
use strake_net::{Door, Service};
use strake_observe::Observe;
use strake_proto::nsd::NsdPort;
use strake_proto::{NsdId, Result};
use strake_replica::Replica;
use strake_replica::core::Word;
use strake_store::Container;
use tracing::error;

/// Gives what this node's part of the metadata is made of.
pub(crate) type PartsFor = Box<dyn FnOnce(ContainerOf) -> MetadataParts>;

/// See the head of this file.
pub(crate) struct Member {
    disks: Arc<Disks>,
    config: NodeConfig,
    metadata: Option<Metadata>,
    /// The word of the last part of the metadata, and its place.
    word: Option<((NsdId, LogId), Word)>,
    /// Declared last, so that it is released after the NSDs are closed.
    _lock: File,
}

impl Member {
    /// Opens the disks that `config` names, and serves them behind `door`. `metadata` is there if
    /// this node has a part of the metadata.
    ///
    /// # Errors
    /// Those of the disks' lock. An NSD that cannot be opened is no error: it is tried again every
    /// second.
    pub(crate) fn open(
        dir: &DataDir,
        config: &NodeConfig,
        metadata: Option<PartsFor>,
        door: &Arc<Door>,
        observe: &Arc<Observe>,
    ) -> Result<Member> {
        let lock = dir.lock_disks(&RealClock)?;
        let disks = Disks::open(dir, config, observe)?;
        let user = Arc::new(BehindDoor(Arc::clone(door)));
        for (nsd, port) in disks.ports() {
            user.came(nsd, port);
        }
        disks.watch(None, user)?;
        let mut member =
            Member { disks, config: config.clone(), metadata: None, word: None, _lock: lock };
        member.begin_metadata(metadata, door, observe)?;
        Ok(member)
    }

    /// Begins this node's part of the metadata, in the place of the one that it had.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(crate) fn begin_metadata(
        &mut self,
        parts: Option<PartsFor>,
        door: &Arc<Door>,
        observe: &Arc<Observe>,
    ) -> Result<()> {
        if let Some(metadata) = self.metadata.take() {
            metadata.stop();
            self.word = metadata.word().map(|word| (metadata.place(), word));
        }
        let disks = Arc::clone(&self.disks);
        let container_of: ContainerOf = Box::new(move |nsd| disks.container(nsd));
        let start = |parts: PartsFor| {
            let mut parts = parts(container_of);
            let of_place = self.word.take_if(|(place, _)| *place == (parts.nsd, parts.log));
            parts.earlier = of_place.map(|(_, word)| word);
            Metadata::start(parts, door, observe)
        };
        self.metadata = parts.map(start).transpose()?;
        Ok(())
    }

    /// The NSD with this node's part of the metadata, if it has one, and the log.
    pub(crate) fn metadata_place(&self) -> Option<(NsdId, LogId)> {
        self.metadata.as_ref().map(Metadata::place)
    }

    /// The container of an NSD, if it can be used.
    pub(crate) fn container(&self, nsd: NsdId) -> Option<Container> {
        self.disks.container(nsd)
    }

    /// The disks that it was told of last, and all else.
    pub(crate) fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The list of disks was changed: those that came are opened, those that went are closed.
    pub(crate) fn follow(&mut self, config: NodeConfig) {
        self.config = config;
        self.disks.kick();
    }

    /// What the mounts share, if this node serves them.
    pub(crate) fn crew(&self) -> Option<Arc<Crew>> {
        self.metadata.as_ref()?.crew()
    }

    /// This node's replica of the metadata, if it has one that runs.
    pub(crate) fn replica(&self) -> Option<Arc<Replica>> {
        self.metadata.as_ref()?.replica()
    }

    /// What is wrong with this node's part of the metadata.
    pub(crate) fn metadata_fault(&self) -> Option<String> {
        self.metadata.as_ref()?.fault()
    }

    /// The NSDs that it has.
    pub(crate) fn nsds(&self) -> Vec<NsdId> {
        self.disks.ports().into_keys().collect()
    }

    /// Why an NSD is not used, if it has a fault.
    pub(crate) fn fault_of(&self, nsd: NsdId) -> Option<String> {
        self.disks.fault_of(nsd)
    }

    /// Ends the services and closes the disks.
    pub(crate) fn finish(self, door: &Door, nsds: &[NsdId]) {
        // The manager ends first, because it uses the NSDs.
        self.metadata.iter().for_each(Metadata::stop);
        nsds.iter().for_each(|nsd| door.end(Service::Nsd(*nsd)));
        self.disks.stop();
        self.disks.give_back();
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
