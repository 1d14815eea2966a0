//! The NSDs of the pool as this client sees them: a port for each slot, and how each NSD may be
//! used now. One rule makes degraded writes safe:
//!
//! **Noted before acknowledged.** Before a write that left out a slot is acknowledged, the metadata
//! durably says that the slot's NSD is `Unrecovered` ([`NsdSet::note`]). So an NSD that is `Up`
//! holds everything that was ever acknowledged. An NSD that missed something is not read until a
//! recovery has copied what it missed.
//!
//! ```text
//! Up ──fault──▶ Down ──note──▶ Unrecovered ──port answers──▶ Recovering ──all copied──▶ Up
//!                └──answers, nothing missed (not noted)──▶ Up
//! ```
//!
//! Every stripe write holds `gate` shared, from the choice of its positions to its end. An NSD
//! becomes `Recovering` while `gate` is held exclusively, so afterwards no write is under way that
//! left the NSD out. A slot gets another NSD, or is deleted, under the exclusive gate, too.

mod follow;
mod heirs;
mod holdings;
mod map;
mod missed;
mod returning;
mod shadow;
mod slots;
mod traced;

pub use follow::FindNsd;
use heirs::Heirs;
pub use heirs::OfDeletion;
use tracing::{info, warn};

pub(crate) use holdings::Holdings;
pub(crate) use missed::Sent;
pub use missed::{Missed, Table};
pub use returning::RecoveryEnd;
use returning::Vouched;
pub use shadow::Shadow;
use slots::Slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex, RwLock, WatchedMutex, WatchedRwLock};
use strake_observe::Observe;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};
use strake_proto::meta::MetaPort;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, NsdStatusReply};
use strake_proto::{
    BlockIndex, ClientId, Code, Error, ErrorKind, FsId, LayoutVersion, MapVersion, NsdId,
    ObjectLayout, PoolMap, Result, SlotIndex, StripKey,
};
use strake_stripe::{Placement, StripeSlots, strips_at_most};

use strake_env::Clock;

/// One slot and its NSD.
struct NsdSlot {
    /// Changes when the NSD is replaced.
    nsd: AtomicU32,
    status: Mutex<NsdStatus>,
    route: RwLock<Route>,
    availability: AtomicU8,
    /// When this client last stopped to read it, or began. Servers may have been started anew then.
    went: Mutex<Duration>,
    /// Whether the metadata durably says that this NSD is not up.
    noted: AtomicBool,
    /// The boot number last seen; 0 for none.
    boot: AtomicU64,
    vouched: Mutex<Vouched>,
    free: AtomicU64,
    total: AtomicU64,
    bad_strips: AtomicU64,
    repaired: AtomicU64,
    bad_pages: AtomicU64,
    mended_pages: AtomicU64,
    /// The strip that was last found bad, and the one last repaired. The reader that met it and the
    /// scrub that caused the reading would both log it; so it is logged once.
    bad_last: Mutex<Option<StripKey>>,
    repaired_last: Mutex<Option<StripKey>>,
    /// Bytes of files that a recovery has compared, and the bytes of all files.
    progress: Mutex<Option<(u64, u64)>>,
}

/// The ways that requests to a slot take.
#[derive(Clone, Default)]
struct Route {
    port: Option<Arc<dyn NsdPort>>,
    /// The NSD that is to replace this one. It gets every change, too.
    shadow: Option<Arc<Shadow>>,
}

/// The NSD of a slot that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The NSD that has the slot now.
    Current,
    /// The NSD that is to replace the current one.
    Shadow,
}

strake_env::lock_names! {
    /// Held shared across each write of a stripe.
    pub Gate = "gate of the writes to NSDs";
    /// Held across a metadata call.
    Noting = "note of an NSD's state";
    /// Held across the recovery of NSDs.
    pub Mending = "recovery of NSDs";
    /// Held across calls to the metadata and to NSDs that are away.
    Looking = "look at NSDs that are away";
}

