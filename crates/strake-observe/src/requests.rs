//! What programs asked for, added up by process and file: how many requests of which kind, how long
//! they took, what they waited for, and how programs write. It is always on. The recorder takes it
//! away every few seconds and begins anew ([`Requests::drain`]).
//!
//! Each thread adds to one of a few tables, so threads seldom meet. A table has room for
//! [`KEYS_MAX`] processes and files; what comes when it is full counts for nobody in particular.

use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use strake_env::answering::Waits;
use strake_env::sync::Mutex;

/// The number of tables.
const TABLES: usize = 16;
/// Each table has room for so many processes and files.
const KEYS_MAX: usize = 512;
/// So many processes are remembered by name.
const NAMES_MAX: usize = 1024;
/// A write that begins within a file and has fewer bytes than this is small.
const SMALL_BYTES: u64 = 4096;
/// A write that does not begin at a multiple of this is not aligned.
const UNIT_BYTES: u64 = 4096;
/// A longer write is not hurt by being unaligned.
const UNALIGNED_BYTES_MAX: u64 = 8192;

/// What follows a write of so many bytes is the rest of that write.
const LARGE_BYTES: u64 = 64 << 10;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Contents are read.
    Read,
    /// Contents are written.
    Write,
    /// What was written is made durable: fsync, or a write of a file that was opened with O_SYNC.
    Sync,
    /// Names and attributes: everything else.
    Names,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [RequestKind; 4] =
        [RequestKind::Read, RequestKind::Write, RequestKind::Sync, RequestKind::Names];

    /// The word for requests of this kind.
    pub fn word(self) -> &'static str {
        match self {
            RequestKind::Read => "reads",
            RequestKind::Write => "writes",
            RequestKind::Sync => "syncs",
            RequestKind::Names => "requests about names and attributes",
        }
    }
}

/// One request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The process that made it.
    pub process: u32,
    /// The file or directory that it names.
    pub inode: u64,
    /// Its kind.
    pub kind: RequestKind,
    /// Where it begins in the file, if it is a write.
    pub offset: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// Whether it failed because the file system is full.
    pub is_refused: bool,
    /// What it waited for.
    pub waits: &'a Waits,
}

impl Request<'_> {
    fn is_small(&self) -> bool {
        let is_write = self.kind != RequestKind::Read && self.bytes > 0 && self.offset > 0;
        let is_unaligned = !self.offset.is_multiple_of(UNIT_BYTES);
        is_write && (self.bytes < SMALL_BYTES || is_unaligned && self.bytes < UNALIGNED_BYTES_MAX)
    }
}

/// A number of requests, their time and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Their time in nanoseconds.
    pub nanos: u64,
    /// Bytes read or written.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, count: u64, nanos: u64, bytes: u64) {
        self.count += count;
        self.nanos += nanos;
        self.bytes += bytes;
    }
}

/// The sums of some requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// By kind, in the order of [`RequestKind::ALL`].
    pub kinds: [Tally; 4],
    /// The writes among them, synced or not, that are small or unaligned.
    pub small: Tally,
    /// The writes that were made durable by themselves. They are of kind [`RequestKind::Sync`].
    pub synced_writes: u64,
    /// Requests that failed because the file system is full.
    pub refused: u64,
    /// Where the last write ended, and its bytes.
    last_write: (u64, u64),
    /// What was waited for, in nanoseconds, by the kind of the request and the reason.
    pub waits: Vec<(u8, &'static str, u64)>,
}

impl Account {
    /// The sum of requests of a kind.
    pub fn of(&self, kind: RequestKind) -> &Tally {
        &self.kinds[kind as usize]
    }

