//! The rule against the stripes that the placement makes.

use super::*;
use strake_env::Rng;
use strake_proto::{BlockIndex, Code, LayoutMap, LayoutVersion, ObjectId, SlotIndex};
use strake_stripe::Placement;

const STRIPES: u64 = 20_000;

fn placement(groups: usize, members: usize, code: &str) -> Placement {
    let member = |disk: usize| (SlotIndex(disk as u16), (disk / members) as u32);
    let members = (0..groups * members).map(member).collect();
    let code: Code = code.parse().unwrap();
    Placement::new(&LayoutMap { version: LayoutVersion(1), members }, code).unwrap()
}

#[test]
fn stripes_of_the_placement_lose_as_often_as_the_rule_says() {
    let mut rng = Rng::new(11);
    let mut seen_some = 0;
    // Fewer strips than groups, more of them, as many, one disk a group, and one group.
    for (groups, members, code, width, tolerates) in [
        (8, 6, "4+2p", 6, 2),
        (4, 6, "4+2p", 6, 2),
        (3, 8, "8+3p", 11, 3),
        (6, 3, "4+2p", 6, 2),
        (5, 4, "8+3p", 11, 3),
        (20, 1, "4+2p", 6, 2),
        (1, 12, "4+2p", 6, 2),
        (9, 3, "3x", 3, 2),
    ] {
        let spread = Spread { groups, members, width };
        let placement = placement(groups, members, code);
        for round in 0..6 {
            let mut disks: Vec<usize> = (0..groups * members).collect();
            rng.shuffle(&mut disks);
            disks.truncate(tolerates + 1 + round);
            let mut lost = vec![0; groups];
            disks.iter().for_each(|disk| lost[disk / members] += 1);
            lost.retain(|count| *count > 0);
            let found = (0..STRIPES)
                .filter(|object| {
                    // Objects of their own have circles of their own, so stripes are independent.
                    let block = BlockIndex(rng.next_u64() % 1000);
                    let stripe = placement.stripe(ObjectId(1 + object), block);
                    let on_lost = |slot: &&SlotIndex| disks.contains(&usize::from(slot.0));
                    stripe.iter().filter(on_lost).count() > tolerates
                })
                .count() as f64
                / STRIPES as f64;
            let rule = spread.too_many(&lost, tolerates);
            let error = (rule * (1.0 - rule) / STRIPES as f64).sqrt();
            assert!(
                (found - rule).abs() <= 5.0 * error + 1e-12,
                "{code} on {groups} groups of {members}, lost {lost:?}: {found} is not {rule}"
            );
            seen_some += usize::from(found > 10.0 * error);
        }
    }
    assert!(seen_some > 20, "losses were seen in {seen_some} rounds");
}

#[test]
fn what_cannot_be_lost_is_never_lost() {
    let spread = Spread { groups: 8, members: 24, width: 6 };
    assert_eq!(spread.too_many(&[24, 24], 2), 0.0);
    assert_eq!(spread.too_many(&[], 2), 0.0);
    // All of three servers: three of eight are in a stripe of six with probability 20 in 56.
    let three = spread.too_many(&[24, 24, 24], 2);
    assert!((three - 20.0 / 56.0).abs() < 1e-12, "{three}");
}
