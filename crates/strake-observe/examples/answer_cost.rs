//! What it costs that each request's time and waits are always added up:
//! `cargo run --release -p strake-observe --example answer_cost`.
//!
//! Rounds with and without alternate. Each prints the median of nanoseconds that a request without
//! any wait, one wait of a request, and one timed I/O take more, on one thread and on two.

use std::time::Duration;
use strake_env::answering::{self, Answer};
use strake_env::{Clock, RealClock, thread};
use strake_observe::{DiskWork, Observe, Request, RequestKind};
use strake_proto::NsdId;

const ROUNDS: usize = 41;
const CALLS: u64 = 200_000;

fn main() {
    let observe = Observe::new(RealClock::shared(), 4096);
    let process = std::process::id();
    let request = |at: u64| {
        let answer = Answer::begin();
        let note = |waits: &_| {
            observe.requests.note(&Request {
                process,
                inode: at % 8,
                kind: RequestKind::Read,
                offset: at,
                bytes: 4096,
                took: Duration::from_nanos(at),
                is_refused: false,
                waits,
            })
        };
        answer.end(note);
    };
    let time = observe.disks.of(NsdId(1));
    let io = |at: u64| {
        let begun = RealClock.monotonic();
        time.record(DiskWork::Read, RealClock.monotonic() - begun, at);
    };
    let wait = |_: u64| drop(answering::wait("a disk"));
    for threads in [1, 2] {
        let works: [(&str, &(dyn Fn(u64) + Sync)); 3] =
            [("request", &request), ("wait", &wait), ("I/O", &io)];
        for (what, work) in works {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                with.push(round(threads, work));
                without.push(round(threads, &|at| _ = std::hint::black_box(at)));
            }
            let more = median(with) - median(without);
            println!("{threads} threads: {what}: {more:.1} ns more");
        }
    }
}

/// Nanoseconds of one thread for each call.
fn round(threads: usize, work: &(dyn Fn(u64) + Sync)) -> f64 {
    let run = || {
        let _answer = Answer::begin();
        let start = RealClock.monotonic();
        (0..CALLS).for_each(work);
        RealClock.monotonic() - start
    };
    let took: Vec<Duration> = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    let sum: Duration = took.iter().sum();
    sum.as_nanos() as f64 / (threads as u64 * CALLS) as f64
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
