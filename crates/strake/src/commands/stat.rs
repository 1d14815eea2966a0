//! `strake stat`: what happened in each second, a line each.

use crate::admin::{self, Request, Totals};
use crate::commands::fs::Target;
use crate::registry;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// The head is printed again after so many lines.
const HEAD_EVERY: u64 = 20;

/// Show what happens, a line a second: processors, network, requests of programs, NSDs, disks.
///
/// Rates are for each second. Sizes have the units K, M and G, which are powers of 1024. Processors
/// are those of the machine; `own` is what this file system's daemon takes of them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake stat                 a line a second, until Ctrl-C
  strake stat 10 6            six lines, ten seconds each
  strake stat --json 1 5      the same to programs, a JSON object a line")]
pub(crate) struct StatArgs {
    #[command(flatten)]
    target: Target,
    /// Seconds for each line.
    #[arg(value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// End after so many lines.
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// What happened in an interval, for each second of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) busy_percent: f64,
    pub(super) own_percent: f64,
    pub(super) received: f64,
    pub(super) sent: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) syncs: f64,
    pub(super) names: f64,
    pub(super) calls: f64,
    pub(super) call_ms: f64,
    pub(super) disk_read_bytes: f64,
    pub(super) disk_written_bytes: f64,
    pub(super) disk_ios: f64,
    pub(super) disk_ms: f64,
    pub(super) dirty_bytes: u64,
    pub(super) waits: u64,
}

impl Line {
    pub(super) fn between(before: &Totals, now: &Totals) -> Line {
        let seconds = now.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
        let rate =
            |of: &dyn Fn(&Totals) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
        let part = |of: &dyn Fn(&Totals) -> u64, whole: f64| {
            if whole > 0.0 { rate(of) / whole } else { 0.0 }
        };
        let all = rate(&|it| it.processors_ns);
        Line {
            busy_percent: part(&|it| it.busy_ns, all) * 100.0,
            own_percent: part(&|it| it.own_ns, all) * 100.0,
            received: rate(&|it| it.received),
            sent: rate(&|it| it.sent),
            read_bytes: rate(&|it| it.read_bytes),
            written_bytes: rate(&|it| it.written_bytes),
            reads: rate(&|it| it.reads),
            writes: rate(&|it| it.writes),
            syncs: rate(&|it| it.syncs),
            names: rate(&|it| it.names),
            calls: rate(&|it| it.calls),
            call_ms: part(&|it| it.calls_ns, rate(&|it| it.calls)) / 1e6,
            disk_read_bytes: rate(&|it| it.disk_read_bytes),
            disk_written_bytes: rate(&|it| it.disk_written_bytes),
            disk_ios: rate(&|it| it.disk_ios),
            disk_ms: part(&|it| it.disk_ns, rate(&|it| it.disk_ios)) / 1e6,
            dirty_bytes: now.dirty_bytes,
            waits: now.waits,
        }
    }

    fn text(&self) -> String {
        let size = short;
        format!(
            "{:>4.0} {:>4.0}|{:>6} {:>6}|{:>6} {:>6} {:>6} {:>6} {:>6} {:>6}|{:>6} {:>6}|{:>6} \
             {:>6} {:>6} {:>6}|{:>6} {:>5}",
            self.busy_percent,
            self.own_percent,
            size(self.received),
            size(self.sent),
            size(self.read_bytes),
            size(self.written_bytes),
            count(self.reads),
            count(self.writes),
            count(self.syncs),
            count(self.names),
            count(self.calls),
            millis(self.call_ms),
            size(self.disk_read_bytes),
            size(self.disk_written_bytes),
            count(self.disk_ios),
            millis(self.disk_ms),
            size(self.dirty_bytes as f64),
            self.waits,
        )
    }
}

