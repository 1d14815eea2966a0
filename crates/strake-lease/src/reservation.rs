//! Which of several servers may use an NSD that all of them reach: a reservation, kept on the NSD
//! itself. Pure: marks and times go in, verdicts come out.
//!
//! The cluster's records say who is to serve such an NSD, under a *number* that rises with each
//! change. The records alone keep nobody off: the server of before may not have heard of them. So
//! each server has a place on the NSD for a *mark*, which it alone writes and all others read.
//!
//! **A round.** A server writes its mark with its number, and then reads those of the others.
//!
//! - A mark with a higher number is of a later server: the reservation is lost. The server ends all
//!   I/O, and then writes that it has left.
//! - A mark with a lower number, of a server that has not left, is waited for. Whatever that server
//!   does, it finds the new mark in its next round, and the permit of its last round ends by
//!   itself. So the wait ends after [`ReservationTimes::patience`], if it has not left before.
//! - Otherwise the server has a permit for I/O. It ends [`ReservationTimes::hold`] after the round
//!   *began*, and each round brings the next one.
//!
//! **Proof.** Let L have the lower number and N the higher one. A round of L that gives a permit
//! has read N's place before N wrote there. It began before that read, so its permit ends within
//! `hold` of N's first write. N counts `patience`, which is longer, from when that write was done.
//! Or L has left; then it has no I/O under way, and its later rounds find N's mark.
//!
//! **A restart.** A server that has once had a permit under its number says so in its mark. All
//! servers with lower numbers are off for good, so when it starts anew under that number it waits
//! for none.
//!
//! **A new process.** The kernel may still have what the process before was killed over: I/O, and
//! a mark. Such a mark lands over newer ones. It can say a lower number, or that the server has
//! left. So a server knows a time from which on nothing of an earlier process is under way, see
//! [`Reservation::new`]. A round that began earlier gives no permit, and patience does not count
//! from there: the mark may be gone again. Nor does the server write until then that it has left.
//!
//! **What remains.** I/O that the host's kernel was given before the permit ended counts as done
//! after `patience - hold`. Nobody can take it back: a host that holds back what it was given for
//! longer may write later. `docs/operating.md` says so.
//!
//! `strake-sim`'s `reservation_model` visits every state of small scopes, and finds each rule that
//! is taken away.

use crate::rule::{Rule, obeys};
use std::time::Duration;
use strake_proto::{ClusterId, NodeName, NsdId};

/// At most so many servers reach one NSD.
pub const SERVERS_MAX: usize = 8;
/// The length of a mark on the NSD in bytes. Its checksum covers the first [`MARK_BYTES`], which
/// are one sector, so no mark is ever torn.
pub const MARK_SPACE: u64 = 4096;
/// Where the mark of the first server lies, in bytes from the start of the NSD. The others follow.
pub const MARKS_OFFSET: u64 = 128 << 10;
/// The bytes of a mark that count.
pub const MARK_BYTES: usize = 512;

const MAGIC: &[u8; 8] = b"STRAKErs";
const VERSION: u32 = 1;
const ACTIVE: u32 = 1;
const HELD: u32 = 2;

/// How long things take. All are the same on every node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationTimes {
    /// From the beginning of one round to that of the next.
    pub round: Duration,
    /// How long a permit lasts.
    pub hold: Duration,
    /// How long a server with a higher number waits for those before it.
    pub patience: Duration,
}

impl ReservationTimes {
    /// Those of a cluster. Patience is longer than a manager's lease and its margin
    /// ([`crate::Times::CLUSTER`]), so a server that stood still answers no reads either when the
    /// next one begins.
    pub const CLUSTER: ReservationTimes = ReservationTimes {
        round: Duration::from_secs(1),
        hold: Duration::from_secs(5),
        patience: Duration::from_secs(11),
    };

    /// How long the kernel may take over what it was given.
    pub fn in_kernel(&self) -> Duration {
        self.patience.saturating_sub(self.hold)
    }
}

/// The words of one server on an NSD. A place where nothing was ever written has the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The number under which the server is, or was, to serve.
    pub number: u64,
    /// It wants to use the NSD, or does. False once it has left.
    pub is_active: bool,
    /// It has had a permit under this number.
    pub is_held: bool,
    /// Rises with each round.
    pub round: u64,
}

/// Whose a mark is. It stands beside the mark, so that another NSD's is not taken for this one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkOwner {
    /// The cluster.
    pub cluster: ClusterId,
    /// The NSD.
    pub nsd: NsdId,
    /// The server that writes here, for people.
    pub server: NodeName,
}

