//! Runs the steps of `make check` and `make test`, each with a time limit, and adds up the counts
//! of their test runners. The last line is `N passed, N failed`. It has `, N skipped` only if
//! something was skipped. The lines about failures are repeated before it.
//!
//! The steps of `make check` run one after the other, because each of them uses all processors. The
//! suites wait for leases, timeouts and disks a good part of the time, so one more of them runs
//! side by side than the machine has processors, up to `LANES_MAX`. Each has a directory, addresses
//! and ports of its own. Their lines begin with the suite's name.
//!
//! A step that prints no tally counts as one test, which passed if the exit code is 0. A step with
//! another exit code counts as at least one failure, whatever it printed.

use crate::suites::janitor;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// One command with its name and time limit.
pub(crate) struct Step {
    name: &'static str,
    program: &'static str,
    arguments: Vec<&'static str>,
    environment: Vec<(&'static str, String)>,
    minutes_max: u64,
    /// Whether other such steps may run at the same time.
    is_beside: bool,
}

impl Step {
    /// A step that runs `words`: the program and its arguments.
    pub(crate) fn new(name: &'static str, words: &[&'static str], minutes_max: u64) -> Step {
        Step {
            name,
            program: words[0],
            arguments: words[1..].to_vec(),
            environment: Vec::new(),
            minutes_max,
            is_beside: false,
        }
    }

    /// The step, which may run beside others that may do so.
    fn beside(mut self) -> Step {
        self.is_beside = true;
        self
    }

    /// The step with one more environment variable.
    pub(crate) fn with(mut self, key: &'static str, value: &str) -> Step {
        self.environment.push((key, value.to_owned()));
        self
    }
}

/// What a test runner counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that could not run on this machine.
    pub skipped: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// How many suites run side by side at most. More would wait for each other's disks.
const LANES_MAX: usize = 3;
/// How many lines of a failed step are repeated at the end.
const FAULTS_MAX: usize = 40;
/// How many of the last lines are repeated if a step fails without a line that says why.
const LAST_LINES: usize = 10;
/// How lines begin that belong to the line before: lines that a check quotes from logs.
const FOLLOW: [&str; 3] = ["    | ", "    : ", "  the daemon's log"];

/// The lines of output, from a suite or from cargo, that say what failed.
#[derive(Default)]
struct Faults {
    lines: Vec<String>,
    /// Whether the last line was such a line, so that lines that belong to it may follow.
    is_open: bool,
    /// The last lines of all.
    last: VecDeque<String>,
}

