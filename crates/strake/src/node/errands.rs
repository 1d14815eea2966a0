//! The way to nodes without a server's certificate. Such a node, a client, may not serve, so nobody
//! calls it. It calls the node that leads instead, and keeps one call waiting there. Another
//! node hands its request to the leader, which answers the waiting call with it: an *errand*. The
//! client does it on a thread of its own, while its next call waits already, and sends the answer.
//!
//! An errand is lost if the client or the leader dies, and is not repeated: whoever asked gets an
//! error. A client that has no call waiting for [`ABSENT_MAX`] counts as one that does not answer.

use super::messages::{ClientRequest, NodeRequest, Request};
use super::peer::limit_of;
use super::server::{Node, encode};
use crate::admin::Reply;
use crate::cluster::NodeNumber;
use crate::daemon::start_thread;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::{Error, ErrorKind, Result};
use tracing::warn;

/// How long a client's call waits for an errand.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Between two calls of a client, which includes a new connection.
const ABSENT_MAX: Duration = Duration::from_secs(5);
/// Between a client's attempts to reach the leader, and between looks at a wait.
const STEP: Duration = Duration::from_secs(1);
/// A client's errands at the same time; further ones are refused.
const ERRANDS_MAX: usize = 16;

/// A request that a client fetches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Errand {
    /// Tells its answer from those of others.
    number: u64,
    request: NodeRequest,
}

/// The errands of all clients, at the node that leads.
pub(super) struct Errands {
    clock: Arc<dyn Clock>,
    clients: Mutex<BTreeMap<NodeNumber, Client>>,
    changed: Condvar,
}

#[derive(Default)]
struct Client {
    /// The calls that wait now.
    calls: usize,
    /// When the last call ended; `None` before the first one.
    called: Option<Duration>,
    next: u64,
    waiting: VecDeque<Errand>,
    /// By number; `None` until the answer is here.
    answers: BTreeMap<u64, Option<Reply>>,
}

impl Client {
    fn is_present(&self, now: Duration) -> bool {
        self.calls > 0 || self.called.is_some_and(|at| now.saturating_sub(at) < ABSENT_MAX)
    }
}

impl Errands {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Errands {
        Errands { clock, clients: Mutex::default(), changed: Condvar::new() }
    }

    /// Has a client do something, and waits `limit` for its answer.
    ///
    /// # Errors
    /// The client's; `Unreachable` if it does not call, `TimedOut` if it does not answer, `Busy` if
    /// it has too much to do.
    pub(super) fn ask(
        &self,
        client: NodeNumber,
        request: &NodeRequest,
        limit: Duration,
    ) -> Result<Value> {
        let end = self.clock.monotonic() + limit;
        let mut clients = self.clients.lock();
        let of_client = clients.entry(client).or_default();
        if of_client.answers.len() >= ERRANDS_MAX {
            return Err(Error::new(ErrorKind::Busy, "it is asked too much at the same time"));
        }
        of_client.next += 1;
        let number = of_client.next;
        of_client.answers.insert(number, None);
        of_client.waiting.push_back(Errand { number, request: request.clone() });
        self.changed.notify_all();
        loop {
            let of_client = clients.get_mut(&client).expect("invariant: clients are kept");
            if let Some(Some(reply)) = of_client.answers.get(&number) {
                let reply = reply.clone();
                of_client.answers.remove(&number);
                return reply.into_result();
            }
            let now = self.clock.monotonic();
            let failed = match of_client.is_present(now) {
                false => Some((ErrorKind::Unreachable, "it does not call the node that leads")),
                true if now >= end => Some((ErrorKind::TimedOut, "it does not answer")),
                true => None,
            };
            if let Some((kind, detail)) = failed {
                of_client.answers.remove(&number);
                of_client.waiting.retain(|errand| errand.number != number);
                return Err(Error::new(kind, detail));
            }
            self.changed.wait_for(&mut clients, STEP.min(end - now));
        }
    }

    /// A client's call: waits for an errand, at most for [`CALL_MAX`] and while `leads` says so.
    ///
    /// # Errors
    /// `Stale` if this node does not lead.
    pub(super) fn fetch(
        &self,
        client: NodeNumber,
        leads: &dyn Fn() -> bool,
    ) -> Result<Option<Errand>> {
        let end = self.clock.monotonic() + CALL_MAX;
        let mut clients = self.clients.lock();
        clients.entry(client).or_default().calls += 1;
        let outcome = loop {
            let of_client = clients.get_mut(&client).expect("invariant: clients are kept");
            if let Some(errand) = of_client.waiting.pop_front() {
                break Ok(Some(errand));
            }
            let now = self.clock.monotonic();
            if !leads() {
                break Err(Error::new(ErrorKind::Stale, "another node leads"));
            }
            if now >= end {
                break Ok(None);
            }
            self.changed.wait_for(&mut clients, STEP.min(end - now));
        };
        let of_client = clients.get_mut(&client).expect("invariant: clients are kept");
        of_client.calls -= 1;
        of_client.called = Some(self.clock.monotonic());
        outcome
    }

    /// Takes a client's answer. Nobody waits for it any more if it is late.
    pub(super) fn done(&self, client: NodeNumber, number: u64, reply: Reply) {
        let mut clients = self.clients.lock();
        let waits = clients.get_mut(&client).and_then(|it| it.answers.get_mut(&number));
        if let Some(answer) = waits {
            *answer = Some(reply);
            self.changed.notify_all();
        }
    }
}

