//! When a recovery is refused, and what it makes of a directory.

use super::*;
use crate::cluster::Change;
use crate::cluster::machine::Entry;
use crate::cluster::records::{NewNsd, Usage};
use crate::node::quorum::quorum_test::{Folder, Lonely};
use strake_env::net::SocketAddr;
use strake_proto::{ClusterId, Roles};

fn says(name: &str, role: &str, last: (u64, u64)) -> Word {
    let state = ReplicaState {
        role: role.to_owned(),
        leader: None,
        term: 9,
        last_term: last.0,
        last: last.1,
        applied: 0,
        members: Vec::new(),
        fault: None,
    };
    (name.to_owned(), Some(state))
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
    let mut next = records.clone();
    next.generation += 1;
    next.revision += 1;
    assert!(is_void(&records, &next) && !is_void(&next, &records) && !is_void(&next, &next));
    quorum::make_journal(&dir, &next, own, true).expect("made");
    let node = Lonely::start(&dir, &next);
    let change = Change::Invite { name: "n3".into(), roles: Roles::ALL };
    let changed = node.propose(&Entry::Change { at: Some(next.revision), change });
    assert_eq!((changed.generation, changed.nodes.len()), (1, 3));
    assert!(dir.journal_path(0).exists(), "the old log is untouched until the file is written");
}

#[test]
fn metadata_without_a_majority_is_named() {
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
    let fs = |name: &str, nsds: &[u32]| Change::AddFs {
        name: name.into(),
        code: strake_proto::Code { data: 1, parity: 1 },
        block_size: 4 << 20,
        mount: format!("/{name}").into(),
        nsds: nsds.iter().copied().map(strake_proto::NsdId).collect(),
    };
    change(fs("three", &[1, 2, 3]));
    let lost = |silent: &[&str]| {
        let silent: Vec<String> = silent.iter().map(|name| (*name).to_owned()).collect();
        lost_metadata(&cluster, &silent)
    };
    assert_eq!(lost(&["n2"]), []);
    let all = ["n1", "n2", "n3"].map(str::to_owned);
    assert_eq!(lost(&["n2", "n3"]), [("three".to_owned(), all.to_vec())]);
    let places = cluster.metadata_places(&[1, 4, 3].map(strake_proto::NsdId));
    assert_eq!(places.len(), 2, "NSD 4 of n2 is for data alone: {places:?}");
}
