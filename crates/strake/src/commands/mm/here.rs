//! The file systems and the node of this machine that a command may mean.

use super::refused;
use crate::cluster::Cluster;
use crate::commands::cluster_fs::node_meant;
use crate::commands::node::NodeTarget;
use crate::data_dir::DataDir;
use crate::registry;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use strake_proto::{Error, ErrorKind, Result};

/// A file system that this machine has mounted, or had.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) mount: PathBuf,
    pub(super) data: PathBuf,
    /// The directory of its node, if it is a cluster's.
    pub(super) node: Option<PathBuf>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Here {
    /// The node's directory, if one is up or named.
    pub(super) node: Option<PathBuf>,
    pub(super) mounts: Vec<Known>,
    /// The cluster's records, once they were asked for.
    pub(super) records: OnceCell<Cluster>,
    /// This node's name, once it was asked for.
    pub(super) own: OnceCell<String>,
}

/// The name of a file system in an argument: `/dev/NAME` is the same as `NAME`.
pub(super) fn bare(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

impl Here {
    /// Looks around on this machine. What cannot be found out is missing, and a command that needs
    /// it says so.
    pub(super) fn look() -> Here {
        let node = node_meant(&None, None).ok().flatten();
        let dirs = match registry::named(None) {
            Ok(Some(dir)) => vec![dir],
            _ => registry::list(),
        };
        let known = |dir: &DataDir| {
            let config = dir.read_config().ok()?;
            let (name, mount, node) = (config.name, config.mount, config.node);
            Some(Known { name, mount, data: dir.root().to_owned(), node })
        };
        let mut mounts: Vec<Known> = dirs.iter().filter_map(known).collect();
        // Of several nodes on one machine, the one that was named is meant.
        if node.is_some() {
            mounts.retain(|it| it.node.is_none() || it.node == node);
        }
        Here { node, mounts, ..Here::default() }
    }

    /// For questions to the cluster.
    pub(super) fn target(&self) -> NodeTarget {
        NodeTarget { dir: self.node.clone(), json: false }
    }

    /// The cluster's records.
    ///
    /// # Errors
    /// `Invalid` if no node of a cluster is up here; `Unreachable` if no majority answers.
    pub(super) fn cluster(&self) -> Result<&Cluster> {
        if self.records.get().is_none() {
            let _ = self.records.set(self.target().cluster()?);
        }
        self.records.get().ok_or_else(|| Error::from(ErrorKind::Internal))
    }

    /// The name of this machine's node.
    ///
    /// # Errors
    /// Those of its directory.
    pub(super) fn own_node(&self) -> Result<&str> {
        if self.own.get().is_none() {
            let _ = self.own.set(self.target().file()?.node);
        }
        self.own.get().map(String::as_str).ok_or_else(|| Error::from(ErrorKind::Internal))
    }

    /// The file system that an argument names: by its name, `/dev/NAME`, or its mount point.
    ///
    /// # Errors
    /// `Invalid` if none has that name, or more than one.
    pub(super) fn mounted(&self, device: &str) -> Result<&Known> {
        let (name, path) = (bare(device), Path::new(device));
        let fits = |it: &&Known| it.name == name || it.mount == path;
        let mut found = self.mounts.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(refused(format!(
                "several file systems here are called {name}: STRAKE_DATA names a data directory, \
                 and STRAKE_NODE a node's directory"
            ))),
            (None, _) => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = self.mounts.iter().map(|it| it.name.as_str()).collect();
        let listed = match names.is_empty() {
            true => "none is".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        refused(format!(
            "no file system {name} is mounted on this machine ({listed}): `strake fs list` shows \
             those of the cluster, and `strake fs mount {name}` mounts one"
        ))
    }

    /// The name of a cluster's file system that an argument names.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub(super) fn of_cluster(&self, device: &str) -> Result<String> {
        let (name, path) = (bare(device), Path::new(device));
        let known = self.cluster()?.file_systems.iter().find(|fs| fs.mount == path);
        match known {
            Some(fs) => Ok(fs.name.clone()),
            None => Ok(self.cluster()?.fs_named(name)?.name.clone()),
        }
    }
}
