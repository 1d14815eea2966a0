//! Ways around a bad link. A node that cannot be reached directly may be reached by others. So a
//! client that gets no answer to its attempt to connect asks other nodes to pass its connection on:
//!
//! ```text
//! client ◀▶ other   TLS 1.3 (crate::tls), as for any service
//! client ▶ other    Through { node }
//! other ▶ client    Welcome | Absent { reason } | Refused { reason }
//! client ◀▶ node    bytes as they are, first the handshake with the node itself
//! ```
//!
//! Both ends prove themselves to each other as without a detour. The node between them has none of
//! their keys, and passes on what it could hold up, but neither read nor change. It does so for
//! nodes with the role of a client or of the quorum, to nodes of its cluster, and to no detour of
//! another.
//!
//! **When.** Only silence leads to a detour: an attempt to connect gets no answer, or what is sent
//! on a connection is not even acknowledged ([`strake_env::links`]). A machine that refuses a
//! connection was reached. A node that stands still is reached, too: its kernel acknowledges.
//!
//! **Back.** The bad link is tried again after [`BELIEVED_FOR`], so that a detour ends soon after
//! the fault. What the replicas of a log say to each other takes no detours: they have a leader who
//! reaches a majority, or elect one.

use crate::auth::{Hello, Service, refused, say};
use crate::certificate::NodeCredentials;
use crate::credentials::Introduction;
use crate::handshake::ask;
use crate::tls::{self, Expected};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::clock::Clock;
use strake_env::stream::{Endpoint, Stream};
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, NodeName, Result};
use tracing::{debug, warn};

/// An attempt to connect without a detour. The kernel repeats the first packet after a second.
const DIRECT_MAX: Duration = Duration::from_millis(1500);
/// For another node to connect onwards. Its client waits a little longer.
pub(crate) const ONWARD_MAX: Duration = Duration::from_millis(1200);
const ASK_MAX: Duration = Duration::from_millis(1700);
/// At most so many other nodes are asked.
const ASKED_MAX: usize = 2;
/// A link counts as bad for so long.
const BELIEVED_FOR: Duration = Duration::from_secs(30);
/// An attempt to connect beside a detour. It holds up a request.
const LOOK_MAX: Duration = Duration::from_millis(200);

/// The nodes that can pass connections on, and where they listen.
type Nodes = dyn Fn() -> Vec<(NodeName, Endpoint)> + Send + Sync;

/// The detours of one process.
pub struct Detours {
    nodes: Box<Nodes>,
    clock: Arc<dyn Clock>,
    /// The nodes behind bad links.
    found: Mutex<BTreeMap<NodeName, Found>>,
    /// The detours that connections take: to which node and through which one, and how many do.
    taken: Mutex<BTreeMap<(NodeName, NodeName), usize>>,
}

/// How a node was reached.
#[derive(Clone)]
struct Found {
    through: (NodeName, Endpoint),
    until: Duration,
}

/// A connection that goes through another node.
pub(crate) struct Detour {
    detours: Arc<Detours>,
    to: NodeName,
    through: NodeName,
    /// When the direct way was tried last.
    tried: Mutex<Duration>,
}

impl Detours {
    /// Detours through the nodes that `nodes` gives.
    pub fn new(
        clock: Arc<dyn Clock>,
        nodes: impl Fn() -> Vec<(NodeName, Endpoint)> + Send + Sync + 'static,
    ) -> Arc<Detours> {
        let (found, taken) = (Mutex::default(), Mutex::default());
        Arc::new(Detours { nodes: Box::new(nodes), clock, found, taken })
    }

    /// The detours that connections take now: to which node, and through which one.
    pub fn taken(&self) -> Vec<(NodeName, NodeName)> {
        self.taken.lock().keys().cloned().collect()
    }

    /// A connection takes a detour, until the value is dropped.
    fn take(self: &Arc<Detours>, to: &NodeName, through: &NodeName) -> Detour {
        let tried = Mutex::new(self.clock.monotonic());
        let (to, through) = (to.clone(), through.clone());
        *self.taken.lock().entry((to.clone(), through.clone())).or_default() += 1;
        Detour { detours: Arc::clone(self), to, through, tried }
    }

    /// The node through which another one was reached a moment ago.
    fn known(&self, to: &NodeName) -> Option<(NodeName, Endpoint)> {
        let now = self.clock.monotonic();
        let mut found = self.found.lock();
        found.retain(|_, it| now < it.until);
        found.get(to).map(|it| it.through.clone())
    }

    fn forget(&self, to: &NodeName) {
        self.found.lock().remove(to);
    }

