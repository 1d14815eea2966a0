//! The translation of commands that change something into the words of native commands.

use super::here::{Here, Known, bare};
use super::nodes::{self, Named};
use super::{
    Adddisk, Chconfig, Chdisk, Chlicense, Crcluster, Crfs, Crnsd, Deldisk, Delfs, Delnsd, Fsck,
    MmCommand, Mount, NodeList, Nodes, Pmon, Rpldisk, Step, Tracectl, Umount, refused,
};
use crate::cluster::stanza;
use crate::commands::node::read_text;
use crate::settings::TABLE;
use std::path::Path;
use strake_env::net::{SocketAddr, ToSocketAddrs};
use strake_proto::{Result, Roles};

/// Where a node is made if `STRAKE_NODE` names no directory.
const NODE_DIR: &str = "/srv/strake";

/// The native commands that a command stands for.
///
/// # Errors
/// `Invalid` with what to do, if there is no such operation.
pub(super) fn of(command: &MmCommand, here: &Here) -> Result<Vec<Step>> {
    match command {
        MmCommand::Mmchconfig(args) => change_settings(args),
        MmCommand::Mmpmon(args) => Ok(monitor(args)),
        MmCommand::Mmcrcluster(args) => create_cluster(args),
        MmCommand::Mmaddnode(args) => add_nodes(args),
        MmCommand::Mmdelnode(args) => delete_nodes(args),
        MmCommand::Mmcrnsd(args) => Ok(vec![create_nsds(args)]),
        MmCommand::Mmdelnsd(args) => delete_nsds(args),
        MmCommand::Mmcrfs(args) => create_fs(args),
        MmCommand::Mmdelfs(args) => delete_fs(args, here),
        MmCommand::Mmmount(args) => mount(args, here),
        MmCommand::Mmumount(args) => unmount(args, here),
        MmCommand::Mmstartup(args) => start(args),
        MmCommand::Mmshutdown(args) => stop(args),
        MmCommand::Mmfsck(args) => check(args, here),
        MmCommand::Mmchdisk(args) => change_disks(args, here),
        MmCommand::Mmrpldisk(args) => replace_disk(args, here),
        MmCommand::Mmadddisk(args) => add_disks(args, here),
        MmCommand::Mmdeldisk(args) => delete_disks(args, here),
        MmCommand::Mmchlicense(args) => Ok(vec![licence(args)]),
        MmCommand::Mmtracectl(args) => Ok(trace(args)),
        _ => Err(refused("this command changes nothing")),
    }
}

fn run<'a>(words: impl IntoIterator<Item = &'a str>) -> Step {
    Step::Run(words.into_iter().map(str::to_owned).collect())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A native command about a file system that is mounted here.
fn about(known: &Known, words: &[&str]) -> Step {
    let data = text(&known.data);
    run(words.iter().copied().chain(["--data", &data]))
}

fn change_settings(args: &Chconfig) -> Result<Vec<Step>> {
    let changes = args.changes.join(",");
    let pairs = changes.split(',').filter(|pair| !pair.is_empty());
    let (mut here, mut foreign) = (Vec::new(), Vec::new());
    for pair in pairs {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let is_ours = TABLE.iter().any(|setting| setting.name == name);
        if is_ours { here.push(pair) } else { foreign.push(name) }
    }
    let mut detail = "settings are given when a file system is mounted, and kept: ".to_owned();
    let set: Vec<String> = here.iter().map(|pair| format!(" --set {pair}")).collect();
    let set = if set.is_empty() { " --set KEY=VALUE".to_owned() } else { set.concat() };
    detail += &format!("`strake fs mount NAME{set}`, or without a cluster `strake up …{set}`");
    if !foreign.is_empty() {
        detail += &format!(
            ". No setting is called {}: `strake config list` explains those that exist, and the \
             program finds the rest itself",
            foreign.join(", ")
        );
    }
    Err(refused(detail))
}

fn monitor(args: &Pmon) -> Vec<Step> {
    let mut words = vec!["mon".to_owned()];
    let flags = [(args.parsable, "--parsable"), (args.silent, "--silent")];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| (*flag).to_owned()));
    let values = [
        ("--input", args.input.as_deref().map(text)),
        ("--delay", args.delay.map(|it| it.to_string())),
        ("--repeat", args.repeat.map(|it| it.to_string())),
        ("--timeout", args.timeout.map(|it| it.to_string())),
    ];
    for (flag, value) in values {
        words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    vec![Step::Run(words)]
}

