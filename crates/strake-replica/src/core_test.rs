//! Scenes with a few replicas, message by message: what chance meets too seldom.

use super::*;
use crate::message::{Answer, CopyId, CopyPart, Verdict};
use crate::rule::without;

const LONG: Duration = Duration::from_secs(10);

fn id(number: u32) -> ReplicaId {
    ReplicaId(number)
}

fn at(term: u64, position: u64) -> Stamp {
    Stamp { term: Term(term), position: Position(position) }
}

/// A log of entries of these terms. The first entry makes the members.
fn log_of(voters: u32, terms: &[u64]) -> Log {
    let entry = |(index, &term): (usize, &u64)| Entry {
        term: Term(term),
        position: Position(index as u64 + 1),
        payload: match index {
            0 => Payload::Membership(Membership::of((1..=voters).map(ReplicaId))),
            _ => Payload::Data { level: 0, bytes: Bytes::from(&b"x"[..]) },
        },
    };
    let entries = terms.iter().enumerate().map(entry).collect();
    Log::of(Stamp::default(), None, entries).expect("terms rise")
}

fn replica(number: u32, log: Log, life: u32) -> Core {
    let life = Life { number: life, chance: 1 };
    let hard = Hard { term: log.last().term, life, ..Hard::default() };
    Core::new(Config::new(id(number)), hard, log, Duration::ZERO, u64::from(number))
}

/// Replicas whose journals are instant, and whose messages go where the scene says.
struct Scene {
    cores: BTreeMap<ReplicaId, Core>,
    now: Duration,
    reads: Vec<(u64, Option<Position>)>,
}

impl Scene {
    fn of(cores: impl IntoIterator<Item = Core>) -> Scene {
        let cores = cores.into_iter().map(|core| (core.config.id, core)).collect();
        Scene { cores, now: Duration::ZERO, reads: Vec::new() }
    }

    fn core(&mut self, number: u32) -> &mut Core {
        self.cores.get_mut(&id(number)).expect("it plays a part")
    }

    /// What a replica says now, when its journal has done what it was given.
    fn says(&mut self, number: u32) -> Vec<Envelope> {
        let now = self.now;
        let core = self.cores.get_mut(&id(number)).expect("it plays a part");
        let mut said = Vec::new();
        loop {
            let mut output = core.output();
            assert_eq!(output.fault, None);
            said.append(&mut output.send);
            self.reads.append(&mut output.reads);
            match output.persist {
                Some(batch) => core.persisted(now, batch.ticket, true),
                None if said.is_empty() => return said,
                None => break,
            }
        }
        said
    }

    /// Delivers messages among these replicas until nobody says anything.
    fn talk(&mut self, among: &[u32]) {
        for _ in 0..100 {
            let mut said = Vec::new();
            for &number in among {
                said.append(&mut self.says(number));
            }
            said.retain(|envelope| among.contains(&envelope.to.0));
            if said.is_empty() {
                return;
            }
            for envelope in said {
                let now = self.now;
                self.core(envelope.to.0).receive(now, envelope);
            }
        }
        panic!("they talk without end");
    }

    /// Time passes for one replica, which hears no leader meanwhile. Then these talk.
    fn elect(&mut self, number: u32, among: &[u32]) {
        self.now += LONG;
        let now = self.now;
        among.iter().for_each(|&number| self.core(number).heard_leader = None);
        self.core(number).tick(now);
        self.talk(among);
    }

    /// All know what they once promised.
    fn introduce(&mut self) {
        let all: Vec<u32> = self.cores.keys().map(|id| id.0).collect();
        let now = self.now;
        self.cores.values_mut().for_each(|core| core.ask_if_due());
        self.cores.values_mut().for_each(|core| core.put_off_election());
        self.talk(&all);
        assert!(self.cores.values().all(|core| core.asking.is_done()), "at {now:?}");
    }
}

