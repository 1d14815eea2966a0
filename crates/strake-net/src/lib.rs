//! Sessions on stream sockets: the two arrows (client ▶ NSD server, client ▶ metadata) between
//! processes. [`NsdClientSession`] and [`MetaClientSession`] are ports like the direct ones;
//! [`serve_nsd`] and [`serve_meta`] put a port behind a listener.
//!
//! **Layers.** [`frame`] is the codec: one frame, its limits, checksums and authentication code.
//! [`auth`] is the shared secret and the handshake. [`strake_env::stream`] is what differs between
//! Unix and TCP sockets. [`connection`] multiplexes calls over one authenticated stream; a
//! *session* is a connection that is made anew when it breaks. [`server`] is the other end; it may
//! ask its clients something over the same connection ([`back`]). [`talk`] is for two ends that
//! need no calls in flight: the benchmark's agents. A node of a cluster has one port for all its
//! services ([`door`]), of which one is for what the nodes ask each other ([`control`]), and one
//! for the replicas of the cluster's log ([`replicas`]).
//!
//! **A session's life.** The client connects, both prove that they know the secret (see
//! [`auth`]), and the server says its *boot number*, drawn anew at each start. Then any number of
//! calls are in flight; replies come in any order and are matched by request number. Every call
//! has a time limit and, while it waits, a name among the waiters.
//!
//! **Broken connections.** A call that was in flight may or may not have been executed. It is sent
//! again on a new connection for as long as [`SessionLimits`] allow, because every request can be
//! made safe to repeat:
//! - NSD requests are idempotent but for `Write`, which is repeated as put-if-newer (`copy`):
//!   versions are never reused, so an equal version is the same write. A restarted server
//!   may have forgotten strips; the boot number of its replies shows that.
//! - Metadata queries and `sync` are idempotent. Changes are counted: the metadata applies each
//!   once, however often it is sent. Changes that were answered and are not yet durable are kept,
//!   and replayed first when the server comes back with another boot number (they may have died
//!   with it). See `meta.rs`.
//!
//! If the services live in a process that is started anew when it dies, calls wait for that
//! (`server_process.rs`). A service that moves between nodes is sought for each connection
//! ([`Whereabouts`]); at another node it has another boot number, as after a restart.
//!
//! **Who is who.** Processes of one machine share a secret. Nodes of a cluster have certificates
//! ([`certificate`]), which a new node gets with a token ([`joining`]), and prove them in a
//! handshake of TLS ([`credentials`] says what each end knows of the other).
//!
//! **Threat model.** An attacker without the secret, or without a certificate, cannot open a
//! session, learn the secret from a session, or insert, repeat, reorder or drop frames of a
//! session. Every frame is sealed with a key of its session and direction ([`seal`]). With a
//! secret, and with certificates and `AUTHONLY`, a code covers a frame counter, the frame's head
//! (with the CRC32C of the payload) and the message. *Not* covered then: bytes are not encrypted,
//! and payloads are bound by CRC32C alone. So an attacker on the path can read, and can forge a
//! payload of equal CRC. Whoever fears that chooses `TLS`, where message and payload are encrypted.
//! A program that can read the secret's file or a node's key (mode 0600, refused otherwise) is
//! trusted with all that they allow. A node is trusted with what its roles allow.

pub mod auth;
pub mod authority;
pub mod back;
mod calls;
pub mod certificate;
mod certificate_end;
pub mod connection;
pub mod control;
pub mod credentials;
mod detour;
pub mod door;
pub mod frame;
mod greetings;
mod handshake;
mod join_ledger;
pub mod join_token;
pub mod joining;
mod journal;
mod meta;
mod nsd;
mod passage;
pub mod ping;
mod private_file;
mod refusals;
pub mod replicas;
mod replies;
pub mod seal;
pub mod server;
mod server_process;
mod session;
pub mod talk;
mod tls;
pub mod tokens;
mod whereabouts;

pub use auth::{Service, SharedSecret};
pub use authority::{AuthorityCopy, ClusterAuthority};
pub use calls::CallLimits;
pub use certificate::{Cipher, Fingerprint, NodeCredentials};
pub use control::{ControlPort, ask_node};
pub use credentials::{
    Credentials, DeskPlace, Introduction, Members, NodeServer, Passes, PortFor, ProvenPeer,
};
pub use detour::Detours;
pub use door::Door;
pub use join_token::JoinToken;
pub use joining::{JoinDesk, join};
pub use meta::{MetaClientSession, serve_meta};
pub use nsd::{NsdClientSession, serve_nsd};
pub use ping::Pings;
pub use replicas::{ReplicaPort, ReplicaWay};
pub use server::{ConnectedClient, RpcServer, ServerOptions};
pub use server_process::ServerProcess;
pub use session::{SessionEnv, SessionLimits};
pub use strake_env::WaitNames;
pub use strake_env::stream::{Endpoint, Listener, Stream};
pub use talk::Talk;
pub use tokens::{TokenPort, TokenSession};
pub use whereabouts::{Seek, Site, Whereabouts};

#[cfg(test)]
mod cluster_test;
#[cfg(test)]
mod net_test;
