//! How damaged copies are mended. A scrub or a reader finds the damage, and the copy is mended
//! while in use.
//!
//! 1. *The log* has nothing that is not in memory too. A checkpoint replaces it.
//! 2. *The base* is written anew from itself, if everything that counts can be read.
//! 3. Otherwise the copy is *made anew* from the others. If another NSD has room for one more copy,
//!    that copy is made first, and then the damaged one is let go. If not, the new copy takes the
//!    place of the damaged one. The damaged copy never answers again: another holder goes first at
//!    once.

use super::holder::Holder;
use super::{MetaStore, State};
use crate::check;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use strake_env::Stop;
use strake_env::sync::WatchedMutexGuard;
use strake_proto::meta::{MetaCheckReply, MetaPort};
use strake_proto::nsd::ScrubPart;
use strake_proto::{Error, ErrorKind, NsdId, Result};
use strake_store::{KvRead, Lsn};
use tracing::{error, warn};

/// One part of a scrub has this many pages of a base: 1 MiB.
pub(crate) const PAGES_PER_PART: u64 = 256;

/// A check waits so long for another one, and looks so often whether it is to end.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(3600);
const CHECK_LOOK: Duration = Duration::from_millis(100);
/// A check that is to end reads at most a few records more.
const CHECK_END_MAX: Duration = Duration::from_secs(10);

/// True if an error may come from the copy that was asked, and not from the question.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
}

impl MetaStore {
    /// Scrubs one part of the copy on `nsd`, or of the copy on the next NSD above that has one.
    pub(super) fn scrub_copy(&self, nsd: NsdId, part: u64) -> Result<Option<(NsdId, ScrubPart)>> {
        let holder = {
            let state = self.state.read();
            let above = state.holders.iter().filter(|holder| holder.nsd >= nsd);
            above.min_by_key(|holder| holder.nsd).map(Arc::clone)
        };
        let Some(holder) = holder else { return Ok(None) };
        let part = if holder.nsd == nsd { part } else { 0 };
        let found = match part.checked_sub(1) {
            None => self.scrub_log(&holder)?,
            Some(run) => self.scrub_base(&holder, run)?,
        };
        if let Some(fault) = &found.fault {
            error!(target: "metadata", "the copy on NSD {}: {fault}", holder.nsd);
        }
        Ok(Some((holder.nsd, found)))
    }

    fn scrub_log(&self, holder: &Arc<Holder>) -> Result<ScrubPart> {
        let bytes = holder.log_bytes();
        let mut found = ScrubPart { next: Some(1), bytes, ..ScrubPart::default() };
        let mend = |what: String| {
            let mended = self.mend(holder, &|synced| holder.renew_log(synced));
            let fault = match &mended {
                Ok(()) => format!("{what}; it has been written anew"),
                Err(error) => format!("{what}, and cannot be written anew: {error}"),
            };
            (Some(fault), u64::from(mended.is_ok()))
        };
        let what = match holder.verify_log() {
            Ok(None) => return Ok(found),
            Ok(Some(chunk)) => format!("its log was damaged at chunk {chunk}"),
            Err(error) => format!("its log cannot be read: {error}"),
        };
        found.bad = 1;
        (found.fault, found.mended) = mend(what);
        Ok(found)
    }

    fn scrub_base(&self, holder: &Arc<Holder>, run: u64) -> Result<ScrubPart> {
        let pages = holder.kv.verify(run.saturating_mul(PAGES_PER_PART), PAGES_PER_PART)?;
        let mut found = pages.part(run.saturating_add(2), "of its pages");
        if found.bad == found.mended {
            return Ok(found);
        }
        let what = found.fault.take().unwrap_or_default();
        // Afterwards the whole base is new, or it cannot be mended.
        found.next = None;
        found.fault = Some(match self.mend_base(holder) {
            Ok(()) => {
                found.mended = found.bad;
                format!("{what}; it has been made anew")
            }
            Err(error) => format!("{what}, and it cannot be made anew: {error}"),
        });
        Ok(found)
    }

    fn mend_base(&self, holder: &Arc<Holder>) -> Result<()> {
        match self.mend(holder, &|synced| holder.renew_base(synced)) {
            Err(error) if is_damage(&error) => self.replace_copy(holder.nsd, &error),
            other => other,
        }
    }

    /// Checkpoints one holder up to what is durable on all holders, like [`MetaStore::checkpoint`].
    fn mend(&self, holder: &Holder, work: &dyn Fn(Lsn) -> Result<()>) -> Result<()> {
        let _guard = self.begin_checkpoint()?;
        self.sync()?;
        // A holder that the sync has lost is no copy any more.
        if self.state.read().holders.iter().all(|other| other.nsd != holder.nsd) {
            return Ok(());
        }
        work(Lsn(self.synced.load(Ordering::Acquire)))
    }

