//! A lab's network: a namespace for each node, and one with a bridge. A virtual cable joins each
//! node (`eth0` there) to the bridge (`nodeI` there).
//!
//! A node is *cut off* by taking its cable down at the bridge's end, which is what pulling it out
//! does: the node keeps its address, and nothing arrives. *Slow* and *lossy* concern what the node
//! sends. *Slow* needs the kernel's netem queue on the node's `eth0`. *Lossy* is a rule of nftables
//! at the bridge's end of the cable. There the sender's kernel takes a packet as sent: it learns of
//! the loss as from a real cable, by an acknowledgement that does not come.
//!
//! Two nodes are cut off *from each other* by a rule at the bridge: all other nodes reach both.
//!
//! The bridge is not in the machine's own namespace, so firewalls and network managers of the
//! machine have no part in it.

use super::plan::Names;
use super::tool::{iproute, nft_in};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// Where iproute2 keeps namespaces that have names.
const NAMESPACES: &str = "/run/netns";
const BRIDGE: &str = "br0";
/// A node's end of its cable.
const CARD: &str = "eth0";
/// The family of nftables whose rules see what arrives from a cable.
const FAMILY: &str = "netdev";
/// The family of nftables whose rules see what the bridge passes on.
const BRIDGE_FAMILY: &str = "bridge";
/// How the tables begin that cut two nodes off from each other.
const APART: &str = "apart_";
/// A share of packets is counted in such parts.
const PARTS: u32 = 1_000_000;

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

/// Cuts two nodes off from each other.
///
/// # Errors
/// `NotFound` if `nft` is not installed. Otherwise what `nft` says.
pub(super) fn part(names: &Names, one: u16, other: u16) -> Result<()> {
    let (one, other) = (one.min(other), one.max(other));
    let table = format!("table {BRIDGE_FAMILY} {APART}{one}_{other}");
    let hook = "type filter hook forward priority 0; policy accept;";
    let (one, other) = (Names::node(one), Names::node(other));
    let drops = |from: &str, to: &str| format!("iifname \"{from}\" oifname \"{to}\" drop");
    let (there, back) = (drops(&one, &other), drops(&other, &one));
    let rules = format!("{table} {{\n chain part {{\n {hook}\n {there}\n {back}\n }}\n}}\n");
    // It is made anew, so that no rule is there twice.
    let rules = format!("{table}\ndelete {table}\n{rules}");
    nft_in(&names.bridge(), &[&rules]).map(drop)
}

/// Joins a node to those from which it is cut off.
///
/// # Errors
/// Those of `nft`.
pub(super) fn unite(names: &Names, node: u16) -> Result<()> {
    let listed = match nft_in(&names.bridge(), &["list", "tables", BRIDGE_FAMILY]) {
        // Without the program no two nodes were cut off from each other.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for other in partners(&listed, node) {
        let table = format!("{APART}{}_{}", node.min(other), node.max(other));
        nft_in(&names.bridge(), &["delete", "table", BRIDGE_FAMILY, &table])?;
    }
    Ok(())
}

/// The nodes from which a node is cut off alone. None where `nft` is missing.
pub(super) fn apart_from(names: &Names, node: u16) -> Vec<u16> {
    let listed = nft_in(&names.bridge(), &["list", "tables", BRIDGE_FAMILY]);
    partners(&listed.unwrap_or_default(), node)
}

/// The nodes from which `nft list tables` says that one is cut off.
fn partners(listed: &str, node: u16) -> Vec<u16> {
    let names =
        listed.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix(APART));
    let pairs = names.filter_map(|pair| {
        let (one, other) = pair.split_once('_')?;
        Some((one.parse().ok()?, other.parse().ok()?))
    });
    pairs
        .filter_map(|(one, other): (u16, u16)| match node {
            _ if one == node => Some(other),
            _ if other == node => Some(one),
            _ => None,
        })
        .collect()
}

/// Delays what a node sends from now on.
///
/// # Errors
/// `NotSupported` if the kernel has no netem. Otherwise those of iproute2.
pub(super) fn delay(names: &Names, node: u16, delay: Duration) -> Result<()> {
    let namespace = names.namespace(node);
    let card = ["dev", CARD, "root"];
    if delay.is_zero() {
        // There is nothing to remove from a cable on which there was nothing.
        if !state(names, node)?.delay.is_zero() {
            iproute("tc", &[&["-n", &namespace, "qdisc", "del"], &card[..]].concat())?;
        }
        return Ok(());
    }
    let delay = format!("{}us", delay.as_micros());
    let netem = ["netem", "delay", &delay];
    let words = [&["-n", &namespace, "qdisc", "replace"], &card[..], &netem].concat();
    iproute("tc", &words).map(drop).map_err(|error| {
        if !is_netem_missing(&error.to_string()) {
            return error;
        }
        let detail = "this kernel has no netem (CONFIG_NET_SCH_NETEM, module sch_netem), so a \
                      node's network can be cut or made lossy, and not be made slow";
        Error::new(ErrorKind::NotSupported, detail)
    })
}

