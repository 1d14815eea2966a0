//! A bit flips in one node's copy of the metadata. The scrub of that copy finds it, and afterwards
//! the copy alone is enough.

use super::HEALED;
use super::client::{World, new_name};
use super::cluster::{Cluster, Loss};
use std::sync::Arc;
use std::time::Duration;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::simulation::{self, Options};
use strake_env::{Clock, RealClock, Rng};
use strake_meta::replicated::TermPort;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_replica::types::ReplicaId;

const ALL: [ReplicaId; 3] = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];

/// The damaged part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Journal,
    /// One page, perhaps one that nobody needs.
    Page,
    Store,
}

/// The course of a run.
#[derive(Clone, Copy, Debug)]
struct Met {
    damage: Damage,
    was_leader: bool,
    /// Pages and records found to be damaged.
    bad: u64,
    /// Whether the node gave its store up.
    gave_way: bool,
}

fn level(cluster: &Cluster) -> TermPort {
    let end = RealClock.monotonic() + HEALED;
    loop {
        cluster.start_ended();
        let port = cluster.leader().map(|(_, port)| port);
        if let Some(port) = port.filter(|port| port.sync().is_ok())
            && cluster.all_are_level()
        {
            return port;
        }
        assert!(RealClock.monotonic() < end, "the nodes do not come together");
        RealClock.sleep(Duration::from_millis(20));
    }
}

/// Makes names, which are durable afterwards.
fn make(cluster: &Cluster, names: std::ops::Range<u64>) {
    let end = RealClock.monotonic() + HEALED;
    for name in names {
        loop {
            let port = level(cluster);
            if port.apply(&new_name(&format!("{name:0>80}"))).is_ok() && port.sync().is_ok() {
                break;
            }
            assert!(RealClock.monotonic() < end, "nobody takes a name");
        }
    }
}

fn scene(cluster: &Cluster, rng: &mut Rng) -> Met {
    make(cluster, 0..30 + rng.below(30));
    level(cluster);
    let id = ALL[rng.index(3)];
    let was_leader = cluster.leader().is_some_and(|(leader, _)| leader == id);
    cluster.settle(id);
    assert_eq!(cluster.scrub(id).bad, 0, "nothing is damaged yet");
    let damage = [Damage::Journal, Damage::Page, Damage::Store][rng.index(3)];
    match damage {
        Damage::Journal => cluster.flip_in_journal(id, rng),
        Damage::Page => cluster.flip_in_store(id, rng),
        Damage::Store => cluster.damage(id),
    }
    let found = cluster.scrub(id);
    let gave_way = cluster.start_ended() == [id];
    assert!(found.bad == found.mended || gave_way, "{damage:?}: {found:?}");
    make(cluster, 1000..1005);
    level(cluster);
    assert_eq!(cluster.scrub(id).bad, 0, "it was mended");
    // The others lose their stores, and have their journals.
    ALL.iter().for_each(|&other| {
        let loss = if other == id { Loss::Unsynced } else { Loss::Store };
        cluster.crash(other, loss, rng);
    });
    ALL.iter().for_each(|&id| cluster.start(id));
    let port = level(cluster);
    match port.query(&MetaQuery::Check) {
        Ok(MetaReply::Checked(reply)) => assert_eq!(reply.faults, Vec::<String>::new()),
        other => panic!("{other:?}"),
    }
    let records = cluster.records();
    assert!(records.windows(2).all(|pair| pair[0] == pair[1]), "the stores differ");
    assert!(records[0].len() > 30, "there are records to compare");
    Met { damage, was_leader, bad: found.bad, gave_way }
}

#[test]
fn a_flipped_bit_in_any_copy_is_mended_by_its_scrub_and_then_it_is_enough() {
    let mut all = Vec::new();
    for seed in test_seeds(0, 24 * test_scale()) {
        let run = move || {
            let cluster = Arc::new(Cluster::new(seed, None));
            World::new(Arc::clone(&cluster)).format();
            let met = scene(&cluster, &mut Rng::new(seed ^ 5));
            cluster.stop();
            met
        };
        let options = Options { time_max: HEALED * 5, ..Options::new(seed) };
        let met = simulation::run(options, run).expect();
        println!("seed {seed}: {met:?}");
        all.push(met);
    }
    let count = |is_such: &dyn Fn(&Met) -> bool| all.iter().filter(|met| is_such(met)).count();
    for damage in [Damage::Journal, Damage::Page, Damage::Store] {
        let found = count(&|met| met.damage == damage && met.bad > 0);
        let by_followers = count(&|met| met.damage == damage && met.bad > 0 && !met.was_leader);
        println!("{damage:?}: {found} found, {by_followers} of them where nobody else reads");
        assert!(found > 1 && by_followers > 0, "{damage:?} is found too seldom");
    }
    assert!(count(&|met| met.gave_way) > 2, "stores are given up too seldom");
}
