//! Which reads bring displaced units into memory. Pure.
//!
//! The units of one patch lie side by side on the disk, but far apart in the strip. So the reads
//! follow the order of the places, not of the units. Units that are close together are read at
//! once, with what lies between them. The units in between may belong to other strips, and nobody
//! looks at them.

use crate::extent::Extent;
use crate::record::Displaced;

/// Two units are read at once if at most this many units lie between them. To read these takes less
/// time than a second read.
const GAP_UNITS_MAX: u64 = 16;
/// One read has at most this many units: 512 KiB.
pub const GATHER_UNITS_MAX: u64 = 128;

/// One read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The units of the disk that are read.
    pub extent: Extent,
    /// The displaced units among them, in the order of their places.
    pub units: Vec<Displaced>,
}

impl Gather {
    /// True if the read brings nothing else, and the units follow one another in the strip too.
    pub fn is_run(&self) -> bool {
        self.units.windows(2).all(|pair| pair[0].is_continued_by(&pair[1]))
    }

    /// The parts of the read that are runs of units, each with its extent.
    pub fn runs(&self) -> impl Iterator<Item = (Extent, &[Displaced])> {
        self.units.chunk_by(Displaced::is_continued_by).map(|run| {
            let count = u32::try_from(run.len()).expect("invariant: at most GATHER_UNITS_MAX");
            (Extent { start: run[0].place, count }, run)
        })
    }
}

/// The reads that bring all of `units`, in the order of the places.
pub fn gather(units: &[Displaced]) -> Vec<Gather> {
    let mut sorted = units.to_vec();
    sorted.sort_unstable_by_key(|one| one.place);
    let mut reads: Vec<Gather> = Vec::new();
    for one in sorted {
        match reads.last_mut() {
            Some(Gather { extent, units })
                if one.place - extent.end() <= GAP_UNITS_MAX
                    && one.place - extent.start < GATHER_UNITS_MAX =>
            {
                extent.count = u32::try_from(one.place + 1 - extent.start)
                    .expect("invariant: at most GATHER_UNITS_MAX");
                units.push(one);
            }
            _ => reads.push(Gather { extent: one.extent(), units: vec![one] }),
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;

    #[test]
    fn every_unit_is_read_once_and_reads_neither_overlap_nor_grow_too_long() {
        for seed in strake_env::rng::test_seeds(1, 200) {
            let mut rng = Rng::new(seed);
            let spread = 1 + rng.below(60);
            let mut place = rng.below(1000);
            let mut units: Vec<Displaced> = (0..rng.below(500) as u32)
                .map(|unit| {
                    place += 1 + if rng.one_in(3) { rng.below(spread) } else { 0 };
                    Displaced { unit, place, checksum: unit }
                })
                .collect();
            // The order of the places is not that of the units.
            for at in (1..units.len()).rev() {
                let other = rng.index(at + 1);
                (units[at].place, units[other].place) = (units[other].place, units[at].place);
            }
            let reads = gather(&units);
            let mut found: Vec<Displaced> = Vec::new();
            let mut end = 0;
            for read in &reads {
                assert!(found.is_empty() || read.extent.start >= end, "seed {seed}");
                end = read.extent.end();
                assert!(u64::from(read.extent.count) <= GATHER_UNITS_MAX, "seed {seed}");
                let (first, last) = (read.units[0], read.units[read.units.len() - 1]);
                assert_eq!((first.place, last.place + 1), (read.extent.start, end), "seed {seed}");
                let runs: Vec<Displaced> = read.runs().flat_map(|(_, run)| run.to_vec()).collect();
                assert_eq!(runs, read.units, "seed {seed}");
                found.extend(&read.units);
            }
            found.sort_unstable_by_key(|one| one.unit);
            assert_eq!(found, units, "seed {seed}");
        }
    }

    #[test]
    fn a_patch_is_read_at_once_however_far_apart_its_units_are() {
        let units: Vec<_> = (0..100)
            .map(|at| Displaced { unit: 7 * at, place: 50 + u64::from(at), checksum: 0 })
            .collect();
        let reads = gather(&units);
        assert_eq!(reads.len(), 1);
        assert_eq!((reads[0].extent, reads[0].is_run()), (Extent { start: 50, count: 100 }, false));
        assert!(gather(&units[..1])[0].is_run());
    }
}
