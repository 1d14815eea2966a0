//! `bench md`: how fast names and attributes are made, looked at and removed.
//!
//! `job` is what the user asks for. `phase` says where each item lies, which is pure, and `task`
//! does the work. `run` turns a job into phases. `listing` is the create/list/remove test. `report`
//! lays the figures out.

pub mod job;
pub mod listing;
pub mod phase;
pub mod report;
pub mod run;
pub mod task;
