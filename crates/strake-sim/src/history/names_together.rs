//! Several application threads use the same names.
//!
//! Nobody knows the order of their operations, but there must be one: an order in which each
//! operation has the result that it had, and which leads to the names that are there afterwards.
//! Until the next sync a power cut may leave the names after any step of any such order.

use super::{Actor, READ_WRITE, ROOT, ROOT_INO, Sync};
use crate::recording::Mark;
use crate::tree::{Kind, Node, Tree};
use std::collections::BTreeSet;
use std::sync::Arc;
use strake_client::vfs::{OpenFlags, Vfs};
use strake_env::thread;
use strake_proto::meta::RenameMode;
use strake_proto::{ErrorKind, Ino, Result};

/// Names that only this module uses. No file with one of them stays open.
const SHARED: [&[u8]; 3] = [b"x", b"y", b"z"];
/// Operations of each thread.
const OPERATIONS: usize = 2;

/// One operation on the shared names, by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create(usize),
    Unlink(usize),
    Rename(usize, usize),
}

/// The result of an operation; `Some` is the number of the new file.
type Came = std::result::Result<Option<u64>, ErrorKind>;

/// The inodes of the shared names.
type Places = [Option<u64>; SHARED.len()];

impl Operation {
    fn perform(self, vfs: &dyn Vfs) -> Result<Option<u64>> {
        let root = Ino(ROOT_INO);
        match self {
            Operation::Create(name) => {
                let flags = OpenFlags { truncate: false, ..READ_WRITE };
                let (entry, opened) = vfs.create(ROOT, root, SHARED[name], 0o640, flags, true)?;
                vfs.release(opened.handle);
                vfs.forget(entry.attr.ino, 1);
                Ok(Some(entry.attr.ino.0))
            }
            Operation::Unlink(name) => vfs.unlink(ROOT, root, SHARED[name]).map(|()| None),
            Operation::Rename(source, target) => {
                let (source, target) = ((root, SHARED[source]), (root, SHARED[target]));
                vfs.rename(ROOT, source, target, RenameMode::Replace).map(|_| None)
            }
        }
    }

    /// The names after the operation, or `None` if it cannot have had this result here.
    fn leads_to(self, mut places: Places, came: &Came) -> Option<Places> {
        let expected = match self {
            Operation::Create(name) if places[name].is_some() => Err(ErrorKind::Exists),
            Operation::Create(name) => {
                places[name] = *came.as_ref().ok()?;
                Ok(places[name])
            }
            Operation::Unlink(name) => places[name].take().map(|_| None).ok_or(ErrorKind::NotFound),
            Operation::Rename(source, target) => match places[source] {
                None => Err(ErrorKind::NotFound),
                Some(_) if source == target => Ok(None),
                held => {
                    (places[source], places[target]) = (None, held);
                    Ok(None)
                }
            },
        };
        (expected == *came).then_some(places)
    }
}

/// All orders of the threads' operations that explain their results.
struct Orders<'a> {
    threads: &'a [Vec<(Operation, Came)>],
    /// The names after each step of each order.
    steps: BTreeSet<Places>,
    /// The names at the end of each order.
    ends: BTreeSet<Places>,
}

impl Orders<'_> {
    /// Tries every order that goes on from here. True if one of them explains all results.
    fn go_on(&mut self, done: &mut Vec<usize>, places: Places) -> bool {
        let mut leads = false;
        let mut is_end = true;
        for thread in 0..self.threads.len() {
            let Some((operation, came)) = self.threads[thread].get(done[thread]) else { continue };
            is_end = false;
            let Some(next) = operation.leads_to(places, came) else { continue };
            done[thread] += 1;
            leads |= self.go_on(done, next);
            done[thread] -= 1;
        }
        if is_end {
            self.ends.insert(places);
        }
        if is_end || leads {
            self.steps.insert(places);
        }
        is_end || leads
    }
}

impl Actor {
    /// Threads create, rename and remove the same few names.
    pub(super) fn names_together(&mut self) {
        let mut draw = || match self.rng.below(4) {
            0 => Operation::Unlink(self.rng.index(SHARED.len())),
            1 => Operation::Rename(self.rng.index(SHARED.len()), self.rng.index(SHARED.len())),
            _ => Operation::Create(self.rng.index(SHARED.len())),
        };
        let work: Vec<Vec<Operation>> =
            (0..3).map(|_| (0..OPERATIONS).map(|_| draw()).collect()).collect();
        let begin = self.sequence.position();
        let vfs = self.vfs();
        let done: Vec<Vec<(Operation, Came)>> = thread::scope(|scope| {
            let perform = |operation: &Operation| {
                (*operation, operation.perform(vfs).map_err(|error| error.kind()))
            };
            let run = |operations| move || Vec::from_iter(Iterator::map(operations, perform));
            let threads: Vec<_> = work.iter().map(|work| scope.spawn(run(work.iter()))).collect();
            threads.into_iter().map(|it| it.join().expect("a thread works")).collect()
        });
        let end = self.sequence.position();
        let places = self.shared_names();
        let mut orders = Orders { threads: &done, steps: BTreeSet::new(), ends: BTreeSet::new() };
        orders.go_on(&mut vec![0; done.len()], Places::default());
        let seed = self.seed;
        assert!(
            orders.ends.contains(&places),
            "seed {seed}: no order of {done:?} explains {places:?}"
        );
        let steps = std::mem::take(&mut orders.steps);
        for step in steps.into_iter().filter(|step| *step != places).chain([places]) {
            let tree = Arc::new(self.with_names(step));
            let what = format!("names together: {step:?}");
            self.push(Mark {
                what,
                begin,
                end,
                sync: Sync::Nothing,
                begins_life: false,
                away: self.away,
                tree,
            });
        }
        self.tree = Arc::new(self.with_names(places));
        for name in (0..SHARED.len()).filter(|name| places[*name].is_some()) {
            let begin = self.sequence.position();
            Operation::Unlink(name).perform(self.vfs()).expect("unlinks");
            Arc::make_mut(&mut self.tree).remove(ROOT_INO, SHARED[name]);
            self.mark("unlink a shared name".to_owned(), begin, Sync::Nothing);
        }
    }

    /// The inodes of the shared names on the real stack.
    fn shared_names(&self) -> Places {
        SHARED.map(|name| match self.vfs().lookup(ROOT, Ino(ROOT_INO), name) {
            Ok(entry) => {
                self.vfs().forget(entry.attr.ino, 1);
                Some(entry.attr.ino.0)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("seed {}: {error}", self.seed),
        })
    }

    /// The model's tree, with these inodes for the shared names.
    fn with_names(&self, places: Places) -> Tree {
        let mut tree = Tree::clone(&self.tree);
        for (name, ino) in SHARED.iter().zip(places) {
            if tree.look_up(ROOT_INO, name).is_some() {
                tree.remove(ROOT_INO, name);
            }
            if let Some(ino) = ino {
                tree.make(ROOT_INO, name, ino, Node::new(Kind::File, 0o640));
            }
        }
        tree
    }
}
