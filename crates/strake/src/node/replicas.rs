//! What the replicas of all logs have in common: that of the cluster's records (`quorum.rs`) and
//! those of the file systems' metadata (`strake-crew/src/metadata.rs`).
//!
//! **Members.** Voters are odd in number, since an even one more would only be one more that must
//! not fail. So of two nodes one votes, and the other one receives the log (a *learner*); of four,
//! three vote. The leader brings the members in line with what is wanted ([`tend`]). A node that
//! joins is a learner until it has the log.

use super::messages::{MemberState, ReplicaState};
use crate::cluster::NodeNumber;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use strake_crew::{Introduce, Place, metadata};
use strake_env::sync::Mutex;
use strake_env::{Links, RealClock};
use strake_net::{Endpoint, ProvenPeer, ReplicaPort, ReplicaWay, SessionEnv, WaitNames};
use strake_proto::{Error, ErrorKind, FeatureLevel, FsId, Result};
use strake_replica::core::{ChangeRefusal, MemberStatus, RoleName};
use strake_replica::membership::{MEMBERS_MAX, Membership};
use strake_replica::replica::Failure;
use strake_replica::types::ReplicaId;
use strake_replica::{Replica, Transport};
use tracing::{info, warn};

/// More voters make each change wait for more disks.
const VOTERS_MAX: usize = 7;

/// Where the node is that has a replica, if one has it.
pub(crate) type Find = Arc<dyn Fn(ReplicaId) -> Option<Place> + Send + Sync>;

/// How a replica is. `node_of` says which node has a replica.
pub(crate) fn state(
    replica: &Replica,
    node_of: &dyn Fn(ReplicaId) -> Option<NodeNumber>,
) -> ReplicaState {
    let status = replica.status();
    let role = match (&status.ended, status.role) {
        (Some(_), _) => "ended",
        (_, RoleName::Leader) => "leader",
        (_, RoleName::Follower) => "follower",
        (_, RoleName::Candidate) => "candidate",
        (_, RoleName::Asking) => "asking",
        (_, RoleName::Learner) => "learner",
        (_, RoleName::Lacking) => "lacking",
    };
    let member = |member: &MemberStatus| {
        Some(MemberState {
            node: node_of(member.id)?,
            votes: member.is_voter,
            agrees: member.agrees.0,
            behind: member.lag,
            is_heard: member.is_heard,
        })
    };
    ReplicaState {
        role: role.to_owned(),
        leader: status.leader.and_then(node_of),
        term: status.term.0,
        last: status.last.position.0,
        last_term: status.last.term.0,
        applied: status.applied.0,
        members: status.members.iter().filter_map(member).collect(),
        level: FeatureLevel::of_log(status.level),
        fault: status.ended.map(|reason| reason.to_string()),
    }
}

/// If this replica leads: brings the members in line with those that are `wanted`. Returns whether
/// they have changed. `kept` is the beginning of a sentence for the log.
///
/// # Errors
/// If that does not go now. The caller tries again.
pub(crate) fn tend(
    replica: &Replica,
    own: ReplicaId,
    wanted: &BTreeSet<ReplicaId>,
    kept: &str,
    limit: Duration,
) -> std::result::Result<bool, Box<Failure>> {
    let status = replica.status();
    if status.role != RoleName::Leader {
        return Ok(false);
    }
    let is_near = |id: ReplicaId| {
        let mut members = status.members.iter();
        members.any(|member| member.id == id && member.is_heard && member.lag == 0)
    };
    let next = next_members(own, wanted, &status.membership, &is_near);
    let Some((voters, learners)) = next else { return Ok(false) };
    match replica.change(&voters, &learners, limit) {
        Ok(()) => {
            let shown = |ids: &BTreeSet<ReplicaId>| {
                let ids: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
                ids.join(", ")
            };
            let (voters, learners) = (shown(&voters), shown(&learners));
            info!(target: "node", "{kept} {voters}; learners: {learners}");
            Ok(true)
        }
        // It goes on by itself, or when the log has arrived.
        Err(Failure::NotChanged(ChangeRefusal::UnderWay | ChangeRefusal::Behind(_))) => Ok(false),
        Err(failure) => Err(Box::new(failure)),
    }
}

