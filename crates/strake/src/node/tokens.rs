//! Answers who holds the files that mounts want, at the node that leads.

use super::server::Node;
use crate::cluster::{Cluster, FsRecord};
use std::sync::Arc;
use strake_env::links::SILENT_MIN;
use strake_manager::HotTokens;
use strake_observe::{FileHolder, FileWait, HotFile, TokensView};
use strake_proto::{ClientId, ErrorKind, FsId, Result};
use strake_token::Mode;
use strake_token::held::Held;

/// At most that many files are listed.
const FILES_MAX: usize = 20;
/// Counts are of so many seconds.
const SECONDS: f64 = 60.0;

impl Node {
    /// The hot files of a file system, and what waits for files.
    ///
    /// # Errors
    /// `Unreachable` if this node does not serve the file system.
    pub(super) fn tokens(self: &Arc<Node>, fs: FsId) -> Result<TokensView> {
        let found = self.crew(fs)?.hot_tokens(FILES_MAX);
        let cluster = self.cluster();
        let record = cluster.fs(fs).ok_or(ErrorKind::NotFound)?;
        let peers = self.observe.links.view().into_iter();
        let silent = peers
            .filter(|it| it.connections > 0 && u128::from(it.silence_ns) >= SILENT_MIN.as_nanos());
        Ok(TokensView {
            leader: self.file.node.clone(),
            silent: silent.map(|peer| (peer.name, peer.silence_ns)).collect(),
            ..view(found, &|client| node_of(&cluster, record, client))
        })
    }
}

/// The node of a client.
fn node_of(cluster: &Cluster, fs: &FsRecord, client: ClientId) -> String {
    let mount = fs.mounts.iter().find(|mount| mount.client() == client);
    mount.map_or_else(|| "the manager".to_owned(), |mount| cluster.node_name(mount.node))
}

fn view(found: HotTokens, node_of: &dyn Fn(ClientId) -> String) -> TokensView {
    let hot = found.files_taken.into_iter().map(|(hot, held)| HotFile {
        inode: hot.ino.0,
        path: None,
        taken_per_second: hot.count() as f64 / SECONDS,
        taken_from: hot.taken.iter().map(|(client, count)| (node_of(*client), *count)).collect(),
        holders: held
            .iter()
            .map(|(client, held)| FileHolder {
                node: node_of(*client),
                mode: mode(held).to_owned(),
            })
            .collect(),
    });
    let waits = found.waits.into_iter().map(|wait| FileWait {
        node: node_of(wait.client),
        inodes: wait.files.iter().map(|ino| ino.0).collect(),
        holders: wait.holders.iter().map(|client| node_of(*client)).collect(),
    });
    TokensView {
        files: found.files as u64,
        hot: hot.collect(),
        waits: waits.collect(),
        ..TokensView::default()
    }
}

fn mode(held: &Held) -> &'static str {
    match held.inode {
        Some(Mode::Shared) => "shared",
        Some(Mode::Exclusive) => "exclusive",
        Some(Mode::Writing) => "writing",
        None => "open",
    }
}
