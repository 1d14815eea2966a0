//! Messages between a client and an NSD server.
//!
//! A message has a header: one of these types, in postcard's encoding. Reads and writes also have a
//! bulk payload, which travels beside the header unencoded. Inside one process the header is passed
//! by reference and the payload as a slice, and nothing is encoded.
//!
//! The frame of a message on a socket, little-endian (`strake-net` reads it):
//!
//! ```text
//! 0   4  magic "SRPC"
//! 4   2  protocol version: in a hello the newest that the sender speaks, else the connection's,
//!        which is the lower one of those in the hellos (`crate::feature`)
//! 6   2  kind: 1 NSD request, 2 NSD reply, 3 metadata request, 4 metadata reply, 5 hello,
//!        6 request of a server to its client, 7 reply to it, 8 part of a conversation,
//!        9 request of a node to another, 10 reply to it, 11 ping (empty), 12 its answer (the
//!        packets that the server has sent to that node, and those sent again: 8 bytes each)
//! 8   8  request number, echoed by the reply; each end numbers its own requests
//! 16  4  header length, at most MESSAGE_BYTES_MAX
//! 20  4  payload length, at most PAYLOAD_BYTES_MAX
//! 24  4  CRC32C of the header
//! 28  4  CRC32C of the payload
//! 32  4  0
//! 36  4  CRC32C of bytes 0..36
//! 40 16  authentication code (see `strake-net`); 0 in a hello before the keys are agreed
//! 56  …  header, payload
//! ```

use crate::error::Result;
use crate::ids::{
    ClientId, ClusterId, Epoch, FsId, MapVersion, NsdId, ObjectId, StripIndex, StripKey, Term,
    Version,
};
use crate::limits::UNIT_BYTES;
use crate::units::BlockIndex;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The newest protocol version that this program speaks. It rises when there is a new message; what
/// is older stays as it is ([`crate::feature`]).
pub const PROTOCOL_VERSION: u16 = 14;

/// The sender of a request, and its view of the cluster. It goes before every request on a wire. A
/// server under a manager judges it (R2, R9; decision 0034); a server of one process does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdContext {
    /// The client, or [`ClientId::MANAGER`].
    pub client: ClientId,
    /// The client's membership; 0 for the manager. A client that is not on the server's list is
    /// refused ([`crate::ErrorKind::Fenced`]).
    pub epoch: Epoch,
    /// The newest term that the sender knows. A manager of an older term is refused (`Fenced`). A
    /// client of an older term is not: what it holds stays usable while it turns to the new leader.
    pub term: Term,
    /// The version of the sender's pool map. A map below the server's floor is refused
    /// ([`crate::ErrorKind::OldMap`]).
    pub map: MapVersion,
}

/// The fixed part of a stored strip, as written and as read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripHeader {
    /// The stripe's version. Strips decode together only if it is equal.
    pub version: Version,
    /// Bytes of the whole block. Strips decode together only if it is equal.
    pub block_bytes: u32,
    /// Positions of the stripe that may lack this version: a mask. A writer names the positions
    /// that it left out because their NSD was not writable. When the stripe is settled, the mask
    /// of [`SettledStripe::lacks`] takes its place.
    pub lacks: u32,
}

