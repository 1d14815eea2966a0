//! `bench io`: how fast records of data files are written and read.
//!
//! `job` is what the user asks for. `phase` says what a task does, and `task` does it. `run` turns
//! a job into phases on one or many hosts. `report` lays the figures out.

pub mod job;
pub mod phase;
pub mod report;
pub mod run;
pub mod task;
