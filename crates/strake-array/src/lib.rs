//! The array: blocks of objects as stripes of strips on NSDs, and the ways to the NSDs and to the
//! metadata. A client and the manager both stand on it. It knows versions, slots and positions. It
//! knows no files and no pages. Of an inode it knows only the number that a change names.
//!
//! ```text
//! array                the parts below as one context
//! reaper               range deletions: from the metadata to the NSDs
//! round, room, floors  accepted to stable; space; what is deleted in effect
//! stripe_io, scratch   blocks to strips and back
//! nsds                 a way to each NSD, and what may be done with it
//! exclusion            what repair needs of a client that may have dirty data
//! meta_link            the way to the metadata
//! ```
//!
//! # Promises and where they are kept
//!
//! A degraded write is acknowledged after the metadata knows which NSDs missed it (`nsds`). A
//! stripe is settled after the metadata that names its bytes is durable (`round`). NSDs are told of
//! a deletion after the metadata has recorded it durably (`reaper`).
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | held across |
//! |---|---|
//! | `Array::reaping` | metadata and NSD I/O of the reaper |
//! | `NsdSet::gate` (shared), `NsdSet::noting` | NSD writes; a metadata call once per loss |
//! | the lists of `Rounds`, `Floors`, `Room` | nothing |

pub mod array;
pub mod exclusion;
pub mod floors;
pub mod meta_link;
pub mod nsds;
pub mod reaper;
pub mod room;
pub mod round;
pub mod scratch;
pub mod stripe_io;

pub use array::{Array, ArrayOptions};
pub use exclusion::Exclusion;
pub use nsds::{FindNsd, NsdView};