#[test]
fn entries_of_earlier_terms_are_committed_with_one_of_the_own_term_only() {
    // As in figure 8 of the paper: a majority has an entry of term 2, and one of term 3 elsewhere
    // may still win. The new leader knows no more than that.
    let commits = || {
        let mut scene = Scene::of([
            replica(1, log_of(5, &[1, 2]), 1),
            replica(2, log_of(5, &[1, 2]), 1),
            replica(3, log_of(5, &[1, 2]), 1),
        ]);
        scene.cores.values_mut().for_each(Core::trust);
        scene.now += LONG;
        let now = scene.now;
        scene.core(1).tick(now);
        for _ in 0..2 {
            // Preliminary votes, then votes.
            for envelope in scene.says(1).into_iter().filter(|envelope| envelope.to.0 <= 3) {
                let to = envelope.to.0;
                scene.core(to).receive(now, envelope);
                for answer in scene.says(to) {
                    scene.core(1).receive(now, answer);
                }
            }
        }
        assert!(scene.core(1).is_leader());
        let agrees = Verdict::Agrees(Position(2));
        for other in [2, 3] {
            scene.core(1).take_appended(id(other), agrees, 0, true, 0);
        }
        scene.core(1).committed()
    };
    assert_eq!(commits(), Position::START);
    assert_eq!(without(Rule::OwnTermCommits, commits), Position(2));
}

#[test]
fn what_an_earlier_life_acknowledged_is_not_counted() {
    // Replica 3 acknowledged an entry and then lost it with its disk. The acknowledgement is on
    // its way. Replicas 2, 4 and 5 have answered the new life, and 2 has the entry by now.
    let commits = || {
        let mut scene = Scene::of((1..=5).map(|number| replica(number, log_of(5, &[1]), 1)));
        scene.introduce();
        scene.elect(1, &[1, 2, 3, 4, 5]);
        let last = scene.core(1).propose(0, Bytes::from(&b"y"[..])).expect("it leads");
        let said = scene.says(1);
        let to = |number| said.iter().find(|said| said.to == id(number)).expect("to all").clone();
        let now = scene.now;
        scene.core(3).receive(now, to(3));
        let late = scene.says(3);
        let new = replica(3, log_of(5, &[1]), 2);
        scene.cores.insert(id(3), new);
        scene.core(3).ask_if_due();
        scene.talk(&[2, 3, 4, 5]);
        assert!(scene.core(3).asking.is_done(), "three others have answered");
        scene.core(2).receive(now, to(2));
        let answers = scene.says(2);
        for envelope in late.into_iter().chain(answers).filter(|said| said.to == id(1)) {
            scene.core(1).receive(now, envelope);
        }
        (last.position, scene.core(1).committed())
    };
    let (last, committed) = commits();
    assert!(committed < last, "only 1 and 2 have it");
    let (last, committed) = without(Rule::EarlierLivesAreVoid, commits);
    assert_eq!(committed, last);
}

#[test]
fn two_lives_of_one_number_are_both_over() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    let mut other = replica(3, log_of(3, &[1]), 1);
    other.hard.life.chance = 2;
    scene.cores.insert(id(3), other);
    scene.core(3).ask_if_due();
    scene.talk(&[1, 2, 3]);
    let now = scene.now + LONG;
    scene.now = now;
    scene.core(3).ask_if_due();
    scene.talk(&[1, 2, 3]);
    // A life in between may have been taken from each of the two.
    let life = scene.core(3).life();
    assert!(life.number > 2, "{life:?}");
    assert_eq!(scene.core(1).hard.lives.get(&id(3)), Some(&life));
}

#[test]
fn a_replica_votes_for_nobody_who_has_less_than_the_answers() {
    let votes = || {
        let mut core = replica(3, log_of(3, &[1]), 2);
        for (number, last) in [(1, at(2, 5)), (2, at(1, 1))] {
            let membership = core.membership().clone();
            let answer = Answer { last, membership, membership_stamp: at(1, 1) };
            core.take_answer(id(number), last.term, answer);
        }
        [at(1, 1), at(2, 4), at(2, 5), at(3, 2)].map(|last| core.has_enough(last))
    };
    assert_eq!(votes(), [false, false, true, true]);
    assert_eq!(without(Rule::StartersAsk, votes), [true; 4]);
}

#[test]
fn a_replica_does_not_vote_in_a_term_that_an_answer_knows() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.core(1).hard.term = Term(7);
    scene.introduce();
    let core = scene.core(3);
    core.tick(LONG);
    assert_eq!(core.term(), Term(7));
    assert_eq!(core.vote(id(2), Term(7), at(1, 1)), Some(false), "it may have voted before");
    assert_eq!(core.vote(id(2), Term(8), at(1, 1)), Some(true));
}

