//! A mount that was declared dead changes nothing any more, once what it left is put right: no NSD
//! takes anything of it, and no operation that it begins then succeeds (P5, R9).

use crate::cluster::record::{Op, Record, Recorder};
use std::sync::Arc;
use strake_proto::Result;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};

/// Watches the requests that an NSD answers.
pub(crate) struct WatchedNsd {
    pub(crate) inner: Arc<dyn NsdPort>,
    pub(crate) recorder: Arc<Recorder>,
}

impl NsdPort for WatchedNsd {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let was_buried = self.recorder.is_buried(context.client);
        let reply = self.inner.call(context, request, send, receive);
        let (client, is_done) = (context.client, reply.is_ok() && is_change(request));
        assert!(!was_buried || !is_done, "client {client} is buried, and had: {request:?}");
        reply
    }
}

fn is_change(request: &NsdRequest) -> bool {
    matches!(
        request,
        NsdRequest::Write { .. }
            | NsdRequest::WriteMany { .. }
            | NsdRequest::Patch { .. }
            | NsdRequest::Mend { .. }
            | NsdRequest::Commit { .. }
            | NsdRequest::DeleteRange { .. }
            | NsdRequest::ChangeRanges { .. }
            | NsdRequest::Refuse { .. }
    )
}

/// Judges what programs were answered.
///
/// # Errors
/// The operation that succeeded although its mount was buried.
pub(crate) fn judge(record: &Record) -> std::result::Result<(), String> {
    let is_late = |op: &&Op| {
        let buried = record.deaths.get(&op.life).copied().flatten();
        op.end.is_some() && buried.is_some_and(|buried| op.begin > buried)
    };
    match record.ops.iter().find(is_late) {
        Some(op) => Err(format!("a mount that was buried went on: {op:?}")),
        None => Ok(()),
    }
}
