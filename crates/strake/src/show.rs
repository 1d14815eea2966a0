//! The records that a daemon answers with. [`Show`] is behind the listings of `fs`, `nsd` and
//! `disk`, and their `--json`; the others are for scrub, check and memory.

use serde::{Deserialize, Serialize};
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::{ByteCount, Code, NsdId, PoolMap, SlotIndex};
use strake_report::Table;
use strake_stripe::strips_at_most;

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
    /// Usable bytes after the code's parity. This and the next two are absent if they did not come
    /// in time and were never told.
    pub(crate) usable_bytes: Option<u64>,
    /// Of these, free.
    pub(crate) free_bytes: Option<u64>,
    /// Inodes in use.
    pub(crate) inodes: Option<u64>,
    /// Effective settings by name.
    pub(crate) settings: Vec<(String, String)>,
    /// Disks in slot order.
    pub(crate) nsds: Vec<ShowNsd>,
    /// What did not come in time.
    #[serde(default)]
    pub(crate) late: Vec<Late>,
}

/// A figure that did not come in time. The one that came last is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Late {
    /// The figure, as a part of a sentence.
    pub(crate) what: String,
    /// How old the figure is that is shown. Absent if none is.
    pub(crate) as_of_seconds: Option<u64>,
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
    /// Whether it holds a copy of the metadata; absent if that is not known.
    pub(crate) holds_metadata: Option<bool>,
    /// What the administrator wants of the disk.
    pub(crate) status: NsdStatus,
    /// What the disk can do now.
    pub(crate) availability: NsdAvailability,
    /// Bytes for strips; absent if the disk does not answer.
    pub(crate) total_bytes: Option<u64>,
    /// Of these, free.
    pub(crate) free_bytes: Option<u64>,
    /// Strips held.
    pub(crate) strips: Option<u64>,
    /// How often a bad strip was met since the start.
    pub(crate) bad_strips: u64,
    /// Strips rebuilt and rewritten since the start.
    pub(crate) repaired_strips: u64,
    /// Damaged pages of index, logs, superblock and metadata that scrubs have found since the
    /// start.
    #[serde(default)]
    pub(crate) bad_pages: u64,
    /// Of these, mended.
    #[serde(default)]
    pub(crate) mended_pages: u64,
    /// While the disk is brought up to date: bytes of files compared so far.
    pub(crate) recovered_bytes: Option<u64>,
    /// All bytes of files that are to be compared.
    pub(crate) recovery_bytes: Option<u64>,
    /// Why the disk is not used, if that is known.
    pub(crate) fault: Option<String>,
}

impl Show {
    /// A warning that names the missing disks, if more are missing than the code tolerates.
    pub(crate) fn warning(&self) -> Option<String> {
        let code: Code = self.code.parse().ok()?;
        let is_missing = |nsd: &&ShowNsd| {
            matches!(nsd.availability, NsdAvailability::Down | NsdAvailability::Unrecovered)
        };
        let missing: Vec<&ShowNsd> = self.nsds.iter().filter(is_missing).collect();
        let tolerated = usize::from(code.parity);
        if self.strips_missing(code) <= tolerated {
            return None;
        }
        let named = missing.iter().map(|nsd| format!("{} ({})", nsd.name, nsd.path));
        Some(format!(
            "warning: {} disks are missing and code {code} tolerates {tolerated}. Files with data \
             on too many of them give EIO; the rest can be read. Bring back {}. `strake disk \
             start` looks for a disk at once, and `strake fs check` names what cannot be read",
            missing.len(),
            named.collect::<Vec<_>>().join(", ")
        ))
    }

    /// The most strips of a stripe that can be on missing disks. The disks of one failure group
    /// have no more than placement gives a group.
    pub(crate) fn strips_missing(&self, code: Code) -> usize {
        let all = self.nsds.iter().map(|nsd| (NsdId(nsd.id), nsd.failure_group));
        let is_missing = |(_, nsd): &(SlotIndex, &ShowNsd)| {
            matches!(nsd.availability, NsdAvailability::Down | NsdAvailability::Unrecovered)
        };
        let missing = (0..).map(SlotIndex).zip(&self.nsds).filter(is_missing);
        let missing: Vec<SlotIndex> = missing.map(|(slot, _)| slot).collect();
        strips_at_most(&PoolMap::new(all), code, &missing)
    }