/// Loses a part of what a node sends from now on.
///
/// # Errors
/// `NotFound` if `nft` is not installed. Otherwise what `nft` says.
pub(super) fn lose(names: &Names, node: u16, percent: f64) -> Result<()> {
    let (bridge, cable) = (names.bridge(), Names::node(node));
    let table = table(node);
    if percent <= 0.0 {
        // A host without nftables can heal a cable on which there was nothing.
        if loss(names, node) > 0.0 {
            nft_in(&bridge, &["delete", "table", FAMILY, &table])?;
        }
        return Ok(());
    }
    let parts = (percent / 100.0 * f64::from(PARTS)).round().max(1.0);
    // What was there before goes in the same step, and only what is there can go.
    let table = format!("table {FAMILY} {table}");
    let hook = format!("type filter hook ingress device \"{cable}\" priority 0; policy accept;");
    let rule = format!("numgen random mod {PARTS} < {parts} drop");
    let rules =
        format!("{table}\ndelete {table}\n{table} {{\n chain lose {{\n {hook}\n {rule}\n }}\n}}\n");
    nft_in(&bridge, &[&rules]).map(drop)
}

/// The table with the rule that loses what a node sends.
fn table(node: u16) -> String {
    format!("lose_{}", Names::node(node))
}

/// How much of what a node sends is lost, in percent. Where `nft` or its part of the kernel is
/// missing, and where there is no such table, nothing is lost.
fn loss(names: &Names, node: u16) -> f64 {
    let listed = nft_in(&names.bridge(), &["-j", "list", "table", FAMILY, &table(node)]);
    listed.and_then(|text| Ok(loss_percent(&json(&text)?))).ok().flatten().unwrap_or(0.0)
}

/// The loss that `nft -j list table` shows.
fn loss_percent(listed: &Value) -> Option<f64> {
    let items = listed["nftables"].as_array().into_iter().flatten();
    let mut parts = items.filter_map(|item| item["rule"]["expr"].as_array()).flatten();
    parts.find_map(|part| {
        let matched = &part["match"];
        let of = matched["left"]["numgen"]["mod"].as_f64()?;
        Some(matched["right"].as_f64()? * 100.0 / of)
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
    let (is_cut, delay) = (!is_up(&json(&link)?)?, delay_of(&json(&queues)?));
    Ok(Cable { is_cut, delay, loss_percent: loss(names, node) })
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

/// The delay that `tc -j qdisc show` shows.
fn delay_of(queues: &Value) -> Duration {
    let mut queues = queues.as_array().into_iter().flatten();
    let netem = queues.find(|queue| queue["kind"] == "netem");
    let seconds = netem.and_then(|netem| netem["options"]["delay"]["delay"].as_f64());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
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
    fn a_delay_is_read_as_iproute2_prints_it() {
        let text = r#"[{"kind":"netem","handle":"8001:","root":true,"refcnt":2,"options":
            {"limit":1000,"delay":{"delay":0.02,"jitter":0,"correlation":0},"ecn":false,"gap":0}}]"#;
        assert_eq!(delay_of(&json(text).expect("JSON")), Duration::from_millis(20));
        let plain = r#"[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]"#;
        assert_eq!(delay_of(&json(plain).expect("JSON")), Duration::ZERO);
    }

    #[test]
    fn a_loss_is_read_as_nftables_prints_it() {
        let rule = |right: &str| {
            let text = r#"{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
                {"table": {"family": "netdev", "name": "lose_node2", "handle": 1}},
                {"chain": {"family": "netdev", "table": "lose_node2", "name": "lose"}},
                {"rule": {"family": "netdev", "table": "lose_node2", "chain": "lose", "handle": 2,
                    "expr": [{"match": {"op": "<", "left": {"numgen": {"mode": "random",
                        "mod": 1000000, "offset": 0}}, "right": RIGHT}}, {"drop": null}]}}]}"#;
            json(&text.replace("RIGHT", right)).expect("JSON")
        };
        let told = loss_percent(&rule("25000")).expect("told");
        assert!((told - 2.5).abs() < 1e-9, "{told}");
        let other = json(r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}]}"#).expect("JSON");
        assert_eq!(loss_percent(&other), None);
    }

    #[test]
    fn nodes_that_are_apart_are_read_as_nftables_lists_them() {
        let listed = "table bridge apart_1_3\ntable bridge apart_2_11\ntable bridge other\n";
        assert_eq!(
            [1, 3, 11, 4].map(|node| partners(listed, node)),
            [vec![3], vec![1], vec![2], vec![]]
        );
    }

    #[test]
    fn a_kernel_without_netem_is_known_by_what_tc_says() {
        assert!(is_netem_missing("tc qdisc: Error: Specified qdisc kind is unknown."));
        assert!(is_netem_missing("RTNETLINK answers: No such file or directory"));
        assert!(!is_netem_missing("Cannot find device \"eth0\""));
    }
}
