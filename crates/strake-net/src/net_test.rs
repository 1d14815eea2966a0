//! Whole sessions over real sockets, with ports that stand for the servers.

use super::auth::greet;
use super::connection::{CallError, Connection};
use super::frame::{FrameKind, Seal, write_frame};
use super::session::{Attempt, Session, encode};
use super::*;
use crate::cluster_test::{TestCluster, name};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use strake_env::net::Ipv4Addr;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock, Rng};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, StripHeader};
use strake_proto::{
    BlockIndex, ErrorKind, FsId, GrantNumber, NsdId, ObjectId, Result, Role, StripIndex, StripKey,
    Version,
};

const NSD: NsdId = NsdId(3);
pub(super) const PATIENT: SessionLimits = SessionLimits {
    connect: Duration::from_secs(20),
    call: Duration::from_secs(60),
    absent: Duration::from_secs(60),
    broken: Duration::from_secs(60),
    look: Duration::from_millis(100),
};

/// A directory of this test's own; gone at its end.
pub(super) struct Folder(PathBuf, u8);

impl Folder {
    pub(super) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, SeqCst);
        let name = format!("strake-rpc-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path, number as u8)
    }

    pub(super) fn path(&self) -> &std::path::Path {
        &self.0
    }

    pub(super) fn socket(&self) -> Endpoint {
        if CIPHER.get().is_none() {
            return Endpoint::Unix(self.0.join("socket"));
        }
        // An address of loopback of its own, so that its port stays free between two servers.
        let [.., third, second] = std::process::id().to_be_bytes();
        Endpoint::Tcp((Ipv4Addr::new(127, third, second, self.1), 4460).into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A test that waits longer at a gate has failed elsewhere.
const GATE_MAX: Duration = Duration::from_secs(60);

/// A door that calls wait at until it is opened.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn pass(&self) {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        self.changed.wait_while_for(&mut state, |state| !state.1, GATE_MAX);
        assert!(state.1, "nobody opens the gate");
    }

    pub(super) fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }

    pub(super) fn wait_for_callers(&self, count: u64) {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.0 < count, GATE_MAX);
        assert!(state.0 >= count, "{} of {count} calls have come", state.0);
    }
}

/// An NSD that keeps strips in memory, and blocks on strips of object 0.
#[derive(Default)]
struct MemoryNsd {
    strips: Mutex<BTreeMap<StripKey, (StripHeader, Vec<u8>)>>,
    copies: AtomicU64,
    gate: Gate,
}

impl NsdPort for MemoryNsd {
    fn call(
        &self,
        _context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        match request {
            NsdRequest::Write { key, header, copy, .. } => {
                self.copies.fetch_add(u64::from(*copy), SeqCst);
                self.strips.lock().insert(*key, (header.clone(), send.to_vec()));
                if key.object == ObjectId(0) {
                    self.gate.pass();
                }
                Ok(NsdReply::Accepted { boot: 1 })
            }
            NsdRequest::Read { key, offset, .. } => {
                if key.object == ObjectId(0) {
                    self.gate.pass();
                }
                let strips = self.strips.lock();
                let (header, bytes) = strips.get(key).ok_or(ErrorKind::NotFound)?;
                let tail = &bytes[(*offset as usize).min(bytes.len())..];
                let count = tail.len().min(receive.len());
                receive[..count].copy_from_slice(&tail[..count]);
                Ok(NsdReply::Strip {
                    header: header.clone(),
                    strip_bytes: bytes.len() as u32,
                    checksums: Vec::new(),
                    payload_bytes: count as u32,
                })
            }
            _ => Ok(NsdReply::Done),
        }
    }
}

fn key(object: u64, block: u64) -> StripKey {
    let (object, block) = (ObjectId(object), BlockIndex(block));
    StripKey { fs: FsId(1), object, block, strip: StripIndex(0) }
}

