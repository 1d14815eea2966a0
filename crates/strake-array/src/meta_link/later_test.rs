//! Changes that are told later: their order, what overtakes them, and what is refused.

use super::*;
use std::sync::atomic::AtomicBool;
use strake_env::RealClock;
use strake_proto::meta::{MetaOp, MetaQuery, Removed, apply_in_order};
use strake_proto::{ClientId, FileType, Generation, Ino, Timestamp};

/// Metadata that notes what is applied, and with how many others.
#[derive(Default)]
struct Notes {
    applied: Mutex<Vec<i64>>,
    together: Mutex<Vec<usize>>,
    /// The change that is refused, and why.
    refused: Mutex<Option<(i64, ErrorKind)>>,
    is_shut: AtomicBool,
}

impl MetaPort for Notes {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let number = entry.time.seconds;
        if let Some((_, kind)) = self.refused.lock().filter(|(refused, _)| *refused == number) {
            return Err(kind.into());
        }
        self.applied.lock().push(number);
        Ok(outcome(number))
    }

    fn apply_all(&self, entries: &[MetaEntry]) -> Vec<Result<MetaReply>> {
        self.together.lock().push(entries.len());
        if self.is_shut.load(Ordering::SeqCst) {
            return entries.iter().map(|_| Err(ErrorKind::Unreachable.into())).collect();
        }
        apply_in_order(entries, |entry| self.apply(entry))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn outcome(number: i64) -> MetaReply {
    MetaReply::Removed(Some(Removed {
        ino: Ino(number as u64),
        generation: Generation(1),
        file_type: FileType::Regular,
        links: 0,
    }))
}

fn entry(number: i64) -> MetaEntry {
    let op = MetaOp::Reap { ino: Ino(1) };
    let time = Timestamp { seconds: number, nanos: 0 };
    MetaEntry { client: ClientId(1), sequence: 0, time, op }
}

fn later(notes: &Arc<Notes>) -> Later {
    let clock = RealClock::shared();
    let observe = Observe::new(Arc::clone(&clock), 16);
    Later::new(Arc::clone(notes) as Arc<dyn MetaPort>, clock, observe)
}

fn push(later: &Later, number: i64) -> Result<()> {
    later.push(entry(number), outcome(number))
}

#[test]
fn changes_are_applied_in_their_order_and_many_at_once() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    later.settle().expect("nothing was taken");
    for number in 0..1000 {
        while push(&later, number).is_err_and(|error| error.kind() == ErrorKind::Busy) {
            later.settle().expect("applied");
        }
    }
    later.settle().expect("applied");
    assert_eq!(*notes.applied.lock(), (0..1000).collect::<Vec<i64>>());
    let together = notes.together.lock();
    assert!(together.iter().all(|count| *count <= TOGETHER) && together.contains(&TOGETHER));
}

#[test]
fn nobody_goes_on_before_the_changes_of_all_threads_that_came_before_are_applied() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    strake_env::thread::scope(|scope| {
        for thread in 0..4 {
            let (later, notes) = (&later, &notes);
            scope.spawn(move || {
                for at in 0..200 {
                    let number = thread * 1000 + at;
                    push(later, number).expect("taken");
                    later.settle().expect("applied");
                    assert!(notes.applied.lock().contains(&number));
                }
            });
        }
    });
    let applied = notes.applied.lock();
    let of = |thread| applied.iter().copied().filter(move |number| number / 1000 == thread);
    (0..4).for_each(|thread| assert!(of(thread).is_sorted() && of(thread).count() == 200));
}

