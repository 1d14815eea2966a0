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
//! **Gaps.** The answer to a question for an absent name tells the names that follow it. So it is
//! known of all other names in between that they are absent, too. Programs number the files that
//! they make, so they ask for few of these names.
//!
//! **All names** of a directory are known from the moment at which this client makes it. So a
//! program that fills new directories asks for no name.

use super::budget::NameBudget;
use super::listing::Listing;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;
use strake_proto::Ino;
use strake_proto::limits::NAME_BYTES_MAX;
use strake_proto::meta::{Cookie, DirEntry};

/// A directory has no more gaps that are known.
const GAPS_MAX: usize = 64;

/// Whether a name is one that a directory can have besides `.` and `..`.
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    let is_valid = !name.is_empty() && name.iter().all(|byte| *byte != b'/' && *byte != 0);
    is_valid && name != b"." && name != b".." && name.len() <= NAME_BYTES_MAX
}

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
    /// The same of the names from one on up to another one, exclusively; `None` stands for the end.
    /// Each counts as a name.
    gaps: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
    budget: Arc<NameBudget>,
}

impl Drop for Map {
    fn drop(&mut self) {
        self.budget.give_back(self.names.len() + self.gaps.len());
    }
}

impl Map {
    fn new(budget: &Arc<NameBudget>, is_whole: bool) -> Box<Map> {
        let (names, gaps) = (HashMap::new(), BTreeMap::new());
        Box::new(Map { names, is_whole, gaps, budget: Arc::clone(budget) })
    }

    /// Whether a name is absent if it is not in `names`.
    fn is_absent(&self, name: &[u8]) -> bool {
        let before = || self.gaps.range::<[u8], _>((Unbounded, Included(name))).next_back();
        let ends_after =
            |(_, to): (_, &Option<Box<[u8]>>)| to.as_ref().is_none_or(|to| name < &**to);
        self.is_whole || before().is_some_and(ends_after)
    }

    /// Some name is not known any more, or there was no room for it.
    fn lack(&mut self) {
        self.is_whole = false;
        self.budget.give_back(self.gaps.len());
        self.gaps.clear();
    }

    /// All names from `name` on, up to the last one of `following`, are these; or all names that
    /// there are, if these are the last.
    fn add_gap(&mut self, name: &[u8], following: &[(Vec<u8>, Ino)], is_end: bool) {
        if self.gaps.len() >= GAPS_MAX {
            self.lack();
        }
        let to = following.last().filter(|_| !is_end).map(|(last, _)| last.as_slice().into());
        if !self.budget.take(1) {
            return;
        }
        if self.gaps.insert(name.into(), to).is_some() {
            self.budget.give_back(1);
        }
        // Without room for one of them it is no gap.
        following.iter().for_each(|(next, ino)| self.put(next, Some(*ino)));
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
            self.lack();
        }
    }
}

