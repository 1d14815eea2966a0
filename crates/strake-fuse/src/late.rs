//! Attributes that the kernel takes in late.
//!
//! A program that asks for attributes gets them in two steps: we answer, and then the program's
//! thread takes the answer in. Another program may change the inode in between. Where the kernel
//! knows the new attributes after a change, as after a write or a chmod, it does not believe such a
//! late answer. But after most changes of names, and some others, it only marks the attributes as
//! out of date. The late answer would mark them as right again, and programs would see the old
//! times and links of a directory until its next change (`fuse_dir_changed` and
//! `fuse_change_attributes` of Linux; the probe `late-attributes` shows it).
//!
//! So after such a change the kernel is told to drop the inode's attributes before the change is
//! answered: then it believes no answer to a question that was asked earlier. That takes a system
//! call, and is left out if the attributes were given since the last change to nobody but the
//! thread that makes this one. A thread has taken in each answer before it asks for more.
//!
//! An answer whose attributes were read before a change has ended, and that is noted here after it,
//! is not to be kept by the kernel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::sync::Mutex;
use strake_proto::Ino;

/// Inodes are spread over this many tables.
const SHARDS: usize = 64;
/// A table has no more inodes. If it is full, it is emptied: of an inode that is not in it, anybody
/// may have the attributes.
const INODES_MAX: usize = 256;

/// A thread of a program, by its number in the request. 0 stands for threads that the kernel cannot
/// name.
type Thread = u32;

/// A thread's request, from before attributes are read for its answer.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    thread: Thread,
    /// The number of changes that had ended when it came.
    changes: u64,
}

/// The threads that have got an inode's attributes since its last change. An inode of which nothing
/// is noted was perhaps shown to many.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShownTo {
    Nobody,
    One(Thread),
}

#[derive(Default)]
struct Shard {
    shown: HashMap<Ino, ShownTo>,
    /// When the last change of one of its inodes ended.
    changed: u64,
}

impl Shard {
    fn insert(&mut self, ino: Ino, shown: ShownTo) {
        if self.shown.len() >= INODES_MAX && !self.shown.contains_key(&ino) {
            self.shown.clear();
        }
        self.shown.insert(ino, shown);
    }
}

/// See the head of this file.
pub(crate) struct LateAnswers {
    /// Counts the changes.
    changes: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for LateAnswers {
    fn default() -> LateAnswers {
        let shards = std::array::from_fn(|_| Mutex::default());
        LateAnswers { changes: AtomicU64::new(0), shards }
    }
}

impl LateAnswers {
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// A thread's request comes.
    pub(crate) fn asking(&self, thread: Thread) -> Asking {
        Asking { thread, changes: self.changes.load(Ordering::Acquire) }
    }

    /// Attributes of an inode are about to be given to a thread, and were read for its request.
    /// Returns whether the kernel may keep them.
    pub(crate) fn show(&self, ino: Ino, asking: Asking) -> bool {
        let mut shard = self.shard(ino).lock();
        if shard.changed > asking.changes {
            return false;
        }
        match shard.shown.get(&ino) {
            Some(ShownTo::Nobody) if asking.thread != 0 => {
                shard.shown.insert(ino, ShownTo::One(asking.thread));
            }
            Some(ShownTo::One(thread)) if *thread == asking.thread => {}
            Some(_) => drop(shard.shown.remove(&ino)),
            None => {}
        }
        true
    }

    /// A thread has made an inode. Nobody else gets its attributes before the thread has them.
    pub(crate) fn made(&self, ino: Ino, asking: Asking) {
        if asking.thread != 0 {
            self.shard(ino).lock().insert(ino, ShownTo::One(asking.thread));
        }
    }

    /// A thread's request has changed an inode, and is not answered yet. Returns whether the kernel
    /// is to be told before the answer.
    pub(crate) fn changed(&self, ino: Ino, asking: Asking) -> bool {
        let mut shard = self.shard(ino).lock();
        shard.changed = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        let shown = shard.shown.get(&ino).copied();
        shard.insert(ino, ShownTo::Nobody);
        match shown {
            Some(ShownTo::Nobody) => false,
            Some(ShownTo::One(thread)) => thread != asking.thread,
            None => true,
        }
    }
}

#[cfg(test)]
#[path = "late_test.rs"]
mod late_test;
