//! The disks that a node of a cluster serves behind its door: those of one file system, and this
//! node's part of the metadata, if it has one.

use crate::data_dir::{DataDir, NodeConfig};
use crate::disks::{DiskUser, Disks};
use std::fs::File;
use std::sync::Arc;
use strake_crew::metadata::{ContainerOf, LogId, ScrubbedWithCopy};
use strake_crew::{Crew, Metadata, MetadataParts};
use strake_env::RealClock;
use strake_env::sync::Mutex;
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

/// A node's part of the metadata, if it has one.
type Part = Mutex<Option<Arc<Metadata>>>;

/// See the head of this file.
pub(crate) struct Member {
    disks: Arc<Disks>,
    config: NodeConfig,
    metadata: Arc<Part>,
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
        let part = Arc::<Part>::default();
        let user = Arc::new(BehindDoor { door: Arc::clone(door), part: Arc::clone(&part) });
        for (nsd, port) in disks.ports() {
            user.came(nsd, port);
        }
        disks.watch(None, user)?;
        let mut member =
            Member { disks, config: config.clone(), metadata: part, word: None, _lock: lock };
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
        let before = self.metadata.lock().take();
        if let Some(metadata) = before {
            metadata.stop();
            self.word = metadata.word().map(|word| (metadata.place(), word));
        }
        let disks = Arc::clone(&self.disks);
        let container_of: ContainerOf = Box::new(move |nsd| disks.container(nsd));
        let start = |parts: PartsFor| {
            let mut parts = parts(container_of);
            let of_place = self.word.take_if(|(place, _)| *place == (parts.nsd, parts.log));
            parts.earlier = of_place.map(|(_, word)| word);
            Metadata::start(parts, door, observe).map(Arc::new)
        };
        let next = parts.map(start).transpose()?;
        *self.metadata.lock() = next;
        Ok(())
    }

    fn metadata(&self) -> Option<Arc<Metadata>> {
        self.metadata.lock().clone()
    }

    /// The NSD with this node's part of the metadata, if it has one, and the log.
    pub(crate) fn metadata_place(&self) -> Option<(NsdId, LogId)> {
        self.metadata().map(|part| part.place())
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
        self.metadata()?.crew()
    }

    /// This node's replica of the metadata, if it has one that runs.
    pub(crate) fn replica(&self) -> Option<Arc<Replica>> {
        self.metadata()?.replica()
    }

    /// What is wrong with this node's part of the metadata.
    pub(crate) fn metadata_fault(&self) -> Option<String> {
        self.metadata()?.fault()
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
        let part = self.metadata.lock().take();
        part.into_iter().for_each(|part| part.stop());
        nsds.iter().for_each(|nsd| door.end(Service::Nsd(*nsd)));
        self.disks.stop();
        self.disks.give_back();
    }
}

/// Serves disks that come behind a door, and ends the service of those that go.
struct BehindDoor {
    door: Arc<Door>,
    part: Arc<Part>,
}

impl DiskUser for BehindDoor {
    fn came(&self, nsd: NsdId, port: Arc<dyn NsdPort>) {
        let part = Arc::clone(&self.part);
        let part = Arc::new(move || part.lock().clone());
        let port = Arc::new(ScrubbedWithCopy::new(nsd, port, part));
        if let Err(error) = self.door.serve_nsd(nsd, port) {
            error!(target: "disks", "NSD {nsd} cannot be served: {error}");
        }
    }

    fn went(&self, nsd: NsdId) {
        // This waits for requests under way. They end within the limit for the disk's I/O.
        self.door.end(Service::Nsd(nsd));
    }
}
