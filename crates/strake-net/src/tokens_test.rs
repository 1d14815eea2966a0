//! Tokens over sessions: both ends hear each other, also after the connection broke or the
//! authority has moved, and what nobody repeats arrives in the end.

use super::*;
use crate::net_test::{Folder, env, secret};
use crate::seal::SPOKEN;
use crate::server::ServerOptions;
use crate::whereabouts::{Seek, Site};
use crate::{Credentials, Door};
use std::sync::atomic::AtomicU64;
use strake_env::stream::{Endpoint, Listener};
use strake_proto::feature::OLDEST_PROTOCOL;
use strake_proto::{GrantNumber, Ino};
use strake_token::Mode;
use strake_token::held::{Held, Limit, Want};
use strake_token::locks::LockRequest;
use strake_token::message::RequestId;

const FS: FsId = FsId(5);
const TERM: Term = Term(3);

/// Remembers what it hears. It answers each question with a revoke over the client's way, and with
/// one in the reply.
#[derive(Default)]
struct Authority {
    ways: Mutex<Vec<(ClientId, Arc<dyn ToClient>)>>,
    heard: Mutex<Vec<(ClientId, Request)>>,
    dead: Mutex<Option<ClientId>>,
    renewals: Mutex<u64>,
    /// The term, if it is not the usual one; and whether another leads by now.
    term: Mutex<Option<Term>>,
    deposed: Mutex<bool>,
    changed: Condvar,
}

impl Authority {
    fn wait_for(&self, count: usize) -> Vec<(ClientId, Request)> {
        let mut heard = self.heard.lock();
        self.changed.wait_while(&mut heard, |heard| heard.len() < count);
        heard.clone()
    }
}

impl TokenPort for Authority {
    fn attach(&self, client: ClientId, way: Arc<dyn ToClient>) -> Result<Term> {
        if client == ClientId(13) {
            return Err(ErrorKind::Fenced.into());
        }
        self.ways.lock().push((client, way));
        Ok(self.term.lock().unwrap_or(TERM))
    }

    fn renew(&self, client: ClientId) -> Result<()> {
        *self.renewals.lock() += 1;
        if *self.deposed.lock() {
            return Err(ErrorKind::Unreachable.into());
        }
        if *self.dead.lock() == Some(client) { Err(ErrorKind::Fenced.into()) } else { Ok(()) }
    }

    fn receive(&self, client: ClientId, term: Term, message: Request) -> Vec<Reply> {
        assert_eq!(term, self.term.lock().unwrap_or(TERM));
        let mut at_once = Vec::new();
        if matches!(message, Request::Ask { .. }) {
            let ways = self.ways.lock();
            let way = ways.iter().rev().find(|(other, _)| *other == client).expect("attached");
            way.1.send(TERM, revoke(9));
            at_once.push(revoke(8));
        }
        self.heard.lock().push((client, message));
        self.changed.notify_all();
        at_once
    }
}

/// A client that remembers what it hears.
#[derive(Default)]
struct Client {
    heard: Mutex<Vec<Reply>>,
    /// The renewals that were answered, and whether it was declared dead.
    lease: Mutex<(Vec<Duration>, bool)>,
    terms: Mutex<Vec<Term>>,
    changed: Condvar,
}

impl ToClient for Client {
    fn send(&self, term: Term, message: Reply) {
        assert_eq!(term, TERM);
        self.heard.lock().push(message);
        self.changed.notify_all();
    }

    fn new_term(&self, term: Term) {
        self.terms.lock().push(term);
        self.changed.notify_all();
    }

    fn renewed(&self, sent: Duration) {
        self.lease.lock().0.push(sent);
        self.changed.notify_all();
    }

    fn declared_dead(&self) {
        self.lease.lock().1 = true;
        self.changed.notify_all();
    }
}

fn revoke(ino: u64) -> Reply {
    let limit = Limit { inode: None, ranges: Vec::new() };
    Reply::Revoke { ino: Ino(ino), upto: GrantNumber(4), limit }
}

