//! The handshake in memory: golden codes, and messages that lie.

use super::*;
use crate::seal::SPOKEN;
use strake_env::Rng;
use strake_env::net::UnixStream;
use strake_env::thread::spawn;
use strake_proto::nsd::PROTOCOL_VERSION;

const SECRET: SharedSecret = SharedSecret([1; SECRET_BYTES]);
const TERMS: Terms = Terms { boot: 9, limits: CallLimits { calls_max: 7, bytes_max: 8 } };
const SERVICE: Service = Service::Nsd(NsdId(300));

/// A peer whose words are all there from the beginning.
struct Recorded {
    input: std::io::Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Recorded {
    fn saying(words: &[Vec<u8>]) -> Recorded {
        let mut input = Vec::new();
        for message in words {
            let mut frame = Vec::new();
            write_frame(&mut frame, &mut Seal::none(), FrameKind::Hello, 0, message, &[])
                .expect("a Vec takes all");
            input.extend(frame);
        }
        Recorded { input: std::io::Cursor::new(input), output: Vec::new() }
    }
}

impl Read for Recorded {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.input.read(bytes)
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.output.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn golden_secret_of_words() {
    let secret = SharedSecret::of_words(b"correct horse battery staple").0;
    let digits: String = secret[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, "ba75d0b5f12cb504");
}

#[test]
fn golden_codes_of_the_handshake() {
    let transcript = transcript(SERVICE, &[2; 32], &[3; 32]).expect("encodes");
    assert_eq!(transcript[..3], [0, 0xac, 0x02], "the service, variant and id in LEB128");
    let start = |label| {
        let code = SECRET.derive(label, &transcript);
        format!("{:02x}{:02x}{:02x}{:02x}", code[0], code[1], code[2], code[3])
    };
    let labels = ["strake client", "strake to server", "strake to client"];
    assert_eq!(labels.map(start), ["99bb152b", "291714e6", "ad4121c8"]);
}

#[test]
fn no_mutation_of_recorded_words_opens_a_session_or_panics() {
    let seed = 41;
    let mut rng = Rng::new(seed);
    let greeting = Hello::Greeting { service: SERVICE, nonce: [4; 32] };
    let challenge = Hello::Challenge { nonce: [5; 32] };
    let refusal = Hello::Refused { reason: "\u{1b}[31mno\n".repeat(40) };
    let welcoming = Hello::Welcome { boot: 9, calls_max: 7, bytes_max: 8 };
    let proof = Hello::Proof { proof: [7; 32] };
    let through = Hello::Through { node: "n3".parse().expect("a name") };
    assert_eq!(encode(&through).expect("encodes"), b"\x07\x02n3", "as it is on the wire");
    let words = [&greeting, &challenge, &proof, &refusal, &welcoming, &through]
        .map(|hello| encode(hello).expect("encodes"));
    for _ in 0..5000 {
        let mut said: Vec<Vec<u8>> = (0..1 + rng.index(3))
            .map(|_| {
                let mut message = words[rng.index(words.len())].clone();
                for _ in 0..rng.index(3) {
                    let at = rng.index(message.len());
                    message[at] = rng.next_u64() as u8;
                }
                message.truncate(message.len() - rng.index(2) * rng.index(message.len()));
                message
            })
            .collect();
        let server = welcome(&mut Recorded::saying(&said), &SECRET, SERVICE, TERMS);
        assert!(server.is_err(), "seed {seed}: {said:?}");
        if rng.one_in(2) {
            said.insert(0, words[1].clone());
        }
        let client = greet(&mut Recorded::saying(&said), &SECRET, SERVICE);
        let error = client.err().expect("nobody proved anything");
        assert!(!error.to_string().contains('\u{1b}'), "a stranger's text is made harmless");
    }
}

/// Greets over a pair of sockets: the versions that client and server end up with.
fn agreed(client: u16, server: u16) -> (Result<u16>, Result<u16>) {
    let (mut near, mut far) = UnixStream::pair().expect("a pair");
    let serving = spawn(move || {
        SPOKEN.set(Some(server));
        welcome(&mut far, &SECRET, SERVICE, TERMS)
    });
    SPOKEN.set(Some(client));
    let greeted = greet(&mut near, &SECRET, SERVICE);
    SPOKEN.set(None);
    drop(near);
    let served = serving.join().expect("no panic");
    let of = |agreed: Agreed| {
        assert_eq!(agreed.sending.protocol(), agreed.receiving.protocol());
        agreed.sending.protocol()
    };
    (greeted.map(of), served.map(of))
}

#[test]
fn both_ends_speak_the_lower_version_of_the_two() {
    let (old, new) = (PROTOCOL_VERSION - 1, PROTOCOL_VERSION);
    for (client, server, lower) in [(old, new, old), (new, old, old), (new, new, new)] {
        let (greeted, served) = agreed(client, server);
        assert_eq!((greeted.expect("greets"), served.expect("serves")), (lower, lower));
    }
}

#[test]
fn a_program_that_is_too_old_gets_no_session() {
    let (greeted, served) = agreed(1, PROTOCOL_VERSION);
    assert!(greeted.is_err());
    assert_eq!(served.expect_err("too old").kind(), ErrorKind::NotSupported);
}
