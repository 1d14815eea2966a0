//! Which slots hold the strips of a block. This is a pure function of layout, object and block. So
//! no block map is kept anywhere, and every client finds every strip without asking.
//!
//! **Shuffled round robin.** The stripes of an object are taken in *rows*. A row has a seed of its
//! own (layout version, object, row number) that puts all S slots of the layout on a *circle*: the
//! failure groups in random order, within each group its slots in random order. Stripe t of a row
//! takes, for position k of a code of width w, the slot at
//!
//! ```text
//! circle[(t + ⌊k·S/w⌋) mod S]            t = 0 .. S/g − 1,  g = gcd(S, w)
//! ```
//!
//! that is, w slots at even distances, turned on by one from stripe to stripe. A row has S/g
//! stripes and then the circle is shuffled anew. Since ⌊k·S/w⌋ is a balanced word, this gives at
//! once:
//!
//! 1. no stripe has a slot twice (the distance is at least 1 while S ≥ w);
//! 2. after t stripes of a row every slot has been used ⌊t·w/S⌋ or ⌈t·w/S⌉ times, after the whole
//!    row exactly w/g times: streams touch all disks evenly;
//! 3. a failure group of m slots lies on one arc, so each stripe takes ⌊m·w/S⌋ or ⌈m·w/S⌉ strips of
//!    it: as few as possible at the worst;
//! 4. the partners of a slot change with every row: all others, in the end (declustering), except
//!    that two slots of one failure group meet as seldom as rule 3 makes them.
//!
//! **Unequal failure groups.** Rule 3 alone would put more than P strips into a group that is
//! larger than P·S/w. The promise (a code survives the loss of a whole group) goes before
//! evenness: such a group is *capped*. It gives exactly L slots to every stripe, picked in the
//! same way from a circle of its own, and the rest of the stripe comes from the circle of all
//! other slots, as above. L is P, or the least limit above it for which enough slots exist at
//! all.
//!
//! **Deleted slots.** A slot that is deleted is substituted stripe by stripe. The substitute is the
//! member of the layout that holds no strip of the stripe, is not deleted, keeps the group limit if
//! any can, and has the highest hash of (object, block, slot) (rendezvous hashing). Deletions are
//! applied in the order in which they happened, so a later one moves only strips of its own slot.
//!
//! All of this decides where bytes are, and never changes: golden vectors in the test guard it.
//! Decision record 0004.

use crate::code::WIDTH_MAX;
use strake_proto::{
    BlockIndex, Code, Error, ErrorKind, LayoutMap, ObjectId, PoolMap, Result, SlotIndex,
};

/// A placement over at most this many slots needs no memory from the heap.
const STACK_SLOTS: usize = 128;

/// The slots of one stripe, by position. At most [`WIDTH_MAX`], inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StripeSlots {
    slots: [SlotIndex; WIDTH_MAX],
    width: u8,
}

impl std::ops::Deref for StripeSlots {
    type Target = [SlotIndex];
    fn deref(&self) -> &[SlotIndex] {
        &self.slots[..usize::from(self.width)]
    }
}

impl std::fmt::Debug for StripeSlots {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.iter().map(|slot| slot.0)).finish()
    }
}

/// Slots of one failure group: a range of [`Placement::members`].
#[derive(Clone, Copy, Debug)]
struct Group {
    start: usize,
    count: usize,
}

/// Placement over the members of one layout version with one code; made once, asked often.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Slot and failure group, ordered by group and then slot: the order given does not matter.
    members: Vec<(SlotIndex, u32)>,
    /// Groups that share the common circle.
    open: Vec<Group>,
    /// Groups that give exactly `group_limit` slots to every stripe.
    capped: Vec<Group>,
    /// Slots on the common circle: S.
    open_slots: usize,
    /// Positions taken from the common circle: w. At least 1.
    open_width: usize,
    /// Stripes between two shuffles.
    row_stripes: u64,
    /// Most strips of one failure group in a stripe: L.
    group_limit: usize,
    width: usize,
    seed: u64,
}

