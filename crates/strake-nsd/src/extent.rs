//! Extents: runs of 4 KiB units on a disk. Strips lie in them, and the allocator hands them out.

use strake_proto::limits::UNIT_BYTES;

/// A run of units, counted from the start of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first unit.
    pub start: u64,
    /// The number of units; at least 1.
    pub count: u32,
}

impl Extent {
    /// One past the last unit.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.count)
    }

    /// The first byte on the disk.
    pub fn offset(self) -> u64 {
        self.start * UNIT_BYTES as u64
    }

    /// The length in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * UNIT_BYTES as u64
    }
}

/// Units of all extents together.
pub fn units_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.count)).sum()
}

/// Treats `extents` as one run of units, and returns the part that holds units `first..first +
/// count`. The part is shorter if the extents end before.
pub fn slice_of(extents: &[Extent], first: u64, count: u64) -> Vec<Extent> {
    let mut skip = first;
    let mut left = count;
    let mut part = Vec::new();
    for extent in extents {
        let length = u64::from(extent.count);
        if skip >= length {
            skip -= length;
            continue;
        }
        if left == 0 {
            break;
        }
        let taken = (length - skip).min(left);
        let count = u32::try_from(taken).expect("invariant: part of an extent of u32 units");
        part.push(Extent { start: extent.start + skip, count });
        left -= taken;
        skip = 0;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cross_extents_and_end_where_they_end() {
        let extents = [Extent { start: 10, count: 3 }, Extent { start: 50, count: 2 }];
        assert_eq!(slice_of(&extents, 0, 5), extents);
        assert_eq!(
            slice_of(&extents, 2, 2),
            [Extent { start: 12, count: 1 }, Extent { start: 50, count: 1 }]
        );
        assert_eq!(slice_of(&extents, 4, 9), [Extent { start: 51, count: 1 }]);
        assert_eq!(slice_of(&extents, 5, 1), []);
        assert_eq!(units_of(&extents), 5);
    }
}
