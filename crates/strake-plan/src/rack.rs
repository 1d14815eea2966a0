//! Which building blocks stand in which racks.
//!
//! A block stays whole, because its cables are short. Blocks of all tiers share racks: each goes
//! into the first rack with room, in the order of the tiers. Racks that look the same are one
//! `Run`, so that 100,000 blocks cost no more than ten. A block higher than a rack is cut; its
//! racks hold nothing else.

/// Racks that look the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// How many of them.
    pub(crate) racks: u64,
    /// Units that are left in each.
    pub(crate) free: u64,
    /// Tier and blocks in each; 0 blocks: a part of one that had to be cut.
    pub(crate) blocks: Vec<(usize, u64)>,
}

/// Puts `(height, count)` blocks of each tier into racks with `room` units.
pub(crate) fn pack(tiers: &[(u64, u64)], room: u64) -> Vec<Run> {
    let room = room.max(1);
    let mut runs: Vec<Run> = Vec::new();
    for (tier, (height, count)) in tiers.iter().copied().enumerate() {
        if height == 0 || count == 0 {
            continue;
        }
        if height > room {
            // Whole racks of units are the bound.
            let racks = (height * count).div_ceil(room);
            runs.push(Run { racks, free: 0, blocks: vec![(tier, 0)] });
            continue;
        }
        let mut left = count;
        let mut filled = Vec::new();
        for run in runs {
            left -= fill(run, tier, height, left, &mut filled);
        }
        runs = filled;
        if left > 0 {
            let fit = room / height;
            let new = Run { racks: left.div_ceil(fit), free: room, blocks: Vec::new() };
            fill(new, tier, height, left, &mut runs);
        }
    }
    runs
}

/// Fills the racks of a run with up to `left` blocks; says how many it took.
fn fill(run: Run, tier: usize, height: u64, left: u64, into: &mut Vec<Run>) -> u64 {
    let fit = run.free / height;
    let whole = left.checked_div(fit).unwrap_or(0).min(run.racks);
    let rest = if whole < run.racks && fit > 0 { (left - whole * fit).min(fit) } else { 0 };
    let mut push = |racks: u64, blocks: u64| {
        if racks == 0 {
            return;
        }
        let mut part = Run { racks, free: run.free - blocks * height, blocks: run.blocks.clone() };
        if blocks > 0 {
            part.blocks.push((tier, blocks));
        }
        into.push(part);
    };
    push(whole, fit);
    push(u64::from(rest > 0), rest);
    push(run.racks - whole - u64::from(rest > 0), 0);
    whole * fit + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The obvious way: one block after the other, one rack after the other.
    fn model(tiers: &[(u64, u64)], room: u64) -> Vec<(u64, Vec<(usize, u64)>)> {
        let mut racks: Vec<(u64, Vec<(usize, u64)>)> = Vec::new();
        for (tier, (height, count)) in tiers.iter().copied().enumerate() {
            for _ in 0..count {
                let index = racks.iter().position(|(free, _)| *free >= height);
                let index = index.unwrap_or_else(|| {
                    racks.push((room, Vec::new()));
                    racks.len() - 1
                });
                let (free, blocks) = &mut racks[index];
                *free -= height;
                match blocks.last_mut() {
                    Some((last, blocks)) if *last == tier => *blocks += 1,
                    _ => blocks.push((tier, 1)),
                }
            }
        }
        racks
    }

    #[test]
    fn runs_are_what_one_block_after_the_other_gives() {
        let mut rng = strake_env::Rng::new(7);
        for _ in 0..500 {
            let room = 10 + rng.below(40);
            let tiers: Vec<(u64, u64)> =
                (0..4).map(|_| (1 + rng.below(room), rng.below(30))).collect();
            let runs = pack(&tiers, room);
            let mut racks: Vec<(u64, Vec<(usize, u64)>)> = Vec::new();
            for run in runs {
                (0..run.racks).for_each(|_| racks.push((run.free, run.blocks.clone())));
            }
            assert_eq!(racks, model(&tiers, room), "{tiers:?} in {room}U");
        }
    }
}