fn create_cluster(args: &Crcluster) -> Result<Vec<Step>> {
    let nodes = nodes::parse(&args.nodes)?;
    let first = &nodes[0];
    let address = address_of(&first.name)?;
    let dir = std::env::var("STRAKE_NODE").unwrap_or_else(|_| NODE_DIR.to_owned());
    let name = args.name.as_deref().unwrap_or(&first.name);
    let create = ["cluster", "create", name, "--dir", &dir, "--address", &address];
    let create = create.into_iter().chain(["--node", &first.name]);
    let mut steps = vec![run(create)];
    steps.extend(invitations(&nodes[1..], Some(&dir)));
    Ok(steps)
}

/// The address of a machine's name.
fn address_of(name: &str) -> Result<String> {
    let found = (name, crate::node::PORT_DEFAULT).to_socket_addrs().ok();
    let found = found.and_then(|mut all| all.find(|it: &SocketAddr| !it.ip().is_loopback()));
    found.map(|it| it.ip().to_string()).ok_or_else(|| {
        refused(format!(
            "{name}: no address is known that other nodes reach. `strake cluster create NAME --dir \
             DIR --address ADDRESS` takes one"
        ))
    })
}

/// One command for the nodes of each set of roles.
fn invitations(nodes: &[Named], dir: Option<&str>) -> Vec<Step> {
    let of = |is_quorum: bool| {
        let mut named = nodes.iter().filter(|node| node.is_quorum == is_quorum).peekable();
        let roles = named.peek()?.roles();
        let names = named.map(|node| node.name.as_str());
        let dir = dir.into_iter().flat_map(|dir| ["--dir", dir]);
        Some(run(["node", "add"].into_iter().chain(names).chain(["--roles", roles]).chain(dir)))
    };
    let mut steps: Vec<Step> = [true, false].into_iter().filter_map(of).collect();
    if !steps.is_empty() {
        let join = "Each of these nodes joins by the command that is printed for it.";
        steps.push(Step::Say(join.to_owned()));
    }
    steps
}

fn add_nodes(args: &NodeList) -> Result<Vec<Step>> {
    let list = args.nodes.as_deref().ok_or_else(|| refused("name the nodes: -N NODES"))?;
    Ok(invitations(&nodes::parse(list)?, None))
}

fn delete_nodes(args: &NodeList) -> Result<Vec<Step>> {
    let Some(list) = args.nodes.as_deref().filter(|_| !args.all) else {
        return Err(refused(
            "a whole cluster ends when its nodes do: delete its file systems, `strake node stop` \
             on each machine, and remove the nodes' directories",
        ));
    };
    Ok(nodes::names(list)?.iter().map(|name| run(["node", "delete", name])).collect())
}

fn create_nsds(args: &Crnsd) -> Step {
    let file = text(&args.file);
    let force = (!args.verify).then_some("--force");
    run(["nsd", "create", "--file", &file].into_iter().chain(force))
}

fn delete_nsds(args: &Delnsd) -> Result<Vec<Step>> {
    let names = match (&args.disks, &args.file) {
        (Some(list), _) => nodes::disks(list),
        (None, Some(file)) => described(file)?,
        (None, None) => Vec::new(),
    };
    Ok(vec![run(["nsd", "delete"].into_iter().chain(names.iter().map(String::as_str)))])
}

/// The names of the NSDs that a file describes.
fn described(file: &Path) -> Result<Vec<String>> {
    let nsds = stanza::parse(&read_text(file)?).map_err(|error| error.context(file.display()))?;
    let named = nsds.into_iter().map(|nsd| {
        let unnamed = format!("{} line {}: name the NSD: nsd=NAME", file.display(), nsd.line);
        nsd.name.ok_or_else(|| refused(unnamed))
    });
    named.collect()
}

