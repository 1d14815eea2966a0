//! The promises of placement, each on many layouts; golden vectors at the end.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use strake_proto::layout::NsdStatus;
use strake_proto::{LayoutVersion, NsdId};

/// A layout with one group per entry of `sizes`, slots dealt out in turn.
fn layout(sizes: &[usize]) -> LayoutMap {
    let mut members: Vec<(SlotIndex, u32)> = Vec::new();
    for round in 0..*sizes.iter().max().expect("a group") {
        for (group, size) in sizes.iter().enumerate() {
            if round < *size {
                members.push((SlotIndex(members.len() as u16), group as u32 + 100));
            }
        }
    }
    LayoutMap { version: LayoutVersion(1), members }
}

fn code(name: &str) -> Code {
    name.parse().expect("a code")
}

fn strips_per_group(layout: &LayoutMap, stripe: &[SlotIndex]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for slot in stripe {
        let (_, group) = layout.members.iter().find(|member| member.0 == *slot).expect("a member");
        *counts.entry(*group).or_insert(0) += 1;
    }
    counts
}

/// Layouts of all sorts for a code, by a seeded draw: equal groups, single slots, a giant, odd
/// ones.
fn layouts(width: usize, seed: u64) -> Vec<LayoutMap> {
    let mut draw = Draw::new(seed);
    let mut all = vec![layout(&vec![1; width]), layout(&vec![1; width + 1]), layout(&[3; 12])];
    while all.len() < 60 {
        let sizes: Vec<usize> =
            (0..1 + draw.below(14)).map(|_| 1 + draw.below(3) * draw.below(5)).collect();
        if sizes.iter().sum::<usize>() >= width {
            all.push(layout(&sizes));
        }
    }
    all
}

#[test]
fn no_stripe_has_a_slot_twice_and_the_failure_group_rule_holds_wherever_it_can() {
    for (name, code) in Code::ALL {
        for layout in layouts(code.width(), 11) {
            let placement = Placement::new(&layout, code).expect("wide enough");
            let groups: Vec<usize> = {
                let mut sizes = BTreeMap::new();
                for (_, group) in &layout.members {
                    *sizes.entry(group).or_insert(0usize) += 1;
                }
                sizes.into_values().collect()
            };
            let limit = (usize::from(code.parity).max(1)..)
                .find(|limit| {
                    groups.iter().map(|size| size.min(limit)).sum::<usize>() >= code.width()
                })
                .expect("large enough limits work");
            assert_eq!(placement.group_limit(), limit);
            for block in 0..200 {
                let stripe = placement.stripe(ObjectId(block / 20), BlockIndex(block * 3));
                let distinct: BTreeSet<_> = stripe.iter().collect();
                assert_eq!((distinct.len(), stripe.len()), (code.width(), code.width()), "{name}");
                let most = strips_per_group(&layout, &stripe).into_values().max();
                assert!(
                    most <= Some(limit),
                    "{name} {groups:?}: {most:?} of {limit} in {stripe:?}"
                );
            }
        }
    }
}

#[test]
fn every_prefix_of_a_row_uses_all_slots_evenly() {
    for (name, code) in Code::ALL {
        for count in code.width()..40 {
            let placement = Placement::new(&layout(&vec![1; count]), code).expect("wide enough");
            let rows = placement.row_stripes;
            let mut uses = vec![0u64; count];
            for block in 0..rows {
                for slot in placement.stripe(ObjectId(5), BlockIndex(7 * rows + block)).iter() {
                    uses[usize::from(slot.0)] += 1;
                }
                let strips = (block + 1) * code.width() as u64;
                let (low, high) = (strips / count as u64, strips.div_ceil(count as u64));
                assert!(
                    uses.iter().all(|uses| (low..=high).contains(uses)),
                    "{name} over {count} after {block}: {uses:?}"
                );
            }
            assert!(uses.iter().all(|count| *count == uses[0]), "{name} over {count}: {uses:?}");
        }
    }
}

#[test]
fn equal_failure_groups_share_each_stripe_evenly() {
    let layout = layout(&[5; 4]);
    let placement = Placement::new(&layout, code("4+2p")).expect("wide enough");
    for block in 0..500 {
        let stripe = placement.stripe(ObjectId(9), BlockIndex(block));
        let counts = strips_per_group(&layout, &stripe);
        assert_eq!(counts.len(), 4);
        assert!(counts.values().all(|count| (1..=2).contains(count)), "{counts:?}");
    }
}

