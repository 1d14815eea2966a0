//! What every disk must do, run on all of them: the simulated disk is proven against real ones.

use super::file::{Allocation, FileDisk};
use super::guarded::GuardedDisk;
use super::sim::SimDisk;
use super::{Disk, RawBytes};
use crate::{AlignedBuffer, LentBuffer, Rng};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const LENGTH: u64 = 8 << 20;

/// A folder of the test's own, removed at its end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(parent: &str, name: &str) -> Folder {
        let unique = Rng::from_entropy().unwrap().next_u64();
        let path = PathBuf::from(parent).join(format!("strake-{name}-{unique:016x}"));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A loop device of the test's own over a file in a folder.
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    _folder: Folder,
}

impl LoopDevice {
    /// `None` where this machine or user has none.
    pub(super) fn new(length: u64) -> Option<LoopDevice> {
        let folder = Folder::new(std::env::temp_dir().to_str().unwrap(), "loop");
        let backing = folder.0.join("backing");
        std::fs::File::create(&backing).unwrap().set_len(length).unwrap();
        let output = std::process::Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&backing)
            .output()
            .ok()?;
        if !output.status.success() {
            return None;
        }
        let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        Some(LoopDevice { path, _folder: folder })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

/// Random reads and writes against a map of pages.
fn behaves_like_memory(disk: &dyn Disk, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model: BTreeMap<u64, u8> = BTreeMap::new();
    for _ in 0..300 {
        let page = rng.below(LENGTH / 4096);
        let count = (rng.below(16) + 1).min(LENGTH / 4096 - page);
        let mut buffer = AlignedBuffer::zeroed((count * 4096) as usize);
        match rng.below(5) {
            0..2 => {
                let fill = rng.next_u64() as u8;
                buffer.fill(fill);
                let (first, second) = buffer.split_at(rng.index(count as usize + 1) * 4096);
                match rng.below(4) {
                    0 => disk.write_at(page * 4096, &buffer),
                    1 => disk.write_and_sync(page * 4096, &buffer),
                    2 => {
                        let pages = buffer.chunks_exact(4096).enumerate();
                        let parts: Vec<(u64, &[u8])> =
                            pages.map(|(at, bytes)| ((page + at as u64) * 4096, bytes)).collect();
                        disk.write_many_at(&parts)
                    }
                    _ => disk.write_both_at(page * 4096, first, second),
                }
                .unwrap();
                model.extend((page..page + count).map(|page| (page, fill)));
            }
            2 if rng.one_in(4) => disk.sync().unwrap(),
            2 if rng.one_in(4) => {
                // Discarded space may read as anything until written; so it is written.
                disk.discard(page * 4096, count * 4096);
                buffer.fill(9);
                disk.write_at(page * 4096, &buffer).unwrap();
                model.extend((page..page + count).map(|page| (page, 9)));
            }
            2 if rng.one_in(2) => disk.reserve(page * 4096, count * 4096).unwrap(),
            _ => {
                let (first, second) = buffer.split_at_mut(rng.index(count as usize + 1) * 4096);
                let middle = page * 4096 + first.len() as u64;
                disk.read_two_at([(page * 4096, first), (middle, second)]).unwrap();
                for (page, bytes) in (page..).zip(buffer.chunks_exact(4096)) {
                    let expected = model.get(&page).copied().unwrap_or(0);
                    assert!(bytes.iter().all(|&byte| byte == expected), "seed {seed} page {page}");
                }
            }
        }
    }
}

fn conforms(disk: Arc<dyn Disk>) {
    assert_eq!(disk.len(), LENGTH);
    assert!(!disk.is_empty());
    behaves_like_memory(&*disk, 11);
    let mut buffer = AlignedBuffer::zeroed(8192);
    let beyond = disk.read_at(LENGTH - 4096, &mut buffer).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    let beyond = disk.write_at(LENGTH - 4096, &buffer).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    let beyond = disk.write_at(u64::MAX - 4095, &buffer).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    let parts: [(u64, &[u8]); 2] = [(0, &buffer), (LENGTH - 4096, &buffer)];
    let beyond = disk.write_many_at(&parts).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    let beyond = disk.write_both_at(LENGTH - 4096, &buffer[..4096], &buffer[4096..]).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    // Memory that is not aligned is served as well, only slower.
    let unaligned = vec![3u8; 8192 + 1];
    for way in 0..3 {
        disk.write_at(0, &AlignedBuffer::zeroed(8192)).unwrap();
        match way {
            0 => disk.write_at(0, &unaligned[1..]),
            1 => disk.write_both_at(0, &unaligned[1..4097], &unaligned[4097..]),
            _ => disk.write_and_sync(0, &unaligned[1..]),
        }
        .unwrap();
        let mut back = vec![0u8; 8192 + 1];
        disk.read_at(0, &mut back[1..]).unwrap();
        assert_eq!(back[1..], unaligned[1..]);
    }
    // More than goes in one piece, read and written as a whole.
    let mut long = AlignedBuffer::zeroed(7 << 20);
    for (page, bytes) in long.chunks_exact_mut(4096).enumerate() {
        bytes.fill((page % 251) as u8);
    }
    disk.write_at(4096, &long).unwrap();
    let mut back = AlignedBuffer::zeroed(7 << 20);
    disk.read_at(4096, &mut back).unwrap();
    assert!(*back == *long, "a long read brings what was written");
    back.fill(0);
    let (first, second) = back.split_at_mut((3 << 20) + 8192);
    let middle = 4096 + first.len() as u64;
    disk.read_two_at([(middle, second), (4096, first)]).unwrap();
    assert!(*back == *long, "and so in two parts");
    let mut lent = LentBuffer::new(7 << 20);
    lent.fill(|bytes| disk.read_at(4096, bytes)).unwrap();
    assert!(*lent == *long, "and so where it is read in place");
    // Many threads at once, each on its own pages.
    crate::thread::scope(|scope| {
        for thread in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                for page in (thread..256).step_by(4) {
                    let mut bytes = AlignedBuffer::zeroed(4096);
                    bytes.fill(page as u8);
                    disk.write_at(page * 4096, &bytes).unwrap();
                    bytes.fill(0);
                    disk.read_at(page * 4096, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == page as u8));
                }
                disk.sync().unwrap();
            });
        }
    });
}