/// A request to an NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NsdRequest {
    /// Stores a strip in newly allocated space; replies [`NsdReply::Accepted`]. The payload is the
    /// strip, a multiple of 4 KiB. The version must be above the one that is stored, and above
    /// every tombstone and promise that covers the key; otherwise the NSD refuses it
    /// ([`crate::ErrorKind::Stale`]). The previous version is kept until the stripe is settled.
    Write {
        /// The strip.
        key: StripKey,
        /// Version, block length, positions left out.
        header: StripHeader,
        /// CRC32C of each 4 KiB, seeded with key and version (see `strake-stripe`).
        checksums: Vec<u32>,
        /// If true, an equal version that is stored already is success, because recovery copies
        /// versions that exist elsewhere. If false, it is refused.
        copy: bool,
        /// A version of the stripe, this one or an older one. The sender knows that it is stable on
        /// every NSD but those that are noted as having missed writes. [`Version::NONE`] if the
        /// sender knows no such version. An NSD that holds the version frees older ones.
        stable: Version,
    },
    /// Stores a new version of a strip that differs from the one it has in some units only; replies
    /// [`NsdReply::Accepted`]. The payload is these units, in order. The strip keeps its length.
    /// Refuses ([`crate::ErrorKind::NotBase`]) unless the newest version it holds is `base`, whole
    /// and above every tombstone and promise that covers the key; refuses a version like `Write`.
    /// If the new version is held already, the patch has been done, and that is success. The base
    /// is kept until the stripe is settled.
    Patch {
        /// The strip.
        key: StripKey,
        /// Version, block length (that of the base), positions left out.
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
        /// The strip.
        key: StripKey,
        /// `None` asks for the current version. Otherwise exactly this version is read, current or
        /// kept.
        version: Option<Version>,
        /// First byte within the strip, a multiple of 4 KiB.
        offset: u32,
        /// How many bytes are wanted, a multiple of 4 KiB. 0 asks for the header alone.
        length: u32,
    },
    /// Makes everything stable that was accepted before it; replies [`NsdReply::Stable`]. First the
    /// NSD notes which stripes are settled. Their previous versions may be freed.
    Commit {
        /// Settled stripes, at most 65,536.
        settled: Vec<SettledStripe>,
    },
    /// Leaves a tombstone of `version` over blocks `from..to` of an object, and frees every strip
    /// of a lower version there. It is accepted like a write, and stable after the next commit.
    DeleteRange {
        /// The file system.
        fs: FsId,
        /// The object.
        object: ObjectId,
        /// First block.
        from: BlockIndex,
        /// One past the last; [`BlockIndex::END`] for all.
        to: BlockIndex,
        /// The tombstone's version. Strips of lower versions are gone, and are refused from now on.
        version: Version,
    },
    /// Forgets tombstones of an object. Every NSD of its layout has applied them, or the object's
    /// id will never be used again.
    ForgetTombstones {
        /// The file system.
        fs: FsId,
        /// The object.
        object: ObjectId,
        /// Tombstones up to this version are forgotten.
        version: Version,
    },
    /// Asks for a promise never to accept version `version` of this stripe; replies
    /// [`NsdReply::Promise`].
    Refuse {
        /// The position that is asked.
        key: StripKey,
        /// The version that must not be accepted any more.
        version: Version,
    },
    /// Lists strips from a key on, in key order, at most `limit`; replies [`NsdReply::Strips`].
    List {
        /// The file system.
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
        /// True to read the strips and verify their checksums, too.
        data: bool,
    },
    /// Verifies a part of the NSD's own records (superblock, log, pages of the index), past all
    /// caches, and mends what it can; replies [`NsdReply::Scrubbed`]. The parts of a copy of a
    /// cluster's metadata that is on the NSD come after them.
    Scrub {
        /// The part: 0 for the first, then as the reply says.
        part: u64,
    },
    /// Writes an index with damaged pages anew, without what was on them; replies
    /// [`NsdReply::Done`]. Afterwards the NSD may not know all strips that it holds. So the
    /// metadata must durably call it unrecovered before. The NSD may refuse everything until it is
    /// opened again.
    Salvage,
    /// Asks who may use the NSD; replies [`NsdReply::Admission`]. Anybody may ask, and the NSD
    /// answers without a lease too. An NSD that serves one process has no manager, and refuses this
    /// and the next four requests ([`crate::ErrorKind::NotSupported`]).
    Admission,
    /// The manager's: lets the NSD serve; replies [`NsdReply::Admission`]. Without a lease the NSD
    /// serves nobody: no reads either ([`crate::ErrorKind::Unreachable`]). A newer term ends the
    /// older one, durably, before the reply.
    Lease {
        /// The server's life that this is for, as [`AdmissionReply::boot`] has it. Another life
        /// refuses it ([`crate::ErrorKind::Stale`]).
        boot: u64,
        /// The lease's end, on the clock of [`AdmissionReply::clock`]. So it does not matter how
        /// long the request is under way. Within one term it never moves back.
        until: Duration,
        /// As in `RaiseFloor`.
        floor: MapVersion,
        /// Takes the place of the server's list. `None` renews the lease and keeps the list; the
        /// server must then have a list of this term and this life.
        list: Option<AllowList>,
    },
    /// The manager's: adds a client to the list; replies [`NsdReply::Admission`]. The server must
    /// have a list of this term.
    Allow {
        /// See [`AllowList::number`].
        number: u64,
        /// The client.
        client: ClientId,
        /// Its membership.
        epoch: Epoch,
    },
    /// The manager's: takes a client off the list; replies [`NsdReply::Admission`] when every
    /// earlier request of that client has ended. From then on nothing of it is published. If the
    /// requests take too long ([`crate::ErrorKind::TimedOut`]), the client is off the list all the
    /// same, and the manager asks again.
    Fence {
        /// See [`AllowList::number`].
        number: u64,
        /// The client.
        client: ClientId,
        /// Its membership.
        epoch: Epoch,
    },
    /// The manager's: refuses everything that is sent under a map older than `floor`; replies
    /// [`NsdReply::Admission`] when every earlier request under such a map has ended. From then on
    /// nothing of these is published. Times out like `Fence`.
    RaiseFloor {
        /// The lowest map version that the server accepts from now on, if it is not higher already.
        floor: MapVersion,
    },
    /// Lists strips that some of these positions may lack, from a key on ([`StripHeader::lacks`],
    /// of any version held); replies [`NsdReply::Lacking`]. Fails ([`crate::ErrorKind::Corrupt`])
    /// at a strip whose record is damaged, because nobody knows then who lacks it.
    ListLacking {
        /// The positions: a mask. A strip is listed if any of these may lack it.
        positions: u32,
        /// After this key; `None` for the first.
        after: Option<StripKey>,
        /// At most this many; the server's own limit is 4,096.
        limit: u32,
    },
    /// Sets what the NSD grants to the sender (R29; decision 0038); replies
    /// [`NsdReply::Granted`]. All sizes are bytes of this NSD. Never fails for want of space: the
    /// reply may grant less.
    GrantSpace(SpaceAsk),
    /// Verifies a part of what `Check` does, so that no call is long and a check can end early;
    /// replies [`NsdReply::CheckedPart`].
    CheckPart {
        /// As in `Check`.
        data: bool,
        /// Empty for the first part, then as the reply says.
        from: Vec<u8>,
    },
    /// Puts right a version of a strip that the NSD holds, if it is bad on its disk; replies
    /// [`NsdReply::Accepted`]. The payload is the whole strip. The NSD looks for itself. If what it
    /// has is good, nothing is changed, and that is success. If it does not hold the version, or
    /// knows other checksums for it, it refuses ([`crate::ErrorKind::Stale`]). So this needs no
    /// token: which versions the NSD holds, and with which bytes, stays as it was.
    Mend {
        /// The strip.
        key: StripKey,
        /// The version, current or kept.
        version: Version,
        /// CRC32C of each 4 KiB, seeded with key and version.
        checksums: Vec<u32>,
    },
    /// Makes several changes of ranges in their order, each as [`NsdRequest::DeleteRange`] and
    /// [`NsdRequest::ForgetTombstones`] do; replies [`NsdReply::Changed`]. It ends early if the
    /// changes turn out to be long, and before one that fails. If the first one fails, the reply is
    /// its error.
    ChangeRanges {
        /// The file system.
        fs: FsId,
        /// At most [`RANGES_MAX`].
        changes: Vec<RangeChange>,
    },
    /// Stores several small strips, each as [`NsdRequest::Write`] does; replies
    /// [`NsdReply::Accepted`] if all of them are accepted. After an error some of them may be. The
    /// payload is the strips, one after the other.
    WriteMany {
        /// At least one and at most [`STRIPS_MAX`].
        strips: Vec<SmallStrip>,
        /// As in `Write`, for all of them.
        copy: bool,
    },
}

