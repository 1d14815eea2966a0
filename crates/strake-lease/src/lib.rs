//! Leases: how long a client may use what it holds, and how long an NSD server may serve. Pure:
//! events go in, effects come out; there is no clock, socket or thread here.
//!
//! - [`Membership`] is the leader's part. It renews leases, declares clients dead, and says when
//!   no NSD publishes anything of a dead client any more.
//! - [`Watch`] is the part of one client.
//! - [`message`] has what the leader says to NSD servers. An NSD's part is `admission.rs` of
//!   `strake-nsd`.
//! - [`Reservation`] decides which of several servers of one NSD may use it.
//!
//! **Clocks.** Three kinds of clocks are used: the leader's, the clients', the servers'. No two are
//! compared. They need to agree only in how fast they go: while one measures [`Times::lease`], no
//! other measures more than [`Times::margin`] beyond that.
//!
//! - A client counts its lease from the moment when it *sent* the renewal. The leader counts the
//!   same lease from the moment when it *heard* the renewal, and adds the margin. So the client's
//!   lease is over first.
//! - A server's lease ends at a moment of the server's own clock. The leader computes it from a
//!   moment that the server has named. It counts the lease from when it heard of that moment, and
//!   adds the margin. So the server's lease is over first.
//!
//! **The promise.** What a dead client held is free only when that client has stopped using it by
//! itself, and no NSD publishes anything of it any more: each NSD server has answered a fence, or
//! has no lease. A client that renews in time is never declared dead, however slow it is otherwise.
//!
//! The rules are those of decision 0042. `strake-sim`'s `lease_model` visits every state of small
//! scopes, and finds each rule that is taken away.

#![warn(missing_docs)]

pub mod membership;
pub mod message;
pub mod reservation;
pub mod rule;
pub mod watch;

pub use membership::{Member, Membership, Renewal, Times};
pub use reservation::{Mark, MarkOwner, Reservation, ReservationTimes, Verdict};
pub use watch::{Standing, Watch};
