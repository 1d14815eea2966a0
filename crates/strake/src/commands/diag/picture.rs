//! One request of a trace as a picture: a row for each step, from the request to the disks, with a
//! bar from its begin to its end. Pure.

use std::collections::BTreeSet;
use strake_observe::{Labels, TraceEvent};
use strake_proto::{ByteCount, Error, ErrorKind, Result};
use strake_report::Drawing;

const WIDTH: f64 = 960.0;
/// Where the bars begin.
const LEFT: f64 = 330.0;
/// Room for the time beside a bar.
const RIGHT: f64 = 70.0;
const ROW: f64 = 18.0;
const TOP: f64 = 64.0;
/// A step within another one stands so much further to the right.
const INDENT: f64 = 12.0;
const DEPTH_MAX: usize = 6;
/// A picture has so many rows. The shortest steps are left out.
const ROWS_MAX: usize = 64;
/// The axis has about so many marks.
const MARKS: f64 = 6.0;

const STYLE: &str = "svg{background:#fff;font:12px sans-serif}.head{font-size:15px;font-weight:bold}\
    .note{fill:#555}.bar{rx:2}.request{fill:#4477aa}.work{fill:#88aacc}.call{fill:#ddaa33}\
    .disk{fill:#cc6677}.metadata{fill:#117733}.mark{stroke:#ddd}.time{fill:#333}";

/// A step of the request, and within how many others it is.
struct Step<'a> {
    event: &'a TraceEvent,
    depth: usize,
}

/// Draws the request of the kind `of` (`write` for `fuse_write`) that took longest.
///
/// # Errors
/// `NotFound` if the trace has none.
pub(super) fn picture(events: &[TraceEvent], labels: &Labels, of: &str) -> Result<String> {
    let kind = format!("fuse_{of}");
    let wanted = events.iter().filter(|it| it.operation == kind && it.request != 0);
    let request = wanted.max_by_key(|it| it.took_ns).ok_or_else(|| none(events, of))?;
    let end = request.start_ns + request.took_ns;
    let of_request = events.iter().filter(|it| it.request == request.request);
    let mut kept: Vec<&TraceEvent> =
        of_request.filter(|it| (request.start_ns..=end).contains(&it.start_ns)).collect();
    let all = kept.len();
    // The request itself is the longest.
    kept.sort_by_key(|it| (it.number != request.number, u64::MAX - it.took_ns));
    kept.truncate(ROWS_MAX);
    kept.sort_by_key(|it| (it.start_ns, u64::MAX - it.took_ns, it.number));
    let steps: Vec<Step<'_>> =
        kept.iter().map(|event| Step { event, depth: depth(event, &kept) }).collect();
    Ok(draw(request, &steps, all - steps.len(), labels))
}

fn none(events: &[TraceEvent], of: &str) -> Error {
    let kinds = events.iter().filter_map(|it| it.operation.strip_prefix("fuse_"));
    let kinds: BTreeSet<&str> = kinds.collect();
    let kinds = match kinds.is_empty() {
        true => "no requests at all".to_owned(),
        false => kinds.into_iter().collect::<Vec<_>>().join(", "),
    };
    Error::new(ErrorKind::NotFound, format!("the trace has no request '{of}': it has {kinds}"))
}

/// Within how many other steps a step is: those of its thread that enclose it, and the request
/// itself if another thread works for it.
fn depth(event: &TraceEvent, all: &[&TraceEvent]) -> usize {
    let end = |it: &TraceEvent| it.start_ns + it.took_ns;
    let encloses = |it: &&&TraceEvent| {
        it.thread == event.thread
            && it.number != event.number
            && it.start_ns <= event.start_ns
            && end(it) >= end(event)
            // Of two that took equally long, the one that was noted later encloses the other.
            && (it.took_ns > event.took_ns || it.number > event.number)
    };
    let within = all.iter().filter(encloses).count();
    let is_first = all.first().is_some_and(|first| first.thread == event.thread);
    (within + usize::from(!is_first)).min(DEPTH_MAX)
}

