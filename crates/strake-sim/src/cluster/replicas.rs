//! The ways between the replicas of the metadata: the product's, over the simulated network. Nodes
//! here have no certificates that would say who sends a message, so each message begins with the
//! number of its sender.

use super::place::{FS, credentials, place};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_crew::metadata::{Peers, Ways};
use strake_env::RealClock;
use strake_env::sync::Mutex;
use strake_net::{Endpoint, Introduction, ProvenPeer, ReplicaPort, ReplicaWay, SessionEnv};
use strake_observe::Observe;
use strake_proto::{Error, ErrorKind, Result};
use strake_replica::replica::Failure;
use strake_replica::types::ReplicaId;
use strake_replica::{Replica, Transport};

/// The other replicas, for one of them. The members stay as they are.
pub(crate) struct Others {
    own: ReplicaId,
    observe: Arc<Observe>,
}

impl Others {
    pub(crate) fn new(own: ReplicaId, observe: &Arc<Observe>) -> Others {
        Others { own, observe: Arc::clone(observe) }
    }
}

impl Peers for Others {
    fn ways(&self) -> Arc<dyn Ways> {
        let (observe, open) = (Arc::clone(&self.observe), Mutex::default());
        Arc::new(NumberedWays { own: self.own, observe, open })
    }

    fn inbox(&self, replica: &Arc<Replica>) -> Arc<dyn ReplicaPort> {
        Arc::new(Inbox(Arc::clone(replica)))
    }

    fn tend(&self, _: &Replica, _: Duration) -> std::result::Result<(), Box<Failure>> {
        Ok(())
    }
}

struct NumberedWays {
    own: ReplicaId,
    observe: Arc<Observe>,
    open: Mutex<BTreeMap<ReplicaId, ReplicaWay>>,
}

impl Transport for NumberedWays {
    fn send(&self, to: ReplicaId, message: Vec<u8>) {
        let mut open = self.open.lock();
        let way = open.entry(to).or_insert_with(|| {
            let env = SessionEnv {
                introduction: Introduction::from(credentials()),
                clock: RealClock::shared(),
                waits: Arc::clone(&self.observe) as _,
                process: None,
                links: None,
            };
            let endpoint = Endpoint::Tcp(place(to.0).address);
            ReplicaWay::open(endpoint, Some(FS), env).expect("there are threads")
        });
        way.send([&self.own.0.to_le_bytes()[..], &message].concat());
    }
}

impl Ways for NumberedWays {
    fn stop(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        open.into_values().for_each(|way| way.stop());
    }
}

struct Inbox(Arc<Replica>);

impl ReplicaPort for Inbox {
    fn deliver(&self, _: &ProvenPeer, message: &[u8]) -> Result<()> {
        let (from, message) = message.split_first_chunk().ok_or(ErrorKind::Corrupt)?;
        let from = ReplicaId(u32::from_le_bytes(*from));
        self.0
            .deliver(|id| id == from, message)
            .map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))
    }
}
