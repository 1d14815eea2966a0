//! The layouts, against the screens of the documents: the same heads, labels and columns.

use super::super::mm_test::cluster;
use super::super::{Getstate, Nodes};
use super::*;
use crate::node::MemberState;
use serde_json::json;
use strake_proto::FeatureLevel;

/// The cells of a table's line. Columns are two blanks apart.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

fn replica() -> ReplicaState {
    let member = |node: u32| MemberState {
        node: NodeNumber(node),
        votes: true,
        agrees: 9,
        behind: 0,
        is_heard: true,
    };
    ReplicaState {
        role: "leader".into(),
        leader: Some(NodeNumber(2)),
        term: 1,
        last: 9,
        last_term: 1,
        applied: 9,
        members: vec![member(1), member(2)],
        fault: None,
        level: FeatureLevel::FIRST,
    }
}

fn show_of_two() -> Show {
    let nsd = |id: u32, availability: NsdAvailability| {
        json!({ "id": id, "name": format!("d{id}"), "path": format!("/dev/sd{id}"),
                "failureGroup": 4000 + id, "holdsMetadata": id == 1, "status": NsdStatus::Ready,
                "availability": availability, "badStrips": 0, "repairedStrips": 0,
                "totalBytes": 1_048_576_000_u64, "freeBytes": 524_288_000_u64 })
    };
    let nsds = [nsd(1, NsdAvailability::Up), nsd(2, NsdAvailability::Down)];
    let value = json!({ "name": "fs1", "cluster": "abababababababab", "code": "2x",
        "blockSize": 4_194_304, "createdSeconds": 1_306_935_020, "mount": "/fs1", "data": "/srv",
        "pid": 7, "node": "n1", "formatVersion": 3, "version": "0.1.0", "usableBytes": 0,
        "freeBytes": 0, "inodes": 3, "settings": [["pagepool", "1G"]], "nsds": nsds });
    serde_json::from_value(value).expect("a show")
}

#[test]
fn mmlscluster_is_as_on_the_screen() {
    let wanted = "
GPFS cluster information
========================
  GPFS cluster name:         demo
  GPFS cluster id:           abababababababababababababababab
  GPFS UID domain:           demo
  Remote shell command:      (none)
  Remote file copy command:  (none)

GPFS cluster configuration servers:
-----------------------------------
  Primary server:    n2
  Secondary server:  n1

 Node  Daemon node name  IP address    Admin node name  Designation
--------------------------------------------------------------------
 1     n1                10.0.0.1      n1               quorum-manager
";
    let text = cluster_text(&cluster(), &replica(), false);
    let (told, wanted): (Vec<&str>, Vec<&str>) = (text.lines().collect(), wanted.lines().collect());
    assert_eq!(told[..14], wanted[..14], "{text}");
    assert_eq!(cells(told[14]), cells(wanted[14]));
    assert_eq!(cells(told[16]), cells(wanted[16]));
    assert_eq!(cells(told[18]), ["3", "n3", "(not joined)", "n3"]);
    let y = cluster_text(&cluster(), &replica(), true);
    assert!(
        y.contains("\nmmlscluster:clusterNode:0:1:::2:n2:10.0.0.2:n2:quorumManager::::\n"),
        "{y}"
    );
}

#[test]
fn mmgetstate_is_as_on_the_screen() {
    let state = |node: &str, state: &str| NodeState {
        node: node.into(),
        state: state.into(),
        pid: None,
        version: None,
        mounts: Vec::new(),
        faults: Vec::new(),
        unusable: Vec::new(),
        replica: None,
        metadata: Vec::new(),
    };
    let states = [state("n1", "active"), state("n2", "down"), state("n3", "invited")];
    let text = states_text(&cluster(), &states, None, (false, false));
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(cells).collect();
    assert_eq!(rows[0], ["Node number", "Node name", "GPFS state"]);
    assert_eq!(rows[2..], [["1", "n1", "active"], ["2", "n2", "down"], ["3", "n3", "unknown"]]);
    let one = ["n2".to_owned()];
    let y = states_text(&cluster(), &states, Some(&one), (false, true));
    let head = "mmgetstate::HEADER:version:reserved:reserved:nodeName:nodeNumber:state:quorum:\
                nodesUp:totalNodes:remarks:cnfsState:";
    let row = "mmgetstate::0:1:::n2:2:down:2:1:3:quorum node:%28undefined%29:";
    assert_eq!(y, format!("{head}\n{row}\n"));
    let args = Getstate { nodes: Nodes::default(), long: false, parsable: Parsable { y: false } };
    assert!(!args.long && !args.parsable.y && !args.nodes.all);
}