/// The most strips in one [`NsdRequest::WriteMany`].
pub const STRIPS_MAX: usize = 64;
/// The longest strip in an [`NsdRequest::WriteMany`], in units.
pub const SMALL_STRIP_UNITS_MAX: usize = 16;

/// A strip that is written with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallStrip {
    /// The strip.
    pub key: StripKey,
    /// Version, block length, positions left out.
    pub header: StripHeader,
    /// CRC32C of each 4 KiB, as in [`NsdRequest::Write`]. They say how long the strip is.
    pub checksums: Vec<u32>,
    /// As in [`NsdRequest::Write`].
    pub stable: Version,
}

impl SmallStrip {
    /// The strip's length.
    pub fn bytes(&self) -> usize {
        self.checksums.len() * UNIT_BYTES
    }

    /// The request that writes this strip alone.
    pub fn alone(&self, copy: bool) -> NsdRequest {
        let SmallStrip { key, header, checksums, stable } = self.clone();
        NsdRequest::Write { key, header, checksums, copy, stable }
    }
}

/// The most changes in one [`NsdRequest::ChangeRanges`].
pub const RANGES_MAX: usize = 64;

/// A change of a range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeChange {
    /// As [`NsdRequest::DeleteRange`].
    Delete {
        /// The object.
        object: ObjectId,
        /// First block.
        from: BlockIndex,
        /// One past the last; [`BlockIndex::END`] for all.
        to: BlockIndex,
        /// The tombstone's version.
        version: Version,
    },
    /// As [`NsdRequest::ForgetTombstones`].
    Forget {
        /// The object.
        object: ObjectId,
        /// Tombstones up to this version are forgotten.
        version: Version,
    },
}

