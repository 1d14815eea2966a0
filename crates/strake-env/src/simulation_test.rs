//! The scheduler itself: exclusion, conditions, limits, channels, deadlocks, and that a seed
//! decides everything.

use super::*;
use crate::Clock;
use crate::channel::channel;
use crate::stream::{Endpoint, Listener};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::thread;
use crate::{Disk, RealClock, SimDisk};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SEEDS: std::ops::Range<u64> = 0..50;

fn simulate<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let outcome = run(Options::new(seed), work);
    assert!(outcome.left.is_empty(), "seed {seed}: {:?} are left", outcome.left);
    outcome.expect()
}

#[test]
fn a_lock_excludes_and_nothing_else_does() {
    let mut races = 0;
    for seed in SEEDS {
        let (locked, raced) = simulate(seed, || {
            let (locked, raced) = (Mutex::new(0u64), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..10 {
                            let mut locked = locked.lock();
                            let before = *locked;
                            point();
                            *locked = before + 1;
                            drop(locked);
                            let before = raced.load(SeqCst);
                            point();
                            raced.store(before + 1, SeqCst);
                        }
                    });
                }
            });
            (locked.into_inner(), raced.into_inner())
        });
        assert_eq!(locked, 30, "seed {seed}");
        races += u64::from(raced < 30);
    }
    assert!(races > 25, "the same without the lock loses updates: {races} of 50 seeds");
}

#[test]
fn readers_share_writers_exclude_and_one_reader_may_become_a_writer() {
    for seed in SEEDS {
        simulate(seed, || {
            let lock = RwLock::new((0u64, 0u64));
            thread::scope(|scope| {
                for at in 0..4 {
                    let lock = &lock;
                    scope.spawn(move || {
                        for _ in 0..5 {
                            if at % 2 == 0 {
                                let pair = lock.read();
                                point();
                                assert_eq!(pair.0, pair.1);
                                continue;
                            }
                            let pair = lock.upgradable_read();
                            let before = *pair;
                            point();
                            let mut pair = crate::sync::RwLockUpgradableReadGuard::upgrade(pair);
                            assert_eq!(*pair, before);
                            pair.0 += 1;
                            point();
                            pair.1 += 1;
                            let pair = crate::sync::RwLockWriteGuard::downgrade(pair);
                            point();
                            assert_eq!(pair.0, pair.1);
                        }
                    });
                }
            });
            assert_eq!(*lock.read(), (10, 10));
        });
    }
}

#[test]
fn conditions_wake_whoever_waits_and_limits_end_in_simulated_time() {
    for seed in SEEDS {
        simulate(seed, || {
            let shared = Arc::new((Mutex::new(0), Condvar::new()));
            let other = Arc::clone(&shared);
            let worker = thread::spawn(move || {
                for _ in 0..3 {
                    let mut count = other.0.lock();
                    other.1.wait_while(&mut count, |count| *count == 0);
                    *count -= 1;
                    other.1.notify_all();
                }
            });
            for _ in 0..3 {
                *shared.0.lock() += 1;
                shared.1.notify_one();
            }
            let mut count = shared.0.lock();
            shared.1.wait_while(&mut count, |count| *count > 0);
            let start = RealClock.monotonic();
            let limit = Duration::from_secs(3600);
            assert!(shared.1.wait_for(&mut count, limit).timed_out());
            let waited = RealClock.monotonic() - start;
            assert!(waited >= limit && waited < limit + Duration::from_secs(1), "{waited:?}");
            drop(count);
            worker.join().expect("no panic");
        });
    }
}

#[test]
fn a_lock_with_a_limit_is_given_up_and_readers_do_not_stay_behind_its_writer() {
    for seed in SEEDS {
        simulate(seed, || {
            let lock = Arc::new(RwLock::new(()));
            let held = lock.read();
            let writer = thread::spawn({
                let lock = Arc::clone(&lock);
                move || lock.try_write_for(Duration::from_millis(10)).is_some()
            });
            let reader = thread::spawn({
                let lock = Arc::clone(&lock);
                move || drop(lock.read())
            });
            reader.join().expect("it reads beside this reader");
            assert!(!writer.join().expect("no panic"), "it was held all the time");
            drop(held);
        });
    }
}