impl KnownNames {
    /// The inode that a name leads to, or `Some(None)` for a name that is absent. `None` if that is
    /// not known.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Option<Ino>> {
        let map = self.map.as_ref()?;
        map.names.get(name).copied().or_else(|| map.is_absent(name).then_some(None))
    }

    fn is_changing(&self, name: &[u8]) -> bool {
        self.changing.iter().any(|one| one.name == name)
    }

    /// The same for a reader beside changes: while a change of the name is under way it may lead to
    /// an inode that is gone, so nothing is known. The listing knows the name, too, if names are
    /// looked up in its order. Such a name is known from then on, also when the listing is not
    /// right any more.
    pub(crate) fn look(&mut self, name: &[u8], budget: &Arc<NameBudget>) -> Option<Option<Ino>> {
        let listed = self.listing.as_mut().and_then(|listing| listing.look(name));
        if self.is_changing(name) {
            return None;
        }
        if let Some(ino) = listed.filter(|_| self.get(name).is_none()) {
            self.learn(self.changes, (name, ino), budget);
            return Some(Some(ino));
        }
        self.get(name)
    }

    /// See [`Listing::ahead`].
    pub(crate) fn ahead(&self, limit: usize) -> Option<(Cookie, Vec<Ino>)> {
        self.listing.as_ref()?.ahead(limit)
    }

    /// The count of changes, to be remembered before a question is asked.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Learns the answer to a question that was asked at `changes`.
    pub(crate) fn learn(
        &mut self,
        changes: u64,
        (name, found): (&[u8], Ino),
        budget: &Arc<NameBudget>,
    ) {
        if self.changes == changes {
            self.map.get_or_insert_with(|| Map::new(budget, false)).put(name, Some(found));
        }
    }

    /// Learns that a name is absent, and which names follow it, perhaps up to the last one.
    /// The question was asked at `changes`.
    pub(crate) fn learn_gap(
        &mut self,
        changes: u64,
        name: &[u8],
        (following, is_end): (&[(Vec<u8>, Ino)], bool),
        budget: &Arc<NameBudget>,
    ) {
        if self.changes == changes {
            let map = self.map.get_or_insert_with(|| Map::new(budget, false));
            map.add_gap(name, following, is_end);
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

    /// Whether a name is known to lead there, or to be absent, and one change of it is under way:
    /// that of the caller.
    pub(crate) fn leads_alone_to(&self, name: &[u8], found: Option<Ino>) -> bool {
        let changing = self.changing.iter().find(|one| one.name == name);
        self.get(name) == Some(found) && changing.is_some_and(|it| it.count == 1 && !it.overlapped)
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
                map.lack();
            }
        }
    }

    /// The directory was just made: it has no names, unless another thread has found it and used
    /// it already.
    pub(crate) fn begin_empty(&mut self, budget: &Arc<NameBudget>) {
        if self.changes == 0 && self.map.is_none() && self.changing.is_empty() {
            self.change();
            self.map = Some(Map::new(budget, true));
        }
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
    use strake_env::Rng;

    const A: &[u8] = b"a";

    fn known(names: &KnownNames) -> Option<Option<u64>> {
        names.get(A).map(|found| found.map(|ino| ino.0))
    }

    #[test]
    fn a_new_directory_knows_its_names_and_others_learn_them() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        assert_eq!(known(&names), None);
        names.learn(names.changes(), (A, Ino(4)), &budget);
        assert_eq!((known(&names), names.get(b"b")), (Some(Some(4)), None));
        names.begin_empty(&budget);
        assert_eq!(known(&names), Some(Some(4)), "it is used already");
        let mut names = KnownNames::default();
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
    fn a_reader_knows_nothing_of_a_name_that_is_being_changed() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        names.begin_empty(&budget);
        names.begin(A);
        names.end(A, Some(Some(Ino(4))));
        names.begin(A);
        assert_eq!((names.look(A, &budget), names.look(b"b", &budget)), (None, Some(None)));
        assert_eq!(names.get(A), Some(Some(Ino(4))), "the one that changes it does");
        names.end(A, Some(None));
        assert_eq!(names.look(A, &budget), Some(None));
    }

    #[test]
    fn an_answer_that_a_change_has_overtaken_is_not_learnt() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        let asked = names.changes();
        names.begin(A);
        names.end(A, Some(Some(Ino(5))));
        names.learn_gap(asked, A, (&[], true), &budget);
        assert_eq!(known(&names), None);
        let asked = names.changes();
        names.forget();
        names.learn_gap(asked, A, (&[], true), &budget);
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
        // A gap, and two of the three names after it.
        budget.give_back(3);
        let following: Vec<_> = (1..4).map(|at| (vec![b'c', at], Ino(at.into()))).collect();
        let asked = names.changes();
        names.learn_gap(asked, A, (&following, true), &budget);
        assert_eq!((known(&names), names.get(b"d")), (None, None), "no room, no gap");
        names.learn_gap(asked, A, (&following[..2], true), &budget);
        assert_eq!((known(&names), names.get(b"d")), (Some(None), Some(None)));
        names.forget();
        assert!(budget.take(3) && !budget.take(1));
    }

    #[test]
    fn names_between_those_that_follow_each_other_are_absent() {
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        let following = [(b"f2".to_vec(), Ino(2)), (b"f4".to_vec(), Ino(4))];
        names.learn_gap(names.changes(), b"f10", (&following, false), &budget);
        let absent: [&[u8]; 4] = [b"f10", b"f11", b"f199", b"f30"];
        assert!(absent.iter().all(|name| names.get(name) == Some(None)));
        assert_eq!((names.get(b"f2"), names.get(b"f4")), (Some(Some(Ino(2))), Some(Some(Ino(4)))));
        let unknown: [&[u8]; 4] = [b"a", b"f1", b"f40", b"g"];
        assert!(unknown.iter().all(|name| names.get(name).is_none()));
        for at in 0..=GAPS_MAX as u64 {
            names.learn_gap(names.changes(), &at.to_be_bytes(), (&[], true), &budget);
        }
        assert!(names.map.as_ref().is_some_and(|map| map.gaps.len() <= GAPS_MAX));
    }

    /// A question that was answered, and whose answer is on its way.
    struct OnItsWay {
        asked: u64,
        name: Vec<u8>,
        following: Vec<(Vec<u8>, Ino)>,
        is_end: bool,
    }

    /// Asks, changes and forgets names at random, and compares what is known with the directory.
    /// Answers and ends of changes arrive late.
    #[test]
    fn what_is_known_is_what_the_directory_has() {
        let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        println!("SEED={seed}");
        let mut rng = Rng::new(seed);
        let all: Vec<Vec<u8>> = (0..30).map(|at: u8| format!("n{at}").into_bytes()).collect();
        let (budget, mut names) = (Arc::default(), KnownNames::default());
        let mut directory: BTreeMap<Vec<u8>, Ino> = BTreeMap::new();
        let mut answers: Vec<OnItsWay> = Vec::new();
        let mut changing: Vec<(Vec<u8>, Option<Ino>)> = Vec::new();
        let (mut known, mut absent) = (0, 0);
        for step in 0..20_000 {
            let name = rng.index(all.len());
            let name = &all[name];
            match rng.below(12) {
                0..=3 if names.get(name).is_none() && !directory.contains_key(name) => {
                    let mut rest = directory.range(name.clone()..);
                    let following = rest.by_ref().take(3).map(|(next, ino)| (next.clone(), *ino));
                    let following = following.collect();
                    let (asked, name, is_end) =
                        (names.changes(), name.clone(), rest.next().is_none());
                    answers.push(OnItsWay { asked, name, following, is_end });
                }
                4..=6 if !answers.is_empty() => {
                    let at = rng.index(answers.len());
                    let OnItsWay { asked, name, following, is_end } = answers.swap_remove(at);
                    names.learn_gap(asked, &name, (&following, is_end), &budget);
                }
                7 | 8 if changing.len() < 3 => {
                    names.begin(name);
                    let to = Some(Ino(step)).filter(|_| rng.one_in(2));
                    match to {
                        Some(ino) => drop(directory.insert(name.clone(), ino)),
                        None => drop(directory.remove(name)),
                    }
                    changing.push((name.clone(), to));
                }
                9 | 10 if !changing.is_empty() => {
                    let (name, to) = changing.swap_remove(rng.index(changing.len()));
                    names.end(&name, Some(to).filter(|_| !rng.one_in(10)));
                }
                // The directory goes to another client, when no change is under way, and back.
                11 if changing.is_empty() && rng.one_in(10) => {
                    names.forget();
                    directory.remove(name);
                }
                _ => {}
            }
            for name in all.iter().filter(|name| changing.iter().all(|(one, _)| one != *name)) {
                let Some(found) = names.get(name) else { continue };
                assert_eq!(found, directory.get(name).copied(), "step {step}, {name:?}");
                *(if found.is_some() { &mut known } else { &mut absent }) += 1;
            }
        }
        assert!(known > 1000 && absent > 1000, "{known} names and {absent} absent ones known");
    }
}
