//! A trace in the format of Chrome's tracer, which Perfetto and `chrome://tracing` show as a
//! picture: a line for each thread, a bar for each event, and arrows from a request to what other
//! threads do for it.

use crate::trace::{Labels, TraceEvent};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{Result, Write};

/// The number of the one process in the picture.
const PROCESS: u32 = 1;

/// Writes the picture of `events`. `name` is that of the file system.
///
/// # Errors
/// Those of `out`.
pub fn write_chrome_trace(
    out: &mut dyn Write,
    events: &[TraceEvent],
    labels: &Labels,
    name: &str,
) -> Result<()> {
    let process = json!({
        "ph": "M", "pid": PROCESS, "name": "process_name",
        "args": { "name": format!("strake {name}") },
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{process}")?;
    let threads: BTreeMap<u32, &str> =
        events.iter().map(|event| (event.thread, &*event.thread_name)).collect();
    for (thread, name) in threads {
        let args = json!({ "name": name });
        let named = json!({ "ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": args });
        write!(out, ",\n{named}")?;
    }
    for event in events {
        write!(out, ",\n{}", bar(event, labels))?;
    }
    let mut requests: HashMap<u64, Vec<&TraceEvent>> = HashMap::new();
    for event in events.iter().filter(|event| event.request != 0) {
        requests.entry(event.request).or_default().push(event);
    }
    let mut requests: Vec<Vec<&TraceEvent>> = requests.into_values().collect();
    requests.sort_by_key(|events| events.iter().map(|event| event.number).min());
    let arrows = requests.into_iter().flat_map(arrows_of);
    for (number, (from, to)) in (1u64..).zip(arrows) {
        let begin = to.start_ns.clamp(from.start_ns, from.start_ns + from.took_ns);
        write!(out, ",\n{}", arrow_end("s", number, from, begin))?;
        write!(out, ",\n{}", arrow_end("f", number, to, to.start_ns))?;
    }
    writeln!(out, "\n]}}")
}

/// The beginning (`s`) or the end (`f`) of an arrow.
fn arrow_end(which: &str, number: u64, event: &TraceEvent, at_ns: u64) -> Value {
    json!({
        "ph": which, "id": number, "cat": "request", "name": "request", "pid": PROCESS,
        "tid": event.thread, "ts": micros(at_ns), "bp": "e",
    })
}

fn bar(event: &TraceEvent, labels: &Labels) -> Value {
    let mut args = serde_json::Map::new();
    let mut put = |name: &str, value: Value| args.insert(name.to_owned(), value);
    if event.request != 0 {
        put("request", event.request.into());
    }
    if event.process != 0 {
        put("process", labels.process(event.process).into());
    }
    if event.inode != 0 {
        put("file", labels.file(event.inode).into());
    }
    if let Some(nsd) = event.nsd {
        put("nsd", labels.nsd(nsd).into());
    }
    if event.bytes > 0 {
        put("bytes", event.bytes.into());
    }
    if event.failed {
        put("failed", true.into());
    }
    let kind = event.operation.split([' ', '_']).next().unwrap_or_default();
    json!({
        "ph": "X", "pid": PROCESS, "tid": event.thread, "name": event.operation, "cat": kind,
        "ts": micros(event.start_ns), "dur": micros(event.took_ns), "args": args,
    })
}

/// The format counts in microseconds.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Arrows from the first event of a request to those of its events that no other one of them
/// encloses on the same thread. Inside those, the picture shows what belongs to what by itself.
fn arrows_of(mut events: Vec<&TraceEvent>) -> Vec<(&TraceEvent, &TraceEvent)> {
    let end = |event: &TraceEvent| event.start_ns + event.took_ns;
    events.sort_by_key(|event| (event.thread, event.start_ns, u64::MAX - event.took_ns));
    let mut outermost: Vec<&TraceEvent> = Vec::new();
    for event in events {
        let is_inside = outermost
            .last()
            .is_some_and(|last| last.thread == event.thread && end(event) <= end(last));
        if !is_inside {
            outermost.push(event);
        }
    }
    let first = outermost.iter().copied().min_by_key(|event| (event.start_ns, event.number));
    let Some(first) = first else { return Vec::new() };
    let others = outermost.into_iter().filter(|event| event.number != first.number);
    others.map(|event| (first, event)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::NsdId;

    fn event(number: u64, operation: &str, thread: u32, (start, took): (u64, u64)) -> TraceEvent {
        TraceEvent {
            number,
            operation: operation.to_owned(),
            start_ns: start,
            took_ns: took,
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

    #[test]
    fn a_write_is_seen_from_its_request_to_the_disks() {
        let events = [
            event(0, "disk write data", 2, (3000, 500)),
            event(1, "call write", 2, (2500, 1500)),
            event(2, "blockWrite", 1, (2000, 3000)),
            event(3, "fuse_write", 1, (1000, 4500)),
            event(4, "blockWrite", 3, (9000, 100)),
            TraceEvent { request: 0, ..event(5, "disk read data", 4, (1, 1)) },
        ];
        let labels = Labels {
            processes: [(10, "dd".to_owned())].into(),
            files: [(5, "/five".to_owned())].into(),
            nsds: [(NsdId(2), "nsd2".to_owned())].into(),
        };
        let mut bytes = Vec::new();
        write_chrome_trace(&mut bytes, &events, &labels, "demo").expect("memory takes all");
        let picture: Value = serde_json::from_slice(&bytes).expect("it is JSON");
        let all = picture["traceEvents"].as_array().expect("a list");
        let of = |ph: &str| -> Vec<&Value> { all.iter().filter(|it| it["ph"] == ph).collect() };

        let names: Vec<&Value> = of("M").iter().map(|it| &it["args"]["name"]).collect();
        assert_eq!(names, ["strake demo", "thread-1", "thread-2", "thread-3", "thread-4"]);
        let bars = of("X");
        assert_eq!(bars.len(), 6);
        let disk = json!({
            "ph": "X", "pid": 1, "tid": 2, "name": "disk write data", "cat": "disk",
            "ts": 3.0, "dur": 0.5,
            "args": {
                "request": 7, "process": "dd 10", "file": "/five", "nsd": "nsd2", "bytes": 4096,
            },
        });
        assert_eq!(*bars[0], disk);
        // One arrow to the strip, from within the request, and one to the block that was sent after
        // the request had ended.
        let ends = |ph| -> Vec<(u64, u64, f64)> {
            let number = |it: &Value, name: &str| it[name].as_u64().expect("a number");
            let end = |it: &&Value| {
                (number(it, "id"), number(it, "tid"), it["ts"].as_f64().expect("a time"))
            };
            of(ph).iter().map(end).collect()
        };
        assert_eq!(ends("s"), [(1, 1, 2.5), (2, 1, 5.5)]);
        assert_eq!(ends("f"), [(1, 2, 2.5), (2, 3, 9.0)]);
    }
}
