//! What the NSDs grant this client of their space (decision 0038), as far as the client knows.
//!
//! A reply says what is granted at its moment. What this client sends is taken off, and what was
//! sent is counted once for all NSDs, as if each got each strip. So the *limit* of an NSD is what
//! it granted, plus what had been sent before the request: up to there the client may send. What
//! the client believes is never more than what the NSD grants:
//!
//! - Strips under way while a request is are counted as sent after it.
//! - An NSD's own top-ups only add, so of two replies to commits either may come last.
//! - An ask may take away. So the client gives up its part before it asks, and a reply to a commit
//!   that was under way at the same time only lowers the limit.

use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::sync::Mutex;
use strake_proto::SlotIndex;
use strake_proto::nsd::SpaceGrant;

/// See the file's head.
pub(crate) struct Holdings {
    /// Bytes of strips sent so far, for the fullest NSD.
    sent: AtomicU64,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Held>,
    /// Changes when an ask begins and when it ends.
    asks: u64,
    /// The number of the last ask; see [`strake_proto::nsd::SpaceAsk::number`].
    number: u64,
    /// Whether some NSD has answered since somebody asked for this last.
    has_heard: bool,
}

#[derive(Clone, Copy, Default)]
struct Held {
    limit: u64,
    /// As the NSD said last.
    space: SpaceGrant,
}

impl State {
    /// Nothing of a slot that is new is granted yet.
    fn of(&mut self, slot: SlotIndex) -> &mut Held {
        let at = usize::from(slot.0);
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Held::default());
        }
        &mut self.slots[at]
    }
}

/// The moment before a request.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    sent: u64,
    asks: u64,
    /// The number for an ask.
    pub(crate) number: u64,
}

/// What is known of some NSDs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The most that may have been sent ever, which the fullest NSD decides.
    pub(crate) limit: u64,
    /// The lowest target.
    pub(crate) target_min: u64,
    /// The highest target.
    pub(crate) target_max: u64,
    /// Whether some NSD is short of space.
    pub(crate) is_short: bool,
    /// The most that others hold beyond their needs.
    pub(crate) elsewhere: u64,
}

