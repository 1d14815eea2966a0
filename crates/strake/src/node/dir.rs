//! The directory of a node.
//!
//! ```text
//! DIR/node.toml      NodeFile: who this node is
//! DIR/records        the cluster's records as this node knew them last
//! DIR/log-N          at a node of the quorum: its journal of the records' log (`quorum.rs`)
//! DIR/keys/          this node's key and certificate, and at issuers the authority's (0600)
//! DIR/admin.sock     where the server process answers commands (mode 0600)
//! DIR/daemon.lock    locked while the server process runs
//! DIR/node.log       its log
//! DIR/nsd/NAME/      directory NSDs that were named by one word
//! DIR/fs/NAME/       a file system of which this node has disks: a data directory without mount
//! DIR/mount/NAME/    a file system that this node mounts: a data directory without disks
//! ```

use super::quorum;
use crate::cluster::{Cluster, NodeNumber, NodeRecord, NsdRecord, file};
use crate::data_dir::DataDir;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use strake_env::RealClock;
use strake_env::net::SocketAddr;
use strake_net::{ClusterAuthority, Detours, Endpoint, NodeCredentials};
use strake_proto::{Error, ErrorKind, NodeName, Result, Role, Roles};

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFile {
    /// The version of the form of `node.toml`, which is 1.
    pub(crate) version: u32,
    /// The cluster's name.
    pub(crate) cluster_name: String,
    /// The cluster's identity, in hexadecimal.
    pub(crate) cluster: String,
    /// The node's name.
    pub(crate) node: String,
    /// The node's number.
    pub(crate) id: NodeNumber,
    /// Where its server process listens.
    pub(crate) address: SocketAddr,
}

/// The directory of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeDir {
    /// What it has in common with the data directory of a file system: lock and socket.
    base: DataDir,
}

impl NodeDir {
    /// The directory at `path`, made absolute. It need not exist.
    ///
    /// # Errors
    /// The host's errors, if the current directory is gone.
    pub(crate) fn at(path: &Path) -> Result<NodeDir> {
        Ok(NodeDir { base: DataDir::at(path)? })
    }

    pub(crate) fn root(&self) -> &Path {
        self.base.root()
    }

    /// Lock and socket, which have the names that they have in a data directory.
    pub(crate) fn base(&self) -> &DataDir {
        &self.base
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.root().join("node.log")
    }

    fn file_path(&self) -> PathBuf {
        self.root().join("node.toml")
    }

    fn records_path(&self) -> PathBuf {
        self.root().join("records")
    }

    /// True if a node was made here.
    pub(crate) fn is_node(&self) -> bool {
        self.file_path().exists()
    }

    /// The place of a file system's disks on this node.
    pub(crate) fn fs_dir(&self, fs: &str) -> Result<DataDir> {
        DataDir::at(&self.root().join("fs").join(fs))
    }

    /// The place of a file system's mount on this node.
    pub(crate) fn mount_dir(&self, fs: &str) -> Result<DataDir> {
        DataDir::at(&self.root().join("mount").join(fs))
    }

    /// The directory or device of an NSD of this node.
    pub(crate) fn device(&self, nsd: &NsdRecord) -> PathBuf {
        self.root().join("nsd").join(&nsd.device)
    }

