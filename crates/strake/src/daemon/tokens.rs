//! Who holds the files that this mount waits for, and which files nodes take from each other. The
//! leader knows both, and is asked when somebody wants to know.
//!
//! The leader may be what does not answer. So a thread of its own asks it ([`super::known`]), and
//! nobody waits longer than [`WAIT_MAX`].

use super::known::{Known, Told};
use super::serve::Daemon;
use super::threads::of_node_named;
use crate::node::{self, NodeDir, NodeRequest};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_observe::{TokensView, WaiterSnapshot};
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{Error, ErrorKind, FileType, Ino, Result};

/// How long the leader may take.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How long the names of hot files are sought, and in how many names at most.
const SEEK_MAX: Duration = Duration::from_millis(1500);
const NAMES_MAX: usize = 100_000;
/// Names that are asked for at once.
const NAMES_AT_ONCE: u32 = 1000;
/// An older answer of the leader says nothing of the last minute.
const AGE_MAX: Duration = Duration::from_secs(30);
/// The wait for a token has this name.
const TOKEN: &str = "token";

/// The leader's last answer.
pub(super) type KnownTokens = Arc<Known<TokensView>>;

impl Daemon {
    /// Asks the leader, and names the paths of hot files.
    ///
    /// # Errors
    /// `NotSupported` outside a cluster; `TimedOut` if the leader does not answer; its own.
    pub(super) fn tokens_view(&self) -> Result<TokensView> {
        match self.ask_tokens()? {
            Told::Now(view) => Ok(view),
            Told::Before(..) | Told::Never => {
                let detail = "the node that leads does not answer: `strake node state` says how the \
                              nodes are";
                Err(Error::new(ErrorKind::TimedOut, detail))
            }
        }
    }

    /// What the leader says, or has said in the last moments. `None` if nothing is known.
    pub(super) fn recent_tokens(&self) -> Option<TokensView> {
        match self.ask_tokens().ok()? {
            Told::Now(view) => Some(view),
            Told::Before(view, age) => (age <= AGE_MAX).then_some(view),
            Told::Never => None,
        }
    }

    fn ask_tokens(&self) -> Result<Told<TokensView>> {
        let Some(cluster) = self.life().backend.cluster() else {
            let detail =
                "one mount alone holds everything: only the mounts of a cluster have tokens";
            return Err(Error::new(ErrorKind::NotSupported, detail));
        };
        let (meta, mount) = (Arc::clone(&self.life().meta), self.config().mount);
        let question = self.tokens.ask(move || {
            let mut view = cluster.hot_tokens()?;
            let wanted = view.hot.iter().map(|file| Ino(file.inode)).collect();
            let paths = paths(&*meta, wanted, &mount);
            for file in &mut view.hot {
                file.path = paths.get(&Ino(file.inode)).map(|path| path.display().to_string());
            }
            Ok(view)
        });
        question.wait(RealClock.monotonic() + WAIT_MAX, "who holds files")
    }

    /// Everything that waits, here and in the server process of this mount's node. A wait for a
    /// file names the nodes that hold it.
    pub(super) fn waiters(&self) -> Vec<WaiterSnapshot> {
        let mut all = self.observe.waiters.snapshot_with_locks();
        for mut wait in self.ask_own_node::<WaiterSnapshot>(NodeRequest::Waiters) {
            wait.thread = of_node_named(&wait.thread);
            all.push(wait);
        }
        all.sort_by_key(|wait| std::cmp::Reverse(wait.waited));
        if !all.iter().any(|it| it.reason == TOKEN) {
            return all;
        }
        let (asked, own) = (self.ask_tokens(), self.own_node());
        for wait in all.iter_mut().filter(|it| it.reason == TOKEN) {
            match &asked {
                Ok(Told::Now(view)) => name_holders(wait, view, &own),
                _ => wait.detail += "; the node that leads does not say who holds it",
            }
        }
        all
    }

    /// Asks the server process of this mount's node for a list. It is empty outside a cluster, and
    /// if the process does not answer: `strake health` says so.
    pub(super) fn ask_own_node<T: serde::de::DeserializeOwned>(
        &self,
        about: NodeRequest,
    ) -> Vec<T> {
        let dir = self.config().node.and_then(|root| NodeDir::at(&root).ok());
        let _wait = self.observe.waiters.enter("a listing", "of the node's server process");
        let asked = dir.map(|dir| node::ask_own_soon(&dir, &node::Request::Node(about), WAIT_MAX));
        asked.and_then(Result::ok).unwrap_or_default()
    }

