//! Rules of the records, one by one, and random changes with `check` after each.

use super::*;
use strake_env::Rng;

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], 7790))
}

/// A cluster whose nodes n1, n2 and n3 have joined.
pub(in crate::cluster) fn three() -> Cluster {
    let mut cluster = Cluster::new(ClusterId([7; 16]), "demo", "n1", address(1)).expect("names");
    for (name, number) in [("n2", 2), ("n3", 3)] {
        let name = name.to_owned();
        let invite = Change::Invite { name: name.clone(), roles: Roles::ALL };
        cluster.apply(&invite).expect("invites");
        let join = Change::Join { name, address: address(number) };
        cluster.apply(&join).expect("joins");
    }
    cluster
}

fn new_nsd(node: u32, device: &str) -> NewNsd {
    NewNsd {
        name: None,
        node: NodeNumber(node),
        device: device.into(),
        usage: Usage::DataAndMetadata,
        failure_group: None,
        pool: "system".to_owned(),
    }
}

fn add_fs(name: &str, nsds: &[u32]) -> Change {
    Change::AddFs {
        name: name.to_owned(),
        code: Code { data: 1, parity: 1 },
        block_size: 4 << 20,
        mount: format!("/mnt/{name}").into(),
        nsds: nsds.iter().copied().map(NsdId).collect(),
    }
}

fn refused(cluster: &mut Cluster, change: &Change) -> String {
    let before = cluster.clone();
    let error = cluster.apply(change).expect_err("refused").to_string();
    assert_eq!(*cluster, before, "a refused change changes nothing");
    error
}

#[test]
fn a_node_joins_at_one_address_that_is_its_own() {
    let mut cluster = three();
    let join = |name: &str, last| Change::Join { name: name.into(), address: address(last) };
    assert!(refused(&mut cluster, &join("n2", 9)).contains("another address"));
    assert!(refused(&mut cluster, &join("n4", 4)).contains("no node"));
    let invite = Change::Invite { name: "n4".into(), roles: Roles::ALL };
    cluster.apply(&invite).expect("invites");
    assert!(refused(&mut cluster, &join("n4", 3)).contains("n3 is at"));
    cluster.apply(&join("n4", 4)).expect("joins");
    cluster.apply(&join("n4", 4)).expect("an answer may have been lost");
    // A node that has nothing may join anew, from another machine.
    cluster.apply(&invite).expect("invites again");
    let before = cluster.node_named("n4").expect("invited").id;
    cluster.apply(&join("n4", 5)).expect("joins");
    cluster.apply(&invite).expect("invites once more");
    let after = cluster.node_named("n4").expect("invited").id;
    assert!(after > before, "its log of before is nobody's");
    let named = Change::Invite { name: "N5".into(), roles: Roles::ALL };
    assert!(refused(&mut cluster, &named).contains("no name of a node"));
}

#[test]
fn nsds_of_a_node_share_a_failure_group_unless_they_are_given_one() {
    let mut cluster = three();
    let own = NewNsd { failure_group: Some(7), ..new_nsd(2, "/srv/c") };
    let nsds = vec![new_nsd(1, "/srv/a"), new_nsd(1, "/srv/b"), new_nsd(2, "/srv/a"), own];
    cluster.apply(&Change::AddNsds { nsds }).expect("adds");
    let groups: Vec<u32> = cluster.nsds.iter().map(|nsd| nsd.failure_group).collect();
    assert_eq!(groups, [4001, 4001, 4002, 7]);
    let twice = Change::AddNsds { nsds: vec![new_nsd(3, "/srv/a"), new_nsd(1, "/srv/b")] };
    assert!(refused(&mut cluster, &twice).contains("on n1 is NSD nsd2"));
}