impl Scene {
    /// Replica 1 leads and asks the others. Only 3 hears it. Returns what 3 answers.
    fn asked() -> (Scene, Vec<Envelope>) {
        let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
        scene.introduce();
        scene.elect(1, &[1, 2, 3]);
        scene.now += Duration::from_millis(900);
        let now = scene.now;
        scene.core(1).tick(now);
        for envelope in scene.says(1).into_iter().filter(|envelope| envelope.to == id(3)) {
            scene.core(3).receive(now, envelope);
        }
        let answers = scene.says(3).into_iter().filter(|envelope| envelope.to == id(1)).collect();
        (scene, answers)
    }

    /// Replica 2, which has heard nothing for long, stands for election. Only 3 hears it. Returns
    /// whether two replicas are certain to lead alone then.
    fn has_two_leaders(&mut self) -> bool {
        let now = self.now;
        let core = self.core(2);
        (core.heard_leader, core.election_at) = (None, now);
        core.tick(now);
        self.talk(&[2, 3]);
        let holds = |core: &Core| core.lease_until().is_some_and(|until| now < until);
        self.cores.values().filter(|core| holds(core)).count() == 2
    }
}

#[test]
fn a_voter_that_restarts_votes_for_nobody_while_the_leader_may_have_its_word() {
    let has_two = || {
        let (mut scene, answers) = Scene::asked();
        let now = scene.now;
        answers.into_iter().for_each(|answer| scene.core(1).receive(now, answer));
        let Core { config, mut hard, log, .. } = scene.cores.remove(&id(3)).expect("it runs");
        hard.life = Life { number: 2, chance: 1 };
        let mut core = Core::new(config, hard, log, now, 3);
        core.trust();
        scene.cores.insert(id(3), core);
        scene.now += Duration::from_millis(300);
        scene.has_two_leaders()
    };
    assert!(!has_two());
    assert!(without(Rule::VotersWait, has_two));
}

#[test]
fn a_lease_counts_from_the_asking() {
    let has_two = || {
        let (mut scene, answers) = Scene::asked();
        scene.now += Duration::from_millis(700);
        let now = scene.now;
        answers.into_iter().for_each(|answer| scene.core(1).receive(now, answer));
        scene.now += Duration::from_millis(301);
        scene.has_two_leaders()
    };
    assert!(!has_two());
    assert!(without(Rule::LeasesCountFromAsking, has_two));
}

#[test]
fn a_leader_whose_journal_stands_still_steps_down() {
    let leads = || {
        let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
        scene.introduce();
        scene.elect(1, &[1, 2, 3]);
        scene.core(1).propose(0, Bytes::from(&b"y"[..])).expect("it leads");
        // The journal does not answer. The others do.
        let mut now = scene.now;
        for _ in 0..30 {
            now += Duration::from_millis(50);
            scene.core(1).tick(now);
            for envelope in scene.core(1).output().send {
                let to = envelope.to.0;
                scene.core(to).receive(now, envelope);
                for answer in scene.says(to).into_iter().filter(|answer| answer.to == id(1)) {
                    scene.core(1).receive(now, answer);
                }
            }
        }
        scene.core(1).is_leader()
    };
    assert!(!leads());
    assert!(without(Rule::StalledLeadersStepDown, leads));
}

#[test]
fn a_level_is_raised_when_all_understand_it_and_entries_above_are_refused() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.cores.values_mut().for_each(|core| core.config.supports = 3);
    scene.core(2).config.supports = 2;
    scene.introduce();
    scene.elect(1, &[1, 2, 3]);
    let bytes = || Bytes::from(&b"y"[..]);
    let refused = Refusal::AboveLevel { needed: 2, level: 0 };
    assert_eq!(scene.core(1).propose(2, bytes()), Err(refused));
    assert_eq!(scene.core(1).raise_level(3), Err(ChangeRefusal::Unsupported(id(2))));
    scene.core(1).raise_level(2).expect("all understand it");
    assert_eq!(scene.core(1).propose(2, bytes()), Err(refused), "it is not committed yet");
    scene.talk(&[1, 2, 3]);
    assert_eq!(scene.core(1).level(), 2);
    let stamp = scene.core(1).propose(2, bytes()).expect("the group has it");
    scene.talk(&[1, 2, 3]);
    assert_eq!(scene.core(1).committed(), stamp.position);
    assert_eq!(scene.core(1).raise_level(1), Err(ChangeRefusal::Invalid), "it never falls");
}

