//! Cleans up after the suites, however they end.
//!
//! A process of its own, in its own process group, that waits for the end of its standard input:
//! the runner holds the other end and the kernel closes it when the runner ends, be it by
//! returning, by Ctrl-C or by `kill -9`. Then: every file system made by the session is taken
//! down, what still runs of it is killed, what is still mounted is detached, and the directory
//! is removed.

use super::command::{self, MARK};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// The hidden command of `xtask` that is the janitor.
pub(crate) const COMMAND: &str = "suites-janitor";
/// How long a file system may take to go down when the session is over.
const DOWN_TIME_MAX: Duration = Duration::from_secs(30);

/// Starts the janitor of the session directory `root`; `strake` takes file systems down.
pub(crate) fn start(root: &Path, strake: &Path) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(COMMAND)
        .arg(root)
        .arg(strake)
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// The janitor itself.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [root, strake] = arguments else { return ExitCode::from(2) };
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let root = Path::new(root);
    for data in data_directories(root) {
        let mut down = Command::new(strake);
        down.args(["down", "--force", "--data"]).arg(&data);
        let _ = command::run(&mut down, &root.join("janitor.log"), DOWN_TIME_MAX);
    }
    kill_marked(&format!("{MARK}={}", root.display()));
    for mount in mounts_below(root) {
        let _ = Command::new("umount").arg("-l").arg(&mount).status();
    }
    match std::fs::remove_dir_all(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("suites: cannot remove {}: {error}", root.display());
            ExitCode::FAILURE
        }
    }
}

/// The data directories made below `root`: `NUMBER/data`.
fn data_directories(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let data = entries.filter_map(Result::ok).map(|entry| entry.path().join("data"));
    data.filter(|data| data.join("strake.toml").exists()).collect()
}

/// What is mounted below `root`, the last mounted first.
fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(root)).collect();
    below.reverse();
    below
}

/// Kills every process but this one with the entry `mark` in its environment.
pub(crate) fn kill_marked(mark: &str) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let process = entry.file_name().to_string_lossy().into_owned();
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let marked = environment.split(|&byte| byte == 0).any(|text| text == mark.as_bytes());
        if marked && process != own {
            found.push(process);
        }
    }
    if !found.is_empty() {
        // The shell's own `kill`: the program is in no package that every machine has.
        let script = ["-c", "kill -9 \"$@\"", "kill"];
        let _ = Command::new("sh").args(script).args(found).stderr(Stdio::null()).status();
    }
}