fn lsnsd() -> Lsnsd {
    let parsable = Parsable { y: false };
    Lsnsd {
        all: false,
        free: false,
        device: None,
        disks: None,
        long: false,
        extended: false,
        parsable,
    }
}

#[test]
fn mmlsnsd_is_as_on_the_screen() {
    let listed = of_show(&show_of_two());
    let text = nsds_text(&listed, &lsnsd());
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(cells).collect();
    assert_eq!(rows[0], ["File system", "Disk name", "NSD servers"]);
    assert_eq!(rows[2..], [["fs1", "d1", "n1"], ["fs1", "d2", "n1"]]);
    let text = nsds_text(&listed, &Lsnsd { extended: true, ..lsnsd() });
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(cells).collect();
    assert_eq!(
        rows[0],
        ["Disk name", "NSD volume ID", "Device", "Devtype", "Node name", "Remarks"]
    );
    assert_eq!(rows[2], ["d1", "ABABABAB00000001", "/dev/sd1", "generic", "n1", "server node"]);
    let y = nsds_text(&listed, &Lsnsd { parsable: Parsable { y: true }, ..lsnsd() });
    let row = "mmlsnsd:nsd:0:1:::fs1:d1:ABABABAB00000001:n1:generic:%2Fdev%2Fsd1:server node:";
    assert_eq!(y.lines().nth(1), Some(row), "{y}");
}

#[test]
fn mmlsfs_is_as_on_the_screen() {
    let shows = [show_of_two()];
    let text = file_systems_text(&shows, &[], false).expect("all");
    let rows: Vec<Vec<&str>> = text.lines().map(cells).collect();
    assert_eq!(rows[0], ["flag", "value", "description"]);
    for row in [
        ["-B", "4194304", "Block size"],
        ["--create-time", "Wed Jun  1 13:30:20 2011", "File system creation time"],
        ["-d", "d1;d2", "Disks in file system"],
        ["-T", "/fs1", "Default mount point"],
        ["-m", "1", "Default number of metadata replicas"],
    ] {
        let row: Vec<String> = row.iter().map(|cell| cells(cell).join("  ")).collect();
        let found = text.lines().any(|line| row.iter().all(|cell| line.contains(cell.as_str())));
        assert!(found, "{row:?} is not in:\n{text}");
    }
    let y = file_systems_text(&shows, &[&"-B".to_owned(), &"-T".to_owned()], true).expect("two");
    let wanted = "mmlsfs::HEADER:version:reserved:reserved:deviceName:fieldName:data:remarks:\n\
                  mmlsfs::0:1:::fs1:blockSize:4194304::\n\
                  mmlsfs::0:1:::fs1:defaultMountPoint:%2Ffs1::\n";
    assert_eq!(y, wanted);
    let said = file_systems_text(&shows, &[&"-L".to_owned()], false).expect_err("no log size");
    assert!(said.to_string().contains("has -f -i"), "{said}");
}

#[test]
fn mmlsdisk_is_as_on_the_screen() {
    let args = |exceptions: bool, long: bool, y: bool| Lsdisk {
        device: "fs1".into(),
        disks: None,
        exceptions,
        long,
        parsable: Parsable { y },
    };
    let text = disks_text(&show_of_two(), &args(false, false, false));
    let rows: Vec<Vec<&str>> = text.lines().map(cells).collect();
    let heads = [
        "disk name",
        "driver type",
        "sector size",
        "failure group",
        "holds metadata",
        "holds data",
        "status",
        "availability",
        "storage pool",
    ];
    assert_eq!(rows[0], heads);
    assert_eq!(rows[2], ["d1", "nsd", "512", "4001", "yes", "yes", "ready", "up", "system"]);
    let text = disks_text(&show_of_two(), &args(true, false, false));
    assert!(text.contains("d2 ") && !text.contains("d1 "), "{text}");
    let y = disks_text(&show_of_two(), &args(false, false, true));
    let row =
        "mmlsdisk::0:1:::d1:nsd:512:4001:yes:yes:ready:up:1:system:::::1024000:ABABABAB00000001::";
    assert_eq!(y.lines().nth(1), Some(row), "{y}");
}

