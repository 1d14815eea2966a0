//! When a server takes an NSD over, second by second.

use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn seen(serving: usize, round: u64, is_active: bool) -> Seen {
    Seen { number: 9, serving, mark: Some(Mark { number: 9, is_active, is_held: true, round }) }
}

/// Looks once a second, from `from` on, until there is a reason. The serving node answers when it
/// is asked, if `answers`.
fn first_reason(
    stand_by: &mut StandBy,
    from: u64,
    mark: impl Fn(u64) -> Seen,
    answers: bool,
) -> (u64, &'static str) {
    for now in from..from + 10_000 {
        let is_due = seconds(now) - stand_by.heard >= ASK_EVERY;
        let answered = is_due.then_some(answers);
        if let Some(why) = stand_by.look(seconds(now), mark(now), answered) {
            return (now - from, why);
        }
    }
    panic!("never");
}

#[test]
fn a_node_that_dies_is_replaced_by_the_next_in_the_list() {
    for (own, wait) in [(1, 5), (2, 8), (3, 11)] {
        let mut stand_by = StandBy::new(own, seconds(100));
        let (after, why) = first_reason(&mut stand_by, 100, |_| seen(0, 7, true), false);
        assert_eq!((after, why), (wait, "it writes nothing on the disk any more"), "place {own}");
    }
    // The first one in the list comes first also when the second dies.
    let mut first = StandBy::new(0, seconds(100));
    assert_eq!(first_reason(&mut first, 100, |_| seen(1, 7, true), false).0, 5);
    let mut third = StandBy::new(2, seconds(100));
    assert_eq!(first_reason(&mut third, 100, |_| seen(1, 7, true), false).0, 8);
}

#[test]
fn a_node_that_has_left_gets_the_time_of_a_restart() {
    let mut stand_by = StandBy::new(1, seconds(100));
    let (after, why) = first_reason(&mut stand_by, 100, |_| seen(0, 7, false), true);
    assert_eq!((after, why), (4, "it has left the disk"));
    let restarts = |now: u64| seen(0, now, !now.is_multiple_of(4));
    let mut stand_by = StandBy::new(1, seconds(100));
    for now in 100..1000 {
        let answered = (now % 5 == 0).then_some(true);
        assert_eq!(stand_by.look(seconds(now), restarts(now), answered), None);
    }
}

#[test]
fn a_node_that_lives_and_does_not_answer_is_replaced() {
    let mut stand_by = StandBy::new(1, seconds(100));
    let (after, why) = first_reason(&mut stand_by, 100, |now| seen(0, now, true), false);
    assert_eq!((after, why), (15, "it does not answer"));
}

#[test]
fn the_first_server_comes_back_and_more_seldom_each_time() {
    let mut stand_by = StandBy::new(0, seconds(100));
    let mut now = 100;
    for wait in [5, 10, 20, 40] {
        let (after, why) = first_reason(&mut stand_by, now, |now| seen(1, now, true), true);
        assert!((wait..wait + 6).contains(&after), "{after} of {wait}");
        assert_eq!(why, "this node comes first");
        stand_by.serves(seconds(now));
        now += after + 50;
    }
    stand_by.serves(seconds(now));
    let (after, _) = first_reason(&mut stand_by, now + 3600, |now| seen(1, now, true), true);
    assert!(after < 11, "it has served for an hour: {after}");
    // It does not come back to take an NSD from a node that it cannot reach.
    let mut stand_by = StandBy::new(0, seconds(100));
    let (_, why) = first_reason(&mut stand_by, 100, |now| seen(1, now, true), false);
    assert_eq!(why, "it does not answer");
    // The second one leaves it to the first.
    let mut second = StandBy::new(1, seconds(100));
    for now in 100..1000 {
        let answered = (now % 5 == 0).then_some(true);
        assert_eq!(second.look(seconds(now), seen(0, now, true), answered), None);
    }
}

#[test]
fn a_change_of_the_server_begins_all_waits_anew() {
    let mut stand_by = StandBy::new(2, seconds(100));
    stand_by.look(seconds(100), seen(0, 7, true), None);
    assert_eq!(stand_by.look(seconds(107), seen(0, 7, true), None), None);
    assert_eq!(stand_by.look(seconds(108), seen(1, 0, true), None), None);
    assert_eq!(stand_by.look(seconds(115), seen(1, 0, true), None), None);
    assert!(stand_by.look(seconds(116), seen(1, 0, true), None).is_some());
}
