//! Prints what recording costs, per operation, on one thread.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;
use strake_env::RealClock;
use strake_env::sync::{Mutex, RwLock, WatchedMutex, WatchedRwLock};
use strake_observe::{BufferType, IoDirection, IoSide, Observe};
use strake_proto::NsdId;

strake_env::lock_names! {
    /// A lock that nobody else wants.
    Alone = "a lock";
}

fn measure(what: &str, mut work: impl FnMut()) {
    let (calls, start) = (1_000_000, Instant::now());
    (0..calls).for_each(|_| work());
    println!("{what:<28} {:6.1} ns", start.elapsed().as_nanos() as f64 / f64::from(calls));
}

fn main() {
    let observe = Observe::new(RealClock::shared(), 4096);
    let read = observe.operations.operation("read");
    measure("operation begin and end", || {
        read.end(read.begin(), 4096, true);
    });
    measure("I/O record begin and end", || {
        let (direction, buffer) = (IoDirection::Read, BufferType::Data);
        observe.io.end(observe.io.begin(), direction, buffer, NsdId(1), 0, 4096, IoSide::Local);
    });
    measure("wait entered and left", || drop(observe.waiters.enter("a reason", "nsd 1")));
    let (plain, watched) = (Mutex::new(()), WatchedMutex::<Alone>::default());
    measure("plain lock", || drop(plain.lock()));
    measure("watched lock", || drop(watched.lock()));
    let (plain, watched) = (RwLock::new(()), WatchedRwLock::<Alone>::default());
    measure("plain lock, to read", || drop(plain.read()));
    measure("watched lock, to read", || drop(watched.read()));
}