/// See the file's head.
pub struct NsdSet {
    slots: Slots,
    pool: RwLock<PoolMap>,
    /// Says how many strips of a stripe may have missed writes at one time ([`NsdSet::tolerates`]).
    /// With more, they would be needed to rebuild each other.
    code: Code,
    map: AtomicU64,
    fs: FsId,
    meta: Arc<dyn MetaPort>,
    client: ClientId,
    clock: Arc<dyn Clock>,
    placements: RwLock<HashMap<(LayoutVersion, Code), Arc<Placement>>>,
    /// The deleted slots, in the order of their deletions.
    deleted: RwLock<Vec<SlotIndex>>,
    heirs: Heirs,
    missed: Mutex<Missed>,
    gate: WatchedRwLock<Gate>,
    /// How often some NSD was found started anew.
    restarts: AtomicU64,
    /// Serialises all changes of `availability` and `noted` that depend on each other.
    noting: WatchedMutex<Noting>,
    /// How often this client was told to leave an NSD. Only `missed` is locked under it.
    left: Mutex<u64>,
    /// Whether the mender should look after the NSDs now.
    attention: Mutex<bool>,
    called: Condvar,
    /// Only one thread at a time looks after them.
    mending: WatchedMutex<Mending>,
    /// Only one request at a time looks at NSDs that are away. The number of looks that have ended.
    looking: WatchedMutex<Looking>,
    looks: AtomicU64,
    /// What the NSDs grant this client. `None` for a single mount.
    holdings: Option<Holdings>,
    /// Where calls are timed.
    observe: Option<Arc<Observe>>,
    /// Where NSDs are found that get a slot later.
    find: Option<FindNsd>,
    /// The way to the NSD that is about to get a slot.
    coming: Mutex<Option<(NsdId, Arc<dyn NsdPort>)>>,
}

/// The log names at most so many bad strips of one NSD. Further ones are only counted.
const BAD_STRIPS_LOGGED: u64 = 1000;

/// What a listing shows of an NSD. Listings leave out deleted NSDs.
#[derive(Clone, Debug)]
pub struct NsdView {
    /// Its slot.
    pub slot: SlotIndex,
    /// Its id.
    pub nsd: NsdId,
    /// How it may be used now.
    pub state: NsdState,
    /// All bytes for strips, used and free; 0 if the NSD never answered.
    pub total: u64,
    /// The free bytes among them.
    pub free: u64,
    /// How often a bad strip was met on it since the start.
    pub bad_strips: u64,
    /// Strips rebuilt and rewritten because they were bad or missing on it, since the start.
    pub repaired: u64,
    /// Damaged pages of its index, logs, superblock or copy of the metadata that scrubs have found
    /// since the start.
    pub bad_pages: u64,
    /// The mended pages among them.
    pub mended_pages: u64,
    /// While it recovers: bytes of files that were compared, and the bytes of all files.
    pub progress: Option<(u64, u64)>,
}

const AVAILABILITIES: [NsdAvailability; 4] = [
    NsdAvailability::Up,
    NsdAvailability::Down,
    NsdAvailability::Recovering,
    NsdAvailability::Unrecovered,
];

fn code_of(availability: NsdAvailability) -> u8 {
    AVAILABILITIES.iter().position(|one| *one == availability).map_or(1, |at| at as u8)
}

fn name_of(availability: NsdAvailability) -> &'static str {
    match availability {
        NsdAvailability::Up => "up",
        NsdAvailability::Down => "down",
        NsdAvailability::Recovering => "recovering: written, not read",
        NsdAvailability::Unrecovered => "unrecovered: it has missed writes",
    }
}

/// Whether an error of a write says that the NSD itself is unfit. `Fenced` says that of this
/// client, and `OldMap` of its map.
pub(crate) fn is_nsd_fault(kind: ErrorKind) -> bool {
    use ErrorKind as Kind;
    matches!(
        kind,
        Kind::Io
            | Kind::Unreachable
            | Kind::TimedOut
            | Kind::Internal
            | Kind::Corrupt
            | Kind::NotFound
    )
}

