//! Which programs the nodes run, and `strake cluster upgrade`: the cluster's feature level rises to
//! what all of them understand (R32, decision 0080).
//!
//! Nodes are given a newer program one after the other, and the cluster works all the time. New
//! programs do nothing that older ones do not understand, until the level says that there is none:
//!
//! 1. Every node and every mount is asked what its program understands. One that understands less
//!    than others, or does not answer, is named, and nothing is changed.
//! 2. The log of the records gets the level. The leader asks the members once more for that.
//! 3. The records name it. So every node knows it, and a program that does not understand it ends,
//!    or does not start. A mount of such a program is not granted.
//! 4. The logs of metadata follow the records (`metadata.rs`).

use super::messages::{MountProgram, NodePrograms, NodeRequest};
use super::server::Node;
use crate::admin::{self, Request, Status};
use crate::cluster::{Change, NodeNumber};
use std::sync::Arc;
use std::time::Duration;
use strake_env::fan_out::FanOut;
use strake_env::sync::Mutex;
use strake_proto::{Error, ErrorKind, FeatureLevel, Result, feature};
use tracing::info;

/// A mount must answer within this time, which is less than what other nodes wait for this one.
const MOUNT_ANSWER_MAX: Duration = Duration::from_secs(2);
/// The number of nodes that are asked at the same time.
const AT_ONCE: usize = 16;

