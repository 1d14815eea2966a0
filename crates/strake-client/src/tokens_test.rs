//! [`Tokens`] with an authority that is silent, and data that is given up at once or never.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::thread;
use strake_env::{ManualClock, RealClock};
use strake_proto::NsdId;
use strake_token::held::Held;
use strake_token::message::{Granted, RequestId};

const FILE: Ino = Ino(7);
const OTHER: Ino = Ino(8);
const TERM: Term = Term(1);
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

/// An authority that notes what a client says, and never answers.
#[derive(Default)]
struct Silent {
    said: Mutex<Vec<Request>>,
}

impl Silent {
    fn count(&self, is_meant: impl Fn(&Request) -> bool) -> usize {
        self.said.lock().iter().filter(|request| is_meant(request)).count()
    }

    /// The number of the request that wants a file.
    fn asked(&self, ino: Ino) -> Option<RequestId> {
        self.said.lock().iter().find_map(|request| match request {
            Request::Ask { request, wants } if wants[0].ino == ino => Some(*request),
            _ => None,
        })
    }
}

impl ToAuthority for Silent {
    fn send(&self, _: Term, message: Request) {
        self.said.lock().push(message);
    }
}

/// Data that is always durable, and caches that drop a file when the test says so.
struct Keeper {
    begins: Sender<()>,
    /// Nothing more is waited for once the other end is gone.
    may_end: Mutex<Receiver<()>>,
    saves: Mutex<u32>,
    /// Files that were saved together, and whether that succeeds.
    saved_together: Mutex<Vec<Vec<Ino>>>,
    saves_together: AtomicBool,
    leaves: AtomicU64,
    /// The syncs for changes of places, and whether they go on for now.
    syncs: AtomicU64,
    syncs_last: AtomicBool,
    written_again: Mutex<Vec<(NsdId, u64)>>,
}

impl GiveUp for Keeper {
    fn granted(&self, _: GrantNumber) {}
    fn save(&self, _: Ino, _: &Given) -> bool {
        *self.saves.lock() += 1;
        true
    }
    fn save_all(&self, files: &[Ino]) -> bool {
        self.saved_together.lock().push(files.to_vec());
        self.saves_together.load(Ordering::Acquire)
    }
    fn drop_from_caches(&self, _: Ino, drops: Drops, _: &[Range<u64>]) {
        assert_eq!(drops, Drops::All);
        let _ = self.begins.send(());
        let _ = self.may_end.lock().recv_timeout(HANGS);
    }
    fn forget(&self, _: Ino, _: &Given) {}
    fn is_just_found(&self, _: Ino) -> bool {
        false
    }
    fn may_be_written_beside(&self, _: Ino) -> bool {
        false
    }
    fn leave(&self, _: &[NsdId]) {
        self.leaves.fetch_add(1, Ordering::AcqRel);
    }
    fn leaves(&self) -> u64 {
        self.leaves.load(Ordering::Acquire)
    }
    fn bury(&self, _: &[Ino]) {}
    fn follow_places(&self) -> bool {
        self.syncs.fetch_add(1, Ordering::AcqRel);
        until("a sync", || !self.syncs_last.load(Ordering::Acquire));
        true
    }

    fn write_again(&self, nsd: NsdId, leaves: u64) -> bool {
        self.written_again.lock().push((nsd, leaves));
        self.leaves() == leaves
    }
}

/// Time that the test moves. A thread that sleeps waits for that.
#[derive(Default)]
struct Moved(ManualClock);

impl Clock for Moved {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
    fn wall(&self) -> strake_proto::Timestamp {
        self.0.wall()
    }
    fn sleep(&self, duration: Duration) {
        let end = self.monotonic() + duration;
        until("the time", || self.monotonic() >= end);
    }
}

/// A client that holds a file.
struct Client {
    way: Arc<Silent>,
    keeper: Arc<Keeper>,
    tokens: Arc<Tokens>,
    /// Caches have begun to drop a file.
    begun: Receiver<()>,
    /// Lets them end.
    end: Sender<()>,
}

impl Client {
    fn new(clock: Arc<dyn Clock>) -> Client {
        Client::with_files(clock, FILES_MAX)
    }

    /// Keeps the tokens of so many files.
    fn with_files(clock: Arc<dyn Clock>, files_max: usize) -> Client {
        let ((begins, begun), (end, may_end)) = (channel(), channel());
        let keeper = Keeper {
            begins,
            may_end: Mutex::new(may_end),
            saves: Mutex::new(0),
            saved_together: Mutex::default(),
            saves_together: AtomicBool::new(true),
            leaves: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            syncs_last: AtomicBool::new(false),
            written_again: Mutex::default(),
        };
        let (way, keeper) = (Arc::<Silent>::default(), Arc::new(keeper));
        let observe = Observe::new(Arc::clone(&clock), 16);
        let to_authority = Arc::clone(&way) as Arc<dyn ToAuthority>;
        let tokens = Tokens::new(TERM, to_authority, clock, observe, files_max);
        let weak: Weak<Keeper> = Arc::downgrade(&keeper);
        tokens.attach(weak);
        Client { way, keeper, tokens, begun, end }
    }