fn draw(request: &TraceEvent, steps: &[Step<'_>], left_out: usize, labels: &Labels) -> String {
    let ends = steps.iter().map(|it| it.event.start_ns + it.event.took_ns);
    let whole = ends.max().unwrap_or(0).saturating_sub(request.start_ns).max(1) as f64;
    let x = |nanos: u64| {
        LEFT + nanos.saturating_sub(request.start_ns) as f64 / whole * (WIDTH - LEFT - RIGHT)
    };
    let bottom = TOP + ROW * steps.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + 30.0);
    let title = format!(
        "{} of {} to {}: {}",
        request.operation.trim_start_matches("fuse_"),
        ByteCount(request.bytes),
        labels.file(request.inode),
        time(request.took_ns as f64)
    );
    drawing.text(12.0, 22.0, "head", &title);
    let who = labels.process(request.process);
    let mut note = format!("Asked for by {who}. Each row is a step, with the thread that did it.");
    if left_out > 0 {
        note += &format!(" {left_out} shorter steps are left out.");
    }
    drawing.text(12.0, 40.0, "note", &note);
    let step = mark(whole / MARKS);
    let mut at = 0.0;
    while at <= whole {
        let place = LEFT + at / whole * (WIDTH - LEFT - RIGHT);
        drawing.line([place, TOP - 6.0, place, bottom], "mark");
        drawing.text(place + 2.0, TOP - 8.0, "note", &time(at));
        at += step;
    }
    for (row, Step { event, depth }) in steps.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let label = label(event, labels);
        drawing.text(12.0 + INDENT * *depth as f64, y + 13.0, "label", &label);
        let (from, to) = (x(event.start_ns), x(event.start_ns + event.took_ns));
        let class = format!("bar {}", class(&event.operation));
        let took = time(event.took_ns as f64);
        drawing.rect(
            [from, y + 3.0, (to - from).max(1.0), ROW - 5.0],
            &class,
            &format!("{label}: {took}"),
        );
        drawing.text(to.max(from + 1.0) + 4.0, y + 13.0, "time", &took);
    }
    let colours = "Blue: the request and work on processors. Yellow: calls of NSDs. Red: disks. \
                   Green: metadata.";
    drawing.text(12.0, bottom + 20.0, "note", colours);
    drawing.finish_alone(&title, STYLE)
}

fn label(event: &TraceEvent, labels: &Labels) -> String {
    let mut text = event.operation.clone();
    if let Some(nsd) = event.nsd {
        text += &format!(" {}", labels.nsd(nsd));
    }
    if event.bytes > 0 {
        text += &format!(", {}", ByteCount(event.bytes));
    }
    if event.failed {
        text += ", failed";
    }
    format!("{text} ({})", event.thread_name)
}

/// The colour of a step.
fn class(operation: &str) -> &'static str {
    match operation.split([' ', '_']).next().unwrap_or_default() {
        "fuse" => "request",
        "call" => "call",
        "disk" => "disk",
        "metadata" => "metadata",
        _ => "work",
    }
}

/// A round number of nanoseconds, at least `least`: 1, 2 or 5 times a power of ten.
fn mark(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1.0).log10().floor());
    let round = [1.0, 2.0, 5.0].into_iter().map(|times| times * power);
    round.into_iter().find(|it| *it >= least).unwrap_or(10.0 * power)
}

