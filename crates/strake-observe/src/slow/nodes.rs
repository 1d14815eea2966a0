//! Causes that lie between nodes: the network loses packets or takes long, a node is silent, nodes
//! take files from each other.

use super::{BLAME_MIN, Blame, Case, nanos, time};
use crate::links::{LinkSums, is_many};
use crate::requests::{Account, RequestKind};
use crate::slow::Place::{Disks, Metadata, Nodes, Others, PagePool, SameFile};
use crate::slow_report::Finding;
use crate::tokens::list;
use crate::waiters::WaiterSnapshot;
use std::time::Duration;

/// At most that many files or nodes are named.
const NAMED_MAX: usize = 3;
/// A request that waits longer is held up.
const HELD_MIN: Duration = Duration::from_secs(2);

/// The time spent on calls to other nodes, and the requests that wait for these.
const REMOTE: [super::Place; 6] = [Disks, Metadata, Nodes, PagePool, SameFile, Others];

impl Case<'_> {
    /// Calls over the network wait for packets that are lost, or for their round trips.
    pub(super) fn network(&self, blame: &mut Blame) -> Option<Finding> {
        let of = |bad: fn(&LinkSums) -> bool| {
            self.window.links.iter().filter(move |(_, sums)| bad(sums)).take(NAMED_MAX)
        };
        let lossy: Vec<_> = of(LinkSums::is_lossy).collect();
        let slow: Vec<_> = of(LinkSums::is_slow).filter(|(_, sums)| !sums.is_lossy()).collect();
        let limit = if lossy.is_empty() {
            // Each call to an NSD and each request about names takes a round trip.
            let calls: u64 = self.window.disks.values().map(|sums| sums.count).sum();
            let trip = slow.iter().filter_map(|(_, sums)| sums.mean_ns()).max()?;
            (calls + self.account.count()) as f64 * trip as f64
        } else {
            f64::MAX
        };
        let taken = blame.take(&RequestKind::ALL, &REMOTE, limit);
        let lost = |way: String, again: u64, packets: u64| {
            let percent = super::percent(again as f64, packets as f64);
            is_many(again, packets).then(|| {
                format!(
                    "Of {packets} packets {way} {again} were sent again ({percent} %), because \
                     they or their acknowledgements were lost."
                )
            })
        };
        let both_ways = lossy.iter().flat_map(|(node, sums)| {
            let there = lost(format!("to {node}"), sums.packets_again, sums.packets);
            let back = lost(format!("from {node}"), sums.their_packets_again, sums.their_packets);
            [there, back]
        });
        let mut evidence: Vec<String> = both_ways.flatten().collect();
        evidence.extend(slow.iter().filter_map(|(node, sums)| {
            let (mean, quickest) = (time(sums.mean_ns()?), time(sums.quickest_ns?));
            Some(format!(
                "A ping to {node} and back took {mean} on average, and never less than {quickest}."
            ))
        }));
        let nodes = list(lossy.iter().chain(&slow).map(|(node, _)| node.as_str()));
        let title = match lossy.is_empty() {
            true => format!("The network to {nodes} is slow"),
            false => format!("The network to {nodes} loses packets"),
        };
        let advice = [
            "`strake diag network` on each node shows between which nodes: a node that all others \
             name has the bad cable, card or switch port.",
            "`ethtool -S CARD` and `ip -s link` count errors and drops. Compare speed, duplex and \
             MTU at both ends.",
            "`strake bench net` measures what the network gives.",
        ];
        Some(self.finding("network", (title, taken), &Account::nanos, evidence, &advice))
    }

    /// Nodes from which nothing came hold up what waits for them.
    pub(super) fn silent_node(&self, blame: &mut Blame) -> Option<Finding> {
        let was_silent = |(_, sums): &(&String, &LinkSums)| sums.silent_ns > 0;
        let before: Vec<_> = self.window.links.iter().filter(was_silent).take(NAMED_MAX).collect();
        let now: Vec<&(String, u64)> = self.facts.silent.iter().take(NAMED_MAX).collect();
        if before.is_empty() && now.is_empty() {
            return None;
        }
        // Each request waits no longer than the silence, and several wait at the same time.
        let silence = before.iter().map(|(_, sums)| sums.silent_ns).max().unwrap_or(0);
        let abreast = self.account.nanos() as f64 / self.window.busy.max(1) as f64;
        let limit = silence as f64 * abreast.max(1.0);
        let mut taken = blame.take(&RequestKind::ALL, &REMOTE, limit);
        let mut evidence: Vec<String> = before
            .iter()
            .map(|(node, sums)| format!("Nothing came from {node} for {}.", time(sums.silent_ns)))
            .collect();
        if !now.is_empty() {
            let held = self.held_up();
            // These requests have not ended, so they are not among those whose time is known.
            taken += held.iter().map(|it| nanos(it.waited) as f64).fold(0.0, f64::max);
            let one = |(node, nanos): &&(String, u64)| {
                format!("{node} has been silent for {}", time(*nanos))
            };
            let said: Vec<String> = now.iter().map(one).collect();
            evidence.push(format!("Now {}.", list(said.iter().map(String::as_str))));
            evidence.extend(held.first().map(|it| {
                let (count, waited) = (held.len(), time(nanos(it.waited)));
                format!(
                    "{count} calls and requests wait now, the longest for {waited}: '{}' {}.",
                    it.reason, it.detail
                )
            }));
        }
        let mut nodes: Vec<&str> = before.iter().map(|(node, _)| node.as_str()).collect();
        nodes.extend(now.iter().map(|(node, _)| node.as_str()));
        nodes.sort_unstable();
        nodes.dedup();
        let title = format!("{} did not answer", list(nodes.into_iter()));
        let advice = [
            "`strake node state` says how each node is, and `strake diag network` how long each has \
             been silent.",
            "Look at the node: it may be overloaded, suspended, swapping or cut off (its load, the \
             kernel's log, its cable).",
            "A node that stays silent is declared dead after about ten seconds. What its mount held \
             is free then, and its disks are left out.",
        ];
        let title = (title, taken);
        Some(self.finding("silent-node", title, &Account::nanos, evidence, &advice))
            .filter(|it| it.nanos >= nanos(BLAME_MIN))
    }

    /// The waits for other nodes at this moment, and requests of programs, the longest first.
    fn held_up(&self) -> Vec<&WaiterSnapshot> {
        let is_held = |it: &&WaiterSnapshot| {
            let is_remote = [Disks, Metadata, Nodes].contains(&super::Place::of(&it.reason));
            it.waited >= HELD_MIN && (is_remote || it.thread.starts_with("fuse-"))
        };
        let mut held: Vec<_> = self.facts.waiters.iter().filter(is_held).collect();
        held.sort_by_key(|it| std::cmp::Reverse(it.waited));
        held
    }

    /// Nodes take files from each other. The leader knows the files of the last minute. If it knows
    /// none, the time was still spent.
    pub(super) fn token_conflict(&self, blame: &mut Blame) -> Option<Finding> {
        let taken = blame.take(&RequestKind::ALL, &[Nodes], f64::MAX);
        if taken == 0.0 {
            return None;
        }
        let was_taken = |file: &&crate::tokens::HotFile| !file.taken_from.is_empty();
        let hot: Vec<_> = self.facts.hot.iter().filter(was_taken).take(NAMED_MAX).collect();
        let Some(first) = hot.first() else {
            return Some(self.tokens(taken));
        };
        let mut evidence: Vec<String> = hot
            .iter()
            .map(|file| {
                let (name, rate, nodes) = (file.name(), file.taken_per_second, file.nodes());
                format!("{name} was taken from {nodes} in turn, {rate:.1} times a second.")
            })
            .collect();
        evidence.push(format!(
            "Requests here waited {} for files that other nodes held.",
            time(taken as u64)
        ));
        let advice = [
            "Each time one node gives a file up, what it wrote goes to the disks first. Let each \
             node write files of its own, in directories of its own.",
            "Programs that share one file do best if each writes its own range of whole blocks \
             (`strake fs show` has the block size).",
            "`strake diag tokens` lists the files, who holds them and who waits.",
        ];
        let title = format!("Nodes take {} from each other", first.name());
        Some(self.finding("token-conflict", (title, taken), &Account::nanos, evidence, &advice))
    }

    /// Requests waited for files of the cluster, and it is not known which.
    fn tokens(&self, taken: f64) -> Finding {
        let evidence = vec![
            format!("Requests waited {} for the right to use a file.", time(taken as u64)),
            "In the last minute no file was taken from a node, or the leader does not say so."
                .to_owned(),
        ];
        let advice = [
            "Ask while it is slow: `strake diag tokens` lists the files that nodes take from each \
             other in the last minute.",
            "If there are none, the way to the node that leads takes the time: `strake cluster \
             show` names it, and `strake diag network` shows the way.",
        ];
        let title = "Programs wait for files that other nodes hold or that the leader hands out";
        self.finding("tokens", (title.to_owned(), taken), &Account::nanos, evidence, &advice)
    }
}
