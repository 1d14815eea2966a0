//! The answers of the mounts of all nodes: `strake diag … --all`, `strake health --all`.
//!
//! The node that a command asks has each node ask its own mount, all side by side. A node that does
//! not answer holds up nobody: its place has the reason. Only questions go this way, because any
//! node of the cluster may ask them.

use super::messages::{NodeRequest, OfNode};
use super::server::Node;
use crate::admin::{self, Reply, Request};
use crate::cluster::NodeNumber;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use strake_env::fan_out::FanOut;
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, Result};

/// A mount must answer within this time. It is less than what other nodes wait for this one.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// The number of nodes that are asked at the same time.
const AT_ONCE: usize = 16;

impl Node {
    /// Asks the daemon of this node's mount.
    ///
    /// # Errors
    /// `Access` for what is no question; `NotFound` if nothing is mounted; the daemon's.
    pub(super) fn ask_mount(&self, fs: &str, request: &Request) -> Result<Value> {
        if !request.is_question() {
            return Err(Error::new(ErrorKind::Access, "other nodes may only ask questions"));
        }
        if !self.is_mounted(fs)? {
            let detail = format!("{fs} is not mounted on {}", self.file.node);
            return Err(Error::new(ErrorKind::NotFound, detail));
        }
        admin::call(&self.dir.mount_dir(fs)?, request, ANSWER_MAX)
    }

    /// Asks the mounts of all nodes that have the file system mounted, in the order of the records.
    ///
    /// # Errors
    /// `Invalid` if there is no such file system; the host's, if no thread can be made.
    pub(super) fn ask_mounts(self: &Arc<Node>, fs: &str, request: &Request) -> Result<Vec<OfNode>> {
        let cluster = self.cluster();
        let mounts = &cluster.fs_named(fs)?.mounts;
        let nodes = cluster.nodes.iter().filter(|it| mounts.iter().any(|on| on.node == it.id));
        let nodes: Vec<(NodeNumber, String)> = nodes.map(|it| (it.id, it.name.clone())).collect();
        let answers = Mutex::new(vec![None; nodes.len()]);
        let asked = NodeRequest::Mounted { fs: fs.to_owned(), request: Box::new(request.clone()) };
        let _wait = self.observe.waiters.enter("mounts of all nodes", fs.to_owned());
        let threads = FanOut::new("ask mounts", nodes.len().clamp(1, AT_ONCE))?;
        threads.run(nodes.len(), &|at| {
            let answer = Reply::of(self.ask::<Value>(nodes[at].0, &asked));
            answers.lock()[at] = Some(answer);
        });
        let answers = answers.into_inner().into_iter().flatten();
        let names = nodes.into_iter().map(|(_, node)| node);
        Ok(names.zip(answers).map(|(node, answer)| OfNode { node, answer }).collect())
    }
}
