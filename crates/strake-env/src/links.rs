//! How the network is between this process and the nodes that it has connections with. One *peer*
//! is one node. Its connections add up.
//!
//! Once a second [`Links::tick`] sends each peer a ping over one of its connections, and reads what
//! the kernel knows of all of them ([`tcp`]). Whatever comes from a peer says that it lives
//! ([`Link::heard`]), the answer of a ping also how long the way there and back takes.
//!
//! **Nothing waits.** A ping is sent only if the connection takes it at once ([`LinkEnd::ping`]).
//! So a peer that is silent holds up neither the pings of others nor anything else.
//!
//! **Silence** is the time in which nothing came from a peer that has a connection. It is counted
//! by ticks: where this process itself did not run, a peer was not silent.

pub mod tcp;

use crate::clock::Clock;
use crate::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tcp::TcpFigures;

/// How often each peer is sent a ping.
pub const PERIOD: Duration = Duration::from_secs(1);
/// A peer that was not heard for so long counts as silent. A shorter time without a word is part of
/// every load.
pub const SILENT_MIN: Duration = Duration::from_secs(3);
/// One tick counts for no more silence than that.
const TICK_MAX: Duration = Duration::from_secs(2);
/// The median is that of so many round trips.
const KEPT: usize = 64;
/// Fewer round trips than that say nothing.
const FEW: usize = 4;
/// At most that many pings without an answer are remembered.
const PENDING_MAX: usize = 64;
/// A peer without a connection is forgotten after that long.
const FORGET: Duration = Duration::from_secs(600);

/// One end of a connection, as the network layer has it.
pub trait LinkEnd: Send + Sync {
    /// Sends a ping of this number if that needs no waiting. Returns whether it did.
    fn ping(&self, number: u64) -> bool;

    /// The kernel's counts of the connection; `None` once it is over.
    fn figures(&self) -> Option<TcpFigures>;

    /// The peer is cut off: nothing has come from it for [`SILENT_MIN`] or longer, and not even its
    /// kernel acknowledges what is sent to it. Told once a tick. It must not wait.
    fn cut_off(&self) {}

    /// Requests on their way, of which the other end has answered none.
    fn calls(&self) -> usize;
}

/// A connection to a peer, for what arrives on it.
pub struct Link {
    peer: Arc<Peer>,
    clock: Arc<dyn Clock>,
}

impl Link {
    /// Something has come from the peer.
    pub fn heard(&self) {
        // Often set, seldom cleared: a look is cheaper than a write to a line that others read.
        if !self.peer.was_heard.load(Relaxed) {
            self.peer.was_heard.store(true, Relaxed);
        }
    }

    /// The packets that were sent to the peer, and those sent again, as of the last tick.
    pub fn packets(&self) -> (u64, u64) {
        (self.peer.packets.load(Relaxed), self.peer.again.load(Relaxed))
    }

    /// The ping of this number was answered. `theirs` are the packets that the peer has sent to
    /// this node, and those sent again.
    pub fn answered(&self, number: u64, theirs: (u64, u64)) {
        let now = self.clock.monotonic();
        let mut pings = self.peer.pings.lock();
        let Some(sent) = pings.pending.remove(&number) else { return };
        pings.theirs = theirs;
        let took = nanos(now.saturating_sub(sent));
        pings.answered += 1;
        pings.trips_ns += took;
        pings.smallest = Some(pings.smallest.map_or(took, |known| known.min(took)));
        if pings.last.len() == KEPT {
            pings.last.pop_front();
        }
        pings.last.push_back(took);
    }
}

#[derive(Default)]
struct Peer {
    /// Whether something has come since the last tick.
    was_heard: AtomicBool,
    /// How long nothing has come, in nanoseconds.
    silence: AtomicU64,
    /// Packets sent to it, and sent again.
    packets: AtomicU64,
    again: AtomicU64,
    pings: Mutex<Pings>,
}

#[derive(Default)]
struct Pings {
    number: u64,
    /// When each was sent that has no answer.
    pending: BTreeMap<u64, Duration>,
    sent: u64,
    answered: u64,
    trips_ns: u64,
    smallest: Option<u64>,
    theirs: (u64, u64),
    /// The last round trips, the newest at the end.
    last: VecDeque<u64>,
}

/// A connection that is there, and what the kernel said of it last.
struct Known {
    end: Weak<dyn LinkEnd>,
    figures: TcpFigures,
}

#[derive(Default)]
struct Entry {
    peer: Arc<Peer>,
    connections: Vec<Known>,
    /// Of connections that are over.
    before: TcpFigures,
    /// All silences that counted, in nanoseconds.
    silent: u64,
    /// The packets that had been sent again when something came last.
    again_before: u64,
    /// Since when there is no connection.
    left: Option<Duration>,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<String, Entry>,
    ticked: Option<Duration>,
}

/// See the head of this file.
pub struct Links {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// How the network to a peer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerView {
    /// The node's name.
    pub name: String,
    /// The connections that are there.
    pub connections: usize,
    /// Pings sent and answered, and the time of all answered ones.
    pub pings: u64,
    /// See `pings`.
    pub answered: u64,
    /// See `pings`, in nanoseconds.
    pub trips_ns: u64,
    /// The shortest round trip ever, in nanoseconds.
    pub smallest_ns: Option<u64>,
    /// The median of the last ones.
    pub median_ns: Option<u64>,
    /// The last one.
    pub last_ns: Option<u64>,
    /// The shortest of the last few.
    pub quickest_ns: Option<u64>,
    /// How long nothing has come, in nanoseconds. It stands still while there is no connection.
    pub silence_ns: u64,
    /// All silences of [`SILENT_MIN`] or more since the start, in nanoseconds.
    pub silent_ns: u64,
    /// The packets that the peer has sent to this node, and those sent again, by its last answer.
    pub theirs: (u64, u64),
    /// Sums of the kernel's figures. What waits is that of now.
    pub figures: TcpFigures,
}

