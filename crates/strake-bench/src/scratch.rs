//! The directory that a run works in and removes afterwards, come what may.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{BenchError, Result};
use crate::pattern::mix;

/// A working directory; dropping it removes it with all it holds.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes (or, on another host of the same run, joins) `name` below `parent`.
    pub fn make(parent: &Path, name: &str) -> Result<Scratch> {
        let path = parent.join(name);
        match fs::create_dir(&path) {
            Ok(()) => {}
            // Another host on the same file system was here first.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(BenchError::path("make the directory", &path, error)),
        }
        Ok(Scratch { path, keep: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the files where they are (`--keep`).
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Removes it now and reports what could not be removed.
    pub fn remove(&mut self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        // Another host may be removing the same tree: what it took away is gone either way.
        for _ in 0..100 {
            match fs::remove_dir_all(&self.path) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if !self.path.exists() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(BenchError::path("remove", &self.path, error)),
            }
        }
        self.keep = true;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            crate::tell("bench", &format_args!("{error}; remove it by hand"));
        }
    }
}

/// A name that no other run on any host uses.
pub fn fresh_name() -> String {
    let process = u64::from(std::process::id());
    format!("strake-bench-{:016x}", mix(random_word() ^ process))
}

/// 64 bits from the kernel's generator.
pub fn random_word() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Fills `bytes` from the kernel's generator.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .expect("invariant: getrandom without flags fails on no supported kernel");
    }
}

/// A scratch name that a peer may use: made by `fresh_name` and nothing else.
pub fn is_fresh_name(name: &str) -> bool {
    name.strip_prefix("strake-bench-")
        .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_scratch_leaves_nothing() {
        let parent = std::env::temp_dir();
        let name = fresh_name();
        assert!(is_fresh_name(&name) && !is_fresh_name("strake-bench-../../etc/passw"));
        let scratch = Scratch::make(&parent, &name).unwrap();
        let second_host = Scratch::make(&parent, &name).unwrap();
        fs::create_dir(scratch.path().join("deep")).unwrap();
        fs::write(scratch.path().join("deep/file"), "x").unwrap();
        drop(scratch);
        drop(second_host);
        assert!(!parent.join(&name).exists());
    }

    #[test]
    fn a_kept_scratch_stays() {
        let name = fresh_name();
        let mut scratch = Scratch::make(&std::env::temp_dir(), &name).unwrap();
        let path = scratch.path().to_path_buf();
        scratch.keep();
        drop(scratch);
        assert!(path.is_dir());
        fs::remove_dir(path).unwrap();
    }
}
