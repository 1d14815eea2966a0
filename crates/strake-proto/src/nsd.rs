//! Messages between a client and an NSD server.
//!
//! A message is a header (these types, postcard-encoded) and, for reads and writes, a bulk payload
//! that travels beside it unencoded. In one process the header is passed by reference and the
//! payload as a slice; nothing is encoded.
//!
//! Frame on a socket (little-endian), see `strake-env`'s `rpc` for the reader:
//!
//! ```text
//! 0   4  magic "SRPC"
//! 4   2  protocol version (PROTOCOL_VERSION)
//! 6   2  kind: 1 NSD request, 2 NSD reply, 3 metadata request, 4 metadata reply, 5 hello,
//!        6 request of a server to its client, 7 reply to it, 8 part of a conversation
//! 8   8  request number, echoed by the reply; each end numbers its own requests
//! 16  4  header length, at most MESSAGE_BYTES_MAX
//! 20  4  payload length, at most PAYLOAD_BYTES_MAX
//! 24  4  CRC32C of the header
//! 28  4  CRC32C of the payload
//! 32  4  0
//! 36  4  CRC32C of bytes 0..36
//! 40 16  authentication code (see `strake-env`'s `rpc`); 0 in a hello before the keys are agreed
//! 56  …  header, payload
//! ```

use crate::error::Result;
use crate::ids::{
    ClusterId, Epoch, FsId, MapVersion, NsdId, ObjectId, StripIndex, StripKey, Version,
};
use crate::units::BlockIndex;
use serde::{Deserialize, Serialize};

/// Changes whenever a message changes; both ends must agree.
pub const PROTOCOL_VERSION: u16 = 6;

/// What goes before every request on a wire: the asker's belief about the cluster. The NSD refuses
/// an older epoch ([`crate::ErrorKind::Fenced`]) and an older map ([`crate::ErrorKind::Stale`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdContext {
    /// The asker's membership.
    pub epoch: Epoch,
    /// The asker's pool map.
    pub map: MapVersion,
}

/// The fixed part of a stored strip, as written and as read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripHeader {
    /// The stripe's version; strips decode together only if it is equal.
    pub version: Version,
    /// Bytes of the whole block; strips decode together only if it is equal.
    pub block_bytes: u32,
    /// Positions of the stripe that were skipped because their NSD was not writable, as a bit mask.
    pub skipped: u32,
}