    /// Makes the copy on `nsd` anew from the others.
    fn replace_copy(&self, nsd: NsdId, why: &Error) -> Result<()> {
        {
            let mut state = self.state.write();
            if state.holders.iter().all(|holder| holder.nsd == nsd) {
                let detail = format!("there is no other copy: {why}");
                return Err(Error::new(ErrorKind::Corrupt, detail));
            }
            state.put_last(nsd);
        }
        if self.candidate().is_some() {
            // If this fails, the damaged copy is better than none.
            self.add_copy()?;
        }
        let lost = [(nsd, why.clone())];
        let mut state = self.state.write();
        let damaged = state.holders.iter().find(|holder| holder.nsd == nsd).cloned();
        self.lose(&mut state, &lost)?;
        // Other threads may still have the holder, and the next copy may take its place.
        damaged.inspect(|damaged| damaged.close());
        // The disk may be good. If it is not, writing the next copy to it fails.
        state.failed_nsds.retain(|failed| *failed != nsd);
        let is_missing = state.holders.len() < self.copies_wanted;
        drop(state);
        if is_missing { self.add_copy() } else { Ok(()) }
    }

    /// Asks the other holders what the first one could not read. If one of them answers, it goes
    /// first from now on, and the old first one is made anew. `None` if all holders fail.
    pub(super) fn ask_others<T>(
        &self,
        state: &mut State,
        ask: &dyn Fn(&Holder) -> Result<T>,
    ) -> Option<T> {
        for at in 1..state.holders.len() {
            if let Ok(answer) = ask(&state.holders[at]) {
                self.put_first(state, at);
                return Some(answer);
            }
        }
        None
    }

    /// Has the holder at `at` answer from now on. The first one, which is damaged, is made anew.
    fn put_first(&self, state: &mut State, at: usize) {
        let damaged = state.holders[0].nsd;
        warn!(target: "metadata", "the copy on NSD {damaged} is damaged: it is made anew");
        state.holders.swap(0, at);
        if !state.damaged.contains(&damaged) {
            state.damaged.push(damaged);
        }
        self.worker.state.lock().checkpoint_due = true;
        self.worker.changed.notify_one();
    }

    /// Checks all records as they are at one moment. Everything else goes on meanwhile.
    pub(super) fn check(&self, stop: &Stop) -> Result<MetaCheckReply> {
        let holders = self.state.read().holders.clone();
        let _alone = self.begin_check(stop)?;
        let mut first_error = None;
        for holder in &holders {
            let checked = check::check(&Ending { kv: &holder.kv.view(), stop });
            match checked {
                Err(error) if is_damage(&error) => drop(first_error.get_or_insert(error)),
                checked => {
                    self.prefer(holder, &holders[0]);
                    return checked;
                }
            }
        }
        Err(first_error.unwrap_or_else(|| ErrorKind::Io.into()))
    }

    /// Shuts out other checks.
    fn begin_check(&self, stop: &Stop) -> Result<WatchedMutexGuard<'_, ()>> {
        let _wait = self.options.waiters.enter("another check of the metadata", "");
        for _ in 0..CHECK_WAIT_MAX.as_millis() / CHECK_LOOK.as_millis() {
            stop.go_on()?;
            if let Some(alone) = self.checking.try_lock_for(CHECK_LOOK) {
                return Ok(alone);
            }
        }
        let detail = "another check of the metadata is under way: try again when it has ended";
        Err(Error::new(ErrorKind::Busy, detail))
    }

    /// Puts `holder` in the place of the first one, unless that has been done meanwhile.
    fn prefer(&self, holder: &Arc<Holder>, damaged: &Arc<Holder>) {
        if Arc::ptr_eq(holder, damaged) {
            return;
        }
        let mut state = self.state.write();
        let place = state.holders.iter().position(|other| Arc::ptr_eq(other, holder));
        if let Some(at) = place.filter(|_| Arc::ptr_eq(&state.holders[0], damaged)) {
            self.put_first(&mut state, at);
        }
    }

    /// Ends a check that is under way, so that the pages it reads can be used again. True if one
    /// was.
    pub(super) fn end_check(&self, holders: &[Arc<Holder>]) -> bool {
        if self.checking.try_lock().is_some() {
            return false;
        }
        holders.iter().for_each(|holder| holder.kv.cut_views());
        // What it reads it holds until it has ended, which is soon after its next read.
        self.checking.try_lock_for(CHECK_END_MAX).is_some()
    }

    /// Makes the copies anew that could not be read.
    pub(super) fn mend_damaged(&self) -> Result<()> {
        if self.state.read().damaged.is_empty() {
            return Ok(());
        }
        let damaged = std::mem::take(&mut self.state.write().damaged);
        for nsd in damaged {
            let why = Error::new(ErrorKind::Corrupt, "something in it could not be read");
            self.replace_copy(nsd, &why)?;
        }
        Ok(())
    }
}

/// The records for a check that may end early: then every read fails.
pub(crate) struct Ending<'a> {
    pub(crate) kv: &'a dyn KvRead,
    pub(crate) stop: &'a Stop,
}

impl KvRead for Ending<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>> {
        self.stop.go_on()?;
        self.kv.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.stop.go_on()?;
        self.kv.scan(from, to, visit)
    }

    fn scan_back(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.stop.go_on()?;
        self.kv.scan_back(from, to, visit)
    }
}

impl State {
    /// Moves a holder to the end, so that another one answers the questions.
    fn put_last(&mut self, nsd: NsdId) {
        // A stable sort: the others keep their order.
        self.holders.sort_by_key(|holder| holder.nsd == nsd);
    }
}

#[cfg(test)]
#[path = "scrub_test.rs"]
mod scrub_test;
