//! One phase of a metadata job, and the tree that its items live in. All of it is pure.
//!
//! ```text
//! i<iteration>/                 made by the task that comes first
//!   t/ or t<rank>/              node 0 of the shared tree, or of each task's own
//!     n1/ n2/ …                 node k lies in node (k-1)/branching
//!       f.<rank>.<item>         files
//!       d.<rank>.<item>         directories
//! ```
//!
//! A tree of depth z and branching b has 1 + b + … + b^z nodes. Items are dealt to the nodes
//! (or only to the leaves) in equal consecutive runs.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};
use crate::work::CacheFlush;

/// What is done with every item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Make the tree.
    TreeCreate,
    /// Make directories.
    DirectoryCreate,
    /// `stat` them.
    DirectoryStat,
    /// Remove them.
    DirectoryRemove,
    /// Create files, write and close them.
    FileCreate,
    /// `stat` them.
    FileStat,
    /// Open, read and close them.
    FileRead,
    /// Remove them.
    FileRemove,
    /// Remove the tree.
    TreeRemove,
    /// Read a directory and `lstat` every name, as `ls -l` does.
    List,
    /// Walk the whole tree of the iteration and `lstat` every name, as `find -size` does.
    Find,
    /// Read a directory, remove every name and then the directory, as `rm -r` does.
    RemoveAll,
}

impl Step {
    /// Its name in tables: mdtest's name, if mdtest has one.
    pub fn title(self) -> &'static str {
        match self {
            Step::TreeCreate => "Tree creation",
            Step::DirectoryCreate => "Directory creation",
            Step::DirectoryStat => "Directory stat",
            Step::DirectoryRemove => "Directory removal",
            Step::FileCreate => "File creation",
            Step::FileStat => "File stat",
            Step::FileRead => "File read",
            Step::FileRemove => "File removal",
            Step::TreeRemove => "Tree removal",
            Step::List => "List",
            Step::Find => "Find",
            Step::RemoveAll => "Remove all",
        }
    }

    /// True for steps whose items are directories.
    pub fn on_directories(self) -> bool {
        matches!(self, Step::DirectoryCreate | Step::DirectoryStat | Step::DirectoryRemove)
    }
}

/// One step of all tasks, between two barriers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What is done.
    pub step: Step,
    /// Items of each task.
    pub items: u64,
    /// How many items each rank really made, if a stonewall stopped it.
    pub made: Vec<u64>,
    /// Levels below the root of the tree.
    pub depth: u32,
    /// Directories in each directory above the last level.
    pub branching: u32,
    /// Items in leaves only.
    pub leaf_only: bool,
    /// A tree per task instead of one for all.
    pub unique: bool,
    /// Bytes written into each file.
    pub write_bytes: u64,
    /// Bytes read from each file.
    pub read_bytes: u64,
    /// fsync each file before close.
    pub fsync: bool,
    /// Task r looks at the items of task r + shift.
    pub shift: u32,
    /// Visit items in random order (not when making them).
    pub random: bool,
    /// Seeds the random order.
    pub seed: u64,
    /// The number of the repetition. It names the directory of the repetition.
    pub iteration: u32,
    /// True if the hosts work in one file system. One task then makes the shared tree for all.
    pub common: bool,
    /// What becomes of caches before the phase.
    pub cache: CacheFlush,
    /// Seconds after which every task stops.
    pub stonewall_seconds: Option<f64>,
}

