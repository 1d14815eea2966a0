//! A container file or a block device, by direct I/O.
//!
//! **Container file** ([`FileDisk::create`]): sparse unless preallocated, of fixed length. Where
//! the host's file system refuses direct I/O (tmpfs, some overlays) buffered I/O is used; `sync` is
//! the barrier either way. A full host is `StorageFull`, which means *full* and not *failed*.
//!
//! **Block or loop device** ([`FileDisk::take_device`]): opened exclusively, so neither a mounted
//! nor an otherwise used device can be taken. A device with anything in its first or last MiB is
//! refused unless forced: file systems, partition tables, volume managers and our own containers
//! all leave something there.
//!
//! **One daemon.** Both hold an advisory exclusive lock while open. So two daemons never write one
//! container.
//!
//! **Failed sync.** The kernel forgets dirty pages of a failed `fsync`, so trying again would
//! report success for lost data: the disk refuses all writes and syncs from then on.

#![allow(unsafe_code, reason = "a write from memory that may be gone is one system call")]

use super::{ALIGNMENT, Disk, RawBytes};
use crate::AlignedBuffer;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// This much of a device's beginning and end must be empty. `--force` wipes it.
const PROBE_BYTES: usize = 1 << 20;

/// Whether a container file owns its space from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Space is taken from the host as it is written.
    Sparse,
    /// All space is taken at once, or creating fails.
    Preallocated,
}

/// Whether other processes may have a file open as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Alone,
    Shared,
}

/// A container file or block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    length: u64,
    is_direct: bool,
    is_dead: AtomicBool,
}

