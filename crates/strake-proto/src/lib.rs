//! Ids, units, limits, error kinds, and the messages that cross Strake's two arrows
//! (client ▶ NSD server, client ▶ metadata leader). All other crates stand on this one. It is pure:
//! no clock, no I/O.
//!
//! Everything that is written to a disk or a wire has its type here or in the file that owns the
//! record. Integers are little-endian. The exception are keys that are scanned in order, which are
//! big-endian.

#![warn(missing_docs)]

pub mod acl;
pub mod attr;
mod byte_string;
pub mod errno;
pub mod error;
pub mod feature;
pub mod histogram;
pub mod ids;
pub mod layout;
pub mod limits;
mod made;
pub mod meta;
pub mod node;
pub mod nsd;
pub mod units;

pub use attr::{Attr, Caller, FileType, Groups, StatFs, Timestamp};
pub use error::{Error, ErrorKind, Result};
pub use feature::FeatureLevel;
pub use ids::{
    ClientId, ClusterId, Epoch, FsId, Generation, GrantNumber, Ino, LayoutVersion, MapVersion,
    NsdId, ObjectId, SlotIndex, StripIndex, StripKey, Term, Version,
};
pub use layout::{Code, Geometry, LayoutMap, NsdState, ObjectLayout, PoolMap, Slot};
pub use node::{NodeIdentity, NodeName, Role, Roles};
pub use units::{BlockIndex, ByteCount, parse_size};
