//! A lab's network: a namespace for each node, and one with a bridge. A virtual cable joins each
//! node (`eth0` there) to the bridge (`nodeI` there).
//!
//! A node is *cut off* by taking its cable down at the bridge's end, which is what pulling it out
//! does: the node keeps its address, and nothing arrives. *Slow* and *lossy* need the kernel's
//! netem queue on the node's `eth0`, so they concern what the node sends.
//!
//! The bridge is not in the machine's own namespace, so firewalls and network managers of the
//! machine have no part in it.

use super::plan::Names;
use super::tool::iproute;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// Where iproute2 keeps namespaces that have names.
const NAMESPACES: &str = "/run/netns";
const BRIDGE: &str = "br0";
/// A node's end of its cable.
const CARD: &str = "eth0";

/// What is wrong with a node's cable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cable {
    /// True if nothing arrives.
    pub(super) is_cut: bool,
    /// How much later arrives what the node sends.
    pub(super) delay: Duration,
    /// How much of what the node sends is lost.
    pub(super) loss_percent: f64,
}

/// The file that stands for a namespace.
pub(super) fn path(namespace: &str) -> PathBuf {
    Path::new(NAMESPACES).join(namespace)
}

/// The namespaces of a lab that are there.
pub(super) fn namespaces(names: &Names) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else { return Vec::new() };
    let found = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = found.filter(|name| name.starts_with(names.prefix())).collect();
    found.sort();
    found
}

/// True if something is mounted where namespaces are kept.
pub(super) fn is_place_mounted() -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(1) == Some(NAMESPACES))
}

/// Makes the namespaces, the bridge and the cables.
///
/// # Errors
/// Those of iproute2. What was made stays: see [`remove`].
pub(super) fn make(names: &Names, nodes: impl Iterator<Item = u16>) -> Result<()> {
    let bridge = names.bridge();
    iproute("ip", &["netns", "add", &bridge])?;
    iproute("ip", &["-n", &bridge, "link", "add", BRIDGE, "type", "bridge"])?;
    iproute("ip", &["-n", &bridge, "link", "set", BRIDGE, "up"])?;
    for node in nodes {
        let (namespace, cable) = (names.namespace(node), Names::node(node));
        let address = format!("{}/24", Names::address(node));
        let inside = ["-n", &namespace];
        let outside = ["-n", &bridge];
        iproute("ip", &["netns", "add", &namespace])?;
        let pair = ["type", "veth", "peer", "name", CARD, "netns", &namespace];
        iproute("ip", &[&outside[..], &["link", "add", &cable], &pair].concat())?;
        let plugged = ["link", "set", &cable, "master", BRIDGE, "up"];
        iproute("ip", &[&outside[..], &plugged].concat())?;
        // A node also talks to itself, by its own address.
        iproute("ip", &[&inside[..], &["link", "set", "lo", "up"]].concat())?;
        iproute("ip", &[&inside[..], &["address", "add", &address, "dev", CARD]].concat())?;
        iproute("ip", &[&inside[..], &["link", "set", CARD, "up"]].concat())?;
    }
    Ok(())
}

/// Removes all namespaces of a lab. The bridge and the cables go with them.
///
/// # Errors
/// Those of iproute2.
pub(super) fn remove(names: &Names) -> Result<()> {
    for namespace in namespaces(names) {
        iproute("ip", &["netns", "delete", &namespace])?;
    }
    Ok(())
}

/// Undoes the mount that iproute2 makes for its first namespace, unless there are others.
pub(super) fn remove_place() {
    let is_empty = std::fs::read_dir(NAMESPACES).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty && is_place_mounted() {
        // It is refused if a namespace was made in this moment, and then it is needed.
        let _ = rustix::mount::unmount(NAMESPACES, rustix::mount::UnmountFlags::empty());
    }
}

/// Cuts a node off, or joins it again.
///
/// # Errors
/// Those of iproute2.
pub(super) fn cut(names: &Names, node: u16, is_cut: bool) -> Result<()> {
    let state = if is_cut { "down" } else { "up" };
    iproute("ip", &["-n", &names.bridge(), "link", "set", &Names::node(node), state]).map(drop)
}

