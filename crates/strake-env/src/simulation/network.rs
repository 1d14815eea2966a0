//! A network between simulated processes: streams with delays, losses, cuts and pauses.
//!
//! A stream behaves as TCP does. Its bytes arrive in order or not at all, so a lost packet shows as
//! a delay ([`RETRANSMISSION`]), and what is written first on one stream may arrive after what is
//! written later on another. A *cut* holds all that one process sends to another, in one direction,
//! until it is healed: nobody is told. A *break* ends the streams between two processes: what was
//! under way is lost, and both ends get an error.
//!
//! Listeners are known by the text of their endpoint, over all processes of one simulation.

use super::scheduler::{Awaited, Here, Scheduler};
use super::stacks::here;
use crate::stream::Endpoint;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A packet that was lost is sent again after this time.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Bytes that one direction of a stream holds; then its writer waits.
const WINDOW_BYTES: usize = 256 << 10;
/// A killed process that connects to others learns after this time that it cannot.
const KILLED_PAUSE: Duration = Duration::from_millis(50);
/// The first port given to a listener that asks for any.
const FIRST_PORT: u16 = 40_000;

/// What a direction between two processes does to what is sent.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The least that a packet takes.
    pub delay_min: Duration,
    /// The most that a packet takes.
    pub delay_max: Duration,
    /// One in so many packets is lost and sent again; 0 for none.
    pub loss_one_in: u64,
    /// Nothing arrives.
    pub is_cut: bool,
}

impl Default for Link {
    fn default() -> Link {
        let (delay_min, delay_max) = (Duration::from_micros(20), Duration::from_micros(200));
        Link { delay_min, delay_max, loss_one_in: 0, is_cut: false }
    }
}

/// Bytes on their way, or arrived and not read.
struct Packet {
    /// When it arrives; `None` while it is held by a cut.
    arrives: Option<Duration>,
    bytes: Vec<u8>,
    read: usize,
}

/// One end of a connection.
#[derive(Default)]
struct End {
    process: u32,
    incoming: VecDeque<Packet>,
    incoming_bytes: usize,
    handles: usize,
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
}

struct Connection {
    ends: [End; 2],
    /// Ended in order by one of its ends: no more is sent.
    is_shut: bool,
    /// Ended by the network.
    is_broken: bool,
}

struct Listening {
    endpoint: String,
    process: u32,
    is_stopped: bool,
    waiting: VecDeque<u64>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    links: BTreeMap<(u32, u32), Link>,
    /// By number. At most one that is not abandoned listens at an endpoint.
    listening: BTreeMap<u64, Listening>,
    /// Processes that were killed: nothing comes from them or gets to them.
    killed: BTreeSet<u32>,
    connections: BTreeMap<u64, Connection>,
}

impl State {
    fn id(&mut self) -> u64 {
        // Each has two keys for those who wait at its ends.
        self.next_id += 2;
        self.next_id
    }

    fn link(&self, from: u32, to: u32) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or_default()
    }

    /// The listener at an endpoint, with its number.
    fn listening_at(&mut self, endpoint: &str) -> Option<(u64, &mut Listening)> {
        let State { listening, killed, .. } = self;
        let mut all = listening.iter_mut();
        all.find(|(_, it)| it.endpoint == endpoint && !killed.contains(&it.process))
            .map(|(id, it)| (*id, it))
    }
}

/// The network of one simulation.
#[derive(Default)]
pub(crate) struct Links(Mutex<State>);

fn simulated() -> Here {
    here().expect("invariant: simulated sockets are used by simulated threads")
}

fn now(here: &Here) -> Duration {
    here.with(|state| state.now)
}

/// How long a packet takes.
fn delay(here: &Here, link: Link) -> Duration {
    let range = (link.delay_max.saturating_sub(link.delay_min).as_nanos() as u64).max(1);
    here.with(|state| {
        let delay = link.delay_min + Duration::from_nanos(state.rng.below(range));
        let is_lost = link.loss_one_in > 0 && state.rng.one_in(link.loss_one_in);
        delay + if is_lost { RETRANSMISSION } else { Duration::ZERO }
    })
}

