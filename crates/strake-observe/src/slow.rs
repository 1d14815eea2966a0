//! Says where the time of the recent past went, and what is to blame for it.
//!
//! The time of all requests is laid out by the kind of the request and by the [`Place`] where it
//! was spent. Causes then take their time from that: first a full file system, a bad network, a
//! silent node and a slow disk, which make everything else slow, then files that nodes take from
//! each other, the way in which programs write, the page pool, the metadata, files that several
//! programs want, the processor, the disks, and all other waits. So no time is blamed
//! twice. A cause is a [`Finding`] if it explains at least [`SHARE_MIN`] of the time and
//! [`BLAME_MIN`] in all. Findings are ranked by the time that they explain.
//!
//! Every place but two has a cause that takes all of it, so a report without a finding has no place
//! but these two with so much time. The two are the disks and the daemon's own work: requests have
//! to spend time there.

mod nodes;

use crate::disk_times::{DiskSums, DiskWork};
use crate::recent::Window;
use crate::requests::{Account, AccountKey, RequestKind};
use crate::slow_report::{Finding, SlowReport, Spent, Who};
use crate::tokens::HotFile;
use crate::waiters::WaiterSnapshot;
use std::collections::BTreeMap;
use std::time::Duration;
use strake_proto::{ByteCount, NsdId};

/// A cause must explain so much time.
const BLAME_MIN: Duration = Duration::from_millis(500);
/// A cause must explain this part of the time of requests.
const SHARE_MIN: f64 = 0.2;
/// A disk is slow if it takes so many times as long as its peers.
const SLOW_TIMES: u64 = 3;
/// A disk is not slow if it takes no more than this longer than its peers.
const SLOW_BY_MIN: Duration = Duration::from_millis(3);
/// A disk is compared only after so many I/Os.
const COMPARED_MIN: u64 = 10;
/// An I/O should not take longer than this.
const IO_EXPECTED: Duration = Duration::from_millis(10);
/// And for each so many bytes a second longer.
const BYTES_PER_SECOND_EXPECTED: u64 = 50 << 20;
/// A sync should not take longer than this.
const SYNC_EXPECTED: Duration = Duration::from_millis(20);
/// All disks are slow if they take so many times as long as expected.
const ALL_SLOW_TIMES: u64 = 3;
/// A program syncs each record if it syncs at least so often.
const SYNCS_MIN: u64 = 20;
/// And if there are no more writes than this for each sync.
const WRITES_PER_SYNC_MAX: u64 = 4;
/// And if a sync makes no more than this durable.
const BYTES_PER_SYNC_MAX: u64 = 256 << 10;
/// Small writes are to blame if there are so many.
const SMALL_MIN: u64 = 100;
/// A file system with less than one part in so many free on some disk is nearly full.
const NEARLY_FULL_PARTS: u64 = 16;
/// The processors are busy above this percentage.
const BUSY_PERCENT: u64 = 85;
/// A page pool should take what is written within this time.
const POOL_SECONDS: f64 = 1.0;
/// A thread that answers a request should not wait longer than this for one thing.
const STUCK_MIN: Duration = Duration::from_secs(5);

/// Where the time of requests is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Disks, or the servers of NSDs.
    Disks,
    /// Metadata: its log, its locks, other requests for the same names.
    Metadata,
    /// Writers wait for the page pool.
    PagePool,
    /// Writers wait for space on the disks.
    Space,
    /// Others use the same file.
    SameFile,
    /// Files that other nodes hold or that the leader hands out, and leases.
    Nodes,
    /// Anything else that is waited for.
    Others,
    /// The daemon's own work, and waiting for a processor.
    Own,
}

impl Place {
    /// All places.
    pub const ALL: [Place; 8] = [
        Place::Disks,
        Place::Metadata,
        Place::PagePool,
        Place::Space,
        Place::SameFile,
        Place::Nodes,
        Place::Others,
        Place::Own,
    ];