    /// A sentence about what did not come in time, if anything did not.
    pub(crate) fn lateness(&self) -> Option<String> {
        if self.late.is_empty() {
            return None;
        }
        let told = self.late.iter().map(|late| match late.as_of_seconds {
            Some(age) => format!("{} as of {age} s ago", late.what),
            None => format!("{}: not known", late.what),
        });
        Some(format!(
            "something does not answer, so not every figure is of now ({}). `strake diag waiters` \
             names what is held up",
            told.collect::<Vec<_>>().join("; ")
        ))
    }
}

/// The status column of `mmlsdisk`.
pub(crate) fn status_name(status: NsdStatus) -> &'static str {
    match status {
        NsdStatus::Ready => "ready",
        NsdStatus::Suspended => "suspended",
        NsdStatus::BeingEmptied => "being emptied",
        NsdStatus::Replacing => "replacing",
        NsdStatus::Replacement => "replacement",
        NsdStatus::Deleted { .. } => "deleted",
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

/// The findings of a check.
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
    /// Remarks that are no faults, such as a missing disk.
    pub(crate) notes: Vec<String>,
    /// The check was ended early, so it has not looked at everything.
    #[serde(default)]
    pub(crate) stopped: bool,
}

/// How far a check is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckStatus {
    /// A check is under way. If none is, nothing else here counts.
    pub(crate) running: bool,
    /// It is about to end early.
    pub(crate) ending: bool,
    /// What it does now, as a part of a sentence.
    pub(crate) stage: String,
    /// The number of this stage, from 1.
    pub(crate) step: u64,
    /// The number of stages.
    pub(crate) steps: u64,
    /// What it has looked at in this stage: strips or files. 0 where it is not counted.
    pub(crate) done: u64,
    /// About how much there is of it. 0 if that is not known.
    pub(crate) total: u64,
    /// How long the check has lasted.
    pub(crate) seconds: u64,
}

impl CheckStatus {
    /// As a sentence.
    pub(crate) fn sentence(&self) -> String {
        if !self.running {
            return "no check is under way".to_owned();
        }
        let of = match (self.done, self.total) {
            (0, _) => String::new(),
            (done, 0) => format!(", {done} so far"),
            (done, total) => format!(", {done} of about {total}"),
        };
        let CheckStatus { step, steps, stage, seconds, .. } = self;
        let ending = if self.ending { "; it ends early" } else { "" };
        format!("step {step} of {steps}: {stage}{of}; {seconds} s so far{ending}")
    }
}

/// A thread of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShowThread {
    pub(crate) name: String,
    /// The kernel's number of it.
    pub(crate) number: u32,
    /// Its time on processors.
    pub(crate) processor_ns: u64,
    /// The time in which it waited for a processor.
    pub(crate) queued_ns: u64,
    /// False if it has nothing to do.
    pub(crate) is_busy: bool,
    /// Its present work, as people read it.
    pub(crate) does: String,
}

impl ShowThread {
    /// All threads as a table.
    pub(crate) fn table(all: &[ShowThread]) -> Table {
        let seconds = |nanos: u64| format!("{:.2}", nanos as f64 / 1e9);
        let mut table = Table::new(&["thread", "number", "cpu s", "queued s", "does"], &[0, 4]);
        for it in all {
            let (cpu, queued) = (seconds(it.processor_ns), seconds(it.queued_ns));
            table.row(vec![it.name.clone(), it.number.to_string(), cpu, queued, it.does.clone()]);
        }
        table
    }
}

/// A setting as the daemon uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InForce {
    pub(crate) name: String,
    /// The value that was set, if one was.
    pub(crate) set: Option<String>,
    pub(crate) default: String,
    /// The value in use.
    pub(crate) used: String,
    /// From what it is derived.
    pub(crate) why: String,
}

impl InForce {
    /// All settings as a table.
    pub(crate) fn table(all: &[InForce]) -> Table {
        let mut table = Table::listing(&["setting", "value", "why"]);
        for InForce { name, used, why, .. } in all {
            table.row(vec![name.clone(), used.clone(), why.clone()]);
        }
        table
    }
}