/// A request to an NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NsdRequest {
    /// Stores a strip in newly allocated space; replies [`NsdReply::Accepted`]. The payload is the
    /// strip, a multiple of 4 KiB. Refuses a version not above the one it has and not above a
    /// tombstone or promise that covers the key ([`crate::ErrorKind::Stale`]). The previous
    /// version is kept until the stripe is settled.
    Write {
        /// Where.
        key: StripKey,
        /// Version, block length, skipped positions.
        header: StripHeader,
        /// CRC32C of each 4 KiB, seeded with key and version (see `strake-stripe`).
        checksums: Vec<u32>,
        /// With true, an equal version already present is success (recovery copies a proven
        /// version: put-if-newer); with false it is refused.
        copy: bool,
        /// A version of the stripe, this one or an older, that the sender knows to be stable on
        /// every NSD but those noted as having missed writes; [`Version::NONE`] if it knows of
        /// none. If it is held, what is older is freed.
        stable: Version,
    },
    /// Stores a new version of a strip that differs from the one it has in some units only; replies
    /// [`NsdReply::Accepted`]. The payload is these units, in order. The strip keeps its length.
    /// Refuses ([`crate::ErrorKind::NotBase`]) unless the newest version it holds is `base`, whole
    /// and above every tombstone and promise that covers the key; refuses a version like `Write`.
    /// If the new version is held already, the patch has been done, and that is success. The base
    /// is kept until the stripe is settled.
    Patch {
        /// Where.
        key: StripKey,
        /// Version, block length (that of the base), skipped positions.
        header: StripHeader,
        /// The version that is patched. The sender knows that it is stable.
        base: Version,
        /// Units of the strip, ascending, each below the strip's length; none where only other
        /// positions of the stripe change.
        units: Vec<u32>,
        /// CRC32C of each of these units, seeded with key and the new version.
        checksums: Vec<u32>,
        /// As in `Write`.
        stable: Version,
    },
    /// Reads `payload_len` bytes from `offset` of the strip (both multiples of 4 KiB); replies
    /// [`NsdReply::Strip`] with the payload. Bytes beyond the strip's end are not sent.
    Read {
        /// Which.
        key: StripKey,
        /// `None` for the current version; else exactly this one, current or kept.
        version: Option<Version>,
        /// First byte within the strip, a multiple of 4 KiB.
        offset: u32,
        /// Bytes wanted, a multiple of 4 KiB; 0 asks for the header alone.
        length: u32,
    },
    /// Makes everything accepted before it stable, after noting which stripes are settled (stable
    /// on every NSD), whose kept previous versions may be freed. Replies [`NsdReply::Stable`].
    Commit {
        /// Settled stripes, at most 65,536.
        settled: Vec<SettledStripe>,
    },
    /// Leaves a tombstone of `version` over blocks `from..to` of an object and frees every strip
    /// in it of a lower version. Accepted like a write; stable after the next commit.
    DeleteRange {
        /// Which file system.
        fs: FsId,
        /// Which object.
        object: ObjectId,
        /// First block.
        from: BlockIndex,
        /// One past the last; [`BlockIndex::END`] for all.
        to: BlockIndex,
        /// Strips of lower versions are gone, and are refused from now on.
        version: Version,
    },
    /// Forgets tombstones of an object: every NSD of its layout has applied them, or the object id
    /// will never be used again.
    ForgetTombstones {
        /// Which file system.
        fs: FsId,
        /// Which object.
        object: ObjectId,
        /// Those up to this version.
        version: Version,
    },
    /// Promises never to accept version `version` of this stripe; replies [`NsdReply::Promise`].
    Refuse {
        /// The position asked.
        key: StripKey,
        /// The version that must not be accepted any more.
        version: Version,
    },
    /// Lists strips from a key on, in key order, at most `limit`; replies [`NsdReply::Strips`].
    List {
        /// Which file system.
        fs: FsId,
        /// First object.
        object: ObjectId,
        /// First block of that object.
        block: BlockIndex,
        /// First strip of that block.
        strip: StripIndex,
        /// Stop before this object (exclusive).
        until: ObjectId,
        /// At most this many; the server's own limit is 4,096.
        limit: u32,
    },
    /// Lists strips whose stripes were never settled, from a key on; for crash recovery.
    ListUnsettled {
        /// After this key; `None` for the first.
        after: Option<StripKey>,
        /// At most this many; the server's own limit is 4,096.
        limit: u32,
    },
    /// Asks for identity and space; replies [`NsdReply::Status`].
    Status,
    /// Verifies the index, the allocation and, with `data`, every byte; replies
    /// [`NsdReply::Checked`].
    Check {
        /// Whether strip data is read and its checksums verified.
        data: bool,
    },
    /// Verifies a part of what is not strips (superblock, log, pages of the index), past all
    /// caches, and mends what it can; replies [`NsdReply::Scrubbed`].
    Scrub {
        /// Which part; 0 for the first, then as the reply says.
        part: u64,
    },
    /// Writes an index with damaged pages anew, without what was on them. To be asked only of an
    /// NSD that the metadata calls unrecovered, durably: strips that it held are unknown to it
    /// then. It may refuse everything afterwards until it is opened again. Replies
    /// [`NsdReply::Done`].
    Salvage,
}

/// A stripe that is stable on every NSD that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledStripe {
    /// Which file system.
    pub fs: FsId,
    /// Which object.
    pub object: ObjectId,
    /// Which block.
    pub block: BlockIndex,
    /// The version that is stable; older kept ones may be freed.
    pub version: Version,
}

/// One strip in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripEntry {
    /// Its key.
    pub key: StripKey,
    /// Its current version and shape.
    pub header: StripHeader,
    /// Bytes of the strip on disk.
    pub strip_bytes: u32,
    /// Whether the stripe was settled at this version.
    pub settled: bool,
    /// Older versions that are kept, newest first; few.
    pub kept: Vec<KeptVersion>,
}

