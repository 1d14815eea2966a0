//! Makes the first copies. At every start, finds the copies and mends them.
//!
//! 1. The newest generation among the readable superblocks names the holders. At least p + 1
//!    superblocks must be readable (all, if there are fewer NSDs), so that a newer generation
//!    cannot hide among the missing ones. Fewer suffice if a witness confirms that the generation
//!    is the newest.
//! 2. Each readable holder's store is brought up from its base by its own journal's entries. The
//!    holder that gets furthest goes first: nobody can have been told of an entry that it lacks.
//! 3. The other holders get the entries they lack. If the first holder's journal no longer has
//!    those entries, the other holder is copied anew instead.
//! 4. All journals are synced. If the holders differ from those that were named, a new generation
//!    names them before anything is served. A missing holder is then stale.

use super::holder::Holder;
use super::members::{is_outdated, mark};
use super::refusals::Refusals;
use super::witness::{self, Testimony};
use super::{MetaOptions, MetaStore, State, WorkerSignal};
use crate::log_entry::{LogEntry, LogEntryRef, decode_entry, encode_entry};
use crate::ops::configure::require_known;
use crate::{machine, query};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use strake_env::sync::{WatchedMutex, WatchedRwLock};
use strake_proto::layout::PoolMap;
use strake_proto::meta::{Configuration, MetaEntry, MetaOp};
use strake_proto::{ClientId, ClusterId, Error, ErrorKind, NsdId, Result};
use strake_store::superblock::Superblock;
use strake_store::{Container, Lsn};

/// A holder whose own entries have been applied, and those entries.
struct Recovered {
    holder: Holder,
    entries: Vec<(Lsn, Vec<u8>)>,
}

