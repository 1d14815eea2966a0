//! Where a service is. Most services stay at one endpoint. One that moves between nodes is sought
//! again for each connection, so a session follows it by itself.
//!
//! **Wrong answers.** The answer of a search may be old, and the node that it names may serve no
//! more. That node says so: it has no such service, or it answers a request with `Unreachable`,
//! which means that it has done nothing. The session then ends the connection and seeks again,
//! within the same limits as for a server that is away.

use crate::credentials::Introduction;
use std::sync::Arc;
use strake_env::stream::Endpoint;
use strake_proto::Result;

/// Where to connect, and how to prove oneself there.
#[derive(Clone)]
pub struct Site {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// How the client proves itself, and whom it expects.
    pub introduction: Introduction,
}

/// Finds a service that moves.
pub trait Seek: Send + Sync {
    /// Where the service is now. May ask for it, within a limit of its own.
    ///
    /// # Errors
    /// `Unreachable` if nobody has it now: the session asks again.
    fn seek(&self) -> Result<Site>;
}

/// Where a service is.
#[derive(Clone)]
pub enum Whereabouts {
    /// Always at this endpoint. The session's own introduction is meant for it.
    Fixed(Endpoint),
    /// Wherever it is found.
    Moving(Arc<dyn Seek>),
}

impl From<Endpoint> for Whereabouts {
    fn from(endpoint: Endpoint) -> Whereabouts {
        Whereabouts::Fixed(endpoint)
    }
}

impl Whereabouts {
    /// Where it is now. `introduction` is for a fixed endpoint.
    pub(crate) fn site(&self, introduction: &Introduction) -> Result<Site> {
        match self {
            Whereabouts::Fixed(endpoint) => {
                Ok(Site { endpoint: endpoint.clone(), introduction: introduction.clone() })
            }
            Whereabouts::Moving(seek) => seek.seek(),
        }
    }
}

#[cfg(test)]
#[path = "whereabouts_test.rs"]
mod whereabouts_test;
