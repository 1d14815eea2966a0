//! Three hosts in network namespaces: agents, distributed I/O and metadata, network tests, the
//! readiness gate, and what happens when a driver or an agent dies. Needs root and `ip`; says
//! loudly that it was skipped elsewhere.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strake-bench");
const HOSTS: [&str; 3] = ["10.98.7.1", "10.98.7.2", "10.98.7.3"];

/// A directory of the test; removed with all it holds.
struct Directory(PathBuf);

impl Directory {
    fn make(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("sb-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap()
}

fn ip(words: &str) -> bool {
    let output = run("ip", &words.split(' ').collect::<Vec<_>>());
    if !output.status.success() {
        eprintln!("ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Three namespaces on one bridge, which lies in a fourth: nothing outside is touched.
struct Net {
    prefix: String,
    agents: Vec<Child>,
}

impl Net {
    fn build(tag: &str) -> Option<Net> {
        let prefix = format!("sb{tag}{}", std::process::id());
        let net = Net { prefix, agents: Vec::new() };
        let switch = net.name("s");
        let mut built = ip(&format!("netns add {switch}"))
            && ip(&format!("-n {switch} link add br0 type bridge"))
            && ip(&format!("-n {switch} link set br0 up"));
        for (index, address) in HOSTS.iter().enumerate() {
            let host = net.name(&index.to_string());
            built = built
                && ip(&format!("netns add {host}"))
                && ip(&format!("-n {host} link set lo up"))
                && ip(&format!(
                    "-n {host} link add e0 type veth peer name p{index} netns {switch}"
                ))
                && ip(&format!("-n {switch} link set p{index} master br0 up"))
                && ip(&format!("-n {host} addr add {address}/24 dev e0"))
                && ip(&format!("-n {host} link set e0 up"));
        }
        built.then_some(net)
    }

    fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(&host.to_string()), PROGRAM]);
        command
    }

    /// Starts an agent and waits until it listens.
    fn agent(&mut self, host: usize, directory: &Path, secret: &Path) {
        use std::io::{BufRead, BufReader};
        let mut command = self.command(host);
        command.arg("agent").arg("--dir").arg(directory).arg("--secret-file").arg(secret);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("listening"), "{line}");
        self.agents.push(child);
    }

    fn bench(&self, words: &[&str]) -> Output {
        self.command(0).args(words).output().unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for part in ["0", "1", "2", "s"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(part)]).output();
        }
    }
}

/// The network, or a loud note that this test did not run.
fn net(tag: &str) -> Option<Net> {
    let built = if rustix::process::geteuid().is_root() { Net::build(tag) } else { None };
    if built.is_none() {
        // Not through the macros, whose output of a passing test is swallowed; in the form that
        // the runner of all suites adds up.
        let note = "SKIPPED, needs root and the `ip` command: 0 passed, 0 failed, 1 skipped\n";
        std::io::stdout().write_all(note.as_bytes()).unwrap();
    }
    built
}

struct Site {
    net: Net,
    shared: Directory,
    secret: PathBuf,
}

/// Three agents that share a directory.
fn site(tag: &str) -> Option<Site> {
    let mut net = net(tag)?;
    let shared = Directory::make(tag);
    let secret = shared.0.join("secret");
    fs::write(&secret, "a secret of the test, long enough\n").unwrap();
    let below = shared.0.join("data");
    fs::create_dir(&below).unwrap();
    for host in 0..3 {
        net.agent(host, &below, &secret);
    }
    Some(Site { net, shared, secret })
}

impl Site {
    fn bench(&self, words: &str) -> Output {
        let hosts = HOSTS.join(",");
        let words = words.replace("HOSTS", &hosts);
        let mut all: Vec<&str> = words.split(' ').collect();
        all.extend(["--secret-file", self.secret.to_str().unwrap()]);
        self.net.bench(&all)
    }

    fn data(&self) -> PathBuf {
        self.shared.0.join("data")
    }

    fn is_clean(&self) -> bool {
        fs::read_dir(self.data()).unwrap().next().is_none()
    }
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn three_hosts_share_a_file_and_verify_each_others_records() {
    let Some(site) = site("io") else { return };
    let output = site.bench(
        "io . --hosts HOSTS --tasks 2 --layout interleaved --record 47008 --records 100 --shift 2 \
         --verify --json",
    );
    let report = json(&output);
    let phases = report["detail"].as_array().unwrap();
    assert_eq!(phases.len(), 2);
    for phase in phases {
        assert_eq!(phase["rates"]["tasks"], 6);
        assert_eq!(phase["rates"]["bytes"], 6 * 100 * 47_008);
    }
    assert_eq!(report["hosts"].as_array().unwrap().len(), 3);
    assert!(site.is_clean());
}

#[test]
fn three_hosts_make_and_remove_names_of_each_other() {
    let Some(site) = site("md") else { return };
    let words = "md . --hosts HOSTS --tasks 2 -n 50 -N 2 -w 100 -e 100 -z 1 -b 3 --json";
    for words in [words.to_string(), words.replace("md .", "md . -u")] {
        let report = json(&site.bench(&words));
        for phase in report["detail"].as_array().unwrap() {
            let tree = phase["step"].as_str().unwrap().starts_with("tree");
            let trees = if words.contains("-u") { 6 } else { 1 };
            let wanted = if tree { 4 * trees } else { 6 * 50 };
            assert_eq!(phase["operations"], wanted, "{phase}");
        }
        assert!(site.is_clean());
    }
}

#[test]
fn hosts_with_disks_of_their_own_work_side_by_side() {
    let Some(mut net) = net("ow") else { return };
    let top = Directory::make("ow");
    let secret = top.0.join("secret");
    fs::write(&secret, "a secret of the test, long enough\n").unwrap();
    for host in 0..2 {
        let own = top.0.join(host.to_string());
        fs::create_dir(&own).unwrap();
        net.agent(host, &own, &secret);
    }
    let hosts = HOSTS[..2].join(",");
    let secret = secret.to_str().unwrap();
    for line in ["md . --tasks 2 -n 20 -z 1 -b 2", "io . --tasks 2 --size 1M --verify"] {
        let mut words: Vec<&str> = line.split(' ').collect();
        words.extend(["--hosts", &hosts, "--secret-file", secret, "--json"]);
        json(&net.bench(&words));
        words.extend(if line.starts_with("md") { ["-N", "2"] } else { ["--shift", "2"] });
        let refused = net.bench(&words);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("do not share this directory"), "{}", text(&refused));
    }
    // The driver has refused and gone; the agents clean up when they notice.
    for host in 0..2 {
        let own = top.0.join(host.to_string());
        wait_for("a clean host", || fs::read_dir(&own).unwrap().next().is_none());
    }
}

