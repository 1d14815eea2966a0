//! The shared secret, and the handshake by which both ends prove that they know it.
//!
//! ```text
//! client ▶ server   Greeting  { service, nonce C }
//! server ▶ client   Challenge { nonce S }
//! client ▶ server   Proof     { proof HMAC(secret, "strake client" ‖ transcript) }
//! server ▶ client   Welcome   { boot, limits }  the first frame with an authentication code
//! ```
//!
//! transcript = service (postcard) ‖ C ‖ S; labels are padded with zeros to 16 bytes. The nonces
//! are 32 random bytes each, so no proof is ever of use twice, and different labels keep an
//! attacker from reflecting one side's proof to the other. The keys of the two directions are
//! HMAC(secret, "strake to server" ‖ transcript) and HMAC(secret, "strake to client" ‖
//! transcript). The welcome's code is the server's proof. The client proves itself first, so that
//! a stranger gets nothing from a server by which the words of a weak secret could be guessed. A
//! server that does not agree answers `Refused` with a reason instead, which proves nothing and is
//! only shown.

use crate::calls::CallLimits;
use crate::credentials::ProvenPeer;
use crate::frame::{Frame, FrameKind, FrameLimits, Seal, read_frame, write_frame};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use strake_proto::{Error, ErrorKind, FsId, NodeName, NsdId, Result};

const SECRET_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;

/// What a client wants to talk to; a server answers for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Service {
    /// This NSD.
    Nsd(NsdId),
    /// The metadata.
    Meta,
    /// A benchmark's agent.
    Agent,
    /// The metadata of one file system of a cluster.
    MetaOf(FsId),
    /// What the nodes of a cluster ask each other.
    Node,
    /// The tokens of one file system of a cluster.
    TokensOf(FsId),
    /// Messages between the replicas of the log of a cluster's records.
    Replica,
    /// Messages between the replicas of the log of one file system's metadata.
    ReplicaOf(FsId),
}

impl std::fmt::Display for Service {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Service::Nsd(nsd) => write!(out, "nsd {nsd}"),
            Service::Meta => out.write_str("metadata"),
            Service::Agent => out.write_str("the benchmark's agent"),
            Service::MetaOf(fs) => write!(out, "metadata {fs}"),
            Service::Node => out.write_str("node"),
            Service::TokensOf(fs) => write!(out, "tokens {fs}"),
            Service::Replica => out.write_str("replica"),
            Service::ReplicaOf(fs) => write!(out, "replica {fs}"),
        }
    }
}

/// A cluster's secret: 32 random bytes that every process of the cluster can read.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSecret([u8; SECRET_BYTES]);

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SharedSecret(…)")
    }
}

impl SharedSecret {
    /// A new secret.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn generate() -> Result<SharedSecret> {
        random_bytes().map(SharedSecret)
    }

    /// A secret of words that people chose: as good as the words are.
    pub fn of_words(words: &[u8]) -> SharedSecret {
        let digest = Sha256::new().chain_update("strake secret of words\0").chain_update(words);
        SharedSecret(digest.finalize().into())
    }

    /// Writes the secret to a new file that only its owner can read: 64 hexadecimal digits.
    ///
    /// # Errors
    /// `Exists` if there is such a file; the file system's.
    pub fn store(&self, path: &Path) -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(file, "{digits}")?;
        file.sync_all()?;
        Ok(())
    }

    /// Reads a secret that [`SharedSecret::store`] wrote.
    ///
    /// # Errors
    /// `Access` if others than the owner may read it, `Corrupt` if it is no secret, the file
    /// system's.
    pub fn load(path: &Path) -> Result<SharedSecret> {
        let shown = path.display();
        let file = File::open(path).map_err(|error| Error::from(error).context(&shown))?;
        if file.metadata()?.mode() & 0o077 != 0 {
            let detail = format!("others can read the secret {shown}: run chmod 600 on it");
            return Err(Error::new(ErrorKind::Access, detail));
        }
        let mut text = String::new();
        let corrupt = || Error::new(ErrorKind::Corrupt, format!("{shown} holds no secret"));
        file.take(200).read_to_string(&mut text).map_err(|_| corrupt())?;
        let digits = text.trim_end().as_bytes();
        if digits.len() != 2 * SECRET_BYTES {
            return Err(corrupt());
        }
        let mut secret = [0; SECRET_BYTES];
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(corrupt);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(SharedSecret(secret))
    }

    fn code(&self, label: &str, transcript: &[u8]) -> Hmac<Sha256> {
        let mut padded = [0; 16];
        padded[..label.len()].copy_from_slice(label.as_bytes());
        let mut code = Hmac::new_from_slice(&self.0).expect("invariant: HMAC takes any key length");
        code.update(&padded);
        code.update(transcript);
        code
    }

    fn derive(&self, label: &str, transcript: &[u8]) -> [u8; 32] {
        self.code(label, transcript).finalize().into_bytes().into()
    }
}

