//! What one client may use, what it must give back, and when.
//!
//! **A use** is an operation that has all tokens it asked for; it counts as long as its
//! [`UseId`] is not ended. A use takes all tokens at once or none.
//!
//! **A revoke** limits what new uses may take, at once. When no use under way needs more than the
//! limit, the holder says [`Effect::Flush`]: the client makes its changes durable, and has the
//! kernel drop what it cached. After [`Holder::flushed`] the holder answers with what it keeps.
//!
//! **Writing beside others** ([`Mode::Writing`]). A client that held the file exclusively first
//! drops all that it knows of it: its uses end, and no other begins before that. After that it
//! keeps only blocks that it has *used*. It gives others up at once, for nothing of them is in
//! memory. How many blocks it asks for beyond those that it needs doubles from grant to grant, and
//! begins anew when somebody else wants some of them.
//!
//! **Open files.** The authority hears of a file that is open with the request for its inode token.
//! As long as the client holds that token, it opens and closes the file without a word: nobody else
//! removes the file's name meanwhile. What it says when it gives the token up names whether it has
//! the file open. A client that has no inode token says that it has closed the file, and so does
//! one for which the file may have no name ([`Holder::let_go`]).
//!
//! **New files** come with their tokens ([`Holder::made`]). The client does not know the file
//! before that, so it answers a revoke of it that is faster, and forgets it. As long as files are
//! being made, it remembers the newest number that it has forgotten. The token of a new file whose
//! number is not above that is void, and is asked for.
//!
//! **Late messages.** A revoke names the newest grant that it covers. A grant up to that number
//! that arrives later is void, and the operation asks again. A grant that nobody waits for is
//! given back. A revoke that covers less than the newest grant here was answered before.

use crate::held::{Held, Limit, Mode, RangeWant, Want};
use crate::message::{Granted, Reply, Request, RequestId, Term};
use crate::ranges::{BlockRange, Ranges};
use crate::rule::{Rule, obeys};
use std::collections::BTreeMap;
use strake_proto::{BlockIndex, GrantNumber, Ino};

/// A client that writes beside others holds at most that many pieces of one file when another
/// client wants some of it. With more it gives all up.
pub const PIECES_MAX: usize = 64;
/// It asks for at most that many blocks beyond those that it needs.
const AHEAD_MAX: u64 = 1024;

/// Names a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseId(pub u64);

/// What the holder wants done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Send the authority a message.
    Send(Request),
    /// The operation that waits under this name may go on: its use has begun.
    Begun(UseId),
    /// Make durable, and drop from all caches, what the limit takes away. Then call
    /// [`Holder::flushed`].
    Flush(Ino, Limit),
}

/// What is known of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct File {
    held: Held,
    /// Whether handles are open, or are being opened.
    is_open: bool,
    /// The newest grant that was heard of: from a grant, or from a revoke that covers it.
    newest: GrantNumber,
    revoke: Option<Revoked>,
    /// The blocks that uses have had since they were granted; of a file that is held exclusively
    /// the last ones that were written.
    used: Ranges,
    /// How many blocks more than needed are asked for.
    ahead: u64,
}

impl File {
    /// Adds to a revoke, after which the client writes beside others, that it keeps no blocks but
    /// those that it used.
    fn keep_only_used(&mut self) {
        let Some(revoke) = &mut self.revoke else { return };
        if !self.held.limited(&revoke.limit).is_writing() {
            return;
        }
        let unused = match self.used.pieces() {
            0..=PIECES_MAX => self.used.gaps(),
            _ => vec![BlockRange::ALL],
        };
        let ranges = unused.into_iter().map(|range| (range, None)).collect();
        revoke.limit.and(Limit { inode: Some(Mode::Exclusive), ranges });
        self.ahead = 0;
    }

