//! An NSD in memory: the rules of `strake_proto::nsd` in their most obvious form, and faults.

use crate::memory_grants::MemoryGrants;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{
    KeptVersion, NsdContext, NsdPort, NsdReply, NsdRequest, NsdStatusReply, RangeChange,
    SMALL_STRIP_UNITS_MAX, STRIPS_MAX, SmallStrip, SpaceAsk, SpaceGrant, StripEntry, StripHeader,
};
use strake_proto::{
    BlockIndex, ClientId, ClusterId, Error, ErrorKind, NsdId, ObjectId, Result, StripIndex,
    StripKey, Version,
};
use strake_stripe::{ChecksumSeed, first_bad_unit};

#[derive(Clone)]
struct Stored {
    header: StripHeader,
    bytes: Arc<Vec<u8>>,
    checksums: Arc<Vec<u32>>,
    settled: bool,
    /// Bytes that it takes beside an older version.
    own: u64,
}

impl Stored {
    fn as_kept(&self) -> KeptVersion {
        KeptVersion { header: self.header.clone(), settled: self.settled }
    }
}

/// Where a strip is kept.
type Place = (ObjectId, BlockIndex, StripIndex);

#[derive(Clone, Default)]
struct State {
    /// Newest version first.
    strips: BTreeMap<(ObjectId, BlockIndex, StripIndex), Vec<Stored>>,
    tombstones: Vec<(ObjectId, BlockIndex, BlockIndex, Version)>,
    promises: BTreeSet<(StripKey, Version)>,
    /// Changes so far.
    changes: u64,
    /// What is granted to whom. A crash brings back what fits the strips, as under a manager.
    grants: MemoryGrants,
}

/// Whether an NSD is about to execute a request, or has executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// Called with every request before and after its execution. It may block. The NSD serves other
/// callers meanwhile.
pub type Watch = Arc<dyn Fn(Moment, &NsdRequest) + Send + Sync>;

/// The faults that an NSD has just now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// It does not answer at all.
    pub down: bool,
    /// Writes fail with this error.
    pub write: Option<ErrorKind>,
    /// Reads fail with this error.
    pub read: Option<ErrorKind>,
    /// The NSD accepts this many more writes and is down then, as in a crash in the middle.
    pub writes_left: Option<u32>,
    /// After this many more writes the NSD is started anew, without a word to its clients.
    pub restart_after: Option<u32>,
}

struct Inner {
    state: State,
    durable: State,
    boot: u64,
    recovered: u64,
    faults: Faults,
    capacity: u64,
    /// Versions that were overwritten before any commit covered them.
    superseded: u64,
    /// Patches that were accepted.
    patches: u64,
    /// Strips that were bad and mended.
    mended: u64,
    /// The sender of the request in hand.
    client: ClientId,
}

/// See [`MemoryNsd::copy`].
pub struct Copy(State);

/// See the module.
pub struct MemoryNsd {
    nsd: NsdId,
    inner: Mutex<Inner>,
    watch: Mutex<Option<Watch>>,
}

impl MemoryNsd {
    pub fn new(nsd: NsdId) -> Arc<MemoryNsd> {
        let empty = State { changes: 1, ..State::default() };
        let inner = Inner {
            state: empty.clone(),
            durable: empty,
            boot: 1,
            recovered: 1,
            faults: Faults::default(),
            capacity: 1 << 40,
            superseded: 0,
            patches: 0,
            mended: 0,
            client: ClientId(0),
        };
        Arc::new(MemoryNsd { nsd, inner: Mutex::new(inner), watch: Mutex::default() })
    }

    /// How many versions were overwritten before any commit covered them.
    pub fn superseded(&self) -> u64 {
        self.inner.lock().superseded
    }

    /// How many patches were accepted.
    pub fn patches(&self) -> u64 {
        self.inner.lock().patches
    }

    /// How many strips were bad and were mended.
    pub fn mended(&self) -> u64 {
        self.inner.lock().mended
    }

    pub fn id(&self) -> NsdId {
        self.nsd
    }

