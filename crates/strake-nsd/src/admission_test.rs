//! Tests the rules one by one, and then messages of managers that arrive in any order.

use super::*;
use std::collections::BTreeMap;
use strake_env::Rng;

const NOW: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(10);

fn manager(term: u64) -> NsdContext {
    NsdContext { client: ClientId::MANAGER, term: Term(term), ..NsdContext::default() }
}

fn client(client: u64, epoch: u64) -> NsdContext {
    NsdContext { client: ClientId(client), epoch: Epoch(epoch), ..NsdContext::default() }
}

fn list(number: u64, clients: &[(u64, u64)]) -> AllowList {
    let clients = clients.iter().map(|(client, epoch)| (ClientId(*client), Epoch(*epoch)));
    AllowList { number, clients: clients.collect() }
}

/// A server in its first life, with a lease of term 1 that names clients 1 and 2.
fn served() -> Admission {
    let mut admission = Admission::new(1, Term(0));
    assert_eq!(admission.judge_manager(&manager(1)), Ok(true));
    admission.begin_term(Term(1));
    let clients = list(1, &[(1, 1), (2, 1)]);
    admission.lease(1, END, MapVersion(0), Some(&clients)).expect("a lease");
    admission
}

#[test]
fn without_a_lease_nobody_is_served() {
    let fresh = Admission::new(1, Term(1));
    assert_eq!(fresh.judge(&client(1, 1), NOW), Err(Refusal::NoLease));
    assert_eq!(fresh.judge(&manager(1), NOW), Err(Refusal::NoLease));
    let admission = served();
    assert_eq!(admission.judge(&client(1, 1), END - Duration::from_nanos(1)), Ok(()));
    assert_eq!(admission.judge(&client(1, 1), END), Err(Refusal::NoLease));
    assert_eq!(admission.judge(&manager(1), END), Err(Refusal::NoLease));
}

#[test]
fn a_lease_is_for_one_life_and_never_moves_back() {
    let mut admission = served();
    let floor = MapVersion(0);
    assert_eq!(admission.lease(2, END * 2, floor, None), Err(Refusal::OtherBoot(1)));
    admission.lease(1, END * 2, floor, None).expect("renewed");
    admission.lease(1, END, floor, None).expect("a late renewal");
    assert_eq!(admission.until(), Some(END * 2));
    let mut restarted = Admission::new(2, Term(1));
    assert_eq!(restarted.lease(2, END, floor, None), Err(Refusal::NoList));
    assert_eq!(restarted.allow(9, ClientId(1), Epoch(1)), Err(Refusal::NoList));
    assert_eq!(restarted.until(), None);
}

#[test]
fn only_those_on_the_list_are_served_in_exactly_their_epoch() {
    let mut admission = served();
    assert_eq!(admission.judge(&client(2, 1), NOW), Ok(()));
    for other in [client(3, 1), client(2, 0), client(2, 2)] {
        let refusal = Refusal::NotListed(other.client, other.epoch);
        assert_eq!(admission.judge(&other, NOW), Err(refusal));
    }
    admission.fence(2, ClientId(2), Epoch(1));
    assert!(admission.judge(&client(2, 1), NOW).is_err());
    admission.allow(3, ClientId(2), Epoch(2)).expect("its next life");
    assert_eq!(admission.judge(&client(2, 2), NOW), Ok(()));
    assert!(admission.judge(&client(2, 1), NOW).is_err());
}

#[test]
fn a_list_or_addition_that_is_late_brings_nobody_back() {
    let mut admission = served();
    admission.fence(4, ClientId(1), Epoch(1));
    let late = list(3, &[(1, 1)]);
    let floor = MapVersion(0);
    assert_eq!(admission.lease(1, END, floor, Some(&late)), Err(Refusal::Overtaken(4)));
    assert_eq!(admission.allow(2, ClientId(1), Epoch(1)), Err(Refusal::Overtaken(4)));
    assert!(admission.judge(&client(1, 1), NOW).is_err());
    // A fence is taken whenever it comes, and the same message may come twice.
    admission.fence(2, ClientId(2), Epoch(1));
    assert!(admission.judge(&client(2, 1), NOW).is_err());
    admission.allow(5, ClientId(3), Epoch(1)).expect("new");
    admission.allow(5, ClientId(3), Epoch(1)).expect("again");
}

#[test]
fn lower_terms_are_refused_and_a_new_one_keeps_what_clients_hold() {
    let mut admission = served();
    assert_eq!(admission.judge_manager(&manager(2)), Ok(true));
    assert_eq!(admission.judge(&manager(2), NOW), Err(Refusal::TermUnknown(Term(2))));
    admission.begin_term(Term(2));
    assert_eq!(admission.judge_manager(&manager(2)), Ok(false));
    assert_eq!(admission.judge_manager(&manager(1)), Err(Refusal::TermEnded(Term(2))));
    assert_eq!(admission.judge(&manager(1), NOW), Err(Refusal::TermEnded(Term(2))));
    assert_eq!(admission.judge(&manager(2), NOW), Ok(()));
    assert_eq!(admission.judge(&client(1, 1), NOW), Ok(()), "until it is told otherwise");
    // The new manager does not know the list, so it gives one with its first lease.
    assert_eq!(admission.lease(1, END, MapVersion(0), None), Err(Refusal::NoList));
    admission.lease(1, NOW, MapVersion(0), Some(&list(1, &[(2, 1)]))).expect("a lease");
    assert_eq!(admission.until(), Some(NOW), "its own, not that of the term before");
    let outsider = admission.judge_manager(&client(1, 1));
    assert_eq!(outsider, Err(Refusal::NotManager(ClientId(1))));
}

