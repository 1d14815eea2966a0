//! Asking the NSDs for space, and giving it back, for a mount beside others (decision 0038).
//!
//! - *At the start*, a mount asks for its floor and for some space ahead.
//! - *On a shortage*, a writer asks each NSD once ([`Room::claim`]). While writes go on, nothing
//!   else asks, because NSDs top up grants when they answer commits.
//! - *For a patch* that finds no room beside the floor, the sender asks. An overwrite claims
//!   nothing, so a mount that was idle and then only overwrites would send whole blocks for ever.
//! - *At each tick* ([`Room::tend`]), an idle mount gives back all that it does not need. A busy
//!   one does so while an NSD is short of space.
//!
//! A mount gives up its part of a grant before it says so. So no writer claims what is on its way
//! back.

use super::{Claim, Room, State};
use crate::nsds::is_nsd_fault;
use strake_env::sync::WatchedMutexGuard;
use strake_proto::nsd::{NsdReply, NsdRequest, SpaceAsk};

/// What was so at the last tick, and at the last ask. The thread that asks holds its lock.
#[derive(Default)]
pub(super) struct Asked {
    /// What the NSDs were last told that this mount needs.
    need: u64,
    /// What was sent, claimed and in flight.
    pulse: (u64, u64, u64),
    /// How often some NSD was found started anew.
    restarts: u64,
    /// How often in turn room for a patch was asked for in vain, and the bytes that must have been
    /// sent before it is asked for again.
    pub(super) in_vain: u32,
    to_patch: u64,
}

/// After asks in vain, at most so many doublings of a block are sent whole before the next one.
const IN_VAIN_MAX: u32 = 6;

/// How much to ask for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// What is needed, and some space ahead.
    Ahead,
    /// What is needed.
    Need,
    /// Nothing: the mount ends.
    Nothing,
}

impl Room {
    /// Beside others: brings `free` up to date with what the NSDs grant.
    pub(super) fn look(&self, state: &mut State) {
        let nsds = self.io.nsds();
        if let Some(holdings) = nsds.holdings() {
            let limit = holdings.view(nsds.slots_for_room()).limit;
            state.free = limit.saturating_sub(state.sent);
        }
    }

    /// Whether blocks may be overwritten without a claim. Beside others, a mount that came when all
    /// was granted may have no floor. Without a floor, nothing would be sure to find room.
    pub fn can_overwrite(&self) -> bool {
        let nsds = self.io.nsds();
        let Some(holdings) = nsds.holdings() else { return true };
        let reserve = self.state.lock().reserve;
        holdings.view(nsds.slots_for_room()).target_min >= reserve
    }

    /// What other mounts may give back soon, on the NSD where it is most. This is as of the last
    /// ask. 0 for a single mount.
    pub fn held_elsewhere(&self) -> u64 {
        let nsds = self.io.nsds();
        nsds.holdings().map_or(0, |holdings| holdings.view(nsds.slots_for_room()).elsewhere)
    }

    /// The lock of the thread that asks. `None` for a single mount.
    pub(super) fn begin_asking(&self) -> Option<WatchedMutexGuard<'_, Asked>> {
        self.io.nsds().holdings().map(|_| self.asked.lock())
    }

    /// Asks for what is needed once the claim `new` has taken the place of `old`, and for some
    /// space ahead.
    pub(super) fn ask_for(&self, asked: &mut Asked, old: Claim, new: Claim) {
        let extra = self.strips(new).bytes.saturating_sub(self.strips(old).bytes);
        self.ask(asked, extra, Want::Ahead);
    }

    /// Asks for room for a patch of so many bytes, and for some space ahead. False if that was in
    /// vain a short time ago: the block is sent whole then. After each further ask in vain, twice
    /// as many blocks are. The caller sets [`Asked::in_vain`] back when there is room.
    pub(super) fn ask_to_patch(&self, asked: &mut Asked, bytes: u64) -> bool {
        let (sent, strip) = {
            let state = self.state.lock();
            (state.sent, state.shared_strip)
        };
        if asked.in_vain > 0 && sent < asked.to_patch {
            return false;
        }
        asked.to_patch = sent.saturating_add(strip << asked.in_vain.min(IN_VAIN_MAX));
        asked.in_vain = asked.in_vain.saturating_add(1);
        self.ask(asked, bytes, Want::Ahead);
        true
    }

    /// Asks for some space ahead.
    pub(super) fn ask_ahead(&self) {
        if let Some(mut asked) = self.begin_asking() {
            self.ask(&mut asked, 0, Want::Ahead);
        }
    }

    fn ask(&self, asked: &mut Asked, extra: u64, want: Want) {
        let nsds = self.io.nsds();
        let Some(holdings) = nsds.holdings() else { return };
        let restarts = nsds.restarts();
        let (mark, floor, need) = {
            let state = self.state.lock();
            let (floor, need) = match want {
                Want::Nothing => (0, 0),
                Want::Need | Want::Ahead => (state.reserve, state.needed().saturating_add(extra)),
            };
            (holdings.begin_ask(state.sent, need), floor, need)
        };
        let ahead = if want == Want::Ahead { u64::MAX } else { 0 };
        let request = NsdRequest::GrantSpace(SpaceAsk { number: mark.number, floor, need, ahead });
        let mut have_all_answered = true;
        for slot in nsds.slots().filter(|slot| nsds.availability(*slot).writable()) {
            match nsds.call_current(slot, &request) {
                Ok(NsdReply::Granted { boot, space }) => {
                    holdings.learn(slot, mark, space);
                    nsds.saw_boot(slot, boot);
                }
                // Writes go on without an NSD that is away. Without this nobody would find out that
                // it is: no write is sent while it grants nothing.
                Err(error) if is_nsd_fault(error.kind()) => nsds.fail(slot),
                _ => have_all_answered = false,
            }
        }
        holdings.end_ask();
        asked.need = need;
        if have_all_answered {
            asked.restarts = restarts;
        }
    }

    /// Beside others: gives back what is not needed, and tells an NSD that was started anew what
    /// is. Called at each tick.
    pub fn tend(&self) {
        let nsds = self.io.nsds();
        let Some(holdings) = nsds.holdings() else { return };
        let Some(mut asked) = self.asked.try_lock() else { return };
        let (need, pulse) = {
            let state = self.state.lock();
            (state.needed(), (state.sent, state.claimed.bytes, state.flying))
        };
        let is_idle = asked.pulse == pulse;
        asked.pulse = pulse;
        let view = holdings.view(nsds.slots_for_room());
        let has_heard = holdings.take_heard();
        let was_restarted = asked.restarts != nsds.restarts();
        if is_idle || view.is_short {
            // Others wait for what is not needed, and no longer than until they hear what is.
            if view.target_max > need || asked.need != need || was_restarted {
                self.ask(&mut asked, 0, Want::Need);
            }
        } else if !has_heard || was_restarted {
            self.ask(&mut asked, 0, Want::Ahead);
        }
    }

    /// Gives back everything. Called when the mount has ended and writes no more.
    pub fn end(&self) {
        if let Some(mut asked) = self.begin_asking() {
            self.ask(&mut asked, 0, Want::Nothing);
        }
    }
}

impl State {
    /// What must be granted: all that is claimed or in flight, and the floor.
    fn needed(&self) -> u64 {
        self.claimed.bytes + self.flying + self.reserve
    }
}