impl NsdSlot {
    fn new(slot: &strake_proto::layout::Slot, now: Duration) -> NsdSlot {
        NsdSlot {
            nsd: AtomicU32::new(slot.nsd.0),
            status: Mutex::new(slot.state.status),
            route: RwLock::default(),
            availability: AtomicU8::new(code_of(match slot.state.availability {
                NsdAvailability::Up => NsdAvailability::Down,
                _ => NsdAvailability::Unrecovered,
            })),
            went: Mutex::new(now),
            noted: AtomicBool::new(
                slot.state.availability != NsdAvailability::Up
                    && !matches!(slot.state.status, NsdStatus::Deleted { .. }),
            ),
            boot: AtomicU64::new(0),
            vouched: Mutex::default(),
            free: AtomicU64::new(0),
            total: AtomicU64::new(0),
            bad_strips: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            bad_pages: AtomicU64::new(0),
            mended_pages: AtomicU64::new(0),
            bad_last: Mutex::new(None),
            repaired_last: Mutex::new(None),
            progress: Mutex::new(None),
        }
    }
}

impl NsdSet {
    /// The slots of `pool`, with a port for each NSD that can be reached.
    pub fn new(
        pool: PoolMap,
        code: Code,
        ports: Vec<(SlotIndex, Option<Arc<dyn NsdPort>>)>,
        meta: Arc<dyn MetaPort>,
        client: ClientId,
        clock: Arc<dyn Clock>,
    ) -> NsdSet {
        let deleted = pool.deleted();
        let slots = Slots::new(&pool.slots, clock.monotonic());
        let mut missed = Missed::new(slots.len());
        for (at, slot) in (0..).map(SlotIndex).zip(slots.iter()) {
            if slot.noted.load(Ordering::Acquire) {
                missed.distrust(at);
            }
        }
        let set = NsdSet {
            slots,
            missed: Mutex::new(missed),
            heirs: Heirs::of(pool.being_emptied()),
            deleted: RwLock::new(deleted),
            map: AtomicU64::new(pool.version.0),
            pool: RwLock::new(pool),
            code,
            fs: FsId(1),
            meta,
            client,
            clock,
            placements: RwLock::default(),
            gate: WatchedRwLock::default(),
            restarts: AtomicU64::new(0),
            noting: WatchedMutex::default(),
            left: Mutex::new(0),
            attention: Mutex::new(false),
            called: Condvar::new(),
            mending: WatchedMutex::default(),
            looking: WatchedMutex::default(),
            looks: AtomicU64::new(0),
            holdings: None,
            observe: None,
            find: None,
            coming: Mutex::default(),
        };
        for (slot, port) in ports {
            if set.deleted.read().contains(&slot) {
                continue;
            }
            if let (Some(port), Some(entry)) = (port, set.slots.get(slot)) {
                entry.route.write().port = Some(port);
                let is_up = || Ok(!set.is_noted(slot));
                set.probe_knowing(slot, &is_up);
            }
        }
        set
    }

    /// From now on the NSDs grant this client its space, because others use them too. `life` rises
    /// with each life of the client.
    pub(crate) fn use_grants(&mut self, life: u64) {
        self.holdings = Some(Holdings::new(self.slots.len(), life));
        // Others may follow already.
        self.heirs.follow_for(self.being_emptied());
    }

    /// What the NSDs grant this client. `None` for a single mount.
    pub(crate) fn holdings(&self) -> Option<&Holdings> {
        self.holdings.as_ref()
    }

    /// The slots whose NSDs must have room for new blocks.
    pub(crate) fn slots_for_room(&self) -> impl Iterator<Item = SlotIndex> {
        let emptied = self.being_emptied();
        self.slots()
            .filter(move |slot| emptied != Some(*slot) && self.availability(*slot).writable())
    }

    /// The file system all of this belongs to.
    pub fn fs(&self) -> FsId {
        self.fs
    }

    /// All slots but those that are deleted.
    pub fn slots(&self) -> impl Iterator<Item = SlotIndex> + use<> {
        let deleted = self.deleted.read().clone();
        (0..self.slots.len() as u16).map(SlotIndex).filter(move |slot| !deleted.contains(slot))
    }

    /// The client that uses the NSDs.
    pub fn client(&self) -> ClientId {
        self.client
    }

    fn slot(&self, slot: SlotIndex) -> &NsdSlot {
        self.slots.get(slot).expect("invariant: slots are known before what names them")
    }

