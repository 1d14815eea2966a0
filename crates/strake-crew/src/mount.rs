//! The things that a mount has of the nodes: the metadata, what it may use beside others
//! ([`Tokens`]), and the NSDs.
//!
//! Metadata and tokens follow the node that leads by themselves. Calls to the metadata wait until a
//! node leads again, because everything needs it. NSDs of the node that led wait for that too: they
//! come back with it if its process was started anew. The NSDs of another node are given up after
//! moments: other nodes hold the data too, and the array goes on without them until they return.

use crate::search::{Follower, Search};
use crate::ways::{Locate, NsdWays};
use crate::{NsdPlace, Place};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_client::tokens::{FILES_MAX, Tokens};
use strake_lease::Times;
use strake_net::{
    MetaClientSession, Seek, ServerProcess, Service, SessionEnv, SessionLimits, TokenSession,
    Whereabouts,
};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::nsd::NsdPort;
use strake_proto::{ClientId, FsId, NsdId, Result};
use strake_token::port::{ToAuthority, ToClient};
use tracing::error;

/// How long a mount waits.
#[derive(Clone, Copy, Debug)]
pub struct MountLimits {
    /// For a node that leads.
    pub leader_wait_max: Duration,
    /// For NSDs.
    pub nsd: SessionLimits,
}

/// See the head of this file.
pub struct MountWays {
    /// The way to the metadata.
    pub meta: Arc<dyn MetaPort>,
    /// The tokens of the mount.
    pub tokens: Arc<Tokens>,
    fs: FsId,
    limits: MountLimits,
    search: Arc<Search>,
    env: SessionEnv,
    nsds: NsdWays,
    /// The way to the authority.
    session: Arc<TokenSession>,
}

/// Where the leader is.
fn follow(search: &Arc<Search>) -> Whereabouts {
    Whereabouts::Moving(Arc::new(Follower(Arc::clone(search))) as Arc<dyn Seek>)
}

impl MountWays {
    /// Connects a client that was let in to the node that leads. `env` has an introduction to that
    /// node, and the NSDs are at `places`, or where `locate` says later.
    ///
    /// # Errors
    /// `Unreachable` if no node leads now; `Fenced` if the client was not let in.
    pub fn open(
        search: &Arc<Search>,
        (fs, client): (FsId, ClientId),
        (places, locate): (Vec<NsdPlace>, Locate),
        limits: MountLimits,
        env: &SessionEnv,
        observe: &Arc<Observe>,
    ) -> Result<MountWays> {
        let leader = || follow(search);
        // Before the metadata is asked for anything: from now on changes of the pool are told.
        let session = TokenSession::open(leader(), fs, client, env.clone())?;
        let session = Arc::new(session);
        let way = Arc::clone(&session) as Arc<dyn ToAuthority>;
        let (clock, observe) = (Arc::clone(&env.clock), Arc::clone(observe));
        let tokens = Tokens::new(session.term(), way, clock, observe, FILES_MAX);
        let sink: Weak<dyn ToClient> = Arc::downgrade(&(Arc::clone(&tokens) as Arc<dyn ToClient>));
        session.deliver_to(sink);
        tokens.need_lease(Times::CLUSTER.lease, session.attached());
        let wait = limits.leader_wait_max;
        let of_meta = SessionLimits { absent: wait, broken: wait, ..SessionLimits::META };
        let service = Service::MetaOf(fs);
        let meta = Arc::new(MetaClientSession::of(leader(), service, of_meta, env.clone()));
        let way = Arc::clone(&session);
        meta.when_over(move |why| {
            // It would keep all that others wait for.
            error!(target: "tokens", "this life of the mount is over: {why}");
            way.end_life();
        });
        let nsds = NsdWays::new(search.introduce(), locate, places, env.clone(), limits.nsd);
        let (search, env) = (Arc::clone(search), env.clone());
        Ok(MountWays { meta, tokens, fs, limits, search, env, nsds, session })
    }

    /// Where the NSDs are.
    pub fn nsds(&self) -> &NsdWays {
        &self.nsds
    }

    /// The way to an NSD; `None` if the file system has no such NSD.
    pub fn port(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        self.nsds.port(nsd, |place, env| {
            let process = Some(Arc::new(self.process_at(place.clone())));
            SessionEnv { process, ..env }
        })
    }

    /// The leader's process, for NSDs of a node: they wait for it while that node is the leader.
    fn process_at(&self, place: Place) -> ServerProcess {
        let last = (follow(&self.search), Service::MetaOf(self.fs));
        let SessionEnv { introduction, clock, waits, .. } = self.env.clone();
        let search = Arc::clone(&self.search);
        ServerProcess::new(last, introduction, clock, waits, self.limits.leader_wait_max)
            .while_true(move || search.last().as_ref() == Some(&place))
    }

    /// Ends the way to the authority.
    pub fn stop(&self) {
        self.session.stop();
    }
}