fn create_fs(args: &Crfs) -> Result<Vec<Step>> {
    if args.quotas == Some(true) {
        return Err(refused("Strake has no quotas yet: leave out -Q yes"));
    }
    if args.dmapi == Some(true) {
        return Err(refused("Strake has no DMAPI: leave out -z yes"));
    }
    // Both orders are in use: the mount point first, and the name first.
    let (mounts, mut names): (Vec<&String>, Vec<&String>) =
        args.names.iter().partition(|it| it.starts_with('/') && !it.starts_with("/dev/"));
    let disks = (names.len() == 2).then(|| names.remove(1));
    let ([name], true) = (&names[..], mounts.len() <= 1) else {
        return Err(refused("write: mmcrfs MNT DEVICE -F FILE, or mmcrfs DEVICE -F FILE -T MNT"));
    };
    let mount = args.mount.as_deref().or_else(|| mounts.first().map(|it| it.as_str()));
    let mount = mount.ok_or_else(|| refused("name the mount point: -T MNT"))?;
    let nsds = match (&args.file, disks) {
        (Some(file), None) => described(file)?,
        (None, Some(list)) => nodes::disks(list),
        (Some(_), Some(_)) => return Err(refused("name the NSDs, or a file with -F, not both")),
        (None, None) => Vec::new(),
    };
    let mut words: Vec<String> =
        ["fs", "create", bare(name), "--mount", mount].map(Into::into).into();
    if !nsds.is_empty() {
        words.extend(["--nsds".to_owned(), nsds.join(",")]);
    }
    if let Some(size) = &args.block_size {
        words.extend(["--block-size".to_owned(), size.to_uppercase()]);
    }
    if let Some(replicas) = &args.replicas {
        words.extend(["--code".to_owned(), code_of(replicas)]);
    }
    Ok(vec![Step::Run(words)])
}

/// The code that so many copies are. Other words are codes already.
fn code_of(replicas: &str) -> String {
    match replicas {
        "1" => "1".to_owned(),
        "2" | "3" | "4" => format!("{replicas}x"),
        code => code.to_owned(),
    }
}

fn delete_fs(args: &Delfs, here: &Here) -> Result<Vec<Step>> {
    let name = here.of_cluster(&args.device)?;
    Ok(vec![run(["fs", "delete", &name, "--destroy-data"])])
}

/// The names of the cluster's file systems that an argument means.
fn chosen(device: &str, here: &Here) -> Result<Vec<String>> {
    if device == "all" {
        return Ok(here.cluster()?.file_systems.iter().map(|fs| fs.name.clone()).collect());
    }
    Ok(vec![here.of_cluster(device)?])
}

/// The file system, if it is one of this machine alone.
fn alone<'a>(device: &str, here: &'a Here) -> Option<&'a Known> {
    here.mounted(device).ok().filter(|known| known.node.is_none())
}

fn mount(args: &Mount, here: &Here) -> Result<Vec<Step>> {
    if let Some(known) = alone(&args.device, here) {
        let (data, mount) = (text(&known.data), text(&known.mount));
        let options = args.options.iter().flat_map(|it| ["--options", it.as_str()]);
        return Ok(vec![run(["up", "--data", &data, "--mount", &mount]
            .into_iter()
            .chain(options))]);
    }
    if args.options.is_some() && (args.nodes.all || args.nodes.nodes.is_some()) {
        return Err(refused(
            "options are given where the file system is mounted: `strake fs mount NAME -o OPTIONS` \
             on each of the nodes",
        ));
    }
    let nodes = args.nodes.nodes.as_deref().map(nodes::names).transpose()?;
    let nodes = nodes.map(|names| names.join(","));
    let step = |name: &String| {
        let all = args.nodes.all.then_some("--all");
        let nodes = nodes.iter().flat_map(|names| ["-N", names.as_str()]);
        let options = args.options.iter().flat_map(|it| ["--options", it.as_str()]);
        run(["fs", "mount", name].into_iter().chain(all).chain(nodes).chain(options))
    };
    Ok(chosen(&args.device, here)?.iter().map(step).collect())
}

fn unmount(args: &Umount, here: &Here) -> Result<Vec<Step>> {
    let force = args.force.then_some("--force");
    if let Some(known) = alone(&args.device, here) {
        let data = text(&known.data);
        return Ok(vec![run(["down", "--data", &data].into_iter().chain(force))]);
    }
    let nodes = match &args.nodes {
        Nodes { all: true, .. } => None,
        Nodes { nodes: Some(list), .. } => Some(nodes::names(list)?.join(",")),
        Nodes { .. } => Some(here.own_node()?.to_owned()),
    };
    let step = |name: &String| {
        let nodes = nodes.iter().flat_map(|names| ["-N", names.as_str()]);
        run(["fs", "umount", name].into_iter().chain(nodes).chain(force))
    };
    Ok(chosen(&args.device, here)?.iter().map(step).collect())
}