/// Bytes fit for keys.
pub(crate) fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    strake_env::rng::entropy(&mut bytes)?;
    Ok(bytes)
}

/// The messages of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hello {
    Greeting {
        service: Service,
        nonce: [u8; NONCE_BYTES],
    },
    Challenge {
        nonce: [u8; NONCE_BYTES],
    },
    Proof {
        proof: [u8; 32],
    },
    Welcome {
        boot: u64,
        calls_max: u32,
        bytes_max: u64,
    },
    Refused {
        reason: String,
    },
    /// The service is not there now; in the place of the welcome, and sealed as that is.
    Absent {
        reason: String,
    },
    /// After a handshake of certificates (`handshake.rs`), sealed: the service that is wanted.
    Wanted {
        service: Service,
    },
    /// In its place: the node to which the connection is to be passed on (`detour.rs`).
    Through {
        node: NodeName,
    },
}

/// What both ends have after the handshake.
pub struct Agreed {
    /// For frames this end sends.
    pub sending: Seal,
    /// For frames it receives.
    pub receiving: Seal,
    /// What the server said of itself.
    pub terms: Terms,
    /// Who the other end is.
    pub peer: ProvenPeer,
}

/// What a server says of itself when it welcomes a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its boot number.
    pub boot: u64,
    /// What the client may have in flight.
    pub limits: CallLimits,
}

impl Agreed {
    /// After hellos that the end has sent, and heard with `receiving`.
    pub(crate) fn new(
        mut sending: Seal,
        receiving: Seal,
        terms: Terms,
        peer: ProvenPeer,
    ) -> Agreed {
        sending.speak_at_most(receiving.protocol());
        Agreed { sending, receiving, terms, peer }
    }
}

impl Terms {
    /// What a welcome says.
    pub(crate) fn of(boot: u64, calls_max: u32, bytes_max: u64) -> Terms {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let limits =
            CallLimits { calls_max: size(calls_max.max(1).into()), bytes_max: size(bytes_max) };
        Terms { boot, limits }
    }

    pub(crate) fn welcome(self) -> Hello {
        let CallLimits { calls_max, bytes_max } = self.limits;
        let calls_max = u32::try_from(calls_max).unwrap_or(u32::MAX);
        Hello::Welcome { boot: self.boot, calls_max, bytes_max: bytes_max as u64 }
    }
}

