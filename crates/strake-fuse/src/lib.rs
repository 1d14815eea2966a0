//! The thin adapter from the kernel's FUSE protocol to [`strake_client::Vfs`].
//!
//! `abi` describes the messages, `connection` mounts and unmounts, `session` reads requests and
//! writes replies on a few threads (`uring` is the other way to do that), `adapter` turns each
//! request into one call of the `Vfs`. No file-system logic lives here; what the kernel may cache
//! and for how long is `policy`, and `pages` keeps what it caches equal to what is written past it.
//! What the kernel must let go of is told by `notify`, the way back from the `Vfs`.

mod abi;
mod adapter;
mod awake;
mod connection;
mod notify;
mod pages;
mod policy;
mod readers;
mod reply;
mod session;
mod uring;

#[cfg(test)]
mod fuzz_test;

pub use awake::StayAwake;
pub use session::{FuseMount, MountOptions};