    pub fn set_faults(&self, faults: Faults) {
        self.inner.lock().faults = faults;
    }

    /// From now on `watch` sees every request; a later call takes its place.
    pub fn set_watch(&self, watch: Option<Watch>) {
        *self.watch.lock() = watch;
    }

    fn show(&self, moment: Moment, request: &NsdRequest) {
        let watch = self.watch.lock().clone();
        if let Some(watch) = watch {
            watch(moment, request);
        }
    }

    pub fn set_down(&self, down: bool) {
        self.inner.lock().faults.down = down;
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.inner.lock().capacity = bytes;
    }

    /// Loses everything that was not committed, as a power cut does.
    pub fn crash(&self) {
        self.inner.lock().crash();
    }

    /// A copy of the disk, which has everything durable.
    pub fn copy(&self) -> Copy {
        Copy(self.inner.lock().durable.clone())
    }

    /// Starts anew from a copy.
    pub fn restore(&self, copy: &Copy) {
        self.inner.lock().durable = copy.0.clone();
        self.crash();
    }

    /// Makes everything durable, as a disk may at any time.
    pub fn keep_all(&self) {
        let mut inner = self.inner.lock();
        inner.durable = inner.state.clone();
    }

    /// Flips a bit of the current version of a strip. False if there is no strip.
    pub fn flip_bit(&self, object: ObjectId, block: BlockIndex, strip: u8, at: usize) -> bool {
        let mut inner = self.inner.lock();
        let Some(versions) = inner.state.strips.get_mut(&(object, block, StripIndex(strip))) else {
            return false;
        };
        let mut bytes = versions[0].bytes.to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1;
        versions[0].bytes = Arc::new(bytes);
        true
    }

    /// Flips a bit of a checksum of the current version of a strip, so that the NSD does not know
    /// the right one. False if there is no strip.
    pub fn flip_checksum(&self, object: ObjectId, block: BlockIndex, strip: u8) -> bool {
        let mut inner = self.inner.lock();
        let Some(versions) = inner.state.strips.get_mut(&(object, block, StripIndex(strip))) else {
            return false;
        };
        Arc::make_mut(&mut versions[0].checksums)[0] ^= 1;
        true
    }

    /// Loses a strip, against all promises.
    pub fn lose(&self, object: ObjectId, block: BlockIndex, strip: u8) {
        let mut inner = self.inner.lock();
        inner.state.strips.remove(&(object, block, StripIndex(strip)));
        inner.durable = inner.state.clone();
    }

    /// Forgets a strip, as a disk that lost a write does. False if there is no strip.
    pub fn lose_strip(&self, object: ObjectId, block: BlockIndex, strip: u8) -> bool {
        self.inner.lock().state.strips.remove(&(object, block, StripIndex(strip))).is_some()
    }

    /// The version of a strip.
    pub fn version(&self, object: ObjectId, block: BlockIndex, strip: u8) -> Option<Version> {
        let inner = self.inner.lock();
        inner.state.strips.get(&(object, block, StripIndex(strip))).map(|all| all[0].header.version)
    }

    pub fn strips(&self) -> usize {
        self.inner.lock().state.strips.len()
    }

    /// The objects of which strips are held.
    pub fn objects(&self) -> BTreeSet<ObjectId> {
        self.inner.lock().state.strips.keys().map(|(object, ..)| *object).collect()
    }

    /// Versions held beyond the current ones.
    pub fn kept(&self) -> usize {
        self.inner.lock().state.strips.values().map(|all| all.len() - 1).sum()
    }

    /// Strips of which older versions are held, and those not settled.
    pub fn unsettled(&self) -> usize {
        let inner = self.inner.lock();
        inner.state.strips.values().filter(|all| all.len() > 1 || !all[0].settled).count()
    }
}

impl Inner {
    fn crash(&mut self) {
        self.state = self.durable.clone();
        self.boot += 1;
        self.recovered = self.durable.changes;
        self.faults = Faults::default();
    }

    fn restart_if_due(&mut self) {
        match &mut self.faults.restart_after {
            Some(0) => self.crash(),
            Some(left) => *left -= 1,
            None => {}
        }
    }

