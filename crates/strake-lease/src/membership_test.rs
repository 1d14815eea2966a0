//! What the model in `strake-sim` does not visit: floors, servers that come and go, a newer term,
//! and when the next look is due.

use super::*;

const S: Duration = Duration::from_secs(1);
const NSD: NsdId = NsdId(1);
const MEMBER: Member = (ClientId(7), Epoch(1));

fn reply(clock: Duration) -> AdmissionReply {
    AdmissionReply { boot: 5, clock, until: None, term: Term(3), floor: MapVersion(0), number: 0 }
}

/// The messages among the effects.
fn sent(effects: &[Effect]) -> Vec<(NsdId, Message)> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send(nsd, _, message) => Some((*nsd, message.clone())),
        _ => None,
    });
    sent.collect()
}

/// A leader with one member, whose only server has just answered its first lease.
fn served() -> Membership {
    let mut all =
        Membership::new(Term(3), Times::CLUSTER, &[MEMBER], &[NSD], MapVersion(0), Duration::ZERO);
    assert_eq!(sent(&all.tick(Duration::ZERO)), [(NSD, Message::Ask)]);
    let leases = all.answered(NSD, Lane::Lease, Ok(reply(100 * S)), S);
    let Message::Lease { boot: 5, until, list: Some((_, list)), .. } = &sent(&leases)[0].1 else {
        panic!("{leases:?}");
    };
    assert_eq!((*until, list.as_slice()), (110 * S, [MEMBER].as_slice()));
    assert_eq!(all.answered(NSD, Lane::Lease, Ok(reply(100 * S)), S), []);
    all
}

#[test]
fn a_lease_is_renewed_every_two_seconds_without_the_list() {
    let mut all = served();
    assert_eq!(all.due(), Some(3 * S));
    assert_eq!(all.tick(2 * S), []);
    let (floor, list) = (MapVersion(0), None);
    let renewal = Message::Lease { boot: 5, until: 110 * S, floor, list };
    assert_eq!(sent(&all.tick(3 * S)), [(NSD, renewal)]);
}

#[test]
fn a_server_is_silent_most_of_a_lease_after_its_last_answer() {
    let mut all = served();
    let limit = Duration::from_millis(7500);
    assert_eq!(all.silent(limit).count(), 0);
    assert_eq!(all.silent(S + limit).collect::<Vec<_>>(), [NSD]);
    all.tick(3 * S);
    assert_eq!(all.silent(S + limit).count(), 1, "a message is no answer");
    all.answered(NSD, Lane::Lease, Ok(reply(102 * S)), 4 * S);
    assert_eq!(all.silent(4 * S + limit - Duration::from_nanos(1)).count(), 0);
    assert_eq!(all.silent(4 * S + limit).count(), 1);
    all.answered(NSD, Lane::Lease, Err(ErrorKind::Unreachable), 11 * S);
    assert_eq!(all.silent(4 * S + limit).count(), 1, "neither is an error");
    assert!(all.lapsed().next().is_none(), "its lease goes on");
    let added = NsdId(2);
    all.add_server(added, 100 * S);
    assert!(all.silent(100 * S + limit - S).all(|nsd| nsd != added), "it has just come");
    assert!(all.silent(100 * S + limit).any(|nsd| nsd == added));
}

#[test]
fn a_floor_is_raised_when_each_server_has_answered_the_newest() {
    let mut all = served();
    let first = sent(&all.raise_floor(MapVersion(4), S));
    assert_eq!(first, [(NSD, Message::RaiseFloor { floor: MapVersion(4) })]);
    assert_eq!(all.raise_floor(MapVersion(6), S), [], "one message at a time");
    let second = all.answered(NSD, Lane::Change, Ok(reply(101 * S)), S);
    assert_eq!(sent(&second), [(NSD, Message::RaiseFloor { floor: MapVersion(6) })]);
    assert!(!second.contains(&Effect::Raised(MapVersion(6))), "that was the answer to map 4");
    let done = all.answered(NSD, Lane::Change, Ok(reply(101 * S)), S);
    assert_eq!(done, [Effect::Raised(MapVersion(6))]);
    all.check();
}

#[test]
fn a_server_that_leaves_is_waited_for_while_it_may_have_a_lease() {
    let mut all = served();
    all.remove_server(NSD);
    let effects = all.ended(MEMBER, 2 * S);
    assert_eq!(effects[0], Effect::Declared(MEMBER, Reason::Ended));
    assert!(matches!(effects[1], Effect::Send(NSD, Lane::Change, Message::Fence { .. })));
    assert_eq!(all.answered(NSD, Lane::Change, Err(ErrorKind::Unreachable), 3 * S), []);
    let end = S + Times::CLUSTER.lease + Times::CLUSTER.margin;
    let before = all.tick(end - Duration::from_millis(1));
    assert!(before.iter().all(|effect| matches!(effect, Effect::Send(..))), "{before:?}");
    assert_eq!(all.tick(end), [Effect::Dead(MEMBER)]);
    assert_eq!(all.renew(MEMBER, end), Renewal::Dead);
    assert_eq!(all.due(), None, "nothing is left to do");
}

#[test]
fn a_new_server_fences_those_that_are_ending() {
    let mut all = served();
    all.ended(MEMBER, S);
    all.add_server(NsdId(2), S);
    assert_eq!(all.ending(), [(MEMBER, vec![NSD, NsdId(2)])]);
    let effects = all.answered(NSD, Lane::Change, Ok(reply(101 * S)), S);
    assert!(!effects.contains(&Effect::Dead(MEMBER)), "the second has not answered");
    let done = all.answered(NsdId(2), Lane::Change, Ok(reply(9 * S)), S);
    assert!(done.contains(&Effect::Dead(MEMBER)), "{done:?}");
}

#[test]
fn a_newer_term_ends_everything() {
    let mut all = served();
    all.tick(3 * S);
    let answer = AdmissionReply { term: Term(4), ..reply(102 * S) };
    assert_eq!(all.answered(NSD, Lane::Lease, Ok(answer), 3 * S), [Effect::Deposed(Term(4))]);
    assert_eq!(all.renew(MEMBER, 3 * S), Renewal::NotLeader);
    assert_eq!(all.tick(60 * S), []);
    assert_eq!((all.join((ClientId(8), Epoch(1)), 60 * S), all.due()), (Vec::new(), None));
}
