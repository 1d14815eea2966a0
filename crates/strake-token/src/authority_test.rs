//! What the model does not show: order, minimum hold, ranges that split, and refusals.

use super::*;
use crate::held::RangeWant;
use strake_proto::BlockIndex;

const TIMES: Times =
    Times { hold_min: Duration::from_millis(10), repeat: Duration::from_millis(100) };
const FILE: Ino = Ino(7);

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn blocks(from: u64, to: u64) -> BlockRange {
    BlockRange::new(BlockIndex(from), BlockIndex(to))
}

fn inode(mode: Mode) -> Vec<Want> {
    vec![Want { ino: FILE, inode: Some(mode), open: false, range: None }]
}

fn write(required: BlockRange) -> Vec<Want> {
    let range = RangeWant { required, desired: BlockRange::ALL, mode: Mode::Exclusive };
    vec![Want { ino: FILE, inode: Some(Mode::Shared), open: false, range: Some(range) }]
}

/// An authority with three clients and numbers to draw.
fn authority() -> Authority {
    let mut authority = Authority::new(Term(1), TIMES, &[], GrantNumber(1));
    (1..=3).for_each(|client| authority.join(ClientId(client)));
    assert_eq!(authority.reserved(GrantNumber(1), GrantNumber(100), at(0)), []);
    authority
}

fn ask(
    authority: &mut Authority,
    client: u64,
    request: u64,
    wants: Vec<Want>,
    now: Duration,
) -> Vec<Effect> {
    let ask = Request::Ask { request: RequestId(request), wants };
    let effects = authority.receive(ClientId(client), Term(1), ask, now).expect("it is sound");
    authority.check();
    effects
}

fn give_up(authority: &mut Authority, client: u64, keeps: Held, now: Duration) -> Vec<Effect> {
    let upto = authority.files.get(FILE, ClientId(client)).expect("held").newest;
    let answer = Request::GivenUp { ino: FILE, upto, keeps };
    let effects = authority.receive(ClientId(client), Term(1), answer, now).expect("it is sound");
    authority.check();
    effects
}

/// The clients that are granted something, and those that are asked for something.
fn of(effects: &[Effect]) -> (Vec<u64>, Vec<u64>) {
    let clients = |wanted: fn(&Reply) -> bool| {
        let sent = effects.iter().filter_map(|effect| match effect {
            Effect::Send(client, reply) if wanted(reply) => Some(client.0),
            _ => None,
        });
        sent.collect()
    };
    (
        clients(|reply| matches!(reply, Reply::Grant { .. })),
        clients(|reply| matches!(reply, Reply::Revoke { .. })),
    )
}

#[test]
fn a_writer_that_waits_is_not_passed_by_by_readers() {
    let mut authority = authority();
    assert_eq!(of(&ask(&mut authority, 1, 1, inode(Mode::Shared), at(0))).0, [1]);
    let asked = ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(50));
    assert_eq!(of(&asked), (vec![], vec![1]));
    // It agrees with what is held, and waits all the same.
    assert_eq!(of(&ask(&mut authority, 3, 1, inode(Mode::Shared), at(51))), (vec![], vec![]));
    assert_eq!(authority.waits()[0].holders, [ClientId(1)]);
    let after = give_up(&mut authority, 1, Held::default(), at(60));
    assert_eq!(of(&after).0, [2]);
    assert_eq!(of(&authority.tick(at(80))), (vec![], vec![2]), "the reader's turn");
    let kept = Held { inode: Some(Mode::Shared), ..Held::default() };
    assert_eq!(of(&give_up(&mut authority, 2, kept, at(81))).0, [3], "both read now");
}

#[test]
fn a_grant_is_kept_for_the_minimum_time_and_a_revoke_is_repeated() {
    let mut authority = authority();
    ask(&mut authority, 1, 1, inode(Mode::Exclusive), at(0));
    assert_eq!(ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(3)), []);
    assert_eq!(authority.due(), Some(at(10)), "also for a thread that looks later");
    assert_eq!(of(&authority.tick(at(10))).1, [1]);
    assert_eq!(authority.tick(at(50)), [], "it was asked for");
    assert_eq!(authority.due(), Some(at(110)));
    assert_eq!(of(&authority.tick(at(110))).1, [1]);
}

