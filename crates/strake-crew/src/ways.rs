//! The ways to the NSDs of a cluster's file system: a session with the node of each.
//!
//! An NSD that several nodes reach may be served by another node one day. So each connection of a
//! session begins with the question where the NSD is now ([`Locate`]).

use crate::{Introduce, NsdPlace, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_net::{Endpoint, NsdClientSession, Seek, SessionEnv, SessionLimits, Site, Whereabouts};
use strake_proto::nsd::NsdPort;
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// Says where an NSD is now. `None` if that is not known.
pub type Locate = Arc<dyn Fn(NsdId) -> Option<Place> + Send + Sync>;

/// See the head of this file.
pub struct NsdWays {
    introduce: Introduce,
    locate: Locate,
    places: Mutex<Vec<NsdPlace>>,
    /// What a session needs but the introduction.
    env: SessionEnv,
    limits: SessionLimits,
    /// Made when first asked for.
    sessions: Mutex<BTreeMap<NsdId, Arc<dyn NsdPort>>>,
}

impl NsdWays {
    /// Ways to NSDs of nodes to which `introduce` gives an introduction.
    pub fn new(
        introduce: &Introduce,
        locate: Locate,
        places: Vec<NsdPlace>,
        env: SessionEnv,
        limits: SessionLimits,
    ) -> NsdWays {
        let (places, sessions) = (Mutex::new(places), Mutex::default());
        NsdWays { introduce: Arc::clone(introduce), locate, places, env, limits, sessions }
    }

    /// Whether the place of an NSD is known.
    pub fn knows(&self, nsd: NsdId) -> bool {
        self.places.lock().iter().any(|place| place.nsd == nsd)
    }

    /// The NSDs whose places are known.
    pub fn known(&self) -> Vec<NsdId> {
        self.places.lock().iter().map(|place| place.nsd).collect()
    }

    /// From now on the NSDs are at these places. Ways to others end.
    pub fn learn(&self, places: Vec<NsdPlace>) {
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
    pub fn port(
        &self,
        nsd: NsdId,
        with: impl FnOnce(&Place, SessionEnv) -> SessionEnv,
    ) -> Option<Arc<dyn NsdPort>> {
        let place = self.places.lock().iter().find(|place| place.nsd == nsd)?.place.clone();
        let connect = || {
            let introduction = (self.introduce)(&place.node);
            let env = with(&place, SessionEnv { introduction, ..self.env.clone() });
            let (introduce, locate) = (Arc::clone(&self.introduce), Arc::clone(&self.locate));
            let seek = Arc::new(Located { nsd, introduce, locate });
            let whereabouts = Whereabouts::Moving(seek as Arc<dyn Seek>);
            let session = NsdClientSession::new(whereabouts, nsd, self.limits, env);
            Arc::new(session) as Arc<dyn NsdPort>
        };
        Some(Arc::clone(self.sessions.lock().entry(nsd).or_insert_with(connect)))
    }
}

/// Lets a session follow an NSD.
struct Located {
    nsd: NsdId,
    introduce: Introduce,
    locate: Locate,
}

impl Seek for Located {
    fn seek(&self) -> Result<Site> {
        let Place { node, address } = (self.locate)(self.nsd).ok_or_else(|| {
            let detail = format!("where NSD {} is, is not known", self.nsd);
            Error::new(ErrorKind::Unreachable, detail)
        })?;
        Ok(Site { endpoint: Endpoint::Tcp(address), introduction: (self.introduce)(&node) })
    }
}