/// If this replica leads: raises the level of its log, if that is lower. It never falls.
///
/// # Errors
/// If that does not go now: a member does not understand it, or has not said.
pub(crate) fn raise(
    replica: &Replica,
    level: FeatureLevel,
    limit: Duration,
) -> std::result::Result<(), Failure> {
    if FeatureLevel::of_log(replica.status().level) >= level {
        return Ok(());
    }
    replica.raise_level(level.in_log(), limit)
}

/// The number of voters among `count` replicas: odd, and not above [`VOTERS_MAX`]; 0 of none.
pub(crate) fn voters_of(count: usize) -> usize {
    let count = count.min(VOTERS_MAX);
    count - usize::from(count > 0 && count.is_multiple_of(2))
}

/// The voters among replicas that have no log yet: the first ones.
pub(crate) fn first_voters(replicas: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
    replicas.iter().copied().take(voters_of(replicas.len())).collect()
}

/// Takes messages of other replicas for this one.
pub(crate) fn inbox(replica: &Arc<Replica>, find: Find) -> Arc<dyn ReplicaPort> {
    Arc::new(Inbox { replica: Arc::clone(replica), find })
}

/// Voters and learners.
type Members = (BTreeSet<ReplicaId>, BTreeSet<ReplicaId>);

/// The members to come: an odd number of voters, the others of the `wanted` as learners. `None` if
/// they are as they should be. Who votes goes on voting, and a learner may vote when it is near.
/// Until then a voter that is to leave stays, so that there are not fewer of them meanwhile.
pub(super) fn next_members(
    own: ReplicaId,
    wanted: &BTreeSet<ReplicaId>,
    now: &Membership,
    is_near: &dyn Fn(ReplicaId) -> bool,
) -> Option<Members> {
    if now.is_joint() {
        return None;
    }
    let votes = |id: ReplicaId| now.voters.contains(&id);
    let may_vote = |id: &ReplicaId| votes(*id) || (now.learners.contains(id) && is_near(*id));
    let mut able: Vec<ReplicaId> = wanted.iter().copied().filter(may_vote).collect();
    able.sort_by_key(|&id| (id != own, !votes(id), id));
    let missing = voters_of(wanted.len()).saturating_sub(able.len());
    let leaving = now.voters.iter().copied().filter(|id| !wanted.contains(id));
    able.extend(leaving.take(missing));
    able.truncate(voters_of(able.len()));
    let voters: BTreeSet<ReplicaId> = able.into_iter().collect();
    if voters.is_empty() {
        return None;
    }
    // Who votes no more leaves, and may learn with the next change.
    let rest = wanted.iter().copied().filter(|&id| !voters.contains(&id) && !votes(id));
    let learners: BTreeSet<ReplicaId> = rest.take(MEMBERS_MAX - voters.len()).collect();
    let is_so = voters == now.voters && learners == now.learners;
    (!is_so).then_some((voters, learners))
}

/// Hands in messages of other replicas, if the node that sent them has the replica that they name.
struct Inbox {
    replica: Arc<Replica>,
    find: Find,
}

impl ReplicaPort for Inbox {
    fn deliver(&self, peer: &ProvenPeer, message: &[u8]) -> Result<()> {
        let is_there = |id| (self.find)(id).is_some_and(|place| peer.node() == Some(&place.node));
        self.replica
            .deliver(is_there, message)
            .map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))
    }
}

/// The ways to other replicas.
pub(crate) struct Ways {
    /// The file system whose metadata it is; `None` for the records.
    of: Option<FsId>,
    find: Find,
    introduce: Introduce,
    waits: Arc<dyn WaitNames>,
    links: Option<Arc<Links>>,
    open: Mutex<BTreeMap<ReplicaId, (Place, ReplicaWay)>>,
}

impl Ways {
    /// Ways to nodes to which `introduce` gives an introduction.
    pub(crate) fn new(
        of: Option<FsId>,
        find: Find,
        introduce: Introduce,
        waits: Arc<dyn WaitNames>,
        links: Option<Arc<Links>>,
    ) -> Arc<Ways> {
        Arc::new(Ways { of, find, introduce, waits, links, open: Mutex::default() })
    }

    fn way_to(&self, place: &Place) -> Result<ReplicaWay> {
        let env = SessionEnv {
            introduction: (self.introduce)(&place.node),
            clock: RealClock::shared(),
            waits: Arc::clone(&self.waits),
            process: None,
            links: self.links.clone(),
        };
        ReplicaWay::open(Endpoint::Tcp(place.address), self.of, env)
    }
}

