//! The ranges that caches are told to drop.

use super::*;
use strake_env::Rng;

#[test]
fn everything_but_what_is_spared_is_dropped() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let spared: Vec<Range<u64>> = (0..rng.below(5))
            .map(|_| {
                let from = rng.below(40);
                from..from + rng.below(10)
            })
            .collect();
        let gaps = gaps(&spared);
        assert!(
            gaps.iter().all(|gap| !gap.is_empty()),
            "seed {seed}: an empty range drops nothing"
        );
        for at in (0..60).chain([u64::MAX - 1]) {
            let is_spared = spared.iter().any(|range| range.contains(&at));
            let dropped = gaps.iter().filter(|gap| gap.contains(&at)).count();
            assert_eq!(dropped, usize::from(!is_spared), "seed {seed}, byte {at}");
        }
    }
}
