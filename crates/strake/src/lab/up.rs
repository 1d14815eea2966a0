//! Makes a lab: `strake lab up`.
//!
//! 1. The directory and `lab.json`, so that `down` knows what to remove.
//! 2. Namespaces, bridge and cables.
//! 3. The commands that a user types on real machines: `cluster create` on the first node, `node
//!    add`, `node join` on the others, `nsd create`, `fs create`, `fs mount` on each.
//!
//! If a step fails, or a signal asks for the end, everything that was made is removed.

use super::plan::{DISKS, FILE, LabFile, Names, check_length};
use super::tool::strake_in;
use super::{FS, Lab, down, lock, network, real, refuse_without_root};
use crate::commands::cluster_fs::mount_here;
use crate::commands::node::NodeTarget;
use crate::data_dir::DataDir;
use crate::node::{FsWanted, LeaderRequest};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_proto::limits::BLOCK_SIZE_DEFAULT;
use strake_proto::{Error, ErrorKind, Result, Roles};

/// For a node to be made and to serve.
pub(super) const START_MAX: Duration = Duration::from_secs(120);

/// Whether a node has the file system mounted.
pub(crate) struct Mounting {
    /// The node's name.
    pub(crate) node: String,
    /// Where it is mounted, or why it is not.
    pub(crate) outcome: std::result::Result<String, String>,
}

/// Makes a lab in the directory `dir`, which is new or empty. Returns how each node's mount went.
/// `force` accepts a code that the loss of one node breaks.
///
/// # Errors
/// `Invalid` for a directory that is not empty; those of the commands of which a lab is made. What
/// was made is removed.
pub(crate) fn up(dir: &Path, mut file: LabFile, force: bool) -> Result<Vec<Mounting>> {
    refuse_without_root()?;
    let root = real(dir)?;
    check_length(&root)?;
    file.made_directory = !root.exists();
    file.made_netns = !network::is_place_mounted();
    std::fs::create_dir_all(&root).map_err(|error| Error::from(error).context(root.display()))?;
    // Now that it is there its real path can be told, also if a part of it is a link.
    let root = real(&root)?;
    let _alone = lock(&root)?;
    refuse_used(&root)?;
    let text = file.render()?;
    DataDir::at(&root)?.write_durably(&root.join(FILE), text.as_bytes(), 0o644)?;
    let lab = Lab { names: Names::of(&root), root, file };
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end))?;
    }
    make(&lab, force, &asked_to_end).map_err(|error| match down::remove(&lab) {
        Ok(()) => error,
        Err(left) => {
            let root = lab.root.display();
            let detail = format!(
                "{error}. What was made could not be removed ({left}): `strake lab down --dir \
                 {root}` tries again"
            );
            Error::new(error.kind(), detail)
        }
    })
}

/// Refuses a directory that holds a lab or anything else.
fn refuse_used(root: &Path) -> Result<()> {
    let shown = root.display();
    let mut entries = std::fs::read_dir(root)?;
    let detail = if root.join(FILE).exists() {
        format!(
            "a lab is at {shown} already: `strake lab status --dir {shown}`, or `strake lab down \
             --dir {shown}`"
        )
    } else if let Some(entry) = entries.next() {
        let name = entry?.file_name();
        format!("{shown} is not empty (it has {}): name a new directory", name.display())
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, detail))
}

fn make(lab: &Lab, force: bool, asked_to_end: &AtomicBool) -> Result<Vec<Mounting>> {
    let go_on = || match asked_to_end.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Error::new(ErrorKind::Interrupted, "interrupted; nothing is left")),
    };
    // Of an earlier lab in a directory of this name that was removed by hand.
    network::remove(&lab.names)?;
    network::make(&lab.names, lab.nodes())?;
    go_on()?;
    start_first(lab)?;
    for (node, token) in invite(lab)? {
        go_on()?;
        let dir = lab.node_root(node).to_string_lossy().into_owned();
        let address = Names::address(node);
        let words = ["node", "join", &token, "--dir", &dir, "--address", &address];
        strake_in(&lab.names.namespace(node), &words, START_MAX)?;
    }
    go_on()?;
    make_file_system(lab, force)?;
    let mut mounted = Vec::new();
    for node in lab.nodes() {
        go_on()?;
        mounted.push(mount(lab, node)?);
    }
    match mounted.iter().any(|mount| mount.outcome.is_ok()) {
        true => Ok(mounted),
        false => {
            let why = mounted.into_iter().find_map(|mount| mount.outcome.err());
            let detail = format!("no node mounts the file system: {}", why.unwrap_or_default());
            Err(Error::new(ErrorKind::Busy, detail))
        }
    }
}

fn start_first(lab: &Lab) -> Result<()> {
    let dir = lab.node_root(1).to_string_lossy().into_owned();
    let (node, address) = (Names::node(1), Names::address(1));
    let words = ["cluster", "create", FS, "--node", &node, "--dir", &dir, "--address", &address];
    strake_in(&lab.names.namespace(1), &words, START_MAX).map(drop)
}

/// A join token for each node but the first.
fn invite(lab: &Lab) -> Result<Vec<(u16, String)>> {
    let mut tokens = Vec::new();
    for node in lab.nodes().skip(1) {
        let roles: Roles = lab.file.roles(node);
        let request = LeaderRequest::AddNodes { names: vec![Names::node(node)], roles };
        let made: Vec<(String, String)> = target(lab, 1).ask_leader(request)?;
        tokens.extend(made.into_iter().map(|(_, token)| (node, token)));
    }
    Ok(tokens)
}

fn make_file_system(lab: &Lab, force: bool) -> Result<()> {
    if lab.file.servers_per_nsd > 1 {
        std::fs::create_dir_all(lab.root.join(DISKS))?;
    }
    let nsds = crate::cluster::stanza::parse(&lab.file.stanzas(&lab.root))?;
    let request = LeaderRequest::CreateNsds { nsds, force: false };
    target(lab, 1).ask_leader::<serde_json::Value>(request)?;
    let wanted = FsWanted {
        name: FS.to_owned(),
        code: lab.file.code,
        block_size: u32::try_from(BLOCK_SIZE_DEFAULT.0).unwrap_or(u32::MAX),
        // Each node has a mount point of its own: see `mount`.
        mount: lab.root.join("mnt"),
        nsds: Vec::new(),
        force,
    };
    target(lab, 1).ask_leader::<serde_json::Value>(LeaderRequest::CreateFs(wanted)).map(drop)
}

/// A node of the lab, for requests to it.
pub(super) fn target(lab: &Lab, node: u16) -> NodeTarget {
    NodeTarget { dir: Some(lab.node_root(node)), json: false }
}

/// Mounts the file system on a node.
///
/// # Errors
/// Those of `strake fs mount`.
pub(super) fn mount(lab: &Lab, node: u16) -> Result<Mounting> {
    let at = lab.mount_point(node);
    let outcome = match mount_here(&target(lab, node), FS, &lab.file.settings, Some(&at), "") {
        Ok(_) => Ok(at.display().to_string()),
        Err(error) if error.kind() == ErrorKind::Busy => Err(error.to_string()),
        Err(error) => return Err(error.context(Names::node(node))),
    };
    Ok(Mounting { node: Names::node(node), outcome })
}
