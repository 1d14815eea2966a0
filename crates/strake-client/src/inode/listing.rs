//! Entries of a directory in the order of its listing, as this client has seen them under the
//! directory's token. A program that lists the directory again asks nobody, and neither does the
//! request with which the kernel finds out that a listing has ended.
//!
//! **They are right** as long as the token is held, and as no change of a name was noted since they
//! were asked for: see [`KnownNames`](super::known::KnownNames). A change that is under way may be
//! in the listing or not, as for any program that lists meanwhile.
//!
//! **Walks.** Programs that look at all entries mostly do so in this order. So the listing notes
//! where such a program is, and says which entries it will look at next (`ops/ahead.rs`).

use super::budget::NameBudget;
use std::sync::Arc;
use strake_proto::Ino;
use strake_proto::meta::{Cookie, DirEntry};

/// The number of entries that a program may pass over while it walks. It may also look once more at
/// one of as many before.
const NEAR: usize = 8;
/// The number of entries, the first one included, that a program probably looks at when it has
/// looked at the first one only.
const AFTER_FIRST: usize = 8;

/// Entries that follow each other without a gap.
pub(crate) struct Listing {
    /// The first one is that after this cookie.
    from: Cookie,
    entries: Vec<DirEntry>,
    /// Whether the directory ends with them.
    is_end: bool,
    budget: Arc<NameBudget>,
    /// The place after the last entry that was looked at in this order, and how many were.
    next: usize,
    walked: u32,
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.budget.give_back(self.entries.len());
    }
}

impl Listing {
    /// An empty part of the listing, which begins after a cookie.
    pub(crate) fn new(from: Cookie, budget: &Arc<NameBudget>) -> Listing {
        let (entries, budget) = (Vec::new(), Arc::clone(budget));
        Listing { from, entries, is_end: false, budget, next: 0, walked: 0 }
    }

    /// At most `limit` entries after a cookie, and whether the directory ends with them. `None` if
    /// the next one is not known.
    pub(crate) fn after(&self, cookie: Cookie, limit: usize) -> Option<(Vec<DirEntry>, bool)> {
        let from = self.entries.partition_point(|entry| entry.cookie <= cookie);
        let to = self.entries.len().min(from.saturating_add(limit));
        let is_end = self.is_end && to == self.entries.len();
        let is_known = cookie >= self.from && (from < to || is_end);
        is_known.then(|| (self.entries[from..to].to_vec(), is_end))
    }

    /// The inode of an entry that is looked at, if that is done in the order of the listing.
    pub(crate) fn look(&mut self, name: &[u8]) -> Option<Ino> {
        let near = self.next.saturating_sub(NEAR)..self.entries.len().min(self.next + NEAR);
        let found = near.into_iter().find(|at| self.entries[*at].name == name);
        let is_first = || self.entries.first().is_some_and(|entry| entry.name == name);
        let at = found.or_else(|| is_first().then_some(0))?;
        if at >= self.next {
            self.walked += 1;
            self.next = at + 1;
        } else if at == 0 {
            (self.walked, self.next) = (1, 1);
        }
        Some(self.entries[at].ino)
    }

    /// The entry that was looked at last and those that follow, at most `limit`, if a program
    /// probably looks at them, too. Also the cookie after which they come.
    pub(crate) fn ahead(&self, limit: usize) -> Option<(Cookie, Vec<Ino>)> {
        let from = self.next.checked_sub(1)?;
        let limit = match self.walked {
            0 => return None,
            1 if from > 0 => return None,
            1 => limit.min(AFTER_FIRST),
            _ => limit,
        };
        let after = from.checked_sub(1).map_or(self.from, |before| self.entries[before].cookie);
        let entries = self.entries[from..].iter().take(limit);
        Some((after, entries.map(|entry| entry.ino).collect()))
    }

    /// Whether the next entries are those after this cookie.
    pub(crate) fn goes_on(&self, cookie: Cookie) -> bool {
        let last = self.entries.last().map_or(self.from, |entry| entry.cookie);
        last == cookie && !self.is_end
    }