#[test]
fn an_entry_above_the_level_ends_a_replica_that_does_not_understand_it() {
    let mut core = replica(1, log_of(1, &[1]), 1);
    core.hard.term = Term(1);
    let entry = Entry { term: Term(1), position: Position(2), payload: Payload::Level(9) };
    core.log.push(entry);
    core.committed = Position(2);
    assert_eq!(core.output().fault, Some(Fault::Level(9)));
}

#[test]
fn a_replica_does_not_begin_with_a_state_above_the_level_that_it_understands() {
    let log = || {
        let mut log = log_of(1, &[1]);
        let payload = Payload::Level(2);
        log.push(Entry { term: Term(1), position: Position(2), payload });
        log
    };
    let start = |supports: u32, position: Option<Position>| {
        let config = Config { supports, ..Config::new(id(1)) };
        let hard = Hard { term: Term(1), ..Hard::default() };
        Core::keeping(config, hard, log(), position, Duration::ZERO, 1).output().fault
    };
    assert_eq!(start(1, Some(Position(2))), Some(Fault::Level(2)));
    assert_eq!(start(2, Some(Position(2))), None);
    assert_eq!(start(1, Some(Position(1))), None, "whether it was committed is not known yet");
    let mut log = log();
    let snapshot = log.snapshot_at(Position(2), Bytes::from(&b"s"[..])).expect("it is there");
    log.take_snapshot(Arc::new(snapshot), 0, 0);
    let config = Config { supports: 1, ..Config::new(id(1)) };
    let mut carried = Core::new(config, Hard::default(), log, Duration::ZERO, 1);
    assert_eq!(carried.output().fault, Some(Fault::Level(2)));
}

#[test]
fn a_voter_to_be_is_a_learner_first_and_proposals_have_a_bound() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    scene.elect(1, &[1, 2, 3]);
    let voters: BTreeSet<ReplicaId> = (1..=4).map(ReplicaId).collect();
    let refused = scene.core(1).change(voters, BTreeSet::new());
    assert_eq!(refused, Err(ChangeRefusal::Behind(id(4))));
    let nobody = scene.core(1).change(BTreeSet::new(), BTreeSet::new());
    assert_eq!(nobody, Err(ChangeRefusal::Invalid));
    assert_eq!(
        scene.core(2).propose(0, Bytes::from(&b"y"[..])),
        Err(Refusal::NotLeader(Some(id(1))))
    );
    scene.core(1).config.log_bytes_max = 100;
    let mut taken = 0;
    let refused = loop {
        match scene.core(1).propose(0, Bytes::from(&[1; 100][..])) {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, taken < 3), (Refusal::Busy, true));
}

/// The leader's disk is larger, and so is its log. A follower takes what its own journal has room
/// for, and the rest when a snapshot has made room.
#[test]
fn a_follower_takes_no_more_than_its_journal_has_room_for() {
    let longest = || {
        let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
        scene.introduce();
        scene.elect(1, &[1, 2, 3]);
        scene.core(2).config.log_bytes_max = 500;
        scene.core(2).config.entry_bytes_max = 100;
        scene.core(2).config.kept_entries = 0;
        let mut last = Position::START;
        for _ in 0..40 {
            last = scene.core(1).propose(0, Bytes::from(&[1; 100][..])).expect("has room").position;
        }
        let mut longest = 0;
        for _ in 0..40 {
            scene.talk(&[1, 2]);
            longest = longest.max(scene.core(2).log_bytes());
            let applied = scene.core(2).committed();
            scene.core(2).snapshot_taken(applied, Bytes::from(&b""[..]));
            scene.now += Duration::from_millis(200);
            let now = scene.now;
            scene.core(1).tick(now);
        }
        assert_eq!((scene.core(2).last().position, scene.core(1).committed()), (last, last));
        longest
    };
    assert!(longest() < 1200);
    assert!(without(Rule::FullLogsTakeNoMore, longest) > 4000);
}

/// Nothing of a full log is committed, and the leader dies. The next one can commit it only with
/// an entry of its own term, which the other log must take.
#[test]
fn a_log_full_of_what_is_not_committed_takes_the_entry_that_commits_it() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    scene.elect(1, &[1, 2, 3]);
    scene.cores.values_mut().for_each(|core| core.config.log_bytes_max = 500);
    while scene.core(1).propose(0, Bytes::from(&[1; 100][..])).is_ok() {}
    let last = scene.core(1).last().position;
    let now = scene.now;
    for envelope in scene.says(1) {
        let to = envelope.to.0;
        scene.core(to).receive(now, envelope);
        // The answer is lost.
        scene.says(to);
    }
    assert!([2, 3].iter().all(|&number| scene.core(number).log_bytes() >= 500));
    assert!(scene.core(2).committed() < last);
    scene.elect(2, &[2, 3]);
    assert!(scene.core(2).is_leader());
    assert_eq!(scene.core(2).committed(), last.next());
}

