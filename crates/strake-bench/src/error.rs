//! What can go wrong, and what the user can do about it.

use std::io;
use std::path::Path;

use thiserror::Error;

/// A benchmark that did not come to its end.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The command line or a job file asks for something impossible (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was attempted, with the path or address.
        doing: String,
        /// The answer.
        source: io::Error,
    },
    /// What was read is not what was written.
    #[error("verification failed: {0}")]
    Verification(String),
    /// A host of a distributed run failed.
    #[error("host {host}: {message}")]
    Host {
        /// Its name as given in `--hosts`.
        host: String,
        /// What it reported, or what happened to the connection.
        message: String,
    },
    /// A message that no correct peer sends.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// A readiness gate said no; the report says why.
    #[error("not ready; see the report")]
    NotReady,
    /// Ctrl-C or a request to terminate.
    #[error("interrupted; its files have been removed")]
    Interrupted,
}

impl BenchError {
    /// Wraps an error of the system with what was being done.
    pub fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        BenchError::System { doing: doing.into(), source: source.into() }
    }

    /// Wraps an error of the system with a verb and the path it happened on.
    pub fn path(verb: &str, path: &Path, source: impl Into<io::Error>) -> Self {
        BenchError::system(format!("cannot {verb} {}", path.display()), source)
    }
}

/// The result of almost everything here.
pub type Result<T> = std::result::Result<T, BenchError>;
