//! How a machine becomes a node: it shows a join token and gets a certificate.
//!
//! ```text
//! joiner ◀▶ issuer  TLS 1.3; the joiner has no certificate. The issuer's must be signed by the
//!                   authority whose fingerprint the token has, and may serve.
//! joiner ▶ issuer   JoinRequest { secret of the token, public key, signature by that key }
//! issuer ▶ joiner   Result<JoinReply { certificate, authority }, Error>
//! ```
//!
//! Both messages are frames (`Hello`, in postcard), encrypted whatever the cluster's cipher is,
//! because the secret is good for everybody who reads it. The joiner makes its key itself, and the
//! key never leaves it. The signature covers the secret and the key, so that nobody gets a
//! certificate for a key that it does not have.
//!
//! The issuer marks the token as used, durably, before it answers. If the answer is lost, the same
//! key may ask again ([`crate::join_ledger`]).

use crate::auth::random_bytes;
use crate::authority::{ClusterAuthority, PublicKey, new_key, public_key};
use crate::certificate::{CERTIFICATE_BYTES_MAX, Fingerprint, NodeCredentials};
use crate::frame::{Frame, FrameKind, FrameLimits, Seal, read_frame, write_frame};
use crate::handshake::ask;
use crate::join_ledger::JoinLedger;
use crate::join_token::{JoinToken, SECRET_BYTES, digest};
use crate::private_file;
use crate::session::{decode, encode};
use crate::tls::{self, Expected};
use rcgen::{KeyPair, SigningKey};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_env::net::SocketAddr;
use strake_env::stream::{Endpoint, Stream};
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, NodeIdentity, NodeName, Result, Roles};

/// The list's file beside the authority's.
const LEDGER: &str = "join-tokens";
/// How often a joiner asks when the connection breaks before it has an answer.
const ATTEMPTS: usize = 3;
/// Of an answer: two certificates, or an error.
const REPLY: FrameLimits =
    FrameLimits { message_bytes: 2 * CERTIFICATE_BYTES_MAX, payload_bytes: 0 };

