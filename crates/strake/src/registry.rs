//! Lists the file systems that are up on this machine, so that commands find them without `--data`.
//!
//! Each file system has one file. Its name is the cluster's identity, and it holds the path of the
//! data directory. For root the files are in `/run/strake`. For other users they are in
//! `$XDG_RUNTIME_DIR/strake`, else in `/run/user/UID/strake`, else in `/tmp/strake-UID`. The
//! directory counts only if it belongs to the user and nobody else can write to it.
//!
//! A file may outlive its daemon. So commands also try the admin socket, which shows whether the
//! daemon is there.

use crate::data_dir::DataDir;
use std::path::{Path, PathBuf};
use strake_proto::{Error, ErrorKind, Result};
use tracing::warn;

fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/strake");
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    session.or_else(|| Some(usual).filter(|path| path.is_dir())).map_or_else(
        || PathBuf::from(format!("/tmp/strake-{}", user.as_raw())),
        |path| path.join("strake"),
    )
}

/// True if the directory's contents can be trusted. Anybody could have made one in `/tmp`.
fn is_own(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(directory)
        .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

/// Notes that the file system of `cluster` is served from `dir`. If that fails, commands need
/// `--data`, and nothing else is lost.
pub(crate) fn add(cluster: &str, dir: &DataDir) {
    use std::os::unix::fs::DirBuilderExt;
    let directory = directory();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory);
    let written = made.and_then(|()| match is_own(&directory) {
        true => std::fs::write(directory.join(cluster), dir.root().as_os_str().as_encoded_bytes()),
        false => Err(std::io::Error::other("others can write to it")),
    });
    if let Err(error) = written {
        let directory = directory.display();
        warn!(target: "daemon", "cannot note the file system in {directory}: {error}");
    }
}

/// Forgets a file system.
pub(crate) fn remove(cluster: &str) {
    let _ = std::fs::remove_file(directory().join(cluster));
}

/// The data directories of all file systems that were not taken down, sorted.
pub(crate) fn list() -> Vec<DataDir> {
    use std::os::unix::ffi::OsStringExt;
    let directory = directory();
    let Ok(entries) = std::fs::read_dir(&directory) else { return Vec::new() };
    if !is_own(&directory) {
        return Vec::new();
    }
    let mut roots: Vec<PathBuf> = entries
        .filter_map(|entry| std::fs::read(entry.ok()?.path()).ok())
        .map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
        .collect();
    roots.sort();
    roots.iter().filter_map(|root| DataDir::at(root).ok()).collect()
}

/// The data directory that was named: `--data`, else `STRAKE_DATA`.
///
/// # Errors
/// `Invalid` if no file system was made there; the message says what to do. Otherwise the errors
/// of [`DataDir::at`].
pub(crate) fn named(data: Option<&Path>) -> Result<Option<DataDir>> {
    let path = data.map(PathBuf::from).or_else(|| std::env::var_os("STRAKE_DATA").map(Into::into));
    let Some(path) = path else { return Ok(None) };
    let dir = DataDir::at(&path)?;
    match dir.config_path().try_exists() {
        Ok(false) => Err(Error::new(ErrorKind::Invalid, dir.advice())),
        // If the path cannot be looked at, its first use reports why.
        _ => Ok(Some(dir)),
    }
}

/// The data directory a command means: `--data`, else `STRAKE_DATA`, else the only one that is up.
///
/// # Errors
/// `Invalid` if no file system or more than one is up; the message says what to write.
pub(crate) fn find(data: Option<&Path>) -> Result<DataDir> {
    if let Some(dir) = named(data)? {
        return Ok(dir);
    }
    let mut up: Vec<DataDir> = list();
    up.retain(|dir| strake_env::net::UnixStream::connect(dir.socket_path()).is_ok());
    match up.len() {
        1 => Ok(up.remove(0)),
        0 => Err(Error::new(
            ErrorKind::Invalid,
            "no file system is up here: start one with `strake up`, or name it with --data DIR",
        )),
        _ => {
            let roots: Vec<String> =
                up.iter().map(|dir| dir.root().display().to_string()).collect();
            Err(Error::new(
                ErrorKind::Invalid,
                format!("several file systems are up: choose with --data: {}", roots.join(", ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_file_system_is_wrong_usage_and_says_what_to_do() {
        let root = std::env::temp_dir().join(format!("strake-none-{}", std::process::id()));
        for _ in 0..2 {
            // Neither where there is no directory, nor in one that is empty.
            let error = find(Some(&root)).expect_err("there is none");
            assert_eq!(crate::output::exit_code(&error), 2);
            assert!(error.to_string().contains("strake up --data"), "{error}");
            std::fs::create_dir_all(&root).expect("temporary directory");
        }
        std::fs::write(root.join("strake.toml"), "").expect("writes");
        assert!(find(Some(&root)).is_ok(), "what is in it is told by its reader");
        std::fs::remove_dir_all(&root).expect("removes");
    }
}
