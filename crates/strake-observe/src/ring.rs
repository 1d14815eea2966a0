//! A ring of the last records of a process, each with the number under which it was written.
//!
//! Recording takes a ticket (one atomic addition) and writes the slot that the ticket names, under
//! that slot's own lock. Only a snapshot, or a recorder one whole lap away, can hold that lock. A
//! snapshot locks one slot at a time and never stops recording. A recorder may take several tickets
//! at once and use them later.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strake_env::sync::Mutex;

/// A record and the number under which it was written, which is its ticket and one. A record of six
/// words has a line of the cache to itself.
#[repr(align(64))]
struct Slot<T>(Mutex<Option<(NonZeroU64, T)>>);

/// The ring.
pub(crate) struct Ring<T> {
    /// Records written so far.
    tickets: AtomicU64,
    slots: Box<[Slot<T>]>,
}

impl<T: Copy> Ring<T> {
    /// The memory that a record takes.
    pub(crate) const SLOT_BYTES: usize = size_of::<Slot<T>>();

    /// A ring of `capacity` records. One of capacity 0 drops everything.
    pub(crate) fn new(capacity: usize) -> Ring<T> {
        let slots = (0..capacity).map(|_| Slot(Mutex::new(None))).collect();
        Ring { tickets: AtomicU64::new(0), slots }
    }

    /// The ring without its records.
    pub(crate) fn emptied(mut self) -> Ring<T> {
        self.tickets = AtomicU64::new(0);
        self.slots.iter_mut().for_each(|slot| *slot.0.get_mut() = None);
        self
    }

    /// How many records fit.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Adds a record. If the ring is full, the oldest record goes.
    pub(crate) fn push(&self, record: T) {
        self.put(self.take(1), record);
    }

    /// Takes `count` tickets. Returns the first.
    pub(crate) fn take(&self, count: u64) -> u64 {
        self.tickets.fetch_add(count, Relaxed)
    }

    /// Adds a record under a ticket that was taken, if no newer record is in its place.
    pub(crate) fn put(&self, ticket: u64, record: T) {
        let Some(place) = ticket.checked_rem(self.slots.len() as u64) else { return };
        let number = NonZeroU64::MIN.saturating_add(ticket);
        let mut slot = self.slots[place as usize].0.lock();
        // A recorder that was overtaken by a whole lap must not hide the newer record.
        if slot.is_none_or(|(newest, _)| newest < number) {
            *slot = Some((number, record));
        }
    }

    /// The records with their tickets, in the order of the tickets. What lies in the place of a
    /// ticket that is not used yet is a lap old and left out.
    pub(crate) fn snapshot(&self) -> Vec<(u64, T)> {
        let oldest = self.taken().saturating_sub(self.slots.len() as u64);
        let written = self.slots.iter().filter_map(|slot| *slot.0.lock());
        let mut entries: Vec<(u64, T)> = written
            .map(|(number, record)| (number.get() - 1, record))
            .filter(|(ticket, _)| *ticket >= oldest)
            .collect();
        entries.sort_unstable_by_key(|(ticket, _)| *ticket);
        entries
    }

    /// The number of tickets taken so far, also of records that have left the ring.
    pub(crate) fn taken(&self) -> u64 {
        self.tickets.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_records_in_order() {
        let ring = Ring::new(512);
        (0..612).for_each(|record: u64| ring.push(record));
        let expected: Vec<(u64, u64)> = (100..612).map(|at| (at, at)).collect();
        assert_eq!(ring.snapshot(), expected);
        assert_eq!((ring.taken(), ring.capacity()), (612, 512));
    }

    #[test]
    fn many_threads_lose_nothing_while_the_ring_has_room() {
        let ring = Ring::new(8192);
        strake_env::thread::scope(|scope| {
            for thread in 0..8 {
                let ring = &ring;
                scope.spawn(move || (0..1000).for_each(|at| ring.push(thread * 1000 + at)));
            }
        });
        let mut records: Vec<u64> = ring.snapshot().into_iter().map(|(_, it)| it).collect();
        records.sort_unstable();
        assert_eq!(records, (0..8000).collect::<Vec<u64>>());
    }

    #[test]
    fn a_ticket_that_is_used_late_does_not_hide_what_is_newer_nor_show_what_is_older() {
        let ring = Ring::new(4);
        (0..4).for_each(|record: u64| ring.push(record));
        let first = ring.take(2);
        assert_eq!(ring.snapshot(), [(2, 2), (3, 3)], "0 and 1 have left");
        ring.put(first, 44);
        (0..4).for_each(|record| ring.push(60 + record));
        ring.put(first + 1, 55);
        assert_eq!(ring.snapshot(), [(6, 60), (7, 61), (8, 62), (9, 63)]);
    }

    #[test]
    fn an_emptied_ring_is_as_a_new_one() {
        let ring = Ring::new(4);
        (0..6).for_each(|record: u64| ring.push(record));
        let ring = ring.emptied();
        assert_eq!((ring.snapshot(), ring.taken(), ring.capacity()), (Vec::new(), 0, 4));
        ring.push(9);
        assert_eq!(ring.snapshot(), [(0, 9)]);
    }

    #[test]
    fn a_ring_without_room_drops_everything() {
        let ring = Ring::new(0);
        ring.push(1u8);
        assert_eq!((ring.snapshot(), ring.taken()), (Vec::new(), 1));
    }
}
