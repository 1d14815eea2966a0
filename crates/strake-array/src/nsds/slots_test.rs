//! Slots that are added.

use super::*;
use strake_proto::layout::{NsdAvailability, NsdState, NsdStatus};

fn slots(count: u32) -> Vec<Slot> {
    let state = NsdState { status: NsdStatus::Ready, availability: NsdAvailability::Up };
    (0..count).map(|at| Slot { nsd: NsdId(at + 1), failure_group: at, state }).collect()
}

fn ids(known: &Slots) -> Vec<u32> {
    known.iter().map(|entry| entry.nsd.load(Ordering::Acquire)).collect()
}

#[test]
fn slots_are_only_added_and_never_more_than_there_may_be() {
    let known = Slots::new(&slots(2), Duration::ZERO);
    known.grow(&slots(4), Duration::ZERO);
    assert_eq!(ids(&known), [1, 2, 3, 4]);
    known.grow(&slots(3), Duration::ZERO);
    assert_eq!(known.len(), 4, "an older map takes none away");
    assert!(known.get(SlotIndex(3)).is_some() && known.get(SlotIndex(4)).is_none());
    known.grow(&slots(SLOTS_MAX as u32 + 5), Duration::ZERO);
    assert_eq!(known.len(), SLOTS_MAX);
    assert!(known.get(SlotIndex(u16::MAX)).is_none());
    // A pool of before that has more is used as it is.
    assert_eq!(Slots::new(&slots(SLOTS_MAX as u32 + 5), Duration::ZERO).len(), SLOTS_MAX + 5);
}