    /// Takes in the next entries. False if there is no room for them.
    pub(crate) fn add(&mut self, entries: &[DirEntry], is_end: bool) -> bool {
        if !self.budget.take(entries.len()) {
            return false;
        }
        self.entries.extend_from_slice(entries);
        self.is_end = is_end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::NAMES_MAX;
    use super::super::known::KnownNames;
    use super::*;
    use std::collections::BTreeMap;
    use strake_env::Rng;
    use strake_proto::{FileType, Ino};

    fn entry(cookie: Cookie, ino: u64) -> DirEntry {
        let name = format!("name{cookie}").into_bytes();
        DirEntry { cookie, name, ino: Ino(ino), file_type: FileType::Regular, inode: None }
    }

    /// The metadata's answer: at most `limit` entries after a cookie, and whether it has no more.
    fn asked(
        directory: &BTreeMap<Cookie, u64>,
        cookie: Cookie,
        limit: usize,
    ) -> (Vec<DirEntry>, bool) {
        let mut rest = directory.range(cookie + 1..);
        let entries: Vec<_> = rest.by_ref().take(limit).map(|(at, ino)| entry(*at, *ino)).collect();
        (entries, rest.next().is_none())
    }

    /// Lists, changes and gives up a directory at random. What is known of the listing is what the
    /// metadata would answer, but for names that are being changed.
    #[test]
    fn what_is_known_is_what_the_metadata_would_answer() {
        let seed = 1;
        let mut rng = Rng::new(seed);
        let budget = Arc::new(NameBudget::default());
        let (mut names, mut directory) = (KnownNames::default(), BTreeMap::new());
        let (mut known, mut late) = (0, None);
        for step in 0..20_000 {
            let (cookie, limit) = (2 + rng.below(30), 1 + rng.below(8) as usize);
            match rng.below(8) {
                0 => {
                    names.begin(b"name");
                    if directory.remove(&(cookie + 1)).is_none() {
                        directory.insert(cookie + 1, step);
                    }
                    names.end(b"name", None);
                }
                1 if rng.below(4) == 0 => names.forget(),
                // An answer that comes late.
                2 => late = Some((names.changes(), cookie, asked(&directory, cookie, limit))),
                3 => {
                    if let Some((changes, cookie, (entries, is_end))) = late.take() {
                        names.learn_listing(changes, cookie, (&entries, is_end), &budget);
                    }
                }
                _ => match names.listed(cookie, limit) {
                    Some((entries, is_end)) => {
                        let wanted = asked(&directory, cookie, limit);
                        let is_right = if entries.len() == limit || is_end {
                            (entries, is_end) == wanted
                        } else {
                            wanted.0.starts_with(&entries) && !entries.is_empty()
                        };
                        assert!(is_right, "seed {seed}, step {step}");
                        known += 1;
                    }
                    None => {
                        let (entries, is_end) = asked(&directory, cookie, limit);
                        let changes = names.changes();
                        names.learn_listing(changes, cookie, (&entries, is_end), &budget);
                    }
                },
            }
        }
        assert!(known > 1000, "{known}: the cases are met");
        names.forget();
        assert!(budget.take(NAMES_MAX), "what is forgotten makes room");
    }

    #[test]
    fn a_program_that_looks_at_entries_in_their_order_will_look_at_the_next_ones() {
        let budget = Arc::new(NameBudget::default());
        let mut listing = Listing::new(2, &budget);
        let entries: Vec<_> = (3..103).map(|cookie| entry(cookie, 1000 + cookie)).collect();
        assert!(listing.add(&entries, false));
        let look = |listing: &mut Listing, cookie: u64| {
            let name = format!("name{cookie}");
            listing.look(name.as_bytes()).map(|ino| ino.0)
        };
        let inos = |from: u64, count: u64| (from..from + count).map(Ino).collect::<Vec<_>>();
        assert_eq!(listing.ahead(9), None, "nothing was looked at");
        assert_eq!(look(&mut listing, 50), None, "another order");
        assert_eq!(listing.ahead(9), None);
        assert_eq!(look(&mut listing, 5), Some(1005), "the first ones are passed over");
        assert_eq!(listing.ahead(9), None, "one alone tells nothing");
        assert_eq!(look(&mut listing, 3), Some(1003), "a program begins anew");
        assert_eq!(listing.ahead(99), Some((2, inos(1003, AFTER_FIRST as u64))));
        assert_eq!(look(&mut listing, 6), Some(1006));
        assert_eq!(listing.ahead(4), Some((5, inos(1006, 4))));
        assert_eq!(look(&mut listing, 4), Some(1004), "once more");
        assert_eq!(listing.ahead(4), Some((5, inos(1006, 4))), "it goes on where it was");
        (7..=102).for_each(|cookie| assert!(look(&mut listing, cookie).is_some()));
        assert_eq!(listing.ahead(4), Some((101, inos(1102, 1))), "the last one");
        assert_eq!(look(&mut listing, 103), None);
    }

    #[test]
    fn a_listing_without_room_is_not_kept() {
        let budget = Arc::new(NameBudget::default());
        assert!(budget.take(NAMES_MAX - 1));
        let mut names = KnownNames::default();
        names.learn_listing(0, 2, (&[entry(3, 1)], false), &budget);
        assert!(names.listed(2, 9).is_some());
        names.learn_listing(0, 3, (&[entry(4, 1)], true), &budget);
        assert!(names.listed(2, 9).is_none(), "it is not shown as if it were whole");
        assert!(budget.take(1) && !budget.take(1));
    }
}
