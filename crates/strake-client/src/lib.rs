//! The client core: the [`Vfs`], which adapters (FUSE, NFS) call, and below it the page pool,
//! write-behind, prefetch, stripes and the sessions to NSD servers and metadata.
//!
//! Data flows one way: adapter ▶ `Vfs` ▶ page pool ▶ array (stripe ▶ NSD session).
//!
//! ```text
//! vfs_impl, ops/*      what an operation is, permissions
//! inode, open_table    attributes as they are now; what is in use
//! file, block, pool    contents in memory
//! file_io, prefetch    between applications and memory (neighbours: across small files)
//! write_behind         from dirty to accepted by the NSDs (accepted: and from there to stable)
//! commit, harden       from there to durable: the order that keeps promises
//! exclusion            what repair needs of a mount, granted with its locks
//! ```
//!
//! # Promises and where they are kept
//!
//! A size reaches the metadata after the data below it is stable (`commit`). A block reaches the
//! NSDs after the truncations of its file, and the reservation of its object, are durable
//! (`FileState::barrier`). The others are the array's ([`strake_array`]).
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | held across |
//! |---|---|
//! | `InodeState::names` of directories, by inode number | one metadata call |
//! | `InodeState::lifetime` | one metadata call; dropping what is in memory of a removed file |
//! | `FileState::commit` | NSD and metadata I/O of that file's commit |
//! | `FileState::extend` | copying of one extending write |
//! | `FileState::content` | NSD I/O of that file; exclusively also one metadata call |
//! | `FileState::meta` | one metadata call |
//! | `Block::data` | NSD I/O of that block: shared while sent, exclusively while read |
//! | the array's `NsdSet::gate` (shared), `NsdSet::noting` | NSD writes; a metadata call per loss |
//! | `InodeState::core`, then the list of dirty inodes, the shards of the tables | nothing |
//! | the pool, the queues, the maps of blocks, the array's lists | nothing |
//!
//! Nobody waits for memory, for clean pages or for a round while holding a lock that a flush takes
//! (`content` exclusively, `Block::data`).

#![warn(missing_docs)]

mod accepted;
mod background;
mod block;
pub mod client;
mod commit;
mod exclusion;
mod file;
mod file_io;
mod harden;
mod inode;
pub mod invalidate;
mod make_room;
mod neighbours;
mod numbers;
mod open_table;
mod ops;
mod permissions;
mod pool;
mod prefetch;
pub mod settings;
mod shared;
mod unsettled;
pub mod vfs;
mod vfs_impl;
mod write_behind;

#[cfg(test)]
mod check_test;
#[cfg(test)]
mod crash_test;
#[cfg(test)]
mod differential_test;
#[cfg(test)]
mod disks_test;
#[cfg(test)]
mod full_test;
#[cfg(test)]
mod overwrite_test;
#[cfg(test)]
mod racing_write_test;
#[cfg(test)]
mod rehome_test;
#[cfg(test)]
mod returning_test;
#[cfg(test)]
mod stream_test;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod vfs_test;

pub use client::{ClientView, FlushReport, StrakeVfs};
pub use pool::PoolView;
pub use settings::Settings;
pub use vfs::Vfs;
