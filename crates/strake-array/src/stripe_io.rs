//! Blocks to strips on NSDs and back: writes a block, reads part of it, and decides between
//! versions after a crash. It knows nothing of files.
//!
//! **Versions.** Every stripe write has a new version: this client's grant and a counter. Strips
//! decode together only if version and block length agree. Callers serialise writes of one block.
//!
//! **Floor.** A reader passes the version below which strips of this block count as deleted. This
//! is needed because a range deletion is recorded in the metadata before all NSDs have applied it.
//!
//! **Shapes only widen.** A rewritten block keeps at least its stored length. It gets longer
//! (`Geometry::widened`) if that is needed for every position that ever held a strip of the block
//! to hold one again, until the block is deleted as a whole. So a position that holds a strip
//! normally holds one of the current version, and a read of one strip need not ask the others.
//!
//! **Holes.** An NSD that is up holds everything that was acknowledged to it, or would be marked.
//! Position 0 and the parity positions are those that *every* block stores. A block is a hole if
//! all of these that can be read have nothing, and the code tolerates the loss of the others (at
//! most P): see docs/decisions/0007.
//!
//! **Unequal versions** are left by a writer that died: see `resolve.rs`.

mod examine;
mod list;
mod locate;
mod mend;
mod patch;
mod ranges;
mod read;
mod resolve;
mod write;
mod write_many;

#[cfg(test)]
#[path = "stripe_io_test.rs"]
pub(crate) mod stripe_io_test;

pub use examine::Health;
pub use locate::{Located, Sight};
pub use patch::{Patch, Patched, rows_of};
pub use write_many::{SMALL_BLOCK_BYTES, SmallBlock};

use crate::nsds::NsdSet;
use crate::scratch::Scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::FanOut;
use strake_env::sync::Mutex;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::nsd::{NsdReply, NsdRequest, SettledStripe, StripHeader};
use strake_proto::{
    BlockIndex, Code, Error, ErrorKind, Geometry, GrantNumber, ObjectId, ObjectLayout, Result,
    SlotIndex, StripIndex, StripKey, Version,
};
use strake_stripe::{StripeCode, first_bad_unit};

/// Hands out versions: the newest grant that this client was ever given, and one counter for all of
/// its life. So versions rise for each block, whichever token covers it (rule R6 of the cluster).
pub struct Versions {
    grant: AtomicU64,
    counter: AtomicU64,
}

impl Versions {
    /// Versions of `grant`.
    pub fn new(grant: GrantNumber) -> Versions {
        Versions { grant: AtomicU64::new(grant.0), counter: AtomicU64::new(0) }
    }

    /// A version above all earlier ones.
    ///
    /// # Panics
    /// If this client was never given a grant.
    pub fn next(&self) -> Version {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        let grant = GrantNumber(self.grant.load(Ordering::Acquire));
        assert!(grant > GrantNumber(0), "whoever changes a block was given a grant");
        Version { grant, counter }
    }

    /// This client was given a grant. Whoever uses the grant's tokens calls this before.
    pub fn raise(&self, grant: GrantNumber) {
        self.grant.fetch_max(grant.0, Ordering::AcqRel);
    }
}

/// A version of a block that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The version.
    pub version: Version,
    /// The positions that were left out or did not accept it: a mask.
    pub lacks: u32,
}

/// A block that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version.
    pub version: Version,
    /// Its length.
    pub block_bytes: u32,
    /// The new version, if the read had to write the block anew: versions were unequal, or a strip
    /// was bad and could not be put right by its own version. It is accepted, but not yet stable.
    pub rewritten: Option<Written>,
}

/// Whether the caller excludes every other writer of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No. If the block must be written anew, the answer is `Retry`. A strip that is bad does not
    /// need that by itself.
    Shared,
    /// Yes.
    Exclusive,
}

/// Why a strip could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StripFault {
    /// The NSD is up and has no strip.
    Absent,
    /// The NSD has a damaged strip.
    Bad,
    /// The NSD is not there, or must not be read.
    Unreadable,
}

/// The result of a commit.
pub struct Committed {
    /// The slots whose NSDs failed, or were away when the commit began.
    pub unreached: Vec<SlotIndex>,
    /// The slots in `unreached` whose NSDs had accepted something that may now be gone.
    pub lacking: BTreeSet<SlotIndex>,
    /// An NSD refused this client, or its map. Nothing counts as stable.
    pub refused: Option<Error>,
}

/// See the file's head.
pub struct StripeIo {
    nsds: Arc<NsdSet>,
    fan: FanOut,
    versions: Versions,
    scratch: Scratch,
    mended: AtomicU64,
    counts: Counts,
    /// How many patches of a block passed over an NSD that is being brought up to date.
    unready: Mutex<BTreeMap<(ObjectId, BlockIndex), u32>>,
}

/// How blocks were sent since the start.
#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    patches: AtomicU64,
    not_base: AtomicU64,
}

/// How blocks were sent from the start to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Blocks sent as a whole.
    pub whole: u64,
    /// Patches that were accepted.
    pub patches: u64,
    /// Patches that did not fit. The whole block was sent instead.
    pub not_base: u64,
}

/// The bytes that the data strips of a block take on disks.
pub fn padded_bytes(code: Code, block_bytes: u32) -> usize {
    let stripe = StripeCode::of_block(code, u64::from(block_bytes));
    stripe.data_strips() * Geometry::of(code, u64::from(block_bytes)).strip_bytes
}

/// The bytes that a block of this length takes on disks, without parity.
pub fn on_disk(length: u32) -> u32 {
    length.next_multiple_of(UNIT_BYTES as u32)
}