fn write(key: StripKey, bytes: usize) -> NsdRequest {
    let version = Version { grant: GrantNumber(1), counter: 1 };
    let header = StripHeader { version, block_bytes: bytes as u32, lacks: 0 };
    NsdRequest::Write { key, header, checksums: vec![1, 2, 3], copy: false, stable: Version::NONE }
}

fn read(key: StripKey, bytes: usize) -> NsdRequest {
    NsdRequest::Read { key, version: None, offset: 0, length: bytes as u32 }
}

pub(super) fn secret() -> SharedSecret {
    static SECRET: std::sync::OnceLock<SharedSecret> = std::sync::OnceLock::new();
    SECRET.get_or_init(|| SharedSecret::generate().expect("random bytes")).clone()
}

thread_local! {
    /// How the sessions of this test's thread prove themselves: with certificates, if any cipher.
    static CIPHER: Cell<Option<Cipher>> = const { Cell::new(None) };
}

/// A server `n1` and a client of one cluster.
fn nodes(cipher: Cipher) -> [Arc<NodeCredentials>; 2] {
    static CLUSTER: std::sync::OnceLock<TestCluster> = std::sync::OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| TestCluster::new(7));
    [cluster.node("n1", &[Role::Server], cipher), cluster.node("c1", &[Role::Client], cipher)]
}

/// Runs tests that prove a secret once more with certificates on TCP, with both ciphers.
pub(super) fn over_certificates(tests: &[fn()]) {
    for cipher in [Cipher::AuthOnly, Cipher::Tls] {
        CIPHER.set(Some(cipher));
        tests.iter().for_each(|test| test());
    }
    CIPHER.set(None);
}

pub(super) fn credentials() -> Credentials {
    match CIPHER.get() {
        None => secret().into(),
        Some(cipher) => NodeServer::new(&nodes(cipher)[0]).expect("a server").into(),
    }
}

pub(super) fn introduction() -> Introduction {
    match CIPHER.get() {
        None => secret().into(),
        Some(cipher) => Introduction::node(&nodes(cipher)[1], &name("n1")),
    }
}

pub(super) fn env() -> SessionEnv {
    SessionEnv {
        introduction: introduction(),
        clock: RealClock::shared(),
        waits: Arc::new(()),
        process: None,
        links: None,
    }
}

/// Listens as soon as a server that is being stopped does not any more.
pub(super) fn bind_after(endpoint: &Endpoint) -> Listener {
    loop {
        match Listener::bind(endpoint) {
            Err(error) if error.kind() == ErrorKind::Busy => strake_env::thread::yield_now(),
            bound => return bound.expect("an endpoint"),
        }
    }
}

fn serve_at(endpoint: &Endpoint, port: &Arc<MemoryNsd>, boot: u64) -> RpcServer {
    let listener = bind_after(endpoint);
    let port = Arc::clone(port) as Arc<dyn NsdPort>;
    serve_nsd(listener, NSD, port, credentials(), ServerOptions::new(boot)).expect("threads")
}

fn session(endpoint: &Endpoint, limits: SessionLimits) -> NsdClientSession {
    NsdClientSession::new(endpoint.clone(), NSD, limits, env())
}

fn call(port: &dyn NsdPort, request: &NsdRequest, send: &[u8]) -> Result<NsdReply> {
    port.call(NsdContext::default(), request, send, &mut [])
}

