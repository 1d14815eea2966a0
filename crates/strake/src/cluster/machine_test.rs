//! Golden entries, mutated ones, and what the machine makes of entries.

use super::*;
use crate::cluster::records::records_test::three;
use crate::cluster::records::{NewNsd, NodeNumber, Usage};
use strake_env::Rng;
use strake_env::net::SocketAddr;
use strake_proto::{ClusterId, Code, FeatureLevel, FsId, NsdId, Roles};

fn machine() -> RecordsMachine {
    RecordsMachine { applied: Applied::default(), publish: Box::new(|_| ()) }
}

fn apply(machine: &mut RecordsMachine, entry: &Entry) -> Result<Cluster> {
    read_answer(&machine.apply(Position(1), &entry.encode().expect("encodes")))
}

fn invite(at: Option<u64>, name: &str) -> Entry {
    let change = Change::Invite { name: name.to_owned(), roles: Roles::ALL };
    Entry::Change { at, change }
}

/// One entry of each kind.
fn samples() -> Vec<Entry> {
    let address = SocketAddr::from(([10, 0, 0, 1], 7790));
    let cluster = Cluster::new(ClusterId([0xab; 16]), "demo", "n1", address).expect("names");
    let nsd = NewNsd {
        name: Some("d1".into()),
        node: NodeNumber(1),
        device: "/dev/sdb".into(),
        usage: Usage::DataOnly,
        failure_group: Some(7),
        pool: "system".into(),
    };
    let fs = Change::AddFs {
        name: "fs".into(),
        code: Code { data: 4, parity: 2 },
        block_size: 4 << 20,
        mount: "/m".into(),
        nsds: vec![NsdId(1)],
    };
    let changes = [
        Change::Invite { name: "n2".into(), roles: Roles::ALL },
        Change::Join { name: "n2".into(), address },
        Change::DeleteNode { node: NodeNumber(2) },
        Change::AddNsds { nsds: vec![nsd] },
        fs,
        Change::Mount { fs: FsId(1), node: NodeNumber(1) },
        Change::Unmount { fs: FsId(1), node: NodeNumber(1) },
        Change::DeleteFs { fs: FsId(1) },
        Change::DeleteNsds { nsds: vec![NsdId(1)] },
        Change::AttachNsd { fs: FsId(1), nsd: NsdId(2) },
        Change::DetachNsd { fs: FsId(1), nsd: NsdId(2) },
        Change::KeepNoMetadata { nsd: NsdId(2) },
        Change::Level { level: FeatureLevel(2) },
        Change::ShareNsd { nsd: NsdId(1), servers: vec![NodeNumber(1), NodeNumber(2)] },
        Change::ServeNsd { nsd: NsdId(1), node: NodeNumber(2), after: 300 },
        Change::Issue { node: NodeNumber(2) },
        Change::GoOn { fs: FsId(1), origin: NsdId(2), lost: vec![NsdId(3)] },
    ];
    let changes = changes.into_iter().map(|change| Entry::Change { at: Some(300), change });
    let mut raised = cluster.clone();
    raised.level = FeatureLevel(2);
    let found = [cluster, raised].map(|cluster| Entry::Found(Box::new(cluster)));
    found.into_iter().chain(changes).collect()
}

