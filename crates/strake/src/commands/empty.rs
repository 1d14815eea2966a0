//! `strake node delete --empty`: the disks of a node leave their file systems one after the other,
//! and then the node leaves the cluster.
//!
//! The node that serves a file system does the work, and goes on with it if this command ends. The
//! command waits for each disk, and can be given again.

use super::node::NodeTarget;
use crate::cluster::{Change, Cluster, NsdRecord};
use crate::node::{LeaderRequest, voters_of};
use crate::output;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// How often the records are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// While one node after the other takes over, requests fail. That lasts so long at most.
const FAILING_MAX: Duration = Duration::from_secs(60);

/// Empties the disks of the node, and deletes them.
///
/// # Errors
/// Those of `strake node delete` beforehand; those of `strake disk delete`.
pub(super) fn empty(name: &str, rate: u64, target: &NodeTarget) -> Result<()> {
    let cluster = target.cluster()?;
    let node = cluster.node_named(name)?.id;
    // A reason to refuse the node in the end refuses it now.
    let mut without = cluster.clone();
    let own: Vec<NsdId> = cluster.nsds_of(node).map(|nsd| nsd.id).collect();
    without.nsds.retain(|nsd| nsd.node != node);
    for fs in &mut without.file_systems {
        fs.nsds.retain(|nsd| !own.contains(nsd));
    }
    without.apply(&Change::DeleteNode { node })?;
    for fs in &cluster.file_systems {
        let left = without.fs(fs.id).map(|fs| fs.nsds.as_slice()).unwrap_or_default();
        let [before, after] = [(&cluster, fs.nsds.as_slice()), (&without, left)]
            .map(|(cluster, nsds)| voters_of(cluster.metadata_places(nsds).len()));
        if after < before {
            let detail = format!(
                "{name} is not emptied: it has a copy of the metadata of {}, and {after} of \
                 {before} would be left that vote on it. First give {} an NSD with \
                 usage=dataAndMetadata on another node with the role quorum (`strake disk add`)",
                fs.name, fs.name
            );
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
    }
    while let Some(nsd) = in_use(&patient(|| target.cluster())?, name)? {
        leave(&nsd, rate, target)?;
    }
    let nsds: Vec<String> = target.cluster()?.nsds_of(node).map(|nsd| nsd.name.clone()).collect();
    if !nsds.is_empty() {
        target.ask_leader::<Vec<String>>(LeaderRequest::DeleteNsds { nsds })?;
    }
    Ok(())
}

/// A disk of the node that belongs to a file system. Those with metadata come last, so that a copy
/// does not move from disk to disk.
fn in_use(cluster: &Cluster, name: &str) -> Result<Option<NsdRecord>> {
    let node = cluster.node_named(name)?.id;
    let used = cluster.nsds_of(node).filter(|nsd| nsd.fs.is_some());
    let has_copy = |nsd: &&NsdRecord| {
        let fs = nsd.fs.and_then(|fs| cluster.fs(fs));
        fs.is_some_and(|fs| cluster.metadata_places(&fs.nsds).contains(&(node, nsd.id)))
    };
    Ok(used.min_by_key(has_copy).cloned())
}

/// Has a disk leave its file system, and waits until it has.
fn leave(nsd: &NsdRecord, rate: u64, target: &NodeTarget) -> Result<()> {
    let Some(fs) = nsd.fs else { return Ok(()) };
    let is_there = || -> Result<bool> {
        let cluster = patient(|| target.cluster())?;
        Ok(cluster.nsd(nsd.id).is_some_and(|it| it.fs.is_some()))
    };
    output::tell(&format!("{} is being emptied", nsd.name));
    loop {
        let ask =
            || target.ask_leader::<String>(LeaderRequest::DeleteDisk { fs, nsd: nsd.id, rate });
        match patient(ask) {
            Ok(_) => break,
            // It may be this disk, from an earlier command, or another one that is waited for.
            Err(error) if error.kind() == ErrorKind::Busy => RealClock.sleep(LOOK),
            Err(_) if !is_there()? => return Ok(()),
            Err(error) => return Err(error),
        }
        if !is_there()? {
            return Ok(());
        }
    }
    while is_there()? {
        RealClock.sleep(LOOK);
    }
    Ok(())
}

/// Asks again while no node answers.
fn patient<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let end = RealClock.monotonic() + FAILING_MAX;
    loop {
        match ask() {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut)
                    && RealClock.monotonic() < end =>
            {
                RealClock.sleep(LOOK);
            }
            asked => return asked,
        }
    }
}