#[test]
fn many_threads_share_a_session_and_every_payload_arrives() {
    let folder = Folder::new();
    let tcp = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
    for endpoint in [folder.socket(), tcp] {
        let server = serve_at(&endpoint, &Arc::default(), 1);
        let session = session(server.endpoint(), PATIENT);
        strake_env::thread::scope(|scope| {
            for thread in 1..9 {
                let session = &session;
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for block in 0..40 {
                        let mut sent = vec![0; 1 + rng.index(300_000)];
                        rng.fill(&mut sent);
                        let request = write(key(thread, block), sent.len());
                        call(session, &request, &sent).expect("written");
                        let mut got = vec![0; sent.len() + 100];
                        let request = read(key(thread, block), got.len());
                        let reply = session.call(NsdContext::default(), &request, &[], &mut got);
                        let Ok(NsdReply::Strip { payload_bytes, .. }) = reply else {
                            panic!("{reply:?}")
                        };
                        assert_eq!(payload_bytes as usize, sent.len());
                        assert_eq!(got[..sent.len()], sent);
                    }
                });
            }
        });
        let missing = call(&session, &read(key(99, 0), 0), &[]).expect_err("never written");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let long = call(&session, &read(key(1, 0), 17 << 20), &[]).expect_err("too long");
        assert_eq!(long.kind(), ErrorKind::Invalid);
        assert_eq!(server.rejected(), 0);
    }
}

#[test]
fn a_slow_call_does_not_hold_up_others_and_ends_at_its_limit() {
    let (folder, port) = (Folder::new(), Arc::<MemoryNsd>::default());
    let server = serve_at(&folder.socket(), &port, 1);
    let patient = session(server.endpoint(), PATIENT);
    strake_env::thread::scope(|scope| {
        let slow = scope.spawn(|| call(&patient, &write(key(0, 0), 4), b"slow"));
        port.gate.wait_for_callers(1);
        call(&patient, &write(key(1, 0), 4), b"fast").expect("overtakes the slow one");
        let hasty = SessionLimits { call: Duration::from_millis(20), ..PATIENT };
        let hasty = session(server.endpoint(), hasty);
        let error = call(&hasty, &read(key(0, 0), 0), &[]).expect_err("too slow");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        port.gate.open();
        assert!(slow.join().expect("no panic").is_ok());
        // The late reply is dropped, and the session goes on. On a busy machine a reply may take
        // longer than the limit.
        let start = RealClock.monotonic();
        let reply = loop {
            match call(&hasty, &NsdRequest::Status, &[]) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    assert!(RealClock.monotonic() - start < PATIENT.call, "no reply comes");
                }
                reply => break reply.expect("the same session"),
            }
        };
        assert!(matches!(reply, NsdReply::Done), "{reply:?}");
    });
}

#[test]
fn a_write_survives_a_server_killed_and_restarted_while_it_has_it() {
    let folder = Folder::new();
    let (first, second) = (Arc::<MemoryNsd>::default(), Arc::<MemoryNsd>::default());
    let server = serve_at(&folder.socket(), &first, 1);
    let session = session(server.endpoint(), PATIENT);
    strake_env::thread::scope(|scope| {
        let writer = scope.spawn(|| call(&session, &write(key(0, 7), 5), b"bytes"));
        first.gate.wait_for_callers(1);
        // Stopping closes the connection at once and then waits for the call being executed, which
        // goes on until the next server has the call as well.
        let stopping = scope.spawn(|| server.stop());
        let again = serve_at(&folder.socket(), &second, 2);
        second.gate.wait_for_callers(1);
        first.gate.open();
        stopping.join().expect("no panic");
        second.gate.open();
        assert!(writer.join().expect("no panic").is_ok());
        drop(again);
    });
    assert_eq!(second.strips.lock()[&key(0, 7)].1, b"bytes");
    assert_eq!(second.copies.load(SeqCst), 1, "repeated as put-if-newer");
    assert_eq!(first.copies.load(SeqCst), 0);
}

/// An NSD without a lease, until it has refused so many requests.
struct Lapsed(AtomicU64, Arc<MemoryNsd>);

impl NsdPort for Lapsed {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if self.0.load(SeqCst) == 0 {
            return self.1.call(context, request, send, receive);
        }
        // A reply is judged as well: by then the request was carried out.
        let _ = self.1.call(context, request, send, receive);
        self.0.fetch_sub(1, SeqCst);
        Err(ErrorKind::Unreachable.into())
    }
}

