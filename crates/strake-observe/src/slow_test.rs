//! Each cause is named where it is staged, and none where nothing is.

use super::*;
use crate::links::LinkSums;
use crate::recent::{PoolSample, ProcessorSample};
use crate::requests::Request;
use strake_env::answering::Waits;

/// A minute in which requests are made one after the other.
#[derive(Default)]
struct Minute {
    window: Window,
    facts: Facts,
}

const MS: u64 = 1_000_000;

impl Minute {
    fn new() -> Minute {
        let mut minute = Minute::default();
        minute.window.pool = PoolSample { budget: 4 << 30, used: 0, dirty: 0 };
        minute.facts.space = (1..=4).map(|nsd| (NsdId(nsd), 1 << 40, 1 << 39)).collect();
        minute.facts.nsds = (1..=4).map(|nsd| (NsdId(nsd), format!("nsd{nsd}"))).collect();
        minute.window.nanos = 60_000 * MS;
        minute.window.busy = 60_000 * MS;
        for nsd in 1..=4 {
            for work in DiskWork::ALL {
                minute.disk(nsd, work, 100, 2);
            }
        }
        minute
    }

    /// `count` requests that take `ms` each and wait for all of that, but for a tenth.
    fn ask(
        &mut self,
        kind: RequestKind,
        count: u64,
        (ms, bytes): (u64, u64),
        reason: &'static str,
    ) {
        self.ask_at(kind, count, (ms, bytes), reason, 0);
    }

    fn ask_at(
        &mut self,
        kind: RequestKind,
        count: u64,
        (ms, bytes): (u64, u64),
        reason: &'static str,
        offset: u64,
    ) {
        let mut waits = *Waits::NONE;
        if !reason.is_empty() {
            waits.add(reason, ms * MS * 9 / 10);
        }
        let took = Duration::from_millis(ms);
        let (process, inode) = (7, 12);
        let waits = &waits;
        let request =
            Request { process, inode, kind, offset, bytes, took, is_refused: false, waits };
        let key = AccountKey { process, inode };
        for _ in 0..count {
            self.window.all.note(&request);
            self.window.account.note(&request);
            self.window.accounts.entry(key).or_default().note(&request);
        }
    }

    fn disk(&mut self, nsd: u32, work: DiskWork, count: u64, ms: u64) {
        let sums = self.window.disks.entry((NsdId(nsd), work)).or_default();
        (0..count).for_each(|_| sums.count(Duration::from_millis(ms), 4096));
    }

    fn explain(&self) -> SlowReport {
        let name = |process| (process == 7).then(|| "dd".to_owned());
        explain(Duration::from_secs(60), &self.window, &self.facts, &name)
    }

    fn found(&self) -> Vec<String> {
        self.explain().findings.into_iter().map(|finding| finding.id).collect()
    }
}

#[test]
fn ordinary_work_on_equal_disks_is_not_slow() {
    let mut minute = Minute::new();
    assert_eq!(minute.found(), [""; 0]);
    minute.ask(RequestKind::Read, 1000, (2, 131_072), "NSD I/O completion");
    minute.ask(RequestKind::Write, 1000, (2, 131_072), "");
    minute.ask(RequestKind::Names, 100, (1, 0), "");
    assert_eq!(minute.found(), [""; 0]);
    let report = minute.explain();
    assert_eq!(report.requests, 2100);
    assert_eq!(report.spent.iter().map(|it| it.nanos).sum::<u64>(), report.busy_requests_ns);
}

#[test]
fn one_disk_that_takes_longer_than_its_peers_is_named_before_what_it_slows() {
    let mut minute = Minute::new();
    minute.disk(3, DiskWork::Write, 400, 60);
    minute.ask(RequestKind::Write, 100, (100, 1 << 20), "dirty pages to be written");
    minute.ask(RequestKind::Sync, 50, (100, 0), "NSD I/O completion");
    let report = minute.explain();
    let first = &report.findings[0];
    assert_eq!((&*first.id, report.findings.len()), ("slow-disk", 1));
    assert_eq!(first.title, "nsd3 is slower than its peers");
    assert!(first.evidence[0].starts_with("A write takes 48.4 ms on nsd3 and 2.00 ms on"));
    let who = first.who.as_ref().expect("somebody waited");
    assert_eq!((&*who.to_string(), who.inode), ("dd (7), inode 12", 12));
}