fn time(nanos: f64) -> String {
    let three = |value: f64, unit: &str| {
        let digits = if value >= 100.0 || value == 0.0 { 0 } else { 2 };
        let text = format!("{value:.digits$}");
        let short = if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.')
        } else {
            &text
        };
        format!("{short} {unit}")
    };
    match nanos {
        1e9.. => three(nanos / 1e9, "s"),
        1e6.. => three(nanos / 1e6, "ms"),
        _ => three(nanos / 1e3, "µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::NsdId;

    fn event(number: u64, operation: &str, thread: u32, (start, took): (u64, u64)) -> TraceEvent {
        TraceEvent {
            number,
            operation: operation.to_owned(),
            start_ns: start * 1000,
            took_ns: took * 1000,
            bytes: 4096,
            request: 7,
            inode: 5,
            process: 10,
            nsd: operation.starts_with("disk").then_some(NsdId(2)),
            thread,
            thread_name: format!("thread-{thread}"),
            failed: false,
        }
    }

    fn labels() -> Labels {
        Labels {
            processes: [(10, "dd".to_owned())].into(),
            files: [(5, "/a<b".to_owned())].into(),
            nsds: [(NsdId(2), "nsd2".to_owned())].into(),
        }
    }

    #[test]
    fn the_slowest_request_of_a_kind_is_drawn_from_its_begin_to_the_disks() {
        let events = [
            event(0, "disk write data", 2, (300, 500)),
            event(1, "call write", 2, (250, 600)),
            event(2, "blockWrite", 1, (200, 700)),
            event(3, "fuse_write", 1, (100, 1000)),
            TraceEvent { request: 8, ..event(4, "fuse_write", 1, (2000, 900)) },
            TraceEvent { request: 8, ..event(5, "disk read data", 2, (2000, 10)) },
            event(6, "disk write log", 3, (5000, 10)),
            event(7, "fuse_read", 1, (9000, 5000)),
        ];
        let picture = picture(&events, &labels(), "write").expect("drawn");
        assert!(picture.starts_with("<svg xmlns="), "it is a file of its own");
        assert!(picture.contains(">write of 4 KiB to /a&lt;b: 1 ms</text>"), "{picture}");
        let rows: Vec<&str> =
            picture.lines().filter(|line| line.contains("class=\"label\"")).collect();
        let texts: Vec<&str> = rows.iter().filter_map(|row| row.split(['>', '<']).nth(2)).collect();
        let wanted = [
            "fuse_write, 4 KiB (thread-1)",
            "blockWrite, 4 KiB (thread-1)",
            "call write, 4 KiB (thread-2)",
            "disk write data nsd2, 4 KiB (thread-2)",
        ];
        assert_eq!(texts, wanted, "what came after the request, and others, are not in it");
        let places = rows.iter().map(|row| row.split("x=\"").nth(1).unwrap_or("")[..2].to_owned());
        assert_eq!(places.collect::<Vec<_>>(), ["12", "24", "24", "36"]);
    }

    #[test]
    fn the_shortest_steps_of_many_are_left_out_and_the_request_is_not() {
        let mut events: Vec<TraceEvent> =
            (0..200).map(|at| event(at, "disk write data", 2, (100 + at, 1 + at % 90))).collect();
        events.push(event(200, "fuse_write", 1, (100, 400)));
        let picture = picture(&events, &labels(), "write").expect("drawn");
        assert_eq!(picture.matches("class=\"label\"").count(), ROWS_MAX);
        assert!(picture.contains("fuse_write") && picture.contains("137 shorter steps"));
    }

    #[test]
    fn what_the_trace_has_is_named_where_a_request_is_missing() {
        let events = [event(0, "fuse_read", 1, (1, 1)), event(1, "fuse_fsync", 1, (1, 1))];
        let error = picture(&events, &labels(), "write").expect_err("none");
        assert!(error.to_string().contains("no request 'write': it has fsync, read"), "{error}");
        assert!(picture(&[], &labels(), "write").is_err());
    }

    #[test]
    fn marks_are_round_and_times_short() {
        assert_eq!([1.0, 1.1, 2.5, 7.0, 700.0].map(mark), [1.0, 2.0, 5.0, 10.0, 1000.0]);
        assert_eq!([0.0, 1500.0, 2e6, 1.25e9].map(time), ["0 µs", "1.5 µs", "2 ms", "1.25 s"]);
    }
}
