//! Judges whether a network is ready for a parallel file system, and says what to try if it is not.
//! All of it is pure.
//!
//! The gates are those of a published readiness check for erasure-coded storage clusters. The
//! latency of an idle network may be at most 1 ms on average and 2 ms at worst, with a deviation of
//! at most 0.33 ms. Each host must reach at least 2,000 MB/s (10^6). Hosts must be alike within 20
//! % ((max − min) ÷ max). The advice follows the Ethernet case studies of the storage
//! best-practices document.

use serde::{Deserialize, Serialize};

use super::facts::NetFacts;
use super::phase::Test;

/// The longest average round trip that passes the readiness gate.
pub const AVERAGE_MS_MAX: f64 = 1.0;
/// The longest single round trip that passes.
pub const WORST_MS_MAX: f64 = 2.0;
/// The largest standard deviation of round trips that passes.
pub const DEVIATION_MS_MAX: f64 = 0.33;
/// The lowest rate of a host that passes, in MB/s (10^6).
pub const HOST_MB_MIN: f64 = 2_000.0;
/// The largest spread that passes: (fastest − slowest) ÷ fastest host.
pub const SPREAD_MAX: f64 = 0.20;

/// The figures of one host against all others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostResult {
    /// Host.
    pub host: String,
    /// Average round trip, in milliseconds.
    pub average_ms: f64,
    /// Worst round trip, in milliseconds.
    pub worst_ms: f64,
    /// Standard deviation of round trips, in milliseconds.
    pub deviation_ms: f64,
    /// The lower of its rates, in MB/s (10^6).
    pub mb_per_second: f64,
}

/// One line of the verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What was judged.
    pub name: String,
    /// The figure, with its host and unit.
    pub found: String,
    /// The limit that the figure must keep.
    pub wanted: String,
    /// Whether the figure keeps the limit.
    pub passed: bool,
}

/// The verdict over all hosts; each gate names the worst host.
pub fn judge(hosts: &[HostResult]) -> Vec<Gate> {
    let worst = |figure: fn(&HostResult) -> f64| {
        let found = hosts.iter().max_by(|a, b| figure(a).total_cmp(&figure(b)));
        found.map(|host| (host.host.clone(), figure(host))).unwrap_or_default()
    };
    let mut gates = Vec::new();
    type Figure = fn(&HostResult) -> f64;
    let latencies: [(&str, Figure, f64); 3] = [
        ("average latency", |host| host.average_ms, AVERAGE_MS_MAX),
        ("worst latency", |host| host.worst_ms, WORST_MS_MAX),
        ("deviation of latency", |host| host.deviation_ms, DEVIATION_MS_MAX),
    ];
    for (name, figure, limit) in latencies {
        let (host, found) = worst(figure);
        gates.push(Gate {
            name: name.into(),
            found: format!("{found:.2} ms on {host}"),
            wanted: format!("at most {limit:.2} ms"),
            passed: found <= limit,
        });
    }
    let (slowest, negative) = worst(|host| -host.mb_per_second);
    let least = -negative;
    gates.push(Gate {
        name: "rate per host".into(),
        found: format!("{least:.0} MB/sec on {slowest}"),
        wanted: format!("at least {HOST_MB_MIN:.0} MB/sec"),
        passed: least >= HOST_MB_MIN,
    });
    let (_, most) = worst(|host| host.mb_per_second);
    let spread = if most > 0.0 { (most - least) / most } else { 1.0 };
    gates.push(Gate {
        name: "spread of hosts".into(),
        found: format!("{:.0} %", spread * 100.0),
        wanted: format!("at most {:.0} %", SPREAD_MAX * 100.0),
        passed: spread <= SPREAD_MAX,
    });
    gates
}

/// One test of a run, as far as advice needs it.
#[derive(Debug, Clone, Copy)]
pub struct Evidence {
    /// Which test.
    pub test: Test,
    /// Clients.
    pub clients: usize,
    /// Threads of each client.
    pub threads: u32,
    /// Workers of each server.
    pub workers: u32,
    /// Bytes per second.
    pub rate: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// Segments that servers sent twice.
    pub retransmits: u64,
    /// Connections per client and server.
    pub connections: u32,
    /// The busiest side's processors, 0 to 1.
    pub cpu: f64,
}

/// A loss of more than one segment in this many bytes lowers the rate noticeably.
const BYTES_PER_RETRANSMIT: u64 = 100_000_000;

