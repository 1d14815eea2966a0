//! The driver of network tests. It tells servers to serve and clients to call, and it sums up the
//! results.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strake_net::SharedSecret;

use super::facts::NetFacts;
use super::gate::{self, Evidence, Gate, HostResult};
use super::phase::{Phase, ServePlan, Test};
use super::report::{self, Line, THREADS_DEFAULT};
use super::serve::Served;
use crate::crew::{Crew, Crews};
use crate::error::{BenchError, Result};
use crate::outcome::LatencySummary;
use crate::remote::driver::{NetCrew, ServerSession};
use crate::remote::secret;
use crate::report::{Better, Report, value_of};
use crate::scratch;
use crate::size::{self, ByteSize};
use crate::stop::Stop;
use crate::work::Work;
use strake_proto::histogram::Histogram;

/// `bench net` on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct NetArgs {
    /// Agents that call.
    #[arg(long, value_delimiter = ',', value_name = "HOST,HOST", conflicts_with = "hosts")]
    pub clients: Vec<String>,
    /// Agents that are called; a host may be both.
    #[arg(long, value_delimiter = ',', value_name = "HOST,HOST", requires = "clients")]
    pub servers: Vec<String>,
    /// The readiness gate: each of these hosts against all others.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "HOST,HOST",
        required_unless_present = "clients"
    )]
    pub hosts: Vec<String>,
    /// File with the secret that driver and agents share (one line, at least 16 characters).
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Tests to run with --clients and --servers.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read,nwrite,rw")]
    pub tests: Vec<Test>,
    /// How long each test goes on.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = size::parse_seconds)]
    pub time: f64,
    /// Bytes per message, 4K to 16M.
    #[arg(long, value_name = "SIZE", default_value = "4M")]
    pub buffer: ByteSize,
    /// Threads of each client.
    #[arg(long, value_name = "N", default_value_t = THREADS_DEFAULT)]
    pub threads: u32,
    /// Connections of each thread to each server.
    #[arg(long, value_name = "N", default_value = "1")]
    pub parallel: u32,
    /// Messages that each server works on at the same time.
    #[arg(long, value_name = "N", default_value = "32")]
    pub workers: u32,
    /// Size of socket buffers; the system chooses if not given.
    #[arg(long, value_name = "SIZE")]
    pub socket: Option<ByteSize>,
    /// Print how many messages took how long.
    #[arg(long)]
    pub hist: bool,
    /// Compare every byte that arrives.
    #[arg(long)]
    pub verify: bool,
    /// Print the report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// One test, measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The result line's figures.
    pub line: Line,
    /// Latency of messages.
    pub latency: LatencySummary,
    /// All latencies.
    pub histogram: Histogram,
}

impl Measured {
    fn evidence(&self, workers: u32) -> Evidence {
        let line = &self.line;
        Evidence {
            test: line.test,
            clients: line.clients,
            threads: line.threads,
            workers,
            rate: line.rate(),
            bytes: line.bytes,
            retransmits: line.retransmits,
            connections: (line.clients * line.servers) as u32 * line.threads * line.parallel,
            cpu: line.client_cpu.max(line.server_cpu),
        }
    }
}

/// The driver's view of the agents of one run.
struct Drive<'a> {
    args: &'a NetArgs,
    secret: SharedSecret,
    stop: &'a Stop,
}

impl Drive<'_> {
    fn phase(&self, test: Test, id: u64, servers: &[String]) -> Result<Phase> {
        let bytes = |size: ByteSize| {
            let small = u32::try_from(size.0);
            small.map_err(|_| BenchError::Usage(format!("{size} is too large")))
        };
        let phase = Phase {
            test,
            id,
            servers: servers.to_vec(),
            buffer_bytes: bytes(self.args.buffer)?,
            parallel: self.args.parallel,
            socket_bytes: self.args.socket.map(bytes).transpose()?,
            verify: self.args.verify,
            seconds: self.args.time,
            messages: None,
        };
        Ok(match test {
            Test::Ping => Phase {
                buffer_bytes: 4096,
                parallel: 1,
                messages: Some(PINGS * servers.len() as u64),
                ..phase
            },
            _ => phase,
        })
    }

    /// Runs one test between the given clients and servers.
    fn test(&self, test: Test, clients: &[String], servers: &[String]) -> Result<Measured> {
        let id = scratch::random_word();
        let phase = self.phase(test, id, servers)?;
        let threads = if test == Test::Ping { 1 } else { self.args.threads };
        phase.validate(threads)?;
        let plan = ServePlan {
            id,
            workers: self.args.workers,
            buffer_bytes: phase.buffer_bytes,
            socket_bytes: phase.socket_bytes,
            verify: phase.verify,
        };
        plan.validate()?;
        let mut serving = Vec::new();
        for server in servers {
            serving.push(ServerSession::serve(server, &self.secret, &plan)?);
        }
        let mut crews: Vec<Box<dyn Crew>> = Vec::new();
        for client in clients {
            crews.push(Box::new(NetCrew::connect(client, &self.secret)?));
        }
        let mut crews = Crews::of(crews, self.stop);
        let label = format!("{}-{} {}", clients.len(), servers.len(), test.name());
        let outcome = crews.run(&label, &Work::Net(phase.clone()), threads)?;
        let served: Vec<Served> =
            serving.iter_mut().map(ServerSession::served).collect::<Result<_>>()?;
        let rates = outcome.rates();
        let histogram = outcome.latency();
        let line = Line {
            clients: clients.len(),
            servers: servers.len(),
            test,
            bytes: rates.bytes,
            messages: rates.operations,
            seconds: rates.longest_seconds,
            client_cpu: outcome.cpu().busy(),
            server_cpu: served.iter().map(|one| one.cpu.busy()).sum::<f64>()
                / served.len().max(1) as f64,
            test_seconds: phase.seconds,
            buffer_bytes: phase.buffer_bytes,
            socket_bytes: phase.socket_bytes,
            threads,
            parallel: phase.parallel,
            verify: phase.verify,
            retransmits: served.iter().map(|one| one.retransmits).sum(),
        };
        Ok(Measured { line, latency: LatencySummary::from(&histogram), histogram })
    }

    fn facts(&self, hosts: &[String]) -> Result<Vec<NetFacts>> {
        let facts = hosts.iter().map(|host| {
            let mut session = ServerSession::connect(host, &self.secret)?;
            let facts = session.net_facts()?;
            Ok(NetFacts { host: host.clone(), ..facts })
        });
        facts.collect()
    }
}