    /// Is granted the file, and asked to give it up. Its caches have begun to drop it.
    fn gives_up(&self) {
        self.is_granted();
        self.is_asked();
        self.begun.recv_timeout(HANGS).expect("it is given up");
    }

    fn is_granted(&self) {
        thread::scope(|scope| {
            let (tokens, all) = (&self.tokens, [exclusive(FILE)]);
            let first = scope.spawn(move || tokens.take(&all, Access::Write).map(drop));
            until("the request", || self.way.asked(FILE).is_some());
            let request = self.way.asked(FILE).expect("asked");
            let held = Held { inode: Some(Mode::Exclusive), ..Held::default() };
            let grants = vec![Granted { ino: FILE, held, number: GrantNumber(1) }];
            self.tokens.send(TERM, Reply::Grant { request, grants });
            first.join().expect("no panic").expect("granted");
        });
    }

    fn is_asked(&self) {
        let limit = Limit { inode: None, ranges: Vec::new() };
        self.tokens.send(TERM, Reply::Revoke { ino: FILE, upto: GrantNumber(1), limit });
    }

    /// Uses the file so often that it lingers, and is asked to give it up.
    fn lingers(&self) {
        self.is_granted();
        for _ in 0..8 {
            drop(self.tokens.take(&[exclusive(FILE)], Access::Other).expect("held"));
        }
        self.is_asked();
        assert!(self.begun.try_recv().is_err(), "it is not given up at once");
        drop(self.tokens.take(&[exclusive(FILE)], Access::Other).expect("still held"));
    }

    /// Is granted another file, which was asked for.
    fn is_granted_other(&self) {
        let request = self.way.asked(OTHER).expect("asked");
        let held = Held { inode: Some(Mode::Exclusive), ..Held::default() };
        let grants = vec![Granted { ino: OTHER, held, number: GrantNumber(2) }];
        self.tokens.send(TERM, Reply::Grant { request, grants });
    }

    fn has_given_up(&self) -> bool {
        self.way.count(|request| matches!(request, Request::GivenUp { ino: FILE, .. })) > 0
    }

    /// Waits until so many operations wait for tokens.
    fn await_waits(&self, count: usize) {
        until("an operation", || self.tokens.observe.waiters.snapshot().len() == count);
    }
}

/// Runs `work` until it is true. What hangs fails.
fn until(what: &str, mut work: impl FnMut() -> bool) {
    let clock = RealClock::shared();
    let start = clock.monotonic();
    while !work() {
        assert!(clock.monotonic() - start < HANGS, "{what} hangs");
        thread::yield_now();
    }
}

/// Regression: a mount that was being made panicked.
#[test]
fn another_node_may_begin_to_lead_before_the_first_operation() {
    let (way, clock) = (Arc::<Silent>::default(), RealClock::shared());
    let observe = Observe::new(Arc::clone(&clock), 16);
    let to_authority = Arc::clone(&way) as Arc<dyn ToAuthority>;
    let tokens = Tokens::new(TERM, to_authority, clock, observe, FILES_MAX);
    tokens.new_term(Term(2));
    tokens.send(Term(2), Reply::Reasserted);
    assert_eq!(way.count(|request| matches!(request, Request::Reasserted { .. })), 1);
}

/// The authority has not heard the request, and says much about another file meanwhile.
#[test]
fn a_request_is_repeated_whatever_else_is_heard() {
    let client = Client::new(RealClock::shared());
    let (way, tokens) = (&client.way, &client.tokens);
    thread::scope(|scope| {
        let asking = scope.spawn(|| tokens.take(&[shared(FILE)], Access::Other).map(drop));
        let mut heard = 0;
        until("the repetition", || {
            heard += 1;
            tokens.send(TERM, Reply::Reasserted);
            way.count(|request| matches!(request, Request::Ask { .. })) > 1
        });
        println!("repeated after {heard} messages");
        tokens.stop();
        assert!(asking.join().expect("no panic").is_err(), "it is told that the mount ends");
    });
}

