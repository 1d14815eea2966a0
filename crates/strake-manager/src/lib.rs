//! The manager: repair of what is on the NSDs, whoever uses them. After a crash, when an NSD
//! returns, when one is replaced or deleted, and in the background.
//!
//! It stands on the array ([`strake_array`]) and never on a client. What it needs of those who may
//! hold dirty data is one small trait, [`strake_array::exclusion`].
//!
//! ```text
//! manager                  all of it: start, end, what can be asked for
//! after_crash              before anything is served
//! mender, returning        NSDs that are away, and back
//! replace, delete          another NSD in the place of one, or none
//! scrub, check             everything read and verified; the metadata against the strips
//! compare, salvage         what one NSD lacks, and what only it has; an index that lost something
//! scan, objects            files that have blocks; objects that no file has
//! context, job, pace       the parts all share; work on demand, at a limited rate
//! ```

#![warn(missing_docs)]

pub mod after_crash;
mod check;
mod compare;
mod context;
mod delete;
mod job;
mod manager;
mod mender;
mod objects;
mod pace;
mod replace;
mod report;
mod returning;
mod salvage;
mod scan;
mod scrub;

pub use check::StripCheck;
pub use delete::Deletion;
pub use manager::Manager;
pub use replace::Replacement;
pub use report::RecoveryReport;
pub use scrub::ScrubView;