#[test]
fn channels_deliver_in_order_and_end_with_their_senders() {
    for seed in SEEDS {
        simulate(seed, || {
            let (sender, receiver) = channel();
            let threads: Vec<_> = (0..3)
                .map(|from| {
                    let sender = sender.clone();
                    thread::spawn(move || {
                        (0..5).for_each(|at| sender.send((from, at)).expect("heard"))
                    })
                })
                .collect();
            drop(sender);
            let mut next = [0; 3];
            for (from, at) in &receiver {
                assert_eq!(at, next[from]);
                next[from] += 1;
            }
            assert_eq!(next, [5; 3]);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            let (sender, receiver) = crate::channel::sync_channel(1);
            let thread = thread::spawn(move || (0..5).try_for_each(|at| sender.send(at)));
            assert_eq!(receiver.recv(), Ok(0));
            drop(receiver);
            assert!(thread.join().expect("no panic").is_err(), "nobody hears it");
        });
    }
}

#[test]
fn a_deadlock_is_reported_with_who_waits_for_what_and_where() {
    let deadlocked = SEEDS.map(|seed| {
        run(Options::new(seed), || {
            let locks = Arc::new((Mutex::new(()), Mutex::new(())));
            let other = Arc::clone(&locks);
            let thread = thread::Builder::new().name("other".to_owned()).spawn(move || {
                let _second = other.1.lock();
                let _first = other.0.lock();
            });
            let _first = locks.0.lock();
            let _second = locks.1.lock();
            drop((_first, _second));
            thread.expect("a thread").join().expect("no panic");
        })
    });
    let reports: Vec<String> = deadlocked.filter_map(|outcome| outcome.result.err()).collect();
    assert!(reports.len() > 5, "found by {} of 50 seeds", reports.len());
    let report = &reports[0];
    for part in ["nobody can run", "main (process 0) waits for a lock", "other (process 0) waits"] {
        assert!(report.contains(part), "{report}");
    }
    assert!(report.contains("simulation_test.rs:"), "{report}");
}

#[test]
fn a_panic_of_any_thread_is_the_end_of_the_simulation() {
    let outcome = run(Options::new(1), || {
        let thread = thread::spawn(|| panic!("planted"));
        thread.join().expect("never returns");
    });
    let report = outcome.result.expect_err("a thread panicked");
    assert!(report.contains("panicked: planted"), "{report}");
    let outcome = run(Options::new(1), || {
        let lock = Mutex::new(());
        let _held = lock.lock();
        thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            panic!("planted");
        })
    });
    let report: String = outcome.result.map(|()| String::new()).unwrap_or_else(|error| error);
    assert!(report.contains("planted"), "{report}");
}

#[test]
fn one_that_looks_again_and_again_does_not_keep_the_others_from_running() {
    for seed in SEEDS {
        simulate(seed, || {
            let flag = Arc::new(AtomicU64::new(0));
            let other = Arc::clone(&flag);
            let thread = thread::spawn(move || {
                RealClock.sleep(Duration::from_millis(1));
                other.store(1, SeqCst);
            });
            while flag.load(SeqCst) == 0 {
                thread::yield_now();
            }
            thread.join().expect("no panic");
        });
    }
}

/// Several threads, locks, hash maps and entropy.
fn busy() -> Vec<u64> {
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for at in 0..4u64 {
            let results = &results;
            scope.spawn(move || {
                let map: HashMap<u64, u64> = (0..20).map(|key| (key, at)).collect();
                for key in map.keys() {
                    results.lock().push(*key);
                    RealClock.sleep(Duration::from_micros(*key));
                }
                let mut rng = crate::Rng::from_entropy().expect("entropy");
                results.lock().push(rng.next_u64());
            });
        }
    });
    results.into_inner()
}

#[test]
fn a_seed_decides_everything_and_seeds_differ() {
    let go = |seed| {
        let outcome = run(Options { keep_trace: true, ..Options::new(seed) }, busy);
        let (trace, time) = (outcome.trace, outcome.time);
        (outcome.result.expect("ends"), trace, time)
    };
    for seed in SEEDS {
        let (one, other) = (go(seed), go(seed));
        assert_eq!(one.1.difference(&other.1), None, "seed {seed}");
        assert_eq!((one.0, one.2), (other.0, other.2), "seed {seed}");
    }
    let (one, other) = (go(1), go(2));
    assert_ne!(one.0, other.0);
    let difference = one.1.difference(&other.1).expect("other decisions");
    assert!(difference.contains("are equal") && difference.contains("one"), "{difference}");
}

fn endpoint() -> Endpoint {
    Endpoint::Unix("/simulated/socket".into())
}

/// A server that doubles each byte, in process 1, until its clients have gone.
fn serve(connections: usize) -> thread::JoinHandle<()> {
    in_process(1, || {
        let listener = Listener::bind(&endpoint()).expect("free");
        thread::spawn(move || {
            for _ in 0..connections {
                let mut stream = listener.accept().expect("a client");
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte) {
                    if stream.write_all(&[byte[0] * 2]).is_err() {
                        break;
                    }
                }
            }
        })
    })
}

