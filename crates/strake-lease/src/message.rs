//! What the leader says to an NSD server, and the answer. Each message may be lost, repeated and
//! overtaken.

use crate::membership::Member;
use std::time::Duration;
use strake_proto::MapVersion;
use strake_proto::nsd::{AllowList, NsdRequest};

/// Counts the messages of one leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// To an NSD server. The requests of [`NsdRequest`] say what each does there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// [`NsdRequest::Admission`].
    Ask,
    /// [`NsdRequest::Lease`].
    Lease {
        /// The server's life that this is for.
        boot: u64,
        /// The lease's end on the server's clock.
        until: Duration,
        /// The lowest map version that the server accepts.
        floor: MapVersion,
        /// The number of the list, and the list. `None` renews the lease alone.
        list: Option<(u64, Vec<Member>)>,
    },
    /// [`NsdRequest::Allow`].
    Allow {
        /// The addition's number.
        number: u64,
        /// Who may use the NSD from now on.
        member: Member,
    },
    /// [`NsdRequest::Fence`].
    Fence {
        /// The fence's number.
        number: u64,
        /// Who may use the NSD no more.
        member: Member,
    },
    /// [`NsdRequest::RaiseFloor`].
    RaiseFloor {
        /// The lowest map version that the server accepts from now on.
        floor: MapVersion,
    },
}

impl Message {
    /// The message as a request.
    pub fn request(&self) -> NsdRequest {
        match self {
            Message::Ask => NsdRequest::Admission,
            Message::Lease { boot, until, floor, list } => NsdRequest::Lease {
                boot: *boot,
                until: *until,
                floor: *floor,
                list: list.as_ref().map(|(number, clients)| AllowList {
                    number: *number,
                    clients: clients.clone(),
                }),
            },
            Message::Allow { number, member: (client, epoch) } => {
                NsdRequest::Allow { number: *number, client: *client, epoch: *epoch }
            }
            Message::Fence { number, member: (client, epoch) } => {
                NsdRequest::Fence { number: *number, client: *client, epoch: *epoch }
            }
            Message::RaiseFloor { floor } => NsdRequest::RaiseFloor { floor: *floor },
        }
    }
}
