//! What nodes answer about the whole cluster.
//!
//! A node makes one change at a time. Its order is: look whether it may be made, have the nodes do
//! their part, have a majority of the quorum write the change, tell the nodes. After a crash in
//! between, the nodes may have done work that no record names; it is done anew, or undone, when the
//! change is tried again. Two nodes may make changes at once. One that was prepared for records
//! that have changed meanwhile is refused.

use super::messages::{
    FsWanted, Grant, LeaderRequest, MountAnswer, NodeRequest, NodeState, StripsChecked,
};
use super::peer::introduce;
use super::server::{Doing, Node, encode};
use crate::backend::member::Member;
use crate::cluster::{Change, Cluster, FsRecord, MountRecord, NodeNumber};
use crate::rebalance;
use crate::scrub;
use serde_json::Value;
use std::sync::Arc;
use strake_crew::crew::LEASE_LIMITS;
use strake_crew::{Crew, Lead, Locate, NsdPlace, NsdWays, Place};
use strake_env::{Clock, RealClock, Stop};
use strake_manager::{Deletion, Manager};
use strake_net::{Introduction, SessionEnv, SessionLimits};
use strake_proto::{ByteCount, Error, ErrorKind, FsId, NsdId, Result, Role};
use tracing::info;

/// The page pool of a crew.
const PAGE_POOL: ByteCount = ByteCount(64 << 20);

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Node {
    /// Answers a request about the cluster.
    pub(super) fn answer_leader(self: &Arc<Node>, request: &LeaderRequest) -> Result<Value> {
        match request {
            LeaderRequest::Records { newer_than } => {
                let newest = self.newest_records()?;
                encode(&Some(newest).filter(|cluster| cluster.revision > *newer_than))
            }
            LeaderRequest::Replica => encode(&self.leading_replica()?),
            LeaderRequest::AddNodes { names, roles } => encode(&self.add_nodes(names, *roles)?),
            LeaderRequest::Join { node, address } => {
                let _alone = self.changing.lock();
                let (name, address) = (node.clone(), *address);
                let cluster = self.change(&Change::Join { name, address })?;
                info!(target: "node", "{node} has joined at {address}");
                self.hurry();
                encode(&cluster)
            }
            LeaderRequest::DeleteNode { node } => encode(&self.delete_node(node)?),
            LeaderRequest::AskMounts { fs, request } => encode(&self.ask_mounts(fs, request)?),
            LeaderRequest::Programs => encode(&self.programs()?),
            LeaderRequest::Upgrade => encode(&self.upgrade()?),
            &LeaderRequest::ServeNsd { nsd, node, after } => {
                encode(&self.serve_nsd(nsd, node, after)?)
            }
            LeaderRequest::NodeStates => encode(&self.node_states()),
            LeaderRequest::CreateNsds { nsds, force } => encode(&self.create_nsds(nsds, *force)?),
            LeaderRequest::CreateFs(wanted) => encode(&self.create_file_system(wanted)?),
            LeaderRequest::RecoverFs { fs, agreed } => {
                encode(&self.recover_file_system(fs, *agreed)?)
            }
            LeaderRequest::DeleteFs { fs } => encode(&self.delete_file_system(fs)?),
            LeaderRequest::DeleteNsds { nsds } => encode(&self.delete_nsds(nsds)?),
            LeaderRequest::MountFs { fs, nodes, settings } => {
                encode(&self.mount_on(fs, nodes, settings)?)
            }
            LeaderRequest::MayMount { fs, node } => encode(&self.may_mount(fs, *node)?),
            LeaderRequest::ForgetMount { fs } => encode(&self.forget_lost_mounts(fs)?),
            LeaderRequest::UnmountFs { fs, nodes, force } => {
                encode(&self.unmount_on(fs, nodes, *force)?)
            }
            LeaderRequest::OpenMount { fs, node, after, understands } => {
                self.check_program(*understands)?;
                encode(&self.open_mount(fs, *node, *after)?)
            }
            LeaderRequest::CloseMount { fs, mount, flushed } => {
                encode(&self.close_mount(*fs, *mount, *flushed)?)
            }
            LeaderRequest::CheckStrips { fs, number: 0 } => {
                encode(&self.check_strips(*fs, &Stop::default())?)
            }
            LeaderRequest::CheckStrips { fs, number } => {
                encode(&self.stops.run(*number, |stop| self.check_strips(*fs, stop))?)
            }
            LeaderRequest::EndCheckStrips { number, .. } => encode(&self.stops.end(*number)),
            LeaderRequest::Tokens { fs } => encode(&self.tokens(*fs)?),
            LeaderRequest::Places { fs } => {
                let cluster = self.cluster();
                encode(&self.places(&cluster, cluster.fs(*fs).ok_or(ErrorKind::NotFound)?))
            }
            LeaderRequest::Holders { fs } => encode(&self.metadata_holders(*fs)),
            disks => self.answer_about_disks(disks),
        }
    }

    /// Answers a request about the disks of a file system in use.
    fn answer_about_disks(self: &Arc<Node>, request: &LeaderRequest) -> Result<Value> {
        match request {
            LeaderRequest::Scrub { fs, order } => {
                encode(&self.at_work(*fs)?.manage(|manager| scrub::obey(manager, *order))?)
            }
            &LeaderRequest::SuspendNsd { fs, nsd, suspended } => {
                encode(&self.at_work(fs)?.manage(|manager| manager.set_suspended(nsd, suspended))?)
            }
            &LeaderRequest::ReplaceNsd { fs, old, ref new, rate } => {
                encode(&self.replace_nsd(fs, old, new, rate)?)
            }
            &LeaderRequest::DeleteDisk { fs, nsd, rate } => {
                encode(&self.delete_disk(fs, Deletion { nsd, rate })?)
            }
            LeaderRequest::Rebalance { fs, order } => {
                encode(&self.at_work(*fs)?.manage(|manager| rebalance::obey(manager, *order))?)
            }
            LeaderRequest::AddDisks { fs, nsds } => encode(&self.add_disks(*fs, nsds)?),
            _ => unreachable!("invariant: all others are answered before"),
        }
    }

    /// The NSDs with the metadata of a file system.
    fn metadata_holders(&self, fs: FsId) -> Vec<NsdId> {
        let cluster = self.cluster();
        let nsds = cluster.fs(fs).map(|fs| fs.nsds.clone()).unwrap_or_default();
        cluster.metadata_places(&nsds).into_iter().map(|(_, nsd)| nsd).collect()
    }

    pub(super) fn node_states(self: &Arc<Node>) -> Vec<NodeState> {
        let cluster = self.cluster();
        let ask = |node: NodeNumber, name: &str, is_there: bool| {
            let silent = |state: &str, fault: Option<Error>| NodeState {
                node: name.to_owned(),
                state: state.to_owned(),
                pid: None,
                version: None,
                mounts: Vec::new(),
                faults: fault.iter().map(Error::to_string).collect(),
                unusable: Vec::new(),
                replica: None,
                metadata: Vec::new(),
            };
            if !is_there {
                return silent("invited", None);
            }
            let state = self.ask(node, &NodeRequest::State);
            state.unwrap_or_else(|error| silent("down", Some(error)))
        };
        cluster.nodes.iter().map(|node| ask(node.id, &node.name, node.address.is_some())).collect()
    }

    /// The nodes that are meant: the named ones, or all clients that have joined.
    fn clients(&self, names: &[String]) -> Result<Vec<(NodeNumber, String)>> {
        let cluster = self.cluster();
        if names.is_empty() {
            let all = cluster
                .nodes
                .iter()
                .filter(|node| node.roles.has(Role::Client) && node.address.is_some());
            return Ok(all.map(|node| (node.id, node.name.clone())).collect());
        }
        let found = names.iter().map(|name| cluster.node_named(name));
        found.map(|node| node.map(|node| (node.id, node.name.clone()))).collect()
    }

    fn mount_on(
        self: &Arc<Node>,
        fs: &str,
        nodes: &[String],
        settings: &[String],
    ) -> Result<Vec<MountAnswer>> {
        let mut known = crate::settings::Settings::default();
        settings.iter().try_for_each(|text| known.set(text))?;
        let record = self.cluster().fs_named(fs)?.clone();
        let nodes = self.clients(nodes)?;
        let mut answers = Vec::new();
        for (id, node) in nodes {
            let (fs, settings, options) = (record.clone(), settings.to_vec(), String::new());
            let answer = self.may_mount(&record.name, id).and_then(|()| {
                self.ask::<String>(id, &NodeRequest::Mount { fs, settings, options })
            });
            let done = answer.is_ok();
            let message = answer.unwrap_or_else(|error| error.to_string());
            answers.push(MountAnswer { node, done, message });
        }
        Ok(answers)
    }

    /// Takes a user's word that nodes that have the file system mounted and do not answer are off.
    fn forget_lost_mounts(self: &Arc<Node>, fs: &str) -> Result<()> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let record = cluster.fs_named(fs)?;
        let is_silent = |node| self.ask::<NodeState>(node, &NodeRequest::State).is_err();
        let lost = record.mounts.iter().filter(|mount| is_silent(mount.node)).copied().collect();
        self.bury_mounts(record, lost)
    }

    fn unmount_on(
        self: &Arc<Node>,
        fs: &str,
        nodes: &[String],
        force: bool,
    ) -> Result<Vec<MountAnswer>> {
        let record = self.cluster().fs_named(fs)?.clone();
        let cluster = self.cluster();
        let nodes = match (nodes.is_empty(), record.mounts.is_empty()) {
            (true, true) => return invalid(format!("{fs} is not mounted")),
            (true, false) => {
                let named = |mount: &MountRecord| (mount.node, cluster.node_name(mount.node));
                record.mounts.iter().map(named).collect()
            }
            (false, _) => self.clients(nodes)?,
        };
        let mut answers = Vec::new();
        for (id, node) in nodes {
            let fs = record.name.clone();
            let mut answer = self.ask::<String>(id, &NodeRequest::Unmount { fs, force });
            let is_silent = |error: &Error| error.kind() == ErrorKind::Unreachable;
            if force && answer.as_ref().is_err_and(is_silent) {
                self.forget_lost_mounts(&record.name)?;
                answer = Ok(format!("{node} does not answer: its mount counts as gone"));
            }
            let done = answer.is_ok();
            let message = answer.unwrap_or_else(|error| error.to_string());
            answers.push(MountAnswer { node, done, message });
        }
        Ok(answers)
    }

    /// Refuses a mount that this node cannot have. No mount point was touched yet.
    fn may_mount(&self, fs: &str, node: NodeNumber) -> Result<()> {
        let cluster = self.cluster();
        cluster.fs_named(fs)?;
        if cluster.node(node).is_some_and(|node| node.roles.has(Role::Client)) {
            return Ok(());
        }
        invalid(format!("{} lacks the role client: it mounts nothing", cluster.node_name(node)))
    }

    /// What the mounts of a file system share.
    pub(super) fn crew(&self, fs: FsId) -> Result<Arc<Crew>> {
        let served = self.served.lock();
        let crew = served.get(&fs).and_then(Member::crew);
        crew.ok_or_else(|| {
            let detail = format!(
                "{} does not serve the metadata of file system {fs}: `strake node state` says why",
                self.file.node
            );
            Error::new(ErrorKind::Unreachable, detail)
        })
    }

    /// Where the NSDs of a file system are.
    pub(super) fn places(&self, cluster: &Cluster, fs: &FsRecord) -> Vec<NsdPlace> {
        let place = |id: &NsdId| Some(NsdPlace { nsd: *id, place: cluster.place_of_nsd(*id)? });
        fs.nsds.iter().filter_map(place).collect()
    }

    /// What this node needs to lead a file system.
    pub(super) fn lead(&self, cluster: &Cluster, fs: &FsRecord) -> Result<Lead> {
        let env = SessionEnv {
            // Each session gets that of its node.
            introduction: Introduction::node(&self.own, &self.file.node.parse()?),
            clock: RealClock::shared(),
            waits: Arc::clone(&self.observe) as _,
            process: None,
            links: Some(Arc::clone(&self.observe.links)),
        };
        let introduce = introduce(&self.own);
        let of_locate = Arc::clone(&self.cluster);
        let locate: Locate = Arc::new(move |nsd| of_locate.lock().place_of_nsd(nsd));
        let ways = |limits| {
            let (locate, places) = (Arc::clone(&locate), self.places(cluster, fs));
            NsdWays::new(&introduce, locate, places, env.clone(), limits)
        };
        Ok(Lead {
            mounts: fs.mounts.iter().map(|mount| mount.client()).collect(),
            all: fs.nsds.clone(),
            nsds: ways(SessionLimits::NSD),
            leases: ways(LEASE_LIMITS),
            bell: Arc::clone(&self.ended),
            page_pool: PAGE_POOL,
            since: RealClock.monotonic(),
            leads: Arc::new(|| true),
        })
    }

    /// Has the manager of a file system at work, puts right what mounts left that are gone, and
    /// notes that they are. The caller holds `changing`.
    pub(super) fn bury_mounts(
        self: &Arc<Node>,
        fs: &FsRecord,
        gone: Vec<MountRecord>,
    ) -> Result<()> {
        let cluster = self.cluster();
        let clients = gone.iter().map(|mount| mount.client()).collect();
        self.crew(fs.id)?.work(&clients)?;
        for mount in gone {
            let name = cluster.node_name(mount.node);
            info!(target: "node", "the mount of {} on {name} is gone", fs.name);
            self.change(&Change::Unmount { fs: fs.id, node: mount.node })?;
        }
        Ok(())
    }

    /// Has the manager at work for mounts that lived through a restart of this process, and buries
    /// those that are dead.
    pub(super) fn work_for_mounts(self: &Arc<Node>, fs: FsId) {
        let crew = self.crew(fs);
        if let Ok(crew) = &crew {
            crew.leave_out_silent();
        }
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let Some(fs) = cluster.fs(fs) else { return };
        let begun = crew.and_then(|crew| {
            let of_fs = fs.mounts.iter().map(|mount| mount.client()).collect();
            crew.attend(&of_fs, &|dead| {
                let is_dead = |mount: &&MountRecord| dead.contains(&mount.client());
                self.bury_mounts(fs, fs.mounts.iter().filter(is_dead).copied().collect())
            })
        });
        let fault = begun.err().map(|error| format!("{}: mounts wait: {error}", fs.name));
        self.set_fault((fs.id, Doing::Mounts), fault);
    }

    fn check_strips(self: &Arc<Node>, fs: FsId, stop: &Stop) -> Result<StripsChecked> {
        let check = |manager: &Manager| manager.check_strips_while(&|_| stop.go_on());
        Ok(self.at_work(fs)?.manage(check)?.into())
    }

    /// What the mounts of a file system share. A manager that has yet to begin after a restart of
    /// this process begins now.
    fn at_work(self: &Arc<Node>, fs: FsId) -> Result<Arc<Crew>> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        self.bury_mounts(record, Vec::new())?;
        self.crew(fs)
    }

    /// Grants a mount, in the place of the one of life `after`.
    fn open_mount(
        self: &Arc<Node>,
        fs: &str,
        node: NodeNumber,
        after: Option<u64>,
    ) -> Result<Grant> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let record = cluster.fs_named(fs)?;
        record.check_place(node, after)?;
        let crew = self.crew(record.id)?;
        // The node that asks has the mount's lock now, so its mount of before is gone. Other nodes
        // look at their own locks.
        let is_gone = |mount: &&MountRecord| mount.node == node;
        let gone = record.mounts.iter().filter(is_gone).copied().collect();
        self.bury_mounts(record, gone)?;
        let cluster = self.change(&Change::Mount { fs: record.id, node })?;
        let record = cluster.fs(record.id).ok_or(ErrorKind::Internal)?.clone();
        let mount = record.mount_on(node).ok_or(ErrorKind::Internal)?;
        crew.admit(mount.client())?;
        let nsds = self.places(&cluster, &record);
        let leader = Place { node: self.file.node.parse()?, address: self.file.address };
        Ok(Grant { fs: record, mount, leader, nsds })
    }

    /// Notes that a mount has ended. What it left is put right unless it `flushed` everything.
    pub(super) fn close_mount(
        self: &Arc<Node>,
        fs: FsId,
        mount: MountRecord,
        flushed: bool,
    ) -> Result<()> {
        let _alone = self.changing.lock();
        let cluster = self.cluster();
        let Some(record) = cluster.fs(fs) else { return Ok(()) };
        if !record.mounts.contains(&mount) {
            return Ok(());
        }
        if !flushed || !self.crew(fs)?.closed(mount.client())? {
            return self.bury_mounts(record, vec![mount]);
        }
        self.change(&Change::Unmount { fs, node: mount.node }).map(drop)
    }

    /// What the user wants of a new file system, checked by itself.
    pub(super) fn check_wanted(wanted: &FsWanted) -> Result<()> {
        if !wanted.mount.is_absolute() {
            return invalid(format!("--mount {}: an absolute path", wanted.mount.display()));
        }
        Ok(())
    }
}
