//! Replacing the NSD of a slot, in two ways. While the current NSD can be read, the new one is its
//! *shadow* until it has everything, and then takes over. If the current NSD is lost, the new one
//! takes its place at once, empty, and is filled like an NSD that returns.
//!
//! The shadow makes every change that the current NSD has made. What the current NSD stored before
//! is copied to the shadow meanwhile. A shadow that misses a change never takes over.

use super::{NsdSet, Route, Vouched};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::meta::MetaOp;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{Error, ErrorKind, NsdId, Result, SlotIndex};
use tracing::{error, info};

/// An NSD that is to take over a slot.
pub struct Shadow {
    pub nsd: NsdId,
    pub(super) port: Arc<dyn NsdPort>,
    /// Set when the shadow missed a change. It cannot take over then.
    pub(super) failed: AtomicBool,
    boot: AtomicU64,
}

impl Shadow {
    /// Whether it missed a change.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the change that the current NSD has made. A shadow that failed once is not asked
    /// again.
    pub(super) fn follow(&self, context: NsdContext, request: &NsdRequest, send: &[u8]) {
        let copied;
        let request = match request {
            NsdRequest::Write { key, header, checksums, stable, .. } => {
                // The thread that copies older strips may have written this version first.
                let (header, checksums) = (header.clone(), checksums.clone());
                let (key, stable) = (*key, *stable);
                copied = NsdRequest::Write { key, header, checksums, copy: true, stable };
                &copied
            }
            NsdRequest::WriteMany { strips, .. } => {
                let mut rest = send;
                for strip in strips {
                    let (bytes, others) = rest.split_at(strip.bytes());
                    self.follow(context, &strip.alone(true), bytes);
                    rest = others;
                }
                return;
            }
            // Each by itself: the current NSD may have made more of them than one request makes
            // here.
            NsdRequest::ChangeRanges { fs, changes } => {
                return changes
                    .iter()
                    .for_each(|change| self.follow(context, &change.alone(*fs), send));
            }
            NsdRequest::Commit { .. }
            | NsdRequest::DeleteRange { .. }
            | NsdRequest::ForgetTombstones { .. }
            | NsdRequest::Refuse { .. } => request,
            // Stripes with a shadow are not patched: its copier may not have brought the base yet.
            NsdRequest::Patch { .. } => {
                error!(target: "disks", "NSD {}, which replaces another, missed a patch", self.nsd);
                return self.failed.store(true, Ordering::Release);
            }
            // It has its own copy of the version, which is good.
            NsdRequest::Mend { .. }
            | NsdRequest::Read { .. }
            | NsdRequest::List { .. }
            | NsdRequest::ListUnsettled { .. }
            | NsdRequest::ListLacking { .. }
            | NsdRequest::Status
            | NsdRequest::Check { .. }
            | NsdRequest::CheckPart { .. }
            | NsdRequest::Scrub { .. }
            | NsdRequest::Salvage
            // The manager gives each server its own.
            | NsdRequest::Admission
            | NsdRequest::Lease { .. }
            | NsdRequest::Allow { .. }
            | NsdRequest::Fence { .. }
            | NsdRequest::RaiseFloor { .. }
            // A grant is for what goes to the current NSD.
            | NsdRequest::GrantSpace(_) => return,
        };
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        match self.port.call(context, request, send, &mut []) {
            Ok(reply) => self.check_boot(&reply),
            Err(error) => {
                error!(target: "disks", "NSD {}, which replaces another: {error}", self.nsd);
                self.failed.store(true, Ordering::Release);
            }
        }
    }

    /// Fails a shadow that was started anew: it has lost what it had only accepted.
    fn check_boot(&self, reply: &NsdReply) {
        if let NsdReply::Accepted { boot } | NsdReply::Stable { boot, .. } = reply
            && *boot != self.boot.load(Ordering::Acquire)
        {
            self.failed.store(true, Ordering::Release);
        }
    }
}

impl NsdSet {
    /// The shadow of `slot`, if it is being replaced.
    pub fn shadow(&self, slot: SlotIndex) -> Option<Arc<Shadow>> {
        self.slot(slot).route.read().shadow.clone()
    }

