//! Mounts a `/dev/fuse` descriptor, and takes the mount away again.
//!
//! The superuser mounts with mount(2). An ordinary user mounts through `fusermount3`, which returns
//! the descriptor over a socket (`_FUSE_COMMFD`). Such a mount is closed to other users and has no
//! device files.
#![allow(unsafe_code, reason = "one ioctl that has no safe form")]

use crate::mountinfo;
use crate::options::KernelOptions;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::path::Path;
use std::process::{Command, Stdio};
use strake_proto::{Error, ErrorKind, Result};
use tracing::warn;

/// `_IOR(229, 0, uint32_t)`: attaches a new descriptor to the connection of another.
const FUSE_DEV_IOC_CLONE: rustix::ioctl::Opcode = 0x8004_e500;

fn host(error: rustix::io::Errno) -> Error {
    std::io::Error::from(error).into()
}

fn open_device() -> Result<OwnedFd> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        let advice = match error {
            rustix::io::Errno::ACCESS => "be root, or have root run: chmod 666 /dev/fuse",
            _ => "is the fuse module loaded?",
        };
        host(error).context(format!("/dev/fuse cannot be opened ({advice})"))
    })
}

/// Mounts at `path` and returns the connection's descriptor, from which INIT can be read. Listings
/// of mounts and `df` show `name` as the device. It has no commas and no backslashes.
///
/// All users may use the mount of the superuser. That of an ordinary user is for this user alone
/// unless `options` allow others, which `/etc/fuse.conf` must permit.
pub(crate) fn mount(name: &str, path: &Path, options: &KernelOptions) -> Result<OwnedFd> {
    if rustix::process::geteuid().is_root() {
        mount_as_root(name, path, options)
    } else {
        mount_as_user(name, path, options)
    }
}

fn mount_as_root(name: &str, path: &Path, kept: &KernelOptions) -> Result<OwnedFd> {
    let device = open_device()?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options).expect("invariant: digits hold no zero byte");
    rustix::mount::mount(name, path, mountinfo::KIND, kept.flags(), options.as_c_str())
        .map_err(|error| host(error).context(format!("cannot mount at {}", path.display())))?;
    Ok(device)
}

fn mount_as_user(name: &str, path: &Path, kept: &KernelOptions) -> Result<OwnedFd> {
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType, recvmsg, socketpair,
    };
    // fusermount3 opens the device itself, but its message about a failure gets lost. So we try it
    // here first.
    drop(open_device()?);
    // The sockets lack CLOEXEC, because fusermount3 inherits its end under the number that we pass.
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)
            .map_err(host)?;
    let mut options = format!("fsname={name},subtype=strake,default_permissions");
    kept.words().iter().for_each(|word| options.extend([",", word]));
    let child = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Error::from(error).context("fusermount3 cannot be run (install fuse3, or be root)")
        })?;
    drop(theirs);
    let mut byte = [0u8; 4];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        &ours,
        &mut [rustix::io::IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    );
    let ended = child.wait_with_output()?;
    received.map_err(host)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| {
            let said = String::from_utf8_lossy(&ended.stderr);
            let (path, said, status) = (path.display(), said.trim(), ended.status);
            let detail = format!("fusermount3 did not mount at {path} ({status}): {said}");
            Error::new(ErrorKind::Io, detail)
        })
}

/// Opens another descriptor of the same connection, for another thread.
pub(crate) fn duplicate(connection: &OwnedFd) -> Result<OwnedFd> {
    let device = open_device()?;
    let number = connection.as_raw_fd().unsigned_abs();
    // SAFETY: the kernel reads one u32 behind the pointer that `Setter` passes, which lives for the
    // call; nothing is written through it.
    let cloned = unsafe {
        rustix::ioctl::ioctl(
            &device,
            rustix::ioctl::Setter::<{ FUSE_DEV_IOC_CLONE }, u32>::new(number),
        )
    };
    cloned.map_err(host)?;
    Ok(device)
}

/// Unmounts. With `force` the mount leaves the tree of directories even while it is busy.
pub(crate) fn unmount(path: &Path, force: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return match rustix::mount::unmount(path, flags) {
            // INVAL: it is unmounted already.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => Err(host(error)),
        };
    }
    let mut command = Command::new("fusermount3");
    command.args(["-u", "-q"]);
    if force {
        command.arg("-z");
    }
    let status = command.arg(path).status()?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, format!("fusermount3 cannot unmount {}", path.display())))
}

/// Raises the kernel's read-ahead for a mount. INIT can only lower it from 128 KiB. A failure costs
/// speed only, so it is ignored.
pub(crate) fn raise_read_ahead(device: &str, kib: u32) {
    let knob = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, kib.to_string()) {
        warn!(target: "fuse", "read-ahead stays at the kernel's default ({knob}: {error})");
    }
}