#[test]
fn the_first_writer_gets_the_file_and_the_second_splits_it() {
    let mut authority = authority();
    ask(&mut authority, 1, 1, write(blocks(0, 1)), at(0));
    let all = authority.held(ClientId(1), FILE);
    assert!(all.ranges.covers(BlockRange::ALL, Mode::Exclusive));
    let asked = ask(&mut authority, 2, 1, write(blocks(8, 9)), at(20));
    assert_eq!(of(&asked).1, [1]);
    let mut keeps = all;
    keeps.ranges.limit(blocks(8, u64::MAX), None);
    assert_eq!(of(&give_up(&mut authority, 1, keeps, at(21))).0, [2]);
    let second = authority.held(ClientId(2), FILE);
    assert!(second.ranges.covers(blocks(8, u64::MAX), Mode::Exclusive));
    assert!(!second.ranges.covers(blocks(7, 8), Mode::Exclusive));
}

#[test]
fn what_is_desired_does_not_reach_into_what_others_wait_for() {
    let mut authority = authority();
    ask(&mut authority, 1, 1, inode(Mode::Exclusive), at(0));
    ask(&mut authority, 2, 1, write(blocks(0, 1)), at(1));
    ask(&mut authority, 3, 1, write(blocks(5, 6)), at(2));
    authority.tick(at(20));
    give_up(&mut authority, 1, Held::default(), at(21));
    let both = [2, 3].map(|client| authority.held(ClientId(client), FILE).ranges);
    assert!(both[0].covers(blocks(0, 5), Mode::Exclusive), "up to the other's block");
    assert!(both[1].covers(blocks(5, 100), Mode::Exclusive));
}

/// A new leader of three clients that have joined, and numbers to draw.
fn next_leader() -> Authority {
    let clients = [1, 2, 3].map(ClientId);
    let mut authority = Authority::new(Term(1), TIMES, &clients, GrantNumber(10));
    authority.reserved(GrantNumber(10), GrantNumber(100), at(0));
    authority
}

fn reassert(authority: &mut Authority, client: u64, held: Held, now: Duration) -> Vec<Effect> {
    let reassert = Request::Reassert { ino: FILE, held, newest: GrantNumber(client) };
    let effects = authority.receive(ClientId(client), Term(1), reassert, now).expect("it is sound");
    authority.check();
    effects
}

fn reasserted(authority: &mut Authority, client: u64, files: u64, now: Duration) -> Vec<Effect> {
    let message = Request::Reasserted { files };
    let effects = authority.receive(ClientId(client), Term(1), message, now).expect("it is sound");
    authority.check();
    effects
}

#[test]
fn what_a_living_client_has_exclusively_waits_for_no_silent_one() {
    let exclusive = Held { inode: Some(Mode::Exclusive), ..Held::default() };
    let open = Held { open: true, ..Held::default() };
    let mut authority = next_leader();
    reassert(&mut authority, 1, exclusive, at(1));
    reasserted(&mut authority, 1, 1, at(2));
    // The second client has the file open, and has yet to say so. It would overwrite a grant.
    let asked = ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(20));
    assert_eq!(of(&asked), (vec![], vec![]), "its reassertion is on its way");
    assert_eq!(of(&reasserted(&mut authority, 2, 1, at(21))).1, [0; 0]);
    assert_eq!(of(&reassert(&mut authority, 2, open, at(22))).1, [1]);
    assert_eq!(of(&give_up(&mut authority, 1, Held::default(), at(23))).0, [2]);
    let held = authority.held(ClientId(2), FILE);
    assert_eq!((held.inode, held.open), (Some(Mode::Exclusive), true));
    // The third one is silent, and dead at last. It had nothing of this file.
    assert!(authority.is_in_grace());
    let gone = BTreeSet::from([ClientId(3)]);
    authority.fenced(&gone, at(30));
    assert!(!authority.may_have_changed(FILE, &gone));
    assert!(authority.may_have_changed(Ino(8), &gone), "nobody knows");
    authority.dead(ClientId(3), at(31));
    authority.check();
}