/// A way to the same leader that is new: the old one may have lost what was said.
#[test]
fn all_that_waits_is_said_again_on_a_new_way() {
    let client = Client::new(RealClock::shared());
    let (way, tokens) = (&client.way, &client.tokens);
    let next = Term(TERM.0 + 1);
    tokens.new_term(next);
    let reasserted = || way.count(|request| matches!(request, Request::Reasserted { .. }));
    assert_eq!(reasserted(), 1);
    tokens.new_term(next);
    assert_eq!(reasserted(), 2);
    tokens.send(next, Reply::Reasserted);
    tokens.new_term(next);
    assert_eq!(reasserted(), 2, "it was heard");
    tokens.stop();
}

/// A client that makes more files than it keeps tokens of once synced the metadata for each.
#[test]
fn files_are_given_back_together_after_one_sync() {
    const KEPT: u64 = 30;
    const TOGETHER: u64 = KEPT / 3;
    let client = Client::with_files(RealClock::shared(), KEPT as usize);
    let given_up = || client.way.count(|request| matches!(request, Request::GivenUp { .. })) as u64;
    let make = |numbers: Range<u64>| {
        let making = client.tokens.make();
        numbers.for_each(|number| making.made(Ino(number), (TERM, GrantNumber(number))));
    };
    (0..2 * TOGETHER).for_each(|_| client.end.send(()).expect("it waits for this"));
    make(1..KEPT + TOGETHER);
    assert_eq!(client.keeper.saved_together.lock().len(), 0, "there is room");
    make(KEPT + TOGETHER..KEPT + TOGETHER + 1);
    until("the first ones", || given_up() == TOGETHER);
    let oldest: Vec<Ino> = (1..=TOGETHER).map(Ino).collect();
    assert_eq!(*client.keeper.saved_together.lock(), [oldest]);
    assert_eq!(*client.keeper.saves.lock(), 0, "nothing was left to be saved");
    // A file that cannot be saved now holds up no other.
    client.keeper.saves_together.store(false, Ordering::Release);
    make(KEPT + TOGETHER + 1..KEPT + 2 * TOGETHER + 1);
    until("the next ones", || given_up() == 2 * TOGETHER);
    assert_eq!(client.keeper.saved_together.lock().len(), 2);
    assert_eq!(u64::from(*client.keeper.saves.lock()), TOGETHER, "each by itself");
    client.tokens.stop();
}

/// The file may have been removed meanwhile, and nobody looks at it. It stays as long as a client
/// has it open.
#[test]
fn a_file_that_was_asked_for_ahead_and_is_granted_late_is_not_open() {
    let client = Client::new(RealClock::shared());
    client.tokens.fetch(&[FILE], Duration::ZERO);
    let request = client.way.asked(FILE).expect("asked");
    let held = Held { inode: Some(Mode::Shared), open: true, ..Held::default() };
    let grants = vec![Granted { ino: FILE, held, number: GrantNumber(1) }];
    client.tokens.send(TERM, Reply::Grant { request, grants });
    let is_closed = |request: &Request| match request {
        Request::GivenUp { ino, keeps, .. } => *ino == FILE && !keeps.open,
        _ => false,
    };
    assert_eq!(client.way.count(is_closed), 1);
    assert!(client.tokens.may_look(FILE), "the rest is kept");
    // While many wait, no more are asked for.
    let asked = || client.way.count(|request| matches!(request, Request::Ask { .. }));
    for first in (100..1000).step_by(32) {
        let files: Vec<Ino> = (first..first + 32).map(Ino).collect();
        client.tokens.fetch(&files, Duration::ZERO);
    }
    assert_eq!(asked(), 1 + 64);
    client.tokens.stop();
}

/// Time stands still, so caches are quick. Programs that want to go on reading and writing wait.
#[test]
fn a_file_in_constant_use_is_given_up() {
    let client = Client::new(Arc::new(ManualClock::default()));
    client.gives_up();
    thread::scope(|scope| {
        let tokens = &client.tokens;
        let takes = move |access| tokens.take(&[exclusive(FILE)], access).map(drop);
        let reader = scope.spawn(move || takes(Access::Read));
        let writer = scope.spawn(move || takes(Access::Write));
        client.await_waits(2);
        client.end.send(()).expect("it drops");
        until("the answer", || client.has_given_up());
        assert_eq!(*client.keeper.saves.lock(), 1, "nothing was served");
        client.tokens.stop();
        assert!(reader.join().expect("no panic").is_err(), "it waits for a token");
        assert!(writer.join().expect("no panic").is_err(), "so does the other one");
    });
}