impl Mark {
    /// The bytes of a mark, integers little-endian:
    ///
    /// ```text
    ///   0   8  magic "STRAKErs"
    ///   8   4  CRC32C over the 512 bytes with this field zero
    ///  12   4  format version, 1
    ///  16  16  cluster id
    ///  32   4  NSD id
    ///  36   4  1: active; 2: held
    ///  40   8  number
    ///  48   8  round
    ///  56   1  length of the server's name, at most 255
    ///  57 255  the server's name, for people
    /// 312      zero up to 512
    /// ```
    pub fn encode(&self, owner: &MarkOwner) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        let name = owner.server.as_str().as_bytes();
        let flags = (u32::from(self.is_active) * ACTIVE) | (u32::from(self.is_held) * HELD);
        out[..8].copy_from_slice(MAGIC);
        out[12..16].copy_from_slice(&VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&owner.cluster.0);
        out[32..36].copy_from_slice(&owner.nsd.0.to_le_bytes());
        out[36..40].copy_from_slice(&flags.to_le_bytes());
        out[40..48].copy_from_slice(&self.number.to_le_bytes());
        out[48..56].copy_from_slice(&self.round.to_le_bytes());
        let name = &name[..name.len().min(255)];
        out[56] = name.len() as u8;
        out[57..57 + name.len()].copy_from_slice(name);
        let sum = crc32c::crc32c(&out);
        out[8..12].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a place on NSD `nsd` of `cluster`. Bytes of another NSD, and those that are no mark,
    /// count as never written. `None` for a damaged mark, or one of a newer format:
    /// nobody can say what it stands for.
    pub fn decode(bytes: &[u8; MARK_BYTES], cluster: ClusterId, nsd: NsdId) -> Option<Mark> {
        if bytes[..8] != *MAGIC {
            return Some(Mark::default());
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let mut plain = *bytes;
        plain[8..12].fill(0);
        if crc32c::crc32c(&plain) != word(8) {
            return None;
        }
        if bytes[16..32] != cluster.0 || word(32) != nsd.0 {
            return Some(Mark::default());
        }
        let flags = word(36);
        if word(12) != VERSION || flags & !(ACTIVE | HELD) != 0 {
            return None;
        }
        Some(Mark {
            number: long(40),
            is_active: flags & ACTIVE != 0,
            is_held: flags & HELD != 0,
            round: long(48),
        })
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server may use the NSD until this time.
    Permit {
        /// By the clock that [`Reservation::begin`] was told.
        until: Duration,
    },
    /// Another server, by its place, has not left yet, or its mark cannot be read.
    Waits {
        /// The other one's place. The own one, if an earlier process may still write there.
        other: usize,
    },
    /// A later server is there. This reservation is over.
    Lost {
        /// The later one's place.
        other: usize,
        /// Its number.
        number: u64,
    },
}

/// One server's reservation under one number; see the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservation {
    own: usize,
    mark: Mark,
    times: ReservationTimes,
    /// From then on nothing of an earlier process is under way.
    settled: Duration,
    /// When the present round began.
    begun: Duration,
    /// When the mark was on the NSD for good: that of the first round after `settled`.
    since: Option<Duration>,
}

impl Reservation {
    /// The reservation of the server with place `own`, which found `before` there when it started.
    ///
    /// From `settled` on, by the clock that [`Self::begin`] is told, the kernel has nothing that an
    /// earlier process of this server gave it. That is [`ReservationTimes::in_kernel`] after this
    /// process started. It is earlier for a process that can rule it out otherwise.
    pub fn new(
        own: usize,
        number: u64,
        before: Mark,
        settled: Duration,
        times: ReservationTimes,
    ) -> Reservation {
        let is_held = before.number == number && before.is_held;
        let mark = Mark { number, is_active: true, is_held, round: before.round };
        Reservation { own, mark, times, settled, begun: Duration::ZERO, since: None }
    }

    /// Begins a round. The result is to be written on the NSD, and then all places are to be read.
    pub fn begin(&mut self, now: Duration) -> Mark {
        self.begun = now;
        self.mark.round = self.mark.round.wrapping_add(1);
        self.mark
    }

    /// Ends a round: `marks` are those of all servers, read after the own one was written; `None`
    /// for one that cannot be read.
    pub fn judge(&mut self, now: Duration, marks: &[Option<Mark>]) -> Verdict {
        let is_settled = self.begun >= self.settled || !obeys(Rule::EarlierMarksMayLand);
        if is_settled || !obeys(Rule::PatienceCountsFromALastingMark) {
            self.since.get_or_insert(now);
        }
        let others = || marks.iter().enumerate().filter(|(at, _)| *at != self.own);
        for (other, mark) in others() {
            match mark {
                None if obeys(Rule::UnreadableMarksCount) => return Verdict::Waits { other },
                Some(mark) if mark.number >= self.mark.number && obeys(Rule::LaterServersWin) => {
                    return Verdict::Lost { other, number: mark.number };
                }
                _ => {}
            }
        }
        let patience = match obeys(Rule::PatienceIsLongerThanPermits) {
            true => self.times.patience,
            false => self.times.hold / 2,
        };
        let Some(since) = self.since.filter(|_| is_settled) else {
            return Verdict::Waits { other: self.own };
        };
        let is_waiting = !self.mark.is_held && now < since.saturating_add(patience);
        let active = others().find(|(_, mark)| mark.is_some_and(|mark| mark.is_active));
        if let Some((other, _)) = active.filter(|_| is_waiting) {
            return Verdict::Waits { other };
        }
        self.mark.is_held = true;
        let from = if obeys(Rule::PermitsCountFromTheBeginning) { self.begun } else { now };
        Verdict::Permit { until: from.saturating_add(self.times.hold) }
    }

    /// The mark to be written when the server has ended all I/O. `None` while I/O of an earlier
    /// process may be under way: it is to be asked for again later.
    pub fn left(&self, now: Duration) -> Option<Mark> {
        let is_settled = now >= self.settled || !obeys(Rule::EarlierIoMayBeUnderWay);
        is_settled.then_some(Mark { is_active: false, ..self.mark })
    }
}

#[cfg(test)]
#[path = "reservation_test.rs"]
mod reservation_test;
