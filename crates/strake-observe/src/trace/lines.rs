//! The ring of a trace: slots of eight words, each a line of the processor's cache, without a lock.
//!
//! A lock would have to be read before it is taken, and a slot was last used a whole lap ago: it is
//! in no cache near the processor. To wait for it took most of the time of an event. A line that is
//! only written is fetched while the thread goes on.
//!
//! ```text
//! word  content
//!  0-5  the event (`packed.rs`)
//!    6  the number under which it was written: its ticket and one; 0 in a slot not used yet
//!    7  check: a sum over the words 0 to 6
//! ```
//!
//! A slot may be read while it is written, and two threads may write one at the same time if one of
//! them stood still for a lap. The words that are found then are of two events. The check tells:
//! such a slot is read again, and left out if it stays so.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The words of an event.
pub(super) type Event = [u64; 6];

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// The number of tickets taken so far. It has lines of the cache to itself, because all threads
/// write it, and the rest of a ring is only read.
#[derive(Default)]
#[repr(align(128))]
struct Tickets(AtomicU64);

/// See the file's head.
pub(super) struct Lines {
    tickets: Tickets,
    lines: Box<[Line]>,
}

/// The number of times that a line is read whose check does not fit.
const READS: usize = 16;

impl Lines {
    /// The memory that an event takes.
    pub(super) const SLOT_BYTES: usize = size_of::<Line>();

    /// A ring of `capacity` events, which is above 0.
    pub(super) fn new(capacity: usize) -> Lines {
        assert!(capacity > 0, "a ring has a slot");
        let lines = (0..capacity).map(|_| Line::default()).collect();
        Lines { tickets: Tickets::default(), lines }
    }

    /// The ring without its events.
    pub(super) fn emptied(mut self) -> Lines {
        self.tickets = Tickets::default();
        self.lines.iter_mut().for_each(|line| *line = Line::default());
        self
    }

    /// How many events fit.
    pub(super) fn capacity(&self) -> usize {
        self.lines.len()
    }

    /// The number of tickets taken so far, also of events that have left the ring.
    pub(super) fn taken(&self) -> u64 {
        self.tickets.0.load(Relaxed)
    }

    /// Takes `count` tickets. Returns the first.
    pub(super) fn take(&self, count: u64) -> u64 {
        self.tickets.0.fetch_add(count, Relaxed)
    }

    /// Writes an event under a ticket that was taken less than a lap ago. An event that is written
    /// later than that may take the place of a newer one, and is shown by no snapshot.
    pub(super) fn put(&self, ticket: u64, event: Event) {
        let Line(line) = &self.lines[(ticket % self.lines.len() as u64) as usize];
        let number = ticket + 1;
        for (word, value) in line.iter().zip(event) {
            word.store(value, Relaxed);
        }
        line[6].store(number, Relaxed);
        // A reader that finds this finds the names which the event means.
        line[7].store(check(&event, number), Release);
    }

    /// The events with their tickets, in the order of the tickets. What lies in the place of a
    /// ticket that is not used yet is a lap old and left out.
    pub(super) fn snapshot(&self) -> Vec<(u64, Event)> {
        let oldest = self.taken().saturating_sub(self.lines.len() as u64);
        let written = self.lines.iter().filter_map(Line::read);
        let mut events: Vec<(u64, Event)> =
            written.filter(|(ticket, _)| *ticket >= oldest).collect();
        events.sort_unstable_by_key(|(ticket, _)| *ticket);
        events
    }
}