    /// The id of the slot's current NSD.
    pub fn nsd(&self, slot: SlotIndex) -> NsdId {
        NsdId(self.slot(slot).nsd.load(Ordering::Acquire))
    }

    /// The largest id that any NSD has or had. Deleted NSDs count, because ids are not used again.
    pub fn largest_nsd(&self) -> NsdId {
        let ids = self.slots.iter().map(|slot| slot.nsd.load(Ordering::Acquire));
        NsdId(ids.max().unwrap_or(0))
    }

    /// The slot of which `nsd` is the current NSD.
    pub fn slot_of(&self, nsd: NsdId) -> Option<SlotIndex> {
        self.slots().find(|slot| self.nsd(*slot) == nsd)
    }

    /// How the NSD of `slot` may be used.
    pub fn availability(&self, slot: SlotIndex) -> NsdAvailability {
        AVAILABILITIES[usize::from(self.slot(slot).availability.load(Ordering::Acquire))]
    }

    /// Whether the metadata says that the NSD of `slot` has missed something.
    pub fn is_noted(&self, slot: SlotIndex) -> bool {
        self.slot(slot).noted.load(Ordering::Acquire)
    }

    /// The gate. Every stripe write holds it shared; see the file's head.
    pub fn gate(&self) -> &WatchedRwLock<Gate> {
        &self.gate
    }

    /// The slots of the strips of a block, by position.
    pub fn stripe(&self, layout: &ObjectLayout, block: BlockIndex) -> Result<StripeSlots> {
        let placement = self.placement(layout)?;
        let mut slots = placement.stripe(layout.object, block);
        let deleted = self.deleted.read();
        if !deleted.is_empty() {
            placement.substitute(layout.object, block, &mut slots, &deleted);
        }
        Ok(slots)
    }

    /// The positions of a block that lie on these slots: a mask.
    pub fn positions_on(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        slots: &[SlotIndex],
    ) -> Result<u32> {
        if slots.is_empty() {
            return Ok(0);
        }
        let placed = self.stripe(layout, block)?;
        let is_on = |slot: &SlotIndex| slots.contains(slot);
        Ok((0..).zip(placed.iter()).fold(
            0,
            |mask, (at, slot)| {
                if is_on(slot) { mask | 1u32 << at } else { mask }
            },
        ))
    }

    fn placement(&self, layout: &ObjectLayout) -> Result<Arc<Placement>> {
        let key = (layout.layout, layout.code);
        if let Some(found) = self.placements.read().get(&key) {
            return Ok(Arc::clone(found));
        }
        let known = self.pool.read().layout(layout.layout).cloned();
        let members = match known {
            Some(members) => members,
            None => {
                self.refresh_pool()?;
                self.pool.read().layout(layout.layout).cloned().ok_or_else(|| {
                    let detail = format!("layout {} is not in the pool map", layout.layout);
                    Error::new(ErrorKind::Io, detail)
                })?
            }
        };
        let made = Arc::new(Placement::new(&members, layout.code)?);
        self.meet(&members)?;
        Ok(Arc::clone(self.placements.write().entry(key).or_insert(made)))
    }

    /// Sends a request to the NSD of `slot`. A change goes to its shadow, too.
    ///
    /// # Errors
    /// The NSD's, or `Unreachable` if there is no way to it.
    pub fn call(
        &self,
        slot: SlotIndex,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let Route { port, shadow } = self.slot(slot).route.read().clone();
        let Some(port) = port else {
            let detail = format!("NSD {} is not there", self.nsd(slot));
            return Err(Error::new(ErrorKind::Unreachable, detail));
        };
        let reply = self.traced(slot, &*port, request, send, receive)?;
        if let Some(shadow) = shadow {
            shadow.follow(self.context(), request, send);
        }
        Ok(reply)
    }

    /// Sends a request to the current NSD of `slot` and not to its shadow.
    ///
    /// # Errors
    /// Like [`NsdSet::call`].
    pub fn call_current(&self, slot: SlotIndex, request: &NsdRequest) -> Result<NsdReply> {
        let port = self.slot(slot).route.read().port.clone();
        let Some(port) = port else {
            let detail = format!("NSD {} is not there", self.nsd(slot));
            return Err(Error::new(ErrorKind::Unreachable, detail));
        };
        self.traced(slot, &*port, request, &[], &mut [])
    }

