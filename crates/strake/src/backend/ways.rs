//! The ways to the NSDs of a cluster's file system: a session with the node of each.

use crate::node::{NsdPlace, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_net::{
    Endpoint, Introduction, NodeCredentials, NsdClientSession, SessionEnv, SessionLimits,
};
use strake_proto::NsdId;
use strake_proto::nsd::NsdPort;

/// See the head of this file.
pub(crate) struct NsdWays {
    own: Arc<NodeCredentials>,
    places: Mutex<Vec<NsdPlace>>,
    /// What a session needs but the introduction.
    env: SessionEnv,
    limits: SessionLimits,
    /// Made when first asked for.
    sessions: Mutex<BTreeMap<NsdId, Arc<dyn NsdPort>>>,
}

impl NsdWays {
    /// Ways to NSDs for the node that proves itself as `own`.
    pub(crate) fn new(
        own: &Arc<NodeCredentials>,
        places: Vec<NsdPlace>,
        env: SessionEnv,
        limits: SessionLimits,
    ) -> NsdWays {
        let (places, sessions) = (Mutex::new(places), Mutex::default());
        NsdWays { own: Arc::clone(own), places, env, limits, sessions }
    }

    /// Whether the place of an NSD is known.
    pub(crate) fn knows(&self, nsd: NsdId) -> bool {
        self.places.lock().iter().any(|place| place.nsd == nsd)
    }

    /// The NSDs whose places are known.
    pub(crate) fn known(&self) -> Vec<NsdId> {
        self.places.lock().iter().map(|place| place.nsd).collect()
    }

    /// From now on the NSDs are at these places. Ways to others end.
    pub(crate) fn learn(&self, places: Vec<NsdPlace>) {
        let mut sessions = self.sessions.lock();
        let mut known = self.places.lock();
        let stays = |nsd: &NsdId| {
            let of = |list: &[NsdPlace]| list.iter().find(|place| place.nsd == *nsd).cloned();
            of(&places).is_some_and(|place| of(&known) == Some(place))
        };
        sessions.retain(|nsd, _| stays(nsd));
        *known = places;
    }

    /// The way to an NSD; `None` if the file system has no such NSD. `with` changes what the
    /// session gets, by the place of the NSD.
    pub(crate) fn port(
        &self,
        nsd: NsdId,
        with: impl FnOnce(&Place, SessionEnv) -> SessionEnv,
    ) -> Option<Arc<dyn NsdPort>> {
        let place = self.places.lock().iter().find(|place| place.nsd == nsd)?.place.clone();
        let connect = || {
            let introduction = Introduction::node(&self.own, &place.node);
            let env = with(&place, SessionEnv { introduction, ..self.env.clone() });
            let endpoint = Endpoint::Tcp(place.address);
            let session = NsdClientSession::new(endpoint, nsd, self.limits, env);
            Arc::new(session) as Arc<dyn NsdPort>
        };
        Some(Arc::clone(self.sessions.lock().entry(nsd).or_insert_with(connect)))
    }
}
