//! What is done to one node of a lab: `strake lab node I ACTION`.

use super::plan::Names;
use super::processes::{Kind, Pause, Place};
use super::tool::strake_in;
use super::up::{START_MAX, mount, target};
use super::{FS, Lab, lock, network, refuse_without_root};
use crate::node::{NodeRequest, Request};
use clap::Subcommand;
use std::path::Path;
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// A longer delay would look like a cut to everything that waits.
const DELAY_MS_MAX: u64 = 10_000;

/// What is done to a node.
#[derive(Subcommand, Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// End all its processes at once, as when its power fails (`kill -9`). Its mount is dead.
    Kill,
    /// Start its server process, and mount the file system.
    Start,
    /// Unmount, and end its server process in order.
    Stop,
    /// Stop all its processes from running. They do not notice.
    Pause,
    /// Let paused processes run again.
    Resume,
    /// Pull its network cable out. It reaches no other node, and none reaches it.
    Partition {
        /// Cut it off from this node only. The program nft must be there.
        #[arg(long, value_name = "J")]
        from: Option<u16>,
    },
    /// Put its network cable back in, and end slowness and loss.
    Heal,
    /// Delay what it sends. 0 ends that. The kernel must have netem.
    Slow {
        /// Milliseconds.
        #[arg(value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=DELAY_MS_MAX))]
        ms: u64,
    },
    /// Lose a part of what it sends. 0 ends that. The kernel must have netem.
    Lose {
        /// Percent of all packets.
        #[arg(value_name = "PERCENT", value_parser = parse_percent)]
        percent: f64,
    },
}

fn parse_percent(text: &str) -> std::result::Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    let number = number.filter(|percent| (0.0..=100.0).contains(percent));
    number.ok_or_else(|| "a number from 0 to 100".to_owned())
}

/// Does `action` to the node `node` of the lab in `dir`. Returns a sentence about it.
///
/// # Errors
/// `Invalid` if there is no such lab or node; what the node or the kernel says.
pub(crate) fn act(dir: &Path, node: u16, action: Action) -> Result<String> {
    refuse_without_root()?;
    let lab = Lab::open(dir)?;
    lab.check_node(node)?;
    let _alone = lock(&lab.root)?;
    let name = Names::node(node);
    let place = lab.processes(node);
    match action {
        Action::Kill => {
            let count = place.kill()?;
            Ok(format!("{name} is dead: {} killed", processes(count)))
        }
        Action::Start => start(&lab, node, &place),
        Action::Stop => stop(&lab, node, &place),
        Action::Pause => pause(&name, &place),
        Action::Resume => {
            let count = place.resume()?;
            Ok(format!("{name} runs: {}", processes(count)))
        }
        Action::Partition { from: Some(other) } => {
            lab.check_node(other)?;
            if other == node {
                let detail = format!("{name} cannot be cut off from itself: name another node");
                return Err(Error::new(ErrorKind::Invalid, detail));
            }
            network::part(&lab.names, node, other)?;
            Ok(format!("{name} and {} do not reach each other", Names::node(other)))
        }
        Action::Partition { from: None } => {
            network::cut(&lab.names, node, true)?;
            Ok(format!("{name} is cut off"))
        }
        Action::Heal => {
            network::cut(&lab.names, node, false)?;
            network::unite(&lab.names, node)?;
            network::delay(&lab.names, node, Duration::ZERO)?;
            network::lose(&lab.names, node, 0.0)?;
            Ok(format!("{name} is joined to the others"))
        }
        Action::Slow { ms } => {
            network::delay(&lab.names, node, Duration::from_millis(ms))?;
            Ok(format!("what {name} sends takes {ms} ms longer"))
        }
        Action::Lose { percent } => {
            network::lose(&lab.names, node, percent)?;
            Ok(format!("{percent} % of what {name} sends is lost"))
        }
    }
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

fn pause(name: &str, place: &Place) -> Result<String> {
    let (how, count) = place.pause()?;
    let how = match how {
        Pause::Frozen => "frozen",
        Pause::Stopped => "stopped by SIGSTOP, because there is no cgroup freezer",
    };
    Ok(format!("{name} is paused: {} {how}", processes(count)))
}

fn start(lab: &Lab, node: u16, place: &Place) -> Result<String> {
    let name = Names::node(node);
    refuse_paused(&name, place)?;
    let dir = lab.node_root(node).to_string_lossy().into_owned();
    strake_in(&lab.names.namespace(node), &["node", "start", "--dir", &dir], START_MAX)?;
    let mounted = mount(lab, node).map_err(|error| {
        let detail = format!("{name} is up, but it does not mount the file system: {error}");
        Error::new(error.kind(), detail)
    })?;
    Ok(match mounted.outcome {
        Ok(at) => format!("{name} is up, and mounted at {at}"),
        Err(why) => format!("{name} is up, and not mounted: {why}"),
    })
}

/// The mount goes first, because it flushes through the server processes.
fn stop(lab: &Lab, node: u16, place: &Place) -> Result<String> {
    let name = Names::node(node);
    refuse_paused(&name, place)?;
    if !place.find().iter().any(|process| process.kind == Kind::Server) {
        return Ok(format!("{name} is down"));
    }
    let unmount = NodeRequest::Unmount { fs: FS.to_owned(), force: false };
    let sentence: String = target(lab, node).ask(&Request::Node(unmount))?;
    let dir = lab.node_root(node).to_string_lossy().into_owned();
    // The leader refuses to stop under mounts of others. Whoever stops it here wants to see that.
    let words = ["node", "stop", "--force", "--dir", &dir];
    strake_in(&lab.names.namespace(node), &words, START_MAX)?;
    Ok(format!("{name} is down; {sentence}"))
}

fn refuse_paused(name: &str, place: &Place) -> Result<()> {
    if place.find().iter().any(|process| place.is_paused(process)) {
        let detail = format!("{name} is paused, so it does nothing: resume it first");
        return Err(Error::new(ErrorKind::Busy, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_all_packets_is_between_none_and_all() {
        assert_eq!(parse_percent("2.5"), Ok(2.5));
        assert_eq!(parse_percent("100%"), Ok(100.0));
        for bad in ["", "-1", "101", "NaN", "few"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }
}