/// The network, for a test to change.
pub struct Network(Arc<Scheduler>);

impl Network {
    pub(crate) fn of(here: &Here) -> Network {
        Network(Arc::clone(here.scheduler()))
    }

    /// Changes the direction from one process to another.
    pub fn set_link(&self, from: u32, to: u32, change: impl FnOnce(&mut Link)) {
        let here = simulated();
        let mut state = self.0.network.0.lock();
        let mut link = state.link(from, to);
        change(&mut link);
        state.links.insert((from, to), link);
        let mut woken = Vec::new();
        for (id, connection) in &mut state.connections {
            for side in 0..2 {
                let processes = (connection.ends[1 - side].process, connection.ends[side].process);
                if processes == (from, to) && !link.is_cut {
                    let held = connection.ends[side].incoming.iter_mut();
                    for packet in held.filter(|packet| packet.arrives.is_none()) {
                        packet.arrives = Some(now(&here) + delay(&here, link));
                    }
                    woken.push(id + side as u64);
                }
            }
        }
        drop(state);
        woken.into_iter().for_each(|key| {
            here.wake(Awaited::Network(key), true);
        });
        here.point("change a link", Location::caller());
    }

    /// Ends all streams between two processes; what is under way is lost.
    pub fn break_streams(&self, one: u32, other: u32) {
        let here = simulated();
        self.end_streams(&here, |ends| ends == [one, other] || ends == [other, one]);
        here.point("break streams", Location::caller());
    }

    /// Kills a process, as far as others can tell: its streams end, nobody listens there any more,
    /// and from now on it reaches nobody. Another process may listen at its endpoints. Its threads
    /// go on, and find out.
    pub fn kill(&self, process: u32) {
        let here = simulated();
        self.0.network.0.lock().killed.insert(process);
        self.end_streams(&here, |ends| ends.contains(&process));
        here.point("kill", Location::caller());
    }

    fn end_streams(&self, here: &Here, ends: impl Fn([u32; 2]) -> bool) {
        let mut state = self.0.network.0.lock();
        let mut woken = Vec::new();
        for (id, connection) in &mut state.connections {
            if ends([connection.ends[0].process, connection.ends[1].process]) {
                connection.is_broken = true;
                woken.extend([*id, *id + 1]);
            }
        }
        drop(state);
        woken.into_iter().for_each(|key| {
            here.wake(Awaited::Network(key), true);
        });
    }
}

/// A simulated connected socket.
pub struct SimStream {
    scheduler: Arc<Scheduler>,
    connection: u64,
    side: usize,
}

impl std::fmt::Debug for SimStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SimStream({}, {})", self.connection, self.side)
    }
}

impl SimStream {
    /// Connects to the listener at `endpoint`, if this thread is simulated.
    pub(crate) fn connect(endpoint: &str, limit: Duration) -> Option<io::Result<SimStream>> {
        let here = here()?;
        Some(SimStream::open(&here, endpoint, limit))
    }

    fn open(here: &Here, endpoint: &str, limit: Duration) -> io::Result<SimStream> {
        let from = here.process();
        let mut state = here.scheduler().network.0.lock();
        if state.killed.contains(&from) {
            drop(state);
            here.sleep(KILLED_PAUSE, Location::caller());
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let to = match state.listening_at(endpoint) {
            Some((_, listening)) if !listening.is_stopped => listening.process,
            _ => return Err(io::ErrorKind::ConnectionRefused.into()),
        };
        let (there, back) = (state.link(from, to), state.link(to, from));
        drop(state);
        if there.is_cut || back.is_cut {
            here.sleep(limit, Location::caller());
            return Err(io::ErrorKind::TimedOut.into());
        }
        here.sleep(delay(here, there) + delay(here, back), Location::caller());
        state = here.scheduler().network.0.lock();
        let connection = state.id();
        let there = state.listening_at(endpoint).filter(|(_, it)| !it.is_stopped);
        let Some((key, listening)) = there.filter(|(_, it)| it.process == to) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        listening.waiting.push_back(connection);
        let end = |process| End { process, handles: 1, ..End::default() };
        let ends = [end(from), end(to)];
        state.connections.insert(connection, Connection { ends, is_shut: false, is_broken: false });
        drop(state);
        here.wake(Awaited::Network(key), true);
        here.point("connect", Location::caller());
        Ok(SimStream { scheduler: Arc::clone(here.scheduler()), connection, side: 0 })
    }

    /// Looks at the connection, or changes it.
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        let mut state = self.scheduler.network.0.lock();
        let connection = state.connections.get_mut(&self.connection);
        work(connection.expect("invariant: there as long as it has handles"))
    }