#[test]
fn a_leader_without_a_majority_steps_down_and_its_reads_fail() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    scene.elect(1, &[1, 2, 3]);
    scene.core(1).read(5).expect("it leads");
    scene.core(1).output();
    assert_eq!(scene.reads, [], "nobody has confirmed it");
    let now = scene.now + LONG;
    scene.core(1).tick(now);
    let reads = scene.core(1).output().reads;
    assert_eq!((reads, scene.core(1).is_leader()), (vec![(5, None)], false));
}

#[test]
fn invented_replicas_do_not_fill_the_memory() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    let life = Life { number: 1, chance: 1 };
    scene.core(1).note_lives(&(10..2000).map(|number| (id(number), life)).collect());
    assert!(scene.core(1).hard.lives.len() <= 256);
    let heard = scene.core(1).hard.lives.contains_key(&id(2));
    assert!(heard, "the real ones are known");
}

#[test]
fn a_person_may_vouch_for_a_disk() {
    let mut core = replica(3, log_of(3, &[1]), 2);
    core.tick(LONG);
    assert_eq!((core.role(), core.has_enough(at(9, 9))), (RoleName::Asking, false));
    core.trust();
    assert_eq!((core.role(), core.has_enough(at(9, 9))), (RoleName::Follower, true));
}

#[test]
fn a_disk_that_has_all_of_the_word_of_before_asks_nobody() {
    let mut first = replica(3, log_of(3, &[1, 2]), 2);
    assert_eq!(first.word(), None, "its word does not count yet");
    first.trust();
    let word = first.word().expect("it counts");
    let starts = |log, term: u64, change: fn(&mut Hard)| {
        let Core { config, mut hard, log, .. } = replica(3, log, 3);
        (hard.term, hard.lives) = (Term(term), first.hard.lives.clone());
        change(&mut hard);
        let config = Config { earlier: Some(word.clone()), ..config };
        Core::new(config, hard, log, Duration::ZERO, 1).role()
    };
    let keep: fn(&mut Hard) = |_| {};
    assert_eq!(starts(log_of(3, &[1, 2]), 2, keep), RoleName::Follower);
    assert_eq!(starts(log_of(3, &[1, 2, 2]), 3, keep), RoleName::Follower, "more is enough");
    assert_eq!(starts(log_of(3, &[1]), 2, keep), RoleName::Asking, "an entry is missing");
    assert_eq!(starts(log_of(3, &[1, 2]), 1, keep), RoleName::Asking, "an older term");
    let voted = |hard: &mut Hard| hard.voted = Some(id(1));
    assert_eq!(starts(log_of(3, &[1, 2]), 2, voted), RoleName::Asking, "another vote");
}

#[test]
fn a_replica_may_be_content_with_a_majority_after_a_time() {
    let mut core = replica(3, log_of(3, &[1]), 2);
    core.config.content_after = Some(LONG);
    let membership = core.membership().clone();
    let answer = Answer { last: at(2, 5), membership, membership_stamp: at(1, 1) };
    core.take_answer(id(1), Term(2), answer);
    assert_eq!(core.role(), RoleName::Asking, "replica 2 has not answered");
    core.tick(LONG);
    assert_eq!((core.role(), core.term()), (RoleName::Follower, Term(2)));
    assert!(core.is_content(), "and it says so");
    assert!(core.has_enough(at(2, 5)) && !core.has_enough(at(2, 4)), "the answer counts");
    let mut alone = replica(3, log_of(3, &[1]), 2);
    alone.config.content_after = Some(LONG);
    alone.tick(LONG);
    assert_eq!(alone.role(), RoleName::Asking, "alone it is no majority");
}

