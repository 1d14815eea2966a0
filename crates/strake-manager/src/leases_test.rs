//! Changes of the metadata by clients that are dying, and a service that another leader follows.
//! `strake-sim`'s `lease_test` has whole mounts over NSDs.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_env::{ManualClock, RealClock, thread};
use strake_proto::meta::MetaOp;
use strake_proto::nsd::NsdRequest;
use strake_proto::{NsdId, Timestamp};

const CLIENT: ClientId = ClientId(7);
const OWN: ClientId = ClientId(1);

/// Metadata in which a change stays under way until the test says so.
#[derive(Default)]
struct SlowMeta {
    /// The number of changes that have begun, and whether they may end.
    state: Mutex<(u32, bool)>,
    changed: Condvar,
}

impl MetaPort for SlowMeta {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn apply(&self, _: &MetaEntry) -> Result<MetaReply> {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| !state.1);
        Ok(MetaReply::Done)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// What a service has said.
#[derive(Default)]
struct Said {
    declared: Vec<(ClientId, Reason)>,
    dead: Vec<ClientId>,
    deposed: Option<Term>,
    /// A death waits for changes of the metadata.
    waits: bool,
}

/// Remembers what a service has said.
#[derive(Default)]
struct Heard {
    state: Mutex<Said>,
    changed: Condvar,
}

impl WaitNames for Heard {
    fn begin_wait(&self, reason: &'static str, _: &str) -> usize {
        self.state.lock().waits |= reason == "changes of a dead client";
        self.changed.notify_all();
        0
    }

    fn end_wait(&self, _: usize) {}
}

impl Deaths for Heard {
    fn declared(&self, client: ClientId, reason: Reason) {
        self.state.lock().declared.push((client, reason));
    }

    fn dead(&self, client: ClientId) {
        self.state.lock().dead.push(client);
        self.changed.notify_all();
    }

    fn deposed(&self, term: Term) {
        self.state.lock().deposed = Some(term);
        self.changed.notify_all();
    }
}

fn start(servers: Vec<(NsdId, Arc<dyn NsdPort>)>) -> (Arc<LeaseService>, Arc<Heard>) {
    start_at(RealClock::shared(), servers)
}

fn start_at(
    clock: Arc<dyn Clock>,
    servers: Vec<(NsdId, Arc<dyn NsdPort>)>,
) -> (Arc<LeaseService>, Arc<Heard>) {
    start_while(Arc::new(|| true), clock, servers)
}

fn start_while(
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    clock: Arc<dyn Clock>,
    servers: Vec<(NsdId, Arc<dyn NsdPort>)>,
) -> (Arc<LeaseService>, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let options = LeaseOptions {
        term: Term(3),
        times: Times::CLUSTER,
        clients: vec![CLIENT],
        own: vec![OWN],
        servers,
        since: Duration::MAX,
        leads,
        floor: MapVersion(0),
        clock,
        waits: Arc::clone(&heard) as _,
    };
    let service = LeaseService::start(options, Arc::clone(&heard) as Arc<dyn Deaths>);
    (service.expect("starts"), heard)
}

fn entry(client: ClientId) -> MetaEntry {
    let time = Timestamp { seconds: 1_000, nanos: 0 };
    MetaEntry { client, sequence: 0, time, op: MetaOp::Join }
}

#[test]
fn a_client_is_dead_when_its_changes_under_way_have_ended_and_makes_no_more() {
    let (service, heard) = start(Vec::new());
    let slow = Arc::new(SlowMeta::default());
    let meta = service.metadata(Arc::clone(&slow) as Arc<dyn MetaPort>);
    thread::scope(|scope| {
        let changing = scope.spawn(|| meta.apply(&entry(CLIENT)));
        let mut state = slow.state.lock();
        slow.changed.wait_while(&mut state, |state| state.0 == 0);
        drop(state);
        service.ended(CLIENT);
        assert_eq!(heard.state.lock().declared, [(CLIENT, Reason::Ended)]);
        assert_eq!(meta.apply(&entry(CLIENT)).expect_err("refused").kind(), ErrorKind::Fenced);
        // The thread that acts on the death waits, or else it acts.
        let mut state = heard.state.lock();
        heard.changed.wait_while(&mut state, |state| !state.waits && state.dead.is_empty());
        let early = state.dead.clone();
        drop(state);
        slow.state.lock().1 = true;
        slow.changed.notify_all();
        changing.join().expect("no panic").expect("it had begun before");
        assert_eq!(early, [], "a change was under way");
    });
    let mut state = heard.state.lock();
    heard.changed.wait_while(&mut state, |state| state.dead.is_empty());
    assert_eq!(state.dead, [CLIENT]);
    drop(state);
    assert_eq!(service.renew(CLIENT).expect_err("dead").kind(), ErrorKind::Fenced);
    service.stop();
}

#[test]
fn only_clients_that_live_and_the_leader_itself_change_the_metadata() {
    let (service, _) = start(Vec::new());
    let slow = Arc::new(SlowMeta::default());
    slow.state.lock().1 = true;
    let meta = service.metadata(slow as Arc<dyn MetaPort>);
    for known in [CLIENT, OWN] {
        meta.apply(&entry(known)).expect("known");
    }
    let stranger = ClientId(9);
    assert_eq!(meta.apply(&entry(stranger)).expect_err("refused").kind(), ErrorKind::Fenced);
    service.join(stranger).expect("there is no server to wait for");
    meta.apply(&entry(stranger)).expect("it has joined");
    service.stop();
}

/// A server that has heard of a newer term.
struct Newer;

impl NsdPort for Newer {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<NsdReply> {
        assert_eq!((context.client, context.term), (ClientId::MANAGER, Term(3)));
        let is_known = matches!(request, NsdRequest::Admission | NsdRequest::Allow { .. });
        assert!(is_known, "{request:?}");
        let (clock, floor) = (Duration::from_secs(5), MapVersion(0));
        let term = Term(4);
        let reply = AdmissionReply { boot: 1, clock, until: None, term, floor, number: 0 };
        Ok(NsdReply::Admission(reply))
    }
}

#[test]
fn a_service_that_another_leader_follows_stops() {
    let (service, heard) = start(vec![(NsdId(1), Arc::new(Newer))]);
    let mut state = heard.state.lock();
    heard.changed.wait_while(&mut state, |state| state.deposed.is_none());
    assert_eq!(state.deposed, Some(Term(4)));
    drop(state);
    assert_eq!(service.renew(CLIENT).expect_err("no answer").kind(), ErrorKind::Unreachable);
    assert_eq!(service.join(ClientId(8)).expect_err("refused").kind(), ErrorKind::Fenced);
    // It says of nobody that he is dead, and answers no question about what it has.
    let meta = service.metadata(Arc::new(SlowMeta::default()));
    let strangers = meta.apply(&entry(ClientId(9))).expect_err("refused");
    assert_eq!(strangers.kind(), ErrorKind::Unreachable);
    let question = meta.query(&MetaQuery::Counts).expect_err("refused");
    assert_eq!(question.kind(), ErrorKind::Unreachable);
    assert_eq!(meta.sync().expect_err("refused").kind(), ErrorKind::Unreachable);
    service.stop();
}

/// A server that must hear nothing while it is not certain who leads.
struct Certain(Arc<AtomicBool>, Ready);

impl NsdPort for Certain {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        assert!(self.0.load(Ordering::SeqCst), "{request:?} of a leader that may be none");
        self.1.call(context, request, send, receive)
    }
}

