//! Tokens: the right to cache a file, or a part of it, and to change it. Pure: events go in,
//! effects come out; there is no clock, socket or thread here.
//!
//! - [`Authority`] is the table of one file system, at the leader. It grants, revokes, and queues
//!   what conflicts.
//! - [`Holder`] is the view of one client: what it may use, what it must give back, and when.
//! - [`message`] has what the two say to each other. Messages may be lost, repeated and overtaken.
//! - [`port`] has the ways on which they say it.
//! - [`held`] and [`ranges`] say what a client holds of one file.
//! - [`locks`] has the locks of programs, which travel on the same ways.
//!
//! **The promise.** What one client may use never conflicts with what another may use. The
//! authority's table of a client always holds at least what that client may use: so the table
//! may be too strict for a moment, and never too lax.
//!
//! **How a conflict ends.** The authority says what the other client may keep. That client takes no
//! new use beyond it, waits for uses under way, makes its changes durable, drops caches, and
//! answers with what it keeps. Only then is a number drawn for the new grant. So numbers rise from
//! holder to holder, and with them the versions of what the holders write.
//!
//! **No hold and wait.** An operation asks for all its tokens at once and uses none before it has
//! all. A client that gives back waits for no token. So no circle of waits can come about.
//!
//! The rules are those of decision 0032; `strake-sim`'s `token_model` visits every state of small
//! scopes, and finds each rule that is taken away.

#![warn(missing_docs)]

pub mod authority;
pub mod held;
pub mod holder;
pub mod locks;
pub mod message;
pub mod port;
pub mod ranges;
pub mod rule;

pub use authority::Authority;
pub use held::{Held, Mode};
pub use holder::Holder;
pub use ranges::{BlockRange, Ranges};