#[test]
fn a_replica_waits_for_nobody_who_never_answers_again() {
    let answered = |number: u32| {
        let mut core = replica(3, log_of(3, &[1]), 2);
        core.config.content_after = Some(LONG);
        let membership = core.membership().clone();
        let answer = Answer { last: at(2, 5), membership, membership_stamp: at(1, 1) };
        core.take_answer(id(number), Term(2), answer);
        core
    };
    let mut core = answered(1);
    core.give_up_on(&BTreeSet::from([id(7)]));
    core.tick(LONG / 2);
    assert_eq!(core.role(), RoleName::Asking, "replica 2 may answer");
    let mut core = answered(1);
    core.give_up_on(&BTreeSet::from([id(2)]));
    core.tick(LONG / 21);
    assert_eq!(core.role(), RoleName::Asking, "its disk may be there after all");
    core.tick(LONG / 10);
    assert_eq!((core.role(), core.is_content()), (RoleName::Follower, true));
    assert!(core.has_enough(at(2, 5)) && !core.has_enough(at(2, 4)), "the answer counts");
    // It may be known before the others have answered.
    let mut early = replica(3, log_of(3, &[1]), 2);
    early.config.content_after = Some(LONG);
    early.give_up_on(&BTreeSet::from([id(1), id(2)]));
    early.tick(LONG / 10);
    assert_eq!(early.role(), RoleName::Asking, "alone it is no majority");
    let mut strict = answered(1);
    strict.config.content_after = None;
    strict.give_up_on(&BTreeSet::from([id(2)]));
    strict.tick(LONG);
    assert_eq!(strict.role(), RoleName::Asking, "it is never content with less");
}

#[test]
fn a_disk_from_before_the_group_grew_asks_whom_its_caller_knows() {
    let hard = Hard { term: Term(1), ..Hard::default() };
    let known: BTreeSet<ReplicaId> = (1..=3).map(ReplicaId).collect();
    let config = Config { known: known.clone(), ..Config::new(id(1)) };
    let mut core = Core::new(config, hard, log_of(1, &[1]), Duration::ZERO, 7);
    assert_eq!(core.role(), RoleName::Asking, "its own log says that it is alone");
    for number in [2, 3] {
        assert!(!core.has_enough(at(9, 9)));
        let membership = Membership::of(known.iter().copied());
        let answer = Answer { last: at(4, 9), membership, membership_stamp: at(4, 2) };
        core.take_answer(id(number), Term(4), answer);
    }
    assert!(core.has_enough(at(4, 9)) && !core.has_enough(at(4, 8)));
}

/// A replica that has its log up to a snapshot at position 4, and whose machine lacks its state.
fn lacking() -> Core {
    let mut log = log_of(3, &[1, 1, 1, 1, 1]);
    let snapshot = log.snapshot_at(Position(4), Bytes::from(&[][..])).expect("it is there");
    log.take_snapshot(Arc::new(snapshot), 0, 0);
    let hard = Hard { term: Term(2), life: Life { number: 1, chance: 1 }, ..Hard::default() };
    Core::keeping(Config::new(id(1)), hard, log, None, Duration::ZERO, 1)
}

/// The leader of term 2 sends a part of a copy, whole at an entry of term 1.
fn part(count: u64, number: u64, whole: u64) -> Envelope {
    let membership = Membership::of((1..=3).map(ReplicaId));
    let bytes = Bytes::from(&b"records"[..]);
    let whole = Snapshot { stamp: at(1, whole), membership, level: 0, bytes: Bytes::from(&[][..]) };
    let copy = CopyId { term: Term(2), count };
    let part = CopyPart { copy, number, bytes, whole: Some(whole), round: 1 };
    let from_life = Life { number: 1, chance: 2 };
    let (from, to, to_life, term) = (id(2), id(1), None, Term(2));
    Envelope { from, from_life, to, to_life, term, body: Body::Copy(part) }
}

#[test]
fn a_copy_is_whole_where_it_has_what_is_committed_only() {
    let whole = || {
        let mut core = lacking();
        core.receive(Duration::ZERO, part(1, 0, 3));
        core.output().received[0].whole
    };
    assert_eq!(whole(), None, "position 4 is committed");
    assert_eq!(without(Rule::CopiesReachTheCommitted, whole), Some(Position(3)));
}

#[test]
fn a_copy_that_another_one_has_followed_is_not_taken() {
    let taken = || {
        let mut core = lacking();
        core.receive(Duration::ZERO, part(2, 0, 4));
        let received = core.output().received;
        assert_eq!(received.len(), 1);
        // A message that was overtaken.
        core.receive(Duration::ZERO, part(1, 0, 4));
        core.output().received.len()
    };
    assert_eq!(taken(), 0);
    assert_eq!(without(Rule::OldCopiesAreVoid, taken), 1);
}