/// What the daemon's process holds in memory. With `rpc=socket` the server process does not count
/// here.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShowMemory {
    /// Bytes in memory, the program itself among them.
    pub(crate) resident_bytes: u64,
    /// Bytes that the page pool may take (setting `pagepool`).
    pub(crate) pool_budget_bytes: u64,
    /// Of these, holding file data.
    pub(crate) pool_used_bytes: u64,
    /// Of the budget, buffers kept for the next data.
    pub(crate) pool_spare_bytes: u64,
    /// Of the budget, left unused because the rest of the process takes more than its part.
    pub(crate) pool_withheld_bytes: u64,
    /// Bytes of file data that are not on disk yet.
    pub(crate) pool_dirty_bytes: u64,
    /// How fast the machine gave fresh memory the last time; 0 if none was touched ahead yet.
    pub(crate) first_touch_bytes_per_second: u64,
    /// Inodes in use: known to the kernel, open, or with something to commit.
    pub(crate) inodes: u64,
    /// Of these, with something to commit.
    pub(crate) dirty_inodes: u64,
    /// Open files and directories.
    pub(crate) handles: u64,
}

impl ShowMemory {
    /// As a table.
    pub(crate) fn table(&self) -> Table {
        let size = |bytes: u64| ByteCount(bytes).to_string();
        let mut table = Table::listing(&["what", "value", "description"]);
        let mut row = |what: &str, value: String, description: &str| {
            table.row(vec![what.to_owned(), value, description.to_owned()]);
        };
        row("resident", size(self.resident_bytes), "Memory of the daemon's process");
        row("pagepool", size(self.pool_budget_bytes), "The most that file data may take of it");
        row("used", size(self.pool_used_bytes), "File data held");
        row("spare", size(self.pool_spare_bytes), "Buffers kept for the next file data");
        let withheld = "Left out of the page pool, because the rest of the process takes too much";
        row("withheld", size(self.pool_withheld_bytes), withheld);
        row("dirty", size(self.pool_dirty_bytes), "File data that is not on disk yet");
        if self.first_touch_bytes_per_second > 0 {
            let speed = format!("{}/s", size(self.first_touch_bytes_per_second));
            row("first touch", speed, "How fast this machine gives fresh memory");
        }
        row("inodes", self.inodes.to_string(), "Inodes in use");
        row("changed", self.dirty_inodes.to_string(), "Inodes with something to commit");
        row("handles", self.handles.to_string(), "Open files and directories");
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn more_missing_disks_than_tolerated_are_named_and_fewer_are_not() {
        let show = |missing: u32, group: u32| -> Show {
            let nsd = |id: u32, availability: NsdAvailability| {
                json!({ "id": id, "name": format!("nsd{id}"), "path": format!("/srv/nsd{id}"),
                        "failureGroup": (id - 1) / group, "holdsMetadata": false,
                        "status": NsdStatus::Ready, "availability": availability, "badStrips": 0,
                        "repairedStrips": 0 })
            };
            let is = |id| match id <= missing {
                true if id == 1 => NsdAvailability::Unrecovered,
                true => NsdAvailability::Down,
                false => NsdAvailability::Up,
            };
            let nsds: Vec<_> = (1..=9).map(|id| nsd(id, is(id))).collect();
            let value = json!({ "name": "a", "cluster": "", "code": "4+2p", "blockSize": 0,
                "createdSeconds": 0, "mount": "", "data": "", "pid": 0, "node": "",
                "formatVersion": 1, "version": "", "usableBytes": 0, "freeBytes": 0, "inodes": 0,
                "settings": [], "nsds": nsds });
            serde_json::from_value(value).expect("a show")
        };
        assert_eq!(show(2, 1).warning(), None);
        assert_eq!(show(3, 3).warning(), None, "no stripe has more than two strips in a group");
        assert!(show(4, 3).warning().is_some(), "one of another group");
        let warning = show(3, 1).warning().expect("too many");
        for word in ["3 disks", "4+2p tolerates 2", "nsd1 (/srv/nsd1)", "nsd2", "nsd3", "EIO"] {
            assert!(warning.contains(word), "{warning}");
        }
        assert!(!warning.contains("nsd4"));
    }
}
