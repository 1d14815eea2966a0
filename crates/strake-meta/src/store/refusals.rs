//! Counted changes that were refused before they became entries: for want of space, mostly.
//!
//! The state machine remembers what it refused itself (`ops/window.rs`). What this store refuses
//! leaves no entry, so it is remembered here, in memory: a copy of the same request that comes late
//! on a lost connection is refused alike, and not applied after all. No copy outlives this process,
//! so neither need the memory of it.

use super::MetaStore;
use crate::machine;
use std::collections::BTreeMap;
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{CountedAnswer, CountedEntry};
use strake_proto::{ClientId, Error, ErrorKind, Result};

/// See the module.
#[derive(Default)]
pub(super) struct Refusals {
    clients: BTreeMap<ClientId, OfClient>,
}

#[derive(Default)]
struct OfClient {
    life: u64,
    refused: BTreeMap<u64, Error>,
}

impl Refusals {
    /// Why this very change was refused, if it was.
    pub(super) fn of(&self, counted: &CountedEntry) -> Option<&Error> {
        let client = self.clients.get(&counted.entry.client)?;
        let refused = client.refused.get(&counted.entry.sequence);
        refused.filter(|_| client.life == counted.life)
    }

    fn note(&mut self, counted: &CountedEntry, error: &Error) {
        let client = self.clients.entry(counted.entry.client).or_default();
        if client.life != counted.life {
            *client = OfClient { life: counted.life, ..OfClient::default() };
        }
        client.refused.insert(counted.entry.sequence, error.clone());
        // The client has the answers of all below, so their late copies are refused anyhow.
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