const HEAD: &str = "\
-cpu in %|---network---|----------------programs-----------------|----nsds-----|\
-----------disks-----------|----now-----
busy  own|  recv   send|  read   writ   rd/s   wr/s sync/s name/s|call/s     ms|  read   \
writ   io/s     ms| dirty waits";

/// A size in at most five characters.
pub(super) fn short(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["", "K", "M", "G"] {
        if value < 1000.0 {
            let digits = usize::from(!unit.is_empty() && value < 10.0);
            return format!("{value:.digits$}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.0}T")
}

/// A rate in few characters.
pub(super) fn count(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        _ if rate < 10.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

/// Milliseconds in few characters.
pub(super) fn millis(ms: f64) -> String {
    match ms {
        0.0 => "0".to_owned(),
        _ if ms < 10.0 => format!("{ms:.2}"),
        _ => format!("{ms:.0}"),
    }
}

/// Runs `strake stat`.
pub(crate) fn run(args: &StatArgs) -> Result<()> {
    let dir = registry::find(args.target.data.as_deref())?;
    let ask = || -> Result<Totals> { admin::ask(&dir, &Request::Totals) };
    let mut before = ask()?;
    let step = Duration::from_secs(args.seconds);
    let mut due = RealClock.monotonic();
    let mut number = 0;
    while args.count.is_none_or(|count| number < count) {
        due += step;
        RealClock.sleep(due.saturating_sub(RealClock.monotonic()));
        let now = ask()?;
        let line = Line::between(&before, &now);
        before = now;
        let mut text = String::new();
        if args.target.json {
            text = serde_json::to_string(&line)
                .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        } else {
            if number.is_multiple_of(HEAD_EVERY) {
                text = format!("{HEAD}\n");
            }
            text.push_str(&line.text());
        }
        number += 1;
        // Whoever reads this may have seen enough.
        if writeln!(std::io::stdout(), "{text}").is_err() {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_each_second_and_means_those_of_each_io() {
        let before = Totals::default();
        let now = Totals {
            at_ns: 2_000_000_000,
            processors_ns: 4_000_000_000,
            busy_ns: 2_000_000_000,
            own_ns: 1_000_000_000,
            written_bytes: 20 << 20,
            writes: 20,
            calls: 40,
            calls_ns: 80_000_000,
            disk_ios: 10,
            disk_ns: 500_000_000,
            dirty_bytes: 1 << 20,
            waits: 3,
            ..Totals::default()
        };
        let line = Line::between(&before, &now);
        assert_eq!((line.busy_percent, line.own_percent), (50.0, 25.0));
        assert_eq!((line.written_bytes, line.writes), (f64::from(10 << 20), 10.0));
        assert_eq!((line.call_ms, line.disk_ms, line.disk_ios), (2.0, 50.0, 5.0));
        assert_eq!((line.dirty_bytes, line.waits), (1 << 20, 3));
        // Counters of a daemon that was started anew begin again.
        let anew = Line::between(&now, &Totals { at_ns: 3_000_000_000, ..Totals::default() });
        assert_eq!((anew.writes, anew.disk_ms), (0.0, 0.0));
    }

    #[test]
    fn columns_stand_below_their_heads() {
        let bars = |text: &str| -> Vec<usize> {
            text.char_indices().filter(|(_, it)| *it == '|').map(|(at, _)| at).collect()
        };
        let line = Line { read_bytes: 1e12, reads: 123_456.0, waits: 17, ..Line::default() };
        let (top, names) = HEAD.split_once('\n').expect("two lines");
        assert_eq!(bars(&line.text()), bars(names));
        assert_eq!(bars(top), bars(names));
        assert_eq!(line.text().len(), names.len());
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [(0.0, "0"), (999.0, "999"), (1023.0, "1.0K"), (5.5 * 1024.0, "5.5K")];
        let more = [(640.0 * 1_048_576.0, "640M"), (1e14, "91T")];
        for (bytes, text) in sizes.into_iter().chain(more) {
            assert_eq!(short(bytes), text);
        }
    }
}