    /// The name of this mount's node.
    fn own_node(&self) -> String {
        self.life()
            .backend
            .cluster()
            .map(|cluster| cluster.own_name().to_owned())
            .unwrap_or_default()
    }
}

/// Adds to a wait for files who holds them.
fn name_holders(wait: &mut WaiterSnapshot, view: &TokensView, own: &str) {
    let inodes = wait.detail.trim_start_matches("inode ").split(", ");
    let inodes: Vec<u64> = inodes.filter_map(|text| text.parse().ok()).collect();
    let mut holders: Vec<&str> =
        inodes.iter().flat_map(|inode| view.holders_for(own, *inode)).collect();
    holders.sort_unstable();
    holders.dedup();
    let one = |node: &&str| match view.silence_of(node) {
        Some(nanos) => format!("{node} (silent for {} s)", nanos / 1_000_000_000),
        None => (*node).to_owned(),
    };
    let holders: Vec<String> = holders.iter().map(one).collect();
    if !holders.is_empty() {
        wait.detail += &format!(", held by {}", holders.join(", "));
    }
}

/// The paths of inodes, as far as they are found soon: the tree is walked from its root, nearest
/// names first. What changes meanwhile may be missed.
fn paths(
    meta: &dyn MetaPort,
    mut wanted: Vec<Ino>,
    mount: &std::path::Path,
) -> BTreeMap<Ino, PathBuf> {
    let mut found = BTreeMap::new();
    let mut directories = VecDeque::from([(Ino::ROOT, mount.to_owned())]);
    if let Some(at) = wanted.iter().position(|ino| *ino == Ino::ROOT) {
        found.insert(wanted.swap_remove(at), mount.to_owned());
    }
    let (end, mut left) = (RealClock.monotonic() + SEEK_MAX, NAMES_MAX);
    while let Some((dir, path)) = directories.pop_front() {
        let mut after = 0;
        loop {
            if wanted.is_empty() || left == 0 || RealClock.monotonic() >= end {
                return found;
            }
            let query = MetaQuery::ReadDir { dir, after, limit: NAMES_AT_ONCE, with_inodes: false };
            // A directory that is gone by now has no names.
            let Ok(MetaReply::Entries { entries, end: is_last }) = meta.query(&query) else {
                break;
            };
            for entry in &entries {
                use std::os::unix::ffi::OsStrExt;
                let path = path.join(std::ffi::OsStr::from_bytes(&entry.name));
                if let Some(at) = wanted.iter().position(|ino| *ino == entry.ino) {
                    found.insert(wanted.swap_remove(at), path.clone());
                }
                if entry.file_type == FileType::Directory
                    && entry.name != b"."
                    && entry.name != b".."
                {
                    directories.push_back((entry.ino, path));
                }
            }
            left = left.saturating_sub(entries.len());
            match entries.last() {
                Some(last) if !is_last => after = last.cookie,
                _ => break,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_observe::FileWait;
    use strake_proto::Timestamp;

    #[test]
    fn a_wait_for_files_names_who_holds_them_and_is_silent() {
        let wait = |inodes: &[u64], holders: &[&str]| FileWait {
            node: "node1".into(),
            inodes: inodes.to_vec(),
            holders: holders.iter().map(|node| (*node).to_owned()).collect(),
        };
        let view = TokensView {
            waits: vec![wait(&[12, 13], &["node3", "node2"]), wait(&[14], &[])],
            silent: vec![("node2".into(), 8_200_000_000)],
            ..TokensView::default()
        };
        let named = |detail: &str| {
            let mut wait = WaiterSnapshot {
                thread: "fuse-1".into(),
                reason: TOKEN.into(),
                detail: detail.into(),
                since: Timestamp::default(),
                waited: Duration::ZERO,
                ..WaiterSnapshot::default()
            };
            name_holders(&mut wait, &view, "node1");
            wait.detail
        };
        assert_eq!(named("inode 12, 13"), "inode 12, 13, held by node2 (silent for 8 s), node3");
        assert_eq!(named("inode 14"), "inode 14", "earlier requests come first there");
        assert_eq!(named("inode 15"), "inode 15");
    }
}