impl RangeChange {
    /// The request that makes this change alone.
    pub fn alone(self, fs: FsId) -> NsdRequest {
        match self {
            RangeChange::Delete { object, from, to, version } => {
                NsdRequest::DeleteRange { fs, object, from, to, version }
            }
            RangeChange::Forget { object, version } => {
                NsdRequest::ForgetTombstones { fs, object, version }
            }
        }
    }
}

/// What a client asks of an NSD's space. The NSD takes the last one as what the client says now, so
/// asking for less gives the rest back, and asking for nothing at all gives everything back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceAsk {
    /// Rises with each ask of a client. An ask with a lower number than the last one, or the same,
    /// changes nothing: it was overtaken.
    pub number: u64,
    /// Space that the client must be able to have again and again, to write anew what is stored.
    /// Nobody else gets it while the client lives. It is part of `need`.
    pub floor: u64,
    /// Space for all that the client has accepted from applications and not sent, and `floor`.
    pub need: u64,
    /// How much more the client would use. The NSD grants a part of it, which is small when little
    /// is free.
    pub ahead: u64,
}

/// The space that an NSD grants to a client, in bytes of this NSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceGrant {
    /// What the client may write from now on. Each write takes off what it stores.
    pub granted: u64,
    /// The NSD tops `granted` up to this when it answers a commit, while it has enough.
    pub target: u64,
    /// Less than one part in eight is free: the client gives back what it does not need.
    pub is_short: bool,
    /// What other clients hold beyond the needs that they told last. They may give it back soon.
    pub elsewhere: u64,
}

/// The clients that may use an NSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowList {
    /// The manager numbers its lists, additions and fences for one server, upwards in its term. A
    /// list or addition with a lower number than the last is refused
    /// ([`crate::ErrorKind::Stale`]), so one that is late brings no fenced client back. The same
    /// number again is the same message.
    pub number: u64,
    /// At most 65,536.
    pub clients: Vec<(ClientId, Epoch)>,
}

/// A stripe that is stable on every NSD that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledStripe {
    /// The file system.
    pub fs: FsId,
    /// The object.
    pub object: ObjectId,
    /// The block.
    pub block: BlockIndex,
    /// The stable version. Older ones that are kept may be freed.
    pub version: Version,
    /// Positions of the stripe that may lack this version: a mask. It names every position on which
    /// the version was not stable, and every position whose NSD was down in the map, whatever that
    /// NSD had accepted (R1). NSDs keep it in [`StripHeader::lacks`].
    pub lacks: u32,
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
    /// True if the stripe was settled at this version.
    pub settled: bool,
    /// The few older versions that are kept, newest first.
    pub kept: Vec<KeptVersion>,
}

/// An older version of a strip that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptVersion {
    /// Version and shape.
    pub header: StripHeader,
    /// True if the stripe was settled at this version.
    pub settled: bool,
}

/// A reply of an NSD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NsdReply {
    /// The write or deletion is accepted and not yet stable.
    Accepted {
        /// The NSD's boot number. If it differs in the next `Stable`, the client must send again
        /// what was only accepted.
        boot: u64,
    },
    /// Everything that was accepted before the commit is stable.
    Stable {
        /// See [`NsdReply::Accepted`].
        boot: u64,
        /// How many changes are stable now, counted from the first that this NSD ever made. See
        /// [`NsdStatusReply::recovered`].
        stable: u64,
        /// What is granted to the sender after the commit. All 0 for a client that never asked.
        space: SpaceGrant,
    },
    /// A strip's header and the checksums of the bytes in the payload.
    Strip {
        /// Version and shape.
        header: StripHeader,
        /// Bytes of the whole strip.
        strip_bytes: u32,
        /// One per 4 KiB of payload.
        checksums: Vec<u32>,
        /// Bytes of payload. At the strip's end they are fewer than asked for.
        payload_bytes: u32,
    },
    /// The answer to `Refuse`.
    Promise {
        /// True if the version was not accepted and never will be. False if it is held already.
        refused: bool,
    },
    /// Strips in key order.
    Strips {
        /// At most the limit asked.
        entries: Vec<StripEntry>,
        /// True if there are more.
        more: bool,
    },
    /// Identity and space.
    Status(NsdStatusReply),
    /// The findings of a check.
    Checked(NsdCheckReply),
    /// Done.
    Done,
    /// The findings of a scrub in one part.
    Scrubbed(ScrubPart),
    /// Who may use the NSD.
    Admission(AdmissionReply),
    /// Strips that some positions may lack, in key order.
    Lacking {
        /// At most the limit asked. There may be none although there is more.
        entries: Vec<StripEntry>,
        /// The listing goes on after this key; `None` at the end.
        next: Option<StripKey>,
    },
    /// What is granted to the sender now.
    Granted {
        /// See [`NsdReply::Accepted`].
        boot: u64,
        /// The grant.
        space: SpaceGrant,
    },
    /// The findings of a part of a check.
    CheckedPart {
        /// Of this part alone.
        found: NsdCheckReply,
        /// Where the next part begins; `None` after the last.
        next: Option<Vec<u8>>,
    },
    /// Changes of ranges are accepted and not yet stable.
    Changed {
        /// See [`NsdReply::Accepted`].
        boot: u64,
        /// The number of changes that were made, from the first one on. It is at least 1.
        done: u32,
    },
}