/// Threads that tell changes later and threads that wait for theirs, of which some are refused.
#[test]
fn a_change_that_somebody_waits_for_goes_behind_those_before_it_and_holds_up_none_after_it() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    assert!(later.ask(&entry(-1)).is_none(), "nothing is open");
    let (asked, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    strake_env::thread::scope(|scope| {
        for thread in 0..4 {
            let (later, notes, asked, refused) = (&later, &notes, &asked, &refused);
            scope.spawn(move || {
                for at in 0..300 {
                    let number = thread * 1000 + at;
                    if number % 3 > 0 {
                        push(later, number).expect("taken");
                        continue;
                    }
                    if number % 2 == 0 {
                        *notes.refused.lock() = Some((number, ErrorKind::NotEmpty));
                    }
                    let result = match later.ask(&entry(number)) {
                        Some(result) => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            result
                        }
                        None => notes.apply(&entry(number)),
                    };
                    match result {
                        Ok(reply) => assert_eq!(reply, outcome(number)),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NotEmpty, "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    let applied = notes.applied.lock();
                    let own = (thread * 1000..number).filter(|before| before % 3 > 0);
                    own.for_each(|before| assert!(applied.contains(&before), "{before}"));
                }
            });
        }
    });
    later.settle().expect("applied");
    assert_eq!(later.lost(), 0);
    let applied = notes.applied.lock();
    let (asked, refused) = (asked.into_inner(), refused.into_inner());
    assert_eq!(applied.len() as u64 + refused, 1200, "each once");
    assert!(asked > 100 && refused > 20, "{asked} asked, {refused} refused");
    let of = |thread| applied.iter().copied().filter(move |number| number / 1000 == thread);
    (0..4).for_each(|thread| assert!(of(thread).is_sorted()));
}

#[test]
fn a_change_that_somebody_waits_for_is_not_made_behind_one_that_finds_no_space() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    *notes.refused.lock() = Some((1, ErrorKind::NoSpace));
    push(&later, 1).expect("taken");
    let error = later.ask(&entry(2)).expect("one is open").expect_err("no space");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let error = later.ask(&entry(3)).expect("one is open").expect_err("no space");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    *notes.refused.lock() = None;
    while later.settle().is_err() {
        strake_env::thread::yield_now();
    }
    assert!(later.ask(&entry(4)).is_none());
    assert_eq!(*notes.applied.lock(), [1]);
}

#[test]
fn a_change_that_finds_no_space_stays_and_is_applied_once_there_is_some() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    *notes.refused.lock() = Some((2, ErrorKind::NoSpace));
    (1..=3).for_each(|number| push(&later, number).expect("taken"));
    assert_eq!(later.settle().expect_err("refused").kind(), ErrorKind::NoSpace);
    assert_eq!(push(&later, 4).expect_err("no more").kind(), ErrorKind::NoSpace);
    *notes.refused.lock() = None;
    while later.settle().is_err() {
        strake_env::thread::yield_now();
    }
    push(&later, 5).expect("taken");
    later.settle().expect("applied");
    assert_eq!(*notes.applied.lock(), [1, 2, 3, 5], "each once, but the one that was refused");
}

#[test]
fn a_change_that_will_never_be_taken_is_told_of_once() {
    for kind in [ErrorKind::Fenced, ErrorKind::Exists] {
        let notes = Arc::<Notes>::default();
        let later = later(&notes);
        *notes.refused.lock() = Some((1, kind));
        (1..=3).for_each(|number| push(&later, number).expect("taken"));
        assert_eq!(later.settle().expect_err("lost").kind(), ErrorKind::Io);
        later.settle().expect("it was told, and the others are applied");
        assert_eq!(later.lost(), 1);
        push(&later, 4).expect("taken");
        later.settle().expect("applied");
        assert_eq!(*notes.applied.lock(), [2, 3, 4]);
    }
}

#[test]
fn another_outcome_than_the_one_that_was_told_is_an_error() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    later.push(entry(1), outcome(2)).expect("taken");
    assert_eq!(later.settle().expect_err("wrong").kind(), ErrorKind::Io);
}

#[test]
fn a_metadata_that_is_away_ends_no_wait_but_with_an_error_and_holds_up_no_end() {
    let notes = Arc::<Notes>::default();
    let later = later(&notes);
    notes.is_shut.store(true, Ordering::SeqCst);
    push(&later, 1).expect("taken");
    assert_eq!(later.settle().expect_err("away").kind(), ErrorKind::Unreachable);
    drop(later);
    assert!(notes.applied.lock().is_empty());
}