#[test]
fn a_replica_has_its_state_again_when_a_copy_is_whole_and_durable() {
    let mut core = lacking();
    core.trust();
    assert_eq!((core.lacks(), core.role()), (true, RoleName::Lacking));
    core.receive(Duration::ZERO, part(1, 0, 3));
    let (copy, now) = (core.output().received[0].copy, Duration::ZERO);
    core.copy_taken(now, copy, 0);
    assert!(core.lacks(), "it was not whole");
    core.receive(now, part(1, 1, 5));
    core.receive(now, part(1, 1, 5));
    assert_eq!(core.output().received.len(), 1, "the machine is busy with it");
    core.copy_taken(now, copy, 1);
    assert_eq!((core.lacks(), core.committed(), core.last()), (false, Position(5), at(1, 5)));
    let output = core.output();
    let batch = output.persist.expect("the stamp of the copy");
    let snapshot = batch.snapshot.expect("in the place of the log").0;
    assert_eq!((snapshot.stamp, snapshot.bytes.len()), (at(1, 5), 0));
    assert_eq!(output.committed, [], "the machine has all of it");
}

/// Entries that nobody waits for are written and sent together.
#[test]
fn entries_linger_until_somebody_waits_for_one() {
    let mut scene = Scene::of((1..=3).map(|number| replica(number, log_of(3, &[1]), 1)));
    scene.introduce();
    scene.elect(1, &[1, 2, 3]);
    scene.talk(&[1, 2, 3]);
    let linger = Duration::from_millis(20);
    scene.core(1).config.linger = linger;
    let now = scene.now;
    let adds = |scene: &mut Scene, now: Duration| {
        let stamp = scene.core(1).next().expect("it leads");
        scene.core(1).propose_at(now, stamp, 0, Bytes::from(&b"x"[..])).expect("taken");
        stamp
    };
    let first = adds(&mut scene, now);
    let second = adds(&mut scene, now + linger / 2);
    let output = scene.core(1).output();
    assert!(output.persist.is_none() && output.send.is_empty(), "they linger");
    assert_eq!(scene.core(1).lingers_until(), Some(now + linger), "as long as the first one may");

    // Somebody waits.
    assert!(scene.core(1).hurry() && !scene.core(1).hurry());
    let output = scene.core(1).output();
    let batch = output.persist.expect("both are written");
    assert_eq!(batch.entries.iter().map(Entry::stamp).collect::<Vec<_>>(), [first, second]);
    assert_eq!(output.send.len(), 2, "both are in one message to each follower");

    // While those are under way, the next one lingers, also when answers come.
    let third = adds(&mut scene, now + linger);
    for envelope in output.send {
        let to = envelope.to.0;
        scene.core(to).receive(now, envelope);
        for answer in scene.says(to) {
            scene.core(1).receive(now, answer);
        }
    }
    scene.core(1).persisted(now, batch.ticket, true);
    let output = scene.core(1).output();
    assert!(output.persist.is_none(), "it is not written yet");
    assert_eq!(scene.core(1).is_committed(second), Some(true));
    let sent = |output: &Output| {
        let appends = output.send.iter().filter_map(|envelope| match &envelope.body {
            Body::Append { entries, .. } => Some(entries.iter().map(Entry::stamp)),
            _ => None,
        });
        appends.flatten().any(|stamp| stamp == third)
    };
    assert!(!sent(&output), "nor sent");

    // One that is waited for takes all before it along.
    let fourth = scene.core(1).propose(0, Bytes::from(&b"y"[..])).expect("taken");
    let output = scene.core(1).output();
    let batch = output.persist.as_ref().expect("both are written");
    assert_eq!(batch.entries.iter().map(Entry::stamp).collect::<Vec<_>>(), [third, fourth]);
    assert!(sent(&output));
    scene.core(1).persisted(now, batch.ticket, true);

    // Time ends it, too.
    let fifth = adds(&mut scene, now + 2 * linger);
    scene.core(1).tick(now + 3 * linger);
    let batch = scene.core(1).output().persist.expect("it is written");
    assert_eq!(batch.entries.iter().map(Entry::stamp).collect::<Vec<_>>(), [fifth]);
    assert_eq!(scene.core(1).lingers_until(), None);
}
