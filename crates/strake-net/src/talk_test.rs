//! Conversations: messages of all lengths both ways, and what no honest peer sends.

use super::*;
use std::io::{Read, Write};
use strake_env::Rng;
use strake_env::net::UnixStream;

const PATIENCE: Duration = Duration::from_secs(60);

fn sockets() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a pair of sockets")
}

/// Both ends of a conversation that was opened with these words as secrets.
fn meet(caller: &[u8], called: &[u8]) -> (Result<Talk>, Result<Talk>) {
    let (near, far) = sockets();
    let [caller, called] = [caller, called].map(SharedSecret::of_words);
    strake_env::thread::scope(|scope| {
        let server = scope
            .spawn(move || Talk::welcome(Stream::Unix(far), &called, Service::Agent, PATIENCE));
        let mut stream = Stream::Unix(near);
        let mine = greet(&mut stream, &caller, Service::Agent)
            .map(|Agreed { sending, receiving, .. }| Talk { stream, sending, receiving });
        (mine, server.join().expect("no panic"))
    })
}

fn pair() -> (Talk, Talk) {
    let (caller, called) = meet(b"the same words", b"the same words");
    (caller.expect("a friend"), called.expect("a friend"))
}

#[test]
fn messages_of_all_lengths_arrive_in_order_and_both_ways() {
    let (mut caller, mut called) = pair();
    let lengths = [0, 1, 100, PIECE_BYTES, PIECE_BYTES + 1, TALK_BYTES_MAX];
    for (index, length) in lengths.into_iter().enumerate() {
        assert!(!called.is_readable(Duration::ZERO).expect("a socket"));
        let sent = vec![index as u8; length];
        strake_env::thread::scope(|scope| {
            scope.spawn(|| caller.send(&sent).expect("sent"));
            assert!(called.is_readable(PATIENCE).expect("a socket"));
            assert_eq!(called.receive().expect("valid").expect("one"), sent);
        });
        called.send(&[7; 3]).expect("sent");
        assert_eq!(caller.receive().expect("valid").expect("one"), [7; 3]);
    }
    let error = caller.send(&vec![0; TALK_BYTES_MAX + 1]).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::TooBig);
    drop(caller);
    assert!(called.is_readable(PATIENCE).expect("a socket"), "the end can be read");
    assert_eq!(called.receive().expect("the end"), None);
}

#[test]
fn other_words_are_refused_by_both_ends() {
    let (mine, theirs) = meet(b"correct horse battery staple", b"correct horse battery stapler");
    let (mine, theirs) = (mine.err().expect("a stranger"), theirs.err().expect("a stranger"));
    assert_eq!((mine.kind(), theirs.kind()), (ErrorKind::Access, ErrorKind::Access));
    assert!(mine.to_string().contains("does not share this secret"), "{mine}");
}

#[test]
fn a_stranger_gets_nothing_by_which_words_could_be_guessed() {
    let (mut near, far) = sockets();
    let secret = SharedSecret::of_words(b"guess me");
    strake_env::thread::scope(|scope| {
        let server = scope
            .spawn(|| Talk::welcome(Stream::Unix(far), &secret, Service::Agent, PATIENCE).err());
        // Recorded once, sent twice: the nonces are all that differs between the answers.
        let mut greeting = Vec::new();
        let hello = postcard::to_allocvec(&(0u32, Service::Agent, [5u8; 32])).expect("encodes");
        let mut open = Seal::none();
        write_frame(&mut greeting, &mut open, FrameKind::Hello, 0, &hello, &[]).expect("a Vec");
        near.write_all(&greeting).expect("sent");
        let mut answer = vec![0; 56 + 1 + 32];
        near.read_exact(&mut answer).expect("a nonce");
        near.shutdown(strake_env::net::Shutdown::Write).expect("half closed");
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).expect("the end");
        assert!(rest.is_empty(), "nothing but a nonce");
        assert!(server.join().expect("no panic").is_some());
    });
}

