//! Grants of space in their most obvious form: all sums are made anew each time. The rules are
//! those of `strake-nsd/src/grants.rs`, in bytes.

use std::collections::BTreeMap;
use strake_proto::ClientId;
use strake_proto::nsd::{SpaceAsk, SpaceGrant};

#[derive(Clone, Copy, Default)]
struct Grant {
    number: u64,
    floor: u64,
    need: u64,
    target: u64,
    granted: u64,
}

impl Grant {
    fn lacking(&self) -> u64 {
        (self.target - self.granted).min(self.floor)
    }

    fn beyond_need(&self) -> u64 {
        self.granted.saturating_sub(self.need)
    }
}

/// See the file's head.
#[derive(Clone, Default)]
pub(crate) struct MemoryGrants(BTreeMap<ClientId, Grant>);

impl MemoryGrants {
    pub(crate) fn of(&self, client: ClientId) -> u64 {
        self.0.get(&client).map_or(0, |grant| grant.granted)
    }

    fn sum(&self, of: impl Fn(&Grant) -> u64) -> u64 {
        self.0.values().map(of).sum()
    }

    /// What anybody may grow into: what is free, less what is granted, what floors lack, a pool for
    /// the floors of those who come, and a margin.
    fn common(&self, free: u64, total: u64) -> u64 {
        let floor_max = self.0.values().map(|grant| grant.floor).max().unwrap_or(0);
        let pool = (total / 32).min(256 << 20).max(floor_max).min(total / 8);
        let kept = pool.saturating_sub(self.sum(|grant| grant.floor)) + (total / 64).min(1 << 20);
        let held = self.sum(|grant| grant.granted + grant.lacking());
        free.saturating_sub(held + kept)
    }

    pub(crate) fn ask(
        &mut self,
        client: ClientId,
        ask: &SpaceAsk,
        free: u64,
        total: u64,
    ) -> SpaceGrant {
        let before = self.0.get(&client).copied().unwrap_or_default();
        if ask.number > before.number {
            let (floor, number) = (ask.floor.min(ask.need).min(total / 8), ask.number);
            self.0.insert(client, Grant { number, floor, need: ask.need, ..before });
            let common = self.common(free, total);
            let wanted = ask.need.saturating_add(ask.ahead.min(common / 8));
            let spare = free.saturating_sub(self.sum(|grant| grant.granted));
            let grant = self.0.get_mut(&client).expect("just put there");
            let gift = wanted.saturating_sub(before.granted);
            let gift = gift.min(spare).min(before.lacking() + common);
            grant.granted = before.granted.min(wanted) + gift;
            grant.target = grant.granted.max(before.target.min(wanted));
            if (ask.floor, ask.need, ask.ahead) == (0, 0, 0) {
                self.0.remove(&client);
            }
        }
        self.answer(client, free, total)
    }

    pub(crate) fn top_up(&mut self, client: ClientId, free: u64, total: u64) -> SpaceGrant {
        let (common, spare) =
            (self.common(free, total), free - self.sum(|one| one.granted).min(free));
        if let Some(grant) = self.0.get_mut(&client) {
            let common = if common < total / 8 { 0 } else { common };
            let more = grant.target - grant.granted;
            grant.granted += more.min(spare).min(grant.lacking() + common);
        }
        self.answer(client, free, total)
    }

    fn answer(&self, client: ClientId, free: u64, total: u64) -> SpaceGrant {
        let grant = self.0.get(&client).copied().unwrap_or_default();
        SpaceGrant {
            granted: grant.granted,
            target: grant.target,
            is_short: self.common(free, total) < total / 8,
            elsewhere: self.sum(Grant::beyond_need) - grant.beyond_need(),
        }
    }

    pub(crate) fn may_take(&self, client: ClientId, bytes: u64, free: u64) -> bool {
        let grant = self.0.get(&client).copied().unwrap_or_default();
        let spare = free.saturating_sub(self.sum(|grant| grant.granted));
        let lacking = self.sum(Grant::lacking) - grant.lacking();
        bytes.saturating_sub(grant.granted) <= spare.saturating_sub(lacking)
    }

    pub(crate) fn take(&mut self, client: ClientId, bytes: u64) {
        if let Some(grant) = self.0.get_mut(&client) {
            grant.granted = grant.granted.saturating_sub(bytes);
        }
    }
}
