//! Lists the file systems that are up on this machine, so that commands find them without `--data`.
//!
//! Each file system has one file. Its name is the cluster's identity, and it holds the path of the
//! data directory. For root the files are in `/run/strake`. For other users they are in
//! `$XDG_RUNTIME_DIR/strake`, else in `/run/user/UID/strake`, else in `/tmp/strake-UID`. The
//! directory counts only if it belongs to the user and nobody else can write to it. The variable
//! `STRAKE_RUN_DIR` names another directory, for programs that must not meet what else is up here.
//!
//! Nodes of a cluster are listed in the same way, in the folder `nodes` beside these files.
//!
//! A file may outlive its daemon. So commands also try the admin socket, which shows whether the
//! daemon is there.

use crate::data_dir::DataDir;
use crate::node::NodeDir;
use std::path::{Path, PathBuf};
use strake_proto::{Error, ErrorKind, Result};
use tracing::warn;

fn directory() -> PathBuf {
    if let Some(named) = std::env::var_os("STRAKE_RUN_DIR") {
        return PathBuf::from(named);
    }
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
    note(&directory(), cluster, dir.root());
}

/// Notes that a node of `cluster` is served from `dir`. If that fails, commands need `--dir`.
pub(crate) fn add_node(cluster: &str, dir: &NodeDir) {
    note(&nodes_directory(), &node_key(cluster, dir), dir.root());
}

/// The folder of the files that name nodes.
fn nodes_directory() -> PathBuf {
    directory().join("nodes")
}

/// Several nodes of one cluster may be on one machine.
fn node_key(cluster: &str, dir: &NodeDir) -> String {
    format!("{cluster}-{:08x}", crc32c::crc32c(dir.root().as_os_str().as_encoded_bytes()))
}

fn note(directory: &Path, name: &str, root: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    // Those of killed daemons would gather.
    forget_in(directory, |root| matches!(root.try_exists(), Ok(false)));
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
    let written = made.and_then(|()| match is_own(directory) {
        true => std::fs::write(directory.join(name), root.as_os_str().as_encoded_bytes()),
        false => Err(std::io::Error::other("others can write to it")),
    });
    if let Err(error) = written {
        let directory = directory.display();
        warn!(target: "daemon", "cannot note the directory in {directory}: {error}");
    }
}

/// Forgets a file system.
pub(crate) fn remove(cluster: &str) {
    let _ = std::fs::remove_file(directory().join(cluster));
}

/// Forgets a node.
pub(crate) fn remove_node(cluster: &str, dir: &NodeDir) {
    let _ = std::fs::remove_file(nodes_directory().join(node_key(cluster, dir)));
}

/// Forgets everything that lies in the directory `root`.
pub(crate) fn forget_below(root: &Path) {
    for directory in [directory(), nodes_directory()] {
        forget_in(&directory, |named| named.starts_with(root));
    }
}

/// Forgets those whose directory `is_meant`.
fn forget_in(directory: &Path, is_meant: impl Fn(&Path) -> bool) {
    use std::os::unix::ffi::OsStringExt;
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for file in entries.flatten().map(|entry| entry.path()).filter(|_| is_own(directory)) {
        let named = std::fs::read(&file).map(std::ffi::OsString::from_vec);
        if named.is_ok_and(|path| is_meant(Path::new(&path))) {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// The node a command means: `--dir`, else `STRAKE_NODE`, else the only one that is up here.
///
/// # Errors
/// `Invalid` if no node or more than one is up; the message says what to write.
pub(crate) fn find_node(dir: Option<&Path>) -> Result<NodeDir> {
    let path = dir.map(PathBuf::from).or_else(|| std::env::var_os("STRAKE_NODE").map(Into::into));
    if let Some(path) = path {
        let dir = NodeDir::at(&path)?;
        dir.read()?;
        return Ok(dir);
    }
    let mut up = nodes();
    match up.len() {
        1 => Ok(up.remove(0)),
        0 => Err(Error::new(
            ErrorKind::Invalid,
            "no node of a cluster is up here: start one with `strake node start --dir DIR`, or make \
             one with `strake cluster create` or `strake node join`",
        )),
        _ => {
            let roots: Vec<String> = up.iter().map(|it| it.root().display().to_string()).collect();
            Err(Error::new(
                ErrorKind::Invalid,
                format!("several nodes are up here: choose with --dir: {}", roots.join(", ")),
            ))
        }
    }
}

/// The nodes that are up on this machine.
pub(crate) fn nodes() -> Vec<NodeDir> {
    let roots = roots(&nodes_directory());
    let mut up: Vec<NodeDir> = roots.iter().filter_map(|root| NodeDir::at(root).ok()).collect();
    up.retain(|dir| strake_env::net::UnixStream::connect(dir.base().socket_path()).is_ok());
    up
}

/// The data directories of all file systems that are up on this machine, sorted.
pub(crate) fn up() -> Vec<DataDir> {
    let mut up = list();
    up.retain(|dir| strake_env::net::UnixStream::connect(dir.socket_path()).is_ok());
    up
}

/// The data directories of all file systems that were not taken down, sorted.
pub(crate) fn list() -> Vec<DataDir> {
    roots(&directory()).iter().filter_map(|root| DataDir::at(root).ok()).collect()
}

/// The paths that the files of a folder name, sorted.
fn roots(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    if !is_own(directory) {
        return Vec::new();
    }
    let mut roots: Vec<PathBuf> = entries
        .filter_map(|entry| std::fs::read(entry.ok()?.path()).ok())
        .map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
        .collect();
    roots.sort();
    roots
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
    let mut up = up();
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
    fn only_what_lies_in_the_directory_is_forgotten() {
        let root = std::env::temp_dir().join(format!("strake-forget-{}", std::process::id()));
        let [listed, first, below, other] =
            ["listed", "node1", "node1/mount/lab", "node11"].map(|it| root.join(it));
        [&below, &other].into_iter().for_each(|it| std::fs::create_dir_all(it).expect("makes"));
        for (name, path) in [("a", &first), ("b", &below), ("c", &other)] {
            note(&listed, name, path);
        }
        assert_eq!(roots(&listed).len(), 3);
        forget_in(&listed, |named| named.starts_with(&first));
        assert_eq!(roots(&listed), std::slice::from_ref(&other));
        // One whose directory is gone is forgotten when the next one is noted.
        std::fs::remove_dir_all(&other).expect("removes");
        note(&listed, "d", &first);
        assert_eq!(roots(&listed), [first]);
        std::fs::remove_dir_all(&root).expect("removes");
    }

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
