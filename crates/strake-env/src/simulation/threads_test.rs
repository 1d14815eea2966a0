//! Beside a model: after any steps the lists say what each thread's own status says.

use super::*;
use crate::Rng;
use crate::rng::test_seeds;

fn check(threads: &Threads, seed: u64) {
    let ready = threads.all().filter(|(_, thread)| matches!(thread.status, Status::Ready));
    assert_eq!(threads.ready(), ready.map(|(id, _)| id).collect::<Vec<_>>(), "seed {seed}");
    for on in (0..4).map(Awaited::Lock) {
        let waits =
            |thread: &Thread| matches!(thread.status, Status::Waiting { on: it, .. } if it == on);
        let waiting = threads.all().filter(|(_, thread)| waits(thread));
        let waiting: Vec<usize> = waiting.map(|(id, _)| id).collect();
        assert_eq!(threads.waiting(on), waiting, "seed {seed}");
    }
    let limits = threads.all().filter_map(|(_, thread)| match thread.status {
        Status::Waiting { until, .. } => until,
        Status::Ready => None,
    });
    assert_eq!(threads.earliest(), limits.min(), "seed {seed}");
}

#[test]
fn lists_say_what_each_thread_says() {
    for seed in test_seeds(0, 30) {
        let mut rng = Rng::new(seed);
        let (mut threads, mut now) = (Threads::default(), Duration::ZERO);
        for _ in 0..400 {
            let all: Vec<usize> = threads.all().map(|(id, _)| id).collect();
            match rng.below(6) {
                0 => {
                    let place = std::panic::Location::caller();
                    threads.add(Thread::new("one".to_owned(), 0, None, place));
                }
                1 | 2 if !threads.ready().is_empty() => {
                    let id = threads.ready()[rng.index(threads.ready().len())];
                    let limit = Duration::from_micros(rng.below(50));
                    let until = rng.one_in(2).then_some(now + limit);
                    threads.wait(id, Awaited::Lock(rng.index(4)), "a lock", until);
                }
                3 if !all.is_empty() => threads.wake(all[rng.index(all.len())], false),
                4 if !all.is_empty() && rng.one_in(3) => threads.remove(all[rng.index(all.len())]),
                _ => {
                    now += Duration::from_micros(rng.below(20));
                    threads.pass(now);
                    assert!(
                        threads.earliest().is_none_or(|earliest| earliest > now),
                        "seed {seed}"
                    );
                }
            }
            check(&threads, seed);
        }
    }
}