    /// Whether a grant was made since the revoke that is being answered: the authority sent it
    /// twice, and had its answer. No use begins, and nobody asks, before the flush that was ordered
    /// is done.
    fn is_overtaken(&self) -> bool {
        self.revoke.as_ref().is_some_and(|revoke| revoke.upto < self.newest)
    }

    /// Whether the revoke of a file that is written beside others is only about blocks that were
    /// never used.
    fn gives_up_unused(&self) -> bool {
        let Some(revoke) = &self.revoke else { return false };
        let mut ranges = revoke.limit.ranges.iter();
        self.held.is_writing()
            && self.held.limited(&revoke.limit).is_writing()
            && (!ranges.any(|(range, _)| self.used.overlaps(*range))
                || !obeys(Rule::UsedBlocksAreFlushed))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Revoked {
    upto: GrantNumber,
    limit: Limit,
    /// Whether the flush was ordered.
    flushing: bool,
    /// Whether the client gives the file back unasked. The authority would grant it again at once,
    /// and the grant would be of no use: so nobody asks before the flush is done.
    unasked: bool,
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    term: Term,
    files: BTreeMap<Ino, File>,
    /// Uses under way.
    uses: BTreeMap<UseId, Vec<Want>>,
    /// Operations that wait, by their latest attempt.
    asked: BTreeMap<RequestId, (UseId, Vec<Want>)>,
    /// Operations that will ask once a file is given back.
    deferred: Vec<(UseId, Vec<Want>)>,
    /// What is reasserted, until the leader has heard all of it.
    reasserting: Vec<Request>,
    /// How many files are being made, and the newest number of a file that was forgotten meanwhile.
    making: u32,
    forgotten: GrantNumber,
    next_use: u64,
    next_request: u64,
}

impl Holder {
    /// Begins an operation. [`Effect::Begun`] says when it may use the tokens: perhaps at once.
    ///
    /// # Panics
    /// If a want makes no sense, or a file is named twice.
    pub fn begin(&mut self, wants: Vec<Want>) -> (UseId, Vec<Effect>) {
        assert!(wants.iter().all(Want::is_valid), "an operation wants something");
        let number = UseId(self.next_use);
        self.next_use += 1;
        (number, self.use_or_ask(number, wants).into_iter().collect())
    }

    /// Begins a use, or asks for its tokens; or neither, as long as a file is being given back.
    fn use_or_ask(&mut self, number: UseId, wants: Vec<Want>) -> Option<Effect> {
        if wants.iter().all(|want| self.usable(want.ino).covers(want)) {
            let wants = wants.into_iter().map(|want| self.note_used(want)).collect();
            self.uses.insert(number, wants);
            return Some(Effect::Begun(number));
        }
        let is_given_back = |want: &Want| {
            let file = self.files.get(&want.ino);
            file.is_some_and(|file| {
                file.is_overtaken() || file.revoke.as_ref().is_some_and(|revoke| revoke.unasked)
            })
        };
        if wants.iter().any(is_given_back) {
            self.deferred.push((number, wants));
            return None;
        }
        Some(self.ask(number, wants))
    }

    /// Notes which blocks a use has. A use of some blocks of a file that is held exclusively counts
    /// as one of the whole file.
    fn note_used(&mut self, want: Want) -> Want {
        let (Some(file), Some(range), Some(Mode::Writing)) =
            (self.files.get_mut(&want.ino), want.range, want.inode)
        else {
            return want;
        };
        let is_whole = file.held.inode == Some(Mode::Exclusive);
        if is_whole {
            file.used = Ranges::default();
        }
        if !file.used.covers(range.required, Mode::Exclusive) {
            file.used.raise(range.required, Mode::Exclusive);
        }
        if is_whole && obeys(Rule::WritersBeginAnew) {
            return Want { inode: Some(Mode::Exclusive), range: None, ..want };
        }
        want
    }

    /// Ends a use.
    ///
    /// # Panics
    /// If it is not under way.
    pub fn end(&mut self, number: UseId) -> Vec<Effect> {
        let wants = self.uses.remove(&number).expect("invariant: only uses that begun are ended");
        wants.iter().flat_map(|want| self.flush_if_unused(want.ino)).collect()
    }

    /// What a flush was ordered for is durable and dropped.
    pub fn flushed(&mut self, ino: Ino) -> Vec<Effect> {
        self.answer(ino, false)
    }

    /// Like [`Holder::flushed`], where all of the file is dropped, whatever the limit.
    pub fn dropped(&mut self, ino: Ino) -> Vec<Effect> {
        self.answer(ino, true)
    }

    fn answer(&mut self, ino: Ino, drops_all: bool) -> Vec<Effect> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        let Some(revoke) = file.revoke.take() else { return Vec::new() };
        assert!(revoke.flushing, "a flush that was not ordered");
        if revoke.upto < file.newest {
            // The authority has made a grant since, so it had its answer.
            return self.begin_deferred();
        }
        file.held = file.held.limited(&revoke.limit);
        if drops_all {
            file.held.inode = None;
            file.held.ranges = Ranges::default();
        }
        let stays_open = match file.is_open {
            true => obeys(Rule::OpenOutlivesTheInode),
            false => !obeys(Rule::UnusedOpenGoesWithTheInode),
        };
        file.held.open &= file.held.inode.is_some() || stays_open;
        if file.held.is_writing() {
            revoke.limit.ranges.iter().for_each(|(range, most)| file.used.limit(*range, *most));
        } else {
            file.used = Ranges::default();
        }
        let keeps = file.held.clone();
        self.forget_if_empty(ino);
        let mut effects = vec![Effect::Send(Request::GivenUp { ino, upto: revoke.upto, keeps })];
        effects.extend(self.begin_deferred());
        effects
    }

    fn begin_deferred(&mut self) -> Vec<Effect> {
        let deferred = std::mem::take(&mut self.deferred).into_iter();
        deferred.filter_map(|(number, wants)| self.use_or_ask(number, wants)).collect()
    }

    /// Gives back all of a file that no use needs, unasked. The result is to be done like an
    /// [`Effect::Flush`]. `None` if uses are under way, or a revoke asks for it anyway.
    pub fn give_back(&mut self, ino: Ino) -> Option<Limit> {
        let is_used = self.uses.values().flatten().any(|want| want.ino == ino);
        let file = self.files.get_mut(&ino)?;
        if is_used || file.is_open || file.revoke.is_some() || file.held.is_empty() {
            return None;
        }
        let (upto, limit) = (file.newest, Limit { inode: None, ranges: Vec::new() });
        file.held.open = false;
        file.revoke = Some(Revoked { upto, limit: limit.clone(), flushing: true, unasked: true });
        Some(limit)
    }

    /// A file is about to be made. To be ended with [`Holder::end_making`].
    pub fn begin_making(&mut self) {
        self.making += 1;
    }

    /// A file was made, and the leader of a term has granted it along with the answer, exclusively
    /// and open.
    ///
    /// # Panics
    /// If no file is being made.
    pub fn made(&mut self, term: Term, ino: Ino, number: GrantNumber) {
        assert!(self.making > 0, "a new file is made here");
        if term != self.term && obeys(Rule::OtherTermsAreVoid) {
            return;
        }
        let is_late = match self.files.get(&ino) {
            Some(file) => number <= file.newest || file.revoke.is_some(),
            None => number <= self.forgotten,
        };
        if is_late && obeys(Rule::LateTokensOfNewFilesAreVoid) {
            return;
        }
        let file = self.files.entry(ino).or_default();
        file.held = Held { inode: Some(Mode::Exclusive), open: true, ranges: Ranges::default() };
        file.newest = number;
    }

    /// The answer to a change that makes a file has come, or will not.
    pub fn end_making(&mut self) {
        self.making -= 1;
        if self.making == 0 {
            self.forgotten = GrantNumber::default();
        }
    }

    /// A file is about to be opened. It counts as open until [`Holder::closed`], once the operation
    /// that follows has OPEN.
    pub fn opening(&mut self, ino: Ino) {
        self.files.entry(ino).or_default().is_open = true;
    }

    /// All handles of a file are closed. Returns the message that says so, if the authority has to
    /// hear of it now.
    pub fn closed(&mut self, ino: Ino) -> Option<Effect> {
        let file = self.files.get_mut(&ino)?;
        file.is_open = false;
        // Otherwise it hears of it when the inode token is given up.
        let is_told = file.held.inode.is_none() && obeys(Rule::ClosesAreTold);
        let told = if is_told { self.let_go(ino) } else { None };
        self.forget_if_empty(ino);
        told
    }

    /// A file may have no name: if this client does not have it open, the authority must hear so.
    /// Returns the message that says so, if the authority has it otherwise.
    pub fn let_go(&mut self, ino: Ino) -> Option<Effect> {
        let file = self.files.get_mut(&ino)?;
        if file.is_open || !std::mem::take(&mut file.held.open) {
            return None;
        }
        let (upto, keeps) = (file.newest, file.held.clone());
        self.forget_if_empty(ino);
        Some(Effect::Send(Request::GivenUp { ino, upto, keeps }))
    }

    /// Takes a message of the authority of a term.
    pub fn receive(&mut self, term: Term, message: Reply) -> Vec<Effect> {
        if term != self.term && obeys(Rule::OtherTermsAreVoid) {
            // Of an old leader; or of a new one, to which this client has not reasserted yet.
            return Vec::new();
        }
        match message {
            Reply::Grant { request, grants } => self.granted(request, grants),
            Reply::Revoke { ino, upto, limit } => self.revoked(ino, upto, limit),
            Reply::Reasserted => self.reasserted(),
            Reply::Unusable { .. }
            | Reply::Writable { .. }
            | Reply::Places { .. }
            | Reply::Lock(_) => Vec::new(),
        }
    }

    /// A new leader: everything that is held is said again, and what waits is asked for anew. A
    /// revoke of the old leader whose flush is not ordered is forgotten; the new one revokes
    /// again.
    pub fn reassert(&mut self, term: Term) -> Vec<Effect> {
        assert!(term > self.term, "terms rise");
        self.term = term;
        self.reasserting.clear();
        for (ino, file) in &mut self.files {
            match &mut file.revoke {
                // Its answer is about what is reasserted now.
                Some(revoke) if revoke.flushing => revoke.upto = file.newest,
                _ => file.revoke = None,
            }
            if !file.held.is_empty() {
                let (ino, held, newest) = (*ino, file.held.clone(), file.newest);
                self.reasserting.push(Request::Reassert { ino, held, newest });
            }
        }
        let files = self.reasserting.len() as u64;
        self.reasserting.push(Request::Reasserted { files });
        let mut effects: Vec<Effect> = self.reasserting.iter().cloned().map(Effect::Send).collect();
        for (number, wants) in std::mem::take(&mut self.asked).into_values() {
            effects.push(self.ask(number, wants));
        }
        effects
    }

    /// The leader has heard all that was reasserted. What was said meanwhile about a file that was
    /// closed may have come before its reassertion.
    fn reasserted(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for request in std::mem::take(&mut self.reasserting) {
            let Request::Reassert { ino, held, newest } = request else { continue };
            let (keeps, upto) = (self.in_use(ino), self.newest(ino).unwrap_or(newest));
            if held.open && !keeps.open && obeys(Rule::ReassertedClosesAreTold) {
                effects.push(Effect::Send(Request::GivenUp { ino, upto, keeps }));
            }
        }
        effects
    }

    /// All that waits for an answer, to be sent again when none came for a while.
    pub fn repeat(&self) -> Vec<Effect> {
        let reasserting = self.reasserting.iter().cloned().map(Effect::Send);
        let asked = self.asked.iter().map(|(request, (_, wants))| {
            Effect::Send(Request::Ask { request: *request, wants: wants.clone() })
        });
        reasserting.chain(asked).collect()
    }

    fn ask(&mut self, number: UseId, wants: Vec<Want>) -> Effect {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        let wants: Vec<Want> = wants.into_iter().map(|want| self.with_more(want)).collect();
        self.asked.insert(request, (number, wants.clone()));
        Effect::Send(Request::Ask { request, wants })
    }

    /// What is wanted, with the blocks behind that are likely to be wanted next.
    fn with_more(&self, want: Want) -> Want {
        let (Some(range), Some(Mode::Writing)) = (want.range, want.inode) else { return want };
        let ahead = self.files.get(&want.ino).map_or(0, |file| file.ahead);
        let to = BlockIndex(range.required.to.0.saturating_add(ahead));
        let desired = BlockRange { to, ..range.required };
        Want { range: Some(RangeWant { desired, ..range }), ..want }
    }

    fn granted(&mut self, request: RequestId, grants: Vec<Granted>) -> Vec<Effect> {
        let Some((number, wants)) = self.asked.remove(&request) else {
            return self.return_unwanted(grants);
        };
        let mut effects = Vec::new();
        for Granted { ino, held, number } in grants {
            let file = self.files.entry(ino).or_default();
            // A grant that is void, or was overtaken by a newer one, changes nothing.
            if number > file.newest {
                let opens = wants.iter().any(|want| want.ino == ino && want.open);
                let is_stale = held.open && !opens && !file.held.open && !file.is_open;
                file.held = held;
                if is_stale && obeys(Rule::StaleOpensAreTold) {
                    // The message that let it go came after this grant, and was void.
                    file.held.open = false;
                    let keeps = file.held.clone();
                    effects.push(Effect::Send(Request::GivenUp { ino, upto: number, keeps }));
                }
                file.newest = number;
                if file.is_overtaken() && file.revoke.as_ref().is_some_and(|it| !it.flushing) {
                    file.revoke = None;
                }
                if file.held.is_writing() {
                    file.ahead = (2 * file.ahead).clamp(1, AHEAD_MAX);
                }
            }
        }
        effects.extend(self.use_or_ask(number, wants));
        effects
    }

    /// A grant that no operation waits for: the authority has it in its table, and must hear that
    /// it is not held.
    fn return_unwanted(&mut self, grants: Vec<Granted>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for Granted { ino, number, .. } in grants {
            let (newest, keeps) = match self.files.get(&ino) {
                Some(file) => (file.newest, file.held.clone()),
                None => (GrantNumber::default(), Held::default()),
            };
            if number > newest {
                if let Some(file) = self.files.get_mut(&ino) {
                    file.newest = number;
                }
                effects.push(Effect::Send(Request::GivenUp { ino, upto: number, keeps }));
            }
        }
        effects
    }

    fn revoked(&mut self, ino: Ino, upto: GrantNumber, limit: Limit) -> Vec<Effect> {
        let file = self.files.entry(ino).or_default();
        if upto < file.newest {
            // It was answered before the newest grant was made.
            return Vec::new();
        }
        if obeys(Rule::LateGrantsAreVoid) {
            file.newest = upto;
        }
        if file.revoke.is_none() && file.held.limited(&limit) == file.held {
            // A repetition of one that was answered. As long as it was being answered again, what
            // is asked for would be granted at once, for nothing.
            let keeps = file.held.clone();
            self.forget_if_empty(ino);
            return vec![Effect::Send(Request::GivenUp { ino, upto, keeps })];
        }
        match &mut file.revoke {
            Some(revoke) if revoke.flushing => {
                // Answered when the flush is done; if that is not enough, it is asked again.
                return Vec::new();
            }
            Some(revoke) => {
                revoke.upto = upto;
                revoke.limit.and(limit);
            }
            None => {
                file.revoke = Some(Revoked { upto, limit, flushing: false, unasked: false });
            }
        }
        file.keep_only_used();
        self.flush_if_unused(ino)
    }

    /// What new uses of a file may take: what is held, under the limit of a revoke.
    pub fn usable(&self, ino: Ino) -> Held {
        let Some(file) = self.files.get(&ino) else { return Held::default() };
        let Some(revoke) = &file.revoke else { return file.held.clone() };
        if !obeys(Rule::RevokesLimitNewUses) {
            return file.held.clone();
        }
        if file.is_overtaken() {
            return Held { open: file.held.open, ..Held::default() };
        }
        let left = file.held.limited(&revoke.limit);
        if left.is_writing() && !file.held.is_writing() && obeys(Rule::WritersBeginAnew) {
            return Held { open: left.open, ..Held::default() };
        }
        left
    }

    /// Orders the flush of a revoked file once no use under way needs more than the limit. Answers
    /// at once where there is nothing to flush.
    fn flush_if_unused(&mut self, ino: Ino) -> Vec<Effect> {
        let usable = self.usable(ino);
        let wants = self.uses.values().flatten().filter(|want| want.ino == ino);
        if !wants.into_iter().all(|want| usable.covers(want)) && obeys(Rule::UsesAreWaitedFor) {
            return Vec::new();
        }
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        let is_unused = file.gives_up_unused();
        let Some(revoke) = file.revoke.as_mut() else { return Vec::new() };
        if std::mem::replace(&mut revoke.flushing, true) {
            return Vec::new();
        }
        if is_unused {
            return self.flushed(ino);
        }
        vec![Effect::Flush(ino, revoke.limit.clone())]
    }

    fn forget_if_empty(&mut self, ino: Ino) {
        let is_empty = |file: &File| file.held.is_empty() && file.revoke.is_none() && !file.is_open;
        let is_asked = || self.asked.values().any(|(_, wants)| wants.iter().any(|w| w.ino == ino));
        if self.files.get(&ino).is_some_and(is_empty)
            && !is_asked()
            && let Some(file) = self.files.remove(&ino)
            && self.making > 0
        {
            self.forgotten = self.forgotten.max(file.newest);
        }
    }

    /// Whether the leader has yet to hear what this client reasserts.
    pub fn is_reasserting(&self) -> bool {
        !self.reasserting.is_empty()
    }

    /// The term that this client has reasserted in; all that it says is of this term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// What this client may use of a file: the view that must never conflict with another's.
    pub fn in_use(&self, ino: Ino) -> Held {
        self.files.get(&ino).map(|file| file.held.clone()).unwrap_or_default()
    }

    /// The uses under way.
    pub fn uses(&self) -> impl Iterator<Item = (UseId, &[Want])> {
        self.uses.iter().map(|(number, wants)| (*number, wants.as_slice()))
    }

    /// The newest number that this client was ever granted for a file, and still knows.
    pub fn newest(&self, ino: Ino) -> Option<GrantNumber> {
        self.files.get(&ino).map(|file| file.newest)
    }

    /// Whether operations wait, uses are under way, or flushes are ordered.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
            && self.making == 0
            && self.deferred.is_empty()
            && self.reasserting.is_empty()
            && self.uses.is_empty()
            && self.files.values().all(|file| file.revoke.is_none())
    }

    /// Walks everything.
    ///
    /// # Panics
    /// If a use has more than is held, or a range is held without its inode.
    pub fn check(&self) {
        for file in self.files.values() {
            assert!(file.held.is_complete(), "ranges without the inode");
        }
        for (number, wants) in &self.uses {
            for want in wants {
                assert!(self.in_use(want.ino).covers(want), "use {number:?} lacks {want:?}");
            }
        }
    }
}
