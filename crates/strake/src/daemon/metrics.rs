//! Metrics for Prometheus: as text, and over HTTP if the setting `metrics` names an address.
//!
//! The server answers one request at a time, and knows only `GET /metrics`. Whoever can connect
//! may read the metrics, which name no files and no users.

use super::serve::Daemon;
use crate::data_dir::NodeConfig;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Weak;
use std::time::Duration;
use strake_array::NsdView;
use strake_env::net::{TcpListener, TcpStream};
use strake_env::process;
use strake_observe::metrics::{NsdSample, Scene, render};
use strake_observe::recent::{Filter, KEPT, PoolSample};
use strake_proto::{Error, ErrorKind, NsdId, Result};
use tracing::warn;

/// A client must have sent its request, and taken the answer, within this time.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// A longer request is refused.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// The type that Prometheus expects.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Takes the address of the setting. `None` if it is `off`.
///
/// # Errors
/// `Invalid`, with what to do, if the address cannot be had.
pub(super) fn listen(config: &NodeConfig) -> Result<Option<TcpListener>> {
    let address = config.settings.get("metrics");
    if address == "off" {
        return Ok(None);
    }
    TcpListener::bind(address).map(Some).map_err(|error| {
        let detail = format!("metrics={address}: {error}: choose another address, or `off`");
        Error::new(ErrorKind::Invalid, detail)
    })
}

/// Answers until the daemon ends.
pub(super) fn serve(listener: &TcpListener, daemon: &Weak<Daemon>) {
    for stream in listener.incoming().flatten() {
        let Some(daemon) = daemon.upgrade() else { return };
        if let Err(error) = answer(&stream, &daemon) {
            warn!(target: "daemon", "a request for metrics was not answered: {error}");
        }
    }
}

fn answer(mut stream: &TcpStream, daemon: &Daemon) -> Result<()> {
    stream.set_read_timeout(Some(CLIENT_MAX))?;
    stream.set_write_timeout(Some(CLIENT_MAX))?;
    let mut lines = BufReader::new(stream.take(REQUEST_BYTES_MAX)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // The client must have sent everything before the connection is closed.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let words: Vec<&str> = first.split_whitespace().collect();
    let (status, text) = match words[..] {
        ["GET", "/metrics", _] => ("200 OK", daemon.metrics()?),
        ["GET", ..] => ("404 Not Found", "there is only /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "there is only GET /metrics\n".to_owned()),
    };
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )?;
    Ok(())
}

impl Daemon {
    /// All metrics as text.
    pub(super) fn metrics(&self) -> Result<String> {
        let pool = self.life().vfs.view().page_pool;
        let disks = self.observe.disks.sums();
        let sample = |view: NsdView| {
            let availability = view.state.availability;
            let sample = NsdSample {
                name: self.nsd_name(view.nsd),
                is_up: availability.readable() && availability.writable(),
                space: (view.total, view.free),
                strips: (view.bad_strips, view.repaired),
            };
            (view.nsd, sample)
        };
        let nsds: BTreeMap<NsdId, NsdSample> =
            self.life().array.nsds().into_iter().map(sample).collect();
        Ok(render(&Scene {
            fs: self.config().name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            operations: self.observe.operations.sums(),
            disks: if disks.is_empty() { self.observe.calls.sums() } else { disks },
            nsds,
            pool: PoolSample { budget: pool.budget, used: pool.used, dirty: pool.dirty },
            resident: process::resident_bytes()?,
            processor_nanos: process::machine_times().own,
            waiters: self.observe.waiters.snapshot_with_locks(),
            health: self.health()?,
            slow: self.explain_slow(KEPT, Filter::default()),
        }))
    }
}
