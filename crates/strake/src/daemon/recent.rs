//! The recorder: every two seconds it adds what happened to the recent past. And the answers from
//! it.

use super::serve::Daemon;
use crate::admin::Totals;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;
use strake_array::NsdView;
use strake_env::links::SILENT_MIN;
use strake_env::process::{MachineTimes, machine_times};
use strake_env::{Clock, RealClock};
use strake_observe::recent::{Filter, INTERVAL, PoolSample, ProcessorSample, Sample};
use strake_observe::slow::{self, Facts};
use strake_observe::{Activity, DiskWork, Recent, SlowReport};
use strake_proto::NsdId;

/// Records until the daemon ends.
pub(super) fn record(daemon: &Weak<Daemon>) {
    while let Some(daemon) = daemon.upgrade() {
        if daemon.is_stopped() {
            return;
        }
        daemon.record_now();
        drop(daemon);
        RealClock.sleep(INTERVAL);
    }
}

fn processor() -> ProcessorSample {
    let MachineTimes { all, busy, own, received, sent } = machine_times();
    ProcessorSample { all, busy, own, network: (received, sent) }
}

impl Daemon {
    fn recent(&self) -> &Recent {
        &self.observe.recent
    }

    /// Adds what happened since the last time to the recent past.
    fn record_now(&self) {
        let pool = self.life().vfs.view().page_pool;
        let sample = Sample {
            pool: PoolSample { budget: pool.budget, used: pool.used, dirty: pool.dirty },
            processor: processor(),
        };
        let now = RealClock.monotonic();
        self.recent().record(&self.observe, &sample, now);
        let used = self.space().iter().map(|(_, total, free)| total.saturating_sub(*free)).sum();
        self.space_history.note(now, used);
    }

    /// Sums since the start.
    pub(super) fn totals(&self) -> Totals {
        let machine = machine_times();
        let mut totals = Totals {
            at_ns: u64::try_from(RealClock.monotonic().as_nanos()).unwrap_or(u64::MAX),
            processors_ns: machine.all,
            busy_ns: machine.busy,
            own_ns: machine.own,
            received: machine.received,
            sent: machine.sent,
            dirty_bytes: self.life().vfs.view().page_pool.dirty,
            waits: self.observe.waiters.snapshot_with_locks().len() as u64,
            ..Totals::default()
        };
        for it in self.observe.operations.sums() {
            match it.name {
                "fuse_read" => (totals.reads, totals.read_bytes) = (it.count, it.bytes),
                "fuse_write" => (totals.writes, totals.written_bytes) = (it.count, it.bytes),
                "fuse_fsync" | "fuse_fsyncdir" | "fuse_syncfs" => totals.syncs += it.count,
                name if name.starts_with("fuse_") => totals.names += it.count,
                _ => {}
            }
        }
        for (_, _, sums) in self.observe.calls.sums() {
            totals.calls += sums.count;
            totals.calls_ns += sums.nanos;
        }
        for (_, work, sums) in self.observe.disks.sums() {
            totals.disk_ios += sums.count;
            totals.disk_ns += sums.nanos;
            match work {
                DiskWork::Read => totals.disk_read_bytes += sums.bytes,
                DiskWork::Write | DiskWork::Sync => totals.disk_written_bytes += sums.bytes,
            }
        }
        totals
    }

    /// The NSDs in use, with all their bytes and the free ones.
    pub(super) fn space(&self) -> Vec<(NsdId, u64, u64)> {
        let in_use = |view: &NsdView| view.state.availability.writable() && view.total > 0;
        let views = self.life().array.nsds().into_iter().filter(in_use);
        views.map(|view| (view.nsd, view.total, view.free)).collect()
    }

    /// The nodes from which nothing comes although there are connections with them, and for how
    /// many nanoseconds.
    fn silent_nodes(&self) -> Vec<(String, u64)> {
        let peers = self.observe.links.view().into_iter();
        let long = u64::try_from(SILENT_MIN.as_nanos()).unwrap_or(u64::MAX);
        let silent = peers.filter(|peer| peer.connections > 0 && peer.silence_ns >= long);
        silent.map(|peer| (peer.name, peer.silence_ns)).collect()
    }

    /// The activity of the last `since`.
    pub(super) fn activity(&self, since: Duration) -> Activity {
        self.record_now();
        let name = |process| self.observe.requests.name(process);
        Activity::of(self.recent(), since, RealClock.monotonic(), &name)
    }

    /// What took the time of the last `since`.
    pub(super) fn explain_slow(&self, since: Duration, filter: Filter) -> SlowReport {
        self.record_now();
        let window = self.recent().window(since, RealClock.monotonic(), filter);
        let waiters = self.observe.waiters.snapshot_with_locks();
        let mut silent = self.silent_nodes();
        // The leader is asked only where somebody waits for what others hold.
        let waited = window.account.waits.iter().any(|(_, reason, _)| *reason == "token")
            || waiters.iter().any(|it| it.reason == "token");
        let tokens = waited.then(|| self.recent_tokens()).flatten().unwrap_or_default();
        for (node, nanos) in tokens.silent {
            let holds = tokens.waits.iter().any(|wait| wait.holders.contains(&node));
            if holds && silent.iter().all(|(known, _)| *known != node) {
                silent.push((node, nanos));
            }
        }
        let nsds = self.life().array.nsds().into_iter().map(|view| view.nsd);
        let nsds: BTreeMap<NsdId, String> = nsds.map(|nsd| (nsd, self.nsd_name(nsd))).collect();
        let facts = Facts {
            nsds,
            space: self.space(),
            processors: strake_env::thread::available_parallelism().map_or(1, usize::from) as u64,
            waiters,
            silent,
            hot: tokens.hot,
        };
        let name = |process| self.observe.requests.name(process);
        slow::explain(since, &window, &facts, &name)
    }
}