    /// Who the node is.
    ///
    /// # Errors
    /// `Invalid` if this is no node; the message says what to do. `Corrupt` if it is damaged.
    pub(crate) fn read(&self) -> Result<NodeFile> {
        let path = self.file_path();
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} is no node (no {}): name the node's directory with --dir or STRAKE_NODE, \
                     or make one with `strake cluster create` or `strake node join`",
                    self.root().display(),
                    path.display()
                ),
            ),
            _ => Error::from(error).context(path.display()),
        })?;
        toml::from_str(&text)
            .map_err(|error| Error::new(ErrorKind::Corrupt, format!("{}: {error}", path.display())))
    }

    /// The cluster's records as this node has them.
    ///
    /// # Errors
    /// `Corrupt` if they are missing or damaged.
    pub(crate) fn records(&self) -> Result<Cluster> {
        self.records_and_log().map(|(cluster, _)| cluster)
    }

    /// As [`NodeDir::records`]; says whether a log belongs to them. Earlier versions had none.
    ///
    /// # Errors
    /// As [`NodeDir::records`].
    pub(crate) fn records_and_log(&self) -> Result<(Cluster, bool)> {
        let path = self.records_path();
        file::load(&path)?.ok_or_else(|| {
            let detail = format!("{} is missing, so the cluster is not known", path.display());
            Error::new(ErrorKind::Corrupt, detail)
        })
    }

    /// Writes the records durably.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn store_records(&self, cluster: &Cluster) -> Result<()> {
        self.base.write_durably(&self.records_path(), &file::encode(cluster)?, 0o600)
    }

    /// The journal of the records' log, of that generation.
    pub(crate) fn journal_path(&self, generation: u32) -> PathBuf {
        self.root().join(format!("log-{generation}"))
    }

    /// The folder of keys and certificates.
    pub(crate) fn keys_path(&self) -> PathBuf {
        self.root().join("keys")
    }

    /// True if this node has the key of the cluster's authority.
    pub(crate) fn has_authority(&self) -> bool {
        ClusterAuthority::load(&self.keys_path(), RealClock::shared()).is_ok()
    }

    /// This node's certificate and key.
    ///
    /// # Errors
    /// As [`NodeCredentials::load`].
    pub(crate) fn credentials(&self) -> Result<Arc<NodeCredentials>> {
        NodeCredentials::load(&self.keys_path(), RealClock::shared()).map(Arc::new)
    }

    /// The node's credentials for a mount of it: other nodes pass the mount's connections on to a
    /// node that it does not reach.
    ///
    /// # Errors
    /// As [`NodeDir::credentials`].
    pub(crate) fn mount_credentials(&self) -> Result<Arc<NodeCredentials>> {
        let dir = self.clone();
        let nodes = move || dir.records().map_or_else(|_| Vec::new(), |cluster| passing(&cluster));
        let detours = Detours::new(RealClock::shared(), nodes);
        let own = NodeCredentials::load(&self.keys_path(), RealClock::shared())?;
        Ok(Arc::new(own.with_detours(detours)))
    }

    /// Makes the node. `node.toml` comes last, so a directory that has it has the rest.
    ///
    /// # Errors
    /// `Invalid` if the directory holds anything; the host's.
    pub(crate) fn make(
        &self,
        node: &NodeFile,
        cluster: &Cluster,
        own: &NodeCredentials,
        authority: Option<&ClusterAuthority>,
    ) -> Result<()> {
        self.refuse_used()?;
        let root = self.root();
        std::fs::create_dir_all(root)
            .map_err(|error| Error::from(error).context(root.display()))?;
        std::fs::DirBuilder::new().mode(0o700).create(self.keys_path())?;
        authority.map_or(Ok(()), |authority| authority.store(&self.keys_path()))?;
        own.store(&self.keys_path())?;
        if own.identity().roles.has(Role::Quorum) {
            quorum::make_journal(self, cluster, node.id, authority.is_some())?;
        }
        self.store_records(cluster)?;
        let text = toml::to_string_pretty(node)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.base.write_durably(&self.file_path(), text.as_bytes(), 0o644)
    }

    /// Refuses a directory that is not empty.
    ///
    /// # Errors
    /// `Invalid`; the message names something that is there.
    pub(crate) fn refuse_used(&self) -> Result<()> {
        if self.is_node() {
            let root = self.root().display();
            let detail = format!("{root} is a node already: `strake node start --dir {root}`");
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        crate::create::refuse_used_directory(&self.base)
    }
}

/// The nodes that pass connections on, and where they listen: those whose machines are there to
/// serve.
fn passing(cluster: &Cluster) -> Vec<(NodeName, Endpoint)> {
    let serves = |node: &&NodeRecord| node.roles.any_of(Roles::of(&[Role::Server, Role::Quorum]));
    let place = |node: &NodeRecord| Some((node.certified_name(), Endpoint::Tcp(node.address?)));
    cluster.nodes.iter().filter(serves).filter_map(place).collect()
}
