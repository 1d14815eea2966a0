//! The files that the rules look at: every text file that git knows or would add.

use std::path::Path;
use std::process::Command;

use super::rust::Rust;

/// The files of the repository, in git's order.
pub(super) struct Repository {
    pub(super) files: Vec<File>,
}

/// One text file.
pub(super) struct File {
    /// Relative to the root of the repository.
    pub(super) path: String,
    pub(super) text: String,
    /// For a `.rs` file: its tokens, and which lines are tests.
    pub(super) rust: Option<Rust>,
}

impl Repository {
    /// Reads the repository whose root is the current directory.
    pub(super) fn read() -> std::io::Result<Repository> {
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .output()?;
        if !output.status.success() {
            return Err(std::io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            ));
        }
        let files = String::from_utf8_lossy(&output.stdout)
            .lines()
            // git also lists files that were removed without a commit, and files that are not text.
            // Documents may show pictures, so these count as files without a text.
            .filter_map(|path| match std::fs::read_to_string(path) {
                Ok(text) => Some(File::new(path, text)),
                Err(_) if path.ends_with(".png") && Path::new(path).exists() => {
                    Some(File::new(path, String::new()))
                }
                Err(_) => None,
            })
            .collect();
        Ok(Repository { files })
    }

    /// A repository for a rule's test: paths and texts.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Repository {
        let files = files.iter().map(|(path, text)| File::new(path, (*text).to_owned())).collect();
        Repository { files }
    }

    /// The Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files.iter().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }
}

impl File {
    fn new(path: &str, text: String) -> File {
        let rust = path.ends_with(".rs").then(|| Rust::read(path, &text));
        File { path: path.to_owned(), text, rust }
    }
}