impl Node {
    /// Asks a client, which calls the node that leads.
    ///
    /// # Errors
    /// As [`Errands::ask`]; `Unreachable` if no node leads.
    pub(super) fn ask_client<T>(
        self: &Arc<Node>,
        client: NodeNumber,
        request: &NodeRequest,
    ) -> Result<T>
    where
        T: serde::de::DeserializeOwned,
    {
        let leader = self.find_leader()?;
        let request = Box::new(request.clone());
        self.ask(leader, &NodeRequest::HandOn { client, request })
    }

    /// Hands a request on to a client that calls here.
    ///
    /// # Errors
    /// As [`Errands::ask`]; `Stale` if this node does not lead.
    pub(super) fn hand_on(&self, client: NodeNumber, request: &NodeRequest) -> Result<Value> {
        if !self.replica()?.leads() {
            return Err(Error::new(ErrorKind::Stale, "another node leads"));
        }
        let name = self.cluster().node(client).ok_or(ErrorKind::NotFound)?.name.clone();
        let _wait = self.observe.waiters.enter("answer of a client", name.clone());
        let answer = self.errands.ask(client, request, limit_of(&Request::Node(request.clone())));
        answer.map_err(|error| error.context(format!("node {name}")))
    }

    /// Answers a client that calls.
    ///
    /// # Errors
    /// `Stale` if this node does not lead; `Access` for a node that is no member.
    pub(super) fn answer_client(&self, name: &str, request: &ClientRequest) -> Result<Value> {
        let client = self.cluster().node_named(name)?.id;
        let replica = self.replica()?;
        match request {
            ClientRequest::Fetch => encode(&self.errands.fetch(client, &|| replica.leads())?),
            ClientRequest::Done { number, reply } => {
                self.errands.done(client, *number, reply.clone());
                encode(&())
            }
        }
    }

    /// Calls the node that leads, once, and does what it is told.
    fn call_for_errand(self: &Arc<Node>) -> Result<()> {
        let leader = self.peer(self.find_leader()?)?;
        let Some(Errand { number, request }) = leader.call_as_client(&ClientRequest::Fetch)? else {
            return Ok(());
        };
        let node = Arc::clone(self);
        start_thread("errand", move || {
            let reply = Reply::of(node.answer_node(&request));
            let told = leader.call_as_client::<()>(&ClientRequest::Done { number, reply });
            if let Err(error) = told {
                warn!(target: "node", "an answer did not reach the node that leads: {error}");
            }
        })
    }
}

/// Calls the node that leads again and again, until this node ends.
pub(super) fn run_errands(node: &Weak<Node>) {
    let mut is_told = false;
    while let Some(node) = node.upgrade() {
        let called = node.call_for_errand();
        if let Err(error) = &called
            && !is_told
        {
            warn!(target: "node", "nobody can ask this node anything: {error}");
        }
        is_told = called.is_err();
        if node.ends_within(if is_told { STEP } else { Duration::ZERO }) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use strake_env::RealClock;

    const CLIENT: NodeNumber = NodeNumber(4);
    const LIMIT: Duration = Duration::from_secs(20);

    fn errands() -> Arc<Errands> {
        Arc::new(Errands::new(RealClock::shared()))
    }

    #[test]
    fn a_client_fetches_does_and_answers_each_errand_once() {
        let errands = errands();
        let client = strake_env::thread::spawn({
            let errands = Arc::clone(&errands);
            move || {
                for _ in 0..3 {
                    let errand = errands.fetch(CLIENT, &|| true).expect("leads").expect("errand");
                    let reply = match errand.request {
                        NodeRequest::State => Ok(json!("well")),
                        _ => Err(Error::new(ErrorKind::NotFound, "nothing there")),
                    };
                    errands.done(CLIENT, errand.number, Reply::of(reply.clone()));
                    // A second answer is nobody's.
                    errands.done(CLIENT, errand.number, Reply::of(reply));
                }
            }
        });
        let called = || errands.clients.lock().get(&CLIENT).is_some_and(|it| it.calls > 0);
        while !called() {
            RealClock.sleep(Duration::from_millis(1));
        }
        let ask = |request| errands.ask(CLIENT, &request, LIMIT);
        assert_eq!(ask(NodeRequest::State), Ok(json!("well")));
        assert_eq!(ask(NodeRequest::Replica).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(ask(NodeRequest::State), Ok(json!("well")));
        client.join().expect("no panic");
        assert!(errands.clients.lock()[&CLIENT].answers.is_empty());
    }

    #[test]
    fn a_client_that_does_not_call_does_not_answer() {
        let errands = errands();
        let refused = errands.ask(CLIENT, &NodeRequest::State, LIMIT).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable);
        // Nothing is left for a call that comes later.
        assert!(errands.clients.lock()[&CLIENT].waiting.is_empty());
        let lost = errands.fetch(CLIENT, &|| false).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Stale);
    }

    #[test]
    fn errands_of_one_client_are_bounded() {
        let errands = errands();
        {
            let mut clients = errands.clients.lock();
            let client = clients.entry(CLIENT).or_default();
            client.answers.extend((100..).take(ERRANDS_MAX).map(|number| (number, None)));
        }
        let refused = errands.ask(CLIENT, &NodeRequest::State, LIMIT).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let other = errands.ask(NodeNumber(5), &NodeRequest::State, LIMIT).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Unreachable);
    }
}