    /// Sends a request to the current NSD of a slot, or to its shadow.
    ///
    /// # Errors
    /// Like [`NsdSet::call`].
    pub fn call_at(
        &self,
        (slot, place): (SlotIndex, Place),
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if place == Place::Current {
            return self.call(slot, request, send, receive);
        }
        let Some(shadow) = self.shadow(slot) else {
            let detail = format!("nothing is to replace NSD {} any more", self.nsd(slot));
            return Err(Error::new(ErrorKind::Unreachable, detail));
        };
        self.traced(slot, &*shadow.port, request, send, receive)
    }

    fn context(&self) -> NsdContext {
        let map = MapVersion(self.map.load(Ordering::Relaxed));
        NsdContext { client: self.client, map, ..NsdContext::default() }
    }

    /// Takes an NSD that failed out of use.
    pub fn fail(&self, slot: SlotIndex) {
        let _serial = self.noting.lock();
        if self.availability(slot).writable() {
            let noted = self.slot(slot).noted.load(Ordering::Acquire);
            self.set_availability(
                slot,
                if noted { NsdAvailability::Unrecovered } else { NsdAvailability::Down },
            );
        }
    }

    /// Takes the current NSD of a slot, or its shadow, out of use.
    pub fn fail_at(&self, (slot, place): (SlotIndex, Place)) {
        match (place, self.shadow(slot)) {
            (Place::Current, _) => self.fail(slot),
            (Place::Shadow, Some(shadow)) => shadow.failed.store(true, Ordering::Release),
            (Place::Shadow, None) => {}
        }
    }

