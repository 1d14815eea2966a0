//! The knowledge that `strake top` has of a file system: one look at it, asked of its daemon.

use super::super::diag::slow;
use super::super::stat::Line;
use crate::admin::{self, Request, Totals};
use crate::data_dir::{DataDir, NodeConfig};
use crate::node::NodeDir;
use crate::show::Show;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use strake_observe::health::Health;
use strake_observe::recent::{Filter, INTERVAL};
use strake_observe::{Activity, LinkActivity, LinkRow, SlowReport, TokensView, WaiterSnapshot};
use strake_proto::{Error, ErrorKind, Result};

/// The daemon must answer each question within this time.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The page `now` tells what was slow in so much time.
const SLOW_SINCE: Duration = Duration::from_secs(60);
/// The paths of so many files are looked for.
const PATHS_MAX: usize = 20;

/// One look.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Look {
    pub(super) show: Show,
    pub(super) health: Health,
    /// The activity in each second since the look before.
    pub(super) rates: Line,
    /// Which disks, files and processes were busy lately.
    pub(super) activity: Activity,
    /// The waits, the longest first.
    pub(super) waits: Vec<WaiterSnapshot>,
    /// The slow requests of the last minute.
    pub(super) slow: SlowReport,
    pub(super) nodes: Vec<Node>,
    /// The leader's figures of files. `None` outside a cluster, and while the leader is silent.
    pub(super) tokens: Option<TokensView>,
    /// The paths of files by inode, as far as they are known.
    pub(super) paths: BTreeMap<u64, String>,
}

/// A machine of the file system.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) name: String,
    /// Its roles in its cluster. Empty outside a cluster.
    pub(super) roles: String,
    /// Its disks of this file system.
    pub(super) disks: Vec<String>,
    pub(super) is_mounted: bool,
    /// Whether this command runs there.
    pub(super) is_own: bool,
    /// The network to it. `None` while this mount has no connection with it.
    pub(super) link: Option<LinkRow>,
    /// The activity there lately.
    pub(super) lately: Option<LinkActivity>,
}

/// Looks at a file system again and again.
pub(super) struct Eyes {
    dir: DataDir,
    /// The time between two looks.
    every: Duration,
    before: Totals,
    /// The paths that processes had files open under, by process and inode.
    paths: BTreeMap<(u32, u64), Option<String>>,
}

impl Eyes {
    /// Takes the sums from which the first look makes rates.
    ///
    /// # Errors
    /// As [`Eyes::look`].
    pub(super) fn open(dir: DataDir, every: Duration) -> Result<Eyes> {
        let before = ask(&dir, &Request::Totals)?;
        Ok(Eyes { dir, every, before, paths: BTreeMap::new() })
    }

    /// Looks.
    ///
    /// # Errors
    /// `Unreachable` if no daemon is there; `TimedOut` if it does not answer; what it reports.
    pub(super) fn look(&mut self) -> Result<Look> {
        let totals: Totals = ask(&self.dir, &Request::Totals)?;
        let rates = Line::between(&self.before, &totals);
        self.before = totals;
        let config = self.dir.read_config()?;
        // Each look sees at least one interval of the recorder.
        let since = self.every + INTERVAL;
        let activity: Activity = ask(&self.dir, &Request::Activity { since })?;
        let slow = Request::ExplainSlow { since: SLOW_SINCE, filter: Filter::default() };
        // Outside a cluster there are none, and a leader that is silent must not end the look.
        let tokens = config.node.as_ref().and_then(|_| ask(&self.dir, &Request::Tokens).ok());
        let show: Show = ask(&self.dir, &Request::Show)?;
        Ok(Look {
            health: ask(&self.dir, &Request::Health)?,
            nodes: self.nodes(&config, &show, &activity)?,
            paths: self.paths(&config, &activity, tokens.as_ref()),
            waits: ask(&self.dir, &Request::Waiters)?,
            slow: ask(&self.dir, &slow)?,
            show,
            rates,
            activity,
            tokens,
        })
    }

    /// The nodes of the file system, as the node's own copy of the records has them.
    fn nodes(&self, config: &NodeConfig, show: &Show, activity: &Activity) -> Result<Vec<Node>> {
        let Some(dir) = &config.node else {
            let (name, disks) = (show.node.clone(), show.nsds.iter().map(|it| it.name.clone()));
            let (disks, is_mounted, is_own) = (disks.collect(), true, true);
            return Ok(vec![Node { name, disks, is_mounted, is_own, ..Node::default() }]);
        };
        let links: Vec<LinkRow> = ask(&self.dir, &Request::Network)?;
        let dir = NodeDir::at(dir)?;
        let (own, cluster) = (dir.read()?.id, dir.records()?);
        let fs = cluster.fs_named(&config.name)?;
        let node = cluster.nodes.iter().map(|node| {
            let disks = cluster.nsds_of(node.id).filter(|nsd| fs.nsds.contains(&nsd.id));
            Node {
                name: node.name.clone(),
                roles: node.roles.to_string(),
                disks: disks.map(|nsd| nsd.name.clone()).collect(),
                is_mounted: fs.mount_on(node.id).is_some(),
                is_own: node.id == own,
                link: links.iter().find(|it| it.node == node.name).cloned(),
                lately: activity.links.iter().find(|it| it.node == node.name).cloned(),
            }
        });
        Ok(node.collect())
    }

    /// Nothing is asked of the file system for paths, because it may be what is slow.
    fn paths(
        &mut self,
        config: &NodeConfig,
        activity: &Activity,
        tokens: Option<&TokensView>,
    ) -> BTreeMap<u64, String> {
        let mut known = std::mem::take(&mut self.paths);
        let mut paths = BTreeMap::new();
        for user in activity.users.iter().take(PATHS_MAX) {
            let key = (user.process, user.inode);
            let open = || slow::open_file(user.process, user.inode, &config.mount);
            let path = known.remove(&key).flatten().or_else(open);
            paths.extend(path.clone().map(|path| (user.inode, path)));
            // Of what is not busy any more, nothing is kept.
            self.paths.insert(key, path);
        }
        let hot = tokens.into_iter().flat_map(|view| &view.hot);
        paths.extend(hot.filter_map(|file| Some((file.inode, file.path.clone()?))));
        paths
    }
}

/// Asks the daemon, which has [`ANSWER_MAX`].
///
/// # Errors
/// As [`Eyes::look`].
pub(super) fn ask<T: serde::de::DeserializeOwned>(dir: &DataDir, request: &Request) -> Result<T> {
    admin::call(dir, request, ANSWER_MAX).and_then(admin::read_value).map_err(|error| {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                let detail =
                    format!("the daemon has not answered within {} s", ANSWER_MAX.as_secs());
                Error::new(ErrorKind::TimedOut, detail)
            }
            _ => error,
        }
    })
}
