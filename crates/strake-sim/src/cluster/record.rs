//! What programs on the mounts did, in the order of moments that all of them share.
//!
//! A *moment* is a number that is drawn at each begin and end. So two operations of different
//! programs are in order, or at the same time, exactly as a clock on the wall would say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_env::simulation::{self, undisturbed};
use strake_env::sync::Mutex;
use strake_proto::{ClientId, ErrorKind};

/// A name in the one directory of the programs.
pub(crate) type Name = u8;
/// Who made a file: its permission bits. Every attempt to make one has other bits.
pub(crate) type Tag = u32;
/// One of the files that are written, and a unit of it.
pub(crate) type Unit = (usize, usize);
/// What a unit holds. Every write has another value.
pub(crate) type Value = u64;

/// One life of a mount: a killed or fenced one is followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life(pub(crate) u32);

/// What a program asked for, with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes a value into a unit.
    Write(Unit, Value),
    /// Has read a value from a unit.
    Read(Unit, Value),
    /// Makes a file exclusively. True if it was made, false if the name existed.
    Create(Name, Tag, bool),
    /// Looks where a name leads.
    Look(Name, Option<Tag>),
    /// Removes a name. False if it did not exist.
    Unlink(Name, bool),
    /// Renames. False if the first name did not exist.
    Rename(Name, Name, bool),
    /// Makes a file durable.
    SyncFile(usize),
    /// Makes everything durable.
    SyncAll,
}

impl Action {
    /// Whether it changes anything, if it succeeds.
    pub(crate) fn is_change(&self) -> bool {
        match self {
            Action::Write(..) => true,
            Action::Create(.., done) | Action::Unlink(_, done) | Action::Rename(.., done) => *done,
            _ => false,
        }
    }

    /// Whether a sync of `synced` covers it.
    fn is_covered_by(&self, synced: &Action) -> bool {
        match (synced, self) {
            (Action::SyncAll, _) => true,
            (Action::SyncFile(file), Action::Write((written, _), _)) => file == written,
            _ => false,
        }
    }
}

/// One operation of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) life: Life,
    /// The simulated time at its begin.
    pub(crate) time: Duration,
    pub(crate) begin: u64,
    /// `None` while nobody knows its outcome.
    pub(crate) end: Option<u64>,
    pub(crate) action: Action,
    /// The error that it failed with, if it did, and the moment at which its program heard of it.
    pub(crate) error: Option<(ErrorKind, u64)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) ops: Vec<Op>,
    /// The lives that lost what they had not made durable, and the moment from which on nothing of
    /// them changes anything: they are *buried*.
    pub(crate) deaths: BTreeMap<Life, Option<u64>>,
    /// The lives by the names that the file system gave them. One that tries again to mount has
    /// another name, and did nothing under the one before.
    clients: BTreeMap<ClientId, Life>,
    buried: BTreeSet<ClientId>,
    last: u64,
}

/// A record that programs write into.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Record>);

impl Recorder {
    /// Nothing runs meanwhile, so the lock is free, and a paused program never holds it.
    fn with<T>(&self, work: impl FnOnce(&mut Record) -> T) -> T {
        undisturbed(|| work(&mut self.0.lock()))
    }

    /// Another moment.
    pub(crate) fn moment(&self) -> u64 {
        self.with(Record::next)
    }

    /// An operation begins. Returns its number.
    pub(crate) fn begin(&self, life: Life, action: Action) -> usize {
        let time = simulation::now().unwrap_or_default();
        self.with(|record| {
            let begin = record.next();
            record.ops.push(Op { life, time, begin, end: None, action, error: None });
            record.ops.len() - 1
        })
    }

    /// It has ended with this outcome.
    pub(crate) fn end(&self, number: usize, action: Action) {
        self.with(|record| {
            let end = record.next();
            let op = &mut record.ops[number];
            (op.end, op.action) = (Some(end), action);
        });
    }

    /// It has failed, and may have been done.
    pub(crate) fn fail(&self, number: usize, error: ErrorKind) {
        self.with(|record| {
            let heard = record.next();
            record.ops[number].error = Some((error, heard));
        });
    }

    /// The file system knows a life by this name. If that is another name than before, the life
    /// tries again to mount, and is not the mount that is buried under the name before.
    pub(crate) fn named(&self, life: Life, client: ClientId) {
        self.with(|record| {
            record.deaths.remove(&life);
            record.clients.retain(|_, named| *named != life);
            record.clients.insert(client, life);
        });
    }

    /// A mount was killed.
    pub(crate) fn killed(&self, life: Life) {
        self.with(|record| {
            record.deaths.entry(life).or_default();
        });
    }

    /// What a dead mount left is put right, and it does nothing from now on.
    pub(crate) fn buried(&self, client: ClientId) {
        self.with(|record| {
            let ended = record.next();
            record.buried.insert(client);
            if let Some(life) = record.clients.get(&client) {
                record.deaths.entry(*life).or_default().get_or_insert(ended);
            }
        });
    }

    /// Whether a mount of this name is buried.
    pub(crate) fn is_buried(&self, client: ClientId) -> bool {
        self.with(|record| record.buried.contains(&client))
    }

    /// Everything so far.
    pub(crate) fn take(&self) -> Record {
        self.with(std::mem::take)
    }

    /// How many operations of a life have ended well since a moment, by what `counts` says.
    pub(crate) fn count(&self, life: Life, since: u64, counts: &dyn Fn(&Action) -> bool) -> usize {
        let is_meant = |op: &&Op| {
            op.life == life && op.begin > since && op.end.is_some() && counts(&op.action)
        };
        self.with(|record| record.ops.iter().filter(is_meant).count())
    }
}

impl Record {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether a change is certainly there for good: its mount answered it, and neither lost it nor
    /// died before it was durable.
    pub(crate) fn is_certain(&self, op: &Op) -> bool {
        let Some(end) = op.end else { return false };
        if self.loss_heard(op).is_some() {
            return false;
        }
        !self.deaths.contains_key(&op.life) || self.covering(op).any(|sync| sync.is_ok_after(end))
    }

    /// When the programs of a mount heard for the last time that it may have lost a change: a sync
    /// that covers the change has failed, before one had succeeded. What a sync did not make
    /// durable may be there still, and be lost later.
    pub(crate) fn loss_heard(&self, op: &Op) -> Option<u64> {
        let end = op.end?;
        let saved = self.covering(op).filter(|sync| sync.is_ok_after(end));
        let saved = saved.filter_map(|sync| sync.end).min().unwrap_or(u64::MAX);
        let failed = self.covering(op).filter(|sync| sync.begin < saved);
        failed.filter_map(|sync| sync.error).map(|(_, heard)| heard).filter(|at| *at > end).max()
    }

    /// The syncs of the same mount that cover a change.
    fn covering<'a>(&'a self, op: &'a Op) -> impl Iterator<Item = &'a Op> {
        self.ops.iter().filter(|sync| sync.life == op.life && op.action.is_covered_by(&sync.action))
    }
}

impl Op {
    /// Whether it began after a moment and succeeded.
    fn is_ok_after(&self, moment: u64) -> bool {
        self.begin > moment && self.end.is_some()
    }
}
