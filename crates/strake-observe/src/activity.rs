//! The activity of the last seconds, by disk, by process and file, and by node: the figures of
//! `strake top`. They are added up from the recent past ([`Recent`]), so they cost nothing while
//! nobody asks.

use crate::disk_times::DiskWork;
use crate::links::LinkSums;
use crate::recent::{Interval, Recent};
use crate::requests::{Account, AccountKey, RequestKind, Tally};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use strake_proto::NsdId;

/// The activity of some seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// How long that was, in nanoseconds. 0 if nothing is known yet.
    pub nanos: u64,
    /// The disks that did something, by number.
    pub disks: Vec<DiskActivity>,
    /// The processes that asked for something, each with a file. The one whose requests took
    /// longest comes first.
    pub users: Vec<UserActivity>,
    /// The network to other nodes, by name.
    pub links: Vec<LinkActivity>,
}

/// The activity of a disk, or of the server of an NSD where the disk is elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskActivity {
    /// The disk.
    pub nsd: NsdId,
    /// It was read.
    pub reads: Tally,
    /// It was written.
    pub writes: Tally,
    /// Calls that made written bytes durable.
    pub syncs: Tally,
}

/// The requests of a process for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserActivity {
    /// The process. 0 stands for all that are not named.
    pub process: u32,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// The file or directory.
    pub inode: u64,
    /// Contents were read.
    pub reads: Tally,
    /// Contents were written.
    pub writes: Tally,
    /// Calls that made written bytes durable.
    pub syncs: Tally,
    /// Names and attributes.
    pub names: Tally,
    /// The thing that was waited for longest. Empty if nothing was.
    pub waited_for: String,
    /// How long that was, in nanoseconds.
    pub waited_ns: u64,
}

impl UserActivity {
    /// All its requests.
    pub fn all(&self) -> Tally {
        let mut all = Tally::default();
        let kinds = [self.reads, self.writes, self.syncs, self.names];
        kinds.iter().for_each(|it| all.add(it.count, it.nanos, it.bytes));
        all
    }

    fn of(key: AccountKey, account: &Account, name: &dyn Fn(u32) -> Option<String>) -> Self {
        let mut waits: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, reason, nanos) in &account.waits {
            *waits.entry(reason).or_default() += nanos;
        }
        let longest = waits.into_iter().max_by_key(|(_, nanos)| *nanos).unwrap_or_default();
        UserActivity {
            process: key.process,
            name: name(key.process),
            inode: key.inode,
            reads: *account.of(RequestKind::Read),
            writes: *account.of(RequestKind::Write),
            syncs: *account.of(RequestKind::Sync),
            names: *account.of(RequestKind::Names),
            waited_for: longest.0.to_owned(),
            waited_ns: longest.1,
        }
    }
}

/// How the network to a node was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkActivity {
    /// The node.
    pub node: String,
    /// Packets sent to it and received from it.
    pub packets: u64,
    /// Of these, sent again.
    pub packets_again: u64,
    /// Whether that is much.
    pub is_lossy: bool,
    /// The mean round trip of a ping, in nanoseconds, if one was answered.
    pub trip_ns: Option<u64>,
    /// Whether that is long.
    pub is_slow: bool,
}

impl Activity {
    /// The activity of the last `since`. `name` tells the name of a process.
    pub fn of(
        recent: &Recent,
        since: Duration,
        now: Duration,
        name: &dyn Fn(u32) -> Option<String>,
    ) -> Activity {
        let mut activity = Activity::default();
        let mut disks: BTreeMap<NsdId, DiskActivity> = BTreeMap::new();
        let mut accounts: BTreeMap<AccountKey, Account> = BTreeMap::new();
        let mut links: BTreeMap<String, LinkSums> = BTreeMap::new();
        recent.each(since, now, &mut |interval: &Interval| {
            activity.nanos += interval.nanos;
            for (nsd, work, sums) in &interval.disks {
                let disk = disks.entry(*nsd).or_default();
                disk.nsd = *nsd;
                let tally = match work {
                    DiskWork::Read => &mut disk.reads,
                    DiskWork::Write => &mut disk.writes,
                    DiskWork::Sync => &mut disk.syncs,
                };
                tally.add(sums.count, sums.nanos, sums.bytes);
            }
            for (key, account) in &interval.accounts {
                accounts.entry(*key).or_default().add(account);
            }
            for (node, sums) in &interval.links {
                links.entry(node.clone()).or_default().add(*sums);
            }
        });
        activity.disks = disks.into_values().collect();
        activity.users =
            accounts.iter().map(|(key, it)| UserActivity::of(*key, it, name)).collect();
        activity.users.sort_by_key(|it| Reverse(it.all().nanos));
        activity.links = links
            .into_iter()
            .map(|(node, sums)| LinkActivity {
                node,
                packets: sums.packets + sums.their_packets,
                packets_again: sums.packets_again + sums.their_packets_again,
                is_lossy: sums.is_lossy(),
                trip_ns: sums.mean_ns(),
                is_slow: sums.is_slow(),
            })
            .collect();
        activity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Observe;
    use crate::recent::{INTERVAL, Sample};
    use crate::requests::Request;
    use std::sync::Arc;
    use strake_env::answering::Waits;
    use strake_env::{Clock, ManualClock};

    #[test]
    fn the_last_seconds_are_added_up_by_disk_and_by_process_and_file() {
        let clock = Arc::new(ManualClock::default());
        let observe = Observe::new(Arc::clone(&clock) as Arc<dyn Clock>, 512);
        let ask = |process, kind, millis| {
            let (took, waits) = (Duration::from_millis(millis), Waits::NONE);
            let (inode, offset, bytes, is_refused) = (u64::from(process) + 5, 0, 100, false);
            let request = Request { process, inode, kind, offset, bytes, took, is_refused, waits };
            observe.requests.note(&request);
        };
        let step = |work: &dyn Fn()| {
            work();
            clock.advance(INTERVAL);
            observe.recent.record(&observe, &Sample::default(), clock.monotonic());
        };
        let disk = |nsd, work| {
            observe.disks.of(NsdId(nsd)).record(work, Duration::from_millis(8), 4096);
        };
        step(&|| ());
        step(&|| ask(1, RequestKind::Read, 900));
        step(&|| {
            ask(1, RequestKind::Write, 1);
            ask(2, RequestKind::Read, 2);
            disk(3, DiskWork::Write);
        });
        step(&|| {
            ask(1, RequestKind::Write, 3);
            disk(3, DiskWork::Write);
            disk(3, DiskWork::Sync);
        });
        let name = |process| (process == 1).then(|| "dd".to_owned());
        let of = |since| Activity::of(&observe.recent, since, clock.monotonic(), &name);
        let last = of(INTERVAL * 2);
        assert_eq!(last.nanos, 4_000_000_000);
        let tally = |count, millis: u64, bytes| Tally { count, nanos: millis * 1_000_000, bytes };
        let disk = DiskActivity {
            nsd: NsdId(3),
            reads: Tally::default(),
            writes: tally(2, 16, 8192),
            syncs: tally(1, 8, 4096),
        };
        assert_eq!(last.disks, [disk]);
        let users: Vec<_> = last.users.iter().map(|it| (it.process, it.inode, it.all())).collect();
        assert_eq!(users, [(1, 6, tally(2, 4, 200)), (2, 7, tally(1, 2, 100))]);
        assert_eq!(last.users[0].name.as_deref(), Some("dd"));
        assert_eq!(of(INTERVAL * 9).users[0].reads, tally(1, 900, 100));
    }
}