#[test]
fn a_giant_group_is_capped_and_its_slots_share_the_load() {
    // Ten slots in one group, five alone: 4+2p may take only two of the ten.
    let layout = layout(&[10, 1, 1, 1, 1, 1]);
    let placement = Placement::new(&layout, code("4+2p")).expect("wide enough");
    let mut uses = BTreeMap::new();
    let stripes = 6000;
    for block in 0..stripes {
        let stripe = placement.stripe(ObjectId(block % 7), BlockIndex(block));
        assert_eq!(strips_per_group(&layout, &stripe)[&100], 2);
        for (position, slot) in stripe.iter().enumerate() {
            *uses.entry((*slot, position)).or_insert(0u64) += 1;
        }
    }
    let mut pairs = BTreeSet::new();
    for block in 0..stripes {
        let stripe = placement.stripe(ObjectId(1), BlockIndex(block));
        let giant = |slot: &&SlotIndex| layout.members.contains(&(**slot, 100));
        pairs.insert(stripe.iter().filter(giant).copied().collect::<BTreeSet<SlotIndex>>());
    }
    assert!(pairs.len() == 45, "two slots of the giant meet in every combination");
    for (slot, group) in &layout.members {
        let share = if *group == 100 { 2.0 / 10.0 } else { 4.0 / 5.0 };
        for position in 0..6 {
            let expected = stripes as f64 * share / 6.0;
            let got = uses.get(&(*slot, position)).copied().unwrap_or(0) as f64;
            assert!((got / expected - 1.0).abs() < 0.25, "slot {slot} position {position}: {got}");
        }
    }
}

#[test]
fn all_slots_are_partners_of_each_other_and_take_all_positions() {
    for (count, code) in
        [(8, code("4+2p")), (12, code("4+2p")), (24, code("8+3p")), (7, code("3x"))]
    {
        let placement = Placement::new(&layout(&vec![1; count]), code).expect("wide enough");
        let (stripes, width) = (20_000u64, code.width());
        let mut together = BTreeMap::new();
        let mut positions = BTreeMap::new();
        for block in 0..stripes {
            let stripe = placement.stripe(ObjectId(block % 3), BlockIndex(block));
            for (at, slot) in stripe.iter().enumerate() {
                *positions.entry((slot.0, at)).or_insert(0u64) += 1;
                for other in &stripe[..at] {
                    *together.entry((slot.0.min(other.0), slot.0.max(other.0))).or_insert(0u64) +=
                        1;
                }
            }
        }
        assert_eq!(together.len(), count * (count - 1) / 2, "every pair meets");
        let even =
            |uses: &u64, all: usize, total: f64| (*uses as f64 * all as f64 / total - 1.0).abs();
        let pairs = stripes as f64 * (width * (width - 1) / 2) as f64;
        for (pair, uses) in &together {
            assert!(even(uses, together.len(), pairs) < 0.2, "{count} {code} {pair:?}: {uses}");
        }
        for (at, uses) in &positions {
            let total = stripes as f64 * width as f64;
            assert!(even(uses, count * width, total) < 0.2, "{count} {code} {at:?}: {uses}");
        }
    }
}

#[test]
fn first_blocks_of_many_small_files_spread_evenly() {
    // A small file has one short block: its data lies in position 0.
    let placement = Placement::new(&layout(&[1; 10]), code("4+2p")).expect("wide enough");
    let mut uses = [0u64; 10];
    for object in 0..20_000 {
        uses[usize::from(placement.stripe(ObjectId(object), BlockIndex(0))[0].0)] += 1;
    }
    assert!(uses.iter().all(|uses| (1800..2200).contains(uses)), "{uses:?}");
}

#[test]
fn only_strips_of_deleted_slots_move() {
    for (name, code) in Code::ALL {
        for (round, layout) in layouts(code.width(), 23).into_iter().enumerate() {
            let placement = Placement::new(&layout, code).expect("wide enough");
            let mut draw = Draw::new(round as u64);
            let mut deleted: Vec<SlotIndex> =
                layout.members.iter().map(|member| member.0).collect();
            draw.shuffle(&mut deleted);
            deleted.truncate(6);
            for block in (0..40).map(BlockIndex) {
                let object = ObjectId(round as u64);
                let original = placement.stripe(object, block);
                let mut before = original;
                for count in 1..=deleted.len() {
                    let mut after = original;
                    placement.substitute(object, block, &mut after, &deleted[..count]);
                    let distinct: BTreeSet<_> = after.iter().collect();
                    assert_eq!(distinct.len(), code.width(), "{name}: {after:?}");
                    for (old, new) in before.iter().zip(after.iter()) {
                        assert!(
                            old == new || *old == deleted[count - 1],
                            "{name}: {before:?} {after:?}"
                        );
                        let room = layout.members.iter().any(|(slot, _)| {
                            !before.contains(slot) && !deleted[..count].contains(slot)
                        });
                        assert!(
                            !room || *new != deleted[count - 1],
                            "{name}: a deleted slot was left"
                        );
                    }
                    before = after;
                }
            }
        }
    }
}

