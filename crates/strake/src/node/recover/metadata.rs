//! The metadata of file systems that a recovery finds without a majority (R31, decision 0078): with
//! which copy each of them goes on, and what stands against it.
//!
//! A copy counts if its replica runs on a node that answers, or if it lies whole on this node. The
//! copy of this node goes on, unless another one has more: then the recovery is refused here, as it
//! is for the records. If this node has no copy that can be used, one on a node that answers goes
//! on. Its node follows when it hears of the new records.
//!
//! Disks may be lost and their nodes not. Then the records have their majority, and
//! `strake fs recover` does the same for one file system ([`while_records_agree`]).

use super::super::dir::NodeDir;
use super::super::messages::{ACTIVE, MetadataState, NodeState};
use super::super::metadata::replica_on;
use super::{State, Word, invalid};
use crate::cluster::{Cluster, FsRecord, NodeNumber, NsdRecord};
use crate::data_dir::NsdConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use strake_crew::metadata::{KnownCopy, identity, look_at};
use strake_env::RealClock;
use strake_env::disk::file::FileDisk;
use strake_proto::{Error, ErrorKind, FsId, NsdId, Result, Timestamp};
use strake_store::Container;

/// A file system whose metadata has no majority without the nodes that are silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LostMajority {
    /// The file system.
    pub(crate) fs: FsId,
    /// Its name.
    pub(crate) name: String,
    /// The nodes that had copies.
    pub(crate) nodes: Vec<String>,
    /// The NSDs of it that are lost, with their names.
    pub(crate) lost_nsds: Vec<(NsdId, String)>,
    /// The copy that it goes on with. The error says why none can be used.
    pub(crate) goes_on: std::result::Result<GoesOn, String>,
}

/// A copy that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GoesOn {
    /// The node that has it.
    pub(crate) node: String,
    /// The NSD that it is on.
    pub(crate) nsd: (NsdId, String),
    /// The term and the place of its last entry.
    pub(crate) last: (u64, u64),
    /// When the last change was made that it has, if that is known.
    pub(crate) changed: Option<Timestamp>,
}

/// Looks at the copy of a file system's metadata on an NSD of this node.
pub(super) type Look<'a> = dyn Fn(&FsRecord, &NsdRecord) -> Result<KnownCopy> + 'a;

/// Looks at copies below a node's directory. Its server process is down.
pub(super) fn look(
    dir: &NodeDir,
    records: &Cluster,
    fs: &FsRecord,
    nsd: &NsdRecord,
) -> Result<KnownCopy> {
    let of_fs = dir.fs_dir(&fs.name)?;
    std::fs::create_dir_all(of_fs.root())?;
    let _lock = of_fs.lock_disks(&RealClock)?;
    let place = NsdConfig {
        id: nsd.id.0,
        name: nsd.name.clone(),
        path: dir.device(nsd),
        failure_group: nsd.failure_group,
        shared: None,
    };
    let path = of_fs.container_path(&place);
    let disk = FileDisk::open(&path).map_err(|error| Error::from(error).context(path.display()))?;
    let container = Container::open(Arc::new(disk))?;
    let superblock = container.superblock();
    if (superblock.cluster, superblock.nsd) != (records.id, nsd.id) {
        return Err(Error::new(ErrorKind::Invalid, format!("{} is another disk", path.display())));
    }
    let log = records.metadata_log(fs.id);
    look_at(&container, identity(records.id, fs.id, log, replica_on(nsd.id)))
}

/// The file systems whose metadata has no majority, with the copies that go on.
///
/// # Errors
/// `Invalid` if another node's copy has more than that of the node `own`.
pub(super) fn without_majority(
    records: &Cluster,
    own: NodeNumber,
    words: &[Word],
    look: &Look<'_>,
) -> Result<Vec<LostMajority>> {
    let mut found = Vec::new();
    for fs in &records.file_systems {
        found.extend(of_file_system(records, fs, own, words, look)?);
    }
    Ok(found)
}

fn of_file_system(
    records: &Cluster,
    fs: &FsRecord,
    own: NodeNumber,
    words: &[Word],
    look: &Look<'_>,
) -> Result<Option<LostMajority>> {
    let places = records.metadata_places(&fs.nsds);
    let mine = places.iter().find(|(node, _)| *node == own).and_then(|(_, nsd)| records.nsd(*nsd));
    let own_copy = mine.map(|nsd| (nsd, look(fs, nsd)));
    let others: Vec<GoesOn> = places
        .iter()
        .filter_map(|(node, nsd)| answering(records, fs, said(records, words, *node)?, *nsd))
        .collect();
    let mut there: BTreeSet<NsdId> = others.iter().map(|copy| copy.nsd.0).collect();
    there.extend(own_copy.iter().filter(|(_, copy)| copy.is_ok()).map(|(nsd, _)| nsd.id));
    let has_majority = match &own_copy {
        Some((_, Ok(copy))) => {
            copy.membership.has_quorum(|replica| there.contains(&NsdId(replica.0)))
        }
        _ => there.len() > places.len() / 2,
    };
    if has_majority {
        return Ok(None);
    }
    let newest = others.into_iter().max_by_key(|copy| copy.last);
    let goes_on = match own_copy {
        Some((nsd, Ok(copy))) => {
            let last = (copy.last.term.0, copy.last.position.0);
            refuse_if_newer(records, fs, own, last, newest.as_ref())?;
            let (nsd, node) = ((nsd.id, nsd.name.clone()), records.node_name(own));
            Ok(GoesOn { node, nsd, last, changed: copy.changed })
        }
        Some((nsd, Err(fault))) => {
            newest.ok_or_else(|| format!("the copy on NSD {} cannot be used: {fault}", nsd.name))
        }
        None => newest.ok_or_else(|| format!("{} has no copy", records.node_name(own))),
    };
    let silent = |nsd: &&NsdRecord| {
        let name = records.node_name(nsd.node);
        nsd.node != own && words.iter().any(|word| word.0 == name && word.1.is_none())
    };
    let nsds = fs.nsds.iter().filter_map(|nsd| records.nsd(*nsd));
    Ok(Some(LostMajority {
        fs: fs.id,
        name: fs.name.clone(),
        nodes: places.iter().map(|(node, _)| records.node_name(*node)).collect(),
        lost_nsds: nsds.filter(silent).map(|nsd| (nsd.id, nsd.name.clone())).collect(),
        goes_on,
    }))
}