impl FileDisk {
    /// Makes a container file of `length` bytes.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a file. `StorageFull` if preallocation does not fit. The host's
    /// errors.
    pub fn create(path: &Path, length: u64, allocation: Allocation) -> io::Result<FileDisk> {
        assert_eq!(length % ALIGNMENT as u64, 0, "disks are multiples of 4 KiB");
        let flags = OFlags::CREATE | OFlags::EXCL;
        let disk = FileDisk::open_with(path, flags, Access::Alone).and_then(|mut disk| {
            disk.file.set_len(length)?;
            if allocation == Allocation::Preallocated {
                rustix::fs::fallocate(&disk.file, FallocateFlags::empty(), 0, length)
                    .map_err(host_error)?;
            }
            disk.file.sync_all()?;
            // The name must survive as well.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
            disk.length = length;
            disk.probe_direct()?;
            Ok(disk)
        });
        disk.inspect_err(|error| {
            // A file of ours that did not come about must not block the next try.
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(path);
            }
        })
        .map_err(|error| with_path(path, error))
    }

    /// Opens a container file or a device that holds a container.
    ///
    /// # Errors
    /// `ResourceBusy` if another process uses it. The host's errors.
    pub fn open(path: &Path) -> io::Result<FileDisk> {
        FileDisk::open_as(path, Access::Alone)
    }

    /// As [`FileDisk::open`], beside other processes: what else keeps two of them from using the
    /// disk at the same time is the caller's.
    ///
    /// # Errors
    /// The host's errors.
    pub fn open_shared(path: &Path) -> io::Result<FileDisk> {
        FileDisk::open_as(path, Access::Shared)
    }

    fn open_as(path: &Path, access: Access) -> io::Result<FileDisk> {
        let is_device = std::fs::metadata(path)
            .map_err(|error| with_path(path, error))?
            .file_type()
            .is_block_device();
        // On a device, O_EXCL without O_CREAT keeps mounts and other owners out.
        let flags = match (is_device, access) {
            (true, Access::Alone) => OFlags::EXCL,
            _ => OFlags::empty(),
        };
        FileDisk::open_with(path, flags, access)
            .and_then(|mut disk| {
                let end = rustix::fs::seek(&disk.file, rustix::fs::SeekFrom::End(0))?;
                disk.length = end / ALIGNMENT as u64 * ALIGNMENT as u64;
                disk.probe_direct()?;
                Ok(disk)
            })
            .map_err(|error| with_path(path, error))
    }

    /// Opens a block device to make a container on it. Unless `is_forced`, the device must be
    /// empty. If forced, the marks of its old contents are wiped.
    ///
    /// # Errors
    /// `InvalidInput` if it is no block device; `AlreadyExists` if it holds anything;
    /// `ResourceBusy` if it is in use; the device's.
    pub fn take_device(path: &Path, is_forced: bool) -> io::Result<FileDisk> {
        let file_type = std::fs::metadata(path).map_err(|error| with_path(path, error))?;
        if !file_type.file_type().is_block_device() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a block device");
            return Err(with_path(path, error));
        }
        let disk = FileDisk::open(path)?;
        let probe = PROBE_BYTES.min(disk.length as usize);
        let mut buffer = AlignedBuffer::zeroed(probe);
        for offset in [disk.length - probe as u64, 0] {
            if is_forced {
                buffer.fill(0);
                disk.write_at(offset, &buffer)?;
                continue;
            }
            disk.read_at(offset, &mut buffer)?;
            if buffer.iter().any(|&byte| byte != 0) {
                let what = signature(&buffer);
                let text = format!("the device holds {what}; give --force to lose what is on it");
                return Err(with_path(path, io::Error::new(io::ErrorKind::AlreadyExists, text)));
            }
        }
        Ok(disk)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the file: its device and inode number. No other file has both at the same
    /// time.
    ///
    /// # Errors
    /// The host's.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let found = self.file.metadata()?;
        Ok((found.dev(), found.ino()))
    }

    /// Whether the path still leads to the file that is open, and that file is whole.
    ///
    /// # Errors
    /// `NotFound` if nothing is there any more, `InvalidData` if something else is or the file was
    /// cut short; the host's.
    pub fn verify(&self) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let there = std::fs::metadata(&self.path)?;
        if (there.dev(), there.ino()) != self.identity()? {
            return wrong("another file is in its place");
        }
        if there.is_file() && there.len() < self.length {
            return wrong("it was cut short");
        }
        Ok(())
    }

    /// Whether the host lets us bypass its cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn open_with(path: &Path, flags: OFlags, access: Access) -> io::Result<FileDisk> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let (file, is_direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
            Ok(file) => (file, true),
            // The file may exist now although the open failed, so EXCL must not be repeated.
            Err(Errno::INVAL) if flags.contains(OFlags::CREATE) => {
                (rustix::fs::open(path, flags & !OFlags::EXCL, mode)?, false)
            }
            Err(Errno::INVAL) => (rustix::fs::open(path, flags, mode)?, false),
            Err(error) => return Err(host_error(error)),
        };
        if access == Access::Alone {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    Errno::WOULDBLOCK => {
                        io::Error::new(io::ErrorKind::ResourceBusy, lock_holder(&file))
                    }
                    other => other.into(),
                },
            )?;
        }
        let path = path.to_path_buf();
        let is_dead = AtomicBool::new(false);
        Ok(FileDisk { file: file.into(), path, length: 0, is_direct, is_dead })
    }

    /// Drops the flag for direct I/O where the host accepts it and then refuses the I/O.
    fn probe_direct(&mut self) -> io::Result<()> {
        if !self.is_direct || self.length == 0 {
            return Ok(());
        }
        let mut buffer = AlignedBuffer::zeroed(ALIGNMENT);
        if rustix::io::pread(&self.file, &mut buffer[..], 0) == Err(Errno::INVAL) {
            let flags = rustix::fs::fcntl_getfl(&self.file)?;
            rustix::fs::fcntl_setfl(&self.file, flags & !OFlags::DIRECT)?;
            self.is_direct = false;
        }
        Ok(())
    }

    fn needs_bounce(&self, bytes: &[u8]) -> bool {
        self.is_direct && !(bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
    }

    fn read_aligned(&self, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = retry_on_intr(|| rustix::io::pread(&self.file, &mut *bytes, offset))?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is cut short"));
            }
            bytes = &mut bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }

    fn write_aligned(&self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = retry_on_intr(|| rustix::io::pwrite(&self.file, bytes, offset))
                .map_err(host_error)?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the disk takes no more"));
            }
            bytes = &bytes[count..];
            offset += count as u64;
        }
        Ok(())
    }
}