    fn wake(&self, side: usize) {
        if let Some(here) = here() {
            here.wake(Awaited::Network(self.connection + side as u64), true);
        }
    }

    pub(crate) fn try_clone(&self) -> SimStream {
        self.with(|connection| connection.ends[self.side].handles += 1);
        let (connection, side) = (self.connection, self.side);
        SimStream { scheduler: Arc::clone(&self.scheduler), connection, side }
    }

    pub(crate) fn set_limits(&self, read: Option<Duration>, write: Option<Duration>) {
        self.with(|connection| {
            let end = &mut connection.ends[self.side];
            (end.read_limit, end.write_limit) = (read, write);
        });
    }

    pub(crate) fn set_read_limit(&self, limit: Duration) {
        self.with(|connection| connection.ends[self.side].read_limit = Some(limit));
    }

    pub(crate) fn shutdown(&self) {
        self.with(|connection| connection.is_shut = true);
        self.wake(0);
        self.wake(1);
    }

    /// Reads what has arrived; waits for the first byte.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let here = simulated();
        let place = Location::caller();
        here.point("receive", place);
        let begun = now(&here);
        loop {
            let now = now(&here);
            let (read, next, limit) = self.with(|connection| {
                if connection.is_broken {
                    return (Some(Err(io::ErrorKind::ConnectionReset.into())), None, None);
                }
                let is_last = connection.is_shut || connection.ends[1 - self.side].handles == 0;
                let end = &mut connection.ends[self.side];
                let Some(packet) = end.incoming.front_mut() else {
                    return (is_last.then_some(Ok(0)), None, end.read_limit);
                };
                if packet.arrives.is_none_or(|arrives| arrives > now) {
                    return (None, packet.arrives, end.read_limit);
                }
                let count = bytes.len().min(packet.bytes.len() - packet.read);
                bytes[..count].copy_from_slice(&packet.bytes[packet.read..packet.read + count]);
                packet.read += count;
                end.incoming_bytes -= count;
                if packet.read == packet.bytes.len() {
                    end.incoming.pop_front();
                }
                (Some(Ok(count)), None, None)
            });
            if let Some(read) = read {
                self.wake(1 - self.side);
                return read;
            }
            let until = [next, limit.map(|limit| begun + limit)].into_iter().flatten().min();
            let left = until.map(|until| until.saturating_sub(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let on = Awaited::Network(self.connection + self.side as u64);
            here.block(on, "bytes from the network", left, place);
        }
    }

    /// Sends `bytes`, or as many as there is room for.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let here = simulated();
        let place = Location::caller();
        here.note("send", [bytes.len() as u64, u64::from(crc32c::crc32c(bytes))]);
        here.point("send", place);
        let begun = now(&here);
        loop {
            let (room, limit, processes) = self.with(|connection| {
                let [mine, other] = [self.side, 1 - self.side].map(|side| &connection.ends[side]);
                let room = if connection.is_broken {
                    Err(io::ErrorKind::ConnectionReset.into())
                } else if connection.is_shut || other.handles == 0 {
                    Err(io::Error::from(io::ErrorKind::BrokenPipe))
                } else {
                    Ok(WINDOW_BYTES.saturating_sub(other.incoming_bytes))
                };
                (room, mine.write_limit, (mine.process, other.process))
            });
            let count = room?.min(bytes.len());
            if count > 0 || bytes.is_empty() {
                self.send(&here, &bytes[..count], processes);
                return Ok(count);
            }
            let left = limit.map(|limit| (begun + limit).saturating_sub(now(&here)));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let on = Awaited::Network(self.connection + self.side as u64);
            here.block(on, "room on the network", left, place);
        }
    }