    /// The place as people read it.
    pub fn word(self) -> &'static str {
        match self {
            Place::Disks => "disks",
            Place::Metadata => "metadata",
            Place::PagePool => "room in the page pool",
            Place::Space => "space on the disks",
            Place::SameFile => "others that use the same file",
            Place::Nodes => "files that other nodes hold or that the leader hands out",
            Place::Others => "other waits",
            Place::Own => "work in the daemon, and its turn on a processor",
        }
    }

    /// The place where a wait of this reason is spent.
    pub fn of(reason: &str) -> Place {
        match reason {
            "room in the page pool" | "dirty pages to be written" => Place::PagePool,
            "turn to find space"
            | "space of what was written anew"
            | "space of what was overwritten"
            | "space that other mounts hold"
            | "others who settle"
            | "ask for space" => Place::Space,
            "contents of the same file"
            | "block of a file"
            | "end of the same file"
            | "sync of the same file"
            | "size of the same file"
            | "write-back of the same file" => Place::SameFile,
            "token" | "lease" | "for the lease of" => Place::Nodes,
            "names in the same directory"
            | "opening or removal of the same file"
            | "directory move"
            | "copy of the metadata being made"
            | "for a change of"
            | "for an answer of"
            | "for a sync of"
            | "for a connection with"
            | "for the window of changes to"
            | "earlier changes of names"
            | "for the node that serves"
            | "for the server process" => Place::Metadata,
            "commit of the NSDs"
            | "gate of the writes to NSDs"
            | "note of an NSD's state"
            | "deletions of ranges"
            | "for a strip write on"
            | "for a strip read on"
            | "for a commit on"
            | "for space on"
            | strake_env::answering::PARTS => Place::Disks,
            _ if reason.starts_with("metadata ") => Place::Metadata,
            _ if reason.starts_with("NSD ") => Place::Disks,
            _ => Place::Others,
        }
    }
}

/// What the daemon knows besides the recent past.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The names of the NSDs.
    pub nsds: BTreeMap<NsdId, String>,
    /// Of each NSD in use: all bytes and free bytes.
    pub space: Vec<(NsdId, u64, u64)>,
    /// The processors of this machine.
    pub processors: u64,
    /// What waits now.
    pub waiters: Vec<WaiterSnapshot>,
    /// Nodes from which nothing comes now, and for how many nanoseconds.
    pub silent: Vec<(String, u64)>,
    /// The files that nodes take from each other, the hottest first.
    pub hot: Vec<HotFile>,
}

impl Facts {
    fn nsd(&self, nsd: NsdId) -> String {
        self.nsds.get(&nsd).cloned().unwrap_or_else(|| format!("NSD {nsd}"))
    }
}

/// The time of requests that no cause has taken yet, by kind and place, in nanoseconds.
#[derive(Clone)]
struct Blame {
    left: [[f64; Place::ALL.len()]; RequestKind::ALL.len()],
}

impl Blame {
    fn of(account: &Account) -> Blame {
        let mut left = [[0.0; Place::ALL.len()]; RequestKind::ALL.len()];
        for (kind, row) in RequestKind::ALL.into_iter().zip(&mut left) {
            row[Place::Own as usize] = account.of(kind).nanos as f64;
        }
        for (kind, reason, nanos) in &account.waits {
            let row = &mut left[usize::from(*kind)];
            let nanos = (*nanos as f64).min(row[Place::Own as usize]);
            row[Place::of(reason) as usize] += nanos;
            row[Place::Own as usize] -= nanos;
        }
        Blame { left }
    }

    fn at(&self, kinds: &[RequestKind], places: &[Place]) -> f64 {
        let cell = |kind: &RequestKind, place: &Place| self.left[*kind as usize][*place as usize];
        kinds.iter().flat_map(|kind| places.iter().map(move |place| cell(kind, place))).sum()
    }

