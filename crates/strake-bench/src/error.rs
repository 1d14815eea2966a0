//! The errors of a benchmark, in words that tell the user what to do.

use std::io;
use std::path::Path;

use thiserror::Error;

/// Why a benchmark did not finish.
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
        /// What the system answered.
        source: io::Error,
    },
    /// The bytes that were read differ from the bytes that were written.
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
    /// A peer sent a message that no correct peer sends.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// A readiness gate failed. The report says why.
    #[error("not ready; see the report")]
    NotReady,
    /// The user pressed Ctrl-C or asked the process to terminate.
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
