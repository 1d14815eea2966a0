//! Each command becomes the native words that it stands for, and says so if there are none.

use super::here::{Here, Known};
use super::*;
use crate::cluster::{Change, Cluster, FsRecord, NodeNumber};
use strake_proto::{ClusterId, Code, Roles};

/// A cluster of three nodes with two file systems. This machine is `n2` and has one of them
/// mounted.
pub(super) fn cluster() -> Cluster {
    let address = "10.0.0.1:7790".parse().expect("an address");
    let mut cluster =
        Cluster::new(ClusterId([0xab; 16]), "demo", "n1", address).expect("a cluster");
    let roles: Roles = "quorum,server,client".parse().expect("roles");
    for (name, roles) in [("n2", roles), ("n3", "client".parse().expect("roles"))] {
        let invite = Change::Invite { name: name.to_owned(), roles };
        cluster.apply(&invite).expect("a new node");
    }
    let address = "10.0.0.2:7790".parse().expect("an address");
    cluster.apply(&Change::Join { name: "n2".to_owned(), address }).expect("joins");
    for (id, name) in [(1, "fs1"), (2, "fs2")] {
        cluster.file_systems.push(FsRecord {
            id: strake_proto::FsId(id),
            name: name.to_owned(),
            code: Code::ALL[0].1,
            block_size: 4 << 20,
            mount: format!("/mnt/{name}").into(),
            nsds: Vec::new(),
            mounts: Vec::new(),
        });
    }
    assert_eq!(cluster.node_name(NodeNumber(2)), "n2");
    cluster
}

fn here() -> Here {
    let here = Here { node: Some("/srv/strake".into()), ..Here::default() };
    let _ = here.records.set(cluster());
    let _ = here.own.set("n2".to_owned());
    let known = |name: &str, data: &str, node: Option<&str>| Known {
        name: name.to_owned(),
        mount: format!("/mnt/{name}").into(),
        data: data.into(),
        node: node.map(Into::into),
    };
    let mounts = vec![
        known("fs1", "/srv/strake/mount/fs1", Some("/srv/strake")),
        known("alone", "/srv/alone", None),
    ];
    Here { mounts, ..here }
}

