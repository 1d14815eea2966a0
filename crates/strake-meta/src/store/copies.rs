//! Generations: they say which NSDs hold the metadata, so that a stale copy is never used.
//!
//! Every NSD's superblock names a generation and its holders. A generation is in force once all its
//! holders' superblocks have it and at most p superblocks lack it. Nothing is acknowledged before
//! that. If there is a witness (witness.rs), the witness has the generation before any superblock
//! does.
//!
//! Any p + 1 superblocks then include one of the newest generation in force. A crash may leave a
//! generation half written. That is harmless. If the generation removed a holder, the other holders
//! have everything acknowledged. If it added one, the new copy was complete and durable before its
//! name was written anywhere.

use super::holder::Holder;
use super::{MetaStore, State, witness};
use crate::query;
use std::sync::Arc;
use strake_proto::{ClusterId, Error, ErrorKind, NsdId, Result};
use strake_store::{Batch, Container, Lsn};
use tracing::{error, info};

/// Each time it takes the lock, the copier copies this many records.
const COPY_RECORDS: usize = 1000;

impl MetaStore {
    /// Goes on without holders that failed.
    ///
    /// # Errors
    /// `Io` if the copies left do not suffice. Nothing is accepted any more then.
    pub(super) fn lose(&self, state: &mut State, lost: &[(NsdId, Error)]) -> Result<()> {
        let is_lost = |nsd: NsdId| lost.iter().any(|(other, _)| *other == nsd);
        if state.joining.as_ref().is_some_and(|holder| is_lost(holder.nsd)) {
            state.joining = None;
        }
        for (nsd, _) in lost {
            if !state.failed_nsds.contains(nsd) {
                state.failed_nsds.push(*nsd);
            }
        }
        let before = state.holders.len();
        let left: Vec<_> =
            state.holders.iter().filter(|holder| !is_lost(holder.nsd)).cloned().collect();
        if left.len() == before {
            return state.stopped.clone().map_or(Ok(()), Err);
        }
        let reasons: Vec<String> =
            lost.iter().map(|(nsd, error)| format!("NSD {nsd}: {error}")).collect();
        error!(target: "metadata", "copy lost on {}", reasons.join("; "));
        if left.is_empty() {
            // The last holder still answers questions, as far as it can.
            let detail = format!("every metadata copy failed ({})", reasons.join("; "));
            return Err(stop(state, detail));
        }
        state.holders = left;
        self.begin_generation(state)
    }

    /// Like [`MetaStore::lose`], for holders that were used without the lock. It ignores a holder
    /// that has meanwhile left, or whose copy has meanwhile been made anew.
    ///
    /// # Errors
    /// As [`MetaStore::lose`].
    pub(super) fn lose_used(&self, lost: Vec<(Arc<Holder>, Error)>) -> Result<()> {
        let mut state = self.state.write();
        let is_current =
            |holder: &Arc<Holder>| state.holders.iter().any(|current| Arc::ptr_eq(current, holder));
        let lost: Vec<_> = lost
            .into_iter()
            .filter(|(holder, _)| is_current(holder))
            .map(|(holder, error)| (holder.nsd, error))
            .collect();
        match lost.is_empty() {
            true => state.stopped.clone().map_or(Ok(()), Err),
            false => self.lose(&mut state, &lost),
        }
    }

    /// Puts the holders in `state` in force under a new generation.
    pub(super) fn begin_generation(&self, state: &mut State) -> Result<()> {
        loop {
            state.generation += 1;
            let holders: Vec<NsdId> = state.holders.iter().map(|holder| holder.nsd).collect();
            let (generation, in_force) = (state.generation, state.in_force);
            let testimony = witness::Testimony { generation, holders: holders.clone(), in_force };
            if let Some(disk) = &self.options.witness
                && let Err(error) = witness::write(&**disk, cluster(state), &testimony)
            {
                let detail = format!("the metadata's witness cannot be written: {error}");
                return Err(stop(state, detail));
            }
            let (written, failed) = write_generation(state, &holders);
            let reach = written + self.losses_max >= state.nsd_count;
            if !reach || holders.iter().all(|nsd| failed.contains(nsd)) {
                let detail = format!(
                    "metadata generation {} reached only {written} of {} NSDs",
                    state.generation, state.nsd_count
                );
                return Err(stop(state, detail));
            }
            state.holders.retain(|holder| !failed.contains(&holder.nsd));
            if state.holders.len() == holders.len() {
                state.in_force = state.generation;
                // `strake up` makes the first generation. Its user needs no message about it.
                if state.generation > 1 {
                    let list = super::open::list(&holders);
                    info!(target: "metadata", "generation {} is on NSDs {list}", state.generation);
                }
                return Ok(());
            }
        }
    }

