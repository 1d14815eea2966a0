//! Metadata ports over a socket, both ends.
//!
//! Request message: `MetaRequest` in postcard; reply message: `Result<MetaReply, Error>`; no
//! payload.
//!
//! **The journal.** An entry that was answered is visible but not yet durable: a server that dies
//! and restarts may have forgotten it, and everything that this client did afterwards builds on
//! it. The session therefore keeps every counted entry until a `sync` covers it, and when it
//! meets another boot number sends all of them again, in order, before anything else. The server
//! applies those it forgot and refuses (`Stale`) or repeats those it has; the state machine is
//! deterministic, so each forgotten entry gets the reply it got before. If one does not (another
//! client changed something between), the session says so and accepts nothing more: what this
//! client was told is not true any more. Entries with sequence 0 are not counted, not kept and
//! not repeated.

use crate::rpc::auth::{Service, SharedSecret};
use crate::rpc::connection::{CallError, Connection};
use crate::rpc::frame::{Frame, FrameKind};
use crate::rpc::server::{Answer, Handler, RpcServer, ServerOptions};
use crate::rpc::session::{Session, SessionEnv, SessionLimits, decode, encode};
use crate::rpc::stream::{Endpoint, Listener};
use crate::sync::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use strake_proto::limits::MESSAGE_BYTES_MAX;
use strake_proto::meta::{MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, Result};

/// The journal is synced away when it holds this many entries,
const JOURNAL_ENTRIES_MAX: usize = 16_384;
/// or this many encoded bytes.
const JOURNAL_BYTES_MAX: usize = 16 << 20;

/// What a client asks; borrowed when sent, owned when received.
#[derive(Serialize)]
enum MetaRequestRef<'a> {
    Query(&'a MetaQuery),
    Apply(&'a MetaEntry),
    Sync,
}

#[derive(Deserialize)]
enum MetaRequest {
    Query(MetaQuery),
    Apply(MetaEntry),
    Sync,
}

/// An entry that no sync covers yet.
struct Kept {
    sequence: u64,
    /// As it was sent.
    message: Arc<[u8]>,
    /// CRC32C of the encoded reply, once there is one.
    reply: Option<u32>,
}

#[derive(Default)]
struct Journal {
    entries: VecDeque<Kept>,
    bytes: usize,
    /// The server that has seen all of them.
    boot: Option<u64>,
    /// Set when a replay had another outcome than the first time.
    broken: Option<Error>,
}

/// The metadata behind a socket.
pub struct MetaClientSession {
    session: Session,
    /// Held while a counted entry is in flight: the server remembers only the last reply, so only
    /// the last entry may be unanswered.
    turn: Mutex<()>,
    journal: Mutex<Journal>,
}

impl MetaClientSession {
    /// A session with the metadata server at `endpoint`. Connects at the first call.
    pub fn new(endpoint: Endpoint, limits: SessionLimits, env: SessionEnv) -> MetaClientSession {
        MetaClientSession {
            session: Session::new(endpoint, Service::Meta, limits, env),
            turn: Mutex::new(()),
            journal: Mutex::default(),
        }
    }

    fn call(&self, reason: &'static str, message: &[u8], repeatable: bool) -> Result<MetaReply> {
        let again = |repeated: bool| Ok((repeatable || !repeated).then(|| message.to_vec()));
        let prepare = |connection: &Connection| self.replay(connection);
        let reply = self.session.call(FrameKind::MetaRequest, reason, &again, &[], &prepare)?;
        decode_reply(&reply.frame)
    }

    /// Brings a server that may have forgotten entries up to date. Runs before a fresh connection
    /// is used, and nothing else is sent meanwhile.
    fn replay(&self, connection: &Connection) -> Result<()> {
        let messages: Vec<(u64, Arc<[u8]>, Option<u32>)> = {
            let mut journal = self.journal.lock();
            if let Some(error) = &journal.broken {
                return Err(error.clone());
            }
            if journal.boot.is_none() {
                journal.boot = Some(connection.boot());
            }
            if journal.boot == Some(connection.boot()) {
                return Ok(());
            }
            let kept = journal.entries.iter();
            kept.map(|kept| (kept.sequence, Arc::clone(&kept.message), kept.reply)).collect()
        };
        for (sequence, message, before) in messages {
            let limit = self.session.limits().call;
            let frame = match connection.call(FrameKind::MetaRequest, &message, &[], limit) {
                Ok(frame) => frame,
                Err(CallError::Lost(error) | CallError::Failed(error)) => return Err(error),
            };
            let answer = decode_reply(&frame);
            let has_it = matches!(&answer, Err(error) if error.kind() == ErrorKind::Stale);
            let same = before.is_none_or(|before| before == crc32c::crc32c(&frame.message));
            if !has_it && !same {
                let detail = format!(
                    "the metadata server lost change {sequence} in a crash and it cannot be \
                     repeated: unmount and mount again"
                );
                let error = Error::new(ErrorKind::Io, detail);
                self.journal.lock().broken = Some(error.clone());
                return Err(error);
            }
        }
        self.journal.lock().boot = Some(connection.boot());
        Ok(())
    }

    /// Notes an entry that is about to be sent.
    fn keep(&self, sequence: u64, message: &Arc<[u8]>) -> Result<()> {
        let mut journal = self.journal.lock();
        if let Some(error) = &journal.broken {
            return Err(error.clone());
        }
        journal.bytes += message.len();
        journal.entries.push_back(Kept { sequence, message: Arc::clone(message), reply: None });
        Ok(())
    }

    /// Notes how the entry that was kept last ended.
    fn answered(&self, answer: &Result<MetaReply>) -> Result<()> {
        let mut journal = self.journal.lock();
        if answer.is_ok() {
            let reply = crc32c::crc32c(&encode(answer)?);
            let last = journal.entries.back_mut().expect("invariant: it was kept under `turn`");
            last.reply = Some(reply);
        } else if let Some(refused) = journal.entries.pop_back() {
            // An entry that was refused changed nothing. One whose fate is unknown is gone as well:
            // its caller was told of the failure.
            journal.bytes -= refused.message.len();
        }
        Ok(())
    }

    /// Forgets the entries that a sync made durable.
    fn forget(&self, through: u64) {
        let mut journal = self.journal.lock();
        while journal.entries.front().is_some_and(|kept| kept.sequence <= through) {
            let durable = journal.entries.pop_front().expect("invariant: there is a first");
            journal.bytes -= durable.message.len();
        }
    }
}

impl MetaPort for MetaClientSession {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        let message = encode(&MetaRequestRef::Query(query))?;
        self.call("for an answer of", &message, true)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let message: Arc<[u8]> = encode(&MetaRequestRef::Apply(entry))?.into();
        if entry.sequence == 0 {
            return self.call("for a change of", &message, false);
        }
        let _turn = self.turn.lock();
        let full = {
            let journal = self.journal.lock();
            journal.entries.len() >= JOURNAL_ENTRIES_MAX || journal.bytes >= JOURNAL_BYTES_MAX
        };
        if full {
            self.sync()?;
        }
        self.keep(entry.sequence, &message)?;
        let answer = self.call("for a change of", &message, true);
        self.answered(&answer)?;
        answer
    }

    fn sync(&self) -> Result<()> {
        // Only what was answered before is promised; what is in flight may miss this sync.
        let through = {
            let journal = self.journal.lock();
            journal
                .entries
                .iter()
                .take_while(|kept| kept.reply.is_some())
                .last()
                .map(|kept| kept.sequence)
        };
        self.call("for a sync of", &encode(&MetaRequestRef::Sync)?, true)?;
        if let Some(through) = through {
            self.forget(through);
        }
        Ok(())
    }
}

