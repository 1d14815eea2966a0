//! The lists of waits and holders in single cases of simulated time, with random threads that a
//! model is compared with at every decision point, and with real threads that come and go.

use super::*;
use crate::simulation::{self, Options};
use crate::sync::{WatchedMutex, WatchedRwLock, WatchedUpgradableGuard};
use crate::thread::ThreadId;
use crate::{Clock, RealClock};
use std::collections::{BTreeMap, BTreeSet};

crate::lock_names! {
    /// One lock for each test, since the list is of the whole process.
    Kitchen = "the kitchen";
    Library = "the library";
    Cellar = "the cellar";
    Pantry = "the pantry";
    Attic = "the attic";
    ModelFirst = "the model's first";
    ModelSecond = "the model's second";
    ModelThird = "the model's third";
}

fn simulate<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let outcome = simulation::run(Options::new(seed), work);
    assert!(outcome.left.is_empty(), "seed {seed}: {:?} are left", outcome.left);
    outcome.expect()
}

fn sleep(seconds: u64) {
    RealClock.sleep(Duration::from_secs(seconds));
}

fn name(thread: &Thread) -> String {
    thread.name().expect("threads of these tests have names").to_owned()
}

/// The waits for the lock of this name, each as a line.
fn lines(of: &str) -> Vec<String> {
    let waits = lock_waits().into_iter().filter(|wait| wait.name == of);
    let seconds = |time: Duration| time.as_secs_f64().round();
    let line = |wait: LockWait| {
        let (thread, waited) = (name(&wait.thread), seconds(wait.waited));
        let holders = wait.holders.iter();
        let holders: Vec<_> =
            holders.map(|it| format!("{} {}", name(&it.thread), seconds(it.held))).collect();
        format!("{thread} waits {waited} {} for {}", wait.mode, holders.join(", "))
    };
    waits.map(line).collect()
}

fn named<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, ()> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn_scoped(scope, work).expect("the system has threads left")
}

#[test]
fn a_wait_is_listed_with_the_holder_and_since_when() {
    simulate(1, || {
        let kitchen = WatchedMutex::<Kitchen>::default();
        thread::scope(|scope| {
            let guard = kitchen.lock();
            sleep(5);
            assert!(lines("the kitchen").is_empty(), "nobody waits");
            named(scope, "cook", || drop(kitchen.lock()));
            named(scope, "guest", || {
                sleep(4);
                assert!(kitchen.try_lock_for(Duration::from_secs(1)).is_none());
                sleep(1000);
            });
            sleep(7);
            assert_eq!(lines("the kitchen"), ["cook waits 7  for main 12"]);
            drop(guard);
            sleep(1);
            assert!(lines("the kitchen").is_empty(), "nobody waits any more");
        });
    });
}

#[test]
fn all_readers_are_named_and_a_thread_that_upgrades_waits_for_the_others() {
    simulate(1, || {
        let library = WatchedRwLock::<Library, u64>::default();
        thread::scope(|scope| {
            for (delay, reader) in [(0, "first"), (2, "second")] {
                let library = &library;
                named(scope, reader, move || {
                    sleep(delay);
                    let _reading = library.read();
                    sleep(10);
                });
            }
            sleep(3);
            named(scope, "writer", || *library.write() += 1);
            sleep(3);
            assert_eq!(lines("the library"), ["writer waits 3 exclusive for first 6, second 4"]);
            let late = named(scope, "late", || drop(library.read()));
            sleep(1);
            let expected = [
                "writer waits 4 exclusive for first 7, second 5",
                "late waits 1 shared for first 7, second 5",
            ];
            assert_eq!(lines("the library"), expected);
            late.join().expect("it reads");

            let upgradable = library.write().downgrade_to_upgradable();
            let reader = named(scope, "reader", || {
                let _reading = library.try_read().expect("readers may come in");
                sleep(4);
            });
            named(scope, "upgrading", || {
                sleep(3);
                assert_eq!(lines("the library"), ["main waits 2 exclusive for reader 3"]);
            });
            sleep(1);
            let guard = library.upgrade(upgradable);
            reader.join().expect("it has read");
            drop(guard.downgrade());
        });
    });
}