#[test]
fn a_single_long_io_makes_no_disk_slow_and_neither_does_a_fast_one() {
    let mut minute = Minute::new();
    minute.disk(3, DiskWork::Write, 1, 20_000);
    minute.ask(RequestKind::Sync, 15, (1000, 1 << 20), "NSD I/O completion");
    assert_eq!(slow_disks(&minute.window.disks), []);
    // Four times as long, and still fast.
    for (nsd, nanos) in [(1, 100), (2, 100), (3, 400)] {
        let sums = minute.window.disks.entry((NsdId(nsd), DiskWork::Read)).or_default();
        *sums = DiskSums::default();
        (0..100).for_each(|_| sums.count(Duration::from_micros(nanos), 4096));
    }
    minute.window.disks.remove(&(NsdId(4), DiskWork::Read));
    assert_eq!(slow_disks(&minute.window.disks), []);
}

#[test]
fn the_way_in_which_programs_write_is_named() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 1000, (1, 512), "");
    minute.ask(RequestKind::Sync, 1000, (10, 0), "metadata sync");
    assert_eq!(minute.found(), ["sync-per-record"]);

    let mut minute = Minute::new();
    minute.ask(RequestKind::Sync, 1000, (10, 512), "metadata sync");
    assert_eq!(minute.found(), ["sync-per-record"], "with O_SYNC");

    let mut minute = Minute::new();
    minute.ask_at(RequestKind::Write, 5000, (1, 100), "NSD call", 4097);
    minute.ask(RequestKind::Sync, 1, (5000, 0), "NSD call");
    let report = minute.explain();
    assert_eq!(report.findings[0].id, "small-writes");
    assert_eq!(report.findings[0].percent, 100, "the sync of small writes belongs to them");

    // The same number of writes in whole units is nobody's fault.
    let mut minute = Minute::new();
    minute.ask_at(RequestKind::Write, 5000, (1, 4096), "NSD call", 4096);
    assert_eq!(minute.found(), [""; 0]);
}

#[test]
fn a_small_page_pool_is_to_blame_and_a_large_one_is_not() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 10_000, (5, 1 << 20), "dirty pages to be written");
    assert_eq!(minute.found(), ["disks"], "the pool takes more than ten seconds of this");
    minute.window.pool.budget = 64 << 20;
    assert_eq!(minute.found(), ["page-pool"]);
}

#[test]
fn space_comes_before_everything_else() {
    let mut minute = Minute::new();
    minute.facts.space[1] = (NsdId(2), 1 << 30, 1 << 20);
    assert_eq!(minute.found(), ["full"], "a warning, before anybody has waited");
    minute.ask(RequestKind::Write, 100, (50, 65_536), "space of what was overwritten");
    minute.ask(RequestKind::Sync, 100, (50, 0), "NSD call");
    let report = minute.explain();
    assert_eq!((&*report.findings[0].id, report.findings.len()), ("full", 1));
    assert!(report.findings[0].evidence[0].contains("nsd2, has 1 MiB free of 1 GiB"));
    assert!(report.findings[0].nanos > 8_000 * MS);
}

#[test]
fn metadata_other_programs_processors_and_disks_are_named() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Names, 1000, (10, 0), "metadata change");
    assert_eq!(minute.found(), ["metadata"]);

    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 32_000, (0, 4096), "");
    minute.ask(RequestKind::Sync, 1000, (10, 0), "metadata log full");
    let report = minute.explain();
    assert_eq!(report.findings[0].id, "metadata-log", "it is not about names");
    assert_eq!(report.findings[0].evidence, ["'metadata log full' took 9.00 s."]);

    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 1000, (10, 65_536), "contents of the same file");
    assert_eq!(minute.found(), ["same-file"]);
    let title = |minute: &Minute| minute.explain().findings[0].title.clone();
    assert_eq!(title(&minute), "Programs wait for each other at the same file");
    minute.ask(RequestKind::Sync, 20, (10, 0), "sync of the same file");
    assert_eq!(minute.found(), ["same-file"]);
    let own = "A program's own syncs and requests wait for each other at one file";
    assert_eq!(title(&minute), own);
    let only = minute.window.accounts.iter().next().map(|(key, it)| (*key, it.clone()));
    let (key, account) = only.expect("one process");
    minute.window.accounts.insert(AccountKey { process: 8, ..key }, account);
    assert_eq!(title(&minute), "Programs wait for each other at the same file");

    let mut minute = Minute::new();
    minute.ask(RequestKind::Read, 1000, (10, 65_536), "");
    assert_eq!(minute.found(), [""; 0]);
    minute.window.processor =
        ProcessorSample { all: 100, busy: 95, own: 50, ..ProcessorSample::default() };
    assert_eq!(minute.found(), ["processor"]);

    let mut minute = Minute::new();
    (1..=4).for_each(|nsd| minute.disk(nsd, DiskWork::Read, 1000, 80));
    minute.ask(RequestKind::Read, 100, (100, 65_536), "NSD call");
    assert_eq!(minute.found(), ["disks"]);
}

