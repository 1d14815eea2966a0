//! Disks of a file system in use: what the node that serves it does for `strake disk`.
//!
//! **Replacing.** The new NSD is made empty on its node, the records give it to the file system,
//! its node serves it, and it gets a lease. Then the manager replaces the old one, and the metadata
//! says how far that is. A change of the serving node in between costs time only: the next one goes
//! on ([`Node::tend_disks`]), or takes the new NSD back out of the records if the metadata does not
//! know of it. When the old NSD has no slot any more, it belongs to no file system.
//!
//! **Adding** begins like replacing. Then the NSD gets a slot of its own.
//!
//! **Deleting.** The manager empties the NSD, and the metadata says how far that is. The rest is as
//! above.
//!
//! **A copy of the metadata** moves meanwhile to another place. The NSD that will have it is made
//! ready, and the records say that the old one is used for data alone. Then the old replica ends on
//! its node, and the new one begins. It votes when it has the log. The old one is a member until
//! then, so there are never fewer voters. An NSD leaves the records when it is no member any more.

use super::messages::{NewReplicas, NodeRequest};
use super::replicas::voters_of;
use super::server::Node;
use crate::backend::member::Member;
use crate::cluster::{Change, Cluster, FsRecord, NodeNumber, NsdRecord};
use crate::data_dir::NodeConfig;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::Crew;
use strake_env::{Clock, RealClock};
use strake_manager::{Deletion, Manager, Replacement};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, NsdStatusReply};
use strake_proto::{ByteCount, Error, ErrorKind, FsId, NsdId, Result};
use tracing::{info, warn};