    fn used(&self) -> u64 {
        let of_strip = |versions: &Vec<Stored>| {
            let Some((oldest, newer)) = versions.split_last() else { return 0 };
            newer.iter().map(|one| one.own).sum::<u64>() + oldest.bytes.len() as u64
        };
        self.state.strips.values().map(of_strip).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    fn floor(&self, key: &StripKey) -> Version {
        let covering = self.state.tombstones.iter().filter(|(object, from, to, _)| {
            *object == key.object && *from <= key.block && key.block < *to
        });
        covering.map(|one| one.3).max().unwrap_or(Version::NONE)
    }

    /// Writes a strip. The NSD may be started anew afterwards.
    fn write_or_restart(
        &mut self,
        key: &StripKey,
        header: &StripHeader,
        checksums: &[u32],
        how: (bool, Version),
        bytes: &[u8],
    ) -> Result<NsdReply> {
        let reply = self.write(key, header, checksums, how, bytes, bytes.len() as u64);
        self.restart_if_due();
        reply
    }

    /// Writes strips one by one, each as if it were alone.
    fn write_many(&mut self, strips: &[SmallStrip], copy: bool, send: &[u8]) -> Result<NsdReply> {
        assert!((1..=STRIPS_MAX).contains(&strips.len()));
        let mut rest = send;
        let mut reply = Ok(NsdReply::Accepted { boot: self.boot });
        for strip in strips {
            let (bytes, others) = rest.split_at(strip.bytes());
            rest = others;
            assert!((1..=SMALL_STRIP_UNITS_MAX).contains(&strip.checksums.len()));
            let SmallStrip { key, header, checksums, stable } = strip;
            reply = self.write_or_restart(key, header, checksums, (copy, *stable), bytes);
            if reply.is_err() {
                break;
            }
        }
        reply
    }

    fn write(
        &mut self,
        key: &StripKey,
        header: &StripHeader,
        checksums: &[u32],
        (copy, stable): (bool, Version),
        bytes: &[u8],
        own: u64,
    ) -> Result<NsdReply> {
        if let Some(kind) = self.faults.write {
            return Err(Error::new(kind, "injected"));
        }
        if let Some(left) = &mut self.faults.writes_left {
            if *left == 0 {
                self.faults.down = true;
                return Err(Error::new(ErrorKind::Unreachable, "injected"));
            }
            *left -= 1;
        }
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(UNIT_BYTES));
        assert_eq!(checksums.len(), bytes.len() / UNIT_BYTES);
        let free = self.free();
        if own > free || !self.state.grants.may_take(self.client, own, free) {
            return Err(ErrorKind::NoSpace.into());
        }
        let accepted = Ok(NsdReply::Accepted { boot: self.boot });
        let floor = self.floor(key);
        let promised = self.state.promises.contains(&(*key, header.version));
        let versions = self.state.strips.entry((key.object, key.block, key.strip)).or_default();
        let current = versions.first().map_or(Version::NONE, |one| one.header.version);
        let stale = header.version <= current.max(floor) || promised;
        let is_present = versions.iter().any(|one| one.header.version == header.version);
        if stale && !(copy && is_present) {
            if versions.is_empty() {
                self.state.strips.remove(&(key.object, key.block, key.strip));
            }
            return Err(Error::new(ErrorKind::Stale, format!("{} at {key}", header.version)));
        }
        if header.version == stable || versions.iter().any(|one| one.header.version == stable) {
            versions.retain(|one| one.header.version >= stable);
        }
        if is_present {
            return accepted;
        }
        // A version that no commit has covered goes at once, because it was never called stable.
        let place = (key.object, key.block, key.strip);
        let is_durable = |one: &Stored| {
            let durable = self.durable.strips.get(&place).into_iter().flatten();
            durable.into_iter().any(|held| held.header.version == one.header.version)
        };
        if versions.first().is_some_and(|current| !current.settled && !is_durable(current)) {
            versions.remove(0);
            self.superseded += 1;
        }
        let stored = Stored {
            header: header.clone(),
            bytes: Arc::new(bytes.to_vec()),
            checksums: Arc::new(checksums.to_vec()),
            settled: false,
            own,
        };
        versions.insert(0, stored);
        self.state.changes += 1;
        self.state.grants.take(self.client, own);
        accepted
    }

