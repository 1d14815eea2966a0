//! Keeps the processors from halting while requests follow each other closely.
//!
//! A request takes two wake-ups: one of the thread that serves it, and one of the program that
//! asked. On a virtual machine an idle processor goes back to the host. To wake it takes calls of
//! the host, and so tens of µs, while the answer itself takes five.
//!
//! A kernel can wait a little before it halts (`haltpoll`), but some are configured not to. A
//! process can have the same effect: it limits the time that waking may take (PM QoS, the kernel's
//! `power/pm_qos_interface`). It writes the limit into a file, and the limit holds as long as the
//! file is open.
//!
//! We hold the limit only while requests come, because a processor that waits awake takes its whole
//! share from the host.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::{Error, Result};

/// The file for the limit, which is a 32-bit number of µs.
const LIMIT_PATH: &str = "/dev/cpu_dma_latency";
/// The name of the driver that halts processors, and how many ns it waits before it does.
const DRIVER_PATH: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const POLL_PATH: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// Requests are close together if this many or more come within a window.
const WINDOW: Duration = Duration::from_millis(10);
const REQUESTS_MIN: u64 = 10;
/// A sleeping keeper is woken every this many requests, to see whether they are close together.
const CALL_EVERY: u64 = 32;

/// Says whether processors may halt between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StayAwake {
    /// They stay awake on a virtual machine that halts at once, because waking is slow there.
    Auto,
    /// They may halt.
    Off,
    /// They stay awake on any machine.
    On,
}

impl StayAwake {
    /// True if the processors of this machine are to stay awake.
    pub fn is_wanted(self) -> bool {
        let reads = |path: &str, text: &str| {
            std::fs::read_to_string(path).is_ok_and(|found| found.trim() == text)
        };
        match self {
            StayAwake::Auto => reads(DRIVER_PATH, "haltpoll") && reads(POLL_PATH, "0"),
            StayAwake::Off => false,
            StayAwake::On => true,
        }
    }
}

/// Counts requests and keeps processors awake; see the head of this file. The *keeper* is the
/// thread that runs [`Awake::keep`].
#[derive(Default)]
pub(crate) struct Awake {
    requests: AtomicU64,
    /// True while the keeper waits to be called.
    asleep: AtomicBool,
    ended: Mutex<bool>,
    called: Condvar,
}

impl Awake {
    /// Counts a request.
    pub(crate) fn note(&self) {
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(CALL_EVERY)
            && self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::SeqCst)
        {
            // The keeper looks at `asleep` under this lock before it sleeps.
            drop(self.ended.lock());
            self.called.notify_one();
        }
    }

    /// Ends the keeper, because the connection is gone.
    pub(crate) fn end(&self) {
        *self.ended.lock() = true;
        self.called.notify_one();
    }

    /// Runs the keeper until the connection ends. While requests are close together, it keeps the
    /// value that `hold` returned.
    ///
    /// # Errors
    /// Those of `hold`, which also end the keeper.
    pub(crate) fn keep<T>(&self, hold: impl Fn() -> Result<T>) -> Result<()> {
        let mut ended = self.ended.lock();
        while !*ended {
            self.asleep.store(true, Ordering::SeqCst);
            while self.asleep.load(Ordering::SeqCst) && !*ended {
                self.called.wait(&mut ended);
            }
            let mut held = None;
            let mut seen = self.requests.load(Ordering::Relaxed);
            while !*ended {
                self.called.wait_for(&mut ended, WINDOW);
                let now = self.requests.load(Ordering::Relaxed);
                if now - seen < REQUESTS_MIN {
                    break;
                }
                seen = now;
                if held.is_none() {
                    held = Some(hold()?);
                }
            }
        }
        Ok(())
    }
}

/// Asks the kernel that no processor halts as long as the returned file is open.
///
/// # Errors
/// The host's. Usually only root may open the file.
pub(crate) fn hold() -> Result<File> {
    let held = File::options().write(true).open(LIMIT_PATH).and_then(|mut file| {
        file.write_all(&0i32.to_ne_bytes())?;
        Ok(file)
    });
    let named = |error: std::io::Error| Error::from(error).context(LIMIT_PATH);
    held.map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn it_is_held_while_requests_come_and_no_longer() {
        let (awake, token) = (Arc::new(Awake::default()), Arc::new(()));
        let keeper = strake_env::thread::spawn({
            let (awake, token) = (Arc::clone(&awake), Arc::clone(&token));
            move || awake.keep(|| Ok(Arc::clone(&token)))
        });
        // The test has one reference, and the closure has one.
        let is_held = || Arc::strong_count(&token) > 2;
        for _ in 0..2 {
            while !is_held() {
                awake.note();
                strake_env::thread::yield_now();
            }
            while is_held() {
                strake_env::thread::yield_now();
            }
        }
        awake.end();
        keeper.join().expect("ended").expect("nothing was refused");
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn few_requests_call_nobody_and_a_refusal_ends_it() {
        let awake = Arc::new(Awake::default());
        let keeper = strake_env::thread::spawn({
            let awake = Arc::clone(&awake);
            move || awake.keep(|| Err::<(), _>(strake_proto::ErrorKind::Access.into()))
        });
        while !awake.asleep.load(Ordering::SeqCst) {
            strake_env::thread::yield_now();
        }
        awake.requests.store(1, Ordering::SeqCst);
        for _ in 1..CALL_EVERY {
            awake.note();
        }
        assert!(awake.asleep.load(Ordering::SeqCst), "nobody was called");
        while !keeper.is_finished() {
            awake.note();
            strake_env::thread::yield_now();
        }
        keeper.join().expect("ended").expect_err("refused");
        awake.note();
    }

    #[test]
    fn off_is_off() {
        assert!(!StayAwake::Off.is_wanted() && StayAwake::On.is_wanted());
    }
}