impl MetaStore {
    /// Makes the file system's metadata on the containers of its NSDs: p + 1 copies, in different
    /// failure groups as far as possible. Metadata that the containers held before is dropped.
    ///
    /// # Errors
    /// `Invalid` if a container is missing or belongs elsewhere. The disks' own errors.
    pub fn format(
        containers: &[Container],
        configuration: &Configuration,
        options: MetaOptions,
    ) -> Result<MetaStore> {
        let containers = sorted(containers);
        let nsds = pool_nsds(&configuration.pool);
        let present: Vec<NsdId> =
            containers.iter().map(|container| container.superblock().nsd).collect();
        if nsds.is_empty() || present != nsds {
            let detail = format!(
                "to make the metadata, all its NSDs must be there: {} needed, {} given",
                list(&nsds),
                list(&present)
            );
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let entry = MetaEntry {
            client: ClientId(0),
            sequence: 0,
            time: configuration.created,
            op: MetaOp::Format(Box::new(configuration.clone())),
        };
        let bytes = encode_entry(LogEntryRef::Plain(&entry))?;
        let mut holders = Vec::new();
        for container in choose(&containers, copies_wanted(configuration, nsds.len())) {
            container.reset_metadata()?;
            let (holder, _) = Holder::open(&container, options.cache_bytes)?;
            let (_, changes) = machine::apply(&holder.kv, &entry)?;
            holder.append(&bytes, Lsn(1))?;
            holder.apply(changes, Lsn(1));
            holder.sync()?;
            holders.push(Arc::new(holder));
        }
        let store = MetaStore::with(containers, configuration, nsds.len(), holders, 0, options);
        store.begin_generation(&mut store.state.write())?;
        Ok(store)
    }

    /// Opens the metadata. `containers` are those of the file system's NSDs that could be opened.
    ///
    /// # Errors
    /// `NotFound` if there is no metadata at all. `Unreachable`, naming the NSDs that are needed,
    /// if too few are there. `Corrupt` if every copy is damaged.
    pub fn open(containers: &[Container], options: MetaOptions) -> Result<MetaStore> {
        let containers = sorted(containers);
        require_one_cluster(&containers)?;
        let newest = containers
            .iter()
            .map(Container::superblock)
            .max_by_key(|superblock| superblock.metadata_generation)
            .filter(|superblock| superblock.metadata_generation > 0)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "these NSDs hold no metadata yet"))?;
        let (generation, named) = (newest.metadata_generation, &newest.metadata_holders);
        let (recovered, faults) = recover(&containers, named, &options);
        let Some((first, others)) = recovered.split_first() else {
            let detail = format!(
                "the metadata's generation {generation} is on NSDs {}, none of which can be used: \
                 bring one of them back{}",
                list(named),
                faults
            );
            return Err(Error::new(ErrorKind::Unreachable, detail));
        };
        let configuration = query::configuration(&first.holder.kv)?;
        require_known(&configuration)?;
        let nsds = pool_nsds(&configuration.pool);
        // A disk that is to replace another is there already, but it is no member yet.
        let containers: Vec<Container> = containers
            .into_iter()
            .filter(|container| nsds.contains(&container.superblock().nsd))
            .collect();
        let testimony = testimony(&options, newest.cluster);
        if !is_newest(testimony.as_ref(), generation, &containers) {
            require_readable(&containers, &configuration, &nsds)?;
        }
        // A generation may have been begun without coming into force. A superblock of an absent NSD
        // may have it. So the next generation must be above it and must come before anything else.
        let begun = testimony.as_ref().map_or(0, |testimony| testimony.generation);
        let mark = mark(&configuration);
        let in_force = in_force(testimony.as_ref(), &newest, &containers).max(mark);
        let suspects: Vec<NsdId> = containers
            .iter()
            .map(Container::superblock)
            .filter(|superblock| is_outdated(superblock.metadata_generation, mark))
            .map(|superblock| superblock.nsd)
            .collect();
        let equal: Vec<bool> = others.iter().map(|other| catch_up(first, other)).collect();
        let holders: Vec<Arc<Holder>> = recovered
            .into_iter()
            .enumerate()
            .filter(|(index, copy)| {
                *index == 0 || (equal[*index - 1] && !suspects.contains(&copy.holder.nsd))
            })
            .map(|(_, recovered)| Arc::new(recovered.holder))
            .collect();
        let mut same: Vec<NsdId> = holders.iter().map(|holder| holder.nsd).collect();
        same.sort_unstable();
        let mut named = named.clone();
        named.sort_unstable();
        let store =
            MetaStore::with(containers, &configuration, nsds.len(), holders, generation, options);
        {
            let mut state = store.state.write();
            (state.generation, state.in_force) = (generation.max(begun), in_force);
            state.suspects = suspects;
        }
        strake_proto::meta::MetaPort::sync(&store)?;
        if same != named || begun > generation {
            store.begin_generation(&mut store.state.write())?;
        }
        Ok(store)
    }

    fn with(
        containers: Vec<Container>,
        configuration: &Configuration,
        nsd_count: usize,
        holders: Vec<Arc<Holder>>,
        generation: u64,
        options: MetaOptions,
    ) -> MetaStore {
        let last = holders[0].last();
        let found = containers
            .iter()
            .map(Container::superblock)
            .map(|superblock| (superblock.nsd, superblock.metadata_generation))
            .collect();
        MetaStore {
            found,
            copies_wanted: copies_wanted(configuration, nsd_count),
            losses_max: usize::from(configuration.code.parity).min(nsd_count - 1),
            options,
            is_full: AtomicBool::new(false),
            state: WatchedRwLock::new(State {
                nsd_count,
                containers,
                holders,
                joining: None,
                failed_nsds: Vec::new(),
                suspects: Vec::new(),
                damaged: Vec::new(),
                generation,
                in_force: generation,
                last,
                moves: 0,
                refusals: Refusals::default(),
                stopped: None,
            }),
            checkpointing: WatchedMutex::default(),
            checkpoints: AtomicU64::new(0),
            copying: WatchedMutex::default(),
            checking: WatchedMutex::default(),
            moving: WatchedMutex::default(),
            stops: Default::default(),
            synced: AtomicU64::new(0),
            worker: WorkerSignal::default(),
        }
    }
}

