//! The result line of a network test, its histogram, and the verdict. MB is 10^6 here.

use serde::{Deserialize, Serialize};

use super::gate::{Gate, HostResult};
use super::phase::Test;
use crate::figures::figure;
use crate::metric::ratio;
use strake_proto::histogram::Histogram;
use strake_report::Table;

/// The figures of a result line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Clients.
    pub clients: usize,
    /// Servers.
    pub servers: usize,
    /// Which test.
    pub test: Test,
    /// Bytes of all clients.
    pub bytes: u64,
    /// Messages of all clients.
    pub messages: u64,
    /// Time of the longest thread.
    pub seconds: f64,
    /// Clients' processors, 0 to 1.
    pub client_cpu: f64,
    /// Servers' processors, 0 to 1.
    pub server_cpu: f64,
    /// Time asked for.
    pub test_seconds: f64,
    /// Bytes per message.
    pub buffer_bytes: u32,
    /// Size of socket buffers, if set.
    pub socket_bytes: Option<u32>,
    /// Threads per client.
    pub threads: u32,
    /// Connections per thread and server.
    pub parallel: u32,
    /// Whether contents were compared.
    pub verify: bool,
    /// Segments that servers sent twice.
    pub retransmits: u64,
}

/// The default number of threads of a client. The result line mentions any other number.
pub const THREADS_DEFAULT: u32 = 4;

impl Line {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        ratio(self.bytes as f64, self.seconds)
    }

    /// The line.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}-{} {} {} MB/sec ({} msg/sec), cli {:.0}% srv {:.0}%, time {}, buff {}",
            self.clients,
            self.servers,
            self.test.name(),
            three_digits(self.rate() / 1e6),
            three_digits(ratio(self.messages as f64, self.seconds)),
            self.client_cpu * 100.0,
            self.server_cpu * 100.0,
            self.test_seconds,
            self.buffer_bytes,
        );
        if let Some(bytes) = self.socket_bytes {
            text.push_str(&format!(", sock {bytes}"));
        }
        if self.threads != THREADS_DEFAULT {
            text.push_str(&format!(", th {}", self.threads));
        }
        if self.parallel > 1 {
            text.push_str(&format!(", parallel {}", self.parallel));
        }
        if self.verify {
            text.push_str(", verify");
        }
        text.push('\n');
        text
    }
}

/// Keeps three significant digits, as the lines of the storage document do: 3934 becomes 3930.
fn three_digits(value: f64) -> String {
    if value < 100.0 {
        return figure(value);
    }
    let unit = 10f64.powf(value.log10().floor() - 2.0);
    format!("{:.0}", (value / unit).round() * unit)
}

/// Prints the latency of messages: average, median, deviation, and a count for each millisecond.
pub fn histogram(latency: &Histogram) -> String {
    let mut text = format!(
        "message latency: average {:.3} msec, median {:.3} msec, std deviation {:.3} msec\n\
         msec      count\n",
        latency.mean_ns() / 1e6,
        latency.quantile_ns(0.5) as f64 / 1e6,
        latency.deviation_ns() / 1e6
    );
    for (ms, count) in latency.by_millisecond() {
        text.push_str(&format!("{ms:>4} {count:>10}\n"));
    }
    text
}

/// The readiness verdict.
pub fn verdict(hosts: &[HostResult], gates: &[Gate]) -> String {
    let heads = ["host", "average ms", "worst ms", "deviation ms", "MB/sec"];
    let mut table = Table::new(&heads, &[0]);
    for host in hosts {
        table.row(vec![
            host.host.clone(),
            format!("{:.3}", host.average_ms),
            format!("{:.3}", host.worst_ms),
            format!("{:.3}", host.deviation_ms),
            format!("{:.0}", host.mb_per_second),
        ]);
    }
    let mut text = format!("\n{}\n", table.render());
    let mut table = Table::new(&["readiness", "found", "wanted", ""], &[0, 1, 2, 3]);
    for gate in gates {
        let passed = if gate.passed { "pass" } else { "FAIL" };
        table.row(vec![gate.name.clone(), gate.found.clone(), gate.wanted.clone(), passed.into()]);
    }
    text.push_str(&table.render());
    let failed = gates.iter().filter(|gate| !gate.passed).count();
    text.push_str(&match failed {
        0 => "The network is ready.\n".to_string(),
        _ => format!("The network is not ready: {failed} of {} gates failed.\n", gates.len()),
    });
    text
}

/// Advice, one paragraph each.
pub fn advice(advice: &[String]) -> String {
    advice.iter().map(|line| format!("\nAdvice: {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The four results of the storage document's nsdperf page (4 clients, 2 servers, 30 s).
    #[test]
    fn result_lines_of_the_storage_document() {
        let line = |test, messages_per_second: f64| Line {
            clients: 4,
            servers: 2,
            test,
            bytes: (messages_per_second * 30.0 * 4_194_304.0) as u64,
            messages: (messages_per_second * 30.0) as u64,
            seconds: 30.0,
            client_cpu: 0.01,
            server_cpu: 0.01,
            test_seconds: 30.0,
            buffer_bytes: 4_194_304,
            socket_bytes: None,
            threads: 4,
            parallel: 1,
            verify: false,
            retransmits: 0,
        };
        let tail = "cli 1% srv 1%, time 30, buff 4194304\n";
        let write = line(Test::Write, 937.5).text();
        assert_eq!(write, format!("4-2 write 3930 MB/sec (938 msg/sec), {tail}"));
        let read = line(Test::Read, 934.2).text();
        assert_eq!(read, format!("4-2 read 3920 MB/sec (934 msg/sec), {tail}"));
        let mixed = line(Test::Rw, 1706.8).text();
        assert_eq!(mixed, format!("4-2 rw 7160 MB/sec (1710 msg/sec), {tail}"));
        let more = Line {
            socket_bytes: Some(65_536),
            threads: 8,
            parallel: 2,
            verify: true,
            ..line(Test::Nwrite, 937.5)
        };
        let end = "buff 4194304, sock 65536, th 8, parallel 2, verify\n";
        assert!(more.text().ends_with(end), "{}", more.text());
    }

    #[test]
    fn histogram_rows() {
        let mut latency = Histogram::default();
        for ms in [1.2, 1.3, 1.4, 4.0, 30.0] {
            latency.add((ms * 1e6) as u64);
        }
        let text = histogram(&latency);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[0].starts_with("message latency: average 7.580 msec, median 1.4"));
        assert_eq!(
            rows[1..],
            ["msec      count", "   1          3", "   4          1", "  30          1"]
        );
    }

    #[test]
    fn verdict_in_words() {
        let host = HostResult {
            host: "n1".into(),
            average_ms: 0.05,
            worst_ms: 3.0,
            deviation_ms: 0.01,
            mb_per_second: 2_500.0,
        };
        let hosts = [host];
        let text = verdict(&hosts, &super::super::gate::judge(&hosts));
        assert!(text.contains("worst latency         3.00 ms on n1      at most 2.00 ms"));
        assert!(text.ends_with("The network is not ready: 1 of 5 gates failed.\n"));
    }
}