#[test]
fn an_nsd_belongs_to_one_file_system() {
    let mut cluster = three();
    let nsds = vec![new_nsd(1, "/srv/a"), new_nsd(2, "/srv/a"), new_nsd(3, "/srv/a")];
    cluster.apply(&Change::AddNsds { nsds }).expect("adds");
    cluster.apply(&add_fs("one", &[1, 2])).expect("makes");
    assert!(refused(&mut cluster, &add_fs("two", &[2, 3])).contains("already"));
    assert!(refused(&mut cluster, &add_fs("one", &[3])).contains("already"));
    let delete = Change::DeleteNode { node: NodeNumber(2) };
    assert!(refused(&mut cluster, &delete).contains("serves nsd2"));
}

#[test]
fn an_nsd_comes_to_a_file_system_and_goes() {
    let mut cluster = three();
    let nsds = vec![new_nsd(1, "/srv/a"), new_nsd(2, "/srv/a"), new_nsd(3, "/srv/a")];
    cluster.apply(&Change::AddNsds { nsds }).expect("adds");
    cluster.apply(&add_fs("one", &[1, 2])).expect("makes");
    let (fs, nsd) = (FsId(1), NsdId(3));
    let (attach, detach) = (Change::AttachNsd { fs, nsd }, Change::DetachNsd { fs, nsd });
    cluster.apply(&attach).expect("is free");
    assert_eq!(cluster.fs(fs).expect("there").nsds, [NsdId(1), NsdId(2), NsdId(3)]);
    assert!(refused(&mut cluster, &attach).contains("already"));
    let delete = Change::DeleteNsds { nsds: vec![nsd] };
    assert!(refused(&mut cluster, &delete).contains("belongs to file system one"));
    cluster.apply(&detach).expect("goes");
    cluster.apply(&detach).expect("an answer may have been lost");
    assert_eq!(cluster.nsd(nsd).expect("there").fs, None);
    cluster.apply(&delete).expect("is free");
    assert!(refused(&mut cluster, &attach).contains("no NSD 3"));
    let nowhere = Change::AttachNsd { fs: FsId(9), nsd: NsdId(2) };
    assert!(refused(&mut cluster, &nowhere).contains("no file system 9"));
}

/// The place of a copy of the metadata goes from NSD to NSD in the order in which the file system
/// got them, and never back: a replica's number means one log for ever.
#[test]
fn a_place_of_the_metadata_never_comes_back() {
    let mut cluster = three();
    let nsds = [1, 1, 1, 2, 3, 3].map(|node| new_nsd(node, "/srv/x"));
    let nsds =
        (0..).zip(nsds).map(|(at, nsd)| NewNsd { device: format!("/srv/{at}").into(), ..nsd });
    cluster.apply(&Change::AddNsds { nsds: nsds.collect() }).expect("adds");
    cluster.apply(&add_fs("one", &[3, 4, 5])).expect("makes");
    let fs = FsId(1);
    let places = |cluster: &Cluster| -> Vec<u32> {
        let nsds = &cluster.fs(fs).expect("there").nsds;
        cluster.metadata_places(nsds).into_iter().map(|(_, nsd)| nsd.0).collect()
    };
    assert_eq!(places(&cluster), [3, 4, 5]);
    for nsd in [1, 2, 6].map(NsdId) {
        cluster.apply(&Change::AttachNsd { fs, nsd }).expect("is free");
        assert_eq!(places(&cluster), [3, 4, 5], "a lower number takes no place");
    }
    let leave = |nsd| Change::KeepNoMetadata { nsd: NsdId(nsd) };
    cluster.apply(&leave(3)).expect("has a place");
    assert_eq!(places(&cluster), [1, 4, 5]);
    cluster.apply(&leave(3)).expect("an answer may have been lost");
    let nsd = NsdId(3);
    cluster.apply(&Change::DetachNsd { fs, nsd }).expect("goes");
    cluster.apply(&Change::AttachNsd { fs, nsd }).expect("comes back");
    cluster.apply(&leave(1)).expect("has a place");
    assert_eq!(places(&cluster), [2, 4, 5]);
    cluster.apply(&leave(2)).expect("has a place");
    assert_eq!(places(&cluster), [4, 5], "that of before is for data alone");
    assert!(refused(&mut cluster, &leave(9)).contains("no NSD 9"));
}

