//! How likely a stripe has lost too many strips, by the rule of Strake's placement.
//!
//! Over G failure groups of m disks each, the placement gives every stripe of width w
//! ⌊w / G⌋ strips of each group, and one more of w mod G groups. It takes these groups, and the
//! disks within a group, at random. So the lost strips of a group follow the hypergeometric
//! distribution, and the groups are added up one after the other. A test holds this against the
//! stripes that `strake_stripe::Placement` makes. Groups of unequal size have other rules; they are
//! not here.

/// Failure groups of equal size, and the width of a stripe over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub groups: usize,
    /// Disks of each group.
    pub members: usize,
    pub width: usize,
}

impl Spread {
    /// The probability that a stripe has more than `tolerates` of its strips on lost disks. `lost`
    /// counts them in each group that has any.
    pub fn too_many(&self, lost: &[usize], tolerates: usize) -> f64 {
        let (each, more) = (self.width / self.groups, self.width % self.groups);
        let top = tolerates + 1;
        // Groups with one more strip so far ▶ strips lost so far, the last for all beyond that.
        let mut ways = vec![vec![0.0; top + 1]; more + 1];
        ways[0][0] = 1.0;
        for gone in lost {
            let mut next = vec![vec![0.0; top + 1]; more + 1];
            for (larger, row) in ways.iter().enumerate() {
                for (strips, way) in row.iter().enumerate().filter(|(_, way)| **way > 0.0) {
                    for one_more in 0..=usize::from(larger < more) {
                        let taken = each + one_more;
                        for hit in 0..=taken.min(*gone) {
                            let share = self.hits(*gone, taken, hit);
                            next[larger + one_more][(strips + hit).min(top)] += way * share;
                        }
                    }
                }
            }
            ways = next;
        }
        let whole = self.groups - lost.len();
        let of_all = |larger: usize| choose(whole, more - larger) / choose(self.groups, more);
        ways.iter().enumerate().map(|(larger, row)| row[top] * of_all(larger)).sum()
    }

    /// The probability that `hit` of `taken` disks of a group are among the `gone`.
    fn hits(&self, gone: usize, taken: usize, hit: usize) -> f64 {
        choose(gone, hit) * choose(self.members - gone, taken - hit) / choose(self.members, taken)
    }
}

/// Ways to take `some` of `all`; none if there are fewer.
fn choose(all: usize, some: usize) -> f64 {
    if some > all {
        return 0.0;
    }
    (0..some).map(|index| (all - index) as f64 / (index + 1) as f64).product()
}

#[cfg(test)]
#[path = "spread_test.rs"]
mod spread_test;