    /// Durably notes that the NSD of `slot` has missed a write. This syncs the metadata, once each
    /// time an NSD goes away.
    pub fn note(&self, slot: SlotIndex) -> Result<()> {
        let entry = self.slot(slot);
        if entry.noted.load(Ordering::Acquire) {
            return Ok(());
        }
        let _serial = self.noting.lock();
        // A commit may have begun before the slot was deleted. Its heirs have what it had.
        if entry.noted.load(Ordering::Acquire) || self.deleted.read().contains(&slot) {
            return Ok(());
        }
        let noted = self.slots().filter(|other| *other == slot || self.is_noted(*other));
        if !self.tolerates(&noted.collect::<Vec<_>>()) {
            if self.is_deleted_by_metadata(slot)? {
                return Ok(());
            }
            let detail = "more NSDs are away than the code tolerates: bring them back";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        self.record(slot, NsdAvailability::Unrecovered)?;
        self.set_availability(slot, NsdAvailability::Unrecovered);
        entry.noted.store(true, Ordering::Release);
        self.abandon(slot);
        Ok(())
    }

    /// Uses an NSD no more, because it misses writes of another client. That client has noted so.
    ///
    /// This takes no lock that is held across a call to the metadata: two clients that note two
    /// NSDs at the same time wait for each other to do this.
    pub fn leave(&self, nsd: NsdId) {
        let mut left = self.left.lock();
        // Also for an NSD that is about to get a slot: see `adopt`.
        *left += 1;
        let Some(slot) = self.slot_of(nsd) else { return };
        self.missed().distrust(slot);
        self.slot(slot).noted.store(true, Ordering::Release);
        self.set_availability(slot, NsdAvailability::Unrecovered);
        self.abandon(slot);
    }

    /// How often this client was told to leave an NSD.
    pub fn leaves(&self) -> u64 {
        *self.left.lock()
    }

    /// Whether every stripe can be read without these slots: they are no more than the code's
    /// parity, or belong to a failure group that has no more strips of any stripe.
    pub fn tolerates(&self, away: &[SlotIndex]) -> bool {
        let parity = usize::from(self.code.parity);
        away.len() <= parity || strips_at_most(&self.pool.read(), self.code, away) <= parity
    }

    /// Notes all NSDs that are away at the start, if the others suffice. Recovery has not seen
    /// their strips. If these were believed later, a reader could see first one version of a stripe
    /// and then another.
    pub fn note_missing(&self) -> Result<()> {
        let missing: Vec<SlotIndex> =
            self.slots().filter(|slot| !self.availability(*slot).readable()).collect();
        if !self.tolerates(&missing) {
            return Ok(());
        }
        missing.into_iter().try_for_each(|slot| {
            self.missed().distrust(slot);
            self.note(slot)
        })
    }

    /// Puts a new way to the NSD of `slot` in place; [`NsdSet::probe`] brings it into use.
    pub fn attach(&self, slot: SlotIndex, port: Option<Arc<dyn NsdPort>>) {
        if self.deleted.read().contains(&slot) {
            return;
        }
        if let Some(entry) = self.slots.get(slot) {
            let gone = port.is_none();
            entry.route.write().port = port;
            if gone {
                self.fail(slot);
            } else {
                self.call_for_attention();
            }
        }
    }

    /// Has the mender look after the NSDs soon.
    pub fn call_for_attention(&self) {
        *self.attention.lock() = true;
        self.called.notify_all();
    }

    /// The lock of the thread that looks after the NSDs. It is held across their whole recovery.
    pub fn mending(&self) -> &WatchedMutex<Mending> {
        &self.mending
    }

    /// Waits until the NSDs need attention, at most for `limit`.
    pub fn wait_for_call(&self, limit: Duration) {
        let mut attention = self.attention.lock();
        if !*attention {
            self.called.wait_for(&mut attention, limit);
        }
        *attention = false;
    }

    /// Asks an NSD in use for its space. If it does not answer, it is taken out of use.
    pub fn check(&self, slot: SlotIndex) {
        match self.call(slot, &NsdRequest::Status, &[], &mut []) {
            Ok(NsdReply::Status(status)) if status.nsd == self.nsd(slot) => {
                match self.vouch(slot, &status) {
                    Ok(()) => self.learn(slot, &status),
                    Err(_) => self.fail(slot),
                }
            }
            Ok(_) => {}
            Err(error) if is_nsd_fault(error.kind()) => self.fail(slot),
            Err(_) => {}
        }
    }

    /// Asks an NSD for its space. If it answers, was `Down` and missed nothing, it is up again.
    /// Returns whether it answers.
    pub fn probe(&self, slot: SlotIndex) -> bool {
        // The server that opened the disk may have told the metadata that the disk is out of date.
        self.probe_knowing(slot, &|| {
            let configuration = self.configuration()?;
            let known = configuration.pool.slots.get(usize::from(slot.0));
            let is_up = known.is_some_and(|slot| slot.state.availability == NsdAvailability::Up);
            self.take_pool(*configuration);
            Ok(is_up)
        })
    }

    fn probe_knowing(&self, slot: SlotIndex, is_up: &dyn Fn() -> Result<bool>) -> bool {
        let entry = self.slot(slot);
        let reply = self.call(slot, &NsdRequest::Status, &[], &mut []);
        let Ok(NsdReply::Status(status)) = reply else { return false };
        if status.nsd != self.nsd(slot) {
            return false;
        }
        if self.vouch(slot, &status).is_err() {
            return false;
        }
        if self.availability(slot) != NsdAvailability::Down {
            self.learn(slot, &status);
            return true;
        }
        let Ok(is_up) = is_up() else { return false };
        self.learn(slot, &status);
        let _serial = self.noting.lock();
        // A client that is told to leave the NSD just now does so before this, or after.
        let _left = self.left.lock();
        if self.availability(slot) == NsdAvailability::Down {
            if !is_up {
                self.missed().distrust(slot);
                entry.noted.store(true, Ordering::Release);
            }
            self.set_availability(
                slot,
                match entry.noted.load(Ordering::Acquire) {
                    true => NsdAvailability::Unrecovered,
                    false => NsdAvailability::Up,
                },
            );
        }
        true
    }

    fn learn(&self, slot: SlotIndex, status: &NsdStatusReply) {
        let entry = self.slot(slot);
        entry.free.store(status.free, Ordering::Relaxed);
        entry.total.store(status.total, Ordering::Relaxed);
        self.saw_boot(slot, status.boot);
    }

    /// Notes the boot number of a reply. If it differs from the one seen before, the NSD was
    /// started anew, and strips that it had only accepted may be gone.
    pub(crate) fn saw_boot(&self, slot: SlotIndex, boot: u64) {
        let before = self.slot(slot).boot.swap(boot, Ordering::AcqRel);
        if before != 0 && before != boot {
            self.restarts.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// How often some NSD was found started anew. Strips accepted at a lower count may be gone.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Acquire)
    }

    /// Counts a bad strip. The log names the strip and the fault, `what`.
    pub(crate) fn count_bad_strip(&self, slot: SlotIndex, key: &StripKey, what: &str) {
        if self.slot(slot).bad_last.lock().replace(*key) == Some(*key) {
            return;
        }
        let before = self.slot(slot).bad_strips.fetch_add(1, Ordering::Relaxed);
        if before < BAD_STRIPS_LOGGED {
            warn!(target: "disks", "NSD {}: strip {key} is bad: {what}", self.nsd(slot));
        }
    }

    /// Counts a strip that was rebuilt and rewritten.
    pub fn count_repaired(&self, slot: SlotIndex, key: &StripKey) {
        if self.slot(slot).repaired_last.lock().replace(*key) == Some(*key) {
            return;
        }
        let before = self.slot(slot).repaired.fetch_add(1, Ordering::Relaxed);
        if before < BAD_STRIPS_LOGGED {
            info!(target: "disks", "NSD {}: strip {key} was rebuilt and rewritten", self.nsd(slot));
        }
    }

    /// Counts damaged pages that a scrub found.
    pub fn count_pages(&self, slot: SlotIndex, bad: u64, mended: u64) {
        self.slot(slot).bad_pages.fetch_add(bad, Ordering::Relaxed);
        self.slot(slot).mended_pages.fetch_add(mended, Ordering::Relaxed);
    }

    /// Shows the progress of a recovery; `None` when it has ended.
    pub fn show_progress(&self, slot: SlotIndex, progress: Option<(u64, u64)>) {
        *self.slot(slot).progress.lock() = progress;
    }

    /// Asks all NSDs in use for their space. What an NSD that does not answer said last stays.
    pub fn refresh_space(&self) {
        for slot in self.slots().filter(|slot| self.availability(*slot).writable()) {
            if let Ok(NsdReply::Status(status)) = self.call(slot, &NsdRequest::Status, &[], &mut [])
            {
                self.learn(slot, &status);
            }
        }
    }

    /// How many NSDs hold strips and go on doing so.
    pub fn live_count(&self) -> u64 {
        self.slots().filter(|slot| self.being_emptied() != Some(*slot)).count() as u64
    }

    /// Total and free raw bytes of all NSDs. Placement is even, so the NSD with the least free
    /// space decides: the others are counted as if each had its numbers, because they cannot be
    /// filled.
    pub fn space(&self) -> (u64, u64) {
        let live = || self.slots().filter(|slot| self.being_emptied() != Some(*slot));
        // The numbers of an NSD that is away say nothing: deletions wait for it.
        let told = live().filter(|slot| self.availability(*slot).writable()).map(|slot| {
            let entry = self.slot(slot);
            (entry.free.load(Ordering::Relaxed), entry.total.load(Ordering::Relaxed))
        });
        let Some((free, total)) = told.filter(|(_, total)| *total > 0).min() else { return (0, 0) };
        // NSDs that do not answer count like the others.
        let all = self.live_count();
        (total.saturating_mul(all), free.saturating_mul(all))
    }

    /// All NSDs, for listings.
    pub fn views(&self) -> Vec<NsdView> {
        let view = |slot: SlotIndex| {
            let entry = self.slot(slot);
            NsdView {
                slot,
                nsd: self.nsd(slot),
                state: NsdState {
                    status: *entry.status.lock(),
                    availability: self.availability(slot),
                },
                total: entry.total.load(Ordering::Relaxed),
                free: entry.free.load(Ordering::Relaxed),
                bad_strips: entry.bad_strips.load(Ordering::Relaxed),
                repaired: entry.repaired.load(Ordering::Relaxed),
                bad_pages: entry.bad_pages.load(Ordering::Relaxed),
                mended_pages: entry.mended_pages.load(Ordering::Relaxed),
                progress: *entry.progress.lock(),
            }
        };
        self.slots().map(view).collect()
    }
}
