//! Proof of a shared secret, both ways, without sending it.
//!
//! ```text
//! caller → agent   magic "SKBH" · version u16 LE · caller nonce [32]
//! agent → caller   agent nonce [32]
//! caller → agent   HMAC-SHA256(secret, "caller" ‖ caller nonce ‖ agent nonce) [32]
//! agent → caller   HMAC-SHA256(secret, "agent" ‖ caller nonce ‖ agent nonce) [32]
//! ```
//!
//! The caller proves itself first, so a stranger learns nothing from an agent but a nonce. The
//! key of the session is HMAC(secret, "key" ‖ nonces); every later frame carries a MAC with it,
//! so nobody can put words into a session. Contents are not encrypted: they are job parameters
//! and test patterns. A stranger who can pose as an agent may try to guess a weak secret from a
//! caller's proof, hence the least length.

use std::io::{Read, Write};
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{BenchError, Result};
use crate::scratch;

/// A MAC, a nonce, a key.
pub const TAG_BYTES: usize = 32;
const MAGIC: &[u8; 4] = b"SKBH";
/// Version of this exchange and of all messages after it.
pub const VERSION: u16 = 1;
const SECRET_CHARACTERS_MIN: usize = 16;

/// What driver and agents share.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// The key of one connection.
#[derive(Clone)]
pub struct Key([u8; TAG_BYTES]);

impl Secret {
    /// Takes the secret from a line of text.
    pub fn new(text: &str) -> Result<Secret> {
        let line = text.lines().next().unwrap_or_default().trim();
        if line.chars().count() < SECRET_CHARACTERS_MIN {
            return Err(BenchError::Usage(format!(
                "the secret must have at least {SECRET_CHARACTERS_MIN} characters; make one with \
                 `head -c 24 /dev/urandom | base64 > secret`"
            )));
        }
        Ok(Secret(line.as_bytes().to_vec()))
    }

    fn tag(&self, purpose: &[u8], caller: &[u8], agent: &[u8]) -> [u8; TAG_BYTES] {
        mac(&self.0, &[purpose, caller, agent]).finalize().into_bytes().into()
    }

    fn is_tag(&self, purpose: &[u8], caller: &[u8], agent: &[u8], tag: &[u8]) -> bool {
        // Compares in constant time.
        mac(&self.0, &[purpose, caller, agent]).verify_slice(tag).is_ok()
    }
}

impl Key {
    /// The key of a connection that needs no proof, between a process and its own child: the
    /// MAC then only is a checksum.
    pub fn of_child() -> Key {
        Key([0; TAG_BYTES])
    }

    /// The MAC of a frame.
    pub fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        mac(&self.0, parts).finalize().into_bytes().into()
    }

    /// Whether a frame's MAC is right, in constant time.
    pub fn is_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        mac(&self.0, parts).verify_slice(tag).is_ok()
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key).expect("invariant: HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// Reads the secret from a file, or from the environment variable `STRAKE_BENCH_SECRET`.
pub fn read(path: Option<&Path>) -> Result<Secret> {
    match path {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Secret::new(&text.map_err(|error| BenchError::path("read", path, error))?)
        }
        None => match std::env::var("STRAKE_BENCH_SECRET") {
            Ok(text) => Secret::new(&text),
            Err(_) => Err(BenchError::Usage(
                "driver and agents share a secret: give --secret-file FILE, or set \
                 STRAKE_BENCH_SECRET"
                    .into(),
            )),
        },
    }
}

fn broken(error: std::io::Error) -> BenchError {
    BenchError::system("the connection broke while secrets were compared", error)
}

/// The caller's side. An agent that hangs up instead of answering does not share the secret.
pub fn prove<S: Read + Write>(stream: &mut S, secret: &Secret) -> Result<Key> {
    let mut caller = [0; TAG_BYTES];
    scratch::fill_random(&mut caller);
    let mut hello = MAGIC.to_vec();
    hello.extend_from_slice(&VERSION.to_le_bytes());
    hello.extend_from_slice(&caller);
    stream.write_all(&hello).map_err(broken)?;
    let mut agent = [0; TAG_BYTES];
    stream.read_exact(&mut agent).map_err(broken)?;
    let proof = secret.tag(b"caller", &caller, &agent);
    stream.write_all(&proof).map_err(broken)?;
    let mut answer = [0; TAG_BYTES];
    if stream.read_exact(&mut answer).is_err() || !secret.is_tag(b"agent", &caller, &agent, &answer)
    {
        return Err(BenchError::Protocol(
            "the agent does not share this secret (or has another version)".into(),
        ));
    }
    Ok(Key(secret.tag(b"key", &caller, &agent)))
}

/// The agent's side.
pub fn demand<S: Read + Write>(stream: &mut S, secret: &Secret) -> Result<Key> {
    let mut hello = [0; 6 + TAG_BYTES];
    stream.read_exact(&mut hello).map_err(broken)?;
    if hello[..4] != MAGIC[..] || hello[4..6] != VERSION.to_le_bytes() {
        return Err(BenchError::Protocol("a caller that is no driver of this version".into()));
    }
    let caller = &hello[6..];
    let mut agent = [0; TAG_BYTES];
    scratch::fill_random(&mut agent);
    stream.write_all(&agent).map_err(broken)?;
    let mut proof = [0; TAG_BYTES];
    stream.read_exact(&mut proof).map_err(broken)?;
    if !secret.is_tag(b"caller", caller, &agent, &proof) {
        return Err(BenchError::Protocol("a caller that does not share the secret".into()));
    }
    stream.write_all(&secret.tag(b"agent", caller, &agent)).map_err(broken)?;
    Ok(Key(secret.tag(b"key", caller, &agent)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn meet(caller: &str, agent: &str) -> (Result<Key>, Result<Key>) {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let agent = Secret::new(agent).unwrap();
        let other = thread::spawn(move || demand(&mut far, &agent));
        let mine = prove(&mut near, &Secret::new(caller).unwrap());
        drop(near);
        (mine, other.join().unwrap())
    }

    #[test]
    fn equal_secrets_agree_on_a_key_and_no_two_sessions_share_one() {
        let secret = "correct horse battery staple";
        let (mine, theirs) = meet(secret, secret);
        let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
        assert_eq!(mine.0, theirs.0);
        assert_ne!(mine.0, meet(secret, secret).0.unwrap().0);
    }

    #[test]
    fn unequal_secrets_are_refused_by_both() {
        let (mine, theirs) = meet("correct horse battery staple", "correct horse battery stapler");
        assert!(matches!(mine, Err(BenchError::Protocol(_))));
        assert!(matches!(theirs, Err(BenchError::Protocol(_))));
    }

    #[test]
    fn noise_is_refused_without_an_answer() {
        for seed in 0..50 {
            let mut dice = crate::pattern::Dice::new(seed);
            let (mut near, mut far) = UnixStream::pair().unwrap();
            let noise: Vec<u8> = (0..dice.below(200)).map(|_| dice.roll() as u8).collect();
            near.write_all(&noise).unwrap();
            near.shutdown(std::net::Shutdown::Write).unwrap();
            let secret = Secret::new("correct horse battery staple").unwrap();
            assert!(demand(&mut far, &secret).is_err());
            drop(far);
            let mut answer = Vec::new();
            assert_eq!(near.read_to_end(&mut answer).unwrap_or(0), 0);
        }
    }

    #[test]
    fn short_secrets_are_refused() {
        assert!(Secret::new("short").is_err());
        assert!(Secret::new("").is_err());
    }
}
