//! The commands about NSDs and file systems that concern a whole cluster.

use crate::cluster::{Cluster, FsRecord, NsdRecord, stanza};
use crate::commands::node::{NodeTarget, read_text};
use crate::create::CODE_DEFAULT;
use crate::mount_options::MountWords;
use crate::node::{FsWanted, LeaderRequest, MountAnswer, NodeRequest, Request};
use crate::output;
use crate::registry;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use strake_proto::limits::BLOCK_SIZE_DEFAULT;
use strake_proto::{ByteCount, Code, Error, ErrorKind, Result};
use strake_report::Table;

/// The options of `strake fs create`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake fs create demo --code 2x --mount /mnt/demo
  strake fs create big --code 4+2p --mount /mnt/big --nsds d1,d2,d3,d4,d5,d6")]
pub(crate) struct CreateArgs {
    /// The file system's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Redundancy code of new files: 1 2x 3x 4x 4+1p 4+2p 4+3p 8+2p 8+3p [default: 4+2p].
    #[arg(long, value_name = "CODE")]
    code: Option<Code>,
    /// Size of a block, a power of two from 256K to 16M [default: 4M].
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteCount>,
    /// Where nodes mount it.
    #[arg(long, value_name = "MNT")]
    mount: PathBuf,
    /// Names of NSDs [default: all that belong to no file system].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    nsds: Vec<String>,
    /// Even if the loss of one failure group loses data.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: NodeTarget,
}

/// The options of `strake fs mount`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake fs mount demo                       on the node where the command is run
  strake fs mount demo -N n2 --set pagepool=2G
  strake fs mount demo --all                 on all nodes with the role client
  strake fs mount demo --force               a node that had it mounted is switched off")]
pub(crate) struct MountArgs {
    /// The file system's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Names of nodes [default: the node where the command is run].
    #[arg(short = 'N', long, value_name = "NODES", value_delimiter = ',')]
    nodes: Vec<String>,
    /// On all nodes with the role client.
    #[arg(long, conflicts_with = "nodes")]
    all: bool,
    /// At this place, on the node where the command is run [default: the file system's].
    #[arg(long, value_name = "MNT", conflicts_with_all = ["nodes", "all"])]
    at: Option<PathBuf>,
    /// Options of the mount, as mount(8) has them, on the node where the command is run.
    #[arg(short, long, value_name = "OPTIONS", default_value = "")]
    #[arg(conflicts_with_all = ["nodes", "all"])]
    options: String,
    /// Change a setting for this and later mounts. `strake config list` explains the settings.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Nodes that have it mounted and do not answer count as gone. Only when they are off for
    /// certain: what they write later would destroy data.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: NodeTarget,
}

/// The options of `strake fs umount`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake fs umount demo             wherever it is mounted
  strake fs umount demo -N n2 --force     even while programs use it")]
pub(crate) struct UmountArgs {
    /// The file system's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Names of nodes [default: those that have it mounted].
    #[arg(short = 'N', long, value_name = "NODES", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Unmount even if the mount is busy. Programs that use it get errors; data is still flushed.
    /// A node that does not answer counts as gone: only when it is off for certain.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: NodeTarget,
}

/// The options of `strake fs delete`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake fs umount demo
  strake fs delete demo --destroy-data     its NSDs can make a new file system")]
pub(crate) struct DeleteArgs {
    /// The file system's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Confirm that everything in the file system will be lost.
    #[arg(long)]
    destroy_data: bool,
    #[command(flatten)]
    target: NodeTarget,
}

/// The directory of the node that a listing is about: the one that was named, else the only one
/// that is up here, unless a data directory was named. `None` if there is no such node.
///
/// # Errors
/// As [`registry::find_node`].
pub(crate) fn node_meant(dir: &Option<PathBuf>, data: Option<&Path>) -> Result<Option<PathBuf>> {
    let has_data = data.is_some() || std::env::var_os("STRAKE_DATA").is_some();
    let is_named = dir.is_some() || std::env::var_os("STRAKE_NODE").is_some();
    if (dir.is_none() && has_data) || (!is_named && registry::nodes().is_empty()) {
        return Ok(None);
    }
    registry::find_node(dir.as_deref()).map(|node| Some(node.root().to_owned()))
}

