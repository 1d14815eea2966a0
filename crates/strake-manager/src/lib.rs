//! The manager repairs what is on the NSDs: after a crash, when an NSD returns, when an NSD is
//! replaced or deleted, and in the background.
//!
//! It stands on the array ([`strake_array`]) and never on a client. One small trait,
//! [`strake_array::exclusion`], is all that it needs of a client with dirty data.
//!
//! ```text
//! manager              start and end; everything that callers can ask for
//! tokens               the tokens of all clients
//! leases               who may use the NSDs, and who is dead
//! after_crash          repair before anything is served
//! mender, returning    NSDs that are away, and NSDs that are back
//! replace, delete      an NSD gets a successor, or goes without one
//! rebalance            files are moved to the newest layout
//! scrub, check         verifies all strips; checks the metadata against the strips
//! compare, salvage     what one NSD lacks or has too much; an index that lost something
//! scan, objects        files that have blocks; objects that no file has
//! context, job, pace   what all parts share; work on demand, at a limited rate
//! background           work that goes through all files, with its progress
//! ```

#![warn(missing_docs)]

pub mod after_crash;
mod background;
mod check;
mod compare;
mod context;
mod delete;
mod job;
pub mod leases;
pub mod locks;
mod manager;
mod mender;
mod objects;
mod pace;
mod rebalance;
mod replace;
mod report;
mod returning;
mod salvage;
mod scan;
mod scrub;
pub mod tokens;

pub use background::View;
pub use check::StripCheck;
pub use delete::Deletion;
pub use leases::LeaseService;
pub use manager::Manager;
pub use rebalance::Rebalanced;
pub use replace::Replacement;
pub use report::RecoveryReport;
pub use scrub::Scrubbed;
pub use tokens::{Hot, HotTokens, TokenService};
