//! Removes a lab: `strake lab down`. Nothing is flushed, because the disks are removed too.
//!
//! The order: processes, mounts, namespaces, entries in the lists of what is up, cgroups, files.
//! `lab.json` goes last, so that a `down` that failed can be tried again. Each step does what is
//! left to do, so that a lab may be half made, half dead or half removed.

use super::plan::{DISKS, FILE, LabFile, NODES_MAX, Names};
use super::processes::Place;
use super::{Lab, lock, network, real, refuse_without_root};
use crate::data_dir::DataDir;
use crate::mounts;
use crate::registry;
use std::path::Path;
use strake_proto::{Error, ErrorKind, Result};

/// Removes the lab in `dir`, and everything of it that is left if its file is gone already. Returns
/// a sentence about it.
///
/// # Errors
/// What cannot be removed, and why.
pub(crate) fn down(dir: &Path) -> Result<String> {
    refuse_without_root()?;
    let root = real(dir)?;
    let shown = root.display().to_string();
    if !root.join(FILE).exists() {
        let names = Names::of(&root);
        // Without such a namespace nothing says that there ever was a lab. Nothing says that the
        // files are the lab's, so they stay in any case.
        if !network::namespaces(&names).is_empty() {
            stop_all(&root, &names, NODES_MAX)?;
        }
        remove_begun(&root)?;
        return Ok(format!("no lab is at {shown}"));
    }
    let _alone = lock(&root)?;
    remove(&Lab::open(&root)?)?;
    Ok(format!("the lab at {shown} is removed"))
}

/// Removes what an `up` leaves that was killed while it wrote the lab's file. The directory goes
/// too if the file says that it is the lab's own.
fn remove_begun(root: &Path) -> Result<()> {
    let begun = root.join(FILE).with_extension("new");
    let Ok(text) = std::fs::read_to_string(&begun) else { return Ok(()) };
    let file = LabFile::parse(&text);
    // A file that has other contents is somebody else's.
    if file.is_err() && !text.is_empty() {
        return Ok(());
    }
    std::fs::remove_file(&begun)?;
    if file.is_ok_and(|file| file.made_directory) {
        let _ = std::fs::remove_dir(root);
    }
    Ok(())
}

/// Removes everything of a lab.
///
/// # Errors
/// What cannot be removed, and why.
pub(super) fn remove(lab: &Lab) -> Result<()> {
    stop_all(&lab.root, &lab.names, lab.file.all_nodes())?;
    if lab.file.made_netns {
        network::remove_place();
    }
    for node in lab.nodes() {
        remove_tree(&lab.node_root(node))?;
    }
    if lab.file.servers_per_nsd > 1 {
        remove_tree(&lab.root.join(DISKS))?;
    }
    // A folder that holds something of the user's stays, and so does the lab's directory then.
    let _ = std::fs::remove_dir(lab.root.join("mnt"));
    for name in [FILE.to_owned(), Path::new(FILE).with_extension("new").display().to_string()] {
        match std::fs::remove_file(lab.root.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    if lab.file.made_directory {
        let _ = std::fs::remove_dir(&lab.root);
    }
    Ok(())
}

/// Ends all processes, mounts and namespaces of the lab in the directory `root`.
fn stop_all(root: &Path, names: &Names, nodes: u16) -> Result<()> {
    let places: Vec<Place> = (1..=nodes)
        .map(|node| Place::of(root.join(Names::node(node)), names.namespace(node)))
        .collect();
    // Once more, because a process that was just killed may have started another on its node.
    for _ in 0..2 {
        places.iter().try_for_each(|place| place.kill().map(drop))?;
    }
    for node in 1..=nodes {
        detach_elsewhere(&root.join(Names::node(node)))?;
        detach_below(&root.join(Names::node(node)))?;
    }
    network::remove(names)?;
    // Processes that are killed do not take themselves off the lists.
    (1..=nodes).for_each(|node| registry::forget_below(&root.join(Names::node(node))));
    places.iter().for_each(Place::forget);
    Ok(())
}

/// Detaches each mount of ours below a node's directory.
fn detach_below(node_root: &Path) -> Result<()> {
    for mount in mounts::strake_mounts().iter().rev().filter(|it| it.starts_with(node_root)) {
        mounts::detach(mount).map_err(|error| error.context(mount.display()))?;
    }
    Ok(())
}

/// Detaches the dead mounts of a node that somebody made at other places (`strake fs mount --at`).
/// Their settings say where.
fn detach_elsewhere(node_root: &Path) -> Result<()> {
    let Ok(mounts) = std::fs::read_dir(node_root.join("mount")) else { return Ok(()) };
    for mount in mounts.filter_map(std::io::Result::ok) {
        // Settings that cannot be read name no place.
        let Ok(config) = DataDir::at(&mount.path())?.read_config() else { continue };
        if mounts::is_dead_strake_mount(&config.mount) {
            mounts::detach(&config.mount).map_err(|error| error.context(config.mount.display()))?;
        }
    }
    Ok(())
}

/// Removes a node's directory, unless something is mounted below it.
fn remove_tree(path: &Path) -> Result<()> {
    if let Some(mount) = mounts::all_mounts().iter().find(|mount| mount.starts_with(path)) {
        let detail = format!("{} is mounted: unmount it first", mount.display());
        return Err(Error::new(ErrorKind::Busy, detail));
    }
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::from(error).context(path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::NSD_SIZE_DEFAULT;

    /// What is in a directory after `remove_begun`; `None` if it is gone.
    fn left(text: &str) -> Option<Vec<String>> {
        let name = format!("strake-lab-begun-{}-{}", std::process::id(), text.len());
        let root = std::env::temp_dir().join(name);
        std::fs::create_dir(&root).expect("it is new");
        std::fs::write(root.join("lab.new"), text).expect("written");
        remove_begun(&root).expect("removed");
        let entries = std::fs::read_dir(&root).ok()?;
        let names = entries.flatten().map(|entry| entry.file_name().display().to_string());
        let names = names.collect();
        std::fs::remove_dir_all(&root).expect("removed");
        Some(names)
    }

    #[test]
    fn an_up_that_was_killed_at_once_leaves_nothing_and_files_of_others_stay() {
        let mut file = LabFile::new(3, 1, NSD_SIZE_DEFAULT, None, None).expect("a lab");
        file.made_directory = true;
        assert_eq!(left(&file.render().expect("text")), None);
        file.made_directory = false;
        assert_eq!(left(&file.render().expect("text")), Some(vec![]));
        assert_eq!(left(""), Some(vec![]));
        assert_eq!(left("a list of names"), Some(vec!["lab.new".to_owned()]));
    }
}
