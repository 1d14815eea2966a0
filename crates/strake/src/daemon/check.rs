//! `strake fs check` of a file system in use. One check runs at a time, in stages:
//!
//! 1. Everything is made durable, twice. The second time settles it, so that no strip is left whose
//!    successor is there already.
//! 2. Each NSD is checked, in parts.
//! 3. The metadata is checked.
//! 4. The metadata is compared with the strips. In a cluster the leader does that.
//!
//! **The end of a check.** A check is for the one who asked for it. A thread, `check-watch`, sees
//! when its caller hangs up, or closes its own end of the connection, and asks the check to end. So
//! does the end of the daemon. Each stage looks at the same [`Stop`] at short intervals. A stage
//! that another process carries out is ended there, by a number ([`Job::run_elsewhere`]). A sync is
//! left to itself.

use super::figures::nsd_status;
use super::serve::{Daemon, encode};
use super::start_thread;
use crate::data_dir::NsdConfig;
use crate::node::StripsChecked;
use crate::show::{CheckReport, CheckStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use strake_array::Exclusion;
use strake_env::channel::{self, RecvTimeoutError};
use strake_env::net::{Shutdown, UnixStream};
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock, Rng, Stop};
use strake_observe::Waiters;
use strake_proto::meta::{MetaQuery, MetaReply};
use strake_proto::nsd::{NsdCheckReply, NsdPort, NsdReply, NsdRequest};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// How often a stage looks whether it is to end, and an end is asked for again.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked whether the daemon ends.
const WATCH: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// For a check to end when the daemon does.
const END_MAX: Duration = Duration::from_secs(10);

/// Ends a stage in another process.
type Ender = Arc<dyn Fn() + Send + Sync>;

/// The check under way, if there is one.
#[derive(Default)]
pub(super) struct Checks {
    job: Mutex<Option<Arc<Job>>>,
    ended: Condvar,
}

/// See the head of this file.
struct Job {
    stop: Stop,
    begun: Duration,
    state: Mutex<JobState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobState {
    status: CheckStatus,
    ender: Option<Ender>,
    is_over: bool,
}

/// While it lives, no other check begins.
struct Alone<'a> {
    checks: &'a Checks,
    job: Arc<Job>,
}

impl Checks {
    fn begin(&self) -> Result<Alone<'_>> {
        let mut under_way = self.job.lock();
        if let Some(job) = &*under_way {
            let detail = format!("another check is under way ({})", job.status().sentence());
            return Err(Error::new(ErrorKind::Busy, detail));
        }
        let job = Arc::new(Job::new());
        *under_way = Some(Arc::clone(&job));
        Ok(Alone { checks: self, job })
    }

    /// How far the check is.
    pub(super) fn status(&self) -> CheckStatus {
        self.job.lock().as_ref().map(|job| job.status()).unwrap_or_default()
    }

    /// Ends the check, and waits a moment for that.
    pub(super) fn stop(&self, waiters: &Waiters) {
        let mut job = self.job.lock();
        let Some(under_way) = &*job else { return };
        under_way.stop.ask();
        let _wait = waiters.enter("the end of a check", "");
        let end = RealClock.monotonic() + END_MAX;
        while job.is_some() {
            let left = end.saturating_sub(RealClock.monotonic());
            if left.is_zero() {
                return;
            }
            self.ended.wait_for(&mut job, left);
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.job.state.lock().is_over = true;
        self.job.changed.notify_all();
        *self.checks.job.lock() = None;
        self.checks.ended.notify_all();
    }
}

impl Job {
    fn new() -> Job {
        let (begun, changed) = (RealClock.monotonic(), Condvar::new());
        Job { stop: Stop::default(), begun, state: Mutex::default(), changed }
    }

    fn status(&self) -> CheckStatus {
        CheckStatus {
            running: true,
            ending: self.stop.is_asked(),
            seconds: (RealClock.monotonic() - self.begun).as_secs(),
            ..self.state.lock().status.clone()
        }
    }

    /// Begins a stage, unless the check is to end.
    fn stage(&self, stage: String, total: u64) -> Result<()> {
        self.stop.go_on()?;
        let status = &mut self.state.lock().status;
        (status.stage, status.done, status.total) = (stage, 0, total);
        status.step += 1;
        Ok(())
    }

    /// Notes how far the stage is. Fails if the check is to end.
    fn go_on(&self, done: u64) -> Result<()> {
        self.state.lock().status.done = done;
        self.stop.go_on()
    }

    /// Runs a stage that `ender` ends in another process.
    fn run_elsewhere<T>(&self, ender: Ender, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.state.lock().ender = Some(ender);
        let done = self.stop.go_on().and_then(|()| work());
        self.state.lock().ender = None;
        done
    }