fn ask_for(ino: u64) -> Request {
    let want = Want { ino: Ino(ino), inode: Some(Mode::Shared), open: true, range: None };
    Request::Ask { request: RequestId(1), wants: vec![want] }
}

fn closed(ino: u64) -> Request {
    Request::GivenUp { ino: Ino(ino), upto: GrantNumber(2), keeps: Held::default() }
}

fn serve(folder: &Folder, authority: &Arc<Authority>) -> Door {
    let listener = Listener::bind(&folder.socket()).expect("binds");
    let door = Door::open(listener, Credentials::Secret(secret()), ServerOptions::new(7));
    let door = door.expect("opens");
    let port = Arc::clone(authority) as Arc<dyn TokenPort>;
    door.serve_tokens(FS, port, env().waits).expect("serves");
    door
}

fn session(door: &Door, client: u64) -> Result<TokenSession> {
    TokenSession::open(door.endpoint().clone(), FS, ClientId(client), env())
}

#[test]
fn both_ends_hear_each_other() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let refused = session(&door, 13).err().expect("not let in");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    for number in [1, 2] {
        let (own, client) = (session(&door, number).expect("let in"), Arc::new(Client::default()));
        assert_eq!(own.term(), TERM);
        let sink: Weak<Client> = Arc::downgrade(&client);
        own.deliver_to(sink);
        own.send(TERM, ask_for(number));
        let mut heard = client.heard.lock();
        client.changed.wait_while(&mut heard, |heard| heard.len() < 2);
        // Either may come first.
        heard.sort();
        assert_eq!(*heard, [revoke(8), revoke(9)]);
        drop(heard);
        own.stop();
    }
    let asked: Vec<ClientId> =
        authority.wait_for(2).into_iter().map(|(client, _)| client).collect();
    assert_eq!(asked, [ClientId(1), ClientId(2)]);
}

/// A client gives up a connection, and its greeting arrives after that of the next one.
#[test]
fn a_greeting_that_is_late_takes_no_way_away() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let connect = || {
        let introduction = &env().introduction;
        Connection::open(door.endpoint(), introduction, Service::TokensOf(FS), LIMIT)
    };
    let (first, second) = (connect().expect("a friend"), connect().expect("a friend"));
    ask(&second, &Say::Attach(ClientId(1), 2)).expect("let in");
    let late = ask(&first, &Say::Attach(ClientId(1), 1)).expect_err("another one has come");
    assert_eq!(late.kind(), ErrorKind::Stale);
    assert_eq!(authority.ways.lock().len(), 1, "the way is the second connection");
    ask(&first, &Say::Attach(ClientId(2), 1)).expect("another client's numbers are its own");
    let third = connect().expect("a friend");
    ask(&third, &Say::Attach(ClientId(1), 3)).expect("let in");
    assert_eq!(authority.ways.lock().len(), 3);
}

#[test]
fn what_nobody_repeats_arrives_after_the_connection_broke() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let own = session(&door, 1).expect("let in");
    own.send(TERM, closed(1));
    door.close();
    own.send(TERM, closed(2));
    own.send(TERM, ask_for(3));
    own.send(TERM, Request::Lock(LockRequest::Cancel { request: RequestId(4) }));
    let door = serve(&folder, &authority);
    let heard = authority.wait_for(2);
    assert_eq!(
        heard,
        [(ClientId(1), closed(1)), (ClientId(1), closed(2))],
        "and nothing that is repeated"
    );
    own.stop();
    door.close();
}