/// Who may use an NSD under a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionReply {
    /// Changes with every start of the server.
    pub boot: u64,
    /// The server's clock when it replied. It never goes back within one life of the server.
    pub clock: Duration,
    /// The lease's end on that clock; `None` if there was none in this life.
    pub until: Option<Duration>,
    /// The highest term that the server was told of. It is durable.
    pub term: Term,
    /// The lowest map version that the server accepts.
    pub floor: MapVersion,
    /// The number of the last list, addition or fence of this term; see [`AllowList::number`].
    pub number: u64,
}

/// The findings of a scrub in a part of an NSD's own records, or of a copy of the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPart {
    /// The next part; `None` after the last.
    pub next: Option<u64>,
    /// Bytes read.
    pub bytes: u64,
    /// The number of damaged pages: pages of 4 KiB, or chunks of a log.
    pub bad: u64,
    /// Of these, mended.
    pub mended: u64,
    /// One sentence about the damage.
    pub fault: Option<String>,
    /// True if the index has lost something; see [`NsdRequest::Salvage`].
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
    /// How many changes it had when it was started, counted as in [`NsdReply::Stable`]. If they are
    /// fewer than it once reported as stable, it is an older copy of itself. If they are 0, the NSD
    /// does not know whether it has everything.
    pub recovered: u64,
    /// How many bytes strips can take in all.
    pub total: u64,
    /// Of these, the free ones, without reserves. What is granted to clients counts as free.
    pub free: u64,
    /// Strips held.
    pub strips: u64,
}

/// The findings of a check of one NSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsdCheckReply {
    /// Strips looked at.
    pub strips: u64,
    /// Of these, the strips with a damaged record. They are lost on this NSD.
    pub damaged: u64,
    /// Tombstones looked at.
    pub tombstones: u64,
    /// Promises looked at.
    pub promises: u64,
    /// Bytes of space in use by strips. The check compares them with what the records name.
    pub allocated: u64,
    /// Bytes whose checksums were verified.
    pub bytes: u64,
    /// One sentence for each fault; at most 1,000.
    pub faults: Vec<String>,
    /// Keys of strips whose data does not match its checksums; at most 1,000.
    pub bad: Vec<StripKey>,
}

impl NsdCheckReply {
    /// At most this many faults and bad strips are reported.
    pub const FAULTS_MAX: usize = 1000;

    /// Adds the findings of a further part.
    pub fn add(&mut self, part: NsdCheckReply) {
        self.strips += part.strips;
        self.damaged += part.damaged;
        self.tombstones += part.tombstones;
        self.promises += part.promises;
        self.allocated += part.allocated;
        self.bytes += part.bytes;
        self.faults.extend(part.faults);
        self.faults.truncate(Self::FAULTS_MAX);
        self.bad.extend(part.bad);
        self.bad.truncate(Self::FAULTS_MAX);
    }
}

/// A way to an NSD: a direct call in one process, or a session on a socket.
///
/// Calls may come from many threads at once, and block until they are answered. Implementations
/// limit the wait and name it among the waiters. A call to an NSD that cannot be reached or hangs
/// fails with [`crate::ErrorKind::Unreachable`] or [`crate::ErrorKind::TimedOut`].
pub trait NsdPort: Send + Sync {
    /// Sends a request with the payload `send`, which is empty if there is none. Puts the reply's
    /// payload at the start of `receive`, which must be as long as a read asks for, else empty.
    ///
    /// # Errors
    /// [`NsdRequest`] lists them for each request. The caller verifies the checksums of a payload,
    /// so a damaged payload is no error here.
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply>;

    /// The NSD is out of use: its calls that are under way end with `Unreachable`, since its server
    /// may stand still and never answer (R3). Later calls are made as ever. Calls that end by
    /// themselves, such as those of an NSD in the same process, need nothing of this.
    fn abandon(&self) {}
}