#[derive(Serialize, Deserialize)]
struct JoinRequest {
    secret: [u8; SECRET_BYTES],
    key: [u8; 32],
    signature: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct JoinReply {
    certificate: Vec<u8>,
    authority: Vec<u8>,
}

/// What a joiner signs.
fn signed(secret: &[u8; SECRET_BYTES], key: &[u8; 32]) -> Vec<u8> {
    [b"strake join\0".as_slice(), secret, key].concat()
}

/// Where nodes join: the cluster's authority with the list of its tokens.
pub struct JoinDesk {
    authority: ClusterAuthority,
    path: PathBuf,
    /// Held while the list is written, so that the file has each change before its effect.
    ledger: Mutex<JoinLedger>,
    clock: Arc<dyn Clock>,
}

impl JoinDesk {
    /// Opens the desk of `authority`, with the list in `folder`.
    ///
    /// # Errors
    /// `Corrupt` if the list is damaged; the file system's.
    pub fn open(
        authority: ClusterAuthority,
        folder: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<JoinDesk> {
        let path = folder.join(LEDGER);
        let ledger = match private_file::read(&path) {
            Ok(bytes) => {
                JoinLedger::decode(&bytes).map_err(|error| error.context(path.display()))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => JoinLedger::default(),
            Err(error) => return Err(error),
        };
        Ok(JoinDesk { authority, path, ledger: Mutex::new(ledger), clock })
    }

    /// The cluster's authority.
    pub fn authority(&self) -> &ClusterAuthority {
        &self.authority
    }

    /// A new token with which a machine becomes node `name`, at the issuer that listens at
    /// `address`. It is void after `life`, and when a newer one is made for the same node.
    ///
    /// # Errors
    /// `NoSpace` if very many tokens wait to be used; the file system's.
    pub fn issue(
        &self,
        name: &NodeName,
        roles: Roles,
        address: SocketAddr,
        life: Duration,
    ) -> Result<JoinToken> {
        let cluster = self.authority.cluster();
        let identity = NodeIdentity { cluster, name: name.clone(), roles };
        let secret = random_bytes()?;
        let now = self.clock.wall().seconds;
        let life = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        let expires = now.saturating_add(life);
        self.change(|ledger| ledger.add(digest(&secret), identity, expires, now))?;
        Ok(JoinToken { address, authority: self.authority.fingerprint(), secret })
    }

    /// Makes the token of a node void, if there is one.
    ///
    /// # Errors
    /// The file system's.
    pub fn withdraw(&self, name: &NodeName) -> Result<()> {
        self.change(|ledger| {
            ledger.withdraw(name);
            Ok(())
        })
    }

    /// Changes the list; the change counts once the file has it.
    fn change<T>(&self, change: impl FnOnce(&mut JoinLedger) -> Result<T>) -> Result<T> {
        let mut ledger = self.ledger.lock();
        let mut changed = ledger.clone();
        let result = change(&mut changed)?;
        if changed != *ledger {
            private_file::replace(&self.path, &changed.encode()?)?;
            *ledger = changed;
        }
        Ok(result)
    }

    /// Gives a certificate for a token.
    fn redeem(&self, request: &JoinRequest) -> Result<JoinReply> {
        let JoinRequest { secret, key, signature } = request;
        let verifier = UnparsedPublicKey::new(&ED25519, key);
        if verifier.verify(&signed(secret, key), signature).is_err() {
            let detail = "the joiner does not have the key that it wants a certificate for";
            return Err(Error::new(ErrorKind::Access, detail));
        }
        let now = self.clock.wall().seconds;
        let identity = self.change(|ledger| ledger.redeem(&digest(secret), *key, now))?;
        let certificate = self.authority.sign(&identity, &PublicKey(*key))?;
        let authority = self.authority.certificate().to_vec();
        Ok(JoinReply { certificate: certificate.to_vec(), authority })
    }
}

/// A connection of somebody who wants to join, after its handshake.
pub(crate) struct Joiner {
    pub(crate) sending: Seal,
    pub(crate) receiving: Seal,
}

impl Joiner {
    /// Answers the joiner's one request.
    ///
    /// # Errors
    /// Why it got no certificate; the stream's.
    pub(crate) fn serve(
        mut self,
        stream: &mut (impl Read + Write),
        desk: Option<&JoinDesk>,
    ) -> Result<()> {
        let message = hear(stream, &mut self.receiving, FrameLimits::HELLO)?;
        let request: JoinRequest = decode(&message)?;
        let answer = match desk {
            Some(desk) => desk.redeem(&request),
            None => {
                let detail = "this node issues no certificates";
                Err(Error::new(ErrorKind::NotSupported, detail))
            }
        };
        say(stream, &mut self.sending, &encode(&answer)?)?;
        answer.map(|_| ())
    }
}

fn say(stream: &mut dyn Write, seal: &mut Seal, message: &[u8]) -> Result<()> {
    write_frame(stream, seal, FrameKind::Hello, 0, message, &[])
}

fn hear(stream: &mut dyn Read, seal: &mut Seal, limits: FrameLimits) -> Result<Vec<u8>> {
    match read_frame(stream, seal, limits, &mut |bytes| vec![0; bytes])? {
        Some(Frame { kind: FrameKind::Hello, message, .. }) => Ok(message),
        _ => {
            let detail = "the peer closed the connection instead of answering";
            Err(Error::new(ErrorKind::Unreachable, detail))
        }
    }
}

/// Joins the cluster that issued `token`: makes a key, and gets a certificate for it. Each attempt
/// takes at most `limit`.
///
/// # Errors
/// `Access` if the token is not good or the issuer is not of the token's cluster, `Unreachable` or
/// `TimedOut` if it does not answer.
pub fn join(token: &JoinToken, clock: &Arc<dyn Clock>, limit: Duration) -> Result<NodeCredentials> {
    let key = new_key()?;
    let endpoint = Endpoint::Tcp(token.address);
    let mut attempt = 1;
    loop {
        let joined = Stream::connect(&endpoint, limit)
            .and_then(|mut stream| join_on(&mut stream.within(limit), token, &key, clock));
        match joined {
            // The answer may have been lost; the same key may ask again.
            Err(error) if error.kind() == ErrorKind::Unreachable && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error.context(format!("joining at {endpoint}"))),
            joined => return joined,
        }
    }
}

fn join_on(
    stream: &mut (impl Read + Write),
    token: &JoinToken,
    key: &KeyPair,
    clock: &Arc<dyn Clock>,
) -> Result<NodeCredentials> {
    let expected = Expected::Cluster(token.authority, Arc::clone(clock));
    let mut secured = tls::connect(stream, &expected)?;
    let PublicKey(public) = public_key(key);
    let signature = key.sign(&signed(&token.secret, &public));
    let signature = signature.map_err(|error| crate::authority::failed("a signature", &error))?;
    let request = JoinRequest { secret: token.secret, key: public, signature };
    let said = say(stream, &mut secured.sending, &encode(&request)?);
    let hear = |stream: &mut dyn Read, seal: &mut Seal| hear(stream, seal, REPLY);
    let message = ask(stream, &mut secured, said, hear)?;
    let JoinReply { certificate, authority } = decode::<Result<JoinReply>>(&message)??;
    let authority = CertificateDer::from(authority);
    if Fingerprint::of(&authority) != token.authority {
        let detail = "the issuer's authority is not the one that the token names";
        return Err(Error::new(ErrorKind::Access, detail));
    }
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    let certificate = CertificateDer::from(certificate);
    let node = NodeCredentials::new(private, certificate, authority, Arc::clone(clock))?;
    tls::certified_key(&node)?;
    tls::check_chain(&node)?;
    Ok(node)
}

#[cfg(test)]
#[path = "joining_test.rs"]
mod joining_test;
