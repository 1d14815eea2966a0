//! How long the disks of a process take: for each NSD the count, time, bytes and latencies of
//! reads, writes and syncs. [`MeasuredDisk`] stands around a disk and counts everything that is
//! done to it, the logs and the metadata too. Where the disks are in another process, the calls to
//! their servers are counted instead.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_env::disk::RawBytes;
use strake_env::sync::RwLock;
use strake_env::{Clock, Disk};
use strake_proto::NsdId;

/// Latencies are counted in four buckets for each power of two.
const STEP_BITS: u32 = 2;
/// The buckets of 64-bit nanoseconds.
const BUCKETS: usize = 64 << STEP_BITS;

/// What is done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskWork {
    /// It is read.
    Read,
    /// It is written, without being made durable.
    Write,
    /// What was written is made durable.
    Sync,
}

impl DiskWork {
    /// All kinds.
    pub const ALL: [DiskWork; 3] = [DiskWork::Read, DiskWork::Write, DiskWork::Sync];

    /// The word for one I/O.
    pub fn word(self) -> &'static str {
        match self {
            DiskWork::Read => "read",
            DiskWork::Write => "write",
            DiskWork::Sync => "sync",
        }
    }
}

/// Counts of I/Os that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSums {
    /// The number of I/Os.
    pub count: u64,
    /// Their time, in nanoseconds.
    pub nanos: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many took how long: the numbers of buckets that are not empty, ascending, and counts.
    pub buckets: Vec<(u16, u32)>,
}

impl DiskSums {
    /// The mean time of an I/O in nanoseconds; 0 if there is none.
    pub fn mean_ns(&self) -> u64 {
        self.nanos.checked_div(self.count).unwrap_or(0)
    }

    /// The time that half of the I/Os did not exceed. It is at most a quarter too large.
    pub fn median_ns(&self) -> u64 {
        let all: u64 = self.buckets.iter().map(|(_, count)| u64::from(*count)).sum();
        let mut passed = 0;
        for (bucket, count) in &self.buckets {
            passed += u64::from(*count);
            if passed * 2 >= all {
                return bucket_end(usize::from(*bucket));
            }
        }
        0
    }

