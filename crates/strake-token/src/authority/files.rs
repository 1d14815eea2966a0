//! The holdings of every client in every file, with two lists of what the table looks for: the
//! revokes that are out, by the time at which they were sent, and the clients that write beside
//! others. So no message has the table walk over all files.
//!
//! All changes go through [`Files::change`], which keeps the lists.

use crate::held::{Held, Limit};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strake_proto::{ClientId, GrantNumber, Ino};

/// One client's holdings of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) held: Held,
    pub(super) newest: GrantNumber,
    /// When the newest was granted.
    pub(super) since: Duration,
    /// Boxed, because few are out, and there may be a hundred million tokens.
    pub(super) revoke: Option<Box<Revoke>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Revoke {
    pub(super) limit: Limit,
    pub(super) sent: Duration,
}

impl Holding {
    /// When the revoke that is out was sent, and whether the client writes beside others.
    fn marks(&self) -> (Option<Duration>, bool) {
        (self.revoke.as_ref().map(|revoke| revoke.sent), self.held.is_writing())
    }
}

/// The clients that hold something of a file, in order. Mostly there is one.
pub(super) type Holdings = Vec<(ClientId, Holding)>;

/// The place of a client, or where it belongs.
fn place(holdings: &Holdings, client: ClientId) -> Result<usize, usize> {
    holdings.binary_search_by_key(&client, |(other, _)| *other)
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Files {
    files: BTreeMap<Ino, Holdings>,
    /// The revokes that are out, the one that was sent first at the front.
    out: BTreeSet<(Duration, Ino, ClientId)>,
    /// Those who write beside others.
    writers: BTreeSet<(Ino, ClientId)>,
}

impl Files {
    /// The number of files of which some client holds something.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// The clients that hold something of a file, and what that is.
    pub(super) fn of(&self, ino: Ino) -> impl Iterator<Item = (ClientId, &Holding)> {
        let holdings = self.files.get(&ino).into_iter().flatten();
        holdings.map(|(client, holding)| (*client, holding))
    }

    /// The holding of a client in a file, if it has one.
    pub(super) fn get(&self, ino: Ino, client: ClientId) -> Option<&Holding> {
        let holdings = self.files.get(&ino)?;
        place(holdings, client).ok().map(|at| &holdings[at].1)
    }

    /// Changes what a client holds of a file, which may have been nothing.
    pub(super) fn change<T>(
        &mut self,
        ino: Ino,
        client: ClientId,
        change: impl FnOnce(&mut Holding) -> T,
    ) -> T {
        let holdings = self.files.entry(ino).or_insert_with(|| Vec::with_capacity(1));
        let at = place(holdings, client).unwrap_or_else(|at| {
            holdings.insert(at, (client, Holding::default()));
            at
        });
        let holding = &mut holdings[at].1;
        let before = holding.marks();
        let result = change(holding);
        let mut after = holding.marks();
        if holding.held.is_empty() {
            holdings.remove(at);
            after = (None, false);
            if holdings.is_empty() {
                self.files.remove(&ino);
            }
        }
        if before != after {
            self.list(ino, client, before, after);
        }
        result
    }

    fn list(
        &mut self,
        ino: Ino,
        client: ClientId,
        before: (Option<Duration>, bool),
        after: (Option<Duration>, bool),
    ) {
        if let Some(sent) = before.0 {
            self.out.remove(&(sent, ino, client));
        }
        if let Some(sent) = after.0 {
            self.out.insert((sent, ino, client));
        }
        if after.1 {
            self.writers.insert((ino, client));
        } else {
            self.writers.remove(&(ino, client));
        }
    }

    /// A client holds nothing any more. This walks over all files.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.files.values_mut().for_each(|all| all.retain(|(other, _)| *other != client));
        self.files.retain(|_, holdings| !holdings.is_empty());
        self.out.retain(|(_, _, other)| *other != client);
        self.writers.retain(|(_, other)| *other != client);
    }

    /// When the revoke was sent that has been out for longest.
    pub(super) fn first_sent(&self) -> Option<Duration> {
        self.out.first().map(|(sent, _, _)| *sent)
    }

    /// The revokes that were sent up to that time and are out.
    pub(super) fn sent_until(&self, time: Duration) -> Vec<(Ino, ClientId)> {
        let sent = self.out.iter().take_while(|(sent, _, _)| *sent <= time);
        sent.map(|(_, ino, client)| (*ino, *client)).collect()
    }

    /// The clients that write a file beside others, by file.
    pub(super) fn writers(&self) -> impl Iterator<Item = (Ino, ClientId)> {
        self.writers.iter().copied()
    }

    /// Walks over all files.
    ///
    /// # Panics
    /// If a file without holders is kept, or a list says something else than the files.
    pub(super) fn check(&self, mut look: impl FnMut(Ino, &Holdings)) {
        let (mut out, mut writers) = (0, 0);
        for (ino, holdings) in &self.files {
            assert!(!holdings.is_empty(), "a file without holders is not kept");
            assert!(holdings.is_sorted_by_key(|(client, _)| *client), "holders are in order");
            for (client, holding) in holdings {
                let (sent, writes) = holding.marks();
                let is_listed = sent.is_none_or(|sent| self.out.contains(&(sent, *ino, *client)));
                assert!(is_listed, "inode {ino}: the revoke to client {client} is forgotten");
                let is_listed = !writes || self.writers.contains(&(*ino, *client));
                assert!(is_listed, "inode {ino}: client {client} writes, and is not listed");
                out += usize::from(sent.is_some());
                writers += usize::from(writes);
            }
            look(*ino, holdings);
        }
        assert_eq!((out, writers), (self.out.len(), self.writers.len()), "something is over");
    }
}
