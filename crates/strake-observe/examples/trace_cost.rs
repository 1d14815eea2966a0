//! What an event of a trace costs: `cargo run --release -p strake-observe --example trace_cost`.
//!
//! Rounds with the trace on and off alternate. Each prints the median of nanoseconds that one
//! operation takes to be timed and counted, on one thread and on two.

use std::time::Duration;
use strake_env::cause::Cause;
use strake_env::{Clock, RealClock, thread};
use strake_observe::Observe;
use strake_observe::trace::{TRACE_EVENT_BYTES, TRACE_EVENTS_DEFAULT};

const ROUNDS: usize = 41;
const OPERATIONS: u32 = 200_000;

fn main() {
    println!("an event takes {TRACE_EVENT_BYTES} bytes");
    let observe = Observe::new(RealClock::shared(), 4096);
    for threads in [1, 2] {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            observe.trace.stop();
            off.push(round(&observe, threads));
            observe.trace.start(TRACE_EVENTS_DEFAULT);
            on.push(round(&observe, threads));
        }
        let (off, on) = (median(off), median(on));
        println!("{threads} threads: off {off:.1} ns, on {on:.1} ns, {:.1} ns more", on - off);
    }
}

/// Nanoseconds of one thread for each operation.
fn round(observe: &Observe, threads: usize) -> f64 {
    let took: Vec<Duration> = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(observe))).collect();
        all.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    let sum: Duration = took.iter().sum();
    sum.as_nanos() as f64 / (threads * OPERATIONS as usize) as f64
}

fn work(observe: &Observe) -> Duration {
    let operation = observe.operations.operation("work");
    let cause = Cause { request: 1, inode: 2, process: std::process::id() };
    let start = RealClock.monotonic();
    for _ in 0..OPERATIONS {
        let _cause = observe.trace.answer(cause);
        let begun = operation.begin();
        operation.end(begun, 4096, true);
    }
    RealClock.monotonic() - start
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