    /// Reaches a node through one of the others.
    fn find(
        &self,
        own: &NodeCredentials,
        to: &NodeName,
        limit: Duration,
    ) -> Option<(Stream, NodeName)> {
        let end = self.clock.monotonic() + limit;
        let is_other = |name: &NodeName| name != to && *name != own.identity().name;
        let others = (self.nodes)().into_iter().filter(|(name, _)| is_other(name));
        for (name, endpoint) in others.take(ASKED_MAX) {
            let left = end.saturating_sub(self.clock.monotonic());
            match through(&endpoint, own, (&name, to), left.min(ASK_MAX)) {
                Ok(stream) => {
                    warn!(
                        target: "network",
                        "node {to} does not answer, and is reached through {name}: look at the \
                         link between this node and {to}"
                    );
                    let until = self.clock.monotonic() + BELIEVED_FOR;
                    let found = Found { through: (name.clone(), endpoint), until };
                    self.found.lock().insert(to.clone(), found);
                    return Some((stream, name));
                }
                Err(error) => {
                    debug!(target: "network", "node {to} is not reached through {name}: {error}");
                }
            }
        }
        None
    }
}

/// Connects to the node that is expected, if need be through another one.
///
/// # Errors
/// As [`Stream::connect`].
pub(crate) fn connect(
    endpoint: &Endpoint,
    introduction: &Introduction,
    service: Service,
    limit: Duration,
) -> Result<(Stream, Option<Detour>)> {
    let Some((own, to, detours)) = possible(introduction, service) else {
        return Ok((Stream::connect(endpoint, limit)?, None));
    };
    if let Some((name, place)) = detours.known(to) {
        match through(&place, own, (&name, to), limit.min(ASK_MAX)) {
            Ok(stream) => return Ok((stream, Some(detours.take(to, &name)))),
            Err(_) => detours.forget(to),
        }
    }
    let end = detours.clock.monotonic() + limit;
    let left = || end.saturating_sub(detours.clock.monotonic());
    match Stream::connect(endpoint, limit.min(DIRECT_MAX)) {
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            if let Some((stream, name)) = detours.find(own, to, left()) {
                return Ok((stream, Some(detours.take(to, &name))));
            }
            // There is no detour. It may only be slow.
            let left = left();
            if left.is_zero() { Err(error) } else { Ok((Stream::connect(endpoint, left)?, None)) }
        }
        direct => Ok((direct?, None)),
    }
}

/// Whether a connection could take a detour.
pub(crate) fn is_possible(introduction: &Introduction, service: Service) -> bool {
    possible(introduction, service).is_some()
}

/// How this end proves itself, the node to be reached, and the detours, if there may be one.
fn possible(
    introduction: &Introduction,
    service: Service,
) -> Option<(&NodeCredentials, &NodeName, &Arc<Detours>)> {
    let Introduction::Node { own, expected } = introduction else { return None };
    let is_replica = matches!(service, Service::Replica | Service::ReplicaOf(_));
    own.detours().filter(|_| !is_replica).map(|detours| (&**own, expected, detours))
}

/// Has the node `by` pass a connection on to another one. What is read and written then is that
/// node's.
fn through(
    endpoint: &Endpoint,
    own: &NodeCredentials,
    (by, to): (&NodeName, &NodeName),
    limit: Duration,
) -> Result<Stream> {
    let mut stream = Stream::connect(endpoint, limit)?;
    let mut hurried = stream.within(limit);
    let mut secured = tls::connect(&mut hurried, &Expected::Node(own, by))?;
    let said = say(&mut hurried, &mut secured.sending, &Hello::Through { node: to.clone() });
    match ask(&mut hurried, &mut secured, said, crate::auth::hear)? {
        Hello::Welcome { .. } => Ok(stream),
        Hello::Absent { reason } => Err(Error::new(ErrorKind::Unreachable, reason)),
        Hello::Refused { reason } => Err(refused(&reason)),
        _ => Err(Error::new(ErrorKind::Corrupt, "a greeting out of order")),
    }
}

impl Detour {
    /// The node was not met there. The next attempt looks for another way.
    pub(crate) fn failed(&self) {
        self.detours.forget(&self.to);
    }

    /// Whether the direct way is there again. It is tried now and then.
    pub(crate) fn is_over(&self, endpoint: &Endpoint) -> bool {
        let now = self.detours.clock.monotonic();
        {
            let mut tried = self.tried.lock();
            if now < *tried + BELIEVED_FOR {
                return false;
            }
            *tried = now;
        }
        let is_back = Stream::connect(endpoint, LOOK_MAX).is_ok();
        if is_back {
            self.detours.forget(&self.to);
        }
        is_back
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        let key = (self.to.clone(), self.through.clone());
        let mut taken = self.detours.taken.lock();
        if let Some(count) = taken.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&key);
            }
        }
    }
}

#[cfg(test)]
#[path = "detour_test.rs"]
mod detour_test;
