//! How the file system is: `strake health`.

use super::serve::Daemon;
use crate::node::NodeDir;
use crate::show::{Show, ShowNsd};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_observe::health::{self, Component, Health};
use strake_observe::recent::{Filter, KEPT};
use strake_observe::slow::{self, SlowDisk};
use strake_observe::{SlowReport, WaiterSnapshot};
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::{ByteCount, Code, Result};

/// A wait is long after this time.
const HELD_MIN: Duration = Duration::from_secs(10);
/// A wait is endless after this time.
const STUCK_MIN: Duration = Duration::from_secs(60);
/// Some disk has less than one part in so many free: space is low.
const LOW_PARTS: u64 = 16;
/// The disks are full soon if that is so within this time.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
/// A certificate ends soon if it does within so many seconds.
const CERTIFICATE_SOON: i64 = 30 * 24 * 3600;
const SECONDS_PER_DAY: u64 = 24 * 3600;

/// What is known of the file system.
struct Facts<'a> {
    show: &'a Show,
    /// Where it is mounted.
    places: Vec<String>,
    /// What was slow in the last minutes.
    report: &'a SlowReport,
    slow: Vec<SlowDisk>,
    waiters: Vec<WaiterSnapshot>,
    /// Seconds since 1970.
    now: i64,
    full_in: Option<Duration>,
    /// The second since 1970 at which the node's certificate ends, if there is one.
    certificate_ends: Option<i64>,
    /// The nodes that this one only reaches through others: which, and through which. `None`
    /// without a cluster.
    detours: Option<Vec<(String, String)>>,
}

impl Daemon {
    /// How the file system is.
    pub(super) fn health(&self) -> Result<Health> {
        let show = self.show()?;
        let report = self.explain_slow(KEPT, Filter::default());
        let window = self.observe.recent.window(KEPT, RealClock.monotonic(), Filter::default());
        let free = self.space().iter().map(|(_, _, free)| free).sum();
        let facts = Facts {
            places: self.status()?.places.iter().map(|it| it.display().to_string()).collect(),
            slow: slow::slow_disks(&window.disks),
            waiters: self.observe.waiters.snapshot_with_locks(),
            now: RealClock.wall().seconds,
            full_in: self.space_history.full_in(free),
            certificate_ends: self.certificate_ends(),
            detours: self.life().backend.cluster().map(|cluster| cluster.detours()),
            show: &show,
            report: &report,
        };
        Ok(facts.judge())
    }

    /// The second since 1970 at which the certificate of this node ends.
    fn certificate_ends(&self) -> Option<i64> {
        NodeDir::at(&self.config().node?).ok()?.credentials().ok()?.ends()
    }
}