#[test]
fn a_request_waits_for_the_lease_of_a_server_that_was_started_anew() {
    let folder = Folder::new();
    let memory = Arc::<MemoryNsd>::default();
    let port = Arc::new(Lapsed(AtomicU64::new(3), Arc::clone(&memory)));
    let (listener, options) = (bind_after(&folder.socket()), ServerOptions::new(1));
    let served = Arc::clone(&port) as Arc<dyn NsdPort>;
    let server = serve_nsd(listener, NSD, served, secret(), options).expect("serves");
    let session = session(&folder.socket(), SessionLimits::NSD);
    let data = vec![7; 4096];
    call(&session, &write(key(1, 1), data.len()), &data).expect("written once it has its lease");
    assert_eq!(memory.copies.load(SeqCst), 3, "a repetition may find its own first attempt");
    port.0.store(u64::MAX, SeqCst);
    let start = RealClock.monotonic();
    let error = call(&session, &NsdRequest::Status, &[]).expect_err("no lease comes");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(RealClock.monotonic() - start < Duration::from_secs(20), "it is given up");
    server.stop();
}

#[test]
fn calls_of_a_server_that_stands_still_end_when_its_nsd_is_out_of_use() {
    let folder = Folder::new();
    let still = Arc::<MemoryNsd>::default();
    let server = serve_at(&folder.socket(), &still, 1);
    let session = session(server.endpoint(), PATIENT);
    strake_env::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|block| {
                let session = &session;
                scope.spawn(move || call(session, &write(key(0, block), 5), b"bytes"))
            })
            .collect();
        still.gate.wait_for_callers(3);
        session.abandon();
        for caller in callers {
            let error = caller.join().expect("no panic").expect_err("nobody has answered");
            assert_eq!(error.kind(), ErrorKind::Unreachable);
        }
        assert_eq!(still.copies.load(SeqCst), 0, "none of them was tried again");
        still.gate.open();
    });
    call(&session, &NsdRequest::Status, &[]).expect("later calls are made as ever");
    server.stop();
}

#[test]
fn a_call_that_was_given_up_is_not_sent_on_a_connection_that_is_made_later() {
    let folder = Folder::new();
    let server = serve_at(&folder.socket(), &Arc::default(), 1);
    let session = Session::new(server.endpoint().clone(), Service::Nsd(NSD), PATIENT, env());
    let connecting = Gate::default();
    let prepare = |_: &Connection| {
        connecting.pass();
        Ok(())
    };
    let call = || session.persist("a test", &prepare, &mut |_| Attempt::Over(Ok(())));
    strake_env::thread::scope(|scope| {
        let caller = scope.spawn(call);
        connecting.wait_for_callers(1);
        session.abandon(&ErrorKind::Unreachable.into());
        connecting.open();
        let error = caller.join().expect("no panic").expect_err("it was given up");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        call().expect("later calls are made as ever");
    });
    server.stop();
}