fn decode_reply(frame: &Frame) -> Result<MetaReply> {
    if frame.kind != FrameKind::MetaReply || !frame.payload.is_empty() {
        return Err(Error::new(ErrorKind::Corrupt, "a reply of the wrong kind"));
    }
    decode::<Result<MetaReply>>(&frame.message)?
}

/// Serves `port` as the metadata to whoever connects and knows the secret.
///
/// # Errors
/// When no thread can be started.
pub fn serve_meta(
    listener: Listener,
    port: Arc<dyn MetaPort>,
    secret: SharedSecret,
    options: ServerOptions,
) -> Result<RpcServer> {
    RpcServer::start(listener, Service::Meta, Arc::new(MetaHandler { port }), secret, options)
}

struct MetaHandler {
    port: Arc<dyn MetaPort>,
}

impl Handler for MetaHandler {
    fn kinds(&self) -> (FrameKind, FrameKind) {
        (FrameKind::MetaRequest, FrameKind::MetaReply)
    }

    fn handle(&self, message: &[u8], _payload: &[u8], buffer: Vec<u8>) -> Result<Answer> {
        let mut reply = match decode(message)? {
            MetaRequest::Query(query) => self.port.query(&query),
            MetaRequest::Apply(entry) => self.port.apply(&entry),
            MetaRequest::Sync => self.port.sync().map(|()| MetaReply::Done),
        };
        let mut message = encode(&reply)?;
        while message.len() > MESSAGE_BYTES_MAX {
            reply = shorter(reply);
            message = encode(&reply)?;
        }
        drop(buffer);
        Ok(Answer { message, payload: Vec::new() })
    }
}

/// Half of a listing that is too long for a message; its reader goes on after the last it got.
fn shorter(reply: Result<MetaReply>) -> Result<MetaReply> {
    match reply {
        Ok(MetaReply::Entries { mut entries, .. }) if entries.len() > 1 => {
            entries.truncate(entries.len() / 2);
            Ok(MetaReply::Entries { entries, end: false })
        }
        Ok(MetaReply::Inodes(mut inodes)) if inodes.len() > 1 => {
            inodes.truncate(inodes.len() / 2);
            Ok(MetaReply::Inodes(inodes))
        }
        _ => Err(Error::new(ErrorKind::TooBig, "the answer is too long for a message")),
    }
}

#[cfg(test)]
#[path = "meta_test.rs"]
mod meta_test;
