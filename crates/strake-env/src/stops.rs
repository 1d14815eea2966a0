//! Ends work that somebody has asked for and does not want any more.
//!
//! The work looks at its [`Stop`] at short intervals. Where it is done in another process, that
//! process knows it by a number ([`Stops`]).

use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strake_proto::{Error, ErrorKind, Result};

/// Says whether work is to end. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the work to end soon.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True once somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The work calls this at short intervals.
    ///
    /// # Errors
    /// `Interrupted` once somebody has asked.
    pub fn go_on(&self) -> Result<()> {
        if self.is_asked() {
            return Err(Error::new(ErrorKind::Interrupted, "it was ended early"));
        }
        Ok(())
    }
}

/// Work under way, by the numbers that callers gave it.
#[derive(Debug, Default)]
pub struct Stops(Mutex<BTreeMap<u64, Stop>>);

impl Stops {
    /// Runs `work` under a number. Work of an earlier call with this number is asked to end: its
    /// caller has lost the connection, and has come again.
    pub fn run<T>(&self, number: u64, work: impl FnOnce(&Stop) -> T) -> T {
        let stop = Stop::default();
        let earlier = self.0.lock().insert(number, stop.clone());
        earlier.iter().for_each(Stop::ask);
        let done = work(&stop);
        let mut under_way = self.0.lock();
        if under_way.get(&number).is_some_and(|it| Arc::ptr_eq(&it.0, &stop.0)) {
            under_way.remove(&number);
        }
        done
    }

    /// Asks the work with this number to end, if there is any.
    pub fn end(&self, number: u64) {
        self.0.lock().get(&number).iter().for_each(|stop| stop.ask());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_work_with_that_number_is_asked_to_end() {
        let stops = Stops::default();
        stops.end(1);
        stops.run(1, |one| {
            stops.run(2, |two| {
                stops.end(1);
                assert_eq!(one.go_on().expect_err("asked").kind(), ErrorKind::Interrupted);
                assert!(two.go_on().is_ok());
            });
        });
        assert!(stops.0.lock().is_empty());
    }

    #[test]
    fn work_that_comes_again_ends_the_earlier_one_and_keeps_its_place() {
        let stops = Stops::default();
        stops.run(1, |later| {
            // The earlier one ends after the later one has begun.
            let earlier = stops.run(1, Stop::clone);
            assert!(later.is_asked() && !earlier.is_asked());
        });
        stops.run(1, |stop| {
            stops.end(1);
            assert!(stop.is_asked());
        });
    }
}