/// Opens and replays every named holder that is there, the furthest one first. Also returns
/// sentences about the holders that failed.
fn recover(
    containers: &[Container],
    named: &[NsdId],
    options: &MetaOptions,
) -> (Vec<Recovered>, String) {
    let mut recovered = Vec::new();
    let mut faults = String::new();
    for container in containers {
        let nsd = container.superblock().nsd;
        if !named.contains(&nsd) {
            continue;
        }
        match replay(container, options) {
            Ok(copy) => recovered.push(copy),
            Err(error) => faults.push_str(&format!("; NSD {nsd}: {error}")),
        }
    }
    // A stable sort: of equal holders the lowest id leads, so two starts choose alike.
    recovered.sort_by_key(|copy| std::cmp::Reverse(copy.holder.last()));
    (recovered, faults)
}

/// Brings one holder's store up to the end of its own journal.
fn replay(container: &Container, options: &MetaOptions) -> Result<Recovered> {
    let (holder, entries) = Holder::open(container, options.cache_bytes)?;
    let mut at = holder.kv.applied_in_base();
    for (lsn, bytes) in &entries {
        if *lsn > at {
            apply_next(&holder, at, *lsn, bytes)?;
            at = *lsn;
        }
    }
    if at == Lsn(0) {
        return Err(Error::new(ErrorKind::Corrupt, "its copy of the metadata is empty"));
    }
    Ok(Recovered { holder, entries })
}

/// Applies the entry after `at`.
fn apply_next(holder: &Holder, at: Lsn, lsn: Lsn, bytes: &[u8]) -> Result<()> {
    if lsn.0 != at.0 + 1 {
        let detail = format!("metadata entry {} is missing before {}", at.0 + 1, lsn.0);
        return Err(Error::new(ErrorKind::Corrupt, detail));
    }
    let applied = match decode_entry(bytes)? {
        LogEntry::Plain(entry) => machine::apply(&holder.kv, &entry).map(|(_, changes)| changes),
        LogEntry::Counted(counted) => {
            machine::apply_counted(&holder.kv, &counted, lsn.0).map(|(_, changes)| changes)
        }
        LogEntry::CountedBefore(counted) => {
            machine::apply_counted_before(&holder.kv, &counted, lsn.0).map(|(_, changes)| changes)
        }
        LogEntry::GoesOn(lost) => machine::go_on(&holder.kv, &lost),
    };
    let changes = applied.map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("metadata entry {lsn:?}: {error}"))
    })?;
    holder.apply(changes, lsn);
    Ok(())
}

/// Gives `other` the entries it lacks. Returns false if `other` must be copied anew.
fn catch_up(first: &Recovered, other: &Recovered) -> bool {
    let last = first.holder.last();
    let mut at = other.holder.last();
    for (lsn, bytes) in &first.entries {
        if *lsn <= at {
            continue;
        }
        let holder = &other.holder;
        let room = holder.has_room(bytes.len());
        let outcome = apply_next(holder, at, *lsn, bytes);
        if !room || outcome.and_then(|()| holder.append(bytes, *lsn)).is_err() {
            return false;
        }
        at = *lsn;
    }
    at == last
}

/// Refuses disks of two file systems, because the newest generation could belong to either.
fn require_one_cluster(containers: &[Container]) -> Result<()> {
    let identity = |container: &Container| {
        let superblock = container.superblock();
        (superblock.cluster, superblock.fs)
    };
    match containers.windows(2).find(|pair| identity(&pair[0]) != identity(&pair[1])) {
        Some(pair) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "NSDs {} and {} belong to different file systems",
                pair[0].superblock().nsd,
                pair[1].superblock().nsd
            ),
        )),
        None => Ok(()),
    }
}

/// What the witness says. A witness that cannot be read says nothing.
fn testimony(options: &MetaOptions, cluster: ClusterId) -> Option<Testimony> {
    options.witness.as_ref().and_then(|disk| witness::read(&**disk, cluster).ok().flatten())
}