impl Node {
    /// Which programs this node and its mounts run.
    pub(super) fn own_programs(&self) -> NodePrograms {
        let ask = |fs: &str| {
            let dir = self.dir.mount_dir(fs).ok()?;
            let status = admin::call(&dir, &Request::Status, MOUNT_ANSWER_MAX).ok()?;
            serde_json::from_value::<Status>(status).ok().map(|status| status.understands)
        };
        let names = self.cluster().file_systems.into_iter().map(|fs| fs.name);
        let mounted = names.filter(|fs| self.is_mounted(fs).unwrap_or(true));
        NodePrograms {
            node: self.file.node.clone(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            understands: Some(feature::understood()),
            mounts: mounted.map(|fs| MountProgram { understands: ask(&fs), fs }).collect(),
        }
    }

    /// Which programs all nodes run that have joined, in the order of the records.
    ///
    /// # Errors
    /// The host's, if no thread can be made.
    pub(super) fn programs(self: &Arc<Node>) -> Result<Vec<NodePrograms>> {
        let cluster = self.cluster();
        let joined = cluster.nodes.iter().filter(|node| node.address.is_some());
        let nodes: Vec<(NodeNumber, String)> =
            joined.map(|node| (node.id, node.name.clone())).collect();
        let answers = Mutex::new(vec![None; nodes.len()]);
        let _wait = self.observe.waiters.enter("programs of all nodes", cluster.name);
        let threads = FanOut::new("ask programs", nodes.len().clamp(1, AT_ONCE))?;
        threads.run(nodes.len(), &|at| {
            let (id, node) = &nodes[at];
            let answer = self.ask(*id, &NodeRequest::Programs).unwrap_or_else(|error| {
                // It answers, and does not know the request.
                let is_older = error.kind() == ErrorKind::Invalid;
                NodePrograms {
                    node: node.clone(),
                    version: None,
                    understands: is_older.then_some(FeatureLevel::FIRST),
                    mounts: Vec::new(),
                }
            });
            answers.lock()[at] = Some(answer);
        });
        Ok(answers.into_inner().into_iter().flatten().collect())
    }

    /// Raises the cluster's level to what all programs understand, and returns it.
    ///
    /// # Errors
    /// `Invalid` if some are older than others or do not answer, and nothing is changed; as
    /// [`Node::change`].
    pub(super) fn upgrade(self: &Arc<Node>) -> Result<FeatureLevel> {
        let _alone = self.changing.lock();
        let before = self.newest_records()?.level;
        let Some(level) = next_level(before, &self.programs()?)? else { return Ok(before) };
        let cluster = self.change(&Change::Level { level })?;
        info!(target: "node", "cluster {} has feature level {level} now", cluster.name);
        Ok(cluster.level)
    }

    /// Refuses a mount's program that does not understand the cluster's level.
    ///
    /// # Errors
    /// `NotSupported`.
    pub(super) fn check_program(&self, understands: FeatureLevel) -> Result<()> {
        let (level, name) = {
            let cluster = self.cluster.lock();
            (cluster.level, cluster.name.clone())
        };
        if understands >= level {
            return Ok(());
        }
        let detail = format!(
            "cluster {name} has feature level {level}, and the program of this mount understands \
             {understands}: install the version that the other nodes run"
        );
        Err(Error::new(ErrorKind::NotSupported, detail))
    }
}

/// The level to which a cluster of level `now` can be raised; `None` if it has the newest that its
/// programs understand.
///
/// # Errors
/// `Invalid` if some of them understand less, or do not answer. The message names them.
pub(crate) fn next_level(
    now: FeatureLevel,
    programs: &[NodePrograms],
) -> Result<Option<FeatureLevel>> {
    let newest = programs.iter().filter_map(|program| program.understands).max();
    let Some(level) = newest.filter(|newest| *newest > now) else { return Ok(None) };
    let mut obstacles = Vec::new();
    for NodePrograms { node, version, understands, mounts } in programs {
        match (understands, version) {
            (None, _) => obstacles.push(format!("{node} does not answer")),
            (Some(known), Some(version)) if *known < level => obstacles.push(format!(
                "{node} runs an older program (strake {version}, which understands {known})"
            )),
            (Some(known), None) if *known < level => {
                obstacles.push(format!("{node} runs an older program"));
            }
            _ => {}
        }
        for MountProgram { fs, understands } in mounts {
            match understands {
                None => obstacles.push(format!("the mount of {fs} on {node} does not answer")),
                Some(known) if *known < level => obstacles.push(format!(
                    "the mount of {fs} on {node} runs an older program (unmount and mount it)"
                )),
                Some(_) => {}
            }
        }
    }
    if obstacles.is_empty() {
        return Ok(Some(level));
    }
    let detail = format!(
        "the cluster stays at feature level {now}, because not all understand {level}: {}",
        obstacles.join("; ")
    );
    Err(Error::new(ErrorKind::Invalid, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, understands: Option<u32>, mounts: &[Option<u32>]) -> NodePrograms {
        let mount = |understands: &Option<u32>| MountProgram {
            fs: "proj".to_owned(),
            understands: understands.map(FeatureLevel),
        };
        NodePrograms {
            node: name.to_owned(),
            version: understands.map(|_| "9.9".to_owned()),
            understands: understands.map(FeatureLevel),
            mounts: mounts.iter().map(mount).collect(),
        }
    }

    #[test]
    fn the_level_rises_when_every_node_and_mount_understands_it() {
        let all = [node("n1", Some(2), &[Some(2)]), node("n2", Some(2), &[])];
        assert_eq!(next_level(FeatureLevel(1), &all), Ok(Some(FeatureLevel(2))));
        assert_eq!(next_level(FeatureLevel(2), &all), Ok(None));
        let old = [node("n1", Some(1), &[]), node("n2", None, &[])];
        assert_eq!(next_level(FeatureLevel(1), &old), Ok(None), "nobody knows a newer one");
    }

    #[test]
    fn whoever_stands_in_the_way_is_named() {
        let mut unknown = node("n4", Some(1), &[]);
        unknown.version = None;
        let all = [
            node("n1", Some(2), &[Some(1), None]),
            node("n2", Some(1), &[]),
            node("n3", None, &[]),
            unknown,
        ];
        let error = next_level(FeatureLevel(1), &all).expect_err("some are older");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            "the cluster stays at feature level 1, because not all understand 2: the mount of proj \
             on n1 runs an older program (unmount and mount it); the mount of proj on n1 does not \
             answer; n2 runs an older program (strake 9.9, which understands 1); n3 does not \
             answer; n4 runs an older program"
        );
    }
}
