//! The commands as a user runs them: reports, exit codes, and nothing left behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strake-bench");

/// A directory of the test; removed with all it holds.
struct Directory(PathBuf);

impl Directory {
    fn make() -> Directory {
        let path = std::env::temp_dir().join(strake_bench::scratch::fresh_name());
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn entries(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `strake-bench` with the words of `line`, where `DIR` stands for the directory.
fn bench(directory: &Directory, line: &str) -> Output {
    let words = line.split_whitespace().map(|word| word.replace("DIR", directory.path()));
    Command::new(PROGRAM).args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn report(directory: &Directory, line: &str) -> Value {
    let output = bench(directory, line);
    assert!(output.status.success(), "{line}: {}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!report["metrics"].as_array().unwrap().is_empty(), "{line}: {report}");
    for metric in report["metrics"].as_array().unwrap() {
        for sample in metric["samples"].as_array().unwrap() {
            assert!(sample.as_f64().unwrap() > 0.0, "{line}: {metric}");
        }
    }
    report
}

#[test]
fn every_benchmark_reports_as_json_and_leaves_nothing() {
    let directory = Directory::make();
    for (line, kind) in [
        ("io DIR --size 4M --tasks 1,2 --iterations 2 --json", "io"),
        (
            "io DIR --size 1M --record 4K --pattern rand --operations create,rewrite,read --verify \
          --tasks 3 --processes --json",
            "io",
        ),
        (
            "io DIR --size 1M --record 4K --layout segmented --pattern backward --verify --shift 1 \
          --tasks 2 --fsync uncounted --close-uncounted --json",
            "io",
        ),
        ("io DIR --size 256K --record 4K --fsync-each --json", "io"),
        ("md DIR -n 50 --tasks 2 -u -N 1 -R -y -w 100 -e 50 -i 2 -z 1 -b 2 -L --json", "md"),
        ("md DIR -n 50 --tasks 2 --processes --json", "md"),
        ("md DIR --list 20,40 --json", "md-list"),
        ("sas DIR --file-size 4M --json", "sas"),
    ] {
        assert_eq!(report(&directory, line)["kind"], kind);
        assert_eq!(directory.entries(), 0, "{line}");
    }
}

#[test]
fn a_sweep_has_a_row_per_number_of_tasks_and_every_task_is_accounted_for() {
    let directory = Directory::make();
    let report = report(&directory, "io DIR --size 2M --tasks 1,2,4 --json");
    let phases = report["detail"].as_array().unwrap();
    let tasks: Vec<u64> =
        phases.iter().map(|phase| phase["rates"]["tasks"].as_u64().unwrap()).collect();
    assert_eq!(tasks, [1, 1, 2, 2, 4, 4]);
    for phase in phases {
        let tasks = phase["tasks"].as_array().unwrap();
        let ranks: Vec<u64> = tasks.iter().map(|task| task["rank"].as_u64().unwrap()).collect();
        assert_eq!(ranks, (0..tasks.len() as u64).collect::<Vec<_>>());
        let bytes: u64 = tasks.iter().map(|task| task["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, phase["rates"]["bytes"].as_u64().unwrap());
        let rates = &phase["rates"];
        let natural = rates["natural_aggregate"].as_f64().unwrap();
        assert!(natural <= rates["harmonic_aggregate"].as_f64().unwrap() * (1.0 + 1e-9));
    }
    let shown = text(&bench(&directory, "io DIR --size 2M --tasks 1,2,4"));
    assert!(shown.contains("natural create  natural read  harmonic create"), "{shown}");
}

#[test]
fn two_jobs_at_once_report_their_interference() {
    let directory = Directory::make();
    let second = Directory::make();
    let file = second.0.join("job.toml");
    let job = format!(
        "directory = '{}'\nsize = '2M'\nrecord = '16K'\npattern = 'strided:10'\ntasks = [2]\n",
        second.path()
    );
    fs::write(&file, job).unwrap();
    let line = format!("io DIR --size 4M --with {} --json", file.display());
    let report = report(&directory, &line);
    let mixed = report["detail"].as_array().unwrap();
    assert_eq!(mixed.len(), 2);
    assert_eq!(mixed[0]["second_together"]["tasks"], 2);
    assert!(mixed[0]["interference"]["combined_harmonic_aggregate"].as_f64().unwrap() > 0.0);
    assert_eq!((directory.entries(), second.entries()), (0, 1));
}

#[test]
fn perf_and_disk_work_on_the_file_they_are_given_and_leave_it() {
    let directory = Directory::make();
    report(&directory, "perf create seq -n 8m -r 64k --json DIR/file");
    report(&directory, "perf read rand -n 1m -r 4k -th 2 --json DIR/file");
    report(&directory, "perf read strided -r 4k -s 40k --json DIR/file");
    report(&directory, "perf write seq -n 1m -r 4k -fsync --json DIR/file");
    let before = fs::read(directory.0.join("file")).unwrap();
    let disk = report(&directory, "disk DIR/file --time 20ms --json");
    assert_eq!(disk["detail"]["disks"][0]["figures"].as_array().unwrap().len(), 5);
    assert_eq!(fs::read(directory.0.join("file")).unwrap(), before, "reads only");
    let again = bench(&directory, "perf create seq -n 8m DIR/file");
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again).contains("exists"), "{}", text(&again));
    assert_eq!(directory.entries(), 1);
}

#[test]
fn reports_compare() {
    let directory = Directory::make();
    let (a, b) = (directory.0.join("a.json"), directory.0.join("b.json"));
    for path in [&a, &b] {
        let output = bench(&directory, "md DIR -n 20 -i 3 --json");
        fs::write(path, output.stdout).unwrap();
    }
    let line = format!("compare {} {}", a.display(), b.display());
    let shown = text(&bench(&directory, &line));
    assert!(shown.contains("md file-create 1x1"), "{shown}");
    assert!(shown.contains("not to be judged"), "{shown}");
    let output = bench(&directory, &format!("compare {} DIR/missing", a.display()));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_cannot_work_is_said_before_it_is_tried() {
    let directory = Directory::make();
    for (line, code, words) in [
        ("io DIR --size 100P", 2, "GiB free"),
        ("io DIR --operations read", 2, "begin with create"),
        ("io DIR --record 1K --size 1", 2, "holds no record"),
        ("io DIR --pattern zigzag", 2, "no pattern"),
        ("io DIR/missing", 1, "cannot find"),
        ("io DIR --hosts localhost", 2, "--secret-file"),
        ("md DIR -z 30 -b 10", 2, "directories"),
        ("md DIR -n 5 -w 10 -e 20", 2, "cannot read 20 bytes"),
        ("perf paint seq DIR/file", 2, "no operation"),
        ("net --clients a", 2, "--clients needs --servers"),
        ("suite DIR --output DIR/missing", 2, "no directory"),
        ("nothing", 2, "unrecognized subcommand"),
    ] {
        let output = bench(&directory, line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
        assert!(text(&output).contains(words), "{line}: {}", text(&output));
        assert_eq!(directory.entries(), 0, "{line}");
    }
}

/// Waits for a condition with a limit; what is awaited is the work of another process.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_200 {
        if condition() {
            return;
        }
        strake_bench::clock::pause(Duration::from_millis(25));
    }
    panic!("waited in vain for {what}");
}

fn start(directory: &Directory, line: &str) -> Child {
    let words = line.split_whitespace().map(|word| word.replace("DIR", directory.path()));
    let mut command = Command::new(PROGRAM);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn holds_data(path: &Path) -> bool {
    let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.any(|entry| {
        let inner = entry.path();
        inner.is_file() || holds_data(&inner)
    })
}

#[test]
fn an_interrupted_run_removes_its_files_and_says_so() {
    for line in [
        "io DIR --size 1G --record 4K --fsync-each --tasks 2",
        "io DIR --size 1G --record 4K --fsync-each --tasks 2 --processes",
        "md DIR -n 1000000 --tasks 2 -F -y -w 10",
        "perf create seq -n 2G -r 4k DIR/file",
    ] {
        let directory = Directory::make();
        let child = start(&directory, line);
        wait_for("data", || holds_data(&directory.0));
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output));
        assert!(text(&output).contains("interrupted"), "{line}: {}", text(&output));
        assert_eq!(directory.entries(), 0, "{line}");
    }
}

#[test]
fn kept_files_stay() {
    let directory = Directory::make();
    report(&directory, "io DIR --size 1M --operations create --keep --json");
    assert_eq!(directory.entries(), 1);
}