    /// The time of all requests, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.kinds.iter().map(|tally| tally.nanos).sum()
    }

    /// The number of all requests.
    pub fn count(&self) -> u64 {
        self.kinds.iter().map(|tally| tally.count).sum()
    }

    /// All writes, those too that were made durable by themselves.
    pub fn writes(&self) -> u64 {
        self.of(RequestKind::Write).count + self.synced_writes
    }

    /// The bytes of all writes.
    pub fn written(&self) -> u64 {
        self.of(RequestKind::Write).bytes + self.of(RequestKind::Sync).bytes
    }

    /// Adds one request.
    pub fn note(&mut self, request: &Request<'_>) {
        let nanos = u64::try_from(request.took.as_nanos()).unwrap_or(u64::MAX);
        self.kinds[request.kind as usize].add(1, nanos, request.bytes);
        let (end, bytes) = self.last_write;
        // The kernel splits a large write from memory that does not begin at a page.
        let is_rest = end == request.offset && bytes >= LARGE_BYTES;
        if request.is_small() && !is_rest {
            self.small.add(1, nanos, request.bytes);
        }
        if request.kind != RequestKind::Read && request.bytes > 0 {
            self.last_write = (request.offset + request.bytes, request.bytes);
        }
        self.synced_writes += u64::from(request.kind == RequestKind::Sync && request.bytes > 0);
        self.refused += u64::from(request.is_refused);
        for (reason, nanos) in request.waits.iter() {
            self.add_wait(request.kind as u8, reason, nanos);
        }
    }

    fn add_wait(&mut self, kind: u8, reason: &'static str, nanos: u64) {
        match self.waits.iter_mut().find(|(of, known, _)| *of == kind && *known == reason) {
            Some((_, _, sum)) => *sum += nanos,
            None => self.waits.push((kind, reason, nanos)),
        }
    }

    /// Adds another account.
    pub fn add(&mut self, other: &Account) {
        for (tally, more) in self.kinds.iter_mut().zip(&other.kinds) {
            tally.add(more.count, more.nanos, more.bytes);
        }
        self.small.add(other.small.count, other.small.nanos, other.small.bytes);
        self.synced_writes += other.synced_writes;
        self.refused += other.refused;
        for (kind, reason, nanos) in &other.waits {
            self.add_wait(*kind, reason, *nanos);
        }
    }
}

/// The process and the file of an account. Zeros: nobody in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountKey {
    /// The process, as the kernel names it.
    pub process: u32,
    /// The file or directory.
    pub inode: u64,
}

/// Hashes keys of accounts. They are no secret, and a table is small.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // An odd number with many ones spreads what differs over the upper bits.
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The accounts of some threads.
#[derive(Default)]
struct Table {
    accounts: Vec<(AccountKey, Account)>,
    /// Where each account is.
    places: HashMap<AccountKey, usize, BuildHasherDefault<KeyHasher>>,
    /// Where the last one was. A program often asks for one file again and again.
    last: usize,
}

impl Table {
    fn account(&mut self, key: AccountKey) -> &mut Account {
        if self.accounts.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = self.place(key);
        }
        &mut self.accounts[self.last].1
    }

    fn place(&mut self, key: AccountKey) -> usize {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        if self.accounts.len() >= KEYS_MAX && key != AccountKey::default() {
            return self.place(AccountKey::default());
        }
        self.accounts.push((key, Account::default()));
        self.places.insert(key, self.accounts.len() - 1);
        self.accounts.len() - 1
    }
}

/// See the head of this file.
pub struct Requests {
    tables: [Mutex<Table>; TABLES],
    /// The names of processes that made requests.
    names: Mutex<HashMap<u32, String>>,
}

impl Default for Requests {
    fn default() -> Requests {
        let tables = std::array::from_fn(|_| Mutex::default());
        Requests { tables, names: Mutex::default() }
    }
}

impl Requests {
    /// Adds a request that has ended.
    pub fn note(&self, request: &Request<'_>) {
        let key = AccountKey { process: request.process, inode: request.inode };
        self.learn(request.process);
        self.tables[own_table()].lock().account(key).note(request);
    }

    /// Reads the name of a process that this thread has not just worked for, unless it is known.
    fn learn(&self, process: u32) {
        strake_env::local! {
            static LAST: Cell<u32> = const { Cell::new(0) };
        }
        if LAST.replace(process) == process || self.names.lock().contains_key(&process) {
            return;
        }
        self.learn_again(process);
    }

    /// Reads the name of a process anew, if it still runs. A shell's child makes its first requests
    /// before it becomes another program.
    pub(crate) fn learn_again(&self, process: u32) {
        let Some(name) = strake_env::process::name(process) else { return };
        let mut names = self.names.lock();
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(process, name);
    }

    /// The name of a process, if it is known.
    pub fn name(&self, process: u32) -> Option<String> {
        self.names.lock().get(&process).cloned()
    }

