//! When a recovery is refused, and what it makes of a directory.

use super::*;
use crate::cluster::machine::Entry;
use crate::cluster::records::{NewNsd, Usage};
use crate::cluster::{Change, file};
use crate::node::messages::{MetadataState, ReplicaState};
use crate::node::quorum::quorum_test::{Folder, Lonely};
use strake_crew::metadata::{KnownCopy, LogId};
use strake_env::net::SocketAddr;
use strake_proto::{ClusterId, FeatureLevel, FsId, NsdId, Roles, Term};
use strake_replica::membership::Membership;
use strake_replica::types::{Position, ReplicaId, Stamp};

fn replica(role: &str, last: (u64, u64)) -> ReplicaState {
    ReplicaState {
        role: role.to_owned(),
        leader: None,
        term: 9,
        last_term: last.0,
        last: last.1,
        applied: 0,
        members: Vec::new(),
        fault: None,
        level: FeatureLevel::FIRST,
    }
}

fn says(name: &str, role: &str, last: (u64, u64)) -> Word {
    says_of(name, Some(replica(role, last)), Vec::new(), false)
}

fn says_of(
    name: &str,
    replica: Option<ReplicaState>,
    metadata: Vec<MetadataState>,
    is_later: bool,
) -> Word {
    let node = NodeState {
        node: name.to_owned(),
        state: "active".to_owned(),
        pid: None,
        version: None,
        mounts: Vec::new(),
        faults: Vec::new(),
        unusable: Vec::new(),
        replica,
        metadata,
    };
    (name.to_owned(), Some(State { node, is_later }))
}

fn silent(name: &str) -> Word {
    (name.to_owned(), None)
}

#[test]
fn what_is_not_needed_or_loses_more_is_refused() {
    let refused = |words: &[Word]| {
        let error = judge("n2", (3, 70), words).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    assert!(refused(&[]).contains("alone"));
    assert!(refused(&[silent("n1"), says("n3", "leader", (3, 70))]).contains("n3 leads"));
    let more = says("n3", "follower", (3, 71));
    assert!(refused(&[silent("n1"), more]).contains("recover there"));
    let later = says("n3", "follower", (4, 5));
    assert!(refused(&[silent("n1"), later]).contains("recover there"));
    let both = [says("n1", "asking", (3, 70)), says("n3", "asking", (3, 9))];
    assert!(refused(&both).contains("by themselves"));
    let later = says_of("n3", Some(replica("follower", (1, 1))), Vec::new(), true);
    assert!(refused(&[silent("n1"), later]).contains("gone on without n2"));
    let without_log = says_of("n3", None, Vec::new(), false);
    let both = ["n1", "n3"].map(str::to_owned).to_vec();
    assert_eq!(judge("n2", (3, 70), &[silent("n1"), without_log]), Ok(both));
    let less = says("n3", "asking", (3, 69));
    assert_eq!(judge("n2", (3, 70), &[silent("n1"), less]), Ok(vec!["n1".to_owned()]));
}

#[test]
fn a_recovered_node_goes_on_with_all_that_it_had() {
    let folder = Folder::new("recover");
    let (dir, own) = (folder.dir(), NodeNumber(1));
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let first = Cluster::new(ClusterId([5; 16]), "demo", "n1", address).expect("names");
    quorum::make_journal(&dir, &first, own, true).expect("made");
    let node = Lonely::start(&dir, &first);
    let change = Change::Invite { name: "n2".into(), roles: Roles::ALL };
    let known = node.propose(&Entry::Change { at: None, change });
    drop(node);
    let (records, last) = quorum::read_journal(&dir, &first, own).expect("reads");
    assert_eq!(records, known, "the log has more than the file");
    assert!(last.0 >= 2 && last.1 >= 3, "{last:?}");
    let next = records.clone().after_loss(&[]);
    assert!(is_void(&records, &next) && !is_void(&next, &records) && !is_void(&next, &next));
    quorum::make_journal(&dir, &next, own, true).expect("made");
    let node = Lonely::start(&dir, &next);
    let change = Change::Invite { name: "n3".into(), roles: Roles::ALL };
    let changed = node.propose(&Entry::Change { at: Some(next.revision), change });
    assert_eq!((changed.generation, changed.nodes.len()), (1, 3));
    assert!(dir.journal_path(0).exists(), "the old log is untouched until the file is written");
}

/// Three nodes with an NSD each, and a file system on them that n2 has mounted.
fn three_nodes() -> Cluster {
    let address = |last: u8| SocketAddr::from(([127, 0, 0, last], 1));
    let mut cluster = Cluster::new(ClusterId([5; 16]), "demo", "n1", address(1)).expect("names");
    let mut change = |change: Change| cluster.apply(&change).expect("applies");
    for (last, name) in [(2, "n2"), (3, "n3")] {
        change(Change::Invite { name: name.into(), roles: Roles::ALL });
        change(Change::Join { name: name.into(), address: address(last) });
    }
    let nsd = |node: u32, usage| NewNsd {
        name: None,
        node: NodeNumber(node),
        device: format!("d{usage}").into(),
        usage,
        failure_group: None,
        pool: "system".into(),
    };
    let all = [1, 2, 3].map(|node| nsd(node, Usage::DataAndMetadata));
    change(Change::AddNsds { nsds: all.into() });
    change(Change::AddNsds { nsds: vec![nsd(2, Usage::DataOnly)] });
    change(Change::AddFs {
        name: "three".into(),
        code: strake_proto::Code { data: 1, parity: 1 },
        block_size: 4 << 20,
        mount: "/three".into(),
        nsds: [1, 2, 3].map(NsdId).into(),
    });
    change(Change::Mount { fs: FsId(1), node: NodeNumber(2) });
    cluster
}

fn copy(last: (u64, u64)) -> Result<KnownCopy> {
    let last = Stamp { term: Term(last.0), position: Position(last.1) };
    let membership = Membership::of([1, 2, 3].map(ReplicaId));
    Ok(KnownCopy { last, changed: None, membership })
}

/// The file systems without a majority that n1 finds, if its copy is such.
fn found(copy: &Result<KnownCopy>, words: &[Word]) -> Result<Vec<LostMajority>> {
    let look = |_: &FsRecord, _: &NsdRecord| copy.clone();
    metadata::without_majority(&three_nodes(), NodeNumber(1), words, &look)
}

/// The answer of a node whose replica of the metadata is so.
fn with_metadata(name: &str, role: &str, last: (u64, u64)) -> Word {
    let (fs, serves, replica) = ("three".to_owned(), false, replica(role, last));
    says_of(name, None, vec![MetadataState { fs, serves, replica }], false)
}

fn goes_on(found: &Result<Vec<LostMajority>>) -> std::result::Result<(&str, NsdId), &str> {
    let [lost] = found.as_ref().expect("no refusal").as_slice() else { panic!("{found:?}") };
    match &lost.goes_on {
        Ok(goes_on) => Ok((goes_on.node.as_str(), goes_on.nsd.0)),
        Err(reason) => Err(reason),
    }
}

#[test]
fn metadata_without_a_majority_goes_on_with_the_copy_here() {
    let all = [silent("n2"), silent("n3")];
    let lost = found(&copy((3, 70)), &all);
    assert_eq!(goes_on(&lost), Ok(("n1", NsdId(1))));
    let [lost] = lost.expect("found").try_into().expect("one");
    assert_eq!(lost.nodes, ["n1", "n2", "n3"]);
    let names: Vec<_> = lost.lost_nsds.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["nsd2", "nsd3"]);
    let less = [silent("n2"), with_metadata("n3", "lacking", (9, 9))];
    assert_eq!(goes_on(&found(&copy((3, 70)), &less)), Ok(("n1", NsdId(1))));
    let empty = [silent("n2"), with_metadata("n3", "learner", (0, 0))];
    let broken = Err(Error::new(ErrorKind::Stale, "a copy broke off"));
    assert!(goes_on(&found(&broken, &empty)).is_err(), "an empty copy is none");
}