#[test]
fn numbers_are_never_given_twice() {
    let mut cluster = three();
    cluster.apply(&Change::DeleteNode { node: NodeNumber(3) }).expect("has no NSD");
    let invite = Change::Invite { name: "n3".into(), roles: Roles::ALL };
    cluster.apply(&invite).expect("invites");
    assert_eq!(cluster.node_named("n3").expect("there").id, NodeNumber(4));
}

#[test]
fn each_mount_has_a_client_and_a_life_of_its_own() {
    let mut cluster = three();
    cluster.apply(&Change::AddNsds { nsds: vec![new_nsd(1, "/srv/a")] }).expect("adds");
    cluster.apply(&add_fs("demo", &[1])).expect("makes");
    let fs = FsId(1);
    let mount = |node| Change::Mount { fs, node: NodeNumber(node) };
    cluster.apply(&mount(1)).expect("mounts");
    cluster.apply(&mount(2)).expect("mounts");
    assert!(refused(&mut cluster, &mount(2)).contains("n2 has demo mounted already"));
    let found = |cluster: &Cluster, node| {
        let fs = cluster.fs(fs).expect("there");
        fs.mount_on(NodeNumber(node)).expect("mounted")
    };
    let (one, two) = (found(&cluster, 1), found(&cluster, 2));
    assert_ne!(one.client(), two.client());
    cluster.apply(&Change::Unmount { fs, node: NodeNumber(2) }).expect("unmounts");
    cluster.apply(&mount(2)).expect("mounts again");
    let again = found(&cluster, 2);
    assert!(again.life > two.life, "a later mount is another life");
    assert!(again.client() > two.client(), "no client comes back");
    let mut recovered = cluster.clone();
    (recovered.revision, recovered.generation) = (recovered.revision - 2, 1);
    recovered.file_systems[0].mounts.clear();
    recovered.apply(&mount(2)).expect("mounts");
    assert!(found(&recovered, 2).client() > again.client(), "nor after a log was given up");
    assert!(refused(&mut cluster, &Change::DeleteNode { node: NodeNumber(2) }).contains("umount"));
}

/// Regression: a request to mount of a process that was killed came after the one of the process
/// that followed, and ended its mount.
#[test]
fn a_request_to_mount_that_is_late_takes_nobodys_place() {
    let mut cluster = three();
    cluster.apply(&Change::AddNsds { nsds: vec![new_nsd(1, "/srv/a")] }).expect("adds");
    cluster.apply(&add_fs("demo", &[1])).expect("makes");
    let (fs, node) = (FsId(1), NodeNumber(2));
    let record = |cluster: &Cluster| cluster.fs(fs).expect("there").clone();
    let before = record(&cluster).last_life_on(node);
    record(&cluster).check_place(node, Some(before)).expect("nothing is mounted");
    cluster.apply(&Change::Mount { fs, node }).expect("mounts");
    let late = record(&cluster).check_place(node, Some(before)).expect_err("late");
    assert_eq!(late.kind(), ErrorKind::Stale);
    let now = record(&cluster).last_life_on(node);
    record(&cluster).check_place(node, Some(now)).expect("it takes the place of that one");
    record(&cluster).check_place(node, None).expect("an earlier version does not say");
    cluster.apply(&Change::Unmount { fs, node }).expect("unmounts");
    cluster.apply(&Change::Mount { fs, node }).expect("mounts");
    record(&cluster).check_place(node, Some(now)).expect_err("another one has come");
}

