//! One run of the runner: the places of the repository, the binaries, the logs and the file
//! systems.

use super::command::{self, Ended};
use super::janitor;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where the file systems are made: on one of the machine's disks, with enough room.
const PLACE: &str = "/var/tmp";
/// Long enough for a build from a clean clone on two cores.
const BUILD_TIME_MAX: Duration = Duration::from_secs(20 * 60);

/// Paths and choices of this run.
pub(crate) struct Session {
    /// Whether to use fewer seeds and shorter sequences.
    pub(crate) quick: bool,
    /// The first seed of seeded suites: `STRAKE_SEED`, or 1 if that is not set.
    pub(crate) seed: u64,
    /// The repository.
    pub(crate) repository: PathBuf,
    /// The binary under test.
    pub(crate) strake: PathBuf,
    /// The program that plays two processes on one file.
    pub(crate) probe: PathBuf,
    /// The directory of this run. It is removed with everything in it.
    pub(crate) root: PathBuf,
    /// The directory `target/suites`, for installed suites and logs.
    pub(crate) kept: PathBuf,
    janitor: Child,
    /// How many file systems were made so far.
    made: AtomicU32,
}

impl Session {
    /// Builds the binaries, makes the directory, and starts its janitor.
    ///
    /// # Errors
    /// A sentence that says what could not be done.
    pub(crate) fn start(quick: bool) -> Result<Session, String> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or("the repository has no root")?
            .to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository.join("target"), |path| repository.join(path));
        let kept = target.join("suites");
        build(&repository, &kept)?;
        let binaries = target.join("debug");
        let root = new_directory()?;
        let strake = binaries.join("strake");
        let janitor = janitor::start(&root, &strake)
            .map_err(|error| format!("cannot start the janitor: {error}"))?;
        let probe = binaries.join("examples/mount_probe");
        let seed = std::env::var("STRAKE_SEED").ok().and_then(|seed| seed.parse().ok());
        Ok(Session {
            quick,
            seed: seed.unwrap_or(1),
            repository,
            strake,
            probe,
            root,
            kept,
            janitor,
            made: Default::default(),
        })
    }

    /// Where the output of `name` in `suite` is kept.
    pub(crate) fn log(&self, suite: &str, name: &str) -> PathBuf {
        let name = name.replace(['/', ' ', '+'], "_");
        self.kept.join("logs").join(suite).join(format!("{name}.log"))
    }

    /// A number for each file system of this run.
    pub(crate) fn next_number(&self) -> u32 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// The folder that lists what this session has up. File systems of others on this machine are
    /// not in it, so that commands without `--data` and listings of all of them do not meet those.
    pub(crate) fn lists(&self) -> PathBuf {
        self.root.join("lists")
    }

    /// A command that belongs to this session, and is killed when the session ends.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("STRAKE_RUN_DIR", self.lists());
        command
    }

    /// Runs a command of this session; see [`command::run`].
    ///
    /// # Errors
    /// It cannot start, fails, or takes longer than `seconds`.
    pub(crate) fn run(
        &self,
        suite: &str,
        name: &str,
        seconds: u64,
        command: &mut Command,
    ) -> Result<Ended, String> {
        command::run(command, &self.log(suite, name), Duration::from_secs(seconds))?.success()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The end of its input tells the janitor that the run has ended.
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Makes a directory that is this run's alone. An earlier process may have had the same number, and
/// may have left its directory behind.
fn new_directory() -> Result<PathBuf, String> {
    let process = std::process::id();
    let mut names =
        (0..100).map(|number| Path::new(PLACE).join(format!("strake-{process}-{number}")));
    names
        .find_map(|root| match std::fs::create_dir(&root) {
            Ok(()) => Some(Ok(root)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
            Err(error) => Some(Err(format!("{}: {error}", root.display()))),
        })
        .unwrap_or_else(|| Err(format!("{PLACE}: directories of process {process} fill it")))
}

/// Builds the binaries under test, optimised and with every assertion on. It builds the whole
/// workspace so that dependencies get the same features as under `cargo test`, and their built
/// files can be shared.
fn build(repository: &Path, kept: &Path) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(repository);
    cargo.args(["build", "--profile", "test", "--workspace", "--exclude", "xtask"]);
    cargo.args(["--bins", "--examples"]);
    command::run(&mut cargo, &kept.join("logs/build.log"), BUILD_TIME_MAX)?.success()?;
    Ok(())
}