    /// Runs work that cannot be ended, in a thread of its own. If the check is to end, it does not
    /// wait any longer, and the work goes on by itself.
    fn run_beside(
        &self,
        thread: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (sender, receiver) = channel::channel();
        start_thread(thread, move || {
            // If the check does not wait any more, nobody needs to know.
            let _ = sender.send(work());
        })?;
        loop {
            self.stop.go_on()?;
            match receiver.recv_timeout(LOOK) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::Internal.into()),
            }
        }
    }

    /// Asks the check to end when its caller has hung up. Returns when it is over.
    fn watch(&self, caller: &UnixStream) {
        while !self.stop.is_asked() && !self.state.lock().is_over {
            let mut closed = [PollFd::new(caller, PollFlags::RDHUP)];
            // A poll that a signal cuts short is made again.
            if poll(&mut closed, Some(&WATCH)).is_ok() && !closed[0].revents().is_empty() {
                // The check itself hangs up when it is over.
                self.stop.ask();
            }
        }
        let mut state = self.state.lock();
        while !state.is_over {
            let ender = state.ender.clone();
            drop(state);
            // The other process may not have heard of the stage yet. So it is told again.
            ender.iter().for_each(|end| end());
            state = self.state.lock();
            if !state.is_over {
                self.changed.wait_for(&mut state, LOOK);
            }
        }
    }
}

/// Answers a request for a check of `caller`.
///
/// # Errors
/// `Busy` if another check is under way; those of the check.
pub(super) fn answer(caller: &UnixStream, daemon: &Daemon, data: bool) -> Result<Value> {
    let alone = daemon.checks.begin()?;
    let (job, watched) = (Arc::clone(&alone.job), caller.try_clone()?);
    start_thread("check-watch", move || job.watch(&watched))?;
    let mut report = CheckReport::default();
    let checked = daemon.check(&alone.job, data, &mut report);
    drop(alone);
    // Nothing more is to be read of the caller. This wakes the thread that watches.
    let _ = caller.shutdown(Shutdown::Read);
    match checked {
        Err(error) if error.kind() == ErrorKind::Interrupted => report.stopped = true,
        checked => checked?,
    }
    encode(&report)
}

