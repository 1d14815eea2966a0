//! Callers that read their replies: each gets its own, within its limit, and the connection's
//! thread reads what nobody waits for.

use super::*;
use crate::auth::SharedSecret;
use crate::calls::CallError;
use crate::connection::Connection;
use crate::frame::{FrameKind, write_frame};
use crate::server::{Answer, Handler, RpcServer, ServerOptions};
use crate::{ProvenPeer, Service};
use std::io::Write;
use std::sync::Arc;
use strake_env::Rng;
use strake_env::rng::test_seeds;
use strake_env::stream::{Endpoint, Listener};

const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(80);

/// Answers with the message, after as many tenths of a millisecond as its first byte says. Messages
/// that begin with 255 wait for the gate.
#[derive(Default)]
struct Late {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Late {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

impl Handler for Late {
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
        match message[0] {
            255 => self.opened.wait_while(&mut self.is_open.lock(), |is_open| !*is_open),
            tenths => RealClock.sleep(Duration::from_micros(u64::from(tenths) * 100)),
        }
        Ok(Answer { message: message.to_vec(), payload: Vec::new() })
    }
}

fn serve() -> (RpcServer, Arc<Late>, Connection) {
    let secret = SharedSecret::generate().expect("random bytes");
    let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listener = Listener::bind(&endpoint).expect("a free port");
    let late = Arc::new(Late::default());
    let handler = Arc::clone(&late) as Arc<dyn Handler>;
    let options = ServerOptions::new(1);
    let server = RpcServer::start(listener, Service::Meta, handler, secret.clone().into(), options)
        .expect("threads");
    let connection =
        Connection::open(server.endpoint(), &secret.into(), Service::Meta, PATIENCE).expect("ours");
    (server, late, connection)
}

fn call(connection: &Connection, message: &[u8]) {
    let reply = connection.call(FrameKind::NsdRequest, message, &[], PATIENCE).expect("answered");
    assert_eq!(reply.message, message);
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = RealClock.monotonic() + PATIENCE;
    while !is_so() {
        assert!(RealClock.monotonic() < end, "{what}");
        RealClock.sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_call_gets_its_own_reply_whoever_reads_it() {
    for seed in test_seeds(0, 4) {
        let (server, _late, connection) = serve();
        strake_env::thread::scope(|scope| {
            for thread in 0..4 {
                let (connection, mut rng) = (&connection, Rng::new(seed * 4 + thread));
                scope.spawn(move || {
                    for number in 0..100 {
                        let tenths = rng.below(8) as u8;
                        let message = [&[tenths, thread as u8, number][..], &[7; 3000]].concat();
                        let message = &message[..3 + rng.index(3000)];
                        match rng.below(8) {
                            0 => connection
                                .post(FrameKind::NsdRequest, message, PATIENCE)
                                .expect("there is room"),
                            1 => RealClock.sleep(STAND_BY * 2),
                            _ => call(connection, message),
                        }
                    }
                });
            }
        });
        until("all replies come", || connection.oldest_call().is_none());
        assert!(connection.turns() > 0, "no caller has read: {seed}");
        drop(connection);
        server.stop();
    }
}

#[test]
fn a_caller_that_reads_keeps_its_limit() {
    let (_server, late, connection) = serve();
    // The thread reads the first reply, and the caller the next.
    call(&connection, &[0]);
    call(&connection, &[0]);
    let begun = RealClock.monotonic();
    let failed = connection.call(FrameKind::NsdRequest, &[255], &[], SHORT);
    assert!(
        matches!(&failed, Err(CallError::Failed(error)) if error.kind() == ErrorKind::TimedOut)
    );
    assert!(RealClock.monotonic() - begun >= SHORT);
    assert!(connection.oldest_call().is_some(), "its place is kept");
    call(&connection, &[0]);
    late.open();
    until("the late reply frees its place", || connection.oldest_call().is_none());
}

#[test]
fn the_end_of_the_stream_is_seen_while_nobody_calls() {
    let (server, _late, connection) = serve();
    (0..3).for_each(|_| call(&connection, &[0]));
    server.stop();
    until("the end is seen", || connection.is_broken());
}

/// A caller that looks whether its server has moved asks other nodes, which takes time.
#[test]
fn others_get_their_replies_while_a_caller_looks() {
    let (_server, late, connection) = serve();
    call(&connection, &[0]);
    call(&connection, &[0]);
    let looked = Mutex::new(false);
    let look = || {
        if !std::mem::replace(&mut *looked.lock(), true) {
            call(&connection, &[0, 1]);
            late.open();
        }
    };
    let limits = (PATIENCE, SHORT);
    let other = connection.call_looking(FrameKind::NsdRequest, &[255], &[], limits, &look);
    assert_eq!(other.expect("answered").message, [255]);
    assert!(*looked.lock());
}

/// A reader that gives these answers, one after the other.
struct Scripted(Vec<std::io::ErrorKind>);

impl Read for Scripted {
    fn read(&mut self, _bytes: &mut [u8]) -> std::io::Result<usize> {
        Err(self.0.remove(0).into())
    }
}

#[test]
fn a_signal_begins_no_frame() {
    use std::io::ErrorKind::{Interrupted, WouldBlock};
    let mut input = Scripted(vec![Interrupted, WouldBlock]);
    let mut frame = OneFrame { input: &mut input, begun: None, frame_max: PATIENCE };
    let mut read = || frame.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!((read(), read()), (Err(Interrupted), Err(WouldBlock)));
}

#[test]
fn a_server_that_stops_within_a_frame_is_left() {
    let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listener = Listener::bind(&endpoint).expect("a free port");
    let stream = Stream::connect(&listener.endpoint().expect("bound"), PATIENCE).expect("there");
    let mut server = listener.accept().expect("a client");
    let (mut own, theirs) = (Seal::none(), Seal::none());
    let mut incoming = Incoming::new(stream, theirs, SHORT);
    let mut buffer = |bytes| vec![0; bytes];
    let step = Duration::from_millis(5);
    assert!(incoming.next(step, &mut buffer).expect("nothing came").is_none());
    let mut frame = Vec::new();
    write_frame(&mut frame, &mut own, FrameKind::NsdReply, 7, &[1; 100], &[]).expect("memory");
    let (first, rest) = frame.split_at(50);
    server.write_all(first).expect("sent");
    strake_env::thread::scope(|scope| {
        scope.spawn(|| {
            RealClock.sleep(step * 4);
            server.write_all(rest).expect("sent");
        });
        let frame = incoming.next(step, &mut buffer).expect("it goes on").expect("a frame");
        assert_eq!((frame.number, frame.message), (7, vec![1; 100]));
    });
    server.write_all(first).expect("sent");
    let stopped = incoming.next(step, &mut buffer).expect_err("no more comes");
    assert_eq!(stopped.kind(), ErrorKind::TimedOut);
}