/// Caches wait for the answer to a read.
#[test]
fn a_read_that_caches_wait_for_is_served() {
    let client = Client::new(RealClock::shared());
    client.gives_up();
    let tokens = &client.tokens;
    let takes = move |ino, access| tokens.take(&[shared(ino)], access).map(drop);
    thread::scope(|scope| {
        let other = scope.spawn(move || takes(FILE, Access::Other));
        takes(FILE, Access::Read).expect("served");
        client.end.send(()).expect("it drops");
        client.begun.recv_timeout(HANGS).expect("what was served may have changed the file");
        assert!(!client.has_given_up());
        client.end.send(()).expect("it drops");
        until("the answer", || client.has_given_up());
        assert_eq!(*client.keeper.saves.lock(), 2);
        let beside = scope.spawn(move || takes(OTHER, Access::Read));
        until("the other request", || client.way.asked(OTHER).is_some());
        client.tokens.stop();
        assert!(other.join().expect("no panic").is_err(), "it is no read or write");
        assert!(beside.join().expect("no panic").is_err(), "it is of another file");
    });
}

/// Regression: a sync waited for an NSD that another client had noted. That client waited for this
/// one to leave the NSD, and the message lay behind the sync.
#[test]
fn an_nsd_is_left_while_an_earlier_change_makes_data_durable() {
    const NSD: NsdId = NsdId(3);
    let client = Client::new(RealClock::shared());
    let (way, tokens, keeper) = (&client.way, &client.tokens, &client.keeper);
    let answered = |number| way.count(|said| *said == Request::Left { change: number });
    keeper.syncs_last.store(true, Ordering::Release);
    tokens.send(TERM, Reply::Places { change: 1 });
    tokens.send(TERM, Reply::Writable { change: 2, nsd: NSD });
    until("the sync", || keeper.syncs.load(Ordering::Acquire) == 1);
    tokens.send(TERM, Reply::Places { change: 1 });
    tokens.send(TERM, Reply::Unusable { change: 3, nsds: vec![NSD] });
    assert_eq!((answered(1), answered(3)), (0, 1), "the NSD is left, and the sync goes on");
    keeper.syncs_last.store(false, Ordering::Release);
    until("the sync's end", || answered(1) == 1);
    until("the next change", || keeper.written_again.lock().len() == 1);
    assert_eq!(*keeper.written_again.lock(), [(NSD, 0)], "as of before it was left");
    tokens.stop();
    assert_eq!(keeper.syncs.load(Ordering::Acquire), 1, "what is repeated is done once");
    assert_eq!(answered(2), 0, "the keeper refused");
}

#[test]
fn a_file_that_lingers_is_given_up_when_its_time_is_over() {
    let clock = Arc::<Moved>::default();
    let client = Client::new(Arc::clone(&clock) as Arc<dyn Clock>);
    client.lingers();
    clock.0.advance(Duration::from_millis(20));
    client.begun.recv_timeout(HANGS).expect("it is given up");
    client.end.send(()).expect("it waits");
    until("the answer", || client.has_given_up());
}

#[test]
fn a_file_that_lingers_is_given_up_at_once_for_an_operation_that_needs_more() {
    let clock = Arc::<Moved>::default();
    let client = Client::new(Arc::clone(&clock) as Arc<dyn Clock>);
    client.lingers();
    let more = [Want { open: true, ..exclusive(FILE) }];
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.tokens.take(&more, Access::Other).map(drop));
        client.begun.recv_timeout(HANGS).expect("it is given up");
        client.end.send(()).expect("it waits");
        until("the answer", || client.has_given_up());
        // The thread that lingered ends with its time.
        clock.0.advance(Duration::from_secs(1));
        client.tokens.stop();
        assert!(waits.join().expect("no panic").is_err(), "nobody grants it");
    });
}

/// It removes files of a directory that lingers, of which other clients hold tokens.
#[test]
fn a_file_that_lingers_outlives_an_operation_that_needs_more_of_another_one() {
    let clock = Arc::<Moved>::default();
    let client = Client::new(Arc::clone(&clock) as Arc<dyn Clock>);
    client.lingers();
    let both = [exclusive(FILE), exclusive(OTHER)];
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.tokens.take(&both, Access::Other).map(drop));
        let asks = |request: &Request| matches!(request, Request::Ask { .. });
        until("the request", || client.way.count(asks) == 2);
        if client.way.asked(OTHER).is_none() {
            client.tokens.stop();
            panic!("the file that lingers is asked for, too");
        }
        assert!(!client.has_given_up() && client.begun.try_recv().is_err(), "it lingers");
        client.is_granted_other();
        waits.join().expect("no panic").expect("both are held");
        assert!(!client.has_given_up() && client.begun.try_recv().is_err(), "it lingers");
        clock.0.advance(Duration::from_secs(1));
        client.begun.recv_timeout(HANGS).expect("it is given up");
        client.end.send(()).expect("it waits");
        until("the answer", || client.has_given_up());
        client.tokens.stop();
    });
}