    /// Takes at most `limit` from some kinds and places, from each the same part.
    fn take(&mut self, kinds: &[RequestKind], places: &[Place], limit: f64) -> f64 {
        let all = self.at(kinds, places);
        let taken = all.min(limit.max(0.0));
        if all > 0.0 {
            let stays = 1.0 - taken / all;
            for kind in kinds {
                for place in places {
                    self.left[*kind as usize][*place as usize] *= stays;
                }
            }
        }
        taken
    }
}

/// See the head of this file. `name` tells the name of a process.
pub fn explain(
    asked: Duration,
    window: &Window,
    facts: &Facts,
    name: &dyn Fn(u32) -> Option<String>,
) -> SlowReport {
    let case = Case { window, facts, account: &window.account, name };
    let mut blame = Blame::of(&window.account);
    let places = Place::ALL.into_iter().map(|place| Spent {
        what: place.word().to_owned(),
        nanos: blame.at(&RequestKind::ALL, &[place]) as u64,
    });
    let mut spent: Vec<Spent> = places.filter(|it| it.nanos > 0).collect();
    spent.sort_by_key(|it| std::cmp::Reverse(it.nanos));
    let all = window.account.nanos() as f64;
    let least = (BLAME_MIN.as_nanos() as f64).max(all * SHARE_MIN);
    let causes: [Cause<'_>; 14] = [
        Case::full,
        Case::network,
        Case::silent_node,
        Case::slow_disk,
        Case::token_conflict,
        Case::sync_per_record,
        Case::small_writes,
        Case::page_pool,
        Case::metadata_log,
        Case::metadata,
        Case::same_file,
        Case::processor,
        Case::disks,
        Case::other_waits,
    ];
    let mut findings = Vec::new();
    for cause in causes {
        let mut after = blame.clone();
        if let Some(finding) = cause(&case, &mut after).filter(|it| it.nanos as f64 >= least) {
            findings.push(finding);
            blame = after;
        }
    }
    findings.extend(case.stuck());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.nanos));
    if !findings.iter().any(|finding| finding.id == "full") {
        findings.extend(case.nearly_full());
    }
    SlowReport {
        asked_ns: nanos(asked),
        known_ns: window.nanos,
        busy_ns: window.busy,
        requests: window.all.count(),
        requests_ns: window.all.nanos(),
        busy_requests_ns: window.account.nanos(),
        named_from_ns: least as u64,
        spent,
        findings,
    }
}

/// Takes the time that a cause explains.
type Cause<'a> = fn(&Case<'a>, &mut Blame) -> Option<Finding>;

struct Case<'a> {
    window: &'a Window,
    facts: &'a Facts,
    account: &'a Account,
    name: &'a dyn Fn(u32) -> Option<String>,
}

use Place::{Disks, Metadata, Others, Own, PagePool, SameFile, Space};
use RequestKind::{Names, Read, Sync, Write};