#[test]
fn what_is_in_use_is_not_deleted_and_what_is_free_has_a_new_number() {
    let mut cluster = three();
    let nsds = vec![new_nsd(1, "/srv/a"), new_nsd(2, "/srv/b")];
    cluster.apply(&Change::AddNsds { nsds }).expect("adds");
    cluster.apply(&add_fs("demo", &[1, 2])).expect("makes");
    let mount = Change::Mount { fs: FsId(1), node: NodeNumber(2) };
    cluster.apply(&mount).expect("mounts");
    let delete_fs = Change::DeleteFs { fs: FsId(1) };
    let delete_nsds = Change::DeleteNsds { nsds: vec![NsdId(2), NsdId(1)] };
    assert!(refused(&mut cluster, &delete_fs).contains("umount"));
    assert!(refused(&mut cluster, &delete_nsds).contains("belongs to file system demo"));
    cluster.apply(&Change::Unmount { fs: FsId(1), node: NodeNumber(2) }).expect("unmounts");
    cluster.apply(&delete_fs).expect("is in no use");
    cluster.apply(&add_fs("demo", &[1])).expect("makes it anew");
    assert_eq!(cluster.fs_named("demo").expect("there").id, FsId(2));
    assert!(refused(&mut cluster, &delete_nsds).contains("nsd1 belongs"), "all or none");
    cluster.apply(&Change::DeleteNsds { nsds: vec![NsdId(2)] }).expect("free");
    cluster.apply(&Change::AddNsds { nsds: vec![new_nsd(2, "/srv/b")] }).expect("adds");
    assert!(cluster.nsd(NsdId(2)).is_none() && cluster.nsd(NsdId(3)).is_some());
}

#[test]
fn random_changes_keep_the_invariants() {
    let seed = strake_env::Rng::from_entropy().expect("random").next_u64();
    let seed = std::env::var("STRAKE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(seed);
    println!("STRAKE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut cluster = three();
    let mut done = 0;
    for _ in 0..2000 {
        let name = format!("x{}", rng.index(6));
        let node = NodeNumber(rng.index(8) as u32);
        let byte = rng.index(4) as u8;
        let change = match rng.index(9) {
            0 => Change::Invite { name, roles: Roles::try_from(byte * 2 + 1).expect("a set") },
            1 => Change::Join { name, address: address(byte * 9) },
            2 => Change::DeleteNode { node },
            3 => Change::AddNsds { nsds: vec![new_nsd(node.0, &format!("/srv/{byte}"))] },
            4 => add_fs(&name, &[rng.index(20) as u32, rng.index(20) as u32]),
            5 => Change::Mount { fs: FsId(rng.index(4) as u32), node },
            6 => Change::DeleteFs { fs: FsId(rng.index(4) as u32) },
            7 => Change::DeleteNsds { nsds: vec![NsdId(rng.index(20) as u32)] },
            _ => Change::Unmount { fs: FsId(rng.index(4) as u32), node },
        };
        let before = cluster.revision;
        match cluster.apply(&change) {
            Ok(()) => done += 1,
            Err(error) => {
                // A change that only `check` refuses passed a rule that it should not have passed.
                assert_ne!(error.kind(), ErrorKind::Internal, "{change:?}: {error}");
                assert_eq!(cluster.revision, before);
            }
        }
        cluster.check().expect("the invariants hold");
    }
    assert!(done > 50, "only {done} changes were possible");
}

#[test]
fn what_is_gone_for_good_is_known_by_its_number() {
    let mut cluster = three();
    let nsds = (0..3).map(|at| new_nsd(at + 1, "/srv/a")).chain([new_nsd(1, "/srv/b")]);
    cluster.apply(&Change::AddNsds { nsds: nsds.collect() }).expect("adds");
    cluster.apply(&add_fs("one", &[1, 2, 3])).expect("makes");
    let gone =
        |cluster: &Cluster| -> Vec<u32> { cluster.nsds_without_copy().map(|nsd| nsd.0).collect() };
    assert_eq!(gone(&cluster), [0; 0], "a free NSD may get a copy");
    cluster.apply(&Change::KeepNoMetadata { nsd: NsdId(2) }).expect("it lost its copy");
    cluster.apply(&Change::DeleteNsds { nsds: vec![NsdId(4)] }).expect("deletes");
    assert_eq!(gone(&cluster), [2, 4]);
    assert_eq!(cluster.deleted_nodes().next(), None);
    cluster.apply(&Change::Invite { name: "n4".into(), roles: Roles::ALL }).expect("invites");
    cluster.apply(&Change::DeleteNode { node: NodeNumber(4) }).expect("deletes");
    assert_eq!(cluster.deleted_nodes().collect::<Vec<_>>(), [NodeNumber(4)]);
}