    /// Makes one more copy on an NSD that has none, while changes go on.
    ///
    /// # Errors
    /// The new holder's errors. Its NSD is not tried again in this run.
    pub(super) fn add_copy(&self) -> Result<()> {
        let _guard = self.copying.lock();
        let Some(container) = self.candidate() else { return Ok(()) };
        let nsd = container.superblock().nsd;
        let result = self.copy_to(&container);
        if result.is_err() {
            let mut state = self.state.write();
            state.joining = None;
            state.failed_nsds.push(nsd);
        }
        result
    }

    /// An NSD for one more copy, preferably of a failure group that has no copy.
    pub(super) fn candidate(&self) -> Option<Container> {
        let state = self.state.read();
        let pool = query::configuration(&state.holders[0].kv).ok()?.pool;
        let emptied = pool.being_emptied().map(|slot| pool.slots[usize::from(slot.0)].nsd);
        let groups: Vec<u32> = state
            .holders
            .iter()
            .map(|holder| holder.container.superblock().failure_group)
            .collect();
        let is_free = |nsd: NsdId| {
            Some(nsd) != emptied
                && !state.failed_nsds.contains(&nsd)
                && !state.suspects.contains(&nsd)
                && state.holders.iter().all(|other| other.nsd != nsd)
        };
        state
            .containers
            .iter()
            .filter(|container| is_free(container.superblock().nsd))
            .min_by_key(|container| groups.contains(&container.superblock().failure_group))
            .cloned()
    }

    fn copy_to(&self, container: &Container) -> Result<()> {
        container.reset_metadata()?;
        let (holder, _) = Holder::open(container, self.options.cache_bytes)?;
        let holder = Arc::new(holder);
        {
            // From here on the new copy gets every change, like the others.
            let mut state = self.state.write();
            holder.advance(state.last);
            state.joining = Some(Arc::clone(&holder));
        }
        let mut from = Some(Vec::new());
        while let Some(start) = from {
            from = self.copy_part(&holder, start)?;
            if holder.is_heavy(self.options.overlay_bytes_max) {
                // The copy is no holder yet, so nothing depends on its journal.
                holder.sync()?;
                holder.checkpoint(Lsn(u64::MAX - 1))?;
            }
        }
        holder.sync()?;
        holder.checkpoint(Lsn(u64::MAX - 1))?;
        // Changes are shut out now. The base gets everything, durably, before the copy is named a
        // holder.
        let mut state = self.state.write();
        if state.joining.take().is_none() {
            return Err(Error::new(ErrorKind::Io, "the new metadata copy failed"));
        }
        holder.sync()?;
        holder.checkpoint(state.last)?;
        state.holders.push(holder);
        self.begin_generation(&mut state)
    }

    /// Copies records from `start` on. Returns where to go on, or `None` at the end.
    fn copy_part(&self, holder: &Holder, start: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let state = self.state.write();
        if state.joining.is_none() {
            return Err(Error::new(ErrorKind::Io, "the new metadata copy failed"));
        }
        let mut batch = Batch::new();
        let mut next = None;
        state.holders[0].scan_all(&start, &mut |key, value| {
            if batch.len() == COPY_RECORDS {
                next = Some(key.to_vec());
                return false;
            }
            batch.put(key, value);
            true
        })?;
        holder.apply(batch, state.last);
        Ok(next)
    }
}

/// Writes the generation to all superblocks except those of suspects. Its holders come first.
/// Returns how many superblocks have it now, and which NSDs failed.
fn write_generation(state: &State, holders: &[NsdId]) -> (usize, Vec<NsdId>) {
    let generation = state.generation;
    let mut written = 0;
    let mut failed = Vec::new();
    let mut ordered: Vec<&Container> = state.containers.iter().collect();
    ordered.retain(|container| !state.suspects.contains(&container.superblock().nsd));
    ordered.sort_by_key(|container| !holders.contains(&container.superblock().nsd));
    for container in ordered {
        let result = container.update_superblock(|superblock| {
            superblock.metadata_generation = generation;
            superblock.metadata_holders = holders.to_vec();
        });
        match result {
            Ok(()) => written += 1,
            Err(_) => failed.push(container.superblock().nsd),
        }
    }
    (written, failed)
}

fn cluster(state: &State) -> ClusterId {
    state.holders[0].container.superblock().cluster
}

/// Refuses all changes from now on, until enough NSDs are back.
fn stop(state: &mut State, detail: String) -> Error {
    error!(target: "metadata", "nothing can be changed: {detail}");
    let error = Error::new(ErrorKind::Io, detail);
    state.stopped = Some(error.clone());
    error
}