/// An older version of a strip that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptVersion {
    /// Version and shape.
    pub header: StripHeader,
    /// Whether the stripe was settled at this version.
    pub settled: bool,
}

/// A reply of an NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NsdReply {
    /// The write or deletion is held in memory and on disk space of its own, not yet stable.
    Accepted {
        /// If this changes between `Accepted` and `Stable`, resend what was only accepted.
        boot: u64,
    },
    /// All that was accepted before the commit is stable.
    Stable {
        /// See [`NsdReply::Accepted`].
        boot: u64,
        /// Changes that are stable now, counted from the first this NSD ever made: see
        /// [`NsdStatusReply::recovered`].
        stable: u64,
    },
    /// A strip's header and the checksums of the bytes in the payload.
    Strip {
        /// Version and shape.
        header: StripHeader,
        /// Bytes of the whole strip.
        strip_bytes: u32,
        /// One per 4 KiB of payload.
        checksums: Vec<u32>,
        /// Bytes of payload: less than asked at the strip's end.
        payload_bytes: u32,
    },
    /// The answer to `Refuse`.
    Promise {
        /// True: it was not and will not be accepted. False: it is held already.
        refused: bool,
    },
    /// Strips in key order.
    Strips {
        /// At most the limit asked.
        entries: Vec<StripEntry>,
        /// Whether there are more.
        more: bool,
    },
    /// Identity and space.
    Status(NsdStatusReply),
    /// What a check found.
    Checked(NsdCheckReply),
    /// Done.
    Done,
    /// What a scrub found in a part.
    Scrubbed(ScrubPart),
}

/// What a scrub found in a part of an NSD's own records, or of a copy of the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPart {
    /// The next part; `None` after the last.
    pub next: Option<u64>,
    /// Bytes read.
    pub bytes: u64,
    /// Pages that were damaged: of 4 KiB, or chunks of a log.
    pub bad: u64,
    /// Of these, mended.
    pub mended: u64,
    /// One sentence about what was damaged.
    pub fault: Option<String>,
    /// Whether the index has lost something: [`NsdRequest::Salvage`].
    pub is_lost: bool,
}

/// Identity and space of an NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdStatusReply {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub nsd: NsdId,
    /// Changes with every start of the server.
    pub boot: u64,
    /// Changes that it had when it was started, counted as in [`NsdReply::Stable`]. Fewer than it
    /// once called stable: it is an older copy of itself. 0: it cannot vouch for what it has.
    pub recovered: u64,
    /// Bytes that strips could take in all.
    pub total: u64,
    /// Of these, free, reserves taken off.
    pub free: u64,
    /// Strips held.
    pub strips: u64,
}

/// What a check of one NSD found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdCheckReply {
    /// Strips looked at.
    pub strips: u64,
    /// Of these, with a damaged record: lost here.
    pub damaged: u64,
    /// Tombstones looked at.
    pub tombstones: u64,
    /// Promises looked at.
    pub promises: u64,
    /// Bytes of space in use by strips; compared with what the records name.
    pub allocated: u64,
    /// Bytes whose checksums were verified.
    pub bytes: u64,
    /// One sentence for each fault; at most 1,000.
    pub faults: Vec<String>,
    /// Keys of strips whose data does not match its checksums; at most 1,000.
    pub bad: Vec<StripKey>,
}

/// A way to an NSD: a direct call in one process, or a session on a socket.
///
/// Calls may come from many threads at once and block until answered. Implementations bound the
/// wait (an unreachable or hanging NSD is [`crate::ErrorKind::Unreachable`] or
/// [`crate::ErrorKind::TimedOut`]) and name it among the waiters.
pub trait NsdPort: Send + Sync {
    /// Sends a request with `send` as payload (empty if none) and puts the reply's payload at the
    /// start of `receive` (which must be as long as the read asks for, else empty).
    ///
    /// # Errors
    /// As each request says; `Corrupt` never reaches the caller from here for payloads, whose
    /// checksums the caller verifies.
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply>;
}
