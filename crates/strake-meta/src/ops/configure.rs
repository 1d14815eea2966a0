//! Format, SetNsdState, AddNsd, ReplaceNsd, DeleteNsd, SetConfig: they change the file system's own
//! description.

use super::{FIRST_COOKIE, layout_nsds};
use crate::keys;
use crate::records::{CONFIGURATION, Counters, InodeRecord, Place};
use crate::transaction::Transaction;
use strake_proto::layout::{LayoutMap, NsdAvailability, NsdState, NsdStatus, PoolMap, Slot};
use strake_proto::limits::SLOTS_MAX;
use strake_proto::meta::{Configuration, DELETED_NSDS, MetaReply, PendingRange};
use strake_proto::{
    Error, ErrorKind, FileType, Generation, Ino, LayoutVersion, MapVersion, NsdId, Result,
    SlotIndex,
};

/// Limits of the number of settings, and of the length of a name or value. Both are far above any
/// use and far below the length of a message.
const SETTINGS_MAX: usize = 1000;
const SETTING_BYTES_MAX: usize = 4096;

/// Incompat flags that this program understands.
const INCOMPAT_KNOWN: u64 = DELETED_NSDS;

pub(crate) fn format(
    txn: &mut Transaction<'_>,
    configuration: &Configuration,
) -> Result<MetaReply> {
    if txn.get_raw(&keys::global(CONFIGURATION))?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "the metadata is formatted already"));
    }
    require_known(configuration)?;
    txn.set_counters(Counters {
        next_ino: Ino::ROOT.0 + 1,
        next_object: 1,
        next_pending: 1,
        next_grant: 1,
        inodes: 1,
        allocated: 0,
    });
    let root = InodeRecord {
        generation: Generation(1),
        file_type: FileType::Directory,
        permissions: 0o755,
        links: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: txn.time,
        mtime: txn.time,
        ctime: txn.time,
        btime: txn.time,
        parent: Ino::ROOT,
        next_cookie: FIRST_COOKIE,
        entries: 0,
        has_acl: false,
        has_default_acl: false,
        xattr_count: 0,
        xattr_name_bytes: 0,
        xattr_value_bytes: 0,
        hardened: 0,
        reserved: Vec::new(),
        place: Place::Empty,
        tail: Vec::new(),
    };
    txn.insert_inode(Ino::ROOT, root);
    Ok(store(txn, configuration.clone()))
}

/// Refuses a configuration that only a newer program understands.
pub(crate) fn require_known(configuration: &Configuration) -> Result<()> {
    if configuration.incompat_flags & !INCOMPAT_KNOWN != 0 {
        let detail = "the file system needs a newer program: unknown incompat flags";
        return Err(Error::new(ErrorKind::NotSupported, detail));
    }
    Ok(())
}

pub(crate) fn set_nsd_state(
    txn: &mut Transaction<'_>,
    nsd: NsdId,
    state: NsdState,
) -> Result<MetaReply> {
    let mut configuration = txn.configuration()?;
    let at = slot_of(&configuration.pool, nsd)?;
    match state.status {
        NsdStatus::Deleted { .. } => {
            return Err(Error::new(ErrorKind::Invalid, "an NSD is emptied before it is deleted"));
        }
        NsdStatus::BeingEmptied
            if configuration
                .pool
                .being_emptied()
                .is_some_and(|other| usize::from(other.0) != at) =>
        {
            return Err(Error::new(ErrorKind::Busy, "another NSD is being emptied"));
        }
        _ => {}
    }
    let before = std::mem::replace(&mut configuration.pool.slots[at].state, state);
    if before != state {
        lay_out(&mut configuration);
        let version = &mut configuration.pool.version;
        *version = MapVersion(version.0 + 1);
    }
    Ok(store(txn, configuration))
}

/// The index of the slot that `nsd` holds. A deleted NSD holds no slot.
fn slot_of(pool: &PoolMap, nsd: NsdId) -> Result<usize> {
    let found = pool.live().find(|(_, slot)| slot.nsd == nsd);
    found
        .map(|(index, _)| usize::from(index.0))
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no slot is held by NSD {nsd}")))
}

/// Makes a new layout if the set of NSDs that take new data has changed and is large enough.
fn lay_out(configuration: &mut Configuration) {
    let pool = &mut configuration.pool;
    let members: Vec<(SlotIndex, u32)> = (0..)
        .map(SlotIndex)
        .zip(&pool.slots)
        .filter(|(_, slot)| slot.state.status.takes_new_data())
        .map(|(index, slot)| (index, slot.failure_group))
        .collect();
    let last = pool.layouts.last();
    let is_new = last.is_none_or(|layout| layout.members != members);
    if is_new && members.len() >= configuration.code.width() {
        let version = LayoutVersion(last.map_or(0, |layout| layout.version.0) + 1);
        pool.layouts.push(LayoutMap { version, members });
    }
}