/// How long a new NSD may take until it answers, and how often is looked.
const START_MAX: Duration = Duration::from_secs(20);
const START_STEP: Duration = Duration::from_millis(100);

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Node {
    /// Replaces an NSD by the free one named `new`. Returns a sentence about it.
    pub(super) fn replace_nsd(
        self: &Arc<Node>,
        fs: FsId,
        old: NsdId,
        new: &str,
        rate: u64,
    ) -> Result<String> {
        let _alone = self.changing.lock();
        let cluster = self.newest_records()?;
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        let old_record = cluster.nsd(old).ok_or(ErrorKind::NotFound)?;
        let new_record = free(&cluster, new)?;
        check_group(old_record, new_record)?;
        self.check_copy_moves(&cluster, fs, old_record, Some(new_record.id))?;
        self.bury_mounts(record, Vec::new())?;
        let crew = self.crew(fs)?;
        crew.manage(|manager| check_idle(&cluster, manager))?;
        let used = crew.manage(|manager| Ok(manager.most_held()))?;
        self.bring(&crew, record, new_record, &cluster, used)?;
        let port = crew.port(new_record.id).ok_or(ErrorKind::Internal)?;
        let replacement = Replacement { old, new: new_record.id, rate };
        let begun = crew.manage(|manager| manager.replace_nsd(replacement, port));
        if let Err(error) = begun {
            self.take_back(&crew, fs, new_record.id);
            return Err(error);
        }
        self.begin_moving_copy(fs, old_record);
        Ok(format!(
            "{} is being replaced by {new}, which is `up` in `strake disk list` when that is done",
            old_record.name
        ))
    }

    /// Gives a file system the free NSDs of these names, one after the other. Returns a sentence
    /// about it.
    pub(super) fn add_disks(self: &Arc<Node>, fs: FsId, names: &[String]) -> Result<String> {
        let _alone = self.changing.lock();
        let mut cluster = self.newest_records()?;
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        names.iter().try_for_each(|name| free(&cluster, name).map(drop))?;
        self.bury_mounts(record, Vec::new())?;
        let crew = self.crew(fs)?;
        crew.manage(|manager| check_idle(&cluster, manager))?;
        for (at, name) in names.iter().enumerate() {
            self.add_disk(&crew, fs, &cluster, name).map_err(|error| match at {
                0 => error,
                _ => error.context(format!("{} are added", names[..at].join(", "))),
            })?;
            cluster = self.newest_records()?;
        }
        let (names, are) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
        Ok(format!("{names} {are} added: new files are placed there, too"))
    }

    fn add_disk(
        self: &Arc<Node>,
        crew: &Crew,
        fs: FsId,
        cluster: &Cluster,
        name: &str,
    ) -> Result<()> {
        let (record, nsd) = (cluster.fs(fs).ok_or(ErrorKind::NotFound)?, free(cluster, name)?);
        self.bring(crew, record, nsd, cluster, 0)?;
        let port = crew.port(nsd.id).ok_or(ErrorKind::Internal)?;
        // After an error the metadata may have it all the same. If not, the tender takes it back.
        crew.manage(|manager| manager.add_nsd(nsd.id, nsd.failure_group, port))
    }

    /// Deletes an NSD without another one in its place. Returns a sentence about it. When nothing
    /// is on it any more, it belongs to no file system ([`Node::tend_disks`]).
    pub(super) fn delete_disk(self: &Arc<Node>, fs: FsId, deletion: Deletion) -> Result<String> {
        let _alone = self.changing.lock();
        let cluster = self.newest_records()?;
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        let nsd = cluster.nsd(deletion.nsd).ok_or(ErrorKind::NotFound)?;
        self.check_copy_moves(&cluster, fs, nsd, None)?;
        self.bury_mounts(record, Vec::new())?;
        let crew = self.crew(fs)?;
        crew.manage(|manager| check_idle(&cluster, manager))?;
        crew.manage(|manager| manager.delete_nsd(deletion))
            .map_err(|error| error.context(nsd.name.clone()))?;
        self.begin_moving_copy(fs, nsd);
        Ok(format!(
            "{} is being deleted: what it holds gets places on the other disks. It is off \
             `strake disk list` when that is done",
            nsd.name
        ))
    }

    /// Refuses to take an NSD away whose copy of the metadata cannot be moved now. `coming` is an
    /// NSD that the file system gets before.
    fn check_copy_moves(
        &self,
        cluster: &Cluster,
        fs: FsId,
        nsd: &NsdRecord,
        coming: Option<NsdId>,
    ) -> Result<()> {
        if !is_place(cluster, fs, nsd.id) {
            return Ok(());
        }
        let attach = coming.map(|nsd| Change::AttachNsd { fs, nsd });
        let leave = Change::KeepNoMetadata { nsd: nsd.id };
        let changes: Vec<Change> = attach.into_iter().chain([leave]).collect();
        check_voters_stay(cluster, fs, &changes, &nsd.name)?;
        self.check_goes_on_without(fs, nsd.id)
    }

    /// [`Node::move_copy`], which is tried again later.
    fn begin_moving_copy(self: &Arc<Node>, fs: FsId, nsd: &NsdRecord) {
        if let Err(error) = self.move_copy(fs, nsd.id) {
            warn!(target: "node", "the copy of the metadata on {} moves later: {error}", nsd.name);
        }
    }

    /// Moves the copy of the metadata on an NSD that leaves, if it has one.
    ///
    /// # Errors
    /// The records', and those of the node with the next place.
    fn move_copy(self: &Arc<Node>, fs: FsId, nsd: NsdId) -> Result<()> {
        if !is_place(&self.cluster(), fs, nsd) {
            return Ok(());
        }
        let cluster = self.newest_records()?;
        if !is_place(&cluster, fs, nsd) {
            return Ok(());
        }
        let leave = Change::KeepNoMetadata { nsd };
        check_voters_stay(&cluster, fs, std::slice::from_ref(&leave), &format!("NSD {nsd}"))?;
        self.check_goes_on_without(fs, nsd)?;
        for (node, nsd) in new_places(&cluster, fs, std::slice::from_ref(&leave))? {
            self.ask::<()>(node, &NodeRequest::PrepareMetadata { fs, nsd })?;
        }
        info!(target: "node", "the copy of the metadata on NSD {nsd} moves");
        self.change_at(Some(cluster.revision), &leave)?;
        self.serve_file_systems();
        Ok(())
    }

    /// Gives a file system an NSD that is free, made empty before, and waits until it answers. It
    /// must have room for `used` bytes, which is what the fullest one holds: placement is even.
    fn bring(
        self: &Arc<Node>,
        crew: &Crew,
        fs: &FsRecord,
        nsd: &NsdRecord,
        cluster: &Cluster,
        used: u64,
    ) -> Result<()> {
        let attach = Change::AttachNsd { fs: fs.id, nsd: nsd.id };
        let nsds = vec![nsd.id];
        let metadata = new_places(cluster, fs.id, std::slice::from_ref(&attach))?
            .contains(&(nsd.node, nsd.id))
            .then_some(NewReplicas { fs: fs.id, nsds, voters: Vec::new() });
        let format = NodeRequest::FormatNsds { nsds: vec![nsd.clone()], metadata };
        self.ask::<()>(nsd.node, &format)?;
        let after = self.change_at(Some(cluster.revision), &attach)?;
        self.serve_file_systems();
        let record = after.fs(fs.id).ok_or(ErrorKind::Internal)?;
        crew.learn_places(self.places(&after, record));
        let status = self.wait_for_answer(crew, nsd);
        let fits = status.and_then(|status| match status.total < used {
            true => invalid(format!(
                "NSD {} has room for {}, and the fullest one holds {}",
                nsd.name,
                ByteCount(status.total),
                ByteCount(used)
            )),
            false => Ok(()),
        });
        fits.inspect_err(|_| self.take_back(crew, fs.id, nsd.id))
    }

    fn wait_for_answer(&self, crew: &Crew, nsd: &NsdRecord) -> Result<NsdStatusReply> {
        let _wait = self.observe.waiters.enter("new disk of a file system", nsd.name.clone());
        let end = RealClock.monotonic() + START_MAX;
        loop {
            match status(crew, nsd.id) {
                Ok(status) => return Ok(status),
                Err(_) if RealClock.monotonic() < end => RealClock.sleep(START_STEP),
                Err(error) => return Err(error.context(format!("NSD {}", nsd.name))),
            }
        }
    }

    /// Takes an NSD out of a file system that does not use it.
    fn take_back(self: &Arc<Node>, crew: &Crew, fs: FsId, nsd: NsdId) {
        match self.change(&Change::DetachNsd { fs, nsd }) {
            Ok(after) => {
                let record = after.fs(fs);
                crew.learn_places(record.map_or_else(Vec::new, |fs| self.places(&after, fs)));
                self.serve_file_systems();
            }
            // The tender does it.
            Err(error) => warn!(target: "node", "NSD {nsd} stays with its file system: {error}"),
        }
    }

    /// Goes on with what was begun before a change of the serving node, and takes NSDs out of the
    /// records that the file system does not use any more.
    ///
    /// # Errors
    /// The metadata's, and those of the records. It is tried again.
    pub(super) fn tend_disks(self: &Arc<Node>, fs: FsId) -> Result<()> {
        let _alone = self.changing.lock();
        let Ok(crew) = self.crew(fs) else { return Ok(()) };
        if !crew.is_at_work() {
            return Ok(());
        }
        let pending = crew.manage(Manager::replacement)?;
        if let Some((replacement, false)) = pending
            && status(&crew, replacement.new).is_ok()
            && let Some(port) = crew.port(replacement.new)
        {
            info!(target: "node", "the replacement of NSD {} goes on", replacement.old);
            crew.manage(|manager| manager.replace_nsd(replacement, port))?;
        }
        if let Some((deletion, false)) = crew.manage(Manager::deletion)? {
            info!(target: "node", "the deletion of NSD {} goes on", deletion.nsd);
            crew.manage(|manager| manager.delete_nsd(deletion))?;
        }
        crew.manage(Manager::resume_rebalance)?;
        let coming = pending.map(|(replacement, _)| replacement.new);
        let held = crew.manage(|manager| Ok(manager.nsds()))?;
        let deletion = crew.manage(Manager::deletion)?.map(|(deletion, _)| deletion.nsd);
        for leaving in pending.map(|(replacement, _)| replacement.old).into_iter().chain(deletion) {
            self.move_copy(fs, leaving)?;
        }
        let cluster = self.cluster();
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        let is_used =
            |nsd: &NsdId| held.iter().any(|view| view.nsd == *nsd) || coming == Some(*nsd);
        let unused: Vec<NsdId> = record.nsds.iter().copied().filter(|nsd| !is_used(nsd)).collect();
        for nsd in unused {
            self.move_copy(fs, nsd)?;
            if self.keeps_metadata(fs, nsd) {
                continue;
            }
            info!(target: "node", "NSD {nsd} belongs to {} no more", record.name);
            self.take_back(&crew, fs, nsd);
        }
        Ok(())
    }

    /// Has a member learn which disks of this node the file system has now.
    pub(super) fn follow_list(&self, fs: &FsRecord, config: NodeConfig, member: &mut Member) {
        if *member.config() == config {
            return;
        }
        match self.prepare(fs, &config) {
            Ok(_) => member.follow(config),
            Err(error) => warn!(target: "node", "the disks of {}: {error}", fs.name),
        }
    }
}

