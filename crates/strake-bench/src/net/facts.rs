//! Facts about a host's network: losses, windows, bonds. The parsers take text.

use std::fs;

use serde::{Deserialize, Serialize};

/// TCP counters since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetCounters {
    retransmitted: u64,
}

impl NetCounters {
    /// Segments sent twice since `earlier`.
    pub fn retransmits_since(self, earlier: NetCounters) -> u64 {
        self.retransmitted.saturating_sub(earlier.retransmitted)
    }
}

/// The counters now.
pub fn counters() -> NetCounters {
    parse_snmp(&fs::read_to_string("/proc/net/snmp").unwrap_or_default())
}

/// `/proc/net/snmp` has pairs of lines: names, then figures.
fn parse_snmp(text: &str) -> NetCounters {
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let figures = lines.next().unwrap_or_default().split_whitespace();
    let found = names.zip(figures).find(|(name, _)| *name == "RetransSegs");
    NetCounters { retransmitted: found.and_then(|(_, figure)| figure.parse().ok()).unwrap_or(0) }
}

/// A bond of interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bond {
    /// Its name.
    pub name: String,
    /// Its mode, as the driver prints it.
    pub mode: String,
}

/// The facts on which advice is based.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NetFacts {
    /// The host.
    pub host: String,
    /// The greatest receive window, in bytes (`net.ipv4.tcp_rmem`).
    pub receive_bytes_max: u64,
    /// The greatest send buffer, in bytes (`net.ipv4.tcp_wmem`).
    pub send_bytes_max: u64,
    /// Bonds.
    pub bonds: Vec<Bond>,
}

/// The facts of this host.
pub fn gather() -> NetFacts {
    let maximum = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        text.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let mut bonds = Vec::new();
    for entry in fs::read_dir("/proc/net/bonding").into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        bonds.push(Bond {
            name: entry.file_name().to_string_lossy().into_owned(),
            mode: parse_bond(&text),
        });
    }
    NetFacts {
        host: crate::host::name(),
        receive_bytes_max: maximum("tcp_rmem"),
        send_bytes_max: maximum("tcp_wmem"),
        bonds,
    }
}

fn parse_bond(text: &str) -> String {
    let mode = text.lines().find_map(|line| line.strip_prefix("Bonding Mode: "));
    mode.unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmissions_are_found_by_name() {
        let text = "Ip: A\nIp: 1\nTcp: RtoMin InSegs RetransSegs InErrs\nTcp: 200 9 17 0\n";
        let counters = parse_snmp(text);
        assert_eq!(counters.retransmits_since(NetCounters::default()), 17);
        assert_eq!(parse_snmp(""), NetCounters::default());
        assert_eq!(parse_snmp("Tcp: RetransSegs\n"), NetCounters::default());
    }

    #[test]
    fn bonds_name_their_mode() {
        let text =
            "Ethernet Channel Bonding Driver: v6\n\nBonding Mode: load balancing (round-robin)\n";
        assert_eq!(parse_bond(text), "load balancing (round-robin)");
        assert_eq!(parse_bond(""), "unknown");
    }
}