    /// A patch is a write of the base with some units changed. While the base is held beside it, it
    /// takes these units alone.
    fn patch(
        &mut self,
        key: &StripKey,
        header: &StripHeader,
        base: Version,
        units: (&[u32], &[u32]),
        stable: Version,
        payload: &[u8],
    ) -> Result<NsdReply> {
        let held = self.state.strips.get(&(key.object, key.block, key.strip));
        let Some(newest) = held.and_then(|versions| versions.first()) else {
            return Err(ErrorKind::NotBase.into());
        };
        if newest.header.version != header.version
            && (newest.header.version != base
                || base <= self.floor(key)
                || newest.header.block_bytes != header.block_bytes)
        {
            return Err(ErrorKind::NotBase.into());
        }
        let (mut bytes, mut checksums) = (newest.bytes.to_vec(), newest.checksums.to_vec());
        // The checksums of the other units are not computed anew: damage would pass as good.
        let seed = ChecksumSeed::new(key, base);
        let change = seed.difference(ChecksumSeed::new(key, header.version));
        checksums.iter_mut().for_each(|checksum| *checksum ^= change);
        for ((unit, checksum), data) in
            units.0.iter().zip(units.1).zip(payload.chunks_exact(UNIT_BYTES))
        {
            let unit = *unit as usize;
            bytes[unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES].copy_from_slice(data);
            checksums[unit] = *checksum;
        }
        let reply =
            self.write(key, header, &checksums, (true, stable), &bytes, payload.len() as u64);
        self.patches += u64::from(reply.is_ok());
        reply
    }

    /// Puts right the bytes of a version that is held.
    fn mend(
        &mut self,
        key: &StripKey,
        version: Version,
        checksums: &[u32],
        bytes: &[u8],
    ) -> Result<NsdReply> {
        if let Some(kind) = self.faults.write {
            return Err(Error::new(kind, "injected"));
        }
        assert_eq!(checksums.len(), bytes.len() / UNIT_BYTES);
        let held = self.state.strips.get_mut(&(key.object, key.block, key.strip));
        let mut held = held.into_iter().flatten();
        let Some(found) = held.find(|one| one.header.version == version) else {
            return Err(ErrorKind::Stale.into());
        };
        if *found.checksums != checksums {
            return Err(ErrorKind::Stale.into());
        }
        if first_bad_unit(key, version, 0, &found.bytes, checksums).is_some() {
            found.bytes = Arc::new(bytes.to_vec());
            self.state.changes += 1;
            self.mended += 1;
        }
        Ok(NsdReply::Accepted { boot: self.boot })
    }

    fn read(
        &self,
        key: &StripKey,
        version: Option<Version>,
        (offset, length): (u32, u32),
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if let Some(kind) = self.faults.read {
            return Err(Error::new(kind, "injected"));
        }
        let versions = self.state.strips.get(&(key.object, key.block, key.strip));
        let found = versions
            .into_iter()
            .flatten()
            .find(|one| version.is_none_or(|wanted| wanted == one.header.version));
        let Some(found) = found else { return Err(ErrorKind::NotFound.into()) };
        let start = (offset as usize).min(found.bytes.len());
        let end = (start + length as usize).min(found.bytes.len());
        receive[..end - start].copy_from_slice(&found.bytes[start..end]);
        Ok(NsdReply::Strip {
            header: found.header.clone(),
            strip_bytes: found.bytes.len() as u32,
            checksums: found.checksums[start / UNIT_BYTES..end / UNIT_BYTES].to_vec(),
            payload_bytes: (end - start) as u32,
        })
    }

    fn entry(key: &(ObjectId, BlockIndex, StripIndex), all: &[Stored]) -> StripEntry {
        StripEntry {
            key: StripKey { fs: strake_proto::FsId(1), object: key.0, block: key.1, strip: key.2 },
            header: all[0].header.clone(),
            strip_bytes: all[0].bytes.len() as u32,
            settled: all[0].settled,
            kept: all[1..].iter().map(Stored::as_kept).collect(),
        }
    }