/// The native commands that a command line becomes, one in each line.
fn translated(line: &str) -> std::result::Result<String, String> {
    let words = std::iter::once("strake mm").chain(line.split(' '));
    let parsed = ByName::try_parse_from(words).map_err(|error| error.to_string())?;
    let steps = words::of(&parsed.command, &here()).map_err(|error| {
        assert_eq!(crate::output::exit_code(&error), 2, "{line}");
        error.to_string()
    })?;
    let line = |step: &Step| match step {
        Step::Run(words) => {
            // It must be a command.
            let whole = std::iter::once("strake").chain(words.iter().map(String::as_str));
            let parsed = crate::Cli::try_parse_from(whole);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.err().expect("it is none"));
            words.join(" ")
        }
        Step::Say(sentence) => format!("# {sentence}"),
    };
    Ok(steps.iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[test]
fn commands_become_native_commands() {
    let lines = [
        (
            "mmpmon -p -i requests -r 0 -d 5000",
            "mon --parsable --input requests --delay 5000 --repeat 0",
        ),
        (
            "mmaddnode -N n4:quorum-manager",
            "node add n4 --roles quorum,server,client\n# Each of these nodes joins by the command that is printed for it.",
        ),
        ("mmdelnode -N n2,n3", "node delete n2\nnode delete n3"),
        ("mmcrnsd -F disks -v no", "nsd create --file disks --force"),
        ("mmcrnsd -F disks", "nsd create --file disks"),
        ("mmdelnsd d1;d2", "nsd delete d1 d2"),
        (
            "mmcrfs /gpfs1 gpfs1 -A yes -B 4m -v no -n 32 -j scatter -r 2",
            "fs create gpfs1 --mount /gpfs1 --block-size 4M --code 2x",
        ),
        (
            "mmcrfs gpfs1 d1;d2 -T /gpfs1 -r 4+2p -Q no",
            "fs create gpfs1 --mount /gpfs1 --nsds d1,d2 --code 4+2p",
        ),
        ("mmdelfs /dev/fs1 -p", "fs delete fs1 --destroy-data"),
        ("mmmount /mnt/fs2 -a", "fs mount fs2 --all"),
        ("mmmount all -N n1,n2", "fs mount fs1 -N n1,n2\nfs mount fs2 -N n1,n2"),
        ("mmmount fs2 -o ro", "fs mount fs2 --options ro"),
        ("mmmount fs2", "fs mount fs2"),
        ("mmmount alone", "up --data /srv/alone --mount /mnt/alone"),
        ("mmumount fs1", "fs umount fs1 -N n2"),
        ("mmunmount /mnt/fs1 -a -f", "fs umount fs1 --force"),
        ("mmumount alone -f", "down --data /srv/alone --force"),
        ("mmshutdown", "node stop"),
        ("mmfsck fs1 -n -o", "fs check --data /srv/strake/mount/fs1"),
        (
            "mmchdisk fs1 start -d d1;d2",
            "disk start d1 --data /srv/strake/mount/fs1\ndisk start d2 --data /srv/strake/mount/fs1",
        ),
        ("mmchdisk alone suspend -d nsd1", "disk suspend nsd1 --data /srv/alone"),
        (
            "mmrpldisk alone nsd1 /dev/sdf -v no",
            "disk replace nsd1 /dev/sdf --force --data /srv/alone",
        ),
        ("mmadddisk alone /dev/sdf;/dev/sdg", "disk add /dev/sdf /dev/sdg --data /srv/alone"),
        ("mmadddisk fs1 d7 -v no", "disk add d7 --force --data /srv/strake/mount/fs1"),
        ("mmdeldisk alone nsd1", "disk delete nsd1 --data /srv/alone"),
        (
            "mmchlicense server --accept -N n1",
            "# Strake needs no licence: nothing is to be done for 'server'.",
        ),
        ("mmtracectl --start", "diag trace start"),
        (
            "mmtracectl --set --trace=def --tracedev-write-mode=overwrite --tracedev-overwrite-buffer-size=1g",
            "# There is one kind of trace, and it is in memory: nothing is to be set.",
        ),
        ("mmtracectl --off", "diag trace stop\n# `strake diag trace report` shows what happened."),
    ];
    for (line, wanted) in lines {
        assert_eq!(translated(line).as_deref(), Ok(wanted), "{line}");
    }
}

#[test]
fn what_there_is_not_says_what_to_do() {
    let lines = [
        ("mmchconfig pagepool=1G,maxMBpS=3000", "--set pagepool=1G"),
        ("mmchconfig pagepool=1G,maxMBpS=3000", "No setting is called maxMBpS"),
        ("mmdelnode -a", "`strake node stop`"),
        ("mmstartup -a", "`strake node start` on each of them"),
        ("mmshutdown -N n1", "`strake node stop` on each of them"),
        ("mmcrfs /gpfs1 gpfs1 -Q yes", "no quotas yet"),
        ("mmcrfs gpfs1", "-T MNT"),
        ("mmmount fs1 -a -o ro", "on each of the nodes"),
        ("mmfsck fs1 -y", "`strake fs scrub start`"),
        ("mmfsck nothing", "`strake fs list`"),
        ("mmchdisk fs1 stop -d d1", "`suspend`"),
        ("mmchdisk fs1 start -a", "by itself"),
        ("mmchdisk fs1 frobnicate -d d1", "start, suspend and resume"),
        ("mmdelfs nothing", "nothing"),
        ("mmaddnode -N n4:captain", "quorum"),
    ];
    for (line, wanted) in lines {
        let said = translated(line).expect_err(line);
        assert!(said.contains(wanted), "{line}: {said}");
    }
}

#[test]
fn a_cluster_is_made_with_its_first_node_and_the_others_are_invited() {
    // Names of machines differ; an address is its own name.
    let made = translated("mmcrcluster -N 192.0.2.7:quorum-manager,n2:quorum,n3 -C demo -p n1");
    let wanted = "cluster create demo --dir /srv/strake --address 192.0.2.7 --node 192.0.2.7\n\
                  node add n2 --roles quorum,server,client --dir /srv/strake\n\
                  node add n3 --roles server,client --dir /srv/strake\n\
                  # Each of these nodes joins by the command that is printed for it.";
    assert_eq!(made.as_deref(), Ok(wanted));
    let said = translated("mmcrcluster -N localhost").expect_err("no address for others");
    assert!(said.contains("strake cluster create"), "{said}");
}

#[test]
fn lists_of_nodes_come_from_files_too() {
    let path = std::env::temp_dir().join(format!("strake-mm-{}", std::process::id()));
    std::fs::write(&path, "# ours\nn1\n\nn4:quorum-manager\n").expect("writes");
    let names = nodes::names(&path.display().to_string()).expect("names");
    std::fs::write(&path, "%nsd: device=/dev/sdb nsd=d1 servers=n1\n\n/dev/sdc:n2::::d2\n")
        .expect("writes");
    let made = translated(&format!("mmcrfs /mnt/a a -F {}", path.display()));
    std::fs::remove_file(&path).expect("removes");
    assert_eq!(names, ["n1", "n4"]);
    assert_eq!(made.as_deref(), Ok("fs create a --mount /mnt/a --nsds d1,d2"));
}

#[test]
fn a_message_about_an_unknown_flag_lists_those_that_exist() {
    let said = choices("mmlsdisk").expect("a command");
    for word in ["mmlsdisk has:", "-d", "-e", "-L", "-Y", "Only those that are not up"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    assert_eq!(choices("mmfrobnicate"), None);
}

#[test]
fn every_command_is_in_the_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mm.md");
    let page = std::fs::read_to_string(path).expect("the document");
    for command in ByName::command().get_subcommands() {
        let name = command.get_name();
        assert!(page.contains(&format!("| `{name}` |")), "docs/mm.md has no row for {name}");
    }
}