/// Says what to try. `round_trip_ms` is the average on an idle network, if it was measured.
pub fn advise(
    evidence: &[Evidence],
    facts: &[NetFacts],
    gates: &[Gate],
    round_trip_ms: Option<f64>,
) -> Vec<String> {
    let mut advice = Vec::new();
    let of = |test: Test| evidence.iter().find(|line| line.test == test);
    if let Some(nwrite) = of(Test::Nwrite) {
        let requests = nwrite.clients as u32 * nwrite.threads;
        let behind = of(Test::Write).is_some_and(|write| nwrite.rate < 0.8 * write.rate);
        if requests > nwrite.workers && (behind || of(Test::Write).is_none()) {
            advice.push(format!(
                "nwrite is held up by the servers' workers: {requests} requests can be open and \
                 {} are worked on. Use --workers {requests} or more here, and give the file \
                 system's servers as many.",
                nwrite.workers
            ));
        }
    }
    let lossy = |line: &&Evidence| {
        line.retransmits > 10 && line.retransmits > line.bytes / BYTES_PER_RETRANSMIT
    };
    let is_lossy = evidence.iter().find(lossy);
    if let Some(line) = is_lossy {
        advice.push(format!(
            "{} segments were sent twice during {}: packets are dropped on the way. Turn Ethernet \
             flow control on in every adapter and switch port (`ethtool -A DEV rx on tx on`). \
             Where a switch cannot, make TCP windows smaller than the buffers on the path: \
             net.ipv4.tcp_wmem and tcp_rmem with a maximum of 4194304, or --socket here.",
            line.retransmits,
            line.test.name()
        ));
    }
    let failed = gates.iter().any(|gate| !gate.passed);
    for host in facts {
        for bond in &host.bonds {
            if bond.mode.contains("802.3ad") && (failed || is_lossy.is_some()) {
                advice.push(format!(
                    "{} of {} is an 802.3ad bond (mode 4). Under load its ports may flap on some \
                     switches; compare with balance-rr (mode 0), and watch the switch's log.",
                    bond.name, host.host
                ));
            }
        }
    }
    advise_on_windows(evidence, facts, round_trip_ms, &mut advice);
    if let Some(line) = evidence.iter().find(|line| line.cpu > 0.9) {
        advice.push(format!(
            "Processors were {:.0} % busy during {}: the network may be able to carry more. Try \
             fewer threads, larger messages, or jumbo frames (MTU 9000).",
            line.cpu * 100.0,
            line.test.name()
        ));
    }
    advice
}

/// Advises on socket buffers: a connection carries at most one window per round trip.
fn advise_on_windows(
    evidence: &[Evidence],
    facts: &[NetFacts],
    round_trip_ms: Option<f64>,
    advice: &mut Vec<String>,
) {
    let Some(seconds) = round_trip_ms.map(|ms| ms / 1e3) else { return };
    let fastest = evidence.iter().max_by(|a, b| a.rate.total_cmp(&b.rate));
    let Some(line) = fastest else { return };
    let per_connection = line.rate / f64::from(line.connections.max(1));
    let needed = per_connection * seconds;
    for host in facts {
        let held = host.receive_bytes_max.min(host.send_bytes_max);
        if held > 0 && (held as f64) < 2.0 * needed {
            advice.push(format!(
                "{}: socket buffers of at most {held} bytes limit a connection at this latency. \
                 Raise the maxima of net.ipv4.tcp_rmem and tcp_wmem to {:.0} or more, or use more \
                 connections (--parallel).",
                host.host,
                (2.0 * needed).ceil()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Bond;
    use super::*;

    fn host(name: &str, average_ms: f64, worst_ms: f64, mb_per_second: f64) -> HostResult {
        HostResult { host: name.into(), average_ms, worst_ms, deviation_ms: 0.1, mb_per_second }
    }

    #[test]
    fn gates_name_the_worst_host() {
        let gates = judge(&[host("a", 0.1, 0.9, 2_500.0), host("b", 0.2, 2.1, 1_900.0)]);
        let passed: Vec<bool> = gates.iter().map(|gate| gate.passed).collect();
        assert_eq!(passed, [true, false, true, false, false]);
        assert_eq!(gates[1].found, "2.10 ms on b");
        assert_eq!(gates[3].found, "1900 MB/sec on b");
        assert_eq!(gates[4].found, "24 %");
        let gates = judge(&[host("a", 0.1, 0.9, 2_500.0), host("b", 1.0, 2.0, 2_000.0)]);
        assert!(gates.iter().all(|gate| gate.passed), "{gates:?}");
        assert!(!judge(&[]).iter().all(|gate| gate.passed));
    }

    fn evidence(test: Test) -> Evidence {
        Evidence {
            test,
            clients: 40,
            threads: 4,
            workers: 10,
            rate: 1e9,
            bytes: 10_000_000_000,
            retransmits: 0,
            connections: 4,
            cpu: 0.1,
        }
    }

    #[test]
    fn too_few_workers_are_recognised() {
        // Case study 1: 40 clients against servers of 10 workers.
        let slow = Evidence { rate: 4e8, ..evidence(Test::Nwrite) };
        let advice = advise(&[evidence(Test::Write), slow], &[], &[], None);
        assert!(advice[0].contains("--workers 160"), "{advice:?}");
        let enough = Evidence { workers: 200, ..slow };
        assert!(advise(&[evidence(Test::Write), enough], &[], &[], None).is_empty());
    }

    #[test]
    fn losses_and_bonds_and_windows_are_recognised() {
        let lossy = Evidence { retransmits: 5_000, ..evidence(Test::Read) };
        let facts = NetFacts {
            host: "n1".into(),
            receive_bytes_max: 100_000,
            send_bytes_max: 4 << 20,
            bonds: vec![Bond {
                name: "bond0".into(),
                mode: "IEEE 802.3ad Dynamic link aggregation".into(),
            }],
        };
        let advice = advise(&[lossy], std::slice::from_ref(&facts), &[], Some(1.0));
        assert!(advice[0].contains("flow control"));
        assert!(advice[1].contains("balance-rr"));
        assert!(advice[2].contains("tcp_rmem"));
        assert_eq!(advice.len(), 3);
        assert!(advise(&[evidence(Test::Read)], &[facts], &[], None).is_empty());
    }
}