impl metadata::Ways for Ways {
    fn stop(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        open.into_values().for_each(|(_, way)| way.stop());
    }
}

impl Transport for Ways {
    fn send(&self, to: ReplicaId, message: Vec<u8>) {
        let place = (self.find)(to);
        let mut open = self.open.lock();
        let Some(place) = place else {
            open.remove(&to);
            return;
        };
        if open.get(&to).is_none_or(|(before, _)| *before != place) {
            match self.way_to(&place) {
                Ok(way) => drop(open.insert(to, (place, way))),
                Err(error) => return warn!(target: "node", "no way to {}: {error}", place.node),
            }
        }
        if let Some((_, way)) = open.get(&to) {
            way.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u32]) -> BTreeSet<ReplicaId> {
        numbers.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn an_odd_number_of_the_first_nodes_votes() {
        let all: Vec<u32> = (1..=20).collect();
        assert_eq!(first_voters(&ids(&[])), ids(&[]));
        assert_eq!(first_voters(&ids(&[4])), ids(&[4]));
        assert_eq!(first_voters(&ids(&[4, 7])), ids(&[4]));
        assert_eq!(first_voters(&ids(&[4, 7, 9])), ids(&[4, 7, 9]));
        assert_eq!(first_voters(&ids(&[1, 2, 3, 4])), ids(&[1, 2, 3]));
        assert_eq!(first_voters(&ids(&all)).len(), VOTERS_MAX);
    }

    #[test]
    fn voters_are_odd_and_stay() {
        let members = |voters: &[u32], learners: &[u32]| Membership {
            voters: ids(voters),
            learners: ids(learners),
            ..Membership::default()
        };
        let next = |wanted: &[u32], now: &Membership, near: &[u32]| {
            next_members(ReplicaId(1), &ids(wanted), now, &|id| ids(near).contains(&id))
        };
        let new = |voters: &[u32], learners: &[u32]| Some((ids(voters), ids(learners)));
        assert_eq!(next(&[1], &members(&[1], &[]), &[]), None);
        assert_eq!(next(&[1, 2], &members(&[1], &[]), &[]), new(&[1], &[2]));
        assert_eq!(next(&[1, 2], &members(&[1], &[2]), &[2]), None, "two are no better than one");
        assert_eq!(next(&[1, 2, 3], &members(&[1], &[2]), &[2]), new(&[1], &[2, 3]));
        assert_eq!(
            next(&[1, 2, 3], &members(&[1], &[2, 3]), &[2]),
            None,
            "one has not got the log"
        );
        assert_eq!(next(&[1, 2, 3], &members(&[1], &[2, 3]), &[2, 3]), new(&[1, 2, 3], &[]));
        assert_eq!(next(&[1, 2, 3, 4], &members(&[1, 2, 3], &[4]), &[4]), None);
        assert_eq!(next(&[1, 3, 4], &members(&[1, 2, 3], &[4]), &[4]), new(&[1, 3, 4], &[]));
        assert_eq!(next(&[1, 3], &members(&[1, 2, 3], &[]), &[]), new(&[1], &[]));
        assert_eq!(next(&[1, 3], &members(&[1], &[]), &[]), new(&[1], &[3]), "it learns again");
        let kept = next(&[1, 3, 4], &members(&[1, 2, 3], &[]), &[]);
        assert_eq!(kept, new(&[1, 2, 3], &[4]), "one that leaves stays until another has the log");
        assert_eq!(next(&[1, 3, 4], &members(&[1, 2, 3], &[4]), &[]), None, "it has not");
        let own_end = next(&[2, 3], &members(&[1, 2, 3], &[]), &[]);
        assert_eq!(own_end, new(&[2], &[]), "it is deleted itself");
        assert_eq!(next(&[], &members(&[1], &[]), &[]), None, "somebody must keep the log");
        let all: Vec<u32> = (1..=20).collect();
        let (voters, learners) = next(&all, &members(&[1], &all[1..]), &all).expect("more voters");
        assert_eq!((voters.len(), learners.len()), (VOTERS_MAX, MEMBERS_MAX - VOTERS_MAX));
        let joint = Membership { outgoing: ids(&[1, 2]), ..members(&[1], &[]) };
        assert_eq!(next(&[1, 2], &joint, &[]), None, "one change at a time");
    }
}