    /// Adds others.
    pub fn add(&mut self, other: &DiskSums) {
        self.count += other.count;
        self.nanos += other.nanos;
        self.bytes += other.bytes;
        for (bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(bucket, |(at, _)| *at) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(*count),
                Err(at) => self.buckets.insert(at, (*bucket, *count)),
            }
        }
    }

    /// What was counted after `earlier`.
    pub(crate) fn since(&self, earlier: &DiskSums) -> DiskSums {
        let before = |bucket: u16| {
            let found = earlier.buckets.binary_search_by_key(&bucket, |(at, _)| *at);
            found.map_or(0, |at| earlier.buckets[at].1)
        };
        let buckets = self.buckets.iter().map(|(at, count)| (*at, count.wrapping_sub(before(*at))));
        DiskSums {
            count: self.count.saturating_sub(earlier.count),
            nanos: self.nanos.saturating_sub(earlier.nanos),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Counts one I/O.
    pub fn count(&mut self, took: Duration, bytes: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let buckets = vec![(bucket_of(nanos) as u16, 1)];
        self.add(&DiskSums { count: 1, nanos, bytes, buckets });
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << STEP_BITS {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let step = (nanos >> (power - STEP_BITS)) & ((1 << STEP_BITS) - 1);
    ((power << STEP_BITS) as u64 + step) as usize
}

/// The largest number of nanoseconds in a bucket.
pub(crate) fn bucket_end(bucket: usize) -> u64 {
    let (power, step) = (bucket as u32 >> STEP_BITS, bucket as u64 & ((1 << STEP_BITS) - 1));
    if power < STEP_BITS {
        return bucket as u64;
    }
    (((1 << STEP_BITS) + step + 1) << (power - STEP_BITS)).wrapping_sub(1)
}

/// The counters of one kind of work on one disk.
struct Counter {
    nanos: AtomicU64,
    bytes: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

impl Counter {
    fn new() -> Counter {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Counter { nanos: AtomicU64::new(0), bytes: AtomicU64::new(0), buckets }
    }

    fn sums(&self) -> DiskSums {
        let counts = (0..).zip(self.buckets.iter().map(|count| count.load(Relaxed)));
        let counts: Vec<(u16, u64)> = counts.filter(|(_, count)| *count > 0).collect();
        DiskSums {
            count: counts.iter().map(|(_, count)| count).sum(),
            nanos: self.nanos.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            buckets: counts.into_iter().map(|(at, count)| (at, count as u32)).collect(),
        }
    }
}

/// The counters of one disk. Recording takes three atomic additions.
pub struct DiskTime {
    work: [Counter; 3],
}

impl DiskTime {
    fn new() -> DiskTime {
        DiskTime { work: [Counter::new(), Counter::new(), Counter::new()] }
    }

    /// Counts one I/O.
    pub fn record(&self, work: DiskWork, took: Duration, bytes: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let counter = &self.work[work as usize];
        counter.nanos.fetch_add(nanos, Relaxed);
        counter.bytes.fetch_add(bytes, Relaxed);
        counter.buckets[bucket_of(nanos)].fetch_add(1, Relaxed);
    }
}

/// The sums of one kind of work on one disk.
pub type DiskRow = (NsdId, DiskWork, DiskSums);

/// The disks of a process by NSD.
#[derive(Default)]
pub struct DiskTimes {
    table: RwLock<BTreeMap<NsdId, Arc<DiskTime>>>,
}

impl DiskTimes {
    /// The counters of an NSD, made at the first call.
    pub fn of(&self, nsd: NsdId) -> Arc<DiskTime> {
        if let Some(found) = self.table.read().get(&nsd) {
            return Arc::clone(found);
        }
        let mut table = self.table.write();
        Arc::clone(table.entry(nsd).or_insert_with(|| Arc::new(DiskTime::new())))
    }

    /// All that was counted since the start, by NSD and kind. Kinds without any I/O are left out.
    pub fn sums(&self) -> Vec<DiskRow> {
        let table = self.table.read();
        let rows = table.iter().flat_map(|(nsd, time)| {
            DiskWork::ALL.map(|work| (*nsd, work, time.work[work as usize].sums()))
        });
        rows.filter(|(_, _, sums)| sums.count > 0).collect()
    }
}

/// A disk of which every I/O is timed.
pub struct MeasuredDisk {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    time: Arc<DiskTime>,
}

impl MeasuredDisk {
    /// Times what is done to `disk`.
    pub fn new(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, time: Arc<DiskTime>) -> MeasuredDisk {
        MeasuredDisk { disk, clock, time }
    }

    fn timed<T>(
        &self,
        work: DiskWork,
        bytes: usize,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let begun = self.clock.monotonic();
        let result = run();
        self.time.record(work, self.clock.monotonic().saturating_sub(begun), bytes as u64);
        result
    }
}

impl Disk for MeasuredDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.timed(DiskWork::Read, bytes.len(), || self.disk.read_at(offset, bytes))
    }

    fn read_two_at(&self, parts: [(u64, &mut [u8]); 2]) -> io::Result<()> {
        let length = parts.iter().map(|(_, bytes)| bytes.len()).sum();
        self.timed(DiskWork::Read, length, || self.disk.read_two_at(parts))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(DiskWork::Write, bytes.len(), || self.disk.write_at(offset, bytes))
    }

    fn write_both_at(&self, offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        let length = first.len() + second.len();
        self.timed(DiskWork::Write, length, || self.disk.write_both_at(offset, first, second))
    }

    /// Each write counts with its part of the time. As one I/O they would look like a slow one.
    fn write_many_at(&self, parts: &[(u64, &[u8])]) -> io::Result<()> {
        let begun = self.clock.monotonic();
        let result = self.disk.write_many_at(parts);
        let took = self.clock.monotonic().saturating_sub(begun);
        let each = took / u32::try_from(parts.len()).unwrap_or(u32::MAX).max(1);
        parts.iter().for_each(|(_, part)| {
            self.time.record(DiskWork::Write, each, part.len() as u64);
        });
        result
    }

    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(DiskWork::Sync, bytes.len(), || self.disk.write_and_sync(offset, bytes))
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.disk.descriptor()
    }

    fn has_raw_writes(&self) -> bool {
        self.disk.has_raw_writes()
    }

    fn write_raw(&self, offset: u64, parts: [RawBytes; 2]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.length).sum();
        self.timed(DiskWork::Write, length, || self.disk.write_raw(offset, parts))
    }

    fn is_hosted(&self) -> bool {
        self.disk.is_hosted()
    }

    fn sync(&self) -> io::Result<()> {
        self.timed(DiskWork::Sync, 0, || self.disk.sync())
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn discard(&self, offset: u64, length: u64) {
        self.disk.discard(offset, length);
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.reserve(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::{ManualClock, Rng, SimDisk};

    #[test]
    fn buckets_are_narrow_and_cover_everything() {
        let mut last = 0;
        for nanos in (0..4096).chain([1 << 20, (1 << 20) - 1, 1_000_000_007, u64::MAX - 1]) {
            let (bucket, end) = (bucket_of(nanos), bucket_end(bucket_of(nanos)));
            assert!(bucket < BUCKETS && end >= nanos, "{nanos}: {bucket} ends at {end}");
            assert!(end <= nanos.saturating_add(nanos / 4), "{nanos}: {bucket} ends at {end}");
            if nanos < 4096 {
                assert!(bucket >= last, "{nanos}");
                last = bucket;
            }
        }
    }

    /// The sums of random I/Os are those of a list of all of them.
    #[test]
    fn sums_and_differences_are_those_of_a_list() {
        let seed = std::env::var("STRAKE_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or(53);
        println!("STRAKE_SEED={seed}");
        let mut rng = Rng::new(seed);
        let times = DiskTimes::default();
        let mut draw = |count: u64| -> Vec<u64> {
            (0..count)
                .map(|_| {
                    let nanos = rng.below(1 << 30) >> rng.below(30);
                    times.of(NsdId(3)).record(DiskWork::Write, Duration::from_nanos(nanos), 10);
                    nanos
                })
                .collect()
        };
        let first = draw(500);
        let before = times.sums()[0].2.clone();
        let mut second = draw(301);
        let after = times.sums();
        let [(NsdId(3), DiskWork::Write, after)] = &after[..] else { panic!("{after:?}") };
        let late = after.since(&before);
        assert_eq!((late.count, late.bytes), (301, 3010));
        assert_eq!(late.nanos, second.iter().sum::<u64>());
        second.sort_unstable();
        let median = second[150];
        assert!((median..=median + median / 4).contains(&late.median_ns()), "{median}");
        let mut both = before.clone();
        both.add(&late);
        assert_eq!(&both, after);
        assert_eq!(both.nanos, first.iter().chain(&second).sum::<u64>());
    }

    #[test]
    fn every_io_of_a_disk_is_counted_by_its_kind() {
        let clock = Arc::new(ManualClock::default());
        let times = DiskTimes::default();
        let disk = MeasuredDisk::new(SimDisk::new(1 << 20), clock, times.of(NsdId(1)));
        let page = [7; 4096];
        let mut read = [0; 4096];
        disk.write_at(0, &page).expect("room");
        disk.write_both_at(4096, &page, &page).expect("room");
        disk.write_many_at(&[(0, &page), (8192, &page), (16_384, &page)]).expect("room");
        disk.write_many_at(&[]).expect("nothing to do");
        disk.write_and_sync(0, &page).expect("room");
        disk.sync().expect("it can");
        disk.read_at(4096, &mut read).expect("it is there");
        assert_eq!(read, page);
        let seen: Vec<_> = times
            .sums()
            .into_iter()
            .map(|(_, work, sums)| (work, sums.count, sums.bytes))
            .collect();
        let expected =
            [(DiskWork::Read, 1, 4096), (DiskWork::Write, 5, 24_576), (DiskWork::Sync, 2, 4096)];
        assert_eq!(seen, expected);
    }
}