#[test]
fn many_messages_go_together_and_one_by_one_to_an_older_program() {
    let messages: Vec<Request> = (0..2 * TOGETHER_MAX as u64 + 1).map(closed).collect();
    for spoken in [None, Some(OLDEST_PROTOCOL)] {
        let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
        let door = serve(&folder, &authority);
        SPOKEN.set(spoken);
        let own = session(&door, 1).expect("let in");
        SPOKEN.set(None);
        let client = Arc::new(Client::default());
        let sink: Weak<Client> = Arc::downgrade(&client);
        own.deliver_to(sink);
        own.send_all(TERM, messages.clone());
        let heard: Vec<Request> = authority.heard.lock().iter().map(|it| it.1.clone()).collect();
        assert_eq!(heard, messages, "{spoken:?}");
        own.send_all(TERM, vec![ask_for(1), ask_for(1)]);
        let told = client.heard.lock().iter().filter(|reply| **reply == revoke(8)).count();
        assert_eq!(told, 2, "both replies have come");
        let connection = own.shared.connection().expect("it is there");
        let many = Say::Messages(TERM, messages[..=TOGETHER_MAX].to_vec());
        let refused = ask(&connection, &many).expect_err("more than are allowed");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        // While nobody listens, what nobody repeats is kept.
        door.close();
        own.send_all(TERM, vec![closed(1), ask_for(2), closed(3)]);
        authority.heard.lock().clear();
        let door = serve(&folder, &authority);
        let heard: Vec<Request> = authority.wait_for(2).into_iter().map(|it| it.1).collect();
        assert_eq!(heard, [closed(1), closed(3)], "{spoken:?}");
        own.stop();
        door.close();
    }
}

#[test]
fn a_message_that_makes_no_sense_ends_its_connection_alone() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let own = session(&door, 1).expect("let in");
    let service = Service::TokensOf(FS);
    let stranger = Connection::open(door.endpoint(), &env().introduction, service, LIMIT);
    let stranger = stranger.expect("knows the secret");
    let early = ask(&stranger, &Say::Message(TERM, ask_for(1))).expect_err("not attached");
    assert_eq!(early.kind(), ErrorKind::Invalid);
    let garbage = stranger.call(FrameKind::ControlRequest, &[0xff; 40], &[], LIMIT);
    assert!(garbage.is_err(), "it is not decoded");
    own.send(TERM, closed(1));
    assert_eq!(authority.wait_for(1).len(), 1);
    own.stop();
}

#[test]
fn a_lease_is_renewed_by_pulses_and_counts_from_when_they_were_sent() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let clock = env().clock;
    let before = clock.monotonic();
    let (own, client) = (session(&door, 1).expect("let in"), Arc::new(Client::default()));
    assert!(before <= own.attached() && own.attached() <= clock.monotonic());
    let sink: Weak<Client> = Arc::downgrade(&client);
    own.deliver_to(sink);
    let mut lease = client.lease.lock();
    client.changed.wait_while(&mut lease, |lease| lease.0.len() < 2);
    let now = clock.monotonic();
    assert!(own.attached() < lease.0[0] && lease.0[0] < lease.0[1] && lease.0[1] <= now);
    assert!(lease.0[1] - lease.0[0] >= PULSE && !lease.1);
    drop(lease);
    *authority.dead.lock() = Some(ClientId(1));
    let mut lease = client.lease.lock();
    client.changed.wait_while(&mut lease, |lease| !lease.1);
    let renewed = lease.0.len() as u64;
    drop(lease);
    own.stop();
    assert!(*authority.renewals.lock() > renewed, "the last ones were refused");
}

#[test]
fn a_client_that_cannot_go_on_renews_nothing_and_is_dead() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let (own, client) = (session(&door, 1).expect("let in"), Arc::new(Client::default()));
    let sink: Weak<Client> = Arc::downgrade(&client);
    own.deliver_to(sink);
    own.end_life();
    let mut lease = client.lease.lock();
    client.changed.wait_while(&mut lease, |lease| !lease.1);
    lease.1 = false;
    let renewals = *authority.renewals.lock();
    // It is told with each pulse.
    client.changed.wait_while(&mut lease, |lease| !lease.1);
    drop(lease);
    assert_eq!(*authority.renewals.lock(), renewals);
    own.stop();
}

