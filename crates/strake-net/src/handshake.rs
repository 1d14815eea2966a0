//! The greeting of a connection, whichever way its ends prove themselves.
//!
//! With a shared secret it is that of [`crate::auth`]. With certificates:
//!
//! ```text
//! client ◀▶ server  TLS 1.3 (crate::tls); from here on frames, sealed with its keys
//! client ▶ server   Wanted  { service }
//! server ▶ client   Welcome { boot, limits } | Absent { reason } | Refused { reason }
//! ```
//!
//! A client may ask for another node instead of a service ([`crate::detour`]).
//!
//! A node whose roles do not suffice for the service is refused with the reason, which both ends
//! see.

use crate::auth::{Agreed, Hello, Service, Terms, greet, hear, refused, say, welcome, welcome_to};
use crate::credentials::{Credentials, Introduction, NodeServer, ProvenPeer};
use crate::detour::ONWARD_MAX;
use crate::frame::Seal;
use crate::joining::Joiner;
use crate::passage::Seat;
use crate::tls::{self, Expected, Secured};
use std::io::{Read, Write};
use strake_env::stream::Stream;
use strake_proto::{Error, ErrorKind, NodeIdentity, NodeName, Result, Role, Roles};

/// Enough of what a peer sends to recognize a word of TLS in it.
const REMEMBERED_BYTES: usize = 256;
/// Of the reason that a refused client is told; four bytes each at most.
const REASON_CHARS_MAX: usize = 200;

/// Who came, and what for.
pub(crate) enum Welcomed<T> {
    /// Somebody who may use the service that was found.
    Session(T, Agreed),
    /// Somebody who wants to become a node of the cluster.
    Joiner(Joiner),
    /// Somebody whose connection is to be passed on to this one.
    Passage(Stream, Seat),
}

/// Why a client was not welcomed.
pub(crate) struct Refusal {
    /// The client, if it has proven who it is.
    pub(crate) node: Option<NodeName>,
    pub(crate) error: Error,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let error = match error.kind() {
            // The socket's way to say that its time limit passed.
            ErrorKind::WouldBlock => {
                Error::new(ErrorKind::TimedOut, "it did not prove itself in time")
            }
            _ => error,
        };
        Refusal { node: None, error }
    }
}

impl Service {
    /// The roles of which a node needs one to use this service. `None` if no node may.
    fn callers(self) -> Option<Roles> {
        match self {
            // Mounts, and the manager at the leader, which repairs.
            Service::Nsd(_) | Service::Meta | Service::MetaOf(_) | Service::TokensOf(_) => {
                Some(Roles::of(&[Role::Client, Role::Quorum]))
            }
            Service::Node => Some(Roles::ALL),
            Service::Replica | Service::ReplicaOf(_) => Some(Roles::of(&[Role::Quorum])),
            // Agents are asked by somebody with their secret.
            Service::Agent => None,
        }
    }

    /// Checks that a node may use this service.
    ///
    /// # Errors
    /// `Access` if it may not.
    pub(crate) fn check_roles(self, node: &NodeIdentity) -> Result<()> {
        let Some(needed) = self.callers() else {
            return Err(Error::new(ErrorKind::Access, format!("{self} is not for nodes")));
        };
        if node.roles.any_of(needed) {
            return Ok(());
        }
        let detail = format!("{node} may not use {self}: that takes one of the roles {needed}");
        Err(Error::new(ErrorKind::Access, detail))
    }
}

/// The client's half.
///
/// # Errors
/// `Access` if an end refuses the other, `Unreachable` if the service is not there now, the
/// stream's.
pub(crate) fn introduce(
    stream: &mut (impl Read + Write),
    introduction: &Introduction,
    service: Service,
) -> Result<Agreed> {
    let (own, expected) = match introduction {
        Introduction::Secret(secret) => return greet(stream, secret, service),
        Introduction::Node { own, expected } => (own, expected),
    };
    let mut secured = tls::connect(stream, &Expected::Node(own, expected))?;
    let wanted = Hello::Wanted { service };
    let said = say(stream, &mut secured.sending, &wanted);
    let terms = match ask(stream, &mut secured, said, hear)? {
        Hello::Welcome { boot, calls_max, bytes_max } => Terms::of(boot, calls_max, bytes_max),
        Hello::Absent { reason } => return Err(Error::new(ErrorKind::Unreachable, reason)),
        Hello::Refused { reason } => return Err(refused(&reason)),
        _ => return Err(Error::new(ErrorKind::Corrupt, "a greeting out of order")),
    };
    let Secured { sending, receiving, peer, .. } = secured;
    let peer = ProvenPeer::Node(peer.expect("invariant: a server that is a node has a name"));
    Ok(Agreed::new(sending, receiving, terms, peer))
}

/// Hears the first frame after a handshake. The server may have refused the client's certificate
/// meanwhile, and then says so in the words of TLS. `said` is how the first frame to the server
/// went.
pub(crate) fn ask<S: Read, T>(
    stream: &mut S,
    secured: &mut Secured,
    said: Result<()>,
    hear: impl FnOnce(&mut dyn Read, &mut Seal) -> Result<T>,
) -> Result<T> {
    let mut remembering = Remembering { stream, first: Vec::new() };
    let heard = hear(&mut remembering, &mut secured.receiving);
    let Remembering { stream, mut first } = remembering;
    heard.map_err(|error| {
        // The first byte of a record. It may be shorter than the head of a frame, or longer.
        if matches!(first.first(), Some(20..=23)) {
            let room = (REMEMBERED_BYTES - first.len()) as u64;
            let _ = stream.by_ref().take(room).read_to_end(&mut first);
        }
        secured.last_word(&first).or(said.err()).unwrap_or(error)
    })
}

