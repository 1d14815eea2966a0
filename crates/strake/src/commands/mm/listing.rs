//! The listings: what the native listings ask, in the layouts of the commands.

use super::here::{Here, Known};
use super::layout::{Colons, calendar, heading, line, percent, ruled};
use super::words::designation;
use super::{
    Df, Diag, Getstate, Lsconfig, Lsdisk, Lsfs, Lslicense, Lsnsd, Parsable, nodes, refused,
};
use crate::admin::{self, Request};
use crate::cluster::{Cluster, NodeNumber, NsdRecord};
use crate::commands::disk;
use crate::commands::fs::utc;
use crate::data_dir::DataDir;
use crate::node::{LeaderRequest, NodeState, ReplicaState};
use crate::output::tell;
use crate::show::{Show, ShowNsd, availability_name, status_name};
use strake_observe::WaiterSnapshot;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::{Result, Role};
use strake_report::Table;

/// Asks the daemon of a file system that is mounted here.
fn show(here: &Here, device: &str) -> Result<Show> {
    show_of(here.mounted(device)?)
}

fn show_of(known: &Known) -> Result<Show> {
    let dir = DataDir::at(&known.data)?;
    let show: Show = admin::ask(&dir, &Request::Show)?;
    if let Some(late) = show.lateness() {
        tell(&late);
    }
    Ok(show)
}

/// Asks about each of the file systems. One whose daemon is gone is told, and the others are
/// listed.
///
/// # Errors
/// The last one's, if none answers.
fn of_each<'a, T>(
    known: impl Iterator<Item = &'a Known>,
    ask: impl Fn(&Known) -> Result<T>,
) -> Result<Vec<T>> {
    let (mut answers, mut failed) = (Vec::new(), Vec::new());
    for known in known {
        match ask(known) {
            Ok(answer) => answers.push(answer),
            Err(error) => failed.push(error),
        }
    }
    let last = if answers.is_empty() { failed.pop() } else { None };
    failed.iter().for_each(|error| tell(&error.to_string()));
    last.map_or(Ok(answers), Err)
}

/// `mmlscluster`.
pub(super) fn cluster(args: &Parsable) -> Result<String> {
    let here = Here::look();
    let replica = here.target().replica()?;
    Ok(cluster_text(here.cluster()?, &replica, args.y))
}

fn cluster_text(cluster: &Cluster, replica: &ReplicaState, y: bool) -> String {
    let voters = replica.members.iter().filter(|member| member.votes).map(|member| member.node);
    let leader = replica.leader.or_else(|| voters.clone().next());
    let second = voters.clone().find(|node| Some(*node) != leader);
    let name = |node: Option<NodeNumber>| {
        node.map_or_else(|| "(none)".to_owned(), |node| cluster.node_name(node))
    };
    let address = |node: &crate::cluster::NodeRecord| {
        node.address.map_or_else(|| "(not joined)".to_owned(), |it| it.ip().to_string())
    };
    let (primary, secondary) = (name(leader), name(second));
    let (own, id) = (&cluster.name, cluster.id.to_string());
    if y {
        let mut colons = Colons::new("mmlscluster");
        colons.head("clusterSummary", "clusterName:clusterId:uidDomain:rshPath:rshSudoWrapper:rcpPath:rcpSudoWrapper:repositoryType:primaryServer:secondaryServer");
        colons.head("clusterNode", "nodeNumber:daemonNodeName:ipAddress:adminNodeName:designation:otherNodeRoles:adminLoginName:otherNodeRolesAlias");
        let none = || "(none)".to_owned();
        let no = || "no".to_owned();
        let summary = [
            own.clone(),
            id,
            own.clone(),
            none(),
            no(),
            none(),
            no(),
            "CCR".into(),
            primary,
            secondary,
        ];
        colons.row("clusterSummary", &summary);
        for node in &cluster.nodes {
            let (number, name) = (node.id.0.to_string(), node.name.clone());
            let designation = match designation(node.roles) {
                "quorum-manager" => "quorumManager",
                other => other,
            };
            let row = [number, name.clone(), address(node), name, designation.to_owned()];
            colons.row("clusterNode", &[&row[..], &["".into(), "".into(), "".into()]].concat());
        }
        return colons.text();
    }
    let mut text = heading("GPFS cluster information", "=");
    let mut fact = |what: &str, value: &str| line(&mut text, format_args!("  {what:<26} {value}"));
    fact("GPFS cluster name:", own);
    fact("GPFS cluster id:", &id);
    fact("GPFS UID domain:", own);
    fact("Remote shell command:", "(none)");
    fact("Remote file copy command:", "(none)");
    text += &heading("GPFS cluster configuration servers:", "-");
    line(&mut text, format_args!("  Primary server:    {primary}"));
    line(&mut text, format_args!("  Secondary server:  {secondary}"));
    let heads = ["Node", "Daemon node name", "IP address", "Admin node name", "Designation"];
    let row = |node: &crate::cluster::NodeRecord| {
        let (number, name) = (node.id.0.to_string(), node.name.clone());
        vec![number, name.clone(), address(node), name, designation(node.roles).to_owned()]
    };
    text + &ruled(&heads, &cluster.nodes.iter().map(row).collect::<Vec<_>>())
}

