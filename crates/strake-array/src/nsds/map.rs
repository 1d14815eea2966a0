//! An NSD server refuses requests under a pool map that is too old (`OldMap`, rule R2). The map is
//! fetched then, and NSDs that it takes out of use are used no more.
//!
//! Writes, patches and reads of strips are not sent again here. The strips of one version go out
//! under one map, so the writer sends the whole stripe again as a new version. A reader looks anew
//! which NSDs it may read. Every other request may be sent twice, and is sent again.

use super::NsdSet;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::nsd::{NsdPort, NsdReply, NsdRequest};
use strake_proto::{ErrorKind, NsdId, Result};
use tracing::info;

impl NsdSet {
    /// Sends a request, after fetching the map if the one known is too old.
    pub(super) fn ask(
        &self,
        port: &dyn NsdPort,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let context = self.context();
        match port.call(context, request, send, receive) {
            Err(error) if error.kind() == ErrorKind::OldMap => {
                self.follow_map()?;
                let is_of_a_stripe = matches!(
                    request,
                    NsdRequest::Write { .. } | NsdRequest::Patch { .. } | NsdRequest::Read { .. }
                );
                if is_of_a_stripe || self.context().map <= context.map {
                    return Err(error);
                }
                port.call(self.context(), request, send, receive)
            }
            result => result,
        }
    }

    /// Fetches the pool map, and stops using NSDs that have missed writes of other clients.
    fn follow_map(&self) -> Result<()> {
        let configuration = self.configuration()?;
        let is_out = |slot: &&strake_proto::layout::Slot| {
            let is_deleted = matches!(slot.state.status, NsdStatus::Deleted { .. });
            slot.state.availability != NsdAvailability::Up && !is_deleted
        };
        let out: Vec<NsdId> =
            configuration.pool.slots.iter().filter(is_out).map(|slot| slot.nsd).collect();
        let version = configuration.pool.version;
        info!(target: "disks", "the pool map is fetched anew: version {version}");
        self.take_pool(*configuration);
        let is_used = |nsd: &NsdId| self.slot_of(*nsd).is_some_and(|slot| !self.is_noted(slot));
        out.into_iter().filter(is_used).for_each(|nsd| self.leave(nsd));
        Ok(())
    }
}

#[cfg(test)]
#[path = "map_test.rs"]
mod map_test;
