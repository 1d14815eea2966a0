//! Files that only their owner may read: secrets, keys, and the issuer's list of join tokens.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use strake_proto::{Error, ErrorKind, Result};

/// Longer files are no file of ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Writes a new file of mode 0600 durably.
///
/// # Errors
/// `Exists` if there is such a file; the file system's.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    let context = |error: std::io::Error| Error::from(error).context(path.display());
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(context)?;
    file.write_all(bytes).map_err(context)?;
    file.sync_all().map_err(context)?;
    sync_folder_of(path)
}

/// Replaces a file as a whole: after a crash it has its old contents or the new ones.
///
/// # Errors
/// The file system's.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::from(error).context(beside.display()));
        }
        _ => {}
    }
    create(&beside, bytes)?;
    fs::rename(&beside, path).map_err(|error| Error::from(error).context(path.display()))?;
    sync_folder_of(path)
}

fn sync_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::from(error).context(folder.display()))
}

/// Reads a file that nobody but its owner may read.
///
/// # Errors
/// `Access` if others may read it, `TooBig` if it is longer than any such file; the file system's.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let context = |error: std::io::Error| Error::from(error).context(&shown);
    let file = File::open(path).map_err(context)?;
    if file.metadata().map_err(context)?.mode() & 0o077 != 0 {
        let detail = format!("others can read {shown}: run chmod 600 on it");
        return Err(Error::new(ErrorKind::Access, detail));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(context)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::new(ErrorKind::TooBig, format!("{shown} is longer than any such file")));
    }
    Ok(bytes)
}
