//! `bench md`: how fast names and attributes are made, looked at and removed.
//!
//! `phase` says where each item lies (pure), `task` does the work, `job` is what the user asks
//! for, `run` turns it into phases, `listing` is the create/list/remove test, `report` lays the
//! figures out.

pub mod job;
pub mod listing;
pub mod phase;
pub mod report;
pub mod run;
pub mod task;
