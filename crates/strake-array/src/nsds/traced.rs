//! Calls of NSDs as events of a trace.

use super::NsdSet;
use std::sync::Arc;
use strake_observe::Trace;
use strake_proto::nsd::{NsdPort, NsdReply, NsdRequest};
use strake_proto::{Result, SlotIndex};

impl NsdSet {
    /// Makes calls events of `trace`.
    pub(crate) fn set_trace(&mut self, trace: &Arc<Trace>) {
        self.trace = Some(Arc::clone(trace));
    }

    /// Like [`NsdSet::ask`], and an event of the trace while one runs.
    pub(super) fn traced(
        &self,
        slot: SlotIndex,
        port: &dyn NsdPort,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let Some(trace) = self.trace.as_ref().filter(|trace| trace.is_on()) else {
            return self.ask(port, request, send, receive);
        };
        let (begun, bytes) = (trace.begin(), (send.len() + receive.len()) as u64);
        let result = self.ask(port, request, send, receive);
        trace.end(begun, name_of(request), bytes, Some(self.nsd(slot)), result.is_err());
        result
    }
}

/// The name of a request in a trace.
fn name_of(request: &NsdRequest) -> &'static str {
    match request {
        NsdRequest::Write { .. } => "call write",
        NsdRequest::Patch { .. } => "call patch",
        NsdRequest::Read { .. } => "call read",
        NsdRequest::Commit { .. } => "call commit",
        NsdRequest::DeleteRange { .. } => "call delete",
        NsdRequest::Status => "call status",
        _ => "call other",
    }
}