/// What an NSD says of itself.
fn status(crew: &Crew, nsd: NsdId) -> Result<NsdStatusReply> {
    let port: Arc<dyn NsdPort> = crew.port(nsd).ok_or(ErrorKind::Unreachable)?;
    let context = NsdContext { client: crew.client(), ..NsdContext::default() };
    match port.call(context, &NsdRequest::Status, &[], &mut [])? {
        NsdReply::Status(status) if status.nsd == nsd => Ok(status),
        _ => Err(Error::new(ErrorKind::Invalid, format!("that is not NSD {nsd}"))),
    }
}

/// The NSD of that name, which belongs to no file system.
fn free<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a NsdRecord> {
    let found = cluster.nsds.iter().find(|nsd| nsd.name == name);
    if let Some(fs) = found.and_then(|nsd| nsd.fs).and_then(|fs| cluster.fs(fs)) {
        return invalid(format!("NSD {name} belongs to file system {}", fs.name));
    }
    found.map_or_else(
        || {
            let free = cluster.nsds.iter().filter(|nsd| nsd.fs.is_none());
            let names: Vec<&str> = free.map(|nsd| nsd.name.as_str()).collect();
            match names.is_empty() {
                true => invalid(format!(
                    "no NSD '{name}', and no free one: `strake nsd create -F FILE` makes some"
                )),
                false => invalid(format!("no NSD '{name}'; free are {}", names.join(", "))),
            }
        },
        Ok,
    )
}