/// A stream whose first bytes are kept.
struct Remembering<'a, S> {
    stream: &'a mut S,
    first: Vec<u8>,
}

impl<S: Read> Read for Remembering<'_, S> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(bytes)?;
        let room = REMEMBERED_BYTES - self.first.len();
        self.first.extend_from_slice(&bytes[..count.min(room)]);
        Ok(count)
    }
}

/// The server's half. `find` gives the service that the client wants with its terms, and is asked
/// after the client has proven itself.
///
/// # Errors
/// `Access` if the client proves nothing, or may not use the service; `Unreachable` if the service
/// is not there; the stream's.
pub(crate) fn receive<T>(
    stream: &mut (impl Read + Write),
    credentials: &Credentials,
    find: &dyn Fn(Service) -> Option<(T, Terms)>,
) -> std::result::Result<Welcomed<T>, Refusal> {
    match credentials {
        Credentials::Secret(secret) => {
            let (found, agreed) = welcome_to(stream, secret, find)?;
            Ok(Welcomed::Session(found, agreed))
        }
        Credentials::Node(server) => receive_node(stream, server, find),
    }
}

/// The server's half, for a server of one service.
///
/// # Errors
/// As [`receive`]; `NotFound` if the client wants another service.
pub(crate) fn receive_one(
    stream: &mut (impl Read + Write),
    credentials: &Credentials,
    service: Service,
    terms: Terms,
) -> std::result::Result<Welcomed<()>, Refusal> {
    match credentials {
        Credentials::Secret(secret) => {
            Ok(Welcomed::Session((), welcome(stream, secret, service, terms)?))
        }
        Credentials::Node(server) => {
            receive_node(stream, server, &|wanted| (wanted == service).then_some(((), terms)))
        }
    }
}

fn receive_node<T>(
    stream: &mut (impl Read + Write),
    server: &NodeServer,
    find: &dyn Fn(Service) -> Option<(T, Terms)>,
) -> std::result::Result<Welcomed<T>, Refusal> {
    let Secured { mut sending, mut receiving, peer, .. } = server.acceptance.accept(stream)?;
    let Some(node) = peer else {
        return Ok(Welcomed::Joiner(Joiner { sending, receiving }));
    };
    let heard = hear(stream, &mut receiving);
    if let Err(error) = &heard
        && error.kind() == ErrorKind::NotSupported
    {
        // A program that is too old hears why.
        let _ = say(stream, &mut sending, &Hello::Refused { reason: error.to_string() });
    }
    let found = match heard? {
        Hello::Wanted { service } => {
            let admitted = server.members.admit(&node).and_then(|()| service.check_roles(&node));
            let found = admitted.and_then(|()| {
                let absent = || format!("{service} is not served here now");
                find(service).ok_or_else(|| Error::new(ErrorKind::Unreachable, absent()))
            });
            found.map(|(found, terms)| (Wish::Service(found), terms))
        }
        Hello::Through { node: to } => {
            let onward = server.members.admit(&node).and_then(|()| server.pass_on(&node, &to));
            // The other node says the terms that count.
            onward.map(|(stream, seat)| (Wish::Node(stream, seat), Terms::of(0, 0, 0)))
        }
        _ => return Err(Error::new(ErrorKind::Corrupt, "a greeting out of order").into()),
    };
    match found {
        Ok((wish, terms)) => {
            say(stream, &mut sending, &terms.welcome())?;
            let peer = ProvenPeer::Node(node);
            Ok(match wish {
                Wish::Service(found) => {
                    Welcomed::Session(found, Agreed::new(sending, receiving, terms, peer))
                }
                Wish::Node(onward, seat) => Welcomed::Passage(onward, seat),
            })
        }
        Err(error) => {
            // A greeting is short, so that a peer takes little memory for it.
            let reason = error.to_string().chars().take(REASON_CHARS_MAX).collect();
            let answer = match error.kind() {
                ErrorKind::Unreachable | ErrorKind::TimedOut => Hello::Absent { reason },
                _ => Hello::Refused { reason },
            };
            say(stream, &mut sending, &answer)?;
            Err(Refusal { node: Some(node.name), error })
        }
    }
}

/// A node's wish that is granted.
enum Wish<T> {
    Service(T),
    Node(Stream, Seat),
}

impl NodeServer {
    /// Connects to another node for a client.
    fn pass_on(&self, client: &NodeIdentity, to: &NodeName) -> Result<(Stream, Seat)> {
        if !client.roles.any_of(Roles::of(&[Role::Client, Role::Quorum])) {
            let detail = format!("{client} may not have connections passed on");
            return Err(Error::new(ErrorKind::Access, detail));
        }
        let place = self.passes.as_ref().and_then(|passes| passes.place_of(to));
        let unknown = || Error::new(ErrorKind::NotFound, format!("there is no node {to} here"));
        let (place, seat) = (place.ok_or_else(unknown)?, self.seats.take()?);
        Ok((Stream::connect(&place, ONWARD_MAX)?, seat))
    }
}