pub(crate) fn add_nsd(
    txn: &mut Transaction<'_>,
    nsd: NsdId,
    failure_group: u32,
) -> Result<MetaReply> {
    let mut configuration = txn.configuration()?;
    let pool = &mut configuration.pool;
    match pool.slots.iter().find(|slot| slot.nsd == nsd).map(|slot| slot.state.status) {
        Some(NsdStatus::Deleted { .. }) => {
            let detail = format!("NSD {nsd} was deleted: its number is not used again");
            return Err(Error::new(ErrorKind::Exists, detail));
        }
        Some(_) => return Ok(MetaReply::Configuration(Box::new(configuration))),
        None => {}
    }
    if pool.slots.len() >= SLOTS_MAX {
        let detail = format!("a file system has at most {SLOTS_MAX} disks, deleted ones included");
        return Err(Error::new(ErrorKind::NoSpace, detail));
    }
    let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Up };
    pool.slots.push(Slot { nsd, failure_group, state });
    pool.version = MapVersion(pool.version.0 + 1);
    lay_out(&mut configuration);
    Ok(store(txn, configuration))
}

pub(crate) fn replace_nsd(
    txn: &mut Transaction<'_>,
    old: NsdId,
    new: NsdId,
    state: NsdState,
) -> Result<MetaReply> {
    let mut configuration = txn.configuration()?;
    let slots = &mut configuration.pool.slots;
    let holds = |slots: &[Slot], nsd| slots.iter().position(|slot| slot.nsd == nsd);
    match (holds(slots, old), holds(slots, new)) {
        (None, Some(_)) => return Ok(MetaReply::Configuration(Box::new(configuration))),
        (Some(_), Some(_)) => {
            let detail = format!("NSD {new} holds a slot already");
            return Err(Error::new(ErrorKind::Exists, detail));
        }
        (None, None) => {
            let detail = format!("no slot is held by NSD {old}");
            return Err(Error::new(ErrorKind::NotFound, detail));
        }
        (Some(at), None)
            if matches!(
                slots[at].state.status,
                NsdStatus::BeingEmptied | NsdStatus::Deleted { .. }
            ) =>
        {
            return Err(Error::new(ErrorKind::Busy, format!("NSD {old} is being deleted")));
        }
        (Some(at), None) => {
            slots[at].nsd = new;
            slots[at].state = state;
        }
    }
    for (key, _) in txn.collect(&keys::whole(keys::Table::Pending))? {
        let Some(mut range) = txn.get::<PendingRange>(&key)? else { continue };
        if let Some(waiting) = range.waiting.iter_mut().find(|nsd| **nsd == old) {
            *waiting = new;
            txn.put(key, &range);
        }
    }
    lay_out(&mut configuration);
    let version = &mut configuration.pool.version;
    *version = MapVersion(version.0 + 1);
    Ok(store(txn, configuration))
}

pub(crate) fn delete_nsd(txn: &mut Transaction<'_>, nsd: NsdId) -> Result<MetaReply> {
    let mut configuration = txn.configuration()?;
    let pool = &mut configuration.pool;
    let order = u16::try_from(pool.deleted().len()).unwrap_or(u16::MAX);
    let Some(slot) = pool.slots.iter_mut().find(|slot| slot.nsd == nsd) else {
        return Err(Error::new(ErrorKind::NotFound, format!("no slot is held by NSD {nsd}")));
    };
    match slot.state.status {
        NsdStatus::Deleted { .. } => {
            return Ok(MetaReply::Configuration(Box::new(configuration)));
        }
        NsdStatus::BeingEmptied => {}
        _ => {
            let detail = format!("NSD {nsd} is not being emptied");
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
    }
    slot.state =
        NsdState { status: NsdStatus::Deleted { order }, availability: NsdAvailability::Down };
    pool.version = MapVersion(pool.version.0 + 1);
    configuration.incompat_flags |= DELETED_NSDS;
    for (key, _) in txn.collect(&keys::whole(keys::Table::Pending))? {
        let Some(mut range) = txn.get::<PendingRange>(&key)? else { continue };
        if !range.waiting.contains(&nsd) {
            continue;
        }
        range.waiting.retain(|waiting| *waiting != nsd);
        if range.waiting.is_empty() {
            // The other NSDs have applied the range and still keep its tombstones. Once a client
            // sees that they have applied it again, it has them drop the tombstones.
            range.waiting = layout_nsds(&configuration.pool, &range.layout);
        }
        txn.put(key, &range);
    }
    Ok(store(txn, configuration))
}

pub(crate) fn set_config(txn: &mut Transaction<'_>, name: &str, value: &str) -> Result<MetaReply> {
    if name.is_empty() || name.len() > SETTING_BYTES_MAX || value.len() > SETTING_BYTES_MAX {
        let detail = "a setting has a name, and name and value take 4,096 bytes at most";
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    let mut configuration = txn.configuration()?;
    let settings = &mut configuration.settings;
    match settings.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
        Ok(index) => settings[index].1 = value.to_owned(),
        Err(_) if settings.len() >= SETTINGS_MAX => {
            return Err(Error::new(ErrorKind::NoSpace, "there are 1,000 settings already"));
        }
        Err(index) => settings.insert(index, (name.to_owned(), value.to_owned())),
    }
    Ok(store(txn, configuration))
}

fn store(txn: &mut Transaction<'_>, mut configuration: Configuration) -> MetaReply {
    configuration.settings.sort();
    txn.put(keys::global(CONFIGURATION), &configuration);
    MetaReply::Configuration(Box::new(configuration))
}

#[cfg(test)]
#[path = "configure_test.rs"]
mod configure_test;