/// Round trips to each server in the readiness gate: as many as the published check sends.
const PINGS: u64 = 500;

/// Runs `bench net`; returns the report and its text.
pub fn run(args: &NetArgs, stop: &Stop) -> Result<(Report, String)> {
    if !args.clients.is_empty() && args.servers.is_empty() {
        return Err(BenchError::Usage("--clients needs --servers".into()));
    }
    if !args.hosts.is_empty() && args.hosts.len() < 2 {
        return Err(BenchError::Usage("the readiness gate needs at least two hosts".into()));
    }
    let drive = Drive { args, secret: secret::read(args.secret_file.as_deref())?, stop };
    let mut report = Report::new("net", Vec::new(), None);
    report.settings = serde_json::json!({
        "clients": args.clients, "servers": args.servers, "hosts": args.hosts,
        "seconds": args.time, "buffer": args.buffer, "threads": args.threads,
        "parallel": args.parallel, "workers": args.workers, "socket": args.socket,
        "verify": args.verify,
    });
    let text = match args.hosts.is_empty() {
        true => many_to_many(&drive, &mut report)?,
        false => readiness(&drive, &mut report)?,
    };
    Ok((report, text))
}

fn many_to_many(drive: &Drive<'_>, report: &mut Report) -> Result<String> {
    let args = drive.args;
    let mut text = String::new();
    let mut measured = Vec::new();
    for &test in &args.tests {
        let one = drive.test(test, &args.clients, &args.servers)?;
        text.push_str(&one.line.text());
        if args.hist {
            text.push_str(&report::histogram(&one.histogram));
        }
        let name = format!("net {} {}-{}", test.name(), args.clients.len(), args.servers.len());
        report.sample(&name, "MB/s", Better::Higher, one.line.rate() / 1e6);
        measured.push(one);
    }
    let hosts: Vec<String> = [&args.clients[..], &args.servers[..]].concat();
    let evidence: Vec<Evidence> = measured.iter().map(|one| one.evidence(args.workers)).collect();
    let advice = gate::advise(&evidence, &drive.facts(&hosts)?, &[], None);
    text.push_str(&report::advice(&advice));
    report.detail = serde_json::json!({"tests": value_of(&measured), "advice": advice});
    Ok(text)
}

/// Each host calls all others. First come round trips on an idle network. Then come `nwrite` and
/// `read`, the tests that resemble a file system's traffic most.
fn readiness(drive: &Drive<'_>, report: &mut Report) -> Result<String> {
    let hosts = &drive.args.hosts;
    let (mut results, mut evidence, mut text) = (Vec::new(), Vec::new(), String::new());
    for host in hosts {
        let others: Vec<String> = hosts.iter().filter(|other| *other != host).cloned().collect();
        let clients = std::slice::from_ref(host);
        let ping = drive.test(Test::Ping, clients, &others)?;
        let mut least = f64::INFINITY;
        for test in [Test::Nwrite, Test::Read] {
            let one = drive.test(test, clients, &others)?;
            text.push_str(&format!("{host}: {}", one.line.text()));
            let rate = one.line.rate() / 1e6;
            report.sample(
                &format!("net gate {} {host}", test.name()),
                "MB/s",
                Better::Higher,
                rate,
            );
            least = least.min(rate);
            evidence.push(one.evidence(drive.args.workers));
        }
        let average = ping.histogram.mean_ns() / 1e6;
        report.sample(&format!("net gate latency {host}"), "ms", Better::Lower, average);
        results.push(HostResult {
            host: host.clone(),
            average_ms: average,
            worst_ms: ping.histogram.max_ns() as f64 / 1e6,
            deviation_ms: ping.histogram.deviation_ns() / 1e6,
            mb_per_second: least,
        });
    }
    let gates: Vec<Gate> = gate::judge(&results);
    let average = results.iter().map(|host| host.average_ms).sum::<f64>() / results.len() as f64;
    let advice = gate::advise(&evidence, &drive.facts(hosts)?, &gates, Some(average));
    text.push_str(&report::verdict(&results, &gates));
    text.push_str(&report::advice(&advice));
    report.detail = serde_json::json!({"hosts": results, "gates": gates, "advice": advice});
    Ok(text)
}

/// True if a report of the readiness gate has a gate that failed.
pub fn is_refused(report: &Report) -> bool {
    let gates = report.detail.get("gates").and_then(|gates| gates.as_array());
    gates.is_some_and(|gates| gates.iter().any(|gate| gate["passed"] == false))
}