#[test]
fn where_slots_can_be_deleted_every_strip_has_a_place_and_the_group_rule_holds() {
    let (mut can, mut cannot) = (0, 0);
    for (name, code) in Code::ALL {
        for (round, layout) in layouts(code.width(), 31).into_iter().enumerate() {
            let placement = Placement::new(&layout, code).expect("wide enough");
            let mut draw = Draw::new(round as u64);
            let mut deleted: Vec<SlotIndex> =
                layout.members.iter().map(|member| member.0).collect();
            draw.shuffle(&mut deleted);
            deleted.truncate(1 + draw.below(4));
            if !placement.can_delete(&deleted) {
                cannot += 1;
                continue;
            }
            can += 1;
            for block in (0..30).map(BlockIndex) {
                let object = ObjectId(round as u64);
                let mut stripe = placement.stripe(object, block);
                placement.substitute(object, block, &mut stripe, &deleted);
                let distinct: BTreeSet<_> = stripe.iter().collect();
                assert_eq!(distinct.len(), code.width(), "{name}: {stripe:?}");
                assert!(stripe.iter().all(|slot| !deleted.contains(slot)), "{name}: {stripe:?}");
                let most = strips_per_group(&layout, &stripe).into_values().max();
                assert!(most <= Some(placement.group_limit()), "{name} {deleted:?}: {stripe:?}");
            }
        }
    }
    assert!(can > 100 && cannot > 20, "both are met: {can} and {cannot}");
}

/// No stripe has more strips on some slots than is said, and it is said of a whole failure group
/// what its limit is.
#[test]
fn slots_have_no_more_strips_of_a_stripe_than_is_said() {
    let (mut exact, mut less) = (0, 0);
    for (name, code) in Code::ALL {
        for (round, layout) in layouts(code.width(), 53).into_iter().enumerate() {
            let mut draw = Draw::new(round as u64);
            let mut pool = PoolMap::new(
                layout.members.iter().map(|(slot, group)| (NsdId(u32::from(slot.0) + 1), *group)),
            );
            let mut slots: Vec<SlotIndex> = layout.members.iter().map(|it| it.0).collect();
            draw.shuffle(&mut slots);
            let deleted = slots.split_off(slots.len() - draw.below(3).min(slots.len() - 1));
            for (order, slot) in (0..).zip(&deleted) {
                pool.slots[usize::from(slot.0)].state.status = NsdStatus::Deleted { order };
            }
            let placement = Placement::new(&layout, code).expect("wide enough");
            let group = layout.members[draw.below(layout.members.len())].1;
            let whole: Vec<SlotIndex> =
                layout.members.iter().filter(|it| it.1 == group).map(|it| it.0).collect();
            slots.truncate(1 + draw.below(5));
            for away in [&slots, &whole] {
                let said = strips_at_most(&pool, code, away);
                assert!(said <= away.len());
                let mut most = 0;
                for block in (0..60).map(BlockIndex) {
                    let mut stripe = placement.stripe(ObjectId(7), block);
                    placement.substitute(ObjectId(7), block, &mut stripe, &deleted);
                    most = most.max(stripe.iter().filter(|slot| away.contains(slot)).count());
                }
                assert!(most <= said, "{name} {layout:?} {deleted:?} {away:?}: {most} of {said}");
                *(if most == said { &mut exact } else { &mut less }) += 1;
            }
            if placement.can_delete(&deleted) {
                let limit = placement.group_limit().min(whole.len());
                assert_eq!(strips_at_most(&pool, code, &whole), limit, "{name} {layout:?}");
            }
        }
    }
    assert!(exact > less, "it says little: {exact} are reached, {less} are not");
}

