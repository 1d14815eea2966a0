//! Calls of NSDs: each is timed, each is a wait of the request that it belongs to, and each is an
//! event of a trace while one runs.

use super::NsdSet;
use std::sync::Arc;
use strake_env::answering;
use strake_observe::{DiskWork, Observe};
use strake_proto::nsd::{NsdPort, NsdReply, NsdRequest};
use strake_proto::{Result, SlotIndex};

/// The reason of a request's wait while an NSD works for it.
const CALL: &str = "NSD call";

impl NsdSet {
    /// Has calls timed.
    pub(crate) fn set_observe(&mut self, observe: &Arc<Observe>) {
        self.observe = Some(Arc::clone(observe));
    }

    /// Like [`NsdSet::ask`], and timed.
    pub(super) fn traced(
        &self,
        slot: SlotIndex,
        port: &dyn NsdPort,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let Some(observe) = &self.observe else { return self.ask(port, request, send, receive) };
        let (begun, bytes) = (self.clock.monotonic(), (send.len() + receive.len()) as u64);
        let wait = answering::wait(CALL);
        let result = self.ask(port, request, send, receive);
        drop(wait);
        let nsd = self.nsd(slot);
        if let Some(work) = work_of(request) {
            let took = self.clock.monotonic().saturating_sub(begun);
            observe.calls.of(nsd).record(work, took, bytes);
        }
        let trace = &observe.trace;
        if trace.is_on() {
            trace.end(Some(begun), name_of(request), bytes, Some(nsd), result.is_err());
        }
        result
    }
}

/// The kind of work that an NSD does for a request, if other NSDs' times can be compared with it.
fn work_of(request: &NsdRequest) -> Option<DiskWork> {
    match request {
        NsdRequest::Write { .. } | NsdRequest::WriteMany { .. } | NsdRequest::Patch { .. } => {
            Some(DiskWork::Write)
        }
        NsdRequest::Read { .. } => Some(DiskWork::Read),
        NsdRequest::Commit { .. } => Some(DiskWork::Sync),
        _ => None,
    }
}

/// The name of a request in a trace.
fn name_of(request: &NsdRequest) -> &'static str {
    match request {
        NsdRequest::Write { .. } | NsdRequest::WriteMany { .. } => "call write",
        NsdRequest::Patch { .. } => "call patch",
        NsdRequest::Mend { .. } => "call mend",
        NsdRequest::Read { .. } => "call read",
        NsdRequest::Commit { .. } => "call commit",
        NsdRequest::DeleteRange { .. } | NsdRequest::ChangeRanges { .. } => "call delete",
        NsdRequest::Status => "call status",
        _ => "call other",
    }
}
