//! Reservations of NSDs that other nodes reach, too (`strake_lease::reservation`): a thread for
//! each, which does its rounds on the NSD beside all else.
//!
//! **An NSD is opened** only under a permit. The thread begins when somebody wants to open the NSD,
//! and the first permits come when the servers before have left, or cannot use it any more.
//!
//! **An NSD is closed** by telling the thread to leave. It waits until nothing is under way any
//! more, and then writes that it has left, so that another node need not wait. A process that is
//! killed writes nothing.

use crate::data_dir::{DataDir, NodeConfig, NsdConfig, SharedConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::file::FileDisk;
use strake_env::disk::guarded::Permit;
use strake_env::sync::{Condvar, Mutex};
use strake_env::{AlignedBuffer, Clock, Disk, RealClock};
use strake_lease::reservation::{MARK_BYTES, MARK_SPACE, MARKS_OFFSET};
use strake_lease::{Mark, MarkOwner, Reservation, ReservationTimes, Verdict};
use strake_observe::Observe;
use strake_proto::{ClusterId, Error, ErrorKind, NodeName, NsdId, Result};

/// How often is looked, and for how long, whether the last I/O is done and others have left.
const STEP: Duration = Duration::from_millis(100);
/// How long somebody who opens an NSD waits for the first permit. Later attempts find it.
const OPEN_WAIT: Duration = Duration::from_secs(2);
/// How long the end of the process waits for marks to be written.
const LEAVE_WAIT: Duration = Duration::from_secs(3);

/// The marks of all servers on one NSD.
pub(crate) struct Marks {
    disk: FileDisk,
    cluster: ClusterId,
    nsd: NsdId,
    servers: Vec<NodeName>,
}

impl Marks {
    /// Opens the places of the marks of `servers` on an NSD.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn open(
        path: &Path,
        (cluster, nsd): (ClusterId, NsdId),
        servers: Vec<NodeName>,
    ) -> Result<Marks> {
        Ok(Marks { disk: FileDisk::open_shared(path)?, cluster, nsd, servers })
    }

    /// All marks, in the order of the servers; `None` for one that cannot be read.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn read(&self) -> Result<Vec<Option<Mark>>> {
        let space = MARK_SPACE as usize;
        let mut buffer = AlignedBuffer::zeroed(self.servers.len() * space);
        self.disk.read_at(MARKS_OFFSET, &mut buffer)?;
        let decode = |place: &[u8]| {
            let bytes = place[..MARK_BYTES].try_into().expect("invariant: a mark's length");
            Mark::decode(bytes, self.cluster, self.nsd)
        };
        Ok(buffer.chunks(space).map(decode).collect())
    }

    fn write(&self, place: usize, mark: &Mark) -> Result<()> {
        let (cluster, nsd, server) = (self.cluster, self.nsd, self.servers[place].clone());
        let mut buffer = AlignedBuffer::zeroed(MARK_SPACE as usize);
        buffer[..MARK_BYTES].copy_from_slice(&mark.encode(&MarkOwner { cluster, nsd, server }));
        self.disk.write_at(MARKS_OFFSET + place as u64 * MARK_SPACE, &buffer)?;
        Ok(())
    }
}

/// How a reservation stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// There is no permit yet, for this reason.
    Waits(String),
    /// There is one.
    Permitted,
    /// It is over, for this reason. What was open under it is to be closed.
    Over(String),
}

struct State {
    standing: Standing,
    /// It is to end when nothing is under way on the disk any more.
    leaves: bool,
    has_ended: bool,
}

/// The reservation of one NSD under one number.
pub(crate) struct Reserved {
    path: PathBuf,
    cluster: ClusterId,
    nsd: NsdId,
    shared: SharedConfig,
    permit: Arc<Permit>,
    state: Mutex<State>,
    changed: Condvar,
    observe: Arc<Observe>,
}

