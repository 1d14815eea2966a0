//! What can go wrong in planning, each with what to do about it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An error of the planner. Everything a user writes wrong is `usage` (exit code 2).
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A TOML or JSON file does not fit its schema.
    #[error("{file} does not fit the schema; correct this and run again:\n{error}")]
    Schema {
        /// The file.
        file: String,
        /// Where and what.
        error: String,
    },
    /// A component that the library does not hold.
    #[error(
        "no {kind} named '{name}' in the library; use one of: {known}; or add yours in a \
         directory given with --library"
    )]
    Unknown {
        /// Kind of component.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What exists.
        known: String,
    },
    /// A library entry that contradicts itself.
    #[error("library entry '{entry}': {why}")]
    Entry {
        /// The entry.
        entry: String,
        /// What is wrong and what is expected.
        why: String,
    },
    /// A design that cannot be built.
    #[error("tier '{tier}': {why}")]
    Design {
        /// The tier.
        tier: String,
        /// What is wrong and what to write instead.
        why: String,
    },
    /// Wrong arguments.
    #[error("{0}")]
    Usage(String),
    /// A measurement could not be made.
    #[error("{0}")]
    Measure(String),
}

impl PlanError {
    /// An error of reading or writing `path`.
    pub fn read(path: &Path, error: std::io::Error) -> PlanError {
        PlanError::Io { path: path.into(), error }
    }

    /// A text that does not fit its schema. Parsers quote the line; of a long one only the
    /// beginning is of use.
    pub fn schema(file: &str, error: &dyn std::fmt::Display) -> PlanError {
        const COLUMNS_MAX: usize = 160;
        let shorten = |line: &str| match line.char_indices().nth(COLUMNS_MAX) {
            Some((end, _)) => format!("{} …", &line[..end]),
            None => line.to_string(),
        };
        // Parsers name the type of the program; a person writes numbers.
        let error = error.to_string().replace("expected u64", "expected a whole number from 0");
        let lines: Vec<String> = error.lines().map(shorten).collect();
        PlanError::Schema { file: file.into(), error: lines.join("\n") }
    }

    /// Whether the user wrote something wrong (exit code 2) rather than something failing (1).
    pub fn is_usage(&self) -> bool {
        match self {
            PlanError::Io { error, .. } => matches!(
                error.kind(),
                ErrorKind::NotFound
                    | ErrorKind::InvalidData
                    | ErrorKind::IsADirectory
                    | ErrorKind::NotADirectory
            ),
            PlanError::Measure(_) => false,
            _ => true,
        }
    }
}