#[test]
fn the_simulated_disk_conforms() {
    conforms(SimDisk::new(LENGTH));
    conforms(SimDisk::new(LENGTH).open(Duration::ZERO).unwrap());
}

#[test]
fn a_container_file_conforms() {
    let temp = std::env::temp_dir();
    for allocation in [Allocation::Sparse, Allocation::Preallocated] {
        let folder = Folder::new(temp.to_str().unwrap(), "file");
        let path = folder.0.join("container");
        conforms(Arc::new(FileDisk::create(&path, LENGTH, allocation).unwrap()));
    }
}

#[test]
fn a_guarded_container_file_conforms() {
    let folder = Folder::new(std::env::temp_dir().to_str().unwrap(), "guarded");
    for (name, limit) in [("a", Duration::ZERO), ("b", Duration::from_secs(600))] {
        let file = FileDisk::create(&folder.0.join(name), LENGTH, Allocation::Sparse).unwrap();
        conforms(Arc::new(GuardedDisk::new(Arc::new(file), limit)));
    }
}

#[test]
fn a_write_from_memory_that_is_gone_fails_and_harms_nobody() {
    let folder = Folder::new(std::env::temp_dir().to_str().unwrap(), "gone");
    let file = FileDisk::create(&folder.0.join("a"), LENGTH, Allocation::Sparse).unwrap();
    let nowhere = RawBytes { start: std::ptr::without_provenance(4096), length: 4096 };
    let nothing = RawBytes::of(&[]);
    assert!(file.write_raw(0, [nowhere, nothing]).is_err());
    let page = AlignedBuffer::from_slice(&[7; 4096]);
    file.write_raw(0, [RawBytes::of(&page), nothing]).unwrap();
    let mut back = AlignedBuffer::zeroed(4096);
    file.read_at(0, &mut back).unwrap();
    assert!(*back == *page);
}

#[test]
fn a_container_file_in_memory_of_the_host_conforms() {
    let folder = Folder::new("/dev/shm", "file");
    let path = folder.0.join("container");
    conforms(Arc::new(FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap()));
}

#[test]
fn a_loop_device_conforms() {
    let Some(device) = LoopDevice::new(LENGTH) else {
        eprintln!("no loop device here (needs root and /dev/loop*): not tested");
        return;
    };
    conforms(Arc::new(FileDisk::take_device(&device.path, false).unwrap()));
}
