//! The logs of metadata that went on without a majority (R31, decision 0078).

use super::records::{Cluster, NodeNumber, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use strake_crew::metadata::LogId;
use strake_proto::{Error, ErrorKind, FsId, NsdId, Result};

/// The log of a file system's metadata that is in force, and is not the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetadataLog {
    pub(super) fs: FsId,
    log: LogId,
    /// The NSDs that were lost when it began.
    lost: Vec<NsdId>,
}

impl Cluster {
    /// The NSDs that never have a copy of metadata, whatever else these records lack: those for
    /// data alone, among them those that lost their copy, and those that were deleted. An NSD that
    /// is free may get one, and so may one that is newer than these records.
    pub(crate) fn nsds_without_copy(&self) -> impl Iterator<Item = NsdId> {
        let has_none = |nsd: &NsdId| self.nsd(*nsd).is_none_or(|it| it.usage == Usage::DataOnly);
        self.numbers_of_nsds().filter(has_none)
    }

    /// The log of a file system's metadata that is in force.
    pub(crate) fn metadata_log(&self, fs: FsId) -> LogId {
        let known = self.metadata_logs.iter().find(|known| known.fs == fs);
        known.map_or_else(LogId::default, |known| known.log)
    }

    /// The NSDs that were lost when that log began.
    pub(crate) fn lost_before_log(&self, fs: FsId) -> Vec<NsdId> {
        let known = self.metadata_logs.iter().find(|known| known.fs == fs);
        known.map_or_else(Vec::new, |known| known.lost.clone())
    }

    /// The records as they go on without a majority of the nodes that kept them (R31). The metadata
    /// of each of these file systems goes on with the copy on the NSD named beside it, and without
    /// those named behind it. Nothing is left of the mounts that they had: what a mount of before
    /// knows may be lost.
    #[must_use]
    pub(crate) fn after_loss(mut self, metadata: &[(FsId, NsdId, Vec<NsdId>)]) -> Cluster {
        self.generation += 1;
        self.revision += 1;
        self.renumber_shared();
        for (fs, origin, lost) in metadata {
            self.begin_log(*fs, *origin, lost);
        }
        self
    }

    /// Begins the next log of a file system's metadata.
    fn begin_log(&mut self, fs: FsId, origin: NsdId, lost: &[NsdId]) {
        let log = LogId { generation: self.metadata_log(fs).generation + 1, origin };
        self.metadata_logs.retain(|known| known.fs != fs);
        self.metadata_logs.push(MetadataLog { fs, log, lost: lost.to_vec() });
        let of_id = self.file_systems.iter_mut().filter(|it| it.id == fs);
        of_id.for_each(|fs| fs.mounts.clear());
    }

    /// As [`Cluster::after_loss`], of a file system while the records have their majority.
    pub(super) fn go_on(&mut self, fs: FsId, origin: NsdId, lost: &[NsdId]) -> Result<()> {
        let record = self.fs_mut(fs)?.clone();
        let is_place = |(_, nsd): &(NodeNumber, NsdId)| *nsd == origin;
        if !self.metadata_places(&record.nsds).iter().any(is_place) {
            let detail = format!("NSD {origin} has no copy of the metadata of {}", record.name);
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        if let Some(other) = lost.iter().find(|nsd| !record.nsds.contains(nsd)) {
            let detail = format!("NSD {other} is none of {}", record.name);
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        self.begin_log(fs, origin, lost);
        Ok(())
    }

    /// Verifies what the records say about logs of metadata. A fault is a sentence.
    pub(super) fn check_metadata_logs(&self) -> std::result::Result<(), String> {
        let mut seen = BTreeSet::new();
        for MetadataLog { fs, log, .. } in &self.metadata_logs {
            if self.fs(*fs).is_none() || log.generation == 0 || !seen.insert(*fs) {
                return Err(format!("file system {fs} has a log from nowhere"));
            }
        }
        Ok(())
    }
}
