//! What the kernel is told, byte by byte, and what becomes of orders that it holds up or refuses.

use super::*;
use crate::pages::Pages;
use std::ops::Range;
use strake_env::RealClock;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::sync::Mutex;

const SOON: Duration = Duration::from_secs(60);

type Answers = Box<dyn Fn(&[u8]) -> std::result::Result<(), Errno> + Send + Sync>;

fn notifier(serving: usize, answers: Answers) -> Notifier {
    let is_covered = Box::new(|| false);
    Notifier::new(answers, is_covered, true, serving, Observe::new(RealClock::shared(), 1))
}

/// The outcome of one order at a kernel that answers so.
fn outcome(answer: std::result::Result<(), Errno>, what: Outdated) -> Result<Found> {
    let notifier = notifier(1, Box::new(move |_| answer));
    let waiters = &notifier.observe.waiters;
    notifier.invalidate(what)?.wait(waiters, SOON)
}

fn name(name: &[u8]) -> Outdated {
    Outdated::Name { parent: Ino(2), name: name.to_vec() }
}

fn removed() -> Outdated {
    Outdated::Gone { parent: Ino(2), name: b"gone".to_vec(), child: Ino(3) }
}

#[test]
fn golden_messages() {
    let hex = |what: &Outdated| {
        let bytes = message(what).expect("something may be cached");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(hex(&Outdated::AllNames), "10000000080000000000000000000000");
    assert_eq!(
        hex(&Outdated::Attributes(Ino(7))),
        "28000000020000000000000000000000\
         0700000000000000ffffffffffffffff0000000000000000"
    );
    assert_eq!(
        hex(&Outdated::Contents { ino: Ino(7), range: 4096..12288 }),
        "28000000020000000000000000000000\
         070000000000000000100000000000000020000000000000"
    );
    assert_eq!(
        hex(&name(b"ab")),
        "23000000030000000000000000000000\
         02000000000000000200000000000000616200"
    );
    assert_eq!(
        hex(&removed()),
        "2d000000060000000000000000000000\
         020000000000000003000000000000000400000000000000676f6e6500"
    );
}

#[test]
fn ranges_end_where_files_may_end_and_empty_ones_are_not_told() {
    let range = |range: Range<u64>| {
        let told = message(&Outdated::Contents { ino: Ino(1), range })?;
        let body = InvalInodeOut::decode(&told[OutHeader::SIZE..]).expect("whole");
        Some((body.offset, body.length))
    };
    assert_eq!(range(5..5), None);
    assert_eq!(range(0..u64::MAX), Some((0, 0)), "to the end");
    assert_eq!(range(9..i64::MAX as u64), Some((9, i64::MAX - 9)));
    // A negative offset would mean the attributes alone.
    assert_eq!(range(1 << 63..u64::MAX), None);
}

#[test]
fn the_kernels_answers_are_understood() {
    let kind = |answer, what: Outdated| outcome(Err(answer), what).expect_err("an error").kind();
    assert_eq!(outcome(Ok(()), name(b"a")), Ok(Found::Something));
    assert_eq!(outcome(Err(Errno::NOENT), name(b"a")), Ok(Found::Nothing), "not cached");
    assert!(outcome(Err(Errno::NOTEMPTY), removed()).is_ok(), "the name is dropped");
    assert!(outcome(Err(Errno::BUSY), removed()).is_ok());
    assert_eq!(kind(Errno::NODEV, name(b"a")), ErrorKind::Unreachable);
    assert_eq!(kind(Errno::NOTCONN, Outdated::AllNames), ErrorKind::Unreachable);
    assert_eq!(kind(Errno::INVAL, Outdated::AllNames), ErrorKind::NotSupported);
    assert_eq!(kind(Errno::NOSYS, removed()), ErrorKind::NotSupported);
    assert_eq!(kind(Errno::BUSY, name(b"a")), ErrorKind::Busy);
}

#[test]
fn without_epochs_all_names_are_refused_at_once() {
    let observe = Observe::new(RealClock::shared(), 1);
    let tell = Box::new(|_: &[u8]| panic!("it is not told"));
    let old = Notifier::new(tell, Box::new(|| false), false, 1, observe);
    assert!(!old.can_drop_all_names());
    let error = old.invalidate(Outdated::AllNames).map(drop).expect_err("too old");
    assert_eq!(error.kind(), ErrorKind::NotSupported);
}

#[test]
fn all_names_are_refused_while_something_is_mounted_below() {
    let observe = Observe::new(RealClock::shared(), 1);
    let is_covered = Arc::new(AtomicBool::new(true));
    let covered = Arc::clone(&is_covered);
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let tell = Box::new(move |_: &[u8]| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let covered = Box::new(move || covered.load(Ordering::SeqCst));
    let notifier = Notifier::new(tell, covered, true, 1, Arc::clone(&observe));
    let order = |what| notifier.invalidate(what).expect("taken").wait(&observe.waiters, SOON);
    let error = order(Outdated::AllNames).expect_err("it would be detached");
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(told.load(Ordering::SeqCst), 0);
    assert!(!notifier.can_drop_all_names());
    order(name(b"a")).expect("one name is dropped all the same");
    is_covered.store(false, Ordering::SeqCst);
    assert!(!notifier.can_drop_all_names(), "nobody has looked");
    notifier.look_below();
    assert!(notifier.can_drop_all_names());
    order(Outdated::AllNames).expect("nothing is there to be detached");
    assert_eq!(told.load(Ordering::SeqCst), 2);
}

/// A kernel that holds up what is about inode 2, be it names or pages, until the sender is dropped;
/// `begun` tells of each.
fn holding(begun: Sender<()>, held: Receiver<()>) -> Answers {
    let held = Mutex::new(held);
    Box::new(move |message| {
        let ino = message.get(OutHeader::SIZE..).and_then(|body| body.first_chunk());
        if ino.is_some_and(|ino| u64::from_ne_bytes(*ino) == 2) {
            let _ = begun.send(());
            let _ = held.lock().recv();
        }
        Ok(())
    })
}

#[test]
fn what_is_held_up_holds_up_no_other_lane_directory_or_file() {
    let ((begun, begins), (open, held)) = (channel(), channel());
    let notifier = notifier(1, holding(begun, held));
    let waiters = &notifier.observe.waiters;
    let of_pages = Outdated::Contents { ino: Ino(2), range: 0..1 };
    let stuck = [name(b"stuck"), of_pages].map(|what| notifier.invalidate(what).expect("taken"));
    begins.recv().and_then(|()| begins.recv()).expect("both are held up");
    for what in [
        Outdated::AllNames,
        Outdated::Attributes(Ino(9)),
        Outdated::Name { parent: Ino(9), name: b"free".to_vec() },
        Outdated::Contents { ino: Ino(9), range: 0..1 },
    ] {
        notifier.invalidate(what).expect("taken").wait(waiters, SOON).expect("not held up");
    }
    for dropping in &stuck {
        let late = dropping.wait(waiters, Duration::from_millis(1)).expect_err("held up");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
    drop(open);
    for dropping in &stuck {
        dropping.wait(waiters, SOON).expect("not any more");
    }
}

#[test]
fn orders_have_a_limit_and_end_with_the_mount() {
    let ((begun, begins), (open, held)) = (channel(), channel());
    let notifier = notifier(1, holding(begun, held));
    let most = NAMES.threads_max + NAMES.waiting_max;
    let mut taken = Vec::new();
    let refused = loop {
        match notifier.invalidate(name(b"a")) {
            Ok(dropping) => taken.push(dropping),
            Err(error) => break error,
        }
        assert!(taken.len() <= most);
    };
    assert_eq!(refused.kind(), ErrorKind::Busy);
    begins.recv().expect("one is held up, at least");
    notifier.end();
    drop(open);
    notifier.join();
    let waiters = &notifier.observe.waiters;
    let outcomes: Vec<_> = taken.iter().map(|it| it.wait(waiters, Duration::ZERO)).collect();
    let dropped = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!((1..=NAMES.threads_max).contains(&dropped), "{dropped}: those that were begun");
    let gone = |outcome: &Result<Found>| {
        outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable)
    };
    assert_eq!(outcomes.iter().filter(|outcome| gone(outcome)).count(), taken.len() - dropped);
    let late = notifier.invalidate(Outdated::AllNames).map(drop).expect_err("it ended");
    assert_eq!(late.kind(), ErrorKind::Unreachable);
}

#[test]
fn the_last_serving_thread_does_not_wait_for_dropped_pages() {
    let ((begun, begins), (open, held)) = (channel(), channel());
    let notifier = Arc::new(notifier(2, holding(begun, held)));
    let pages = Arc::new(Pages::default());
    let write = |range| Arc::clone(&pages).begin(range);
    let waits = strake_env::thread::spawn({
        let (notifier, write) = (Arc::clone(&notifier), write(0..10));
        move || notifier.drop_pages_after(Ino(2), write)
    });
    begins.recv().expect("the first is held up");
    notifier.drop_pages_after(Ino(2), write(20..30)).expect("does not wait");
    let left_out = |range| {
        let mut parts = Vec::new();
        let put = |part: Range<u64>| {
            parts.push((part.start, part.end));
            Ok((part.end - part.start) as usize)
        };
        pages.write_back(range, put).expect("written");
        parts
    };
    assert_eq!(left_out(0..40), [(10, 20), (30, 40)], "both writes are still under way");
    drop(open);
    waits.join().expect("no panic").expect("dropped");
    notifier.end();
    notifier.join();
    assert_eq!(left_out(0..40), [(0, 40)]);
}

#[test]
fn a_direct_write_is_no_more_under_way_when_it_is_answered() {
    let pages = Arc::new(Pages::default());
    let notifier = Arc::new(notifier(2, Box::new(|_| Ok(()))));
    let (done, answers) = channel();
    let mut write = Some((Arc::clone(&pages).begin(10..20), done));
    let mut early = None;
    // A direct write ends only when no write-back holds the list of those under way.
    let put = |part: Range<u64>| {
        if let Some((write, done)) = write.take() {
            let notifier = Arc::clone(&notifier);
            strake_env::thread::spawn(move || {
                notifier.drop_pages_after(Ino(2), write).expect("dropped");
                let _ = done.send(());
            });
            early = answers.recv_timeout(Duration::from_millis(200)).ok();
        }
        Ok((part.end - part.start) as usize)
    };
    pages.write_back(0..30, put).expect("written");
    assert_eq!(early, None, "the write was answered while write-backs still left its range out");
    answers.recv().expect("answered");
    notifier.end();
    notifier.join();
}
