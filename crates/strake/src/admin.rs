//! Commands to a running daemon. A client connects to the socket in the data directory, sends one
//! line with a JSON request, and reads one line with a JSON reply.
//!
//! The socket's mode keeps other users out. A process that can open the socket may do everything.

use crate::background::Order;
use crate::data_dir::DataDir;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use strake_env::net::UnixStream;
use strake_observe::recent::Filter;
use strake_observe::{HistogramOrder, IoCounters, Labels, TraceEvent, TraceQuestion};
use strake_proto::{Error, ErrorKind, FeatureLevel, Result};

/// The longest request or reply, in bytes. A longer line is refused.
pub(crate) const LINE_BYTES_MAX: u64 = 64 << 20;

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Report the file system's name, its mount point and the daemon's process.
    Status,
    /// Report configuration, space and disks: everything that `fs`, `nsd` and `disk` list.
    Show,
    /// Report the settings in force, and from what each is derived.
    Settings,
    /// Report how each component is.
    Health,
    /// Report sums since the start, of which `strake stat` makes rates.
    Totals,
    /// Report what the last seconds were spent on: `strake top` shows it.
    Activity {
        /// How far back.
        since: Duration,
    },
    /// Make everything durable.
    Sync,
    /// Learn that the mount is at another place now.
    Moved {
        /// The new mount point.
        mount: PathBuf,
    },
    /// Verify everything. One who closes the connection, or its own end of it (`shutdown`), has the
    /// check end soon. In the second case the answer is what was found until then.
    Check {
        /// Also read every strip and verify its checksums.
        data: bool,
    },
    /// Report how far a check is.
    CheckStatus,
    /// List the last I/Os.
    IoHistory,
    /// Report all metrics as text.
    Metrics,
    /// List everything that waits now.
    Waiters,
    /// List the threads of the daemon, and what each does now.
    Threads,
    /// Report how the network to other nodes is.
    Network,
    /// Report which files nodes take from each other, and what waits for files.
    Tokens,
    /// Report a histogram for each operation.
    Stats,
    /// Report what the daemon holds in memory.
    Memory,
    /// Report what programs did since the mount, or since the counters were reset.
    IoCounters {
        /// Set the counters to 0 first.
        reset: bool,
    },
    /// Turn the histograms of requests on or off, change or show them.
    Histograms {
        /// What is wanted.
        order: HistogramOrder,
    },
    /// Report what is known of a file.
    ExplainFile {
        /// Its number.
        inode: u64,
        /// At most so many of its blocks are looked for on the disks.
        blocks: u64,
    },
    /// Say what took the time of the recent past.
    ExplainSlow {
        /// How far back.
        since: Duration,
        /// Only these requests count.
        filter: Filter,
    },
    /// Start a trace. What an earlier one has recorded is dropped.
    TraceStart {
        /// How many events it keeps.
        events: usize,
    },
    /// Stop the trace.
    TraceStop,
    /// Add up what the trace has recorded.
    TraceReport {
        /// What the report is about.
        question: TraceQuestion,
    },
    /// List events of the trace.
    TraceEvents {
        /// Which events.
        question: TraceQuestion,
        /// Only events from this number on.
        from: u64,
    },
    /// Look for a disk that was away, and use it again.
    DiskStart {
        /// Its name.
        disk: String,
    },
    /// Stop placing new data on a disk, or start again.
    DiskSuspend {
        /// Its name.
        disk: String,
        /// True to stop, false to start again.
        suspended: bool,
    },
    /// Replace a disk by a new one.
    DiskReplace {
        /// The old one's name.
        disk: String,
        /// The new disk's directory or block device, absolute. `None` makes it in the old one's
        /// place.
        path: Option<PathBuf>,
        /// Bytes of the new container. `None` makes it as large as the old one.
        size: Option<u64>,
        /// Bytes per second; 0 for no limit.
        rate: u64,
        /// Use the device even if it holds something else.
        force: bool,
        /// The new disk in the user's words: in a cluster, the name of an NSD.
        #[serde(default)]
        given: Option<String>,
    },
    /// Add disks.
    DiskAdd {
        /// Each new disk's directory or block device, absolute, and the user's words: in a cluster,
        /// the name of an NSD.
        disks: Vec<(PathBuf, String)>,
        /// Bytes of each new container. `None` makes it as large as the largest one.
        size: Option<u64>,
        /// Use a device even if it holds something else.
        force: bool,
    },
    /// Delete a disk. Its strips get places on other disks.
    DiskDelete {
        /// Its name.
        disk: String,
        /// Bytes per second; 0 for no limit.
        rate: u64,
    },
    /// Verify and mend everything in the background.
    Scrub {
        /// The order.
        order: Order,
    },
    /// Move files that lie by an older layout to the newest one.
    Rebalance {
        /// The order.
        order: Order,
    },
    /// Flush, unmount, and end the daemon.
    Down {
        /// Do so even if the mount is busy.
        force: bool,
    },
}

impl Request {
    /// True for questions, which change nothing and are answered soon. Other nodes of the cluster
    /// may ask them.
    pub(crate) fn is_question(&self) -> bool {
        use Request as It;
        matches!(
            self,
            It::Status
                | It::Show
                | It::Totals
                | It::Activity { .. }
                | It::Settings
                | It::Health
                | It::Waiters
                | It::Threads
                | It::Network
                | It::Stats
                | It::Memory
                | It::ExplainSlow { .. }
        )
    }
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// The request succeeded. The form of the value depends on the request.
    Done(serde_json::Value),
    /// The request failed.
    Failed {
        /// The kind of error.
        kind: ErrorKind,
        /// A sentence that says why it failed and what to do.
        message: String,
    },
}