#[test]
fn mmdf_has_its_sections() {
    let text = space_text(&show_of_two(), Some((3, 97)), false);
    let rows: Vec<Vec<&str>> = text.lines().map(cells).collect();
    let heads = [
        "disk name",
        "disk size in KB",
        "failure group",
        "holds metadata",
        "holds data",
        "free in KB in full blocks",
        "free in KB in fragments",
    ];
    assert_eq!(rows[0], heads);
    let first = ["d1", "1024000", "4001", "yes", "yes", "512000 (50%)", "0 ( 0%)"];
    assert_eq!(rows[1], first);
    assert_eq!(rows[3], ["(pool total)", "2048000", "1024000 (50%)", "0 ( 0%)"]);
    assert_eq!(rows[4][0], "(total)");
    assert_eq!(rows[6..8], [["Inode Information"], ["-----------------"]]);
    assert_eq!(rows[8], ["Number of used inodes:", "3"]);
    assert_eq!(rows[11], ["Maximum number of inodes:", "100"]);
    let y = space_text(&show_of_two(), Some((3, 97)), true);
    let wanted = "mmdf:nsd:0:1:::d1:system:1024000:4001:Yes:Yes:512000:50:0:0::\n\
                  mmdf:nsd:0:1:::d2:system:1024000:4002:No:Yes:512000:50:0:0::\n\
                  mmdf:poolTotal:0:1:::system:2048000:1024000:50:0:0::\n\
                  mmdf:fsTotal:0:1:::2048000:1024000:50:0:0:\n\
                  mmdf:inode:0:1:::3:97:100:100:\n";
    assert!(y.ends_with(wanted), "{y}");
    // Each row has as many fields as its head has names.
    for line in y.lines().filter(|line| !line.contains("HEADER")) {
        let section = line.split(':').nth(1).expect("a section");
        let head = y.lines().find(|it| it.starts_with(&format!("mmdf:{section}:HEADER")));
        let count = |text: &str| text.split(':').count();
        assert_eq!(head.map(count), Some(count(line)), "{line}");
    }
}

#[test]
fn mmlsconfig_and_mmlslicense_are_as_on_the_screen() {
    let values = [("clusterName".to_owned(), "demo".to_owned()), ("pagepool".into(), "1G".into())];
    let args = |names: &[&str], y: bool| Lsconfig {
        names: names.iter().map(ToString::to_string).collect(),
        parsable: Parsable { y },
    };
    let text = settings_text("demo", &values, &["fs1".to_owned()], &args(&[], false));
    let wanted = "Configuration data for cluster demo:\n\
                  ------------------------------------\n\
                  clusterName demo\npagepool 1G\n\n\
                  File systems in cluster demo:\n\
                  -----------------------------\n/dev/fs1\n";
    assert_eq!(text.expect("all"), wanted);
    let text = settings_text("demo", &values, &[], &args(&[], false)).expect("all");
    assert!(text.ends_with("-\n(none)\n"), "{text}");
    let y = settings_text("demo", &values, &[], &args(&["pagepool"], true)).expect("one");
    assert!(y.ends_with("\nmmlsconfig::0:1:::pagepool:1G::\n"), "{y}");
    assert!(settings_text("demo", &values, &[], &args(&["maxMBpS"], false)).is_err());
    let text = licences_text(&cluster(), false);
    for words in [
        "Summary information\n-------------------",
        "Number of nodes defined in the cluster:                        3",
        "Number of nodes with server license designation:               2",
        "Number of nodes still requiring client license designation:    0",
    ] {
        assert!(text.contains(words), "'{words}' is not in:\n{text}");
    }
    let text = licences_text(&cluster(), true);
    assert_eq!(
        cells(text.lines().nth(1).expect("heads")),
        ["Node name", "Required license", "Designated license"]
    );
}

#[test]
fn waits_have_the_fields_of_their_head() {
    let wait = WaiterSnapshot {
        thread: "fuse-3".into(),
        reason: "NSD I/O completion".into(),
        detail: "write, NSD 2".into(),
        since: strake_proto::Timestamp { seconds: 951_827_696, nanos: 0 },
        waited: std::time::Duration::from_millis(1500),
        ..WaiterSnapshot::default()
    };
    let fields = waiter(&wait);
    assert_eq!(fields[2..6], ["fuse-3", "2000-02-29_12:34:56+0000", "1.5000", "monitored"]);
    assert_eq!(fields[11], "for NSD I/O completion (write, NSD 2)");
}

#[test]
fn one_file_system_that_is_down_does_not_hide_the_others() {
    let known = |name: &str| Known {
        name: name.to_owned(),
        mount: "/mnt".into(),
        data: "/data".into(),
        node: None,
    };
    let all = ["down", "up", "gone"].map(known);
    let ask = |known: &Known| match known.name == "up" {
        true => Ok(known.name.clone()),
        false => Err(refused(format!("{} is not up", known.name))),
    };
    assert_eq!(of_each(all.iter(), ask).expect("one answers"), ["up"]);
    let error = of_each(all[2..].iter(), ask).expect_err("none answers");
    assert!(error.to_string().contains("gone is not up"), "{error}");
    assert_eq!(of_each(all[..0].iter(), ask).expect("nothing to ask"), [""; 0]);
}
