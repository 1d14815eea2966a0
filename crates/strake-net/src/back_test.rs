//! Requests in both directions over one connection: crossing under load, never answered, lost on
//! the way, more than allowed.

use super::*;
use crate::auth::{SharedSecret, Terms, welcome};
use crate::connection::Connection;
use crate::frame::{FrameLimits, read_frame, write_frame};
use crate::server::{Answer, ConnectedClient, Handler, RpcServer, ServerOptions};
use crate::{ProvenPeer, Service, WaitNames};
use std::sync::Arc;
use std::time::Duration;
use strake_env::Rng;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::stream::{Endpoint, Listener, Stream};
use strake_env::sync::{Condvar, Mutex};

const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(50);
const REASON: &str = "for a test";

fn secret() -> SharedSecret {
    static SECRET: std::sync::OnceLock<SharedSecret> = std::sync::OnceLock::new();
    SECRET.get_or_init(|| SharedSecret::generate().expect("random bytes")).clone()
}

/// What an honest end answers.
fn reversed(message: &[u8]) -> Vec<u8> {
    message.iter().rev().copied().collect()
}

/// A service that reverses messages, and holds up those that begin with `!` while `held`.
#[derive(Default)]
struct Reversing {
    held: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Reversing {
    fn hold(&self, held: bool) {
        self.held.lock().0 = held;
        self.changed.notify_all();
    }

    fn wait_for_held(&self, count: usize) {
        let mut held = self.held.lock();
        self.changed.wait_while(&mut held, |held| held.1 < count);
    }
}

impl Handler for Reversing {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::NsdRequest, FrameKind::NsdReply)
    }

    fn handle(
        &self,
        _peer: &ProvenPeer,
        message: &[u8],
        _payload: &[u8],
        _buffer: Vec<u8>,
    ) -> Result<Answer> {
        if message.first() == Some(&b'!') {
            let mut held = self.held.lock();
            held.1 += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut held, |held| held.0);
        }
        Ok(Answer { message: reversed(message), payload: Vec::new() })
    }
}

fn serve(service: &Arc<Reversing>, options: ServerOptions) -> RpcServer {
    let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listener = Listener::bind(&endpoint).expect("a free port");
    let handler = Arc::clone(service) as Arc<dyn Handler>;
    RpcServer::start(listener, Service::Meta, handler, secret().into(), options).expect("threads")
}

fn connect(server: &RpcServer, handler: Arc<dyn BackHandler>) -> Connection {
    let (endpoint, introduction) = (server.endpoint(), secret().into());
    Connection::answering(endpoint, &introduction, Service::Meta, PATIENCE, handler)
        .expect("a friend")
}

/// The only client. It was welcomed before its connection was there, but perhaps not yet listed.
fn client(server: &RpcServer) -> ConnectedClient {
    loop {
        if let Some(client) = server.clients().pop() {
            return client;
        }
        strake_env::thread::yield_now();
    }
}

/// Reverses, after it has asked the server something itself.
struct Asking {
    connection: Mutex<Option<Arc<Connection>>>,
}

impl BackHandler for Asking {
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>> {
        let connection = self.connection.lock().clone().expect("it is there before the first");
        let reply = connection.call(FrameKind::NsdRequest, message, &[], PATIENCE)?;
        assert_eq!(reply.message, reversed(message));
        Ok(reply.message)
    }
}

#[test]
fn requests_cross_under_load_and_each_gets_its_own_reply() {
    let service = Arc::new(Reversing::default());
    let server = serve(&service, ServerOptions { requests_max: 4, ..ServerOptions::new(1) });
    let asking = Arc::new(Asking { connection: Mutex::new(None) });
    let connection = Arc::new(connect(&server, Arc::clone(&asking) as Arc<dyn BackHandler>));
    *asking.connection.lock() = Some(Arc::clone(&connection));
    let client = client(&server);
    strake_env::thread::scope(|scope| {
        for seed in 0..12u64 {
            let (client, connection) = (client.clone(), &connection);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..200 {
                    let mut message = vec![0; 16 + rng.index(3000)];
                    rng.fill(&mut message);
                    // Held up are those that begin with another byte.
                    message[0] = seed as u8;
                    let reply = if seed % 2 == 0 {
                        client.call(&message, PATIENCE, &(), REASON).expect("answered")
                    } else {
                        let kind = FrameKind::NsdRequest;
                        let reply = connection.call(kind, &message, &[], PATIENCE);
                        reply.expect("answered").message
                    };
                    assert_eq!(reply, reversed(&message), "seed {seed}");
                }
            });
        }
    });
    *asking.connection.lock() = None;
    assert_eq!(server.rejected(), 0);
}