impl Facts<'_> {
    /// There is none without a cluster.
    fn certificate(&self) -> Option<Component> {
        let left = self.certificate_ends?.saturating_sub(self.now);
        let name = "certificate";
        if left <= 0 {
            return Some(Component::with(name, &health::CERTIFICATE_ENDED, "it has ended"));
        }
        let text = format!("it ends in {}", days(Duration::from_secs(left.unsigned_abs())));
        Some(match left <= CERTIFICATE_SOON {
            true => Component::with(name, &health::CERTIFICATE_ENDS, text),
            false => Component::green(name, text),
        })
    }

    /// There is none without a cluster.
    fn links(&self) -> Option<Component> {
        let detours = self.detours.as_ref()?;
        if detours.is_empty() {
            return Some(Component::green("links", "every node is reached directly"));
        }
        let each = |(to, through): &(String, String)| format!("{to} through {through}");
        let text: Vec<String> = detours.iter().map(each).collect();
        Some(Component::with("links", &health::LINK_BAD, text.join(", ")))
    }

    fn judge(&self) -> Health {
        let mut all = vec![
            Component::green("daemon", format!("process {}", self.show.pid)),
            match &self.places[..] {
                [] => Component::with("mount", &health::MOUNT_GONE, "it is mounted nowhere"),
                places => Component::green("mount", places.join(", ")),
            },
        ];
        all.extend(self.show.nsds.iter().map(|nsd| self.nsd(nsd)));
        all.extend([self.space(), self.page_pool(), self.metadata(), self.requests()]);
        all.extend([self.waits(), self.clock()]);
        all.extend(self.links());
        all.extend(self.certificate());
        Health::of(all)
    }

    fn code(&self) -> Option<Code> {
        self.show.code.parse().ok()
    }

    fn nsd(&self, nsd: &ShowNsd) -> Component {
        let with = |event, text: String| Component::with(&*nsd.name, event, text);
        let is_away =
            matches!(nsd.availability, NsdAvailability::Down | NsdAvailability::Unrecovered);
        let is_late = |name: &str| {
            let what = format!("the space of {name}");
            self.show.late.iter().any(|late| late.what == what)
        };
        if is_away {
            let fault = nsd.fault.clone().unwrap_or_else(|| "it does not answer".to_owned());
            let is_tolerated =
                |code: Code| self.show.strips_missing(code) <= usize::from(code.parity);
            return match self.code().is_some_and(is_tolerated) {
                true => with(&health::NSD_DOWN, fault),
                false => with(&health::NSD_LOST, fault),
            };
        }
        if nsd.availability == NsdAvailability::Recovering {
            let done = nsd.recovered_bytes.zip(nsd.recovery_bytes);
            let text = done.map_or_else(String::new, |(done, all)| {
                format!("{} of {} compared", ByteCount(done), ByteCount(all))
            });
            return with(&health::NSD_RECOVERING, text);
        }
        match nsd.status {
            NsdStatus::Suspended => return with(&health::NSD_SUSPENDED, "suspended".to_owned()),
            NsdStatus::Ready => {}
            other => {
                let text = crate::show::status_name(other).to_owned();
                return with(&health::NSD_LEAVING, text);
            }
        }
        let bad =
            (nsd.bad_strips + nsd.bad_pages).saturating_sub(nsd.repaired_strips + nsd.mended_pages);
        if bad > 0 {
            return with(&health::NSD_BAD, format!("{bad} strips or pages are bad"));
        }
        if let Some(slow) = self.slow.iter().find(|slow| slow.nsd.0 == nsd.id) {
            let ms = |nanos: u64| nanos as f64 / 1e6;
            let (word, mine, peers) = (slow.work.word(), ms(slow.mean_ns), ms(slow.peers_ns));
            let text = format!("a {word} takes {mine:.1} ms, on the other disks {peers:.1} ms");
            return with(&health::NSD_SLOW, text);
        }
        if is_late(&nsd.name) {
            return with(&health::NSD_SILENT, "it does not tell its space".to_owned());
        }
        let space = nsd.free_bytes.zip(nsd.total_bytes);
        Component::green(
            &*nsd.name,
            space.map_or_else(
                || "up".to_owned(),
                |(free, total)| format!("up, {} free of {}", ByteCount(free), ByteCount(total)),
            ),
        )
    }

    fn space(&self) -> Component {
        let name = "space";
        let (Some(free), Some(usable)) = (self.show.free_bytes, self.show.usable_bytes) else {
            return Component::green(name, "not known yet");
        };
        let text = format!("{} free of {}", ByteCount(free), ByteCount(usable));
        let disks = self.show.nsds.iter().filter_map(|nsd| {
            let (total, free) = nsd.total_bytes.zip(nsd.free_bytes)?;
            Some((nsd, total, free))
        });
        let low = disks.filter(|(_, total, free)| *free < total / LOW_PARTS);
        let low = low.min_by_key(|(_, _, free)| *free);
        if free == 0 {
            return Component::with(name, &health::SPACE_OUT, text);
        }
        if let Some((nsd, total, free)) = low {
            let (free, total) = (ByteCount(free), ByteCount(total));
            let text = format!("{} has {free} free of {total}", nsd.name);
            return Component::with(name, &health::SPACE_LOW, text);
        }
        match self.full_in {
            Some(time) if time <= SOON => {
                let text = format!("{text}; full in {} at this rate", days(time));
                Component::with(name, &health::SPACE_SOON, text)
            }
            Some(time) => {
                Component::green(name, format!("{text}; full in {} at this rate", days(time)))
            }
            None => Component::green(name, text),
        }
    }

    fn page_pool(&self) -> Component {
        let small = self.report.findings.iter().find(|it| it.id == "page-pool");
        match small {
            Some(found) => {
                let text = format!("{} % of the time of requests", found.percent);
                Component::with("pagepool", &health::POOL_SMALL, text)
            }
            None => Component::green("pagepool", "large enough for what is written"),
        }
    }

    fn metadata(&self) -> Component {
        let holders = self.show.nsds.iter().filter(|nsd| nsd.holds_metadata == Some(true)).count();
        if self.show.nsds.iter().any(|nsd| nsd.holds_metadata.is_none()) {
            return Component::green("metadata", "the copies are not known yet");
        }
        let wanted = self.code().map_or(1, |code| usize::from(code.parity) + 1);
        let wanted = wanted.min(self.show.nsds.len());
        let text = format!("{holders} copies");
        let holding = self.show.nsds.iter().filter(|nsd| nsd.holds_metadata == Some(true));
        let silent: Vec<&str> = holding
            .filter(|nsd| !nsd.availability.readable() && nsd.total_bytes.is_none())
            .map(|nsd| nsd.name.as_str())
            .collect();
        if !silent.is_empty() {
            let text = format!("{text}, and no answer from {}", silent.join(", "));
            return Component::with("metadata", &health::METADATA_AWAY, text);
        }
        match holders < wanted {
            true => {
                let text = format!("{text} of {wanted}");
                Component::with("metadata", &health::METADATA_COPIES, text)
            }
            false => Component::green("metadata", text),
        }
    }

    fn requests(&self) -> Component {
        // These have a component of their own.
        let others = ["page-pool", "full", "held-up", "slow-disk"];
        let slow = self.report.findings.iter().find(|it| !others.contains(&&*it.id));
        match slow {
            Some(found) => {
                let text = format!("{} ({})", found.title, found.id);
                Component::with("requests", &health::REQUESTS_SLOW, text)
            }
            None => {
                let count = self.report.requests;
                Component::green("requests", format!("{count} in the last ten minutes, none slow"))
            }
        }
    }

    fn waits(&self) -> Component {
        // A lock of a program may be held for as long as the program likes.
        let waits = self.waiters.iter().filter(|wait| wait.reason != "lock");
        let Some(wait) = waits.max_by_key(|wait| wait.waited) else {
            return Component::green("waits", "nothing waits");
        };
        let (seconds, reason) = (wait.waited.as_secs(), &wait.reason);
        let text = format!("{} has waited {seconds} s for '{reason}' {}", wait.thread, wait.detail);
        if wait.waited >= STUCK_MIN {
            return Component::with("waits", &health::REQUESTS_STUCK, text);
        }
        match wait.waited >= HELD_MIN {
            true => Component::with("waits", &health::REQUESTS_HELD, text),
            false => Component::green("waits", "none is long"),
        }
    }

    fn clock(&self) -> Component {
        let ahead = self.show.created_seconds.saturating_sub(self.now);
        match ahead > 0 {
            true => {
                let text = format!("it is {ahead} s before the file system was made");
                Component::with("clock", &health::CLOCK_BACK, text)
            }
            false => Component::green("clock", "after the file system was made"),
        }
    }
}

/// A time in days, or in hours if it is short.
fn days(time: Duration) -> String {
    match time.as_secs() / SECONDS_PER_DAY {
        0 => format!("{} hours", time.as_secs() / 3600),
        days => format!("{days} days"),
    }
}

#[cfg(test)]
#[path = "health_test.rs"]
mod health_test;