#[test]
fn a_thread_that_holds_more_than_its_row_has_places_for_is_not_named_for_the_rest() {
    simulate(1, || {
        let cellars: [WatchedMutex<Cellar>; HOLDS_MAX + 1] = Default::default();
        let guards: Vec<_> = cellars.iter().map(WatchedMutex::lock).collect();
        thread::scope(|scope| {
            let [.., one, last] = &cellars;
            for (delay, lock) in [(0, one), (1, last)] {
                named(scope, "waiting", move || {
                    sleep(delay);
                    drop(lock.lock());
                });
            }
            sleep(3);
            let expected = ["waiting waits 3  for main 3", "waiting waits 2  for "];
            assert_eq!(lines("the cellar"), expected);
            drop(guards);
        });
        OWN.with(|own| assert_eq!(own.taken.get(), 0, "all places are free again"));
        let _guard = cellars[HOLDS_MAX].lock();
        OWN.with(|own| assert_eq!(own.taken.get(), 1));
    });
}

/// The same outside a simulation.
#[test]
fn a_wait_of_real_threads_is_listed_with_its_holder() {
    let pantry = WatchedMutex::<Pantry>::default();
    let guard = pantry.lock();
    thread::scope(|scope| {
        let waiting = named(scope, "waiting", || drop(pantry.lock()));
        let wait = loop {
            if let Some(wait) = lock_waits().into_iter().find(|wait| wait.name == "the pantry") {
                break wait;
            }
            thread::yield_now();
        };
        assert_eq!(wait.thread.id(), waiting.thread().id());
        let holders: Vec<_> = wait.holders.iter().map(|it| it.thread.id()).collect();
        assert_eq!(holders, [thread::current().id()]);
        drop(guard);
        waiting.join().expect("it got the lock");
    });
    assert!(lines("the pantry").is_empty());
}

#[test]
fn nothing_is_left_of_threads_that_have_ended() {
    let attic = WatchedRwLock::<Attic, u64>::default();
    let ended: Vec<ThreadId> = thread::scope(|scope| {
        let work = || {
            for turn in 0..200 {
                let _inner = if turn % 3 == 0 { None } else { Some(attic.read()) };
                if turn % 3 == 0 {
                    *attic.write() += 1;
                }
                drop(lock_waits());
            }
        };
        let threads: Vec<_> = (0..8).map(|_| named(scope, "passing", work)).collect();
        let join = |it: thread::ScopedJoinHandle<'_, ()>| {
            let id = it.thread().id();
            it.join().expect("it ends");
            id
        };
        threads.into_iter().map(join).collect()
    });
    assert_eq!(*attic.read(), 8 * 67);
    assert!(lines("the attic").is_empty());
    assert!(ROWS.lock().iter().all(|row| !ended.contains(&row.thread.id())));
}

