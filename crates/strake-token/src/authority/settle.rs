//! Which requests are granted, and whom the others wait for: [`Authority`]'s work after each event.
//!
//! **What an event looks at.** A message about a file concerns the requests that wait for it, and
//! those that are tied to them by other files that they name. Only these are looked at: a thousand
//! clients may wait for files of their own. Time, deaths and new numbers concern all requests.

use super::{Authority, Effect, Waiting};
use crate::held::{Limit, Mode, Want};
use crate::rule::{Rule, obeys};
use std::collections::BTreeSet;
use std::time::Duration;
use strake_proto::{ClientId, Ino};

impl Authority {
    /// Grants what can be granted of the requests that an event concerns, and revokes what the rest
    /// of them waits for. The event is about `files`, or about everything.
    pub(super) fn settle(&mut self, files: Option<BTreeSet<Ino>>, now: Duration) -> Vec<Effect> {
        let mut effects = self.clear_writers(now);
        if !self.grace.is_empty() && self.known.is_empty() && obeys(Rule::AllReassertFirst) {
            return effects;
        }
        let files = files.filter(|_| !self.lacks_numbers).map(|files| self.tied_to(files));
        if files.is_none() {
            self.put_off = None;
            self.lacks_numbers = false;
        }
        let mut at = 0;
        while at < self.waiting.len() {
            let Waiting { client, wants, .. } = &self.waiting[at];
            let is_meant =
                files.as_ref().is_none_or(|files| wants.iter().any(|it| files.contains(&it.ino)));
            if !is_meant
                || !self.are_known(*client, wants)
                || wants.iter().any(|want| self.is_in_repair(want.ino))
                || self.is_behind(at)
            {
                at += 1;
                continue;
            }
            let needed = self.needed(at);
            if needed.is_empty() && !self.owes_answer(at) {
                if self.next == self.reserved {
                    self.lacks_numbers = true;
                    self.reserve(&mut effects);
                    return effects;
                }
                let waiting = self.waiting.remove(at);
                effects.push(self.grant(waiting, now));
                continue;
            }
            for (ino, client, limit) in needed {
                effects.extend(self.revoke(ino, client, limit, now));
            }
            at += 1;
        }
        effects
    }

    /// Whether the table has all that anybody holds of files that a client wants, and no
    /// reassertion by that client is on its way: it would say what was held before.
    fn are_known(&self, client: ClientId, wants: &[Want]) -> bool {
        let has_reasserted = !self.grace.contains_key(&client);
        self.grace.is_empty()
            || has_reasserted && wants.iter().all(|want| self.known.contains(&want.ino))
            || !obeys(Rule::AllReassertFirst)
    }

    /// These files, and those that waiting requests name together with one of them, and so on.
    fn tied_to(&self, mut files: BTreeSet<Ino>) -> BTreeSet<Ino> {
        loop {
            let before = files.len();
            for waiting in self.waiting.iter().filter(|waiting| waiting.wants.len() > 1) {
                let named = || waiting.wants.iter().map(|want| want.ino);
                if named().any(|ino| files.contains(&ino)) {
                    files.extend(named());
                }
            }
            if files.len() == before {
                return files;
            }
        }
    }

    /// Whether an earlier request of another client wants something that conflicts, and does not
    /// wait for this client.
    fn is_behind(&self, at: usize) -> bool {
        let passes = obeys(Rule::HoldersPassThoseWhoWait);
        self.ahead(at).any(|earlier| !passes || !self.waits_for(earlier, at))
    }

    /// The earlier requests of other clients that conflict with a request.
    fn ahead(&self, at: usize) -> impl Iterator<Item = usize> {
        let this = &self.waiting[at];
        (0..at).filter(move |earlier| {
            let earlier = &self.waiting[*earlier];
            let mut wants = earlier.wants.iter();
            earlier.client != this.client
                && wants.any(|one| this.wants.iter().any(|two| one.conflicts_with(two)))
        })
    }

    /// Whether a request waits for the client of the request `of` to give up a file that `of` does
    /// not name, or is behind one that does. The files that `of` names its client can give up: none
    /// of its operations has them and waits.
    fn waits_for(&self, at: usize, of: usize) -> bool {
        let Waiting { client, wants, .. } = &self.waiting[of];
        let (mut seen, mut left) = (BTreeSet::from([at]), vec![at]);
        while let Some(next) = left.pop() {
            let mut needed = self.needed(next).into_iter();
            if needed.any(|(ino, holder, _)| {
                holder == *client && wants.iter().all(|want| want.ino != ino)
            }) {
                return true;
            }
            left.extend(self.ahead(next).filter(|earlier| seen.insert(*earlier)));
        }
        false
    }

    /// Whether the client that asks owes an answer about one of the files. A grant would make the
    /// answer that is on its way void, and so could pass others by for ever.
    fn owes_answer(&self, at: usize) -> bool {
        let this = &self.waiting[at];
        this.wants.iter().any(|want| {
            let holding = self.files.get(want.ino, this.client);
            holding.is_some_and(|holding| holding.revoke.is_some())
        })
    }

    /// The clients that hold what conflicts, and what each may keep.
    pub(super) fn needed(&self, at: usize) -> Vec<(Ino, ClientId, Limit)> {
        let this = &self.waiting[at];
        let mut needed = Vec::new();
        for want in &this.wants {
            let limit = want.limit();
            for (client, holding) in self.files.of(want.ino) {
                // A client gives up the mode of writing beside others before it gets another one.
                let leaves = holding.held.is_writing()
                    && want.inode.is_some_and(|mode| mode != Mode::Writing)
                    && obeys(Rule::WritersLeaveFirst);
                let limit = match client == this.client {
                    true if leaves => Limit { inode: None, ranges: Vec::new() },
                    true => continue,
                    false => limit.clone(),
                };
                if holding.held.limited(&limit) != holding.held {
                    needed.push((want.ino, client, limit));
                }
            }
        }
        needed
    }
}