/// Runs `strake nsd create`.
pub(crate) fn create_nsds(file: &Path, force: bool, target: &NodeTarget) -> Result<()> {
    let nsds = stanza::parse(&read_text(file)?).map_err(|error| error.context(file.display()))?;
    let made: Vec<NsdRecord> = target.ask_leader(LeaderRequest::CreateNsds { nsds, force })?;
    if target.json {
        return output::print_json(&made);
    }
    let names: Vec<&str> = made.iter().map(|nsd| nsd.name.as_str()).collect();
    println!("{} NSDs are made: {}", made.len(), names.join(", "));
    Ok(())
}

/// Runs `strake nsd delete`.
pub(crate) fn delete_nsds(names: &[String], target: &NodeTarget) -> Result<()> {
    let nsds = names.to_vec();
    let left: Vec<String> = target.ask_leader(LeaderRequest::DeleteNsds { nsds })?;
    if target.json {
        return output::print_json(&json!({ "deleted": names, "left": left }));
    }
    println!("{} NSDs are deleted: {}", names.len(), names.join(", "));
    left.iter().for_each(|sentence| println!("  {sentence}"));
    Ok(())
}

/// Runs `strake fs delete`.
pub(crate) fn delete(args: &DeleteArgs) -> Result<()> {
    let fs = args.name.clone();
    let cluster = args.target.cluster()?;
    let nsds = cluster.fs_named(&fs)?.nsds.len();
    if !args.destroy_data {
        let detail = format!(
            "everything in {fs} would be lost: if it shall be, `strake fs delete {fs} \
             --destroy-data`"
        );
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    let deleted: FsRecord = args.target.ask_leader(LeaderRequest::DeleteFs { fs })?;
    if args.target.json {
        return output::print_json(&deleted);
    }
    println!("file system {} is deleted; its {nsds} NSDs are free", deleted.name);
    Ok(())
}

/// Runs `strake nsd list` for a cluster.
pub(crate) fn list_nsds(target: &NodeTarget) -> Result<()> {
    let cluster = target.cluster()?;
    let fs_name = |nsd: &NsdRecord| {
        let fs = nsd.fs.and_then(|fs| cluster.fs(fs));
        fs.map_or_else(|| "(free disk)".to_owned(), |fs| fs.name.clone())
    };
    if target.json {
        let nsds = cluster.nsds.iter().map(|nsd| {
            json!({
                "id": nsd.id,
                "name": nsd.name,
                "fileSystem": nsd.fs.and_then(|fs| cluster.fs(fs)).map(|fs| &fs.name),
                "server": cluster.node_name(nsd.node),
                "servers": cluster.server_names(nsd),
                "device": nsd.device,
                "usage": nsd.usage.to_string(),
                "failureGroup": nsd.failure_group,
                "pool": nsd.pool,
            })
        });
        return output::print_json(&nsds.collect::<Vec<_>>());
    }
    let mut table = Table::listing(&[
        "file system",
        "disk name",
        "NSD id",
        "NSD servers",
        "failure group",
        "usage",
        "device",
    ]);
    for nsd in &cluster.nsds {
        table.row(vec![
            fs_name(nsd),
            nsd.name.clone(),
            nsd.id.to_string(),
            servers(&cluster, nsd),
            nsd.failure_group.to_string(),
            nsd.usage.to_string(),
            nsd.device.display().to_string(),
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

/// The servers of an NSD. If not the first one serves it, the one that does is named as well.
pub(crate) fn servers(cluster: &Cluster, nsd: &NsdRecord) -> String {
    let names = cluster.server_names(nsd).join(",");
    match cluster.home_of(nsd) == nsd.node {
        true => names,
        false => format!("{names} (now {})", cluster.node_name(nsd.node)),
    }
}

/// The names of the nodes that have a file system mounted.
fn mounted_on(cluster: &Cluster, fs: &FsRecord) -> Vec<String> {
    fs.mounts.iter().map(|mount| cluster.node_name(mount.node)).collect()
}

/// The file systems of a cluster for `strake fs list --json`.
pub(crate) fn file_systems_as_json(cluster: Option<&Cluster>) -> Vec<Value> {
    let Some(cluster) = cluster else { return Vec::new() };
    let listed = cluster.file_systems.iter().map(|fs| {
        json!({
            "name": fs.name,
            "cluster": cluster.name,
            "code": fs.code.to_string(),
            "blockSize": fs.block_size,
            "mount": fs.mount,
            "mountedOn": mounted_on(cluster, fs),
            "nsds": fs.nsds.iter().filter_map(|nsd| cluster.nsd(*nsd)).map(|nsd| &nsd.name)
                .collect::<Vec<_>>(),
        })
    });
    listed.collect()
}

/// The file systems of a cluster for `strake fs list`.
pub(crate) fn file_systems_as_table(cluster: &Cluster) -> Table {
    let mut table = Table::listing(&["file system", "code", "NSDs", "mount point", "mounted on"]);
    for fs in &cluster.file_systems {
        table.row(vec![
            fs.name.clone(),
            fs.code.to_string(),
            fs.nsds.len().to_string(),
            fs.mount.display().to_string(),
            mounted_on(cluster, fs).join(", "),
        ]);
    }
    table
}

/// Runs `strake fs create`.
pub(crate) fn create(args: &CreateArgs) -> Result<()> {
    let block_size = args.block_size.unwrap_or(BLOCK_SIZE_DEFAULT);
    let wanted = FsWanted {
        name: args.name.clone(),
        code: args.code.unwrap_or(CODE_DEFAULT),
        block_size: u32::try_from(block_size.0).unwrap_or(u32::MAX),
        mount: std::path::absolute(&args.mount)?,
        nsds: args.nsds.clone(),
        force: args.force,
    };
    let made: FsRecord = args.target.ask_leader(LeaderRequest::CreateFs(wanted))?;
    if args.target.json {
        return output::print_json(&made);
    }
    println!(
        "file system {} is made of {} NSDs with code {}; `strake fs mount {}` mounts it at {}",
        made.name,
        made.nsds.len(),
        made.code,
        made.name,
        made.mount.display()
    );
    Ok(())
}

/// Runs `strake fs mount`.
pub(crate) fn mount(args: &MountArgs) -> Result<()> {
    let fs = args.name.clone();
    if args.force {
        args.target.ask_leader::<()>(LeaderRequest::ForgetMount { fs: fs.clone() })?;
    }
    if args.all || !args.nodes.is_empty() {
        let (nodes, settings) = (args.nodes.clone(), args.set.clone());
        let request = LeaderRequest::MountFs { fs, nodes, settings };
        return report(&args.target, args.target.ask_leader(request)?);
    }
    let words = MountWords::parse(&args.options, false)?;
    let set: Vec<String> = args.set.iter().chain(&words.settings).cloned().collect();
    let kernel = words.kernel_words.join(",");
    let answer = mount_here(&args.target, &fs, &set, args.at.as_deref(), &kernel)?;
    report(&args.target, vec![answer])
}

/// Mounts a file system on a node of this machine, at `at` or at the file system's own place, with
/// `options` of mount(8). The
/// node needs nobody to tell it. A node that only mounts cannot be told by others.
///
/// # Errors
/// `Busy` if another node's mount forbids it; those of the leader and of the node.
pub(crate) fn mount_here(
    target: &NodeTarget,
    fs: &str,
    settings: &[String],
    at: Option<&Path>,
    options: &str,
) -> Result<MountAnswer> {
    let own = target.file()?;
    target.ask_leader::<()>(LeaderRequest::MayMount { fs: fs.to_owned(), node: own.id })?;
    let mut fs = target.cluster()?.fs_named(fs)?.clone();
    if let Some(at) = at {
        fs.mount = std::path::absolute(at)?;
    }
    let (settings, options) = (settings.to_vec(), options.to_owned());
    let message = target.ask(&Request::Node(NodeRequest::Mount { fs, settings, options }))?;
    Ok(MountAnswer { node: own.node, done: true, message })
}

/// Runs `strake fs umount`.
pub(crate) fn umount(args: &UmountArgs) -> Result<()> {
    let (fs, force) = (args.name.clone(), args.force);
    let own = args.target.file()?;
    let mounts = args.target.cluster()?.fs_named(&fs)?.mounts.clone();
    if args.nodes.is_empty() && mounts.iter().all(|mount| mount.node == own.id) {
        let message = args.target.ask(&Request::Node(NodeRequest::Unmount { fs, force }))?;
        return report(&args.target, vec![MountAnswer { node: own.node, done: true, message }]);
    }
    let request = LeaderRequest::UnmountFs { fs, nodes: args.nodes.clone(), force };
    report(&args.target, args.target.ask_leader(request)?)
}

/// Shows what each node answered. A node that did not do it makes the command fail.
fn report(target: &NodeTarget, answers: Vec<MountAnswer>) -> Result<()> {
    if target.json {
        output::print_json(&answers)?;
    } else {
        for answer in answers.iter().filter(|answer| answer.done) {
            println!("{}: {}", answer.node, answer.message);
        }
    }
    let refused: Vec<String> = answers
        .iter()
        .filter(|answer| !answer.done)
        .map(|answer| format!("{}: {}", answer.node, answer.message))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, refused.join("\n  ")))
}