    fn page<'a>(
        strips: impl Iterator<Item = (&'a (ObjectId, BlockIndex, StripIndex), &'a Vec<Stored>)>,
        limit: u32,
    ) -> NsdReply {
        let mut entries: Vec<StripEntry> =
            strips.take(limit as usize + 1).map(|(key, all)| Inner::entry(key, all)).collect();
        let more = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        NsdReply::Strips { entries, more }
    }

    fn unsettled(&self, after: Option<StripKey>, limit: u32) -> NsdReply {
        let after = after.map(|key| (key.object, key.block, key.strip));
        let strips = self.state.strips.iter();
        let is_next = |key: &Place| after.is_none_or(|at| *key > at);
        Inner::page(strips.filter(|(key, all)| is_next(key) && !all[0].settled), limit)
    }

    fn lacking(&self, positions: u32, after: Option<StripKey>, limit: u32) -> NsdReply {
        let after = after.map(|key| (key.object, key.block, key.strip));
        let strips = self.state.strips.iter();
        let is_next = |key: &Place| after.is_none_or(|at| *key > at);
        let lacks = |all: &[Stored]| all.iter().any(|one| one.header.lacks & positions != 0);
        let page = Inner::page(strips.filter(|(key, all)| is_next(key) && lacks(all)), limit);
        let NsdReply::Strips { entries, more } = page else {
            unreachable!("invariant: a page is a list of strips")
        };
        let next = entries.last().filter(|_| more).map(|entry| entry.key);
        NsdReply::Lacking { entries, next }
    }

    fn change_ranges(&mut self, changes: &[RangeChange]) -> NsdReply {
        for change in changes {
            match *change {
                RangeChange::Delete { object, from, to, version } => {
                    self.delete_range(object, (from, to), version);
                }
                RangeChange::Forget { object, version } => {
                    self.forget_tombstones(object, version);
                }
            }
        }
        NsdReply::Changed { boot: self.boot, done: changes.len() as u32 }
    }

    fn forget_tombstones(&mut self, object: ObjectId, version: Version) -> NsdReply {
        self.state.tombstones.retain(|one| one.0 != object || one.3 > version);
        NsdReply::Accepted { boot: self.boot }
    }

    fn delete_range(
        &mut self,
        object: ObjectId,
        (from, to): (BlockIndex, BlockIndex),
        version: Version,
    ) {
        self.state.strips.retain(|key, versions| {
            if key.0 == object && from <= key.1 && key.1 < to {
                versions.retain(|one| one.header.version > version);
            }
            !versions.is_empty()
        });
        self.state.tombstones.push((object, from, to, version));
        self.state.changes += 1;
    }

    /// A promise is durable at once.
    fn refuse(&mut self, key: &StripKey, version: Version) -> bool {
        let versions = self.state.strips.get(&(key.object, key.block, key.strip));
        let held = versions.into_iter().flatten().any(|one| one.header.version == version);
        if !held {
            self.state.promises.insert((*key, version));
            self.durable.promises.insert((*key, version));
        }
        !held
    }

    fn status(&self, nsd: NsdId) -> NsdStatusReply {
        NsdStatusReply {
            cluster: ClusterId::default(),
            nsd,
            boot: self.boot,
            recovered: self.recovered,
            total: self.capacity,
            free: self.free(),
            strips: self.state.strips.len() as u64,
        }
    }

    fn grant(&mut self, client: ClientId, ask: &SpaceAsk) -> SpaceGrant {
        let (free, total) = (self.free(), self.capacity);
        let space = self.state.grants.ask(client, ask, free, total);
        // What a client hears of is durable, and all before it.
        self.durable = self.state.clone();
        space
    }

    fn commit(
        &mut self,
        client: ClientId,
        settled: &[strake_proto::nsd::SettledStripe],
    ) -> SpaceGrant {
        for one in settled {
            let range =
                (one.object, one.block, StripIndex(0))..=(one.object, one.block, StripIndex(255));
            for (_, versions) in self.state.strips.range_mut(range) {
                if versions[0].header.version >= one.version {
                    versions.retain(|held| held.header.version >= one.version);
                    let same = |held: &&mut Stored| held.header.version == one.version;
                    for held in versions.iter_mut().filter(same) {
                        held.settled = true;
                        held.header.lacks = one.lacks;
                    }
                }
            }
        }
        let (free, total) = (self.free(), self.capacity);
        let space = self.state.grants.top_up(client, free, total);
        self.durable = self.state.clone();
        space
    }
}