/// `mmgetstate`.
pub(super) fn states(args: &Getstate) -> Result<String> {
    let here = Here::look();
    let states: Vec<NodeState> = here.target().ask_leader(LeaderRequest::NodeStates)?;
    let wanted = match (&args.nodes.nodes, args.nodes.all) {
        (_, true) => None,
        (Some(list), false) => Some(nodes::names(list)?),
        (None, false) => Some(vec![here.own_node()?.to_owned()]),
    };
    let cluster = here.cluster()?;
    if let Some(names) = &wanted {
        names.iter().try_for_each(|name| cluster.node_named(name).map(drop))?;
    }
    Ok(states_text(cluster, &states, wanted.as_deref(), (args.long, args.parsable.y)))
}

/// The state of a node in the words of the command.
fn state_word(state: &NodeState) -> &'static str {
    let is_asking = state.replica.as_ref().is_some_and(|it| it.role == "asking");
    match state.state.as_str() {
        "active" if is_asking => "arbitrating",
        "active" => "active",
        "down" => "down",
        _ => "unknown",
    }
}

fn states_text(
    cluster: &Cluster,
    states: &[NodeState],
    wanted: Option<&[String]>,
    (long, y): (bool, bool),
) -> String {
    let quorum = cluster.quorum().count() / 2 + 1;
    let up = states.iter().filter(|it| it.state == "active").count();
    let total = states.len();
    let is_wanted = |it: &&NodeState| wanted.is_none_or(|names| names.contains(&it.node));
    let mut colons = Colons::new("mmgetstate");
    colons.head("", "nodeName:nodeNumber:state:quorum:nodesUp:totalNodes:remarks:cnfsState");
    let mut rows = Vec::new();
    for state in states.iter().filter(is_wanted) {
        let record = cluster.nodes.iter().find(|node| node.name == state.node);
        let number = record.map_or_else(String::new, |node| node.id.0.to_string());
        let votes = record.is_some_and(|node| node.roles.has(Role::Quorum));
        let remarks = if votes { "quorum node" } else { "" }.to_owned();
        let (name, word) = (state.node.clone(), state_word(state).to_owned());
        let counts = [quorum, up, total].map(|count| count.to_string());
        let cnfs = "(undefined)".to_owned();
        let first = [name.clone(), number.clone(), word.clone()];
        colons.row("", &[&first[..], &counts, &[remarks.clone(), cnfs]].concat());
        let [quorum, up, total] = counts;
        rows.push(match long {
            true => vec![number, name, quorum, up, total, word, remarks],
            false => vec![number, name, word],
        });
    }
    let heads: &[&str] = match long {
        true => &[
            "Node number",
            "Node name",
            "Quorum",
            "Nodes up",
            "Total nodes",
            "GPFS state",
            "Remarks",
        ],
        false => &["Node number", "Node name", "GPFS state"],
    };
    if y { colons.text() } else { ruled(heads, &rows) }
}

/// An NSD as `mmlsnsd` shows it.
struct Listed {
    fs: Option<String>,
    name: String,
    volume: String,
    server: String,
    device: String,
}

