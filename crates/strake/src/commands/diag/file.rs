//! Finds the file of the file system that somebody names by its path.

use crate::data_dir::DataDir;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use strake_proto::{Error, ErrorKind, Result};

/// The inode of a file of this file system.
///
/// # Errors
/// `Invalid` if it belongs to another one; otherwise the host's.
pub(super) fn inode_of(dir: &DataDir, path: &Path) -> Result<u64> {
    let stat = |path: &Path| {
        std::fs::symlink_metadata(path).map_err(|error| Error::from(error).context(path.display()))
    };
    let (found, mount) = (stat(path)?, dir.read_config()?.mount);
    if found.dev() != stat(&mount)?.dev() {
        let (path, mount) = (path.display(), mount.display());
        let detail = format!("{path} is not in the file system at {mount}");
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    Ok(found.ino())
}
