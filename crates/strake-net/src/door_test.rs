//! One door with several services: each client gets the service that it names, services come and
//! go, strangers get nothing, and a service that is held up holds up no other.

use super::*;
use crate::cluster_test::wait_for_rejected;
use crate::connection::Connection;
use crate::net_test::{Folder, Gate, env, secret};
use crate::{
    MetaClientSession, NsdClientSession, ProvenPeer, SessionLimits, SharedSecret, ask_node,
};
use strake_proto::ErrorKind;
use strake_proto::meta::{MetaEntry, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdReply, NsdRequest};

const PATIENCE: Duration = Duration::from_secs(20);

/// An NSD whose `Status` waits at a gate, if it has one.
struct Nsd(Option<Arc<Gate>>);

impl NsdPort for Nsd {
    fn call(
        &self,
        _context: NsdContext,
        _request: &NsdRequest,
        _send: &[u8],
        _receive: &mut [u8],
    ) -> Result<NsdReply> {
        self.0.iter().for_each(|gate| gate.pass());
        Ok(NsdReply::Done)
    }
}

struct Meta;

impl MetaPort for Meta {
    fn query(&self, _query: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn apply(&self, _entry: &MetaEntry) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Answers with the request, backwards.
struct Echo;

impl ControlPort for Echo {
    fn answer(&self, _peer: &ProvenPeer, request: &[u8]) -> Result<Vec<u8>> {
        Ok(request.iter().rev().copied().collect())
    }
}

fn open(folder: &Folder) -> Door {
    let listener = Listener::bind(&folder.socket()).expect("binds");
    Door::open(listener, secret(), ServerOptions::new(7)).expect("opens")
}

fn nsd(door: &Door, id: u32) -> NsdClientSession {
    NsdClientSession::new(door.endpoint().clone(), NsdId(id), SessionLimits::NSD, env())
}

fn status(session: &NsdClientSession) -> Result<NsdReply> {
    session.call(NsdContext::default(), &NsdRequest::Status, &[], &mut [])
}

#[test]
fn each_client_gets_the_service_that_it_names() {
    let folder = Folder::new();
    let door = open(&folder);
    door.serve_nsd(NsdId(1), Arc::new(Nsd(None))).expect("serves");
    door.serve_meta(FsId(3), Arc::new(Meta)).expect("serves");
    door.serve_node(Arc::new(Echo)).expect("serves");
    assert_eq!(status(&nsd(&door, 1)), Ok(NsdReply::Done));
    let limits = SessionLimits { absent: Duration::ZERO, ..SessionLimits::META };
    let meta = |fs| {
        MetaClientSession::of(door.endpoint().clone(), Service::MetaOf(FsId(fs)), limits, env())
    };
    assert_eq!(meta(3).query(&MetaQuery::Counts), Ok(MetaReply::Done));
    assert_eq!(
        meta(4).query(&MetaQuery::Counts).map_err(|e| e.kind()),
        Err(ErrorKind::Unreachable)
    );
    let answer = ask_node(door.endpoint(), &secret().into(), b"abc", PATIENCE, PATIENCE);
    assert_eq!(answer, Ok(b"cba".to_vec()));
    wait_for_rejected(&door, 1);
}

#[test]
fn an_nsd_that_is_not_served_is_unreachable_until_it_is() {
    let folder = Folder::new();
    let door = open(&folder);
    let session = nsd(&door, 1);
    assert_eq!(status(&session).map_err(|error| error.kind()), Err(ErrorKind::Unreachable));
    door.serve_nsd(NsdId(1), Arc::new(Nsd(None))).expect("serves");
    assert_eq!(status(&session), Ok(NsdReply::Done));
    door.end(Service::Nsd(NsdId(1)));
    assert_eq!(status(&session).map_err(|error| error.kind()), Err(ErrorKind::Unreachable));
    door.serve_nsd(NsdId(1), Arc::new(Nsd(None))).expect("serves");
    assert_eq!(status(&session), Ok(NsdReply::Done));
}

#[test]
fn metadata_that_is_served_again_has_another_boot_number() {
    let folder = Folder::new();
    let door = open(&folder);
    let (service, own) = (Service::MetaOf(FsId(3)), env().introduction);
    let boot = || {
        assert!(!door.serves_meta(FsId(3)));
        door.serve_meta(FsId(3), Arc::new(Meta)).expect("serves");
        assert!(door.serves_meta(FsId(3)) && !door.serves_meta(FsId(4)));
        let connection = Connection::open(door.endpoint(), &own, service, PATIENCE);
        let boot = connection.expect("served").boot();
        door.end(service);
        boot
    };
    assert_ne!(boot(), boot(), "another node may have served it meanwhile");
}

#[test]
fn a_stranger_gets_nothing_and_is_counted() {
    let folder = Folder::new();
    let door = open(&folder);
    door.serve_node(Arc::new(Echo)).expect("serves");
    let other = SharedSecret::generate().expect("random");
    let error =
        ask_node(door.endpoint(), &other.into(), b"abc", PATIENCE, PATIENCE).expect_err("other");
    assert_eq!(error.kind(), ErrorKind::Access);
    assert!(ask_node(door.endpoint(), &secret().into(), b"abc", PATIENCE, PATIENCE).is_ok());
    wait_for_rejected(&door, 1);
}

#[test]
fn an_nsd_that_is_held_up_holds_up_no_other() {
    let folder = Folder::new();
    let door = open(&folder);
    let gate = Arc::new(Gate::default());
    door.serve_nsd(NsdId(1), Arc::new(Nsd(Some(Arc::clone(&gate))))).expect("serves");
    door.serve_nsd(NsdId(2), Arc::new(Nsd(None))).expect("serves");
    let workers = ServerOptions::new(7).workers as u64;
    let held = nsd(&door, 1);
    strake_env::thread::scope(|scope| {
        for _ in 0..=workers {
            scope.spawn(|| status(&held));
        }
        gate.wait_for_callers(workers);
        assert_eq!(status(&nsd(&door, 2)), Ok(NsdReply::Done));
        gate.open();
    });
}

#[test]
fn a_door_that_closes_ends_those_who_are_inside_and_those_who_greet() {
    let folder = Folder::new();
    let door = open(&folder);
    door.serve_nsd(NsdId(1), Arc::new(Nsd(None))).expect("serves");
    let session = nsd(&door, 1);
    assert_eq!(status(&session), Ok(NsdReply::Done));
    // It connects and never says a word.
    let silent = Stream::connect(door.endpoint(), PATIENCE).expect("connects");
    door.close();
    assert!(silent.is_readable(PATIENCE).expect("a socket"), "it sees the end");
    assert_eq!(status(&session).map_err(|error| error.kind()), Err(ErrorKind::Unreachable));
}
