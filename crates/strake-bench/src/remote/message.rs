//! What driver and agents say to each other. JSON; unknown fields and variants are refused.

use serde::{Deserialize, Serialize};

use crate::host::HostFacts;
use crate::net::facts::NetFacts;
use crate::net::phase::ServePlan;
use crate::net::serve::Served;
use crate::outcome::HostOutcome;
use crate::work::Assignment;

/// From the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Who are you?
    Facts,
    /// Work in `scratch` below `directory`, which is below the agent's own.
    Open {
        /// Relative to the agent's directory, or an absolute path below it.
        directory: String,
        /// A name made by `scratch::fresh_name`.
        scratch: String,
    },
    /// Put a mark into the scratch directory.
    Mark,
    /// Is there a mark?
    IsMarked,
    /// Prepare the tasks of a phase.
    Begin(Assignment),
    /// Open the barrier.
    Release,
    /// Give the phase up.
    Cancel,
    /// Remove what phases made.
    Tidy,
    /// Phases of this session use the network only.
    OpenNet,
    /// Serve a network test until this session ends.
    Serve(ServePlan),
    /// What did it cost?
    Served,
    /// What do you know of your network?
    NetFacts,
}

/// From an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Who I am.
    Facts(HostFacts),
    /// Done what was asked.
    Done,
    /// There is a mark, or not.
    Marked(bool),
    /// The phase goes on; sent at least every second while tasks run.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Operations so far.
        operations: u64,
    },
    /// The phase is over.
    Outcome(HostOutcome),
    /// What serving cost.
    Served(Served),
    /// What I know of my network.
    NetFacts(NetFacts),
    /// It could not be done.
    Failed(String),
}
