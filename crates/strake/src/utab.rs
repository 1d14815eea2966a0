//! Tells umount(8) which program unmounts a mount.
//!
//! umount(8) does not look for a helper of a FUSE file system, unless `/run/mount/utab` names one.
//! Without the helper the kernel unmounts at once, and the daemon makes the rest durable after
//! umount(8) has ended. The file has a line of `KEY=VALUE` words for each mount, and belongs to
//! libmount, which takes the same lock. A line that nobody has removed does no harm: it counts only
//! while a mount of the same name is at the same place.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const DIRECTORY: &str = "/run/mount";

/// Notes the mount of the file system `name` at `target`. A failure costs only the wait for the
/// flush at umount(8), so it is not reported.
pub(crate) fn add(name: &str, target: &Path) {
    let _ = change(Path::new(DIRECTORY), target, Some(name));
}

/// Forgets the mount at `target`.
pub(crate) fn remove(target: &Path) {
    let _ = change(Path::new(DIRECTORY), target, None);
}

/// Drops the lines of a mount point, and adds one if a file system is named.
fn change(directory: &Path, target: &Path, name: Option<&str>) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let lock = File::create(directory.join("utab.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let path = directory.join("utab");
    let before = std::fs::read(&path).unwrap_or_default();
    let target = escape(target.as_os_str().as_bytes());
    let word = [b"TARGET=", target.as_slice()].concat();
    let is_other = |line: &&[u8]| !line.split(|&byte| byte == b' ').any(|it| it == word);
    let mut lines: Vec<&[u8]> = before.split(|&byte| byte == b'\n').filter(is_other).collect();
    lines.retain(|line| !line.is_empty());
    let line = name.map(|name| {
        let source = [b"SRC=", escape(name.as_bytes()).as_slice()].concat();
        [source, word.clone(), b"ROOT=/ OPTS=uhelper=strake".to_vec()].join(&b' ')
    });
    lines.extend(line.as_deref());
    let mut after = lines.join(&b'\n');
    if !after.is_empty() {
        after.push(b'\n');
    }
    let new = directory.join("utab.strake");
    File::create(&new)?.write_all(&after)?;
    std::fs::rename(new, path)
}

/// Writes blanks, line ends and backslashes as the kernel's octal escapes.
fn escape(text: &[u8]) -> Vec<u8> {
    let escaped = text.iter().map(|&byte| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![byte],
    });
    escaped.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_added_once_and_others_stay() {
        let directory = std::env::temp_dir().join(format!("strake-utab-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("temporary directory");
        let file = directory.join("utab");
        let other = "SRC=//s/x TARGET=/mnt/x ROOT=/ OPTS=uhelper=cifs\n";
        std::fs::write(&file, other).expect("writes");
        let target = Path::new("/mnt/a b");
        for _ in 0..2 {
            change(&directory, target, Some("one")).expect("added");
        }
        let text = std::fs::read_to_string(&file).expect("reads");
        let own = "SRC=one TARGET=/mnt/a\\040b ROOT=/ OPTS=uhelper=strake\n";
        assert_eq!(text, format!("{other}{own}"));
        change(&directory, target, None).expect("removed");
        assert_eq!(std::fs::read_to_string(&file).expect("reads"), other);
        std::fs::remove_dir_all(&directory).expect("removes");
    }
}
