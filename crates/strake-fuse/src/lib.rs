//! The thin adapter from the kernel's FUSE protocol to [`strake_client::Vfs`].
//!
//! - `abi` describes the messages.
//! - `connection` mounts and unmounts.
//! - `session` reads requests and writes replies on a few threads; `uring` does the same over
//!   io_uring. `readers` decides how many threads read, and `awake` keeps processors awake.
//!   `overdue` names the requests that take very long.
//! - `adapter` turns each request into one call of the `Vfs`, and `reply` builds the answers.
//! - `policy` decides what the kernel may cache and for how long. `pages` keeps its pages equal to
//!   what is written past them. `late` finds attributes that the kernel would take in after they
//!   have changed.
//! - `notify` tells the kernel what to drop from its caches. It is the way back from the `Vfs`.
//!
//! No file-system logic lives here.

mod abi;
mod adapter;
mod awake;
mod connection;
mod failures;
mod init;
mod late;
mod locks;
mod mode;
pub mod mountinfo;
mod notify;
mod options;
mod overdue;
mod pages;
mod policy;
mod readers;
mod reply;
mod session;
mod uring;

#[cfg(test)]
mod fuzz_test;

pub use awake::StayAwake;
pub use options::KernelOptions;
pub use overdue::Answering;
pub use session::{FuseMount, MountOptions};
