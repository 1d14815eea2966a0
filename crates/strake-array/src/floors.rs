//! Range deletions on their way: recorded in the metadata, not yet applied by every NSD.
//!
//! A truncate or punch is one metadata entry; the NSDs delete later. Until then two rules keep it
//! exact:
//!
//! * **Floor.** Whatever is stored in the range below the deletion's version does not count. Floors
//!   are kept here per object and asked by every read of a block.
//! * **Durable first.** NSDs are told only after the metadata entry is durable, and whoever deleted
//!   sends no block of the file before either: else a crash could forget the truncation and
//!   remember that its data is gone.
//!
//! [`crate::reaper`] applies them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use strake_env::sync::Mutex;
use strake_proto::{BlockIndex, ObjectId, Version};

#[derive(Clone, Copy, Debug)]
struct Floor {
    from: BlockIndex,
    to: BlockIndex,
    version: Version,
}

/// The floors of one object at some moment.
pub struct FloorsOf(Vec<Floor>);

impl FloorsOf {
    /// As [`Floors::floor`].
    pub fn at(&self, block: BlockIndex) -> Version {
        let covering = self.0.iter().filter(|floor| floor.from <= block && block < floor.to);
        covering.map(|floor| floor.version).max().unwrap_or(Version::NONE)
    }
}

/// See the file's head.
#[derive(Default)]
pub struct Floors {
    floors: Mutex<HashMap<ObjectId, Vec<Floor>>>,
    count: AtomicUsize,
}

impl Floors {
    /// Notes a deletion that the metadata has recorded.
    pub fn add(&self, object: ObjectId, from: BlockIndex, to: BlockIndex, version: Version) {
        let mut floors = self.floors.lock();
        let list = floors.entry(object).or_default();
        // The new floor replaces those it covers, so a file cut again and again keeps one floor.
        list.retain(|old| !(from <= old.from && old.to <= to));
        list.push(Floor { from, to, version });
        self.count.store(floors.len(), Ordering::Release);
    }

    /// The floors of an object as they are now.
    pub fn floors_of(&self, object: ObjectId) -> FloorsOf {
        FloorsOf(self.floors.lock().get(&object).cloned().unwrap_or_default())
    }

    /// Strips of this block below this version are deleted in effect.
    pub fn floor(&self, object: ObjectId, block: BlockIndex) -> Version {
        if self.count.load(Ordering::Acquire) == 0 {
            return Version::NONE;
        }
        let floors = self.floors.lock();
        let covering = floors
            .get(&object)
            .into_iter()
            .flatten()
            .filter(|floor| floor.from <= block && block < floor.to);
        covering.map(|floor| floor.version).max().unwrap_or(Version::NONE)
    }

    /// An object has no deletions pending up to `version`.
    pub(crate) fn remove(&self, object: ObjectId, version: Version) {
        let mut floors = self.floors.lock();
        if let Some(list) = floors.get_mut(&object) {
            list.retain(|floor| floor.version > version);
            if list.is_empty() {
                floors.remove(&object);
            }
        }
        self.count.store(floors.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::GrantNumber;

    fn version(counter: u64) -> Version {
        Version { grant: GrantNumber(1), counter }
    }

    #[test]
    fn the_highest_covering_version_is_the_floor() {
        let ranges = Floors::default();
        let object = ObjectId(1);
        ranges.add(object, BlockIndex(5), BlockIndex(9), version(1));
        ranges.add(object, BlockIndex(7), BlockIndex::END, version(3));
        assert_eq!(ranges.floor(object, BlockIndex(4)), Version::NONE);
        assert_eq!(ranges.floor(object, BlockIndex(5)), version(1));
        assert_eq!(ranges.floor(object, BlockIndex(8)), version(3));
        assert_eq!(ranges.floor(ObjectId(2), BlockIndex(8)), Version::NONE);
        ranges.remove(object, version(1));
        assert_eq!(ranges.floor(object, BlockIndex(5)), Version::NONE);
        ranges.remove(object, version(3));
        assert_eq!(ranges.floor(object, BlockIndex(8)), Version::NONE);
    }
}
