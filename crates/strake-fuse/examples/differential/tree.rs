//! Everything of a tree that must be equal on both sides, one line for each name.
//!
//! Not compared: inode numbers, sizes of directories, allocated blocks, access times (reads that
//! the kernel answers from its cache do not move them here), and how late on this day a time is.

use crate::calls::{call, hash, lstat, read_at};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Times before this one (2020) were set by the test and are compared to the nanosecond.
pub(crate) const OLD_BEFORE: i64 = 1_577_836_800;
const PAGE: usize = 4096;

/// One line for each name below `root`, sorted.
pub(crate) fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    walk(root, root, &mut lines);
    lines.sort();
    lines
}

fn walk(root: &Path, path: &Path, lines: &mut Vec<String>) {
    let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
    match one(path) {
        Ok(text) => lines.push(format!("{name}: {text}")),
        Err(errno) => lines.push(format!("{name}: E{errno}")),
    }
    if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        match std::fs::read_dir(path) {
            Ok(entries) => entries.filter_map(Result::ok).for_each(|entry| {
                walk(root, &entry.path(), lines);
            }),
            Err(error) => lines.push(format!("{name}: cannot be listed: {error}")),
        }
    }
}

fn one(path: &Path) -> Result<String, i32> {
    let text = path.to_str().ok_or(-1)?;
    let stat = lstat(text)?;
    let mut line = attributes(&stat);
    let time = |seconds: i64, nanos: i64| match seconds < OLD_BEFORE {
        true => format!("{seconds}.{nanos:09}"),
        false => "now".to_owned(),
    };
    line += &format!(" m {}", time(stat.st_mtime, stat.st_mtime_nsec));
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => line += &format!(" content {}", content(path, stat.st_size)?),
        libc::S_IFLNK => {
            let target =
                std::fs::read_link(path).map_err(|error| error.raw_os_error().unwrap_or(0))?;
            line += &format!(" to {}", target.display());
        }
        _ => {}
    }
    for name in xattr_names(text)? {
        let value = xattr(text, &name)?;
        line += &format!(" {name}={}:{:x}", value.len(), hash(&value, 1));
    }
    Ok(line)
}

/// Mode, links, owner, group, and what else is comparable for the type.
pub(crate) fn attributes(stat: &libc::stat) -> String {
    let kind = stat.st_mode & libc::S_IFMT;
    let (mode, links, uid, gid) = (stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid);
    let mut line = format!("{mode:o} {links} {uid}:{gid}");
    match kind {
        libc::S_IFREG | libc::S_IFLNK => line += &format!(" size {}", stat.st_size),
        libc::S_IFCHR | libc::S_IFBLK => line += &format!(" device {:x}", stat.st_rdev),
        _ => {}
    }
    line
}

/// A hash of all pages that are not zero, with their places: holes and stored zeros are equal.
fn content(path: &Path, size: i64) -> Result<String, i32> {
    let file = std::fs::File::open(path).map_err(|error| error.raw_os_error().unwrap_or(0))?;
    let mut state = 1;
    let mut buffer = vec![0; 256 * PAGE];
    let mut at = 0;
    while at < size {
        let data = match call!(SYS_lseek, file.as_raw_fd(), at, libc::SEEK_DATA) {
            Ok(data) => data,
            Err(libc::ENXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = call!(SYS_lseek, file.as_raw_fd(), data, libc::SEEK_HOLE)?;
        // Pages as the file has them, whatever the grain of holes.
        at = data / PAGE as i64 * PAGE as i64;
        while at < end {
            let room = buffer.len().min((size - at) as usize);
            let count = read_at(file.as_raw_fd(), at, &mut buffer[..room])?;
            if count == 0 {
                break;
            }
            for (index, page) in buffer[..count].chunks(PAGE).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    let place = at as u64 / PAGE as u64 + index as u64;
                    state = hash(page, hash(&place.to_le_bytes(), state));
                }
            }
            at += (count as i64).max(1);
        }
        at = at.max(end);
    }
    Ok(format!("{state:x}"))
}

/// The names of a file's extended attributes, sorted, without following a link.
pub(crate) fn xattr_names(path: &str) -> Result<Vec<String>, i32> {
    let path = crate::calls::c(path);
    let mut buffer = vec![0u8; 65_536];
    let count = call!(SYS_llistxattr, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())? as usize;
    let mut names: Vec<String> = buffer[..count]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| std::ffi::OsStr::from_bytes(name).to_string_lossy().into_owned())
        // XFS lists its own form of access lists beside the standard names.
        .filter(|name| !name.starts_with("trusted.SGI_ACL"))
        .collect();
    names.sort();
    Ok(names)
}

/// An extended attribute's value, without following a link.
pub(crate) fn xattr(path: &str, name: &str) -> Result<Vec<u8>, i32> {
    let (path, name) = (crate::calls::c(path), crate::calls::c(name));
    let mut value = vec![0u8; 65_536];
    let count =
        call!(SYS_lgetxattr, path.as_ptr(), name.as_ptr(), value.as_mut_ptr(), value.len())?;
    value.truncate(count as usize);
    Ok(value)
}