#[test]
fn metadata_with_a_majority_is_left_as_it_is() {
    let words = [silent("n2"), with_metadata("n3", "asking", (3, 80))];
    assert_eq!(found(&copy((3, 70)), &words), Ok(Vec::new()), "n1 and n3 agree by themselves");
    let unreadable = Err(Error::new(ErrorKind::Corrupt, "gone"));
    let words = ["n2", "n3"].map(|name| with_metadata(name, "follower", (3, 80)));
    assert_eq!(found(&unreadable, &words), Ok(Vec::new()), "n2 and n3 do not need n1");
}

/// Five copies: without a majority, one that answers may have more than the one here.
#[test]
fn a_copy_with_more_is_preferred_and_one_elsewhere_is_better_than_none() {
    let five = copy((3, 70)).map(|copy| KnownCopy {
        membership: Membership::of([1, 2, 3, 8, 9].map(ReplicaId)),
        ..copy
    });
    let more = [silent("n2"), with_metadata("n3", "asking", (3, 80))];
    let refused = found(&five, &more).expect_err("n3 has more").to_string();
    assert!(refused.contains("recover there") && refused.contains("n3"), "{refused}");
    let less = [silent("n2"), with_metadata("n3", "asking", (3, 69))];
    assert_eq!(goes_on(&found(&five, &less)), Ok(("n1", NsdId(1))));
    let broken = Err(Error::new(ErrorKind::Stale, "a copy broke off"));
    assert_eq!(goes_on(&found(&broken, &less)), Ok(("n3", NsdId(3))));
    let nobody = found(&broken, &[silent("n2"), silent("n3")]);
    assert!(goes_on(&nobody).expect_err("nobody has it").contains("broke off"));
}

