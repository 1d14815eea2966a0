//! What a mount has of the node that leads: the metadata, and what it may use beside others
//! ([`Tokens`]).
//!
//! Both follow the node that leads by themselves. Calls to the metadata wait until a node leads
//! again, because everything needs it.

use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_client::tokens::{FILES_MAX, Tokens};
use strake_lease::Times;
use strake_net::{
    MetaClientSession, Service, SessionEnv, SessionLimits, TokenSession, Whereabouts,
};
use strake_observe::Observe;
use strake_proto::meta::MetaPort;
use strake_proto::{ClientId, FsId, Result};
use strake_token::port::{ToAuthority, ToClient};

/// See the head of this file.
pub struct MountWays {
    /// The way to the metadata.
    pub meta: Arc<dyn MetaPort>,
    /// What the mount holds.
    pub tokens: Arc<Tokens>,
    /// The way to the authority.
    session: Arc<TokenSession>,
}

impl MountWays {
    /// Connects a client that was let in to the node that leads. Calls to the metadata wait for a
    /// node that leads at most `wait_max`.
    ///
    /// # Errors
    /// `Unreachable` if no node leads now; `Fenced` if the client was not let in.
    pub fn open(
        leader: &Whereabouts,
        (fs, client): (FsId, ClientId),
        wait_max: Duration,
        env: &SessionEnv,
        observe: &Arc<Observe>,
    ) -> Result<MountWays> {
        // Before the metadata is asked for anything: from now on changes of the pool are told.
        let session = TokenSession::open(leader.clone(), fs, client, env.clone())?;
        let session = Arc::new(session);
        let way = Arc::clone(&session) as Arc<dyn ToAuthority>;
        let (clock, observe) = (Arc::clone(&env.clock), Arc::clone(observe));
        let tokens = Tokens::new(session.term(), way, clock, observe, FILES_MAX);
        let sink: Weak<dyn ToClient> = Arc::downgrade(&(Arc::clone(&tokens) as Arc<dyn ToClient>));
        session.deliver_to(sink);
        tokens.need_lease(Times::CLUSTER.lease, session.attached());
        let limits = SessionLimits { absent: wait_max, broken: wait_max, ..SessionLimits::META };
        let meta = MetaClientSession::of(leader.clone(), Service::MetaOf(fs), limits, env.clone());
        Ok(MountWays { meta: Arc::new(meta), tokens, session })
    }

    /// Ends the way to the authority.
    pub fn stop(&self) {
        self.session.stop();
    }
}