impl Faults {
    fn look(&mut self, line: &str) {
        let is_panic = line.starts_with("thread '") && line.contains("panicked at");
        let is_first = is_panic || line.contains(" FAILED ");
        let is_quoted = FOLLOW.iter().any(|start| line.starts_with(start));
        let follows = self.is_open && (is_quoted || self.was_panic());
        self.is_open = is_first || follows;
        if self.is_open && self.lines.len() < FAULTS_MAX {
            self.lines.push(line.to_owned());
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    /// The lines to repeat for a step that failed. A step that was killed, or that could not begin,
    /// has no line about a check that failed. Then its last lines have to do.
    fn repeated(self) -> Vec<String> {
        if self.lines.is_empty() { self.last.into() } else { self.lines }
    }

    /// True if the last line announces a panic. The next line is the panic's message.
    fn was_panic(&self) -> bool {
        self.lines.last().is_some_and(|line| line.contains("panicked at"))
    }
}

/// The fast steps. None of them needs a mount.
pub(crate) fn check_steps() -> Vec<Step> {
    vec![
        Step::new("format", &["cargo", "fmt", "--all", "--check"], 2),
        Step::new(
            "clippy",
            &["cargo", "clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"],
            15,
        ),
        Step::new("tidy", &["cargo", "run", "-q", "-p", "xtask", "--", "tidy"], 5),
        Step::new("unit tests", &["cargo", "test", "-q", "--workspace", "--no-fail-fast"], 20),
    ]
}

/// So many whole clusters are simulated.
const SIM_CLUSTERS: &str = "300";

/// All steps that CI runs.
pub(crate) fn test_steps() -> Vec<Step> {
    let more = |step: Step| match step.name {
        "unit tests" => step.with("STRAKE_SIM_CLUSTERS", SIM_CLUSTERS),
        _ => step,
    };
    let mut steps: Vec<Step> = check_steps().into_iter().map(more).collect();
    steps.push(
        Step::new(
            "documentation",
            &["cargo", "doc", "-q", "--workspace", "--no-deps", "--document-private-items"],
            10,
        )
        .with("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    );
    // Each suite is a step of its own, so that each has its own time limit. The limits are longer
    // for suites that install a foreign suite or build the binary from nothing. `suites` without
    // --quick runs more seeds. Long suites come first, so that none of them is left alone at
    // the end.
    for (name, minutes_max) in [
        ("pjdfstest", 15),
        ("cluster-mounts", 10),
        ("cluster-disks", 10),
        ("cluster-copies", 10),
        ("cluster-recover", 10),
        ("cluster-upgrade", 10),
        ("lab", 10),
        ("cluster-first", 10),
        ("slow-nodes", 10),
        ("shared-disks", 10),
        ("fsx", 20),
        ("faults", 10),
        ("programs", 20),
        ("crashes", 10),
        ("faults-socket", 10),
        ("restart-server", 10),
        ("rings", 15),
        ("degraded", 15),
        ("lifecycle", 10),
        ("pjdfstest-socket", 15),
        ("first-cluster", 10),
        ("fsx-socket", 20),
        ("deep", 10),
        ("differential", 10),
        ("slow", 10),
        ("diag", 10),
        ("mount", 10),
        ("upgrade", 10),
        ("documents", 10),
        ("full", 10),
        ("coherence", 10),
        ("directory", 10),
        ("fio", 15),
        ("metrics", 10),
        ("usage", 15),
        ("processes", 10),
        ("notify", 10),
        ("user", 5),
    ] {
        let words =
            ["cargo", "run", "-q", "-p", "xtask", "--", "suites", "--quick", "--only", name];
        steps.push(Step::new(name, &words, minutes_max).beside());
    }
    steps
}

/// The steps with these names, or all of them.
///
/// # Errors
/// No step has that name.
pub(crate) fn chosen(steps: Vec<Step>, names: &[String]) -> Result<Vec<Step>, String> {
    if let Some(unknown) = names.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
        let known: Vec<&str> = steps.iter().map(|step| step.name).collect();
        return Err(format!("no step is called '{unknown}': choose of {}", known.join(", ")));
    }
    let is_chosen = |step: &Step| names.is_empty() || names.iter().any(|name| step.name == name);
    Ok(steps.into_iter().filter(is_chosen).collect())
}

/// What became of a step.
struct Row {
    name: &'static str,
    tally: Tally,
    time: Duration,
    faults: Vec<String>,
}

/// Runs one step of `run`.
fn run_row(step: &Step) -> Row {
    println!("==== {}", step.name);
    let started = now();
    let (tally, faults) = run_step(step);
    let time = now() - started;
    if step.is_beside {
        println!("==== {} ended after {:.1} s", step.name, time.as_secs_f64());
    }
    Row { name: step.name, tally, time, faults }
}

/// Runs the steps that may run at the same time: `lanes` of them at once.
fn run_beside(steps: &[Step], lanes: usize) -> Vec<Row> {
    let next = Mutex::new(steps.iter());
    let take = || next.lock().expect("no holder panics").next();
    let lane = || std::iter::from_fn(|| take().map(run_row)).collect::<Vec<Row>>();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane does not panic")).collect()
    })
}

/// Runs all steps and prints the table and the sum. Fails if anything failed.
pub(crate) fn run(steps: &[Step]) -> ExitCode {
    let started = now();
    let lanes =
        std::thread::available_parallelism().map_or(1, |count| (count.get() + 1).min(LANES_MAX));
    let mut rows = Vec::new();
    for steps in steps.chunk_by(|one, other| one.is_beside && other.is_beside) {
        rows.extend(run_beside(steps, lanes.min(steps.len())));
    }
    let place = |row: &Row| steps.iter().position(|step| step.name == row.name);
    rows.sort_by_key(place);
    report(&rows, now() - started)
}

/// Prints the table and the sum.
fn report(rows: &[Row], time: Duration) -> ExitCode {
    let mut total = Tally::default();
    rows.iter().for_each(|row| total.add(row.tally));
    println!();
    for Row { name, tally, time, .. } in rows {
        let mark = if tally.failed > 0 { "FAILED" } else { "ok" };
        println!(
            "{name:<28} {:>7} passed {:>5} failed {:>5} skipped {:>6.1} s  {mark}",
            tally.passed,
            tally.failed,
            tally.skipped,
            time.as_secs_f64()
        );
    }
    println!("{:<28} {:>50.1} s", "all", time.as_secs_f64());
    for Row { name, faults, .. } in rows.iter().filter(|row| row.tally.failed > 0) {
        println!("\n{name} failed:");
        faults.iter().for_each(|line| println!("{line}"));
    }
    if total.skipped > 0 {
        println!("\nSKIPPED: {} tests could not run on this machine (see above)", total.skipped);
        println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    } else {
        println!("\n{} passed, {} failed", total.passed, total.failed);
    }
    if total.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[allow(clippy::disallowed_methods, reason = "the runner measures and limits real processes")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs one step. Returns the count of its tests and the lines that say what failed.
pub(crate) fn run_step(step: &Step) -> (Tally, Vec<String>) {
    let child = Command::new(step.program)
        .args(&step.arguments)
        .envs(step.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let fault = format!("{}: cannot start {}: {error}", step.name, step.program);
            println!("{fault}");
            return (Tally { failed: 1, ..Tally::default() }, vec![fault]);
        }
    };
    let limit = Duration::from_secs(step.minutes_max * 60);
    let prefix = if step.is_beside { format!("[{}] ", step.name) } else { String::new() };
    let (tally, mut faults, finished) = follow(&mut child, limit, &prefix);
    if !finished {
        let fault = format!("{}: not done after {} minutes, killed", step.name, step.minutes_max);
        println!("{fault}");
        faults.push(fault);
        janitor::kill_children(child.id());
        let _ = child.kill();
    }
    let status = child.wait();
    let succeeded = status.as_ref().is_ok_and(ExitStatus::success);
    if finished && !succeeded {
        faults.push(match status {
            Ok(status) => format!("{}: {status}", step.name),
            Err(error) => format!("{}: cannot be waited for: {error}", step.name),
        });
    }
    let tally = match (succeeded && finished, tally) {
        (true, tally) if tally == Tally::default() => Tally { passed: 1, ..tally },
        (true, tally) => tally,
        (false, tally) => Tally { failed: tally.failed.max(1), ..tally },
    };
    (tally, faults)
}

/// Passes the child's output and its errors on, each line after `prefix`, and adds up its tallies.
/// The last value is false if the time ran out.
fn follow(child: &mut Child, limit: Duration, prefix: &str) -> (Tally, Vec<String>, bool) {
    let output = child.stdout.take().expect("invariant: stdout is piped");
    let errors = child.stderr.take().expect("invariant: stderr is piped");
    let (lines_in, lines) = mpsc::channel();
    pass_on(output, lines_in.clone());
    pass_on(errors, lines_in);
    let end = now() + limit;
    let (mut tally, mut faults) = (Tally::default(), Faults::default());
    loop {
        match lines.recv_timeout(end.saturating_duration_since(now())) {
            Ok(line) => {
                if let Some(counted) = read_tally(&line) {
                    tally.add(counted);
                }
                faults.look(&line);
                println!("{prefix}{line}");
                let _ = std::io::stdout().flush();
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return (tally, faults.repeated(), true),
            Err(mpsc::RecvTimeoutError::Timeout) => return (tally, faults.repeated(), false),
        }
    }
}

/// Sends each line of `pipe` to `lines`, in a thread that ends with the pipe.
fn pass_on(pipe: impl Read + Send + 'static, lines: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …` and `[name: ]3 passed, 0 failed[, 1
/// skipped]`.
pub(crate) fn read_tally(line: &str) -> Option<Tally> {
    let line = line.trim();
    let counts = if let Some(rest) = line.strip_prefix("test result: ") {
        rest.split_once(". ")?.1
    } else {
        line.rsplit_once(": ").map_or(line, |(_, counts)| counts)
    };
    let mut tally = Tally::default();
    let mut named = 0;
    for part in counts.split([',', ';']) {
        let (count, name) = part.trim().split_once(' ')?;
        match name {
            "passed" => tally.passed = count.parse().ok()?,
            "failed" => tally.failed = count.parse().ok()?,
            "skipped" | "ignored" => tally.skipped = count.parse().ok()?,
            _ => continue,
        }
        named += 1;
    }
    (named >= 2).then_some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Option<Tally> {
        Some(Tally { passed, failed, skipped })
    }

    #[test]
    fn tallies_of_cargo_and_of_our_suites_are_read() {
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                     finished in 0.00s";
        assert_eq!(read_tally(cargo), tally(12, 0, 1));
        let failed = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered \
                      out; finished in 0.00s";
        assert_eq!(read_tally(failed), tally(2, 1, 0));
        assert_eq!(read_tally("pjdfstest: 398 passed, 0 failed"), tally(398, 0, 0));
        assert_eq!(read_tally("3 passed, 2 failed, 1 skipped"), tally(3, 2, 1));
    }

    #[test]
    fn what_failed_is_found_in_the_output() {
        let output = "    0.1 s  ok      one\n    0.2 s  FAILED  two: why (log /x)\n    | quoted\n\
                      x\n    | not\nthread 'a::b' panicked at src/x.rs:1:2:\nthe message\nmore";
        let mut faults = Faults::default();
        output.lines().for_each(|line| faults.look(line));
        let wanted = [
            "    0.2 s  FAILED  two: why (log /x)",
            "    | quoted",
            "thread 'a::b' panicked at src/x.rs:1:2:",
            "the message",
        ];
        assert_eq!(faults.lines, wanted);
    }

    #[test]
    fn a_step_that_cannot_begin_says_why_at_the_end() {
        let step = Step::new("broken", &["sh", "-c", "echo begun; echo no room >&2; exit 3"], 1);
        let (tally, mut faults) = run_step(&step);
        assert_eq!(tally, Tally { failed: 1, ..Tally::default() });
        assert_eq!(faults.pop().as_deref(), Some("broken: exit status: 3"));
        faults.sort();
        assert_eq!(faults, ["begun", "no room"]);
    }

    /// Each of the two steps waits for the file that the other one makes.
    #[test]
    fn steps_that_may_run_beside_each_other_do_so() {
        let place = std::env::temp_dir().join(format!("strake-beside-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("made");
        let script = "touch $DIR/$0; for i in $(seq 300); do test -e $DIR/$1 && exit 0; \
                      sleep 0.1; done; exit 1";
        let step = |name, other| {
            let step = Step::new(name, &["sh", "-c", script, name, other], 1);
            step.with("DIR", &place.to_string_lossy()).beside()
        };
        let steps = [step("one", "two"), step("two", "one")];
        let passed: u64 = run_beside(&steps, 2).iter().map(|row| row.tally.passed).sum();
        std::fs::remove_dir_all(&place).expect("removed");
        assert_eq!(passed, 2);
    }

    #[test]
    fn steps_are_chosen_by_name() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(test_steps(), &names)
        };
        let found = named(&["lab", "unit tests"]).expect("they are there");
        let found: Vec<&str> = found.iter().map(|step| step.name).collect();
        assert_eq!(found, ["unit tests", "lab"]);
        assert_eq!(named(&[]).expect("all").len(), test_steps().len());
        assert!(named(&["labb"]).err().expect("none is so called").contains("lab"));
    }

    #[test]
    fn prose_is_no_tally() {
        for line in ["", "running 3 tests", "3 passed", "it passed, then failed", "a: b, c"] {
            assert_eq!(read_tally(line), None, "{line}");
        }
    }
}