#[test]
fn a_client_answers_although_its_own_requests_are_held_up() {
    let service = Arc::new(Reversing::default());
    service.hold(true);
    let options = ServerOptions { requests_max: 3, workers: 8, ..ServerOptions::new(1) };
    let server = serve(&service, options);
    struct Reverse;
    impl BackHandler for Reverse {
        fn answer(&self, message: &[u8]) -> Result<Vec<u8>> {
            Ok(reversed(message))
        }
    }
    let connection = connect(&server, Arc::new(Reverse));
    strake_env::thread::scope(|scope| {
        // More than the server takes: the rest must not stand in the way of an answer.
        for _ in 0..10 {
            let connection = &connection;
            scope.spawn(move || {
                let reply = connection.call(FrameKind::NsdRequest, b"!held", &[], PATIENCE);
                assert_eq!(reply.expect("answered in the end").message, b"dleh!");
            });
        }
        service.wait_for_held(3);
        let answer = client(&server).call(b"back", PATIENCE, &(), REASON);
        // Whatever it is, the others must end.
        service.hold(false);
        assert_eq!(answer.expect("answered"), b"kcab");
    });
}

/// Answers nothing until its sender is dropped.
struct Silent(Mutex<Receiver<()>>, Mutex<Sender<()>>);

impl Silent {
    fn new() -> (Silent, Sender<()>, Receiver<()>) {
        let ((open, door), (begun, begins)) = (channel(), channel());
        (Silent(Mutex::new(door), Mutex::new(begun)), open, begins)
    }
}

impl BackHandler for Silent {
    fn answer(&self, _message: &[u8]) -> Result<Vec<u8>> {
        let _ = self.1.lock().send(());
        let _ = self.0.lock().recv();
        Ok(b"late".to_vec())
    }
}

/// Notes the names of waits.
#[derive(Default)]
struct Names(Mutex<Vec<String>>);

impl WaitNames for Names {
    fn begin_wait(&self, reason: &'static str, detail: &str) -> usize {
        let mut names = self.0.lock();
        names.push(format!("{reason} {detail}"));
        names.len() - 1
    }
    fn end_wait(&self, wait: usize) {
        self.0.lock()[wait].push_str(" ended");
    }
}

#[test]
fn a_client_that_never_answers_is_given_up_with_a_name_and_serves_on() {
    let server = serve(&Arc::default(), ServerOptions::new(1));
    let (silent, open, begins) = Silent::new();
    let connection = connect(&server, Arc::new(silent));
    let (client, names) = (client(&server), Names::default());
    let error = client.call(b"a", SOON, &names, REASON).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(*names.0.lock(), [format!("{REASON} client {} ended", client.id())]);
    // Those that ran out of time keep their places, because the client still works on them.
    for _ in 1..BACK_REQUESTS_MAX {
        let error = client.call(b"a", Duration::ZERO, &(), REASON).expect_err("no answer");
        assert_eq!(error.to_string(), "no reply within 0.0 s");
    }
    let error = client.call(b"a", SOON, &(), REASON).expect_err("no room");
    assert!(error.to_string().contains("takes no more requests"), "{error}");
    begins.recv().expect("the client works on them");
    let reply = connection.call(FrameKind::NsdRequest, b"abc", &[], PATIENCE);
    assert_eq!(reply.expect("served meanwhile").message, b"cba");
    drop(open);
    // Late answers make room and are dropped.
    assert_eq!(client.call(b"a", PATIENCE, &(), REASON).expect("answered"), b"late");
}