impl Listed {
    fn fs(&self) -> String {
        self.fs.clone().unwrap_or_else(|| "(free disk)".to_owned())
    }
}

/// The identity of an NSD with 16 digits, as the command shows it: half of the cluster's, and the
/// NSD's own.
fn volume(cluster: &str, nsd: u32) -> String {
    format!("{}{nsd:08X}", cluster.get(..8).unwrap_or("00000000").to_uppercase())
}

fn of_cluster(cluster: &Cluster) -> Vec<Listed> {
    let id = cluster.id.to_string();
    let one = |nsd: &NsdRecord| Listed {
        fs: nsd.fs.and_then(|fs| cluster.fs(fs)).map(|fs| fs.name.clone()),
        name: nsd.name.clone(),
        volume: volume(&id, nsd.id.0),
        server: cluster.server_names(nsd).join(","),
        device: nsd.device.display().to_string(),
    };
    cluster.nsds.iter().map(one).collect()
}

fn of_show(show: &Show) -> Vec<Listed> {
    let one = |nsd: &ShowNsd| Listed {
        fs: Some(show.name.clone()),
        name: nsd.name.clone(),
        volume: volume(&show.cluster, nsd.id),
        server: show.node.clone(),
        device: nsd.path.clone(),
    };
    show.nsds.iter().map(one).collect()
}

/// `mmlsnsd`.
pub(super) fn nsds(args: &Lsnsd) -> Result<String> {
    let here = Here::look();
    let mut all = Vec::new();
    if here.node.is_some() {
        all.extend(of_cluster(here.cluster()?));
    }
    let alone = here.mounts.iter().filter(|it| it.node.is_none());
    match of_each(alone, show_of) {
        Ok(shows) => all.extend(shows.iter().flat_map(of_show)),
        Err(error) if all.is_empty() => return Err(error),
        Err(error) => tell(&error.to_string()),
    }
    if all.is_empty() && here.node.is_none() && here.mounts.is_empty() {
        return Err(refused(
            "no node of a cluster and no file system is up here: `strake node start`, or `strake up`",
        ));
    }
    let device = args.device.as_deref().map(super::here::bare);
    let disks = args.disks.as_deref().map(nodes::disks);
    all.retain(|nsd| {
        (!args.free || nsd.fs.is_none())
            && device.is_none_or(|device| nsd.fs.as_deref() == Some(device))
            && disks.as_ref().is_none_or(|names| names.contains(&nsd.name))
    });
    Ok(nsds_text(&all, args))
}

fn nsds_text(all: &[Listed], args: &Lsnsd) -> String {
    const SERVES: &str = "server node";
    if args.parsable.y {
        let mut colons = Colons::new("mmlsnsd");
        colons.head(
            "nsd",
            "fileSystem:diskName:volumeId:serverList:deviceType:localDiskName:remarks",
        );
        for nsd in all {
            let Listed { name, volume, server, device, .. } = nsd;
            let [name, volume, server, device] = [name, volume, server, device].map(String::clone);
            let kind = "generic".to_owned();
            colons.row("nsd", &[nsd.fs(), name, volume, server, kind, device, SERVES.to_owned()]);
        }
        return colons.text();
    }
    let heads: &[&str] = match (args.extended, args.long) {
        (true, _) => &["Disk name", "NSD volume ID", "Device", "Devtype", "Node name", "Remarks"],
        (false, true) => &["File system", "Disk name", "NSD volume ID", "NSD servers"],
        (false, false) => &["File system", "Disk name", "NSD servers"],
    };
    let row = |nsd: &Listed| {
        let Listed { name, volume, server, device, .. } = nsd;
        let [name, volume, server, device] = [name, volume, server, device].map(String::clone);
        match (args.extended, args.long) {
            (true, _) => vec![name, volume, device, "generic".into(), server, SERVES.into()],
            (false, true) => vec![nsd.fs(), name, volume, server],
            (false, false) => vec![nsd.fs(), name, server],
        }
    };
    ruled(heads, &all.iter().map(row).collect::<Vec<_>>())
}

