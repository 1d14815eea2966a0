//! Golden marks, damaged ones, and each verdict of a round.

use super::*;

const TIMES: ReservationTimes = ReservationTimes {
    round: Duration::from_secs(1),
    hold: Duration::from_secs(6),
    patience: Duration::from_secs(12),
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn owner() -> MarkOwner {
    MarkOwner { cluster: ClusterId([7; 16]), nsd: NsdId(3), server: "n2".parse().expect("a name") }
}

fn active(number: u64) -> Option<Mark> {
    Some(Mark { number, is_active: true, is_held: true, round: 9 })
}

/// A round that begins at `now` and takes no time, with another server's mark.
fn round(server: &mut Reservation, now: u64, other: Option<Mark>) -> Verdict {
    let own = server.begin(seconds(now));
    server.judge(seconds(now), &[other, Some(own)])
}

#[test]
fn a_mark_is_what_the_format_says() {
    let mark = Mark { number: 0x0102, is_active: true, is_held: false, round: 5 };
    let bytes = mark.encode(&owner());
    assert_eq!(bytes[..8], *b"STRAKErs");
    assert_eq!(bytes[12..36], *[&[1, 0, 0, 0][..], &[7; 16], &[3, 0, 0, 0]].concat());
    assert_eq!(bytes[36..56], [1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[56..59], *b"\x02n2");
    assert!(bytes[59..].iter().all(|byte| *byte == 0));
    assert_eq!(u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]), 0xa4fc_3941);
    assert_eq!(Mark::decode(&bytes, owner().cluster, owner().nsd), Some(mark));
}

#[test]
fn marks_of_others_count_as_never_written_and_damaged_ones_as_unknown() {
    let mark = Mark { number: 8, is_active: true, is_held: true, round: 1 };
    let bytes = mark.encode(&owner());
    assert_eq!(Mark::decode(&[0; 512], owner().cluster, NsdId(3)), Some(Mark::default()));
    assert_eq!(Mark::decode(&bytes, ClusterId([8; 16]), NsdId(3)), Some(Mark::default()));
    assert_eq!(Mark::decode(&bytes, owner().cluster, NsdId(4)), Some(Mark::default()));
    for at in 8..MARK_BYTES {
        for bit in 0..8 {
            let mut bad = bytes;
            bad[at] ^= 1 << bit;
            assert_eq!(Mark::decode(&bad, owner().cluster, owner().nsd), None, "bit {bit} of {at}");
        }
    }
    let mut newer = bytes;
    newer[12] = 2;
    newer[8..12].fill(0);
    let sum = crc32c::crc32c(&newer);
    newer[8..12].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Mark::decode(&newer, owner().cluster, owner().nsd), None);
}

#[test]
fn a_lone_server_has_a_permit_from_the_first_round_on() {
    let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    assert_eq!(round(&mut server, 3, Some(Mark::default())), Verdict::Permit { until: seconds(9) });
    assert_eq!(
        round(&mut server, 4, Some(Mark::default())),
        Verdict::Permit { until: seconds(10) }
    );
}

#[test]
fn a_slow_round_brings_no_longer_permit() {
    let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    server.begin(seconds(3));
    let marks = [Some(Mark::default()), None];
    assert_eq!(server.judge(seconds(20), &marks), Verdict::Permit { until: seconds(9) });
}

#[test]
fn a_server_before_is_waited_for_until_it_has_left_or_patience_is_over() {
    let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    assert_eq!(round(&mut server, 100, active(3)), Verdict::Waits { other: 0 });
    assert_eq!(round(&mut server, 111, active(3)), Verdict::Waits { other: 0 });
    let mut other = server.clone();
    let left = Some(Mark { is_active: false, ..active(3).expect("a mark") });
    assert_eq!(round(&mut other, 111, left), Verdict::Permit { until: seconds(117) });
    assert_eq!(round(&mut server, 112, active(3)), Verdict::Permit { until: seconds(118) });
    // A late mark of the server before has no meaning any more.
    assert_eq!(round(&mut server, 113, active(3)), Verdict::Permit { until: seconds(119) });
}

#[test]
fn a_later_server_wins_also_when_it_has_left() {
    for is_active in [true, false] {
        let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
        let later = Some(Mark { is_active, ..active(5).expect("a mark") });
        assert_eq!(round(&mut server, 1, later), Verdict::Lost { other: 0, number: 5 });
    }
    let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    assert_eq!(round(&mut server, 1, active(4)), Verdict::Lost { other: 0, number: 4 });
}

#[test]
fn an_unreadable_mark_holds_up_everybody() {
    let mut server = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    assert_eq!(round(&mut server, 1, None), Verdict::Waits { other: 0 });
    assert_eq!(round(&mut server, 99, None), Verdict::Waits { other: 0 });
}

#[test]
fn a_restart_waits_only_if_there_was_no_permit_under_its_number() {
    let mut first = Reservation::new(1, 4, Mark::default(), Duration::ZERO, TIMES);
    round(&mut first, 1, active(3));
    let waiting = first.begin(seconds(2));
    assert!(!waiting.is_held);
    round(&mut first, 13, active(3));
    let held = first.begin(seconds(14));
    assert!(held.is_held);
    for before in [held, first.left(seconds(14)).expect("it may leave")] {
        let mut again = Reservation::new(1, 4, before, Duration::ZERO, TIMES);
        assert_eq!(round(&mut again, 20, active(3)), Verdict::Permit { until: seconds(26) });
    }
    for (number, before) in [(4, waiting), (6, held)] {
        let mut again = Reservation::new(1, number, before, Duration::ZERO, TIMES);
        assert_eq!(round(&mut again, 20, active(3)), Verdict::Waits { other: 0 });
    }
}

#[test]
fn patience_is_longer_than_a_managers_lease() {
    let (lease, own) = (crate::Times::CLUSTER, ReservationTimes::CLUSTER);
    assert!(own.patience > lease.lease + lease.margin);
    assert!(own.patience > own.hold && own.hold > 2 * own.round);
}

#[test]
fn a_new_process_has_no_permit_and_does_not_leave_while_the_kernel_may_have_something_of_the_old() {
    let held = active(4).expect("a mark");
    let mut again = Reservation::new(1, 4, held, seconds(20), TIMES);
    assert_eq!(round(&mut again, 19, None), Verdict::Waits { other: 0 });
    assert_eq!(round(&mut again, 19, active(3)), Verdict::Waits { other: 1 });
    assert_eq!(again.left(seconds(19)), None);
    // It began too early, although it ends late enough.
    again.begin(seconds(19));
    assert_eq!(again.judge(seconds(21), &[active(3), None]), Verdict::Waits { other: 1 });
    assert_eq!(round(&mut again, 20, active(3)), Verdict::Permit { until: seconds(26) });
    assert!(again.left(seconds(20)).is_some_and(|mark| !mark.is_active && mark.is_held));
    // A later server is noticed at once.
    let mut lost = Reservation::new(1, 4, held, seconds(20), TIMES);
    assert_eq!(round(&mut lost, 15, active(5)), Verdict::Lost { other: 0, number: 5 });
}