/// A stripe's strips lie in different failure groups. So the new NSD must be in the old one's.
fn check_group(old: &NsdRecord, new: &NsdRecord) -> Result<()> {
    if old.failure_group == new.failure_group {
        return Ok(());
    }
    invalid(format!(
        "NSD {} is in failure group {}, and {} in {}: a disk is replaced by one of the same group. \
         Make an NSD with failureGroup={} (`strake nsd create -F FILE`)",
        new.name, new.failure_group, old.name, old.failure_group, old.failure_group
    ))
}

/// The places of the metadata of a file system that come with these changes.
fn new_places(cluster: &Cluster, fs: FsId, changes: &[Change]) -> Result<Vec<(NodeNumber, NsdId)>> {
    let places = |cluster: &Cluster| {
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        Ok::<_, Error>(cluster.metadata_places(&record.nsds))
    };
    let before = places(cluster)?;
    let mut after = cluster.clone();
    changes.iter().try_for_each(|change| after.apply(change))?;
    Ok(places(&after)?.into_iter().filter(|place| !before.contains(place)).collect())
}

/// Whether a copy of the metadata is to be on an NSD.
fn is_place(cluster: &Cluster, fs: FsId, nsd: NsdId) -> bool {
    let places = cluster.fs(fs).map(|fs| cluster.metadata_places(&fs.nsds)).unwrap_or_default();
    places.iter().any(|(_, place)| *place == nsd)
}

/// Refuses if fewer nodes than before would vote on the metadata with these changes.
fn check_voters_stay(cluster: &Cluster, fs: FsId, changes: &[Change], leaving: &str) -> Result<()> {
    let count = |cluster: &Cluster| {
        let places = cluster.fs(fs).map(|fs| cluster.metadata_places(&fs.nsds).len());
        voters_of(places.unwrap_or_default())
    };
    let mut after = cluster.clone();
    changes.iter().try_for_each(|change| after.apply(change))?;
    let (before, after) = (count(cluster), count(&after));
    if after >= before {
        return Ok(());
    }
    invalid(format!(
        "{leaving} holds a copy of the metadata, and no other NSD can take it: {after} of {before} \
         would vote on it. First give the file system another NSD with usage=dataAndMetadata, on \
         the same node or on another one with the role quorum (`strake disk add`)"
    ))
}

/// Refuses while a disk is being replaced or deleted.
fn check_idle(cluster: &Cluster, manager: &Manager) -> Result<()> {
    let name = |nsd: NsdId| cluster.nsd(nsd).map_or_else(|| nsd.to_string(), |it| it.name.clone());
    let busy = |nsd: NsdId, what: &str| {
        let detail = format!("{} is being {what}: wait until that is done", name(nsd));
        Err(Error::new(ErrorKind::Busy, detail))
    };
    if let Some((pending, _)) = manager.replacement()? {
        return busy(pending.old, "replaced");
    }
    if let Some((pending, _)) = manager.deletion()? {
        return busy(pending.nsd, "deleted");
    }
    Ok(())
}
