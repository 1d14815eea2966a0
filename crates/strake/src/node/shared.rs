//! NSDs that several nodes reach: when a node that reaches one has it served by itself.
//!
//! Each such NSD has a thread on each of its servers. The thread reads the marks of the servers on
//! the NSD (`strake_lease::reservation`), and asks the quorum to have the NSD served here
//! ([`Change::ServeNsd`]) when
//!
//! - the node that serves it has left it, and does not come back at once, as a restart does;
//! - its mark does not change any more: the node, or its way to the disk, is dead;
//! - it does not answer over the network: clients will not reach it either;
//! - this node comes before it in the list of servers, and has been well for a while.
//!
//! All this decides only when to ask. The NSD is safe by its reservation, no matter who asks.

use super::messages::{LeaderRequest, NodeRequest, Request};
use super::server::Node;
use crate::cluster::{Change, Cluster, NodeNumber, NsdRecord};
use crate::daemon::start_thread;
use crate::disks::Marks;
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::disk::file::FileDisk;
use strake_env::{Clock, RealClock};
use strake_lease::Mark;
use strake_proto::{Error, ErrorKind, NodeName, NsdId, Result};
use strake_store::Container;
use tracing::{info, warn};

/// How often a server looks at the marks on an NSD.
const LOOK: Duration = Duration::from_secs(1);
/// A node that has left an NSD gets that long to come back.
const LEFT_MAX: Duration = Duration::from_secs(4);
/// A mark that has not changed for so long is that of a node which is dead, or as good as dead.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// A node that answers nothing for so long is not reached by clients either.
const UNHEARD_MAX: Duration = Duration::from_secs(15);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The servers take turns: each gives those before it in the list that much longer.
const TURN: Duration = Duration::from_secs(3);
/// A server that comes first takes an NSD back when it has been there for so long. Each time that
/// it loses the NSD within the maximum doubles this.
const COME_BACK_MIN: Duration = Duration::from_secs(5);
const COME_BACK_MAX: Duration = Duration::from_secs(3600);

/// What a server sees of an NSD that another one serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The number under which it is served.
    number: u64,
    /// The place of the one that serves it.
    serving: usize,
    /// That one's mark.
    mark: Option<Mark>,
}

/// What one server knows of one NSD.
#[derive(Debug)]
struct StandBy {
    own: usize,
    last: Option<Seen>,
    /// Since when the mark is as it is.
    since: Duration,
    /// When the serving node answered last.
    heard: Duration,
    /// Since when it serves the NSD itself, if it does.
    served_since: Option<Duration>,
    /// Since when it is there and does not.
    away_since: Duration,
    come_back: Duration,
}

impl StandBy {
    fn new(own: usize, now: Duration) -> StandBy {
        let (last, served_since, come_back) = (None, None, COME_BACK_MIN);
        StandBy { own, last, since: now, heard: now, served_since, away_since: now, come_back }
    }

    /// This server serves the NSD now.
    fn serves(&mut self, now: Duration) {
        self.last = None;
        self.served_since.get_or_insert(now);
    }

    /// The NSD is served elsewhere, and the one that serves it may have answered. Returns why this
    /// server is to take it, if it is.
    fn look(&mut self, now: Duration, seen: Seen, answered: Option<bool>) -> Option<&'static str> {
        if let Some(since) = self.served_since.take() {
            let was_short = now.saturating_sub(since) < COME_BACK_MAX;
            self.come_back = if was_short { self.come_back * 2 } else { COME_BACK_MIN };
            self.come_back = self.come_back.min(COME_BACK_MAX);
            self.away_since = now;
        }
        if self.last.is_none_or(|last| (last.number, last.serving) != (seen.number, seen.serving)) {
            self.heard = now;
        }
        if self.last.replace(seen) != Some(seen) {
            self.since = now;
        }
        if answered == Some(true) {
            self.heard = now;
        }
        let before = self.own - usize::from(self.own > seen.serving);
        let turn = TURN * before as u32;
        let quiet = now.saturating_sub(self.since);
        let unheard = now.saturating_sub(self.heard);
        let has_left = seen.mark.is_some_and(|it| !it.is_active && it.number == seen.number);
        if has_left {
            return (quiet >= LEFT_MAX + turn).then_some("it has left the disk");
        }
        if quiet >= SILENT_MAX + turn {
            return Some("it writes nothing on the disk any more");
        }
        if unheard >= UNHEARD_MAX + turn {
            return Some("it does not answer");
        }
        let is_well = answered == Some(true) && now >= self.away_since + self.come_back;
        (self.own < seen.serving && is_well).then_some("this node comes first")
    }
}

impl Node {
    /// Looks after the NSDs that this node reaches beside others.
    pub(super) fn watch_shared(self: &Arc<Node>) {
        let cluster = self.cluster();
        for nsd in cluster.nsds.iter().filter(|nsd| nsd.fs.is_some()) {
            let shared = cluster.shared(nsd.id);
            let place = shared.and_then(|shared| shared.place_of(self.file.id));
            let Some(own) = place else { continue };
            if !self.standing_by.lock().insert(nsd.id) {
                continue;
            }
            let (node, id) = (Arc::downgrade(self), nsd.id);
            let stand_by = StandBy::new(own, RealClock.monotonic());
            if let Err(error) = start_thread("stand-by", move || stand_by_for(&node, id, stand_by))
            {
                warn!(target: "node", "nobody looks after NSD {}: {error}", nsd.name);
                self.standing_by.lock().remove(&nsd.id);
            }
        }
    }