/// An attribute: its flag, its name in `-Y`, its value, and what it is.
type Attribute = (&'static str, &'static str, String, &'static str);

/// `mmlsfs`.
pub(super) fn file_systems(args: &Lsfs) -> Result<String> {
    let here = Here::look();
    let devices: Vec<String> = match args.device.as_str() {
        "all" | "all_local" => here.mounts.iter().map(|known| known.name.clone()).collect(),
        device => vec![device.to_owned()],
    };
    let y = args.flags.iter().any(|flag| flag == "-Y");
    let wanted: Vec<&String> = args.flags.iter().filter(|flag| *flag != "-Y").collect();
    let shows = devices.iter().map(|device| show(&here, device)).collect::<Result<Vec<_>>>()?;
    file_systems_text(&shows, &wanted, y)
}

fn file_systems_text(shows: &[Show], wanted: &[&String], y: bool) -> Result<String> {
    let mut colons = Colons::new("mmlsfs");
    colons.head("", "deviceName:fieldName:data:remarks");
    let mut text = String::new();
    for show in shows {
        let mut attributes = attributes(show);
        let flags: Vec<&str> = attributes.iter().map(|it| it.0).collect();
        if let Some(unknown) = wanted.iter().find(|flag| !flags.contains(&flag.as_str())) {
            let detail = format!("mmlsfs has no {unknown}; it has {} and -Y", flags.join(" "));
            return Err(refused(detail));
        }
        attributes.retain(|it| wanted.is_empty() || wanted.iter().any(|flag| *flag == it.0));
        let mut table = Table::listing(&["flag", "value", "description"]);
        for (flag, field, value, description) in attributes {
            colons.row("", &[show.name.clone(), field.into(), value.clone(), String::new()]);
            table.row(vec![flag.into(), value, description.into()]);
        }
        if shows.len() > 1 {
            text += &heading(&format!("File system attributes for /dev/{}:", show.name), "=");
        }
        text += &table.render();
    }
    Ok(if y { colons.text() } else { text })
}

fn attributes(show: &Show) -> Vec<Attribute> {
    let disks: Vec<&str> = show.nsds.iter().map(|nsd| nsd.name.as_str()).collect();
    let copies = show.nsds.iter().filter(|nsd| nsd.holds_metadata == Some(true)).count();
    let created = calendar(&utc(show.created_seconds), show.created_seconds);
    let (copies, code) = (copies.to_string(), show.code.clone());
    vec![
        ("-f", "minFragmentSize", "4096".into(), "Minimum fragment size in bytes"),
        ("-i", "inodeSize", "4096".into(), "Inode size in bytes"),
        ("-m", "defaultMetadataReplicas", copies.clone(), "Default number of metadata replicas"),
        ("-M", "maxMetadataReplicas", copies, "Maximum number of metadata replicas"),
        ("-r", "defaultDataReplicas", code.clone(), "Default number of data replicas"),
        ("-R", "maxDataReplicas", code, "Maximum number of data replicas"),
        ("-j", "blockAllocationType", "scatter".into(), "Block allocation type"),
        ("-D", "fileLockingSemantics", "posix".into(), "File locking semantics in effect"),
        ("-k", "ACLSemantics", "posix".into(), "ACL semantics in effect"),
        ("-B", "blockSize", show.block_size.to_string(), "Block size"),
        ("-Q", "quotasEnforced", "none".into(), "Quotas enforced"),
        ("-V", "filesystemVersion", show.format_version.to_string(), "File system version"),
        ("-z", "DMAPIEnabled", "no".into(), "Is DMAPI enabled?"),
        ("-E", "exactMtime", "yes".into(), "Exact mtime mount option"),
        ("--create-time", "create-time", created, "File system creation time"),
        ("--fastea", "fastEAenabled", "yes".into(), "Fast external attributes enabled?"),
        ("--filesetdf", "filesetdfEnabled", "no".into(), "Fileset df enabled?"),
        ("-P", "storagePools", "system".into(), "Disk storage pools in file system"),
        ("-d", "disks", disks.join(";"), "Disks in file system"),
        ("-T", "defaultMountPoint", show.mount.clone(), "Default mount point"),
    ]
}

fn yes_no(value: Option<bool>) -> String {
    value.map_or("-", |held| if held { "yes" } else { "no" }).to_owned()
}

/// `mmlsdisk`.
pub(super) fn disks(args: &Lsdisk) -> Result<String> {
    let here = Here::look();
    Ok(disks_text(&show(&here, &args.device)?, args))
}

fn disks_text(show: &Show, args: &Lsdisk) -> String {
    let names = args.disks.as_deref().map(nodes::disks);
    let is_well =
        |nsd: &ShowNsd| nsd.availability == NsdAvailability::Up && nsd.status == NsdStatus::Ready;
    let is_wanted = |nsd: &&ShowNsd| {
        (!args.exceptions || !is_well(nsd))
            && names.as_ref().is_none_or(|names| names.contains(&nsd.name))
    };
    let mut colons = Colons::new("mmlsdisk");
    colons.head("", "nsdName:driverType:sectorSize:failureGroup:metadata:data:status:availability:diskID:storagePool:remarks:numQuorumDisks:readQuorumValue:writeQuorumValue:diskSizeKB:diskUID:thinDiskType");
    let mut heads = disk::HEADS.to_vec();
    heads.extend(args.long.then_some("disk id"));
    heads.push("storage pool");
    heads.extend(args.long.then_some("remarks"));
    let mut table = Table::listing(&heads);
    for nsd in show.nsds.iter().filter(is_wanted) {
        let common = [
            nsd.name.clone(),
            "nsd".into(),
            "512".into(),
            nsd.failure_group.to_string(),
            yes_no(nsd.holds_metadata),
            "yes".into(),
            status_name(nsd.status).into(),
            availability_name(nsd.availability).into(),
        ];
        let (id, pool) = (nsd.id.to_string(), "system".to_owned());
        let remarks = nsd.fault.clone().unwrap_or_default();
        let size = nsd.total_bytes.map_or_else(String::new, |bytes| (bytes / 1024).to_string());
        let rest = [
            id.clone(),
            pool.clone(),
            remarks.clone(),
            String::new(),
            String::new(),
            String::new(),
            size,
            volume(&show.cluster, nsd.id),
            String::new(),
        ];
        colons.row("", &[&common[..], &rest].concat());
        let mut row = common.to_vec();
        row.extend(args.long.then_some(id));
        row.push(pool);
        row.extend(args.long.then_some(remarks));
        table.row(row);
    }
    if args.parsable.y { colons.text() } else { table.render() }
}

/// Inodes of a file system: in use and free.
type Inodes = Option<(u64, u64)>;

/// `mmdf`.
pub(super) fn space(args: &Df) -> Result<String> {
    let here = Here::look();
    let show = show(&here, &args.device)?;
    // The numbers of df(1).
    let told = rustix::fs::statvfs(&show.mount).ok();
    let inodes = told.map(|told| (told.f_files.saturating_sub(told.f_ffree), told.f_ffree));
    Ok(space_text(&show, inodes, args.parsable.y))
}

fn space_text(show: &Show, inodes: Inodes, y: bool) -> String {
    let kib = |bytes: Option<u64>| bytes.unwrap_or(0) / 1024;
    let (mut total, mut free) = (0, 0);
    let mut colons = Colons::new("mmdf");
    colons.head("nsd", "nsdName:storagePool:diskSize:failureGroup:metadata:data:freeBlocks:freeBlocksPct:freeFragments:freeFragmentsPct:diskAvailableForAlloc");
    colons.head(
        "poolTotal",
        "poolName:poolSize:freeBlocks:freeBlocksPct:freeFragments:freeFragmentsPct:maxDiskSize",
    );
    colons.head("fsTotal", "fsSize:freeBlocks:freeBlocksPct:freeFragments:freeFragmentsPct");
    colons.head("inode", "usedInodes:freeInodes:allocatedInodes:maxInodes");
    let heads = [
        "disk name",
        "disk size in KB",
        "failure group",
        "holds metadata",
        "holds data",
        "free in KB in full blocks",
        "free in KB in fragments",
    ];
    let mut table = Table::new(&heads, &[0, 3, 4]);
    let text = |free: u64, total: u64| format!("{free} ({:>2}%)", percent(free, total));
    for nsd in &show.nsds {
        let (size, left) = (kib(nsd.total_bytes), kib(nsd.free_bytes));
        (total, free) = (total + size, free + left);
        let (name, group, held) =
            (nsd.name.clone(), nsd.failure_group.to_string(), yes_no(nsd.holds_metadata));
        let capital = |word: &str| if word == "yes" { "Yes" } else { "No" }.to_owned();
        colons.row(
            "nsd",
            &[
                name.clone(),
                "system".into(),
                size.to_string(),
                group.clone(),
                capital(&held),
                "Yes".into(),
                left.to_string(),
                percent(left, size).to_string(),
                "0".into(),
                "0".into(),
                String::new(),
            ],
        );
        table.row(vec![
            name,
            size.to_string(),
            group,
            held,
            "yes".into(),
            text(left, size),
            text(0, size),
        ]);
    }
    let sums = [total, free, percent(free, total), 0, 0].map(|sum| sum.to_string());
    let pool = [&["system".to_owned()][..], &sums, &[String::new()]].concat();
    colons.row("poolTotal", &pool);
    colons.row("fsTotal", &sums);
    let counts = inodes.map(|(used, free)| [used, free, used + free, used + free]);
    let counts = counts.map_or_else(Default::default, |counts| counts.map(|it| it.to_string()));
    colons.row("inode", &counts);
    if y {
        return colons.text();
    }
    for what in ["(pool total)", "(total)"] {
        let row = [what.to_owned(), total.to_string(), String::new(), String::new(), String::new()];
        table.row([&row[..], &[text(free, total), text(0, total)]].concat());
    }
    table.render() + &inodes_text(&counts)
}

/// The inodes in use, free, allocated, and at most.
fn inodes_text(counts: &[String; 4]) -> String {
    let mut text = "\nInode Information\n-----------------\n".to_owned();
    let names = ["used", "free", "allocated"].map(|what| format!("Number of {what} inodes:"));
    let names = names.into_iter().chain(["Maximum number of inodes:".to_owned()]);
    for (name, count) in names.zip(counts) {
        line(&mut text, format_args!("{name:<27} {count:>15}"));
    }
    text
}

/// `mmlsconfig`.
pub(super) fn settings(args: &Lsconfig) -> Result<String> {
    let here = Here::look();
    let shows: Vec<Show> = of_each(here.mounts.iter(), show_of)?;
    let (name, id) = match (&here.node, shows.first()) {
        (Some(_), _) => (here.cluster()?.name.clone(), here.cluster()?.id.to_string()),
        (None, Some(show)) => (show.name.clone(), show.cluster.clone()),
        (None, None) => {
            return Err(refused("nothing is up here: `strake up`, or `strake node start`"));
        }
    };
    let mut values = vec![("clusterName".to_owned(), name.clone()), ("clusterId".to_owned(), id)];
    values.extend(shows.first().into_iter().flat_map(|show| show.settings.clone()));
    let file_systems = shows.iter().map(|show| show.name.clone()).collect::<Vec<_>>();
    settings_text(&name, &values, &file_systems, args)
}

fn settings_text(
    cluster: &str,
    values: &[(String, String)],
    file_systems: &[String],
    args: &Lsconfig,
) -> Result<String> {
    let known = |wanted: &&String| values.iter().any(|(name, _)| name == *wanted);
    if let Some(unknown) = args.names.iter().find(|name| !known(name)) {
        let detail = format!("no setting is called {unknown}: `strake config list` explains them");
        return Err(refused(detail));
    }
    let is_wanted = |name: &String| args.names.is_empty() || args.names.contains(name);
    let shown: Vec<_> = values.iter().filter(|(name, _)| is_wanted(name)).collect();
    if args.parsable.y {
        let mut colons = Colons::new("mmlsconfig");
        colons.head("", "configParameter:value:nodeList");
        for (name, value) in shown {
            colons.row("", &[name.clone(), value.clone(), String::new()]);
        }
        return Ok(colons.text());
    }
    let mut text = String::new();
    if args.names.is_empty() {
        text += heading(&format!("Configuration data for cluster {cluster}:"), "-").trim_start();
    }
    for (name, value) in shown {
        line(&mut text, format_args!("{name} {value}"));
    }
    if args.names.is_empty() {
        text += &heading(&format!("File systems in cluster {cluster}:"), "-");
        let none = ["(none)".to_owned()];
        let listed = if file_systems.is_empty() { &none[..] } else { file_systems };
        for name in listed {
            let start = if name.starts_with('(') { "" } else { "/dev/" };
            line(&mut text, format_args!("{start}{name}"));
        }
    }
    Ok(text)
}

/// `mmlslicense`.
pub(super) fn licences(args: &Lslicense) -> Result<String> {
    let here = Here::look();
    Ok(licences_text(here.cluster()?, args.long))
}

fn licences_text(cluster: &Cluster, long: bool) -> String {
    let is_server = |node: &crate::cluster::NodeRecord| {
        node.roles.has(Role::Quorum) || node.roles.has(Role::Server)
    };
    let mut text = String::new();
    if long {
        let row = |node: &crate::cluster::NodeRecord| {
            let kind = if is_server(node) { "server" } else { "client" };
            vec![node.name.clone(), kind.to_owned(), kind.to_owned()]
        };
        let heads = ["Node name", "Required license", "Designated license"];
        text += &ruled(&heads, &cluster.nodes.iter().map(row).collect::<Vec<_>>());
    }
    let servers = cluster.nodes.iter().filter(|node| is_server(node)).count();
    let (all, clients) = (cluster.nodes.len(), cluster.nodes.len() - servers);
    text += &heading("Summary information", "-");
    let mut count = |what: &str, count: usize| {
        line(&mut text, format_args!("{:<60} {count:>3}", format!("Number of nodes {what}:")));
    };
    count("defined in the cluster", all);
    count("with server license designation", servers);
    count("with client license designation", clients);
    count("still requiring server license designation", 0);
    count("still requiring client license designation", 0);
    text + "Strake needs no licence.\n"
}

/// `mmdiag … -Y`.
pub(super) fn parsable_diag(args: &Diag) -> Result<String> {
    let here = Here::look();
    let mut colons = Colons::new("mmdiag");
    if args.version || args.all {
        colons.head("version", "buildInfo:upTime");
        colons.row("version", &[format!("strake {}", env!("CARGO_PKG_VERSION")), String::new()]);
    }
    if args.waiters || args.all {
        colons.head("waiters", "threadId:threadAddr:threadName:waitStartTime:waitTime:isMonitored:condVarAddr:condVarName:condVarReason:mutexAddr:mutexName:auxReason:delayTime:delayReason");
        let waiters = |known: &Known| -> Result<Vec<WaiterSnapshot>> {
            admin::ask(&DataDir::at(&known.data)?, &Request::Waiters)
        };
        for wait in of_each(here.mounts.iter(), waiters)?.iter().flatten() {
            colons.row("waiters", &waiter(wait));
        }
    }
    if args.config || args.all {
        colons.head("config", "name:value:changed");
        for show in of_each(here.mounts.iter(), show_of)? {
            for (name, value) in show.settings {
                let default = crate::settings::TABLE.iter().find(|it| it.name == name);
                let changed = default.is_none_or(|it| it.default != value);
                let mark = if changed { "set" } else { "" };
                colons.row("config", &[name, value, mark.to_owned()]);
            }
        }
    }
    let text = colons.text();
    if text.is_empty() {
        return Err(refused(
            "-Y is for --version, --waiters and --config; others have --json: `strake \
                            diag iohist --json`",
        ));
    }
    Ok(text)
}

fn waiter(wait: &WaiterSnapshot) -> [String; 14] {
    let empty = String::new;
    let since = utc(wait.since.seconds);
    let since = since.trim_end_matches(" UTC").replace(' ', "_") + "+0000";
    let seconds = format!("{:.4}", wait.waited.as_secs_f64());
    let aux = match wait.detail.is_empty() {
        true => format!("for {}", wait.reason),
        false => format!("for {} ({})", wait.reason, wait.detail),
    };
    let name = wait.thread.clone();
    [
        empty(),
        empty(),
        name,
        since,
        seconds,
        "monitored".into(),
        empty(),
        empty(),
        empty(),
        empty(),
        empty(),
        aux,
        empty(),
        empty(),
    ]
}

#[cfg(test)]
#[path = "listing_test.rs"]
mod listing_test;