/// The answer of another node. `None` if it is silent.
fn said<'a>(records: &Cluster, words: &'a [Word], node: NodeNumber) -> Option<&'a NodeState> {
    let name = records.node_name(node);
    let (_, state) = words.iter().find(|word| word.0 == name)?;
    state.as_ref().map(|State { node, .. }| node)
}

/// The copy on a node that answers, if its replica runs there and has what it needs.
fn answering(
    records: &Cluster,
    fs: &FsRecord,
    NodeState { node, metadata, .. }: &NodeState,
    nsd: NsdId,
) -> Option<GoesOn> {
    let node = node.clone();
    let of_fs = |it: &&MetadataState| it.fs == fs.name;
    let replica = &metadata.iter().find(of_fs)?.replica;
    // A replica that has got nothing yet has no entry.
    if replica.role == "ended" || replica.role == "lacking" || replica.last == 0 {
        return None;
    }
    let (nsd, last) = (records.nsd(nsd)?, (replica.last_term, replica.last));
    Some(GoesOn { node, nsd: (nsd.id, nsd.name.clone()), last, changed: None })
}

/// Finds the copy with which a file system goes on whose metadata has no majority, while the
/// records have theirs. `states` has a word of each node.
///
/// # Errors
/// `Invalid` if it has a majority, or somebody serves it.
pub(in super::super) fn while_records_agree(
    records: &Cluster,
    fs: &FsRecord,
    states: &[NodeState],
) -> Result<LostMajority> {
    let serves = |state: &&NodeState| {
        let mut of_fs = state.metadata.iter().filter(|it| it.fs == fs.name);
        of_fs.any(|it| it.serves || it.replica.role == "leader")
    };
    if let Some(state) = states.iter().find(serves) {
        return invalid(format!(
            "{} serves {}, so a majority of its metadata is there: nothing is to be recovered",
            state.node, fs.name
        ));
    }
    let state_of = |node: NodeNumber| {
        let name = records.node_name(node);
        states.iter().find(|state| state.node == name)
    };
    let places = records.metadata_places(&fs.nsds);
    let copies: Vec<GoesOn> = places
        .iter()
        .filter_map(|(node, nsd)| answering(records, fs, state_of(*node)?, *nsd))
        .collect();
    if copies.len() > places.len() / 2 {
        let nodes: Vec<&str> = copies.iter().map(|copy| copy.node.as_str()).collect();
        return invalid(format!(
            "{} have copies of the metadata of {}, which is a majority: they agree by themselves. \
             `strake node state` says what they wait for",
            nodes.join(", "),
            fs.name
        ));
    }
    // A disk without a copy that counts may be one that works again later.
    let lacks_copy = |id: NsdId| {
        places.iter().any(|(_, nsd)| *nsd == id) && copies.iter().all(|copy| copy.nsd.0 != id)
    };
    let is_unusable = |nsd: &NsdRecord| {
        state_of(nsd.node)
            .is_none_or(|state| state.state != ACTIVE || state.unusable.contains(&nsd.id))
    };
    let nsds = fs.nsds.iter().filter_map(|nsd| records.nsd(*nsd));
    let lost = nsds.filter(|nsd| is_unusable(nsd) || lacks_copy(nsd.id));
    let lost_nsds = lost.map(|nsd| (nsd.id, nsd.name.clone())).collect();
    let newest = copies.into_iter().max_by_key(|copy| copy.last);
    Ok(LostMajority {
        fs: fs.id,
        name: fs.name.clone(),
        nodes: places.iter().map(|(node, _)| records.node_name(*node)).collect(),
        lost_nsds,
        goes_on: newest.ok_or_else(|| "no node that answers has a copy of it".to_owned()),
    })
}

fn refuse_if_newer(
    records: &Cluster,
    fs: &FsRecord,
    own: NodeNumber,
    last: (u64, u64),
    newest: Option<&GoesOn>,
) -> Result<()> {
    let Some(newer) = newest.filter(|copy| copy.last > last) else { return Ok(()) };
    invalid(format!(
        "{} has changes of {} that {} lacks (entry {} of term {}, here {} of term {}): stop its \
         server process, and recover there",
        newer.node,
        fs.name,
        records.node_name(own),
        newer.last.1,
        newer.last.0,
        last.1,
        last.0
    ))
}