impl Case<'_> {
    /// A finding about the process and file that `of` says most of.
    fn finding(
        &self,
        id: &str,
        (title, nanos): (String, f64),
        of: &dyn Fn(&Account) -> u64,
        evidence: Vec<String>,
        advice: &[&str],
    ) -> Finding {
        let accounts = self.window.accounts.iter().filter(|(key, _)| key.process != 0);
        let most = accounts.max_by_key(|(_, account)| of(account));
        let who = most.filter(|(_, account)| of(account) > 0).map(|(key, account)| {
            let AccountKey { process, inode } = *key;
            Who { process, name: (self.name)(process), inode, file: None, nanos: account.nanos() }
        });
        Finding {
            id: id.to_owned(),
            title,
            nanos: nanos as u64,
            percent: percent(nanos, self.account.nanos() as f64).min(100),
            evidence,
            advice: advice.iter().map(|text| (*text).to_owned()).collect(),
            who,
        }
    }

    /// The disk with the smallest part of its space free, and that part.
    fn fullest(&self) -> Option<(NsdId, u64, u64)> {
        let known = self.facts.space.iter().filter(|(_, total, _)| *total > 0);
        known
            .copied()
            .min_by_key(|(_, total, free)| u128::from(*free) * 1_000_000 / u128::from(*total))
    }

    fn is_nearly_full(&self) -> bool {
        self.fullest().is_some_and(|(_, total, free)| free < total / NEARLY_FULL_PARTS)
    }

    fn space_evidence(&self) -> Option<String> {
        let (nsd, total, free) = self.fullest()?;
        let (nsd, free, total) = (self.facts.nsd(nsd), ByteCount(free), ByteCount(total));
        Some(format!("The fullest disk, {nsd}, has {free} free of {total}."))
    }

    fn full(&self, blame: &mut Blame) -> Option<Finding> {
        let (space, refused) =
            (blame.take(&RequestKind::ALL, &[Space], f64::MAX), self.account.refused);
        if refused == 0 && space == 0.0 {
            return None;
        }
        // What is written while there is hardly any room is written in small steps.
        let places = [Disks, PagePool, Metadata, SameFile, Others];
        let near = self.is_nearly_full() && (space > 0.0 || refused > 0);
        let more = if near { blame.take(&[Write, Sync], &places, f64::MAX) } else { 0.0 };
        let mut evidence: Vec<String> = self.space_evidence().into_iter().collect();
        if space > 0.0 {
            evidence.push(format!("Writes waited {} for space.", time(space as u64)));
        }
        if refused > 0 {
            evidence.push(format!("{refused} requests failed because there was no space."));
        }
        let advice = [
            "Delete or move files: `strake fs df` shows the space of each disk.",
            "The space of deleted files is free again within seconds.",
        ];
        let title = ("A disk is nearly full".to_owned(), space + more);
        Some(self.finding("full", title, &Account::written, evidence, &advice))
    }

    /// A warning, if no time was lost over it yet.
    fn nearly_full(&self) -> Option<Finding> {
        if !self.is_nearly_full() {
            return None;
        }
        let evidence = self.space_evidence().into_iter().collect();
        let advice = ["Delete or move files, before writes become slow or fail with ENOSPC."];
        let title = ("A disk is nearly full".to_owned(), 0.0);
        Some(self.finding("full", title, &|_| 0, evidence, &advice))
    }

    fn slow_disk(&self, blame: &mut Blame) -> Option<Finding> {
        let slow = slow_disks(&self.window.disks);
        let worst = slow.first()?;
        let name = self.facts.nsd(worst.nsd);
        let of = slow.iter().filter(|it| it.nsd == worst.nsd);
        let excess: f64 = of.clone().map(|it| it.excess_ns as f64).sum();
        let places = [Disks, PagePool, Metadata, SameFile, Space];
        let taken = blame.take(&RequestKind::ALL, &places, excess);
        let evidence = of.map(|it| {
            let (mine, peers) = (time(it.mean_ns), time(it.peers_ns));
            let word = it.work.word();
            format!(
                "A {word} takes {mine} on {name} and {peers} on the other disks ({} {word}s).",
                it.count
            )
        });
        let evidence = evidence.collect();
        let suspend = format!("`strake disk suspend {name}` keeps new data off it.");
        let replace =
            format!("`strake disk replace {name} PATH` moves what it holds to a new disk.");
        let advice = [
            "A stripe is written when all its strips are: one slow disk slows all.",
            "Look at the disk itself (smartctl, the kernel's log), its cable, and what else uses it.",
            &suspend,
            &replace,
        ];
        let title = (format!("{name} is slower than its peers"), taken);
        Some(self.finding("slow-disk", title, &Account::nanos, evidence, &advice))
    }

    fn sync_per_record(&self, blame: &mut Blame) -> Option<Finding> {
        let syncs = self.account.of(Sync);
        let writes = self.account.writes();
        let written = self.account.written();
        if syncs.count < SYNCS_MIN
            || writes > syncs.count * WRITES_PER_SYNC_MAX
            || written > syncs.count * BYTES_PER_SYNC_MAX
        {
            return None;
        }
        let taken = blame.take(&[Sync], &Place::ALL, f64::MAX);
        let each = time(syncs.nanos / syncs.count);
        let bytes = ByteCount(written / syncs.count);
        let evidence = vec![
            format!("{} syncs made {bytes} durable each, for {writes} writes.", syncs.count),
            format!("A sync took {each}."),
        ];
        let advice = [
            "Let the program sync once for many records: a group commit, a larger transaction.",
            "A database has a setting for it: `commit_delay`, `synchronous_commit`, PRAGMA synchronous.",
            "A disk with a write cache that outlasts a power cut makes each sync shorter.",
        ];
        let title = ("A program makes each record durable by itself".to_owned(), taken);
        Some(self.finding("sync-per-record", title, &|it| it.of(Sync).nanos, evidence, &advice))
    }

    fn small_writes(&self, blame: &mut Blame) -> Option<Finding> {
        let (small, writes) = (self.account.small, self.account.writes());
        if small.count < SMALL_MIN || small.count * 2 < writes {
            return None;
        }
        let part = small.count as f64 / writes as f64;
        let of_writes = part * blame.at(&[Write], &Place::ALL);
        let of_syncs = part * blame.at(&[Sync], &Place::ALL);
        let taken = blame.take(&[Write], &Place::ALL, of_writes)
            + blame.take(&[Sync], &Place::ALL, of_syncs);
        let bytes = ByteCount(small.bytes / small.count);
        let mut evidence = vec![format!(
            "{} of {writes} writes are shorter than 4 KiB or do not begin at a multiple of 4 KiB. \
             They have {bytes} on average.",
            small.count
        )];
        let read = self.disk(DiskWork::Read);
        let programs = self.account.of(Read);
        if read.count > programs.count {
            evidence.push(format!(
                "The disks were read {} times ({}), and programs read {} times: what a write \
                 covers in part must be read first.",
                read.count,
                ByteCount(read.bytes),
                programs.count
            ));
        }
        let advice = [
            "Let the program write in multiples of 4 KiB that begin at a multiple of 4 KiB, better \
             in whole blocks (`strake fs show` has the block size).",
            "A larger buffer in the program is often enough: `setvbuf`, `dd bs=`, a larger page.",
        ];
        let title = ("Programs write in small or unaligned pieces".to_owned(), taken);
        Some(self.finding("small-writes", title, &|it| it.small.nanos, evidence, &advice))
    }

    /// Sums of all disks.
    fn disk(&self, work: DiskWork) -> DiskSums {
        let mut all = DiskSums::default();
        let of_kind = self.window.disks.iter().filter(|((_, of), _)| *of == work);
        of_kind.for_each(|(_, sums)| all.add(sums));
        all
    }

    /// The bytes a second that programs wrote.
    fn write_rate(&self) -> f64 {
        self.account.written() as f64 / (self.window.busy as f64 / 1e9).max(0.001)
    }

    /// Whether the page pool takes less than what is written in a moment.
    fn is_pool_small(&self) -> bool {
        self.write_rate() * POOL_SECONDS > (self.window.pool.budget / 2) as f64
    }

    fn page_pool(&self, blame: &mut Blame) -> Option<Finding> {
        if !self.is_pool_small() {
            return None;
        }
        let taken = blame.take(&RequestKind::ALL, &[PagePool], f64::MAX);
        let (pool, rate) = (self.window.pool, self.write_rate());
        let evidence = vec![
            format!("Programs waited {} for room in the page pool.", time(taken as u64)),
            format!(
                "It has {}, and half of that may wait to be written. Programs wrote {} a second.",
                ByteCount(pool.budget),
                ByteCount(rate as u64)
            ),
        ];
        let advice = [
            "Give it more memory, at the next start: `strake up … --set pagepool=SIZE`. Without \
             the setting it takes a quarter of the machine's memory.",
            "A larger pool evens out bursts. If programs write all the time, the disks decide.",
        ];
        let title = ("The page pool is too small for what is written".to_owned(), taken);
        Some(self.finding("page-pool", title, &Account::written, evidence, &advice))
    }

    /// The longest wait of requests of some kinds at a place, and a sentence about each of the
    /// three first reasons. `None` if they did not wait there.
    fn reasons(&self, kinds: &[RequestKind], place: Place) -> Option<(&'static str, Vec<String>)> {
        let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
        for (kind, reason, nanos) in &self.account.waits {
            let is_wanted = kinds.iter().any(|wanted| *wanted as usize == usize::from(*kind));
            if is_wanted && Place::of(reason) == place {
                *sums.entry(*reason).or_default() += nanos;
            }
        }
        let mut sums: Vec<(&'static str, u64)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
        let sentence = |(it, nanos): &(&str, u64)| format!("'{it}' took {}.", time(*nanos));
        let (first, _) = sums.first()?;
        Some((*first, sums.iter().take(3).map(sentence).collect()))
    }

    /// Requests that are not about names, and wait for metadata: what they sync or write goes into
    /// its log.
    fn metadata_log(&self, blame: &mut Blame) -> Option<Finding> {
        let taken = blame.take(&[Read, Write, Sync], &[Metadata], f64::MAX);
        let (_, evidence) = self.reasons(&[Read, Write, Sync], Metadata)?;
        let advice = [
            "Small syncs go into the metadata's log: fast disks for the metadata help (`strake disk \
             list` shows which).",
            "`strake diag waiters` shows what they wait for while it lasts.",
        ];
        let title = ("Programs wait for the metadata's log".to_owned(), taken);
        let of = |account: &Account| account.of(Sync).nanos + account.of(Write).nanos;
        Some(self.finding("metadata-log", title, &of, evidence, &advice))
    }

    fn metadata(&self, blame: &mut Blame) -> Option<Finding> {
        let names = self.account.of(Names);
        let mean = names.nanos.checked_div(names.count).unwrap_or(0);
        let taken = blame.take(&[Names], &[Metadata, Disks, SameFile], f64::MAX)
            + blame.take(&[Read, Write, Sync], &[Metadata], f64::MAX);
        let mut most: Vec<_> = self.window.operations.values().collect();
        most.retain(|it| is_about_names(it.name));
        most.sort_by_key(|it| std::cmp::Reverse(it.nanos));
        let mut evidence =
            vec![format!("{} requests about names took {} each.", names.count, time(mean))];
        evidence.extend(most.iter().take(3).map(|it| {
            let (count, each) = (it.count, time(it.nanos / it.count.max(1)));
            format!("{}: {count} times, {each} each.", it.name.trim_start_matches("fuse_"))
        }));
        let advice = [
            "Names become durable with the disks that hold the metadata: fast disks there help \
             (`strake disk list` shows which).",
            "Spread very many names over several directories, and let programs work side by side.",
        ];
        let title = ("Names and attributes take the time".to_owned(), taken);
        Some(self.finding("metadata", title, &|it| it.of(Names).nanos, evidence, &advice))
    }

    fn same_file(&self, blame: &mut Blame) -> Option<Finding> {
        let taken = blame.take(&RequestKind::ALL, &[SameFile], f64::MAX);
        let evidence =
            vec![format!("Requests waited {} for others of the same file.", time(taken as u64))];
        let (title, advice) = match self.account.of(Sync).count > 0 && self.is_file_of_one() {
            true => (
                "A program's own syncs and requests wait for each other at one file",
                [
                    "A sync holds up other requests for the blocks that it sends. Let the program \
                     sync less often, after more writes.",
                    "Requests that need not be in one file can be spread over several.",
                ],
            ),
            false => (
                "Programs wait for each other at the same file",
                [
                    "Let the programs write files of their own, or each its own part of whole \
                     blocks.",
                    "One program that syncs a file holds up those that write to it.",
                ],
            ),
        };
        let title = (title.to_owned(), taken);
        Some(self.finding("same-file", title, &Account::nanos, evidence, &advice))
    }

    /// Whether nine tenths of the time at the busiest file are of one process.
    fn is_file_of_one(&self) -> bool {
        let accounts = || self.window.accounts.iter();
        let busiest = accounts().max_by_key(|(_, account)| account.nanos());
        busiest.is_some_and(|(key, most)| {
            let at_it = accounts().filter(|(other, _)| other.inode == key.inode);
            most.nanos() * 10 >= at_it.map(|(_, account)| account.nanos()).sum::<u64>() * 9
        })
    }

    fn processor(&self, blame: &mut Blame) -> Option<Finding> {
        let processor = self.window.processor;
        let busy = percent(processor.busy as f64, processor.all as f64);
        if busy < BUSY_PERCENT {
            return None;
        }
        let taken = blame.take(&RequestKind::ALL, &[Own], f64::MAX);
        let own = percent(processor.own as f64, processor.busy as f64);
        let evidence = vec![format!(
            "The {} processors were busy for {busy} % of the time, {own} % of it with this file \
             system.",
            self.facts.processors
        )];
        let advice = [
            "If others use the processors, give the file system's machine less else to do.",
            "If it is the file system itself, larger requests of programs cost less each.",
        ];
        let title = ("The processors are busy".to_owned(), taken);
        Some(self.finding("processor", title, &Account::nanos, evidence, &advice))
    }

    fn disks(&self, blame: &mut Blame) -> Option<Finding> {
        let slow = |work: DiskWork| {
            let sums = self.disk(work);
            let longer = sums.bytes / sums.count.max(1) * 1_000_000_000 / BYTES_PER_SECOND_EXPECTED;
            let expected = match work {
                DiskWork::Sync => nanos(SYNC_EXPECTED) + longer,
                _ => nanos(IO_EXPECTED) + longer,
            };
            (sums.count >= COMPARED_MIN && sums.mean_ns() > expected * ALL_SLOW_TIMES)
                .then_some((work, sums))
        };
        let slow: Vec<_> = DiskWork::ALL.into_iter().filter_map(slow).collect();
        let waits_for_pool =
            blame.at(&RequestKind::ALL, &[PagePool]) > 0.0 && !self.is_pool_small();
        if slow.is_empty() && !waits_for_pool {
            return None;
        }
        let mut taken = blame.take(&RequestKind::ALL, &[PagePool], f64::MAX);
        if !slow.is_empty() {
            taken += blame.take(&RequestKind::ALL, &[Disks, Metadata], f64::MAX);
        }
        let mut evidence: Vec<String> = slow
            .iter()
            .map(|(work, sums)| {
                let (word, each) = (work.word(), time(sums.mean_ns()));
                let bytes = ByteCount(sums.bytes / sums.count);
                format!("A {word} of {bytes} on average took {each}, on all disks alike.")
            })
            .collect();
        if waits_for_pool {
            let rate = ByteCount(self.write_rate() as u64);
            evidence.push(format!("Programs wrote {rate} a second, and the disks are slower."));
        }
        let advice = [
            "All disks are slow together: look at what they share, a controller, a host, one \
             device behind several of them (`strake disk list`).",
            "`strake bench disk` measures a single disk.",
        ];
        let title = ("All disks are slow".to_owned(), taken);
        Some(self.finding("disks", title, &Account::nanos, evidence, &advice))
    }

    /// Waits that belong to no other cause.
    fn other_waits(&self, blame: &mut Blame) -> Option<Finding> {
        let taken = blame.take(&RequestKind::ALL, &[Others], f64::MAX);
        let (first, evidence) = self.reasons(&RequestKind::ALL, Others)?;
        let advice = ["`strake diag waiters` lists everything that waits, and who is waited for. \
             `strake help operating` says what each of these waits means."];
        let title = (format!("Requests wait for '{first}'"), taken);
        Some(self.finding("waits", title, &Account::nanos, evidence, &advice))
    }

    /// Requests that have waited for long and are not done yet.
    fn stuck(&self) -> Option<Finding> {
        let serves =
            |it: &&WaiterSnapshot| it.thread.starts_with("fuse-") && it.waited >= STUCK_MIN;
        let stuck: Vec<_> = self.facts.waiters.iter().filter(serves).collect();
        let longest = stuck.iter().map(|it| nanos(it.waited)).max()?;
        let evidence = stuck.iter().take(3).map(|it| {
            let waited = time(nanos(it.waited));
            format!("{} has waited {waited} for '{}' {}", it.thread, it.reason, it.detail)
        });
        let evidence = evidence.collect();
        let advice = ["`strake diag waiters` lists everything that waits, and who is waited for."];
        let title = ("Requests are held up now".to_owned(), longest as f64);
        Some(self.finding("held-up", title, &|_| 0, evidence, &advice))
    }
}

