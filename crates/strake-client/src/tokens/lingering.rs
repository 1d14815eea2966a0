//! A file in quick use stays a little longer after another client has asked for it.
//!
//! To hand a file over costs a flush and a sync, and the other client does the same as soon as it
//! has done one operation. So clients that make files in one directory, or write records of one
//! block, would spend their time with handing over. A client whose operations on the file follow
//! each other closely goes on for up to [`LINGER_MAX`], and hands over what all of them did at
//! once. It gives the file up as soon as it pauses. So a file that passes to and fro after each
//! operation is not held up: the operations between two revokes are few, and if one is held up in
//! vain, that file is not for [`FUTILE`].
//!
//! **Looks.** A program that makes a file looks at the directory and at the name first. If the
//! directory was taken, each of these looks would get it shared, and the change that follows would
//! take it from others once more. So while a client changes names in a directory, its looks take
//! the directory exclusively, too ([`Lingering::is_changing`]).
//!
//! Pure: the caller has the clock. A revoke that is put off looks to the authority like one that is
//! long on its way.

use std::collections::HashMap;
use std::time::Duration;
use strake_proto::Ino;
use strake_token::message::{Reply, Term};

/// The longest time for which a revoke is put off.
const LINGER_MAX: Duration = Duration::from_millis(20);
/// A pause that ends it.
const PAUSE: Duration = Duration::from_millis(2);
/// The fewest operations that must have begun since the file was granted.
const USES_MIN: u32 = 4;
/// The most files that are put off at once, because each takes a thread that gives up.
const PUT_OFF_MAX: usize = 4;
/// The time for which a file is given up at once after it was put off for nothing.
const FUTILE: Duration = Duration::from_secs(1);
/// A client changes names in a directory if it did so within that time. That is longer than others
/// keep the directory, and ends soon when programs only look.
const CHANGING: Duration = Duration::from_millis(100);
/// The most files that are watched. Beyond that those that were not used just now are forgotten.
const WATCHED_MAX: usize = 4096;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Lingering {
    files: HashMap<Ino, Watched>,
    put_off: HashMap<Ino, PutOff>,
}

#[derive(Default)]
struct Watched {
    /// Operations that began since the last grant.
    uses: u32,
    /// When the last one began.
    last: Duration,
    /// Until then the file is given up at once.
    futile_until: Duration,
    /// When a name in it was last changed.
    changed: Option<Duration>,
}

impl Watched {
    fn is_changing(&self, now: Duration) -> bool {
        self.changed.is_some_and(|changed| now.saturating_sub(changed) < CHANGING)
    }
}

/// The revokes of a file that were put off.
struct PutOff {
    since: Duration,
    /// The operations by then.
    uses: u32,
    revokes: Vec<(Term, Reply)>,
}

/// The fate of a revoke.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It counts now.
    Now(Reply),
    /// It was put off, and somebody has to wait for its time.
    PutOff,
    /// It was put off with an earlier one.
    WithEarlier,
}

impl Lingering {
    /// An operation on a file begins.
    pub(super) fn used(&mut self, ino: Ino, now: Duration) {
        if self.files.len() >= WATCHED_MAX && !self.files.contains_key(&ino) {
            let is_recent = |it: &Watched| {
                let is_used = now.saturating_sub(it.last) < PAUSE;
                is_used || now < it.futile_until || it.is_changing(now)
            };
            self.files.retain(|_, it| is_recent(it));
            if self.files.len() >= WATCHED_MAX {
                return;
            }
        }
        let file = self.files.entry(ino).or_default();
        file.uses = file.uses.saturating_add(1);
        file.last = now;
    }

    /// A name in a directory is changed, in an operation that has begun.
    pub(super) fn changed(&mut self, directory: Ino, now: Duration) {
        if let Some(watched) = self.files.get_mut(&directory) {
            watched.changed = Some(now);
        }
    }

    /// Whether this client changes names in a directory, one after the other.
    pub(super) fn is_changing(&self, directory: Ino, now: Duration) -> bool {
        self.files.get(&directory).is_some_and(|watched| watched.is_changing(now))
    }

