//! Scenes that chance meets too seldom: a leader that was replaced without knowing, and one that
//! leads again.

use super::client::{World, new_name};
use super::cluster::{Cluster, LEVEL, Loss};
use std::sync::Arc;
use std::time::Duration;
use strake_env::simulation::{self, Options};
use strake_env::{Clock, RealClock, Rng};
use strake_meta::replicated::{Rule, TermPort};
use strake_proto::meta::{CountedEntry, MetaEntry, MetaOp, MetaPort, MetaQuery};
use strake_proto::{ClientId, ErrorKind, FeatureLevel, Ino, Result};
use strake_replica::core::ChangeRefusal;
use strake_replica::replica::Failure;
use strake_replica::types::ReplicaId;

const LONG: Duration = Duration::from_secs(60);

/// Waits for a leader that `is_such`.
fn leader(cluster: &Cluster, is_such: impl Fn(ReplicaId) -> bool) -> (ReplicaId, TermPort) {
    let end = RealClock.monotonic() + LONG;
    loop {
        if let Some(found) = cluster.ports().into_iter().find(|(id, _)| is_such(*id)) {
            return found;
        }
        let leads = || cluster.leader().map(|(id, _)| id);
        assert!(RealClock.monotonic() < end, "not so: {:?} leads", leads());
        RealClock.sleep(Duration::from_millis(3));
    }
}

fn lookup(port: &TermPort, name: &str) -> Result<()> {
    let name = name.as_bytes().to_vec();
    port.query(&MetaQuery::Lookup { parent: Ino::ROOT, name }).map(|_| ())
}

fn kind<T>(outcome: Result<T>) -> std::result::Result<(), ErrorKind> {
    outcome.map(|_| ()).map_err(|error| error.kind())
}

/// Runs a scene without a rule, or with all.
fn play<T: Send + 'static>(
    without: Option<Rule>,
    scene: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> T {
    let run = move || {
        let cluster = Arc::new(Cluster::new(1, without));
        World::new(Arc::clone(&cluster)).format();
        let outcome = scene(&cluster);
        cluster.stop();
        outcome
    };
    simulation::run(Options { time_max: LONG * 5, ..Options::new(1) }, run).expect()
}

#[test]
fn a_leader_that_was_replaced_without_knowing_answers_nothing() {
    let scene = |cluster: &Cluster| {
        let (old, port) = leader(cluster, |_| true);
        port.apply(&new_name("before")).expect("it leads");
        port.sync().expect("a majority is there");
        assert_eq!(kind(lookup(&port, "before")), Ok(()));
        // It stands still, so it does not hear of the other one.
        cluster.pause(old, true);
        let (_, other) = leader(cluster, |id| id != old);
        other.apply(&new_name("after")).expect("it leads");
        other.sync().expect("a majority is there");
        let answers = (kind(lookup(&port, "before")), kind(lookup(&port, "after")));
        cluster.pause(old, false);
        answers
    };
    let nothing = Err(ErrorKind::Unreachable);
    assert_eq!(play(None, scene), (nothing, nothing));
    let stale = (Ok(()), Err(ErrorKind::NotFound));
    assert_eq!(play(Some(Rule::LeasesGuardAnswers), scene), stale);
}

#[test]
fn a_leader_whose_disk_is_damaged_gives_way_and_gets_a_copy() {
    let scene = |cluster: &Cluster| {
        let (bad, port) = leader(cluster, |_| true);
        // The log does not have all of them. Else the node would make its store anew from the log,
        // and could lead again.
        for name in 0..150 {
            port.apply(&new_name(&format!("{name}"))).expect("it leads");
        }
        port.sync().expect("a majority is there");
        cluster.damage(bad);
        // A node alone would say what is wrong. Here another one has it.
        assert_eq!(kind(lookup(&port, "7")), Err(ErrorKind::Unreachable));
        assert_eq!(kind(port.apply(&new_name("more"))), Err(ErrorKind::Unreachable));
        assert_eq!(cluster.start_ended(), [bad]);
        let (_, other) = leader(cluster, |id| id != bad);
        assert_eq!(kind(lookup(&other, "7")), Ok(()));
        let end = RealClock.monotonic() + LONG;
        while !cluster.all_are_level() {
            assert!(RealClock.monotonic() < end, "it gets no copy");
            RealClock.sleep(Duration::from_millis(20));
        }
        let records = cluster.records();
        assert!(records.windows(2).all(|pair| pair[0] == pair[1]), "the stores differ");
        records[0].len()
    };
    assert!(play(None, scene) > 50);
}