impl StripeIo {
    /// Stripe I/O on these NSDs.
    pub fn new(nsds: Arc<NsdSet>, fan: FanOut, versions: Versions) -> StripeIo {
        let (scratch, mended, counts) = (Scratch::default(), AtomicU64::new(0), Counts::default());
        let unready = Mutex::default();
        StripeIo { nsds, fan, versions, scratch, mended, counts, unready }
    }

    /// How blocks were sent since the start.
    pub fn send_counts(&self) -> SendCounts {
        let Counts { whole, patches, not_base } = &self.counts;
        SendCounts {
            whole: whole.load(Ordering::Relaxed),
            patches: patches.load(Ordering::Relaxed),
            not_base: not_base.load(Ordering::Relaxed),
        }
    }

    /// The NSDs.
    pub fn nsds(&self) -> &Arc<NsdSet> {
        &self.nsds
    }

    /// The versions of this client.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Buffers for short use.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// How many blocks were put right or written anew because a strip was bad or versions were
    /// unequal.
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// True if all NSDs that hold data of a block can be read, as far as is known.
    pub fn is_whole(&self, layout: &ObjectLayout, block: BlockIndex) -> bool {
        self.nsds.stripe(layout, block).is_ok_and(|slots| {
            let data = slots.iter().take(usize::from(layout.code.data));
            data.into_iter().all(|slot| self.nsds.availability(*slot).readable())
        })
    }

    /// Makes a request, and once more if too few NSDs could be used and others may be usable by now
    /// ([`NsdSet::look_again`]).
    fn looking_again<T>(&self, mut request: impl FnMut() -> Result<T>) -> Result<T> {
        match request() {
            Err(error) if error.kind() == ErrorKind::Io && self.nsds.look_again() => request(),
            result => result,
        }
    }

    fn key(&self, layout: &ObjectLayout, block: BlockIndex, strip: StripIndex) -> StripKey {
        StripKey { fs: self.nsds.fs(), object: layout.object, block, strip }
    }

    /// Reads part of one strip and verifies it. `offset` and `out.len()` are in whole units. With
    /// an empty `out` it reads only the header. Bytes beyond the strip's end become zero.
    fn read_strip(
        &self,
        slot: SlotIndex,
        key: StripKey,
        version: Option<Version>,
        offset: usize,
        out: &mut [u8],
    ) -> std::result::Result<StripHeader, StripFault> {
        if !self.nsds.availability(slot).readable() {
            return Err(StripFault::Unreadable);
        }
        let request =
            NsdRequest::Read { key, version, offset: offset as u32, length: out.len() as u32 };
        let (header, strip_bytes, checksums, payload) =
            match self.nsds.call(slot, &request, &[], out) {
                Ok(NsdReply::Strip { header, strip_bytes, checksums, payload_bytes }) => {
                    (header, strip_bytes as usize, checksums, payload_bytes as usize)
                }
                Ok(_) => return Err(StripFault::Bad),
                Err(error) => return Err(self.read_fault(slot, &key, &error)),
            };
        // The reply must match the request. An NSD that lies counts as a bad strip and never causes
        // a panic.
        let right = version.is_none_or(|wanted| wanted == header.version)
            && payload == out.len().min(strip_bytes.saturating_sub(offset))
            && payload.is_multiple_of(UNIT_BYTES)
            && header.block_bytes > 0;
        let first_unit = (offset / UNIT_BYTES) as u32;
        if !right
            || first_bad_unit(&key, header.version, first_unit, &out[..payload], &checksums)
                .is_some()
        {
            self.nsds.count_bad_strip(slot, &key, "it does not match its checksums");
            return Err(StripFault::Bad);
        }
        out[payload..].fill(0);
        Ok(header)
    }

    fn read_fault(&self, slot: SlotIndex, key: &StripKey, error: &Error) -> StripFault {
        match error.kind() {
            ErrorKind::NotFound => StripFault::Absent,
            ErrorKind::Unreachable | ErrorKind::TimedOut => {
                self.nsds.fail(slot);
                StripFault::Unreadable
            }
            // It is this client, or its map, that is unfit.
            ErrorKind::Fenced | ErrorKind::OldMap => StripFault::Unreadable,
            _ => {
                self.nsds.count_bad_strip(slot, key, error.detail());
                StripFault::Bad
            }
        }
    }

    /// Makes everything accepted so far stable on every NSD that can be written, and tells the NSDs
    /// which stripes are settled. An NSD that fails is taken out of use.
    pub fn commit(&self, settled: &[SettledStripe]) -> Committed {
        let batch = self.nsds.missed().begin_commit();
        let (slots, away): (Vec<_>, Vec<_>) =
            self.nsds.slots().partition(|slot| self.nsds.availability(*slot).writable());
        let (unreached, refused) = (Mutex::new(away), Mutex::new(None));
        self.fan.run(slots.len(), &|at| {
            let slot = slots[at];
            let request = NsdRequest::Commit { settled: settled.to_vec() };
            let holdings = self.nsds.holdings().map(|it| (it, it.begin_commit()));
            let reply = self.nsds.call(slot, &request, &[], &mut []);
            match reply {
                Ok(NsdReply::Stable { boot, stable, space }) => {
                    if let Some((holdings, mark)) = holdings {
                        holdings.end_commit(slot, mark, space);
                    }
                    self.nsds.saw_stable(slot, boot, stable);
                }
                Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::OldMap) => {
                    unreached.lock().push(slot);
                    *refused.lock() = Some(error);
                }
                _ => {
                    self.nsds.fail(slot);
                    unreached.lock().push(slot);
                }
            }
        });
        let unreached = unreached.into_inner();
        let restarts = self.nsds.restarts();
        let lacking = self.nsds.missed().end_commit(batch, &unreached, restarts);
        Committed { unreached, lacking, refused: refused.into_inner() }
    }
}