    /// A file was granted.
    pub(super) fn granted(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.uses = 0;
        }
    }

    /// A revoke of a file arrives.
    pub(super) fn arrived(
        &mut self,
        ino: Ino,
        term: Term,
        revoke: Reply,
        now: Duration,
    ) -> Arrived {
        if let Some(put_off) = self.put_off.get_mut(&ino) {
            put_off.revokes.push((term, revoke));
            return Arrived::WithEarlier;
        }
        let in_use = |it: &&Watched| {
            it.uses >= USES_MIN && now.saturating_sub(it.last) < PAUSE && now >= it.futile_until
        };
        let file = self.files.get(&ino).filter(in_use);
        let Some(file) = file.filter(|_| self.put_off.len() < PUT_OFF_MAX) else {
            return Arrived::Now(revoke);
        };
        let put_off = PutOff { since: now, uses: file.uses, revokes: vec![(term, revoke)] };
        self.put_off.insert(ino, put_off);
        Arrived::PutOff
    }

    /// How long the revokes of a file are to be put off yet; `None` if they are due.
    pub(super) fn left(&self, ino: Ino, now: Duration) -> Option<Duration> {
        let put_off = self.put_off.get(&ino)?;
        let last = self.files.get(&ino).map_or(put_off.since, |file| file.last);
        let due = (put_off.since + LINGER_MAX).min(last + PAUSE);
        Some(due.saturating_sub(now)).filter(|left| !left.is_zero())
    }

    /// Whether revokes of a file are put off.
    pub(super) fn is_put_off(&self, ino: Ino) -> bool {
        self.put_off.contains_key(&ino)
    }

    /// The revokes that were put off count now.
    pub(super) fn end(&mut self, ino: Ino, now: Duration) -> Vec<(Term, Reply)> {
        let Some(put_off) = self.put_off.remove(&ino) else { return Vec::new() };
        if let Some(file) = self.files.get_mut(&ino)
            && file.uses == put_off.uses
        {
            file.futile_until = now + FUTILE;
        }
        put_off.revokes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_proto::GrantNumber;
    use strake_token::held::Limit;

    const FILE: Ino = Ino(7);
    const TERM: Term = Term(1);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn revoke() -> Reply {
        let limit = Limit { inode: None, ranges: Vec::new() };
        Reply::Revoke { ino: FILE, upto: GrantNumber(1), limit }
    }

    fn used(lingering: &mut Lingering, times: u32, now: Duration) {
        (0..times).for_each(|_| lingering.used(FILE, now));
    }

    #[test]
    fn a_file_in_quick_use_stays_until_it_pauses_or_the_time_is_over() {
        let mut lingering = Lingering::default();
        used(&mut lingering, USES_MIN, ms(100));
        assert_eq!(lingering.arrived(FILE, TERM, revoke(), ms(100)), Arrived::PutOff);
        assert_eq!(lingering.arrived(FILE, TERM, revoke(), ms(100)), Arrived::WithEarlier);
        assert_eq!(lingering.left(FILE, ms(100)), Some(PAUSE));
        let over = ms(100) + LINGER_MAX;
        for at in (101..).map(ms).take_while(|at| *at + PAUSE <= over) {
            used(&mut lingering, 1, at);
            assert_eq!(lingering.left(FILE, at), Some(PAUSE), "at {at:?}");
        }
        used(&mut lingering, 1, over);
        assert_eq!(lingering.left(FILE, over), None, "the time is over");
        assert_eq!(lingering.end(FILE, over).len(), 2);
        assert!(!lingering.is_put_off(FILE));
        // Granted anew: few operations again.
        lingering.granted(FILE);
        used(&mut lingering, USES_MIN - 1, ms(120));
        assert!(matches!(lingering.arrived(FILE, TERM, revoke(), ms(120)), Arrived::Now(_)));
    }

    #[test]
    fn a_file_that_pauses_is_given_up_at_once() {
        let mut lingering = Lingering::default();
        used(&mut lingering, USES_MIN, ms(100));
        let arrived = lingering.arrived(FILE, TERM, revoke(), ms(100) + PAUSE);
        assert!(matches!(arrived, Arrived::Now(_)));
    }

    #[test]
    fn a_file_that_was_put_off_for_nothing_is_not_for_a_while() {
        let mut lingering = Lingering::default();
        used(&mut lingering, USES_MIN, ms(100));
        assert_eq!(lingering.arrived(FILE, TERM, revoke(), ms(100)), Arrived::PutOff);
        assert_eq!(lingering.left(FILE, ms(100) + PAUSE), None, "it pauses");
        assert_eq!(lingering.end(FILE, ms(100) + PAUSE).len(), 1);
        used(&mut lingering, USES_MIN, ms(110));
        assert!(matches!(lingering.arrived(FILE, TERM, revoke(), ms(110)), Arrived::Now(_)));
        let later = ms(100) + PAUSE + FUTILE;
        used(&mut lingering, USES_MIN, later);
        assert_eq!(lingering.arrived(FILE, TERM, revoke(), later), Arrived::PutOff);
    }

    #[test]
    fn a_directory_is_being_changed_for_a_while_after_each_change() {
        let mut lingering = Lingering::default();
        used(&mut lingering, 1, ms(100));
        assert!(!lingering.is_changing(FILE, ms(100)), "it was looked at");
        lingering.changed(FILE, ms(100));
        lingering.granted(FILE);
        assert!(lingering.is_changing(FILE, ms(100) + LINGER_MAX), "it comes back");
        used(&mut lingering, 9, ms(199));
        assert!(lingering.is_changing(FILE, ms(199)));
        assert!(!lingering.is_changing(FILE, ms(100) + CHANGING), "programs only look");
    }

    #[test]
    fn what_is_watched_and_put_off_is_bounded() {
        let mut lingering = Lingering::default();
        for number in 0..=PUT_OFF_MAX as u64 {
            (0..USES_MIN).for_each(|_| lingering.used(Ino(number), ms(1)));
            let arrived = lingering.arrived(Ino(number), TERM, revoke(), ms(1));
            assert_eq!(arrived == Arrived::PutOff, number < PUT_OFF_MAX as u64);
        }
        for number in 0..2 * WATCHED_MAX as u64 {
            lingering.used(Ino(number), ms(100));
        }
        assert_eq!(lingering.files.len(), WATCHED_MAX);
        lingering.used(Ino(0), ms(200));
        lingering.used(Ino(2 * WATCHED_MAX as u64), ms(200));
        assert_eq!(lingering.files.len(), 2, "those that rest make room");
    }
}
