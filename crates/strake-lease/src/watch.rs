//! A client's view of its lease: whether it may use now what it holds.

use crate::rule::{Rule, obeys};
use std::time::Duration;

/// What a client may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It has a lease, and uses what it holds.
    Held,
    /// Its lease is over. It waits: the lease is renewed, or it learns that it was declared dead.
    Over,
    /// It was declared dead. What it held is others'.
    Dead,
}

/// See the file's head. All times are of the client's own clock, which goes on while the machine
/// sleeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    lease: Duration,
    /// The lease's end. It never moves back.
    until: Duration,
    is_dead: bool,
}

impl Watch {
    /// A client that asked to join at the moment `sent`, and was let in.
    pub fn new(lease: Duration, sent: Duration) -> Watch {
        Watch { lease, until: sent.saturating_add(lease), is_dead: false }
    }

    /// The leader has answered a renewal that was sent at the moment `sent`. An answer that is late
    /// extends nothing. `now` is when the answer came.
    pub fn renewed(&mut self, sent: Duration, now: Duration) {
        let from = if obeys(Rule::ClientsCountFromSending) { sent } else { now };
        self.until = self.until.max(from.saturating_add(self.lease));
    }

    /// The leader says that this client was declared dead. That is final.
    pub fn declared_dead(&mut self) {
        self.is_dead = true;
    }

    /// When the lease is over, unless it is renewed.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Whether the client was declared dead.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// What the client may do at the moment `now`.
    pub fn standing(&self, now: Duration) -> Standing {
        match self.is_dead {
            true => Standing::Dead,
            false if now < self.until => Standing::Held,
            false => Standing::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_counts_from_when_its_renewal_was_sent() {
        let mut watch = Watch::new(at(10), at(5));
        assert_eq!(watch.standing(at(14)), Standing::Held);
        assert_eq!(watch.standing(at(15)), Standing::Over);
        watch.renewed(at(12), at(21));
        assert_eq!(watch.standing(at(21)), Standing::Held, "it resumes");
        assert_eq!(watch.standing(at(22)), Standing::Over);
    }

    #[test]
    fn an_answer_that_was_overtaken_takes_nothing_back() {
        let mut watch = Watch::new(at(10), at(0));
        watch.renewed(at(4), at(5));
        watch.renewed(at(2), at(6));
        assert_eq!(watch.standing(at(13)), Standing::Held);
    }

    #[test]
    fn death_is_final() {
        let mut watch = Watch::new(at(10), at(0));
        watch.declared_dead();
        watch.renewed(at(3), at(4));
        assert_eq!(watch.standing(at(4)), Standing::Dead);
    }
}