#[test]
fn maps_below_the_floor_are_refused_and_the_floor_only_rises() {
    let mut admission = served();
    let with = |map| NsdContext { map: MapVersion(map), ..client(1, 1) };
    admission.raise_floor(MapVersion(7));
    admission.raise_floor(MapVersion(3));
    let refusal = Err(Refusal::BelowFloor(MapVersion(7)));
    assert_eq!(admission.judge(&with(6), NOW), refusal);
    assert_eq!(admission.judge(&with(7), NOW), Ok(()));
    assert_eq!(admission.judge(&manager(1), NOW), refusal);
    admission.lease(1, END, MapVersion(5), None).expect("renewed");
    assert_eq!(admission.judge(&with(6), NOW), refusal);
    admission.lease(1, END, MapVersion(9), None).expect("renewed");
    assert!(admission.judge(&with(8), NOW).is_err());
}

#[test]
fn a_list_that_is_too_long_is_refused() {
    let mut admission = served();
    let clients = (0..=CLIENTS_MAX as u64).map(|one| (ClientId(one), Epoch(1))).collect();
    let list = AllowList { number: 5, clients };
    let floor = MapVersion(0);
    assert_eq!(admission.lease(1, END, floor, Some(&list)), Err(Refusal::TooMany));
    assert_eq!(admission.judge(&client(1, 1), NOW), Ok(()));
    let list = AllowList { number: 5, clients: list.clients[1..].to_vec() };
    admission.lease(1, END, floor, Some(&list)).expect("just short enough");
    assert_eq!(admission.allow(6, ClientId(1 << 40), Epoch(1)), Err(Refusal::TooMany));
}

/// A manager's message.
#[derive(Clone, Debug)]
enum Message {
    List(u64, AllowList),
    Allow(u64, ClientId),
    Fence(u64, ClientId),
}

/// What a delivered message says of a client, under its term and number.
fn says(message: &Message, who: ClientId) -> Option<(u64, bool)> {
    match message {
        Message::List(_, list) => Some((list.number, list.clients.contains(&(who, Epoch(1))))),
        Message::Allow(number, client) => (*client == who).then_some((*number, true)),
        Message::Fence(number, client) => (*client == who).then_some((*number, false)),
    }
}

/// Managers send messages that arrive late, twice or never, at a server that is started anew. A
/// client is served only if the newest message that was answered and speaks of it says so.
#[test]
fn messages_in_any_order_never_serve_a_client_that_was_fenced() {
    let mut served = 0;
    for seed in strake_env::rng::test_seeds(0, 300) {
        let mut rng = Rng::new(seed);
        let (mut boot, mut term) = (1, 1);
        let mut admission = Admission::new(boot, Term(0));
        let mut sent: Vec<(Term, Message)> = Vec::new();
        let mut newest: BTreeMap<ClientId, (Term, u64, bool)> = BTreeMap::new();
        for number in 1..60 {
            term += u64::from(rng.one_in(15));
            if rng.one_in(15) {
                boot += 1;
                admission = Admission::new(boot, admission.term());
            }
            let who = ClientId(1 + rng.below(3));
            sent.push((
                Term(term),
                match rng.below(3) {
                    0 => Message::Allow(number, who),
                    1 => Message::Fence(number, who),
                    _ => Message::List(boot, list(number, &[(who.0, 1), (1, 1)])),
                },
            ));
            for _ in 0..rng.below(3) {
                let (term, message) = sent[rng.index(sent.len())].clone();
                let Ok(is_new) = admission.judge_manager(&manager(term.0)) else { continue };
                if is_new {
                    admission.begin_term(term);
                }
                let taken = match &message {
                    Message::List(boot, list) => {
                        admission.lease(*boot, END, MapVersion(0), Some(list))
                    }
                    Message::Allow(number, who) => admission.allow(*number, *who, Epoch(1)),
                    Message::Fence(number, who) => {
                        admission.fence(*number, *who, Epoch(1));
                        Ok(())
                    }
                };
                // The manager counts only on what was answered.
                for who in (1..=3).map(ClientId).filter(|_| taken.is_ok()) {
                    let known = newest.entry(who).or_default();
                    let said = says(&message, who).map(|(number, is_in)| (term, number, is_in));
                    *known = said.map_or(*known, |said| (*known).max(said));
                }
            }
            for (who, (_, _, is_allowed)) in &newest {
                let is_served = admission.judge(&client(who.0, 1), NOW).is_ok();
                served += u64::from(is_served);
                assert!(!is_served || *is_allowed, "seed {seed}: client {who} after {number}");
            }
        }
    }
    assert!(served > 5000, "only {served} times was a client served");
}
