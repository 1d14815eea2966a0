//! Range deletions that the metadata has recorded and that not every NSD has applied yet.
//!
//! A truncate or punch is one metadata entry. The NSDs delete later. Until then two rules keep
//! readers exact:
//!
//! * **Floor.** Strips in the range with a version below the deletion's do not count. This file
//!   keeps the floors of each object, and every read of a block asks for them.
//! * **Durable first.** NSDs are told only after the metadata entry is durable. The client that
//!   deleted sends no block of the file before that either. Otherwise a crash could undo the
//!   truncation while its data is already gone.
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
    /// Like [`Floors::floor`], for this object.
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

    /// Whether a deletion of the object is pending.
    pub fn has(&self, object: ObjectId) -> bool {
        self.floors.lock().contains_key(&object)
    }

    /// A copy of the current floors of an object.
    pub fn floors_of(&self, object: ObjectId) -> FloorsOf {
        FloorsOf(self.floors.lock().get(&object).cloned().unwrap_or_default())
    }

    /// The floor of a block: its strips below this version count as deleted.
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

    /// Notes that no deletions of the object up to `version` are pending any more.
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