fn transcript(service: Service, client: &[u8], server: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = encode(&service)?;
    bytes.extend_from_slice(client);
    bytes.extend_from_slice(server);
    Ok(bytes)
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

pub(crate) fn say(stream: &mut dyn Write, seal: &mut Seal, hello: &Hello) -> Result<()> {
    write_frame(stream, seal, FrameKind::Hello, 0, &encode(hello)?, &[])
}

pub(crate) fn hear(stream: &mut dyn Read, seal: &mut Seal) -> Result<Hello> {
    let frame = read_frame(stream, seal, FrameLimits::HELLO, &mut |bytes| vec![0; bytes])?;
    let Some(Frame { kind: FrameKind::Hello, message, .. }) = frame else {
        let detail = "the peer closed the connection instead of greeting";
        return Err(Error::new(ErrorKind::Unreachable, detail));
    };
    match postcard::take_from_bytes(&message) {
        Ok((hello, [])) => Ok(hello),
        _ => Err(Error::new(ErrorKind::Corrupt, "a greeting does not decode")),
    }
}

pub(crate) fn refused(reason: &str) -> Error {
    // The text may come from a peer that has proven nothing: it is shown short and printable.
    let shown: String = reason.chars().filter(|c| !c.is_control()).take(200).collect();
    Error::new(ErrorKind::Access, format!("the server refused the session: {shown}"))
}

const UNEXPECTED: &str = "a greeting out of order";

/// The client's half of the handshake.
///
/// # Errors
/// `Access` if the server refuses or does not know the secret; `Unreachable` if the server does not
/// have the service now; as [`read_frame`].
pub fn greet(
    stream: &mut (impl Read + Write),
    secret: &SharedSecret,
    service: Service,
) -> Result<Agreed> {
    let mut open = Seal::none();
    let client: [u8; NONCE_BYTES] = random_bytes()?;
    say(stream, &mut open, &Hello::Greeting { service, nonce: client })?;
    let server = match hear(stream, &mut open)? {
        Hello::Challenge { nonce } => nonce,
        Hello::Refused { reason } => return Err(refused(&reason)),
        _ => return Err(Error::new(ErrorKind::Corrupt, UNEXPECTED)),
    };
    let transcript = transcript(service, &client, &server)?;
    let proof = secret.derive("strake client", &transcript);
    say(stream, &mut open, &Hello::Proof { proof })?;
    let mut receiving = Seal::new(&secret.derive("strake to client", &transcript));
    // A server with another secret cannot make the code; nor does one that refuses our proof.
    let welcome = hear(stream, &mut receiving).map_err(|error| match error.kind() {
        ErrorKind::Access => {
            let detail = format!("the server of {service} does not share this secret");
            Error::new(ErrorKind::Access, detail)
        }
        _ => error,
    })?;
    let terms = match welcome {
        Hello::Welcome { boot, calls_max, bytes_max } => Terms::of(boot, calls_max, bytes_max),
        Hello::Absent { reason } => return Err(Error::new(ErrorKind::Unreachable, reason)),
        _ => return Err(Error::new(ErrorKind::Corrupt, UNEXPECTED)),
    };
    let sending = Seal::new(&secret.derive("strake to server", &transcript));
    Ok(Agreed::new(sending, receiving, terms, ProvenPeer::Secret))
}

/// The server's half of the handshake, for a server of one service.
///
/// # Errors
/// `Access` if the client does not know the secret, `NotFound` if it wants another service; as
/// [`read_frame`].
pub fn welcome(
    stream: &mut (impl Read + Write),
    secret: &SharedSecret,
    service: Service,
    terms: Terms,
) -> Result<Agreed> {
    let (wanted, client) = hear_greeting(stream)?;
    if wanted != service {
        let reason = format!("this is {service}, not {wanted}");
        say(stream, &mut Seal::none(), &Hello::Refused { reason: reason.clone() })?;
        return Err(Error::new(ErrorKind::NotFound, reason));
    }
    let (mut sending, receiving) = challenge(stream, secret, wanted, &client)?;
    say(stream, &mut sending, &terms.welcome())?;
    Ok(Agreed::new(sending, receiving, terms, ProvenPeer::Secret))
}

/// The server's half of the handshake, for a server of several services. `find` gives the service
/// that the client wants with its terms, and is asked only after the client has proven that it
/// knows the secret.
///
/// # Errors
/// `Access` if the client does not know the secret, `Unreachable` if the service is not there; as
/// [`read_frame`].
pub fn welcome_to<T>(
    stream: &mut (impl Read + Write),
    secret: &SharedSecret,
    find: &dyn Fn(Service) -> Option<(T, Terms)>,
) -> Result<(T, Agreed)> {
    let (wanted, client) = hear_greeting(stream)?;
    let (mut sending, receiving) = challenge(stream, secret, wanted, &client)?;
    let Some((found, terms)) = find(wanted) else {
        let reason = format!("{wanted} is not served here now");
        say(stream, &mut sending, &Hello::Absent { reason: reason.clone() })?;
        return Err(Error::new(ErrorKind::Unreachable, reason));
    };
    say(stream, &mut sending, &terms.welcome())?;
    Ok((found, Agreed::new(sending, receiving, terms, ProvenPeer::Secret)))
}

/// The service that a client wants, and its nonce.
fn hear_greeting(stream: &mut impl Read) -> Result<(Service, [u8; NONCE_BYTES])> {
    match hear(stream, &mut Seal::none())? {
        Hello::Greeting { service, nonce } => Ok((service, nonce)),
        _ => Err(Error::new(ErrorKind::Corrupt, UNEXPECTED)),
    }
}

/// Lets the client prove that it knows the secret; returns the seals for sending and receiving.
fn challenge(
    stream: &mut (impl Read + Write),
    secret: &SharedSecret,
    service: Service,
    client: &[u8],
) -> Result<(Seal, Seal)> {
    let mut open = Seal::none();
    let server: [u8; NONCE_BYTES] = random_bytes()?;
    let transcript = transcript(service, client, &server)?;
    say(stream, &mut open, &Hello::Challenge { nonce: server })?;
    let Hello::Proof { proof } = hear(stream, &mut open)? else {
        return Err(Error::new(ErrorKind::Corrupt, UNEXPECTED));
    };
    if secret.code("strake client", &transcript).verify_slice(&proof).is_err() {
        let reason = "a client does not know the secret".to_owned();
        say(stream, &mut open, &Hello::Refused { reason: reason.clone() })?;
        return Err(Error::new(ErrorKind::Access, reason));
    }
    let sending = Seal::new(&secret.derive("strake to client", &transcript));
    let mut receiving = Seal::new(&secret.derive("strake to server", &transcript));
    receiving.speak_at_most(open.protocol());
    Ok((sending, receiving))
}

#[cfg(test)]
#[path = "auth_test.rs"]
mod auth_test;