impl NsdPort for MemoryNsd {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        self.show(Moment::Before, request);
        let reply = self.serve(context.client, request, send, receive);
        self.show(Moment::After, request);
        reply
    }
}

impl MemoryNsd {
    /// Bytes that are free, granted or not.
    pub fn free(&self) -> u64 {
        self.inner.lock().free()
    }

    /// What is granted to a client, to look at it.
    pub fn granted(&self, client: ClientId) -> u64 {
        self.inner.lock().state.grants.of(client)
    }

    fn serve(
        &self,
        client: ClientId,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let mut inner = self.inner.lock();
        inner.client = client;
        if inner.faults.down {
            return Err(Error::new(ErrorKind::Unreachable, "injected: down"));
        }
        match request {
            NsdRequest::Write { key, header, checksums, copy, stable } => {
                let how = (*copy, *stable);
                inner.write_or_restart(key, header, checksums, how, send)
            }
            NsdRequest::WriteMany { strips, copy } => inner.write_many(strips, *copy, send),
            NsdRequest::Patch { key, header, base, units, checksums, stable } => {
                let reply = inner.patch(key, header, *base, (units, checksums), *stable, send);
                inner.restart_if_due();
                reply
            }
            NsdRequest::Mend { key, version, checksums } => {
                inner.mend(key, *version, checksums, send)
            }
            NsdRequest::Read { key, version, offset, length } => {
                inner.read(key, *version, (*offset, *length), receive)
            }
            NsdRequest::Commit { settled } => {
                let space = inner.commit(client, settled);
                Ok(NsdReply::Stable { boot: inner.boot, stable: inner.durable.changes, space })
            }
            NsdRequest::DeleteRange { object, from, to, version, .. } => {
                inner.delete_range(*object, (*from, *to), *version);
                Ok(NsdReply::Accepted { boot: inner.boot })
            }
            NsdRequest::ForgetTombstones { object, version, .. } => {
                Ok(inner.forget_tombstones(*object, *version))
            }
            NsdRequest::ChangeRanges { changes, .. } => Ok(inner.change_ranges(changes)),
            NsdRequest::Refuse { key, version } => {
                Ok(NsdReply::Promise { refused: inner.refuse(key, *version) })
            }
            NsdRequest::List { object, block, strip, until, limit, .. } => {
                let end = (*until, BlockIndex(0), StripIndex(0));
                let range = inner.state.strips.range((*object, *block, *strip)..end);
                Ok(Inner::page(range, *limit))
            }
            NsdRequest::ListUnsettled { after, limit } => Ok(inner.unsettled(*after, *limit)),
            NsdRequest::ListLacking { positions, after, limit } => {
                Ok(inner.lacking(*positions, *after, *limit))
            }
            NsdRequest::GrantSpace(ask) => {
                let space = inner.grant(client, ask);
                Ok(NsdReply::Granted { boot: inner.boot, space })
            }
            NsdRequest::Status => Ok(NsdReply::Status(inner.status(self.nsd))),
            NsdRequest::Check { .. }
            | NsdRequest::CheckPart { .. }
            | NsdRequest::Scrub { .. }
            | NsdRequest::Salvage
            | NsdRequest::Admission
            | NsdRequest::Lease { .. }
            | NsdRequest::Allow { .. }
            | NsdRequest::Fence { .. }
            | NsdRequest::RaiseFloor { .. } => Err(ErrorKind::NotSupported.into()),
        }
    }
}
