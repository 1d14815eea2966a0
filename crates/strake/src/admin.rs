//! Commands to a running daemon: one JSON request a line on the socket in the data directory, one
//! JSON reply a line. The socket's mode keeps others out: who can open it may do everything.

use crate::data_dir::DataDir;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use strake_env::net::UnixStream;
use strake_proto::{Error, ErrorKind, Result};

/// A longer line is refused.
pub(crate) const LINE_BYTES_MAX: u64 = 64 << 20;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Who are you, where is it mounted.
    Status,
    /// Configuration, space and disks: all that `fs`, `nsd` and `disk` list.
    Show,
    /// Make everything durable.
    Sync,
    /// Verify everything; with `data` every byte.
    Check {
        /// Read and verify all strips.
        data: bool,
    },
    /// The last I/Os.
    IoHistory,
    /// What waits now.
    Waiters,
    /// Histograms per operation.
    Stats,
    /// What is held in memory.
    Memory,
    /// Look for a disk that was away, and use it again.
    DiskStart {
        /// Its name.
        disk: String,
    },
    /// Place no new data on a disk, or do so again.
    DiskSuspend {
        /// Its name.
        disk: String,
        /// Which of the two.
        suspended: bool,
    },
    /// Replace a disk by a new one.
    DiskReplace {
        /// The old one's name.
        disk: String,
        /// The new one: a directory or a block device, absolute; `None` for the old one's place.
        path: Option<PathBuf>,
        /// Bytes of the new one's container; as the old one's if it is not named.
        size: Option<u64>,
        /// Bytes per second; 0 for no limit.
        rate: u64,
        /// Use a device that holds something else.
        force: bool,
    },
    /// Delete a disk; what it holds gets other places.
    DiskDelete {
        /// Its name.
        disk: String,
        /// Bytes per second; 0 for no limit.
        rate: u64,
    },
    /// Verify and mend everything in the background.
    ScrubStart {
        /// Bytes per second; 0 for no limit.
        rate: u64,
    },
    /// How far that is.
    ScrubStatus,
    /// End it.
    ScrubStop,
    /// Flush, unmount, end.
    Down {
        /// Even if the mount is busy.
        force: bool,
    },
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// The answer, shaped as the request wants it.
    Done(serde_json::Value),
    /// It failed; a sentence says why and what to do.
    Failed {
        /// What kind of error.
        kind: ErrorKind,
        /// The sentence.
        message: String,
    },
}

/// What [`Request::Status`] answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) mount: String,
    pub(crate) pid: u32,
    /// False once it is on its way down, whoever took the mount away. Older daemons do not say.
    #[serde(default = "yes")]
    pub(crate) serves: bool,
}

fn yes() -> bool {
    true
}

/// Sends a request to the daemon of `dir` and waits at most `limit` for the answer.
///
/// # Errors
/// `Unreachable` where no daemon answers; else what the daemon says.
pub(crate) fn call(dir: &DataDir, request: &Request, limit: Duration) -> Result<serde_json::Value> {
    let mut stream = UnixStream::connect(dir.socket_path()).map_err(|_| {
        Error::new(
            ErrorKind::Unreachable,
            format!(
                "the file system at {} is not up: `strake up --data {} --mount MNT` starts it",
                dir.root().display(),
                dir.root().display()
            ),
        )
    })?;
    stream.set_read_timeout(Some(limit))?;
    let mut line = serde_json::to_string(request)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("the daemon ended while it answered; see {}", dir.log_path().display()),
        ));
    }
    match serde_json::from_str(&answer) {
        Ok(Reply::Done(value)) => Ok(value),
        Ok(Reply::Failed { kind, message }) => Err(Error::new(kind, message)),
        Err(error) => Err(Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}"))),
    }
}

/// Asks, and reads the answer as a `T`.
///
/// # Errors
/// As [`call`].
pub(crate) fn ask<T: serde::de::DeserializeOwned>(dir: &DataDir, request: &Request) -> Result<T> {
    let value = call(dir, request, Duration::from_secs(3600))?;
    serde_json::from_value(value)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}")))
}
