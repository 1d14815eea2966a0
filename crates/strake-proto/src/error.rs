//! The few kinds of error that cross a boundary. Each kind tells the caller what to do. `errno.rs`
//! alone says which errno an application sees for it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of an error. It says as much as the caller must know to act. The metadata keeps answers
/// on disk, and the kind with them; so a new kind goes to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No such name, inode, object or strip.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed.
    NotDirectory,
    /// Anything but a directory was needed.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// Permission bits or the ACL refuse it (EACCES).
    Access,
    /// Only the owner or a privileged caller may do it (EPERM).
    NotPermitted,
    /// A disk or the file system is full.
    NoSpace,
    /// A quota is used up.
    Quota,
    /// A name or path is too long.
    NameTooLong,
    /// An argument makes no sense.
    Invalid,
    /// The inode has as many names as it can.
    TooManyLinks,
    /// The operation would cross the boundary of this file system.
    CrossDevice,
    /// The file system is read-only.
    ReadOnly,
    /// No such extended attribute.
    NoAttribute,
    /// The caller's buffer is too small.
    Range,
    /// The value is too large.
    TooBig,
    /// The offset or size is beyond the largest file.
    FileTooBig,
    /// In use.
    Busy,
    /// The handle's inode is gone, or the message is older than what is known already.
    Stale,
    /// The data cannot be had: too many strips are gone, or a disk failed.
    Io,
    /// Bytes on disk or wire do not match their checksum or form.
    Corrupt,
    /// The node lost its lease.
    Fenced,
    /// The call fails now, and may succeed later.
    Retry,
    /// The call would wait, and the caller asked not to wait.
    WouldBlock,
    /// A signal ended the wait.
    Interrupted,
    /// Not supported here.
    NotSupported,
    /// No such function.
    NoSystem,
    /// No such ioctl on this kind of file (ENOTTY).
    NoIoctl,
    /// No such device or address. Also the answer to SEEK_DATA if no data follows.
    NoDevice,
    /// Too many symbolic links.
    Loop,
    /// A bad file handle.
    BadHandle,
    /// Out of memory within the budget.
    NoMemory,
    /// A time limit ran out.
    TimedOut,
    /// A peer or disk cannot be reached.
    Unreachable,
    /// A defect of Strake.
    Internal,
    /// A patch does not fit: the NSD does not hold the version that it changes, or cannot take
    /// more patches of the strip now. The sender writes the whole block instead.
    NotBase,
    /// The sender's pool map is older than the one an NSD server needs. The sender fetches the map.
    /// What it wrote it sends again as a new version.
    OldMap,
    /// A lock would wait for a process that waits for this one.
    Deadlock,
    /// There are too many locks.
    NoLocks,
}

/// An error: its kind, and a sentence for the reader of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    detail: String,
}

impl Error {
    /// An error of `kind`. `detail` is a sentence fragment that says what failed and what to do.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error { kind, detail: detail.into() }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Its sentence; may be empty.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The same error with `context: ` before its sentence.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Error {
        let detail = if self.detail.is_empty() {
            context.to_string()
        } else {
            format!("{context}: {}", self.detail)
        };
        Error { kind: self.kind, detail }
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error { kind, detail: String::new() }
    }
}

impl From<std::io::Error> for Error {
    /// Translates an error of the host.
    fn from(error: std::io::Error) -> Error {
        use std::io::ErrorKind as Host;
        let kind = match error.kind() {
            Host::NotFound => ErrorKind::NotFound,
            Host::AlreadyExists => ErrorKind::Exists,
            Host::PermissionDenied => ErrorKind::Access,
            Host::ResourceBusy => ErrorKind::Busy,
            Host::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            Host::NotADirectory => ErrorKind::NotDirectory,
            Host::IsADirectory => ErrorKind::IsDirectory,
            Host::StorageFull | Host::QuotaExceeded => ErrorKind::NoSpace,
            Host::OutOfMemory => ErrorKind::NoMemory,
            Host::Interrupted => ErrorKind::Interrupted,
            Host::TimedOut => ErrorKind::TimedOut,
            Host::WouldBlock => ErrorKind::WouldBlock,
            Host::ConnectionRefused
            | Host::ConnectionReset
            | Host::ConnectionAborted
            | Host::NotConnected
            | Host::BrokenPipe => ErrorKind::Unreachable,
            _ => ErrorKind::Io,
        };
        Error { kind, detail: error.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            write!(out, "{:?}", self.kind)
        } else {
            out.write_str(&self.detail)
        }
    }
}

impl std::error::Error for Error {}

/// The result of a call that crosses a boundary.
pub type Result<T> = std::result::Result<T, Error>;
