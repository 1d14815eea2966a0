//! Counted changes: which changes of a client were applied, and how each was answered.
//!
//! A client may have [`WINDOW_CHANGES`] changes in flight. It may send each of them again, in any
//! order. The client's record holds its life and its *oldest* sequence: the lowest one whose answer
//! the client may lack. Every entry brings the client's current oldest along. The answers of all
//! changes from the oldest on are kept, refusals included. So there are four cases for a change
//! that arrives:
//!
//! | the change | what happens |
//! |---|---|
//! | is of another life | refused (`Fenced`), unless it is a `Join`: that opens its life |
//! | is below the oldest | refused (`Stale`): it was answered, and the client has the answer |
//! | has an answer here | it gets the same answer again and changes nothing |
//! | has none | it is applied, and its answer is kept |
//!
//! The client raises its oldest only past changes whose answers it has received. A change that was
//! answered has a lower position in the log than any change sent after that answer. So if a crash
//! cuts the log, the rest agrees with one moment of the past: a change below the oldest is in the
//! log, and a change without an answer is not.

use crate::keys::{self, Table};
use crate::records::{AnswerRecord, Outcome, SessionRecord};
use crate::transaction::Transaction;
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{CountedAnswer, CountedEntry, MetaOp, MetaReply};
use strake_proto::{Error, ErrorKind, Result};

/// A refusal's sentence is kept up to this length. That is enough to name a file and say why.
const DETAIL_BYTES_MAX: usize = 400;

/// Says how to handle a counted change.
pub(crate) enum Admission {
    /// The change is new. This is the client's record before the change.
    New(SessionRecord),
    /// The change was applied before. This was the answer.
    Again(CountedAnswer),
}

/// Decides whether to apply a counted change.
///
/// # Errors
/// `Fenced`, `Stale` and `Invalid`, as the file's head and [`CountedEntry`] say.
pub(crate) fn admit(txn: &Transaction<'_>, counted: &CountedEntry) -> Result<Admission> {
    let sequence = counted.entry.sequence;
    if counted.life == 0 || counted.oldest == 0 || sequence < counted.oldest {
        return Err(Error::new(ErrorKind::Invalid, "a counted change without its count"));
    }
    let raw = txn.get_raw(&keys::session(txn.client))?;
    let session = raw.map(|bytes| SessionRecord::decode(&bytes)).transpose()?.unwrap_or_default();
    if session.life != counted.life {
        if matches!(counted.entry.op, MetaOp::Join) {
            let (life, oldest) = (counted.life, counted.oldest);
            return Ok(Admission::New(SessionRecord::new(life, oldest)));
        }
        let detail = format!("client {} has begun another life: mount again", txn.client);
        return Err(Error::new(ErrorKind::Fenced, detail));
    }
    if sequence < session.oldest {
        let detail = format!("change {sequence} of client {} was answered before", txn.client);
        return Err(Error::new(ErrorKind::Stale, detail));
    }
    if let Some(answer) = txn.get::<AnswerRecord>(&keys::answer(txn.client, sequence))?
        && answer.sequence == sequence
    {
        let outcome = match answer.outcome {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Configuration => Ok(MetaReply::Configuration(Box::new(txn.configuration()?))),
            Outcome::Refused(kind, detail) => Err(Error::new(kind, detail)),
        };
        return Ok(Admission::Again(CountedAnswer { position: answer.position, outcome }));
    }
    if sequence - session.oldest.max(counted.oldest) >= WINDOW_CHANGES {
        let detail = format!("change {sequence} is beyond the window of client {}", txn.client);
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    if matches!(counted.entry.op, MetaOp::Join) {
        let detail = format!("client {} has begun this life before", txn.client);
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    Ok(Admission::New(session))
}

/// True if an error is the state machine's decision. Other errors come from the store and may be
/// gone the next time.
pub(crate) fn is_refusal(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::Internal)
}

/// Keeps the answer of a change, and drops the answers that the client has received. Returns the
/// outcome as the client gets it now and at every later time.
pub(crate) fn remember(
    txn: &mut Transaction<'_>,
    mut session: SessionRecord,
    counted: &CountedEntry,
    position: u64,
    outcome: Result<MetaReply>,
) -> Result<MetaReply> {
    let outcome = outcome.map_err(shortened);
    let (client, sequence) = (txn.client, counted.entry.sequence);
    if counted.oldest > session.oldest {
        let passed =
            session.oldest..counted.oldest.min(session.oldest.saturating_add(WINDOW_CHANGES));
        passed.for_each(|passed| txn.remove(keys::answer(client, passed)));
        session.oldest = counted.oldest;
    }
    txn.put_raw(keys::session(client), session.encode());
    let kept = match &outcome {
        Ok(MetaReply::Configuration(_)) => Outcome::Configuration,
        Ok(reply) => Outcome::Reply(reply.clone()),
        Err(error) => Outcome::Refused(error.kind(), error.detail().to_owned()),
    };
    txn.put(keys::answer(client, sequence), &AnswerRecord { sequence, position, outcome: kept });
    outcome
}

/// Forgets everything about a client's former lives.
pub(crate) fn close_lives(txn: &mut Transaction<'_>) -> Result<()> {
    for (key, _) in txn.collect(&keys::under(Table::Session, txn.client.0))? {
        txn.remove(key);
    }
    Ok(())
}

fn shortened(error: Error) -> Error {
    let detail = error.detail();
    if detail.len() <= DETAIL_BYTES_MAX {
        return error;
    }
    let end = (0..=DETAIL_BYTES_MAX).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
    Error::new(error.kind(), &detail[..end])
}

#[cfg(test)]
#[path = "window_test.rs"]
mod window_test;
