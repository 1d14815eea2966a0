//! A disk that shares its host's file system with other disks, which can make room for it.
//!
//! Containers are sparse, so several disks share the space of their host's file system. When it is
//! full, one of them may need the space that another has freed and not yet given back. So before a
//! write fails with `StorageFull`, all disks on the same [`Host`] give back their free space. Then
//! the write is tried again, as long as some disk gave something since the last attempt. This
//! applies to all writes: strips, journals, the metadata's copies.
//!
//! It stands above the guard that limits an I/O: giving space back takes its own time.

use super::Disk;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Space is asked for this many times, because others may take the space before the writer that
/// asked for it.
const ATTEMPTS: u32 = 8;

/// A store that may hold free space of the host.
pub trait SpaceGiver: Send + Sync {
    /// Gives the host all space that is free now, and returns whether there was any. It is called
    /// while others, or the giver itself, are writing, so it waits for no write.
    fn give_space(&self) -> bool;
}

/// One file system of the machine, as far as disks of this process lie on it.
#[derive(Default)]
pub struct Host {
    givers: Mutex<Vec<Weak<dyn SpaceGiver>>>,
    /// The bytes that all givers gave back. It only grows.
    given: AtomicU64,
}

impl Host {
    /// Adds a giver that is asked for space from now on, as long as it lives.
    pub fn add(&self, giver: Weak<dyn SpaceGiver>) {
        let mut givers = self.givers.lock();
        givers.retain(|giver| giver.strong_count() > 0);
        givers.push(giver);
    }

    fn relieve(&self) -> bool {
        let givers: Vec<_> = self.givers.lock().iter().filter_map(Weak::upgrade).collect();
        // All of them, not up to the first that has something: the next write needs it, too.
        givers.iter().fold(false, |any, giver| giver.give_space() | any)
    }
}

/// The hosts of a process, by their device number.
#[derive(Default)]
pub struct Hosts(Mutex<BTreeMap<u64, Arc<Host>>>);

impl Hosts {
    /// The host with this device number.
    pub fn host(&self, device: u64) -> Arc<Host> {
        Arc::clone(self.0.lock().entry(device).or_default())
    }
}

/// See the module.
pub struct RelievedDisk {
    disk: Arc<dyn Disk>,
    host: Arc<Host>,
}

impl RelievedDisk {
    /// `disk` lies on `host`.
    pub fn new(disk: Arc<dyn Disk>, host: Arc<Host>) -> RelievedDisk {
        RelievedDisk { disk, host }
    }

    fn with_room(&self, attempt: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            let before = self.host.given.load(Ordering::SeqCst);
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::StorageFull && attempts > 0 => {
                    // What came while this one was refused counts as well.
                    let any = self.host.relieve();
                    if !any && self.host.given.load(Ordering::SeqCst) == before {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }
}

impl Disk for RelievedDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, bytes)
    }

    fn read_two_at(&self, parts: [(u64, &mut [u8]); 2]) -> io::Result<()> {
        self.disk.read_two_at(parts)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_room(|| self.disk.write_at(offset, bytes))
    }

    fn write_both_at(&self, offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        self.with_room(|| self.disk.write_both_at(offset, first, second))
    }

    fn write_many_at(&self, parts: &[(u64, &[u8])]) -> io::Result<()> {
        self.with_room(|| self.disk.write_many_at(parts))
    }

    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_room(|| self.disk.write_and_sync(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn discard(&self, offset: u64, length: u64) {
        self.disk.discard(offset, length);
        self.host.given.fetch_add(length, Ordering::SeqCst);
    }

    fn is_hosted(&self) -> bool {
        self.disk.is_hosted()
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.with_room(|| self.disk.reserve(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    const PAGE: u64 = 4096;

    /// Discards one page of a disk each time it is asked, until `pages` are gone, and tells the
    /// other disk's host of them.
    struct Neighbour {
        disk: Arc<SimDisk>,
        own: RelievedDisk,
        pages: Mutex<u64>,
    }

    impl SpaceGiver for Neighbour {
        fn give_space(&self) -> bool {
            let mut pages = self.pages.lock();
            if *pages == 0 {
                return false;
            }
            *pages -= 1;
            self.own.discard(*pages * PAGE, PAGE);
            self.disk.set_faults(|faults| *faults.host_bytes_left.get_or_insert(0) += PAGE);
            true
        }
    }

    fn neighbours(pages: u64) -> (RelievedDisk, Arc<Neighbour>) {
        let hosts = Hosts::default();
        let disk = SimDisk::new(64 * PAGE);
        disk.set_faults(|faults| faults.host_bytes_left = Some(0));
        let other = SimDisk::new(64 * PAGE);
        other.write_at(0, &vec![1; 64 * PAGE as usize]).expect("room");
        let relieved = RelievedDisk::new(Arc::clone(&disk) as Arc<dyn Disk>, hosts.host(7));
        let own = RelievedDisk::new(other, hosts.host(7));
        let neighbour = Arc::new(Neighbour { disk, own, pages: Mutex::new(pages) });
        let weak: Weak<dyn SpaceGiver> = Arc::downgrade(&neighbour) as Weak<dyn SpaceGiver>;
        hosts.host(7).add(weak);
        (relieved, neighbour)
    }

    #[test]
    fn what_a_neighbour_frees_is_taken_before_a_write_fails() {
        let (disk, neighbour) = neighbours(5);
        let page = [9; PAGE as usize];
        disk.write_at(0, &page).expect("one was given");
        disk.write_both_at(PAGE, &page, &page).expect("two were given, one after the other");
        disk.reserve(3 * PAGE, PAGE).expect("one more");
        disk.write_and_sync(4 * PAGE, &page).expect("the last");
        assert_eq!(*neighbour.pages.lock(), 0);
        let error = disk.write_at(5 * PAGE, &page).expect_err("nothing is left to give");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let mut read = [0; PAGE as usize];
        disk.read_at(4 * PAGE, &mut read).expect("written");
        assert_eq!(read, page);
    }

    #[test]
    fn it_ends_although_others_take_what_is_given() {
        let (disk, neighbour) = neighbours(60);
        let pages = vec![9; 32 * PAGE as usize];
        let error = disk.write_at(0, &pages).expect_err("32 pages never come together");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let asked = 60 - *neighbour.pages.lock();
        assert_eq!(asked, u64::from(ATTEMPTS) - 1);
    }

    #[test]
    fn who_is_gone_is_not_asked() {
        let (disk, neighbour) = neighbours(5);
        drop(neighbour);
        assert!(disk.write_at(0, &[1; PAGE as usize]).is_err());
    }
}
