//! The limit, with a disk that hangs until it is told to go on.

use super::*;
use crate::LentBuffer;
use crate::disk::sim::SimDisk;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

const LENGTH: u64 = 1 << 20;

/// A disk whose I/Os wait while it hangs.
struct Hanging {
    disk: Arc<SimDisk>,
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl Hanging {
    fn new() -> Arc<Hanging> {
        let disk = SimDisk::new(LENGTH);
        Arc::new(Hanging { disk, hangs: Mutex::new(false), changed: Condvar::new() })
    }

    fn hang(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut hangs = self.hangs.lock();
        while *hangs {
            self.changed.wait(&mut hangs);
        }
    }
}

impl Disk for Hanging {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.pass();
        self.disk.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.pass();
        self.disk.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.pass();
        self.disk.sync()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn discard(&self, offset: u64, length: u64) {
        self.pass();
        self.disk.discard(offset, length);
    }
}

fn page(value: u8) -> AlignedBuffer {
    AlignedBuffer::from_slice(&[value; 4096])
}

#[test]
fn what_is_written_is_read_from_many_threads_with_and_without_a_limit() {
    for limit in [Duration::ZERO, Duration::from_secs(60)] {
        let disk = GuardedDisk::new(SimDisk::new(LENGTH), limit);
        crate::thread::scope(|scope| {
            for thread in 0..8u8 {
                let disk = &disk;
                scope.spawn(move || {
                    for round in 0..50u8 {
                        let offset = u64::from(thread) * 4096;
                        let value = thread ^ round;
                        disk.write_at(offset, &page(value)).expect("writes");
                        let mut read = page(0);
                        disk.read_at(offset, &mut read).expect("reads");
                        assert!(read.iter().all(|byte| *byte == value));
                    }
                    disk.sync().expect("syncs");
                });
            }
        });
        let mut read = page(0);
        assert!(disk.read_at(LENGTH, &mut read).is_err(), "errors of the disk below get through");
        disk.discard(0, 4096);
        assert_eq!((disk.len(), disk.cause_of_death()), (LENGTH, None));
    }
}

#[test]
fn a_disk_that_hangs_is_dead_after_the_limit_for_everybody_and_for_good() {
    let below = Hanging::new();
    let disk = GuardedDisk::new(Arc::clone(&below) as Arc<dyn Disk>, Duration::from_millis(50));
    disk.write_at(0, &page(1)).expect("answers");
    below.hang(true);
    crate::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                let error = disk.read_at(0, &mut page(0)).expect_err("hangs");
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            });
        }
        scope.spawn(|| assert!(disk.sync().is_err()));
    });
    assert!(disk.cause_of_death().is_some_and(|text| text.contains("within 50ms")));
    below.hang(false);
    let error = disk.write_at(0, &page(2)).expect_err("dead");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    // The file below is let go once the stuck threads have come back.
    drop(disk);
    while Arc::strong_count(&below) > 1 {
        crate::thread::yield_now();
    }
}

#[test]
fn many_writes_have_ended_when_one_of_them_has_failed() {
    let disk = GuardedDisk::new(SimDisk::new(LENGTH), Duration::from_secs(60));
    for round in 0..50u8 {
        let pages: Vec<(u64, AlignedBuffer)> = (0..20).map(|at| (at * 4096, page(round))).collect();
        let mut parts: Vec<(u64, &[u8])> = pages.iter().map(|(at, it)| (*at, &**it)).collect();
        disk.write_many_at(&parts).expect("all are there");
        let mut read = AlignedBuffer::zeroed(20 * 4096);
        disk.read_at(0, &mut read).expect("reads");
        assert!(read.iter().all(|byte| *byte == round));
        parts[usize::from(round % 20)].0 = LENGTH;
        assert!(disk.write_many_at(&parts).is_err(), "one is beyond the end");
        // None of them comes later.
        let after = AlignedBuffer::from_slice(&[round ^ 0xff; 20 * 4096]);
        disk.write_at(0, &after).expect("writes");
        disk.read_at(0, &mut read).expect("reads");
        assert!(*read == *after, "round {round}");
    }
    disk.write_many_at(&[]).expect("nothing to do");
}

#[test]
fn many_writes_to_a_disk_that_hangs_end_with_the_limit() {
    let below = Hanging::new();
    let disk = GuardedDisk::new(Arc::clone(&below) as Arc<dyn Disk>, Duration::from_millis(50));
    below.hang(true);
    let pages: Vec<AlignedBuffer> = (0..20).map(page).collect();
    let parts: Vec<(u64, &[u8])> = (0..).step_by(4096).zip(pages.iter().map(|it| &**it)).collect();
    let error = disk.write_many_at(&parts).expect_err("hangs");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    below.hang(false);
    assert!(disk.write_many_at(&parts).is_err(), "it is dead");
}