impl Links {
    /// No peers yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Links> {
        Arc::new(Links { clock, state: Mutex::default() })
    }

    /// A connection to the peer of that name was made.
    pub fn connected(&self, name: &str, end: Weak<dyn LinkEnd>) -> Link {
        let mut state = self.state.lock();
        let entry = state.peers.entry(name.to_owned()).or_default();
        if entry.connections.is_empty() {
            // The time before this connection is no silence of it.
            entry.peer.silence.store(0, Relaxed);
        }
        entry.left = None;
        entry.connections.push(Known { end, figures: TcpFigures::default() });
        entry.peer.was_heard.store(true, Relaxed);
        Link { peer: Arc::clone(&entry.peer), clock: Arc::clone(&self.clock) }
    }

    /// Sends pings, and reads what the kernel knows. To be called once a [`PERIOD`], by one thread.
    pub fn tick(&self) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let passed = state.ticked.map_or(Duration::ZERO, |before| now.saturating_sub(before));
        let passed = nanos(passed.min(TICK_MAX));
        state.ticked = Some(now);
        for entry in state.peers.values_mut() {
            entry.look(passed);
            entry.ping(now);
            match entry.connections.is_empty() {
                true => drop(entry.left.get_or_insert(now)),
                false => entry.left = None,
            }
        }
        let is_recent = |left: Duration| now.saturating_sub(left) < FORGET;
        state.peers.retain(|_, entry| entry.left.is_none_or(is_recent));
    }

    /// A row for each peer, by name.
    pub fn view(&self) -> Vec<PeerView> {
        let state = self.state.lock();
        state.peers.iter().map(|(name, entry)| entry.view(name)).collect()
    }
}

impl Entry {
    /// Takes in what happened since the last tick, so many nanoseconds ago.
    fn look(&mut self, passed: u64) {
        let before = &mut self.before;
        self.connections.retain_mut(|known| {
            let figures = known.end.upgrade().and_then(|end| end.figures());
            match figures {
                Some(figures) => known.figures = figures,
                None => before.add_past(&known.figures),
            }
            figures.is_some()
        });
        let now = self.figures();
        self.peer.packets.store(now.packets, Relaxed);
        self.peer.again.store(now.sent_again, Relaxed);
        let was_heard = self.peer.was_heard.swap(false, Relaxed);
        let silence = self.peer.silence.load(Relaxed);
        if was_heard {
            self.peer.silence.store(0, Relaxed);
            self.again_before = now.sent_again;
        } else if !self.connections.is_empty() {
            let longer = silence + passed;
            self.peer.silence.store(longer, Relaxed);
            if longer >= nanos(SILENT_MIN) {
                // A process that stands still has a kernel that acknowledges.
                if now.unacknowledged > 0 && now.sent_again > self.again_before {
                    let ends = self.connections.iter().filter_map(|known| known.end.upgrade());
                    ends.for_each(|end| end.cut_off());
                }
                // When it begins to count, all of it does.
                self.silent += if silence >= nanos(SILENT_MIN) { passed } else { longer };
            }
        }
    }

    /// Sends a ping over the connection with the least to do.
    fn ping(&mut self, now: Duration) {
        let ends = self.connections.iter().filter_map(|known| known.end.upgrade());
        let mut ends: Vec<(usize, Arc<dyn LinkEnd>)> = ends.map(|end| (end.calls(), end)).collect();
        ends.sort_by_key(|(calls, _)| *calls);
        if ends.is_empty() {
            return;
        }
        let number = {
            let mut pings = self.peer.pings.lock();
            pings.number += 1;
            let number = pings.number;
            // Before it is sent, because the answer may be there at once.
            pings.pending.insert(number, now);
            number
        };
        // The lock is free while it is sent: the answer needs it.
        let is_sent = ends.iter().any(|(_, end)| end.ping(number));
        let mut pings = self.peer.pings.lock();
        if is_sent {
            pings.sent += 1;
        } else {
            pings.pending.remove(&number);
        }
        while pings.pending.len() > PENDING_MAX {
            pings.pending.pop_first();
        }
    }

    /// Sums of all connections.
    fn figures(&self) -> TcpFigures {
        let mut figures = self.before;
        self.connections.iter().for_each(|known| figures.add(&known.figures));
        figures
    }

    fn view(&self, name: &str) -> PeerView {
        let pings = self.peer.pings.lock();
        let mut sorted: Vec<u64> = pings.last.iter().copied().collect();
        sorted.sort_unstable();
        let figures = self.figures();
        PeerView {
            name: name.to_owned(),
            connections: self.connections.len(),
            pings: pings.sent,
            answered: pings.answered,
            trips_ns: pings.trips_ns,
            smallest_ns: pings.smallest,
            median_ns: sorted.get(sorted.len() / 2).copied(),
            last_ns: pings.last.back().copied(),
            quickest_ns: pings.last.iter().rev().take(FEW).min().copied(),
            silence_ns: self.peer.silence.load(Relaxed),
            silent_ns: self.silent,
            theirs: pings.theirs,
            figures,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "links_test.rs"]
mod links_test;
