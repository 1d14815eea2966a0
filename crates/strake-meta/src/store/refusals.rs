//! Counted changes that were refused before they became entries, mostly for lack of space.
//!
//! The state machine remembers its own refusals (`ops/window.rs`). A refusal by this store leaves
//! no entry, so the store remembers it here, in memory. A copy of the same request may arrive late
//! on a lost connection. It is then refused too, and not applied after all. No such copy outlives
//! this process, so the memory of it need not either. Replicated metadata does the same
//! (`replicated.rs`).

use super::MetaStore;
use crate::machine;
use std::collections::BTreeMap;
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{CountedAnswer, CountedEntry};
use strake_proto::{ClientId, Error, ErrorKind, Result};

/// The refusals of all clients; see the module.
#[derive(Default)]
pub(crate) struct Refusals {
    clients: BTreeMap<ClientId, OfClient>,
}

#[derive(Default)]
struct OfClient {
    life: u64,
    refused: BTreeMap<u64, Error>,
}

impl Refusals {
    /// The error with which this very change was refused, if it was.
    pub(crate) fn of(&self, counted: &CountedEntry) -> Option<&Error> {
        let client = self.clients.get(&counted.entry.client)?;
        let refused = client.refused.get(&counted.entry.sequence);
        refused.filter(|_| client.life == counted.life)
    }

    /// Notes that a change was refused for good.
    pub(crate) fn note(&mut self, counted: &CountedEntry, error: &Error) {
        let client = self.clients.entry(counted.entry.client).or_default();
        if client.life != counted.life {
            *client = OfClient { life: counted.life, ..OfClient::default() };
        }
        client.refused.insert(counted.entry.sequence, error.clone());
        // The client has the answers of all changes below, so their late copies are refused anyway.
        client.refused = client.refused.split_off(&counted.oldest);
        while client.refused.len() as u64 > WINDOW_CHANGES {
            client.refused.pop_first();
        }
    }
}

impl MetaStore {
    /// Refuses a counted change for good, unless another copy of it was applied meanwhile.
    pub(super) fn refuse(&self, counted: &CountedEntry, error: Error) -> Result<CountedAnswer> {
        if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Stale | ErrorKind::Invalid) {
            // The window's own refusals are the same at any time.
            return Err(error);
        }
        let mut state = self.state.write();
        if let Ok(Some(answer)) = machine::answer_of(&state.holders[0].kv, counted) {
            return Ok(answer);
        }
        state.refusals.note(counted, &error);
        Err(error)
    }
}

#[cfg(test)]
#[path = "refusals_test.rs"]
mod refusals_test;
