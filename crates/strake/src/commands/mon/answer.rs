//! Prints the answers of `strake mon`, for people and, with `-p`, for programs.

use crate::admin::FsCounters;
use std::fmt::{self, Write as _};
use strake_observe::{IoCounters, RequestHistogramView};
use strake_proto::Timestamp;

/// Who answers, when, and in which form.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) address: String,
    pub(super) node: String,
    pub(super) time: Timestamp,
    /// For programs.
    pub(super) parsable: bool,
}

type Fields = [(&'static str, &'static str, u64); 8];

fn fields(of: &IoCounters) -> Fields {
    [
        ("bytes read:", "_br_", of.bytes_read),
        ("bytes written:", "_bw_", of.bytes_written),
        ("opens:", "_oc_", of.opens),
        ("closes:", "_cc_", of.closes),
        ("reads:", "_rdc_", of.reads),
        ("writes:", "_wc_", of.writes),
        ("readdir:", "_dir_", of.readdirs),
        ("inode updates:", "_iu_", of.inode_updates),
    ]
}

impl Head {
    fn micros(&self) -> u32 {
        self.time.nanos / 1000
    }

    /// `_WORD_ _n_ … _nn_ …`
    fn keys(&self, word: &str) -> String {
        format!("_{word}_ _n_ {} _nn_ {}", self.address, self.node)
    }

    /// `_rc_ … _t_ … _tu_ …`
    fn result(&self, code: u32) -> String {
        format!("_rc_ {code} _t_ {} _tu_ {}", self.time.seconds, self.micros())
    }

    /// `mmpmon node … name … `
    fn title(&self) -> String {
        format!("mmpmon node {} name {}", self.address, self.node)
    }

    fn timestamp(&self) -> String {
        format!("{}/{}", self.time.seconds, self.micros())
    }

    /// Whether something was done.
    pub(super) fn done(&self, out: &mut String, word: &str, words: &str) -> fmt::Result {
        let gap = if words.is_empty() { "" } else { " " };
        if self.parsable {
            let request = if words.is_empty() { String::new() } else { format!(" _req_ {words}") };
            return writeln!(out, "{}{request} {}", self.keys(word), self.result(0));
        }
        writeln!(out, "{} {word}{gap}{words} OK", self.title())
    }

    /// Why something was not done.
    pub(super) fn refused(
        &self,
        out: &mut String,
        word: &str,
        words: &str,
        (code, why): (u32, &str),
    ) -> fmt::Result {
        if self.parsable {
            return writeln!(out, "{} _req_ {words} {}", self.keys(word), self.result(code));
        }
        writeln!(out, "{} {word} {words} status {code}\n{why}", self.title())
    }

