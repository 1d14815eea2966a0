//! Lists which blocks of an object are stored: for accounting, for holes, for recovery. The strips
//! of one block lie on different NSDs, so all NSDs are asked, page by page in key order. The cost
//! depends on what is stored, not on the size of the range.

use super::StripeIo;
use crate::nsds::Place;
use std::collections::{BTreeMap, BTreeSet};
use strake_proto::nsd::{NsdReply, NsdRequest, StripEntry};
use strake_proto::{
    BlockIndex, Error, ErrorKind, ObjectId, ObjectLayout, Result, SlotIndex, StripIndex, StripKey,
    Version,
};

/// How many entries are asked for at once.
const PAGE: u32 = 1024;
/// More blocks than this that an NSD may lack are not kept in memory: everything is compared.
const LACKING_MAX: usize = 1 << 20;

impl StripeIo {
    /// Calls `visit` with every strip of the object in `from..to` on one NSD, in key order, until
    /// `visit` returns false.
    pub fn list_slot(
        &self,
        target: (SlotIndex, Place),
        object: ObjectId,
        (from, to): (BlockIndex, BlockIndex),
        page: u32,
        visit: &mut dyn FnMut(&StripEntry) -> bool,
    ) -> Result<()> {
        let (mut block, mut strip) = (from, StripIndex(0));
        loop {
            let request = NsdRequest::List {
                fs: self.nsds().fs(),
                object,
                block,
                strip,
                until: ObjectId(object.0 + 1),
                limit: page,
            };
            let (entries, more) = match self.nsds().call_at(target, &request, &[], &mut [])? {
                NsdReply::Strips { entries, more } => (entries, more),
                _ => return Err(wrong_reply()),
            };
            for entry in &entries {
                if entry.key.object != object || entry.key.block >= to || !visit(entry) {
                    return Ok(());
                }
            }
            match entries.last() {
                Some(last) if more => {
                    // A disk that lists backwards must not keep us here for ever.
                    if (last.key.block, last.key.strip) < (block, strip) {
                        return Err(wrong_reply());
                    }
                    (block, strip) = (last.key.block, StripIndex(last.key.strip.0 + 1));
                }
                _ => return Ok(()),
            }
        }
    }

    /// The stored blocks in `from..to`, each with its newest version and its length. Strips below
    /// the `floor` of their block do not count. NSDs that cannot be read are left out: each block
    /// also has strips on other NSDs, or is lost.
    pub fn blocks(
        &self,
        layout: &ObjectLayout,
        range: (BlockIndex, BlockIndex),
        floor: &dyn Fn(BlockIndex) -> Version,
    ) -> Result<BTreeMap<BlockIndex, (Version, u32)>> {
        let mut found: BTreeMap<BlockIndex, (Version, u32)> = BTreeMap::new();
        for slot in self.readable()? {
            self.list_if_there(slot, layout, range, PAGE, &mut |entry| {
                let header = &entry.header;
                if header.version >= floor(entry.key.block) && self.counts(layout, slot, entry) {
                    let seen = found.entry(entry.key.block).or_default();
                    *seen = (*seen).max((header.version, header.block_bytes));
                }
                true
            })?;
        }
        Ok(found)
    }

    /// The first stored block in `from..to`.
    pub fn first_block(
        &self,
        layout: &ObjectLayout,
        (from, to): (BlockIndex, BlockIndex),
        floor: &dyn Fn(BlockIndex) -> Version,
    ) -> Result<Option<BlockIndex>> {
        let mut first: Option<BlockIndex> = None;
        for slot in self.readable()? {
            let until = first.unwrap_or(to);
            self.list_if_there(slot, layout, (from, until), 16, &mut |entry| {
                let counts = entry.header.version >= floor(entry.key.block)
                    && self.counts(layout, slot, entry);
                if counts {
                    first = Some(entry.key.block);
                }
                !counts
            })?;
        }
        Ok(first)
    }

    /// True if a strip lies where readers look for it. While an NSD is deleted, the heirs of its
    /// strips also have strips, possibly from a write that was never acknowledged.
    pub fn counts(&self, layout: &ObjectLayout, slot: SlotIndex, entry: &StripEntry) -> bool {
        let nsds = self.nsds();
        let StripKey { block, strip, .. } = entry.key;
        nsds.being_emptied().is_none()
            || nsds
                .stripe(layout, block)
                .is_ok_and(|slots| slots.get(usize::from(strip.0)) == Some(&slot))
    }