impl Line {
    /// The event and its ticket, or `None` if there is none, or if it is being written.
    fn read(&self) -> Option<(u64, Event)> {
        for _ in 0..READS {
            let found = self.0[7].load(Acquire);
            let event = std::array::from_fn(|at| self.0[at].load(Relaxed));
            let number = self.0[6].load(Relaxed);
            if found == check(&event, number) {
                return number.checked_sub(1).map(|ticket| (ticket, event));
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// A sum in which each word has an odd factor of its own. Where it fits although words of two
/// events are mixed, their differences cancel out: one in 2⁶⁴ for words that nobody chose.
fn check(event: &Event, number: u64) -> u64 {
    /// Products of the golden ratio's fraction in 64 bits, by 1, 3, 5, ….
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = event.iter().chain(std::iter::once(&number));
    words.zip(0u64..).fold(0, |sum: u64, (word, at)| {
        // Halves change places, so that differences in the high bits of two words do not cancel.
        sum.wrapping_add(word.rotate_left(32).wrapping_mul(FACTOR.wrapping_mul(2 * at + 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seed: u64) -> Event {
        std::array::from_fn(|at| seed.wrapping_mul(1000) + at as u64)
    }

    fn push(ring: &Lines, seed: u64) {
        ring.put(ring.take(1), event(seed));
    }

    #[test]
    fn the_ring_keeps_the_last_events_in_order() {
        let ring = Lines::new(512);
        (0..612).for_each(|seed| push(&ring, seed));
        let expected: Vec<(u64, Event)> = (100..612).map(|at| (at, event(at))).collect();
        assert_eq!(ring.snapshot(), expected);
        assert_eq!((ring.taken(), ring.capacity()), (612, 512));
    }

    #[test]
    fn many_threads_lose_nothing_while_the_ring_has_room() {
        let ring = Lines::new(8192);
        strake_env::thread::scope(|scope| {
            for thread in 0..8 {
                let ring = &ring;
                scope.spawn(move || (0..1000).for_each(|at| push(ring, thread * 1000 + at)));
            }
        });
        let mut seeds: Vec<u64> = ring.snapshot().into_iter().map(|(_, it)| it[0] / 1000).collect();
        seeds.sort_unstable();
        assert_eq!(seeds, (0..8000).collect::<Vec<u64>>());
    }

    #[test]
    fn what_is_shown_while_all_slots_are_written_was_written_so() {
        // One slot and no care for laps: writers meet each other and the reader all the time.
        let ring = Lines::new(1);
        strake_env::thread::scope(|scope| {
            let write = |thread: u64| {
                let ring = &ring;
                scope.spawn(move || (0..2_000_000).for_each(|at| push(ring, thread << 32 | at)))
            };
            let writers: Vec<_> = (0..3).map(write).collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                for (_, found) in ring.snapshot() {
                    assert_eq!(found, event(found[0] / 1000), "words of one event");
                }
            }
        });
    }

    #[test]
    fn words_of_two_events_are_not_shown() {
        for torn in 0..8 {
            let ring = Lines::new(1);
            push(&ring, 1);
            let Line(line) = &ring.lines[0];
            let before: Vec<u64> = line.iter().map(|word| word.load(Relaxed)).collect();
            push(&ring, 2);
            line[torn].store(before[torn], Relaxed);
            assert_eq!(ring.snapshot(), [], "word {torn} is of the event before");
        }
    }

    #[test]
    fn a_ticket_that_is_used_late_shows_nothing_that_is_older() {
        let ring = Lines::new(4);
        (0..4).for_each(|seed| push(&ring, seed));
        let first = ring.take(2);
        assert_eq!(ring.snapshot(), [(2, event(2)), (3, event(3))], "0 and 1 have left");
        ring.put(first, event(44));
        (0..4).for_each(|seed| push(&ring, 60 + seed));
        ring.put(first + 1, event(55));
        let left = [(6, event(60)), (7, event(61)), (8, event(62))];
        assert_eq!(ring.snapshot(), left, "it took the place of 9");
    }

    #[test]
    fn an_emptied_ring_is_as_a_new_one() {
        let ring = Lines::new(4);
        (0..6).for_each(|seed| push(&ring, seed));
        let ring = ring.emptied();
        assert_eq!((ring.snapshot(), ring.taken(), ring.capacity()), (Vec::new(), 0, 4));
        push(&ring, 9);
        assert_eq!(ring.snapshot(), [(0, event(9))]);
    }
}