    /// Makes `nsd` the shadow of `slot`: from now on it gets every change that the current NSD
    /// gets. Waits for changes under way.
    pub fn begin_shadow(&self, slot: SlotIndex, nsd: NsdId, port: Arc<dyn NsdPort>) -> Result<()> {
        let reply = port.call(self.context(), &NsdRequest::Status, &[], &mut [])?;
        let NsdReply::Status(status) = reply else { return Err(crate::meta_link::wrong_reply()) };
        if status.nsd != nsd {
            return Err(Error::new(ErrorKind::Invalid, format!("that is not NSD {nsd}")));
        }
        let (failed, boot) = (AtomicBool::new(false), AtomicU64::new(status.boot));
        let shadow = Arc::new(Shadow { nsd, port, failed, boot });
        let _alone = self.gate.write();
        self.slot(slot).route.write().shadow = Some(shadow);
        Ok(())
    }

    /// Ends the shadow of `slot`.
    pub fn end_shadow(&self, slot: SlotIndex) {
        self.slot(slot).route.write().shadow = None;
    }

    /// Gives `slot` to its shadow, which has everything. This is durable when it returns.
    ///
    /// # Errors
    /// `Unreachable` if the shadow missed something after all; the metadata's.
    pub fn promote_shadow(&self, slot: SlotIndex) -> Result<()> {
        let entry = self.slot(slot);
        let failed = || Error::new(ErrorKind::Unreachable, "the new disk failed meanwhile");
        let _alone = self.gate.write();
        let shadow = self.shadow(slot).ok_or_else(failed)?;
        let commit = NsdRequest::Commit { settled: Vec::new() };
        let reply = shadow.port.call(self.context(), &commit, &[], &mut [])?;
        let NsdReply::Stable { boot, stable, .. } = reply else {
            return Err(crate::meta_link::wrong_reply());
        };
        shadow.check_boot(&reply);
        if shadow.failed.load(Ordering::Acquire) {
            return Err(failed());
        }
        let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Up };
        let _serial = self.noting.lock();
        if self.availability(slot) != NsdAvailability::Up {
            return Err(Error::new(ErrorKind::Unreachable, "the old disk failed meanwhile"));
        }
        let old = self.nsd(slot);
        self.change_pool(MetaOp::ReplaceNsd { old, new: shadow.nsd, state })?;
        *entry.status.lock() = NsdStatus::Ready;
        entry.boot.store(boot, Ordering::Release);
        *entry.vouched.lock() = Vouched::stable(boot, stable);
        entry.nsd.store(shadow.nsd.0, Ordering::Release);
        *entry.route.write() = Route { port: Some(Arc::clone(&shadow.port)), shadow: None };
        info!(target: "disks", "NSD {} has replaced NSD {old}", shadow.nsd);
        Ok(())
    }

    /// Gives `slot`, whose NSD cannot be read, to an empty NSD. The mender then brings it up to
    /// date like an NSD that returns. The change of the slot is durable when this returns.
    ///
    /// # Errors
    /// The metadata's.
    pub fn replace_lost(&self, slot: SlotIndex, nsd: NsdId, port: Arc<dyn NsdPort>) -> Result<()> {
        let entry = self.slot(slot);
        let _alone = self.gate.write();
        let serial = self.noting.lock();
        let old = self.nsd(slot);
        let away = self.slots().filter(|other| *other == slot || self.is_noted(*other));
        if !self.tolerates(&away.collect::<Vec<_>>()) {
            let detail = "more NSDs are away than the code tolerates: bring them back first";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        let (status, availability) = (NsdStatus::Replacement, NsdAvailability::Unrecovered);
        let state = NsdState { status, availability };
        self.change_pool(MetaOp::ReplaceNsd { old, new: nsd, state })?;
        *entry.status.lock() = status;
        entry.boot.store(0, Ordering::Release);
        *entry.vouched.lock() = Vouched::default();
        self.missed().distrust(slot);
        entry.nsd.store(nsd.0, Ordering::Release);
        entry.noted.store(true, Ordering::Release);
        *entry.route.write() = Route { port: Some(port), shadow: None };
        self.set_availability(slot, availability);
        info!(target: "disks", "NSD {nsd} has taken the place of NSD {old} and is filled now");
        drop(serial);
        self.call_for_attention();
        Ok(())
    }
}
