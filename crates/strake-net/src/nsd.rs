//! NSD ports over a socket, both ends.
//!
//! Request message: (`NsdContext`, `NsdRequest`) in postcard; payload: the strips of a write.
//! Reply message: `Result<NsdReply, Error>`; payload: the bytes read, as many as the reply says.
//!
//! **A server without a lease** refuses every request as `Unreachable` (decision 0034). A server
//! that was started anew has its lease a moment later. So a request that is refused in this way is
//! sent again for [`LEASE_WAIT_MAX`].

use crate::auth::Service;
use crate::credentials::{Credentials, PortFor, ProvenPeer};
use crate::frame::FrameKind;
use crate::server::{Answer, Handler, RpcServer, ServerOptions};
use crate::session::{Session, SessionEnv, SessionLimits, decode, encode};
use crate::whereabouts::Whereabouts;
use std::sync::Arc;
use std::time::Duration;
use strake_env::stream::Listener;
use strake_proto::feature;
use strake_proto::limits::PAYLOAD_BYTES_MAX;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// A server that is started anew has a lease within a second, or its leader is away.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(3);
/// The time between two attempts at a server without a lease.
const LEASE_LOOK: Duration = Duration::from_millis(50);

/// An NSD behind a socket.
pub struct NsdClientSession {
    session: Session,
}

impl NsdClientSession {
    /// A session with the server of `nsd`. Connects at the first call.
    pub fn new(
        whereabouts: impl Into<Whereabouts>,
        nsd: NsdId,
        limits: SessionLimits,
        env: SessionEnv,
    ) -> NsdClientSession {
        NsdClientSession { session: Session::new(whereabouts, Service::Nsd(nsd), limits, env) }
    }
}

impl NsdPort for NsdClientSession {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let is_without_lease = |answer: &Result<Result<NsdReply>>| {
            let of_nsd = answer.as_ref().ok().and_then(|answer| answer.as_ref().err());
            of_nsd.is_some_and(|error| error.kind() == ErrorKind::Unreachable)
        };
        let first = self.call_once(context, request, send, receive, false);
        let is_of_lease = matches!(request, NsdRequest::Admission | NsdRequest::Lease { .. });
        if is_of_lease && first.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
            // A connection that was cut off for long repeats what it sent ever more rarely. A fresh
            // one finds the server as soon as that is there.
            self.session.disconnect();
        }
        if !is_without_lease(&first) {
            return first?;
        }
        let (start, nsd) = (self.session.now(), self.session.service().to_string());
        let wait = self.session.waits().begin_wait("for the lease of", &nsd);
        let mut answer = first;
        while is_without_lease(&answer) && self.session.now() < start + LEASE_WAIT_MAX {
            self.session.sleep(LEASE_LOOK);
            answer = self.call_once(context, request, send, receive, true);
        }
        self.session.waits().end_wait(wait);
        answer?
    }

    fn abandon(&self) {
        let detail = format!("{} is out of use", self.session.service());
        self.session.abandon(&Error::new(ErrorKind::Unreachable, detail));
    }
}

impl NsdClientSession {
    /// Calls the server once, or again if an earlier call may have been carried out. The outer
    /// error is the session's, the inner one the NSD's.
    fn call_once(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
        again: bool,
    ) -> Result<Result<NsdReply>> {
        let message = |repeated: bool| match request {
            NsdRequest::Write { key, header, checksums, copy: false, stable }
                if repeated || again =>
            {
                // The first attempt may have been executed. Versions are never reused, so finding
                // this version there means finding this very write.
                let (header, checksums) = (header.clone(), checksums.clone());
                let (key, stable) = (*key, *stable);
                let again = NsdRequest::Write { key, header, checksums, copy: true, stable };
                encode(&(context, again)).map(Some)
            }
            NsdRequest::WriteMany { strips, copy: false } if repeated || again => {
                let again = NsdRequest::WriteMany { strips: strips.clone(), copy: true };
                encode(&(context, again)).map(Some)
            }
            _ => encode(&(context, request)).map(Some),
        };
        let kind = FrameKind::NsdRequest;
        let (reason, feature) = (waiting_for(request), feature::of_nsd_request(request));
        let reply = self.session.call(kind, reason, &message, send, feature)?;
        if reply.frame.kind != FrameKind::NsdReply {
            return Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind"));
        }
        let answer: Result<NsdReply> = decode(&reply.frame.message)?;
        let payload = reply.frame.payload;
        if payload.len() > receive.len() {
            return Err(Error::new(ErrorKind::Corrupt, "a longer payload than was asked for"));
        }
        if let Ok(NsdReply::Strip { payload_bytes, .. }) = &answer
            && *payload_bytes as usize != payload.len()
        {
            return Err(Error::new(ErrorKind::Corrupt, "a payload of the wrong length"));
        }
        receive[..payload.len()].copy_from_slice(&payload);
        reply.connection.recycle(payload);
        Ok(answer)
    }
}