/// Which thread holds which lock, by the lock's name.
type Holds = BTreeSet<(&'static str, String)>;

/// Plain tables of what the threads do. A simulated thread is not interrupted between the moment
/// in which a lock becomes its own and the note of that, so that the tables are exact at any time.
#[derive(Default)]
struct Model {
    holds: parking_lot::Mutex<Holds>,
    /// The lock that a thread is about to take, or is taking.
    wanted: parking_lot::Mutex<BTreeMap<String, &'static str>>,
    first: WatchedMutex<ModelFirst>,
    second: WatchedRwLock<ModelSecond>,
    third: WatchedRwLock<ModelThird>,
}

const MODEL_NAMES: [&str; 3] = ["the model's first", "the model's second", "the model's third"];

impl Model {
    fn me() -> String {
        name(&thread::current())
    }

    fn wants(&self, lock: usize) {
        self.wanted.lock().insert(Model::me(), MODEL_NAMES[lock]);
    }

    fn has(&self, lock: usize) {
        self.wanted.lock().remove(&Model::me());
        assert!(self.holds.lock().insert((MODEL_NAMES[lock], Model::me())));
    }

    fn leaves(&self, lock: usize) {
        assert!(self.holds.lock().remove(&(MODEL_NAMES[lock], Model::me())));
    }

    /// Runs `inside` with one of the read-write locks, in a way that chance chooses.
    fn with_rw_lock<N: crate::watched::LockName>(
        &self,
        at: usize,
        lock: &WatchedRwLock<N>,
        inside: &dyn Fn(),
    ) {
        let limit = Duration::from_micros(1 + simulation::draw(200));
        self.wants(at);
        let upgradable = match simulation::draw(5) {
            0 => {
                let guard = lock.read();
                self.has(at);
                inside();
                self.leaves(at);
                return drop(guard);
            }
            1 => {
                let Some(guard) = lock.try_read() else { return };
                self.has(at);
                inside();
                self.leaves(at);
                return drop(guard);
            }
            2 => {
                let Some(guard) = lock.try_write_for(limit) else { return };
                self.has(at);
                let guard = guard.downgrade();
                inside();
                self.leaves(at);
                return drop(guard);
            }
            3 => {
                let guard = lock.write();
                self.has(at);
                guard.downgrade_to_upgradable()
            }
            _ => {
                let Some(guard) = lock.try_write() else { return };
                self.has(at);
                guard.downgrade_to_upgradable()
            }
        };
        inside();
        self.upgrade(at, lock, upgradable, inside);
    }

    fn upgrade<N: crate::watched::LockName>(
        &self,
        at: usize,
        lock: &WatchedRwLock<N>,
        guard: WatchedUpgradableGuard<'_, ()>,
        inside: &dyn Fn(),
    ) {
        self.leaves(at);
        self.wants(at);
        let guard = lock.upgrade(guard);
        self.has(at);
        inside();
        self.leaves(at);
        drop(guard);
    }

    fn with_first(&self, inside: &dyn Fn()) {
        self.wants(0);
        let limit = Duration::from_micros(1 + simulation::draw(200));
        let guard = match simulation::draw(3) {
            0 => Some(self.first.lock()),
            1 => self.first.try_lock(),
            _ => self.first.try_lock_for(limit),
        };
        let Some(guard) = guard else { return };
        self.has(0);
        inside();
        self.leaves(0);
        drop(guard);
    }

    /// One random use of the locks, always in the same order.
    fn step(&self) {
        let pause = || match simulation::draw(3) {
            0 => simulation::point(),
            1 => RealClock.sleep(Duration::from_micros(simulation::draw(300))),
            _ => {}
        };
        let third = || self.with_rw_lock(2, &self.third, &pause);
        let second = || match simulation::draw(3) {
            0 => third(),
            _ => self.with_rw_lock(1, &self.second, &third),
        };
        match simulation::draw(4) {
            0 => second(),
            _ => self.with_first(&second),
        }
        self.wanted.lock().remove(&Model::me());
    }

    /// Compares the rows with the tables. Returns how many waits had a holder.
    fn check(&self, threads: &[ThreadId]) -> usize {
        let holds = self.holds.lock().clone();
        let mut waits = 0;
        for wait in lock_waits().into_iter().filter(|it| threads.contains(&it.thread.id())) {
            assert_eq!(self.wanted.lock().get(&name(&wait.thread)), Some(&wait.name));
            let named = wait.holders.iter().map(|it| name(&it.thread));
            let holders = holds.iter().filter(|(lock, _)| *lock == wait.name);
            let holders: Vec<_> = holders.map(|(_, thread)| thread.clone()).collect();
            assert_eq!(named.collect::<BTreeSet<_>>(), holders.iter().cloned().collect());
            waits += usize::from(!holders.is_empty());
        }
        let rows = ROWS.lock();
        let rows = rows.iter().filter(|row| threads.contains(&row.thread.id()));
        let taken = |row: &Arc<Row>| {
            let used = row.holds.iter().filter(|it| it.lock.load(Ordering::Acquire) != 0);
            used.count()
        };
        assert_eq!(rows.map(taken).sum::<usize>(), holds.len(), "{holds:?}");
        waits
    }
}

/// The model. `STRAKE_SEED` moves the seeds.
#[test]
fn rows_name_those_who_hold_a_lock_and_nobody_else() {
    let mut waits = 0;
    for seed in crate::rng::test_seeds(0, 20 * crate::rng::test_scale()) {
        waits += simulate(seed, move || {
            println!("seed {seed}");
            let model = Model::default();
            let mut waits = 0;
            thread::scope(|scope| {
                let work = || (0..30).for_each(|_| model.step());
                let threads: Vec<_> =
                    (0..4).map(|at| named(scope, &format!("thread-{at}"), work)).collect();
                let ids: Vec<_> = threads.iter().map(|it| it.thread().id()).collect();
                while threads.iter().any(|it| !it.is_finished()) {
                    RealClock.sleep(Duration::from_micros(simulation::draw(100)));
                    waits += model.check(&ids);
                }
            });
            assert!(model.holds.lock().is_empty());
            waits
        });
    }
    assert!(waits > 100, "only {waits} waits were compared");
}