/// Refuses lists of nodes: nothing runs commands on other machines.
fn only_here(args: &Nodes, verb: &str) -> Result<()> {
    if !args.all && args.nodes.is_none() {
        return Ok(());
    }
    Err(refused(format!(
        "Strake runs no commands on other machines: `strake node {verb}` on each of them, or \
         `systemctl {verb} strake-node@…`, which also starts a node at boot"
    )))
}

fn start(args: &Nodes) -> Result<Vec<Step>> {
    only_here(args, "start")?;
    let dir = std::env::var("STRAKE_NODE").unwrap_or_else(|_| NODE_DIR.to_owned());
    Ok(vec![run(["node", "start", "--dir", &dir])])
}

fn stop(args: &Nodes) -> Result<Vec<Step>> {
    only_here(args, "stop")?;
    Ok(vec![run(["node", "stop"])])
}

fn check(args: &Fsck, here: &Here) -> Result<Vec<Step>> {
    if args.repair {
        return Err(refused(
            "`strake fs check` changes nothing. `strake fs scrub start` verifies and mends strips \
             in the background",
        ));
    }
    Ok(vec![about(here.mounted(&args.device)?, &["fs", "check"])])
}

fn change_disks(args: &Chdisk, here: &Here) -> Result<Vec<Step>> {
    let known = here.mounted(&args.device)?;
    let advice = match args.action.as_str() {
        "start" | "suspend" | "resume" => None,
        "empty" => Some("`mmdeldisk` moves what a disk holds to the others and deletes it"),
        "stop" => {
            Some("`suspend` keeps new data off a disk; a disk that fails is left out by itself")
        }
        "change" => Some("the usage and the failure group of a disk do not change"),
        _ => Some("the actions are start, suspend and resume"),
    };
    if let Some(advice) = advice {
        return Err(refused(format!("mmchdisk {}: {advice}", args.action)));
    }
    let Some(list) = args.disks.as_deref().filter(|_| !args.all) else {
        return Err(refused(
            "name the disks with -d: Strake looks for all disks that are away by itself, each \
             second",
        ));
    };
    let names = nodes::disks(list);
    Ok(names.iter().map(|name| about(known, &["disk", &args.action, name])).collect())
}

fn replace_disk(args: &Rpldisk, here: &Here) -> Result<Vec<Step>> {
    let known = here.mounted(&args.device)?;
    let new = args.new.split(':').next().unwrap_or_default();
    let mut words = vec!["disk", "replace", &args.old, new];
    words.extend((!args.verify).then_some("--force"));
    Ok(vec![about(known, &words)])
}

fn add_disks(args: &Adddisk, here: &Here) -> Result<Vec<Step>> {
    let known = here.mounted(&args.device)?;
    let names = match &args.file {
        Some(file) => described(file)?,
        None => nodes::disks(args.disks.as_deref().unwrap_or_default()),
    };
    let mut words = vec!["disk", "add"];
    words.extend(names.iter().map(String::as_str));
    words.extend((!args.verify).then_some("--force"));
    Ok(vec![about(known, &words)])
}

fn delete_disks(args: &Deldisk, here: &Here) -> Result<Vec<Step>> {
    let known = here.mounted(&args.device)?;
    let names = nodes::disks(&args.disks);
    Ok(names.iter().map(|name| about(known, &["disk", "delete", name])).collect())
}

fn licence(args: &Chlicense) -> Step {
    Step::Say(format!("Strake needs no licence: nothing is to be done for '{}'.", args.kind))
}

fn trace(args: &Tracectl) -> Vec<Step> {
    let mut steps = Vec::new();
    if args.set {
        let said = "There is one kind of trace, and it is in memory: nothing is to be set.";
        steps.push(Step::Say(said.to_owned()));
    }
    if args.start {
        steps.push(run(["diag", "trace", "start"]));
    }
    if args.stop || args.off {
        steps.push(run(["diag", "trace", "stop"]));
        steps.push(Step::Say("`strake diag trace report` shows what happened.".to_owned()));
    }
    steps
}

/// The designation of a node with these roles.
pub(super) fn designation(roles: Roles) -> &'static str {
    if roles.has(strake_proto::Role::Quorum) { "quorum-manager" } else { "" }
}