#[test]
fn a_lost_connection_ends_the_servers_requests() {
    let server = serve(&Arc::default(), ServerOptions::new(1));
    let (silent, open, begins) = Silent::new();
    let connection = connect(&server, Arc::new(silent));
    let client = client(&server);
    strake_env::thread::scope(|scope| {
        let asks = scope.spawn(|| client.call(b"a", PATIENCE, &(), REASON));
        begins.recv().expect("the client works on it");
        drop(connection);
        let error = asks.join().expect("no panic").expect_err("nobody answers any more");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let error = client.call(b"a", PATIENCE, &(), REASON).expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
    drop(open);
    server.stop();
}

#[test]
fn a_server_that_stops_ends_its_own_requests() {
    let server = serve(&Arc::default(), ServerOptions::new(1));
    let (silent, _open, begins) = Silent::new();
    let _connection = connect(&server, Arc::new(silent));
    let client = client(&server);
    strake_env::thread::scope(|scope| {
        let asks = scope.spawn(|| client.call(b"a", PATIENCE, &(), REASON));
        begins.recv().expect("the client works on it");
        server.stop();
        let error = asks.join().expect("no panic").expect_err("nobody answers any more");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

#[test]
fn clients_that_expect_no_requests_say_so_and_long_ones_are_refused() {
    let server = serve(&Arc::default(), ServerOptions::new(1));
    let connection = connect(&server, Arc::new(NoBackRequests));
    let client = client(&server);
    let error = client.call(b"a", PATIENCE, &(), REASON).expect_err("unexpected");
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    let long = vec![0; BACK_MESSAGE_BYTES_MAX + 1];
    let error = client.call(&long, PATIENCE, &(), REASON).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::TooBig);
    let long = reply(Ok(long)).expect("encodes");
    let error = decode_reply(FrameKind::BackReply, &long).expect_err("too long to answer");
    assert_eq!(error.kind(), ErrorKind::TooBig);
    drop(connection);
}

/// A server that sends `frames` requests at once to whoever comes, and then reads to the end.
fn flooding(listener: &Listener, frames: usize) -> usize {
    let mut stream = listener.accept().expect("a client");
    let limits = CallLimits { calls_max: 8, bytes_max: 1 << 20 };
    let terms = Terms { boot: 1, limits };
    let mut agreed = welcome(&mut stream, &secret(), Service::Meta, terms).expect("a friend");
    for number in 0..frames as u64 {
        let kind = FrameKind::BackRequest;
        if write_frame(&mut stream, &mut agreed.sending, kind, number, b"a", &[]).is_err() {
            break;
        }
    }
    let mut answers = 0;
    let mut buffer = |bytes| vec![0; bytes];
    while let Ok(Some(_)) =
        read_frame(&mut stream, &mut agreed.receiving, FrameLimits::SESSION, &mut buffer)
    {
        answers += 1;
    }
    answers
}

#[test]
fn a_server_that_asks_more_than_it_may_is_left() {
    let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listener = Listener::bind(&endpoint).expect("a free port");
    let endpoint = listener.endpoint().expect("bound");
    // Also those that are being answered have room, so that one more is too many for sure.
    let most = BACK_WORKERS.threads_max + BACK_WORKERS.waiting_max;
    strake_env::thread::scope(|scope| {
        let server = scope.spawn(|| flooding(&listener, most + 1));
        let (silent, open, _begins) = Silent::new();
        let handler = Arc::new(silent);
        let connection =
            Connection::answering(&endpoint, &secret().into(), Service::Meta, PATIENCE, handler)
                .expect("a friend");
        assert_eq!(server.join().expect("no panic"), 0, "the client hung up");
        let error = Error::from(
            connection.call(FrameKind::NsdRequest, b"a", &[], PATIENCE).expect_err("lost"),
        );
        assert!(error.to_string().contains("more requests in flight than it may"), "{error}");
        drop(open);
    });
}

#[test]
fn mutated_answers_are_errors_or_answers_and_unasked_ones_are_dropped() {
    let server = serve(&Arc::default(), ServerOptions::new(1));
    let seed = 23;
    let mut rng = Rng::new(seed);
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..40 {
        let mut stream = Stream::connect(server.endpoint(), PATIENCE).expect("listening");
        let mut agreed =
            crate::auth::greet(&mut stream, &secret(), Service::Meta).expect("a friend");
        let client = client(&server);
        for _ in 0..20 {
            strake_env::thread::scope(|scope| {
                let asks = scope.spawn(|| client.call(b"what?", PATIENCE, &(), REASON));
                let mut buffer = |bytes| vec![0; bytes];
                let frame = read_frame(
                    &mut stream,
                    &mut agreed.receiving,
                    FrameLimits::SESSION,
                    &mut buffer,
                );
                let number = frame.expect("valid").expect("a request").number;
                let mut message = reply(Ok(b"an answer".to_vec())).expect("encodes");
                for _ in 0..rng.index(3) {
                    let at = rng.index(message.len());
                    message[at] = rng.next_u64() as u8;
                }
                message.truncate(message.len() - rng.index(2) * rng.index(5));
                // Nobody asked for the first one.
                for number in [number + 1000, number] {
                    let (kind, sending) = (FrameKind::BackReply, &mut agreed.sending);
                    write_frame(&mut stream, sending, kind, number, &message, &[]).expect("sent");
                }
                match asks.join().expect("no panic") {
                    Ok(_) => answered += 1,
                    Err(_) => refused += 1,
                }
            });
        }
        drop(stream);
        // It is gone before the next one comes, so that there is one client only.
        while !server.clients().is_empty() {
            strake_env::thread::yield_now();
        }
    }
    assert!(answered > 100 && refused > 100, "seed {seed}: {answered} and {refused}");
    assert_eq!(server.rejected(), 0, "what an answer says is no break of the protocol");
}

/// Takes messages, and answers none of them while `held`.
#[derive(Default)]
struct Taking {
    held: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl BackHandler for Taking {
    fn answer(&self, _message: &[u8]) -> Result<Vec<u8>> {
        let mut held = self.held.lock();
        held.1 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut held, |held| held.0);
        Ok(Vec::new())
    }
}

#[test]
fn a_message_that_needs_no_answer_is_not_waited_for_and_takes_room() {
    let server = serve(&Arc::new(Reversing::default()), ServerOptions::new(1));
    let taking = Arc::new(Taking::default());
    taking.held.lock().0 = true;
    let _connection = connect(&server, Arc::clone(&taking) as Arc<dyn BackHandler>);
    let client = client(&server);
    for _ in 0..BACK_REQUESTS_MAX {
        client.tell(b"it", PATIENCE, &(), REASON).expect("none is answered");
    }
    let full = client.tell(b"it", SOON, &(), REASON).expect_err("no room");
    assert_eq!(full.kind(), ErrorKind::TimedOut);
    taking.held.lock().0 = false;
    taking.changed.notify_all();
    client.tell(b"it", PATIENCE, &(), REASON).expect("answers have made room");
    let mut held = taking.held.lock();
    taking.changed.wait_while(&mut held, |held| held.1 < BACK_REQUESTS_MAX + 1);
}
