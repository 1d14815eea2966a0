//! Tests what a trace keeps, for whom, and under which names.

use super::*;
use strake_env::ManualClock;

fn clock_and_trace() -> (Arc<ManualClock>, Trace) {
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(5));
    (Arc::clone(&clock), Trace::new(clock))
}

fn happen(clock: &ManualClock, trace: &Trace, operation: &'static str, millis: u64) {
    let begun = clock.monotonic();
    clock.advance(Duration::from_millis(millis));
    let took = Duration::from_millis(millis);
    trace.note(&Occurrence { operation, begun, took, bytes: 9, nsd: None, failed: false });
}

fn operations(trace: &Trace) -> Vec<&'static str> {
    let (_, events) = trace.snapshot().expect("there is a trace");
    events.iter().map(|(_, event)| event.operation).collect()
}

#[test]
fn only_what_begins_and_ends_while_a_trace_runs_is_recorded() {
    let (clock, trace) = clock_and_trace();
    happen(&clock, &trace, "before", 1);
    assert!(trace.snapshot().is_none(), "there was no trace yet");
    assert_eq!(trace.begin(), None);
    let begun = clock.monotonic();
    clock.advance(Duration::from_millis(1));
    trace.start(0);
    let early = Occurrence {
        operation: "began before",
        begun,
        took: Duration::from_millis(1),
        bytes: 0,
        nsd: None,
        failed: false,
    };
    trace.note(&early);
    happen(&clock, &trace, "during", 2);
    let span = trace.begin();
    clock.advance(Duration::from_millis(3));
    trace.end(span, "span", 4096, Some(NsdId(3)), true);
    assert!(trace.stop());
    assert!(!trace.stop(), "it was stopped already");
    happen(&clock, &trace, "after", 1);
    trace.end(span, "ends after", 0, None, false);
    assert_eq!(operations(&trace), ["during", "span"]);

    let (status, events) = trace.snapshot().expect("there was one");
    assert_eq!((status.on, status.elapsed_ns, status.kept), (false, 5_000_000, 2));
    let span = events[1].1;
    assert_eq!((span.start_ns, span.took_ns, span.bytes), (2_000_000, 3_000_000, 4096));
    assert_eq!((span.nsd, span.failed), (Some(NsdId(3)), true));
    assert_eq!(span.thread.name(), &thread::current().name().expect("it has one")[..15]);
}

#[test]
fn a_new_trace_forgets_the_last_one_and_a_full_one_its_oldest_events() {
    let (clock, trace) = clock_and_trace();
    trace.start(TRACE_EVENTS_MIN);
    happen(&clock, &trace, "first", 1);
    trace.start(TRACE_EVENTS_MIN);
    happen(&clock, &trace, "oldest", 1);
    (0..TRACE_EVENTS_MIN).for_each(|_| happen(&clock, &trace, "later", 1));
    let (status, events) = trace.snapshot().expect("it runs");
    assert_eq!((status.on, status.capacity), (true, 1024));
    // Places that this thread has taken and not used yet are the oldest.
    assert!((1024 - places_at_once(1024)..=1024).contains(&status.kept), "{status:?}");
    assert_eq!(status.kept + status.overwritten, 1025);
    assert!(events.iter().all(|(_, event)| event.operation == "later"));
}

#[test]
fn events_know_for_whom_they_happened() {
    let (clock, trace) = clock_and_trace();
    let cause = Cause { request: 8, inode: 30, process: std::process::id() };
    assert!(trace.answer(cause).is_none(), "no trace runs");
    trace.start(0);
    let guard = trace.answer(cause);
    happen(&clock, &trace, "inside", 1);
    drop(guard);
    happen(&clock, &trace, "outside", 1);
    trace.note_file(Ino(30), Ino(20), b"b\x1b\xff");
    trace.note_file(Ino(20), Ino::ROOT, b"a");
    trace.note_file(Ino(50), Ino(40), b"c");
    trace.note_file(Ino(20), Ino(20), b".");
    trace.note_file(Ino::ROOT, Ino(20), b"..");
    let (_, mut events) = trace.snapshot().expect("it runs");
    assert_eq!([events[0].1.cause, events[1].1.cause], [cause, Cause::default()]);

    events[1].1.cause = Cause { request: 9, inode: 50, process: u32::MAX };
    let labels = trace.labels(&events, BTreeMap::from([(NsdId(1), "nsd1".to_owned())]));
    assert_eq!(labels.file(30), "/a/b\\u{1b}\u{fffd}");
    assert_eq!((&*labels.file(50), &*labels.file(60)), ("…/c", "inode 60"));
    assert_eq!((&*labels.nsd(NsdId(1)), &*labels.nsd(NsdId(2))), ("nsd1", "NSD 2"));
    let own = std::fs::read_to_string("/proc/self/comm").expect("it tells");
    assert_eq!(labels.process(cause.process), format!("{} {}", own.trim(), cause.process));
    assert_eq!(labels.process(u32::MAX), format!("process {}", u32::MAX));
}