/// Names are refused while there is space for their removal. A refusal stays one.
#[test]
fn a_full_store_takes_no_names_and_gives_them_up() {
    let scene = |cluster: &Cluster| {
        let (_, port) = leader(cluster, |_| true);
        let name = |number: u32| format!("{number:0>200}");
        let count = |number: u32, entry: MetaEntry| {
            let sequence = u64::from(number) + 1;
            let entry = MetaEntry { client: ClientId(5), sequence, ..entry };
            CountedEntry { life: 1, oldest: sequence, entry }
        };
        let counted = |number: u32| count(number, new_name(&name(number)));
        let join = MetaEntry { op: MetaOp::Join, ..new_name("") };
        port.apply_counted(&count(0, join)).expect("its life begins");
        let mut made = 0;
        let refused = loop {
            match port.apply_counted(&counted(made + 1)) {
                Ok(answer) if answer.outcome.is_ok() => made += 1,
                Ok(answer) => panic!("{:?}", answer.outcome),
                Err(error) if error.kind() == ErrorKind::NoSpace => break counted(made + 1),
                Err(error) => panic!("{error}"),
            }
            assert!(made < 100_000, "it is never full");
        };
        for number in 1..=made {
            let op =
                MetaOp::Unlink { parent: Ino::ROOT, name: name(number).into_bytes(), open: false };
            port.apply(&MetaEntry { op, ..new_name("") }).expect("there is space to remove");
        }
        // A late copy of the request. The client was told that it is refused.
        let late = port.apply_counted(&refused).expect_err("it was refused for good");
        assert_eq!(late.kind(), ErrorKind::NoSpace);
        port.sync().expect("a majority is there");
        port.apply(&new_name("again")).expect("there is space again");
        made
    };
    let made = play(None, scene);
    println!("{made} names");
    assert!(made > 500);
}

/// Raises the level until `is_such` of the outcome.
fn raise(cluster: &Cluster, is_such: impl Fn(&std::result::Result<(), Failure>) -> bool) {
    let end = RealClock.monotonic() + LONG;
    loop {
        let (id, _) = leader(cluster, |_| true);
        let raised = cluster.replica(id).raise_level(LEVEL.0, Duration::from_secs(1));
        if is_such(&raised) {
            return;
        }
        assert!(RealClock.monotonic() < end, "{raised:?}");
        RealClock.sleep(Duration::from_millis(3));
    }
}

#[test]
fn a_change_of_a_newer_level_waits_until_all_understand_it() {
    let scene = |cluster: &Cluster| {
        let op = MetaOp::SetConfig { name: "atime".to_owned(), value: "no".to_owned() };
        let change = MetaEntry { op, ..new_name("") };
        let (old, _) = leader(cluster, |_| true);
        // It may be chosen again unless others choose first.
        cluster.cut(old, false);
        cluster.start_as(old, FeatureLevel::FIRST);
        let (_, port) = leader(cluster, |id| id != old);
        cluster.heal();
        assert_eq!(kind(port.apply(&change)), Err(ErrorKind::NotSupported));
        let refused = Failure::NotChanged(ChangeRefusal::Unsupported(old));
        raise(cluster, |raised| raised.as_ref() == Err(&refused));
        cluster.start_as(old, LEVEL);
        raise(cluster, |raised| raised.is_ok());
        let (id, port) = leader(cluster, |_| true);
        port.apply(&change).expect("all understand it");
        port.sync().expect("a majority is there");
        cluster.crash(id, Loss::Unsynced, &mut Rng::new(1));
        let (other, port) = leader(cluster, |it| it != id);
        cluster.start(id);
        port.apply(&change).expect("the next leader knows the level");
        // A program of before cannot come back, whatever its log is.
        let end = RealClock.monotonic() + LONG;
        while !cluster.all_are_level() {
            assert!(RealClock.monotonic() < end, "the nodes do not come together");
            RealClock.sleep(Duration::from_millis(3));
        }
        let third = [1, 2, 3].map(ReplicaId).into_iter().find(|it| ![id, other].contains(it));
        let third = third.expect("there are three");
        cluster.start_as(third, FeatureLevel::FIRST);
        let end = RealClock.monotonic() + LONG;
        loop {
            if let Some(why) = cluster.replica(third).status().ended {
                break why.to_string();
            }
            assert!(RealClock.monotonic() < end, "it goes on");
            RealClock.sleep(Duration::from_millis(3));
        }
    };
    let why = play(None, scene);
    assert!(why.contains("feature level is 2, which this program does not understand"), "{why}");
}

#[test]
fn a_leader_that_leads_again_serves_nobody_as_before() {
    let scene = |cluster: &Cluster| {
        let (id, port) = leader(cluster, |_| true);
        cluster.cut(id, false);
        port.apply(&new_name("lost")).expect("it does not know yet");
        leader(cluster, |other| other != id);
        // Until it leads again.
        let end = RealClock.monotonic() + LONG;
        let again = loop {
            cluster.heal();
            let (newest, again) = leader(cluster, |_| true);
            if newest == id && again.term() > port.term() {
                break again;
            }
            cluster.cut(newest, false);
            RealClock.sleep(Duration::from_millis(400));
            assert!(RealClock.monotonic() < end, "it never leads");
        };
        assert_eq!(kind(lookup(&again, "lost")), Err(ErrorKind::NotFound));
        kind(port.sync())
    };
    assert_eq!(play(None, scene), Err(ErrorKind::Unreachable));
    let told = play(Some(Rule::PortsEndWithTheirTerm), scene);
    assert_eq!(told, Ok(()), "a client would believe that its change is durable");
}