    /// Takes everything away. The longest account comes first.
    pub fn drain(&self) -> Vec<(AccountKey, Account)> {
        let mut all: HashMap<AccountKey, Account> = HashMap::new();
        for table in &self.tables {
            let taken = std::mem::take(&mut *table.lock());
            for (key, account) in taken.accounts {
                all.entry(key).or_default().add(&account);
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable_by_key(|(key, account)| (std::cmp::Reverse(account.nanos()), *key));
        all
    }
}

/// The table that the calling thread adds to.
fn own_table() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    strake_env::local! {
        static TABLE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    if TABLE.get() == usize::MAX {
        TABLE.set(LAST.fetch_add(1, Relaxed) % TABLES);
    }
    TABLE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(process: u32, kind: RequestKind, offset: u64, bytes: u64) -> Request<'static> {
        let took = Duration::from_nanos(100);
        let waits = Waits::NONE;
        Request { process, inode: 5, kind, offset, bytes, took, is_refused: false, waits }
    }

    #[test]
    fn requests_of_many_threads_are_added_up_by_process_and_file() {
        let requests = Requests::default();
        strake_env::thread::scope(|scope| {
            for process in 1..=8 {
                let requests = &requests;
                scope.spawn(move || {
                    let mut waits = *Waits::NONE;
                    waits.add("a disk", 40);
                    for _ in 0..1000 {
                        let waits = &waits;
                        let write = request(process, RequestKind::Write, 0, 10);
                        let sync = request(process, RequestKind::Sync, 0, 0);
                        requests.note(&Request { waits, ..write });
                        requests.note(&Request { waits, ..sync });
                    }
                });
            }
        });
        let all = requests.drain();
        assert_eq!(all.len(), 8);
        for (key, account) in &all {
            assert_eq!(key.inode, 5);
            assert_eq!((account.count(), account.nanos()), (2000, 200_000));
            assert_eq!((account.writes(), account.written()), (1000, 10_000));
            let (write, sync) = (RequestKind::Write as u8, RequestKind::Sync as u8);
            assert_eq!(account.waits, [(write, "a disk", 40_000), (sync, "a disk", 40_000)]);
        }
        assert!(requests.drain().is_empty(), "it begins anew");
    }

    #[test]
    fn small_writes_are_those_within_a_file_that_are_short_or_unaligned() {
        let small = |kind, offset, bytes| request(1, kind, offset, bytes).is_small();
        let write = RequestKind::Write;
        assert!(!small(write, 0, 100), "a whole small file");
        assert!(small(write, 100, 100), "a record behind another one");
        assert!(small(write, 8192, 100), "a part of a unit");
        assert!(small(RequestKind::Sync, 8192, 100));
        assert!(!small(write, 8192, 4096));
        assert!(small(write, 8193, 4096), "two units, each in part");
        assert!(!small(write, 10_240, 10_240), "a stream in odd pieces");
        assert!(!small(RequestKind::Read, 100, 100));
        assert!(!small(RequestKind::Sync, 100, 0), "an fsync writes nothing itself");
    }

    #[test]
    fn the_rest_of_a_large_write_is_not_small_and_records_that_follow_each_other_are() {
        let mut account = Account::default();
        let large = (1 << 20) - 2000;
        account.note(&request(1, RequestKind::Write, 0, large));
        account.note(&request(1, RequestKind::Write, large, 2000));
        assert_eq!((account.writes(), account.small.count), (2, 0));
        (0..5).for_each(|at| account.note(&request(1, RequestKind::Write, (1 << 20) + at * 9, 9)));
        assert_eq!(account.small.count, 5);
    }

    #[test]
    fn a_full_table_counts_for_nobody_in_particular() {
        let requests = Requests::default();
        let processes = KEYS_MAX as u32 + 100;
        (1..=processes).for_each(|it| requests.note(&request(it, RequestKind::Read, 0, 1)));
        let all = requests.drain();
        assert!(all.len() <= KEYS_MAX + 1, "{}", all.len());
        assert_eq!(all[0].0, AccountKey::default(), "the longest");
        assert_eq!(
            all.iter().map(|(_, account)| account.count()).sum::<u64>(),
            u64::from(processes)
        );
    }
}