#[test]
fn a_file_that_is_made_waits_for_no_silent_client() {
    let mut authority = next_leader();
    let new = |authority: &mut Authority, client, is_first| {
        let granted = authority.grant_new(ClientId(client), FILE, is_first, at(5));
        authority.check();
        granted.is_some()
    };
    assert!(!new(&mut authority, 1, true), "its reassertions are on their way");
    reasserted(&mut authority, 1, 0, at(1));
    reasserted(&mut authority, 2, 0, at(2));
    assert!(!new(&mut authority, 1, false), "the silent client may have heard of it");
    // The silent one is dead at last, and what it left is being put right.
    let gone = BTreeSet::from([ClientId(3)]);
    authority.fenced(&gone, at(3));
    assert!(new(&mut authority, 1, true));
    assert!(!authority.may_have_changed(FILE, &gone));
    let asked = ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(20));
    assert_eq!(of(&asked).1, [1], "it is known, so others get it, too");
}

#[test]
fn what_a_client_has_not_exclusively_waits_for_all() {
    for mode in [Mode::Shared, Mode::Writing] {
        let mut authority = next_leader();
        reassert(&mut authority, 1, Held { inode: Some(mode), ..Held::default() }, at(1));
        reasserted(&mut authority, 1, 1, at(2));
        reasserted(&mut authority, 2, 0, at(3));
        let asked = ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(20));
        assert_eq!(of(&asked), (vec![], vec![]), "the third client may have it, too");
        assert_eq!(of(&reasserted(&mut authority, 3, 0, at(21))).1, [1]);
    }
}

#[test]
fn the_leader_waits_for_numbers() {
    let mut authority = Authority::new(Term(1), TIMES, &[], GrantNumber(5));
    authority.join(ClientId(1));
    let asked = ask(&mut authority, 1, 1, inode(Mode::Shared), at(0));
    let upto = GrantNumber(5 + RESERVED_AT_ONCE);
    assert_eq!(asked, [Effect::Reserve(upto)]);
    assert_eq!(authority.tick(at(1)), [], "it asks once");
    let granted = authority.reserved(GrantNumber(5), upto, at(2));
    let Effect::Send(_, Reply::Grant { grants, .. }) = &granted[0] else { panic!("{granted:?}") };
    assert_eq!(grants[0].number, GrantNumber(5));
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut authority = authority();
    let before = authority.clone();
    let empty = RangeWant {
        required: BlockRange { from: BlockIndex(3), to: BlockIndex(3) },
        desired: BlockRange::ALL,
        mode: Mode::Shared,
    };
    let want = |inode, range| Want { ino: FILE, inode, open: false, range };
    let bad = [
        vec![],
        vec![want(None, None)],
        vec![want(Some(Mode::Shared), Some(empty))],
        vec![want(Some(Mode::Shared), None), want(Some(Mode::Shared), None)],
        (0..5).map(|ino| Want { ino: Ino(ino), ..want(Some(Mode::Shared), None) }).collect(),
    ];
    for wants in bad {
        let ask = Request::Ask { request: RequestId(1), wants };
        let answer = authority.receive(ClientId(1), Term(1), ask, at(0));
        assert_eq!(answer, Err(Refusal::Invalid));
    }
    let ask = Request::Ask { request: RequestId(1), wants: inode(Mode::Shared) };
    assert_eq!(
        authority.receive(ClientId(9), Term(1), ask.clone(), at(0)),
        Err(Refusal::Unknown),
        "it has not joined"
    );
    assert_eq!(authority.receive(ClientId(1), Term(0), ask, at(0)), Ok(vec![]), "an old term");
    assert_eq!(authority, before);
}

#[test]
fn one_client_cannot_fill_the_queue() {
    let mut authority = authority();
    ask(&mut authority, 1, 1, inode(Mode::Exclusive), at(0));
    for request in 0..REQUESTS_MAX as u64 {
        ask(&mut authority, 2, request, inode(Mode::Exclusive), at(1));
    }
    let ask = Request::Ask { request: RequestId(u64::MAX), wants: inode(Mode::Exclusive) };
    let refused = authority.receive(ClientId(2), Term(1), ask, at(1));
    assert_eq!(refused, Err(Refusal::TooMany));
}

#[test]
fn a_file_in_use_is_known_and_using_it_conflicts_with_nothing() {
    let mut authority = authority();
    let open = || vec![Want { ino: FILE, inode: None, open: true, range: None }];
    ask(&mut authority, 1, 1, inode(Mode::Exclusive), at(0));
    assert_eq!(of(&ask(&mut authority, 2, 1, open(), at(1))).0, [2]);
    assert_eq!(of(&ask(&mut authority, 3, 1, open(), at(1))).0, [3]);
    assert_eq!(authority.openers(FILE), [ClientId(2), ClientId(3)]);
    authority.dead(ClientId(2), at(2));
    assert_eq!(authority.openers(FILE), [ClientId(3)]);
}

