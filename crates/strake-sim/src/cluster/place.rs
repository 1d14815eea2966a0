//! Where everything is, and what proves who speaks.

use std::sync::Arc;
use strake_crew::{Introduce, Locate, NsdPlace, Place};
use strake_env::net::SocketAddr;
use strake_net::{Introduction, SharedSecret};
use strake_proto::{ClusterId, FsId, NsdId};

pub(crate) const CLUSTER: ClusterId = ClusterId([8; 16]);
/// The one file system.
pub(crate) const FS: FsId = FsId(1);
/// The numbers of the nodes.
pub(crate) const NODES: std::ops::RangeInclusive<u32> = 1..=3;
pub(crate) const BLOCK_SIZE: u32 = 256 << 10;

const PORT: u16 = 7790;

/// The NSD of a node.
pub(crate) fn nsd(node: u32) -> NsdId {
    NsdId(node)
}

/// Where a node listens.
pub(crate) fn place(node: u32) -> Place {
    let address = SocketAddr::from(([10, 0, 0, node as u8], PORT));
    Place { node: format!("node{node}").parse().expect("a name"), address }
}

/// Where the NSDs are.
pub(crate) fn places() -> Vec<NsdPlace> {
    NODES.map(|node| NsdPlace { nsd: nsd(node), place: place(node) }).collect()
}

/// NSDs stay where they are.
pub(crate) fn locate() -> Locate {
    Arc::new(|nsd| places().into_iter().find(|it| it.nsd == nsd).map(|it| it.place))
}

/// What all processes of the cluster know.
pub(crate) fn credentials() -> SharedSecret {
    SharedSecret::of_words(b"of the simulated cluster")
}

/// How each process proves itself to a node.
pub(crate) fn introduce() -> Introduce {
    Arc::new(|_| Introduction::from(credentials()))
}
