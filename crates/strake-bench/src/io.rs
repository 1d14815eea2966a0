//! `bench io`: how fast records of data files are written and read.
//!
//! `phase` says what a task does (pure), `task` does it, `job` is what the user asks for,
//! `run` turns a job into phases on one or many hosts, `report` lays the figures out.

pub mod job;
pub mod phase;
pub mod report;
pub mod run;
pub mod task;
