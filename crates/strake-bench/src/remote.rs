//! Tasks on other hosts and in other processes.
//!
//! A driver holds one connection to each agent (or worker process of its own) and sends the
//! steps of a phase as messages; what moves data is the same code everywhere. Clocks of hosts
//! are never compared: each host times its own tasks, from its own barrier to its own end.

pub mod agent;
pub mod channel;
pub mod driver;
pub mod message;
pub mod secret;
pub mod serve;
pub mod worker;
