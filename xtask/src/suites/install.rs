//! Installs the foreign suites from the package registry, at pinned versions, in `target/suites`.

use super::command;
use super::session::Session;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const INSTALL_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// A program of the registry, where it has the same name.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// 398 tests of POSIX file system calls.
pub(crate) const PJDFSTEST: Package = Package { name: "pjdfstest", version: "0.2.2" };
/// The file system exerciser.
pub(crate) const FSX: Package = Package { name: "fsx", version: "0.3.2" };

/// The installed program. Installs it if it is missing or has another version.
///
/// # Errors
/// What cargo said.
pub(crate) fn install(session: &Session, package: &Package) -> Result<PathBuf, String> {
    let Package { name, version } = package;
    let root = session.kept.join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let mut cargo = Command::new("cargo");
        // Not in the repository: its toolchain file and its manifest must not affect the package.
        cargo.current_dir(&session.root);
        cargo.args(["install", name, "--version", version, "--locked", "--root"]).arg(&root);
        cargo.arg("--target-dir").arg(session.kept.join("build"));
        // Building them takes longer than running them.
        cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_LTO", "off");
        cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        let log = session.log("install", name);
        command::run(&mut cargo, &log, INSTALL_TIME_MAX)?.success()?;
    }
    Ok(program)
}