#[test]
fn a_request_that_is_held_up_now_is_named_although_it_has_not_ended() {
    let mut minute = Minute::new();
    minute.facts.waiters.push(WaiterSnapshot {
        thread: "fuse-3".to_owned(),
        reason: "NSD I/O completion".to_owned(),
        detail: "write, NSD 2".to_owned(),
        since: strake_proto::Timestamp::default(),
        waited: Duration::from_secs(42),
        ..WaiterSnapshot::default()
    });
    let report = minute.explain();
    assert_eq!(report.findings[0].id, "held-up");
    assert!(report.findings[0].evidence[0].contains("42.0 s"), "{:?}", report.findings[0]);
}

#[test]
fn no_time_is_blamed_twice() {
    let mut minute = Minute::new();
    minute.disk(3, DiskWork::Sync, 900, 8);
    minute.ask(RequestKind::Write, 1000, (1, 512), "");
    minute.ask(RequestKind::Sync, 1000, (20, 0), "NSD call");
    let report = minute.explain();
    let ids: Vec<&str> = report.findings.iter().map(|it| &*it.id).collect();
    assert_eq!(ids, ["sync-per-record", "slow-disk"], "the disk explains 5 s of 20");
    let blamed: u64 = report.findings.iter().map(|it| it.nanos).sum();
    assert!(blamed <= report.busy_requests_ns, "{report:?}");
}

#[test]
fn a_report_is_printed_in_words() {
    let mut minute = Minute::new();
    let mut text = String::new();
    crate::print_slow_report(&mut text, &minute.explain()).expect("a string takes all");
    assert!(text.contains("Nothing is slow"), "{text}");
    minute.ask(RequestKind::Write, 1000, (1, 512), "");
    minute.ask(RequestKind::Sync, 1000, (10, 0), "metadata sync");
    let mut text = String::new();
    crate::print_slow_report(&mut text, &minute.explain()).expect("a string takes all");
    for part in [
        "In the last 60.0 s programs made 2000 requests, which took 11.0 s in all.",
        "1. A program makes each record durable by itself: 10.0 s, 91 % of the time of requests.",
        "   1000 syncs made 512 B durable each, for 1000 writes.",
        "   Most of it: dd (7), inode 12.",
        "   - Let the program sync once",
        "9.00 s   82 %  metadata",
    ] {
        assert!(text.contains(part), "'{part}' is not in:\n{text}");
    }
}

/// Waits of each place. Some belong to disks and to the daemon's own work.
const REASONS: [&str; 9] = [
    "NSD I/O completion",
    "metadata sync",
    "dirty pages to be written",
    "space that other mounts hold",
    "contents of the same file",
    "token",
    "lock",
    "adapter dropping",
    "",
];

/// `explain slow` once said that nothing was slow, above "58 %  files that other nodes hold".
#[test]
fn a_report_that_nothing_is_slow_shows_no_wait_that_could_be_avoided() {
    let mut without = 0;
    for first in REASONS {
        for second in REASONS {
            for kind in RequestKind::ALL {
                for (ms, count) in [(1, 300), (3, 300), (10, 30), (10, 400)] {
                    let mut minute = Minute::new();
                    minute.ask(kind, count, (ms, 65_536), first);
                    minute.ask_at(RequestKind::Read, count / 2, (ms, 65_536), second, 0);
                    let report = minute.explain();
                    let mut text = String::new();
                    crate::print_slow_report(&mut text, &report).expect("a string takes all");
                    assert_eq!(text.contains("Nothing is slow"), report.findings.is_empty());
                    if !report.findings.is_empty() {
                        continue;
                    }
                    without += 1;
                    let listed = text.lines().filter(|line| line.contains(" %  "));
                    for line in listed {
                        let what = line.rsplit("  ").next().expect("a line has words");
                        let ordinary = [Place::Disks.word(), Place::Own.word(), "everything else"];
                        assert!(ordinary.contains(&what), "{first}, {second}, {kind:?}: {text}");
                    }
                }
            }
        }
    }
    assert!(without > 50, "only {without} reports have no finding");
}

#[test]
fn waits_that_belong_to_no_other_cause_are_named() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 200, (20, 65_536), "adapter dropping");
    let report = minute.explain();
    let first = &report.findings[0];
    assert_eq!((&*first.id, &*first.title), ("waits", "Requests wait for 'adapter dropping'"));
    assert_eq!(first.evidence, ["'adapter dropping' took 3.60 s."]);
}

#[test]
fn times_are_written_with_three_digits() {
    let times =
        [(1, "0.00 µs"), (999_999, "1000 µs"), (1_500_000, "1.50 ms"), (12 * MS, "12.0 ms")];
    for (nanos, text) in times.into_iter().chain([(123_400 * MS, "123 s")]) {
        assert_eq!(time(nanos), text);
    }
}

fn sums(packets: u64, again: u64) -> LinkSums {
    LinkSums {
        answered: 60,
        trips_ns: 60 * MS,
        packets,
        packets_again: again,
        quickest_ns: Some(MS / 5),
        ..LinkSums::default()
    }
}

