//! The pool map: it is read, changed, and followed when it is too old.
//!
//! An NSD server refuses requests under a pool map that is too old (`OldMap`, rule R2). The map is
//! fetched then, and NSDs that it takes out of use are used no more.
//!
//! Writes, patches and reads of strips are not sent again here. The strips of one version go out
//! under one map, so the writer sends the whole stripe again as a new version. A reader looks anew
//! which NSDs it may read. Every other request may be sent twice, and is sent again.

use super::NsdSet;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdPort, NsdReply, NsdRequest};
use strake_proto::{ErrorKind, LayoutVersion, NsdId, Result, SlotIndex};
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
                    NsdRequest::Write { .. }
                        | NsdRequest::WriteMany { .. }
                        | NsdRequest::Patch { .. }
                        | NsdRequest::Mend { .. }
                        | NsdRequest::Read { .. }
                );
                if is_of_a_stripe || self.context().map <= context.map {
                    return Err(error);
                }
                port.call(self.context(), request, send, receive)
            }
            result => result,
        }
    }

    /// Sets what the administrator wants of an NSD, durably.
    ///
    /// # Errors
    /// The metadata's.
    pub fn set_status(&self, slot: SlotIndex, status: NsdStatus) -> Result<()> {
        let _serial = self.noting.lock();
        // Others may have noted it, and this client has not heard of that yet.
        let known = || -> Result<NsdAvailability> {
            let slots = self.configuration()?.pool.slots;
            let known = slots.get(usize::from(slot.0)).map(|it| it.state.availability);
            Ok(known.unwrap_or(NsdAvailability::Up))
        };
        loop {
            let availability = match self.is_noted(slot) {
                true => NsdAvailability::Unrecovered,
                false => known()?,
            };
            let state = NsdState { status, availability };
            match self.change_pool(MetaOp::SetNsdState { nsd: self.nsd(slot), state }) {
                Ok(()) => break,
                // It was noted just now.
                Err(_) if availability == NsdAvailability::Up && known()? != availability => {}
                Err(error) => return Err(error),
            }
        }
        *self.slot(slot).status.lock() = status;
        Ok(())
    }

    /// The layout that new files get.
    pub(crate) fn newest_layout(&self) -> Option<LayoutVersion> {
        self.pool.read().layouts.last().map(|layout| layout.version)
    }

    /// Whether new files get no strips on `slot`.
    pub fn is_left_out(&self, slot: SlotIndex) -> bool {
        let pool = self.pool.read();
        let last = pool.layouts.last();
        last.is_some_and(|layout| layout.members.iter().all(|(member, _)| *member != slot))
    }

    /// Reads the pool map again.
    pub(super) fn refresh_pool(&self) -> Result<()> {
        self.take_pool(*self.configuration()?);
        Ok(())
    }

    pub(super) fn configuration(&self) -> Result<Box<Configuration>> {
        match self.meta.query(&MetaQuery::Configuration)? {
            MetaReply::Configuration(configuration) => Ok(configuration),
            _ => Err(crate::meta_link::wrong_reply()),
        }
    }

    /// Writes an NSD's availability into the metadata, durably. The status stays as it is there:
    /// others may have suspended the NSD, or begun to delete it, since this client has read the
    /// pool map. Only a replacement that is filled becomes ready with it.
    pub(super) fn record(&self, slot: SlotIndex, availability: NsdAvailability) -> Result<()> {
        let own = *self.slot(slot).status.lock();
        let known = self.configuration()?.pool.slots.get(usize::from(slot.0)).map(|it| it.state);
        let status = match known.map_or(own, |known| known.status) {
            NsdStatus::Replacement => own,
            known => known,
        };
        let state = NsdState { status, availability };
        self.change_pool(MetaOp::SetNsdState { nsd: self.nsd(slot), state })
    }

    /// Changes the pool map durably.
    pub(super) fn change_pool(&self, op: MetaOp) -> Result<()> {
        let (client, time) = (self.client, self.clock.wall());
        let reply = self.meta.apply(&MetaEntry { client, sequence: 0, time, op })?;
        if let MetaReply::Configuration(configuration) = reply {
            self.take_pool(*configuration);
        }
        self.meta.sync()
    }

    /// Fetches the pool map, and stops using NSDs that have missed writes of other clients.
    ///
    /// # Errors
    /// The metadata's.
    pub fn follow_map(&self) -> Result<()> {
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
