//! Everything that `stat` and reading say about a tree, as lines of text that can be compared.

use std::fmt::Write;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files larger than this are sparse here. Only their size is recorded.
const HASHED_BYTES_MAX: u64 = 1 << 30;

/// One line for each path below `root`, sorted: kind, mode, owner, links, size, times, contents.
///
/// # Errors
/// The path that could not be read.
pub(crate) fn of(root: &Path) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let fault = |error: std::io::Error| format!("{}: {error}", path.display());
        let meta = std::fs::symlink_metadata(&path).map_err(fault)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let mut line = format!(
            "{name} mode {:o} owner {}:{} links {} mtime {}.{:09} ctime {}.{:09}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.nlink(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        );
        let kind = meta.file_type();
        if kind.is_file() && meta.size() > HASHED_BYTES_MAX {
            let _ = write!(line, " size {}", meta.size());
        } else if kind.is_file() {
            let _ = write!(line, " size {} hash {:016x}", meta.size(), hash(&path)?);
        } else if kind.is_symlink() {
            let _ = write!(line, " to {}", std::fs::read_link(&path).map_err(fault)?.display());
        } else if kind.is_char_device() || kind.is_block_device() {
            let _ = write!(line, " device {:x}", meta.rdev());
        }
        if kind.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(fault)? {
                pending.push(entry.map_err(fault)?.path());
            }
        }
        lines.push(line);
    }
    lines.sort();
    Ok(lines)
}

/// FNV-1a over 64-bit words of the contents and their length.
///
/// # Errors
/// The host's, with the path.
pub(crate) fn hash(path: &Path) -> Result<u64, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = std::fs::File::open(path).map_err(fault)?;
    let mut buffer = Vec::new();
    let (mut hash, mut length) = (0xcbf2_9ce4_8422_2325_u64, 0_u64);
    loop {
        buffer.clear();
        let count = file.by_ref().take(1 << 20).read_to_end(&mut buffer).map_err(fault)?;
        if count == 0 {
            return Ok((hash ^ length).wrapping_mul(0x100_0000_01b3));
        }
        length += count as u64;
        for chunk in buffer.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Compares two manifests.
///
/// # Errors
/// The first lines that only one of them has.
pub(crate) fn compare(before: &[String], after: &[String]) -> Result<(), String> {
    let only = |these: &[String], those: &[String], sign: &str| -> Vec<String> {
        let lines = these.iter().filter(|line| those.binary_search(line).is_err());
        lines.take(5).map(|line| format!("{sign} {line}")).collect()
    };
    let mut differences = only(before, after, "-");
    differences.extend(only(after, before, "+"));
    if differences.is_empty() {
        Ok(())
    } else {
        Err(format!("the tree changed:\n    {}", differences.join("\n    ")))
    }
}

/// The directories and files of `root`, in order of name, that fit in `bytes_max` and `files_max`
/// together.
pub(crate) fn bounded_part(root: &Path, bytes_max: u64, files_max: u64) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(root)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    entries.sort();
    let (mut bytes, mut files) = (0, 0);
    entries.retain(|path| {
        let (more_bytes, more_files) = measure(path);
        let fits = bytes + more_bytes <= bytes_max && files + more_files <= files_max;
        if fits {
            (bytes, files) = (bytes + more_bytes, files + more_files);
        }
        fits
    });
    entries
}

fn measure(path: &Path) -> (u64, u64) {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return (0, 0) };
    if !meta.is_dir() {
        return (meta.len(), 1);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| measure(&entry.path()))
        .fold((0, 1), |(bytes, files), (more_bytes, more_files)| {
            (bytes + more_bytes, files + more_files)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_or_name_is_a_difference() {
        let root = std::env::temp_dir().join(format!("strake-manifest-{}", std::process::id()));
        std::fs::create_dir_all(root.join("d")).expect("temporary directory");
        std::fs::write(root.join("d/a"), b"0123456789").expect("write");
        let before = of(&root).expect("readable");
        assert_eq!(before.len(), 3);
        assert_eq!(compare(&before, &of(&root).expect("readable")), Ok(()));
        std::fs::write(root.join("d/a"), b"0123456780").expect("write");
        let after = of(&root).expect("readable");
        assert!(compare(&before, &after).is_err_and(|text| text.contains("+ d/a")));
        std::fs::remove_dir_all(&root).expect("remove");
    }
}