#[test]
fn a_network_that_loses_packets_is_named_before_the_disks_behind_it() {
    let mut minute = Minute::new();
    minute.disk(3, DiskWork::Write, 400, 60);
    minute.ask(RequestKind::Sync, 100, (200, 1 << 20), "NSD I/O completion");
    minute.window.links.insert("node2".into(), sums(4000, 9));
    minute.window.links.insert("node3".into(), sums(4000, 600));
    let report = minute.explain();
    let first = &report.findings[0];
    assert_eq!((&*first.id, report.findings.len()), ("network", 1));
    assert_eq!(first.title, "The network to node3 loses packets");
    assert!(first.evidence[0].starts_with("Of 4000 packets to node3 600 were sent again (15 %)"));
    // What the other end sends counts too.
    let mut back = sums(4000, 0);
    (back.their_packets, back.their_packets_again) = (900, 90);
    minute.window.links = [("node3".to_owned(), back)].into();
    assert!(minute.explain().findings[0].evidence[0].contains("900 packets from node3 90"));
    minute.window.links = [("node3".to_owned(), sums(4000, 9))].into();
    assert_eq!(minute.found(), ["slow-disk"], "a few are lost everywhere");
}

#[test]
fn a_network_is_slow_if_no_ping_is_fast() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Names, 1000, (50, 0), "metadata reply");
    let far = LinkSums { trips_ns: 60 * 40 * MS, quickest_ns: Some(38 * MS), ..sums(4000, 0) };
    minute.window.links.insert("node2".into(), far);
    let report = minute.explain();
    assert_eq!(report.findings[0].title, "The network to node2 is slow");
    assert!(report.findings[0].evidence[0].contains("took 40.0 ms on average"), "{report:?}");
    // Where the machine is busy, some pings take long, and not all.
    let busy = LinkSums { quickest_ns: Some(MS), ..far };
    minute.window.links.insert("node2".into(), busy);
    assert_eq!(minute.found(), ["metadata"]);
}

#[test]
fn a_node_that_was_silent_takes_no_more_than_its_silence() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Sync, 2, (8000, 1 << 20), "NSD I/O completion");
    let silent = LinkSums { silent_ns: 9000 * MS, ..sums(100, 0) };
    minute.window.links.insert("node3".into(), silent);
    let report = minute.explain();
    let first = &report.findings[0];
    assert_eq!((&*first.id, &*first.title), ("silent-node", "node3 did not answer"));
    assert_eq!(first.evidence[0], "Nothing came from node3 for 9.00 s.");
    assert_eq!(first.nanos, 9000 * MS);
    // Much else was slow meanwhile, and not for that.
    minute.ask(RequestKind::Names, 4000, (20, 0), "metadata reply");
    assert_eq!(minute.found(), ["metadata"]);
}

#[test]
fn what_a_silent_node_holds_up_now_is_blamed_on_it() {
    let mut minute = Minute::new();
    minute.facts.silent = vec![("node2".into(), 6000 * MS)];
    assert_eq!(minute.found(), [""; 0], "nobody waits");
    minute.facts.waiters = vec![WaiterSnapshot {
        thread: "fuse-3".into(),
        reason: "token".into(),
        detail: "inode 12".into(),
        since: strake_proto::Timestamp::default(),
        waited: Duration::from_secs(6),
        ..WaiterSnapshot::default()
    }];
    let report = minute.explain();
    let ids: Vec<&str> = report.findings.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["silent-node", "held-up"]);
    assert_eq!(report.findings[0].evidence[0], "Now node2 has been silent for 6.00 s.");
}

#[test]
fn files_that_nodes_take_from_each_other_are_named_by_path_and_node() {
    let mut minute = Minute::new();
    minute.ask(RequestKind::Write, 200, (20, 100), "token");
    let report = minute.explain();
    assert_eq!((&*report.findings[0].id, report.findings[0].percent), ("tokens", 90));
    let file = |path: &str, count: u64| HotFile {
        inode: 12,
        path: Some(path.into()),
        taken_per_second: count as f64 / 60.0,
        taken_from: vec![("node1".into(), count / 2), ("node2".into(), count / 2)],
        holders: Vec::new(),
    };
    minute.facts.hot = vec![file("/mnt/counter", 400), file("/mnt/other", 4)];
    let report = minute.explain();
    let first = &report.findings[0];
    assert_eq!((&*first.id, first.evidence.len()), ("token-conflict", 3));
    assert_eq!(first.title, "Nodes take /mnt/counter from each other");
    let wanted = "/mnt/counter was taken from node1 and node2 in turn, 6.7 times a second.";
    assert_eq!(first.evidence[0], wanted);
}