fn is_about_names(operation: &str) -> bool {
    let others = ["fuse_read", "fuse_write", "fuse_fsync", "fuse_syncfs", "fuse_setlkw"];
    operation.starts_with("fuse_") && !others.contains(&operation)
}

/// A disk that is slower than its peers at one kind of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowDisk {
    /// Which.
    pub nsd: NsdId,
    /// At what.
    pub work: DiskWork,
    /// How many I/Os were compared.
    pub count: u64,
    /// The mean time of its I/Os.
    pub mean_ns: u64,
    /// That of its peers: the median of their means.
    pub peers_ns: u64,
    /// How much longer all its I/Os together took than they would have on a peer.
    pub excess_ns: u64,
}

/// The disks that are slower than their peers, the worst first. Means and medians must both say
/// so: one long I/O makes no disk slow.
pub fn slow_disks(disks: &BTreeMap<(NsdId, DiskWork), DiskSums>) -> Vec<SlowDisk> {
    let mut slow = Vec::new();
    for ((nsd, work), sums) in disks {
        let peers: Vec<&DiskSums> = disks
            .iter()
            .filter(|((other, of), sums)| of == work && other != nsd && sums.count >= COMPARED_MIN)
            .map(|(_, sums)| sums)
            .collect();
        if sums.count < COMPARED_MIN || peers.is_empty() {
            continue;
        }
        let middle = |of: &dyn Fn(&DiskSums) -> u64| {
            let mut all: Vec<u64> = peers.iter().map(|sums| of(sums)).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let (mean, peers_mean) = (sums.mean_ns(), middle(&DiskSums::mean_ns));
        let (median, peers_median) = (sums.median_ns(), middle(&DiskSums::median_ns));
        if mean >= SLOW_TIMES * peers_mean.max(1)
            && median >= SLOW_TIMES * peers_median.max(1)
            && mean - peers_mean >= nanos(SLOW_BY_MIN)
        {
            slow.push(SlowDisk {
                nsd: *nsd,
                work: *work,
                count: sums.count,
                mean_ns: mean,
                peers_ns: peers_mean,
                excess_ns: (mean - peers_mean).saturating_mul(sums.count),
            });
        }
    }
    slow.sort_by_key(|it| std::cmp::Reverse(it.excess_ns));
    slow
}

/// A part of a whole, in percent.
fn percent(part: f64, whole: f64) -> u64 {
    if whole > 0.0 { (part * 100.0 / whole).round() as u64 } else { 0 }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as people read it: `1.4 s`, `30 ms`, `85 µs`.
pub(crate) fn time(nanos: u64) -> String {
    let three = |value: f64, unit: &str| {
        let digits = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        format!("{value:.digits$} {unit}")
    };
    match nanos {
        1_000_000_000.. => three(nanos as f64 / 1e9, "s"),
        1_000_000.. => three(nanos as f64 / 1e6, "ms"),
        _ => three(nanos as f64 / 1e3, "µs"),
    }
}

#[cfg(test)]
#[path = "slow_test.rs"]
mod slow_test;
