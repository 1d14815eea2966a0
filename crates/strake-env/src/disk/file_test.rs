//! Container files and devices on the host.

use super::super::conformance_test::{Folder, LoopDevice};
use super::*;
use crate::{Clock, RealClock};
use std::time::Duration;

const LENGTH: u64 = 4 << 20;

/// Tries again while somebody still has the file: a process that another test starts has every
/// open file of this one, and so its lock, until its own program begins.
fn when_let_go<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let end = RealClock.monotonic() + Duration::from_secs(60);
    loop {
        match attempt() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && RealClock.monotonic() < end =>
            {
                crate::thread::yield_now();
            }
            result => return result,
        }
    }
}

fn folder() -> Folder {
    Folder::new(std::env::temp_dir().to_str().unwrap(), "filedisk")
}

#[test]
fn what_was_written_is_there_after_reopening() {
    let folder = folder();
    let path = folder.0.join("container");
    let disk = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap();
    disk.write_at(8192, &AlignedBuffer::from_slice(&[5; 4096])).unwrap();
    disk.sync().unwrap();
    drop(disk);
    let disk = when_let_go(|| FileDisk::open(&path)).unwrap();
    assert_eq!(disk.len(), LENGTH);
    let mut buffer = AlignedBuffer::zeroed(4096);
    disk.read_at(8192, &mut buffer).unwrap();
    assert_eq!(buffer[..], [5; 4096]);
}

#[test]
fn a_second_opening_is_refused_while_the_first_lasts() {
    let folder = folder();
    let path = folder.0.join("container");
    let disk = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap();
    let error = FileDisk::open(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("container"), "{error}");
    drop(disk);
    when_let_go(|| FileDisk::open(&path)).unwrap();
}

#[test]
fn who_has_a_lock_is_read_from_the_kernels_list() {
    let locks = "1: POSIX  ADVISORY  WRITE 40 fe:01:131 0 EOF\n\
                 2: FLOCK  ADVISORY  WRITE 41 fe:01:13 0 EOF\n\
                 2: -> FLOCK  ADVISORY  WRITE 42 fe:01:131 0 EOF\n\
                 3: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF\n";
    assert_eq!(process_with_lock(locks, "fe:01:131"), Some(4711), "not who waits for it");
    assert_eq!(process_with_lock(locks, "fe:01:132"), None);
    assert_eq!(process_with_lock("3: FLOCK\n\n", "fe:01:131"), None);
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let folder = folder();
    let path = folder.0.join("container");
    std::fs::write(&path, "dear data").unwrap();
    let error = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"dear data");
}

#[test]
fn a_sparse_container_takes_space_as_it_is_written_and_gives_it_back() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    let path = folder.0.join("container");
    let disk = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap();
    let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(used() < 64 << 10);
    disk.write_at(0, &AlignedBuffer::from_slice(&vec![1; 1 << 20])).unwrap();
    disk.sync().unwrap();
    assert!(used() >= 1 << 20);
    disk.discard(0, 1 << 20);
    disk.reserve(2 << 20, 512 << 10).unwrap();
    disk.sync().unwrap();
    assert!((512 << 10..1 << 20).contains(&used()), "{}", used());
}

#[test]
fn a_full_host_means_full() {
    // A tmpfs of one MiB; only root can make one.
    let folder = folder();
    let mounted = std::process::Command::new("mount")
        .args(["-i", "-t", "tmpfs", "-o", "size=1M", "none"])
        .arg(&folder.0)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("cannot mount a small tmpfs here (needs root): not tested");
        return;
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(folder.0.clone());
    let path = folder.0.join("container");
    let full = FileDisk::create(&path, LENGTH, Allocation::Preallocated).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert!(!path.exists(), "what failed to come about is removed");
    let disk = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap();
    let full = disk.write_at(0, &AlignedBuffer::zeroed(2 << 20)).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    // Full is not failed: what fits is still written.
    disk.discard(0, LENGTH);
    disk.write_at(0, &AlignedBuffer::zeroed(4096)).unwrap();
    disk.sync().unwrap();
}

#[test]
fn a_device_that_holds_anything_is_refused_unless_forced() {
    let Some(device) = LoopDevice::new(LENGTH) else {
        eprintln!("no loop device here (needs root and /dev/loop*): not tested");
        return;
    };
    let disk = FileDisk::take_device(&device.path, false).unwrap();
    assert_eq!(disk.len(), LENGTH);
    let busy = FileDisk::open(&device.path).unwrap_err();
    assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy, "{busy}");
    drop(disk);
    for (offset, at, what) in [(0, 1080, "an ext2/3/4 file system"), (LENGTH - 4096, 4000, "data")]
    {
        let disk = when_let_go(|| FileDisk::take_device(&device.path, false)).unwrap();
        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer[at..at + 2].copy_from_slice(&[0x53, 0xef]);
        disk.write_at(offset, &buffer).unwrap();
        disk.sync().unwrap();
        drop(disk);
        let error = when_let_go(|| FileDisk::take_device(&device.path, false)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(error.to_string().contains(what), "{error}");
        drop(when_let_go(|| FileDisk::take_device(&device.path, true)).unwrap());
    }
    when_let_go(|| FileDisk::take_device(&device.path, false)).unwrap();
}

#[test]
fn a_file_is_no_device() {
    let folder = folder();
    let path = folder.0.join("container");
    drop(FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap());
    let error = FileDisk::take_device(&path, true).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_file_that_was_removed_replaced_or_cut_is_noticed() {
    let folder = folder();
    let path = folder.0.join("container");
    let disk = FileDisk::create(&path, 1 << 20, Allocation::Sparse).expect("creates");
    disk.verify().expect("it is there");
    let away = folder.0.join("away");
    std::fs::rename(&path, &away).expect("moves");
    assert_eq!(disk.verify().map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    std::fs::copy(&away, &path).expect("copies");
    assert_eq!(disk.verify().map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
    std::fs::rename(&away, &path).expect("moves back");
    disk.verify().expect("it is back");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    file.set_len(4096).expect("cuts");
    assert_eq!(disk.verify().map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
}

#[test]
fn a_disk_is_opened_beside_others_only_if_asked_for() {
    let folder = folder();
    let path = folder.0.join("container");
    let alone = FileDisk::create(&path, LENGTH, Allocation::Sparse).unwrap();
    let shared = FileDisk::open_shared(&path).unwrap();
    let other = FileDisk::open_shared(&path).unwrap();
    shared.write_at(4096, &AlignedBuffer::from_slice(&[9; 4096])).unwrap();
    let mut buffer = AlignedBuffer::zeroed(4096);
    other.read_at(4096, &mut buffer).unwrap();
    assert_eq!(buffer[..], [9; 4096]);
    assert_eq!(FileDisk::open(&path).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    drop(alone);
    // Those who are there beside others keep nobody off.
    when_let_go(|| FileDisk::open(&path)).unwrap();
}