impl Daemon {
    fn check(&self, job: &Job, data: bool, report: &mut CheckReport) -> Result<()> {
        let config = self.config();
        job.state.lock().status.steps = config.nsd.len() as u64 + 3;
        job.stage("everything is made durable".to_owned(), 0)?;
        self.make_durable(job)?;
        for nsd in &config.nsd {
            self.check_nsd(job, nsd, data, report)?;
        }
        job.stage("the metadata".to_owned(), 0)?;
        self.check_metadata(job, report)?;
        job.stage("the files and their strips".to_owned(), report.inodes)?;
        let found = self.check_strips(job)?;
        report.files = found.files;
        report.blocks = found.blocks;
        report.block_strips = found.strips;
        report.allocated_bytes = found.allocated;
        report.objects = found.objects;
        report.faults.extend(found.faults);
        report.notes.extend(found.notes);
        // A part is not the whole, whoever has ended it.
        if found.is_partial { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    fn make_durable(&self, job: &Job) -> Result<()> {
        let vfs = Arc::clone(&self.life().vfs);
        let _wait = self.observe.waiters.enter("a sync before a check", "");
        // A sync would tell of losses, and then the program that syncs next would not hear of them.
        let flush = move || vfs.flush_all().and_then(|_| vfs.flush_all()).map(drop);
        job.run_beside("check-sync", flush)
    }

    fn check_nsd(
        &self,
        job: &Job,
        config: &NsdConfig,
        data: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let name = &config.name;
        job.stage(format!("the strips of {name}"), 0)?;
        let port = self.life().backend.port(NsdId(config.id));
        let there = port.and_then(|port| {
            let status = nsd_status(&*port, self.nsd_context()).ok()?;
            Some((port, status))
        });
        let Some((port, status)) = there else {
            report.notes.push(format!("{name} is missing and was not checked"));
            return Ok(());
        };
        job.state.lock().status.total = status.strips;
        let mut found = NsdCheckReply::default();
        let checked = self.check_parts(job, &*port, data, &mut found);
        report.strips += found.strips;
        report.bytes += found.bytes;
        report.tombstones += found.tombstones;
        report.disk_bytes += found.allocated;
        report.faults.extend(found.faults.iter().map(|text| format!("{name}: {text}")));
        checked
    }

    fn check_parts(
        &self,
        job: &Job,
        port: &dyn NsdPort,
        data: bool,
        found: &mut NsdCheckReply,
    ) -> Result<()> {
        let mut next = Some(Vec::new());
        while let Some(from) = next {
            job.go_on(found.strips)?;
            let request = NsdRequest::CheckPart { data, from };
            match port.call(self.nsd_context(), &request, &[], &mut [])? {
                NsdReply::CheckedPart { found: part, next: after } => {
                    found.add(part);
                    next = after;
                }
                other => {
                    found.faults.push(format!("answered {other:?}"));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn check_metadata(&self, job: &Job, report: &mut CheckReport) -> Result<()> {
        let number = Rng::from_entropy()?.next_u64().max(1);
        let meta = Arc::clone(&self.life().meta);
        let ender = Arc::new(move || drop(meta.query(&MetaQuery::EndCheck { number })));
        match job.run_elsewhere(ender, || self.life().meta.query(&MetaQuery::CheckAs { number }))? {
            MetaReply::Checked(found) => {
                report.inodes = found.inodes;
                report.entries = found.entries;
                report.faults.extend(found.faults.iter().map(|text| format!("metadata: {text}")));
            }
            other => report.faults.push(format!("metadata: answered {other:?}")),
        }
        Ok(())
    }

    fn check_strips(&self, job: &Job) -> Result<StripsChecked> {
        let Some(cluster) = self.life().backend.cluster() else {
            let found = self.manager()?.check_strips_while(&|files| job.go_on(files))?;
            return Ok(StripsChecked::from(found));
        };
        let number = Rng::from_entropy()?.next_u64().max(1);
        let leader = Arc::clone(&cluster);
        let ender = Arc::new(move || drop(leader.end_check_strips(number)));
        job.run_elsewhere(ender, || cluster.check_strips(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn one_check_runs_at_a_time_and_says_how_far_it_is() {
        let checks = Checks::default();
        assert!(!checks.status().running);
        let alone = checks.begin().expect("there is none");
        alone.job.stage("the metadata".to_owned(), 9).expect("goes on");
        alone.job.go_on(4).expect("goes on");
        let error = checks.begin().err().expect("another one runs");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("the metadata, 4 of about 9"), "{error}");
        drop(alone);
        assert!(checks.begin().is_ok());
    }

    /// Runs a stage that ends when its caller has done `hang_up`, here or in another process.
    fn ended_by(hang_up: impl FnOnce(UnixStream), is_elsewhere: bool) {
        let checks = Checks::default();
        let (client, caller) = UnixStream::pair().expect("a pair");
        let alone = checks.begin().expect("there is none");
        let job = Arc::clone(&alone.job);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| job.watch(&caller));
            let told = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&told);
            let ender = Arc::new(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            let ended = job.run_elsewhere(ender, || {
                hang_up(client);
                // The first word comes too early for the other process.
                while is_elsewhere && told.load(Ordering::SeqCst) < 2 {
                    strake_env::thread::yield_now();
                }
                while job.go_on(1).is_ok() {
                    strake_env::thread::yield_now();
                }
                job.go_on(2)
            });
            assert_eq!(ended.expect_err("it ends").kind(), ErrorKind::Interrupted);
            assert!(job.stage("the next one".to_owned(), 0).is_err());
            drop(alone);
        });
    }

    #[test]
    fn a_check_ends_when_its_caller_is_gone_or_wants_no_more() {
        ended_by(drop, false);
        ended_by(drop, true);
        let mut kept = None;
        let close = |client: UnixStream| {
            client.shutdown(Shutdown::Write).expect("shuts down");
            kept = Some(client);
        };
        ended_by(close, false);
        assert!(kept.is_some());
    }

    /// The caller hangs up while the sync is under way, and the sync ends long after the check.
    #[test]
    fn a_check_that_is_ended_leaves_its_sync_to_itself() {
        let checks = Checks::default();
        let (client, caller) = UnixStream::pair().expect("a pair");
        let alone = checks.begin().expect("there is none");
        let job = Arc::clone(&alone.job);
        let (end_sync, sync_may_end) = channel::channel();
        let (synced, sync_is_over) = channel::channel();
        strake_env::thread::scope(|scope| {
            scope.spawn(|| job.watch(&caller));
            let left = job.run_beside("check-sync", move || {
                drop(client);
                sync_may_end.recv().expect("the test goes on");
                synced.send(()).expect("the test goes on");
                Ok(())
            });
            assert_eq!(left.expect_err("it ends").kind(), ErrorKind::Interrupted);
            assert!(job.stage("the strips of nsd1".to_owned(), 0).is_err());
            drop(alone);
        });
        assert!(checks.begin().is_ok(), "the next check does not wait for the sync");
        end_sync.send(()).expect("the sync goes on");
        sync_is_over.recv().expect("the sync ends");
    }

    #[test]
    fn a_check_hears_what_becomes_of_its_sync() {
        let job = Job::new();
        assert!(job.run_beside("check-sync", || Ok(())).is_ok());
        let failed = job.run_beside("check-sync", || Err(ErrorKind::Io.into()));
        assert_eq!(failed.expect_err("it failed").kind(), ErrorKind::Io);
    }

    #[test]
    fn a_check_ends_with_the_daemon() {
        let checks = Checks::default();
        let waiters = Waiters::new(RealClock::shared());
        checks.stop(&waiters);
        let alone = checks.begin().expect("there is none");
        strake_env::thread::scope(|scope| {
            let stopping = scope.spawn(|| checks.stop(&waiters));
            while alone.job.stop.go_on().is_ok() {
                strake_env::thread::yield_now();
            }
            assert!(!stopping.is_finished(), "it waits for the end");
            drop(alone);
            stopping.join().expect("no panic");
        });
        assert!(!checks.status().running);
    }
}
