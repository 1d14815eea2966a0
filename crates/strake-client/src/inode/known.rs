//! The names in a directory that this client knows while it holds the directory's token, absent
//! ones too. A lookup of such a name asks nobody.
//!
//! **They are right** as long as the token is held, because nobody else changes the directory then.
//! They are learnt and used in operations that hold it, and dropped before it is given up
//! ([`crate::give_up`]). A lone mount has none: its metadata is a call away.
//!
//! **Changes of this client** are noted when they are answered. The answers of two changes of one
//! name may arrive in another order than that in which they were made. So after overlapping changes
//! of one name nothing is known of it. An answer to a question that was asked before a change was
//! noted is not learnt.
//!
//! **A listing** is kept beside them, until a change is noted (`listing.rs`).
//!
//! **All names** of a directory are known from the moment at which this client makes it. So a
//! program that fills new directories asks for no name.

use super::budget::NameBudget;
use super::listing::Listing;
use std::collections::HashMap;
use std::sync::Arc;
use strake_proto::Ino;
use strake_proto::meta::{Cookie, DirEntry};

/// The names of one directory.
#[derive(Default)]
pub(crate) struct KnownNames {
    /// Raised whenever a change is noted, and when all is forgotten.
    changes: u64,
    map: Option<Box<Map>>,
    listing: Option<Box<Listing>>,
    /// Names that are being changed.
    changing: Vec<Changing>,
}

struct Changing {
    name: Vec<u8>,
    /// Changes under way.
    count: u32,
    /// Whether there were ever two of them at once.
    overlapped: bool,
}

struct Map {
    names: HashMap<Box<[u8]>, Option<Ino>>,
    /// Whether a name that is not there is absent.
    is_whole: bool,
    budget: Arc<NameBudget>,
}

impl Drop for Map {
    fn drop(&mut self) {
        self.budget.give_back(self.names.len());
    }
}

impl Map {
    fn new(budget: &Arc<NameBudget>, is_whole: bool) -> Box<Map> {
        Box::new(Map { names: HashMap::new(), is_whole, budget: Arc::clone(budget) })
    }

    fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name).is_some() {
            self.budget.give_back(1);
        }
    }

    fn put(&mut self, name: &[u8], found: Option<Ino>) {
        if self.is_whole && found.is_none() {
            self.remove(name);
        } else if let Some(known) = self.names.get_mut(name) {
            *known = found;
        } else if self.budget.take(1) {
            self.names.insert(name.into(), found);
        } else {
            self.is_whole = false;
        }
    }
}