impl Placement {
    /// Prepares placement over the members of `layout`.
    ///
    /// # Errors
    /// `Invalid` if the layout has fewer members than the code is wide, or one of them twice.
    pub fn new(layout: &LayoutMap, code: Code) -> Result<Placement> {
        let (have, width) = (layout.members.len(), code.width());
        if have < width {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "code {code} needs {width} NSDs and there are {have}: add NSDs or choose a narrower code"
                ),
            ));
        }
        let mut members = layout.members.clone();
        members.sort_by_key(|(slot, _)| *slot);
        if let Some(pair) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let detail = format!("layout {} names slot {} twice", layout.version, pair[0].0);
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        members.sort_by_key(|(slot, group)| (*group, *slot));
        let groups = groups_of(&members);
        let group_limit = group_limit(&groups, code);
        let (capped, open) = cap(groups, width, group_limit);
        let open_slots = open.iter().map(|group| group.count).sum();
        let open_width = width - capped.len() * group_limit;
        assert!((1..=open_slots).contains(&open_width), "the limit leaves room for the rest");
        Ok(Placement {
            row_stripes: (open_slots / common_divisor(open_slots, open_width)) as u64,
            members,
            open,
            capped,
            open_slots,
            open_width,
            group_limit,
            width,
            seed: mix(u64::from(layout.version.0)),
        })
    }

    /// The slots of block `block` of `object`: position in the code ▶ slot. All different.
    /// Positions that a short block does not store have a slot as well.
    pub fn stripe(&self, object: ObjectId, block: BlockIndex) -> StripeSlots {
        if self.members.len() <= STACK_SLOTS {
            let (mut order, mut circle) = ([0; STACK_SLOTS], [SlotIndex(0); STACK_SLOTS]);
            self.fill(object, block, &mut order, &mut circle)
        } else {
            let mut order = vec![0; self.open.len()];
            let mut circle = vec![SlotIndex(0); self.members.len()];
            self.fill(object, block, &mut order, &mut circle)
        }
    }

    /// Most strips of one failure group that a stripe has before any substitution: P (at least 1),
    /// or more where the failure groups do not allow it.
    pub fn group_limit(&self) -> usize {
        self.group_limit
    }

    /// [`Placement::stripe`] with working memory for every open group and every slot.
    fn fill(
        &self,
        object: ObjectId,
        block: BlockIndex,
        order: &mut [u16],
        circle: &mut [SlotIndex],
    ) -> StripeSlots {
        let (row, turn) = (block.0 / self.row_stripes, (block.0 % self.row_stripes) as usize);
        let mut draw = Draw::new(mix(mix(self.seed ^ object.0) ^ row));
        let mut picked = [SlotIndex(0); WIDTH_MAX];

        let common = &mut circle[..self.open_slots];
        self.shuffle_open(&mut draw, order, common);
        pick(common, turn, &mut picked[..self.open_width]);
        let mut count = self.open_width;
        for group in &self.capped {
            let own = &mut circle[..group.count];
            self.shuffle_group(*group, &mut draw, own);
            pick(own, turn, &mut picked[count..count + self.group_limit]);
            count += self.group_limit;
        }
        assert_eq!(count, self.width, "every position has a slot");
        if !self.capped.is_empty() {
            // Capped groups stand last; turning the positions gives every slot its share of data
            // and parity.
            let shift = (draw.below(self.width) + turn) % self.width;
            picked[..self.width].rotate_left(shift);
        }
        StripeSlots { slots: picked, width: self.width as u8 }
    }

    /// Puts the slots of all open groups on their circle.
    fn shuffle_open(&self, draw: &mut Draw, order: &mut [u16], circle: &mut [SlotIndex]) {
        if self.open.len() == self.open_slots {
            // The usual case, a failure group per slot, needs no detour; the result is the same.
            for (slot, group) in circle.iter_mut().zip(&self.open) {
                *slot = self.members[group.start].0;
            }
            draw.shuffle(circle);
            return;
        }
        let order = &mut order[..self.open.len()];
        for (at, group) in order.iter_mut().enumerate() {
            *group = at as u16;
        }
        draw.shuffle(order);
        let mut filled = 0;
        for group in order.iter().map(|at| self.open[usize::from(*at)]) {
            self.shuffle_group(group, draw, &mut circle[filled..filled + group.count]);
            filled += group.count;
        }
    }

    /// Writes the slots of `group` into `out` in random order.
    fn shuffle_group(&self, group: Group, draw: &mut Draw, out: &mut [SlotIndex]) {
        let members = &self.members[group.start..group.start + group.count];
        for (slot, (member, _)) in out.iter_mut().zip(members) {
            *slot = *member;
        }
        draw.shuffle(out);
    }

    /// Replaces the deleted slots, in the order in which they were deleted, by others of the same
    /// layout that hold no strip of this stripe. Only strips of deleted slots move. With no
    /// candidate left the position keeps its deleted slot: the stripe stays degraded there.
    pub fn substitute(
        &self,
        object: ObjectId,
        block: BlockIndex,
        stripe: &mut StripeSlots,
        deleted: &[SlotIndex],
    ) {
        for (done, gone) in deleted.iter().enumerate() {
            let Some(at) = stripe.iter().position(|slot| slot == gone) else { continue };
            let gone_so_far = &deleted[..=done];
            let seed = mix(mix(self.seed ^ object.0) ^ block.0);
            let candidates = self
                .members
                .iter()
                .filter(|(slot, _)| !stripe.contains(slot) && !gone_so_far.contains(slot));
            // Most important is that the group limit is kept, then the highest hash.
            let best = candidates.max_by_key(|(slot, group)| {
                let load = self.group_load(stripe, gone_so_far, *group);
                let excess = (load + 1).saturating_sub(self.group_limit);
                (std::cmp::Reverse(excess), mix(seed ^ mix(u64::from(slot.0))), *slot)
            });
            if let Some((slot, _)) = best {
                stripe.slots[at] = *slot;
            }
        }
    }

    /// Whether [`Placement::substitute`] finds a place for every strip of these slots, and none
    /// that breaks the group limit. A stripe whose other strips keep the limit uses less of some
    /// group than the group has room for, if all groups together have room for a stripe.
    pub fn can_delete(&self, deleted: &[SlotIndex]) -> bool {
        let left: Vec<(SlotIndex, u32)> =
            self.members.iter().filter(|(slot, _)| !deleted.contains(slot)).copied().collect();
        let groups = groups_of(&left);
        let room: usize = groups.iter().map(|group| group.count.min(self.group_limit)).sum();
        room >= self.width
    }

    /// Whether a slot is a member of the layout.
    pub fn has(&self, slot: SlotIndex) -> bool {
        self.members.iter().any(|(member, _)| *member == slot)
    }

    /// How many strips of the stripe are in failure group `group`, without those of deleted slots.
    fn group_load(&self, stripe: &StripeSlots, deleted: &[SlotIndex], group: u32) -> usize {
        let in_group = |slot: &&SlotIndex| self.members.contains(&(**slot, group));
        stripe.iter().filter(|slot| !deleted.contains(slot)).filter(in_group).count()
    }
}