impl Disk for FileDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        if self.needs_bounce(bytes) {
            let mut buffer = AlignedBuffer::zeroed(bytes.len());
            self.read_aligned(offset, &mut buffer)?;
            bytes.copy_from_slice(&buffer);
            return Ok(());
        }
        self.read_aligned(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        if self.is_dead.load(Ordering::Acquire) {
            return Err(dead());
        }
        if self.needs_bounce(bytes) {
            return self.write_aligned(offset, &AlignedBuffer::from_slice(bytes));
        }
        self.write_aligned(offset, bytes)
    }

    fn write_both_at(&self, offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        if self.needs_bounce(first) || self.needs_bounce(second) {
            self.write_at(offset, first)?;
            return self.write_at(offset + first.len() as u64, second);
        }
        self.write_raw(offset, [RawBytes::of(first), RawBytes::of(second)])
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn has_raw_writes(&self) -> bool {
        true
    }

    fn is_hosted(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.is_file())
    }

    fn write_raw(&self, mut offset: u64, mut parts: [RawBytes; 2]) -> io::Result<()> {
        let length = parts.iter().map(|part| part.length).sum();
        self.check_range(offset, length)?;
        if self.is_dead.load(Ordering::Acquire) {
            return Err(dead());
        }
        let mut left = length;
        while left > 0 {
            let written = write_parts(&self.file, offset, parts)?;
            if written == 0 {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the disk takes no more"));
            }
            left -= written;
            offset += written as u64;
            let mut skip = written;
            for part in &mut parts {
                let taken = skip.min(part.length);
                part.start = part.start.wrapping_add(taken);
                part.length -= taken;
                skip -= taken;
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_dead.load(Ordering::Acquire) {
            return Err(dead());
        }
        retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(|error| {
            self.is_dead.store(true, Ordering::Release);
            host_error(error)
        })
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn discard(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.length);
        if offset < end && !self.is_dead.load(Ordering::Acquire) {
            // A hint: hosts and devices that cannot punch keep the bytes, which is allowed. On a
            // block device the kernel turns it into a discard that reads as zeros.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, flags, offset, end - offset);
        }
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, length)) {
            // Devices own their space; some hosts cannot tell.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => Ok(()),
            Err(error) => Err(host_error(error)),
        }
    }
}

/// One `pwritev`; the kernel checks the addresses.
fn write_parts(file: &File, offset: u64, parts: [RawBytes; 2]) -> io::Result<usize> {
    let parts = parts
        .map(|part| libc::iovec { iov_base: part.start.cast_mut().cast(), iov_len: part.length });
    let offset = libc::off_t::try_from(offset)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "beyond what a file can hold"))?;
    loop {
        // SAFETY: the vector is ours and lives through the call. What it points to is only read,
        // and by the kernel alone, which answers EFAULT where nothing is.
        let written = unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr(), 2, offset) };
        if let Ok(written) = usize::try_from(written) {
            return Ok(written);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            Some(errno) => return Err(host_error(errno)),
            None => return Err(error),
        }
    }
}

/// Names the process that has the lock of a file, as far as the kernel tells.
fn lock_holder(file: &OwnedFd) -> String {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let process = rustix::fs::fstat(file).ok().and_then(|found| {
        let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
        process_with_lock(&locks, &format!("{major:02x}:{minor:02x}:{}", found.st_ino))
    });
    match process {
        // It failed here before, and is opened anew.
        Some(process) if process == std::process::id() => {
            "what was under way on it when it was closed has not ended yet".to_owned()
        }
        Some(process) => format!("process {process} has it open"),
        None => "another process has it open".to_owned(),
    }
}

/// The process with a `flock` of a file, out of `/proc/locks` (proc_locks(5)):
/// `1: FLOCK ADVISORY WRITE 4711 fe:01:131 0 EOF`.
fn process_with_lock(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, process, locked, ..] if locked == file => process.parse().ok(),
            _ => None,
        }
    })
}

fn dead() -> io::Error {
    io::Error::other("an earlier sync failed; the disk is not written any more")
}

/// Treats a used-up quota of the host like a full host.
fn host_error(error: Errno) -> io::Error {
    match error {
        Errno::DQUOT => io::Error::new(io::ErrorKind::StorageFull, "the host's quota is used up"),
        // EXCL on a device: mounted, or somebody else's.
        Errno::BUSY => io::Error::new(io::ErrorKind::ResourceBusy, "it is mounted or in use"),
        other => other.into(),
    }
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Names the kind of contents that the bytes look like, for the message.
fn signature(bytes: &[u8]) -> &'static str {
    const SIGNATURES: [(usize, &[u8], &str); 7] = [
        (0, b"STRAKEsb", "a Strake container"),
        (0, b"XFSB", "an XFS file system"),
        (1080, &[0x53, 0xef], "an ext2/3/4 file system"),
        (65600, b"_BHRfS_M", "a Btrfs file system"),
        (512, b"EFI PART", "a partition table (GPT)"),
        (510, &[0x55, 0xaa], "a partition table or boot sector"),
        (512, b"LABELONE", "an LVM volume"),
    ];
    let found = SIGNATURES
        .iter()
        .find(|(at, magic, _)| bytes.get(*at..at + magic.len()).is_some_and(|here| here == *magic));
    found.map_or("data", |(_, _, name)| name)
}

#[cfg(test)]
#[path = "file_test.rs"]
mod file_test;