/// The most directories of a tree. A larger tree is a mistake in the parameters.
const NODES_MAX: u64 = 1_000_000;
/// The largest file. Files of a metadata test are small, and each task holds one buffer.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl Phase {
    /// Refuses parameters that are out of bounds.
    pub fn validate(&self, tasks: u32) -> Result<()> {
        let usage = |message: String| Err(BenchError::Usage(message));
        if self.nodes().is_none() {
            return usage(format!(
                "a tree of depth {} and branching {} has more than {NODES_MAX} directories",
                self.depth, self.branching
            ));
        }
        if self.items > 1 << 40 || self.write_bytes.max(self.read_bytes) > FILE_BYTES_MAX {
            return usage("items or file sizes are out of bounds".into());
        }
        if self.read_bytes > self.write_bytes {
            return usage(format!(
                "cannot read {} bytes of files of {}",
                self.read_bytes, self.write_bytes
            ));
        }
        if !self.made.is_empty() && self.made.len() != tasks as usize {
            return usage(format!("{} limits for {tasks} tasks", self.made.len()));
        }
        if self.made.iter().any(|made| *made > self.items) {
            return usage("a task cannot have made more items than there are".into());
        }
        Ok(())
    }

    /// The most bytes that `tasks_here` tasks can occupy.
    pub fn bytes_on_disk(&self, tasks_here: u32) -> u64 {
        if self.step != Step::FileCreate {
            return 0;
        }
        // A file costs at least its inode, even if it is empty.
        let each = self.write_bytes.saturating_add(512);
        each.saturating_mul(self.items).saturating_mul(u64::from(tasks_here))
    }

    /// The number of directories of one tree; `None` if they are too many.
    pub fn nodes(&self) -> Option<u64> {
        let (mut nodes, mut level) = (1u64, 1u64);
        for _ in 0..self.depth {
            level = level.checked_mul(u64::from(self.branching))?;
            nodes = nodes.checked_add(level)?;
            if nodes > NODES_MAX || level == 0 {
                return None;
            }
        }
        Some(nodes)
    }

    /// The nodes that hold items: the first of them, and how many there are.
    fn nodes_with_items(&self) -> (u64, u64) {
        let nodes = self.nodes().expect("invariant: the phase was validated");
        if !self.leaf_only {
            return (0, nodes);
        }
        let leaves = u64::from(self.branching).pow(self.depth);
        (nodes - leaves, leaves)
    }

    /// The node of an item.
    pub fn node_of(&self, item: u64) -> u64 {
        let (first, count) = self.nodes_with_items();
        first + item / self.items.div_ceil(count).max(1)
    }

    /// The rank whose items a task works on. A task makes its own items. With a shift, it stats,
    /// reads and removes the items of a later task.
    pub fn owner(&self, rank: u32, tasks: u32) -> u32 {
        let shifted = matches!(
            self.step,
            Step::DirectoryStat
                | Step::FileStat
                | Step::FileRead
                | Step::FileRemove
                | Step::DirectoryRemove
        );
        let shift = if shifted { self.shift } else { 0 };
        ((u64::from(rank) + u64::from(shift)) % u64::from(tasks)) as u32
    }

    /// How many items the owner has.
    pub fn items_of(&self, owner: u32) -> u64 {
        let made = self.made.get(owner as usize).copied();
        made.unwrap_or(self.items)
    }

    /// The path of each node of a task's tree, relative to the directory of the iteration.
    pub fn node_paths(&self, owner: u32) -> Vec<String> {
        let nodes = self.nodes().expect("invariant: the phase was validated");
        let root = if self.unique { format!("t{owner}") } else { "t".into() };
        let mut paths: Vec<String> = vec![root];
        for node in 1..nodes {
            let parent = &paths[((node - 1) / u64::from(self.branching)) as usize];
            paths.push(format!("{parent}/n{node}"));
        }
        paths
    }

    /// Appends the name of an item to a path that ends with its directory.
    pub fn push_name(&self, path: &mut String, owner: u32, item: u64) {
        let kind = if self.step.on_directories() { 'd' } else { 'f' };
        write!(path, "/{kind}.{owner}.{item}")
            .expect("invariant: writing to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Dice;

    pub(crate) fn phase() -> Phase {
        Phase {
            step: Step::FileCreate,
            items: 10,
            made: Vec::new(),
            depth: 0,
            branching: 1,
            leaf_only: false,
            unique: false,
            write_bytes: 0,
            read_bytes: 0,
            fsync: false,
            shift: 0,
            random: false,
            seed: 1,
            iteration: 1,
            common: true,
            cache: CacheFlush::Keep,
            stonewall_seconds: None,
        }
    }

    #[test]
    fn every_item_has_a_node_and_nodes_are_filled_evenly() {
        for seed in 0..500 {
            let mut dice = Dice::new(seed);
            let mut phase = phase();
            phase.depth = dice.below(4) as u32;
            phase.branching = 1 + dice.below(5) as u32;
            phase.leaf_only = dice.below(2) == 1;
            phase.items = dice.below(400);
            let (first, count) = phase.nodes_with_items();
            let mut filled = vec![0u64; phase.nodes().unwrap() as usize];
            for item in 0..phase.items {
                filled[phase.node_of(item) as usize] += 1;
            }
            let most = phase.items.div_ceil(count);
            for (node, &items) in filled.iter().enumerate() {
                assert!(items <= most, "seed {seed}: node {node} has {items} of {most}");
                assert!(items == 0 || node as u64 >= first, "seed {seed}");
            }
        }
    }

    #[test]
    fn nodes_lie_in_their_parents() {
        let mut phase = phase();
        (phase.depth, phase.branching, phase.unique) = (2, 2, true);
        let wanted = ["t3", "t3/n1", "t3/n2", "t3/n1/n3", "t3/n1/n4", "t3/n2/n5", "t3/n2/n6"];
        assert_eq!(phase.node_paths(3), wanted);
        phase.leaf_only = true;
        assert_eq!(phase.nodes_with_items(), (3, 4));
        let mut path = "x".to_string();
        phase.push_name(&mut path, 3, 9);
        assert_eq!(path, "x/f.3.9");
    }

    #[test]
    fn endless_trees_are_refused() {
        let mut phase = phase();
        (phase.depth, phase.branching) = (40, 2);
        assert!(phase.validate(1).is_err());
        (phase.depth, phase.branching) = (u32::MAX, 0);
        assert!(phase.validate(1).is_err());
        (phase.depth, phase.branching) = (u32::MAX, 1);
        assert!(phase.validate(1).is_err());
        (phase.depth, phase.branching) = (0, 0);
        assert!(phase.validate(1).is_ok());
        phase.read_bytes = 1;
        assert!(phase.validate(1).is_err());
    }
}
