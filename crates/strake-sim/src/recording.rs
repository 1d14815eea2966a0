//! What is kept of a history: the logs of all disks in one order, and the place of each operation
//! in them.
//!
//! A recording that failed a check can be written to a file and read back. A seed alone is not
//! enough to repeat it: the stack's threads make two runs of a seed differ, unless they run under
//! the scheduler.

use crate::machine::Machine;
use crate::tree::{Contents, Times, Tree};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use strake_env::disk::sim::{Event, PowerCuts};
use strake_proto::Code;

/// What an operation made durable, if it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// Nothing that anybody was promised.
    Nothing,
    /// All names and attributes.
    Names,
    /// All names and attributes, and the contents of this inode.
    File(u64),
    /// Everything.
    All,
}

/// One operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// What it was, in words.
    pub what: String,
    /// The position before it.
    pub begin: u64,
    /// The position when it had returned.
    pub end: u64,
    /// What it made durable.
    pub sync: Sync,
    /// Whether the operation was a start of the stack.
    pub begins_life: bool,
    /// The NSDs that were away during the operation or had not been brought up to date: a mask of
    /// slots.
    pub away: u32,
    /// The names and attributes after the operation. A file stores them beside the mark.
    #[serde(skip)]
    pub tree: Arc<Tree>,
}

/// A history that was run.
pub struct Recording {
    /// The code of its file system.
    pub code: Code,
    /// Its seed.
    pub seed: u64,
    /// The log of each disk, with the disk's length. The witness's is the last.
    pub logs: Vec<(u64, Vec<(u64, Event)>)>,
    /// The operations, in order. The first is the format.
    pub marks: Vec<Mark>,
    /// What the files have held.
    pub contents: Contents,
    /// The times the inodes have had.
    pub times: Times,
}

impl Recording {
    /// Makes a recording of a machine's logs and of what happened on it.
    pub fn of(
        machine: &Machine,
        seed: u64,
        marks: Vec<Mark>,
        contents: Contents,
        times: Times,
    ) -> Recording {
        assert!(machine.disks.iter().all(Option::is_some), "histories have all their disks");
        let disks = machine.disks.iter().flatten().chain([&machine.witness]);
        let logs = disks.map(|disk| (strake_env::Disk::len(&**disk), disk.events())).collect();
        Recording { code: machine.code, seed, logs, marks, contents, times }
    }

    /// For each log, a walk over the power cuts that are possible in it. The witness's is the last.
    pub fn power_cuts(&self) -> Vec<PowerCuts> {
        self.logs.iter().map(|(length, log)| PowerCuts::of_log(*length, log.clone())).collect()
    }

    /// The positions at which the power can go: from the end of the format on.
    pub fn positions(&self) -> std::ops::RangeInclusive<u64> {
        let last = self.marks.last().map_or(0, |mark| mark.end);
        self.marks.first().map_or(0, |mark| mark.end)..=last
    }

    /// The same history on disks whose syncs do nothing. Such disks cannot keep what was promised.
    #[must_use]
    pub fn on_lying_disks(mut self) -> Recording {
        let made = *self.positions().start();
        for (_, log) in &mut self.logs {
            log.retain(|(at, event)| *at <= made || !matches!(event, Event::Sync));
        }
        self
    }

    /// Writes the recording to a file.
    ///
    /// # Errors
    /// The host's.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let logs = self
            .logs
            .iter()
            .map(|(length, log)| {
                let log = log.iter().map(|(at, event)| (*at, Stored::from(event))).collect();
                (*length, log)
            })
            .collect();
        let contents = self
            .contents
            .iter()
            .map(|(ino, states)| {
                let states = states.iter().map(|(op, bytes)| (*op, bytes.to_vec())).collect();
                (*ino, states)
            })
            .collect();
        let marks = self.marks.iter().map(|mark| (mark.clone(), Tree::clone(&mark.tree))).collect();
        let times = self.times.clone();
        let file = File { code: self.code, seed: self.seed, logs, marks, contents, times };
        let bytes = postcard::to_allocvec(&file).map_err(std::io::Error::other)?;
        std::fs::write(path, bytes)
    }

    /// Reads a recording from a file.
    ///
    /// # Errors
    /// The host's, and an error if the file is no recording.
    pub fn load(path: &Path) -> std::io::Result<Recording> {
        let bytes = std::fs::read(path)?;
        let file: File = postcard::from_bytes(&bytes).map_err(std::io::Error::other)?;
        let logs = file
            .logs
            .into_iter()
            .map(|(length, log)| {
                (length, log.into_iter().map(|(at, event)| (at, event.into())).collect())
            })
            .collect();
        let contents = file
            .contents
            .into_iter()
            .map(|(ino, states)| {
                let states = states.into_iter().map(|(op, bytes)| (op, Arc::new(bytes))).collect();
                (ino, states)
            })
            .collect();
        let marks = file
            .marks
            .into_iter()
            .map(|(mark, tree)| Mark { tree: Arc::new(tree), ..mark })
            .collect();
        let (code, seed, times) = (file.code, file.seed, file.times);
        Ok(Recording { code, seed, logs, marks, contents, times })
    }
}

/// Everything that one file has held, as a recording's file stores it.
type StoredStates = Vec<(usize, Vec<u8>)>;

/// A recording as its file stores it.
#[derive(Serialize, Deserialize)]
struct File {
    code: Code,
    seed: u64,
    logs: Vec<(u64, Vec<(u64, Stored)>)>,
    marks: Vec<(Mark, Tree)>,
    contents: Vec<(u64, StoredStates)>,
    times: Times,
}

/// An event as a recording's file stores it.
#[derive(Serialize, Deserialize)]
enum Stored {
    Write(u64, Vec<u8>),
    Sync,
    Discard(u64, u64),
}

impl From<&Event> for Stored {
    fn from(event: &Event) -> Stored {
        match event {
            Event::Write { offset, bytes } => Stored::Write(*offset, bytes.to_vec()),
            Event::Sync => Stored::Sync,
            Event::Discard { range } => Stored::Discard(range.start, range.end),
        }
    }
}

impl From<Stored> for Event {
    fn from(stored: Stored) -> Event {
        match stored {
            Stored::Write(offset, bytes) => Event::Write { offset, bytes: bytes.into() },
            Stored::Sync => Event::Sync,
            Stored::Discard(start, end) => Event::Discard { range: start..end },
        }
    }
}