#[test]
fn the_bytes_of_entries_never_change() {
    let shown = samples().into_iter().map(|entry| {
        let bytes = entry.encode().expect("encodes");
        assert_eq!(Entry::decode(&bytes).expect("decodes"), entry);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    let golden = [
        "0200abababababababababababababababab0464656d6f01010100000101026e3101000a000001ee3c0700000000",
        "0300abababababababababababababababab0464656d6f01010100000101026e3101000a000001ee3c070000000002",
        "010101ac0200026e3207",
        "010101ac0201026e32000a000001ee3c",
        "010101ac020202",
        "010101ac0203010102643101082f6465762f7364620101070673797374656d",
        "010101ac0204026673040280808002022f6d0101",
        "010101ac02050101",
        "010101ac02060101",
        "010101ac020701",
        "010101ac02080101",
        "010101ac02090102",
        "010101ac020a0102",
        "010101ac020b02",
        "010101ac020c02",
        "010101ac020d01020102",
        "010101ac020e0102ac02",
        "010101ac020f02",
        "010101ac021001020103",
    ];
    assert_eq!(shown.collect::<Vec<_>>(), golden);
}

#[test]
fn records_of_before_are_read() {
    let bytes = samples()[0].encode().expect("encodes");
    let before = [&[1], &bytes[1..bytes.len() - 1]].concat();
    assert_eq!(Entry::decode(&before).expect("decodes"), samples()[0]);
    let longer = [&before[..], &[0, 0]].concat();
    assert!(Entry::decode(&longer).is_err());
}

#[test]
fn what_names_a_level_needs_one_and_all_else_does_not() {
    let above = samples().into_iter().filter(|entry| entry.level() > FeatureLevel::FIRST);
    let above: Vec<Entry> = above.collect();
    let level = |entry: &Entry| (entry.level(), entry.raises());
    assert_eq!(
        above.iter().map(level).collect::<Vec<_>>(),
        [Some(FeatureLevel(2)), Some(FeatureLevel(2)), None, None, None, None]
            .map(|raises| (FeatureLevel(2), raises))
    );
}

#[test]
fn mutated_entries_break_nothing() {
    let seed = Rng::from_entropy().expect("random").next_u64();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let good: Vec<Vec<u8>> =
        samples().iter().map(|entry| entry.encode().expect("encodes")).collect();
    for _ in 0..20_000 {
        let mut machine = machine();
        *machine.applied.lock() = Some(three());
        let mut bytes = good[rng.index(good.len())].clone();
        for _ in 0..=rng.index(3) {
            let at = rng.index(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        bytes.truncate(bytes.len() - rng.index(2) * rng.index(bytes.len()));
        if let Ok(cluster) = read_answer(&machine.apply(Position(1), &bytes)) {
            cluster.check().expect("what is applied keeps the invariants");
        }
    }
}

#[test]
fn the_first_records_count_and_later_ones_do_not() {
    let mut machine = machine();
    assert!(machine.snapshot().is_empty());
    assert!(apply(&mut machine, &invite(None, "n9")).is_err(), "there is nothing to change");
    let first = three();
    assert_eq!(apply(&mut machine, &Entry::Found(Box::new(first.clone()))).expect("begins"), first);
    let mut other = first.clone();
    other.name = "other".to_owned();
    let answer = apply(&mut machine, &Entry::Found(Box::new(other))).expect("is answered");
    assert_eq!(answer, first);
}

#[test]
fn a_change_names_the_revision_that_it_was_made_for() {
    let mut machine = machine();
    let first = apply(&mut machine, &Entry::Found(Box::new(three()))).expect("begins");
    let at = Some(first.revision);
    let second = apply(&mut machine, &invite(at, "n4")).expect("nothing came in between");
    let refused = apply(&mut machine, &invite(at, "n5")).expect_err("n4 came in between");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert_eq!(*machine.applied.lock(), Some(second));
    apply(&mut machine, &invite(None, "n5")).expect("any revision will do");
}

#[test]
fn a_snapshot_is_the_whole_state_and_is_published() {
    let mut machine = machine();
    let first = apply(&mut machine, &Entry::Found(Box::new(three()))).expect("begins");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let publish: Publish = {
        let heard = Arc::clone(&heard);
        Box::new(move |cluster| heard.lock().push(cluster.revision))
    };
    let mut other = RecordsMachine { applied: Applied::default(), publish };
    other.install(&machine.snapshot()).expect("its own bytes");
    assert_eq!(other.applied.lock().clone(), Some(first.clone()));
    apply(&mut other, &invite(None, "n4")).expect("goes on");
    apply(&mut other, &invite(Some(1), "n5")).expect_err("another revision");
    assert_eq!(*heard.lock(), [first.revision, first.revision + 1]);
    assert!(other.install(b"garbage").is_err());
    other.install(&[]).expect("the state before the first entry");
    assert_eq!(*other.applied.lock(), None);
}
