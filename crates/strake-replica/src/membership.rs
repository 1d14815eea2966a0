//! Who belongs to a group, and what a majority of it is.
//!
//! A change goes through a *joint* membership: the voters that come and the voters that go both
//! decide, each set with a majority of its own. So no two disjoint majorities exist at any moment.
//! A membership holds from the moment its entry is in the log, committed or not.

use crate::types::ReplicaId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A group has at most this many members.
pub const MEMBERS_MAX: usize = 16;

/// The members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Those who decide.
    pub voters: BTreeSet<ReplicaId>,
    /// While a change is under way: the former voters, who decide as well. Else empty.
    pub outgoing: BTreeSet<ReplicaId>,
    /// Those who receive the log and do not decide.
    pub learners: BTreeSet<ReplicaId>,
}

impl Membership {
    /// A group with these voters.
    pub fn of(voters: impl IntoIterator<Item = ReplicaId>) -> Membership {
        Membership { voters: voters.into_iter().collect(), ..Membership::default() }
    }

    /// Whether a change is under way.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether this replica decides.
    pub fn is_voter(&self, id: ReplicaId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }

    /// Whether this replica is the only voter.
    pub fn is_alone(&self, id: ReplicaId) -> bool {
        self.voters.len() == 1 && self.voters.contains(&id) && !self.is_joint()
    }

    /// Everyone who receives the log.
    pub fn all(&self) -> BTreeSet<ReplicaId> {
        let sets = [&self.voters, &self.outgoing, &self.learners];
        sets.into_iter().flatten().copied().collect()
    }

    /// Whether those of whom `agrees` is true are a majority of the voters, and of the outgoing
    /// voters too if there are any.
    pub fn has_quorum(&self, agrees: impl Fn(ReplicaId) -> bool) -> bool {
        let majority = |set: &BTreeSet<ReplicaId>| {
            set.iter().filter(|&&id| agrees(id)).count() >= majority_of(set.len())
        };
        let new = !self.voters.is_empty() && majority(&self.voters);
        new && (!self.is_joint()
            || majority(&self.outgoing)
            || !crate::rule::obeys(crate::rule::Rule::BothMajoritiesDecide))
    }

    /// The highest value that a quorum has reached, if `reached` says what each one has.
    pub fn quorum_value<T: Ord + Copy + Default>(&self, reached: impl Fn(ReplicaId) -> T) -> T {
        let of_set = |set: &BTreeSet<ReplicaId>| {
            let mut values: Vec<T> = set.iter().map(|&id| reached(id)).collect();
            values.sort_unstable_by(|one, other| other.cmp(one));
            values.get(majority_of(set.len()) - 1).copied().unwrap_or_default()
        };
        let new = of_set(&self.voters);
        let joint = self.is_joint() && crate::rule::obeys(crate::rule::Rule::BothMajoritiesDecide);
        if joint { new.min(of_set(&self.outgoing)) } else { new }
    }

    /// Whether the answers of those of whom `answered` is true meet every majority that `own` was
    /// ever part of: each such majority has a member among them other than `own`.
    pub fn meets_majorities(&self, own: ReplicaId, answered: impl Fn(ReplicaId) -> bool) -> bool {
        let meets = |set: &BTreeSet<ReplicaId>| {
            let others = set.iter().filter(|&&id| id != own);
            let needed = others.clone().count().min(set.len() + 1 - majority_of(set.len()));
            others.filter(|&&id| answered(id)).count() >= needed
        };
        !self.voters.is_empty() && meets(&self.voters) && meets(&self.outgoing)
    }

    /// Whether a group may look so: voters, no learner that votes, not too many.
    pub fn is_valid(&self) -> bool {
        !self.voters.is_empty()
            && self.all().len() <= MEMBERS_MAX
            && self.learners.iter().all(|&id| !self.is_voter(id))
    }
}

/// How many of `count` are a majority.
fn majority_of(count: usize) -> usize {
    count / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u32]) -> BTreeSet<ReplicaId> {
        numbers.iter().map(|&number| ReplicaId(number)).collect()
    }

    #[test]
    fn a_joint_membership_needs_both_majorities() {
        let group = Membership { outgoing: ids(&[1, 2, 3]), ..Membership::of(ids(&[3, 4, 5])) };
        let agree = |numbers: &[u32]| group.has_quorum(|id| ids(numbers).contains(&id));
        assert!(!agree(&[3, 4, 5]) && !agree(&[1, 2, 3]) && agree(&[2, 3, 4]));
        let rule = crate::rule::Rule::BothMajoritiesDecide;
        assert!(crate::rule::without(rule, || agree(&[3, 4, 5])), "the new ones alone");
        let value = group.quorum_value(|id| if id.0 >= 3 { 9 } else { u64::from(id.0) });
        assert_eq!(value, 2, "of 1, 2, 9 a majority has 2");
    }

    #[test]
    fn answers_that_meet_all_majorities_meet_each_one() {
        // The slow way: every majority that has replica 1 has a member that answered.
        for count in 1..=7u32 {
            let group = Membership::of((1..=count).map(ReplicaId));
            for answered in 0..1u32 << count {
                let has = |mask: u32, id: u32| mask & (1 << (id - 1)) != 0;
                let met = (0..1u32 << count).all(|quorum| {
                    let is_majority = quorum.count_ones() as usize >= majority_of(count as usize);
                    !is_majority
                        || !has(quorum, 1)
                        || (2..=count).any(|id| has(quorum, id) && has(answered, id))
                });
                let says = group.meets_majorities(ReplicaId(1), |id| has(answered, id.0));
                assert_eq!(says, met || count == 1, "{count} voters, answers {answered:b}");
            }
        }
    }

    #[test]
    fn nobody_is_no_group_and_has_no_quorum() {
        let nobody = Membership::default();
        assert!(!nobody.is_valid() && !nobody.has_quorum(|_| true));
        assert!(!nobody.meets_majorities(ReplicaId(1), |_| true));
        assert_eq!(nobody.quorum_value(|_| 7u64), 0);
    }
}