#[test]
fn network_tests_move_verified_messages_many_to_many() {
    let Some(site) = site("nt") else { return };
    let [a, b, c] = HOSTS;
    let output = site.bench(&format!(
        "net --clients {a},{b} --servers {b},{c} --tests write,read,nwrite,swrite,sread,rw \
         --time 300ms --buffer 64K --threads 2 --parallel 2 --workers 2 --verify --hist"
    ));
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    for test in ["write", "read", "nwrite", "swrite", "sread", "rw"] {
        let line = shown.lines().find(|line| line.starts_with(&format!("2-2 {test} ")));
        let line = line.unwrap_or_else(|| panic!("no line of {test} in {shown}"));
        assert!(line.contains("MB/sec"), "{line}");
        assert!(line.ends_with("time 0.3, buff 65536, th 2, parallel 2, verify"), "{line}");
    }
    assert!(shown.contains("message latency: average"));
}

#[test]
fn the_readiness_gate_judges_every_host_and_says_no_by_exit_code() {
    let Some(site) = site("gt") else { return };
    let output = site.bench("net --hosts HOSTS --time 200ms --buffer 256K");
    let shown = text(&output);
    for host in HOSTS {
        assert_eq!(shown.lines().filter(|line| line.starts_with(&format!("{host}:"))).count(), 2);
    }
    let refused = shown.contains("The network is not ready");
    assert!(refused || shown.contains("The network is ready."), "{shown}");
    assert_eq!(output.status.code(), Some(i32::from(refused)), "{shown}");
}

#[test]
fn strangers_and_paths_outside_are_refused() {
    let Some(site) = site("no") else { return };
    let outside = site.bench("io .. --hosts HOSTS --size 1M");
    assert!(text(&outside).contains("not below the directory"), "{}", text(&outside));
    let outside = site.bench("io /etc --hosts HOSTS --size 1M");
    assert!(text(&outside).contains("not below the directory"), "{}", text(&outside));
    std::os::unix::fs::symlink("/etc", site.data().join("link")).unwrap();
    let outside = site.bench("io link --hosts HOSTS --size 1M");
    assert!(text(&outside).contains("not below the directory"), "{}", text(&outside));
    fs::write(&site.secret, "another secret, long enough too\n").unwrap();
    let stranger = site.bench("io . --hosts HOSTS --size 1M");
    assert!(text(&stranger).contains("does not share this secret"), "{}", text(&stranger));
    assert_eq!(stranger.status.code(), Some(1));
}

/// Waits for a condition with a limit; what is awaited is the work of other processes.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        strake_bench::clock::pause(std::time::Duration::from_millis(50));
    }
    panic!("waited in vain for {what}");
}

#[test]
fn a_driver_that_dies_leaves_nothing_on_any_host() {
    let Some(site) = site("kd") else { return };
    let mut command = site.net.command(0);
    command.args(["io", ".", "--hosts", &HOSTS.join(","), "--size", "1G", "--record", "4K"]);
    command.args(["--fsync-each", "--secret-file", site.secret.to_str().unwrap()]);
    let mut driver = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("data files", || {
        let scratch = fs::read_dir(site.data()).unwrap().next();
        scratch.is_some_and(|entry| {
            entry
                .is_ok_and(|entry| fs::read_dir(entry.path()).is_ok_and(|files| files.count() >= 3))
        })
    });
    driver.kill().unwrap();
    driver.wait().unwrap();
    wait_for("the agents to clean up", || site.is_clean());
}

#[test]
fn an_agent_that_dies_is_named() {
    let Some(mut site) = site("ka") else { return };
    let mut command = site.net.command(0);
    command.args(["io", ".", "--hosts", &HOSTS.join(","), "--size", "1G", "--record", "4K"]);
    command.args(["--fsync-each", "--secret-file", site.secret.to_str().unwrap()]);
    let driver = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let data = site.data();
    wait_for("data files", || {
        let scratch = fs::read_dir(&data).unwrap().next();
        scratch.is_some_and(|entry| {
            entry
                .is_ok_and(|entry| fs::read_dir(entry.path()).is_ok_and(|files| files.count() >= 3))
        })
    });
    site.net.agents[2].kill().unwrap();
    let output = driver.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains(&format!("host {}", HOSTS[2])), "{}", text(&output));
}
