//! `bench net`: what the network between hosts carries, independent of any file system.
//!
//! `wire` is the data protocol (pure), `phase` says what a thread does, `task` is a client's
//! thread, `serve` the servers' side, `facts` what a host knows of its network, `gate` the
//! readiness verdict and the advice (pure), `report` the lines, `run` the driver.

pub mod facts;
pub mod gate;
pub mod phase;
pub mod report;
pub mod run;
pub mod serve;
pub mod task;
pub mod wire;