#[test]
fn a_name_that_is_too_long_is_cut_between_characters() {
    assert_eq!(ThreadLabel::new(1, "nsd1-straighten").name(), "nsd1-straighten");
    assert_eq!(ThreadLabel::new(1, "nsd10-straighten").name(), "nsd10-straighte");
    assert_eq!(ThreadLabel::new(1, "fourteen-bytesäx").name(), "fourteen-bytes");
}

#[test]
fn starts_and_stops_beside_recorders_lose_no_thread() {
    let trace = Trace::new(strake_env::RealClock::shared());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let begun = trace.begin();
                    trace.end(begun, "work", 1, None, false);
                }
            });
        }
        for _ in 0..20 {
            trace.start(0);
            trace.stop();
        }
    });
    trace.start(0);
    let begun = trace.begin();
    trace.end(begun, "last", 1, None, false);
    assert_eq!(operations(&trace), ["last"]);
}

#[test]
fn threads_that_record_much_and_little_lose_nothing_that_has_room() {
    let (clock, trace) = clock_and_trace();
    trace.start(4096);
    let record = |operation: &'static str, count| {
        let begun = clock.monotonic();
        let it = Occurrence {
            operation,
            begun,
            took: Duration::ZERO,
            bytes: 0,
            nsd: None,
            failed: false,
        };
        (0..count).for_each(|_| trace.note(&it));
    };
    let (go, goes) = strake_env::channel::channel();
    let record = &record;
    thread::scope(|scope| {
        let seldom = scope.spawn(move || {
            record("little", 1);
            goes.recv().expect("the other one has recorded");
            // The places that it took are more than half a lap old.
            record("last", 1);
        });
        let (status, _) = trace.snapshot().expect("it runs");
        assert_eq!(status.overwritten, 0);
        record("much", 4096);
        go.send(()).expect("it waits");
        seldom.join().expect("no panic");
    });
    let (status, events) = trace.snapshot().expect("it runs");
    let count = |name| events.iter().filter(|(_, event)| event.operation == name).count() as u64;
    let [much, little, last] = ["much", "little", "last"].map(count);
    assert!(much >= 4096 - 4 * places_at_once(4096), "{much} of 4096 are there");
    assert_eq!(last, 1, "what comes last is there: {status:?}");
    assert_eq!(status.kept, much + little + last);
    assert_eq!(status.kept + status.overwritten, 4098);
    assert!(trace.stop());
    let (after, _) = trace.snapshot().expect("there was one");
    assert_eq!((after.kept, after.overwritten), (status.kept, status.overwritten));
}

#[test]
fn a_process_is_looked_at_seldom_once_it_has_made_many_requests() {
    let (clock, trace) = clock_and_trace();
    trace.start(0);
    let own = std::process::id();
    let known = || trace.names.lock().processes.get(&own).map(|it| it.again);
    let ask = |times| {
        (0..times).for_each(|_| drop(trace.answer(Cause { process: own, ..Cause::default() })))
    };
    ask(1);
    let first = known().expect("it is looked up at once");
    clock.advance(Duration::from_secs(1));
    ask(1);
    let second = known().expect("it is known");
    assert!(second > first, "the second request looks again");
    ask(200);
    clock.advance(Duration::from_secs(10));
    ask(9);
    assert_eq!(known(), Some(second), "it is seldom looked at");
    ask(PASSED_MAX + 1);
    assert!(known().expect("it is known") > second, "it is looked at in the end");
    trace.start(0);
    assert!(known().is_none(), "another trace knows nothing yet");
    ask(1);
    assert!(known().is_some());
}
