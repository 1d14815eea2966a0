//! What a daemon tells about its file system: the one record behind `fs`, `nsd` and `disk`
//! listings, and their `--json`.

use serde::{Deserialize, Serialize};
use strake_proto::layout::{NsdAvailability, NsdStatus};

/// A file system, its settings and disks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Show {
    /// Its name.
    pub(crate) name: String,
    /// The cluster's identity, in hexadecimal.
    pub(crate) cluster: String,
    /// Redundancy code of new files.
    pub(crate) code: String,
    /// Bytes of a block.
    pub(crate) block_size: u32,
    /// When it was made: seconds since 1970.
    pub(crate) created_seconds: i64,
    /// Where it is mounted.
    pub(crate) mount: String,
    /// Its data directory.
    pub(crate) data: String,
    /// The daemon's process.
    pub(crate) pid: u32,
    /// The host.
    pub(crate) node: String,
    /// The version of the form on disk.
    pub(crate) format_version: u32,
    /// The version of the running program.
    pub(crate) version: String,
    /// Usable bytes after the code's parity.
    pub(crate) usable_bytes: u64,
    /// Of these, free.
    pub(crate) free_bytes: u64,
    /// Inodes in use.
    pub(crate) inodes: u64,
    /// Effective settings by name.
    pub(crate) settings: Vec<(String, String)>,
    /// Disks in slot order.
    pub(crate) nsds: Vec<ShowNsd>,
}

/// One disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShowNsd {
    /// Its id.
    pub(crate) id: u32,
    /// Its name.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: String,
    /// Disks of one group fail together.
    pub(crate) failure_group: u32,
    /// Whether it holds a copy of the metadata.
    pub(crate) holds_metadata: bool,
    /// The administrator's will.
    pub(crate) status: NsdStatus,
    /// What is the case.
    pub(crate) availability: NsdAvailability,
    /// Bytes for strips; absent where it does not answer.
    pub(crate) total_bytes: Option<u64>,
    /// Of these, free.
    pub(crate) free_bytes: Option<u64>,
    /// Strips held.
    pub(crate) strips: Option<u64>,
    /// How often a bad strip was met since the start.
    pub(crate) bad_strips: u64,
    /// Strips rebuilt and rewritten since the start.
    pub(crate) repaired_strips: u64,
    /// While it is brought up to date: bytes of files compared so far.
    pub(crate) recovered_bytes: Option<u64>,
    /// Of so many.
    pub(crate) recovery_bytes: Option<u64>,
}

/// The status column of `mmlsdisk`.
pub(crate) fn status_name(status: NsdStatus) -> &'static str {
    match status {
        NsdStatus::Ready => "ready",
        NsdStatus::Suspended => "suspended",
        NsdStatus::BeingEmptied => "being emptied",
        NsdStatus::Replacing => "replacing",
        NsdStatus::Replacement => "replacement",
    }
}

/// The availability column of `mmlsdisk`.
pub(crate) fn availability_name(availability: NsdAvailability) -> &'static str {
    match availability {
        NsdAvailability::Up => "up",
        NsdAvailability::Down => "down",
        NsdAvailability::Recovering => "recovering",
        NsdAvailability::Unrecovered => "unrecovered",
    }
}

/// How far a scrub is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScrubReport {
    /// `never`, `running`, `complete` or `stopped`.
    pub(crate) state: String,
    /// When it began, in seconds since 1970.
    pub(crate) started_seconds: Option<i64>,
    /// When it ended.
    pub(crate) ended_seconds: Option<i64>,
    /// Bytes per second at most; 0 for no limit.
    pub(crate) rate: u64,
    /// Bytes of files looked at.
    pub(crate) done_bytes: u64,
    /// Bytes of files there were when it began.
    pub(crate) total_bytes: u64,
    /// Strips verified.
    pub(crate) strips: u64,
    /// Of these, bad or missing.
    pub(crate) bad_strips: u64,
    /// Blocks mended.
    pub(crate) mended_blocks: u64,
    /// Blocks that could not be mended.
    pub(crate) failed_blocks: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport {
    /// Inodes walked.
    pub(crate) inodes: u64,
    /// Directory entries walked.
    pub(crate) entries: u64,
    /// Files whose blocks were compared with what the disks list.
    pub(crate) files: u64,
    /// Their blocks.
    pub(crate) blocks: u64,
    /// The strips of these.
    pub(crate) block_strips: u64,
    /// Bytes that files have allocated, parity not counted.
    pub(crate) allocated_bytes: u64,
    /// Objects on the disks, each of which is a file's or on its way out.
    pub(crate) objects: u64,
    /// Strips on the disks looked at, those on their way out too.
    pub(crate) strips: u64,
    /// Range deletions that the disks remember.
    pub(crate) tombstones: u64,
    /// Bytes of the disks in use by strips; compared with their indexes.
    pub(crate) disk_bytes: u64,
    /// Bytes whose checksums were verified.
    pub(crate) bytes: u64,
    /// One sentence for each fault.
    pub(crate) faults: Vec<String>,
    /// What was looked at but is no fault, such as a missing disk.
    pub(crate) notes: Vec<String>,
}
