//! The model that histories keep beside the real stack: the names and attributes of a file system,
//! and what each file has held.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strake_proto::Timestamp;

/// A name's bytes.
pub type Name = Vec<u8>;

/// What an inode is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory: names and the inodes they lead to.
    Directory(BTreeMap<Name, u64>),
    /// A regular file; its bytes are in [`Contents`].
    File,
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A FIFO.
    Fifo,
}

/// An inode without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The kind, with what belongs to it.
    pub kind: Kind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of names that lead to it; for a directory, 2 plus the number of its
    /// subdirectories.
    pub links: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

impl Node {
    /// A new inode that belongs to root.
    pub fn new(kind: Kind, permissions: u32) -> Node {
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        Node { kind, permissions, uid: 0, gid: 0, links, xattrs: BTreeMap::new() }
    }

    /// The names in it, if it is a directory.
    pub fn names(&self) -> Option<&BTreeMap<Name, u64>> {
        match &self.kind {
            Kind::Directory(names) => Some(names),
            _ => None,
        }
    }

    fn names_mut(&mut self) -> &mut BTreeMap<Name, u64> {
        match &mut self.kind {
            Kind::Directory(names) => names,
            other => panic!("{other:?} is no directory"),
        }
    }
}

/// Every inode that has a name, by number. The root is 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree(pub BTreeMap<u64, Node>);

impl Tree {
    /// The inode with a number.
    pub fn node(&self, ino: u64) -> &Node {
        &self.0[&ino]
    }

    /// The inode with a number, to be changed.
    pub fn node_mut(&mut self, ino: u64) -> &mut Node {
        self.0.get_mut(&ino).expect("the model names inodes it has")
    }

    /// The inode that a name leads to.
    pub fn look_up(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.node(parent).names()?.get(name).copied()
    }

    fn is_directory(&self, ino: u64) -> bool {
        self.node(ino).names().is_some()
    }

    /// Adds a new inode with its first name.
    pub fn make(&mut self, parent: u64, name: &[u8], ino: u64, node: Node) {
        self.0.insert(ino, node);
        self.add_name(parent, name, ino);
    }

    fn add_name(&mut self, parent: u64, name: &[u8], ino: u64) {
        if self.is_directory(ino) {
            self.node_mut(parent).links += 1;
        }
        self.node_mut(parent).names_mut().insert(name.to_vec(), ino);
    }

    fn take_name(&mut self, parent: u64, name: &[u8]) -> u64 {
        let ino = self.node_mut(parent).names_mut().remove(name).expect("the name is there");
        if self.is_directory(ino) {
            self.node_mut(parent).links -= 1;
        }
        ino
    }

    /// Adds one more name. `node` is given for an inode that has no name yet.
    pub fn link(&mut self, parent: u64, name: &[u8], ino: u64, node: Option<Node>) {
        match node {
            Some(node) => {
                self.0.insert(ino, node);
            }
            None => self.node_mut(ino).links += 1,
        }
        self.add_name(parent, name, ino);
    }

    /// Removes a name. If it was the inode's last, removes and returns the inode too.
    pub fn remove(&mut self, parent: u64, name: &[u8]) -> Option<Node> {
        let ino = self.take_name(parent, name);
        let gone = self.is_directory(ino) || self.node(ino).links == 1;
        if gone {
            return self.0.remove(&ino);
        }
        self.node_mut(ino).links -= 1;
        None
    }

    /// Renames. The target must be replaceable, if it exists.
    pub fn rename(&mut self, source: (u64, &[u8]), target: (u64, &[u8])) {
        let ino = self.look_up(source.0, source.1).expect("the source is there");
        match self.look_up(target.0, target.1) {
            // If both are names of one inode, both stay as they are.
            Some(other) if other == ino => return,
            Some(_) => drop(self.remove(target.0, target.1)),
            None => {}
        }
        let ino = self.take_name(source.0, source.1);
        self.add_name(target.0, target.1, ino);
    }

    /// Exchanges two names.
    pub fn exchange(&mut self, one: (u64, &[u8]), other: (u64, &[u8])) {
        let first = self.take_name(one.0, one.1);
        let second = self.take_name(other.0, other.1);
        self.add_name(one.0, one.1, second);
        self.add_name(other.0, other.1, first);
    }

    /// All directories.
    pub fn directories(&self) -> Vec<u64> {
        self.0.iter().filter(|(_, node)| node.names().is_some()).map(|(ino, _)| *ino).collect()
    }

    /// True if `ino` is `dir` or lies below it.
    pub fn is_below(&self, ino: u64, dir: u64) -> bool {
        ino == dir
            || self
                .node(dir)
                .names()
                .is_some_and(|names| names.values().any(|child| self.is_below(ino, *child)))
    }

    /// The first difference from `other`, in words.
    pub fn difference(&self, other: &Tree) -> String {
        for ino in self.0.keys().chain(other.0.keys()) {
            let (here, there) = (self.0.get(ino), other.0.get(ino));
            if here != there {
                return format!("inode {ino}: {here:?} against {there:?}");
            }
        }
        "none".to_owned()
    }
}

/// Everything that each file has held, by inode number. Each entry is an operation and the bytes
/// that the file held after it.
pub type Contents = BTreeMap<u64, Vec<(usize, std::sync::Arc<Vec<u8>>)>>;

/// The modification and change times that each inode has had, by number. Each entry is an operation
/// and the times after it.
pub type Times = BTreeMap<u64, Vec<(usize, (Timestamp, Timestamp))>>;
