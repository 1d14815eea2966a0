//! Round trips, silence and sums of peers whose connections take pings, or do not.

use super::*;
use crate::clock::ManualClock;
use std::sync::atomic::AtomicBool;

/// An end that takes pings, or does not.
struct End {
    sent: Mutex<Vec<u64>>,
    takes: AtomicBool,
    is_over: AtomicBool,
    calls: usize,
    figures: Mutex<TcpFigures>,
    is_cut_off: AtomicBool,
}

impl End {
    fn new(calls: usize) -> Arc<End> {
        Arc::new(End {
            sent: Mutex::default(),
            takes: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            calls,
            figures: Mutex::default(),
            is_cut_off: AtomicBool::new(false),
        })
    }
}

impl LinkEnd for End {
    fn ping(&self, number: u64) -> bool {
        let takes = self.takes.load(Relaxed);
        if takes {
            self.sent.lock().push(number);
        }
        takes
    }

    fn figures(&self) -> Option<TcpFigures> {
        (!self.is_over.load(Relaxed)).then(|| *self.figures.lock())
    }

    fn calls(&self) -> usize {
        self.calls
    }

    fn cut_off(&self) {
        self.is_cut_off.store(true, Relaxed);
    }
}

struct Scene {
    clock: Arc<ManualClock>,
    links: Arc<Links>,
}

impl Scene {
    fn new() -> Scene {
        let clock = Arc::new(ManualClock::default());
        let links = Links::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Scene { clock, links }
    }

    fn connect(&self, name: &str, end: &Arc<End>) -> Link {
        let end: Arc<dyn LinkEnd> = Arc::clone(end) as Arc<dyn LinkEnd>;
        self.links.connected(name, Arc::downgrade(&end))
    }

    fn tick_after(&self, passed: Duration) {
        self.clock.advance(passed);
        self.links.tick();
    }

    fn view(&self, name: &str) -> PeerView {
        self.links.view().into_iter().find(|row| row.name == name).expect("a peer")
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_round_trip_is_the_time_from_ping_to_answer() {
    let scene = Scene::new();
    let end = End::new(0);
    let link = scene.connect("node2", &end);
    for milliseconds in [5, 1, 3] {
        scene.tick_after(PERIOD);
        let number = *end.sent.lock().last().expect("sent");
        scene.clock.advance(MILLISECOND * milliseconds);
        link.answered(number, (70, 3));
        link.answered(number, (0, 0));
    }
    let row = scene.view("node2");
    assert_eq!((row.pings, row.answered, row.trips_ns), (3, 3, 9_000_000));
    assert_eq!((row.smallest_ns, row.theirs), (Some(1_000_000), (70, 3)));
    assert_eq!((row.median_ns, row.last_ns), (Some(3_000_000), Some(3_000_000)));
}

#[test]
fn the_connection_with_the_least_to_do_takes_the_ping() {
    let scene = Scene::new();
    let (busy, idle, full) = (End::new(9), End::new(2), End::new(0));
    full.takes.store(false, Relaxed);
    let _links = [&busy, &idle, &full].map(|end| scene.connect("node2", end));
    scene.tick_after(PERIOD);
    assert_eq!((busy.sent.lock().len(), idle.sent.lock().len()), (0, 1));
    idle.takes.store(false, Relaxed);
    busy.takes.store(false, Relaxed);
    scene.tick_after(PERIOD);
    assert_eq!(scene.view("node2").pings, 1, "one that was not sent does not count");
}

#[test]
fn silence_counts_from_three_seconds_on_and_ends_with_a_word() {
    let scene = Scene::new();
    let (end, other) = (End::new(0), End::new(0));
    let (link, talks) = (scene.connect("node2", &end), scene.connect("node3", &other));
    scene.tick_after(PERIOD);
    let mut seconds = Vec::new();
    for _ in 0..5 {
        talks.heard();
        scene.tick_after(PERIOD);
        let row = scene.view("node2");
        seconds.push((row.silence_ns / 1_000_000_000, row.silent_ns / 1_000_000_000));
    }
    assert_eq!(seconds, [(1, 0), (2, 0), (3, 3), (4, 4), (5, 5)]);
    link.heard();
    scene.tick_after(PERIOD);
    let row = scene.view("node2");
    assert_eq!((row.silence_ns, row.silent_ns), (0, 5_000_000_000));
    assert_eq!(scene.view("node3").silent_ns, 0);
}

#[test]
fn where_this_process_did_not_run_its_peers_were_not_silent() {
    let scene = Scene::new();
    let end = End::new(0);
    let _link = scene.connect("node2", &end);
    scene.tick_after(PERIOD);
    scene.tick_after(PERIOD * 60);
    assert_eq!(scene.view("node2").silent_ns, 0);
}

#[test]
fn sums_outlive_connections_and_peers_without_one_are_forgotten() {
    let scene = Scene::new();
    let first = End::new(0);
    *first.figures.lock() =
        TcpFigures { sent: 10, sent_again: 2, unsent: 5, ..TcpFigures::default() };
    let _link = scene.connect("node2", &first);
    scene.tick_after(PERIOD);
    assert_eq!(scene.view("node2").figures.unsent, 5);
    first.is_over.store(true, Relaxed);
    scene.tick_after(PERIOD);
    let row = scene.view("node2");
    assert_eq!((row.connections, row.figures.sent, row.figures.unsent), (0, 10, 0));
    for _ in 0..10 {
        scene.tick_after(PERIOD);
    }
    assert_eq!(scene.view("node2").silent_ns, 0, "nobody is there who could be silent");
    let second = End::new(0);
    *second.figures.lock() = TcpFigures { sent: 7, ..TcpFigures::default() };
    let _link = scene.connect("node2", &second);
    scene.tick_after(PERIOD);
    assert_eq!(scene.view("node2").figures.sent, 17);
    second.is_over.store(true, Relaxed);
    scene.tick_after(PERIOD);
    scene.tick_after(FORGET);
    assert!(scene.links.view().is_empty());
}

#[test]
fn a_peer_is_cut_off_if_not_even_its_kernel_acknowledges() {
    let scene = Scene::new();
    let (busy, idle) = (End::new(1), End::new(0));
    let link = scene.connect("node2", &busy);
    let _other = scene.connect("node2", &idle);
    let cut = || [&busy, &idle].map(|end| end.is_cut_off.load(Relaxed));
    // It was sent something again before, and answers.
    *busy.figures.lock() = TcpFigures { sent_again: 3, unacknowledged: 1, ..Default::default() };
    for _ in 0..5 {
        link.heard();
        scene.tick_after(PERIOD);
    }
    // Its process stands still: what is on its way now is acknowledged in a moment.
    for _ in 0..5 {
        scene.tick_after(PERIOD);
    }
    assert_eq!(cut(), [false, false]);
    link.heard();
    scene.tick_after(PERIOD);
    *busy.figures.lock() = TcpFigures { sent_again: 4, unacknowledged: 1, ..Default::default() };
    scene.tick_after(PERIOD);
    scene.tick_after(PERIOD);
    assert_eq!(cut(), [false, false], "not for so long yet");
    scene.tick_after(PERIOD);
    assert_eq!(cut(), [true, true], "also the connection on which nothing was sent");
}
