//! Cleans up after the suites, however they end.
//!
//! The janitor is a process of its own, in its own process group. It waits for the end of its
//! standard input. The runner holds the other end, and the kernel closes that end when the runner
//! ends, whether by returning, by Ctrl-C or by `kill -9`. The janitor then takes down every file
//! system made by the session, kills processes of the session that still run, detaches what is
//! still mounted, and removes the directory.

use super::command;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// The hidden command of `xtask` that is the janitor.
pub(crate) const COMMAND: &str = "suites-janitor";
/// How long a file system may take to go down after the session has ended.
const DOWN_TIME_MAX: Duration = Duration::from_secs(30);

/// Starts the janitor of the session directory `root`. It takes file systems down with `strake`.
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
    // The janitor kills what works in the directory, so it must not work there itself.
    if std::env::set_current_dir("/").is_err() {
        return ExitCode::FAILURE;
    }
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let root = Path::new(root);
    // A file system that is frozen would block everything that writes to it, and would stay frozen
    // after it is detached.
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts_below(&table, root, Some("xfs")) {
        let _ =
            Command::new("fsfreeze").arg("--unfreeze").arg(&mount).stderr(Stdio::null()).status();
    }
    for lab in labs(root) {
        let mut down = Command::new(strake);
        down.args(["lab", "down", "--dir"]).arg(&lab);
        let _ = command::run(&mut down, &root.join("janitor.log"), DOWN_TIME_MAX);
    }
    for data in data_directories(root) {
        let mut down = Command::new(strake);
        down.args(["down", "--force", "--data"]).arg(&data);
        let _ = command::run(&mut down, &root.join("janitor.log"), DOWN_TIME_MAX);
    }
    // A program that serves the mount that it uses itself may wait for itself. Whoever reads its
    // command line waits too. Forced, the kernel ends all requests of the mount, also where it says
    // that the mount is busy.
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts_below(&table, root, Some("fuse.strake")) {
        let _ = Command::new("umount").arg("-f").arg(&mount).stderr(Stdio::null()).status();
    }
    kill_below(root);
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts_below(&table, root, None) {
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

/// The data directories made below `root`: `NUMBER/data`, or in a file system mounted there.
fn data_directories(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let made = entries.filter_map(Result::ok).map(|entry| entry.path());
    let data = made.flat_map(|made| [made.join("data"), made.join("mnt/data")]);
    data.filter(|data| data.join("strake.toml").exists()).collect()
}

/// The labs made below `root`. Their network namespaces are known by the paths of their
/// directories, so they go before the files.
fn labs(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let made = entries.filter_map(Result::ok).map(|entry| entry.path());
    made.filter(|made| made.join("lab.json").exists()).collect()
}

/// The mounts below `root`, of one kind or of all kinds, the last mounted first.
fn mounts_below(table: &str, root: &Path, kind: Option<&str>) -> Vec<PathBuf> {
    let is_meant = |line: &&str| kind.is_none() || line.split(' ').nth(2) == kind;
    let lines = table.lines().filter(is_meant);
    let points = lines.filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(root)).collect();
    below.reverse();
    below
}

/// Kills every process that belongs to the directory `root`: its working directory is there, or an
/// argument of its command line is a path there. Two runs side by side have different directories,
/// so neither kills the other's processes.
fn kill_below(root: &Path) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let process = entry.file_name().to_string_lossy().into_owned();
        if process.bytes().all(|byte| byte.is_ascii_digit())
            && process != own
            && belongs(&entry.path(), root)
        {
            found.push(process);
        }
    }
    if !found.is_empty() {
        kill(&found);
    }
}

/// True if the process with this directory in `/proc` belongs to `root`.
fn belongs(process: &Path, root: &Path) -> bool {
    // A process that cannot be read belongs to another user, or is gone.
    let below = |path: PathBuf| path.starts_with(root);
    let works_there = std::fs::read_link(process.join("cwd")).is_ok_and(below);
    let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
    works_there
        || words
            .split(|&byte| byte == 0)
            .any(|word| Path::new(std::ffi::OsStr::from_bytes(word)).starts_with(root))
}

/// Kills a process group: a program that ran out of time, with everything it started.
pub(crate) fn kill_group(leader: u32) {
    kill(&[format!("-{leader}")]);
}

/// Kills the processes that a process has started. The test that `cargo` runs would outlive it
/// otherwise.
pub(crate) fn kill_children(parent: u32) {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children: Vec<String> = children.split_whitespace().map(str::to_owned).collect();
    if !children.is_empty() {
        kill(&children);
    }
}

fn kill(targets: &[String]) {
    // Uses the shell's own `kill`, because not every machine has a package with the program.
    let script = ["-c", "kill -9 \"$@\"", "kill"];
    let _ = Command::new("sh").args(script).args(targets).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_started_is_killed() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo ready; wait $!; echo $?"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut output = shell.stdout.take().expect("a pipe");
        output.read_exact(&mut [0; 6]).expect("started");
        kill_children(shell.id());
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("ended");
        assert_eq!(rest, "137\n");
        assert!(shell.wait().expect("ended").success());
    }

    #[test]
    fn a_process_belongs_to_the_directory_it_works_in_or_names() {
        let root = std::env::temp_dir().join(format!("strake-janitor-{}", std::process::id()));
        let other = root.with_extension("other");
        std::fs::create_dir_all(&root)
            .and_then(|()| std::fs::create_dir_all(&other))
            .expect("made");
        let mut working = Command::new("sleep").arg("60").current_dir(&root).spawn().expect("runs");
        let mut naming = Command::new("sh")
            .args(["-c", "echo ready; read line"])
            .arg(root.join("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut else_where =
            Command::new("sleep").arg("60").current_dir(&other).spawn().expect("runs");
        let there = |child: &Child| PathBuf::from(format!("/proc/{}", child.id()));
        // `spawn` returns when the child has memory of its own. That may be a moment before its
        // arguments are in `/proc`. Once the program prints something, they are there. The child's
        // working directory is set before either.
        let mut ready = [0; 6];
        naming.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it speaks");
        assert!(belongs(&there(&working), &root) && belongs(&there(&naming), &root));
        assert!(!belongs(&there(&else_where), &root), "a longer name is another directory");
        kill_below(&root);
        for child in [&mut working, &mut naming] {
            assert!(!child.wait().expect("ended").success());
        }
        assert!(else_where.try_wait().expect("asked").is_none(), "the other run goes on");
        else_where.kill().and_then(|()| else_where.wait()).expect("ended");
        std::fs::remove_dir(&root).and_then(|()| std::fs::remove_dir(&other)).expect("removed");
    }

    #[test]
    fn only_what_is_mounted_below_the_directory_is_its_own() {
        let table = "a /var/tmp/strake-1/2/mnt fuse rw 0 0\nb /var/tmp/strake-11/2/mnt fuse rw 0 0\n\
                     c /var/tmp xfs rw 0 0\nd /var/tmp/strake-1/reference/mnt xfs rw 0 0\n";
        let root = Path::new("/var/tmp/strake-1");
        let found = mounts_below(table, root, Some("xfs"));
        assert_eq!(found, [PathBuf::from("/var/tmp/strake-1/reference/mnt")]);
        let found = mounts_below(table, root, None);
        let wanted = ["/var/tmp/strake-1/reference/mnt", "/var/tmp/strake-1/2/mnt"];
        assert_eq!(found, wanted.map(PathBuf::from));
    }
}