impl Holdings {
    /// Nothing is granted yet. `life` rises with each life of a client that has the same id.
    pub(crate) fn new(slots: usize, life: u64) -> Holdings {
        // An epoch tells lives apart in a cluster. In one process, the higher bits do.
        let number = (life & u64::from(u32::MAX)) << 32;
        let slots = vec![Held::default(); slots];
        let state = State { slots, asks: 0, number, has_heard: false };
        Holdings { sent: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Notes how many bytes were sent so far.
    pub(crate) fn note_sent(&self, sent: u64) {
        self.sent.store(sent, Ordering::Release);
    }

    /// The moment before a commit.
    pub(crate) fn begin_commit(&self) -> Mark {
        let sent = self.sent.load(Ordering::Acquire);
        let state = self.state.lock();
        Mark { sent, asks: state.asks, number: state.number }
    }

    /// Takes over the reply to a commit.
    pub(crate) fn end_commit(&self, slot: SlotIndex, mark: Mark, space: SpaceGrant) {
        let mut state = self.state.lock();
        state.has_heard = true;
        let is_crossed = state.asks != mark.asks;
        let held = state.of(slot);
        let limit = mark.sent.saturating_add(space.granted);
        held.limit = if is_crossed { held.limit.min(limit) } else { limit };
        // Others are not counted for a commit that grants nothing.
        let elsewhere = held.space.elsewhere;
        held.space = SpaceGrant { elsewhere, ..space };
    }

    /// Gives up all but `need`, given that `sent` bytes were sent, and begins an ask. Asks are made
    /// one at a time.
    pub(crate) fn begin_ask(&self, sent: u64, need: u64) -> Mark {
        let mut state = self.state.lock();
        state.asks += 1;
        state.number += 1;
        let most = sent.saturating_add(need);
        state.slots.iter_mut().for_each(|held| held.limit = held.limit.min(most));
        Mark { sent, asks: state.asks, number: state.number }
    }

    /// Takes over the reply to an ask.
    pub(crate) fn learn(&self, slot: SlotIndex, mark: Mark, space: SpaceGrant) {
        let mut state = self.state.lock();
        state.has_heard = true;
        let held = state.of(slot);
        *held = Held { limit: mark.sent.saturating_add(space.granted), space };
    }

    /// Another NSD has the slot, which has granted nothing yet.
    pub(super) fn forget(&self, slot: SlotIndex) {
        let mut state = self.state.lock();
        *state.of(slot) = Held::default();
    }

    /// Ends an ask: every NSD has answered or failed.
    pub(crate) fn end_ask(&self) {
        self.state.lock().asks += 1;
    }

    /// What is known of these slots together. Nothing is granted where there are none.
    pub(crate) fn view(&self, slots: impl Iterator<Item = SlotIndex>) -> View {
        let state = self.state.lock();
        let held = |slot: SlotIndex| state.slots.get(usize::from(slot.0)).copied();
        let mut views = slots.map(|slot| held(slot).unwrap_or_default()).map(|held| {
            let SpaceGrant { target, is_short, elsewhere, .. } = held.space;
            View { limit: held.limit, target_min: target, target_max: target, is_short, elsewhere }
        });
        let Some(first) = views.next() else { return View::default() };
        views.fold(first, |all, one| View {
            limit: all.limit.min(one.limit),
            target_min: all.target_min.min(one.target_min),
            target_max: all.target_max.max(one.target_max),
            is_short: all.is_short || one.is_short,
            elsewhere: all.elsewhere.max(one.elsewhere),
        })
    }

    /// Whether some NSD has answered since the last call.
    pub(crate) fn take_heard(&self) -> bool {
        std::mem::take(&mut self.state.lock().has_heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotIndex = SlotIndex(0);

    fn granted(granted: u64) -> SpaceGrant {
        SpaceGrant { granted, target: granted, ..SpaceGrant::default() }
    }

    fn limit(holdings: &Holdings) -> u64 {
        holdings.view([SLOT].into_iter()).limit
    }

    fn asked(bytes: u64) -> Holdings {
        let holdings = Holdings::new(1, 1);
        let mark = holdings.begin_ask(0, 0);
        holdings.learn(SLOT, mark, granted(bytes));
        holdings.end_ask();
        holdings
    }

    #[test]
    fn what_is_sent_while_a_commit_is_under_way_is_taken_off() {
        let holdings = asked(100);
        let mark = holdings.begin_commit();
        holdings.note_sent(30);
        holdings.end_commit(SLOT, mark, granted(80));
        assert_eq!(limit(&holdings), 80, "50 are left");
    }

    #[test]
    fn a_reply_to_a_commit_from_before_an_ask_brings_nothing_back() {
        let holdings = asked(100);
        let before = holdings.begin_commit();
        let mark = holdings.begin_ask(0, 10);
        assert_eq!(limit(&holdings), 10, "given up before the NSD hears of it");
        let during = holdings.begin_commit();
        holdings.learn(SLOT, mark, granted(10));
        holdings.end_ask();
        holdings.end_commit(SLOT, before, granted(100));
        assert_eq!(limit(&holdings), 10);
        holdings.end_commit(SLOT, during, granted(100));
        assert_eq!(limit(&holdings), 10);
        holdings.end_commit(SLOT, holdings.begin_commit(), granted(20));
        assert_eq!(limit(&holdings), 20, "a commit after the ask counts");
    }

    #[test]
    fn the_fullest_nsd_decides_and_one_that_never_answered_grants_nothing() {
        let holdings = Holdings::new(2, 1);
        let mark = holdings.begin_ask(0, 0);
        holdings.learn(SLOT, mark, granted(50));
        holdings.end_ask();
        assert_eq!(holdings.view([SLOT, SlotIndex(1)].into_iter()).limit, 0);
        assert_eq!(holdings.view([SLOT].into_iter()).limit, 50);
        assert_eq!(holdings.view(std::iter::empty()).limit, 0);
    }
}
