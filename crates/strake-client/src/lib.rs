//! The client core: the [`Vfs`], which adapters (FUSE, NFS) call, and below it the page pool,
//! write-behind and prefetch. It stands on the array.
//!
//! Data flows one way: adapter ▶ `Vfs` ▶ page pool ▶ array (stripe ▶ NSD session).
//!
//! ```text
//! lives                the lives of a mount that was declared dead, one after the other
//! exclusion, vfs_impl  what repair needs of a mount; the calls of `Vfs`
//! explain              what is known of a file
//! client, tender       start and end; the threads that work in the background
//! give_up              what a revoked token covers is made durable, and dropped
//! ops, permissions     the operations; who may do them
//! data                 between applications and memory: write, read, prefetch, fold
//! flush                from dirty to durable, in the order that keeps promises
//! block_io             between a block in memory and its stripe
//! mount                what all parts share
//! inode                current attributes; inodes in use; queues of blocks
//! memory               contents in memory: page pool, blocks, files
//! tokens, locks        what this client may use; operations that wait for that; locks of programs
//! lease                until when
//! ```
//!
//! Each line uses only the lines below it (`xtask tidy`, arrows.rs).
//!
//! # Promises and where they are kept
//!
//! A size reaches the metadata after the data below it is stable (`flush`). A block reaches the
//! NSDs after the truncations of its file, and the reservation of its object, are durable
//! (`FileState::barrier`). The array keeps the other promises ([`strake_array`]).
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | held across |
//! |---|---|
//! | `InodeState::names` of directories, by inode number | one metadata call |
//! | `InodeState::lifetime` | one metadata call; dropping what is in memory of a removed file |
//! | `InodeState::syncing` | NSD and metadata I/O of that inode's sync |
//! | `FileState::extend` | copying of one extending write |
//! | `FileState::content` | NSD I/O of that file; exclusively also one metadata call |
//! | `FileState::meta` | one metadata call |
//! | `Block::data` | NSD I/O of that block: shared while sent, exclusively while read |
//! | the array's `NsdSet::gate` (shared), `NsdSet::noting` | NSD writes; a metadata call |
//! | `InodeState::core`, then the list of dirty inodes, the shards of the tables | nothing |
//! | the page pool, the queues, the maps of blocks, the array's lists | nothing |
//!
//! No thread waits for memory, for clean pages or for a round while it holds a lock that a flush
//! takes (`content` exclusively, `Block::data`).

#![warn(missing_docs)]

mod block_io;
pub mod client;
mod data;
mod exclusion;
pub mod explain;
mod flush;
mod give_up;
mod inode;
pub mod invalidate;
mod lease;
pub mod lives;
mod locks;
mod losses;
mod memory;
pub mod mode;
mod mount;
mod open_file;
mod ops;
mod permissions;
mod relocate;
pub mod settings;
mod tender;
mod timings;
pub mod tokens;
pub mod vfs;
mod vfs_impl;

#[cfg(test)]
mod added_test;
#[cfg(test)]
mod apart_test;
#[cfg(test)]
mod beside_test;
#[cfg(test)]
mod check_test;
#[cfg(test)]
mod coherence_test;
#[cfg(test)]
mod crash_test;
#[cfg(test)]
mod crowded_test;
#[cfg(test)]
mod delete_test;
#[cfg(test)]
mod differential_test;
#[cfg(test)]
mod disks_test;
#[cfg(test)]
mod emptied_test;
#[cfg(test)]
mod full_crash_test;
#[cfg(test)]
mod full_test;
#[cfg(test)]
mod groups_test;
#[cfg(test)]
mod hand_over_test;
#[cfg(test)]
mod kept_open_test;
#[cfg(test)]
mod known_test;
#[cfg(test)]
mod late_mount_test;
#[cfg(test)]
mod later_test;
#[cfg(test)]
mod leaving_test;
#[cfg(test)]
mod lock_test;
#[cfg(test)]
mod mapped_test;
#[cfg(test)]
mod mend_test;
#[cfg(test)]
mod nameless_test;
#[cfg(test)]
mod opens_test;
#[cfg(test)]
mod overwrite_test;
#[cfg(test)]
mod patch_test;
#[cfg(test)]
mod racing_write_test;
#[cfg(test)]
mod removed_test;
#[cfg(test)]
mod returning_test;
#[cfg(test)]
mod set_attr_test;
#[cfg(test)]
mod stream_test;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod walk_test;

pub use client::{ClientView, FlushReport, StrakeVfs};
pub use memory::page_pool::PagePoolView;
pub use settings::{Patches, Settings};
pub use tokens::Tokens;
pub use vfs::Vfs;