impl Reserved {
    /// Begins the rounds for the NSD at `path`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        path: &Path,
        (cluster, nsd): (ClusterId, NsdId),
        shared: &SharedConfig,
        observe: &Arc<Observe>,
    ) -> Result<Arc<Reserved>> {
        let standing = Standing::Waits("its first round is under way".to_owned());
        let state = State { standing, leaves: false, has_ended: false };
        let reserved = Arc::new(Reserved {
            path: path.to_owned(),
            cluster,
            nsd,
            shared: shared.clone(),
            permit: Arc::new(Permit::new(RealClock::shared())),
            state: Mutex::new(state),
            changed: Condvar::new(),
            observe: Arc::clone(observe),
        });
        let thread = Arc::clone(&reserved);
        let name = format!("reserve {nsd}");
        strake_env::thread::Builder::new().name(name).spawn(move || thread.run())?;
        Ok(reserved)
    }

    /// The number and the servers for which it was begun.
    pub(crate) fn shared(&self) -> &SharedConfig {
        &self.shared
    }

    /// The permit, once there is one.
    ///
    /// # Errors
    /// `Busy` while there is none; the message says why.
    pub(crate) fn permit(&self) -> Result<Arc<Permit>> {
        let mut state = self.state.lock();
        let waits = |state: &mut State| matches!(state.standing, Standing::Waits(_));
        let wait = self.observe.waiters.enter("reservation of", self.what());
        self.changed.wait_while_for(&mut state, waits, OPEN_WAIT);
        drop(wait);
        match (&state.standing, &state.leaves) {
            (Standing::Permitted, false) => Ok(Arc::clone(&self.permit)),
            (Standing::Permitted, true) => {
                Err(Error::new(ErrorKind::Busy, "its last I/O is not done yet"))
            }
            (Standing::Waits(why) | Standing::Over(why), _) => {
                Err(Error::new(ErrorKind::Busy, why.clone()))
            }
        }
    }

    /// Why what is open under it is to be closed, if that is so.
    pub(crate) fn is_over(&self) -> Option<String> {
        match &self.state.lock().standing {
            Standing::Over(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Ends it: nothing begins under its permit any more, and when nothing is under way either, the
    /// others are told.
    pub(crate) fn leave(&self) {
        self.permit.revoke();
        self.state.lock().leaves = true;
        self.changed.notify_all();
    }

    /// True when it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// Waits until it has ended, or until this time.
    pub(crate) fn wait_for_end(&self, end: Duration) {
        let mut state = self.state.lock();
        let limit = end.saturating_sub(RealClock.monotonic());
        let _wait = self.observe.waiters.enter("end of the reservation of", self.what());
        self.changed.wait_while_for(&mut state, |state| !state.has_ended, limit);
    }

    fn what(&self) -> String {
        format!("NSD {}", self.nsd)
    }

    fn stands(&self, standing: Standing) {
        self.state.lock().standing = standing;
        self.changed.notify_all();
    }

    fn run(&self) {
        if let Err(error) = self.reserve() {
            let why = format!("its reservation cannot be kept: {error}");
            self.stands(Standing::Over(why));
        }
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn reserve(&self) -> Result<()> {
        let servers = self.shared.servers.iter().map(|name| name.parse());
        let servers = servers.collect::<std::result::Result<Vec<NodeName>, _>>()?;
        let marks = Marks::open(&self.path, (self.cluster, self.nsd), servers)?;
        let own = self.shared.place;
        let before = marks.read()?.get(own).copied().flatten().unwrap_or_default();
        let number = self.shared.number;
        if before.number > number {
            // The mark must not fall back: another server would take this one for one of before.
            let detail = "this node has older records than its mark on the disk: it waits for them";
            return Err(Error::new(ErrorKind::Stale, detail));
        }
        let times = ReservationTimes::CLUSTER;
        // All that an earlier process wrote is done: writes are calls that nothing interrupts, and
        // the lock of the directory is free only when each of its threads has ended. The clock
        // counts from when the machine was started: what it was given before that may take longer.
        let settled = times.in_kernel();
        let mut reservation = Reservation::new(own, number, before, settled, times);
        while !self.leaves() {
            let standing = match self.round(&marks, &mut reservation) {
                Ok(standing) => standing,
                // The permit of before ends by itself, and until then the next round may do.
                Err(error) => Standing::Waits(format!("a round of its reservation: {error}")),
            };
            let is_over = matches!(standing, Standing::Over(_));
            let pause = match standing {
                Standing::Permitted => times.round,
                _ => STEP,
            };
            self.stands(standing);
            if is_over {
                break;
            }
            let mut state = self.state.lock();
            self.changed.wait_while_for(&mut state, |state| !state.leaves, pause);
        }
        self.wait_until_told();
        marks.write(own, &self.drain(&reservation))
    }

    /// Does one round.
    fn round(&self, marks: &Marks, reservation: &mut Reservation) -> Result<Standing> {
        let mark = reservation.begin(RealClock.monotonic());
        marks.write(self.shared.place, &mark)?;
        let found = marks.read()?;
        let other = |place: usize| marks.servers[place].as_str();
        Ok(match reservation.judge(RealClock.monotonic(), &found) {
            Verdict::Permit { until } => {
                self.permit.prolong(until);
                Standing::Permitted
            }
            Verdict::Waits { other: place } if place == self.shared.place => {
                Standing::Waits("the machine was started a moment ago".to_owned())
            }
            Verdict::Waits { other: place } if found[place].is_none() => Standing::Waits(format!(
                "the mark of {} on it cannot be read: the disk is damaged there, and must be replaced",
                other(place)
            )),
            Verdict::Waits { other: place } => {
                Standing::Waits(format!("{} has not left it yet", other(place)))
            }
            Verdict::Lost { other: place, .. } => {
                Standing::Over(format!("{} serves it now", other(place)))
            }
        })
    }

    fn leaves(&self) -> bool {
        self.state.lock().leaves
    }

    /// Waits until it is told to leave.
    fn wait_until_told(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.leaves);
    }

    /// Waits until nothing is under way, and gives the mark that says so. A disk that hangs never
    /// gets there, and then nobody is told that this node has left.
    fn drain(&self, reservation: &Reservation) -> Mark {
        let _wait = self.observe.waiters.enter("last I/O on", self.what());
        loop {
            let left = reservation.left(RealClock.monotonic());
            match left.filter(|_| self.permit.is_idle()) {
                Some(mark) => return mark,
                None => RealClock.sleep(STEP),
            }
        }
    }
}

/// The reservations of a process.
#[derive(Default)]
pub(super) struct Reservations(Mutex<BTreeMap<NsdId, Arc<Reserved>>>);

impl Reservations {
    /// The permit under which an NSD may be opened; `None` if no other node reaches it.
    ///
    /// # Errors
    /// `Busy` while there is none.
    pub(super) fn reserve(
        &self,
        dir: &DataDir,
        config: &NodeConfig,
        nsd: &NsdConfig,
        observe: &Arc<Observe>,
    ) -> Result<Option<Arc<Permit>>> {
        let Some(shared) = &nsd.shared else { return Ok(None) };
        let about = |error: Error| error.context(&nsd.name);
        let id = NsdId(nsd.id);
        let reserved = {
            let mut all = self.0.lock();
            if all.get(&id).is_some_and(|known| known.has_ended()) {
                all.remove(&id);
            }
            match all.get(&id) {
                Some(known) if known.shared() != shared || known.is_over().is_some() => {
                    known.leave();
                    let why = known.is_over().filter(|_| known.shared() == shared);
                    let why = why.unwrap_or_else(|| "its reservation of before ends".to_owned());
                    return Err(about(Error::new(ErrorKind::Busy, why)));
                }
                Some(known) => Arc::clone(known),
                None => {
                    let (path, of) = (dir.container_path(nsd), (config.cluster_id()?, id));
                    let new = Reserved::start(&path, of, shared, observe).map_err(about)?;
                    all.insert(id, Arc::clone(&new));
                    new
                }
            }
        };
        reserved.permit().map(Some).map_err(about)
    }

    fn of(&self, nsd: NsdId) -> Option<Arc<Reserved>> {
        self.0.lock().get(&nsd).cloned()
    }

    /// Why an NSD that is open is to be closed, if its reservation is over.
    pub(super) fn is_over(&self, nsd: NsdId) -> Option<String> {
        self.of(nsd)?.is_over()
    }

    /// True if the reservation of an NSD is under another number than it is served under now.
    pub(super) fn is_of_another_time(&self, nsd: &NsdConfig) -> bool {
        let known = self.of(NsdId(nsd.id));
        known.is_some_and(|known| Some(known.shared()) != nsd.shared.as_ref())
    }

    /// Ends the reservation of an NSD, as [`Reserved::leave`] does.
    pub(super) fn leave(&self, nsd: NsdId) {
        if let Some(known) = self.of(nsd) {
            known.leave();
        }
    }

    /// Ends all, and waits a moment for it.
    pub(super) fn leave_all(&self) {
        let (all, end) = (self.0.lock().clone(), RealClock.monotonic() + LEAVE_WAIT);
        all.values().for_each(|known| known.leave());
        all.values().for_each(|known| known.wait_for_end(end));
    }
}

#[cfg(test)]
#[path = "reserved_test.rs"]
mod reserved_test;
