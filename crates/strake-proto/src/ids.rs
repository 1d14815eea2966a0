//! The ids of things. Each id is a type of its own, so the compiler refuses one in the place of
//! another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{}", self.0)
            }
        }
    };
}

id!(
    /// A file system within a cluster. One file system has id 1.
    FsId(u32)
);
id!(
    /// A network shared disk. Never reused within a cluster.
    NsdId(u32)
);
id!(
    /// The object that strips belong to. Never reused.
    ObjectId(u64)
);
id!(
    /// An inode number. It is also the FUSE node id and, with its generation, the NFS handle.
    Ino(u64)
);
id!(
    /// Distinguishes two lives of one inode number.
    Generation(u64)
);
id!(
    /// A node's membership. Each join gets a new one. Disks refuse older ones.
    Epoch(u64)
);
id!(
    /// A place in a pool, held by one NSD at a time. It is the index in [`crate::PoolMap::slots`].
    SlotIndex(u16)
);
id!(
    /// Names the set of slots over which an object was laid out.
    LayoutVersion(u32)
);
id!(
    /// The version of a pool map. Every I/O carries it.
    MapVersion(u64)
);
id!(
    /// The number of a token grant. Never reused.
    GrantNumber(u64)
);
id!(
    /// A client of the metadata leader. Each id has its own count of requests.
    ClientId(u64)
);
id!(
    /// A leader's time in office. Each leader has a higher term than all before. What was said in
    /// an earlier term is void.
    Term(u64)
);
id!(
    /// A strip's position in its stripe: 0..N are data, N..N+P parity.
    StripIndex(u8)
);

impl ClientId {
    /// The manager and its duties. It is no client, and joins nothing: its term takes the place of
    /// an epoch.
    pub const MANAGER: ClientId = ClientId(0);
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// A cluster's identity. It is drawn at random when the cluster is made, and is on every disk.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// A stripe's version. It is unique for ever, and ordered by grant and then by counter.
///
/// `Version::NONE` is below every version that is ever written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The grant under which it was written.
    pub grant: GrantNumber,
    /// Counted from 1 by the client that has the grant.
    pub counter: u64,
}

impl Version {
    /// Below every real version.
    pub const NONE: Version = Version { grant: GrantNumber(0), counter: 0 };
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.grant, self.counter)
    }
}

/// The full name of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StripKey {
    /// The file system.
    pub fs: FsId,
    /// The object.
    pub object: ObjectId,
    /// The block within the object.
    pub block: crate::BlockIndex,
    /// The position in the stripe.
    pub strip: StripIndex,
}

impl fmt::Display for StripKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}:{}", self.fs, self.object, self.block, self.strip)
    }
}