#[test]
fn an_absent_server_is_unreachable_at_once_where_patience_is_zero() {
    let folder = Folder::new();
    let limits = SessionLimits { broken: Duration::ZERO, ..SessionLimits::NSD };
    let session = session(&folder.socket(), limits);
    let error = call(&session, &NsdRequest::Status, &[]).expect_err("nobody there");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let server = serve_at(&folder.socket(), &Arc::default(), 1);
    call(&session, &NsdRequest::Status, &[]).expect("there now");
    drop(server);
    let error = call(&session, &NsdRequest::Status, &[]).expect_err("gone again");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[test]
fn without_the_secret_there_is_no_session_in_either_direction() {
    let folder = Folder::new();
    let server = serve_at(&folder.socket(), &Arc::default(), 1);
    let other = SharedSecret::generate().expect("random bytes");
    let stranger = SessionEnv { introduction: other.clone().into(), ..env() };
    let session_of = |env| NsdClientSession::new(folder.socket(), NSD, PATIENT, env);
    let error = call(&session_of(stranger), &NsdRequest::Status, &[]).expect_err("a stranger");
    assert_eq!(error.kind(), ErrorKind::Access);
    assert!(error.to_string().contains("secret"), "{error}");

    // Somebody else's service is named, not served.
    let mut stream = Stream::connect(&folder.socket(), PATIENT.connect).expect("listening");
    let wrong_service = greet(&mut stream, &secret(), Service::Meta).err().expect("an NSD");
    assert_eq!(wrong_service.kind(), ErrorKind::Access);
    assert!(wrong_service.to_string().contains("this is nsd 3"), "{wrong_service}");
    call(&session_of(env()), &NsdRequest::Status, &[]).expect("a friend is served still");
    drop(server);

    let listener = Listener::bind(&folder.socket()).expect("free");
    let port = Arc::<MemoryNsd>::default();
    let _server = serve_nsd(listener, NSD, port, other, ServerOptions::new(1)).expect("threads");
    let error = call(&session_of(env()), &NsdRequest::Status, &[]).expect_err("an impostor");
    assert_eq!(error.kind(), ErrorKind::Access);
}

#[test]
fn a_client_that_guesses_its_proof_is_turned_away() {
    let folder = Folder::new();
    let listener = Listener::bind(&folder.socket()).expect("free");
    strake_env::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut stream = listener.accept().expect("a client");
            let limits = CallLimits { calls_max: 1, bytes_max: 1 };
            let terms = auth::Terms { boot: 1, limits };
            auth::welcome(&mut stream, &secret(), Service::Meta, terms).err()
        });
        let mut stream = Stream::connect(&folder.socket(), PATIENT.connect).expect("listening");
        // It does not know the secret and sends the only thing it got back as its proof.
        let greeting = encode(&(0u32, Service::Meta, [5u8; 32])).expect("encodes");
        let mut open = Seal::none();
        write_frame(&mut stream, &mut open, FrameKind::Hello, 0, &greeting, &[]).expect("sent");
        let mut challenge = [0; 56 + 1 + 32];
        stream.read_exact(&mut challenge).expect("a challenge");
        let mut proof = vec![2];
        proof.extend_from_slice(&challenge[challenge.len() - 32..]);
        write_frame(&mut stream, &mut open, FrameKind::Hello, 0, &proof, &[]).expect("sent");
        let refused = server.join().expect("no panic").expect("the reflected nonce is no proof");
        assert_eq!(refused.kind(), ErrorKind::Access, "{refused}");
    });
}

#[test]
fn garbage_and_oversized_frames_end_one_connection_and_nothing_else() {
    let folder = Folder::new();
    let server = serve_at(&folder.socket(), &Arc::default(), 1);
    let connect = || Stream::connect(&folder.socket(), PATIENT.connect).expect("listening");
    let ended = |mut stream: Stream| {
        let mut rest = Vec::new();
        // A reset is an end as well: the server may close with our bytes unread.
        let _ = stream.read_to_end(&mut rest);
    };
    let mut rng = Rng::new(5);
    for round in 0..20 {
        let mut stream = connect();
        let mut garbage = vec![0; 1 + rng.index(5000)];
        rng.fill(&mut garbage);
        if round % 2 == 0 {
            garbage.splice(..0, *b"SRPC");
        }
        let _ = stream.write_all(&garbage);
        // Nothing more comes, so what looks like the start of a head ends here too.
        match &stream {
            Stream::Unix(socket) => {
                socket.shutdown(strake_env::net::Shutdown::Write).expect("half closed");
            }
            _ => unreachable!("a Unix socket"),
        }
        ended(stream);
    }
    for (message, payload) in [(u32::MAX, 0u32), (0, u32::MAX), (5 << 20, 0), (0, 17 << 20)] {
        let mut stream = connect();
        let mut agreed = greet(&mut stream, &secret(), Service::Nsd(NSD)).expect("a friend");
        let mut frame = Vec::new();
        write_frame(&mut frame, &mut agreed.sending, FrameKind::NsdRequest, 1, &[], &[])
            .expect("a Vec");
        frame[16..20].copy_from_slice(&message.to_le_bytes());
        frame[20..24].copy_from_slice(&payload.to_le_bytes());
        let check = crc32c::crc32c(&frame[..36]);
        frame[36..40].copy_from_slice(&check.to_le_bytes());
        stream.write_all(&frame).expect("sent");
        ended(stream);
    }
    let session = session(&folder.socket(), PATIENT);
    call(&session, &NsdRequest::Status, &[]).expect("others are served");
    server.stop();
}