    pub(crate) fn write_vectored(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.write(&bytes)
    }

    fn send(&self, here: &Here, bytes: &[u8], (from, to): (u32, u32)) {
        let link = self.scheduler.network.0.lock().link(from, to);
        let arrives = (!link.is_cut).then(|| now(here) + delay(here, link));
        self.with(|connection| {
            let end = &mut connection.ends[1 - self.side];
            // In order: not before what was sent before.
            let last = end.incoming.back().map(|packet| packet.arrives);
            let arrives = match last {
                Some(None) => None,
                Some(Some(last)) => arrives.map(|arrives| arrives.max(last)),
                None => arrives,
            };
            end.incoming_bytes += bytes.len();
            end.incoming.push_back(Packet { arrives, bytes: bytes.to_vec(), read: 0 });
        });
        self.wake(1 - self.side);
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let mut state = self.scheduler.network.0.lock();
        let connection = state.connections.get_mut(&self.connection);
        let connection = connection.expect("invariant: there as long as it has handles");
        connection.ends[self.side].handles -= 1;
        let is_gone = connection.ends[self.side].handles == 0;
        if is_gone && connection.ends[1 - self.side].handles == 0 {
            state.connections.remove(&self.connection);
        }
        drop(state);
        if is_gone {
            self.wake(1 - self.side);
        }
    }
}

/// A simulated listening socket.
pub struct SimListener {
    scheduler: Arc<Scheduler>,
    id: u64,
}

impl std::fmt::Debug for SimListener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SimListener({})", self.id)
    }
}

impl SimListener {
    /// Listens at `endpoint`; also what it is with its port chosen.
    pub(crate) fn bind(endpoint: &Endpoint) -> io::Result<(SimListener, Endpoint)> {
        let here = simulated();
        let process = here.process();
        let mut state = here.scheduler().network.0.lock();
        let id = state.id();
        let endpoint = match endpoint {
            Endpoint::Tcp(address) if address.port() == 0 => {
                Endpoint::Tcp(SocketAddr::new(address.ip(), FIRST_PORT + id as u16))
            }
            endpoint => endpoint.clone(),
        };
        let name = endpoint.to_string();
        if state.listening_at(&name).is_some() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let waiting = VecDeque::new();
        let listening = Listening { endpoint: name, process, is_stopped: false, waiting };
        state.listening.insert(id, listening);
        drop(state);
        let scheduler = Arc::clone(here.scheduler());
        Ok((SimListener { scheduler, id }, endpoint))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Listening) -> T) -> T {
        let mut state = self.scheduler.network.0.lock();
        let listening = state.listening.get_mut(&self.id);
        work(listening.expect("invariant: there as long as the listener"))
    }

    pub(crate) fn accept(&self) -> io::Result<SimStream> {
        let here = simulated();
        let place = Location::caller();
        here.point("accept", place);
        loop {
            let next = self.with(|listening| match listening.is_stopped {
                true => Err(io::Error::from(io::ErrorKind::InvalidInput)),
                false => Ok(listening.waiting.pop_front()),
            });
            if let Some(connection) = next? {
                let scheduler = Arc::clone(&self.scheduler);
                return Ok(SimStream { scheduler, connection, side: 1 });
            }
            here.block(Awaited::Network(self.id), "a connection", None, place);
        }
    }

    pub(crate) fn stop(&self) {
        self.with(|listening| listening.is_stopped = true);
        if let Some(here) = here() {
            here.wake(Awaited::Network(self.id), true);
        }
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.scheduler.network.0.lock();
        let listening = state.listening.remove(&self.id);
        drop(state);
        for connection in listening.into_iter().flat_map(|it| it.waiting) {
            // Whoever connected finds the other end closed.
            drop(SimStream { scheduler: Arc::clone(&self.scheduler), connection, side: 1 });
        }
    }
}
