//! The answer to "why is it slow": where the time of requests went, and the findings.

use crate::slow::time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What took the time of the recent past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowReport {
    /// How far back was asked, in nanoseconds.
    pub asked_ns: u64,
    /// How much of that is known.
    pub known_ns: u64,
    /// The time in which requests took at least a quarter of the time. Only this is looked at.
    pub busy_ns: u64,
    /// How many requests there were.
    pub requests: u64,
    /// How long all of them together took.
    pub requests_ns: u64,
    /// How long those of the busy time took.
    pub busy_requests_ns: u64,
    /// A cause is among the findings if it explains at least so much of that.
    #[serde(default)]
    pub named_from_ns: u64,
    /// Where the time of these was spent, the longest first.
    pub spent: Vec<Spent>,
    /// What is to blame, the worst first. It is empty if nothing is slow.
    pub findings: Vec<Finding>,
}

/// A part of the time of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    /// Where.
    pub what: String,
    /// How long, in nanoseconds.
    pub nanos: u64,
}

/// Something that makes programs slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its name for programs, such as `slow-disk`.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// The time of requests that it explains, in nanoseconds.
    pub nanos: u64,
    /// The part of the time of requests.
    pub percent: u64,
    /// What was measured, a sentence each.
    pub evidence: Vec<String>,
    /// What to do, a sentence or two each.
    pub advice: Vec<String>,
    /// Who is concerned most.
    pub who: Option<Who>,
}

/// A process and its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    /// The process.
    pub process: u32,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// The file or directory that its requests name.
    pub inode: u64,
    /// The path of that, if it is known.
    #[serde(default)]
    pub file: Option<String>,
    /// How long its requests took, in nanoseconds.
    pub nanos: u64,
}

impl fmt::Display for Who {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "{name} ({})", self.process)?,
            None => write!(out, "process {}", self.process)?,
        }
        match &self.file {
            Some(file) => write!(out, ", {file}"),
            None => write!(out, ", inode {}", self.inode),
        }
    }
}

/// Prints a report for people.
///
/// # Errors
/// Those of `out`.
pub fn print_slow_report(out: &mut dyn fmt::Write, report: &SlowReport) -> fmt::Result {
    let SlowReport { requests, requests_ns, known_ns, busy_ns, .. } = report;
    writeln!(
        out,
        "In the last {} programs made {requests} requests, which took {} in all.",
        time(*known_ns),
        time(*requests_ns)
    )?;
    if report.findings.is_empty() {
        if report.spent.iter().all(|part| part.nanos < report.named_from_ns) {
            return writeln!(out, "Nothing is slow: programs hardly waited.");
        }
        writeln!(out, "Nothing is slow: the time went into work that has to be done.")?;
        return spent(out, report, *busy_ns);
    }
    for (number, finding) in (1..).zip(&report.findings) {
        writeln!(out)?;
        match finding.nanos {
            0 => writeln!(out, "{number}. {}.", finding.title)?,
            nanos => writeln!(
                out,
                "{number}. {}: {}, {} % of the time of requests.",
                finding.title,
                time(nanos),
                finding.percent
            )?,
        }
        finding.evidence.iter().try_for_each(|text| writeln!(out, "   {text}"))?;
        if let Some(who) = &finding.who {
            writeln!(out, "   Most of it: {who}.")?;
        }
        finding.advice.iter().try_for_each(|text| writeln!(out, "   - {text}"))?;
    }
    if *busy_ns > 0 {
        writeln!(out)?;
        spent(out, report, *busy_ns)?;
    }
    Ok(())
}

/// Prints where the time went.
fn spent(out: &mut dyn fmt::Write, report: &SlowReport, busy: u64) -> fmt::Result {
    writeln!(
        out,
        "Programs waited much in {} of that time. Where the time of their requests went:",
        time(busy)
    )?;
    let line = |out: &mut dyn fmt::Write, nanos: u64, what: &str| {
        let percent = nanos as f64 * 100.0 / report.busy_requests_ns.max(1) as f64;
        writeln!(out, "  {:>10}  {percent:>3.0} %  {what}", time(nanos))
    };
    // Without a finding, a place with less than a finding needs says nothing by itself.
    let least = if report.findings.is_empty() { report.named_from_ns } else { 0 };
    let is_shown = |part: &&Spent| part.nanos >= least;
    report.spent.iter().filter(is_shown).try_for_each(|it| line(out, it.nanos, &it.what))?;
    let rest = report.spent.iter().filter(|part| !is_shown(part));
    match rest.map(|part| part.nanos).sum() {
        0 => Ok(()),
        nanos => line(out, nanos, "everything else"),
    }
}
