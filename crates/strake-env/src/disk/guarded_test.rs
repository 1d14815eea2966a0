//! The limit, with a disk that hangs until it is told to go on.

use super::*;
use crate::disk::sim::SimDisk;

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
        std::thread::scope(|scope| {
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
    std::thread::scope(|scope| {
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
        std::thread::yield_now();
    }
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