#[test]
fn the_records_name_the_log_that_goes_on_and_forget_the_mounts() {
    let before = three_nodes();
    assert_eq!(before.metadata_log(FsId(1)), LogId::default());
    let after = before.clone().after_loss(&[]);
    assert_eq!((after.generation, after.metadata_log(FsId(1)).generation), (1, 0));
    assert_eq!(after.file_systems, before.file_systems, "it has its majority");
    let after = after.after_loss(&[(FsId(1), NsdId(3), vec![NsdId(1)])]);
    assert_eq!(after.metadata_log(FsId(1)), LogId { generation: 1, origin: NsdId(3) });
    assert!(after.file_systems[0].mounts.is_empty(), "what a mount knows may be lost");
    let mut again = after.after_loss(&[(FsId(1), NsdId(1), vec![NsdId(2)])]);
    assert_eq!(again.metadata_log(FsId(1)), LogId { generation: 2, origin: NsdId(1) });
    assert_eq!(again.lost_before_log(FsId(1)), [NsdId(2)]);
    again.check().expect("sound");
    let bytes = file::encode(&again).expect("encodes");
    assert_eq!(file::decode(&bytes).expect("decodes"), again);
    again.apply(&Change::DeleteFs { fs: FsId(1) }).expect("deletes");
    again.check().expect("sound");
    assert_eq!(again.metadata_log(FsId(1)), LogId::default());
}

/// The role of a replica, and its last entry with the term first.
type CopySaid = (&'static str, (u64, u64));

/// The words of n1, n2 and n3 while the records have their majority. A node without a copy says
/// which of its NSDs it lacks.
fn states(words: [Option<CopySaid>; 3]) -> Vec<NodeState> {
    let state = |(number, word): (u32, Option<CopySaid>)| {
        let name = format!("n{number}");
        let (_, state) = match word {
            Some((role, last)) => with_metadata(&name, role, last),
            None => says_of(&name, None, Vec::new(), false),
        };
        let mut node = state.expect("it answers").node;
        node.unusable = if word.is_none() { vec![NsdId(number)] } else { Vec::new() };
        node
    };
    (1..).zip(words).map(state).collect()
}

fn of_lost_disks(states: &[NodeState]) -> Result<LostMajority> {
    let records = three_nodes();
    metadata::while_records_agree(&records, &records.file_systems[0], states)
}

#[test]
fn metadata_that_lost_its_disks_goes_on_while_the_nodes_are_there() {
    let found = of_lost_disks(&states([None, Some(("asking", (3, 70))), None])).expect("lost");
    let lost: Vec<_> = found.lost_nsds.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!((found.nodes.len(), lost), (3, vec!["nsd1", "nsd3"]));
    assert_eq!(goes_on(&Ok(vec![found])), Ok(("n2", NsdId(2))));

    let mut down = states([Some(("candidate", (3, 70))), None, None]);
    down[2] = NodeState { state: "down".to_owned(), unusable: Vec::new(), ..down[2].clone() };
    let found = of_lost_disks(&down).expect("lost");
    let lost: Vec<_> = found.lost_nsds.iter().map(|(nsd, _)| nsd.0).collect();
    assert_eq!(lost, [2, 3], "a silent node says nothing of its disks");

    let mut failing = states([Some(("asking", (3, 70))), Some(("ended", (3, 71))), None]);
    failing[1].unusable = Vec::new();
    let found = of_lost_disks(&failing).expect("lost");
    assert_eq!(found.lost_nsds.len(), 2, "the copy on a disk that fails does not count");

    for role in ["lacking", "ended"] {
        let found = of_lost_disks(&states([Some((role, (3, 70))), None, None])).expect("lost");
        assert!(found.goes_on.is_err(), "{role}: that copy is not whole");
    }
}

#[test]
fn metadata_that_is_served_or_has_its_majority_is_not_recovered() {
    let refused = |words| of_lost_disks(&states(words)).expect_err("refused").to_string();
    let text = refused([Some(("leader", (3, 70))), None, None]);
    assert!(text.contains("n1 serves three"), "{text}");
    let text = refused([None, Some(("asking", (3, 70))), Some(("follower", (3, 60)))]);
    assert!(text.contains("n2, n3 have copies of the metadata of three"), "{text}");
}

#[test]
fn only_a_copy_of_the_metadata_can_go_on() {
    let mut records = three_nodes();
    records.apply(&Change::Level { level: FeatureLevel(2) }).expect("rises");
    let go_on = |origin: u32, lost: &[u32]| Change::GoOn {
        fs: FsId(1),
        origin: NsdId(origin),
        lost: lost.iter().map(|nsd| NsdId(*nsd)).collect(),
    };
    for (origin, lost) in [(4, vec![]), (9, vec![]), (1, vec![4])] {
        let error = records.apply(&go_on(origin, &lost)).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{origin} {lost:?}");
    }
    let unknown = Change::GoOn { fs: FsId(2), origin: NsdId(1), lost: Vec::new() };
    assert!(records.apply(&unknown).is_err());
    records.apply(&go_on(2, &[1, 3])).expect("it goes on");
    assert_eq!(records.metadata_log(FsId(1)), LogId { generation: 1, origin: NsdId(2) });
    assert_eq!(records.lost_before_log(FsId(1)), [NsdId(1), NsdId(3)]);
    assert!(records.file_systems[0].mounts.is_empty(), "what a mount knows may be lost");
}