impl Reply {
    /// The reply that says how a request went.
    pub(crate) fn of(result: Result<serde_json::Value>) -> Reply {
        match result {
            Ok(value) => Reply::Done(value),
            Err(error) => Reply::Failed { kind: error.kind(), message: error.to_string() },
        }
    }

    /// The value of a request that succeeded.
    ///
    /// # Errors
    /// The error in the reply.
    pub(crate) fn into_result(self) -> Result<serde_json::Value> {
        match self {
            Reply::Done(value) => Ok(value),
            Reply::Failed { kind, message } => Err(Error::new(kind, message)),
        }
    }
}

/// The answer to [`Request::IoCounters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FsCounters {
    /// The cluster's identity.
    pub(crate) cluster: String,
    /// The file system's name.
    pub(crate) name: String,
    pub(crate) disks: usize,
    pub(crate) counters: IoCounters,
}

/// The answer to [`Request::Totals`]: sums since some moment in the past, except the last two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Totals {
    /// The daemon's clock that never goes back.
    pub(crate) at_ns: u64,
    /// Time of all processors, of this the busy one, and of that the daemon's.
    pub(crate) processors_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) own_ns: u64,
    /// Bytes on the machine's network.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Requests of programs.
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    pub(crate) names: u64,
    /// Reads, writes and commits that NSDs were asked for.
    pub(crate) calls: u64,
    pub(crate) calls_ns: u64,
    /// What the disks of this process did.
    pub(crate) disk_read_bytes: u64,
    pub(crate) disk_written_bytes: u64,
    pub(crate) disk_ios: u64,
    pub(crate) disk_ns: u64,
    /// Bytes that are not on disk now, and what waits now.
    pub(crate) dirty_bytes: u64,
    pub(crate) waits: u64,
}

/// The answer to [`Request::TraceEvents`]: a part of the events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TracePart {
    pub(crate) events: Vec<TraceEvent>,
    /// The names of what they name by number.
    pub(crate) labels: Labels,
    /// Where the next part begins. `None` if this is the last one.
    pub(crate) next: Option<u64>,
}

/// The answer to [`Request::Status`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) mount: String,
    pub(crate) pid: u32,
    /// True while the mount is in the tree of directories. It is false while the daemon ends, no
    /// matter why it ends. Older daemons do not send it.
    #[serde(default = "yes")]
    pub(crate) serves: bool,
    /// Where the file system is mounted. Older daemons do not send it.
    #[serde(default)]
    pub(crate) places: Vec<PathBuf>,
    /// The feature level that the daemon's program understands. Older daemons do not send it.
    #[serde(default)]
    pub(crate) understands: FeatureLevel,
}

fn yes() -> bool {
    true
}

/// Sends a request to the daemon of `dir` and waits at most `limit` for the answer.
///
/// # Errors
/// `Unreachable` if no daemon answers. Otherwise the error that the daemon reports.
pub(crate) fn call(dir: &DataDir, request: &Request, limit: Duration) -> Result<serde_json::Value> {
    exchange(dir, request, limit, &|| absent(dir))
}

/// What to say if no daemon of `dir` runs.
pub(crate) fn absent(dir: &DataDir) -> String {
    let root = dir.root().display();
    format!("the file system at {root} is not up: `strake up --data {root} --mount MNT` starts it")
}

/// Sends a request to the process that listens at the socket of `dir`, and waits at most `limit`
/// for the answer. `absent` is the message if no process does.
///
/// # Errors
/// `Unreachable` if nobody answers. Otherwise the error that the process reports.
pub(crate) fn exchange(
    dir: &DataDir,
    request: &impl Serialize,
    limit: Duration,
    absent: &dyn Fn() -> String,
) -> Result<serde_json::Value> {
    let stream = send(dir, request, limit, absent)?;
    receive(dir, &stream)
}

/// Sends a request as [`exchange`] does. [`receive`] waits for the answer.
///
/// # Errors
/// `Unreachable` if nobody listens.
pub(crate) fn send(
    dir: &DataDir,
    request: &impl Serialize,
    limit: Duration,
    absent: &dyn Fn() -> String,
) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(dir.socket_path())
        .map_err(|_| Error::new(ErrorKind::Unreachable, absent()))?;
    stream.set_read_timeout(Some(limit))?;
    let mut line = serde_json::to_string(request)
        .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    Ok(stream)
}

/// Waits for the answer to the request that was sent.
///
/// # Errors
/// As [`exchange`].
pub(crate) fn receive(dir: &DataDir, stream: &UnixStream) -> Result<serde_json::Value> {
    let mut answer = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("the daemon ended while it answered; see {}", dir.log_path().display()),
        ));
    }
    read_reply(answer.as_bytes())
}

/// The value of a [`Reply`], or the error that it reports.
///
/// # Errors
/// The error in the reply; `Corrupt` if it is none.
pub(crate) fn read_reply(answer: &[u8]) -> Result<serde_json::Value> {
    let reply: Reply = serde_json::from_slice(answer)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}")))?;
    reply.into_result()
}

/// Sends a request and reads the answer as a `T`.
///
/// # Errors
/// As [`call`].
pub(crate) fn ask<T: serde::de::DeserializeOwned>(dir: &DataDir, request: &Request) -> Result<T> {
    read_value(call(dir, request, Duration::from_secs(3600))?)
}

/// An answer as a `T`.
///
/// # Errors
/// `Corrupt` if it is none.
pub(crate) fn read_value<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("unreadable answer: {error}")))
}
