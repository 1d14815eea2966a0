//! The kernel's list of mounts, `/proc/self/mountinfo` (proc(5)).

use std::collections::HashSet;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use strake_proto::Result;

/// The type of Strake's mounts.
pub const KIND: &str = "fuse.strake";
/// The type of the places that an automounter keeps.
const AUTOMOUNTER: &str = "autofs";

/// One line of the list: a file system at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the mount.
    pub number: String,
    /// The number of the mount that it is on.
    pub parent: String,
    /// The file system's device number, `MAJOR:MINOR`. All places of one file system have the same.
    pub device: String,
    /// Where it is.
    pub path: PathBuf,
    /// The options of this place, such as `nosuid`.
    pub options: String,
    /// The file system's type.
    pub kind: String,
    /// The name of its device.
    pub source: String,
    /// The options of the file system, such as `sync`. All places have the same.
    pub shared_options: String,
}

impl Place {
    /// Whether this place has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|word| word == option)
    }

    /// Whether it is a place that an automounter keeps.
    pub fn is_automounter(&self) -> bool {
        self.kind == AUTOMOUNTER
    }

    /// Whether the file system has an option.
    pub fn shares(&self, option: &str) -> bool {
        self.shared_options.split(',').any(|word| word == option)
    }
}

/// All mounts that this process sees, in the order in which they were made.
///
/// # Errors
/// The host's.
pub fn list() -> Result<Vec<Place>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount at `path`: the last one, which hides the others.
///
/// # Errors
/// The host's.
pub fn at(path: &Path) -> Result<Option<Place>> {
    Ok(list()?.into_iter().rfind(|place| place.path == path))
}

/// Whether an automounter keeps `path`: it is in a file system of autofs(5), below no other mount.
/// A process that looks there waits until the automounter has mounted something. Only processes of
/// the automounter's process group, such as the programs that it starts, do not wait.
///
/// # Errors
/// The host's.
pub fn is_automounted(path: &Path) -> Result<bool> {
    Ok(nearest(&list()?, path).is_some_and(Place::is_automounter))
}

/// Whether a mount was made at a place that an automounter keeps.
///
/// # Errors
/// The host's.
pub fn is_on_automounter(place: &Place) -> Result<bool> {
    let mut places = list()?.into_iter();
    Ok(places.any(|below| below.number == place.parent && below.is_automounter()))
}

/// The mount at `path` or closest above it. Of several at one place the last one hides the others.
fn nearest<'a>(places: &'a [Place], path: &Path) -> Option<&'a Place> {
    let above = places.iter().filter(|place| path.starts_with(&place.path));
    above.max_by_key(|place| place.path.components().count())
}

/// Whether the daemon of the Strake mount at `path` is gone. It must be a real path.
pub fn is_dead(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    use rustix::io::Errno;
    // Without FORCE_SYNC the kernel would answer from its cache, even if the daemon is gone.
    let asked = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    // The last two appear only for a moment, while the kernel takes down the daemon's io_uring.
    let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
    statx(CWD, path, asked, StatxFlags::BASIC_STATS).is_err_and(|it| gone.contains(&it))
}

/// Whether something is mounted below a file system, in the list of this process or of another one
/// that sees other mounts, such as those in containers. `device` is the file system's
/// [`Place::device`].
///
/// # Errors
/// The host's.
pub fn is_covered(device: &str) -> Result<bool> {
    if covers(&std::fs::read("/proc/self/mountinfo")?, device) {
        return Ok(true);
    }
    let mut seen = HashSet::new();
    seen.extend(std::fs::read_link("/proc/self/ns/mnt"));
    for process in std::fs::read_dir("/proc")? {
        let process = process?.path();
        // A process may have ended meanwhile, and what is no process has no such file.
        let Ok(namespace) = std::fs::read_link(process.join("ns/mnt")) else { continue };
        if seen.insert(namespace)
            && let Ok(list) = std::fs::read(process.join("mountinfo"))
            && covers(&list, device)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether one of the listed mounts is below a mount of a device.
fn covers(list: &[u8], device: &str) -> bool {
    let places = parse(list);
    let ours = |place: &&Place| place.device == device;
    let ours: HashSet<&str> = places.iter().filter(ours).map(|it| it.number.as_str()).collect();
    places.iter().any(|place| ours.contains(place.parent.as_str()))
}

fn parse(list: &[u8]) -> Vec<Place> {
    list.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// Reads `ID PARENT DEVICE ROOT PATH OPTIONS [TAG]... - KIND SOURCE OPTIONS`.
fn parse_line(line: &[u8]) -> Option<Place> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let (number, parent) = (text(fields.next()?), text(fields.next()?));
    let device = text(fields.next()?);
    let path = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(1)?)));
    let options = text(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let (kind, source) = (text(fields.next()?), text(fields.next()?));
    let shared_options = text(fields.next()?);
    Some(Place { number, parent, device, path, options, kind, source, shared_options })
}

/// Undoes the kernel's octal escapes (`\040` for a blank).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_tags() {
        let list =
            b"36 35 0:98 / /mnt/a\\040b rw,noatime shared:1 master:2 - fuse.strake one ro,sync\n\
                     37 35 98:0 / /x rw - ext4 /dev/sda rw\n\nnonsense\n";
        let places = parse(list);
        assert_eq!(places.len(), 2);
        let first = &places[0];
        assert_eq!((first.device.as_str(), first.kind.as_str()), ("0:98", KIND));
        assert_eq!((first.path.as_path(), first.source.as_str()), (Path::new("/mnt/a b"), "one"));
        assert!(first.has("noatime") && !first.has("ro") && !first.has("atime"));
        assert!(first.shares("ro") && first.shares("sync") && !first.shares("rw"));
        assert_eq!(places[1].source, "/dev/sda");
    }

    #[test]
    fn what_is_mounted_below_is_found_in_whatever_order() {
        let list = |parent: u32| {
            format!(
                "40 {parent} 0:7 / /mnt/a/b rw - tmpfs none rw\n\
                 36 35 0:98 / /mnt/a rw shared:1 - fuse.strake one rw\n\
                 35 1 98:0 / / rw - ext4 /dev/sda rw\n"
            )
        };
        assert!(covers(list(36).as_bytes(), "0:98"));
        assert!(!covers(list(35).as_bytes(), "0:98"), "beside it, not below");
        assert!(!covers(list(36).as_bytes(), "0:9"));
        assert!(!covers(b"", "0:98"));
    }

    #[test]
    fn the_nearest_mount_is_the_last_one_closest_above() {
        let places = parse(
            b"35 1 98:0 / / rw - ext4 /dev/sda rw\n\
              36 35 0:40 / /net rw - autofs none rw\n\
              37 36 0:41 / /net/a rw - fuse.strake one rw\n\
              38 35 0:42 / /auto rw - autofs none rw\n\
              39 38 0:43 / /auto rw - fuse.strake two rw\n",
        );
        let kind = |path: &str| nearest(&places, Path::new(path)).unwrap().kind.as_str();
        assert_eq!((kind("/net"), kind("/net/b"), kind("/network")), ("autofs", "autofs", "ext4"));
        assert_eq!((kind("/net/a"), kind("/net/a/b"), kind("/auto")), (KIND, KIND, KIND));
    }

    #[test]
    fn the_kernels_escapes_are_undone() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescape(br"/mnt/a\04"), br"/mnt/a\04");
    }
}