    /// The stripes that have an unsettled strip on an NSD that can be read.
    pub fn unsettled(&self) -> Result<Vec<(ObjectId, BlockIndex)>> {
        let mut found = BTreeSet::new();
        let slots = self.nsds().slots().filter(|slot| self.nsds().availability(*slot).readable());
        for slot in slots {
            self.list_unsettled(slot, &mut |entry| {
                found.insert((entry.key.object, entry.key.block));
            })?;
        }
        Ok(found.into_iter().collect())
    }

    /// Calls `add` with every unsettled strip of an NSD.
    fn list_unsettled(&self, slot: SlotIndex, add: &mut dyn FnMut(&StripEntry)) -> Result<()> {
        let mut after: Option<StripKey> = None;
        loop {
            let request = NsdRequest::ListUnsettled { after, limit: 4096 };
            let (entries, more) = match self.nsds().call_current(slot, &request)? {
                NsdReply::Strips { entries, more } => (entries, more),
                _ => return Err(wrong_reply()),
            };
            entries.iter().for_each(&mut *add);
            let last = entries.last().map(|entry| entry.key);
            if !more || last.is_none() {
                return Ok(());
            }
            if last <= after {
                return Err(wrong_reply());
            }
            after = last;
        }
    }

    /// The blocks that an NSD which returns may lack, as all NSDs know them (R1): those of which a
    /// position on it may lack the version held, and those that are unsettled anywhere, on the NSD
    /// itself as well. What was deleted is not among them: pending deletions come first.
    ///
    /// # Errors
    /// `Io` if another NSD cannot be read: then the others do not know everything. Everything must
    /// be compared then, as after any other error.
    pub fn lacking(&self, slot: SlotIndex) -> Result<BTreeMap<ObjectId, BTreeSet<BlockIndex>>> {
        let nsds = self.nsds();
        let mut found: BTreeMap<ObjectId, BTreeSet<BlockIndex>> = BTreeMap::new();
        for asked in nsds.slots() {
            if asked != slot && !nsds.availability(asked).readable() {
                let detail = "an NSD is away that knows what others lack";
                return Err(Error::new(ErrorKind::Io, detail));
            }
            let mut add = |entry: &StripEntry| {
                found.entry(entry.key.object).or_default().insert(entry.key.block);
            };
            self.list_unsettled(asked, &mut add)?;
            if asked != slot {
                self.list_lacking(asked, &mut add)?;
            }
            let blocks: usize = found.values().map(BTreeSet::len).sum();
            if blocks > LACKING_MAX {
                return Err(Error::new(ErrorKind::TooBig, "too many blocks to compare singly"));
            }
        }
        Ok(found)
    }

    /// Calls `add` with every strip of an NSD that another position may lack. Which NSD has the
    /// position is known to those who know the object's layout.
    fn list_lacking(&self, slot: SlotIndex, add: &mut dyn FnMut(&StripEntry)) -> Result<()> {
        let mut after: Option<StripKey> = None;
        loop {
            let request = NsdRequest::ListLacking { positions: u32::MAX, after, limit: 4096 };
            let reply = self.nsds().call_current(slot, &request)?;
            let NsdReply::Lacking { entries, next } = reply else { return Err(wrong_reply()) };
            entries.iter().for_each(&mut *add);
            if next.is_none() {
                return Ok(());
            }
            if next <= after {
                return Err(wrong_reply());
            }
            after = next;
        }
    }

    /// Like [`StripeIo::list_slot`], but takes an NSD out of use if it turns out to be away.
    pub fn list_if_there(
        &self,
        slot: SlotIndex,
        layout: &ObjectLayout,
        range: (BlockIndex, BlockIndex),
        page: u32,
        visit: &mut dyn FnMut(&StripEntry) -> bool,
    ) -> Result<()> {
        match self.list_slot((slot, Place::Current), layout.object, range, page, visit) {
            Err(error) if crate::nsds::is_nsd_fault(error.kind()) => {
                self.nsds().fail(slot);
                self.readable().map(|_| ())
            }
            result => result,
        }
    }

    /// The NSDs that can be read, provided that together they know of every block: each block has
    /// strips on at least P+1 NSDs.
    fn readable(&self) -> Result<Vec<SlotIndex>> {
        let (there, away): (Vec<_>, Vec<_>) =
            self.nsds().slots().partition(|slot| self.nsds().availability(*slot).readable());
        if !self.nsds().tolerates(&away) {
            let detail = "too many NSDs are away to tell which blocks a file has";
            return Err(Error::new(ErrorKind::Io, detail));
        }
        Ok(there)
    }
}

fn wrong_reply() -> Error {
    Error::new(ErrorKind::Corrupt, "an NSD gave a listing that is not one; check its disk")
}