/// The most strips that a stripe can have on these slots, whatever layout of the pool its object
/// has. A failure group counts for no more than the limit that placement keeps. So a machine with
/// many disks counts as its group, and not as so many losses.
pub fn strips_at_most(pool: &PoolMap, code: Code, slots: &[SlotIndex]) -> usize {
    let deleted = pool.deleted();
    let of_layout = |layout: &LayoutMap| {
        let is_meant = |(slot, _): &&(SlotIndex, u32)| slots.contains(slot);
        let mut groups: Vec<u32> =
            layout.members.iter().filter(is_meant).map(|(_, group)| *group).collect();
        groups.sort_unstable();
        // Strips of deleted slots may lie closer together than placement would put them.
        let placement = Placement::new(layout, code).ok();
        let placement = placement.filter(|placement| placement.can_delete(&deleted));
        let limit = placement.map_or(usize::MAX, |placement| placement.group_limit);
        groups.chunk_by(|one, other| one == other).map(|group| group.len().min(limit)).sum()
    };
    pool.layouts.iter().map(of_layout).max().unwrap_or(slots.len())
}

/// Runs of one failure group in members ordered by group.
fn groups_of(members: &[(SlotIndex, u32)]) -> Vec<Group> {
    let mut start = 0;
    let runs = members.chunk_by(|left, right| left.1 == right.1);
    runs.map(|run| {
        let group = Group { start, count: run.len() };
        start += run.len();
        group
    })
    .collect()
}

/// The least limit from P on for which the groups have enough slots.
fn group_limit(groups: &[Group], code: Code) -> usize {
    let room = |limit: usize| groups.iter().map(|group| group.count.min(limit)).sum::<usize>();
    let mut limit = usize::from(code.parity).max(1);
    while room(limit) < code.width() {
        limit += 1;
    }
    limit
}

/// Splits the groups into those whose even share of a stripe is above `limit`, and the others.
/// Capping one raises the share of the others, hence the loop.
fn cap(groups: Vec<Group>, width: usize, limit: usize) -> (Vec<Group>, Vec<Group>) {
    let (mut capped, mut open): (Vec<Group>, Vec<Group>) = (Vec::new(), groups);
    loop {
        let slots: usize = open.iter().map(|group| group.count).sum();
        let share = width - capped.len() * limit;
        let (over, rest): (Vec<Group>, Vec<Group>) =
            open.into_iter().partition(|group| group.count * share > limit * slots);
        open = rest;
        if over.is_empty() {
            return (capped, open);
        }
        capped.extend(over);
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on all.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Slots at even distances on the circle, turned on by `turn`.
fn pick(circle: &[SlotIndex], turn: usize, out: &mut [SlotIndex]) {
    let (slots, width) = (circle.len(), out.len());
    for (k, slot) in out.iter_mut().enumerate() {
        *slot = circle[(turn + k * slots / width) % slots];
    }
}

/// SplitMix64 from a seed, each output used as two halves of 32 bits, the lower first.
struct Draw {
    state: u64,
    upper: Option<u32>,
}

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw { state: seed, upper: None }
    }

    /// Uniform in `0..bound` up to a bias of `bound`/2³², of no weight for up to 65,536 slots.
    fn below(&mut self, bound: usize) -> usize {
        let half = self.upper.take().unwrap_or_else(|| {
            let value = mix(self.state);
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            self.upper = Some((value >> 32) as u32);
            value as u32
        });
        ((u64::from(half) * bound as u64) >> 32) as usize
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
#[path = "placement_test.rs"]
mod placement_test;
