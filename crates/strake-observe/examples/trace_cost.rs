//! What an event of a trace costs: `cargo run --release -p strake-observe --example trace_cost`.
//!
//! Rounds with the trace on and off alternate. Each prints the median of nanoseconds that one
//! operation takes to be timed and counted, on one thread and on two. In the second half of the
//! lines a thread reads other memory between two operations, as a file system does: then what the
//! trace has written a lap ago is in no cache near the processor.

use std::hint::black_box;
use std::time::Duration;
use strake_env::cause::Cause;
use strake_env::{Clock, RealClock, thread};
use strake_observe::Observe;
use strake_observe::trace::{TRACE_EVENT_BYTES, TRACE_EVENTS_DEFAULT};

const ROUNDS: usize = 41;
const OPERATIONS: u32 = 200_000;
/// The memory that a thread reads between two operations comes from a buffer of this size, which
/// is more than a processor's second cache has.
const OTHER_BYTES: usize = 2 << 20;
/// This much of it is read each time.
const READ_BYTES: usize = 64 << 10;
/// The lines of the processor's cache have this many bytes.
const LINE_BYTES: usize = 64;

fn main() {
    println!("an event takes {TRACE_EVENT_BYTES} bytes");
    let observe = Observe::new(RealClock::shared(), 4096);
    for (read, operations) in [(0, OPERATIONS), (READ_BYTES, OPERATIONS / 8)] {
        for threads in [1, 2] {
            let (mut off, mut on) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                observe.trace.stop();
                off.push(round(&observe, threads, operations, read));
                observe.trace.start(TRACE_EVENTS_DEFAULT);
                on.push(round(&observe, threads, operations, read));
            }
            let (off, on) = (median(off), median(on));
            println!(
                "{threads} threads, {read} bytes read between: off {off:.1} ns, on {on:.1} ns, \
                 {:.1} ns more",
                on - off
            );
        }
    }
}

/// Nanoseconds of one thread for each operation.
fn round(observe: &Observe, threads: usize, operations: u32, read: usize) -> f64 {
    let took: Vec<Duration> = thread::scope(|scope| {
        let work = || work(observe, operations, read);
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    let sum: Duration = took.iter().sum();
    sum.as_nanos() as f64 / (threads as f64 * f64::from(operations))
}

fn work(observe: &Observe, operations: u32, read: usize) -> Duration {
    let other = vec![1u8; OTHER_BYTES];
    let operation = observe.operations.operation("work");
    let cause = Cause { request: 1, inode: 2, process: std::process::id() };
    let start = RealClock.monotonic();
    for turn in 0..operations as usize {
        let from = turn * read % OTHER_BYTES;
        let lines = other[from..from + read].iter().step_by(LINE_BYTES);
        black_box(lines.map(|byte| u64::from(*byte)).sum::<u64>());
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