#[test]
fn a_retired_disk_refuses_at_once_and_says_why() {
    for limit in [Duration::ZERO, Duration::from_secs(60)] {
        let disk = GuardedDisk::new(SimDisk::new(LENGTH), limit);
        disk.write_at(0, &page(1)).expect("answers");
        disk.retire("its file was removed");
        let error = disk.read_at(0, &mut page(0)).expect_err("retired");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(disk.sync().expect_err("retired").to_string().contains("was removed"));
        disk.retire("again");
        assert_eq!(disk.cause_of_death().as_deref(), Some("its file was removed"));
    }
}

/// A disk that is a pipe: it answers when somebody writes into that.
struct Piped(std::io::PipeReader);

impl Disk for Piped {
    fn read_at(&self, _offset: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> u64 {
        LENGTH
    }

    fn discard(&self, _offset: u64, _length: u64) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[test]
fn what_was_lent_to_a_disk_that_hangs_is_not_looked_at_again() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let disk = GuardedDisk::new(Arc::new(Piped(reader)), Duration::from_millis(50));
    let mut lent = LentBuffer::new(8192);
    let mut places = Vec::new();
    let error = lent.fill(|bytes| {
        places.push(bytes.as_ptr() as usize);
        bytes.fill(1);
        disk.read_at(0, bytes)
    });
    let error = error.expect_err("nothing is in the pipe");
    if error.kind() == io::ErrorKind::Unsupported {
        eprintln!("skipped: this system has no io_uring");
        return;
    }
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(places.len() == 2 && places[0] != places[1], "done again, elsewhere: {places:x?}");
    // The kernel still waits to put this where the first attempt was.
    writer.write_all(&[7; 8192]).expect("the kernel holds the other end");
    assert!(lent.iter().all(|byte| *byte == 1));
}

#[test]
fn what_is_lent_is_read_in_place_and_only_while_it_is_lent() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[7; 3 * 4096]).expect("there is room");
    let disk = GuardedDisk::new(Arc::new(Piped(reader)), Duration::from_secs(600));
    let mut lent = LentBuffer::new(4096);
    let mut other = page(0);
    let result = lent.fill(|bytes| {
        assert!(crate::lent::is_lent(bytes) && !crate::lent::is_lent(&bytes[1..]));
        assert!(!crate::lent::is_lent(&other));
        disk.read_two_at([(0, bytes), (0, &mut other)])
    });
    if result.is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) {
        eprintln!("skipped: this system has no io_uring");
        return;
    }
    assert!(lent.iter().chain(other.iter()).all(|byte| *byte == 7));
    assert!(!crate::lent::is_lent(&lent), "no more");
}

#[test]
fn a_disk_dies_with_its_permit_and_no_sooner() {
    for limit in [Duration::ZERO, Duration::from_secs(60)] {
        let clock = Arc::new(crate::clock::ManualClock::default());
        let permit = Arc::new(Permit::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let under = || GuardedDisk::under(Some(Arc::clone(&permit)), SimDisk::new(LENGTH), limit);
        let error = under().write_at(0, &page(1)).expect_err("there was never a permit");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        let disk = under();
        permit.prolong(Duration::from_secs(6));
        disk.write_at(0, &page(1)).expect("permitted");
        clock.advance(Duration::from_secs(5));
        permit.prolong(Duration::from_secs(3));
        disk.write_at(0, &page(2)).expect("an earlier end takes nothing back");
        clock.advance(Duration::from_secs(1));
        let raw = disk.write_both_at(0, &page(3), &page(4));
        assert_eq!(raw.expect_err("over").kind(), io::ErrorKind::NotConnected);
        permit.prolong(Duration::from_secs(60));
        let after = [disk.write_at(0, &page(3)), disk.sync(), disk.read_at(0, &mut page(0))];
        assert!(after.iter().all(Result::is_err), "dead is dead: {after:?}");
        let cause = disk.cause_of_death().expect("it has one");
        assert!(cause.contains("not renewed"), "{cause}");
        let mut read = page(0);
        disk.inner.disk.read_at(0, &mut read).expect("reads");
        assert_eq!(read[..], [2; 4096]);
    }
}

#[test]
fn a_permit_that_is_revoked_is_idle_when_the_last_write_is_done() {
    let hanging = Hanging::new();
    let permit = Arc::new(Permit::new(crate::RealClock::shared()));
    permit.prolong(Duration::from_secs(u64::MAX >> 32));
    let below = Arc::clone(&hanging) as Arc<dyn Disk>;
    let disk = GuardedDisk::under(Some(Arc::clone(&permit)), below, Duration::from_secs(60));
    hanging.hang(true);
    crate::thread::scope(|scope| {
        // It may be told of either end.
        scope.spawn(|| drop(disk.write_at(0, &page(1))));
        while permit.is_idle() {
            crate::thread::yield_now();
        }
        permit.revoke();
        assert!(!permit.is_idle(), "the write is still under way");
        assert!(disk.write_at(4096, &page(1)).is_err(), "nothing begins");
        permit.prolong(Duration::from_secs(u64::MAX >> 32));
        assert!(!permit.is_valid(), "revoked for good");
        hanging.hang(false);
        while !permit.is_idle() {
            crate::thread::yield_now();
        }
    });
}