    /// Looks at one NSD once.
    fn look_at_shared(
        self: &Arc<Node>,
        cluster: &Cluster,
        nsd: &NsdRecord,
        stand_by: &mut StandBy,
    ) -> Result<()> {
        let Some(shared) = cluster.shared(nsd.id) else { return Ok(()) };
        if nsd.node == self.file.id {
            stand_by.serves(RealClock.monotonic());
            return Ok(());
        }
        let serving = shared.place_of(nsd.node).ok_or(ErrorKind::Internal)?;
        let marks = self.marks_of(cluster, nsd)?.read()?;
        let unheard = RealClock.monotonic().saturating_sub(stand_by.heard);
        let is_due = unheard >= ASK_EVERY;
        let answered = is_due.then(|| self.ask::<serde_json::Value>(nsd.node, &NodeRequest::State));
        let answered = answered.map(|answer| answer.is_ok());
        let mark = marks.get(serving).copied().flatten();
        let seen = Seen { number: shared.number, serving, mark };
        let Some(why) = stand_by.look(RealClock.monotonic(), seen, answered) else {
            return Ok(());
        };
        let server = cluster.node_name(nsd.node);
        info!(target: "node", "NSD {} is to be served here and not by {server}: {why}", nsd.name);
        let (id, node, after) = (nsd.id, self.file.id, shared.number);
        self.have_served(id, node, after)
    }

    /// The marks on an NSD.
    fn marks_of(&self, cluster: &Cluster, nsd: &NsdRecord) -> Result<Marks> {
        let servers = cluster.server_names(nsd).into_iter().map(|name| name.parse());
        let servers = servers.collect::<std::result::Result<Vec<NodeName>, _>>()?;
        let path = self.data_dir().container_path(&self.nsd_config(cluster, nsd));
        Marks::open(&path, (cluster.id, nsd.id), servers)
    }

    /// Asks the quorum to have an NSD served by a node.
    fn have_served(self: &Arc<Node>, nsd: NsdId, node: NodeNumber, after: u64) -> Result<()> {
        let request = LeaderRequest::ServeNsd { nsd, node, after };
        let cluster: Cluster = match self.quorum().is_some() {
            true => self.serve_nsd(nsd, node, after)?,
            false => serde_json::from_value(self.ask_quorum(&Request::Leader(request))?)
                .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?,
        };
        self.take_records(&cluster)?;
        self.serve_file_systems();
        Ok(())
    }

    /// Answers [`LeaderRequest::ServeNsd`].
    ///
    /// # Errors
    /// `Busy` if another node serves it meanwhile; those of the records.
    pub(super) fn serve_nsd(
        self: &Arc<Node>,
        nsd: NsdId,
        node: NodeNumber,
        after: u64,
    ) -> Result<Cluster> {
        // Not under `changing`: the command that holds it may be waiting for this very disk. A
        // command that has prepared a change meanwhile is refused, and may be given again.
        self.change(&Change::ServeNsd { nsd, node, after })
    }

    /// Refuses unless every other server of an NSD that was just made finds it at its place.
    pub(super) fn check_seen(
        self: &Arc<Node>,
        nsd: &NsdRecord,
        others: &[NodeNumber],
    ) -> Result<()> {
        others.iter().try_for_each(|server| {
            self.ask::<()>(*server, &NodeRequest::SeesNsd { nsd: nsd.clone() }).map_err(|error| {
                let name = self.cluster().node_name(*server);
                error.context(format!("{name} is to be a server of {}", nsd.name))
            })
        })
    }

    /// Refuses unless this node finds an NSD at its place.
    ///
    /// # Errors
    /// `Invalid` if it does not; the message says what is there.
    pub(super) fn sees_nsd(&self, nsd: &NsdRecord) -> Result<()> {
        let cluster = self.cluster();
        let path = self.data_dir().container_path(&self.nsd_config(&cluster, nsd));
        let look = || -> Result<()> {
            let found = Container::peek(&FileDisk::open_shared(&path)?)?;
            match (found.cluster, found.nsd) == (cluster.id, nsd.id) {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Invalid, "that is another NSD")),
            }
        };
        look().map_err(|error| {
            let detail = format!(
                "{}: {error}: all servers of an NSD must find the same disk at the same path",
                path.display()
            );
            Error::new(ErrorKind::Invalid, detail)
        })
    }
}

/// Looks after one NSD until it is gone, or the node is.
fn stand_by_for(node: &Weak<Node>, id: NsdId, mut stand_by: StandBy) {
    let mut fault = None;
    while let Some(node) = node.upgrade() {
        let cluster = node.cluster();
        let nsd = cluster.nsd(id).filter(|nsd| nsd.fs.is_some() && cluster.shared(id).is_some());
        let Some(nsd) = nsd else {
            node.standing_by.lock().remove(&id);
            return;
        };
        let found =
            node.look_at_shared(&cluster, nsd, &mut stand_by).err().map(|error| error.to_string());
        if let Some(error) = &found
            && fault != found
        {
            warn!(target: "node", "NSD {}, which is served elsewhere: {error}", nsd.name);
        }
        fault = found;
        if node.ends_within(LOOK) {
            return;
        }
    }
}

#[cfg(test)]
#[path = "shared_test.rs"]
mod shared_test;