#[test]
fn substitutes_keep_the_failure_group_rule_while_they_can_and_share_the_load() {
    let layout = layout(&[4; 5]);
    let placement = Placement::new(&layout, code("4+2p")).expect("wide enough");
    let deleted = [SlotIndex(3)];
    let mut heirs = BTreeMap::new();
    for block in (0..20_000).map(BlockIndex) {
        let mut stripe = placement.stripe(ObjectId(1), block);
        let Some(at) = stripe.iter().position(|slot| *slot == deleted[0]) else { continue };
        placement.substitute(ObjectId(1), block, &mut stripe, &deleted);
        assert!(strips_per_group(&layout, &stripe).into_values().all(|count| count <= 2));
        *heirs.entry(stripe[at].0).or_insert(0u64) += 1;
    }
    // The deleted slot had 6000 strips. The other 19 slots take some each, none twice the mean.
    assert_eq!(heirs.len(), 19);
    assert!(heirs.values().all(|count| (100..640).contains(count)), "{heirs:?}");
}

#[test]
fn the_order_of_members_does_not_matter_and_bad_layouts_are_refused() {
    let mut shuffled = layout(&[3, 2, 4, 1]);
    let straight = Placement::new(&shuffled, code("4+2p")).expect("wide enough");
    Draw::new(4).shuffle(&mut shuffled.members);
    let other = Placement::new(&shuffled, code("4+2p")).expect("wide enough");
    for block in (0..100).map(BlockIndex) {
        assert_eq!(straight.stripe(ObjectId(1), block), other.stripe(ObjectId(1), block));
    }
    let narrow = Placement::new(&shuffled, code("8+3p")).expect_err("ten slots for eleven strips");
    assert!(narrow.to_string().contains("add NSDs"));
    shuffled.members[1].0 = shuffled.members[0].0;
    assert!(Placement::new(&shuffled, code("4+2p")).is_err());
}

#[test]
fn large_pools_work_and_the_last_block_has_a_place() {
    let placement = Placement::new(&layout(&[1; 1000]), code("8+3p")).expect("wide enough");
    let stripe = placement.stripe(ObjectId(u64::MAX), BlockIndex(u64::MAX));
    assert_eq!(stripe.iter().collect::<BTreeSet<_>>().len(), 11);
}

#[test]
fn golden_vectors() {
    let place = |sizes: &[usize], name, object, block| {
        let placement = Placement::new(&layout(sizes), code(name)).expect("wide enough");
        let mut stripe = placement.stripe(ObjectId(object), BlockIndex(block));
        let whole: Vec<u16> = stripe.iter().map(|slot| slot.0).collect();
        placement.substitute(
            ObjectId(object),
            BlockIndex(block),
            &mut stripe,
            &[SlotIndex(whole[0])],
        );
        (whole, stripe[0].0)
    };
    let mut got = Vec::new();
    for (sizes, name) in [
        (&[1; 6][..], "4+2p"),
        (&[1; 7][..], "4+2p"),
        (&[2; 12][..], "8+3p"),
        (&[10, 1, 1, 1, 1, 1][..], "4+2p"),
        (&[1; 4][..], "2x"),
        (&[1; 200][..], "4+1p"),
    ] {
        for (object, block) in [(1, 0), (1, 1), (0x1234_5678_9abc, 99)] {
            got.push(place(sizes, name, object, block));
        }
    }
    let expected: Vec<(Vec<u16>, u16)> = vec![
        (vec![4, 2, 1, 0, 5, 3], 4),
        (vec![2, 0, 4, 5, 1, 3], 2),
        (vec![0, 2, 1, 4, 5, 3], 0),
        (vec![5, 6, 1, 2, 0, 4], 3),
        (vec![6, 1, 2, 0, 4, 3], 5),
        (vec![6, 2, 3, 0, 5, 1], 4),
        (vec![13, 11, 3, 16, 2, 9, 19, 22, 5, 12, 20], 4),
        (vec![1, 23, 15, 4, 14, 21, 10, 17, 0, 8, 6], 7),
        (vec![23, 15, 17, 21, 0, 19, 16, 6, 14, 1, 10], 3),
        (vec![7, 13, 5, 2, 1, 4], 0),
        (vec![9, 2, 1, 4, 3, 6], 7),
        (vec![10, 0, 5, 3, 1, 4], 12),
        (vec![1, 3], 0),
        (vec![0, 2], 1),
        (vec![0, 2], 3),
        (vec![16, 128, 9, 153, 35], 104),
        (vec![83, 152, 80, 165, 58], 177),
        (vec![151, 6, 167, 199, 114], 91),
    ];
    assert_eq!(got, expected);
}