fn connect() -> crate::stream::Stream {
    crate::stream::Stream::connect(&endpoint(), Duration::from_secs(5)).expect("served")
}

fn ask(stream: &mut crate::stream::Stream, byte: u8) -> std::io::Result<u8> {
    stream.write_all(&[byte])?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

#[test]
fn streams_deliver_in_order_with_delays_losses_cuts_and_breaks() {
    for seed in SEEDS {
        simulate(seed, || {
            let refused = crate::stream::Stream::connect(&endpoint(), Duration::from_secs(5));
            assert!(refused.is_err(), "nobody listens yet");
            let server = serve(2);
            network().set_link(0, 1, |link| link.loss_one_in = 3);
            let mut stream = connect();
            for byte in 0..20 {
                assert_eq!(ask(&mut stream, byte).expect("answered"), byte * 2);
            }
            // A cut in one direction: silence, and the answer once it is healed.
            network().set_link(1, 0, |link| link.is_cut = true);
            stream.set_limits(Some(Duration::from_millis(500)), None).expect("a limit");
            let error = ask(&mut stream, 21).expect_err("held");
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            network().set_link(1, 0, |link| link.is_cut = false);
            let mut answer = [0];
            stream.read_exact(&mut answer).expect("arrives");
            assert_eq!(answer, [42]);
            // A process that stands still.
            pause(1, true);
            let error = ask(&mut stream, 22).expect_err("nobody answers");
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            pause(1, false);
            stream.read_exact(&mut answer).expect("arrives");
            assert_eq!(answer, [44]);
            // A break ends both ends.
            network().break_streams(0, 1);
            let error = ask(&mut stream, 23).expect_err("broken");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            let mut stream = connect();
            assert_eq!(ask(&mut stream, 24).expect("another connection"), 48);
            drop(stream);
            server.join().expect("it finds its clients gone");
        });
    }
}

#[test]
fn what_a_buffer_held_before_a_read_is_no_part_of_the_trace() {
    let read = |left: u8, written: u8| {
        let options = Options { keep_trace: true, ..Options::new(0) };
        let outcome = run(options, move || {
            let disk = SimDisk::new(1 << 20);
            disk.write_at(4096, &[written; 4096]).expect("a write");
            let mut buffer = [left; 4096];
            disk.read_at(4096, &mut buffer).expect("a read");
            assert_eq!(buffer, [written; 4096]);
        });
        outcome.trace
    };
    assert_eq!(read(1, 7).difference(&read(2, 7)), None);
    assert!(read(1, 7).difference(&read(1, 8)).is_some(), "what was written is a part");
}

crate::local! {
    static OWN_NUMBER: std::cell::Cell<u32> = const { std::cell::Cell::new(7) };
}

#[test]
fn each_simulated_thread_has_values_a_name_and_an_identity_of_its_own() {
    let outcome = run(Options::new(1), || {
        OWN_NUMBER.set(1);
        let other = thread::Builder::new().name("other".to_owned()).spawn(|| {
            let first = OWN_NUMBER.replace(2);
            point();
            let me = thread::current();
            (first, OWN_NUMBER.get(), me.id(), me.name().map(str::to_owned))
        });
        let other = other.expect("a thread");
        let id = other.thread().id();
        let seen = other.join().expect("it ends");
        assert_eq!(seen, (7, 2, id, Some("other".to_owned())));
        assert_eq!(OWN_NUMBER.get(), 1);
        assert_ne!(thread::current().id(), id);
    });
    outcome.expect();
}

#[test]
fn a_thread_that_is_left_is_not_unwound_and_one_that_ends_drops_its_values() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    static LEFT: AtomicU32 = AtomicU32::new(0);
    static ENDED: AtomicU32 = AtomicU32::new(0);
    struct Counts(&'static AtomicU32);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    crate::local! {
        static COUNTS: Counts = Counts(&ENDED);
    }
    let outcome = run(Options::new(1), || {
        let (sender, receiver) = crate::channel::channel::<()>();
        std::mem::forget(sender);
        thread::spawn(move || {
            let _counts = Counts(&LEFT);
            let _ = receiver.recv();
        });
        thread::spawn(|| COUNTS.with(|_| ())).join().expect("it ends");
    });
    assert_eq!(outcome.left.len(), 1);
    assert_eq!((LEFT.load(SeqCst), ENDED.load(SeqCst)), (0, 1));
}