/// Delays and loses what a node sends from now on.
///
/// # Errors
/// `NotSupported` if the kernel has no netem. Otherwise those of iproute2.
pub(super) fn disturb(names: &Names, node: u16, delay: Duration, loss_percent: f64) -> Result<()> {
    let namespace = names.namespace(node);
    let card = ["dev", CARD, "root"];
    if delay.is_zero() && loss_percent == 0.0 {
        // There is nothing to remove from a cable on which there was nothing.
        if state(names, node)?.is_disturbed() {
            iproute("tc", &[&["-n", &namespace, "qdisc", "del"], &card[..]].concat())?;
        }
        return Ok(());
    }
    let (delay, loss) = (format!("{}us", delay.as_micros()), format!("{loss_percent}%"));
    let netem = ["netem", "delay", &delay, "loss", &loss];
    let words = [&["-n", &namespace, "qdisc", "replace"], &card[..], &netem].concat();
    iproute("tc", &words).map(drop).map_err(|error| {
        if !is_netem_missing(&error.to_string()) {
            return error;
        }
        let detail = "this kernel has no netem (CONFIG_NET_SCH_NETEM, module sch_netem), so a \
                      node's network can be cut, and not be made slow or lossy";
        Error::new(ErrorKind::NotSupported, detail)
    })
}

/// True if `tc` says that the kernel does not know the kind of queue.
fn is_netem_missing(said: &str) -> bool {
    said.contains("qdisc kind is unknown") || said.contains("No such file or directory")
}

/// What is wrong with a node's cable.
///
/// # Errors
/// Those of iproute2, among them that a namespace or the cable is missing.
pub(super) fn state(names: &Names, node: u16) -> Result<Cable> {
    let cable = Names::node(node);
    let link = iproute("ip", &["-n", &names.bridge(), "-j", "link", "show", "dev", &cable])?;
    let queues =
        iproute("tc", &["-n", &names.namespace(node), "-j", "qdisc", "show", "dev", CARD])?;
    Ok(Cable { is_cut: !is_up(&json(&link)?)?, ..disturbance(&json(&queues)?) })
}

impl Cable {
    fn is_disturbed(self) -> bool {
        !self.delay.is_zero() || self.loss_percent > 0.0
    }
}

fn json(text: &str) -> Result<Value> {
    // Older releases print nothing at all for an empty list.
    let text = if text.trim().is_empty() { "[]" } else { text };
    serde_json::from_str(text).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("iproute2 prints no JSON: {error}"))
    })
}

/// True if the link that `ip -j link show dev NAME` describes is up.
fn is_up(links: &Value) -> Result<bool> {
    let flags = links[0]["flags"].as_array().ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "iproute2 does not say whether a cable is up")
    })?;
    Ok(flags.iter().any(|flag| flag == "UP"))
}

/// What `tc -j qdisc show` says about delay and loss.
fn disturbance(queues: &Value) -> Cable {
    let mut queues = queues.as_array().into_iter().flatten();
    let Some(netem) = queues.find(|queue| queue["kind"] == "netem") else {
        return Cable::default();
    };
    let options = &netem["options"];
    let seconds = options["delay"]["delay"].as_f64().unwrap_or(0.0);
    let share = options["loss-random"]["loss"].as_f64().unwrap_or(0.0);
    Cable {
        is_cut: false,
        delay: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        loss_percent: share * 100.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_up_if_its_flags_say_so() {
        let link = |flags: &str| {
            json(&format!(r#"[{{"ifindex":3,"ifname":"node1","flags":[{flags}],"mtu":1500}}]"#))
        };
        let up = link(r#""BROADCAST","MULTICAST","UP","LOWER_UP""#).expect("JSON");
        let down = link(r#""BROADCAST","MULTICAST""#).expect("JSON");
        assert!(is_up(&up).expect("told"));
        assert!(!is_up(&down).expect("told"));
        assert!(is_up(&json("").expect("empty")).is_err(), "no link is not the same as down");
    }

    #[test]
    fn delay_and_loss_are_read_as_iproute2_prints_them() {
        let text = r#"[{"kind":"netem","handle":"8001:","root":true,"refcnt":2,"options":
            {"limit":1000,"delay":{"delay":0.02,"jitter":0,"correlation":0},
             "loss-random":{"loss":0.05,"correlation":0},"ecn":false,"gap":0}}]"#;
        let cable = disturbance(&json(text).expect("JSON"));
        assert_eq!(cable.delay, Duration::from_millis(20));
        assert!((cable.loss_percent - 5.0).abs() < 1e-9 && cable.is_disturbed());
        let plain = r#"[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]"#;
        assert_eq!(disturbance(&json(plain).expect("JSON")), Cable::default());
        assert!(!Cable::default().is_disturbed());
    }

    #[test]
    fn a_kernel_without_netem_is_known_by_what_tc_says() {
        assert!(is_netem_missing("tc qdisc: Error: Specified qdisc kind is unknown."));
        assert!(is_netem_missing("RTNETLINK answers: No such file or directory"));
        assert!(!is_netem_missing("Cannot find device \"eth0\""));
    }
}