#[test]
fn a_leader_that_may_be_none_gives_no_leases() {
    let certain = Arc::new(AtomicBool::new(false));
    let of_service = Arc::clone(&certain);
    let leads = Arc::new(move || of_service.load(Ordering::SeqCst));
    let server = Certain(Arc::clone(&certain), Ready::default());
    let (service, heard) =
        start_while(leads, RealClock::shared(), vec![(NsdId(1), Arc::new(server))]);
    let refused = |outcome: Result<()>| outcome.expect_err("no answer").kind();
    assert_eq!(refused(service.renew(CLIENT)), ErrorKind::Unreachable);
    assert_eq!(refused(service.check_leads()), ErrorKind::Unreachable);
    certain.store(true, Ordering::SeqCst);
    service.begun().expect("the server lets it in now");
    service.renew(CLIENT).expect("it was never silent");
    assert_eq!(heard.state.lock().declared, []);
    service.stop();
}

/// A server that says who was let in. Like every server it refuses additions before it has a list.
#[derive(Default)]
struct Ready {
    let_in: Mutex<Vec<Member>>,
}

impl NsdPort for Ready {
    fn call(
        &self,
        _: NsdContext,
        request: &NsdRequest,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<NsdReply> {
        let mut let_in = self.let_in.lock();
        match request {
            NsdRequest::Lease { list: Some(list), .. } => let_in.clone_from(&list.clients),
            NsdRequest::Allow { .. } if let_in.is_empty() => return Err(ErrorKind::Stale.into()),
            _ => {}
        }
        let reply = AdmissionReply { boot: 1, term: Term(3), ..AdmissionReply::default() };
        Ok(NsdReply::Admission(reply))
    }
}

#[test]
fn the_leaders_own_clients_are_let_in_under_its_term() {
    let ready = Arc::new(Ready::default());
    let (service, _) = start(vec![(NsdId(1), Arc::clone(&ready) as Arc<dyn NsdPort>)]);
    service.begun().expect("let in");
    assert_eq!(*ready.let_in.lock(), [(OWN, Epoch(3)), (CLIENT, Epoch(0))]);
    service.expel(CLIENT).expect("the server answers its fence");
    assert!(!service.is_living(CLIENT) && !service.has_lapsed(NsdId(1)));
    service.stop();
}

#[test]
fn a_leader_that_stood_still_declares_nobody_dead() {
    let clock = Arc::new(ManualClock::default());
    let (service, heard) = start_at(Arc::clone(&clock) as Arc<dyn Clock>, Vec::new());
    clock.advance(Times::CLUSTER.lease * 2);
    // Whatever is said first looks at all leases.
    service.ended(ClientId(9));
    assert!(service.is_living(CLIENT));
    assert_eq!(heard.state.lock().declared, []);
    // While it runs, a client that is silent is declared dead.
    for _ in 0..11 {
        clock.advance(Duration::from_secs(1));
        service.ended(ClientId(9));
    }
    assert_eq!(heard.state.lock().declared, [(CLIENT, Reason::Silent)]);
    service.stop();
}