impl KnownNames {
    /// The inode that a name leads to, or `Some(None)` for a name that is absent. `None` if that is
    /// not known.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Option<Ino>> {
        let map = self.map.as_ref()?;
        map.names.get(name).copied().or(map.is_whole.then_some(None))
    }

    /// The count of changes, to be remembered before a question is asked.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Learns the answer to a question that was asked at `changes`.
    pub(crate) fn learn(
        &mut self,
        changes: u64,
        (name, found): (&[u8], Option<Ino>),
        budget: &Arc<NameBudget>,
    ) {
        if self.changes == changes {
            self.map.get_or_insert_with(|| Map::new(budget, false)).put(name, found);
        }
    }

    /// At most `limit` entries of the listing after a cookie, and whether the directory ends with
    /// them. `None` if the next one is not known.
    pub(crate) fn listed(&self, cookie: Cookie, limit: usize) -> Option<(Vec<DirEntry>, bool)> {
        self.listing.as_ref()?.after(cookie, limit)
    }

    /// Learns the entries after a cookie, and whether the directory ends with them. They were asked
    /// for at `changes`.
    pub(crate) fn learn_listing(
        &mut self,
        changes: u64,
        cookie: Cookie,
        (entries, is_end): (&[DirEntry], bool),
        budget: &Arc<NameBudget>,
    ) {
        if self.changes != changes {
            return;
        }
        let known = self.listing.take().filter(|known| known.goes_on(cookie));
        let mut listing = known.unwrap_or_else(|| Box::new(Listing::new(cookie, budget)));
        if listing.add(entries, is_end) {
            self.listing = Some(listing);
        }
    }

    /// Notes that names have changed, or that they are not known any more.
    fn change(&mut self) {
        self.changes += 1;
        self.listing = None;
    }

    /// A change of a name is asked for. To be ended with [`KnownNames::end`].
    pub(crate) fn begin(&mut self, name: &[u8]) {
        if let Some(other) = self.changing.iter_mut().find(|other| other.name == name) {
            other.count += 1;
            other.overlapped = true;
        } else {
            self.changing.push(Changing { name: name.to_vec(), count: 1, overlapped: false });
        }
    }

    /// A change of a name has ended. `outcome` is what the name leads to now; `None` if that is not
    /// known.
    pub(crate) fn end(&mut self, name: &[u8], outcome: Option<Option<Ino>>) {
        self.change();
        let at = self.changing.iter().position(|one| one.name == name);
        let at = at.expect("invariant: a change that ends has begun");
        let one = &mut self.changing[at];
        one.count -= 1;
        let outcome = outcome.filter(|_| !one.overlapped);
        if one.count == 0 {
            self.changing.swap_remove(at);
        }
        let Some(map) = &mut self.map else { return };
        match outcome {
            Some(found) => map.put(name, found),
            None => {
                map.remove(name);
                map.is_whole = false;
            }
        }
    }

    /// The directory was just made: it has no names.
    pub(crate) fn begin_empty(&mut self, budget: &Arc<NameBudget>) {
        self.change();
        self.map = Some(Map::new(budget, true));
    }

    /// The token is about to be given up.
    pub(crate) fn forget(&mut self) {
        self.change();
        self.map = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::NAMES_MAX;
    use super::*;

    const A: &[u8] = b"a";

    fn known(names: &KnownNames) -> Option<Option<u64>> {
        names.get(A).map(|found| found.map(|ino| ino.0))
    }

    #[test]
    fn a_new_directory_knows_its_names_and_others_learn_them() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        assert_eq!(known(&names), None);
        names.learn(names.changes(), (A, None), &budget);
        assert_eq!((known(&names), names.get(b"b")), (Some(None), None));
        names.begin_empty(&budget);
        names.begin(A);
        names.end(A, Some(Some(Ino(5))));
        assert_eq!((known(&names), names.get(b"b")), (Some(Some(5)), Some(None)));
        names.begin(A);
        names.end(A, Some(None));
        assert_eq!(known(&names), Some(None));
        names.forget();
        assert_eq!((known(&names), names.get(b"b")), (None, None));
    }

    #[test]
    fn an_answer_that_a_change_has_overtaken_is_not_learnt() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        let asked = names.changes();
        names.begin(A);
        names.end(A, Some(Some(Ino(5))));
        names.learn(asked, (A, None), &budget);
        assert_eq!(known(&names), None);
        let asked = names.changes();
        names.forget();
        names.learn(asked, (A, None), &budget);
        assert_eq!(known(&names), None);
    }

    #[test]
    fn nothing_is_known_after_changes_of_one_name_that_overlap() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        names.begin_empty(&budget);
        // Made, and removed by another thread: the answers may come in the other order.
        names.begin(A);
        names.begin(A);
        names.end(A, Some(None));
        names.end(A, Some(Some(Ino(5))));
        assert_eq!(known(&names), None);
        assert_eq!(names.get(b"b"), None, "nor is a name absent because it is not there");
        names.begin(A);
        names.end(A, Some(Some(Ino(6))));
        assert_eq!(known(&names), Some(Some(6)));
        names.begin(A);
        names.end(A, None);
        assert_eq!(known(&names), None, "a change whose outcome is not known");
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_makes_room() {
        let budget: Arc<NameBudget> = Arc::default();
        assert!(budget.take(NAMES_MAX - 1));
        let mut names = KnownNames::default();
        names.begin_empty(&budget);
        for name in [A, b"b"] {
            names.begin(name);
            names.end(name, Some(Some(Ino(5))));
        }
        assert_eq!((known(&names), names.get(b"b")), (Some(Some(5)), None), "no room for it");
        names.begin(A);
        names.end(A, Some(Some(Ino(6))));
        assert_eq!(known(&names), Some(Some(6)), "what is there is kept up to date");
        names.forget();
        assert!(budget.take(1) && !budget.take(1), "what was known makes room");
    }
}
