//! A ring of the last records of a process, each with the number under which it was written.
//!
//! Recording takes a ticket (one atomic addition) and writes the slot that the ticket names, under
//! that slot's own lock. Only a snapshot, or a recorder one whole lap away, can hold that lock. A
//! snapshot locks one slot at a time and never stops recording.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strake_env::sync::Mutex;

/// A record and the ticket under which it was written.
type Slot<T> = Mutex<Option<(u64, T)>>;

/// The ring.
pub(crate) struct Ring<T> {
    /// Records written so far.
    tickets: AtomicU64,
    slots: Box<[Slot<T>]>,
}

impl<T: Copy> Ring<T> {
    /// A ring of `capacity` records. One of capacity 0 drops everything.
    pub(crate) fn new(capacity: usize) -> Ring<T> {
        let slots = (0..capacity).map(|_| Mutex::new(None)).collect();
        Ring { tickets: AtomicU64::new(0), slots }
    }

    /// Adds a record. If the ring is full, the oldest record goes.
    pub(crate) fn push(&self, record: T) {
        let ticket = self.tickets.fetch_add(1, Relaxed);
        let Some(place) = ticket.checked_rem(self.slots.len() as u64) else { return };
        let mut slot = self.slots[place as usize].lock();
        // A recorder that was overtaken by a whole lap must not hide the newer record.
        if slot.is_none_or(|(newest, _)| newest < ticket) {
            *slot = Some((ticket, record));
        }
    }

    /// The records with their tickets, in the order of the tickets.
    pub(crate) fn snapshot(&self) -> Vec<(u64, T)> {
        let mut entries: Vec<(u64, T)> =
            self.slots.iter().filter_map(|slot| *slot.lock()).collect();
        entries.sort_unstable_by_key(|(ticket, _)| *ticket);
        entries
    }

    /// The number of records written so far, including those that have left the ring.
    pub(crate) fn recorded(&self) -> u64 {
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
        assert_eq!(ring.recorded(), 612);
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
    fn a_ring_without_room_drops_everything() {
        let ring = Ring::new(0);
        ring.push(1u8);
        assert_eq!((ring.snapshot(), ring.recorded()), (Vec::new(), 1));
    }
}
