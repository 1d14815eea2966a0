//! The rules of shared NSDs in the records.

use super::super::records::records_test::three;
use super::super::records::{Change, NewNsd, Usage};
use super::*;
use strake_proto::{Code, FsId};

/// The cluster of three nodes, in which n1 and n2 reach the first of two NSDs.
fn with_shared() -> Cluster {
    let mut cluster = three();
    let new = |node| NewNsd {
        name: None,
        node: NodeNumber(node),
        device: "/dev/shared".into(),
        usage: Usage::DataAndMetadata,
        failure_group: None,
        pool: "system".to_owned(),
    };
    cluster.apply(&Change::AddNsds { nsds: vec![new(1), new(3)] }).expect("adds");
    cluster.apply(&share(&[1, 2])).expect("shares");
    cluster
}

fn share(servers: &[u32]) -> Change {
    let servers = servers.iter().copied().map(NodeNumber).collect();
    Change::ShareNsd { nsd: NsdId(1), servers }
}

fn serve(cluster: &Cluster, node: u32) -> Change {
    let after = cluster.shared(NsdId(1)).map_or(0, |shared| shared.number);
    Change::ServeNsd { nsd: NsdId(1), node: NodeNumber(node), after }
}

fn use_it(cluster: &mut Cluster) {
    let change = Change::AddFs {
        name: "fs".to_owned(),
        code: Code { data: 1, parity: 0 },
        block_size: 4 << 20,
        mount: "/mnt/fs".into(),
        nsds: vec![NsdId(1), NsdId(2)],
    };
    cluster.apply(&change).expect("makes a file system");
}

fn refused(cluster: &Cluster, change: &Change) -> String {
    cluster.clone().apply(change).expect_err("refused").to_string()
}

#[test]
fn an_nsd_is_served_by_one_of_its_servers_under_a_number_that_rises() {
    let mut cluster = with_shared();
    use_it(&mut cluster);
    let first = cluster.shared(NsdId(1)).expect("shared").number;
    let late = serve(&cluster, 2);
    cluster.apply(&late).expect("n2 takes it");
    let record = cluster.nsd(NsdId(1)).expect("there").clone();
    assert_eq!((record.node, cluster.home_of(&record)), (NodeNumber(2), NodeNumber(1)));
    assert_eq!(cluster.server_names(&record), ["n1", "n2"]);
    assert!(cluster.shared(NsdId(1)).expect("shared").number > first);
    assert!(refused(&cluster, &late).contains("another node serves"));
    assert!(refused(&cluster, &serve(&cluster, 3)).contains("n3 is no server"));
    let other = Change::ServeNsd { nsd: NsdId(2), node: NodeNumber(3), after: 0 };
    assert!(refused(&cluster, &other).contains("one server"));
}

#[test]
fn numbers_rise_also_in_records_that_go_on_from_an_older_copy() {
    let mut cluster = with_shared();
    use_it(&mut cluster);
    let older = cluster.clone();
    for node in [2, 1, 2, 1, 2] {
        cluster.apply(&serve(&cluster, node)).expect("moves");
    }
    let mut anew = older.after_loss(&[]);
    let number_of = |cluster: &Cluster| cluster.shared(NsdId(1)).expect("shared").number;
    assert!(number_of(&anew) > number_of(&cluster), "marks of lost changes keep nobody off");
    anew.check().expect("sound");
    anew.apply(&serve(&anew, 2)).expect("moves");
    assert!(number_of(&anew) > number_of(&cluster));
}

#[test]
fn what_cannot_be_shared_is_refused_with_a_reason() {
    let mut cluster = with_shared();
    assert!(refused(&cluster, &share(&[2, 1])).contains("the node that made it"));
    assert!(refused(&cluster, &share(&[1, 2, 2])).contains("n2 is named twice"));
    assert!(refused(&cluster, &share(&[1, 9])).contains("lacks the role server"));
    assert!(refused(&cluster, &share(&[1, 2, 3, 4, 5, 6, 7, 8, 9])).contains("at most 8"));
    use_it(&mut cluster);
    assert!(refused(&cluster, &share(&[1, 2, 3])).contains("its servers stay"));
    let delete = Change::DeleteNode { node: NodeNumber(2) };
    assert!(refused(&cluster, &delete).contains("is a server of nsd1"));
}

#[test]
fn an_nsd_of_no_file_system_is_at_home() {
    let mut cluster = with_shared();
    use_it(&mut cluster);
    cluster.apply(&serve(&cluster, 2)).expect("moves");
    let detach = Change::DetachNsd { fs: FsId(1), nsd: NsdId(1) };
    let mut detached = cluster.clone();
    detached.apply(&detach).expect("detaches");
    cluster.apply(&Change::DeleteFs { fs: FsId(1) }).expect("deletes");
    for cluster in [&detached, &cluster] {
        assert_eq!(cluster.nsd(NsdId(1)).expect("there").node, NodeNumber(1));
    }
    cluster.apply(&Change::DeleteNsds { nsds: vec![NsdId(1)] }).expect("deletes");
    assert_eq!(cluster.shared, []);
}

#[test]
fn the_copy_of_the_metadata_stays_with_the_home() {
    let mut cluster = with_shared();
    use_it(&mut cluster);
    let places = cluster.metadata_places(&[NsdId(1), NsdId(2)]);
    assert_eq!(places, [(NodeNumber(1), NsdId(1)), (NodeNumber(3), NsdId(2))]);
    cluster.apply(&serve(&cluster, 2)).expect("moves");
    assert_eq!(cluster.metadata_places(&[NsdId(1), NsdId(2)]), places);
}