#[test]
fn an_authority_that_is_away_declares_nobody_dead_and_a_new_connection_renews() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let (own, client) = (session(&door, 1).expect("let in"), Arc::new(Client::default()));
    let sink: Weak<Client> = Arc::downgrade(&client);
    own.deliver_to(sink);
    door.close();
    let known = client.lease.lock().0.len();
    // Saying something makes a connection, if there is anybody.
    own.send(TERM, ask_for(3));
    assert!(!client.lease.lock().1);
    let door = serve(&folder, &authority);
    let mut lease = client.lease.lock();
    client.changed.wait_while(&mut lease, |lease| lease.0.len() <= known);
    assert!(!lease.1, "attaching renews it");
    drop(lease);
    own.stop();
    door.close();
}

/// Leads to a door, and counts how often it is asked.
struct Counted(Endpoint, AtomicU64);

impl Seek for Counted {
    fn seek(&self) -> Result<Site> {
        self.1.fetch_add(1, Ordering::AcqRel);
        Ok(Site { endpoint: self.0.clone(), introduction: env().introduction })
    }
}

/// An operation may send many questions, and each attempt to connect may take long.
#[test]
fn a_leader_that_is_not_there_is_sought_once_for_many_questions() {
    let (folder, authority) = (Folder::new(), Arc::new(Authority::default()));
    let door = serve(&folder, &authority);
    let counted = Arc::new(Counted(door.endpoint().clone(), AtomicU64::new(0)));
    let seek = Arc::clone(&counted) as Arc<dyn Seek>;
    let own = TokenSession::open(Whereabouts::Moving(seek), FS, ClientId(1), env());
    let own = own.expect("let in");
    door.close();
    let before = counted.1.load(Ordering::Acquire);
    own.send_all(TERM, (1..200).map(ask_for).collect());
    let sought = counted.1.load(Ordering::Acquire) - before;
    assert!(sought <= 5, "{sought} times, those of the pulses included");
    own.stop();
}

/// Leads to one of several doors.
struct Doors(Mutex<(usize, Vec<Endpoint>)>);

impl Seek for Doors {
    fn seek(&self) -> Result<Site> {
        let (at, doors) = &*self.0.lock();
        Ok(Site { endpoint: doors[*at].clone(), introduction: env().introduction })
    }
}

#[test]
fn a_client_follows_the_authority_and_goes_to_no_earlier_term() {
    let folders: Vec<Folder> = (0..3).map(|_| Folder::new()).collect();
    let authorities: Vec<Arc<Authority>> = (0..3).map(|_| Arc::default()).collect();
    *authorities[1].term.lock() = Some(Term(2));
    *authorities[2].term.lock() = Some(Term(5));
    let doors: Vec<Door> = folders
        .iter()
        .zip(&authorities)
        .map(|(folder, authority)| serve(folder, authority))
        .collect();
    let endpoints = doors.iter().map(|door| door.endpoint().clone()).collect();
    let seek = Arc::new(Doors(Mutex::new((0, endpoints))));
    let whereabouts = Whereabouts::Moving(Arc::clone(&seek) as Arc<dyn Seek>);
    let own = TokenSession::open(whereabouts, FS, ClientId(1), env()).expect("let in");
    let client = Arc::new(Client::default());
    let sink: Weak<Client> = Arc::downgrade(&client);
    own.deliver_to(sink);
    // The first leader learns of another one. The search finds a node that led earlier still.
    seek.0.lock().0 = 1;
    *authorities[0].deposed.lock() = true;
    while *authorities[1].renewals.lock() < 2 {
        env().clock.sleep(Duration::from_millis(20));
    }
    let renewed = client.lease.lock().0.len();
    own.send(TERM, ask_for(1));
    seek.0.lock().0 = 2;
    let mut terms = client.terms.lock();
    client.changed.wait_while(&mut terms, |terms| terms.is_empty());
    assert_eq!(*terms, [Term(5)], "no earlier one");
    drop(terms);
    assert_eq!(own.term(), Term(5));
    let mut lease = client.lease.lock();
    client.changed.wait_while(&mut lease, |lease| lease.0.len() <= renewed);
    assert!(!lease.1, "nobody declared it dead");
    drop(lease);
    assert!(authorities[1].heard.lock().is_empty());
    own.stop();
}