/// The name of the wait for a reply.
fn waiting_for(request: &NsdRequest) -> &'static str {
    match request {
        NsdRequest::Write { .. } | NsdRequest::WriteMany { .. } | NsdRequest::Patch { .. } => {
            "for a strip write on"
        }
        NsdRequest::Mend { .. } => "for a strip mended on",
        NsdRequest::Read { .. } => "for a strip read on",
        NsdRequest::Commit { .. } => "for a commit on",
        NsdRequest::DeleteRange { .. } | NsdRequest::ChangeRanges { .. } => {
            "for a range deletion on"
        }
        NsdRequest::ForgetTombstones { .. } => "for tombstones on",
        NsdRequest::Refuse { .. } => "for a promise of",
        NsdRequest::List { .. }
        | NsdRequest::ListUnsettled { .. }
        | NsdRequest::ListLacking { .. } => "for a listing of",
        NsdRequest::Status => "for the status of",
        NsdRequest::Check { .. } | NsdRequest::CheckPart { .. } => "for a check of",
        NsdRequest::Scrub { .. } | NsdRequest::Salvage => "for a scrub of",
        NsdRequest::Admission | NsdRequest::Lease { .. } | NsdRequest::Allow { .. } => {
            "for the lease of"
        }
        NsdRequest::Fence { .. } => "for a fence on",
        NsdRequest::RaiseFloor { .. } => "for a map floor on",
        NsdRequest::GrantSpace(_) => "for space on",
    }
}

/// Serves `port` as NSD `nsd` to all clients that prove themselves as `credentials` demand.
///
/// # Errors
/// When no thread can be started.
pub fn serve_nsd(
    listener: Listener,
    nsd: NsdId,
    port: Arc<dyn NsdPort>,
    credentials: impl Into<Credentials>,
    options: ServerOptions,
) -> Result<RpcServer> {
    let handler = Arc::new(NsdHandler::for_all(port));
    RpcServer::start(listener, Service::Nsd(nsd), handler, credentials.into(), options)
}

/// Executes requests at an NSD's port.
pub(crate) struct NsdHandler {
    ports: PortFor<dyn NsdPort>,
}

impl NsdHandler {
    pub(crate) fn new(ports: PortFor<dyn NsdPort>) -> NsdHandler {
        NsdHandler { ports }
    }

    /// One port for all peers.
    pub(crate) fn for_all(port: Arc<dyn NsdPort>) -> NsdHandler {
        NsdHandler::new(Arc::new(move |_| Ok(Arc::clone(&port))))
    }
}

impl Handler for NsdHandler {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::NsdRequest, FrameKind::NsdReply)
    }

    fn handle(
        &self,
        peer: &ProvenPeer,
        message: &[u8],
        payload: &[u8],
        mut buffer: Vec<u8>,
    ) -> Result<Answer> {
        let (context, request): (NsdContext, NsdRequest) = decode(message)?;
        let wanted = match &request {
            NsdRequest::Read { length, .. } => *length as usize,
            _ => 0,
        };
        let reply = if wanted > PAYLOAD_BYTES_MAX {
            let detail = format!("a read of {wanted} bytes is longer than any strip");
            Err(Error::new(ErrorKind::Invalid, detail))
        } else {
            buffer.resize(wanted, 0);
            (self.ports)(peer).and_then(|port| port.call(context, &request, payload, &mut buffer))
        };
        let filled = match &reply {
            Ok(NsdReply::Strip { payload_bytes, .. }) => *payload_bytes as usize,
            _ => 0,
        };
        if filled > wanted {
            return Err(Error::new(ErrorKind::Internal, "more bytes read than there is room for"));
        }
        buffer.truncate(filled);
        Ok(Answer { message: encode(&reply)?, payload: buffer })
    }
}