#[test]
fn mutated_requests_of_an_authenticated_client_are_answered_or_end_its_connection() {
    let folder = Folder::new();
    let port = Arc::<MemoryNsd>::default();
    port.gate.open();
    let server = serve_at(&folder.socket(), &port, 1);
    let seed = 77;
    let mut rng = Rng::new(seed);
    let open = || {
        Connection::open(&folder.socket(), &introduction(), Service::Nsd(NSD), PATIENT.connect)
            .expect("a friend")
    };
    let mut connection = open();
    let (mut answered, mut ended) = (0, 0);
    for _ in 0..2000 {
        let request = match rng.index(3) {
            0 => write(key(1, 2), 64),
            1 => read(key(1, 2), 64),
            _ => NsdRequest::List {
                fs: FsId(1),
                object: ObjectId(1),
                block: BlockIndex(0),
                strip: StripIndex(0),
                until: ObjectId(9),
                limit: 10,
            },
        };
        let mut message = encode(&(NsdContext::default(), request)).expect("encodes");
        for _ in 0..1 + rng.index(3) {
            let at = rng.index(message.len());
            message[at] = rng.next_u64() as u8;
        }
        message.truncate(message.len() - rng.index(2) * rng.index(8));
        match connection.call(FrameKind::NsdRequest, &message, &[7; 64], PATIENT.call) {
            Ok(_) => answered += 1,
            Err(CallError::Disconnected(_)) => {
                ended += 1;
                connection = open();
            }
            Err(CallError::Failed(error)) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(answered > 100 && ended > 100, "{answered} answered, {ended} ended");
    drop(connection);
    server.stop();
}

#[test]
fn a_server_that_talks_nonsense_or_nothing_is_an_error_and_no_hang() {
    let folder = Folder::new();
    let listener = Listener::bind(&folder.socket()).expect("free");
    strake_env::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().expect("the first client");
            let _ = stream.write_all(&[0x5a; 200]);
            let silent = listener.accept().expect("the second client");
            let mut rest = Vec::new();
            let _ = { silent }.read_to_end(&mut rest);
        });
        let limits = SessionLimits { absent: Duration::ZERO, ..PATIENT };
        let error = call(&session(&folder.socket(), limits), &NsdRequest::Status, &[]);
        assert_eq!(error.expect_err("nonsense").kind(), ErrorKind::Corrupt);
        let hasty = SessionLimits { connect: Duration::from_millis(50), ..limits };
        let error = call(&session(&folder.socket(), hasty), &NsdRequest::Status, &[]);
        assert_eq!(error.expect_err("silence").kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_client_with_too_many_requests_waits_its_turn_and_the_server_can_stop_meanwhile() {
    let (folder, port) = (Folder::new(), Arc::<MemoryNsd>::default());
    let listener = Listener::bind(&folder.socket()).expect("free");
    let options = ServerOptions { workers: 1, requests_max: 2, ..ServerOptions::new(1) };
    let served = Arc::clone(&port) as Arc<dyn NsdPort>;
    let server = serve_nsd(listener, NSD, served, credentials(), options).expect("threads");
    let limits = SessionLimits { broken: Duration::ZERO, absent: Duration::ZERO, ..PATIENT };
    let session = session(server.endpoint(), limits);
    strake_env::thread::scope(|scope| {
        let calls: Vec<_> = (0..20)
            .map(|block| {
                let session = &session;
                scope.spawn(move || call(session, &write(key(0, block), 4), b"data"))
            })
            .collect();
        port.gate.wait_for_callers(1);
        let stopping = scope.spawn(|| server.stop());
        // All calls end although the worker still hangs in the first one.
        for call in calls {
            let error = call.join().expect("no panic").expect_err("the server went away");
            assert_eq!(error.kind(), ErrorKind::Unreachable);
        }
        port.gate.open();
        stopping.join().expect("no panic");
    });
    assert_eq!(port.strips.lock().len(), 1, "what was queued was not executed");
}

#[test]
fn waits_have_names() {
    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);
    impl WaitNames for Names {
        fn begin_wait(&self, reason: &'static str, detail: &str) -> usize {
            self.0.lock().push(format!("{reason} {detail}"));
            0
        }
        fn end_wait(&self, _wait: usize) {
            self.0.lock().push("end".to_owned());
        }
    }
    let folder = Folder::new();
    let _server = serve_at(&folder.socket(), &Arc::default(), 1);
    let names = Arc::new(Names::default());
    let env = SessionEnv { waits: Arc::clone(&names) as Arc<dyn WaitNames>, ..env() };
    let session = NsdClientSession::new(folder.socket(), NSD, PATIENT, env);
    call(&session, &write(key(1, 1), 1), b"x").expect("written");
    assert_eq!(*names.0.lock(), ["for a strip write on nsd 3", "end"]);
}

#[test]
fn sessions_do_the_same_with_certificates() {
    over_certificates(&[
        many_threads_share_a_session_and_every_payload_arrives,
        a_slow_call_does_not_hold_up_others_and_ends_at_its_limit,
        a_write_survives_a_server_killed_and_restarted_while_it_has_it,
        an_absent_server_is_unreachable_at_once_where_patience_is_zero,
        mutated_requests_of_an_authenticated_client_are_answered_or_end_its_connection,
        a_server_that_talks_nonsense_or_nothing_is_an_error_and_no_hang,
        a_client_with_too_many_requests_waits_its_turn_and_the_server_can_stop_meanwhile,
        waits_have_names,
    ]);
}

#[test]
fn secrets_are_kept_in_files_that_only_their_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.0.join("secret");
    secret().store(&path).expect("stored");
    assert_eq!(SharedSecret::load(&path).expect("loaded"), secret());
    assert_eq!(secret().store(&path).expect_err("not twice").kind(), ErrorKind::Exists);
    assert_eq!(format!("{:?}", secret()), "SharedSecret(…)");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("mine");
    assert_eq!(SharedSecret::load(&path).expect_err("open to all").kind(), ErrorKind::Access);
    for bad in ["", "abc", &"é".repeat(32), &"g".repeat(64), &"0".repeat(66)] {
        let path = folder.0.join("bad");
        std::fs::write(&path, bad).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("mine");
        assert_eq!(SharedSecret::load(&path).expect_err(bad).kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let folder = Folder::new();
    let Endpoint::Unix(path) = folder.socket() else { unreachable!("a Unix socket") };
    drop(Listener::bind(&folder.socket()).expect("free"));
    assert!(path.exists(), "a listener that dies leaves its socket");
    let live = Listener::bind(&folder.socket()).expect("dead sockets are replaced");
    assert_eq!(Listener::bind(&folder.socket()).expect_err("live").kind(), ErrorKind::Busy);
    drop(live);
    std::fs::remove_file(&path).expect("mine");
    std::fs::write(&path, "precious").expect("written");
    assert_eq!(Listener::bind(&folder.socket()).expect_err("a file").kind(), ErrorKind::Busy);
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
}