/// The bytes of a message as the caller sends it, and the end that expects it.
fn recorded(message: &[u8]) -> (Vec<u8>, Seal) {
    let key = [9; 32];
    let (near, mut far) = sockets();
    let (sending, receiving) = (Seal::new(&key), Seal::none());
    let mut caller = Talk { stream: Stream::Unix(near), sending, receiving };
    caller.send(message).expect("sent");
    drop(caller);
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).expect("sent");
    (bytes, Seal::new(&key))
}

fn received(bytes: &[u8], receiving: Seal) -> Result<Option<Vec<u8>>> {
    let (mut near, far) = sockets();
    near.write_all(bytes).expect("room in the socket");
    drop(near);
    Talk { stream: Stream::Unix(far), sending: Seal::none(), receiving }.receive()
}

#[test]
fn changed_cut_and_invented_messages_are_refused() {
    let (good, seal) = recorded(&[7; 300]);
    assert_eq!(received(&good, seal.clone()).expect("valid"), Some(vec![7; 300]));
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut bad = good.clone();
        match rng.below(3) {
            0 => bad.truncate(1 + rng.index(good.len() - 1)),
            1 => bad[rng.index(good.len())] ^= 1 << rng.below(8),
            _ => bad = (0..1 + rng.index(300)).map(|_| rng.next_u64() as u8).collect(),
        }
        assert!(received(&bad, seal.clone()).is_err(), "seed {seed}");
    }
}

#[test]
fn pieces_that_lie_about_how_many_follow_are_refused() {
    let of = |numbers: &[u64]| {
        let mut bytes = Vec::new();
        for number in numbers {
            let (kind, seal) = (FrameKind::Talk, &mut Seal::none());
            write_frame(&mut bytes, seal, kind, *number, b"ab", &[]).expect("a Vec");
        }
        received(&bytes, Seal::none()).map_err(|error| error.kind())
    };
    assert_eq!(of(&[2, 1, 0]), Ok(Some(b"ababab".to_vec())));
    assert_eq!(of(&[2, 0]), Err(ErrorKind::Corrupt));
    assert_eq!(of(&[2, 1]), Err(ErrorKind::Unreachable));
    assert_eq!(of(&[PIECES_MAX]), Err(ErrorKind::Corrupt));
    assert_eq!(of(&[u64::MAX]), Err(ErrorKind::Corrupt));
    let mut other = Vec::new();
    let kind = FrameKind::NsdRequest;
    write_frame(&mut other, &mut Seal::none(), kind, 0, b"a", &[]).expect("a Vec");
    let error = received(&other, Seal::none()).expect_err("of another kind");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn replayed_and_reflected_messages_are_refused() {
    let (mut caller, mut called) = pair();
    let (frame, _) = recorded(b"once");
    caller.send(b"once").expect("sent");
    assert_eq!(called.receive().expect("valid").expect("one"), b"once");
    let Stream::Unix(stream) = &mut caller.stream else { unreachable!("a Unix socket") };
    stream.write_all(&frame).expect("sent");
    let error = called.receive().expect_err("under another key");
    assert_eq!(error.kind(), ErrorKind::Access);
    // What one end sent comes back to it.
    let (mut caller, called) = pair();
    caller.send(b"hello").expect("sent");
    let Stream::Unix(mut stream) = called.into_stream() else { unreachable!("a Unix socket") };
    let mut bytes = vec![0; 56 + 5];
    stream.read_exact(&mut bytes).expect("sent");
    stream.write_all(&bytes).expect("sent back");
    assert_eq!(caller.receive().expect_err("its own words").kind(), ErrorKind::Access);
    stream.write_all(&bytes.repeat(2)).expect("sent");
}

#[test]
fn silence_ends_at_the_limit() {
    let (mut caller, _called) = pair();
    caller.set_limit(Duration::from_millis(20)).expect("a socket");
    assert_eq!(caller.receive().expect_err("silence").kind(), ErrorKind::TimedOut);
}