    /// The version.
    pub(super) fn version(&self, out: &mut String, version: &str) -> fmt::Result {
        if !self.parsable {
            return writeln!(out, "{} version {version}", self.title());
        }
        let mut numbers = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0u32));
        let mut next = || numbers.next().unwrap_or(0);
        writeln!(out, "{} _v_ {} _lv_ {} _vt_ {}", self.keys("ver"), next(), next(), next())
    }

    /// The sums over all file systems.
    pub(super) fn io(&self, out: &mut String, counters: &IoCounters) -> fmt::Result {
        if self.parsable {
            write!(out, "{} {}", self.keys("io_s"), self.result(0))?;
            return self.counters(out, counters);
        }
        writeln!(out, "{} io_s OK", self.title())?;
        self.counters(out, counters)
    }

    /// One file system.
    pub(super) fn fs_io(&self, out: &mut String, fs: &FsCounters) -> fmt::Result {
        let FsCounters { cluster, name, disks, counters } = fs;
        if self.parsable {
            let (keys, result) = (self.keys("fs_io_s"), self.result(0));
            write!(out, "{keys} {result} _cl_ {cluster} _fs_ {name} _d_ {disks}")?;
            return self.counters(out, counters);
        }
        writeln!(out, "{} fs_io_s OK", self.title())?;
        writeln!(out, "{:<15} {cluster}", "cluster:")?;
        writeln!(out, "{:<15} {name}", "filesystem:")?;
        writeln!(out, "{:<15} {disks:>20}", "disks:")?;
        self.counters(out, counters)
    }

    fn counters(&self, out: &mut String, counters: &IoCounters) -> fmt::Result {
        let fields = fields(counters);
        if self.parsable {
            fields.iter().try_for_each(|(_, key, value)| write!(out, " {key} {value}"))?;
            return writeln!(out);
        }
        writeln!(out, "{:<15} {:>20}", "timestamp:", self.timestamp())?;
        fields.iter().try_for_each(|(name, _, value)| writeln!(out, "{name:<15} {value:>20}"))
    }

    /// The histograms: all ranges of the pattern, or those that have counts.
    pub(super) fn histograms(
        &self,
        out: &mut String,
        view: &RequestHistogramView,
        pattern_only: bool,
    ) -> fmt::Result {
        let request = if pattern_only { "p" } else { "s" };
        let none = (Vec::new(), Vec::new());
        let (reads, writes) = view.counts.as_ref().unwrap_or(&none);
        for (kind, name, counts) in [("r", "read", reads), ("w", "write", writes)] {
            if self.parsable {
                let (keys, result) = (self.keys("rhist"), self.result(0));
                writeln!(out, "{keys} _req_ {request} {result} _k_ {kind}")?;
            } else {
                let (title, time) = (self.title(), self.timestamp());
                writeln!(out, "{title} rhist {request} OK {name} timestamp {time}")?;
            }
            self.ranges(out, view, (!pattern_only).then_some(counts))?;
        }
        if self.parsable { writeln!(out, "_end_") } else { Ok(()) }
    }

    fn ranges(
        &self,
        out: &mut String,
        view: &RequestHistogramView,
        counts: Option<&Vec<u64>>,
    ) -> fmt::Result {
        let latencies = view.pattern.latency_ranges();
        for (at, (from, to)) in view.pattern.size_ranges().into_iter().enumerate() {
            let first = at * latencies.len();
            let of_size = counts.map(|counts| &counts[first..first + latencies.len()]);
            let count = of_size.map(|counts| counts.iter().sum::<u64>());
            if count == Some(0) {
                continue;
            }
            self.size_range(out, (from, to.unwrap_or(0)), count)?;
            for (at, (from, to)) in latencies.iter().enumerate() {
                let count = of_size.map(|counts| counts[at]);
                if count != Some(0) {
                    self.latency_range(out, (*from, to.unwrap_or(0)), count)?;
                }
            }
        }
        Ok(())
    }

    fn size_range(
        &self,
        out: &mut String,
        (from, to): (u64, u64),
        count: Option<u64>,
    ) -> fmt::Result {
        if self.parsable {
            write!(out, "_R_ {from} {to}")?;
            count.map_or(Ok(()), |count| write!(out, " _NR_ {count}"))?;
        } else {
            write!(out, "size range {from:>15} to {to:>12}")?;
            count.map_or(Ok(()), |count| write!(out, " count {count:>13}"))?;
        }
        writeln!(out)
    }

    /// `from` and `to` are in tenths of a millisecond.
    fn latency_range(
        &self,
        out: &mut String,
        (from, to): (u64, u64),
        count: Option<u64>,
    ) -> fmt::Result {
        let ms = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
        if self.parsable {
            write!(out, "_L_ {} {}", ms(from), ms(to))?;
            count.map_or(Ok(()), |count| write!(out, " _NL_ {count}"))?;
        } else {
            write!(out, "  latency range {:>8} to {:>11}", ms(from), ms(to))?;
            count.map_or(Ok(()), |count| write!(out, " count {count:>13}"))?;
        }
        writeln!(out)
    }

    /// The list of nodes.
    pub(super) fn nodes(&self, out: &mut String, nodes: &[(String, String)]) -> fmt::Result {
        if self.parsable {
            let line = format!("{} _req_ s {}", self.keys("nlist"), self.result(0));
            writeln!(out, "{line} _c_ {}", nodes.len())?;
            return nodes.iter().try_for_each(|(name, address)| {
                writeln!(out, "{line} _mbr_ {name} _ip_ {address}")
            });
        }
        writeln!(out, "{} nlist s status 0", self.title())?;
        writeln!(out, "name count {}\ntimestamp {}", nodes.len(), self.timestamp())?;
        if nodes.is_empty() {
            return writeln!(out, "the node list is empty");
        }
        nodes
            .iter()
            .try_for_each(|(name, address)| writeln!(out, "node name {name}, IP address {address}"))
    }
}

#[cfg(test)]
#[path = "answer_test.rs"]
mod answer_test;