/// Client 1 holds a directory while it asks for the file that it has made in it. Client 2 saw the
/// name, asked for both, and waits for the directory; client 3 waits behind it.
#[test]
fn a_holder_passes_those_who_wait_for_it() {
    const DIRECTORY: Ino = Ino(6);
    let mut authority = authority();
    let want = |ino: Ino| Want { ino, ..inode(Mode::Exclusive)[0].clone() };
    ask(&mut authority, 1, 1, vec![want(DIRECTORY)], at(0));
    let both = ask(&mut authority, 2, 1, vec![want(DIRECTORY), want(FILE)], at(20));
    assert_eq!(of(&both), (vec![], vec![1]));
    assert_eq!(of(&ask(&mut authority, 3, 1, vec![want(FILE)], at(21))), (vec![], vec![]));
    assert_eq!(of(&ask(&mut authority, 1, 2, vec![want(FILE)], at(22))).0, [1]);
}

/// A client that holds a file does not pass those who wait for that file: they would wait for ever.
#[test]
fn a_holder_does_not_pass_those_who_wait_for_the_same_file() {
    let mut authority = authority();
    ask(&mut authority, 1, 1, inode(Mode::Shared), at(0));
    assert_eq!(ask(&mut authority, 2, 1, inode(Mode::Exclusive), at(1)), []);
    assert_eq!(ask(&mut authority, 1, 2, inode(Mode::Exclusive), at(2)), []);
    assert_eq!(of(&authority.tick(at(20))), (vec![], vec![1]));
    assert_eq!(of(&give_up(&mut authority, 1, Held::default(), at(21))).0, [2]);
}

/// Revokes that are out are sent again by the time at which they were sent, each by itself.
#[test]
fn revokes_are_repeated_each_in_its_time_and_forgotten_with_their_client() {
    let mut authority = authority();
    let file = |ino: u64| vec![Want { ino: Ino(ino), ..inode(Mode::Exclusive)[0].clone() }];
    for ino in 1..=50 {
        ask(&mut authority, 1, ino, file(ino), at(0));
    }
    assert_eq!(authority.due(), None, "files that nobody wants are not looked at");
    ask(&mut authority, 2, 1, file(1), at(20));
    ask(&mut authority, 2, 2, file(2), at(50));
    ask(&mut authority, 3, 1, file(3), at(60));
    assert_eq!(authority.due(), Some(at(120)));
    let revoked = |effects: &[Effect]| {
        let of = |effect: &Effect| match effect {
            Effect::Send(_, Reply::Revoke { ino, .. }) => Some(ino.0),
            _ => None,
        };
        effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(revoked(&authority.tick(at(120))), [1]);
    assert_eq!(authority.due(), Some(at(150)));
    assert_eq!(revoked(&authority.tick(at(170))), [2, 3]);
    authority.check();
    assert!(!authority.is_idle());
    authority.dead(ClientId(1), at(180));
    authority.check();
    assert_eq!((authority.due(), authority.is_idle(), authority.files()), (None, true, 3));
}

#[test]
fn an_answer_about_one_file_is_an_event_for_those_who_wait_for_files_tied_to_it() {
    const OTHER: Ino = Ino(8);
    let all = |ino| Want { ino, inode: Some(Mode::Exclusive), open: false, range: None };
    let mut authority = authority();
    ask(&mut authority, 1, 1, vec![all(OTHER)], at(0));
    let asked = ask(&mut authority, 2, 1, vec![all(FILE), all(OTHER)], at(50));
    assert_eq!(of(&asked), (vec![], vec![1]));
    assert_eq!(ask(&mut authority, 3, 1, vec![all(FILE)], at(51)), []);
    let upto = authority.files.get(OTHER, ClientId(1)).expect("held").newest;
    let answer = Request::GivenUp { ino: OTHER, upto, keeps: Held::default() };
    let after = authority.receive(ClientId(1), Term(1), answer, at(60)).expect("it is sound");
    assert_eq!(of(&after), (vec![2], vec![]));
    assert_eq!(authority.due(), Some(at(70)), "the third waits for the second from now on");
    assert_eq!(of(&authority.tick(at(70))).1, [2]);
}