/// True if the witness confirms that nothing newer than `generation` is in force; see `witness`.
fn is_newest(testimony: Option<&Testimony>, generation: u64, containers: &[Container]) -> bool {
    let Some(testimony) = testimony else { return false };
    let never_came = || lacks(&testimony.holders, testimony.generation, containers);
    testimony.generation == generation
        || (testimony.generation > generation && testimony.in_force <= generation && never_came())
}

/// The newest generation that may be in force. The caller knows that `newest` is of the newest
/// metadata. The generation of `newest` need not be in force, because a start may have been cut
/// short.
fn in_force(testimony: Option<&Testimony>, newest: &Superblock, containers: &[Container]) -> u64 {
    let generation = newest.metadata_generation;
    match testimony {
        Some(testimony)
            if testimony.generation > generation
                || (testimony.generation == generation
                    && lacks(&newest.metadata_holders, generation, containers)) =>
        {
            testimony.in_force
        }
        _ => generation,
    }
}

/// True if one of the holders is there and has an older superblock. The generation then never came
/// into force.
fn lacks(holders: &[NsdId], generation: u64, containers: &[Container]) -> bool {
    containers.iter().map(Container::superblock).any(|superblock| {
        holders.contains(&superblock.nsd) && superblock.metadata_generation < generation
    })
}

/// Refuses to go on if so few superblocks are readable that a missing one could be newer.
fn require_readable(
    containers: &[Container],
    configuration: &Configuration,
    nsds: &[NsdId],
) -> Result<()> {
    let present: Vec<NsdId> =
        containers.iter().map(|container| container.superblock().nsd).collect();
    let readable = nsds.iter().filter(|nsd| present.contains(nsd)).count();
    let needed = copies_wanted(configuration, nsds.len());
    if readable >= needed {
        return Ok(());
    }
    let missing: Vec<NsdId> = nsds.iter().copied().filter(|nsd| !present.contains(nsd)).collect();
    let detail = format!(
        "only {readable} of {} NSDs can be read and {needed} are needed to know the newest \
         metadata: bring back {} of NSDs {}",
        nsds.len(),
        needed - readable,
        list(&missing)
    );
    Err(Error::new(ErrorKind::Unreachable, detail))
}

/// The number of copies of the metadata: one more than the losses that are tolerated.
fn copies_wanted(configuration: &Configuration, nsd_count: usize) -> usize {
    (usize::from(configuration.code.parity) + 1).min(nsd_count)
}

/// Chooses the first holders: one of each failure group before a second of any.
fn choose(containers: &[Container], count: usize) -> Vec<Container> {
    let mut chosen: Vec<Container> = Vec::new();
    while chosen.len() < count.min(containers.len()) {
        let of_group = |group: u32| {
            chosen.iter().filter(|other| other.superblock().failure_group == group).count()
        };
        let next = containers
            .iter()
            .filter(|container| {
                let nsd = container.superblock().nsd;
                chosen.iter().all(|other| other.superblock().nsd != nsd)
            })
            .min_by_key(|container| of_group(container.superblock().failure_group))
            .cloned();
        chosen.extend(next);
    }
    chosen
}

fn sorted(containers: &[Container]) -> Vec<Container> {
    let mut sorted = containers.to_vec();
    sorted.sort_by_key(|container| container.superblock().nsd);
    sorted
}

/// The NSDs of the pool, without deleted ones.
pub(super) fn pool_nsds(pool: &PoolMap) -> Vec<NsdId> {
    let mut nsds: Vec<NsdId> = pool.live().map(|(_, slot)| slot.nsd).collect();
    nsds.sort_unstable();
    nsds.dedup();
    nsds
}

pub(super) fn list(nsds: &[NsdId]) -> String {
    let names: Vec<String> = nsds.iter().map(NsdId::to_string).collect();
    names.join(", ")
}
